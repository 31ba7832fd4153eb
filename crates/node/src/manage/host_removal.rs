//! What keeps a host from being removed for good, and how far a removal is: pure functions over
//! records.

use crate::error::ManageError;
use crate::status::HostStatus;
use atoll_format::id::HostId;
use atoll_format::record::{LegRecord, MemberRecord, MemberState, ObjectRecord, ObjectState};

/// Hosts that were removed, of which the directory keeps a record.
const REMOVED_MAX: usize = 1_000;
/// A record of a host that was removed stays for so long at least: its certificate, of 90 days, has
/// expired by then.
const REMOVED_KEPT_MS: u64 = 100 * 86_400_000;
/// Such records that one transaction takes away.
const FORGOTTEN_AT_ONCE: usize = 16;
/// Names in one sentence.
const NAMES_MAX: usize = 8;

const _: () = {
    // One transaction takes away as many as it writes, and more.
    assert!(0 < FORGOTTEN_AT_ONCE && FORGOTTEN_AT_ONCE < REMOVED_MAX);
    assert!(REMOVED_KEPT_MS > 90 * 86_400_000);
};

/// A host that is to be removed.
pub(crate) struct Leaving<'a> {
    pub host: HostId,
    pub name: &'a str,
    /// It is given up with what it holds.
    pub lost: bool,
    /// Which host reaches it.
    pub reached_by: Option<String>,
    /// What it says of itself.
    pub status: Option<HostStatus>,
    /// Seconds after which copies on a host that is away are made anew.
    pub repair_delay_s: u32,
}

/// How far a removal is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    /// No record names the host as a copy that may be used again.
    Free,
    /// Those of these volumes do.
    Waits(Vec<String>),
    /// These volumes have no other complete copy.
    LastCopies(Vec<String>),
}

/// Some of many names, for a sentence.
pub(crate) fn some_of(names: &[String]) -> String {
    assert!(!names.is_empty(), "a sentence about nothing");
    let (shown, more) = (names.len().min(NAMES_MAX), names.len().saturating_sub(NAMES_MAX));
    let list = names[..shown].join(", ");
    if more == 0 { list } else { format!("{list} and {more} more") }
}

fn members_on(leg: &LegRecord, host: HostId) -> impl Iterator<Item = &MemberRecord> {
    leg.members.iter().filter(move |m| m.host == host)
}

/// Whether a removal may begin. `is_usable`: whether a copy can be read now.
///
/// # Errors
/// What is on the host, and what to do next.
pub(crate) fn may_leave(
    leaving: &Leaving<'_>,
    records: &[ObjectRecord],
    is_usable: impl Fn(&MemberRecord) -> bool,
) -> Result<(), ManageError> {
    let (host, name) = (leaving.host, leaving.name);
    assert!(!name.is_empty(), "host {host} has no name");
    let is_heard = leaving.reached_by.is_some() || leaving.status.is_none();
    assert!(is_heard, "{name} tells how it is, and nobody reaches it");
    let holds = |what: String, next: String| {
        assert!(!what.is_empty() && !next.is_empty(), "a refusal without a next step");
        Err(ManageError::HostHolds { host: name.into(), what, next })
    };
    if leaving.lost {
        if let Some(by) = &leaving.reached_by {
            let next = format!(
                "without --lost, atoll host remove {name} says what is on it; if it is broken, \
                 stop it for good first"
            );
            return holds(format!("it is not lost, host {by} reaches it"), next);
        }
        let is_last = |record: &&ObjectRecord| {
            record.legs.iter().any(|leg| {
                // What it does not have whole is lost already.
                let is_needed = members_on(leg, host).any(|m| m.state.is_active());
                let mut others = leg.members.iter().filter(|m| m.host != host);
                is_needed && !others.any(|m| m.state.is_active() && is_usable(m))
            })
        };
        let ready = records.iter().filter(|record| record.state == ObjectState::Ready);
        let last: Vec<String> = ready.filter(is_last).map(|record| record.name.clone()).collect();
        return match last.is_empty() {
            true => Ok(()),
            false => Err(ManageError::LastCopies { host: name.into(), volumes: some_of(&last) }),
        };
    }
    let names = |record: &&ObjectRecord| {
        record.state != ObjectState::Deleting
            && record.members().any(|(_, member)| member.host == host)
    };
    let volumes: Vec<String> =
        records.iter().filter(names).map(|record| record.name.clone()).collect();
    let delay = leaving.repair_delay_s;
    if !volumes.is_empty() {
        let what = format!("it has copies of volume {}", some_of(&volumes));
        let next = match leaving.reached_by.is_some() {
            true => format!(
                "stop it; once it has been away for {delay} s its copies are made anew on other \
                 hosts ('atoll resync show'), and then it can be removed"
            ),
            false => format!(
                "wait until they were made anew on other hosts, {delay} s after it went away \
                 ('atoll resync show'), or start it again; if it will never come back: atoll host \
                 remove {name} --lost"
            ),
        };
        return holds(what, next);
    }
    if leaving.reached_by.is_none() {
        return Ok(());
    }
    let Some(status) = &leaving.status else {
        let next = "try again; if it is broken, stop it first".into();
        return holds("it does not tell what is on it".into(), next);
    };
    if !status.open_volumes.is_empty() {
        let next = format!("atoll session list names them; stop them, or stop host {name} first");
        return holds(format!("it serves clients of {} volumes", status.open_volumes.len()), next);
    }
    if !status.components.is_empty() {
        let what = format!(
            "its disks hold {} components, which no volume uses any more",
            status.components.len()
        );
        return holds(what, "they are removed within minutes; or stop the host first".into());
    }
    Ok(())
}

/// How far the removal of a host is that is refused by all others already, by records that are not
/// older than its beginning.
pub(crate) fn progress(host: HostId, records: &[ObjectRecord]) -> Progress {
    let (mut waits, mut last) = (Vec::new(), Vec::new());
    for record in records.iter().filter(|record| record.state != ObjectState::Deleting) {
        let is_lost = |m: &MemberRecord| matches!(m.state, MemberState::Absent { lost: true, .. });
        if record.members().any(|(_, m)| m.host == host && !is_lost(m)) {
            waits.push(record.name.clone());
        }
        let is_last = |leg: &LegRecord| {
            let others = leg.members.iter().filter(|m| m.host != host);
            members_on(leg, host).next().is_some()
                && others.filter(|m| m.state.is_active()).count() == 0
        };
        // What was never ready is given up by itself.
        if record.state == ObjectState::Ready && record.legs.iter().any(is_last) {
            last.push(record.name.clone());
        }
    }
    match (last.is_empty(), waits.is_empty()) {
        (false, _) => Progress::LastCopies(last),
        (true, false) => Progress::Waits(waits),
        (true, true) => Progress::Free,
    }
}

/// Which records of hosts that were removed, each with its time, make room for another one.
///
/// # Errors
/// There are too many that are needed.
pub(crate) fn room_for_another(
    removed: &[(HostId, u64)],
    now_ms: u64,
) -> Result<Vec<HostId>, ManageError> {
    if removed.len() < REMOVED_MAX {
        return Ok(Vec::new());
    }
    let mut old: Vec<(u64, HostId)> = removed
        .iter()
        .filter(|(_, at_ms)| now_ms.saturating_sub(*at_ms) > REMOVED_KEPT_MS)
        .map(|&(host, at_ms)| (at_ms, host))
        .collect();
    old.sort_unstable();
    if old.is_empty() {
        let days = REMOVED_KEPT_MS / 86_400_000;
        return Err(ManageError::Invalid(format!(
            "{REMOVED_MAX} hosts were removed within the last {days} days, which are remembered: \
             no other can be removed before one of these is that old"
        )));
    }
    let forgotten: Vec<HostId> =
        old.into_iter().take(FORGOTTEN_AT_ONCE).map(|(_, host)| host).collect();
    assert!(!forgotten.is_empty() && forgotten.len() < removed.len(), "{forgotten:?} go");
    Ok(forgotten)
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_format::id::{ComponentId, Epoch, GroupId, ObjectId, Seq};
    use atoll_format::record::{Policy, RECORD_VERSION};

    const GONE: HostId = HostId(1);
    const ACTIVE: MemberState = MemberState::Active;
    const AWAY: MemberState = MemberState::Absent { since: Seq(3), at_ms: 7, lost: false };
    const LOST: MemberState = MemberState::Absent { since: Seq(3), at_ms: 7, lost: true };
    const BEHIND: MemberState = MemberState::Resyncing { from: Seq(3) };

    /// A volume of legs, each with the hosts of its members and their states.
    fn volume(name: &str, state: ObjectState, legs: &[&[(u64, MemberState)]]) -> ObjectRecord {
        let leg = |members: &&[(u64, MemberState)]| LegRecord {
            members: members
                .iter()
                .map(|&(host, state)| MemberRecord {
                    component: ComponentId(host),
                    host: HostId(host),
                    group: GroupId(host),
                    state,
                })
                .collect(),
        };
        ObjectRecord {
            version: RECORD_VERSION,
            id: ObjectId(1),
            name: name.into(),
            state,
            size_bytes: 1 << 30,
            policy: Policy::DEFAULT,
            epoch: Epoch(1),
            owner: None,
            seq_base: Seq(0),
            legs: legs.iter().map(leg).collect(),
            attached: None,
            served: None,
            nonce: 0,
        }
    }

    fn ready(legs: &[&[(u64, MemberState)]]) -> ObjectRecord {
        volume("v", ObjectState::Ready, legs)
    }

    fn leaving(lost: bool, reached: bool) -> Leaving<'static> {
        let reached_by = reached.then(|| "h2".to_owned());
        let status = reached.then(|| crate::facts::tests::status(GONE.0));
        Leaving { host: GONE, name: "h1", lost, reached_by, status, repair_delay_s: 60 }
    }

    /// Why it may not leave, in a word; host 9 cannot be used.
    fn refused(leaving: &Leaving<'_>, records: &[ObjectRecord]) -> &'static str {
        match may_leave(leaving, records, |m| m.host != HostId(9)) {
            Ok(()) => "",
            Err(ManageError::LastCopies { .. }) => "last",
            Err(ManageError::HostHolds { what, next, .. }) => {
                assert!(!next.is_empty());
                let words = ["copies", "not lost", "clients", "components", "tell"];
                words.into_iter().find(|word| what.contains(word)).expect("a known reason")
            }
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_host_with_copies_is_only_given_up_and_only_if_there_are_others() {
        for (record, plain, lost) in [
            (ready(&[&[(2, ACTIVE), (3, ACTIVE)]]), "", ""),
            (ready(&[&[(1, ACTIVE), (2, ACTIVE)]]), "copies", ""),
            (ready(&[&[(1, AWAY), (2, ACTIVE)]]), "copies", ""),
            (ready(&[&[(1, LOST), (2, ACTIVE)]]), "copies", ""),
            (ready(&[&[(1, ACTIVE)]]), "copies", "last"),
            (ready(&[&[(1, ACTIVE), (2, AWAY)]]), "copies", "last"),
            (ready(&[&[(1, ACTIVE), (2, BEHIND)]]), "copies", "last"),
            (ready(&[&[(1, ACTIVE), (9, ACTIVE)]]), "copies", "last"),
            (ready(&[&[(1, AWAY), (9, ACTIVE)]]), "copies", ""),
            // One leg is enough.
            (ready(&[&[(2, ACTIVE)], &[(1, ACTIVE), (3, AWAY)]]), "copies", "last"),
            (volume("v", ObjectState::Creating, &[&[(1, ACTIVE)]]), "copies", ""),
            (volume("v", ObjectState::Deleting, &[&[(1, ACTIVE)]]), "", ""),
        ] {
            let records = [record];
            assert_eq!(refused(&leaving(false, false), &records), plain, "{records:?}");
            assert_eq!(refused(&leaving(true, false), &records), lost, "{records:?}");
            assert_eq!(refused(&leaving(true, true), &records), "not lost", "{records:?}");
        }
    }

    #[test]
    fn a_host_that_answers_leaves_only_empty() {
        let with = |change: fn(&mut HostStatus)| {
            let mut leaving = leaving(false, true);
            change(leaving.status.as_mut().expect("it tells"));
            refused(&leaving, &[])
        };
        assert_eq!(with(|_| {}), "");
        assert_eq!(with(|status| _ = status.open_volumes.insert(ObjectId(1), 2)), "clients");
        assert_eq!(with(|status| _ = status.components.insert(ComponentId(1), 0)), "components");
        assert_eq!(refused(&Leaving { status: None, ..leaving(false, true) }, &[]), "tell");
    }

    #[test]
    fn a_removal_goes_on_until_every_copy_is_recorded_as_lost() {
        let waits = || Progress::Waits(vec!["v".into()]);
        let last = || Progress::LastCopies(vec!["v".into()]);
        for (record, expected) in [
            (ready(&[&[(2, ACTIVE), (3, AWAY)]]), Progress::Free),
            (ready(&[&[(1, LOST), (2, ACTIVE)]]), Progress::Free),
            (ready(&[&[(1, LOST), (2, ACTIVE), (3, BEHIND)]]), Progress::Free),
            (ready(&[&[(1, AWAY), (2, ACTIVE)]]), waits()),
            (ready(&[&[(1, BEHIND), (2, ACTIVE)]]), waits()),
            (ready(&[&[(1, ACTIVE), (2, ACTIVE)]]), waits()),
            (ready(&[&[(1, ACTIVE), (2, AWAY)]]), last()),
            (ready(&[&[(1, ACTIVE)]]), last()),
            (ready(&[&[(1, LOST), (2, ACTIVE)], &[(1, ACTIVE), (3, BEHIND)]]), last()),
            (volume("v", ObjectState::Creating, &[&[(1, ACTIVE)]]), waits()),
            (volume("v", ObjectState::Deleting, &[&[(1, ACTIVE)]]), Progress::Free),
        ] {
            assert_eq!(progress(GONE, std::slice::from_ref(&record)), expected, "{record:?}");
        }
        assert_eq!(progress(GONE, &[]), Progress::Free);
    }

    #[test]
    fn only_old_records_make_room_and_only_if_there_is_none() {
        let day = 86_400_000;
        let now = 1_000 * day;
        let all = |days_ago: u64, count: u64| -> Vec<(HostId, u64)> {
            (0..count).map(|n| (HostId(n), now - days_ago * day + n)).collect()
        };
        assert_eq!(room_for_another(&all(500, 999), now), Ok(vec![]));
        let oldest: Vec<HostId> = (0..16).map(HostId).collect();
        assert_eq!(room_for_another(&all(500, 1_000), now), Ok(oldest));
        assert!(room_for_another(&all(99, 1_000), now).is_err());
        let mut one = all(99, 1_000);
        one[500].1 = 0;
        assert_eq!(room_for_another(&one, now), Ok(vec![HostId(500)]));
    }

    #[test]
    fn a_sentence_has_some_names() {
        let names: Vec<String> = (0..10).map(|n| format!("v{n}")).collect();
        assert_eq!(some_of(&names[..2]), "v0, v1");
        assert_eq!(some_of(&names), "v0, v1, v2, v3, v4, v5, v6, v7 and 2 more");
    }
}

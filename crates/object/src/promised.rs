//! What volumes may take on disks in all, against the space that exists, and what of it is reserved
//! for them: pure functions.
//!
//! Volumes are thin, so that more may be promised than there is. The limit keeps that within what
//! an administrator can still make good. It is soft: of volumes that are made at the same time,
//! each looks before the others are there.

use crate::placement::{HostView, Refusal, Remedy, Rule, reserve_bytes};
use atoll_format::id::{ComponentId, GroupId};
use atoll_format::record::{HostRecord, ObjectRecord, ObjectState, check_promised_limit};
use atoll_format::units::CHUNK;
use std::collections::BTreeMap;

/// Bytes that an object can take on disks, all copies together.
pub fn promised_bytes(record: &ObjectRecord) -> u64 {
    record.size_bytes.saturating_mul(record.policy.members() as u64)
}

/// Bytes of each disk group that volumes have reserved and do not use yet; `used` says what a
/// component uses.
pub fn reserved<'a>(
    records: impl Iterator<Item = &'a ObjectRecord>,
    used: impl Fn(ComponentId) -> Option<u64>,
) -> BTreeMap<GroupId, u64> {
    let mut reserved: BTreeMap<GroupId, u64> = BTreeMap::new();
    for record in
        records.filter(|r| r.policy.reserve_percent > 0 && r.state != ObjectState::Deleting)
    {
        for (leg, member) in record.members() {
            let reserve = reserve_bytes(&record.policy, u64::from(record.leg_chunks(leg)) * CHUNK);
            let unused = reserve.saturating_sub(used(member.component).unwrap_or(0));
            *reserved.entry(member.group).or_default() += unused;
        }
    }
    reserved
}

/// What is reserved is free to nobody else.
pub fn set_aside(hosts: &mut [HostView], reserved: &BTreeMap<GroupId, u64>) {
    for group in hosts.iter_mut().flat_map(|host| &mut host.groups) {
        let bytes = reserved.get(&group.id).copied().unwrap_or(0);
        group.free_bytes = group.free_bytes.saturating_sub(bytes);
    }
}

/// What is promised in all, and what it is measured by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promised {
    /// Bytes that all volumes can take on disks, all copies together.
    pub promised_bytes: u64,
    /// Bytes of all disk groups that have not failed, those of hosts that are down included.
    pub exist_bytes: u64,
    /// How much may be promised, in percent of what exists.
    pub limit_percent: u32,
}

impl Promised {
    /// Of those objects, on those hosts.
    pub fn of<'a>(
        records: impl Iterator<Item = &'a ObjectRecord>,
        hosts: impl Iterator<Item = &'a HostRecord>,
        limit_percent: u32,
    ) -> Self {
        let kept = records.filter(|record| record.state != ObjectState::Deleting);
        let groups = hosts.flat_map(|host| &host.groups).filter(|group| group.healthy);
        let sum = |sum: u64, bytes: u64| sum.saturating_add(bytes);
        Self {
            promised_bytes: kept.map(promised_bytes).fold(0, sum),
            exist_bytes: groups.map(|group| group.capacity_bytes).fold(0, sum),
            limit_percent,
        }
    }

    /// What is promised, in percent of what exists, rounded up; none if nothing exists.
    pub fn percent(&self) -> Option<u64> {
        if self.exist_bytes == 0 {
            return None;
        }
        let percent = (u128::from(self.promised_bytes) * 100).div_ceil(self.exist_bytes.into());
        Some(u64::try_from(percent).unwrap_or(u64::MAX))
    }

    /// Whether so many bytes more may be promised.
    ///
    /// # Errors
    /// By how much it would be beyond the limit, and what would help.
    pub fn check_more(&self, more: u64) -> Result<(), Refusal> {
        let promised_bytes = self.promised_bytes.saturating_add(more);
        let then = Self { promised_bytes, ..*self };
        let limit_percent = self.limit_percent;
        let percent = then.percent().unwrap_or(u64::MAX);
        if percent <= u64::from(limit_percent) {
            return Ok(());
        }
        let wanted = (u128::from(promised_bytes) * 100).div_ceil(u128::from(limit_percent.max(1)));
        let wanted = u64::try_from(wanted).unwrap_or(u64::MAX);
        let disks = wanted.saturating_sub(self.exist_bytes);
        let mut remedies = vec![Remedy::MoreDisks(disks), Remedy::FewerObjects];
        let limit = u32::try_from(percent).ok().filter(|&l| check_promised_limit(l).is_ok());
        remedies.extend(limit.map(Remedy::RaiseLimit));
        let rule = Rule::Promised { promised_bytes, exist_bytes: self.exist_bytes, limit_percent };
        Err(Refusal { rule, excluded: Vec::new(), remedies })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const G: u64 = 1 << 30;

    #[test]
    fn more_is_promised_up_to_the_limit_and_not_beyond() {
        let of = |promised_bytes, exist_bytes, limit_percent| Promised {
            promised_bytes,
            exist_bytes,
            limit_percent,
        };
        for (promised, more, is_taken) in [
            (of(0, 10 * G, 1000), 100 * G, true),
            (of(0, 10 * G, 1000), 100 * G + 1, false),
            (of(40 * G, 10 * G, 1000), 60 * G, true),
            (of(41 * G, 10 * G, 1000), 60 * G, false),
            (of(0, 10 * G, 100), 10 * G, true),
            (of(0, 10 * G, 100), 10 * G + 1, false),
            (of(0, 0, 1000), 1, false),
            (of(u64::MAX, 10 * G, 1_000_000), u64::MAX, false),
            (of(0, u64::MAX, 100), u64::MAX, true),
        ] {
            assert_eq!(promised.check_more(more).is_ok(), is_taken, "{promised:?} and {more}");
        }
    }

    #[test]
    fn a_refusal_says_the_figures_and_what_would_do() {
        let promised =
            Promised { promised_bytes: 90 * G, exist_bytes: 10 * G, limit_percent: 1000 };
        let refusal = promised.check_more(20 * G).expect_err("beyond the limit");
        assert_eq!(
            refusal.to_string(),
            "volumes could take 110.0 GiB on disks then, all copies together: 10.0 GiB exist, and \
             the limit is 1000 % of that; add disk groups of 1.0 GiB in all, or delete volumes \
             that are not needed, or raise the limit: 'atoll cluster set --promised-limit 1100'"
        );
        for remedy in &refusal.remedies {
            let then = match *remedy {
                Remedy::MoreDisks(bytes) => {
                    Promised { exist_bytes: promised.exist_bytes + bytes, ..promised }
                }
                Remedy::RaiseLimit(limit_percent) => Promised { limit_percent, ..promised },
                _ => continue,
            };
            assert_eq!(then.check_more(20 * G), Ok(()), "{remedy}");
        }
        let said = promised.check_more(1 << 60).expect_err("beyond any limit").to_string();
        assert!(!said.contains("raise the limit"), "{said}");
        assert_eq!(promised.percent(), Some(900));
        assert_eq!(Promised { promised_bytes: 1, ..promised }.percent(), Some(1), "rounded up");
        assert_eq!(Promised { exist_bytes: 0, ..promised }.percent(), None);
    }

    #[test]
    fn what_is_reserved_and_not_used_is_free_to_nobody_else() {
        use crate::placement::GroupView;
        use atoll_format::id::{Epoch, HostId, ObjectId, Seq};
        use atoll_format::record::{LegRecord, MemberRecord, MemberState, Policy, RECORD_VERSION};
        let member = |n: u64| MemberRecord {
            component: ComponentId(n),
            host: HostId(n),
            group: GroupId(n),
            state: MemberState::Active,
        };
        let record = |reserve_percent, state| ObjectRecord {
            version: RECORD_VERSION,
            id: ObjectId(1),
            name: "v".into(),
            state,
            size_bytes: 10 * CHUNK,
            policy: Policy { reserve_percent, ..Policy::DEFAULT },
            epoch: Epoch(1),
            owner: None,
            seq_base: Seq(0),
            legs: vec![LegRecord { members: vec![member(1), member(2)] }],
            attached: None,
            served: None,
            nonce: 0,
        };
        let records = [
            record(40, ObjectState::Ready),
            record(100, ObjectState::Creating),
            record(100, ObjectState::Deleting),
            record(0, ObjectState::Ready),
        ];
        let used = |component| (component == ComponentId(2)).then_some(5 * CHUNK);
        let reserved = reserved(records.iter(), used);
        let expected = BTreeMap::from([(GroupId(1), 14 * CHUNK), (GroupId(2), 5 * CHUNK)]);
        assert_eq!(reserved, expected);
        let group = |id, free_bytes| GroupView {
            id: GroupId(id),
            healthy: true,
            capacity_bytes: 100 * CHUNK,
            device_bytes: 100 * CHUNK,
            free_bytes,
            unwritten_bytes: 0,
            free_components: 1,
            shard: 0,
        };
        let mut hosts = [HostView {
            id: HostId(1),
            name: "h".into(),
            fault_domain: "h".into(),
            alive: true,
            incarnation: atoll_format::id::Incarnation(1),
            groups: vec![group(1, 10 * CHUNK), group(2, 10 * CHUNK), group(3, 10 * CHUNK)],
        }];
        set_aside(&mut hosts, &reserved);
        let free: Vec<u64> = hosts[0].groups.iter().map(|g| g.free_bytes / CHUNK).collect();
        assert_eq!(free, [0, 5, 10]);
    }
}

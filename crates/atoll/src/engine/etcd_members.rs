//! The etcd that the hosts run themselves: which of them have a member of it.
//!
//! Each host looks at the list of members: what it says of this one is how the member of this host
//! is started (unit `atoll-etcd` does), and where all of them are is where this host asks. The host
//! whose member leads makes the list what it should be, one step at a time.
//!
//! Invariants: a member is added without a vote, and gets it once it has all data; nobody is
//! removed but who belongs to the cluster no more, or was added and never came.

use super::Engine;
use super::directory::HostDirectory;
use super::host_request::Question;
use crate::config::MemberAddresses;
use crate::etcd_member::{self, MemberStart};
use crate::trust::now_s;
use atoll_api::{Code, Problem};
use atoll_etcd::{EtcdDirectory, Member};
use atoll_format::id::HostId;
use atoll_node::{About, Severity};
use std::collections::BTreeSet;
use std::rc::{Rc, Weak};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::time::Instant;

/// How often the list is looked at.
const EVERY: Duration = Duration::from_secs(3);
/// More voters make every change slower, and are not needed: five outlive the loss of two.
const VOTERS_MAX: usize = 5;
/// After so many looks in which it does not come, somebody who was added is removed: a minute.
const NEVER_CAME: u32 = 20;
/// After so many looks that do not show this host's member, it has none: the member that is asked
/// may be behind.
const NOT_SEEN: u32 = 20;
/// After a backup that failed.
const BACKUP_AGAIN: Duration = Duration::from_secs(600);

/// A host that would run a member and answers now.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Candidate {
    host: HostId,
    /// Where its member would be reached by others: a URL.
    peer: String,
}

/// What is to be done next.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Step {
    /// That host gets a member, without a vote.
    Add(Candidate),
    /// That member gets its vote.
    Promote(Member),
    /// That member is removed.
    Remove(Member),
}

/// The next step towards an odd number of voters, as many as there are hosts for, at most
/// [`VOTERS_MAX`], and one without a vote if there is a host more. `removed`: the hosts that were
/// removed from the cluster; `gave_up`: the member that was added and did not come.
fn next_step(
    members: &[Member],
    candidates: &BTreeSet<Candidate>,
    removed: &[HostId],
    gave_up: Option<u64>,
) -> Option<Step> {
    // A name that no host gives was put there by hand, and is somebody else's.
    let was_removed = |m: &Member| m.name.parse().is_ok_and(|host| removed.contains(&host));
    let never_came = |m: &Member| m.name.is_empty() && gave_up == Some(m.id);
    let goes = |m: &&Member| was_removed(m) || never_came(m);
    if let Some(member) = members.iter().find(goes) {
        return Some(Step::Remove(member.clone()));
    }
    let is_of =
        |m: &Member, c: &Candidate| m.name == c.host.to_string() || m.peers.contains(&c.peer);
    let waiting = candidates.iter().find(|c| !members.iter().any(|m| is_of(m, c)));
    let voters = members.iter().filter(|m| !m.is_learner).count();
    let learner = members.iter().find(|m| m.is_learner);
    match (learner, waiting) {
        // An even number outlives no more losses than the odd one below it: two at once, then.
        (Some(learner), waiting) if !learner.name.is_empty() => {
            let second_comes = waiting.is_some() && voters + 2 <= VOTERS_MAX;
            (voters % 2 == 0 || second_comes).then(|| Step::Promote(learner.clone()))
        }
        (None, Some(candidate)) if voters < VOTERS_MAX => Some(Step::Add(candidate.clone())),
        _ => None,
    }
}

/// What a host remembers between two looks.
#[derive(Default)]
struct Looks {
    /// Looks that did not show this host's member, one after the other.
    not_seen: u32,
    /// The member that has not come, and in how many looks.
    absent: Option<(u64, u32)>,
    /// Whose certificates were last written to be revoked.
    revoked: Option<Vec<HostId>>,
    /// When a backup last failed, if it was the last one.
    backup_failed: Option<Instant>,
    /// What was last told to be wrong.
    told: String,
}

impl Engine {
    /// Where other members would reach this host's own; none: it runs none.
    pub(super) fn own_member(&self) -> Option<String> {
        let at = self.config.member.filter(|_| self.config.managed)?;
        Some(format!("https://{}", at.peers))
    }

    /// Looks after the members of etcd, for as long as this host lives.
    pub(super) fn begin_etcd_members(self: &Rc<Self>) {
        // Ends with the shard.
        tokio::task::spawn_local(look_after(Rc::downgrade(self)));
    }

    async fn look_at_members(&self, looks: &mut Looks) -> Result<(), Problem> {
        let Some(HostDirectory::Etcd(etcd)) = self.host_directory() else { return Ok(()) };
        // The directory itself is told of elsewhere.
        let Ok(members) = etcd.member_list().await else { return Ok(()) };
        self.follow(&members).await?;
        let Some(at) = self.config.member else { return Ok(()) };
        self.keep_start(&members, at, looks).await?;
        self.keep_revoked(looks).await?;
        let own = at.clients.to_string();
        if etcd.leads(&own).await {
            self.take_step(etcd, &members, looks).await?;
        }
        let is_own = |m: &&Member| m.name == self.host.to_string() && !m.is_learner;
        let rests = looks.backup_failed.is_some_and(|at| at.elapsed() < BACKUP_AGAIN);
        if members.iter().any(|m| is_own(&m)) && !rests {
            let made = self.back_up(etcd, &own).await;
            looks.backup_failed = made.is_err().then(Instant::now);
            made?;
        }
        Ok(())
    }

    /// Asks the members that there are, from now on and after a restart.
    async fn follow(&self, members: &[Member]) -> Result<(), Problem> {
        let crate::config::DirectoryConfig::Etcd(etcd) = &self.config.directory else {
            return Ok(());
        };
        let voters = members.iter().filter(|m| !m.is_learner);
        let urls = voters.flat_map(|m| &m.clients);
        let mut all: Vec<String> =
            urls.filter_map(|url| url.strip_prefix("https://").map(str::to_owned)).collect();
        all.sort();
        let mut known = etcd.endpoints.list().to_vec();
        known.sort();
        if all.is_empty() || all == known {
            return Ok(());
        }
        etcd.endpoints.set(all.clone());
        let data = self.config.data_dir.clone();
        blocking(move || etcd_member::remember(&data, all)).await
    }

    /// Has the member of this host started as the list says.
    async fn keep_start(
        &self,
        members: &[Member],
        at: MemberAddresses,
        looks: &mut Looks,
    ) -> Result<(), Problem> {
        let data = self.config.data_dir.clone();
        let now = blocking(move || etcd_member::load(&data)).await?;
        let wanted = MemberStart::wanted(members, self.host, at, now.as_ref());
        looks.not_seen = if wanted.is_none() { looks.not_seen + 1 } else { 0 };
        if wanted == now || (wanted.is_none() && looks.not_seen < NOT_SEEN) {
            return Ok(());
        }
        let data = self.config.data_dir.clone();
        blocking(move || etcd_member::store(&data, wanted.as_ref())).await
    }

    /// Has the member of this host refuse the hosts that were removed.
    async fn keep_revoked(&self, looks: &mut Looks) -> Result<(), Problem> {
        let removed = self.running()?.node.removed_ids();
        if looks.revoked.as_ref() != Some(&removed) {
            let (data, hosts) = (self.config.data_dir.clone(), removed.clone());
            blocking(move || etcd_member::revoke(&data, &hosts, now_s())).await?;
            looks.revoked = Some(removed);
        }
        Ok(())
    }

    /// Keeps a copy of what etcd holds, if it is time for one.
    async fn back_up(&self, etcd: &EtcdDirectory, own: &str) -> Result<(), Problem> {
        let data = self.config.data_dir.clone();
        let next = blocking(move || etcd_member::next_backup(&data, now_s())).await?;
        let Some(path) = next else { return Ok(()) };
        let new = path.with_file_name("unfinished");
        let failed = |why: String| {
            Problem::new(Code::LocalFile, format!("no backup of etcd: {}: {why}", path.display()))
        };
        let written = async {
            let mut file = tokio::fs::File::create(&new).await.map_err(|e| e.to_string())?;
            etcd.snapshot(own, async |piece: &[u8]| file.write_all(piece).await).await?;
            file.sync_all().await.map_err(|e| e.to_string())
        };
        written.await.map_err(failed)?;
        let data = self.config.data_dir.clone();
        blocking(move || etcd_member::keep_backup(&data, &new, &path)).await
    }

    /// Does what is to be done next, if anything.
    async fn take_step(
        &self,
        etcd: &EtcdDirectory,
        members: &[Member],
        looks: &mut Looks,
    ) -> Result<(), Problem> {
        let node = &self.running()?.node;
        let told = self.told_by_each::<String>(Question::EtcdMember).await?;
        let own = self.own_member().map(|peer| Candidate { host: self.host, peer });
        let others = told
            .what
            .into_iter()
            .flat_map(|(host, peers)| peers.into_iter().map(move |peer| Candidate { host, peer }));
        let candidates: BTreeSet<Candidate> = own.into_iter().chain(others).collect();
        looks.absent =
            members.iter().find(|m| m.name.is_empty()).map(|absent| match looks.absent {
                Some((id, looks)) if id == absent.id => (id, looks + 1),
                _ => (absent.id, 1),
            });
        let gave_up = looks.absent.filter(|(_, looks)| *looks > NEVER_CAME).map(|(id, _)| id);
        let Some(step) = next_step(members, &candidates, &node.removed_ids(), gave_up) else {
            return Ok(());
        };
        let (done, kind, message) = match &step {
            Step::Add(Candidate { host, peer }) => {
                let done = etcd.add_learner(peer).await;
                let message = format!("host {host} gets a member of etcd, at {peer}");
                (done, "etcd-member-added", message)
            }
            Step::Promote(member) => {
                let done = etcd.promote(member.id).await;
                let message = format!("the member of etcd on host {} has a vote now", member.name);
                (done, "etcd-member-votes", message)
            }
            Step::Remove(member) => {
                let done = etcd.remove_member(member.id).await;
                let peers = member.peers.join(", ");
                let message = format!("the member of etcd at {peers} was removed");
                (done, "etcd-member-removed", message)
            }
        };
        match done {
            Ok(()) => node.note(Severity::Info, kind, About::host(node.id()), message),
            // The next look shows what came of it; one that is not in step yet is no trouble.
            Err(why) => tracing::debug!("{message}: not yet: {why}"),
        }
        Ok(())
    }
}

/// Files may hang, and a shard must not.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    let failed = |e| Problem::new(Code::Failed, format!("work on files ended: {e}"));
    tokio::task::spawn_blocking(work).await.map_err(failed)?
}

async fn look_after(engine: Weak<Engine>) {
    let mut looks = Looks::default();
    loop {
        {
            let Some(engine) = engine.upgrade() else { return };
            let looked = engine.look_at_members(&mut looks).await;
            let why = looked.err().map(|problem| problem.detail).unwrap_or_default();
            if !why.is_empty() && why != looks.told {
                tracing::warn!("this host's member of etcd: {why}");
            }
            looks.told = why;
        }
        tokio::time::sleep(EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(host: u64) -> Candidate {
        Candidate { host: HostId(host), peer: format!("https://10.0.0.{host}:2380") }
    }

    fn member(host: u64, is_learner: bool) -> Member {
        let Candidate { host: id, peer } = candidate(host);
        let (name, clients) = (id.to_string(), vec![format!("https://10.0.0.{host}:2379")]);
        Member { id: host, name, peers: vec![peer], clients, is_learner }
    }

    /// As a member is in the list before it has run.
    fn added(host: u64) -> Member {
        Member { name: String::new(), clients: Vec::new(), ..member(host, true) }
    }

    /// Takes every step until there is none; returns voters and learners.
    fn settle(
        members: &mut Vec<Member>,
        hosts: &[u64],
        removed: &[HostId],
    ) -> (Vec<u64>, Vec<u64>) {
        let candidates: BTreeSet<_> = hosts.iter().copied().map(candidate).collect();
        for _ in 0..100 {
            match next_step(members, &candidates, removed, None) {
                Some(Step::Add(Candidate { host, .. })) => members.push(member(host.0, true)),
                Some(Step::Promote(who)) => {
                    members.iter_mut().find(|m| m.id == who.id).unwrap().is_learner = false;
                }
                Some(Step::Remove(who)) => members.retain(|m| m.id != who.id),
                None => {
                    let of = |learns| {
                        let of = members.iter().filter(|m| m.is_learner == learns);
                        of.map(|m| m.id).collect()
                    };
                    return (of(false), of(true));
                }
            }
        }
        panic!("it never ends: {members:?}");
    }

    #[test]
    fn voters_are_odd_and_at_most_five_and_one_more_learns() {
        let mut members = vec![member(1, false)];
        for (hosts, voters, learners) in
            [(1, 1, 0), (2, 1, 1), (3, 3, 0), (4, 3, 1), (5, 5, 0), (6, 5, 0), (64, 5, 0)]
        {
            let hosts: Vec<u64> = (1..=hosts).collect();
            let (votes, learns) = settle(&mut members, &hosts, &[]);
            assert_eq!((votes.len(), learns.len()), (voters, learners), "{hosts:?}");
        }
        // All at once makes the same.
        let (votes, learns) = settle(&mut vec![member(1, false)], &[1, 2, 3, 4], &[]);
        assert_eq!((votes, learns), (vec![1, 2, 3], vec![4]));
    }

    #[test]
    fn who_left_the_cluster_has_no_member_and_another_host_takes_its_place() {
        let mut members: Vec<_> = [1, 2, 3].map(|host| member(host, false)).into();
        assert_eq!(settle(&mut members, &[1, 3], &[HostId(2)]).0, [1, 3]);
        assert_eq!(settle(&mut members, &[1, 3, 4], &[HostId(2)]).0, [1, 3, 4]);
        let mut foreign =
            vec![member(1, false), Member { name: "mine".into(), ..member(9, false) }];
        assert_eq!(settle(&mut foreign, &[1], &[]).0, [1, 9], "somebody else's is left alone");
    }

    #[test]
    fn a_host_that_is_silent_keeps_its_member_and_one_that_never_came_loses_it() {
        let members = vec![member(1, false), added(2)];
        let only = BTreeSet::from([candidate(1)]);
        assert_eq!(next_step(&members, &only, &[], None), None);
        assert_eq!(next_step(&members, &only, &[], Some(7)), None);
        let gone = next_step(&members, &only, &[], Some(2));
        assert_eq!(gone, Some(Step::Remove(added(2))));
        let members: Vec<_> = [1, 2, 3].map(|host| member(host, false)).into();
        assert_eq!(next_step(&members, &only, &[], Some(3)), None);
    }

    #[test]
    fn a_learner_gets_no_vote_before_it_has_run_and_a_second_one_is_there() {
        let all = |hosts: &[u64]| hosts.iter().copied().map(candidate).collect();
        let two = all(&[1, 2]);
        let learns = vec![member(1, false), member(2, true)];
        assert_eq!(next_step(&learns, &two, &[], None), None);
        let three = all(&[1, 2, 3]);
        let step = next_step(&learns, &three, &[], None);
        assert_eq!(step, Some(Step::Promote(member(2, true))));
        let absent = vec![member(1, false), added(2)];
        assert_eq!(next_step(&absent, &three, &[], None), None);
    }
}

//! The etcd that the hosts run themselves: which of them have a member of it.
//!
//! Each host looks at the list of members: what it says of this one is how the member of this host
//! is started (unit `atoll-etcd` does), and where all of them are is where this host asks. The host
//! whose member leads makes the list what it should be, one step at a time.
//!
//! Invariants: a member is added without a vote, and gets it when it lives and has all data; nobody
//! is removed but whose host belongs to the cluster no more, or who was added and never came; the
//! certificate of a host is refused only after its member is gone.

use super::Engine;
use super::directory::HostDirectory;
use super::host_request::Question;
use crate::config::{DirectoryConfig, MemberAddresses};
use crate::etcd_member::{self, MemberStart, Wanted};
use crate::trust::now_s;
use atoll_api::{Code, Problem};
use atoll_etcd::{EtcdDirectory, Member, MemberClient};
use atoll_format::id::HostId;
use atoll_node::{About, Severity};
use futures_util::future::join_all;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

/// How often the list is looked at.
const EVERY: Duration = Duration::from_secs(3);
/// More voters make every change slower, and are not needed: five outlive the loss of two.
const VOTERS_MAX: usize = 5;
/// After so many looks in which it does not come, somebody who was added is removed: a minute.
const NEVER_CAME: u32 = 20;
/// For how long who never came is not added again.
const REST: Duration = Duration::from_secs(3_600);
/// After so many looks that do not show this host's member, it has none: the member that is asked
/// may be behind.
const NOT_SEEN: u32 = 20;
/// Whether somebody waits to be a member shows a connection, within this time.
const CONNECT: Duration = Duration::from_secs(1);
/// How often it is looked whether a backup is due.
const BACKUP_LOOK: Duration = Duration::from_secs(5);
/// After a backup that failed.
const BACKUP_AGAIN: Duration = Duration::from_secs(600);

/// A host that would run a member, answers, and waits where its member would listen.
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

/// What the next step is chosen by, besides the list.
#[derive(Default)]
struct Seen {
    /// The members that answer.
    alive: BTreeSet<u64>,
    /// Hosts that would run one and have none.
    waiting: BTreeSet<Candidate>,
    /// Hosts that belong to the cluster no more.
    gone: BTreeSet<HostId>,
    /// The member that was added and did not come.
    gave_up: Option<u64>,
}

/// Whose host belongs to the cluster no more, and who is not the last with a vote.
fn leaves(members: &[Member], gone: &BTreeSet<HostId>) -> Option<Member> {
    let voters = members.iter().filter(|m| !m.is_learner).count();
    // A name that no host gives was put there by hand, and is somebody else's.
    let is_gone = |m: &&Member| m.name.parse().is_ok_and(|host| gone.contains(&host));
    members.iter().find(|m| is_gone(m) && (m.is_learner || voters > 1)).cloned()
}

/// The next step towards an odd number of voters, as many as there are hosts for, at most
/// [`VOTERS_MAX`], and one without a vote if there is a host more.
fn next_step(members: &[Member], seen: &Seen) -> Option<Step> {
    let never_came = |m: &&Member| m.name.is_empty() && seen.gave_up == Some(m.id);
    let never_came = members.iter().find(never_came).cloned();
    if let Some(member) = leaves(members, &seen.gone).or(never_came) {
        return Some(Step::Remove(member));
    }
    let voters = members.iter().filter(|m| !m.is_learner);
    let all_vote = voters.clone().all(|m| seen.alive.contains(&m.id));
    let voters = voters.count();
    let waiting = seen.waiting.first();
    match members.iter().find(|m| m.is_learner) {
        // A vote that nobody casts may cost the others theirs. And an even number outlives no more
        // losses than the odd one below it: two at once, then.
        Some(learner) if seen.alive.contains(&learner.id) && all_vote => {
            let second_comes = waiting.is_some() && voters + 2 <= VOTERS_MAX;
            (voters % 2 == 0 || second_comes).then(|| Step::Promote(learner.clone()))
        }
        None if voters < VOTERS_MAX => waiting.cloned().map(Step::Add),
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
    /// Where those were to be who did not come, and when that was given up.
    gave_up: BTreeMap<String, Instant>,
    /// Whose certificates were last written to be revoked.
    revoked: Option<Vec<HostId>>,
    /// What was last told to be wrong.
    told: String,
    /// The step that was refused, and how often.
    refused: Option<(Step, u32)>,
}

impl Engine {
    /// Where other members would reach this host's own; none: it runs none.
    pub(super) fn own_member(&self) -> Option<String> {
        let at = self.config.member.filter(|_| self.config.managed)?;
        Some(format!("https://{}", at.peers))
    }

    fn etcd(&self) -> Option<&EtcdDirectory> {
        match self.host_directory()? {
            HostDirectory::Etcd(etcd) => Some(etcd),
            HostDirectory::Embedded(_) => None,
        }
    }

    /// Looks after the members of etcd, for as long as this host lives.
    pub(super) fn begin_etcd_members(self: &Rc<Self>) {
        // Both end with the shard.
        tokio::task::spawn_local(look_after(Rc::downgrade(self)));
        tokio::task::spawn_local(keep_backups(Rc::downgrade(self)));
    }

    /// # Errors
    /// The host has the only vote in the etcd that hosts run: without it there is no directory.
    pub(super) async fn may_lose_member(&self, called: &str) -> Result<(), Problem> {
        let Some(etcd) = self.etcd().filter(|_| self.config.managed) else { return Ok(()) };
        let hosts = self.running()?.node.hosts();
        let is_it = |(h, ..): &&(atoll_format::record::HostRecord, _, _)| {
            h.name == called || h.id.to_string() == called
        };
        let Some((host, ..)) = hosts.iter().find(is_it) else { return Ok(()) };
        let unread = |e: atoll_world::directory::DirectoryError| {
            Problem::new(Code::Unavailable, format!("who votes in etcd is not known: {e}"))
        };
        let members = etcd.member_list().await.map_err(unread)?;
        let mut voters = members.iter().filter(|m| !m.is_learner);
        if voters.all(|m| m.name == host.id.to_string()) {
            let detail = format!("host {} has the only vote in etcd", host.name);
            return Err(Problem::new(Code::Conflict, detail).hint(
                "join another host first: three have votes then ('atoll cluster join-token')",
            ));
        }
        Ok(())
    }

    async fn look_at_members(&self, looks: &mut Looks) -> Result<(), Problem> {
        let Some(etcd) = self.etcd() else { return Ok(()) };
        // The directory itself is told of elsewhere.
        let Ok(members) = etcd.member_list().await else { return Ok(()) };
        self.follow(&members).await?;
        let Some(at) = self.config.member else { return Ok(()) };
        self.keep_start(&members, at, looks).await?;
        self.keep_revoked(&members, looks).await?;
        // What others know may be behind; who leads is not.
        let Ok(mut own) = etcd.member(&at.clients.to_string()).await else { return Ok(()) };
        let Ok(members) = own.list().await else { return Ok(()) };
        if own.leader() == own.id() {
            self.take_step(etcd, &mut own, &members, looks).await?;
        } else if let Some(member) = self.led_by_nobody(&own, &members) {
            // Its host does nothing any more: it is removed by another one.
            let done = own.remove(member.id).await;
            self.tell_step(Step::Remove(member), done, looks)?;
        }
        Ok(())
    }

    /// The member that leads, if its host belongs to the cluster no more and this host is the one
    /// to remove it.
    fn led_by_nobody(&self, own: &MemberClient, members: &[Member]) -> Option<Member> {
        let gone = self.gone().ok()?;
        let leader = members.iter().find(|m| m.id == own.leader())?;
        let leaves = leaves(members, &gone).is_some_and(|m| m.id == leader.id);
        let stays = |m: &&Member| !m.is_learner && m.name.parse().is_ok_and(|h| !gone.contains(&h));
        let first = members.iter().filter(stays).map(|m| m.id).min();
        (leaves && first == Some(own.id())).then(|| leader.clone())
    }

    /// The hosts that were removed, and of which nothing is left in the directory: until then the
    /// removal may be taken back.
    fn gone(&self) -> Result<BTreeSet<HostId>, Problem> {
        let node = &self.running()?.node;
        let there: BTreeSet<HostId> = node.hosts().iter().map(|(record, ..)| record.id).collect();
        Ok(node.removed_ids().into_iter().filter(|host| !there.contains(host)).collect())
    }

    /// Asks the members that there are, from now on and after a restart.
    async fn follow(&self, members: &[Member]) -> Result<(), Problem> {
        let DirectoryConfig::Etcd(etcd) = &self.config.directory else { return Ok(()) };
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
        let (data, host, members) = (self.config.data_dir.clone(), self.host, members.to_vec());
        let look = move || {
            let now = etcd_member::load(&data)?;
            let has_data = |name: &str| etcd_member::has_data(&data, name);
            let wanted = MemberStart::wanted(&members, host, at, now.as_ref(), has_data);
            match &wanted {
                Wanted::Lost(member) => {
                    return Err(etcd_member::lost(&data, &format!("{member:x}")));
                }
                Wanted::Start(start) if now.as_ref() != Some(start) => {
                    etcd_member::store(&data, Some(start))?;
                }
                Wanted::Start(_) | Wanted::Nothing => {}
            }
            Ok(wanted == Wanted::Nothing && now.is_some())
        };
        looks.not_seen = if blocking(look).await? { looks.not_seen + 1 } else { 0 };
        if looks.not_seen < NOT_SEEN {
            return Ok(());
        }
        let data = self.config.data_dir.clone();
        blocking(move || etcd_member::store(&data, None)).await
    }

    /// Has the member of this host refuse the hosts that were removed and have no member any more.
    async fn keep_revoked(&self, members: &[Member], looks: &mut Looks) -> Result<(), Problem> {
        let has_member = |host: &HostId| members.iter().any(|m| m.name == host.to_string());
        let gone: Vec<HostId> = self.gone()?.into_iter().filter(|h| !has_member(h)).collect();
        if looks.revoked.as_ref() != Some(&gone) {
            let (data, hosts) = (self.config.data_dir.clone(), gone.clone());
            blocking(move || etcd_member::revoke(&data, &hosts, now_s())).await?;
            looks.revoked = Some(gone);
        }
        Ok(())
    }

    /// What can be seen of the members and of those who would be.
    async fn look_around(
        &self,
        etcd: &EtcdDirectory,
        members: &[Member],
        looks: &mut Looks,
    ) -> Result<Seen, Problem> {
        let answers = members.iter().map(async |m| {
            let endpoint = m.clients.first()?.strip_prefix("https://")?;
            etcd.member(endpoint).await.is_ok_and(|found| found.id() == m.id).then_some(m.id)
        });
        let alive: BTreeSet<u64> = join_all(answers).await.into_iter().flatten().collect();
        let told = self.told_by_each::<String>(Question::EtcdMember).await?;
        let own = self.own_member().map(|peer| Candidate { host: self.host, peer });
        let others = told
            .what
            .into_iter()
            .flat_map(|(host, peers)| peers.into_iter().map(move |peer| Candidate { host, peer }));
        looks.gave_up.retain(|_, at| at.elapsed() < REST);
        let is_of =
            |m: &Member, c: &Candidate| m.name == c.host.to_string() || m.peers.contains(&c.peer);
        let has_none = |c: &Candidate| {
            !members.iter().any(|m| is_of(m, c)) && !looks.gave_up.contains_key(&c.peer)
        };
        let wait: Vec<Candidate> = own.into_iter().chain(others).filter(has_none).collect();
        // Who waits listens there already (`atoll etcd run`): etcd is installed, its unit runs, and
        // no firewall is between.
        let listens = wait.into_iter().map(async |c| {
            let at = c.peer.strip_prefix("https://")?.to_owned();
            timeout(CONNECT, TcpStream::connect(at)).await.is_ok_and(|c| c.is_ok()).then_some(c)
        });
        let waiting = join_all(listens).await.into_iter().flatten().collect();
        looks.absent =
            members.iter().find(|m| m.name.is_empty()).map(|absent| match looks.absent {
                Some((id, looks)) if id == absent.id => (id, looks + 1),
                _ => (absent.id, 1),
            });
        let gave_up = looks.absent.filter(|(_, looks)| *looks > NEVER_CAME).map(|(id, _)| id);
        Ok(Seen { alive, waiting, gone: self.gone()?, gave_up })
    }

    /// Does what is to be done next, if anything.
    async fn take_step(
        &self,
        etcd: &EtcdDirectory,
        own: &mut MemberClient,
        members: &[Member],
        looks: &mut Looks,
    ) -> Result<(), Problem> {
        let seen = self.look_around(etcd, members, looks).await?;
        let Some(step) = next_step(members, &seen) else { return Ok(()) };
        let done = match &step {
            Step::Add(Candidate { peer, .. }) => own.add_learner(peer).await,
            Step::Promote(member) => own.promote(member.id).await,
            Step::Remove(member) => own.remove(member.id).await,
        };
        if let Step::Remove(member) = &step
            && member.name.is_empty()
        {
            looks.gave_up.extend(member.peers.iter().map(|peer| (peer.clone(), Instant::now())));
        }
        self.tell_step(step, done, looks)
    }

    /// # Errors
    /// A step was refused for a minute.
    fn tell_step(
        &self,
        step: Step,
        done: Result<(), String>,
        looks: &mut Looks,
    ) -> Result<(), Problem> {
        let (kind, message) = match &step {
            Step::Add(Candidate { host, peer }) => {
                ("etcd-member-added", format!("host {host} gets a member of etcd, at {peer}"))
            }
            Step::Promote(member) => {
                let message = format!("the member of etcd on host {} has a vote now", member.name);
                ("etcd-member-votes", message)
            }
            Step::Remove(member) => {
                let peers = member.peers.join(", ");
                ("etcd-member-removed", format!("the member of etcd at {peers} was removed"))
            }
        };
        let why = match done {
            Ok(()) => {
                let node = &self.running()?.node;
                node.note(Severity::Info, kind, About::host(node.id()), message);
                looks.refused = None;
                return Ok(());
            }
            Err(why) => why,
        };
        // A member that is not in step yet is no trouble.
        let times = match &looks.refused {
            Some((before, times)) if *before == step => times + 1,
            _ => 1,
        };
        looks.refused = Some((step, times));
        match times {
            NEVER_CAME.. => {
                Err(Problem::new(Code::Conflict, format!("etcd refuses this: {message}: {why}")))
            }
            _ => Ok(()),
        }
    }

    /// Keeps a copy of what etcd holds, if it is time for one.
    async fn back_up(&self) -> Result<(), Problem> {
        let (Some(etcd), Some(at)) = (self.etcd(), self.config.member) else { return Ok(()) };
        let data = self.config.data_dir.clone();
        let next = blocking(move || etcd_member::next_backup(&data, now_s())).await?;
        let Some(path) = next else { return Ok(()) };
        // One that learns gives none, and one that is away cannot: another host has one.
        let Ok(mut own) = etcd.member(&at.clients.to_string()).await else { return Ok(()) };
        if own.list().await.is_err() {
            return Ok(());
        }
        let new = path.with_file_name("unfinished");
        let failed = |why: String| {
            Problem::new(Code::LocalFile, format!("no backup of etcd: {}: {why}", path.display()))
        };
        let (dir, needed) = (path.with_file_name(""), 2 * own.db_bytes());
        let room = move || {
            let found = rustix::fs::statvfs(&dir);
            Ok(found.map_or(u64::MAX, |found| found.f_bavail * found.f_frsize))
        };
        // It is not what fills the file system that etcd itself is on.
        let free = blocking(room).await?;
        if free < needed {
            return Err(failed(format!("{free} bytes are free, and {needed} are needed")));
        }
        let written = async {
            let mut file = tokio::fs::File::create(&new).await.map_err(|e| e.to_string())?;
            own.snapshot(async |piece: &[u8]| file.write_all(piece).await).await?;
            // Says what the last write came to, which fsync does not.
            file.flush().await.map_err(|e| e.to_string())?;
            file.sync_all().await.map_err(|e| e.to_string())
        };
        written.await.map_err(failed)?;
        let data = self.config.data_dir.clone();
        blocking(move || etcd_member::keep_backup(&data, &new, &path)).await
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
                tracing::warn!("the members of etcd: {why}");
            }
            looks.told = why;
        }
        tokio::time::sleep(EVERY).await;
    }
}

async fn keep_backups(engine: Weak<Engine>) {
    loop {
        tokio::time::sleep(BACKUP_LOOK).await;
        let Some(engine) = engine.upgrade() else { return };
        let Err(problem) = engine.back_up().await else { continue };
        if let Ok(running) = engine.running() {
            let about = About::host(running.node.id());
            running.node.note(Severity::Warning, "etcd-backup-failed", about, problem.detail);
        }
        drop(engine);
        tokio::time::sleep(BACKUP_AGAIN).await;
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

    /// What is seen if these hosts are up, of which some have a member, and those are gone.
    fn seen(members: &[Member], up: &[u64], gone: &[u64]) -> Seen {
        let has_none = |host: &u64| !members.iter().any(|m| m.id == *host);
        let runs = |host: &u64| members.iter().any(|m| m.id == *host && !m.name.is_empty());
        Seen {
            alive: up.iter().copied().filter(|host| runs(host)).collect(),
            waiting: up.iter().copied().filter(has_none).map(candidate).collect(),
            gone: gone.iter().copied().map(HostId).collect(),
            gave_up: None,
        }
    }

    /// Takes every step until there is none; returns voters and learners.
    fn settle(members: &mut Vec<Member>, up: &[u64], gone: &[u64]) -> (Vec<u64>, Vec<u64>) {
        for _ in 0..100 {
            match next_step(members, &seen(members, up, gone)) {
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
        assert_eq!(settle(&mut members, &[1, 3], &[2]).0, [1, 3]);
        assert_eq!(settle(&mut members, &[1, 3, 4], &[2]).0, [1, 3, 4]);
        let mut foreign =
            vec![member(1, false), Member { name: "mine".into(), ..member(9, false) }];
        assert_eq!(settle(&mut foreign, &[1], &[]).0, [1, 9], "somebody else's is left alone");
        // The last one with a vote stays, whatever became of its host, and keeps nobody from
        // learning.
        let mut last = vec![member(1, false)];
        assert_eq!(settle(&mut last, &[1, 2], &[1]), (vec![1], vec![2]));
    }

    #[test]
    fn a_host_that_is_silent_keeps_its_member_and_one_that_never_came_loses_it() {
        let members = vec![member(1, false), added(2)];
        let only = |gave_up| Seen { gave_up, ..seen(&members, &[1], &[]) };
        assert_eq!(next_step(&members, &only(None)), None);
        assert_eq!(next_step(&members, &only(Some(7))), None);
        assert_eq!(next_step(&members, &only(Some(2))), Some(Step::Remove(added(2))));
        let members: Vec<_> = [1, 2, 3].map(|host| member(host, false)).into();
        let step = next_step(&members, &Seen { gave_up: Some(3), ..seen(&members, &[1], &[]) });
        assert_eq!(step, None);
    }

    #[test]
    fn a_learner_gets_no_vote_before_it_lives_with_all_others_and_a_second_one_is_there() {
        let learns = vec![member(1, false), member(2, true)];
        let step = |members: &[Member], up: &[u64]| next_step(members, &seen(members, up, &[]));
        assert_eq!(step(&learns, &[1, 2]), None);
        assert_eq!(step(&learns, &[1, 2, 3]), Some(Step::Promote(member(2, true))));
        assert_eq!(step(&learns, &[1, 3]), None, "a dead one would cost the living one its vote");
        let absent = vec![member(1, false), added(2)];
        assert_eq!(step(&absent, &[1, 2, 3]), None);
        let three = vec![member(1, false), member(2, false), member(3, false), member(4, true)];
        assert_eq!(step(&three, &[1, 3, 4, 5]), None, "one is away");
        assert_eq!(step(&three, &[1, 2, 3, 4, 5]), Some(Step::Promote(member(4, true))));
        // Two that vote get a third as soon as it lives; they both have to.
        let two = vec![member(1, false), member(2, false), member(3, true)];
        assert_eq!(step(&two, &[1, 2, 3]), Some(Step::Promote(member(3, true))));
        assert_eq!(step(&two, &[1, 3]), None);
    }
}

//! Work that outlasts its request, and what became of it.
//!
//! A task is in the book from the first time that this host sees it, and stays in it after its end,
//! so that whoever waits for it learns how it ended. Work of one kind on one thing has one id: when
//! it begins again, the new task takes the place of the old one.
//!
//! Invariants: a task that runs is never forgotten; at most [`ENDED_MAX`] that have ended are kept,
//! the last ones.

use super::{ClusterFacts, host_name};
use crate::status::{GroupStatus, HostStatus};
use crate::volume_view::VolumeView;
use atoll_format::id::{GroupId, HostId, ObjectId};
use atoll_format::units::iec;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Tasks kept after their end: a page of a list.
const ENDED_MAX: usize = 256;

/// Which work: shown as its id, `resync-` or `scrub-` and 16 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Work {
    /// Copies of a volume are brought up to date.
    Resync(ObjectId),
    /// Everything in a disk group is compared with its checksums.
    Scrub(GroupId),
}

impl Work {
    /// Its kind, in one word.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Resync(_) => "resync",
            Self::Scrub(_) => "scrub",
        }
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resync(object) => write!(f, "{}-{object}", self.kind()),
            Self::Scrub(group) => write!(f, "{}-{group}", self.kind()),
        }
    }
}

/// How a task ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It came to its end.
    Done,
    /// It did not.
    Failed,
}

/// One task, as it was last seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TaskFacts {
    /// Which.
    pub work: Work,
    /// What it works on, for people.
    pub subject: String,
    /// The host that knows how far it is; none if that is nobody now.
    pub host: Option<HostId>,
    /// How far it is, 0 to 100.
    pub percent: u8,
    /// One clause.
    pub message: String,
    /// Milliseconds since 1970, as all times here.
    pub began_ms: u64,
    /// When and how it ended, if that is known.
    pub ended: Option<(u64, Outcome)>,
}

/// All tasks that this host knows of.
#[derive(Debug, Default)]
pub struct TaskBook(BTreeMap<Work, TaskFacts>);

impl TaskBook {
    /// Whether any task runs, as far as is known.
    pub fn is_busy(&self) -> bool {
        self.0.values().any(|task| task.ended.is_none())
    }

    /// All of them.
    pub fn tasks(&self) -> impl Iterator<Item = &TaskFacts> {
        self.0.values()
    }

    /// Enters what is known at `now_ms`. A task that is seen no more has ended; of one whose host
    /// does not tell nothing is known, and it stays as it was.
    pub fn enter(&mut self, now_ms: u64, facts: &ClusterFacts) {
        let untold = facts.hosts.iter().filter(|(_, answers, status)| !answers || status.is_none());
        let silent: BTreeSet<HostId> = untold.map(|(record, ..)| record.id).collect();
        self.enter_seen(now_ms, seen(facts, now_ms), &silent, |work| fate(work, &facts.volumes));
    }

    fn enter_seen(
        &mut self,
        now_ms: u64,
        seen: Vec<TaskFacts>,
        silent: &BTreeSet<HostId>,
        fate: impl Fn(Work) -> (Outcome, &'static str),
    ) {
        let known = |work: Work| seen.iter().any(|task| task.work == work);
        let is_silent = |task: &TaskFacts| task.host.is_some_and(|host| silent.contains(&host));
        let runs = self.0.values_mut().filter(|task| task.ended.is_none());
        for task in runs.filter(|task| !known(task.work) && !is_silent(task)) {
            let (outcome, message) = fate(task.work);
            (task.ended, task.message) = (Some((now_ms, outcome)), message.into());
        }
        let runs = self.0.values().filter(|task| task.ended.is_none());
        let mut unseen = runs.filter(|task| !known(task.work) && !is_silent(task));
        assert!(unseen.next().is_none(), "a task goes on that nobody tells of");
        drop(unseen);
        for mut task in seen {
            assert!(task.percent <= 100, "{} is at {} %", task.work, task.percent);
            // What a host tells of the beginning is an estimate: the first one stays.
            if let Some(before) = self.0.get(&task.work).filter(|before| before.ended.is_none()) {
                task.began_ms = before.began_ms;
                // An attempt that failed, or a new owner, begins to count anew.
                task.percent = task.percent.max(before.percent);
            }
            self.0.insert(task.work, task);
        }
        let ended = self.0.values().filter_map(|task| Some((task.ended?.0, task.work)));
        let mut ended: Vec<(u64, Work)> = ended.collect();
        ended.sort();
        for (_, work) in ended.iter().rev().skip(ENDED_MAX) {
            let forgotten = self.0.remove(work);
            assert!(forgotten.is_some_and(|task| task.ended.is_some()), "{work} goes on");
        }
        let kept = self.0.values().filter(|task| task.ended.is_some()).count();
        assert!(kept <= ENDED_MAX, "{kept} tasks are kept that have ended");
    }
}

impl HostStatus {
    /// Whether it tells of work that goes on.
    pub fn is_busy(&self) -> bool {
        self.objects.iter().any(|object| object.resyncing || !object.copies.is_empty())
            || self.groups.iter().any(|group| group.scrub_running)
    }
}

/// All work that the hosts tell of.
fn seen(facts: &ClusterFacts, now_ms: u64) -> Vec<TaskFacts> {
    let mut seen: Vec<TaskFacts> =
        facts.volumes.iter().filter_map(|volume| resync_task(volume, now_ms)).collect();
    for (record, _, status) in &facts.hosts {
        let groups = status.iter().flat_map(|status| &status.groups);
        let name = host_name(&facts.hosts, record.id);
        seen.extend(groups.filter_map(|group| scrub_task(group, record.id, &name)));
    }
    seen
}

/// The resync of a volume, if there is one.
fn resync_task(volume: &VolumeView, now_ms: u64) -> Option<TaskFacts> {
    let copies = volume.owner.as_ref().map_or(&[][..], |owner| &owner.copies);
    let behind = volume.record.members().any(|(_, member)| member.state.is_resyncing());
    if !behind && copies.is_empty() {
        return None;
    }
    let done: u64 = copies.iter().map(|copy| copy.bytes_done).sum();
    let left: u64 = copies.iter().map(|copy| copy.bytes_left).sum();
    let percent = (done * 100).checked_div(done + left).unwrap_or(0);
    let seconds = copies.iter().map(|copy| copy.seconds).fold(0.0, f64::max);
    let since_ms = (seconds * 1e3) as u64;
    let left = iec(left);
    Some(TaskFacts {
        work: Work::Resync(volume.record.id),
        subject: volume.name.clone(),
        host: volume.record.owner.map(|owner| owner.host),
        percent: percent as u8,
        message: match (copies.is_empty(), copies.iter().any(|copy| copy.running)) {
            (true, _) => "waits".into(),
            (false, true) => format!("{left} left"),
            (false, false) => format!("{left} left, waits for the next attempt"),
        },
        began_ms: now_ms.saturating_sub(since_ms),
        ended: None,
    })
}

/// The last scrub of a group, if there was one.
fn scrub_task(group: &GroupStatus, host: HostId, name: &str) -> Option<TaskFacts> {
    if group.scrub_began_ms == 0 {
        return None;
    }
    let percent = (group.scrub_checked * 100).checked_div(group.scrub_total).unwrap_or(0);
    let (outcome, what) = match (group.scrub_running, group.scrub_whole) {
        (true, _) | (false, true) => (Outcome::Done, ""),
        (false, false) => (Outcome::Failed, "stopped before its end: "),
    };
    Some(TaskFacts {
        work: Work::Scrub(group.id),
        subject: format!("{} on {name}", group.id),
        host: Some(host),
        percent: percent.min(100) as u8,
        message: format!("{what}{} bad blocks", group.scrub_bad),
        began_ms: group.scrub_began_ms,
        ended: group.scrub_ended_ms.map(|at| (at, outcome)),
    })
}

/// How work has ended that is seen no more.
fn fate(work: Work, volumes: &[VolumeView]) -> (Outcome, &'static str) {
    let Work::Resync(object) = work else {
        return (Outcome::Failed, "its host has restarted");
    };
    match volumes.iter().find(|volume| volume.record.id == object) {
        None => (Outcome::Failed, "the volume was deleted"),
        Some(volume) if volume.record.members().all(|(_, m)| m.state.is_active()) => {
            (Outcome::Done, "all copies are up to date")
        }
        Some(_) => (Outcome::Failed, "a copy went away before it was up to date"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::tests::{cluster, resyncing_twice};
    use atoll_format::id::Seq;
    use atoll_format::record::MemberState;

    fn task(id: u64, began_ms: u64) -> TaskFacts {
        TaskFacts {
            work: Work::Resync(ObjectId(id)),
            subject: "v".into(),
            host: Some(HostId(1)),
            percent: 100,
            message: "1 GiB left".into(),
            began_ms,
            ended: None,
        }
    }

    #[test]
    fn a_task_that_has_ended_is_kept_with_both_times() {
        let mut book = TaskBook::default();
        let fate = |_| (Outcome::Done, "all copies are up to date");
        let none = &BTreeSet::new();
        let first = |book: &TaskBook| book.tasks().next().expect("there is one").clone();
        book.enter_seen(5_000, vec![TaskFacts { percent: 70, ..task(1, 1_000) }], none, fate);
        book.enter_seen(6_000, vec![TaskFacts { percent: 5, ..task(1, 1_200) }], none, fate);
        // Its host does not answer: it may go on.
        book.enter_seen(6_500, vec![], &BTreeSet::from([HostId(1)]), fate);
        assert!(book.is_busy());
        let running = first(&book);
        assert_eq!((running.began_ms, running.percent, running.ended), (1_000, 70, None));
        for now in [7_000, 8_000] {
            book.enter_seen(now, vec![], none, fate);
            let done = first(&book);
            assert_eq!((done.began_ms, done.ended), (1_000, Some((7_000, Outcome::Done))));
            assert_eq!(done.message, "all copies are up to date");
        }
        assert!(!book.is_busy());
        book.enter_seen(9_000, vec![task(1, 8_500)], none, fate);
        assert_eq!(first(&book).began_ms, 8_500, "it began again");
    }

    #[test]
    fn the_last_ones_are_kept_and_all_that_run() {
        let mut book = TaskBook::default();
        let fate = |_| (Outcome::Failed, "gone");
        for i in 1..=1_000u64 {
            book.enter_seen(i, vec![task(0, 0), task(i, i)], &BTreeSet::new(), fate);
        }
        // One more runs beside the first: the newest.
        assert_eq!(book.tasks().count(), ENDED_MAX + 2);
        let has = |id| book.tasks().any(|task| task.work == Work::Resync(ObjectId(id)));
        assert!(has(0) && has(744) && !has(743));
    }

    #[test]
    fn a_resync_that_is_seen_no_more_has_ended_as_the_record_says() {
        let mut volume = resyncing_twice();
        let away = MemberState::Absent { since: Seq(1), at_ms: 0, lost: false };
        let ends = |last: &[VolumeView]| {
            let mut book = TaskBook::default();
            book.enter(10_000, &cluster(3, vec![resyncing_twice()]));
            let running = book.tasks().next().expect("it resyncs").clone();
            assert_eq!((running.percent, running.began_ms, running.ended), (25, 8_000, None));
            assert_eq!(running.work.to_string(), "resync-0000000000000007");
            // As long as its owner does not answer, nothing is known.
            let mut silent = cluster(3, last.to_vec());
            silent.hosts[0].1 = false;
            book.enter(11_000, &silent);
            assert!(book.is_busy());
            book.enter(12_000, &cluster(3, last.to_vec()));
            let ended = book.tasks().next().expect("it is kept");
            ended.ended.map(|(_, outcome)| (outcome, ended.message.clone()))
        };
        let failed = |why: &str| Some((Outcome::Failed, why.to_owned()));
        assert_eq!(ends(&[]), failed("the volume was deleted"));
        volume.record.legs[0].members[1].state = MemberState::Active;
        volume.record.legs[0].members[2].state = away;
        // Between two attempts the copy is as far as it was, and so is the task.
        let owner = volume.owner.as_mut().expect("it has one");
        (owner.resyncing, owner.copies[0].running) = (false, false);
        let waits = resync_task(&volume, 10_000).expect("it goes on");
        assert_eq!(
            (waits.percent, waits.message.as_str()),
            (25, "30 B left, waits for the next attempt")
        );
        volume.owner = None;
        assert_eq!(resync_task(&volume, 10_000), None);
        assert_eq!(
            ends(std::slice::from_ref(&volume)),
            failed("a copy went away before it was up to date")
        );
        volume.record.legs[0].members[2].state = MemberState::Active;
        assert_eq!(ends(&[volume]), Some((Outcome::Done, "all copies are up to date".to_owned())));
    }

    #[test]
    fn a_scrub_has_ended_as_its_host_says_or_with_its_host() {
        let mut facts = cluster(1, Vec::new());
        let group = |facts: &mut ClusterFacts, change: &dyn Fn(&mut GroupStatus)| {
            change(&mut facts.hosts[0].2.as_mut().expect("it told").groups[0]);
        };
        let mut book = TaskBook::default();
        book.enter(1_000, &facts);
        assert_eq!(book.tasks().count(), 0, "none has begun");
        group(&mut facts, &|group| {
            (group.scrub_began_ms, group.scrub_running) = (500, true);
            (group.scrub_checked, group.scrub_total, group.scrub_bad) = (30, 60, 2);
        });
        let entered = |book: &mut TaskBook, facts: &ClusterFacts| {
            book.enter(2_000, facts);
            let task = book.tasks().next().expect("it is there").clone();
            (task.percent, task.ended, task.message)
        };
        let mut lost = TaskBook::default();
        assert_eq!(entered(&mut lost, &facts), (50, None, "2 bad blocks".into()));
        assert_eq!(entered(&mut book, &facts), (50, None, "2 bad blocks".into()));
        group(&mut facts, &|group| {
            (group.scrub_running, group.scrub_ended_ms) = (false, Some(1_500));
        });
        let stopped = (50, Some((1_500, Outcome::Failed)), "stopped before its end: 2 bad blocks");
        assert_eq!(entered(&mut book, &facts), (stopped.0, stopped.1, stopped.2.into()));
        group(&mut facts, &|group| group.scrub_whole = true);
        let whole = (50, Some((1_500, Outcome::Done)), "2 bad blocks".into());
        assert_eq!(entered(&mut book, &facts), whole);
        group(&mut facts, &|group| *group = GroupStatus { id: group.id, ..GroupStatus::default() });
        let restarted = (50, Some((2_000, Outcome::Failed)), "its host has restarted".into());
        assert_eq!(entered(&mut lost, &facts), restarted);
    }
}

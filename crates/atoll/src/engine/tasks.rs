//! Work that outlasts its request, and what became of it.
//!
//! A task is in the book from the first time that this host sees it, and stays in it after its end,
//! so that whoever waits for it learns how it ended. Work of one kind on one thing has one id: when
//! it begins again, the new task takes the place of the old one.
//!
//! Invariants: a task that runs is never forgotten; at most [`ENDED_MAX`] that have ended are kept,
//! the last ones.

use atoll_api::envelope::rfc3339;
use atoll_api::types::{Task, TaskState};
use std::collections::{BTreeMap, BTreeSet};

/// Tasks kept after their end: a page of a list.
const ENDED_MAX: usize = 256;

/// One task as it is seen now.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    pub id: String,
    pub kind: &'static str,
    pub subject: String,
    /// The host that knows how far it is; empty if that is nobody now.
    pub host: String,
    pub percent: u8,
    pub message: String,
    /// Milliseconds since 1970, as all times here.
    pub began_ms: u64,
    /// When and how it ended, if that is known.
    pub ended: Option<(u64, TaskState)>,
}

/// All tasks that this host knows of.
#[derive(Debug, Default)]
pub struct Book(BTreeMap<String, Seen>);

impl Book {
    /// Whether any task runs, as far as is known.
    pub fn is_busy(&self) -> bool {
        self.0.values().any(|task| task.ended.is_none())
    }

    /// Enters what is seen at `now_ms`. `fate` says how a task that is seen no more has ended; of
    /// one whose host is among the `silent` nothing is known, and it stays as it was.
    pub fn enter(
        &mut self,
        now_ms: u64,
        seen: Vec<Seen>,
        silent: &BTreeSet<String>,
        fate: impl Fn(&Seen) -> (TaskState, String),
    ) {
        let known = |id: &str| seen.iter().any(|task| task.id == id);
        let runs = self.0.values_mut().filter(|task| task.ended.is_none());
        let gone = runs.filter(|task| !known(&task.id) && !silent.contains(&task.host));
        for task in gone {
            let (state, message) = fate(task);
            (task.ended, task.message) = (Some((now_ms, state)), message);
        }
        for mut task in seen {
            // What a host tells of the beginning is an estimate: the first one stays.
            if let Some(before) = self.0.get(&task.id).filter(|before| before.ended.is_none()) {
                task.began_ms = before.began_ms;
                // An attempt that failed, or a new owner, begins to count anew.
                task.percent = task.percent.max(before.percent);
            }
            self.0.insert(task.id.clone(), task);
        }
        let mut ended: Vec<(u64, String)> = self
            .0
            .values()
            .filter_map(|task| task.ended.map(|(at, _)| (at, task.id.clone())))
            .collect();
        ended.sort();
        for (_, id) in ended.iter().rev().skip(ENDED_MAX) {
            self.0.remove(id);
        }
    }

    /// In the words of the interface.
    pub fn tasks(&self) -> Vec<Task> {
        let tasks = self.0.values().cloned().map(|task| Task {
            id: task.id,
            kind: task.kind.into(),
            subject: task.subject,
            state: task.ended.map_or(TaskState::Running, |(_, state)| state),
            percent: match task.ended {
                None => task.percent.min(99),
                Some((_, TaskState::Done)) => 100,
                Some(_) => task.percent,
            },
            message: task.message,
            started_at: rfc3339(task.began_ms),
            ended_at: task.ended.map(|(at, _)| rfc3339(at)),
        });
        tasks.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(id: &str, began_ms: u64) -> Seen {
        let (subject, message) = ("v".into(), "1 GiB left".into());
        Seen {
            id: id.into(),
            kind: "resync",
            subject,
            host: "h".into(),
            percent: 100,
            message,
            began_ms,
            ended: None,
        }
    }

    #[test]
    fn a_task_that_has_ended_is_kept_with_both_times() {
        let mut book = Book::default();
        let fate = |_: &Seen| (TaskState::Done, "all copies are up to date".to_owned());
        let none = &BTreeSet::new();
        book.enter(5_000, vec![seen("a", 1_000)], none, fate);
        book.enter(6_000, vec![Seen { percent: 5, ..seen("a", 1_200) }], none, fate);
        // Its host does not answer: it may go on.
        book.enter(6_500, vec![], &BTreeSet::from(["h".to_owned()]), fate);
        assert!(book.is_busy());
        let running = &book.tasks()[0];
        assert_eq!((running.state, running.percent), (TaskState::Running, 99));
        assert_eq!((&*running.started_at, &running.ended_at), (&*rfc3339(1_000), &None));
        for now in [7_000, 8_000] {
            book.enter(now, vec![], none, fate);
            let done = &book.tasks()[0];
            assert_eq!((done.state, done.percent), (TaskState::Done, 100));
            assert_eq!(
                (&done.started_at, &done.ended_at),
                (&rfc3339(1_000), &Some(rfc3339(7_000)))
            );
            assert_eq!(done.message, "all copies are up to date");
        }
        assert!(!book.is_busy());
        book.enter(9_000, vec![seen("a", 8_500)], none, fate);
        assert_eq!(book.tasks()[0].started_at, rfc3339(8_500), "it began again");
    }

    #[test]
    fn the_last_ones_are_kept_and_all_that_run() {
        let mut book = Book::default();
        let fate = |_: &Seen| (TaskState::Failed, "gone".to_owned());
        for i in 0..1_000u64 {
            let seen = vec![seen("runs", 0), seen(&format!("t{i}"), i)];
            book.enter(i, seen, &BTreeSet::new(), fate);
        }
        let tasks = book.tasks();
        // One more runs beside the first: the newest.
        assert_eq!(tasks.len(), ENDED_MAX + 2);
        assert!(tasks.iter().any(|task| task.id == "runs") && tasks.iter().any(|t| t.id == "t743"));
        assert!(!tasks.iter().any(|task| task.id == "t742"));
    }
}

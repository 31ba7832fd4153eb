//! The directory as a pure state machine: keys, revisions, recent events, hints. No I/O, no
//! clock, no async; it never waits and never forgets what it has published, except events beyond
//! its bounds, which it names [`DirectoryError::Compacted`].
//!
//! A transaction goes through two steps, so that nobody reads what could still be lost:
//! [`DirectoryState::stage`] decides it on top of a [`Batch`], the owner of the state makes the
//! batch durable, [`DirectoryState::publish`] shows it. [`DirectoryState::apply`] is both at once.
//!
//! Invariants: every transaction that is done has a revision of its own, one above the last;
//! `modified` of every entry is at most `revision`; events of one revision are kept or dropped
//! together; the history holds every event above `compacted` and none at or below it.

use crate::limits::{
    CHANGES_MAX, COMPARES_MAX, ENTRY_OVERHEAD, EVENTS_BYTES, HINTS_MAX, HISTORY_BYTES_MAX,
    HISTORY_EVENTS_MAX, KEY_MAX, TOTAL_BYTES_MAX, TXN_BYTES_MAX, VALUE_MAX,
};
use atoll_world::Nanos;
use atoll_world::directory::{
    DirectoryError, Entry, KeyChange, Listing, Revision, Txn, TxnReply, WatchEvent,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// A value as it is kept: shared between the entry, the history and answers under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The bytes.
    pub value: Arc<[u8]>,
    /// The transaction that last wrote it.
    pub modified: Revision,
}

/// One event as it is kept.
#[derive(Clone, Debug)]
struct Event {
    revision: Revision,
    key: Arc<str>,
    value: Option<Arc<[u8]>>,
}

impl Event {
    fn bytes(&self) -> usize {
        self.key.len() + self.value.as_ref().map_or(0, |v| v.len()) + ENTRY_OVERHEAD
    }
}

/// Transactions that are decided but not yet visible.
#[derive(Debug, Default)]
pub struct Batch {
    /// The revision after them; 0: none was done.
    revision: Revision,
    changes: BTreeMap<Arc<str>, Option<Stored>>,
    events: Vec<Event>,
    bytes: isize,
}

impl Batch {
    /// Whether nothing would change.
    pub fn is_empty(&self) -> bool {
        self.revision == Revision(0)
    }
    /// The revision after it.
    pub fn revision(&self) -> Revision {
        self.revision
    }
    /// Every changed key with what it becomes, in order of keys.
    pub fn changes(&self) -> impl Iterator<Item = (&str, Option<&Stored>)> {
        self.changes.iter().map(|(key, stored)| (&**key, stored.as_ref()))
    }
}

/// The answer to "what happened after".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Events {
    /// In order; whole revisions.
    pub events: Vec<WatchEvent>,
    /// Everything up to here is in the answer: ask from here on next time.
    pub up_to: Revision,
}

/// The whole directory.
#[derive(Clone, Debug, Default)]
pub struct DirectoryState {
    entries: BTreeMap<Arc<str>, Stored>,
    revision: Revision,
    bytes: usize,
    history: VecDeque<Event>,
    history_bytes: usize,
    compacted: Revision,
    hints: BTreeMap<String, Nanos>,
}

impl DirectoryState {
    /// Nothing, at revision 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// What was kept: no events are known at or below `revision`, and no hints.
    pub fn restore(
        revision: Revision,
        entries: impl IntoIterator<Item = (String, Stored)>,
    ) -> Self {
        let mut state = Self { revision, compacted: revision, ..Self::default() };
        for (key, stored) in entries {
            assert!(stored.modified <= revision, "entry '{key}' is newer than its directory");
            state.bytes += cost(&key, &stored.value);
            state.entries.insert(key.into(), stored);
        }
        state
    }

    /// The last transaction that is visible.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Keys, values and overhead, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A key as the next transaction of `batch` sees it.
    fn look<'a>(&'a self, batch: &'a Batch, key: &str) -> Option<&'a Stored> {
        match batch.changes.get(key) {
            Some(changed) => changed.as_ref(),
            None => self.entries.get(key),
        }
    }

    /// Decides `txn` after everything in `batch`, and adds it there.
    ///
    /// # Errors
    /// `Refused`: beyond a limit; the batch is as before.
    pub fn stage(&self, batch: &mut Batch, txn: &Txn) -> Result<TxnReply, DirectoryError> {
        check_txn(txn)?;
        let look = |key: &str| self.look(batch, key);
        let holds = txn
            .compares
            .iter()
            .all(|c| look(&c.key).map_or(Revision(0), |stored| stored.modified) == c.modified);
        if !holds {
            let seen = |c: &atoll_world::directory::Compare| {
                (c.key.clone(), look(&c.key).map(|stored| entry(&c.key, stored)))
            };
            return Ok(TxnReply::Conflict(txn.compares.iter().map(seen).collect()));
        }

        let mut growth = 0isize;
        let mut creates = false;
        for change in &txn.changes {
            let before = look(change_key(change)).map_or(0, |s| cost(change_key(change), &s.value));
            let after = match change {
                KeyChange::Put(key, value) => cost(key, value),
                KeyChange::Delete(_) => 0,
            };
            creates |= before == 0 && after > 0;
            growth += after as isize - before as isize;
        }
        let total = self.bytes.saturating_add_signed(batch.bytes + growth);
        let limit = if creates { TOTAL_BYTES_MAX } else { 2 * TOTAL_BYTES_MAX };
        if growth > 0 && total > limit {
            return Err(DirectoryError::Refused(format!(
                "the directory is full: {total} bytes of {limit}; delete what is not needed"
            )));
        }

        let revision = Revision(self.revision.max(batch.revision).0 + 1);
        for change in &txn.changes {
            let (key, value) = match change {
                KeyChange::Put(key, value) => (key, Some(Arc::<[u8]>::from(value.as_slice()))),
                KeyChange::Delete(key) if self.look(batch, key).is_none() => continue,
                KeyChange::Delete(key) => (key, None),
            };
            let key: Arc<str> = key.as_str().into();
            let stored = value.clone().map(|value| Stored { value, modified: revision });
            batch.changes.insert(key.clone(), stored);
            batch.events.push(Event { revision, key, value });
        }
        batch.revision = revision;
        batch.bytes += growth;
        Ok(TxnReply::Done(revision))
    }

    /// Shows a batch to everyone.
    ///
    /// # Panics
    /// If the batch was staged on another state than this one is in.
    pub fn publish(&mut self, batch: Batch) {
        if batch.is_empty() {
            return;
        }
        assert!(batch.revision > self.revision, "a batch is published once, in order");
        for (key, stored) in batch.changes {
            match stored {
                Some(stored) => self.entries.insert(key, stored),
                None => self.entries.remove(&key),
            };
        }
        self.bytes = self.bytes.checked_add_signed(batch.bytes).expect("bytes are counted exactly");
        self.revision = batch.revision;
        for event in batch.events {
            self.history_bytes += event.bytes();
            self.history.push_back(event);
        }
        while self.history.len() > HISTORY_EVENTS_MAX || self.history_bytes > HISTORY_BYTES_MAX {
            let oldest = self.history[0].revision;
            while self.history.front().is_some_and(|e| e.revision == oldest) {
                let event = self.history.pop_front().expect("just looked at");
                self.history_bytes -= event.bytes();
            }
            self.compacted = oldest;
        }
    }

    /// Decides and shows one transaction.
    ///
    /// # Errors
    /// `Refused`: beyond a limit; nothing has changed.
    pub fn apply(&mut self, txn: &Txn) -> Result<TxnReply, DirectoryError> {
        let mut batch = Batch::default();
        let reply = self.stage(&mut batch, txn)?;
        self.publish(batch);
        Ok(reply)
    }

    /// One key.
    ///
    /// # Errors
    /// `Refused`: the key is too long or empty.
    pub fn get(&self, key: &str) -> Result<Option<Entry>, DirectoryError> {
        check_key(key)?;
        Ok(self.entries.get(key).map(|stored| entry(key, stored)))
    }

    /// All keys that start with `prefix`.
    ///
    /// # Errors
    /// `Refused`: the prefix is too long.
    pub fn list(&self, prefix: &str) -> Result<Listing, DirectoryError> {
        let (entries, revision) = self.list_shared(prefix)?;
        let entries = entries.iter().map(|(key, stored)| entry(key, stored)).collect();
        Ok(Listing { entries, revision })
    }

    /// As [`DirectoryState::list`], without a copy of any value.
    ///
    /// # Errors
    /// `Refused`: the prefix is too long.
    #[allow(clippy::type_complexity, reason = "a listing in shared form, for the server only")]
    pub fn list_shared(
        &self,
        prefix: &str,
    ) -> Result<(Vec<(Arc<str>, Stored)>, Revision), DirectoryError> {
        check_prefix(prefix)?;
        let from = (std::ops::Bound::Included(prefix), std::ops::Bound::Unbounded);
        let entries = self
            .entries
            .range::<str, _>(from)
            .take_while(|(key, _)| key.starts_with(prefix))
            .map(|(key, stored)| (key.clone(), stored.clone()))
            .collect();
        Ok((entries, self.revision))
    }

    /// What happened to keys that start with `prefix` after `after`; about a mebibyte at a time.
    ///
    /// # Errors
    /// `Compacted`: not all of it is known any more, or `after` is in the future (the caller has
    /// seen another directory): list again. `Refused`: the prefix is too long.
    pub fn events_since(&self, prefix: &str, after: Revision) -> Result<Events, DirectoryError> {
        check_prefix(prefix)?;
        if after < self.compacted || after > self.revision {
            return Err(DirectoryError::Compacted);
        }
        let mut found = Events { events: Vec::new(), up_to: self.revision };
        let mut bytes = 0;
        let first = self.history.partition_point(|e| e.revision <= after);
        for event in self.history.range(first..) {
            // Whole revisions only: a watcher that goes on from `up_to` misses nothing.
            let split = found.events.last().is_some_and(|last| last.revision != event.revision);
            if bytes >= EVENTS_BYTES && split {
                found.up_to = found.events.last().expect("bytes were counted").revision;
                break;
            }
            if event.key.starts_with(prefix) {
                bytes += event.key.len() + event.value.as_ref().map_or(0, |v| v.len());
                found.events.push(WatchEvent {
                    revision: event.revision,
                    key: event.key.to_string(),
                    value: event.value.as_ref().map(|v| v.to_vec()),
                });
            }
        }
        Ok(found)
    }

    /// `name` is alive until `now + ttl_ms`; replaces what was said before.
    ///
    /// # Errors
    /// `Refused`: the name is too long or there are too many.
    pub fn touch(&mut self, now: Nanos, name: &str, ttl_ms: u32) -> Result<(), DirectoryError> {
        check_key(name)?;
        self.hints.retain(|_, until| *until > now);
        if self.hints.len() >= HINTS_MAX && !self.hints.contains_key(name) {
            return Err(DirectoryError::Refused(format!("{HINTS_MAX} names are alive already")));
        }
        self.hints.insert(name.to_owned(), now + Nanos::from_ms(u64::from(ttl_ms)));
        Ok(())
    }

    /// Names within their time to live, sorted.
    pub fn alive(&self, now: Nanos) -> Vec<String> {
        let alive = self.hints.iter().filter(|(_, until)| **until > now);
        alive.map(|(name, _)| name.clone()).collect()
    }
}

/// Checks a transaction against the limits; the same check runs in client and server.
///
/// # Errors
/// `Refused` names the limit.
pub fn check_txn(txn: &Txn) -> Result<(), DirectoryError> {
    let refused = |why: String| Err(DirectoryError::Refused(why));
    if txn.changes.is_empty() {
        return refused("a transaction needs at least one change".into());
    }
    if txn.changes.len() > CHANGES_MAX {
        let n = txn.changes.len();
        return refused(format!("a transaction has {n} changes, the most are {CHANGES_MAX}"));
    }
    if txn.compares.len() > COMPARES_MAX {
        let n = txn.compares.len();
        return refused(format!("a transaction has {n} comparisons, the most are {COMPARES_MAX}"));
    }
    let mut bytes = 0;
    for compare in &txn.compares {
        check_key(&compare.key)?;
        bytes += compare.key.len();
    }
    let mut keys: Vec<&str> = Vec::with_capacity(txn.changes.len());
    for change in &txn.changes {
        check_key(change_key(change))?;
        keys.push(change_key(change));
        bytes += change_key(change).len();
        if let KeyChange::Put(key, value) = change {
            bytes += value.len();
            if value.len() > VALUE_MAX {
                return refused(format!(
                    "the value of '{key}' is {} bytes, the most are {VALUE_MAX}",
                    value.len()
                ));
            }
        }
    }
    keys.sort_unstable();
    if let Some(twice) = keys.windows(2).find(|pair| pair[0] == pair[1]) {
        return refused(format!("a transaction changes '{}' twice", twice[0]));
    }
    if bytes > TXN_BYTES_MAX {
        return refused(format!("a transaction is {bytes} bytes, the most are {TXN_BYTES_MAX}"));
    }
    Ok(())
}

/// Checks a key (or a name) against the limits.
///
/// # Errors
/// `Refused` names the limit.
pub fn check_key(key: &str) -> Result<(), DirectoryError> {
    if key.is_empty() {
        return Err(DirectoryError::Refused("a key must not be empty".into()));
    }
    check_prefix(key)
}

/// Checks a prefix against the limits.
///
/// # Errors
/// `Refused` names the limit.
pub fn check_prefix(prefix: &str) -> Result<(), DirectoryError> {
    if prefix.len() > KEY_MAX {
        return Err(DirectoryError::Refused(format!(
            "a key is {} bytes, the most are {KEY_MAX}",
            prefix.len()
        )));
    }
    Ok(())
}

fn change_key(change: &KeyChange) -> &str {
    match change {
        KeyChange::Put(key, _) | KeyChange::Delete(key) => key,
    }
}

fn cost(key: &str, value: &[u8]) -> usize {
    key.len() + value.len() + ENTRY_OVERHEAD
}

fn entry(key: &str, stored: &Stored) -> Entry {
    Entry { key: key.to_owned(), value: stored.value.to_vec(), modified: stored.modified }
}

#[cfg(test)]
mod tests {
    use super::{Batch, DirectoryState, Stored};
    use crate::limits::{HISTORY_BYTES_MAX, HISTORY_EVENTS_MAX, TOTAL_BYTES_MAX, VALUE_MAX};
    use atoll_world::Nanos;
    use atoll_world::directory::{Compare, DirectoryError, KeyChange, Revision, Txn, TxnReply};

    fn put(key: &str, value: &[u8]) -> Txn {
        Txn { compares: vec![], changes: vec![KeyChange::Put(key.into(), value.to_vec())] }
    }

    #[test]
    fn a_staged_batch_is_seen_by_the_next_transaction_but_by_no_reader() {
        let state = DirectoryState::new();
        let mut batch = Batch::default();
        assert_eq!(state.stage(&mut batch, &put("a", b"1")), Ok(TxnReply::Done(Revision(1))));
        let absent = Txn {
            compares: vec![Compare { key: "a".into(), modified: Revision(0) }],
            ..put("a", b"2")
        };
        let Ok(TxnReply::Conflict(seen)) = state.stage(&mut batch, &absent) else {
            panic!("the batch was not looked at")
        };
        assert_eq!(seen[0].1.as_ref().expect("staged").value, b"1");
        assert_eq!(state.get("a"), Ok(None));
        let mut state = state;
        state.publish(batch);
        assert_eq!(state.get("a").unwrap().unwrap().modified, Revision(1));
    }

    #[test]
    fn history_is_bounded_in_events_and_bytes_and_drops_whole_revisions() {
        let mut state = DirectoryState::new();
        let two = Txn {
            compares: vec![],
            changes: vec![KeyChange::Put("a".into(), vec![]), KeyChange::Put("b".into(), vec![])],
        };
        for _ in 0..HISTORY_EVENTS_MAX {
            state.apply(&two).unwrap();
        }
        assert_eq!(state.history.len(), HISTORY_EVENTS_MAX);
        let oldest = Revision(state.compacted.0);
        assert_eq!(oldest, Revision(HISTORY_EVENTS_MAX as u64 / 2));
        assert_eq!(state.events_since("", Revision(oldest.0 - 1)), Err(DirectoryError::Compacted));
        assert_eq!(state.events_since("", oldest).unwrap().events[0].revision.0, oldest.0 + 1);
        let big = put("c", &vec![7; VALUE_MAX]);
        for _ in 0..2 * HISTORY_BYTES_MAX / VALUE_MAX {
            state.apply(&big).unwrap();
        }
        assert!(state.history_bytes <= HISTORY_BYTES_MAX);
        assert!(state.history_bytes > HISTORY_BYTES_MAX - 2 * VALUE_MAX);
    }

    #[test]
    fn long_histories_are_given_out_in_parts_without_a_gap() {
        let mut state = DirectoryState::new();
        for i in 0..100u64 {
            state.apply(&put("x/other", b"")).unwrap();
            state.apply(&put(&format!("k/{i}"), &vec![1; 40_000])).unwrap();
        }
        let (mut after, mut seen, mut parts) = (Revision(0), Vec::new(), 0);
        while after < state.revision() {
            let part = state.events_since("k/", after).unwrap();
            assert!(part.up_to > after);
            seen.extend(part.events.into_iter().map(|e| e.key));
            (after, parts) = (part.up_to, parts + 1);
        }
        assert_eq!(seen, (0..100).map(|i| format!("k/{i}")).collect::<Vec<_>>());
        assert!(parts >= 3, "{parts}");
        assert_eq!(state.events_since("", Revision(1 << 40)), Err(DirectoryError::Compacted));
    }

    #[test]
    fn a_restored_directory_knows_no_old_events() {
        let kept = Stored { value: b"v".as_slice().into(), modified: Revision(4) };
        let mut state = DirectoryState::restore(Revision(9), [("a".to_owned(), kept)]);
        assert_eq!(state.events_since("", Revision(8)), Err(DirectoryError::Compacted));
        assert_eq!(state.events_since("", Revision(9)).unwrap().events, []);
        assert_eq!(state.apply(&put("a", b"w")), Ok(TxnReply::Done(Revision(10))));
        assert_eq!(state.events_since("", Revision(9)).unwrap().events.len(), 1);
    }

    #[test]
    fn a_full_directory_refuses_new_keys_but_takes_changes_and_deletes() {
        let mut state = DirectoryState::new();
        let mut refused = None;
        for i in 0..=TOTAL_BYTES_MAX / VALUE_MAX {
            if let Err(error) = state.apply(&put(&format!("k{i}"), &vec![0; VALUE_MAX - 9])) {
                refused = Some((i, error));
                break;
            }
        }
        let (i, error) = refused.expect("it fills up");
        assert!(matches!(&error, DirectoryError::Refused(why) if why.contains("full")), "{error}");
        assert!(state.bytes() <= TOTAL_BYTES_MAX);
        state.apply(&put("k0", &vec![1; VALUE_MAX])).expect("a change of what exists");
        let delete = Txn { compares: vec![], changes: vec![KeyChange::Delete("k1".into())] };
        state.apply(&delete).expect("a delete");
        state.apply(&put(&format!("k{i}"), &vec![0; VALUE_MAX - 9])).expect("room again");
        let before = state.bytes();
        state.apply(&delete).expect("a delete of nothing");
        assert_eq!(state.bytes(), before);
    }

    #[test]
    fn hints_expire_and_are_bounded() {
        let mut state = DirectoryState::new();
        let at = |ms| Nanos::from_ms(ms);
        state.touch(at(0), "b", 100).unwrap();
        state.touch(at(0), "a", 50).unwrap();
        assert_eq!(state.alive(at(49)), ["a", "b"]);
        assert_eq!(state.alive(at(50)), ["b"]);
        state.touch(at(60), "b", 10).unwrap();
        assert!(state.alive(at(70)).is_empty(), "the last word counts");
        for i in 0..crate::limits::HINTS_MAX {
            state.touch(at(100), &format!("n{i}"), 1000).unwrap();
        }
        assert!(state.touch(at(100), "more", 1000).is_err());
        state.touch(at(1100), "more", 1000).expect("the others have expired");
    }
}

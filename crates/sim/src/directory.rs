//! The directory of a simulated cluster: the real state machine behind a network and a service
//! that fail in every way in which etcd may.
//!
//! Invariants: transactions are carried out one after the other, each at most once, and one that
//! was sent is carried out whether or not its sender still waits; only a transaction's own answer
//! is believed to be true, everything else may be old.

use crate::executor::Executor;
use crate::fault::{DirectoryRates, FaultKind, Faults};
use crate::rng::Rng;
use atoll_directory::{DirectoryState, Events, Stored};
use atoll_world::Nanos;
use atoll_world::directory::{
    Changes, Directory, DirectoryError, Entry, Listing, Revision, Txn, TxnReply, Watch, WatchEvent,
};
use atoll_world::sync::{Notify, oneshot};
use std::cell::{Cell, Ref, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

/// Older states kept for stale reads.
const OLDER_MAX: usize = 6;
/// The least and most that one way to the directory takes.
const WAY: (u64, u64) = (100_000, 800_000);
/// What a client waits for an answer before it gives up.
const ANSWER_TIMEOUT: Nanos = Nanos::from_secs(2);
/// A watch that goes back in time does so by up to so many revisions.
const REWIND_MAX: u64 = 30;
/// A transaction that was taken for lost is carried out up to that much later.
const LATE_MAX: Nanos = Nanos::from_secs(10);

struct Inner {
    executor: Executor,
    faults: Faults,
    rng: RefCell<Rng>,
    rates: Cell<DirectoryRates>,
    state: RefCell<DirectoryState>,
    older: RefCell<VecDeque<Older>>,
    changed: Notify,
    down: Cell<bool>,
    cut: RefCell<Vec<bool>>,
    transactions: Cell<u64>,
    traffic: Cell<Traffic>,
    /// How often its processes have died and begun anew: watches end with them.
    restarts: Cell<u64>,
}

/// What clients have asked, and were told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    /// Requests, watches that were opened included.
    pub requests: u64,
    /// Answers of watches with at least one event.
    pub told: u64,
    /// Keys and values in answers and events, in bytes.
    pub bytes: u64,
}

struct Older {
    revision: Revision,
    entries: Vec<(Arc<str>, Stored)>,
}

/// The service that all hosts share; clones are the same.
#[derive(Clone)]
pub struct DirectoryService(Rc<Inner>);

impl DirectoryService {
    /// An empty directory that `hosts` hosts reach.
    pub fn new(executor: &Executor, hosts: u16, rng: Rng, faults: Faults) -> Self {
        Self(Rc::new(Inner {
            executor: executor.clone(),
            faults,
            rng: RefCell::new(rng),
            rates: Cell::default(),
            state: RefCell::new(DirectoryState::new()),
            older: RefCell::default(),
            changed: Notify::default(),
            down: Cell::new(false),
            cut: RefCell::new(vec![false; usize::from(hosts)]),
            transactions: Cell::new(0),
            traffic: Cell::default(),
            restarts: Cell::new(0),
        }))
    }

    /// The end that `host` holds.
    pub fn client(&self, host: u16) -> SimDirectory {
        SimDirectory { service: self.clone(), host }
    }

    /// What is true now; not to be kept over an await.
    pub fn state(&self) -> Ref<'_, DirectoryState> {
        self.0.state.borrow()
    }

    /// Carries out a transaction at once: for the harness.
    pub fn apply(&self, txn: &Txn) -> Result<TxnReply, DirectoryError> {
        let inner = &*self.0;
        inner.transactions.set(inner.transactions.get() + 1);
        let before = {
            let state = inner.state.borrow();
            let (entries, revision) = state.list_shared("")?;
            Older { revision, entries }
        };
        let reply = inner.state.borrow_mut().apply(txn)?;
        let now = inner.executor.now();
        if let TxnReply::Done(revision) = &reply {
            let mut older = inner.older.borrow_mut();
            older.push_back(before);
            if older.len() > OLDER_MAX {
                older.pop_front();
            }
            inner.executor.trace().event(now, None, "directory", revision.0, || {
                let keys: Vec<_> = txn.changes.iter().map(describe).collect();
                format!("revision {}: {}", revision.0, keys.join("; "))
            });
            self.go_back();
            inner.changed.notify_all();
        } else {
            inner.executor.trace().event(now, None, "directory", 1, || {
                let keys: Vec<_> = txn.compares.iter().map(|c| c.key.as_str()).collect();
                format!("conflict on {}", keys.join(", "))
            });
        }
        Ok(reply)
    }

    /// Perhaps goes on from a lower revision. A process of etcd below 3.4.32 that died while it
    /// compacted did: what it had deleted last was gone from its file, and its revision with it.
    fn go_back(&self) {
        let (inner, rate) = (&*self.0, self.0.rates.get().revision_back);
        let mut state = inner.state.borrow_mut();
        let (entries, revision) = state.list_shared("").expect("a prefix within the limits");
        let newest = entries.iter().map(|(_, stored)| stored.modified).max().unwrap_or_default();
        if newest == revision || !inner.rng.borrow_mut().happens(rate) {
            return;
        }
        inner.faults.reached(FaultKind::DirectoryRevisionBack);
        inner.executor.trace().event(inner.executor.now(), None, "directory", newest.0, || {
            format!("goes back from revision {} to {}", revision.0, newest.0)
        });
        let entries = entries.into_iter().map(|(key, stored)| (key.to_string(), stored));
        // Nothing but hints is lost of it, and the events that watches could go on with.
        *state = DirectoryState::restore(newest, entries);
        inner.restarts.set(inner.restarts.get() + 1);
    }

    /// It is put back to an older state, with that one's revision: from a backup.
    pub fn restore(&self, state: DirectoryState) {
        *self.0.state.borrow_mut() = state;
        self.0.older.borrow_mut().clear();
        self.0.restarts.set(self.0.restarts.get() + 1);
        self.0.changed.notify_all();
    }

    /// From now on calls go wrong at these rates.
    pub fn set_rates(&self, rates: DirectoryRates) {
        self.0.rates.set(rates);
    }

    /// Nobody reaches it, or everybody does again.
    pub fn set_down(&self, down: bool) {
        self.0.down.set(down);
        self.0.changed.notify_all();
    }

    /// `host` does not reach it, or does again.
    pub fn set_cut(&self, host: u16, cut: bool) {
        self.0.cut.borrow_mut()[usize::from(host)] = cut;
        self.0.changed.notify_all();
    }

    /// Returns at the next change, or when its reachability changes.
    pub fn changed(&self) -> impl Future<Output = ()> + use<> {
        self.0.changed.notified()
    }

    /// What all clients have asked so far, and were told.
    pub fn traffic(&self) -> Traffic {
        self.0.traffic.get()
    }

    /// Transactions carried out, conflicts included.
    pub fn transactions(&self) -> u64 {
        self.0.transactions.get()
    }
}

fn describe(change: &atoll_world::directory::KeyChange) -> String {
    use atoll_world::directory::KeyChange;
    match change {
        KeyChange::Put(key, value) => format!("{key} = {}", String::from_utf8_lossy(value)),
        KeyChange::Delete(key) => format!("{key} deleted"),
    }
}

/// One host's way to the directory.
#[derive(Clone)]
pub struct SimDirectory {
    service: DirectoryService,
    host: u16,
}

impl SimDirectory {
    fn inner(&self) -> &Inner {
        &self.service.0
    }

    fn cut_off(&self) -> bool {
        self.inner().down.get() || self.inner().cut.borrow()[usize::from(self.host)]
    }

    fn happens(&self, rate: u32, kind: FaultKind) -> bool {
        let happens = self.inner().rng.borrow_mut().happens(rate);
        if happens {
            self.inner().faults.reached(kind);
        }
        happens
    }

    async fn wait(&self, span: Nanos) {
        let ex = &self.inner().executor;
        ex.sleep_until(ex.now() + span).await;
    }

    fn way(&self) -> Nanos {
        let way = Nanos(self.inner().rng.borrow_mut().within(WAY.0, WAY.1));
        if self.happens(self.inner().rates.get().slow, FaultKind::DirectorySlow) {
            return way * self.inner().rng.borrow_mut().within(10, 1000);
        }
        way
    }

    fn unavailable(&self) -> DirectoryError {
        DirectoryError::Unavailable(format!("h{} gets no answer", self.host))
    }

    /// The way there; an error if it leads nowhere.
    async fn reach(&self) -> Result<(), DirectoryError> {
        let way = self.way();
        self.wait(way).await;
        if self.cut_off() {
            self.inner().faults.reached(FaultKind::DirectoryUnavailable);
            return Err(self.unavailable());
        }
        let rate = self.inner().rates.get().unavailable;
        if self.happens(rate, FaultKind::DirectoryUnavailable) {
            return Err(self.unavailable());
        }
        Ok(())
    }

    fn asked(&self) {
        let traffic = self.inner().traffic.get();
        self.inner().traffic.set(Traffic { requests: traffic.requests + 1, ..traffic });
    }

    fn answered<'a>(&self, entries: impl IntoIterator<Item = &'a Entry>) {
        let sizes = entries.into_iter().map(|entry| entry.key.len() + entry.value.len());
        let (traffic, sum) = (self.inner().traffic.get(), sizes.sum::<usize>());
        self.inner().traffic.set(Traffic { bytes: traffic.bytes + sum as u64, ..traffic });
    }

    /// What happened after a revision. As etcd does, it waits for one of the future, and so tells
    /// nothing of what happens until then.
    fn events_since(&self, prefix: &str, after: Revision) -> Result<Events, DirectoryError> {
        let state = self.inner().state.borrow();
        let goes_back = self.inner().rates.get().revision_back > 0;
        if goes_back && after > state.revision() {
            return Ok(Events { events: Vec::new(), up_to: after });
        }
        state.events_since(prefix, after)
    }

    /// What a read of all keys with a prefix finds at the service.
    async fn found(&self, prefix: &str) -> Result<Listing, DirectoryError> {
        self.asked();
        self.reach().await?;
        let find = |older: &Older| Listing {
            entries: older
                .entries
                .iter()
                .filter(|(k, _)| k.starts_with(prefix))
                .map(|(k, stored)| entry(k, stored))
                .collect(),
            revision: older.revision,
        };
        match self.stale(find) {
            Some(stale) => Ok(stale),
            None => self.inner().state.borrow().list(prefix),
        }
    }

    /// An older state, if this read is to be stale.
    fn stale<T>(&self, read: impl FnOnce(&Older) -> T) -> Option<T> {
        let older = self.inner().older.borrow();
        if older.is_empty() {
            return None;
        }
        if !self.happens(self.inner().rates.get().stale, FaultKind::DirectoryStaleRead) {
            return None;
        }
        let i = self.inner().rng.borrow_mut().below(older.len() as u64) as usize;
        Some(read(&older[i]))
    }
}

fn entry(key: &str, stored: &Stored) -> Entry {
    Entry { key: key.to_owned(), value: stored.value.to_vec(), modified: stored.modified }
}

impl Directory for SimDirectory {
    type Watch = SimWatch;

    async fn txn(&self, txn: Txn) -> Result<TxnReply, DirectoryError> {
        self.asked();
        let ex = self.inner().executor.clone();
        if self.cut_off() {
            let way = self.way();
            self.wait(way).await;
            self.inner().faults.reached(FaultKind::DirectoryUnavailable);
            return Err(self.unavailable());
        }
        let rates = self.inner().rates.get();
        if self.happens(rates.unavailable, FaultKind::DirectoryUnavailable) {
            let way = self.way();
            self.wait(way).await;
            return Err(self.unavailable());
        }
        let unknown = || DirectoryError::Unknown(format!("h{} got no answer", self.host));
        let late = self.happens(rates.late, FaultKind::DirectoryLate);
        let lost = !late && self.happens(rates.answer_lost, FaultKind::DirectoryAnswerLost);
        let mut there = ex.now() + self.way();
        if late {
            there += self.inner().rng.borrow_mut().span(Nanos::from_ms(1), LATE_MAX);
        }
        let (reply, answer) = oneshot();
        let service = self.service.clone();
        ex.call_at(there, move || {
            // An outage that began meanwhile swallows the request, not one that waits inside.
            if late || !service.0.down.get() {
                reply.send(service.apply(&txn));
            }
        });
        if late || lost {
            let wait = self.inner().rng.borrow_mut().span(Nanos::from_ms(2), ANSWER_TIMEOUT);
            self.wait(wait).await;
            return Err(unknown());
        }
        let Ok(answer) = answer.await else {
            self.wait(ANSWER_TIMEOUT).await;
            return Err(unknown());
        };
        let way = self.way();
        self.wait(way).await;
        if self.cut_off() {
            self.wait(ANSWER_TIMEOUT).await;
            self.inner().faults.reached(FaultKind::DirectoryAnswerLost);
            return Err(unknown());
        }
        answer
    }

    async fn get(&self, key: &str) -> Result<Option<Entry>, DirectoryError> {
        self.asked();
        self.reach().await?;
        let find = |older: &Older| {
            older.entries.iter().find(|(k, _)| **k == *key).map(|(k, stored)| entry(k, stored))
        };
        let found = match self.stale(find) {
            Some(stale) => Ok(stale),
            None => self.inner().state.borrow().get(key),
        };
        self.answered(found.iter().flatten());
        self.reach().await?;
        found
    }

    async fn list(&self, prefix: &str) -> Result<Listing, DirectoryError> {
        let listing = self.found(prefix).await?;
        self.answered(&listing.entries);
        self.reach().await?;
        Ok(listing)
    }

    async fn changes(&self, prefix: &str, since: Revision) -> Result<Changes, DirectoryError> {
        let Listing { mut entries, revision } = self.found(prefix).await?;
        let keys = entries.len() as u64;
        entries.retain(|entry| entry.modified > since);
        self.answered(&entries);
        self.reach().await?;
        Ok(Changes { entries, keys, revision })
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<SimWatch, DirectoryError> {
        self.asked();
        self.reach().await?;
        // Only to learn now, not at the first event, that it cannot go on from there.
        self.events_since(prefix, after)?;
        if self.happens(self.inner().rates.get().gap, FaultKind::WatchGap) {
            return Err(DirectoryError::Compacted);
        }
        let restarts = self.inner().restarts.get();
        Ok(SimWatch { directory: self.clone(), prefix: prefix.to_owned(), after, restarts })
    }

    async fn touch(&self, name: &str, ttl_ms: u32) -> Result<(), DirectoryError> {
        self.reach().await?;
        if self.happens(self.inner().rates.get().hint, FaultKind::HintOdd) {
            return Ok(());
        }
        let now = self.inner().executor.now();
        self.inner().state.borrow_mut().touch(now, name, ttl_ms)
    }

    async fn alive(&self) -> Result<Vec<String>, DirectoryError> {
        self.reach().await?;
        let now = self.inner().executor.now();
        let mut names = self.inner().state.borrow().alive(now);
        names.retain(|_| !self.happens(self.inner().rates.get().hint, FaultKind::HintOdd));
        Ok(names)
    }
}

/// A running watch.
pub struct SimWatch {
    directory: SimDirectory,
    prefix: String,
    after: Revision,
    /// Of the service, when this was opened.
    restarts: u64,
}

impl Watch for SimWatch {
    async fn next(&mut self) -> Result<Vec<WatchEvent>, DirectoryError> {
        let events = self.news().await?;
        let sizes = events.iter().map(|e| e.key.len() + e.value.as_ref().map_or(0, Vec::len));
        let (traffic, sum) = (self.directory.inner().traffic.get(), sizes.sum::<usize>());
        let (told, bytes) = (traffic.told + 1, traffic.bytes + sum as u64);
        self.directory.inner().traffic.set(Traffic { told, bytes, ..traffic });
        Ok(events)
    }
}

impl SimWatch {
    async fn news(&mut self) -> Result<Vec<WatchEvent>, DirectoryError> {
        loop {
            let inner = self.directory.inner();
            if inner.restarts.get() != self.restarts {
                return Err(self.directory.unavailable());
            }
            let changed = inner.changed.notified();
            if self.directory.cut_off() {
                let timeout = Nanos::from_secs(1);
                self.directory.wait(timeout).await;
                return Err(self.directory.unavailable());
            }
            let mut found = self.directory.events_since(&self.prefix, self.after)?;
            if found.events.is_empty() {
                self.after = found.up_to;
                changed.await;
                continue;
            }
            let way = self.directory.way();
            self.directory.wait(way).await;
            let rates = inner.rates.get();
            let back = Revision(self.after.0.saturating_sub(REWIND_MAX));
            if let Ok(again) = inner.state.borrow().events_since(&self.prefix, back)
                && self.directory.happens(rates.rewound, FaultKind::WatchRewound)
            {
                let from = inner.rng.borrow_mut().below(again.events.len() as u64) as usize;
                self.after = again.up_to;
                return Ok(again.events[from..].to_vec());
            }
            if self.directory.happens(rates.gap, FaultKind::WatchGap) {
                self.after = found.up_to;
                let gap = inner.rng.borrow_mut().below(3);
                match gap {
                    0 => return Err(DirectoryError::Compacted),
                    1 => continue, // all of them are lost
                    _ => found.events.retain(|event| event.value.is_some()),
                }
                if found.events.is_empty() {
                    continue;
                }
            }
            if !self.directory.happens(rates.watch, FaultKind::WatchOdd) {
                self.after = found.up_to;
                return Ok(found.events);
            }
            let odd = inner.rng.borrow_mut().below(4);
            match odd {
                0 => {
                    let late = inner.rng.borrow_mut().span(Nanos::from_ms(10), Nanos::from_secs(5));
                    self.directory.wait(late).await;
                    self.after = found.up_to;
                    return Ok(found.events);
                }
                1 => return Ok(found.events), // and once more at the next call
                2 => self.after = found.up_to, // never told
                _ => return Err(self.directory.unavailable()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::DirectoryService;
    use crate::executor::Executor;
    use crate::fault::{DirectoryRates, FaultKind, Faults};
    use crate::rng::Rng;
    use crate::trace::Trace;
    use atoll_world::Nanos;
    use atoll_world::directory::{
        Compare, Directory, DirectoryError, KeyChange, Revision, Txn, TxnReply, Watch,
    };

    fn service(seed: u64) -> (Executor, DirectoryService, Faults) {
        let ex = Executor::new(seed, Trace::new(false));
        let faults = Faults::default();
        let rng = Rng::named(seed, "directory");
        (ex.clone(), DirectoryService::new(&ex, 2, rng, faults.clone()), faults)
    }

    fn put(key: &str, value: &str, modified: u64) -> Txn {
        Txn {
            compares: vec![Compare { key: key.into(), modified: Revision(modified) }],
            changes: vec![KeyChange::Put(key.into(), value.into())],
        }
    }

    #[test]
    fn an_answer_that_is_lost_leaves_the_change_and_a_late_one_comes_after_the_error() {
        let (ex, s, faults) = service(1);
        let (d, s2, ex2) = (s.client(0), s.clone(), ex.clone());
        ex.block_on(Nanos::from_secs(100), async move {
            assert_eq!(d.txn(put("a", "1", 0)).await, Ok(TxnReply::Done(Revision(1))));
            let rates = DirectoryRates { answer_lost: 1_000_000, ..DirectoryRates::default() };
            s2.set_rates(rates);
            let lost = d.txn(put("a", "2", 1)).await;
            assert!(matches!(lost, Err(DirectoryError::Unknown(_))));
            assert_eq!(s2.state().get("a").unwrap().unwrap().value, b"2");
            s2.set_rates(DirectoryRates { late: 1_000_000, ..DirectoryRates::default() });
            let mut after_the_error = false;
            for n in 2..30 {
                let txn = put("a", &n.to_string(), n);
                assert!(matches!(d.txn(txn).await, Err(DirectoryError::Unknown(_))));
                after_the_error |= s2.state().revision() == Revision(n);
                ex2.sleep_until(ex2.now() + Nanos::from_secs(11)).await;
                if s2.state().revision() != Revision(n + 1) {
                    panic!("it was never carried out");
                }
                if ex2.now() > Nanos::from_secs(80) {
                    break;
                }
            }
            assert!(after_the_error);
        })
        .unwrap();
        assert!(faults.count(FaultKind::DirectoryLate) > 0);
        ex.shutdown();
    }

    #[test]
    fn a_dropped_transaction_is_still_carried_out_and_an_outage_refuses() {
        let (ex, s, _) = service(2);
        let (d, s2, ex2) = (s.client(0), s.clone(), ex.clone());
        ex.block_on(Nanos::from_secs(100), async move {
            {
                let txn = std::pin::pin!(d.txn(put("a", "1", 0)));
                futures_util::future::select(txn, std::pin::pin!(async {})).await;
            }
            ex2.sleep_until(ex2.now() + Nanos::from_ms(10)).await;
            assert_eq!(s2.state().revision(), Revision(1));
            s2.set_cut(0, true);
            assert!(matches!(d.get("a").await, Err(DirectoryError::Unavailable(_))));
            assert!(s2.client(1).get("a").await.unwrap().is_some());
            s2.set_down(true);
            assert!(s2.client(1).get("a").await.is_err());
        })
        .unwrap();
        ex.shutdown();
    }

    #[test]
    fn watches_tell_and_reads_may_be_old() {
        let (ex, s, faults) = service(3);
        let (d, s2) = (s.client(0), s.clone());
        ex.block_on(Nanos::from_secs(100), async move {
            let mut w = d.watch("a", Revision(0)).await.unwrap();
            s2.apply(&put("a", "1", 0)).unwrap();
            assert_eq!(w.next().await.unwrap()[0].revision, Revision(1));
            s2.apply(&put("a", "2", 1)).unwrap();
            assert_eq!(w.next().await.unwrap()[0].value.as_deref(), Some(&b"2"[..]));
            s2.set_rates(DirectoryRates { stale: 1_000_000, ..DirectoryRates::default() });
            let mut old = 0;
            for _ in 0..20 {
                let seen = d.get("a").await.unwrap().map(|e| e.value);
                old += u32::from(seen.as_deref() != Some(b"2"));
            }
            assert_eq!(old, 20);
            s2.set_rates(DirectoryRates { watch: 1_000_000, ..DirectoryRates::default() });
            let mut told = 0;
            for n in 2..40 {
                s2.apply(&put("a", "x", n)).unwrap();
                let next = std::pin::pin!(w.next());
                let sleep = std::pin::pin!(
                    d.inner().executor.sleep_until(d.inner().executor.now() + Nanos::from_secs(1))
                );
                if let futures_util::future::Either::Left((Ok(events), _)) =
                    futures_util::future::select(next, sleep).await
                {
                    told += events.len();
                }
            }
            assert!(told > 5);
        })
        .unwrap();
        assert!(faults.count(FaultKind::WatchOdd) > 10);
        ex.shutdown();
    }

    fn delete(key: &str) -> Txn {
        Txn { compares: vec![], changes: vec![KeyChange::Delete(key.into())] }
    }

    /// What a watch of everything tells of twenty keys that come, of which every other one goes.
    fn told(seed: u64, rates: DirectoryRates) -> (Vec<(u64, bool)>, u32, Faults) {
        let (ex, s, faults) = service(seed);
        let (d, s2) = (s.client(0), s.clone());
        s.set_rates(rates);
        let told = ex.block_on(Nanos::from_secs(1000), async move {
            let (mut told, mut compacted) = (Vec::new(), 0);
            let mut watch = None;
            let mut after = Revision(0);
            for n in 0..20 {
                let key = format!("k{n}");
                s2.apply(&put(&key, "x", 0)).unwrap();
                if n % 2 == 0 {
                    s2.apply(&delete(&key)).unwrap();
                }
                let mut open = match watch.take() {
                    Some(open) => open,
                    None => match d.watch("", after).await {
                        Ok(open) => open,
                        Err(error) => {
                            assert_eq!(error, DirectoryError::Compacted);
                            compacted += 1;
                            continue;
                        }
                    },
                };
                let ex = d.inner().executor.clone();
                let soon = std::pin::pin!(ex.sleep_until(ex.now() + Nanos::from_secs(1)));
                let next = Box::pin(open.next());
                let next = match futures_util::future::select(next, soon).await {
                    futures_util::future::Either::Left((events, _)) => events,
                    futures_util::future::Either::Right(_) => Ok(Vec::new()),
                };
                let Ok(events) = next else {
                    assert_eq!(next, Err(DirectoryError::Compacted));
                    compacted += 1;
                    continue;
                };
                told.extend(events.iter().map(|e| (e.revision.0, e.value.is_some())));
                after = events.last().map_or(after, |e| after.max(e.revision));
                watch = Some(open);
            }
            (told, compacted)
        });
        let (told, compacted) = told.unwrap();
        ex.shutdown();
        (told, compacted, faults)
    }

    #[test]
    fn watches_go_back_in_time_and_have_gaps_as_those_of_old_etcd_do() {
        let (all, compacted, _) = told(4, DirectoryRates::default());
        assert_eq!((all.len(), compacted), (30, 0));
        assert!(all.is_sorted_by(|a, b| a.0 < b.0), "a good watch tells each event once, in order");
        let rewound = DirectoryRates { rewound: 300_000, ..DirectoryRates::default() };
        let (seen, _, faults) = told(4, rewound);
        assert!(faults.count(FaultKind::WatchRewound) > 2);
        assert!(!seen.is_sorted_by_key(|e| e.0) && seen.len() > 30);
        assert!(all.iter().all(|event| seen.contains(event)), "nothing is lost of it");
        let gap = DirectoryRates { gap: 300_000, ..DirectoryRates::default() };
        let (mut gone, mut errors) = (Vec::new(), 0);
        for seed in 0..20 {
            let (seen, compacted, _) = told(seed, gap);
            errors += compacted;
            gone.extend(all.iter().filter(|event| !seen.contains(event)).copied());
        }
        assert!(errors > 10 && gone.len() > 20);
        let (deletes, rare) = (gone.iter().filter(|(_, is_put)| !is_put).count(), all.len() / 3);
        assert_eq!(all.iter().filter(|(_, is_put)| !is_put).count(), rare);
        assert!(deletes * 5 > gone.len() * 2, "{deletes} of {}, a third of all", gone.len());
    }

    #[test]
    fn a_revision_goes_back_to_that_of_the_newest_key_and_counts_on_from_there() {
        let (ex, s, faults) = service(5);
        let (d, s2) = (s.client(0), s.clone());
        ex.block_on(Nanos::from_secs(100), async move {
            s2.apply(&put("kept", "1", 0)).unwrap();
            s2.apply(&put("gone", "1", 0)).unwrap();
            s2.set_rates(DirectoryRates { revision_back: 1_000_000, ..DirectoryRates::default() });
            s2.apply(&delete("gone")).unwrap();
            assert_eq!(s2.state().revision(), Revision(1));
            // A watch of what was the present waits for the future, and misses what comes before.
            let mut watch = d.watch("", Revision(3)).await.unwrap();
            for n in 2..5 {
                assert_eq!(
                    s2.apply(&put("new", "x", if n == 2 { 0 } else { n - 1 })),
                    Ok(TxnReply::Done(Revision(n)))
                );
            }
            assert_eq!(watch.next().await.unwrap()[0].revision, Revision(4));
        })
        .unwrap();
        assert_eq!(faults.count(FaultKind::DirectoryRevisionBack), 1);
        ex.shutdown();
    }

    #[test]
    fn a_name_that_was_touched_may_not_be_alive() {
        let (ex, s, faults) = service(6);
        let (d, s2) = (s.client(0), s.clone());
        ex.block_on(Nanos::from_secs(100), async move {
            d.touch("h1", 60_000).await.unwrap();
            assert_eq!(d.alive().await.unwrap(), ["h1"]);
            s2.set_rates(DirectoryRates { hint: 1_000_000, ..DirectoryRates::default() });
            assert_eq!(d.alive().await.unwrap(), [""; 0]);
            d.touch("h2", 60_000).await.unwrap();
            s2.set_rates(DirectoryRates::default());
            assert_eq!(d.alive().await.unwrap(), ["h1"]);
        })
        .unwrap();
        assert_eq!(faults.count(FaultKind::HintOdd), 2);
        ex.shutdown();
    }
}

//! The directory of a simulated cluster: the real state machine behind a network and a service
//! that fail in every way in which etcd may.
//!
//! Invariants: transactions are carried out one after the other, each at most once, and one that
//! was sent is carried out whether or not its sender still waits; only a transaction's own answer
//! is believed to be true, everything else may be old.

use crate::executor::Executor;
use crate::fault::{DirectoryRates, FaultKind, Faults};
use crate::rng::Rng;
use atoll_directory::{DirectoryState, Stored};
use atoll_world::Nanos;
use atoll_world::directory::{
    Directory, DirectoryError, Entry, Listing, Revision, Txn, TxnReply, Watch, WatchEvent,
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
            inner.changed.notify_all();
        } else {
            inner.executor.trace().event(now, None, "directory", 1, || {
                let keys: Vec<_> = txn.compares.iter().map(|c| c.key.as_str()).collect();
                format!("conflict on {}", keys.join(", "))
            });
        }
        Ok(reply)
    }

    /// It is put back to an older state, with that one's revision: from a backup.
    pub fn restore(&self, state: DirectoryState) {
        *self.0.state.borrow_mut() = state;
        self.0.older.borrow_mut().clear();
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
        self.reach().await?;
        let find = |older: &Older| {
            older.entries.iter().find(|(k, _)| **k == *key).map(|(k, stored)| entry(k, stored))
        };
        let found = match self.stale(find) {
            Some(stale) => Ok(stale),
            None => self.inner().state.borrow().get(key),
        };
        self.reach().await?;
        found
    }

    async fn list(&self, prefix: &str) -> Result<Listing, DirectoryError> {
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
        let found = match self.stale(find) {
            Some(stale) => Ok(stale),
            None => self.inner().state.borrow().list(prefix),
        };
        self.reach().await?;
        found
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<SimWatch, DirectoryError> {
        self.reach().await?;
        // Only to learn now, not at the first event, that it cannot go on from there.
        self.inner().state.borrow().events_since(prefix, after)?;
        Ok(SimWatch { directory: self.clone(), prefix: prefix.to_owned(), after })
    }

    async fn touch(&self, name: &str, ttl_ms: u32) -> Result<(), DirectoryError> {
        self.reach().await?;
        let now = self.inner().executor.now();
        self.inner().state.borrow_mut().touch(now, name, ttl_ms)
    }

    async fn alive(&self) -> Result<Vec<String>, DirectoryError> {
        self.reach().await?;
        let now = self.inner().executor.now();
        Ok(self.inner().state.borrow().alive(now))
    }
}

/// A running watch.
pub struct SimWatch {
    directory: SimDirectory,
    prefix: String,
    after: Revision,
}

impl Watch for SimWatch {
    async fn next(&mut self) -> Result<Vec<WatchEvent>, DirectoryError> {
        loop {
            let inner = self.directory.inner();
            let changed = inner.changed.notified();
            if self.directory.cut_off() {
                let timeout = Nanos::from_secs(1);
                self.directory.wait(timeout).await;
                return Err(self.directory.unavailable());
            }
            let found = inner.state.borrow().events_since(&self.prefix, self.after)?;
            if found.events.is_empty() {
                self.after = found.up_to;
                changed.await;
                continue;
            }
            let way = self.directory.way();
            self.directory.wait(way).await;
            if !self.directory.happens(inner.rates.get().watch, FaultKind::WatchOdd) {
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
}

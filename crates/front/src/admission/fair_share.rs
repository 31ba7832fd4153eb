//! Fair sharing between clients: a shallow client keeps its latency next to a deep one.
//!
//! A disk answers a single request sooner the fewer others it has. A client that waits for each
//! answer before it sends the next request suffers from every other request. So while such shallow
//! clients are busy, each deep client, which keeps many requests under way, may have only few:
//! [`AdmissionLimits::deep_requests_min`], or as many more as
//! [`concurrency_limit`](super::concurrency_limit) finds. The rest of its requests waits in its
//! connection. A shallow client that sends few requests a second holds up nobody.
//!
//! Time is cut into windows of [`SHARE_WINDOW`]. A client is deep as soon as it has more than
//! [`SHALLOW_MOST`] requests under way. It stays deep until it was allowed more requests for a
//! whole window and did not use them: a client that is held back no longer shows how much it wants.
//! A client that is not deep counts as shallow in each window in which it has begun at least
//! [`SHALLOW_BUSY`] requests of at most [`SHALLOW_BYTES`].
//!
//! Invariants: `shallow` is the number of clients that count as shallow in this window; a client
//! that is held back does not count.
//!
//! [`AdmissionLimits::deep_requests_min`]: super::limits::AdmissionLimits::deep_requests_min

use super::concurrency_limit::ConcurrencyLimit;
use super::limits::{SHALLOW_BUSY, SHALLOW_BYTES, SHALLOW_MOST, SHARE_WINDOW};
use atoll_world::Nanos;
use std::cell::{Cell, RefCell};

/// The clients of one server.
pub(super) struct FairShare {
    window: Cell<u64>,
    shallow: Cell<usize>,
    /// How many shallow clients there were in the window before.
    before: Cell<usize>,
    /// The last window in which a deep client was held back.
    held: Cell<u64>,
    limit: RefCell<ConcurrencyLimit>,
}

/// What one client has asked for of late.
#[derive(Default)]
pub(super) struct ClientActivity {
    /// The window in which it asked last; the fields below are of that window.
    window: Cell<u64>,
    /// Small requests that it has begun.
    begun: Cell<usize>,
    /// The most requests that it had under way.
    most: Cell<usize>,
    deep: Cell<bool>,
    /// It had as many requests under way as it was allowed.
    held: Cell<bool>,
    /// It counts as shallow.
    counts: Cell<bool>,
    /// It counted as shallow in the window in which it asked before that.
    counted: Cell<bool>,
}

impl ClientActivity {
    /// The client has begun one more request of `bytes`; `under_way` of the `share` that it may
    /// have are under way now.
    pub(super) fn begins(&self, bytes: usize, under_way: usize, share: usize) {
        self.begun.set(self.begun.get() + usize::from(bytes <= SHALLOW_BYTES));
        self.has(under_way);
        self.held.set(self.held.get() || under_way >= share);
    }

    fn has(&self, under_way: usize) {
        self.most.set(self.most.get().max(under_way));
        self.deep.set(self.deep.get() || under_way > SHALLOW_MOST);
    }

    /// The client asks for the first time in a window.
    fn next_window(&self, under_way: usize) {
        if self.most.get() <= SHALLOW_MOST && !self.held.get() {
            self.deep.set(false);
        }
        self.begun.set(0);
        self.most.set(0);
        self.held.set(false);
        self.counted.set(self.counts.replace(false));
        self.has(under_way);
    }
}

impl FairShare {
    /// Between clients of which each deep one may always have at least so many requests under way.
    pub(super) fn new(deep_requests_min: usize) -> Self {
        Self {
            window: Cell::new(0),
            shallow: Cell::new(0),
            before: Cell::new(0),
            held: Cell::new(0),
            limit: RefCell::new(ConcurrencyLimit::new(deep_requests_min)),
        }
    }

    /// Whether `client` is shallow and busy and others are held back for it: then the caller
    /// reports how long its small requests take, by [`FairShare::took`].
    pub(super) fn wants_times(&self, client: &ClientActivity) -> bool {
        let is_shallow = client.counts.get() || client.counted.get() && !client.deep.get();
        is_shallow && self.held.get() + 1 >= self.window.get()
    }

    /// A small request of such a client, a write or a read, has ended.
    pub(super) fn took(&self, begun: Nanos, now: Nanos, writes: bool) {
        self.limit.borrow_mut().ended(begun, now, writes);
    }

    /// How many requests `client`, which has `under_way`, may have under way now; none: there is no
    /// bound. A client that is not deep gets as many as show whether it becomes deep, a deep one as
    /// many as shallow ones do not notice.
    pub(super) fn share(
        &self,
        now: Nanos,
        client: &ClientActivity,
        under_way: usize,
    ) -> Option<usize> {
        // Zero is before all windows.
        let window = now.0 / SHARE_WINDOW.0 + 1;
        let last = self.window.replace(window);
        if last != window {
            let shallow = self.shallow.replace(0);
            self.before.set(if last + 1 == window { shallow } else { 0 });
        }
        if client.window.replace(window) != window {
            client.next_window(under_way);
        }
        let counts = client.begun.get() >= SHALLOW_BUSY && !client.deep.get();
        match (client.counts.replace(counts), counts) {
            (false, true) => self.shallow.set(self.shallow.get() + 1),
            (true, false) => self.shallow.set(self.shallow.get() - 1),
            _ => {}
        }
        if self.shallow.get().max(self.before.get()) == 0 {
            return None;
        }
        if !client.deep.get() {
            return Some(SHALLOW_MOST + 1);
        }
        self.held.set(window);
        Some(self.limit.borrow().bound())
    }
}

#[cfg(test)]
mod tests {
    use super::{
        ClientActivity, FairShare, Nanos, SHALLOW_BUSY, SHALLOW_BYTES, SHALLOW_MOST, SHARE_WINDOW,
    };

    const LEAST: usize = 2;
    /// What somebody may have.
    const ALL: Option<usize> = None;
    const FEW_SHOW: Option<usize> = Some(SHALLOW_MOST + 1);
    const HELD: Option<usize> = Some(LEAST);

    impl Default for FairShare {
        fn default() -> Self {
            Self::new(LEAST)
        }
    }

    /// Begins so many in the window, of so many bytes, each with as many under way as it may have
    /// of those that it wants; what it may have then.
    fn asks(
        fair_share: &FairShare,
        client: &ClientActivity,
        window: u64,
        requests: (usize, usize),
        want: usize,
    ) -> Option<usize> {
        let now = Nanos(SHARE_WINDOW.0 * window);
        let (begun, bytes) = requests;
        for _ in 0..begun {
            let most = fair_share.share(now, client, 0).unwrap_or(usize::MAX);
            client.begins(bytes, want.min(most), most);
        }
        fair_share.share(now, client, 0)
    }

    /// The same with small requests, more than make one busy.
    fn ask(
        fair_share: &FairShare,
        client: &ClientActivity,
        window: u64,
        want: usize,
    ) -> Option<usize> {
        asks(fair_share, client, window, (SHALLOW_BUSY, SHALLOW_BYTES), want)
    }

    #[test]
    fn only_busy_clients_of_few_requests_at_once_make_others_wait() {
        let (fair_share, deep, other, large): (
            FairShare,
            ClientActivity,
            ClientActivity,
            ClientActivity,
        ) = Default::default();
        let sees = |window| ask(&fair_share, &deep, window, SHALLOW_MOST + 1);
        assert_eq!(sees(0), ALL);
        // Too seldom, too many at once, too large.
        asks(&fair_share, &other, 0, (SHALLOW_BUSY - 1, SHALLOW_BYTES), 1);
        assert_eq!(sees(0), ALL);
        assert_eq!((ask(&fair_share, &other, 1, SHALLOW_MOST + 1), sees(1)), (ALL, ALL));
        asks(&fair_share, &large, 1, (SHALLOW_BUSY, SHALLOW_BYTES + 1), 1);
        asks(&fair_share, &large, 1, (SHALLOW_BUSY - 1, SHALLOW_BYTES), 1);
        assert_eq!(sees(1), ALL);
        // Known as one of few requests at once after a window, then seen at once, in the next
        // window, and no longer.
        assert_eq!((ask(&fair_share, &other, 2, 1), sees(2)), (ALL, ALL));
        assert_eq!((ask(&fair_share, &other, 3, SHALLOW_MOST), sees(3)), (FEW_SHOW, HELD));
        assert_eq!((sees(4), sees(5)), (HELD, ALL));
        // One that becomes deep does not count any more.
        assert_eq!((ask(&fair_share, &other, 9, 1), sees(9)), (FEW_SHOW, HELD));
        assert_eq!((ask(&fair_share, &other, 9, SHALLOW_MOST + 1), sees(9)), (ALL, ALL));
    }

    #[test]
    fn who_is_held_back_neither_counts_as_shallow_nor_stays_held_back() {
        let (fair_share, deep, other): (FairShare, ClientActivity, ClientActivity) =
            Default::default();
        assert_eq!(ask(&fair_share, &deep, 0, 100), ALL);
        for window in 1..10 {
            assert_eq!(ask(&fair_share, &other, window, 1), FEW_SHOW);
            assert_eq!(ask(&fair_share, &deep, window, 100), HELD);
        }
        // Of the last window in which the other was busy.
        assert_eq!(ask(&fair_share, &deep, 10, 100), HELD);
        for window in 11..20 {
            assert_eq!(ask(&fair_share, &deep, window, 100), ALL);
        }
    }

    #[test]
    fn who_was_deep_is_shallow_once_it_asks_for_less_than_it_may() {
        let (fair_share, was_deep, other): (FairShare, ClientActivity, ClientActivity) =
            Default::default();
        ask(&fair_share, &was_deep, 0, 100);
        assert_eq!(ask(&fair_share, &other, 1, 1), FEW_SHOW);
        // It would have had more than one, and shows it in the window after that.
        assert_eq!(ask(&fair_share, &was_deep, 1, LEAST - 1), HELD);
        assert_eq!(ask(&fair_share, &was_deep, 2, LEAST - 1), FEW_SHOW);
        assert_eq!(ask(&fair_share, &was_deep, 3, SHALLOW_MOST), FEW_SHOW);
    }

    #[test]
    fn a_newcomer_is_known_before_it_is_in_the_way() {
        let (fair_share, new, other): (FairShare, ClientActivity, ClientActivity) =
            Default::default();
        ask(&fair_share, &other, 0, 1);
        let now = Nanos(0);
        assert_eq!(fair_share.share(now, &new, 0), FEW_SHOW);
        new.begins(SHALLOW_BYTES, SHALLOW_MOST + 1, SHALLOW_MOST + 1);
        assert_eq!(fair_share.share(now, &new, SHALLOW_MOST + 1), HELD);
    }
}

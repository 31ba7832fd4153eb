//! Who asks beside whom.
//!
//! A disk answers a single request sooner the fewer others it has, and a client that always waits
//! for one answer before it asks again feels every one of them. While such clients are busy, those
//! that keep many requests under way may have only few each, from [`Limits::requests_beside`] on as
//! `beside` finds out, and the rest waits in their sockets. Who asks seldom holds up nobody.
//!
//! Time is cut into windows. A connection is deep from the moment on in which it has more than
//! [`SHALLOW_MOST`] requests under way, until a window has passed in which it could have had more
//! and had not: who is held back shows no longer how much it would ask for. Any other counts as
//! shallow in a window in which it has begun at least [`SHALLOW_BUSY`] requests of at most
//! [`SHALLOW_BYTES`].
//!
//! Invariants: `shallow` is the number of connections that count in this window; nobody who is
//! held back counts.
//!
//! [`Limits::requests_beside`]: crate::limits::Limits::requests_beside

use super::beside::Beside;
use crate::limits::{CROWD_WINDOW, SHALLOW_BUSY, SHALLOW_BYTES, SHALLOW_MOST};
use atoll_world::Nanos;
use std::cell::{Cell, RefCell};

/// The connections of one server.
pub(super) struct Crowd {
    window: Cell<u64>,
    shallow: Cell<usize>,
    /// How many there were in the window before.
    before: Cell<usize>,
    /// The last window in which a deep one was held back.
    held: Cell<u64>,
    beside: RefCell<Beside>,
}

/// One of them.
#[derive(Default)]
pub(super) struct Guest {
    /// In which it asked last; the rest is of that one.
    window: Cell<u64>,
    /// Small requests.
    begun: Cell<usize>,
    /// The most that it had under way.
    most: Cell<usize>,
    deep: Cell<bool>,
    /// It had all that it was allowed.
    held: Cell<bool>,
    counts: Cell<bool>,
    /// It did in the window in which it asked before.
    counted: Cell<bool>,
}

impl Guest {
    /// It has begun one more, of so many bytes; so many are under way now, of so many that it may.
    pub(super) fn begins(&self, bytes: usize, under_way: usize, share: usize) {
        self.begun.set(self.begun.get() + usize::from(bytes <= SHALLOW_BYTES));
        self.has(under_way);
        self.held.set(self.held.get() || under_way >= share);
    }

    fn has(&self, under_way: usize) {
        self.most.set(self.most.get().max(under_way));
        self.deep.set(self.deep.get() || under_way > SHALLOW_MOST);
    }

    /// Its first look in a window, after the one in which it asked last.
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

impl Crowd {
    /// Of connections that may have at least so many requests under way beside shallow ones.
    pub(super) fn new(beside: usize) -> Self {
        Self {
            window: Cell::new(0),
            shallow: Cell::new(0),
            before: Cell::new(0),
            held: Cell::new(0),
            beside: RefCell::new(Beside::new(beside)),
        }
    }

    /// Whether `guest` is shallow and busy, and others are held back for it: how long its small
    /// requests take is to be told.
    pub(super) fn wants_times(&self, guest: &Guest) -> bool {
        let is_shallow = guest.counts.get() || guest.counted.get() && !guest.deep.get();
        is_shallow && self.held.get() + 1 >= self.window.get()
    }

    /// A small request, a write or a read, of such a guest has ended.
    pub(super) fn took(&self, begun: Nanos, now: Nanos, writes: bool) {
        self.beside.borrow_mut().ended(begun, now, writes);
    }

    /// `guest`, with so many requests under way, looks how many it may have, if there is a bound:
    /// so many as show whether it is deep, or, if it is, as many as others do not feel.
    pub(super) fn share(&self, now: Nanos, guest: &Guest, under_way: usize) -> Option<usize> {
        // Zero is before all windows.
        let window = now.0 / CROWD_WINDOW.0 + 1;
        let last = self.window.replace(window);
        if last != window {
            let shallow = self.shallow.replace(0);
            self.before.set(if last + 1 == window { shallow } else { 0 });
        }
        if guest.window.replace(window) != window {
            guest.next_window(under_way);
        }
        let counts = guest.begun.get() >= SHALLOW_BUSY && !guest.deep.get();
        match (guest.counts.replace(counts), counts) {
            (false, true) => self.shallow.set(self.shallow.get() + 1),
            (true, false) => self.shallow.set(self.shallow.get() - 1),
            _ => {}
        }
        if self.shallow.get().max(self.before.get()) == 0 {
            return None;
        }
        if !guest.deep.get() {
            return Some(SHALLOW_MOST + 1);
        }
        self.held.set(window);
        Some(self.beside.borrow().bound())
    }
}

#[cfg(test)]
mod tests {
    use super::{CROWD_WINDOW, Crowd, Guest, Nanos, SHALLOW_BUSY, SHALLOW_BYTES, SHALLOW_MOST};

    const BESIDE: usize = 2;
    /// What somebody may have.
    const ALL: Option<usize> = None;
    const FEW_SHOW: Option<usize> = Some(SHALLOW_MOST + 1);
    const HELD: Option<usize> = Some(BESIDE);

    impl Default for Crowd {
        fn default() -> Self {
            Self::new(BESIDE)
        }
    }

    /// Begins so many in the window, of so many bytes, each with as many under way as it may have
    /// of those that it wants; what it may have then.
    fn asks(
        crowd: &Crowd,
        guest: &Guest,
        window: u64,
        requests: (usize, usize),
        want: usize,
    ) -> Option<usize> {
        let now = Nanos(CROWD_WINDOW.0 * window);
        let (begun, bytes) = requests;
        for _ in 0..begun {
            let most = crowd.share(now, guest, 0).unwrap_or(usize::MAX);
            guest.begins(bytes, want.min(most), most);
        }
        crowd.share(now, guest, 0)
    }

    /// The same with small requests, more than make one busy.
    fn ask(crowd: &Crowd, guest: &Guest, window: u64, want: usize) -> Option<usize> {
        asks(crowd, guest, window, (SHALLOW_BUSY, SHALLOW_BYTES), want)
    }

    #[test]
    fn only_busy_clients_of_few_requests_at_once_make_others_wait() {
        let (crowd, deep, other, large): (Crowd, Guest, Guest, Guest) = Default::default();
        let sees = |window| ask(&crowd, &deep, window, SHALLOW_MOST + 1);
        assert_eq!(sees(0), ALL);
        // Too seldom, too many at once, too large.
        asks(&crowd, &other, 0, (SHALLOW_BUSY - 1, SHALLOW_BYTES), 1);
        assert_eq!(sees(0), ALL);
        assert_eq!((ask(&crowd, &other, 1, SHALLOW_MOST + 1), sees(1)), (ALL, ALL));
        asks(&crowd, &large, 1, (SHALLOW_BUSY, SHALLOW_BYTES + 1), 1);
        asks(&crowd, &large, 1, (SHALLOW_BUSY - 1, SHALLOW_BYTES), 1);
        assert_eq!(sees(1), ALL);
        // Known as one of few requests at once after a window, then seen at once, in the next
        // window, and no longer.
        assert_eq!((ask(&crowd, &other, 2, 1), sees(2)), (ALL, ALL));
        assert_eq!((ask(&crowd, &other, 3, SHALLOW_MOST), sees(3)), (FEW_SHOW, HELD));
        assert_eq!((sees(4), sees(5)), (HELD, ALL));
        // One that becomes deep does not count any more.
        assert_eq!((ask(&crowd, &other, 9, 1), sees(9)), (FEW_SHOW, HELD));
        assert_eq!((ask(&crowd, &other, 9, SHALLOW_MOST + 1), sees(9)), (ALL, ALL));
    }

    #[test]
    fn who_is_held_back_neither_counts_as_shallow_nor_stays_held_back() {
        let (crowd, deep, other): (Crowd, Guest, Guest) = Default::default();
        assert_eq!(ask(&crowd, &deep, 0, 100), ALL);
        for window in 1..10 {
            assert_eq!(ask(&crowd, &other, window, 1), FEW_SHOW);
            assert_eq!(ask(&crowd, &deep, window, 100), HELD);
        }
        // Of the last window in which the other was busy.
        assert_eq!(ask(&crowd, &deep, 10, 100), HELD);
        for window in 11..20 {
            assert_eq!(ask(&crowd, &deep, window, 100), ALL);
        }
    }

    #[test]
    fn who_was_deep_is_shallow_once_it_asks_for_less_than_it_may() {
        let (crowd, was_deep, other): (Crowd, Guest, Guest) = Default::default();
        ask(&crowd, &was_deep, 0, 100);
        assert_eq!(ask(&crowd, &other, 1, 1), FEW_SHOW);
        // It would have had more than one, and shows it in the window after that.
        assert_eq!(ask(&crowd, &was_deep, 1, BESIDE - 1), HELD);
        assert_eq!(ask(&crowd, &was_deep, 2, BESIDE - 1), FEW_SHOW);
        assert_eq!(ask(&crowd, &was_deep, 3, SHALLOW_MOST), FEW_SHOW);
    }

    #[test]
    fn a_newcomer_is_known_before_it_is_in_the_way() {
        let (crowd, new, other): (Crowd, Guest, Guest) = Default::default();
        ask(&crowd, &other, 0, 1);
        let now = Nanos(0);
        assert_eq!(crowd.share(now, &new, 0), FEW_SHOW);
        new.begins(SHALLOW_BYTES, SHALLOW_MOST + 1, SHALLOW_MOST + 1);
        assert_eq!(crowd.share(now, &new, SHALLOW_MOST + 1), HELD);
    }
}

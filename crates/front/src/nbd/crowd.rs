//! Who asks beside whom.
//!
//! A disk answers a single request sooner the fewer others it has, and a client that always waits
//! for one answer before it asks again feels every one of them. While such clients are busy, those
//! that keep many requests under way may have only [`Limits::requests_beside`] each, and the rest
//! waits in their sockets. Who asks seldom holds up nobody.
//!
//! Time is cut into windows. A connection counts as shallow in a window in which it has begun at
//! least [`SHALLOW_BUSY`] requests of at most [`SHALLOW_BYTES`] and never had more than
//! [`SHALLOW_MOST`] under way.
//!
//! Invariant: `shallow` is the number of connections that count in this window.
//!
//! [`Limits::requests_beside`]: crate::limits::Limits::requests_beside

use crate::limits::{CROWD_WINDOW, SHALLOW_BUSY, SHALLOW_BYTES, SHALLOW_MOST};
use atoll_world::Nanos;
use std::cell::Cell;

/// The connections of one server.
#[derive(Default)]
pub(super) struct Crowd {
    window: Cell<u64>,
    shallow: Cell<usize>,
    /// How many there were in the window before.
    before: Cell<usize>,
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
    counts: Cell<bool>,
}

impl Guest {
    /// It has begun one more, of so many bytes; so many are under way now.
    pub(super) fn begins(&self, bytes: usize, under_way: usize) {
        self.begun.set(self.begun.get() + usize::from(bytes <= SHALLOW_BYTES));
        self.most.set(self.most.get().max(under_way));
    }
}

impl Crowd {
    /// `guest` looks what it may do, with so many requests under way: whether somebody shallow is
    /// busy.
    pub(super) fn has_shallow(&self, now: Nanos, guest: &Guest, under_way: usize) -> bool {
        // Zero is before all windows.
        let window = now.0 / CROWD_WINDOW.0 + 1;
        let last = self.window.replace(window);
        if last != window {
            let shallow = self.shallow.replace(0);
            self.before.set(if last + 1 == window { shallow } else { 0 });
        }
        if guest.window.replace(window) != window {
            guest.begun.set(0);
            guest.most.set(under_way);
            guest.counts.set(false);
        }
        let counts = guest.begun.get() >= SHALLOW_BUSY && guest.most.get() <= SHALLOW_MOST;
        match (guest.counts.replace(counts), counts) {
            (false, true) => self.shallow.set(self.shallow.get() + 1),
            (true, false) => self.shallow.set(self.shallow.get() - 1),
            _ => {}
        }
        self.shallow.get().max(self.before.get()) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::{CROWD_WINDOW, Crowd, Guest, Nanos, SHALLOW_BUSY, SHALLOW_BYTES, SHALLOW_MOST};

    /// Begins so many in the window, each with `under_way`; what it then sees.
    fn ask(crowd: &Crowd, guest: &Guest, window: u64, begun: usize, under_way: usize) -> bool {
        let now = Nanos(CROWD_WINDOW.0 * window);
        crowd.has_shallow(now, guest, under_way);
        (0..begun).for_each(|_| guest.begins(SHALLOW_BYTES, under_way));
        crowd.has_shallow(now, guest, under_way)
    }

    #[test]
    fn only_busy_clients_of_few_requests_at_once_make_others_wait() {
        let (crowd, deep, other, large): (Crowd, Guest, Guest, Guest) = Default::default();
        let sees = |window| ask(&crowd, &deep, window, 100, SHALLOW_MOST + 1);
        assert!(!sees(0));
        // Too seldom, too many at once.
        assert!(!ask(&crowd, &other, 0, SHALLOW_BUSY - 1, 1) && !sees(0));
        assert!(!ask(&crowd, &other, 1, SHALLOW_BUSY, SHALLOW_MOST + 1) && !sees(1));
        // Too large.
        ask(&crowd, &large, 1, 0, 0);
        (0..SHALLOW_BUSY).for_each(|_| large.begins(SHALLOW_BYTES + 1, 1));
        assert!(!ask(&crowd, &large, 1, SHALLOW_BUSY - 1, 1) && !sees(1));
        // Seen at once, in the next window, and no longer.
        assert!(ask(&crowd, &other, 2, SHALLOW_BUSY, SHALLOW_MOST) && sees(2) && sees(3));
        assert!(!sees(4));
        assert!(ask(&crowd, &other, 5, SHALLOW_BUSY, 1));
        assert!(!sees(7));
        // One that becomes deep does not count any more.
        assert!(ask(&crowd, &other, 9, SHALLOW_BUSY, 1) && sees(9));
        assert!(!ask(&crowd, &other, 9, 1, SHALLOW_MOST + 1) && !sees(9));
    }
}

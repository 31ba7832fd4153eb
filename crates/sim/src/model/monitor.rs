//! Linearizability of one block, decided while the run goes on.
//!
//! Keeps the set of all (content, writes that have taken effect, outcome of the read under way)
//! that some linearization of the events so far allows: a subset construction. A write without an
//! answer may take effect now, later or never. The history is linearizable as long as the set is
//! not empty. The initial content is value 0, write `w` stores value `w`, every value is unique.

/// Writes in one history.
pub const WRITES: usize = 3;

/// (content, mask of the writes that took effect): the content is the last of these, or 0.
const CONFIGS: usize = 13;
const TABLE: [(u8, u8); CONFIGS] = table();
/// No read under way, or one whose value is not chosen yet; else 1 + the value.
const OUTCOMES: usize = 2 + WRITES;
const _: () = assert!(CONFIGS * OUTCOMES <= 128, "the set is one u128");

const fn table() -> [(u8, u8); CONFIGS] {
    let mut out = [(0, 0); CONFIGS];
    let mut next = 1;
    let mut taken = 1u8;
    while taken < 1 << WRITES {
        let mut value = 1u8;
        while value as usize <= WRITES {
            if taken >> (value - 1) & 1 == 1 {
                out[next] = (value, taken);
                next += 1;
            }
            value += 1;
        }
        taken += 1;
    }
    assert!(next == CONFIGS);
    out
}

fn place(value: u8, taken: u8) -> usize {
    TABLE.iter().position(|&c| c == (value, taken)).expect("content is one of the taken writes")
}

/// The possible pasts of one block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Monitor {
    possible: u128,
    invoked: u8,
    reading: bool,
}

impl Monitor {
    /// A block that holds value 0.
    pub const NEW: Self = Self { possible: 1, invoked: 0, reading: false };

    /// Whether some linearization explains everything so far.
    pub fn is_linearizable(&self) -> bool {
        self.possible != 0
    }

    /// A client begins write `w`.
    pub fn write_begins(&mut self, w: u8) {
        self.invoked |= 1 << (w - 1);
        self.close();
    }

    /// Write `w` was acknowledged: it has taken effect.
    pub fn write_ends(&mut self, w: u8) {
        self.keep(|taken, _| taken >> (w - 1) & 1 == 1);
    }

    /// A read begins; at most one is under way.
    pub fn read_begins(&mut self) {
        assert!(!self.reading, "one read at a time");
        self.reading = true;
        self.close();
    }

    /// The read under way returned `value`; anything that no write stored fits nothing.
    pub fn read_ends(&mut self, value: u8) {
        assert!(self.reading, "a read that nobody began");
        self.keep(|_, outcome| outcome == usize::from(value) + 1);
        self.read_is_given_up();
    }

    /// The read under way will never be answered.
    pub fn read_is_given_up(&mut self) {
        let mut folded = 0;
        for outcome in 0..OUTCOMES {
            folded |= self.possible >> (outcome * CONFIGS) & ((1 << CONFIGS) - 1);
        }
        self.possible = folded;
        self.reading = false;
        self.close();
    }

    fn keep(&mut self, fits: impl Fn(u8, usize) -> bool) {
        for bit in 0..CONFIGS * OUTCOMES {
            if !fits(TABLE[bit % CONFIGS].1, bit / CONFIGS) {
                self.possible &= !(1 << bit);
            }
        }
        self.close();
    }

    /// Adds what follows when pending writes, and the read, take effect now.
    fn close(&mut self) {
        let mut todo = self.possible;
        while todo != 0 {
            let bit = todo.trailing_zeros() as usize;
            todo &= todo - 1;
            let (value, taken) = TABLE[bit % CONFIGS];
            let outcome = bit / CONFIGS;
            let mut add = |value, taken, outcome: usize| {
                let new = 1u128 << (outcome * CONFIGS + place(value, taken));
                if self.possible & new == 0 {
                    self.possible |= new;
                    todo |= new;
                }
            };
            if self.reading && outcome == 0 {
                add(value, taken, usize::from(value) + 1);
            }
            for w in 1..=WRITES as u8 {
                let this = 1 << (w - 1);
                if self.invoked & this != 0 && taken & this == 0 {
                    add(w, taken | this, outcome);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Monitor;

    #[test]
    fn an_unanswered_write_may_appear_once_and_never_vanish() {
        let mut m = Monitor::NEW;
        m.write_begins(1);
        for value in [0, 1, 1] {
            m.read_begins();
            m.read_ends(value);
            assert!(m.is_linearizable());
        }
        m.read_begins();
        m.read_ends(0);
        assert!(!m.is_linearizable());
    }

    #[test]
    fn an_acknowledged_write_is_seen_by_every_later_read() {
        let mut m = Monitor::NEW;
        m.write_begins(1);
        m.read_begins();
        m.write_ends(1);
        let mut overlapping = m;
        overlapping.read_ends(0);
        assert!(overlapping.is_linearizable(), "the read began before the acknowledgement");
        m.read_is_given_up();
        m.read_begins();
        m.read_ends(0);
        assert!(!m.is_linearizable());
    }

    #[test]
    fn a_value_that_nobody_wrote_is_refused() {
        let mut m = Monitor::NEW;
        m.write_begins(1);
        m.read_begins();
        m.read_ends(2);
        assert!(!m.is_linearizable());
    }
}

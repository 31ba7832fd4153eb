//! A modelled core: one server that `charge` queues on.

use atoll_world::Nanos;
use std::cell::Cell;

/// One core of a host.
#[derive(Default)]
pub struct Cpu {
    free_at: Cell<Nanos>,
    starved: Cell<u64>,
}

impl Cpu {
    /// When `work` that is asked for at `now` is done.
    pub fn charge(&self, now: Nanos, work: Nanos) -> Nanos {
        let done = self.free_at.get().max(now) + work * self.starved.get().max(1);
        self.free_at.set(done);
        done
    }

    /// From now on work takes that many times as long.
    pub fn set_starved(&self, factor: u64) {
        self.starved.set(factor);
    }

    /// Nothing waits any more: its process has ended.
    pub fn reset(&self) {
        self.free_at.set(Nanos::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use super::{Cpu, Nanos};

    #[test]
    fn work_queues_on_a_core() {
        let cpu = Cpu::default();
        assert_eq!(cpu.charge(Nanos(100), Nanos(10)), Nanos(110));
        assert_eq!(cpu.charge(Nanos(100), Nanos(10)), Nanos(120));
        cpu.set_starved(5);
        assert_eq!(cpu.charge(Nanos(500), Nanos(10)), Nanos(550));
    }
}

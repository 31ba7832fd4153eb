//! A modelled core: one server that `charge` queues on.

use atoll_world::Nanos;
use std::cell::Cell;

/// What [`Cpu::set_cost`] takes for work that costs what the product says.
pub const AS_CHARGED: u64 = 1_000;

/// One core of a host.
pub struct Cpu {
    free_at: Cell<Nanos>,
    starved: Cell<u64>,
    cost_per_mille: Cell<u64>,
    booked: Cell<Nanos>,
}

impl Default for Cpu {
    fn default() -> Self {
        Self {
            free_at: Cell::default(),
            starved: Cell::new(1),
            cost_per_mille: Cell::new(AS_CHARGED),
            booked: Cell::default(),
        }
    }
}

impl Cpu {
    /// When `work` that the product charges at `now` is done.
    pub fn charge(&self, now: Nanos, work: Nanos) -> Nanos {
        self.spend(now, work * self.cost_per_mille.get() / AS_CHARGED)
    }

    /// When work that takes that much of its time is done, asked for at `now`.
    pub fn spend(&self, now: Nanos, time: Nanos) -> Nanos {
        let time = time * self.starved.get().max(1);
        let done = self.free_at.get().max(now) + time;
        self.booked.set(self.booked.get() + time);
        self.free_at.set(done);
        done
    }

    /// From now on work takes that many times as long.
    pub fn set_starved(&self, factor: u64) {
        self.starved.set(factor);
    }

    /// From now on the product's work costs so many thousandths of what it charges: the product
    /// knows the proportions, a measurement the sum (system calls, the kernel's network).
    pub fn set_cost(&self, per_mille: u64) {
        self.cost_per_mille.set(per_mille);
    }

    /// For how long it has been at work up to `now`.
    pub fn busy(&self, now: Nanos) -> Nanos {
        self.booked.get() - self.free_at.get().since(now)
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
        cpu.set_starved(1);
        cpu.set_cost(12_500);
        assert_eq!(cpu.charge(Nanos(600), Nanos(10)), Nanos(725));
        assert_eq!(cpu.spend(Nanos(600), Nanos(10)), Nanos(735));
        assert_eq!(cpu.busy(Nanos(700)), Nanos(10 + 10 + 50 + 100), "the rest is still to come");
    }
}

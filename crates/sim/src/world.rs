//! One shard of one life of one simulated host, as the product's code sees it.

use crate::clock::Clock;
use crate::cpu::Cpu;
use crate::directory::SimDirectory;
use crate::disk::SimDisk;
use crate::executor::{Executor, LifeId};
use crate::net::SimNet;
use crate::rng::Rng;
use atoll_world::{Nanos, World};
use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;

struct Inner {
    executor: Executor,
    life: LifeId,
    shard: u8,
    clock: Rc<Clock>,
    cpu: Rc<Cpu>,
    rng: RefCell<Rng>,
    net: SimNet,
    directory: SimDirectory,
}

/// The [`World`] of one shard of a life of a host; clones are the same.
#[derive(Clone)]
pub struct SimWorld(Rc<Inner>);

impl SimWorld {
    /// Puts the parts of shard 0 together.
    pub fn new(
        executor: &Executor,
        life: LifeId,
        clock: Rc<Clock>,
        cpu: Rc<Cpu>,
        rng: Rng,
        net: SimNet,
        directory: SimDirectory,
    ) -> Self {
        let rng = RefCell::new(rng);
        let executor = executor.clone();
        Self(Rc::new(Inner { executor, life, shard: 0, clock, cpu, rng, net, directory }))
    }

    /// The world of one more shard of the same process, with its number, on a core of its own.
    /// Shards are made in order.
    #[must_use]
    pub(crate) fn of_next_shard(&self, shard: u8, cpu: Rc<Cpu>) -> Self {
        let Inner { executor, life, clock, net, directory, .. } = &*self.0;
        let rng = RefCell::new(self.0.rng.borrow_mut().fork());
        Self(Rc::new(Inner {
            executor: executor.clone(),
            life: *life,
            shard,
            clock: clock.clone(),
            cpu,
            rng,
            net: net.of_next_shard(),
            directory: directory.clone(),
        }))
    }

    /// Which life it is.
    pub fn life(&self) -> LifeId {
        self.0.life
    }
}

impl World for SimWorld {
    type Disk = SimDisk;
    type Net = SimNet;
    type Directory = SimDirectory;

    fn now(&self) -> Nanos {
        self.0.clock.show(self.0.executor.now())
    }

    fn unix_ms(&self) -> u64 {
        self.0.clock.wall_ms(self.0.executor.now())
    }

    async fn sleep_until(&self, at: Nanos) {
        // Again, because the clock's rate may have changed meanwhile.
        while self.now() < at {
            let when = self.0.clock.when(at).max(self.0.executor.now() + Nanos(1));
            self.0.executor.sleep_until(when).await;
        }
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.0.executor.spawn_in(self.0.life, self.0.shard, task);
    }

    fn bound(&self, usual: usize, small: usize) -> usize {
        if self.0.executor.is_small() { small } else { usual }
    }

    fn audits(&self) -> bool {
        // A client of the harness may still ask of an ended life, after its host's clock has begun
        // anew.
        self.0.executor.is_alive(self.0.life) && self.0.executor.audits()
    }

    fn random(&self) -> u64 {
        self.0.rng.borrow_mut().next()
    }

    async fn charge(&self, cpu: Nanos) {
        if cpu > Nanos::ZERO {
            let done = self.0.cpu.charge(self.0.executor.now(), cpu);
            self.0.executor.sleep_until(done).await;
        }
    }

    fn core_time(&self) -> Nanos {
        self.0.cpu.busy(self.0.executor.now())
    }

    fn net(&self) -> &SimNet {
        &self.0.net
    }

    fn directory(&self) -> &SimDirectory {
        &self.0.directory
    }
}

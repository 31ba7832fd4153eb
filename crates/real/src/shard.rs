//! A shard: one thread, one single-threaded runtime, one world. Time, chance and tasks.

use crate::clock;
use crate::disk::RealDisk;
use crate::net::RealNet;
use crate::{busy_poll, timers, uring};
use atoll_world::{Directory, Nanos, Stages, World};
use rand::rngs::{StdRng, SysRng};
use rand::{Rng, SeedableRng};
use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::thread::{Builder, JoinHandle};

/// The real world. Lives on one thread, inside [`run`] or [`Shard::start`].
pub struct RealWorld<D>(Rc<WorldState<D>>);

struct WorldState<D> {
    net: RealNet,
    directory: D,
    random: RefCell<StdRng>,
    stages: Stages,
}

impl<D> Clone for RealWorld<D> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<D: Directory> RealWorld<D> {
    /// A world that talks to peers through `net` and knows the cluster through `directory`.
    ///
    /// # Errors
    /// The system gives no entropy.
    pub fn new(net: RealNet, directory: D) -> io::Result<Self> {
        let random = StdRng::try_from_rng(&mut SysRng).map_err(io::Error::other)?;
        Ok(Self(Rc::new(WorldState {
            net,
            directory,
            random: RefCell::new(random),
            stages: Stages::default(),
        })))
    }
}

impl<D: Directory> World for RealWorld<D> {
    type Disk = RealDisk;
    type Net = RealNet;
    type Directory = D;

    fn now(&self) -> Nanos {
        clock::now()
    }
    fn unix_ms(&self) -> u64 {
        clock::unix_ms()
    }
    async fn sleep_until(&self, at: Nanos) {
        timers::Timer::at(at).await;
    }
    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        tokio::task::spawn_local(task);
    }
    fn random(&self) -> u64 {
        self.0.random.borrow_mut().next_u64()
    }
    async fn charge(&self, _cpu: Nanos) {}
    fn core_time(&self) -> Nanos {
        busy_poll::core_time()
    }
    fn net(&self) -> &RealNet {
        &self.0.net
    }
    fn directory(&self) -> &D {
        &self.0.directory
    }
    fn request_begins(&self, bytes: usize) {
        busy_poll::request_begins(bytes);
    }
    fn request_ends(&self, bytes: usize) {
        busy_poll::request_ends(bytes);
    }
    fn stages(&self) -> Option<&Stages> {
        Some(&self.0.stages)
    }
}

/// Runs `main` and everything it spawns on this thread until `main` ends; what it spawned ends
/// with it.
///
/// # Errors
/// No runtime can be made (no file descriptors left).
pub fn run<T>(main: impl Future<Output = T>) -> io::Result<T> {
    // Not a `LocalSet` on a runtime: a task that I/O wakes would go through a lock and write to
    // the runtime's eventfd each time.
    let mut builder = tokio::runtime::Builder::new_current_thread();
    // The kernel interrupts a wait to complete an operation of the ring; it need not be waited for
    // once more to hear of that.
    builder.on_thread_park(uring::look);
    let runtime = builder.enable_all().build_local(tokio::runtime::LocalOptions::default())?;
    runtime.block_on(async {
        tokio::task::spawn_local(timers::keep(timers::Alarm::new()?));
        tokio::task::spawn_local(busy_poll::keep());
        Ok(main.await)
    })
}

/// A thread that runs a shard, as long as the program: small memory that it has freed stays its
/// own.
pub struct Shard<T>(JoinHandle<io::Result<T>>);

impl<T: Send + 'static> Shard<T> {
    /// Starts a thread named `name` that [`run`]s what `main` makes there.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start<F, M>(name: &str, main: M) -> io::Result<Self>
    where
        F: Future<Output = T>,
        M: FnOnce() -> F + Send + 'static,
    {
        let builder = Builder::new().name(name.to_owned());
        Ok(Self(builder.spawn(move || run(async { main().await }))?))
    }

    /// What `main` returned. Blocks until it has ended.
    ///
    /// # Errors
    /// No runtime could be made.
    ///
    /// # Panics
    /// If the shard panicked.
    pub fn join(self) -> io::Result<T> {
        match self.0.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Shard, run};
    use crate::clock::{now, unix_ms};
    use crate::timers::sleep_until;
    use atoll_world::Nanos;

    #[test]
    fn sleeping_ends_after_its_moment_and_clocks_agree_between_shards() {
        let other = Shard::start("other", || async {
            let at = now() + Nanos::from_ms(20);
            sleep_until(at).await;
            sleep_until(at).await;
            (at, now())
        })
        .unwrap();
        let (at, after) = other.join().unwrap();
        assert!(at <= after && after <= now());
        assert!(unix_ms() > 1_700_000_000_000);
    }

    #[test]
    fn tasks_end_with_their_shard() {
        let held = std::rc::Rc::new(());
        let inside = held.clone();
        run(async move {
            tokio::task::spawn_local(async move {
                sleep_until(Nanos::NEVER).await;
                drop(inside);
            });
            tokio::task::yield_now().await;
        })
        .unwrap();
        assert_eq!(std::rc::Rc::strong_count(&held), 1);
    }
}

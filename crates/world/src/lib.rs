//! The seams between Atoll's logic and everything else: time, chance, disks, messages, the
//! directory (below), components (between) and volumes (above).
//!
//! Nothing above this crate may ask the operating system for time, chance or bytes. The *real*
//! world implements these traits with io_uring, TCP and the boot-time clock; the *simulated* one
//! with virtual time, modelled hardware and injected faults. The same code runs in both.
//!
//! Absent here: any decision.

pub mod buf;
pub mod components;
pub mod directory;
pub mod disk;
pub mod mutant;
pub mod net;
pub mod stages;
pub mod stream;
pub mod sync;
pub mod task_set;
pub mod time;
pub mod volume;

pub use buf::{Buf, BufMut};
pub use components::{Components, StoreError};
pub use directory::{Directory, DirectoryError};
pub use disk::{Disk, Durability};
pub use net::{Conn, Lane, Net, Packet};
pub use stages::{Stage, Stages};
pub use time::{Elapsed, Nanos};
pub use volume::{Volume, VolumeError};

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

#[allow(clippy::disallowed_types, reason = "the hasher is fixed; used for look-ups only")]
/// A map without random iteration order surprises on hot paths: look-ups only, never iterated.
pub type FixedMap<K, V> = std::collections::HashMap<K, V, rustc_hash::FxBuildHasher>;
#[allow(clippy::disallowed_types, reason = "as for `FixedMap`")]
/// The same, of keys alone.
pub type FixedSet<K> = std::collections::HashSet<K, rustc_hash::FxBuildHasher>;

/// The only door to the outside. One clone per task; all clones of a shard are the same world.
pub trait World: Clone + 'static {
    /// Block devices.
    type Disk: Disk;
    /// Messages to other hosts.
    type Net: Net;
    /// Cluster state.
    type Directory: Directory;

    /// Time since this world began. Monotonic, goes on while the machine is suspended
    /// (`CLOCK_BOOTTIME`), never wall-clock.
    fn now(&self) -> Nanos;
    /// Milliseconds since 1970, for people and records; nothing is decided by it.
    fn unix_ms(&self) -> u64;
    /// Returns at `at` or soon after; at once if it has passed.
    fn sleep_until(&self, at: Nanos) -> impl Future<Output = ()>;
    /// Runs `task` on this shard until it ends or the host stops.
    fn spawn(&self, task: impl Future<Output = ()> + 'static);
    /// 64 random bits.
    fn random(&self) -> u64;
    /// A bound on a page, a list, a piece or a round: `usual`, here. In the simulator half of the
    /// seeds have `small`, so that what is paged, split or capped is crossed all the time.
    #[inline]
    fn bound(&self, usual: usize, _small: usize) -> usize {
        usual
    }
    /// Whether invariants that are too dear to be checked always are checked at this moment: never,
    /// here. In the simulator now and then, so that a wrong count is found where it was made.
    #[inline]
    fn audits(&self) -> bool {
        false
    }
    /// Spends CPU time on this shard: queues on the modelled core in `sim`, nothing in `real`.
    fn charge(&self, cpu: Nanos) -> impl Future<Output = ()>;
    /// For how long this shard's core has worked since the shard began, without what went into
    /// looking for more work; zero where nobody measures that.
    fn core_time(&self) -> Nanos {
        Nanos::ZERO
    }
    /// This host's connections.
    fn net(&self) -> &Self::Net;
    /// The cluster's state.
    fn directory(&self) -> &Self::Directory;

    /// A request of a client or, on the data lane, of a peer, with so many bytes of data, is being
    /// worked on from now on: the more of them, and the larger, the less each waits for.
    fn request_begins(&self, _bytes: usize) {}
    /// One of so many bytes has ended.
    fn request_ends(&self, _bytes: usize) {}

    /// Where it is noted how long the stages of I/O take; none: nobody asks.
    fn stages(&self) -> Option<&Stages> {
        None
    }

    /// When a stage that now begins did so, if this one is to be noted.
    fn stage(&self, stage: Stage) -> Option<Nanos> {
        self.stages().filter(|stages| stages.samples(stage)).map(|_| self.now())
    }

    /// A stage ends that began then, by [`World::stage`].
    fn end_stage(&self, stage: Stage, begun: Option<Nanos>) {
        if let (Some(stages), Some(begun)) = (self.stages(), begun) {
            stages.note(stage, self.now().since(begun));
        }
    }

    /// Sleeps for `span`.
    fn sleep(&self, span: Nanos) -> impl Future<Output = ()> {
        self.sleep_until(self.now() + span)
    }

    /// `task`, carried through whatever becomes of who waits for it: if what this returns is
    /// dropped before the end, the rest runs on its own.
    fn persist<T: 'static>(&self, task: impl Future<Output = T> + 'static) -> Persist<Self, T> {
        Persist { world: self.clone(), task: Some(Box::pin(task)) }
    }

    /// `task`'s result, or [`Elapsed`] once `at` has passed; the task is dropped then.
    fn timeout_at<F: Future>(
        &self,
        at: Nanos,
        task: F,
    ) -> impl Future<Output = Result<F::Output, Elapsed>> {
        use futures_util::future::{Either, select};
        async move {
            let task = std::pin::pin!(task);
            let timer = std::pin::pin!(self.sleep_until(at));
            // `select` polls its first argument first: a result that is there beats the clock.
            match select(task, timer).await {
                Either::Left((out, _)) => Ok(out),
                Either::Right(((), _)) => Err(Elapsed),
            }
        }
    }
}

/// See [`World::persist`].
pub struct Persist<W: World, T: 'static> {
    world: W,
    /// None once it has ended.
    task: Option<Pin<Box<dyn Future<Output = T>>>>,
}

impl<W: World, T> Unpin for Persist<W, T> {}

impl<W: World, T> Future for Persist<W, T> {
    type Output = T;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let task = self.task.as_mut().expect("not polled after its end");
        let result = task.as_mut().poll(cx);
        if result.is_ready() {
            self.task = None;
        }
        result
    }
}

impl<W: World, T> Drop for Persist<W, T> {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            self.world.spawn(async move {
                task.await;
            });
        }
    }
}

/// Marks a state that some test or seed must reach. Costs a relaxed add.
#[macro_export]
macro_rules! sometimes {
    ($name:literal) => {{
        static MARK: $crate::mark::Mark = $crate::mark::Mark::new($name);
        MARK.hit();
    }};
}

/// Whether the deliberate flaw of that name is switched on. `false` to the compiler, which drops
/// the flaw, unless the feature `mutants` is on: the simulator's, never the program's.
#[macro_export]
macro_rules! mutant {
    ($name:literal) => {
        $crate::mutant::is_on($name)
    };
}

pub mod mark {
    //! Coverage marks: which rare states a run has reached.

    use std::cell::RefCell;
    use std::rc::Rc;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    /// Hears of each mark that its thread reaches.
    type Observer = Rc<dyn Fn(&'static str)>;

    /// Whether some thread has ever had an observer: where none is, a mark costs no more.
    static OBSERVED: AtomicBool = AtomicBool::new(false);

    thread_local! {
        static OBSERVER: RefCell<Option<Observer>> = const { RefCell::new(None) };
    }

    static ALL: Mutex<Vec<&'static Mark>> = Mutex::new(Vec::new());

    /// One place in the code with a name; made by [`sometimes!`](crate::sometimes).
    pub struct Mark {
        name: &'static str,
        hits: AtomicU64,
    }

    impl Mark {
        /// For the macro.
        pub const fn new(name: &'static str) -> Self {
            Self { name, hits: AtomicU64::new(0) }
        }
        /// Counts one visit.
        pub fn hit(&'static self) {
            if self.hits.fetch_add(1, Ordering::Relaxed) == 0 {
                ALL.lock().expect("a mark never panics while it holds the lock").push(self);
            }
            if OBSERVED.load(Ordering::Relaxed) {
                let observer = OBSERVER.with_borrow(Clone::clone);
                if let Some(observer) = observer {
                    observer(self.name);
                }
            }
        }
    }

    /// Calls `observer` at every mark that this thread reaches from now on; none: nobody.
    pub fn observe(observer: Option<Observer>) {
        if observer.is_some() {
            OBSERVED.store(true, Ordering::Relaxed);
        }
        OBSERVER.set(observer);
    }

    /// Every mark reached in this process, by name, with its count.
    pub fn reached() -> std::collections::BTreeMap<&'static str, u64> {
        let all = ALL.lock().expect("a mark never panics while it holds the lock");
        all.iter().map(|m| (m.name, m.hits.load(Ordering::Relaxed))).collect()
    }
}

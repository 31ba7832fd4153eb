//! One thread, virtual nanoseconds, and chance in place of a scheduler.
//!
//! Tasks belong to a *life* of a host, and to a shard of it. Killing a life drops its tasks in the
//! order of their birth and everything they own; pausing it, or one of its shards, leaves them
//! unpolled while time and timers go on. Among the tasks that are ready at one moment the next is
//! picked by seed: that is how races are found.
//!
//! Invariants: time never goes back, and moves only when no task is ready; timers of one moment
//! fire in the order in which they were set; the same seed makes the same choices.

use crate::rng::Rng;
use crate::trace::Trace;
use atoll_world::Nanos;
use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

/// Polls of one moment after which the run counts as caught in a loop: the busiest moment of a
/// simulated cluster takes a few thousand.
const POLLS_PER_MOMENT_MAX: u64 = 3_000_000;
/// Of so many questions whether a dear check is due, one is answered with yes.
const AUDIT_EVERY: u32 = 32;
/// Cancelled timers kept in the heap before it is cleaned.
const CANCELLED_TIMERS_MAX: usize = 4096;

/// A life of a host; [`LifeId::HARNESS`] is the simulator itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct LifeId(u32);

impl LifeId {
    /// Tasks of the harness: they never die and never pause.
    pub const HARNESS: Self = Self(0);
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// Indices of tasks to poll. A waker has to be `Send`, hence the lock; it is never contended.
type Ready = Mutex<Vec<(u32, u64)>>;

struct Handle {
    index: u32,
    birth: u64,
    queued: AtomicBool,
    ready: Arc<Ready>,
}

impl Wake for Handle {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            let mut ready = self.ready.lock().expect("nothing panics while holding it");
            ready.push((self.index, self.birth));
        }
    }
}

struct Slot {
    birth: u64,
    life: LifeId,
    shard: u8,
    handle: Arc<Handle>,
    waker: Option<Waker>,
    /// None while it is being polled, or when the slot is free.
    task: Option<Task>,
}

#[derive(Default)]
struct Tasks {
    slots: Vec<Slot>,
    free: Vec<u32>,
    births: u64,
    alive: usize,
}

struct Life {
    host: u16,
    alive: bool,
    paused: bool,
    /// Shards that are paused by themselves.
    paused_shards: BTreeSet<u8>,
    parked: Vec<(u32, u64)>,
    /// After that many more polls of this life, the action runs.
    trap: Option<(u64, Box<dyn FnOnce()>)>,
}

impl Life {
    fn new(host: u16) -> Self {
        Self {
            host,
            alive: true,
            paused: false,
            paused_shards: BTreeSet::new(),
            parked: Vec::new(),
            trap: None,
        }
    }
}

enum Due {
    Nothing,
    Wake(Waker),
    Call(Box<dyn FnOnce()>),
}

struct Timer {
    seq: u64,
    due: Due,
}

#[derive(Default)]
struct Timers {
    heap: BinaryHeap<Reverse<(u64, u64, u32)>>,
    slots: Vec<Timer>,
    free: Vec<u32>,
    seqs: u64,
}

impl Timers {
    fn set(&mut self, at: Nanos, due: Due) -> (u32, u64) {
        self.seqs += 1;
        let seq = self.seqs;
        let timer = Timer { seq, due };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = timer;
                slot
            }
            None => {
                self.slots.push(timer);
                (self.slots.len() - 1) as u32
            }
        };
        self.heap.push(Reverse((at.0, seq, slot)));
        (slot, seq)
    }

    fn take(&mut self, slot: u32, seq: u64) -> Due {
        let timer = &mut self.slots[slot as usize];
        if timer.seq != seq {
            return Due::Nothing;
        }
        timer.seq = 0;
        self.free.push(slot);
        std::mem::replace(&mut timer.due, Due::Nothing)
    }

    fn clean(&mut self) {
        let live = self.slots.len() - self.free.len();
        if self.heap.len() > 2 * live + CANCELLED_TIMERS_MAX {
            let slots = &self.slots;
            self.heap.retain(|Reverse((_, seq, slot))| slots[*slot as usize].seq == *seq);
        }
    }
}

struct Inner {
    now: Cell<u64>,
    tasks: RefCell<Tasks>,
    ready: Arc<Ready>,
    timers: RefCell<Timers>,
    lives: RefCell<Vec<Life>>,
    schedule: RefCell<Rng>,
    trace: Trace,
    polls: Cell<u64>,
    polls_max: Cell<u64>,
    polls_of_moment: Cell<u64>,
    small: Cell<bool>,
    audits_asked: Cell<u32>,
    polled: Cell<LifeId>,
}

/// The executor; clones are the same.
#[derive(Clone)]
pub struct Executor(Rc<Inner>);

impl Executor {
    /// Nothing to do yet, at time zero.
    pub fn new(seed: u64, trace: Trace) -> Self {
        let harness = Life::new(u16::MAX);
        Self(Rc::new(Inner {
            now: Cell::new(0),
            tasks: RefCell::default(),
            ready: Arc::default(),
            timers: RefCell::default(),
            lives: RefCell::new(vec![harness]),
            schedule: RefCell::new(Rng::named(seed, "schedule")),
            trace,
            polls: Cell::new(0),
            polls_max: Cell::new(u64::MAX),
            polls_of_moment: Cell::new(0),
            small: Cell::new(false),
            audits_asked: Cell::new(0),
            polled: Cell::new(LifeId::HARNESS),
        }))
    }

    /// Whose task is being polled.
    pub fn polled(&self) -> LifeId {
        self.0.polled.get()
    }

    /// Bounds are small from now on: see [`World::bound`](atoll_world::World::bound).
    pub fn set_small(&self) {
        self.0.small.set(true);
    }

    /// Whether they are.
    pub fn is_small(&self) -> bool {
        self.0.small.get()
    }

    /// Whether it is time for a dear check: see [`World::audits`](atoll_world::World::audits).
    /// Decided by a count, so that a run can be repeated.
    pub fn audits(&self) -> bool {
        let asked = self.0.audits_asked.get().wrapping_add(1);
        self.0.audits_asked.set(asked);
        asked.is_multiple_of(AUDIT_EVERY)
    }

    /// The simulator's time, the same for everybody (hosts see theirs through a clock).
    pub fn now(&self) -> Nanos {
        Nanos(self.0.now.get())
    }

    /// The trace of this run.
    pub fn trace(&self) -> &Trace {
        &self.0.trace
    }

    /// Polls so far.
    pub fn polls(&self) -> u64 {
        self.0.polls.get()
    }

    /// A run that takes more polls than that ends as [`Stuck::Busy`].
    pub fn set_polls_max(&self, polls: u64) {
        self.0.polls_max.set(polls);
    }

    /// Tasks that have not ended.
    pub fn tasks_alive(&self) -> usize {
        self.0.tasks.borrow().alive
    }

    /// A new life of `host`.
    pub fn new_life(&self, host: u16) -> LifeId {
        let mut lives = self.0.lives.borrow_mut();
        lives.push(Life::new(host));
        LifeId((lives.len() - 1) as u32)
    }

    /// Whether it has not been killed.
    pub fn is_alive(&self, life: LifeId) -> bool {
        self.0.lives.borrow()[life.0 as usize].alive
    }

    /// Whether it is paused.
    pub fn is_paused(&self, life: LifeId) -> bool {
        self.0.lives.borrow()[life.0 as usize].paused
    }

    /// Runs `task` in shard 0 of `life`; see [`Executor::spawn_in`].
    pub fn spawn(&self, life: LifeId, task: impl Future<Output = ()> + 'static) {
        self.spawn_in(life, 0, task);
    }

    /// Runs `task` until it ends or its life does; dropped at once if the life has ended.
    pub fn spawn_in(&self, life: LifeId, shard: u8, task: impl Future<Output = ()> + 'static) {
        if !self.is_alive(life) {
            return;
        }
        let task: Task = Box::pin(task);
        let mut tasks = self.0.tasks.borrow_mut();
        tasks.births += 1;
        tasks.alive += 1;
        let birth = tasks.births;
        let index = tasks.free.pop().unwrap_or(tasks.slots.len() as u32);
        let handle = Arc::new(Handle {
            index,
            birth,
            queued: AtomicBool::new(false),
            ready: self.0.ready.clone(),
        });
        let waker = Some(Waker::from(handle.clone()));
        handle.wake_by_ref();
        let slot = Slot { birth, life, shard, handle, waker, task: Some(task) };
        match tasks.slots.get_mut(index as usize) {
            Some(free) => *free = slot,
            None => tasks.slots.push(slot),
        }
    }

    /// Runs `call` at `at`, whatever happens to the hosts: devices and wires, not programs.
    pub fn call_at(&self, at: Nanos, call: impl FnOnce() + 'static) {
        self.0.timers.borrow_mut().set(at.max(self.now()), Due::Call(Box::new(call)));
    }

    /// Returns at `at`.
    pub fn sleep_until(&self, at: Nanos) -> Sleep {
        Sleep { executor: self.clone(), at, timer: None }
    }

    /// Ends a life: its tasks are dropped, oldest first, between two polls. Must not be called
    /// from a task of that life.
    pub fn kill(&self, life: LifeId) {
        assert_ne!(life, LifeId::HARNESS, "the harness does not die");
        let trap = {
            let mut lives = self.0.lives.borrow_mut();
            let life = &mut lives[life.0 as usize];
            life.alive = false;
            life.parked.clear();
            life.trap.take()
        };
        drop(trap);
        self.drop_tasks(Some(life));
    }

    fn drop_tasks(&self, of: Option<LifeId>) {
        // A destructor may spawn (refused: the life is over) or wake, never end another task;
        // still they are taken one by one, with nothing borrowed while user code runs.
        let mut doomed: Vec<(u64, u32)> = {
            let tasks = self.0.tasks.borrow();
            let of_life = |s: &Slot| s.task.is_some() && of.is_none_or(|life| s.life == life);
            let slots = tasks.slots.iter().filter(|s| of_life(s));
            slots.map(|s| (s.birth, s.handle.index)).collect()
        };
        doomed.sort_unstable();
        for (birth, index) in doomed {
            let task = self.take_slot(index, birth);
            drop(task);
        }
    }

    fn take_slot(&self, index: u32, birth: u64) -> Option<Task> {
        let mut tasks = self.0.tasks.borrow_mut();
        let slot = &mut tasks.slots[index as usize];
        if slot.birth != birth {
            return None;
        }
        slot.birth = 0;
        slot.waker = None;
        let task = slot.task.take();
        tasks.free.push(index);
        tasks.alive -= 1;
        task
    }

    /// Stops polling the tasks of a life; time goes on for it.
    pub fn pause(&self, life: LifeId) {
        self.0.lives.borrow_mut()[life.0 as usize].paused = true;
    }

    /// Goes on with it: everything that became ready meanwhile is ready now.
    pub fn resume(&self, life: LifeId) {
        self.go_on(life, |life| life.paused = false);
    }

    /// Stops polling the tasks of one shard of a life; its other shards and time go on.
    pub fn pause_shard(&self, life: LifeId, shard: u8) {
        self.0.lives.borrow_mut()[life.0 as usize].paused_shards.insert(shard);
    }

    /// Goes on with it, as [`Executor::resume`] does with a life.
    pub fn resume_shard(&self, life: LifeId, shard: u8) {
        self.go_on(life, |life| _ = life.paused_shards.remove(&shard));
    }

    /// Makes everything ready that was parked: what is still paused is parked again.
    fn go_on(&self, life: LifeId, change: impl FnOnce(&mut Life)) {
        let parked = {
            let mut lives = self.0.lives.borrow_mut();
            let life = &mut lives[life.0 as usize];
            change(life);
            std::mem::take(&mut life.parked)
        };
        self.0.ready.lock().expect("nothing panics while holding it").extend(parked);
    }

    /// Runs `action` right after the `polls`-th poll of that life from now: how a crash hits an
    /// await that takes no time.
    pub fn trap(&self, life: LifeId, polls: u64, action: impl FnOnce() + 'static) {
        let mut lives = self.0.lives.borrow_mut();
        if let life @ Life { alive: true, .. } = &mut lives[life.0 as usize] {
            life.trap = Some((polls.max(1), Box::new(action)));
        }
    }

    /// Runs until `main` ends, everything is idle, or `deadline` has come.
    pub fn block_on<T: 'static>(
        &self,
        deadline: Nanos,
        main: impl Future<Output = T> + 'static,
    ) -> Result<T, Stuck> {
        let result = Rc::new(Cell::new(None));
        let (keep, done) = (result.clone(), Rc::new(Cell::new(false)));
        let is_done = done.clone();
        self.spawn(LifeId::HARNESS, async move {
            keep.set(Some(main.await));
            done.set(true);
        });
        let why = self.run(deadline, || is_done.get());
        match result.take() {
            Some(value) => Ok(value),
            None => Err(why.expect("only the end of main stops it without a reason")),
        }
    }

    /// Runs until `deadline`; the time is that afterwards.
    pub fn run_until(&self, deadline: Nanos) {
        if self.run(deadline, || false) == Some(Stuck::Idle) {
            self.0.now.set(deadline.0.max(self.0.now.get()));
        }
    }

    fn run(&self, deadline: Nanos, done: impl Fn() -> bool) -> Option<Stuck> {
        loop {
            while self.poll_one() {
                if done() {
                    return None;
                }
            }
            if done() {
                return None;
            }
            match self.next_moment() {
                None => return Some(Stuck::Idle),
                Some(at) if at > deadline.0 => {
                    self.0.now.set(deadline.0.max(self.0.now.get()));
                    return Some(Stuck::Deadline);
                }
                Some(at) => {
                    self.0.now.set(at);
                    self.0.polls_of_moment.set(0);
                    if self.0.polls.get() > self.0.polls_max.get() {
                        return Some(Stuck::Busy);
                    }
                    self.fire(at);
                }
            }
        }
    }

    fn next_moment(&self) -> Option<u64> {
        let mut timers = self.0.timers.borrow_mut();
        timers.clean();
        loop {
            let &Reverse((at, seq, slot)) = timers.heap.peek()?;
            if timers.slots[slot as usize].seq == seq {
                return Some(at.max(self.0.now.get()));
            }
            timers.heap.pop();
        }
    }

    /// Fires the timers of this moment in the order in which they were set.
    fn fire(&self, now: u64) {
        loop {
            let due = {
                let mut timers = self.0.timers.borrow_mut();
                match timers.heap.peek() {
                    Some(&Reverse((at, seq, slot))) if at <= now => {
                        timers.heap.pop();
                        timers.take(slot, seq)
                    }
                    _ => return,
                }
            };
            match due {
                Due::Nothing => {}
                Due::Wake(waker) => waker.wake(),
                Due::Call(call) => call(),
            }
        }
    }

    fn poll_one(&self) -> bool {
        let picked = {
            let mut ready = self.0.ready.lock().expect("nothing panics while holding it");
            match ready.len() {
                0 => return false,
                1 => ready.pop().expect("there is one"),
                n => {
                    let i = self.0.schedule.borrow_mut().below(n as u64);
                    ready.swap_remove(i as usize)
                }
            }
        };
        let (index, birth) = picked;
        let (mut task, waker, life) = {
            let mut tasks = self.0.tasks.borrow_mut();
            let slot = &mut tasks.slots[index as usize];
            if slot.birth != birth {
                return true; // it ended after it was woken
            }
            if slot.life != LifeId::HARNESS {
                let life = &mut self.0.lives.borrow_mut()[slot.life.0 as usize];
                if life.paused || life.paused_shards.contains(&slot.shard) {
                    life.parked.push(picked);
                    return true; // `queued` stays set: it is parked once
                }
            }
            slot.handle.queued.store(false, Ordering::Relaxed);
            let task = slot.task.take().expect("a task is polled once at a time");
            (task, slot.waker.take().expect("lies with the task"), slot.life)
        };
        self.0.polls.set(self.0.polls.get() + 1);
        self.0.polled.set(life);
        let of_moment = self.0.polls_of_moment.get() + 1;
        self.0.polls_of_moment.set(of_moment);
        assert!(
            of_moment < POLLS_PER_MOMENT_MAX,
            "caught in a loop: {of_moment} polls at {:?} without time passing",
            self.now()
        );
        self.0.trace.mix(self.0.now.get() ^ birth.rotate_left(40));
        match task.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => {
                let mut tasks = self.0.tasks.borrow_mut();
                let slot = &mut tasks.slots[index as usize];
                assert_eq!(slot.birth, birth, "a task cannot end while it is polled");
                slot.task = Some(task);
                slot.waker = Some(waker);
            }
            Poll::Ready(()) => {
                drop(task);
                let _ = self.take_slot(index, birth);
            }
        }
        if life != LifeId::HARNESS {
            self.spring(life);
        }
        true
    }

    fn spring(&self, life: LifeId) {
        let action = {
            let mut lives = self.0.lives.borrow_mut();
            let life = &mut lives[life.0 as usize];
            match &mut life.trap {
                None => return,
                Some((left, _)) if *left > 1 => {
                    *left -= 1;
                    return;
                }
                Some(_) => life.trap.take().expect("just seen").1,
            }
        };
        action();
    }

    /// The host that a life is of.
    pub fn host_of(&self, life: LifeId) -> u16 {
        self.0.lives.borrow()[life.0 as usize].host
    }

    /// Drops every task and timer. Tasks own clones of the executor, so a run that is not shut
    /// down is never freed.
    pub fn shutdown(&self) {
        for life in self.0.lives.borrow_mut().iter_mut().skip(1) {
            life.alive = false;
        }
        self.drop_tasks(None);
        loop {
            let dropped: Vec<Timer> = std::mem::take(&mut self.0.timers.borrow_mut().slots);
            if dropped.is_empty() {
                break;
            }
            {
                let mut timers = self.0.timers.borrow_mut();
                timers.heap.clear();
                timers.free.clear();
            }
            drop(dropped);
        }
    }
}

/// Why [`Executor::block_on`] returned without a result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stuck {
    /// Nothing will ever happen again.
    Idle,
    /// The deadline came first.
    Deadline,
    /// More polls than were allowed: something is done again and again.
    Busy,
}

/// A wait for a moment.
pub struct Sleep {
    executor: Executor,
    at: Nanos,
    timer: Option<(u32, u64)>,
}

impl Sleep {
    /// Moves the moment; used when a host's clock changes its rate.
    pub fn reset(&mut self, at: Nanos) {
        self.cancel();
        self.at = at;
    }

    fn cancel(&mut self) {
        if let Some((slot, seq)) = self.timer.take() {
            let mut timers = self.executor.0.timers.borrow_mut();
            if (slot as usize) < timers.slots.len() {
                let due = timers.take(slot, seq);
                drop(timers);
                drop(due);
            }
        }
    }
}

impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.executor.now() >= self.at {
            return Poll::Ready(());
        }
        let at = self.at;
        let mut timers = self.executor.0.timers.borrow_mut();
        match self.timer {
            Some((slot, seq)) if timers.slots[slot as usize].seq == seq => {
                if let Due::Wake(waker) = &mut timers.slots[slot as usize].due {
                    waker.clone_from(cx.waker());
                }
            }
            _ => {
                let timer = timers.set(at, Due::Wake(cx.waker().clone()));
                drop(timers);
                self.timer = Some(timer);
            }
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::{Executor, LifeId, Nanos, Stuck, Trace};
    use atoll_world::sync::oneshot;
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    fn executor(seed: u64) -> Executor {
        Executor::new(seed, Trace::new(false))
    }

    /// The order in which ten tasks that are ready at once are polled.
    fn order(seed: u64) -> Vec<u32> {
        let ex = executor(seed);
        let seen = Rc::new(RefCell::new(Vec::new()));
        for i in 0..10 {
            let (seen, ex2) = (seen.clone(), ex.clone());
            ex.spawn(LifeId::HARNESS, async move {
                ex2.sleep_until(Nanos(5)).await;
                seen.borrow_mut().push(i);
            });
        }
        ex.run_until(Nanos(10));
        ex.shutdown();
        seen.take()
    }

    #[test]
    fn ready_tasks_are_picked_by_seed_and_a_seed_repeats() {
        assert_eq!(order(1), order(1));
        assert!((2..20).any(|s| order(s) != order(1)));
    }

    #[test]
    fn time_moves_by_the_nanosecond_and_only_when_idle() {
        let ex = executor(1);
        let ex2 = ex.clone();
        let at = ex.block_on(Nanos::from_secs(1), async move {
            let from = ex2.now();
            for n in [1, 20, 999, 80_001] {
                ex2.sleep_until(ex2.now() + Nanos(n)).await;
            }
            ex2.now().since(from)
        });
        assert_eq!(at, Ok(Nanos(81_021)));
        ex.shutdown();
    }

    struct Tell(u32, Rc<RefCell<Vec<u32>>>);
    impl Drop for Tell {
        fn drop(&mut self) {
            self.1.borrow_mut().push(self.0);
        }
    }

    #[test]
    fn a_killed_life_drops_its_tasks_in_order_of_birth_and_spawns_no_more() {
        let ex = executor(3);
        let life = ex.new_life(0);
        let dropped = Rc::new(RefCell::new(Vec::new()));
        for i in 0..5 {
            let (tell, ex2) = (Tell(i, dropped.clone()), ex.clone());
            ex.spawn(life, async move {
                let _tell = tell;
                ex2.sleep_until(Nanos::NEVER).await;
            });
        }
        ex.run_until(Nanos(10));
        assert_eq!(ex.tasks_alive(), 5);
        ex.kill(life);
        assert_eq!(*dropped.borrow(), [0, 1, 2, 3, 4]);
        ex.spawn(life, async { panic!("a dead host runs nothing") });
        ex.run_until(Nanos(20));
        assert_eq!(ex.tasks_alive(), 0);
        ex.shutdown();
    }

    #[test]
    fn a_paused_life_is_not_polled_and_catches_up() {
        let ex = executor(4);
        let life = ex.new_life(0);
        let seen = Rc::new(Cell::new(Nanos::ZERO));
        let (ex2, seen2) = (ex.clone(), seen.clone());
        ex.spawn(life, async move {
            ex2.sleep_until(Nanos(10)).await;
            seen2.set(ex2.now());
        });
        ex.run_until(Nanos(5));
        ex.pause(life);
        ex.run_until(Nanos(100));
        assert_eq!(seen.get(), Nanos::ZERO);
        ex.resume(life);
        ex.run_until(Nanos(200));
        assert_eq!(seen.get(), Nanos(100), "it sees the time that passed");
        ex.shutdown();
    }

    #[test]
    fn a_paused_shard_is_not_polled_while_its_siblings_are() {
        let ex = executor(4);
        let life = ex.new_life(0);
        let seen = Rc::new(Cell::new([Nanos::ZERO; 3]));
        for shard in 0..3 {
            let (ex2, seen) = (ex.clone(), seen.clone());
            ex.spawn_in(life, shard, async move {
                ex2.sleep_until(Nanos(10)).await;
                let mut all = seen.get();
                all[usize::from(shard)] = ex2.now();
                seen.set(all);
            });
        }
        ex.run_until(Nanos(5));
        ex.pause_shard(life, 1);
        ex.pause_shard(life, 2);
        ex.run_until(Nanos(100));
        assert_eq!(seen.get(), [Nanos(10), Nanos::ZERO, Nanos::ZERO]);
        // Each by itself, and not while its whole life is paused.
        ex.pause(life);
        ex.resume_shard(life, 1);
        ex.run_until(Nanos(200));
        ex.resume(life);
        ex.run_until(Nanos(300));
        assert_eq!(seen.get(), [Nanos(10), Nanos(200), Nanos::ZERO]);
        ex.resume_shard(life, 2);
        ex.run_until(Nanos(400));
        assert_eq!(seen.get(), [Nanos(10), Nanos(200), Nanos(300)]);
        ex.shutdown();
    }

    #[test]
    fn a_trap_springs_after_exactly_that_many_polls() {
        let ex = executor(5);
        let life = ex.new_life(0);
        let steps = Rc::new(Cell::new(0));
        let (ex2, steps2) = (ex.clone(), steps.clone());
        ex.spawn(life, async move {
            loop {
                steps2.set(steps2.get() + 1);
                ex2.sleep_until(ex2.now() + Nanos(1)).await;
            }
        });
        let ex3 = ex.clone();
        ex.trap(life, 7, move || ex3.kill(life));
        ex.run_until(Nanos(1000));
        assert_eq!(steps.get(), 7);
        ex.shutdown();
    }

    #[test]
    fn waiting_for_nothing_is_reported() {
        let ex = executor(6);
        let (keep, wait) = oneshot::<()>();
        let got = ex.block_on(Nanos(100), wait);
        assert_eq!(got, Err(Stuck::Idle));
        drop(keep);
        let ex2 = ex.clone();
        let got = ex.block_on(Nanos(100), async move { ex2.sleep_until(Nanos(500)).await });
        assert_eq!(got, Err(Stuck::Deadline));
        ex.shutdown();
    }

    #[test]
    fn cancelled_timers_do_not_pile_up() {
        let ex = executor(7);
        let ex2 = ex.clone();
        let end = ex.block_on(Nanos::from_secs(10), async move {
            for _ in 0..100_000 {
                let far = ex2.sleep_until(Nanos::from_secs(9));
                let near = ex2.sleep_until(ex2.now() + Nanos(1));
                futures_util::future::select(far, near).await;
            }
        });
        assert_eq!(end, Ok(()));
        assert!(ex.0.timers.borrow().heap.len() < 20_000);
        ex.shutdown();
    }
}

//! Disk I/O by io_uring: one ring per shard, used by its thread alone.
//!
//! Operations that begin in one turn of the scheduler are submitted by one system call, or in
//! pieces of [`PIECE`]: a task submits what is left, and it runs after everything that was ready to
//! run. What is done makes room for what waits, first of all; then it is answered, in such pieces,
//! too, so that those who wait go on beside the device. The ring's file descriptor shows the
//! runtime when something is done. Memory that an operation works on belongs to the ring until its
//! completion, so that a future may be dropped at any time.
//!
//! Invariants: operations in the kernel <= `DISK_OPS_MAX` <= places for completions; an operation
//! is answered after it has transferred all bytes, or with the device's error; reads are held
//! back only while their disk has work ([`ReadThrottle`]).

#![allow(unsafe_code)]

use crate::disk_op::{Op, Outcome};
use crate::limits::{DISK_OPS_MAX, LAST_WAIT, PIECE, REGISTERED_FILES};
use crate::read_throttle::ReadThrottle;
use atoll_world::Durability;
use atoll_world::sync::Sender;
use io_uring::{IoUring, Probe, opcode, squeue, types};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fs::File;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::AbortHandle;

/// The ring of one shard, while a disk uses it.
pub(crate) struct Ring {
    core: Rc<Core>,
    task: AbortHandle,
}

/// A disk as the ring knows it.
#[derive(Clone)]
pub(crate) struct Target {
    file: Arc<File>,
    /// Freed with the last clone.
    slot: Rc<DiskSlot>,
}

/// A disk's place in `State::disks`.
struct DiskSlot {
    index: usize,
    /// Its file has the same place among the registered ones.
    registered: bool,
    /// Not a clone: what is in flight holds its slot, and the core holds what is in flight.
    core: Weak<Core>,
}

struct Core {
    ring: RefCell<IoUring>,
    state: RefCell<State>,
    /// Of the task that submits and reaps.
    waker: RefCell<Option<Waker>>,
    woken: Cell<bool>,
}

struct State {
    /// In the kernel, by `user_data`.
    flights: Vec<Option<Flight>>,
    free: Vec<usize>,
    /// On their way there.
    waiting: VecDeque<Flight>,
    /// Back from there, with their results, and to be answered.
    done: VecDeque<(Flight, i32)>,
    /// By place.
    disks: Vec<Disk>,
    /// Places without a disk.
    places: Vec<usize>,
}

#[derive(Default)]
struct Disk {
    throttle: ReadThrottle,
    /// Reads, until the disk has room for them.
    held: VecDeque<Flight>,
    /// Completions of those that were just looked at, and how many of these are of reads.
    ended: (usize, usize),
}

/// An operation and all it needs.
struct Flight {
    target: Target,
    at: u64,
    op: Op,
    /// Bytes already transferred.
    done: usize,
    /// What is left, for the kernel to read while the operation is there.
    iovecs: Vec<libc::iovec>,
    answer: Sender<Outcome>,
}

thread_local! {
    static RING: RefCell<Weak<Ring>> = const { RefCell::new(Weak::new()) };
}

/// The ring's descriptor, and what keeps it open.
struct RingFd(RawFd, Rc<Core>);

impl AsRawFd for RingFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

/// A ring, with the best flags that this kernel has.
fn build() -> io::Result<IoUring> {
    let best = IoUring::builder()
        .setup_single_issuer()
        .setup_coop_taskrun()
        .setup_submit_all()
        .build(DISK_OPS_MAX);
    match best {
        // Kernels before 6.0 do not know these flags.
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => IoUring::new(DISK_OPS_MAX),
        built => built,
    }
}

/// Hands the kernel an operation that does nothing: a container may allow to make a ring and not to
/// use it, and that must be found out here, where there is another way.
fn try_to_enter(ring: &mut IoUring) -> io::Result<()> {
    // SAFETY: the entry refers to no memory.
    let taken = unsafe { ring.submission().push(&opcode::Nop::new().build()) };
    taken.expect("the ring is new");
    // Its completion is there when this returns.
    let submitted = ring.submit()?;
    let completed = ring.completion().count();
    if submitted == 1 && completed == 1 {
        return Ok(());
    }
    Err(io::Error::from_raw_os_error(libc::ETIMEDOUT))
}

/// A new ring that can be used for all that disks need.
fn usable() -> io::Result<IoUring> {
    let mut ring = build()?;
    try_to_enter(&mut ring)?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    let needed = [
        opcode::Read::CODE,
        opcode::Write::CODE,
        opcode::Writev::CODE,
        opcode::Fsync::CODE,
        opcode::Fallocate::CODE,
    ];
    if !needed.iter().all(|&code| probe.is_supported(code)) {
        return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
    }
    Ok(ring)
}

/// Whether this process can drive disks by io_uring; changes nothing.
///
/// # Errors
/// Why not, and what could be done about it: one line for people.
pub fn try_uring() -> Result<(), String> {
    usable().map(drop).map_err(|e| explain(&e))
}

/// Why there is no ring, and what could be done about it.
fn explain(e: &io::Error) -> String {
    let hint = match e.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "set the sysctl kernel.io_uring_disabled to 0, or allow io_uring_setup, io_uring_enter \
             and io_uring_register in the container's seccomp profile"
        }
        Some(libc::ENOSYS) => "the kernel has none, or the container's seccomp profile hides it",
        Some(libc::ENOMEM) => "raise the limit on locked memory (ulimit -l, LimitMEMLOCK)",
        Some(libc::EMFILE | libc::ENFILE) => "raise the limit on open files (ulimit -n)",
        _ => "the kernel's io_uring is too old or not usable",
    };
    format!("io_uring is not available ({e}): {hint}")
}

impl Ring {
    /// The ring of this shard, made if there is none. The error says what to do about it.
    pub(crate) fn of_this_shard() -> Result<Rc<Self>, String> {
        if let Some(ring) = RING.with_borrow(Weak::upgrade) {
            return Ok(ring);
        }
        let ring = Rc::new(Self::new().map_err(|e| explain(&e))?);
        RING.set(Rc::downgrade(&ring));
        Ok(ring)
    }

    fn new() -> io::Result<Self> {
        let ring = usable()?;
        // Without registered files the registration of each will fail, and be done without.
        let _ = ring.submitter().register_files_sparse(REGISTERED_FILES);
        let raw = ring.as_raw_fd();
        let core = Rc::new(Core {
            ring: RefCell::new(ring),
            state: RefCell::new(State {
                flights: (0..DISK_OPS_MAX).map(|_| None).collect(),
                free: (0..DISK_OPS_MAX as usize).rev().collect(),
                waiting: VecDeque::new(),
                done: VecDeque::new(),
                disks: Vec::new(),
                places: Vec::new(),
            }),
            waker: RefCell::new(None),
            woken: Cell::new(false),
        });
        // SAFETY: the ring is closed with the core, of which `RingFd` keeps a clone.
        let fd = unsafe {
            AsyncFd::register_with_interest(RingFd(raw, core.clone()), Interest::READABLE)
        };
        let fd = fd.map_err(io::Error::from)?;
        let task = tokio::task::spawn_local(async move {
            poll_fn(|cx| fd.get_ref().1.turn(cx, &fd)).await;
        });
        Ok(Self { core, task: task.abort_handle() })
    }

    /// Makes the file known to the ring, so that operations need not look it up.
    pub(crate) fn register(&self, file: &Arc<File>) -> Target {
        let index = {
            let state = &mut *self.core.state.borrow_mut();
            state.places.pop().unwrap_or_else(|| {
                state.disks.push(Disk::default());
                state.disks.len() - 1
            })
        };
        let ring = self.core.ring.borrow();
        let registered = u32::try_from(index).is_ok_and(|index| {
            index < REGISTERED_FILES
                && matches!(
                    ring.submitter().register_files_update(index, &[file.as_raw_fd()]),
                    Ok(1)
                )
        });
        let slot = Rc::new(DiskSlot { index, registered, core: Rc::downgrade(&self.core) });
        Target { file: file.clone(), slot }
    }

    /// Takes the operation; it is submitted with others, at the end of this turn at the latest, or
    /// once there is room.
    pub(crate) fn begin(&self, target: &Target, at: u64, op: Op, answer: Sender<Outcome>) {
        let target = target.clone();
        let flight = Flight { target, at, op, done: 0, iovecs: Vec::new(), answer };
        let waiting = {
            let state = &mut *self.core.state.borrow_mut();
            let disk = &mut state.disks[flight.target.slot.index];
            if flight.is_read() && !disk.throttle.has_room() {
                disk.held.push_back(flight);
                return;
            }
            disk.throttle.begins(flight.is_read());
            state.waiting.push_back(flight);
            state.waiting.len()
        };
        // More of them wait for room in the kernel.
        if waiting == PIECE {
            self.core.submit();
        }
        self.core.wake();
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Drop for DiskSlot {
    fn drop(&mut self) {
        let Some(core) = self.core.upgrade() else { return };
        // No operation uses it: they hold their target while they are in flight.
        if self.registered {
            let ring = core.ring.borrow();
            let index = u32::try_from(self.index).expect("few are registered");
            // If it fails, the next to be registered there takes its place.
            let _ = ring.submitter().register_files_update(index, &[-1]);
        }
        let state = &mut *core.state.borrow_mut();
        state.disks[self.index] = Disk::default();
        state.places.push(self.index);
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // The kernel may still be writing into the memory of what is in flight. A device is given
        // a moment to end that; the memory of what it does not end is never freed.
        let state = self.state.get_mut();
        let ring = self.ring.get_mut();
        let moment = types::Timespec::from(LAST_WAIT);
        let wait = types::SubmitArgs::new().timespec(&moment);
        while state.free.len() < state.flights.len() {
            if ring.submitter().submit_with_args(1, &wait).is_err() {
                break;
            }
            for entry in ring.completion() {
                let id = usize::try_from(entry.user_data()).expect("ids are indices");
                state.flights[id] = None;
                state.free.push(id);
            }
        }
        for flight in state.flights.iter_mut().filter_map(Option::take) {
            std::mem::forget(flight);
        }
    }
}

/// Lets the ring of this shard answer what is done, if anything is.
pub(crate) fn look() {
    RING.with_borrow(|ring| {
        if let Some(ring) = ring.upgrade()
            && !ring.core.ring.borrow_mut().completion().is_empty()
        {
            ring.core.wake();
        }
    });
}

impl Core {
    fn wake(&self) {
        if !self.woken.replace(true)
            && let Some(waker) = &*self.waker.borrow()
        {
            waker.wake_by_ref();
        }
    }

    /// Submits what waits and answers what is done, until neither makes progress or a piece is
    /// answered.
    fn turn(&self, cx: &mut Context<'_>, fd: &AsyncFd<RingFd>) -> Poll<()> {
        let mut waker = self.waker.borrow_mut();
        match &mut *waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        drop(waker);
        loop {
            self.woken.set(false);
            let shown = match fd.poll_read_ready(cx) {
                Poll::Ready(Ok(mut guard)) => {
                    guard.clear_ready();
                    true
                }
                // The runtime is ending.
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Pending => false,
            };
            // Reaping makes room, submitting may complete at once.
            self.reap();
            let submitted = self.submit();
            let answered = self.answer();
            if answered == PIECE {
                // The others first.
                self.wake();
                return Poll::Pending;
            }
            if !shown && answered == 0 && submitted == 0 {
                return Poll::Pending;
            }
        }
    }

    /// How many operations were handed to the kernel.
    fn submit(&self) -> usize {
        let mut ring = self.ring.borrow_mut();
        let mut pushed = 0;
        {
            let state = &mut *self.state.borrow_mut();
            let mut queue = ring.submission();
            while !state.waiting.is_empty() && !queue.is_full() {
                let Some(id) = state.free.pop() else { break };
                let mut flight = state.waiting.pop_front().expect("just looked at");
                let entry = flight.entry().user_data(id as u64);
                state.flights[id] = Some(flight);
                // SAFETY: the buffers, the iovecs and the file of the entry are owned by the
                // flight, which stays where it is (or is leaked) until its completion arrives.
                let taken = unsafe { queue.push(&entry) };
                taken.expect("there was room");
                pushed += 1;
            }
            pushed += if pushed == 0 { queue.len() } else { 0 };
        }
        if pushed == 0 {
            return 0;
        }
        match ring.submit() {
            Ok(_) => pushed,
            // The kernel is short of something for now. What it did not take stays in the queue.
            Err(e)
                if matches!(
                    e.raw_os_error(),
                    Some(libc::EINTR | libc::EAGAIN | libc::EBUSY | libc::ENOMEM)
                ) =>
            {
                drop(ring);
                self.wake();
                0
            }
            Err(e) => panic!("io_uring_enter failed: {e}"),
        }
    }

    /// Takes what the kernel has done, and lets those go on that it makes room for.
    fn reap(&self) {
        let state = &mut *self.state.borrow_mut();
        let before = state.done.len();
        for entry in self.ring.borrow_mut().completion() {
            let id = usize::try_from(entry.user_data()).expect("ids are indices");
            let flight = state.flights[id].take().expect("completed once");
            state.free.push(id);
            let ended = &mut state.disks[flight.target.slot.index].ended;
            *ended = (ended.0 + 1, ended.1 + usize::from(flight.is_read()));
            state.done.push_back((flight, entry.result()));
        }
        for (flight, _) in state.done.range(before..) {
            let disk = &mut state.disks[flight.target.slot.index];
            let (count, reads) = std::mem::take(&mut disk.ended);
            if count > 0 {
                disk.throttle.ended(count, reads, disk.held.len());
            }
            while disk.throttle.has_room()
                && let Some(flight) = disk.held.pop_front()
            {
                disk.throttle.begins(true);
                state.waiting.push_back(flight);
            }
        }
    }

    /// How many were answered or go on, at most [`PIECE`].
    fn answer(&self) -> usize {
        for count in 0..PIECE {
            let mut state = self.state.borrow_mut();
            let Some((mut flight, result)) = state.done.pop_front() else { return count };
            match flight.on_result(result) {
                Some(outcome) => {
                    drop(state);
                    flight.finish(outcome);
                }
                // Not everything yet: the rest goes first.
                None => {
                    let disk = &mut state.disks[flight.target.slot.index];
                    disk.throttle.begins(flight.is_read());
                    state.waiting.push_front(flight);
                }
            }
        }
        PIECE
    }
}

impl Flight {
    fn is_read(&self) -> bool {
        matches!(self.op, Op::Read(_))
    }

    /// What is left to do, as the kernel wants it.
    fn entry(&mut self) -> squeue::Entry {
        let slot = &self.target.slot;
        let fd = if slot.registered {
            types::Fd(i32::try_from(slot.index).expect("few are registered"))
        } else {
            types::Fd(self.target.file.as_raw_fd())
        };
        let at = self.at + self.done as u64;
        let entry = match &mut self.op {
            Op::Read(buf) => {
                let rest = &mut buf[self.done..];
                opcode::Read::new(fd, rest.as_mut_ptr(), length(rest.len())).offset(at).build()
            }
            Op::Write(pieces, durability) => {
                let flags = match durability {
                    Durability::Volatile => 0,
                    Durability::Durable => libc::RWF_DSYNC,
                };
                if let [one] = &pieces[..] {
                    let rest = &one[self.done..];
                    opcode::Write::new(fd, rest.as_ptr(), length(rest.len()))
                        .offset(at)
                        .rw_flags(flags)
                        .build()
                } else {
                    let mut skip = self.done;
                    self.iovecs.clear();
                    for piece in pieces.iter() {
                        let from = skip.min(piece.len());
                        skip -= from;
                        let rest = &piece[from..];
                        if !rest.is_empty() {
                            let iov_base = rest.as_ptr().cast_mut().cast();
                            self.iovecs.push(libc::iovec { iov_base, iov_len: rest.len() });
                        }
                    }
                    let count = length(self.iovecs.len());
                    opcode::Writev::new(fd, self.iovecs.as_ptr(), count)
                        .offset(at)
                        .rw_flags(flags)
                        .build()
                }
            }
            Op::Flush => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
            Op::Discard(len) => opcode::Fallocate::new(fd, *len)
                .offset(at)
                .mode(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE)
                .build(),
        };
        if slot.registered { entry.flags(squeue::Flags::FIXED_FILE) } else { entry }
    }

    /// What came of it; none: go on.
    fn on_result(&mut self, result: i32) -> Option<io::Result<()>> {
        if result == -libc::EAGAIN || result == -libc::EINTR {
            return None;
        }
        let Ok(bytes) = usize::try_from(result) else {
            return Some(Err(io::Error::from_raw_os_error(-result)));
        };
        let (len, at_end) = match &self.op {
            Op::Read(buf) => (buf.len(), io::ErrorKind::UnexpectedEof),
            Op::Write(pieces, _) => (atoll_world::buf::total_len(pieces), io::ErrorKind::WriteZero),
            Op::Flush | Op::Discard(_) => return Some(Ok(())),
        };
        self.done += bytes;
        assert!(self.done <= len, "the kernel transferred more than was asked for");
        if self.done == len {
            Some(Ok(()))
        } else if bytes == 0 {
            Some(Err(at_end.into()))
        } else {
            None
        }
    }

    fn finish(self, result: io::Result<()>) {
        self.answer.send(result.map(|()| match self.op {
            Op::Read(buf) => Some(buf.freeze()),
            _ => None,
        }));
    }
}

fn length(len: usize) -> u32 {
    u32::try_from(len).expect("one operation is far below 4 GiB")
}

#[cfg(test)]
mod tests {
    use super::explain;
    use std::io;

    #[test]
    fn why_there_is_no_ring_comes_with_what_to_do_about_it() {
        for (code, hint) in [
            (libc::EPERM, "kernel.io_uring_disabled"),
            (libc::EPERM, "seccomp"),
            (libc::ENOSYS, "seccomp"),
            (libc::ENOMEM, "LimitMEMLOCK"),
            (libc::EINVAL, "too old"),
        ] {
            let text = explain(&io::Error::from_raw_os_error(code));
            assert!(text.contains(hint), "{text}");
        }
    }
}

//! Disk I/O by a few threads, where the system does not allow a ring: containers with the default
//! seccomp profile, hardened kernels. Same promises, several times the CPU.

use crate::disk_op::{Op, Outcome};
use crate::limits::{DISK_OPS_MAX, POOL_THREADS};
use atoll_world::Durability;
use atoll_world::sync::{Semaphore, Sender};
use rustix::fs::FallocateFlags;
use rustix::io::{Errno, ReadWriteFlags};
use std::cell::RefCell;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::rc::{Rc, Weak};
use std::sync::{Arc, Mutex, mpsc};

/// The threads of one shard. They end when the last disk that uses them is dropped and its
/// operations are done.
pub(crate) struct Pool {
    jobs: mpsc::Sender<Job>,
    places: Semaphore,
}

struct Job {
    file: Arc<File>,
    at: u64,
    op: Op,
    done: tokio::sync::oneshot::Sender<Outcome>,
}

thread_local! {
    static POOL: RefCell<Weak<Pool>> = const { RefCell::new(Weak::new()) };
}

impl Pool {
    /// The pool of this shard, started if there is none.
    pub(crate) fn of_this_shard() -> io::Result<Rc<Self>> {
        if let Some(pool) = POOL.with_borrow(Weak::upgrade) {
            return Ok(pool);
        }
        let (jobs, queue) = mpsc::channel::<Job>();
        let queue = Arc::new(Mutex::new(queue));
        for n in 0..POOL_THREADS {
            let queue = queue.clone();
            let worker = std::thread::Builder::new().name(format!("disk-{n}"));
            worker.spawn(move || {
                loop {
                    // Held while waiting, and by one thread at a time: the others wait for it.
                    let next = queue.lock().expect("no thread panics with it").recv();
                    let Ok(Job { file, at, op, done }) = next else { return };
                    // Nobody may be waiting any more.
                    let _ = done.send(perform(&file, at, op));
                }
            })?;
        }
        let pool = Rc::new(Self { jobs, places: Semaphore::new(DISK_OPS_MAX as usize) });
        POOL.set(Rc::downgrade(&pool));
        Ok(pool)
    }

    /// Starts the operation after all that came before it have started.
    pub(crate) fn begin(
        self: &Rc<Self>,
        file: Arc<File>,
        at: u64,
        op: Op,
        answer: Sender<Outcome>,
    ) {
        let pool = self.clone();
        tokio::task::spawn_local(async move {
            let _place = pool.places.acquire(1).await;
            let (done, outcome) = tokio::sync::oneshot::channel();
            let job = Job { file, at, op, done };
            if pool.jobs.send(job).is_ok()
                && let Ok(outcome) = outcome.await
            {
                answer.send(outcome);
            }
        });
    }
}

fn perform(file: &File, at: u64, op: Op) -> Outcome {
    match op {
        Op::Read(mut buf) => {
            let mut done = 0;
            while done < buf.len() {
                let mut rest = [IoSliceMut::new(&mut buf[done..])];
                let read = || {
                    let from = at + done as u64;
                    rustix::io::preadv2(file, &mut rest, from, ReadWriteFlags::empty())
                };
                match again(read)? {
                    0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    n => done += n,
                }
            }
            Ok(Some(buf.freeze()))
        }
        Op::Write(pieces, durability) => {
            let flags = match durability {
                Durability::Volatile => ReadWriteFlags::empty(),
                Durability::Durable => ReadWriteFlags::DSYNC,
            };
            let mut slices: Vec<_> = pieces.iter().map(|p| IoSlice::new(p)).collect();
            let (mut rest, mut to) = (&mut slices[..], at);
            while !rest.is_empty() {
                let n = again(|| rustix::io::pwritev2(file, rest, to, flags))?;
                if n == 0 {
                    return Err(io::ErrorKind::WriteZero.into());
                }
                to += n as u64;
                IoSlice::advance_slices(&mut rest, n);
            }
            Ok(None)
        }
        Op::Flush => {
            again(|| rustix::fs::fdatasync(file))?;
            Ok(None)
        }
        Op::Discard(len) => {
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            again(|| rustix::fs::fallocate(file, punch, at, len))?;
            Ok(None)
        }
    }
}

/// What `call` says once it was not interrupted.
fn again<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            done => return done.map_err(io::Error::from),
        }
    }
}

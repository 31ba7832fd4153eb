//! Between the shards of one process: connections in memory, and sockets that one shard hands to
//! another.
//!
//! A packet changes hands as it is: nothing is copied. It is put into a queue behind a lock that is
//! held for a few instructions. A receiver that waits is woken once, by the first packet, and then
//! takes all that there are in one go.
//!
//! Invariants: packets of a connection arrive in the order of sending; what was sent before a
//! connection was closed arrives; at most [`ARRIVALS_MAX`] connections wait to be accepted by a
//! shard. How many packets are under way is bounded by the credits of `transport`.

use crate::limits::ARRIVALS_MAX;
use crate::tls::TlsEnd;
use atoll_world::Packet;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

/// The shards of one process. Clones are the same, on any thread.
#[derive(Clone)]
pub struct Siblings(Arc<[Mutex<Arrivals>]>);

/// Connections that a shard is to accept.
#[derive(Default)]
struct Arrivals {
    waiting: VecDeque<Arrival>,
    /// Who accepts.
    waker: Option<Waker>,
    is_taken: bool,
    /// The shard has ended.
    is_over: bool,
}

/// A connection on its way to the shard that is to accept it.
pub(crate) enum Arrival {
    /// Of another shard.
    Sibling(End),
    /// Of a peer: the socket, and what the shard that listens has read of it.
    Handed { socket: TcpStream, tls: Option<Box<TlsEnd>>, first: Box<Packet> },
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nothing panics while it holds the lock")
}

impl Siblings {
    /// A process with so many shards.
    ///
    /// # Panics
    /// `shards` is 0.
    pub fn of(shards: u8) -> Self {
        assert!(shards > 0, "every process has shard 0");
        Self((0..shards).map(|_| Mutex::default()).collect())
    }

    /// How many shards.
    pub fn count(&self) -> u8 {
        self.0.len() as u8
    }

    /// Where a shard accepts.
    pub(crate) fn inbox(&self, shard: u8) -> Inbox {
        let was_taken = std::mem::replace(&mut lock(&self.0[usize::from(shard)]).is_taken, true);
        assert!(!was_taken, "shard {shard} accepts once");
        Inbox { siblings: self.clone(), shard }
    }

    fn push(&self, shard: u8, arrival: Arrival) -> io::Result<()> {
        let arrivals = self.0.get(usize::from(shard)).ok_or(io::ErrorKind::NotFound)?;
        let waker = {
            let mut arrivals = lock(arrivals);
            if arrivals.is_over {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            if arrivals.waiting.len() >= ARRIVALS_MAX {
                return Err(io::ErrorKind::ResourceBusy.into());
            }
            arrivals.waiting.push_back(arrival);
            arrivals.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }
}

/// A shard's own end: there is one of each.
pub(crate) struct Inbox {
    siblings: Siblings,
    shard: u8,
}

impl Inbox {
    /// The next connection that arrives.
    pub fn poll_arrival(&self, cx: &Context<'_>) -> Poll<Arrival> {
        let mut arrivals = lock(&self.siblings.0[usize::from(self.shard)]);
        match arrivals.waiting.pop_front() {
            Some(arrival) => Poll::Ready(arrival),
            None => {
                arrivals.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// A connection to another shard.
    pub fn connect(&self, shard: u8) -> io::Result<SiblingConn> {
        let (to, from) = (Arc::new(Mutex::default()), Arc::new(Mutex::default()));
        let mine = End { send: to, recv: from, peer: shard };
        let theirs = End { send: mine.recv.clone(), recv: mine.send.clone(), peer: self.shard };
        self.siblings.push(shard, Arrival::Sibling(theirs))?;
        Ok(mine.into())
    }

    /// Gives the socket of a peer to another shard.
    pub fn hand_over(
        &self,
        socket: TcpStream,
        tls: Option<TlsEnd>,
        first: Packet,
        shard: u8,
    ) -> io::Result<()> {
        let (tls, first) = (tls.map(Box::new), Box::new(first));
        self.siblings.push(shard, Arrival::Handed { socket, tls, first })
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        let dropped = {
            let mut arrivals = lock(&self.siblings.0[usize::from(self.shard)]);
            arrivals.is_over = true;
            arrivals.waker = None;
            std::mem::take(&mut arrivals.waiting)
        };
        for arrival in dropped {
            if let Arrival::Sibling(end) = arrival {
                end.close();
            }
        }
    }
}

/// One direction of a connection.
#[derive(Default)]
struct Direction {
    packets: VecDeque<Packet>,
    reader: Option<Waker>,
    is_closed: bool,
}

/// One end of a connection, on its way to its thread or there.
pub(crate) struct End {
    send: Arc<Mutex<Direction>>,
    recv: Arc<Mutex<Direction>>,
    peer: u8,
}

impl End {
    fn close(&self) {
        for direction in [&self.send, &self.recv] {
            let waker = {
                let mut direction = lock(direction);
                direction.is_closed = true;
                direction.reader.take()
            };
            if let Some(waker) = waker {
                waker.wake();
            }
        }
        // What came for this end is read by nobody.
        let unread = std::mem::take(&mut lock(&self.recv).packets);
        drop(unread);
    }
}

/// One end of a connection to another shard.
#[derive(Clone)]
pub(crate) struct SiblingConn(Rc<Handle>);

struct Handle {
    end: End,
    /// Packets that were taken and are not read yet.
    taken: RefCell<VecDeque<Packet>>,
    is_closed: Cell<bool>,
}

impl From<End> for SiblingConn {
    fn from(end: End) -> Self {
        Self(Rc::new(Handle { end, taken: RefCell::default(), is_closed: Cell::new(false) }))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.end.close();
    }
}

impl SiblingConn {
    pub fn send(&self, packet: Packet) -> io::Result<()> {
        let waker = {
            let mut direction = lock(&self.0.end.send);
            if direction.is_closed {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            direction.packets.push_back(packet);
            direction.reader.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    pub fn poll_recv(&self, cx: &Context<'_>) -> Poll<io::Result<Packet>> {
        if self.0.is_closed.get() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let mut taken = self.0.taken.borrow_mut();
        if taken.is_empty() {
            let mut direction = lock(&self.0.end.recv);
            std::mem::swap(&mut *taken, &mut direction.packets);
            if taken.is_empty() {
                if direction.is_closed {
                    return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                }
                direction.reader = Some(cx.waker().clone());
                return Poll::Pending;
            }
        }
        Poll::Ready(Ok(taken.pop_front().expect("just looked at")))
    }

    pub fn close(&self) {
        self.0.is_closed.set(true);
        self.0.taken.borrow_mut().clear();
        self.0.end.close();
    }

    pub fn peer(&self) -> String {
        format!("shard {}", self.0.end.peer)
    }
}

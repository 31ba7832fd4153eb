//! A world just large enough for the transport: one thread, virtual time, a network in memory
//! with a fixed latency that can be cut one way and can damage frames.

#![allow(dead_code, reason = "each test program uses its part")]

use atoll_format::frame::FrameKind;
use atoll_format::id::{ClusterId, HostId};
use atoll_world::directory::{
    Directory, DirectoryError, Entry, Listing, Revision, Txn, TxnReply, Watch, WatchEvent,
};
use atoll_world::sync::Queue;
use atoll_world::{Buf, Conn, Disk, Durability, Lane, Nanos, Net, Packet, World};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

pub const LATENCY: Nanos = Nanos::from_us(50);

type Task = Pin<Box<dyn Future<Output = ()>>>;

#[derive(Default)]
struct Ready(Mutex<VecDeque<usize>>);

struct TaskWaker(usize, Arc<Ready>);

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        let mut ready = self.1.0.lock().unwrap();
        if !ready.contains(&self.0) {
            ready.push_back(self.0);
        }
    }
}

/// Runs tasks in the order in which they were woken; time moves when all wait.
#[derive(Clone, Default)]
pub struct Lab(Rc<LabInner>);

#[derive(Default)]
struct LabInner {
    now: Cell<u64>,
    serial: Cell<u64>,
    tasks: RefCell<Vec<Option<Task>>>,
    ready: Arc<Ready>,
    timers: RefCell<BTreeMap<(u64, u64), Waker>>,
    listeners: RefCell<BTreeMap<String, Queue<LabConn>>>,
    /// (from, to): what is sent vanishes.
    cut: RefCell<BTreeSet<(String, String)>>,
    damage: RefCell<Option<Damage>>,
    /// The connection of the next request swallows it, and all that follows.
    swallow: Cell<bool>,
    /// Whose certificate an end shows; not in there: none.
    shown: RefCell<BTreeMap<String, (ClusterId, HostId)>>,
}

/// Changes a packet on its way from one endpoint; true: done, no more.
type Damage = Box<dyn FnMut(&str, &mut Packet) -> bool>;

impl Lab {
    pub fn now(&self) -> Nanos {
        Nanos(self.0.now.get())
    }

    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        let mut tasks = self.0.tasks.borrow_mut();
        tasks.push(Some(Box::pin(task)));
        self.0.ready.0.lock().unwrap().push_back(tasks.len() - 1);
    }

    pub async fn sleep_until(&self, at: Nanos) {
        let serial = self.0.serial.get();
        self.0.serial.set(serial + 1);
        poll_fn(|cx| {
            if self.now() >= at {
                return Poll::Ready(());
            }
            self.0.timers.borrow_mut().insert((at.0, serial), cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    pub async fn sleep(&self, span: Nanos) {
        self.sleep_until(self.now() + span).await;
    }

    /// Every host is paused for that long: time passes and nothing happens.
    pub fn pause(&self, span: Nanos) {
        self.0.now.set(self.0.now.get() + span.0);
    }

    /// Runs until `main` ends. Panics when nothing can happen any more, or after an hour.
    pub fn run<T: 'static>(&self, main: impl Future<Output = T> + 'static) -> T {
        let out = Rc::new(RefCell::new(None));
        let slot = out.clone();
        self.spawn(async move {
            let result = main.await;
            *slot.borrow_mut() = Some(result);
        });
        while out.borrow().is_none() {
            let next = self.0.ready.0.lock().unwrap().pop_front();
            let Some(id) = next else {
                let timer = self.0.timers.borrow_mut().pop_first();
                let ((at, _), waker) = timer.expect("everything waits for ever");
                assert!(at < Nanos::from_secs(3600).0, "nothing happens");
                self.0.now.set(self.0.now.get().max(at));
                waker.wake();
                continue;
            };
            let task = self.0.tasks.borrow_mut()[id].take();
            let Some(mut task) = task else { continue };
            let waker = Waker::from(Arc::new(TaskWaker(id, self.0.ready.clone())));
            if task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
                self.0.tasks.borrow_mut()[id] = Some(task);
            }
        }
        out.take().expect("just seen")
    }

    /// The world of the host that listens at `endpoint`.
    pub fn host(&self, endpoint: &str) -> LabWorld {
        let queue = Queue::default();
        self.0.listeners.borrow_mut().insert(endpoint.to_owned(), queue.clone());
        LabWorld {
            lab: self.clone(),
            net: LabNet { lab: self.clone(), me: endpoint.into(), queue },
        }
    }

    /// Nobody listens there any more.
    pub fn deaf(&self, endpoint: &str) {
        self.0.listeners.borrow_mut().remove(endpoint);
    }

    pub fn cut(&self, from: &str, to: &str) {
        self.0.cut.borrow_mut().insert((from.into(), to.into()));
    }

    pub fn heal(&self) {
        self.0.cut.borrow_mut().clear();
    }

    pub fn damage(&self, change: impl FnMut(&str, &mut Packet) -> bool + 'static) {
        *self.0.damage.borrow_mut() = Some(Box::new(change));
    }

    /// A host shows a certificate from now on.
    pub fn show(&self, name: &str, whose: (ClusterId, HostId)) {
        self.0.shown.borrow_mut().insert(name.into(), whose);
    }

    pub fn swallow(&self) {
        self.0.swallow.set(true);
    }

    fn is_cut(&self, from: &str, to: &str) -> bool {
        self.0.cut.borrow().contains(&(from.to_owned(), to.to_owned()))
    }
}

/// One direction of a connection.
struct Pipe {
    void: Cell<bool>,
    packets: RefCell<VecDeque<(Nanos, Packet)>>,
    broken: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

#[derive(Clone)]
pub struct LabConn {
    lab: Lab,
    me: String,
    other: String,
    send: Rc<Pipe>,
    recv: Rc<Pipe>,
}

impl LabConn {
    fn pair(lab: &Lab, a: &str, b: &str) -> (Self, Self) {
        let pipe = || {
            Rc::new(Pipe {
                void: Cell::new(false),
                packets: RefCell::default(),
                broken: Cell::new(false),
                waker: RefCell::default(),
            })
        };
        let (ab, ba) = (pipe(), pipe());
        let end = |me: &str, other: &str, send: &Rc<Pipe>, recv: &Rc<Pipe>| Self {
            lab: lab.clone(),
            me: me.into(),
            other: other.into(),
            send: send.clone(),
            recv: recv.clone(),
        };
        (end(a, b, &ab, &ba), end(b, a, &ba, &ab))
    }
}

impl Pipe {
    fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}

impl Conn for LabConn {
    fn send(&self, mut packet: Packet) -> io::Result<()> {
        if self.send.broken.get() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if self.lab.is_cut(&self.me, &self.other) {
            return Ok(());
        }
        if packet.head[6] == FrameKind::Request as u8 && self.lab.0.swallow.take() {
            self.send.void.set(true);
        }
        if self.send.void.get() {
            return Ok(());
        }
        let mut damage = self.lab.0.damage.borrow_mut();
        if damage.as_mut().is_some_and(|change| change(&self.me, &mut packet)) {
            *damage = None;
        }
        self.send.packets.borrow_mut().push_back((self.lab.now() + LATENCY, packet));
        self.send.wake();
        Ok(())
    }

    async fn recv(&self) -> io::Result<Packet> {
        loop {
            let due = self.recv.packets.borrow().front().map(|p| p.0);
            match due {
                Some(at) if at <= self.lab.now() => {
                    return Ok(self.recv.packets.borrow_mut().pop_front().unwrap().1);
                }
                Some(at) => self.lab.sleep_until(at).await,
                None if self.recv.broken.get() => {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                None => {
                    let mut first = true;
                    poll_fn(|cx| {
                        if !std::mem::take(&mut first) {
                            return Poll::Ready(());
                        }
                        *self.recv.waker.borrow_mut() = Some(cx.waker().clone());
                        Poll::Pending
                    })
                    .await;
                }
            }
        }
    }

    fn close(&self) {
        // What this end has not read is lost; what it has sent still arrives.
        self.recv.packets.borrow_mut().clear();
        for pipe in [&self.send, &self.recv] {
            // A cut link does not tell the other end.
            if !self.lab.is_cut(&self.me, &self.other) || Rc::ptr_eq(pipe, &self.recv) {
                pipe.broken.set(true);
                pipe.wake();
            }
        }
    }

    fn peer(&self) -> String {
        self.other.clone()
    }
    fn proven(&self) -> Option<(ClusterId, HostId)> {
        self.lab.0.shown.borrow().get(&self.other).copied()
    }
}

#[derive(Clone)]
pub struct LabNet {
    lab: Lab,
    me: String,
    queue: Queue<LabConn>,
}

impl Net for LabNet {
    type Conn = LabConn;
    async fn connect(&self, endpoint: &str, _lane: Lane) -> io::Result<LabConn> {
        self.lab.sleep(LATENCY * 2).await;
        if self.lab.is_cut(&self.me, endpoint) || self.lab.is_cut(endpoint, &self.me) {
            std::future::pending::<()>().await;
        }
        let listener = self.lab.0.listeners.borrow().get(endpoint).cloned();
        let listener = listener.ok_or(io::ErrorKind::ConnectionRefused)?;
        let (mine, theirs) = LabConn::pair(&self.lab, &self.me, endpoint);
        listener.push(theirs);
        Ok(mine)
    }
    async fn connect_shard(&self, shard: u8, _lane: Lane) -> io::Result<LabConn> {
        let name = shard_name(&self.me, shard);
        let listener = self.lab.0.listeners.borrow().get(&name).cloned();
        let listener = listener.ok_or(io::ErrorKind::ConnectionRefused)?;
        let (mine, theirs) = LabConn::pair(&self.lab, &self.me, &name);
        listener.push(theirs);
        Ok(mine)
    }
    fn hand_over(&self, conn: &LabConn, first: Packet, shard: u8) -> io::Result<()> {
        let name = shard_name(&self.me, shard);
        let listener = self.lab.0.listeners.borrow().get(&name).cloned();
        let listener = listener.ok_or(io::ErrorKind::ConnectionRefused)?;
        conn.recv.packets.borrow_mut().push_front((self.lab.now(), first));
        listener.push(conn.clone());
        Ok(())
    }
    async fn accept(&self) -> io::Result<LabConn> {
        self.queue.pop().await.ok_or(io::ErrorKind::BrokenPipe.into())
    }
}

/// Where a shard of the process of `me` listens: `b`, `b#1`, `b#2`.
fn shard_name(me: &str, shard: u8) -> String {
    let host = me.split('#').next().expect("a name has a beginning");
    if shard == 0 { host.into() } else { format!("{host}#{shard}") }
}

#[derive(Clone)]
pub struct LabWorld {
    pub lab: Lab,
    net: LabNet,
}

impl World for LabWorld {
    type Disk = Nothing;
    type Net = LabNet;
    type Directory = Nothing;
    fn now(&self) -> Nanos {
        self.lab.now()
    }
    fn unix_ms(&self) -> u64 {
        self.now().as_ms()
    }
    async fn sleep_until(&self, at: Nanos) {
        self.lab.sleep_until(at).await;
    }
    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.lab.spawn(task);
    }
    fn random(&self) -> u64 {
        let serial = self.lab.0.serial.get() + 1;
        self.lab.0.serial.set(serial);
        serial.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
    async fn charge(&self, _cpu: Nanos) {}
    fn net(&self) -> &LabNet {
        &self.net
    }
    fn directory(&self) -> &Nothing {
        unreachable!("the transport has no use for the directory")
    }
}

/// What the transport has no use for.
#[derive(Clone)]
pub enum Nothing {}

impl Disk for Nothing {
    fn len_bytes(&self) -> u64 {
        match *self {}
    }
    async fn read(&self, _at: u64, _len: u32) -> io::Result<Buf> {
        match *self {}
    }
    async fn write(&self, _at: u64, _data: Vec<Buf>, _durability: Durability) -> io::Result<()> {
        match *self {}
    }
    async fn flush(&self) -> io::Result<()> {
        match *self {}
    }
    async fn discard(&self, _at: u64, _len: u64) -> io::Result<()> {
        match *self {}
    }
}

impl Directory for Nothing {
    type Watch = Self;
    async fn txn(&self, _txn: Txn) -> Result<TxnReply, DirectoryError> {
        match *self {}
    }
    async fn get(&self, _key: &str) -> Result<Option<Entry>, DirectoryError> {
        match *self {}
    }
    async fn list(&self, _prefix: &str) -> Result<Listing, DirectoryError> {
        match *self {}
    }
    async fn watch(&self, _prefix: &str, _after: Revision) -> Result<Self, DirectoryError> {
        match *self {}
    }
    async fn touch(&self, _name: &str, _ttl_ms: u32) -> Result<(), DirectoryError> {
        match *self {}
    }
    async fn alive(&self) -> Result<Vec<String>, DirectoryError> {
        match *self {}
    }
}

impl Watch for Nothing {
    async fn next(&mut self) -> Result<Vec<WatchEvent>, DirectoryError> {
        match *self {}
    }
}

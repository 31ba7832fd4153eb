//! A modelled network: connections that are ordered and reliable until they break, over NICs that
//! queue in both directions and links that are slow, cut one way, or cut.
//!
//! As with TCP, what meets a cut link waits and arrives late once the link is back, unless the
//! connection broke meanwhile; nothing is lost from the middle of a connection. A process that dies
//! resets its connections; a host without power says nothing until it is back.
//!
//! Invariants: packets of one connection and direction arrive in the order of sending, each at most
//! once; connections are not ordered against each other; `send` never waits.

use crate::executor::Executor;
use crate::fault::{FaultKind, Faults, NetRates};
use crate::rng::Rng;
use atoll_format::id::{ClusterId, HostId};
use atoll_world::net::{Conn, Lane, Net, Packet};
use atoll_world::sync::Queue;
use atoll_world::{Buf, BufMut, Nanos};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};

/// Time after which a connection attempt that gets no answer fails.
const CONNECT_TIMEOUT: Nanos = Nanos::from_secs(5);
/// Time between two attempts of the same.
const CONNECT_RETRY: Nanos = Nanos::from_ms(500);

/// What NICs and links can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NetProfile {
    /// One way, NIC to NIC.
    pub latency: Nanos,
    /// Up to that much more, by chance.
    pub jitter: Nanos,
    /// Of each direction of each NIC, in bytes per microsecond (= MB/s).
    pub bytes_per_us: u64,
}

impl NetProfile {
    /// 100 Gbit/s through one switch.
    pub const GBIT_100: Self =
        Self { latency: Nanos(6_000), jitter: Nanos(3_000), bytes_per_us: 12_500 };
    /// 25 Gbit/s through one switch.
    pub const GBIT_25: Self =
        Self { latency: Nanos(8_000), jitter: Nanos(4_000), bytes_per_us: 3_125 };
    /// 10 Gbit/s through one switch: a round trip of a small message takes 30 us.
    pub const GBIT_10: Self =
        Self { latency: Nanos(12_000), jitter: Nanos(6_000), bytes_per_us: 1_250 };
    /// 1 Gbit/s.
    pub const GBIT_1: Self =
        Self { latency: Nanos(30_000), jitter: Nanos(40_000), bytes_per_us: 125 };
}

enum Flight {
    Packet(Packet),
    /// A head that does not check: the receiver finds out and gives up.
    Garbage,
    Fin,
    Reset,
}

#[derive(Default)]
struct Side {
    inbox: VecDeque<Packet>,
    wire: VecDeque<(Nanos, Flight)>,
    last_arrival: Nanos,
    wakers: Vec<Waker>,
    /// Nothing more is sent or received here, and why.
    broken: Option<io::ErrorKind>,
}

impl Side {
    fn wake(&mut self) {
        for waker in self.wakers.drain(..) {
            waker.wake();
        }
    }
    fn break_off(&mut self, kind: io::ErrorKind) {
        if self.broken.is_none() {
            self.broken = Some(kind);
        }
        self.wake();
    }
}

struct Pair {
    id: u64,
    fabric: Fabric,
    hosts: [u16; 2],
    lane: Lane,
    sides: [RefCell<Side>; 2],
}

struct Port {
    name: String,
    tx: Nanos,
    rx: Nanos,
    /// What was asked of both directions so far.
    booked: (Nanos, Nanos),
    powered: bool,
    dying: bool,
    /// Of each shard of its process; none while it has none.
    accepts: Vec<Queue<SimConn>>,
    /// Connections whose end here vanished without a word.
    orphans: Vec<Weak<Pair>>,
}

#[derive(Clone, Copy)]
struct Link {
    /// Connections of which lanes wait, by lane.
    cut: [bool; Lane::ALL.len()],
    slow: u64,
    /// What was sent over it while it is slow keeps it busy until then.
    busy: Nanos,
    /// The next payload over it arrives with a flipped bit.
    damage: bool,
    /// The latest arrival of what was sent over it on any connection.
    latest: Nanos,
}

struct Inner {
    executor: Executor,
    faults: Faults,
    rng: RefCell<Rng>,
    profile: NetProfile,
    ports: RefCell<Vec<Port>>,
    links: RefCell<Vec<Link>>,
    pairs: RefCell<BTreeMap<u64, Weak<Pair>>>,
    next: Cell<u64>,
    rates: Cell<NetRates>,
    packets: Cell<u64>,
    bytes: Cell<u64>,
}

/// The whole network; clones are the same.
#[derive(Clone)]
pub struct Fabric(Rc<Inner>);

impl Fabric {
    /// A network of `hosts` hosts called `h0`, `h1`, ...
    pub fn new(
        executor: &Executor,
        hosts: u16,
        profile: NetProfile,
        rng: Rng,
        faults: Faults,
    ) -> Self {
        let port = |h| Port {
            name: format!("h{h}"),
            tx: Nanos::ZERO,
            rx: Nanos::ZERO,
            booked: (Nanos::ZERO, Nanos::ZERO),
            powered: true,
            dying: false,
            accepts: Vec::new(),
            orphans: Vec::new(),
        };
        let n = usize::from(hosts);
        Self(Rc::new(Inner {
            executor: executor.clone(),
            faults,
            rng: RefCell::new(rng),
            profile,
            ports: RefCell::new((0..hosts).map(port).collect()),
            links: RefCell::new(vec![
                Link {
                    cut: Default::default(),
                    damage: false,
                    slow: 1,
                    busy: Nanos::ZERO,
                    latest: Nanos::ZERO
                };
                n * n
            ]),
            pairs: RefCell::default(),
            next: Cell::new(0),
            rates: Cell::default(),
            packets: Cell::new(0),
            bytes: Cell::new(0),
        }))
    }

    /// The end of a new life of `host`: it listens from now on. Its other shards are there with
    /// [`SimNet::of_next_shard`].
    pub fn attach(&self, host: u16) -> SimNet {
        let accept: Queue<SimConn> = Queue::default();
        let orphans = {
            let mut ports = self.0.ports.borrow_mut();
            let port = &mut ports[usize::from(host)];
            port.powered = true;
            port.accepts = vec![accept.clone()];
            std::mem::take(&mut port.orphans)
        };
        // Whoever still talks to the old life is told so.
        for pair in orphans.iter().filter_map(Weak::upgrade) {
            let to = usize::from(pair.hosts[0] == host);
            let after = Nanos(self.0.rng.borrow_mut().within(100_000, 200_000_000));
            pair.fly(to, self.0.executor.now() + after, Flight::Reset);
        }
        SimNet { fabric: self.clone(), host, accept }
    }

    /// From here until [`Fabric::detached`], connections that `host` drops are reset (its process
    /// dies) or forgotten (its power is gone).
    pub fn detaching(&self, host: u16, power_lost: bool) {
        let accepts = {
            let mut ports = self.0.ports.borrow_mut();
            let port = &mut ports[usize::from(host)];
            port.dying = true;
            port.powered = !power_lost;
            std::mem::take(&mut port.accepts)
        };
        for accept in accepts {
            // Connections that nobody had accepted yet go the same way.
            while accept.try_pop().is_some() {}
        }
    }

    /// All tasks of the dead life are gone; connections that something still refers to end too.
    pub fn detached(&self, host: u16) {
        let pairs: Vec<_> = self.0.pairs.borrow().values().filter_map(Weak::upgrade).collect();
        for pair in pairs {
            for side in (0..2).filter(|&side| pair.hosts[side] == host) {
                pair.close(side);
            }
        }
        self.0.ports.borrow_mut()[usize::from(host)].dying = false;
    }

    /// Packets from `from` to `to` wait from now on, or go through again.
    pub fn set_cut(&self, from: u16, to: u16, cut: bool) {
        Lane::ALL.into_iter().for_each(|lane| self.set_lane_cut(from, to, lane, cut));
    }

    /// The same of the connections of one lane.
    pub fn set_lane_cut(&self, from: u16, to: u16, lane: Lane, cut: bool) {
        let link = self.link_index(from, to);
        let was = &mut self.0.links.borrow_mut()[link].cut[lane as usize];
        if std::mem::replace(was, cut) == cut || cut {
            return;
        }
        let pairs: Vec<_> = self.0.pairs.borrow().values().filter_map(Weak::upgrade).collect();
        for pair in pairs.iter().filter(|pair| pair.lane == lane) {
            for side in 0..2 {
                if pair.hosts[side] == to && pair.hosts[1 - side] == from {
                    pair.retransmit(side);
                }
            }
        }
    }

    /// The next payload from `from` to `to` arrives damaged.
    pub fn damage_next(&self, from: u16, to: u16) {
        let link = self.link_index(from, to);
        self.0.links.borrow_mut()[link].damage = true;
    }

    /// Whether it is this one; the others are sound.
    fn takes_damage(&self, from: u16, to: u16) -> bool {
        let link = self.link_index(from, to);
        std::mem::take(&mut self.0.links.borrow_mut()[link].damage)
    }

    /// Which packets from `from` to `to` wait, by lane.
    fn cuts(&self, from: u16, to: u16) -> [bool; Lane::ALL.len()] {
        self.0.links.borrow()[self.link_index(from, to)].cut
    }

    /// Latency and transfer from `from` to `to` take that many times as long.
    pub fn set_slow(&self, from: u16, to: u16, factor: u64) {
        let link = self.link_index(from, to);
        let mut links = self.0.links.borrow_mut();
        links[link].slow = factor.max(1);
        links[link].busy = Nanos::ZERO;
    }

    /// From now on packets go wrong at these rates.
    pub fn set_rates(&self, rates: NetRates) {
        self.0.rates.set(rates);
    }

    /// Breaks every connection between the two hosts.
    pub fn reset(&self, a: u16, b: u16) {
        let pairs: Vec<_> = self.0.pairs.borrow().values().filter_map(Weak::upgrade).collect();
        let now = self.0.executor.now();
        for pair in pairs.iter().filter(|p| p.hosts == [a, b] || p.hosts == [b, a]) {
            for side in 0..2 {
                pair.sides[side].borrow_mut().wire.clear();
                pair.fly(side, now, Flight::Reset);
            }
        }
    }

    /// Every connection between the two hosts ends here and now on both sides, also over a link
    /// that is cut: something on the way says that there is no way.
    pub fn break_now(&self, a: u16, b: u16) {
        let pairs: Vec<_> = self.0.pairs.borrow().values().filter_map(Weak::upgrade).collect();
        for pair in pairs.iter().filter(|p| p.hosts == [a, b] || p.hosts == [b, a]) {
            for side in &pair.sides {
                let mut side = side.borrow_mut();
                side.wire.clear();
                side.inbox.clear();
                side.break_off(io::ErrorKind::ConnectionReset);
            }
        }
    }

    /// Packets sent so far, and their bytes.
    pub fn sent(&self) -> (u64, u64) {
        (self.0.packets.get(), self.0.bytes.get())
    }

    /// For how long the NIC of `host` has been sending and receiving, with what is under way to it.
    pub fn busy(&self, host: u16) -> (Nanos, Nanos) {
        let port = &self.0.ports.borrow()[usize::from(host)];
        (port.booked.0 - port.tx.since(self.0.executor.now()), port.booked.1)
    }

    fn link_index(&self, from: u16, to: u16) -> usize {
        usize::from(from) * self.0.ports.borrow().len() + usize::from(to)
    }

    /// When a packet that is sent now arrives.
    fn arrival(&self, from: u16, to: u16, bytes: u64) -> Nanos {
        let now = self.0.executor.now();
        let profile = self.0.profile;
        if from == to {
            return now + Nanos(2_000);
        }
        let link = &mut self.0.links.borrow_mut()[self.link_index(from, to)];
        let slow = link.slow;
        if slow > 1 {
            self.0.faults.reached(FaultKind::SlowLink);
        }
        let transfer = Nanos(bytes * 1000 / profile.bytes_per_us);
        let mut ports = self.0.ports.borrow_mut();
        ports[usize::from(from)].booked.0 += transfer;
        ports[usize::from(to)].booked.1 += transfer;
        let tx = &mut ports[usize::from(from)].tx;
        *tx = (*tx).max(now) + transfer;
        // A slow link holds up what goes over it, not what its sender has for others.
        link.busy = link.busy.max(*tx) + transfer * (slow - 1);
        let mut there = link.busy.max(*tx) + profile.latency * slow;
        if profile.jitter > Nanos::ZERO {
            there += Nanos(self.0.rng.borrow_mut().below(profile.jitter.0));
        }
        // Cut-through: receiving overlaps sending, unless the receiver is busy with another's.
        let rx = &mut ports[usize::from(to)].rx;
        let arrival = there.max(*rx + transfer);
        // What trickles in over a slow link leaves room for others.
        *rx = if slow > 1 { (*rx).max(now) + transfer } else { arrival };
        arrival
    }
}

impl Pair {
    /// Sends something towards `side`.
    fn fly(self: &Rc<Self>, side: usize, arrival: Nanos, flight: Flight) {
        let at = {
            let mut to = self.sides[side].borrow_mut();
            let at = arrival.max(to.last_arrival);
            to.last_arrival = at;
            let link = self.fabric.link_index(self.hosts[1 - side], self.hosts[side]);
            let latest = &mut self.fabric.0.links.borrow_mut()[link].latest;
            if at < *latest && matches!(flight, Flight::Packet(_)) {
                self.fabric.0.faults.reached(FaultKind::PacketOvertaken);
            }
            *latest = (*latest).max(at);
            to.wire.push_back((at, flight));
            at
        };
        let pair = self.clone();
        self.fabric.0.executor.call_at(at, move || pair.deliver(side));
    }

    fn deliver(&self, side: usize) {
        let fabric = &self.fabric.0;
        let now = fabric.executor.now();
        let (to, from) = (self.hosts[side], self.hosts[1 - side]);
        let mut s = self.sides[side].borrow_mut();
        if s.broken.is_some() {
            s.wire.clear();
            return;
        }
        let powered = fabric.ports.borrow()[usize::from(to)].powered;
        while s.wire.front().is_some_and(|(at, _)| *at <= now) {
            let cuts = self.fabric.cuts(from, to);
            if cuts[self.lane as usize] {
                let stalled = cuts.contains(&false);
                let kind = if stalled { FaultKind::LaneStalled } else { FaultKind::Partition };
                fabric.faults.reached(kind);
                return; // `set_lane_cut` goes on from here
            }
            let (_, flight) = s.wire.pop_front().expect("just looked at");
            if !powered {
                continue;
            }
            let fact = self.id << 8 ^ side as u64;
            fabric.executor.trace().event(now, Some(to), "net", fact, || {
                let lane = self.lane;
                match &flight {
                    Flight::Packet(p) => {
                        let len = p.body.len() + atoll_world::buf::total_len(&p.payload);
                        format!("c{} {lane:?} {len} bytes from h{from}", self.id)
                    }
                    Flight::Garbage => format!("c{} {lane:?} damaged head from h{from}", self.id),
                    Flight::Fin => format!("c{} {lane:?} closed by h{from}", self.id),
                    Flight::Reset => format!("c{} {lane:?} reset", self.id),
                }
            });
            match flight {
                Flight::Packet(packet) => {
                    s.inbox.push_back(packet);
                    s.wake();
                }
                Flight::Garbage => s.break_off(io::ErrorKind::InvalidData),
                Flight::Fin => s.break_off(io::ErrorKind::UnexpectedEof),
                Flight::Reset => {
                    s.inbox.clear();
                    s.break_off(io::ErrorKind::ConnectionReset);
                }
            }
        }
    }

    /// The link is back: what waited is sent again by the sender's timer.
    fn retransmit(self: &Rc<Self>, side: usize) {
        let now = self.fabric.0.executor.now();
        let wait = self.fabric.0.rng.borrow_mut().span(Nanos::from_ms(1), Nanos::from_secs(1));
        let at = {
            let mut s = self.sides[side].borrow_mut();
            if s.wire.is_empty() {
                return;
            }
            for (arrival, _) in &mut s.wire {
                *arrival = (*arrival).max(now + wait);
            }
            s.last_arrival = s.last_arrival.max(now + wait);
            now + wait
        };
        // Those with a later arrival have a call of their own.
        let pair = self.clone();
        self.fabric.0.executor.call_at(at, move || pair.deliver(side));
    }

    fn close(self: &Rc<Self>, side: usize) {
        {
            let mut s = self.sides[side].borrow_mut();
            if s.broken.is_some() && s.wakers.is_empty() {
                s.inbox.clear();
            }
            // After a damaged head it is this side that ends the connection, and says so.
            let was = s.broken.is_some_and(|kind| kind != io::ErrorKind::InvalidData);
            s.broken = s.broken.filter(|_| was);
            s.break_off(io::ErrorKind::NotConnected);
            s.inbox.clear();
            if was {
                return;
            }
        }
        let fabric = &self.fabric.0;
        let (here, there) = (self.hosts[side], self.hosts[1 - side]);
        let (powered, dying) = {
            let mut ports = fabric.ports.borrow_mut();
            let port = &mut ports[usize::from(here)];
            if !port.powered {
                port.orphans.push(Rc::downgrade(self));
            }
            (port.powered, port.dying)
        };
        if !powered {
            return;
        }
        let flight = if dying { Flight::Reset } else { Flight::Fin };
        let arrival = self.fabric.arrival(here, there, 64);
        self.fly(1 - side, arrival, flight);
    }
}

/// One host's end of the network, for one life of it.
#[derive(Clone)]
pub struct SimNet {
    fabric: Fabric,
    host: u16,
    accept: Queue<SimConn>,
}

impl Net for SimNet {
    type Conn = SimConn;

    async fn connect(&self, endpoint: &str, lane: Lane) -> io::Result<SimConn> {
        let fabric = &self.fabric.0;
        let there = fabric.ports.borrow().iter().position(|p| p.name == endpoint);
        let Some(there) = there else {
            return Err(io::Error::new(io::ErrorKind::NotFound, "no host of that name"));
        };
        let to = there as u16;
        let give_up = fabric.executor.now() + CONNECT_TIMEOUT;
        loop {
            let arrival = self.fabric.arrival(self.host, to, 64);
            let rtt = arrival.since(fabric.executor.now()) * 2;
            fabric.executor.sleep_until(fabric.executor.now() + rtt).await;
            let is_cut = |from, to| self.fabric.cuts(from, to)[lane as usize];
            let cut = is_cut(self.host, to) || is_cut(to, self.host);
            let (powered, accept) = {
                let port = &fabric.ports.borrow()[there];
                (port.powered, port.accepts.first().cloned())
            };
            match accept {
                Some(accept) if powered && !cut => {
                    return Ok(self.established(to, lane, &accept));
                }
                None if powered && !cut => return Err(io::ErrorKind::ConnectionRefused.into()),
                _ => {}
            }
            if fabric.executor.now() + CONNECT_RETRY > give_up {
                return Err(io::ErrorKind::TimedOut.into());
            }
            fabric.executor.sleep_until(fabric.executor.now() + CONNECT_RETRY).await;
        }
    }

    async fn connect_shard(&self, shard: u8, lane: Lane) -> io::Result<SimConn> {
        let accept = self.shard(shard).ok_or(io::ErrorKind::ConnectionRefused)?;
        Ok(self.established(self.host, lane, &accept))
    }

    fn hand_over(&self, conn: &SimConn, first: Packet, shard: u8) -> io::Result<()> {
        let accept = self.shard(shard).ok_or(io::ErrorKind::ConnectionRefused)?;
        let End { pair, side } = &*conn.0;
        pair.sides[*side].borrow_mut().inbox.push_front(first);
        accept.push(conn.clone());
        Ok(())
    }

    async fn accept(&self) -> io::Result<SimConn> {
        self.accept.pop().await.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl SimNet {
    /// The end of the network of one more shard of the same life.
    pub fn of_next_shard(&self) -> Self {
        let accept: Queue<SimConn> = Queue::default();
        let mut ports = self.fabric.0.ports.borrow_mut();
        ports[usize::from(self.host)].accepts.push(accept.clone());
        Self { accept, ..self.clone() }
    }

    fn shard(&self, shard: u8) -> Option<Queue<SimConn>> {
        self.fabric.0.ports.borrow()[usize::from(self.host)]
            .accepts
            .get(usize::from(shard))
            .cloned()
    }

    fn established(&self, to: u16, lane: Lane, accept: &Queue<SimConn>) -> SimConn {
        let fabric = &self.fabric.0;
        fabric.next.set(fabric.next.get() + 1);
        let pair = Rc::new(Pair {
            id: fabric.next.get(),
            fabric: self.fabric.clone(),
            hosts: [self.host, to],
            lane,
            sides: [RefCell::default(), RefCell::default()],
        });
        let mut pairs = fabric.pairs.borrow_mut();
        if fabric.next.get().is_multiple_of(64) {
            pairs.retain(|_, pair| pair.strong_count() > 0);
        }
        pairs.insert(pair.id, Rc::downgrade(&pair));
        drop(pairs);
        accept.push(SimConn(Rc::new(End { pair: pair.clone(), side: 1 })));
        SimConn(Rc::new(End { pair, side: 0 }))
    }
}

struct End {
    pair: Rc<Pair>,
    side: usize,
}

impl Drop for End {
    fn drop(&mut self) {
        self.pair.close(self.side);
    }
}

/// One end of a connection.
#[derive(Clone)]
pub struct SimConn(Rc<End>);

impl Conn for SimConn {
    fn send(&self, mut packet: Packet) -> io::Result<()> {
        let End { pair, side } = &*self.0;
        if let Some(kind) = pair.sides[*side].borrow().broken {
            return Err(kind.into());
        }
        let fabric = &pair.fabric.0;
        // It arrives in one aligned buffer, as from the real world.
        if packet.payload.len() > 1 || !packet.payload.iter().all(Buf::is_aligned) {
            let mut one = BufMut::for_overwrite(atoll_world::buf::total_len(&packet.payload));
            let mut at = 0;
            for piece in &packet.payload {
                one[at..at + piece.len()].copy_from_slice(piece);
                at += piece.len();
            }
            packet.payload = vec![one.freeze()];
        }
        let len = 64 + packet.body.len() + atoll_world::buf::total_len(&packet.payload);
        fabric.packets.set(fabric.packets.get() + 1);
        fabric.bytes.set(fabric.bytes.get() + len as u64);
        let (here, there) = (pair.hosts[*side], pair.hosts[1 - side]);
        let mut arrival = pair.fabric.arrival(here, there, len as u64);
        let rates = fabric.rates.get();
        let mut rng = fabric.rng.borrow_mut();
        if here != there && rng.happens(rates.delayed) {
            fabric.faults.reached(FaultKind::PacketDelayed);
            arrival += rng.span(Nanos::from_ms(1), Nanos::from_secs(1));
        }
        if here != there && rng.happens(rates.lost) {
            fabric.faults.reached(FaultKind::ConnectionLost);
            drop(rng);
            // The peer sees what was under way before this packet, then the end.
            pair.fly(1 - side, arrival, Flight::Reset);
            // Now and then something on the way has forgotten the connection, and this side does
            // not learn of it.
            if !pair.fabric.0.rng.borrow_mut().happens(250_000) {
                let back = pair.fabric.arrival(there, here, 64);
                pair.fly(*side, back, Flight::Reset);
            }
            return Ok(());
        }
        let mut flight = None;
        if here != there && rng.happens(rates.damaged) {
            fabric.faults.reached(FaultKind::FrameDamaged);
            if !damage(&mut packet, &mut rng) {
                flight = Some(Flight::Garbage);
            }
        }
        if !packet.payload.is_empty() && pair.fabric.takes_damage(here, there) {
            fabric.faults.reached(FaultKind::FrameDamaged);
            let bits = atoll_world::buf::total_len(&packet.payload) as u64 * 8;
            flip(&mut packet.payload, rng.below(bits) as usize);
        }
        let answer_lost = here != there && rng.happens(rates.answer_lost);
        drop(rng);
        pair.fly(1 - side, arrival, flight.unwrap_or(Flight::Packet(packet)));
        if answer_lost {
            fabric.faults.reached(FaultKind::AnswerLost);
            // Right behind it: its receiver may carry it out, nobody hears that it has.
            pair.fly(*side, arrival, Flight::Reset);
            let (broken, there) = (pair.clone(), 1 - side);
            let after = arrival + Nanos::from_ms(1);
            fabric.executor.call_at(after, move || broken.fly(there, after, Flight::Reset));
        }
        Ok(())
    }

    async fn recv(&self) -> io::Result<Packet> {
        let End { pair, side } = &*self.0;
        poll_fn(|cx| {
            let mut s = pair.sides[*side].borrow_mut();
            if let Some(packet) = s.inbox.pop_front() {
                return Poll::Ready(Ok(packet));
            }
            if let Some(kind) = s.broken {
                return Poll::Ready(Err(kind.into()));
            }
            if !s.wakers.iter().any(|w| w.will_wake(cx.waker())) {
                s.wakers.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    fn close(&self) {
        self.0.pair.close(self.0.side);
    }

    fn peer(&self) -> String {
        format!("h{}", self.0.pair.hosts[1 - self.0.side])
    }
    fn proven(&self) -> Option<(ClusterId, HostId)> {
        None
    }
}

/// Flips one bit of body or payload; false: it hit the head, which the receiver's device layer
/// checks before anything is set aside.
fn damage(packet: &mut Packet, rng: &mut Rng) -> bool {
    let (body, payload) = (packet.body.len(), atoll_world::buf::total_len(&packet.payload));
    // Each part is as likely as the others, whatever its length: heads are rarely hit otherwise.
    let parts = [64, body, payload];
    let part = loop {
        let part = rng.below(3) as usize;
        if parts[part] > 0 {
            break part;
        }
    };
    let bit = rng.below(parts[part] as u64 * 8) as usize;
    match part {
        0 => return false,
        1 => packet.body[bit / 8] ^= 1 << (bit % 8),
        _ => flip(&mut packet.payload, bit),
    }
    true
}

fn flip(payload: &mut [Buf], bit: usize) {
    let mut at = bit / 8;
    for piece in payload {
        if at < piece.len() {
            let mut copy = BufMut::for_overwrite(piece.len());
            copy.copy_from_slice(piece);
            copy[at] ^= 1 << (bit % 8);
            *piece = copy.freeze();
            return;
        }
        at -= piece.len();
    }
}

#[cfg(test)]
mod tests {
    use super::{Fabric, NetProfile};
    use crate::executor::Executor;
    use crate::fault::{FaultKind, Faults, NetRates};
    use crate::rng::Rng;
    use crate::trace::Trace;
    use atoll_world::net::{Conn, Lane, Net, Packet};
    use atoll_world::{Buf, Nanos};
    use std::io::ErrorKind;

    const FLAT: NetProfile =
        NetProfile { latency: Nanos(8_000), jitter: Nanos(0), bytes_per_us: 3_125 };

    fn fabric(seed: u64, profile: NetProfile) -> (Executor, Fabric, Faults) {
        let ex = Executor::new(seed, Trace::new(false));
        let faults = Faults::default();
        let fabric = Fabric::new(&ex, 3, profile, Rng::named(seed, "net"), faults.clone());
        (ex, fabric, faults)
    }

    fn packet(n: u8, len: usize) -> Packet {
        Packet { head: [n; 64], body: vec![n], payload: vec![Buf::zeros(len)] }
    }

    #[test]
    fn a_packet_takes_transfer_and_latency_and_a_stream_takes_the_bandwidth() {
        let (ex, f, _) = fabric(1, FLAT);
        let (a, b) = (f.attach(0), f.attach(1));
        let ex2 = ex.clone();
        ex.block_on(Nanos::from_secs(10), async move {
            let c = a.connect("h1", Lane::Data).await.unwrap();
            let s = b.accept().await.unwrap();
            let t0 = ex2.now();
            c.send(packet(1, 4096)).unwrap();
            assert_eq!(s.recv().await.unwrap().head[0], 1);
            assert_eq!(ex2.now().since(t0), Nanos((64 + 1 + 4096) * 1000 / 3125 + 8_000));
            let t0 = ex2.now();
            for i in 0..100 {
                c.send(packet(i, 1 << 20)).unwrap();
            }
            for i in 0..100 {
                assert_eq!(s.recv().await.unwrap().head[0], i, "in order");
            }
            let rate = 100.0 * 1048576.0 / ex2.now().since(t0).as_us() as f64;
            assert!((3100.0..3126.0).contains(&rate), "{rate}");
            drop(c);
            assert_eq!(s.recv().await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        })
        .unwrap();
        ex.shutdown();
    }

    #[test]
    fn a_cut_link_delays_and_does_not_lose_and_is_one_way() {
        let (ex, f, faults) = fabric(2, NetProfile::GBIT_25);
        let (a, b) = (f.attach(0), f.attach(1));
        let (ex2, f2) = (ex.clone(), f.clone());
        ex.block_on(Nanos::from_secs(100), async move {
            let c = a.connect("h1", Lane::Data).await.unwrap();
            let s = b.accept().await.unwrap();
            f2.set_cut(0, 1, true);
            c.send(packet(1, 0)).unwrap();
            c.send(packet(2, 0)).unwrap();
            s.send(packet(9, 0)).unwrap();
            assert_eq!(c.recv().await.unwrap().head[0], 9, "the other way is open");
            ex2.sleep_until(ex2.now() + Nanos::from_secs(10)).await;
            let healed = ex2.now();
            f2.set_cut(0, 1, false);
            assert_eq!(s.recv().await.unwrap().head[0], 1);
            assert_eq!(s.recv().await.unwrap().head[0], 2);
            assert!(ex2.now() > healed);
            // A connection that breaks meanwhile takes its packets with it.
            f2.set_cut(0, 1, true);
            c.send(packet(3, 0)).unwrap();
            f2.reset(0, 1);
            f2.set_cut(0, 1, false);
            assert_eq!(s.recv().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
            assert!(c.send(packet(4, 0)).is_err());
            // And connecting over a cut link takes until it is back.
            f2.set_cut(1, 0, true);
            let t0 = ex2.now();
            assert_eq!(
                a.connect("h1", Lane::Data).await.err().unwrap().kind(),
                ErrorKind::TimedOut
            );
            assert!(ex2.now().since(t0) > Nanos::from_secs(4));
        })
        .unwrap();
        assert!(faults.count(FaultKind::Partition) > 0);
        ex.shutdown();
    }

    #[test]
    fn a_dead_process_resets_and_a_dead_host_is_silent_until_it_is_back() {
        let (ex, f, _) = fabric(3, NetProfile::GBIT_25);
        let (a, b, d) = (f.attach(0), f.attach(1), f.attach(2));
        let (ex2, f2) = (ex.clone(), f.clone());
        ex.block_on(Nanos::from_secs(100), async move {
            let c = a.connect("h1", Lane::Data).await.unwrap();
            let s = b.accept().await.unwrap();
            f2.detaching(1, false);
            drop((s, b));
            f2.detached(1);
            assert_eq!(c.recv().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
            let refused = a.connect("h1", Lane::Data).await.err().unwrap();
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);

            let c = a.connect("h2", Lane::Data).await.unwrap();
            let s = d.accept().await.unwrap();
            f2.detaching(2, true);
            drop((s, d));
            f2.detached(2);
            c.send(packet(1, 0)).unwrap();
            ex2.sleep_until(ex2.now() + Nanos::from_secs(5)).await;
            c.send(packet(1, 0)).expect("nobody has told us");
            let d = f2.attach(2);
            assert_eq!(c.recv().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
            a.connect("h2", Lane::Data).await.unwrap();
            d.accept().await.unwrap();
        })
        .unwrap();
        ex.shutdown();
    }

    #[test]
    fn damage_and_loss_hit_any_part_and_are_counted() {
        let (ex, f, faults) = fabric(4, NetProfile::GBIT_25);
        let (a, b) = (f.attach(0), f.attach(1));
        let f2 = f.clone();
        ex.block_on(Nanos::from_secs(100), async move {
            f2.set_rates(NetRates { damaged: 1_000_000, ..NetRates::default() });
            let (mut head, mut body, mut payload) = (0, 0, 0);
            for _ in 0..60 {
                let c = a.connect("h1", Lane::Data).await.unwrap();
                let s = b.accept().await.unwrap();
                c.send(packet(7, 4096)).unwrap();
                match s.recv().await {
                    Err(e) => {
                        assert_eq!(e.kind(), ErrorKind::InvalidData);
                        head += 1;
                    }
                    Ok(p) if p.body != [7] => body += 1,
                    Ok(p) => {
                        let ones: u32 = p.payload[0].iter().map(|b| b.count_ones()).sum();
                        assert_eq!(ones, 1);
                        payload += 1;
                    }
                }
            }
            assert!(head > 5 && body > 5 && payload > 5);
            f2.set_rates(NetRates { lost: 1_000_000, ..NetRates::default() });
            let c = a.connect("h1", Lane::Data).await.unwrap();
            let s = b.accept().await.unwrap();
            c.send(packet(7, 0)).unwrap();
            assert_eq!(s.recv().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
            assert_eq!(c.recv().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
        })
        .unwrap();
        assert_eq!(faults.count(FaultKind::FrameDamaged), 60);
        assert_eq!(faults.count(FaultKind::ConnectionLost), 1);
        ex.shutdown();
    }
}

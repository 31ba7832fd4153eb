//! What a message costs: two hosts on loopback addresses, each on its own thread, one asking; or
//! two shards of one host. Prints calls a second and CPU a call on either side, for several depths
//! and payloads; with `tls`, each row without TLS and with it in turns, and what TLS adds.
//!
//! `cargo run --release --example hop [seconds per row] [shards|tls]`

use atoll_format::id::{Addr, ClusterId, HostId, Incarnation};
use atoll_real::{RealNet, RealWorld, Shard, Siblings, now, run, sleep_until, unix_ms};
use atoll_transport::{BadMessage, Encoded, Identity, Message, Peers, Service};
use atoll_trust::{Authority, HOST_VALID_S, PeerTls};
use atoll_world::directory::{
    Directory, DirectoryError, Entry, Listing, Revision, Txn, TxnReply, Watch, WatchEvent,
};
use atoll_world::{Buf, Lane, Nanos};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use rustix::time::{ClockId, clock_gettime};
use std::net::SocketAddr;

const ASKING: HostId = HostId(1);
const ANSWERING: HostId = HostId(2);

/// A payload whose checksum the service is said to check, as for data.
struct Data(Vec<Buf>, Vec<u8>);

impl Message for Data {
    fn encode(self) -> Encoded {
        Encoded { kind: 1, body: self.1, payload: self.0, payload_checked_by_receiver: true }
    }
    fn decode(_kind: u16, body: &[u8], payload: Vec<Buf>) -> Result<Self, BadMessage> {
        Ok(Self(payload, body.to_vec()))
    }
}

/// Keeps nothing, answers with a few bytes: a write.
#[derive(Clone)]
struct Sink;

impl Service for Sink {
    type Request = Data;
    type Reply = Data;
    fn handle(&self, _from: Addr, request: Data) -> impl Future<Output = Data> + 'static {
        drop(request.0);
        async { Data(vec![], vec![0; 16]) }
    }
}

fn start(at: Addr, shards: u8, net: RealNet) -> Peers<RealWorld<NoDirectory>, Sink> {
    let identity = Identity {
        cluster: ClusterId(1),
        host: at.host,
        shard: at.shard,
        shards,
        incarnation: Incarnation(1),
        name: format!("{at}"),
    };
    Peers::start(RealWorld::new(net, NoDirectory).expect("entropy"), identity, Sink)
}

/// CPU time of this thread, in nanoseconds.
fn cpu() -> u64 {
    let t = clock_gettime(ClockId::ThreadCPUTime);
    t.tv_sec.unsigned_abs() * 1_000_000_000 + t.tv_nsec.unsigned_abs()
}

/// Payloads and depths.
const ROWS: [(usize, usize); 8] =
    [(0, 1), (0, 32), (4096, 1), (4096, 32), (4096, 128), (65536, 1), (65536, 8), (1 << 20, 4)];

/// Two shards, on a thread each.
#[derive(Clone, Copy, PartialEq)]
enum Between {
    Hosts,
    HostsWithTls,
    Shards,
}

/// Who asks and who answers have certificates of one authority.
fn credentials() -> [PeerTls; 2] {
    let now_s = unix_ms() / 1000;
    let authority = Authority::create(ClusterId(1), "hop", now_s).expect("entropy");
    [ASKING, ANSWERING].map(|host| {
        let made = authority.equip(host, now_s, HOST_VALID_S).expect("entropy");
        PeerTls::new(&made).expect("they fit")
    })
}

/// Nanoseconds of a call: how long it took with all others that ran, and CPU on either side.
#[derive(Clone, Copy, Default)]
struct Cost {
    each: f64,
    asking: f64,
    answering: f64,
}

fn main() {
    let seconds = std::env::args().nth(1).and_then(|s| s.parse().ok()).unwrap_or(2.0);
    let what = std::env::args().nth(2).unwrap_or_default();
    println!(
        "{:>9} {:>6} {:>11} {:>9} {:>15} {:>15}",
        "payload", "depth", "calls/s", "mean us", "CPU us asking", "CPU us answering"
    );
    for row in ROWS {
        if what != "tls" {
            let between = if what == "shards" { Between::Shards } else { Between::Hosts };
            print(row, "", measure(row, between, seconds));
            continue;
        }
        // In turns: what else the machine does meets both.
        let [mut plain, mut tls] = [Vec::new(), Vec::new()];
        for _ in 0..TURNS {
            plain.push(measure(row, Between::Hosts, seconds / TURNS as f64));
            tls.push(measure(row, Between::HostsWithTls, seconds / TURNS as f64));
        }
        let [plain, tls] = [plain, tls].map(median);
        print(row, "", plain);
        let more = (tls.asking + tls.answering) / (plain.asking + plain.answering);
        let longer = tls.each / plain.each;
        print(row, &format!("  with TLS: {more:.2} of the CPU, {longer:.2} of the time"), tls);
    }
}

/// Measurements of each kind in a row.
const TURNS: usize = 5;

/// Of each figure.
fn median(costs: Vec<Cost>) -> Cost {
    let of = |figure: fn(&Cost) -> f64| {
        let mut all: Vec<f64> = costs.iter().map(figure).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    Cost { each: of(|c| c.each), asking: of(|c| c.asking), answering: of(|c| c.answering) }
}

fn print((len, depth): (usize, usize), more: &str, cost: Cost) {
    println!(
        "{len:>9} {depth:>6} {:>11.0} {:>9.1} {:>15.2} {:>15.2}{more}",
        1e9 / cost.each,
        cost.each * depth as f64 / 1e3,
        cost.asking / 1e3,
        cost.answering / 1e3
    );
}

fn measure((len, depth): (usize, usize), between: Between, seconds: f64) -> Cost {
    let of_one = between == Between::Shards;
    let (siblings, shards) = (Siblings::of(2), if of_one { 2 } else { 1 });
    let there = if of_one { Addr { host: ASKING, shard: 1 } } else { ANSWERING.into() };
    let [tls_here, tls_there] = match between {
        Between::HostsWithTls => credentials().map(Some),
        _ => [None, None],
    };
    let (tell, told) = std::sync::mpsc::channel();
    // Whoever asks wants to know the other side's CPU time from time to time.
    let (ask_cpu, mut asked) = tokio::sync::mpsc::unbounded_channel::<()>();
    let (tell_cpu, told_cpu) = std::sync::mpsc::channel();
    let with = siblings.clone();
    let answering = Shard::start("answering", move || async move {
        let at = [SocketAddr::from(([127, 0, 0, 3], 0))];
        let net = match of_one {
            true => RealNet::of_shard(1, &[], &with, None),
            false => RealNet::bind_for(&at, &Siblings::of(1), tls_there).expect("a loopback port"),
        };
        let _peers = start(there, shards, net.clone());
        let listens_at = net.addresses().iter().map(ToString::to_string).collect::<Vec<_>>();
        tell.send(listens_at).expect("main waits");
        while asked.recv().await.is_some() {
            tell_cpu.send(cpu()).expect("main waits");
        }
    })
    .expect("a thread");
    let endpoints = told.recv().expect("the other side is there");
    let their_cpu = || {
        ask_cpu.send(()).expect("the other side is there");
        told_cpu.recv().expect("the other side is there")
    };
    let cost = run(async {
        let at = [SocketAddr::from(([127, 0, 0, 2], 0))];
        let net = RealNet::bind_for(&at, &siblings, tls_here).expect("a loopback port");
        let peers = start(ASKING.into(), shards, net);
        peers.set_peer(ANSWERING, endpoints);
        while !peers.peer(there).connected {
            sleep_until(now() + Nanos::from_ms(1)).await;
        }
        let payload = Buf::zeros(len);
        let call = || {
            let pieces = if len == 0 { vec![] } else { vec![payload.clone()] };
            let data = Data(pieces, vec![0; 80]);
            peers.call(there, Lane::Data, data, now() + Nanos::from_secs(60))
        };
        let mut running: FuturesUnordered<_> = (0..depth).map(|_| call()).collect();
        let (begun, mine, theirs) = (now(), cpu(), their_cpu());
        let mut calls = 0u64;
        while now().since(begun).as_secs_f64() < seconds {
            // All that has arrived, as a store or an owner would.
            running.next().await.expect("never empty").expect("a reply");
            running.push(call());
            calls += 1;
        }
        let (mine, theirs) = (cpu() - mine, their_cpu() - theirs);
        let each = now().since(begun).as_secs_f64() * 1e9 / calls as f64;
        while running.next().await.is_some() {}
        peers.stop();
        let per_call = |nanos: u64| nanos as f64 / calls as f64;
        Cost { each, asking: per_call(mine), answering: per_call(theirs) }
    })
    .expect("a runtime");
    drop(ask_cpu);
    answering.join().expect("a runtime");
    cost
}

/// The transport has no use for a directory.
#[derive(Clone)]
struct NoDirectory;

fn none<T>() -> Result<T, DirectoryError> {
    Err(DirectoryError::Unavailable("there is none".into()))
}

impl Directory for NoDirectory {
    type Watch = Self;
    async fn txn(&self, _txn: Txn) -> Result<TxnReply, DirectoryError> {
        none()
    }
    async fn get(&self, _key: &str) -> Result<Option<Entry>, DirectoryError> {
        none()
    }
    async fn list(&self, _prefix: &str) -> Result<Listing, DirectoryError> {
        none()
    }
    async fn watch(&self, _prefix: &str, _after: Revision) -> Result<Self, DirectoryError> {
        none()
    }
    async fn touch(&self, _name: &str, _ttl_ms: u32) -> Result<(), DirectoryError> {
        none()
    }
    async fn alive(&self) -> Result<Vec<String>, DirectoryError> {
        none()
    }
}

impl Watch for NoDirectory {
    async fn next(&mut self) -> Result<Vec<WatchEvent>, DirectoryError> {
        none()
    }
}

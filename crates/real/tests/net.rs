//! The transport over real TCP on loopback addresses, and client streams.

use atoll_format::frame::{FrameHead, FrameKind, VERSION_MAX};
use atoll_format::id::{Addr, ClusterId, HostId, Incarnation};
use atoll_front::limits::Limits;
use atoll_front::memory::{Fixed, MemoryVolume};
use atoll_front::nbd::{Ended, Served, Server, Suspended};
use atoll_real::{
    DetachedStream, RealConn, RealNet, RealStream, RealWorld, Shard, Siblings, StreamListener, now,
    run, sleep_until, unix_ms,
};
use atoll_transport::{BadMessage, CallError, Encoded, Identity, Message, Peers, Service};
use atoll_trust::{Authority, HOST_VALID_S, PeerTls};
use atoll_world::directory::{
    Directory, DirectoryError, Entry, Listing, Revision, Txn, TxnReply, Watch, WatchEvent,
};
use atoll_world::stream::{ByteRead, ByteStream, ByteWrite, Piece};
use atoll_world::volume::{ExportName, VolumeError, Volumes};
use atoll_world::{Buf, Conn, Lane, Nanos, Net, Packet};
use futures_util::future::{join, join_all};
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::cell::RefCell;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

const A: HostId = HostId(0xa);
const B: HostId = HostId(0xb);
const MS: Nanos = Nanos::from_ms(1);

/// A number and bytes; answered with the number and the bytes twice.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Bytes(u32, Vec<Buf>);

impl Message for Bytes {
    fn encode(self) -> Encoded {
        let body = self.0.to_le_bytes().to_vec();
        Encoded { kind: 1, body, payload: self.1, payload_checked_by_receiver: false }
    }
    fn decode(_kind: u16, body: &[u8], payload: Vec<Buf>) -> Result<Self, BadMessage> {
        let number = body.try_into().map_err(|_| BadMessage("no number"))?;
        Ok(Self(u32::from_le_bytes(number), payload))
    }
}

#[derive(Clone, Default)]
struct Twice {
    seen: Rc<RefCell<Vec<u32>>>,
}

impl Service for Twice {
    type Request = Bytes;
    type Reply = Bytes;
    fn handle(&self, _from: Addr, request: Bytes) -> impl Future<Output = Bytes> + 'static {
        self.seen.borrow_mut().push(request.0);
        async move {
            assert!(request.1.iter().all(|p| p.is_aligned()), "payloads are ready for a disk");
            Bytes(request.0, [request.1.clone(), request.1].concat())
        }
    }
}

type Host = Peers<RealWorld<NoDirectory>, Twice>;

fn start(net: &RealNet, host: HostId, service: Twice) -> Host {
    start_shard(net, Addr::from(host), 1, service)
}

fn start_shard(net: &RealNet, Addr { host, shard }: Addr, shards: u8, service: Twice) -> Host {
    let identity = Identity {
        cluster: ClusterId(1),
        host,
        shard,
        shards,
        incarnation: Incarnation(1),
        name: "x".into(),
    };
    Peers::start(RealWorld::new(net.clone(), NoDirectory).unwrap(), identity, service)
}

fn bind(ip: [u8; 4], port: u16) -> RealNet {
    bind_as(None, ip, port)
}

fn bind_as(tls: Option<&PeerTls>, ip: [u8; 4], port: u16) -> RealNet {
    let at = [SocketAddr::from((ip, port))];
    RealNet::bind_for(&at, &Siblings::of(1), tls.cloned()).unwrap()
}

/// An authority of the test's cluster.
fn authority() -> Authority {
    Authority::create(ClusterId(1), "test", unix_ms() / 1000).unwrap()
}

/// With a certificate of that authority.
fn tls(authority: &Authority, host: HostId) -> PeerTls {
    PeerTls::new(&authority.equip(host, unix_ms() / 1000, HOST_VALID_S).unwrap()).unwrap()
}

async fn until(condition: impl Fn() -> bool) {
    let give_up = now() + Nanos::from_secs(20);
    while !condition() {
        assert!(now() < give_up, "it never came true");
        sleep_until(now() + MS).await;
    }
}

/// Calls that many times, 16 at once, with payloads of several sizes, and checks each answer.
async fn ask(peers: &Host, to: Addr, count: u32) {
    let far = now() + Nanos::from_secs(30);
    let lens = [0, 1, 4096, 65536, 1 << 20];
    for first in (0..count).step_by(16) {
        let calls = (first..count.min(first + 16)).map(|n| {
            let whole = bytes(lens[n as usize % lens.len()]);
            peers.call(to, Lane::Data, Bytes(n, vec![whole]), far)
        });
        let calls: Vec<_> = calls.collect();
        for (n, reply) in (first..).zip(join_all(calls).await) {
            let Bytes(number, payload) = reply.unwrap_or_else(|e| panic!("call {n} of {to}: {e}"));
            let len = lens[n as usize % lens.len()];
            assert_eq!(number, n);
            let payload = atoll_world::buf::join(&payload);
            assert!(payload[..] == [&bytes(len)[..], &bytes(len)].concat(), "{len} bytes of {n}");
        }
    }
}

#[test]
fn shards_are_asked_by_their_siblings_and_by_peers_over_one_socket() {
    ask_shards(None, None);
}

#[test]
fn shards_are_asked_by_peers_over_one_socket_with_tls() {
    let authority = authority();
    ask_shards(Some(tls(&authority, A)), Some(tls(&authority, B)));
}

fn ask_shards(tls_a: Option<PeerTls>, tls_b: Option<PeerTls>) {
    const COUNT: u32 = 400;
    let siblings = Siblings::of(3);
    let (tell, told) = std::sync::mpsc::channel();
    let (asked_all, all_asked) = std::sync::mpsc::channel();
    let (end, ending) = tokio::sync::watch::channel(false);
    let mut shards = Vec::new();
    for shard in 0..3 {
        let (siblings, tell, done) = (siblings.clone(), tell.clone(), asked_all.clone());
        let (mut ending, tls) = (ending.clone(), tls_b.clone());
        let main = move || async move {
            let at = [SocketAddr::from(([127, 0, 0, 3], 0))];
            let net = match shard {
                0 => RealNet::bind_for(&at, &siblings, tls).unwrap(),
                _ => RealNet::of_shard(shard, &[], &siblings, tls),
            };
            tell.send(net.addresses().first().copied()).unwrap();
            let twice = Twice::default();
            let peers = start_shard(&net, Addr { host: B, shard }, 3, twice.clone());
            // All ask all, each itself too.
            for to in 0..3 {
                ask(&peers, Addr { host: B, shard: to }, COUNT).await;
            }
            done.send(()).unwrap();
            ending.wait_for(|end| *end).await.unwrap();
            peers.stop();
            assert_eq!(peers.counters().frames_bad, 0);
            twice.seen.take().len()
        };
        shards.push(Shard::start(&format!("shard-{shard}"), main).unwrap());
    }
    let endpoint = (0..3).find_map(|_| told.recv().unwrap()).unwrap();
    run(async {
        let net = bind_as(tls_a.as_ref(), [127, 0, 0, 2], 0);
        let a = start(&net, A, Twice::default());
        a.set_peer(B, vec![endpoint.to_string()]);
        for shard in 0..3 {
            ask(&a, Addr { host: B, shard }, COUNT).await;
        }
        let none = Addr { host: B, shard: 3 };
        let refused = a.call(none, Lane::Data, Bytes(0, vec![]), now() + Nanos::from_secs(9)).await;
        let Err(CallError::Refused(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains("shards: 3"), "{why}");
        a.stop();
    })
    .unwrap();
    for _ in 0..3 {
        all_asked.recv_timeout(Duration::from_secs(60)).expect("every shard has asked every one");
    }
    end.send(true).unwrap();
    for shard in shards {
        assert_eq!(shard.join().unwrap(), 4 * COUNT as usize, "by three shards and a peer");
    }
}

fn bytes(len: usize) -> Buf {
    Buf::copy_from(&(0..len).map(|n| (n * 7 + n / 256) as u8).collect::<Vec<_>>())
}

#[test]
fn calls_of_every_size_come_back_in_order_over_tcp() {
    call_with_every_size(None, None);
}

/// Passes on what two ends say to each other and flips a bit of about every 100th piece, until told
/// to stop. Says how many.
#[allow(clippy::disallowed_methods, reason = "it is the network, and no part of a host")]
fn flip_bits(to: SocketAddr, stop: Arc<AtomicBool>) -> (SocketAddr, Arc<AtomicU32>) {
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    let listener = TcpListener::bind("127.0.0.9:0").unwrap();
    let (at, flips) = (listener.local_addr().unwrap(), Arc::new(AtomicU32::new(0)));
    let count = flips.clone();
    std::thread::spawn(move || {
        let pass = |mut from: TcpStream, mut to: TcpStream, flips: Arc<AtomicU32>, seed: u32| {
            let stop = stop.clone();
            std::thread::spawn(move || {
                let (mut piece, mut chance) = ([0; 16384], seed);
                while let Ok(len @ 1..) = from.read(&mut piece) {
                    chance = chance.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    if (chance >> 8).is_multiple_of(100) && !stop.load(Ordering::Relaxed) {
                        piece[(chance >> 4) as usize % len] ^= 1 << (chance >> 29);
                        flips.fetch_add(1, Ordering::Relaxed);
                    }
                    if to.write_all(&piece[..len]).is_err() {
                        break;
                    }
                }
                let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
            });
        };
        for (n, client) in (1..).zip(listener.incoming()) {
            let (client, server) = (client.unwrap(), TcpStream::connect(to).unwrap());
            let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
            pass(client, server, count.clone(), n);
            pass(back.0, back.1, count.clone(), n + 77);
        }
    });
    (at, flips)
}

/// Each flipped bit ends its connection, and no byte that arrives is another one than was sent.
#[test]
fn flipped_bits_cost_the_connection_and_never_a_byte() {
    run(async {
        let authority = authority();
        let (tls_a, tls_b) = (tls(&authority, A), tls(&authority, B));
        let net_a = bind_as(Some(&tls_a), [127, 0, 0, 2], 0);
        let net_b = bind_as(Some(&tls_b), [127, 0, 0, 3], 0);
        let (a, b) = (start(&net_a, A, Twice::default()), start(&net_b, B, Twice::default()));
        let stop = Arc::new(AtomicBool::new(false));
        let (proxy, flips) = flip_bits(net_b.addresses()[0], stop.clone());
        a.set_peer(B, vec![proxy.to_string()]);
        let (mut good, mut lost) = (0, 0);
        let give_up = now() + Nanos::from_secs(40);
        while flips.load(Ordering::Relaxed) < 10 || good < 20 {
            assert!(now() < give_up, "{good} good, {lost} lost, {flips:?} flips");
            let whole = bytes([4096, 65536, 300_000][good as usize % 3]);
            let call = Bytes(good, vec![whole.clone()]);
            match a.call(B, Lane::Data, call, now() + Nanos::from_secs(2)).await {
                Ok(Bytes(number, payload)) => {
                    let payload = atoll_world::buf::join(&payload);
                    assert!(payload[..] == [&whole[..], &whole].concat(), "wrong bytes");
                    assert_eq!(number, good);
                    good += 1;
                }
                Err(_) => {
                    lost += 1;
                    sleep_until(now() + MS * 20).await;
                }
            }
        }
        assert!(lost > 0, "no connection was lost");
        // TLS finds them all: none comes as far as the checksums of frames.
        assert_eq!(a.counters().frames_bad + b.counters().frames_bad, 0);
        stop.store(true, Ordering::Relaxed);
        until(|| a.peer(B).connected).await;
        ask(&a, B.into(), 32).await;
        a.stop();
        b.stop();
    })
    .unwrap();
}

#[test]
fn calls_of_every_size_come_back_in_order_over_tls() {
    let authority = authority();
    call_with_every_size(Some(tls(&authority, A)), Some(tls(&authority, B)));
}

fn call_with_every_size(tls_a: Option<PeerTls>, tls_b: Option<PeerTls>) {
    run(async {
        let net_a = bind_as(tls_a.as_ref(), [127, 0, 0, 2], 0);
        let net_b = bind_as(tls_b.as_ref(), [127, 0, 0, 3], 0);
        let twice = Twice::default();
        let (a, b) = (start(&net_a, A, Twice::default()), start(&net_b, B, twice.clone()));
        a.set_peer(B, vec![net_b.addresses()[0].to_string()]);
        let far = now() + Nanos::from_secs(30);
        // Around every boundary: no payload, the copied and the direct one, the stream buffer.
        let lens =
            [0, 1, 511, 4096, 16383, 16384, 16385, 65536, 262_080, 262_144, 300_000, 1 << 20];
        let calls = (0u32..).zip(lens.repeat(20)).map(|(n, len)| {
            let whole = bytes(len);
            let pieces = vec![whole.slice(..len / 3), whole.slice(len / 3..)];
            a.call(B, Lane::Data, Bytes(n, pieces), far)
        });
        let calls: Vec<_> = calls.collect();
        for ((n, len), reply) in (0u32..).zip(lens.repeat(20)).zip(join_all(calls).await) {
            let Bytes(number, payload) = reply.unwrap();
            assert_eq!(number, n);
            let payload = atoll_world::buf::join(&payload);
            assert_eq!(payload[..], [&bytes(len)[..], &bytes(len)].concat(), "{len} bytes");
        }
        assert_eq!(*twice.seen.borrow(), (0..240).collect::<Vec<_>>());
        until(|| a.peer(B).round_trip.is_some()).await;
        assert!(a.peer(B).connected && a.counters().frames_bad + b.counters().frames_bad == 0);
        // Connections come from the address that the host listens at.
        assert!(b.peer(A).last_heard.is_some());
        a.stop();
        b.stop();
    })
    .unwrap();
}

/// Each end says why, so that it stands in both logs.
#[test]
fn who_has_no_certificate_of_the_cluster_for_its_host_is_refused() {
    let (ours, theirs) = (authority(), authority());
    let good = tls(&ours, B);
    let cases: [(Option<PeerTls>, &[&str]); 4] = [
        (None, &["TLS"]),
        (Some(tls(&theirs, A)), &["certificate"]),
        // Of this cluster, and of another host than it says.
        (
            Some(tls(&ours, HostId(0xc))),
            &["'x' says that it is 000000000000000a", "of 000000000000000c"],
        ),
        (Some(tls(&ours, A)), &[]),
    ];
    for (tls, parts) in cases {
        run(async {
            let net_a = bind_as(tls.as_ref(), [127, 0, 0, 2], 0);
            let net_b = bind_as(Some(&good), [127, 0, 0, 3], 0);
            let (a, b) = (start(&net_a, A, Twice::default()), start(&net_b, B, Twice::default()));
            a.set_peer(B, vec![net_b.addresses()[0].to_string()]);
            b.set_peer(A, vec![net_a.addresses()[0].to_string()]);
            let soon = || now() + Nanos::from_secs(3);
            for (from, to) in [(&a, B), (&b, A)] {
                let said = from.call(to, Lane::Data, Bytes(1, vec![]), soon()).await;
                match said {
                    Ok(_) => assert!(parts.is_empty(), "{to} answers"),
                    Err(CallError::Refused(why)) => {
                        let says = |part: &&str| why.contains(*part);
                        assert!(!parts.is_empty() && parts.iter().all(says), "{why}");
                    }
                    // One without TLS only sees its connection end.
                    Err(e) => assert!(tls.is_none() && to == B, "{to}: {e}"),
                }
            }
            a.stop();
            b.stop();
        })
        .unwrap();
    }
}

#[test]
fn a_peer_that_ends_and_comes_back_at_the_same_port_is_found_again() {
    run(async {
        let (net_a, net_b) = (bind([127, 0, 0, 2], 0), bind([127, 0, 0, 3], 0));
        let address = net_b.addresses()[0];
        let (a, b) = (start(&net_a, A, Twice::default()), start(&net_b, B, Twice::default()));
        a.set_peer(B, vec![address.to_string()]);
        b.set_peer(A, vec![net_a.addresses()[0].to_string()]);
        until(|| a.peer(B).connected && b.peer(A).connected).await;
        b.stop();
        drop((b, net_b));
        until(|| !a.peer(B).connected).await;
        sleep_until(now() + MS * 100).await;
        let call = a.call(B, Lane::Data, Bytes(1, vec![]), now() + Nanos::from_secs(5));
        assert_eq!(call.await, Err(CallError::Unreachable));
        let net_b = bind([127, 0, 0, 3], address.port());
        let b = start(&net_b, B, Twice::default());
        until(|| a.peer(B).connected).await;
        let call = a.call(B, Lane::Data, Bytes(2, vec![]), now() + Nanos::from_secs(5));
        assert_eq!(call.await, Ok(Bytes(2, vec![])));
        a.stop();
        b.stop();
    })
    .unwrap();
}

#[test]
fn a_port_that_is_taken_is_named() {
    run(async {
        let net = bind([127, 0, 0, 4], 0);
        let error = RealNet::bind(net.addresses()).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        assert!(error.to_string().contains(&net.addresses()[0].to_string()), "{error}");
    })
    .unwrap();
}

async fn connected() -> (RealConn, RealConn) {
    let net = bind([127, 0, 0, 5], 0);
    let endpoint = net.addresses()[0].to_string();
    let (out, accepted) = join(net.connect(&endpoint, Lane::Data), net.accept()).await;
    (out.unwrap(), accepted.unwrap())
}

fn ping(id: u64) -> Packet {
    let head = FrameHead::new(VERSION_MAX, FrameKind::Ping, id, &[]).encode();
    Packet { head, body: vec![], payload: vec![] }
}

#[test]
fn what_was_sent_before_the_end_arrives_and_then_the_end_is_seen() {
    run(async {
        for close in [true, false] {
            let (a, b) = connected().await;
            for id in 1..=100 {
                a.send(ping(id)).unwrap();
            }
            if close {
                a.close();
                assert!(a.send(ping(0)).is_err() && a.recv().await.is_err());
            }
            drop(a);
            for id in 1..=100 {
                let head = FrameHead::decode(&b.recv().await.unwrap().head).unwrap();
                assert_eq!(head.request_id, id);
            }
            assert_eq!(b.recv().await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        }
        // `close` wakes who waits at this end.
        let (a, _b) = connected().await;
        let clone = a.clone();
        let (received, ()) = join(a.recv(), async move { clone.close() }).await;
        assert_eq!(received.unwrap_err().kind(), ErrorKind::ConnectionAborted);
    })
    .unwrap();
}

/// A host of a large cluster hears a heartbeat more often than every millisecond.
#[test]
#[allow(clippy::disallowed_methods, reason = "a peer that is idle between its heartbeats")]
fn what_peers_say_keeps_no_idle_host_awake() {
    run(async {
        let net = bind([127, 0, 0, 6], 0);
        let endpoint = net.addresses()[0].to_string();
        let other = Shard::start("other", move || async move {
            let conn = bind([127, 0, 0, 7], 0).connect(&endpoint, Lane::Control).await.unwrap();
            for id in 1..=1000 {
                conn.send(ping(id)).unwrap();
                // Its writer sends; then nobody does, for less than the runtime's timers can wait.
                tokio::task::yield_now().await;
                tokio::task::yield_now().await;
                std::thread::sleep(Duration::from_micros(300));
            }
        });
        let conn = net.accept().await.unwrap();
        let cpu = || clock_gettime(ClockId::ThreadCPUTime);
        let nanos = |t: Timespec| t.tv_sec as f64 * 1e9 + t.tv_nsec as f64;
        let (began, cpu_before) = (now(), cpu());
        for _ in 1..=1000 {
            conn.recv().await.unwrap();
        }
        let share = (nanos(cpu()) - nanos(cpu_before)) / now().since(began).0 as f64;
        assert!(share < 0.5, "{share} of the time on a processor, for heartbeats");
        other.unwrap().join().unwrap();
    })
    .unwrap();
}

#[test]
fn bytes_that_are_no_frame_end_the_connection_before_memory_is_set_aside() {
    run(async {
        let mut huge = FrameHead::new(VERSION_MAX, FrameKind::Ping, 1, &[]).encode();
        // A payload of 4 GiB, with a wrong CRC and with a right one.
        huge[28..32].fill(0xff);
        let mut right = huge;
        let crc = atoll_format::checksum::crc(&right[..60]);
        right[60..].copy_from_slice(&crc.to_le_bytes());
        for junk in [
            &[0; 64][..],
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n                                          ",
            &huge,
            &right,
        ] {
            let net = bind([127, 0, 0, 5], 0);
            let mut stream = tokio::net::TcpStream::connect(net.addresses()[0]).await.unwrap();
            let conn = net.accept().await.unwrap();
            let good = ping(5);
            // In pieces, so that a head arrives in parts.
            for part in [&good.head[..10], &good.head[10..], junk] {
                stream.write_all(part).await.unwrap();
                sleep_until(now() + MS).await;
            }
            assert_eq!(conn.recv().await.unwrap().head, good.head);
            assert_eq!(conn.recv().await.unwrap_err().kind(), ErrorKind::InvalidData);
        }
    })
    .unwrap();
}

async fn echo(client: RealStream, server: RealStream) {
    let (mut from_client, mut to_client) = server.split();
    let (mut from_server, mut to_server) = client.split();
    let pieces: Vec<_> = (0..3000usize)
        .flat_map(|n| [Piece::Bytes(vec![n as u8; n % 50]), Piece::Buf(bytes(n % 5000))])
        .collect();
    let sent: Vec<u8> = pieces.iter().flat_map(|p| p.as_slice().to_vec()).collect();
    let sending = async {
        to_server.write_all(vec![]).await.unwrap();
        to_server.write_all(pieces).await.unwrap();
        drop(to_server);
    };
    let echoing = async {
        let mut all = Vec::new();
        let mut buffer = vec![0; 100_000];
        while all.len() < sent.len() {
            let n = from_client.read(&mut buffer).await.unwrap();
            assert_ne!(n, 0);
            all.extend_from_slice(&buffer[..n]);
        }
        to_client.write_all(vec![Piece::Bytes(all)]).await.unwrap();
        drop((to_client, from_client));
    };
    let receiving = async {
        let mut all = Vec::new();
        let mut buffer = vec![0; 10_000];
        loop {
            match from_server.read(&mut buffer).await.unwrap() {
                0 => return all,
                n => all.extend_from_slice(&buffer[..n]),
            }
        }
    };
    let ((), ((), received)) = join(sending, join(echoing, receiving)).await;
    assert!(received == sent, "{} bytes of {}", received.len(), sent.len());
}

#[test]
fn streams_carry_every_piece_both_ways_and_show_their_end() {
    run(async {
        let listener = StreamListener::tcp(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let address = listener.address().unwrap();
        let client = tokio::net::TcpStream::connect(address).await.unwrap();
        let taken = StreamListener::tcp(address).await.err().unwrap().to_string();
        assert!(taken.contains(&address.to_string()), "{taken}");
        echo(RealStream::tcp(client).unwrap(), listener.accept().await.unwrap()).await;

        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = StreamListener::unix(&path).unwrap();
        let client = tokio::net::UnixStream::connect(&path).await.unwrap();
        let server = listener.accept().await.unwrap();
        assert!(server.peer().contains(&std::process::id().to_string()), "{}", server.peer());
        echo(RealStream::unix(client), server).await;
    })
    .unwrap();
}

#[test]
fn a_socket_file_is_taken_over_only_when_nobody_listens_there() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let first = StreamListener::unix(&path).unwrap();
        let taken = StreamListener::unix(&path).err().unwrap();
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
        assert!(taken.to_string().contains("socket"), "{taken}");
        drop(first);
        assert!(!path.exists());
        // What a killed process leaves behind.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        drop(StreamListener::unix(&path).unwrap());
        std::fs::write(&path, "precious").unwrap();
        let other = StreamListener::unix(&path).err().unwrap();
        assert_eq!(other.kind(), ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    })
    .unwrap();
}

/// The exports of a shard: another one is to serve them, if it says so.
#[derive(Clone)]
struct Exports(Fixed<MemoryVolume>, Option<u8>);

impl Volumes for Exports {
    type Volume = MemoryVolume;
    async fn open(&self, name: &str) -> Result<MemoryVolume, VolumeError> {
        self.0.open(name).await
    }
    async fn list(&self, max: usize) -> Result<Vec<ExportName>, VolumeError> {
        self.0.list(max).await
    }
    async fn elsewhere(&self, _name: &str) -> Option<u8> {
        self.1
    }
}

fn nbd_server(elsewhere: Option<u8>) -> Server<RealWorld<NoDirectory>, Exports> {
    let net = RealNet::of_shard(elsewhere.map_or(1, |_| 0), &[], &Siblings::of(2), None);
    let world = RealWorld::new(net, NoDirectory).unwrap();
    let disk = MemoryVolume::new(VOLUME_BYTES);
    let volumes = Fixed::new([("disk".to_owned(), disk, String::new())]);
    Server::new(world, Exports(volumes, elsewhere), Limits::default())
}

const VOLUME_BYTES: u64 = 4 << 20;

/// An NBD client that uses `disk`, writes so much behind its choice that not all of it fits into a
/// socket, and reads it back.
async fn use_disk(client: impl AsyncRead + AsyncWrite) {
    let (mut read, mut write) = tokio::io::split(client);
    let data: Vec<u8> = (0..3 << 20).map(|i| (i / 777) as u8).collect();
    let len = u32::try_from(data.len()).unwrap().to_be_bytes();
    let request = |command, len: &[u8]| {
        [&[0x25, 0x60, 0x95, 0x13, 0, 0, 0, command][..], &[command; 8], &[0; 8], len].concat()
    };
    let sending = async {
        let choice = b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x04disk";
        let all = [&choice[..], &request(1, &len), &data, &request(0, &len)].concat();
        write.write_all(&all).await.unwrap();
    };
    let receiving = async {
        // The greeting; size and flags of the export; the answer to the write; that to the read.
        let mut answers = vec![0; 18 + 10 + 16 + 16 + data.len()];
        read.read_exact(&mut answers).await.unwrap();
        answers
    };
    let ((), answers) = join(sending, receiving).await;
    assert_eq!(answers[18..26], VOLUME_BYTES.to_be_bytes());
    let done = |command| [&[0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0][..], &[command; 8]].concat();
    assert_eq!(answers[28..44], done(1));
    assert_eq!(answers[44..60], done(0));
    assert!(answers[60..] == data);
    write.write_all(&request(2, &[0; 4])).await.unwrap();
    assert_eq!(read.read(&mut [0]).await.unwrap(), 0);
}

#[test]
fn an_nbd_client_is_handed_over_to_another_thread() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let (tell, told) = std::sync::mpsc::channel();
    let (hand, mut handed) = tokio::sync::mpsc::channel::<(DetachedStream, String, Suspended)>(1);
    let at = path.clone();
    let first = Shard::start("first", || async move {
        let listeners = [
            StreamListener::tcp(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap(),
            StreamListener::unix(at).unwrap(),
        ];
        tell.send(listeners[0].address().unwrap()).unwrap();
        let server = nbd_server(Some(1));
        for listener in &listeners {
            let stream = listener.accept().await.unwrap();
            let peer = stream.peer();
            let Served::HandOver(to) = server.serve(stream).await else { panic!("it stayed") };
            assert_eq!((to.shard, to.stream.peer()), (1, peer.clone()));
            hand.send((to.stream.detach().unwrap(), peer, to.session)).await.unwrap();
        }
        server.stats()
    });
    let second = Shard::start("second", || async move {
        let server = nbd_server(None);
        while let Some((stream, peer, session)) = handed.recv().await {
            // The client goes on sending in the meantime.
            sleep_until(now() + MS * 20).await;
            let stream = RealStream::attach(stream).unwrap();
            assert_eq!(stream.peer(), peer);
            assert!(matches!(server.resume(stream, session).await, Ended::Goodbye));
        }
        server.stats()
    });
    let address = told.recv().unwrap();
    let clients = async {
        use_disk(tokio::net::TcpStream::connect(address).await.unwrap()).await;
        use_disk(tokio::net::UnixStream::connect(&path).await.unwrap()).await;
    };
    let served = async { tokio::time::timeout(Duration::from_secs(30), clients).await };
    run(served).unwrap().expect("they are served");
    let first = first.unwrap().join().unwrap();
    let second = second.unwrap().join().unwrap();
    assert_eq!((first.accepted, first.resumed, first.requests), (2, 0, 0));
    assert_eq!((second.accepted, second.resumed, second.requests), (0, 2, 4));
}

/// What came before it was detached and was not read is read after that, and no more is lost; the
/// end of the stream as well.
#[test]
fn a_stream_is_one_stream_on_every_thread() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = StreamListener::unix(&path).unwrap();
        let mut client = tokio::net::UnixStream::connect(&path).await.unwrap();
        let server = listener.accept().await.unwrap();
        client.write_all(b"before and after").await.unwrap();
        let (mut read, mut write) = server.split();
        let mut some = [0; 7];
        assert_eq!(read.read(&mut some).await.unwrap(), 7);
        write.write_all(vec![Piece::Bytes(b"one ".to_vec())]).await.unwrap();
        let detached = RealStream::unite(read, write).detach().unwrap();
        let other = Shard::start("other", || async {
            let (mut read, mut write) = RealStream::attach(detached).unwrap().split();
            write.write_all(vec![Piece::Bytes(b"two".to_vec())]).await.unwrap();
            let mut rest = [0; 20];
            let len = read.read(&mut rest).await.unwrap();
            rest[..len].to_vec()
        });
        let mut answers = String::new();
        client.read_to_string(&mut answers).await.unwrap();
        assert_eq!(answers, "one two");
        assert_eq!(other.unwrap().join().unwrap(), b"and after");

        // Dropped on its way, it ends.
        let mut client = tokio::net::UnixStream::connect(&path).await.unwrap();
        drop(listener.accept().await.unwrap().detach().unwrap());
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
    })
    .unwrap();
}

#[test]
#[should_panic(expected = "two halves of one stream")]
fn halves_of_two_streams_are_not_one() {
    run(async {
        let pair = || RealStream::unix(tokio::net::UnixStream::pair().unwrap().0).split();
        let ((read, _), (_, write)) = (pair(), pair());
        RealStream::unite(read, write);
    })
    .unwrap();
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

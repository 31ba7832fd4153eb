//! Promises of the transport, each kept in a world with virtual time: order, credits, deadlines,
//! lost connections, refusals, damage.

mod world;

use atoll_format::frame::{
    FrameHead, FrameKind, HEAD_LEN, Hello, VERSION_HANDSHAKE, VERSION_MAX, VERSION_MIN,
};
use atoll_format::id::{Addr, ClusterId, HostId, Incarnation};
use atoll_transport::{
    BadMessage, CallError, Encoded, Identity, Message, Peers, Service, Twin, limits,
};
use atoll_world::{Buf, Conn, Lane, Nanos, Net, Packet, World};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use world::{Lab, LabConn, LabWorld};

const A: HostId = HostId(0xa);
const B: HostId = HostId(0xb);
const MS: Nanos = Nanos::from_ms(1);
/// In the number of a request: the service asks whoever sent it something before it answers.
const ASKS_BACK: u32 = 1 << 30;

/// A request or reply of the test service.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Text {
    number: u32,
    /// How long the service takes, in microseconds.
    takes_us: u64,
    payload: Vec<u8>,
    checked: bool,
    /// Bytes that the reply will have.
    answer: u32,
}

fn text(number: u32) -> Text {
    Text { number, takes_us: 0, payload: vec![], checked: false, answer: 0 }
}

impl Message for Text {
    fn encode(self) -> Encoded {
        let mut body = self.number.to_le_bytes().to_vec();
        body.extend(self.takes_us.to_le_bytes());
        body.extend(self.answer.to_le_bytes());
        // Two pieces, so that the pieces of a payload are known to come back as one.
        let (one, two) = self.payload.split_at(self.payload.len() / 2);
        let payload = [one, two].into_iter().filter(|p| !p.is_empty()).map(Buf::copy_from);
        Encoded {
            kind: 7,
            body,
            payload: payload.collect(),
            payload_checked_by_receiver: self.checked,
        }
    }
    fn decode(kind: u16, body: &[u8], payload: Vec<Buf>) -> Result<Self, BadMessage> {
        if kind != 7 || body.len() != 16 {
            return Err(BadMessage("not a text"));
        }
        let number = u32::from_le_bytes(body[..4].try_into().unwrap());
        if number == u32::MAX {
            return Err(BadMessage("number is not a number"));
        }
        Ok(Self {
            number,
            takes_us: u64::from_le_bytes(body[4..12].try_into().unwrap()),
            answer: u32::from_le_bytes(body[12..].try_into().unwrap()),
            payload: atoll_world::buf::join(&payload).to_vec(),
            checked: false,
        })
    }
    fn reply_bytes(&self) -> u64 {
        u64::from(self.answer)
    }
    fn leads_on(&self) -> bool {
        self.number & ASKS_BACK != 0
    }
}

/// What a service has seen.
#[derive(Default)]
struct Log {
    begun: RefCell<Vec<u32>>,
    ended: RefCell<Vec<u32>>,
    running: Cell<u32>,
    running_most: Cell<u32>,
}

#[derive(Clone)]
struct Echo {
    world: LabWorld,
    log: Rc<Log>,
    peers: Rc<RefCell<Option<Peers<LabWorld, Echo>>>>,
}

impl Service for Echo {
    type Request = Text;
    type Reply = Text;
    fn handle(&self, from: Addr, request: Text) -> impl Future<Output = Text> + 'static {
        let (world, log) = (self.world.clone(), self.log.clone());
        let peers = self.peers.borrow().clone();
        async move {
            if request.leads_on() {
                let inner = text(request.number & !ASKS_BACK);
                let until = world.now() + Nanos::from_secs(5);
                let peers = peers.expect("started");
                let answer = peers.call(from, Lane::Data, inner, until).await;
                answer.expect("what others wait for has its part of the window");
            }
            log.begun.borrow_mut().push(request.number);
            log.running.set(log.running.get() + 1);
            log.running_most.set(log.running_most.get().max(log.running.get()));
            if request.takes_us > 0 {
                world.sleep(Nanos::from_us(request.takes_us)).await;
            }
            log.running.set(log.running.get() - 1);
            log.ended.borrow_mut().push(request.number);
            let answer = request.answer as usize;
            Text { payload: vec![request.number as u8; answer], ..request }
        }
    }
}

type Host = (Peers<LabWorld, Echo>, Rc<Log>);

fn identity(host: HostId, incarnation: u64) -> Identity {
    let name = if host == A { "alpha" } else { "beta" };
    Identity {
        cluster: ClusterId(1),
        host,
        shard: 0,
        shards: 1,
        incarnation: Incarnation(incarnation),
        name: name.into(),
    }
}

fn start(lab: &Lab, identity: Identity) -> Host {
    let host = if identity.host == A { "a" } else { "b" };
    let world = match identity.shard {
        0 => lab.host(host),
        shard => lab.host(&format!("{host}#{shard}")),
    };
    let log = Rc::new(Log::default());
    let own = Rc::new(RefCell::new(None));
    let service = Echo { world: world.clone(), log: log.clone(), peers: own.clone() };
    let peers = Peers::start(world, identity, service);
    *own.borrow_mut() = Some(peers.clone());
    (peers, log)
}

/// Two hosts that know each other, connected.
async fn pair(lab: &Lab) -> (Host, Host) {
    let (a, b) = (start(lab, identity(A, 1)), start(lab, identity(B, 2)));
    a.0.set_peer(B, vec!["b".into()]);
    b.0.set_peer(A, vec!["a".into()]);
    until(lab, || a.0.peer(B).connected && b.0.peer(A).connected).await;
    (a, b)
}

async fn until(lab: &Lab, condition: impl Fn() -> bool) {
    let give_up = lab.now() + Nanos::from_secs(60);
    while !condition() {
        assert!(lab.now() < give_up, "it never came true");
        lab.sleep(MS).await;
    }
}

fn run<F: Future<Output = ()> + 'static>(test: impl FnOnce(Lab) -> F) {
    let lab = Lab::default();
    // Later than any period of the transport, so that a beginning at zero hides nothing.
    lab.run({
        let lab = lab.clone();
        async move { lab.sleep(Nanos::from_secs(100)).await }
    });
    lab.run(test(lab.clone()));
}

#[test]
fn a_call_brings_back_what_the_peer_answered() {
    run(|lab| async move {
        let ((a, _), _b) = pair(&lab).await;
        for checked in [false, true] {
            let mut request = text(5);
            request.payload = vec![9; 10_000];
            request.checked = checked;
            request.answer = 70_000;
            let reply = a.call(B, Lane::Data, request, lab.now() + MS * 100).await.unwrap();
            assert_eq!((reply.number, reply.payload), (5, vec![5; 70_000]));
        }
        let state = a.peer(B);
        assert_eq!(state.incarnation, Some(Incarnation(2)));
        until(&lab, || a.peer(B).round_trip.is_some()).await;
        assert_eq!(a.peer(B).round_trip, Some(world::LATENCY * 2));
        assert!(lab.now().since(a.peer(B).last_heard.unwrap()) <= limits::PING_EVERY * 2);
        assert_eq!(a.peer(HostId(9)), atoll_transport::PeerState::default());
    });
}

#[test]
fn requests_of_a_lane_begin_in_the_order_of_the_calls() {
    run(|lab| async move {
        let (a, b) = (start(&lab, identity(A, 1)), start(&lab, identity(B, 2)));
        a.0.set_peer(B, vec!["b".into()]);
        // Called while connecting, beyond the window, and with very different durations.
        let calls: Vec<_> = (0..3000)
            .map(|n| {
                let request = Text { takes_us: u64::from(n * 7919 % 500), ..text(n) };
                a.0.call(B, Lane::Data, request, lab.now() + Nanos::from_secs(10))
            })
            .collect();
        for (n, call) in calls.into_iter().enumerate().rev() {
            assert_eq!(call.await.unwrap().number as usize, n);
        }
        assert_eq!(*b.1.begun.borrow(), (0..3000).collect::<Vec<_>>());
        assert_ne!(*b.1.ended.borrow(), (0..3000).collect::<Vec<_>>(), "they overlap");
        assert!(b.1.running_most.get() <= limits::WINDOW_REQUESTS);
        assert!(b.1.running_most.get() > limits::WINDOW_REQUESTS / 2, "the window is used");
    });
}

#[test]
fn requests_and_their_replies_stay_within_the_window_in_bytes() {
    run(|lab| async move {
        let ((a, _), b) = pair(&lab).await;
        let calls: Vec<_> = (0..60)
            .map(|n| {
                let request = Text { takes_us: 1000, answer: 2 << 20, ..text(n) };
                a.call(B, Lane::Bulk, request, lab.now() + Nanos::from_secs(10))
            })
            .collect();
        for call in calls {
            assert_eq!(call.await.unwrap().payload.len(), 2 << 20);
        }
        let most = (limits::WINDOW_BYTES / (2 << 20)) as u32;
        assert!((most - 1..=most).contains(&b.1.running_most.get()), "{}", b.1.running_most.get());
    });
}

#[test]
fn a_local_call_is_begun_before_it_returns_and_outlives_its_caller() {
    run(|lab| async move {
        let (a, log) = start(&lab, identity(A, 1));
        let later = lab.now() + MS * 50;
        let mut calls: Vec<_> = (0..4)
            .map(|n| a.call(A, Lane::Data, Text { takes_us: u64::from(n), ..text(n) }, later))
            .collect();
        assert_eq!(*log.begun.borrow(), [0, 1, 2, 3], "nobody has waited yet");
        assert_eq!(*log.ended.borrow(), [0]);
        drop(calls.pop());
        for (n, call) in calls.into_iter().enumerate().rev() {
            assert_eq!(call.await.unwrap().number as usize, n);
        }
        until(&lab, || log.ended.borrow().len() == 4).await;
        let slow = Text { takes_us: 100_000, ..text(9) };
        let begun = lab.now();
        let late = a.call(A, Lane::Data, slow, lab.now() + MS * 5).await;
        assert_eq!((late, lab.now()), (Err(CallError::Deadline), begun + MS * 5));
        until(&lab, || log.ended.borrow().contains(&9)).await;
        assert_eq!(a.counters().frames_sent, 0);
        assert_eq!((a.counters().calls_local, a.counters().replies_late), (5, 1));
        // Answered before its caller looks, by the end of everything.
        let held = a.call(A, Lane::Data, Text { takes_us: 1_000, ..text(10) }, lab.now() + MS * 50);
        a.stop();
        lab.sleep(MS * 5).await;
        assert_eq!(held.await, Err(CallError::Disconnected));
        until(&lab, || log.ended.borrow().contains(&10)).await;
    });
}

#[test]
fn a_late_reply_is_thrown_away_and_the_next_call_is_not_confused_by_it() {
    run(|lab| async move {
        let ((a, _), b) = pair(&lab).await;
        let begun = lab.now();
        let slow = a.call(B, Lane::Data, Text { takes_us: 50_000, ..text(1) }, begun + MS * 5);
        assert_eq!((slow.await, lab.now()), (Err(CallError::Deadline), begun + MS * 5));
        let reply = a.call(B, Lane::Data, text(2), lab.now() + MS * 5).await.unwrap();
        assert_eq!(reply.number, 2);
        until(&lab, || a.counters().replies_late == 1).await;
        assert_eq!(*b.1.ended.borrow(), [2, 1]);
        // A deadline that is over already, and one that is nearer than all before.
        let over = a.call(B, Lane::Data, text(3), lab.now()).await;
        assert_eq!(over, Err(CallError::Deadline));
        let _far = a.call(B, Lane::Data, Text { takes_us: 1, ..text(4) }, Nanos::NEVER);
        assert_eq!(a.call(B, Lane::Data, text(5), lab.now() + MS).await.unwrap().number, 5);
    });
}

#[test]
fn a_lost_connection_leaves_sent_calls_open_and_unsent_ones_without_effect() {
    run(|lab| async move {
        let ((a, _), (b, log)) = pair(&lab).await;
        let far = lab.now() + Nanos::from_secs(100);
        let most = limits::WINDOW_REQUESTS;
        let calls: Vec<_> = (0..most + 10)
            .map(|n| a.call(B, Lane::Data, Text { takes_us: 900_000, ..text(n) }, far))
            .collect();
        lab.sleep(MS).await;
        assert_eq!(log.begun.borrow().len(), most as usize);
        lab.deaf("b");
        b.stop();
        for (n, call) in calls.into_iter().enumerate() {
            let sent = n < most as usize;
            let expected = if sent { CallError::Disconnected } else { CallError::Unreachable };
            assert_eq!(call.await, Err(expected), "call {n}");
        }
        assert!(!a.peer(B).connected);
        // The first attempt to connect again fails; from then on calls fail at once.
        let calm = async || {
            lab.sleep(MS * 50).await;
            a.call(B, Lane::Control, text(1), far).await
        };
        assert_eq!(calm().await, Err(CallError::Unreachable));
        let begun = lab.now();
        assert_eq!(a.call(B, Lane::Control, text(1), far).await, Err(CallError::Unreachable));
        assert_eq!(lab.now(), begun);
        // Handlers ran to their end although nobody waited.
        until(&lab, || log.ended.borrow().len() == most as usize).await;
        // It comes back as another life, and is found again.
        let (b, _) = start(&lab, identity(B, 3));
        until(&lab, || a.peer(B).connected).await;
        assert_eq!(a.peer(B).incarnation, Some(Incarnation(3)));
        let before = a.counters().calls_remote;
        assert_eq!(a.call(B, Lane::Data, text(7), far).await.unwrap().number, 7);
        assert_eq!((a.counters().calls_remote - before, b.counters().requests_served), (1, 1));
    });
}

#[test]
fn a_silent_peer_is_lost_after_its_time_and_found_again_when_it_speaks() {
    run(|lab| async move {
        let ((a, _), (b, _)) = pair(&lab).await;
        lab.sleep(Nanos::from_secs(30)).await;
        assert_eq!(a.counters().peers_lost, 0, "an idle peer is not a lost one");
        lab.cut("b", "a");
        let begun = lab.now();
        let call = a.call(B, Lane::Data, text(1), lab.now() + Nanos::from_secs(60));
        assert_eq!(call.await, Err(CallError::Disconnected));
        let took = lab.now().since(begun);
        assert!(took >= limits::LOST_AFTER - limits::PING_EVERY, "{took:?}");
        assert!(took <= limits::LOST_AFTER + limits::PING_EVERY, "{took:?}");
        assert!(!a.peer(B).connected && a.counters().peers_lost == 1);
        lab.sleep(Nanos::from_secs(5)).await;
        let waits = a.call(B, Lane::Data, text(2), lab.now() + Nanos::from_secs(60));
        assert_eq!(waits.await, Err(CallError::Unreachable));
        lab.heal();
        until(&lab, || a.peer(B).connected && b.peer(A).connected).await;
        let reply = a.call(B, Lane::Data, text(3), lab.now() + MS * 100).await;
        assert_eq!(reply.unwrap().number, 3);
    });
}

#[test]
fn one_connection_that_carries_nothing_any_more_is_opened_anew() {
    run(|lab| async move {
        let ((a, _), _) = pair(&lab).await;
        lab.swallow();
        let begun = lab.now();
        let call = a.call(B, Lane::Data, text(1), lab.now() + Nanos::from_secs(60));
        assert_eq!(call.await, Err(CallError::Disconnected));
        assert!(lab.now().since(begun) <= limits::LANE_LOST_AFTER + limits::PING_EVERY * 2);
        until(&lab, || a.peer(B).connected).await;
        let reply = a.call(B, Lane::Data, text(2), lab.now() + MS * 100).await;
        assert_eq!(reply.unwrap().number, 2);
        assert_eq!(a.counters().peers_lost, 0, "the peer itself was there all the time");
    });
}

#[test]
fn a_host_that_was_paused_does_not_take_its_own_silence_for_its_peers() {
    run(|lab| async move {
        let ((a, _), (b, _)) = pair(&lab).await;
        for _ in 0..5 {
            lab.pause(Nanos::from_secs(10));
            lab.sleep(Nanos::from_secs(5)).await;
        }
        assert_eq!((a.counters().peers_lost, b.counters().peers_lost), (0, 0));
        assert_eq!((a.counters().disconnects, b.counters().disconnects), (0, 0));
        assert!(a.peer(B).connected);
    });
}

#[test]
fn another_cluster_another_host_and_a_twin_are_refused_by_name() {
    run(|lab| async move {
        let (a, _) = start(&lab, identity(A, 1));
        let stranger = Identity { cluster: ClusterId(2), ..identity(B, 2) };
        let (b, log) = start(&lab, stranger);
        let far = lab.now() + Nanos::from_secs(10);
        a.set_peer(B, vec!["b".into()]);
        let refused = a.call(B, Lane::Data, text(1), far).await;
        let Err(CallError::Refused(why)) = refused else { panic!("{refused:?}") };
        let names = ["alpha", "beta", "0000000000000001", "0000000000000002"];
        assert!(names.iter().all(|n| why.contains(n)), "{why}");
        // Again, and at once, without a new attempt.
        assert_eq!(a.call(B, Lane::Data, text(1), far).await, Err(CallError::Refused(why)));
        let other = HostId(0xc);
        a.set_peer(other, vec!["b".into()]);
        assert!(matches!(
            a.call(other, Lane::Data, text(1), far).await,
            Err(CallError::Refused(_))
        ));
        assert!(log.begun.borrow().is_empty() && !b.peer(A).connected);
        assert!(b.counters().handshakes_refused >= 2);
        // Right cluster, wrong host at that address; and an address that is our own.
        let _d = start(&lab, identity(B, 4));
        let wrong = HostId(0xd);
        for (host, endpoint, part) in [(wrong, "b", "looking for"), (HostId(0xe), "a", "looking")] {
            a.set_peer(host, vec![endpoint.into()]);
            let refused = a.call(host, Lane::Data, text(1), far).await;
            let Err(CallError::Refused(why)) = refused else { panic!("{refused:?}") };
            assert!(why.contains(part) && why.contains(&host.to_string()), "{why}");
        }
    });
}

#[test]
fn a_host_that_was_removed_is_cut_off_at_once_and_refused_until_that_is_taken_back() {
    run(|lab| async move {
        let ((a, seen), (b, _)) = pair(&lab).await;
        let far = lab.now() + Nanos::from_secs(60);
        let open = a.call(B, Lane::Data, Text { takes_us: 500_000, ..text(1) }, far);
        lab.sleep(MS).await;
        a.set_removed([B, A].into());
        assert_eq!(open.await, Err(CallError::Disconnected));
        assert!(a.is_removed(B) && !a.is_removed(A), "nobody removes itself");
        // Whatever it tries, and whoever names it as a host again.
        a.set_peer(B, vec!["b".into()]);
        lab.sleep(MS * 5000).await;
        assert!(!a.peer(B).connected && !b.peer(A).connected);
        let refused = b.take_refusals();
        let is_told = refused.iter().any(|r| r.why.contains("was removed from the cluster"));
        assert!(is_told, "{refused:?}");
        let asked = b.call(A, Lane::Control, text(2), lab.now() + MS * 500).await;
        assert!(asked.is_err() && !seen.begun.borrow().contains(&2), "{asked:?}");
        a.set_removed([].into());
        a.set_peer(B, vec!["b".into()]);
        until(&lab, || a.peer(B).connected && b.peer(A).connected).await;
    });
}

#[test]
fn the_next_endpoint_is_tried_and_new_ones_end_the_pause() {
    run(|lab| async move {
        let (a, _) = start(&lab, identity(A, 1));
        a.set_peer(B, vec!["nowhere".into()]);
        lab.sleep(Nanos::from_secs(10)).await;
        assert!(a.counters().connects_failed > 15, "three lanes, about one attempt a second");
        assert!(a.counters().connects_failed < 120, "{}", a.counters().connects_failed);
        let _b = start(&lab, identity(B, 2));
        a.set_peer(B, vec!["nowhere".into(), "b".into()]);
        lab.sleep(MS).await;
        assert!(a.peer(B).connected);
        a.remove_peer(B);
        let gone = a.call(B, Lane::Data, text(1), lab.now() + MS).await;
        assert_eq!(gone, Err(CallError::Unreachable));
        a.set_peer(B, vec!["b".into()]);
        assert_eq!(a.call(B, Lane::Data, text(1), lab.now() + MS).await.unwrap().number, 1);
    });
}

/// The rest of a pause would make the restart of an owner longer.
#[test]
fn a_peer_that_has_restarted_is_connected_to_as_soon_as_it_connects() {
    run(|lab| async move {
        let ((a, _), (b, _)) = pair(&lab).await;
        b.stop();
        lab.deaf("b");
        lab.sleep(Nanos::from_secs(10)).await;
        assert!(!a.peer(B).connected);
        for life in 3..8 {
            let (b, _) = start(&lab, identity(B, life));
            b.set_peer(A, vec!["a".into()]);
            lab.sleep(MS).await;
            assert!(a.peer(B).connected && b.peer(A).connected, "life {life}");
            b.stop();
            lab.deaf("b");
            lab.sleep(Nanos::from_secs(10)).await;
        }
    });
}

#[test]
fn a_message_that_is_not_understood_or_too_long_costs_only_its_call() {
    run(|lab| async move {
        let ((a, _), (b, log)) = pair(&lab).await;
        let far = lab.now() + Nanos::from_secs(1);
        let refused = a.call(B, Lane::Data, text(u32::MAX), far).await;
        let Err(CallError::Refused(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains("beta") && why.contains("number is not a number"), "{why}");
        let long = Text { payload: vec![0; (2 << 20) + 1], ..text(1) };
        assert_eq!(a.call(B, Lane::Data, long, far).await, Err(CallError::TooLarge));
        // A reply that does not fit: the request was carried out, the caller is told so.
        let refused = a.call(B, Lane::Data, Text { answer: (2 << 20) + 1, ..text(2) }, far).await;
        let Err(CallError::Refused(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains("carried out"), "{why}");
        assert_eq!(*log.ended.borrow(), [2]);
        assert_eq!(a.call(B, Lane::Data, text(3), far).await.unwrap().number, 3);
        assert_eq!((a.counters().disconnects, b.counters().messages_refused), (0, 2));
    });
}

#[test]
fn a_damaged_frame_costs_its_connection_and_is_never_acted_upon() {
    run(|lab| async move {
        let ((a, _), (b, log)) = pair(&lab).await;
        // In turn: a bit of the head, of the body, of the payload; of the request, of the reply.
        for (n, (from, part)) in
            [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("b", 2)].into_iter().enumerate()
        {
            until(&lab, || a.peer(B).connected).await;
            let kind = if from == "a" { FrameKind::Request } else { FrameKind::Reply };
            lab.damage(move |sender, packet| {
                if sender != from || packet.head[6] != kind as u8 {
                    return false;
                }
                match part {
                    0 => packet.head[20] ^= 4,
                    1 => packet.body[0] ^= 4,
                    _ => {
                        let mut bytes = packet.payload[0].to_vec();
                        bytes[100] ^= 4;
                        packet.payload[0] = Buf::copy_from(&bytes);
                    }
                }
                true
            });
            let bad = |p: &Peers<_, _>| p.counters().frames_bad;
            let before = bad(&a) + bad(&b);
            let request = Text { payload: vec![1; 4096], answer: 4096, ..text(n as u32) };
            let lost = a.call(B, Lane::Data, request, lab.now() + Nanos::from_secs(5)).await;
            assert_eq!(lost, Err(CallError::Disconnected), "{from} {part}");
            assert_eq!(bad(&a) + bad(&b), before + 1);
        }
        assert_eq!(*log.begun.borrow(), [3, 4, 5], "damaged requests were not begun");
    });
}

/// A connection to `b` on which this test speaks itself.
async fn raw(lab: &Lab) -> LabConn {
    let me = lab.host("raw");
    me.net().connect("b", Lane::Data).await.unwrap()
}

fn frame(version: u16, kind: FrameKind, id: u64, body: Vec<u8>) -> Packet {
    Packet { head: FrameHead::new(version, kind, id, &body).encode(), body, payload: vec![] }
}

fn hello(change: impl FnOnce(&mut Hello)) -> Packet {
    let mut hello = Hello {
        version_min: VERSION_MIN,
        version_max: VERSION_MAX,
        lane: Lane::Data as u8,
        cluster: ClusterId(1),
        from: A.into(),
        to: B.into(),
        incarnation: Incarnation(1),
        features: 0,
        window_requests: 0,
        window_bytes: 0,
        name: "alpha".into(),
    };
    change(&mut hello);
    frame(VERSION_HANDSHAKE, FrameKind::Hello, 0, hello.encode())
}

fn request(id: u64, message: Text) -> Packet {
    let m = message.encode();
    let payload = m.payload.iter().map(|p| &p[..]);
    let head =
        FrameHead::message(VERSION_MAX, FrameKind::Request, id, m.kind, &m.body, payload, false);
    Packet { head: head.unwrap().encode(), body: m.body, payload: m.payload }
}

async fn answer(conn: &LabConn) -> Option<(FrameHead, Packet)> {
    let packet = conn.recv().await.ok()?;
    Some((FrameHead::decode(&packet.head).unwrap(), packet))
}

#[test]
fn a_handshake_agrees_on_the_newest_common_version_or_names_both_sides() {
    run(|lab| async move {
        let (b, log) = start(&lab, identity(B, 2));
        let conn = raw(&lab).await;
        conn.send(hello(|h| h.version_max = 9)).unwrap();
        let (head, packet) = answer(&conn).await.unwrap();
        let welcome = Hello::decode(&packet.body).unwrap();
        assert_eq!(head.kind, FrameKind::Welcome);
        assert_eq!((welcome.version_min, welcome.version_max), (3, 3));
        assert_eq!(
            (welcome.from, welcome.to, welcome.lane),
            (B.into(), A.into(), Lane::Data as u8)
        );
        type Case = (fn(&mut Hello), &'static [&'static str]);
        let refusals: [Case; 5] = [
            (
                |h| (h.version_min, h.version_max) = (4, 5),
                &["'beta' speaks wire versions 3 to 3", "'alpha' 4 to 5"],
            ),
            // The releases before the wire changed for the last time.
            (
                |h| (h.version_min, h.version_max) = (1, 1),
                &["'beta' speaks wire versions 3 to 3", "'alpha' 1 to 1"],
            ),
            (|h| h.cluster = ClusterId(7), &["'alpha' of cluster 0000000000000007", "'beta'"]),
            (|h| h.to = HostId(7).into(), &["looking for 0000000000000007", "'beta'"]),
            (|h| h.lane = 3, &["lane 3"]),
        ];
        for (change, parts) in refusals {
            let conn = raw(&lab).await;
            conn.send(hello(change)).unwrap();
            conn.send(request(1, text(1))).unwrap();
            let (head, packet) = answer(&conn).await.unwrap();
            let why = String::from_utf8(packet.body).unwrap();
            assert_eq!(head.kind, FrameKind::Refuse);
            assert!(parts.iter().all(|p| why.contains(p)), "{why}");
            assert!(answer(&conn).await.is_none());
        }
        assert!(log.begun.borrow().is_empty());
        assert_eq!(b.counters().handshakes_refused, 5);
    });
}

/// The shards of a host, which know the other host.
fn shards(lab: &Lab, host: HostId, incarnation: u64) -> Vec<Host> {
    let shard = |shard| {
        let started = start(lab, Identity { shard, shards: 2, ..identity(host, incarnation) });
        started.0.set_peer(A, vec!["a".into()]);
        started.0.set_peer(B, vec!["b".into()]);
        started
    };
    vec![shard(0), shard(1)]
}

#[test]
fn a_host_is_who_its_certificate_says_or_is_refused_by_either_end() {
    run(|lab| async move {
        let until = || lab.now() + Nanos::from_secs(1);
        let (a, b) = (start(&lab, identity(A, 1)), start(&lab, identity(B, 2)));
        a.0.set_peer(B, vec!["b".into()]);
        b.0.set_peer(A, vec!["a".into()]);
        lab.show("a", (ClusterId(1), A));
        lab.show("b", (ClusterId(1), B));
        assert!(a.0.call(B, Lane::Data, text(1), until()).await.is_ok());
        assert!(b.0.call(A, Lane::Data, text(2), until()).await.is_ok());
        // Somebody who has a certificate, of another host or another cluster, says to be B.
        for whose in [(ClusterId(1), HostId(0xc)), (ClusterId(2), B)] {
            lab.show("b", whose);
            lab.cut("a", "b");
            lab.cut("b", "a");
            lab.sleep(Nanos::from_secs(3)).await;
            lab.heal();
            lab.sleep(Nanos::from_secs(3)).await;
            for (from, to) in [(&a, B), (&b, A)] {
                let refused = from.0.call(to, Lane::Data, text(3), until()).await;
                let Err(CallError::Refused(why)) = refused else { panic!("{refused:?}") };
                let shown = format!("shows the certificate of {} of cluster {}", whose.1, whose.0);
                assert!(why.contains("'beta' says") && why.contains(&shown), "{why}");
            }
        }
        assert_eq!((*a.1.begun.borrow()).len() + (*b.1.begun.borrow()).len(), 2);
        // Either end tells it to people, once until it is taken.
        for peers in [&a.0, &b.0] {
            let refusals = peers.take_refusals();
            let count = |part: &str| refusals.iter().filter(|r| r.why.contains(part)).count();
            assert!(count("000000000000000c") >= 1 && count("cluster 0000000000000002") >= 1);
            assert!(refusals.len() <= 8, "{refusals:?}");
            assert!(peers.take_refusals().is_empty());
        }
    });
}

#[test]
fn a_shard_is_asked_as_a_host_is() {
    run(|lab| async move {
        let (a, b) = (shards(&lab, A, 1), shards(&lab, B, 2));
        let until = || lab.now() + Nanos::from_secs(1);
        let begun = |host: &Host| host.1.begun.borrow().clone();
        let at = |host, shard| Addr { host, shard };
        // Of another host, over the socket that its first shard listens at.
        for (number, to) in [(1, at(B, 1)), (2, at(B, 0)), (3, at(A, 0)), (4, at(A, 1))] {
            for lane in Lane::ALL {
                let reply = a[1].0.call(to, lane, text(number), until()).await;
                assert_eq!(reply.unwrap().number, number, "{to} on {lane:?}");
            }
        }
        assert_eq!((begun(&b[1]), begun(&b[0])), (vec![1; 3], vec![2; 3]));
        assert_eq!((begun(&a[0]), begun(&a[1])), (vec![3; 3], vec![4; 3]));
        assert_eq!(a[1].0.peer(at(B, 1)).incarnation, Some(Incarnation(2)));
        assert_eq!(a[1].0.peer(at(A, 0)).incarnation, Some(Incarnation(1)));
        let refused = a[1].0.call(at(B, 2), Lane::Data, text(5), until()).await;
        let Err(CallError::Refused(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains("shards: 2") && why.contains("000000000000000b.2"), "{why}");
        assert!(a.iter().chain(&b).all(|host| host.0.take_twins().is_empty()));
    });
}

#[test]
fn shards_that_ask_each_other_nothing_are_not_connected() {
    run(|lab| async move {
        let (a, b) = (shards(&lab, A, 1), shards(&lab, B, 2));
        lab.sleep(Nanos::from_secs(2)).await;
        // The hosts look after each other; their other shards do not.
        let connects = |host: &Host| host.0.counters().connects;
        let all = [&a[0], &b[0], &a[1], &b[1]].map(connects);
        assert_eq!(all, [6, 6, 0, 0], "in and out on three lanes");
        let shard = Addr { host: B, shard: 1 };
        let far = || lab.now() + Nanos::from_secs(1);
        a[1].0.call(shard, Lane::Data, text(1), far()).await.unwrap();
        lab.sleep(Nanos::from_secs(1)).await;
        assert_eq!([&a[1], &b[1]].map(connects), [3, 3]);
        lab.sleep(limits::PEER_IDLE + Nanos::from_secs(1)).await;
        let ended = |host: &Host| host.0.counters().disconnects;
        assert_eq!([&a[0], &b[0], &a[1], &b[1]].map(ended), [0, 0, 3, 3]);
        a[1].0.call(shard, Lane::Data, text(2), far()).await.unwrap();
        assert_eq!(*b[1].1.begun.borrow(), [1, 2]);
    });
}

#[test]
fn whoever_asks_as_this_host_hears_that_it_lives_and_nothing_else() {
    run(|lab| async move {
        let (b, log) = start(&lab, identity(B, 2));
        for _ in 0..3 {
            let conn = raw(&lab).await;
            conn.send(hello(|h| (h.from, h.incarnation) = (B.into(), Incarnation(7)))).unwrap();
            conn.send(request(1, text(1))).unwrap();
            let (head, packet) = answer(&conn).await.unwrap();
            let welcome = Hello::decode(&packet.body).unwrap();
            assert_eq!(head.kind, FrameKind::Welcome);
            assert_eq!((welcome.from, welcome.incarnation), (B.into(), identity(B, 2).incarnation));
            assert!(answer(&conn).await.is_none());
        }
        assert!(log.begun.borrow().is_empty());
        let twins = b.take_twins();
        assert!(!twins.is_empty() && twins.len() <= 3, "{twins:?}");
        assert!(twins.iter().all(|t| matches!(t, Twin::Refused { name, .. } if name == "alpha")));
    });
}

#[test]
fn two_hosts_that_fill_each_others_windows_with_what_leads_on_do_not_wait_for_ever() {
    run(|lab| async move {
        let ((a, _), (b, _)) = pair(&lab).await;
        let until = lab.now() + Nanos::from_secs(20);
        let calls = |peers: &Peers<LabWorld, Echo>, to: HostId| {
            let peers = peers.clone();
            let numbers = 0..2 * limits::WINDOW_REQUESTS;
            let call = move |n| peers.call(to, Lane::Data, text(ASKS_BACK | n), until);
            futures_util::future::join_all(numbers.map(call))
        };
        let (of_a, of_b) = futures_util::future::join(calls(&a, B), calls(&b, A)).await;
        let failed = of_a.iter().chain(&of_b).filter(|answer| answer.is_err()).count();
        assert_eq!(failed, 0);
    });
}

#[test]
fn two_lives_that_take_turns_are_told_and_a_restart_is_not() {
    run(|lab| async move {
        let (b, _) = start(&lab, identity(B, 2));
        let mut links = Vec::new();
        // The greeting of a process that has ended may arrive late. What it would say after ours
        // does not.
        for (life, speaks, known) in [
            (1, true, false),
            (2, true, false),
            (1, false, false),
            (2, true, false),
            (1, true, true),
            (2, true, true),
            (3, true, false),
            (2, true, true),
        ] {
            let conn = raw(&lab).await;
            conn.send(hello(|h| h.incarnation = Incarnation(life))).unwrap();
            assert_eq!(answer(&conn).await.unwrap().0.kind, FrameKind::Welcome);
            if speaks {
                conn.send(request(1, text(1))).unwrap();
                answer(&conn).await.expect("a reply");
            }
            links.push(conn);
            let want = if known { vec![Twin::Alternates { host: A }] } else { Vec::new() };
            assert_eq!(b.take_twins(), want, "life {life}");
        }
    });
}

/// The greeting of a process that has ended since arrives late, with its goodbye behind it.
#[test]
fn a_late_welcome_of_a_life_that_is_over_ends_nothing() {
    run(|lab| async move {
        let (b, _) = start(&lab, identity(B, 2));
        let old = lab.host("a");
        b.set_peer(A, vec!["a".into()]);
        let dialled = old.net().accept().await.unwrap();
        let asked = Hello::decode(&answer(&dialled).await.unwrap().1.body).unwrap();
        let new = raw(&lab).await;
        new.send(hello(|h| h.incarnation = Incarnation(2))).unwrap();
        for n in 1..=2 {
            new.send(request(n, text(1))).unwrap();
            answer(&new).await.expect("an answer");
        }
        let lane = asked.lane;
        let late = |h: &mut Hello| {
            (h.incarnation, h.lane) = (Incarnation(1), lane);
            (h.window_requests, h.window_bytes) = (8, 1 << 20);
        };
        let welcome = hello(late).body;
        dialled.send(frame(VERSION_HANDSHAKE, FrameKind::Welcome, 0, welcome)).unwrap();
        dialled.send(frame(VERSION_MAX, FrameKind::Goodbye, 0, Vec::new())).unwrap();
        assert!(answer(&dialled).await.is_none(), "not used");
        new.send(request(3, text(1))).unwrap();
        answer(&new).await.expect("the new life is talked to as before");
        new.send(request(4, text(1))).unwrap();
        answer(&new).await.expect("an answer");
        assert_eq!(b.take_twins(), []);
    });
}

#[test]
fn a_connection_that_does_not_begin_with_hello_or_says_nothing_is_closed() {
    run(|lab| async move {
        let (b, log) = start(&lab, identity(B, 2));
        let conn = raw(&lab).await;
        conn.send(request(1, text(1))).unwrap();
        assert!(answer(&conn).await.is_none());
        let begun = lab.now();
        assert!(answer(&raw(&lab).await).await.is_none());
        assert!(lab.now().since(begun) < limits::CONNECT_WITHIN * 2);
        assert!(log.begun.borrow().is_empty());
        assert_eq!(b.counters().connects, 0);
    });
}

#[test]
fn a_second_hello_and_frames_out_of_place_end_the_connection() {
    run(|lab| async move {
        let (b, log) = start(&lab, identity(B, 2));
        let out_of_place = [
            hello(|_| {}),
            frame(VERSION_HANDSHAKE, FrameKind::Refuse, 1, vec![]),
            frame(VERSION_MAX, FrameKind::Pong, 1, vec![]),
        ];
        for (n, packet) in out_of_place.into_iter().enumerate() {
            let conn = raw(&lab).await;
            conn.send(hello(|_| {})).unwrap();
            assert_eq!(answer(&conn).await.unwrap().0.kind, FrameKind::Welcome);
            conn.send(request(5, text(1))).unwrap();
            let (head, _) = answer(&conn).await.unwrap();
            assert_eq!((head.kind, head.request_id), (FrameKind::Reply, 5));
            conn.send(packet).unwrap();
            assert!(answer(&conn).await.is_none());
            assert_eq!(b.counters().frames_bad, n as u64 + 1);
        }
        // A newer connection of the same lane replaces the older one.
        let (old, new) = (raw(&lab).await, raw(&lab).await);
        old.send(hello(|_| {})).unwrap();
        assert_eq!(answer(&old).await.unwrap().0.kind, FrameKind::Welcome);
        new.send(hello(|_| {})).unwrap();
        assert_eq!(answer(&new).await.unwrap().0.kind, FrameKind::Welcome);
        let (head, packet) = answer(&old).await.unwrap();
        assert_eq!(head.kind, FrameKind::Goodbye);
        assert_eq!(packet.body, b"replaced by a newer connection");
        assert!(answer(&old).await.is_none());
        new.send(request(1, text(2))).unwrap();
        assert_eq!(answer(&new).await.unwrap().0.kind, FrameKind::Reply);
        // Another life of the same host, on any lane, ends this one's.
        let newer = raw(&lab).await;
        newer
            .send(hello(|h| {
                h.incarnation = Incarnation(99);
                h.lane = Lane::Bulk as u8;
            }))
            .unwrap();
        let (head, packet) = answer(&new).await.unwrap();
        assert_eq!(head.kind, FrameKind::Goodbye);
        assert_eq!(packet.body, b"another life of this host has connected");
        assert!(answer(&new).await.is_none());
        assert_eq!(log.begun.borrow().len(), 4);
    });
}

#[test]
fn who_sends_more_than_the_window_is_cut_off() {
    run(|lab| async move {
        let (b, log) = start(&lab, identity(B, 2));
        let conn = raw(&lab).await;
        conn.send(hello(|_| {})).unwrap();
        answer(&conn).await.unwrap();
        for n in 0..limits::WINDOW_REQUESTS + 1 {
            conn.send(request(u64::from(n) + 1, Text { takes_us: 1000, ..text(n) })).unwrap();
        }
        assert!(answer(&conn).await.is_none());
        until(&lab, || log.ended.borrow().len() == limits::WINDOW_REQUESTS as usize).await;
        assert_eq!((log.begun.borrow().len(), b.counters().frames_bad), (1024, 1));
    });
}

#[test]
fn no_bytes_bring_a_host_down() {
    run(|lab| async move {
        let (b, _log) = start(&lab, identity(B, 2));
        let mut seed = 1u64;
        let mut random = move || {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            seed >> 33
        };
        for round in 0..2000 {
            let conn = raw(&lab).await;
            if round % 2 == 0 {
                conn.send(hello(|_| {})).unwrap();
            }
            for _ in 0..3 {
                let mut packet = match random() % 4 {
                    0 => hello(|h| h.lane = 2),
                    1 => frame(VERSION_MAX, FrameKind::Ping, random(), vec![]),
                    2 => frame(VERSION_MAX, FrameKind::Goodbye, 0, vec![b'x'; 10]),
                    _ => request(random() + 1, Text { payload: vec![3; 100], ..text(1) }),
                };
                match random() % 5 {
                    0 => packet.head[random() as usize % HEAD_LEN] ^= 1 << (random() % 8),
                    1 => packet.body.push(0),
                    2 => packet.payload.clear(),
                    3 => {
                        packet.body.pop();
                    }
                    _ => {}
                }
                // It may have been closed already.
                let _ = conn.send(packet);
            }
            lab.sleep(Nanos::from_us(200)).await;
            conn.close();
        }
        let (a, _) = start(&lab, identity(A, 1));
        a.set_peer(B, vec!["b".into()]);
        let far = lab.now() + Nanos::from_secs(5);
        assert_eq!(a.call(B, Lane::Data, text(1), far).await.unwrap().number, 1);
        assert!(b.counters().frames_bad > 1000);
    });
}

#[test]
fn after_stop_nothing_is_called_and_nothing_runs_on() {
    run(|lab| async move {
        let ((a, _), (b, _)) = pair(&lab).await;
        let far = lab.now() + Nanos::from_secs(5);
        let open = a.call(B, Lane::Data, Text { takes_us: 9_000_000, ..text(1) }, far);
        let own = a.call(A, Lane::Data, Text { takes_us: 9_000_000, ..text(1) }, far);
        lab.sleep(MS).await;
        a.stop();
        assert_eq!(open.await, Err(CallError::Disconnected));
        assert_eq!(own.await, Err(CallError::Disconnected));
        for host in [A, B] {
            assert_eq!(a.call(host, Lane::Data, text(1), far).await, Err(CallError::Unreachable));
        }
        a.set_peer(B, vec!["b".into()]);
        lab.sleep(Nanos::from_secs(15)).await;
        let quiet = a.counters();
        lab.sleep(Nanos::from_secs(60)).await;
        assert_eq!(a.counters(), quiet);
        assert!(!b.peer(A).connected);
    });
}

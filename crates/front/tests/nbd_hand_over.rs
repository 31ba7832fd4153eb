//! Connections that are handed over to another shard at the choice of their export, in virtual
//! time: the client notices nothing, and every bound holds on both sides.

mod support;

use atoll_front::limits::Limits;
use atoll_front::memory::MemoryVolume;
use atoll_front::nbd::{Ended, HandOver, Served, Server, Stats};
use atoll_world::buf::join;
use atoll_world::volume::{ExportName, Volume, VolumeError, Volumes};
use atoll_world::{Nanos, World};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use support::{Halves, TokioWorld, run, sleep};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};

const SIZE: u64 = 1 << 20;
/// The shard that serves what is not served where clients arrive.
const OTHER: u8 = 7;
const FLAGS: &[u8] = &[0, 0, 0, 3];
const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;

/// The exports as one of two shards sees them: `disk`; `held`, which cannot be opened now;
/// `stuck`, of which nobody hears.
#[derive(Clone)]
struct Exports {
    disk: MemoryVolume,
    elsewhere: Option<u8>,
    /// Names that [`Volumes::elsewhere`] was asked for.
    asked: Rc<RefCell<Vec<String>>>,
    opened: Rc<Cell<usize>>,
}

impl Volumes for Exports {
    type Volume = MemoryVolume;
    async fn open(&self, name: &str) -> Result<MemoryVolume, VolumeError> {
        self.opened.set(self.opened.get() + 1);
        match name {
            "disk" => Ok(self.disk.clone()),
            "held" => Err(VolumeError::Locked("an import runs".to_owned())),
            "stuck" => std::future::pending().await,
            _ => Err(VolumeError::Gone),
        }
    }
    async fn list(&self, _: usize) -> Result<Vec<ExportName>, VolumeError> {
        Ok(vec![ExportName { name: "disk".to_owned(), description: "text".to_owned() }])
    }
    async fn elsewhere(&self, name: &str) -> Option<u8> {
        self.asked.borrow_mut().push(name.to_owned());
        if name == "nowhere" { std::future::pending().await } else { self.elsewhere }
    }
}

type Stream = Halves<ReadHalf<DuplexStream>, WriteHalf<DuplexStream>>;

/// One shard.
struct Shard {
    exports: Exports,
    server: Server<TokioWorld, Exports>,
}

impl Shard {
    /// Of the shards of one process: with the same clock.
    fn new(world: &TokioWorld, limits: Limits, elsewhere: Option<u8>) -> Self {
        let disk = MemoryVolume::new(SIZE);
        let exports = Exports { disk, elsewhere, asked: Rc::default(), opened: Rc::default() };
        Self { server: Server::new(world.clone(), exports.clone(), limits), exports }
    }
    fn stats(&self) -> Stats {
        self.server.stats()
    }
}

/// Two shards. Clients arrive at the first; by what either says, the other one serves all exports.
struct Bench {
    world: TokioWorld,
    first: Shard,
    other: Shard,
}

impl Bench {
    fn new(limits: Limits, of_other: Limits) -> Self {
        let world = TokioWorld::new();
        let first = Shard::new(&world, limits, Some(OTHER));
        let other = Shard::new(&world, of_other, Some(OTHER));
        Self { world, first, other }
    }

    /// A client that has sent those options behind its flags, and what its connection came to.
    async fn arrive(&self, options: Vec<u8>) -> (DuplexStream, Served<Stream>) {
        let (mut client, stream) = connect(64 << 10);
        client.write_all(&[FLAGS, &options].concat()).await.expect("there is room");
        let served = self.first.server.serve(stream).await;
        (client, served)
    }

    /// A client whose connection is handed over when it has sent those options.
    async fn handed_over(&self, options: Vec<u8>) -> (DuplexStream, HandOver<Stream>) {
        match self.arrive(options).await {
            (client, Served::HandOver(hand_over)) => (client, *hand_over),
            (_, Served::Ended(ended)) => panic!("{ended:?}"),
        }
    }

    async fn resume(&self, hand_over: HandOver<Stream>) -> Ended {
        assert_eq!(hand_over.shard, OTHER);
        self.other.server.resume(hand_over.stream, hand_over.session).await
    }
}

fn connect(bytes: usize) -> (DuplexStream, Stream) {
    let (client, theirs) = tokio::io::duplex(bytes);
    let (read, write) = tokio::io::split(theirs);
    (client, Halves(read, write))
}

/// Everything that the server sent and sends, up to the end.
async fn rest(mut client: DuplexStream) -> Vec<u8> {
    let mut sent = Vec::new();
    client.read_to_end(&mut sent).await.expect("a clean end");
    sent
}

fn option(option: u32, data: &[u8]) -> Vec<u8> {
    let len = data.len() as u32;
    [b"IHAVEOPT", &option.to_be_bytes()[..], &len.to_be_bytes(), data].concat()
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()
}

fn list() -> Vec<u8> {
    option(3, &[])
}
/// Asks for the export's name and description, too.
fn info(name: &str) -> Vec<u8> {
    option(6, &[&text(name)[..], &[0, 2, 0, 1, 0, 2]].concat())
}
fn go(name: &str) -> Vec<u8> {
    option(7, &[&text(name)[..], &[0, 0]].concat())
}
fn structured() -> Vec<u8> {
    option(8, &[])
}
fn context(name: &str) -> Vec<u8> {
    option(10, &[&text(name)[..], &[0, 0, 0, 1], &text("base:allocation")].concat())
}

fn request(command: u8, cookie: u64, at: u64, len: u32) -> Vec<u8> {
    let head = [0x25, 0x60, 0x95, 0x13, 0, 0, 0, command];
    [&head[..], &cookie.to_be_bytes(), &at.to_be_bytes(), &len.to_be_bytes()].concat()
}
fn disc() -> Vec<u8> {
    request(2, 0, 0, 0)
}

/// A small generator of its own: the same numbers for ever.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % limit
    }
    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

/// What a client sends: options, some of them wrong; mostly the choice of an export; requests,
/// whose cookies tell how much data their answers hold.
fn conversation(chance: &mut Chance) -> Vec<u8> {
    let names = ["disk", "disk", "held", "unknown"];
    let mut stream = chance.of(&[3u32, 3, 3, 1]).to_be_bytes().to_vec();
    for _ in 0..chance.below(7) {
        let name = chance.of(&names);
        stream.extend(match chance.below(20) {
            0 => option(99, &vec![7; chance.below(20_000) as usize]),
            1 => option(7, &text("\u{e9}")),
            2 => option(2, &[]),
            3 | 4 => list(),
            5..8 => info(name),
            8..11 => structured(),
            11..15 => context(name),
            _ => go(chance.of(&["held", "unknown"])),
        });
    }
    let name = chance.of(&["disk", "disk", "disk", "disk", "disk", "disk", "held"]);
    stream.extend(if chance.below(3) == 0 { option(1, name.as_bytes()) } else { go(name) });
    for number in 0..chance.below(20) {
        let at = chance.of(&[0, 512, 4096, 65_536, SIZE - 4096, SIZE, 3]);
        let len = chance.of(&[512, 4096, 4096, 8192]);
        // Read, write, flush, trim, cache, zero, status, an unknown one.
        let command = chance.of(&[0, 0, 0, 1, 1, 1, 1, 4, 5, 6, 7, 7, 9]);
        let read = if command == 0 { u64::from(len) } else { 0 };
        stream.extend(request(command, number << 32 | read, at, len));
        if command == 1 {
            stream.extend((0..len).map(|_| chance.below(256) as u8));
        }
    }
    if chance.below(2) == 0 {
        stream.extend(disc());
    }
    stream
}

/// What a server sends, without the order in which it answers requests: those that it refuses
/// come before those that it takes on in the same turn, and a hand-over makes other turns.
#[derive(PartialEq, Eq, Debug)]
struct Sent {
    handshake: Vec<u8>,
    /// By cookie.
    answers: BTreeMap<u64, Vec<u8>>,
}

impl Sent {
    fn understand(sent: &[u8], no_zeroes: bool) -> Self {
        let four = |at: usize| u32::from_be_bytes(sent[at..at + 4].try_into().expect("four"));
        let eight = |at: usize| u64::from_be_bytes(sent[at..at + 8].try_into().expect("eight"));
        let mut at = 18;
        while at < sent.len() && eight(at) == OPTION_REPLY {
            at += 20 + four(at + 16) as usize;
        }
        // The answer to EXPORT_NAME.
        if at < sent.len() && eight(at) == SIZE {
            at += if no_zeroes { 10 } else { 134 };
        }
        let (handshake, mut answers) = (sent[..at].to_vec(), BTreeMap::<_, Vec<u8>>::new());
        while at < sent.len() {
            let cookie = eight(at + 8);
            let len = match (four(at), four(at + 4)) {
                (0x668e_33ef, _) => 20 + four(at + 16) as usize,
                (0x6744_6698, 0) => 16 + (cookie & 0xffff_ffff) as usize,
                (0x6744_6698, _) => 16,
                (magic, _) => panic!("{magic:x} begins no answer"),
            };
            answers.entry(cookie).or_default().extend_from_slice(&sent[at..at + len]);
            at += len;
        }
        Self { handshake, answers }
    }
}

/// What is to be seen of a conversation, on both sides.
#[derive(PartialEq, Eq, Debug)]
struct Seen {
    sent: Sent,
    ended: String,
    content: Vec<u8>,
    /// Accepted, requests, failures, invalid, violations: of all shards.
    counted: [u64; 5],
}

/// Carries the conversation on, cut by chance. Whether it was handed over, too.
async fn converse(stream: &[u8], chance: &mut Chance, hands_over: bool) -> (Seen, bool) {
    let limits = Limits { options: 6, ..Limits::default() };
    let world = TokioWorld::new();
    let first = Shard::new(&world, limits, hands_over.then_some(OTHER));
    let other = Shard::new(&world, limits, hands_over.then_some(OTHER));
    let (client, theirs) = connect(chance.of(&[100, 5_000, 64 << 10]));
    let on_its_way = chance.of(&[0, 1, 50]);
    let serving = async {
        match first.server.serve(theirs).await {
            Served::Ended(ended) => (ended, false),
            Served::HandOver(to) => {
                // More comes in the meantime.
                sleep(on_its_way).await;
                (other.server.resume(to.stream, to.session).await, true)
            }
        }
    };
    let (mut reading, mut writing) = tokio::io::split(client);
    let longest = chance.of(&[1, 20, 400, 5_000, 1 << 20]);
    let sending = async {
        let mut rest = stream;
        while !rest.is_empty() {
            let (now, later) = rest.split_at((1 + chance.below(longest) as usize).min(rest.len()));
            // The server may have enough before it has heard all.
            if writing.write_all(now).await.is_err() {
                return;
            }
            rest = later;
            // The first ones one by one, if they are short: all the cuts of a handshake.
            sleep(u64::from(stream.len() - rest.len() < 1_000)).await;
        }
        sleep(100).await;
        // It may have closed the connection by now.
        let _ = writing.shutdown().await;
    };
    let mut sent = Vec::new();
    let receiving = async { reading.read_to_end(&mut sent).await.expect("a clean end") };
    let ((ended, handed_over), (), _) = tokio::join!(serving, sending, receiving);
    let serves = if handed_over { &other } else { &first };
    let content = join(&serves.exports.disk.read(0, SIZE as u32).await.expect("all of it"));
    let (a, b) = (first.stats(), other.stats());
    assert_eq!((a.connections, b.connections, a.held_bytes, b.held_bytes), (0, 0, 0, 0));
    assert_eq!((b.accepted, b.resumed), (0, u64::from(handed_over)));
    if handed_over {
        assert_eq!((a.requests, a.invalid, first.exports.disk.held_bytes()), (0, 0, 0));
    }
    let counted = [
        a.accepted,
        a.requests + b.requests,
        a.failures + b.failures,
        a.invalid + b.invalid,
        a.violations + b.violations,
    ];
    let sent = Sent::understand(&sent, stream[3] == 3);
    let seen = Seen { sent, ended: format!("{ended:?}"), content: content.to_vec(), counted };
    (seen, handed_over)
}

/// 1,000 conversations, each cut in its own way.
#[test]
fn no_client_can_tell_that_it_was_handed_over() {
    run(async {
        let (mut handed_over, mut requests, mut ends) = (0, 0, BTreeSet::new());
        for seed in 0..1_000 {
            let mut chance = Chance(seed);
            let stream = conversation(&mut chance);
            let cuts = chance.0;
            let (stayed, moved) = converse(&stream, &mut Chance(cuts), false).await;
            assert!(!moved);
            let (seen, moved) = converse(&stream, &mut Chance(cuts), true).await;
            assert!(seen == stayed, "seed {seed}: {:?} and {:?}", seen.counted, stayed.counted);
            handed_over += usize::from(moved);
            requests += seen.counted[1];
            ends.insert(seen.ended);
        }
        println!("{handed_over} handed over, {requests} requests, {ends:?}");
        assert!(handed_over > 800 && requests > 2_000, "{handed_over}, {requests}");
        for end in ["Goodbye", "NoExport", "Violation(\"too many options\")"] {
            assert!(ends.contains(end), "{end}: {ends:?}");
        }
    });
}

#[test]
fn only_the_choice_of_an_export_is_handed_over_and_only_once() {
    run(async {
        let bench = Bench::new(Limits::default(), Limits::default());
        let options = [structured(), list(), info("disk"), go("held"), info("disk"), go("disk")];
        let (mut client, hand_over) = bench.handed_over(options.concat()).await;
        // The questions were answered, and the choice was not.
        let mut kinds = Vec::new();
        let mut greeting = [0; 18];
        client.read_exact(&mut greeting).await.expect("the greeting");
        for _ in 0..8 {
            let mut head = [0; 20];
            client.read_exact(&mut head).await.expect("sent before it is handed over");
            kinds.push((head[11], head[12], head[15]));
            let mut data = vec![0; usize::from(head[19])];
            client.read_exact(&mut data).await.expect("its data");
        }
        let info = [(6, 0, 3); 4];
        assert_eq!(kinds[..3], [(8, 0, 1), (3, 0, 2), (3, 0, 1)]);
        assert_eq!(kinds[3..], [&info[..], &[(6, 0, 1)]].concat());
        let early = tokio::time::timeout(tokio::time::Duration::from_secs(1), client.read_u8());
        assert!(early.await.is_err());
        assert_eq!((bench.first.stats().accepted, bench.first.stats().connections), (1, 0));
        assert_eq!(*bench.first.exports.asked.borrow(), ["held"]);
        bench.first.server.idle().await;

        client.write_all(&disc()).await.expect("there is room");
        let (ended, sent) = tokio::join!(bench.resume(hand_over), rest(client));
        assert!(matches!(ended, Ended::Goodbye));
        // `held` is refused there, and what follows is answered there: INFO, then GO.
        assert_eq!(
            sent[..16],
            [&OPTION_REPLY.to_be_bytes()[..], &[0, 0, 0, 7, 128, 0, 0, 2]].concat()
        );
        assert_eq!(
            sent[sent.len() - 20..],
            [&OPTION_REPLY.to_be_bytes()[..], &[0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 0]].concat()
        );
        let stats = bench.other.stats();
        assert_eq!((stats.accepted, stats.resumed, stats.connections), (0, 1, 0));
        assert!(bench.other.exports.asked.borrow().is_empty());
    });
}

#[test]
fn a_server_with_all_its_connections_resumes_none() {
    run(async {
        let one = Limits { connections: 1, ..Limits::default() };
        let bench = Bench::new(Limits::default(), one);
        let (mut client, hand_over) = bench.handed_over(go("disk")).await;
        let mut resumed = std::pin::pin!(bench.resume(hand_over));
        assert!(futures_util::poll!(&mut resumed).is_pending());
        assert_eq!(bench.other.stats().connections, 1);

        let (refused, hand_over) = bench.handed_over(go("disk")).await;
        assert!(matches!(bench.resume(hand_over).await, Ended::TooMany));
        assert_eq!(rest(refused).await.len(), 18, "the greeting, and the end");
        let stats = bench.other.stats();
        assert_eq!((stats.connections, stats.resumed, stats.refused), (1, 1, 1));

        client.write_all(&disc()).await.expect("there is room");
        assert!(matches!(resumed.await, Ended::Goodbye));
        let (client, hand_over) = bench.handed_over([go("disk"), disc()].concat()).await;
        let (ended, sent) = tokio::join!(bench.resume(hand_over), rest(client));
        assert!(matches!(ended, Ended::Goodbye) && sent.len() > 18);
    });
}

/// The connection does not count where it left, either.
#[test]
fn a_connection_that_was_handed_over_makes_room() {
    run(async {
        let one = Limits { connections: 1, ..Limits::default() };
        let bench = Bench::new(one, Limits::default());
        let (_client, _hand_over) = bench.handed_over(go("disk")).await;
        let (_client, _hand_over) = bench.handed_over(go("disk")).await;
        assert_eq!((bench.first.stats().accepted, bench.first.stats().refused), (2, 0));
    });
}

#[test]
fn a_server_that_stops_resumes_nothing() {
    run(async {
        let bench = Bench::new(Limits::default(), Limits::default());
        let (client, hand_over) = bench.handed_over(go("disk")).await;
        bench.other.server.stop();
        assert!(matches!(bench.resume(hand_over).await, Ended::Stopped));
        bench.other.server.idle().await;
        assert_eq!(rest(client).await.len(), 18, "no answer: it comes again");
        assert_eq!((bench.other.exports.opened.get(), bench.other.stats().resumed), (0, 0));
    });
}

#[test]
fn stopping_ends_a_choice_on_either_side() {
    run(async {
        let bench = Bench::new(Limits::default(), Limits::default());
        let (client, hand_over) = bench.handed_over(go("stuck")).await;
        let (ended, ()) = tokio::join!(bench.resume(hand_over), async {
            sleep(10).await;
            bench.other.server.stop();
        });
        assert!(matches!(ended, Ended::Stopped));
        assert_eq!(rest(client).await.len(), 18);

        let ((client, served), ()) = tokio::join!(bench.arrive(go("nowhere")), async {
            sleep(10).await;
            bench.first.server.stop();
        });
        assert!(matches!(served, Served::Ended(Ended::Stopped)));
        assert_eq!(rest(client).await.len(), 18);
    });
}

#[test]
fn a_handshake_has_one_deadline_wherever_it_is() {
    run(async {
        let ms = Nanos::from_ms;
        let limits = |handshake| Limits { handshake, ..Limits::default() };
        // The limit where it arrives is the one that counts.
        let bench = Bench::new(limits(ms(10_000)), limits(ms(3_000)));
        for name in ["stuck", "held"] {
            let began = bench.world.now();
            let (mut client, stream) = connect(64 << 10);
            let choosing = async {
                sleep(4_000).await;
                client.write_all(&[FLAGS, &go(name)].concat()).await.expect("there is room");
            };
            let (served, ()) = tokio::join!(bench.first.server.serve(stream), choosing);
            let Served::HandOver(hand_over) = served else { panic!("it is served elsewhere") };
            // On its way, its time runs on.
            sleep(4_000).await;
            assert!(matches!(bench.resume(*hand_over).await, Ended::HandshakeExpired));
            let took = bench.world.now().since(began);
            assert!((ms(10_000)..ms(10_010)).contains(&took), "{name}: {took}");
        }
        assert_eq!(bench.other.stats().handshakes_expired, 2);

        let began = bench.world.now();
        let (_client, served) = bench.arrive(go("nowhere")).await;
        assert!(matches!(served, Served::Ended(Ended::HandshakeExpired)));
        let took = bench.world.now().since(began);
        assert!((ms(10_000)..ms(10_010)).contains(&took), "{took}");
        assert_eq!(bench.first.stats().handshakes_expired, 1);
    });
}

//! The session against clients that follow the protocol, break it, or send noise. Deterministic:
//! a failing seed fails again.

use super::codec::{OPTION_MAGIC, RequestHead, cmd, flag, info, opt, put16, put32, put64, rep};
use super::reply::{Failure, Outbox, Status};
use super::session::{End, Event, NbdSession, Op, Refused, Request, Why};
use crate::admission::client::Room;
use crate::limits::{OPTION_BYTES_MAX, PAYLOAD_BYTES_MAX, RECEIVE_BYTES};
use crate::nbd::codec::Errno;
use atoll_world::Buf;
use atoll_world::buf::{join, total_len};
use atoll_world::volume::{ExportName, VolumeInfo};

const SIZE: u64 = 64 << 20;
const ROOM: Room = Room { requests: 256, bytes: 64 << 20 };
const OPTIONS_MAX: u32 = 16;

const VOLUME: VolumeInfo = VolumeInfo {
    size_bytes: SIZE,
    min_block: 512,
    preferred_block: 4096,
    max_len: 1 << 20,
    read_only: false,
};

/// A small generator of its own: the same numbers for ever.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

pub(super) fn option(option: u32, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put64(&mut out, OPTION_MAGIC);
    put32(&mut out, option);
    put32(&mut out, data.len() as u32);
    out.extend_from_slice(data);
    out
}

pub(super) fn string(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put32(&mut out, text.len() as u32);
    out.extend_from_slice(text);
    out
}

/// Data of `GO` or `INFO`.
fn info_query(name: &[u8], kinds: &[u16]) -> Vec<u8> {
    let mut out = string(name);
    put16(&mut out, kinds.len() as u16);
    kinds.iter().for_each(|&kind| put16(&mut out, kind));
    out
}

/// Data of the options for metadata contexts.
fn contexts(name: &[u8], queries: &[&[u8]]) -> Vec<u8> {
    let mut out = string(name);
    put32(&mut out, queries.len() as u32);
    queries.iter().for_each(|query| out.extend(string(query)));
    out
}

fn request(command: u16, flags: u16, cookie: u64, at: u64, len: u32) -> Vec<u8> {
    RequestHead { flags, command, cookie, at, len }.encode().to_vec()
}

/// A session with the export's part played by the test, and everything it sent.
struct Peer {
    session: NbdSession,
    out: Outbox,
    sent: Vec<u8>,
    requests: Vec<Request>,
    end: Option<End>,
    /// Hands its session over at the first choice of an export.
    leaves: bool,
}

impl Peer {
    fn new() -> Self {
        let mut out = Outbox::default();
        let session = NbdSession::new(OPTIONS_MAX, &mut out);
        Self { session, out, sent: Vec::new(), requests: Vec::new(), end: None, leaves: false }
    }

    /// One that has negotiated structured replies and block status, or nothing, and uses `disk`.
    fn using(structured: bool) -> Self {
        let mut peer = Self::new();
        peer.receive(&3u32.to_be_bytes());
        if structured {
            peer.receive(&option(opt::STRUCTURED_REPLY, &[]));
            let query = contexts(b"disk", &[b"base:allocation"]);
            peer.receive(&option(opt::SET_META_CONTEXT, &query));
        }
        peer.receive(&option(opt::GO, &info_query(b"disk", &[])));
        assert!(peer.session.is_transmitting());
        peer.take_sent();
        peer
    }

    fn take_sent(&mut self) -> Vec<u8> {
        let batch = self.out.take();
        self.sent.extend(batch.steps().flatten().flat_map(|piece| piece.as_slice().to_vec()));
        std::mem::take(&mut self.sent)
    }

    fn receive(&mut self, bytes: &[u8]) {
        let mut bytes = bytes;
        while self.end.is_none() && !bytes.is_empty() {
            let space = self.session.space();
            assert!(!space.is_empty(), "a session that waits can take bytes");
            let now = space.len().min(bytes.len());
            space[..now].copy_from_slice(&bytes[..now]);
            self.session.filled(now);
            bytes = &bytes[now..];
            self.understand();
        }
    }

    fn understand(&mut self) {
        loop {
            match self.session.next(ROOM, &mut self.out) {
                Event::More => return,
                Event::Open(open) if self.leaves && open.why == Why::Use => {
                    self.leaves = false;
                    // What waits is sent first: the other side has nothing to send.
                    self.sent = self.take_sent();
                    self.out = Outbox::default();
                }
                Event::Open(open) => {
                    let found = match &*open.name {
                        "disk" => Ok((VOLUME, open.describe.then(|| "text".to_owned()))),
                        "readonly" => Ok((VolumeInfo { read_only: true, ..VOLUME }, None)),
                        "held" => Err(Refused::Policy("not now".to_owned())),
                        _ => Err(Refused::Unknown),
                    };
                    self.end = self.session.on_opened(found, &mut self.out);
                }
                Event::List => {
                    let disk =
                        ExportName { name: "disk".to_owned(), description: "text".to_owned() };
                    self.session.on_listed(&[disk], true, &mut self.out);
                }
                Event::Request(request) => self.requests.push(request),
                Event::Full(_) => panic!("the room of these tests takes every single request"),
                Event::Ended(end) => self.end = Some(end),
            }
            if self.end.is_some() {
                return;
            }
        }
    }

    /// The errors of the simple replies that were sent.
    fn errors(&mut self) -> Vec<u8> {
        let sent = self.take_sent();
        assert!(sent.len().is_multiple_of(16));
        sent.chunks(16).map(|reply| reply[7]).collect()
    }

    /// Kinds of the answers to options that were sent.
    fn answers(&mut self) -> Vec<u32> {
        let sent = self.take_sent();
        let (mut rest, mut answers) = (&sent[..], Vec::new());
        while !rest.is_empty() {
            assert_eq!(rest[..8], 0x0003_e889_0455_65a9u64.to_be_bytes());
            let word = |at: usize| u32::from_be_bytes(rest[at..at + 4].try_into().expect("four"));
            answers.push(word(12));
            rest = &rest[20 + word(16) as usize..];
        }
        answers
    }
}

#[test]
fn every_option_gets_the_documents_answer() {
    let mut peer = Peer::new();
    assert_eq!(peer.take_sent().len(), 18);
    peer.receive(&3u32.to_be_bytes());
    let long = vec![b'x'; 4097];
    let count_lie = [&string(b"disk")[..], &u32::MAX.to_be_bytes()].concat();
    let cases: Vec<(u32, Vec<u8>, Vec<u32>)> = vec![
        (opt::STARTTLS, vec![], vec![rep::ERR_UNSUP]),
        (opt::EXTENDED_HEADERS, vec![], vec![rep::ERR_UNSUP]),
        (77, vec![1, 2, 3], vec![rep::ERR_UNSUP]),
        (opt::LIST, vec![0], vec![rep::ERR_INVALID]),
        (opt::LIST, vec![], vec![rep::SERVER, rep::ACK]),
        (opt::SET_META_CONTEXT, contexts(b"disk", &[]), vec![rep::ERR_INVALID]),
        (opt::STRUCTURED_REPLY, vec![], vec![rep::ACK]),
        (opt::SET_META_CONTEXT, count_lie, vec![rep::ERR_INVALID]),
        (opt::LIST_META_CONTEXT, contexts(b"disk", &[]), vec![rep::META_CONTEXT, rep::ACK]),
        (opt::SET_META_CONTEXT, contexts(b"disk", &[b"base:", b"x:y"]), vec![rep::ACK]),
        (opt::GO, info_query(&long, &[]), vec![rep::ERR_TOO_BIG]),
        (opt::GO, info_query(&long[1..], &[]), vec![rep::ERR_UNKNOWN]),
        (opt::GO, info_query(b"../disk", &[]), vec![rep::ERR_UNKNOWN]),
        (opt::GO, info_query(b"\xff", &[]), vec![rep::ERR_INVALID]),
        (opt::INFO, info_query(b"held", &[]), vec![rep::ERR_POLICY]),
        (
            opt::INFO,
            info_query(b"disk", &[info::NAME, info::DESCRIPTION]),
            vec![rep::INFO, rep::INFO, rep::INFO, rep::INFO, rep::ACK],
        ),
    ];
    assert_eq!(cases.len(), OPTIONS_MAX as usize);
    for (number, data, expected) in cases {
        peer.receive(&option(number, &data));
        assert_eq!(peer.answers(), expected, "option {number}");
        assert_eq!(peer.end, None);
    }
    peer.receive(&option(opt::GO, &info_query(b"disk", &[])));
    assert_eq!(peer.end, Some(End::Violation("too many options")));
}

#[test]
fn an_option_that_is_too_long_is_refused_before_it_has_come() {
    let mut peer = Peer::new();
    peer.receive(&1u32.to_be_bytes());
    peer.take_sent();
    let long = option(opt::GO, &vec![0; OPTION_BYTES_MAX as usize + 1]);
    peer.receive(&long[..16]);
    assert_eq!(peer.answers(), [rep::ERR_TOO_BIG]);
    peer.receive(&long[16..]);
    peer.receive(&option(opt::ABORT, &[]));
    assert_eq!(peer.answers(), [rep::ACK]);
    assert_eq!(peer.end, Some(End::Goodbye));

    let mut peer = Peer::new();
    peer.receive(&1u32.to_be_bytes());
    peer.take_sent();
    let mut endless = option(opt::GO, &[]);
    endless[12..].fill(255);
    peer.receive(&endless);
    assert_eq!(peer.answers(), [rep::ERR_TOO_BIG]);
    assert!(matches!(peer.end, Some(End::Violation(_))));
}

#[test]
fn export_name_is_answered_as_in_the_old_days() {
    for (flags, len) in [(3u32, 10), (1, 134)] {
        let mut peer = Peer::new();
        peer.take_sent();
        peer.receive(&flags.to_be_bytes());
        peer.receive(&option(opt::EXPORT_NAME, b"disk"));
        let sent = peer.take_sent();
        assert_eq!((sent.len(), &sent[..8]), (len, &SIZE.to_be_bytes()[..]));
    }
    let mut peer = Peer::new();
    peer.receive(&3u32.to_be_bytes());
    peer.receive(&option(opt::EXPORT_NAME, b"nowhere"));
    assert_eq!(peer.end, Some(End::NoExport));
    let mut peer = Peer::new();
    peer.receive(&4u32.to_be_bytes());
    assert!(matches!(peer.end, Some(End::Violation(_))));
}

#[test]
fn every_malformed_request_gets_its_error_and_the_next_one_is_served() {
    use Errno::{Invalid, NoSpace};
    let max = PAYLOAD_BYTES_MAX;
    let cases = [
        (9, 0, 0, 512, Invalid),
        (cmd::READ, 1 << 9, 0, 512, Invalid),
        (cmd::READ, flag::DF, 0, 512, Invalid),
        (cmd::READ, 0, 0, 0, Invalid),
        (cmd::READ, 0, 0, 513, Invalid),
        (cmd::READ, 0, 100, 512, Invalid),
        (cmd::READ, 0, SIZE, 512, Invalid),
        (cmd::READ, 0, SIZE - 512, 1024, Invalid),
        (cmd::READ, 0, u64::MAX - 511, 512, Invalid),
        (cmd::READ, 0, 0, u32::MAX, Invalid),
        (cmd::READ, 0, 0, max + 512, Invalid),
        (cmd::WRITE, 0, SIZE, 512, NoSpace),
        (cmd::WRITE, 0, u64::MAX - 511, 512, NoSpace),
        (cmd::WRITE, flag::NO_HOLE, 0, 512, Invalid),
        (cmd::WRITE, 0, 0, 0, Invalid),
        (cmd::WRITE, 0, 0, max + 512, Invalid),
        (cmd::FLUSH, 0, 512, 0, Invalid),
        (cmd::TRIM, 0, SIZE, 512, Invalid),
        (cmd::WRITE_ZEROES, 0, SIZE, 512, NoSpace),
        (cmd::WRITE_ZEROES, flag::DF, 0, 512, Invalid),
        (cmd::BLOCK_STATUS, 0, 0, 512, Invalid),
        (cmd::CACHE, flag::REQ_ONE, 0, 512, Invalid),
    ];
    let mut peer = Peer::using(false);
    for (command, flags, at, len, errno) in cases {
        let mut bytes = request(command, flags, 7, at, len);
        if command == cmd::WRITE {
            bytes.resize(bytes.len() + len as usize, 1);
        }
        peer.receive(&bytes);
        assert_eq!(peer.errors(), [errno as u8], "{command} {flags} {at}+{len}");
        assert!(peer.requests.is_empty());
        peer.receive(&request(cmd::READ, flag::FUA, 8, 0, 512));
        let expected = Op::Read { at: 0, len: 512, whole: false };
        assert_eq!(peer.requests.pop().map(|request| request.op), Some(expected));
    }
    let mut peer = Peer::using(true);
    peer.receive(&request(cmd::READ, flag::DF, 7, 0, max + 512));
    let sent = peer.take_sent();
    assert_eq!(sent[20..24], [0, 0, 0, Errno::Overflow as u8]);
    peer.receive(&request(cmd::BLOCK_STATUS, flag::REQ_ONE, 7, 512, 1024));
    let expected = Op::Status { at: 512, len: 1024, one: true };
    assert_eq!(peer.requests.pop().map(|request| request.op), Some(expected));
}

#[test]
fn a_read_only_export_is_not_written() {
    let mut peer = Peer::new();
    peer.receive(&3u32.to_be_bytes());
    peer.receive(&option(opt::GO, &info_query(b"readonly", &[])));
    peer.take_sent();
    for command in [cmd::WRITE, cmd::TRIM, cmd::WRITE_ZEROES] {
        let mut bytes = request(command, 0, 7, 0, 512);
        bytes.resize(if command == cmd::WRITE { 28 + 512 } else { 28 }, 1);
        peer.receive(&bytes);
        assert_eq!(peer.errors(), [Errno::Perm as u8]);
    }
    peer.receive(&request(cmd::READ, 0, 7, 0, 512));
    assert_eq!(peer.requests.len(), 1);
}

#[test]
fn block_status_is_for_the_export_it_was_negotiated_for() {
    let mut peer = Peer::new();
    peer.receive(&3u32.to_be_bytes());
    peer.receive(&option(opt::STRUCTURED_REPLY, &[]));
    let query = contexts(b"other", &[b"base:allocation"]);
    peer.receive(&option(opt::SET_META_CONTEXT, &query));
    peer.receive(&option(opt::GO, &info_query(b"disk", &[])));
    peer.receive(&request(cmd::BLOCK_STATUS, 0, 7, 0, 512));
    assert!(peer.requests.is_empty());
}

#[test]
fn a_write_cut_in_its_data_is_never_given_out() {
    for len in [512, 4096, 64 << 10, 3 << 20] {
        let mut peer = Peer::using(false);
        let mut bytes = request(cmd::WRITE, 0, 7, 0, len);
        bytes.resize(bytes.len() + len as usize, 9);
        let (cut, last) = bytes.split_at(bytes.len() - 1);
        peer.receive(cut);
        assert!(peer.requests.is_empty() && peer.session.arriving() == len as usize);
        peer.receive(last);
        assert!(peer.requests.len() == 1 && peer.session.arriving() == 0);
    }
}

#[test]
fn no_room_means_wait_and_nothing_is_lost() {
    let mut peer = Peer::using(false);
    let mut bytes = request(cmd::WRITE, 0, 7, 512, 512);
    bytes.resize(28 + 512, 3);
    let space = peer.session.space();
    space[..bytes.len()].copy_from_slice(&bytes);
    peer.session.filled(bytes.len());
    let out = &mut peer.out;
    let none = Room { requests: 0, bytes: 1 << 20 };
    assert_eq!(peer.session.next(none, out), Event::Full(0));
    let little = Room { requests: 1, bytes: 511 };
    assert_eq!(peer.session.next(little, out), Event::Full(512));
    let enough = Room { requests: 1, bytes: 512 };
    let data = vec![Buf::copy_from(&[3; 512])];
    let expected = Request { cookie: 7, op: Op::Write { at: 512, data }, charge: 512 };
    assert_eq!(peer.session.next(enough, out), Event::Request(expected));
}

/// A random stream of well-formed requests, cut anywhere, is understood as it was meant.
#[test]
fn requests_are_understood_however_they_are_cut() {
    for seed in 0..60 {
        let mut chance = Chance(seed);
        let mut peer = Peer::using(true);
        let (mut stream, mut expected) = (Vec::new(), Vec::new());
        for cookie in 0..40 {
            let at = chance.below(SIZE / 512 / 2) * 512;
            let blocks = chance.of(&[1, 1, 8, 8, 16, 100, 2048 + 7]);
            let len = blocks * 512;
            let op = match chance.below(5) {
                0 => {
                    stream.extend(request(cmd::READ, 0, cookie, at, len));
                    Op::Read { at, len, whole: false }
                }
                1 => {
                    stream.extend(request(cmd::TRIM, 0, cookie, at, len));
                    Op::Trim { at, len }
                }
                2 => {
                    stream.extend(request(cmd::FLUSH, 0, cookie, 0, 0));
                    Op::Flush
                }
                _ => {
                    stream.extend(request(cmd::WRITE, flag::FUA, cookie, at, len));
                    let data: Vec<u8> = (0..len).map(|_| chance.next() as u8).collect();
                    stream.extend_from_slice(&data);
                    Op::Write { at, data: vec![Buf::copy_from(&data)] }
                }
            };
            expected.push((cookie, op));
        }
        let mut rest = &stream[..];
        while !rest.is_empty() {
            let most = chance.of(&[1, 30, 5_000, 300_000]);
            let now = (1 + chance.below(most) as usize).min(rest.len());
            peer.receive(&rest[..now]);
            rest = &rest[now..];
        }
        assert_eq!(peer.requests.len(), expected.len());
        for (got, (cookie, op)) in peer.requests.into_iter().zip(expected) {
            assert_eq!(got.cookie, cookie);
            match (got.op, op) {
                (Op::Write { at, data }, Op::Write { at: meant_at, data: meant }) => {
                    assert!(at == meant_at && join(&data) == join(&meant), "seed {seed}");
                }
                (got, meant) => assert_eq!(got, meant, "seed {seed}"),
            }
        }
    }
}

/// A client's stream that is right in most places.
fn almost_right(chance: &mut Chance) -> Vec<u8> {
    let mut stream = chance.of(&[3u32, 1, 0, 3, 3, 3, 3, 4]).to_be_bytes().to_vec();
    let names: [&[u8]; 5] = [b"disk", b"readonly", b"held", b"", b"\xc3"];
    for _ in 0..chance.below(6) {
        let name = chance.of(&names);
        let number = chance.of(&[2, 3, 4, 5, 6, 8, 8, 8, 9, 10, 10, 11, 99]);
        let data = match number {
            opt::INFO => info_query(name, &[0, 1, 2, 3, 9]),
            opt::LIST_META_CONTEXT | opt::SET_META_CONTEXT => {
                contexts(name, &[b"base:allocation", b"base:", b"qemu:x"])
            }
            99 => vec![1; chance.below(40_000) as usize],
            _ => vec![],
        };
        stream.extend(option(number, &data));
    }
    if chance.below(4) == 0 {
        stream.extend(option(opt::EXPORT_NAME, b"disk"));
    } else {
        stream.extend(option(opt::GO, &info_query(b"disk", &[3])));
    }
    for _ in 0..chance.below(30) {
        let command = chance.of(&[0, 0, 1, 1, 1, 3, 4, 5, 6, 7, 7, 2, 8, 255]);
        let command =
            if command == cmd::DISC && chance.below(8) > 0 { cmd::WRITE } else { command };
        let flags = chance.of(&[0, 0, 0, 0, 0, 1, 1, 2, 4, 8, 16, 32]);
        let at = chance.of(&[0, 0, 512, 4096, 8192, 100, SIZE - 512, SIZE, u64::MAX]);
        let lens = [512, 512, 4096, 4096, 512, 4096, 0, 77, 136 * 512];
        let len = if chance.below(200) == 0 { 2 << 20 } else { chance.of(&lens) };
        let huge = chance.of(&[u32::MAX, 1 << 31, (64 << 20) + 1]);
        let len = if chance.below(40) == 0 { huge } else { len };
        stream.extend(request(command, flags, chance.next(), at, len));
        if command == cmd::WRITE && len <= 2 << 20 {
            stream.resize(stream.len() + len as usize, chance.next() as u8);
        }
    }
    stream
}

/// Flips, cuts out, doubles or replaces some of it.
fn damage(stream: &mut Vec<u8>, chance: &mut Chance) {
    for _ in 0..chance.below(6) {
        if stream.is_empty() {
            return;
        }
        // Most heads lie at the front.
        let reach = chance.of(&[60, 400, u64::MAX]).min(stream.len() as u64);
        let at = chance.below(reach) as usize;
        let end = (at + 1 + chance.below(40) as usize).min(stream.len());
        match chance.below(5) {
            0 => stream[at] ^= 1 << chance.below(8),
            1 => stream[at] = chance.of(&[0, 1, 127, 128, 255]),
            2 => drop(stream.drain(at..end)),
            3 => {
                let part = stream[at..end].to_vec();
                stream.splice(at..at, part);
            }
            _ => stream[at..end].fill_with(|| chance.next() as u8),
        }
    }
}

/// Whoever goes on with it is told once more what the client has chosen, and all that follows.
#[test]
fn a_session_that_is_handed_over_goes_on_where_it_was() {
    let (mut left, mut requests) = (0, 0);
    for seed in 0..4_000 {
        let mut chance = Chance(seed);
        let mut stream = almost_right(&mut chance);
        if seed % 3 == 0 {
            damage(&mut stream, &mut chance);
        }
        let (mut stays, mut leaves) = (Peer::new(), Peer::new());
        leaves.leaves = true;
        let mut rest = &stream[..];
        while !rest.is_empty() {
            let most = chance.of(&[3, 50, 1000, 400_000]);
            let (now, later) = rest.split_at((1 + chance.below(most) as usize).min(rest.len()));
            stays.receive(now);
            leaves.receive(now);
            rest = later;
        }
        assert_eq!(leaves.end, stays.end, "seed {seed}");
        assert!(leaves.take_sent() == stays.take_sent(), "seed {seed}");
        assert!(leaves.requests == stays.requests, "seed {seed}");
        left += usize::from(!leaves.leaves);
        requests += leaves.requests.len();
    }
    assert!(left > 2_000 && requests > 4_000, "{left} handed over, {requests} requests");
}

/// No stream makes the session panic, hold more than its limits, or answer more or less than
/// once. 20,000 streams.
#[test]
fn no_stream_harms_the_session() {
    let (mut bytes, mut requests, mut violations, mut goodbyes) = (0, 0, 0, 0);
    for seed in 0..20_000 {
        let mut chance = Chance(seed);
        let mut stream = if seed % 10 == 0 {
            (0..chance.below(3000)).map(|_| chance.next() as u8).collect()
        } else {
            almost_right(&mut chance)
        };
        if seed % 3 > 0 {
            damage(&mut stream, &mut chance);
        }
        let mut peer = Peer::new();
        let mut rest = &stream[..];
        while !rest.is_empty() && peer.end.is_none() {
            let most = chance.of(&[3, 50, 1000, 400_000, 400_000, 400_000]);
            let now = (1 + chance.below(most) as usize).min(rest.len());
            peer.receive(&rest[..now]);
            rest = &rest[now..];
            bytes += now;
            let held = peer.session.arriving() + RECEIVE_BYTES;
            assert!(held <= PAYLOAD_BYTES_MAX as usize + RECEIVE_BYTES);
            let given = std::mem::take(&mut peer.requests);
            requests += given.len();
            let replies = peer.out.replies() + given.len();
            given.into_iter().for_each(|request| answer(&mut peer, request, &mut chance));
            assert_eq!(peer.out.replies(), replies);
            let sent = peer.take_sent();
            assert!(sent.len() < 200 << 20);
        }
        match peer.end {
            Some(End::Violation(_)) => violations += 1,
            Some(End::Goodbye) => goodbyes += 1,
            _ => {}
        }
    }
    println!("{bytes} bytes, {requests} requests, {violations} violations, {goodbyes} goodbyes");
    // The streams reach what they are meant to reach.
    assert!(bytes > 50_000_000 && requests > 15_000, "{bytes} bytes, {requests} requests");
    assert!(violations > 3_000 && goodbyes > 1_000, "{violations} violations, {goodbyes} goodbyes");
}

fn answer(peer: &mut Peer, request: Request, chance: &mut Chance) {
    let Request { cookie, op, charge } = request;
    let (replies, out) = (peer.session.replies(), &mut peer.out);
    if chance.below(8) == 0 {
        let message = "no".repeat(chance.below(400) as usize);
        let at = (chance.below(2) == 0).then_some(0);
        replies.failed(out, cookie, &Failure { errno: Errno::Io, message, at });
    } else {
        match op {
            Op::Read { at, len, whole } => {
                assert!(at + u64::from(len) <= SIZE && charge == len as usize);
                replies.data(out, cookie, at, vec![Buf::zeros(len as usize)], whole);
            }
            Op::Status { len, .. } => replies.status(out, cookie, &[Status { len, flags: 0 }]),
            Op::Write { at, data } => {
                assert!(at + total_len(&data) as u64 <= SIZE && charge == total_len(&data));
                replies.done(out, cookie);
            }
            Op::Flush | Op::Trim { .. } | Op::Zero { .. } | Op::Cache { .. } => {
                replies.done(out, cookie);
            }
        }
    }
    out.count(charge);
}

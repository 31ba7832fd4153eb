//! The pump in virtual time: deadlines, back-pressure, slow clients, stopping, lost connections.

mod support;

use atoll_front::admission::limits::AdmissionLimits;
use atoll_front::filter::{Delay, Fail, Kind};
use atoll_front::limits::{Limits, PAYLOAD_BYTES_MAX};
use atoll_front::memory::{Fixed, MemoryVolume};
use atoll_front::nbd::{Ended, Server};
use atoll_world::volume::{ExportName, Volume, VolumeError, Volumes};
use atoll_world::{Nanos, World};
use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use support::{Halves, TokioWorld, Troubled, ended, run, sleep};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::task::JoinHandle;

const SIZE: u64 = 256 << 20;

/// A server with the one export `disk`.
struct Bench {
    world: TokioWorld,
    server: Server<TokioWorld, Fixed<Troubled>>,
    memory: MemoryVolume,
    delay: Delay<TokioWorld, MemoryVolume>,
}

/// A client, and the server's side of it.
struct Client {
    stream: DuplexStream,
    served: JoinHandle<Ended>,
}

impl Bench {
    fn new(limits: Limits) -> Rc<Self> {
        Self::failing(limits, |_, _, _| None)
    }

    fn admitting(admission: AdmissionLimits) -> Rc<Self> {
        Self::new(Limits { admission, ..Limits::default() })
    }

    fn failing(
        limits: Limits,
        rule: impl FnMut(Kind, u64, u64) -> Option<VolumeError> + 'static,
    ) -> Rc<Self> {
        let world = TokioWorld::new();
        let memory = MemoryVolume::new(SIZE);
        let delay = Delay::new(world.clone(), memory.clone(), Nanos::ZERO);
        let disk = Fail::new(delay.clone(), rule);
        let volumes = Fixed::new([("disk".to_owned(), disk, String::new())]);
        let server = Server::new(world.clone(), volumes, limits);
        Rc::new(Self { world, server, memory, delay })
    }

    fn connect(&self) -> Client {
        let (stream, theirs) = tokio::io::duplex(64 << 10);
        let (read, write) = tokio::io::split(theirs);
        let server = self.server.clone();
        let served =
            tokio::task::spawn_local(async move { ended(server.serve(Halves(read, write)).await) });
        Client { stream, served }
    }

    /// A client that uses `disk`, with simple replies.
    async fn using(&self) -> Client {
        let mut client = self.connect();
        client.choose().await;
        client
    }
}

impl Client {
    async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.expect("the server is there");
    }

    async fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes).await.expect("the server answers");
        bytes
    }

    async fn choose(&mut self) {
        assert_eq!(self.take().await, *b"NBDMAGICIHAVEOPT\0\x03");
        self.send(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x04disk").await;
        let answer: [u8; 10] = self.take().await;
        assert_eq!(answer[..8], SIZE.to_be_bytes());
    }

    async fn request(&mut self, command: u8, cookie: u64, at: u64, data: &[u8], len: u32) {
        let head = [&[0x25, 0x60, 0x95, 0x13, 0, 0, 0, command], &cookie.to_be_bytes()[..]];
        let place = [&at.to_be_bytes()[..], &len.to_be_bytes()];
        let bytes = [head.concat(), place.concat(), data.to_vec()].concat();
        self.send(&bytes).await;
    }

    async fn write(&mut self, cookie: u64, at: u64, data: &[u8]) {
        self.request(1, cookie, at, data, data.len() as u32).await;
    }

    async fn read(&mut self, cookie: u64, at: u64, len: u32) {
        self.request(0, cookie, at, &[], len).await;
    }

    /// Cookie and error of the next answer.
    async fn answer(&mut self) -> (u64, u32) {
        let reply: [u8; 16] = self.take().await;
        assert_eq!(reply[..4], [0x67, 0x44, 0x66, 0x98]);
        let error = u32::from_be_bytes(reply[4..8].try_into().expect("four"));
        (u64::from_be_bytes(reply[8..].try_into().expect("eight")), error)
    }

    async fn ended(self) -> Ended {
        let Self { stream, served } = self;
        let ended = served.await.expect("it does not panic");
        drop(stream);
        ended
    }
}

#[test]
fn requests_are_answered_as_they_end_and_survive_the_way() {
    run(async {
        let bench = Bench::new(Limits::default());
        let mut client = bench.using().await;
        let data: Vec<u8> = (0..9 << 20).map(|i| (i / 777) as u8).collect();
        let sending = client.write(1, 512, &data);
        sending.await;
        assert_eq!(client.answer().await, (1, 0));
        client.read(2, 512, data.len() as u32).await;
        assert_eq!(client.answer().await, (2, 0));
        let mut back = vec![0; data.len()];
        client.stream.read_exact(&mut back).await.expect("all of it");
        assert!(back == data);
        // A slow one does not hold up a fast one, and the same cookie twice is two answers.
        bench.delay.set(Nanos::from_secs(5));
        client.write(3, 0, &[1; 512]).await;
        sleep(10).await;
        bench.delay.set(Nanos::ZERO);
        client.write(4, 4096, &[1; 512]).await;
        client.write(4, 8192, &[1; 512]).await;
        assert_eq!(client.answer().await, (4, 0));
        assert_eq!(client.answer().await, (4, 0));
        assert_eq!(client.answer().await, (3, 0));
        assert!(bench.world.now() >= Nanos::from_secs(5));
        client.request(2, 0, 0, &[], 0).await;
        assert!(matches!(client.ended().await, Ended::Goodbye));
        let stats = bench.server.stats();
        assert_eq!((stats.connections, stats.held_bytes, stats.requests), (0, 0, 5));
    });
}

#[test]
fn a_goodbye_with_requests_in_flight_finishes_them() {
    run(async {
        let bench = Bench::new(Limits::default());
        bench.delay.set(Nanos::from_secs(2));
        let mut client = bench.using().await;
        client.write(1, 0, &[7; 4096]).await;
        client.request(2, 0, 0, &[], 0).await;
        assert_eq!(client.answer().await, (1, 0));
        assert!(matches!(client.ended().await, Ended::Goodbye));
        assert!(bench.memory.held_bytes() > 0);
    });
}

#[test]
fn requests_of_a_client_that_vanishes_are_dropped() {
    run(async {
        let bench = Bench::new(Limits::default());
        bench.delay.set(Nanos::from_secs(20));
        let mut client = bench.using().await;
        client.write(1, 0, &[7; 4096]).await;
        sleep(100).await;
        let began = bench.world.now();
        drop(client.stream);
        assert!(matches!(client.served.await, Ok(Ended::Broken(_))));
        assert!(bench.world.now().since(began) < Nanos::from_secs(1), "nobody waits for it");
        let stats = bench.server.stats();
        assert_eq!((stats.connections, stats.held_bytes), (0, 0));
        sleep(30_000).await;
        assert_eq!(bench.memory.held_bytes(), 0, "it does not land later");
    });
}

#[test]
fn a_write_cut_in_its_data_is_not_applied() {
    run(async {
        let bench = Bench::new(Limits::default());
        for len in [512u32, 64 << 10, 3 << 20] {
            let mut client = bench.using().await;
            let data = vec![9; len as usize - 1];
            client.request(1, 1, 0, &data, len).await;
            sleep(100).await;
            assert_eq!(bench.server.stats().held_bytes, len as usize);
            drop(client.stream);
            assert!(matches!(client.served.await, Ok(Ended::Goodbye)));
            assert_eq!((bench.memory.held_bytes(), bench.server.stats().held_bytes), (0, 0));
        }
    });
}

#[test]
fn half_open_connections_expire_and_disturb_nobody() {
    run(async {
        let bench = Bench::new(Limits::default());
        let half: Vec<_> = (0..200).map(|_| bench.connect()).collect();
        let mut slow = bench.connect();
        let mut client = bench.using().await;
        let began = bench.world.now();
        for second in 0..9 {
            slow.send(&b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x04disk"[second..=second]).await;
            client.write(1, 0, &[1; 512]).await;
            assert_eq!(client.answer().await, (1, 0));
            sleep(1000).await;
        }
        assert_eq!(bench.server.stats().connections, 202);
        for client in half {
            assert!(matches!(client.ended().await, Ended::HandshakeExpired));
        }
        assert!(matches!(slow.ended().await, Ended::HandshakeExpired));
        assert!(bench.world.now().since(began) <= Nanos::from_ms(10_050));
        let stats = bench.server.stats();
        assert_eq!((stats.connections, stats.handshakes_expired), (1, 201));
    });
}

#[test]
fn too_many_connections_are_refused_at_once() {
    run(async {
        let bench = Bench::new(Limits { connections: 2, ..Limits::default() });
        let first = bench.using().await;
        let _second = bench.using().await;
        assert!(matches!(bench.connect().ended().await, Ended::TooMany));
        drop(first.stream);
        assert!(matches!(first.served.await, Ok(Ended::Goodbye)));
        bench.using().await;
        assert_eq!(bench.server.stats().refused, 1);
    });
}

#[test]
fn a_client_that_never_reads_is_bounded_then_disconnected() {
    run(async {
        let bench = Bench::new(Limits::default());
        let mut client = bench.using().await;
        let mut others = bench.using().await;
        let greedy = tokio::task::spawn_local(async move {
            let mut taken = 0u32;
            let head =
                [&[0x25, 0x60, 0x95, 0x13, 0, 0, 0, 0][..], &[0; 16], &(1u32 << 20).to_be_bytes()];
            let head = head.concat();
            while client.stream.write_all(&head).await.is_ok() {
                taken += 1;
            }
            (taken, client)
        });
        for _ in 0..50 {
            others.read(1, 0, 512).await;
            assert_eq!(others.answer().await, (1, 0));
            others.take::<512>().await;
            assert!(bench.server.stats().held_bytes <= (64 << 20) + 512);
            sleep(1000).await;
        }
        assert_eq!(bench.server.stats().held_bytes, 64 << 20);
        let (taken, client) = greedy.await.expect("no panic");
        // 64 taken on; the rest lie in the stream and the receive buffer.
        assert!(taken as usize <= 64 + ((64 << 10) + (256 << 10)) / 28 + 1);
        assert!(matches!(client.ended().await, Ended::Stalled));
        assert!(bench.world.now() >= Nanos::from_secs(60));
        assert!(bench.world.now() <= Nanos::from_secs(80));
        assert_eq!(bench.server.stats().held_bytes, 0);
    });
}

#[test]
fn many_greedy_clients_leave_room_for_a_modest_one() {
    run(async {
        let bench = Bench::new(Limits::default());
        let mut greedy = Vec::new();
        for _ in 0..100 {
            let mut client = bench.using().await;
            for cookie in 0..250 {
                client.read(cookie, 0, 1 << 20).await;
            }
            greedy.push(client);
            sleep(10).await;
        }
        let held = bench.server.stats().held_bytes;
        // 256 MiB, and a guarantee of at most 256 KiB (which none of them can use) each.
        assert!(held > 180 << 20 && held <= 256 << 20, "{held}");
        let began = bench.world.now();
        let mut modest = bench.using().await;
        for _ in 0..10 {
            for cookie in 0..16 {
                modest.write(cookie, 0, &[1; 4096]).await;
            }
            for cookie in 0..16 {
                assert_eq!(modest.answer().await, (cookie, 0));
            }
        }
        assert!(bench.world.now().since(began) < Nanos::from_ms(100));
    });
}

#[test]
fn clients_that_take_no_answer_to_large_reads_keep_nobody_waiting() {
    run(async {
        let bench = Bench::new(Limits::default());
        let mut stuck = Vec::new();
        for _ in 0..64 {
            let mut client = bench.using().await;
            for cookie in 0..4 {
                client.read(cookie, 0, 32 << 20).await;
            }
            stuck.push(client);
            sleep(10).await;
        }
        let held = bench.server.stats().held_bytes;
        assert!((160 << 20..=192 << 20).contains(&held), "{held}");
        let began = bench.world.now();
        let mut modest = bench.using().await;
        for cookie in 0..10 {
            modest.write(cookie, 0, &vec![1; 1 << 20]).await;
            assert_eq!(modest.answer().await, (cookie, 0));
        }
        assert!(bench.world.now().since(began) < Nanos::from_ms(100));
    });
}

#[test]
fn requests_beyond_the_limit_wait_and_all_are_answered() {
    run(async {
        let bench = Bench::admitting(AdmissionLimits { requests: 4, ..Default::default() });
        bench.delay.set(Nanos::from_ms(100));
        let mut client = bench.using().await;
        for cookie in 0..40 {
            client.write(cookie, cookie * 512, &[1; 512]).await;
        }
        sleep(50).await;
        assert_eq!(bench.server.stats().held_bytes, 4 * 512);
        for cookie in 0..40 {
            assert_eq!(client.answer().await, (cookie, 0));
        }
        assert!(bench.world.now() >= Nanos::from_ms(1000));
        // Refused ones count as well while their answers wait.
        for cookie in 0..40 {
            client.read(cookie, 7, 512).await;
        }
        for cookie in 0..40 {
            assert_eq!(client.answer().await, (cookie, 22));
        }
        assert_eq!(bench.server.stats().invalid, 40);
    });
}

#[test]
fn who_has_many_requests_under_way_leaves_room_for_who_waits_for_each() {
    run(async {
        let bench = Bench::new(Limits::default());
        bench.delay.set(Nanos::from_ms(4));
        let mut deep = bench.using().await;
        let all = async |client: &mut Client| {
            for cookie in 0..100 {
                client.write(cookie, cookie * 512, &[1; 512]).await;
            }
        };
        let taken = || bench.server.stats().requests;
        all(&mut deep).await;
        sleep(1).await;
        assert_eq!(taken(), 100);
        sleep(10).await;
        let mut shallow = bench.using().await;
        for cookie in 0..30 {
            shallow.read(cookie, 0, 0x200).await;
            let (answered, error) = shallow.answer().await;
            assert_eq!((answered, error), (cookie, 0));
            shallow.take::<512>().await;
        }
        // It is remembered for a while; each few take as long as one.
        let beside = AdmissionLimits::default().deep_requests_min as u64;
        let before = taken();
        all(&mut deep).await;
        sleep(1).await;
        assert_eq!(taken() - before, beside);
        sleep(4).await;
        assert_eq!(taken() - before, 2 * beside);
        // Two windows, and the answer after which it looks again.
        sleep(150).await;
        assert_eq!(taken() - before, 100);
        for _ in 0..200 {
            deep.answer().await;
        }
        all(&mut deep).await;
        sleep(1).await;
        assert_eq!(taken() - before, 200);
    });
}

#[test]
fn who_has_many_under_way_gets_more_where_others_do_not_feel_it() {
    /// Most requests of the deep client that were begun while one of the shallow client ran; if
    /// they are felt, more than a few make all of them take three times as long.
    async fn most_at_once(felt: bool) -> u64 {
        let bench = Bench::new(Limits::default());
        bench.delay.set(Nanos::from_ms(1));
        let (mut deep, mut shallow) = (bench.using().await, bench.using().await);
        let deep_runs = async {
            for cookie in 0..100 {
                deep.write(cookie, cookie * 512, &[1; 512]).await;
            }
            loop {
                let (cookie, _) = deep.answer().await;
                deep.write(cookie, cookie * 512, &[1; 512]).await;
            }
        };
        let shallow_runs = async {
            let mut most = 0;
            for cookie in 0..8_000 {
                let before = bench.server.stats().requests;
                shallow.read(cookie, 0, 0x200).await;
                shallow.answer().await;
                shallow.take::<512>().await;
                let beside = bench.server.stats().requests - before - 1;
                if cookie > 1_000 {
                    most = most.max(beside);
                }
                bench.delay.set(Nanos::from_ms(if felt && beside > 8 { 3 } else { 1 }));
            }
            most
        };
        tokio::select! {
            most = shallow_runs => most,
            () = deep_runs => unreachable!(),
        }
    }
    run(async {
        let (unfelt, felt) = (most_at_once(false).await, most_at_once(true).await);
        assert!(unfelt >= 32, "{unfelt} at once");
        assert!(felt <= 16, "{felt} at once");
    });
}

/// A stream of which one read takes no more than a request without data; notes what happens.
struct Noting<T>(T, Rc<RefCell<String>>);

impl<R: AsyncRead + Unpin> AsyncRead for Noting<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut part = into.take(28);
        ready!(Pin::new(&mut self.0).poll_read(cx, &mut part))?;
        let read = part.filled().len();
        // What `part` initialised and filled is the beginning of `into`.
        let bytes = part.filled().to_vec();
        into.put_slice(&bytes);
        self.1.borrow_mut().push_str(if read > 0 { "r" } else { "" });
        Poll::Ready(Ok(()))
    }
}

impl<W: AsyncWrite + Unpin> AsyncWrite for Noting<W> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.1.borrow_mut().push('w');
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// The client works on them while the server works on what comes next.
#[test]
fn answers_leave_before_more_is_read() {
    run(async {
        let bench = Bench::new(Limits::default());
        let (stream, theirs) = tokio::io::duplex(64 << 10);
        let (read, write) = tokio::io::split(theirs);
        let notes = Rc::<RefCell<String>>::default();
        let halves = Halves(Noting(read, notes.clone()), Noting(write, notes.clone()));
        let server = bench.server.clone();
        let served = tokio::task::spawn_local(async move { ended(server.serve(halves).await) });
        let mut client = Client { stream, served };
        client.choose().await;
        sleep(1).await;
        notes.borrow_mut().clear();
        for cookie in 0..4 {
            client.request(3, cookie, 0, &[], 0).await;
        }
        for cookie in 0..4 {
            assert_eq!(client.answer().await, (cookie, 0));
        }
        assert_eq!(*notes.borrow(), "rwrwrwrw");
    });
}

#[test]
fn fewer_requests_than_a_deep_client_may_have_stay_the_bound() {
    run(async {
        let bench = Bench::admitting(AdmissionLimits { requests: 1, ..Default::default() });
        bench.delay.set(Nanos::from_ms(4));
        let (mut deep, mut shallow) = (bench.using().await, bench.using().await);
        for cookie in 0..20 {
            shallow.request(3, cookie, 0, &[], 0).await;
            assert_eq!(shallow.answer().await, (cookie, 0));
        }
        let before = bench.server.stats().requests;
        for cookie in 0..20 {
            deep.write(cookie, cookie * 512, &[1; 512]).await;
        }
        sleep(1).await;
        assert_eq!(bench.server.stats().requests - before, 1);
    });
}

#[test]
fn the_largest_request_is_served_even_if_two_do_not_fit() {
    run(async {
        let least = PAYLOAD_BYTES_MAX as usize;
        let admission =
            AdmissionLimits { client_bytes: least, server_bytes: least, ..Default::default() };
        let bench = Bench::admitting(admission);
        let mut one = bench.using().await;
        let mut two = bench.using().await;
        let all = vec![3; least];
        let both = async {
            tokio::join!(one.write(1, 0, &all), two.write(2, 64 << 20, &all));
        };
        both.await;
        assert_eq!(one.answer().await, (1, 0));
        assert_eq!(two.answer().await, (2, 0));
    });
}

#[test]
fn stopping_finishes_what_was_begun_and_takes_on_no_more() {
    run(async {
        let bench = Bench::new(Limits::default());
        let idle = bench.using().await;
        let choosing = bench.connect();
        let mut busy = bench.using().await;
        bench.delay.set(Nanos::from_secs(3));
        busy.write(1, 0, &[1; 512]).await;
        sleep(100).await;
        bench.server.stop();
        assert!(matches!(idle.ended().await, Ended::Stopped));
        assert!(matches!(choosing.ended().await, Ended::Stopped));
        busy.write(2, 1 << 20, &[1; 512]).await;
        assert_eq!(busy.answer().await, (1, 0));
        assert_eq!(busy.stream.read(&mut [0; 16]).await.expect("a clean end"), 0);
        assert!(matches!(busy.ended().await, Ended::Stopped));
        bench.server.idle().await;
        assert_eq!(bench.server.stats().requests, 1);
    });
}

#[test]
fn stopping_does_not_wait_for_a_stuck_volume_for_ever() {
    run(async {
        let bench = Bench::new(Limits::default());
        bench.delay.set(Nanos::from_secs(3000));
        let mut client = bench.using().await;
        client.write(1, 0, &[1; 512]).await;
        sleep(100).await;
        bench.server.stop();
        bench.server.idle().await;
        assert!(bench.world.now() <= Nanos::from_secs(11));
        assert!(matches!(client.ended().await, Ended::Stopped));
    });
}

#[test]
fn a_volume_that_goes_while_the_server_stops_is_no_error_to_the_client() {
    run(async {
        let gone = |_, _, _| Some(VolumeError::Gone);
        let bench = Bench::failing(Limits::default(), gone);
        let mut client = bench.using().await;
        client.write(1, 0, &[1; 512]).await;
        assert_eq!(client.answer().await, (1, 108));
        bench.server.stop();
        // Not answered: the connection just ends.
        client.write(2, 0, &[1; 512]).await;
        assert_eq!(client.stream.read(&mut [0; 16]).await.expect("a clean end"), 0);
        assert!(matches!(client.ended().await, Ended::Stopped));
    });
}

#[test]
fn who_comes_back_finds_no_old_write_under_way() {
    run(async {
        let bench = Bench::new(Limits::default());
        bench.delay.set(Nanos::from_secs(4));
        let mut lost = bench.using().await;
        lost.write(1, 0, &[1; 512]).await;
        sleep(100).await;
        bench.delay.set(Nanos::ZERO);
        drop(lost.stream);
        let mut back = bench.using().await;
        // Given up with its client, so there is nothing to wait for.
        assert!(bench.world.now() < Nanos::from_secs(1));
        back.write(2, 0, &[2; 512]).await;
        assert_eq!(back.answer().await, (2, 0));
        sleep(10_000).await;
        let now = bench.memory.read(0, 512).await.expect("inside");
        assert_eq!(now[0][..], [2; 512]);
        assert!(matches!(lost.served.await, Ok(Ended::Broken(_))));
    });
}

/// Volumes whose names are not known now.
#[derive(Clone)]
struct Unlisted;

impl Volumes for Unlisted {
    type Volume = MemoryVolume;
    async fn open(&self, _: &str) -> Result<MemoryVolume, VolumeError> {
        Ok(MemoryVolume::new(SIZE))
    }
    async fn list(&self, _: usize) -> Result<Vec<ExportName>, VolumeError> {
        Err(VolumeError::TimedOut("the directory does not answer".to_owned()))
    }
}

#[test]
fn names_that_are_not_known_are_an_error_and_not_an_empty_list() {
    run(async {
        let server = Server::new(TokioWorld::new(), Unlisted, Limits::default());
        let (stream, theirs) = tokio::io::duplex(64 << 10);
        let (read, write) = tokio::io::split(theirs);
        let served =
            tokio::task::spawn_local(async move { ended(server.serve(Halves(read, write)).await) });
        let mut client = Client { stream, served };
        assert_eq!(client.take().await, *b"NBDMAGICIHAVEOPT\0\x03");
        client.send(b"\0\0\0\x03IHAVEOPT\0\0\0\x03\0\0\0\0").await;
        let head: [u8; 20] = client.take().await;
        // NBD_REP_ERR_POLICY to NBD_OPT_LIST, with the reason.
        assert_eq!(head[8..16], *b"\0\0\0\x03\x80\0\0\x02");
        let mut text = vec![0; usize::from(head[19])];
        client.stream.read_exact(&mut text).await.expect("the reason");
        assert!(String::from_utf8_lossy(&text).contains("directory"), "{text:?}");
        // The handshake goes on: who knows the name can use it.
        client.send(b"IHAVEOPT\0\0\0\x01\0\0\0\x04disk").await;
        let size: [u8; 8] = client.take().await;
        assert_eq!(u64::from_be_bytes(size), SIZE);
    });
}

#[test]
fn the_volumes_errors_become_the_protocols() {
    run(async {
        let mut errors = [
            (VolumeError::NoSpace("full".to_owned()), 28),
            (VolumeError::ReadOnly, 1),
            (VolumeError::Io("two copies are bad".to_owned()), 5),
            (VolumeError::TimedOut("no owner".to_owned()), 5),
            (VolumeError::Gone, 108),
            (VolumeError::Unsupported, 95),
            (VolumeError::OutOfRange { at: SIZE, len: 512 }, 28),
            (VolumeError::OutOfRange { at: 0, len: 7 }, 22),
        ]
        .into_iter();
        let expected: Vec<u32> = errors.clone().map(|(_, errno)| errno).collect();
        let bench =
            Bench::failing(Limits::default(), move |_, _, _| errors.next().map(|(error, _)| error));
        let mut client = bench.using().await;
        for errno in expected {
            client.write(1, 0, &[1; 512]).await;
            assert_eq!(client.answer().await, (1, errno));
        }
        client.write(1, 0, &[1; 512]).await;
        assert_eq!(client.answer().await, (1, 0));
        assert_eq!(bench.server.stats().failures, 8);
    });
}

/// A client that is told of an error while it still sends gives the connection up.
#[test]
fn a_refused_write_is_answered_after_its_data() {
    run(async {
        let bench = Bench::new(Limits::default());
        let mut client = bench.using().await;
        let head = [&[0x25, 0x60, 0x95, 0x13, 0, 0, 0, 1][..], &7u64.to_be_bytes()].concat();
        client.send(&[&head[..], &SIZE.to_be_bytes(), &4096u32.to_be_bytes()].concat()).await;
        let mut early = [0; 1];
        let told = tokio::time::timeout(
            tokio::time::Duration::from_secs(1),
            client.stream.read_exact(&mut early),
        );
        assert!(told.await.is_err(), "answered before its data came");
        client.send(&[1; 4096]).await;
        assert_eq!(client.answer().await, (7, 28), "no space behind the end");
        client.read(8, 0, 512).await;
        assert_eq!(client.answer().await, (8, 0));
    });
}

/// `nbdinfo --list` and `qemu-nbd --list` ask for every name.
#[test]
fn a_handshake_may_ask_for_every_export() {
    run(async {
        let bench = Bench::new(Limits::default());
        let mut client = bench.connect();
        assert_eq!(client.take().await, *b"NBDMAGICIHAVEOPT\0\x03");
        client.send(b"\0\0\0\x03").await;
        for _ in 0..8192 {
            // An option that nobody knows, without data: ERR_UNSUP.
            client.send(b"IHAVEOPT\0\0\x7f\xff\0\0\0\0").await;
            let reply: [u8; 20] = client.take().await;
            let len = u32::from_be_bytes(reply[16..].try_into().expect("four"));
            let mut text = vec![0; len as usize];
            client.stream.read_exact(&mut text).await.expect("its text");
        }
        client.send(b"IHAVEOPT\0\0\0\x01\0\0\0\x04disk").await;
        let answer: [u8; 10] = client.take().await;
        assert_eq!(answer[..8], SIZE.to_be_bytes());
    });
}

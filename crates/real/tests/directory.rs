//! The embedded directory over its Unix socket: the conformance suite, crashes of the server
//! process under load, outages, and peers that do not behave.

use atoll_directory::codec::{self, Reply, Request};
use atoll_directory::limits::{COMPARES_MAX, CONNECTIONS_MAX};
use atoll_real::directory::{DirectoryClient, DirectoryServer, ListenError};
use atoll_world::Nanos;
use atoll_world::directory::{
    Compare, Directory, DirectoryError, KeyChange, Revision, Txn, TxnReply, Watch,
};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, LocalSet, spawn_local};

/// A shard: one thread, one runtime, tasks that need not be `Send`.
fn on_a_shard<T>(test: impl Future<Output = T>) -> T {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    LocalSet::new().block_on(&runtime, async {
        tokio::time::timeout(Duration::from_secs(60), test).await.expect("the test hangs")
    })
}

struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Running {
    fn start(file: &Path, socket: &Path) -> Self {
        let server = DirectoryServer::open(file).expect("the file opens");
        let listening = server.listen(socket).expect("the socket is free");
        let (stop, stopped) = oneshot::channel();
        let task = spawn_local(async move {
            let stopped = async { drop(stopped.await) };
            listening.serve(stopped).await.expect("the server ends as it was told");
        });
        Self { stop, task }
    }

    async fn stop(self) {
        self.stop.send(()).expect("it runs");
        self.task.await.expect("it ends");
    }
}

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder") }
    }
    fn file(&self) -> PathBuf {
        self.folder.path().join("directory.db")
    }
    fn socket(&self) -> PathBuf {
        self.folder.path().join("s")
    }
}

async fn sleep_ms(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

fn put(key: &str, value: impl Into<Vec<u8>>) -> Txn {
    Txn { compares: vec![], changes: vec![KeyChange::Put(key.into(), value.into())] }
}

fn done(reply: TxnReply) -> Revision {
    match reply {
        TxnReply::Done(revision) => revision,
        TxnReply::Conflict(seen) => panic!("a conflict: {seen:?}"),
    }
}

#[test]
fn the_directory_behind_a_socket_conforms() {
    let place = Place::new();
    on_a_shard(async {
        let running = Running::start(&place.file(), &place.socket());
        let mut clients = Vec::new();
        for _ in 0..3 {
            clients.push(DirectoryClient::connect(&place.socket()).await.expect("it serves"));
        }
        let sleep = |span: Nanos| tokio::time::sleep(Duration::from_nanos(span.0));
        atoll_directory::conformance::run(&clients, sleep).await;
        running.stop().await;
        assert!(!place.socket().exists(), "a server that ends removes its socket");
    });
}

#[test]
fn one_server_per_file_and_socket_and_a_dead_ones_socket_is_taken_over() {
    let place = Place::new();
    let other = place.folder.path().join("other.db");
    on_a_shard(async {
        let running = Running::start(&place.file(), &place.socket());
        let mode = std::fs::metadata(place.socket()).expect("a socket").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let error = DirectoryServer::open(&place.file()).err().expect("the file is locked");
        assert!(error.to_string().contains("in use by another process"), "{error}");
        let second = DirectoryServer::open(&other).expect("another file");
        let error = second.listen(&place.socket()).err().expect("the socket is served");
        assert!(matches!(error, ListenError::Taken(_)), "{error}");
        running.stop().await;

        // A socket file whose process is gone.
        drop(std::os::unix::net::UnixListener::bind(place.socket()).expect("bind"));
        assert!(place.socket().exists());
        let running = Running::start(&place.file(), &place.socket());
        DirectoryClient::connect(&place.socket()).await.expect("it was taken over");
        running.stop().await;

        // One that lives, though it is not ours.
        let stranger = std::os::unix::net::UnixListener::bind(place.socket()).expect("bind");
        let server = DirectoryServer::open(&other).expect("the file is free");
        let error = server.listen(&place.socket()).err().expect("somebody lives there");
        assert!(matches!(error, ListenError::Taken(_)), "{error}");
        drop(stranger);

        std::fs::remove_file(place.socket()).expect("remove");
        std::fs::write(place.socket(), b"data").expect("write");
        let server = DirectoryServer::open(&other).expect("the file is free");
        let error = server.listen(&place.socket()).err().expect("a file lies there");
        assert!(matches!(error, ListenError::NotASocket(_)), "{error}");
        assert_eq!(std::fs::read(place.socket()).expect("still there"), b"data");

        let long = place.folder.path().join("x".repeat(100));
        let server = DirectoryServer::open(&other).expect("the file is free");
        let error = server.listen(&long).err().expect("too long");
        assert!(matches!(error, ListenError::TooLong(_)), "{error}");
    });
}

#[test]
fn without_a_server_nothing_is_sent_and_that_is_said() {
    let place = Place::new();
    on_a_shard(async {
        let error = DirectoryClient::connect(&place.socket()).await.err().expect("nobody there");
        let DirectoryError::Unavailable(why) = error else { panic!("{error}") };
        assert!(why.contains("No such file"), "{why}");
    });
}

#[test]
fn clients_survive_a_restart_and_watches_say_that_they_broke() {
    let place = Place::new();
    on_a_shard(async {
        let running = Running::start(&place.file(), &place.socket());
        let client = DirectoryClient::connect(&place.socket()).await.expect("it serves");
        let first = done(client.txn(put("a", "1")).await.expect("answered"));
        let mut watch = client.watch("a", first).await.expect("a watch");
        let waiting = spawn_local(async move { (watch.next().await, watch) });
        sleep_ms(50).await;
        running.stop().await;
        let (broken, mut watch) = waiting.await.expect("it ends");
        assert!(matches!(broken, Err(DirectoryError::Unavailable(_))), "{broken:?}");
        assert!(!client.is_connected());

        // Asked while nobody serves, answered by the next server, within the deadline.
        let asking = spawn_local({
            let client = client.clone();
            async move { client.txn(put("a", "2")).await }
        });
        sleep_ms(300).await;
        let running = Running::start(&place.file(), &place.socket());
        let second = done(asking.await.expect("it ends").expect("answered"));
        assert_eq!(second, Revision(first.0 + 1), "the revision goes on");
        let events = watch.next().await.expect("from where it was");
        assert_eq!((events.len(), events[0].revision), (1, second));
        let from_before = client.watch("a", Revision(first.0 - 1)).await;
        let compacted = match from_before {
            Ok(mut watch) => watch.next().await.map(|_| ()),
            Err(error) => Err(error),
        };
        assert_eq!(compacted, Err(DirectoryError::Compacted), "a new server knows no old events");
        running.stop().await;
    });
}

#[test]
fn an_older_copy_or_another_directory_is_refused_by_those_who_knew_better() {
    let place = Place::new();
    on_a_shard(async {
        let running = Running::start(&place.file(), &place.socket());
        let client = DirectoryClient::connect(&place.socket()).await.expect("it serves");
        client.txn(put("a", "1")).await.expect("answered");
        running.stop().await;
        let copy = place.folder.path().join("copy.db");
        std::fs::copy(place.file(), &copy).expect("copy");
        let running = Running::start(&place.file(), &place.socket());
        client.txn(put("a", "2")).await.expect("answered");
        running.stop().await;

        let running = Running::start(&copy, &place.socket());
        let error = client.txn(put("a", "3")).await.expect_err("an older copy");
        assert!(
            matches!(&error, DirectoryError::Unavailable(w) if w.contains("older copy")),
            "{error}"
        );
        running.stop().await;

        let another = place.folder.path().join("another.db");
        let running = Running::start(&another, &place.socket());
        let error = client.txn(put("a", "3")).await.expect_err("another directory");
        assert!(
            matches!(&error, DirectoryError::Unavailable(w) if w.contains("replaced")),
            "{error}"
        );
        running.stop().await;

        let running = Running::start(&place.file(), &place.socket());
        let entry = loop {
            // Refusals come at once; the right server is found by asking again.
            match client.get("a").await {
                Ok(entry) => break entry.expect("there"),
                Err(DirectoryError::Unavailable(_)) => sleep_ms(50).await,
                Err(error) => panic!("{error}"),
            }
        };
        assert_eq!(entry.value, b"2");
        running.stop().await;
    });
}

/// A server that welcomes and then does what `then` does with the connection.
fn false_server(socket: &Path, then: impl FnOnce(UnixStream) + Send + 'static) {
    let listener = std::os::unix::net::UnixListener::bind(socket).expect("bind");
    std::thread::Builder::new()
        .spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let (id, hello) = read_request(&mut stream).expect("hello");
            assert!(matches!(hello, Request::Hello { .. }));
            let welcome =
                Reply::Welcome { version: codec::VERSION, directory: 5, revision: Revision(0) };
            stream.write_all(&codec::encode_reply(id, &welcome)).expect("the client reads");
            // The question behind `connect`.
            let (id, alive) = read_request(&mut stream).expect("a question");
            assert!(matches!(alive, Request::Alive));
            let names = codec::encode_reply(id, &Reply::Names(vec![]));
            stream.write_all(&names).expect("the client reads");
            drop(listener);
            then(stream);
        })
        .expect("a thread");
}

fn read_request(stream: &mut UnixStream) -> Option<(u64, Request)> {
    let mut head = [0; codec::HEAD];
    stream.read_exact(&mut head).ok()?;
    let head = codec::decode_head(&head).expect("a head");
    let mut body = vec![0; head.body_len];
    stream.read_exact(&mut body).ok()?;
    Some((head.request, codec::decode_request(&head, &body).expect("a request")))
}

#[test]
fn a_lost_answer_is_unknown_for_a_transaction_and_nothing_for_a_read() {
    let place = Place::new();
    false_server(&place.socket(), |mut stream| {
        // Takes both questions and answers none.
        assert!(read_request(&mut stream).is_some() && read_request(&mut stream).is_some());
    });
    on_a_shard(async {
        let client = DirectoryClient::connect(&place.socket()).await.expect("it says welcome");
        let (txn, get) =
            futures_util::future::join(client.txn(put("a", "1")), client.get("a")).await;
        assert!(matches!(txn, Err(DirectoryError::Unknown(_))), "{txn:?}");
        assert!(matches!(get, Err(DirectoryError::Unavailable(_))), "{get:?}");
    });
}

#[test]
fn a_server_that_hangs_is_noticed_and_what_was_not_sent_is_never_sent() {
    let place = Place::new();
    let (report, reported) = std::sync::mpsc::channel();
    let (go, wait) = std::sync::mpsc::channel::<()>();
    false_server(&place.socket(), move |mut stream| {
        // Reads nothing until it is told to; then everything until the client is gone.
        wait.recv().expect("the test goes on");
        let mut txns = 0;
        while let Some((_, request)) = read_request(&mut stream) {
            txns += usize::from(matches!(request, Request::Txn(_)));
        }
        report.send(txns).expect("the test waits");
    });
    on_a_shard(async {
        let client = DirectoryClient::connect(&place.socket()).await.expect("it says welcome");
        // More than the socket holds: some are sent, some not begun.
        let calls = (0..150).map(|i| client.txn(put(&format!("k{i}"), vec![7; 60_000])));
        let outcomes = futures_util::future::join_all(calls).await;
        let unknown =
            outcomes.iter().filter(|o| matches!(o, Err(DirectoryError::Unknown(_)))).count();
        let unavailable =
            outcomes.iter().filter(|o| matches!(o, Err(DirectoryError::Unavailable(_)))).count();
        assert_eq!(unknown + unavailable, 150);
        assert!(unknown > 0 && unavailable > 0, "{unknown} {unavailable}");
        go.send(()).expect("the server waits");
        // Time for the server to take all that would still be sent.
        sleep_ms(300).await;
        drop(client);
        sleep_ms(10).await;
        let txns = reported.recv_timeout(Duration::from_secs(10)).expect("it ends");
        assert!(txns <= unknown, "{txns} arrived, only {unknown} were called sent");
    });
}

#[test]
fn malformed_peers_lose_their_connection_and_disturb_nobody() {
    let place = Place::new();
    on_a_shard(async {
        let running = Running::start(&place.file(), &place.socket());
        let client = DirectoryClient::connect(&place.socket()).await.expect("it serves");
        let hello = codec::encode_request(
            0,
            &Request::Hello { oldest: 1, newest: 1, directory: 0, seen: Revision(0) },
        );
        let get = codec::encode_request(1, &Request::Get("a".into()));
        let mut flipped = get.clone();
        *flipped.last_mut().expect("bytes") ^= 1;
        let mut newer = get.clone();
        newer[4] = 9;
        let cases: Vec<(&str, Vec<u8>)> = vec![
            ("another protocol", b"GET / HTTP/1.1\r\nHost: directory.local\r\n\r\n".to_vec()),
            ("no hello", get.clone()),
            ("a flipped bit", [hello.clone(), flipped].concat()),
            ("another version", [hello.clone(), newer].concat()),
            ("two hellos", [hello.clone(), hello.clone()].concat()),
            ("an answer", [hello.clone(), codec::encode_reply(1, &Reply::Touched)].concat()),
            ("half a frame", [hello.clone(), get[..get.len() - 1].to_vec()].concat()),
        ];
        for (what, bytes) in cases {
            let mut stream = UnixStream::connect(place.socket()).expect("it accepts");
            stream.write_all(&bytes).expect("it reads");
            stream.shutdown(std::net::Shutdown::Write).expect("open");
            stream.set_nonblocking(true).expect("a socket");
            let mut stream = tokio::net::UnixStream::from_std(stream).expect("a socket");
            let mut answer = Vec::new();
            let read = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut answer);
            let ended = tokio::time::timeout(Duration::from_secs(5), read).await;
            assert!(ended.is_ok(), "{what}: the connection is closed");
            let welcome = codec::HEAD + 18;
            assert!(answer.len() <= welcome, "{what}: {} bytes of answer", answer.len());
            client.txn(put("a", what)).await.expect("others are served");
        }
        // Silent ones, up to the limit: one more is refused in words, the others go on.
        let silent: Vec<UnixStream> = (1..CONNECTIONS_MAX)
            .map(|_| UnixStream::connect(place.socket()).expect("it accepts"))
            .collect();
        sleep_ms(100).await;
        let error = DirectoryClient::connect(&place.socket()).await.err().expect("too many");
        assert!(error.to_string().contains("128 connections"), "{error}");
        client.txn(put("a", "b")).await.expect("others are served");
        drop(silent);
        sleep_ms(100).await;
        DirectoryClient::connect(&place.socket()).await.expect("there is room again");
        running.stop().await;
    });
}

#[test]
fn long_listings_and_many_requests_at_once_are_answered_whole() {
    let place = Place::new();
    on_a_shard(async {
        let running = Running::start(&place.file(), &place.socket());
        let client = DirectoryClient::connect(&place.socket()).await.expect("it serves");
        let writes =
            (0..300).map(|i| client.txn(put(&format!("big/{i:03}"), vec![i as u8; 50_000])));
        let mut revisions: Vec<u64> = futures_util::future::join_all(writes)
            .await
            .into_iter()
            .map(|reply| done(reply.expect("answered")).0)
            .collect();
        revisions.sort_unstable();
        assert_eq!(revisions, (1..=300).collect::<Vec<u64>>(), "each has its own revision");
        let listing = client.list("big/").await.expect("answered");
        assert_eq!((listing.entries.len(), listing.revision), (300, Revision(300)));
        for (i, entry) in listing.entries.iter().enumerate() {
            assert_eq!(entry.key, format!("big/{i:03}"));
            assert_eq!(entry.value, vec![i as u8; 50_000]);
        }
        assert_eq!(client.list("none").await.expect("answered").entries, []);

        // All values of a large conflict.
        let compares = (0..COMPARES_MAX)
            .map(|i| Compare { key: format!("big/{i:03}"), modified: Revision(0) })
            .collect();
        let conflict = Txn { compares, ..put("x", "") };
        let TxnReply::Conflict(seen) = client.txn(conflict).await.expect("answered") else {
            panic!("they exist")
        };
        assert!(
            seen.iter().all(|(_, entry)| entry.as_ref().is_some_and(|e| e.value.len() == 50_000))
        );
        running.stop().await;
    });
}

/// Started by a test, in a folder: the server process, until it is killed. By itself: that such a
/// process answers, and leaves a socket that the next one takes over.
#[test]
fn child_serves() {
    let Some(folder) = std::env::var_os("ATOLL_TEST_DIRECTORY").map(PathBuf::from) else {
        let place = Place::new();
        on_a_shard(async {
            for life in 1..=2u64 {
                let child = start_child(&place);
                let client = connect_to_child(&place).await;
                let reply = client.txn(put("life", life.to_string())).await.expect("answered");
                assert_eq!(done(reply), Revision(life));
                drop(child);
                assert!(place.socket().exists(), "a killed server leaves its socket");
            }
        });
        return;
    };
    let socket = std::env::var_os("ATOLL_TEST_SOCKET").map(PathBuf::from);
    on_a_shard(async {
        let server = DirectoryServer::open(&folder.join("directory.db")).expect("the file opens");
        let socket = socket.unwrap_or_else(|| folder.join("s"));
        let listening = server.listen(&socket).expect("the socket is free");
        listening.serve(std::future::pending()).await.expect("it never ends by itself");
    });
}

struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        self.0.kill().expect("it was started");
        self.0.wait().expect("it was killed");
    }
}

fn start_child(place: &Place) -> KillOnDrop {
    let child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "child_serves", "--nocapture"])
        .env("ATOLL_TEST_DIRECTORY", place.folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("a child");
    KillOnDrop(child)
}

/// A client of a server that may not listen yet.
async fn connect_to_child(place: &Place) -> DirectoryClient {
    loop {
        match DirectoryClient::connect(&place.socket()).await {
            Ok(client) => return client,
            Err(error) => assert!(matches!(error, DirectoryError::Unavailable(_)), "{error}"),
        }
    }
}

/// What one writer knows: the last acknowledged round of its keys, and one that is unknown.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    acknowledged: u64,
    at: u64,
    unknown: Option<u64>,
    unknowns: u64,
}

#[test]
fn a_server_killed_under_load_keeps_every_acknowledged_transaction_whole() {
    const WRITERS: usize = 8;
    const KILLS: usize = 8;
    let place = Place::new();
    let mut child = start_child(&place);
    on_a_shard(async move {
        let client = connect_to_child(&place).await;
        let stop = Rc::new(Cell::new(false));
        let known = Rc::new(RefCell::new([Known::default(); WRITERS]));
        // Every writer has its own connection, and writes three keys at once, guarded by the
        // revision of its last round.
        let writers: Vec<JoinHandle<u64>> = (0..WRITERS)
            .map(|w| {
                let (place, stop, known) = (place.socket(), stop.clone(), known.clone());
                spawn_local(async move {
                    let client = DirectoryClient::connect(&place).await.expect("it serves");
                    let mut acknowledged = 0;
                    while !stop.get() {
                        acknowledged += write_round(&client, w, &known).await;
                    }
                    acknowledged
                })
            })
            .collect();
        for _ in 0..KILLS {
            sleep_ms(150).await;
            child = {
                // kill -9, at whatever it is.
                drop(child);
                start_child(&place)
            };
            // Judge when it is back: what was acknowledged before the kill is there.
            let before = *known.borrow();
            let entries = loop {
                match client.list("w").await {
                    Ok(listing) => break listing.entries,
                    Err(DirectoryError::Unavailable(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            };
            let mut rounds: BTreeMap<String, Vec<(u64, u64)>> = BTreeMap::new();
            for entry in entries {
                let round: u64 = String::from_utf8_lossy(&entry.value).parse().expect("a round");
                let writer = entry.key.split('/').next().expect("a name").to_owned();
                rounds.entry(writer).or_default().push((round, entry.modified.0));
            }
            for (w, known) in before.iter().enumerate() {
                let Some(seen) = rounds.get(&format!("w{w}")) else {
                    assert_eq!(known.acknowledged, 0, "writer {w} lost everything");
                    continue;
                };
                assert_eq!(seen.len(), 3);
                assert!(seen.iter().all(|s| *s == seen[0]), "half a transaction: {seen:?}");
                assert!(seen[0].0 >= known.acknowledged, "writer {w} lost an acknowledged round");
            }
        }
        stop.set(true);
        let mut total = 0;
        for writer in writers {
            total += writer.await.expect("no writer fails");
        }
        assert!(total > 100, "only {total} transactions were acknowledged");
        let unknown = known.borrow().iter().map(|k| k.unknowns).sum::<u64>();
        assert!(unknown > 0, "no kill hit a transaction on its way");
        drop(child);
    });
}

/// Writes one round; resolves an unknown outcome by the next transaction, as R12 of
/// `docs/mirror.md` says. Returns how many were acknowledged.
async fn write_round(client: &DirectoryClient, w: usize, known: &Rc<RefCell<[Known; 8]>>) -> u64 {
    let mine = known.borrow()[w];
    let round = mine.unknown.unwrap_or(mine.acknowledged).max(mine.acknowledged) + 1;
    let key = |i: usize| format!("w{w}/{i}");
    let txn = Txn {
        compares: vec![Compare { key: key(0), modified: Revision(mine.at) }],
        changes: (0..3).map(|i| KeyChange::Put(key(i), round.to_string().into_bytes())).collect(),
    };
    let reply = client.txn(txn).await;
    let mine = &mut known.borrow_mut()[w];
    match reply {
        Ok(TxnReply::Done(revision)) => {
            // Nothing of ours lies between: the unknown one did not happen, and never will.
            *mine = Known { acknowledged: round, at: revision.0, unknown: None, ..*mine };
            1
        }
        Ok(TxnReply::Conflict(seen)) => {
            let entry = seen[0].1.as_ref().expect("it was written, or there is no conflict");
            let found: u64 = String::from_utf8_lossy(&entry.value).parse().expect("a round");
            // Of several unknown ones with the same guard at most one is in.
            let unknown = mine.unknown.expect("nobody else writes this key");
            assert!((mine.acknowledged + 1..=unknown).contains(&found), "{found}: {mine:?}");
            *mine = Known { acknowledged: found, at: entry.modified.0, unknown: None, ..*mine };
            0
        }
        Err(DirectoryError::Unknown(_)) => {
            mine.unknown = Some(round);
            mine.unknowns += 1;
            0
        }
        Err(DirectoryError::Unavailable(_)) => 0,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_full_disk_refuses_writes_serves_reads_and_takes_deletes() {
    let place = Place::new();
    let small = place.folder.path().join("small");
    std::fs::create_dir(&small).expect("mkdir");
    // A file system of its own for the child alone; it is gone with it.
    let in_namespace = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["-rm", "sh", "-c", script]).arg(&small);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    let allowed = in_namespace("mount -t tmpfs -o size=4m tmpfs \"$0\"").status();
    if !allowed.is_ok_and(|status| status.success()) {
        eprintln!("skipped: this machine allows no mount namespace");
        return;
    }
    let script = "mount -t tmpfs -o size=4m tmpfs \"$0\" && \
                  exec \"$1\" --exact child_serves --nocapture";
    let child = in_namespace(script)
        .arg(std::env::current_exe().expect("this program"))
        .env("ATOLL_TEST_DIRECTORY", &small)
        .env("ATOLL_TEST_SOCKET", place.socket())
        .spawn()
        .expect("a child");
    let child = KillOnDrop(child);
    on_a_shard(async move {
        let client = DirectoryClient::connect(&place.socket()).await.expect("it serves");
        let mut kept = 0;
        let error = loop {
            match client.txn(put(&format!("fill/{kept:03}"), vec![7; 60_000])).await {
                Ok(reply) => assert_eq!(done(reply), Revision(kept + 1)),
                Err(error) => break error,
            }
            kept += 1;
            assert!(kept < 200, "4 MiB never fill up");
        };
        assert!(
            matches!(&error, DirectoryError::Unavailable(why) if why.contains("No space left")),
            "{error}"
        );
        let listing = client.list("fill/").await.expect("reads go on");
        assert_eq!((listing.entries.len() as u64, listing.revision), (kept, Revision(kept)));
        let mut revision = kept;
        for i in 0..kept / 2 {
            let delete = KeyChange::Delete(format!("fill/{i:03}"));
            let reply = client.txn(Txn { compares: vec![], changes: vec![delete] }).await;
            revision += 1;
            assert_eq!(done(reply.expect("a delete needs no room")), Revision(revision));
        }
        for i in 0..3 {
            let reply = client.txn(put(&format!("more/{i}"), vec![8; 60_000])).await;
            revision += 1;
            assert_eq!(done(reply.expect("there is room again")), Revision(revision));
        }
        drop(child);
    });
}

//! Real clients on a Unix socket: libnbd's tools, QEMU's, fio, and a script that breaks the
//! protocol. A client that is not installed is named loudly and left out.

mod support;

use atoll_front::limits::Limits;
use atoll_front::memory::{Fixed, MemoryVolume};
use atoll_front::nbd::{Server, Stats};
use atoll_world::World;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use support::{Halves, TokioWorld, Troubled, exports};
use tempfile::TempDir;
use tokio::net::{TcpListener, UnixListener};
use tokio::process::Command;
use tokio::task::JoinHandle;
use tokio::time::{Duration, timeout};

const SIZE: u64 = 256 << 20;
/// No client here needs a tenth of it.
const CLIENT_SECONDS_MAX: u64 = 60;

/// A server in the test's own process, and a directory that ends with it.
struct Bench {
    directory: TempDir,
    world: TokioWorld,
    volumes: Fixed<Troubled>,
    server: Server<TokioWorld, Fixed<Troubled>>,
    small: MemoryVolume,
}

fn run(test: impl AsyncFnOnce(&Bench)) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().expect("a thread is all it needs");
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let world = TokioWorld::new();
        let (volumes, small) = exports(&world, SIZE);
        let server = Server::new(world.clone(), volumes.clone(), Limits::default());
        let directory = tempfile::tempdir().expect("a directory of its own");
        let bench = Bench { directory, world, volumes, server, small };
        let listener = UnixListener::bind(bench.socket()).expect("nobody else is here");
        let accepting = accept(listener, bench.world.clone(), bench.server.clone());
        test(&bench).await;
        accepting.abort();
        bench.server.stop();
        bench.server.idle().await;
        assert_eq!(bench.server.stats().held_bytes, 0);
    });
}

/// Serves whoever connects, until it is aborted.
fn accept(
    listener: UnixListener,
    world: TokioWorld,
    server: Server<TokioWorld, Fixed<Troubled>>,
) -> JoinHandle<()> {
    tokio::task::spawn_local(async move {
        loop {
            let (client, _) = listener.accept().await.expect("descriptors are enough");
            let (read, write) = client.into_split();
            let server = server.clone();
            world.spawn(async move {
                server.serve(Halves(read, write)).await;
            });
        }
    })
}

/// Whether `program` can be started.
fn is_installed(program: &str) -> bool {
    let found = std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
    });
    if !found {
        eprintln!("\n!!! NOT TESTED: {program} is not installed; scripts/test installs it !!!\n");
    }
    found
}

impl Bench {
    fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }
    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }
    fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket().display())
    }
    fn stats(&self) -> Stats {
        self.server.stats()
    }

    async fn output(&self, program: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.directory.path());
        let child = command.kill_on_drop(true).stdin(Stdio::null()).output();
        let within = Duration::from_secs(CLIENT_SECONDS_MAX);
        timeout(within, child).await.expect("it hangs").expect("it starts")
    }

    /// What a client prints that succeeds.
    async fn client(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.output(program, arguments).await;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {arguments:?}: {text}{errors}");
        text
    }

    /// A client that must fail; what it prints.
    async fn refused(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.output(program, arguments).await;
        let all = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&all).into_owned();
        assert!(!output.status.success(), "{program} {arguments:?} succeeds: {text}");
        text
    }

    /// `qemu-io` with these commands, in order; it stops at none, so failures are in its text.
    async fn qemu_io(&self, export: &str, commands: &[&str]) -> String {
        let uri = self.uri(export);
        let mut arguments = vec!["-f", "raw", "-d", "unmap"];
        commands.iter().for_each(|command| arguments.extend(["-c", command]));
        arguments.push(&uri);
        let output = self.output("qemu-io", &arguments).await;
        let all = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&all).into_owned()
    }
}

/// Bytes that no two blocks share.
fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64 / 8).flat_map(|i| (i.wrapping_mul(0x9e37_79b9) ^ seed).to_le_bytes()).collect()
}

#[test]
fn nbdinfo_sees_every_export_and_every_capability() {
    if !is_installed("nbdinfo") {
        return;
    }
    run(async |bench| {
        let text = bench.client("nbdinfo", &["--json", &bench.uri("disk")]).await;
        let json: serde_json::Value = serde_json::from_str(&text).expect("nbdinfo prints JSON");
        assert_eq!(
            (&json["protocol"], &json["structured"]),
            (&"newstyle-fixed".into(), &true.into())
        );
        let export = &json["exports"][0];
        for can in ["cache", "df", "fast_zero", "flush", "fua", "multi_conn", "trim", "zero"] {
            assert_eq!(export[format!("can_{can}")], true, "{can}");
        }
        assert_eq!(export["export-size"], SIZE);
        assert_eq!(export["description"], "a volume in memory");
        assert_eq!(export["contexts"], serde_json::json!(["base:allocation"]));
        for (which, bytes) in [("minimum", 512), ("preferred", 4096), ("maximum", 32 << 20)] {
            assert_eq!(export[format!("block_size_{which}")], bytes);
        }
        let text = bench.client("nbdinfo", &["--json", &bench.uri("readonly")]).await;
        let json: serde_json::Value = serde_json::from_str(&text).expect("nbdinfo prints JSON");
        let export = &json["exports"][0];
        assert_eq!((&export["is_read_only"], &export["can_trim"]), (&true.into(), &false.into()));
        let text = bench.client("nbdinfo", &["--list", "--json", &bench.uri("")]).await;
        let json: serde_json::Value = serde_json::from_str(&text).expect("nbdinfo prints JSON");
        let names = json["exports"].as_array().expect("a list").iter();
        let names: Vec<_> = names.map(|export| export["export-name"].as_str()).collect();
        let expected = ["disk", "failing", "readonly", "slow", "small", "stuck"];
        assert_eq!(names, expected.map(Some));
        let text = bench.refused("nbdinfo", &["--size", &bench.uri("nowhere")]).await;
        assert!(text.contains("no export named 'nowhere'"), "{text}");
    });
}

#[test]
fn a_resize_is_seen_by_who_connects_again() {
    if !is_installed("nbdinfo") {
        return;
    }
    run(async |bench| {
        assert_eq!(bench.client("nbdinfo", &["--size", &bench.uri("small")]).await, "1048576\n");
        support::grow(&bench.small);
        assert_eq!(bench.client("nbdinfo", &["--size", &bench.uri("small")]).await, "2097152\n");
    });
}

#[test]
fn nbdcopy_brings_in_and_out_what_it_was_given() {
    if !is_installed("nbdcopy") || !is_installed("nbdinfo") {
        return;
    }
    run(async |bench| {
        let (input, output) = (bench.path("input"), bench.path("output"));
        let mut data = pattern(100 << 20, 1);
        data[10 << 20..30 << 20].fill(0);
        std::fs::write(&input, &data).expect("the directory takes it");
        bench.client("nbdcopy", &["--flush", &input, &bench.uri("disk")]).await;
        bench.client("nbdcopy", &[&bench.uri("disk"), &output]).await;
        let back = std::fs::read(&output).expect("nbdcopy wrote it");
        assert!(back[..data.len()] == data && back.len() as u64 == SIZE);
        assert!(back[data.len()..].iter().all(|&byte| byte == 0));
        let map = bench.client("nbdinfo", &["--map", &bench.uri("disk")]).await;
        let lines: Vec<Vec<&str>> =
            map.lines().map(|line| line.split_whitespace().collect()).collect();
        let expected = [
            ["0", "10485760", "0", "data"],
            ["10485760", "20971520", "3", "hole,zero"],
            ["31457280", "73400320", "0", "data"],
            ["104857600", "163577856", "3", "hole,zero"],
        ];
        assert_eq!(lines, expected);
        let totals = bench.client("nbdinfo", &["--map", "--totals", &bench.uri("disk")]).await;
        assert!(totals.contains("83886080") && totals.contains("hole,zero"), "{totals}");
        assert_eq!(bench.stats().failures, 0);
    });
}

#[test]
fn qemu_io_writes_reads_zeroes_and_discards() {
    if !is_installed("qemu-io") {
        return;
    }
    run(async |bench| {
        let text = bench
            .qemu_io(
                "disk",
                &[
                    "write -P 5 0 1M",
                    "write -f -P 6 1M 512",
                    "read -P 5 0 1M",
                    "read -P 6 1M 512",
                    "discard 64k 64k",
                    "write -z 128k 4k",
                    "write -zu 256k 64k",
                    "write -z -f 320k 1k",
                    "read -P 0 64k 64k",
                    "read -P 0 128k 4k",
                    "read -P 5 132k 4k",
                    "read -P 0 256k 65k",
                    "aio_write -P 7 2M 4M",
                    "aio_write -P 8 8M 4M",
                    "aio_flush",
                    "read -P 7 2M 4M",
                    "read -P 8 8M 4M",
                    "writev -P 9 16M 64k 512 32k",
                    "read -P 9 16M 98816",
                    "write -P 3 100M 40M",
                    "read -P 3 100M 40M",
                    "flush",
                    "write -P 1 268435456 512",
                ],
            )
            .await;
        // The last one lies behind the end, which QEMU sees itself.
        let failed: Vec<_> = text.lines().filter(|line| line.contains("ailed")).collect();
        assert_eq!(failed, ["write failed: Input/output error"], "{text}");
        // No unmapping, and only if it is fast: this volume cannot, and says so.
        let text = bench.qemu_io("disk", &["write -zn 512k 64k", "read -P 5 512k 64k"]).await;
        assert!(text.contains("Operation not supported"), "{text}");
        assert!(!text.contains("Pattern verification failed"), "{text}");
    });
}

#[test]
fn qemu_io_hears_of_every_failure_and_goes_on() {
    if !is_installed("qemu-io") {
        return;
    }
    run(async |bench| {
        let commands = [
            ("write -P 1 0 64k", "wrote 65536/65536"),
            ("write -P 1 2M 64k", "No space left on device"),
            ("read 2M 64k", "Input/output error"),
            ("read -P 1 0 64k", "read 65536/65536"),
        ];
        for (command, says) in commands {
            let text = bench.qemu_io("failing", &[command]).await;
            assert!(text.contains(says), "{command}: {text}");
        }
        let text = bench.qemu_io("readonly", &["write 0 512"]).await;
        assert!(text.contains("Permission denied"), "{text}");
    });
}

#[test]
fn qemu_picks_up_a_server_that_was_restarted() {
    if !is_installed("qemu-io") {
        return;
    }
    run(async |bench| {
        let path = bench.path("second");
        let start = || {
            let server = Server::new(bench.world.clone(), bench.volumes.clone(), Limits::default());
            let listener = UnixListener::bind(&path).expect("nobody else is here");
            (accept(listener, bench.world.clone(), server.clone()), server)
        };
        let (accepting, server) = start();
        // A write of 200 ms is under way when the server stops; the next one finds none.
        let image = format!(
            "driver=raw,file.driver=nbd,file.server.type=unix,file.server.path={path},\
             file.export=slow,file.reconnect-delay=30"
        );
        let commands = ["write -P 1 0 4k", "aio_write -P 2 4k 4k", "sleep 100", "aio_flush"];
        let more = ["sleep 500", "write -P 3 8k 4k", "read -P 2 4k 4k", "read -P 1 0 4k"];
        let mut arguments = vec!["--image-opts"];
        commands.iter().chain(&more).for_each(|command| arguments.extend(["-c", command]));
        arguments.push(&image);
        let restarted = async {
            while server.stats().requests < 2 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            accepting.abort();
            server.stop();
            server.idle().await;
            std::fs::remove_file(&path).expect("it was there");
            tokio::time::sleep(Duration::from_secs(2)).await;
            start()
        };
        let (text, (accepting, second)) =
            tokio::join!(bench.client("qemu-io", &arguments), restarted);
        assert!(!text.contains("ailed") && text.contains("read 4096/4096 bytes"), "{text}");
        assert!(server.stats().requests >= 2 && second.stats().requests >= 2);
        accepting.abort();
        second.stop();
        second.idle().await;
    });
}

#[test]
fn tcp_is_as_good_as_a_unix_socket() {
    if !is_installed("nbdcopy") {
        return;
    }
    run(async |bench| {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let uri = format!("nbd://{}/disk", listener.local_addr().expect("just bound"));
        let (server, world) = (bench.server.clone(), bench.world.clone());
        let accepting = tokio::task::spawn_local(async move {
            loop {
                let (client, _) = listener.accept().await.expect("descriptors are enough");
                let (read, write) = client.into_split();
                let server = server.clone();
                world.spawn(async move {
                    server.serve(Halves(read, write)).await;
                });
            }
        });
        let (input, output) = (bench.path("input"), bench.path("output"));
        let data = pattern(SIZE as usize, 5);
        std::fs::write(&input, &data).expect("the directory takes it");
        bench.client("nbdcopy", &[&input, &uri]).await;
        bench.client("nbdcopy", &[&uri, &output]).await;
        assert!(std::fs::read(&output).expect("nbdcopy wrote it") == data);
        accepting.abort();
    });
}

#[test]
fn qemu_img_converts_maps_and_compares() {
    if !is_installed("qemu-img") {
        return;
    }
    run(async |bench| {
        let (raw, qcow2) = (bench.path("raw"), bench.path("qcow2"));
        let mut data = pattern(64 << 20, 2);
        data[1 << 20..9 << 20].fill(0);
        data.resize(SIZE as usize, 0);
        std::fs::write(&raw, &data).expect("the directory takes it");
        let disk = bench.uri("disk");
        bench.client("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", &raw, &disk]).await;
        bench.client("qemu-img", &["compare", "-f", "raw", "-F", "raw", &raw, &disk]).await;
        let text = bench.client("qemu-img", &["map", "--output=json", "-f", "raw", &disk]).await;
        let map: serde_json::Value = serde_json::from_str(&text).expect("qemu-img prints JSON");
        let ranges: Vec<_> = map.as_array().expect("a list").iter().collect();
        let held: u64 = ranges
            .iter()
            .filter(|range| range["data"] == true)
            .map(|range| range["length"].as_u64().expect("a number"))
            .sum();
        assert_eq!(held, 56 << 20, "{text}");
        bench.client("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &disk, &qcow2]).await;
        bench.client("qemu-img", &["compare", "-f", "qcow2", "-F", "raw", &qcow2, &raw]).await;
    });
}

#[test]
fn fio_verifies_what_it_wrote() {
    if !is_installed("fio") {
        return;
    }
    run(async |bench| {
        for (name, arguments) in [
            ("small", ["--rw=randrw", "--bs=4k", "--iodepth=32", "--size=32m"]),
            ("mixed", ["--rw=randwrite", "--bsrange=512-256k", "--iodepth=16", "--size=64m"]),
            ("trim", ["--rw=randtrimwrite", "--bs=64k", "--iodepth=8", "--size=64m"]),
        ] {
            let (name, uri) = (format!("--name={name}"), format!("--uri={}", bench.uri("disk")));
            let mut all = vec!["--ioengine=nbd", &name, &uri];
            all.extend(["--verify=crc32c", "--do_verify=1", "--verify_fatal=1", "--randrepeat=1"]);
            all.extend(arguments);
            bench.client("fio", &all).await;
        }
        let stats = bench.stats();
        assert!(stats.requests > 10_000 && stats.failures == 0 && stats.invalid == 0, "{stats:?}");
    });
}

/// The interpreter that knows libnbd: the distribution's, which need not be the first in the path.
fn python() -> Option<&'static str> {
    let knows = |python: &&str| {
        let import = std::process::Command::new(python)
            .args(["-c", "import nbd"])
            .stderr(Stdio::null())
            .status();
        import.is_ok_and(|status| status.success())
    };
    let found = ["/usr/bin/python3", "python3"].into_iter().find(knows);
    if found.is_none() {
        eprintln!("\n!!! NOT TESTED: python3-libnbd is not installed; scripts/test does it !!!\n");
    }
    found
}

#[test]
fn nothing_a_client_sends_harms_the_server_or_another_client() {
    let Some(python) = python() else { return };
    run(async |bench| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nbd_abuse.py");
        let script = script.display().to_string();
        let socket = bench.socket().display().to_string();
        let text = bench.client(python, &["-B", &script, &socket]).await;
        assert!(text.ends_with("all well\n"), "{text}");
        let stats = bench.stats();
        assert!(stats.violations >= 4 && stats.handshakes_expired >= 200, "{stats:?}");
    });
}

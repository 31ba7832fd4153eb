//! The commands as a user types them: the built program against a made-up engine. What they print
//! is compared whole; errors are two lines and an exit code.

#![allow(clippy::disallowed_methods, reason = "tests wait for processes")]

mod common;

use common::TestServer;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn program(server: Option<&TestServer>, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_atoll"));
    command.args(words).stdin(Stdio::null()).env("TZ", "UTC").env("NO_COLOR", "1");
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ATOLL_") {
            command.env_remove(name);
        }
    }
    if let Some(server) = server {
        command.env("ATOLL_ENDPOINT", format!("unix://{}", server.socket().display()));
    }
    command
}

struct Said {
    code: i32,
    out: String,
    err: String,
}

fn said(output: Output) -> Said {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let said = Said {
        code: output.status.code().unwrap(),
        out: text(output.stdout),
        err: text(output.stderr),
    };
    assert!(!said.err.contains("panicked"), "{}", said.err);
    said
}

fn run(server: &TestServer, words: &[&str]) -> Said {
    said(program(Some(server), words).output().unwrap())
}

/// Runs it; it must succeed.
fn good(server: &TestServer, words: &[&str]) -> String {
    let done = run(server, words);
    assert_eq!(done.code, 0, "{words:?}: {}", done.err);
    done.out
}

/// Runs it; it must fail with that code and exactly this on stderr.
fn bad(server: &TestServer, words: &[&str], code: i32, err: &str) {
    let done = run(server, words);
    assert_eq!((done.code, done.err.as_str(), done.out.as_str()), (code, err, ""), "{words:?}");
}

fn with_volumes() -> TestServer {
    let server = TestServer::start();
    good(&server, &["volume", "create", "vm1", "10G", "-q"]);
    good(&server, &["volume", "create", "data.2", "1.5TiB", "-q"]);
    server
}

#[test]
fn every_form_of_a_list() {
    let server = with_volumes();
    assert_eq!(
        good(&server, &["volume", "list"]),
        "NAME    SIZE      GUEST DATA  ON DISKS  POLICY   STATE    OWNER  CLIENTS\n\
         data.2  1.5 TiB   0 B         0 B       default  healthy  host1  0\n\
         vm1     10.0 GiB  0 B         0 B       default  healthy  host1  0\n"
    );
    let wide = good(&server, &["volume", "list", "-H", "-o", "wide"]);
    assert_eq!(wide.lines().count(), 2, "{wide}");
    let cells: Vec<&str> = wide.lines().last().unwrap().split_whitespace().collect();
    assert_eq!(
        cells,
        [
            "vm1",
            "10.0",
            "GiB",
            "0",
            "B",
            "0",
            "B",
            "default",
            "healthy",
            "host1",
            "0",
            "0",
            "0",
            "none",
            "1",
            "2026-11-20",
            "12:00:00",
            "-",
            "0000000000000001"
        ]
    );
    assert_eq!(good(&server, &["volume", "list", "-o", "name"]), "data.2\nvm1\n");
    let json = good(&server, &["volume", "list", "-o", "json"]);
    assert!(json.starts_with("{\n  \"kind\": \"VolumeList\",\n  \"version\": 1,\n"), "{json}");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["kind"], "VolumeList");
    assert_eq!(json["version"], 1);
    assert_eq!(json["generated_at"], "2026-11-20T12:00:00.000Z");
    assert_eq!(json["items"][1]["size_bytes"], 10u64 << 30);
    let yaml = good(&server, &["volume", "list", "-o", "yaml"]);
    assert!(yaml.ends_with("kind: VolumeList\nversion: 1\n"), "{yaml}");
    assert!(yaml.contains("items:\n  - created_at: \"2026-11-20T12:00:00.000Z\"\n"), "{yaml}");
    assert!(yaml.contains("\n    name: \"data.2\"\n"), "{yaml}");
    let colored = good(&server, &["volume", "list", "--color", "always"]);
    assert!(colored.contains("\x1b[32mhealthy\x1b[0m"), "{colored:?}");
}

#[test]
fn one_screen_of_status() {
    let server = with_volumes();
    assert_eq!(
        good(&server, &["status"]),
        "cluster          demo (00000000000000c1)\n\
         health           ok\n\
         directory        etcd 3.6.9: 2 of 2 members, 10.0.0.1:2379 leads, 20.0 KiB\n\
         hosts            3 of 3 up\n\
         volumes          2 (0 degraded, 0 inaccessible)\n\
         used on disks    12.0 GiB of 24.0 GiB (50.0 %)\n\
         free on disks    11.0 GiB\n\
         promised         36.0 GiB to volumes, all copies (150.0 % of the space, limit 1000 %)\n\
         read             0 IOPS  0.0 MB/s  -\n\
         write            800 IOPS  3.3 MB/s  1.5 ms\n\
         resync           1.5 GiB left, about 1h5m\n\
         checksum errors  0\n"
    );
}

#[test]
fn a_monitoring_check_has_its_own_codes() {
    use atoll_api::types::Level;
    let server = TestServer::start();
    for (level, code, word) in [
        (None, 0, "OK"),
        (Some(Level::Warning), 1, "WARNING"),
        (Some(Level::Critical), 2, "CRITICAL"),
    ] {
        server.state().level = level;
        let done = run(&server, &["status", "--check"]);
        assert_eq!(done.code, code);
        assert!(done.out.starts_with(&format!("ATOLL {word} - 3 of 3 hosts up")), "{}", done.out);
        assert_eq!(done.out.lines().count(), 1);
    }
    let gone = program(None, &["status", "--check", "--endpoint", "/nonexistent/sock"]);
    let done = said({ gone }.output().unwrap());
    assert_eq!(done.code, 3);
    assert!(done.out.starts_with("ATOLL UNKNOWN - cannot connect"), "{}", done.out);
}

#[test]
fn every_command_prints_something_sensible() {
    let server = with_volumes();
    server.fake.event("host-down", "host host2 does not answer");
    for (words, expected) in [
        (&["host", "list"][..], "NAME   STATE  VERSION"),
        (&["cluster", "show"], "promised limit  1000 % of the space"),
        (&["cluster", "set", "--promised-limit", "1500"], "promised limit  1500 % of the space"),
        (&["cluster", "show"], "feature level   1"),
        (
            &["cluster", "upgrade"],
            "HOST   STATE  RELEASE  KNOWS LEVELS\nhost1  up     0.1.0    1 to 3",
        ),
        (&["cluster", "upgrade", "--check"], "'atoll cluster upgrade --commit' raises it"),
        (&["cluster", "upgrade"], "level 3 is not possible yet: host host2 ran release 0.1.0"),
        (&["cluster", "upgrade", "--commit", "--dry-run"], "feature level 1; all hosts know 2"),
        (&["cluster", "upgrade", "--commit", "--yes"], "was raised to feature level 2"),
        (&["cluster", "upgrade", "--commit", "--yes"], "the cluster stays at feature level 2"),
        (&["host", "show", "host2"], "domain         rack2"),
        (&["disk", "list", "--host", "host1"], "ext4 file system"),
        (&["disk", "show", "/dev/a"], "state   foreign"),
        (&["group", "list"], "SHAPE        STATE    USED ON DISKS"),
        (&["policy", "list"], "default  mirror  1"),
        (&["policy", "create", "gold", "--failures-to-tolerate", "2"], "gold"),
        (&["policy", "show", "gold"], "gold"),
        (&["policy", "check", "gold", "--size", "1G"], "can be placed"),
        (&["volume", "show", "vm1"], "10.0 GiB"),
        (&["volume", "placement", "vm1"], "- leg 0: the host that uses it is here"),
        (&["volume", "resize", "vm1", "20G"], "20.0 GiB"),
        (&["resync", "show"], "left   1.0 GiB, about 10s"),
        (&["resync", "pause"], "state  paused"),
        (&["resync", "limit", "100M"], "limit  100.0 MiB/s"),
        (&["resync", "limit", "100.0 MiB/s"], "limit  100.0 MiB/s"),
        (&["resync", "limit", "none"], "limit  none"),
        (&["scrub", "start", "--volume", "vm1"], "25.0 %"),
        (&["scrub", "show"], "running"),
        (&["task", "list"], "long"),
        (&["task", "show", "good"], "done"),
        (&["task", "wait", "good"], "done"),
        (&["events"], "host-down"),
        (&["session", "list"], "VOLUME"),
        (&["top", "--count", "1"], "READ IOPS"),
        (&["top", "hosts", "--count", "1"], "host1"),
        (&["completion", "bash"], "complete -F _atoll"),
        (&["man"], ".TH atoll 1"),
        (&["--version"], "atoll 0.1.0"),
        (&["volume", "--help"], "Usage: atoll volume"),
    ] {
        let out = good(&server, words);
        assert!(out.contains(expected), "{words:?}: {out}");
    }
    assert_eq!(good(&server, &["scrub", "stop"]), "");
    assert_eq!(good(&server, &["policy", "delete", "gold"]), "");
    assert_eq!(good(&server, &["volume", "delete", "vm1", "--yes"]), "");
}

#[test]
fn who_is_missing_is_named_and_what_it_alone_knows_is_unknown() {
    let server = with_volumes();
    server.state().silent = vec!["host2".into()];
    let warning = "warning: host host2 does not answer: what it alone knows is not shown\n";
    for words in [
        &["status"][..],
        &["top"],
        &["top", "hosts"],
        &["host", "list"],
        &["host", "show", "host1"],
        &["group", "list"],
        &["volume", "list"],
        &["volume", "list", "-o", "name"],
        &["volume", "list", "-q"],
        &["volume", "show", "vm1"],
        &["resync", "show"],
        &["resync", "pause"],
        &["scrub", "show"],
        &["scrub", "start"],
        &["scrub", "stop", "-q"],
        &["session", "list"],
        &["task", "list"],
        &["task", "show", "good"],
        &["events"],
    ] {
        let done = run(&server, words);
        assert_eq!((done.code, done.err.as_str()), (0, warning), "{words:?}");
    }
    for words in [&["status"][..], &["group", "list"], &["session", "list"], &["resync", "show"]] {
        let done = run(&server, &[words, &["-o", "json"]].concat());
        let json: serde_json::Value = serde_json::from_str(&done.out).unwrap();
        let missing = serde_json::json!([{ "host": "host2", "why": "does not answer" }]);
        assert_eq!((&json["missing"], done.err.as_str()), (&missing, ""), "{words:?}");
    }
    let groups = good(&server, &["group", "list", "-H"]);
    let second: Vec<&str> = groups.lines().nth(1).unwrap().split_whitespace().skip(1).collect();
    assert_eq!(second, ["host2", "single-tier", "unknown", "-", "-", "-"]);
    let done = run(&server, &["disk", "list", "-q"]);
    assert!(done.code == 0 && done.err.contains("warning: host host2"), "{}", done.err);
    bad(
        &server,
        &["group", "show", "00000000000000ff"],
        3,
        "error[E0201]: there is no group '00000000000000ff'\nhint: it may be one of a host that \
         does not tell: host2 does not answer\n",
    );
    server.state().silent.clear();
    let json: serde_json::Value =
        serde_json::from_str(&good(&server, &["group", "list", "-o", "json"])).unwrap();
    assert_eq!(json.get("missing"), None, "all have told");
}

#[test]
fn where_nobody_looks_top_shows_one_screen_and_ends() {
    let server = with_volumes();
    assert_eq!(good(&server, &["top"]).lines().count(), 3);
    assert!(good(&server, &["top", "--profile"]).contains("STAGE"));
    let mut goes_on =
        program(Some(&server), &["top", "--watch"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = std::io::BufReader::new(goes_on.stdout.take().unwrap());
    let lines = std::io::BufRead::lines(&mut out).take(6).count();
    goes_on.kill().unwrap();
    goes_on.wait().unwrap();
    assert_eq!(lines, 6, "two screens");
}

#[test]
fn where_the_time_goes_is_what_lies_between_two_looks() {
    let server = TestServer::start();
    // Other looks before it leave no trace.
    server.state().looks = 5;
    let top = |more: &[&str]| run(&server, &[&["top", "--profile", "--count", "1"], more].concat());
    let done = top(&[]);
    let cells = |line: &str| {
        let cells = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty());
        cells.collect::<Vec<_>>().join("|")
    };
    let rows: Vec<String> = done.out.lines().map(cells).collect();
    assert_eq!(
        rows,
        [
            "STAGE|PER SECOND|MEAN|P50|P99|P99.9|LONGEST|SHARE|WHAT",
            "write|1600|1.5 ms|2.0 ms|8.0 ms|8.0 ms|8.0 ms|100 %|####################|about write",
            "peer|1600|900 us|1.0 ms|1.0 ms|4.0 ms|4.0 ms|60 %|############|about peer",
            "serve|1600|300 us|500 us|500 us|500 us|500 us|20 %|####|about serve",
        ]
    );
    assert_eq!((done.code, done.err.as_str()), (0, "without host3: host host3 does not answer\n"));
    let wide = top(&["-q", "-H", "-o", "wide"]);
    let first = |line: &str| line.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
    let rows: Vec<String> = wide.out.lines().map(first).collect();
    assert_eq!(
        rows,
        ["all write", "all peer", "all serve", "host1 write", "host1 peer", "host2 serve"]
    );
    assert_eq!((wide.code, wide.err.as_str()), (0, ""));
    let json: serde_json::Value = serde_json::from_str(&top(&["-o", "json"]).out).unwrap();
    assert_eq!(json["kind"], "ProfileList");
    let host = &json["items"][0];
    assert_eq!((&host["host"], &host["uptime_ms"]), (&"host1".into(), &1_000.into()));
    assert_eq!(host["stages"][0]["count"], 1_600);
    assert_eq!(host["stages"][1]["buckets"][1]["count"], 1);
}

#[test]
fn errors_are_two_lines_and_a_code() {
    let server = with_volumes();
    let rule = "(rule: 1 to 64 letters, digits, '.', '_' and '-', starting with a letter or digit)";
    bad(
        &server,
        &["volume", "create", "vm1", "1G"],
        4,
        "error[E0301]: a volume named 'vm1' exists already\nhint: atoll volume list\n",
    );
    bad(
        &server,
        &["volume", "show", "none"],
        3,
        "error[E0201]: there is no volume 'none'\nhint: atoll volume list\n",
    );
    bad(
        &server,
        &["volume", "create", "a/b", "1G"],
        2,
        &format!("error[E0103]: volume name 'a/b' contains '/' {rule}\n"),
    );
    let long = "x".repeat(10_000);
    bad(
        &server,
        &["volume", "create", &long, "1G"],
        2,
        &format!(
            "error[E0103]: volume name '{}...' is 10000 bytes long, at most 64 are allowed \
             {rule}\n",
            "x".repeat(40)
        ),
    );
    bad(
        &server,
        &["volume", "create", "a\x1b[31m\nb", "1G"],
        2,
        &format!("error[E0103]: volume name 'a\\u{{1b}}[31m\\nb' contains '\\u{{1b}}' {rule}\n"),
    );
    bad(
        &server,
        &["volume", "create", "new", "0"],
        2,
        "error[E0104]: size_bytes is 0, and must be at least 4096\n",
    );
    bad(
        &server,
        &["volume", "create", "new", "4097"],
        2,
        "error[E0104]: size_bytes is 4097, and must be a multiple of 4096\n\
         hint: the next one is 8192\n",
    );
    bad(
        &server,
        &["volume", "create", "new", "20T"],
        6,
        "error[E0412]: policy default needs 2 hosts with room, 0 have it\nhint: add 2 hosts\n",
    );
    bad(
        &server,
        &["volume", "resize", "vm1", "1G"],
        7,
        "error[E0501]: the new size is below the present one\nhint: --shrink\n",
    );
    bad(
        &server,
        &["volume", "delete", "vm1"],
        7,
        "error[E0501]: volume vm1 and what it holds (0 B of 10.0 GiB) will be lost\n\
         hint: --yes goes on\n",
    );
    server.state().used.push("vm1".into());
    bad(
        &server,
        &["volume", "delete", "vm1", "--yes"],
        4,
        "error[E0303]: volume vm1 is in use on host1\nhint: atoll session list --volume vm1\n",
    );
    bad(
        &server,
        &["group", "create", "/dev/a"],
        7,
        "error[E0502]: disk '/dev/a' holds foreign data: XFS\n\
         hint: atoll disk wipe /dev/a erases it\n",
    );
    bad(&server, &["task", "wait", "bad"], 1, "error[E0001]: task bad failed: it said so\n");
    bad(
        &server,
        &["task", "wait", "long", "--timeout", "1"],
        8,
        "error[E0601]: task long still runs after 1 s\n\
         hint: atoll task wait long --timeout SECONDS\n",
    );
    let done = run(&server, &["policy", "check", "default", "--size", "20G"]);
    assert_eq!(done.code, 6);
    assert!(done.out.contains("- 2 hosts are needed, 1 has room"), "{}", done.out);
}

#[test]
fn wrong_usage_is_exit_code_2_and_two_lines() {
    let server = TestServer::start();
    for (words, word) in [
        (&["frobnicate"][..], "unrecognized subcommand 'frobnicate'"),
        (&["volume"], "requires a subcommand"),
        (&["volume", "create"], "required arguments were not provided: <NAME> <SIZE>"),
        (&["--size", "-1"], "unexpected argument '--size'"),
        (&["volume", "create", "v", "--", "-1"], "is not a size"),
        (&["volume", "create", "v", "10E"], "unit 'e' is unknown"),
        (&["volume", "create", "v", "1GB"], "unit 'gb' is unknown"),
        (&["volume", "create", "v", "99999999999P"], "larger than any size"),
        (&["volume", "list", "-o", "xml"], "[possible values: table, wide, json, yaml, name]"),
        (&["status", "--timeout", "0"], "0 is not in 1..=86400"),
        (&["status", "--endpoint", "ftp://x"], "is not an endpoint"),
        (&["status", "--check", "--watch"], "cannot be used with"),
        (&["top", "hosts", "--profile"], "'[OF]' cannot be used with '--profile'"),
        (&["sim", "run", "--seeds", "5..2"], "is an empty range of seeds"),
        (&["sim", "run", "--faults", "gremlins"], "--faults"),
        (&["sim", "run", "--seeds", "7.."], "add --time 10m, or an end"),
        (&["sim", "run", "--time", "1y"], "is not a time (examples: 30s, 10m, 2h)"),
        (&["sim", "run", "--without", "kill"], "--seed"),
        (&["sim", "run", "--seed", "1", "--events", "x"], "is not a list of numbers"),
        (&["sim", "run", "--seed", "1", "--window", "kill"], "is not a window"),
        (&["sim", "soak", "--dir", "/tmp", "--corpus", "--time", "1h"], "cannot be used with"),
        (&["sim", "scale", "--hosts", "0"], "is not a list of numbers from 1 to 64"),
        (&["sim", "scale", "--disk", "nvme,tape"], "'tape' is none of nvme, ssd, hdd"),
        (&["sim", "scale", "--cpu-4k", "38"], "is not three numbers of microseconds"),
        (&["dev"], "--dir <DIR>"),
        (&["dev", "--dir", "/tmp/x", "--hosts", "99"], "99 is not in 1..=16"),
    ] {
        let done = run(&server, words);
        assert_eq!((done.code, done.out.as_str()), (2, ""), "{words:?}: {}", done.err);
        assert!(done.err.starts_with("error[E0002]: "), "{words:?}: {}", done.err);
        assert!(done.err.contains(word), "{words:?}: {}", done.err);
        assert!(done.err.lines().count() <= 2, "{words:?}: {}", done.err);
    }
}

#[test]
fn requests_can_be_shown_and_rehearsed() {
    let server = with_volumes();
    let socket = server.socket().display().to_string();
    assert_eq!(
        good(&server, &["volume", "create", "new", "1G", "--curl"]),
        format!(
            "curl -sS --unix-socket {socket} -X POST -H 'Content-Type: application/json' -d \
             '{{\"name\":\"new\",\"size_bytes\":1073741824}}' http://localhost/api/v1/volumes\n"
        )
    );
    assert_eq!(
        good(&server, &["volume", "delete", "vm1", "--curl", "--dry-run"]),
        format!(
            "curl -sS --unix-socket {socket} -X DELETE \
             'http://localhost/api/v1/volumes/vm1?dry_run=true'\n"
        )
    );
    let done = run(&server, &["volume", "create", "new", "1G", "--dry-run"]);
    assert_eq!(done.code, 0);
    assert!(done.err.contains("dry run: nothing was changed"), "{}", done.err);
    assert_eq!(server.state().made, 2);
    let done = run(&server, &["volume", "list", "-v"]);
    assert!(done.err.starts_with("curl -sS --unix-socket"), "{}", done.err);
}

#[test]
fn an_option_that_would_not_be_heeded_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = image(dir.path(), "disk.img", &[7; 8192]);
    let server = with_volumes();
    let refused = |words: &[&str]| {
        let done = run(&server, words);
        assert_eq!((done.code, done.out.as_str()), (2, ""), "{words:?}: {}", done.err);
        assert_eq!(done.err.lines().count(), 2, "{}", done.err);
        done.err
    };
    let err = refused(&["volume", "import", "new", &file, "--curl"]);
    assert_eq!(
        err,
        "error[E0002]: the argument '--curl' cannot be used with 'atoll volume import'\n\
         hint: --dry-run checks and changes nothing\n"
    );
    let volumes = good(&server, &["volume", "list", "-o", "name"]);
    assert_eq!(volumes, "data.2\nvm1\n", "nothing was imported");
    refused(&["volume", "export", "vm1", &file, "--force", "--curl"]);
    assert_eq!(std::fs::read(&file).unwrap(), [7; 8192], "nothing was overwritten");
    let at = dir.path().join("cluster");
    let at = at.to_str().unwrap();
    for option in ["--curl", "--dry-run"] {
        refused(&["dev", "--hosts", "1", "--dir", at, option]);
        refused(&["dev", "stop", "--dir", at, option]);
        refused(&["serve", "--config", at, option]);
        refused(&["sim", "run", "--seed", "1", option]);
        refused(&["directory", "--file", at, "--socket", at, option]);
    }
    assert!(!Path::new(at).exists());
}

#[test]
fn a_key_makes_creation_repeatable() {
    let server = TestServer::start();
    let words = ["volume", "create", "v", "1G", "--idempotency-key", "k", "-o", "name"];
    assert_eq!(good(&server, &words), "v\n");
    assert_eq!(good(&server, &words), "v\n");
    assert_eq!(server.state().made, 1);
}

#[test]
fn a_daemon_that_is_not_there_or_too_slow() {
    let server = TestServer::start();
    let done =
        said(program(None, &["status", "--endpoint", "unix:/nonexistent"]).output().unwrap());
    assert_eq!(done.code, 20);
    assert_eq!(
        done.err,
        "error[E0801]: cannot connect to unix:///nonexistent: No such file or directory (os error \
         2)\nhint: is 'atoll serve' running? --endpoint names another daemon\n"
    );
    server.state().delay = Duration::from_secs(30);
    let done = run(&server, &["volume", "list", "--timeout", "1"]);
    assert_eq!(done.code, 8, "{}", done.err);
    assert!(done.err.contains("no answer from unix://"), "{}", done.err);
    // Not one of ours.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let thread = std::thread::Builder::new().spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 1024]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n<ht>");
    });
    let endpoint = format!("http://{address}");
    let done = said(program(None, &["status", "--endpoint", &endpoint]).output().unwrap());
    assert_eq!(done.code, 21, "{}", done.err);
    thread.unwrap().join().unwrap();
}

#[test]
fn streams_that_are_closed_or_full_do_not_panic() {
    let server = with_volumes();
    for i in 0..200 {
        server.fake.event("kind", &format!("{i} {}", "x".repeat(1000)));
    }
    // A reader that goes away.
    let mut child = program(Some(&server), &["events"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let done = said(child.wait_with_output().unwrap());
    assert_eq!((done.code, done.err.as_str()), (141, ""));
    // A full disk.
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let done = said(program(Some(&server), &["volume", "list"]).stdout(full).output().unwrap());
    assert_eq!(done.code, 1);
    assert_eq!(
        done.err,
        "error[E0005]: cannot write to standard output: No space left on device (os error 28)\n"
    );
    // Nowhere to complain.
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let status = program(Some(&server), &["volume", "show", "none"]).stderr(full).status().unwrap();
    assert_eq!(status.code(), Some(3));
    // Streams that are closed from the start.
    let script = "exec \"$0\" volume list <&- >&- 2>&-";
    let status = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_atoll")])
        .env("ATOLL_ENDPOINT", format!("unix://{}", server.socket().display()))
        .status()
        .unwrap();
    assert!(matches!(status.code(), Some(0 | 1)), "{status}");
}

fn interrupt(child: &std::process::Child) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
}

#[test]
fn ctrl_c_ends_with_130_at_any_time() {
    let server = TestServer::start();
    server.state().delay = Duration::from_secs(30);
    for words in [&["volume", "list"][..], &["volume", "create", "v", "1G"], &["top"]] {
        let child = program(Some(&server), words)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(300));
        interrupt(&child);
        let begun = Instant::now();
        let done = said(child.wait_with_output().unwrap());
        assert_eq!(
            (done.code, done.err.as_str()),
            (130, "error[E0010]: interrupted\n"),
            "{words:?}"
        );
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
    server.state().delay = Duration::ZERO;
    let mut child = program(Some(&server), &["events", "--follow"]);
    let child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    server.fake.event("late", "seen while following");
    std::thread::sleep(Duration::from_millis(1500));
    interrupt(&child);
    let done = said(child.wait_with_output().unwrap());
    assert_eq!(done.code, 130);
    assert!(done.out.contains("seen while following"), "{}", done.out);
}

fn image(dir: &Path, name: &str, bytes: &[u8]) -> String {
    let path = dir.join(name);
    std::fs::write(&path, bytes).unwrap();
    path.display().to_string()
}

#[test]
fn bad_images_are_refused_before_anything_is_created() {
    let server = TestServer::start();
    let dir = tempfile::tempdir().unwrap();
    let import = |file: &str| run(&server, &["volume", "import", "new", file]);
    let no_qemu = Command::new("qemu-img").arg("--version").output().is_err();
    if no_qemu {
        let done = import(&image(dir.path(), "a.raw", &[1; 4096]));
        assert!(done.err.contains("error[E0006]: qemu-img is not installed"), "{}", done.err);
        assert!(done.err.contains("hint: apt-get install qemu-utils"), "{}", done.err);
        return;
    }
    let qemu = |words: &[&str]| {
        let done = Command::new("qemu-img").args(words).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    };
    let raw = image(dir.path(), "good.raw", &vec![7; 8 << 20]);
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (qcow2, cut, tail, child, vmdk) = (
        path("a.qcow2"),
        path("cut.qcow2"),
        path("tail.qcow2"),
        path("child.qcow2"),
        path("a.vmdk"),
    );
    qemu(&["convert", "-O", "qcow2", "-f", "raw", &raw, &qcow2]);
    qemu(&["create", "-q", "-f", "qcow2", "-b", &qcow2, "-F", "qcow2", &child]);
    qemu(&["convert", "-O", "vmdk", "-f", "raw", &raw, &vmdk]);
    let whole = std::fs::read(&qcow2).unwrap();
    std::fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    std::fs::write(&tail, &whole[..whole.len() - 4096]).unwrap();
    let torn = image(dir.path(), "torn.raw", &[7; 1000]);
    let empty = image(dir.path(), "empty.raw", &[]);
    for (file, code, word) in [
        (path("none.raw"), 1, "No such file"),
        (dir.path().display().to_string(), 1, "is not a file or block device"),
        (torn, 1, "1000 bytes are not a multiple of 512"),
        (empty, 1, "it is empty"),
        (cut, 1, "it is cut short"),
        (tail, 1, "it is cut short: 4096 bytes are missing"),
        (child, 1, "it needs another file"),
        (vmdk, 1, "it is an image of format VMDK, not raw or qcow2"),
        ("-".into(), 2, "not from standard input"),
    ] {
        let done = import(&file);
        assert_eq!(done.code, code, "{file}: {}", done.err);
        assert!(done.err.contains(word), "{file}: {}", done.err);
        assert!(done.err.lines().count() <= 2, "{file}: {}", done.err);
    }
    assert_eq!(server.state().made, 0, "nothing was created for any of them");
    // A volume in use, one that is too small, and one that must exist.
    good(&server, &["volume", "create", "vm1", "4MiB", "-q"]);
    bad(
        &server,
        &["volume", "import", "absent", &raw, "--existing"],
        3,
        "error[E0201]: there is no volume 'absent'\nhint: atoll volume list\n",
    );
    let done = run(&server, &["volume", "import", "vm1", &raw]);
    assert_eq!(done.code, 2);
    assert!(done.err.contains("good.raw is too large (8.0 MiB): volume 'vm1'"), "{}", done.err);
    server.state().used.push("vm1".into());
    let done = run(&server, &["volume", "import", "vm1", &raw]);
    assert_eq!(done.code, 4);
    assert!(done.err.contains("volume vm1 is in use on host1"), "{}", done.err);
    // A new volume is removed again when the copy fails: this engine has no NBD socket.
    let done = run(&server, &["volume", "import", "new", &raw]);
    assert_eq!(done.code, 1);
    assert!(done.err.contains("volume new was removed again"), "{}", done.err);
    assert!(!server.state().volumes.contains_key("new"));
    // An export never replaces a file unasked, and leaves nothing half done.
    let done = run(&server, &["volume", "export", "vm1", &raw]);
    assert_eq!(done.code, 1, "{}", done.err); // no NBD socket
    assert_eq!(std::fs::metadata(&raw).unwrap().len(), 8 << 20);
    assert!(
        !std::fs::read_dir(dir.path())
            .unwrap()
            .any(|entry| { entry.unwrap().file_name().to_string_lossy().contains("partial") })
    );
}

/// What `qemu-img` or another program says, which must succeed.
fn tool(program: &str, words: &[&str]) -> Vec<u8> {
    let done = Command::new(program).args(words).output().unwrap();
    assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
    done.stdout
}

#[test]
fn good_qcow2_images_are_taken_and_cut_ones_refused() {
    if Command::new("qemu-img").arg("--version").output().is_err() {
        return;
    }
    let server = TestServer::start();
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let import = |file: &str| run(&server, &["volume", "import", "new", file, "--dry-run"]);
    // A cluster of noise at the end, so that there is no end to spare.
    let mut bytes = vec![0; 4 << 20];
    let mut noise = 1_u64;
    for byte in bytes[1 << 20..].iter_mut().take(300_000) {
        noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *byte = (noise >> 58) as u8;
    }
    bytes.copy_within((1 << 20)..(1 << 20) + (128 << 10), (4 << 20) - (128 << 10));
    let raw = image(dir.path(), "a.raw", &bytes);
    let mut good = Vec::new();
    for options in [
        "compat=1.1",
        "compat=0.10",
        "cluster_size=512",
        "cluster_size=2M",
        "refcount_bits=1",
        "refcount_bits=64",
        "lazy_refcounts=on",
        "extended_l2=on",
        "preallocation=metadata",
    ] {
        let (fresh, filled) = (path(&format!("fresh-{options}")), path(options));
        tool("qemu-img", &["create", "-q", "-f", "qcow2", "-o", options, &fresh, "100100K"]);
        tool("qemu-img", &["convert", "-O", "qcow2", "-f", "raw", "-o", options, &raw, &filled]);
        good.extend([fresh, filled]);
    }
    for kind in ["zlib", "zstd"] {
        let packed = path(kind);
        let options = format!("compression_type={kind}");
        tool("qemu-img", &["convert", "-cO", "qcow2", "-f", "raw", "-o", &options, &raw, &packed]);
        good.push(packed);
    }
    let changed = path("changed");
    let copy = || tool("qemu-img", &["convert", "-O", "qcow2", "-f", "raw", &raw, &changed]);
    for words in [
        &["snapshot", "-c", "one"][..],
        &["bitmap", "--add"],
        &["resize", "-q"],
        &["resize", "-q", "--shrink"],
    ] {
        copy();
        let last = match words {
            ["bitmap", ..] => Some("b0"),
            ["resize", "-q"] => Some("100M"),
            ["resize", ..] => Some("1M"),
            _ => None,
        };
        tool("qemu-img", &[words, &[&changed], last.as_slice()].concat());
        let done = import(&changed);
        assert_eq!(done.code, 0, "{words:?}: {}", done.err);
    }
    let cut = path("cut");
    for file in &good {
        let done = import(file);
        assert_eq!(done.code, 0, "{file}: {}", done.err);
        let whole = std::fs::read(file).unwrap();
        for bytes in [1, 100, 70_000, 1 << 20].into_iter().filter(|&bytes| bytes < whole.len()) {
            std::fs::write(&cut, &whole[..whole.len() - bytes]).unwrap();
            let done = import(&cut);
            if done.code == 0 {
                // Nothing of the disk was lost: zeros that fill up a sector or a cluster.
                let words = ["compare", "-f", "qcow2", "-F", "qcow2", file, &cut];
                tool("qemu-img", &words);
                assert!(bytes <= 100, "{file} without {bytes} bytes");
            } else {
                assert!(done.err.contains("cut short"), "{file} - {bytes}: {}", done.err);
                assert!(done.err.contains("hint: fetch it again"), "{}", done.err);
            }
        }
    }
    // What is packed at the very end, byte by byte.
    for kind in ["zlib", "zstd"] {
        let whole = std::fs::read(path(kind)).unwrap();
        let padding = whole.iter().rev().take_while(|&&byte| byte == 0).count();
        std::fs::write(&cut, &whole[..whole.len() - padding - 1]).unwrap();
        let done = import(&cut);
        assert_eq!(done.code, 1, "{kind}");
        assert!(done.err.contains("cut short: its last cluster ends too early"), "{}", done.err);
    }
    // Not closed, and marked as corrupt: the command that mends it.
    for bit in [1, 2] {
        let mut bytes = std::fs::read(path("compat=1.1")).unwrap();
        bytes[79] |= bit;
        std::fs::write(path("a b"), bytes).unwrap();
        let done = import(&path("a b"));
        assert_eq!(done.code, 1);
        let hint = format!("hint: qemu-img check -r all '{}'", path("a b"));
        assert!(done.err.contains(&hint), "{}", done.err);
    }
    assert_eq!(server.state().made, 0, "nothing was created for any of them");
}

#[test]
fn packed_files_and_foreign_images_are_refused_with_the_command_that_unpacks() {
    if Command::new("qemu-img").arg("--version").output().is_err() {
        return;
    }
    let server = TestServer::start();
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let import =
        |words: &[&str]| run(&server, &[&["volume", "import", "new", "--dry-run"], words].concat());
    let raw = image(dir.path(), "it's a.raw", &vec![7; 1 << 20]);
    std::fs::write(path("it's a.raw.gz"), tool("gzip", &["-c", &raw])).unwrap();
    let done = import(&[&path("it's a.raw.gz")]);
    assert_eq!(done.code, 1);
    assert!(done.err.contains("it's a.raw.gz: it is packed by gzip"), "{}", done.err);
    // The line does what it says.
    std::fs::remove_file(&raw).unwrap();
    let line = done.err.lines().find_map(|line| line.strip_prefix("hint: ")).unwrap();
    tool("sh", &["-c", line]);
    assert_eq!(std::fs::read(&raw).unwrap(), vec![7; 1 << 20]);
    assert_eq!(import(&[&raw]).code, 0);
    for (format, options) in [
        ("vpc", "subformat=fixed"),
        ("vpc", "subformat=dynamic"),
        ("vhdx", "subformat=dynamic"),
        ("vdi", "static=off"),
    ] {
        let other = path(&format!("{format}{options}.raw"));
        tool("qemu-img", &["create", "-q", "-f", format, "-o", options, &other, "1M"]);
        let done = import(&[&other]);
        assert_eq!(done.code, 1, "{other}");
        assert!(done.err.contains("not raw or qcow2"), "{}", done.err);
        let line = done.err.lines().find_map(|line| line.strip_prefix("hint: ")).unwrap();
        assert!(line.starts_with(&format!("qemu-img convert -f {format} -O qcow2 ")), "{line}");
        tool("sh", &["-c", line]);
        assert_eq!(import(&[&format!("{other}.qcow2")]).code, 0);
        // Byte by byte, if somebody says so, but not without a word.
        let done = import(&[&other, "--format", "raw"]);
        assert_eq!(done.code, 0, "{}", done.err);
        assert!(done.err.contains("every byte of it is copied as it is"), "{}", done.err);
        let done = import(&[&other, "--format", "qcow2"]);
        assert_eq!(done.code, 1);
        assert!(done.err.contains("and not qcow2"), "{}", done.err);
    }
    // A packed file of an odd length is not to be padded.
    let odd = image(dir.path(), "odd", b"\xfd7zXZ\0 and so on");
    let done = import(&[&odd]);
    assert!(done.err.contains(&format!("hint: xz -dc < {odd} > {odd}.raw")), "{}", done.err);
    // A pipe is not waited for.
    let pipe = path("pipe");
    tool("mkfifo", &[&pipe]);
    assert!(import(&[&pipe]).err.contains("is not a file or block device"));
    assert_eq!(server.state().made, 0, "nothing was created for any of them");
}

#[test]
fn an_image_never_leads_to_another_file() {
    if Command::new("qemu-img").arg("--version").output().is_err() {
        return;
    }
    let server = TestServer::start();
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    // What they name is a pipe: whoever opens it waits until the test is ended.
    let secret = path("secret");
    tool("mkfifo", &[&secret]);
    let base = image(dir.path(), "base.raw", &vec![7; 1 << 20]);
    tool("qemu-img", &["create", "-q", "-f", "qcow2", "-b", &base, "-F", "raw", &path("b")]);
    tool("qemu-img", &["rebase", "-u", "-f", "qcow2", "-b", &secret, "-F", "raw", &path("b")]);
    let data = format!("data_file={base},data_file_raw=on");
    tool("qemu-img", &["create", "-q", "-f", "qcow2", "-o", &data, &path("d"), "1M"]);
    std::fs::remove_file(&base).unwrap();
    tool("mkfifo", &[&base]);
    let text = format!("# Disk DescriptorFile\nversion=1\nRW 2048 FLAT \"{secret}\" 0\n");
    image(dir.path(), "v", text.as_bytes());
    for (file, named) in [("b", "secret"), ("d", "base.raw"), ("v", "secret")] {
        for ending in ["raw", "img", "qcow2", "vmdk"] {
            let named_so = path(&format!("{file}.{ending}"));
            std::fs::copy(path(file), &named_so).unwrap();
            for format in [&[][..], &["--format", "qcow2"]] {
                let words = [&["volume", "import", "new", &named_so, "--dry-run"], format];
                let done = run(&server, &words.concat());
                assert_eq!(done.code, 1, "{named_so}: {}", done.err);
                let other = done.err.contains("other file") || done.err.contains("another file");
                assert!(other, "{named_so}: {}", done.err);
                assert!(done.err.contains(&path(named)), "{named_so}: {}", done.err);
            }
        }
    }
}

#[test]
fn a_bad_configuration_is_refused_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("atoll.toml");
    std::fs::write(&path, "[host]\nname = \"h\"\ncolour = 1\n").unwrap();
    let file = path.display().to_string();
    let done = said(program(None, &["serve", "--config", &file]).output().unwrap());
    assert_eq!(done.code, 1);
    assert_eq!(
        done.err,
        format!(
            "error[E0003]: {file}:3: unknown key 'colour' in [host]\n\
             hint: accepted: name, fault_domain, data_dir, shards\n"
        )
    );
    std::fs::write(&path, "[host]\nname = \"h\"\n").unwrap();
    let done =
        said(program(None, &["serve", "--config", &file, "--check-config"]).output().unwrap());
    assert_eq!(done.code, 0, "{}", done.err);
}

/// What seeds find is the simulator's own business: here only that they run, and replay.
#[test]
fn the_simulator_runs_and_replays_a_seed() {
    let many =
        ["sim", "run", "--seeds", "0..2", "--ops", "30", "-q", "-o", "json", "--reference-store"];
    let done = said(program(None, &many).output().unwrap());
    let report: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!(report["kind"], "SimReport");
    assert_eq!(report["item"]["seeds"], 2);
    let failed = report["item"]["failed"].as_array().unwrap().len();
    assert_eq!(done.code, i32::from(failed > 0), "{}{}", done.out, done.err);
    let hash = |more: &[&str]| {
        let replay = ["sim", "run", "--seed", "1", "--ops", "30", "--reference-store"];
        let done = said(program(None, &[&replay[..], more].concat()).output().unwrap());
        let last = done.out.lines().last().unwrap_or_default().to_owned();
        assert!(last.starts_with("seed 1: hash "), "{}{}", done.out, done.err);
        (last, done.out.lines().count())
    };
    let (quiet, traced) = (hash(&[]), hash(&["--trace"]));
    assert_eq!(quiet.0, traced.0, "a trace changes nothing");
    assert!(traced.1 > quiet.1 + 100, "a trace has lines");
}

#[test]
fn a_seed_that_does_not_end_is_named() {
    // Each takes longer than no time at all.
    let words = ["sim", "run", "--seeds", "70..", "--time", "60s", "--ops", "400", "--stuck", "0s"];
    let done = said(program(None, &words).output().unwrap());
    assert_eq!(done.code, 1, "{}", done.err);
    assert!(done.err.contains("FAILED: it has not ended within 0 s"), "{}", done.err);
    assert!(done.err.contains("atoll sim run --seed "), "{}", done.err);
}

#[test]
fn a_timed_run_ends_with_the_line_that_counts() {
    let words =
        ["sim", "run", "--seeds", "5..", "--time", "1s", "--ops", "30", "--reference-store"];
    let done = said(program(None, &[&words[..], &["--report"]].concat()).output().unwrap());
    let last = done.out.lines().last().unwrap();
    let counts: Vec<&str> = last.split(", ").map(|c| c.split_once(' ').unwrap().1).collect();
    assert_eq!(counts, ["seeds", "faults", "virtual hours", "violations"], "{last}");
    assert_eq!(done.code, i32::from(!last.ends_with(" 0 violations")), "{}", done.out);
    assert!(done.out.contains("virtual hours an hour, ") && done.out.contains("  kill "));
    assert!(done.out.contains("marks not reached: "));
    let short = said(program(None, &words).output().unwrap());
    assert!(!short.out.contains("  kill ") && short.out.contains("(--report names them)"));
}

#[test]
fn clusters_of_modelled_hardware_are_measured() {
    let measured = |format: &str| {
        let words = ["sim", "scale", "--hosts", "1-2", "--volumes", "1", "--workload", "rr4k"];
        let more = ["--ops", "100", "--disk", "hdd", "-o", format];
        let done = said(program(None, &[&words[..], &more].concat()).output().unwrap());
        assert_eq!(done.code, 0, "{}{}", done.out, done.err);
        assert!(done.err.contains("2 of 2: hosts 2, cores 1, volumes 1, hdd, "), "{}", done.err);
        done.out
    };
    let rows: serde_json::Value = serde_json::from_str(&measured("json")).unwrap();
    assert_eq!(rows["kind"], "SimScale");
    let row = &rows["item"]["rows"][1];
    assert_eq!((&row["hosts"], &row["bound"]), (&2.into(), &"disk".into()), "{row}");
    let table = measured("table");
    let iops = row["iops"].as_f64().unwrap();
    let cell = format!(" {iops:.0} ");
    let last = table.trim_end().lines().last().unwrap();
    assert!(last.starts_with("| 2 ") && last.contains(&cell), "{cell}: {table}");
}

#[test]
fn a_part_of_a_seed_can_be_run_and_a_sound_one_is_not_shrunk() {
    let run = |more: &[&str]| {
        let words = ["sim", "run", "--seed", "6", "--ops", "30", "--reference-store", "-o", "json"];
        let done = said(program(None, &[&words[..], more].concat()).output().unwrap());
        let outcome: serde_json::Value = serde_json::from_str(&done.out).unwrap();
        assert_eq!(outcome["kind"], "SimOutcome");
        outcome["item"].clone()
    };
    assert!(run(&[])["faults"].as_object().unwrap().values().any(|n| n != 0));
    let calm = run(&["--only", "none"]);
    assert!(calm["faults"].as_object().unwrap().values().all(|n| n == 0), "{calm}");
    assert!(calm["events"].as_array().unwrap().is_empty());
    let words =
        ["sim", "shrink", "--seed", "1", "--ops", "30", "--reference-store", "--only", "none"];
    let done = said(program(None, &words).output().unwrap());
    assert_eq!((done.code, done.out.as_str()), (1, ""));
    assert!(done.err.contains("seed 1 finds no violation") && done.err.contains("\nhint: give it"));
}

#[test]
fn a_run_is_drawn_as_one_page() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("run.html");
    let words = |out: &Path| {
        let words = ["sim", "timeline", "--seed", "2", "--ops", "30", "--reference-store", "--out"];
        said(program(None, &words).arg(out).output().unwrap())
    };
    let done = words(&page);
    assert_eq!(done.code, 0, "{}", done.err);
    let text = std::fs::read_to_string(&page).unwrap();
    assert!(text.starts_with("<!doctype html>") && text.contains("data-lane=\"h2\""));
    let done = words(&dir.path().join("nowhere/run.html"));
    assert_eq!(done.code, 1);
    assert!(done.err.contains("nowhere/run.html") && done.err.contains("hint: --out names"));
}

#[test]
fn a_soak_goes_on_where_it_ended_and_leaves_a_damaged_state_alone() {
    let dir = tempfile::tempdir().unwrap();
    let soak = |more: &[&str]| {
        let mut command = program(None, &["sim", "soak", "-o", "json", "--jobs", "1"]);
        said(command.arg("--dir").arg(dir.path()).args(more).output().unwrap())
    };
    assert!(soak(&["--corpus"]).err.contains("there is no corpus in"));
    let item = |done: &Said| -> serde_json::Value {
        let value: serde_json::Value = serde_json::from_str(&done.out).unwrap();
        value["item"].clone()
    };
    let first = item(&soak(&["--time", "1s", "--first", "40"]));
    let seeds = first["seeds"].as_u64().unwrap();
    assert_eq!(first["next"].as_u64(), Some(40 + seeds));
    let kept = first["corpus"].as_array().unwrap();
    assert!(kept[0]["seed"] == 40 && !kept[0]["reached"].as_array().unwrap().is_empty());
    let second = item(&soak(&["--time", "1s"]));
    assert!(second["seeds"].as_u64() > first["seeds"].as_u64());
    assert_eq!(second["next"].as_u64(), Some(40 + second["seeds"].as_u64().unwrap()));
    let again = soak(&["--corpus"]);
    assert_eq!(item(&again)["corpus"], second["corpus"], "{}", again.err);
    let state = dir.path().join("soak.json");
    std::fs::write(&state, "{\"version\":1").unwrap();
    let done = soak(&["--time", "1s"]);
    assert_eq!((done.code, done.out.as_str()), (1, ""));
    assert!(done.err.contains("soak.json: damaged: ") && done.err.contains("move it away"));
    assert_eq!(std::fs::read_to_string(&state).unwrap(), "{\"version\":1");
}

#[test]
fn manual_pages_can_be_written() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().display().to_string();
    let done = said(program(None, &["man", "--dir", &target]).output().unwrap());
    assert_eq!(done.code, 0, "{}", done.err);
    assert!(std::fs::read_dir(dir.path()).unwrap().count() > 30);
}

#[test]
fn what_a_machine_lacks_is_an_exit_code_and_a_line_with_the_next_step() {
    let server = TestServer::start();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("atoll.toml");
    let write = |peer: &str| {
        let text = format!(
            "[host]\nname = \"h\"\ndata_dir = \"{0}\"\n[network]\napi = \"\"\npeer = [\"{peer}\"]\n\
             api_socket = \"{0}/api.sock\"\n[[group]]\ndisks = [\"{0}/disk\"]\n",
            dir.path().display()
        );
        std::fs::write(&config, text).unwrap();
    };
    let path = config.to_str().unwrap();
    let check = |words: &[&str]| {
        run(&server, &[&["host", "prepare", "--check", "--config", path], words].concat())
    };
    std::fs::File::create(dir.path().join("disk")).unwrap().set_len(2 << 30).unwrap();
    write(&address.to_string());
    let done = check(&[]);
    assert_eq!(done.code, 4, "{} {}", done.out, done.err);
    assert_eq!(
        done.err,
        "error[E0304]: this machine lacks something that a host needs\n\
         hint: the line 'missing' says what to do\n"
    );
    let line = done.out.lines().find(|line| line.starts_with("missing")).unwrap().to_owned();
    let says = [
        format!("port {address}"),
        "another process listens there (network.peer)".into(),
        format!("ss -lptn 'sport = :{}' names it", address.port()),
    ];
    assert!(says.iter().all(|part| line.contains(part)), "{line}");
    drop(taken);
    let done = check(&["-o", "json"]);
    assert_eq!(done.code, 0, "{} {}", done.out, done.err);
    let list: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!(list["kind"], "HostCheckList");
    let items = list["items"].as_array().unwrap();
    let of = |check: &str, subject: &str| {
        let is = |item: &&serde_json::Value| item["check"] == check && item["subject"] == subject;
        items.iter().find(is).unwrap_or_else(|| panic!("no {check} {subject}: {}", done.out))
    };
    assert_eq!(of("port", &address.to_string())["state"], "ok");
    let disk = dir.path().join("disk").display().to_string();
    assert_eq!(of("disk", &disk)["found"], "2.0 GiB, empty");
    assert_eq!(of("disk", &disk)["next_step"], format!("atoll group create {disk}"));
    // A word in the wrong place is found here already.
    std::fs::write(&config, "[hots]\n").unwrap();
    let done = check(&[]);
    assert_eq!(done.code, 4, "{}", done.err);
    assert!(done.out.contains("atoll.toml:1: unknown key 'hots'"), "{}", done.out);
    assert_eq!(run(&server, &["host", "prepare"]).code, 2);
    bad(
        &server,
        &["host", "prepare", "--check", "--curl"],
        2,
        "error[E0002]: the argument '--curl' cannot be used with 'atoll host prepare'\n\
         hint: usage: atoll host prepare [OPTIONS] (--help tells more)\n",
    );
}

/// Unpacks a support bundle: name -> text.
fn unpacked(file: &Path) -> std::collections::BTreeMap<String, String> {
    let tar = |words: &[&str]| {
        let done = Command::new("tar").args(words).arg("-f").arg(file).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        String::from_utf8(done.stdout).unwrap()
    };
    let names = tar(&["-tz"]);
    let inside = |name: &str| name.split_once('/').unwrap().1.to_owned();
    names.lines().map(|name| (inside(name), tar(&["-xzO", "--occurrence=1", name]))).collect()
}

#[test]
fn a_support_bundle_has_what_is_needed_and_no_secret() {
    const SECRET: &str = "hunter2-is-secret";
    let server = with_volumes();
    server.fake.event("odd", &format!("etcd at http://root:{SECRET}@far:2379 says token={SECRET}"));
    let dir = tempfile::tempdir().unwrap();
    let (config, file) = (dir.path().join("atoll.toml"), dir.path().join("b.tar.gz"));
    let text = format!("# {SECRET}\n[host]\nname = \"h7\"\n[vault]\npassword = \"{SECRET}\"\n");
    std::fs::write(&config, text).unwrap();
    let words = ["support", "bundle", "--to", file.to_str().unwrap(), "--config"];
    let command = |server| {
        let mut command = program(server, &words);
        command.arg(&config).env("VAULT_TOKEN", SECRET);
        command
    };
    // Whoever lists processes sees it; a bundle does not.
    let word = format!("--password={SECRET}");
    let mut other =
        Command::new("sh").args(["-c", "read line", &word]).stdin(Stdio::piped()).spawn();
    let done = said(command(Some(&server)).output().unwrap());
    assert_eq!((done.code, done.out.trim()), (0, file.to_str().unwrap()), "{}", done.err);
    let mode = std::os::unix::fs::PermissionsExt::mode(&file.metadata().unwrap().permissions());
    assert_eq!(mode & 0o7777, 0o600);
    let pieces = unpacked(&file);
    for (name, text) in &pieces {
        assert!(!text.contains(SECRET), "{name}: {text}");
    }
    for (name, holds) in [
        ("api/events.json", "etcd at http://(removed)@far:2379 says token=(removed)"),
        ("api/volumes.json", "\"data.2\""),
        ("api/placement-vm1.json", "Placement"),
        ("api/disks-host1.json", "DiskList"),
        ("config/atoll.toml", "host.name = \"h7\"\n"),
        ("config/atoll.toml", "not a key of this release: vault\n"),
        ("host-check.json", "HostCheckList"),
        ("metrics.txt", "# HELP atoll_"),
        ("versions.txt", env!("CARGO_PKG_VERSION")),
    ] {
        let text = pieces.get(name).unwrap_or_else(|| panic!("no {name}: {:?}", pieces.keys()));
        assert!(text.contains(holds), "{name}: {text}");
    }
    let manifest: serde_json::Value = serde_json::from_str(&pieces["manifest.json"]).unwrap();
    let listed = manifest["pieces"].as_array().unwrap();
    for piece in listed.iter().filter(|piece| piece["missing"].is_null()) {
        let name = piece["name"].as_str().unwrap();
        assert_eq!(pieces[name].len() as u64, piece["bytes"].as_u64().unwrap(), "{name}");
    }
    // What is there stays.
    let before = std::fs::read(&file).unwrap();
    let again = said(command(Some(&server)).output().unwrap());
    assert_eq!(again.code, 4, "{}", again.err);
    assert!(again.err.contains("exists already\nhint: --to names another file\n"), "{}", again.err);
    assert_eq!(std::fs::read(&file).unwrap(), before);
    // Without a daemon it has the rest, and says what it lacks.
    std::fs::remove_file(&file).unwrap();
    let mut alone = command(None);
    alone.env("ATOLL_ENDPOINT", dir.path().join("nobody.sock"));
    let done = said(alone.output().unwrap());
    assert_eq!(done.code, 0, "{}", done.err);
    assert!(done.err.contains("without api: "), "{}", done.err);
    let pieces = unpacked(&file);
    assert!(pieces["manifest.json"].contains("nobody.sock"), "{}", pieces["manifest.json"]);
    assert!(pieces.contains_key("host-check.json") && !pieces.contains_key("metrics.txt"));
    drop(other.as_mut().unwrap().stdin.take());
    other.unwrap().wait().unwrap();
}

/// Whose certificate an unreadable one is, nobody guesses.
#[test]
fn a_certificate_that_cannot_be_read_is_replaced_for_the_host_that_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (authority, out) = (dir.path().join("authority"), dir.path().join("trust"));
    let (authority, out) = (authority.to_str().unwrap(), out.to_str().unwrap());
    let cluster =
        |words: &[&str]| said(program(None, &[&["cluster"], words].concat()).output().unwrap());
    let made = cluster(&["authority", "create", "--dir", authority]);
    assert_eq!(made.code, 0, "{}", made.err);
    let certify = |host: &[&str]| {
        cluster(&[&["certificate"], host, &["--authority", authority, "--out", out]].concat())
    };
    let first = certify(&[]);
    assert_eq!(first.code, 0, "{}", first.err);
    let certificate = Path::new(out).join("host.crt");
    let before = std::fs::read(&certificate).unwrap();
    // As when a power loss comes between the files.
    std::fs::write(Path::new(out).join("host.key"), "cut").unwrap();
    let refused = certify(&[]);
    assert_ne!(refused.code, 0);
    assert!(refused.err.contains("hint: name the host's id"), "{}", refused.err);
    assert_eq!(std::fs::read(&certificate).unwrap(), before, "nothing is changed");
    let named = certify(&["00000000000000a1"]);
    assert_eq!(named.code, 0, "{}", named.err);
    assert!(named.out.contains("00000000000000a1"), "{}", named.out);
}

//! The REST server against clients that follow the rules, and against those that do not: every
//! refusal is JSON that names the field, and the next client is served as if nothing had happened.

#![allow(clippy::disallowed_methods, reason = "tests wait for processes")]

mod common;

use atoll::control::Scope;
use atoll::rest::door::Access;
use atoll_api::routes::{Op, PREFIX, Place, Role, Route};
use common::TestServer;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Status, headers and body of one raw exchange; the connection is closed afterwards.
fn raw(server: &TestServer, request: &[u8]) -> (u16, String, Vec<u8>) {
    let mut stream = TcpStream::connect(server.tcp).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // A server that refuses early may stop reading: what it said is still there to be read.
    let _ = stream.write_all(request);
    let mut reply = Vec::new();
    let mut chunk = [0; 65536];
    loop {
        match stream.read(&mut chunk) {
            Ok(0) | Err(_) => break,
            Ok(n) => reply.extend_from_slice(&chunk[..n]),
        }
        if whole(&reply) {
            break;
        }
    }
    let split = reply.windows(4).position(|w| w == b"\r\n\r\n").unwrap_or_else(|| {
        panic!("no reply to {:?}", String::from_utf8_lossy(&request[..request.len().min(200)]))
    });
    let head = String::from_utf8(reply[..split].to_vec()).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head, reply[split + 4..].to_vec())
}

fn whole(reply: &[u8]) -> bool {
    let Some(split) = reply.windows(4).position(|w| w == b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&reply[..split]).to_ascii_lowercase();
    let len = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    len.is_some_and(|len| reply.len() >= split + 4 + len.trim().parse::<usize>().unwrap())
        || head.starts_with("http/1.1 204")
}

fn send(
    server: &TestServer,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> (u16, String, Value) {
    let mut request = format!("{method} {path} HTTP/1.1\r\nhost: test\r\n");
    for (name, value) in headers {
        request += &format!("{name}: {value}\r\n");
    }
    if !body.is_empty() {
        request += "content-type: application/json\r\n";
    }
    request += &format!("content-length: {}\r\n\r\n{body}", body.len());
    let (status, head, body) = raw(server, request.as_bytes());
    let body = if body.is_empty() {
        Value::Null
    } else {
        serde_json::from_slice(&body).unwrap_or_else(|e| panic!("{e}: {head}"))
    };
    (status, head, body)
}

fn ask(server: &TestServer, method: &str, path: &str, body: &str) -> (u16, Value) {
    let (status, _, body) = send(server, method, path, &[], body);
    (status, body)
}

/// The status and code of a refusal, which must be a whole problem.
fn refused(reply: (u16, Value)) -> (u16, String, String) {
    let (status, body) = reply;
    assert!((400..600).contains(&status), "{status} {body}");
    assert_eq!(body["status"], status, "{body}");
    assert!(!body["detail"].as_str().unwrap().is_empty(), "{body}");
    let code = body["code"].as_str().unwrap().to_owned();
    assert_eq!(body["type"], format!("/docs/errors#{code}"));
    (status, code, body["detail"].as_str().unwrap().to_owned())
}

#[test]
fn a_volume_lives_its_life() {
    let server = TestServer::start();
    let body = r#"{"name":"vm1","size_bytes":1073741824}"#;
    let (status, head, made) = send(&server, "POST", "/api/v1/volumes", &[], body);
    assert_eq!(status, 200, "{made}");
    assert!(head.contains("etag: \"1\""), "{head}");
    assert_eq!(made["kind"], "Volume");
    assert_eq!(made["version"], 1);
    assert_eq!(made["generated_at"], "2026-11-20T12:00:00.000Z");
    assert_eq!(made["item"]["size_bytes"], 1 << 30);
    let (_, listed) = ask(&server, "GET", "/api/v1/volumes", "");
    assert_eq!(
        (&listed["kind"], &listed["items"][0]["name"]),
        (&json!("VolumeList"), &json!("vm1"))
    );
    let again = refused(ask(&server, "POST", "/api/v1/volumes", body));
    assert_eq!((again.0, again.1.as_str()), (409, "E0301"));
    let bigger = r#"{"size_bytes":2147483648}"#;
    let (status, _) = ask(&server, "POST", "/api/v1/volumes/vm1:resize", bigger);
    assert_eq!(status, 200);
    let smaller = refused(ask(&server, "PATCH", "/api/v1/volumes/vm1", r#"{"size_bytes":4096}"#));
    assert_eq!((smaller.0, smaller.1.as_str()), (409, "E0501"));
    let (status, body) = ask(&server, "DELETE", "/api/v1/volumes/vm1", "");
    assert_eq!((status, body), (204, Value::Null));
    assert_eq!(refused(ask(&server, "GET", "/api/v1/volumes/vm1", "")).1, "E0201");
}

#[test]
fn a_change_with_an_old_etag_is_refused_and_a_dry_run_changes_nothing() {
    let server = TestServer::start();
    let body = r#"{"name":"vm1","size_bytes":4096}"#;
    let (status, _) = ask(&server, "POST", "/api/v1/volumes?dry_run=true", body);
    assert_eq!((status, server.state().volumes.len()), (200, 0));
    ask(&server, "POST", "/api/v1/volumes", body);
    let patch = |tag: &str| {
        send(
            &server,
            "PATCH",
            "/api/v1/volumes/vm1",
            &[("if-match", tag)],
            r#"{"size_bytes":8192}"#,
        )
    };
    let revision = server.state().volumes["vm1"].revision;
    assert_eq!(patch("\"99\"").0, 412);
    assert_eq!(patch("rubbish").0, 412);
    assert_eq!(patch(&format!("\"{revision}\"")).0, 200);
    assert_eq!(patch(&format!("\"{revision}\"")).0, 412, "it has changed");
    let delete =
        |tag: &str| send(&server, "DELETE", "/api/v1/volumes/vm1", &[("if-match", tag)], "").0;
    assert_eq!(delete("\"1\""), 412);
    let (status, _) = ask(&server, "DELETE", "/api/v1/volumes/vm1?dry_run=1", "");
    assert_eq!((status, server.state().volumes.len()), (204, 1));
    assert_eq!(delete("*"), 204);
}

#[test]
fn a_repeated_key_gives_the_same_answer_and_makes_one_volume() {
    let server = TestServer::start();
    let key = [("idempotency-key", "k1")];
    let body = r#"{"name":"vm1","size_bytes":4096}"#;
    let first = send(&server, "POST", "/api/v1/volumes", &key, body);
    let second = send(&server, "POST", "/api/v1/volumes", &key, body);
    assert_eq!((first.0, &first.2["item"]), (200, &second.2["item"]));
    assert_eq!(server.state().made, 1);
    let other = r#"{"name":"vm2","size_bytes":4096}"#;
    let (status, _, problem) = send(&server, "POST", "/api/v1/volumes", &key, other);
    assert_eq!((status, &problem["code"]), (422, &json!("E0305")));
    // A request that failed may be repeated with its key.
    let bad = [("idempotency-key", "k2")];
    let unknown = r#"{"name":"vm3","size_bytes":4096,"policy":"none"}"#;
    assert_eq!(send(&server, "POST", "/api/v1/volumes", &bad, unknown).0, 404);
    assert_eq!(send(&server, "POST", "/api/v1/volumes", &bad, unknown).0, 404);
    assert_eq!(send(&server, "POST", "/api/v1/volumes", &[("idempotency-key", "")], body).0, 400);
}

#[test]
fn lists_come_in_pages_that_add_up() {
    let server = TestServer::start();
    for i in 0..25 {
        let body = format!(r#"{{"name":"vm{i:02}","size_bytes":4096}}"#);
        assert_eq!(ask(&server, "POST", "/api/v1/volumes", &body).0, 200);
    }
    let mut names = Vec::new();
    let mut cursor = String::new();
    loop {
        let (status, page) = ask(&server, "GET", &format!("/api/v1/volumes?limit=10{cursor}"), "");
        assert_eq!(status, 200);
        let items = page["items"].as_array().unwrap();
        assert!(items.len() <= 10);
        names.extend(items.iter().map(|item| item["name"].as_str().unwrap().to_owned()));
        match page.get("next_cursor") {
            Some(next) => cursor = format!("&cursor={}", next.as_str().unwrap()),
            None => break,
        }
    }
    let want: Vec<String> = (0..25).map(|i| format!("vm{i:02}")).collect();
    assert_eq!(names, want);
    let (_, page) = ask(&server, "GET", "/api/v1/volumes?limit=10", "");
    let good = page["next_cursor"].as_str().unwrap().to_owned();
    let changed = format!("{}{}", &good[..good.len() - 1], if good.ends_with('0') { 1 } else { 0 });
    for path in [
        format!("/api/v1/policies?cursor={good}"),
        format!("/api/v1/volumes?scope=local&cursor={good}"),
        format!("/api/v1/volumes?cursor={changed}"),
        format!("/api/v1/volumes?cursor={}", good.to_uppercase()),
        "/api/v1/volumes?cursor=vm05".into(),
        "/api/v1/volumes?cursor=".into(),
        "/api/v1/volumes?cursor=%C3%A4%C3%A4%C3%A4%C3%A4%C3%A4".into(),
    ] {
        let (status, body) = ask(&server, "GET", &path, "");
        assert_eq!((status, body["field"].as_str()), (400, Some("cursor")), "{path}: {body}");
    }
    // What is made and deleted between two pages moves nothing that was there all the time.
    for (method, path, body) in [
        ("DELETE", "/api/v1/volumes/vm09", ""),
        ("DELETE", "/api/v1/volumes/vm03", ""),
        ("POST", "/api/v1/volumes", r#"{"name":"vm00a","size_bytes":4096}"#),
        ("POST", "/api/v1/volumes", r#"{"name":"vm12a","size_bytes":4096}"#),
    ] {
        assert!(ask(&server, method, path, body).0 < 300, "{method} {path}");
    }
    let (_, page) = ask(&server, "GET", &format!("/api/v1/volumes?limit=5&cursor={good}"), "");
    let names: Vec<&str> =
        page["items"].as_array().unwrap().iter().map(|i| i["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["vm10", "vm11", "vm12", "vm12a", "vm13"]);
    for bad in [
        "limit=0",
        "limit=1001",
        "limit=-1",
        "limit=x",
        "limit=1&limit=2",
        "colour=red",
        "scope=moon",
        "limit=%zz",
    ] {
        let (status, _, detail) =
            refused(ask(&server, "GET", &format!("/api/v1/volumes?{bad}"), ""));
        assert_eq!(status, 400, "{bad}");
        let name = bad.split('=').next().unwrap();
        assert!(detail.contains(name), "{bad}: {detail}");
    }
}

#[test]
fn bad_bodies_are_refused_by_the_name_of_their_field() {
    let server = TestServer::start();
    let deep = format!(r#"{{"name":{}1"#, "[".repeat(200_000));
    let cases: &[(&str, u16, &str)] = &[
        ("", 400, "missing"),
        ("{", 400, "EOF"),
        ("[]", 400, "JSON object"),
        (r#"["a",4096,null]"#, 400, "JSON object"),
        ("null", 400, "JSON object"),
        ("\u{feff}{}", 400, "JSON object"),
        (r#"{"name":"a"}"#, 400, "size_bytes"),
        (r#"{"name":"a","size_bytes":4096,"colour":1}"#, 400, "'colour'"),
        (r#"{"name":"a","size_bytes":4096,"name":"b"}"#, 400, "duplicate field `name`"),
        (r#"{"name":"a","size_bytes":4096} x"#, 400, "trailing"),
        (r#"{"name":"a","size_bytes":-1}"#, 400, "'size_bytes'"),
        (r#"{"name":"a","size_bytes":18446744073709551616}"#, 400, "'size_bytes'"),
        (r#"{"name":"a","size_bytes":1e999999}"#, 400, "'size_bytes'"),
        (r#"{"name":"a","size_bytes":4096.0}"#, 400, "'size_bytes'"),
        (r#"{"name":"a","size_bytes":"4096"}"#, 400, "'size_bytes'"),
        (r#"{"name":"a","size_bytes":0}"#, 400, "size_bytes is 0"),
        (r#"{"name":"a","size_bytes":4097}"#, 400, "multiple of 4096"),
        (r#"{"name":"a","size_bytes":18446744073709551615}"#, 400, "at most"),
        (r#"{"name":7,"size_bytes":4096}"#, 400, "'name'"),
        (r#"{"name":"a\u0000b","size_bytes":4096}"#, 400, "'\\0'"),
        (r#"{"name":"a/b","size_bytes":4096}"#, 400, "'/'"),
        (r#"{"name":"","size_bytes":4096}"#, 400, "empty"),
        (r#"{"name":"<img src=x>","size_bytes":4096}"#, 400, "'<'"),
        (r#"{"name":"a","size_bytes":4096,"policy":"../x"}"#, 400, "policy name"),
        (&deep, 400, "'name'"),
    ];
    for (body, want, word) in cases {
        let (status, _, detail) = refused(ask(&server, "POST", "/api/v1/volumes", body));
        let shown: String = body.chars().take(60).collect();
        assert_eq!(status, *want, "{shown}: {detail}");
        assert!(detail.contains(word), "{shown}: {detail}");
        assert!(detail.len() < 600, "{shown}: the answer echoes too much");
    }
    assert_eq!(server.state().made, 0);
    let long = format!(r#"{{"name":"{}","size_bytes":4096}}"#, "x".repeat(1000));
    assert!(refused(ask(&server, "POST", "/api/v1/volumes", &long)).2.contains("1000 bytes"));
    // Not JSON by its own words.
    let request = "POST /api/v1/volumes HTTP/1.1\r\nhost: t\r\ncontent-type: text/plain\r\n\
                   content-length: 2\r\n\r\n{}";
    assert_eq!(raw(&server, request.as_bytes()).0, 415);
}

/// A raw request that must be refused, and with what.
fn abuse(server: &TestServer, request: &[u8], want: u16) -> Value {
    let (status, head, body) = raw(server, request);
    let shown = String::from_utf8_lossy(&request[..request.len().min(80)]).into_owned();
    assert_eq!(status, want, "{shown}: {head}");
    assert!(head.contains("application/problem+json"), "{shown}: {head}");
    let problem: Value = serde_json::from_slice(&body).unwrap_or_else(|e| panic!("{shown}: {e}"));
    assert_eq!(problem["status"], want, "{shown}");
    problem
}

#[test]
fn requests_that_no_client_sends_are_refused_and_harm_nobody() {
    let server = TestServer::start();
    let post = "POST /api/v1/volumes HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\n";
    // Sizes. The body is never read: the refusal comes at once.
    let huge = format!("{post}content-length: 10737418240\r\n\r\n");
    assert_eq!(abuse(&server, huge.as_bytes(), 413)["code"], "E0105");
    let mut mega = format!("{post}content-length: 1048577\r\n\r\n").into_bytes();
    mega.resize(mega.len() + 1_048_577, b'[');
    abuse(&server, &mega, 413);
    let many: String = (0..20_000).map(|i| format!("x-{i}: y\r\n")).collect();
    let headers = format!("GET /api/v1/volumes HTTP/1.1\r\nhost: t\r\n{many}\r\n");
    assert_eq!(abuse(&server, headers.as_bytes(), 431)["code"], "E0106");
    let some: String = (0..150).map(|i| format!("x-{i}: y\r\n")).collect();
    let headers = format!("GET /api/v1/volumes HTTP/1.1\r\nhost: t\r\n{some}\r\n");
    abuse(&server, headers.as_bytes(), 431);
    let long = format!("GET /{} HTTP/1.1\r\nhost: t\r\n\r\n", "a".repeat(300_000));
    let (status, _, _) = raw(&server, long.as_bytes());
    assert!(matches!(status, 414 | 431), "{status}");
    // Two lengths.
    let both = format!("{post}content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n");
    abuse(&server, both.as_bytes(), 400);
    let chunked = format!("{post}transfer-encoding: chunked\r\n\r\nzz\r\n");
    abuse(&server, chunked.as_bytes(), 400);
    let twice = format!("{post}content-length: 2\r\ncontent-length: 3\r\n\r\n{{}}");
    abuse(&server, twice.as_bytes(), 400);
    let negative = format!("{post}content-length: -1\r\n\r\n");
    abuse(&server, negative.as_bytes(), 400);
    // Not HTTP, or not ours.
    abuse(&server, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400);
    abuse(&server, b"GET /a\0b HTTP/1.1\r\nhost: t\r\n\r\n", 400);
    abuse(&server, b"GET /api/v1/volumes/a%00b HTTP/1.1\r\nhost: t\r\n\r\n", 400);
    abuse(&server, b"GET /api/v1/volumes/a%2fb HTTP/1.1\r\nhost: t\r\n\r\n", 400);
    abuse(&server, b"GET /api/v1/volumes/a%0d%0aX HTTP/1.1\r\nhost: t\r\n\r\n", 400);
    abuse(&server, b"GET /../../etc/passwd HTTP/1.1\r\nhost: t\r\n\r\n", 404);
    abuse(&server, b"GET /api/v2/volumes HTTP/1.1\r\nhost: t\r\n\r\n", 404);
    abuse(&server, b"TRACE /api/v1/volumes HTTP/1.1\r\nhost: t\r\n\r\n", 405);
    abuse(&server, b"BREW /metrics HTTP/1.1\r\nhost: t\r\n\r\n", 405);
    let foreign = format!("{post}origin: https://evil.example\r\ncontent-length: 2\r\n\r\n{{}}");
    abuse(&server, foreign.as_bytes(), 403);
    let bodied = b"GET /api/v1/status HTTP/1.1\r\nhost: t\r\ncontent-length: 2\r\n\r\n{}";
    abuse(&server, bodied, 400);
    // And everybody else is served.
    assert_eq!(ask(&server, "GET", "/api/v1/status", "").0, 200);
    assert_eq!(server.state().made, 0);
}

#[test]
fn clients_that_say_nothing_keep_nobody_waiting() {
    let server = TestServer::start();
    let idle: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(server.tcp).unwrap()).collect();
    for mut stream in &idle {
        let _ = stream.write_all(b"GET /api/v1/sta");
    }
    assert_eq!(ask(&server, "GET", "/api/v1/status", "").0, 200);
    drop(idle);
    assert_eq!(ask(&server, "GET", "/api/v1/status", "").0, 200);
}

/// A body that the type of that name accepts.
fn example(name: &str) -> &'static str {
    match name {
        "DiskWipeRequest" => r#"{"path":"/dev/a","force":true}"#,
        "ClusterPatch" => r#"{"promised_limit_percent":1500}"#,
        "GroupCreate" => r#"{"disks":["/dev/a"]}"#,
        "Policy" => r#"{"name":"p","failures_to_tolerate":1}"#,
        "PolicyCheckRequest" => r#"{"size_bytes":4096}"#,
        "VolumeCreate" => r#"{"name":"new","size_bytes":4096}"#,
        "VolumePatch" | "VolumeResize" => r#"{"size_bytes":8192}"#,
        "VolumeLockRequest" => r#"{"purpose":"import"}"#,
        "ResyncPatch" => r#"{"paused":true}"#,
        "TokenCreate" => r#"{"name":"new","role":"viewer"}"#,
        "HostJoin" => r#"{"name":"host9","release":"1","unix_ms":0,"request":""}"#,
        "ScrubStart" | "JoinTokenCreate" => "{}",
        other => panic!("no example of {other}"),
    }
}

/// A request to a route, path and body; what it is about is there.
fn request(server: &TestServer, route: &Route) -> (String, &'static str) {
    let create = r#"{"name":"vm1","size_bytes":4096}"#;
    let policy = r#"{"name":"default","failures_to_tolerate":1}"#;
    ask(server, "POST", "/api/v1/policies", policy);
    ask(server, "POST", "/api/v1/volumes", create);
    let names: Vec<&str> = route
        .path_parameters()
        .map(|name| match name {
            "volume" => "vm1",
            "host" => "host1",
            "policy" => "default",
            "task" => "good",
            "group" => "g1",
            "token" => "none",
            other => panic!("no example of {other}"),
        })
        .collect();
    let token = if route.query.contains(&"token") { "?token=0000000000000007" } else { "" };
    (route.target(&names) + token, route.body.map(example).unwrap_or_default())
}

/// Who may, and which host does it: as the table says.
#[test]
fn the_table_decides_who_may_and_who_does_it() {
    let server = TestServer::start();
    let only_read = TestServer::with(Access { names: vec!["test:80".into()], ..Access::default() });
    for &op in Op::ALL {
        let route = op.route();
        let (path, body) = request(&server, route);
        let (status, _, answer) = send(&only_read, route.method, &path, &[], body);
        let refused = status == 403 && answer["code"] == "E0401";
        assert_eq!(refused, route.role > Role::Viewer, "{op:?}: {status} {answer}");
        server.state().scope = None;
        send(&server, route.method, &path, &[], body);
        let wanted = match route.place {
            Place::Any | Place::Asked => None,
            Place::All | Place::Holder(_) => Some(Scope::Cluster),
            Place::Named(_) if op == Op::GroupCreate => Some(Scope::Local),
            Place::Named(_) => Some(Scope::Host("host1".into())),
        };
        assert_eq!(server.state().scope, wanted, "{op:?}");
    }
    let (host, group) = (Scope::Host("host2".into()), Scope::Group("g2".into()));
    for (method, path, body, wanted) in [
        ("GET", "/hosts/host2/disks", "", &host),
        ("POST", "/hosts/host2/disks:wipe", r#"{"path":"/dev/a","force":true}"#, &host),
        ("POST", "/groups", r#"{"disks":["/dev/a"],"host":"host2"}"#, &host),
        ("POST", "/scrubs", r#"{"group":"g2"}"#, &group),
        ("POST", "/scrubs?scope=local", r#"{"group":"g2"}"#, &Scope::Local),
        ("DELETE", "/scrubs?group=g2", "", &group),
        ("DELETE", "/scrubs", "", &Scope::Cluster),
        ("GET", "/volumes?scope=local", "", &Scope::Local),
    ] {
        server.state().scope = None;
        send(&server, method, &format!("{PREFIX}{path}"), &[], body);
        assert_eq!(server.state().scope.as_ref(), Some(wanted), "{method} {path}");
    }
    // What the table does not have needs what its method would.
    for (method, path, want) in
        [("GET", "/api/v1/no", 404), ("POST", "/api/v1/no", 403), ("PUT", "/api/v1/volumes", 403)]
    {
        assert_eq!(send(&only_read, method, path, &[], "").0, want, "{method} {path}");
    }
}

#[test]
fn every_route_is_served_and_documented() {
    let server = TestServer::start();
    let (status, document) = ask(&server, "GET", "/openapi.json", "");
    assert_eq!(status, 200);
    for &op in Op::ALL {
        let route = op.route();
        let (path, body) = request(&server, route);
        let (status, _, answer) = send(&server, route.method, &path, &[], body);
        // The made-up engine refuses some; that is an answer as well.
        let want = match op {
            Op::GroupShow | Op::TokenRemove => 404,
            Op::GroupCreate => 409,
            _ if answer.is_null() => 204,
            _ => 200,
        };
        assert_eq!(status, want, "{} {path}: {answer}", route.method);
        let documented = &document["paths"][format!("{PREFIX}{}", route.path)];
        let operation = &documented[route.method.to_ascii_lowercase()];
        assert!(operation["summary"].is_string(), "{} {path}", route.method);
        if status == 200 {
            conforms(&document, &operation["responses"]["200"], &answer, route.path);
        }
        // Any other method is refused with what is possible.
        let (status, head, _) = send(&server, "PUT", &path, &[], "");
        assert_eq!(status, 405);
        let allow = head.lines().find_map(|line| line.strip_prefix("allow: ")).unwrap();
        assert!(allow.split(", ").any(|method| method == route.method), "{allow}");
    }
}

/// Whether an answer has exactly the fields that its schema says.
fn conforms(document: &Value, response: &Value, answer: &Value, path: &str) {
    let reference = &response["content"]["application/json"]["schema"]["$ref"];
    check(document, &json!({ "$ref": reference }), answer, path);
}

fn check(document: &Value, schema: &Value, value: &Value, at: &str) {
    if let Some(reference) = schema["$ref"].as_str() {
        let target = document.pointer(reference.trim_start_matches('#')).unwrap();
        return check(document, target, value, at);
    }
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => {
            let choices = schema["oneOf"].as_array().unwrap_or_else(|| panic!("{at}: {schema}"));
            assert!(!choices.is_empty());
            return;
        }
    };
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    assert!(kinds.contains(&kind), "{at}: {kind} is not {kinds:?}");
    match value {
        Value::Object(fields) => {
            for required in schema["required"].as_array().into_iter().flatten() {
                assert!(fields.contains_key(required.as_str().unwrap()), "{at}: no {required}");
            }
            // Anything may be in one of which nothing is said.
            let is_free =
                ["properties", "additionalProperties"].iter().all(|k| schema[k].is_null());
            for (name, inner) in fields.iter().filter(|_| !is_free) {
                let property = &schema["properties"][name];
                assert!(property.is_object(), "{at}.{name} is not documented");
                check(document, property, inner, &format!("{at}.{name}"));
            }
        }
        Value::Array(items) => {
            for inner in items {
                check(document, &schema["items"], inner, at);
            }
        }
        Value::String(text) => {
            if let Some(words) = schema["enum"].as_array() {
                assert!(words.iter().any(|word| word == text), "{at}: {text}");
            }
        }
        _ => {}
    }
}

#[test]
fn pages_for_machines() {
    let server = TestServer::start();
    let get =
        |path: &str| raw(&server, format!("GET {path} HTTP/1.1\r\nhost: t\r\n\r\n").as_bytes());
    assert_eq!(get("/healthz").0, 200);
    assert_eq!(get("/readyz").0, 200);
    let (status, head, body) = get("/metrics");
    assert_eq!(status, 200);
    assert!(head.contains("text/plain; version=0.0.4"));
    let page = String::from_utf8(body).unwrap();
    assert_eq!(page, "# HELP atoll_up One.\n# TYPE atoll_up gauge\natoll_up{host=\"host1\"} 1\n");
}

/// Reads on until that has come; all that has.
fn read_until(stream: &mut TcpStream, seen: &mut String, word: &str) -> String {
    let mut chunk = [0; 4096];
    while !seen.contains(word) {
        let n = stream.read(&mut chunk).unwrap();
        assert!(n > 0, "the stream ended: {seen}");
        seen.push_str(&String::from_utf8_lossy(&chunk[..n]));
    }
    seen.clone()
}

#[test]
fn followers_see_what_happens_next() {
    let server = TestServer::start();
    server.fake.event("old", "before");
    let mut stream = TcpStream::connect(server.tcp).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let request = "GET /api/v1/events?follow=1&since=0 HTTP/1.1\r\nhost: t\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut seen = String::new();
    let mut until = |word: &str| read_until(&mut stream, &mut seen, word);
    let first = until("before");
    assert!(first.contains("text/event-stream"), "{first}");
    server.fake.event("new", "afterwards");
    let all = until("afterwards");
    assert_eq!(all.matches("data: ").count(), 2, "each once: {all}");
    // A clock that was put back hides nothing.
    server.fake.event_at(1_000, "early", "by a clock of 1970");
    let all = until("by a clock of 1970");
    assert_eq!(all.matches("data: ").count(), 3, "each once: {all}");
}

#[test]
fn a_follower_misses_no_first_event_of_a_host() {
    let server = TestServer::start();
    let mut stream = TcpStream::connect(server.tcp).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(b"GET /api/v1/events?follow=1 HTTP/1.1\r\nhost: t\r\n\r\n").unwrap();
    let mut seen = String::new();
    let mut until = |word: &str| read_until(&mut stream, &mut seen, word);
    // It has looked once by then, and found nothing.
    until(": alive");
    server.fake.event_at(1_000, "early", "by a clock of 1970");
    until("by a clock of 1970");
}

#[test]
fn over_tcp_a_server_is_only_read_and_answers_to_its_own_names_alone() {
    let server = TestServer::with(Access {
        socket: Some("/run/atoll/api.sock".into()),
        ..Access::default()
    });
    let host = server.tcp.to_string();
    let exchange = |method: &str, headers: &[(&str, &str)], body: &str| {
        let mut request = format!("{method} /api/v1/volumes HTTP/1.1\r\n");
        for (name, value) in headers {
            request += &format!("{name}: {value}\r\n");
        }
        request += &format!("content-length: {}\r\n\r\n{body}", body.len());
        let (status, _, body) = raw(&server, request.as_bytes());
        (status, serde_json::from_slice::<Value>(&body).unwrap())
    };
    let own = ("host", host.as_str());
    let (status, _) = exchange("GET", &[own], "");
    assert_eq!(status, 200);
    let volume = r#"{"name":"vm1","size_bytes":1073741824}"#;
    for headers in [
        // A person's own tool; a form of a web page, which needs no leave to be sent.
        vec![own, ("content-type", "application/json")],
        vec![own, ("content-type", "text/plain")],
    ] {
        let (status, body) = exchange("POST", &headers, volume);
        assert_eq!((status, body["code"].as_str().unwrap()), (403, "E0401"), "{body}");
        let hint = body["hint"].as_str().unwrap();
        assert!(hint.contains("unix:///run/atoll/api.sock"), "{hint}");
        assert!(hint.contains("network.api_writable"), "{hint}");
    }
    let port = format!("evil.example:{}", server.tcp.port());
    for headers in [
        vec![("host", "evil.example")],
        vec![("host", port.as_str())],
        vec![own, ("origin", "http://evil")],
        vec![own, ("origin", "null")],
    ] {
        let (status, body) = exchange("GET", &headers, "");
        assert_eq!((status, body["code"].as_str().unwrap()), (403, "E0112"), "{body}");
    }
    assert!(server.state().volumes.is_empty(), "something was made");
    // The same on the Unix socket is management.
    let mut stream = std::os::unix::net::UnixStream::connect(server.socket()).unwrap();
    let head = "POST /api/v1/volumes HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n";
    let typed = "content-type: application/json\r\n";
    write!(stream, "{head}{typed}content-length: {}\r\n\r\n{volume}", volume.len()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
}

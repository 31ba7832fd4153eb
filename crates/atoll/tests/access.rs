//! The REST server over TLS: who is let in by a token, who is refused, and what he is told.

mod common;

use atoll::config::Config;
use atoll::rest::door::Access;
use atoll_api::client::{Call, Tls, Token};
use atoll_api::routes::{Op, Page, Role};
use atoll_api::types::{AuditEntry, JoinTokenCreate, Token as TokenItem, TokenCreate, TokenMade};
use atoll_api::{Client, Code, Endpoint, Problem};
use atoll_format::id::{ClusterId, HostId};
use atoll_trust::{ApiTrust, Authority, HOST_VALID_S, PeerTls};
use common::TestServer;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

struct Place {
    server: TestServer,
    authority: Authority,
    dir: tempfile::TempDir,
}

fn authority() -> Authority {
    Authority::create(ClusterId(0xc), "test", now_s()).unwrap()
}

fn now_s() -> u64 {
    atoll_real::unix_ms() / 1000
}

impl Place {
    fn new() -> Self {
        let authority = authority();
        let host = authority.equip(HostId(1), now_s(), HOST_VALID_S).unwrap();
        let tls = Some(PeerTls::new(&host).unwrap());
        let server = TestServer::with(Access { tls, ..Access::default() });
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.crt"), authority.certificate()).unwrap();
        Self { server, authority, dir }
    }

    fn ca(&self) -> PathBuf {
        self.dir.path().join("ca.crt")
    }

    fn url(&self) -> String {
        format!("https://{}", self.server.tcp)
    }

    /// A client that believes that authority, and shows that token.
    fn client(&self, authority: &Authority, token: Option<&str>) -> Client {
        let ApiTrust { config, name } = ApiTrust::of(authority.certificate()).unwrap();
        let tls = Tls { config, name, ca: self.ca() };
        let token = token.map(|secret| Token { secret: secret.to_owned(), file: None });
        let endpoint = Endpoint::Tls(self.server.tcp.to_string());
        Client::new(endpoint, Duration::from_secs(20)).with(Some(tls), token)
    }

    /// Asks over TLS.
    fn ask(&self, token: Option<&str>, call: Call) -> Result<(), Problem> {
        let client = self.client(&self.authority, token);
        run(async { client.bytes(call).await.map(drop) })
    }

    fn socket(&self) -> Client {
        Client::new(Endpoint::Unix(self.server.socket.clone()), Duration::from_secs(20))
    }

    /// Makes a token, over the Unix socket.
    fn token(&self, name: &str, role: Role) -> String {
        let request = TokenCreate { name: name.into(), role, valid_s: Some(3600) };
        let made = run(async {
            self.socket().item::<TokenMade>(Call::to(Op::TokenCreate, &[]).json(&request)).await
        });
        made.unwrap().item.secret.unwrap()
    }

    /// `atoll WORDS`, over TLS, with that in its environment.
    fn program(&self, words: &[&str], environment: &[(&str, &str)]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_atoll"));
        command.args(["--endpoint", &self.url()]).args(words);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("ATOLL_") {
                command.env_remove(name);
            }
        }
        command.envs(environment.iter().copied()).output().unwrap()
    }
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn call(op: Op) -> Call {
    let names = vec!["none"; op.route().path_parameters().count()];
    Call::to(op, &names)
}

fn code(answer: Result<(), Problem>) -> Option<Code> {
    answer.err().map(|problem| problem.code)
}

#[test]
fn every_route_refuses_who_has_no_token_and_the_roles_below_its_own() {
    let place = Place::new();
    let tokens = Role::ALL.map(|role| (role, place.token(role.name(), role)));
    for &op in Op::ALL {
        let problem = place.ask(None, call(op)).unwrap_err();
        assert_eq!((problem.code, problem.status), (Code::NotAuthenticated, 401), "{op:?}");
        for (role, token) in &tokens {
            if op == Op::EventList {
                continue; // Its answer is the same, and tested with the stream.
            }
            let answer = place.ask(Some(token), call(op));
            let Err(problem) = answer else { continue };
            let refused = problem.code == Code::NotPermitted;
            assert_eq!(refused, *role < op.route().role, "{op:?} as {role}: {problem}");
            assert_ne!(problem.code, Code::NotAuthenticated, "{op:?} as {role}: {problem}");
            if refused {
                let needed = format!("this needs role {}, and token {role} has", op.route().role);
                assert!(problem.detail.starts_with(&needed), "{problem}");
            }
        }
    }
    for page in [Page::OpenApi, Page::Metrics, Page::Healthz, Page::Readyz] {
        let wanted = page.role().map(|_| Code::NotAuthenticated);
        assert_eq!(code(place.ask(None, Call::page(page))), wanted, "{page:?}");
        assert_eq!(code(place.ask(Some(&tokens[1].1), Call::page(page))), None, "{page:?}");
    }
    // Nothing says without a token what there is.
    let mut missing = call(Op::StatusShow);
    missing.target = "/api/v1/nowhere".into();
    assert_eq!(code(place.ask(None, missing.clone())), Some(Code::NotAuthenticated));
    assert_eq!(code(place.ask(Some(&tokens[1].1), missing)), Some(Code::NoRoute));
}

#[test]
fn tokens_that_are_no_good_are_refused_with_the_reason_and_told_once() {
    let place = Place::new();
    let (good, old) = (place.token("good", Role::Viewer), place.token("old", Role::Admin));
    let gone = place.token("gone", Role::Admin);
    let remove = Call::to(Op::TokenRemove, &["gone"]);
    run(async { place.socket().bytes(remove).await }).unwrap();
    place.server.state().tokens.get_mut("old").unwrap().0.expired = true;
    let other = format!("atoll_{}", "0".repeat(64));
    for (token, says) in [
        ("hunter2", "no token of this program"),
        (&*other, "none of this cluster"),
        (&*gone, "none of this cluster"),
        (&*old, "token old has expired"),
    ] {
        let problem = place.ask(Some(token), call(Op::StatusShow)).unwrap_err();
        assert_eq!((problem.code, problem.status), (Code::NotAuthenticated, 401), "{problem}");
        assert!(problem.detail.contains(says), "{problem}");
        assert!(!problem.to_string().contains(token), "{problem}");
    }
    assert_eq!(code(place.ask(Some(&good), call(Op::StatusShow))), None);
    // Whoever goes on is not listened to for a while, whatever he shows; the socket is open.
    let codes: Vec<_> =
        (0..9).map(|_| code(place.ask(Some(&other), call(Op::StatusShow)))).collect();
    assert_eq!(codes[..6], [Some(Code::NotAuthenticated); 6]);
    assert_eq!(codes[6..], [Some(Code::TooMany); 3]);
    assert_eq!(code(place.ask(Some(&good), call(Op::StatusShow))), Some(Code::TooMany));
    run(async { place.socket().bytes(call(Op::StatusShow)).await }).unwrap();
    let refused = place.server.state().refused.clone();
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert!(refused[0].starts_with("requests from 127.0.0.1 are refused: "), "{refused:?}");
}

#[test]
fn what_is_not_tls_and_who_does_not_believe_the_host_hear_why() {
    let place = Place::new();
    let token = place.token("t", Role::Admin);
    // HTTP without TLS, by hand and by a client.
    let mut stream = TcpStream::connect(place.server.tcp).unwrap();
    write!(stream, "GET /api/v1/status HTTP/1.1\r\nhost: {}\r\n\r\n", place.server.tcp).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 400 "), "{reply}");
    assert!(reply.contains("this address speaks TLS") && reply.contains("https://"), "{reply}");
    let plain = Endpoint::Tcp(place.server.tcp.to_string());
    let plain = Client::new(plain, Duration::from_secs(20));
    let problem = run(async { plain.bytes(call(Op::StatusShow)).await }).unwrap_err();
    assert!(problem.detail.contains("this address speaks TLS"), "{problem}");
    // A client of another authority; one that has none.
    let foreign = place.client(&authority(), Some(&token));
    let problem = run(async { foreign.bytes(call(Op::StatusShow)).await }).unwrap_err();
    assert_eq!(problem.code, Code::CannotConnect, "{problem}");
    assert!(problem.detail.contains("signed by another authority"), "{problem}");
    let said = place.program(&["status"], &[("ATOLL_TOKEN", &token)]);
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    assert_eq!(said.status.code(), Some(2), "{text}");
    assert!(text.contains("--ca FILE"), "{text}");
    // TLS where there is none.
    let server = TestServer::start();
    let endpoint = Endpoint::Tls(server.tcp.to_string());
    let ApiTrust { config, name } = ApiTrust::of(place.authority.certificate()).unwrap();
    let tls = Tls { config, name, ca: place.ca() };
    let client = Client::new(endpoint, Duration::from_secs(20)).with(Some(tls), None);
    let problem = run(async { client.bytes(call(Op::StatusShow)).await }).unwrap_err();
    assert!(problem.detail.contains("what it sends is not TLS"), "{problem}");
}

#[test]
fn the_program_makes_shows_uses_and_removes_tokens() {
    let place = Place::new();
    let root = place.token("root", Role::Admin);
    let file = place.dir.path().join("token");
    std::fs::write(&file, format!("{root}\n")).unwrap();
    let (ca, file) = (place.ca(), file.to_str().unwrap().to_owned());
    let access = ["--ca", ca.to_str().unwrap(), "--token-file", &file];
    let atoll = |words: &[&str]| {
        let done = place.program(&[&access[..], words].concat(), &[]);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (done.status.code().unwrap(), text(&done.stdout), text(&done.stderr))
    };
    let words = ["token", "create", "--name", "ci", "--role", "operator", "--expires", "90d"];
    let (status, none, said) = atoll(&[&words[..], &["--dry-run"]].concat());
    assert_eq!((status, &*none), (0, ""), "{said}");
    let (status, secret, said) = atoll(&words);
    assert_eq!(status, 0, "{said}");
    let secret = secret.trim_end();
    assert!(secret.starts_with("atoll_") && secret.len() == 70, "{said}");
    assert!(said.contains("token ci, role operator, until 2027-02-18") && !said.contains(secret));
    assert_eq!(atoll(&words).0, 4, "the name is taken");
    let (_, list, _) = atoll(&["token", "list"]);
    assert!(list.contains("ci") && list.contains("operator") && !list.contains(secret), "{list}");
    let (_, list, _) = atoll(&["token", "list", "-o", "json"]);
    let list: atoll_api::List<TokenItem> = serde_json::from_str(&list).unwrap();
    assert_eq!(list.items.len(), 2);
    // The new one, in the environment.
    let of_ci = |words: &[&str]| {
        let environment = [("ATOLL_TOKEN", secret), ("ATOLL_CA", ca.to_str().unwrap())];
        place.program(words, &environment)
    };
    let status = |words: &[&str]| of_ci(words).status.code().unwrap();
    assert_eq!(status(&["volume", "create", "v1", "1G"]), 0);
    assert_eq!(status(&["policy", "create", "p1"]), 5);
    assert_eq!(status(&["token", "list"]), 5);
    let shown = of_ci(&["volume", "list", "--curl", "-v"]);
    let shown = [shown.stdout, shown.stderr].concat();
    let shown = String::from_utf8_lossy(&shown);
    assert!(shown.contains("$ATOLL_TOKEN") && !shown.contains(secret), "{shown}");
    assert_eq!(atoll(&["token", "remove", "ci"]).0, 0);
    assert_eq!(atoll(&["token", "remove", "ci"]).0, 3);
    assert_eq!(status(&["volume", "list"]), 5);
    // What is no token is not repeated.
    let done = place.program(&["status"], &[("ATOLL_TOKEN", "hunter2")]);
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.code() == Some(2) && !said.contains("hunter2"), "{said}");
}

#[test]
fn every_change_is_written_down_with_who_asked_and_what_came_of_it() {
    let place = Place::new();
    let tokens = Role::ALL.map(|role| (role, place.token(role.name(), role)));
    let uid = std::fs::metadata(&place.server.socket).unwrap().uid();
    let made = std::mem::take(&mut place.server.state().deeds);
    assert_eq!(made.len(), Role::ALL.len());
    for deed in &made {
        let who = format!("uid:{uid}");
        assert_eq!((&*deed.who, deed.role, &*deed.from), (&*who, Role::Admin, "socket"));
        assert_eq!((&*deed.operation, &*deed.target), ("TokenCreate", "/api/v1/tokens"));
        assert_eq!(
            (deed.status, deed.body.as_ref().unwrap()["valid_s"].as_u64()),
            (200, Some(3600))
        );
    }
    for &op in Op::ALL.iter().filter(|&&op| op != Op::EventList) {
        for (role, token) in &tokens {
            let answer = place.ask(Some(token), call(op));
            let deeds = std::mem::take(&mut place.server.state().deeds);
            let refused = *role < op.route().role;
            let wanted = op.route().is_change() || refused;
            assert_eq!(deeds.len(), usize::from(wanted), "{op:?} as {role}: {deeds:?}");
            let Some(deed) = deeds.first() else { continue };
            assert_eq!(deed.who, format!("token:{}", role.name()));
            assert_eq!((deed.role, &*deed.from), (*role, "127.0.0.1"));
            assert_eq!(deed.operation, format!("{op:?}"));
            assert_eq!(deed.target, call(op).target);
            match answer {
                Ok(()) => assert!((200..300).contains(&deed.status) && deed.code.is_empty()),
                Err(problem) => {
                    let told = (problem.status, problem.code.to_string(), problem.detail);
                    assert_eq!((deed.status, deed.code.clone(), deed.detail.clone()), told);
                }
            }
        }
    }
    // Who is nobody has done nothing, and fills nothing.
    place.ask(None, call(Op::VolumeDelete)).unwrap_err();
    place.ask(Some(&format!("atoll_{}", "0".repeat(64))), call(Op::VolumeDelete)).unwrap_err();
    assert_eq!(place.server.state().deeds, []);
    // A lock's token is as good as the lock.
    let unlock = call(Op::VolumeUnlock).query("token", "0123456789abcdef");
    let _ = place.ask(Some(&tokens[2].1), unlock);
    let deeds = std::mem::take(&mut place.server.state().deeds);
    assert_eq!(deeds[0].target, "/api/v1/volumes/none/lock?token=*");
    let all = serde_json::to_string(&[made, deeds].concat()).unwrap();
    assert!(tokens.iter().all(|(_, token)| !all.contains(token.as_str())), "{all}");
}

#[test]
fn a_change_whose_client_goes_away_is_written_down_too() {
    let place = Place::new();
    place.server.state().delay = Duration::from_secs(2);
    let mut stream = UnixStream::connect(&place.server.socket).unwrap();
    let body = r#"{"name":"v","size_bytes":1048576}"#;
    write!(
        stream,
        "POST /api/v1/volumes HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    run(async { tokio::time::sleep(Duration::from_millis(300)).await });
    drop(stream);
    for _ in 0..200 {
        if let Some(deed) = place.server.state().deeds.first() {
            assert_eq!((&*deed.operation, deed.status), ("VolumeCreate", 0));
            assert_eq!(deed.body.as_ref().unwrap()["name"], "v");
            return;
        }
        run(async { tokio::time::sleep(Duration::from_millis(50)).await });
    }
    panic!("nothing is written down");
}

#[test]
fn the_program_lists_what_was_written_down() {
    let place = Place::new();
    let token = place.token("root", Role::Admin);
    let ca = place.ca();
    let access = [("ATOLL_TOKEN", &*token), ("ATOLL_CA", ca.to_str().unwrap())];
    assert_eq!(place.program(&["volume", "delete", "v7", "--yes"], &access).status.code(), Some(3));
    let text = |words: &[&str]| {
        let done = place.program(words, &access);
        assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    };
    let list = text(&["audit", "list"]);
    let line = list.lines().find(|line| line.contains("VolumeDelete")).expect(&list);
    for part in ["token:root", "127.0.0.1", "VolumeDelete  /volumes/v7 ", "404 E0201"] {
        assert!(line.contains(part), "{part}: {list}");
    }
    let line = list.lines().find(|line| line.contains("TokenCreate")).expect(&list);
    assert!(line.contains("/tokens {\"name\":\"root\",\"role\":\"admin\""), "{list}");
    let json: atoll_api::List<AuditEntry> =
        serde_json::from_str(&text(&["audit", "list", "-o", "json"])).unwrap();
    assert_eq!(json.items.len(), 2);
    assert!(text(&["audit", "list", "-o", "wide"]).contains("there is no volume 'v7'"));
}

#[test]
fn who_follows_events_is_cut_off_when_his_token_is_removed() {
    let place = Place::new();
    let token = place.token("t", Role::Viewer);
    place.server.fake.event("kind", "something");
    let client = place.client(&place.authority, Some(&token));
    run(async {
        let call = Call::to(Op::EventList, &[]).query("follow", "1").query("since", "0");
        let mut stream = client.stream(call).await.unwrap();
        assert!(stream.next().await.unwrap().is_some());
        place.server.state().tokens.remove("t");
        let end = tokio::time::timeout(Duration::from_secs(10), async {
            while stream.next().await.unwrap().is_some() {}
        });
        end.await.expect("the stream ends");
    });
}

#[test]
fn connections_of_the_network_leave_room_for_the_socket() {
    let place = Place::new();
    let idle: Vec<TcpStream> =
        (0..300).map(|_| TcpStream::connect(place.server.tcp).unwrap()).collect();
    let client = Client::new(Endpoint::Unix(place.server.socket.clone()), Duration::from_secs(5));
    for _ in 0..20 {
        run(async { client.bytes(call(Op::StatusShow)).await }).unwrap();
    }
    drop(idle);
}

/// A machine that is no host yet, and tokens for it.
struct NewHost {
    dir: tempfile::TempDir,
}

impl NewHost {
    fn new(network: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        std::fs::create_dir(&data).unwrap();
        let text = format!("[host]\nname = \"new\"\ndata_dir = {data:?}\n{network}");
        std::fs::write(dir.path().join("atoll.toml"), text).unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    /// From now on this machine has that program as its etcd.
    fn has_program(&self, text: &str) {
        std::fs::create_dir_all(self.path("bin")).unwrap();
        std::fs::write(self.path("bin/etcd"), text).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(self.path("bin/etcd"), mode).unwrap();
    }

    /// From now on this machine has that release of etcd.
    fn has_etcd(&self, release: &str) {
        self.has_program(&format!("#!/bin/sh\necho {release}\n"));
    }

    /// Where programs are looked for.
    fn etcd_first(&self) -> String {
        let path = std::env::var("PATH").unwrap_or_default();
        format!("{}:{path}", self.path("bin").display())
    }

    /// `atoll cluster WORDS` here, with that token in a file: status, output, what it says.
    fn cluster(&self, words: &[&str], token: Option<&str>) -> (i32, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_atoll"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("ATOLL_") {
                command.env_remove(name);
            }
        }
        // Wherever its daemon would be asked.
        command.env("ATOLL_ENDPOINT", "https://127.0.0.1:1").arg("cluster").args(words);
        command.env("PATH", self.etcd_first());
        command.arg("--config").arg(self.path("atoll.toml"));
        if let Some(token) = token {
            std::fs::write(self.path("token"), token).unwrap();
            command.arg("--token-file").arg(self.path("token"));
        }
        let done = command.stdin(std::process::Stdio::null()).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (done.status.code().unwrap(), text(&done.stdout), text(&done.stderr))
    }
}

impl Place {
    /// Has the server admit machines, and makes a token for one.
    fn join_token(&self, pinned: &Authority) -> String {
        let mut state = self.server.state();
        let key = self.authority.key();
        state.authority = Some(Authority::from_pem(self.authority.certificate(), &key).unwrap());
        let of = pinned.equip(HostId(9), now_s(), 60).unwrap();
        state.authority_sha256 = of.authority_sha256();
        // The first one is nobody's.
        state.addresses = vec!["127.0.0.1:1".into(), self.server.tcp.to_string()];
        state.now_s = now_s();
        state.etcd_ca = Some("the authority of etcd".into());
        drop(state);
        let made: atoll_api::Item<atoll_api::types::JoinTokenMade> = run(async {
            let call = Call::to(Op::JoinTokenCreate, &[]);
            self.socket().item(call.json(&JoinTokenCreate::default())).await.unwrap()
        });
        assert!(!format!("{made:?}").contains("atoll_"), "its secret is not for logs");
        made.item.secret.unwrap()
    }
}

#[test]
fn a_machine_joins_by_a_token_and_is_configured_for_its_cluster() {
    let place = Place::new();
    let token = place.join_token(&place.authority);
    let new = NewHost::new("");
    let (status, _, said) = new.cluster(&["join", "--dry-run"], Some(&token));
    assert_eq!(status, 0, "{said}");
    assert!(said.contains("would be written") && !new.path("data/trust").exists(), "{said}");
    let (status, out, said) = new.cluster(&["join", "-o", "json"], Some(&token));
    assert_eq!(status, 0, "{said}");
    let made: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(made["kind"], "HostMade");
    assert_eq!(made["item"]["host"], "0000000000000007");
    // Asked whether it might, each time before it did.
    assert_eq!(place.server.state().joined, ["new"; 3]);
    let given = atoll_trust::Credentials::load(&new.path("data/trust")).unwrap();
    assert_eq!(given.identity().host, HostId(7));
    assert_eq!(given.authority(), place.authority.certificate());
    assert_eq!(new.text("data/trust/etcd-ca.crt"), "the authority of etcd");
    let data = new.path("data");
    let data = data.to_str().unwrap();
    let wanted = format!(
        "# Written by 'atoll cluster join'. Later files of this directory win over it.\n\
         [network]\napi = \"127.0.0.1:8460\"\npeer = [\"127.0.0.1:8461\"]\n\
         [directory]\nkind = \"etcd\"\nendpoints = [\"10.0.0.1:2379\"]\nprefix = \"/atoll\"\n\
         ca = \"{data}/trust/etcd-ca.crt\"\ncertificate = \"{data}/trust/host.crt\"\n\
         key = \"{data}/trust/host.key\"\n"
    );
    assert_eq!(new.text("conf.d/cluster.toml"), wanted);
    assert!(!said.contains("atoll_") && !out.contains("atoll_"), "{said} {out}");
    // It is a host now, whatever it is given.
    let again = place.join_token(&place.authority);
    let (status, _, said) = new.cluster(&["join"], Some(&again));
    assert_eq!(status, 4, "{said}");
    assert!(said.contains("this machine is a host already"), "{said}");
    assert_eq!(new.cluster(&["init"], None).0, 4);
    // By the same token, nobody else is.
    let (status, _, said) = NewHost::new("").cluster(&["join"], Some(&token));
    assert_eq!(status, 5, "{said}");
}

#[test]
fn a_token_that_is_no_good_is_refused_before_or_by_the_cluster_and_leaves_no_host() {
    let place = Place::new();
    let token = place.join_token(&place.authority);
    let foreign = place.join_token(&authority());
    let asking = place.token("ci", Role::Admin);
    for (given, status, why) in [
        (&*foreign, 20, "another authority"),
        (&token[..token.len() - 3], 2, "a piece of it is missing"),
        (&asking, 2, "for asking, not for joining"),
        ("hunter2", 2, "no token for joining"),
        ("", 2, "no token for joining"),
    ] {
        let new = NewHost::new("");
        let (found, _, said) = new.cluster(&["join"], Some(given));
        assert_eq!(found, status, "{said}");
        assert!(said.contains(why) && !said.contains("hunter2"), "{said}");
        assert!(!said.contains("atoll_"), "{said}");
        assert!(
            !new.path("data/trust/host.crt").exists() && !new.path("conf.d/cluster.toml").exists()
        );
    }
    // What was refused has used nothing up; and what was configured stays.
    let new = NewHost::new("[network]\npeer = [\"127.0.0.7:1\"]\napi = \"127.0.0.7:2\"\n");
    let (status, _, said) = new.cluster(&["join"], Some(&token));
    assert_eq!(status, 0, "{said}");
    assert!(!new.text("conf.d/cluster.toml").contains("[network]"));
    // Nor has a configuration that would be no good with what the cluster says; and what an earlier
    // attempt has left in it is not taken for somebody's choice.
    let again = place.join_token(&place.authority);
    place.server.state().etcd_ca = None;
    let new = NewHost::new("");
    std::fs::create_dir(new.path("conf.d")).unwrap();
    let left = "# Written by 'atoll cluster join'.\n[network]\npeer = [\"127.0.0.9:1\"]\n";
    std::fs::write(new.path("conf.d/cluster.toml"), left).unwrap();
    let (status, _, said) = new.cluster(&["join"], Some(&again));
    assert!(status == 1 && said.contains("directory.") && said.contains("still good"), "{said}");
    assert_eq!(
        (new.text("conf.d/cluster.toml"), new.path("data/trust").exists()),
        (left.into(), false)
    );
    place.server.state().etcd_ca = Some("the authority of etcd".into());
    std::fs::write(new.path("data/cluster-id"), "000000000000000d\n").unwrap();
    let (status, _, said) = new.cluster(&["join"], Some(&again));
    assert!(status == 4 && said.contains("has belonged to cluster 000000000000000d"), "{said}");
    std::fs::write(new.path("data/cluster-id"), "000000000000000c\n").unwrap();
    let (status, _, said) = new.cluster(&["join"], Some(&again));
    assert_eq!(status, 0, "{said}");
    assert!(new.text("conf.d/cluster.toml").contains("peer = [\"127.0.0.1:8461\"]"));
    let homeless = NewHost::new("");
    std::fs::remove_dir(homeless.path("data")).unwrap();
    let (status, _, said) = homeless.cluster(&["join"], Some(&again));
    assert!(status == 1 && said.contains("does not exist"), "{said}");
    let old = NewHost::new("[network]\ntls = false\n");
    assert_eq!(old.cluster(&["join"], Some(&token)).0, 4);
    let own = NewHost::new("");
    std::fs::create_dir(own.path("conf.d")).unwrap();
    std::fs::write(own.path("conf.d/cluster.toml"), "[log]\nlevel = \"info\"\n").unwrap();
    let (status, _, said) = own.cluster(&["join"], Some(&token));
    assert!(status == 4 && said.contains("not of this command's making"), "{said}");
}

#[test]
fn the_first_host_gets_an_authority_a_certificate_and_its_configuration() {
    let new = NewHost::new("");
    let etcd = ["init", "--address", "127.0.0.9", "--etcd", "127.0.0.1:2379,127.0.0.2:2379"];
    let (status, _, said) = new.cluster(&[&etcd[..], &["--dry-run"]].concat(), None);
    assert!(status == 0 && !new.path("data/trust").exists(), "{said}");
    // What an init that was cut off has made is not made again: somebody may have copied it.
    let before = authority();
    before.save(&new.path("data/authority")).unwrap();
    let (status, out, said) = new.cluster(&etcd, None);
    assert_eq!(status, 0, "{said}");
    assert!(said.contains("next: atoll host prepare --check"), "{said}");
    assert!(out.contains("127.0.0.9:8461"), "{out}");
    let authority = Authority::load(&new.path("data/authority")).unwrap();
    let given = atoll_trust::Credentials::load(&new.path("data/trust")).unwrap();
    assert_eq!(given.identity().cluster, authority.cluster());
    assert_eq!(authority.sha256().unwrap(), before.sha256().unwrap());
    let text = new.text("conf.d/cluster.toml");
    assert!(text.contains("endpoints = [\"127.0.0.1:2379\",\"127.0.0.2:2379\"]"), "{text}");
    assert_eq!(new.cluster(&etcd, None).0, 4, "it is one already");
    // What the configuration does not take leaves nothing behind.
    let bad = NewHost::new("");
    let (status, _, said) =
        bad.cluster(&["init", "--address", "127.0.0.9", "--etcd", "nowhere"], None);
    assert!(status == 1 && said.contains("directory.endpoints"), "{said}");
    assert!(!bad.path("data/authority").exists() && !bad.path("conf.d/cluster.toml").exists());
    let (status, _, said) = bad.cluster(&["init", "--address", "127.0.0.9", "--embedded"], None);
    assert!(status == 0 && said.contains("other machines cannot join"), "{said}");
    assert!(!bad.path("data/etcd").exists());
}

#[test]
fn the_first_host_begins_an_etcd_of_its_own_if_the_program_is_good() {
    let new = NewHost::new("");
    let init = ["init", "--address", "127.0.0.9"];
    for (release, why) in [
        ("nothing of it", "does not tell its release"),
        ("etcd Version: 3.4.21", "3.4.22 or newer is needed"),
        ("etcd Version: none", "'none', which is none"),
    ] {
        new.has_etcd(release);
        let (status, _, said) = new.cluster(&init, None);
        assert!(status != 0 && said.contains(why) && said.contains("etcd-server"), "{said}");
        assert!(!new.path("data/authority").exists() && !new.path("data/etcd").exists());
        assert!(!new.path("conf.d/cluster.toml").exists());
    }
    new.has_etcd("etcd Version: 3.6.9");
    let (status, _, said) = new.cluster(&init, None);
    assert!(status == 0 && said.contains("atoll cluster join-token"), "{said}");
    let configured = Config::load(&new.path("atoll.toml"), []).unwrap();
    assert!(configured.managed, "{}", new.text("conf.d/cluster.toml"));
    let at = configured.member.unwrap();
    assert_eq!(at.clients.to_string(), "127.0.0.9:2379");
    assert_eq!(at.peers.to_string(), "127.0.0.9:2380");
    let start = new.text("data/etcd/member.json");
    let given = atoll_trust::Credentials::load(&new.path("data/trust")).unwrap();
    let member = format!("{}=https://127.0.0.9:2380", given.identity().host);
    assert!(start.contains(&member) && start.contains("\"is_first\": true"), "{start}");

    // It becomes etcd, with what the files say and nothing of its environment.
    let etcd = "#!/bin/sh\necho etcd Version: 3.6.9\nenv\nfor word; do echo \"$word\"; done\n";
    new.has_program(etcd);
    let mut run = Command::new(env!("CARGO_BIN_EXE_atoll"));
    run.args(["etcd", "run", "--config"]).arg(new.path("atoll.toml"));
    let done = run.env("PATH", new.etcd_first()).env("ETCD_NAME", "another").output().unwrap();
    let said = String::from_utf8(done.stdout).unwrap();
    let words: Vec<&str> = said.lines().collect();
    let data = new.path("data");
    for word in [
        format!("--name={}", given.identity().host),
        format!("--data-dir={}/etcd/first-{}", data.display(), given.identity().host),
        format!("--initial-cluster-token={}", given.identity().host),
        format!("--initial-cluster={member}"),
        "--initial-cluster-state=new".into(),
        "--listen-client-urls=https://127.0.0.9:2379".into(),
        "--client-cert-auth=true".into(),
        "--peer-client-cert-auth=true".into(),
        format!("--trusted-ca-file={}/trust/authority.crt", data.display()),
        format!("--client-crl-file={}/etcd/revoked.crl", data.display()),
        "--peer-skip-client-san-verification=true".into(),
    ] {
        assert!(words.contains(&&*word), "{word} is not in {said}");
    }
    assert!(!said.contains("ETCD_") && !said.contains("PRIVATE"), "{said}");
    assert!(new.text("data/etcd/revoked.crl").contains("BEGIN X509 CRL"));

    // Without a member it waits, and whoever looks for it finds it there, however often.
    let file = new.path("data/etcd/member.json");
    std::fs::rename(&file, new.path("away")).unwrap();
    let mut run = Command::new(env!("CARGO_BIN_EXE_atoll"));
    run.args(["etcd", "run", "--config"]).arg(new.path("atoll.toml"));
    let piped = std::process::Stdio::piped;
    let mut waits = run.env("PATH", new.etcd_first()).stdout(piped()).spawn().unwrap();
    let find = |port: u16| TcpStream::connect(("127.0.0.9", port));
    while find(2380).is_err() {
        assert_eq!(waits.try_wait().unwrap(), None, "it waits");
        std::thread::yield_now();
    }
    for _ in 0..300 {
        for port in [2379, 2380] {
            let mut found = find(port).unwrap();
            found.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            let closed = found.read(&mut [0]);
            assert!(closed.is_ok_and(|bytes| bytes == 0), "closed at once");
        }
    }
    std::fs::rename(new.path("away"), &file).unwrap();
    let done = waits.wait_with_output().unwrap();
    assert!(String::from_utf8_lossy(&done.stdout).contains("--initial-cluster="), "it is etcd");

    // Who has none says so, and does not wait for one.
    let alone = NewHost::new("");
    let mut run = Command::new(env!("CARGO_BIN_EXE_atoll"));
    let done =
        run.args(["etcd", "run", "--config"]).arg(alone.path("atoll.toml")).output().unwrap();
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(done.status.code() == Some(4) && said.contains("has no member of etcd"), "{said}");
}

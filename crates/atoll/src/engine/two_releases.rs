//! A host beside one of an older release, over real sockets: the engine behind its REST server, and
//! a node whose answers are those of a release that knows fewer questions.

use super::directory::HostDirectory;
use super::event_files::EventFiles;
use super::host::HostNode;
use super::{Bound, Engine, EngineControl, Plan, shard};
use crate::audit::AuditLog;
use crate::bridge::bridge;
use crate::config::Config;
use crate::lock::DataDir;
use crate::rest::door::Access;
use crate::rest::listen::Listeners;
use atoll_api::client::Call;
use atoll_api::envelope::{Missing, Named};
use atoll_api::routes::Op;
use atoll_api::types::{DiskWipe, DiskWipeRequest, Profile, Session, Volume};
use atoll_api::{Client, Code, Endpoint, Problem};
use atoll_format::id::{HostId, Incarnation};
use atoll_format::level::Levels;
use atoll_node::{EventsKept, Life, Manager, NodeConfig, find_or_found};
use atoll_real::directory::{DirectoryClient, DirectoryServer};
use atoll_real::{RealNet, Siblings};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

const OLD: &str = "0.0.9";

/// What a release before the others were there is asked.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", tag = "do")]
enum OldRequest {
    Tell { question: OldQuestion },
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", tag = "of")]
enum OldQuestion {
    VolumeUse,
}

/// Answers as that release does: nobody uses a volume there.
fn old_manager() -> Manager {
    Rc::new(|_from, request| {
        Box::pin(async move {
            match serde_json::from_str(&request) {
                Ok(OldRequest::Tell { question: OldQuestion::VolumeUse }) => {
                    r#"{"Ok":{"items":[],"next":null}}"#.into()
                }
                Err(error) => {
                    let why = format!("the host does not understand it: {error}");
                    let refused: Result<(), _> = Err(Problem::new(Code::WrongServer, why));
                    serde_json::to_string(&refused).unwrap()
                }
            }
        })
    })
}

/// Starts the older host.
async fn start_old(directory: &Path, data: &Path) -> HostNode {
    let any = ["127.0.0.1:0".parse().unwrap()];
    let net = RealNet::bind_for(&any, &Siblings::of(1), None).unwrap();
    let peers = net.addresses().iter().map(ToString::to_string).collect();
    let client = DirectoryClient::connect(directory).await.unwrap();
    let world = shard::world(net, HostDirectory::Embedded(client)).unwrap();
    let (cluster, _) = find_or_found(&world, None, Levels::KNOWN).await.unwrap();
    let config = NodeConfig {
        cluster: cluster.id,
        host: HostId(2),
        name: "old".into(),
        fault_domain: "old".into(),
        peers,
        api: String::new(),
        release: OLD.into(),
        levels: Levels::KNOWN,
    };
    std::fs::create_dir_all(data).unwrap();
    let (files, events, _) = EventFiles::open(data, HostId(2));
    let kept = EventsKept { events, sink: Rc::new(files) };
    let life = Life { incarnation: Incarnation(1), outlived: Vec::new() };
    let node = HostNode::start(world, config, life, Vec::new(), kept);
    node.set_manager(old_manager());
    node.arrive().await;
    node
}

/// The configuration of the host of this release.
fn config(dir: &Path, directory: &Path) -> Config {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let text = format!(
        "[host]\nname = \"new\"\ndata_dir = {data:?}\n\
         [network]\napi = \"\"\napi_socket = {api:?}\npeer = [\"127.0.0.1:{port}\"]\ntls = false\n\
         [directory]\nsocket = {directory:?}\n\
         [frontends]\nnbd = {{ unix = {nbd:?} }}\n",
        data = dir.join("data"),
        api = dir.join("api"),
        nbd = dir.join("nbd"),
    );
    let path = dir.join("atoll.toml");
    std::fs::write(&path, text).unwrap();
    Config::load(&path, []).unwrap()
}

async fn missing<T: DeserializeOwned + Named>(client: &Client, op: Op) -> Vec<Missing> {
    client.list::<T>(Call::to(op, &[])).await.unwrap().missing
}

async fn asks() {
    let dir = tempfile::tempdir().unwrap();
    let directory = dir.path().join("directory");
    let server = DirectoryServer::open(&dir.path().join("file")).unwrap();
    let listening = server.listen(&directory).unwrap();
    let (over, stop) = watch::channel(false);
    let mut stopped = stop.clone();
    let serving = tokio::task::spawn_local(listening.serve(async move {
        let _ = stopped.wait_for(|stop| *stop).await;
    }));
    let config = config(dir.path(), &directory);
    let (data, socket) =
        (DataDir::lock(&config.data_dir).unwrap(), config.api_socket.clone().unwrap());
    let audit = Arc::new(AuditLog::open(&config.data_dir));
    let plan = Plan::new(config, None, audit.clone(), 1, 4);
    let bound = Bound::new(&plan).await.unwrap();
    let engine = Engine::new(plan, HostId(1), Vec::new());
    let (near, handle) = bridge::<Engine>();
    tokio::task::spawn_local(handle.serve(engine.clone()));
    let (living, halt) = (engine.clone(), stop.clone());
    let living = tokio::task::spawn_local(async move { living.live(bound, &data, halt).await });
    let listeners = Listeners::bind(None, Some(&socket)).await.unwrap();
    let rest = listeners.serve(EngineControl::new(near, audit), Access::default(), stop);
    let rest = tokio::task::spawn_local(rest);
    let old = start_old(&directory, &dir.path().join("old")).await;
    let client = Client::new(Endpoint::Unix(socket), Duration::from_secs(20));

    // Load is known there, too: from when the two know each other, nobody is missing.
    let known = async {
        loop {
            let hosts = client.list::<atoll_api::types::Host>(Call::to(Op::HostList, &[])).await;
            if hosts.is_ok_and(|hosts| hosts.items.len() == 2 && hosts.missing.is_empty()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), known).await.expect("they know each other");
    assert_eq!(missing::<Volume>(&client, Op::VolumeList).await, []);
    let why = format!("is of release {OLD}, which does not know of it");
    let without = [Missing { host: "old".into(), why: why.clone() }];
    assert_eq!(missing::<Session>(&client, Op::SessionList).await, without);
    let profiles = client.list::<Profile>(Call::to(Op::ProfileList, &[])).await.unwrap();
    assert_eq!(profiles.missing, without);
    let of = |host: &str| profiles.items.iter().find(|profile| profile.host == host).unwrap();
    assert_eq!((&*of("new").detail, &*of("old").detail), ("", &*format!("host old {why}")));

    // What only that host could do is refused for the same reason.
    let disks = client.bytes(Call::to(Op::DiskList, &["old"])).await.unwrap_err();
    assert_eq!((disks.code, disks.detail), (Code::Unavailable, format!("host old {why}")));
    let request = DiskWipeRequest { path: "/dev/a".into(), force: true };
    let wipe = Call::to(Op::DiskWipe, &["old"]).json(&request);
    let wipe = client.item::<DiskWipe>(wipe).await.unwrap_err();
    let undone = format!("host old did not do it: its release {OLD} does not know of it");
    assert_eq!((wipe.code, wipe.detail), (Code::Unavailable, undone));

    old.stop().await;
    over.send(true).unwrap();
    rest.await.unwrap();
    living.await.unwrap().unwrap();
    serving.await.unwrap().unwrap();
}

#[test]
fn a_host_whose_release_does_not_know_a_question_is_named_in_the_answer() {
    atoll_real::Shard::start("test", asks).unwrap().join().unwrap();
}

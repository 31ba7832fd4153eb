//! The directory over real etcd: the conformance suite, members that die, hang or are cut off,
//! and an etcd that is full, foreign, compacted or spoken to over TLS.

mod members;

use atoll_etcd::{EtcdConfig, EtcdDirectory};
use atoll_world::Nanos;
use atoll_world::directory::{
    Compare, Directory, DirectoryError, KeyChange, Revision, Txn, TxnReply, Watch,
};
use members::{Etcd, Tls, on_a_shard};
use rustix::process::Signal;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

fn put(key: &str, value: &str) -> Txn {
    Txn { compares: vec![], changes: vec![KeyChange::Put(key.into(), value.into())] }
}

/// The revision of a change that must succeed, tried until it does.
async fn write(directory: &EtcdDirectory, key: &str, value: &str) -> Revision {
    loop {
        match directory.txn(put(key, value)).await {
            Ok(TxnReply::Done(revision)) => return revision,
            Ok(conflict) => panic!("no comparison, no conflict: {conflict:?}"),
            Err(DirectoryError::Unavailable(_) | DirectoryError::Unknown(_)) => {
                sleep(Duration::from_millis(100)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

async fn value(directory: &EtcdDirectory, key: &str) -> Option<String> {
    let entry = directory.get(key).await.expect("it is answered");
    entry.map(|entry| String::from_utf8(entry.value).expect("text"))
}

#[test]
fn etcd_conforms_with_one_member_and_with_three() {
    for count in [1, 3] {
        on_a_shard(240, async {
            let etcd = Etcd::start(count);
            let mut clients = Vec::new();
            for _ in 0..3 {
                clients.push(etcd.connect().await);
            }
            let sleep = |span: Nanos| sleep(Duration::from_nanos(span.0));
            atoll_directory::conformance::run(&clients, sleep).await;
        });
    }
}

#[test]
fn keys_are_below_the_prefix_and_clusters_with_other_prefixes_do_not_meet() {
    on_a_shard(60, async {
        let etcd = Etcd::start_at("[::1]", 1, &[], None);
        let first = etcd.connect().await;
        let other = EtcdConfig { prefix: "/other".into(), ..etcd.config() };
        let second = EtcdDirectory::connect(other).await.expect("it serves");
        write(&first, "hosts/1", "{}").await;
        assert_eq!(second.list("").await.expect("answered").entries, []);
        first.touch("h1", 60_000).await.expect("answered");
        let found = raw_keys(&etcd).await;
        assert_eq!(found, ["/atoll/alive/h1", "/atoll/keys/hosts/1"], "readable with etcdctl");
    });
}

async fn raw_keys(etcd: &Etcd) -> Vec<String> {
    let options = etcd_client::GetOptions::new().with_all_keys();
    let found = etcd.raw(0).await.get("", Some(options)).await.expect("answered");
    found.kvs().iter().map(|kv| kv.key_str().expect("text").to_owned()).collect()
}

#[test]
fn a_listing_longer_than_one_part_is_of_one_revision() {
    on_a_shard(60, async {
        let etcd = Etcd::start(1);
        let directory = etcd.connect().await;
        for hundred in 0..10 {
            let changes =
                (0..100).map(|i| KeyChange::Put(format!("many/{hundred}{i:02}"), b"{}".to_vec()));
            let txn = Txn { compares: vec![], changes: changes.collect() };
            directory.txn(txn).await.expect("answered");
        }
        write(&directory, "many0", "behind the prefix").await;
        let listing = directory.list("many/").await.expect("answered");
        assert_eq!(listing.entries.len(), 1000);
        assert!(listing.entries.is_sorted_by(|a, b| a.key < b.key));
    });
}

#[test]
fn a_transaction_whose_answer_is_lost_is_unknown_and_settled_by_the_revision() {
    on_a_shard(60, async {
        let etcd = Etcd::start(1);
        let directory = etcd.connect().await;
        let before = write(&directory, "a", "1").await;
        etcd.signal(0, Signal::STOP);
        let compares = vec![Compare { key: "a".into(), modified: before }];
        let txn = Txn { compares, ..put("a", "2") };
        let begun = Instant::now();
        let lost = directory.txn(txn.clone()).await;
        assert!(matches!(lost, Err(DirectoryError::Unknown(_))), "{lost:?}");
        assert!(begun.elapsed() < Duration::from_millis(5_500), "it has a deadline");
        // Now that no member answers nothing is sent any more.
        let refused = directory.txn(put("b", "1")).await;
        assert!(matches!(refused, Err(DirectoryError::Unavailable(_))), "{refused:?}");
        etcd.signal(0, Signal::CONT);
        write(&directory, "c", "1").await;
        assert_eq!(value(&directory, "b").await, None, "what was refused was never sent");
        // etcd carries out what it finds when it goes on, unless it sees first that nobody waits.
        match directory.txn(txn).await.expect("answered") {
            TxnReply::Conflict(found) => {
                assert_eq!(found[0].1.as_ref().expect("there").value, b"2");
            }
            TxnReply::Done(_) => assert_eq!(value(&directory, "a").await.as_deref(), Some("2")),
        }
    });
}

#[test]
fn the_death_of_the_member_in_use_is_survived_by_requests_and_watches() {
    on_a_shard(180, async {
        let mut etcd = Etcd::start(3);
        let (writer, watcher) = (etcd.connect().await, etcd.connect().await);
        let start = write(&writer, "n", "0").await;
        let mut watch = watcher.watch("n", start).await.expect("open");
        let mut seen = Vec::new();
        let mut last = start;
        for round in 0..9 {
            for i in 0..5 {
                last = write(&writer, "n", &format!("{round}.{i}")).await;
            }
            let member = round % 3;
            etcd.kill(member);
            last = write(&writer, "n", &format!("{round} without {member}")).await.max(last);
            etcd.start_member(member);
            while seen.last().is_none_or(|&revision| revision < last) {
                match timeout(Duration::from_secs(20), watch.next()).await.expect("it tells") {
                    Ok(events) => seen.extend(events.iter().map(|event| event.revision)),
                    Err(DirectoryError::Unavailable(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
        // Nothing but `n` is written, so every revision must have been told, and once.
        assert!(seen.is_sorted_by(|a, b| a < b), "in order, and none twice");
        let expected: Vec<_> = (start.0 + 1..=last.0).map(Revision).collect();
        assert_eq!(seen, expected, "none is missing");
    });
}

#[test]
fn a_member_that_hangs_is_noticed_though_nothing_is_asked_and_idleness_is_not_taken_amiss() {
    on_a_shard(120, async {
        let etcd = Etcd::start(3);
        let directory = etcd.connect().await;
        let start = write(&directory, "n", "0").await;
        let mut watch = directory.watch("n", start).await.expect("open");
        // By default etcd disconnects who pings more often than every five seconds and says
        // nothing else.
        let idle = timeout(Duration::from_secs(20), watch.next()).await;
        assert!(idle.is_err(), "an idle connection stays: {idle:?}");
        let used = |survey: &atoll_etcd::Survey| survey.members.iter().position(|m| m.used);
        let hung = used(&directory.survey().await).expect("one is used");
        etcd.signal(hung, Signal::STOP);
        let noticed = timeout(Duration::from_secs(6), watch.next()).await;
        let error = noticed.expect("a dead member is noticed").expect_err("it says nothing");
        assert!(matches!(error, DirectoryError::Unavailable(_)), "{error}");
        let last = write(&directory, "n", "1").await;
        let events = watch.next().await.expect("from another member");
        assert_eq!(events[0].revision, last);
        let survey = directory.survey().await;
        assert_ne!(used(&survey), Some(hung));
        assert!(survey.members[hung].health.is_err() && survey.has_leader());
        etcd.signal(hung, Signal::CONT);
    });
}

#[test]
fn a_lost_quorum_is_said_and_changes_wait_until_it_is_back() {
    on_a_shard(120, async {
        let mut etcd = Etcd::start(3);
        let directory = etcd.connect().await;
        write(&directory, "n", "0").await;
        etcd.kill(1);
        etcd.kill(2);
        let mut last = String::new();
        for _ in 0..20 {
            match directory.txn(put("n", "1")).await {
                Err(DirectoryError::Unavailable(why)) => last = why,
                Err(DirectoryError::Unknown(_)) => {}
                other => panic!("no quorum, no change: {other:?}"),
            }
            if last.contains("quorum is lost") {
                break;
            }
        }
        assert!(last.contains("quorum is lost"), "{last}");
        let survey = directory.survey().await;
        assert!(!survey.has_leader() && survey.healthy().count() == 1, "{survey:?}");
        // An outage that goes on is told soon.
        sleep(Duration::from_secs(5)).await;
        let begun = Instant::now();
        assert!(directory.get("n").await.is_err());
        assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
        etcd.start_member(1);
        write(&directory, "n", "2").await;
        assert_eq!(value(&directory, "n").await.as_deref(), Some("2"));
        assert!(directory.survey().await.leader().is_some());
    });
}

#[test]
fn a_watch_from_before_a_compaction_says_so() {
    on_a_shard(60, async {
        let etcd = Etcd::start(1);
        let directory = etcd.connect().await;
        let start = write(&directory, "n", "0").await;
        for i in 0..10 {
            write(&directory, "n", &format!("{i}")).await;
        }
        let listing = directory.list("n").await.expect("answered");
        let revision = listing.revision.0.cast_signed();
        etcd.raw(0).await.compact(revision, None).await.expect("compacted");
        let mut watch = directory.watch("n", start).await.expect("not asked yet");
        assert_eq!(watch.next().await, Err(DirectoryError::Compacted));
        let mut watch = directory.watch("n", listing.revision).await.expect("not asked yet");
        let last = write(&directory, "n", "new").await;
        assert_eq!(watch.next().await.expect("events")[0].revision, last);
    });
}

#[test]
fn a_full_etcd_refuses_in_words_and_serves_again_once_there_is_room() {
    on_a_shard(120, async {
        let etcd = Etcd::start_with(1, &["--quota-backend-bytes", "2000000"], None);
        let directory = etcd.connect().await;
        let large = "x".repeat(200_000);
        let mut refused = None;
        for i in 0..100 {
            match directory.txn(put(&format!("n{i}"), &large)).await {
                // Its size is counted ten times a second.
                Ok(_) => sleep(Duration::from_millis(20)).await,
                Err(error) => {
                    refused = Some(error);
                    break;
                }
            }
        }
        let Some(DirectoryError::Refused(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains("NOSPACE") && why.contains("full"), "{why}");
        let survey = directory.survey().await;
        assert!(survey.is_full() && survey.db_bytes() > 1_000_000, "{survey:?}");
        assert_eq!(value(&directory, "n0").await.as_deref(), Some(large.as_str()), "it reads");
    });
}

#[test]
fn a_member_of_another_etcd_is_never_used_and_is_named() {
    on_a_shard(60, async {
        let (mut ours, other) = (Etcd::start(1), Etcd::start(1));
        ours.connect().await;
        other.connect().await;
        let endpoints = vec![ours.endpoint(0), other.endpoint(0)].into();
        let directory =
            EtcdDirectory::connect(EtcdConfig { endpoints, ..ours.config() }).await.expect("one");
        write(&directory, "n", "1").await;
        let kept = if raw_keys(&ours).await.is_empty() { &other } else { &ours };
        assert_eq!(raw_keys(kept).await.len(), 1);
        let survey = directory.survey().await;
        let told: Vec<_> = survey.members.iter().filter_map(|m| m.health.as_ref().err()).collect();
        assert!(told.len() == 1 && told[0].contains("belongs to another etcd"), "{survey:?}");
        if survey.members[0].used {
            ours.kill(0);
            let error = directory.get("n").await.expect_err("ours is gone").to_string();
            assert!(error.contains("belongs to another etcd"), "{error}");
        }
    });
}

#[test]
fn nobody_there_is_said_of_every_member() {
    on_a_shard(60, async {
        let mut etcd = Etcd::start(2);
        etcd.kill(0);
        etcd.kill(1);
        let error = EtcdDirectory::connect(etcd.config()).await.err().expect("nobody is there");
        let (said, each) = (error.to_string(), [etcd.endpoint(0), etcd.endpoint(1)]);
        assert!(each.iter().all(|endpoint| said.contains(endpoint)), "{said}");
        assert!(said.contains("refused"), "{said}");
    });
}

#[test]
fn tls_is_spoken_and_a_wrong_authority_or_no_certificate_is_said() {
    on_a_shard(60, async {
        let folder = tempfile::tempdir().expect("a folder");
        let etcd = Etcd::start_with(1, &[], Some(Tls::new(folder.path())));
        let directory = etcd.connect().await;
        write(&directory, "n", "1").await;
        assert_eq!(value(&directory, "n").await.as_deref(), Some("1"));

        let of = |edit: fn(&mut atoll_etcd::TlsFiles, &Tls), other: &Tls| {
            let mut config = etcd.config();
            edit(config.tls.as_mut().expect("set"), other);
            async move { EtcdDirectory::connect(config).await.err().expect("refused").to_string() }
        };
        let elsewhere = tempfile::tempdir().expect("a folder");
        let other = Tls::new(elsewhere.path());
        let said = of(|tls, other| tls.ca.clone_from(&other.ca), &other).await;
        assert!(said.contains("certificate"), "{said}");
        let said = of(|tls, _| tls.identity = None, &other).await;
        assert!(said.to_lowercase().contains("certificate"), "{said}");
        let said = of(|tls, other| tls.identity = Some(other.client.clone()), &other).await;
        assert!(said.to_lowercase().contains("certificate"), "{said}");
        let said = of(|tls, _| tls.ca = "/nowhere/ca.pem".into(), &other).await;
        assert!(said.contains("/nowhere/ca.pem"), "{said}");
        let plain = EtcdConfig { tls: None, ..etcd.config() };
        let said = EtcdDirectory::connect(plain).await.err().expect("refused").to_string();
        assert!(said.contains(&etcd.endpoint(0)), "{said}");
    });
}

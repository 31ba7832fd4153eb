//! What every implementation of [`Directory`] must do: one suite for memory, file, socket, and
//! whatever comes later. It states the contract of `world::directory`; a failed check panics with
//! the sentence that was broken.
//!
//! It asks only for what is promised: reads and watches may be stale, so it waits for them; a
//! watch may stop with an error, so it resumes. It never relies on being alone in the directory,
//! only on being alone under its own prefix.

use atoll_world::Nanos;
use atoll_world::directory::{
    Compare, Directory, DirectoryError, Entry, KeyChange, Listing, Revision, Txn, TxnReply, Watch,
    WatchEvent,
};
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::future::Future;

/// How often a stale answer is asked for again before it counts as wrong: 20 ms x 500 = 10 s.
const PATIENCE: u32 = 500;
/// Clients that count together, and how far each counts.
const COUNTERS: usize = 6;
const COUNTS: usize = 25;

/// Runs the whole suite. `clients` reach one directory, in which nothing else uses keys that
/// start with `conformance/`; `sleep` waits in the time that hints expire by.
///
/// # Panics
/// With the sentence that does not hold.
pub async fn run<D, S, F>(clients: &[D], sleep: S)
where
    D: Directory,
    S: Fn(Nanos) -> F,
    F: Future<Output = ()>,
{
    assert!(!clients.is_empty(), "the suite needs a client");
    let suite = Suite { clients, sleep };
    suite.clear().await;
    suite.a_key_is_created_changed_and_deleted().await;
    suite.a_conflict_shows_the_present_state_of_every_compared_key().await;
    suite.a_transaction_changes_all_keys_at_one_revision_or_none().await;
    suite.revisions_rise().await;
    suite.what_is_beyond_the_limits_is_refused_and_changes_nothing().await;
    suite.lists_are_sorted_and_keep_to_their_prefix().await;
    suite.changes_are_what_was_written_since_and_the_number_of_keys().await;
    suite.a_watch_reports_every_change_in_order_and_only_its_prefix().await;
    suite.a_watch_resumes_where_the_last_one_ended().await;
    suite.a_watch_from_too_long_ago_says_so_and_a_list_helps().await;
    suite.no_update_of_many_counting_clients_is_lost().await;
    suite.hints_appear_and_expire().await;
    suite.clear().await;
}

struct Suite<'a, D, S> {
    clients: &'a [D],
    sleep: S,
}

fn key(name: &str) -> String {
    format!("conformance/{name}")
}

fn put(name: &str, value: impl Into<Vec<u8>>) -> KeyChange {
    KeyChange::Put(key(name), value.into())
}

fn delete(name: &str) -> KeyChange {
    KeyChange::Delete(key(name))
}

fn at(name: &str, modified: Revision) -> Compare {
    Compare { key: key(name), modified }
}

impl<D, S, F> Suite<'_, D, S>
where
    D: Directory,
    S: Fn(Nanos) -> F,
    F: Future<Output = ()>,
{
    fn client(&self, i: usize) -> &D {
        &self.clients[i % self.clients.len()]
    }

    /// One transaction that must be answered.
    async fn txn(&self, compares: Vec<Compare>, changes: Vec<KeyChange>) -> TxnReply {
        let txn = Txn { compares, changes };
        self.client(0).txn(txn).await.expect("the directory answers")
    }

    /// Changes without a condition; its revision.
    async fn write(&self, changes: Vec<KeyChange>) -> Revision {
        match self.txn(vec![], changes).await {
            TxnReply::Done(revision) => revision,
            TxnReply::Conflict(seen) => panic!("a conflict without a comparison: {seen:?}"),
        }
    }

    /// One key, at `revision` or later.
    async fn read(&self, name: &str, revision: Revision) -> Option<Entry> {
        for _ in 0..PATIENCE {
            // `list` and not `get` tells how fresh an answer is.
            let listing = self.list(&key(name)).await;
            if listing.revision >= revision {
                let got = self.client(1).get(&key(name)).await.expect("get is answered");
                let listed = listing.entries.into_iter().find(|e| e.key == key(name));
                if got == listed {
                    return got;
                }
            }
            (self.sleep)(Nanos::from_ms(20)).await;
        }
        panic!("reads never reach revision {} of an acknowledged transaction", revision.0);
    }

    async fn list(&self, prefix: &str) -> Listing {
        self.client(1).list(prefix).await.expect("list is answered")
    }

    async fn clear(&self) {
        loop {
            let entries = self.list("conformance/").await.entries;
            if entries.is_empty() {
                break;
            }
            for part in entries.chunks(100) {
                let changes = part.iter().map(|e| KeyChange::Delete(e.key.clone())).collect();
                self.write(changes).await;
            }
        }
    }

    async fn a_key_is_created_changed_and_deleted(&self) {
        assert_eq!(self.read("one", Revision(0)).await, None);
        let absent = vec![at("one", Revision(0))];
        let TxnReply::Done(made) = self.txn(absent.clone(), vec![put("one", "a")]).await else {
            panic!("an absent key has revision 0")
        };
        let entry = self.read("one", made).await.expect("it was created");
        assert_eq!((entry.value.as_slice(), entry.modified), (b"a".as_slice(), made));
        assert!(
            matches!(self.txn(absent, vec![put("one", "b")]).await, TxnReply::Conflict(_)),
            "a key that exists does not compare equal to revision 0"
        );
        let TxnReply::Done(changed) = self.txn(vec![at("one", made)], vec![put("one", "")]).await
        else {
            panic!("a comparison with the present revision holds")
        };
        let entry = self.read("one", changed).await.expect("it was changed");
        assert_eq!((entry.value.as_slice(), entry.modified), (b"".as_slice(), changed));
        let TxnReply::Done(gone) = self.txn(vec![at("one", changed)], vec![delete("one")]).await
        else {
            panic!("a comparison with the present revision holds")
        };
        assert_eq!(self.read("one", gone).await, None, "a deleted key is gone");
        let TxnReply::Done(again) = self.txn(vec![], vec![delete("one")]).await else {
            panic!("deleting nothing is no conflict")
        };
        assert!(again >= gone);
        let made = self.txn(vec![at("one", Revision(0))], vec![put("one", "c")]).await;
        assert!(matches!(made, TxnReply::Done(r) if r > gone), "a deleted key is absent");
    }

    async fn a_conflict_shows_the_present_state_of_every_compared_key(&self) {
        let revision = self.write(vec![put("seen", "x"), delete("unseen")]).await;
        let compares = vec![
            at("unseen", Revision(0)),
            at("seen", Revision(revision.0 + 7)),
            at("seen", revision),
        ];
        let seen = self.txn(compares, vec![put("seen", "y")]).await;
        let entry = Entry { key: key("seen"), value: b"x".to_vec(), modified: revision };
        assert_eq!(
            seen,
            TxnReply::Conflict(vec![
                (key("unseen"), None),
                (key("seen"), Some(entry.clone())),
                (key("seen"), Some(entry.clone())),
            ]),
            "one failed comparison is a conflict that shows all compared keys in order"
        );
        assert_eq!(self.read("seen", revision).await, Some(entry), "a conflict changes nothing");
    }

    async fn a_transaction_changes_all_keys_at_one_revision_or_none(&self) {
        let names: Vec<String> = (0..100).map(|i| format!("all/{i:03}")).collect();
        let changes = |value: &str| names.iter().map(|n| put(n, value)).collect::<Vec<_>>();
        let revision = self.write(changes("1")).await;
        self.read("all/000", revision).await;
        let listing = self.list(&key("all/")).await;
        assert_eq!(listing.entries.len(), names.len());
        assert!(listing.entries.iter().all(|e| e.modified == revision && e.value == b"1"));
        let stale = vec![at("all/007", revision), at("all/050", Revision(revision.0 - 1))];
        assert!(matches!(self.txn(stale, changes("2")).await, TxnReply::Conflict(_)));
        assert_eq!(self.list(&key("all/")).await.entries, listing.entries, "all or nothing");
        let mixed = vec![put("all/000", "3"), delete("all/001"), put("all/new", "3")];
        let TxnReply::Done(mixed) = self.txn(vec![at("all/099", revision)], mixed).await else {
            panic!("a comparison with the present revision holds")
        };
        assert_eq!(self.read("all/000", mixed).await.expect("there").modified, mixed);
        assert_eq!(self.read("all/001", mixed).await, None);
        assert_eq!(self.read("all/new", mixed).await.expect("there").modified, mixed);
    }

    async fn revisions_rise(&self) {
        let mut last = Revision(0);
        for i in 0..20 {
            let changes = vec![put("rise", format!("{i}"))];
            let txn = Txn { compares: vec![], changes };
            let reply = self.client(i).txn(txn).await.expect("the directory answers");
            let TxnReply::Done(revision) = reply else { panic!("no comparison, no conflict") };
            assert!(revision > last, "revision {} came after {}", revision.0, last.0);
            last = revision;
        }
    }

    async fn what_is_beyond_the_limits_is_refused_and_changes_nothing(&self) {
        let largest = vec![0xa5; atoll_format::record::VALUE_MAX];
        let revision = self.write(vec![put("limit", largest.clone())]).await;
        let entry = self.read("limit", revision).await.expect("the largest value is kept");
        assert_eq!(entry.value, largest);
        let long = "k".repeat(4096);
        let too_large = [largest, vec![0]].concat();
        for (what, changes) in [
            ("no change", vec![]),
            ("a value beyond the limit", vec![put("limit", too_large)]),
            ("a key beyond the limit", vec![put("limit", "z"), put(&long, "z")]),
            ("an empty key", vec![put("limit", "z"), KeyChange::Delete(String::new())]),
            ("one key twice", vec![put("limit", "z"), delete("limit")]),
            ("too many changes", (0..2000).map(|i| put(&format!("limit/{i}"), "z")).collect()),
        ] {
            let reply = self.client(0).txn(Txn { compares: vec![], changes }).await;
            assert!(
                matches!(reply, Err(DirectoryError::Refused(_))),
                "{what} is refused, and not {reply:?}"
            );
        }
        let after = self.list(&key("limit")).await.entries;
        assert_eq!(after, [entry], "a refused transaction changes nothing");
    }

    async fn lists_are_sorted_and_keep_to_their_prefix(&self) {
        let names = ["p/b", "p/a", "p", "p0", "q/a", "p/\u{e9}", "p/a/b"];
        let revision = self.write(names.map(|n| put(n, n)).to_vec()).await;
        self.read("p", revision).await;
        let keys = |listing: &Listing| -> Vec<String> {
            listing.entries.iter().map(|e| e.key.clone()).collect()
        };
        let listing = self.list(&key("p/")).await;
        assert_eq!(keys(&listing), ["p/a", "p/a/b", "p/b", "p/\u{e9}"].map(key));
        assert!(listing.revision >= revision);
        assert_eq!(self.list(&key("p/c")).await.entries, [], "nothing there");
        let whole = keys(&self.list("").await);
        assert!(whole.is_sorted() && names.iter().all(|n| whole.contains(&key(n))));
    }

    async fn changes_are_what_was_written_since_and_the_number_of_keys(&self) {
        // More than one part of an answer has.
        const KEYS: usize = 600;
        let mut since = Revision(0);
        for part in (0..KEYS).collect::<Vec<_>>().chunks(100) {
            let changes = part.iter().map(|i| put(&format!("c/{i:03}"), "0")).collect();
            since = self.write(changes).await;
        }
        self.read("c/000", since).await;
        let changes = async |since| {
            let got = self.client(1).changes(&key("c/"), since).await;
            let got = got.expect("changes are answered");
            let keys: Vec<String> = got.entries.iter().map(|e| e.key.clone()).collect();
            (keys, got)
        };
        let (keys, all) = changes(Revision(0)).await;
        assert_eq!((keys.len(), all.keys), (KEYS, KEYS as u64), "since ever: all");
        assert!(keys.is_sorted() && all.revision >= since);
        let (keys, none) = changes(since).await;
        assert_eq!((keys.len(), none.keys), (0, KEYS as u64), "since the last write: none");
        self.write(vec![put("c/007", "1"), put("c/008", "1"), delete("c/000")]).await;
        self.write(vec![delete("c/008"), put("c/new", "1")]).await;
        let last = self.write(vec![put("c0", "not below the prefix")]).await;
        self.read("c0", last).await;
        let (keys, some) = changes(since).await;
        assert_eq!(keys, [key("c/007"), key("c/new")], "what was written since and is there");
        assert_eq!(some.entries[0].value, b"1");
        assert_eq!(some.keys, KEYS as u64 - 1, "two have gone, one has come");
        assert!(some.revision >= last);
        let many = (0..100).map(|i| put(&format!("c/{:03}", 100 + i), "2")).collect();
        let mut last = self.write(many).await;
        for hundred in 2..5 {
            let many = (0..100).map(|i| put(&format!("c/{:03}", 100 * hundred + i), "2"));
            last = self.write(many.collect()).await;
        }
        self.read("c/499", last).await;
        let (keys, _) = changes(since).await;
        assert_eq!(keys.len(), 402, "in as many parts as it takes");
        assert!(keys.is_sorted());
    }

    /// Events under `prefix` after `after`, until those of `last` have come; a broken watch is
    /// opened again from the last revision seen.
    async fn events(&self, prefix: &str, after: Revision, last: Revision) -> Vec<WatchEvent> {
        let mut seen: Vec<WatchEvent> = Vec::new();
        let mut patience = PATIENCE;
        'open: loop {
            let from = seen.last().map_or(after, |e| e.revision);
            let mut watch =
                self.client(1).watch(&key(prefix), from).await.expect("the events are kept");
            loop {
                match watch.next().await {
                    Ok(events) => seen.extend(events),
                    Err(DirectoryError::Unavailable(_)) if patience > 0 => {
                        patience -= 1;
                        continue 'open;
                    }
                    Err(error) => panic!("a watch over events that are kept: {error}"),
                }
                if seen.last().is_some_and(|e| e.revision >= last) {
                    return seen;
                }
            }
        }
    }

    async fn a_watch_reports_every_change_in_order_and_only_its_prefix(&self) {
        let start = self.write(vec![put("w/a", "0"), put("v", "0")]).await;
        let mut expected = Vec::new();
        let writer = async {
            for i in 0..10 {
                let value = format!("{i}");
                let revision = self
                    .write(vec![put("w/a", value.as_str()), put("v", "-"), put("w/b", "b")])
                    .await;
                let event = |name: &str, value: Option<&str>| WatchEvent {
                    revision,
                    key: key(name),
                    value: value.map(|v| v.as_bytes().to_vec()),
                };
                expected.push(event("w/a", Some(value.as_str())));
                expected.push(event("w/b", Some("b")));
                let revision = self.write(vec![delete("w/b"), delete("v")]).await;
                expected.push(WatchEvent { revision, key: key("w/b"), value: None });
                (self.sleep)(Nanos::from_ms(1)).await;
            }
            let last = self.write(vec![put("w/end", "")]).await;
            expected.push(WatchEvent { revision: last, key: key("w/end"), value: Some(vec![]) });
        };
        // The watch is open while the changes are made.
        let watcher = async {
            let mut watch =
                self.client(1).watch(&key("w/"), start).await.expect("the present is kept");
            let mut seen = Vec::new();
            while seen.last().is_none_or(|e: &WatchEvent| e.key != key("w/end")) {
                seen.extend(watch.next().await.expect("events that are kept"));
            }
            seen
        };
        let (seen, ()) = futures_util::future::join(watcher, writer).await;
        let sorted = |events: &[WatchEvent]| {
            // The order of keys within one transaction is not promised.
            let mut events = events.to_vec();
            events.sort_by(|a, b| (a.revision, &a.key).cmp(&(b.revision, &b.key)));
            events
        };
        assert!(seen.is_sorted_by_key(|e| e.revision), "events come in order");
        assert_eq!(sorted(&seen), sorted(&expected), "every change under the prefix, no other");
    }

    async fn a_watch_resumes_where_the_last_one_ended(&self) {
        let mut revisions = vec![self.write(vec![put("resume", "0")]).await];
        for i in 1..=10 {
            revisions.push(self.write(vec![put("resume", format!("{i}"))]).await);
        }
        for (i, &after) in revisions[..10].iter().enumerate() {
            let events = self.events("resume", after, revisions[10]).await;
            let seen: Vec<Revision> = events.iter().map(|e| e.revision).collect();
            assert_eq!(seen, revisions[i + 1..], "exactly what came after {}", after.0);
        }
    }

    async fn a_watch_from_too_long_ago_says_so_and_a_list_helps(&self) {
        let start = self.write(vec![put("old", "0")]).await;
        // More events than any bounded history is likely to keep. One that keeps them all is
        // right, too, if it gives them all out.
        const ROUNDS: usize = 160;
        const KEYS: usize = 100;
        for round in 0..ROUNDS {
            let changes = (0..KEYS).map(|i| put(&format!("old/{i}"), format!("{round}")));
            self.write(changes.collect()).await;
        }
        let end = self.write(vec![put("old", "end")]).await;
        let mut after = start;
        let mut seen = 0;
        let mut watch = match self.client(1).watch(&key("old"), after).await {
            Ok(watch) => Some(watch),
            Err(DirectoryError::Compacted) => None,
            Err(error) => panic!("a watch from long ago is Compacted, not: {error}"),
        };
        while let Some(open) = &mut watch {
            match open.next().await {
                Ok(events) => {
                    seen += events.len();
                    after = events.last().map_or(after, |e| e.revision);
                    if after >= end {
                        assert_eq!(seen, ROUNDS * KEYS + 1, "a watch without a gap");
                        return;
                    }
                }
                Err(DirectoryError::Compacted) => watch = None,
                Err(error) => panic!("a watch from long ago is Compacted, not: {error}"),
            }
        }
        self.read("old", end).await;
        let listing = self.list(&key("old")).await;
        assert_eq!(listing.entries.len(), KEYS + 1);
        let next = self.write(vec![put("old", "next")]).await;
        let events = self.events("old", listing.revision, next).await;
        assert_eq!(events.len(), 1, "from a listing on, nothing is missed and nothing comes twice");
    }

    async fn no_update_of_many_counting_clients_is_lost(&self) {
        self.write(vec![put("count", "0")]).await;
        let counters = (0..COUNTERS).map(|i| async move {
            let client = self.client(i).clone();
            let mut entry = client.get(&key("count")).await.expect("get").expect("there");
            let mut conflicts = 0u32;
            let mut done = BTreeMap::new();
            while done.len() < COUNTS {
                let count: u64 = String::from_utf8_lossy(&entry.value).parse().expect("a number");
                let value = format!("{}", count + 1).into_bytes();
                let txn = Txn {
                    compares: vec![Compare { key: key("count"), modified: entry.modified }],
                    changes: vec![KeyChange::Put(key("count"), value.clone())],
                };
                match client.txn(txn).await.expect("the directory answers") {
                    TxnReply::Done(modified) => {
                        assert_eq!(done.insert(modified, count + 1), None);
                        entry = Entry { key: key("count"), value, modified };
                    }
                    TxnReply::Conflict(mut seen) => {
                        conflicts += 1;
                        entry = seen.remove(0).1.expect("nobody deletes it");
                    }
                }
                (self.sleep)(Nanos::from_us(100 * (i as u64 + 1))).await;
            }
            (done, conflicts)
        });
        let mut all = BTreeMap::new();
        for (done, _) in join_all(counters).await {
            for (revision, count) in done {
                assert_eq!(all.insert(revision, count), None, "two transactions, one revision");
            }
        }
        let counts: Vec<u64> = all.values().copied().collect();
        let expected: Vec<u64> = (1..=(COUNTERS * COUNTS) as u64).collect();
        assert_eq!(counts, expected, "each update saw the one before it");
        let (&last, _) = all.last_key_value().expect("many");
        let entry = self.read("count", last).await.expect("there");
        assert_eq!(entry.value, format!("{}", COUNTERS * COUNTS).into_bytes());
    }

    async fn hints_appear_and_expire(&self) {
        let alive = |name: &'static str| async move {
            let names = self.client(1).alive().await.expect("alive is answered");
            assert!(names.is_sorted());
            names.iter().any(|n| *n == key(name))
        };
        let touch = async |name: &str, ttl_ms| {
            self.client(0).touch(&key(name), ttl_ms).await.expect("touch is answered");
        };
        touch("short", 300).await;
        touch("long", 60_000).await;
        let mut patience = PATIENCE;
        while !(alive("long").await) {
            assert!(patience > 0, "a touched name is alive");
            patience -= 1;
            (self.sleep)(Nanos::from_ms(20)).await;
        }
        let mut patience = PATIENCE;
        while alive("short").await {
            assert!(patience > 0, "a name expires after its time to live");
            patience -= 1;
            (self.sleep)(Nanos::from_ms(20)).await;
        }
        assert!(alive("long").await, "only what has expired is gone");
        touch("long", 1).await;
        let mut patience = PATIENCE;
        while alive("long").await {
            assert!(patience > 0, "the last touch counts, also when it is shorter");
            patience -= 1;
            (self.sleep)(Nanos::from_ms(20)).await;
        }
    }
}

//! What each request of the directory asks of etcd.
//!
//! Below the prefix are `keys/`, with the directory's keys as they are, and `alive/`, with the
//! names that hosts publish, each bound to a lease. Both can be read with `etcdctl get --prefix`.
//!
//! Invariants: whatever decides is one transaction of etcd that writes, which all members agree
//! on, and is sent once; a read is asked again, of another member if need be, until its deadline;
//! every request ends by its deadline, or a second later.

use crate::error::Meaning;
use crate::members::{Asked, EtcdConfig, Link, Members, PART_KEYS, deadline};
use crate::watch::EtcdWatch;
use atoll_directory::limits::HINTS_MAX;
use atoll_directory::state::{check_key, check_prefix, check_txn};
use atoll_world::directory::{
    Changes, Directory, DirectoryError, Entry, KeyChange, Listing, Revision, Txn, TxnReply,
};
use etcd_client::{
    Compare, CompareOp, GetOptions, GetResponse, KeyValue, PutOptions, TxnOp, TxnOpResponse,
};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Between two attempts of a read.
const READ_REST: Duration = Duration::from_millis(100);

/// The directory in etcd. Clones are the same client, on one shard.
#[derive(Clone)]
pub struct EtcdDirectory(pub(crate) Rc<State>);

pub(crate) struct State {
    pub members: Rc<Members>,
    /// What the names of what is alive begin with.
    alive: String,
    /// The lease of each name that was touched here, with its time to live in seconds.
    leases: RefCell<BTreeMap<String, (i64, i64)>>,
}

impl EtcdDirectory {
    /// Connects to the first member that is good. Needs a tokio runtime of this thread.
    ///
    /// # Errors
    /// `Unavailable`: no member can be used within 5 s, and why each of them cannot.
    pub async fn connect(config: EtcdConfig) -> Result<Self, DirectoryError> {
        let alive = format!("{}/alive/", config.prefix);
        let members = Members::new(config);
        let client = Self(Rc::new(State { members, alive, leases: RefCell::default() }));
        client.0.members.link(deadline()).await?;
        // Proves that this host may read.
        client.get("cluster").await?;
        Ok(client)
    }

    fn members(&self) -> &Rc<Members> {
        &self.0.members
    }

    fn entry(&self, found: &KeyValue) -> Result<Entry, DirectoryError> {
        Ok(Entry {
            key: self.members().key_of(found.key())?,
            value: found.value().to_vec(),
            modified: Revision(found.mod_revision().unsigned_abs()),
        })
    }

    /// Asks until it is answered or the deadline has passed.
    pub(crate) async fn read<T>(
        &self,
        ask: impl AsyncFn(&Link, Instant) -> Asked<T>,
    ) -> Result<T, DirectoryError> {
        let deadline = deadline();
        let mut last = None;
        loop {
            let link = match self.members().link(deadline).await {
                Ok(link) => link,
                // Without a search that ended, the last attempt says more.
                Err(error) if self.members().trouble().is_none() => {
                    return Err(last.unwrap_or(error));
                }
                Err(error) => return Err(error),
            };
            match ask(&link, deadline).await {
                Err(lost @ Meaning::Lost(_)) if Instant::now() + READ_REST < deadline => {
                    last = Some(lost.of_read());
                }
                Err(meaning) => return Err(meaning.of_read()),
                Ok(answer) => return Ok(answer),
            }
            sleep(READ_REST).await;
        }
    }

    /// One part of a range; its revision is not below what was seen before.
    async fn range(
        &self,
        link: &Link,
        deadline: Instant,
        key: &str,
        options: GetOptions,
    ) -> Asked<(GetResponse, Revision)> {
        let (members, mut kv) = (self.members(), link.kv());
        let seen = members.seen();
        let found = members.ask(link, deadline, kv.get(key, Some(options))).await?;
        let revision = members.note(link, seen, found.header()).map_err(Meaning::Lost)?;
        Ok((found, revision))
    }

    /// The keys of etcd that start with `prefix` and have what `options` ask for, in parts, as of
    /// one revision; and how many start with `prefix` in all.
    async fn list_keys(
        &self,
        prefix: &str,
        options: GetOptions,
    ) -> Result<(Vec<KeyValue>, u64, Revision), DirectoryError> {
        loop {
            let options = options.clone().with_limit(PART_KEYS as i64);
            let listed = self.read(async |link: &Link, deadline| {
                let first = options.clone().with_prefix();
                let (mut part, revision) = self.range(link, deadline, prefix, first).await?;
                // Counts also what is in other parts, and what `options` leave out.
                let count = part.count().unsigned_abs();
                let mut all = part.take_kvs();
                while part.more() {
                    let last = all.last().map(|last| last.key().to_vec()).unwrap_or_default();
                    let next = [&last, &[0][..]].concat();
                    let at = options.clone().with_revision(revision.0.cast_signed());
                    let rest = at.with_range(prefix_end(prefix));
                    let mut kv = link.kv();
                    let asked = self.members().ask(link, deadline, kv.get(next, Some(rest)));
                    part = asked.await?;
                    all.extend(part.take_kvs());
                }
                Ok((all, count, revision))
            });
            match listed.await {
                // It was compacted away between two parts.
                Err(DirectoryError::Compacted) => {}
                other => return other,
            }
        }
    }

    /// The lease of `name`, if it still lives and its key is there.
    async fn renew(&self, link: &Link, deadline: Instant, name: &str, lease: i64) -> Asked<bool> {
        let members = self.members();
        let mut client = link.client();
        let kept = members.ask(link, deadline, async {
            match client.lease_keep_alive(lease).await {
                Ok(_) => Ok(true),
                Err(etcd_client::Error::LeaseKeepAliveError(_)) => Ok(false),
                Err(other) => Err(other),
            }
        });
        if !kept.await? {
            return Ok(false);
        }
        // Releases below 3.4.38 say so of a lease that was revoked.
        let key = format!("{}{name}", self.0.alive);
        let (found, _) = self.range(link, deadline, &key, GetOptions::new()).await?;
        Ok(found.kvs().first().is_some_and(|entry| entry.lease() == lease))
    }
}

/// The end of the range of all keys that start with `prefix`, which ends with a `/` or is longer.
fn prefix_end(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    while let Some(last) = end.last_mut() {
        if *last < u8::MAX {
            *last += 1;
            return end;
        }
        end.pop();
    }
    // All keys.
    vec![0]
}

impl Directory for EtcdDirectory {
    type Watch = EtcdWatch;

    async fn txn(&self, txn: Txn) -> Result<TxnReply, DirectoryError> {
        check_txn(&txn)?;
        let members = self.members();
        let deadline = deadline();
        let link = members.link(deadline).await?;
        let full = |key: &str| members.full_key(key);
        let compares: Vec<_> = txn
            .compares
            .iter()
            .map(|c| {
                let modified = c.modified.0.cast_signed();
                Compare::mod_revision(full(&c.key), CompareOp::Equal, modified)
            })
            .collect();
        let changes: Vec<_> = txn
            .changes
            .into_iter()
            .map(|change| match change {
                KeyChange::Put(key, value) => TxnOp::put(full(&key), value, None),
                KeyChange::Delete(key) => TxnOp::delete(full(&key), None),
            })
            .collect();
        let present: Vec<_> = txn.compares.iter().map(|c| TxnOp::get(full(&c.key), None)).collect();
        let request = etcd_client::Txn::new().when(compares).and_then(changes).or_else(present);
        let (seen, mut kv) = (members.seen(), link.kv());
        let reply = members.ask(&link, deadline, kv.txn(request)).await.map_err(Meaning::of_txn)?;
        let revision =
            members.note(&link, seen, reply.header()).map_err(DirectoryError::Unknown)?;
        if reply.succeeded() {
            return Ok(TxnReply::Done(revision));
        }
        let unexpected = || DirectoryError::Unavailable("etcd answered another question".into());
        let found = reply.op_responses();
        if found.len() != txn.compares.len() {
            return Err(unexpected());
        }
        let found = found.into_iter().zip(txn.compares).map(|(found, compare)| match found {
            TxnOpResponse::Get(got) => {
                let entry = got.kvs().first().map(|entry| self.entry(entry)).transpose()?;
                Ok((compare.key, entry))
            }
            _ => Err(unexpected()),
        });
        Ok(TxnReply::Conflict(found.collect::<Result<_, _>>()?))
    }

    async fn get(&self, key: &str) -> Result<Option<Entry>, DirectoryError> {
        check_key(key)?;
        let key = self.members().full_key(key);
        let read = self.read(async |link: &Link, deadline| {
            self.range(link, deadline, &key, GetOptions::new()).await
        });
        let (found, _) = read.await?;
        found.kvs().first().map(|entry| self.entry(entry)).transpose()
    }

    async fn list(&self, prefix: &str) -> Result<Listing, DirectoryError> {
        check_prefix(prefix)?;
        let prefix = self.members().full_key(prefix);
        let (found, _, revision) = self.list_keys(&prefix, GetOptions::new()).await?;
        let entries = found.iter().map(|entry| self.entry(entry)).collect::<Result<_, _>>()?;
        Ok(Listing { entries, revision })
    }

    async fn changes(&self, prefix: &str, since: Revision) -> Result<Changes, DirectoryError> {
        check_prefix(prefix)?;
        let prefix = self.members().full_key(prefix);
        let newer = GetOptions::new().with_min_mod_revision(since.0.cast_signed() + 1);
        let (found, keys, revision) = self.list_keys(&prefix, newer).await?;
        let entries = found.iter().map(|entry| self.entry(entry)).collect::<Result<_, _>>()?;
        Ok(Changes { entries, keys, revision })
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<EtcdWatch, DirectoryError> {
        check_prefix(prefix)?;
        Ok(EtcdWatch::new(self.members().clone(), prefix, after))
    }

    async fn touch(&self, name: &str, ttl_ms: u32) -> Result<(), DirectoryError> {
        check_key(name)?;
        // etcd counts in seconds, and takes no lease below two.
        let ttl = i64::from(ttl_ms.div_ceil(1000).max(2));
        let before = self.0.leases.borrow().get(name).copied();
        if self.0.leases.borrow().len() >= HINTS_MAX && before.is_none() {
            return Err(DirectoryError::Refused(format!("{HINTS_MAX} names are alive already")));
        }
        let key = format!("{}{name}", self.0.alive);
        let touched = self.read(async |link: &Link, deadline| {
            if let Some((lease, for_seconds)) = before
                && for_seconds == ttl
                && self.renew(link, deadline, name, lease).await?
            {
                return Ok(lease);
            }
            let (members, mut client) = (self.members(), link.client());
            let granted = members.ask(link, deadline, client.lease_grant(ttl, None)).await?;
            let options = PutOptions::new().with_lease(granted.id());
            let put = client.put(key.as_str(), "", Some(options));
            members.ask(link, deadline, put).await?;
            Ok(granted.id())
        });
        let lease = touched.await?;
        self.0.leases.borrow_mut().insert(name.to_owned(), (lease, ttl));
        Ok(())
    }

    async fn alive(&self) -> Result<Vec<String>, DirectoryError> {
        let options = GetOptions::new().with_keys_only();
        let (found, ..) = self.list_keys(&self.0.alive, options).await?;
        let names = found.iter().filter_map(|entry| {
            entry.key_str().ok().and_then(|key| key.strip_prefix(&self.0.alive))
        });
        Ok(names.map(str::to_owned).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::prefix_end;

    #[test]
    fn the_end_of_a_prefix_is_behind_all_keys_that_start_with_it() {
        assert_eq!(prefix_end("/atoll/keys/"), b"/atoll/keys0");
        assert_eq!(prefix_end("a\u{7f}"), [b'a', 0x80]);
    }
}

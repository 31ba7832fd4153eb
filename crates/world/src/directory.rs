//! The cluster's state: a small, linearizable key-value store with compare-and-swap.
//!
//! Whoever decides does so by a [`Txn`] that writes (compare on revision). Everything else -
//! `get`, `list`, `watch`, hints - may be stale and only feeds caches.
//! One conformance suite runs against every implementation.

use std::future::Future;

/// Counts the successful writing transactions of a directory; rises for ever.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Revision(pub u64);

/// A key as it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its key.
    pub key: String,
    /// Its value, at most `format::record::VALUE_MAX` bytes.
    pub value: Vec<u8>,
    /// The transaction that last wrote it.
    pub modified: Revision,
}

/// A condition of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Compare {
    /// Which key.
    pub key: String,
    /// Its `modified`; [`Revision`] 0: the key does not exist.
    pub modified: Revision,
}

/// A change of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KeyChange {
    /// Creates or replaces.
    Put(String, Vec<u8>),
    /// Removes; nothing happens if there is no such key.
    Delete(String),
}

/// If every comparison holds, all changes are made at one new revision; else none.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Txn {
    /// All must hold.
    pub compares: Vec<Compare>,
    /// At least one.
    pub changes: Vec<KeyChange>,
}

/// What became of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TxnReply {
    /// All changes were made, at this revision.
    Done(Revision),
    /// A comparison did not hold; the present state of every compared key.
    Conflict(Vec<(String, Option<Entry>)>),
}

/// Keys with a prefix.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listing {
    /// Sorted by key.
    pub entries: Vec<Entry>,
    /// The revision it shows (at least).
    pub revision: Revision,
}

/// What has changed below a prefix since a revision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Changes {
    /// The keys that were written since, as they are; sorted by key.
    pub entries: Vec<Entry>,
    /// How many keys have the prefix now, changed or not: whoever knew all of them at that
    /// revision, and now knows more, has missed that some were deleted.
    pub keys: u64,
    /// The revision it shows (at least).
    pub revision: Revision,
}

/// One change that a watch reports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WatchEvent {
    /// When.
    pub revision: Revision,
    /// Which key.
    pub key: String,
    /// Its new value, or none if it was deleted.
    pub value: Option<Vec<u8>>,
}

/// Why a call gave no answer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DirectoryError {
    /// It cannot be reached; the request had no effect.
    #[error("the directory cannot be reached: {0}")]
    Unavailable(String),
    /// The answer was lost: the transaction may or may not have been, or may yet be, carried out
    /// (R12 of `docs/mirror.md`).
    #[error("the directory did not answer; the outcome is unknown: {0}")]
    Unknown(String),
    /// The watch cannot go on from that revision: list again.
    #[error("the directory no longer keeps events from that revision")]
    Compacted,
    /// A key or value is too large, or a transaction has no change.
    #[error("the directory refuses: {0}")]
    Refused(String),
}

/// The directory.
pub trait Directory: Clone + 'static {
    /// A running watch.
    type Watch: Watch;
    /// Carries out a transaction; the only call that decides.
    fn txn(&self, txn: Txn) -> impl Future<Output = Result<TxnReply, DirectoryError>>;
    /// One key, possibly stale.
    fn get(&self, key: &str) -> impl Future<Output = Result<Option<Entry>, DirectoryError>>;
    /// All keys that start with `prefix`, possibly stale.
    fn list(&self, prefix: &str) -> impl Future<Output = Result<Listing, DirectoryError>>;
    /// What has changed of the keys that start with `prefix` after `since`, possibly stale. Here:
    /// by a list of all of them.
    fn changes(
        &self,
        prefix: &str,
        since: Revision,
    ) -> impl Future<Output = Result<Changes, DirectoryError>> {
        async move {
            let Listing { mut entries, revision } = self.list(prefix).await?;
            let keys = entries.len() as u64;
            entries.retain(|entry| entry.modified > since);
            Ok(Changes { entries, keys, revision })
        }
    }
    /// Changes of keys that start with `prefix`, after `after`.
    fn watch(
        &self,
        prefix: &str,
        after: Revision,
    ) -> impl Future<Output = Result<Self::Watch, DirectoryError>>;
    /// Publishes `name` as alive for `ttl_ms` from now, again and again; replaces the last one.
    fn touch(&self, name: &str, ttl_ms: u32) -> impl Future<Output = Result<(), DirectoryError>>;
    /// Names touched within their time to live, sorted; possibly stale.
    fn alive(&self) -> impl Future<Output = Result<Vec<String>, DirectoryError>>;
}

/// A running watch.
pub trait Watch: 'static {
    /// The next changes, in order; a hint: may come late, twice, or stop with an error.
    ///
    /// # Errors
    /// Any: open a new watch from the last revision seen; on `Compacted` list first.
    fn next(&mut self) -> impl Future<Output = Result<Vec<WatchEvent>, DirectoryError>>;
}

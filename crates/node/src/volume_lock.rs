//! One host has a volume to itself: while an image is copied in, while it is deleted, while it is
//! shrunk. What takes data from clients is decided and done under such a lock.
//!
//! Taking it has three steps, in this order. A transaction enters the lock in the directory. Every
//! host is told of it, and answers whether it has clients of the volume; from that answer on it
//! opens the volume for nobody but the holder. Only then is the dangerous thing done.
//!
//! A host counts an opening before it looks for a lock, and both happen without a pause on one
//! thread: either the holder hears of the client, or the client hears of the holder. A host that
//! was told nothing (it has just started) finds the lock in the directory when it opens the volume.
//!
//! Invariants: who cannot be asked is taken for a user, unless it has been away for longer than any
//! I/O is held, or has stopped in order; a lock is void once that life of its host has ended; an
//! import's lock ends by itself [`IDLE_MAX`] after its last client.

use crate::admin::{Answer, Ask};
use crate::manage::{AWAY_MIN, ManageError, VolumeView};
use crate::status::Severity;
use crate::{Node, OpenVolume};
use atoll_format::id::{HostId, ObjectId};
use atoll_format::record::{
    self, HostRecord, LockPurpose, LockRecord, RECORD_VERSION, StoppedRecord, VolumeRecord, key,
};
use atoll_object::ObjectVolume;
use atoll_world::directory::{Change, Compare, Directory, Entry, Revision, Txn, TxnReply};
use atoll_world::{Components, Nanos, Volume, VolumeError, World, sometimes};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// How long a lock for an import outlives its last client.
pub const IDLE_MAX: Nanos = Nanos::from_secs(60);
/// How often that is looked at.
const IDLE_LOOK: Nanos = Nanos::from_secs(5);
/// How long an owner may look for data in a volume; then it is taken to hold some.
pub(crate) const LOOK_FOR_DATA: Nanos = Nanos::from_ms(2_000);
/// Attempts to take a lock against changes of what it is taken on.
const ATTEMPTS_MAX: usize = 20;
/// How long a lock for something that is soon over is waited for.
const LOCK_WAIT: Nanos = Nanos::from_secs(5);
/// How often that is looked at.
const LOCK_LOOK: Nanos = Nanos::from_ms(100);
/// How long a host that does not answer is asked again, if it may be a moment before it does:
/// connections that a pause or a partition broke are opened anew within a second.
const ASK_AGAIN_FOR: Nanos = Nanos::from_secs(4);
/// How often.
const ASK_AGAIN_EVERY: Nanos = Nanos::from_ms(250);
/// Between attempts of a host that starts to take that back.
const ARRIVE_AGAIN: Nanos = Nanos::from_ms(500);
/// How long a host that stops tries to say so.
const FAREWELL: Nanos = Nanos::from_secs(1);

/// A lock that this host has, or tries to get. Dropped without being given back (whoever waited
/// for what it is held for has gone), it is removed from the directory a little later.
pub(crate) struct Lock<W: World, S: Components> {
    node: Node<W, S>,
    pub record: LockRecord,
    revision: Cell<Revision>,
}

impl<W: World, S: Components> Lock<W, S> {
    /// The transaction that took it.
    pub fn revision(&self) -> Revision {
        self.revision.get()
    }

    /// Holds as long as the lock does.
    pub fn guard(&self) -> Compare {
        Compare { key: key::lock(self.record.object), modified: self.revision() }
    }
}

impl<W: World, S: Components> Drop for Lock<W, S> {
    fn drop(&mut self) {
        let (node, token) = (&self.node.0, self.record.token);
        if node.own_locks.borrow_mut().remove(&token) {
            self.node.forget_lock(self.record.object, token);
        }
    }
}

/// A lock that this host was told of, or has itself.
#[derive(Clone, Debug)]
pub(crate) struct Noted {
    pub record: LockRecord,
    pub revision: Revision,
}

/// An import into a volume: its lock, and who uses it.
pub(crate) struct Import<W: World, S: Components> {
    lock: Lock<W, S>,
    clients: Cell<u32>,
    idle_since: Cell<Nanos>,
}

/// A volume that is locked for an import.
#[derive(Clone, PartialEq, Debug)]
pub struct ImportLock {
    /// The volume, empty now.
    pub volume: VolumeView,
    /// By what name a client of this host opens it meanwhile: `NAME:TOKEN`.
    pub export: String,
    /// Ends the lock.
    pub token: u64,
}

/// The name by which the holder of a lock opens the volume.
pub fn export_name(name: &str, token: u64) -> String {
    format!("{name}:{token:016x}")
}

/// The volume's name and the token, if a name of an export has one. Names of volumes have no `:`.
pub(crate) fn split_export(export: &str) -> Option<(&str, u64)> {
    let (name, token) = export.split_once(':')?;
    let digits = token.len() == 16 && token.bytes().all(|b| b.is_ascii_hexdigit());
    Some((name, u64::from_str_radix(token, 16).ok().filter(|_| digits)?))
}

/// Counts a client of an import.
struct ImportClient<W: World, S: Components>(Rc<Import<W, S>>);

impl<W: World, S: Components> Drop for ImportClient<W, S> {
    fn drop(&mut self) {
        self.0.clients.set(self.0.clients.get() - 1);
        self.0.idle_since.set(self.0.lock.node.world().now());
    }
}

impl<W: World, S: Components> Node<W, S> {
    // ---- taking and giving back -----------------------------------------------------------

    /// Has a volume to itself, or says who has. Nobody was asked yet whether it is in use.
    /// `force`: also in place of a lock whose host does not answer.
    async fn take_lock(
        &self,
        view: &VolumeView,
        purpose: LockPurpose,
        force: bool,
    ) -> Result<Lock<W, S>, ManageError> {
        let (id, name) = (view.record.id, view.name.clone());
        let not_found = || ManageError::NotFound { what: "volume", name: name.clone() };
        let record = LockRecord {
            version: RECORD_VERSION,
            object: id,
            name: name.clone(),
            host: self.0.config.host,
            incarnation: self.0.incarnation,
            token: self.world().random(),
            purpose,
            since_ms: self.world().unix_ms(),
        };
        let value = record::encode(&record);
        self.0.own_locks.borrow_mut().insert(record.token);
        let lock = Lock { node: self.clone(), record, revision: Cell::default() };
        let (lock_key, name_key, object_key) = (key::lock(id), key::volume(&name), key::object(id));
        let until = self.world().now() + LOCK_WAIT;
        let mut attempts = 0;
        while attempts < ATTEMPTS_MAX {
            attempts += 1;
            let named = self.entry(&name_key).await?.ok_or_else(not_found)?;
            let volume: VolumeRecord =
                record::decode(&name_key, &named.value).map_err(ManageError::Failed)?;
            let (object, revision) = self.object_record(id).await?.ok_or_else(not_found)?;
            if volume.object != id || object.state != record::ObjectState::Ready {
                return Err(not_found());
            }
            let before = self.entry(&lock_key).await?;
            let mut compares = vec![
                Compare { key: name_key.clone(), modified: named.modified },
                Compare { key: object_key.clone(), modified: revision },
                Compare { key: lock_key.clone(), modified: Revision(0) },
            ];
            if let Some(before) = before {
                let other: LockRecord =
                    record::decode(&lock_key, &before.value).map_err(ManageError::Failed)?;
                let life = self.life_of_holder(&other).await?;
                if !(life.void || force && !self.is_alive(other.host)) {
                    // Deleting and shrinking are soon over; who repeats one of them waits for it.
                    if other.purpose == LockPurpose::Import || self.world().now() > until {
                        return Err(self.is_locked(&other));
                    }
                    sometimes!("lock.is_waited_for");
                    attempts -= 1;
                    self.world().sleep(LOCK_LOOK).await;
                    continue;
                }
                sometimes!("lock.void_lock_is_replaced");
                compares[2].modified = before.modified;
                compares.extend(life.seen);
            }
            let changes = vec![Change::Put(lock_key.clone(), value.clone())];
            let mine = |found: &[(String, Option<Entry>)]| {
                found.iter().any(|(_, e)| e.as_ref().is_some_and(|e| e.value == value))
            };
            if self.settle(Txn { compares, changes }, mine).await? {
                // Written by nobody else: the revision that the value has is ours.
                let entry = self.entry(&lock_key).await?.filter(|entry| entry.value == value);
                let Some(entry) = entry else { continue };
                lock.revision.set(entry.modified);
                self.note_lock(&lock.record, entry.modified);
                return Ok(lock);
            }
        }
        Err(ManageError::Conflict(name))
    }

    async fn entry(&self, key: &str) -> Result<Option<Entry>, ManageError> {
        self.world().directory().get(key).await.map_err(ManageError::Directory)
    }

    /// Whether the life of a host that took a lock has ended, and what that was seen by.
    async fn life_of_holder(&self, lock: &LockRecord) -> Result<HolderLife, ManageError> {
        if lock.host == self.0.config.host {
            // Of an earlier life, or of somebody here who was interrupted.
            let is_ours = lock.incarnation == self.0.incarnation
                && self.0.own_locks.borrow().contains(&lock.token);
            return Ok(HolderLife { void: !is_ours, seen: None });
        }
        let host_key = key::host(lock.host);
        let entry = self.entry(&host_key).await?;
        let modified = entry.as_ref().map_or(Revision(0), |e| e.modified);
        let seen = Some(Compare { key: host_key.clone(), modified });
        let Some(entry) = entry else { return Ok(HolderLife { void: true, seen }) };
        let host: HostRecord =
            record::decode(&host_key, &entry.value).map_err(ManageError::Failed)?;
        let gone = host.incarnation != lock.incarnation || self.is_long_away(lock.host);
        Ok(HolderLife { void: gone, seen })
    }

    /// Not heard of for longer than any I/O of its clients is held. A host that hears of nobody
    /// is the one that is away, unless there are only two.
    fn is_long_away(&self, host: HostId) -> bool {
        let hosts = self.0.hosts.borrow();
        let hears = hosts.keys().filter(|&&id| self.is_alive(id)).count();
        let hears_some = hosts.len() <= 2 || hears > 1;
        hears_some && !self.is_alive(host) && self.away_for(host) >= AWAY_MIN
    }

    /// Since when neither this host has heard of that one, nor one that this host hears of. What
    /// was never heard of in this life counts from its beginning.
    pub(crate) fn away_for(&self, host: HostId) -> Nanos {
        let statuses = self.0.statuses.borrow();
        let heard =
            statuses.iter().filter(|(id, (_, s))| **id == host || s.reaches.contains(&host));
        let last = heard.map(|(_, (at, _))| *at).max();
        self.world().now().since(last.unwrap_or(self.0.objects.started()))
    }

    fn is_locked(&self, lock: &LockRecord) -> ManageError {
        ManageError::Locked {
            name: lock.name.clone(),
            host: self.host_name(lock.host),
            purpose: lock.purpose,
        }
    }

    /// Gives a lock back: afterwards nothing that compares it can be carried out any more. All
    /// hosts are told; one that is not finds out by itself.
    ///
    /// # Errors
    /// The directory does not say that it is gone.
    pub(crate) async fn give_back(&self, held: &Lock<W, S>) -> Result<(), ManageError> {
        let txn = Txn {
            compares: vec![held.guard()],
            changes: vec![Change::Delete(key::lock(held.record.object))],
        };
        // Gone already: somebody took it from us, as void.
        self.settle(txn, |_| true).await?;
        self.0.own_locks.borrow_mut().remove(&held.record.token);
        self.forget_lock(held.record.object, held.record.token);
        let node = self.clone();
        let (object, token) = (held.record.object, held.record.token);
        self.world().spawn(async move {
            let hosts: Vec<HostId> = node.0.hosts.borrow().keys().copied().collect();
            let others = hosts.into_iter().filter(|&h| h != node.0.config.host);
            let told = others.filter(|&h| node.is_alive(h)).map(|host| {
                let node = node.clone();
                async move { node.ask(host, Ask::Unlock { object, token }).await }
            });
            futures_util::future::join_all(told).await;
        });
        Ok(())
    }

    /// Has a volume to itself that nobody uses.
    ///
    /// # Errors
    /// Somebody uses it, or may; somebody else has it to himself. Then nothing is locked.
    pub(crate) async fn lock_unused(
        &self,
        view: &VolumeView,
        purpose: LockPurpose,
        force: bool,
    ) -> Result<Lock<W, S>, ManageError> {
        let held = self.take_lock(view, purpose, force).await?;
        let unused = match self.refuse_if_in_use(view, Some(&held), false).await {
            Err(ManageError::MayBeInUse { .. }) if force => Ok(()),
            other => other,
        };
        match unused {
            Ok(()) => Ok(held),
            Err(error) => {
                self.let_go(held).await;
                Err(error)
            }
        }
    }

    /// Gives a lock back; if the directory does not answer, later.
    pub(crate) async fn let_go(&self, held: Lock<W, S>) {
        let _ = self.give_back(&held).await;
    }

    /// Refuses what takes data from clients, if a host has clients of the volume or may have some.
    /// Hosts open it for nobody else once they have been told of a lock.
    ///
    /// A host that cannot be asked has none that matter if it has stopped in order, or if nobody
    /// has reached it for longer than any I/O is held and the volume's owner is another one: all
    /// I/O passes through the owner, whose takeover has fenced an earlier one off.
    pub(crate) async fn refuse_if_in_use(
        &self,
        view: &VolumeView,
        held: Option<&Lock<W, S>>,
        dry_run: bool,
    ) -> Result<(), ManageError> {
        let (id, name) = (view.record.id, || view.name.clone());
        let mut hosts: BTreeSet<HostId> = self.0.hosts.borrow().keys().copied().collect();
        hosts.insert(self.0.config.host);
        let question = || match held {
            Some(lock) => {
                Ask::Lock { lock: Box::new(lock.record.clone()), revision: lock.revision().0 }
            }
            None => Ask::InUse { object: id },
        };
        let until = self.world().now() + ASK_AGAIN_FOR;
        let mut is_first = true;
        let (mut users, mut silent) = (Vec::new(), Vec::new());
        let mut reached: BTreeMap<HostId, HostId> = BTreeMap::new();
        loop {
            let asks =
                hosts.iter().map(|&host| async move { (host, self.ask(host, question()).await) });
            let mut unreached = BTreeSet::new();
            for (host, answer) in futures_util::future::join_all(asks).await {
                match answer {
                    Ok(Answer::Clients { clients, reaches }) => {
                        if clients > 0 {
                            users.push(self.host_name(host));
                        }
                        reached.extend(reaches.iter().map(|&other| (other, host)));
                    }
                    Err(ManageError::Unreachable(_)) => _ = unreached.insert(host),
                    Ok(_) | Err(_) => silent.push(host),
                }
            }
            if std::mem::take(&mut is_first) && !unreached.is_empty() {
                let all: Vec<HostId> = unreached.iter().copied().collect();
                let stopped = self.stopped_in_order(&all).await;
                unreached.retain(|host| !stopped.contains(host));
            }
            // Whom another one reaches, or who answered just now, may soon answer again. For no
            // other one is there anything to wait for.
            let may_answer =
                |host: &HostId| reached.contains_key(host) || self.away_for(*host) < AWAY_MIN;
            let waits = users.is_empty() && self.world().now() < until;
            (hosts, unreached) = unreached.into_iter().partition(|host| waits && may_answer(host));
            silent.extend(unreached);
            if hosts.is_empty() {
                break;
            }
            self.world().sleep(ASK_AGAIN_EVERY).await;
        }
        if !users.is_empty() {
            return Err(ManageError::InUse { name: name(), hosts: users.join(", ") });
        }
        if silent.is_empty() {
            return Ok(());
        }
        let stopped = self.stopped_in_order(&silent).await;
        silent.retain(|host| !stopped.contains(host));
        let doubt = |host: HostId, why: String| ManageError::MayBeInUse {
            name: name(),
            host: self.host_name(host),
            why,
        };
        for &host in &silent {
            if let Some(&other) = reached.get(&host) {
                return Err(doubt(host, format!("host {} reaches it", self.host_name(other))));
            }
            let away = self.away_for(host);
            if away < AWAY_MIN {
                let left = (AWAY_MIN.0 - away.0).div_ceil(1_000_000_000);
                let away = away.0 / 1_000_000_000;
                let why =
                    format!("nobody has heard of it for {away} s only: try again in {left} s");
                return Err(doubt(host, why));
            }
        }
        let owner = view.record.owner.map(|owner| owner.host);
        let Some(owner) = owner.filter(|owner| silent.contains(owner) && !dry_run) else {
            return Ok(());
        };
        match self.owned_by(&view.name, id).await {
            Ok(host) if host != owner => Ok(()),
            Ok(_) => Err(doubt(owner, "it owns the volume".into())),
            Err(error) => Err(doubt(owner, format!("it owns the volume, and {error}"))),
        }
    }

    // ---- hosts that stop in order ----------------------------------------------------------

    /// Says that this life of the host has no clients any more, and gets none.
    pub(crate) async fn say_farewell(&self) {
        let stopped = StoppedRecord { version: RECORD_VERSION, incarnation: self.0.incarnation };
        let put = Change::Put(key::stopped(self.0.config.host), record::encode(&stopped));
        let txn = Txn { compares: vec![], changes: vec![put] };
        let until = self.world().now() + FAREWELL;
        let _ = self.world().timeout_at(until, self.world().directory().txn(txn)).await;
    }

    /// Takes back what an earlier life said when it went. Before this one has clients: nobody is to
    /// take them for none because this life's record is not written yet. Returns once the directory
    /// has confirmed it.
    pub async fn arrive(&self) {
        let gone = Change::Delete(key::stopped(self.0.config.host));
        while self
            .settle(Txn { compares: vec![], changes: vec![gone.clone()] }, |_| true)
            .await
            .is_err()
        {
            self.world().sleep(ARRIVE_AGAIN).await;
        }
    }

    /// Those hosts whose present life has stopped in order. In doubt, none.
    async fn stopped_in_order(&self, hosts: &[HostId]) -> BTreeSet<HostId> {
        let mut stopped = BTreeSet::new();
        for &host in hosts {
            let (stopped_key, host_key) = (key::stopped(host), key::host(host));
            let directory = self.world().directory();
            // Whether it has begun another life since is read last, and not from an older view.
            let Ok(farewell) = directory.list(&stopped_key).await else { continue };
            let Ok(lives) = directory.list(&host_key).await else { continue };
            let of = |entries: Vec<Entry>, key: &str| entries.into_iter().find(|e| e.key == key);
            let Some(farewell) = of(farewell.entries, &stopped_key) else { continue };
            if lives.revision < farewell.modified {
                continue;
            }
            let Some(life) = of(lives.entries, &host_key) else { continue };
            let said = record::decode::<StoppedRecord>(&stopped_key, &farewell.value);
            let lives = record::decode::<HostRecord>(&host_key, &life.value);
            if let (Ok(said), Ok(lives)) = (said, lives)
                && said.incarnation == lives.incarnation
            {
                sometimes!("lock.host_has_stopped_in_order");
                stopped.insert(host);
            }
        }
        stopped
    }

    // ---- on the hosts that are told ---------------------------------------------------------

    /// Keeps a lock in mind; its holder's clients are counted as everybody's are.
    pub(crate) fn note_lock(&self, lock: &LockRecord, revision: Revision) {
        let mut locks = self.0.locks.borrow_mut();
        let newer = locks.get(&lock.object).is_some_and(|noted| noted.revision > revision);
        if !newer {
            locks.insert(lock.object, Noted { record: lock.clone(), revision });
        }
    }

    pub(crate) fn forget_lock(&self, object: ObjectId, token: u64) {
        let mut locks = self.0.locks.borrow_mut();
        if locks.get(&object).is_some_and(|noted| noted.record.token == token) {
            locks.remove(&object);
        }
    }

    /// Clients of a volume on this host.
    pub(crate) fn clients_of(&self, object: ObjectId) -> u32 {
        self.0.open_volumes.borrow().get(&object).copied().unwrap_or(0)
    }

    /// Drops what is known of locks that are gone from the directory, and removes from it what
    /// nobody has any more: of this host's, what it was interrupted with; of ended lives, all.
    /// Always looked for: an attempt to take a lock may arrive after a later one was given back.
    pub(crate) async fn tidy_locks(&self) {
        let Ok(listing) = self.world().directory().list(key::LOCKS).await else { return };
        let mut here = BTreeMap::new();
        for entry in listing.entries {
            if let Ok(lock) = record::decode::<LockRecord>(&entry.key, &entry.value) {
                here.insert(lock.object, (lock, entry.modified));
            }
        }
        self.0.locks.borrow_mut().retain(|object, noted| {
            let known = here.get(object).is_some_and(|(lock, _)| *lock == noted.record);
            known || noted.revision > listing.revision
        });
        for (lock, modified) in here.into_values() {
            let (host, incarnation) = (self.0.config.host, self.0.incarnation);
            let seen = if (lock.host, lock.incarnation) == (host, incarnation) {
                if self.0.own_locks.borrow().contains(&lock.token) {
                    continue;
                }
                None
            } else {
                match self.life_of_holder(&lock).await {
                    Ok(HolderLife { void: true, seen }) if self.is_first() => seen,
                    _ => continue,
                }
            };
            let lock_key = key::lock(lock.object);
            let own = Compare { key: lock_key.clone(), modified };
            let compares = std::iter::once(own).chain(seen).collect();
            let txn = Txn { compares, changes: vec![Change::Delete(lock_key)] };
            if let Ok(TxnReply::Done(_)) = self.world().directory().txn(txn).await {
                sometimes!("lock.left_over_is_removed");
                let by = self.host_name(lock.host);
                let message =
                    format!("a lock for {} by host {by} was left over and is gone", lock.purpose);
                self.note(Severity::Info, "lock-removed", Some(lock.object), message);
            }
        }
    }

    // ---- opening ----------------------------------------------------------------------------

    /// Opens a volume for a client, by its name or by an export's of this host.
    pub(crate) async fn open_export(
        &self,
        export: &str,
    ) -> Result<(ObjectVolume<W, S>, OpenVolume), VolumeError> {
        if let Some((name, token)) = split_export(export) {
            return self.open_import(name, token).await;
        }
        let object = self.find_volume(export).await?;
        // Counted first: who locks the volume from here on hears of it.
        let open = self.opened(object);
        self.refuse_if_locked(object).await?;
        let volume = ObjectVolume::open(self.0.objects.clone(), object).await?;
        Ok((volume, open))
    }

    async fn refuse_if_locked(&self, object: ObjectId) -> Result<(), VolumeError> {
        let unknown = |e: atoll_world::DirectoryError| VolumeError::TimedOut(e.to_string());
        let lock_key = key::lock(object);
        let listing = self.world().directory().list(&lock_key).await.map_err(unknown)?;
        let noted = self.0.locks.borrow().get(&object).cloned();
        let there = listing.entries.iter().find(|entry| entry.key == lock_key);
        let (lock, revision) = match (there, noted) {
            // The directory's view may be older than what we were told.
            (_, Some(noted)) if noted.revision > listing.revision => (noted.record, noted.revision),
            (Some(entry), _) => {
                let lock = record::decode::<LockRecord>(&lock_key, &entry.value);
                (lock.map_err(VolumeError::TimedOut)?, entry.modified)
            }
            (None, noted) => {
                if let Some(noted) = noted {
                    self.forget_lock(object, noted.record.token);
                }
                return Ok(());
            }
        };
        let unknown = |e: ManageError| VolumeError::TimedOut(e.to_string());
        if !self.remove_if_void(&lock, revision).await.map_err(unknown)? {
            sometimes!("lock.keeps_a_client_out");
            return Err(VolumeError::Locked(self.is_locked(&lock).to_string()));
        }
        Ok(())
    }

    /// Removes a lock whose holder is gone. Before anybody opens the volume: what is still under
    /// way for that holder (a shrink that its owner was asked for) compares the lock, and must not
    /// be carried out over what is written from now on.
    async fn remove_if_void(
        &self,
        lock: &LockRecord,
        revision: Revision,
    ) -> Result<bool, ManageError> {
        let HolderLife { void: true, seen } = self.life_of_holder(lock).await? else {
            return Ok(false);
        };
        // A view of the holder's host may be older than the lock: its record is compared, too.
        let lock_key = key::lock(lock.object);
        let own = Compare { key: lock_key.clone(), modified: revision };
        let compares = std::iter::once(own).chain(seen).collect();
        let txn = Txn { compares, changes: vec![Change::Delete(lock_key.clone())] };
        let is_gone = |found: &[(String, Option<Entry>)]| {
            found.iter().any(|(key, entry)| *key == lock_key && entry.is_none())
        };
        let removed = self.settle(txn, is_gone).await?;
        if removed {
            sometimes!("lock.left_over_is_removed_before_opening");
            self.forget_lock(lock.object, lock.token);
        }
        Ok(removed)
    }

    async fn open_import(
        &self,
        name: &str,
        token: u64,
    ) -> Result<(ObjectVolume<W, S>, OpenVolume), VolumeError> {
        let import = self.0.imports.borrow().get(&token).cloned();
        let import = import.filter(|i| i.lock.record.name == name).ok_or(VolumeError::Gone)?;
        let object = import.lock.record.object;
        import.clients.set(import.clients.get() + 1);
        let mut open = self.opened(object);
        let revision = import.lock.revision();
        open.with(Box::new(ImportClient(import)));
        // Others take the lock of a host that they have not heard of for long.
        let unknown = |e: atoll_world::DirectoryError| VolumeError::TimedOut(e.to_string());
        let listing = self.world().directory().list(&key::lock(object)).await.map_err(unknown)?;
        if listing.revision >= revision && !listing.entries.iter().any(|e| e.modified == revision) {
            sometimes!("lock.import_has_lost_its_lock");
            return Err(VolumeError::Gone);
        }
        let volume = ObjectVolume::open(self.0.objects.clone(), object).await?;
        Ok((volume, open))
    }

    // ---- imports ------------------------------------------------------------------------------

    /// Locks a volume for an import and empties it. `replace`: though it holds data.
    ///
    /// # Errors
    /// It is smaller than `min_size_bytes`; somebody uses it, or may; it holds data, or may, and
    /// nobody said that it is to be replaced: then nothing was changed and nothing is locked.
    pub async fn lock_for_import(
        &self,
        name: &str,
        replace: bool,
        min_size_bytes: u64,
        dry_run: bool,
    ) -> Result<ImportLock, ManageError> {
        let view = self.volume(name).await?;
        let size = view.record.size_bytes;
        if size < min_size_bytes {
            return Err(ManageError::TooSmall { name: name.into(), size, wanted: min_size_bytes });
        }
        if dry_run {
            self.refuse_if_in_use(&view, None, true).await?;
            let export = export_name(name, 0);
            return Ok(ImportLock { volume: view, export, token: 0 });
        }
        let held = self.lock_unused(&view, LockPurpose::Import, false).await?;
        if let Err(error) = self.empty(&view, replace).await {
            self.let_go(held).await;
            return Err(error);
        }
        let token = held.record.token;
        let idle_since = Cell::new(self.world().now());
        let import = Rc::new(Import { lock: held, clients: Cell::new(0), idle_since });
        self.0.imports.borrow_mut().insert(token, import.clone());
        self.world().spawn(self.clone().end_when_idle(import));
        sometimes!("lock.volume_is_locked_for_an_import");
        Ok(ImportLock { export: export_name(name, token), volume: view, token })
    }

    /// Whether a volume holds data is the owner's to say: figures of space are seconds old.
    async fn empty(&self, view: &VolumeView, replace: bool) -> Result<(), ManageError> {
        let id = view.record.id;
        let ask = || Ask::HoldsData { object: id };
        let answer = match self.ask_owner(&view.name, id, ask).await {
            // It was only asked something: nothing has been done.
            Err(ManageError::NoAnswer(host)) => return Err(ManageError::Unreachable(host)),
            other => other?,
        };
        if answer == (Answer::HoldsData { holds: false }) {
            return Ok(());
        }
        if !replace {
            return Err(ManageError::HoldsData { name: view.name.clone() });
        }
        let volume = ObjectVolume::open(self.0.objects.clone(), id).await;
        let volume = volume.map_err(|e| ManageError::Failed(e.to_string()))?;
        let emptied = volume.discard(0, view.record.size_bytes).await;
        emptied.map_err(|e| {
            let what = format!("volume {} could not be emptied whole: {e}", view.name);
            ManageError::Failed(what)
        })
    }

    /// Ends an import's lock. Repeating it is no error.
    ///
    /// # Errors
    /// A client still uses it; there is no such lock of that volume here; the directory.
    pub async fn unlock_import(&self, name: &str, token: u64) -> Result<(), ManageError> {
        let import = self.0.imports.borrow().get(&token).cloned();
        let Some(import) = import.filter(|i| i.lock.record.name == name) else {
            return Err(ManageError::NotFound {
                what: "import lock",
                name: export_name(name, token),
            });
        };
        if import.clients.get() > 0 {
            let hosts = self.0.config.name.clone();
            return Err(ManageError::InUse { name: name.into(), hosts });
        }
        self.0.imports.borrow_mut().remove(&token);
        self.give_back(&import.lock).await
    }

    /// A lock that nobody uses ends: whoever asked for it has died.
    async fn end_when_idle(self, import: Rc<Import<W, S>>) {
        let token = import.lock.record.token;
        loop {
            self.world().sleep(IDLE_LOOK).await;
            if !self.0.imports.borrow().contains_key(&token) {
                return;
            }
            let idle = self.world().now().since(import.idle_since.get());
            if import.clients.get() > 0 || idle < IDLE_MAX {
                continue;
            }
            sometimes!("lock.ends_by_itself");
            let name = import.lock.record.name.clone();
            if self.unlock_import(&name, token).await.is_ok() {
                let message = "an import was given up by whoever began it: the volume is free";
                let object = Some(import.lock.record.object);
                self.note(Severity::Warning, "import-given-up", object, message);
            }
            return;
        }
    }
}

/// What is known of the life of a host that took a lock.
struct HolderLife {
    /// It has ended, or nobody has heard of it for long.
    void: bool,
    /// A lock is removed only if that is still so.
    seen: Option<Compare>,
}

#[cfg(test)]
mod tests {
    use super::{export_name, split_export};

    #[test]
    fn the_name_of_an_export_says_which_lock_is_meant() {
        assert_eq!(split_export(&export_name("vm1", 0xfeed)), Some(("vm1", 0xfeed)));
        let long = format!("vm1:{:017x}", 1);
        for other in ["vm1", "vm1:", "vm1:feed", "vm1:+00000000000feed", &long] {
            assert_eq!(split_export(other), None, "{other}");
        }
    }
}

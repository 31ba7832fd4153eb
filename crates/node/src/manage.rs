//! Management: volumes, policies, scrubs and resync, as functions. REST and the simulator call
//! them; whatever changes the cluster is a transaction of the directory.

use crate::Node;
use crate::admin::{Answer, Ask};
use crate::status::NodeEvent;
use atoll_format::id::{ComponentId, Epoch, HostId, ObjectId, Seq};
use atoll_format::record::{
    self, LegRecord, MemberRecord, MemberState, ObjectRecord, ObjectState, Policy, PolicyRecord,
    RECORD_VERSION, VolumeRecord, key,
};
use atoll_format::units::{BLOCKS_PER_CHUNK, check_object_size};
use atoll_object::limits::{HOLD, LEASE};
use atoll_object::message::{Reply, Request};
use atoll_object::placement::{self, Explanation, Refusal};
use atoll_world::components::ComponentSpec;
use atoll_world::directory::{Change, Compare, Directory, Entry, Revision, Txn, TxnReply};
use atoll_world::{Components, DirectoryError, Lane, Nanos, StoreError, World};
use std::collections::{BTreeMap, BTreeSet};

/// The policy of volumes that name none.
pub const DEFAULT_POLICY: &str = "default";
/// How long a host may take to make a component.
const CREATE_DEADLINE: Nanos = Nanos::from_secs(5);
/// How long a host has been away before its clients count as gone: no I/O of theirs is held longer.
const AWAY_MIN: Nanos = Nanos(HOLD.0 + LEASE.0);
/// How long an owner is waited for: a takeover waits for a grace, and may have to begin again.
const OWNER_WAIT: Nanos = Nanos::from_secs(10);
/// Attempts of a transaction whose outcome is unknown.
const ATTEMPTS_MAX: usize = 20;

/// Why a management call failed.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum ManageError {
    /// There is no such thing.
    #[error("there is no {what} named '{name}'")]
    NotFound {
        /// `volume`, `policy`, ...
        what: &'static str,
        /// As asked for.
        name: String,
    },
    /// The name is taken.
    #[error("a {what} named '{name}' exists already")]
    Exists {
        /// `volume`, `policy`, ...
        what: &'static str,
        /// As asked for.
        name: String,
    },
    /// A value is out of range; a sentence.
    #[error("{0}")]
    Invalid(String),
    /// The policy cannot be met now.
    #[error("{0}")]
    CannotPlace(Refusal),
    /// Clients have it open; names the hosts.
    #[error("volume '{name}' is in use on {hosts}")]
    InUse {
        /// Which volume.
        name: String,
        /// Where.
        hosts: String,
    },
    /// A host that cannot be asked may have clients of it.
    #[error("volume '{name}' may be in use on host {host}, which does not answer: {why}")]
    MayBeInUse {
        /// Which volume.
        name: String,
        /// Where.
        host: String,
        /// Why that cannot be ruled out.
        why: String,
    },
    /// Somebody changed it meanwhile.
    #[error("'{0}' was changed by somebody else meanwhile")]
    Conflict(String),
    /// The directory gives no answer.
    #[error("{0}")]
    Directory(DirectoryError),
    /// A host gives no answer.
    #[error("host {0} cannot be reached")]
    Unreachable(String),
    /// Something else; a sentence.
    #[error("{0}")]
    Failed(String),
}

/// A volume to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CreateVolume {
    /// Its name.
    pub name: String,
    /// Its size in bytes, a multiple of 4 KiB.
    pub size_bytes: u64,
    /// Name of its policy; none: `default`.
    pub policy: Option<String>,
    /// One copy here, if possible; none: this host.
    pub prefer: Option<HostId>,
    /// Only look whether it could be made.
    pub dry_run: bool,
}

/// A volume as the directory has it, with what owners and hosts say.
#[derive(Clone, PartialEq, Debug)]
pub struct VolumeView {
    /// Its name.
    pub name: String,
    /// Name of the policy it was made with.
    pub policy: String,
    /// Milliseconds since 1970.
    pub created_ms: u64,
    /// Its object.
    pub record: ObjectRecord,
    /// Changes with every change of the record.
    pub revision: u64,
    /// Bytes of capacity that its copies use, as far as hosts have said.
    pub used_bytes: u64,
    /// Hosts on which clients have it open.
    pub open_on: Vec<HostId>,
    /// What its owner says, if it has a living one.
    pub owner: Option<crate::ObjectStatus>,
}

/// A volume's placement with reasons.
#[derive(Clone, Debug)]
pub struct PlacementView {
    /// The volume.
    pub volume: VolumeView,
    /// Why its components are where they are.
    pub explanation: Explanation,
}

impl<W: World, S: Components> Node<W, S> {
    // ---- the directory -------------------------------------------------------------------

    pub(crate) async fn object_record(
        &self,
        id: ObjectId,
    ) -> Result<Option<(ObjectRecord, Revision)>, ManageError> {
        let key = key::object(id);
        let entry = self.world().directory().get(&key).await.map_err(ManageError::Directory)?;
        let Some(entry) = entry else { return Ok(None) };
        let record = record::decode(&key, &entry.value).map_err(ManageError::Failed)?;
        Ok(Some((record, entry.modified)))
    }

    /// Carries out a transaction; repeats it while its outcome is unknown. `is_mine` tells from a
    /// conflict whether an earlier attempt had been applied.
    async fn settle(
        &self,
        txn: Txn,
        is_mine: impl Fn(&[(String, Option<Entry>)]) -> bool,
    ) -> Result<bool, ManageError> {
        let mut unknown = false;
        let mut last = DirectoryError::Unavailable("not asked".into());
        for _ in 0..ATTEMPTS_MAX {
            match self.world().directory().txn(txn.clone()).await {
                Ok(TxnReply::Done(_)) => return Ok(true),
                Ok(TxnReply::Conflict(found)) => return Ok(unknown && is_mine(&found)),
                Err(error @ (DirectoryError::Unknown(_) | DirectoryError::Unavailable(_))) => {
                    unknown |= matches!(error, DirectoryError::Unknown(_));
                    last = error;
                    self.world().sleep(Nanos::from_ms(250)).await;
                }
                Err(error) => return Err(ManageError::Directory(error)),
            }
        }
        Err(ManageError::Directory(last))
    }

    // ---- policies ------------------------------------------------------------------------

    /// All policies; `default` is always there.
    pub async fn policies(&self) -> Result<BTreeMap<String, Policy>, ManageError> {
        let listing = self.world().directory().list(key::POLICIES).await;
        let listing = listing.map_err(ManageError::Directory)?;
        let mut all = BTreeMap::from([(DEFAULT_POLICY.to_string(), Policy::DEFAULT)]);
        for entry in listing.entries {
            let record: PolicyRecord =
                record::decode(&entry.key, &entry.value).map_err(ManageError::Failed)?;
            all.insert(record.name, record.policy);
        }
        Ok(all)
    }

    /// One policy.
    pub async fn policy(&self, name: &str) -> Result<Policy, ManageError> {
        let not_found = || ManageError::NotFound { what: "policy", name: name.into() };
        self.policies().await?.remove(name).ok_or_else(not_found)
    }

    /// Makes a policy.
    pub async fn create_policy(&self, name: &str, policy: Policy) -> Result<(), ManageError> {
        policy.check().map_err(ManageError::Invalid)?;
        let exists = || ManageError::Exists { what: "policy", name: name.into() };
        if name == DEFAULT_POLICY {
            return Err(exists());
        }
        let key = key::policy(name);
        let record = PolicyRecord { version: RECORD_VERSION, name: name.into(), policy };
        let value = record::encode(&record);
        let txn = Txn {
            compares: vec![Compare { key: key.clone(), modified: Revision(0) }],
            changes: vec![Change::Put(key, value.clone())],
        };
        let mine = |found: &[(String, Option<Entry>)]| {
            found.iter().any(|(_, e)| e.as_ref().is_some_and(|e| e.value == value))
        };
        if self.settle(txn, mine).await? { Ok(()) } else { Err(exists()) }
    }

    /// Deletes a policy that no volume uses.
    pub async fn delete_policy(&self, name: &str) -> Result<(), ManageError> {
        if name == DEFAULT_POLICY {
            return Err(ManageError::Invalid("the default policy cannot be deleted".into()));
        }
        self.policy(name).await?;
        if let Some(user) = self.volumes().await?.iter().find(|v| v.policy == name) {
            return Err(ManageError::Conflict(format!(
                "policy {name} is used by volume {}",
                user.name
            )));
        }
        let txn = Txn { compares: vec![], changes: vec![Change::Delete(key::policy(name))] };
        self.settle(txn, |_| true).await.map(|_| ())
    }

    /// Whether a volume of that size could be placed now.
    pub fn check_policy(&self, policy: &Policy, size_bytes: u64) -> Result<(), Refusal> {
        let hosts = self.0.objects.inventory();
        let here = Some(self.0.config.host);
        placement::place(&hosts, policy, size_bytes, here, 1).map(|_| ())
    }

    // ---- volumes -------------------------------------------------------------------------

    /// The object of a volume's name.
    pub(crate) async fn find_volume(
        &self,
        name: &str,
    ) -> Result<ObjectId, atoll_world::VolumeError> {
        use atoll_world::VolumeError;
        let key = key::volume(name);
        let entry = self.world().directory().get(&key).await;
        let entry = entry.map_err(|e| VolumeError::TimedOut(e.to_string()))?;
        let entry = entry.ok_or(VolumeError::Gone)?;
        let record: VolumeRecord =
            record::decode(&key, &entry.value).map_err(VolumeError::TimedOut)?;
        Ok(record.object)
    }

    /// All volumes, sorted by name.
    pub async fn volumes(&self) -> Result<Vec<VolumeView>, ManageError> {
        let directory = self.world().directory();
        let names = directory.list(key::VOLUMES).await.map_err(ManageError::Directory)?;
        let objects = directory.list(key::OBJECTS).await.map_err(ManageError::Directory)?;
        let mut records = BTreeMap::new();
        for entry in objects.entries {
            let record: ObjectRecord =
                record::decode(&entry.key, &entry.value).map_err(ManageError::Failed)?;
            records.insert(record.id, (record, entry.modified));
        }
        let mut all = Vec::new();
        for entry in names.entries {
            let volume: VolumeRecord =
                record::decode(&entry.key, &entry.value).map_err(ManageError::Failed)?;
            let Some((record, revision)) = records.remove(&volume.object) else { continue };
            let name = entry.key[key::VOLUMES.len()..].to_string();
            all.push(self.view(name, volume, record, revision));
        }
        Ok(all)
    }

    /// One volume.
    pub async fn volume(&self, name: &str) -> Result<VolumeView, ManageError> {
        let not_found = || ManageError::NotFound { what: "volume", name: name.into() };
        let key = key::volume(name);
        let entry = self.world().directory().get(&key).await.map_err(ManageError::Directory)?;
        let entry = entry.ok_or_else(not_found)?;
        let volume: VolumeRecord =
            record::decode(&key, &entry.value).map_err(ManageError::Failed)?;
        let (record, revision) = self.object_record(volume.object).await?.ok_or_else(not_found)?;
        Ok(self.view(name.into(), volume, record, revision))
    }

    fn view(
        &self,
        name: String,
        volume: VolumeRecord,
        record: ObjectRecord,
        revision: Revision,
    ) -> VolumeView {
        let statuses = self.0.statuses.borrow();
        let said = |host: HostId| statuses.get(&host).map(|(_, s)| s);
        let used = record.members().filter_map(|(_, m)| said(m.host)?.components.get(&m.component));
        let used_bytes = used.sum();
        let open = statuses.iter().filter(|(_, (_, s))| s.open_volumes.contains_key(&record.id));
        let open_on = open.map(|(&id, _)| id).filter(|&id| self.is_alive(id)).collect();
        let owner = record
            .owner
            .filter(|o| self.is_alive(o.host))
            .and_then(|o| said(o.host)?.objects.iter().find(|s| s.id == record.id).cloned());
        VolumeView {
            name,
            policy: volume.policy,
            created_ms: volume.created_ms,
            revision: revision.0,
            used_bytes,
            open_on,
            owner,
            record,
        }
    }

    /// Makes a volume: its record, its components, then it is ready.
    pub async fn create_volume(&self, create: CreateVolume) -> Result<VolumeView, ManageError> {
        let CreateVolume { name, size_bytes, policy, prefer, dry_run } = create;
        check_size(size_bytes)?;
        let policy_name = policy.unwrap_or_else(|| DEFAULT_POLICY.into());
        let policy = self.policy(&policy_name).await?;
        let exists = || ManageError::Exists { what: "volume", name: name.clone() };
        let taken = self.world().directory().get(&key::volume(&name)).await;
        if taken.map_err(ManageError::Directory)?.is_some() {
            return Err(exists());
        }
        let id = ObjectId(self.world().random());
        let prefer = prefer.or(Some(self.0.config.host));
        let place = || {
            let hosts = self.0.objects.inventory();
            placement::place(&hosts, &policy, size_bytes, prefer, id.0)
        };
        let legs = match place() {
            Ok(legs) => legs,
            // What is known of space may be seconds old, and a disk group just made.
            Err(_) => {
                self.refresh_statuses().await;
                place().map_err(ManageError::CannotPlace)?
            }
        };
        let members = |leg: &placement::LegPlacement| {
            leg.members
                .iter()
                .map(|&(host, group)| MemberRecord {
                    component: ComponentId(self.world().random()),
                    host,
                    group,
                    state: MemberState::Active,
                })
                .collect()
        };
        let mut record = ObjectRecord {
            version: RECORD_VERSION,
            id,
            name: name.clone(),
            state: ObjectState::Creating,
            size_bytes,
            policy,
            epoch: Epoch(1),
            owner: None,
            seq_base: Seq(0),
            legs: legs.iter().map(|leg| LegRecord { members: members(leg) }).collect(),
            nonce: 0,
        };
        let volume = VolumeRecord {
            version: RECORD_VERSION,
            object: id,
            policy: policy_name,
            created_ms: self.world().unix_ms(),
        };
        if dry_run {
            record.state = ObjectState::Ready;
            return Ok(self.view(name, volume, record, Revision(0)));
        }
        let (object_key, volume_key) = (key::object(id), key::volume(&name));
        let txn = Txn {
            compares: vec![
                Compare { key: object_key.clone(), modified: Revision(0) },
                Compare { key: volume_key.clone(), modified: Revision(0) },
            ],
            changes: vec![
                Change::Put(object_key, record::encode(&record)),
                Change::Put(volume_key, record::encode(&volume)),
            ],
        };
        let mine = |found: &[(String, Option<Entry>)]| {
            found
                .iter()
                .any(|(_, e)| e.as_ref().is_some_and(|e| e.value == record::encode(&volume)))
        };
        if !self.settle(txn, mine).await? {
            return Err(exists());
        }
        if let Err(error) = self.create_components(&record).await {
            self.abandon(&name).await;
            return Err(error);
        }
        self.edit_object(&name, id, |record| {
            record.state = ObjectState::Ready;
            Ok(())
        })
        .await?;
        self.volume(&name).await
    }

    async fn create_components(&self, record: &ObjectRecord) -> Result<(), ManageError> {
        for (leg, member) in record.members() {
            let spec = ComponentSpec {
                object: record.id,
                leg: leg as u16,
                blocks: record.leg_chunks(leg) * BLOCKS_PER_CHUNK,
                epoch: record.epoch,
            };
            let (group, component) = (member.group, member.component);
            let request = Request::Create { group, component, spec };
            let deadline = self.world().now() + CREATE_DEADLINE;
            let peers = self.0.objects.peers();
            match peers.call(member.host, Lane::Control, request, deadline).await {
                Ok(Reply::Done) => {}
                Ok(Reply::Failed(StoreError::Full)) => {
                    return Err(ManageError::Failed(format!(
                        "the disk group on host {} is full",
                        self.host_name(member.host)
                    )));
                }
                Ok(Reply::Failed(error)) => {
                    return Err(ManageError::Failed(format!(
                        "host {} cannot make its copy: {error}",
                        self.host_name(member.host)
                    )));
                }
                _ => return Err(ManageError::Unreachable(self.host_name(member.host))),
            }
        }
        Ok(())
    }

    /// Compare-and-swap of an object's record from outside its owner: for states that no owner
    /// changes. Repeats on conflict.
    async fn edit_object(
        &self,
        name: &str,
        id: ObjectId,
        edit: impl Fn(&mut ObjectRecord) -> Result<(), ManageError>,
    ) -> Result<ObjectRecord, ManageError> {
        let key = key::object(id);
        for _ in 0..ATTEMPTS_MAX {
            let not_found = || ManageError::NotFound { what: "volume", name: name.into() };
            let (mut record, modified) = self.object_record(id).await?.ok_or_else(not_found)?;
            edit(&mut record)?;
            record.nonce = self.world().random();
            let mut changes = vec![Change::Put(key.clone(), record::encode(&record))];
            if record.state == ObjectState::Deleting {
                changes.push(Change::Delete(key::volume(name)));
            }
            let txn = Txn { compares: vec![Compare { key: key.clone(), modified }], changes };
            let mine = |found: &[(String, Option<Entry>)]| {
                found.iter().any(|(_, e)| {
                    e.as_ref().is_some_and(|e| {
                        record::decode::<ObjectRecord>(&key, &e.value)
                            .is_ok_and(|r| r.nonce == record.nonce)
                    })
                })
            };
            if self.settle(txn, mine).await? {
                return Ok(record);
            }
        }
        Err(ManageError::Conflict(name.into()))
    }

    async fn abandon(&self, name: &str) {
        let Ok(view) = self.volume(name).await else { return };
        let _ = self.start_delete(name, view.record.id).await;
    }

    async fn start_delete(&self, name: &str, id: ObjectId) -> Result<(), ManageError> {
        let record = self
            .edit_object(name, id, |record| {
                record.state = ObjectState::Deleting;
                // Fences its owner off, if it has one: nothing is written from here on.
                record.epoch.0 += 1;
                record.owner = None;
                Ok(())
            })
            .await?;
        if let Ok(Some((_, revision))) = self.object_record(id).await {
            self.finish_delete(&record, revision).await;
        }
        Ok(())
    }

    /// Refuses what takes data from clients, if a host has clients of the volume or may have some.
    ///
    /// A host that cannot be asked has none that matter if nobody has reached it for longer than
    /// any I/O is held, and the volume's owner is another one: all I/O passes through the owner,
    /// whose takeover has fenced an earlier one off.
    async fn refuse_if_in_use(&self, view: &VolumeView, dry_run: bool) -> Result<(), ManageError> {
        let (id, name) = (view.record.id, || view.name.clone());
        let mut hosts: BTreeSet<HostId> = self.0.hosts.borrow().keys().copied().collect();
        hosts.insert(self.0.config.host);
        let asks =
            hosts.iter().map(|&host| async move { (host, self.ask(host, Ask::Status).await) });
        let (mut users, mut silent) = (Vec::new(), Vec::new());
        let mut reached: BTreeMap<HostId, HostId> = BTreeMap::new();
        for (host, answer) in futures_util::future::join_all(asks).await {
            match answer {
                Ok(Answer::Status { status }) => {
                    if status.open_volumes.contains_key(&id) {
                        users.push(self.host_name(host));
                    }
                    reached.extend(status.reaches.iter().map(|&other| (other, host)));
                }
                Ok(_) | Err(_) => silent.push(host),
            }
        }
        if !users.is_empty() {
            return Err(ManageError::InUse { name: name(), hosts: users.join(", ") });
        }
        if silent.is_empty() {
            return Ok(());
        }
        let doubt = |host: HostId, why: String| ManageError::MayBeInUse {
            name: name(),
            host: self.host_name(host),
            why,
        };
        let now = self.world().now();
        for &host in &silent {
            if let Some(&other) = reached.get(&host) {
                return Err(doubt(host, format!("host {} reaches it", self.host_name(other))));
            }
            // Never heard of in this life: counted from its beginning.
            let heard =
                self.0.statuses.borrow().get(&host).map_or(self.0.objects.started(), |(at, _)| *at);
            let away = now.since(heard);
            if away < AWAY_MIN {
                let left = (AWAY_MIN.0 - away.0).div_ceil(1_000_000_000);
                return Err(doubt(host, format!("it is away since short: try again in {left} s")));
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

    /// The host that owns the volume: if it has no living owner, this one becomes it.
    async fn owned_by(&self, name: &str, id: ObjectId) -> Result<HostId, ManageError> {
        let until = self.world().now() + OWNER_WAIT;
        loop {
            match self.0.objects.adopt(id).await {
                Ok(()) => break,
                Err(why) if self.world().now() > until => return Err(ManageError::Failed(why)),
                // The owner may be away for a moment only, or is about to be succeeded.
                Err(_) => self.world().sleep(Nanos::from_ms(250)).await,
            }
        }
        let owner = self.volume(name).await?.record.owner;
        owner.map(|o| o.host).ok_or_else(|| ManageError::Failed("the volume has no owner".into()))
    }

    fn check_revision(view: &VolumeView, expected: Option<u64>) -> Result<(), ManageError> {
        match expected {
            Some(revision) if revision != view.revision => {
                Err(ManageError::Conflict(view.name.clone()))
            }
            _ => Ok(()),
        }
    }

    /// Deletes a volume that nobody has open; `force`: that nobody is known to have open.
    pub async fn delete_volume(
        &self,
        name: &str,
        expected: Option<u64>,
        force: bool,
        dry_run: bool,
    ) -> Result<(), ManageError> {
        let view = self.volume(name).await?;
        Self::check_revision(&view, expected)?;
        match self.refuse_if_in_use(&view, dry_run).await {
            Err(ManageError::MayBeInUse { .. }) if force => {}
            other => other?,
        }
        if dry_run {
            return Ok(());
        }
        self.start_delete(name, view.record.id).await
    }

    /// Grows a volume (also in use), or shrinks it (only unused; what lies beyond is lost).
    pub async fn resize_volume(
        &self,
        name: &str,
        size_bytes: u64,
        expected: Option<u64>,
        dry_run: bool,
    ) -> Result<VolumeView, ManageError> {
        check_size(size_bytes)?;
        let view = self.volume(name).await?;
        Self::check_revision(&view, expected)?;
        let id = view.record.id;
        let shrinks = size_bytes < view.record.size_bytes;
        if shrinks {
            self.refuse_if_in_use(&view, dry_run).await?;
        }
        if dry_run {
            return Ok(view);
        }
        // The view may be an old one, so that also "nothing to do" is the owner's to say.
        if shrinks {
            // Zeros first, so that growing again shows none of the old bytes.
            use atoll_world::Volume;
            let volume = atoll_object::ObjectVolume::open(self.0.objects.clone(), id).await;
            let volume = volume.map_err(|e| ManageError::Failed(e.to_string()))?;
            let rest = view.record.size_bytes - size_bytes;
            let discarded = volume.discard(size_bytes, rest).await;
            discarded.map_err(|e| ManageError::Failed(e.to_string()))?;
            // That may have taken long.
            self.refuse_if_in_use(&view, false).await?;
        }
        // Only the owner changes a record in use; an object without one gets one.
        let host = self.owned_by(name, id).await?;
        let ask = match shrinks {
            true => Ask::Shrink { object: id, size_bytes },
            false => Ask::Grow { object: id, size_bytes },
        };
        self.ask(host, ask).await?;
        self.volume(name).await
    }

    /// Where a volume is, and why.
    pub async fn placement(&self, name: &str) -> Result<PlacementView, ManageError> {
        let volume = self.volume(name).await?;
        let explanation = placement::explain(&volume.record, &self.0.objects.inventory());
        Ok(PlacementView { volume, explanation })
    }

    // ---- everything at once --------------------------------------------------------------

    /// Starts (or with rate 0 stops) a scrub of everything, or of one volume.
    pub async fn scrub(&self, volume: Option<&str>, rate: u64) -> Result<(), ManageError> {
        let object = match volume {
            Some(name) => Some(self.volume(name).await?.record.id),
            None => None,
        };
        let hosts: Vec<HostId> = self.0.hosts.borrow().keys().copied().collect();
        for host in hosts.into_iter().filter(|&h| self.is_alive(h)) {
            self.ask(host, Ask::Scrub { object, bytes_per_second: rate }).await?;
        }
        Ok(())
    }

    /// Pauses, resumes or limits resync on all hosts that can be reached.
    pub async fn set_resync(&self, paused: bool, limit: u64) -> Result<(), ManageError> {
        let hosts: Vec<HostId> = self.0.hosts.borrow().keys().copied().collect();
        for host in hosts.into_iter().filter(|&h| self.is_alive(h)) {
            self.ask(host, Ask::Resync { paused, bytes_per_second: limit }).await?;
        }
        Ok(())
    }

    /// Events of all hosts that can be reached, oldest first.
    pub async fn events(&self, after: &BTreeMap<HostId, u64>) -> Vec<NodeEvent> {
        let hosts: Vec<HostId> = self.0.hosts.borrow().keys().copied().collect();
        let mut all = Vec::new();
        for host in hosts.into_iter().filter(|&h| self.is_alive(h)) {
            let after = after.get(&host).copied().unwrap_or(0);
            if let Ok(Answer::Events { events }) = self.ask(host, Ask::Events { after }).await {
                all.extend(events);
            }
        }
        all.sort_by_key(|e| (e.at_ms, e.host, e.number));
        all
    }
}

fn check_size(size_bytes: u64) -> Result<(), ManageError> {
    check_object_size(size_bytes).map_err(|(why, near)| {
        let near = near.map(|near| format!("; the next one is {near}")).unwrap_or_default();
        ManageError::Invalid(format!("the size {why}{near}"))
    })
}

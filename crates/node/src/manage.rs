//! Management: volumes, policies, scrubs and resync, as functions. REST and the simulator call
//! them; whatever changes the cluster is a transaction of the directory.

use crate::Node;
use crate::admin::{Answer, Ask};
use crate::status::{EventMark, NodeEvent};
use crate::volume_lock::Lock;
use atoll_format::id::{ComponentId, Epoch, GroupId, HostId, ObjectId, Seq};
use atoll_format::record::{
    self, LegRecord, LockPurpose, MemberRecord, MemberState, ObjectRecord, ObjectState, Policy,
    PolicyRecord, RECORD_VERSION, VolumeRecord, key,
};
use atoll_format::units::{BLOCKS_PER_CHUNK, check_object_size};
use atoll_object::limits::{HOLD, LEASE};
use atoll_object::message::{Reply, Request};
use atoll_object::placement::{self, Explanation, HostView, Refusal};
use atoll_world::components::ComponentSpec;
use atoll_world::directory::{Change, Compare, Directory, Entry, Revision, Txn, TxnReply};
use atoll_world::{Components, DirectoryError, Lane, Nanos, StoreError, World, sometimes};
use std::collections::BTreeMap;

/// The policy of volumes that name none.
pub const DEFAULT_POLICY: &str = "default";
/// How long a host may take to make a component.
const CREATE_DEADLINE: Nanos = Nanos::from_secs(5);
/// Attempts to make a volume: as many as may make volumes with one policy at once, about.
const CREATE_ATTEMPTS_MAX: usize = 64;
/// The longest wait before the next attempt, if another volume was made with the policy meanwhile.
const POLICY_WAIT: Nanos = Nanos::from_ms(100);
/// How long a host has been away before its clients count as gone: no I/O of theirs is held longer.
pub(crate) const AWAY_MIN: Nanos = Nanos(HOLD.0 + LEASE.0);
/// How long a host may take to take note of something, or to tell what has happened.
const TELL_WAIT: Nanos = Nanos::from_secs(2);
/// How long an owner is waited for: a takeover waits for a grace, and may have to begin again.
const OWNER_WAIT: Nanos = Nanos::from_secs(10);
/// How long what an owner does not answer is looked for in the directory.
const ANSWER_WAIT: Nanos = Nanos::from_secs(2);
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
    /// Another host has it to itself.
    #[error("volume '{name}' is locked: host {host} has it to itself for {purpose}")]
    Locked {
        /// Which volume.
        name: String,
        /// By whom.
        host: String,
        /// For what.
        purpose: LockPurpose,
    },
    /// It holds data, or may; nobody said that this is to be replaced.
    #[error("volume '{name}' holds data")]
    HoldsData {
        /// Which volume.
        name: String,
    },
    /// It is smaller than what is to be put in.
    #[error("volume '{name}' has {size} bytes, {wanted} are needed")]
    TooSmall {
        /// Which volume.
        name: String,
        /// Its size in bytes.
        size: u64,
        /// The size that is needed, in bytes.
        wanted: u64,
    },
    /// It would shrink, and nobody said that what lies beyond may be lost.
    #[error(
        "the new size of volume {name}, {size} bytes, is below the present one, {before}: what \
         lies beyond would be lost"
    )]
    WouldShrink {
        /// Which volume.
        name: String,
        /// The size that was asked for, in bytes.
        size: u64,
        /// Its size now, in bytes.
        before: u64,
    },
    /// A policy that a volume was made with.
    #[error("policy {policy} is used by volume {volume}")]
    PolicyInUse {
        /// Which policy.
        policy: String,
        /// Of which volume.
        volume: String,
    },
    /// Somebody changed it meanwhile.
    #[error("'{0}' was changed by somebody else meanwhile")]
    Conflict(String),
    /// It may have been done, or may yet be; a sentence.
    #[error("{0}")]
    Unknown(String),
    /// The directory gives no answer.
    #[error("{0}")]
    Directory(DirectoryError),
    /// A host cannot be reached: it was asked for nothing.
    #[error("host {0} cannot be reached")]
    Unreachable(String),
    /// A host was asked and gives no answer: it may do what it was asked for.
    #[error("host {0} does not answer")]
    NoAnswer(String),
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

/// A new size for a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resize {
    /// In bytes, a multiple of 4 KiB.
    pub size_bytes: u64,
    /// It may be smaller than now: what lies beyond is lost.
    pub may_shrink: bool,
    /// Only look whether it could be done.
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
    /// Bytes of capacity that its copies use, as their hosts last said; none if one has not yet.
    pub used_bytes: Option<u64>,
    /// Bytes that one copy uses, of each leg the fullest that is up to date; none if unknown.
    pub guest_bytes: Option<u64>,
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

/// What has come of an attempt to make a volume.
enum Attempt {
    Made(Box<VolumeView>),
    /// Nothing was done: its policy is not as it was read.
    PolicyMoved,
    /// Nothing is left of it: a component could not be made in this place.
    NotThere(Refused),
}

/// A place that has refused, whatever is known of it.
enum Refused {
    Silent(HostId),
    Full(GroupId),
}

impl Refused {
    fn apply(&self, hosts: &mut [HostView]) {
        match *self {
            Self::Silent(id) => {
                hosts.iter_mut().filter(|h| h.id == id).for_each(|h| h.alive = false);
            }
            Self::Full(id) => {
                let groups = hosts.iter_mut().flat_map(|h| &mut h.groups);
                groups.filter(|g| g.id == id).for_each(|g| g.free_components = 0);
            }
        }
    }
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
    ///
    /// # Errors
    /// [`ManageError::Unknown`] if it may have been applied, or may yet be; else it was not.
    pub(crate) async fn settle(
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
        Err(match unknown {
            true => ManageError::Unknown(last.to_string()),
            false => ManageError::Directory(last),
        })
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
        let key = key::policy(name);
        for _ in 0..ATTEMPTS_MAX {
            let entry = self.world().directory().get(&key).await.map_err(ManageError::Directory)?;
            let not_found = || ManageError::NotFound { what: "policy", name: name.into() };
            let modified = entry.ok_or_else(not_found)?.modified;
            // Every volume that is made with it writes it again, so that a view that is as new as
            // its revision shows all of them.
            let listing = self.world().directory().list(key::VOLUMES).await;
            let listing = listing.map_err(ManageError::Directory)?;
            if listing.revision < modified {
                continue;
            }
            for entry in &listing.entries {
                let volume: VolumeRecord =
                    record::decode(&entry.key, &entry.value).map_err(ManageError::Failed)?;
                if volume.policy == name {
                    let volume = entry.key[key::VOLUMES.len()..].to_string();
                    return Err(ManageError::PolicyInUse { policy: name.into(), volume });
                }
            }
            let txn = Txn {
                compares: vec![Compare { key: key.clone(), modified }],
                changes: vec![Change::Delete(key.clone())],
            };
            let gone = |found: &[(String, Option<Entry>)]| found.iter().all(|(_, e)| e.is_none());
            if self.settle(txn, gone).await? {
                return Ok(());
            }
        }
        Err(ManageError::Conflict(name.into()))
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
        // A host that has told and does not name the component has none of it (a lost copy).
        let used = |host: HostId, component: ComponentId| {
            Some(said(host)?.components.get(&component).copied().unwrap_or(0))
        };
        let used_bytes = record.members().map(|(_, m)| used(m.host, m.component)).sum();
        // The fullest copy that is whole: one that is behind, or has just come, holds less.
        let of_leg = |leg: &LegRecord| {
            let whole = leg.members.iter().filter(|m| m.state.is_active());
            whole.filter_map(|m| used(m.host, m.component)).max()
        };
        let guest_bytes = record.legs.iter().map(of_leg).sum();
        let open = statuses.iter().filter(|(_, (_, s))| s.open_volumes.contains_key(&record.id));
        let open_on = open.map(|(&id, _)| id).filter(|&id| self.is_alive(id)).collect();
        let owner = record
            .owner
            .filter(|o| self.answers(o.host))
            .and_then(|o| said(o.host)?.objects.iter().find(|s| s.id == record.id).cloned());
        VolumeView {
            name,
            policy: volume.policy,
            created_ms: volume.created_ms,
            revision: revision.0,
            used_bytes,
            guest_bytes,
            open_on,
            owner,
            record,
        }
    }

    /// Makes a volume: its record, its components, then it is ready. Where a host turns out not to
    /// answer, or a disk group to be full, other places are tried: nobody looks at the cluster and
    /// changes it at once.
    pub async fn create_volume(&self, create: CreateVolume) -> Result<VolumeView, ManageError> {
        check_size(create.size_bytes)?;
        let mut refused = Vec::new();
        for _ in 0..CREATE_ATTEMPTS_MAX {
            match self.try_create(&create, &refused).await? {
                Attempt::Made(view) => return Ok(*view),
                // Each volume that is made with a policy writes it: some other was faster.
                Attempt::PolicyMoved => {
                    let wait = self.world().random() % POLICY_WAIT.0;
                    self.world().sleep(Nanos(wait)).await;
                }
                Attempt::NotThere(place) => {
                    sometimes!("create.another_place_is_tried");
                    refused.push(place);
                }
            }
        }
        Err(ManageError::Conflict(create.name))
    }

    /// One attempt, elsewhere than `refused` says.
    async fn try_create(
        &self,
        create: &CreateVolume,
        refused: &[Refused],
    ) -> Result<Attempt, ManageError> {
        let CreateVolume { name, size_bytes, policy, prefer, dry_run } = create.clone();
        let policy_name = policy.unwrap_or_else(|| DEFAULT_POLICY.into());
        let policy = self.policy(&policy_name).await?;
        let policy_entry = match policy_name == DEFAULT_POLICY {
            true => None,
            false => {
                let entry = self.world().directory().get(&key::policy(&policy_name)).await;
                let gone = || ManageError::NotFound { what: "policy", name: policy_name.clone() };
                Some(entry.map_err(ManageError::Directory)?.ok_or_else(gone)?)
            }
        };
        let exists = || ManageError::Exists { what: "volume", name: name.clone() };
        let taken = self.world().directory().get(&key::volume(&name)).await;
        if taken.map_err(ManageError::Directory)?.is_some() {
            return Err(exists());
        }
        let id = ObjectId(self.world().random());
        let prefer = prefer.or(Some(self.0.config.host));
        let place = || {
            let mut hosts = self.0.objects.inventory();
            refused.iter().for_each(|place| place.apply(&mut hosts));
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
            return Ok(Attempt::Made(Box::new(self.view(name, volume, record, Revision(0)))));
        }
        let (object_key, volume_key) = (key::object(id), key::volume(&name));
        let mut txn = Txn {
            compares: vec![
                Compare { key: object_key.clone(), modified: Revision(0) },
                Compare { key: volume_key.clone(), modified: Revision(0) },
            ],
            changes: vec![
                Change::Put(object_key, record::encode(&record)),
                Change::Put(volume_key.clone(), record::encode(&volume)),
            ],
        };
        if let Some(Entry { key, value, modified }) = policy_entry {
            // Written as it is: whoever deletes it meanwhile sees that it is used.
            txn.compares.push(Compare { key: key.clone(), modified });
            txn.changes.push(Change::Put(key, value));
        }
        let mine = |found: &[(String, Option<Entry>)]| {
            found
                .iter()
                .any(|(_, e)| e.as_ref().is_some_and(|e| e.value == record::encode(&volume)))
        };
        // Who gives up here leaves nothing that stays: what is never ready is removed again.
        if !self.settle(txn, mine).await? {
            let taken = self.world().directory().get(&volume_key).await;
            let taken = taken.map_err(ManageError::Directory)?.is_some();
            return if taken { Err(exists()) } else { Ok(Attempt::PolicyMoved) };
        }
        if let Err((place, error)) = self.create_components(&record).await {
            // Only this call makes it ready: if it cannot be removed now, it is removed later.
            let removed = self.start_delete(id, &[], |r| r.state == ObjectState::Creating).await;
            return match (place, removed) {
                (Some(place), Ok(())) => Ok(Attempt::NotThere(place)),
                _ => Err(error),
            };
        }
        let (record, revision) = self.make_ready(&name, id).await?;
        Ok(Attempt::Made(Box::new(self.view(name, volume, record, revision))))
    }

    /// The last step of making a volume: if it is still the one that is being made.
    async fn make_ready(
        &self,
        name: &str,
        id: ObjectId,
    ) -> Result<(ObjectRecord, Revision), ManageError> {
        let deleted = || ManageError::Conflict(name.into());
        let key = key::object(id);
        for _ in 0..ATTEMPTS_MAX {
            let (mut record, modified) = self.object_record(id).await?.ok_or_else(deleted)?;
            match record.state {
                ObjectState::Creating => {}
                // Of an attempt whose answer was lost: nobody else makes it ready.
                ObjectState::Ready => return Ok((record, modified)),
                ObjectState::Deleting => return Err(deleted()),
            }
            record.state = ObjectState::Ready;
            record.nonce = self.world().random();
            let value = record::encode(&record);
            let txn = Txn {
                compares: vec![Compare { key: key.clone(), modified }],
                changes: vec![Change::Put(key.clone(), value)],
            };
            let unknown = |error| match error {
                ManageError::Unknown(why) => ManageError::Unknown(format!(
                    "whether volume {name} has become ready is not known: {why}"
                )),
                other => other,
            };
            // Also a conflict is looked at again: it may be our own.
            let _ = self.settle(txn, |_| false).await.map_err(unknown)?;
        }
        Err(deleted())
    }

    /// # Errors
    /// Why a component could not be made, and if another place may do, which one did not.
    async fn create_components(
        &self,
        record: &ObjectRecord,
    ) -> Result<(), (Option<Refused>, ManageError)> {
        for (leg, member) in record.members() {
            let spec = ComponentSpec {
                object: record.id,
                leg: leg as u16,
                blocks: record.leg_chunks(leg) * BLOCKS_PER_CHUNK,
                epoch: record.epoch,
            };
            let (host, group, component) = (member.host, member.group, member.component);
            let request = Request::Create { group, component, spec };
            let deadline = self.world().now() + CREATE_DEADLINE;
            let peers = self.0.objects.peers();
            let name = self.host_name(host);
            match peers.call(host, Lane::Control, request, deadline).await {
                Ok(Reply::Done) => {}
                Ok(Reply::Failed(StoreError::Full)) => {
                    let error = format!("the disk group on host {name} is full");
                    return Err((Some(Refused::Full(group)), ManageError::Failed(error)));
                }
                Ok(Reply::Failed(error)) => {
                    let error = format!("host {name} cannot make its copy: {error}");
                    return Err((None, ManageError::Failed(error)));
                }
                _ => return Err((Some(Refused::Silent(host)), ManageError::Unreachable(name))),
            }
        }
        Ok(())
    }

    /// Takes an object's name away and has its components deleted, if `still` holds of its record
    /// and nothing that `guards` compares has moved. Other objects' names stay.
    ///
    /// # Errors
    /// [`ManageError::NotFound`]: there is no such object; [`ManageError::Conflict`]: `still` or a
    /// guard does not hold, and nothing was changed; [`ManageError::Unknown`].
    pub(crate) async fn start_delete(
        &self,
        id: ObjectId,
        guards: &[Compare],
        still: impl Fn(&ObjectRecord) -> bool,
    ) -> Result<(), ManageError> {
        let object_key = key::object(id);
        let gone = || ManageError::NotFound { what: "volume", name: id.to_string() };
        for _ in 0..ATTEMPTS_MAX {
            let (mut record, modified) = self.object_record(id).await?.ok_or_else(gone)?;
            if record.state == ObjectState::Deleting {
                return Ok(());
            }
            if !still(&record) {
                return Err(ManageError::Conflict(record.name));
            }
            let name_key = key::volume(&record.name);
            let named = self.world().directory().get(&name_key).await;
            let named = named.map_err(ManageError::Directory)?;
            let leads_here = named.as_ref().is_some_and(|entry| {
                let volume = record::decode::<VolumeRecord>(&name_key, &entry.value);
                volume.is_ok_and(|volume| volume.object == id)
            });
            record.state = ObjectState::Deleting;
            // Fences its owner off, if it has one: nothing is written from here on.
            record.epoch.0 += 1;
            record.owner = None;
            record.nonce = self.world().random();
            let named_at = named.map_or(Revision(0), |entry| entry.modified);
            let mut compares = vec![
                Compare { key: object_key.clone(), modified },
                Compare { key: name_key.clone(), modified: named_at },
            ];
            compares.extend(guards.iter().cloned());
            let mut changes = vec![
                Change::Put(object_key.clone(), record::encode(&record)),
                Change::Delete(key::lock(id)),
            ];
            if leads_here {
                changes.push(Change::Delete(name_key));
            }
            let nonce = record.nonce;
            let mine = |found: &[(String, Option<Entry>)]| {
                found.iter().any(|(key, e)| {
                    let record = e.as_ref().map(|e| record::decode::<ObjectRecord>(key, &e.value));
                    record.is_some_and(|r| r.is_ok_and(|r| r.nonce == nonce))
                })
            };
            if self.settle(Txn { compares, changes }, mine).await? {
                if let Ok(Some((record, revision))) = self.object_record(id).await
                    && record.state == ObjectState::Deleting
                {
                    self.finish_delete(&record, revision).await;
                }
                return Ok(());
            }
            for guard in guards {
                let now = self.world().directory().get(&guard.key).await;
                let now = now.map_err(ManageError::Directory)?;
                if now.map_or(Revision(0), |entry| entry.modified) != guard.modified {
                    return Err(ManageError::Conflict(record.name));
                }
            }
        }
        Err(ManageError::Conflict(id.to_string()))
    }

    /// The host that owns the volume: if it has no living owner, this one becomes it.
    pub(crate) async fn owned_by(&self, name: &str, id: ObjectId) -> Result<HostId, ManageError> {
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
        if dry_run {
            return match self.refuse_if_in_use(&view, None, true).await {
                Err(ManageError::MayBeInUse { .. }) if force => Ok(()),
                other => other,
            };
        }
        let held = match self.lock_unused(&view, LockPurpose::Delete, force).await {
            // It never became ready, so that nobody has it open.
            Err(ManageError::NotFound { .. }) if view.record.state == ObjectState::Creating => None,
            other => Some(other?),
        };
        let mut guards: Vec<Compare> = held.iter().map(Lock::guard).collect();
        let at = |revision| Compare { key: key::object(view.record.id), modified: revision };
        guards.extend(expected.map(|revision| at(Revision(revision))));
        let deleted = self.start_delete(view.record.id, &guards, |_| true).await;
        if let (Err(_), Some(held)) = (&deleted, held) {
            self.let_go(held).await;
        }
        deleted
    }

    /// Grows a volume (also in use), or shrinks it (only unused; what lies beyond is lost).
    pub async fn resize_volume(
        &self,
        name: &str,
        resize: Resize,
        expected: Option<u64>,
    ) -> Result<VolumeView, ManageError> {
        let Resize { size_bytes, may_shrink, dry_run } = resize;
        check_size(size_bytes)?;
        let view = self.volume(name).await?;
        Self::check_revision(&view, expected)?;
        let id = view.record.id;
        if size_bytes < view.record.size_bytes {
            if !may_shrink {
                let (name, before) = (name.into(), view.record.size_bytes);
                return Err(ManageError::WouldShrink { name, size: size_bytes, before });
            }
            if dry_run {
                self.refuse_if_in_use(&view, None, true).await?;
                return Ok(view);
            }
            return self.shrink_volume(&view, size_bytes).await;
        }
        if size_bytes > view.record.size_bytes {
            self.check_growth(&view, size_bytes).await?;
        }
        if dry_run {
            return Ok(view);
        }
        // The view may be an old one, so that also "nothing to do" is the owner's to say.
        let from = view.record.size_bytes;
        let ask = || Ask::Grow { object: id, from, size_bytes };
        match self.ask_owner(name, id, ask).await {
            Ok(Answer::Changed) => Err(ManageError::Conflict(name.into())),
            Ok(_) => self.volume(name).await,
            Err(ManageError::NoAnswer(host)) => self.was_resized(name, id, size_bytes, &host).await,
            Err(error) => Err(error),
        }
    }

    /// Asks the owner of an object, whoever that is by now.
    pub(crate) async fn ask_owner(
        &self,
        name: &str,
        id: ObjectId,
        ask: impl Fn() -> Ask,
    ) -> Result<Answer, ManageError> {
        let until = self.world().now() + OWNER_WAIT;
        loop {
            let host = self.owned_by(name, id).await?;
            match self.ask(host, ask()).await? {
                Answer::NotOwner if self.world().now() < until => {
                    sometimes!("manage.owner_has_changed");
                    self.world().sleep(Nanos::from_ms(100)).await;
                }
                Answer::NotOwner => {
                    let why = format!("the owner of volume {name} changes all the time");
                    return Err(ManageError::Failed(why));
                }
                answer => return Ok(answer),
            }
        }
    }

    /// A growth that its owner did not answer: done, or nobody knows.
    async fn was_resized(
        &self,
        name: &str,
        id: ObjectId,
        size_bytes: u64,
        host: &str,
    ) -> Result<VolumeView, ManageError> {
        let until = self.world().now() + ANSWER_WAIT;
        loop {
            let view = self.volume(name).await;
            if let Ok(view) = view
                && view.record.id == id
                && view.record.size_bytes == size_bytes
            {
                sometimes!("manage.growth_without_an_answer_was_done");
                return Ok(view);
            }
            if self.world().now() > until {
                return Err(ManageError::Unknown(format!(
                    "host {host}, which owns volume {name}, does not answer: whether the volume \
                     has grown, or will, is not known"
                )));
            }
            self.world().sleep(Nanos::from_ms(250)).await;
        }
    }

    /// Discards what lies beyond the new end, and has the owner shrink the volume: all under a lock
    /// that the owner's change compares. When the owner does not answer, the lock is given back:
    /// then the size says whether it has been done, and it never will be later.
    async fn shrink_volume(
        &self,
        view: &VolumeView,
        size_bytes: u64,
    ) -> Result<VolumeView, ManageError> {
        let name = &view.name;
        let held = self.lock_unused(view, LockPurpose::Shrink, false).await?;
        let asked = self.discard_and_shrink(view, size_bytes, &held).await;
        let host = match asked {
            Ok(()) => {
                self.let_go(held).await;
                return self.volume(name).await;
            }
            Err(ManageError::NoAnswer(host)) => host,
            Err(error) => {
                self.let_go(held).await;
                return Err(error);
            }
        };
        let unknown = |why: &str| {
            ManageError::Unknown(format!(
                "host {host}, which owns volume {name}, does not answer, and {why}: whether the \
                 volume was shrunk is not known"
            ))
        };
        if let Err(error) = self.give_back(&held).await {
            return Err(unknown(&error.to_string()));
        }
        sometimes!("manage.shrink_without_an_answer");
        match self.record_without_lock(&held).await {
            Ok(Some(size)) if size == size_bytes => self.volume(name).await,
            Ok(Some(_)) => Err(ManageError::Failed(format!(
                "host {host}, which owns volume {name}, does not answer: the volume was not \
                 shrunk, and will not be; what lay beyond its new end may be gone"
            ))),
            Ok(None) => Err(ManageError::NotFound { what: "volume", name: name.clone() }),
            Err(error) => Err(unknown(&error.to_string())),
        }
    }

    /// The size in an object's record, as it is after a lock was given back: in a view that shows
    /// the lock gone, or a newer one. Views may be old.
    async fn record_without_lock(&self, held: &Lock<W, S>) -> Result<Option<u64>, ManageError> {
        let (id, directory) = (held.record.object, self.world().directory());
        let (object_key, lock_key) = (key::object(id), key::lock(id));
        for _ in 0..ATTEMPTS_MAX {
            let locks = directory.list(&lock_key).await.map_err(ManageError::Directory)?;
            let is_ours = |entry: &Entry| entry.modified == held.revision();
            let is_gone = locks.revision > held.revision() && !locks.entries.iter().any(is_ours);
            let objects = directory.list(&object_key).await.map_err(ManageError::Directory)?;
            if !is_gone || objects.revision < locks.revision {
                self.world().sleep(Nanos::from_ms(100)).await;
                continue;
            }
            let Some(entry) = objects.entries.first() else { return Ok(None) };
            let record = record::decode::<ObjectRecord>(&object_key, &entry.value);
            return Ok(Some(record.map_err(ManageError::Failed)?.size_bytes));
        }
        Err(ManageError::Failed("the directory shows only what was before".into()))
    }

    async fn discard_and_shrink(
        &self,
        view: &VolumeView,
        size_bytes: u64,
        held: &Lock<W, S>,
    ) -> Result<(), ManageError> {
        let (name, id) = (&view.name, view.record.id);
        let volume = atoll_object::ObjectVolume::open(self.0.objects.clone(), id).await;
        let volume = volume.map_err(|e| ManageError::Failed(e.to_string()))?;
        let size = atoll_world::Volume::info(&volume).size_bytes;
        // Only the owner changes a record in use, and knows its copies and its size: the view may
        // be an old one. A refusal comes before anything is discarded.
        let ask = || Ask::MayShrink { object: id, from: size };
        match self.ask_owner(name, id, ask).await {
            Ok(Answer::Changed) => return Err(ManageError::Conflict(name.clone())),
            Ok(_) => {}
            Err(ManageError::NoAnswer(host)) => return Err(ManageError::Unreachable(host)),
            Err(error) => return Err(error),
        }
        // Zeros first, so that growing again shows none of the old bytes.
        let rest = size.saturating_sub(size_bytes);
        let discarded = atoll_world::Volume::discard(&volume, size_bytes, rest).await;
        discarded.map_err(|e| {
            ManageError::Failed(format!(
                "volume {name} was not shrunk, and will not be; what lay beyond its new end may be \
                 gone: {e}"
            ))
        })?;
        let lock = held.revision().0;
        let ask = || Ask::Shrink { object: id, from: size, size_bytes, lock };
        match self.ask_owner(name, id, ask).await? {
            Answer::Changed => Err(ManageError::Conflict(name.clone())),
            _ => Ok(()),
        }
    }

    /// Refuses a growth for which there is no room, as [`Self::create_volume`] refuses the size.
    async fn check_growth(&self, view: &VolumeView, size_bytes: u64) -> Result<(), ManageError> {
        let grow = || {
            let statuses = self.0.statuses.borrow();
            let used = |component: ComponentId| {
                let all = statuses.values().filter_map(|(_, s)| s.components.get(&component));
                all.copied().max().unwrap_or(0)
            };
            placement::grow(&self.0.objects.inventory(), &view.record, size_bytes, used)
        };
        if grow().is_err() {
            // What is known of space may be seconds old.
            self.refresh_statuses().await;
            grow().map_err(ManageError::CannotPlace)?;
        }
        Ok(())
    }

    /// Where a volume is, and why.
    pub async fn placement(&self, name: &str) -> Result<PlacementView, ManageError> {
        let volume = self.volume(name).await?;
        let explanation = placement::explain(&volume.record, &self.0.objects.inventory());
        Ok(PlacementView { volume, explanation })
    }

    // ---- everything at once --------------------------------------------------------------

    /// Starts (or with rate 0 stops) a scrub of everything, or of one volume, on all hosts that can
    /// be reached; the others are returned.
    pub async fn scrub(&self, volume: Option<&str>, rate: u64) -> Result<Vec<HostId>, ManageError> {
        let object = match volume {
            Some(name) => Some(self.volume(name).await?.record.id),
            None => None,
        };
        let scrub = |_| Some(Ask::Scrub { object, bytes_per_second: rate });
        self.tell_everybody(scrub).await
    }

    /// Pauses, resumes or limits resync on all hosts that can be reached; the others are returned.
    pub async fn set_resync(&self, paused: bool, limit: u64) -> Result<Vec<HostId>, ManageError> {
        self.tell_everybody(|_| Some(Ask::Resync { paused, bytes_per_second: limit })).await
    }

    /// Each host that answers does it, whatever becomes of the others; those that do not answer.
    async fn tell_everybody(
        &self,
        ask: impl Fn(HostId) -> Option<Ask>,
    ) -> Result<Vec<HostId>, ManageError> {
        let (done, silent) = self.ask_everybody(ask, TELL_WAIT).await;
        done.into_iter().try_for_each(|(_, done)| done.map(drop))?;
        Ok(silent)
    }

    /// Events of all hosts that can be reached, oldest first by the clocks of those who saw them,
    /// and the hosts that do not tell. `after`: of each host those after that mark, all without
    /// one; none is asked for nothing.
    pub async fn events(
        &self,
        after: &BTreeMap<HostId, Option<EventMark>>,
    ) -> (Vec<NodeEvent>, Vec<HostId>) {
        let ask = |host: HostId| {
            let after = after.get(&host).copied().unwrap_or(Some(EventMark::default()))?;
            Some(Ask::Events { after })
        };
        let (told, silent) = self.ask_everybody(ask, TELL_WAIT).await;
        let mut all = Vec::new();
        for (_, answer) in told {
            if let Ok(Answer::Events { events }) = answer {
                all.extend(events);
            }
        }
        all.sort_by_key(|e| (e.at_ms, e.host, e.number));
        (all, silent)
    }
}

fn check_size(size_bytes: u64) -> Result<(), ManageError> {
    check_object_size(size_bytes).map_err(|(why, near)| {
        let near = near.map(|near| format!("; the next one is {near}")).unwrap_or_default();
        ManageError::Invalid(format!("the size {why}{near}"))
    })
}

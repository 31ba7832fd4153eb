//! Making a volume: its record, its components, then it is ready.
//!
//! Invariants: who gives up leaves nothing that stays, because what is never made ready is removed;
//! only the call that made the record makes it ready.

use crate::error::ManageError;
use crate::manage::policies::DEFAULT_POLICY;
use crate::node::Node;
use crate::transaction::ATTEMPTS_MAX;
use crate::volume_view::VolumeView;
use atoll_format::id::{ComponentId, Epoch, GroupId, HostId, ObjectId, Seq};
use atoll_format::record::{
    self, LegRecord, MemberRecord, MemberState, ObjectRecord, ObjectState, RECORD_VERSION,
    VolumeRecord, key,
};
use atoll_format::units::{BLOCK, BLOCKS_PER_CHUNK, CHUNK, COMPONENT_MAX, check_object_size};
use atoll_object::message::{Reply, Request};
use atoll_object::placement::{self, HostView, Plan};
use atoll_object::promised::promised_bytes;
use atoll_world::components::ComponentSpec;
use atoll_world::directory::{Compare, Directory, Entry, KeyChange, Revision, Txn};
use atoll_world::{Components, Lane, Nanos, StoreError, World, sometimes};
use futures_util::future::join;
use std::collections::BTreeSet;

/// How long a host may take to make a component.
const CREATE_DEADLINE: Nanos = Nanos::from_secs(5);
/// Attempts to make a volume: as many as may make volumes with one policy at once, about.
const CREATE_ATTEMPTS_MAX: usize = 64;
/// The longest wait before the next attempt, if another volume was made with the policy meanwhile.
const POLICY_WAIT: Nanos = Nanos::from_ms(100);

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
    /// Whether a leg is there all the same.
    fn has(&self, leg: &placement::LegPlacement) -> bool {
        leg.members.iter().any(|&(host, group)| match *self {
            Self::Silent(id) => host == id,
            Self::Full(id) => group == id,
        })
    }

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
        let volume_key = key::volume(&name);
        let (taken, promises) = join(self.entry(&volume_key), self.promises()).await;
        if taken?.is_some() {
            return Err(exists());
        }
        let promises = promises?;
        let id = ObjectId(self.world().random());
        let prefer = prefer.or(Some(self.0.config.host));
        let place = || {
            let mut hosts = self.unreserved(&promises, None);
            refused.iter().for_each(|place| place.apply(&mut hosts));
            placement::place(&hosts, &policy, size_bytes, prefer, id.0)
        };
        let Plan { policy, legs } = match place() {
            Ok(plan) => plan,
            // What is known of space may be seconds old, and a disk group just made.
            Err(_) => {
                self.refresh_statuses().await;
                place().map_err(ManageError::CannotPlace)?
            }
        };
        let legs_needed = record::legs_needed(&policy, size_bytes);
        assert_eq!(legs.len(), legs_needed, "legs of {name}, and what {size_bytes} bytes need");
        for leg in &legs {
            let hosts: BTreeSet<HostId> = leg.members.iter().map(|&(host, _)| host).collect();
            assert_eq!(hosts.len(), policy.members(), "hosts of a leg of {name}: {leg:?}");
            assert!(!refused.iter().any(|place| place.has(leg)), "refused before: {leg:?}");
        }
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
            attached: None,
            served: None,
            nonce: 0,
        };
        self.check_promise(&promises, promised_bytes(&record))?;
        let mut room = 0;
        for (leg, placed) in legs.iter().enumerate() {
            let bytes = u64::from(record.leg_chunks(leg)) * CHUNK;
            assert_eq!(bytes, placed.bytes, "bytes of leg {leg} of {name}, and room for it");
            room += bytes;
        }
        assert!(room >= size_bytes, "{name} has {size_bytes} bytes in legs of {room}");
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
        let object_key = key::object(id);
        let mut txn = Txn {
            compares: vec![
                Compare { key: object_key.clone(), modified: Revision(0) },
                Compare { key: volume_key.clone(), modified: Revision(0) },
            ],
            changes: vec![
                KeyChange::Put(object_key, record::encode(&record)),
                KeyChange::Put(volume_key.clone(), record::encode(&volume)),
            ],
        };
        // A host that is removed meanwhile would leave a volume behind that needs it.
        let hosts: BTreeSet<HostId> = record.members().map(|(_, member)| member.host).collect();
        let belongs = |host| Compare { key: key::removed(host), modified: Revision(0) };
        txn.compares.extend(hosts.into_iter().map(belongs));
        if let Some(Entry { key, value, modified }) = policy_entry {
            // Written as it is: whoever deletes it meanwhile sees that it is used.
            txn.compares.push(Compare { key: key.clone(), modified });
            txn.changes.push(KeyChange::Put(key, value));
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
        assert_eq!(record.state, ObjectState::Ready, "{name} is given to who asked for it");
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
                changes: vec![KeyChange::Put(key.clone(), value)],
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
        assert_eq!(record.state, ObjectState::Creating, "copies of {} are made", record.id);
        for (leg, member) in record.members() {
            let spec = ComponentSpec {
                object: record.id,
                leg: leg as u16,
                blocks: record.leg_chunks(leg) * BLOCKS_PER_CHUNK,
                epoch: record.epoch,
            };
            assert_eq!(usize::from(spec.leg), leg, "a leg is numbered with 16 bits");
            let bytes = u64::from(spec.blocks) * BLOCK;
            assert!(0 < bytes && bytes <= COMPONENT_MAX, "{} has {bytes}", member.component);
            let (host, group, component) = (member.host, member.group, member.component);
            let request = Request::Create { group, component, spec };
            let deadline = self.world().now() + CREATE_DEADLINE;
            let peers = self.0.objects.peers();
            let name = self.host_name(host);
            let at = self.0.objects.addr_of(host, group);
            match peers.call(at, Lane::Control, request, deadline).await {
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
}

pub(crate) fn check_size(size_bytes: u64) -> Result<(), ManageError> {
    check_object_size(size_bytes).map_err(|(why, near)| {
        let near = near.map(|near| format!("; the next one is {near}")).unwrap_or_default();
        ManageError::Invalid(format!("the size {why}{near}"))
    })
}

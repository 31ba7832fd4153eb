//! Volumes as the directory has them, with what owners and hosts say; and asking a volume's owner.

use crate::admin::message::{AdminReply, AdminRequest};
use crate::error::ManageError;
use crate::node::Node;
use crate::status::ObjectStatus;
use atoll_format::id::{Addr, ComponentId, HostId, ObjectId};
use atoll_format::record::{self, LegRecord, ObjectRecord, VolumeRecord, key};
use atoll_object::placement::{self, Explanation};
use atoll_world::directory::{Directory, Revision};
use atoll_world::{Components, Nanos, VolumeError, World, sometimes};
use std::collections::BTreeMap;

/// How long an owner is waited for: a takeover waits for a grace, and may have to begin again.
const OWNER_WAIT: Nanos = Nanos::from_secs(10);

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
    pub owner: Option<ObjectStatus>,
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
    /// The object of a volume's name.
    pub(crate) async fn find_volume(&self, name: &str) -> Result<ObjectId, VolumeError> {
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
        if self.world().audits() {
            let is_sorted = all.is_sorted_by(|a, b| a.name < b.name);
            assert!(is_sorted, "the names of {} volumes do not rise", all.len());
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

    pub(crate) fn view(
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
        let used_bytes: Option<u64> =
            record.members().map(|(_, m)| used(m.host, m.component)).sum();
        // The fullest copy that is whole: one that is behind, or has just come, holds less.
        let of_leg = |leg: &LegRecord| {
            let whole = leg.members.iter().filter(|m| m.state.is_active());
            whole.filter_map(|m| used(m.host, m.component)).max()
        };
        let guest_bytes: Option<u64> = record.legs.iter().map(of_leg).sum();
        if let (Some(guest), Some(used)) = (guest_bytes, used_bytes) {
            assert!(guest <= used, "one copy of {} has {guest} bytes, all {used}", record.id);
        }
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

    /// Where a volume is, and why.
    pub async fn placement(&self, name: &str) -> Result<PlacementView, ManageError> {
        let volume = self.volume(name).await?;
        let explanation = placement::explain(&volume.record, &self.0.objects.inventory());
        Ok(PlacementView { volume, explanation })
    }

    /// Where the owner of the volume is: if it has no living owner, this host becomes it.
    pub(crate) async fn owned_by(&self, name: &str, id: ObjectId) -> Result<Addr, ManageError> {
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
        owner.map(|o| o.addr()).ok_or_else(|| ManageError::Failed("the volume has no owner".into()))
    }

    /// Asks the owner of an object, whoever that is by now.
    pub(crate) async fn ask_owner(
        &self,
        name: &str,
        id: ObjectId,
        ask: impl Fn() -> AdminRequest,
    ) -> Result<AdminReply, ManageError> {
        let until = self.world().now() + OWNER_WAIT;
        loop {
            let at = self.owned_by(name, id).await?;
            match self.ask(at, ask()).await? {
                AdminReply::NotOwner if self.world().now() < until => {
                    sometimes!("manage.owner_has_changed");
                    self.world().sleep(Nanos::from_ms(100)).await;
                }
                AdminReply::NotOwner => {
                    let why = format!("the owner of volume {name} changes all the time");
                    return Err(ManageError::Failed(why));
                }
                answer => return Ok(answer),
            }
        }
    }
}

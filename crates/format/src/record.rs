//! Values of the directory: JSON, readable with any client, under one prefix per cluster.
//!
//! | key | value |
//! | --- | --- |
//! | `cluster` | [`ClusterRecord`] |
//! | `hosts/<host id>` | [`HostRecord`] |
//! | `levels/<host id>` | [`LevelsRecord`] |
//! | `policies/<name>` | [`PolicyRecord`] |
//! | `volumes/<name>` | [`VolumeRecord`] |
//! | `objects/<object id>` | [`ObjectRecord`] |
//! | `reaped/<host id>` | [`ReapedRecord`] |
//! | `locks/<object id>` | [`LockRecord`] |
//! | `stopped/<host id>` | [`StoppedRecord`] |
//! | `removed/<host id>` | [`RemovedRecord`] |
//! | `tokens` | [`TokensRecord`] |
//!
//! Every record carries `version`; unknown fields are refused, so that an old program never
//! drops what a newer one wrote. Volatile facts (liveness, load) are hints, never records.

use crate::id::{
    Addr, ClusterId, ComponentId, DiskId, Epoch, GroupId, HostId, Incarnation, ObjectId, Seq,
};
use crate::level::{Level, Levels};
use crate::units::{CHUNK, COMPONENT_MAX};
use serde::{Deserialize, Serialize};

/// The version that this program writes and the only one that it reads.
pub const RECORD_VERSION: u16 = 1;
/// Most legs that a set of strips is spread over.
pub const STRIPE_WIDTH_MAX: u8 = 12;
/// The largest value of the directory, in bytes: the longest record of the largest object.
pub const VALUE_MAX: usize = 256 << 10;

/// Keys, in one place.
pub mod key {
    use crate::id::{HostId, ObjectId};

    /// Cluster settings.
    pub const CLUSTER: &str = "cluster";
    /// Prefix of all hosts.
    pub const HOSTS: &str = "hosts/";
    /// Prefix of what the releases of hosts know. It is written in the transactions that write
    /// the hosts' records, which whoever changes one compares.
    pub const LEVELS: &str = "levels/";
    /// Prefix of all policies.
    pub const POLICIES: &str = "policies/";
    /// Prefix of all volume names.
    pub const VOLUMES: &str = "volumes/";
    /// Prefix of all objects.
    pub const OBJECTS: &str = "objects/";
    /// Prefix of what hosts removed last.
    pub const REAPED: &str = "reaped/";
    /// Prefix of volumes that one host has to itself.
    pub const LOCKS: &str = "locks/";
    /// Prefix of hosts that have stopped in order.
    pub const STOPPED: &str = "stopped/";
    /// Prefix of hosts that were removed for good.
    pub const REMOVED: &str = "removed/";

    /// Who may ask the management interface over a network.
    pub const TOKENS: &str = "tokens";

    /// One host.
    pub fn host(id: HostId) -> String {
        format!("{HOSTS}{id}")
    }
    /// What the release of one host knows.
    pub fn levels(id: HostId) -> String {
        format!("{LEVELS}{id}")
    }
    /// One policy.
    pub fn policy(name: &str) -> String {
        format!("{POLICIES}{name}")
    }
    /// One volume name.
    pub fn volume(name: &str) -> String {
        format!("{VOLUMES}{name}")
    }
    /// What one host removed last.
    pub fn reaped(id: HostId) -> String {
        format!("{REAPED}{id}")
    }
    /// One object.
    pub fn object(id: ObjectId) -> String {
        format!("{OBJECTS}{id}")
    }
    /// Who has one object to itself.
    pub fn lock(id: ObjectId) -> String {
        format!("{LOCKS}{id}")
    }
    /// That one host has stopped in order.
    pub fn stopped(id: HostId) -> String {
        format!("{STOPPED}{id}")
    }
    /// That one host was removed for good.
    pub fn removed(id: HostId) -> String {
        format!("{REMOVED}{id}")
    }
    /// The host of such a key.
    pub fn removed_host(key: &str) -> Option<HostId> {
        key.strip_prefix(REMOVED)?.parse().ok()
    }
}

/// The cluster itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterRecord {
    /// [`RECORD_VERSION`].
    pub version: u16,
    /// Written into every disk label.
    pub id: ClusterId,
    /// For people.
    pub name: String,
    /// Seconds that a member may be absent before it is rebuilt elsewhere.
    pub repair_delay_s: u32,
    /// Floor of the resync rate, in bytes per second and host.
    pub resync_floor_bytes: u64,
    /// What volumes may take on disks in all, in percent of the space that exists; see
    /// [`check_promised_limit`].
    #[serde(default = "promised_limit", skip_serializing_if = "is_promised_limit")]
    pub promised_limit_percent: u32,
    /// The feature level: what hosts may write. Left out while it is the first.
    #[serde(default, skip_serializing_if = "Level::is_first")]
    pub level: Level,
}

/// The feature level in the value of the cluster's record, whatever else a newer release has
/// written there; none if it says nothing that could be one.
pub fn cluster_level(value: &[u8]) -> Option<Level> {
    #[derive(Deserialize)]
    struct OnlyLevel {
        #[serde(default)]
        level: Level,
    }
    let found: OnlyLevel = serde_json::from_slice(value).ok()?;
    (found.level >= Level::FIRST).then_some(found.level)
}

/// The limit of a cluster that has set none: ten times the space that exists.
pub const PROMISED_LIMIT_PERCENT: u32 = 1000;

fn promised_limit() -> u32 {
    PROMISED_LIMIT_PERCENT
}

fn is_promised_limit(percent: &u32) -> bool {
    *percent == PROMISED_LIMIT_PERCENT
}

/// Checks the range of [`ClusterRecord::promised_limit_percent`]: once to 10,000 times the space.
///
/// # Errors
/// A sentence that names the value and its range.
pub fn check_promised_limit(percent: u32) -> Result<(), String> {
    match percent {
        100..=1_000_000 => Ok(()),
        _ => Err(format!("promised_limit_percent is {percent}, and must be 100 to 1000000")),
    }
}

/// One host: who it is, where it listens, what it contributes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostRecord {
    /// [`RECORD_VERSION`].
    pub version: u16,
    /// Its id.
    pub id: HostId,
    /// For people; unique.
    pub name: String,
    /// Two members of one leg are never in the same one.
    pub fault_domain: String,
    /// This life of its process.
    pub incarnation: Incarnation,
    /// Where peers reach it, first is preferred: `127.0.0.2:8461`.
    pub peers: Vec<String>,
    /// Where its REST API is.
    pub api: String,
    /// Its disk groups.
    pub groups: Vec<GroupRecord>,
    /// Program version.
    pub release: String,
}

/// Which feature levels the release of a host knows. Releases that know none write none: it counts
/// only with the [`HostRecord`] of the same life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LevelsRecord {
    /// [`RECORD_VERSION`].
    pub version: u16,
    /// That life of its process.
    pub incarnation: Incarnation,
    /// The oldest level.
    pub oldest: Level,
    /// The newest level.
    pub newest: Level,
}

impl LevelsRecord {
    /// Of that life.
    pub fn new(incarnation: Incarnation, levels: Levels) -> Self {
        let Levels { oldest, newest } = levels;
        Self { version: RECORD_VERSION, incarnation, oldest, newest }
    }

    /// What the life `incarnation` of a host knows, of which `value` is the record, if there is
    /// one.
    pub fn read(value: Option<&[u8]>, incarnation: Incarnation) -> Levels {
        Self::of(value.and_then(|value| serde_json::from_slice(value).ok()), incarnation)
    }

    /// The same, of a record that was read.
    pub fn of(record: Option<Self>, incarnation: Incarnation) -> Levels {
        match record {
            Some(Self { oldest, newest, incarnation: of, .. })
                if of == incarnation && Level::FIRST <= oldest && oldest <= newest =>
            {
                Levels { oldest, newest }
            }
            _ => Levels::BEFORE,
        }
    }
}

/// What a disk group is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GroupShape {
    /// One device carries both its log and its capacity.
    SingleTier,
    /// An SSD carries the log, 1-7 SSDs the capacity.
    AllFlash,
}

/// One disk group as the cluster knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupRecord {
    /// Its id.
    pub id: GroupId,
    /// Its shape.
    pub shape: GroupShape,
    /// Its devices: cache first.
    pub disks: Vec<DiskRecord>,
    /// Bytes that components may use in all.
    pub capacity_bytes: u64,
    /// False once it has failed: nothing new is placed there, what it held is rebuilt.
    pub healthy: bool,
    /// Why, in one sentence, when not healthy.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub failure: String,
    /// The shard of its host that runs it in this life: members in it are asked there.
    #[serde(default, skip_serializing_if = "is_first")]
    pub shard: u8,
}

/// One labelled device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskRecord {
    /// The id in its label.
    pub id: DiskId,
    /// Where its host finds it.
    pub path: String,
    /// Its size.
    pub size_bytes: u64,
}

/// How an object is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Failures of hosts that lose nothing: 0-3.
    pub failures_to_tolerate: u8,
    /// How redundancy is made.
    pub method: Method,
    /// Legs that a set of strips is spread over: 1-12.
    pub stripe_width: u8,
    /// Ceiling in I/Os per second; 0: none.
    #[serde(default)]
    pub iops_limit: u32,
    /// Part of each component that must be free where it is placed, in percent: 0-100.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reserve_percent: u8,
}

fn is_zero(value: &u8) -> bool {
    *value == 0
}

/// How redundancy is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// `failures_to_tolerate + 1` whole copies.
    Mirror,
}

impl Policy {
    /// The policy of a volume that names none: two copies, one leg.
    pub const DEFAULT: Self = Self {
        failures_to_tolerate: 1,
        method: Method::Mirror,
        stripe_width: 1,
        iops_limit: 0,
        reserve_percent: 0,
    };

    /// Members of each leg.
    pub fn members(&self) -> usize {
        usize::from(self.failures_to_tolerate) + 1
    }

    /// Checks the ranges.
    ///
    /// # Errors
    /// A sentence that names the field, its value and its range.
    pub fn check(&self) -> Result<(), String> {
        if self.failures_to_tolerate > 3 {
            return Err(format!(
                "failures_to_tolerate is {}, and must be 0 to 3",
                self.failures_to_tolerate
            ));
        }
        if !(1..=STRIPE_WIDTH_MAX).contains(&self.stripe_width) {
            return Err(format!(
                "stripe_width is {}, and must be 1 to {STRIPE_WIDTH_MAX}",
                self.stripe_width
            ));
        }
        if self.reserve_percent > 100 {
            return Err(format!(
                "reserve_percent is {}, and must be 0 to 100",
                self.reserve_percent
            ));
        }
        Ok(())
    }
}

/// A named policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyRecord {
    /// [`RECORD_VERSION`].
    pub version: u16,
    /// For people; unique.
    pub name: String,
    /// What it says.
    pub policy: Policy,
}

/// A volume: a name for an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeRecord {
    /// [`RECORD_VERSION`].
    pub version: u16,
    /// Its object.
    pub object: ObjectId,
    /// Name of the policy it was made with.
    pub policy: String,
    /// Milliseconds since 1970, for people.
    pub created_ms: u64,
}

/// What an object is in the life of its volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ObjectState {
    /// Its components are being made; nobody may open it.
    Creating,
    /// In use.
    #[default]
    Ready,
    /// Its name is gone; its components are being deleted.
    Deleting,
}

/// The state of one object, changed only by compare-and-swap on the whole record (R12).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObjectRecord {
    /// [`RECORD_VERSION`].
    pub version: u16,
    /// Its id.
    pub id: ObjectId,
    /// Name of its volume, for people.
    pub name: String,
    /// In the life of its volume.
    pub state: ObjectState,
    /// Size in bytes, a multiple of 4 KiB.
    pub size_bytes: u64,
    /// How it is kept.
    pub policy: Policy,
    /// Counts its owners.
    pub epoch: Epoch,
    /// The one host that orders its I/O; none before the first use.
    pub owner: Option<OwnerRecord>,
    /// Sequence numbers of this epoch start above; stored before any is used.
    pub seq_base: Seq,
    /// Leg `set * stripe_width + column`; see [`ObjectRecord::locate`].
    pub legs: Vec<LegRecord>,
    /// The last session of this epoch when this was written; none: not known. A member that is
    /// absent here, and was attached later, proves that this is an older state of the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attached: Option<u32>,
    /// Who served it last; none: nobody yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served: Option<ServedRecord>,
    /// Of the transaction that cannot tell its own outcome: R12's second write bumps it.
    #[serde(default)]
    pub nonce: u64,
}

/// A host removes a component that no record names. It writes this in the transaction that
/// compares the object's revision, so that a record which comes to name it is seen first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReapedRecord {
    /// [`RECORD_VERSION`].
    pub version: u16,
    /// The component that was removed.
    pub component: ComponentId,
}

/// A volume that one host has to itself while something is done to it that no client may see
/// half of: nobody else opens it. Void once that life of the host has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockRecord {
    /// [`RECORD_VERSION`].
    pub version: u16,
    /// The object.
    pub object: ObjectId,
    /// Name of its volume when it was locked.
    pub name: String,
    /// Who has it.
    pub host: HostId,
    /// That life of the host.
    pub incarnation: Incarnation,
    /// Tells this lock from every other.
    pub token: u64,
    /// For what.
    pub purpose: LockPurpose,
    /// Milliseconds since 1970, for people.
    pub since_ms: u64,
}

/// Why a volume is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LockPurpose {
    /// An image is copied into it.
    Import,
    /// It is being deleted.
    Delete,
    /// It is being shrunk.
    Shrink,
}

impl std::fmt::Display for LockPurpose {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Import => "import",
            Self::Delete => "delete",
            Self::Shrink => "shrink",
        })
    }
}

/// A host has stopped in order: that life of it has no clients any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoppedRecord {
    /// [`RECORD_VERSION`].
    pub version: u16,
    /// Which life.
    pub incarnation: Incarnation,
}

/// A host that belongs to the cluster no more, from the moment that this is there: it publishes
/// nothing, nobody speaks with it, and its members count as lost. While its [`HostRecord`] is there
/// too, other records may still name it as a copy that is not known to be lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemovedRecord {
    /// [`RECORD_VERSION`].
    pub version: u16,
    /// What it was called.
    pub name: String,
    /// Its last life that was published.
    pub incarnation: Incarnation,
    /// It was given up with copies that were not replaced yet.
    pub lost: bool,
    /// Milliseconds since 1970 when it was removed.
    pub at_ms: u64,
}

/// Most tokens of a cluster.
pub const TOKENS_MAX: usize = 256;

/// Who may ask the management interface over a network: all in one record, so that their number and
/// their names are checked by the transaction that changes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokensRecord {
    /// [`RECORD_VERSION`].
    pub version: u16,
    /// By name, at most [`TOKENS_MAX`].
    pub tokens: Vec<TokenRecord>,
}

/// One token: what its holder may do, and by what it is known. The token itself is stored nowhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenRecord {
    /// For people; unique.
    pub name: String,
    /// What its holder may do.
    pub role: TokenRole,
    /// SHA-256 of the token, in hexadecimal digits.
    pub sha256: String,
    /// Milliseconds since 1970.
    pub created_ms: u64,
    /// Milliseconds since 1970 from which on it is refused; none: it does not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
    /// The host that has joined by it: it is good for one. Only of [`TokenRole::Join`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_by: Option<HostId>,
}

impl TokenRecord {
    /// Whether it is refused at that time.
    pub fn is_expired(&self, now_ms: u64) -> bool {
        self.expires_ms.is_some_and(|at| at <= now_ms)
    }
}

/// What the holder of a token may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TokenRole {
    /// Have one new host join the cluster, once, and nothing else.
    Join,
    /// Look.
    Viewer,
    /// Also what daily work is: volumes, resync, scrubs.
    Operator,
    /// Everything.
    Admin,
}

/// The owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnerRecord {
    /// Its host.
    pub host: HostId,
    /// The shard of that host that it lives on.
    #[serde(default, skip_serializing_if = "is_first")]
    pub shard: u8,
    /// That life of the host (R5).
    pub incarnation: Incarnation,
}

impl OwnerRecord {
    /// Where it is asked.
    pub fn addr(&self) -> Addr {
        Addr { host: self.host, shard: self.shard }
    }
}

/// The last owner whose takeover was settled: every lease of an object that counts, and may be
/// running, is of that epoch. Its members had answered the fence then, or are members no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServedRecord {
    /// In which epoch.
    pub epoch: Epoch,
    /// On which host.
    pub host: HostId,
    /// In which life of it.
    pub incarnation: Incarnation,
}

/// Whether that is the shard which every host has.
fn is_first(shard: &u8) -> bool {
    *shard == 0
}

/// One leg.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LegRecord {
    /// Its members; a mirror leg has `failures_to_tolerate + 1`, and one more while a member is
    /// being replaced.
    pub members: Vec<MemberRecord>,
}

/// One member of a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberRecord {
    /// Its component.
    pub component: ComponentId,
    /// Where: the host.
    pub host: HostId,
    /// Where: the disk group.
    pub group: GroupId,
    /// Its state; the directory alone says who is active (R20).
    pub state: MemberState,
}

impl MemberRecord {
    /// The disk group that keeps it.
    pub fn place(&self) -> (HostId, GroupId) {
        (self.host, self.group)
    }
}

/// The state of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "is")]
pub enum MemberState {
    /// Holds every acknowledged operation.
    Active,
    /// Away. It has acknowledged everything at or below `since` (R4).
    Absent {
        /// The watermark W when it was dropped.
        since: Seq,
        /// Milliseconds since 1970 when it was dropped; starts the repair delay.
        at_ms: u64,
        /// Known to be lost: do not wait for the repair delay.
        #[serde(default)]
        lost: bool,
    },
    /// Receives new operations and is being brought up to date from `from` on.
    Resyncing {
        /// What it acknowledged everything below; never rises except by promotion (R4).
        from: Seq,
    },
}

impl MemberState {
    /// Whether it is [`MemberState::Active`].
    pub fn is_active(self) -> bool {
        matches!(self, Self::Active)
    }
    /// Whether it is [`MemberState::Resyncing`].
    pub fn is_resyncing(self) -> bool {
        matches!(self, Self::Resyncing { .. })
    }
}

/// Where a byte of an object lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of the leg.
    pub leg: usize,
    /// Byte offset inside every component of that leg.
    pub offset: u64,
}

/// Bytes that one set of `stripe_width` legs can hold.
pub fn set_bytes(policy: &Policy) -> u64 {
    COMPONENT_MAX * u64::from(policy.stripe_width)
}

/// Legs that an object of that size needs.
pub fn legs_needed(policy: &Policy, size_bytes: u64) -> usize {
    size_bytes.div_ceil(set_bytes(policy)).max(1) as usize * usize::from(policy.stripe_width)
}

impl ObjectRecord {
    /// Where the byte at `offset` lives. Strips of 1 MiB go round the columns of a set; a set
    /// that is full is followed by the next.
    ///
    /// # Panics
    /// If `offset` is outside the object.
    pub fn locate(&self, offset: u64) -> Place {
        assert!(offset < self.size_bytes, "offset {offset} is outside the object");
        let width = u64::from(self.policy.stripe_width);
        let set = offset / set_bytes(&self.policy);
        let within = offset % set_bytes(&self.policy);
        let strip = within / CHUNK;
        Place {
            leg: (set * width + strip % width) as usize,
            offset: strip / width * CHUNK + within % CHUNK,
        }
    }

    /// The inverse of [`ObjectRecord::locate`] for the chunk of a leg: its offset in the object.
    pub fn object_offset(&self, leg: usize, chunk: u32) -> u64 {
        let width = u64::from(self.policy.stripe_width);
        let (set, column) = (leg as u64 / width, leg as u64 % width);
        set * set_bytes(&self.policy) + (u64::from(chunk) * width + column) * CHUNK
    }

    /// Chunks of a component of that leg: those that the object's size reaches, and at least one,
    /// because a component has room for something.
    pub fn leg_chunks(&self, leg: usize) -> u32 {
        let width = u64::from(self.policy.stripe_width);
        let (set, column) = (leg as u64 / width, leg as u64 % width);
        let before = (set * set_bytes(&self.policy)).min(self.size_bytes);
        let here = (self.size_bytes - before).min(set_bytes(&self.policy)).div_ceil(CHUNK);
        ((here + width - 1 - column) / width).max(1) as u32
    }

    /// Every member with the index of its leg.
    pub fn members(&self) -> impl Iterator<Item = (usize, &MemberRecord)> {
        self.legs.iter().enumerate().flat_map(|(i, leg)| leg.members.iter().map(move |m| (i, m)))
    }
}

/// Turns a record into the bytes of a directory value.
pub fn encode<T: Serialize>(record: &T) -> Vec<u8> {
    serde_json::to_vec(record).expect("records have string keys and no failing serializer")
}

/// Reads a directory value.
///
/// # Errors
/// A sentence that names the key and what does not fit.
pub fn decode<T: for<'de> Deserialize<'de>>(key: &str, value: &[u8]) -> Result<T, String> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u16,
    }
    let seen: Versioned = serde_json::from_slice(value)
        .map_err(|e| format!("directory key '{key}' is not a record: {e}"))?;
    if seen.version != RECORD_VERSION {
        return Err(format!(
            "directory key '{key}' has version {}, this program reads version {RECORD_VERSION}",
            seen.version
        ));
    }
    serde_json::from_slice(value).map_err(|e| format!("directory key '{key}': {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(width: u8, size_bytes: u64) -> ObjectRecord {
        let policy = Policy { stripe_width: width, ..Policy::DEFAULT };
        ObjectRecord {
            version: RECORD_VERSION,
            id: ObjectId(1),
            name: "v".into(),
            state: ObjectState::Ready,
            size_bytes,
            legs: vec![LegRecord { members: vec![] }; legs_needed(&policy, size_bytes)],
            policy,
            epoch: Epoch(1),
            owner: None,
            seq_base: Seq(0),
            attached: None,
            served: None,
            nonce: 0,
        }
    }

    #[test]
    fn every_strip_has_one_place_and_back() {
        for (width, size) in [(1, 10 * CHUNK), (3, 7 * CHUNK + 4096), (2, 520 << 30)] {
            let o = object(width, size);
            let mut per_leg = vec![0u32; o.legs.len()];
            let step = if size > 1 << 30 { 97 * CHUNK } else { CHUNK };
            for offset in (0..size).step_by(step as usize) {
                let place = o.locate(offset);
                assert!(place.offset < COMPONENT_MAX);
                let chunk = (place.offset / CHUNK) as u32;
                assert!(chunk < o.leg_chunks(place.leg), "{width} {offset}");
                assert_eq!(o.object_offset(place.leg, chunk), offset);
                per_leg[place.leg] += 1;
            }
            if step == CHUNK {
                let chunks: Vec<u32> = (0..o.legs.len()).map(|l| o.leg_chunks(l)).collect();
                assert_eq!(per_leg, chunks);
            }
        }
    }

    /// One value of each kind, with everything in it that its fields can hold.
    fn every_record() -> Vec<(String, Vec<u8>)> {
        let version = RECORD_VERSION;
        let cluster = ClusterRecord {
            version,
            id: ClusterId(0x0123_4567_89ab_cdef),
            name: "home".into(),
            repair_delay_s: 3600,
            resync_floor_bytes: 50_000_000,
            promised_limit_percent: PROMISED_LIMIT_PERCENT,
            level: Level::FIRST,
        };
        let raised = ClusterRecord { level: Level(2), ..cluster.clone() };
        let levels = Levels { oldest: Level(1), newest: Level(2) };
        let levels = LevelsRecord::new(Incarnation(7), levels);
        let generous = ClusterRecord { promised_limit_percent: 2500, ..cluster.clone() };
        let group = |id, shape, failure: &str| GroupRecord {
            id: GroupId(id),
            shape,
            disks: vec![DiskRecord {
                id: DiskId(0xd1),
                path: "/dev/disk/by-id/x".into(),
                size_bytes: 1 << 40,
            }],
            capacity_bytes: 1 << 39,
            healthy: failure.is_empty(),
            failure: failure.into(),
            shard: 0,
        };
        let host = HostRecord {
            version,
            id: HostId(0xa1),
            name: "host1".into(),
            fault_domain: "rack1".into(),
            incarnation: Incarnation(7),
            peers: vec!["127.0.0.2:8461".into(), "127.0.0.3:8461".into()],
            api: "127.0.0.2:8460".into(),
            groups: vec![
                group(0xb1, GroupShape::SingleTier, ""),
                group(0xb2, GroupShape::AllFlash, "disk d1: gone"),
            ],
            release: "0.1.0".into(),
        };
        let policy = Policy {
            failures_to_tolerate: 2,
            method: Method::Mirror,
            stripe_width: 3,
            iops_limit: 500,
            reserve_percent: 0,
        };
        let named = PolicyRecord { version, name: "gold".into(), policy: policy.clone() };
        let reserved = PolicyRecord {
            policy: Policy { reserve_percent: 40, ..policy.clone() },
            ..named.clone()
        };
        let volume = VolumeRecord {
            version,
            object: ObjectId(0xc1),
            policy: "gold".into(),
            created_ms: 1_700_000_000_000,
        };
        let member = |n: u64, state| MemberRecord {
            component: ComponentId(0xe0 + n),
            host: HostId(0xa0 + n),
            group: GroupId(0xb0 + n),
            state,
        };
        let members = vec![
            member(1, MemberState::Active),
            member(2, MemberState::Absent { since: Seq(5), at_ms: 1_700_000_000_001, lost: true }),
            member(3, MemberState::Resyncing { from: Seq(6) }),
        ];
        let object = |state, owner| ObjectRecord {
            version,
            id: ObjectId(0xc1),
            name: "data".into(),
            state,
            size_bytes: 1 << 30,
            policy: policy.clone(),
            epoch: Epoch(9),
            owner,
            seq_base: Seq(1 << 40),
            legs: vec![LegRecord { members: members.clone() }, LegRecord { members: vec![] }],
            attached: None,
            served: None,
            nonce: 11,
        };
        let owner = OwnerRecord { host: HostId(0xa1), shard: 0, incarnation: Incarnation(7) };
        let reaped = ReapedRecord { version, component: ComponentId(0xe9) };
        let lock = LockRecord {
            version,
            object: ObjectId(0xc1),
            name: "data".into(),
            host: HostId(0xa1),
            incarnation: Incarnation(7),
            token: 0xfeed,
            purpose: LockPurpose::Import,
            since_ms: 1_700_000_000_002,
        };
        let token = |name: &str, role, expires_ms| TokenRecord {
            name: name.into(),
            role,
            sha256: "0123456789abcdef".repeat(4),
            created_ms: 1_700_000_000_003,
            expires_ms,
            used_by: (role == TokenRole::Join).then_some(HostId(0xa2)),
        };
        let tokens = TokensRecord {
            version,
            tokens: vec![
                token("backup", TokenRole::Operator, Some(1_800_000_000_000)),
                token("grafana", TokenRole::Viewer, None),
                token("host2", TokenRole::Join, Some(1_700_000_900_003)),
                token("root", TokenRole::Admin, None),
            ],
        };
        let stopped = StoppedRecord { version, incarnation: Incarnation(7) };
        let removed = RemovedRecord {
            version,
            name: "host1".into(),
            incarnation: Incarnation(7),
            lost: true,
            at_ms: 1_700_000_000_003,
        };
        let (epoch, host_id, incarnation) = (Epoch(8), HostId(0xa2), Incarnation(6));
        let served = ObjectRecord {
            served: Some(ServedRecord { epoch, host: host_id, incarnation }),
            ..object(ObjectState::Ready, Some(owner))
        };
        let served_at = key::object(ObjectId(0xc1));
        let at = key::object(ObjectId(0xc1));
        let attached =
            ObjectRecord { attached: Some(7), ..object(ObjectState::Ready, Some(owner)) };
        let attached_at = key::object(ObjectId(0xc1));
        vec![
            (key::CLUSTER.into(), encode(&cluster)),
            (key::host(host.id), encode(&host)),
            (key::policy("gold"), encode(&named)),
            (key::volume("data"), encode(&volume)),
            (at.clone(), encode(&object(ObjectState::Ready, Some(owner)))),
            (at.clone(), encode(&object(ObjectState::Creating, None))),
            (at, encode(&object(ObjectState::Deleting, None))),
            (key::reaped(HostId(0xa1)), encode(&reaped)),
            (key::lock(lock.object), encode(&lock)),
            (key::stopped(HostId(0xa1)), encode(&stopped)),
            (key::CLUSTER.into(), encode(&generous)),
            (key::policy("gold"), encode(&reserved)),
            (attached_at, encode(&attached)),
            (served_at, encode(&served)),
            (key::removed(HostId(0xa1)), encode(&removed)),
            (key::TOKENS.into(), encode(&tokens)),
            (key::levels(HostId(0xa1)), encode(&levels)),
            (key::CLUSTER.into(), encode(&raised)),
        ]
    }

    #[test]
    fn the_bytes_of_version_1_never_change() {
        let text = |value: Vec<u8>| String::from_utf8(value).expect("JSON");
        let line = |(key, value): (String, Vec<u8>)| format!("{key} {}\n", text(value));
        let now: String = every_record().into_iter().map(line).collect();
        let golden = include_str!("../golden/records.v1.txt");
        assert!(now == golden, "they are now:\n{now}");
        // And what is frozen is read, and comes back as it is.
        for line in golden.lines() {
            let (key, value) = line.split_once(' ').expect("a key and a value");
            let bytes = value.as_bytes();
            let again = match key.split('/').next().expect("a first part") {
                "cluster" => decode::<ClusterRecord>(key, bytes).map(|r| encode(&r)),
                "hosts" => decode::<HostRecord>(key, bytes).map(|r| encode(&r)),
                "levels" => decode::<LevelsRecord>(key, bytes).map(|r| encode(&r)),
                "locks" => decode::<LockRecord>(key, bytes).map(|r| encode(&r)),
                "stopped" => decode::<StoppedRecord>(key, bytes).map(|r| encode(&r)),
                "removed" => decode::<RemovedRecord>(key, bytes).map(|r| encode(&r)),
                "tokens" => decode::<TokensRecord>(key, bytes).map(|r| encode(&r)),
                "policies" => decode::<PolicyRecord>(key, bytes).map(|r| encode(&r)),
                "volumes" => decode::<VolumeRecord>(key, bytes).map(|r| encode(&r)),
                "objects" => decode::<ObjectRecord>(key, bytes).map(|r| encode(&r)),
                _ => decode::<ReapedRecord>(key, bytes).map(|r| encode(&r)),
            };
            assert_eq!(again.map(text), Ok(value.to_owned()));
        }
    }

    #[test]
    fn the_level_is_read_from_a_record_that_a_newer_release_has_written() {
        let level = |text: &str| cluster_level(text.as_bytes());
        assert_eq!(level(r#"{"version":7,"level":9,"new":{"x":[1]}}"#), Some(Level(9)));
        assert_eq!(level(r#"{"version":1}"#), Some(Level::FIRST));
        assert_eq!(level(r#"{"level":0}"#), None);
        assert_eq!(level(r#"{"level":"high"}"#), None);
        assert_eq!(level("?"), None);
    }

    #[test]
    fn levels_count_for_the_life_that_wrote_them_only() {
        let known = Levels { oldest: Level(1), newest: Level(4) };
        let record = encode(&LevelsRecord::new(Incarnation(7), known));
        assert_eq!(LevelsRecord::read(Some(&record), Incarnation(7)), known);
        // An older release, which writes none, has started since; or there never was another.
        assert_eq!(LevelsRecord::read(Some(&record), Incarnation(8)), Levels::BEFORE);
        assert_eq!(LevelsRecord::read(None, Incarnation(7)), Levels::BEFORE);
        for odd in [r#"{"version":1,"incarnation":"7"}"#, "{}", "?"] {
            assert_eq!(LevelsRecord::read(Some(odd.as_bytes()), Incarnation(7)), Levels::BEFORE);
        }
        let odd = LevelsRecord { oldest: Level(5), ..LevelsRecord::new(Incarnation(7), known) };
        assert_eq!(LevelsRecord::read(Some(&encode(&odd)), Incarnation(7)), Levels::BEFORE);
    }

    #[test]
    fn a_newer_or_unknown_record_is_refused_by_name() {
        let bytes = encode(&object(1, CHUNK));
        let back: ObjectRecord = decode("objects/x", &bytes).unwrap();
        assert_eq!(back, object(1, CHUNK));
        let newer =
            String::from_utf8(bytes.clone()).unwrap().replace("\"version\":1", "\"version\":2");
        let error = decode::<ObjectRecord>("objects/x", newer.as_bytes()).unwrap_err();
        assert!(error.contains("objects/x") && error.contains("version 2"), "{error}");
        let extra = String::from_utf8(bytes).unwrap().replace("\"nonce\":0", "\"nonce\":0,\"x\":1");
        assert!(decode::<ObjectRecord>("objects/x", extra.as_bytes()).is_err());
    }
}

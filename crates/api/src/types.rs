//! What travels over REST. Sizes are bytes, rates bytes or operations per second, times RFC 3339
//! UTC, latencies microseconds (`_ns`: nanoseconds); integers always, never strings for numbers.
//!
//! Invariants: types that clients send refuse unknown fields; types that they receive tolerate
//! them. Fields are only ever added.

use crate::envelope::Named;
use crate::routes::Role;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use utoipa::ToSchema;

macro_rules! named {
    ($($name:ident),* $(,)?) => {
        $(impl Named for $name { const KIND: &'static str = stringify!($name); })*
    };
}
named!(
    Status,
    Cluster,
    Upgrade,
    Health,
    Host,
    HostJoined,
    HostRemoval,
    Disk,
    DiskWipe,
    Group,
    Policy,
    PolicyCheck,
    Volume,
    VolumeLock,
    Placement,
    Resync,
    Scrub,
    Task,
    Event,
    Session,
    Profile,
    Token,
    TokenMade,
    JoinTokenMade,
    AuditEntry,
);

/// A cluster on one screen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// Who.
    pub cluster: Cluster,
    /// How it is.
    pub health: Health,
    /// Where the cluster's state is kept; absent from an older release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<Directory>,
    /// Space of the hosts that answer; absent if none has told.
    #[serde(default)]
    pub space: Option<Space>,
    /// What volumes could take on disks, all copies together, if they were written in full: more
    /// than the capacity where more is promised than there is.
    #[serde(default)]
    pub promised_bytes: u64,
    /// Space of all disk groups in use, those of hosts that do not answer included: what the
    /// cluster's `promised_limit_percent` is of. 0: unknown, from an older release.
    #[serde(default)]
    pub exist_bytes: u64,
    /// Load of the hosts that answer, all volumes together.
    pub io: Io,
    /// Hosts that answer.
    pub hosts_up: u32,
    /// Hosts.
    pub hosts: u32,
    /// Volumes.
    pub volumes: u32,
    /// Volumes that have lost a copy, and serve.
    pub volumes_degraded: u32,
    /// Volumes that cannot serve.
    pub volumes_inaccessible: u32,
    /// Bytes that resync still has to look at, as far as owners have told.
    pub resync_bytes_left: u64,
    /// Copies that are behind and whose turn has come, or comes.
    #[serde(default)]
    pub resync_copies: u32,
    /// When resync will be done at its present rate; absent when idle or stalled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resync_seconds_left: Option<u64>,
    /// Checksums that did not match, since the start of the processes of the hosts that answer.
    pub checksum_errors: u64,
}

/// Where the cluster's state is kept, as the host sees it that answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Directory {
    /// `embedded` (this machine's own) or `etcd`.
    pub kind: String,
    /// Whether a member of etcd knows who leads; no: its quorum is lost, and changes wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub has_leader: Option<bool>,
    /// The members of etcd, in the order of the configuration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<DirectoryMember>,
}

/// A member of etcd.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DirectoryMember {
    /// Where it is.
    pub endpoint: String,
    /// Whether the host that answers asks this one.
    pub used: bool,
    /// Whether it leads.
    pub leads: bool,
    /// Its release; empty if it does not answer.
    pub version: String,
    /// The size of its database, in bytes.
    pub db_bytes: u64,
    /// Why it cannot be used, or what it complains of; empty: nothing.
    pub trouble: String,
}

/// The cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Cluster {
    /// 16 hexadecimal digits.
    pub id: String,
    /// For people.
    pub name: String,
    /// Program version of the host that answers.
    pub release: String,
    /// Name of the host that answers.
    pub answered_by: String,
    /// Seconds that a member may be absent before it is rebuilt elsewhere.
    pub repair_delay_s: u32,
    /// Floor of the resync rate, bytes per second and host.
    pub resync_floor_bytes: u64,
    /// What volumes may take on disks in all, in percent of the space that exists: beyond, no
    /// volume is made or grown. 0: unknown, from an older release.
    #[serde(default)]
    pub promised_limit_percent: u32,
    /// The feature level: what hosts may write. 0: unknown, from an older release.
    #[serde(default)]
    pub level: u16,
}

/// How far an upgrade of the cluster is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Upgrade {
    /// The feature level that the cluster is at: no host writes what is above it.
    pub level: u16,
    /// The level to which it can be raised now: the newest that all hosts know. `level`: none.
    pub next: u16,
    /// The newest level that the release of the host that answers knows.
    pub newest: u16,
    /// Whether it was raised now, from a lower level.
    pub raised: bool,
    /// The hosts, with the levels that they know.
    pub hosts: Vec<UpgradeHost>,
    /// What keeps the cluster from being raised to `newest`, a sentence for each host.
    pub obstacles: Vec<String>,
}

/// One host, and the feature levels that its release knows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UpgradeHost {
    /// 16 hexadecimal digits.
    pub id: String,
    /// Name.
    pub name: String,
    /// Program version.
    pub release: String,
    /// Whether it answers; if not, this is of when it last ran.
    pub up: bool,
    /// The oldest level that it knows.
    pub oldest: u16,
    /// The newest level that it knows.
    pub newest: u16,
}

/// A change of the cluster's settings; what is absent stays.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterPatch {
    /// What volumes may take on disks in all, in percent of the space that exists: 100 to
    /// 1,000,000. It counts for volumes that are made or grown from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promised_limit_percent: Option<u32>,
}

/// How bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Works, with less safety or speed than promised.
    Warning,
    /// Something does not work.
    Critical,
    /// Cannot be found out.
    #[serde(other)]
    Unknown,
}

/// Everything that is not as it should be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// The worst of `checks`.
    pub level: Level,
    /// Checks that did not pass, the worst first.
    pub checks: Vec<HealthCheck>,
}

/// One check that did not pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HealthCheck {
    /// Stable name, kebab-case: `host-down`.
    pub name: String,
    /// How bad.
    pub level: Level,
    /// What and where, one sentence.
    pub message: String,
    /// What to do; empty if it heals by itself.
    pub remedy: String,
}

/// Bytes of capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Space {
    /// Bytes that components may use in all.
    pub capacity_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Bytes that new data can still take; reserves are left out.
    pub free_bytes: u64,
}

/// Load over about the last second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Io {
    /// Reads per second.
    pub read_iops: u64,
    /// Writes per second, with discards and zeroes.
    pub write_iops: u64,
    /// Bytes read per second.
    pub read_bytes_per_second: u64,
    /// Bytes written per second.
    pub write_bytes_per_second: u64,
    /// Mean latency of reads, in microseconds; 0 without reads.
    pub read_latency_us: u64,
    /// Mean latency of writes, in microseconds; 0 without writes.
    pub write_latency_us: u64,
}

/// One host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Host {
    /// 16 hexadecimal digits.
    pub id: String,
    /// For people; unique.
    pub name: String,
    /// Whether it answers.
    pub up: bool,
    /// Two members of one leg are never in the same one.
    pub fault_domain: String,
    /// Where its REST interface is.
    pub api: String,
    /// Where other hosts reach it, the preferred one first.
    pub peers: Vec<String>,
    /// Program version.
    pub release: String,
    /// Its disk groups.
    pub groups: u32,
    /// Volumes whose I/O it orders; null while it does not tell, as below.
    #[serde(default)]
    pub owned_volumes: Option<u32>,
    /// Its space.
    #[serde(default)]
    pub space: Option<Space>,
    /// Load of its clients.
    #[serde(default)]
    pub io: Option<Io>,
    /// Whether its connections with other hosts use TLS; null while it does not tell.
    #[serde(default)]
    pub tls: Option<bool>,
    /// Until when its certificate is valid, RFC 3339; null: it has none, or does not tell.
    #[serde(default)]
    pub certificate_until: Option<String>,
}

/// How far the removal of a host has come.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HostRemoval {
    /// Name of the host.
    pub host: String,
    /// 16 hexadecimal digits.
    pub id: String,
    /// How far.
    pub state: HostRemovalState,
    /// Volumes whose copy there is not recorded as lost yet.
    pub waits_for: Vec<String>,
}

/// How far the removal of a host has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum HostRemovalState {
    /// It is no host of the cluster any more.
    Removed,
    /// No host speaks with it any more; the rest goes on by itself.
    Removing,
    /// It could be removed now (`dry_run`).
    Possible,
}

/// What a disk is to Atoll.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DiskState {
    /// Part of a working disk group.
    InUse,
    /// Empty: `group create` can take it.
    Empty,
    /// Labelled by this cluster, and not part of a running group.
    Idle,
    /// Holds something else: another cluster's label, a partition table, a file system.
    Foreign,
    /// Cannot be used: too small, not aligned, unreadable.
    Unusable,
    /// Was in use, and has failed.
    Failed,
    /// Configured, and not there.
    Missing,
    /// Of a newer server.
    #[serde(other)]
    Unknown,
}

/// One disk that a host is configured to use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Disk {
    /// Name of its host.
    pub host: String,
    /// Where the host finds it.
    pub path: String,
    /// The id in its label, if it has one of ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Its size.
    pub size_bytes: u64,
    /// What it is to Atoll.
    pub state: DiskState,
    /// The disk group it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// What was found on it, or why it cannot be used; empty when all is well.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// A request to erase what a disk holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskWipeRequest {
    /// A path that the host is configured to use.
    pub path: String,
    /// Also when it holds foreign data or an idle label of this cluster. A disk of a running
    /// group is never wiped.
    #[serde(default)]
    pub force: bool,
}

/// What a wipe erases.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DiskWipe {
    /// Name of its host.
    pub host: String,
    /// Which disk.
    pub path: String,
    /// What was on it.
    pub erased: String,
}

/// What a disk group is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GroupShape {
    /// One device carries both its log and its capacity.
    SingleTier,
    /// An SSD carries the log, 1-7 SSDs the capacity.
    AllFlash,
}

/// How a disk group is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GroupState {
    /// It serves.
    Healthy,
    /// It has failed, and is out of use.
    Failed,
    /// Its host does not tell.
    #[default]
    #[serde(other)]
    Unknown,
}

/// One disk group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Group {
    /// 16 hexadecimal digits.
    pub id: String,
    /// Name of its host.
    pub host: String,
    /// Its shape.
    pub shape: GroupShape,
    /// Paths of its devices, the cache first.
    pub disks: Vec<String>,
    /// How it is.
    #[serde(default)]
    pub state: GroupState,
    /// Whether `state` is `healthy`.
    pub healthy: bool,
    /// Why, when failed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub failure: String,
    /// Its space; null while its host does not tell, as below.
    #[serde(default)]
    pub space: Option<Space>,
    /// Size of its write log.
    #[serde(default)]
    pub log_bytes: Option<u64>,
    /// Part of the log in use, in percent.
    #[serde(default)]
    pub log_fill_percent: Option<u8>,
    /// Components it keeps.
    #[serde(default)]
    pub components: Option<u32>,
}

/// A request to make a disk group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupCreate {
    /// Name or id of the host; the one that answers without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Paths of the disks, the cache first, as a `[[group]]` of the host's configuration lists
    /// them.
    pub disks: Vec<String>,
}

/// How redundancy is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Whole copies.
    Mirror,
}

/// How volumes are kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Its name; unique.
    pub name: String,
    /// Failures of hosts that lose nothing: 0-3.
    pub failures_to_tolerate: u8,
    /// How redundancy is made.
    #[serde(default = "mirror")]
    pub method: Method,
    /// Legs that strips are spread over: 1-12.
    #[serde(default = "one")]
    pub stripe_width: u8,
    /// Ceiling in I/Os per second; 0: none.
    #[serde(default)]
    pub iops_limit: u32,
    /// Part of each copy that must be free on disks when a volume is made or grown, in percent: 0
    /// (thin) to 100. Free space that is reserved for one volume counts for no other.
    #[serde(default)]
    pub reserve_percent: u8,
}

fn mirror() -> Method {
    Method::Mirror
}
fn one() -> u8 {
    1
}

/// A question: could a volume of that size be placed now?
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyCheckRequest {
    /// Its size.
    pub size_bytes: u64,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PolicyCheck {
    /// The policy.
    pub policy: String,
    /// The size asked about.
    pub size_bytes: u64,
    /// Whether it can be placed.
    pub fits: bool,
    /// Bytes that it can use in all, over all copies.
    pub raw_bytes: u64,
    /// Why, one sentence a line: the places, or the rules that are not met, and what is missing.
    pub reasons: Vec<String>,
}

/// How a volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum VolumeState {
    /// Every copy is in sync.
    Healthy,
    /// A copy is missing.
    Degraded,
    /// A copy is being brought up to date.
    Resyncing,
    /// Too few copies can be reached.
    Inaccessible,
    /// Being made.
    Creating,
    /// Being deleted.
    Deleting,
    /// Of a newer server.
    #[serde(other)]
    Unknown,
}

/// One volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Volume {
    /// Its name; unique.
    pub name: String,
    /// 16 hexadecimal digits: its object.
    pub id: String,
    /// Its size.
    pub size_bytes: u64,
    /// Bytes it uses on disks, all copies together, as their hosts last said; null if one of them
    /// has not told yet.
    #[serde(default)]
    pub used_bytes: Option<u64>,
    /// Bytes that hold what guests have written, each counted once whatever the number of copies;
    /// null if no host with a copy has told yet.
    #[serde(default)]
    pub guest_bytes: Option<u64>,
    /// Name of its policy.
    pub policy: String,
    /// Failures of hosts that lose nothing.
    pub failures_to_tolerate: u8,
    /// Ceiling in I/Os per second, of all its clients together; 0: none. Its policy's, until
    /// another one is set.
    #[serde(default)]
    pub iops_limit: u32,
    /// How it is.
    pub state: VolumeState,
    /// Host that orders its I/O; absent before the first use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Counts its owners.
    pub epoch: u32,
    /// Clients connected to the host that answers.
    pub sessions: u32,
    /// When it was made.
    pub created_at: String,
    /// Rises with every change; travels as `ETag` too.
    pub revision: u64,
    /// Its load.
    pub io: Io,
    /// How clients reach it on the host that answers: `nbd+unix:///name?socket=...`, URIs
    /// in which everything special is written as `%XX`.
    pub exports: Vec<String>,
}

/// A request for a volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeCreate {
    /// Its name.
    pub name: String,
    /// Its size, a multiple of 4 KiB.
    pub size_bytes: u64,
    /// Name of its policy; `default` without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
}

/// A change of a volume; what is absent stays.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumePatch {
    /// Its new size, a multiple of 4 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// The new size may be smaller: what lies beyond is lost.
    #[serde(default)]
    pub shrink: bool,
    /// Its new ceiling in I/Os per second, of all its clients together; 0: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops_limit: Option<u32>,
}

/// A new size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeResize {
    /// In bytes, a multiple of 4 KiB.
    pub size_bytes: u64,
    /// The new size may be smaller: what lies beyond is lost.
    #[serde(default)]
    pub shrink: bool,
}

/// A volume to oneself, for a while.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeLockRequest {
    /// For what.
    pub purpose: LockPurpose,
    /// The volume is emptied though it holds data.
    #[serde(default)]
    pub replace: bool,
    /// Bytes that it must have at least.
    #[serde(default)]
    pub min_size_bytes: u64,
}

/// Why a volume is locked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LockPurpose {
    /// An image is copied into it: it is empty and reads as zeros when it is locked.
    Import,
}

/// A locked volume: nobody else opens it until the lock is given back, 60 s after its last client
/// at the latest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VolumeLock {
    /// Its name.
    pub volume: String,
    /// Its id.
    pub id: String,
    /// In bytes.
    pub size_bytes: u64,
    /// Gives the lock back: 16 hexadecimal digits.
    pub token: String,
    /// Where the holder reaches the volume: URIs of an export of its own, `NAME:TOKEN`.
    pub exports: Vec<String>,
}

/// Where a volume is, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Placement {
    /// Its name.
    pub volume: String,
    /// 16 hexadecimal digits.
    pub object: String,
    /// Its size.
    pub size_bytes: u64,
    /// Host that orders its I/O.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Counts its owners.
    pub epoch: u32,
    /// Its members, by leg.
    pub members: Vec<Member>,
    /// Why it is there, one sentence a line.
    pub reasons: Vec<String>,
}

/// The state of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MemberState {
    /// Holds every acknowledged operation.
    Active,
    /// Away.
    Absent,
    /// Being brought up to date.
    Resyncing,
    /// Of a newer server.
    #[serde(other)]
    Unknown,
}

/// One member of a leg.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Member {
    /// Which leg.
    pub leg: u32,
    /// 16 hexadecimal digits.
    pub component: String,
    /// Name of its host.
    pub host: String,
    /// Its disk group.
    pub group: String,
    /// Its fault domain.
    pub fault_domain: String,
    /// Its state.
    pub state: MemberState,
    /// Since when it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absent_since: Option<String>,
    /// When it will be rebuilt elsewhere if it stays away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rebuild_at: Option<String>,
}

/// Resync of the whole cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Resync {
    /// Held by an administrator.
    pub paused: bool,
    /// Ceiling, bytes per second and host; 0: none.
    pub limit_bytes_per_second: u64,
    /// Bytes left to look at, as far as owners have told.
    pub bytes_left: u64,
    /// Bytes written to copies per second, over about the last ten seconds.
    pub bytes_per_second: u64,
    /// Estimate from how fast `bytes_left` fell in about the last ten seconds; absent when idle or
    /// stalled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<u64>,
    /// What is being brought up to date, volumes without redundancy first.
    pub items: Vec<ResyncItem>,
}

/// One component that is being brought up to date.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ResyncItem {
    /// Whose.
    pub volume: String,
    /// Which leg.
    pub leg: u32,
    /// The component that is written.
    pub component: String,
    /// The host that is written to.
    pub host: String,
    /// It is brought up to date now; if not, it waits: for its turn, or for the next attempt.
    #[serde(default)]
    pub running: bool,
    /// Bytes left to look at, over all attempts: it does not rise because an attempt ended. Null
    /// until they have been counted.
    #[serde(default)]
    pub bytes_left: Option<u64>,
    /// Bytes copied so far, over all attempts.
    pub bytes_done: u64,
}

/// A change of resync; what is absent stays.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResyncPatch {
    /// Hold it, or let it go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// Ceiling, bytes per second and host; 0: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_bytes_per_second: Option<u64>,
}

/// The scrub of one disk group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Scrub {
    /// The disk group.
    pub group: String,
    /// Name of its host.
    pub host: String,
    /// A pass is running.
    pub running: bool,
    /// Blocks of 4 KiB looked at in this pass, or in the last.
    pub blocks_checked: u64,
    /// Blocks to look at.
    pub blocks_total: u64,
    /// Blocks whose checksum did not match; they are repaired from other copies.
    pub blocks_bad: u64,
}

/// A request to verify checksums.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScrubStart {
    /// Only this disk group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Only this volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// Ceiling per disk group; the server's default without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<u64>,
}

/// How a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TaskState {
    /// Goes on.
    Running,
    /// Has ended well.
    Done,
    /// Has ended with an error.
    Failed,
    /// Of a newer server.
    #[serde(other)]
    Unknown,
}

/// Work that outlasts its request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Task {
    /// Its id.
    pub id: String,
    /// What it does, kebab-case: `rebuild`, `scrub`, `delete-volume`.
    pub kind: String,
    /// To what.
    pub subject: String,
    /// How it is.
    pub state: TaskState,
    /// How far, 0 to 100.
    pub percent: u8,
    /// What it does now, or why it failed.
    pub message: String,
    /// When it began.
    pub started_at: String,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Microseconds since 1970 when it was seen, by the clock of the host that saw it.
    pub id: u64,
    /// When, by the same clock.
    pub at: String,
    /// Name of the host that saw it.
    pub host: String,
    /// How bad.
    pub level: Level,
    /// Stable name, kebab-case: `member-absent`.
    pub kind: String,
    /// Volume, host, disk or group it is about.
    pub subject: String,
    /// One sentence.
    pub message: String,
    /// Rises by one from event to event of its host, over restarts too.
    #[serde(default)]
    pub number: u64,
    /// Id of the object (volume) it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// Name of the host it is about, if it is about one: not always the one that saw it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of_host: Option<String>,
    /// Id of the disk group it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Paths of the disks of that group.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<String>,
    /// The numbers behind the message: `epoch`, `at_bytes`, `block`, `lost`, ...
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub numbers: BTreeMap<String, u64>,
    /// Why it happened, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// What to do about it, if something is to be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_step: Option<String>,
}

/// One client of a volume on the host that answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Session {
    /// Counts the clients of its host since that host's process began.
    #[serde(default)]
    pub id: u64,
    /// Its volume.
    pub volume: String,
    /// Host that it is connected to.
    pub host: String,
    /// Its protocol: `nbd`.
    pub protocol: String,
    /// Who it is, as far as known.
    pub peer: String,
    /// Since when.
    pub since: String,
    /// Reads it has made.
    pub reads: u64,
    /// Writes it has made.
    pub writes: u64,
    /// Requests that are not answered yet.
    pub in_flight: u32,
}

/// How long the stages of I/O took on one host, since its process began: an earlier answer taken
/// from a later one is what happened in between.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Profile {
    /// Name of the host.
    pub host: String,
    /// Milliseconds since its process began; fewer than before: it has restarted.
    pub uptime_ms: u64,
    /// Every stage that it notes; none if the host did not tell.
    pub stages: Vec<ProfileStage>,
    /// Why it did not; empty when all is well.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// One stage of I/O on one host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProfileStage {
    /// Stable name: `log_write`.
    pub stage: String,
    /// What it is, for people.
    pub about: String,
    /// How often it occurred: `noted` times `sampled`.
    pub count: u64,
    /// One of so many occurrences is noted.
    pub sampled: u64,
    /// Occurrences that were noted.
    pub noted: u64,
    /// How long these took, all together.
    pub noted_ns: u64,
    /// How long one of them took; 0 if there was none.
    pub mean_ns: u64,
    /// The same occurrences by how long they took, the shortest first; empty buckets are left out.
    pub buckets: Vec<ProfileBucket>,
}

/// Occurrences of a stage that took about as long.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProfileBucket {
    /// They were shorter than this, and at most 20 % below it (in the bucket of the smallest
    /// bound: anything below); absent: as long as the largest bound, or longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub below_ns: Option<u64>,
    /// How many.
    pub count: u64,
}

/// A token: who may ask over TLS, and as what. Its secret is shown to nobody.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Token {
    /// Unique.
    pub name: String,
    /// What its holder may do.
    pub role: Role,
    /// When it was made.
    pub created: String,
    /// From when on it is refused; absent: it does not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<String>,
    /// Whether that time has come.
    pub expired: bool,
    /// The host that has joined by it, by its id: it is good for no other one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_by: Option<String>,
}

/// What somebody has changed through the management interface, or was not let do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// Name of the host that was asked.
    pub host: String,
    /// Rises by one from entry to entry of its host.
    pub number: u64,
    /// When it was asked for, by the clock of that host.
    pub at: String,
    /// Whose doing: `token:NAME`; `uid:N`, who came by the Unix socket; `anybody`, who came by TCP
    /// without TLS.
    pub who: String,
    /// What he may do.
    pub role: Role,
    /// Where he came from: an IP address, or `socket`.
    pub from: String,
    /// The operation: its `operationId`.
    pub operation: String,
    /// Path and query of the request; values of `token` and of unknown parameters are `*`.
    pub target: String,
    /// The body of the request; of one above 2,048 bytes, nested more than 16 deep or with a token
    /// in it, its size: `{"bytes": 3000}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Object)]
    pub body: Option<serde_json::Value>,
    /// HTTP status of the answer; 0: whoever asked did not wait for it.
    pub status: u16,
    /// `E0401`, of an answer that is a problem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// What the problem is: one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Entries before this one that were not kept.
    #[serde(default)]
    pub left_out: u64,
    /// SHA-256 of its line in the file: the next one has it, too.
    pub sha256: String,
}

/// A token that is to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenCreate {
    /// Unique: letters, digits, '.', '_' and '-'.
    pub name: String,
    /// What its holder may do.
    pub role: Role,
    /// For how many seconds it is good, 1 to 3,155,760,000 (100 years); absent: it does not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_s: Option<u64>,
}

/// A token that was made.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenMade {
    /// What it is.
    pub token: Token,
    /// The secret: it is told this once. Absent: nothing was made (`dry_run`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

impl fmt::Debug for TokenMade {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenMade").field("token", &self.token).finish_non_exhaustive()
    }
}

/// A token for joining that is to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JoinTokenCreate {
    /// Unique; absent: `join-` and eight digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// For how many seconds it is good, 1 to 86,400; absent: 900.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_s: Option<u64>,
    /// Where the new host reaches hosts of the cluster, `host:port` of `network.api`, at most 8;
    /// absent: the one that is asked, as it is configured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
}

/// A token for joining that was made.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JoinTokenMade {
    /// What it is.
    pub token: Token,
    /// Where the new host reaches hosts of the cluster.
    pub addresses: Vec<String>,
    /// What the new host is given: it is told this once. Absent: nothing was made (`dry_run`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

impl fmt::Debug for JoinTokenMade {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinTokenMade").field("token", &self.token).finish_non_exhaustive()
    }
}

/// A machine that is to become a host of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HostJoin {
    /// The name that it is to have: unique in the cluster.
    pub name: String,
    /// Its release.
    pub release: String,
    /// The oldest feature level that its release knows; absent: 1.
    #[serde(default = "first_level")]
    pub oldest_level: u16,
    /// The newest feature level that its release knows; absent: 1.
    #[serde(default = "first_level")]
    pub newest_level: u16,
    /// Milliseconds since 1970, by its clock.
    pub unix_ms: u64,
    /// The public half of its key, signed by the other: PKCS #10, PEM.
    pub request: String,
    /// The IP addresses at which clients reach it, at most 16: its certificate has them. Another
    /// host must not have one of them.
    #[serde(default)]
    pub addresses: Vec<String>,
}

fn first_level() -> u16 {
    1
}

/// What makes a machine a host of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HostJoined {
    /// Its id; absent: nothing was done (`dry_run`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Of the cluster.
    pub cluster: String,
    /// Its certificate, PEM; absent as `id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// The certificate of the cluster's authority, PEM.
    pub authority: String,
    /// Where it finds the state of the cluster.
    pub directory: JoinDirectory,
}

/// How a new host reaches etcd.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JoinDirectory {
    /// `directory.endpoints`.
    pub endpoints: Vec<String>,
    /// `directory.prefix`.
    pub prefix: String,
    /// Who signed the certificates of etcd, PEM; absent: no TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
    /// By which certificate a host proves itself to etcd.
    pub client: EtcdClient,
    /// The hosts run etcd themselves, and so does the new one (`directory.managed`).
    #[serde(default)]
    pub managed: bool,
}

/// By which certificate a host proves itself to etcd.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum EtcdClient {
    /// By none.
    Nobody,
    /// By the one that it has for its peers.
    Host,
    /// By one of its own, which it is configured with before it starts.
    Own,
}

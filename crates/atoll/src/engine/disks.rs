//! Disks and disk groups of this host: what the configuration lists, what is found there, and the
//! stores that run on it.
//!
//! Invariants: a group starts by itself only from labels of this host in this cluster, and once: a
//! copy of a disk is refused wherever it is found; disks are formatted and wiped only by command,
//! and never one of a running group; what cannot be used is said in the log and in the disk list,
//! and keeps nothing else from starting.

use super::host::{HostStore, HostWorld};
use crate::config::{self, Config, GroupConfig};
use atoll_api::shell::quote;
use atoll_api::types::{Disk as DiskItem, DiskState, DiskWipe, DiskWipeRequest};
use atoll_api::{Code, Problem};
use atoll_format::id::{ClusterId, GroupId, HostId};
use atoll_format::record::{DiskRecord, GroupRecord, GroupShape};
use atoll_format::superblock::{Shape, Superblock};
use atoll_real::{Backend, OpenError, OpenOptions, RealDisk};
use atoll_store::{FormatError, FormatSpec, Inspection, OpenSpec, format_group, inspect, wipe};
use atoll_world::{Components, Disk, Nanos, World};
use futures_util::future::join_all;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::Notify;

/// The `[[group]]`s of the configuration, over all shards: each is opened, and then served, by one.
pub struct Slots {
    all: Vec<GroupSlot>,
    /// A slot has been looked at, or started, or not.
    changed: Notify,
}

/// One `[[group]]` of the configuration.
pub struct GroupSlot {
    pub config: GroupConfig,
    /// Which shard serves it.
    pub shard: u8,
    state: Mutex<SlotState>,
}

struct SlotState {
    /// The labels of its disks have been looked at.
    is_looked_at: bool,
    /// Of which group they are, if of one.
    labels: Option<GroupId>,
    /// It has started, or has not.
    is_tried: bool,
    /// What is on its disks cannot be used, or they are not there.
    is_unusable: bool,
    running: Option<GroupId>,
    trouble: String,
}

impl Slots {
    /// What the configuration lists, nothing running yet.
    pub fn all(config: &Config, shards: u8) -> Self {
        assert!(shards > 0, "every host has shard 0");
        let slot = |(index, group): (usize, &GroupConfig)| GroupSlot {
            config: group.clone(),
            shard: (index % usize::from(shards)) as u8,
            state: Mutex::new(SlotState {
                is_looked_at: false,
                labels: None,
                is_tried: false,
                is_unusable: false,
                running: None,
                trouble: "not started yet".into(),
            }),
        };
        let all = config.groups.iter().enumerate().map(slot).collect();
        Self { all, changed: Notify::new() }
    }

    pub fn iter(&self) -> impl Iterator<Item = &GroupSlot> {
        self.all.iter()
    }

    /// Those of a shard.
    pub fn of_shard(&self, shard: u8) -> impl Iterator<Item = &GroupSlot> {
        self.all.iter().filter(move |slot| slot.shard == shard)
    }

    /// Where a group runs.
    pub fn of_group(&self, group: GroupId) -> Option<&GroupSlot> {
        self.all.iter().find(|slot| slot.running() == Some(group))
    }

    /// The slot before that one whose disks carry the labels of the same group.
    fn original(&self, copy: &GroupSlot, group: GroupId) -> Option<&GroupSlot> {
        let before = self.all.iter().take_while(|slot| !std::ptr::eq(*slot, copy));
        before.into_iter().find(|slot| slot.state().labels == Some(group))
    }

    /// Whether a disk of that shard cannot be used now, and may be again after a restart.
    pub fn lack_disks(&self, shard: u8) -> bool {
        self.of_shard(shard).any(|slot| slot.state().is_unusable)
    }

    /// Returns once all shards have opened what they could.
    pub async fn all_tried(&self) {
        self.until(|state| state.is_tried).await;
    }

    async fn until(&self, holds: impl Fn(&SlotState) -> bool) {
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            if self.all.iter().all(|slot| holds(&slot.state())) {
                return;
            }
            changed.await;
        }
    }
}

impl GroupSlot {
    fn state(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().expect("nothing panics while it holds the lock")
    }

    /// The group that runs on it.
    pub fn running(&self) -> Option<GroupId> {
        self.state().running
    }

    /// Why none does; empty if one does.
    pub fn trouble(&self) -> String {
        self.state().trouble.clone()
    }

    /// Its disks, for messages.
    pub fn paths(&self) -> Vec<String> {
        self.config.disks.iter().map(|path| path.display().to_string()).collect()
    }

    fn shape(&self) -> Shape {
        if self.config.all_flash { Shape::AllFlash } else { Shape::SingleTier }
    }
}

/// How long a disk that is in use is waited for at the start of a daemon.
const IN_USE_MAX: Nanos = Nanos::from_secs(10);
const IN_USE_RETRY: Nanos = Nanos::from_ms(100);

/// How long a disk is waited for that does not answer, when somebody asks for it.
const SILENT_MAX: Duration = Duration::from_secs(5);
/// And at the start of a daemon: hard disks may have to spin up.
const SILENT_MAX_AT_START: Duration = Duration::from_secs(20);

/// What to do about a disk that does not answer.
const SILENT_HINT: &str = "the kernel's log may say why; restart the daemon once the disk answers";

/// Opens a disk for this process alone.
///
/// # Errors
/// [`Code::BadDisk`] names the path and what to do.
async fn open(path: &Path, backend: config::Backend) -> Result<RealDisk, Problem> {
    open_now(path, backend, SILENT_MAX).await.map_err(|e| refusal(&e))
}

/// As [`open`], at the start of a daemon: the one before it may have been killed in the middle of
/// I/O, and keeps its disks until the kernel has ended that.
async fn open_again(
    world: &HostWorld,
    path: &Path,
    backend: config::Backend,
) -> Result<RealDisk, Problem> {
    let until = world.now() + IN_USE_MAX;
    loop {
        match open_now(path, backend, SILENT_MAX_AT_START).await {
            Err(OpenError::InUse { .. }) if world.now() < until => {
                world.sleep(IN_USE_RETRY).await;
            }
            other => return other.map_err(|e| refusal(&e)),
        }
    }
}

async fn open_now(
    path: &Path,
    backend: config::Backend,
    within: Duration,
) -> Result<RealDisk, OpenError> {
    let backend = match backend {
        config::Backend::Auto => Backend::Auto,
        config::Backend::Uring => Backend::Uring,
        config::Backend::Threads => Backend::Threads,
    };
    RealDisk::open_within(path, OpenOptions { backend, read_only: false }, within).await
}

fn refusal(error: &OpenError) -> Problem {
    let hint = match error {
        OpenError::Open { error, .. } if error.kind() == std::io::ErrorKind::NotFound => {
            "is it plugged in? the configuration lists it under [[group]]"
        }
        OpenError::Open { .. } => "the daemon must be able to read and write it",
        OpenError::Silent { .. } | OpenError::Unanswered { .. } => SILENT_HINT,
        OpenError::InUse { .. } => "unmount it, or stop whoever uses it",
        OpenError::NotADisk { .. } => "list a block device or a file under [[group]]",
        OpenError::NoDirectIo { .. } => "list another device under [[group]]",
        OpenError::Backend(_) => "io.backend = \"auto\" falls back to threads",
    };
    Problem::new(Code::BadDisk, error.to_string()).hint(hint)
}

/// Whose disks are meant: this host's, in its cluster.
#[derive(Clone, Copy)]
pub struct Identity {
    pub cluster: ClusterId,
    pub host: HostId,
}

impl Identity {
    /// A label need not say its host (0): whoever has the disk, then.
    fn has(self, label: &Superblock) -> bool {
        label.cluster == self.cluster && [HostId(0), self.host].contains(&label.host)
    }
}

/// What is on a disk, in words; none if it is empty.
fn contents(found: &Inspection, identity: Identity) -> Option<String> {
    match found {
        Inspection::Empty => None,
        Inspection::Ours { superblock, .. } => {
            let (group, host) = (superblock.group, superblock.host);
            Some(if superblock.cluster != identity.cluster {
                format!("disk group {group} of another cluster ({})", superblock.cluster)
            } else if !identity.has(superblock) {
                format!("disk group {group} of host {host} of this cluster: moved here, or a copy")
            } else {
                format!("disk group {group} of this cluster")
            })
        }
        Inspection::Foreign { what } => Some(format!("foreign data: {what}")),
        Inspection::Unsupported(e) => Some(format!("a disk group of another version: {e}")),
        Inspection::Damaged(e) => Some(format!("a damaged label of ours: {e}")),
    }
}

/// Reads the labels of a disk that has just been opened: it has spun up.
async fn look(disk: &impl Disk, path: &Path) -> Result<Inspection, Problem> {
    let shown = path.display();
    match tokio::time::timeout(SILENT_MAX, inspect(disk)).await {
        Ok(found) => found.map_err(|e| Problem::new(Code::BadDisk, format!("disk '{shown}': {e}"))),
        Err(_) => {
            let seconds = SILENT_MAX.as_secs();
            let why = format!("does not answer: reading its label takes longer than {seconds} s");
            let problem = Problem::new(Code::BadDisk, format!("disk '{shown}' {why}"));
            Err(problem.hint(SILENT_HINT))
        }
    }
}

/// A store that runs, and what the cluster is told of it.
pub type Started = (HostStore, GroupRecord);

/// A slot's disks as they were found at the start of a daemon.
type Found = Result<Vec<(RealDisk, Inspection)>, Problem>;

/// Starts the groups of a shard, as far as its disks carry any of this host; why not, of the
/// others, in the order of the configuration. Disks are opened all at once: one that does not
/// answer keeps no other waiting. Returns when every shard has looked at its disks.
pub async fn start_all(
    world: &HostWorld,
    slots: &Slots,
    shard: u8,
    identity: Identity,
    backend: config::Backend,
) -> (Vec<Started>, Vec<Problem>) {
    let looks = slots.of_shard(shard).map(|slot| async move {
        let found = find(world, slot, backend).await;
        let mut state = slot.state();
        state.labels = found.as_ref().ok().and_then(|found| labelled(found, identity));
        state.is_looked_at = true;
        drop(state);
        slots.changed.notify_waiters();
        found
    });
    let found = join_all(looks).await;
    // Which of two copies is the original must not depend on who was faster.
    slots.until(|state| state.is_looked_at).await;
    let (mut groups, mut problems) = (Vec::new(), Vec::new());
    for (slot, found) in slots.of_shard(shard).zip(found) {
        match start(world, slots, slot, found, identity).await {
            Ok(started) => groups.push(started),
            Err(problem) => {
                let mut state = slot.state();
                state.trouble.clone_from(&problem.detail);
                // An empty disk is another one, and what the old one had is lost. Any other that
                // is not in use may be back after a restart.
                state.is_unusable = problem.code != Code::Conflict;
                problems.push(problem);
            }
        }
        slot.state().is_tried = true;
    }
    slots.changed.notify_waiters();
    (groups, problems)
}

async fn find(world: &HostWorld, slot: &GroupSlot, backend: config::Backend) -> Found {
    let mut found = Vec::new();
    for path in &slot.config.disks {
        let disk = open_again(world, path, backend).await?;
        let inspection = look(&disk, path).await?;
        found.push((disk, inspection));
    }
    Ok(found)
}

/// The group of this host whose labels all those disks carry.
fn labelled(found: &[(RealDisk, Inspection)], identity: Identity) -> Option<GroupId> {
    let group = |found: &Inspection| match found {
        Inspection::Ours { superblock, .. } if identity.has(superblock) => Some(superblock.group),
        _ => None,
    };
    let first = found.first().and_then(|(_, first)| group(first))?;
    found.iter().all(|(_, found)| group(found) == Some(first)).then_some(first)
}

/// Starts the group on the disks of a slot, if they carry one of this host that does not run yet.
///
/// # Errors
/// Why not; nothing was changed.
async fn start(
    world: &HostWorld,
    slots: &Slots,
    slot: &GroupSlot,
    found: Found,
    identity: Identity,
) -> Result<Started, Problem> {
    let mut disks = Vec::new();
    let mut labels = Vec::new();
    for (path, (disk, found)) in slot.config.disks.iter().zip(found?) {
        let shown = path.display();
        match found {
            Inspection::Ours { superblock, .. } if identity.has(&superblock) => {
                let group = superblock.group;
                if let Some(original) = slots.original(slot, group) {
                    let there = original.paths().join(", ");
                    return Err(Problem::new(
                        Code::ForeignDisk,
                        format!("disk '{shown}' is a copy: disk group {group} runs on {there}"),
                    )
                    .hint(format!(
                        "unplug one of them, or erase this one: atoll disk wipe {}",
                        quote(path)
                    )));
                }
                labels.push(*superblock);
            }
            Inspection::Empty => {
                let words: Vec<String> = slot.config.disks.iter().map(quote).collect();
                return Err(Problem::new(Code::Conflict, format!("disk '{shown}' is empty"))
                    .hint(format!("atoll group create {}", words.join(" "))));
            }
            other => {
                let what = contents(&other, identity).unwrap_or_default();
                return Err(Problem::new(
                    Code::ForeignDisk,
                    format!("disk '{shown}' holds {what}: it is left alone"),
                )
                .hint(format!("atoll disk wipe {} erases it", quote(path))));
            }
        }
        disks.push(disk);
    }
    run(world, slot, disks, &labels, identity.cluster).await
}

async fn run(
    world: &HostWorld,
    slot: &GroupSlot,
    disks: Vec<RealDisk>,
    labels: &[Superblock],
    cluster: ClusterId,
) -> Result<Started, Problem> {
    let sizes: Vec<u64> = disks.iter().map(Disk::len_bytes).collect();
    let spec = OpenSpec { cluster: Some(cluster), ..OpenSpec::default() };
    let store = HostStore::open(world.clone(), disks, spec).await;
    let store = store.map_err(|error| {
        let detail = format!("disks {}: {error}", slot.paths().join(", "));
        let problem = Problem::new(Code::BadDisk, detail);
        match error {
            atoll_store::OpenError::Silent { .. } => problem.hint(SILENT_HINT),
            _ => problem,
        }
    })?;
    let disk = |((path, label), size_bytes): ((&std::path::PathBuf, &Superblock), u64)| {
        DiskRecord { id: label.disk, path: path.display().to_string(), size_bytes }
    };
    let record = GroupRecord {
        id: store.group(),
        shape: if slot.config.all_flash { GroupShape::AllFlash } else { GroupShape::SingleTier },
        disks: slot.config.disks.iter().zip(labels).zip(sizes).map(disk).collect(),
        capacity_bytes: store.space().capacity_bytes,
        healthy: true,
        failure: String::new(),
        shard: slot.shard,
    };
    let mut state = slot.state();
    state.running = Some(record.id);
    state.trouble.clear();
    state.is_unusable = false;
    drop(state);
    Ok((store, record))
}

/// Labels the empty disks of a slot and starts the group.
///
/// # Errors
/// [`Code::ForeignDisk`], [`Code::BadDisk`], [`Code::Conflict`]; nothing was changed unless the
/// device itself failed.
pub async fn create(
    world: &HostWorld,
    slot: &GroupSlot,
    identity: Identity,
    backend: config::Backend,
    dry_run: bool,
) -> Result<Option<Started>, Problem> {
    if let Some(group) = slot.running() {
        let detail = format!("disk group {group} runs on {} already", slot.paths().join(", "));
        return Err(Problem::new(Code::Exists, detail).hint("atoll group list"));
    }
    let mut disks = Vec::new();
    for path in &slot.config.disks {
        let disk = open(path, backend).await?;
        if let Some(what) = contents(&look(&disk, path).await?, identity) {
            let shown = path.display();
            return Err(Problem::new(Code::ForeignDisk, format!("disk '{shown}' holds {what}"))
                .hint(format!("atoll disk wipe {} erases it", quote(path))));
        }
        disks.push(disk);
    }
    if dry_run {
        return Ok(None);
    }
    let spec = FormatSpec {
        cluster: identity.cluster,
        host: identity.host,
        group: GroupId(world.random()),
        shape: slot.shape(),
        log_bytes: slot.config.log_bytes,
    };
    let labels = format_group(world, &disks, spec).await.map_err(|e| {
        let code = match &e {
            FormatError::Ours { .. }
            | FormatError::OursUnusable { .. }
            | FormatError::Foreign { .. } => Code::ForeignDisk,
            _ => Code::BadDisk,
        };
        let detail = format!("disks {}: {e}", slot.paths().join(", "));
        match &e {
            FormatError::LogSize { .. } => {
                Problem::new(code, detail).hint(format!("'log' at {} sets it", slot.config.origin))
            }
            _ => Problem::new(code, detail),
        }
    })?;
    run(world, slot, disks, &labels.disks, identity.cluster).await.map(Some)
}

/// What the disks of a slot are at this moment. `failed` is why its running group is out of use.
pub async fn describe(
    slot: &GroupSlot,
    host: &str,
    identity: Identity,
    backend: config::Backend,
    record: Option<&GroupRecord>,
) -> Vec<DiskItem> {
    let mut items = Vec::new();
    for (index, path) in slot.config.disks.iter().enumerate() {
        let mut item = DiskItem {
            host: host.to_owned(),
            path: path.display().to_string(),
            id: None,
            size_bytes: 0,
            state: DiskState::Missing,
            group: None,
            detail: String::new(),
        };
        let running = record.filter(|record| Some(record.id) == slot.running());
        if let Some(record) = running {
            let disk = record.disks.get(index);
            item.id = disk.map(|disk| disk.id.to_string());
            item.size_bytes = disk.map_or(0, |disk| disk.size_bytes);
            item.group = Some(record.id.to_string());
            item.state = if record.healthy { DiskState::InUse } else { DiskState::Failed };
            item.detail.clone_from(&record.failure);
        } else {
            examine(&mut item, path, identity, backend).await;
            if item.state == DiskState::Idle {
                item.detail = format!("{}; {}", item.detail, slot.trouble());
            }
        }
        items.push(item);
    }
    items
}

/// What is wrong, and what to do about it.
fn with_hint(Problem { detail, hint, .. }: Problem) -> String {
    hint.map_or(detail.clone(), |hint| format!("{detail}; {hint}"))
}

/// Looks at a disk that no running group uses.
async fn examine(item: &mut DiskItem, path: &Path, identity: Identity, backend: config::Backend) {
    let disk = match open_now(path, backend, SILENT_MAX).await {
        Ok(disk) => disk,
        Err(refused) => {
            item.state = match &refused {
                OpenError::Open { error, .. } if error.kind() == std::io::ErrorKind::NotFound => {
                    DiskState::Missing
                }
                _ => DiskState::Unusable,
            };
            item.detail = with_hint(refusal(&refused));
            return;
        }
    };
    item.size_bytes = disk.len_bytes();
    let found = match look(&disk, path).await {
        Ok(found) => found,
        Err(problem) => {
            item.state = DiskState::Unusable;
            item.detail = with_hint(problem);
            return;
        }
    };
    item.detail = contents(&found, identity).unwrap_or_default();
    item.state = match found {
        Inspection::Empty if item.size_bytes < atoll_store::limits::DEVICE_MIN => {
            item.detail = "smaller than 1 GiB".into();
            DiskState::Unusable
        }
        Inspection::Empty => DiskState::Empty,
        Inspection::Ours { superblock, .. } if identity.has(&superblock) => {
            item.id = Some(superblock.disk.to_string());
            item.group = Some(superblock.group.to_string());
            DiskState::Idle
        }
        _ => DiskState::Foreign,
    };
}

/// Erases what a disk holds.
///
/// # Errors
/// [`Code::NotFound`]: not in the configuration. [`Code::WouldRiskData`]: a running group uses it,
/// or it holds something and `force` is not set. [`Code::BadDisk`].
pub async fn erase(
    slots: &Slots,
    host: &str,
    identity: Identity,
    backend: config::Backend,
    request: &DiskWipeRequest,
    dry_run: bool,
) -> Result<DiskWipe, Problem> {
    let path = Path::new(&request.path);
    let slot = slots.iter().find(|slot| slot.config.disks.iter().any(|disk| disk == path));
    let shown = atoll_api::name::show(&request.path);
    let slot = slot.ok_or_else(|| {
        Problem::new(Code::NotFound, format!("host {host} is not configured to use {shown}"))
            .hint(format!("atoll disk list --host {host}"))
    })?;
    if let Some(group) = slot.running() {
        let detail = format!("{shown} is part of disk group {group}, which is running");
        return Err(Problem::new(Code::WouldRiskData, detail)
            .hint("take it out of the configuration and restart the host first"));
    }
    let disk = open(path, backend).await?;
    let what = contents(&look(&disk, path).await?, identity);
    if let (Some(what), false) = (&what, request.force) {
        return Err(Problem::new(Code::WouldRiskData, format!("{shown} holds {what}"))
            .hint("force erases it"));
    }
    if !dry_run {
        wipe(&disk).await.map_err(|e| Problem::new(Code::BadDisk, format!("{shown}: {e}")))?;
        slot.state().trouble = "wiped".into();
    }
    Ok(DiskWipe {
        host: host.to_owned(),
        path: request.path.clone(),
        erased: what.unwrap_or_else(|| "nothing: it was empty".into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_world::{Buf, Durability};
    use std::io;

    /// A disk whose requests do not end.
    #[derive(Clone)]
    struct Hung;

    impl Disk for Hung {
        fn len_bytes(&self) -> u64 {
            1 << 30
        }
        async fn read(&self, _: u64, _: u32) -> io::Result<Buf> {
            std::future::pending().await
        }
        async fn write(&self, _: u64, _: Vec<Buf>, _: Durability) -> io::Result<()> {
            std::future::pending().await
        }
        async fn flush(&self) -> io::Result<()> {
            std::future::pending().await
        }
        async fn discard(&self, _: u64, _: u64) -> io::Result<()> {
            std::future::pending().await
        }
    }

    #[test]
    fn a_disk_that_does_not_answer_is_not_said_to_be_in_use() {
        let path = Path::new("/dev/sdx");
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().expect("a clock");
        let looked = runtime.block_on(look(&Hung, path)).expect_err("it hangs");
        // And what is said of it from then on, until the read ends.
        let later = refusal(&OpenError::Unanswered { path: path.display().to_string() });
        for problem in [looked, later] {
            let said = with_hint(problem);
            assert!(said.starts_with("disk '/dev/sdx' does not answer: "), "{said}");
            assert!(said.ends_with("restart the daemon once the disk answers"), "{said}");
            assert!(!said.contains("in use"), "{said}");
        }
    }
}

//! What the shards of one process tell each other about themselves: a board that each writes on,
//! and reads, several times a second. What has to be known at a moment is asked by a message.
//!
//! Shard 0 speaks for the host: it publishes the record, keeps the events, asks other hosts how
//! they are. It reads what the others have; they read what it has learnt of the cluster.
//!
//! Invariants: at most [`EVENTS_MAX`] events wait to be taken; nothing waits while it holds the
//! board.

use crate::directory_view::Seen;
use crate::event_log::{About, Severity};
use crate::facts::shard_balance::ShardWork;
use crate::status::HostStatus;
use atoll_format::id::{ComponentId, Epoch, ObjectId};
use atoll_format::record::GroupRecord;
use atoll_object::Settings;
use atoll_object::placement::HostView;
use atoll_world::Nanos;
use atoll_world::directory::Revision;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

/// Events of one host's other shards that wait to be taken over by shard 0.
const EVENTS_MAX: usize = 4096;

/// An event of a shard that does not keep events.
pub(crate) struct Noted {
    pub severity: Severity,
    pub kind: String,
    pub about: About,
    pub message: String,
}

/// What shard 0 has learnt of the cluster.
#[derive(Clone, Default)]
pub(crate) struct Known {
    /// The hosts, with their disk groups and space.
    pub hosts: Vec<HostView>,
    /// What each component uses, in bytes.
    pub used: BTreeMap<ComponentId, u64>,
}

/// What the records of all objects say of components, as last seen.
#[derive(Clone, Default)]
pub(crate) struct Named {
    /// Components that a record names.
    pub components: BTreeSet<ComponentId>,
    /// The objects' epochs.
    pub epochs: BTreeMap<ObjectId, Epoch>,
}

/// Shards that shard 0 has chosen for clients in the last seconds, by volume, and when.
pub(crate) type Chosen = BTreeMap<ObjectId, (u8, Nanos)>;

#[derive(Default)]
struct State {
    groups: BTreeMap<u8, Vec<GroupRecord>>,
    statuses: BTreeMap<u8, HostStatus>,
    work: BTreeMap<u8, ShardWork>,
    events: VecDeque<Noted>,
    known: Arc<Known>,
    seen: Option<Seen>,
    named: Option<Arc<Named>>,
    settings: Option<Settings>,
}

/// The board of one process. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct HostBoard(Arc<Mutex<State>>);

impl HostBoard {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nothing panics while it holds the board")
    }

    /// What a shard other than 0 says of itself.
    pub fn tell(&self, shard: u8, groups: Vec<GroupRecord>, status: HostStatus, work: ShardWork) {
        assert!(shard > 0, "shard 0 reads what the others tell");
        assert!(groups.iter().all(|group| group.shard == shard), "groups of another shard");
        let mut state = self.state();
        state.groups.insert(shard, groups);
        state.statuses.insert(shard, status);
        state.work.insert(shard, work);
    }

    /// What each shard but 0 has done so far.
    pub fn work(&self) -> BTreeMap<u8, ShardWork> {
        self.state().work.clone()
    }

    /// The disk groups of all shards but 0; none while one of `shards` has not told of its own.
    pub fn groups(&self, shards: u8) -> Option<Vec<GroupRecord>> {
        let state = self.state();
        let (told, others) = (state.groups.len(), usize::from(shards) - 1);
        assert!(told <= others, "{told} shards have told, of {others} beside the first");
        let all_told = state.groups.len() + 1 == usize::from(shards);
        all_told.then(|| state.groups.values().flatten().cloned().collect())
    }

    /// What the shards but 0 last said of themselves.
    pub fn statuses(&self) -> Vec<HostStatus> {
        self.state().statuses.values().cloned().collect()
    }

    /// Of the shards but 0: the volumes that each serves clients of, and those that it owns.
    pub fn volumes(&self) -> BTreeMap<u8, (BTreeSet<ObjectId>, BTreeSet<ObjectId>)> {
        let of = |status: &HostStatus| {
            let open = status.open_volumes.keys().copied().collect();
            (open, status.objects.iter().map(|object| object.id).collect())
        };
        self.state().statuses.iter().map(|(&shard, status)| (shard, of(status))).collect()
    }

    /// An event for shard 0 to keep; the oldest goes if too many wait.
    pub fn note(&self, event: Noted) {
        let mut state = self.state();
        if state.events.len() == EVENTS_MAX {
            state.events.pop_front();
        }
        state.events.push_back(event);
        assert!(state.events.len() <= EVENTS_MAX, "events that wait");
    }

    /// The events that wait, oldest first.
    pub fn take_events(&self) -> VecDeque<Noted> {
        std::mem::take(&mut self.state().events)
    }

    /// What shard 0 knows of the cluster from now on.
    pub fn set_known(&self, known: Known) {
        self.state().known = Arc::new(known);
    }

    /// The same; the same `Arc` as long as nothing has changed.
    pub fn known(&self) -> Arc<Known> {
        self.state().known.clone()
    }

    /// The directory's hosts and locks, as just seen.
    pub fn set_seen(&self, seen: Seen) {
        self.state().seen = Some(seen);
    }

    /// They were still so at that revision.
    pub fn set_seen_revision(&self, revision: Revision) {
        if let Some(seen) = &mut self.state().seen {
            seen.revision = revision;
        }
    }

    /// The same, if the directory has answered yet.
    pub fn seen(&self) -> Option<Seen> {
        self.state().seen.clone()
    }

    /// What all objects' records name, as just seen.
    pub fn set_named(&self, named: Named) {
        self.state().named = Some(Arc::new(named));
    }

    /// The same, if anything was listed yet.
    pub fn named(&self) -> Option<Arc<Named>> {
        self.state().named.clone()
    }

    /// The administrator's settings, for the owners of all shards.
    pub fn set_settings(&self, settings: Settings) {
        self.state().settings = Some(settings);
    }

    /// The same, once shard 0 has told them.
    pub fn settings(&self) -> Option<Settings> {
        self.state().settings
    }
}

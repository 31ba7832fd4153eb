//! Management between hosts: JSON requests on the control lane. Small, rare, versioned by name.

use crate::cluster::LOOK_AGAIN_WAIT;
use crate::status::{CopyStatus, EventMark, GroupStatus, HostStatus, NodeEvent, ObjectStatus};
use crate::volume_lock::LOOK_FOR_DATA;
use crate::{ManageError, Node};
use atoll_format::id::{ComponentId, HostId, ObjectId};
use atoll_format::record::{LockRecord, key};
use atoll_object::message::{Reply, Request};
use atoll_object::objects::AdminHandler;
use atoll_object::{CopyProgress, ResizeError};
use atoll_transport::CallError;
use atoll_world::directory::{Compare, Revision};
use atoll_world::{Components, Lane, Nanos, World};
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::rc::Rc;

/// How long another host may take to answer.
pub(crate) const ADMIN_DEADLINE: Nanos = Nanos::from_secs(3);
/// Events in one answer.
const EVENTS_PER_REPLY: usize = 1000;

/// A request.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "do")]
pub(crate) enum Ask {
    /// [`HostStatus`].
    Status,
    /// Events of that host after that mark.
    Events { after: EventMark },
    /// Whether the host has clients of an object.
    InUse { object: ObjectId },
    /// The same, and to open it for nobody but the holder of this lock from now on.
    Lock { lock: Box<LockRecord>, revision: u64 },
    /// That lock is gone.
    Unlock { object: ObjectId, token: u64 },
    /// Whether anything but zeros is in an object that the host owns.
    HoldsData { object: ObjectId },
    /// Grow an object that the host owns, if it has that size.
    Grow { object: ObjectId, from: u64, size_bytes: u64 },
    /// Whether an object that the host owns has that size, and could be shrunk now.
    MayShrink { object: ObjectId, from: u64 },
    /// Shrink an object that the host owns, if it has that size, as long as its lock is at that
    /// revision.
    Shrink { object: ObjectId, from: u64, size_bytes: u64, lock: u64 },
    /// Start (or with rate 0 stop) a scrub of all its disk groups, or of one object's components.
    Scrub { object: Option<ObjectId>, bytes_per_second: u64 },
    /// Pause or limit resync.
    Resync { paused: bool, bytes_per_second: u64 },
    /// Become the owner if nobody else is: the object needs care.
    Adopt { object: ObjectId },
    /// A block of a member on the asking host is damaged; the owner repairs it.
    BadBlock { object: ObjectId, component: ComponentId, block: u32 },
    /// What only the program around the node understands: for its [`Manager`].
    Manage { request: String },
}

/// An answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "is")]
pub(crate) enum Answer {
    Status {
        status: Box<HostStatus>,
    },
    Events {
        events: Vec<NodeEvent>,
    },
    Clients {
        clients: u32,
        reaches: BTreeSet<HostId>,
    },
    HoldsData {
        holds: bool,
    },
    /// Another host owns the object by now.
    NotOwner,
    /// It is not as it was when that was asked for; nothing was done.
    Changed,
    Done,
    Failed {
        why: String,
    },
    Managed {
        reply: String,
    },
}

impl From<ResizeError> for Answer {
    fn from(error: ResizeError) -> Self {
        match error {
            ResizeError::NotOwner => Self::NotOwner,
            ResizeError::Changed => Self::Changed,
            ResizeError::Refused(why) => Self::Failed { why },
        }
    }
}

/// Answers what another host's [`Node::manage_at`] asks of the program around this node.
pub type Manager = Rc<dyn Fn(String) -> LocalBoxFuture<'static, String>>;

impl<W: World, S: Components> Node<W, S> {
    pub(crate) fn admin_handler(&self) -> AdminHandler {
        let node = Rc::downgrade(&self.0);
        Rc::new(move |_from, json| {
            let node = node.upgrade().map(Node);
            async move {
                let answer = match (node, serde_json::from_slice::<Ask>(&json)) {
                    (None, _) => Answer::Failed { why: "the host is stopping".into() },
                    (_, Err(error)) => Answer::Failed { why: format!("not understood: {error}") },
                    (Some(node), Ok(ask)) => node.answer(ask).await,
                };
                serde_json::to_vec(&answer).expect("answers have string keys")
            }
            .boxed_local()
        })
    }

    async fn answer(&self, ask: Ask) -> Answer {
        self.audit();
        match ask {
            Ask::Status => Answer::Status { status: Box::new(self.status()) },
            Ask::Events { after } => Answer::Events {
                events: self.local_events(after, self.world().bound(EVENTS_PER_REPLY, 3)),
            },
            Ask::InUse { object } => {
                Answer::Clients { clients: self.clients_of(object), reaches: self.reached() }
            }
            Ask::Lock { lock, revision } => {
                self.note_lock(&lock, Revision(revision));
                let clients = self.clients_of(lock.object);
                Answer::Clients { clients, reaches: self.reached() }
            }
            Ask::Unlock { object, token } => {
                self.forget_lock(object, token);
                Answer::Done
            }
            Ask::HoldsData { object } => {
                let until = self.world().now() + LOOK_FOR_DATA;
                match self.0.objects.holds_data(object, until).await {
                    Ok(holds) => Answer::HoldsData { holds },
                    Err(error) => error.into(),
                }
            }
            Ask::Grow { object, from, size_bytes } => {
                let grown = self.0.objects.grow(object, from, size_bytes).await;
                grown.map_or_else(Answer::from, |()| Answer::Done)
            }
            Ask::MayShrink { object, from } => {
                let may = self.0.objects.may_shrink(object, from).await;
                may.map_or_else(Answer::from, |()| Answer::Done)
            }
            Ask::Shrink { object, from, size_bytes, lock } => {
                let lock = Compare { key: key::lock(object), modified: Revision(lock) };
                let shrunk = self.0.objects.shrink(object, from, size_bytes, &lock).await;
                shrunk.map_or_else(Answer::from, |()| Answer::Done)
            }
            Ask::Scrub { object, bytes_per_second } => {
                self.scrub_here(object, bytes_per_second);
                Answer::Done
            }
            Ask::Resync { paused, bytes_per_second } => {
                self.0.objects.set_resync(paused, bytes_per_second);
                Answer::Done
            }
            Ask::BadBlock { object, component, block } => {
                self.0.objects.on_bad_block(object, component, block);
                Answer::Done
            }
            Ask::Manage { request } => {
                let manager = self.0.manager.borrow().clone();
                match manager {
                    Some(manager) => Answer::Managed { reply: manager(request).await },
                    None => Answer::Failed { why: "the host is starting".into() },
                }
            }
            Ask::Adopt { object } => match self.0.objects.adopt(object).await {
                Ok(()) => Answer::Done,
                Err(why) => Answer::Failed { why },
            },
        }
    }

    /// Asks a host (this one too).
    ///
    /// # Errors
    /// [`ManageError::Unreachable`]: it was not asked. [`ManageError::NoAnswer`]: it may do it, or
    /// have done it. [`ManageError::Failed`]: it says why not.
    pub(crate) async fn ask(&self, host: HostId, ask: Ask) -> Result<Answer, ManageError> {
        self.ask_within(host, ask, ADMIN_DEADLINE).await
    }

    /// Asks a host (this one too), and waits no longer than `wait`.
    pub(crate) async fn ask_within(
        &self,
        host: HostId,
        ask: Ask,
        wait: Nanos,
    ) -> Result<Answer, ManageError> {
        let json = serde_json::to_vec(&ask).expect("requests have string keys");
        let deadline = self.world().now() + wait;
        let peers = self.0.objects.peers();
        let unreachable = || ManageError::Unreachable(self.host_name(host));
        let no_answer = || ManageError::NoAnswer(self.host_name(host));
        match peers.call(host, Lane::Control, Request::Admin(json), deadline).await {
            Ok(Reply::Admin(json)) => match serde_json::from_slice(&json) {
                Ok(Answer::Failed { why }) => Err(ManageError::Failed(why)),
                Ok(answer) => Ok(answer),
                Err(_) => Err(no_answer()),
            },
            Err(CallError::Unreachable) => Err(unreachable()),
            Ok(_) | Err(_) => Err(no_answer()),
        }
    }

    /// Who answers what other hosts ask by [`Node::manage_at`].
    pub fn set_manager(&self, manager: Manager) {
        *self.0.manager.borrow_mut() = Some(manager);
    }

    /// Asks the program around another host's node something, and waits for `patience` at most.
    ///
    /// # Errors
    /// As [`CallError`] says: whether the request has had no effect, or may have had.
    pub async fn manage_at(
        &self,
        host: HostId,
        request: String,
        patience: Nanos,
    ) -> Result<String, CallError> {
        let ask = Ask::Manage { request };
        let json = serde_json::to_vec(&ask).expect("requests have string keys");
        let deadline = self.world().now() + patience;
        let peers = self.0.objects.peers();
        let answer = match peers.call(host, Lane::Control, Request::Admin(json), deadline).await? {
            Reply::Admin(json) => serde_json::from_slice(&json),
            _ => return Err(CallError::Refused("the answer is of another kind".into())),
        };
        match answer {
            Ok(Answer::Managed { reply }) => Ok(reply),
            Ok(Answer::Failed { why }) => Err(CallError::Refused(why)),
            _ => Err(CallError::Refused("the answer was not understood".into())),
        }
    }

    /// What this host says of itself.
    pub fn status(&self) -> HostStatus {
        let stores = self.0.objects.members().stores();
        let now = self.world().now();
        let groups = stores.iter().map(|store| {
            let (space, counters) = (store.space(), store.counters());
            let scrub = store.scrub_progress();
            // A wall clock may have been put back since, to before this host began.
            let unix_ms = |at: Nanos| self.world().unix_ms().saturating_sub(now.since(at).as_ms());
            let failure = self
                .0
                .groups
                .borrow()
                .iter()
                .find(|g| g.id == store.group())
                .map(|g| g.failure.clone())
                .unwrap_or_default();
            GroupStatus {
                id: store.group(),
                capacity_bytes: space.capacity_bytes,
                used_bytes: space.used_bytes,
                free_bytes: space.free_bytes,
                log_bytes: space.log_bytes,
                log_fill: f64::from(space.log_fill) / 255.0,
                failure,
                checksum_errors: counters.checksum_errors,
                device_errors: counters.device_errors,
                ops_written: counters.ops_written,
                bytes_written: counters.bytes_written,
                blocks_read: counters.blocks_read,
                blocks_read_ahead: counters.blocks_read_ahead,
                log_batches: counters.log_batches,
                log_bytes_written: counters.log_bytes,
                destaged_bytes: counters.destaged_bytes,
                metadata_bytes: counters.metadata_bytes,
                blocks_copied_in: counters.blocks_copied_in,
                scrub_checked: scrub.blocks_checked,
                scrub_total: scrub.blocks_total,
                scrub_bad: scrub.blocks_bad,
                scrub_running: !scrub.idle,
                scrub_began_ms: scrub.began.map_or(0, unix_ms),
                scrub_ended_ms: scrub.ended.map(unix_ms),
                scrub_whole: scrub.whole,
                components: store.list().len() as u32,
                free_components: Some(space.free_components),
            }
        });
        let objects = self.0.objects.owned().into_iter().map(|o| {
            let copy = |c: &CopyProgress| CopyStatus {
                component: c.component,
                running: c.running,
                bytes_left: c.bytes_left,
                bytes_done: c.bytes_done,
                bytes_copied: c.bytes_copied,
                done_per_second: c.done_per_second,
                copied_per_second: c.copied_per_second,
                seconds: c.since.as_secs_f64(),
            };
            let runs = o.resync.iter().find(|c| c.running);
            ObjectStatus {
                id: o.record.id,
                epoch: o.record.epoch,
                resyncing: runs.is_some(),
                resync_bytes_left: o.resync.iter().map(|c| c.bytes_left).sum(),
                resync_bytes_done: runs.map_or(0, |c| c.bytes_done),
                resync_component: runs.map(|c| c.component),
                resync_bytes_copied: runs.map_or(0, |c| c.bytes_copied),
                resync_seconds: runs.map_or(0.0, |c| c.since.as_secs_f64()),
                copies: o.resync.iter().map(copy).collect(),
                no_space: o.no_space,
                no_space_answers: o.no_space_answers,
                guest_ops: o.guest_ops,
            }
        });
        let (resync_paused, resync_limit) = self.0.objects.resync_settings();
        HostStatus {
            id: self.0.config.host,
            groups: groups.collect(),
            objects: objects.collect(),
            components: stores
                .iter()
                .flat_map(|s| s.list())
                .map(|c| (c.id, c.used_bytes))
                .collect(),
            open_volumes: self.0.open_volumes.borrow().clone(),
            reaches: self.reached(),
            resync_paused,
            resync_limit,
            uptime_s: now.since(self.0.objects.started()).as_secs_f64(),
        }
    }

    /// Asks every host the same, all at once: what came back, and the hosts that did not answer.
    pub(crate) async fn ask_everybody(
        &self,
        ask: impl Fn(HostId) -> Option<Ask>,
        wait: Nanos,
    ) -> (Vec<(HostId, Result<Answer, ManageError>)>, Vec<HostId>) {
        let hosts: Vec<HostId> = self.0.hosts.borrow().keys().copied().collect();
        let (here, mut silent): (Vec<HostId>, Vec<HostId>) =
            hosts.into_iter().partition(|&host| self.is_alive(host));
        let asks = here.into_iter().filter_map(|host| Some((host, ask(host)?)));
        let calls = asks.map(|(host, ask)| {
            let wait = if self.answers(host) { wait } else { wait.min(LOOK_AGAIN_WAIT) };
            async move { (host, self.ask_within(host, ask, wait).await) }
        });
        let mut told = Vec::new();
        for (host, answer) in futures_util::future::join_all(calls).await {
            match answer {
                Err(ManageError::Unreachable(_) | ManageError::NoAnswer(_)) => silent.push(host),
                answer => told.push((host, answer)),
            }
        }
        (told, silent)
    }

    fn reached(&self) -> BTreeSet<HostId> {
        let hosts = self.0.hosts.borrow();
        hosts.keys().copied().filter(|&host| self.is_alive(host)).collect()
    }

    /// Starts or stops a scrub on this host.
    pub(crate) fn scrub_here(&self, object: Option<ObjectId>, bytes_per_second: u64) {
        let members = self.0.objects.members();
        for store in members.stores() {
            match object {
                None => store.scrub(None, bytes_per_second),
                // One pass for all of the group: each would take the place of the one before.
                Some(object) => {
                    let all = store.list().into_iter().filter(|c| c.spec.object == object);
                    let ids: Vec<ComponentId> = all.map(|c| c.id).collect();
                    if !ids.is_empty() {
                        store.scrub(Some(&ids), bytes_per_second);
                    }
                }
            }
        }
    }
}

//! One host, one life: a copy of a host's `data_dir` must not live beside the host.
//!
//! The record of a host in the directory names its present life (incarnation) and where it
//! listens. Whoever starts in its name asks there first, and goes no further if that life answers.
//! A life whose record was overwritten by another one, which therefore could not reach it, ends:
//! the later one has the identity. So at most one of two goes on that see the same directory,
//! whatever the order and whoever was paused or cut off.
//!
//! Invariants: a record of another life is overwritten only by one that has not published itself
//! yet, and has asked; a life that was overwritten never writes the record again.

use crate::event_log::{About, Severity};
use crate::node::{Ended, Node, NodeConfig, OtherLife};
use atoll_format::id::Incarnation;
use atoll_format::record::{self, HostRecord, key};
use atoll_transport::{Identity, Refusal, Twin, probe};
use atoll_world::directory::{Directory, DirectoryError, Revision};
use atoll_world::{Components, World};

/// Characters of what a peer says that are passed on.
const WHY_MAX: usize = 400;

/// What the directory says of this host before it lives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Before {
    /// Nothing.
    New,
    /// This was its last life, and it does not answer.
    Over(Incarnation),
    /// It lives.
    Lives(OtherLife),
}

/// Looks for another life of this host, before anything of it is used: where the directory says
/// that it listens. Takes no time if that is where this one listens itself; else at most 8 s for
/// each address.
///
/// # Errors
/// The directory's.
pub async fn before<W: World>(world: &W, config: &NodeConfig) -> Result<Before, DirectoryError> {
    let host = key::host(config.host);
    let Some(entry) = world.directory().get(&host).await? else { return Ok(Before::New) };
    let Ok(record) = record::decode::<HostRecord>(&host, &entry.value) else {
        return Ok(Before::New);
    };
    let me = identity(config, Incarnation(world.random()));
    let living = living(world, config, &me, &record).await;
    Ok(living.map_or(Before::Over(record.incarnation), Before::Lives))
}

/// Who shard 0 of that host is, in that life.
pub(crate) fn identity(config: &NodeConfig, incarnation: Incarnation) -> Identity {
    let name = config.name.clone();
    let &NodeConfig { cluster, host, .. } = config;
    Identity { cluster, host, shard: 0, shards: 1, incarnation, name }
}

/// Whether the life of `record` answers.
async fn living<W: World>(
    world: &W,
    config: &NodeConfig,
    me: &Identity,
    record: &HostRecord,
) -> Option<OtherLife> {
    // Where this host listens, nobody else does.
    for endpoint in record.peers.iter().filter(|endpoint| !config.peers.contains(endpoint)) {
        if probe(world, me, endpoint).await.is_some() {
            let (name, endpoint) = (record.name.clone(), endpoint.clone());
            return Some(OtherLife { name, endpoint });
        }
    }
    None
}

impl<W: World, S: Components> Node<W, S> {
    /// Decides about a record of this host that is not as this life knows it. False: this life
    /// has ended.
    pub(crate) async fn may_overwrite(&self, found: &[u8], modified: Revision) -> bool {
        let host = key::host(self.0.config.host);
        let Ok(record) = record::decode::<HostRecord>(&host, found) else { return true };
        if record.incarnation == self.0.incarnation {
            // An attempt of this life whose answer was lost.
            return true;
        }
        if self.was_overwritten(modified) {
            self.end(record.peers.join(", "), "has taken over while this one could not be reached");
            return false;
        }
        let me = identity(&self.0.config, self.0.incarnation);
        let asked = self.0.over.get() == Some(record.incarnation);
        if !asked && let Some(other) = living(self.world(), &self.0.config, &me, &record).await {
            self.end(other.endpoint, "lives");
            return false;
        }
        if record.peers.iter().any(|endpoint| !self.0.config.peers.contains(endpoint)) {
            let message = format!(
                "this host listened at {} before, and nobody answers there: if a process there \
                 lives on, it ends as soon as it sees this one",
                record.peers.join(", ")
            );
            let about = About::host(record.id);
            self.note(Severity::Warning, "host-moved", about, message);
        }
        // Asking has taken its time.
        self.0.ended.borrow().is_none() && !self.was_overwritten(modified)
    }

    /// That life of this host has been asked, and is over. To be said right after the start.
    pub fn is_over(&self, incarnation: Incarnation) {
        assert_ne!(incarnation, self.0.incarnation, "this life has just begun");
        assert!(!self.is_published(), "this life has overwritten the record of {incarnation}");
        self.0.over.set(Some(incarnation));
    }

    /// Whether a record of another life, of that revision, came after this life's own. What an
    /// old view of the directory, or an older copy of it, shows did not.
    fn was_overwritten(&self, modified: Revision) -> bool {
        self.is_published() && modified > self.0.host_revision.get()
    }

    /// Looks at the record that a list of the hosts shows for this one.
    pub(crate) fn check_own(&self, record: &HostRecord, modified: Revision) {
        assert_eq!(record.id, self.0.config.host, "the record of another host");
        let mine = record.incarnation == self.0.incarnation;
        if !mine && self.was_overwritten(modified) {
            let at = record.peers.join(", ");
            self.end(at, "has taken over while this one could not be reached");
        }
    }

    /// Ends this life: nothing is answered or asked any more.
    fn end(&self, endpoint: String, why: &str) {
        if self.0.ended.borrow().is_some() {
            return;
        }
        let name = self.0.config.name.clone();
        let message = format!("another process with this host's identity {why}, at {endpoint}");
        let about = About { cause: format!("it {why}"), ..About::host(self.0.config.host) };
        self.note(Severity::Error, "host-twice", about, message);
        self.end_as(Ended::Twin(OtherLife { name, endpoint }));
    }

    /// Nothing is answered or asked any more.
    pub(crate) fn end_as(&self, why: Ended) {
        assert!(self.0.ended.borrow().is_none(), "a life ends once, and now for {why:?}");
        *self.0.ended.borrow_mut() = Some(why);
        self.0.stopping.set(true);
        self.0.objects.peers().stop();
        self.0.ended_notify.notify_all();
    }

    /// Returns when this life has ended because there is another one, or because the host was
    /// removed: the caller serves nobody from then on, and ends the tasks.
    pub async fn ended(&self) -> Ended {
        loop {
            let changed = self.0.ended_notify.notified();
            if let Some(why) = self.0.ended.borrow().clone() {
                return why;
            }
            changed.await;
        }
    }

    /// Tells what the connections have shown.
    pub(crate) fn note_twins(&self) {
        for twin in self.0.objects.peers().take_twins() {
            let (kind, of, message) = match twin {
                Twin::Refused { name, from } => (
                    "copy-refused",
                    self.0.config.host,
                    format!(
                        "a process named '{name}', from {from}, asked whether this host lives, \
                         with this host's own identity, and was refused: it runs on a copy of \
                         host.data_dir"
                    ),
                ),
                Twin::Alternates { host } => (
                    "host-twice",
                    host,
                    format!(
                        "two processes take turns as host {}: one of them runs on a copy of its \
                         host.data_dir and has to be stopped",
                        self.host_name(host)
                    ),
                ),
            };
            self.note(Severity::Error, kind, About::host(of), message);
        }
    }

    /// Tells of connections that are refused again and again.
    pub(crate) fn note_refusals(&self) {
        let now = self.world().now();
        for refusal in self.0.objects.peers().take_refusals() {
            if !self.0.refusals.borrow_mut().saw(refusal.clone(), now) {
                continue;
            }
            let Refusal { with, why } = refusal;
            let why: String = why.chars().filter(|c| !c.is_control()).take(WHY_MAX).collect();
            let said = why.strip_prefix(&format!("{with}: ")).unwrap_or(&why);
            let message = format!("no connection between this host and {with}: {said}");
            let about = About { cause: why, ..About::host(self.0.config.host) };
            self.note(Severity::Warning, "peer-refused", about, message);
        }
    }
}

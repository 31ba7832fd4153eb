//! Hosts that were removed from the cluster: nobody speaks with them, and one that lives ends.
//!
//! Invariants: a host that was removed never publishes itself, because that compares; a life of
//! one ends only by a removal that came after it had published itself.

use crate::directory_view::Removed;
use crate::event_log::{About, Severity};
use crate::node::{Ended, Node, RemovedHost};
use atoll_format::id::HostId;
use atoll_format::record::RemovedRecord;
use atoll_world::{Components, World, sometimes};
use std::sync::Arc;

impl<W: World, S: Components> Node<W, S> {
    /// These hosts belong to the cluster no more.
    pub(crate) fn take_removed(&self, removed: &Arc<Removed>) {
        if let Some((record, modified)) = removed.get(&self.0.config.host)
            && self.is_published()
            && *modified > self.0.host_revision.get()
        {
            self.was_removed(record.as_deref());
        }
        self.0.objects.peers().set_removed(removed.keys().copied().collect());
        *self.0.removed.borrow_mut() = removed.clone();
    }

    /// The hosts that were removed from the cluster, as far as this one has seen.
    pub fn removed_ids(&self) -> Vec<HostId> {
        self.0.removed.borrow().keys().copied().collect()
    }

    /// Whether a host belongs to the cluster no more, as far as this one has seen.
    pub(crate) fn is_removed(&self, host: HostId) -> bool {
        self.0.removed.borrow().contains_key(&host)
    }

    /// Ends this life: the host belongs to the cluster no more.
    pub(crate) fn was_removed(&self, record: Option<&RemovedRecord>) {
        if self.0.ended.borrow().is_some() {
            return;
        }
        sometimes!("removal.host_hears_that_it_was_removed");
        let message = "this host was removed from the cluster: what it holds counts no more";
        let about = About::host(self.0.config.host);
        self.note(Severity::Error, "host-was-removed", about, message);
        let at_ms = record.map_or(0, |record| record.at_ms);
        let name = self.0.config.name.clone();
        self.end_as(Ended::Removed(RemovedHost { name, at_ms }));
        assert!(self.0.stopping.get(), "a host goes on after it was removed");
    }
}

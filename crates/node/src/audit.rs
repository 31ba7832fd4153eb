//! What must hold of a host's tables at every moment, checked now and then in simulation (see
//! [`World::audits`]): a run ends where it first does not, and not where somebody notices.

use crate::{EVENTS_MAX, Node};
use atoll_world::{Components, World};

impl<W: World, S: Components> Node<W, S> {
    /// # Panics
    /// Something does not hold.
    pub(crate) fn audit(&self) {
        if self.world().audits()
            && let Err(why) = self.check()
        {
            panic!("host {}: {why}", self.0.config.host);
        }
    }

    fn check(&self) -> Result<(), String> {
        let inner = &self.0;
        for (id, (at, status)) in inner.statuses.borrow().iter() {
            if *id != status.id || *at > self.world().now() {
                return Err(format!("the figures of {id} are of {}, from {at:?}", status.id));
            }
        }
        for (object, count) in inner.open_volumes.borrow().iter() {
            if *count == 0 {
                return Err(format!("{object} is open and has no client"));
            }
        }
        // Whoever looks for left-over locks must not take away one that an import holds.
        let own = inner.own_locks.borrow();
        if let Some(token) = inner.imports.borrow().keys().find(|token| !own.contains(token)) {
            return Err(format!("the lock {token:x} of an import counts as left over"));
        }
        // Readers skip by number: a gap would hide an event, or show one twice.
        let (events, next) = (inner.events.borrow(), inner.next_event.get());
        let first = next - events.len() as u64;
        let in_order = (first..next).eq(events.iter().map(|event| event.number));
        if events.len() > EVENTS_MAX || !in_order {
            return Err(format!("{} events before {next} are not in order", events.len()));
        }
        Ok(())
    }
}

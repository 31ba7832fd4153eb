//! Objects without a client that lack redundancy: a host takes them over, so that they heal.

use crate::admin::message::AdminRequest;
use crate::node::Node;
use atoll_format::id::Addr;
use atoll_format::record::{MemberRecord, ObjectRecord, ObjectState, OwnerRecord};
use atoll_world::{Components, Nanos, World, mutant, sometimes};
use std::collections::BTreeMap;

/// How often objects are looked through.
const CARE_EVERY: Nanos = Nanos::from_secs(2);

impl<W: World, S: Components> Node<W, S> {
    /// Takes over objects that lack redundancy and have no living owner, so that they heal.
    pub(crate) async fn care_for_objects(self) {
        loop {
            self.world().sleep(CARE_EVERY).await;
            let Some(objects) = self.0.view.objects() else { continue };
            let mut names = BTreeMap::new();
            for (record, _) in objects {
                names.insert(record.id, record.name.clone());
                if let Some(owner) = self.owner_beside(&record) {
                    self.care_beside(owner, &record);
                } else if self.needs_me(&record) {
                    let is_free = !self.0.objects.owns(record.id);
                    assert!(
                        record.state == ObjectState::Ready && is_free,
                        "{}, which is {:?}, is adopted",
                        record.id,
                        record.state
                    );
                    sometimes!("care.adopts_an_object");
                    // Only this shard takes over what the record says that it owns.
                    let beside = self.shard_of_copy(&record).filter(|_| !self.is_named(&record));
                    match beside {
                        Some(at) => self.tell_beside(at, AdminRequest::Adopt { object: record.id }),
                        None => _ = self.0.objects.adopt(record.id).await,
                    }
                }
                for (_, m) in record.members().filter(|(_, m)| self.has_failed(m)) {
                    if self.0.objects.owns(record.id) && !mutant!("care.failed_group_not_told") {
                        sometimes!("care.failed_group_told_to_owner");
                        self.0.objects.look_at_member(record.id, m.component).await;
                    }
                }
            }
            *self.0.volume_names.borrow_mut() = names;
        }
    }

    /// The other shard of this host, in this life, that a record names as the owner.
    fn owner_beside(&self, record: &ObjectRecord) -> Option<Addr> {
        let me = (self.0.config.host, self.0.incarnation);
        let owner = record.owner.filter(|owner| (owner.host, owner.incarnation) == me)?;
        (owner.shard != self.0.place.shard).then(|| owner.addr())
    }

    /// An owner on another shard does what one here would do.
    fn care_beside(&self, owner: Addr, record: &ObjectRecord) {
        assert_eq!(owner.host, self.0.config.host, "the owner of {}", record.id);
        let object = record.id;
        let lacks = record.members().any(|(_, m)| !m.state.is_active());
        if lacks && record.state == ObjectState::Ready {
            // Named as the owner and not serving, perhaps.
            self.tell_beside(owner, AdminRequest::Adopt { object });
        }
        for (_, m) in record.members().filter(|(_, m)| self.has_failed(m)) {
            let component = m.component;
            self.tell_beside(owner, AdminRequest::LookAtMember { object, component });
        }
    }

    /// The other shard of this host that has the first good copy of an object here.
    fn shard_of_copy(&self, record: &ObjectRecord) -> Option<Addr> {
        let is_here = |m: &MemberRecord| m.host == self.0.config.host && m.state.is_active();
        let mut here = record.members().map(|(_, m)| *m).filter(|m| is_here(m));
        let at = here.find(|m| !self.has_failed(m)).map(|m| {
            let (host, group) = m.place();
            self.0.objects.addr_of(host, group)
        });
        at.filter(|at| at.shard != self.0.place.shard)
    }

    /// Asks another shard of this host; whether it does so is seen the next time.
    fn tell_beside(&self, at: Addr, request: AdminRequest) {
        let node = self.clone();
        self.world().spawn(async move {
            let _ = node.ask(at, request).await;
        });
    }

    /// Whether the disk group of a member has failed in the present life of its host, or is not
    /// there: its disk is missing, or is another one now. The member's owner asks which. So it is
    /// with all of a host that was removed.
    fn has_failed(&self, member: &MemberRecord) -> bool {
        // It will not come back, and its host's removal waits for that to be recorded.
        if self.is_removed(member.host) {
            return true;
        }
        let hosts = self.0.hosts.borrow();
        let host = hosts.get(&member.host).filter(|h| self.is_alive_life(h.id, h.incarnation));
        host.is_some_and(|h| {
            let group = h.groups.iter().find(|g| g.id == member.group);
            group.is_none_or(|g| !g.healthy)
        })
    }

    /// Whether a record names this shard, in this life, as the owner.
    fn is_named(&self, record: &ObjectRecord) -> bool {
        let me = Addr { host: self.0.config.host, shard: self.0.place.shard };
        let own = |owner: OwnerRecord| (owner.addr(), owner.incarnation);
        record.owner.map(own) == Some((me, self.0.incarnation))
    }

    fn needs_me(&self, record: &ObjectRecord) -> bool {
        if mutant!("care.adopts_nothing") {
            return false;
        }
        let degraded = record.members().any(|(_, m)| !m.state.is_active() || self.has_failed(m));
        if record.state != ObjectState::Ready || !degraded || self.0.objects.owns(record.id) {
            return false;
        }
        // A takeover of this life got no further, or it was given up for a shard that did not come.
        if self.is_named(record) {
            sometimes!("care.takes_over_again");
            return true;
        }
        if record.owner.is_some_and(|o| self.is_alive_life(o.host, o.incarnation)) {
            return false;
        }
        // The first living host with an active copy; if it is not this one, that one does it.
        let first = record
            .members()
            .filter(|(_, m)| m.state.is_active() && self.is_alive(m.host) && !self.has_failed(m))
            .map(|(_, m)| m.host)
            .min();
        first == Some(self.0.config.host)
    }
}

//! The life of a host: its tasks begin, and it stops.

use crate::event_log::EventsKept;
use crate::membership::twin;
use crate::node::{Node, NodeConfig, NodeState};
use atoll_format::id::Incarnation;
use atoll_format::record::GroupRecord;
use atoll_object::{HostComponents, HostObjects};
use atoll_world::{Components, World};
use std::collections::BTreeSet;
use std::rc::Rc;

impl<W: World, S: Components> Node<W, S> {
    /// Starts the host: its members serve, its record is published, its cluster is watched.
    /// `kept`: its events of earlier lives, and where those of this one go.
    pub fn start(
        world: W,
        config: NodeConfig,
        groups: Vec<(S, GroupRecord)>,
        kept: EventsKept,
    ) -> Self {
        let incarnation = Incarnation(world.random());
        let identity = twin::identity(&config, incarnation);
        let ids: BTreeSet<_> = groups.iter().map(|(_, record)| record.id).collect();
        assert_eq!(ids.len(), groups.len(), "a disk group is started twice: {ids:?}");
        let (stores, groups): (Vec<S>, Vec<GroupRecord>) = groups.into_iter().unzip();
        let objects = HostObjects::start(world.clone(), identity, stores, HostComponents::of(1));
        let state = NodeState::new(world.clone(), config, incarnation, objects, groups, kept);
        let node = Self(Rc::new(state));
        node.0.objects.set_admin(node.admin_handler());
        world.spawn(node.clone().publish());
        world.spawn(node.clone().watch_hosts());
        world.spawn(node.clone().poll_statuses());
        world.spawn(node.clone().take_events());
        world.spawn(node.clone().care_for_objects());
        world.spawn(node.clone().reap());
        node
    }

    /// Takes one more disk group into use.
    pub fn add_group(&self, store: S, record: GroupRecord) {
        let is_there = self.0.groups.borrow().iter().any(|group| group.id == record.id);
        assert!(!is_there, "disk group {} is started twice", record.id);
        self.0.objects.members().add_store(store);
        self.0.groups.borrow_mut().push(record);
        self.0.publish_now.notify_all();
    }

    /// Hands over what this host owns, then stops serving. The caller ends the tasks.
    pub async fn stop(&self) {
        self.0.stopping.set(true);
        self.0.objects.release_all().await;
        // The front ends have ended before: it is true.
        if self.0.open_volumes.borrow().is_empty() {
            self.say_farewell().await;
        }
        self.0.objects.peers().stop();
    }

    /// Breaks reference cycles, so that memory goes after a simulated crash.
    pub fn dissolve(&self) {
        self.0.manager.take();
        self.0.objects.dissolve();
    }
}

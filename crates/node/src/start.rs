//! The life of a host: its tasks begin, and it stops.

use crate::event_log::EventsKept;
use crate::host_board::HostBoard;
use crate::membership::twin;
use crate::node::{Node, NodeConfig, NodeState, ShardPlace};
use atoll_format::id::Incarnation;
use atoll_format::record::GroupRecord;
use atoll_object::{HostComponents, HostObjects};
use atoll_transport::Identity;
use atoll_world::{Components, World};
use std::collections::BTreeSet;
use std::rc::Rc;

/// A life of a host that begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Life {
    /// Which: none before it had this number.
    pub incarnation: Incarnation,
    /// Earlier ones that have ended for certain, wherever they ran. That the directory knows of
    /// them, or that they do not answer, proves nothing: a copy of the host may have started
    /// elsewhere.
    pub outlived: Vec<Incarnation>,
}

/// What the other shards of a host are started with, on their threads.
#[derive(Clone)]
pub struct FirstShard {
    config: NodeConfig,
    life: Life,
    of_host: HostComponents,
    shards: u8,
    board: HostBoard,
}

impl FirstShard {
    /// Whether a disk of another shard cannot be used now: before that shard starts, or what is on
    /// the disk would count as lost between the two.
    pub fn set_lacks_disks(&self, shard: u8, lacks: bool) {
        assert!(0 < shard && shard < self.shards, "shard {shard} of {}", self.shards);
        self.of_host.set_lacks_disks(shard, lacks);
    }
}

impl<W: World, S: Components> Node<W, S> {
    /// Starts a host of one shard: its members serve, its record is published, its cluster is
    /// watched. `kept`: its events of earlier lives, and where those of this one go.
    pub fn start(
        world: W,
        config: NodeConfig,
        life: Life,
        groups: Vec<(S, GroupRecord)>,
        kept: EventsKept,
    ) -> Self {
        Self::start_first(world, config, life, 1, groups, kept).0
    }

    /// Starts shard 0 of a host of so many. Its record is published when the others have started.
    pub fn start_first(
        world: W,
        config: NodeConfig,
        life: Life,
        shards: u8,
        groups: Vec<(S, GroupRecord)>,
        kept: EventsKept,
    ) -> (Self, FirstShard) {
        let of_host = HostComponents::of(shards);
        let board = HostBoard::default();
        let first = FirstShard { config, life, of_host, shards, board };
        let node = Self::begin(world.clone(), &first, 0, groups, kept);
        world.spawn(node.clone().publish());
        world.spawn(node.clone().follow_directory());
        world.spawn(node.clone().poll_statuses());
        world.spawn(node.clone().take_events());
        world.spawn(node.clone().care_for_objects());
        world.spawn(node.clone().reap());
        if shards > 1 {
            world.spawn(node.clone().look_after_shards());
            world.spawn(node.clone().balance_shards());
        }
        (node, first)
    }

    /// Starts another shard of the host whose shard 0 was started.
    pub fn start_shard(
        world: W,
        first: &FirstShard,
        shard: u8,
        groups: Vec<(S, GroupRecord)>,
    ) -> Self {
        assert!(0 < shard && shard < first.shards, "shard {shard} of {}", first.shards);
        let node = Self::begin(world.clone(), first, shard, groups, EventsKept::by_another());
        world.spawn(node.clone().follow_first_shard());
        world.spawn(node.clone().take_events());
        world.spawn(node.clone().reap_in_shard());
        node
    }

    fn begin(
        world: W,
        first: &FirstShard,
        shard: u8,
        groups: Vec<(S, GroupRecord)>,
        kept: EventsKept,
    ) -> Self {
        let FirstShard { config, life, of_host, shards, board } = first.clone();
        let Life { incarnation, outlived } = life;
        let identity = Identity { shard, shards, ..twin::identity(&config, incarnation) };
        let ids: BTreeSet<_> = groups.iter().map(|(_, record)| record.id).collect();
        assert_eq!(ids.len(), groups.len(), "a disk group is started twice: {ids:?}");
        let of_shard = |(store, record)| (store, GroupRecord { shard, ..record });
        let (stores, groups): (Vec<S>, Vec<GroupRecord>) = groups.into_iter().map(of_shard).unzip();
        let objects = HostObjects::start(world.clone(), identity, outlived, stores, of_host);
        let place = ShardPlace { shard, shards, board };
        let state = NodeState::new(world, config, place, incarnation, objects, groups, kept);
        let node = Self(Rc::new(state));
        node.0.objects.set_admin(node.admin_handler());
        node
    }

    /// Takes one more disk group into use.
    pub fn add_group(&self, store: S, record: GroupRecord) {
        let is_there = self.0.groups.borrow().iter().any(|group| group.id == record.id);
        assert!(!is_there, "disk group {} is started twice", record.id);
        self.0.objects.members().add_store(store);
        let record = GroupRecord { shard: self.0.place.shard, ..record };
        self.0.groups.borrow_mut().push(record);
        self.0.publish_now.notify_all();
    }

    /// Hands over what this shard owns, then stops serving. The caller ends the tasks, and stops
    /// shard 0 last.
    pub async fn stop(&self) {
        self.0.stopping.set(true);
        self.0.objects.release_all().await;
        // Clients of what it owned go elsewhere from here on, and nobody waits for its copies.
        self.0.objects.peers().stop();
        if !self.is_first_shard() {
            // Shard 0, which stops behind this one, must not take its volumes for open.
            self.tell_board();
        } else if self.host_status().open_volumes.is_empty() {
            // The front ends have ended before: it is true.
            self.say_farewell().await;
        }
    }

    /// Breaks reference cycles, so that memory goes after a simulated crash.
    pub fn dissolve(&self) {
        self.0.manager.take();
        self.0.objects.dissolve();
    }
}

//! Events of the layers below, as events of this host: what objects and stores have to tell, in
//! words for people, with the names of hosts and the paths of disks.

use crate::event_log::{About, Severity};
use crate::node::Node;
use crate::repair_queue::BAD_RETRY_FIRST;
use atoll_format::id::GroupId;
use atoll_format::units::BLOCKS_PER_CHUNK;
use atoll_object::Event;
use atoll_world::components::StoreEvent;
use atoll_world::{Components, Nanos, World};

/// How often events are taken over from the layers below.
const EVENTS_EVERY: Nanos = Nanos::from_ms(250);

const _: () = assert!(BAD_RETRY_FIRST.0 > EVENTS_EVERY.0);

impl<W: World, S: Components> Node<W, S> {
    /// Takes over what the layers below have to tell, and hands damaged blocks to their owners.
    pub(crate) async fn take_events(self) {
        loop {
            self.world().sleep(EVENTS_EVERY).await;
            for (_, event) in self.0.objects.take_events() {
                self.note_object_event(event);
            }
            for store in self.0.objects.members().stores() {
                for event in store.take_events() {
                    self.on_store_event(store.group(), event);
                }
            }
            self.note_twins();
            self.hand_over_bad_blocks().await;
        }
    }

    fn note_object_event(&self, event: Event) {
        use Severity::{Error, Info, Warning};
        let about = self.about_object(&event);
        let name = about.host.map(|host| self.host_name(host)).unwrap_or_default();
        let (severity, kind, message) = match event {
            Event::TakingOver { epoch, .. } => {
                (Info, "taking-over", format!("takes over, epoch {}", epoch.0))
            }
            Event::TookOver { epoch, .. } => {
                (Info, "took-over", format!("owns it now, epoch {}", epoch.0))
            }
            Event::OwnerStopped { epoch, .. } => {
                (Info, "owner-stopped", format!("no longer owns it, epoch {}", epoch.0))
            }
            Event::MemberDropped { why, .. } => {
                (Warning, "member-dropped", format!("copy on {name} left out: {why}"))
            }
            Event::ResyncStarted { .. } => {
                (Info, "resync-started", format!("copy on {name} is brought up to date"))
            }
            Event::ResyncDone { .. } => {
                (Info, "resync-done", format!("copy on {name} is up to date"))
            }
            Event::NoPlace { why, .. } => {
                (Warning, "no-place", format!("a lost copy has no place to be rebuilt: {why}"))
            }
            Event::BlockRepaired { .. } => {
                (Warning, "block-repaired", format!("a damaged block on {name} rewritten"))
            }
            Event::WritesLost { .. } => {
                let lost = "has lost some of what it had acknowledged, or may have";
                let message = format!("the last copy, on {name}, {lost}: what it shows may be old");
                (Error, "writes-lost", message)
            }
            Event::NoSpace { group, .. } => {
                let disks = self.disks_of(group);
                let message = format!(
                    "a write was refused for want of space: {disks} on {name} is full; free some, \
                     or add disks or hosts"
                );
                (Error, "no-space", message)
            }
            Event::SpaceAgain { .. } => {
                (Info, "space-again", "there is room for new data again".into())
            }
            Event::BlockLost { at, .. } => {
                (Error, "block-lost", format!("no good copy of the block at byte {at}"))
            }
        };
        self.note(severity, kind, about, message);
    }

    /// What an event of an object is about.
    fn about_object(&self, event: &Event) -> About {
        let none = About::default;
        let (object, about) = match event {
            Event::TakingOver { object, epoch }
            | Event::TookOver { object, epoch }
            | Event::OwnerStopped { object, epoch } => {
                (object, About { numbers: vec![("epoch", epoch.0.into())], ..none() })
            }
            Event::MemberDropped { object, host, why } => {
                (object, About { host: Some(*host), cause: why.clone(), ..none() })
            }
            Event::ResyncStarted { object, host }
            | Event::ResyncDone { object, host }
            | Event::BlockRepaired { object, host }
            | Event::WritesLost { object, host } => (object, About { host: Some(*host), ..none() }),
            Event::NoSpace { object, host, group } => {
                (object, About { host: Some(*host), ..self.about_group(*group) })
            }
            Event::NoPlace { object, why } => (object, About { cause: why.clone(), ..none() }),
            Event::SpaceAgain { object } => (object, none()),
            Event::BlockLost { object, at } => {
                (object, About { numbers: vec![("at_bytes", *at)], ..none() })
            }
        };
        About { object: Some(*object), ..about }
    }

    fn about_group(&self, group: GroupId) -> About {
        About { group: Some(group), disks: self.paths_of(group), ..About::default() }
    }

    fn on_store_event(&self, group: GroupId, event: StoreEvent) {
        let host = Some(self.0.config.host);
        let about = || About { host, ..self.about_group(group) };
        let (severity, kind, what) = match event {
            StoreEvent::BadBlock { component, block } => {
                let object = self.0.objects.members().object_of(component);
                let message = format!("checksum of block {block} of component {component}");
                let numbers = vec![("block", u64::from(block))];
                let about = About { object, numbers, ..about() };
                self.note(Severity::Warning, "bad-block", about, message);
                self.0.repairs.add(component, block / BLOCKS_PER_CHUNK);
                return;
            }
            StoreEvent::PageRewritten { component, chunk } => {
                let object = self.0.objects.members().object_of(component);
                let message = format!(
                    "checksums of chunk {chunk} of component {component} were damaged on {}, and \
                     are written anew from memory",
                    self.disks_of(group)
                );
                let about = About { object, numbers: vec![("chunk", chunk.into())], ..about() };
                self.note(Severity::Warning, "page-rewritten", about, message);
                return;
            }
            StoreEvent::Failed { why, cause } => {
                assert!(!why.is_empty(), "disk group {group} has failed for no reason");
                let why = self.with_paths(group, &why);
                let mut groups = self.0.groups.borrow_mut();
                if let Some(g) = groups.iter_mut().find(|g| g.id == group && g.healthy) {
                    g.healthy = false;
                    g.failure.clone_from(&why);
                    let before = self.0.failure_causes.borrow_mut().insert(group, cause);
                    assert!(before.is_none(), "disk group {group} has failed before: {before:?}");
                }
                let in_use = groups.iter().any(|g| g.id == group && g.healthy);
                assert!(!in_use, "disk group {group} has failed, and data is placed in it");
                drop(groups);
                let message = format!("{} has failed: {why}", self.disks_of(group));
                let about = About { cause: why, ..about() };
                self.note(Severity::Error, "group-failed", about, message);
                self.0.publish_now.notify_all();
                return;
            }
            StoreEvent::LogDamage(what) => (Severity::Warning, "log-damage", what),
            StoreEvent::LogFull(what) => (Severity::Warning, "log-full", what),
            StoreEvent::Slow(what) => (Severity::Warning, "slow-device", what),
        };
        let cause = self.with_paths(group, &what);
        let message = format!("{}: {cause}", self.disks_of(group));
        self.note(severity, kind, About { cause, ..about() }, message);
    }

    /// Paths of a group's disks; none of a group that the directory has not shown.
    fn paths_of(&self, group: GroupId) -> Vec<String> {
        let hosts = self.0.hosts.borrow();
        let own = self.0.groups.borrow();
        let mut all = own.iter().chain(hosts.values().flat_map(|host| &host.groups));
        let found = all.find(|record| record.id == group);
        found.map(|g| g.disks.iter().map(|disk| disk.path.clone()).collect()).unwrap_or_default()
    }

    /// `disk group 5ab1c0d2e3f40516 (/dev/nvme0n1)`.
    fn disks_of(&self, group: GroupId) -> String {
        match &self.paths_of(group)[..] {
            [] => format!("disk group {group}"),
            paths => format!("disk group {group} ({})", paths.join(", ")),
        }
    }

    /// What a store says of its devices, which it knows by their ids, with their paths.
    fn with_paths(&self, group: GroupId, text: &str) -> String {
        let groups = self.0.groups.borrow();
        let disks = groups.iter().filter(|record| record.id == group).flat_map(|g| &g.disks);
        disks.fold(text.to_owned(), |text, disk| {
            text.replace(&format!("disk {}", disk.id), &disk.path)
                .replace(&disk.id.to_string(), &disk.path)
        })
    }
}

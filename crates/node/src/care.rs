//! Care for what nobody asks for: objects without a client that lack redundancy, damaged blocks,
//! components and records that are left over, and events.

use crate::admin::Ask;
use crate::status::{EventMark, NodeEvent, Severity};
use crate::{EVENTS_MAX, Node};
use atoll_format::id::{ComponentId, Epoch, GroupId, HostId, ObjectId};
use atoll_format::op::BlockRange;
use atoll_format::record::{
    self, MemberRecord, MemberState, ObjectRecord, ObjectState, RECORD_VERSION, ReapedRecord,
    VolumeRecord, key,
};
use atoll_format::units::{BLOCKS_PER_CHUNK, iec};
use atoll_object::Event;
use atoll_object::message::{Reply, Request};
use atoll_world::components::StoreEvent;
use atoll_world::directory::{Change, Compare, Directory, Listing, Revision, Txn, TxnReply};
use atoll_world::{Components, Lane, Nanos, StoreError, World, mutant, sometimes};
use std::collections::{BTreeMap, BTreeSet};

/// How often events are taken over from the layers below.
const EVENTS_EVERY: Nanos = Nanos::from_ms(250);
/// How often objects are looked through.
const CARE_EVERY: Nanos = Nanos::from_secs(2);
/// How often left-over components are looked for.
const REAP_EVERY: Nanos = Nanos::from_secs(5);
/// A component that no record names is kept for this long: a rebuild makes the component before
/// it writes the record.
const ORPHAN_AFTER: Nanos = Nanos::from_secs(600);
/// An object that no name leads to is kept for this long.
const NAMELESS_AFTER: Nanos = Nanos::from_secs(60);
/// A volume that has been seen in the making for this long was given up by its maker.
const CREATING_MAX: Nanos = Nanos::from_secs(120);
/// Chunks with bad blocks that are remembered until they are good; a scrub finds the others again.
const BAD_CHUNKS_MAX: usize = 4096;
/// After how long a bad block is handed over again, at first and at most.
const BAD_RETRY_FIRST: Nanos = Nanos::from_secs(1);
const BAD_RETRY_LAST: Nanos = Nanos::from_secs(30);

/// When a chunk's bad blocks are handed over again.
#[derive(Debug)]
pub(crate) struct Retry {
    at: Nanos,
    after: Nanos,
}

impl<W: World, S: Components> Node<W, S> {
    // ---- events --------------------------------------------------------------------------

    /// Records an event of this host.
    pub fn note(
        &self,
        severity: Severity,
        kind: &str,
        object: Option<ObjectId>,
        message: impl Into<String>,
    ) {
        let number = self.0.next_event.get();
        self.0.next_event.set(number + 1);
        let mut events = self.0.events.borrow_mut();
        if events.len() == EVENTS_MAX {
            events.pop_front();
        }
        let volume = object.and_then(|id| self.0.volume_names.borrow().get(&id).cloned());
        events.push_back(NodeEvent {
            life: self.0.incarnation,
            number,
            at_ms: self.world().unix_ms(),
            host: self.0.config.host,
            severity,
            kind: kind.into(),
            object,
            volume: volume.unwrap_or_default(),
            message: message.into(),
        });
        drop(events);
        self.audit();
        self.0.event_notify.notify_all();
    }

    /// Events of this host after that mark, oldest first, at most `max`: all that are remembered if
    /// it is a mark of another life.
    pub fn local_events(&self, after: EventMark, max: usize) -> Vec<NodeEvent> {
        let number = if after.life == self.0.incarnation { after.number } else { 0 };
        let events = self.0.events.borrow();
        // They are numbered without a gap: those that were read are not looked at.
        let first = events.front().map_or(0, |event| event.number);
        let read =
            usize::try_from(number.saturating_add(1).saturating_sub(first)).unwrap_or(usize::MAX);
        events.iter().skip(read).take(max).cloned().collect()
    }

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
        let (severity, kind, object, message) = match event {
            Event::TakingOver { object, epoch } => {
                (Info, "taking-over", object, format!("takes over, epoch {}", epoch.0))
            }
            Event::TookOver { object, epoch } => {
                (Info, "took-over", object, format!("owns it now, epoch {}", epoch.0))
            }
            Event::OwnerStopped { object, epoch } => {
                (Info, "owner-stopped", object, format!("no longer owns it, epoch {}", epoch.0))
            }
            Event::MemberDropped { object, host, why } => {
                let host = self.host_name(host);
                (Warning, "member-dropped", object, format!("copy on {host} left out: {why}"))
            }
            Event::ResyncStarted { object, host } => {
                let host = self.host_name(host);
                (Info, "resync-started", object, format!("copy on {host} is brought up to date"))
            }
            Event::ResyncDone { object, host } => {
                let host = self.host_name(host);
                (Info, "resync-done", object, format!("copy on {host} is up to date"))
            }
            Event::BlockRepaired { object, host } => {
                let host = self.host_name(host);
                (Warning, "block-repaired", object, format!("a damaged block on {host} rewritten"))
            }
            Event::WritesLost { object, host } => {
                let host = self.host_name(host);
                let lost = "has lost some of what it had acknowledged, or may have";
                let message = format!("the last copy, on {host}, {lost}: what it shows may be old");
                (Error, "writes-lost", object, message)
            }
            Event::NoSpace { object, host, group } => {
                let (host, disks) = (self.host_name(host), self.disks_of(group));
                let message = format!(
                    "a write was refused for want of space: {disks} on {host} is full; free some, \
                     or add disks or hosts"
                );
                (Error, "no-space", object, message)
            }
            Event::SpaceAgain { object } => {
                (Info, "space-again", object, "there is room for new data again".into())
            }
            Event::BlockLost { object, at } => {
                (Error, "block-lost", object, format!("no good copy of the block at byte {at}"))
            }
        };
        self.note(severity, kind, Some(object), message);
    }

    /// `disk group 5ab1c0d2e3f40516 (/dev/nvme0n1)`.
    fn disks_of(&self, group: GroupId) -> String {
        let hosts = self.0.hosts.borrow();
        let own = self.0.groups.borrow();
        let mut all = own.iter().chain(hosts.values().flat_map(|host| &host.groups));
        match all.find(|record| record.id == group) {
            Some(record) => {
                let paths: Vec<&str> = record.disks.iter().map(|disk| disk.path.as_str()).collect();
                format!("disk group {group} ({})", paths.join(", "))
            }
            None => format!("disk group {group}"),
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

    fn on_store_event(&self, group: GroupId, event: StoreEvent) {
        match event {
            StoreEvent::BadBlock { component, block } => {
                let object = self.0.objects.members().object_of(component);
                let message = format!("checksum of block {block} of component {component}");
                self.note(Severity::Warning, "bad-block", object, message);
                let mut bad = self.0.bad_chunks.borrow_mut();
                if bad.len() < BAD_CHUNKS_MAX {
                    let soon = Retry { at: Nanos::ZERO, after: BAD_RETRY_FIRST };
                    bad.entry((component, block / BLOCKS_PER_CHUNK)).or_insert(soon);
                }
            }
            StoreEvent::Failed(why) => {
                let why = self.with_paths(group, &why);
                let mut groups = self.0.groups.borrow_mut();
                if let Some(g) = groups.iter_mut().find(|g| g.id == group && g.healthy) {
                    g.healthy = false;
                    g.failure.clone_from(&why);
                }
                drop(groups);
                let message = format!("{} has failed: {why}", self.disks_of(group));
                self.note(Severity::Error, "group-failed", None, message);
                self.0.publish_now.notify_all();
            }
            StoreEvent::LogDamage(what) => {
                let what = self.with_paths(group, &what);
                let message = format!("{}: {what}", self.disks_of(group));
                self.note(Severity::Warning, "log-damage", None, message);
            }
            StoreEvent::LogFull(what) => {
                let what = self.with_paths(group, &what);
                let message = format!("{}: {what}", self.disks_of(group));
                self.note(Severity::Warning, "log-full", None, message);
            }
            StoreEvent::Slow(what) => {
                let what = self.with_paths(group, &what);
                let message = format!("{}: {what}", self.disks_of(group));
                self.note(Severity::Warning, "slow-device", None, message);
            }
        }
    }

    /// Damaged blocks are repaired by their object's owner; without one, this host becomes it.
    /// They are handed over until they are good: an owner may be on its way out, or unable now.
    async fn hand_over_bad_blocks(&self) {
        if mutant!("care.damage_not_told") {
            return;
        }
        let now = self.world().now();
        let due: Vec<(ComponentId, u32)> = {
            let bad = self.0.bad_chunks.borrow();
            let due = bad.iter().filter(|(_, retry)| retry.at <= now);
            due.map(|(&key, _)| key).take(16).collect()
        };
        for (component, chunk) in due {
            let blocks = self.bad_blocks_of(component, chunk).await;
            let object = self.0.objects.members().object_of(component);
            let (Some(object), false) = (object, blocks.is_empty()) else {
                self.0.bad_chunks.borrow_mut().remove(&(component, chunk));
                continue;
            };
            if let Some(retry) = self.0.bad_chunks.borrow_mut().get_mut(&(component, chunk)) {
                retry.at = now + retry.after;
                retry.after = (retry.after * 2).min(BAD_RETRY_LAST);
            }
            if !self.0.objects.owns(object) && !self.owner_is_alive(object).await {
                let _ = self.0.objects.adopt(object).await;
            }
            for block in blocks {
                if self.0.objects.owns(object) {
                    self.0.objects.on_bad_block(object, component, block);
                } else {
                    self.tell_owner_of_bad_block(object, component, block).await;
                }
            }
        }
    }

    /// The blocks of a chunk on this host that cannot be read now.
    async fn bad_blocks_of(&self, component: ComponentId, chunk: u32) -> Vec<u32> {
        let start = chunk * BLOCKS_PER_CHUNK;
        for store in self.0.objects.members().stores() {
            let Ok(status) = store.status(component) else { continue };
            let end = (start + BLOCKS_PER_CHUNK).min(status.spec.blocks);
            let range = |start, end: u32| BlockRange { start, count: (end - start) as u16 };
            if start >= end || store.read(component, range(start, end)).await.is_ok() {
                return Vec::new();
            }
            let mut bad = Vec::new();
            for block in start..end {
                let one = store.read(component, range(block, block + 1)).await;
                if matches!(one, Err(StoreError::Bad(_))) {
                    bad.push(block);
                }
            }
            return bad;
        }
        Vec::new()
    }

    /// The owner finds the damage by reading the block from this member.
    async fn tell_owner_of_bad_block(&self, object: ObjectId, component: ComponentId, block: u32) {
        let Ok(Some((record, _))) = self.object_record(object).await else { return };
        let Some(owner) = record.owner else { return };
        sometimes!("care.bad_block_told_to_owner");
        let _ = self.ask(owner.host, Ask::BadBlock { object, component, block }).await;
    }

    async fn owner_is_alive(&self, object: ObjectId) -> bool {
        match self.object_record(object).await {
            Ok(Some((record, _))) => {
                record.owner.is_some_and(|o| self.is_alive_life(o.host, o.incarnation))
            }
            // In doubt leave it alone.
            Ok(None) | Err(_) => true,
        }
    }

    fn is_alive_life(&self, host: HostId, incarnation: atoll_format::id::Incarnation) -> bool {
        if host == self.0.config.host {
            return incarnation == self.0.incarnation;
        }
        let peer = self.0.objects.peers().peer(host);
        peer.connected && peer.incarnation.is_none_or(|i| i == incarnation)
    }

    // ---- objects without a client --------------------------------------------------------

    /// Takes over objects that lack redundancy and have no living owner, so that they heal.
    pub(crate) async fn care_for_objects(self) {
        loop {
            self.world().sleep(CARE_EVERY).await;
            let Ok(listing) = self.world().directory().list(key::OBJECTS).await else { continue };
            let mut names = BTreeMap::new();
            for entry in listing.entries {
                let Ok(record) = record::decode::<ObjectRecord>(&entry.key, &entry.value) else {
                    continue;
                };
                names.insert(record.id, record.name.clone());
                if self.needs_me(&record) {
                    sometimes!("care.adopts_an_object");
                    let _ = self.0.objects.adopt(record.id).await;
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

    /// Whether the disk group of a member has failed in the present life of its host, or is not
    /// there: its disk is missing, or is another one now. The member's owner asks which.
    fn has_failed(&self, member: &MemberRecord) -> bool {
        let hosts = self.0.hosts.borrow();
        let host = hosts.get(&member.host).filter(|h| self.is_alive_life(h.id, h.incarnation));
        host.is_some_and(|h| {
            let group = h.groups.iter().find(|g| g.id == member.group);
            group.is_none_or(|g| !g.healthy)
        })
    }

    fn needs_me(&self, record: &ObjectRecord) -> bool {
        if mutant!("care.adopts_nothing") {
            return false;
        }
        let degraded = record.members().any(|(_, m)| !m.state.is_active() || self.has_failed(m));
        if record.state != ObjectState::Ready || !degraded || self.0.objects.owns(record.id) {
            return false;
        }
        // Named as the owner and not serving: a takeover of this life got no further.
        let me = (self.0.config.host, self.0.incarnation);
        if record.owner.is_some_and(|o| (o.host, o.incarnation) == me) {
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

    // ---- what is left over ---------------------------------------------------------------

    /// Finishes deletions, and removes components that no record names.
    pub(crate) async fn reap(self) {
        let mut orphans: BTreeMap<ComponentId, Nanos> = BTreeMap::new();
        // By this host's own clock: wall clocks may be wrong.
        let mut in_the_making: BTreeMap<ObjectId, Nanos> = BTreeMap::new();
        let mut nameless: BTreeMap<ObjectId, Nanos> = BTreeMap::new();
        loop {
            self.world().sleep(REAP_EVERY).await;
            self.tidy_locks().await;
            let Ok(listing) = self.world().directory().list(key::OBJECTS).await else { continue };
            let now = self.world().now();
            let mut named = BTreeSet::new();
            let mut epochs = BTreeMap::new();
            let before = std::mem::take(&mut in_the_making);
            for entry in &listing.entries {
                let Ok(record) = record::decode::<ObjectRecord>(&entry.key, &entry.value) else {
                    continue;
                };
                named.extend(record.members().map(|(_, m)| m.component));
                epochs.insert(record.id, record.epoch);
                match record.state {
                    ObjectState::Deleting => self.finish_delete(&record, entry.modified).await,
                    ObjectState::Creating => {
                        let since = before.get(&record.id).copied().unwrap_or(now);
                        in_the_making.insert(record.id, since);
                        if now.since(since) >= CREATING_MAX {
                            let of_old = |r: &ObjectRecord| r.state == ObjectState::Creating;
                            let _ = self.start_delete(record.id, &[], of_old).await;
                        }
                    }
                    ObjectState::Ready => {}
                }
            }
            if self.is_first() {
                self.remove_nameless(&listing, &mut nameless).await;
            }
            let members = self.0.objects.members();
            let here = members.components();
            orphans.retain(|id, _| here.iter().any(|(c, _)| c == id) && !named.contains(id));
            for (component, object) in here {
                if named.contains(&component) {
                    continue;
                }
                let since = *orphans.entry(component).or_insert(now);
                if now.since(since) > ORPHAN_AFTER || mutant!("care.old_view_is_believed") {
                    self.remove_orphan(component, object).await;
                    continue;
                }
                let epoch = epochs.get(&object);
                let is_ahead = epoch.is_some_and(|&is| members.fenced(component) > Some(is));
                if is_ahead && members.is_regarded(component) {
                    self.disregard_orphan(component, object).await;
                }
            }
        }
    }

    /// Deletes the components of an object whose name is gone, then its record. Only one host
    /// does so at a time by choice; doing it twice does no harm.
    pub(crate) async fn finish_delete(&self, record: &ObjectRecord, revision: Revision) {
        if !self.is_first() {
            return;
        }
        for (_, member) in record.members() {
            if !self.0.hosts.borrow().contains_key(&member.host) {
                continue;
            }
            let lost = matches!(member.state, MemberState::Absent { lost: true, .. });
            let request = Request::Delete { component: member.component, epoch: record.epoch };
            let deadline = self.world().now() + Nanos::from_secs(3);
            let peers = self.0.objects.peers();
            let reply = peers.call(member.host, Lane::Control, request, deadline).await;
            if !matches!(reply, Ok(Reply::Done)) && !lost {
                return;
            }
        }
        let key = key::object(record.id);
        let txn = Txn {
            compares: vec![Compare { key: key.clone(), modified: revision }],
            changes: vec![Change::Delete(key)],
        };
        let _ = self.world().directory().txn(txn).await;
    }

    /// Whether this host is the one that does what one host is to do: by choice, not by right.
    pub(crate) fn is_first(&self) -> bool {
        let first = self.0.hosts.borrow().keys().copied().find(|&id| self.is_alive(id));
        first.is_none_or(|id| id == self.0.config.host)
    }

    /// Finds objects that no name leads to, which nobody can use or delete, says so, and has them
    /// deleted once they have been seen for [`NAMELESS_AFTER`]. Earlier releases left some when
    /// a volume was deleted while it was made.
    async fn remove_nameless(&self, objects: &Listing, seen: &mut BTreeMap<ObjectId, Nanos>) {
        let Ok(names) = self.world().directory().list(key::VOLUMES).await else { return };
        // A view of the names that is older than that of the objects shows some as without one.
        if names.revision < objects.revision {
            return;
        }
        let named: BTreeSet<ObjectId> = names
            .entries
            .iter()
            .filter_map(|e| record::decode::<VolumeRecord>(&e.key, &e.value).ok())
            .map(|volume| volume.object)
            .collect();
        let now = self.world().now();
        let before = std::mem::take(seen);
        for entry in &objects.entries {
            let Ok(record) = record::decode::<ObjectRecord>(&entry.key, &entry.value) else {
                continue;
            };
            if record.state == ObjectState::Deleting || named.contains(&record.id) {
                continue;
            }
            let since = before.get(&record.id).copied().unwrap_or(now);
            seen.insert(record.id, since);
            if now.since(since) < NAMELESS_AFTER {
                continue;
            }
            // Confirmed by a transaction: neither the object nor its name has moved.
            let name_key = key::volume(&record.name);
            let at = names.entries.iter().find(|e| e.key == name_key).map(|e| e.modified);
            let guard = Compare { key: name_key, modified: at.unwrap_or_default() };
            let as_seen = |r: &ObjectRecord| *r == record;
            if self.start_delete(record.id, &[guard], as_seen).await.is_ok() {
                sometimes!("care.nameless_object_removed");
                let size = iec(record.size_bytes);
                let message = format!(
                    "an object of {size} that no volume's name led to any more (once of volume \
                     {}) is deleted",
                    record.name
                );
                self.note(Severity::Warning, "object-without-a-name", Some(record.id), message);
            }
        }
    }

    /// Removes a component that no record has named for long.
    async fn remove_orphan(&self, component: ComponentId, object: ObjectId) {
        let Some(_) = self.confirm_orphan(component, object).await else { return };
        sometimes!("care.orphan_removed");
        let members = self.0.objects.members();
        if let Some(epoch) = members.fenced(component) {
            members.handle(self.0.config.host, Request::Delete { component, epoch }).await;
        }
    }

    /// A component that no record names, on a disk that was put back or swapped, may have promised
    /// what nobody asked: an epoch that its object has not reached. Its owner would get no lease
    /// from this host for as long as that is there.
    async fn disregard_orphan(&self, component: ComponentId, object: ObjectId) {
        let members = self.0.objects.members();
        let fenced = members.fenced(component);
        if let Some(epoch) = self.confirm_orphan(component, object).await
            && fenced > Some(epoch)
        {
            members.disregard(component);
        }
    }

    /// Whether no record names a component: the epoch of its object then, 0 if there is none.
    /// Believed only after a transaction that writes has confirmed the record as it was read (a
    /// plain read may be stale).
    async fn confirm_orphan(&self, component: ComponentId, object: ObjectId) -> Option<Epoch> {
        let found = self.object_record(object).await.ok()?;
        let names = |r: &ObjectRecord| r.members().any(|(_, m)| m.component == component);
        if found.as_ref().is_some_and(|(r, _)| names(r)) && !mutant!("care.old_view_is_believed") {
            return None;
        }
        let modified = found.as_ref().map_or(Revision(0), |&(_, revision)| revision);
        let reaped = ReapedRecord { version: RECORD_VERSION, component };
        let txn = Txn {
            compares: vec![Compare { key: key::object(object), modified }],
            changes: vec![Change::Put(key::reaped(self.0.config.host), record::encode(&reaped))],
        };
        let done = self.world().directory().txn(txn).await;
        let is_confirmed = matches!(done, Ok(TxnReply::Done(_)));
        is_confirmed.then(|| found.map_or(Epoch(0), |(record, _)| record.epoch))
    }
}

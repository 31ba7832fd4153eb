//! This host's members: requests of owners, carried out on its stores.
//!
//! Keeps no state of its own but leases; what has to survive a crash (epochs, sessions,
//! operations) is the store's. Order: a request reaches the store at the first poll of its
//! handler, so that a connection's order is the store's order (R2).

use crate::grants::{Fencer, Grants};
use crate::host_components::HostComponents;
use crate::limits::{CHUNKS_PER_REPLY, GRACE, OPS_PER_REPLY, TICKETS_PER_REPLY};
use crate::message::{Reply, Request};
use atoll_format::checksum::{ZERO_BLOCK_CRC, block_crcs};
use atoll_format::id::{
    Addr, ComponentId, Epoch, GroupId, Incarnation, ObjectId, Seq, Session, Ticket,
};
use atoll_format::op::BlockState;
use atoll_format::units::{BLOCK_LEN, BLOCKS_PER_CHUNK};
use atoll_world::components::ReadBlocks;
use atoll_world::{Components, StoreError, World, buf, mutant, sometimes};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// The members on this host.
pub struct Members<W: World, S: Components>(Rc<MembersState<W, S>>);

struct MembersState<W: World, S: Components> {
    world: W,
    stores: RefCell<Vec<S>>,
    /// Where each component is, and of which object.
    index: RefCell<BTreeMap<ComponentId, (S, ObjectId)>>,
    by_object: RefCell<BTreeMap<ObjectId, Vec<ComponentId>>>,
    /// Those to which a session has been opened in this life: the owner has then seen what the
    /// store still holds. A session of an earlier life is stored, but what was acknowledged in it
    /// may have been lost with a damaged log, so nothing is served in it (R2, S18).
    attached: RefCell<BTreeSet<ComponentId>>,
    /// Those whose promise is that of a damaged log: no owner of that epoch has been, as the
    /// directory says. It keeps no owner from its leases.
    void: RefCell<BTreeSet<ComponentId>>,
    /// Which shard this is, and what all shards of its host have.
    shard: u8,
    of_host: HostComponents,
    grants: RefCell<Grants>,
}

impl<W: World, S: Components> Clone for Members<W, S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<W: World, S: Components> Members<W, S> {
    /// Of a shard that starts now with these stores. `outlived`: lives of its host that have ended
    /// for certain.
    pub fn new(
        world: W,
        me: Addr,
        outlived: Vec<Incarnation>,
        stores: Vec<S>,
        of_host: HostComponents,
    ) -> Self {
        let grants = RefCell::new(Grants::new(world.now(), me.host, outlived));
        let shard = me.shard;
        let members = Self(Rc::new(MembersState {
            world,
            stores: RefCell::new(Vec::new()),
            index: RefCell::default(),
            by_object: RefCell::default(),
            attached: RefCell::default(),
            void: RefCell::default(),
            shard,
            of_host,
            grants,
        }));
        for store in stores {
            members.add_store(store);
        }
        members.0.of_host.opened(shard);
        members
    }

    /// Takes one more disk group into use.
    pub fn add_store(&self, store: S) {
        for status in store.list() {
            self.enter(&store, status.id, status.spec.object);
        }
        self.0.stores.borrow_mut().push(store);
    }

    /// All stores.
    pub fn stores(&self) -> Vec<S> {
        self.0.stores.borrow().clone()
    }

    fn enter(&self, store: &S, id: ComponentId, object: ObjectId) {
        self.0.attached.borrow_mut().remove(&id);
        self.0.void.borrow_mut().remove(&id);
        self.0.index.borrow_mut().insert(id, (store.clone(), object));
        self.0.of_host.enter(self.0.shard, id);
        let mut by_object = self.0.by_object.borrow_mut();
        let ids = by_object.entry(object).or_default();
        if !ids.contains(&id) {
            ids.push(id);
        }
        drop(by_object);
        self.audit();
    }

    /// What is known of a component and of its object agrees.
    fn audit(&self) {
        if !self.0.world.audits() {
            return;
        }
        let (index, by_object) = (self.0.index.borrow(), self.0.by_object.borrow());
        for (id, (_, object)) in index.iter() {
            let ids = by_object.get(object).expect("an object of a component");
            assert!(ids.contains(id), "{id:?} is not among those of {object:?}");
        }
        let listed: usize = by_object.values().map(Vec::len).sum();
        assert_eq!(listed, index.len(), "components by their objects");
    }

    fn leave(&self, id: ComponentId) {
        self.0.void.borrow_mut().remove(&id);
        let Some((_, object)) = self.0.index.borrow_mut().remove(&id) else { return };
        self.0.of_host.leave(self.0.shard, id);
        let mut by_object = self.0.by_object.borrow_mut();
        if let Some(ids) = by_object.get_mut(&object) {
            ids.retain(|&other| other != id);
            if ids.is_empty() {
                by_object.remove(&object);
                self.0.grants.borrow_mut().retain(|o| by_object.contains_key(&o));
            }
        }
        drop(by_object);
        self.audit();
    }

    /// Whether a disk that this shard is to have cannot be used now. A component that is not known
    /// is then absent and may come back; else it is lost, and is rebuilt without the repair delay.
    pub fn set_lacks_disks(&self, lacks: bool) {
        self.0.of_host.set_lacks_disks(self.0.shard, lacks);
    }

    fn store(&self, id: ComponentId) -> Result<S, StoreError> {
        let index = self.0.index.borrow();
        let found = index.get(&id).map(|(store, _)| store.clone());
        found.ok_or_else(|| self.0.of_host.instead(self.0.shard, id))
    }

    /// The store of a component to which a session is open.
    fn attached(&self, id: ComponentId) -> Result<S, StoreError> {
        let store = self.store(id)?;
        if !self.0.attached.borrow().contains(&id) && !mutant!("member.serves_an_earlier_life") {
            sometimes!("member.refuses_what_is_of_an_earlier_life");
            return Err(StoreError::Session { open: store.status(id)?.session });
        }
        Ok(store)
    }

    /// After an operation of the open session was refused: those behind it are refused too, until
    /// there is a new one. They would hide that it is missing (R2).
    fn close_after(&self, store: &S, id: ComponentId, session: Session, error: &StoreError) {
        let is_open = store.status(id).is_ok_and(|status| status.session == session);
        let is_of_another = matches!(error, StoreError::Session { .. } | StoreError::Fenced { .. });
        if is_open && !is_of_another && !mutant!("member.goes_on_after_a_refusal") {
            sometimes!("member.closes_a_session_after_a_refusal");
            self.0.attached.borrow_mut().remove(&id);
        }
    }

    /// The same, if the asker's epoch is not fenced off (R1).
    fn heeded(&self, id: ComponentId, epoch: Epoch) -> Result<S, StoreError> {
        let store = self.attached(id)?;
        let fenced = store.status(id)?.promise.fenced;
        if epoch < fenced && !mutant!("store.session_not_checked") {
            sometimes!("member.refuses_an_old_epoch");
            return Err(StoreError::Fenced { fenced });
        }
        Ok(store)
    }

    /// The same, if that session is open. What was asked in an earlier one may have waited for a
    /// connection since: the copy may be an older one by now, and only who has opened its present
    /// session knows what it lacks (R19).
    fn open(&self, id: ComponentId, session: Session) -> Result<S, StoreError> {
        let store = self.heeded(id, session.epoch)?;
        let open = store.status(id)?.session;
        if session != open && !mutant!("member.session_not_checked") {
            sometimes!("member.refuses_what_is_of_an_earlier_session");
            return Err(StoreError::Session { open });
        }
        Ok(store)
    }

    fn promised(&self, object: ObjectId) -> Option<Epoch> {
        let by_object = self.0.by_object.borrow();
        let void = self.0.void.borrow();
        let ids = by_object.get(&object)?.iter().copied().filter(|id| !void.contains(id));
        ids.filter_map(|id| self.fenced(id)).max()
    }

    /// The epoch that a component here has promised.
    pub fn fenced(&self, id: ComponentId) -> Option<Epoch> {
        Some(self.store(id).ok()?.status(id).ok()?.promise.fenced)
    }

    /// The directory names the component nowhere, and its object's epoch is below what it has
    /// promised; both confirmed by a transaction that has just ended. Whoever fences or attaches
    /// it is an owner after all.
    pub fn disregard(&self, id: ComponentId) {
        if !self.0.attached.borrow().contains(&id) {
            sometimes!("member.disregards_a_promise_to_nobody");
            self.0.void.borrow_mut().insert(id);
        }
    }

    /// Whether the component's promise keeps owners of lower epochs from leases.
    pub fn is_regarded(&self, id: ComponentId) -> bool {
        !self.0.void.borrow().contains(&id)
    }

    /// Carries out one request of an owner (or of management, for create and delete).
    pub async fn handle(&self, from: impl Into<Addr>, request: Request) -> Reply {
        match self.carry_out(from.into(), request).await {
            Ok(reply) => reply,
            Err(error) => Reply::Failed(error),
        }
    }

    async fn carry_out(&self, from: Addr, request: Request) -> Result<Reply, StoreError> {
        Ok(match request {
            Request::Append { component, session, op } => {
                let store = self.attached(component)?;
                let seq = op.id.seq;
                let done = store.append(component, session, op).await;
                if let Err(error) = done {
                    self.close_after(&store, component, session, &error);
                    return Err(error);
                }
                if self.0.world.audits()
                    && let Ok(status) = store.status(component)
                {
                    assert!(status.promise.newest >= seq, "{seq:?} is not in {status:?}");
                }
                Reply::Done
            }
            Request::Read { component, session, range } => {
                let blocks = self.open(component, session)?.read(component, range).await?;
                assert_eq!(blocks.tags.len(), usize::from(range.count), "tags of {range:?}");
                if self.0.world.audits() {
                    check_blocks(&blocks);
                }
                Reply::Blocks(blocks)
            }
            request => Box::pin(self.carry_out_rarer(from, request)).await?,
        })
    }

    /// What is asked for less often, set apart: an append takes no memory for these.
    async fn carry_out_rarer(&self, from: Addr, request: Request) -> Result<Reply, StoreError> {
        Ok(match request {
            Request::CopyIn { component, session, copy } => {
                let sent = copy.blocks.len();
                let put = self.attached(component)?.copy_in(component, session, copy).await?;
                assert!(put as usize <= sent, "{put} blocks were put in of {sent}");
                Reply::Copied(put)
            }
            Request::Committed { component, session, seq } => {
                self.open(component, session)?.committed(component, seq);
                Reply::Done
            }
            Request::Reserve { component, session, chunk } => {
                self.open(component, session)?.reserve(component, chunk)?;
                Reply::Done
            }
            Request::Tags { component, session, chunk } => {
                let tags = self.open(component, session)?.tags(component, chunk).await?;
                assert_eq!(tags.len(), BLOCKS_PER_CHUNK as usize, "tags of a chunk");
                Reply::Tags(tags)
            }
            Request::ChunksSince { component, session, since, first } => {
                let store = self.open(component, session)?;
                let most = self.0.world.bound(CHUNKS_PER_REPLY, 2);
                let chunks = store.chunks_since(component, since, first, most)?;
                assert!(chunks.len() <= most, "{} chunks of {most}", chunks.len());
                // A page goes on after its last: what is out of order would be passed over.
                assert!(chunks.first().is_none_or(|&(chunk, _)| chunk >= first));
                assert!(chunks.is_sorted_by(|a, b| a.0 < b.0), "chunks are out of order");
                assert!(chunks.iter().all(|&(_, newest)| newest > since), "nothing past {since:?}");
                let more = chunks.len() == most;
                Reply::Chunks { chunks, more }
            }
            Request::Uncommitted { component, session, after } => {
                let mut ops = self.open(component, session)?.uncommitted(component)?;
                ops.retain(|op| op.id.seq > after);
                ops.sort_by_key(|op| op.id);
                let most = self.0.world.bound(OPS_PER_REPLY, 3);
                let more = ops.len() > most;
                ops.truncate(most);
                Reply::Ops { ops, more }
            }
            Request::Tickets { component, session, after } => {
                let mut tickets = self.open(component, session)?.tickets(component)?;
                tickets.retain(|t| (t.client, t.number) > after);
                let most = self.0.world.bound(TICKETS_PER_REPLY, 3);
                let of = |t: &Ticket| (t.client, t.number);
                assert!(tickets.is_sorted_by(|a, b| of(a) < of(b)), "tickets are out of order");
                let more = tickets.len() > most;
                tickets.truncate(most);
                Reply::Tickets { tickets, more }
            }
            Request::SetTickets { component, session, set } => {
                self.attached(component)?.set_tickets(component, session, set).await?;
                Reply::Done
            }
            Request::Applied { component, session, ticket } => {
                Reply::Yes(self.open(component, session)?.applied(component, ticket)?)
            }
            Request::Status { component } => {
                Reply::Status(self.store(component)?.status(component)?)
            }
            Request::Renew { incarnation, serial, objects } => {
                self.renew(from, incarnation, serial, &objects)
            }
            Request::GiveBack { incarnation, serial, objects } => {
                let mut grants = self.0.grants.borrow_mut();
                for object in objects {
                    grants.give_back(object, incarnation, serial);
                }
                Reply::Done
            }
            Request::Fence { object, component, epoch, incarnation, outlived, served } => {
                let fencer = Fencer { addr: from, incarnation, outlived, epoch, served };
                self.fence(object, component, fencer).await?
            }
            Request::Attach { component, session, incomplete } => {
                let store = self.store(component)?;
                self.0.void.borrow_mut().remove(&component);
                let promise = store.open_session(component, session, incomplete).await?;
                let status = store.status(component)?;
                // R1, R2: another of the same name may have been made meanwhile.
                if promise.fenced < session.epoch || status.session < session {
                    return Err(StoreError::Session { open: status.session });
                }
                self.0.attached.borrow_mut().insert(component);
                // Who brings it up to date knows what is missing above that, and asks for more.
                let lacks_more = status
                    .incomplete
                    .is_some_and(|lacks_above| incomplete.is_none_or(|above| lacks_above < above));
                let lacks_more = lacks_more && !mutant!("member.lacks_what_is_asked_for");
                let doubtful = status.doubtful || lacks_more;
                Reply::Promise { promise, doubtful }
            }
            Request::Complete { component, session, up_to } => {
                self.attached(component)?.complete(component, session, up_to).await?;
                Reply::Done
            }
            Request::Create { group, component, spec } => {
                let store = self.group(group)?;
                store.create(component, spec).await?;
                self.enter(&store, component, spec.object);
                Reply::Done
            }
            Request::Delete { component, epoch } => match self.store(component) {
                Ok(store) => {
                    match store.fence(component, epoch).await {
                        // What is lost promises nothing, and is to go all the same.
                        Ok(_) | Err(StoreError::Failed(_)) => {}
                        Err(error) => return Err(error),
                    }
                    store.delete(component).await?;
                    self.leave(component);
                    Reply::Done
                }
                // Repeating a delete is no error.
                Err(_) => Reply::Done,
            },
            Request::Grow { component, epoch, blocks } => {
                self.heeded(component, epoch)?.grow(component, blocks).await?;
                Reply::Done
            }
            Request::Append { .. }
            | Request::Read { .. }
            | Request::Client(_)
            | Request::Admin(_) => {
                return Err(StoreError::Malformed("not a member's request"));
            }
        })
    }

    fn group(&self, id: GroupId) -> Result<S, StoreError> {
        let stores = self.0.stores.borrow();
        let found = stores.iter().find(|s| s.group() == id);
        found
            .cloned()
            .ok_or_else(|| StoreError::Failed(format!("disk group {id} is not in use here")))
    }

    fn renew(
        &self,
        from: Addr,
        incarnation: Incarnation,
        serial: u64,
        objects: &[(ObjectId, Epoch)],
    ) -> Reply {
        let now = self.0.world.now();
        let mut excluded = Vec::new();
        for &(object, epoch) in objects {
            let promised = self.promised(object);
            let mut grants = self.0.grants.borrow_mut();
            if !grants.renew(now, from, incarnation, serial, (object, epoch), promised) {
                excluded.push(object);
            }
        }
        Reply::Granted { serial, excluded }
    }

    async fn fence(
        &self,
        object: ObjectId,
        component: ComponentId,
        fencer: Fencer,
    ) -> Result<Reply, StoreError> {
        let epoch = fencer.epoch;
        let store = self.store(component)?;
        let promised = self.promised(object);
        self.0.void.borrow_mut().remove(&component);
        self.0.grants.borrow_mut().fence(object, &fencer, promised);
        // Durable before the answer (R1): from here on the old owner can get no acknowledgement
        // from this member.
        store.fence(component, epoch).await?;
        let status = store.status(component)?;
        // R1: another of the same name may have been made meanwhile.
        if status.promise.fenced < epoch {
            return Err(StoreError::NotOpen(component));
        }
        if status.promise.fenced > epoch {
            return Err(StoreError::Fenced { fenced: status.promise.fenced });
        }
        let now = self.0.world.now();
        let clear_at = self.0.grants.borrow().clear_at(object, epoch);
        // R10.
        assert!(clear_at <= now + GRACE, "a fence is held up for one grace at most");
        if clear_at > now && !mutant!("member.fence_waits_for_nobody") {
            sometimes!("member.fence_waits_for_a_lease");
            return Ok(Reply::Held((clear_at - now).0));
        }
        let doubtful = status.doubtful || status.incomplete.is_some();
        Ok(Reply::Promise { promise: status.promise, doubtful })
    }

    /// Components here, with their objects: for clearing up what no record names.
    pub fn components(&self) -> Vec<(ComponentId, ObjectId)> {
        self.0.index.borrow().iter().map(|(&id, &(_, object))| (id, object)).collect()
    }

    /// Which object a component belongs to.
    pub fn object_of(&self, id: ComponentId) -> Option<ObjectId> {
        self.0.index.borrow().get(&id).map(|&(_, object)| object)
    }

    /// The highest seq here of a component, if it is here.
    pub fn newest(&self, id: ComponentId) -> Option<Seq> {
        Some(self.store(id).ok()?.status(id).ok()?.promise.newest)
    }
}

/// What a store has read is what its tags say.
fn check_blocks(blocks: &ReadBlocks) {
    let bytes = buf::join(&blocks.payload);
    assert_eq!(bytes.len(), blocks.tags.len() * BLOCK_LEN, "bytes of {} blocks", blocks.tags.len());
    for (tag, crc) in blocks.tags.iter().zip(block_crcs(&bytes)) {
        let said = if tag.state == BlockState::Raw { tag.crc } else { ZERO_BLOCK_CRC };
        assert_eq!(crc, said, "{tag:?}");
        assert_ne!(tag.state, BlockState::Bad, "bad blocks are refused");
    }
}

//! The owner of one object: orders its I/O, keeps its members in step, answers its clients.
//!
//! This file holds the owner's state and what all of its parts share; each part is a file that adds
//! methods to [`Owner`] and a table or two of its own:
//!
//! - [`write`], [`read`]: the two paths of I/O; `client_retries`: a change that may come twice;
//! - `record_cas`: changes of the directory's record;
//! - `member_recovery`: members that fail are brought back, or dropped;
//! - `resync`, `tickets`: what came back is brought up to date; `readmission`, `progress`: its
//!   pauses and its figures;
//! - `resize`: the object's size; `audit`: what must hold at every moment.
//!
//! Invariants:
//! - a write is acknowledged when every awaited member has it durable, never earlier;
//! - no read overlaps a write in flight (R8), and none is answered without a lease from every
//!   awaited member of its leg, looked at after the data was there (R11);
//! - a stopped owner answers nothing and changes nothing (R21).

mod audit;
mod client_log;
mod client_retries;
mod iops;
mod member_recovery;
mod no_space;
mod progress;
mod read;
mod readmission;
pub(crate) mod record_cas;
mod resize;
pub(crate) mod resync;
pub(crate) mod tickets;
mod write;

pub use progress::CopyProgress;
pub use resize::ResizeError;

use crate::ctx::{Ctx, Protocol};
use crate::events::Event;
use crate::failure::Stop;
use crate::iops_limit::IopsBucket;
use crate::leg::{Leg, Member, MemberEvent, Role};
use crate::limits::{BYTES_MAX, OPS_FEW, OPS_MAX};
use crate::member_client::MemberClient;
use crate::ranges::RangeLocks;
use atoll_format::id::{Addr, ComponentId, Epoch, GroupId, HostId, ObjectId, Seq, Session};
use atoll_format::op::BlockRange;
use atoll_format::record::{ObjectRecord, Place};
use atoll_format::units::{BLOCK, CHUNK, OPS_IN_FLIGHT_MAX, SECTOR};
use atoll_world::directory::Revision;
use atoll_world::sync::{Notify, Permit, Semaphore};
use atoll_world::{Nanos, VolumeError, World, mutant};
use client_log::ClientLogs;
use no_space::NoSpace;
use progress::Progress;
use readmission::Readmissions;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// The owner of one object on this host.
pub(crate) struct Owner<W: World, P: Protocol>(pub(crate) Rc<OwnerState<W, P>>);

impl<W: World, P: Protocol> Clone for Owner<W, P> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// What an owner knows of its object, for people.
#[derive(Clone, Debug)]
pub struct OwnedObject {
    /// The record, as the directory confirmed it.
    pub record: ObjectRecord,
    /// Copies that have begun to be brought up to date, and are not.
    pub resync: Vec<CopyProgress>,
    /// The disk group that has no room for new data of clients, if there is one.
    pub no_space: Option<(HostId, GroupId)>,
    /// Writes of clients that were refused for want of space, since this owner began.
    pub no_space_answers: u64,
    /// Reads and writes of guests since this owner began.
    pub guest_ops: u64,
}

/// The state of an owner.
pub(crate) struct OwnerState<W: World, P: Protocol> {
    pub ctx: Rc<Ctx<W, P>>,
    members: MemberClient<W, P>,
    pub id: ObjectId,
    pub epoch: Epoch,
    pub record: RefCell<ObjectRecord>,
    pub revision: Cell<Revision>,
    /// One change of the record at a time (R12).
    pub changing: Semaphore,
    pub legs: RefCell<Vec<Rc<Leg>>>,
    pub locks: RangeLocks,
    next_seq: Cell<Seq>,
    /// How many clients this owner has admitted; in the upper half its epoch, so that what an
    /// older owner admitted is older.
    admission: Cell<u64>,
    next_attach: Cell<u32>,
    ops: Semaphore,
    bytes: Semaphore,
    stopped: RefCell<Option<Stop>>,
    pub stop_notify: Notify,
    /// A lease was renewed.
    pub lease_notify: Notify,
    /// What clients of other hosts have asked for, so that nothing is carried out twice (R21).
    clients: ClientLogs,
    /// I/O of guests, for resync to yield to.
    pub guest_ops: Cell<u64>,
    /// The ceiling of I/Os per second, of all clients together.
    iops: IopsBucket,
    pub resync: RefCell<Progress>,
    no_space: NoSpace,
    /// Members whose resync has failed.
    next_try: RefCell<Readmissions>,
    /// Since when this owner has known members as absent.
    absent_since: RefCell<BTreeMap<ComponentId, Nanos>>,
    /// Members that are due for repair and have no other place, as was told.
    without_place: RefCell<BTreeSet<ComponentId>>,
}

impl<W: World, P: Protocol> Owner<W, P> {
    /// An owner whose epoch the directory has confirmed and whose members are attached.
    pub fn new(
        ctx: Rc<Ctx<W, P>>,
        record: ObjectRecord,
        revision: Revision,
        legs: Vec<Rc<Leg>>,
        attach: u32,
    ) -> Self {
        assert!(ctx.is_me(&record), "{:?} owns {}", record.owner, record.id);
        assert_eq!(legs.len(), record.legs.len(), "legs of {}", record.id);
        assert!(legs.iter().enumerate().all(|(i, leg)| leg.index == i), "legs are in order");
        assert!(legs.iter().all(|leg| leg.is_idle()), "nothing is in flight yet");
        let most = |usual, small| ctx.world.bound(usual, small);
        let (ops, bytes) = (most(OPS_MAX, OPS_FEW), most(BYTES_MAX, 2 << 20));
        Self(Rc::new(OwnerState {
            members: MemberClient::new(ctx.clone(), record.epoch),
            ctx,
            id: record.id,
            epoch: record.epoch,
            admission: Cell::new(u64::from(record.epoch.0) << 32),
            next_seq: Cell::new(Seq(record.seq_base.0 + 1)),
            record: RefCell::new(record),
            revision: Cell::new(revision),
            changing: Semaphore::new(1),
            legs: RefCell::new(legs),
            locks: RangeLocks::new(),
            next_attach: Cell::new(attach + 1),
            ops: Semaphore::new(ops),
            bytes: Semaphore::new(bytes),
            stopped: RefCell::new(None),
            stop_notify: Notify::default(),
            lease_notify: Notify::default(),
            clients: ClientLogs::default(),
            guest_ops: Cell::new(0),
            iops: IopsBucket::default(),
            resync: RefCell::default(),
            no_space: NoSpace::default(),
            next_try: RefCell::default(),
            absent_since: RefCell::default(),
            without_place: RefCell::default(),
        }))
    }

    pub fn world(&self) -> &W {
        &self.0.ctx.world
    }

    pub fn now(&self) -> Nanos {
        self.0.ctx.world.now()
    }

    pub fn leg(&self, index: usize) -> Rc<Leg> {
        self.0.legs.borrow()[index].clone()
    }

    pub fn legs(&self) -> Vec<Rc<Leg>> {
        self.0.legs.borrow().clone()
    }

    /// Whether no operation is in flight.
    pub fn is_idle(&self) -> bool {
        self.0.legs.borrow().iter().all(|leg| leg.is_idle())
    }

    /// Where members in such roles are asked.
    fn addrs(&self, is_meant: impl Fn(Role) -> bool) -> BTreeSet<Addr> {
        let legs = self.0.legs.borrow();
        let places = legs.iter().flat_map(|leg| leg.places(&is_meant));
        places.map(|place| self.0.ctx.addr_of(place)).collect()
    }

    /// Where all members are asked.
    pub fn member_addrs(&self) -> BTreeSet<Addr> {
        self.addrs(|_| true)
    }

    /// Where the members are asked that operations are sent to: those whose leases are needed, or
    /// soon will be.
    pub fn receiving_addrs(&self) -> BTreeSet<Addr> {
        self.addrs(Role::receives)
    }

    /// Members of this object that are asked there may be trusted until then (R11).
    pub fn on_lease(&self, from: Addr, until: Nanos) {
        let is_there = |m: &&mut Member| self.0.ctx.addr_of(m.place()) == from;
        for leg in self.legs() {
            for m in leg.members.borrow_mut().iter_mut().filter(is_there) {
                m.on(MemberEvent::Lease(until));
            }
        }
        self.0.lease_notify.notify_all();
    }

    pub fn is_stopped(&self) -> bool {
        self.0.stopped.borrow().is_some()
    }

    /// What this owner knows of its object.
    pub fn describe(&self) -> OwnedObject {
        let record = self.0.record.borrow().clone();
        let behind = |id| record.members().any(|(_, m)| m.component == id && !m.state.is_active());
        OwnedObject {
            resync: self.0.resync.borrow().copies(self.now(), behind),
            no_space: self.0.no_space.group(),
            no_space_answers: self.0.no_space.refused(),
            guest_ops: self.0.guest_ops.get(),
            record,
        }
    }

    /// Stops for good: no acknowledgement, no answer, no change from here on (R21).
    pub fn stop(&self, why: Stop) {
        if self.is_stopped() || mutant!("owner.superseded_goes_on") && why == Stop::Superseded {
            return;
        }
        self.0.ctx.event(Event::OwnerStopped { object: self.0.id, epoch: self.0.epoch });
        *self.0.stopped.borrow_mut() = Some(why);
        self.0.stop_notify.notify_all();
        self.0.lease_notify.notify_all();
        for leg in self.legs() {
            leg.poke_all();
        }
    }

    /// The seq that the next change gets.
    pub(crate) fn next_seq(&self) -> Seq {
        self.0.next_seq.get()
    }

    /// The number that the next session gets.
    pub(crate) fn next_attach(&self) -> u32 {
        self.0.next_attach.get()
    }

    /// How many operations more may be let in.
    pub(crate) fn ops_free(&self) -> usize {
        self.0.ops.free()
    }

    /// The next session of any member in this epoch.
    pub fn next_session(&self) -> Session {
        let attach = self.0.next_attach.get();
        self.0.next_attach.set(attach + 1);
        Session { epoch: self.0.epoch, attach }
    }

    /// The way to the members.
    pub fn members(&self) -> &MemberClient<W, P> {
        &self.0.members
    }

    /// A member has been compared whole: the next operation's seq is beyond everything that anybody
    /// can be in doubt of, so that the doubt ends when it is committed. Not further from what the
    /// next owner will know than an epoch's gap, however often.
    pub(crate) fn end_doubt(&self) {
        let committed = self.legs().iter().map(|leg| leg.committed()).max().unwrap_or_default();
        let known = committed.max(self.0.record.borrow().seq_base);
        let beyond = Seq(known.0 + OPS_IN_FLIGHT_MAX + 1);
        let next = self.0.next_seq.get().max(beyond);
        assert!(next >= self.0.next_seq.get() && next.0 > known.0 + OPS_IN_FLIGHT_MAX);
        assert!(self.legs().iter().all(|leg| leg.last() < next), "{next:?} was given out");
        self.0.next_seq.set(next);
    }

    /// The leg and blocks of a piece of the object that lies inside one strip.
    pub(crate) fn place(&self, at: u64, len: u64) -> Result<(Rc<Leg>, Place), VolumeError> {
        let record = self.0.record.borrow();
        let end = at.checked_add(len).filter(|&end| end <= record.size_bytes);
        let one_strip = len > 0 && end.is_some_and(|end| at / CHUNK == (end - 1) / CHUNK);
        if !one_strip || !at.is_multiple_of(SECTOR) || !len.is_multiple_of(SECTOR) {
            return Err(VolumeError::OutOfRange { at, len });
        }
        let place = record.locate(at);
        if self.world().audits() {
            let chunk = (place.offset / CHUNK) as u32;
            let back = record.object_offset(place.leg, chunk) + place.offset % CHUNK;
            assert_eq!(back, at, "a byte has one place");
            assert!(chunk < record.leg_chunks(place.leg), "{place:?} is beyond the leg's end");
            assert!(place.offset % CHUNK + len <= CHUNK, "{len} bytes at {place:?}");
        }
        Ok((self.leg(place.leg), place))
    }

    pub(crate) async fn permits(&self, bytes: usize) -> (Permit, Permit) {
        let op = self.0.ops.acquire(1).await;
        (op, self.0.bytes.acquire(bytes).await)
    }

    pub(crate) fn count_guest(&self) {
        self.0.guest_ops.set(self.0.guest_ops.get() + 1);
    }
}

/// The blocks that cover `len` bytes at `offset` of a component.
pub(crate) fn covering(offset: u64, len: u64) -> BlockRange {
    let start = offset / BLOCK;
    let end = (offset + len).div_ceil(BLOCK);
    let range = BlockRange {
        start: u32::try_from(start).expect("a component has fewer than 2^32 blocks"),
        count: u16::try_from(end - start).expect("a piece lies inside one chunk"),
    };
    assert!(range.is_valid(), "{len} bytes at {offset} are {range:?}");
    let bytes = u64::from(range.count) * BLOCK;
    assert!(len <= bytes && bytes < len + 2 * BLOCK, "{len} bytes at {offset} are {range:?}");
    range
}

pub(crate) fn whole_blocks(offset: u64, len: u64) -> bool {
    offset.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK)
}

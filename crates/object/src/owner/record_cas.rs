//! Changing the record of an object in the directory (R12, R13).
//!
//! A change is believed only when a transaction that writes has confirmed it. When an answer is
//! lost, the same change is sent again against the same revision: either it is done now, and the
//! first attempt can never be, or the present record shows by its nonce that the first one was.

use super::Owner;
use crate::ctx::Protocol;
use crate::failure::{Fail, Stop};
use crate::leg::{Leg, Role};
use crate::limits::{DIRECTORY_DEADLINE, RETRY_EVERY};
use crate::record_rules::{check_change, check_shape};
use atoll_format::id::{ComponentId, Seq};
use atoll_format::record::{self, MemberRecord, MemberState, ObjectRecord, ObjectState, key};
use atoll_world::directory::{Compare, Directory, KeyChange, Revision, Txn, TxnReply};
use atoll_world::{DirectoryError, World, mutant, sometimes};
use std::rc::Rc;

/// What a confirmed transaction left in the directory.
pub(crate) enum Swapped {
    /// The new record, at this revision.
    Done(Revision),
    /// One of the earlier attempts had been applied.
    Earlier(Box<ObjectRecord>, Revision),
    /// Somebody else's record.
    Other(Box<ObjectRecord>, Revision),
    /// No record at all, or one that cannot be read.
    Gone,
    /// The record is as it was; the guard is not.
    GuardGone,
}

/// One attempt to replace the record at `revision`, as long as `guard` holds too.
///
/// # Errors
/// Nothing is known; try again with the same revision and the nonce remembered.
pub(crate) async fn swap<W: World>(
    world: &W,
    revision: Revision,
    record: &ObjectRecord,
    earlier: &[u64],
    guard: Option<&Compare>,
) -> Result<Swapped, DirectoryError> {
    assert!(record.owner.is_some() && record.epoch.0 > 0, "only owners change {}", record.id);
    assert_eq!(record.state, ObjectState::Ready, "{} has no owner any more", record.id);
    assert!(!earlier.contains(&record.nonce), "an attempt has its own nonce");
    let value = record::encode(record);
    if world.audits() {
        let read = record::decode::<ObjectRecord>(&key::object(record.id), &value);
        assert_eq!(read.as_ref(), Ok(record), "what is stored is what is read");
        assert!(value.len() <= record::VALUE_MAX, "{} bytes of a record", value.len());
    }
    let key = key::object(record.id);
    let compare = Compare { key: key.clone(), modified: revision };
    let own = if mutant!("change.without_revision") { None } else { Some(&compare) };
    let txn = Txn {
        compares: own.into_iter().chain(guard).cloned().collect(),
        changes: vec![KeyChange::Put(key.clone(), value)],
    };
    let deadline = world.now() + DIRECTORY_DEADLINE;
    let reply = world
        .timeout_at(deadline, world.directory().txn(txn))
        .await
        .unwrap_or_else(|_| Err(DirectoryError::Unknown("no answer in time".into())))?;
    let entry = match reply {
        TxnReply::Done(revision) => return Ok(Swapped::Done(revision)),
        TxnReply::Conflict(found) => found.into_iter().find(|(k, _)| *k == key),
    };
    let Some((_, Some(entry))) = entry else { return Ok(Swapped::Gone) };
    let Ok(found) = record::decode::<ObjectRecord>(&key, &entry.value) else {
        return Ok(Swapped::Gone);
    };
    let is_ours = (found.epoch, found.owner) == (record.epoch, record.owner);
    Ok(if is_ours && earlier.contains(&found.nonce) {
        sometimes!("change.lost_answer_was_applied");
        Swapped::Earlier(Box::new(found), entry.modified)
    } else if guard.is_some() && entry.modified == revision {
        Swapped::GuardGone
    } else {
        Swapped::Other(Box::new(found), entry.modified)
    })
}

/// The member of `component` in a record.
pub(crate) fn state_of(
    record: &mut ObjectRecord,
    component: ComponentId,
) -> Option<&mut MemberState> {
    let members = record.legs.iter_mut().flat_map(|leg| leg.members.iter_mut());
    members.filter(|m| m.component == component).map(|m| &mut m.state).next()
}

/// Sessions that may be opened while the directory is to confirm a record, and are still known to
/// it.
const SESSIONS_RESERVED: u32 = 64;

impl<W: World, P: Protocol> Owner<W, P> {
    /// Applies `edit` to the record and returns once the directory has confirmed it. `edit` says
    /// whether there is anything to change; it may be called again on a newer record.
    pub async fn change(&self, edit: impl Fn(&mut ObjectRecord) -> bool) -> Result<(), Fail> {
        let held = self.change_while(None, edit).await?;
        assert!(held, "there is no guard that could be gone");
        Ok(())
    }

    /// The same, as long as another key of the directory is at a revision. False: it is not any
    /// more, and no attempt was, or will be, carried out.
    pub async fn change_while(
        &self,
        guard: Option<&Compare>,
        edit: impl Fn(&mut ObjectRecord) -> bool,
    ) -> Result<bool, Fail> {
        let _turn = self.0.changing.acquire(1).await;
        let mut nonces = Vec::new();
        loop {
            if self.is_stopped() {
                return Err(Fail::Stopped);
            }
            let mut record = self.0.record.borrow().clone();
            if !edit(&mut record) && nonces.is_empty() {
                return Ok(true);
            }
            check_change(&self.0.record.borrow(), &record);
            record.attached = Some(self.next_attach() - 1 + SESSIONS_RESERVED);
            record.nonce = self.world().random();
            let swapped = swap(self.world(), self.0.revision.get(), &record, &nonces, guard).await;
            nonces.push(record.nonce);
            match swapped {
                Ok(Swapped::Done(revision)) => {
                    self.adopt(record, revision);
                    return Ok(true);
                }
                Ok(Swapped::Earlier(record, revision)) => {
                    self.adopt(*record, revision);
                    return Ok(true);
                }
                // The present state of both was seen at one moment: the record has not moved, so
                // no earlier attempt was applied, and with the guard gone none can be.
                Ok(Swapped::GuardGone) => return Ok(false),
                Ok(Swapped::Other(record, revision)) => {
                    // What was put back, or changed by hand, the next owner begins with.
                    let mine = self.0.ctx.is_me(&record);
                    if record.state == ObjectState::Deleting {
                        self.stop(Stop::Deleted);
                    } else if record.epoch != self.0.epoch
                        || !mine
                        || !goes_with(&record, &self.legs())
                    {
                        self.stop(Stop::Superseded);
                    } else {
                        nonces.clear();
                        self.adopt(*record, revision);
                    }
                }
                Ok(Swapped::Gone) => self.stop(Stop::Deleted),
                Err(_) if mutant!("change.unknown_is_done") => {
                    self.adopt(record, self.0.revision.get());
                    return Ok(true);
                }
                Err(_) => {
                    sometimes!("change.directory_gave_no_answer");
                    self.world().sleep(RETRY_EVERY).await;
                }
            }
            // Bounded: old attempts cannot be applied once the revision has moved, and only
            // attempts at this revision count.
            if nonces.len() > 64 {
                nonces.remove(0);
            }
        }
    }

    fn adopt(&self, record: ObjectRecord, revision: Revision) {
        let legs = self.0.legs.borrow().len();
        assert_eq!(record.epoch, self.0.epoch, "another owner's record of {}", record.id);
        assert!(self.0.ctx.is_me(&record), "{:?} owns {}", record.owner, record.id);
        assert_eq!(record.legs.len(), legs, "{} keeps its legs", record.id);
        // Sessions from here on are later than the record; those while it was written are not.
        if let Some(last) = record.attached {
            self.0.next_attach.set(self.next_attach().max(last + 1));
        }
        *self.0.record.borrow_mut() = record;
        self.0.revision.set(revision);
        self.audit("when its record changed");
    }

    /// Looks whether the directory still calls this owner the owner; stops it if not. The answer
    /// may be stale, so it can only stop, never confirm.
    pub async fn verify(&self) {
        let key = key::object(self.0.id);
        let deadline = self.now() + DIRECTORY_DEADLINE;
        let got = self.world().timeout_at(deadline, self.world().directory().get(&key)).await;
        let Ok(Ok(entry)) = got else { return };
        let Some(entry) = entry else { return };
        if let Ok(record) = record::decode::<ObjectRecord>(&key, &entry.value)
            && entry.modified > self.0.revision.get()
            && (record.epoch > self.0.epoch || record.state == ObjectState::Deleting)
        {
            self.stop(Stop::Superseded);
        }
    }
}

/// Whether a record of the same epoch and owner, which this owner did not know of, goes with what
/// the members are to it: every change that it began itself does, also one of which it never
/// learned the end. What was put back, or changed by hand, need not.
fn goes_with(record: &ObjectRecord, legs: &[Rc<Leg>]) -> bool {
    let fits = |(leg, recorded): (&Rc<Leg>, &Vec<MemberRecord>)| {
        let members = leg.members.borrow();
        let goes = |r: &MemberRecord| {
            let Some(m) = members.iter().find(|m| m.component == r.component) else {
                return r.state == MemberState::Resyncing { from: Seq(0) };
            };
            let state_goes = match (m.role(), r.state) {
                (role, MemberState::Active) => role.is_awaited(),
                (Role::Active, MemberState::Absent { since, .. }) => since <= leg.committed(),
                (Role::Promoting, MemberState::Resyncing { .. }) => true,
                (Role::Resyncing { from: had }, MemberState::Resyncing { from: has })
                | (Role::Resyncing { from: had }, MemberState::Absent { since: has, .. })
                | (Role::Absent { since: had }, MemberState::Resyncing { from: has })
                | (Role::Absent { since: had }, MemberState::Absent { since: has, .. }) => {
                    has <= had
                }
                (Role::Active, MemberState::Resyncing { .. })
                | (Role::Promoting, MemberState::Absent { .. }) => false,
            };
            state_goes && (m.host, m.group) == (r.host, r.group)
        };
        recorded.iter().any(|r| r.state.is_active()) && recorded.iter().all(goes)
    };
    record.state == ObjectState::Ready
        && check_shape(record.id, record).is_ok()
        && record.legs.len() == legs.len()
        && legs.iter().zip(record.legs.iter().map(|leg| &leg.members)).all(fits)
}

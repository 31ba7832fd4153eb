//! What one host knows of each object: one state for each, from the first I/O on.
//!
//! ```text
//!              found                    begin_taking
//!   Unknown ----------> Elsewhere     (from any but Here)     serve
//!      ^                   |          ------------> Taking ---------> Here
//!      +--- forget_route --+                          |                |
//!      +----------- end_taking (it has failed) -------+                |
//!      +----------- forget_owner (it has stopped) ---------------------+
//! ```
//!
//! Decisions only: nobody is asked here.

use crate::limits::{TAKEOVER_PAUSE_FIRST, TAKEOVER_PAUSE_LAST};
use atoll_format::id::{Epoch, ObjectId};
use atoll_format::record::OwnerRecord;
use atoll_world::Nanos;
use atoll_world::sync::{Notified, Notify};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// An owner on this host, as far as the table has to know it.
pub(super) trait Serving: Clone {
    /// Of which object, in which epoch.
    fn serves(&self) -> (ObjectId, Epoch);
    /// Whether it has stopped, for good.
    fn is_stopped(&self) -> bool;
    /// Whether both are the same owner.
    fn is_same(&self, other: &Self) -> bool;
}

/// Where the owner of an object is.
enum Place<O> {
    Unknown,
    /// On another host, by the directory: I/O asks the directory only when that has failed.
    Elsewhere(OwnerRecord),
    /// This host is taking it over at this moment.
    Taking(Notify),
    /// On this host; one that has stopped stays until its watch notices.
    Here(O),
}

/// How long the next takeover waits.
struct Pause {
    span: Nanos,
    until: Nanos,
    /// Why the last one failed.
    why: String,
}

struct Known<O> {
    place: Place<O>,
    /// When this owner was first found out of reach.
    missed_since: Option<(OwnerRecord, Nanos)>,
    /// After a takeover that failed.
    pause: Option<Pause>,
}

impl<O> Known<O> {
    fn is_nothing(&self) -> bool {
        matches!(self.place, Place::Unknown) && self.missed_since.is_none() && self.pause.is_none()
    }
}

/// All of them.
pub(super) struct ObjectTable<O>(RefCell<BTreeMap<ObjectId, Known<O>>>);

impl<O> Default for ObjectTable<O> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

impl<O: Serving> ObjectTable<O> {
    /// Changes what is known of an object; one of which nothing is known takes no memory.
    fn with<R>(&self, object: ObjectId, change: impl FnOnce(&mut Known<O>) -> R) -> R {
        let nothing = || Known { place: Place::Unknown, missed_since: None, pause: None };
        let mut all = self.0.borrow_mut();
        let known = all.entry(object).or_insert_with(nothing);
        let result = change(known);
        if known.is_nothing() {
            all.remove(&object);
        }
        result
    }

    /// The owner on this host, if it serves.
    pub fn owner(&self, object: ObjectId) -> Option<O> {
        match &self.0.borrow().get(&object)?.place {
            Place::Here(owner) if !owner.is_stopped() => Some(owner.clone()),
            _ => None,
        }
    }

    /// The owners on this host that serve, by object.
    pub fn owners(&self) -> Vec<O> {
        let here = |known: &Known<O>| match &known.place {
            Place::Here(owner) if !owner.is_stopped() => Some(owner.clone()),
            _ => None,
        };
        self.0.borrow().values().filter_map(here).collect()
    }

    /// Returns when the takeover that goes on here has ended; none: there is none.
    pub fn taking(&self, object: ObjectId) -> Option<Notified> {
        match &self.0.borrow().get(&object)?.place {
            Place::Taking(done) => Some(done.notified()),
            _ => None,
        }
    }

    /// Whether this host is taking anything over.
    pub fn is_taking_any(&self) -> bool {
        self.0.borrow().values().any(|known| matches!(known.place, Place::Taking(_)))
    }

    /// Where its owner was found.
    pub fn route(&self, object: ObjectId) -> Option<OwnerRecord> {
        match self.0.borrow().get(&object)?.place {
            Place::Elsewhere(owner) => Some(owner),
            _ => None,
        }
    }

    /// Its owner is on another host, and can be reached.
    pub fn found(&self, object: ObjectId, owner: OwnerRecord) {
        self.with(object, |known| {
            known.missed_since = None;
            let serves = matches!(&known.place, Place::Here(owner) if !owner.is_stopped());
            // What this host does itself is newer than what the directory showed.
            if !serves && !matches!(known.place, Place::Taking(_)) {
                known.place = Place::Elsewhere(owner);
            }
        });
    }

    /// The owner did not answer as one: the directory is asked the next time.
    pub fn forget_route(&self, object: ObjectId) {
        self.with(object, |known| {
            if matches!(known.place, Place::Elsewhere(_)) {
                known.place = Place::Unknown;
            }
        });
    }

    /// This owner of it is out of reach now; returns since when it is.
    pub fn missed(&self, object: ObjectId, owner: OwnerRecord, now: Nanos) -> Nanos {
        self.with(object, |known| {
            let of_this = known.missed_since.filter(|(missed, _)| *missed == owner);
            known.missed_since.insert(of_this.unwrap_or((owner, now))).1
        })
    }

    /// A takeover by this host begins; to be notified when it has ended.
    ///
    /// # Errors
    /// Why not now, for people.
    pub fn begin_taking(&self, object: ObjectId, now: Nanos) -> Result<Notify, String> {
        self.with(object, |known| {
            let is_busy = match &known.place {
                Place::Taking(_) => true,
                Place::Here(owner) => !owner.is_stopped(),
                Place::Unknown | Place::Elsewhere(_) => false,
            };
            if is_busy {
                return Err("taking the volume over already".into());
            }
            if let Some(pause) = known.pause.as_ref().filter(|pause| now < pause.until) {
                return Err(pause.why.clone());
            }
            let done = Notify::default();
            known.place = Place::Taking(done.clone());
            Ok(done)
        })
    }

    /// This shard takes it over no more before that moment; `why` is for people.
    pub fn pause(&self, object: ObjectId, until: Nanos, why: String) {
        self.with(object, |known| {
            let is_taken = matches!(known.place, Place::Taking(_));
            assert!(!is_taken, "{object} is taken over and given up at once");
            known.pause = Some(Pause { span: Nanos::ZERO, until, why });
        });
    }

    /// The next takeover need not wait.
    pub fn end_pause(&self, object: ObjectId) {
        self.with(object, |known| known.pause = None);
    }

    /// The takeover that goes on has made an owner.
    pub fn serve(&self, owner: O) {
        let (object, epoch) = owner.serves();
        self.with(object, |known| {
            assert!(matches!(known.place, Place::Taking(_)), "{object} was not taken, {epoch:?}");
            known.place = Place::Here(owner);
        });
    }

    /// The takeover that goes on has ended. `failed`: with why, for people, if another attempt may
    /// go better. Each attempt costs an epoch and a change of the record: those that fail are
    /// spaced out, the further apart the more there were, with a little chance between hosts that
    /// compete.
    pub fn end_taking(&self, object: ObjectId, failed: Option<String>, now: Nanos, random: u64) {
        self.with(object, |known| {
            assert!(!matches!(known.place, Place::Unknown | Place::Elsewhere(_)), "{object}");
            if matches!(known.place, Place::Taking(_)) {
                known.place = Place::Unknown;
            }
            known.missed_since = None;
            let last = known.pause.take().map_or(Nanos::ZERO, |pause| pause.span);
            known.pause = failed.map(|why| {
                let span = (last * 2).clamp(TAKEOVER_PAUSE_FIRST, TAKEOVER_PAUSE_LAST);
                let chance = Nanos(random % (span.0 / 4));
                assert!(span >= last.min(TAKEOVER_PAUSE_LAST), "the pauses of {object} grow");
                assert!(span + chance < TAKEOVER_PAUSE_LAST * 2, "guests wait for {object}");
                Pause { span, until: now + span + chance, why }
            });
        });
    }

    /// An owner has stopped.
    pub fn forget_owner(&self, owner: &O) {
        let (object, epoch) = owner.serves();
        assert!(owner.is_stopped(), "{epoch:?} serves {object}");
        self.with(object, |known| {
            if matches!(&known.place, Place::Here(here) if here.is_same(owner)) {
                known.place = Place::Unknown;
            }
        });
    }

    /// Everything is forgotten: for a simulated crash.
    pub fn clear(&self) {
        self.0.borrow_mut().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_format::id::{HostId, Incarnation};
    use std::cell::Cell;
    use std::rc::Rc;

    const OBJECT: ObjectId = ObjectId(1);
    const AT: Nanos = Nanos::from_secs(10);
    const THERE: OwnerRecord =
        OwnerRecord { host: HostId(7), shard: 0, incarnation: Incarnation(3) };

    #[derive(Clone)]
    struct Fake(Rc<Cell<bool>>, u32);

    impl Serving for Fake {
        fn serves(&self) -> (ObjectId, Epoch) {
            (OBJECT, Epoch(self.1))
        }
        fn is_stopped(&self) -> bool {
            self.0.get()
        }
        fn is_same(&self, other: &Self) -> bool {
            Rc::ptr_eq(&self.0, &other.0)
        }
    }

    fn owner(epoch: u32) -> Fake {
        Fake(Rc::default(), epoch)
    }

    fn table() -> ObjectTable<Fake> {
        ObjectTable::default()
    }

    fn is_empty(table: &ObjectTable<Fake>) -> bool {
        table.0.borrow().is_empty()
    }

    #[test]
    fn a_takeover_is_one_at_a_time_and_ends_with_an_owner_or_as_before() {
        let table = table();
        let _done = table.begin_taking(OBJECT, AT).expect("nobody else does");
        assert!(table.begin_taking(OBJECT, AT).is_err() && table.taking(OBJECT).is_some());
        assert!(table.is_taking_any() && table.owner(OBJECT).is_none());
        table.serve(owner(2));
        table.end_taking(OBJECT, None, AT, 0);
        assert!(!table.is_taking_any() && table.taking(OBJECT).is_none());
        assert_eq!(table.owner(OBJECT).map(|o| o.1), Some(2));
        assert!(table.begin_taking(OBJECT, AT).is_err(), "it serves");
        let serving = table.owner(OBJECT).expect("it serves");
        serving.0.set(true);
        assert!(table.owner(OBJECT).is_none() && table.owners().is_empty());
        table.forget_owner(&serving);
        assert!(is_empty(&table));
    }

    #[test]
    fn one_that_has_stopped_is_no_obstacle_and_takes_no_other_with_it() {
        let table = table();
        table.begin_taking(OBJECT, AT).expect("free");
        let first = owner(9);
        table.serve(first.clone());
        table.end_taking(OBJECT, None, AT, 0);
        first.0.set(true);
        table.begin_taking(OBJECT, AT).expect("it has stopped");
        // Also of the same epoch, or below: the directory may have been put back.
        table.serve(owner(9));
        table.end_taking(OBJECT, None, AT, 0);
        table.forget_owner(&first);
        assert!(table.owner(OBJECT).is_some(), "the other one serves");
    }

    #[test]
    fn pauses_grow_with_each_failure_and_end_with_success() {
        let table = table();
        let mut now = AT;
        let mut pause = TAKEOVER_PAUSE_FIRST;
        for _ in 0..8 {
            table.begin_taking(OBJECT, now).expect("the pause is over");
            table.end_taking(OBJECT, Some("no copy".into()), now, 0);
            let refused = table.begin_taking(OBJECT, now + pause - Nanos(1));
            assert_eq!(refused.err().as_deref(), Some("no copy"));
            now += pause;
            pause = (pause * 2).min(TAKEOVER_PAUSE_LAST);
        }
        table.begin_taking(OBJECT, now).expect("the pause is over");
        table.end_taking(OBJECT, None, now, 0);
        assert!(is_empty(&table), "lost to another host, say: nothing is kept");
    }

    #[test]
    fn what_was_given_up_for_another_shard_is_left_to_it_for_a_while() {
        let table = table();
        table.begin_taking(OBJECT, AT).expect("free");
        let first = owner(1);
        table.serve(first.clone());
        table.end_taking(OBJECT, None, AT, 0);
        let until = AT + Nanos(50);
        table.pause(OBJECT, until, "it moves".into());
        first.0.set(true);
        table.forget_owner(&first);
        assert_eq!(table.begin_taking(OBJECT, AT + Nanos(49)).err(), Some("it moves".into()));
        assert!(table.begin_taking(OBJECT, until).is_ok(), "the other did not come");
        table.end_taking(OBJECT, Some("a copy is away".into()), until, 0);
        table.end_pause(OBJECT);
        assert!(table.begin_taking(OBJECT, until).is_ok(), "it is told to");
    }

    #[test]
    fn a_route_never_hides_what_this_host_does_itself() {
        let table = table();
        table.found(OBJECT, THERE);
        assert_eq!(table.route(OBJECT), Some(THERE));
        table.begin_taking(OBJECT, AT).expect("its owner is away");
        table.found(OBJECT, THERE);
        assert!(table.route(OBJECT).is_none() && table.taking(OBJECT).is_some());
        table.serve(owner(2));
        table.end_taking(OBJECT, None, AT, 0);
        table.found(OBJECT, THERE);
        table.forget_route(OBJECT);
        assert!(table.owner(OBJECT).is_some() && table.route(OBJECT).is_none());
        table.owner(OBJECT).expect("there").0.set(true);
        table.found(OBJECT, THERE);
        assert_eq!(table.route(OBJECT), Some(THERE));
        table.forget_route(OBJECT);
        assert!(is_empty(&table));
    }

    #[test]
    fn it_is_missed_since_it_was_first_not_found() {
        let table = table();
        assert_eq!(table.missed(OBJECT, THERE, AT), AT);
        assert_eq!(table.missed(OBJECT, THERE, AT * 2), AT);
        table.found(OBJECT, THERE);
        assert_eq!(table.missed(OBJECT, THERE, AT * 3), AT * 3, "it was found meanwhile");
        let later = OwnerRecord { incarnation: Incarnation(4), ..THERE };
        assert_eq!(table.missed(OBJECT, later, AT * 4), AT * 4, "it has taken it back");
        table.begin_taking(OBJECT, AT * 3).expect("free");
        table.end_taking(OBJECT, None, AT * 3, 0);
        assert!(is_empty(&table));
    }
}

//! Evens out the work of this host's shards: where one is full and another is not, a volume's owner
//! moves.
//!
//! Invariant: an owner that moves gives its object up before the other takes it, as between hosts;
//! where that stops half-way, the next I/O makes an owner of whoever it comes to.

use crate::admin::message::{AdminReply, AdminRequest};
use crate::event_log::{About, Severity};
use crate::facts::shard_balance::{Move, ShardWork, next_move};
use crate::node::Node;
use atoll_format::id::{Addr, ObjectId};
use atoll_world::{Components, Nanos, World, sometimes};
use std::collections::BTreeMap;

/// What is done within this span decides.
const SPAN: Nanos = Nanos::from_secs(5);
/// After a move nothing else is moved for so long: its effect is to show first.
const REST: Nanos = Nanos::from_secs(15);
/// How long the shard that is to take an owner connects to the copies, while that still serves.
const CONNECT_MAX: Nanos = Nanos::from_ms(500);

impl<W: World, S: Components> Node<W, S> {
    /// Shard 0: looks at all shards again and again. Two looks in a row must find the same.
    pub(crate) async fn balance_shards(self) {
        assert!(self.is_first_shard(), "shard 0 looks at all of them");
        let (mut before, mut wanted) = (self.all_work(), None);
        let mut began = self.world().now();
        while !self.0.stopping.get() {
            self.world().sleep(SPAN).await;
            let (after, now) = (self.all_work(), self.world().now());
            let found = next_move(&before, &after, now.since(began), wanted);
            (before, began) = (after, now);
            match found {
                Some(found) if wanted.replace(found) == Some(found) => {
                    let Move { object, from, to } = found;
                    self.move_owner(object, from, to).await;
                    self.world().sleep(REST).await;
                    (before, began, wanted) = (self.all_work(), self.world().now(), None);
                }
                Some(_) => {}
                None => wanted = None,
            }
        }
    }

    /// What each shard of this host has done so far.
    fn all_work(&self) -> BTreeMap<u8, ShardWork> {
        let mut work = self.0.place.board.work();
        work.insert(self.0.place.shard, self.work());
        work
    }

    /// Has a shard of this host become the owner of an object that another one owns; asked of
    /// shard 0.
    ///
    /// # Panics
    /// The two are the same.
    pub async fn move_owner(&self, object: ObjectId, from: u8, to: u8) {
        assert!(self.is_first_shard() && from != to, "{object} from shard {from} to {to}");
        let host = self.0.config.host;
        let ask = AdminRequest::TakeReleased { object, from };
        match self.ask(Addr { host, shard: to }, ask).await {
            Ok(AdminReply::Done) => {
                sometimes!("shards.owner_moved");
                self.0.chosen.borrow_mut().insert(object, (to, self.world().now()));
                let message = format!("its owner moved from shard {from} to shard {to}");
                let about = About::object(object);
                self.note(Severity::Info, "owner-moved", about, message);
            }
            // Whoever has become its owner serves it; the next look says whether it is wanted yet.
            _ => sometimes!("shards.owner_did_not_move"),
        }
    }

    /// Takes an object over from another shard of this host, which gives it up first.
    pub(crate) async fn take_from_shard(&self, object: ObjectId, from: u8) -> AdminReply {
        let from = Addr { host: self.0.config.host, shard: from };
        self.0.objects.connect_to_copies(object, CONNECT_MAX).await;
        match self.ask(from, AdminRequest::Release { object }).await {
            Ok(AdminReply::Done) => {}
            Ok(_) => return AdminReply::Failed { why: "an odd answer".into() },
            Err(error) => return AdminReply::Failed { why: error.to_string() },
        }
        match self.0.objects.take_released(object, from).await {
            Ok(()) => AdminReply::Done,
            Err(why) => AdminReply::Failed { why },
        }
    }
}

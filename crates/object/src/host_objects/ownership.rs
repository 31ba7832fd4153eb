//! Where the owner of an object is, and when this host becomes it.
//!
//! The directory is asked only when what was known no longer answers; a takeover is attempted when
//! the owner that the record names cannot be reached for a while, by one task at a time, and after
//! pauses that grow.

use super::{HostObjects, HostOwner};
use crate::limits::{REJOIN_PATIENCE, RETRY_EVERY, TAKE_BACK_MAX, TAKEOVER_AFTER};
use crate::takeover::{TakeoverError, load, take_over};
use atoll_format::id::{Addr, ObjectId};
use atoll_format::record::{MemberRecord, ObjectRecord, OwnerRecord};
use atoll_world::directory::Revision;
use atoll_world::sync::oneshot;
use atoll_world::{Components, Nanos, World, mutant, sometimes};

/// Where an object's I/O goes.
pub(crate) enum Route<W: World, S: Components> {
    Local(HostOwner<W, S>),
    Remote(Addr),
}

impl<W: World, S: Components> HostObjects<W, S> {
    /// Makes this host the owner if nobody else who can be reached is; for objects that need
    /// healing and have no client.
    pub async fn adopt(&self, object: ObjectId) -> Result<(), String> {
        // Who asks has just looked into the directory; where I/O went once may be a host that is
        // alive and not the owner any more.
        if !mutant!("objects.adopts_by_an_old_route") {
            self.forget_route(object);
        }
        let found = match self.owner(object) {
            Some(_) => return Ok(()),
            None => self.find_owner(object, false).await,
        };
        match found {
            Ok(_) => Ok(()),
            Err(TakeoverError::NotNow(why)) => Err(why),
            Err(TakeoverError::Gone) => Err("there is no such object".into()),
            Err(TakeoverError::Lost) => Err("another host took it".into()),
        }
    }

    /// Connects to the shards that have copies of an object, for at most so long: who is to take it
    /// over from an owner that serves must not begin with that.
    pub async fn connect_to_copies(&self, object: ObjectId, wait: Nanos) {
        let Ok((record, _)) = load(self.world(), object).await else { return };
        let until = self.world().now() + wait;
        let at = |member: &MemberRecord| self.0.ctx.addr_of((member.host, member.group));
        let copies: Vec<Addr> = record.members().map(|(_, member)| at(member)).collect();
        let own = self.0.ctx.addr;
        let is_there = |addr: Addr| addr == own || self.peers().peer(addr).connected;
        while !copies.iter().all(|&addr| is_there(addr)) && self.world().now() < until {
            self.world().sleep(RETRY_EVERY / 20).await;
        }
    }

    /// Makes this shard the owner in the place of another that has just released the object.
    ///
    /// # Errors
    /// Why not: somebody else became the owner, or it cannot be taken over now.
    pub async fn take_released(&self, object: ObjectId, from: Addr) -> Result<(), String> {
        if self.0.stopping.get() {
            return Err("this host is stopping".into());
        }
        // It may have been this shard's a moment ago.
        self.0.table.end_pause(object);
        match self.take_from(object, from).await {
            Some(TakeoverError::NotNow(why)) => Err(why),
            Some(TakeoverError::Gone) => Err("there is no such object".into()),
            None if self.owner(object).is_some() => Ok(()),
            Some(TakeoverError::Lost) | None => Err("somebody else took it".into()),
        }
    }

    /// Where the object's I/O goes now; takes over if its owner is dead.
    pub(crate) async fn route(&self, object: ObjectId) -> Result<Route<W, S>, TakeoverError> {
        match self.owner(object) {
            Some(owner) => Ok(Route::Local(owner)),
            None => Box::pin(self.find_owner(object, true)).await,
        }
    }

    /// The same, when this host is not the owner. `asks`: who wants to know asks the owner next.
    async fn find_owner(&self, object: ObjectId, asks: bool) -> Result<Route<W, S>, TakeoverError> {
        if let Some(taking) = self.0.table.taking(object) {
            taking.await;
            return match self.owner(object) {
                Some(owner) => Ok(Route::Local(owner)),
                None => Err(TakeoverError::NotNow("taking the volume over failed".into())),
            };
        }
        if self.0.stopping.get() {
            return Err(TakeoverError::Gone);
        }
        if let Some(owner) = self.0.table.route(object) {
            let peer = self.peers().peer(owner.addr());
            if peer.connected && peer.incarnation == Some(owner.incarnation) {
                return Ok(Route::Remote(owner.addr()));
            }
            self.forget_route(object);
        }
        let loaded = load(self.world(), object).await;
        self.note_directory(!matches!(loaded, Err(TakeoverError::NotNow(_))));
        let (record, revision) = loaded?;
        if let Some(owner) = record.owner
            && owner.addr() != self.0.ctx.addr
        {
            let peer = self.peers().peer(owner.addr());
            // A host that has restarted owns nothing any more (R5).
            let is_here = owner.host == self.0.ctx.host;
            let life = if is_here { Some(self.0.ctx.incarnation) } else { peer.incarnation };
            // Or has stopped in order.
            let has_left = !is_here && peer.left && life == Some(owner.incarnation);
            let is_over = has_left || life.is_some_and(|i| i != owner.incarnation);
            if has_left {
                sometimes!("objects.owner_has_left");
            }
            if peer.connected && !is_over {
                self.0.table.found(object, owner);
                return Ok(Route::Remote(owner.addr()));
            }
            let now = self.world().now();
            let since = self.0.table.missed(object, owner, now);
            // It takes the object back as soon as it is asked (`take_back`), and waits for no lease
            // of its earlier life, as this host would have to (R9).
            if asks && peer.connected && !is_here && now.since(since) < TAKE_BACK_MAX {
                return Ok(Route::Remote(owner.addr()));
            }
            let rejoins = self.0.directory_back.get().is_some_and(|at| {
                now.since(at) < REJOIN_PATIENCE && !mutant!("objects.takes_over_as_it_rejoins")
            });
            if rejoins {
                sometimes!("objects.looks_around_after_it_was_cut_off");
            }
            if !is_over && (rejoins || now.since(since) < TAKEOVER_AFTER) {
                let host = self.0.ctx.host_name(owner.host);
                return Err(TakeoverError::NotNow(format!("its owner {host} cannot be reached")));
            }
        }
        self.take(object, (record, revision)).await
    }

    /// A client on another host asks for an object that this shard does not own: takes it back if
    /// an earlier life owned it, and nobody since.
    pub(super) async fn take_back(&self, object: ObjectId) {
        if self.0.stopping.get() {
            return;
        }
        let Ok((record, revision)) = load(self.world(), object).await else { return };
        let me = self.0.ctx.me();
        let is_earlier = |owner: OwnerRecord| owner.addr() == me.addr() && owner != me;
        if record.owner.is_some_and(is_earlier) {
            sometimes!("objects.takes_back_what_it_owned");
            let _ = self.take(object, (record, revision)).await;
        }
    }

    /// The directory answered, or did not.
    fn note_directory(&self, answered: bool) {
        let now = self.world().now();
        let away_since = self.0.directory_away.get();
        self.0.directory_away.set(if answered { None } else { away_since.or(Some(now)) });
        if answered && away_since.is_some_and(|since| now.since(since) > TAKEOVER_AFTER) {
            self.0.directory_back.set(Some(now));
        }
    }

    /// The owner did not answer as one: the directory is asked the next time.
    pub(crate) fn forget_route(&self, object: ObjectId) {
        self.0.table.forget_route(object);
    }

    /// Takes over, one attempt at a time.
    pub(crate) async fn take(
        &self,
        object: ObjectId,
        from: (ObjectRecord, Revision),
    ) -> Result<Route<W, S>, TakeoverError> {
        let begun = self.0.table.begin_taking(object, self.world().now());
        let done = begun.map_err(TakeoverError::NotNow)?;
        // Spawned: a client that gives up does not leave a takeover half done.
        let (tell, told) = oneshot();
        let this = self.clone();
        self.world().spawn(async move {
            let result = take_over(&this.0.ctx, from).await;
            let result = result.map(|owner| {
                this.serve(owner.clone());
                Route::Local(owner)
            });
            let failed = match &result {
                Err(TakeoverError::NotNow(why)) => Some(why.clone()),
                _ => None,
            };
            let now = this.world().now();
            let random = if failed.is_some() { this.world().random() } else { 0 };
            this.0.table.end_taking(object, failed, now, random);
            done.notify_all();
            tell.send(result);
        });
        match told.await {
            Ok(result) => result,
            Err(_) => Err(TakeoverError::NotNow("this host is stopping".into())),
        }
    }

    fn serve(&self, owner: HostOwner<W, S>) {
        sometimes!("objects.serving");
        assert!(owner.0.ctx.is_me(&owner.0.record.borrow()), "only owners serve {}", owner.0.id);
        self.0.table.serve(owner.clone());
        let (this, watched) = (self.clone(), owner.clone());
        self.world().spawn(async move {
            watched.watch().await;
            this.0.table.forget_owner(&watched);
        });
        self.world().spawn(owner.heal());
        self.0.renew_now.notify_all();
    }

    /// The owner that the directory names does not serve: forget how we got there, and take over
    /// ourselves.
    pub(crate) async fn take_from(&self, object: ObjectId, from: Addr) -> Option<TakeoverError> {
        let loaded = match load(self.world(), object).await {
            Ok(loaded) => loaded,
            Err(error) => return Some(error),
        };
        if loaded.0.owner.is_some_and(|o| o.addr() == from) {
            return self.take(object, loaded).await.err();
        }
        None
    }
}

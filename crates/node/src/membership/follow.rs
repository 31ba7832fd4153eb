//! Shard 0 follows the directory: one list, one watch, and a look now and then.
//!
//! A look asks for one key, whose answer says at which revision the directory is. At rest that is
//! all. Whoever was not told all that has happened since asks for what has changed, and lists
//! anew where that does not lead to the same keys, after every error, and where the directory is
//! older than what was seen.

use crate::directory_view::Doubt;
use crate::node::Node;
use atoll_format::record::key;
use atoll_world::directory::{Directory, Revision, Watch};
use atoll_world::{Components, Nanos, World, sometimes};
use std::pin::pin;

/// Between attempts to reach the directory.
pub(crate) const RETRY_EVERY: Nanos = Nanos::from_ms(500);
/// How often the directory is asked at which revision it is.
const LOOK_EVERY: Nanos = Nanos::from_secs(5);
/// What has happened by then and is not told so long after it counts as lost.
const TOLD_WITHIN: Nanos = Nanos::from_secs(1);
/// A view of a directory that changes is compared with it so often, whatever was told: parts of a
/// transaction may be lost, too.
const PROVE_EVERY: Nanos = Nanos::from_secs(60);

const _: () = assert!(RETRY_EVERY.0 < LOOK_EVERY.0 && TOLD_WITHIN.0 < LOOK_EVERY.0);

impl<W: World, S: Components> Node<W, S> {
    /// Keeps the view of the directory up to date.
    pub(crate) async fn follow_directory(self) {
        assert!(self.is_first_shard(), "the others read what it shows them");
        loop {
            if let Ok(listing) = self.world().directory().list("").await {
                self.0.view.replace(&listing);
                self.show_view(true);
                self.follow_from(listing.revision).await;
            }
            self.0.view.is_silent();
            // Not all hosts at once, when a member has gone that all of them used.
            let pause = Nanos(self.world().random() % RETRY_EVERY.0);
            self.world().sleep(RETRY_EVERY / 2 + pause).await;
        }
    }

    /// Returns when a list is due.
    async fn follow_from(&self, revision: Revision) {
        let world = self.world();
        let Ok(mut watch) = world.directory().watch("", revision).await else { return };
        let mut look = Look { shown: None, prove_at: world.now() + PROVE_EVERY };
        let mut look_at = world.now() + LOOK_EVERY;
        loop {
            // Kept while looks go on: who gives up a request for events has to make a new one.
            let mut next = pin!(watch.next());
            let told = loop {
                if let Ok(told) = world.timeout_at(look_at, next.as_mut()).await {
                    break told;
                }
                match self.look_at_directory(&mut look).await {
                    Some(span) => look_at = world.now() + span,
                    None => return,
                }
            };
            let Ok(events) = told else { return };
            let is_shared = self.0.view.apply(&events);
            self.show_view(is_shared);
        }
    }

    /// Compares the view with the directory; after how long again, or none if a list is due.
    async fn look_at_directory(&self, look: &mut Look) -> Option<Nanos> {
        let (view, directory) = (&self.0.view, self.world().directory());
        let shown_before = look.shown.take();
        let revision = match shown_before {
            Some(revision) => revision,
            None => directory.list(key::CLUSTER).await.ok()?.revision,
        };
        match view.doubt(revision, self.world().now() >= look.prove_at) {
            Doubt::None => return Some(LOOK_EVERY),
            Doubt::All => {
                sometimes!("view.directory_is_older");
                return None;
            }
            Doubt::Changes if shown_before.is_none() => {
                look.shown = Some(revision);
                return Some(TOLD_WITHIN);
            }
            Doubt::Changes => {}
        }
        let since = view.proven();
        assert!(since <= revision, "{since:?} is proven, and {revision:?} was doubted");
        let changes = directory.changes("", since).await.ok()?;
        let is_shared = view.settle(&changes)?;
        sometimes!("view.changes_were_asked_for");
        look.prove_at = self.world().now() + PROVE_EVERY;
        self.show_view(is_shared);
        Some(LOOK_EVERY)
    }

    /// The view has changed; `is_shared`: so have hosts or locks.
    fn show_view(&self, is_shared: bool) {
        let board = &self.0.place.board;
        if is_shared {
            let seen = self.0.view.seen();
            board.set_seen(seen.clone());
            self.take_hosts(&seen);
        } else {
            board.set_seen_revision(self.0.view.revision());
        }
    }
}

/// What the last look has left for the next one.
struct Look {
    /// A revision that it showed and that the watch may still tell.
    shown: Option<Revision>,
    /// When all that was told is doubted next.
    prove_at: Nanos,
}

//! The cluster's feature level, as this host knows it.
//!
//! Invariants: within a life of a host the level never falls; a life whose release does not know
//! the level has ended.

use crate::event_log::{About, Severity};
use crate::node::{Ended, Node};
use atoll_format::level::Level;
use atoll_world::{Components, World, sometimes};

/// This life has ended: its release does not know the cluster's level.
pub(crate) struct Unknown;

impl<W: World, S: Components> Node<W, S> {
    /// What this host may write: nothing above it. A directory that shows an older state may say
    /// less than it has said.
    pub fn level(&self) -> Level {
        self.0.level.get()
    }

    /// The cluster is at that level, or was.
    pub(crate) fn take_level(&self, level: Level) -> Result<(), Unknown> {
        let (before, known) = (self.0.level.get(), self.0.config.levels);
        assert!(before <= known.newest, "a life at level {before}, which knows {known}");
        if level > known.newest {
            self.end_for(level);
            return Err(Unknown);
        }
        if level > before {
            sometimes!("level.rises_on_a_host");
            self.0.level.set(level);
        }
        assert!(self.0.level.get() >= before, "the level falls from {before}");
        Ok(())
    }

    /// Ends this life: what others write may be what it cannot read.
    fn end_for(&self, level: Level) {
        if self.0.ended.borrow().is_some() {
            return;
        }
        sometimes!("level.host_hears_of_one_that_it_does_not_know");
        let known = self.0.config.levels;
        let message = format!(
            "the cluster is at feature level {level}, and this host's release knows {known}: it \
             serves nobody until a newer release is installed"
        );
        self.note(Severity::Error, "level-unknown", About::host(self.0.config.host), message);
        self.end_as(Ended::Level(level));
        assert!(self.0.stopping.get(), "a host goes on at a level that it does not know");
    }
}

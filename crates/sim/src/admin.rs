//! What the administrator of a run has made and is at.
//!
//! Each volume made has a name and a book of its own: whatever was cut off may still happen to the
//! one that it was meant for, never to the next one.

use crate::activity::{Activities, Activity};
use crate::workload::Book;
use std::cell::{Cell, RefCell};

/// What the administrator has made and is at.
#[derive(Default)]
pub(crate) struct Admin {
    /// Every volume made, by name, the last one last.
    pub(crate) volumes: RefCell<Vec<(String, Book)>>,
    /// The last one is there, as far as is known.
    pub(crate) there: Cell<bool>,
    pub(crate) at_work: Cell<bool>,
    pub(crate) resizing: Cell<bool>,
    pub(crate) deleting: Cell<bool>,
}

impl Admin {
    /// The books of all volumes made.
    pub fn books(&self) -> Vec<(String, Book)> {
        self.volumes.borrow().clone()
    }

    /// Whether a command may be under way.
    pub fn is_at_work(&self) -> bool {
        self.at_work.get()
    }

    /// Adds what is going on.
    pub fn add_to(&self, now: &mut Activities) {
        now.add(Activity::Resize, self.resizing.get());
        now.add(Activity::Delete, self.deleting.get());
    }
}

//! Which release each host of a run has, and the feature level that the cluster was seen at.

use atoll_format::level::Level;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

/// Who has which release.
#[derive(Default)]
pub(crate) struct Releases {
    /// Hosts whose present life has the older one.
    pub(crate) old: RefCell<BTreeSet<u16>>,
    /// Hosts on which the older one does not run any more.
    pub(crate) refused: RefCell<BTreeSet<u16>>,
    /// The highest level that the directory has had.
    pub(crate) level: Cell<Level>,
}

//! What is written about blocks apart from their bytes: pages, the journal and checkpoints.
//! `docs/formats.md` has their bytes.

pub(crate) mod checkpoint;
pub(crate) mod journal;
pub(crate) mod journal_writer;
pub(crate) mod page_loader;

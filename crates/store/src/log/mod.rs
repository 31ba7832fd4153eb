//! The write log while the store runs: the queue of operations, and the writer that makes batches
//! of them.

pub(crate) mod queue;
pub(crate) mod writer;

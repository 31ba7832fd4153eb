//! The mover: takes blocks from the log to their slots, trims the log, takes checkpoints.
//!
//! One round: the chunks of the oldest segments, each with its pending blocks there; read from the
//! log, verified, written in place in the order of their slots; flush; one journal batch; then the
//! index forgets them and the log is trimmed. The crash order is data -> flush -> journal -> trim
//! (`docs/formats.md`): until the journal batch is durable the log still has everything, and doing
//! a round again changes nothing.
//!
//! How fast it goes is said by [`crate::state::pace`]. The pauses lie between the writes of a
//! round, not behind it.

mod home_writer;
mod log_reader;
pub(crate) mod mover;
mod outcome;
mod round;
mod round_pace;
mod slots;
mod task;

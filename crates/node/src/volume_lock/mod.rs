//! One host has a volume to itself: while an image is copied in, while it is deleted, while it is
//! shrunk. What takes data from clients is decided and done under such a lock.
//!
//! Taking it has three steps, in this order. A transaction enters the lock in the directory. Every
//! host is told of it, and answers whether it has clients of the volume; from that answer on it
//! opens the volume for nobody but the holder. Only then is the dangerous thing done.
//!
//! A host counts an opening before it looks for a lock, and both happen without a pause on one
//! thread: either the holder hears of the client, or the client hears of the holder. A host that
//! was told nothing (it has just started) finds the lock in the directory when it opens the volume.
//!
//! Invariants: who cannot be asked is taken for a user, unless it has been away for longer than any
//! I/O is held, or has stopped in order; a lock is void once that life of its host has ended; an
//! import's lock ends by itself [`IDLE_MAX`](import::IDLE_MAX) after its last client.
//!
//! Files: `table` (locks in memory), `holder` (whether who took a lock still lives), `farewell`
//! (hosts that stopped in order), `in_use` (whether anybody has clients of a volume), `take`
//! (taking and giving back), `open` (what an opening of a volume sees of locks), `import`,
//! `leftovers` (locks that nobody has any more).

mod farewell;
mod holder;
pub(crate) mod import;
mod in_use;
mod leftovers;
mod open;
pub(crate) mod table;
mod take;

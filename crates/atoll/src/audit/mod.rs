//! The audit log of a host: who has changed what through its management interface, and who was
//! not let. It lies in `audit/NNNNNNNNNNNNNNNN.jsonl` of the data directory (docs/formats.md).
//!
//! Each line has the SHA-256 of the line before it. So a line that is changed, left out or put in
//! later shows ([`verify`]); that the last ones were cut off shows to whoever has noted the number
//! and the hash of a later one, which the log of the daemon tells of each.
//!
//! Invariants: a request that changes something is answered once its entry is durable, or after
//! [`KEEP_WAIT`](log::KEEP_WAIT); what the file system does not take keeps nobody from changing
//! anything: it is counted, and the next entry says how many are missing before it. No secret is
//! in an entry.

mod line;
mod log;
mod verify;

pub use line::Deed;
pub use log::AuditLog;
pub use verify::{Head, Verified, verify};

use std::path::{Path, PathBuf};

/// Files that are kept, the one that is written included.
const FILES_MAX: u64 = 32;
/// Bytes of one.
const FILE_BYTES: usize = 4 << 20;

/// Where the audit log of a host lies.
fn directory(data: &Path) -> PathBuf {
    data.join("audit")
}

/// Whole lines, without their line feeds; a damaged one may be no text.
fn lines(bytes: &[u8]) -> impl Iterator<Item = String> {
    let lines = bytes.split_inclusive(|&b| b == b'\n');
    lines.map(|line| String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(line)).into_owned())
}

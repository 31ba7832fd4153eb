//! The file system of this host's state (identity, sockets, perhaps its log): the data path does
//! not need it, but whoever looks for what went wrong does.

use super::host::HostNode;
use atoll_node::{About, Severity};
use std::path::PathBuf;
use std::time::Duration;

/// How often it is looked at.
const EVERY: Duration = Duration::from_secs(5);
/// Below so many bytes it counts as full, and from twice as many on no longer.
const LOW: u64 = 1 << 20;

/// Tells when the file system of that directory becomes full, and when it has room again.
pub async fn watch(node: HostNode, directory: PathBuf) {
    let (mut full, mut unknown) = (false, false);
    let shown = directory.display().to_string();
    let here = || About::host(node.id());
    loop {
        let of = directory.clone();
        // It may be a file system that hangs.
        let found = tokio::task::spawn_blocking(move || rustix::fs::statvfs(&of)).await;
        match found {
            Ok(Ok(stat)) => {
                let free = stat.f_bavail.saturating_mul(stat.f_frsize);
                let now_full = free < if full { 2 * LOW } else { LOW };
                if now_full && !full {
                    let message = format!(
                        "the file system of {shown} is full ({free} bytes left): volumes are \
                         served as before, but logs are lost and a restart may fail; make room"
                    );
                    let about = About { numbers: vec![("free_bytes", free)], ..here() };
                    node.note(Severity::Error, "state-full", about, message);
                } else if full && !now_full {
                    let message = format!("the file system of {shown} has room again");
                    let about = About { numbers: vec![("free_bytes", free)], ..here() };
                    node.note(Severity::Info, "state-has-room", about, message);
                }
                (full, unknown) = (now_full, false);
            }
            // Said once, not every time.
            Ok(Err(_)) if unknown => {}
            Ok(Err(e)) => {
                unknown = true;
                let message = format!("the file system of {shown} does not say what is free: {e}");
                let about = About { cause: e.to_string(), ..here() };
                node.note(Severity::Warning, "state-unknown", about, message);
            }
            // The daemon is ending.
            Err(_) => return,
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// Something that should last, in files of the state.
pub struct Kept {
    /// Kinds of the events that tell when it does not, and when it does again.
    pub kinds: [&'static str; 2],
    /// What is told then: the reason, and the number of those that are lost, are added.
    pub says: [&'static str; 2],
}

impl Kept {
    /// This host's events.
    pub const EVENTS: Self = Self {
        kinds: ["events-not-kept", "events-kept-again"],
        says: ["events are not kept over a restart", "events are kept again"],
    };
    /// Who has changed what.
    pub const AUDIT: Self = Self {
        kinds: ["audit-not-kept", "audit-kept-again"],
        says: ["who changes what is not written down", "who changes what is written down again"],
    };

    /// Tells it of a host; `state`: why the last one was not kept, and how many were not so far.
    pub async fn watch(self, node: HostNode, state: impl Fn() -> (Option<String>, u64)) {
        let mut lost_before = None;
        loop {
            match (state(), lost_before) {
                ((Some(why), lost), None) => {
                    lost_before = Some(lost);
                    let message = format!("{}: {why}", self.says[0]);
                    let about = About { cause: why, ..About::host(node.id()) };
                    node.note(Severity::Warning, self.kinds[0], about, message);
                }
                // Whether it is well shows with the next one.
                ((None, lost), Some(before)) => {
                    let lost = lost.saturating_sub(before);
                    let message = format!("{}; {lost} are not, since that was told", self.says[1]);
                    let numbers = vec![("lost", lost)];
                    let about = About { numbers, ..About::host(node.id()) };
                    node.note(Severity::Info, self.kinds[1], about, message);
                    lost_before = None;
                }
                _ => {}
            }
            tokio::time::sleep(EVERY).await;
        }
    }
}

//! The file system of this host's state (identity, sockets, perhaps its log): the data path does
//! not need it, but whoever looks for what went wrong does.

use super::event_files::EventFiles;
use super::host::HostNode;
use atoll_node::{About, Severity};
use std::path::PathBuf;
use std::rc::Rc;
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

/// Tells when events are no longer kept, and when they are again.
pub async fn watch_events(node: HostNode, files: Rc<EventFiles>) {
    let mut dropped = None;
    loop {
        match (files.trouble(), dropped) {
            (Some(why), None) => {
                dropped = Some(files.dropped());
                let message = format!("events are not kept over a restart: {why}");
                let about = About { cause: why, ..About::host(node.id()) };
                node.note(Severity::Warning, "events-not-kept", about, message);
            }
            // Whether it is well shows with the next event.
            (None, Some(before)) => {
                let lost = files.dropped().saturating_sub(before);
                let message = format!("events are kept again; {lost} are not, since that was told");
                let numbers = vec![("lost", lost)];
                let about = About { numbers, ..About::host(node.id()) };
                node.note(Severity::Info, "events-kept-again", about, message);
                dropped = None;
            }
            _ => {}
        }
        tokio::time::sleep(EVERY).await;
    }
}

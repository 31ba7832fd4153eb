//! Copies disk images into volumes and out of them, by `qemu-img` over the daemon's NBD socket.
//!
//! Invariants: an image that is damaged, cut short, of another format, or refers to other files is
//! refused before anything is created or written, and no file but itself is opened; a volume in use
//! is never written; a failed or interrupted import removes the volume that it created, a failed or
//! interrupted export leaves no file under the name that was asked for, and none beside it.

mod deflate;
mod export;
mod foreign;
mod import;
mod look;
mod progress;
mod qcow2;
mod tool;

pub use export::{Export, export};
pub use import::{Import, import};

use super::context::Context;
use super::out::{Format, Run};
use atoll_api::client::Call;
use atoll_api::envelope::{Item, Named};
use atoll_api::routes::Op;
use atoll_api::types;
use atoll_api::uri::{Nbd, Server};
use atoll_api::{Code, Problem};
use atoll_format::units::iec;
use foreign::plain;
use serde::Serialize;
use std::os::unix::fs::FileTypeExt;

/// The end of a copy, for machines.
#[derive(Serialize)]
struct Copied {
    volume: String,
    file: String,
    format: &'static str,
    bytes: u64,
    /// The volume's size: what lies behind the image reads as zeros.
    volume_bytes: u64,
    verified: bool,
}

impl Named for Copied {
    const KIND: &'static str = "Copied";
}

fn done(context: &Context, copied: Copied) -> Run {
    match context.out.format {
        Format::Table | Format::Wide => {
            let note = if copied.verified { ", verified" } else { "" };
            let (bytes, volume) = (copied.bytes, copied.volume_bytes);
            let rest = if volume == bytes {
                String::new()
            } else {
                let name = &copied.volume;
                format!("; volume {name} has {volume} bytes, {bytes} of the image and then zeros")
            };
            context.out.note(&format!("{} copied{note}{rest}", iec(bytes)));
            Ok(())
        }
        Format::Json => {
            let now = jiff::Timestamp::now().as_millisecond();
            let item = Item::new(copied, u64::try_from(now).unwrap_or(0));
            let line = serde_json::to_string(&item).expect("plain fields");
            context.out.data(&(line + "\n"))
        }
        Format::Yaml => {
            let value = serde_json::to_value(&copied).expect("plain fields");
            context.out.data(&super::out::yaml(&value))
        }
        Format::Name => context.out.data(&format!("{}\n", copied.volume)),
    }
}

async fn find(context: &Context, name: &str) -> Result<types::Volume, Problem> {
    let call = Call::to(Op::VolumeShow, &[name]);
    Ok(context.client.item::<types::Volume>(call).await?.item)
}

/// Where qemu-img reaches one of these exports of a volume: the URI is written anew from what was
/// read and looked at, so that it reaches nothing else.
fn export_of(volume: &str, exports: &[String]) -> Result<String, Problem> {
    let exports: Vec<Nbd> = exports.iter().filter_map(|uri| uri.parse().ok()).collect();
    let is_here = |export: &&Nbd| match &export.server {
        Server::Unix(socket) => {
            std::fs::metadata(socket).is_ok_and(|meta| meta.file_type().is_socket())
        }
        Server::Tcp(_) => false,
    };
    let local = exports.iter().find(is_here);
    let tcp = || exports.iter().find(|export| matches!(export.server, Server::Tcp(_)));
    local.or_else(tcp).map(Nbd::to_string).ok_or_else(|| {
        let detail = format!("volume {volume} cannot be reached over NBD from here");
        Problem::new(Code::Unavailable, detail)
            .hint("run this on the daemon's machine, or set frontends.nbd in its configuration")
    })
}

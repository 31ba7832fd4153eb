//! `atoll volume import`.

use super::look::{Image, look};
use super::tool::{PARALLEL, copy, qemu_img};
use super::{Copied, done, export_of, find, plain};
use crate::cli::args::ImageFormat;
use crate::cli::commands::segment;
use crate::cli::out::Run;
use crate::cli::{Context, interrupted, or_interrupt};
use atoll_api::client::Call;
use atoll_api::envelope::List;
use atoll_api::routes::PREFIX;
use atoll_api::types;
use atoll_api::{Code, Problem};
use atoll_format::units::{BLOCK, iec};
use hyper::Method;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long our own client may still be seen after it has ended: its requests are being finished.
const OURS_LEAVES: Duration = Duration::from_secs(10);
/// How long somebody else's client may take to go before the volume counts as in use.
const OTHERS_LEAVE: Duration = Duration::from_secs(2);
/// How often that is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What `volume import` was asked.
pub struct Import {
    pub name: String,
    pub file: PathBuf,
    pub format: Option<ImageFormat>,
    pub policy: Option<String>,
    pub existing: bool,
    pub verify: bool,
}

/// `atoll volume import`.
///
/// # Errors
/// See the head of this file; the message names the image or the volume.
pub async fn import(context: &Context, asked: Import) -> Run {
    let path = format!("/volumes/{}", segment("volume", &asked.name)?);
    let work = look(&asked.file, asked.format);
    let image = or_interrupt(&context.interrupt, work).await.ok_or_else(|| interrupted(None))??;
    if let Some(note) = &image.note {
        context.out.note(note);
    }
    let (volume, created) = match find(context, &path).await {
        Ok(volume) => {
            check_target(context, &volume, &image, &asked.file).await?;
            (volume, false)
        }
        Err(problem) if problem.code == Code::NotFound && !asked.existing => {
            let size_bytes = image.bytes.next_multiple_of(BLOCK);
            let name = asked.name.clone();
            let request = types::VolumeCreate { name, size_bytes, policy: asked.policy.clone() };
            let dry = if context.globals.dry_run { "?dry_run=true" } else { "" };
            let call = Call::of(Method::POST, format!("{PREFIX}/volumes{dry}")).json(&request);
            let made = context.client.item::<types::Volume>(call).await?;
            (made.item, true)
        }
        Err(problem) => return Err(problem.into()),
    };
    if context.globals.dry_run {
        let what = if created { "would be created for" } else { "can hold" };
        context.out.note(&format!("volume {} {what} {}", asked.name, asked.file.display()));
        return Ok(());
    }
    let copied = copy_in(context, &asked, &image, &volume, created).await;
    if copied.is_err() {
        // Our own client is on its way out; until it has gone, the volume is in use.
        let _ = clients(context, &asked.name, OURS_LEAVES).await;
        if created {
            let call = Call::of(Method::DELETE, format!("{PREFIX}{path}"));
            match context.client.bytes(call).await {
                Ok(_) => context.out.note(&format!("volume {} was removed again", asked.name)),
                Err(problem) => context.out.note(&format!(
                    "volume {} could not be removed again: {}",
                    asked.name, problem.detail
                )),
            }
        } else {
            context.out.note(&format!("volume {} holds a part of the image", asked.name));
        }
    }
    copied
}

async fn copy_in(
    context: &Context,
    asked: &Import,
    image: &Image,
    volume: &types::Volume,
    created: bool,
) -> Run {
    let target = export_of(&volume.name, &volume.exports)?;
    let mut command = qemu_img();
    command.args(["convert", "-p", "-n", "-W", "-m", PARALLEL, "-t", "writeback"]);
    if created {
        // A new volume reads as zeros: holes need not be written.
        command.arg("--target-is-zero");
    }
    command.args(["-f", image.format.name(), "-O", "raw"]);
    command.arg(plain(&asked.file)).arg(&target);
    copy(context, command, &format!("import {}", asked.name), image.bytes).await?;
    if asked.verify {
        let mut command = qemu_img();
        command.args(["compare", "-p", "-f", image.format.name(), "-F", "raw"]);
        command.arg(plain(&asked.file)).arg(&target);
        copy(context, command, &format!("verify {}", asked.name), image.bytes).await?;
    }
    let copied = Copied {
        volume: asked.name.clone(),
        file: asked.file.display().to_string(),
        format: image.format.name(),
        bytes: image.bytes,
        volume_bytes: volume.size_bytes,
        verified: asked.verify,
    };
    done(context, copied)
}

/// Clients of a volume that stay: one that is leaving is waited for.
async fn clients(
    context: &Context,
    volume: &str,
    wait: Duration,
) -> Result<Vec<types::Session>, Problem> {
    let deadline = tokio::time::Instant::now() + wait;
    loop {
        let call = Call::get(format!("{PREFIX}/sessions?volume={volume}"));
        let sessions: List<types::Session> = context.client.list(call).await?;
        if sessions.items.is_empty() || tokio::time::Instant::now() > deadline {
            return Ok(sessions.items);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Whether the image may be copied into an existing volume.
async fn check_target(
    context: &Context,
    volume: &types::Volume,
    image: &Image,
    file: &Path,
) -> Run {
    let name = &volume.name;
    let sessions = clients(context, name, OTHERS_LEAVE).await?;
    if let Some(session) = sessions.first() {
        let detail = format!(
            "volume {name} is in use: {} clients, the first on host {}",
            sessions.len(),
            session.host
        );
        let hint = format!("atoll session list --volume {name}");
        return Err(Problem::new(Code::InUse, detail).hint(hint).into());
    }
    if image.bytes > volume.size_bytes {
        let detail = format!(
            "{} is larger ({}) than volume {name} ({})",
            file.display(),
            iec(image.bytes),
            iec(volume.size_bytes)
        );
        let size = image.bytes.next_multiple_of(BLOCK);
        let hint = format!("atoll volume resize {name} {size}");
        return Err(Problem::new(Code::BadSize, detail).hint(hint).into());
    }
    if volume.used_bytes > 0 {
        let used = iec(volume.used_bytes);
        context.confirm(&format!("what volume {name} holds ({used}) will be replaced?")).await?;
    }
    Ok(())
}

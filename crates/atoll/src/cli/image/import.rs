//! `atoll volume import`.
//!
//! Invariant: what protects a volume's data is the server's: it locks the volume for this copy, and
//! empties it, or refuses. The copy goes through an export that only the lock's token opens.

use super::look::{Image, look};
use super::tool::{PARALLEL, copy, qemu_img};
use super::{Copied, done, export_of, find, plain};
use crate::cli::args::ImageFormat;
use crate::cli::commands::checked;
use crate::cli::context::{Context, interrupted, or_interrupt};
use crate::cli::out::{Failure, Run};
use atoll_api::client::Call;
use atoll_api::routes::Op;
use atoll_api::types;
use atoll_api::{Code, Problem};
use atoll_format::units::{BLOCK, iec};
use std::path::PathBuf;
use std::time::Duration;

/// How long our own client may still be seen after it has ended: its requests are being finished.
const OURS_LEAVES: Duration = Duration::from_secs(10);
/// How often it is tried again meanwhile.
const TRY_EVERY: Duration = Duration::from_millis(200);

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
/// See the head of the module; the message names the image or the volume.
pub async fn import(context: &Context, asked: Import) -> Run {
    let name = checked("volume", &asked.name)?;
    let work = look(&asked.file, asked.format);
    let image = or_interrupt(&context.interrupt, work).await.ok_or_else(|| interrupted(None))??;
    if let Some(note) = &image.note {
        context.out.note(note);
    }
    let (volume, created) = match find(context, name).await {
        Ok(volume) => (volume, false),
        Err(problem) if problem.code == Code::NotFound && !asked.existing => {
            let size_bytes = image.bytes.next_multiple_of(BLOCK);
            let name = asked.name.clone();
            let request = types::VolumeCreate { name, size_bytes, policy: asked.policy.clone() };
            let call = context.change(Call::to(Op::VolumeCreate, &[])).json(&request);
            let made = context.client.item::<types::Volume>(call).await?;
            (made.item, true)
        }
        Err(problem) => return Err(problem.into()),
    };
    if context.globals.dry_run && created {
        let file = asked.file.display();
        context.out.note(&format!("volume {} would be created for {file}", asked.name));
        return Ok(());
    }
    // By its id from here on: the name may be another volume's by then.
    let copied = locked(context, &asked, &image, &volume.id).await;
    if copied.is_err() && created {
        let name = &asked.name;
        match insist(context, &Call::to(Op::VolumeDelete, &[&volume.id])).await {
            Ok(()) => context.out.note(&format!("volume {name} was removed again")),
            Err(problem) => {
                let why = problem.detail;
                context.out.note(&format!("volume {name} could not be removed again: {why}"));
            }
        }
    }
    copied
}

/// Copies while the volume is locked for it.
async fn locked(context: &Context, asked: &Import, image: &Image, id: &str) -> Run {
    let lock = lock(context, asked, image, id).await?;
    if context.globals.dry_run {
        let (name, file) = (&asked.name, asked.file.display());
        context.out.note(&format!("volume {name} can hold {file}"));
        return Ok(());
    }
    let copied = copy_in(context, asked, image, &lock).await;
    if copied.is_err() {
        context.out.note(&format!("volume {} holds a part of the image", asked.name));
    }
    let unlock = Call::to(Op::VolumeUnlock, &[id]).query("token", &lock.token);
    if let Err(problem) = insist(context, &unlock).await {
        let (name, why) = (&asked.name, problem.detail);
        context.out.note(&format!("the lock of volume {name} could not be given back: {why}"));
        context.out.note("it ends by itself a minute after its last client");
    }
    copied
}

/// Has the volume locked and emptied; asks first if it holds data.
async fn lock(
    context: &Context,
    asked: &Import,
    image: &Image,
    id: &str,
) -> Result<types::VolumeLock, Failure> {
    let request = |replace| {
        let wanted = types::VolumeLockRequest {
            purpose: types::LockPurpose::Import,
            replace,
            min_size_bytes: image.bytes,
        };
        context.change(Call::to(Op::VolumeLock, &[id])).json(&wanted)
    };
    let sure = context.globals.yes || context.globals.dry_run;
    let locked = match context.client.item(request(sure)).await {
        Err(problem) if problem.code == Code::WouldRiskData && !sure => {
            let name = &asked.name;
            context.confirm(&format!("{}: it will be replaced?", problem.detail)).await.map_err(
                |failure| match failure {
                    Failure::Problem(mut problem) if problem.hint.is_some() => {
                        problem.hint = Some(format!("--yes replaces what volume {name} holds"));
                        Failure::Problem(problem)
                    }
                    other => other,
                },
            )?;
            context.client.item(request(true)).await
        }
        other => other,
    };
    locked.map(|locked| locked.item).map_err(|problem| match problem.code {
        Code::BadSize => {
            let (file, is) = (asked.file.display(), iec(image.bytes));
            let detail = format!("{file} is too large ({is}): {}", problem.detail);
            Problem { detail, ..problem }.into()
        }
        _ => problem.into(),
    })
}

async fn copy_in(
    context: &Context,
    asked: &Import,
    image: &Image,
    lock: &types::VolumeLock,
) -> Run {
    let target = export_of(&lock.volume, &lock.exports)?;
    let mut command = qemu_img();
    // What the server has emptied reads as zeros: holes need not be written.
    command.args(["convert", "-p", "-n", "-W", "--target-is-zero", "-m", PARALLEL]);
    command.args(["-t", "writeback", "-f", image.format.name(), "-O", "raw"]);
    command.arg(plain(&asked.file)).arg(&target);
    copy(context, command, &format!("import {}", asked.name), image.bytes).await?;
    if asked.verify {
        let mut command = qemu_img();
        // It compares what lies behind the image's end with zeros.
        command.args(["compare", "-p", "-f", image.format.name(), "-F", "raw"]);
        command.arg(plain(&asked.file)).arg(&target);
        copy(context, command, &format!("verify {}", asked.name), image.bytes).await?;
    }
    let copied = Copied {
        volume: asked.name.clone(),
        file: asked.file.display().to_string(),
        format: image.format.name(),
        bytes: image.bytes,
        volume_bytes: lock.size_bytes,
        verified: asked.verify,
    };
    done(context, copied)
}

/// A change that is refused as long as our own client is still on its way out.
async fn insist(context: &Context, call: &Call) -> Result<(), Problem> {
    let deadline = tokio::time::Instant::now() + OURS_LEAVES;
    loop {
        match context.client.bytes(call.clone()).await {
            Ok(_) => return Ok(()),
            Err(problem)
                if problem.code == Code::InUse && tokio::time::Instant::now() < deadline =>
            {
                tokio::time::sleep(TRY_EVERY).await;
            }
            Err(problem) => return Err(problem),
        }
    }
}

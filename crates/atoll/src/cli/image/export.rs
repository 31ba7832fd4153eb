//! `atoll volume export`.

use super::tool::{PARALLEL, copy, qemu_img};
use super::{Copied, done, export_of, find, plain};
use crate::cli::args::ImageFormat;
use crate::cli::commands::checked;
use crate::cli::context::Context;
use crate::cli::out::Run;
use atoll_api::{Code, Problem};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::io;
use std::path::{Path, PathBuf};

/// What `volume export` was asked.
pub struct Export {
    pub name: String,
    pub file: PathBuf,
    pub format: Option<ImageFormat>,
    pub force: bool,
    pub verify: bool,
}

/// `atoll volume export`.
///
/// # Errors
/// See the head of this file; the message names the file or the volume.
pub async fn export(context: &Context, asked: Export) -> Run {
    let volume = find(context, checked("volume", &asked.name)?).await?;
    let source = export_of(&asked.name, &volume.exports)?;
    let shown = asked.file.display();
    let cannot = |e: io::Error| Problem::new(Code::LocalFile, format!("{shown}: {e}"));
    match std::fs::symlink_metadata(&asked.file) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(cannot(e).into()),
        Ok(meta) if !meta.is_file() => {
            let detail = format!("{shown} exists and is not a regular file");
            return Err(Problem::new(Code::LocalFile, detail).into());
        }
        Ok(_) if !asked.force => {
            let detail = format!("{shown} exists");
            return Err(Problem::new(Code::WouldRiskData, detail)
                .hint("--force replaces it")
                .into());
        }
        Ok(_) => {}
    }
    let qcow2 = asked.file.extension().is_some_and(|e| e.eq_ignore_ascii_case("qcow2"));
    let by_name = if qcow2 { ImageFormat::Qcow2 } else { ImageFormat::Raw };
    let format = asked.format.unwrap_or(by_name);
    if context.globals.dry_run {
        let name = &asked.name;
        context.out.note(&format!("volume {name} would be copied to {shown} ({})", format.name()));
        return Ok(());
    }
    let mut partial = asked.file.clone().into_os_string();
    partial.push(format!(".partial-{}", std::process::id()));
    let partial = PathBuf::from(partial);
    let copied = copy_out(context, &asked, &source, format, volume.size_bytes, &partial).await;
    if copied.is_err() {
        let _ = std::fs::remove_file(&partial);
    }
    copied?;
    let copied = Copied {
        volume: asked.name,
        file: asked.file.display().to_string(),
        format: format.name(),
        bytes: volume.size_bytes,
        volume_bytes: volume.size_bytes,
        verified: asked.verify,
    };
    done(context, copied)
}

async fn copy_out(
    context: &Context,
    asked: &Export,
    source: &str,
    format: ImageFormat,
    bytes: u64,
    partial: &Path,
) -> Run {
    let cannot =
        |e: io::Error| Problem::new(Code::LocalFile, format!("{}: {e}", asked.file.display()));
    // Made here, so that a missing or full directory is named as such.
    std::fs::File::create(partial).map_err(cannot)?;
    let mut command = qemu_img();
    command.args(["convert", "-p", "-m", PARALLEL, "-W", "-f", "raw", "-O", format.name()]);
    command.arg(source).arg(plain(partial));
    copy(context, command, &format!("export {}", asked.name), bytes).await?;
    if asked.verify {
        let mut command = qemu_img();
        command.args(["compare", "-p", "-f", format.name(), "-F", "raw"]);
        command.arg(plain(partial)).arg(source);
        copy(context, command, &format!("verify {}", asked.name), bytes).await?;
    }
    let store = || {
        std::fs::File::open(partial)?.sync_all()?;
        // What has come there meanwhile stays, unless --force was given.
        let flags = match asked.force {
            true => RenameFlags::empty(),
            false => RenameFlags::NOREPLACE,
        };
        renameat_with(CWD, partial, CWD, &asked.file, flags)?;
        let parent = asked.file.parent().filter(|p| !p.as_os_str().is_empty());
        std::fs::File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
    };
    store().map_err(|e| cannot(e).into())
}

//! Looks at an image before anything is done with it.

use super::foreign::{self, line, recognise};
use super::qcow2::{self, Header};
use super::tool::{answer, is_installed};
use crate::cli::args::ImageFormat;
use atoll_api::{Code, Problem};
use atoll_format::units::{OBJECT_MAX, SECTOR, iec};
use serde::Deserialize;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

/// An image that was looked at and found good.
pub struct Image {
    pub format: ImageFormat,
    /// Of the disk in it.
    pub bytes: u64,
    /// What whoever asked should know.
    pub note: Option<String>,
}

/// What `qemu-img check` says.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Check {
    #[serde(default)]
    corruptions: u64,
    #[serde(default)]
    check_errors: u64,
}

fn bad(file: &Path, why: &str) -> Problem {
    Problem::new(Code::BadImage, format!("{}: {why}", file.display()))
}

/// Looks at `file`; its content decides what it is, unless that was said.
///
/// # Errors
/// What is wrong with it, with the command that mends it where there is one.
pub async fn look(file: &Path, said: Option<ImageFormat>) -> Result<Image, Problem> {
    if file == OsStr::new("-") {
        let detail = "images are copied from files, not from standard input";
        return Err(Problem::new(Code::Usage, detail).hint("save it to a file first"));
    }
    let path = file.to_owned();
    // It may be large, or on a slow disk.
    let image = tokio::task::spawn_blocking(move || look_at(&path, said))
        .await
        .map_err(|e| Problem::new(Code::Failed, format!("{}: {e}", file.display())))??;
    match image.format {
        ImageFormat::Raw => is_installed().await?,
        ImageFormat::Qcow2 => check_counts(file).await?,
    }
    Ok(image)
}

fn look_at(file: &PathBuf, said: Option<ImageFormat>) -> Result<Image, Problem> {
    let local = |e: io::Error| Problem::new(Code::LocalFile, format!("{}: {e}", file.display()));
    let meta = std::fs::metadata(file).map_err(local)?;
    let device = meta.file_type().is_block_device();
    if !meta.is_file() && !device {
        let detail = format!("{} is not a file or block device", file.display());
        return Err(Problem::new(Code::LocalFile, detail));
    }
    let mut opened = File::open(file).map_err(local)?;
    let len = opened.seek(SeekFrom::End(0)).map_err(local)?;
    let part = |at: u64, most: usize| {
        let mut bytes = vec![0; (len - at).min(most as u64) as usize];
        opened.read_exact_at(&mut bytes, at).map_err(local).map(|()| bytes)
    };
    let head = part(0, foreign::HEAD)?;
    let tail = part(len.saturating_sub(foreign::TAIL as u64), foreign::TAIL)?;
    let other = recognise(&head, &tail, file);
    let is_qcow2 = other.is_none() && head.starts_with(qcow2::MAGIC);
    let image = match said {
        Some(format) => {
            let what = other.map(|other| other.why).or(is_qcow2.then(|| "it is qcow2".into()));
            let note = match (format, what) {
                (ImageFormat::Raw, Some(what)) => Some(format!(
                    "{}: {what}; with --format raw every byte of it is copied as it is",
                    file.display()
                )),
                (ImageFormat::Qcow2, Some(what)) if !is_qcow2 => {
                    return Err(bad(file, &format!("{what}, and not qcow2")));
                }
                _ => None,
            };
            Image { format, bytes: len, note }
        }
        None => match other {
            Some(other) => return Err(bad(file, &other.why).hint(line(&other.way, file))),
            None if is_qcow2 => Image { format: ImageFormat::Qcow2, bytes: len, note: None },
            None => Image { format: ImageFormat::Raw, bytes: len, note: None },
        },
    };
    let image = match image.format {
        ImageFormat::Raw => image,
        ImageFormat::Qcow2 => {
            let refuse = |r: qcow2::Refused| bad(file, &r.why).hint(line(r.way, file));
            let header = Header::read(&head).map_err(refuse)?;
            header.check_whole(&opened, len).map_err(local)?.map_err(refuse)?;
            Image { bytes: header.size, ..image }
        }
    };
    check_size(file, image)
}

fn check_size(file: &Path, image: Image) -> Result<Image, Problem> {
    let bytes = image.bytes;
    if bytes == 0 {
        return Err(bad(file, "it is empty"));
    }
    if bytes > OBJECT_MAX {
        let (is, max) = (iec(bytes), iec(OBJECT_MAX));
        return Err(bad(file, &format!("it is {is} large, a volume at most {max}")));
    }
    if !bytes.is_multiple_of(SECTOR) {
        let why =
            format!("{bytes} bytes are not a multiple of 512: it is cut short, or no raw disk");
        let pad = line("truncate -s %512 FILE", file);
        return Err(bad(file, &why)
            .hint(format!("fetch it again; if it is a raw disk, this pads it: {pad}")));
    }
    Ok(image)
}

/// Refuses a qcow2 image whose tables and reference counts contradict each other.
async fn check_counts(file: &Path) -> Result<(), Problem> {
    let (code, json, said) = answer(&["check", "--output=json", "-f", "qcow2"], file).await?;
    let check: Check = serde_json::from_slice(&json)
        .map_err(|_| bad(file, if said.is_empty() { "qemu-img cannot check it" } else { &said }))?;
    // 0: good; 3: leaked clusters, which harm nothing.
    if !matches!(code, Some(0 | 3)) || check.corruptions > 0 || check.check_errors > 0 {
        let many = check.corruptions.max(check.check_errors);
        let cut =
            if said.contains("exceeding the end of the file") { ": it is cut short" } else { "" };
        return Err(bad(file, &format!("qemu-img check finds {many} errors{cut}"))
            .hint(format!("fetch it again; else {}", line("qemu-img check -r all FILE", file))));
    }
    Ok(())
}

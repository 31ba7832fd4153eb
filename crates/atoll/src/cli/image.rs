//! Copies disk images into volumes and out of them, by `qemu-img` over the daemon's NBD socket.
//!
//! Invariants: an image that is damaged, cut short, or refers to other files is refused before
//! anything is created or written; a volume in use is never written; a failed or interrupted
//! import removes the volume that it created, a failed or interrupted export leaves no file under
//! the name that was asked for, and none beside it.

use super::args::ImageFormat;
use super::commands::segment;
use super::out::{Format, Out, Run};
use super::{Context, interrupted, or_interrupt};
use atoll_api::client::Call;
use atoll_api::envelope::{Item, List, Named};
use atoll_api::name::show;
use atoll_api::routes::PREFIX;
use atoll_api::types;
use atoll_api::{Code, Problem};
use atoll_format::units::{BLOCK, OBJECT_MAX, SECTOR, iec};
use hyper::Method;
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::io::{self, IsTerminal};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};

/// Requests that qemu-img keeps in flight.
const PARALLEL: &str = "8";
/// How long our own client may still be seen after it has ended: its requests are being finished.
const OURS_LEAVES: Duration = Duration::from_secs(10);
/// How long somebody else's client may take to go before the volume counts as in use.
const OTHERS_LEAVE: Duration = Duration::from_secs(2);
/// How often that is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Bytes of qemu-img's messages that are kept.
const SAID_MAX: usize = 4096;
/// Bytes of qemu-img's answers (information, checks) that are read.
const ANSWER_MAX: u64 = 1 << 20;

/// What `volume import` was asked.
pub struct Import {
    pub name: String,
    pub file: PathBuf,
    pub format: Option<ImageFormat>,
    pub policy: Option<String>,
    pub existing: bool,
    pub verify: bool,
}

/// What `volume export` was asked.
pub struct Export {
    pub name: String,
    pub file: PathBuf,
    pub format: Option<ImageFormat>,
    pub force: bool,
    pub verify: bool,
}

/// The end of a copy, for machines.
#[derive(Serialize)]
struct Copied {
    volume: String,
    file: String,
    format: &'static str,
    bytes: u64,
    verified: bool,
}

impl Named for Copied {
    const KIND: &'static str = "Copied";
}

/// An image that was looked at and found good.
struct Image {
    format: ImageFormat,
    bytes: u64,
}

/// What `qemu-img info` says.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Info {
    virtual_size: u64,
    format: String,
    #[serde(default)]
    cluster_size: u64,
    #[serde(default)]
    backing_filename: Option<String>,
    #[serde(default)]
    format_specific: Option<Specific>,
}

#[derive(Deserialize)]
struct Specific {
    #[serde(default)]
    data: SpecificData,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct SpecificData {
    #[serde(default)]
    data_file: Option<String>,
    #[serde(default)]
    corrupt: bool,
    #[serde(default)]
    encrypt: Option<serde_json::Value>,
}

/// What `qemu-img check` says.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Check {
    #[serde(default)]
    image_end_offset: u64,
    #[serde(default)]
    corruptions: u64,
    #[serde(default)]
    check_errors: u64,
    #[serde(default)]
    compressed_clusters: u64,
}

/// `atoll volume import`.
///
/// # Errors
/// See the head of this file; the message names the image or the volume.
pub async fn import(context: &Context, asked: Import) -> Run {
    let path = format!("/volumes/{}", segment("volume", &asked.name)?);
    let work = look(&asked.file, asked.format);
    let image = or_interrupt(&context.interrupt, work).await.ok_or_else(|| interrupted(None))??;
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
    let target = export_of(volume)?;
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
    done(context, &asked.name, &asked.file, image.format, image.bytes, asked.verify)
}

/// `atoll volume export`.
///
/// # Errors
/// See the head of this file; the message names the file or the volume.
pub async fn export(context: &Context, asked: Export) -> Run {
    let path = format!("/volumes/{}", segment("volume", &asked.name)?);
    let volume = find(context, &path).await?;
    let source = export_of(&volume)?;
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
    done(context, &asked.name, &asked.file, format, volume.size_bytes, asked.verify)
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
        std::fs::rename(partial, &asked.file)?;
        let parent = asked.file.parent().filter(|p| !p.as_os_str().is_empty());
        std::fs::File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
    };
    store().map_err(|e| cannot(e).into())
}

fn done(
    context: &Context,
    volume: &str,
    file: &Path,
    format: ImageFormat,
    bytes: u64,
    verified: bool,
) -> Run {
    let copied = Copied {
        volume: volume.to_owned(),
        file: file.display().to_string(),
        format: format.name(),
        bytes,
        verified,
    };
    match context.out.format {
        Format::Table | Format::Wide => {
            let note = if verified { ", verified" } else { "" };
            context.out.note(&format!("{} copied{note}", iec(bytes)));
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
        Format::Name => context.out.data(&format!("{volume}\n")),
    }
}

async fn find(context: &Context, path: &str) -> Result<types::Volume, Problem> {
    let call = Call::get(format!("{PREFIX}{path}"));
    Ok(context.client.item::<types::Volume>(call).await?.item)
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

/// Where qemu-img reaches the volume.
fn export_of(volume: &types::Volume) -> Result<String, Problem> {
    let name = &volume.name;
    let local = volume.exports.iter().find(|uri| {
        let socket = uri.strip_prefix("nbd+unix:").and_then(|rest| rest.split_once("?socket="));
        socket.is_some_and(|(_, path)| {
            std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_socket())
        })
    });
    let any = local.or_else(|| volume.exports.iter().find(|uri| uri.starts_with("nbd:")));
    any.cloned().ok_or_else(|| {
        Problem::new(
            Code::Unavailable,
            format!("volume {name} cannot be reached over NBD from here"),
        )
        .hint("run this on the daemon's machine, or set frontends.nbd in its configuration")
    })
}

/// A path that qemu-img takes for a file, whatever it is called (`a:b`, `-x`).
fn plain(path: &Path) -> PathBuf {
    if path.is_absolute() { path.into() } else { Path::new(".").join(path) }
}

fn qemu_img() -> Command {
    let mut command = Command::new("qemu-img");
    // Ctrl-C reaches us alone: we decide what becomes of it.
    command.process_group(0).kill_on_drop(true).stdin(Stdio::null());
    command.env("LC_ALL", "C");
    command
}

fn spawn(command: &mut Command) -> Result<Child, Problem> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(|e| {
        if e.kind() == io::ErrorKind::NotFound {
            Problem::new(Code::MissingProgram, "qemu-img is not installed")
                .hint("apt-get install qemu-utils")
        } else {
            Problem::new(Code::MissingProgram, format!("qemu-img cannot be started: {e}"))
        }
    })
}

/// Runs a command of qemu-img that answers with JSON.
async fn answer(words: &[&str], file: &Path) -> Result<(Option<i32>, Vec<u8>, String), Problem> {
    let mut command = qemu_img();
    let mut child = spawn(command.args(words).arg(plain(file)))?;
    let (mut stdout, stderr) = (Vec::new(), child.stderr.take());
    let pipe = child.stdout.take().expect("piped above").take(ANSWER_MAX);
    let mut pipe = pipe;
    let (read, said) = tokio::join!(pipe.read_to_end(&mut stdout), listen(stderr));
    drop(pipe);
    let status = child.wait().await;
    let failed = |e: io::Error| Problem::new(Code::Failed, format!("qemu-img: {e}"));
    read.map_err(failed)?;
    Ok((status.map_err(failed)?.code(), stdout, said))
}

/// The beginning of what a stream says; the rest is read and dropped.
async fn listen(stream: Option<impl AsyncRead + Unpin>) -> String {
    let Some(mut stream) = stream else { return String::new() };
    let mut said = Vec::new();
    let mut chunk = [0; 1024];
    while let Ok(1..) = stream.read(&mut chunk).await.inspect(|&n| {
        let room = SAID_MAX.saturating_sub(said.len());
        said.extend_from_slice(&chunk[..n.min(room)]);
    }) {}
    let text = String::from_utf8_lossy(&said);
    text.lines().next().unwrap_or("").trim_start_matches("qemu-img: ").to_owned()
}

/// Looks at an image.
async fn look(file: &Path, format: Option<ImageFormat>) -> Result<Image, Problem> {
    let shown = file.display();
    if file == OsStr::new("-") {
        let detail = "images are copied from files, not from standard input";
        return Err(Problem::new(Code::Usage, detail).hint("save it to a file first"));
    }
    let meta = std::fs::metadata(file)
        .and_then(|meta| std::fs::File::open(file).map(|_| meta))
        .map_err(|e| Problem::new(Code::LocalFile, format!("{shown}: {e}")))?;
    let device = meta.file_type().is_block_device();
    if !meta.is_file() && !device {
        let detail = format!("{shown} is not a file or block device");
        return Err(Problem::new(Code::LocalFile, detail));
    }
    let bad = |why: String| Problem::new(Code::BadImage, format!("{shown}: {why}"));
    let mut words = vec!["info", "--output=json"];
    if let Some(format) = format {
        words.extend(["-f", format.name()]);
    }
    let (code, json, said) = answer(&words, file).await?;
    if code != Some(0) {
        return Err(bad(said).hint("--format says what it is"));
    }
    let info: Info =
        serde_json::from_slice(&json).map_err(|e| bad(format!("qemu-img info says: {e}")))?;
    let format = match info.format.as_str() {
        "raw" => ImageFormat::Raw,
        "qcow2" => ImageFormat::Qcow2,
        other => {
            return Err(bad(format!("format {} is not raw or qcow2", show(other)))
                .hint("qemu-img convert -O qcow2 turns it into one"));
        }
    };
    let specific = info.format_specific.map(|specific| specific.data).unwrap_or_default();
    let other = info.backing_filename.or(specific.data_file);
    if let Some(other) = other {
        return Err(bad(format!("it needs another file, {}", show(&other)))
            .hint("'qemu-img convert -O qcow2' makes one whole file of both"));
    }
    if specific.encrypt.is_some() {
        return Err(bad("it is encrypted".into()).hint("qemu-img convert can decrypt it"));
    }
    if specific.corrupt {
        return Err(bad("it is marked as corrupt".into()).hint("qemu-img check -r all"));
    }
    if info.virtual_size == 0 {
        return Err(bad("it is empty".into()));
    }
    if info.virtual_size > OBJECT_MAX {
        let (is, max) = (iec(info.virtual_size), iec(OBJECT_MAX));
        return Err(bad(format!("it is {is} large, a volume at most {max}")));
    }
    match format {
        ImageFormat::Raw if !device && meta.len() % SECTOR != 0 => {
            let len = meta.len();
            Err(bad(format!("{len} bytes are not a multiple of 512: it is cut short"))
                .hint("fetch it again, or pad it: truncate -s %512 FILE"))
        }
        ImageFormat::Raw => Ok(Image { format, bytes: info.virtual_size }),
        ImageFormat::Qcow2 => {
            check_qcow2(file, meta.len(), info.cluster_size, device).await?;
            Ok(Image { format, bytes: info.virtual_size })
        }
    }
}

/// Refuses a qcow2 image that is damaged, or shorter than what it refers to.
async fn check_qcow2(file: &Path, len: u64, cluster: u64, device: bool) -> Result<(), Problem> {
    let bad = |why: String| Problem::new(Code::BadImage, format!("{}: {why}", file.display()));
    let (code, json, said) = answer(&["check", "--output=json", "-f", "qcow2"], file).await?;
    let check: Check = serde_json::from_slice(&json).map_err(|_| {
        bad(if said.is_empty() { "it cannot be checked".into() } else { said.clone() })
    })?;
    // 0: good; 3: leaked clusters, which harm nothing.
    if !matches!(code, Some(0 | 3)) || check.corruptions > 0 || check.check_errors > 0 {
        let many = check.corruptions.max(check.check_errors);
        let cut =
            if said.contains("exceeding the end of the file") { ": it is cut short" } else { "" };
        return Err(bad(format!("qemu-img check finds {many} errors{cut}")).hint("fetch it again"));
    }
    // The last cluster of a good image is whole, unless its clusters are compressed.
    if !device && check.image_end_offset > len {
        let short = check.image_end_offset - len;
        if check.compressed_clusters == 0 || short >= cluster {
            return Err(bad(format!("it is cut short: {short} bytes are missing at its end"))
                .hint("fetch it again"));
        }
    }
    Ok(())
}

/// Runs a copy to its end, or to Ctrl-C; shows how far it is.
async fn copy(context: &Context, mut command: Command, title: &str, bytes: u64) -> Run {
    let mut child = spawn(&mut command)?;
    let progress = Progress::new(&context.out, title, bytes);
    let stdout = child.stdout.take();
    let stderr = child.stderr.take();
    let work = async {
        let (shown, said) = tokio::join!(progress.follow(stdout), listen(stderr));
        (child.wait().await, shown, said)
    };
    let Some((status, shown, said)) = or_interrupt(&context.interrupt, work).await else {
        let _ = child.kill().await;
        progress.end();
        return Err(interrupted(None));
    };
    progress.end();
    match status {
        Ok(status) if status.success() => shown,
        Ok(status) => {
            let why = match (status.code(), said.is_empty()) {
                (Some(1), true) => "the image and the volume differ".into(),
                (_, false) => said,
                (_, true) => status.to_string(),
            };
            Err(Problem::new(Code::Failed, format!("{title}: {why}")).into())
        }
        Err(e) => Err(Problem::new(Code::Failed, format!("{title}: {e}")).into()),
    }
}

/// How far a copy is: a bar on a terminal, a line per tenth elsewhere, JSON lines for machines.
struct Progress<'a> {
    out: &'a Out,
    title: String,
    bytes: u64,
    bar: Option<ProgressBar>,
}

impl<'a> Progress<'a> {
    fn new(out: &'a Out, title: &str, bytes: u64) -> Self {
        let people = matches!(out.format, Format::Table | Format::Wide);
        let bar = (people && !out.quiet && io::stderr().is_terminal()).then(|| {
            let style = "{msg} {wide_bar} {percent:>3} %  {bytes}/{total_bytes}  \
                         {decimal_bytes_per_sec}  {eta}";
            let bar = ProgressBar::new(bytes).with_message(title.to_owned());
            bar.set_style(ProgressStyle::with_template(style).expect("a tested template"));
            bar
        });
        Self { out, title: title.to_owned(), bytes, bar }
    }

    /// Reads qemu-img's progress to its end.
    async fn follow(&self, stream: Option<impl AsyncRead + Unpin>) -> Run {
        let Some(mut stream) = stream else { return Ok(()) };
        let mut shown = None;
        let mut text = Vec::new();
        let mut chunk = [0; 1024];
        let mut outcome = Ok(());
        loop {
            let n = match stream.read(&mut chunk).await {
                Ok(0) | Err(_) => return outcome,
                Ok(n) => n,
            };
            text.extend_from_slice(&chunk[..n]);
            let Some(hundredths) = last_progress(&text) else { continue };
            let keep = text.len().saturating_sub(64);
            text.drain(..keep);
            if let Some(bar) = &self.bar {
                bar.set_position(self.bytes / 10_000 * hundredths);
                continue;
            }
            // Tenths for people, whole percents for machines.
            let json = self.out.format == Format::Json;
            let step = if json { hundredths / 100 } else { hundredths / 1_000 };
            if shown.is_some_and(|shown| shown >= step) || outcome.is_err() {
                continue;
            }
            shown = Some(step);
            if json {
                outcome = self.line(step);
            } else if step > 0 {
                self.out.note(&format!("{} {} %", self.title, step * 10));
            }
        }
    }

    fn line(&self, percent: u64) -> Run {
        let line = serde_json::json!({
            "kind": "Progress", "version": 1, "task": self.title, "percent": percent,
            "bytes_done": self.bytes / 100 * percent, "bytes_total": self.bytes,
        });
        self.out.data(&format!("{line}\n"))
    }

    fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// The last `(12.34/100%)` of a text, in hundredths of a percent.
fn last_progress(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    let end = text.rfind("/100%)")?;
    let begin = text[..end].rfind('(')? + 1;
    let (whole, part) = text[begin..end].split_once('.')?;
    let value = whole.parse::<u64>().ok()? * 100 + part.get(..2)?.parse::<u64>().ok()?;
    Some(value.min(10_000))
}

#[cfg(test)]
mod tests {
    use super::last_progress;

    #[test]
    fn the_last_whole_progress_counts() {
        assert_eq!(last_progress(b"    (0.00/100%)\r    (12.34/100%)\r    (99.9"), Some(1234));
        assert_eq!(last_progress(b"    (100.00/100%)\r"), Some(10_000));
        assert_eq!(last_progress(b"    (1"), None);
        assert_eq!(last_progress(b""), None);
    }
}

//! Runs qemu-img.
//!
//! Invariants: it is told the format of every file and never guesses one; what it says is read to
//! the end, and bounded; it does not outlive the command.

use super::progress::Progress;
use crate::cli::context::{Context, interrupted, or_interrupt};
use crate::cli::out::Run;
use atoll_api::{Code, Problem};
use std::io;
use std::path::Path;
use std::process::Stdio;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};

/// Requests that it keeps in flight.
pub const PARALLEL: &str = "8";
/// Bytes of its messages that are kept.
const SAID_MAX: usize = 4096;
/// Bytes of its answers (checks) that are read.
const ANSWER_MAX: u64 = 1 << 20;

/// A command of it.
pub fn qemu_img() -> Command {
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
pub async fn answer(
    words: &[&str],
    file: &Path,
) -> Result<(Option<i32>, Vec<u8>, String), Problem> {
    let mut command = qemu_img();
    let mut child = spawn(command.args(words).arg(super::plain(file)))?;
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

/// Runs a copy to its end, or to Ctrl-C; shows how far it is.
pub async fn copy(context: &Context, mut command: Command, title: &str, bytes: u64) -> Run {
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

/// Whether it is there at all: nothing is created before that is known.
pub async fn is_installed() -> Result<(), Problem> {
    let mut child = spawn(qemu_img().arg("--version"))?;
    child.wait().await.map(|_| ()).map_err(|e| Problem::new(Code::Failed, format!("qemu-img: {e}")))
}

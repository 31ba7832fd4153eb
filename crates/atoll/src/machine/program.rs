//! Runs a program of the system for what it prints.
//!
//! Invariants: it is told of no terminal and no locale; it ends within [`WAIT_MAX`], and with the
//! command that started it; what it prints is read up to a bound.

use std::io::ErrorKind;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

/// How long a program may take.
pub const WAIT_MAX: Duration = Duration::from_secs(10);
/// Bytes that are read of what it says about its failure.
const SAID_MAX: u64 = 4 << 10;
/// Where programs are: an ordinary user's own path lacks half of these.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What `words` prints on standard output, and whether that was more than `bytes_max`: then it is
/// its beginning.
///
/// # Errors
/// Why it says nothing, one line: it is not installed, it failed, it did not end.
pub async fn output(words: &[&str], bytes_max: u64) -> Result<(Vec<u8>, bool), String> {
    let name = words[0];
    let mut command = Command::new(name);
    command.args(&words[1..]).env_clear().env("PATH", PATH).env("LC_ALL", "C").kill_on_drop(true);
    // Ctrl-C reaches us alone, and ends it with us.
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|e| match e.kind() {
        ErrorKind::NotFound => format!("{name} is not installed"),
        _ => format!("{name} cannot be started: {e}"),
    })?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let work = async {
        let (out, said) = tokio::join!(read(stdout, bytes_max + 1), read(stderr, SAID_MAX));
        // With its pipes closed it ends, whatever it still had to say.
        (out, said, child.wait().await)
    };
    let late = |_| format!("{name} did not end within {} s", WAIT_MAX.as_secs());
    let (mut out, said, status) = tokio::time::timeout(WAIT_MAX, work).await.map_err(late)?;
    let cut = out.len() as u64 > bytes_max;
    let status = status.map_err(|e| format!("{name}: {e}"))?;
    if !status.success() && !cut {
        let said = String::from_utf8_lossy(&said);
        let why =
            said.lines().find(|line| !line.trim().is_empty()).unwrap_or("it does not say why");
        return Err(format!("{name} failed: {}", why.trim()));
    }
    out.truncate(bytes_max as usize);
    Ok((out, cut))
}

async fn read(stream: Option<impl AsyncRead + Unpin>, bytes_max: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        // What was read before an error is worth having.
        let _ = stream.take(bytes_max).read_to_end(&mut bytes).await;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::output;

    #[tokio::test]
    async fn a_program_is_read_up_to_a_bound_and_its_failure_is_told() {
        let printed = async |words: &[&str], bytes| output(words, bytes).await;
        assert_eq!(printed(&["echo", "abc"], 9).await, Ok((b"abc\n".to_vec(), false)));
        assert_eq!(printed(&["echo", "abc"], 2).await, Ok((b"ab".to_vec(), true)));
        assert_eq!(printed(&["yes"], 4).await, Ok((b"y\ny\n".to_vec(), true)));
        let none = printed(&["no-such-program"], 9).await.unwrap_err();
        assert_eq!(none, "no-such-program is not installed");
        let failed = printed(&["sh", "-c", "echo; echo refused >&2; exit 3"], 9).await.unwrap_err();
        assert_eq!(failed, "sh failed: refused");
        let of_ours = printed(&["sh", "-c", "echo $HOME$ATOLL_ENDPOINT"], 9).await;
        assert_eq!(of_ours, Ok((b"\n".to_vec(), false)), "no variable of ours");
    }
}

//! Processes of the supervisor: started, signalled, recognised after a crash.
//!
//! Invariant: a signal is sent only to a child that has not been waited for, or to a pid whose
//! start time is the one that was written down with it.

use atoll_api::{Code, Problem};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::process::{Child, Command};

/// The name of the directory's process.
pub const DIRECTORY: &str = "directory";
/// How long a process may take to stop.
pub const STOP_WAIT: Duration = Duration::from_secs(12);
/// Bytes at the end of a log that are looked at for the reason of a death.
const TAIL: u64 = 8 << 10;

/// A running child.
#[derive(Debug)]
pub struct Process {
    child: Child,
    pid_file: PathBuf,
}

impl Process {
    /// Starts this program with `words`, its output appended to `dir/log`, its pid in `dir/pid`.
    ///
    /// # Errors
    /// [`Code::LocalFile`], [`Code::Failed`].
    pub fn start(dir: &Path, words: &[&std::ffi::OsStr]) -> Result<Self, Problem> {
        let log = dir.join("log");
        let failed =
            |e: std::io::Error| Problem::new(Code::LocalFile, format!("{}: {e}", log.display()));
        let out =
            std::fs::OpenOptions::new().create(true).append(true).open(&log).map_err(failed)?;
        let err = out.try_clone().map_err(failed)?;
        let program = std::env::current_exe()
            .map_err(|e| Problem::new(Code::Failed, format!("this program's file: {e}")))?;
        let mut command = Command::new(program);
        // Its own group: Ctrl-C in the terminal reaches the supervisor, which stops the rest.
        command.args(words).stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);
        for (name, _) in std::env::vars_os() {
            // What configures this process is not meant for every host.
            if name.to_str().is_some_and(|name| name.starts_with("ATOLL_")) {
                command.env_remove(name);
            }
        }
        let child = command
            .spawn()
            .map_err(|e| Problem::new(Code::Failed, format!("a process cannot be started: {e}")))?;
        let process = Self { child, pid_file: dir.join("pid") };
        let pid = process.pid().expect("a child that was not waited for has a pid");
        let text = format!("{pid} {}\n", start_time(pid).unwrap_or(0));
        std::fs::write(&process.pid_file, text).map_err(|e| {
            Problem::new(Code::LocalFile, format!("{}: {e}", process.pid_file.display()))
        })?;
        Ok(process)
    }

    /// Its pid, until it was found to have ended.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// How it ended, if it did.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.try_wait().ok().flatten()?;
        let _ = std::fs::remove_file(&self.pid_file);
        Some(status)
    }

    /// SIGTERM, if it still runs.
    pub fn terminate(&self) {
        if let Some(pid) = self.pid().and_then(|pid| Pid::from_raw(pid as i32)) {
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    /// SIGKILL, and waits until it is gone.
    pub async fn kill(&mut self) {
        let _ = self.child.kill().await;
        let _ = std::fs::remove_file(&self.pid_file);
    }

    /// SIGTERM, then, if it takes too long, SIGKILL; returns once it is gone.
    pub async fn stop(&mut self) {
        self.terminate();
        match tokio::time::timeout(STOP_WAIT, self.child.wait()).await {
            Ok(_) => {
                let _ = std::fs::remove_file(&self.pid_file);
            }
            Err(_) => self.kill().await,
        }
    }
}

/// When a process started, in clock ticks since the machine did; none if there is no such pid.
fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain anything; field 22 is the 20th behind it.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    if state == "Z" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// The pid in `file`, if that very process still runs.
fn recorded(file: &Path) -> Option<u32> {
    let text = std::fs::read_to_string(file).ok()?;
    let mut words = text.split_whitespace();
    let pid: u32 = words.next()?.parse().ok()?;
    let started: u64 = words.next()?.parse().ok()?;
    (start_time(pid) == Some(started)).then_some(pid)
}

/// Ends what a killed supervisor has left below `dir`; how many there were.
///
/// # Errors
/// One of them does not end.
pub async fn end_leftovers(dir: &Path) -> Result<usize, Problem> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Ok(0) };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let file = entry.path().join("pid");
        match recorded(&file) {
            Some(pid) => found.push((pid, file)),
            None => {
                let _ = std::fs::remove_file(file);
            }
        }
    }
    for (step, signal) in [(0, Signal::TERM), (1, Signal::KILL)] {
        for (pid, file) in &found {
            if recorded(file) == Some(*pid)
                && let Some(pid) = Pid::from_raw(*pid as i32)
            {
                let _ = kill_process(pid, signal);
            }
        }
        for _ in 0..STOP_WAIT.as_millis() / 50 {
            if !found.iter().any(|(pid, file)| recorded(file) == Some(*pid)) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let left = found.iter().find(|(pid, file)| recorded(file) == Some(*pid));
        match left {
            None => break,
            Some((pid, file)) if step == 1 => {
                let detail = format!("process {pid} ({}) does not end", file.display());
                return Err(Problem::new(Code::Failed, detail));
            }
            Some(_) => {}
        }
    }
    for (_, file) in &found {
        let _ = std::fs::remove_file(file);
    }
    Ok(found.len())
}

/// The end of a file, as text.
pub fn tail(path: &Path) -> String {
    let read = || {
        let mut file = std::fs::File::open(path)?;
        let len = file.metadata()?.len();
        file.seek(SeekFrom::Start(len.saturating_sub(TAIL)))?;
        let mut bytes = Vec::new();
        file.take(TAIL).read_to_end(&mut bytes)?;
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&bytes).into_owned())
    };
    read().unwrap_or_default()
}

/// The error that a log ends with, or `otherwise` with a pointer to the log.
pub fn said(log: &Path, otherwise: &str) -> Problem {
    let text = tail(log);
    let error = text.lines().rev().find_map(|line| line.strip_prefix("error["));
    let parsed = error.and_then(|line| line.split_once("]: "));
    let Some((code, detail)) = parsed else {
        return Problem::new(Code::Failed, otherwise).hint(format!("see {}", log.display()));
    };
    let code =
        serde_json::from_value(serde_json::Value::String(code.into())).unwrap_or(Code::Failed);
    let hint = text.lines().rev().find_map(|line| line.strip_prefix("hint: "));
    let problem = Problem::new(code, detail);
    match hint {
        Some(hint) => problem.hint(hint),
        None => problem.hint(format!("see {}", log.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::{recorded, start_time};

    #[test]
    fn a_pid_is_believed_only_with_its_start_time() {
        let me = std::process::id();
        let started = start_time(me).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        std::fs::write(&file, format!("{me} {started}\n")).unwrap();
        assert_eq!(recorded(&file), Some(me));
        std::fs::write(&file, format!("{me} {}\n", started + 1)).unwrap();
        assert_eq!(recorded(&file), None);
        for rubbish in ["", "x y", "4294967295 1", &format!("{me}")] {
            std::fs::write(&file, rubbish).unwrap();
            assert_eq!(recorded(&file), None, "{rubbish:?}");
        }
    }
}

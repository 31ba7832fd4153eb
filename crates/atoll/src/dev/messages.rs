//! What commands and the supervisor say to each other, and how a process is shown.

use crate::cli::out::Row;
use atoll_api::Problem;
use atoll_api::envelope::Named;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The longest message on the control socket, in bytes: 16 hosts of 1 KiB.
pub(super) const MESSAGE_MAX: u64 = 64 << 10;
/// How often something is looked at again.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What the supervisor is asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "do")]
pub(super) enum SupervisorRequest {
    /// How everything is.
    Status,
    /// SIGKILL.
    Kill { name: String },
    /// SIGTERM, and wait.
    Stop { name: String },
    /// Start what does not run.
    Start { name: String },
    /// Stop everything and end.
    StopAll,
}

/// What it answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "is")]
pub(super) enum SupervisorReply {
    Done { processes: Vec<DevProcess>, serving: bool },
    Failed { problem: Box<Problem> },
}

/// How a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum State {
    /// It runs.
    Running,
    /// It was stopped.
    Stopped,
    /// It was killed by command.
    Killed,
    /// It ended by itself.
    Died,
}

/// One process, for people and machines.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct DevProcess {
    pub(super) name: String,
    pub(super) state: State,
    pub(super) pid: Option<u32>,
    /// How it ended, if it did by itself.
    pub(super) detail: String,
    pub(super) restarts: u32,
    pub(super) endpoint: String,
    pub(super) nbd: String,
    pub(super) log: String,
}

impl Named for DevProcess {
    const KIND: &'static str = "DevProcess";
}

impl Row for DevProcess {
    const HEAD: &'static [&'static str] = &["NAME", "STATE", "PID", "RESTARTS", "ENDPOINT"];
    const WIDE: &'static [&'static str] = &["NBD", "LOG", "DETAIL"];
    fn cells(&self) -> Vec<String> {
        let state = match self.state {
            State::Running => "running",
            State::Stopped => "stopped",
            State::Killed => "killed",
            State::Died => "died",
        };
        vec![
            self.name.clone(),
            state.into(),
            self.pid.map_or_else(|| "-".into(), |pid| pid.to_string()),
            self.restarts.to_string(),
            self.endpoint.clone(),
        ]
    }
    fn wide(&self) -> Vec<String> {
        vec![self.nbd.clone(), self.log.clone(), self.detail.clone()]
    }
    fn name(&self) -> String {
        self.name.clone()
    }
}

//! Changes that only one host can make (its disks, its scrubs), asked of it by another host over
//! the peers' connections: REST between hosts only reads.
//!
//! Invariant: a host that is asked does it itself and asks nobody further.

use super::Engine;
use atoll_api::types::{DiskWipe, DiskWipeRequest, Group, GroupCreate};
use atoll_api::{Code, Problem};
use atoll_format::id::HostId;
use atoll_node::{CallError, Manager};
use atoll_world::Nanos;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::rc::{Rc, Weak};

/// How long another host may take to do something.
const DO_WAIT: Nanos = Nanos::from_secs(100);

/// What another host is asked to do.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "do")]
pub enum HostRequest {
    /// Makes a disk group of its disks: [`Group`].
    GroupCreate { request: GroupCreate, dry_run: bool },
    /// Erases one of its disks: [`DiskWipe`].
    DiskWipe { request: DiskWipeRequest, dry_run: bool },
    /// Starts (with rate 0: stops) a scrub of one of its disk groups.
    Scrub { group: String, rate: Option<u64> },
}

/// What came of it, as JSON.
type Done = Result<serde_json::Value, Problem>;

impl Engine {
    /// Answers what other hosts ask; knows the engine only as long as it lives.
    pub(super) fn manager(self: &Rc<Self>) -> Manager {
        let engine = Rc::downgrade(self);
        Rc::new(move |request| {
            let engine = engine.clone();
            Box::pin(async move {
                let done = answer(engine, &request).await;
                serde_json::to_string(&done).expect("answers have string keys")
            })
        })
    }

    /// Has another host do something.
    ///
    /// # Errors
    /// That host's own; [`Code::Unavailable`]: it was not done; [`Code::TimedOut`]: unknown.
    pub async fn at<T: DeserializeOwned>(
        &self,
        host: HostId,
        name: &str,
        what: HostRequest,
    ) -> Result<T, Problem> {
        let request = serde_json::to_string(&what).expect("requests have string keys");
        let reply = self.running()?.node.manage_at(host, request, DO_WAIT).await;
        let reply = reply.map_err(|error| unanswered(name, &error))?;
        let odd = |error: serde_json::Error| {
            Problem::new(Code::WrongServer, format!("host {name} answered oddly: {error}"))
        };
        let done: Done = serde_json::from_str(&reply).map_err(odd)?;
        serde_json::from_value(done?).map_err(odd)
    }
}

fn unanswered(name: &str, error: &CallError) -> Problem {
    match error {
        CallError::Unreachable | CallError::TooLarge => Problem::new(
            Code::Unavailable,
            format!("host {name} cannot be reached; nothing was done"),
        )
        .hint("atoll host list"),
        CallError::Refused(why) => {
            Problem::new(Code::Unavailable, format!("host {name} did not do it: {why}"))
        }
        CallError::Disconnected | CallError::Deadline => {
            Problem::new(Code::TimedOut, format!("host {name} did not answer: {error}"))
                .hint(format!("it may still be done: look first (atoll disk list --host {name})"))
        }
    }
}

async fn answer(engine: Weak<Engine>, request: &str) -> Done {
    let engine =
        engine.upgrade().ok_or_else(|| Problem::new(Code::Unavailable, "the host is stopping"))?;
    let what = serde_json::from_str(request).map_err(|error| {
        Problem::new(Code::WrongServer, format!("the host does not understand it: {error}"))
    })?;
    match what {
        HostRequest::GroupCreate { request, dry_run } => {
            let group: Group = engine.group_create(request, dry_run).await?;
            Ok(serde_json::to_value(group).expect("types have string keys"))
        }
        HostRequest::DiskWipe { request, dry_run } => {
            let wiped: DiskWipe = engine.disk_wipe(request, dry_run).await?;
            Ok(serde_json::to_value(wiped).expect("types have string keys"))
        }
        HostRequest::Scrub { group, rate } => {
            engine.scrub(Some(&group), None, rate).await?;
            Ok(serde_json::Value::Null)
        }
    }
}

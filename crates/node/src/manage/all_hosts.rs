//! What is done on all hosts at once, by each that can be reached.

use crate::admin::message::{AdminReply, AdminRequest};
use crate::error::ManageError;
use crate::event_log::{EventMark, HostEvents};
use crate::node::Node;
use atoll_format::id::HostId;
use atoll_world::{Components, Nanos, World};
use std::collections::BTreeMap;

/// How long a host may take to take note of something, or to tell what has happened.
const TELL_WAIT: Nanos = Nanos::from_secs(2);

impl<W: World, S: Components> Node<W, S> {
    /// Starts (or with rate 0 stops) a scrub of everything, or of one volume, on all hosts that can
    /// be reached; the others are returned.
    pub async fn scrub(&self, volume: Option<&str>, rate: u64) -> Result<Vec<HostId>, ManageError> {
        let object = match volume {
            Some(name) => Some(self.volume(name).await?.record.id),
            None => None,
        };
        let scrub = |_| AdminRequest::Scrub { object, bytes_per_second: rate };
        self.tell_everybody(scrub).await
    }

    /// Pauses, resumes or limits resync on all hosts that can be reached; the others are returned.
    pub async fn set_resync(&self, paused: bool, limit: u64) -> Result<Vec<HostId>, ManageError> {
        self.tell_everybody(|_| AdminRequest::Resync { paused, bytes_per_second: limit }).await
    }

    /// Each host that answers does it, whatever becomes of the others; those that do not answer.
    async fn tell_everybody(
        &self,
        ask: impl Fn(HostId) -> AdminRequest,
    ) -> Result<Vec<HostId>, ManageError> {
        let (done, silent) = self.ask_everybody(ask, TELL_WAIT).await;
        done.into_iter().try_for_each(|(_, done)| done.map(drop))?;
        Ok(silent)
    }

    /// The next events of each host that can be reached, at most 1,000: those after its mark; of a
    /// host without one from the first on that has a higher id than `since`. And the hosts that do
    /// not tell.
    pub async fn events_of_each(
        &self,
        after: &BTreeMap<HostId, EventMark>,
        since: u64,
    ) -> (Vec<HostEvents>, Vec<HostId>) {
        let ask = |host: HostId| {
            let known = after.get(&host).copied();
            let since = if known.is_some() { 0 } else { since };
            AdminRequest::Events { after: known.unwrap_or_default(), since }
        };
        let (told, silent) = self.ask_everybody(ask, TELL_WAIT).await;
        let (mut events, mut silent) = (Vec::new(), silent);
        for (host, answer) in told {
            match answer {
                Ok(AdminReply::Events { told }) if told.host == host => events.push(told),
                // An answer that is none is told like none at all.
                _ if !silent.contains(&host) => silent.push(host),
                _ => {}
            }
        }
        (events, silent)
    }
}

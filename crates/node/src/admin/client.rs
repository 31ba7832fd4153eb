//! Requests to other hosts; a request to this host takes the same way.

use crate::admin::message::{ADMIN_DEADLINE, AdminReply, AdminRequest};
use crate::error::ManageError;
use crate::node::Node;
use atoll_format::id::{Addr, HostId};
use atoll_object::message::{Reply, Request};
use atoll_transport::CallError;
use atoll_world::{Components, Lane, Nanos, World};

/// How long a host may take to say how it is that did not answer the last time.
pub(crate) const LOOK_AGAIN_WAIT: Nanos = Nanos::from_ms(500);

impl<W: World, S: Components> Node<W, S> {
    /// Asks a host (this one too).
    ///
    /// # Errors
    /// [`ManageError::Unreachable`]: it was not asked. [`ManageError::NoAnswer`]: it may do it, or
    /// have done it. [`ManageError::Failed`]: it says why not.
    pub(crate) async fn ask(
        &self,
        at: impl Into<Addr>,
        ask: AdminRequest,
    ) -> Result<AdminReply, ManageError> {
        self.ask_within(at, ask, ADMIN_DEADLINE).await
    }

    /// Asks a host (this one too), and waits no longer than `wait`.
    pub(crate) async fn ask_within(
        &self,
        at: impl Into<Addr>,
        ask: AdminRequest,
        wait: Nanos,
    ) -> Result<AdminReply, ManageError> {
        let at = at.into();
        let host = at.host;
        assert!(Nanos::ZERO < wait && wait <= ADMIN_DEADLINE, "host {host} has {wait} to answer");
        let json = self.write_request(&ask);
        let deadline = self.world().now() + wait;
        let peers = self.0.objects.peers();
        let unreachable = || ManageError::Unreachable(self.host_name(host));
        let no_answer = || ManageError::NoAnswer(self.host_name(host));
        match peers.call(at, Lane::Control, Request::Admin(json), deadline).await {
            Ok(Reply::Admin(json)) => match serde_json::from_slice(&json) {
                Ok(AdminReply::Failed { why }) => Err(ManageError::Failed(why)),
                Ok(answer) => Ok(answer),
                Err(_) => Err(no_answer()),
            },
            Err(CallError::Unreachable) => Err(unreachable()),
            Ok(_) | Err(_) => Err(no_answer()),
        }
    }

    fn write_request(&self, ask: &AdminRequest) -> Vec<u8> {
        let json = serde_json::to_vec(ask).expect("requests have string keys");
        if self.world().audits() {
            let read: AdminRequest =
                serde_json::from_slice(&json).expect("a request that nobody reads");
            assert_eq!(serde_json::to_vec(&read).ok().as_ref(), Some(&json), "{ask:?}");
        }
        json
    }

    /// Asks every host the same, all at once: what came back, and the hosts that did not answer.
    pub(crate) async fn ask_everybody(
        &self,
        ask: impl Fn(HostId) -> AdminRequest,
        wait: Nanos,
    ) -> (Vec<(HostId, Result<AdminReply, ManageError>)>, Vec<HostId>) {
        let hosts: Vec<HostId> = self.0.hosts.borrow().keys().copied().collect();
        let (here, mut silent): (Vec<HostId>, Vec<HostId>) =
            hosts.into_iter().partition(|&host| self.is_alive(host));
        let asks = here.into_iter().map(|host| (host, ask(host)));
        let calls = asks.map(|(host, ask)| {
            let wait = if self.answers(host) { wait } else { wait.min(LOOK_AGAIN_WAIT) };
            async move { (host, self.ask_within(host, ask, wait).await) }
        });
        let mut told = Vec::new();
        for (host, answer) in futures_util::future::join_all(calls).await {
            match answer {
                Err(ManageError::Unreachable(_) | ManageError::NoAnswer(_)) => silent.push(host),
                answer => told.push((host, answer)),
            }
        }
        (told, silent)
    }

    /// Asks the program around another host's node something, and waits for `patience` at most.
    ///
    /// # Errors
    /// As [`CallError`] says: whether the request has had no effect, or may have had.
    pub async fn manage_at(
        &self,
        host: HostId,
        request: String,
        patience: Nanos,
    ) -> Result<String, CallError> {
        assert!(patience > Nanos::ZERO, "host {host} has no time to answer");
        assert!(host != self.0.config.host, "this host asks itself: {request}");
        let ask = AdminRequest::Manage { request };
        let json = self.write_request(&ask);
        let deadline = self.world().now() + patience;
        let peers = self.0.objects.peers();
        let answer = match peers.call(host, Lane::Control, Request::Admin(json), deadline).await? {
            Reply::Admin(json) => serde_json::from_slice(&json),
            _ => return Err(CallError::Refused("the answer is of another kind".into())),
        };
        match answer {
            Ok(AdminReply::Managed { reply }) => Ok(reply),
            Ok(AdminReply::Failed { why }) => Err(CallError::Refused(why)),
            _ => Err(CallError::Refused("the answer was not understood".into())),
        }
    }
}

//! Answers to the requests of other hosts, and of this one.

use crate::admin::message::{AdminReply, AdminRequest, LOOK_FOR_DATA, SIBLING_WAIT, audit_reply};
use crate::error::ManageError;
use crate::node::{Manager, Node};
use atoll_format::id::{ComponentId, HostId, ObjectId};
use atoll_format::record::key;
use atoll_object::AdminHandler;
use atoll_world::directory::{Compare, Revision};
use atoll_world::{Components, World};
use futures_util::FutureExt;
use std::rc::Rc;

/// Events in one answer.
const EVENTS_PER_REPLY: usize = 1000;

impl<W: World, S: Components> Node<W, S> {
    /// Who answers what other hosts ask by [`Node::manage_at`].
    pub fn set_manager(&self, manager: Manager) {
        let before = self.0.manager.borrow_mut().replace(manager);
        assert!(before.is_none(), "two answer for one host");
    }

    pub(crate) fn admin_handler(&self) -> AdminHandler {
        let node = Rc::downgrade(&self.0);
        Rc::new(move |from, json| {
            let node = node.upgrade().map(Node);
            let audits = node.as_ref().is_some_and(|node: &Self| node.world().audits());
            async move {
                let answer = match (node, serde_json::from_slice::<AdminRequest>(&json)) {
                    (None, _) => AdminReply::Failed { why: "the host is stopping".into() },
                    (_, Err(error)) => {
                        AdminReply::Failed { why: format!("not understood: {error}") }
                    }
                    (Some(node), Ok(ask)) => node.answer(from.host, ask).await,
                };
                let json = serde_json::to_vec(&answer).expect("answers have string keys");
                if audits {
                    audit_reply(&answer, &json);
                }
                json
            }
            .boxed_local()
        })
    }

    async fn answer(&self, from: HostId, ask: AdminRequest) -> AdminReply {
        self.audit();
        match ask {
            AdminRequest::Status => AdminReply::Status { status: Box::new(self.host_status()) },
            AdminRequest::Events { after, since } => {
                let max = self.world().bound(EVENTS_PER_REPLY, 3);
                AdminReply::Events { told: self.events_here(after, since, max) }
            }
            AdminRequest::InUse { object } => {
                self.clients_on_host(self.clients_of(object), AdminRequest::InUse { object }).await
            }
            AdminRequest::Lock { lock, revision } => {
                self.0.locks.note(&lock, Revision(revision));
                let clients = self.clients_of(lock.object);
                self.clients_on_host(clients, AdminRequest::Lock { lock, revision }).await
            }
            AdminRequest::Unlock { object, token } => {
                self.0.locks.forget(object, token);
                self.tell_siblings(&AdminRequest::Unlock { object, token }).await;
                AdminReply::Done
            }
            AdminRequest::LookAtMember { object, component } => {
                self.0.objects.look_at_member(object, component).await;
                AdminReply::Done
            }
            AdminRequest::Release { object } => {
                self.0.objects.release(object).await;
                AdminReply::Done
            }
            AdminRequest::TakeReleased { object, from } => self.take_from_shard(object, from).await,
            AdminRequest::HoldsData { object } => {
                let until = self.world().now() + LOOK_FOR_DATA;
                match self.0.objects.holds_data(object, until).await {
                    Ok(holds) => AdminReply::HoldsData { holds },
                    Err(error) => error.into(),
                }
            }
            AdminRequest::Grow { object, from, size_bytes } => {
                let grown = self.0.objects.grow(object, from, size_bytes).await;
                grown.map_or_else(AdminReply::from, |()| AdminReply::Done)
            }
            AdminRequest::LimitIops { object, limit } => {
                let set = self.0.objects.set_iops_limit(object, limit).await;
                set.map_or_else(AdminReply::from, |()| AdminReply::Done)
            }
            AdminRequest::MayShrink { object, from } => {
                let may = self.0.objects.may_shrink(object, from).await;
                may.map_or_else(AdminReply::from, |()| AdminReply::Done)
            }
            AdminRequest::Shrink { object, from, size_bytes, lock } => {
                let lock = Compare { key: key::lock(object), modified: Revision(lock) };
                let shrunk = self.0.objects.shrink(object, from, size_bytes, &lock).await;
                shrunk.map_or_else(AdminReply::from, |()| AdminReply::Done)
            }
            AdminRequest::Scrub { object, bytes_per_second } => {
                self.scrub_here(object, bytes_per_second);
                self.tell_siblings(&AdminRequest::Scrub { object, bytes_per_second }).await;
                AdminReply::Done
            }
            AdminRequest::Resync { paused, bytes_per_second } => {
                self.0.objects.set_resync(paused, bytes_per_second);
                AdminReply::Done
            }
            AdminRequest::BadBlock { object, component, block } => {
                self.0.objects.on_bad_block(object, component, block);
                AdminReply::Done
            }
            AdminRequest::Manage { request } => {
                let manager = self.0.manager.borrow().clone();
                match manager {
                    Some(manager) => AdminReply::Managed { reply: manager(from, request).await },
                    None => AdminReply::Failed { why: "the host is starting".into() },
                }
            }
            AdminRequest::Adopt { object } => match self.0.objects.adopt(object).await {
                Ok(()) => AdminReply::Done,
                Err(why) => AdminReply::Failed { why },
            },
        }
    }

    /// Shard 0 tells the other shards of its host what the host was told; those that do not answer
    /// are named.
    async fn tell_siblings(&self, ask: &AdminRequest) -> Vec<Result<AdminReply, ManageError>> {
        if !self.is_first_shard() {
            return Vec::new();
        }
        let asks = self.siblings().map(|at| self.ask_within(at, ask.clone(), SIBLING_WAIT));
        futures_util::future::join_all(asks).await
    }

    /// Clients of a volume on all shards of this host, for whoever has asked shard 0.
    async fn clients_on_host(&self, mut clients: u32, ask: AdminRequest) -> AdminReply {
        for answer in self.tell_siblings(&ask).await {
            match answer {
                Ok(AdminReply::Clients { clients: more, .. }) => clients += more,
                Ok(_) | Err(_) => {
                    let why = "a shard of the host does not tell which volumes it has open".into();
                    return AdminReply::Failed { why };
                }
            }
        }
        AdminReply::Clients { clients, reaches: self.reached() }
    }

    /// Starts or stops a scrub on this shard.
    pub(crate) fn scrub_here(&self, object: Option<ObjectId>, bytes_per_second: u64) {
        let members = self.0.objects.members();
        for store in members.stores() {
            match object {
                None => store.scrub(None, bytes_per_second),
                // One pass for all of the group: each would take the place of the one before.
                Some(object) => {
                    let all = store.list().into_iter().filter(|c| c.spec.object == object);
                    let ids: Vec<ComponentId> = all.map(|c| c.id).collect();
                    if !ids.is_empty() {
                        store.scrub(Some(&ids), bytes_per_second);
                    }
                }
            }
        }
    }
}

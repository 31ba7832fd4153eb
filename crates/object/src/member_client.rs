//! What an owner, or who is about to be one, asks of members: a method a message.
//!
//! Asks once and decides nothing: whether a refusal is tried again, and what becomes of a member
//! that does not answer, is for the callers. What is no `async fn` is sent when it is called,
//! before anything is awaited: appends go out in the order of the calls (R2).

use crate::ctx::{Ctx, Protocol};
use crate::failure::{Interrupted, MemberFault};
use crate::limits::{APPEND_DEADLINE, CALL_DEADLINE, READ_DEADLINE, RESERVE_DEADLINE};
use crate::message::{Reply, Request};
use atoll_format::id::{
    ClientId, ComponentId, Epoch, GroupId, HostId, ObjectId, Seq, Session, Ticket,
};
use atoll_format::op::{BlockRange, BlockTag, OpRecord, Promise};
use atoll_format::record::ServedRecord;
use atoll_format::units::BLOCKS_PER_CHUNK;
use atoll_transport::CallError;
use atoll_world::components::{
    ComponentOp, ComponentSpec, ComponentStatus, Copy, ReadBlocks, SetTickets,
};
use atoll_world::{Lane, Nanos, StoreError, World, sometimes};
use futures_util::FutureExt;
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

/// Why a member has not done what it was asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum MemberError {
    /// It has promised this epoch, which is higher than the asker's: there is another owner (R1).
    Superseded(Epoch),
    /// Its store refuses, or has failed.
    Store(StoreError),
    /// It answered what is no answer to this.
    NotUnderstood,
    /// It gave no answer; what it was asked may still be carried out.
    NoAnswer(CallError),
}

impl MemberError {
    /// What this says about the member, to an owner that goes on.
    pub fn fault(self) -> MemberFault {
        match self {
            Self::Store(error) => MemberFault::Store(error),
            Self::Superseded(_) | Self::NotUnderstood | Self::NoAnswer(_) => MemberFault::Link,
        }
    }
}

impl std::fmt::Display for MemberError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Superseded(fenced) => write!(f, "{}", StoreError::Fenced { fenced: *fenced }),
            Self::Store(error) => write!(f, "{error}"),
            Self::NotUnderstood => write!(f, "its answer is not understood"),
            Self::NoAnswer(error) => write!(f, "{error}"),
        }
    }
}

impl From<MemberError> for Interrupted {
    fn from(_: MemberError) -> Self {
        Self
    }
}

/// Where a member is, and the session in which it is talked to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Endpoint {
    pub host: HostId,
    pub group: GroupId,
    pub component: ComponentId,
    pub session: Session,
}

impl Endpoint {
    /// The disk group that has it.
    fn place(&self) -> (HostId, GroupId) {
        (self.host, self.group)
    }
}

/// What a member says when a session is opened to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attached {
    pub promise: Promise,
    /// Acknowledged data may be missing there.
    pub doubtful: bool,
}

/// Asks members in the name of one epoch.
pub(crate) struct MemberClient<W: World, P: Protocol> {
    ctx: Rc<Ctx<W, P>>,
    epoch: Epoch,
}

impl<W: World, P: Protocol> MemberClient<W, P> {
    /// For the owner, or who is about to be it, of that epoch.
    pub fn new(ctx: Rc<Ctx<W, P>>, epoch: Epoch) -> Self {
        Self { ctx, epoch }
    }

    /// From now on.
    fn within(&self, span: Nanos) -> Nanos {
        self.ctx.world.now() + span
    }

    /// `accept` takes what is an answer to the request. The request is sent before this returns.
    fn call<T, F: FnOnce(Reply) -> Option<T> + 'static>(
        &self,
        at: (HostId, GroupId),
        lane: Lane,
        request: Request,
        until: Nanos,
        accept: F,
    ) -> impl Future<Output = Result<T, MemberError>> + 'static + use<W, P, T, F> {
        let (epoch, ctx) = (self.epoch, self.ctx.clone());
        self.ctx.peers.call(self.ctx.addr_of(at), lane, request, until).map(
            move |reply| match reply {
                // Nothing was done; whoever asks again asks there.
                Ok(Reply::Failed(StoreError::OnShard { shard, .. })) => {
                    sometimes!("member_client.asks_another_shard");
                    if let Ok(shard) = u8::try_from(shard) {
                        ctx.is_on_shard(at, shard);
                    }
                    Err(MemberError::NoAnswer(CallError::Unreachable))
                }
                Ok(Reply::Failed(StoreError::Starting(_))) => {
                    sometimes!("member_client.asks_a_shard_that_starts");
                    Err(MemberError::NoAnswer(CallError::Unreachable))
                }
                Ok(Reply::Failed(StoreError::Fenced { fenced })) if fenced > epoch => {
                    Err(MemberError::Superseded(fenced))
                }
                Ok(Reply::Failed(error)) => Err(MemberError::Store(error)),
                Ok(reply) => accept(reply).ok_or(MemberError::NotUnderstood),
                Err(error) => Err(MemberError::NoAnswer(error)),
            },
        )
    }

    /// Refuse lower epochs (R6). For how long a lease of an older owner may be running yet (R9):
    /// not at all, or the member is to be asked again. `served`: as in the record of this epoch.
    pub async fn fence(
        &self,
        to: Endpoint,
        object: ObjectId,
        served: Option<ServedRecord>,
        until: Nanos,
    ) -> Result<Option<Nanos>, MemberError> {
        let request = Request::Fence {
            object,
            component: to.component,
            epoch: self.epoch,
            incarnation: self.ctx.incarnation,
            outlived: self.ctx.outlived.clone(),
            served,
        };
        let accept = |reply: Reply| match reply {
            Reply::Promise { .. } => Some(None),
            Reply::Held(wait_ns) => Some(Some(Nanos(wait_ns))),
            _ => None,
        };
        self.call(to.place(), Lane::Control, request, until, accept).await
    }

    /// Opens the session that `to` names (R2). `incomplete`: to bring the member up to date from
    /// that operation on.
    pub fn attach(
        &self,
        to: Endpoint,
        incomplete: Option<Seq>,
        until: Nanos,
    ) -> impl Future<Output = Result<Attached, MemberError>> + 'static + use<W, P> {
        let request = Request::Attach { component: to.component, session: to.session, incomplete };
        self.call(to.place(), Lane::Control, request, until, |reply| match reply {
            Reply::Promise { promise, doubtful } => Some(Attached { promise, doubtful }),
            _ => None,
        })
    }

    /// The member lacks nothing any more, and has everything up to an operation; durable when this
    /// returns.
    pub async fn complete(&self, to: Endpoint, up_to: Seq) -> Result<(), MemberError> {
        let request = Request::Complete { component: to.component, session: to.session, up_to };
        self.call(to.place(), Lane::Control, request, self.within(CALL_DEADLINE), done).await
    }

    /// All operations above the watermark that the member knows, ascending.
    pub async fn uncommitted(&self, to: Endpoint) -> Result<Vec<OpRecord>, MemberError> {
        let mut all: Vec<OpRecord> = Vec::new();
        loop {
            let after = all.last().map(|op| op.id.seq).unwrap_or_default();
            let request =
                Request::Uncommitted { component: to.component, session: to.session, after };
            let until = self.within(READ_DEADLINE);
            let page = self.call(to.place(), Lane::Control, request, until, |reply| match reply {
                Reply::Ops { ops, more } => Some((ops, more)),
                _ => None,
            });
            let (ops, more) = page.await?;
            let is_last = !more || ops.is_empty();
            all.extend(ops);
            if is_last {
                return Ok(all);
            }
        }
    }

    /// All operations of clients that are on the member and not settled (R21), ascending by client
    /// and number.
    pub async fn tickets(&self, to: Endpoint) -> Result<Vec<Ticket>, MemberError> {
        let mut all: Vec<Ticket> = Vec::new();
        let mut after = (ClientId::default(), 0);
        loop {
            let request = Request::Tickets { component: to.component, session: to.session, after };
            let until = self.within(CALL_DEADLINE);
            let page = self.call(to.place(), Lane::Control, request, until, |reply| match reply {
                Reply::Tickets { tickets, more } => Some((tickets, more)),
                _ => None,
            });
            let (tickets, more) = page.await?;
            let last = tickets.last().map(|t| (t.client, t.number));
            all.extend(tickets);
            match last {
                Some(last) if more => after = last,
                _ => return Ok(all),
            }
        }
    }

    /// Remembers and forgets operations of clients; in order with appends.
    pub async fn set_tickets(&self, to: Endpoint, set: SetTickets) -> Result<(), MemberError> {
        let request = Request::SetTickets { component: to.component, session: to.session, set };
        self.call(to.place(), Lane::Data, request, self.within(READ_DEADLINE), done).await
    }

    /// Whether that operation of a client is there (R21).
    pub fn applied(
        &self,
        to: Endpoint,
        ticket: Ticket,
    ) -> impl Future<Output = Result<bool, MemberError>> + 'static + use<W, P> {
        let request = Request::Applied { component: to.component, session: to.session, ticket };
        let until = self.within(CALL_DEADLINE);
        self.call(to.place(), Lane::Control, request, until, |reply| match reply {
            Reply::Yes(applied) => Some(applied),
            _ => None,
        })
    }

    /// The component's facts.
    pub async fn status(&self, to: Endpoint, span: Nanos) -> Result<ComponentStatus, MemberError> {
        let request = Request::Status { component: to.component };
        let until = self.within(span);
        self.call(to.place(), Lane::Control, request, until, |reply| match reply {
            Reply::Status(status) => Some(status),
            _ => None,
        })
        .await
    }

    /// Makes a component.
    pub async fn create(
        &self,
        at: (HostId, GroupId),
        component: ComponentId,
        spec: ComponentSpec,
    ) -> Result<(), MemberError> {
        let request = Request::Create { group: at.1, component, spec };
        self.call(at, Lane::Control, request, self.within(CALL_DEADLINE), done).await
    }

    /// Raises the component's largest size to so many blocks.
    pub async fn grow(&self, to: Endpoint, blocks: u32, until: Nanos) -> Result<(), MemberError> {
        let request = Request::Grow { component: to.component, epoch: self.epoch, blocks };
        self.call(to.place(), Lane::Control, request, until, done).await
    }

    /// The tags of all blocks of a chunk.
    pub async fn tags(
        &self,
        lane: Lane,
        to: Endpoint,
        chunk: u32,
    ) -> Result<Vec<BlockTag>, MemberError> {
        let request = Request::Tags { component: to.component, session: to.session, chunk };
        let until = self.within(READ_DEADLINE);
        self.call(to.place(), lane, request, until, |reply| match reply {
            Reply::Tags(tags) if tags.len() == BLOCKS_PER_CHUNK as usize => Some(tags),
            _ => None,
        })
        .await
    }

    /// Those of some chunks that have operations past `since`.
    pub async fn chunks_since(
        &self,
        to: Endpoint,
        since: Seq,
        of: Range<u32>,
    ) -> Result<BTreeSet<u32>, MemberError> {
        let mut all = BTreeSet::new();
        let mut first = of.start;
        loop {
            let (component, session) = (to.component, to.session);
            let request = Request::ChunksSince { component, session, since, first };
            let until = self.within(READ_DEADLINE);
            let page = self.call(to.place(), Lane::Bulk, request, until, |reply| match reply {
                Reply::Chunks { chunks, more } => Some((chunks, more)),
                _ => None,
            });
            let (chunks, more) = page.await?;
            // A member whose log was damaged may list chunks of what had its place before.
            let inside = chunks.iter().filter(|(chunk, _)| of.contains(chunk));
            all.extend(inside.map(|&(chunk, _)| chunk));
            match chunks.last() {
                Some(&(last, _)) if more && last < u32::MAX => first = last + 1,
                _ => break,
            }
        }
        let ends = [all.first(), all.last()];
        assert!(ends.into_iter().flatten().all(|chunk| of.contains(chunk)), "{ends:?} of {of:?}");
        Ok(all)
    }

    /// Everything at or below that operation is durable on every active member.
    pub fn committed(
        &self,
        to: Endpoint,
        seq: Seq,
    ) -> impl Future<Output = Result<(), MemberError>> + 'static + use<W, P> {
        let request = Request::Committed { component: to.component, session: to.session, seq };
        self.call(to.place(), Lane::Data, request, self.within(CALL_DEADLINE), done)
    }

    /// Sets a slot aside for a chunk.
    pub fn reserve(
        &self,
        to: Endpoint,
        chunk: u32,
    ) -> impl Future<Output = Result<(), MemberError>> + 'static + use<W, P> {
        let request = Request::Reserve { component: to.component, session: to.session, chunk };
        self.call(to.place(), Lane::Data, request, self.within(RESERVE_DEADLINE), done)
    }

    /// One operation of the object.
    pub fn append(
        &self,
        to: Endpoint,
        op: ComponentOp,
    ) -> impl Future<Output = Result<(), MemberError>> + 'static + use<W, P> {
        assert_eq!(to.session.epoch, self.epoch, "{:?} in a session of another owner", op.id);
        let request = Request::Append { component: to.component, session: to.session, op };
        self.call(to.place(), Lane::Data, request, self.within(APPEND_DEADLINE), done)
    }

    /// Blocks, verified, with their tags.
    pub fn read(
        &self,
        lane: Lane,
        to: Endpoint,
        range: BlockRange,
    ) -> impl Future<Output = Result<ReadBlocks, MemberError>> + 'static + use<W, P> {
        let request = Request::Read { component: to.component, session: to.session, range };
        let until = self.within(READ_DEADLINE);
        self.call(to.place(), lane, request, until, move |reply| match reply {
            Reply::Blocks(blocks) if blocks.tags.len() == usize::from(range.count) => Some(blocks),
            _ => None,
        })
    }

    /// Blocks of another member, for a locked range. Returns how many were put in.
    pub async fn copy_in(&self, to: Endpoint, copy: Copy, span: Nanos) -> Result<u32, MemberError> {
        assert!(!copy.blocks.is_empty(), "a copy of nothing");
        assert!(copy.blocks.is_sorted_by(|a, b| a.block < b.block), "blocks are out of order");
        for b in &copy.blocks {
            let chunk = b.block / BLOCKS_PER_CHUNK;
            assert_eq!(chunk, copy.chunk, "block {} of another chunk", b.block);
        }
        assert!(copy.tickets_fit(), "{} tickets", copy.tickets.len());
        let request = Request::CopyIn { component: to.component, session: to.session, copy };
        let until = self.within(span);
        self.call(to.place(), Lane::Bulk, request, until, |reply| match reply {
            Reply::Copied(blocks) => Some(blocks),
            _ => None,
        })
        .await
    }
}

fn done(reply: Reply) -> Option<()> {
    matches!(reply, Reply::Done).then_some(())
}

#[cfg(test)]
mod tests {
    use super::MemberError;
    use crate::failure::MemberFault;
    use atoll_format::id::Epoch;
    use atoll_transport::CallError;
    use atoll_world::StoreError;

    fn every_error() -> Vec<MemberError> {
        vec![
            MemberError::NoAnswer(CallError::Unreachable),
            MemberError::NoAnswer(CallError::Refused("why".into())),
            MemberError::NotUnderstood,
            MemberError::Superseded(Epoch(3)),
            MemberError::Store(StoreError::Session { open: Default::default() }),
            MemberError::Store(StoreError::Bad(vec![7, 8])),
        ]
    }

    #[test]
    fn nobody_reads_the_words_of_the_program_itself() {
        for error in every_error() {
            let said = error.to_string();
            assert!(said.contains(' ') && !said.contains(['(', '{', '[']), "{said}");
        }
        let bad = MemberError::Store(StoreError::Bad(vec![7]));
        assert_eq!(bad.to_string(), "no good copy here of block 7");
    }

    #[test]
    fn only_what_a_store_says_is_held_against_it() {
        for error in every_error() {
            let is_of_a_store = matches!(error, MemberError::Store(_));
            assert_eq!(matches!(error.fault(), MemberFault::Store(_)), is_of_a_store);
        }
    }
}

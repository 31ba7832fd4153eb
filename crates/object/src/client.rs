//! The front end's side of an object: a [`Volume`] that finds the owner, wherever it is.
//!
//! An operation is cut at strips; each piece goes to the owner: a function call when it is on this
//! host, a message otherwise. When the owner dies, the piece goes to the next one with the same
//! ticket, so that a write that had been applied is answered, not applied twice (R21). While no
//! owner can be had, I/O is held, then fails.

use crate::ctx::Protocol;
use crate::failure::Fail;
use crate::host_objects::{HostObjects, Route};
use crate::iops_limit::{ASK_MAX, IopsTurns, Turn, Turns};
use crate::limits::{CLIENT_DEADLINE, HOLD, IO_MAX, PIECES_MAX, READ_DEADLINE, RETRY_EVERY};
use crate::message::{ClientIo, ClientRequest, Reply, Request, client_crcs};
use crate::owner::Owner;
use crate::takeover::{TakeoverError, load};
use atoll_format::id::{Addr, ClientId, ObjectId, Ticket};
use atoll_format::op::OpKind;
use atoll_format::units::{BLOCK, CHUNK, SECTOR};
use atoll_transport::CallError;
use atoll_world::sync::Semaphore;
use atoll_world::volume::{Extent, VolumeInfo, ZeroFlags};
use atoll_world::{
    Buf, Components, Lane, Nanos, Volume, VolumeError, World, buf, mutant, sometimes,
};
use futures_util::future::try_join_all;
use futures_util::{StreamExt, TryStreamExt};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::pin::pin;
use std::rc::Rc;

/// Changes of one client in flight: fits the members' tables of unsettled tickets.
const CHANGES_MAX: usize = 1024;
/// Strips that one question for extents looks at.
const EXTENT_STRIPS_MAX: usize = 64;
/// How long an owner may say that it is none before this host takes over.
const NOT_OWNER_MAX: Nanos = Nanos::from_ms(1_500);

/// An open volume.
pub struct ObjectVolume<W: World, S: Components>(Rc<VolumeState<W, S>>);

impl<W: World, S: Components> Clone for ObjectVolume<W, S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

struct VolumeState<W: World, S: Components> {
    objects: HostObjects<W, S>,
    id: ObjectId,
    size_bytes: Cell<u64>,
    tickets: RefCell<Tickets>,
    changes: Semaphore,
    /// The newest admission that is known; none: not yet admitted (row 58 of `docs/faults.md`).
    admission: Cell<Option<u64>>,
    admitting: Semaphore,
    /// Turns under the volume's ceiling of I/Os per second.
    iops: IopsTurns,
    /// I/Os that wait for a turn, and who of them is next.
    waiting: Cell<u32>,
    pacing: Semaphore,
    /// See `set_unlimited`.
    is_unlimited: Cell<bool>,
}

/// Numbers of this client's operations.
struct Tickets {
    client: ClientId,
    next: u32,
    open: BTreeSet<(ClientId, u32)>,
}

impl Tickets {
    fn issue(&mut self, fresh: impl FnOnce() -> u64) -> (ClientId, u32) {
        if self.next == u32::MAX {
            // Numbers are used up: a new name for the same client.
            self.client = ClientId(fresh());
            self.next = 1;
        }
        let key = (self.client, self.next);
        self.next += 1;
        assert!(key.1 > 0, "0 is no number of an operation");
        let is_new = self.open.insert(key);
        assert!(is_new, "ticket {} of {:?} was issued before", key.1, key.0);
        key
    }

    fn ticket(&self, (client, number): (ClientId, u32)) -> Ticket {
        let first = self.open.range((client, 0)..).next();
        let settled_below = first.filter(|o| o.0 == client).map_or(number, |o| o.1);
        assert!(0 < settled_below && settled_below <= number, "{settled_below}, {number}");
        Ticket { client, number, settled_below }
    }
}

/// Ends a ticket's life when its operation has been answered, or its caller has gone away.
struct Issued<'a, W: World, S: Components>(&'a VolumeState<W, S>, (ClientId, u32));

impl<W: World, S: Components> Drop for Issued<'_, W, S> {
    fn drop(&mut self) {
        let was_open = self.0.tickets.borrow_mut().open.remove(&self.1);
        assert!(was_open, "ticket {:?} ends once", self.1);
    }
}

/// Counts an I/O that waits for a turn, also if its caller goes away.
struct Waits<'a>(&'a Cell<u32>);

impl<'a> Waits<'a> {
    fn begin(waiting: &'a Cell<u32>) -> Self {
        waiting.set(waiting.get() + 1);
        Self(waiting)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// A change of one piece.
#[derive(Clone)]
enum PieceChange {
    Write { crcs: Vec<u32>, data: Vec<Buf> },
    Clear { kind: OpKind, len: u64 },
}

impl<W: World, S: Components> ObjectVolume<W, S> {
    /// Opens an object for I/O from this host.
    ///
    /// # Errors
    /// [`VolumeError::Gone`] if there is none; otherwise the directory cannot be asked.
    pub async fn open(objects: HostObjects<W, S>, id: ObjectId) -> Result<Self, VolumeError> {
        let world = objects.world().clone();
        let (record, _) = load(&world, id).await.map_err(|e| match e {
            TakeoverError::Gone | TakeoverError::Lost => VolumeError::Gone,
            TakeoverError::NotNow(why) => VolumeError::TimedOut(why),
        })?;
        let client = ClientId(world.random());
        let changes = world.bound(CHANGES_MAX, 2);
        Ok(Self(Rc::new(VolumeState {
            objects,
            id,
            size_bytes: Cell::new(record.size_bytes),
            tickets: RefCell::new(Tickets { client, next: 1, open: BTreeSet::new() }),
            changes: Semaphore::new(changes),
            admission: Cell::new(None),
            admitting: Semaphore::new(1),
            iops: IopsTurns::new(record.policy.iops_limit, world.now()),
            waiting: Cell::new(0),
            pacing: Semaphore::new(1),
            is_unlimited: Cell::new(false),
        })))
    }

    /// What is done through this one is the administrator's, and waits for no turn under the
    /// volume's ceiling of I/Os per second.
    pub fn set_unlimited(&self) {
        self.0.is_unlimited.set(true);
    }

    /// Its object.
    pub fn id(&self) -> ObjectId {
        self.0.id
    }

    fn world(&self) -> &W {
        self.0.objects.world()
    }

    /// Checks a range and cuts it at strips.
    fn pieces(&self, at: u64, len: u64) -> Result<Vec<(u64, u64)>, VolumeError> {
        let aligned = at.is_multiple_of(SECTOR) && len.is_multiple_of(SECTOR);
        let end = at.checked_add(len).filter(|&end| end <= self.0.size_bytes.get());
        let Some(end) = end.filter(|_| aligned) else {
            return Err(VolumeError::OutOfRange { at, len });
        };
        let mut pieces = Vec::with_capacity((len / CHUNK) as usize + 2);
        let mut at = at;
        while at < end {
            let next = ((at / CHUNK + 1) * CHUNK).min(end);
            assert!(at < next && (next - 1) / CHUNK == at / CHUNK, "{at}..{next} is in one strip");
            pieces.push((at, next - at));
            at = next;
        }
        assert!(at == end && (len == 0) == pieces.is_empty(), "{len} bytes until {end}: {at}");
        Ok(pieces)
    }

    /// Waits for this I/O's turn under the volume's ceiling.
    async fn pace(&self) {
        if self.0.is_unlimited.get() {
            return;
        }
        match self.0.iops.take(self.world().now()) {
            Turn::Free => return,
            Turn::FreeAndAsk => {
                let this = self.clone();
                self.world().spawn(async move { this.ask_for_turns(0).await });
                return;
            }
            Turn::At(at) => return self.world().sleep_until(at).await,
            Turn::Ask => {}
        }
        Box::pin(self.await_turn()).await;
    }

    /// The same, when the owner has to be asked: in the order of arrival.
    async fn await_turn(&self) {
        let _waits = Waits::begin(&self.0.waiting);
        let at = {
            let _next = self.0.pacing.acquire(1).await;
            loop {
                match self.0.iops.take(self.world().now()) {
                    Turn::Free | Turn::FreeAndAsk => return,
                    Turn::At(at) => break at,
                    Turn::Ask => self.ask_for_turns(self.0.waiting.get()).await,
                }
            }
        };
        self.world().sleep_until(at).await;
    }

    async fn ask_for_turns(&self, want: u32) {
        let until = self.world().now() + ASK_MAX;
        let asked = self.world().timeout_at(until, self.turns_of_owner(want)).await;
        let now = self.world().now();
        match asked.ok().flatten() {
            Some(turns) if turns.answers(want) => {
                self.0.iops.given(turns, now);
            }
            _ => self.0.iops.not_answered(now),
        }
    }

    async fn turns_of_owner(&self, want: u32) -> Option<Turns> {
        match self.0.objects.route(self.0.id).await {
            Ok(Route::Local(owner)) => Some(owner.turns(want)),
            Ok(Route::Remote(host)) => {
                let io = ClientIo::Turns { want };
                match self.ask(host, Ticket::default(), false, 0, io).await {
                    Ok(Reply::Turns(turns)) => Some(turns),
                    _ => None,
                }
            }
            Err(_) => None,
        }
    }

    /// One attempt after the other until the owner has answered.
    async fn until_answered<T>(
        &self,
        mut attempt: impl AsyncFnMut(Route<W, S>, bool) -> Attempt<T>,
    ) -> Result<T, VolumeError> {
        let objects = &self.0.objects;
        let until = self.world().now() + HOLD;
        let mut retry = false;
        let mut not_owner_since = None;
        loop {
            let why = match objects.route(self.0.id).await {
                Ok(route) => {
                    let host = match &route {
                        Route::Local(_) => None,
                        Route::Remote(host) => Some(*host),
                    };
                    let world = self.world();
                    // A little longer than the owner holds what it can name the reason of. An
                    // operation that it has begun goes on; nobody waits for it any more.
                    let again = retry && !mutant!("client.retry_is_new");
                    let patience = until + READ_DEADLINE;
                    let attempted = {
                        // Where it stays: it is large.
                        let attempt = pin!(attempt(route, again));
                        world.timeout_at(patience, attempt).await
                    };
                    let Ok(attempted) = attempted else {
                        sometimes!("client.held_too_long_by_its_owner");
                        let why = "too few of its copies answer".to_string();
                        return Err(VolumeError::TimedOut(why));
                    };
                    if !matches!(attempted, Attempt::Answered(_) | Attempt::Again) {
                        objects.forget_route(self.0.id);
                    }
                    match attempted {
                        Attempt::Answered(result) => return result,
                        Attempt::Again if self.world().now() < until => continue,
                        Attempt::Again => "other clients come all the time".to_string(),
                        Attempt::NotSent => "its owner cannot be reached".to_string(),
                        Attempt::Unknown => {
                            sometimes!("client.outcome_unknown_retries");
                            retry = true;
                            "its owner stopped".to_string()
                        }
                        Attempt::NotOwner => {
                            Box::pin(self.on_not_owner(host, &mut not_owner_since)).await;
                            "its owner has changed".to_string()
                        }
                    }
                }
                Err(TakeoverError::Gone) => return Err(VolumeError::Gone),
                Err(TakeoverError::Lost) => "another host takes it over".to_string(),
                Err(TakeoverError::NotNow(why)) => why,
            };
            if self.world().now() > until {
                sometimes!("client.held_too_long");
                return Err(VolumeError::TimedOut(why));
            }
            // A little chance keeps two hosts from taking an object from each other for ever.
            let jitter = Nanos(self.world().random() % RETRY_EVERY.0);
            self.world().sleep(RETRY_EVERY / 4 + jitter).await;
        }
    }

    async fn on_not_owner(&self, host: Option<Addr>, since: &mut Option<Nanos>) {
        let now = self.world().now();
        let first = *since.get_or_insert(now);
        if let Some(host) = host
            && now.since(first) > NOT_OWNER_MAX
        {
            sometimes!("client.takes_over_from_a_host_that_does_not_serve");
            *since = None;
            let _ = self.0.objects.take_from(self.0.id, host).await;
        }
    }

    async fn change(&self, at: u64, change: PieceChange) -> Result<(), VolumeError> {
        let _permit = self.0.changes.acquire(1).await;
        self.pace().await;
        let key = self.0.tickets.borrow_mut().issue(|| self.world().random());
        match &change {
            PieceChange::Write { crcs, data } => {
                let len = buf::total_len(data) as u64;
                assert!(at % CHUNK + len <= CHUNK, "{len} bytes at {at} are in one strip");
                let whole = at.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK);
                let wanted = if whole { (len / BLOCK).max(1) } else { 1 };
                assert_eq!(crcs.len() as u64, wanted, "checksums of {len} bytes at {at}");
                if self.world().audits() {
                    assert_eq!(*crcs, client_crcs(at, data), "checksums of {len} bytes at {at}");
                }
            }
            PieceChange::Clear { kind, len } => {
                assert_ne!(*kind, OpKind::Write, "a write has bytes");
                assert!(at % CHUNK + len <= CHUNK, "{len} bytes at {at} are in one strip");
            }
        }
        let _issued = Issued(&self.0, key);
        self.until_answered(async |route, retry| {
            let ticket = self.0.tickets.borrow().ticket(key);
            match route {
                Route::Local(owner) => {
                    if self.0.admission.get().is_none() {
                        self.0.admission.set(Some(owner.admit()));
                    }
                    let work = pin!(carry_out(&owner, at, change.clone(), ticket));
                    let result = if retry {
                        Box::pin(owner.write_once(ticket, retry, at, work)).await
                    } else {
                        work.await
                    };
                    match result {
                        Ok(()) => Attempt::Answered(Ok(())),
                        Err(Fail::Volume(error)) => Attempt::Answered(Err(error)),
                        Err(Fail::Stopped | Fail::Outdated) => Attempt::Unknown,
                    }
                }
                Route::Remote(host) => {
                    let io = match change.clone() {
                        PieceChange::Write { crcs, data } => ClientIo::Write { crcs, data },
                        PieceChange::Clear { kind: OpKind::Discard, len } => {
                            ClientIo::Discard { len: len as u32 }
                        }
                        PieceChange::Clear { len, .. } => ClientIo::Zero { len: len as u32 },
                    };
                    if let Err(attempt) = Box::pin(self.be_admitted(host)).await {
                        return attempt;
                    }
                    match self.ask(host, ticket, retry, at, io).await {
                        Ok(Reply::Done) => Attempt::Answered(Ok(())),
                        Ok(Reply::Admitted(newest)) => {
                            sometimes!("client.another_client_was_admitted");
                            self.0.admission.set(Some(newest));
                            Attempt::Again
                        }
                        other => Attempt::from(other),
                    }
                }
            }
        })
        .await
    }

    /// Before the first change: what an earlier connection of this client may still have on its way
    /// through another host is not carried out any more.
    async fn be_admitted(&self, host: Addr) -> Result<(), Attempt<()>> {
        if self.0.admission.get().is_some() {
            return Ok(());
        }
        let _turn = self.0.admitting.acquire(1).await;
        if self.0.admission.get().is_some() {
            return Ok(());
        }
        match self.ask(host, Ticket::default(), false, 0, ClientIo::Admit).await {
            Ok(Reply::Admitted(newest)) => {
                self.0.admission.set(Some(newest));
                Ok(())
            }
            Ok(Reply::NotOwner) => Err(Attempt::NotOwner),
            // Being admitted twice changes nothing.
            _ => Err(Attempt::NotSent),
        }
    }

    async fn ask(
        &self,
        host: Addr,
        ticket: Ticket,
        retry: bool,
        at: u64,
        io: ClientIo,
    ) -> Result<Reply, CallError> {
        assert_eq!(io.is_change(), ticket.number > 0, "a change, and only that, has a ticket");
        assert!(!io.is_change() || self.0.admission.get().is_some(), "admitted before it changes");
        let admission = self.0.admission.get().unwrap_or_default();
        let request = ClientRequest { object: self.0.id, ticket, retry, at, admission, io };
        let deadline = self.world().now() + CLIENT_DEADLINE;
        let peers = self.0.objects.peers();
        peers.call(host, Lane::Data, Request::Client(request), deadline).await
    }

    async fn read_piece(&self, at: u64, len: u64) -> Result<Vec<Buf>, VolumeError> {
        self.pace().await;
        assert!(at % CHUNK + len <= CHUNK, "{len} bytes at {at} are in one strip");
        self.until_answered(async |route, _| match route {
            Route::Local(owner) => match owner.read(at, len).await {
                Ok(data) => Attempt::Answered(Ok(data)),
                Err(Fail::Volume(error)) => Attempt::Answered(Err(error)),
                Err(Fail::Stopped | Fail::Outdated) => Attempt::Unknown,
            },
            Route::Remote(host) => {
                let io = ClientIo::Read { len: len as u32 };
                match self.ask(host, Ticket::default(), false, at, io).await {
                    Ok(Reply::Data { data, .. }) if buf::total_len(&data) as u64 == len => {
                        Attempt::Answered(Ok(data))
                    }
                    other => Attempt::from(other),
                }
            }
        })
        .await
    }

    async fn extents_of(&self, at: u64, len: u64) -> Result<Vec<Extent>, VolumeError> {
        self.until_answered(async |route, _| match route {
            Route::Local(owner) => match owner.extents(at, len).await {
                Ok(extents) => Attempt::Answered(Ok(extents)),
                Err(Fail::Volume(error)) => Attempt::Answered(Err(error)),
                Err(Fail::Stopped | Fail::Outdated) => Attempt::Unknown,
            },
            Route::Remote(host) => {
                let io = ClientIo::Extents { len };
                match self.ask(host, Ticket::default(), false, at, io).await {
                    Ok(Reply::Extents(extents)) => Attempt::Answered(Ok(extents)),
                    other => Attempt::from(other),
                }
            }
        })
        .await
    }

    async fn clear_range(&self, kind: OpKind, at: u64, len: u64) -> Result<(), VolumeError> {
        let work = self.pieces(at, len)?.into_iter();
        let work = work.map(|(at, len)| self.change(at, PieceChange::Clear { kind, len }));
        futures_util::stream::iter(work)
            .buffer_unordered(PIECES_MAX)
            .try_collect::<Vec<()>>()
            .await
            .map(|_| ())
    }

    /// The size may have grown since it was opened.
    pub async fn refresh(&self) {
        if let Ok((record, _)) = load(self.world(), self.0.id).await {
            self.0.size_bytes.set(record.size_bytes);
        }
    }
}

/// A change by the owner on this host.
async fn carry_out<W: World, P: Protocol>(
    owner: &Owner<W, P>,
    at: u64,
    change: PieceChange,
    ticket: Ticket,
) -> Result<(), Fail> {
    match change {
        PieceChange::Write { crcs, data } => owner.write(at, crcs, data, ticket).await,
        PieceChange::Clear { kind, len } => Box::pin(owner.clear(kind, at, len, ticket)).await,
    }
}

/// What came of one attempt.
enum Attempt<T> {
    Answered(Result<T, VolumeError>),
    /// It had no effect, and is to be tried again at once.
    Again,
    /// It had no effect.
    NotSent,
    /// It may have had its effect.
    Unknown,
    /// The host that was asked owns nothing; no effect.
    NotOwner,
}

impl<T> From<Result<Reply, CallError>> for Attempt<T> {
    fn from(reply: Result<Reply, CallError>) -> Self {
        match reply {
            Ok(Reply::VolumeFailed(error)) => Self::Answered(Err(error)),
            Ok(Reply::NotOwner) => Self::NotOwner,
            Err(CallError::Unreachable) => Self::NotSent,
            Ok(_) | Err(_) => Self::Unknown,
        }
    }
}

impl<W: World, S: Components> Volume for ObjectVolume<W, S> {
    fn info(&self) -> VolumeInfo {
        VolumeInfo {
            size_bytes: self.0.size_bytes.get(),
            min_block: SECTOR as u32,
            preferred_block: BLOCK as u32,
            max_len: IO_MAX,
            read_only: false,
        }
    }

    async fn read(&self, at: u64, len: u32) -> Result<Vec<Buf>, VolumeError> {
        let pieces = self.pieces(at, u64::from(len))?;
        if let [(at, len)] = pieces[..] {
            return self.read_piece(at, len).await;
        }
        let work = pieces.into_iter().map(|(at, len)| self.read_piece(at, len));
        let parts: Vec<Vec<Buf>> =
            futures_util::stream::iter(work).buffered(PIECES_MAX).try_collect().await?;
        let found: usize = parts.iter().map(|part| buf::total_len(part)).sum();
        assert_eq!(found, len as usize, "bytes at {at}");
        Ok(parts.into_iter().flatten().collect())
    }

    async fn write(&self, at: u64, data: Vec<Buf>) -> Result<(), VolumeError> {
        let pieces = self.pieces(at, buf::total_len(&data) as u64)?;
        if let [(at, _)] = pieces[..] {
            let crcs = client_crcs(at, &data);
            return self.change(at, PieceChange::Write { crcs, data }).await;
        }
        let mut rest = data.into_iter().collect::<std::collections::VecDeque<Buf>>();
        let mut cut = Vec::with_capacity(pieces.len());
        for (at, len) in pieces {
            let part = take_front(&mut rest, len as usize);
            cut.push((at, PieceChange::Write { crcs: client_crcs(at, &part), data: part }));
        }
        // A front end may hand over buffers without bytes.
        assert!(rest.iter().all(|b| b.is_empty()), "pieces cover exactly the data");
        let work = cut.into_iter().map(|(at, change)| self.change(at, change));
        futures_util::stream::iter(work)
            .buffer_unordered(PIECES_MAX)
            .try_collect::<Vec<()>>()
            .await
            .map(|_| ())
    }

    async fn flush(&self) -> Result<(), VolumeError> {
        Ok(())
    }

    async fn discard(&self, at: u64, len: u64) -> Result<(), VolumeError> {
        self.clear_range(OpKind::Discard, at, len).await
    }

    async fn zero(&self, at: u64, len: u64, flags: ZeroFlags) -> Result<(), VolumeError> {
        let kind = if flags.may_unmap { OpKind::Discard } else { OpKind::Zero };
        self.clear_range(kind, at, len).await
    }

    async fn extents(&self, at: u64, len: u64, most: usize) -> Result<Vec<Extent>, VolumeError> {
        let strips = self.world().bound(EXTENT_STRIPS_MAX, 2) as u64;
        let len = len.min(CHUNK * strips - at % CHUNK);
        let pieces = self.pieces(at, len)?;
        let (mut merged, mut left, mut together) = (Vec::<Extent>::new(), pieces.as_slice(), 1);
        // One strip, then more and more of them: those who ask for one extent at a time of a range
        // of gigabytes (qemu-img) do not make us look at all of it each time.
        while !left.is_empty() && merged.len() <= most {
            let (now, later) = left.split_at(left.len().min(together));
            let looked = now.iter().map(|&(at, len)| self.extents_of(at, len));
            for extent in try_join_all(looked).await?.into_iter().flatten() {
                match merged.last_mut() {
                    Some(last) if last.kind == extent.kind => last.len += extent.len,
                    _ => merged.push(extent),
                }
            }
            (left, together) = (later, PIECES_MAX.min(together * 2));
        }
        Ok(merged)
    }
}

/// Takes `len` bytes off the front.
fn take_front(rest: &mut std::collections::VecDeque<Buf>, mut len: usize) -> Vec<Buf> {
    let mut part = Vec::new();
    let wanted = len;
    while len > 0 {
        let first = rest.pop_front().expect("pieces cover exactly the data");
        if first.len() > len {
            rest.push_front(first.slice(len..));
            part.push(first.slice(..len));
            len = 0;
        } else {
            len -= first.len();
            part.push(first);
        }
    }
    assert_eq!(buf::total_len(&part), wanted, "bytes of a piece");
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_settle_in_order_and_survive_a_wrap() {
        let mut t = Tickets { client: ClientId(1), next: u32::MAX - 1, open: BTreeSet::new() };
        let a = t.issue(|| 2);
        let b = t.issue(|| 2);
        assert_eq!((a, b), ((ClientId(1), u32::MAX - 1), (ClientId(2), 1)));
        let c = t.issue(|| 3);
        t.open.remove(&b);
        assert_eq!(t.ticket(c).settled_below, 2);
        assert_eq!(t.ticket(a).settled_below, u32::MAX - 1);
    }

    #[test]
    fn data_is_cut_where_it_is_asked_for() {
        let mut rest: std::collections::VecDeque<Buf> =
            [vec![1u8; 3], vec![2; 5]].iter().map(|v| Buf::copy_from(v)).collect();
        let first = take_front(&mut rest, 4);
        assert_eq!(&*buf::join(&first), &[1, 1, 1, 2]);
        assert_eq!(buf::total_len(&take_front(&mut rest, 4)), 4);
        assert!(rest.is_empty());
    }
}

//! The durable record of a component: its small state, and the entries of its chunks. The journal
//! has the first, a checkpoint both.

use super::client_history::ClientHistory;
use super::component::Component;
use crate::limits;
use atoll_format::chunk::{
    COMPONENT_DOUBTFUL, COMPONENT_INCOMPLETE, MetaError, RawChunkEntry, RawClient, RawComponent,
    RawListed, RawRun,
};
use atoll_format::id::{ClientId, ComponentId, Epoch, ObjectId, OpId, Seq, Session, Ticket};
use atoll_format::op::{BlockRange, OpKind, OpRecord, Promise};
use atoll_format::units::{BLOCK, COMPONENT_MAX, SEQ_MAX};
use atoll_world::components::ComponentSpec;
use atoll_world::mutant;
use std::collections::VecDeque;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

impl Component {
    /// The record of its small state; `runs` is filled in by the checkpoint.
    pub(crate) fn encode(&self, runs: u32, to: &mut Vec<u8>) {
        // What is refused when it is read must not be written: it would be all of the group.
        let seqs = [self.promise.committed, self.promise.newest, self.doubt_until];
        assert!(seqs.iter().all(|seq| seq.0 <= SEQ_MAX), "{seqs:?} do not fit their 48 bits");
        let blocks = self.spec.blocks;
        assert!(u64::from(blocks) * BLOCK <= COMPONENT_MAX, "a component of {blocks} blocks");
        assert!(self.clients.len() <= limits::CLIENTS_MAX, "{} clients", self.clients.len());
        let from = to.len();
        let mut raw = RawComponent::new_zeroed();
        raw.local = self.local.into();
        raw.device = self.device;
        raw.flags |= if self.doubt_until > Seq(0) { COMPONENT_DOUBTFUL } else { 0 };
        raw.flags |= if self.incomplete.is_some() { COMPONENT_INCOMPLETE } else { 0 };
        raw.leg = self.spec.leg.into();
        raw.id = self.id.0.into();
        raw.object = self.spec.object.0.into();
        raw.blocks = self.spec.blocks.into();
        raw.epoch = self.spec.epoch.0.into();
        raw.fenced = self.promise.fenced.0.into();
        raw.session_epoch = self.session.epoch.0.into();
        raw.session_attach = self.session.attach.into();
        raw.layout = [1, 0, 0, 0];
        raw.committed = self.promise.committed.0.into();
        raw.newest = self.promise.newest.0.into();
        raw.doubt_until = self.doubt_until.0.into();
        raw.clients = (self.clients.len() as u32).into();
        raw.uncommitted = (self.uncommitted.len() as u32).into();
        raw.runs = runs.into();
        to.extend_from_slice(raw.as_bytes());
        if let Some(above) = self.incomplete {
            to.extend_from_slice(&above.0.to_le_bytes());
        }
        for (id, client) in &self.clients {
            let head = RawClient {
                client: id.0.into(),
                used: client.used.into(),
                settled_below: client.settled_below.into(),
                words: (client.words.len() as u32).into(),
            };
            to.extend_from_slice(head.as_bytes());
            for word in &client.words {
                to.extend_from_slice(&word.to_le_bytes());
            }
        }
        for op in self.uncommitted.values() {
            let mut raw = RawListed::new_zeroed();
            raw.seq = op.id.seq.0.into();
            raw.client = op.ticket.client.0.into();
            raw.epoch = op.id.epoch.0.into();
            raw.number = op.ticket.number.into();
            raw.settled_below = op.ticket.settled_below.into();
            raw.block = op.range.start.into();
            raw.blocks = op.range.count.into();
            raw.kind = op.kind as u8;
            to.extend_from_slice(raw.as_bytes());
        }
        let (len, said) = (to.len() - from, self.encoded_len());
        assert!(len == said, "a record of {len} bytes, {said} were expected");
    }

    /// Bytes that [`Component::encode`] writes.
    pub(crate) fn encoded_len(&self) -> usize {
        let words: usize = self.clients.values().map(|c| c.words.len()).sum();
        size_of::<RawComponent>()
            + self.incomplete.map_or(0, |above| size_of_val(&above.0))
            + self.clients.len() * size_of::<RawClient>()
            + words * 8
            + self.uncommitted.len() * size_of::<RawListed>()
    }
}

/// Reads a number of bytes from the front of `bytes`.
fn take<'a, T: FromBytes + zerocopy::KnownLayout + zerocopy::Immutable + zerocopy::Unaligned>(
    bytes: &mut &'a [u8],
) -> Result<&'a T, MetaError> {
    let (head, rest) = T::ref_from_prefix(bytes).map_err(|_| MetaError::Damaged)?;
    *bytes = rest;
    Ok(head)
}

/// Reads a record; returns the component (without chunks), how many runs of chunks follow, and
/// moves `bytes` behind it.
///
/// # Errors
/// `Damaged` for what contradicts itself, `Newer` for what a later version wrote.
pub(crate) fn decode(bytes: &mut &[u8]) -> Result<(Component, u32), MetaError> {
    let raw: &RawComponent = take(bytes)?;
    if raw.flags & !(COMPONENT_DOUBTFUL | COMPONENT_INCOMPLETE) != 0 {
        return Err(MetaError::Newer { what: "component flags", value: u32::from(raw.flags) });
    }
    if raw.layout != [1, 0, 0, 0] {
        return Err(MetaError::Newer { what: "layout", value: u32::from(raw.layout[0]) });
    }
    if raw.parent[0].get() != 0 || raw.key.get() != 0 {
        return Err(MetaError::Newer { what: "parent or key", value: 1 });
    }
    let spec = ComponentSpec {
        object: ObjectId(raw.object.get()),
        leg: raw.leg.get(),
        blocks: raw.blocks.get(),
        epoch: Epoch(raw.epoch.get()),
    };
    let seqs = [raw.committed.get(), raw.newest.get(), raw.doubt_until.get()];
    if u64::from(spec.blocks) * BLOCK > COMPONENT_MAX || seqs.iter().any(|&s| s > SEQ_MAX) {
        return Err(MetaError::Damaged);
    }
    let id = ComponentId(raw.id.get());
    let mut c = Component::new(raw.local.get(), id, spec, raw.device);
    c.durable = true;
    c.saved_blocks = c.spec.blocks;
    c.promise = Promise {
        fenced: Epoch(raw.fenced.get()),
        committed: Seq(raw.committed.get()),
        newest: Seq(raw.newest.get()),
    };
    c.session = Session { epoch: Epoch(raw.session_epoch.get()), attach: raw.session_attach.get() };
    c.queued_fence = c.promise.fenced;
    c.queued_session = c.session;
    c.committed_logged = c.promise.committed;
    c.doubt_until = Seq(raw.doubt_until.get());
    if raw.flags & COMPONENT_INCOMPLETE != 0 {
        c.incomplete = Some(Seq(take::<U64>(bytes)?.get()));
    }
    if raw.clients.get() as usize > limits::CLIENTS_MAX
        || raw.uncommitted.get() as usize > limits::UNCOMMITTED_MAX
    {
        return Err(MetaError::Damaged);
    }
    for _ in 0..raw.clients.get() {
        let head: &RawClient = take(bytes)?;
        let words = head.words.get();
        if words > limits::CLIENT_NUMBERS_MAX / 64 {
            return Err(MetaError::Damaged);
        }
        let mut client = ClientHistory {
            used: head.used.get(),
            settled_below: head.settled_below.get(),
            words: VecDeque::with_capacity(words as usize),
        };
        for _ in 0..words {
            client.words.push_back(take::<U64>(bytes)?.get());
        }
        c.client_uses = c.client_uses.max(client.used);
        c.clients.insert(ClientId(head.client.get()), client);
    }
    for _ in 0..raw.uncommitted.get() {
        let listed: &RawListed = take(bytes)?;
        let kind = OpKind::from_code(listed.kind).ok_or(MetaError::Damaged)?;
        let range = BlockRange { start: listed.block.get(), count: listed.blocks.get() };
        if !range.is_valid() || listed.seq.get() > SEQ_MAX {
            return Err(MetaError::Damaged);
        }
        let ticket = Ticket {
            client: ClientId(listed.client.get()),
            number: listed.number.get(),
            settled_below: listed.settled_below.get(),
        };
        let id = OpId { epoch: Epoch(listed.epoch.get()), seq: Seq(listed.seq.get()) };
        c.uncommitted.insert(id.seq, OpRecord { id, ticket, kind, range });
    }
    forget_newest(&mut c);
    Ok((c, raw.runs.get()))
}

/// The flaw of a record that says nothing of what is not committed.
fn forget_newest(c: &mut Component) {
    if mutant!("component.newest_not_saved") {
        c.promise.newest = c.promise.committed;
        c.uncommitted.clear();
    }
}

/// A component's record and its chunk entries, in runs.
pub(crate) fn encode_component(c: &Component, to: &mut Vec<u8>) {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for (chunk, _) in c.table.iter() {
        match runs.last_mut() {
            Some((first, count)) if *first + *count == chunk => *count += 1,
            _ => runs.push((chunk, 1)),
        }
    }
    let entries: u32 = runs.iter().map(|(_, count)| count).sum();
    assert!(entries == c.table.len(), "{entries} entries in runs, {} in all", c.table.len());
    c.encode(runs.len() as u32, to);
    for (first, count) in runs {
        let run = RawRun { first: first.into(), count: count.into() };
        to.extend_from_slice(run.as_bytes());
        for chunk in first..first + count {
            to.extend_from_slice(c.table.get(chunk).encode().as_bytes());
        }
    }
}

/// What is about to be written down of a component is what recovery would read.
pub(crate) fn audit_record(c: &Component, record: &[u8]) {
    let (id, mut rest) = (c.id, record);
    let (again, runs) = decode(&mut rest).expect("a record that was just made");
    assert_eq!((again.local, again.id, again.device), (c.local, id, c.device));
    assert_eq!(again.spec, c.spec, "size and place of {id}");
    assert_eq!(again.promise, c.promise, "promise of {id}");
    assert_eq!(again.session, c.session, "session of {id}");
    assert_eq!(again.doubt_until, c.doubt_until, "doubt about {id}");
    assert_eq!(again.incomplete, c.incomplete, "what {id} lacks");
    assert!(
        again.clients == c.clients,
        "clients of {id}: {:?}, not {:?}",
        again.clients,
        c.clients
    );
    assert_eq!(again.uncommitted, c.uncommitted, "operations of {id} above committed");
    let mut entries = 0;
    for _ in 0..runs {
        let (run, after) = RawRun::ref_from_prefix(rest).expect("a run that was just made");
        rest = after;
        for chunk in run.first.get()..run.first.get() + run.count.get() {
            let (raw, after) = RawChunkEntry::ref_from_prefix(rest).expect("and its entries");
            rest = after;
            let entry = raw.decode().expect("an entry that was just made");
            assert_eq!(entry, c.table.get(chunk), "chunk {chunk} of {id}");
            entries += 1;
        }
    }
    assert_eq!(entries, c.table.len(), "entries of {id}");
    assert!(rest.is_empty(), "{} bytes behind the record of {id}", rest.len());
}

//! One component: what its store promises about it, what its clients did, where its chunks are.
//!
//! The small state (promise, session, clients, operations above committed) is durable in the log;
//! before the log is trimmed, a record of it goes into the journal, and into every checkpoint.
//!
//! Invariants: what the `queued_*` fields say is what the next operation is checked against; what
//! `promise` and `session` say is durable.

use super::chunk::HotChunk;
use super::client_history::ClientHistory;
use super::log_index::LogShare;
use super::table::ChunkTable;
use crate::limits;
use atoll_format::checksum::bind;
use atoll_format::chunk::BlockEntry;
use atoll_format::id::{ClientId, ComponentId, Epoch, Seq, Session, Ticket};
use atoll_format::op::{BlockState, BlockTag, OpRecord, Promise};
use atoll_format::units::SEQ_MAX;
use atoll_world::components::{ComponentSpec, ComponentStatus, StoreError};
use atoll_world::mutant;
use std::collections::{BTreeMap, BTreeSet};

/// See the file.
#[derive(Debug)]
pub(crate) struct Component {
    pub local: u32,
    pub id: ComponentId,
    pub spec: ComponentSpec,
    /// Which capacity device.
    pub device: u8,
    /// Its creation is durable.
    pub durable: bool,
    /// A deletion is queued.
    pub deleting: bool,

    pub queued_fence: Epoch,
    pub queued_session: Session,
    /// Highest seq accepted in the queued session.
    pub session_seq: Seq,

    pub promise: Promise,
    pub session: Session,
    /// What the log or the journal says of `promise.committed`.
    pub committed_logged: Seq,
    /// Not 0: doubtful until this is committed.
    pub doubt_until: Seq,
    /// It is being brought up to date: it may lack any operation above this one, whatever
    /// `promise.newest` says.
    pub incomplete: Option<Seq>,
    pub clients: BTreeMap<ClientId, ClientHistory>,
    pub client_uses: u64,
    pub uncommitted: BTreeMap<Seq, OpRecord>,

    pub table: ChunkTable,
    pub hot: BTreeMap<u32, HotChunk>,
    /// Blocks whose bytes at home were found not to match.
    pub bad: BTreeSet<u32>,
    /// Blocks of it that lie in the log.
    pub log_share: LogShare,

    /// First segment with small state that neither journal nor checkpoint has.
    pub unsaved_from: Option<u64>,
    /// The size, in blocks, with which the journal or the checkpoint knows it; 0: neither does.
    /// Recovery reads them before the log, so none of its chunks may be there beyond that.
    pub saved_blocks: u32,
}

impl Component {
    pub(crate) fn new(local: u32, id: ComponentId, spec: ComponentSpec, device: u8) -> Self {
        Self {
            local,
            id,
            spec,
            device,
            durable: false,
            deleting: false,
            queued_fence: spec.epoch,
            queued_session: Session::default(),
            session_seq: Seq(0),
            promise: Promise { fenced: spec.epoch, ..Promise::default() },
            session: Session::default(),
            committed_logged: Seq(0),
            doubt_until: Seq(0),
            incomplete: None,
            clients: BTreeMap::new(),
            client_uses: 0,
            uncommitted: BTreeMap::new(),
            table: ChunkTable::default(),
            hot: BTreeMap::new(),
            bad: BTreeSet::new(),
            log_share: LogShare::default(),
            unsaved_from: None,
            saved_blocks: 0,
        }
    }

    pub(crate) fn status(&self, used_bytes: u64) -> ComponentStatus {
        ComponentStatus {
            id: self.id,
            spec: self.spec,
            promise: self.promise,
            session: self.session,
            used_bytes,
            doubtful: self.doubt_until > Seq(0),
            incomplete: self.incomplete,
            lost: self.is_lost(),
        }
    }

    /// Its capacity device has failed: what it held is lost, for good, whatever the device says
    /// later. Kept as a doubt that no commit resolves.
    pub(crate) fn is_lost(&self) -> bool {
        self.doubt_until.0 == SEQ_MAX
    }

    /// See [`Component::is_lost`].
    pub(crate) fn lose(&mut self) {
        self.doubt_until = Seq(SEQ_MAX);
    }

    /// Refuses a component whose capacity device has failed.
    ///
    /// # Errors
    /// [`StoreError::Failed`].
    pub(crate) fn check_lost(&self) -> Result<(), StoreError> {
        if self.is_lost() {
            return Err(StoreError::Failed("the component's capacity device has failed".into()));
        }
        Ok(())
    }

    /// Everything at or below `seq` is durable on every active member.
    pub(crate) fn commit(&mut self, seq: Seq) {
        if seq <= self.promise.committed || seq.0 > SEQ_MAX {
            return;
        }
        self.promise.committed = seq;
        self.uncommitted = self.uncommitted.split_off(&Seq(seq.0 + 1));
        if seq >= self.doubt_until && !self.is_lost() {
            self.doubt_until = Seq(0);
        }
        let first = self.uncommitted.first_key_value().map(|(&first, _)| first);
        assert!(first.is_none_or(|first| first > seq), "{first:?} is listed, {seq:?} committed");
    }

    /// Remembers an operation that is durable now.
    pub(crate) fn remember(&mut self, record: OpRecord) {
        self.promise.newest = self.promise.newest.max(record.id.seq);
        assert!(record.range.is_valid(), "no record could be read again: {record:?}");
        if record.id.seq > self.promise.committed {
            self.uncommitted.insert(record.id.seq, record);
        }
        self.note_ticket(record.ticket);
    }

    /// Forgets an operation that a copy undid.
    pub(crate) fn forget_ticket(&mut self, ticket: Ticket) {
        if let Some(client) = self.clients.get_mut(&ticket.client) {
            client.forget(ticket.number);
        }
    }

    /// See [`atoll_world::Components::tickets`].
    pub(crate) fn tickets(&self) -> Vec<Ticket> {
        let of = |(&client, c): (&ClientId, &ClientHistory)| {
            let settled_below = c.settled_below;
            let ticket = move |number| Ticket { client, number, settled_below };
            c.numbers().map(ticket).collect::<Vec<_>>()
        };
        self.clients.iter().flat_map(of).collect()
    }

    pub(crate) fn note_ticket(&mut self, ticket: Ticket) {
        if mutant!("component.tickets_not_noted") {
            return;
        }
        if ticket.number == 0 {
            return;
        }
        self.client_uses += 1;
        if !self.clients.contains_key(&ticket.client) && self.clients.len() >= limits::CLIENTS_MAX {
            let oldest = self.clients.iter().min_by_key(|(_, c)| c.used).map(|(&id, _)| id);
            if let Some(oldest) = oldest {
                self.clients.remove(&oldest);
            }
        }
        let uses = self.client_uses;
        let client = self.clients.entry(ticket.client).or_default();
        client.used = uses;
        client.settle(ticket.settled_below);
        client.mark(ticket.number);
        assert!(
            client.has(ticket.number)
                || ticket.number - client.settled_below >= limits::CLIENT_NUMBERS_MAX,
            "{ticket:?} is not remembered"
        );
        let clients = self.clients.len();
        assert!(clients <= limits::CLIENTS_MAX, "{clients} clients are remembered");
    }

    /// Whether that operation is here.
    pub(crate) fn applied(&self, ticket: Ticket) -> bool {
        self.clients.get(&ticket.client).is_some_and(|c| c.has(ticket.number))
    }

    /// Whether a ticket can be remembered: its number is not too far above the settled ones.
    pub(crate) fn ticket_fits(&self, ticket: Ticket) -> bool {
        let settled = self
            .clients
            .get(&ticket.client)
            .map_or(ticket.settled_below, |c| c.settled_below.max(ticket.settled_below));
        ticket.number == 0 || ticket.number.saturating_sub(settled) < limits::CLIENT_NUMBERS_MAX
    }

    /// Tag from an entry: a bound checksum becomes that of the payload.
    pub(crate) fn tag(&self, block: u32, entry: BlockEntry) -> BlockTag {
        let raw = entry.state == BlockState::Raw;
        let crc = if raw { bind(entry.crc, self.id, u64::from(block)) } else { 0 };
        BlockTag { seq: entry.seq, state: entry.state, crc }
    }

    /// Newest seq of a chunk, 0 if it was never touched.
    pub(crate) fn chunk_newest(&self, chunk: u32) -> Seq {
        let hot = self.hot.get(&chunk).map_or(Seq(0), |h| h.newest);
        self.table.get(chunk).max_seq.max(hot)
    }

    /// The first chunk from `from` on that was ever touched.
    pub(crate) fn next_chunk(&self, from: u32) -> Option<u32> {
        let table = self.table.next(from).map(|(c, _)| c);
        let hot = self.hot.range(from..).next().map(|(&c, _)| c);
        let next = match (table, hot) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        assert!(next.is_none_or(|next| next >= from), "{next:?} does not come after {from}");
        assert!(next.is_some() == (table.is_some() || hot.is_some()), "a chunk is left out");
        next
    }

    /// It is being brought up to date from that operation on. The lowest stays: what it lacked
    /// before it lacks until it is complete.
    pub(crate) fn lacks_above(&mut self, above: Seq) {
        let before = self.incomplete;
        self.incomplete = Some(self.incomplete.map_or(above, |lower| lower.min(above)));
        let now = self.incomplete;
        assert!(
            now <= Some(above) && before.is_none_or(|before| now <= Some(before)),
            "what it lacked before, {before:?}, it lacks until it is complete: {now:?}"
        );
    }

    /// Whether the journal or the checkpoint knows it.
    pub(crate) fn is_saved(&self) -> bool {
        self.saved_blocks > 0
    }

    /// Takes over small state that a record holds; the chunks stay.
    pub(crate) fn restore(&mut self, other: Self) {
        self.spec = other.spec;
        self.durable = true;
        self.saved_blocks = self.spec.blocks;
        self.queued_fence = other.queued_fence;
        self.queued_session = other.queued_session;
        self.promise = other.promise;
        self.session = other.session;
        self.committed_logged = other.committed_logged;
        self.doubt_until = other.doubt_until;
        self.incomplete = other.incomplete;
        self.clients = other.clients;
        self.client_uses = other.client_uses;
        self.uncommitted = other.uncommitted;
    }
}

#[cfg(test)]
mod tests {
    use super::super::client_history::ClientHistory;
    use super::super::component_record::{decode, encode_component};
    use super::Component;
    use crate::limits;
    use atoll_format::chunk::ChunkEntry;
    use atoll_format::id::{ClientId, ComponentId, Epoch, ObjectId, OpId, Seq, Session, Ticket};
    use atoll_format::op::{BlockRange, OpKind, OpRecord};
    use atoll_world::components::ComponentSpec;

    fn component() -> Component {
        let spec = ComponentSpec { object: ObjectId(5), leg: 2, blocks: 1_000, epoch: Epoch(3) };
        Component::new(7, ComponentId(9), spec, 1)
    }

    fn record(seq: u64, client: u64, number: u32, settled_below: u32) -> OpRecord {
        OpRecord {
            id: OpId { epoch: Epoch(3), seq: Seq(seq) },
            ticket: Ticket { client: ClientId(client), number, settled_below },
            kind: OpKind::Write,
            range: BlockRange { start: 1, count: 2 },
        }
    }

    #[test]
    fn applied_numbers_are_remembered_until_they_are_settled() {
        let mut client = ClientHistory::default();
        let mut model = std::collections::BTreeSet::new();
        let mut settled = 0;
        for i in 0..2_000u32 {
            let number = 1 + (i * 37) % 300 + i / 2;
            if i % 5 == 0 && i / 3 > settled {
                settled = i / 3;
                client.settle(settled);
            }
            if number >= settled {
                client.mark(number);
                model.insert(number);
            }
            for probe in [number, number + 1, settled, settled + 63, settled + 64, settled + 65] {
                let expect = probe < settled || model.contains(&probe);
                assert_eq!(client.has(probe), expect, "{probe} at {i}, settled {settled}");
            }
            if i % 7 == 0 && number >= settled {
                client.forget(number);
                model.remove(&number);
            }
            let open: Vec<u32> = model.range(settled..).copied().collect();
            assert!(client.numbers().eq(open), "at {i}");
        }
        assert!(client.words.len() <= 11);
    }

    #[test]
    fn only_so_many_clients_are_remembered_and_the_idle_one_goes_first() {
        let mut c = component();
        for client in 0..=limits::CLIENTS_MAX as u64 {
            c.remember(record(client + 1, client, 1, 1));
            c.remember(record(client + 100, 1, client as u32 + 1, 1));
        }
        let ticket = |client, number| Ticket { client: ClientId(client), number, settled_below: 0 };
        assert!(!c.applied(ticket(0, 1)), "the one used longest ago");
        assert!(c.applied(ticket(1, 1)) && c.applied(ticket(64, 1)));
        assert_eq!(c.clients.len(), limits::CLIENTS_MAX);
        let far = Ticket { client: ClientId(1), number: 5_000, settled_below: 1 };
        assert!(!c.ticket_fits(far) && c.ticket_fits(ticket(1, 4_000)));
    }

    #[test]
    fn the_bytes_of_version_1_never_change() {
        let mut c = component();
        c.promise.fenced = Epoch(4);
        c.promise.newest = Seq(0x0102_0304_0506);
        c.session = Session { epoch: Epoch(4), attach: 2 };
        for (seq, client, number) in [(1, 0xc1, 1), (2, 0xc1, 70), (0x0102_0304_0506, 0xc2, 3)] {
            c.remember(record(seq, client, number, 1));
        }
        c.commit(Seq(1));
        c.doubt_until = Seq(500);
        for chunk in [0, 1, 3] {
            let entry = ChunkEntry { slot: 17 + chunk, max_seq: Seq(2), ..c.table.get(chunk) };
            c.table.set(chunk, entry);
        }
        let mut bytes = Vec::new();
        encode_component(&c, &mut bytes);
        let line = |line: &[u8]| line.iter().map(|b| format!("{b:02x}")).collect::<String>() + "\n";
        let now: String = bytes.chunks(16).map(line).collect();
        assert!(now == include_str!("../../golden/component.v1.hex"), "they are now:\n{now}");
    }

    #[test]
    fn a_record_brings_back_the_small_state() {
        let mut c = component();
        c.promise.fenced = Epoch(4);
        c.session = Session { epoch: Epoch(4), attach: 2 };
        for seq in 1..200 {
            c.remember(record(seq, seq % 3, seq as u32, seq as u32 / 2));
        }
        c.commit(Seq(150));
        c.doubt_until = Seq(500);
        c.incomplete = Some(Seq(77));
        let mut bytes = Vec::new();
        c.encode(0, &mut bytes);
        assert_eq!(bytes.len(), c.encoded_len());
        let (again, runs) = decode(&mut &bytes[..]).expect("valid");
        assert_eq!(runs, 0);
        assert_eq!(again.promise, c.promise);
        assert_eq!(again.session, c.session);
        assert_eq!(again.clients, c.clients);
        assert_eq!(again.uncommitted, c.uncommitted);
        assert_eq!(again.uncommitted.len(), 49);
        assert_eq!(again.status(0), c.status(0));
        for cut in 0..bytes.len() {
            assert!(decode(&mut &bytes[..cut]).is_err(), "cut at {cut}");
        }
        c.commit(Seq(500));
        assert!(!c.status(0).doubtful && c.uncommitted.is_empty());
    }
}

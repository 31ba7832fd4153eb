//! What hosts say to each other. The table of all messages is in `docs/protocol.md`.
//!
//! Data carries a CRC-32C per 4 KiB block in its body; decoding verifies it (of an `Append`
//! the store does), so that a payload that changed on the way is refused before anything acts on
//! it. The CRC is never recomputed
//! for sending: it is the front end's, or the store's.

use crate::codec::{Dec, Enc};
use atoll_format::checksum::{ZERO_BLOCK_CRC, block_crcs, crc};
use atoll_format::id::{
    ClientId, ComponentId, Epoch, GroupId, Incarnation, ObjectId, OpId, Seq, Session, Ticket,
};
use atoll_format::op::{BlockRange, BlockState, BlockTag, OpKind, OpRecord, Promise};
use atoll_format::units::BLOCK_LEN;
use atoll_transport::{BadMessage, Encoded, Message};
use atoll_world::components::{
    ComponentOp, ComponentSpec, ComponentStatus, Copy, CopyBlock, ReadBlocks, SetTickets,
};
use atoll_world::volume::{Extent, ExtentKind};
use atoll_world::{Buf, StoreError, VolumeError, buf, mutant};

/// To a host.
#[derive(Debug)]
pub enum Request {
    /// Owner's host asks for leases on objects whose active members the receiver holds (R9).
    Renew {
        /// This life of the asking host.
        incarnation: Incarnation,
        /// Rises with each renewal; give-backs name it.
        serial: u64,
        /// What for.
        objects: Vec<(ObjectId, Epoch)>,
    },
    /// The owner has stopped serving these objects; grants up to `serial` end now.
    GiveBack {
        /// The life that held them.
        incarnation: Incarnation,
        /// The last renewal that counted.
        serial: u64,
        /// Which objects.
        objects: Vec<ObjectId>,
    },
    /// Refuse lower epochs; answer when no lease of an older owner can be running (R6, R9).
    Fence {
        /// Of which object.
        object: ObjectId,
        /// The component here.
        component: ComponentId,
        /// The new owner's.
        epoch: Epoch,
    },
    /// Opens a session (R2).
    Attach {
        /// Which component.
        component: ComponentId,
        /// Higher than any before.
        session: Session,
        /// To bring it up to date from this operation on: it may lack any above it until
        /// [`Request::Complete`] says otherwise.
        incomplete: Option<Seq>,
    },
    /// The component lacks nothing any more: it is about to be promoted, or is all there is.
    Complete {
        /// Which component.
        component: ComponentId,
        /// The open one.
        session: Session,
        /// It has every operation up to this one, also those of which a copy shows nothing.
        up_to: Seq,
    },
    /// Operations above the watermark, ascending.
    Uncommitted {
        /// Which component.
        component: ComponentId,
        /// The asker's epoch.
        epoch: Epoch,
        /// Below or at: not wanted.
        after: Seq,
    },
    /// Operations of clients that are here and not settled (R21); `after`: exclusive.
    Tickets {
        /// Which component.
        component: ComponentId,
        /// The asker's epoch.
        epoch: Epoch,
        /// From where on, by client and number.
        after: (ClientId, u32),
    },
    /// Remembers and forgets operations of clients; in order with appends.
    SetTickets {
        /// Which component.
        component: ComponentId,
        /// The open one.
        session: Session,
        /// Which operations.
        set: SetTickets,
    },
    /// Whether that operation of a client is here (R21).
    Applied {
        /// Which component.
        component: ComponentId,
        /// The asker's epoch.
        epoch: Epoch,
        /// Whose operation.
        ticket: Ticket,
    },
    /// Whether the component is here, and its facts.
    Status {
        /// Which component.
        component: ComponentId,
    },
    /// Makes a component.
    Create {
        /// In which disk group.
        group: GroupId,
        /// Which component.
        component: ComponentId,
        /// With what.
        spec: ComponentSpec,
    },
    /// Removes a component.
    Delete {
        /// Which component.
        component: ComponentId,
        /// Refused if a higher epoch was promised.
        epoch: Epoch,
    },
    /// Raises a component's largest size.
    Grow {
        /// Which component.
        component: ComponentId,
        /// The owner's epoch.
        epoch: Epoch,
        /// In blocks.
        blocks: u32,
    },
    /// The tags of a chunk.
    Tags {
        /// Which component.
        component: ComponentId,
        /// The owner's epoch.
        epoch: Epoch,
        /// Which chunk.
        chunk: u32,
    },
    /// Chunks with operations past `since`.
    ChunksSince {
        /// Which component.
        component: ComponentId,
        /// The owner's epoch.
        epoch: Epoch,
        /// Below or at: not wanted.
        since: Seq,
        /// First chunk wanted.
        first: u32,
    },
    /// Everything at or below is durable on every active member.
    Committed {
        /// Which component.
        component: ComponentId,
        /// The owner's epoch.
        epoch: Epoch,
        /// The watermark.
        seq: Seq,
    },
    /// Sets a slot aside.
    Reserve {
        /// Which component.
        component: ComponentId,
        /// The owner's epoch.
        epoch: Epoch,
        /// Which chunk.
        chunk: u32,
    },
    /// One operation of the object.
    Append {
        /// Which component.
        component: ComponentId,
        /// In this session.
        session: Session,
        /// What.
        op: ComponentOp,
    },
    /// Blocks, verified.
    Read {
        /// Which component.
        component: ComponentId,
        /// The owner's epoch.
        epoch: Epoch,
        /// Which blocks.
        range: BlockRange,
    },
    /// Blocks of another member.
    CopyIn {
        /// Which component.
        component: ComponentId,
        /// In this session.
        session: Session,
        /// What.
        copy: Copy,
    },
    /// A client's I/O, to the owner.
    Client(ClientRequest),
    /// Management between hosts: JSON, see `atoll-node`.
    Admin(Vec<u8>),
}

/// One piece of a client's I/O; never crosses a strip.
#[derive(Debug)]
pub struct ClientRequest {
    /// Of which object.
    pub object: ObjectId,
    /// Whose operation; `number` 0 for reads.
    pub ticket: Ticket,
    /// It may have been applied already: look before doing it again (R21).
    pub retry: bool,
    /// First byte, in the object.
    pub at: u64,
    /// The newest admission that the asking host knows of. A change under an older one is not
    /// carried out: it may have been on its way while its client went elsewhere (row 58).
    pub admission: u64,
    /// What.
    pub io: ClientIo,
}

/// What a client wants done.
#[derive(Debug)]
pub enum ClientIo {
    /// To be admitted: from now on changes under older admissions are refused, once, so that only
    /// those come again whose clients are still there.
    Admit,
    /// Bytes.
    Read {
        /// How many.
        len: u32,
    },
    /// Store bytes. `crcs` has one CRC per block if the range is whole blocks, else one in all.
    Write {
        /// See above.
        crcs: Vec<u32>,
        /// The bytes.
        data: Vec<Buf>,
    },
    /// Zeros that keep their place.
    Zero {
        /// How many bytes.
        len: u32,
    },
    /// Zeros without space.
    Discard {
        /// How many bytes.
        len: u32,
    },
    /// What is there.
    Extents {
        /// How many bytes.
        len: u64,
    },
}

impl ClientIo {
    /// Whether it changes bytes.
    pub fn is_change(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::Zero { .. } | Self::Discard { .. })
    }
}

/// The answer.
#[derive(Debug)]
pub enum Reply {
    /// Done.
    Done,
    /// Leases, counted by the owner from before it asked.
    Granted {
        /// Of the renewal.
        serial: u64,
        /// Not these: a higher epoch is being fenced here, or they are not known (R10).
        excluded: Vec<ObjectId>,
    },
    /// Durable facts.
    Promise {
        /// The facts.
        promise: Promise,
        /// Acknowledged data may be missing here.
        doubtful: bool,
    },
    /// Chunks; `more`: ask again from the one after the last.
    Chunks {
        /// Chunk and its newest seq.
        chunks: Vec<(u32, Seq)>,
        /// There may be more.
        more: bool,
    },
    /// Operations; `more`: ask again from the last.
    Ops {
        /// Ascending.
        ops: Vec<OpRecord>,
        /// There may be more.
        more: bool,
    },
    /// Operations of clients; `more`: ask again from the last.
    Tickets {
        /// Ascending by client and number.
        tickets: Vec<Ticket>,
        /// There may be more.
        more: bool,
    },
    /// The newest admission; a change that gets this has not been carried out.
    Admitted(u64),
    /// Yes or no.
    Yes(bool),
    /// A component's facts.
    Status(ComponentStatus),
    /// Tags of one chunk.
    Tags(Vec<BlockTag>),
    /// Blocks.
    Blocks(ReadBlocks),
    /// How many blocks were put in.
    Copied(u32),
    /// The store refuses or fails.
    Failed(StoreError),
    /// Bytes for a client; CRCs as in [`ClientIo::Write`].
    Data {
        /// See above.
        crcs: Vec<u32>,
        /// The bytes.
        data: Vec<Buf>,
    },
    /// What a range holds.
    Extents(Vec<Extent>),
    /// This host does not own the object; nothing was done.
    NotOwner,
    /// This host stopped owning the object meanwhile; the outcome is unknown: retry.
    OwnerStopped,
    /// The client's operation failed.
    VolumeFailed(VolumeError),
    /// Management's answer.
    Admin(Vec<u8>),
}

/// CRCs of a client's data: one per block if the range is whole blocks, else one in all.
pub fn client_crcs(at: u64, data: &[Buf]) -> Vec<u32> {
    if is_whole_blocks(at, buf::total_len(data)) {
        if data.iter().all(|b| b.len().is_multiple_of(BLOCK_LEN)) {
            return data.iter().flat_map(|b| block_crcs(b)).collect();
        }
        return block_crcs(&buf::join(data)).collect();
    }
    vec![data.iter().fold(0, |c, b| atoll_format::checksum::crc_append(c, b))]
}

fn is_whole_blocks(at: u64, len: usize) -> bool {
    at.is_multiple_of(BLOCK_LEN as u64) && len.is_multiple_of(BLOCK_LEN) && len > 0
}

fn verified(at: u64, crcs: Vec<u32>, data: Vec<Buf>) -> Result<(Vec<u32>, Vec<Buf>), BadMessage> {
    if client_crcs(at, &data) == crcs {
        Ok((crcs, data))
    } else {
        Err(BadMessage("payload does not match its checksums"))
    }
}

fn enc_range(e: &mut Enc, r: BlockRange) {
    e.u32(r.start);
    e.u16(r.count);
}
fn dec_range(d: &mut Dec<'_>) -> Result<BlockRange, BadMessage> {
    let range = BlockRange { start: d.u32()?, count: d.u16()? };
    if range.is_valid() { Ok(range) } else { Err(BadMessage("a range crosses a chunk")) }
}
fn enc_session(e: &mut Enc, s: Session) {
    e.u32(s.epoch.0);
    e.u32(s.attach);
}
fn dec_session(d: &mut Dec<'_>) -> Result<Session, BadMessage> {
    Ok(Session { epoch: Epoch(d.u32()?), attach: d.u32()? })
}
fn enc_ticket(e: &mut Enc, t: Ticket) {
    e.u64(t.client.0);
    e.u32(t.number);
    e.u32(t.settled_below);
}
fn dec_ticket(d: &mut Dec<'_>) -> Result<Ticket, BadMessage> {
    Ok(Ticket { client: ClientId(d.u64()?), number: d.u32()?, settled_below: d.u32()? })
}
fn enc_tickets(e: &mut Enc, set: &SetTickets) {
    e.list(&set.add, |e, &ticket| enc_ticket(e, ticket));
    e.list(&set.forget, |e, &ticket| enc_ticket(e, ticket));
}
fn dec_tickets(d: &mut Dec<'_>) -> Result<SetTickets, BadMessage> {
    Ok(SetTickets { add: d.list(16, dec_ticket)?, forget: d.list(16, dec_ticket)? })
}
fn enc_tag(e: &mut Enc, t: &BlockTag) {
    e.u64(t.seq.0);
    e.u8(t.state as u8);
    e.u32(t.crc);
}
fn dec_tag(d: &mut Dec<'_>) -> Result<BlockTag, BadMessage> {
    let seq = Seq(d.u64()?);
    let state = BlockState::from_code(d.u8()?).ok_or(BadMessage("unknown block state"))?;
    Ok(BlockTag { seq, state, crc: d.u32()? })
}
fn enc_spec(e: &mut Enc, s: &ComponentSpec) {
    e.u64(s.object.0);
    e.u16(s.leg);
    e.u32(s.blocks);
    e.u32(s.epoch.0);
}
fn dec_spec(d: &mut Dec<'_>) -> Result<ComponentSpec, BadMessage> {
    Ok(ComponentSpec {
        object: ObjectId(d.u64()?),
        leg: d.u16()?,
        blocks: d.u32()?,
        epoch: Epoch(d.u32()?),
    })
}
fn enc_promise(e: &mut Enc, p: &Promise) {
    e.u32(p.fenced.0);
    e.u64(p.committed.0);
    e.u64(p.newest.0);
}
fn dec_promise(d: &mut Dec<'_>) -> Result<Promise, BadMessage> {
    Ok(Promise { fenced: Epoch(d.u32()?), committed: Seq(d.u64()?), newest: Seq(d.u64()?) })
}

impl Message for Request {
    fn leads_on(&self) -> bool {
        // An owner asks the hosts of its members. Management that is passed on to another host may
        // ask a third one; the API has 512 calls under way at most, and they end by 3 s deadlines.
        matches!(self, Self::Client(_) | Self::Admin(_))
    }

    fn reply_bytes(&self) -> u64 {
        match self {
            Self::Read { range, .. } => u64::from(range.count) * BLOCK_LEN as u64,
            Self::Client(ClientRequest { io: ClientIo::Read { len }, .. }) => u64::from(*len),
            _ => 0,
        }
    }

    fn encode(self) -> Encoded {
        let mut e = Enc::default();
        let mut payload = Vec::new();
        let kind = match self {
            Self::Renew { incarnation, serial, objects } => {
                e.u64(incarnation.0);
                e.u64(serial);
                e.list(&objects, |e, (object, epoch)| {
                    e.u64(object.0);
                    e.u32(epoch.0);
                });
                1
            }
            Self::GiveBack { incarnation, serial, objects } => {
                e.u64(incarnation.0);
                e.u64(serial);
                e.list(&objects, |e, object| e.u64(object.0));
                2
            }
            Self::Fence { object, component, epoch } => {
                e.u64(object.0);
                e.u64(component.0);
                e.u32(epoch.0);
                3
            }
            Self::Attach { component, session, incomplete } => {
                e.u64(component.0);
                enc_session(&mut e, session);
                match incomplete {
                    Some(above) => {
                        e.u64(above.0);
                        28
                    }
                    None => 4,
                }
            }
            Self::Complete { component, session, up_to } => {
                e.u64(component.0);
                enc_session(&mut e, session);
                if up_to == Seq(0) {
                    29
                } else {
                    e.u64(up_to.0);
                    30
                }
            }
            Self::Uncommitted { component, epoch, after } => {
                e.u64(component.0);
                e.u32(epoch.0);
                e.u64(after.0);
                5
            }
            Self::Applied { component, epoch, ticket } => {
                e.u64(component.0);
                e.u32(epoch.0);
                enc_ticket(&mut e, ticket);
                6
            }
            Self::Tickets { component, epoch, after: (client, number) } => {
                e.u64(component.0);
                e.u32(epoch.0);
                e.u64(client.0);
                e.u32(number);
                24
            }
            Self::SetTickets { component, session, set } => {
                e.u64(component.0);
                enc_session(&mut e, session);
                enc_tickets(&mut e, &set);
                25
            }
            Self::Status { component } => {
                e.u64(component.0);
                7
            }
            Self::Create { group, component, spec } => {
                e.u64(group.0);
                e.u64(component.0);
                enc_spec(&mut e, &spec);
                8
            }
            Self::Delete { component, epoch } => {
                e.u64(component.0);
                e.u32(epoch.0);
                9
            }
            Self::Grow { component, epoch, blocks } => {
                e.u64(component.0);
                e.u32(epoch.0);
                e.u32(blocks);
                10
            }
            Self::Tags { component, epoch, chunk } => {
                e.u64(component.0);
                e.u32(epoch.0);
                e.u32(chunk);
                11
            }
            Self::ChunksSince { component, epoch, since, first } => {
                e.u64(component.0);
                e.u32(epoch.0);
                e.u64(since.0);
                e.u32(first);
                12
            }
            Self::Committed { component, epoch, seq } => {
                e.u64(component.0);
                e.u32(epoch.0);
                e.u64(seq.0);
                13
            }
            Self::Reserve { component, epoch, chunk } => {
                e.u64(component.0);
                e.u32(epoch.0);
                e.u32(chunk);
                14
            }
            Self::Append { component, session, op } => {
                e.u64(component.0);
                enc_session(&mut e, session);
                e.u32(op.id.epoch.0);
                e.u64(op.id.seq.0);
                enc_ticket(&mut e, op.ticket);
                e.u8(op.kind as u8);
                enc_range(&mut e, op.range);
                e.u64(op.committed.0);
                e.list(&op.crcs, |e, c| e.u32(*c));
                payload = op.payload;
                15
            }
            Self::Read { component, epoch, range } => {
                e.u64(component.0);
                e.u32(epoch.0);
                enc_range(&mut e, range);
                16
            }
            Self::CopyIn { component, session, copy } => {
                e.u64(component.0);
                enc_session(&mut e, session);
                e.u32(copy.chunk);
                e.u8(u8::from(copy.only_if.is_some()));
                e.u64(copy.only_if.unwrap_or_default().0);
                e.list(&copy.blocks, |e, b| {
                    e.u32(b.block);
                    enc_tag(e, &b.tag);
                });
                let with_tickets = !copy.tickets.is_empty();
                if with_tickets {
                    enc_tickets(&mut e, &copy.tickets);
                }
                payload = copy.blocks.into_iter().filter_map(|b| b.bytes).collect();
                // Hosts that do not know the second have frozen the first.
                if with_tickets { 27 } else { 17 }
            }
            Self::Client(ClientRequest { object, ticket, retry, at, admission, io }) => {
                e.u64(object.0);
                enc_ticket(&mut e, ticket);
                e.u8(u8::from(retry));
                e.u64(at);
                e.u64(admission);
                match io {
                    ClientIo::Admit => 26,
                    ClientIo::Read { len } => {
                        e.u32(len);
                        18
                    }
                    ClientIo::Write { crcs, data } => {
                        e.list(&crcs, |e, c| e.u32(*c));
                        payload = data;
                        19
                    }
                    ClientIo::Zero { len } => {
                        e.u32(len);
                        20
                    }
                    ClientIo::Discard { len } => {
                        e.u32(len);
                        21
                    }
                    ClientIo::Extents { len } => {
                        e.u64(len);
                        22
                    }
                }
            }
            Self::Admin(json) => {
                e.0 = json;
                23
            }
        };
        Encoded { kind, body: e.0, payload, payload_checked_by_receiver: true }
    }

    fn decode(kind: u16, body: &[u8], payload: Vec<Buf>) -> Result<Self, BadMessage> {
        let mut d = Dec(body);
        let d = &mut d;
        if !payload.is_empty() && !matches!(kind, 15 | 17 | 19 | 27) {
            return Err(BadMessage("a payload where none belongs"));
        }
        let request = match kind {
            1 => Self::Renew {
                incarnation: Incarnation(d.u64()?),
                serial: d.u64()?,
                objects: d.list(12, |d| Ok((ObjectId(d.u64()?), Epoch(d.u32()?))))?,
            },
            2 => Self::GiveBack {
                incarnation: Incarnation(d.u64()?),
                serial: d.u64()?,
                objects: d.list(8, |d| Ok(ObjectId(d.u64()?)))?,
            },
            3 => Self::Fence {
                object: ObjectId(d.u64()?),
                component: ComponentId(d.u64()?),
                epoch: Epoch(d.u32()?),
            },
            4 | 28 => Self::Attach {
                component: ComponentId(d.u64()?),
                session: dec_session(d)?,
                incomplete: if kind == 28 { Some(Seq(d.u64()?)) } else { None },
            },
            29 | 30 => Self::Complete {
                component: ComponentId(d.u64()?),
                session: dec_session(d)?,
                up_to: if kind == 30 { Seq(d.u64()?) } else { Seq(0) },
            },
            5 => Self::Uncommitted {
                component: ComponentId(d.u64()?),
                epoch: Epoch(d.u32()?),
                after: Seq(d.u64()?),
            },
            6 => Self::Applied {
                component: ComponentId(d.u64()?),
                epoch: Epoch(d.u32()?),
                ticket: dec_ticket(d)?,
            },
            7 => Self::Status { component: ComponentId(d.u64()?) },
            8 => Self::Create {
                group: GroupId(d.u64()?),
                component: ComponentId(d.u64()?),
                spec: dec_spec(d)?,
            },
            9 => Self::Delete { component: ComponentId(d.u64()?), epoch: Epoch(d.u32()?) },
            10 => Self::Grow {
                component: ComponentId(d.u64()?),
                epoch: Epoch(d.u32()?),
                blocks: d.u32()?,
            },
            11 => Self::Tags {
                component: ComponentId(d.u64()?),
                epoch: Epoch(d.u32()?),
                chunk: d.u32()?,
            },
            12 => Self::ChunksSince {
                component: ComponentId(d.u64()?),
                epoch: Epoch(d.u32()?),
                since: Seq(d.u64()?),
                first: d.u32()?,
            },
            13 => Self::Committed {
                component: ComponentId(d.u64()?),
                epoch: Epoch(d.u32()?),
                seq: Seq(d.u64()?),
            },
            14 => Self::Reserve {
                component: ComponentId(d.u64()?),
                epoch: Epoch(d.u32()?),
                chunk: d.u32()?,
            },
            15 => {
                let component = ComponentId(d.u64()?);
                let session = dec_session(d)?;
                let id = OpId { epoch: Epoch(d.u32()?), seq: Seq(d.u64()?) };
                let ticket = dec_ticket(d)?;
                let kind = OpKind::from_code(d.u8()?).ok_or(BadMessage("unknown operation"))?;
                let range = dec_range(d)?;
                let committed = Seq(d.u64()?);
                let crcs = d.list(4, Dec::u32)?;
                let blocks = if kind == OpKind::Write { usize::from(range.count) } else { 0 };
                if buf::total_len(&payload) != blocks * BLOCK_LEN || crcs.len() != blocks {
                    return Err(BadMessage("payload does not fit the range"));
                }
                // Whether the bytes are those of the CRCs the store finds out: its refusal closes
                // the session, which one of the transport would not.
                let checked = false;
                let op = ComponentOp { id, ticket, kind, range, committed, crcs, checked, payload };
                Self::Append { component, session, op }
            }
            16 => Self::Read {
                component: ComponentId(d.u64()?),
                epoch: Epoch(d.u32()?),
                range: dec_range(d)?,
            },
            17 | 27 => {
                let component = ComponentId(d.u64()?);
                let session = dec_session(d)?;
                let chunk = d.u32()?;
                let conditional = d.bool()?;
                let only_if = Some(Seq(d.u64()?)).filter(|_| conditional);
                let payload = buf::join(&payload);
                let mut at = 0;
                let blocks = d.list(17, |d| {
                    let (block, tag) = (d.u32()?, dec_tag(d)?);
                    let mut bytes = None;
                    if tag.state == BlockState::Raw {
                        if at + BLOCK_LEN > payload.len() {
                            return Err(BadMessage("payload is shorter than its blocks"));
                        }
                        let block = payload.slice(at..at + BLOCK_LEN);
                        at += BLOCK_LEN;
                        if crc(&block) != tag.crc {
                            return Err(BadMessage("payload does not match its checksums"));
                        }
                        bytes = Some(block);
                    }
                    Ok(CopyBlock { block, tag, bytes })
                })?;
                if at != payload.len() {
                    return Err(BadMessage("payload is longer than its blocks"));
                }
                let tickets = if kind == 27 { dec_tickets(d)? } else { SetTickets::default() };
                Self::CopyIn { component, session, copy: Copy { chunk, blocks, only_if, tickets } }
            }
            18..=22 | 26 => {
                let object = ObjectId(d.u64()?);
                let ticket = dec_ticket(d)?;
                let retry = d.bool()?;
                let at = d.u64()?;
                let admission = d.u64()?;
                let io = match kind {
                    26 => ClientIo::Admit,
                    18 => ClientIo::Read { len: d.u32()? },
                    19 => {
                        let crcs = d.list(4, Dec::u32)?;
                        let (crcs, data) = verified(at, crcs, payload)?;
                        ClientIo::Write { crcs, data }
                    }
                    20 => ClientIo::Zero { len: d.u32()? },
                    21 => ClientIo::Discard { len: d.u32()? },
                    _ => ClientIo::Extents { len: d.u64()? },
                };
                Self::Client(ClientRequest { object, ticket, retry, at, admission, io })
            }
            23 => return Ok(Self::Admin(body.to_vec())),
            24 => Self::Tickets {
                component: ComponentId(d.u64()?),
                epoch: Epoch(d.u32()?),
                after: (ClientId(d.u64()?), d.u32()?),
            },
            25 => Self::SetTickets {
                component: ComponentId(d.u64()?),
                session: dec_session(d)?,
                set: dec_tickets(d)?,
            },
            _ => return Err(BadMessage("unknown request")),
        };
        Dec(d.0).end()?;
        Ok(request)
    }
}

fn enc_store_error(e: &mut Enc, error: &StoreError) {
    match error {
        StoreError::NoComponent(id) => {
            e.u8(1);
            e.u64(id.0);
        }
        StoreError::Exists(id) => {
            e.u8(2);
            e.u64(id.0);
        }
        StoreError::Fenced { fenced } => {
            e.u8(3);
            e.u32(fenced.0);
        }
        StoreError::Session { open } => {
            e.u8(4);
            enc_session(e, *open);
        }
        StoreError::Malformed(_) => e.u8(5),
        StoreError::Damaged { block } => {
            e.u8(6);
            e.u32(*block);
        }
        StoreError::Bad(blocks) => {
            e.u8(7);
            e.list(blocks, |e, b| e.u32(*b));
        }
        StoreError::Full => e.u8(8),
        StoreError::Failed(why) => {
            e.u8(9);
            e.text(why);
        }
        StoreError::NotOpen(id) => {
            e.u8(10);
            e.u64(id.0);
        }
    }
}

fn dec_store_error(d: &mut Dec<'_>) -> Result<StoreError, BadMessage> {
    Ok(match d.u8()? {
        1 => StoreError::NoComponent(ComponentId(d.u64()?)),
        2 => StoreError::Exists(ComponentId(d.u64()?)),
        3 => StoreError::Fenced { fenced: Epoch(d.u32()?) },
        4 => StoreError::Session { open: dec_session(d)? },
        5 => StoreError::Malformed("refused by the member"),
        6 => StoreError::Damaged { block: d.u32()? },
        7 => StoreError::Bad(d.list(4, Dec::u32)?),
        8 => StoreError::Full,
        9 => StoreError::Failed(d.text()?),
        10 => StoreError::NotOpen(ComponentId(d.u64()?)),
        _ => return Err(BadMessage("unknown store error")),
    })
}

fn enc_volume_error(e: &mut Enc, error: &VolumeError) {
    match error {
        VolumeError::OutOfRange { at, len } => {
            e.u8(1);
            e.u64(*at);
            e.u64(*len);
        }
        VolumeError::NoSpace(why) => {
            e.u8(2);
            e.text(why);
        }
        VolumeError::ReadOnly => e.u8(3),
        VolumeError::Io(why) => {
            e.u8(4);
            e.text(why);
        }
        VolumeError::TimedOut(why) => {
            e.u8(5);
            e.text(why);
        }
        VolumeError::Gone => e.u8(6),
        VolumeError::Unsupported => e.u8(7),
        VolumeError::Locked(why) => {
            e.u8(8);
            e.text(why);
        }
    }
}

fn dec_volume_error(d: &mut Dec<'_>) -> Result<VolumeError, BadMessage> {
    Ok(match d.u8()? {
        1 => VolumeError::OutOfRange { at: d.u64()?, len: d.u64()? },
        2 => VolumeError::NoSpace(d.text()?),
        3 => VolumeError::ReadOnly,
        4 => VolumeError::Io(d.text()?),
        5 => VolumeError::TimedOut(d.text()?),
        6 => VolumeError::Gone,
        7 => VolumeError::Unsupported,
        8 => VolumeError::Locked(d.text()?),
        _ => return Err(BadMessage("unknown volume error")),
    })
}

impl Message for Reply {
    fn encode(self) -> Encoded {
        let mut e = Enc::default();
        let mut payload = Vec::new();
        let kind = match self {
            Self::Done => 1,
            Self::Granted { serial, excluded } => {
                e.u64(serial);
                e.list(&excluded, |e, o| e.u64(o.0));
                2
            }
            Self::Promise { promise, doubtful } => {
                enc_promise(&mut e, &promise);
                e.u8(u8::from(doubtful));
                3
            }
            Self::Chunks { chunks, more } => {
                e.u8(u8::from(more));
                e.list(&chunks, |e, (chunk, seq)| {
                    e.u32(*chunk);
                    e.u64(seq.0);
                });
                4
            }
            Self::Yes(yes) => {
                e.u8(u8::from(yes));
                5
            }
            Self::Status(s) => {
                e.u64(s.id.0);
                enc_spec(&mut e, &s.spec);
                enc_promise(&mut e, &s.promise);
                enc_session(&mut e, s.session);
                e.u64(s.used_bytes);
                e.u8(u8::from(s.doubtful) | u8::from(s.incomplete.is_some()) << 1);
                if let Some(above) = s.incomplete {
                    e.u64(above.0);
                }
                e.u8(u8::from(s.lost));
                6
            }
            Self::Tags(tags) => {
                e.list(&tags, enc_tag);
                7
            }
            Self::Blocks(blocks) => {
                e.list(&blocks.tags, enc_tag);
                payload = blocks.payload;
                8
            }
            Self::Copied(count) => {
                e.u32(count);
                9
            }
            Self::Failed(error) => {
                enc_store_error(&mut e, &error);
                10
            }
            Self::Data { crcs, data } => {
                e.list(&crcs, |e, c| e.u32(*c));
                payload = data;
                11
            }
            Self::Extents(extents) => {
                e.list(&extents, |e, x| {
                    e.u64(x.len);
                    e.u8(match x.kind {
                        ExtentKind::Data => 0,
                        ExtentKind::Zero => 1,
                        ExtentKind::Hole => 2,
                    });
                });
                12
            }
            Self::NotOwner => 13,
            Self::OwnerStopped => 14,
            Self::VolumeFailed(error) => {
                enc_volume_error(&mut e, &error);
                15
            }
            Self::Admin(json) => {
                e.0 = json;
                16
            }
            Self::Ops { ops, more } => {
                e.u8(u8::from(more));
                e.list(&ops, |e, op| {
                    e.u32(op.id.epoch.0);
                    e.u64(op.id.seq.0);
                    enc_ticket(e, op.ticket);
                    e.u8(op.kind as u8);
                    enc_range(e, op.range);
                });
                17
            }
            Self::Admitted(admission) => {
                e.u64(admission);
                19
            }
            Self::Tickets { tickets, more } => {
                e.u8(u8::from(more));
                e.list(&tickets, |e, &ticket| enc_ticket(e, ticket));
                18
            }
        };
        Encoded { kind, body: e.0, payload, payload_checked_by_receiver: true }
    }

    fn decode(kind: u16, body: &[u8], payload: Vec<Buf>) -> Result<Self, BadMessage> {
        let mut d = Dec(body);
        let d = &mut d;
        if !payload.is_empty() && !matches!(kind, 8 | 11) {
            return Err(BadMessage("a payload where none belongs"));
        }
        let reply = match kind {
            1 => Self::Done,
            2 => {
                Self::Granted { serial: d.u64()?, excluded: d.list(8, |d| Ok(ObjectId(d.u64()?)))? }
            }
            3 => Self::Promise { promise: dec_promise(d)?, doubtful: d.bool()? },
            4 => Self::Chunks {
                more: d.bool()?,
                chunks: d.list(12, |d| Ok((d.u32()?, Seq(d.u64()?))))?,
            },
            5 => Self::Yes(d.bool()?),
            6 => {
                let (id, spec, promise) = (ComponentId(d.u64()?), dec_spec(d)?, dec_promise(d)?);
                let (session, used_bytes) = (dec_session(d)?, d.u64()?);
                let lacks = d.u8()?;
                if lacks > 3 {
                    return Err(BadMessage("unknown flags of a component"));
                }
                let doubtful = lacks & 1 != 0;
                let incomplete = if lacks & 2 != 0 { Some(Seq(d.u64()?)) } else { None };
                let lost = d.bool()?;
                Self::Status(ComponentStatus {
                    id,
                    spec,
                    promise,
                    session,
                    used_bytes,
                    doubtful,
                    incomplete,
                    lost,
                })
            }
            7 => Self::Tags(d.list(13, dec_tag)?),
            8 => {
                let tags = d.list(13, dec_tag)?;
                if buf::total_len(&payload) != tags.len() * BLOCK_LEN {
                    return Err(BadMessage("payload does not fit its tags"));
                }
                let found = client_crcs(0, &payload);
                let matches = tags.iter().zip(&found).all(|(tag, &found)| {
                    found == if tag.state == BlockState::Raw { tag.crc } else { ZERO_BLOCK_CRC }
                });
                if !matches && !tags.is_empty() && !mutant!("message.blocks_not_checked") {
                    return Err(BadMessage("payload does not match its checksums"));
                }
                Self::Blocks(ReadBlocks { tags, payload })
            }
            9 => Self::Copied(d.u32()?),
            10 => Self::Failed(dec_store_error(d)?),
            11 => {
                let crcs = d.list(4, Dec::u32)?;
                // The range is not known here; one CRC may be of one block or of a piece.
                let found = if crcs.len() == 1 {
                    client_crcs(1, &payload)
                } else {
                    client_crcs(0, &payload)
                };
                if found != crcs && !mutant!("message.data_not_checked") {
                    return Err(BadMessage("payload does not match its checksums"));
                }
                Self::Data { crcs, data: payload }
            }
            12 => Self::Extents(d.list(9, |d| {
                let len = d.u64()?;
                let kind = match d.u8()? {
                    0 => ExtentKind::Data,
                    1 => ExtentKind::Zero,
                    2 => ExtentKind::Hole,
                    _ => return Err(BadMessage("unknown extent kind")),
                };
                Ok(Extent { len, kind })
            })?),
            13 => Self::NotOwner,
            14 => Self::OwnerStopped,
            15 => Self::VolumeFailed(dec_volume_error(d)?),
            16 => return Ok(Self::Admin(body.to_vec())),
            17 => Self::Ops {
                more: d.bool()?,
                ops: d.list(35, |d| {
                    Ok(OpRecord {
                        id: OpId { epoch: Epoch(d.u32()?), seq: Seq(d.u64()?) },
                        ticket: dec_ticket(d)?,
                        kind: OpKind::from_code(d.u8()?).ok_or(BadMessage("unknown operation"))?,
                        range: dec_range(d)?,
                    })
                })?,
            },
            19 => Self::Admitted(d.u64()?),
            18 => Self::Tickets { more: d.bool()?, tickets: d.list(16, dec_ticket)? },
            _ => return Err(BadMessage("unknown reply")),
        };
        Dec(d.0).end()?;
        Ok(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_request() -> Vec<Request> {
        let component = ComponentId(0x1122);
        let (epoch, seq) = (Epoch(7), Seq(1 << 40));
        let session = Session { epoch, attach: 3 };
        let ticket = Ticket { client: ClientId(9), number: 5, settled_below: 4 };
        let data = Buf::copy_from(&[5; 2 * BLOCK_LEN]);
        let crcs = client_crcs(0, std::slice::from_ref(&data));
        let range = BlockRange { start: 256, count: 2 };
        let spec = ComponentSpec { object: ObjectId(1), leg: 2, blocks: 512, epoch };
        let raw = BlockTag { seq, state: BlockState::Raw, crc: crcs[0] };
        let zero = BlockTag { seq, state: BlockState::Zero, crc: 0 };
        let blocks = vec![
            CopyBlock { block: 256, tag: raw, bytes: Some(data.slice(..BLOCK_LEN)) },
            CopyBlock { block: 257, tag: zero, bytes: None },
        ];
        let client = |at, io| {
            let (object, admission) = (ObjectId(1), 1 << 33);
            Request::Client(ClientRequest { object, ticket, retry: true, at, admission, io })
        };
        let sectors = data.slice(..1024);
        let odd = client_crcs(512, std::slice::from_ref(&sectors));
        let copy_in = |tickets| {
            let copy = Copy { chunk: 1, blocks: blocks.clone(), only_if: None, tickets };
            Request::CopyIn { component, session, copy }
        };
        vec![
            Request::Renew {
                incarnation: Incarnation(8),
                serial: 3,
                objects: vec![(ObjectId(1), epoch), (ObjectId(2), Epoch(1))],
            },
            Request::GiveBack {
                incarnation: Incarnation(8),
                serial: 3,
                objects: vec![ObjectId(1)],
            },
            Request::Fence { object: ObjectId(1), component, epoch },
            Request::Attach { component, session, incomplete: None },
            Request::Uncommitted { component, epoch, after: seq },
            Request::Applied { component, epoch, ticket },
            Request::Tickets { component, epoch, after: (ClientId(3), 9) },
            Request::SetTickets {
                component,
                session,
                set: SetTickets { add: vec![ticket, ticket], forget: vec![ticket] },
            },
            Request::Status { component },
            Request::Create { group: GroupId(4), component, spec },
            Request::Delete { component, epoch },
            Request::Grow { component, epoch, blocks: 1024 },
            Request::Tags { component, epoch, chunk: 1 },
            Request::ChunksSince { component, epoch, since: seq, first: 9 },
            Request::Committed { component, epoch, seq },
            Request::Reserve { component, epoch, chunk: 1 },
            Request::Append {
                component,
                session,
                op: ComponentOp {
                    id: OpId { epoch, seq },
                    ticket,
                    kind: OpKind::Write,
                    range,
                    committed: Seq(9),
                    crcs: crcs.clone(),
                    checked: true,
                    payload: vec![data.clone()],
                },
            },
            Request::Read { component, epoch, range },
            copy_in(SetTickets::default()),
            client(4096, ClientIo::Read { len: 512 }),
            client(4096, ClientIo::Write { crcs, data: vec![data] }),
            client(512, ClientIo::Write { crcs: odd, data: vec![sectors] }),
            client(0, ClientIo::Zero { len: 4096 }),
            client(0, ClientIo::Discard { len: 4096 }),
            client(0, ClientIo::Extents { len: 1 << 40 }),
            client(0, ClientIo::Admit),
            copy_in(SetTickets { add: vec![ticket], forget: vec![ticket, ticket] }),
            Request::Attach { component, session, incomplete: Some(seq) },
            Request::Complete { component, session, up_to: Seq(0) },
            Request::Complete { component, session, up_to: seq },
            Request::Admin(b"{}".to_vec()),
        ]
    }

    fn every_reply() -> Vec<Reply> {
        let promise = Promise { fenced: Epoch(1), committed: Seq(2), newest: Seq(3) };
        let data = Buf::copy_from(&[5; BLOCK_LEN]);
        let crcs = client_crcs(0, std::slice::from_ref(&data));
        let raw = BlockTag { seq: Seq(1), state: BlockState::Raw, crc: crcs[0] };
        let absent = BlockTag::default();
        let payload = vec![data.clone(), Buf::zeros(BLOCK_LEN)];
        let status = ComponentStatus {
            id: ComponentId(1),
            spec: ComponentSpec { object: ObjectId(1), leg: 0, blocks: 1, epoch: Epoch(1) },
            promise,
            session: Session::default(),
            used_bytes: 5,
            doubtful: true,
            incomplete: None,
            lost: false,
        };
        let mut all = vec![
            Reply::Done,
            Reply::Granted { serial: 4, excluded: vec![ObjectId(3)] },
            Reply::Promise { promise, doubtful: false },
            Reply::Chunks { chunks: vec![(1, Seq(2))], more: true },
            Reply::Tickets { tickets: vec![Ticket::default()], more: true },
            Reply::Admitted(1 << 40),
            Reply::Ops {
                ops: vec![OpRecord {
                    id: OpId::default(),
                    ticket: Ticket::default(),
                    kind: OpKind::Zero,
                    range: BlockRange { start: 0, count: 1 },
                }],
                more: false,
            },
            Reply::Yes(true),
            Reply::Status(status),
            Reply::Status(ComponentStatus { incomplete: Some(Seq(7)), ..status }),
            Reply::Tags(vec![raw; 256]),
            Reply::Blocks(ReadBlocks { tags: vec![raw, absent], payload }),
            Reply::Copied(3),
            Reply::Data { crcs, data: vec![data] },
            Reply::Extents(vec![Extent { len: 4096, kind: ExtentKind::Hole }]),
            Reply::NotOwner,
            Reply::OwnerStopped,
            Reply::Admin(b"[]".to_vec()),
        ];
        for error in [
            StoreError::NoComponent(ComponentId(1)),
            StoreError::Exists(ComponentId(1)),
            StoreError::Fenced { fenced: Epoch(2) },
            StoreError::Session { open: Session::default() },
            StoreError::Malformed("x"),
            StoreError::Damaged { block: 1 },
            StoreError::Bad(vec![1, 2]),
            StoreError::Full,
            StoreError::Failed("disk".into()),
            StoreError::NotOpen(ComponentId(1)),
        ] {
            all.push(Reply::Failed(error));
        }
        for error in [
            VolumeError::OutOfRange { at: 1, len: 2 },
            VolumeError::NoSpace("a".into()),
            VolumeError::ReadOnly,
            VolumeError::Io("b".into()),
            VolumeError::TimedOut("c".into()),
            VolumeError::Gone,
            VolumeError::Unsupported,
            VolumeError::Locked("import".into()),
        ] {
            all.push(Reply::VolumeFailed(error));
        }
        all
    }

    /// As the wire delivers it: the payload in one piece.
    fn deliver<M: Message + std::fmt::Debug>(message: M) -> (u16, Vec<u8>, Vec<Buf>) {
        let e = message.encode();
        let payload = if e.payload.is_empty() { vec![] } else { vec![buf::join(&e.payload)] };
        (e.kind, e.body, payload)
    }

    /// Frames leave the payload of an append to its receiver.
    #[test]
    fn what_came_by_the_network_is_not_checked_yet() {
        let mut all = every_request().into_iter();
        let append = all.find(|r| matches!(r, Request::Append { op, .. } if op.checked));
        let (kind, body, payload) = deliver(append.expect("one that its sender has checked"));
        match Request::decode(kind, &body, payload) {
            Ok(Request::Append { op, .. }) => assert!(!op.checked),
            other => panic!("{other:?}"),
        }
    }

    fn round<M: Message + std::fmt::Debug>(make: impl Fn() -> Vec<M>) {
        for (sent, same) in make().into_iter().zip(make()) {
            let text = format!("{same:?}");
            let (kind, body, payload) = deliver(sent);
            let back = M::decode(kind, &body, payload.clone()).unwrap_or_else(|e| {
                panic!("{text}: {}", e.0);
            });
            // The refusal's text is not sent; everything else comes back.
            if !text.contains("Malformed") {
                let (k, b, p) = deliver(back);
                assert_eq!((k, &b, &p), (kind, &body, &payload), "{text}");
            }
            // A body that is cut short or goes on is refused, never misread.
            if !text.starts_with("Admin") {
                for cut in 0..body.len() {
                    assert!(
                        M::decode(kind, &body[..cut], payload.clone()).is_err(),
                        "{text} {cut}"
                    );
                }
                let longer = [&body[..], &[0]].concat();
                assert!(M::decode(kind, &longer, payload).is_err(), "{text}");
            }
        }
    }

    /// Kind, body, and of a payload its length and checksum; one line each, in the order above.
    fn lines<M: Message + std::fmt::Debug>(what: &str, all: Vec<M>) -> String {
        let line = |message: M| {
            let (kind, body, payload) = deliver(message);
            let hex: String = body.iter().map(|b| format!("{b:02x}")).collect();
            let tail = payload.iter().map(|p| format!(" +{} {:08x}", p.len(), crc(p)));
            format!("{what} {kind} {hex}{}\n", tail.collect::<String>())
        };
        all.into_iter().map(line).collect()
    }

    #[test]
    fn the_bytes_of_version_1_never_change() {
        let now = lines("request", every_request()) + &lines("reply", every_reply());
        assert!(now == include_str!("../golden/messages.v1.hex"), "they are now:\n{now}");
        let kinds = |what: &str| -> std::collections::BTreeSet<u16> {
            let of = now.lines().filter_map(|l| l.strip_prefix(what)?.split(' ').next());
            of.map(|kind| kind.parse().expect("a number")).collect()
        };
        // None is missing: a kind without bytes here is one that nobody froze.
        assert!(kinds("request ").into_iter().eq(1..=30), "{:?}", kinds("request "));
        assert!(kinds("reply ").into_iter().eq(1..=19), "{:?}", kinds("reply "));
    }

    #[test]
    fn every_message_comes_back_as_it_was_and_nothing_else_is_taken() {
        round(every_request);
        round(every_reply);
    }

    #[test]
    fn a_payload_that_changed_on_the_way_is_refused() {
        for request in every_request() {
            let (kind, body, payload) = deliver(request);
            if let [data] = &payload[..] {
                let mut bytes = data.to_vec();
                bytes[700] ^= 1;
                let taken = Request::decode(kind, &body, vec![Buf::copy_from(&bytes)]);
                // Its store looks: story `refused-write-is-sent-again-in-order`.
                assert_eq!(taken.is_ok(), matches!(taken, Ok(Request::Append { .. })));
            }
        }
        for reply in every_reply() {
            let (kind, body, payload) = deliver(reply);
            if let [data] = &payload[..] {
                let mut bytes = data.to_vec();
                *bytes.last_mut().expect("not empty") ^= 1;
                assert!(Reply::decode(kind, &body, vec![Buf::copy_from(&bytes)]).is_err());
            }
        }
    }

    #[test]
    fn no_bytes_make_the_decoder_panic() {
        let mut x = 3u64;
        let mut random = move || {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            x >> 33
        };
        let samples: Vec<_> = every_request().into_iter().map(deliver).collect();
        for _ in 0..60_000 {
            let (kind, body, payload) = &samples[random() as usize % samples.len()];
            let mut body = body.clone();
            for _ in 0..=random() % 4 {
                if !body.is_empty() {
                    let at = random() as usize % body.len();
                    body[at] = random() as u8;
                }
            }
            let _ = Request::decode(*kind, &body, payload.clone());
            let _ = Reply::decode(random() as u16 % 20, &body, payload.clone());
        }
    }
}

//! What hosts say to each other: each message once, with its fields in the order in which they are
//! sent. The tables of `docs/protocol.md` are made from this file.
//!
//! Data carries a CRC-32C per 4 KiB block in its body; decoding verifies it (of an `Append`
//! the store does), so that a payload that changed on the way is refused before anything acts on
//! it. The CRC is never recomputed for sending: it is the front end's, or the store's.

mod codec;
mod declare;
mod values;

use crate::iops_limit::{Turns, WAIT_MAX};
use atoll_format::checksum::{ZERO_BLOCK_CRC, block_crcs};
use atoll_format::id::{
    ClientId, ComponentId, Epoch, GroupId, Incarnation, ObjectId, Seq, Session, Ticket,
};
use atoll_format::op::{BlockRange, BlockState, BlockTag, OpRecord, Promise};
use atoll_format::record::ServedRecord;
use atoll_format::units::BLOCK_LEN;
use atoll_transport::{BadMessage, Encoded, Message};
use atoll_world::components::{
    ComponentOp, ComponentSpec, ComponentStatus, Copy, ReadBlocks, SetTickets,
};
use atoll_world::volume::Extent;
use atoll_world::{Buf, Lane, StoreError, VolumeError, buf, mutant};
use codec::{Dec, Enc, Got, Wire};
use declare::messages;
use values::choices;

messages! {
    /// To a host.
    #[derive(Debug)]
    pub enum Request else "unknown request" {
        /// Asks for leases on objects of which the receiver holds active members (R9).
        1 Renew {
            /// This life of the asking host.
            incarnation: Incarnation,
            /// Rises with each renewal; give-backs name it.
            serial: u64,
            /// What for.
            objects: Vec<(ObjectId, Epoch)>,
        } => "owner's host to member's host" on [Control] gets [Granted]
            again "yes, with a new serial";
        /// The owner serves these objects no more; grants up to `serial` end now.
        2 GiveBack {
            /// The life that held them.
            incarnation: Incarnation,
            /// The last renewal that counted.
            serial: u64,
            /// Which objects.
            objects: Vec<ObjectId>,
        } => "owner's host to member's host" on [Control] gets [Done]
            again "yes; older serials are ignored";
        /// Refuse lower epochs. Promised when no lease of an older owner can be running (R6, R9);
        /// until then `Held`, so that what waits takes nothing of the connection's window.
        3 Fence {
            /// Of which object.
            object: ObjectId,
            /// The component here.
            component: ComponentId,
            /// The new owner's.
            epoch: Epoch,
            /// The life of its host.
            incarnation: Incarnation,
            /// Lives of its host that have ended for certain.
            outlived: Vec<Incarnation>,
            /// Who served the object last, as the record of that epoch says.
            served: Option<ServedRecord>,
        } => "new owner to member" on [Control] gets [Promise, Held] again "yes, until promised";
        /// Opens a session (R2). With `incomplete` it is brought up to date from that operation
        /// on: the component notes that it may lack any above the lowest that it was told, until
        /// `Complete`, and is doubtful if it had noted a lower one than this.
        4 Attach {
            /// Which component.
            component: ComponentId,
            /// Higher than any before.
            session: Session,
            /// See above.
            incomplete: Option<Seq>,
        } => "owner to member" on [Control] gets [Promise] again "with a higher session";
        /// The component lacks nothing any more: it is about to be promoted, or is all there is.
        5 Complete {
            /// Which component.
            component: ComponentId,
            /// The open one.
            session: Session,
            /// It has every operation up to this one, also those of which a copy shows nothing;
            /// 0: that is not known.
            up_to: Seq,
        } => "owner to member" on [Control] gets [Done] again "yes";
        /// Operations above the watermark, ascending.
        6 Uncommitted {
            /// Which component.
            component: ComponentId,
            /// In this session.
            session: Session,
            /// Below or at: not wanted.
            after: Seq,
        } => "new owner to member" on [Control] gets [Ops] again "yes";
        /// Operations of clients that are here and not settled (R21).
        7 Tickets {
            /// Which component.
            component: ComponentId,
            /// In this session.
            session: Session,
            /// From where on, by client and number; exclusive.
            after: (ClientId, u32),
        } => "owner to member" on [Control] gets [Tickets] again "yes";
        /// Remembers and forgets operations of clients; in order with `Append`.
        8 SetTickets {
            /// Which component.
            component: ComponentId,
            /// The open one.
            session: Session,
            /// Which operations.
            set: SetTickets,
        } => "owner to member" on [Data] gets [Done] again "yes";
        /// Whether that operation of a client is here (R21).
        9 Applied {
            /// Which component.
            component: ComponentId,
            /// In this session.
            session: Session,
            /// Whose operation.
            ticket: Ticket,
        } => "owner to member" on [Control] gets [Yes] again "yes";
        /// Whether the component is here, and its facts.
        10 Status {
            /// Which component.
            component: ComponentId,
        } => "owner to member" on [Control] gets [Status] again "yes";
        /// Makes a component.
        11 Create {
            /// In which disk group.
            group: GroupId,
            /// Which component.
            component: ComponentId,
            /// With what.
            spec: ComponentSpec,
        } => "owner, management to host" on [Control] gets [Done] again "yes";
        /// Removes a component.
        12 Delete {
            /// Which component.
            component: ComponentId,
            /// Refused if a higher epoch was promised.
            epoch: Epoch,
        } => "management to host" on [Control] gets [Done] again "yes";
        /// Raises a component's largest size.
        13 Grow {
            /// Which component.
            component: ComponentId,
            /// The owner's epoch.
            epoch: Epoch,
            /// In blocks.
            blocks: u32,
        } => "owner to member" on [Control] gets [Done] again "yes";
        /// The tags of a chunk.
        14 Tags {
            /// Which component.
            component: ComponentId,
            /// In this session.
            session: Session,
            /// Which chunk.
            chunk: u32,
        } => "owner to member" on [Data, Bulk] gets [Tags] again "yes";
        /// Chunks with operations past `since`.
        15 ChunksSince {
            /// Which component.
            component: ComponentId,
            /// In this session.
            session: Session,
            /// Below or at: not wanted.
            since: Seq,
            /// First chunk wanted.
            first: u32,
        } => "owner to member" on [Bulk] gets [Chunks] again "yes";
        /// Everything at or below `seq` is durable on every active member.
        16 Committed {
            /// Which component.
            component: ComponentId,
            /// In this session.
            session: Session,
            /// The watermark.
            seq: Seq,
        } => "owner to member" on [Data] gets [Done] again "yes";
        /// Sets a slot aside.
        17 Reserve {
            /// Which component.
            component: ComponentId,
            /// In this session.
            session: Session,
            /// Which chunk.
            chunk: u32,
        } => "owner to member" on [Data] gets [Done] again "yes";
        /// One operation of the object.
        18 Append {
            /// Which component.
            component: ComponentId,
            /// In this session.
            session: Session,
            /// What.
            op: ComponentOp,
        } => "owner to member" on [Data] gets [Done] again "only in a new session";
        /// Blocks, verified.
        19 Read {
            /// Which component.
            component: ComponentId,
            /// In this session.
            session: Session,
            /// Which blocks.
            range: BlockRange,
        } => "owner to member" on [Data, Bulk] gets [Blocks] again "yes";
        /// Blocks of another member, and the operations of clients that come or go with them.
        20 CopyIn {
            /// Which component.
            component: ComponentId,
            /// In this session.
            session: Session,
            /// What.
            copy: Copy,
        } => "owner to member" on [Bulk] gets [Copied] again "only in a new session";
        /// A client's I/O: object, ticket, retry, offset, admission, and one of Admit (before a
        /// client's first change), Read, Write, Zero, Discard, Extents, Turns.
        21 Client(request: ClientRequest)
            => "client's host to owner's host" on [Data]
            gets [Done, Data, Extents, Admitted, Turns, NotOwner, OwnerStopped, VolumeFailed]
            again "with the same ticket and `retry`";
        /// Management between hosts, in JSON.
        22 Admin(json: Vec<u8>)
            => "any host to any" on [Control] gets [Admin] again "as the request says";
    }
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
    /// carried out: it may have been on its way while its client went elsewhere (row 58 of
    /// `docs/faults.md`).
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
    /// Turns under the volume's ceiling of I/Os per second.
    Turns {
        /// How many; 0: only to learn the ceiling.
        want: u32,
    },
}
choices!(ClientIo else "unknown client operation" {
    0 Admit,
    1 Read { len: u32 },
    2 Write { crcs: Vec<u32>, data: Vec<Buf> },
    3 Zero { len: u32 },
    4 Discard { len: u32 },
    5 Extents { len: u64 },
    6 Turns { want: u32 },
});
values::fields!(Turns { limit: u32, count: u32, wait_ns: u64 } check are_soon);
values::fields!(ClientRequest {
    object: ObjectId,
    ticket: Ticket,
    retry: bool,
    at: u64,
    admission: u64,
    io: ClientIo,
});

fn are_soon(turns: &Turns) -> Got<()> {
    if turns.wait_ns <= WAIT_MAX.0 { Ok(()) } else { Err(BadMessage("turns too far away")) }
}

impl ClientIo {
    /// Whether it changes bytes.
    pub fn is_change(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::Zero { .. } | Self::Discard { .. })
    }
}

messages! {
    /// The answer.
    #[derive(Debug)]
    pub enum Reply else "unknown reply" {
        /// Done.
        1 Done;
        /// Leases, counted by the owner from before it asked.
        2 Granted {
            /// Of the renewal.
            serial: u64,
            /// Not these: a higher epoch is being fenced here, or they are not known (R10).
            excluded: Vec<ObjectId>,
        };
        /// Durable facts of a component; `doubtful`: acknowledged data may be missing here.
        3 Promise {
            /// The facts.
            promise: Promise,
            /// See above.
            doubtful: bool,
        };
        /// Chunks, each with its newest seq; `more`: ask again from the one after the last.
        4 Chunks {
            /// Ascending.
            chunks: Vec<(u32, Seq)>,
            /// There may be more.
            more: bool,
        };
        /// Operations, ascending; `more`: ask again from the last.
        5 Ops {
            /// Ascending.
            ops: Vec<OpRecord>,
            /// There may be more.
            more: bool,
        };
        /// Operations of clients, ascending by client and number; `more`: ask again from the last.
        6 Tickets {
            /// Ascending.
            tickets: Vec<Ticket>,
            /// There may be more.
            more: bool,
        };
        /// The newest admission; a change that gets this has not been carried out.
        7 Admitted(admission: u64);
        /// Yes or no.
        8 Yes(yes: bool);
        /// A component's facts.
        9 Status(status: ComponentStatus);
        /// Tags of one chunk.
        10 Tags(tags: Vec<BlockTag>);
        /// Blocks.
        11 Blocks(blocks: ReadBlocks);
        /// How many blocks were put in.
        12 Copied(count: u32);
        /// The store refuses or fails.
        13 Failed(error: StoreError);
        /// Bytes for a client; CRCs as in its writes.
        14 Data {
            /// See above.
            crcs: Vec<u32>,
            /// The bytes.
            data: Vec<Buf>,
        };
        /// What a range holds.
        15 Extents(extents: Vec<Extent>);
        /// This host does not own the object; nothing was done.
        16 NotOwner;
        /// This host stopped owning the object meanwhile; the outcome is unknown: retry.
        17 OwnerStopped;
        /// The client's operation failed.
        18 VolumeFailed(error: VolumeError);
        /// Management's answer, in JSON.
        19 Admin(json: Vec<u8>);
        /// Turns under the volume's ceiling of I/Os per second.
        20 Turns(turns: Turns);
        /// Lower epochs are refused from now on, durably, but a lease of an older owner may be
        /// running for so long: ask again.
        21 Held(wait_ns: u64);
    }
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

    fn may_take(&self, lane: Lane) -> bool {
        self.lanes().contains(&lane)
    }

    fn encode(self) -> Encoded {
        if let Self::Append { session, op, .. } = &self {
            assert_eq!(session.epoch, op.id.epoch, "{:?} in {session:?}", op.id);
        }
        self.put()
    }

    fn decode(kind: u16, body: &[u8], payload: Vec<Buf>) -> Result<Self, BadMessage> {
        let request = Self::get(kind, body, payload)?;
        if let Self::Client(ClientRequest { at, io: ClientIo::Write { crcs, data }, .. }) = &request
            && client_crcs(*at, data) != *crcs
        {
            return Err(CHANGED);
        }
        Ok(request)
    }
}

impl Message for Reply {
    fn encode(self) -> Encoded {
        self.put()
    }

    fn decode(kind: u16, body: &[u8], payload: Vec<Buf>) -> Result<Self, BadMessage> {
        let reply = Self::get(kind, body, payload)?;
        let is_sound = match &reply {
            Self::Blocks(blocks) => fit_their_tags(blocks) || mutant!("message.blocks_not_checked"),
            // The range is not known here; one CRC may be of one block or of a piece.
            Self::Data { crcs, data } => {
                client_crcs(u64::from(crcs.len() == 1), data) == *crcs
                    || mutant!("message.data_not_checked")
            }
            _ => true,
        };
        if is_sound { Ok(reply) } else { Err(CHANGED) }
    }
}

const CHANGED: BadMessage = BadMessage("payload does not match its checksums");

fn fit_their_tags(blocks: &ReadBlocks) -> bool {
    let crc_of = |tag: &BlockTag| match tag.state {
        BlockState::Raw => tag.crc,
        _ => ZERO_BLOCK_CRC,
    };
    blocks.tags.is_empty() || blocks.tags.iter().map(crc_of).eq(client_crcs(0, &blocks.payload))
}

/// CRCs of a client's data: one per block if the range is whole blocks, else one in all.
pub fn client_crcs(at: u64, data: &[Buf]) -> Vec<u32> {
    let len = buf::total_len(data);
    if is_whole_blocks(at, len) {
        let crcs: Vec<u32> = if data.iter().all(|b| b.len().is_multiple_of(BLOCK_LEN)) {
            data.iter().flat_map(|b| block_crcs(b)).collect()
        } else {
            block_crcs(&buf::join(data)).collect()
        };
        assert_eq!(crcs.len() * BLOCK_LEN, len, "one checksum a block");
        return crcs;
    }
    vec![data.iter().fold(0, |c, b| atoll_format::checksum::crc_append(c, b))]
}

fn is_whole_blocks(at: u64, len: usize) -> bool {
    at.is_multiple_of(BLOCK_LEN as u64) && len.is_multiple_of(BLOCK_LEN) && len > 0
}

#[cfg(test)]
mod tests {
    use super::declare::Row;
    use super::*;
    use atoll_format::checksum::crc;
    use atoll_format::id::{HostId, OpId};
    use atoll_format::op::OpKind;
    use atoll_world::components::CopyBlock;
    use atoll_world::volume::ExtentKind;
    use std::collections::BTreeSet;

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
            Request::Fence {
                object: ObjectId(1),
                component,
                epoch,
                incarnation: Incarnation(11),
                outlived: Vec::new(),
                served: None,
            },
            Request::Fence {
                object: ObjectId(1),
                component,
                epoch,
                incarnation: Incarnation(11),
                outlived: vec![Incarnation(9), Incarnation(10)],
                served: Some(ServedRecord {
                    epoch: Epoch(1),
                    host: HostId(4),
                    incarnation: Incarnation(10),
                }),
            },
            Request::Attach { component, session, incomplete: None },
            Request::Uncommitted { component, session, after: seq },
            Request::Applied { component, session, ticket },
            Request::Tickets { component, session, after: (ClientId(3), 9) },
            Request::SetTickets {
                component,
                session,
                set: SetTickets { add: vec![ticket, ticket], forget: vec![ticket] },
            },
            Request::Status { component },
            Request::Create { group: GroupId(4), component, spec },
            Request::Delete { component, epoch },
            Request::Grow { component, epoch, blocks: 1024 },
            Request::Tags { component, session, chunk: 1 },
            Request::ChunksSince { component, session, since: seq, first: 9 },
            Request::Committed { component, session, seq },
            Request::Reserve { component, session, chunk: 1 },
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
            Request::Read { component, session, range },
            copy_in(SetTickets::default()),
            client(4096, ClientIo::Read { len: 512 }),
            client(4096, ClientIo::Write { crcs, data: vec![data] }),
            client(512, ClientIo::Write { crcs: odd, data: vec![sectors] }),
            client(0, ClientIo::Zero { len: 4096 }),
            client(0, ClientIo::Discard { len: 4096 }),
            client(0, ClientIo::Extents { len: 1 << 40 }),
            client(0, ClientIo::Turns { want: 128 }),
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
            Reply::Turns(Turns { limit: 500, count: 50, wait_ns: 1 << 30 }),
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
            Reply::Held(1 << 31),
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
            StoreError::OnShard { id: ComponentId(1), shard: 3 },
            StoreError::Starting(ComponentId(1)),
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
            for cut in 0..body.len() {
                let taken = M::decode(kind, &body[..cut], payload.clone());
                assert!(taken.is_err(), "{text} {cut}");
            }
            let longer = [&body[..], &[0]].concat();
            assert!(M::decode(kind, &longer, payload).is_err(), "{text}");
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
    fn the_bytes_of_version_3_never_change() {
        let now = lines("request", every_request()) + &lines("reply", every_reply());
        assert!(now == include_str!("../golden/messages.v3.hex"), "they are now:\n{now}");
        let kinds = |what: &str| -> BTreeSet<u16> {
            let of = now.lines().filter_map(|l| l.strip_prefix(what)?.split(' ').next());
            of.map(|kind| kind.parse().expect("a number")).collect()
        };
        // None is missing: a kind without bytes here is one that nobody froze.
        let declared = |rows: &[Row]| rows.iter().map(|row| row.kind).collect::<BTreeSet<_>>();
        assert_eq!(kinds("request "), declared(Request::ROWS));
        assert_eq!(kinds("reply "), declared(Reply::ROWS));
    }

    /// The tables that are made of the rows; ATOLL_REGENERATE=1 writes them.
    #[test]
    fn the_protocol_says_what_is_declared() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/protocol.md");
        let old = std::fs::read_to_string(path).expect("docs/protocol.md");
        let mut text = old.clone();
        let with_payload = |samples: Vec<(u16, Vec<u8>, Vec<Buf>)>| -> BTreeSet<u16> {
            samples
                .into_iter()
                .filter(|(.., payload)| !payload.is_empty())
                .map(|(k, ..)| k)
                .collect()
        };
        let requests = with_payload(every_request().into_iter().map(deliver).collect());
        let replies = with_payload(every_reply().into_iter().map(deliver).collect());
        for (rows, name, has_payload) in
            [(Request::ROWS, "requests", requests), (Reply::ROWS, "replies", replies)]
        {
            let mark = format!("<!-- {name} of crates/object/src/message.rs -->\n");
            let (before, rest) = text.split_once(&mark).expect("the table's mark");
            let end = rest.find("\n\n").expect("the table's end") + 1;
            let head = rest.lines().take(2).map(|line| format!("{line}\n")).collect::<String>();
            let table =
                rows.iter().map(|r| r.line(has_payload.contains(&r.kind))).collect::<String>();
            text = format!("{before}{mark}{head}{table}{}", &rest[end..]);
        }
        if std::env::var_os("ATOLL_REGENERATE").is_some() {
            std::fs::write(path, &text).expect("docs/protocol.md");
        } else {
            assert!(text == old, "docs/protocol.md is not what is declared: ATOLL_REGENERATE=1");
        }
        let replies: BTreeSet<_> = Reply::ROWS.iter().map(|row| row.name).collect();
        for row in Request::ROWS {
            assert!(row.replies.iter().all(|name| replies.contains(name)), "{}", row.name);
        }
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
                // Its store looks: scenario `refused-write-is-sent-again-in-order`.
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
            let kinds = Reply::ROWS.len() as u16 + 2;
            let _ = Reply::decode(random() as u16 % kinds, &body, payload.clone());
        }
    }
}

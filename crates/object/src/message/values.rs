//! How the values of messages stand in them, field by field.

use super::codec::{Dec, Enc, Got, Wire};
use atoll_format::checksum::crc;
use atoll_format::id::{
    ClientId, ComponentId, Epoch, GroupId, HostId, Incarnation, ObjectId, OpId, Seq, Session,
    Ticket,
};
use atoll_format::op::{BlockRange, BlockState, BlockTag, OpKind, OpRecord, Promise};
use atoll_format::record::ServedRecord;
use atoll_format::units::{BLOCK_LEN, SEQ_MAX};
use atoll_transport::BadMessage;
use atoll_world::components::{
    ComponentOp, ComponentSpec, ComponentStatus, Copy, CopyBlock, ReadBlocks, SET_TICKETS_MAX,
    SetTickets,
};
use atoll_world::volume::{Extent, ExtentKind};
use atoll_world::{Buf, StoreError, VolumeError, buf};

/// Numbers with a meaning.
macro_rules! numbers {
    ($($type:ident: $number:ty),+ $(,)?) => { $(
        impl Wire for $type {
            const LEN_MIN: usize = <$number>::LEN_MIN;

            fn put(self, e: &mut Enc) {
                self.0.put(e);
            }
            fn get(d: &mut Dec<'_>) -> Got<Self> {
                <$number>::get(d).map(Self)
            }
        }
    )+ };
}
numbers!(
    ClientId: u64,
    ComponentId: u64,
    Epoch: u32,
    GroupId: u64,
    HostId: u64,
    Incarnation: u64,
    ObjectId: u64,
    Seq: u64,
);

/// One field after the other; `check`: what must be true of them.
macro_rules! fields {
    ($type:ident { $($field:ident: $of:ty),+ $(,)? } $(check $check:expr)?) => {
        impl Wire for $type {
            const LEN_MIN: usize = 0 $(+ <$of>::LEN_MIN)+;

            fn put(self, e: &mut Enc) {
                $( assert!($check(&self).is_ok(), "{self:?}"); )?
                $( self.$field.put(e); )+
            }
            fn get(d: &mut Dec<'_>) -> Got<Self> {
                let value = Self { $($field: <$of>::get(d)?),+ };
                $( $check(&value)?; )?
                Ok(value)
            }
        }
    };
}
pub(super) use fields;

fields!(OpId { epoch: Epoch, seq: Seq });
fields!(Session { epoch: Epoch, attach: u32 });
fields!(ServedRecord { epoch: Epoch, host: HostId, incarnation: Incarnation });
fields!(Ticket { client: ClientId, number: u32, settled_below: u32 });
fields!(BlockTag { seq: Seq, state: BlockState, crc: u32 });
fields!(BlockRange { start: u32, count: u16 } check lies_in_a_chunk);
fields!(SetTickets { add: Vec<Ticket>, forget: Vec<Ticket> } check are_few);
fields!(ComponentSpec { object: ObjectId, leg: u16, blocks: u32, epoch: Epoch });
fields!(Promise { fenced: Epoch, committed: Seq, newest: Seq } check is_below_the_last);
fields!(OpRecord { id: OpId, ticket: Ticket, kind: OpKind, range: BlockRange });
fields!(ComponentStatus {
    id: ComponentId,
    spec: ComponentSpec,
    promise: Promise,
    session: Session,
    used_bytes: u64,
    doubtful: bool,
    incomplete: Option<Seq>,
    lost: bool,
});
fields!(Extent { len: u64, kind: ExtentKind });
fields!(ReadBlocks { tags: Vec<BlockTag>, payload: Vec<Buf> } check all_have_bytes);

fn lies_in_a_chunk(range: &BlockRange) -> Got<()> {
    if range.is_valid() { Ok(()) } else { Err(BadMessage("a range crosses a chunk")) }
}

fn are_few(set: &SetTickets) -> Got<()> {
    if set.len() <= SET_TICKETS_MAX { Ok(()) } else { Err(BadMessage("too many tickets")) }
}

/// An owner's first sequence number lies above them.
fn is_below_the_last(p: &Promise) -> Got<()> {
    if p.committed.max(p.newest) <= Seq(SEQ_MAX) {
        return Ok(());
    }
    Err(BadMessage("a promise beyond the last sequence number"))
}

fn all_have_bytes(blocks: &ReadBlocks) -> Got<()> {
    if buf::total_len(&blocks.payload) == blocks.tags.len() * BLOCK_LEN {
        return Ok(());
    }
    Err(BadMessage("payload does not fit its tags"))
}

/// What has a code on disk has the same one here.
macro_rules! coded {
    ($($type:ident else $unknown:literal),+ $(,)?) => { $(
        impl Wire for $type {
            const LEN_MIN: usize = 1;

            fn put(self, e: &mut Enc) {
                e.body.push(self as u8);
            }
            fn get(d: &mut Dec<'_>) -> Got<Self> {
                Self::from_code(d.code()?).ok_or(BadMessage($unknown))
            }
        }
    )+ };
}
coded!(BlockState else "unknown block state", OpKind else "unknown operation");

/// A code, and the fields of what it stands for.
macro_rules! choices {
    ($type:ident else $unknown:literal {
        $( $code:literal $variant:ident
            $( ( $one:ident: $inner:ty ) )?
            $( { $($field:ident: $of:ty),+ $(,)? } )?
        ),+ $(,)?
    }) => {
        impl $crate::message::codec::Wire for $type {
            const LEN_MIN: usize = 1;

            fn put(self, e: &mut $crate::message::codec::Enc) {
                match self {
                    $( Self::$variant $( ($one) )? $( { $($field),+ } )? => {
                        e.body.push($code);
                        $( $one.put(e); )?
                        $( $($field.put(e);)+ )?
                    } )+
                }
            }
            fn get(
                d: &mut $crate::message::codec::Dec<'_>,
            ) -> $crate::message::codec::Got<Self> {
                Ok(match d.code()? {
                    $( $code => Self::$variant
                        $( (<$inner>::get(d)?) )?
                        $( { $($field: <$of>::get(d)?),+ } )?, )+
                    _ => return Err(atoll_transport::BadMessage($unknown)),
                })
            }
        }
    };
}
pub(super) use choices;

choices!(ExtentKind else "unknown extent kind" { 0 Data, 1 Zero, 2 Hole });
choices!(StoreError else "unknown store error" {
    1 NoComponent(id: ComponentId),
    2 Exists(id: ComponentId),
    3 Fenced { fenced: Epoch },
    4 Session { open: Session },
    5 Malformed(why: &'static str),
    6 Damaged { block: u32 },
    7 Bad(blocks: Vec<u32>),
    8 Full,
    9 Failed(why: String),
    10 NotOpen(id: ComponentId),
    11 OnShard { id: ComponentId, shard: u16 },
    12 Starting(id: ComponentId),
});
choices!(VolumeError else "unknown volume error" {
    1 OutOfRange { at: u64, len: u64 },
    2 NoSpace(why: String),
    3 ReadOnly,
    4 Io(why: String),
    5 TimedOut(why: String),
    6 Gone,
    7 Unsupported,
    8 Locked(why: String),
});

/// Whether the bytes are those of the CRCs the store finds out: its refusal closes the session,
/// which one of the transport would not. So `checked` stays behind.
impl Wire for ComponentOp {
    const LEN_MIN: usize = OpId::LEN_MIN + Ticket::LEN_MIN + BlockRange::LEN_MIN + 13;

    fn put(self, e: &mut Enc) {
        assert!(self.committed < self.id.seq, "{:?} is in flight: {:?}", self.id, self.committed);
        assert_eq!(self.crcs.len(), blocks_of(self.kind, self.range), "checksums of {:?}", self.id);
        self.id.put(e);
        self.ticket.put(e);
        self.kind.put(e);
        self.range.put(e);
        self.committed.put(e);
        self.crcs.put(e);
        self.payload.put(e);
    }
    fn get(d: &mut Dec<'_>) -> Got<Self> {
        let op = Self {
            id: OpId::get(d)?,
            ticket: Ticket::get(d)?,
            kind: OpKind::get(d)?,
            range: BlockRange::get(d)?,
            committed: Seq::get(d)?,
            crcs: Vec::get(d)?,
            checked: false,
            payload: Vec::get(d)?,
        };
        let blocks = blocks_of(op.kind, op.range);
        if buf::total_len(&op.payload) != blocks * BLOCK_LEN || op.crcs.len() != blocks {
            return Err(BadMessage("payload does not fit the range"));
        }
        Ok(op)
    }
}

fn blocks_of(kind: OpKind, range: BlockRange) -> usize {
    if kind == OpKind::Write { usize::from(range.count) } else { 0 }
}

/// The blocks that have bytes have them in the payload, in their order.
impl Wire for Copy {
    const LEN_MIN: usize = 4 + 4 + 1 + SetTickets::LEN_MIN;

    fn put(self, e: &mut Enc) {
        assert!(self.tickets_fit(), "{} tickets", self.tickets.len());
        self.chunk.put(e);
        let (tags, bytes): (Vec<_>, Vec<_>) =
            self.blocks.into_iter().map(|b| ((b.block, b.tag), b.bytes)).unzip();
        tags.put(e);
        self.only_if.put(e);
        self.tickets.put(e);
        bytes.into_iter().flatten().collect::<Vec<Buf>>().put(e);
    }
    fn get(d: &mut Dec<'_>) -> Got<Self> {
        let chunk = u32::get(d)?;
        let payload = buf::join(&Vec::<Buf>::get(d)?);
        let mut at = 0;
        let blocks = d.list(<(u32, BlockTag)>::LEN_MIN, |d| {
            let (block, tag) = Wire::get(d)?;
            let bytes = match tag {
                BlockTag { state: BlockState::Raw, crc, .. } => {
                    let bytes = checked_block(&payload, at, crc)?;
                    at += BLOCK_LEN;
                    Some(bytes)
                }
                _ => None,
            };
            Ok(CopyBlock { block, tag, bytes })
        })?;
        if at != payload.len() {
            return Err(BadMessage("payload is longer than its blocks"));
        }
        Ok(Self { chunk, blocks, only_if: Option::get(d)?, tickets: SetTickets::get(d)? })
    }
}

fn checked_block(payload: &Buf, at: usize, expected: u32) -> Got<Buf> {
    if at + BLOCK_LEN > payload.len() {
        return Err(BadMessage("payload is shorter than its blocks"));
    }
    let block = payload.slice(at..at + BLOCK_LEN);
    match crc(&block) == expected {
        true => Ok(block),
        false => Err(BadMessage("payload does not match its checksums")),
    }
}

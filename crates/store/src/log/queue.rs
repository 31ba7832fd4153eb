//! The operations that wait for the write log, in the order in which they take effect, and where
//! the log goes on.
//!
//! Invariants: an operation keeps its turn; the batch in flight holds the oldest ones; `next_seq`
//! and `prev_crc` continue the chain of durable batches.

use atoll_format::id::{ComponentId, Epoch, Seq, Session};
use atoll_format::log::{Descriptor, FooterBuilder};
use atoll_format::op::OpKind;
use atoll_format::units::BLOCKS_PER_CHUNK;
use atoll_world::components::{ComponentOp, ComponentSpec, CopyBlock, SetTickets};
use atoll_world::sync::Sender;
use atoll_world::{Nanos, mutant};
use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

/// What a queued operation does.
pub(crate) enum Effect {
    /// Nothing: it waits for what was queued before.
    Nothing,
    Append {
        local: u32,
        op: ComponentOp,
        /// Not of a discard of what was never touched.
        leaves_trace: bool,
    },
    /// A write whose bytes go, or have gone, to a slot.
    Place {
        local: u32,
        op: ComponentOp,
        slot: u32,
        bytes: Rc<Cell<PlacedBytes>>,
    },
    CopyIn {
        local: u32,
        chunk: u32,
        blocks: Vec<CopyBlock>,
        tickets: SetTickets,
    },
    Fence {
        local: u32,
        epoch: Epoch,
    },
    Attach {
        local: u32,
        session: Session,
        /// It may lack any operation above this one.
        incomplete: Option<Seq>,
    },
    Complete {
        local: u32,
        /// It has every operation up to this one.
        up_to: Seq,
    },
    SetTickets {
        local: u32,
        set: SetTickets,
    },
    Create {
        local: u32,
        id: ComponentId,
        spec: ComponentSpec,
        device: u8,
    },
    Delete {
        local: u32,
    },
    Grow {
        local: u32,
        blocks: u32,
    },
}

/// How far the bytes of a placed write are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PlacedBytes {
    UnderWay,
    Durable,
    /// The device failed: the operation never reaches the log.
    Lost,
}

impl PlacedBytes {
    /// Whether the log may say that they are there.
    fn may_be_logged(self) -> bool {
        if mutant!("log.placed_not_awaited") {
            return self != Self::Lost;
        }
        self == Self::Durable
    }
}

/// A queued operation and whoever waits for it.
pub(crate) struct QueuedOp {
    pub effect: Effect,
    pub reply: Option<Sender<()>>,
    /// Of its stage, if that is noted.
    pub begun: Option<Nanos>,
}

impl QueuedOp {
    /// Descriptors, CRCs in the list, payload blocks.
    pub(crate) fn weight(&self) -> (u32, u32, u32) {
        match &self.effect {
            Effect::Nothing => (0, 0, 0),
            Effect::Append { op, .. } if op.kind == OpKind::Write => {
                let n = u32::from(op.range.count);
                (1, if n > 1 { n } else { 0 }, n)
            }
            Effect::Place { .. } => (1, BLOCKS_PER_CHUNK, 0),
            Effect::CopyIn { blocks, tickets, .. } => {
                let raw = blocks.iter().filter(|b| b.bytes.is_some()).count();
                ((blocks.len() + tickets.len()) as u32, 0, raw as u32)
            }
            Effect::SetTickets { set, .. } => (set.len() as u32, 0, 0),
            _ => (1, 0, 0),
        }
    }

    /// Whether it can never go into a batch.
    pub(crate) fn is_lost(&self) -> bool {
        match &self.effect {
            Effect::Place { bytes, .. } => bytes.get() == PlacedBytes::Lost,
            _ => false,
        }
    }

    /// Whether it may go into a batch.
    pub(crate) fn is_ready(&self) -> bool {
        match &self.effect {
            Effect::Place { bytes, .. } => bytes.get().may_be_logged(),
            _ => true,
        }
    }
}

/// The queue and where the log's head is.
pub(crate) struct LogQueue {
    pub items: VecDeque<QueuedOp>,
    /// Those of the batch in flight.
    pub in_flight: Vec<QueuedOp>,
    pub generation: u64,
    /// Seq of the next batch; the one before is durable.
    pub next_seq: u64,
    pub prev_crc: u32,
    pub footer: FooterBuilder,
    /// The last batch with operations is not covered by a later one.
    pub uncovered: bool,
    /// Between batches the vectors are empty and keep their memory.
    pub ops: Vec<Descriptor>,
    pub crcs: Vec<u32>,
}

impl LogQueue {
    pub(crate) fn new(
        generation: u64,
        next_seq: u64,
        prev_crc: u32,
        footer: FooterBuilder,
    ) -> Self {
        Self {
            items: VecDeque::new(),
            in_flight: Vec::new(),
            generation,
            next_seq,
            prev_crc,
            footer,
            uncovered: false,
            ops: Vec::new(),
            crcs: Vec::new(),
        }
    }

    /// Everything that waits.
    pub(crate) fn clear(&mut self) -> (VecDeque<QueuedOp>, Vec<QueuedOp>) {
        (std::mem::take(&mut self.items), std::mem::take(&mut self.in_flight))
    }

    /// Whether an operation that is not durable yet touches block `block` of a component.
    pub(crate) fn touches(&self, of: u32, block: u32) -> bool {
        self.items.iter().chain(&self.in_flight).any(|item| match &item.effect {
            Effect::Append { local, op, .. } | Effect::Place { local, op, .. } => {
                *local == of && op.range.start <= block && block < op.range.end()
            }
            Effect::CopyIn { local, blocks, .. } => {
                *local == of && blocks.iter().any(|b| b.block == block)
            }
            _ => false,
        })
    }
}

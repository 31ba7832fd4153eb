//! How a leg keeps its data on its members, as questions that the rest of this crate asks: who gets
//! an operation, when it counts, how many members may be missing, who serves a read. The mirror
//! answers them here; `docs/layout.md` has the answers of parity, which is to come, on paper.
//!
//! Which host holds which member is no question of a layout: see `placement`.

use atoll_format::op::BlockRange;
use atoll_format::record::{Method, Policy};

/// The layout of the legs of one object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Layout {
    /// Every member holds every block.
    Mirror {
        /// Of a leg that lacks nothing.
        members: usize,
    },
}

impl Layout {
    /// That of an object with this policy.
    pub fn of(policy: &Policy) -> Self {
        match policy.method {
            Method::Mirror => Self::Mirror { members: policy.members() },
        }
    }

    /// Members of a leg that lacks nothing.
    pub fn members(self) -> usize {
        match self {
            Self::Mirror { members } => members,
        }
    }

    /// Whether a change of `range` goes to the member of that slot, if that receives at all.
    pub fn gets(self, _slot: u8, _range: BlockRange) -> bool {
        match self {
            Self::Mirror { .. } => true,
        }
    }

    /// Whether an operation counts that the members `acked` have, of those that are `awaited` and
    /// get it; a bit for each slot.
    pub fn is_durable(self, awaited: u32, acked: u32) -> bool {
        match self {
            Self::Mirror { .. } => awaited & !acked == 0,
        }
    }

    /// Whether so many members, each with all that it should have, can give every block of the
    /// leg: enough to serve, for a takeover to go on, and for others to be left out (R6, R20).
    pub fn is_enough(self, whole: usize) -> bool {
        match self {
            Self::Mirror { .. } => whole >= 1,
        }
    }

    /// Whether the member of that slot, if it is active, answers a read of `range` by itself.
    pub fn serves(self, _slot: u8, _range: BlockRange) -> bool {
        match self {
            Self::Mirror { .. } => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_survives_as_long_as_one_copy_is_whole() {
        for failures_to_tolerate in 0..=3 {
            let layout = Layout::of(&Policy { failures_to_tolerate, ..Policy::DEFAULT });
            let members = usize::from(failures_to_tolerate) + 1;
            assert_eq!(layout.members(), members);
            assert!(!layout.is_enough(0));
            let lost = usize::from(failures_to_tolerate);
            assert!(layout.is_enough(members - lost), "{lost} of {members} may be lost");
            let all = (1u32 << members) - 1;
            assert!(layout.is_durable(all, all) && layout.is_durable(1, all));
            assert!(!layout.is_durable(all, all & !1), "one has not acknowledged");
        }
    }
}

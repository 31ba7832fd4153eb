//! How long a fence waits: one host pair's lease in discrete time (R9, R10).
//!
//! A host that owns many objects renews one lease for all of them from each other host. Another
//! host has claimed one of these objects and fences it at the member. Checked in every reachable
//! state: when the fence is answered the old owner's lease of that object has ended, by its own
//! clock, which may be slow by the allowed drift; and the fence waits for one grace at most,
//! though the old owner lives and goes on renewing for its other objects.

use super::checker::{Outcome, explore};
use super::{Rule, Rules, Wrong};

/// Ticks that a lease lasts, counted from before its renewal was sent.
const LEASE: u8 = 4;
/// Ticks that the owner's clock may lose during a lease.
const DRIFT: u8 = 1;
/// Ticks that a member waits after its last grant.
const GRACE: u8 = LEASE + DRIFT + 1;
/// A living host sends the next renewal within this many ticks.
const PERIOD: u8 = 2;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fence {
    NotYet,
    /// It arrived that many ticks ago.
    Waits(u8),
    Answered,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct State {
    /// Ticks left to the owner, by its own clock.
    lease: u8,
    /// Ticks that its clock may still lose in this lease.
    drift: u8,
    /// Ticks left of the member's grace.
    grace: u8,
    /// Ticks since the last renewal was sent.
    idle: u8,
    /// A renewal on its way to the member: ticks since it was sent.
    request: Option<u8>,
    /// The answer on its way back: ticks since the renewal was sent, and whether it covers the
    /// object.
    reply: Option<(u8, bool)>,
    fence: Fence,
}

/// Searches every state; `rules` may lack [`Rule::R10LeaveOut`] or
/// [`Rule::R9GraceOutlivesLease`].
pub fn check(rules: Rules) -> Outcome {
    let grace = if rules.has(Rule::R9GraceOutlivesLease) { GRACE } else { LEASE };
    let leave_out = rules.has(Rule::R10LeaveOut);
    let first = State {
        lease: LEASE,
        drift: DRIFT,
        grace,
        idle: 0,
        request: None,
        reply: None,
        fence: Fence::NotYet,
    };
    explore(
        first,
        |s, out| {
            let waits = matches!(s.fence, Fence::Waits(_));
            out.push((
                "the owner sends a renewal".to_owned(),
                State { idle: 0, request: Some(0), ..*s },
            ));
            if let Some(age) = s.request {
                let covers = !(waits && leave_out) && s.fence != Fence::Answered;
                let left = if covers { grace } else { s.grace };
                out.push((
                    format!("the member grants it; the object is covered: {covers}"),
                    State { request: None, reply: Some((age, covers)), grace: left, ..*s },
                ));
            }
            if let Some((age, covers)) = s.reply {
                let mut after = State { reply: None, ..*s };
                if covers && LEASE.saturating_sub(age) > s.lease {
                    after.lease = LEASE - age;
                    after.drift = DRIFT;
                }
                out.push(("the grant reaches the owner".to_owned(), after));
            }
            if s.fence == Fence::NotYet {
                let after = State { fence: Fence::Waits(0), ..*s };
                out.push(("the new owner's fence arrives".to_owned(), after));
            }
            let due = waits && s.grace == 0;
            if due {
                let after = State { fence: Fence::Answered, ..*s };
                out.push(("the member answers the fence".to_owned(), after));
            }
            // What is due happens before time goes on; everything else may be late or lost.
            if s.idle < PERIOD && !due {
                let older = |age: u8| (age + 1).min(LEASE);
                let after = State {
                    lease: s.lease.saturating_sub(1),
                    grace: s.grace.saturating_sub(1),
                    idle: s.idle + 1,
                    request: s.request.map(older),
                    reply: s.reply.map(|(age, covers)| (older(age), covers)),
                    fence: match s.fence {
                        Fence::Waits(ticks) => Fence::Waits(ticks + 1),
                        other => other,
                    },
                    ..*s
                };
                out.push(("a tick".to_owned(), after));
                if s.drift > 0 && s.lease > 0 {
                    let late = State { lease: s.lease, drift: s.drift - 1, ..after };
                    out.push(("a tick that the owner's clock loses".to_owned(), late));
                }
            }
        },
        |s| match s.fence {
            Fence::Answered if s.lease > 0 => Some((
                Wrong::LeaseOutlivesFence,
                format!("the owner still counts {} ticks", s.lease),
            )),
            Fence::Waits(ticks) if ticks > GRACE => Some((
                Wrong::FenceWaitsTooLong,
                format!("it has waited {ticks} ticks, a grace is {GRACE}"),
            )),
            _ => None,
        },
    )
}

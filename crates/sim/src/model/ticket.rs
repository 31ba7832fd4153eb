//! A write that is sent again after its answer was lost (R21, F19).
//!
//! Two clients of one block, each with one write; owners that die in the middle, whose pending
//! write is then rolled forward or was never stored; answers and requests that are lost or late.
//! The mirror below is taken as correct: a value is simply stored, once. Checked: the history is
//! linearizable, where a write and its repetitions are one write.

use super::checker::{Outcome, explore};
use super::monitor::Monitor;
use super::{Rule, Rules, Wrong};

/// Two clients; client `c` has one write, of value `c + 1`.
const CLIENTS: usize = 2;
/// Sendings of each write.
const SENDS: u8 = 2;
/// Owners that die.
const DEATHS: u8 = 2;
/// Client reads.
const READS: u8 = 3;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct State {
    value: u8,
    /// The write that the owner has under way; it holds the range lock.
    pending: Option<usize>,
    /// The first request of each client is under way.
    first: [bool; CLIENTS],
    /// Repetitions of it that are.
    again: [u8; CLIENTS],
    /// Times each client has sent its write.
    sends: [u8; CLIENTS],
    /// Who has an answer.
    answered: [bool; CLIENTS],
    /// Tickets found in descriptors of stored operations.
    tickets: [bool; CLIENTS],
    /// The cluster was told that the client needs this number no more.
    settled: [bool; CLIENTS],
    deaths: u8,
    reads: u8,
    history: Monitor,
}

/// Searches every state; `rules` may lack [`Rule::R21Tickets`], [`Rule::R21TicketsUntilSettled`],
/// [`Rule::R21EveryRequest`] or [`Rule::R21SettledRefused`].
pub fn check(rules: Rules) -> Outcome {
    let first = State {
        value: 0,
        pending: None,
        first: [false; CLIENTS],
        again: [0; CLIENTS],
        sends: [0; CLIENTS],
        answered: [false; CLIENTS],
        tickets: [false; CLIENTS],
        settled: [false; CLIENTS],
        deaths: 0,
        reads: 0,
        history: Monitor::NEW,
    };
    explore(
        first,
        |s, out| {
            for c in 0..CLIENTS {
                client_steps(rules, s, c, out);
            }
            if let Some(c) = s.pending {
                let mut stored = *s;
                stored.pending = None;
                stored.value = c as u8 + 1;
                stored.tickets[c] = true;
                let name = c + 1;
                out.push((format!("v{name} is stored, its answer is lost"), stored));
                out.push((format!("v{name} is stored and answered"), answer(&stored, c)));
                if s.deaths < DEATHS {
                    stored.deaths += 1;
                    out.push((format!("the owner dies, v{name} is rolled forward"), stored));
                    let gone = State { pending: None, deaths: s.deaths + 1, ..*s };
                    out.push((format!("the owner dies, v{name} was stored nowhere"), gone));
                }
            } else if s.reads < READS {
                let mut after = State { reads: s.reads + 1, ..*s };
                after.history.read_begins();
                after.history.read_ends(s.value);
                out.push((format!("a client reads v{}", s.value), after));
            }
        },
        |s| {
            let good = s.history.is_linearizable();
            (!good).then(|| (Wrong::NotLinearizable, format!("the block holds v{}", s.value)))
        },
    )
}

fn client_steps(rules: Rules, s: &State, c: usize, out: &mut Vec<(String, State)>) {
    let name = c + 1;
    if s.sends[c] < SENDS && !s.answered[c] {
        let mut after = *s;
        after.sends[c] += 1;
        if s.sends[c] == 0 {
            after.first[c] = true;
            after.history.write_begins(name as u8);
        } else {
            after.again[c] += 1;
        }
        let again = if s.sends[c] == 0 { "" } else { " again" };
        out.push((format!("client {name} sends its write of v{name}{again}"), after));
    }
    if s.pending.is_none() {
        if s.first[c] {
            let after = State { first: without(s.first, c), ..*s };
            arrives(rules, &after, c, !rules.has(Rule::R21EveryRequest), out);
        }
        if s.again[c] > 0 {
            let mut after = *s;
            after.again[c] -= 1;
            arrives(rules, &after, c, false, out);
        }
    }
    if s.answered[c] && !s.settled[c] {
        let mut after = *s;
        after.settled[c] = true;
        after.tickets[c] = false;
        out.push((format!("client {name} settles its write; the ticket is forgotten"), after));
    }
    if s.tickets[c] && !rules.has(Rule::R21TicketsUntilSettled) {
        let mut after = *s;
        after.tickets[c] = false;
        out.push((format!("v{name} is committed everywhere; its ticket is forgotten"), after));
    }
}

/// A request reaches the owner; `blindly`: nobody looks whether it is known.
fn arrives(rules: Rules, s: &State, c: usize, blindly: bool, out: &mut Vec<(String, State)>) {
    let name = c + 1;
    if s.settled[c] && rules.has(Rule::R21SettledRefused) && !blindly {
        out.push((format!("a late request of v{name} is refused"), *s));
    } else if s.tickets[c] && rules.has(Rule::R21Tickets) && !blindly {
        out.push((format!("v{name} is known, its answer is lost again"), *s));
        out.push((format!("v{name} is known: answered, not stored"), answer(s, c)));
    } else {
        let after = State { pending: Some(c), ..*s };
        out.push((format!("the owner begins to store v{name}"), after));
    }
}

fn without(mut set: [bool; CLIENTS], c: usize) -> [bool; CLIENTS] {
    set[c] = false;
    set
}

fn answer(s: &State, c: usize) -> State {
    let mut after = *s;
    if !s.answered[c] {
        after.answered[c] = true;
        after.history.write_ends(c as u8 + 1);
    }
    after
}

//! A trace in words.

use super::state::{ABSENT, ACTIVE, Message, RESYNCING, SEQS, State};
use super::step::Action;

fn member(m: u8) -> char {
    char::from(b'A' + m)
}

fn op(id: u8) -> String {
    format!("{}.{}", id / SEQS, id % SEQS)
}

fn message(word: u64) -> String {
    match Message::unpack(word) {
        Message::Cas { owner, change, subject, expect, .. } => format!(
            "host {owner}'s {change:?} of {} (expects revision {})",
            member(subject),
            expect.0
        ),
        Message::Answer { owner, done, revision, .. } => {
            let what = if done { "done" } else { "conflict" };
            format!("the answer to host {owner}: {what}, revision {revision}")
        }
        Message::Attach { member: m, session } => {
            format!("Attach {}.{} at {}", session.0, session.1, member(m))
        }
        Message::Op { member: m, session, block, version, .. } => format!(
            "op {} (v{} to block {block}, session {}.{}) at {}",
            op(version.0),
            version.1,
            session.0,
            session.1,
            member(m)
        ),
        Message::Copy { member: m, session, versions, .. } => format!(
            "copy [{} v{}, {} v{}] (session {}.{}) at {}",
            op(versions[0].0),
            versions[0].1,
            op(versions[1].0),
            versions[1].1,
            session.0,
            session.1,
            member(m)
        ),
        Message::AckOp { member: m, session, id } => {
            format!("{}'s ack of op {} in session {}.{}", member(m), op(id), session.0, session.1)
        }
        Message::AckCopy { member: m, session, .. } => {
            format!("{}'s ack of a copy in session {}.{}", member(m), session.0, session.1)
        }
        Message::GiveBack { member: m, serial } => {
            format!("give-back of lease {serial} at {}", member(m))
        }
    }
}

/// One step, told from the state before it.
pub fn step(s: &State, action: Action) -> String {
    let slot = |i: u8| message(s.net.slots[usize::from(i)]);
    match action {
        Action::Claim(o) => format!("host {o} claims epoch {}", s.directory.epoch + 1),
        Action::Resume(o) => format!("host {o} goes on as owner in epoch {}", s.directory.epoch),
        Action::Directory(i) => format!("the directory gets {}", slot(i)),
        Action::Answer(i) => format!("arrives: {}", slot(i)),
        Action::Overdue(o) => format!("host {o} stops waiting for the directory"),
        Action::Resolve(o) => format!("host {o} finds out what became of its change"),
        Action::Fence(o, m) => format!("{} answers the fence of host {o}", member(m)),
        Action::Open(o) => format!("host {o} rolls forward and serves"),
        Action::Deliver(i) => format!("arrives: {}", slot(i)),
        Action::Duplicate(i) => format!("arrives, and will again: {}", slot(i)),
        Action::Write(o) => format!("a client writes v{} at host {o}", s.writes + 1),
        Action::ReadBegin(o, b, m) => {
            format!("a client reads block {b} at host {o}, which asks {}", member(m))
        }
        Action::ReadData => format!("{} reads", member(s.read.member)),
        Action::ReadAnswer => format!("host {} answers v{}", s.read.owner, s.read.value),
        Action::ReadGivenUp => "the client gives up; the reply is late".to_owned(),
        Action::ReadLate(o, b) => {
            format!("a client reads block {b} at host {o}, which takes the late reply")
        }
        Action::WriteGivenUp(o, slot) => {
            let id = s.owners[usize::from(o)].ops[usize::from(slot)].id;
            format!("host {o} gives up op {} and its lock", op(id))
        }
        Action::Drop(o, m) => format!("host {o} sends the drop of {}", member(m)),
        Action::Readmit(o, m) => format!("host {o} sends the return of {}", member(m)),
        Action::Promote(o, m) => format!("host {o} sends the promotion of {}", member(m)),
        Action::Copy(o, m, from) => {
            format!("host {o} copies the chunk from {} to {}", member(from), member(m))
        }
        Action::CopyGivenUp(o, m) => {
            format!("host {o} gives up the copy to {} and its lock", member(m))
        }
        Action::Reattach(o, m) => format!("host {o} opens a new session with {}", member(m)),
        Action::Crash(o) => format!("host {o}'s owner process dies"),
        Action::Restart(m) => format!("{} restarts", member(m)),
        Action::Die(m) => format!("{} dies for good", member(m)),
        Action::Renew(o, m) => format!("host {o} renews its lease from {}", member(m)),
        Action::GiveBack(o, m) => format!("host {o} hands back its lease from {}", member(m)),
        Action::Revive(o, m) => format!("host {o} calls absent {} active", member(m)),
    }
}

/// What members and directory hold.
pub fn picture(s: &State) -> String {
    let d = &s.directory;
    let mut out = format!("directory: revision {}, epoch {}, owner", d.revision, d.epoch);
    out += &format!(" host {}", d.owner.saturating_sub(1));
    for (m, state) in d.state.iter().enumerate() {
        let word = match *state {
            ACTIVE => "active".to_owned(),
            ABSENT => format!("absent since {}", op(d.since[m])),
            RESYNCING => format!("resyncing from {}", op(d.since[m])),
            _ => continue,
        };
        let blocks = &s.members[m].blocks;
        out += &format!(
            "; {} {word} [{} v{}, {} v{}]",
            member(m as u8),
            op(blocks[0].id),
            blocks[0].value,
            op(blocks[1].id),
            blocks[1].value
        );
    }
    out + &format!("; acknowledged {} and {}", op(s.acked[0]), op(s.acked[1]))
}

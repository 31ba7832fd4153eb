//! The steps of the protocol: what can happen in a state, and what it leads to.
//!
//! Owners act on what they know (their view, their answers), members on what they stored; whatever
//! is under way may arrive at any time, in any order, or never. A step is atomic. Time is
//! abstract: a fence that is answered by a member means that the owner's lease from that member
//! has ended; a paused owner is one that takes no step for a while.

use super::state::{
    ABSENT, ACTIVE, BLOCKS, Cas, Change, LATE, MEMBERS, Message, OPS, OWNERS, Op, Owner, Phase,
    RESYNCING, Read, Record, SEQS, Session, State, UNORDERED, Version, Wrong,
};
use super::{Config, Rule, Rules};

/// One thing that may happen. Numbers are owners, members, blocks or places in the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// An idle host reads the directory and sends a claim.
    Claim(u8),
    /// Only without R5: a restarted owner goes on.
    Resume(u8),
    /// A compare-and-swap reaches the directory.
    Directory(u8),
    /// The directory's answer reaches the owner.
    Answer(u8),
    /// The owner stops waiting for that answer.
    Overdue(u8),
    /// It finds out (R12).
    Resolve(u8),
    /// A member answers an owner's fence.
    Fence(u8, u8),
    /// The owner has heard enough: sessions are opened, roll-forward and service begin.
    Open(u8),
    /// A message reaches its member or owner.
    Deliver(u8),
    /// The same, and a copy of it stays under way.
    Duplicate(u8),
    /// A client begins the next write at that owner.
    Write(u8),
    /// A client begins a read at that owner, of that block, from that member.
    ReadBegin(u8, u8, u8),
    /// The member reads.
    ReadData,
    /// The owner answers the client.
    ReadAnswer,
    /// Only without R8: the client and its range lock are let go, the reply is still to come.
    ReadGivenUp,
    /// Only without R8: a client reads that block, and gets the late reply of an earlier read.
    ReadLate(u8, u8),
    /// Only without R8: the owner gives up waiting for an operation, and its lock with it.
    WriteGivenUp(u8, u8),
    /// The owner sends the drop of a member.
    Drop(u8, u8),
    /// The owner sends the return of an absent member.
    Readmit(u8, u8),
    /// The owner sends the promotion of a resyncing member.
    Promote(u8, u8),
    /// The owner copies the chunk to a member, from another.
    Copy(u8, u8, u8),
    /// Only without R17: the owner gives up waiting for a copy, and its lock with it.
    CopyGivenUp(u8, u8),
    /// The owner opens a new session with a member.
    Reattach(u8, u8),
    /// An owner process dies; its host starts another.
    Crash(u8),
    /// A member restarts.
    Restart(u8),
    /// A member dies for good.
    Die(u8),
    /// The owner renews its lease from a member.
    Renew(u8, u8),
    /// The owner hands a lease back.
    GiveBack(u8, u8),
    /// Only without R20: a takeover makes an absent member active.
    Revive(u8, u8),
}

/// A state with the rules that it lives by.
pub struct Steps {
    pub config: Config,
    pub rules: Rules,
}

pub(super) fn bit(member: u8) -> u8 {
    1 << member
}

pub(super) fn members(mask: u8) -> impl Iterator<Item = u8> {
    (0..MEMBERS as u8).filter(move |&m| mask & bit(m) != 0)
}

impl Owner {
    fn pending(&self, block: u8) -> Option<&Op> {
        self.ops.iter().find(|op| op.is_pending() && op.block == block)
    }

    fn has_pending(&self) -> bool {
        self.ops.iter().any(Op::is_pending)
    }

    fn free_slot(&self) -> Option<usize> {
        self.ops.iter().position(|op| op.id == 0)
    }

    /// The last id assigned.
    fn last_assigned(&self) -> u8 {
        self.epoch * SEQS + self.seq
    }

    /// W (R4): it and everything below is durable on all active members.
    fn watermark(&self, rules: Rules) -> u8 {
        let old = rules.has(Rule::R4RolledHoldWatermark);
        let holds = |op: &Op| if old { op.was } else { op.id };
        let lowest = self.ops.iter().filter(|op| op.is_pending()).map(holds).min();
        let known = match self.phase {
            Phase::Serving => lowest.map_or(self.last_assigned(), |id| id - 1),
            _ => 0,
        };
        known.max(self.told)
    }

    /// The member whose promotion may or may not have been recorded.
    fn promoting(&self) -> u8 {
        if self.cas != Cas::None && self.change == Change::Promote { bit(self.subject) } else { 0 }
    }

    fn resyncing_slots_done(&mut self) {
        let owed = self.view.mask(RESYNCING) | self.promoting();
        for op in &mut self.ops {
            if op.decided && op.sent & !op.acked & owed == 0 {
                *op = Op::default();
            }
        }
    }
}

impl Steps {
    fn has(&self, rule: Rule) -> bool {
        self.rules.has(rule)
    }

    /// Members that every client acknowledgement waits for.
    fn awaited(&self, o: &Owner) -> u8 {
        let mut mask = o.view.mask(ACTIVE);
        if o.cas != Cas::None && o.change == Change::Drop && !self.has(Rule::R12Confirmed) {
            mask &= !bit(o.subject);
        }
        let unknown = matches!(o.cas, Cas::Unknown | Cas::Resolving);
        if self.has(Rule::R15AwaitPromoted) || (unknown && self.has(Rule::R13StricterOfBoth)) {
            mask |= o.promoting();
        }
        mask
    }

    /// Whether the owner may answer a read that `member` served (R11).
    fn leased(&self, o: &Owner, member: u8) -> bool {
        if !self.has(Rule::R11CheckWhenAnswering) {
            return true;
        }
        let mut need = o.view.mask(ACTIVE);
        if self.has(Rule::R13StricterOfBoth) {
            need |= o.promoting();
        }
        if !self.has(Rule::R11EveryLease) {
            need = bit(member);
        }
        o.leases & need == need
    }

    /// Whether clients may begin a read of `block` at that owner now (R8).
    fn may_read(&self, o: &Owner, block: u8) -> bool {
        o.pending(block).is_none_or(|op| {
            let rule = if op.client { Rule::R8ReadsWait } else { Rule::R7BlockLocked };
            !self.has(rule)
        })
    }

    /// Whether `member` needs the chunk, as computed when its session opens (R18).
    fn needs_chunk(&self, s: &State, view: &Record, member: u8) -> bool {
        let from = view.since[usize::from(member)];
        let source = members(view.mask(ACTIVE)).next();
        let newest = source.map_or(0, |m| s.members[usize::from(m)].chunk);
        let own = s.members[usize::from(member)].chunk;
        newest > from || (own > from && self.has(Rule::R18OwnPast))
    }

    /// Whether the barrier of R14 is passed.
    fn may_promote(&self, s: &State, o: &Owner, m: u8) -> bool {
        let this = bit(m);
        let attached = o.attach[usize::from(m)] != 0;
        if attached && o.planned & this == 0 {
            return false;
        }
        let needs = if !attached {
            self.needs_chunk(s, &o.view, m)
        } else if self.has(Rule::R16BehindMark) {
            o.needs & this != 0
        } else {
            let source = members(o.view.mask(ACTIVE)).next();
            source
                .is_some_and(|a| s.members[usize::from(a)].chunk != s.members[usize::from(m)].chunk)
        };
        let copying = o.copying & this != 0 && self.has(Rule::R14NoCopyUnderWay);
        if (needs && self.has(Rule::R14ChunksCopied)) || copying {
            return false;
        }
        let owed = o.ops.iter().any(|op| op.id != 0 && op.sent & !op.acked & this != 0);
        if owed && self.has(Rule::R14OpsAcked) {
            return false;
        }
        !attached || o.leases & this != 0 || !self.has(Rule::R13StricterOfBoth)
    }

    /// Everything that may happen in `s`.
    pub fn actions(&self, s: &State, out: &mut Vec<Action>) {
        out.clear();
        for (i, &word) in s.net.all().iter().enumerate() {
            let i = i as u8;
            match Message::unpack(word) {
                Message::Cas { .. } => out.push(Action::Directory(i)),
                Message::Answer { .. } => out.push(Action::Answer(i)),
                message => {
                    if self.deliverable(s, message) {
                        out.push(Action::Deliver(i));
                        // Without a number only the transport sees to it that a copy arrives at
                        // most once (R2).
                        let once = matches!(message, Message::Copy { number: UNORDERED.., .. });
                        if s.left.duplicates > 0 && !once {
                            out.push(Action::Duplicate(i));
                        }
                    }
                }
            }
        }
        for owner in 0..OWNERS as u8 {
            self.owner_actions(s, owner, out);
        }
        let read = s.read;
        if read.stage == 1 {
            let m = &s.members[usize::from(read.member)];
            let dead = s.dead & bit(read.member) != 0;
            if m.fenced <= s.owners[usize::from(read.owner)].epoch && !dead {
                out.push(Action::ReadData);
            }
        }
        if read.stage == 2 && self.leased(&s.owners[usize::from(read.owner)], read.member) {
            out.push(Action::ReadAnswer);
        }
        if read.stage == 2 && !self.has(Rule::R8LateReplies) {
            out.push(Action::ReadGivenUp);
        }
        for m in 0..self.config.members {
            if s.left.restarts > 0 && s.dead & bit(m) == 0 {
                out.push(Action::Restart(m));
            }
            if s.left.deaths > 0 && s.dead & bit(m) == 0 {
                out.push(Action::Die(m));
            }
        }
    }

    fn owner_actions(&self, s: &State, owner: u8, out: &mut Vec<Action>) {
        let o = &s.owners[usize::from(owner)];
        let left = &s.left;
        if o.phase != Phase::Idle && left.crashes > 0 {
            out.push(Action::Crash(owner));
        }
        match o.phase {
            Phase::Idle => {
                let mine = s.directory.owner == owner + 1;
                if mine && o.incarnation > 0 && !self.has(Rule::R5NewEpoch) {
                    out.push(Action::Resume(owner));
                } else if s.directory.epoch < self.config.epochs {
                    out.push(Action::Claim(owner));
                }
                return;
            }
            Phase::Claiming => return,
            Phase::Fencing => {
                let active = o.view.mask(ACTIVE);
                for m in members(active & !o.answered & !s.dead) {
                    if s.members[usize::from(m)].fenced <= o.epoch {
                        out.push(Action::Fence(owner, m));
                    }
                }
                let heard = o.answered & active;
                let enough =
                    if self.has(Rule::R6AllActiveAnswer) { heard == active } else { heard != 0 };
                if o.cas == Cas::None && enough && active != 0 {
                    out.push(Action::Open(owner));
                }
                if o.cas == Cas::None && heard == 0 && !self.has(Rule::R20DirectoryDecides) {
                    for m in members(o.view.mask(ABSENT) & !s.dead) {
                        out.push(Action::Revive(owner, m));
                    }
                }
            }
            Phase::Serving => self.serving_actions(s, owner, out),
        }
        if o.cas == Cas::None && left.drops > 0 {
            let active = o.view.mask(ACTIVE);
            let mut droppable = active;
            if o.phase == Phase::Fencing {
                droppable &= !o.answered;
            } else {
                droppable |= o.view.mask(RESYNCING);
            }
            for m in members(droppable) {
                let others = active & !bit(m);
                let heard = o.phase == Phase::Serving
                    || others & o.answered != 0
                    || !self.has(Rule::R6FenceBeforeDrop);
                let last = active & bit(m) != 0 && others == 0;
                if (heard || last) && !(last && self.has(Rule::R20KeepLastActive)) {
                    out.push(Action::Drop(owner, m));
                }
            }
        }
        match o.cas {
            Cas::Sent | Cas::Resolving if left.overdue > 0 => out.push(Action::Overdue(owner)),
            Cas::Unknown => out.push(Action::Resolve(owner)),
            _ => {}
        }
    }

    fn serving_actions(&self, s: &State, owner: u8, out: &mut Vec<Action>) {
        let o = &s.owners[usize::from(owner)];
        let left = &s.left;
        let active = o.view.mask(ACTIVE);
        let resyncing = o.view.mask(RESYNCING);
        if s.writes < self.config.writes && o.seq + 1 < SEQS && o.free_slot().is_some() {
            let block = self.config.blocks[usize::from(s.writes)];
            let read_here = s.read.is_open_at(owner) && s.read.block == block;
            let copy_lock =
                o.copying != 0 && self.has(Rule::R17CopyLock) && !self.config.lock_free_copy;
            if o.pending(block).is_none()
                && !(read_here && self.has(Rule::R8ReadsWait))
                && !copy_lock
            {
                out.push(Action::Write(owner));
            }
        }
        if left.reads > 0 && !s.read.is_open_at(owner) {
            if s.read.stage == LATE && s.read.owner == owner && self.may_read(o, s.read.block) {
                out.push(Action::ReadLate(owner, s.read.block));
            }
            let mut from = active;
            if !self.has(Rule::R19OnlyActiveServe) {
                from |= o.view.mask(ABSENT) | resyncing;
            }
            for block in 0..self.config.blocks_used() {
                if !self.may_read(o, block) {
                    continue;
                }
                for m in members(from & !s.dead) {
                    if self.leased(o, m) {
                        out.push(Action::ReadBegin(owner, block, m));
                    }
                }
            }
        }
        if o.cas == Cas::None {
            if left.readmits > 0 {
                for m in members(o.view.mask(ABSENT)) {
                    out.push(Action::Readmit(owner, m));
                }
            }
            if left.promotes > 0 {
                for m in members(resyncing) {
                    if self.may_promote(s, o, m) {
                        out.push(Action::Promote(owner, m));
                    }
                }
            }
        }
        if left.copies > 0 {
            let locked = self.has(Rule::R17CopyLock) && !self.config.lock_free_copy;
            // A resyncing member is copied to when it needs it, and again "on doubt" (R16); an
            // active one when its bytes turn out to be bad (a repair).
            let attached = members(active).filter(|&m| o.attach[usize::from(m)] != 0);
            let repaired = attached.fold(0, |mask, m| mask | bit(m));
            let targets = (resyncing & o.planned & !o.promoting()) | repaired;
            for m in members(targets & !o.copying) {
                if locked && o.has_pending() {
                    continue;
                }
                for source in members(active & !s.dead & !bit(m)) {
                    if s.members[usize::from(source)].fenced <= o.epoch {
                        out.push(Action::Copy(owner, m, source));
                    }
                }
            }
        }
        if !self.has(Rule::R17LockUntilAcked) {
            for m in members(o.copying) {
                out.push(Action::CopyGivenUp(owner, m));
            }
        }
        if left.reattaches > 0 {
            for m in members(active | resyncing) {
                if o.attach[usize::from(m)] != 0 {
                    out.push(Action::Reattach(owner, m));
                }
            }
        }
        if !self.has(Rule::R8LockUntilDecided) {
            for (slot, op) in o.ops.iter().enumerate() {
                if op.is_pending() && op.client {
                    out.push(Action::WriteGivenUp(owner, slot as u8));
                }
            }
        }
        for m in members(active) {
            if left.give_backs > 0 && o.leases & bit(m) != 0 {
                out.push(Action::GiveBack(owner, m));
            }
            let member = &s.members[usize::from(m)];
            if o.leases & bit(m) == 0 && member.fenced <= o.epoch && member.session.0 <= o.epoch {
                out.push(Action::Renew(owner, m));
            }
        }
    }

    /// Whether a message would be taken if it arrived now.
    fn deliverable(&self, s: &State, message: Message) -> bool {
        match message {
            Message::Attach { member, session } => {
                let m = &s.members[usize::from(member)];
                s.dead & bit(member) == 0 && session.0 >= m.fenced && session > m.session
            }
            Message::Op { member, session, number, .. }
            | Message::Copy { member, session, number, .. } => {
                let m = &s.members[usize::from(member)];
                let turn = number == m.next || number >= UNORDERED;
                let in_turn = session == m.session && turn && m.open;
                s.dead & bit(member) == 0
                    && session.0 >= m.fenced
                    && (in_turn || !self.has(Rule::R2Sessions))
            }
            _ => true,
        }
    }

    /// Whether a message may be forgotten: nothing will ever take it.
    fn is_waste(&self, s: &State, message: Message) -> bool {
        match message {
            Message::Cas { owner, incarnation, tag, expect, .. } => {
                let o = &s.owners[usize::from(owner)];
                let awaited = o.incarnation == incarnation && o.tag == tag && o.cas != Cas::None;
                !awaited && self.has(Rule::R12CompareRevision) && expect.0 < s.directory.revision
            }
            Message::Answer { owner, incarnation, tag, .. } => {
                let o = &s.owners[usize::from(owner)];
                o.incarnation != incarnation || o.tag != tag || o.cas == Cas::None
            }
            Message::Attach { member, session } => {
                let m = &s.members[usize::from(member)];
                session <= m.session
                    || (session.0 < m.fenced && self.has(Rule::R1FencedEpochDurable))
            }
            Message::Op { member, session, number, .. }
            | Message::Copy { member, session, number, .. } => {
                let m = &s.members[usize::from(member)];
                let past = session < m.session || (session == m.session && number < m.next);
                (session.0 < m.fenced && self.has(Rule::R1FencedEpochDurable))
                    || (past && self.has(Rule::R2Sessions))
            }
            Message::AckOp { member, session, .. } => {
                let stale = !self.has(Rule::R2AcksOfThisSession);
                self.owner_of(s, session.0)
                    .is_none_or(|o| s.owners[o].attach[usize::from(member)] != session.1 && !stale)
            }
            Message::AckCopy { member, session, number } => {
                self.owner_of(s, session.0).is_none_or(|o| {
                    let (o, m) = (&s.owners[o], usize::from(member));
                    o.attach[m] != session.1 || o.copy[m] != number
                })
            }
            Message::GiveBack { member, serial } => {
                s.members[usize::from(member)].serial != serial && self.has(Rule::R9Serials)
            }
        }
    }

    fn owner_of(&self, s: &State, epoch: u8) -> Option<usize> {
        s.owners.iter().position(|o| o.phase == Phase::Serving && o.epoch == epoch)
    }

    /// The state after `action`.
    pub fn apply(&self, before: &State, action: Action) -> State {
        let mut s = *before;
        self.change(&mut s, action);
        let mut i = 0;
        while i < usize::from(s.net.len) {
            if self.is_waste(&s, Message::unpack(s.net.slots[i])) {
                s.net.remove(i);
            } else {
                i += 1;
            }
        }
        self.judge(&mut s);
        s
    }

    /// The checks after every step.
    fn judge(&self, s: &mut State) {
        if s.wrong != Wrong::Nothing {
            return;
        }
        let active = s.directory.mask(ACTIVE);
        if s.monitors.iter().any(|m| !m.is_linearizable()) {
            s.wrong = Wrong::NotLinearizable;
        } else if active == 0 {
            s.wrong = Wrong::NoActiveMember;
        } else if members(active).any(|m| !self.holds_all(s, m)) {
            s.wrong = Wrong::ActiveLacksAcknowledged;
        } else if s.blind_drop
            && active & !s.dead == 0
            && members(!active & !s.dead & ((1 << self.config.members) - 1))
                .any(|m| self.holds_all(s, m))
        {
            s.wrong = Wrong::NeedlesslyInaccessible;
        }
    }

    fn holds_all(&self, s: &State, m: u8) -> bool {
        let blocks = &s.members[usize::from(m)].blocks;
        (0..BLOCKS).all(|b| blocks[b].id >= s.acked[b])
    }

    fn change(&self, s: &mut State, action: Action) {
        match action {
            Action::Claim(owner) => {
                let d = s.directory;
                let new = Record { epoch: d.epoch + 1, owner: owner + 1, ..d };
                let o = &mut s.owners[usize::from(owner)];
                o.phase = Phase::Claiming;
                o.epoch = d.epoch + 1;
                o.view = d;
                self.send_cas(s, owner, Change::Claim, 0, new, false);
            }
            Action::Resume(owner) => self.resume(s, owner),
            Action::Directory(i) => self.directory(s, i),
            Action::Answer(i) => self.answer(s, i),
            Action::Overdue(owner) => {
                s.left.overdue -= 1;
                s.owners[usize::from(owner)].cas = Cas::Unknown;
            }
            Action::Resolve(owner) => self.resolve(s, owner),
            Action::Fence(owner, m) => self.fence(s, owner, m),
            Action::Open(owner) => self.open(s, owner),
            Action::Deliver(i) => {
                let message = Message::unpack(s.net.remove(usize::from(i)));
                self.deliver(s, message);
            }
            Action::Duplicate(i) => {
                s.left.duplicates -= 1;
                let message = Message::unpack(s.net.slots[usize::from(i)]);
                self.deliver(s, message);
            }
            Action::Write(owner) => self.write(s, owner),
            Action::ReadBegin(owner, block, member) => {
                s.left.reads -= 1;
                self.give_up_read(s);
                s.monitors[usize::from(block)].read_begins();
                s.read = Read { stage: 1, owner, block, member, value: 0 };
            }
            Action::ReadData => {
                let m = &s.members[usize::from(s.read.member)];
                s.read.value = m.blocks[usize::from(s.read.block)].value;
                s.read.stage = 2;
            }
            Action::ReadAnswer => {
                s.monitors[usize::from(s.read.block)].read_ends(s.read.value);
                s.read = Read::default();
            }
            Action::ReadGivenUp => {
                s.monitors[usize::from(s.read.block)].read_is_given_up();
                s.read.stage = LATE;
            }
            Action::ReadLate(_, block) => {
                s.left.reads -= 1;
                s.monitors[usize::from(block)].read_begins();
                s.read.stage = 2;
            }
            Action::WriteGivenUp(owner, slot) => {
                s.owners[usize::from(owner)].ops[usize::from(slot)].decided = true;
            }
            Action::Drop(owner, m) => self.drop_member(s, owner, m),
            Action::Readmit(owner, m) => {
                s.left.readmits -= 1;
                let mut new = s.owners[usize::from(owner)].view;
                new.state[usize::from(m)] = RESYNCING;
                self.send_cas(s, owner, Change::Readmit, m, new, false);
            }
            Action::Promote(owner, m) => {
                s.left.promotes -= 1;
                let mut new = s.owners[usize::from(owner)].view;
                new.state[usize::from(m)] = ACTIVE;
                new.since[usize::from(m)] = 0;
                self.send_cas(s, owner, Change::Promote, m, new, false);
            }
            Action::Revive(owner, m) => {
                let mut new = s.owners[usize::from(owner)].view;
                new.state[usize::from(m)] = ACTIVE;
                new.since[usize::from(m)] = 0;
                self.send_cas(s, owner, Change::Revive, m, new, false);
            }
            Action::Copy(owner, m, source) => {
                s.left.copies -= 1;
                let blocks = s.members[usize::from(source)].blocks;
                let o = &mut s.owners[usize::from(owner)];
                o.copying |= bit(m);
                let number = if self.config.lanes {
                    UNORDERED + (o.copy[usize::from(m)] + 1) % UNORDERED
                } else {
                    o.next[usize::from(m)] += 1;
                    o.next[usize::from(m)] - 1
                };
                o.copy[usize::from(m)] = number;
                let session = (o.epoch, o.attach[usize::from(m)]);
                let versions = [(blocks[0].id, blocks[0].value), (blocks[1].id, blocks[1].value)];
                self.post(s, Message::Copy { member: m, session, number, versions });
            }
            Action::CopyGivenUp(owner, m) => s.owners[usize::from(owner)].copying &= !bit(m),
            Action::Reattach(owner, m) => {
                s.left.reattaches -= 1;
                self.open_session(s, owner, m);
            }
            Action::Crash(owner) => {
                s.left.crashes -= 1;
                self.stop(s, owner);
            }
            Action::Restart(m) => {
                s.left.restarts -= 1;
                let lost_list = !self.has(Rule::R7DescriptorsDurable);
                let member = &mut s.members[usize::from(m)];
                member.told = 0;
                member.no_list |= lost_list;
                member.no_grant |= !self.has(Rule::R9RestartGrace);
                if !self.has(Rule::R1FencedEpochDurable) {
                    member.fenced = member.session.0;
                }
                if self.config.lock_free_copy {
                    // What the session wrote is known to the process only (R17b).
                    member.open = false;
                    member.touched = 0;
                }
            }
            Action::Die(m) => {
                s.left.deaths -= 1;
                s.dead |= bit(m);
            }
            Action::Renew(owner, m) => {
                s.owners[usize::from(owner)].leases |= bit(m);
                let member = &mut s.members[usize::from(m)];
                member.serial += 1;
                member.no_grant = false;
            }
            Action::GiveBack(owner, m) => {
                s.left.give_backs -= 1;
                s.owners[usize::from(owner)].leases &= !bit(m);
                let serial = s.members[usize::from(m)].serial;
                self.post(s, Message::GiveBack { member: m, serial });
            }
        }
    }

    fn post(&self, s: &mut State, message: Message) {
        if !s.net.add(message.pack()) {
            s.overflow = true;
        }
    }

    fn give_up_read(&self, s: &mut State) {
        if matches!(s.read.stage, 1 | 2) {
            s.monitors[usize::from(s.read.block)].read_is_given_up();
        }
        s.read = Read::default();
    }

    /// The owner process forgets everything; the next one on its host has its own incarnation.
    fn stop(&self, s: &mut State, owner: u8) {
        if s.read.stage != 0 && s.read.owner == owner {
            self.give_up_read(s);
        }
        let incarnation = s.owners[usize::from(owner)].incarnation + 1;
        s.owners[usize::from(owner)] = Owner { incarnation, ..Owner::default() };
    }

    fn send_cas(&self, s: &mut State, owner: u8, change: Change, m: u8, new: Record, blind: bool) {
        let o = &mut s.owners[usize::from(owner)];
        if change == Change::Again {
            o.cas = Cas::Resolving;
        } else {
            o.cas = Cas::Sent;
            o.change = change;
            o.subject = m;
        }
        o.tag = (o.tag + 1) % 16;
        let message = Message::Cas {
            owner,
            incarnation: o.incarnation,
            tag: o.tag,
            change,
            subject: m,
            expect: (new.revision, if change == Change::Claim { new.epoch - 1 } else { new.epoch }),
            new: new.pack(),
            blind,
        };
        self.post(s, message);
    }

    fn directory(&self, s: &mut State, i: u8) {
        let Message::Cas { owner, incarnation, tag, change, expect, new, blind, .. } =
            Message::unpack(s.net.remove(usize::from(i)))
        else {
            unreachable!("chosen by its kind")
        };
        let done = if self.has(Rule::R12CompareRevision) {
            s.directory.revision == expect.0
        } else {
            s.directory.epoch == expect.1
        };
        if done {
            s.directory = new.unpack(s.directory.revision + 1);
            s.blind_drop = change == Change::Drop && blind;
        }
        let revision = s.directory.revision;
        let new = s.directory.pack();
        self.post(s, Message::Answer { owner, incarnation, tag, done, revision, new });
    }

    fn answer(&self, s: &mut State, i: u8) {
        let Message::Answer { owner, done, revision, new, .. } =
            Message::unpack(s.net.remove(usize::from(i)))
        else {
            unreachable!("chosen by its kind")
        };
        let o = &mut s.owners[usize::from(owner)];
        let record = new.unpack(revision);
        match (o.phase, done) {
            (Phase::Claiming, true) => {
                o.phase = Phase::Fencing;
                o.view = record;
                o.cas = Cas::None;
            }
            (Phase::Claiming, false) => self.stop(s, owner),
            (_, true) => self.adopt(s, owner, record),
            (_, false) if record.epoch != o.epoch && self.has(Rule::R21Stop) => {
                self.stop(s, owner);
            }
            (_, false) if o.cas == Cas::Resolving => o.cas = Cas::Unknown,
            (_, false) if record.epoch != o.epoch => {
                // Only without R21: what it knew of sessions and copies is kept.
                o.view = record;
                o.cas = Cas::None;
            }
            (_, false) => self.adopt(s, owner, record),
        }
    }

    fn resolve(&self, s: &mut State, owner: u8) {
        let record = s.directory;
        if record.epoch != s.owners[usize::from(owner)].epoch {
            self.stop(s, owner);
        } else if self.has(Rule::R12ResolveByWriting) {
            self.send_cas(s, owner, Change::Again, 0, record, false);
        } else {
            self.adopt(s, owner, record);
        }
    }

    /// The owner learns what the record is, for certain (or so it believes).
    fn adopt(&self, s: &mut State, owner: u8, record: Record) {
        let o = &mut s.owners[usize::from(owner)];
        let old = o.view;
        o.view = record;
        o.cas = Cas::None;
        let mut open = 0;
        for m in 0..MEMBERS {
            let this = 1 << m;
            match (old.state[m], record.state[m]) {
                (was, now) if was == now => {}
                (_, RESYNCING) => open |= this,
                (_, now) => {
                    if now == ABSENT {
                        for op in &mut o.ops {
                            op.sent &= !this;
                        }
                        o.leases &= !this;
                    }
                    // Without R3 a member may become active that has no session yet.
                    if now == ACTIVE && o.attach[m] == 0 && o.phase == Phase::Serving {
                        open |= this;
                    }
                    o.planned &= !this;
                    o.needs &= !this;
                    o.copying &= !this;
                }
            }
        }
        for m in members(open) {
            self.open_session(s, owner, m);
        }
        self.decide(s, owner);
    }

    fn open_session(&self, s: &mut State, owner: u8, m: u8) {
        let at = usize::from(m);
        let this = bit(m);
        let o = &mut s.owners[usize::from(owner)];
        o.attach[at] += 1;
        o.next[at] = 0;
        o.planned &= !this;
        o.needs &= !this;
        o.copying &= !this;
        o.copy[at] = 0;
        let session = (o.epoch, o.attach[at]);
        self.post(s, Message::Attach { member: m, session });
        for i in 0..OPS {
            let op = &mut s.owners[usize::from(owner)].ops[i];
            let old_ack = op.acked & this != 0 && !self.has(Rule::R2AcksOfThisSession);
            if old_ack {
                continue;
            }
            op.sent &= !this;
            op.acked &= !this;
            let first = op.is_pending() && session.1 == 1;
            if op.is_pending() && (first || self.has(Rule::R2PendingSentAgain)) {
                self.send_op(s, owner, i, m);
            }
        }
        s.owners[usize::from(owner)].resyncing_slots_done();
    }

    fn send_op(&self, s: &mut State, owner: u8, slot: usize, m: u8) {
        let o = &mut s.owners[usize::from(owner)];
        let told = o.watermark(self.rules);
        let op = &mut o.ops[slot];
        op.sent |= bit(m);
        let message = Message::Op {
            member: m,
            session: (o.epoch, o.attach[usize::from(m)]),
            number: o.next[usize::from(m)],
            block: op.block,
            version: (op.id, op.value),
            told,
        };
        o.next[usize::from(m)] += 1;
        self.post(s, message);
    }

    fn fence(&self, s: &mut State, owner: u8, m: u8) {
        let this = bit(m);
        let member = &mut s.members[usize::from(m)];
        let o = &mut s.owners[usize::from(owner)];
        member.fenced = o.epoch;
        o.answered |= this;
        o.leases |= this;
        o.told = o.told.max(member.told);
        let waited = !member.no_grant && self.has(Rule::R9GraceOutlivesLease);
        member.no_grant = false;
        member.serial += 1;
        if waited {
            for other in 0..OWNERS {
                if other != usize::from(owner) {
                    s.owners[other].leases &= !this;
                }
            }
        }
    }

    fn open(&self, s: &mut State, owner: u8) {
        let o = &mut s.owners[usize::from(owner)];
        o.phase = Phase::Serving;
        let active = o.view.mask(ACTIVE);
        let resyncing = o.view.mask(RESYNCING);
        let known = o.told;
        let heard = o.answered & active;
        s.blind_drop = false;
        if self.has(Rule::R7RollForward) {
            for block in 0..BLOCKS {
                let newest = members(heard)
                    .map(|m| &s.members[usize::from(m)])
                    .filter(|m| !m.no_list)
                    .map(|m| m.blocks[block])
                    .filter(|version| version.id > known)
                    .max_by_key(|version| version.id);
                if let Some(Version { id, value }) = newest {
                    let o = &mut s.owners[usize::from(owner)];
                    let slot = o.free_slot().expect("a new owner has no operations");
                    let block = block as u8;
                    let was = id;
                    let id = if self.config.new_ids {
                        o.seq += 1;
                        o.last_assigned()
                    } else {
                        id
                    };
                    o.ops[slot] = Op { id, was, value, block, ..Op::default() };
                }
            }
        }
        let attach = if self.has(Rule::R3AttachResyncing) { active | resyncing } else { active };
        for m in members(attach) {
            self.open_session(s, owner, m);
        }
    }

    fn resume(&self, s: &mut State, owner: u8) {
        let d = s.directory;
        let o = &mut s.owners[usize::from(owner)];
        o.phase = Phase::Serving;
        o.epoch = d.epoch;
        o.view = d;
        for m in members(d.mask(ACTIVE) | d.mask(RESYNCING)) {
            let session = s.members[usize::from(m)].session;
            if session.0 == d.epoch {
                s.owners[usize::from(owner)].attach[usize::from(m)] = session.1;
            }
            self.open_session(s, owner, m);
        }
    }

    fn write(&self, s: &mut State, owner: u8) {
        s.writes += 1;
        let value = s.writes;
        let block = self.config.blocks[usize::from(value) - 1];
        s.monitors[usize::from(block)].write_begins(value);
        let o = &mut s.owners[usize::from(owner)];
        o.seq += 1;
        let slot = o.free_slot().expect("checked before");
        let id = o.last_assigned();
        o.ops[slot] = Op { id, was: id, block, value, client: true, ..Op::default() };
        let to = o.view.mask(ACTIVE) | o.view.mask(RESYNCING);
        for m in members(to) {
            if s.owners[usize::from(owner)].attach[usize::from(m)] == 0 {
                // Without R3: the first message opens the session, and carries the operation.
                self.open_session(s, owner, m);
            } else {
                self.send_op(s, owner, slot, m);
            }
        }
    }

    fn drop_member(&self, s: &mut State, owner: u8, m: u8) {
        s.left.drops -= 1;
        let o = &s.owners[usize::from(owner)];
        let at = usize::from(m);
        let others = o.view.mask(ACTIVE) & !bit(m);
        let blind = o.phase == Phase::Fencing && others & o.answered == 0;
        let since = match (o.phase, o.view.state[at]) {
            (_, RESYNCING) if self.has(Rule::R4KeepFrom) => o.view.since[at],
            (Phase::Fencing, _) if self.has(Rule::R6SinceFromAnswers) => o.told,
            (Phase::Fencing, _) => o.epoch * SEQS,
            _ if self.has(Rule::R4SinceIsWatermark) => o.watermark(self.rules),
            _ => o.last_assigned(),
        };
        let mut new = o.view;
        new.state[at] = ABSENT;
        new.since[at] = since;
        self.send_cas(s, owner, Change::Drop, m, new, blind);
        self.decide(s, owner);
    }

    fn deliver(&self, s: &mut State, message: Message) {
        match message {
            Message::Attach { member, session } => self.attached(s, member, session),
            Message::Op { member, session, block, version, told, .. } => {
                let m = &mut s.members[usize::from(member)];
                m.fenced = m.fenced.max(session.0);
                m.next += 1;
                m.blocks[usize::from(block)] = Version { id: version.0, value: version.1 };
                m.chunk = m.chunk.max(version.0);
                m.touched |= 1 << block;
                m.told = m.told.max(told);
                let ack = Message::AckOp { member, session, id: version.0 };
                self.acknowledge(s, ack);
            }
            Message::Copy { member, session, number, versions } => {
                let skip = self.config.lock_free_copy && self.has(Rule::R17CopyLock);
                let m = &mut s.members[usize::from(member)];
                m.fenced = m.fenced.max(session.0);
                m.next += u8::from(number < UNORDERED);
                for (block, &(id, value)) in versions.iter().enumerate() {
                    if !skip || m.touched >> block & 1 == 0 {
                        m.blocks[block] = Version { id, value };
                    }
                }
                m.chunk = m.blocks.iter().map(|version| version.id).max().unwrap_or(0);
                m.behind = false;
                self.acknowledge(s, Message::AckCopy { member, session, number });
            }
            Message::AckOp { .. } | Message::AckCopy { .. } => self.acked(s, message),
            Message::GiveBack { member, serial } => {
                let m = &mut s.members[usize::from(member)];
                if m.serial == serial || !self.has(Rule::R9Serials) {
                    m.no_grant = true;
                }
            }
            Message::Cas { .. } | Message::Answer { .. } => unreachable!("these are no deliveries"),
        }
    }

    fn attached(&self, s: &mut State, member: u8, session: Session) {
        let at = usize::from(member);
        let m = &mut s.members[at];
        m.fenced = session.0;
        m.session = session;
        m.next = 0;
        m.touched = 0;
        m.open = true;
        m.no_list = false;
        let Some(owner) = self.owner_of(s, session.0) else { return };
        let o = &s.owners[owner];
        if o.attach[at] != session.1 {
            return;
        }
        let needs = o.view.state[at] == RESYNCING
            && (self.needs_chunk(s, &o.view, member)
                || (s.members[at].behind && self.has(Rule::R16BehindMark)));
        let resyncing = o.view.state[at] == RESYNCING;
        let o = &mut s.owners[owner];
        o.leases |= bit(member);
        if resyncing {
            o.planned |= bit(member);
            s.members[at].behind |= needs;
        }
        if needs {
            o.needs |= bit(member);
        }
    }

    fn acknowledge(&self, s: &mut State, ack: Message) {
        if self.config.acks_travel {
            self.post(s, ack);
        } else {
            self.acked(s, ack);
        }
    }

    fn acked(&self, s: &mut State, ack: Message) {
        match ack {
            Message::AckOp { member, session, id } => {
                let Some(owner) = self.owner_of(s, session.0) else { return };
                let o = &mut s.owners[owner];
                let current = o.attach[usize::from(member)] == session.1;
                if current || !self.has(Rule::R2AcksOfThisSession) {
                    for op in o.ops.iter_mut().filter(|op| op.id == id) {
                        op.acked |= bit(member);
                    }
                    self.decide(s, owner as u8);
                }
            }
            Message::AckCopy { member, session, number } => {
                let Some(owner) = self.owner_of(s, session.0) else { return };
                let o = &mut s.owners[owner];
                let m = usize::from(member);
                if o.attach[m] == session.1 && o.copy[m] == number {
                    if number < UNORDERED {
                        // The session's own numbers tell copies apart.
                        o.copy[m] = 0;
                    }
                    o.copying &= !bit(member);
                    o.needs &= !bit(member);
                }
            }
            _ => unreachable!("only acknowledgements"),
        }
    }

    /// Acknowledges to clients what every awaited member has, and frees what is done with.
    fn decide(&self, s: &mut State, owner: u8) {
        let at = usize::from(owner);
        let awaited = self.awaited(&s.owners[at]);
        if s.owners[at].phase != Phase::Serving || awaited == 0 {
            return;
        }
        for i in 0..OPS {
            let op = s.owners[at].ops[i];
            if !op.is_pending() || op.acked & awaited != awaited {
                continue;
            }
            s.owners[at].ops[i].decided = true;
            if op.client {
                let block = usize::from(op.block);
                s.monitors[block].write_ends(op.value);
                s.acked[block] = s.acked[block].max(op.id);
                let o = &s.owners[at];
                let who = 1 + owner + 2 * o.incarnation;
                let acker = &mut s.ackers[usize::from(o.epoch)];
                if *acker != 0 && *acker != who {
                    s.wrong = Wrong::TwoOwnersInOneEpoch;
                }
                *acker = who;
            }
        }
        s.owners[at].resyncing_slots_done();
    }
}

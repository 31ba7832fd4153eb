//! What members remember of clients' operations, so that a retry is answered, not applied twice
//! (R21). Appends bring their own tickets; copies bring none of themselves. So wherever copies make
//! members equal, their tickets are made equal too: at takeover, with the copies and once more
//! when all is done, and before a member is promoted.
//!
//! Invariant: what an active member remembers is what has been applied to its leg, no more and,
//! within the store's bounds, no less.

use super::Owner;
use crate::ctx::Protocol;
use crate::failure::Interrupted;
use crate::leg::Leg;
use crate::member_client::{Endpoint, MemberError};
use crate::operation::{TicketKey, key};
use atoll_format::id::{ClientId, Seq, Ticket};
use atoll_world::components::{COPY_TICKETS_MAX, SET_TICKETS_MAX, SetTickets};
use atoll_world::{World, mutant, sometimes};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// What one member remembers, without what is settled.
#[derive(Clone, Default, Debug)]
struct Table {
    open: BTreeMap<TicketKey, Ticket>,
    settled_below: BTreeMap<ClientId, u32>,
}

impl Table {
    fn enter(&mut self, ticket: Ticket) {
        self.open.insert(key(ticket), ticket);
        let settled = self.settled_below.entry(ticket.client).or_default();
        *settled = ticket.settled_below.max(*settled);
    }

    fn is_settled(&self, (client, number): TicketKey) -> bool {
        self.settled_below.get(&client).is_some_and(|&below| number < below)
    }

    /// What makes `other` equal to this one.
    fn over(&self, other: &Self) -> SetTickets {
        let only_in = |here: &Self, there: &Self| {
            let lacks = |key: TicketKey| !there.open.contains_key(&key) && !there.is_settled(key);
            here.open.iter().filter(|&(&key, _)| lacks(key)).map(|(_, &ticket)| ticket).collect()
        };
        SetTickets { add: only_in(self, other), forget: only_in(other, self) }
    }

    /// # Panics
    /// `set` is not what makes `other` equal to this one.
    fn check_over(&self, other: &Self, set: &SetTickets) {
        let adds: BTreeSet<TicketKey> = set.add.iter().copied().map(key).collect();
        let forgets: BTreeSet<TicketKey> = set.forget.iter().copied().map(key).collect();
        assert_eq!((adds.len(), forgets.len()), (set.add.len(), set.forget.len()), "twice");
        let mut keys: BTreeSet<TicketKey> = other.open.keys().copied().collect();
        for &key in &adds {
            assert!(keys.insert(key) && self.open.contains_key(&key), "{key:?} was there");
        }
        for key in &forgets {
            assert!(keys.remove(key) && !self.open.contains_key(key), "{key:?} is to stay");
        }
        // What is settled for one of them is asked for by nobody.
        for &key in self.open.keys().filter(|&&key| !other.is_settled(key)) {
            assert!(keys.contains(&key), "{key:?} is still missing");
        }
        for &key in keys.iter().filter(|&&key| !self.is_settled(key)) {
            assert!(self.open.contains_key(&key), "{key:?} is still there");
        }
    }
}

/// What the active members of a leg remember, in their order.
pub(crate) struct Tables {
    of: Vec<Table>,
    all: Table,
}

impl Tables {
    /// What has to come, or go, with blocks that are put into the member of that place, so that it
    /// is never without one and with the other: its own takeover may be the next. `ops` are those
    /// that wrote the chunk; of more than fit, the newest: no more than there are blocks in a
    /// chunk can be in flight in it, and older ones are made equal when all is done.
    pub(crate) fn with_copy(
        &self,
        place: usize,
        ops: &BTreeMap<Seq, Ticket>,
        rolled_back: &BTreeSet<Seq>,
    ) -> SetTickets {
        let mut set = SetTickets::default();
        if mutant!("tickets.not_with_the_copy") || mutant!("tickets.not_made_equal") {
            return set;
        }
        let table = &self.of[place];
        assert!(table.open.len() <= self.all.open.len(), "what one remembers, all together do");
        for (seq, &ticket) in ops.iter().rev().take(COPY_TICKETS_MAX) {
            let key = key(ticket);
            let is_here = table.open.contains_key(&key);
            if rolled_back.contains(seq) {
                if is_here {
                    set.forget.push(ticket);
                }
            } else if !is_here && !table.is_settled(key) && self.all.open.contains_key(&key) {
                sometimes!("takeover.ticket_comes_with_a_copy");
                set.add.push(ticket);
            }
        }
        assert!(set.len() <= ops.len() && set.len() <= COPY_TICKETS_MAX, "{} tickets", set.len());
        set
    }
}

impl<W: World, P: Protocol> Owner<W, P> {
    /// What each of `ends` remembers.
    pub(crate) async fn tables_of(&self, ends: &[Endpoint]) -> Result<Tables, Interrupted> {
        let mut tables = Tables { of: Vec::new(), all: Table::default() };
        for &end in ends {
            let table = self.tickets_of(end).await?;
            table.open.values().for_each(|&ticket| tables.all.enter(ticket));
            tables.of.push(table);
        }
        Ok(tables)
    }

    async fn tickets_of(&self, of: Endpoint) -> Result<Table, MemberError> {
        let mut table = Table::default();
        self.members().tickets(of).await?.into_iter().for_each(|ticket| table.enter(ticket));
        Ok(table)
    }

    /// At takeover, after roll-forward: whatever any active member remembers has been brought to
    /// all of them, but for what was rolled back.
    pub(crate) async fn agree_on_tickets(
        &self,
        ends: &[Endpoint],
        rolled_back: &BTreeSet<TicketKey>,
    ) -> Result<(), Interrupted> {
        let Tables { of: tables, mut all } = self.tables_of(ends).await?;
        all.open.retain(|key, _| !rolled_back.contains(key));
        assert_eq!(tables.len(), ends.len(), "one table a member");
        for (&end, table) in ends.iter().zip(&tables) {
            if mutant!("tickets.not_made_equal") {
                break;
            }
            let set = all.over(table);
            if self.world().audits() {
                all.check_over(table, &set);
            }
            for set in set.parts() {
                assert!(set.len() <= SET_TICKETS_MAX && !set.is_empty(), "{} tickets", set.len());
                sometimes!("takeover.tickets_made_equal");
                self.members().set_tickets(end, set).await?;
            }
        }
        Ok(())
    }

    /// Before a promotion: the member was sent every operation of its session, and copies of
    /// what it lacked before.
    pub(crate) async fn bring_tickets(&self, leg: &Rc<Leg>, slot: u8) -> Result<(), Interrupted> {
        let member = leg.member(slot).ok_or(Interrupted)?;
        let source = self.any_active(leg).ok_or(Interrupted)?.endpoint();
        let target = member.endpoint();
        assert_ne!(source.component, target.component, "it would be made equal to itself");
        // What this owner has begun is, or will be, on every member, whatever had become of an
        // earlier attempt; all else that the source does not have, copies have undone. Watched
        // before either is asked. A change that still asks whether it was applied has not begun:
        // a member that kept its ticket would be asked too, and say that it is done.
        let begun = leg.watch_begun();
        let has = self.tickets_of(target).await?;
        let wanted = self.tickets_of(source).await?;
        if !self.is_source(leg, source) {
            return Err(Interrupted);
        }
        let set = wanted.over(&has);
        if self.world().audits() {
            wanted.check_over(&has, &set);
        }
        for mut set in set.parts() {
            if mutant!("tickets.not_brought") {
                break;
            }
            sometimes!("resync.tickets_brought");
            // What begins later is behind this message, and brings its ticket.
            set.forget.retain(|&ticket| {
                !begun.borrow().contains(&key(ticket)) && !mutant!("tickets.undone_is_remembered")
            });
            if !set.is_empty() {
                self.members().set_tickets(target, set).await?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Table;
    use atoll_format::id::{ClientId, Ticket};

    fn table(of: &[(u64, u32, u32)]) -> Table {
        let mut table = Table::default();
        for &(client, number, settled_below) in of {
            table.enter(Ticket { client: ClientId(client), number, settled_below });
        }
        table
    }

    #[test]
    fn the_difference_names_what_is_missing_and_what_is_too_much_but_nothing_settled() {
        let wanted = table(&[(1, 5, 4), (1, 7, 5), (2, 1, 1)]);
        let has = table(&[(1, 4, 3), (1, 5, 3), (1, 6, 3), (3, 2, 1)]);
        let set = wanted.over(&has);
        let keys = |of: &[Ticket]| of.iter().map(|t| (t.client.0, t.number)).collect::<Vec<_>>();
        assert_eq!(keys(&set.add), [(1, 7), (2, 1)]);
        assert_eq!(keys(&set.forget), [(1, 6), (3, 2)], "4 is settled, 5 is there");
        assert!(wanted.over(&wanted).is_empty());
    }
}

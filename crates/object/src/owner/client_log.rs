//! What clients of other hosts have asked an owner for, so that nothing is carried out twice (R21).
//!
//! Invariants: of one ticket at most one attempt is in flight; what was carried out is remembered
//! until the client says that it has its answer.

use atoll_format::id::{ClientId, Ticket};
use atoll_world::sync::{Notified, Notify};
use atoll_world::{Nanos, mutant};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// The changes of all clients of one owner.
#[derive(Default)]
pub(super) struct ClientLogs(RefCell<BTreeMap<ClientId, ClientLog>>);

/// The changes of one client that may still arrive again.
#[derive(Default)]
struct ClientLog {
    /// Everything below has been answered to the client: a request that comes now is an old one.
    settled_below: u32,
    open: BTreeMap<u32, ChangeState>,
    /// When it last asked; the client that has been quiet for longest is forgotten first.
    used: Nanos,
}

/// What has become of a client's change.
enum ChangeState {
    InFlight(Notify),
    CarriedOut,
}

impl ChangeState {
    fn is_in_flight(&self) -> bool {
        matches!(self, Self::InFlight(_))
    }
}

/// What an attempt of a client's change finds.
pub(super) enum Attempt<'a> {
    /// The client has had its answer: this is an old request.
    Settled,
    /// An earlier attempt has carried it out.
    CarriedOut,
    /// Another attempt is under way: wakes when that has ended.
    Joins(Notified),
    /// Nothing: it is for this attempt to carry it out.
    First(InFlight<'a>),
}

/// The attempt that is under way. When this goes away, who waits for its end is woken; unless it
/// was [carried out](Self::carried_out), the change may come again.
pub(super) struct InFlight<'a> {
    logs: &'a ClientLogs,
    ticket: Ticket,
    ended: Notify,
}

impl ClientLogs {
    /// A change of a client has come.
    pub fn begin(&self, ticket: Ticket, now: Nanos) -> Attempt<'_> {
        let mut clients = self.0.borrow_mut();
        let log = clients.entry(ticket.client).or_default();
        log.used = now;
        if ticket.number < log.settled_below {
            return Attempt::Settled;
        }
        log.settled_below = log.settled_below.max(ticket.settled_below);
        let settled_below = log.settled_below;
        log.open.retain(|&n, change| n >= settled_below || change.is_in_flight());
        match log.open.get(&ticket.number).filter(|_| !mutant!("owner.retry_joins_nothing")) {
            Some(ChangeState::InFlight(first)) => Attempt::Joins(first.notified()),
            Some(ChangeState::CarriedOut) => Attempt::CarriedOut,
            None => {
                let ended = Notify::default();
                log.open.insert(ticket.number, ChangeState::InFlight(ended.clone()));
                Attempt::First(InFlight { logs: self, ticket, ended })
            }
        }
    }

    /// Of more than `most` clients, forgets the one that has been quiet for longest and has nothing
    /// in flight.
    pub fn forget_beyond(&self, most: usize) {
        let mut clients = self.0.borrow_mut();
        if clients.len() > most {
            let quiet =
                clients.iter().filter(|(_, log)| !log.open.values().any(ChangeState::is_in_flight));
            let oldest = quiet.min_by_key(|(_, log)| log.used).map(|(&client, _)| client);
            oldest.map(|client| clients.remove(&client));
        }
    }
}

impl InFlight<'_> {
    /// The change has had its effect.
    pub fn carried_out(&self) {
        if let Some(log) = self.logs.0.borrow_mut().get_mut(&self.ticket.client) {
            let was = log.open.insert(self.ticket.number, ChangeState::CarriedOut);
            let was_in_flight = was.is_some_and(|change| change.is_in_flight());
            assert!(was_in_flight, "{:?} was carried out by two attempts", self.ticket);
        }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if let Some(log) = self.logs.0.borrow_mut().get_mut(&self.ticket.client)
            && log.open.get(&self.ticket.number).is_some_and(ChangeState::is_in_flight)
        {
            log.open.remove(&self.ticket.number);
        }
        self.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::{Attempt, ClientLogs};
    use atoll_format::id::{ClientId, Ticket};
    use atoll_world::Nanos;

    fn ticket(client: u64, number: u32, settled_below: u32) -> Ticket {
        Ticket { client: ClientId(client), number, settled_below }
    }

    #[test]
    fn a_change_is_carried_out_by_one_attempt_and_remembered_until_it_is_settled() {
        let logs = ClientLogs::default();
        let now = Nanos::ZERO;
        let Attempt::First(first) = logs.begin(ticket(1, 5, 5), now) else { panic!("it is new") };
        assert!(matches!(logs.begin(ticket(1, 5, 5), now), Attempt::Joins(_)));
        drop(first);
        let Attempt::First(again) = logs.begin(ticket(1, 5, 5), now) else {
            panic!("the first attempt failed");
        };
        again.carried_out();
        drop(again);
        assert!(matches!(logs.begin(ticket(1, 5, 5), now), Attempt::CarriedOut));
        let Attempt::First(next) = logs.begin(ticket(1, 6, 6), now) else { panic!("it is new") };
        assert!(matches!(logs.begin(ticket(1, 5, 5), now), Attempt::Settled));
        drop(next);
    }

    #[test]
    fn the_client_that_is_quiet_for_longest_is_forgotten_but_none_with_work_in_flight() {
        let logs = ClientLogs::default();
        let first = logs.begin(ticket(1, 1, 1), Nanos(1));
        for (client, at) in [(2, 3), (3, 2)] {
            let Attempt::First(change) = logs.begin(ticket(client, 1, 1), Nanos(at)) else {
                panic!("it is new");
            };
            change.carried_out();
        }
        logs.forget_beyond(2);
        assert!(matches!(logs.begin(ticket(2, 1, 1), Nanos(4)), Attempt::CarriedOut));
        assert!(matches!(logs.begin(ticket(1, 1, 1), Nanos(4)), Attempt::Joins(_)));
        assert!(matches!(logs.begin(ticket(3, 1, 1), Nanos(4)), Attempt::First(_)), "forgotten");
        drop(first);
    }
}

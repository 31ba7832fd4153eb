//! Changes of clients that may come twice, or too late (R21): a request is sent again when its
//! answer was lost, and one that was left on the wire may arrive after its client has moved.
//!
//! Invariants: a change is carried out once, whichever attempt of it comes first; a change that was
//! asked for under an older admission than the newest is not carried out.

use super::Owner;
use super::client_log::Attempt;
use crate::ctx::Protocol;
use crate::failure::{Fail, Stop};
use crate::leg::Member;
use crate::limits::{HOLD, RETRY_EVERY};
use atoll_format::id::Ticket;
use atoll_format::units::SECTOR;
use atoll_world::{VolumeError, World, mutant, sometimes};

/// Clients of other hosts that an owner remembers.
const CLIENTS_MAX: usize = 1024;

impl<W: World, P: Protocol> Owner<W, P> {
    /// The newest admission of a client.
    pub fn admission(&self) -> u64 {
        self.0.admission.get()
    }

    /// Admits a client: changes under older admissions are refused from here on.
    pub fn admit(&self) -> u64 {
        // Only a host that does nothing else uses them up: the next owner begins anew.
        if self.admission() as u32 == u32::MAX {
            self.stop(Stop::Superseded);
            return self.admission();
        }
        self.0.admission.set(self.admission() + 1);
        let of = self.admission() >> 32;
        assert_eq!(of, u64::from(self.0.epoch.0), "what an older owner admitted is older");
        self.admission()
    }

    /// `work`, unless a client has been admitted since: it was asked for before, and what that
    /// client has changed by now is newer.
    pub async fn under(
        &self,
        admission: u64,
        work: impl Future<Output = Result<(), Fail>>,
    ) -> Result<(), Fail> {
        if self.admission() != admission { Err(Fail::Outdated) } else { work.await }
    }

    /// Carries out a change of another host's client, once: a request may come again after a lost
    /// answer, and the first one may even come after its retry has been answered (R21).
    pub async fn write_once(
        &self,
        ticket: Ticket,
        retry: bool,
        at: u64,
        work: impl Future<Output = Result<(), Fail>>,
    ) -> Result<(), Fail> {
        let first = loop {
            match self.0.clients.begin(ticket, self.now()) {
                Attempt::First(first) => break first,
                Attempt::CarriedOut => return Ok(()),
                Attempt::Settled => {
                    sometimes!("owner.late_request_of_a_settled_operation");
                    return Err(Fail::Outdated);
                }
                Attempt::Joins(other) => {
                    sometimes!("owner.retry_joins_its_first_attempt");
                    other.await;
                }
            }
        };
        // Ends also when the caller goes away: nobody waits for ever for what has no end.
        let result = async {
            if retry && !mutant!("owner.retry_is_applied") && self.was_applied(ticket, at).await? {
                sometimes!("owner.retry_was_applied");
                return Ok(());
            }
            work.await
        }
        .await;
        if result.is_ok() {
            first.carried_out();
        }
        self.0.clients.forget_beyond(self.world().bound(CLIENTS_MAX, 2));
        result
    }

    /// Whether an operation of that ticket has been applied.
    async fn was_applied(&self, ticket: Ticket, at: u64) -> Result<bool, Fail> {
        let (leg, _) = self.place(at, SECTOR)?;
        let until = self.now() + HOLD;
        loop {
            if self.is_stopped() {
                return Err(Fail::Stopped);
            }
            let awaited: Vec<Member> =
                leg.members.borrow().iter().filter(|m| m.role().is_awaited()).cloned().collect();
            let calls = awaited.iter().map(|m| self.members().applied(m.endpoint(), ticket));
            let replies = futures_util::future::join_all(calls).await;
            // Of nobody, everything would be true.
            assert!(!awaited.is_empty() && replies.len() == awaited.len(), "every member is asked");
            // One that remembers it is enough; that nobody does must be every member's word.
            if replies.contains(&Ok(true)) {
                return Ok(true);
            }
            if replies.iter().all(|r| *r == Ok(false)) {
                return Ok(false);
            }
            if self.now() > until {
                let why = "the members could not be asked about an earlier attempt".into();
                return Err(VolumeError::TimedOut(why).into());
            }
            self.world().sleep(RETRY_EVERY).await;
        }
    }
}

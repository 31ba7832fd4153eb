//! Whether a host that restarts may answer a fence at once (R9): leases of a dead life.
//!
//! A host forgets what leases it has granted when it restarts, and for one grace it puts off the
//! answers to fences. It does not where the record says that the last owner whose takeover was
//! settled was of a life that is over: of this host, or of the host that fences.
//!
//! Two hosts own the object in turns and hold a copy each; they crash, restart and are dropped. A
//! member that puts a fence off is asked again, as is one whose answer was lost. A lease is
//! running, or it is not: a member's own view of it, and its silence after a restart, may last
//! longer, and never end before it.
//!
//! Not modelled: a directory that was put back. What a copy has promised to a later owner than the
//! record knows of makes its host wait, as it would without this; here that is never decisive.
//!
//! Checked in every reachable state: no owner holds the leases of all its active members once a
//! later owner has settled.

use super::checker::{Outcome, explore};
use super::{Rule, Rules, Wrong};

const HOSTS: usize = 2;
/// The highest epoch that is claimed.
const EPOCHS: u8 = 3;
/// Crashes of hosts, in all.
const CRASHES: u8 = 2;

/// See `ServedRecord` of the record's format.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Served {
    epoch: u8,
    host: u8,
    life: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Fence {
    epoch: u8,
    host: u8,
    life: u8,
    served: Option<Served>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Idle,
    /// Its claim is in the directory; these members have answered its fence.
    Fencing(u8),
    /// It serves with these members, as the owner number so many that has settled.
    Serving(u8, u8),
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Host {
    up: bool,
    life: u8,
    // Its copy.
    promised: u8,
    /// It has just started.
    quiet: bool,
    /// But nobody can read under a lease that an earlier life has granted.
    over: bool,
    /// Epoch, host and life of the owner whose lease it knows of.
    grant: Option<(u8, u8, u8)>,
    // Its owner.
    phase: Phase,
    epoch: u8,
    served: Option<Served>,
    /// A fence of a life that is over is still under way.
    late: Option<Fence>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Directory {
    epoch: u8,
    owner: (u8, u8),
    active: u8,
    served: Option<Served>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct State {
    hosts: [Host; HOSTS],
    /// The lease of an owner (second) from a member (first) that is running: its epoch, else 0.
    leases: [[u8; HOSTS]; HOSTS],
    /// Whether it was granted in an earlier life of the member.
    forgotten: [[bool; HOSTS]; HOSTS],
    directory: Directory,
    /// Owners that have settled.
    settled: u8,
    crashes: u8,
}

impl State {
    fn first() -> Self {
        let host = Host {
            up: true,
            life: 1,
            promised: 0,
            quiet: false,
            over: false,
            grant: None,
            phase: Phase::Idle,
            epoch: 0,
            served: None,
            late: None,
        };
        let directory = Directory { epoch: 0, owner: (0, 0), active: 0b11, served: None };
        Self {
            hosts: [host; HOSTS],
            leases: [[0; HOSTS]; HOSTS],
            forgotten: [[false; HOSTS]; HOSTS],
            directory,
            settled: 0,
            crashes: 0,
        }
    }

    fn owns(&self, h: usize) -> bool {
        let host = &self.hosts[h];
        (self.directory.epoch, self.directory.owner) == (host.epoch, (h as u8, host.life))
    }

    fn fence_of(&self, h: usize) -> Fence {
        let Host { epoch, life, served, .. } = self.hosts[h];
        Fence { epoch, host: h as u8, life, served }
    }

    /// That fence reaches member `m`, which answers it or puts it off.
    fn fenced(&self, rules: Rules, m: usize, fence: Fence) -> Option<(Self, bool)> {
        if !self.hosts[m].up || self.hosts[m].promised > fence.epoch {
            return None;
        }
        let mut after = *self;
        let member = &mut after.hosts[m];
        member.over |= member.quiet && is_quiet_over(rules, m, member, fence);
        member.promised = fence.epoch;
        let binds = |(epoch, owner, life): (u8, u8, u8)| {
            // The same host's: an earlier owner of its own, or of a life that is over.
            epoch < fence.epoch && !(owner == fence.host && life <= fence.life)
        };
        let held = member.grant.is_some_and(binds) || (member.quiet && !member.over);
        Some((after, !held))
    }

    /// Member `m` loses what is not durable.
    fn restarted(&mut self, m: usize) {
        let host = &mut self.hosts[m];
        let late = match host.phase {
            Phase::Fencing(_) => Some(self.fence_of(m)),
            _ => host.late,
        };
        let host = &mut self.hosts[m];
        (host.grant, host.over) = (None, false);
        (host.phase, host.epoch, host.served, host.late) = (Phase::Idle, 0, None, late);
        for other in 0..HOSTS {
            // The owner is dead; what it had been granted as a lease nobody holds.
            self.leases[other][m] = 0;
            self.forgotten[other][m] = false;
            self.forgotten[m][other] = self.leases[m][other] != 0;
        }
    }
}

/// See `Grants::is_quiet_over`.
fn is_quiet_over(rules: Rules, m: usize, member: &Host, fence: Fence) -> bool {
    let Some(served) = fence.served else { return false };
    let is_dead = (fence.host == served.host && fence.life != served.life)
        || (usize::from(served.host) == m && served.life != member.life)
        || !rules.has(Rule::R9OnlyDeadLives);
    is_dead && member.promised == served.epoch
}

/// Searches every state; `rules` may lack [`Rule::R9OnlyDeadLives`] or [`Rule::R9ServedIsSettled`].
pub fn check(rules: Rules) -> Outcome {
    explore(State::first(), |s, out| steps(s, rules, out), wrong)
}

fn steps(s: &State, rules: Rules, out: &mut Vec<(String, State)>) {
    for h in 0..HOSTS {
        of_host(s, h, out);
        of_owner(s, rules, h, out);
        of_member(s, h, out);
    }
}

fn of_host(s: &State, h: usize, out: &mut Vec<(String, State)>) {
    let host = &s.hosts[h];
    if host.up && s.crashes < CRASHES {
        let mut after = *s;
        after.restarted(h);
        after.hosts[h].up = false;
        after.crashes += 1;
        out.push((format!("host {h} dies"), after));
    }
    if !host.up {
        let mut after = *s;
        (after.hosts[h].up, after.hosts[h].quiet) = (true, true);
        after.hosts[h].life += 1;
        out.push((format!("host {h} starts"), after));
    }
}

fn of_owner(s: &State, rules: Rules, h: usize, out: &mut Vec<(String, State)>) {
    let host = &s.hosts[h];
    if let Some(fence) = host.late {
        for m in 0..HOSTS {
            let Some((after, _)) = s.fenced(rules, m, fence) else { continue };
            out.push((format!("a late fence of host {h} reaches member {m}"), after));
        }
    }
    if !host.up {
        return;
    }
    if s.directory.epoch < EPOCHS {
        let mut after = *s;
        after.directory.epoch += 1;
        after.directory.owner = (h as u8, host.life);
        let epoch = after.directory.epoch;
        let me = Served { epoch, host: h as u8, life: host.life };
        if !rules.has(Rule::R9ServedIsSettled) {
            after.directory.served = Some(me);
        }
        // Its own owner has stopped before it begins a takeover.
        (0..HOSTS).for_each(|m| after.leases[m][h] = 0);
        let owner = &mut after.hosts[h];
        (owner.phase, owner.epoch) = (Phase::Fencing(0), epoch);
        owner.served = s.directory.served;
        out.push((format!("host {h} claims epoch {epoch}"), after));
    }
    match host.phase {
        Phase::Idle => {}
        Phase::Fencing(answers) => {
            for m in (0..HOSTS).filter(|m| s.directory.active >> m & 1 == 1) {
                let Some((mut after, promises)) = s.fenced(rules, m, s.fence_of(h)) else {
                    continue;
                };
                out.push((
                    format!("the fence of host {h} reaches member {m}, and no answer comes back"),
                    after,
                ));
                if promises {
                    after.hosts[h].phase = Phase::Fencing(answers | 1 << m);
                    out.push((format!("member {m} answers the fence of host {h}"), after));
                }
            }
            let active = answers & s.directory.active;
            if active != 0 && s.owns(h) {
                let mut after = *s;
                let epoch = host.epoch;
                after.directory.active = active;
                let me = Served { epoch, host: h as u8, life: host.life };
                after.directory.served = Some(me);
                after.settled += 1;
                after.hosts[h].phase = Phase::Serving(active, after.settled);
                after.hosts[h].served = None;
                out.push((format!("host {h} settles epoch {epoch} with {active:02b}"), after));
            }
        }
        Phase::Serving(active, number) => {
            for m in 0..HOSTS {
                let member = &s.hosts[m];
                let (in_it, this) = (active >> m & 1 == 1, 1 << m);
                if in_it && member.up && member.promised == host.epoch {
                    let binds = |(epoch, owner, _): (u8, u8, u8)| {
                        epoch > host.epoch || (epoch < host.epoch && usize::from(owner) != h)
                    };
                    if !member.grant.is_some_and(binds) {
                        let mut after = *s;
                        after.hosts[m].grant = Some((host.epoch, h as u8, host.life));
                        after.leases[m][h] = host.epoch;
                        after.forgotten[m][h] = false;
                        out.push((format!("member {m} grants host {h} a lease"), after));
                    }
                }
                if !in_it && member.up && member.promised <= host.epoch && s.owns(h) {
                    let mut after = *s;
                    after.hosts[m].promised = host.epoch;
                    after.directory.active |= this;
                    after.hosts[h].phase = Phase::Serving(active | this, number);
                    out.push((format!("host {h} takes member {m} back"), after));
                }
                // The other one is dropped.
                if in_it && active != this && s.owns(h) {
                    let mut after = *s;
                    after.directory.active &= !this;
                    after.hosts[h].phase = Phase::Serving(active & !this, number);
                    out.push((format!("host {h} drops member {m}"), after));
                }
            }
        }
    }
}

fn of_member(s: &State, m: usize, out: &mut Vec<(String, State)>) {
    let member = &s.hosts[m];
    for h in 0..HOSTS {
        if s.leases[m][h] != 0 {
            let mut after = *s;
            (after.leases[m][h], after.forgotten[m][h]) = (0, false);
            out.push((format!("the lease of host {h} from member {m} ends"), after));
        }
    }
    if !member.up {
        return;
    }
    if let Some((epoch, owner, _)) = member.grant
        && s.leases[m][usize::from(owner)] != epoch
    {
        let mut after = *s;
        after.hosts[m].grant = None;
        out.push((format!("the grant of member {m} ends"), after));
    }
    if member.quiet && !s.forgotten[m].contains(&true) {
        let mut after = *s;
        after.hosts[m].quiet = false;
        out.push((format!("member {m} has waited for one grace"), after));
    }
}

fn wrong(s: &State) -> Option<(Wrong, String)> {
    for (h, host) in s.hosts.iter().enumerate() {
        let Phase::Serving(active, number) = host.phase else { continue };
        let leased =
            (0..HOSTS).filter(|m| active >> m & 1 == 1).all(|m| s.leases[m][h] == host.epoch);
        if leased && number < s.settled {
            let what = format!("host {h} reads in epoch {}, as owner {number}", host.epoch);
            let what = format!("{what}: {} have settled", s.settled);
            return Some((Wrong::LeaseOutlivesFence, what));
        }
    }
    None
}

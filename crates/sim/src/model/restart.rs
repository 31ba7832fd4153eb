//! Whether a host that restarts may answer a fence at once (R9): leases of a dead life.
//!
//! A host forgets what leases it has granted when it restarts, and for one grace it puts off the
//! answers to fences. It does not where the record says that the last owner whose takeover was
//! settled was of a life that is over: of this host, or of the host that fences, which know the
//! lives that had the lock of their data directory before them.
//!
//! Two hosts own the object in turns and hold a copy each; they crash, restart and are dropped. One
//! may start a second time, from a copy of its data directory, while its owner goes on: the twin,
//! until it hears that there is another. The new life has the disks, and another lock. A
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
/// Crashes of hosts, in all; a start from a copy counts as one.
const CRASHES: u8 = 2;
/// Whose leases are told apart: those of a host's present life, or the twin's.
const OWNERS: usize = HOSTS + 1;
const TWIN: usize = HOSTS;

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
    first: u8,
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
    /// The first life that had the lock which this one has.
    first: u8,
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

/// An owner that goes on beside a later life of its host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Twin {
    host: u8,
    life: u8,
    epoch: u8,
    active: u8,
    number: u8,
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
    twin: Option<Twin>,
    /// The lease of an owner (second) from a member (first) that is running: its epoch, else 0.
    leases: [[u8; OWNERS]; HOSTS],
    /// Whether it was granted in an earlier life of the member.
    forgotten: [[bool; OWNERS]; HOSTS],
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
            first: 1,
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
            twin: None,
            leases: [[0; OWNERS]; HOSTS],
            forgotten: [[false; OWNERS]; HOSTS],
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
        let Host { epoch, life, first, served, .. } = self.hosts[h];
        Fence { epoch, host: h as u8, life, first, served }
    }

    /// Where the leases of that owner are counted.
    fn of(&self, host: u8, life: u8) -> usize {
        let is_twin = self.twin.is_some_and(|twin| (twin.host, twin.life) == (host, life));
        if is_twin { TWIN } else { usize::from(host) }
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
            let own = (owner, life) == (fence.host, fence.life);
            epoch < fence.epoch && !own && !is_dead(m, &self.hosts[m], fence, (owner, life))
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
        }
        self.forgotten[m] = self.leases[m].map(|epoch| epoch != 0);
    }

    /// Member `m` is asked for a lease by an owner that has it among `active`, and grants it.
    fn granted(&self, m: usize, (host, life): (u8, u8), epoch: u8, active: u8) -> Option<Self> {
        let member = &self.hosts[m];
        let binds = |(of, owner, _): (u8, u8, u8)| of > epoch || (of < epoch && owner != host);
        let asked = active >> m & 1 == 1 && member.up && member.promised == epoch;
        if !asked || member.grant.is_some_and(binds) {
            return None;
        }
        let mut after = *self;
        after.hosts[m].grant = Some((epoch, host, life));
        let owner = self.of(host, life);
        after.leases[m][owner] = epoch;
        after.forgotten[m][owner] = false;
        Some(after)
    }
}

/// See `Grants::is_dead`.
fn is_dead(m: usize, member: &Host, fence: Fence, (host, life): (u8, u8)) -> bool {
    (host == fence.host && (fence.first..fence.life).contains(&life))
        || (usize::from(host) == m && (member.first..member.life).contains(&life))
}

/// See `Grants::is_quiet_over`.
fn is_quiet_over(rules: Rules, m: usize, member: &Host, fence: Fence) -> bool {
    let Some(served) = fence.served else { return false };
    let is_dead =
        is_dead(m, member, fence, (served.host, served.life)) || !rules.has(Rule::R9OnlyDeadLives);
    is_dead && member.promised == served.epoch
}

/// Searches every state; `rules` may lack [`Rule::R9OnlyDeadLives`], [`Rule::R9DeathIsProved`] or
/// [`Rule::R9ServedIsSettled`].
pub fn check(rules: Rules) -> Outcome {
    explore(State::first(), |s, out| steps(s, rules, out), wrong)
}

fn steps(s: &State, rules: Rules, out: &mut Vec<(String, State)>) {
    for h in 0..HOSTS {
        of_host(s, rules, h, out);
        of_owner(s, rules, h, out);
        of_member(s, h, out);
    }
    let Some(twin) = s.twin else { return };
    for m in 0..HOSTS {
        if let Some(after) = s.granted(m, (twin.host, twin.life), twin.epoch, twin.active) {
            out.push((format!("member {m} grants the twin a lease"), after));
        }
        let left = twin.active & !(1 << m);
        let owns = (s.directory.epoch, s.directory.owner) == (twin.epoch, (twin.host, twin.life));
        if left != 0 && left != twin.active && owns {
            let mut after = *s;
            after.directory.active = left;
            after.twin = Some(Twin { active: left, ..twin });
            out.push((format!("the twin drops member {m}"), after));
        }
    }
}

fn of_host(s: &State, rules: Rules, h: usize, out: &mut Vec<(String, State)>) {
    let host = &s.hosts[h];
    if host.up && s.crashes < CRASHES {
        let mut after = *s;
        after.restarted(h);
        after.hosts[h].up = false;
        after.crashes += 1;
        out.push((format!("host {h} dies"), after));
    }
    if let Phase::Serving(active, number) = host.phase
        && host.up
        && s.twin.is_none()
        && s.crashes < CRASHES
    {
        let mut after = *s;
        let Host { life, epoch, .. } = *host;
        after.twin = Some(Twin { host: h as u8, life, epoch, active, number });
        for m in 0..HOSTS {
            after.leases[m][TWIN] = s.leases[m][h];
            after.forgotten[m][TWIN] = s.forgotten[m][h];
        }
        after.restarted(h);
        after.hosts[h].quiet = true;
        after.hosts[h].life += 1;
        if rules.has(Rule::R9DeathIsProved) {
            after.hosts[h].first = after.hosts[h].life;
        }
        after.crashes += 1;
        out.push((format!("a copy of host {h} starts, and its owner goes on"), after));
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
                if let Some(after) = s.granted(m, (h as u8, host.life), host.epoch, active) {
                    out.push((format!("member {m} grants host {h} a lease"), after));
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
    for owner in 0..OWNERS {
        if s.leases[m][owner] != 0 {
            let mut after = *s;
            (after.leases[m][owner], after.forgotten[m][owner]) = (0, false);
            let whose = if owner == TWIN { "the twin".into() } else { format!("host {owner}") };
            out.push((format!("the lease of {whose} from member {m} ends"), after));
        }
    }
    if !member.up {
        return;
    }
    if let Some((epoch, owner, life)) = member.grant
        && s.leases[m][s.of(owner, life)] != epoch
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
    let present = s.hosts.iter().enumerate().filter_map(|(h, host)| match host.phase {
        Phase::Serving(active, number) => Some((h, host.epoch, active, number)),
        _ => None,
    });
    let twin = s.twin.map(|twin| (TWIN, twin.epoch, twin.active, twin.number));
    for (owner, epoch, active, number) in present.chain(twin) {
        let mut members = (0..HOSTS).filter(|m| active >> m & 1 == 1);
        let leased = members.all(|m| s.leases[m][owner] == epoch);
        if leased && number < s.settled {
            let whose = if owner == TWIN { "the twin".into() } else { format!("host {owner}") };
            let what = format!("{whose} reads in epoch {epoch}, as owner {number}");
            let what = format!("{what}: {} have settled", s.settled);
            return Some((Wrong::LeaseOutlivesFence, what));
        }
    }
    None
}

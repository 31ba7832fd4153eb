//! Where the components of an object go, and why: pure functions of what is known of the hosts.
//!
//! Rules, in order:
//! 1. **Domains.** The members of a leg are in different fault domains. Never broken.
//! 2. **Room.** A component goes only where a device is as large as the component, where the group
//!    has a free chunk for each and what the policy reserves, and where its table has room for one
//!    more. Never broken.
//! 3. **In full.** All components would fit if they were written in full now. (What others have not
//!    written yet is not set aside.) When possible, also by more legs than the policy wants: each
//!    has smaller components. Else the object is thin: it has room while others leave some.
//! 4. **Rebuild.** After the loss of any one fault domain the rest has room to rebuild it. Kept
//!    when possible, else a warning.
//! 5. **Near.** One member of each leg is on the host that uses the object. When possible.
//! 6. **Spread.** The rest goes to disk groups in proportion to their free space, less where more
//!    is promised already; the seed decides where to begin, so that many objects share the groups
//!    alike.
//!
//! Invariants: the same arguments give the same answer; a refusal under rules 1 and 2 means that
//! there is no placement (beyond [`STEPS_MAX`] steps of search: that none was found, which takes
//! a large object of unequal legs on a cluster that is almost full). Whatever the policy, the
//! object's record stays below the directory's largest value in its longest form, with members
//! absent and resyncing in every leg: else losing a host could not be recorded.

use atoll_format::id::{ComponentId, Epoch, GroupId, HostId, Incarnation, ObjectId, Seq};
use atoll_format::record::{
    LegRecord, MemberRecord, MemberState, ObjectRecord, ObjectState, OwnerRecord, Policy,
    RECORD_VERSION, STRIPE_WIDTH_MAX, ServedRecord, legs_needed,
};
use atoll_format::units::{BLOCK, CHUNK, COMPONENT_MAX, OBJECT_MAX, iec};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Groups looked at in one search. A search without dead ends takes about 2 x legs x groups of
/// them: the largest object (252 legs) on the largest cluster (64 hosts of 4 groups) 130,000.
pub const STEPS_MAX: usize = 1 << 20;

/// A host as placement sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostView {
    /// Its id.
    pub id: HostId,
    /// For people.
    pub name: String,
    /// Two members of one leg are never in the same one.
    pub fault_domain: String,
    /// It can be reached.
    pub alive: bool,
    /// The life of it that has said where its disk groups are.
    pub incarnation: Incarnation,
    /// Its disk groups.
    pub groups: Vec<GroupView>,
}

/// A disk group as placement sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupView {
    /// Its id.
    pub id: GroupId,
    /// It has not failed.
    pub healthy: bool,
    /// Bytes that components may use in all.
    pub capacity_bytes: u64,
    /// The most that one component can take, in bytes: its largest device has so much in all.
    pub device_bytes: u64,
    /// Bytes that are not used; 0 also when that is not known.
    pub free_bytes: u64,
    /// Bytes that the components in it may take yet, if they are written in full: there may be
    /// less.
    pub unwritten_bytes: u64,
    /// Components that can still be made in it: its table of them has an end, too.
    pub free_components: u32,
    /// The shard of its host that runs it.
    pub shard: u8,
}

impl GroupView {
    /// Room in bytes; none where there is no room for a component of any size.
    fn room(&self) -> u64 {
        if self.free_components == 0 { 0 } else { self.free_bytes }
    }

    /// Whether a component of so many bytes could be made in it.
    fn takes(&self, bytes: u64) -> bool {
        self.room() >= CHUNK && self.device_bytes >= bytes
    }
}

/// Where an object goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The policy that it was asked for, perhaps with a larger `stripe_width`: of more legs, each
    /// has smaller components.
    pub policy: Policy,
    /// One for each leg that an object of that policy and size has.
    pub legs: Vec<LegPlacement>,
}

/// Where one leg goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegPlacement {
    /// Its members: the one on the using host first.
    pub members: Vec<(HostId, GroupId)>,
    /// Bytes of each of its components, if written in full.
    pub bytes: u64,
}

/// The rule that cannot be kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The policy itself is out of range.
    Policy(String),
    /// The size is out of range.
    Size(String),
    /// Too few fault domains that could take anything at all.
    Domains {
        /// How many are needed: one a copy.
        needed: usize,
        /// How many there are.
        usable: usize,
    },
    /// Too few fault domains with room for one component.
    Room {
        /// How many are needed: one a copy.
        needed: usize,
        /// How many have it.
        usable: usize,
        /// Bytes that one component needs free.
        component_bytes: u64,
        /// Bytes that are missing, where least is missing.
        missing_bytes: u64,
    },
    /// One component would fit, all of them do not.
    Total {
        /// How many there are.
        components: usize,
        /// Bytes that the largest needs free.
        component_bytes: u64,
        /// Bytes that are missing, at least.
        missing_bytes: u64,
    },
    /// The disk groups that hold the object have no room for the larger one.
    Grow {
        /// How many hold it.
        places: usize,
        /// How many have room.
        usable: usize,
    },
    /// All volumes together would be promised more than the cluster's limit.
    Promised {
        /// Bytes that they could take on disks then, all copies.
        promised_bytes: u64,
        /// Bytes that exist.
        exist_bytes: u64,
        /// The limit, in percent of what exists.
        limit_percent: u32,
    },
}

/// Why nothing can go to a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It cannot be reached.
    Down,
    /// It contributes no disks.
    NoGroups,
    /// All its disk groups have failed.
    Failed,
    /// Its disk groups hold as many components as they can.
    Crowded,
    /// No group has a device as large as the component.
    Small {
        /// The largest, in bytes.
        device_bytes: u64,
        /// Bytes of the component, if written in full.
        component_bytes: u64,
    },
    /// No group has room for the component.
    Full {
        /// The most that is free in one group.
        free_bytes: u64,
        /// What must be free.
        needed_bytes: u64,
    },
    /// Another member of the leg is in its fault domain.
    Occupied {
        /// That domain.
        domain: String,
    },
}

/// A host to which nothing can go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excluded {
    /// Which.
    pub host: HostId,
    /// Its name.
    pub name: String,
    /// Why.
    pub reason: Reason,
}

impl Excluded {
    /// It only has to come back.
    fn is_away(&self) -> bool {
        self.reason == Reason::Down
    }
}

/// What would make the placement possible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Bring these hosts back (their names).
    Return(Vec<String>),
    /// Add so many hosts, each a fault domain of its own.
    AddHosts(usize),
    /// Disk groups with disks of so many bytes.
    LargerDisks(u64),
    /// Free or add that much.
    AddBytes(u64),
    /// A policy that tolerates so many failures would do.
    Tolerate(u8),
    /// A smaller object, of at most so many bytes.
    Shrink(u64),
    /// Delete objects: fewer components, and less is promised.
    FewerObjects,
    /// Disk groups of so many bytes in all.
    MoreDisks(u64),
    /// A limit of what is promised of so many percent.
    RaiseLimit(u32),
}

/// Why an object (or one component) cannot be placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The rule that cannot be kept.
    pub rule: Rule,
    /// Every host that cannot take part, in order of names.
    pub excluded: Vec<Excluded>,
    /// What would change it.
    pub remedies: Vec<Remedy>,
}

impl std::error::Error for Refusal {}

/// A rule that is kept only when possible, and is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// After the loss of a fault domain there are too few others for a whole leg again.
    NoSpareDomain {
        /// How many there are now.
        domains: usize,
        /// How many a leg needs.
        needed: usize,
    },
    /// What a fault domain holds would not fit into the others.
    NoRebuildRoom {
        /// The one that holds most.
        domain: String,
        /// What it holds, in bytes.
        used_bytes: u64,
        /// What is free in the others, in bytes.
        free_bytes: u64,
    },
}

/// Where an object is, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// One a leg.
    pub legs: Vec<LegExplanation>,
    /// Of the whole cluster, with this object's policy.
    pub warnings: Vec<Warning>,
}

/// Where a leg is, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegExplanation {
    /// Its index.
    pub leg: usize,
    /// Bytes of each of its components, if written in full.
    pub bytes: u64,
    /// One a member.
    pub members: Vec<MemberExplanation>,
    /// Rules that do not hold at present.
    pub violations: Vec<Violation>,
}

/// Where a member is, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberExplanation {
    /// Its component.
    pub component: ComponentId,
    /// Its host.
    pub host: HostId,
    /// The host's name, or its id if it is no longer known.
    pub host_name: String,
    /// The host's fault domain; empty if it is no longer known.
    pub fault_domain: String,
    /// Its disk group.
    pub group: GroupId,
    /// Its state.
    pub state: MemberState,
    /// Why it is here.
    pub why: Why,
    /// What is wrong with the place.
    pub trouble: Option<Reason>,
}

/// Why a member is where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The host that uses the object is here.
    Near,
    /// All other fault domains hold another member, or can take nothing.
    OnlyDomainLeft,
    /// It has the most free space of what could be chosen.
    MostFree {
        /// Free bytes of the group.
        free_bytes: u64,
        /// Groups that could have been chosen.
        of: usize,
    },
    /// Its turn, by its share of the free space.
    Share {
        /// Free bytes of the group.
        free_bytes: u64,
        /// Free bytes of all groups that could have been chosen, itself included.
        of_bytes: u64,
    },
    /// The place is no longer part of the cluster, or in no state to be chosen.
    Past,
}

/// A rule that does not hold for a leg.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// Members share a fault domain.
    SharedDomain {
        /// Which.
        domain: String,
        /// The members there.
        components: Vec<ComponentId>,
    },
    /// Fewer members are active than the policy wants.
    Degraded {
        /// Active members.
        active: usize,
        /// What the policy wants.
        wanted: usize,
    },
}

/// Chooses a place for every leg of a new object of `size_bytes`. One member of each leg goes to
/// `prefer` when possible; `seed` (the object's id) decides between equals.
///
/// # Errors
/// See [`Refusal`].
pub fn place(
    hosts: &[HostView],
    policy: &Policy,
    size_bytes: u64,
    prefer: Option<HostId>,
    seed: u64,
) -> Result<Plan, Refusal> {
    check(policy, size_bytes)?;
    let plan = search(hosts, policy, size_bytes, prefer, seed);
    let plan = plan.ok_or_else(|| refusal(hosts, policy, size_bytes))?;
    check_placed(hosts, size_bytes, prefer, &plan);
    Ok(plan)
}

/// The best placement that there is: see the rules of this file.
fn search(
    hosts: &[HostView],
    policy: &Policy,
    size_bytes: u64,
    prefer: Option<HostId>,
    seed: u64,
) -> Option<Plan> {
    let places = Place::of(hosts, prefer, seed);
    let spare = rebuild_reserve(hosts);
    let careful: Vec<u64> =
        places.iter().map(|p| p.free.saturating_sub(spare[&p.group.id])).collect();
    let all: Vec<u64> = places.iter().map(|p| p.free).collect();
    let run = |policy: &Policy, free: &[u64], needs: fn(&Policy, u64) -> Vec<Need>| {
        let needs = needs(policy, size_bytes);
        let chosen = Search::run(&places, free.to_vec(), &needs, policy.members())?;
        let placed = |(members, need): (Vec<usize>, Need)| LegPlacement {
            members: members.iter().map(|&p| (places[p].host.id, places[p].group.id)).collect(),
            bytes: need.bytes,
        };
        let legs = chosen.into_iter().zip(needs).map(placed).collect();
        Some(Plan { policy: policy.clone(), legs })
    };
    let spreads = spreads(policy, size_bytes);
    run(policy, &careful, full_needs)
        .or_else(|| spreads.iter().find_map(|policy| run(policy, &all, full_needs)))
        .or_else(|| spreads.iter().find_map(|policy| run(policy, &all, thin_needs)))
}

/// What one component asks of its place, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Need {
    /// What it takes if it is written in full: a device has so much in all.
    bytes: u64,
    /// What must be free now.
    free: u64,
}

/// Of the components of each leg, to be written in full now.
fn full_needs(policy: &Policy, size_bytes: u64) -> Vec<Need> {
    leg_bytes(policy, size_bytes).into_iter().map(|bytes| Need { bytes, free: bytes }).collect()
}

/// Of the components of each leg, at least: a chunk, and what the policy reserves.
fn thin_needs(policy: &Policy, size_bytes: u64) -> Vec<Need> {
    let need = |bytes| Need { bytes, free: reserve_bytes(policy, bytes).max(CHUNK) };
    leg_bytes(policy, size_bytes).into_iter().map(need).collect()
}

/// What a policy reserves of a component of so many bytes, in whole chunks.
pub fn reserve_bytes(policy: &Policy, bytes: u64) -> u64 {
    let reserve = u128::from(bytes) * u128::from(policy.reserve_percent) / 100;
    let reserve = u64::try_from(reserve).unwrap_or(bytes);
    reserve.next_multiple_of(CHUNK).min(bytes)
}

/// The policy, and those that differ from it by more legs with smaller components.
fn spreads(policy: &Policy, size_bytes: u64) -> Vec<Policy> {
    let mut all = vec![policy.clone()];
    let most = size_bytes.div_ceil(CHUNK).min(u64::from(STRIPE_WIDTH_MAX)) as u8;
    let wider = policy.stripe_width + 1..=most;
    all.extend(wider.map(|stripe_width| Policy { stripe_width, ..policy.clone() }));
    all
}

/// The rules that are never broken, in other words than those that the search uses.
fn check_placed(hosts: &[HostView], size_bytes: u64, prefer: Option<HostId>, plan: &Plan) {
    let Plan { policy, legs } = plan;
    assert_eq!(legs.len(), legs_needed(policy, size_bytes), "legs of {size_bytes} bytes");
    let bytes: u64 = legs.iter().map(|leg| leg.bytes).sum();
    assert!(bytes >= size_bytes, "{bytes} bytes in all for {size_bytes}");
    let mut needed: BTreeMap<(HostId, GroupId), (u64, u64, u32)> = BTreeMap::new();
    for (leg, need) in legs.iter().zip(thin_needs(policy, size_bytes)) {
        assert_eq!(leg.members.len(), policy.members(), "one member a copy: {leg:?}");
        let mut domains = BTreeSet::new();
        for &(id, group) in &leg.members {
            let host = hosts.iter().find(|host| host.id == id).expect("chosen among these");
            assert!(host.alive, "{} is down", host.name);
            assert!(domains.insert(&host.fault_domain), "two members in {}", host.fault_domain);
            let (largest, free, components) = needed.entry((id, group)).or_default();
            *largest = leg.bytes.max(*largest);
            (*free, *components) = (*free + need.free, *components + 1);
        }
        let others = &leg.members[1..];
        assert!(others.iter().all(|&(host, _)| Some(host) != prefer), "the near one is first");
    }
    for (&(id, group), &(largest, free, components)) in &needed {
        let host = hosts.iter().find(|host| host.id == id).expect("just looked at");
        let group = host.groups.iter().find(|g| g.id == group).expect("a group of that host");
        assert!(group.healthy, "group {} has failed", group.id);
        assert!(largest <= group.device_bytes, "a component of {largest} bytes into {group:?}");
        assert!(free <= group.free_bytes, "{free} bytes into {group:?}");
        assert!(components <= group.free_components, "{components} components into {group:?}");
    }
}

/// Whether an object may grow to `size_bytes` where it is: the question that [`place`] asks of a
/// new one, with the answer to where already given. Each of its groups must have a device as large
/// as the largest of the components there, and free what the policy reserves of them. `used` says
/// how many bytes of that a component uses already.
///
/// # Errors
/// See [`Refusal`]. A place that cannot be asked (its host is down, its group has failed) has no
/// room.
pub fn grow(
    hosts: &[HostView],
    record: &ObjectRecord,
    size_bytes: u64,
    used: impl Fn(ComponentId) -> Option<u64>,
) -> Result<(), Refusal> {
    check(&record.policy, size_bytes)?;
    let grown = ObjectRecord { size_bytes, ..record.clone() };
    let mut needed: BTreeMap<(HostId, GroupId), Need> = BTreeMap::new();
    for (leg, member) in grown.members() {
        // What is lost is made anew, in a place that has room for it then.
        if matches!(member.state, MemberState::Absent { lost: true, .. }) {
            continue;
        }
        let bytes = u64::from(grown.leg_chunks(leg)) * CHUNK;
        let nothing = Need { bytes: 0, free: 0 };
        let need = needed.entry((member.host, member.group)).or_insert(nothing);
        need.bytes = bytes.max(need.bytes);
        let reserve = reserve_bytes(&record.policy, bytes);
        need.free += reserve.saturating_sub(used(member.component).unwrap_or(0));
    }
    let mut excluded = Vec::new();
    for (&(id, group), &need) in &needed {
        let host = hosts.iter().find(|host| host.id == id);
        let here: Vec<&GroupView> =
            host.iter().flat_map(|host| &host.groups).filter(|g| g.id == group).collect();
        let reason = host.map_or(Some(Reason::Down), |host| unfit(host, &here, 0, need));
        let Some(reason) = reason else { continue };
        let name = host.map_or_else(|| id.to_string(), |host| host.name.clone());
        excluded.push(Excluded { host: id, name, reason });
    }
    if excluded.is_empty() {
        return Ok(());
    }
    assert!(excluded.len() <= needed.len(), "{} places of {}", excluded.len(), needed.len());
    let (places, usable) = (needed.len(), needed.len() - excluded.len());
    let mut remedies = returning(&excluded);
    let missing = excluded.iter().map(|e| match e.reason {
        Reason::Full { free_bytes, needed_bytes } => needed_bytes - free_bytes,
        _ => 0,
    });
    let missing: u64 = missing.sum();
    if missing > 0 {
        remedies.push(Remedy::AddBytes(missing));
    }
    let small = excluded.iter().filter_map(|e| match e.reason {
        Reason::Small { device_bytes, .. } => Some(device_bytes),
        _ => None,
    });
    // Of several sets of legs, the full ones are the largest: then no other size would do.
    let width = usize::from(record.policy.stripe_width);
    if let Some(device_bytes) = small.min()
        && record.legs.len() == width
        && device_bytes >= CHUNK
    {
        remedies.push(Remedy::Shrink(device_bytes / CHUNK * CHUNK * width as u64));
    }
    Err(Refusal { rule: Rule::Grow { places, usable }, excluded, remedies })
}

/// Chooses a place where the component `gone` of leg `leg` can be rebuilt: outside the fault
/// domains of the leg's other members, and not where it was. It needs what the fullest of the
/// copies that are up to date uses, in bytes by `used` (none: that is not known of any, and it may
/// be all), and goes to where all of it would fit when possible.
///
/// # Errors
/// See [`Refusal`].
///
/// # Panics
/// If the record has no such leg.
pub fn replacement(
    hosts: &[HostView],
    record: &ObjectRecord,
    leg: usize,
    gone: ComponentId,
    used: impl Fn(ComponentId) -> Option<u64>,
) -> Result<(HostId, GroupId), Refusal> {
    let members = &record.legs[leg].members;
    let bytes = u64::from(record.leg_chunks(leg)) * CHUNK;
    let whole = members.iter().filter(|m| m.state.is_active() && m.component != gone);
    let fullest = whole.filter_map(|m| used(m.component)).max();
    let full = Need { bytes, free: bytes };
    let least = fullest.map_or(bytes, |used| used.clamp(CHUNK, bytes));
    let need = Need { bytes: least, free: least };
    // What its group has lost may be made anew in the same group, if that works again; what is
    // only away comes back there by itself.
    let old = members.iter().find(|m| m.component == gone);
    let is_lost = old.is_some_and(|m| matches!(m.state, MemberState::Absent { lost: true, .. }));
    let was = old.filter(|_| !is_lost).map(|m| m.group);
    let again = |p: &Place| old.is_some_and(|m| m.group == p.group.id);
    let domain_of = |host: HostId| hosts.iter().find(|h| h.id == host).map(|h| &h.fault_domain);
    let occupied: BTreeSet<&String> =
        members.iter().filter(|m| m.component != gone).filter_map(|m| domain_of(m.host)).collect();
    let places = Place::of(hosts, None, gone.0);
    let fitting = |p: &&Place| {
        p.takes(need, p.free) && Some(p.group.id) != was && !occupied.contains(&p.host.fault_domain)
    };
    let rank = |p: &Place| (!p.takes(full, p.free), again(p));
    let best = places
        .iter()
        .filter(fitting)
        .min_by(|a, b| rank(a).cmp(&rank(b)).then_with(|| a.score(0).total_cmp(&b.score(0))));
    if let Some(place) = best {
        let others = || members.iter().filter(|m| m.component != gone);
        assert!(place.host.alive && place.group.healthy, "{:?} is in no state", place.group);
        assert!(place.group.free_bytes >= need.free, "{need:?} into {:?}", place.group);
        assert!(place.group.device_bytes >= need.bytes, "{need:?} into {:?}", place.group);
        assert!(place.group.free_components > 0, "one more into {:?}", place.group);
        assert!(
            others().all(|m| domain_of(m.host) != Some(&place.host.fault_domain)),
            "two members in {}",
            place.host.fault_domain
        );
        assert!(others().all(|m| m.host != place.host.id), "two members on {}", place.host.name);
        assert!(
            is_lost || old.is_none_or(|m| m.group != place.group.id),
            "what is only away comes back to {:?}",
            place.group
        );
        return Ok((place.host.id, place.group.id));
    }

    let mut excluded = Vec::new();
    let mut missing = u64::MAX;
    for host in sorted(hosts) {
        let here: Vec<&GroupView> = host.groups.iter().filter(|g| Some(g.id) != was).collect();
        let reason = if occupied.contains(&host.fault_domain) {
            Reason::Occupied { domain: host.fault_domain.clone() }
        } else {
            let Some(reason) = unfit(host, &here, 1, need) else { continue };
            if let Reason::Full { free_bytes, .. } = reason {
                assert!(free_bytes < need.free, "{free_bytes} bytes are room for {need:?}");
                missing = missing.min(need.free - free_bytes);
            }
            reason
        };
        excluded.push(Excluded { host: host.id, name: host.name.clone(), reason });
    }
    let mut remedies = returning(&excluded);
    let rule = if missing == u64::MAX {
        Rule::Domains { needed: 1, usable: 0 }
    } else {
        remedies.push(Remedy::AddBytes(missing));
        Rule::Room { needed: 1, usable: 0, component_bytes: need.free, missing_bytes: missing }
    };
    remedies.push(Remedy::AddHosts(1));
    Err(Refusal { rule, excluded, remedies })
}

/// What an administrator should know before a host is lost: rule 4, with the places a leg of
/// `policy` needs.
pub fn warnings(hosts: &[HostView], policy: &Policy) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let domains = domains(hosts);
    let usable = domains.values().filter(|d| d.usable).count();
    if usable <= policy.members() && policy.failures_to_tolerate > 0 {
        warnings.push(Warning::NoSpareDomain { domains: usable, needed: policy.members() });
    }
    let fullest = domains.iter().max_by_key(|(name, d)| (d.used, Reverse(*name)));
    if let Some((name, fullest)) = fullest
        && domains.len() > 1
    {
        let free_bytes = sum(domains.iter().filter(|(n, _)| *n != name).map(|(_, d)| d.free));
        if fullest.used > free_bytes {
            let (domain, used_bytes) = ((*name).to_owned(), fullest.used);
            warnings.push(Warning::NoRebuildRoom { domain, used_bytes, free_bytes });
        }
    }
    warnings
}

/// Says where every member of an object is, why there, and what is not as it should be.
pub fn explain(record: &ObjectRecord, hosts: &[HostView]) -> Explanation {
    let legs = (0..record.legs.len()).map(|leg| explain_leg(record, hosts, leg)).collect();
    Explanation { legs, warnings: warnings(hosts, &record.policy) }
}

fn explain_leg(record: &ObjectRecord, hosts: &[HostView], leg: usize) -> LegExplanation {
    let members = &record.legs[leg].members;
    let bytes = u64::from(record.leg_chunks(leg)) * CHUNK;
    let host_of = |id: HostId| hosts.iter().find(|h| h.id == id);
    let mut by_domain: BTreeMap<&str, Vec<ComponentId>> = BTreeMap::new();
    let mut explained = Vec::new();
    for member in members {
        let host = host_of(member.host);
        if let Some(host) = host {
            by_domain.entry(&host.fault_domain).or_default().push(member.component);
        }
        let others: BTreeSet<&str> = members
            .iter()
            .filter(|m| m.component != member.component)
            .filter_map(|m| host_of(m.host))
            .map(|h| h.fault_domain.as_str())
            .collect();
        let group = host.and_then(|h| h.groups.iter().find(|g| g.id == member.group));
        let trouble = match (host, group) {
            (Some(host), Some(group)) => unfit(host, &[group], 0, Need { bytes: 0, free: 0 }),
            (Some(_), None) => Some(Reason::Failed),
            (None, _) => Some(Reason::Down),
        };
        explained.push(MemberExplanation {
            component: member.component,
            host: member.host,
            host_name: host.map_or_else(|| member.host.to_string(), |h| h.name.clone()),
            fault_domain: host.map_or_else(String::new, |h| h.fault_domain.clone()),
            group: member.group,
            state: member.state,
            why: why(record, hosts, member, group, &others, bytes),
            trouble,
        });
    }
    let mut violations: Vec<Violation> = by_domain
        .into_iter()
        .filter(|(_, components)| components.len() > 1)
        .map(|(domain, components)| Violation::SharedDomain { domain: domain.into(), components })
        .collect();
    let active = members.iter().filter(|m| m.state.is_active()).count();
    if active < record.policy.members() {
        violations.push(Violation::Degraded { active, wanted: record.policy.members() });
    }
    LegExplanation { leg, bytes, members: explained, violations }
}

/// The reason is told of the present: what was free when the object was made is not recorded.
fn why(
    record: &ObjectRecord,
    hosts: &[HostView],
    member: &MemberRecord,
    group: Option<&GroupView>,
    others: &BTreeSet<&str>,
    bytes: u64,
) -> Why {
    let Some(group) = group.filter(|g| g.healthy) else { return Why::Past };
    if record.owner.is_some_and(|owner| owner.host == member.host) {
        return Why::Near;
    }
    // What it could be instead: not with the other members; its own place always counts.
    let choice: Vec<(&HostView, &GroupView)> = hosts
        .iter()
        .filter(|h| !others.contains(h.fault_domain.as_str()) && h.alive)
        .flat_map(|h| h.groups.iter().map(move |g| (h, g)))
        .filter(|(_, g)| g.id == member.group || (g.healthy && g.takes(bytes)))
        .collect();
    let own = hosts.iter().find(|h| h.id == member.host).map(|h| &h.fault_domain);
    if choice.iter().all(|(h, _)| Some(&h.fault_domain) == own) {
        return Why::OnlyDomainLeft;
    }
    let most = choice.iter().map(|(_, g)| g.free_bytes).max().unwrap_or(0);
    if group.free_bytes >= most {
        Why::MostFree { free_bytes: most, of: choice.len() }
    } else {
        let of_bytes = sum(choice.iter().map(|(_, g)| g.free_bytes));
        Why::Share { free_bytes: group.free_bytes, of_bytes }
    }
}

/// A disk group that can take components.
struct Place<'a> {
    host: &'a HostView,
    group: &'a GroupView,
    domain: usize,
    free: u64,
    near: bool,
    /// In (0, 1]: where this group begins in its turn.
    start: f64,
}

impl<'a> Place<'a> {
    /// Every group that can take anything.
    fn of(hosts: &'a [HostView], prefer: Option<HostId>, seed: u64) -> Vec<Self> {
        let names: BTreeSet<&str> = hosts.iter().map(|h| h.fault_domain.as_str()).collect();
        let names: Vec<&str> = names.into_iter().collect();
        let mut places = Vec::new();
        // Records of hosts may be changed by hand: of two with one id, the first counts.
        let is_first = |i: usize, h: &HostView| hosts[..i].iter().all(|o| o.id != h.id);
        let once = hosts.iter().enumerate().filter(|&(i, h)| is_first(i, h)).map(|(_, h)| h);
        for host in once.filter(|h| h.alive) {
            let is_first = |i: usize, g: &GroupView| host.groups[..i].iter().all(|o| o.id != g.id);
            let once = host.groups.iter().enumerate().filter(|&(i, g)| is_first(i, g));
            for group in once.map(|(_, g)| g).filter(|g| g.healthy && g.room() > 0) {
                let name = names.binary_search(&host.fault_domain.as_str());
                places.push(Self {
                    host,
                    group,
                    domain: name.expect("collected from the same hosts"),
                    free: group.free_bytes,
                    near: prefer == Some(host.id),
                    start: ((mix(seed ^ mix(group.id.0)) >> 11) + 1) as f64 / (1u64 << 53) as f64,
                });
            }
        }
        // The order of the inventory decides nothing.
        places.sort_by_key(|p| (p.host.id, p.group.id));
        assert!(places.iter().all(|p| p.free > 0 && p.domain < names.len()), "no place at all");
        assert!(places.iter().all(|p| p.start > 0.0 && p.start <= 1.0), "a turn begins in (0, 1]");
        places
    }

    /// Whether a component fits where so much is left free of the group.
    fn takes(&self, need: Need, free: u64) -> bool {
        free >= need.free && self.group.device_bytes >= need.bytes
    }

    /// The group with the lowest comes next: in proportion to free space, like seats to votes. Free
    /// space counts by the part of it that is left to each byte that may be wanted of it.
    fn score(&self, taken: u32) -> f64 {
        let (free, unwritten) = (self.free as f64, self.group.unwritten_bytes as f64);
        (f64::from(taken) + self.start) * (1.0 + unwritten / free) / free
    }
}

/// The search for a placement: best choice first, back where there is a dead end.
struct Search<'a> {
    places: &'a [Place<'a>],
    free: Vec<u64>,
    /// Components chosen so far, by place.
    taken: Vec<u32>,
    legs: &'a [Need],
    /// The least that any of the legs from each on needs, for the bound.
    least: Vec<Need>,
    copies: usize,
    domains: usize,
    chosen: Vec<Vec<usize>>,
    steps: usize,
}

impl<'a> Search<'a> {
    fn run(
        places: &'a [Place<'a>],
        free: Vec<u64>,
        legs: &'a [Need],
        copies: usize,
    ) -> Option<Vec<Vec<usize>>> {
        assert!(copies > 0 && legs.iter().all(|need| need.free > 0), "{copies} of {legs:?}");
        assert_eq!(free.len(), places.len(), "what is free in each place");
        let mut least = legs.to_vec();
        for i in (1..least.len()).rev() {
            let (bytes, free) = (least[i].bytes, least[i].free);
            least[i - 1].bytes = least[i - 1].bytes.min(bytes);
            least[i - 1].free = least[i - 1].free.min(free);
        }
        let of_all = legs.iter().map(|need| need.free).min();
        assert!(least.is_sorted_by_key(|need| need.free), "{least:?} of {legs:?}");
        assert_eq!(least.first().map(|need| need.free), of_all, "{least:?} of {legs:?}");
        let domains = places.iter().map(|p| p.domain + 1).max().unwrap_or(0);
        let taken = vec![0; places.len()];
        let chosen = Vec::new();
        let mut search =
            Self { places, free, taken, legs, least, copies, domains, chosen, steps: 0 };
        let exact = |bytes: &mut dyn Iterator<Item = u64>| bytes.map(u128::from).sum::<u128>();
        let all = |free: &[u64]| exact(&mut free.iter().copied());
        let before = all(&search.free);
        let found = search.hopeful(0) && search.leg(0);
        // Whatever was tried and given up again has been given back.
        let taken: usize = search.taken.iter().map(|&n| n as usize).sum();
        let needed = exact(&mut legs.iter().map(|need| need.free)) * copies as u128;
        let used = if found { needed } else { 0 };
        assert_eq!(search.chosen.len(), if found { legs.len() } else { 0 }, "legs chosen");
        assert_eq!(taken, search.chosen.len() * copies, "components chosen");
        assert_eq!(before, all(&search.free) + used, "bytes chosen");
        found.then_some(search.chosen)
    }

    /// Whether the legs from `leg` on could fit, counted in domains: necessary, and for legs of
    /// one size also sufficient (each leg takes the domains with most room).
    fn hopeful(&self, leg: usize) -> bool {
        let Some(&least) = self.least.get(leg) else { return true };
        let left = (self.legs.len() - leg) as u64;
        let mut slots = vec![0u64; self.domains];
        for ((place, &free), taken) in self.places.iter().zip(&self.free).zip(&self.taken) {
            if place.takes(least, free) {
                let entries = place.group.free_components - taken;
                let fit = (free / least.free).min(u64::from(entries));
                slots[place.domain] = slots[place.domain].saturating_add(fit);
            }
        }
        slots.into_iter().map(|s| s.min(left)).sum::<u64>() >= left * self.copies as u64
    }

    /// Whether the table of a place has room for one component more.
    fn has_entry(&self, place: usize) -> bool {
        self.taken[place] < self.places[place].group.free_components
    }

    fn leg(&mut self, leg: usize) -> bool {
        let Some(&need) = self.legs.get(leg) else { return true };
        let mut order: Vec<usize> = (0..self.places.len())
            .filter(|&p| self.places[p].takes(need, self.free[p]) && self.has_entry(p))
            .collect();
        self.steps += self.places.len();
        order.sort_by(|&a, &b| {
            let key = |p: usize| (!self.places[p].near, self.places[p].score(self.taken[p]));
            key(a).partial_cmp(&key(b)).expect("scores are numbers")
        });
        let mut members = Vec::with_capacity(self.copies);
        self.member(leg, need.free, &order, &mut members)
    }

    /// Chooses the members of a leg from `order` on, then all later legs.
    fn member(
        &mut self,
        leg: usize,
        bytes: u64,
        order: &[usize],
        members: &mut Vec<usize>,
    ) -> bool {
        if members.len() == self.copies {
            self.steps += self.places.len();
            if !self.hopeful(leg + 1) {
                return false;
            }
            self.chosen.push(members.clone());
            if self.leg(leg + 1) {
                return true;
            }
            self.chosen.pop();
            return false;
        }
        for (i, &p) in order.iter().enumerate() {
            self.steps += 1;
            if self.steps > STEPS_MAX {
                return false;
            }
            if members.iter().any(|&m| self.places[m].domain == self.places[p].domain) {
                continue;
            }
            assert!(self.free[p] >= bytes && self.has_entry(p), "place {p} has no room");
            members.push(p);
            self.free[p] -= bytes;
            self.taken[p] += 1;
            if self.member(leg, bytes, &order[i + 1..], members) {
                return true;
            }
            members.pop();
            self.free[p] += bytes;
            self.taken[p] -= 1;
        }
        false
    }
}

/// What every group should leave free (rule 4), so that any other fault domain fits into what is
/// left when it is lost: its share, by capacity, of what that domain holds.
fn rebuild_reserve(hosts: &[HostView]) -> BTreeMap<GroupId, u64> {
    let domains = domains(hosts);
    let capacity = sum(domains.values().map(|d| d.capacity));
    let share = |group: &GroupView, lost: &Domain| match capacity - lost.capacity {
        0 => 0,
        others => {
            let share =
                u128::from(lost.used) * u128::from(group.capacity_bytes) / u128::from(others);
            u64::try_from(share).unwrap_or(u64::MAX)
        }
    };
    let mut reserve = BTreeMap::new();
    for host in hosts {
        for group in &host.groups {
            let others = domains.iter().filter(|(name, _)| **name != host.fault_domain);
            let most = others.map(|(_, lost)| share(group, lost)).max().unwrap_or(0);
            reserve.insert(group.id, most);
        }
    }
    reserve
}

/// Other hosts and records say what there is: together it may be more than fits into 64 bits.
fn sum(bytes: impl Iterator<Item = u64>) -> u64 {
    bytes.fold(0, u64::saturating_add)
}

#[derive(Default)]
struct Domain {
    usable: bool,
    capacity: u64,
    free: u64,
    used: u64,
}

/// Fault domains with what their groups that could be used hold.
fn domains(hosts: &[HostView]) -> BTreeMap<&str, Domain> {
    let mut domains: BTreeMap<&str, Domain> = BTreeMap::new();
    for host in hosts.iter().filter(|h| h.alive) {
        for group in host.groups.iter().filter(|g| g.healthy) {
            let domain = domains.entry(&host.fault_domain).or_default();
            domain.usable |= group.room() > 0;
            let used_bytes = group.capacity_bytes.saturating_sub(group.free_bytes);
            domain.capacity = domain.capacity.saturating_add(group.capacity_bytes);
            domain.free = domain.free.saturating_add(group.free_bytes);
            domain.used = domain.used.saturating_add(used_bytes);
        }
    }
    domains
}

/// Bytes of the components of each leg, by index.
fn leg_bytes(policy: &Policy, size_bytes: u64) -> Vec<u64> {
    let object = blank(policy, size_bytes, 0);
    let legs = legs_needed(policy, size_bytes);
    // A leg that the size does not reach (a column of a tiny striped object) still gets a chunk.
    let all: Vec<u64> =
        (0..legs).map(|leg| u64::from(object.leg_chunks(leg)).max(1) * CHUNK).collect();
    assert!(all.iter().all(|&bytes| bytes <= COMPONENT_MAX), "legs of {size_bytes}: {all:?}");
    assert!(all.iter().sum::<u64>() >= size_bytes, "legs of {size_bytes}: {all:?}");
    all
}

fn check(policy: &Policy, size_bytes: u64) -> Result<(), Refusal> {
    let refuse = |rule, remedies| Err(Refusal { rule, excluded: Vec::new(), remedies });
    if let Err(why) = policy.check() {
        return refuse(Rule::Policy(why), vec![]);
    }
    if size_bytes == 0 || !size_bytes.is_multiple_of(BLOCK) || size_bytes > OBJECT_MAX {
        let why = format!(
            "size is {size_bytes} bytes, and must be a multiple of 4 KiB, at most {}",
            iec(OBJECT_MAX)
        );
        return refuse(Rule::Size(why), vec![]);
    }
    Ok(())
}

/// A record without members, for its geometry.
fn blank(policy: &Policy, size_bytes: u64, legs: usize) -> ObjectRecord {
    let host = HostId(u64::MAX);
    ObjectRecord {
        version: RECORD_VERSION,
        id: ObjectId(u64::MAX),
        name: String::new(),
        state: ObjectState::Deleting,
        size_bytes,
        policy: policy.clone(),
        epoch: Epoch(u32::MAX),
        owner: Some(OwnerRecord { host, shard: 0, incarnation: Incarnation(u64::MAX) }),
        seq_base: Seq(u64::MAX),
        legs: vec![LegRecord { members: Vec::new() }; legs],
        attached: Some(u32::MAX),
        served: Some(ServedRecord {
            epoch: Epoch(u32::MAX),
            host,
            incarnation: Incarnation(u64::MAX),
        }),
        nonce: u64::MAX,
    }
}

/// Why so many more components (0: those that are there grow) with that need cannot go to one of
/// these groups of a host; none if they can.
fn unfit(host: &HostView, groups: &[&GroupView], more: u32, need: Need) -> Option<Reason> {
    if !host.alive {
        return Some(Reason::Down);
    }
    if groups.is_empty() {
        return Some(Reason::NoGroups);
    }
    let healthy = || groups.iter().filter(|g| g.healthy);
    if healthy().next().is_none() {
        return Some(Reason::Failed);
    }
    let open = || healthy().filter(|g| g.free_components >= more);
    let Some(device_bytes) = open().map(|g| g.device_bytes).max() else {
        return Some(Reason::Crowded);
    };
    let large = open().filter(|g| g.device_bytes >= need.bytes);
    let Some(free_bytes) = large.map(|g| g.free_bytes).max() else {
        return Some(Reason::Small { device_bytes, component_bytes: need.bytes });
    };
    (free_bytes < need.free).then_some(Reason::Full { free_bytes, needed_bytes: need.free })
}

fn sorted(hosts: &[HostView]) -> Vec<&HostView> {
    let mut hosts: Vec<&HostView> = hosts.iter().collect();
    hosts.sort_by(|a, b| (&a.name, a.id).cmp(&(&b.name, b.id)));
    hosts
}

/// The hosts that only have to come back.
fn returning(excluded: &[Excluded]) -> Vec<Remedy> {
    let away = excluded.iter().filter(|e| e.is_away());
    let names: Vec<String> = away.map(|e| e.name.clone()).collect();
    if names.is_empty() { vec![] } else { vec![Remedy::Return(names)] }
}

/// Explains why no placement was found.
fn refusal(hosts: &[HostView], policy: &Policy, size_bytes: u64) -> Refusal {
    let needed = policy.members();
    // Told of the policy's own legs; where the disks are too small for them, of the most legs.
    let device_bytes = device_of_each_copy(hosts, needed);
    let spreads = spreads(policy, size_bytes);
    let largest = |policy: &Policy| leg_bytes(policy, size_bytes).into_iter().max();
    let told = spreads.iter().find(|policy| largest(policy) <= Some(device_bytes));
    let needs = thin_needs(told.or(spreads.last()).unwrap_or(policy), size_bytes);
    let bytes = needs.iter().map(|need| need.bytes).max().expect("an object has a leg");
    let free = needs.iter().map(|need| need.free).max().expect("an object has a leg");
    let need = Need { bytes, free };
    let mut excluded = Vec::new();
    let mut taking: BTreeSet<&str> = BTreeSet::new();
    let mut fitting: BTreeSet<&str> = BTreeSet::new();
    // What is missing in the best group of every domain that is too full.
    let mut short: BTreeMap<&str, u64> = BTreeMap::new();
    for host in sorted(hosts) {
        let groups: Vec<&GroupView> = host.groups.iter().collect();
        let reason = unfit(host, &groups, 1, need);
        match &reason {
            None => {
                fitting.insert(&host.fault_domain);
                taking.insert(&host.fault_domain);
            }
            Some(Reason::Full { free_bytes, .. }) => {
                taking.insert(&host.fault_domain);
                let missing = need.free - free_bytes;
                let least = short.entry(&host.fault_domain).or_insert(missing);
                *least = missing.min(*least);
            }
            Some(_) => {}
        }
        if let Some(reason) = reason {
            excluded.push(Excluded { host: host.id, name: host.name.clone(), reason });
        }
    }
    let mut remedies = returning(&excluded);
    if excluded.iter().any(|e| e.reason == Reason::Crowded) {
        remedies.push(Remedy::FewerObjects);
    }
    let small = excluded.iter().any(|e| matches!(e.reason, Reason::Small { .. }));
    if small && device_bytes > 0 {
        remedies.push(Remedy::Shrink(device_bytes * u64::from(STRIPE_WIDTH_MAX)));
    }
    let rule = if taking.len() < needed {
        remedies.push(match small {
            true => Remedy::LargerDisks(bytes),
            false => Remedy::AddHosts(needed - taking.len()),
        });
        Rule::Domains { needed, usable: taking.len() }
    } else if fitting.len() < needed {
        let mut missing: Vec<u64> =
            short.iter().filter(|(d, _)| !fitting.contains(*d)).map(|(_, &m)| m).collect();
        missing.sort_unstable();
        let more = needed - fitting.len();
        assert!(missing.len() >= more, "{} domains that are full, of {more}", missing.len());
        assert!(missing.iter().all(|&bytes| bytes > 0), "a domain with room is not full");
        let missing_bytes = missing.iter().take(more).sum();
        remedies.push(Remedy::AddBytes(missing_bytes));
        Rule::Room { needed, usable: fitting.len(), component_bytes: need.free, missing_bytes }
    } else {
        let missing_bytes = missing_in_total(hosts, need, needs.len(), needed);
        remedies.push(Remedy::AddBytes(missing_bytes));
        let components = needs.len() * needed;
        Rule::Total { components, component_bytes: need.free, missing_bytes }
    };
    // What else would do, tried and not guessed.
    let fewer = (0..policy.failures_to_tolerate).rev().find(|&failures_to_tolerate| {
        let policy = Policy { failures_to_tolerate, ..policy.clone() };
        check(&policy, size_bytes).is_ok() && search(hosts, &policy, size_bytes, None, 0).is_some()
    });
    remedies.extend(fewer.map(Remedy::Tolerate));
    Refusal { rule, excluded, remedies }
}

/// The largest component, in whole chunks, for which as many fault domains as there are copies
/// have a device.
fn device_of_each_copy(hosts: &[HostView], copies: usize) -> u64 {
    let mut of_domain: BTreeMap<usize, u64> = BTreeMap::new();
    for place in Place::of(hosts, None, 0) {
        let most = of_domain.entry(place.domain).or_default();
        *most = place.group.device_bytes.max(*most);
    }
    let mut devices: Vec<u64> = of_domain.into_values().collect();
    devices.sort_unstable_by_key(|&bytes| Reverse(bytes));
    devices.get(copies - 1).map_or(0, |bytes| (bytes / CHUNK * CHUNK).min(COMPONENT_MAX))
}

/// Bytes that are missing for all components, counted where whole components fit; at least one
/// component's worth where only the arrangement fails.
fn missing_in_total(hosts: &[HostView], largest: Need, legs: usize, copies: usize) -> u64 {
    let mut slots: BTreeMap<usize, u64> = BTreeMap::new();
    for place in Place::of(hosts, None, 0).iter().filter(|p| p.takes(largest, p.free)) {
        let entries = u64::from(place.group.free_components);
        let slots = slots.entry(place.domain).or_default();
        *slots = slots.saturating_add((place.free / largest.free).min(entries));
    }
    let fit: u64 = slots.values().map(|&s| s.min(legs as u64)).sum();
    (legs * copies).saturating_sub(fit as usize).max(1) as u64 * largest.free
}

/// splitmix64's finaliser.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn plural(n: usize, one: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{n} {one}s") }
}

/// "is" or "are", "has" or "have".
fn verb<'a>(n: usize, one: &'a str, many: &'a str) -> &'a str {
    if n == 1 { one } else { many }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Down => write!(f, "is down"),
            Self::NoGroups => write!(f, "has no disk group"),
            Self::Failed => write!(f, "has only failed disk groups"),
            Self::Crowded => write!(f, "holds as many components as its disk groups can"),
            Self::Small { device_bytes, component_bytes } => write!(
                f,
                "has disks of up to {} for a component of {}",
                iec(*device_bytes),
                iec(*component_bytes)
            ),
            Self::Full { free_bytes, needed_bytes } => write!(
                f,
                "has {} free in one disk group of the {} needed",
                iec(*free_bytes),
                iec(*needed_bytes)
            ),
            Self::Occupied { domain } => {
                write!(f, "is in fault domain {domain}, which holds another copy")
            }
        }
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Return(names) => write!(f, "bring back {}", names.join(", ")),
            Self::AddHosts(1) => write!(f, "add a host"),
            Self::AddHosts(n) => write!(f, "add {n} hosts"),
            Self::LargerDisks(bytes) => write!(f, "add disks of at least {}", iec(*bytes)),
            Self::AddBytes(bytes) => write!(f, "free or add {}", iec(*bytes)),
            Self::Tolerate(ftt) => {
                write!(f, "use a policy with failures_to_tolerate {ftt}")
            }
            Self::Shrink(bytes) => write!(f, "make it at most {}", iec(*bytes)),
            Self::FewerObjects => write!(f, "delete volumes that are not needed"),
            Self::MoreDisks(bytes) => write!(f, "add disk groups of {} in all", iec(*bytes)),
            Self::RaiseLimit(percent) => {
                write!(f, "raise the limit: 'atoll cluster set --promised-limit {percent}'")
            }
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.rule {
            Rule::Policy(why) | Rule::Size(why) => write!(f, "{why}")?,
            Rule::Domains { needed, usable } => write!(
                f,
                "policy needs {} for {}, {usable} {} {}",
                plural(*needed, "fault domain"),
                verb(*needed, "1 copy", &format!("{needed} copies")),
                verb(*usable, "is", "are"),
                if self.excluded.iter().all(Excluded::is_away) { "up" } else { "usable" }
            )?,
            Rule::Room { needed, usable, component_bytes, missing_bytes } => write!(
                f,
                "policy needs {} with {} free, {usable} {} it and {} are missing",
                plural(*needed, "fault domain"),
                iec(*component_bytes),
                verb(*usable, "has", "have"),
                iec(*missing_bytes)
            )?,
            Rule::Total { components, component_bytes, missing_bytes } => write!(
                f,
                "{} of at least {} do not fit together, {} are missing",
                plural(*components, "component"),
                iec(*component_bytes),
                iec(*missing_bytes)
            )?,
            Rule::Grow { places, usable } => write!(
                f,
                "the volume stays in the {} that {} it, and {usable} {} room for the new size",
                plural(*places, "disk group"),
                verb(*places, "holds", "hold"),
                verb(*usable, "has", "have")
            )?,
            Rule::Promised { promised_bytes, exist_bytes, limit_percent } => write!(
                f,
                "volumes could take {} on disks then, all copies together: {} exist, and the \
                 limit is {limit_percent} % of that",
                iec(*promised_bytes),
                iec(*exist_bytes)
            )?,
        }
        let hosts: Vec<String> =
            self.excluded.iter().map(|e| format!("{} {}", e.name, e.reason)).collect();
        if !hosts.is_empty() {
            write!(f, ": {}", hosts.join(", "))?;
        }
        let remedies: Vec<String> = self.remedies.iter().map(Remedy::to_string).collect();
        if !remedies.is_empty() {
            write!(f, "; {}", remedies.join(", or "))?;
        }
        Ok(())
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSpareDomain { domains, needed } => write!(
                f,
                "{} {} up and every leg needs {needed}: after a loss there is no place to \
                 rebuild; add a host",
                plural(*domains, "fault domain"),
                verb(*domains, "is", "are")
            ),
            Self::NoRebuildRoom { domain, used_bytes, free_bytes } => write!(
                f,
                "fault domain {domain} holds {}, the others have {} free: it could not be \
                 rebuilt in full; free or add {}",
                iec(*used_bytes),
                iec(*free_bytes),
                iec(used_bytes - free_bytes)
            ),
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Near => write!(f, "same host as the owner"),
            Self::OnlyDomainLeft => write!(f, "only fault domain left"),
            Self::MostFree { free_bytes, of } => {
                write!(f, "most free space ({}) of {}", iec(*free_bytes), plural(*of, "choice"))
            }
            Self::Share { free_bytes, of_bytes } => {
                write!(f, "its turn, with {} of the {} free", iec(*free_bytes), iec(*of_bytes))
            }
            Self::Past => write!(f, "chosen before; the place is no longer usable"),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SharedDomain { domain, components } => {
                let ids: Vec<String> = components.iter().map(ToString::to_string).collect();
                write!(f, "fault domain {domain} holds {} copies: {}", ids.len(), ids.join(", "))
            }
            Self::Degraded { active, wanted } => {
                write!(f, "{active} of {wanted} copies {} active", verb(*active, "is", "are"))
            }
        }
    }
}

impl Explanation {
    /// Everything in sentences, one a line.
    pub fn sentences(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for leg in &self.legs {
            for member in &leg.members {
                let mut line = format!(
                    "leg {}: component {} is on {} (fault domain {}, disk group {}): {}",
                    leg.leg,
                    member.component,
                    member.host_name,
                    if member.fault_domain.is_empty() { "unknown" } else { &member.fault_domain },
                    member.group,
                    member.why
                );
                if let Some(trouble) = &member.trouble {
                    line += &format!("; the host {trouble}");
                }
                lines.push(line);
            }
            lines.extend(leg.violations.iter().map(|v| format!("leg {}: {v}", leg.leg)));
        }
        lines.extend(self.warnings.iter().map(|w| format!("warning: {w}")));
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_format::record::Method;
    use atoll_format::units::COMPONENT_MAX;
    use proptest::prelude::*;

    fn policy(ftt: u8, width: u8) -> Policy {
        Policy {
            failures_to_tolerate: ftt,
            method: Method::Mirror,
            stripe_width: width,
            iops_limit: 0,
            reserve_percent: 0,
        }
    }

    /// Hosts `host1`, `host2`, ... in domains of the same names, with groups of (capacity, free).
    fn cluster(hosts: &[&[(u64, u64)]]) -> Vec<HostView> {
        let host = |(i, groups): (usize, &&[(u64, u64)])| HostView {
            id: HostId(i as u64 + 1),
            name: format!("host{}", i + 1),
            fault_domain: format!("host{}", i + 1),
            alive: true,
            incarnation: Incarnation(1),
            groups: groups
                .iter()
                .enumerate()
                .map(|(g, &(capacity_bytes, free_bytes))| GroupView {
                    id: GroupId((i as u64 + 1) * 10 + g as u64),
                    healthy: true,
                    capacity_bytes,
                    device_bytes: capacity_bytes,
                    free_bytes,
                    unwritten_bytes: 0,
                    free_components: u32::MAX,
                    shard: 0,
                })
                .collect(),
        };
        hosts.iter().enumerate().map(host).collect()
    }

    fn object_on(policy: &Policy, size_bytes: u64, legs: &[LegPlacement]) -> ObjectRecord {
        let mut next = 100;
        let mut member = |&(host, group): &(HostId, GroupId)| {
            next += 1;
            MemberRecord { component: ComponentId(next), host, group, state: MemberState::Active }
        };
        ObjectRecord {
            name: "v".into(),
            state: ObjectState::Ready,
            owner: None,
            legs: legs
                .iter()
                .map(|l| LegRecord { members: l.members.iter().map(&mut member).collect() })
                .collect(),
            ..blank(policy, size_bytes, 0)
        }
    }

    const G: u64 = 1 << 30;

    #[test]
    fn hosts_that_say_they_have_more_than_can_be_are_added_up_all_the_same() {
        let more = [(u64::MAX, u64::MAX), (u64::MAX, u64::MAX)];
        let full = [(u64::MAX, 0), (u64::MAX, CHUNK)];
        let true_one = [(100 * G, 50 * G)];
        let mut hosts = cluster(&[&more, &more, &full, &full, &true_one]);
        for group in hosts.iter_mut().flat_map(|host| &mut host.groups) {
            group.unwritten_bytes = u64::MAX;
        }
        for shared in [false, true] {
            for host in hosts.iter_mut().filter(|_| shared) {
                host.fault_domain = format!("rack{}", host.id.0 % 3);
            }
            for legs in [1, 8] {
                let plan = place(&hosts, &policy(1, legs), 80 * G, None, 1).expect("a place");
                let record = object_on(&plan.policy, 80 * G, &plan.legs);
                assert_eq!(grow(&hosts, &record, 90 * G, |_| Some(u64::MAX)), Ok(()));
                let gone = record.legs[0].members[0].component;
                assert!(replacement(&hosts, &record, 0, gone, |_| Some(u64::MAX)).is_ok());
                assert_eq!(explain(&record, &hosts).legs.len(), plan.legs.len());
            }
            // What is full all together is full, and what there is of it is told.
            let full: Vec<HostView> = hosts[2..4].to_vec();
            let refusal = place(&full, &policy(1, 3), 12 * G, None, 1).expect_err("no room");
            assert!(!refusal.to_string().is_empty());
            let told = warnings(&full, &policy(1, 1));
            assert!(told.iter().any(|w| matches!(w, Warning::NoRebuildRoom { .. })), "{told:?}");
        }
    }

    #[test]
    fn a_refusal_says_which_rule_which_hosts_and_what_would_help() {
        let mut hosts =
            cluster(&[&[(100 * G, 50 * G)], &[(100 * G, 50 * G)], &[(100 * G, 50 * G)]]);
        hosts[2].alive = false;
        let refusal = place(&hosts, &policy(2, 1), G, None, 1).unwrap_err();
        assert_eq!(refusal.rule, Rule::Domains { needed: 3, usable: 2 });
        assert_eq!(
            refusal.to_string(),
            "policy needs 3 fault domains for 3 copies, 2 are up: host3 is down; bring back \
             host3, or add a host, or use a policy with failures_to_tolerate 1"
        );
        hosts[2].alive = true;
        hosts[1].groups[0].free_bytes = CHUNK / 2;
        hosts[2].groups[0].free_bytes = 0;
        let refusal = place(&hosts, &policy(1, 1), 24 * G, None, 1).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "policy needs 2 fault domains with 1.0 MiB free, 1 has it and 512.0 KiB are missing: \
             host2 has 512.0 KiB free in one disk group of the 1.0 MiB needed, host3 has 0 B free \
             in one disk group of the 1.0 MiB needed; free or add 512.0 KiB, or use a policy with \
             failures_to_tolerate 0"
        );
        // Each component has a chunk, all of them do not.
        let hosts = cluster(&[&[(9 * G, 2 * CHUNK)], &[(9 * G, 2 * CHUNK)]]);
        let refusal = place(&hosts, &policy(1, 3), 12 * G, None, 1).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "6 components of at least 1.0 MiB do not fit together, 2.0 MiB are missing; free or \
             add 2.0 MiB, or use a policy with failures_to_tolerate 0"
        );
        // The disks are too small for it, however many legs it has.
        let hosts = cluster(&[&[(9 * G, 5 * G)], &[(8 * G, 5 * G)], &[(7 * G, 5 * G)]]);
        let refusal = place(&hosts, &policy(1, 1), 100 * G, None, 1).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "policy needs 2 fault domains for 2 copies, 1 is usable: host2 has disks of up to \
             8.0 GiB for a component of 8.3 GiB, host3 has disks of up to 7.0 GiB for a component \
             of 8.3 GiB; make it at most 96.0 GiB, or add disks of at least 8.3 GiB, or use a \
             policy with failures_to_tolerate 0"
        );
        assert!(place(&hosts, &policy(1, 1), 96 * G, None, 1).is_ok());
        let mut hosts = cluster(&[&[(9 * G, 5 * G)], &[], &[(9 * G, 5 * G)], &[(9 * G, 5 * G)]]);
        hosts[2].groups[0].healthy = false;
        hosts[3].alive = false;
        let refusal = place(&hosts, &policy(3, 1), G, None, 1).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "policy needs 4 fault domains for 4 copies, 1 is usable: host2 has no disk group, \
             host3 has only failed disk groups, host4 is down; bring back host4, or add 3 \
             hosts, or use a policy with failures_to_tolerate 0"
        );
    }

    /// A volume that fits in full is placed as its policy says. One that fits with more legs gets
    /// them. One that does not is thin, where the disks are large enough.
    #[test]
    fn a_volume_is_in_full_if_that_is_possible_then_spread_then_thin() {
        let three = |capacity, free| {
            let group = [(capacity * G, free * G)];
            cluster(&[&group, &group, &group])
        };
        for (hosts, size, width, largest) in [
            (three(45, 45), 30, 1, 30),
            // 12 groups of a third each: 40 GiB on each host.
            (three(45, 45), 60, 3, 20),
            // Its components fit on the disks, and are thin.
            (three(45, 1), 30, 1, 30),
            (three(45, 1), 60, 2, 30),
            (three(45, 45), 500, 12, 41),
            // More than one set: the largest component there is.
            (three(300, 1), 600, 1, 255),
        ] {
            let plan = place(&hosts, &policy(1, 1), size * G, None, 1).expect("a place");
            assert_eq!(plan.policy, policy(1, width), "{size} GiB on {hosts:?}");
            let most = plan.legs.iter().map(|leg| leg.bytes).max();
            assert_eq!(most.map(|bytes| bytes / G), Some(largest), "{size} GiB on {hosts:?}");
        }
        // The same again and again: what is promised does not fill the groups.
        let mut hosts = three(45, 45);
        for seed in 0..40 {
            for leg in place(&hosts, &policy(1, 1), 30 * G, None, seed).expect("thin").legs {
                for (_, id) in leg.members {
                    let mut groups = hosts.iter_mut().flat_map(|host| &mut host.groups);
                    groups.find(|g| g.id == id).expect("known").unwritten_bytes += leg.bytes;
                }
            }
        }
        let promised: Vec<u64> = hosts.iter().map(|h| h.groups[0].unwritten_bytes / G).collect();
        assert!(promised.iter().all(|gib| (600..1000).contains(gib)), "{promised:?}");
    }

    #[test]
    fn what_a_policy_reserves_must_be_free() {
        assert_eq!(reserve_bytes(&policy(1, 1), 9 * G), 0);
        let reserve = |reserve_percent| Policy { reserve_percent, ..policy(1, 1) };
        for (percent, bytes, expected) in [
            (1, CHUNK, CHUNK),
            (50, 3 * CHUNK, 2 * CHUNK),
            (40, 10 * CHUNK, 4 * CHUNK),
            (100, 7 * CHUNK, 7 * CHUNK),
            (100, COMPONENT_MAX, COMPONENT_MAX),
        ] {
            assert_eq!(reserve_bytes(&reserve(percent), bytes), expected, "{percent} of {bytes}");
        }
        let hosts = cluster(&[[(90 * G, 20 * G)].as_slice(); 3]);
        // 80 GiB need 40 GiB of each of two copies, or as much in more legs; there are 60.
        for (percent, size, is_placed) in
            [(0, 80, true), (25, 80, true), (37, 80, true), (38, 80, false), (100, 30, true)]
        {
            let placed = place(&hosts, &reserve(percent), size * G, None, 1);
            assert_eq!(placed.is_ok(), is_placed, "{percent} % of {size} GiB: {placed:?}");
        }
        let refusal = place(&hosts, &reserve(100), 80 * G, None, 1).unwrap_err();
        assert!(refusal.to_string().contains("with 80.0 GiB free, 0 have it"), "{refusal}");
        // Of what it grows to, without what is used already.
        let hosts = &hosts[..2];
        let legs = place(hosts, &reserve(50), 30 * G, None, 1).expect("it fits").legs;
        let record = object_on(&reserve(50), 30 * G, &legs);
        assert_eq!(grow(hosts, &record, 40 * G, |_| None), Ok(()));
        let refusal = grow(hosts, &record, 42 * G, |_| Some(0)).unwrap_err();
        assert_eq!(refusal.remedies, [Remedy::AddBytes(2 * G)]);
        assert_eq!(grow(hosts, &record, 42 * G, |_| Some(G)), Ok(()));
    }

    #[test]
    fn more_is_placed_where_less_is_promised() {
        let mut hosts = cluster(&[[(90 * G, 90 * G)].as_slice(); 4]);
        hosts[1].groups[0].unwritten_bytes = 9 * 90 * G;
        let mut times = [0; 4];
        for seed in 0..1000 {
            let plan = place(&hosts, &policy(1, 1), G, None, seed).expect("a place");
            plan.legs[0].members.iter().for_each(|(host, _)| times[host.0 as usize - 1] += 1);
        }
        assert!((20..200).contains(&times[1]), "{times:?}");
        assert!([0, 2, 3].iter().all(|&host| times[host] > 500), "{times:?}");
    }

    #[test]
    fn a_component_is_no_larger_than_a_device() {
        let mut hosts = cluster(&[[(90 * G, 90 * G)].as_slice(); 2]);
        for host in &mut hosts {
            host.groups[0].device_bytes = 30 * G;
        }
        let plan = place(&hosts, &policy(1, 1), 60 * G, None, 1).expect("on two devices");
        assert_eq!(plan.policy.stripe_width, 2);
        let record = object_on(&plan.policy, 60 * G, &plan.legs);
        let refusal =
            replacement(&hosts, &record, 0, record.legs[0].members[0].component, |_| None)
                .unwrap_err();
        assert_eq!(refusal.rule, Rule::Domains { needed: 1, usable: 0 });
        hosts.extend(cluster(&[&[(90 * G, 90 * G)]]));
        (hosts[2].id, hosts[2].name) = (HostId(7), "host7".into());
        hosts[2].fault_domain = "host7".into();
        (hosts[2].groups[0].id, hosts[2].groups[0].device_bytes) = (GroupId(70), 29 * G);
        let gone = record.legs[0].members[0].component;
        let refusal = replacement(&hosts, &record, 0, gone, |_| None).unwrap_err();
        let small = Reason::Small { device_bytes: 29 * G, component_bytes: 30 * G };
        assert!(refusal.excluded.iter().any(|e| e.reason == small), "{refusal}");
        // What is there fits: a copy comes before the room that it may take yet.
        let place = replacement(&hosts, &record, 0, gone, |_| Some(29 * G));
        assert_eq!(place, Ok((HostId(7), GroupId(70))));
    }

    #[test]
    fn growing_is_refused_where_making_it_of_that_size_would_be() {
        let hosts = cluster(&[&[(8 * G, 7 * G)], &[(8 * G, 7 * G)]]);
        let policy = policy(1, 1);
        let legs = place(&hosts, &policy, 3 * G, None, 1).expect("it fits").legs;
        let record = object_on(&policy, 3 * G, &legs);
        assert!(place(&hosts, &policy, 200 * G, None, 1).is_err());
        let said = grow(&hosts, &record, 200 * G, |_| None).expect_err("too large").to_string();
        assert_eq!(
            said,
            "the volume stays in the 2 disk groups that hold it, and 0 have room for the new \
             size: host1 has disks of up to 8.0 GiB for a component of 200.0 GiB, host2 has disks \
             of up to 8.0 GiB for a component of 200.0 GiB; make it at most 8.0 GiB"
        );
        assert_eq!(grow(&hosts, &record, 8 * G, |_| None), Ok(()), "thin");
        assert!(grow(&hosts, &record, 8 * G + BLOCK, |_| None).is_err());
        let mut fuller = hosts.clone();
        fuller[1].groups[0].device_bytes -= G / 2;
        let said = grow(&fuller, &record, 8 * G, |_| None).expect_err("one is small").to_string();
        assert!(said.contains("and 1 has room") && said.contains("7.5 GiB"), "{said}");
        let mut lost = record.clone();
        let of = lost.legs[0].members.iter_mut().find(|m| m.host == fuller[1].id);
        of.expect("a copy").state = MemberState::Absent { since: Seq(0), at_ms: 0, lost: true };
        assert_eq!(grow(&fuller, &lost, 8 * G, |_| None), Ok(()), "made anew elsewhere");
        let mut away = hosts.clone();
        away[1].alive = false;
        let said = grow(&away, &record, 4 * G, |_| None).expect_err("who knows?").to_string();
        assert!(said.contains("is down") && said.contains("bring back"), "{said}");
    }

    #[test]
    fn bad_policies_and_sizes_are_refused_first() {
        let hosts = cluster(&[&[(G, G)], &[(G, G)]]);
        for (policy, size, word) in [
            (policy(4, 1), G, "failures_to_tolerate"),
            (policy(1, 0), G, "stripe_width"),
            (policy(1, 13), G, "stripe_width"),
            (policy(1, 1), 0, "size"),
            (policy(1, 1), 1000, "size"),
            (policy(1, 1), OBJECT_MAX + 4096, "size"),
        ] {
            let refusal = place(&hosts, &policy, size, None, 1).unwrap_err();
            assert!(refusal.to_string().contains(word), "{refusal}");
        }
    }

    /// The worst that can come: every leg with members away and one being built.
    #[test]
    fn the_longest_record_of_the_largest_object_is_a_value_of_the_directory() {
        use atoll_format::record::{VALUE_MAX, encode};
        let seq = Seq(atoll_format::units::SEQ_MAX);
        let member = |state| MemberRecord {
            component: ComponentId(u64::MAX),
            host: HostId(u64::MAX),
            group: GroupId(u64::MAX),
            state,
        };
        let absent = MemberState::Absent { since: seq, at_ms: 10_000_000_000_000, lost: true };
        let mut most = 0;
        // Names are shorter, and have nothing that is written as six bytes.
        let name = "\u{1}".repeat(255);
        for ftt in 0..=3 {
            for width in 1..=STRIPE_WIDTH_MAX {
                let policy =
                    Policy { iops_limit: u32::MAX, reserve_percent: 100, ..policy(ftt, width) };
                let mut members = vec![member(MemberState::Active)];
                members.extend(vec![member(absent); ftt.into()]);
                members.push(member(MemberState::Resyncing { from: seq }));
                let mut record = blank(&policy, OBJECT_MAX, legs_needed(&policy, OBJECT_MAX));
                record.legs.iter_mut().for_each(|leg| leg.members.clone_from(&members));
                record.name.clone_from(&name);
                most = most.max(encode(&record).len());
            }
        }
        assert!(VALUE_MAX / 2 < most && most <= VALUE_MAX, "{most}");
    }

    #[test]
    fn the_largest_object_is_placed_where_a_fraction_of_it_exists() {
        let hosts = cluster(&[[(2 << 40, 2 << 40)].as_slice(); 3]);
        for (ftt, legs) in [(1, 249), (2, 249)] {
            let plan =
                place(&hosts, &policy(ftt, 1), OBJECT_MAX, Some(HostId(2)), 1).expect("thin");
            assert_eq!((plan.legs.len(), plan.policy), (legs, policy(ftt, 1)));
            assert!(plan.legs.iter().all(|leg| leg.members[0].0 == HostId(2)));
        }
    }

    #[test]
    fn the_using_host_holds_a_member_of_every_leg_while_it_can() {
        let hosts = cluster(&[&[(90 * G, 90 * G)], &[(40 * G, 20 * G)], &[(90 * G, 90 * G)]]);
        for seed in 0..50 {
            let legs = place(&hosts, &policy(1, 4), 16 * G, Some(HostId(2)), seed).unwrap().legs;
            assert!(legs.iter().all(|l| l.members[0].0 == HostId(2)));
        }
        // No room for all: the rest goes elsewhere.
        let legs = place(&hosts, &policy(1, 8), 60 * G, Some(HostId(2)), 1).unwrap().legs;
        let near = legs.iter().filter(|l| l.members[0].0 == HostId(2)).count();
        assert!((1..8).contains(&near), "{near}");
        // And a host that cannot is no reason to refuse.
        let mut hosts = hosts;
        hosts[1].alive = false;
        assert!(place(&hosts, &policy(1, 1), G, Some(HostId(2)), 1).is_ok());
    }

    #[test]
    fn room_to_rebuild_is_kept_while_possible_and_missed_with_a_warning() {
        // 60 used on each of three; a loss needs 30 free on each of the other two.
        let full = [(200 * G, 140 * G)].as_slice();
        let mut hosts = cluster(&[full, full, full, &[(200 * G, 40 * G)]]);
        // host4 is the fullest (160): others keep 160 * 200 / 600 = 53 each.
        for seed in 0..20 {
            let legs = place(&hosts, &policy(1, 1), 30 * G, None, seed).unwrap().legs;
            assert!(legs[0].members.iter().all(|m| m.0 != HostId(4)), "it has nothing to spare");
        }
        assert_eq!(warnings(&hosts, &policy(1, 1)), []);
        for host in &mut hosts {
            host.groups[0].free_bytes = 40 * G;
        }
        assert!(place(&hosts, &policy(1, 1), 30 * G, None, 1).is_ok(), "a warning, no refusal");
        let warned = warnings(&hosts, &policy(1, 1));
        assert_eq!(
            warned,
            [Warning::NoRebuildRoom {
                domain: "host1".into(),
                used_bytes: 160 * G,
                free_bytes: 120 * G
            }]
        );
        assert!(warned[0].to_string().contains("free or add 40.0 GiB"));
        let two = cluster(&[&[(9 * G, 9 * G)], &[(9 * G, 9 * G)]]);
        assert_eq!(
            warnings(&two, &policy(1, 1)),
            [Warning::NoSpareDomain { domains: 2, needed: 2 }]
        );
    }

    #[test]
    fn warnings_begin_where_a_loss_can_no_longer_be_made_good() {
        let other = [(60 * G, 40 * G)].as_slice();
        let mut hosts = cluster(&[&[(200 * G, 80 * G)], other, other, other]);
        assert_eq!(warnings(&hosts, &policy(1, 1)), [], "what host1 has just fits elsewhere");
        hosts[0].groups[0].free_bytes -= 1;
        let warned = warnings(&hosts, &policy(1, 1));
        let (used_bytes, free_bytes) = (120 * G + 1, 120 * G);
        assert_eq!(
            warned,
            [Warning::NoRebuildRoom { domain: "host1".into(), used_bytes, free_bytes }]
        );
        // Four places for three copies leave one to spare; for four, none.
        hosts[0].groups[0].free_bytes += 1;
        assert_eq!(warnings(&hosts, &policy(2, 1)), []);
        assert_eq!(
            warnings(&hosts, &policy(3, 1)),
            [Warning::NoSpareDomain { domains: 4, needed: 4 }]
        );
        // One host alone, and volumes that are kept once, are as safe as they can be.
        let alone = cluster(&[&[(9 * G, G)]]);
        assert_eq!(warnings(&alone, &policy(0, 1)), []);
        assert_eq!(warnings(&hosts[..2], &policy(0, 1)).len(), 1, "no room for what host1 has");
    }

    #[test]
    fn many_volumes_fill_all_groups_alike() {
        let mut hosts = cluster(&[
            &[(1000 * G, 1000 * G)],
            &[(1000 * G, 1000 * G)],
            &[(2000 * G, 2000 * G)],
            &[(1000 * G, 1000 * G), (1000 * G, 1000 * G)],
            &[(4000 * G, 4000 * G)],
        ]);
        for seed in 0..400 {
            let size = [2 * G, 10 * G, 20 * G][seed as usize % 3];
            let prefer = None;
            let plan = place(&hosts, &policy(1, 1 + seed as u8 % 3), size, prefer, seed).unwrap();
            for leg in plan.legs {
                for (_, group) in leg.members {
                    let groups = hosts.iter_mut().flat_map(|h| &mut h.groups);
                    let group = groups.into_iter().find(|g| g.id == group).unwrap();
                    group.free_bytes -= leg.bytes;
                }
            }
        }
        let fill: Vec<f64> = hosts
            .iter()
            .flat_map(|h| &h.groups)
            .map(|g| 1.0 - g.free_bytes as f64 / g.capacity_bytes as f64)
            .collect();
        let mean = fill.iter().sum::<f64>() / fill.len() as f64;
        assert!(mean > 0.7, "{mean}");
        for f in &fill {
            assert!((f - mean).abs() < 0.1, "{fill:?}");
        }
    }

    #[test]
    fn a_striped_volume_uses_every_group_in_turn() {
        let hosts = cluster(&[[(90 * G, 90 * G); 2].as_slice(); 3]);
        let legs = place(&hosts, &policy(1, 12), 24 * G, None, 7).unwrap().legs;
        let mut per_group: BTreeMap<GroupId, u32> = BTreeMap::new();
        for (_, group) in legs.iter().flat_map(|l| &l.members) {
            *per_group.entry(*group).or_default() += 1;
        }
        assert_eq!(per_group.len(), 6);
        assert!(per_group.values().all(|n| (3..=5).contains(n)), "{per_group:?}");
    }

    #[test]
    fn the_largest_object_on_the_largest_cluster_is_placed() {
        let groups: [(u64, u64); 4] = [(3 << 40, 3 << 40); 4];
        let hosts = cluster(&[groups.as_slice(); 64]);
        let legs = place(&hosts, &policy(1, 1), OBJECT_MAX, Some(HostId(5)), 9).unwrap().legs;
        assert_eq!(legs.len(), legs_needed(&policy(1, 1), OBJECT_MAX));
        assert!(legs.iter().all(|l| l.bytes <= COMPONENT_MAX));
        let total: u64 = legs.iter().map(|l| l.bytes).sum();
        assert_eq!(total, OBJECT_MAX);
    }

    #[test]
    fn a_replacement_avoids_the_other_members_and_the_old_place() {
        let mut hosts = cluster(&[
            &[(90 * G, 50 * G)],
            &[(90 * G, 90 * G), (90 * G, 10 * G)],
            &[(90 * G, 2 * G)],
        ]);
        let place_at = |host, group| (HostId(host), GroupId(group));
        let legs = [LegPlacement { members: vec![place_at(1, 10), place_at(2, 20)], bytes: 8 * G }];
        let record = object_on(&policy(1, 1), 8 * G, &legs);
        let gone = record.legs[0].members[1].component;
        let unknown = |_| None;
        // The other group of the same host is a new place.
        assert_eq!(replacement(&hosts, &record, 0, gone, unknown), Ok(place_at(2, 21)));
        hosts[2].groups[0].free_bytes = 80 * G;
        hosts[1].alive = false;
        assert_eq!(replacement(&hosts, &record, 0, gone, unknown), Ok(place_at(3, 30)));
        hosts[2].groups[0].free_bytes = 2 * G;
        let refusal = replacement(&hosts, &record, 0, gone, unknown).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "policy needs 1 fault domain with 8.0 GiB free, 0 have it and 6.0 GiB are missing: \
             host1 is in fault domain host1, which holds another copy, host2 is down, host3 has \
             2.0 GiB free in one disk group of the 8.0 GiB needed; bring back host2, or free or \
             add 6.0 GiB, or add a host"
        );
        // What the copy that stays uses is enough; what is gone says nothing.
        let stays = record.legs[0].members[0].component;
        let uses = |bytes| move |component| Some(if component == stays { bytes } else { 9 * G });
        assert_eq!(replacement(&hosts, &record, 0, gone, uses(2 * G)), Ok(place_at(3, 30)));
        assert_eq!(replacement(&hosts, &record, 0, gone, uses(0)), Ok(place_at(3, 30)));
        let refusal = replacement(&hosts, &record, 0, gone, uses(2 * G + CHUNK)).unwrap_err();
        assert!(refusal.remedies.contains(&Remedy::AddBytes(CHUNK)), "{refusal}");
        // And yet it goes to where all of it has room, if there is such a place.
        hosts[1].alive = true;
        hosts[1].groups[1].free_bytes = 8 * G;
        hosts[2].groups[0].free_bytes = 8 * G - CHUNK;
        hosts[1].groups[1].unwritten_bytes = 80 * G;
        assert_eq!(replacement(&hosts, &record, 0, gone, uses(0)), Ok(place_at(2, 21)));
        hosts[1].groups[1].free_bytes = 7 * G;
        assert_eq!(replacement(&hosts, &record, 0, gone, uses(0)), Ok(place_at(3, 30)));
        hosts.truncate(2);
        hosts[1].alive = false;
        let refusal = replacement(&hosts, &record, 0, gone, unknown).unwrap_err();
        assert_eq!(refusal.rule, Rule::Domains { needed: 1, usable: 0 });
    }

    #[test]
    fn an_explanation_names_the_reason_and_what_is_wrong() {
        let mut hosts = cluster(&[
            &[(90 * G, 50 * G)],
            &[(90 * G, 60 * G)],
            &[(90 * G, 70 * G)],
            &[(90 * G, 10 * G)],
        ]);
        let at = |host: u64| (HostId(host), GroupId(host * 10));
        let legs = [
            LegPlacement { members: vec![at(1), at(3)], bytes: 4 * G },
            LegPlacement { members: vec![at(2), at(4)], bytes: 4 * G },
        ];
        let mut record = object_on(&policy(1, 2), 8 * G, &legs);
        record.owner = Some(OwnerRecord { host: HostId(1), shard: 0, incarnation: Incarnation(1) });
        let told = explain(&record, &hosts);
        let why = |leg: usize, member: usize| told.legs[leg].members[member].why;
        assert_eq!(why(0, 0), Why::Near);
        assert_eq!(why(0, 1), Why::MostFree { free_bytes: 70 * G, of: 3 });
        assert_eq!(why(1, 1), Why::Share { free_bytes: 10 * G, of_bytes: 130 * G });
        assert!(told.legs.iter().all(|l| l.violations.is_empty() && l.bytes == 4 * G));
        let lines = told.sentences();
        assert_eq!(
            lines[0],
            "leg 0: component 0000000000000065 is on host1 (fault domain host1, disk group \
             000000000000000a): same host as the owner"
        );

        // Two members in one domain, one of them on a host that is down; an unknown host.
        hosts[2].fault_domain = "host1".into();
        hosts[2].alive = false;
        hosts.remove(1);
        record.legs[0].members[1].state =
            MemberState::Absent { since: Seq(4), at_ms: 1, lost: false };
        let told = explain(&record, &hosts);
        let leg = &told.legs[0];
        let both = leg.members.iter().map(|m| m.component).collect();
        assert_eq!(
            leg.violations,
            [
                Violation::SharedDomain { domain: "host1".into(), components: both },
                Violation::Degraded { active: 1, wanted: 2 }
            ]
        );
        assert_eq!(leg.members[1].trouble, Some(Reason::Down));
        assert_eq!(told.legs[1].members[0].why, Why::Past);
        assert_eq!(told.legs[1].members[0].host_name, HostId(2).to_string());
        let text = told.sentences().join("\n");
        assert!(text.contains("the host is down") && text.contains("1 of 2 copies is active"));

        let two = cluster(&[&[(9 * G, 9 * G)], &[(9 * G, 9 * G)]]);
        let legs = [LegPlacement { members: vec![at(1), at(2)], bytes: G }];
        let told = explain(&object_on(&policy(1, 1), G, &legs), &two);
        assert_eq!(told.legs[0].members[1].why, Why::OnlyDomainLeft);
        assert_eq!(told.warnings, [Warning::NoSpareDomain { domains: 2, needed: 2 }]);
    }

    /// Whether there is any placement: every way to choose, without any order or bound.
    fn possible(hosts: &[HostView], legs: &[Need], copies: usize) -> bool {
        fn choose(
            groups: &[(&String, u64)],
            free: &mut Vec<(u64, u32)>,
            legs: &[Need],
            copies: usize,
            members: &mut Vec<usize>,
        ) -> bool {
            let Some((&need, rest)) = legs.split_first() else { return true };
            if members.len() == copies {
                return choose(groups, free, rest, copies, &mut Vec::new());
            }
            for g in members.last().map_or(0, |l| l + 1)..groups.len() {
                let (room, entries) = free[g];
                let is_near = members.iter().any(|&m| groups[m].0 == groups[g].0);
                if room < need.free || groups[g].1 < need.bytes || entries == 0 || is_near {
                    continue;
                }
                free[g] = (room - need.free, entries - 1);
                members.push(g);
                let found = choose(groups, free, legs, copies, members);
                members.pop();
                free[g] = (room, entries);
                if found {
                    return true;
                }
            }
            false
        }
        type Groups<'a> = Vec<(&'a String, u64)>;
        let (groups, mut free): (Groups<'_>, Vec<(u64, u32)>) = hosts
            .iter()
            .filter(|h| h.alive)
            .flat_map(|h| h.groups.iter().map(|g| (&h.fault_domain, g)))
            .filter(|(_, g)| g.healthy)
            .map(|(domain, g)| ((domain, g.device_bytes), (g.free_bytes, g.free_components)))
            .unzip();
        choose(&groups, &mut free, legs, copies, &mut Vec::new())
    }

    fn hosts() -> impl Strategy<Value = Vec<HostView>> {
        let entries = prop_oneof![0u32..4, Just(u32::MAX)];
        let group = (0u64..6, 0u64..3, 0u8..10, entries);
        let host = (0u8..4, 0u8..12, proptest::collection::vec(group, 0..3));
        proptest::collection::vec(host, 1..5).prop_map(|hosts| {
            type Drawn = (u8, u8, Vec<(u64, u64, u8, u32)>);
            let view = |(i, (domain, state, groups)): (usize, Drawn)| {
                let group = |(g, (free, used, health, entries))| GroupView {
                    id: GroupId(i as u64 * 10 + g as u64),
                    healthy: health > 0,
                    capacity_bytes: (free + used) * CHUNK,
                    device_bytes: (free + used) * CHUNK,
                    free_bytes: free * CHUNK,
                    unwritten_bytes: free * used * CHUNK,
                    free_components: entries,
                    shard: 0,
                };
                HostView {
                    id: HostId(i as u64),
                    name: format!("host{i}"),
                    fault_domain: format!("rack{domain}"),
                    alive: state != 0,
                    incarnation: Incarnation(1),
                    groups: groups.into_iter().enumerate().map(group).collect(),
                }
            };
            hosts.into_iter().enumerate().map(view).collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn a_placement_keeps_the_rules_and_a_refusal_means_there_is_none(
            hosts in hosts(),
            ftt in 0u8..3,
            width in 1u8..4,
            chunks in 1u64..8,
            prefer in proptest::option::of(0u64..4),
            seed in 0u64..,
        ) {
            let policy = policy(ftt, width);
            let size = chunks * CHUNK;
            let placed = place(&hosts, &policy, size, prefer.map(HostId), seed);
            let copies = policy.members();
            let can = |policy: &Policy, needs: fn(&Policy, u64) -> Vec<Need>| {
                possible(&hosts, &needs(policy, size), copies)
            };
            match &placed {
                Ok(Plan { policy: spread, legs: placed }) => {
                    // In full if any placement is; with as few legs as do.
                    let same = spreads(&policy, size);
                    let full = same.iter().find(|policy| can(policy, full_needs));
                    let thin = same.iter().find(|policy| can(policy, thin_needs));
                    prop_assert_eq!(Some(spread), full.or(thin));
                    let needs = if full.is_some() { full_needs } else { thin_needs };
                    let needs = needs(spread, size);
                    let mut free: BTreeMap<GroupId, (u64, u32)> = BTreeMap::new();
                    prop_assert_eq!(placed.len(), needs.len());
                    for (leg, need) in placed.iter().zip(&needs) {
                        prop_assert_eq!(leg.bytes, need.bytes);
                        prop_assert_eq!(leg.members.len(), copies);
                        let mut domains = BTreeSet::new();
                        for &(host, group) in &leg.members {
                            let host = hosts.iter().find(|h| h.id == host).expect("known");
                            let group = host.groups.iter().find(|g| g.id == group).expect("there");
                            prop_assert!(host.alive && group.healthy);
                            prop_assert!(domains.insert(&host.fault_domain), "two in a domain");
                            prop_assert!(group.device_bytes >= need.bytes, "a small device");
                            let all = (group.free_bytes, group.free_components);
                            let (room, entries) = free.entry(group.id).or_insert(all);
                            prop_assert!(*room >= need.free && *entries > 0, "no room");
                            (*room, *entries) = (*room - need.free, *entries - 1);
                        }
                    }
                }
                Err(refusal) => {
                    let any = spreads(&policy, size).iter().any(|policy| can(policy, thin_needs));
                    prop_assert!(!any, "{}", refusal);
                    prop_assert!(!refusal.to_string().is_empty());
                    for remedy in &refusal.remedies {
                        let Remedy::Tolerate(failures_to_tolerate) = *remedy else { continue };
                        let tried = Policy { failures_to_tolerate, ..policy.clone() };
                        prop_assert!(place(&hosts, &tried, size, None, 0).is_ok(), "{}", remedy);
                    }
                }
            }
            let mut shuffled = hosts.clone();
            shuffled.reverse();
            let again = place(&shuffled, &policy, size, prefer.map(HostId), seed);
            prop_assert_eq!(again, placed, "the order of the inventory decides nothing");
        }

        #[test]
        fn a_replacement_keeps_the_rules_and_a_refusal_means_there_is_none(
            hosts in hosts(),
            chunks in 1u64..6,
            used in proptest::option::of(0u64..6),
            seed in 0u64..,
            which in 0usize..2,
        ) {
            let policy = policy(1, 1);
            let everywhere: Vec<HostView> = hosts
                .iter()
                .map(|h| HostView {
                    alive: true,
                    groups: h
                        .groups
                        .iter()
                        .map(|g| GroupView { healthy: true, ..g.clone() })
                        .collect(),
                    ..h.clone()
                })
                .collect();
            // Made when all was well, repaired when it is not.
            let Ok(plan) = place(&everywhere, &policy, chunks * CHUNK, None, seed) else {
                return Ok(());
            };
            let record = object_on(&plan.policy, chunks * CHUNK, &plan.legs);
            let bytes = plan.legs[0].bytes;
            let need = used.map_or(bytes, |chunks| (chunks * CHUNK).clamp(CHUNK, bytes));
            let gone = record.legs[0].members[which];
            let stays = record.legs[0].members[1 - which];
            let domain = |id: HostId| {
                &hosts.iter().find(|h| h.id == id).expect("known").fault_domain
            };
            let fits = |host: &HostView, g: &GroupView| {
                host.alive && g.healthy && g.id != gone.group
                    && g.device_bytes >= need && g.room() >= need
                    && &host.fault_domain != domain(stays.host)
            };
            let used = |component| {
                used.map(|chunks| if component == stays.component { chunks * CHUNK } else { bytes })
            };
            match replacement(&hosts, &record, 0, gone.component, used) {
                Ok((host, group)) => {
                    let host = hosts.iter().find(|h| h.id == host).expect("known");
                    let group = host.groups.iter().find(|g| g.id == group).expect("there");
                    prop_assert!(fits(host, group));
                }
                Err(refusal) => {
                    let any = hosts.iter().any(|h| h.groups.iter().any(|g| fits(h, g)));
                    prop_assert!(!any, "{}", refusal);
                    prop_assert_eq!(refusal.excluded.len(), hosts.len(), "every host has a reason");
                }
            }
        }
    }
}

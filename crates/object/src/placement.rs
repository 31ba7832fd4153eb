//! Placement (being written).
use atoll_format::id::*; use atoll_format::record::*;
#[derive(Clone, Debug, PartialEq)] pub struct GroupView { pub id: GroupId, pub healthy: bool, pub capacity_bytes: u64, pub free_bytes: u64 }
#[derive(Clone, Debug, PartialEq)] pub struct HostView { pub id: HostId, pub name: String, pub fault_domain: String, pub alive: bool, pub maintenance: bool, pub groups: Vec<GroupView> }
#[derive(Clone, Debug, PartialEq)] pub struct Refusal(pub String);
impl std::fmt::Display for Refusal { fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { write!(f, "{}", self.0) } }
#[derive(Clone, Debug, PartialEq)] pub struct Explanation;
pub struct LegPlacement { pub members: Vec<(HostId, GroupId)> }
pub fn place(_: &[HostView], _: &Policy, _: u64, _: Option<HostId>, _: u64) -> Result<Vec<LegPlacement>, Refusal> { Err(Refusal("x".into())) }
pub fn explain(_: &ObjectRecord, _: &[HostView]) -> Explanation { Explanation }
pub fn replacement(_: &[HostView], _: &ObjectRecord, _: usize, _: ComponentId) -> Result<(HostId, GroupId), Refusal> { Err(Refusal("x".into())) }

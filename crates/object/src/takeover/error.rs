//! Why there is no owner here.

use crate::ctx::{Ctx, Protocol};
use atoll_format::record::ObjectRecord;
use atoll_world::World;
use std::rc::Rc;

/// Why there is no owner here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum TakeoverError {
    /// There is no such object, or it is being deleted.
    Gone,
    /// Another host was faster.
    Lost,
    /// Not now: try again. A sentence for people.
    NotNow(String),
}

/// No active copy of that leg can be reached.
pub(super) fn inaccessible<W: World, P: Protocol>(
    ctx: &Rc<Ctx<W, P>>,
    record: &ObjectRecord,
    leg: usize,
) -> TakeoverError {
    let active = record.legs[leg].members.iter().filter(|m| m.state.is_active());
    let hosts: Vec<String> = active.map(|m| ctx.host_name(m.host)).collect();
    TakeoverError::NotNow(format!(
        "no active copy of leg {leg} can be reached; it is on {}",
        hosts.join(", ")
    ))
}

//! The table of routes: the server is built from it, the OpenAPI document is made from it, clients
//! take paths, methods and the kinds of answers from it, and tests walk it. A route that is not
//! here does not exist.

use crate::uri::escape;

/// What a route does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[allow(missing_docs, reason = "each is described by its line of ROUTES")]
pub enum Op {
    StatusShow,
    ClusterShow,
    ClusterPatch,
    HealthShow,
    HostList,
    HostShow,
    DiskList,
    DiskWipe,
    GroupList,
    GroupShow,
    GroupCreate,
    PolicyList,
    PolicyShow,
    PolicyCreate,
    PolicyDelete,
    PolicyCheck,
    VolumeList,
    VolumeShow,
    VolumeCreate,
    VolumePatch,
    VolumeResize,
    VolumeDelete,
    VolumeLock,
    VolumeUnlock,
    VolumePlacement,
    ResyncShow,
    ResyncPatch,
    ScrubList,
    ScrubStart,
    ScrubStop,
    TaskList,
    TaskShow,
    EventList,
    SessionList,
    ProfileList,
}

/// How a route answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reply {
    /// One thing, in an `Item` envelope.
    Item(&'static str),
    /// A page of things, in a `List` envelope.
    List(&'static str),
    /// Nothing (204).
    Nothing,
}

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// What it does.
    pub op: Op,
    /// HTTP method.
    pub method: &'static str,
    /// Below [`PREFIX`]; `{x}` stands for one segment; a verb follows a colon.
    pub path: &'static str,
    /// One line for the reader of the document.
    pub summary: &'static str,
    /// Name of the body's type.
    pub body: Option<&'static str>,
    /// How it answers.
    pub reply: Reply,
    /// Query parameters besides `limit` and `cursor` (lists) and `dry_run` (changes).
    pub query: &'static [&'static str],
}

impl Op {
    /// Its line of the table.
    pub fn route(self) -> &'static Route {
        ROUTES.iter().find(|route| route.op == self).expect("every operation has a route")
    }
}

/// What every route of the table begins with.
pub const PREFIX: &str = "/api/v1";

/// Query parameters, with their meaning.
pub const QUERY: &[(&str, &str, &str)] = &[
    ("limit", "integer", "Items of one page, 1 to 1000"),
    ("cursor", "string", "`next_cursor` of the page before; of events, any `position` too"),
    ("dry_run", "boolean", "Check everything, change nothing"),
    ("force", "boolean", "Also if a host that does not answer may use it"),
    ("scope", "string", "`cluster` (default), or `local`: only what the answering host knows"),
    ("follow", "boolean", "Go on with new events as server-sent events"),
    ("since", "integer", "Only events with a higher id; of a followed stream, at its start"),
    ("group", "string", "Only this disk group"),
    ("volume", "string", "Only this volume"),
    ("token", "string", "The lock's `token`"),
];

const fn get(op: Op, path: &'static str, reply: Reply, summary: &'static str) -> Route {
    Route { op, method: "GET", path, summary, body: None, reply, query: &[] }
}

const fn change(
    op: Op,
    method: &'static str,
    path: &'static str,
    body: Option<&'static str>,
    reply: Reply,
    summary: &'static str,
) -> Route {
    Route { op, method, path, summary, body, reply, query: &[] }
}

impl Route {
    const fn query(mut self, query: &'static [&'static str]) -> Self {
        self.query = query;
        self
    }

    /// Whether it changes something (and so knows `dry_run`).
    pub fn is_change(&self) -> bool {
        self.method != "GET"
    }

    /// Every query parameter that it knows.
    pub fn parameters(&self) -> impl Iterator<Item = &'static str> + use<> {
        let list: &[&str] = if matches!(self.reply, List(_)) { &["limit", "cursor"] } else { &[] };
        let dry: &[&str] = if self.is_change() { &["dry_run"] } else { &[] };
        list.iter().chain(dry).chain(self.query).copied()
    }

    /// Its path with [`PREFIX`], `names` in the places of its `{x}`, escaped.
    ///
    /// # Panics
    /// The path has another number of them.
    pub fn target(&self, names: &[&str]) -> String {
        let mut target = String::from(PREFIX);
        let mut names_left = names.iter();
        for part in self.path.split_inclusive('}') {
            let (before, place) = part.split_once('{').unwrap_or((part, ""));
            target += before;
            if !place.is_empty() {
                target += &escape(names_left.next().expect("a name for each place"));
            }
        }
        assert!(names_left.next().is_none(), "{names:?} in {}", self.path);
        target
    }

    /// Names of the `{x}` in its path, in order.
    pub fn path_parameters(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.path.split('{').skip(1).filter_map(|part| part.split('}').next())
    }
}

use Reply::{Item, List, Nothing};

/// Every route below [`PREFIX`].
pub const ROUTES: &[Route] = &[
    get(Op::StatusShow, "/status", Item("Status"), "Health, space, load and resync at a glance")
        .query(&["scope"]),
    get(Op::ClusterShow, "/cluster", Item("Cluster"), "The cluster and its settings"),
    change(
        Op::ClusterPatch,
        "PATCH",
        "/cluster",
        Some("ClusterPatch"),
        Item("Cluster"),
        "Change the settings of the cluster",
    ),
    get(Op::HealthShow, "/health", Item("Health"), "Every check that did not pass")
        .query(&["scope"]),
    get(Op::HostList, "/hosts", List("Host"), "Hosts").query(&["scope"]),
    get(Op::HostShow, "/hosts/{host}", Item("Host"), "One host"),
    get(Op::DiskList, "/hosts/{host}/disks", List("Disk"), "Disks a host is configured to use"),
    change(
        Op::DiskWipe,
        "POST",
        "/hosts/{host}/disks:wipe",
        Some("DiskWipeRequest"),
        Item("DiskWipe"),
        "Erase what a disk holds; a disk of a running group is refused",
    ),
    get(Op::GroupList, "/groups", List("Group"), "Disk groups").query(&["scope"]),
    get(Op::GroupShow, "/groups/{group}", Item("Group"), "One disk group"),
    change(
        Op::GroupCreate,
        "POST",
        "/groups",
        Some("GroupCreate"),
        Item("Group"),
        "Label empty disks and start a disk group on them",
    ),
    get(Op::PolicyList, "/policies", List("Policy"), "Storage policies"),
    get(Op::PolicyShow, "/policies/{policy}", Item("Policy"), "One storage policy"),
    change(
        Op::PolicyCreate,
        "POST",
        "/policies",
        Some("Policy"),
        Item("Policy"),
        "Create a storage policy",
    ),
    change(
        Op::PolicyDelete,
        "DELETE",
        "/policies/{policy}",
        None,
        Nothing,
        "Delete a storage policy that no volume uses",
    ),
    change(
        Op::PolicyCheck,
        "POST",
        "/policies/{policy}:check",
        Some("PolicyCheckRequest"),
        Item("PolicyCheck"),
        "Whether a volume of that size could be placed now, and why not",
    ),
    get(Op::VolumeList, "/volumes", List("Volume"), "Volumes").query(&["scope"]),
    get(Op::VolumeShow, "/volumes/{volume}", Item("Volume"), "One volume"),
    change(
        Op::VolumeCreate,
        "POST",
        "/volumes",
        Some("VolumeCreate"),
        Item("Volume"),
        "Create a thin volume; repeatable with `Idempotency-Key`",
    ),
    change(
        Op::VolumePatch,
        "PATCH",
        "/volumes/{volume}",
        Some("VolumePatch"),
        Item("Volume"),
        "Change a volume; `If-Match` refuses when it has changed",
    ),
    change(
        Op::VolumeResize,
        "POST",
        "/volumes/{volume}:resize",
        Some("VolumeResize"),
        Item("Volume"),
        "Grow a volume, or shrink one that nobody uses",
    ),
    change(
        Op::VolumeDelete,
        "DELETE",
        "/volumes/{volume}",
        None,
        Nothing,
        "Delete a volume that nobody uses; `If-Match` refuses when it has changed",
    )
    .query(&["force"]),
    change(
        Op::VolumeLock,
        "POST",
        "/volumes/{volume}/lock",
        Some("VolumeLockRequest"),
        Item("VolumeLock"),
        "Empty a volume that nobody uses, and have it to oneself for an import",
    ),
    change(Op::VolumeUnlock, "DELETE", "/volumes/{volume}/lock", None, Nothing, "Give a lock back")
        .query(&["token"]),
    get(
        Op::VolumePlacement,
        "/volumes/{volume}/placement",
        Item("Placement"),
        "Where a volume is, and why",
    ),
    get(Op::ResyncShow, "/resync", Item("Resync"), "What is being brought up to date")
        .query(&["scope"]),
    change(
        Op::ResyncPatch,
        "PATCH",
        "/resync",
        Some("ResyncPatch"),
        Item("Resync"),
        "Pause, resume or limit resync",
    ),
    get(Op::ScrubList, "/scrubs", List("Scrub"), "Scrubs of all disk groups").query(&["scope"]),
    change(
        Op::ScrubStart,
        "POST",
        "/scrubs",
        Some("ScrubStart"),
        List("Scrub"),
        "Verify checksums in the background",
    )
    .query(&["scope"]),
    change(Op::ScrubStop, "DELETE", "/scrubs", None, List("Scrub"), "Stop scrubs")
        .query(&["scope", "group"]),
    get(Op::TaskList, "/tasks", List("Task"), "Work that outlasts its request").query(&["scope"]),
    get(Op::TaskShow, "/tasks/{task}", Item("Task"), "One task"),
    get(Op::EventList, "/events", List("Event"), "What has happened, the oldest first")
        .query(&["scope", "follow", "since"]),
    get(Op::SessionList, "/sessions", List("Session"), "Clients of volumes")
        .query(&["scope", "volume"]),
    get(Op::ProfileList, "/profiles", List("Profile"), "How long the stages of I/O took, by host")
        .query(&["scope"]),
];

#[cfg(test)]
mod tests {
    use super::{Op, QUERY, ROUTES};
    use std::collections::BTreeSet;

    #[test]
    fn names_take_their_places_in_a_path_escaped() {
        assert_eq!(Op::StatusShow.route().target(&[]), "/api/v1/status");
        assert_eq!(Op::DiskWipe.route().target(&["a/b"]), "/api/v1/hosts/a%2Fb/disks:wipe");
        assert_eq!(Op::VolumeLock.route().target(&["v"]), "/api/v1/volumes/v/lock");
        for route in ROUTES {
            let names = vec!["x"; route.path_parameters().count()];
            let target = route.target(&names);
            assert!(target.starts_with("/api/v1/") && !target.contains(['{', '}']), "{target}");
            assert_eq!(route.op.route().path, route.path);
        }
    }

    #[test]
    #[should_panic(expected = "a name for each place")]
    fn a_path_without_a_name_is_none() {
        Op::HostShow.route().target(&[]);
    }

    #[test]
    fn every_operation_has_one_route_and_every_route_known_parameters() {
        let ops: BTreeSet<Op> = ROUTES.iter().map(|r| r.op).collect();
        assert_eq!(ops.len(), ROUTES.len());
        assert_eq!(ops.len(), Op::ProfileList as usize + 1, "the last variant of Op is counted");
        let places: BTreeSet<_> = ROUTES.iter().map(|r| (r.method, r.path)).collect();
        assert_eq!(places.len(), ROUTES.len());
        for route in ROUTES {
            for name in route.parameters() {
                assert!(QUERY.iter().any(|(known, ..)| *known == name), "{name}");
            }
            assert!(!route.summary.ends_with('.') && route.path.starts_with('/'));
        }
    }
}

//! The table of operations, the only place that says what each is: its route and types, who may
//! ask for it, which host does it, and whether a task goes on after its answer. The server routes,
//! authorises and forwards by it, the OpenAPI document is made from it, clients take paths, methods
//! and the kinds of answers from it, and tests walk it. An operation that is not here does not
//! exist; one without a handler does not compile.

use crate::uri::escape;

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

/// What who asks must be allowed to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Permission {
    /// Look: whoever reaches the interface over TCP may, and whoever may open its Unix socket.
    Read,
    /// Change, and look: whoever may open the Unix socket; over TCP only if the configuration says
    /// so.
    Manage,
}

impl Permission {
    /// Its name, stable.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Manage => "manage",
        }
    }
}

/// Which host does what is asked for, whichever host is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Any: all do the same, for it is about what the directory has.
    Any,
    /// The one that is asked: it is about that host.
    Asked,
    /// The one that the request names by that part of its path or field of its body; the one that
    /// is asked where it names none.
    Named(&'static str),
    /// The one with the disk group that the request names by that query parameter or field of its
    /// body; all where it names none.
    Holder(&'static str),
    /// All: each tells its part of the answer, or makes its part of the change.
    All,
}

impl Place {
    /// Its name, stable.
    pub fn name(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::Asked => "asked",
            Self::Named(_) => "named",
            Self::Holder(_) => "holder",
            Self::All => "all",
        }
    }
}

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// HTTP method.
    pub method: &'static str,
    /// Below [`PREFIX`]; `{x}` stands for one segment; a verb follows a colon.
    pub path: &'static str,
    /// One line for the reader of the document.
    pub summary: &'static str,
    /// Who may.
    pub permission: Permission,
    /// Which host does it.
    pub place: Place,
    /// Name of the body's type.
    pub body: Option<&'static str>,
    /// How it answers.
    pub reply: Reply,
    /// The kind of the tasks that it begins, which go on after its answer.
    pub task: Option<&'static str>,
    /// Query parameters besides `limit` and `cursor` (lists) and `dry_run` (changes).
    pub query: &'static [&'static str],
    /// Request headers with a meaning of their own, each with that meaning.
    pub headers: &'static [(&'static str, &'static str)],
}

/// What every route of the table begins with.
pub const PREFIX: &str = "/api/v1";

/// Query parameters, with their meaning.
pub const QUERY: &[(&str, &str, &str)] = &[
    ("limit", "integer", "Items of one page, 1 to 1000"),
    ("cursor", "string", "`next_cursor` of the page before; of events, any `position` too"),
    ("dry_run", "boolean", "Check everything, change nothing"),
    ("force", "boolean", "Also if a host that does not answer may use it"),
    ("lost", "boolean", "It will not come back: give up what it holds"),
    ("scope", "string", "`cluster` (default), or `local`: only what the answering host knows"),
    ("follow", "boolean", "Go on with new events as server-sent events"),
    ("since", "integer", "Only events with a higher id; of a followed stream, at its start"),
    ("group", "string", "Only this disk group"),
    ("volume", "string", "Only this volume"),
    ("token", "string", "The lock's `token`"),
];

const IF_MATCH: (&str, &str) = ("If-Match", "`ETag` that the volume must still have");
const IDEMPOTENCY_KEY: (&str, &str) =
    ("Idempotency-Key", "The same key and body again give the same answer");

const fn read(path: &'static str, place: Place, reply: Reply, summary: &'static str) -> Route {
    let (method, permission) = ("GET", Permission::Read);
    let (body, task, query, headers): (_, _, &[_], &[_]) = (None, None, &[], &[]);
    Route { method, path, summary, permission, place, body, reply, task, query, headers }
}

const fn manage(
    method: &'static str,
    path: &'static str,
    place: Place,
    body: Option<&'static str>,
    reply: Reply,
    summary: &'static str,
) -> Route {
    Route { method, permission: Permission::Manage, body, ..read(path, place, reply, summary) }
}

impl Route {
    const fn query(self, query: &'static [&'static str]) -> Self {
        Self { query, ..self }
    }

    const fn headers(self, headers: &'static [(&'static str, &'static str)]) -> Self {
        Self { headers, ..self }
    }

    const fn begins(self, task: &'static str) -> Self {
        Self { task: Some(task), ..self }
    }

    /// Whether it may change something (and so knows `dry_run`).
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

use Place::{All, Any, Asked, Holder, Named};
use Reply::{Item, List, Nothing};

macro_rules! operations {
    ($($op:ident: $route:expr;)*) => {
        /// What a route does.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        #[allow(missing_docs, reason = "each is described by its line of the table")]
        pub enum Op {
            $($op,)*
        }

        impl Op {
            /// Every operation, in the order of the table.
            pub const ALL: &[Self] = &[$(Self::$op,)*];

            /// Its line of the table.
            pub const fn route(self) -> &'static Route {
                match self {
                    $(Self::$op => const { &$route },)*
                }
            }
        }
    };
}

operations! {
    StatusShow: read("/status", All, Item("Status"), "Health, space, load and resync at a glance")
        .query(&["scope"]);
    ClusterShow: read("/cluster", Asked, Item("Cluster"), "The cluster and its settings");
    ClusterPatch: manage(
        "PATCH",
        "/cluster",
        Any,
        Some("ClusterPatch"),
        Item("Cluster"),
        "Change the settings of the cluster",
    );
    HealthShow: read("/health", All, Item("Health"), "Every check that did not pass")
        .query(&["scope"]);
    HostList: read("/hosts", All, List("Host"), "Hosts").query(&["scope"]);
    HostShow: read("/hosts/{host}", All, Item("Host"), "One host");
    HostRemove: manage(
        "DELETE",
        "/hosts/{host}",
        Any,
        None,
        Item("HostRemoval"),
        "Remove a host for good; asking again goes on with it",
    )
    .query(&["lost"]);
    DiskList: read(
        "/hosts/{host}/disks",
        Named("host"),
        List("Disk"),
        "Disks a host is configured to use",
    );
    DiskWipe: manage(
        "POST",
        "/hosts/{host}/disks:wipe",
        Named("host"),
        Some("DiskWipeRequest"),
        Item("DiskWipe"),
        "Erase what a disk holds; a disk of a running group is refused",
    );
    GroupList: read("/groups", All, List("Group"), "Disk groups").query(&["scope"]);
    GroupShow: read("/groups/{group}", All, Item("Group"), "One disk group");
    GroupCreate: manage(
        "POST",
        "/groups",
        Named("host"),
        Some("GroupCreate"),
        Item("Group"),
        "Label empty disks and start a disk group on them",
    );
    PolicyList: read("/policies", Any, List("Policy"), "Storage policies");
    PolicyShow: read("/policies/{policy}", Any, Item("Policy"), "One storage policy");
    PolicyCreate: manage(
        "POST",
        "/policies",
        Any,
        Some("Policy"),
        Item("Policy"),
        "Create a storage policy",
    );
    PolicyDelete: manage(
        "DELETE",
        "/policies/{policy}",
        Any,
        None,
        Nothing,
        "Delete a storage policy that no volume uses",
    );
    PolicyCheck: manage(
        "POST",
        "/policies/{policy}:check",
        Any,
        Some("PolicyCheckRequest"),
        Item("PolicyCheck"),
        "Whether a volume of that size could be placed now, and why not",
    );
    VolumeList: read("/volumes", All, List("Volume"), "Volumes").query(&["scope"]);
    VolumeShow: read("/volumes/{volume}", All, Item("Volume"), "One volume");
    VolumeCreate: manage(
        "POST",
        "/volumes",
        Any,
        Some("VolumeCreate"),
        Item("Volume"),
        "Create a thin volume; repeatable with `Idempotency-Key`",
    )
    .headers(&[IDEMPOTENCY_KEY]);
    VolumePatch: manage(
        "PATCH",
        "/volumes/{volume}",
        All,
        Some("VolumePatch"),
        Item("Volume"),
        "Change a volume; `If-Match` refuses when it has changed",
    )
    .headers(&[IF_MATCH]);
    VolumeResize: manage(
        "POST",
        "/volumes/{volume}:resize",
        All,
        Some("VolumeResize"),
        Item("Volume"),
        "Grow a volume, or shrink one that nobody uses",
    )
    .headers(&[IF_MATCH]);
    VolumeDelete: manage(
        "DELETE",
        "/volumes/{volume}",
        Any,
        None,
        Nothing,
        "Delete a volume that nobody uses; `If-Match` refuses when it has changed",
    )
    .query(&["force"])
    .headers(&[IF_MATCH]);
    VolumeLock: manage(
        "POST",
        "/volumes/{volume}/lock",
        Asked,
        Some("VolumeLockRequest"),
        Item("VolumeLock"),
        "Empty a volume that nobody uses, and have it to oneself for an import",
    );
    VolumeUnlock: manage(
        "DELETE",
        "/volumes/{volume}/lock",
        Asked,
        None,
        Nothing,
        "Give a lock back",
    )
    .query(&["token"]);
    VolumePlacement: read(
        "/volumes/{volume}/placement",
        Any,
        Item("Placement"),
        "Where a volume is, and why",
    );
    ResyncShow: read("/resync", All, Item("Resync"), "What is being brought up to date")
        .query(&["scope"]);
    ResyncPatch: manage(
        "PATCH",
        "/resync",
        All,
        Some("ResyncPatch"),
        Item("Resync"),
        "Pause, resume or limit resync",
    );
    ScrubList: read("/scrubs", All, List("Scrub"), "Scrubs of all disk groups").query(&["scope"]);
    ScrubStart: manage(
        "POST",
        "/scrubs",
        Holder("group"),
        Some("ScrubStart"),
        List("Scrub"),
        "Verify checksums in the background",
    )
    .query(&["scope"])
    .begins("scrub");
    ScrubStop: manage("DELETE", "/scrubs", Holder("group"), None, List("Scrub"), "Stop scrubs")
        .query(&["scope", "group"]);
    TaskList: read("/tasks", All, List("Task"), "Work that outlasts its request")
        .query(&["scope"]);
    TaskShow: read("/tasks/{task}", All, Item("Task"), "One task");
    EventList: read("/events", All, List("Event"), "What has happened, the oldest first")
        .query(&["scope", "follow", "since"]);
    SessionList: read("/sessions", All, List("Session"), "Clients of volumes")
        .query(&["scope", "volume"]);
    ProfileList: read(
        "/profiles",
        All,
        List("Profile"),
        "How long the stages of I/O took, by host",
    )
    .query(&["scope"]);
}

/// A page for machines, of the host that is asked: whoever may [`Permission::Read`] reads it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Page {
    /// The OpenAPI document.
    OpenApi,
    /// Whether the process is alive.
    Healthz,
    /// Whether it serves.
    Readyz,
    /// Numbers for Prometheus.
    Metrics,
}

/// Every page, by its path; one may have several.
pub const PAGES: &[(&str, Page)] = &[
    ("/openapi.json", Page::OpenApi),
    ("/api/v1/openapi.json", Page::OpenApi),
    ("/healthz", Page::Healthz),
    ("/readyz", Page::Readyz),
    ("/metrics", Page::Metrics),
];

impl Page {
    /// The first of its paths.
    pub fn path(self) -> &'static str {
        let of_it = PAGES.iter().find(|(_, page)| *page == self);
        of_it.expect("every page has a path").0
    }
}

#[cfg(test)]
mod tests {
    use super::{Op, PAGES, Page, Permission, Place, QUERY};
    use std::collections::BTreeSet;

    #[test]
    fn names_take_their_places_in_a_path_escaped() {
        assert_eq!(Op::StatusShow.route().target(&[]), "/api/v1/status");
        assert_eq!(Op::DiskWipe.route().target(&["a/b"]), "/api/v1/hosts/a%2Fb/disks:wipe");
        assert_eq!(Op::VolumeLock.route().target(&["v"]), "/api/v1/volumes/v/lock");
        for op in Op::ALL {
            let names = vec!["x"; op.route().path_parameters().count()];
            let target = op.route().target(&names);
            assert!(target.starts_with("/api/v1/") && !target.contains(['{', '}']), "{target}");
        }
    }

    #[test]
    #[should_panic(expected = "a name for each place")]
    fn a_path_without_a_name_is_none() {
        Op::HostShow.route().target(&[]);
    }

    #[test]
    fn every_route_is_one_place_and_has_known_parameters() {
        let places: BTreeSet<_> =
            Op::ALL.iter().map(|op| op.route()).map(|r| (r.method, r.path)).collect();
        assert_eq!(places.len(), Op::ALL.len());
        for route in Op::ALL.iter().map(|op| op.route()) {
            for name in route.parameters() {
                assert!(QUERY.iter().any(|(known, ..)| *known == name), "{name}");
            }
            assert!(!route.summary.ends_with('.') && route.path.starts_with('/'));
        }
        for page in [Page::OpenApi, Page::Healthz, Page::Readyz, Page::Metrics] {
            assert!(PAGES.contains(&(page.path(), page)));
        }
    }

    /// What a browser or a proxy repeats unasked changes nothing, and what changes something is
    /// not for everybody.
    #[test]
    fn what_is_not_a_get_needs_more_than_to_read() {
        for op in Op::ALL {
            let wanted = if op.route().is_change() { Permission::Manage } else { Permission::Read };
            assert_eq!(op.route().permission, wanted, "{op:?}");
            assert!(op.route().task.is_none() || op.route().is_change(), "{op:?}");
        }
    }

    #[test]
    fn only_what_all_tell_can_be_narrowed_to_the_host_that_is_asked() {
        for op in Op::ALL {
            let of_all = matches!(op.route().place, Place::All | Place::Holder(_));
            assert!(of_all || !op.route().query.contains(&"scope"), "{op:?}");
        }
    }
}

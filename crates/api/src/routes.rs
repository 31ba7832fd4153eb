//! The table of operations, the only place that says what each is: its route and types, who may
//! ask for it, which host does it, and whether a task goes on after its answer. The server routes,
//! authorises and forwards by it, the OpenAPI document is made from it, clients take paths, methods
//! and the kinds of answers from it, and tests walk it. An operation that is not here does not
//! exist; one without a handler does not compile.

use crate::uri::escape;
use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

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

/// What who asks may do: each may what those before it may. Whoever may open the Unix socket is an
/// admin; over TLS, a token says it; over plain TCP, the configuration.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Has one new host join the cluster, and may ask for nothing else.
    Join,
    /// Looks.
    Viewer,
    /// Does what daily work is: volumes, resync, scrubs.
    Operator,
    /// Does everything: disks, policies, settings of the cluster, tokens.
    Admin,
}

impl Role {
    /// Every role, the least first.
    pub const ALL: [Self; 4] = [Self::Join, Self::Viewer, Self::Operator, Self::Admin];

    /// Its name, stable.
    pub fn name(self) -> &'static str {
        match self {
            Self::Join => "join",
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
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
    /// The least role of who may.
    pub role: Role,
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

const fn read(
    role: Role,
    path: &'static str,
    place: Place,
    reply: Reply,
    summary: &'static str,
) -> Route {
    let method = "GET";
    let (body, task, query, headers): (_, _, &[_], &[_]) = (None, None, &[], &[]);
    Route { method, path, summary, role, place, body, reply, task, query, headers }
}

const fn change(
    role: Role,
    method: &'static str,
    path: &'static str,
    place: Place,
    body: Option<&'static str>,
    reply: Reply,
    summary: &'static str,
) -> Route {
    Route { method, body, ..read(role, path, place, reply, summary) }
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
use Role::{Admin, Join, Operator, Viewer};

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
    StatusShow: read(
        Viewer,
        "/status",
        All,
        Item("Status"),
        "Health, space, load and resync at a glance",
    )
        .query(&["scope"]);
    ClusterShow: read(Viewer, "/cluster", Asked, Item("Cluster"), "The cluster and its settings");
    ClusterPatch: change(
        Admin,
        "PATCH",
        "/cluster",
        Any,
        Some("ClusterPatch"),
        Item("Cluster"),
        "Change the settings of the cluster",
    );
    UpgradeShow: read(
        Viewer,
        "/cluster/upgrade",
        Any,
        Item("Upgrade"),
        "Which feature level the cluster is at, and which its hosts know",
    );
    ClusterUpgrade: change(
        Admin,
        "POST",
        "/cluster:upgrade",
        Any,
        None,
        Item("Upgrade"),
        "Raise the cluster to the newest feature level that all hosts know, for good",
    );
    HealthShow: read(Viewer, "/health", All, Item("Health"), "Every check that did not pass")
        .query(&["scope"]);
    HostList: read(Viewer, "/hosts", All, List("Host"), "Hosts").query(&["scope"]);
    HostShow: read(Viewer, "/hosts/{host}", All, Item("Host"), "One host");
    HostJoin: change(
        Join,
        "POST",
        "/hosts:join",
        Asked,
        Some("HostJoin"),
        Item("HostJoined"),
        "Give a new host its certificate; by a token for joining, which is good for one host",
    );
    HostRemove: change(
        Admin,
        "DELETE",
        "/hosts/{host}",
        Any,
        None,
        Item("HostRemoval"),
        "Remove a host for good; asking again goes on with it",
    )
    .query(&["lost"]);
    DiskList: read(
        Viewer,
        "/hosts/{host}/disks",
        Named("host"),
        List("Disk"),
        "Disks a host is configured to use",
    );
    DiskWipe: change(
        Admin,
        "POST",
        "/hosts/{host}/disks:wipe",
        Named("host"),
        Some("DiskWipeRequest"),
        Item("DiskWipe"),
        "Erase what a disk holds; a disk of a running group is refused",
    );
    GroupList: read(Viewer, "/groups", All, List("Group"), "Disk groups").query(&["scope"]);
    GroupShow: read(Viewer, "/groups/{group}", All, Item("Group"), "One disk group");
    GroupCreate: change(
        Admin,
        "POST",
        "/groups",
        Named("host"),
        Some("GroupCreate"),
        Item("Group"),
        "Label empty disks and start a disk group on them",
    );
    PolicyList: read(Viewer, "/policies", Any, List("Policy"), "Storage policies");
    PolicyShow: read(Viewer, "/policies/{policy}", Any, Item("Policy"), "One storage policy");
    PolicyCreate: change(
        Admin,
        "POST",
        "/policies",
        Any,
        Some("Policy"),
        Item("Policy"),
        "Create a storage policy",
    );
    PolicyDelete: change(
        Admin,
        "DELETE",
        "/policies/{policy}",
        Any,
        None,
        Nothing,
        "Delete a storage policy that no volume uses",
    );
    PolicyCheck: change(
        Operator,
        "POST",
        "/policies/{policy}:check",
        Any,
        Some("PolicyCheckRequest"),
        Item("PolicyCheck"),
        "Whether a volume of that size could be placed now, and why not",
    );
    VolumeList: read(Viewer, "/volumes", All, List("Volume"), "Volumes").query(&["scope"]);
    VolumeShow: read(Viewer, "/volumes/{volume}", All, Item("Volume"), "One volume");
    VolumeCreate: change(
        Operator,
        "POST",
        "/volumes",
        Any,
        Some("VolumeCreate"),
        Item("Volume"),
        "Create a thin volume; repeatable with `Idempotency-Key`",
    )
    .headers(&[IDEMPOTENCY_KEY]);
    VolumePatch: change(
        Operator,
        "PATCH",
        "/volumes/{volume}",
        All,
        Some("VolumePatch"),
        Item("Volume"),
        "Change a volume; `If-Match` refuses when it has changed",
    )
    .headers(&[IF_MATCH]);
    VolumeResize: change(
        Operator,
        "POST",
        "/volumes/{volume}:resize",
        All,
        Some("VolumeResize"),
        Item("Volume"),
        "Grow a volume, or shrink one that nobody uses",
    )
    .headers(&[IF_MATCH]);
    VolumeDelete: change(
        Operator,
        "DELETE",
        "/volumes/{volume}",
        Any,
        None,
        Nothing,
        "Delete a volume that nobody uses; `If-Match` refuses when it has changed",
    )
    .query(&["force"])
    .headers(&[IF_MATCH]);
    VolumeLock: change(
        Operator,
        "POST",
        "/volumes/{volume}/lock",
        Asked,
        Some("VolumeLockRequest"),
        Item("VolumeLock"),
        "Empty a volume that nobody uses, and have it to oneself for an import",
    );
    VolumeUnlock: change(
        Operator,
        "DELETE",
        "/volumes/{volume}/lock",
        Asked,
        None,
        Nothing,
        "Give a lock back",
    )
    .query(&["token"]);
    VolumePlacement: read(
        Viewer,
        "/volumes/{volume}/placement",
        Any,
        Item("Placement"),
        "Where a volume is, and why",
    );
    ResyncShow: read(Viewer, "/resync", All, Item("Resync"), "What is being brought up to date")
        .query(&["scope"]);
    ResyncPatch: change(
        Operator,
        "PATCH",
        "/resync",
        All,
        Some("ResyncPatch"),
        Item("Resync"),
        "Pause, resume or limit resync",
    );
    ScrubList: read(
        Viewer,
        "/scrubs",
        All,
        List("Scrub"),
        "Scrubs of all disk groups",
    ).query(&["scope"]);
    ScrubStart: change(
        Operator,
        "POST",
        "/scrubs",
        Holder("group"),
        Some("ScrubStart"),
        List("Scrub"),
        "Verify checksums in the background",
    )
    .query(&["scope"])
    .begins("scrub");
    ScrubStop: change(
        Operator,
        "DELETE",
        "/scrubs",
        Holder("group"),
        None,
        List("Scrub"),
        "Stop scrubs",
    )
        .query(&["scope", "group"]);
    TaskList: read(Viewer, "/tasks", All, List("Task"), "Work that outlasts its request")
        .query(&["scope"]);
    TaskShow: read(Viewer, "/tasks/{task}", All, Item("Task"), "One task");
    EventList: read(Viewer, "/events", All, List("Event"), "What has happened, the oldest first")
        .query(&["scope", "follow", "since"]);
    SessionList: read(Viewer, "/sessions", All, List("Session"), "Clients of volumes")
        .query(&["scope", "volume"]);
    ProfileList: read(
        Viewer,
        "/profiles",
        All,
        List("Profile"),
        "How long the stages of I/O took, by host",
    )
    .query(&["scope"]);
    TokenList: read(Admin, "/tokens", Any, List("Token"), "Tokens, without their secrets");
    TokenCreate: change(
        Admin,
        "POST",
        "/tokens",
        Any,
        Some("TokenCreate"),
        Item("TokenMade"),
        "Make a token; its secret is in the answer, and never shown again",
    );
    JoinTokenCreate: change(
        Admin,
        "POST",
        "/tokens:join",
        Asked,
        Some("JoinTokenCreate"),
        Item("JoinTokenMade"),
        "Make a token by which one new host joins the cluster",
    );
    TokenRemove: change(
        Admin,
        "DELETE",
        "/tokens/{token}",
        Any,
        None,
        Nothing,
        "Remove a token: from now on it is refused",
    );
    AuditList: read(
        Admin,
        "/audit",
        All,
        List("AuditEntry"),
        "Who has changed what, and who was not let: the newest 1,000 entries of each host",
    )
    .query(&["scope"]);
}

/// A page for machines, of the host that is asked.
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

/// Every page, by its path, with the least role of who may read it; none: everybody. One may have
/// several paths.
pub const PAGES: &[(&str, Page, Option<Role>)] = &[
    ("/openapi.json", Page::OpenApi, Some(Viewer)),
    ("/api/v1/openapi.json", Page::OpenApi, Some(Viewer)),
    ("/healthz", Page::Healthz, None),
    ("/readyz", Page::Readyz, None),
    ("/metrics", Page::Metrics, Some(Viewer)),
];

impl Page {
    /// The first of its paths.
    pub fn path(self) -> &'static str {
        self.line().0
    }

    /// The least role of who may read it; none: everybody.
    pub fn role(self) -> Option<Role> {
        self.line().2
    }

    fn line(self) -> (&'static str, Self, Option<Role>) {
        let of_it = PAGES.iter().find(|(_, page, _)| *page == self);
        *of_it.expect("every page has a path")
    }
}

#[cfg(test)]
mod tests {
    use super::{Op, PAGES, Page, Place, QUERY, Role};
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
            assert!(PAGES.contains(&(page.path(), page, page.role())));
        }
    }

    /// Who may, line by line: a new line is to be added here on purpose. What a browser or a proxy
    /// repeats unasked changes nothing, and what changes something is not for everybody.
    #[test]
    fn every_route_has_the_role_that_was_meant_for_it() {
        use Op::*;
        let admin = [
            ClusterPatch,
            ClusterUpgrade,
            HostRemove,
            DiskWipe,
            GroupCreate,
            PolicyCreate,
            PolicyDelete,
            TokenList,
            TokenCreate,
            JoinTokenCreate,
            TokenRemove,
            AuditList,
        ];
        let operator = [
            PolicyCheck,
            VolumeCreate,
            VolumePatch,
            VolumeResize,
            VolumeDelete,
            VolumeLock,
            VolumeUnlock,
            ResyncPatch,
            ScrubStart,
            ScrubStop,
        ];
        let viewer = [
            StatusShow,
            ClusterShow,
            UpgradeShow,
            HealthShow,
            HostList,
            HostShow,
            DiskList,
            GroupList,
            GroupShow,
            PolicyList,
            PolicyShow,
            VolumeList,
            VolumeShow,
            VolumePlacement,
            ResyncShow,
            ScrubList,
            TaskList,
            TaskShow,
            EventList,
            SessionList,
            ProfileList,
        ];
        let all = [
            (Role::Admin, &admin[..]),
            (Role::Operator, &operator),
            (Role::Viewer, &viewer),
            (Role::Join, &[HostJoin]),
        ];
        let mut seen = BTreeSet::new();
        for (role, op) in all.iter().flat_map(|(role, ops)| ops.iter().map(move |op| (*role, *op)))
        {
            assert_eq!(op.route().role, role, "{op:?}");
            assert!(seen.insert(op), "{op:?} twice");
            assert!(!op.route().is_change() || role != Role::Viewer, "{op:?}");
            assert!(op.route().task.is_none() || op.route().is_change(), "{op:?}");
        }
        assert_eq!(seen, Op::ALL.iter().copied().collect(), "an operation without a rule");
        for &(path, page, role) in PAGES {
            let wanted = match page {
                Page::Healthz | Page::Readyz => None,
                Page::OpenApi | Page::Metrics => Some(Role::Viewer),
            };
            assert_eq!((role, page.role()), (wanted, wanted), "{path}");
        }
    }

    #[test]
    fn a_role_may_what_those_before_it_may() {
        assert!(Role::ALL.is_sorted());
        for role in Role::ALL {
            assert_eq!(serde_json::to_value(role).unwrap(), role.name());
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

//! The configuration of one host: a TOML file, `conf.d/*.toml` beside it, and `ATOLL_*` in the
//! environment, in that order; the later wins. Per-host facts only: what concerns the cluster
//! lives in the directory.
//!
//! Invariants: an unknown key, a wrong type or a value outside its range refuses to start, with
//! file and line, the accepted values and the nearest spelling; nothing is changed by reading.
//! Every key is one line of [`KEYS`], from which the checks, the environment's names and the
//! reference in `docs/operations.md` follow.

use atoll_api::name::show;
use atoll_api::{Code, Problem};
use atoll_etcd::{EtcdConfig, TlsFiles};
use atoll_format::units::{CHUNK, parse_size};
use atoll_world::Nanos;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The largest configuration file, in bytes.
const FILE_MAX: u64 = 1 << 20;
/// The longest path of a Unix socket (`sun_path` less its final NUL), in bytes.
pub const SOCKET_PATH_MAX: usize = 107;
/// The largest number of days that a key takes.
const DAYS_MAX: u64 = 3_650;
/// The longest that `io.busy_poll_us` accepts.
const BUSY_POLL_US_MAX: u64 = 10_000;
/// The most shards that `host.shards` accepts.
const SHARDS_MAX: u64 = 64;
/// A machine with fewer cores has one shard unless it is told otherwise: guests, clients and the
/// kernel need cores, too.
const CORES_MIN: usize = 4;
/// Disks of one group: the cache and seven for capacity.
const DISKS_MAX: usize = 8;

/// How the variables begin that set keys.
const PREFIX: &str = "ATOLL_";
/// Variables that begin so and set no key: of the command line, and of the scripts and tests.
pub const OTHER_VARIABLES: &[&str] = &[
    "ATOLL_ENDPOINT",
    "ATOLL_TIMEOUT",
    "ATOLL_CA",
    "ATOLL_TOKEN",
    "ATOLL_TOKEN_FILE",
    "ATOLL_BIN",
    "ATOLL_DISK_MIB",
    "ATOLL_GUEST",
    "ATOLL_PEERS",
];

/// Keys that were renamed: what they were called, and what they are called.
const RENAMED: [(&str, &str); 3] = [
    ("host.failure_domain", "host.fault_domain"),
    ("io.awake_us", "io.busy_poll_us"),
    ("io.quick_wake", "io.low_latency_wakeup"),
];

/// Refuses variables that would set the configuration of one host, in a program that is none: they
/// would be without effect.
///
/// # Errors
/// [`Code::Config`]: there is one.
pub fn refuse_host_variables(program: &str) -> Result<(), Problem> {
    let ours = |name: &&String| name.starts_with(PREFIX) && !OTHER_VARIABLES.contains(&&***name);
    let all = environment()?;
    match all.iter().map(|(name, _)| name).find(ours) {
        None => Ok(()),
        Some(name) => Err(bad(format!(
            "environment variable {}: configures one host, and means nothing to {program}",
            show(name)
        ))
        .hint("unset it; a host's own file is HOST/atoll.toml in its directory")),
    }
}

/// The variables of this process, for [`Config::load`].
///
/// # Errors
/// [`Code::Config`]: one of ours is not text.
pub fn environment() -> Result<Vec<(String, String)>, Problem> {
    let mut all = Vec::new();
    for (name, value) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        match value.into_string() {
            Ok(value) => all.push((name, value)),
            Err(_) if name.starts_with(PREFIX) => {
                return Err(bad(format!("environment variable {}: is not text", show(&name))));
            }
            Err(_) => {}
        }
    }
    Ok(all)
}

/// What a value must look like.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Any text on one line; empty only where that is the default.
    Text,
    /// An absolute path.
    Path,
    /// An absolute path short enough for a Unix socket; empty: none.
    Socket,
    /// `address:port`; empty only where that is the default.
    Address,
    /// One or more `address:port`.
    Addresses,
    /// Any number of host names, with or without a port.
    Names,
    /// Any number of `host:port`, where the host is a name or an address.
    Endpoints,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// `true` or `false`.
    Flag,
    /// A whole number of these, from 0 to this.
    Number(&'static str, u64),
    /// Bytes per second, written as a size, at least 1 MiB.
    Rate,
}

/// One key.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Sections and key, with dots.
    pub path: &'static str,
    /// What its value must look like.
    pub kind: Kind,
    /// Its value when nothing sets it, as the environment would write it.
    pub default: &'static str,
    /// One line for the manual.
    pub doc: &'static str,
}

const fn key(path: &'static str, kind: Kind, default: &'static str, doc: &'static str) -> Key {
    Key { path, kind, default, doc }
}

/// Every key outside `[[group]]`.
pub const KEYS: &[Key] = &[
    key("host.name", Kind::Text, "", "Name of this host, unique in the cluster; empty: hostname"),
    key("host.fault_domain", Kind::Text, "", "Copies never share one; empty: the host itself"),
    key("host.data_dir", Kind::Path, "/var/lib/atoll", "This host's identity and lock"),
    key(
        "host.shards",
        Kind::Number("shards", SHARDS_MAX),
        "0",
        "Threads that serve disk groups and volumes; 0: one for each group, at most one for each \
         core, and one if there are fewer than 4 cores",
    ),
    key(
        "network.api",
        Kind::Address,
        "127.0.0.1:8460",
        "REST and metrics over TCP, with tls inside TLS and with tokens; empty: none",
    ),
    key(
        "network.api_names",
        Kind::Names,
        "",
        "Names (with or without a port) by which api is reached, besides addresses and localhost",
    ),
    key(
        "network.api_writable",
        Kind::Flag,
        "false",
        "Without tls, whoever can reach api may change and delete everything; false: it only reads",
    ),
    key("network.api_socket", Kind::Socket, "/run/atoll/api.sock", "REST over a Unix socket"),
    key("network.peer", Kind::Addresses, "127.0.0.1:8461", "Where other hosts reach this one"),
    key(
        "network.tls",
        Kind::Flag,
        "true",
        "TLS between hosts and of api, with the certificate in data_dir/trust; false: hosts \
         believe anybody",
    ),
    key(
        "network.allow_unprotected",
        Kind::Flag,
        "false",
        "Let nbd.tcp listen beyond loopback, though it is not encrypted; without tls, api and peer \
         too",
    ),
    key(
        "directory.kind",
        Kind::OneOf(&["embedded", "etcd"]),
        "embedded",
        "Where cluster state is kept: in this machine's own directory, or in etcd",
    ),
    key(
        "directory.socket",
        Kind::Socket,
        "/run/atoll/directory.sock",
        "Unix socket of the embedded directory",
    ),
    key("directory.endpoints", Kind::Endpoints, "", "The members of etcd"),
    key(
        "directory.prefix",
        Kind::Text,
        "/atoll",
        "What all keys of this cluster in etcd begin with",
    ),
    key("directory.ca", Kind::Path, "", "Who signed the certificates of etcd (PEM); empty: no TLS"),
    key(
        "directory.certificate",
        Kind::Path,
        "",
        "This host's certificate for etcd (PEM); empty: none",
    ),
    key("directory.key", Kind::Path, "", "The key of this host's certificate for etcd (PEM)"),
    key(
        "directory.managed",
        Kind::Flag,
        "false",
        "The hosts run etcd themselves (unit atoll-etcd), known by their certificates; endpoints: \
         the members that are asked first",
    ),
    key(
        "directory.member",
        Kind::Address,
        "",
        "Where this host's own member of that etcd listens to hosts; empty: this host runs none",
    ),
    key(
        "directory.member_peer",
        Kind::Address,
        "",
        "Where this host's own member of that etcd listens to other members",
    ),
    key(
        "io.backend",
        Kind::OneOf(&["auto", "uring", "threads"]),
        "auto",
        "How disks are driven; auto: io_uring where it works, else threads",
    ),
    key(
        "io.busy_poll_us",
        Kind::Number("microseconds", BUSY_POLL_US_MAX),
        "300",
        "The longest busy poll for the next event before a host sleeps, while at most 16 small \
         requests are under way; 0: none",
    ),
    key(
        "io.low_latency_wakeup",
        Kind::Flag,
        "true",
        "Keep this machine's processors from sleeping deeply while clients or disks are busy",
    ),
    key(
        "scrub.every_days",
        Kind::Number("days", DAYS_MAX),
        "30",
        "Each disk group is verified this often; 0: never",
    ),
    key("scrub.rate", Kind::Rate, "20M", "Bytes per second and disk group of these scrubs"),
    key(
        "frontends.nbd.unix",
        Kind::Socket,
        "/run/atoll/nbd.sock",
        "NBD over a Unix socket; empty: none",
    ),
    key("frontends.nbd.tcp", Kind::Address, "", "NBD over TCP; empty: none"),
    key(
        "log.level",
        Kind::OneOf(&["error", "warn", "info", "debug", "trace"]),
        "info",
        "What is logged",
    ),
    key("log.format", Kind::OneOf(&["text", "json"]), "text", "How it is logged, on stderr"),
];

/// Keys of a `[[group]]`, with what the manual says of them.
pub const GROUP_KEYS: &[(&str, &str)] = &[
    ("shape", "\"single-tier\" (default: one disk carries log and capacity) or \"all-flash\""),
    ("disks", "Paths of block devices or files; all-flash: the cache first, then 1 to 7 more"),
    ("log", "Size of the write log, a multiple of 1 MiB; default: chosen by the disk's size"),
];

/// In `host.data_dir`: `authority.crt`, `host.crt` and `host.key`.
pub const TRUST_DIR: &str = "trust";

/// Where cluster state is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectoryConfig {
    /// The embedded directory, by its Unix socket.
    Embedded(PathBuf),
    /// etcd.
    Etcd(EtcdConfig),
}

impl fmt::Display for DirectoryConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedded(socket) => write!(f, "{}", socket.display()),
            Self::Etcd(etcd) => write!(f, "etcd ({})", etcd.endpoints),
        }
    }
}

/// Where a host's own member of etcd listens: addresses that the other hosts reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberAddresses {
    /// To hosts.
    pub clients: SocketAddr,
    /// To other members.
    pub peers: SocketAddr,
}

/// The configuration of one host, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// `host.name`.
    pub host_name: String,
    /// `host.fault_domain`.
    pub fault_domain: String,
    /// `host.data_dir`.
    pub data_dir: PathBuf,
    /// `host.shards`; 0: see [`Config::shards`].
    pub shards_wanted: u8,
    /// `network.api`.
    pub api: Option<SocketAddr>,
    /// `network.api_names`.
    pub api_names: Vec<String>,
    /// `network.api_writable`.
    pub api_writable: bool,
    /// `network.api_socket`.
    pub api_socket: Option<PathBuf>,
    /// `network.peer`; never empty.
    pub peers: Vec<SocketAddr>,
    /// `network.tls`.
    pub tls: bool,
    /// `directory`.
    pub directory: DirectoryConfig,
    /// `directory.managed`: the hosts run etcd themselves.
    pub managed: bool,
    /// `directory.member`, `directory.member_peer`; none: this host runs no member of etcd.
    pub member: Option<MemberAddresses>,
    /// `io.backend`.
    pub backend: Backend,
    /// `io.busy_poll_us`.
    pub busy_poll: Nanos,
    /// `io.low_latency_wakeup`.
    pub low_latency_wakeup: bool,
    /// `scrub.every_days`.
    pub scrub_every_days: u64,
    /// `scrub.rate`, bytes per second.
    pub scrub_rate: u64,
    /// `frontends.nbd.unix`.
    pub nbd_socket: Option<PathBuf>,
    /// `frontends.nbd.tcp`.
    pub nbd_tcp: Option<SocketAddr>,
    /// `log.level`.
    pub log_level: String,
    /// `log.format` is `json`.
    pub log_json: bool,
    /// `[[group]]`, in the order of the files.
    pub groups: Vec<GroupConfig>,
}

/// How disks are driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// io_uring where it works, else threads.
    Auto,
    /// io_uring, or refuse to start.
    Uring,
    /// A pool of threads.
    Threads,
}

/// One `[[group]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupConfig {
    /// One device for log and capacity, or a cache and others.
    pub all_flash: bool,
    /// Absolute paths, the cache first.
    pub disks: Vec<PathBuf>,
    /// Size of the write log, if it was chosen.
    pub log_bytes: Option<u64>,
    /// Where it was written, for messages.
    pub origin: String,
}

/// A checked value.
#[derive(Clone, Debug)]
enum Value {
    Text(String),
    List(Vec<String>),
    Flag(bool),
}

const CHECKED: &str = "checked when it was read";

type Values = BTreeMap<&'static str, (Value, String)>;

impl Default for Config {
    /// What a host has without any configuration, called `host`.
    fn default() -> Self {
        let mut reader = Reader::default();
        let name = (Value::Text("host".into()), "default".into());
        reader.values.insert("host.name", name);
        reader.finish(Path::new("default")).expect("defaults are tested")
    }
}

impl Config {
    /// Where clients reach this host that know servers by their addresses: those that its
    /// certificate is to have.
    pub fn addresses(&self) -> Vec<IpAddr> {
        let member = self.member.filter(|_| self.managed);
        let member = member.into_iter().flat_map(|at| [at.clients, at.peers]);
        let all = self.peers.iter().copied().chain(self.api).chain(member);
        let all: BTreeSet<IpAddr> =
            all.map(|at| at.ip()).filter(|ip| !ip.is_unspecified()).collect();
        all.into_iter().collect()
    }

    /// Threads that serve disk groups and volumes on a machine with so many cores: 1 to 64.
    pub fn shards(&self, cores: usize) -> u8 {
        if self.shards_wanted > 0 {
            return self.shards_wanted;
        }
        let most = if cores < CORES_MIN { 1 } else { cores };
        let shards = self.groups.len().clamp(1, most).min(SHARDS_MAX as usize);
        u8::try_from(shards).expect("at most 64")
    }

    /// The configuration of `path`, its `conf.d` and `environment`.
    ///
    /// # Errors
    /// [`Code::Config`] with file, line, accepted values and the nearest spelling.
    pub fn load(
        path: &Path,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, Problem> {
        Self::load_with(path, environment, None)
    }

    /// The same as if that file of `conf.d` had that text (empty: were not there).
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn load_with(
        path: &Path,
        environment: impl IntoIterator<Item = (String, String)>,
        drop_in: Option<(&Path, &str)>,
    ) -> Result<Self, Problem> {
        let mut reader = Reader::default();
        reader.file(path)?;
        let mut files = drop_in_files(&path.parent().unwrap_or(Path::new(".")).join("conf.d"))?;
        if let Some((file, _)) = drop_in {
            files.retain(|found| found != file);
            files.insert(files.partition_point(|found| **found < *file), file.to_owned());
        }
        for file in files {
            match drop_in {
                Some((other, "")) if other == file => {}
                Some((other, text)) if other == file => reader.text_of(&file, text)?,
                _ => reader.file(&file)?,
            }
        }
        for (name, value) in environment {
            reader.variable(&name, &value)?;
        }
        reader.finish(path)
    }
}

/// `conf.d/*.toml`, sorted; nothing if there is no such directory.
pub fn drop_in_files(dir: &Path) -> Result<Vec<PathBuf>, Problem> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(bad(format!("{}: cannot read: {e}", dir.display()))),
    };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|e| bad(format!("{}: cannot read: {e}", dir.display())))?;
        let path = entry.path();
        if path.extension().is_some_and(|e| e == "toml") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

#[derive(Default)]
struct Reader {
    values: Values,
    groups: Vec<GroupConfig>,
}

/// One file while it is read: for line numbers.
struct Source<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Source<'_> {
    fn at(&self, offset: usize) -> String {
        let line = self.text.as_bytes()[..offset.min(self.text.len())]
            .iter()
            .filter(|&&b| b == b'\n')
            .count();
        format!("{}:{}", self.path.display(), line + 1)
    }
}

impl Reader {
    fn file(&mut self, path: &Path) -> Result<(), Problem> {
        let shown = path.display();
        let cannot = |e: std::io::Error| {
            bad(format!("{shown}: cannot read: {e}"))
                .hint("'atoll serve --config FILE' names it; docs/operations.md has an example")
        };
        let meta = std::fs::metadata(path).map_err(cannot)?;
        if !meta.is_file() {
            return Err(bad(format!("{shown}: is not a regular file")));
        }
        if meta.len() > FILE_MAX {
            let len = meta.len();
            return Err(bad(format!("{shown}: {len} bytes long, at most {FILE_MAX} are read")));
        }
        let bytes = std::fs::read(path).map_err(cannot)?;
        let text = String::from_utf8(bytes).map_err(|e| {
            let line = e.as_bytes()[..e.utf8_error().valid_up_to()]
                .iter()
                .filter(|&&b| b == b'\n')
                .count();
            bad(format!("{shown}:{}: is not text (UTF-8)", line + 1))
        })?;
        if text.trim().is_empty() {
            return Err(bad(format!("{shown}: is empty"))
                .hint("docs/operations.md has an example to start from"));
        }
        self.text_of(path, &text)
    }

    fn text_of(&mut self, path: &Path, text: &str) -> Result<(), Problem> {
        let shown = path.display();
        let source = Source { path, text };
        let table = DeTable::parse(text).map_err(|e| {
            let place = e.span().map_or_else(|| shown.to_string(), |span| source.at(span.start));
            let near = e.span().and_then(|span| text.get(span)).unwrap_or_default().trim();
            let near =
                if near.is_empty() { String::new() } else { format!(" near {}", show(near)) };
            bad(format!("{place}: is not TOML: {}{near}", e.message()))
        })?;
        self.table(&source, "", table.get_ref())
    }

    fn table(&mut self, source: &Source<'_>, prefix: &str, table: &DeTable) -> Result<(), Problem> {
        for (name, value) in table.iter() {
            let path = if prefix.is_empty() {
                name.get_ref().to_string()
            } else {
                format!("{prefix}.{}", name.get_ref())
            };
            let place = source.at(name.span().start);
            if path == "group" {
                self.groups(source, &place, value)?;
            } else if let Some(key) = KEYS.iter().find(|key| key.path == path) {
                let parsed =
                    parse(key, value.get_ref()).map_err(|why| bad_value(&place, key, &why))?;
                self.values.insert(key.path, (parsed, place));
            } else if KEYS.iter().any(|key| inside(key.path, &path)) {
                let Some(inner) = value.get_ref().as_table() else {
                    let known = children(&path);
                    return Err(bad(format!("{place}: '{path}' is a section, not a value"))
                        .hint(format!("accepted inside: {}", known.join(", "))));
                };
                self.table(source, &path, inner)?;
            } else {
                return Err(unknown(&place, prefix, name.get_ref(), &children(prefix)));
            }
        }
        Ok(())
    }

    fn groups(
        &mut self,
        source: &Source<'_>,
        place: &str,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<(), Problem> {
        let not_a_list = || {
            bad(format!("{place}: 'group' is a list of sections"))
                .hint("write [[group]], once for each disk group")
        };
        let list = value.get_ref().as_array().ok_or_else(not_a_list)?;
        for entry in list.iter() {
            let table = entry.get_ref().as_table().ok_or_else(not_a_list)?;
            let place = source.at(entry.span().start);
            let mut group = GroupConfig {
                all_flash: false,
                disks: Vec::new(),
                log_bytes: None,
                origin: place.clone(),
            };
            for (name, value) in table.iter() {
                let place = source.at(name.span().start);
                group_key(&mut group, &place, name.get_ref(), value.get_ref())?;
            }
            check_group(&group, &place)?;
            self.groups.push(group);
        }
        Ok(())
    }

    /// One variable of the environment: one that begins with `ATOLL_` is a key, or one of those
    /// that other programs of this project read, or a mistake.
    fn variable(&mut self, name: &str, value: &str) -> Result<(), Problem> {
        let ours = name.get(..PREFIX.len()).is_some_and(|p| p.eq_ignore_ascii_case(PREFIX));
        if !ours || OTHER_VARIABLES.contains(&name) {
            return Ok(());
        }
        let place = format!("environment variable {}", show(name));
        let Some(key) = KEYS.iter().find(|key| variable_of(key) == name) else {
            let all: Vec<String> = KEYS.iter().map(variable_of).collect();
            let all = all.iter().map(String::as_str).chain(OTHER_VARIABLES.iter().copied());
            let problem = bad(format!("{place}: there is no such key"));
            return Err(match nearest(name, all) {
                Some(near) => problem.hint(format!("did you mean {near}?")),
                None => problem.hint("docs/operations.md lists them all; unset it"),
            });
        };
        let parsed = parse_text(key, value).map_err(|why| bad_value(&place, key, &why))?;
        self.values.insert(key.path, (parsed, place));
        Ok(())
    }

    fn finish(mut self, file: &Path) -> Result<Config, Problem> {
        for key in KEYS {
            if !self.values.contains_key(key.path) {
                let value = parse_text(key, key.default).expect("defaults are tested");
                self.values.insert(key.path, (value, format!("{}: default", file.display())));
            }
        }
        let host_name = match self.text("host.name") {
            "" => rustix::system::uname().nodename().to_string_lossy().into_owned(),
            name => name.to_owned(),
        };
        atoll_api::name::check("host", &host_name)
            .map_err(|why| bad(format!("{}: {why}", self.place("host.name"))))?;
        let fault_domain = match self.text("host.fault_domain") {
            "" => host_name.clone(),
            name => name.to_owned(),
        };
        atoll_api::name::check("fault domain", &fault_domain)
            .map_err(|why| bad(format!("{}: {why}", self.place("host.fault_domain"))))?;
        let open = self.flag("network.allow_unprotected");
        let tls = self.flag("network.tls");
        let api = self.address("network.api", open || tls)?;
        let nbd_tcp = self.address("frontends.nbd.tcp", open)?;
        let peers = self.addresses("network.peer", open || tls)?;
        self.check_taken_twice(api, nbd_tcp, &peers)?;
        let api_socket = self.socket("network.api_socket");
        if api.is_none() && api_socket.is_none() {
            return Err(bad(format!(
                "{}: neither network.api nor network.api_socket: nobody could manage this host",
                self.place("network.api_socket")
            )));
        }
        let directory = self.directory(open)?;
        self.check_disks()?;
        Ok(Config {
            data_dir: self.text("host.data_dir").into(),
            shards_wanted: self.text("host.shards").parse().expect(CHECKED),
            api,
            api_names: self.list("network.api_names").to_vec(),
            api_writable: self.flag("network.api_writable"),
            api_socket,
            peers,
            tls,
            directory,
            managed: self.flag("directory.managed"),
            member: self.member()?,
            backend: match self.text("io.backend") {
                "uring" => Backend::Uring,
                "threads" => Backend::Threads,
                _ => Backend::Auto,
            },
            busy_poll: Nanos::from_us(self.text("io.busy_poll_us").parse().expect(CHECKED)),
            low_latency_wakeup: self.flag("io.low_latency_wakeup"),
            nbd_socket: self.socket("frontends.nbd.unix"),
            nbd_tcp,
            scrub_every_days: self.text("scrub.every_days").parse().expect(CHECKED),
            scrub_rate: parse_size(self.text("scrub.rate")).expect(CHECKED),
            log_level: self.text("log.level").to_owned(),
            log_json: self.text("log.format") == "json",
            host_name,
            fault_domain,
            groups: self.groups,
        })
    }

    fn text(&self, path: &str) -> &str {
        match &self.values[path].0 {
            Value::Text(text) => text,
            other => unreachable!("{path} is {other:?}"),
        }
    }

    fn flag(&self, path: &str) -> bool {
        matches!(self.values[path].0, Value::Flag(true))
    }

    fn list(&self, path: &str) -> &[String] {
        match &self.values[path].0 {
            Value::List(list) => list,
            other => unreachable!("{path} is {other:?}"),
        }
    }

    fn place(&self, path: &str) -> &str {
        &self.values[path].1
    }

    fn socket(&self, path: &str) -> Option<PathBuf> {
        Some(self.text(path)).filter(|text| !text.is_empty()).map(PathBuf::from)
    }

    fn directory(&self, open: bool) -> Result<DirectoryConfig, Problem> {
        let endpoints = self.list("directory.endpoints").to_vec();
        if self.text("directory.kind") == "embedded" {
            if self.flag("directory.managed") {
                return Err(bad(format!(
                    "{}: directory.managed without effect: directory.kind is \"embedded\"",
                    self.place("directory.managed")
                ))
                .hint("'atoll cluster init' and 'atoll cluster join' write both"));
            }
            if !endpoints.is_empty() {
                return Err(bad(format!(
                    "{}: directory.endpoints without effect: directory.kind is \"embedded\"",
                    self.place("directory.endpoints")
                ))
                .hint("directory.kind = \"etcd\" uses them"));
            }
            let socket = self.socket("directory.socket").ok_or_else(|| {
                bad(format!(
                    "{}: directory.socket must not be empty",
                    self.place("directory.socket")
                ))
            })?;
            return Ok(DirectoryConfig::Embedded(socket));
        }
        if endpoints.is_empty() {
            return Err(bad(format!(
                "{}: directory.kind is \"etcd\", and directory.endpoints names no member",
                self.place("directory.kind")
            ))
            .hint("directory.endpoints = [\"10.0.0.1:2379\", \"10.0.0.2:2379\"]"));
        }
        let place = self.place("directory.prefix");
        let prefix = self.text("directory.prefix");
        let plain = |c: char| c.is_ascii_alphanumeric() || "/-_.".contains(c);
        if !prefix.starts_with('/') || prefix.ends_with('/') || !prefix.chars().all(plain) {
            return Err(bad(format!(
                "{place}: directory.prefix: {} is not a prefix",
                show(prefix)
            ))
            .hint("accepted: one that begins with '/' and does not end with it, \"/atoll\""));
        }
        let tls = self.directory_tls()?;
        let place = self.place("directory.endpoints");
        for (i, endpoint) in endpoints.iter().enumerate() {
            if endpoints[..i].contains(endpoint) {
                return Err(bad(format!("{place}: directory.endpoints names {endpoint} twice")));
            }
            if tls.is_none() && !open && !is_loopback(endpoint) {
                return Err(bad(format!(
                    "{place}: directory.endpoints: {endpoint} is on another machine, and without \
                     directory.ca what is said to it is neither encrypted nor authenticated"
                ))
                .hint("set directory.ca, or network.allow_unprotected = true"));
            }
        }
        let endpoints = endpoints.into();
        let own = self.member()?.filter(|_| self.flag("directory.managed"));
        let own = own.map(|at| at.clients.to_string());
        Ok(DirectoryConfig::Etcd(EtcdConfig { endpoints, own, prefix: prefix.to_owned(), tls }))
    }

    fn member(&self) -> Result<Option<MemberAddresses>, Problem> {
        let [clients, peers] = ["directory.member", "directory.member_peer"].map(|key| {
            let text = self.text(key);
            (!text.is_empty()).then(|| text.parse::<SocketAddr>().expect(CHECKED))
        });
        let (clients, peers) = match (clients, peers) {
            (None, None) => return Ok(None),
            (Some(clients), Some(peers)) if clients != peers => (clients, peers),
            (Some(_), Some(_)) => {
                return Err(bad(format!(
                    "{}: directory.member and directory.member_peer are the same",
                    self.place("directory.member_peer")
                )));
            }
            (Some(_), None) | (None, Some(_)) => {
                return Err(bad(format!(
                    "{}: directory.member and directory.member_peer are set together or not at all",
                    self.place("directory.member")
                )));
            }
        };
        if clients.ip().is_unspecified() || peers.ip().is_unspecified() {
            return Err(bad(format!(
                "{}: directory.member and directory.member_peer: addresses that other hosts reach, \
                 and they are {clients} and {peers}",
                self.place("directory.member")
            )));
        }
        Ok(Some(MemberAddresses { clients, peers }))
    }

    fn directory_tls(&self) -> Result<Option<TlsFiles>, Problem> {
        let file = |name| Some(self.text(name)).filter(|text| !text.is_empty()).map(PathBuf::from);
        let [ca, certificate, key] =
            ["directory.ca", "directory.certificate", "directory.key"].map(file);
        if self.flag("directory.managed") {
            if ca.is_some() || certificate.is_some() || key.is_some() {
                return Err(bad(format!(
                    "{}: directory.managed: ca, certificate and key are those of the cluster, and \
                     not set",
                    self.place("directory.managed")
                )));
            }
            if !self.flag("network.tls") {
                return Err(bad(format!(
                    "{}: directory.managed needs network.tls: its members are known by the \
                     certificates of the hosts",
                    self.place("directory.managed")
                )));
            }
            let trust = Path::new(self.text("host.data_dir")).join(TRUST_DIR);
            let [ca, certificate, key] =
                ["authority.crt", "host.crt", "host.key"].map(|name| trust.join(name));
            return Ok(Some(TlsFiles { ca, identity: Some((certificate, key)) }));
        }
        let identity = match (certificate, key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => {
                return Err(bad(format!(
                    "{}: directory.certificate and directory.key are set together or not at all",
                    self.place("directory.certificate")
                )));
            }
        };
        match ca {
            None if identity.is_some() => Err(bad(format!(
                "{}: directory.certificate is set, and directory.ca is not: without it etcd is \
                 spoken to without TLS",
                self.place("directory.certificate")
            ))),
            None => Ok(None),
            Some(ca) => Ok(Some(TlsFiles { ca, identity })),
        }
    }

    fn address(&self, path: &str, open: bool) -> Result<Option<SocketAddr>, Problem> {
        let text = self.text(path);
        if text.is_empty() {
            return Ok(None);
        }
        let address = text.parse().expect(CHECKED);
        self.check_reach(path, address, open)?;
        Ok(Some(address))
    }

    fn addresses(&self, path: &str, open: bool) -> Result<Vec<SocketAddr>, Problem> {
        let list = self.list(path);
        let mut addresses = Vec::new();
        for text in list {
            let address = text.parse().expect("checked when it was read");
            self.check_reach(path, address, open)?;
            addresses.push(address);
        }
        Ok(addresses)
    }

    fn check_reach(&self, path: &str, address: SocketAddr, open: bool) -> Result<(), Problem> {
        if address.ip().is_loopback() || open {
            return Ok(());
        }
        let place = self.place(path);
        let (why, way_out) = match path {
            "network.peer" | "network.api" => ("network.tls is false", "network.tls = true"),
            _ => ("is neither encrypted nor authenticated", "network.allow_unprotected = true"),
        };
        Err(bad(format!(
            "{place}: {path} = {address} can be reached from other machines, and {why}"
        ))
        .hint(format!("use a loopback address, or set {way_out}")))
    }

    fn check_taken_twice(
        &self,
        api: Option<SocketAddr>,
        nbd: Option<SocketAddr>,
        peers: &[SocketAddr],
    ) -> Result<(), Problem> {
        let mut seen: BTreeMap<SocketAddr, &str> = BTreeMap::new();
        let named = api.map(|a| (a, "network.api")).into_iter();
        let named = named.chain(nbd.map(|a| (a, "frontends.nbd.tcp")));
        for (address, path) in named.chain(peers.iter().map(|&a| (a, "network.peer"))) {
            if let Some(other) = seen.insert(address, path) {
                let place = self.place(path);
                return Err(bad(format!("{place}: {path} and {other} are both {address}")));
            }
        }
        Ok(())
    }

    fn check_disks(&self) -> Result<(), Problem> {
        let mut seen: BTreeMap<PathBuf, &str> = BTreeMap::new();
        for group in &self.groups {
            for disk in &group.disks {
                // Two names of one device are one device; a disk that is not there yet is
                // compared by its name.
                let real = std::fs::canonicalize(disk).unwrap_or_else(|_| disk.clone());
                if let Some(other) = seen.insert(real, &group.origin) {
                    return Err(bad(format!(
                        "{}: disk '{}' is listed twice, first at {other}",
                        group.origin,
                        disk.display()
                    )));
                }
            }
        }
        Ok(())
    }
}

fn group_key(
    group: &mut GroupConfig,
    place: &str,
    name: &str,
    value: &DeValue<'_>,
) -> Result<(), Problem> {
    let wrong = |why: String| bad(format!("{place}: group.{name}: {why}"));
    match name {
        "shape" => match value.as_str() {
            Some("single-tier") => group.all_flash = false,
            Some("all-flash") => group.all_flash = true,
            _ => {
                return Err(wrong(format!("{} is not a shape", describe(value)))
                    .hint("accepted: \"single-tier\", \"all-flash\""));
            }
        },
        "disks" => {
            let list = value.as_array().ok_or_else(|| {
                wrong(format!("{} is not a list", describe(value)))
                    .hint("accepted: a list of paths, disks = [\"/dev/disk/by-id/...\"]")
            })?;
            for entry in list.iter() {
                let text = entry.get_ref().as_str().unwrap_or_default();
                check_path(text).map_err(wrong)?;
                group.disks.push(text.into());
            }
        }
        "log" => {
            let accepted = "accepted: a size, log = \"1GiB\" (a multiple of 1 MiB)";
            let text = value.as_str().ok_or_else(|| {
                wrong(format!("{} is not a size", describe(value))).hint(accepted)
            })?;
            let bytes = parse_size(text).map_err(|why| wrong(why).hint(accepted))?;
            if bytes == 0 || bytes % CHUNK != 0 {
                return Err(wrong(format!("{text} is not a multiple of 1 MiB")).hint(accepted));
            }
            group.log_bytes = Some(bytes);
        }
        _ => {
            let known: Vec<&str> = GROUP_KEYS.iter().map(|(name, _)| *name).collect();
            return Err(unknown(place, "group", name, &known));
        }
    }
    Ok(())
}

fn check_group(group: &GroupConfig, place: &str) -> Result<(), Problem> {
    let disks = group.disks.len();
    match (group.all_flash, disks) {
        (false, 1) | (true, 2..=DISKS_MAX) => Ok(()),
        (false, _) => {
            Err(bad(format!("{place}: a single-tier group has 1 disk, this has {disks}"))
                .hint("write one [[group]] for each disk, or shape = \"all-flash\""))
        }
        (true, _) => Err(bad(format!(
            "{place}: an all-flash group has 2 to {DISKS_MAX} disks, this has {disks}"
        ))
        .hint("disks = [cache, capacity, ...]")),
    }
}

fn parse(key: &Key, value: &DeValue<'_>) -> Result<Value, String> {
    match (key.kind, value) {
        (Kind::Flag, DeValue::Boolean(flag)) => Ok(Value::Flag(*flag)),
        (Kind::Addresses | Kind::Names | Kind::Endpoints, DeValue::Array(list)) => {
            let mut texts = Vec::new();
            for entry in list.iter() {
                let text = entry.get_ref().as_str();
                texts.push(
                    text.ok_or_else(|| format!("{} is not text", describe(entry.get_ref())))?,
                );
            }
            parse_text(key, &texts.join(","))
        }
        (Kind::Flag, other) => Err(format!("{} is not true or false", describe(other))),
        (Kind::Number(..), DeValue::Integer(number)) => parse_text(key, number.as_str()),
        (Kind::Addresses | Kind::Names | Kind::Endpoints, other) => {
            Err(format!("{} is not a list", describe(other)))
        }
        (_, DeValue::String(text)) => parse_text(key, text),
        (_, other) => Err(format!("{} is not text", describe(other))),
    }
}

fn parse_text(key: &Key, text: &str) -> Result<Value, String> {
    if text.chars().any(char::is_control) {
        return Err(format!("{} contains a control character", show(text)));
    }
    if text.is_empty() && key.default.is_empty() {
        return Ok(match key.kind {
            Kind::Names | Kind::Endpoints => Value::List(Vec::new()),
            _ => Value::Text(String::new()),
        });
    }
    match key.kind {
        Kind::Text => Ok(Value::Text(text.into())),
        Kind::Path => check_path(text).map(|()| Value::Text(text.into())),
        Kind::Socket if text.is_empty() => Ok(Value::Text(String::new())),
        Kind::Socket => {
            check_path(text)?;
            if text.len() > SOCKET_PATH_MAX {
                return Err(format!(
                    "the path is {} bytes long, Unix sockets allow {SOCKET_PATH_MAX}",
                    text.len()
                ));
            }
            Ok(Value::Text(text.into()))
        }
        Kind::Address if text.is_empty() => Ok(Value::Text(String::new())),
        Kind::Address => check_address(text).map(|()| Value::Text(text.into())),
        Kind::Addresses => {
            let list: Vec<String> = text.split(',').map(|part| part.trim().to_owned()).collect();
            list.iter().try_for_each(|part| check_address(part))?;
            Ok(Value::List(list))
        }
        Kind::Names => {
            let list: Vec<String> = text.split(',').map(|part| part.trim().to_owned()).collect();
            list.iter().try_for_each(|part| check_host_name(part))?;
            Ok(Value::List(list))
        }
        Kind::Endpoints => {
            let list: Vec<String> = text.split(',').map(|part| part.trim().to_owned()).collect();
            list.iter().try_for_each(|part| check_endpoint(part))?;
            Ok(Value::List(list))
        }
        Kind::OneOf(words) if words.contains(&text) => Ok(Value::Text(text.into())),
        Kind::OneOf(words) => Err(match nearest(text, words.iter().copied()) {
            Some(near) => format!("{} is not accepted; did you mean \"{near}\"?", show(text)),
            None => format!("{} is not accepted", show(text)),
        }),
        Kind::Number(_, max) => match text.parse::<u64>() {
            Ok(number) if number <= max => Ok(Value::Text(text.into())),
            _ => Err(format!("{} is not a whole number from 0 to {max}", show(text))),
        },
        Kind::Rate => match parse_size(text) {
            Ok(bytes) if bytes >= 1 << 20 => Ok(Value::Text(text.into())),
            Ok(_) => Err(format!("{} is less than 1 MiB", show(text))),
            Err(why) => Err(why),
        },
        Kind::Flag => match text {
            "true" => Ok(Value::Flag(true)),
            "false" => Ok(Value::Flag(false)),
            _ => Err(format!("{} is not true or false", show(text))),
        },
    }
}

/// A name as a `Host` header has it.
fn check_host_name(text: &str) -> Result<(), String> {
    let (name, port) = text.rsplit_once(':').unwrap_or((text, "1"));
    let letters = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let good = !name.is_empty() && name.len() <= 253 && name.chars().all(letters);
    if good && port.parse::<u16>().is_ok_and(|port| port > 0) {
        return Ok(());
    }
    Err(format!("{} is not a name of a host", show(text)))
}

/// `host:port`; an IPv6 address in brackets.
fn check_endpoint(text: &str) -> Result<(), String> {
    if check_address(text).is_ok() || (text.contains(':') && check_host_name(text).is_ok()) {
        return Ok(());
    }
    let why = match text.split_once("://") {
        Some((_, rest)) => format!("; without the scheme: {}", show(rest)),
        None if text.parse::<Ipv6Addr>().is_ok() => format!("; did you mean \"[{text}]:2379\"?"),
        None => String::new(),
    };
    Err(format!("{} is not a host with a port{why}", show(text)))
}

/// Whether an endpoint is on this machine for sure.
fn is_loopback(endpoint: &str) -> bool {
    let host = endpoint.rsplit_once(':').map_or(endpoint, |(host, _)| host);
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

fn check_path(text: &str) -> Result<(), String> {
    if !text.starts_with('/') {
        return Err(format!("{} is not an absolute path", show(text)));
    }
    if text.chars().any(char::is_control) {
        return Err(format!("{} contains a control character", show(text)));
    }
    Ok(())
}

fn check_address(text: &str) -> Result<(), String> {
    match text.parse::<SocketAddr>() {
        Ok(address) if address.port() != 0 => Ok(()),
        _ => Err(format!("{} is not an address with a port", show(text))),
    }
}

/// What a kind accepts, for hints and the manual.
pub fn accepts(kind: Kind) -> String {
    match kind {
        Kind::Text => "text".into(),
        Kind::Path => "an absolute path".into(),
        Kind::Socket => "an absolute path of at most 107 bytes".into(),
        Kind::Address => "an address and port, \"127.0.0.1:8460\"".into(),
        Kind::Addresses => "a list of addresses with ports, [\"127.0.0.1:8461\"]".into(),
        Kind::Names => "a list of names, [\"storage.lan\", \"gate:9000\"]".into(),
        Kind::Endpoints => {
            "a list of hosts with ports, [\"10.0.0.1:2379\", \"[fd00::2]:2379\", \"c.lan:2379\"]"
                .into()
        }
        Kind::OneOf(words) => {
            let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
            quoted.join(", ")
        }
        Kind::Flag => "true, false".into(),
        Kind::Number(unit, max) => format!("a number of {unit}, 0 to {max}"),
        Kind::Rate => "a size of at least 1 MiB, \"20M\"".into(),
    }
}

/// The variable of the environment that sets a key: `ATOLL_HOST__NAME`.
pub fn variable_of(key: &Key) -> String {
    format!("{PREFIX}{}", key.path.replace('.', "__").to_ascii_uppercase())
}

fn bad(detail: String) -> Problem {
    Problem::new(Code::Config, detail)
}

fn bad_value(place: &str, key: &Key, why: &str) -> Problem {
    bad(format!("{place}: {}: {why}", key.path)).hint(format!("accepted: {}", accepts(key.kind)))
}

fn unknown(place: &str, section: &str, name: &str, known: &[&str]) -> Problem {
    let inside = if section.is_empty() { String::new() } else { format!(" in [{section}]") };
    let path = format!("{section}.{name}");
    let renamed = RENAMED.iter().find(|(old, _)| *old == path);
    let near = match (renamed, nearest(name, known.iter().copied())) {
        (Some((_, new)), _) => format!("it is called '{new}' now; "),
        (None, Some(near)) => format!("did you mean '{near}'? "),
        (None, None) => String::new(),
    };
    bad(format!("{place}: unknown key {}{inside}", show(name)))
        .hint(format!("{near}accepted: {}", known.join(", ")))
}

/// Whether key `path` lies inside section `section`.
fn inside(path: &str, section: &str) -> bool {
    path.strip_prefix(section).is_some_and(|rest| rest.starts_with('.'))
}

/// Names that may follow `section`.
fn children(section: &str) -> Vec<&'static str> {
    let mut names: Vec<&str> = Vec::new();
    for key in KEYS {
        let rest = if section.is_empty() {
            key.path
        } else if inside(key.path, section) {
            &key.path[section.len() + 1..]
        } else {
            continue;
        };
        let name = rest.split('.').next().expect("split gives at least one part");
        if !names.contains(&name) {
            names.push(name);
        }
    }
    if section.is_empty() {
        names.push("group");
    }
    names
}

fn describe(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => show(text),
        DeValue::Integer(number) => number.as_str().chars().take(40).collect(),
        DeValue::Boolean(flag) => flag.to_string(),
        other => format!("a {}", other.type_str()),
    }
}

/// The candidate that `word` most likely was meant to be, if one is near.
pub fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > 64 {
        return None;
    }
    candidates
        .map(|candidate| {
            (distance(&word.to_ascii_lowercase(), &candidate.to_ascii_lowercase()), candidate)
        })
        .filter(|&(far, candidate)| far <= (candidate.len() / 3).max(1))
        .min()
        .map(|(_, candidate)| candidate)
}

/// Edits (insert, delete, replace, swap neighbours) between two short words.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replace = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replace.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &[u8], environment: &[(&str, &str)]) -> Result<Config, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("atoll.toml");
        std::fs::write(&path, text).unwrap();
        let environment = environment.iter().map(|(k, v)| (k.to_string(), v.to_string()));
        Config::load(&path, environment)
            .map_err(|e| e.to_string().replace(&format!("{}/", dir.path().display()), ""))
    }

    #[test]
    fn etcd_is_named_by_its_members_a_prefix_and_files() {
        let loopback = "[directory]\nkind = \"etcd\"\nendpoints = [\"127.0.0.1:1\", \"[::1]:2\"]\n";
        let DirectoryConfig::Etcd(etcd) = load(loopback.as_bytes(), &[]).unwrap().directory else {
            panic!("it is etcd");
        };
        assert_eq!(*etcd.endpoints.list(), ["127.0.0.1:1", "[::1]:2"]);
        assert_eq!((etcd.prefix.as_str(), etcd.tls), ("/atoll", None));
        let by_environment = [
            ("ATOLL_DIRECTORY__ENDPOINTS", "a.lan:2379,10.0.0.2:2379"),
            ("ATOLL_DIRECTORY__CA", "/ca"),
            ("ATOLL_DIRECTORY__CERTIFICATE", "/c"),
            ("ATOLL_DIRECTORY__KEY", "/k"),
        ];
        let loaded = load(loopback.as_bytes(), &by_environment).unwrap();
        let DirectoryConfig::Etcd(etcd) = loaded.directory else { panic!("it is etcd") };
        assert_eq!(*etcd.endpoints.list(), ["a.lan:2379", "10.0.0.2:2379"]);
        let identity = Some(("/c".into(), "/k".into()));
        assert_eq!(etcd.tls, Some(TlsFiles { ca: "/ca".into(), identity }));
    }

    /// What is written, and the two lines that a person sees.
    const WRONG: &[(&str, &str, &str)] = &[
        (
            "[directory]\nkind = \"etcd\"\n",
            "atoll.toml:2: directory.kind is \"etcd\", and directory.endpoints names no \
             member",
            "directory.endpoints = [\"10.0.0.1:2379\", \"10.0.0.2:2379\"]",
        ),
        (
            "[directory]\nendpoints = [\"127.0.0.1:2379\"]\n",
            "atoll.toml:2: directory.endpoints without effect: directory.kind is \"embedded\"",
            "directory.kind = \"etcd\" uses them",
        ),
        (
            "[directory]\nkind = \"etcd\"\nendpoints = [\"localhost:1\", \"localhost:1\"]\n",
            "atoll.toml:3: directory.endpoints names localhost:1 twice",
            "",
        ),
        (
            "[directory]\nkind = \"etcd\"\nendpoints = [\"[fd00::1]:2379\"]\n",
            "atoll.toml:3: directory.endpoints: [fd00::1]:2379 is on another machine, and without \
             directory.ca what is said to it is neither encrypted nor authenticated",
            "set directory.ca, or network.allow_unprotected = true",
        ),
        ("", "atoll.toml: is empty", "docs/operations.md has an example to start from"),
        ("\n \n", "atoll.toml: is empty", "docs/operations.md has an example to start from"),
        (
            "[host]\nnmae = \"a\"\n",
            "atoll.toml:2: unknown key 'nmae' in [host]",
            "did you mean 'name'? accepted: name, fault_domain, data_dir, shards",
        ),
        (
            "[host]\nfailure_domain = \"a\"\n",
            "atoll.toml:2: unknown key 'failure_domain' in [host]",
            "it is called 'host.fault_domain' now; accepted: name, fault_domain, data_dir, shards",
        ),
        (
            "\n[hosts]\nname = \"a\"\n",
            "atoll.toml:2: unknown key 'hosts'",
            "did you mean 'host'? accepted: host, network, directory, io, scrub, frontends, log, \
             group",
        ),
        (
            "[host]\nname = \"a\"\nname = \"b\"\n",
            "atoll.toml:3: is not TOML: duplicate key near 'name'",
            "",
        ),
        ("[host\n", "atoll.toml:1: is not TOML: unclosed table, expected `]`", ""),
        ("[host]\nname = 5\n", "atoll.toml:2: host.name: 5 is not text", "accepted: text"),
        (
            "[host]\nname = \"a/b\"\n",
            "atoll.toml:2: host name 'a/b' contains '/' (rule: 1 to 64 letters, digits, '.', '_' \
             and '-', starting with a letter or digit)",
            "",
        ),
        (
            "[host]\ndata_dir = \"var\"\n",
            "atoll.toml:2: host.data_dir: 'var' is not an absolute path",
            "accepted: an absolute path",
        ),
        (
            "[scrub]\nevery_days = -1\n",
            "atoll.toml:2: scrub.every_days: '-1' is not a whole number from 0 to 3650",
            "accepted: a number of days, 0 to 3650",
        ),
        (
            "[io]\nbusy_poll_us = 10001\n",
            "atoll.toml:2: io.busy_poll_us: '10001' is not a whole number from 0 to 10000",
            "accepted: a number of microseconds, 0 to 10000",
        ),
        (
            "[io]\nquick_wake = false\n",
            "atoll.toml:2: unknown key 'quick_wake' in [io]",
            "it is called 'io.low_latency_wakeup' now; accepted: backend, busy_poll_us, \
             low_latency_wakeup",
        ),
        (
            "[scrub]\nrate = \"4k\"\n",
            "atoll.toml:2: scrub.rate: '4k' is less than 1 MiB",
            "accepted: a size of at least 1 MiB, \"20M\"",
        ),
        (
            "[io]\nbackend = \"urnig\"\n",
            "atoll.toml:2: io.backend: 'urnig' is not accepted; did you mean \"uring\"?",
            "accepted: \"auto\", \"uring\", \"threads\"",
        ),
        (
            "[log]\nlevel = \"\"\n",
            "atoll.toml:2: log.level: '' is not accepted",
            "accepted: \"error\", \"warn\", \"info\", \"debug\", \"trace\"",
        ),
        (
            "host = 3\n",
            "atoll.toml:1: 'host' is a section, not a value",
            "accepted inside: name, fault_domain, data_dir, shards",
        ),
        (
            "[network]\napi = \"localhost\"\n",
            "atoll.toml:2: network.api: 'localhost' is not an address with a port",
            "accepted: an address and port, \"127.0.0.1:8460\"",
        ),
        (
            "[network]\napi = \"127.0.0.1:99999999999999999999\"\n",
            "atoll.toml:2: network.api: '127.0.0.1:99999999999999999999' is not an address with a \
             port",
            "accepted: an address and port, \"127.0.0.1:8460\"",
        ),
        (
            "[network]\npeer = \"127.0.0.1:1\"\n",
            "atoll.toml:2: network.peer: '127.0.0.1:1' is not a list",
            "accepted: a list of addresses with ports, [\"127.0.0.1:8461\"]",
        ),
        (
            "[network]\npeer = []\n",
            "atoll.toml:2: network.peer: '' is not an address with a port",
            "accepted: a list of addresses with ports, [\"127.0.0.1:8461\"]",
        ),
        (
            "[network]\napi = \"0.0.0.0:8460\"\ntls = false\n",
            "atoll.toml:2: network.api = 0.0.0.0:8460 can be reached from other machines, and \
             network.tls is false",
            "use a loopback address, or set network.tls = true",
        ),
        (
            "[frontends.nbd]\ntcp = \"0.0.0.0:10809\"\n",
            "atoll.toml:2: frontends.nbd.tcp = 0.0.0.0:10809 can be reached from other machines, \
             and is neither encrypted nor authenticated",
            "use a loopback address, or set network.allow_unprotected = true",
        ),
        (
            "[network]\npeer = [\"10.0.0.1:8461\"]\ntls = false\n",
            "atoll.toml:2: network.peer = 10.0.0.1:8461 can be reached from other machines, and \
             network.tls is false",
            "use a loopback address, or set network.tls = true",
        ),
        (
            "[network]\napi = \"127.0.0.1:8461\"\n",
            "atoll.toml: default: network.peer and network.api are both 127.0.0.1:8461",
            "",
        ),
        (
            "[network]\nallow_unprotected = \"yes\"\n",
            "atoll.toml:2: network.allow_unprotected: 'yes' is not true or false",
            "accepted: true, false",
        ),
        (
            "[directory]\nkind = \"ectd\"\n",
            "atoll.toml:2: directory.kind: 'ectd' is not accepted; did you mean \"etcd\"?",
            "accepted: \"embedded\", \"etcd\"",
        ),
        (
            "[frontends]\nnbd = { unix = \"/a\", tpc = \"\" }\n",
            "atoll.toml:2: unknown key 'tpc' in [frontends.nbd]",
            "did you mean 'tcp'? accepted: unix, tcp",
        ),
        (
            "[group]\ndisks = [\"/a\"]\n",
            "atoll.toml:1: 'group' is a list of sections",
            "write [[group]], once for each disk group",
        ),
        (
            "[[group]]\ndisk = [\"/a\"]\n",
            "atoll.toml:2: unknown key 'disk' in [group]",
            "did you mean 'disks'? accepted: shape, disks, log",
        ),
        (
            "[[group]]\ndisks = [\"/a\", \"/b\"]\n",
            "atoll.toml:1: a single-tier group has 1 disk, this has 2",
            "write one [[group]] for each disk, or shape = \"all-flash\"",
        ),
        (
            "[[group]]\nshape = \"all-flash\"\ndisks = [\"/a\"]\n",
            "atoll.toml:1: an all-flash group has 2 to 8 disks, this has 1",
            "disks = [cache, capacity, ...]",
        ),
        (
            "[[group]]\nshape = \"hybrid\"\ndisks = [\"/a\"]\n",
            "atoll.toml:2: group.shape: 'hybrid' is not a shape",
            "accepted: \"single-tier\", \"all-flash\"",
        ),
        ("[[group]]\ndisks = [3]\n", "atoll.toml:2: group.disks: '' is not an absolute path", ""),
        (
            "[[group]]\ndisks = [\"/a\"]\nlog = \"1GB\"\n",
            "atoll.toml:3: group.log: '1GB' is not a size: unit 'gb' is unknown (use k, M, G, T or \
             KiB, MiB, GiB, TiB)",
            "accepted: a size, log = \"1GiB\" (a multiple of 1 MiB)",
        ),
        (
            "[[group]]\ndisks = [\"/a\"]\nlog = 99999999999999999999999\n",
            "atoll.toml:3: group.log: 99999999999999999999999 is not a size",
            "accepted: a size, log = \"1GiB\" (a multiple of 1 MiB)",
        ),
        (
            "[[group]]\ndisks = [\"/a\"]\n[[group]]\ndisks = [\"/a\"]\n",
            "atoll.toml:3: disk '/a' is listed twice, first at atoll.toml:1",
            "",
        ),
    ];

    #[test]
    fn every_mistake_is_refused_with_its_line_and_a_way_out() {
        for (text, error, hint) in WRONG {
            let hint = if hint.is_empty() { String::new() } else { format!("\nhint: {hint}") };
            let want = format!("error[E0003]: {error}{hint}");
            match load(text.as_bytes(), &[]) {
                Err(got) => assert_eq!(got, want, "for {text:?}"),
                Ok(config) => panic!("{text:?} was taken: {config:?}"),
            }
        }
    }

    #[test]
    fn binary_files_loops_and_directories_are_refused() {
        let error = load(b"[host]\n\xff\xfe\0", &[]).unwrap_err();
        assert_eq!(error, "error[E0003]: atoll.toml:2: is not text (UTF-8)");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("loop.toml");
        std::os::unix::fs::symlink(&path, &path).unwrap();
        let error = Config::load(&path, []).unwrap_err();
        assert!(error.detail.contains("loop.toml: cannot read: Too many levels"), "{error}");
        assert!(Config::load(dir.path(), []).unwrap_err().detail.ends_with("not a regular file"));
        let error = Config::load(&dir.path().join("none"), []).unwrap_err();
        assert!(error.detail.contains("No such file"), "{error}");
        let big = dir.path().join("big.toml");
        std::fs::File::create(&big).unwrap().set_len(FILE_MAX + 1).unwrap();
        assert!(Config::load(&big, []).unwrap_err().detail.contains("1048577 bytes long"));
    }

    #[test]
    fn files_drop_ins_and_the_environment_are_read_in_that_order() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("atoll.toml");
        std::fs::create_dir(dir.path().join("conf.d")).unwrap();
        std::fs::write(
            &path,
            "[host]\nname = \"h1\"\n[log]\nlevel = \"debug\"\n[[group]]\nshape = \"all-flash\"\n\
             disks = [\"/dev/a\", \"/dev/b\"]\nlog = \"2GiB\"\n",
        )
        .unwrap();
        std::fs::write(dir.path().join("conf.d/b.toml"), "[log]\nformat = \"json\"\n").unwrap();
        std::fs::write(dir.path().join("conf.d/a.toml"), "[log]\nlevel = \"warn\"\n").unwrap();
        std::fs::write(dir.path().join("conf.d/ignored.txt"), "nonsense").unwrap();
        let environment = [
            ("ATOLL_NETWORK__PEER".to_owned(), "127.0.0.2:1, 127.0.0.3:1".to_owned()),
            ("ATOLL_FRONTENDS__NBD__UNIX".to_owned(), String::new()),
            ("ATOLL_NETWORK__API_NAMES".to_owned(), "storage.lan, gate:9000".to_owned()),
            ("ATOLL_ENDPOINT".to_owned(), "not a key of the file".to_owned()),
            ("ATOLLS".to_owned(), "nor this".to_owned()),
        ];
        let config = Config::load(&path, environment).unwrap();
        assert_eq!(config.host_name, "h1");
        assert_eq!(config.fault_domain, "h1");
        assert_eq!(config.log_level, "warn");
        assert!(config.log_json);
        assert_eq!((config.scrub_every_days, config.scrub_rate), (30, 20 << 20));
        assert_eq!(config.busy_poll, atoll_real::limits::BUSY_POLL_MAX);
        assert_eq!(config.nbd_socket, None);
        assert_eq!(config.api_names, ["storage.lan", "gate:9000"]);
        assert!(!config.api_writable);
        assert_eq!((config.peers.len(), config.tls), (2, true));
        assert_eq!(config.groups.len(), 1);
        assert!(config.groups[0].all_flash);
        assert_eq!(config.groups[0].log_bytes, Some(2 << 30));
    }

    #[test]
    fn a_host_has_a_shard_a_group_and_no_more_than_cores() {
        let groups = |count| "[[group]]\ndisks = [\"/dev/DISK\"]\n".repeat(count);
        let config = |host: &str, count: usize| {
            let mut text = format!("[host]\nname = \"h\"\n{host}\n{}", groups(count));
            for disk in 0..count {
                text = text.replacen("DISK", &format!("d{disk}"), 1);
            }
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("atoll.toml");
            std::fs::write(&path, text).unwrap();
            Config::load(&path, []).unwrap()
        };
        let chosen = |count, cores| config("", count).shards(cores);
        assert_eq!([chosen(0, 16), chosen(1, 16), chosen(8, 16), chosen(8, 4)], [1, 1, 8, 4]);
        assert_eq!([chosen(8, 1), chosen(8, 3), chosen(80, 128)], [1, 1, 64]);
        assert_eq!(config("shards = 5", 2).shards(2), 5);
    }

    #[test]
    fn a_wrong_variable_is_refused_by_name() {
        let wrong = |name, value| load(b"[host]\nname = \"h\"\n", &[(name, value)]).unwrap_err();
        let error = wrong("ATOLL_HOST__NMAE", "x");
        assert!(error.contains("variable 'ATOLL_HOST__NMAE'"), "{error}");
        assert!(error.ends_with("hint: did you mean ATOLL_HOST__NAME?"), "{error}");
        for (name, near) in [
            ("ATOLL_NETWORK_API", "ATOLL_NETWORK__API"),
            ("ATOLL_NETWORK__APPI", "ATOLL_NETWORK__API"),
            ("ATOLL_network__api", "ATOLL_NETWORK__API"),
            ("atoll_network__api", "ATOLL_NETWORK__API"),
            ("ATOLL_LOG_LEVEL", "ATOLL_LOG__LEVEL"),
            ("ATOLL_ENDPIONT", "ATOLL_ENDPOINT"),
        ] {
            let error = wrong(name, "127.0.0.1:1");
            assert!(error.contains(&format!("variable '{name}'")), "{error}");
            assert!(error.ends_with(&format!("hint: did you mean {near}?")), "{error}");
        }
        let error = wrong("ATOLL_ZZZZZZZZZZZZZZZ", "");
        assert!(error.ends_with("docs/operations.md lists them all; unset it"), "{error}");
        let error = wrong("ATOLL_NETWORK__API_NAMES", "http://x");
        assert!(error.contains("'http://x' is not a name of a host"), "{error}");
        let error = wrong("ATOLL_IO__BACKEND", "x\n");
        assert!(error.contains("control character"), "{error}");
    }

    #[test]
    fn the_packaged_file_shows_every_key_with_its_meaning_and_its_default() {
        let packaged = include_str!("../../../packaging/atoll.toml");
        let without = |groups: bool| {
            let keep = |line: &&str| !line.starts_with("#[[") || groups;
            let group =
                |line: &str| ["#disks", "#shape", "#log ="].iter().any(|k| line.starts_with(k));
            let lines = packaged.lines().filter(keep).filter(|line| groups || !group(line));
            lines.fold(String::new(), |text, line| {
                let line =
                    line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(line);
                text + line + "\n"
            })
        };
        let defaults = load(b"[host]\n", &[]).unwrap();
        assert_eq!(load(packaged.as_bytes(), &[]).unwrap(), defaults, "as it is installed");
        assert_eq!(load(without(false).as_bytes(), &[]).unwrap(), defaults, "with every key set");
        let groups = load(without(true).as_bytes(), &[]).unwrap().groups;
        assert_eq!(groups.iter().map(|group| group.disks.len()).collect::<Vec<_>>(), [1, 3]);
        let mut section = "";
        let mut shown = Vec::new();
        let mut said = String::new();
        for line in packaged.lines() {
            if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                section = name;
            } else if let Some(words) = line.strip_prefix("# ") {
                said = format!("{said} {words}");
                continue;
            } else if let Some((key, _)) = line.strip_prefix('#').and_then(|l| l.split_once(" = "))
            {
                shown.push((format!("{section}.{key}"), said.trim().to_owned()));
            }
            said.clear();
        }
        for key in KEYS {
            let line = (key.path.to_owned(), key.doc.to_owned());
            assert!(shown.contains(&line), "packaging/atoll.toml lacks {line:?}");
        }
    }

    #[test]
    fn the_manual_has_every_key_with_its_default() {
        let manual = include_str!("../../../docs/operations.md");
        for key in KEYS {
            let default = if key.default.is_empty() { "-" } else { key.default };
            let line =
                format!("| `{}` | {} | `{default}` | {} |", key.path, accepts(key.kind), key.doc);
            assert!(manual.contains(&line), "docs/operations.md lacks the line\n{line}");
        }
        for (name, doc) in GROUP_KEYS {
            let line = format!("| `{name}` | {doc} |");
            assert!(manual.contains(&line), "docs/operations.md lacks the line\n{line}");
        }
    }
}

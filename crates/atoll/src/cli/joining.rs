//! Commands that make this machine a host: the first one of a new cluster, or a further one of a
//! cluster that is there.
//!
//! Invariants: a machine that has an identity keeps it; the token for joining comes from a file,
//! the environment or standard input, never from an argument, and is in no message; what can be
//! refused is refused before the token is used up.

use super::access::of_environment;
use super::args::{Init, JoinHost, JoinToken as JoinTokenArgs};
use super::certificate::{give_to_owner, random_id};
use super::context::Context;
use super::out::{Failure, Row, Run};
use crate::config::{self, Config, MemberAddresses};
use crate::etcd_member::{self, MemberStart};
use crate::trust::{AUTHORITY_DIR, DIR, ETCD_CA, now_s};
use atoll_api::client::{Call, Tls, Token};
use atoll_api::envelope::Named;
use atoll_api::routes::Op;
use atoll_api::types::{self, EtcdClient, HostJoined, JoinDirectory};
use atoll_api::{Client, Code, Endpoint, Item, Problem, name};
use atoll_format::id::{ClusterId, HostId};
use atoll_format::level::Levels;
use atoll_trust::{
    ApiTrust, Authority, Credentials, HOST_VALID_S, HostKey, JoinToken, Named as NamedHost,
    TrustError,
};
use rustix::fs::{Access, access};
use serde::Serialize;
use std::fs::{DirBuilder, File, Permissions};
use std::io::{BufRead, IsTerminal, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// In `conf.d` beside the configuration: what these commands write.
const FILE: &str = "cluster.toml";
/// How that file begins. One that begins otherwise is somebody else's.
const MARK: &str = "# Written by 'atoll cluster";
const API_PORT: u16 = 8460;
const PEER_PORT: u16 = 8461;
/// etcd's own.
const MEMBER_PORT: u16 = 2379;
const MEMBER_PEER_PORT: u16 = 2380;
/// Bytes of a token that are read.
const TOKEN_MAX: u64 = 8 << 10;
/// An address of documentation (RFC 5737): nothing is sent there, the system only says by which of
/// its addresses it would be.
const ANYWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 9);

/// A machine that has become a host. No secret is in it.
#[derive(Serialize)]
struct HostMade {
    /// Absent: a dry run.
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    name: String,
    cluster: String,
    /// Where other hosts reach it.
    peer: String,
    data_dir: String,
    /// The file that was written beside the configuration.
    config: String,
}

impl Named for HostMade {
    const KIND: &'static str = "HostMade";
}

impl Row for HostMade {
    const HEAD: &'static [&'static str] = &["NAME", "HOST", "CLUSTER", "PEER", "CONFIGURATION"];
    fn cells(&self) -> Vec<String> {
        let host = self.host.clone().unwrap_or_else(|| "-".into());
        vec![self.name.clone(), host, self.cluster.clone(), self.peer.clone(), self.config.clone()]
    }
    fn name(&self) -> String {
        self.name.clone()
    }
}

fn local(path: &Path, why: impl std::fmt::Display) -> Problem {
    Problem::new(Code::LocalFile, format!("{}: {why}", path.display()))
}

fn of_trust(e: TrustError) -> Problem {
    Problem::new(Code::LocalFile, e.to_string())
}

/// This machine, which is no host yet.
struct Machine {
    /// Without the file that these commands write.
    config: Config,
    /// The configuration beside which they write it.
    main: PathBuf,
}

impl Machine {
    /// # Errors
    /// It is a host already, or its configuration is no good, or says that there is no TLS.
    fn fresh(main: &Path) -> Result<Self, Problem> {
        let file = main.parent().unwrap_or(Path::new(".")).join("conf.d").join(FILE);
        match std::fs::read_to_string(&file) {
            Ok(text) if !text.starts_with(MARK) => {
                let detail = format!("{} is not of this command's making", file.display());
                return Err(Problem::new(Code::Exists, detail).hint("give it another name"));
            }
            Ok(_) => {}
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(local(&file, e)),
        }
        let config = Config::load_with(main, config::environment()?, Some((&file, "")))?;
        let data = &config.data_dir;
        if !config.tls {
            let detail = format!("network.tls is false in {}", main.display());
            return Err(Problem::new(Code::Conflict, detail).hint(
                "hosts without TLS need no certificates: start the daemon (docs/install.md)",
            ));
        }
        // Made here, it would belong to whoever runs this, not to whom the daemon runs as.
        if !data.is_dir() {
            let detail = format!("host.data_dir, {}, does not exist", data.display());
            return Err(Problem::new(Code::LocalFile, detail).hint(format!(
                "the package makes it; else: install -d -m 0750 -o USER {}, with the user that \
                 the daemon runs as",
                data.display()
            )));
        }
        if etcd_member::has_run(data) {
            let dir = data.join(etcd_member::DIR);
            let detail = format!("a member of etcd has run on this machine: {}", dir.display());
            return Err(Problem::new(Code::Exists, detail).hint(format!(
                "if its cluster is given up, or goes on without this machine: systemctl stop \
                 atoll atoll-etcd, and remove {}",
                dir.display()
            )));
        }
        let mut there = ["host-id", "trust/host.crt", "trust/host.key"].iter();
        if let Some(found) = there.find(|name| data.join(name).symlink_metadata().is_ok()) {
            let detail =
                format!("this machine is a host already: {} is there", data.join(found).display());
            return Err(Problem::new(Code::Exists, detail).hint(format!(
                "'atoll host list' shows its cluster. To make it another host, after it was \
                 removed from its cluster: remove {0}/host-id and {0}/trust, and wipe its disks",
                data.display()
            )));
        }
        Ok(Self { config, main: main.to_owned() })
    }

    fn file(&self) -> PathBuf {
        self.main.parent().unwrap_or(Path::new(".")).join("conf.d").join(FILE)
    }

    fn trust(&self) -> PathBuf {
        self.config.data_dir.join(DIR)
    }

    /// The cluster that it has belonged to, if it was a host before.
    ///
    /// # Errors
    /// It cannot be told.
    fn cluster(&self) -> Result<Option<ClusterId>, Problem> {
        let path = self.config.data_dir.join("cluster-id");
        match std::fs::read_to_string(&path) {
            Ok(text) => text.trim().parse().map(Some).map_err(|e: String| local(&path, e)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(local(&path, e)),
        }
    }

    /// # Errors
    /// It was a host of another cluster.
    fn may_be_of(&self, cluster: ClusterId) -> Result<(), Problem> {
        match self.cluster()? {
            Some(before) if before != cluster => {
                let detail = format!("this machine has belonged to cluster {before}");
                Err(Problem::new(Code::Conflict, detail).hint(format!(
                    "if that cluster is given up: remove {}/cluster-id",
                    self.config.data_dir.display()
                )))
            }
            _ => Ok(()),
        }
    }

    /// Whether all that is written can be, before anything is.
    fn make_room(&self) -> Result<(), Problem> {
        let file = self.file();
        let beside = file.parent().expect("it is in conf.d");
        let exists = beside.is_dir();
        DirBuilder::new().recursive(true).create(beside).map_err(|e| local(beside, e))?;
        if !exists {
            // Whatever the umask: the daemon reads it.
            let mode = Permissions::from_mode(0o755);
            std::fs::set_permissions(beside, mode).map_err(|e| local(beside, e))?;
        }
        for dir in [&*self.config.data_dir, beside] {
            access(dir, Access::WRITE_OK).map_err(|e| local(dir, e))?;
        }
        Ok(())
    }

    /// Where it is reached: as it is configured, if somebody has; else at that address.
    fn places(&self, chosen: Option<IpAddr>, found: IpAddr) -> Places {
        let default = Config::default();
        let (peers, api) = (&self.config.peers, self.config.api);
        let peer = match chosen {
            None if *peers != default.peers => None,
            chosen => Some(SocketAddr::new(chosen.unwrap_or(found), PEER_PORT)),
        };
        // In the network of the hosts, unless somebody says otherwise.
        let at = peer.unwrap_or(peers[0]).ip();
        let api = (api == default.api).then(|| SocketAddr::new(at, API_PORT));
        let member = self.config.member.unwrap_or_else(|| MemberAddresses {
            clients: SocketAddr::new(at, MEMBER_PORT),
            peers: SocketAddr::new(at, MEMBER_PEER_PORT),
        });
        Places { peer, api, member }
    }

    /// Section `directory` of a host of a cluster that runs etcd itself.
    fn managed_keys(
        &self,
        places: &Places,
        endpoints: &[String],
        prefix: &str,
    ) -> Vec<(&'static str, String)> {
        let mut keys = etcd_keys(endpoints, prefix, None, None);
        keys.push(("managed", "true".into()));
        if self.config.member.is_none() {
            let MemberAddresses { clients, peers } = places.member;
            keys.push(("member", quoted(&clients.to_string())));
            keys.push(("member_peer", quoted(&peers.to_string())));
        }
        keys
    }

    /// Its configuration with that text in the file that these commands write.
    ///
    /// # Errors
    /// It would be no good.
    fn configured(&self, text: &str) -> Result<Config, Problem> {
        Config::load_with(&self.main, config::environment()?, Some((&*self.file(), text)))
    }

    /// Writes the file beside the configuration, durably.
    fn configure(&self, text: &str) -> Result<(), Problem> {
        let beside = self.main.parent().unwrap_or(Path::new(".")).join("conf.d");
        atoll_trust::write_public(&beside, FILE, text).map_err(of_trust)
    }

    /// Takes back what was written, so that it can be tried again.
    fn undo(&self) {
        etcd_member::undo(&self.config.data_dir);
        for path in ["authority.crt", "host.crt", "host.key", ETCD_CA].map(|n| self.trust().join(n))
        {
            let _ = std::fs::remove_file(path);
        }
        let _ = std::fs::remove_file(self.file());
    }
}

/// Addresses that go into the configuration; none: they are there.
struct Places {
    peer: Option<SocketAddr>,
    api: Option<SocketAddr>,
    /// Where its member of etcd is, wherever that is said.
    member: MemberAddresses,
}

/// A string of TOML.
fn quoted(text: &str) -> String {
    serde_json::to_string(text).expect("text")
}

/// What is written for `command`, of those that know.
fn toml(command: &str, places: &Places, directory: &[(&str, String)]) -> String {
    let mut out = format!("{MARK} {command}'. Later files of this directory win over it.\n");
    if places.peer.is_some() || places.api.is_some() {
        out += "[network]\n";
    }
    if let Some(api) = places.api {
        out += &format!("api = {}\n", quoted(&api.to_string()));
    }
    if let Some(peer) = places.peer {
        out += &format!("peer = [{}]\n", quoted(&peer.to_string()));
    }
    if !directory.is_empty() {
        out += "[directory]\n";
    }
    for (key, value) in directory {
        out += &format!("{key} = {value}\n");
    }
    out
}

/// Keys of section `directory` for etcd.
fn etcd_keys(
    endpoints: &[String],
    prefix: &str,
    ca: Option<&Path>,
    identity: Option<(&Path, &Path)>,
) -> Vec<(&'static str, String)> {
    let path = |path: &Path| quoted(&path.to_string_lossy());
    let mut keys = vec![
        ("kind", quoted("etcd")),
        ("endpoints", serde_json::to_string(endpoints).expect("text")),
        ("prefix", quoted(prefix)),
    ];
    keys.extend(ca.map(|ca| ("ca", path(ca))));
    if let Some((certificate, key)) = identity {
        keys.extend([("certificate", path(certificate)), ("key", path(key))]);
    }
    keys
}

/// By which of its addresses this machine would reach that one.
fn own_address(of: SocketAddr) -> Option<IpAddr> {
    let any: SocketAddr = if of.is_ipv4() {
        (Ipv4Addr::UNSPECIFIED, 0).into()
    } else {
        (std::net::Ipv6Addr::UNSPECIFIED, 0).into()
    };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(of).ok()?;
    socket.local_addr().ok().map(|own| own.ip())
}

/// What somebody types as an answer; the default, if there is nobody or he types nothing.
async fn answer(context: &Context, question: &str, default: &str) -> Result<String, Failure> {
    if context.globals.yes || !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Ok(default.to_owned());
    }
    let shown = if default.is_empty() { String::new() } else { format!(" [{default}]") };
    let line = typed(format!("{question}{shown}: ")).await?;
    Ok(if line.is_empty() { default.to_owned() } else { line })
}

async fn typed(prompt: String) -> Result<String, Failure> {
    let read = tokio::task::spawn_blocking(move || {
        let _ = write!(std::io::stderr(), "{prompt}");
        let _ = std::io::stderr().flush();
        let mut line = String::new();
        let mut input = std::io::stdin().lock().take(TOKEN_MAX);
        input.read_line(&mut line).map(|_| line.trim().to_owned())
    });
    let line = read.await.map_err(|e| Problem::new(Code::Failed, e.to_string()))?;
    Ok(line.map_err(|e| Problem::new(Code::LocalFile, format!("standard input: {e}")))?)
}

/// Asks for what the command line does not say of etcd.
async fn asked_etcd(context: &Context, init: &mut Init) -> Run {
    if !init.etcd.is_empty() || init.embedded {
        return Ok(());
    }
    let question = "Members of an etcd that is there already, host:port with commas between \
                    (none: hosts run their own)";
    let text = answer(context, question, "").await?;
    let members = text.split(',').map(str::trim).filter(|member| !member.is_empty());
    init.etcd = members.map(str::to_owned).collect();
    if init.etcd.is_empty() {
        return Ok(());
    }
    let file = async |question: &str| -> Result<Option<PathBuf>, Failure> {
        let text = answer(context, question, "").await?;
        Ok((!text.is_empty()).then(|| text.into()))
    };
    init.etcd_ca = file("Who signed the certificates of etcd, a PEM file (none: no TLS)").await?;
    if init.etcd_ca.is_some() {
        let question = "Certificate of this host for etcd, a PEM file (none: etcd asks for none)";
        init.etcd_certificate = file(question).await?;
    }
    if init.etcd_certificate.is_some() {
        init.etcd_key = file("Key of that certificate, a PEM file").await?;
    }
    Ok(())
}

/// Runs `atoll cluster init`.
///
/// # Errors
/// This machine is a host already; its files cannot be written.
pub async fn init(context: &Context, mut init: Init) -> Run {
    let machine = Machine::fresh(&init.config)?;
    if let Some(cluster) = machine.cluster()? {
        let detail = format!("this machine has belonged to cluster {cluster}");
        return Err(Problem::new(Code::Conflict, detail)
            .hint(format!(
                "'atoll cluster join' joins it; if that cluster is given up: remove {}/cluster-id",
                machine.config.data_dir.display()
            ))
            .into());
    }
    let found = own_address(ANYWHERE).unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    if init.address.is_none() && machine.config.peers == Config::default().peers {
        let question = "Address of this machine in the network of the hosts";
        let text = answer(context, question, &found.to_string()).await?;
        let bad = |_| Problem::new(Code::Usage, format!("'{text}' is no IP address"));
        init.address = Some(text.parse().map_err(bad)?);
    }
    asked_etcd(context, &mut init).await?;
    let places = machine.places(init.address, found);
    let identity = init.etcd_certificate.as_deref().zip(init.etcd_key.as_deref());
    let is_managed = init.etcd.is_empty() && !init.embedded;
    let directory = match is_managed {
        _ if init.embedded => Vec::new(),
        true => machine.managed_keys(&places, &[places.member.clients.to_string()], "/atoll"),
        false => etcd_keys(&init.etcd, "/atoll", init.etcd_ca.as_deref(), identity),
    };
    let text = toml("init", &places, &directory);
    let configured = machine.configured(&text)?;
    if is_managed {
        super::etcd::check_program(context)?;
    }
    let (data, now) = (machine.config.data_dir.clone(), now_s());
    let kept = data.join(AUTHORITY_DIR);
    // One that is there was made by an init that did not come to its end, or by hand.
    let is_there = Authority::is_in(&kept);
    let authority = match is_there {
        true => Authority::load(&kept),
        false => Authority::create(ClusterId(random_id()?), &machine.config.host_name, now),
    };
    let authority = authority.map_err(of_trust)?;
    let host = HostId(random_id()?);
    let made = HostMade {
        host: (!context.globals.dry_run).then(|| host.to_string()),
        name: machine.config.host_name.clone(),
        cluster: authority.cluster().to_string(),
        peer: places.peer.unwrap_or(machine.config.peers[0]).to_string(),
        data_dir: data.display().to_string(),
        config: machine.file().display().to_string(),
    };
    if context.globals.dry_run {
        context.out.note(&format!("would be written to {}:\n{text}", made.config));
        return context.out.one(&Item::new(made, now * 1000));
    }
    machine.make_room()?;
    // Of an attempt that was cut off.
    etcd_member::undo(&machine.config.data_dir);
    let write = || {
        if !is_there {
            authority.save(&kept).map_err(of_trust)?;
        }
        give_to_owner(&kept)?;
        machine.configure(&text)?;
        if is_managed {
            let first = MemberStart::first(host, places.member);
            etcd_member::store(&data, Some(&first))?;
            give_to_owner(&data.join(etcd_member::DIR))?;
        }
        let named = NamedHost { host, addresses: configured.addresses() };
        let equipped = authority.equip(named, now, HOST_VALID_S).map_err(of_trust)?;
        equipped.save(&machine.trust()).map_err(of_trust)?;
        give_to_owner(&machine.trust())
    };
    write().inspect_err(|_: &Problem| machine.undo())?;
    context.out.one(&Item::new(made, now * 1000))?;
    let further = match init.embedded {
        true => "other machines cannot join: the state of the cluster is on this one alone",
        false => "then, for each further machine: atoll cluster join-token",
    };
    context.out.note(&format!(
        "keep a copy of {}: whoever has it can be any host, and without it nobody joins\n\
         next: atoll host prepare --check && systemctl enable --now atoll\n{further}",
        kept.display()
    ));
    Ok(())
}

/// Runs `atoll cluster join-token`.
///
/// # Errors
/// As the server says.
pub async fn join_token(context: &Context, args: JoinTokenArgs) -> Run {
    let JoinTokenArgs { name, expires, address } = args;
    if let Some(name) = &name {
        name::check("token", name).map_err(|why| Problem::new(Code::BadName, why))?;
    }
    let valid_s = expires.map(|valid| valid.as_secs());
    let request = types::JoinTokenCreate { name, valid_s, addresses: address };
    let call = context.change(Call::to(Op::JoinTokenCreate, &[])).json(&request);
    let made = context.item::<types::JoinTokenMade>(call).await?;
    let types::Token { name, expires, .. } = &made.item.token;
    let (until, at) = (expires.as_deref().unwrap_or_default(), made.item.addresses.join(", "));
    context.say(&format!(
        "token {name}: one machine that reaches {at} joins by it until {until}, with: atoll \
         cluster join --token-file FILE"
    ));
    let secret = |made: &types::JoinTokenMade| {
        made.secret.as_ref().map_or_else(String::new, |secret| format!("{secret}\n"))
    };
    context.out.item(&made, |made| made.token.name.clone(), secret)
}

/// The token for joining: of `--token-file`, the environment, or standard input.
async fn given_token(context: &Context) -> Result<JoinToken, Failure> {
    let (text, place) = match (&context.globals.token_file, of_environment()) {
        (Some(file), _) => {
            let open = File::open(file).and_then(|f| std::io::read_to_string(f.take(TOKEN_MAX)));
            (open.map_err(|e| local(file, e))?, format!("--token-file {}", file.display()))
        }
        (None, Some(text)) => (text, "environment variable ATOLL_TOKEN".into()),
        (None, None) => {
            let prompt = match std::io::stdin().is_terminal() {
                true => "Token ('atoll cluster join-token', on a host, makes one): ",
                false => "",
            };
            (typed(prompt.into()).await?, "standard input".into())
        }
    };
    let read = JoinToken::read(&text).map_err(|why| {
        Problem::new(Code::Usage, format!("{place} holds no token for joining: {why}"))
            .hint("'atoll cluster join-token', on a host of the cluster, makes one")
    });
    Ok(read?)
}

/// Runs `atoll cluster join`.
///
/// # Errors
/// This machine is a host already; the token is no good; the cluster refuses it; a file cannot be
/// written.
pub async fn join(context: &Context, args: JoinHost) -> Run {
    let JoinHost { address, config } = args;
    let machine = Machine::fresh(&config)?;
    let token = given_token(context).await?;
    machine.may_be_of(token.cluster)?;
    let key = HostKey::generate().map_err(of_trust)?;
    let request = types::HostJoin {
        name: machine.config.host_name.clone(),
        release: env!("CARGO_PKG_VERSION").into(),
        oldest_level: Levels::KNOWN.oldest.0,
        newest_level: Levels::KNOWN.newest.0,
        unix_ms: atoll_real::unix_ms(),
        request: key.request().map_err(of_trust)?,
        addresses: Vec::new(),
    };
    // First whether it would be taken, and whether this machine could go on from there: the token
    // is good once.
    let (told, reached) = ask(context, &token, &request, true).await?;
    if told.directory.managed {
        super::etcd::check_program(context)?;
    }
    let places = machine.places(address, own_address(reached).unwrap_or(reached.ip()));
    let mut next = String::new();
    let text =
        toml("join", &places, &directory_keys(&machine, &places, &told.directory, &mut next)?);
    let configured = machine.configured(&text).map_err(|problem| {
        let hint = problem.hint.clone().unwrap_or_default();
        let told = format!("with what the cluster says of itself, {}", problem.detail);
        Problem { detail: told, ..problem }
            .hint(format!("{hint} (the token is still good)").trim_start().to_owned())
    })?;
    let mut made = HostMade {
        host: None,
        name: machine.config.host_name.clone(),
        cluster: told.cluster.clone(),
        peer: places.peer.unwrap_or(machine.config.peers[0]).to_string(),
        data_dir: machine.config.data_dir.display().to_string(),
        config: machine.file().display().to_string(),
    };
    if context.globals.dry_run {
        context.out.note(&format!("would be written to {}:\n{text}", made.config));
        return context.out.one(&Item::new(made, now_s() * 1000));
    }
    machine.make_room()?;
    // Of an attempt that was cut off.
    etcd_member::undo(&machine.config.data_dir);
    let addresses = configured.addresses().iter().map(ToString::to_string).collect();
    let request = types::HostJoin { addresses, ..request };
    let (joined, _) = ask(context, &token, &request, false).await?;
    let write = || {
        let given = joined.certificate.as_deref().unwrap_or_default();
        let credentials = key.certified(given, &joined.authority).map_err(of_trust)?;
        believed(&credentials, &token)?;
        machine.configure(&text)?;
        if let Some(ca) = joined.directory.ca.as_ref().filter(|_| !joined.directory.managed) {
            atoll_trust::write_public(&machine.trust(), ETCD_CA, ca).map_err(of_trust)?;
        }
        if joined.directory.managed {
            let data = &machine.config.data_dir;
            etcd_member::remember(data, joined.directory.endpoints.clone())?;
            give_to_owner(&data.join(etcd_member::DIR))?;
        }
        credentials.save(&machine.trust()).map_err(of_trust)?;
        give_to_owner(&machine.trust())
    };
    write().map_err(|problem| {
        machine.undo();
        problem.hint("the token is used up: when this is mended, join by another one")
    })?;
    made.host.clone_from(&joined.id);
    context.out.one(&Item::new(made, now_s() * 1000))?;
    context
        .out
        .note(&format!("next: {next}atoll host prepare --check && systemctl enable --now atoll"));
    Ok(())
}

/// Whether what was given is of the authority that the token names, and good now.
fn believed(given: &Credentials, token: &JoinToken) -> Result<(), Problem> {
    if given.authority_sha256() != token.authority_sha256 {
        let detail = "the host gave a certificate of another authority than the token names";
        return Err(Problem::new(Code::WrongServer, detail));
    }
    given.validity().check(now_s()).map_err(of_trust)
}

/// Section `directory` of a machine that joins; what is to be done before it starts is added to
/// `next`.
fn directory_keys(
    machine: &Machine,
    places: &Places,
    told: &JoinDirectory,
    next: &mut String,
) -> Result<Vec<(&'static str, String)>, Problem> {
    if told.managed {
        return Ok(machine.managed_keys(places, &told.endpoints, &told.prefix));
    }
    let trust = machine.trust();
    let (certificate, key) = (trust.join("host.crt"), trust.join("host.key"));
    let identity = match told.client {
        EtcdClient::Nobody => None,
        EtcdClient::Host => Some((&*certificate, &*key)),
        EtcdClient::Own => {
            *next = "etcd asks hosts for a certificate of its own authority: set \
                     directory.certificate and directory.key; then "
                .into();
            None
        }
    };
    let ca = told.ca.as_ref().map(|_| trust.join(ETCD_CA));
    Ok(etcd_keys(&told.endpoints, &told.prefix, ca.as_deref(), identity))
}

/// Asks the hosts of the token, one after the other, until one answers: its answer, and where it
/// is.
async fn ask(
    context: &Context,
    token: &JoinToken,
    request: &types::HostJoin,
    dry_run: bool,
) -> Result<(HostJoined, SocketAddr), Failure> {
    let ApiTrust { config, name } =
        ApiTrust::pinned(token.cluster, token.authority_sha256.clone()).map_err(of_trust)?;
    let timeout = Duration::from_secs(context.globals.timeout);
    let mut last = None;
    for address in &token.addresses {
        let found = tokio::time::timeout(timeout, tokio::net::lookup_host(address)).await;
        let place = match found.map(|all| all.map(|mut all| all.next())) {
            Ok(Ok(Some(place))) => place,
            _ => {
                let detail = format!("{address}: there is no such host, or no answer where it is");
                last = Some(Problem::new(Code::CannotConnect, detail));
                continue;
            }
        };
        let tls = Tls { config: config.clone(), name: name.clone(), ca: PathBuf::new() };
        let secret = Token { secret: token.secret.reveal().to_owned(), file: None };
        let endpoint = Endpoint::Tls(address.clone());
        let client = Client::new(endpoint, timeout).with(Some(tls), Some(secret));
        let call = Call::to(Op::HostJoin, &[]).json(request);
        let call = if dry_run { call.query("dry_run", "true") } else { call };
        match client.item::<HostJoined>(call).await {
            Ok(joined) => return Ok((joined.item, place)),
            // Nothing was asked there.
            Err(problem) if problem.code == Code::CannotConnect => last = Some(problem),
            Err(problem) => return Err(problem.into()),
        }
    }
    Err(last.expect("a token has an address").into())
}

//! `atoll etcd run`: this host's own member of the cluster's etcd, as a unit or a supervisor runs
//! it.

use super::args::Etcd;
use super::context::Context;
use super::out::Run;
use crate::config::{self, Config, MemberAddresses};
use crate::etcd_member::{self, MemberStart};
use crate::trust::now_s;
use atoll_api::{Code, Problem};
use atoll_etcd::version::{RECOMMENDED, Verdict, Version, floor};
use atoll_trust::Credentials;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;
use tokio::net::TcpListener;

/// How often it is looked whether this host has been made a member.
const LOOK_EVERY: Duration = Duration::from_millis(500);
const INSTALL: &str = "apt install etcd-server; or --etcd and --embedded of 'atoll cluster init'";

/// The release of this machine's etcd, which may run a member. What is to be said of it is said.
///
/// # Errors
/// It is not installed, or too old.
pub fn check_program(context: &Context) -> Result<Version, Problem> {
    let refused = |why: String| Problem::new(Code::LocalFile, why).hint(INSTALL);
    let told = Command::new("etcd").arg("--version").output();
    let told = told.map_err(|e| refused(format!("cannot run etcd, which hosts need: {e}")))?;
    let text = String::from_utf8_lossy(&told.stdout);
    let version = text.lines().find_map(|line| line.strip_prefix("etcd Version:")).map(str::trim);
    let version = version.ok_or_else(|| refused("etcd does not tell its release".into()))?;
    let odd = || refused(format!("etcd calls its release '{version}', which is none"));
    let version = Version::parse(version).ok_or_else(odd)?;
    match version.verdict() {
        Verdict::Refused => {
            return Err(refused(format!(
                "etcd {version} is installed, whose members may hold different data; {} or newer \
             is needed, {RECOMMENDED} is recommended",
                floor()
            )));
        }
        Verdict::Good => {}
        Verdict::Defective => {
            context.out.note(&format!("etcd {version} has defects that {RECOMMENDED} has not"));
        }
    }
    Ok(version)
}

/// Whether others would know this host by the addresses of its member.
///
/// # Errors
/// Its certificate has not got one of them, or cannot be read.
fn is_named(config: &Config, at: MemberAddresses) -> Result<(), Problem> {
    let dir = config.data_dir.join(config::TRUST_DIR);
    let credentials = Credentials::load(&dir).map_err(|e| {
        Problem::new(Code::LocalFile, e.to_string())
            .hint("'atoll cluster init' and 'atoll cluster join' make this host's certificate")
    })?;
    let mut both = [at.clients.ip(), at.peers.ip()].into_iter();
    match both.find(|ip| !credentials.has_address(*ip)) {
        None => Ok(()),
        Some(ip) => {
            let detail =
                format!("the certificate in {} has not got the address {ip}", dir.display());
            Err(Problem::new(Code::Conflict, detail)
                .hint("'atoll cluster certificate' with --address makes one that has it"))
        }
    }
}

/// Closes the next connection.
async fn turn_away(listener: &TcpListener) {
    if listener.accept().await.is_err() {
        // Of file descriptors, perhaps: there is no hurry.
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Waits until this host is made a member; none: it was interrupted. Who adds members looks
/// meanwhile whether somebody listens here: that the unit runs, with an etcd that is good, and that
/// no firewall is between. Connections are closed at once, so that the next one finds room.
///
/// # Errors
/// Somebody else listens there; the file cannot be read.
async fn wait_for_member(
    context: &Context,
    config: &Config,
    at: MemberAddresses,
) -> Result<Option<MemberStart>, Problem> {
    let listen = async |address: SocketAddr, key: &str| {
        TcpListener::bind(address).await.map_err(|e| {
            let detail = format!("cannot listen at {address} ({key}): {e}");
            Problem::new(Code::AddressInUse, detail).hint(
                "another etcd may run on this machine: that of Debian's package is stopped by \
                 'systemctl disable --now etcd'",
            )
        })
    };
    let clients = listen(at.clients, "directory.member").await?;
    let peers = listen(at.peers, "directory.member_peer").await?;
    context.out.note("this host has no member of etcd yet: it waits for one");
    let mut look = tokio::time::interval(LOOK_EVERY);
    loop {
        tokio::select! {
            _ = context.interrupt.wait() => return Ok(None),
            _ = look.tick() => {
                if let Some(start) = etcd_member::load(&config.data_dir)? {
                    return Ok(Some(start));
                }
            }
            () = turn_away(&clients) => {}
            () = turn_away(&peers) => {}
        }
    }
}

/// Waits until this host has a member of etcd, and becomes it.
///
/// # Errors
/// The configuration says that it never has one; etcd cannot be run.
pub async fn run(context: &Context, command: Etcd) -> Run {
    let Etcd::Run { config } = command;
    let main = config;
    let config = Config::load(&main, config::environment()?)?;
    let Some(at) = config.member.filter(|_| config.managed) else {
        let detail = format!("the configuration, {}, has no member of etcd", main.display());
        return Err(Problem::new(Code::Conflict, detail)
            .hint("directory.managed, member and member_peer: 'atoll cluster init' writes them")
            .into());
    };
    let version = check_program(context)?;
    is_named(&config, at)?;
    let start = match etcd_member::load(&config.data_dir)? {
        Some(start) => start,
        None => match wait_for_member(context, &config, at).await? {
            Some(start) => start,
            None => return Ok(()),
        },
    };
    etcd_member::make_ready(&config.data_dir, &start)?;
    // Without it, the member would refuse everybody.
    if !config.data_dir.join(etcd_member::DIR).join(etcd_member::REVOKED).exists() {
        etcd_member::revoke(&config.data_dir, &[], now_s())?;
    }
    let failed = etcd_member::command(&config, at, &start, version).exec();
    Err(Problem::new(Code::LocalFile, format!("cannot run etcd: {failed}")).hint(INSTALL).into())
}

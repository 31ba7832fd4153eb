//! Commands that make a cluster's authority and the certificates of its hosts: files, no request.

use super::args::{Authority as AuthorityCommand, Certificate, DEFAULT_CONFIG};
use super::context::Context;
use super::out::{Row, Run};
use crate::config::{self, Config};
use crate::trust::now_s;
use atoll_api::envelope::{Named, rfc3339};
use atoll_api::shell::quote;
use atoll_api::{Code, Item, Problem};
use atoll_format::id::{ClusterId, HostId};
use atoll_trust::{
    AUTHORITY_VALID_S, Authority, Credentials, Identity, Named as NamedHost, TrustError,
};
use serde::Serialize;
use std::io::Read;
use std::net::IpAddr;
use std::path::Path;

/// What was made. No secret is in it.
#[derive(Serialize)]
struct ClusterAuthority {
    cluster: String,
    dir: String,
    valid_until: String,
}

impl Named for ClusterAuthority {
    const KIND: &'static str = "ClusterAuthority";
}

impl Row for ClusterAuthority {
    const HEAD: &'static [&'static str] = &["CLUSTER", "DIRECTORY", "VALID UNTIL"];
    fn cells(&self) -> Vec<String> {
        vec![self.cluster.clone(), self.dir.clone(), self.valid_until.clone()]
    }
    fn name(&self) -> String {
        self.cluster.clone()
    }
}

/// What was made. No secret is in it.
#[derive(Serialize)]
struct HostCertificate {
    host: String,
    cluster: String,
    dir: String,
    valid_until: String,
}

impl Named for HostCertificate {
    const KIND: &'static str = "HostCertificate";
}

impl Row for HostCertificate {
    const HEAD: &'static [&'static str] = &["HOST", "CLUSTER", "DIRECTORY", "VALID UNTIL"];
    fn cells(&self) -> Vec<String> {
        vec![self.host.clone(), self.cluster.clone(), self.dir.clone(), self.valid_until.clone()]
    }
    fn name(&self) -> String {
        self.host.clone()
    }
}

fn failed(e: TrustError) -> Problem {
    Problem::new(Code::LocalFile, e.to_string())
}

/// A new identity, from the system's entropy.
///
/// # Errors
/// The system has none.
pub fn random_id() -> Result<u64, Problem> {
    let mut bytes = [0; 8];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|e| Problem::new(Code::LocalFile, format!("/dev/urandom: {e}")))?;
    Ok(u64::from_le_bytes(bytes))
}

/// Runs `atoll cluster authority`.
///
/// # Errors
/// There is one already, or its files cannot be written.
pub fn authority(context: &Context, command: AuthorityCommand) -> Run {
    let AuthorityCommand::Create { dir, cluster } = command;
    let cluster = cluster.map_or_else(|| random_id().map(ClusterId), Ok)?;
    let now = now_s();
    let authority = Authority::create(cluster, "atoll", now).map_err(failed)?;
    authority.save(&dir).map_err(failed)?;
    let made = ClusterAuthority {
        cluster: cluster.to_string(),
        dir: dir.display().to_string(),
        valid_until: rfc3339((now + AUTHORITY_VALID_S) * 1000),
    };
    context.out.one(&Item::new(made, now * 1000))?;
    let dir = quote(&dir);
    context.out.note(&format!(
        "keep {dir}/authority.key secret, and a copy of it: whoever has it can be any host\n\
         next: atoll cluster certificate --authority {dir} --out DIR, for each host"
    ));
    Ok(())
}

/// Runs `atoll cluster certificate`.
///
/// # Errors
/// The authority cannot be read, `--out` is another host's or cluster's, or cannot be written.
pub fn certificate(context: &Context, command: &Certificate) -> Run {
    let Certificate { host, address, authority, out, valid } = command;
    let authority = Authority::load(authority).map_err(|e| {
        failed(e).hint("atoll cluster authority create makes one, once for a cluster")
    })?;
    // What cannot be read is replaced, if it is said whose it was: perhaps that is why there is to
    // be another one.
    let before = match Credentials::load(out) {
        Ok(before) => Some(before.identity()),
        Err(e) if host.is_none() && out.join("host.crt").exists() => {
            let hint = "name the host's id (atoll host list -o wide) to replace it, or remove it";
            return Err(failed(e).hint(hint).into());
        }
        Err(_) => None,
    };
    let other = |what: &str| {
        let detail = format!("{} has the certificate of another {what}", out.display());
        Problem::new(Code::Conflict, detail).hint("name another --out, or remove that one")
    };
    let host = match (before, *host) {
        (Some(Identity { cluster, .. }), _) if cluster != authority.cluster() => {
            return Err(other("cluster").into());
        }
        (Some(before), Some(host)) if before.host != host => return Err(other("host").into()),
        (Some(Identity { host, .. }), _) | (None, Some(host)) => host,
        (None, None) => HostId(random_id()?),
    };
    let now = now_s();
    let addresses = if address.is_empty() { configured(out) } else { address.clone() };
    let named = NamedHost { host, addresses };
    let made = authority.equip(named, now, valid.as_secs()).map_err(failed)?;
    made.save(out).map_err(failed)?;
    give_to_owner(out)?;
    let made = HostCertificate {
        host: host.to_string(),
        cluster: authority.cluster().to_string(),
        dir: out.display().to_string(),
        valid_until: rfc3339(made.validity().until_s * 1000),
    };
    context.out.one(&Item::new(made, now * 1000))
}

/// The addresses of the host of this machine, if that is its directory: what it is not told of.
fn configured(out: &Path) -> Vec<IpAddr> {
    let config =
        config::environment().and_then(|vars| Config::load(Path::new(DEFAULT_CONFIG), vars));
    let Ok(config) = config else { return Vec::new() };
    let own = config.data_dir.join(config::TRUST_DIR);
    let is_own = std::fs::canonicalize(own).ok() == std::fs::canonicalize(out).ok();
    if is_own { config.addresses() } else { Vec::new() }
}

/// What the commands that make certificates write, all in one directory of it.
const OURS: [&str; 7] = [
    "authority.crt",
    "authority.key",
    "host.crt",
    "host.key",
    crate::trust::ETCD_CA,
    crate::etcd_member::START,
    crate::etcd_member::SEEN,
];

/// Made by root, our files in that directory belong to whom the directory around them belongs: the
/// host, which has to read them, does not run as root.
pub fn give_to_owner(dir: &Path) -> Result<(), Problem> {
    use std::os::unix::fs::{MetadataExt, lchown};
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let give = || {
        let around = std::fs::canonicalize(dir)?.join("..").metadata()?;
        let (user, group) = (Some(around.uid()), Some(around.gid()));
        // The daemon may write there: what it has put in a file's place is not followed.
        for name in OURS {
            match lchown(dir.join(name), user, group) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        lchown(dir, user, group)
    };
    give().map_err(|e: std::io::Error| {
        Problem::new(Code::LocalFile, format!("{}: {e}", dir.display()))
    })
}

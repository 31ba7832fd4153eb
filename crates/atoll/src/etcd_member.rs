//! This host's own member of etcd: the files below `host.data_dir`, and what etcd is started with.
//!
//! | in `etcd/` | what it is | who writes it |
//! | --- | --- | --- |
//! | `member.json` | how the member is started; absent: there is none | `cluster init`, the daemon
//! |
//! | `members.json` | where all members were last seen | the daemon |
//! | `revoked.crl` | certificates that the member takes no more | the daemon, `etcd run` |
//! | `backup/*.db` | all that etcd held, every 6 hours: the last four | the daemon |
//! | another directory | etcd's own data | etcd |
//!
//! Invariants: the data of a member are never in a directory that another one had; a file that
//! cannot be read is told, and not written over by what would lose a member.

use crate::config::{Config, DirectoryConfig, MemberAddresses};
use atoll_api::{Code, Problem};
use atoll_etcd::Member;
use atoll_etcd::version::Version;
use atoll_format::id::HostId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Below `host.data_dir`.
pub const DIR: &str = "etcd";
/// In [`DIR`]: [`MemberStart`].
pub const START: &str = "member.json";
/// In [`DIR`]: [`Seen`].
pub const SEEN: &str = "members.json";
/// In [`DIR`].
pub const REVOKED: &str = "revoked.crl";
/// In [`DIR`]: what etcd held.
const BACKUPS: &str = "backup";
/// How many are kept.
const BACKUPS_MAX: usize = 4;
/// How old the newest one is when another one is made, in seconds.
const BACKUP_EVERY_S: u64 = 6 * 3600;
/// Where the data of the first member are, whose number is not known before it runs.
const FIRST: &str = "first";
/// Where the data of the member before this one are kept.
const OLD: &str = "old";
/// Of both files.
const VERSION: u16 = 1;
/// etcd takes no changes when its database has this size, in bytes; it is compacted every hour.
const QUOTA_BYTES: u64 = 4 << 30;

/// How this host's member of etcd is started.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberStart {
    version: u16,
    /// Its number, in hexadecimal digits; none: the first of a new etcd, which has not run yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    member: Option<String>,
    /// Its name: the host's id.
    name: String,
    /// Where its data are, in [`DIR`].
    data: String,
    /// Whether etcd begins with it.
    is_first: bool,
    /// All members when it became one: `NAME=URL`.
    members: Vec<String>,
}

/// Where members were seen.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Seen {
    version: u16,
    endpoints: Vec<String>,
}

fn peer_url(at: MemberAddresses) -> String {
    format!("https://{}", at.peers)
}

impl MemberStart {
    /// The first member of a new etcd.
    pub fn first(host: HostId, at: MemberAddresses) -> Self {
        let name = host.to_string();
        let members = vec![format!("{name}={}", peer_url(at))];
        let data = FIRST.into();
        Self { version: VERSION, member: None, name, data, is_first: true, members }
    }

    /// What the member of this host is to be started with, if `members` are all and `now` is what
    /// it was started with before; none: this host has no member.
    pub fn wanted(
        members: &[Member],
        host: HostId,
        at: MemberAddresses,
        now: Option<&Self>,
    ) -> Option<Self> {
        let (name, url) = (host.to_string(), peer_url(at));
        let is_own = |m: &&Member| m.name == name || m.name.is_empty() && m.peers.contains(&url);
        let own = members.iter().find(is_own)?;
        let id = format!("{:016x}", own.id);
        match now {
            Some(now) if now.member.as_ref().is_none_or(|member| *member == id) => {
                Some(Self { member: Some(id), ..now.clone() })
            }
            _ => {
                let named = |m: &Member| {
                    let name = if m.id == own.id { &name } else { &m.name };
                    m.peers.iter().map(move |url| format!("{name}={url}")).collect::<Vec<_>>()
                };
                let members = members.iter().flat_map(named).collect();
                let (member, data) = (Some(id.clone()), id);
                Some(Self { version: VERSION, member, name, data, is_first: false, members })
            }
        }
    }

    /// The text of its file.
    pub fn text(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain fields") + "\n"
    }

    /// What that release of etcd is started with. No secret is in it.
    fn arguments(&self, config: &Config, at: MemberAddresses, etcd: Version) -> Vec<String> {
        let dir = config.data_dir.join(DIR);
        let shown = |path: PathBuf| path.display().to_string();
        let (clients, peers) = (format!("https://{}", at.clients), peer_url(at));
        let trust = config.data_dir.join(crate::config::TRUST_DIR);
        let (ca, certificate, key) = (
            shown(trust.join("authority.crt")),
            shown(trust.join("host.crt")),
            shown(trust.join("host.key")),
        );
        let revoked = shown(dir.join(REVOKED));
        let state = if self.is_first { "new" } else { "existing" };
        // By which of its addresses a member reaches another one, its system decides.
        let from_anywhere = match etcd.is_at_least(3, 6) {
            true => "peer-skip-client-san-verification",
            false => "experimental-peer-skip-client-san-verification",
        };
        let mut all = Vec::new();
        for (name, value) in [
            ("name", &*self.name),
            ("data-dir", &shown(dir.join(&self.data))),
            ("initial-cluster", &self.members.join(",")),
            ("initial-cluster-state", state),
            ("initial-cluster-token", "atoll"),
            ("listen-client-urls", &clients),
            ("advertise-client-urls", &clients),
            ("listen-peer-urls", &peers),
            ("initial-advertise-peer-urls", &peers),
            ("trusted-ca-file", &ca),
            ("cert-file", &certificate),
            ("key-file", &key),
            ("client-cert-auth", "true"),
            ("client-crl-file", &revoked),
            ("peer-trusted-ca-file", &ca),
            ("peer-cert-file", &certificate),
            ("peer-key-file", &key),
            ("peer-client-cert-auth", "true"),
            ("peer-crl-file", &revoked),
            (from_anywhere, "true"),
            ("auto-compaction-mode", "periodic"),
            ("auto-compaction-retention", "1h"),
            ("quota-backend-bytes", &QUOTA_BYTES.to_string()),
            ("logger", "zap"),
            ("log-outputs", "stderr"),
        ] {
            all.push(format!("--{name}={value}"));
        }
        all
    }
}

fn failed(path: &Path, why: impl std::fmt::Display) -> Problem {
    Problem::new(Code::LocalFile, format!("{}: {why}", path.display()))
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, Problem> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed(path, e)),
    };
    serde_json::from_str(&text).map(Some).map_err(|e| failed(path, e))
}

/// How the member of that host is started; none: it has no member.
///
/// # Errors
/// The file cannot be read, or is of another release.
pub fn load(data_dir: &Path) -> Result<Option<MemberStart>, Problem> {
    let path = data_dir.join(DIR).join(START);
    let start: Option<MemberStart> = read(&path)?;
    match start {
        Some(MemberStart { version, .. }) if version != VERSION => {
            Err(failed(&path, format!("version {version}, and this program knows {VERSION}")))
        }
        start => Ok(start),
    }
}

/// Writes how it is started, durably; nothing: it is not. Data of a member that it was before are
/// kept aside: one such copy.
///
/// # Errors
/// The file system refuses.
pub fn store(data_dir: &Path, start: Option<&MemberStart>) -> Result<(), Problem> {
    let dir = data_dir.join(DIR);
    let Some(start) = start else {
        return match std::fs::remove_file(dir.join(START)) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(failed(&dir.join(START), e)),
            _ => Ok(()),
        };
    };
    if let Some(before) = load(data_dir)?.filter(|before| before.data != start.data) {
        let (from, to) = (dir.join(before.data), dir.join(OLD));
        if from.is_dir() {
            let removed = match std::fs::remove_dir_all(&to) {
                Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
                removed => removed,
            };
            removed.and_then(|()| std::fs::rename(&from, &to)).map_err(|e| failed(&from, e))?;
        }
    }
    let written = atoll_trust::write_public(&dir, START, &start.text());
    written.map_err(|e| Problem::new(Code::LocalFile, e.to_string()))
}

/// Takes back what a command has written that failed: no member has run yet.
pub fn undo(data_dir: &Path) {
    for name in [START, SEEN] {
        let _ = std::fs::remove_file(data_dir.join(DIR).join(name));
    }
    // Empty by then.
    let _ = std::fs::remove_dir(data_dir.join(DIR));
}

/// Writes which hosts' certificates the member takes no more.
///
/// # Errors
/// The file system refuses.
pub fn revoke(data_dir: &Path, hosts: &[HostId], now_s: u64) -> Result<(), Problem> {
    let list = atoll_trust::revocations(hosts, now_s);
    let written =
        list.and_then(|list| atoll_trust::write_public(&data_dir.join(DIR), REVOKED, &list));
    written.map_err(|e| Problem::new(Code::LocalFile, e.to_string()))
}

/// Remembers where all members are.
///
/// # Errors
/// The file system refuses.
pub fn remember(data_dir: &Path, endpoints: Vec<String>) -> Result<(), Problem> {
    let seen = Seen { version: VERSION, endpoints };
    let text = serde_json::to_string(&seen).expect("plain fields") + "\n";
    let written = atoll_trust::write_public(&data_dir.join(DIR), SEEN, &text);
    written.map_err(|e| Problem::new(Code::LocalFile, e.to_string()))
}

/// Adds the members that were there when this host last ran to those of its configuration.
///
/// # Errors
/// The file cannot be read: then the configuration's alone are known.
pub fn recall(config: &Config) -> Result<(), Problem> {
    let DirectoryConfig::Etcd(etcd) = &config.directory else { return Ok(()) };
    let path = config.data_dir.join(DIR).join(SEEN);
    let Some(Seen { version: VERSION, endpoints: mut all }) = read(&path)? else { return Ok(()) };
    let known = etcd.endpoints.list();
    all.extend(
        known.iter().filter(|endpoint| !all.contains(endpoint)).cloned().collect::<Vec<_>>(),
    );
    etcd.endpoints.set(all);
    Ok(())
}

fn backups(data_dir: &Path) -> std::io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(data_dir.join(DIR).join(BACKUPS)) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let mut all: Vec<PathBuf> = paths.collect::<Result<_, _>>()?;
    all.retain(|path| path.extension().is_some_and(|extension| extension == "db"));
    all.sort();
    Ok(all)
}

/// Where what etcd holds now is to be written, if it is time for it.
///
/// # Errors
/// The file system refuses.
pub fn next_backup(data_dir: &Path, now_s: u64) -> Result<Option<PathBuf>, Problem> {
    let dir = data_dir.join(DIR).join(BACKUPS);
    let made_s = |path: &PathBuf| {
        let since = path.metadata()?.modified()?.duration_since(std::time::UNIX_EPOCH);
        Ok::<_, std::io::Error>(since.map_or(0, |since| since.as_secs()))
    };
    let newest = backups(data_dir).and_then(|all| all.last().map(made_s).transpose());
    let newest = newest.map_err(|e| failed(&dir, e))?;
    // (Of a clock that was wrong, too.)
    if newest.is_some_and(|made_s| now_s.abs_diff(made_s) < BACKUP_EVERY_S) {
        return Ok(None);
    }
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&dir);
    made.map_err(|e| failed(&dir, e))?;
    Ok(Some(dir.join(format!("{}.db", atoll_api::envelope::rfc3339(now_s * 1000)))))
}

/// Makes what was written to `new`, and is durable, the backup `path`; old ones go.
///
/// # Errors
/// The file system refuses.
pub fn keep_backup(data_dir: &Path, new: &Path, path: &Path) -> Result<(), Problem> {
    let keep = || {
        std::fs::rename(new, path)?;
        std::fs::File::open(data_dir.join(DIR).join(BACKUPS))?.sync_all()?;
        let all = backups(data_dir)?;
        let old = &all[..all.len().saturating_sub(BACKUPS_MAX)];
        old.iter().try_for_each(std::fs::remove_file)
    };
    keep().map_err(|e| failed(path, e))
}

/// The command that runs the member, of that release.
pub fn command(
    config: &Config,
    at: MemberAddresses,
    start: &MemberStart,
    etcd: Version,
) -> std::process::Command {
    let mut command = std::process::Command::new("etcd");
    command.args(start.arguments(config, at, etcd));
    // What is meant for another etcd of this machine.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ETCD_") {
            command.env_remove(name);
        }
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: MemberAddresses = MemberAddresses {
        clients: std::net::SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1),
        peers: std::net::SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 2),
    };

    fn member(id: u64, name: &str, peer: &str) -> Member {
        let (name, peers) = (name.into(), vec![format!("https://{peer}")]);
        Member { id, name, peers, clients: Vec::new(), is_learner: false }
    }

    #[test]
    fn a_member_keeps_its_data_and_another_one_has_other_data() {
        let host = HostId(0xa);
        let wanted = |members: &[Member], now| MemberStart::wanted(members, host, AT, now);
        let first = MemberStart::first(host, AT);
        let running = [member(7, "000000000000000a", "127.0.0.1:2")];
        let known = wanted(&running, Some(&first)).unwrap();
        assert_eq!((&*known.data, known.member.as_deref()), (FIRST, Some("0000000000000007")));
        assert_eq!(wanted(&running, Some(&known)), Some(known.clone()));
        // Somebody else's, and no member of this host.
        assert_eq!(wanted(&[member(7, "000000000000000b", "127.0.0.1:2")], Some(&known)), None);
        let added = [member(8, "000000000000000b", "10.0.0.2:2"), member(9, "", "127.0.0.1:2")];
        for now in [None, Some(&known)] {
            let new = wanted(&added, now).unwrap();
            assert_eq!((&*new.data, new.is_first), ("0000000000000009", false));
            let all =
                ["000000000000000b=https://10.0.0.2:2", "000000000000000a=https://127.0.0.1:2"];
            assert_eq!(new.members, all);
        }
    }

    #[test]
    fn a_backup_is_made_every_six_hours_and_four_are_kept() {
        let data = tempfile::tempdir().unwrap();
        let now_s = crate::trust::now_s();
        for n in 0..7 {
            let path = next_backup(data.path(), now_s + n * BACKUP_EVERY_S).unwrap().unwrap();
            let new = path.with_extension("new");
            std::fs::write(&new, format!("{n}")).unwrap();
            let at =
                std::time::UNIX_EPOCH + std::time::Duration::from_secs(now_s + n * BACKUP_EVERY_S);
            std::fs::File::options().write(true).open(&new).unwrap().set_modified(at).unwrap();
            keep_backup(data.path(), &new, &path).unwrap();
            let soon = now_s + (n + 1) * BACKUP_EVERY_S - 1;
            assert_eq!(next_backup(data.path(), soon).unwrap(), None);
        }
        let kept = backups(data.path()).unwrap();
        let texts: Vec<_> =
            kept.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect();
        assert_eq!(texts, ["3", "4", "5", "6"]);
    }

    #[test]
    fn what_is_written_is_read_and_old_data_are_kept_once() {
        let data = tempfile::tempdir().unwrap();
        let dir = data.path().join(DIR);
        assert_eq!(load(data.path()).unwrap(), None);
        let first = MemberStart::first(HostId(1), AT);
        store(data.path(), Some(&first)).unwrap();
        assert_eq!(load(data.path()).unwrap().as_ref(), Some(&first));
        for (before, id) in [(FIRST, "2"), ("2", "3"), ("3", "4")] {
            std::fs::create_dir(dir.join(before)).unwrap();
            std::fs::write(dir.join(before).join(before), "").unwrap();
            let next = MemberStart { data: id.into(), ..first.clone() };
            store(data.path(), Some(&next)).unwrap();
            assert!(dir.join(OLD).join(before).exists() && !dir.join(before).exists());
        }
        store(data.path(), None).unwrap();
        store(data.path(), None).unwrap();
        assert_eq!(load(data.path()).unwrap(), None);
        std::fs::write(dir.join(START), "{}").unwrap();
        let problem = load(data.path()).unwrap_err();
        assert!(problem.detail.contains("member.json: missing field"), "{problem}");
        let other = first.text().replace("\"version\": 1", "\"version\": 2");
        std::fs::write(dir.join(START), other).unwrap();
        assert!(load(data.path()).unwrap_err().detail.contains("version 2"));
    }
}

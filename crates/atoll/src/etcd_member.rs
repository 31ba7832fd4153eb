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
//! Invariants: each member has a directory of its own, named after it; a member that has run is
//! never started without its data, because it would have forgotten what it has agreed to; nothing
//! is removed but by who is about to become etcd, and then not the member's own.

use crate::config::{Config, DirectoryConfig, MemberAddresses};
use atoll_api::name::show;
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
/// In a member's directory, once it has run.
const RUN: &str = "member";
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
    /// Where its data are, in [`DIR`]: one plain name.
    data: String,
    /// Whether etcd begins with it.
    is_first: bool,
    /// Whether others have seen it run.
    has_run: bool,
    /// All members when it became one: `NAME=URL`.
    members: Vec<String>,
}

/// What the list of members says of this host's.
#[derive(PartialEq, Eq, Debug)]
pub enum Wanted {
    /// There is none.
    Nothing,
    /// It is started like this.
    Start(MemberStart),
    /// It has run, and its data are not here: a member that has forgotten all is none.
    Lost(u64),
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

/// Where the data of the first member are, whose number is not known before it runs.
fn first_data(name: &str) -> String {
    format!("first-{name}")
}

impl MemberStart {
    /// The first member of a new etcd.
    pub fn first(host: HostId, at: MemberAddresses) -> Self {
        let name = host.to_string();
        let (members, data) = (vec![format!("{name}={}", peer_url(at))], first_data(&name));
        let (is_first, has_run) = (true, false);
        Self { version: VERSION, member: None, name, data, is_first, has_run, members }
    }

    /// What the member of this host is to be started with, if `members` are all (as somebody knows
    /// them who may be behind) and `now` is what it was started with before. `has_data`: whether a
    /// member has run in that directory.
    pub fn wanted(
        members: &[Member],
        host: HostId,
        at: MemberAddresses,
        now: Option<&Self>,
        has_data: impl Fn(&str) -> bool,
    ) -> Wanted {
        let (name, url) = (host.to_string(), peer_url(at));
        let is_own = |m: &&Member| m.name == name || m.name.is_empty() && m.peers.contains(&url);
        let Some(own) = members.iter().find(is_own) else { return Wanted::Nothing };
        let (id, runs) = (format!("{:016x}", own.id), !own.name.is_empty());
        if let Some(now) = now {
            let is_it = now.member.as_ref().map_or(runs, |member| *member == id);
            // One that has run is not left for one that has not: that list is behind.
            if is_it || (now.has_run && !runs) {
                let member = if is_it { Some(id) } else { now.member.clone() };
                let has_run = now.has_run || runs;
                return Wanted::Start(Self { member, has_run, ..now.clone() });
            }
        }
        let data = match runs {
            false => id.clone(),
            true => match [id.clone(), first_data(&name)].into_iter().find(|data| has_data(data)) {
                Some(data) => data,
                None => return Wanted::Lost(own.id),
            },
        };
        let named = |m: &Member| {
            let name = if m.id == own.id { &name } else { &m.name };
            m.peers.iter().map(move |url| format!("{name}={url}")).collect::<Vec<_>>()
        };
        let members = members.iter().flat_map(named).collect();
        let (member, is_first) = (Some(id), false);
        let version = VERSION;
        Wanted::Start(Self { version, member, name, data, is_first, has_run: runs, members })
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
            // Of every etcd another one: what was begun anew is told from what was there.
            ("initial-cluster-token", &self.name),
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
    let Some(start) = read::<MemberStart>(&path)? else { return Ok(None) };
    if start.version != VERSION {
        let why = format!("version {}, and this program knows {VERSION}", start.version);
        return Err(failed(&path, why));
    }
    // It is joined to a path, also by root.
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    if start.data.is_empty() || !start.data.chars().all(plain) {
        return Err(failed(&path, format!("{} is not a plain name", show(&start.data))));
    }
    Ok(Some(start))
}

/// Writes how it is started, durably; nothing: it is not.
///
/// # Errors
/// The file system refuses.
pub fn store(data_dir: &Path, start: Option<&MemberStart>) -> Result<(), Problem> {
    let dir = data_dir.join(DIR);
    match start {
        None => match std::fs::remove_file(dir.join(START)) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(failed(&dir.join(START), e)),
            _ => Ok(()),
        },
        Some(start) => written(&dir, START, &start.text()),
    }
}

/// Writes a file of this host's member. The daemon's user may write around it: what he has put into
/// the directory's place is not followed.
fn written(dir: &Path, name: &str, text: &str) -> Result<(), Problem> {
    if dir.is_symlink() {
        return Err(failed(dir, "it is a symbolic link"));
    }
    let written = atoll_trust::write_public(dir, name, text);
    written.map_err(|e| Problem::new(Code::LocalFile, e.to_string()))
}

/// The directories of members that have run on this host.
fn data_of_members(data_dir: &Path) -> std::io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(data_dir.join(DIR)) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let mut all: Vec<PathBuf> = paths.collect::<Result<_, _>>()?;
    all.retain(|path| path.join(RUN).is_dir());
    Ok(all)
}

/// Whether a member has run in that directory of this host.
pub fn has_data(data_dir: &Path, data: &str) -> bool {
    data_dir.join(DIR).join(data).join(RUN).is_dir()
}

/// Whether a member has ever run on this host; yes, if it cannot be told.
pub fn has_run(data_dir: &Path) -> bool {
    !data_of_members(data_dir).is_ok_and(|all| all.is_empty())
}

/// Makes ready for a member that is about to be started: what other members have left goes, once
/// this one has run.
///
/// # Errors
/// It has run, and its data are not there; the file system refuses.
pub fn make_ready(data_dir: &Path, start: &MemberStart) -> Result<(), Problem> {
    let own = data_dir.join(DIR).join(&start.data);
    if !start.has_run {
        return Ok(());
    }
    if !has_data(data_dir, &start.data) {
        return Err(lost(data_dir, start.member.as_deref().unwrap_or("?")));
    }
    let others = data_of_members(data_dir).map_err(|e| failed(&own, e))?;
    for other in others.iter().filter(|other| **other != own) {
        std::fs::remove_dir_all(other).map_err(|e| failed(other, e))?;
    }
    Ok(())
}

/// What to do about a member whose data are not there.
pub fn lost(data_dir: &Path, member: &str) -> Problem {
    let dir = data_dir.join(DIR);
    let why = format!("the data of this host's member of etcd, {member}, are gone");
    failed(&dir, why).hint(format!(
        "if they cannot be put back: 'etcdctl member remove {member}' on another host \
         (docs/operations.md, 'etcd'); this host gets a new member then"
    ))
}

/// Takes back what a command has written that failed or was cut off: no member has run yet.
pub fn undo(data_dir: &Path) {
    for name in [START, SEEN, REVOKED] {
        let _ = std::fs::remove_file(data_dir.join(DIR).join(name));
    }
    // Empty by then.
    let _ = std::fs::remove_dir(data_dir.join(DIR));
}

/// Writes which hosts' certificates the member takes no more. None are taken back: whoever knows of
/// none has not looked yet.
///
/// # Errors
/// The file system refuses.
pub fn revoke(data_dir: &Path, hosts: &[HostId], now_s: u64) -> Result<(), Problem> {
    let dir = data_dir.join(DIR);
    if hosts.is_empty() && dir.join(REVOKED).exists() {
        return Ok(());
    }
    let list = atoll_trust::revocations(hosts, now_s);
    let list = list.map_err(|e| Problem::new(Code::LocalFile, e.to_string()))?;
    written(&dir, REVOKED, &list)
}

/// Remembers where all members are.
///
/// # Errors
/// The file system refuses.
pub fn remember(data_dir: &Path, endpoints: Vec<String>) -> Result<(), Problem> {
    let seen = Seen { version: VERSION, endpoints };
    let text = serde_json::to_string(&seen).expect("plain fields") + "\n";
    written(&data_dir.join(DIR), SEEN, &text)
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
    let all =
        backups(data_dir).and_then(|all| all.iter().map(made_s).collect::<Result<Vec<_>, _>>());
    // Not the newest alone: one may be of a clock that was ahead.
    let is_fresh = |made_s: &u64| now_s.abs_diff(*made_s) < BACKUP_EVERY_S;
    if all.map_err(|e| failed(&dir, e))?.iter().any(is_fresh) {
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
        let wanted = |members: &[Member], now: Option<&MemberStart>, data: &'static str| {
            MemberStart::wanted(members, host, AT, now, |found| found == data)
        };
        let start = |members: &[Member], now| match wanted(members, now, "") {
            Wanted::Start(start) => start,
            other => panic!("{other:?}"),
        };
        let first = MemberStart::first(host, AT);
        let running = [member(7, "000000000000000a", "127.0.0.1:2")];
        let known = start(&running, Some(&first));
        assert_eq!((&*known.data, known.has_run), ("first-000000000000000a", true));
        assert_eq!(known.member.as_deref(), Some("0000000000000007"));
        assert_eq!(start(&running, Some(&known)), known);
        // Somebody else's, and no member of this host.
        let other = [member(7, "000000000000000b", "127.0.0.1:2")];
        assert_eq!(wanted(&other, Some(&known), ""), Wanted::Nothing);
        let added = [member(8, "000000000000000b", "10.0.0.2:2"), member(9, "", "127.0.0.1:2")];
        let new = start(&added, None);
        assert_eq!((&*new.data, new.is_first, new.has_run), ("0000000000000009", false, false));
        let all = ["000000000000000b=https://10.0.0.2:2", "000000000000000a=https://127.0.0.1:2"];
        assert_eq!(new.members, all);
        // One that was given up and added again, before it has run.
        let again = [member(10, "", "127.0.0.1:2")];
        assert_eq!(start(&again, Some(&new)).data, "000000000000000a");
        // A list that is behind does not take it from one that has run.
        assert_eq!(start(&added, Some(&known)), known);
    }

    #[test]
    fn a_member_whose_file_is_lost_finds_its_data_or_is_lost() {
        let running = [member(7, "000000000000000a", "127.0.0.1:2")];
        let found = |data: &'static str| {
            MemberStart::wanted(&running, HostId(0xa), AT, None, |found| found == data)
        };
        for data in ["0000000000000007", "first-000000000000000a"] {
            let Wanted::Start(start) = found(data) else { panic!("its data are there") };
            assert_eq!((&*start.data, start.has_run, start.is_first), (data, true, false));
        }
        assert_eq!(found("first"), Wanted::Lost(7));
    }

    #[test]
    fn nothing_is_removed_before_a_member_has_run_and_none_runs_without_its_data() {
        let data = tempfile::tempdir().unwrap();
        let dir = data.path().join(DIR);
        assert!(!has_run(data.path()));
        let start = |has_run| MemberStart { has_run, ..MemberStart::first(HostId(1), AT) };
        std::fs::create_dir_all(dir.join("0000000000000007/member")).unwrap();
        std::fs::create_dir_all(dir.join("backup")).unwrap();
        assert!(has_run(data.path()));
        make_ready(data.path(), &start(false)).unwrap();
        let problem = make_ready(data.path(), &start(true)).unwrap_err();
        assert!(problem.detail.contains("are gone"), "{problem}");
        assert!(dir.join("0000000000000007").exists());
        std::fs::create_dir_all(dir.join("first-0000000000000001/member")).unwrap();
        make_ready(data.path(), &start(true)).unwrap();
        assert!(!dir.join("0000000000000007").exists() && dir.join("backup").exists());
        assert!(dir.join("first-0000000000000001/member").exists());
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
    fn what_is_written_is_read_and_nothing_that_leads_elsewhere() {
        let data = tempfile::tempdir().unwrap();
        let dir = data.path().join(DIR);
        assert_eq!(load(data.path()).unwrap(), None);
        let first = MemberStart::first(HostId(1), AT);
        store(data.path(), Some(&first)).unwrap();
        assert_eq!(load(data.path()).unwrap().as_ref(), Some(&first));
        store(data.path(), None).unwrap();
        store(data.path(), None).unwrap();
        assert_eq!(load(data.path()).unwrap(), None);
        let refused = |text: &str, why: &str| {
            std::fs::write(dir.join(START), text).unwrap();
            let problem = load(data.path()).unwrap_err();
            assert!(problem.detail.contains(why), "{problem}");
        };
        refused("{}", "member.json: missing field");
        refused(&first.text().replace("\"version\": 1", "\"version\": 2"), "version 2");
        refused(&first.text().replace("first-", "../"), "not a plain name");
        // As root, in what belongs to the daemon's user.
        std::fs::rename(&dir, data.path().join("away")).unwrap();
        std::os::unix::fs::symlink(data.path().join("away"), &dir).unwrap();
        let problem = store(data.path(), Some(&first)).unwrap_err();
        assert!(problem.detail.contains("symbolic link"), "{problem}");
    }
}

//! How the directory is, as this host sees it.
//!
//! etcd's members are asked when somebody asks this host, and not all the time: each would be
//! connected to by each host. What a host notices by itself is that it has no member to ask.

use super::Engine;
use super::directory::HostDirectory;
use atoll_api::types::{Directory, DirectoryMember, HealthCheck, Level};
use atoll_etcd::version::{RECOMMENDED, Verdict, Version};
use atoll_etcd::{MemberReport, Survey};
use atoll_world::World;
use std::time::Duration;

/// A request that took this long says that etcd is slow: an election takes less than two seconds.
const SLOW: Duration = Duration::from_secs(2);
/// From this share of its quota on, in percent, etcd is nearly full.
const NEARLY_FULL_PERCENT: u64 = 80;

impl Engine {
    pub(super) fn host_directory(&self) -> Option<&HostDirectory> {
        Some(self.running.get()?.world.directory())
    }

    /// Whether this host has lost the directory: for those who ask it for its own checks.
    pub fn directory_lost(&self) -> Option<HealthCheck> {
        let HostDirectory::Etcd(etcd) = self.host_directory()? else { return None };
        let why = etcd.trouble()?;
        let message = format!("host {} reaches no member of etcd: {why}", self.config.host_name);
        Some(check("directory-lost", Level::Critical, message, "see etcd's own log on its hosts"))
    }

    /// The directory, with what is wrong with it. Answered within two seconds.
    pub async fn directory_health(&self) -> (Option<Directory>, Vec<HealthCheck>) {
        match self.host_directory() {
            None => (None, Vec::new()),
            Some(HostDirectory::Embedded(_)) => {
                let embedded = Directory { kind: "embedded".into(), ..Directory::default() };
                (Some(embedded), Vec::new())
            }
            Some(HostDirectory::Etcd(etcd)) => {
                let survey = etcd.survey().await;
                (Some(item(&survey)), checks(&survey))
            }
        }
    }
}

fn check(name: &str, level: Level, message: String, remedy: &str) -> HealthCheck {
    HealthCheck { name: name.into(), level, message, remedy: remedy.into() }
}

fn item(survey: &Survey) -> Directory {
    let member = |member: &MemberReport| {
        let mut item = DirectoryMember {
            endpoint: member.endpoint.clone(),
            used: member.used,
            ..DirectoryMember::default()
        };
        match &member.health {
            Ok(health) => {
                item.leads = health.leads;
                item.version.clone_from(&health.version);
                item.db_bytes = health.db_bytes;
                item.trouble = health.complaints.join("; ");
            }
            Err(why) => item.trouble.clone_from(why),
        }
        item
    };
    Directory {
        kind: "etcd".into(),
        has_leader: Some(survey.has_leader()),
        members: survey.members.iter().map(member).collect(),
    }
}

/// What is wrong with etcd.
fn checks(survey: &Survey) -> Vec<HealthCheck> {
    let mut all = Vec::new();
    if !survey.has_leader() {
        let told: Vec<String> = survey
            .members
            .iter()
            .map(|member| match &member.health {
                Ok(_) => format!("{} knows no leader", member.endpoint),
                Err(why) => format!("{} {why}", member.endpoint),
            })
            .collect();
        let message = format!(
            "etcd has no leader, its quorum is lost: running I/O goes on, changes wait ({})",
            told.join("; ")
        );
        all.push(check("directory-lost", Level::Critical, message, "start etcd's members again"));
    } else {
        for member in &survey.members {
            let Err(why) = &member.health else { continue };
            let message = format!("etcd's member {} {why}", member.endpoint);
            let remedy = "start it again, or replace it; the others still serve";
            all.push(check("directory-member", Level::Warning, message, remedy));
        }
    }
    if survey.is_full() {
        let message = format!(
            "etcd is full ({} bytes) and takes no changes (alarm NOSPACE)",
            survey.db_bytes()
        );
        let remedy = "etcdctl compact, defrag and alarm disarm (docs/operations.md, 'etcd')";
        all.push(check("directory-full", Level::Critical, message, remedy));
    } else if let Some((used, quota)) = nearly_full(survey) {
        let message = format!("etcd's database has {used} of at most {quota} bytes");
        let remedy = "etcdctl compact and defrag, or a larger --quota-backend-bytes";
        all.push(check("directory-full", Level::Warning, message, remedy));
    }
    if survey.slowest >= SLOW {
        let message = format!("etcd is slow: a request took {:.1} s", survey.slowest.as_secs_f32());
        let remedy = "look at its disks and network: etcd_disk_wal_fsync_duration_seconds";
        all.push(check("directory-slow", Level::Warning, message, remedy));
    }
    let is_good = |text: &&str| Version::parse(text).is_some_and(|v| v.verdict() == Verdict::Good);
    let defective: Vec<&str> =
        survey.versions().into_iter().filter(|text| !is_good(text)).collect();
    if !defective.is_empty() {
        let message = format!(
            "etcd {} has defects that Atoll works around; {RECOMMENDED} has not",
            defective.join(", ")
        );
        let remedy = "upgrade etcd, one member after the other";
        all.push(check("directory-release", Level::Warning, message, remedy));
    }
    all
}

/// A member whose database is nearly full: how large it is, and may be.
fn nearly_full(survey: &Survey) -> Option<(u64, u64)> {
    let sizes = survey.healthy().map(|health| (health.db_bytes, health.db_quota_bytes));
    sizes.filter(|&(used, quota)| quota > 0 && used >= quota / 100 * NEARLY_FULL_PERCENT).max()
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_etcd::MemberHealth;

    fn member(endpoint: &str, health: Result<MemberHealth, &str>) -> MemberReport {
        let health = health.map_err(str::to_owned);
        MemberReport { endpoint: endpoint.into(), used: endpoint == "a", health }
    }

    fn good(leads: bool) -> MemberHealth {
        MemberHealth {
            version: "3.6.9".into(),
            leads,
            knows_leader: true,
            db_bytes: 20_480,
            db_quota_bytes: 2 << 30,
            complaints: Vec::new(),
        }
    }

    fn names(members: Vec<MemberReport>, slowest: Duration) -> Vec<(String, Level)> {
        let told = checks(&Survey { members, slowest });
        told.into_iter().map(|check| (check.name, check.level)).collect()
    }

    #[test]
    fn what_is_wrong_with_etcd_is_said_by_its_name_and_nothing_is_said_of_a_good_one() {
        let quick = Duration::from_millis(900);
        let all = || vec![member("a", Ok(good(true))), member("b", Ok(good(false)))];
        assert_eq!(names(all(), quick), []);
        let slow = names(all(), Duration::from_secs(2));
        assert_eq!(slow, [("directory-slow".into(), Level::Warning)]);
        let one_dead = vec![member("a", Ok(good(true))), member("b", Err("does not answer"))];
        assert_eq!(names(one_dead, quick), [("directory-member".into(), Level::Warning)]);
        let alone = MemberHealth { knows_leader: false, ..good(false) };
        let lost = vec![member("a", Ok(alone)), member("b", Err("does not answer"))];
        assert_eq!(names(lost, quick), [("directory-lost".into(), Level::Critical)]);
        let full =
            MemberHealth { complaints: vec!["memberID:1 alarm:NOSPACE".into()], ..good(true) };
        let told = names(vec![member("a", Ok(full))], quick);
        assert_eq!(told, [("directory-full".into(), Level::Critical)]);
        let nearly = MemberHealth { db_bytes: 1900 << 20, ..good(true) };
        let told = names(vec![member("a", Ok(nearly))], quick);
        assert_eq!(told, [("directory-full".into(), Level::Warning)]);
        let old = MemberHealth { version: "3.4.23".into(), ..good(true) };
        let told = names(vec![member("a", Ok(old))], quick);
        assert_eq!(told, [("directory-release".into(), Level::Warning)]);
    }
}

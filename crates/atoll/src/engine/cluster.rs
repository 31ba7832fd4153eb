//! Answers that are made of what several hosts know, and requests that are meant for another host.
//!
//! Invariants: every answer that is collected from several hosts names those that it is without
//! ([`Told`]), and is there within five seconds, whoever is silent; what is asked of another host
//! is asked over the peers' connections, and of that host alone; which host does what is decided by
//! the [`Scope`] alone, which comes from the table of operations.

use super::Engine;
use super::admin::SILENT;
use super::host_request::{Doer, HostRequest, Question, Unanswered};
use super::items::{check_item, resync_item, space_item, state_item};
use super::meter::{VolumeUse, add};
use crate::control::{Scope, Told};
use crate::trust::Protection;
use atoll_api::envelope::Missing;
use atoll_api::types::{
    AuditEntry, Cluster, Disk, Health, HealthCheck, Host, Io, Level, Profile, Scrub, ScrubStart,
    Session, Status, Volume, VolumeState,
};
use atoll_api::{Code, Problem};
use atoll_format::id::HostId;
use atoll_node::ClusterFacts;
use futures_util::future::{join, join_all};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;

type Collected<T> = Result<Told<T>, Problem>;

impl Engine {
    /// Asks every other host that answers, all at once: what each tells, by the hosts' names, and
    /// the other hosts that do not tell. Ask [`look`](Self::look) before which hosts answer.
    pub(super) async fn told_by_each<T: DeserializeOwned>(
        &self,
        question: Question,
    ) -> Collected<Vec<(HostId, Vec<T>)>> {
        let mut hosts = self.running()?.node.hosts();
        hosts.retain(|(record, ..)| record.id != self.host);
        hosts.sort_by(|(a, ..), (b, ..)| a.name.cmp(&b.name));
        let question = &question;
        let asked = hosts.into_iter().map(|(record, answers, _)| async move {
            if !answers {
                return Err(Missing { why: SILENT.into(), host: record.name });
            }
            match self.told_by(record.id, question).await {
                Ok(items) => Ok((record.id, items)),
                Err(error) => Err(Missing { why: error.why(&record.release), host: record.name }),
            }
        });
        let mut all = Told::whole(Vec::new());
        for told in join_all(asked).await {
            match told {
                Ok(told) => all.what.push(told),
                Err(missing) => all.missing.push(missing),
            }
        }
        Ok(all)
    }

    /// The same of each, as one list; nothing if only this host is meant.
    async fn others<T: DeserializeOwned>(
        &self,
        scope: &Scope,
        question: Question,
    ) -> Collected<Vec<T>> {
        if *scope == Scope::Local {
            return Ok(Told::whole(Vec::new()));
        }
        self.look(&Scope::Cluster).await?;
        let each = self.told_by_each(question).await?;
        Ok(each.map(|each| each.into_iter().flat_map(|(_, items)| items).collect()))
    }

    /// Load and clients of the volumes on every other host, by the volume's name.
    async fn used_elsewhere(&self, scope: &Scope) -> Collected<BTreeMap<String, (Io, u32)>> {
        let uses = self.others::<VolumeUse>(scope, Question::VolumeUse).await?;
        Ok(uses.map(|uses| {
            let mut all: BTreeMap<String, (Io, u32)> = BTreeMap::new();
            for used in uses {
                let (io, sessions) = all.entry(used.volume).or_default();
                (*io, *sessions) = (add(*io, used.io), *sessions + used.sessions);
            }
            all
        }))
    }

    /// A volume with load and clients of all hosts, not of this one alone.
    pub async fn in_all(&self, mut volume: Volume, scope: &Scope) -> Collected<Volume> {
        let elsewhere = self.used_elsewhere(scope).await?;
        add_use(&mut volume, &elsewhere.what);
        Ok(elsewhere.map(|_| volume))
    }

    /// All volumes.
    pub async fn all_volumes(&self, scope: &Scope) -> Collected<Vec<Volume>> {
        let elsewhere = self.used_elsewhere(scope).await?;
        let mut volumes = self.volumes().await?;
        volumes.iter_mut().for_each(|volume| add_use(volume, &elsewhere.what));
        Ok(elsewhere.map(|_| volumes))
    }

    /// All hosts; the load of each, unless only this one is meant.
    pub async fn all_hosts(&self, scope: &Scope) -> Collected<Vec<Host>> {
        if *scope == Scope::Local {
            return self.hosts().await.map(Told::whole);
        }
        self.look(scope).await?;
        let (each, protections) = join(
            self.told_by_each::<VolumeUse>(Question::VolumeUse),
            self.told_by_each::<Protection>(Question::Protection),
        )
        .await;
        let (each, protections) = (each?, protections?);
        let mut hosts = self.hosts().await?;
        // A host whose release does not know that question is none that is missing.
        for (id, told) in protections.what {
            let id = id.to_string();
            if let (Some(host), Some(told)) =
                (hosts.iter_mut().find(|host| host.id == id), told.into_iter().next())
            {
                (host.tls, host.certificate_until) = (Some(told.tls), told.certificate_until);
            }
        }
        Ok(each.map(|each| {
            for (id, uses) in each {
                let id = id.to_string();
                if let Some(host) = hosts.iter_mut().find(|host| host.id == id) {
                    host.io = Some(sum(&uses));
                }
            }
            hosts
        }))
    }

    /// The whole at a glance, with every check that did not pass.
    pub async fn status(&self, scope: &Scope) -> Collected<Status> {
        let others = async {
            if *scope == Scope::Local {
                return Ok((Told::whole(Vec::new()), Told::whole(Vec::new())));
            }
            self.look(scope).await?;
            let both = join(
                self.told_by_each::<VolumeUse>(Question::VolumeUse),
                self.told_by_each::<HealthCheck>(Question::Checks),
            );
            let (uses, checks) = both.await;
            Ok::<_, Problem>((uses?, checks?))
        };
        let ((directory, of_directory), others) = join(self.directory_health(), others).await;
        let (uses, theirs) = others?;
        let (cluster, facts) = (self.cluster().await?, self.facts().await?);
        let mut checks = self.local_checks();
        checks.extend(of_directory);
        let told = uses.and(theirs.missing);
        if *scope == Scope::Cluster {
            checks.extend(facts.checks().into_iter().map(check_item));
            checks.extend(theirs.what.into_iter().flat_map(|(_, checks)| checks));
            let untold = told.missing.iter().filter_map(|m| facts.untold(&m.host, &m.why));
            checks.extend(untold.map(check_item));
        }
        checks.sort_by(|a, b| b.level.cmp(&a.level).then(a.name.cmp(&b.name)));
        let mut status = summary(cluster, &facts, self.figures().await?.io(), checks);
        status.directory = directory;
        Ok(told.map(|each| {
            status.io = each.iter().map(|(_, uses)| sum(uses)).fold(status.io, add);
            status
        }))
    }

    /// Has the host that is meant do something that one host does.
    ///
    /// # Errors
    /// As [`doer`](Self::doer) and [`at`](Self::at).
    pub async fn done_at<T: DeserializeOwned>(
        &self,
        scope: &Scope,
        what: HostRequest,
    ) -> Result<T, Problem> {
        self.at(&self.doer(scope).await?, &what).await
    }

    /// The disks of the host that is meant.
    pub async fn disks_at(&self, scope: &Scope) -> Result<Vec<Disk>, Problem> {
        let doer = self.doer(scope).await?;
        // One that is paused must not hold up who lists the disks of all.
        let told = self.told_by(doer.id, &Question::Disks).await;
        told.map_err(|error| match error {
            Unanswered::Refused(problem) if doer.id == self.host => problem,
            error => {
                let detail = format!("host {} {}", doer.name, error.why(&doer.release));
                Problem::new(Code::Unavailable, detail).hint("atoll host list")
            }
        })
    }

    /// Scrubs of all disk groups.
    pub async fn all_scrubs(&self, scope: &Scope) -> Collected<Vec<Scrub>> {
        let mut told = self.others::<Scrub>(scope, Question::Scrubs).await?;
        told.what.extend(self.scrubs()?);
        Ok(told)
    }

    /// Starts scrubs, or stops them if the rate is 0; how they are then.
    pub async fn set_scrubs(
        &self,
        request: ScrubStart,
        scope: &Scope,
        dry_run: bool,
    ) -> Collected<Vec<Scrub>> {
        let ScrubStart { group, volume, bytes_per_second: rate } = request;
        let deaf = match group {
            _ if dry_run => Vec::new(),
            Some(group) => {
                self.done_at::<()>(scope, HostRequest::Scrub { group, rate }).await?;
                Vec::new()
            }
            None => self.scrub_all(volume.as_deref(), rate).await?,
        };
        Ok(self.all_scrubs(scope).await?.and(deaf))
    }

    /// Clients of all volumes, or of one.
    pub async fn all_sessions(
        &self,
        scope: &Scope,
        volume: Option<String>,
    ) -> Collected<Vec<Session>> {
        // None of a volume that there is not would look like a good answer.
        if let (Scope::Cluster, Some(name)) = (scope, &volume) {
            self.volume(name).await?;
        }
        let own = self.sessions(volume.as_deref()).await?;
        let mut told = self.others(scope, Question::Sessions { volume }).await?;
        told.what.extend(own);
        Ok(told)
    }

    /// How long I/O takes on each host, those included that do not tell.
    pub async fn all_profiles(&self, scope: &Scope) -> Collected<Vec<Profile>> {
        let own = self.profile().await?;
        let mut told = self.others(scope, Question::Profiles).await?;
        told.what.push(own);
        told.what.extend(told.missing.iter().map(untold_profile));
        Ok(told)
    }

    /// What was written down on all hosts.
    pub async fn all_audit(&self, scope: &Scope) -> Collected<Vec<AuditEntry>> {
        let mut told = self.others::<AuditEntry>(scope, Question::Audit).await?;
        told.what.extend(self.audit.recent(&self.config.host_name));
        Ok(told)
    }

    /// The one host that does what is asked for: the only place where that is decided. Of what all
    /// do, this host does its part.
    ///
    /// # Errors
    /// [`Code::NotFound`]; [`Code::Unavailable`]: it does not answer.
    async fn doer(&self, scope: &Scope) -> Result<Doer, Problem> {
        let host = match scope {
            Scope::Cluster | Scope::Local => return Ok(self.own()),
            Scope::Host(host) => host.clone(),
            Scope::Group(id) => {
                self.look(&Scope::Cluster).await?;
                let found = self.groups()?.into_iter().find(|group| group.id == *id);
                found.ok_or_else(|| Problem::not_found("group", id))?.host
            }
        };
        if host == self.config.host_name || host == self.host.to_string() {
            return Ok(self.own());
        }
        let mut hosts = self.running()?.node.hosts().into_iter();
        let found = hosts.find(|(record, ..)| record.name == host || record.id.to_string() == host);
        let (record, answers, _) = found.ok_or_else(|| Problem::not_found("host", &host))?;
        if answers {
            return Ok(Doer { id: record.id, name: record.name, release: record.release });
        }
        let detail = format!("host {} {SILENT}", record.name);
        Err(Problem::new(Code::Unavailable, detail).hint("atoll host list"))
    }

    /// This host.
    pub(super) fn own(&self) -> Doer {
        let (name, release) = (self.config.host_name.clone(), env!("CARGO_PKG_VERSION").into());
        Doer { id: self.host, name, release }
    }
}

/// The load of all.
fn sum(uses: &[VolumeUse]) -> Io {
    uses.iter().map(|used| used.io).fold(Io::default(), add)
}

/// Adds what is done with a volume on other hosts.
fn add_use(volume: &mut Volume, elsewhere: &BTreeMap<String, (Io, u32)>) {
    if let Some((io, sessions)) = elsewhere.get(&volume.name) {
        volume.io = add(volume.io, *io);
        volume.sessions += sessions;
    }
}

/// A profile of a host that told none.
fn untold_profile(missing: &Missing) -> Profile {
    let detail = format!("host {} {}", missing.host, missing.why);
    Profile { host: missing.host.clone(), detail, ..Profile::default() }
}

fn summary(cluster: Cluster, facts: &ClusterFacts, io: Io, checks: Vec<HealthCheck>) -> Status {
    let states = facts.volumes.iter().map(|volume| state_item(facts.state(volume)));
    let states: Vec<VolumeState> = states.collect();
    let count = |wanted: &[VolumeState]| {
        states.iter().filter(|state| wanted.contains(state)).count() as u32
    };
    let (resync, promised) = (resync_item(facts), facts.promised());
    let level = checks.iter().map(|check| check.level).max().unwrap_or(Level::Ok);
    Status {
        cluster,
        health: Health { level, checks },
        directory: None,
        space: facts.space().map(space_item),
        promised_bytes: promised.promised_bytes,
        exist_bytes: promised.exist_bytes,
        io,
        hosts_up: facts.hosts.iter().filter(|(_, alive, _)| *alive).count() as u32,
        hosts: facts.hosts.len() as u32,
        volumes: states.len() as u32,
        volumes_degraded: count(&[VolumeState::Degraded, VolumeState::Resyncing]),
        volumes_inaccessible: count(&[VolumeState::Inaccessible]),
        resync_bytes_left: resync.bytes_left,
        resync_copies: resync.items.len() as u32,
        resync_seconds_left: resync.seconds_left,
        checksum_errors: facts.checksum_errors(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_does_not_tell_has_a_profile_that_says_why() {
        let profile = untold_profile(&Missing { host: "h".into(), why: SILENT.into() });
        assert_eq!((&*profile.host, &*profile.detail), ("h", "host h does not answer"));
        assert!(profile.stages.is_empty());
    }
}

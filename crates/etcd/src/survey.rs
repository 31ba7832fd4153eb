//! How every member of etcd is, for people: asked all at once, over connections of their own.

use crate::client::EtcdDirectory;
use crate::version::Version;
use etcd_client::{ResponseHeader, StatusResponse};
use futures_util::future::join_all;
use std::time::Duration;

/// What a member told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberHealth {
    /// Its release.
    pub version: String,
    /// Whether it leads.
    pub leads: bool,
    /// Whether it knows who leads; no: it is cut off from the others, or too many of them are.
    pub knows_leader: bool,
    /// The size of its database, in bytes.
    pub db_bytes: u64,
    /// The size at which etcd takes no more changes, in bytes; 0: this release does not tell.
    pub db_quota_bytes: u64,
    /// What it complains of: alarms and errors, in etcd's words.
    pub complaints: Vec<String>,
}

/// One member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberReport {
    /// As the configuration names it.
    pub endpoint: String,
    /// Whether it is the one that this host asks.
    pub used: bool,
    /// How it is, or why it cannot be used.
    pub health: Result<MemberHealth, String>,
}

/// The whole of etcd, as this host sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survey {
    /// In the order of the configuration.
    pub members: Vec<MemberReport>,
    /// How long this host's slowest request of the last one or two minutes took.
    pub slowest: Duration,
}

impl Survey {
    /// Who leads, by the configuration's name.
    pub fn leader(&self) -> Option<&str> {
        let leads = |m: &&MemberReport| m.health.as_ref().is_ok_and(|health| health.leads);
        self.members.iter().find(leads).map(|member| member.endpoint.as_str())
    }

    /// Whether a member knows who leads: changes are possible.
    pub fn has_leader(&self) -> bool {
        self.healthy().any(|health| health.knows_leader)
    }

    /// The members that told how they are.
    pub fn healthy(&self) -> impl Iterator<Item = &MemberHealth> {
        self.members.iter().filter_map(|member| member.health.as_ref().ok())
    }

    /// The releases in use, oldest first, each once.
    pub fn versions(&self) -> Vec<&str> {
        let mut all: Vec<&str> = self.healthy().map(|health| health.version.as_str()).collect();
        all.sort_by_key(|text| (Version::parse(text), *text));
        all.dedup();
        all
    }

    /// Whether etcd takes no changes because it is full.
    pub fn is_full(&self) -> bool {
        self.healthy().any(|health| health.complaints.iter().any(|said| said.contains("NOSPACE")))
    }

    /// The largest database of a member, in bytes.
    pub fn db_bytes(&self) -> u64 {
        self.healthy().map(|health| health.db_bytes).max().unwrap_or(0)
    }
}

fn health(status: &StatusResponse) -> MemberHealth {
    let id = status.header().map(ResponseHeader::member_id);
    MemberHealth {
        version: status.version().to_owned(),
        leads: id == Some(status.leader()),
        knows_leader: status.leader() != 0,
        db_bytes: status.db_size().unsigned_abs(),
        db_quota_bytes: status.db_size_quota().unsigned_abs(),
        complaints: status.errors().iter().map(|said| said.trim().to_owned()).collect(),
    }
}

impl EtcdDirectory {
    /// Why there is no member to ask, if there is none.
    pub fn trouble(&self) -> Option<String> {
        self.0.members.trouble()
    }

    /// Asks every member how it is; answered within two seconds, whoever is silent.
    pub async fn survey(&self) -> Survey {
        let members = &self.0.members;
        let used = members.present();
        let used = used.as_ref().map(|link| &*link.endpoint);
        let endpoints = members.config.endpoints.list();
        let looks = endpoints.iter().map(async |endpoint| {
            let told = members.look_at(endpoint).await;
            let health = told.and_then(|(_, status)| {
                members.check(&status)?;
                Ok(health(&status))
            });
            MemberReport { endpoint: endpoint.clone(), used: used == Some(endpoint), health }
        });
        Survey { members: join_all(looks).await, slowest: members.slowest() }
    }
}

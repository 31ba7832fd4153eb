//! New hosts, and new certificates for those that are there: signed by the hosts that keep the
//! cluster's authority.
//!
//! Invariants: a token for joining makes one host, and is used up before its certificate is given;
//! a host gets a renewed certificate for itself alone, over a connection on which it has proved who
//! it is; without TLS nobody is given any.

use super::Engine;
use super::admin::{SILENT, problem};
use super::host_request::{Admitted, Doer, HostRequest, Question, Secret};
use super::tokens::{join_record, token_item};
use crate::config::DirectoryConfig;
use crate::control::JoinMade;
use crate::trust::{AUTHORITY_DIR, DIR, HostTrust, now_s};
use atoll_api::types::{
    EtcdClient, HostJoin, HostJoined, JoinDirectory, JoinTokenCreate, Token as TokenItem,
};
use atoll_api::{Code, Problem, name};
use atoll_format::id::HostId;
use atoll_format::level::{Level, Levels};
use atoll_format::record::HostRecord;
use atoll_node::{About, ManageError, Severity, TokenChange};
use atoll_trust::{
    Authority, HOST_VALID_S, JOIN_ADDRESSES_MAX, Named, TokenSecret, TrustError, is_address,
};
use atoll_world::World;
use serde::de::DeserializeOwned;
use std::net::{IpAddr, SocketAddr};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

/// How far the clock of a machine that joins may be off, in milliseconds: its certificate, and
/// those that it judges, are valid for a time.
const CLOCK_OFF_MAX_MS: u64 = 5 * 60 * 1000;
/// Addresses in the certificate of a host.
const ADDRESSES_MAX: usize = 16;
/// How often a host looks whether its certificate is to be renewed.
const RENEW_LOOK: Duration = Duration::from_secs(5);
/// How long it waits when that has failed, or nobody keeps the authority.
const RENEW_AGAIN: Duration = Duration::from_secs(60);
/// How long reading the authority may take: less than who asks waits for an answer.
const READ_WAIT: Duration = Duration::from_millis(1_500);
/// What to do without a host that keeps the authority.
const NO_KEEPER: &str = "'atoll cluster certificate' makes one where the authority is; or put the \
                         authority into the data directory of a host (docs/security.md)";

/// Nobody signs.
fn nobody() -> Problem {
    let detail = "no host that answers keeps the authority of the cluster";
    Problem::new(Code::Unavailable, detail).hint(NO_KEEPER)
}

fn of_trust(e: &TrustError) -> Problem {
    Problem::new(Code::Failed, format!("the authority of this host: {e}"))
}

impl Engine {
    /// The authority that this host keeps; none: it keeps none.
    async fn authority(&self) -> Result<Option<Authority>, Problem> {
        let Some(trust) = &self.trust else { return Ok(None) };
        let (dir, reads) = (self.config.data_dir.join(AUTHORITY_DIR), self.authority_reads.clone());
        // The file system may hang: then one thread waits for it, whoever asks, and the shard for
        // none.
        let load = async move {
            let permit = reads.acquire_owned().await.expect("it is never closed");
            let load = move || {
                let _permit = permit;
                Authority::is_in(&dir).then(|| Authority::load(&dir)).transpose()
            };
            tokio::task::spawn_blocking(load).await
        };
        let late = |_| {
            let detail = "the file system with the authority does not answer";
            Problem::new(Code::Unavailable, detail).hint("the log of the kernel on that host")
        };
        let loaded = tokio::time::timeout(READ_WAIT, load).await.map_err(late)?;
        let failed = |e| Problem::new(Code::Failed, format!("reading the authority ended: {e}"));
        let authority = loaded.map_err(failed)?.map_err(|e| of_trust(&e))?;
        let Some(authority) = authority else { return Ok(None) };
        // What it signs, no host would believe.
        if authority.sha256().map_err(|e| of_trust(&e))? != trust.authority_sha256() {
            let detail = format!(
                "host {} keeps another authority than hosts believe: {AUTHORITY_DIR}/authority.crt \
                 and {DIR}/authority.crt in its data directory differ",
                self.config.host_name
            );
            return Err(Problem::new(Code::Conflict, detail).hint(NO_KEEPER));
        }
        Ok(Some(authority))
    }

    /// What this host tells of the authority that it keeps: one item, or none.
    pub(super) async fn authority_kept(&self) -> Result<Vec<String>, Problem> {
        let authority = self.authority().await?;
        Ok(authority.map(|authority| authority.cluster().to_string()).into_iter().collect())
    }

    /// The hosts that keep the authority, this one first; and why one that should could not.
    async fn keepers(&self) -> Result<(Vec<Doer>, Option<Problem>), Problem> {
        let (mut keepers, mut why) = (Vec::new(), None);
        match self.authority_kept().await {
            Ok(kept) if kept.is_empty() => {}
            Ok(_) => keepers.push(self.own()),
            Err(problem) => why = Some(problem),
        }
        let told = self.told_by_each::<String>(Question::Authority).await?;
        for (id, kept) in told.what {
            let hosts = self.running()?.node.hosts();
            if let Some((record, ..)) = hosts.into_iter().find(|(record, ..)| record.id == id)
                && !kept.is_empty()
            {
                keepers.push(Doer { id, name: record.name, release: record.release });
            }
        }
        if let Some(missing) = told.missing.iter().find(|missing| missing.why != SILENT) {
            let detail = format!("host {} {}", missing.host, missing.why);
            why.get_or_insert_with(|| Problem::new(Code::Failed, detail));
        }
        Ok((keepers, why))
    }

    /// # Errors
    /// Nobody keeps the authority who could sign.
    async fn check_kept(&self) -> Result<(), Problem> {
        let (keepers, why) = self.keepers().await?;
        if keepers.is_empty() { Err(why.unwrap_or_else(nobody)) } else { Ok(()) }
    }

    /// Has the first that can of those who keep the authority do something.
    async fn by_keeper<T: DeserializeOwned>(&self, what: &HostRequest) -> Result<T, Problem> {
        let (keepers, mut last) = self.keepers().await?;
        for keeper in keepers {
            match self.at(&keeper, what).await {
                // It has done nothing: perhaps another one can.
                Err(problem) if problem.code == Code::Unavailable => last = Some(problem),
                done => return done,
            }
        }
        Err(last.unwrap_or_else(nobody))
    }

    /// The TLS of this host, without which nobody joins.
    fn trusted(&self) -> Result<&Arc<HostTrust>, Problem> {
        self.trust.as_ref().ok_or_else(|| {
            let detail = "hosts of this cluster have no certificates (network.tls is false)";
            Problem::new(Code::Conflict, detail)
                .hint("without TLS a machine joins by its configuration alone: start it")
        })
    }

    /// How a new host finds the state of the cluster.
    async fn join_directory(&self) -> Result<JoinDirectory, Problem> {
        let DirectoryConfig::Etcd(etcd) = &self.config.directory else {
            let detail = "the state of this cluster is in the directory of one machine, which \
                          others do not reach";
            return Err(Problem::new(Code::Conflict, detail)
                .hint("a cluster of several machines has it in etcd: docs/install.md"));
        };
        // Hosts of other machines would find another etcd there, or none.
        let is_local = |endpoint: &String| {
            let host = endpoint.rsplit_once(':').map_or(&**endpoint, |(host, _)| host);
            let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
            host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
        };
        let alone = self.config.peers.iter().all(|peer| peer.ip().is_loopback());
        let endpoints = etcd.endpoints.list();
        if let Some(local) = endpoints.iter().find(|endpoint| !alone && is_local(endpoint)) {
            let detail =
                format!("etcd is at {local} for this host, which no other machine reaches");
            return Err(Problem::new(Code::Conflict, detail)
                .hint("directory.endpoints: addresses of the members that all machines reach"));
        }
        let (mut ca, mut client) = (None, EtcdClient::Nobody);
        if let Some(tls) = &etcd.tls {
            let unread = |e| Problem::new(Code::Failed, format!("{}: {e}", tls.ca.display()));
            ca = Some(tokio::fs::read_to_string(&tls.ca).await.map_err(unread)?);
            let own = self.config.data_dir.join(DIR).join("host.crt");
            client = match &tls.identity {
                None => EtcdClient::Nobody,
                Some((certificate, _)) if *certificate == own => EtcdClient::Host,
                Some(_) => EtcdClient::Own,
            };
        }
        let (endpoints, prefix) = (etcd.endpoints.list().to_vec(), etcd.prefix.clone());
        let managed = self.config.managed;
        Ok(JoinDirectory { endpoints, prefix, ca, client, managed })
    }

    /// Makes a token for joining that is known by that hash.
    pub async fn join_token_create(
        &self,
        request: JoinTokenCreate,
        sha256: String,
        dry_run: bool,
    ) -> Result<JoinMade, Problem> {
        let node = &self.running()?.node;
        let authority_sha256 = self.trusted()?.authority_sha256();
        self.join_directory().await?;
        let addresses = match request.addresses.is_empty() {
            true => reached_at(self.config.api, &self.config.peers)?,
            false => checked(request.addresses)?,
        };
        self.check_kept().await?;
        let token = join_record(request.name, request.valid_s, sha256, atoll_real::unix_ms())?;
        let change = TokenChange::Create(token.clone());
        node.change_tokens(&change, dry_run).await.map_err(problem)?;
        let token: TokenItem = token_item(token, atoll_real::unix_ms());
        if !dry_run {
            let until = token.expires.as_deref().unwrap_or_default();
            let message =
                format!("token {} was made: a host may join by it until {until}", token.name);
            node.note(Severity::Info, "token-created", About::host(node.id()), message);
        }
        let cluster = self.trusted()?.identity().cluster;
        Ok(JoinMade { token, addresses, cluster, authority_sha256 })
    }

    /// Gives a new host its certificate.
    pub async fn host_join(
        &self,
        request: HostJoin,
        secret: Option<TokenSecret>,
        dry_run: bool,
    ) -> Result<HostJoined, Problem> {
        let node = &self.running()?.node;
        let secret = secret.ok_or_else(|| {
            Problem::new(Code::NotPermitted, "a new host joins by a token for joining, over TLS")
                .hint("'atoll cluster join-token' makes one, 'atoll cluster join' uses it")
        })?;
        let token = node.token(&secret.sha256());
        if let Some(why) = token.and_then(|t| atoll_node::joins_by(&t, atoll_real::unix_ms()).err())
        {
            return Err(Problem::new(Code::NotPermitted, why)
                .hint("'atoll cluster join-token', on a host, makes one"));
        }
        let trust = self.trusted()?;
        let directory = self.join_directory().await?;
        admissible(&request, node.level(), atoll_real::unix_ms())?;
        if let Some((taken, ..)) = node.hosts().iter().find(|(host, ..)| host.name == request.name)
        {
            let detail = format!("the name {} is taken, by host {}", taken.name, taken.id);
            return Err(Problem::new(Code::Exists, detail)
                .hint("host.name in the configuration of the new host: unique in the cluster")
                .field("name"));
        }
        let addresses = free_addresses(&request.addresses, &node.hosts())?;
        let mut joined = HostJoined {
            id: None,
            cluster: trust.identity().cluster.to_string(),
            certificate: None,
            authority: trust.authority(),
            directory,
        };
        if dry_run {
            self.check_kept().await?;
            return Ok(joined);
        }
        let secret = Secret::of(secret.reveal());
        let HostJoin { name, request, .. } = request;
        let admit = HostRequest::Admit { secret, name, request, addresses };
        let Admitted { host, certificate } = self.by_keeper(&admit).await?;
        (joined.id, joined.certificate) = (Some(host.to_string()), Some(certificate));
        Ok(joined)
    }

    /// Signs for a machine that joins by that token, which is used up by it.
    pub(super) async fn admit(
        &self,
        secret: &Secret,
        name: &str,
        request: &str,
        addresses: Vec<IpAddr>,
    ) -> Result<Admitted, Problem> {
        let running = self.running()?;
        let no_token = |why: String| Problem::new(Code::NotAuthenticated, why);
        let secret = TokenSecret::read(secret.reveal())
            .ok_or_else(|| no_token("what was sent is no token of this program".into()))?;
        let authority = self.kept_here().await?;
        let host = HostId(running.world.random());
        // What cannot be signed uses no token up.
        let certificate = authority
            .issue(request, Named { host, addresses }, now_s(), HOST_VALID_S)
            .map_err(|e| Problem::new(Code::BadValue, e.to_string()).field("request"))?;
        let now_ms = atoll_real::unix_ms();
        let join = TokenChange::Join { sha256: secret.sha256(), host, now_ms };
        let used = running.node.change_tokens(&join, false).await;
        used.map_err(|error| match error {
            ManageError::Invalid(why) => no_token(why),
            ManageError::NotFound { what, name } => no_token(format!("there is no {what} {name}")),
            other => problem(other),
        })?;
        let message = format!("a machine joined as host {name} ({host}), and has its certificate");
        running.node.note(Severity::Info, "host-joined", About::host(host), message);
        Ok(Admitted { host, certificate })
    }

    /// Signs for that host of the cluster, which asks for itself.
    pub(super) async fn certify(
        &self,
        host: HostId,
        request: &str,
        addresses: Vec<IpAddr>,
    ) -> Result<String, Problem> {
        let node = &self.running()?.node;
        let hosts = node.hosts();
        if !hosts.iter().any(|(record, ..)| record.id == host) {
            return Err(Problem::not_found("host", &host.to_string()));
        }
        // What another host has by then, this one does without: it is not refused for it.
        let is_free = |ip: &IpAddr| holder(*ip, &hosts).is_none_or(|record| record.id == host);
        let addresses = addresses.into_iter().filter(is_free).take(ADDRESSES_MAX).collect();
        let named = Named { host, addresses };
        let authority = self.kept_here().await?;
        let issued = authority.issue(request, named, now_s(), HOST_VALID_S);
        issued.map_err(|e| Problem::new(Code::BadValue, e.to_string()).field("request"))
    }

    async fn kept_here(&self) -> Result<Authority, Problem> {
        self.authority().await?.ok_or_else(|| {
            Problem::new(Code::Unavailable, "this host keeps no authority").hint(NO_KEEPER)
        })
    }

    /// Renews the certificate of this host, for as long as it lives.
    pub(super) fn begin_renewals(self: &Rc<Self>, trust: &Arc<HostTrust>) {
        // Ends with the shard.
        tokio::task::spawn_local(keep_renewed(Rc::downgrade(self), trust.clone()));
    }

    /// Asks for a new certificate for this host, and puts it where it is looked for.
    async fn renew(&self, trust: Arc<HostTrust>) -> Result<(), Problem> {
        let request = trust.request().map_err(|e| of_trust(&e))?;
        let addresses = self.config.addresses();
        let certificate: String =
            self.by_keeper(&HostRequest::Certify { request, addresses }).await?;
        let replace = move || trust.replace(&certificate);
        let replaced = tokio::task::spawn_blocking(replace).await;
        let failed = |e| Problem::new(Code::Failed, format!("writing the certificate ended: {e}"));
        replaced.map_err(failed)?.map_err(|e| Problem::new(Code::LocalFile, e.to_string()))
    }
}

/// Renews the certificate of a host before it is nearly over, for as long as the host lives.
/// Without a host that keeps the authority nothing is done: then an administrator does it.
async fn keep_renewed(engine: Weak<Engine>, trust: Arc<HostTrust>) {
    let mut told = String::new();
    loop {
        tokio::time::sleep(RENEW_LOOK).await;
        if !trust.validity().is_to_be_renewed(now_s()) {
            told.clear();
            continue;
        }
        let Some(engine) = engine.upgrade() else { return };
        let renewed = engine.renew(trust.clone()).await;
        if let Err(problem) = renewed
            && problem.code != Code::Unavailable
            && problem.detail != told
        {
            told.clone_from(&problem.detail);
            if let Ok(running) = engine.running() {
                let message = format!(
                    "the certificate of this host could not be renewed: {}",
                    problem.detail
                );
                let about = About::host(running.node.id());
                running.node.note(Severity::Warning, "certificate-not-renewed", about, message);
            }
        }
        drop(engine);
        tokio::time::sleep(RENEW_AGAIN).await;
    }
}

/// Whether that machine fits into the cluster, as far as it says itself.
fn admissible(request: &HostJoin, level: Level, now_ms: u64) -> Result<(), Problem> {
    name::check("host", &request.name)
        .map_err(|why| Problem::new(Code::BadName, why).field("name"))?;
    let (oldest, newest) = (Level(request.oldest_level), Level(request.newest_level));
    if oldest < Level::FIRST || newest < oldest {
        let detail = format!("feature levels {oldest} to {newest}: the first is 1");
        return Err(Problem::new(Code::BadValue, detail).field("newest_level"));
    }
    let known = Levels { oldest, newest };
    if !known.has(level) {
        let (release, field) = (
            name::show(&request.release),
            match level > newest {
                true => "newest_level",
                false => "oldest_level",
            },
        );
        let detail = format!(
            "the new host's release {release} knows feature levels {known}, and the cluster is at \
             {level}"
        );
        return Err(Problem::new(Code::Conflict, detail)
            .hint("install the release of the cluster on it ('atoll host list')")
            .field(field));
    }
    let off_ms = request.unix_ms.abs_diff(now_ms);
    if off_ms > CLOCK_OFF_MAX_MS {
        let way = if request.unix_ms > now_ms { "ahead of" } else { "behind" };
        let detail =
            format!("the clock of the new host is {} s {way} the cluster's", off_ms / 1000);
        return Err(Problem::new(Code::Conflict, detail)
            .hint("set it (timedatectl set-ntp true), and join then: the token is still good")
            .field("unix_ms"));
    }
    Ok(())
}

/// Who of the hosts has that address. All of one machine have its loopback addresses: nobody, then.
fn holder<T, U>(address: IpAddr, hosts: &[(HostRecord, T, U)]) -> Option<&HostRecord> {
    let is_it = |text: &String| text.parse().is_ok_and(|at: SocketAddr| at.ip() == address);
    let has_it = |record: &HostRecord| record.peers.iter().chain([&record.api]).any(is_it);
    let found = hosts.iter().map(|(record, ..)| record).find(|record| has_it(record));
    found.filter(|_| !address.is_loopback())
}

/// The addresses of a machine that joins, if no host has them.
fn free_addresses<T, U>(
    texts: &[String],
    hosts: &[(HostRecord, T, U)],
) -> Result<Vec<IpAddr>, Problem> {
    let bad = |why: String| Problem::new(Code::BadValue, why).field("addresses");
    if texts.len() > ADDRESSES_MAX {
        return Err(bad(format!("more than {ADDRESSES_MAX} addresses")));
    }
    let mut all = Vec::new();
    for text in texts {
        let address: IpAddr =
            text.parse().map_err(|_| bad(format!("{} is no IP address", name::show(text))))?;
        if let Some(taken) = holder(address, hosts) {
            let detail = format!("host {} has the address {address}", taken.name);
            return Err(Problem::new(Code::Exists, detail)
                .hint(format!(
                    "another --address for the new host; or, if it takes the place of {0}: atoll \
                     host remove {0}",
                    taken.name
                ))
                .field("addresses"));
        }
        all.push(address);
    }
    Ok(all)
}

/// Addresses that an administrator has named.
fn checked(addresses: Vec<String>) -> Result<Vec<String>, Problem> {
    let bad = |why: String| Problem::new(Code::BadValue, why).field("addresses");
    if addresses.len() > JOIN_ADDRESSES_MAX {
        return Err(bad(format!("more than {JOIN_ADDRESSES_MAX} addresses")));
    }
    match addresses.iter().find(|address| !is_address(address)) {
        Some(odd) => Err(bad(format!("{} is not host:port", name::show(odd)))),
        None => Ok(addresses),
    }
}

/// Where other machines reach the management interface of a host that listens there.
fn reached_at(api: Option<SocketAddr>, peers: &[SocketAddr]) -> Result<Vec<String>, Problem> {
    let unreachable = |what: &str| {
        Problem::new(Code::Conflict, format!("a new host cannot ask this one: {what}")).hint(
            "network.api = \"ADDRESS:8460\" in the configuration of this host, and a restart; or \
             --address HOST:PORT of another host",
        )
    };
    let Some(api) = api else { return Err(unreachable("network.api is empty")) };
    let is_local = |ip: IpAddr| ip.is_loopback();
    // Hosts that reach each other over loopback are on one machine, and so is the new one.
    if is_local(api.ip()) && !peers.iter().all(|peer| is_local(peer.ip())) {
        return Err(unreachable(&format!("network.api is {api}, which only this machine reaches")));
    }
    if !api.ip().is_unspecified() {
        return Ok(vec![api.to_string()]);
    }
    let fits = |peer: &&SocketAddr| api.is_ipv6() || peer.is_ipv4();
    let port = api.port();
    let mut all: Vec<String> = peers
        .iter()
        .filter(fits)
        .map(|peer| SocketAddr::new(peer.ip(), port).to_string())
        .collect();
    all.dedup();
    all.truncate(JOIN_ADDRESSES_MAX);
    if all.is_empty() {
        return Err(unreachable(&format!("network.api is {api}, and no address is known for it")));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_with_another_release_a_wrong_clock_or_no_good_name_is_refused() {
        let good = || HostJoin {
            name: "host2".into(),
            release: "1.2.3".into(),
            oldest_level: 2,
            newest_level: 3,
            unix_ms: 1_000_000,
            request: String::new(),
            addresses: Vec::new(),
        };
        let judge = |request: HostJoin, now_ms| admissible(&request, Level(3), now_ms);
        for now_ms in [1_000_000, 1_000_000 - CLOCK_OFF_MAX_MS, 1_000_000 + CLOCK_OFF_MAX_MS] {
            assert_eq!(judge(good(), now_ms), Ok(()));
        }
        for (request, now_ms, code, field, why) in [
            (good(), 1_000_001 + CLOCK_OFF_MAX_MS, Code::Conflict, "unix_ms", "300 s behind"),
            (good(), 699_999, Code::Conflict, "unix_ms", "300 s ahead of"),
            (
                HostJoin { newest_level: 2, ..good() },
                1_000_000,
                Code::Conflict,
                "newest_level",
                "release '1.2.3' knows feature levels 2, and the cluster is at 3",
            ),
            (
                HostJoin { oldest_level: 4, newest_level: 5, ..good() },
                1_000_000,
                Code::Conflict,
                "oldest_level",
                "release '1.2.3' knows feature levels 4 to 5, and the cluster is at 3",
            ),
            (
                HostJoin { oldest_level: 0, ..good() },
                1_000_000,
                Code::BadValue,
                "newest_level",
                "feature levels 0 to 3",
            ),
            (HostJoin { name: "a/b".into(), ..good() }, 1_000_000, Code::BadName, "name", "a/b"),
        ] {
            let problem = judge(request, now_ms).unwrap_err();
            assert_eq!((problem.code, problem.field.as_deref()), (code, Some(field)), "{problem}");
            assert!(problem.detail.contains(why), "{problem}");
        }
    }

    #[test]
    fn a_new_host_is_told_addresses_that_it_reaches() {
        let all = |texts: &[&str]| -> Vec<SocketAddr> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let at = |api: &str, peers: &[&str]| reached_at(api.parse().ok(), &all(peers));
        let peers = ["10.0.0.1:8461", "10.1.0.1:8461", "[fd00::1]:8461"];
        assert_eq!(at("10.0.0.1:8460", &peers).unwrap(), ["10.0.0.1:8460"]);
        assert_eq!(at("0.0.0.0:8460", &peers).unwrap(), ["10.0.0.1:8460", "10.1.0.1:8460"]);
        let six = at("[::]:8460", &peers).unwrap();
        assert_eq!(six, ["10.0.0.1:8460", "10.1.0.1:8460", "[fd00::1]:8460"]);
        assert_eq!(at("127.0.0.1:1", &["127.0.0.1:2"]).unwrap(), ["127.0.0.1:1"]);
        for (api, peers) in
            [("127.0.0.1:8460", &peers[..]), ("", &peers), ("0.0.0.0:8460", &peers[2..])]
        {
            let problem = at(api, peers).unwrap_err();
            assert_eq!(problem.code, Code::Conflict, "{api}: {problem}");
            assert!(problem.hint.unwrap().contains("network.api"));
        }
        assert_eq!(checked(vec!["storage.lan:8460".into()]).unwrap(), ["storage.lan:8460"]);
        for bad in [vec!["storage.lan".into()], vec!["a@b:1".into()], vec!["a:1".into(); 9]] {
            assert_eq!(checked(bad).unwrap_err().field.as_deref(), Some("addresses"));
        }
    }
}

//! This host's certificate: read at its start, and again while it runs, so that a renewed one is
//! used without a restart.
//!
//! Invariants: a host that is to use TLS does not start without a certificate that is good; what
//! replaces it and is not good is told, and not used.

use crate::config::Config;
use crate::engine::HostNode;
use crate::lock::DataDir;
use atoll_api::envelope::rfc3339;
use atoll_api::shell::quote;
use atoll_api::types::{HealthCheck, Level};
use atoll_api::{Code, Problem};
use atoll_format::id::{ClusterId, HostId};
use atoll_node::{About, Severity};
use atoll_trust::{Credentials, Identity, PeerTls, TrustError, Validity};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use crate::config::TRUST_DIR as DIR;
/// Below `host.data_dir`, on hosts that keep the authority: `authority.crt` and `authority.key`.
pub const AUTHORITY_DIR: &str = "authority";
/// In [`DIR`] of a host that joined: who signed the certificates of etcd.
pub const ETCD_CA: &str = "etcd-ca.crt";
/// How often the files are looked at.
const EVERY: Duration = Duration::from_secs(5);
const DAY_S: u64 = 86_400;

/// Seconds since 1970.
pub fn now_s() -> u64 {
    atoll_real::unix_ms() / 1000
}

/// How a host's connections with others are protected.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Protection {
    /// By TLS, or not at all.
    pub tls: bool,
    /// RFC 3339; none: it has no certificate.
    pub certificate_until: Option<String>,
}

/// The certificate of this host, with its key and the authority of its cluster.
#[derive(Debug)]
pub struct HostTrust {
    dir: PathBuf,
    /// Those that a new certificate is to have.
    addresses: Vec<IpAddr>,
    tls: PeerTls,
    used: Mutex<Credentials>,
}

impl HostTrust {
    /// What the host of that data directory has; none: `network.tls` is false.
    ///
    /// # Errors
    /// [`Code::LocalFile`]: it cannot be used, or not now; [`Code::Conflict`]: it is of another
    /// host, or of another cluster.
    pub fn of(config: &Config, data: &DataDir) -> Result<Option<Arc<Self>>, Problem> {
        if !config.tls {
            return Ok(None);
        }
        let dir = data.path().join(DIR);
        let host: Option<HostId> = data.known("host-id")?;
        let next_step = next_step(host, &dir, &config.addresses());
        let refused = |e: TrustError| {
            let detail =
                format!("network.tls is true, and this host's certificate is no good: {e}");
            Problem::new(Code::LocalFile, detail).hint(next_step.clone())
        };
        let used = Credentials::load(&dir).map_err(refused)?;
        let Identity { cluster, host: named } = used.identity();
        let whose = |what: &str, own: String, named: String| {
            let detail = format!(
                "the certificate in {} is of {what} {named}, and this is {what} {own}",
                dir.display()
            );
            Problem::new(Code::Conflict, detail).hint(next_step.clone())
        };
        match (host, data.known::<ClusterId>("cluster-id")?) {
            (Some(own), _) if own != named => {
                return Err(whose("host", own.to_string(), named.to_string()));
            }
            (_, Some(own)) if own != cluster => {
                return Err(whose("cluster", own.to_string(), cluster.to_string()));
            }
            _ => {}
        }
        used.validity().check(now_s()).map_err(|e| {
            let Validity { from_s, until_s } = used.validity();
            let (from, until) = (rfc3339(from_s * 1000), rfc3339(until_s * 1000));
            let detail = format!("{e}: {} holds from {from} until {until}", dir.display());
            Problem::new(Code::LocalFile, detail).hint(next_step.clone())
        })?;
        let tls = PeerTls::new(&used).map_err(refused)?;
        let addresses = config.addresses();
        Ok(Some(Arc::new(Self { dir, addresses, tls, used: Mutex::new(used) })))
    }

    /// What connections are made with; follows what is in the files.
    pub fn tls(&self) -> &PeerTls {
        &self.tls
    }

    /// Whose certificate it is.
    pub fn identity(&self) -> Identity {
        self.tls.identity()
    }

    fn used(&self) -> Credentials {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// When the certificate in use is valid.
    pub fn validity(&self) -> Validity {
        self.used().validity()
    }

    /// The certificate of the cluster's authority, PEM.
    pub fn authority(&self) -> String {
        self.used().authority().to_owned()
    }

    /// What the authority is known by to a machine that joins.
    pub fn authority_sha256(&self) -> String {
        self.used().authority_sha256()
    }

    /// What the authority is shown for another certificate of the same key.
    ///
    /// # Errors
    /// It cannot be signed.
    pub fn request(&self) -> Result<String, TrustError> {
        self.used().request()
    }

    /// Puts that certificate (PEM) of the same key in the place of the one in use; [`watch`] finds
    /// it there.
    ///
    /// # Errors
    /// It is no good, or is not written; what is there is not what is in use.
    pub fn replace(&self, certificate: &str) -> Result<(), TrustError> {
        let used = self.used();
        let renewed = used.renewed(certificate)?;
        renewed.validity().check(now_s())?;
        // What somebody else has put there is his to mend: with another key, this one would not
        // belong to it.
        if !Credentials::load(&self.dir)?.is(&used) {
            let what = format!("what is in {} is not what is in use", self.dir.display());
            return Err(TrustError::Mismatch(what));
        }
        renewed.save_certificate(&self.dir)
    }

    /// The directory holds another cluster than the certificate names.
    pub fn of_another_cluster(&self, found: ClusterId) -> Problem {
        let detail = format!(
            "the certificate in {} is of cluster {}, and the directory holds cluster {found}",
            self.dir.display(),
            self.identity().cluster
        );
        let hint = "the directory must be the cluster's own, and the certificate of its authority \
                    (docs/security.md)";
        Problem::new(Code::Conflict, detail).hint(hint)
    }

    /// What is wrong with the certificate of that host, or soon will be.
    pub fn check(&self, name: &str, now_s: u64) -> Option<HealthCheck> {
        let validity = self.validity();
        let (check, level, how) = if validity.check(now_s).is_err() {
            let how = "is not valid now: connections that exist go on, new ones are refused".into();
            ("certificate-expired", Level::Critical, how)
        } else if validity.is_nearly_over(now_s) {
            let (days, until) = (validity.left_s(now_s) / DAY_S, rfc3339(validity.until_s * 1000));
            let how = format!("is valid for {days} more days, until {until}");
            ("certificate-expires", Level::Warning, how)
        } else {
            return None;
        };
        let message = format!("the certificate of host {name} {how}");
        let remedy = next_step(Some(self.identity().host), &self.dir, &self.addresses);
        Some(HealthCheck { name: check.into(), level, message, remedy })
    }

    /// Looks at the files: whether they were replaced, and are used from now on.
    fn look(&self) -> Result<bool, TrustError> {
        let found = Credentials::load(&self.dir)?;
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if found.is(&used) {
            return Ok(false);
        }
        found.validity().check(now_s())?;
        self.tls.renew(&found)?;
        *used = found;
        Ok(true)
    }
}

/// How that host, or a new one, comes to a certificate.
fn next_step(host: Option<HostId>, dir: &Path, addresses: &[IpAddr]) -> String {
    let host = host.map(|host| format!("{host} ")).unwrap_or_default();
    let addresses: String = addresses.iter().map(|ip| format!(" --address {ip}")).collect();
    format!(
        "atoll cluster certificate {host}--authority AUTHORITY --out {}{addresses} makes one, \
         where the cluster's authority is (docs/security.md)",
        quote(dir)
    )
}

/// Uses what replaces the certificate; tells that, and what keeps it from being used, and when
/// there is none any more that is valid.
pub async fn watch(node: HostNode, trust: Arc<HostTrust>) {
    let (mut trouble, mut told, mut was_valid) = (None, None, true);
    let note = |severity, kind, message| {
        node.note(severity, kind, About::host(node.id()), message);
    };
    loop {
        tokio::time::sleep(EVERY).await;
        let of = trust.clone();
        // They may be on a file system that hangs.
        let Ok(looked) = tokio::task::spawn_blocking(move || of.look()).await else {
            return; // The daemon is ending.
        };
        let until = rfc3339(trust.validity().until_s * 1000);
        let before = std::mem::replace(&mut trouble, looked.as_ref().err().map(|e| e.to_string()));
        match looked {
            Ok(true) => {
                let message = format!(
                    "the certificate of this host was replaced: the new one is valid until {until}"
                );
                note(Severity::Info, "certificate-renewed", message);
                told = None;
            }
            Ok(false) => told = None,
            // Whoever replaces one file after the other is not done yet at the first look.
            Err(_) if trouble == before && told != trouble => {
                let why = trouble.clone().unwrap_or_default();
                let message = format!(
                    "the certificate on disk is no good, the one read before is used, which is \
                     valid until {until}: {why}"
                );
                note(Severity::Warning, "certificate-unusable", message);
                told.clone_from(&trouble);
            }
            Err(_) => {}
        }
        let is_valid = trust.validity().check(now_s()).is_ok();
        if was_valid && !is_valid {
            let message = format!(
                "the certificate of this host has expired ({until}): connections that exist go on, \
                 new ones are refused"
            );
            note(Severity::Error, "certificate-expired", message);
        }
        was_valid = is_valid;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_trust::{Authority, HOST_VALID_S};

    const CLUSTER: ClusterId = ClusterId(0xc);
    const HOST: HostId = HostId(0xa);

    struct Place {
        dir: tempfile::TempDir,
        authority: Authority,
    }

    impl Place {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            Self { dir, authority: Authority::create(CLUSTER, "test", now_s()).unwrap() }
        }

        fn equip(&self, host: HostId, made_at: u64) {
            let made = self.authority.equip(host, made_at, HOST_VALID_S).unwrap();
            made.save(&self.dir.path().join(DIR)).unwrap();
        }

        fn load(&self) -> Result<Arc<HostTrust>, Problem> {
            let data = DataDir::lock(self.dir.path()).unwrap();
            let config = Config { tls: true, ..Config::default() };
            HostTrust::of(&config, &data).map(|trust| trust.expect("it is to have TLS"))
        }

        fn refused(&self, code: Code, says: &str) {
            let problem = self.load().unwrap_err();
            assert_eq!(problem.code, code, "{problem}");
            assert!(problem.detail.contains(says), "{problem}");
            let hint = problem.hint.unwrap();
            let dir = self.dir.path().join(DIR);
            assert!(hint.contains("atoll cluster certificate"), "{hint}");
            assert!(hint.contains(dir.to_str().unwrap()), "{hint}");
        }
    }

    #[test]
    fn a_host_starts_only_with_its_own_certificate_that_is_valid_now() {
        let place = Place::new();
        place.refused(Code::LocalFile, "trust/host.key");
        place.equip(HOST, now_s());
        assert_eq!(place.load().unwrap().identity().host, HOST);
        place.equip(HOST, now_s() - HOST_VALID_S - 1);
        place.refused(Code::LocalFile, "has expired");
        place.equip(HOST, now_s() + 2 * 3600);
        place.refused(Code::LocalFile, "is not valid yet");
        place.equip(HOST, now_s());
        let own = |name, id: String| std::fs::write(place.dir.path().join(name), id).unwrap();
        own("host-id", HOST.to_string());
        own("cluster-id", CLUSTER.to_string());
        place.load().unwrap();
        own("cluster-id", ClusterId(0xd).to_string());
        place.refused(Code::Conflict, "is of cluster 000000000000000c, and this is cluster");
        own("cluster-id", CLUSTER.to_string());
        own("host-id", HostId(0xb).to_string());
        place.refused(Code::Conflict, "is of host 000000000000000a, and this is host");
        let off = Config { tls: false, ..Config::default() };
        let data = DataDir::lock(place.dir.path()).unwrap();
        assert!(HostTrust::of(&off, &data).unwrap().is_none());
    }

    #[test]
    fn what_replaces_the_certificate_is_used_if_it_is_good() {
        let place = Place::new();
        place.equip(HOST, now_s() - 80 * DAY_S);
        let trust = place.load().unwrap();
        let valid_until = trust.validity().until_s;
        assert!(!trust.look().unwrap(), "it is the same");
        place.equip(HostId(0xb), now_s());
        let refused = trust.look().unwrap_err().to_string();
        assert!(refused.contains("the new certificate is of"), "{refused}");
        place.equip(HOST, now_s() - HOST_VALID_S - 60);
        trust.look().unwrap_err();
        assert_eq!(trust.validity().until_s, valid_until, "the old one is in use");
        place.equip(HOST, now_s());
        assert!(trust.look().unwrap(), "it was replaced");
        assert!(trust.validity().until_s > valid_until);
        assert!(!trust.look().unwrap(), "once");
    }

    #[test]
    fn health_warns_when_a_third_of_its_life_is_left() {
        let place = Place::new();
        let now = now_s();
        place.equip(HOST, now);
        let trust = place.load().unwrap();
        let at = |days: u64| trust.check("h", now + days * DAY_S).map(|c| (c.name, c.level));
        assert_eq!(at(59), None);
        assert_eq!(at(60), Some(("certificate-expires".into(), Level::Warning)));
        assert_eq!(at(91), Some(("certificate-expired".into(), Level::Critical)));
        let warned = trust.check("h", now + 61 * DAY_S).unwrap();
        assert!(
            warned.message.contains("host h is valid for 29 more days, until 20"),
            "{warned:?}"
        );
        assert!(warned.remedy.contains("atoll cluster certificate 000000000000000a"), "{warned:?}");
    }

    #[test]
    fn a_certificate_is_renewed_for_the_same_key_and_found_where_it_was_put() {
        let place = Place::new();
        place.equip(HOST, now_s() - 70 * DAY_S);
        let trust = place.load().unwrap();
        let (before, key) = (trust.validity(), || {
            std::fs::read(place.dir.path().join(DIR).join("host.key")).unwrap()
        });
        assert!(before.is_to_be_renewed(now_s()));
        let key_before = key();
        let request = trust.request().unwrap();
        let issue = |host, at_s| place.authority.issue(&request, host, at_s, HOST_VALID_S).unwrap();
        trust.replace(&issue(HostId(0xb), now_s())).unwrap_err();
        trust.replace(&issue(HOST, now_s() - 2 * HOST_VALID_S)).unwrap_err();
        assert!(!trust.look().unwrap(), "what was no good was not written");
        // What an administrator has put there is not mixed with it.
        let certificate = place.dir.path().join(DIR).join("host.crt");
        let good = std::fs::read(&certificate).unwrap();
        std::fs::write(&certificate, "his").unwrap();
        trust.replace(&issue(HOST, now_s())).unwrap_err();
        assert_eq!(std::fs::read(&certificate).unwrap(), b"his");
        std::fs::write(&certificate, good).unwrap();
        trust.replace(&issue(HOST, now_s())).unwrap();
        assert!(trust.look().unwrap());
        assert!(!trust.validity().is_to_be_renewed(now_s()));
        assert_eq!(key(), key_before);
    }
}

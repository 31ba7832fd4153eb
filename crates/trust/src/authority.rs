//! The certificate authority of a cluster.

use crate::credentials::{Credentials, HostKey};
use crate::hash::sha256;
use crate::identity::{Identity, cluster_name, cluster_of};
use crate::pem::{read_certificate, unreadable};
use crate::{AUTHORITY_VALID_S, CLOCK_SKEW_S, TrustError, files};
use atoll_format::id::{ClusterId, HostId};
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams,
    CertificateSigningRequestParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod,
    KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, RevokedCertParams, SanType, SerialNumber,
};
use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use time::OffsetDateTime;

const CERTIFICATE: &str = "authority.crt";
const KEY: &str = "authority.key";

/// Whom a certificate is for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Named {
    /// Which host.
    pub host: HostId,
    /// Where it is reached: for clients that know a server by its address (a browser, curl, etcd).
    /// Hosts of Atoll know each other by their ids.
    pub addresses: Vec<IpAddr>,
}

impl From<HostId> for Named {
    /// One that no client knows by an address.
    fn from(host: HostId) -> Self {
        Self { host, addresses: Vec::new() }
    }
}

/// Signs certificates of the hosts of one cluster.
pub struct Authority {
    cluster: ClusterId,
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// A new one. `name` is the cluster's, for people; `now_s`: seconds since 1970.
    ///
    /// # Errors
    /// No key can be made.
    pub fn create(cluster: ClusterId, name: &str, now_s: u64) -> Result<Self, TrustError> {
        let unmade = unreadable("the new authority");
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(&unmade)?;
        let mut params = CertificateParams::new(vec![cluster_name(cluster)]).map_err(&unmade)?;
        // No authority below it.
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        params.distinguished_name.push(DnType::CommonName, format!("Atoll cluster {name}"));
        params.distinguished_name.push(DnType::OrganizationalUnitName, cluster.to_string());
        validity(&mut params, now_s, AUTHORITY_VALID_S)?;
        let certificate = params.self_signed(&key).map_err(&unmade)?.pem();
        Ok(Self { cluster, certificate, issuer: Issuer::new(params, key) })
    }

    /// The one of those texts, in PEM.
    ///
    /// # Errors
    /// They cannot be read, or are of something else.
    pub fn from_pem(certificate: &str, key: &str) -> Result<Self, TrustError> {
        let cluster = cluster_of(&read_certificate(certificate)?)?;
        let key = KeyPair::from_pem(key).map_err(unreadable("the key of the authority"))?;
        let issuer = Issuer::from_ca_cert_pem(certificate, key)
            .map_err(unreadable("the certificate of the authority"))?;
        Ok(Self { cluster, certificate: certificate.to_owned(), issuer })
    }

    /// The one in a directory, as [`Self::save`] has left it.
    ///
    /// # Errors
    /// As [`Self::from_pem`], with the file; or others may read the key.
    pub fn load(dir: &Path) -> Result<Self, TrustError> {
        let key = files::read_secret(&dir.join(KEY))?;
        let certificate = files::read(&dir.join(CERTIFICATE))?;
        Self::from_pem(&certificate, &key).map_err(|e| e.in_file(dir))
    }

    /// Whether there is one in that directory, or a part of one.
    pub fn is_in(dir: &Path) -> bool {
        [CERTIFICATE, KEY].iter().any(|name| dir.join(name).symlink_metadata().is_ok())
    }

    /// Writes it into a directory, which is made if it is not there, durably.
    ///
    /// # Errors
    /// There is one already; the file system refuses.
    pub fn save(&self, dir: &Path) -> Result<(), TrustError> {
        if Self::is_in(dir) {
            let why = "there is an authority already; it is not replaced".into();
            return Err(TrustError::File { path: dir.to_owned(), why });
        }
        let key = self.key();
        let all = [(KEY, &*key, files::SECRET), (CERTIFICATE, &*self.certificate, files::PUBLIC)];
        files::write(dir, &all)
    }

    /// The cluster that it is of.
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// What every host of the cluster has, in PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// What it is known by: SHA-256 of its certificate (DER), in hexadecimal digits.
    ///
    /// # Errors
    /// Its certificate cannot be read.
    pub fn sha256(&self) -> Result<String, TrustError> {
        read_certificate(&self.certificate).map(|certificate| sha256(&certificate))
    }

    /// The secret, in PEM.
    pub fn key(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// A new key with its certificate, valid for `valid_s` seconds from `now_s` on.
    ///
    /// # Errors
    /// No key can be made.
    pub fn equip(
        &self,
        host: impl Into<Named>,
        now_s: u64,
        valid_s: u64,
    ) -> Result<Credentials, TrustError> {
        let key = HostKey::generate()?;
        let certificate = self.issue(&key.request()?, host, now_s, valid_s)?;
        key.certified(&certificate, &self.certificate)
    }

    /// A certificate for the key of a request, in PEM, valid for `valid_s` seconds from `now_s` on.
    /// Of the request only the key counts: who it is for is the caller's to know.
    ///
    /// # Errors
    /// The request is malformed, or not signed by its own key.
    pub fn issue(
        &self,
        request: &str,
        host: impl Into<Named>,
        now_s: u64,
        valid_s: u64,
    ) -> Result<String, TrustError> {
        let Named { host, addresses } = host.into();
        let request = CertificateSigningRequestParams::from_pem(request)
            .map_err(unreadable("the request for a certificate"))?;
        let issued = unreadable("the new certificate");
        let mut params =
            CertificateParams::new(vec![cluster_name(self.cluster)]).map_err(&issued)?;
        let uri = Identity { cluster: self.cluster, host }.uri();
        let uri = Ia5String::try_from(uri).map_err(&issued)?;
        params.subject_alt_names.push(SanType::URI(uri));
        params.subject_alt_names.extend(addresses.into_iter().map(SanType::IpAddress));
        params.serial_number = Some(serial(host));
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.distinguished_name = Default::default();
        params.distinguished_name.push(DnType::CommonName, format!("Atoll host {host}"));
        params.use_authority_key_identifier_extension = true;
        validity(&mut params, now_s, valid_s)?;
        let certificate = params.signed_by(&request.public_key, &self.issuer).map_err(&issued)?;
        Ok(certificate.pem())
    }
}

/// All certificates of a host have the same number, so that who knows a removed host by its id
/// alone can revoke them: 1 and its id (RFC 5280, 4.1.2.2 asks for a positive one).
fn serial(host: HostId) -> SerialNumber {
    let mut bytes = vec![1];
    bytes.extend(host.0.to_be_bytes());
    SerialNumber::from(bytes)
}

/// The list of revoked certificates (RFC 5280, PEM) that etcd is given: those of these hosts, as of
/// `now_s`. It is signed by a key that nobody has: etcd reads it from a file of its own, and asks
/// for no signature.
///
/// # Errors
/// No key can be made.
pub fn revocations(hosts: &[HostId], now_s: u64) -> Result<String, TrustError> {
    let unmade = unreadable("the list of revoked certificates");
    let mut issuer = CertificateParams::default();
    validity(&mut issuer, now_s, AUTHORITY_VALID_S)?;
    issuer.key_usages = vec![KeyUsagePurpose::CrlSign];
    let (from, until) = (issuer.not_before, issuer.not_after);
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(&unmade)?;
    let revoked = |host: &HostId| RevokedCertParams {
        serial_number: serial(*host),
        revocation_time: from,
        reason_code: None,
        invalidity_date: None,
    };
    let list = CertificateRevocationListParams {
        this_update: from,
        next_update: until,
        crl_number: SerialNumber::from(now_s),
        issuing_distribution_point: None,
        revoked_certs: hosts.iter().map(revoked).collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let list = list.signed_by(&Issuer::new(issuer, key)).and_then(|list| list.pem());
    list.map_err(&unmade)
}

impl fmt::Debug for Authority {
    /// Without its key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authority({})", self.cluster)
    }
}

fn validity(params: &mut CertificateParams, now_s: u64, for_s: u64) -> Result<(), TrustError> {
    let at = |seconds: u64| {
        let seconds = i64::try_from(seconds).ok();
        let at = seconds.and_then(|s| OffsetDateTime::from_unix_timestamp(s).ok());
        at.ok_or_else(|| TrustError::Mismatch(format!("the clock of this host shows {now_s} s")))
    };
    params.not_before = at(now_s.saturating_sub(CLOCK_SKEW_S))?;
    params.not_after = at(now_s + for_s)?;
    Ok(())
}

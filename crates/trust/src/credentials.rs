//! What a host shows and believes: its key, its certificate, and the authority of its cluster; and
//! the files that hold them.

use crate::ends::Ends;
use crate::hash::sha256;
use crate::identity::Identity;
use crate::pem::{read_certificate, read_key, unreadable};
use crate::validity::Validity;
use crate::{TrustError, files};
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::pki_types::ServerName;
use std::fmt;
use std::net::IpAddr;
use std::path::Path;

const AUTHORITY: &str = "authority.crt";
const CERTIFICATE: &str = "host.crt";
const KEY: &str = "host.key";

/// A key of a host that has no certificate yet.
pub struct HostKey(KeyPair);

impl HostKey {
    /// A new one.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn generate() -> Result<Self, TrustError> {
        KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map(Self).map_err(unreadable("the new key"))
    }

    /// What is shown to the authority, in PEM: the public half, signed by the other.
    ///
    /// # Errors
    /// It cannot be signed.
    pub fn request(&self) -> Result<String, TrustError> {
        let request = CertificateParams::default().serialize_request(&self.0);
        let request = request.and_then(|request| request.pem());
        request.map_err(unreadable("the request for a certificate"))
    }

    /// With what the authority gave for it.
    ///
    /// # Errors
    /// That is no certificate of a host, or of another key.
    pub fn certified(self, certificate: &str, authority: &str) -> Result<Credentials, TrustError> {
        Credentials::from_pem(authority, certificate, &self.0.serialize_pem())
    }
}

impl fmt::Debug for HostKey {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HostKey")
    }
}

/// What a host shows and believes.
#[derive(Clone)]
pub struct Credentials {
    identity: Identity,
    validity: Validity,
    pem: [String; 3],
}

impl Credentials {
    fn from_pem(authority: &str, certificate: &str, key: &str) -> Result<Self, TrustError> {
        let pem = [authority, certificate, key].map(str::to_owned);
        let (authority, certificate) =
            (read_certificate(authority)?, read_certificate(certificate)?);
        let identity = Identity::of(&certificate)?;
        let validity = Validity::of(&certificate, &authority)?;
        let all = Self { identity, validity, pem };
        // Also whether they belong together.
        all.ends()?;
        Ok(all)
    }

    /// Those in a directory, as [`Self::save`] has left them.
    ///
    /// # Errors
    /// A file is missing or malformed, they do not belong together, or others may read the key.
    /// Says nothing about time: see [`Self::validity`].
    pub fn load(dir: &Path) -> Result<Self, TrustError> {
        let key = files::read_secret(&dir.join(KEY))?;
        let authority = files::read(&dir.join(AUTHORITY))?;
        let certificate = files::read(&dir.join(CERTIFICATE))?;
        Self::from_pem(&authority, &certificate, &key).map_err(|e| e.in_file(dir))
    }

    /// Writes them into a directory, which is made if it is not there, durably. A crash leaves the
    /// old ones or these, or a key and a certificate that do not belong together: then write them
    /// again.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn save(&self, dir: &Path) -> Result<(), TrustError> {
        let [authority, certificate, key] = &self.pem;
        files::write(
            dir,
            &[
                (AUTHORITY, authority, files::PUBLIC),
                (KEY, key, files::SECRET),
                (CERTIFICATE, certificate, files::PUBLIC),
            ],
        )
    }

    /// What is shown to the authority for another certificate of the same key, in PEM.
    ///
    /// # Errors
    /// It cannot be signed.
    pub fn request(&self) -> Result<String, TrustError> {
        self.host_key()?.request()
    }

    /// The same with another certificate of the same key, authority and host: a renewed one.
    ///
    /// # Errors
    /// It is of another key, authority or host, or is none.
    pub fn renewed(&self, certificate: &str) -> Result<Self, TrustError> {
        let renewed = self.host_key()?.certified(certificate, &self.pem[0])?;
        if renewed.identity != self.identity {
            let (new, old) = (renewed.identity.uri(), self.identity.uri());
            return Err(TrustError::Mismatch(format!("the certificate is of {new}, not of {old}")));
        }
        Ok(renewed)
    }

    /// Writes the certificate alone into the directory that they were loaded from, durably. A crash
    /// leaves the one before or this one.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn save_certificate(&self, dir: &Path) -> Result<(), TrustError> {
        files::write(dir, &[(CERTIFICATE, &self.pem[1], files::PUBLIC)])
    }

    fn host_key(&self) -> Result<HostKey, TrustError> {
        KeyPair::from_pem(&self.pem[2]).map(HostKey).map_err(unreadable("the host's key"))
    }

    /// The certificate of the authority, in PEM.
    pub fn authority(&self) -> &str {
        &self.pem[0]
    }

    /// What the authority is known by to a machine that joins: SHA-256 of its certificate (DER), in
    /// hexadecimal digits.
    pub fn authority_sha256(&self) -> String {
        let authority = read_certificate(&self.pem[0]).expect("it was read before");
        sha256(&authority)
    }

    /// Whose they are.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Whether clients that know servers by their addresses find that one in the certificate.
    pub fn has_address(&self, address: IpAddr) -> bool {
        let certificate = read_certificate(&self.pem[1]).expect("it was read before");
        let certificate = webpki::EndEntityCert::try_from(&certificate);
        let name = ServerName::IpAddress(address.into());
        certificate.is_ok_and(|c| c.verify_is_valid_for_subject_name(&name).is_ok())
    }

    /// When the certificate is valid.
    pub fn validity(&self) -> Validity {
        self.validity
    }

    /// Whether both are the same to the byte.
    pub fn is(&self, other: &Self) -> bool {
        self.pem == other.pem
    }

    /// What connections are made with.
    pub(crate) fn ends(&self) -> Result<Ends, TrustError> {
        let [authority, certificate, key] = &self.pem;
        let (authority, certificate) =
            (read_certificate(authority)?, read_certificate(certificate)?);
        Ends::new(self.identity.cluster, &authority, &certificate, &read_key(key)?)
    }
}

impl fmt::Debug for Credentials {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({})", self.identity.uri())
    }
}

//! What a host shows and believes: its key, its certificate, and the authority of its cluster; and
//! the files that hold them.

use crate::{Identity, TrustError};
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
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
    pem: [String; 3],
}

impl Credentials {
    fn from_pem(authority: &str, certificate: &str, key: &str) -> Result<Self, TrustError> {
        let pem = [authority, certificate, key].map(str::to_owned);
        let all = Self { identity: Identity::of(&read_certificate(certificate)?)?, pem };
        // Also whether they belong together.
        crate::PeerTls::new(&all)?;
        Ok(all)
    }

    /// Those in a directory, as [`Self::save`] has left them.
    ///
    /// # Errors
    /// A file is missing or malformed, they do not belong together, or others may read the key.
    pub fn load(dir: &Path) -> Result<Self, TrustError> {
        let read = |name: &str| {
            let path = dir.join(name);
            std::fs::read_to_string(&path).map_err(|e| file(&path, &e))
        };
        let key = dir.join(KEY);
        let mode = std::fs::metadata(&key).map_err(|e| file(&key, &e))?.permissions().mode();
        if mode & 0o077 != 0 {
            let why = format!("others may read it (mode {:o}): chmod 600 it", mode & 0o777);
            return Err(TrustError::File { path: key, why });
        }
        Self::from_pem(&read(AUTHORITY)?, &read(CERTIFICATE)?, &read(KEY)?)
    }

    /// Writes them into a directory, which is made if it is not there, durably. A crash leaves the
    /// old ones or these.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn save(&self, dir: &Path) -> Result<(), TrustError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |e: io::Error| file(&path, &e)
        };
        std::fs::create_dir_all(dir).map_err(failed(dir))?;
        // The certificate last: without the key before it, it would be of no use.
        let [authority, certificate, key] = &self.pem;
        for (name, text, mode) in
            [(AUTHORITY, authority, 0o644), (KEY, key, 0o600), (CERTIFICATE, certificate, 0o644)]
        {
            let (path, new) = (dir.join(name), dir.join(format!("{name}.new")));
            let write = || {
                let _ = std::fs::remove_file(&new);
                let options = OpenOptions::new().write(true).create_new(true).mode(mode).clone();
                let mut out = options.open(&new)?;
                out.write_all(text.as_bytes())?;
                out.sync_all()?;
                std::fs::rename(&new, &path)
            };
            write().map_err(failed(&path))?;
        }
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed(dir))
    }

    /// Whose they are.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    pub(crate) fn authority(&self) -> Result<CertificateDer<'static>, TrustError> {
        read_certificate(&self.pem[0])
    }

    pub(crate) fn certificate(&self) -> Result<CertificateDer<'static>, TrustError> {
        read_certificate(&self.pem[1])
    }

    pub(crate) fn key(&self) -> Result<PrivateKeyDer<'static>, TrustError> {
        PrivateKeyDer::from_pem_slice(self.pem[2].as_bytes()).map_err(unreadable("the host's key"))
    }
}

impl fmt::Debug for Credentials {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({})", self.identity.uri())
    }
}

fn read_certificate(pem: &str) -> Result<CertificateDer<'static>, TrustError> {
    CertificateDer::from_pem_slice(pem.as_bytes()).map_err(unreadable("a certificate"))
}

pub(crate) fn unreadable<E: fmt::Display>(what: &'static str) -> impl Fn(E) -> TrustError {
    move |e| TrustError::Unreadable { what, why: e.to_string() }
}

fn file(path: &Path, e: &io::Error) -> TrustError {
    TrustError::File { path: path.to_owned(), why: e.to_string() }
}

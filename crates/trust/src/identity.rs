//! What a certificate says of whose it is: a URI for the host, a name that all hosts of the cluster
//! have.

use crate::TrustError;
use crate::pem::unreadable;
use atoll_format::id::{ClusterId, HostId};
use rustls::pki_types::CertificateDer;

/// A host of a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// Of which cluster.
    pub cluster: ClusterId,
    /// Which host.
    pub host: HostId,
}

/// Before the ids in the URI.
const SCHEME: &str = "atoll://";

impl Identity {
    /// As a certificate has it: `atoll://CLUSTER/HOST`.
    pub fn uri(self) -> String {
        format!("{SCHEME}{}/{}", self.cluster, self.host)
    }

    /// Whose certificate that is. Says nothing about who signed it.
    ///
    /// # Errors
    /// It cannot be read, or names no host, or more than one.
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Self, TrustError> {
        let unreadable = |e: webpki::Error| TrustError::Unreadable {
            what: "the certificate of a host",
            why: e.to_string(),
        };
        let certificate = webpki::EndEntityCert::try_from(certificate).map_err(unreadable)?;
        let ours: Vec<&str> =
            certificate.valid_uri_names().filter(|uri| uri.starts_with(SCHEME)).collect();
        match ours[..] {
            [uri] => Self::from_uri(uri).ok_or_else(|| TrustError::NoIdentity(format!("'{uri}'"))),
            [] => Err(TrustError::NoIdentity("it has no such name".into())),
            _ => Err(TrustError::NoIdentity("it names several".into())),
        }
    }

    fn from_uri(uri: &str) -> Option<Self> {
        let (cluster, host) = uri.strip_prefix(SCHEME)?.split_once('/')?;
        let all = Self { cluster: cluster.parse().ok()?, host: host.parse().ok()? };
        // One way to write it.
        (all.uri() == uri).then_some(all)
    }
}

/// Behind the cluster in [`cluster_name`].
const DOMAIN: &str = ".cluster.atoll.internal";

/// The DNS name that every host of a cluster has, and its authority, for TLS: which host it is, the
/// URI says.
pub(crate) fn cluster_name(cluster: ClusterId) -> String {
    format!("{cluster}{DOMAIN}")
}

/// The cluster whose name a certificate has.
pub(crate) fn cluster_of(certificate: &CertificateDer<'_>) -> Result<ClusterId, TrustError> {
    let what = unreadable("the certificate of the authority");
    let certificate = webpki::EndEntityCert::try_from(certificate).map_err(&what)?;
    let mut names = certificate.valid_dns_names();
    let found = names.find_map(|name| name.strip_suffix(DOMAIN)?.parse().ok());
    found.ok_or_else(|| TrustError::Mismatch("the authority is none of a cluster".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_names_one_host_in_one_way() {
        let identity = Identity { cluster: ClusterId(0xab), host: HostId(0x12) };
        assert_eq!(Identity::from_uri(&identity.uri()), Some(identity));
        for bad in [
            "atoll://00000000000000ab/0000000000000012/",
            "atoll://00000000000000AB/0000000000000012",
            "atoll://ab/12",
            "atoll://00000000000000ab",
            "http://00000000000000ab/0000000000000012",
            "atoll://+0000000000000ab/0000000000000012",
        ] {
            assert_eq!(Identity::from_uri(bad), None, "{bad}");
        }
    }
}

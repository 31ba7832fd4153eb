//! TLS of the management interface: a host shows the certificate that it has for its peers, and who
//! asks shows none: he proves himself by a token.

use crate::TrustError;
use crate::identity::{cluster_name, cluster_of};
use crate::pem::unreadable;
use crate::pinned::Pinned;
use crate::suites::provider;
use atoll_format::id::ClusterId;
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::NoServerSessionStorage;
use rustls::version::TLS13;
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, ServerConfig, WantsVerifier};
use std::fmt;
use std::sync::Arc;

/// All that is spoken over it.
const HTTP_1: &[u8] = b"http/1.1";

/// The end of a host. It shows the authority, too: whoever knows that by its hash alone finds it
/// there.
pub(crate) fn server(
    certificate: &CertificateDer<'static>,
    authority: &CertificateDer<'_>,
    key: &PrivateKeyDer<'_>,
) -> Result<Arc<ServerConfig>, TrustError> {
    let mismatch = |e: rustls::Error| {
        TrustError::Mismatch(format!("key and certificate cannot serve the API: {e}"))
    };
    let mut server = ServerConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(&[&TLS13])
        .and_then(|builder| {
            let chain = vec![certificate.clone(), authority.clone().into_owned()];
            builder.with_no_client_auth().with_single_cert(chain, key.clone_key())
        })
        .map_err(mismatch)?;
    server.alpn_protocols = vec![HTTP_1.to_vec()];
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.send_tls13_tickets = 0;
    Ok(Arc::new(server))
}

/// The end of who asks.
#[derive(Clone)]
pub struct ApiTrust {
    /// What connections are made with.
    pub config: Arc<ClientConfig>,
    /// The name that a host must show: that of its cluster. None: the one that it is asked by, for
    /// the authority is none of a cluster but that of a proxy before it.
    pub name: Option<ServerName<'static>>,
}

impl ApiTrust {
    /// Believes those authorities (PEM), and no others.
    ///
    /// # Errors
    /// There is none among them, or one cannot be read.
    pub fn of(authorities: &str) -> Result<Self, TrustError> {
        let unread = |e: &dyn fmt::Display| TrustError::Unreadable {
            what: "the certificate of an authority",
            why: e.to_string(),
        };
        let all: Vec<CertificateDer<'static>> =
            CertificateDer::pem_slice_iter(authorities.as_bytes())
                .collect::<Result<_, _>>()
                .map_err(|e| unread(&e))?;
        let mut roots = RootCertStore::empty();
        for authority in &all {
            roots.add(authority.clone()).map_err(|e| unread(&e))?;
        }
        let name = match &all[..] {
            [] => return Err(unread(&"there is no certificate in it")),
            [only] => cluster_of(only).ok(),
            _ => None,
        };
        let name = name.map(|cluster| ServerName::try_from(cluster_name(cluster)));
        let name = name.transpose().map_err(unreadable("the name of the cluster"))?;
        let config = builder()?.with_root_certificates(roots).with_no_client_auth();
        Ok(Self { config: finished(config), name })
    }

    /// Believes hosts of that cluster, if its authority's certificate has that SHA-256.
    ///
    /// # Errors
    /// There is no cryptography for it.
    pub fn pinned(cluster: ClusterId, authority_sha256: String) -> Result<Self, TrustError> {
        let pinned = Pinned { authority_sha256, provider: Arc::new(provider()) };
        let config = builder()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(pinned))
            .with_no_client_auth();
        let name = ServerName::try_from(cluster_name(cluster));
        let name = name.map_err(unreadable("the name of the cluster"))?;
        Ok(Self { config: finished(config), name: Some(name) })
    }
}

fn builder() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, TrustError> {
    ClientConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(&[&TLS13])
        .map_err(|e| TrustError::Mismatch(e.to_string()))
}

fn finished(mut config: ClientConfig) -> Arc<ClientConfig> {
    config.alpn_protocols = vec![HTTP_1.to_vec()];
    config.resumption = Resumption::disabled();
    Arc::new(config)
}

impl fmt::Debug for ApiTrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiTrust({:?})", self.name)
    }
}

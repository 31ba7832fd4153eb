//! The configurations of the two ends of a connection between hosts.

use crate::TrustError;
use crate::identity::cluster_name;
use crate::pem::unreadable;
use crate::suites::provider;
use atoll_format::id::ClusterId;
use rustls::client::Resumption;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::fmt;
use std::sync::Arc;

/// What the next connections are made with.
pub(crate) struct Ends {
    pub client: Arc<ClientConfig>,
    pub server: Arc<ServerConfig>,
    /// Of the management interface.
    pub api: Arc<ServerConfig>,
    pub name: ServerName<'static>,
}

impl Ends {
    /// Of a host of that cluster, with its authority, its certificate and the key of that.
    ///
    /// # Errors
    /// They do not belong together.
    pub fn new(
        cluster: ClusterId,
        authority: &CertificateDer<'_>,
        certificate: &CertificateDer<'static>,
        key: &PrivateKeyDer<'_>,
    ) -> Result<Self, TrustError> {
        let mismatch = |e: &dyn fmt::Display| {
            TrustError::Mismatch(format!("key, certificate and authority do not fit: {e}"))
        };
        let provider = Arc::new(provider());
        let chain = vec![certificate.clone()];
        let mut client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(|e| mismatch(&e))?
            .with_root_certificates(roots(authority)?)
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .map_err(|e| mismatch(&e))?;
        client.resumption = Resumption::disabled();
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(|e| mismatch(&e))?
            .with_client_cert_verifier(verifier(authority)?)
            .with_single_cert(chain, key.clone_key())
            .map_err(|e| mismatch(&e))?;
        let api = crate::api::server(certificate, authority, key)?;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        let name = ServerName::try_from(cluster_name(cluster))
            .map_err(unreadable("the name of the cluster"))?;
        Ok(Self { client: Arc::new(client), server: Arc::new(server), api, name })
    }
}

fn roots(authority: &CertificateDer<'_>) -> Result<RootCertStore, TrustError> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.clone().into_owned()).map_err(unreadable("the authority"))?;
    Ok(roots)
}

/// Judges certificates that hosts show.
pub(crate) fn verifier(
    authority: &CertificateDer<'_>,
) -> Result<Arc<dyn ClientCertVerifier>, TrustError> {
    let (roots, provider) = (Arc::new(roots(authority)?), Arc::new(provider()));
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
    verifier.build().map_err(unreadable("the authority"))
}

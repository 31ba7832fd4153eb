//! The two ends of a connection between hosts.

use crate::credentials::unreadable;
use crate::identity::cluster_name;
use crate::{Credentials, Identity, TrustError};
use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::ServerName;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{
    CipherSuite, ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig,
    ServerConnection,
};
use std::fmt;
use std::sync::Arc;

/// Makes the ends of connections of one host. Clones are the same.
#[derive(Clone)]
pub struct PeerTls {
    identity: Identity,
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    name: ServerName<'static>,
}

impl PeerTls {
    /// For a host with those credentials.
    ///
    /// # Errors
    /// They do not belong together.
    pub fn new(credentials: &Credentials) -> Result<Self, TrustError> {
        let identity = credentials.identity();
        let mismatch = |e: &dyn fmt::Display| {
            TrustError::Mismatch(format!("key, certificate and authority do not fit: {e}"))
        };
        let provider = Arc::new(provider());
        let mut roots = RootCertStore::empty();
        roots.add(credentials.authority()?).map_err(unreadable("the authority"))?;
        let roots = Arc::new(roots);
        let chain = vec![credentials.certificate()?];
        let mut client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(|e| mismatch(&e))?
            .with_root_certificates(roots.clone())
            .with_client_auth_cert(chain.clone(), credentials.key()?)
            .map_err(|e| mismatch(&e))?;
        client.resumption = Resumption::disabled();
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone());
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(|e| mismatch(&e))?
            .with_client_cert_verifier(verifier.build().map_err(|e| mismatch(&e))?)
            .with_single_cert(chain, credentials.key()?)
            .map_err(|e| mismatch(&e))?;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        let name = ServerName::try_from(cluster_name(identity.cluster))
            .map_err(unreadable("the name of the cluster"))?;
        Ok(Self { identity, client: Arc::new(client), server: Arc::new(server), name })
    }

    /// Whose end it is.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// The end that connects.
    ///
    /// # Errors
    /// There is no randomness for it.
    pub fn connect(&self) -> Result<Connection, rustls::Error> {
        ClientConnection::new(self.client.clone(), self.name.clone()).map(Connection::from)
    }

    /// The end that is connected to.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn accept(&self) -> Result<Connection, rustls::Error> {
        ServerConnection::new(self.server.clone()).map(Connection::from)
    }

    /// Who has proved to be at the other end of a connection whose handshake is over.
    ///
    /// # Errors
    /// It has shown a certificate of the cluster that names no host.
    pub fn peer(connection: &Connection) -> Result<Identity, TrustError> {
        assert!(!connection.is_handshaking(), "nothing is proved yet");
        let shown = connection.peer_certificates().and_then(|all| all.first());
        Identity::of(shown.ok_or_else(|| TrustError::NoIdentity("none was shown".into()))?)
    }
}

impl fmt::Debug for PeerTls {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PeerTls({})", self.identity.uri())
    }
}

/// AES with 128 bits first: a third less time for each block than with 256, and as far out of
/// reach. ChaCha20 where processors have no AES.
fn provider() -> CryptoProvider {
    let mut provider = ring::default_provider();
    let rank = |suite: CipherSuite| match suite {
        CipherSuite::TLS13_AES_128_GCM_SHA256 => 0,
        CipherSuite::TLS13_AES_256_GCM_SHA384 => 1,
        _ => 2,
    };
    provider.cipher_suites.sort_by_key(|suite| rank(suite.suite()));
    provider
}

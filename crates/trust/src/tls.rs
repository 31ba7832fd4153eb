//! The two ends of a connection between hosts.

use crate::TrustError;
use crate::credentials::Credentials;
use crate::ends::Ends;
use crate::identity::{Identity, cluster_name};
use rustls::{ClientConnection, Connection, ServerConfig, ServerConnection};
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

/// Makes the ends of connections of one host. Clones are the same, also after [`PeerTls::renew`].
#[derive(Clone)]
pub struct PeerTls {
    identity: Identity,
    ends: Arc<RwLock<Ends>>,
}

impl PeerTls {
    /// For a host with those credentials.
    ///
    /// # Errors
    /// They do not belong together.
    pub fn new(credentials: &Credentials) -> Result<Self, TrustError> {
        let ends = Arc::new(RwLock::new(credentials.ends()?));
        Ok(Self { identity: credentials.identity(), ends })
    }

    /// Uses other credentials of the same host for connections that are made from now on.
    ///
    /// # Errors
    /// They are another host's, or do not belong together; the old ones stay in use.
    pub fn renew(&self, credentials: &Credentials) -> Result<(), TrustError> {
        if credentials.identity() != self.identity {
            let (new, old) = (credentials.identity().uri(), self.identity.uri());
            let what = format!("the new certificate is of {new}, this host is {old}");
            return Err(TrustError::Mismatch(what));
        }
        let ends = credentials.ends()?;
        *self.ends.write().unwrap_or_else(PoisonError::into_inner) = ends;
        Ok(())
    }

    fn ends(&self) -> RwLockReadGuard<'_, Ends> {
        self.ends.read().unwrap_or_else(PoisonError::into_inner)
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
        let (client, name) = {
            let ends = self.ends();
            (ends.client.clone(), ends.name.clone())
        };
        ClientConnection::new(client, name).map(Connection::from)
    }

    /// The end that is connected to.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn accept(&self) -> Result<Connection, rustls::Error> {
        let server = self.ends().server.clone();
        ServerConnection::new(server).map(Connection::from)
    }

    /// What the next connection of the management interface is accepted with.
    pub fn api(&self) -> Arc<ServerConfig> {
        self.ends().api.clone()
    }

    /// The name that all hosts of the cluster have, and show.
    pub fn name(&self) -> String {
        cluster_name(self.identity.cluster)
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

/// What went wrong in a handshake, in the words of people: a clause about the other end.
pub fn refusal(error: &rustls::Error) -> String {
    use rustls::{AlertDescription as Alert, CertificateError as Bad, Error};
    let said = match error {
        Error::InvalidCertificate(bad) => match bad {
            Bad::UnknownIssuer | Bad::BadSignature => {
                "its certificate was signed by another authority than this host's"
            }
            Bad::Expired | Bad::ExpiredContext { .. } => "its certificate has expired",
            Bad::NotValidYet | Bad::NotValidYetContext { .. } => {
                "its certificate is not valid yet: are the clocks right?"
            }
            Bad::NotValidForName | Bad::NotValidForNameContext { .. } => {
                "its certificate is of another cluster"
            }
            _ => return format!("its certificate is no good: {error}"),
        },
        Error::NoCertificatesPresented => "it shows no certificate",
        Error::AlertReceived(Alert::UnknownCA | Alert::DecryptError) => {
            "it refuses this host's certificate, which another authority has signed than its own"
        }
        Error::AlertReceived(Alert::CertificateExpired) => {
            "it refuses this host's certificate as expired, or not valid yet"
        }
        Error::AlertReceived(Alert::BadCertificate | Alert::CertificateUnknown) => {
            "it refuses this host's certificate; its log says why"
        }
        Error::InvalidMessage(_) => "what it sends is not TLS: is network.tls false there?",
        _ => return format!("TLS: {error}"),
    };
    said.into()
}

impl fmt::Debug for PeerTls {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PeerTls({})", self.identity.uri())
    }
}

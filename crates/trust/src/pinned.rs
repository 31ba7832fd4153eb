//! Judges hosts for a machine that knows no more of their cluster than the hash of its authority.

use crate::hash::sha256;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, RootCertStore, SignatureScheme};
use std::sync::Arc;

/// Believes a host whose certificate is signed by the authority with that hash, which the host
/// shows behind it, and has the name that it is asked by.
#[derive(Debug)]
pub(crate) struct Pinned {
    /// Of its certificate (DER), in hexadecimal digits.
    pub authority_sha256: String,
    /// What it is checked with.
    pub provider: Arc<CryptoProvider>,
}

impl Pinned {
    /// What judges certificates of that authority.
    fn judge(
        &self,
        shown: &[CertificateDer<'_>],
    ) -> Result<Arc<WebPkiServerVerifier>, rustls::Error> {
        let unknown = rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let mut all = shown.iter();
        let authority = all.find(|shown| sha256(shown) == self.authority_sha256).ok_or(unknown)?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        let (roots, provider) = (Arc::new(roots), self.provider.clone());
        let judge = WebPkiServerVerifier::builder_with_provider(roots, provider).build();
        judge.map_err(|e| rustls::Error::General(e.to_string()))
    }
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        asked_for: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        // Of the rest that is shown nothing is needed: the authority signs hosts itself.
        self.judge(intermediates)?.verify_server_cert(
            end_entity,
            &[],
            asked_for,
            ocsp_response,
            now,
        )
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.2 is not spoken".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

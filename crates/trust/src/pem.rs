//! Certificates and keys out of text.

use crate::TrustError;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fmt;

pub(crate) fn read_certificate(pem: &str) -> Result<CertificateDer<'static>, TrustError> {
    CertificateDer::from_pem_slice(pem.as_bytes()).map_err(unreadable("a certificate"))
}

pub(crate) fn read_key(pem: &str) -> Result<PrivateKeyDer<'static>, TrustError> {
    PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(unreadable("the host's key"))
}

pub(crate) fn unreadable<E: fmt::Display>(what: &'static str) -> impl Fn(E) -> TrustError {
    move |e| TrustError::Unreadable { what, why: e.to_string() }
}

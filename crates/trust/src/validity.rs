//! When a certificate is valid, and whether an authority has signed it.

use crate::TrustError;
use crate::ends::verifier;
use crate::pem::unreadable;
use rustls::CertificateError;
use rustls::pki_types::{CertificateDer, UnixTime};
use std::time::Duration;

/// From when and until when a certificate is valid, in seconds since 1970, both included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Validity {
    /// From then.
    pub from_s: u64,
    /// Until then.
    pub until_s: u64,
}

impl Validity {
    /// Of a host's certificate.
    ///
    /// # Errors
    /// It is not one of that authority.
    pub(crate) fn of(
        certificate: &CertificateDer<'_>,
        authority: &CertificateDer<'_>,
    ) -> Result<Self, TrustError> {
        let verifier = verifier(authority)?;
        let at = |s: u64| {
            let at = UnixTime::since_unix_epoch(Duration::from_secs(s));
            verifier.verify_client_cert(certificate, &[], at).err()
        };
        // The verifier names the bounds when it is asked about a time beyond them.
        let bound = |error: Option<rustls::Error>| match error {
            Some(rustls::Error::InvalidCertificate(CertificateError::NotValidYetContext {
                not_before: bound,
                ..
            })) => Ok(bound.as_secs()),
            Some(rustls::Error::InvalidCertificate(CertificateError::ExpiredContext {
                not_after: bound,
                ..
            })) => Ok(bound.as_secs()),
            other => {
                let why = other.map_or("it is valid for ever".into(), |e| e.to_string());
                Err(unreadable("the certificate of a host")(why))
            }
        };
        let validity = Self { from_s: bound(at(0))?, until_s: bound(at(u64::MAX))? };
        match at(validity.from_s) {
            None => Ok(validity),
            Some(rustls::Error::InvalidCertificate(
                CertificateError::UnknownIssuer | CertificateError::BadSignature,
            )) => {
                let what = "the certificate of this host was not signed by that authority";
                Err(TrustError::Mismatch(what.into()))
            }
            Some(e) => Err(TrustError::Mismatch(format!("the certificate of this host: {e}"))),
        }
    }

    /// Whether it is valid at that time.
    ///
    /// # Errors
    /// [`TrustError::Time`].
    pub fn check(self, now_s: u64) -> Result<(), TrustError> {
        match now_s {
            now if now > self.until_s => Err(TrustError::Time("has expired")),
            now if now < self.from_s => Err(TrustError::Time("is not valid yet")),
            _ => Ok(()),
        }
    }

    /// Seconds that are left; 0: none.
    pub fn left_s(self, now_s: u64) -> u64 {
        self.until_s.saturating_sub(now_s)
    }

    /// Whether it is time for a new one: of 90 days, 31 are left, or less. That is a day before
    /// [`Self::is_nearly_over`], so that only what nobody has renewed is warned of.
    pub fn is_to_be_renewed(self, now_s: u64) -> bool {
        90 * self.left_s(now_s) <= 31 * (self.until_s - self.from_s)
    }

    /// Whether a third of its life is left, or less.
    pub fn is_nearly_over(self, now_s: u64) -> bool {
        self.left_s(now_s) <= (self.until_s - self.from_s) / 3
    }
}

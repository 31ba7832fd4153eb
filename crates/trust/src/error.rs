//! What is wrong with a key, a certificate or a file of them.

use std::path::{Path, PathBuf};

/// See the variants.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// A file is not there or cannot be used.
    #[error("'{}': {why}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// A clause.
        why: String,
    },
    /// Text that is no certificate, key or request of this kind.
    #[error("{what} cannot be read: {why}")]
    Unreadable {
        /// What it should have been.
        what: &'static str,
        /// A clause.
        why: String,
    },
    /// A certificate that names no host of an Atoll cluster.
    #[error("the certificate names no host of a cluster: {0}")]
    NoIdentity(String),
    /// Key, certificate and authority do not belong together.
    #[error("{0}")]
    Mismatch(String),
    /// A certificate that is not valid now.
    #[error("the certificate of this host {0}")]
    Time(&'static str),
}

impl TrustError {
    /// The same, which says where.
    pub(crate) fn in_file(self, path: &Path) -> Self {
        match self {
            at @ Self::File { .. } => at,
            other => Self::File { path: path.to_owned(), why: other.to_string() },
        }
    }
}

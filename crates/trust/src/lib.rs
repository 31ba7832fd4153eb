//! Who belongs to a cluster: its certificate authority, the certificates of its hosts, and the TLS
//! configurations of connections between them and with those who manage it.
//!
//! - The authority is made once, with the cluster. Its key signs certificates of hosts and nothing
//!   else, and no other authority is believed.
//! - A host makes its key itself and never gives it away. Its certificate says which host of which
//!   cluster it is, for 90 days.
//! - Between hosts there is TLS 1.3 only, both ends show a certificate, and no session is resumed:
//!   each connection proves anew who is there.
//! - Who manages the cluster over a network proves himself by a token, inside TLS.
//! - A machine that joins knows the authority by its hash, from the token that it joins by.
//!
//! *Absent: sockets, and who may have a certificate.*

mod api;
mod authority;
mod credentials;
mod ends;
mod error;
mod files;
mod hash;
mod identity;
mod join;
mod pem;
mod pinned;
mod suites;
mod tls;
mod token;
mod validity;

pub use api::ApiTrust;
pub use authority::{Authority, Named, revocations};
pub use credentials::{Credentials, HostKey};
pub use error::TrustError;
pub use files::write_public;
pub use hash::sha256;
pub use identity::Identity;
pub use join::{JOIN_ADDRESSES_MAX, JoinToken, is_address};
pub use tls::{PeerTls, refusal};
pub use token::TokenSecret;
pub use validity::Validity;

/// How long a certificate of a host is valid, in seconds: 90 days.
pub const HOST_VALID_S: u64 = 90 * 24 * 3600;
/// How long the authority is valid, in seconds: 20 years.
pub const AUTHORITY_VALID_S: u64 = 20 * 365 * 24 * 3600;
/// How far the clocks of two hosts may be apart, in seconds: a certificate is valid that long
/// before it was made.
pub const CLOCK_SKEW_S: u64 = 3600;

//! SHA-256.

use ring::digest::{SHA256, digest};
use std::fmt::Write;

/// SHA-256 of these bytes, in 64 lower-case hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    hex(digest(&SHA256, bytes).as_ref())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        write!(text, "{byte:02x}").expect("text takes everything");
    }
    text
}

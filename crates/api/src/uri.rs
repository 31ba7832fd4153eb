//! URIs of NBD exports and of endpoints: written and read here, and nowhere else.
//!
//! Invariants: every byte but letters, digits, `-`, `.`, `_`, `~` and (in paths) `/` is written as
//! `%XX`, so a URI is ASCII whatever the name of a directory, and means the same to every reader
//! (QEMU also parts a query at `;`, others take `+` for a blank); what is read back is what was
//! written, byte for byte; what is not in that form is refused, never guessed at.

use std::ffi::OsString;
use std::fmt;
use std::net::SocketAddr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// An export of an NBD server: `nbd+unix:///vm1?socket=/run/atoll/nbd.sock` or
/// `nbd://127.0.0.1:10809/vm1`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Nbd {
    /// The export's name.
    pub export: String,
    /// Where it is served.
    pub server: Server,
}

/// Where an NBD server listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Server {
    /// On a Unix socket; an absolute path.
    Unix(PathBuf),
    /// On TCP.
    Tcp(SocketAddr),
}

impl Nbd {
    /// An export on a Unix socket.
    pub fn unix(export: impl Into<String>, socket: impl Into<PathBuf>) -> Self {
        Self { export: export.into(), server: Server::Unix(socket.into()) }
    }

    /// An export on TCP.
    pub fn tcp(export: impl Into<String>, address: SocketAddr) -> Self {
        Self { export: export.into(), server: Server::Tcp(address) }
    }
}

impl fmt::Display for Nbd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let export = encode(self.export.as_bytes(), false);
        match &self.server {
            Server::Unix(socket) => write!(f, "nbd+unix:///{export}?socket={}", path(socket)),
            // A scope of an IPv6 address is written behind a '%', which is special here too.
            Server::Tcp(address) => {
                write!(f, "nbd://{}/{export}", address.to_string().replace('%', "%25"))
            }
        }
    }
}

impl FromStr for Nbd {
    type Err = String;

    /// Reads what [`Display`](fmt::Display) writes.
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("'{}' is not the URI of an NBD export", text.escape_default());
        let name = |text: &str| strict(text, false).and_then(|name| String::from_utf8(name).ok());
        if let Some(rest) = text.strip_prefix("nbd+unix:///") {
            let (export, socket) = rest.split_once("?socket=").ok_or_else(bad)?;
            let export = name(export).ok_or_else(bad)?;
            strict(socket, true).ok_or_else(bad)?;
            return Ok(Self::unix(export, decode_path(socket).ok_or_else(bad)?));
        }
        let rest = text.strip_prefix("nbd://").ok_or_else(bad)?;
        let (address, export) = rest.split_once('/').ok_or_else(bad)?;
        let address = decode(address).and_then(|a| String::from_utf8(a).ok()).ok_or_else(bad)?;
        Ok(Self::tcp(name(export).ok_or_else(bad)?, address.parse().map_err(|_| bad())?))
    }
}

/// `text` as one segment of a path or one value of a query.
pub fn escape(text: &str) -> String {
    encode(text.as_bytes(), false)
}

/// A path as a part of a URI.
pub fn path(path: &Path) -> String {
    encode(path.as_os_str().as_bytes(), true)
}

fn encode(bytes: &[u8], slashes: bool) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        if is_plain(byte, slashes) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

fn is_plain(byte: u8, slashes: bool) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || (slashes && byte == b'/')
}

/// The bytes that a text with `%XX` stands for; None: a `%` without two digits.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        bytes.push(if byte == b'%' {
            let (digits, after) = rest.split_at_checked(2)?;
            rest = after;
            if !digits.iter().all(u8::is_ascii_hexdigit) {
                return None;
            }
            u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?
        } else {
            byte
        });
    }
    Some(bytes)
}

/// The path that a text with `%XX` stands for; None also if it has a zero byte or is relative.
pub fn decode_path(text: &str) -> Option<PathBuf> {
    let bytes = decode(text).filter(|bytes| bytes.starts_with(b"/") && !bytes.contains(&0))?;
    Some(OsString::from_vec(bytes).into())
}

/// As [`decode`], of a text in which everything special is written as `%XX`.
fn strict(text: &str, slashes: bool) -> Option<Vec<u8>> {
    let plain = text.bytes().all(|byte| byte == b'%' || is_plain(byte, slashes));
    if plain { decode(text) } else { None }
}

#[cfg(test)]
mod tests {
    use super::{Nbd, Server, decode};
    use proptest::prelude::*;
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    #[test]
    fn what_is_special_is_escaped() {
        for (path, text) in [
            ("/run/atoll/nbd.sock", "/run/atoll/nbd.sock"),
            ("/a b", "/a%20b"),
            ("/a%20b", "/a%2520b"),
            ("/a#b", "/a%23b"),
            ("/a&b=c", "/a%26b%3Dc"),
            ("/a?b", "/a%3Fb"),
            ("/a;b", "/a%3Bb"),
            ("/a+b,c:d", "/a%2Bb%2Cc%3Ad"),
            ("/\u{e4}\n'\"\\", "/%C3%A4%0A%27%22%5C"),
        ] {
            let uri = Nbd::unix("v", path).to_string();
            assert_eq!(uri, format!("nbd+unix:///v?socket={text}"));
        }
        let raw = Nbd::unix("v", OsString::from_vec(b"/\xff".to_vec()));
        assert_eq!(raw.to_string(), "nbd+unix:///v?socket=/%FF");
        let six = Nbd::tcp("v:t/x", "[::1]:10809".parse().unwrap());
        assert_eq!(six.to_string(), "nbd://[::1]:10809/v%3At%2Fx");
        let scope = Nbd::tcp("v", "[fe80::1%3]:10809".parse().unwrap());
        assert_eq!(scope.to_string(), "nbd://[fe80::1%253]:10809/v");
        assert_eq!(scope.to_string().parse(), Ok(scope));
    }

    #[test]
    fn what_is_not_of_that_form_is_refused() {
        for bad in [
            "",
            "nbd:///v",
            "nbd+unix:///v",
            "nbd+unix:///v?socket=relative",
            "nbd+unix:///v?socket=/a b",
            "nbd+unix:///v?socket=/a&socket=/b",
            "nbd+unix:///v?socket=/a;b",
            "nbd+unix:///v?socket=/a#b",
            "nbd+unix:///v?socket=/a%2",
            "nbd+unix:///v?socket=/a%+1",
            "nbd+unix:///v?socket=/a%00",
            "nbd+unix:///v/w?socket=/a",
            "nbd+unix:///v?tls=1&socket=/a",
            "nbd+unix:///%FF?socket=/a",
            "nbd+unix://host/v?socket=/a",
            "nbd://127.0.0.1/v",
            "nbd://host:1/v",
            "http://127.0.0.1:1/v",
        ] {
            let error = bad.parse::<Nbd>().unwrap_err();
            assert!(error.contains("is not the URI of an NBD export"), "{bad}: {error}");
        }
        assert_eq!(decode("%e4%E4a"), Some(vec![0xe4, 0xe4, b'a']));
    }

    proptest! {
        #[test]
        fn every_export_comes_back(
            export in "[^\0]{0,20}",
            socket in prop::collection::vec(1..=u8::MAX, 0..40),
            address in any::<std::net::SocketAddr>(),
        ) {
            let socket = [b"/".as_slice(), &socket].concat();
            let unix = Nbd::unix(export.as_str(), OsString::from_vec(socket));
            prop_assert!(unix.to_string().is_ascii());
            prop_assert_eq!(unix.to_string().parse(), Ok(unix));
            let mut address = address;
            if let std::net::SocketAddr::V6(six) = &mut address {
                six.set_flowinfo(0); // has no text
            }
            let tcp = Nbd { export, server: Server::Tcp(address) };
            prop_assert_eq!(tcp.to_string().parse(), Ok(tcp));
        }
    }
}

//! Tokens for joining: what a new machine is given, by a safe way, to become a host of a cluster.
//!
//! One is text of five parts, `SECRET@CLUSTER@AUTHORITY@ADDRESSES@CHECK`: the secret, which the
//! cluster knows by its hash; the cluster's id, which names its hosts; the SHA-256 of the
//! certificate of the cluster's authority, so that the machine gives the secret to hosts of
//! that cluster only; where they are reached; and the first digits of the SHA-256 of all
//! before, so that a piece of a token is told from one that is no good.

use crate::hash::sha256;
use crate::token::TokenSecret;
use atoll_format::id::ClusterId;
use std::fmt;

/// Addresses of one token.
pub const JOIN_ADDRESSES_MAX: usize = 8;
/// Bytes of one: a host name and a port.
const ADDRESS_MAX: usize = 260;
/// Hexadecimal digits at the end.
const CHECK: usize = 8;
const BETWEEN: char = '@';

/// What a machine joins a cluster by.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    /// What it proves itself by, once.
    pub secret: TokenSecret,
    /// Of which cluster.
    pub cluster: ClusterId,
    /// SHA-256 of the certificate (DER) of the cluster's authority, in hexadecimal digits.
    pub authority_sha256: String,
    /// `host:port` of the management interface of hosts: 1 to [`JOIN_ADDRESSES_MAX`].
    pub addresses: Vec<String>,
}

impl JoinToken {
    /// As it is handed over. It is a secret.
    pub fn reveal(&self) -> String {
        let addresses = self.addresses.join(",");
        let (secret, authority) = (self.secret.reveal(), &self.authority_sha256);
        let before = format!("{secret}@{}@{authority}@{addresses}@", self.cluster);
        let check = check_of(&before);
        before + &check
    }

    /// What somebody has typed or sent.
    ///
    /// # Errors
    /// What is wrong with it: one clause, without any part of it.
    pub fn read(text: &str) -> Result<Self, &'static str> {
        let text = text.trim();
        let Some((before, check)) = text.rfind(BETWEEN).map(|at| text.split_at(at + 1)) else {
            return Err(match TokenSecret::read(text) {
                Some(_) => "it is a token for asking, not for joining",
                None => "it is no token for joining, or only a piece of one",
            });
        };
        if check_of(before) != check {
            return Err("a piece of it is missing, or was changed");
        }
        let parts: Vec<&str> = before.split_terminator(BETWEEN).collect();
        let [secret, cluster, authority, addresses] = parts[..] else {
            return Err("it is of another release");
        };
        let secret = TokenSecret::read(secret).ok_or("its secret is malformed")?;
        let cluster = cluster.parse().map_err(|_| "its cluster is malformed")?;
        if authority.len() != 64 || !authority.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err("its authority is malformed");
        }
        let addresses: Vec<String> = addresses.split(',').map(str::to_owned).collect();
        if addresses.len() > JOIN_ADDRESSES_MAX || !addresses.iter().all(|one| is_address(one)) {
            return Err("its addresses are malformed");
        }
        Ok(Self { secret, cluster, authority_sha256: authority.to_owned(), addresses })
    }
}

impl fmt::Debug for JoinToken {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinToken").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

/// Whether that is `host:port` of what a token can name.
pub fn is_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let fits = |b: u8| b.is_ascii_alphanumeric() || b".-:[]".contains(&b);
    text.len() <= ADDRESS_MAX
        && !host.is_empty()
        && host.bytes().all(fits)
        && port.parse::<u16>().is_ok_and(|port| port > 0)
}

fn check_of(before: &str) -> String {
    let mut check = sha256(before.as_bytes());
    check.truncate(CHECK);
    check
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> JoinToken {
        JoinToken {
            secret: TokenSecret::read(&format!("atoll_{}", "5a".repeat(32))).unwrap(),
            cluster: ClusterId(0xc1),
            authority_sha256: "c3".repeat(32),
            addresses: vec!["10.0.0.1:8460".into(), "[fd00::1]:8460".into()],
        }
    }

    #[test]
    fn a_token_is_read_as_it_was_made_and_every_piece_of_one_is_refused() {
        let text = token().reveal();
        assert_eq!(JoinToken::read(&format!(" {text}\n")), Ok(token()));
        assert!(!format!("{:?}", token()).contains("5a5a"));
        assert!(TokenSecret::is_in(&text), "what keeps tokens out of logs knows it");
        for end in 0..text.len() {
            let refused = JoinToken::read(&text[..end]).unwrap_err();
            assert!(!refused.contains("5a"), "{refused}");
        }
        for at in 0..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[at] = if changed[at] == b'0' { b'1' } else { b'0' };
            JoinToken::read(std::str::from_utf8(&changed).unwrap()).unwrap_err();
        }
    }

    #[test]
    fn what_is_no_token_for_joining_is_told_apart() {
        let sealed = |before: &str| format!("{before}{}", check_of(before));
        let (secret, authority) = (token().secret, "c3".repeat(32));
        let secret = format!("{}@{}", secret.reveal(), token().cluster);
        let secret_alone = token().secret;
        let alone = secret_alone.reveal();
        for (text, why) in [
            (alone.to_owned(), "for asking"),
            ("hunter2".into(), "no token for joining"),
            (String::new(), "no token for joining"),
            (sealed(&format!("{secret}@{authority}@")), "another release"),
            (sealed(&format!("{secret}@{authority}@a:1@later@")), "another release"),
            (sealed(&format!("{secret}@c3@a:1@")), "authority"),
            (sealed(&format!("atoll_5a@{}@{authority}@a:1@", token().cluster)), "secret"),
            (sealed(&format!("{alone}@c1@{authority}@a:1@")), "cluster"),
            (sealed(&format!("{secret}@{authority}@@")), "addresses"),
            (sealed(&format!("{secret}@{authority}@a:0@")), "addresses"),
            (sealed(&format!("{secret}@{authority}@a b:1@")), "addresses"),
            (sealed(&format!("{secret}@{authority}@{}a:1@", "a:1,".repeat(8))), "addresses"),
        ] {
            let refused = JoinToken::read(&text).unwrap_err();
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }
}

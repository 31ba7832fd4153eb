//! Tokens: secrets that stand for who may ask the management interface over a network.
//!
//! A token is 256 random bits, so that nobody can guess it, nor find it by its hash: one round of
//! SHA-256 is enough to store it by.

use crate::TrustError;
use crate::hash::{hex, sha256};
use ring::rand::{SecureRandom, SystemRandom};
use std::fmt;

/// What every token begins with: scanners of secrets find it by that.
const MARK: &str = "atoll_";
const BITS: usize = 256;

/// A token, as its holder keeps it. It is told once, and stored nowhere here.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenSecret(String);

impl TokenSecret {
    /// A new one.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn generate() -> Result<Self, TrustError> {
        let mut bits = [0; BITS / 8];
        SystemRandom::new().fill(&mut bits).map_err(|_| TrustError::Unreadable {
            what: "the randomness of the system",
            why: "it gives none".into(),
        })?;
        Ok(Self(MARK.to_owned() + &hex(&bits)))
    }

    /// What somebody has typed or sent, if it has the form of a token.
    pub fn read(text: &str) -> Option<Self> {
        let digits = text.strip_prefix(MARK)?;
        let is_digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        let fits = digits.len() == BITS / 4 && digits.bytes().all(is_digit);
        fits.then(|| Self(text.to_owned()))
    }

    /// Whether a token stands somewhere in that text.
    pub fn is_in(text: &str) -> bool {
        let length = MARK.len() + BITS / 4;
        text.match_indices(MARK)
            .any(|(at, _)| text.get(at..at + length).is_some_and(|part| Self::read(part).is_some()))
    }

    /// The secret itself: for its holder, and for the head of a request.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// What it is known by: SHA-256 of its text, in hexadecimal digits.
    pub fn sha256(&self) -> String {
        sha256(self.0.as_bytes())
    }
}

impl fmt::Debug for TokenSecret {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenSecret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_one_form_and_is_known_by_its_hash() {
        let digits = "0123456789abcdef".repeat(4);
        let token = TokenSecret::read(&format!("atoll_{digits}")).expect("one");
        // printf atoll_0123... | sha256sum
        assert_eq!(
            token.sha256(),
            "b1e1861fde7b3871e10f6d1eea621cf2d4fd215848e71d2027d4fd565ae83c84"
        );
        assert!(!format!("{token:?}").contains(&digits));
        for text in [format!("atoll_{digits}"), format!("{{\"a\":\"atoll_atoll_{digits}0\"}}")] {
            assert!(TokenSecret::is_in(&text), "{text}");
        }
        for text in ["", "atoll_", "atoll_12 \u{e4}", &digits, &format!("atoll_{}", &digits[1..])] {
            assert!(!TokenSecret::is_in(text), "{text}");
        }
        for bad in [
            String::new(),
            digits.clone(),
            format!("atoll_{}", &digits[1..]),
            format!("atoll_{digits}0"),
            format!("atoll_{}", digits.to_uppercase()),
            format!("atoll_{digits} "),
            format!("Atoll_{digits}"),
        ] {
            assert_eq!(TokenSecret::read(&bad), None, "{bad}");
        }
    }

    #[test]
    fn no_two_are_the_same() {
        let made: Vec<TokenSecret> = (0..64).map(|_| TokenSecret::generate().unwrap()).collect();
        for (at, token) in made.iter().enumerate() {
            assert_eq!(TokenSecret::read(token.reveal()).as_ref(), Some(token));
            assert!(!made[..at].contains(token));
        }
    }
}

//! Tokens: who may ask the management interface over a network, and as what.
//!
//! All hosts know them by their view of the directory: one that is removed is refused as soon as
//! the watch has told. A host that is cut off from the directory goes on with those that it knew.

use crate::error::ManageError;
use crate::node::Node;
use crate::transaction::ATTEMPTS_MAX;
use atoll_format::id::HostId;
use atoll_format::record::{
    self, RECORD_VERSION, TOKENS_MAX, TokenRecord, TokenRole, TokensRecord, key,
};
use atoll_world::directory::{Compare, Entry, KeyChange, Revision, Txn};
use atoll_world::{Components, Nanos, World};

/// How long whoever has changed tokens waits until this host knows it.
const SEEN_WAIT: Nanos = Nanos::from_secs(3);
/// How often it looks.
const LOOK_EVERY: Nanos = Nanos::from_ms(10);

/// How long tokens for joining that nobody used are kept once they have expired, so that who comes
/// with one hears why it is refused: a day, in milliseconds.
const JOIN_KEPT_MS: u64 = 24 * 3600 * 1000;

/// A change of them.
#[derive(Clone, Debug)]
pub enum TokenChange {
    /// One more; with it, those for joining go that have expired, unused ones a day ago.
    Create(TokenRecord),
    /// Without the one of that name.
    Remove(String),
    /// A host joins by the one with that hash, which nobody has joined by yet.
    Join {
        /// SHA-256 of the token.
        sha256: String,
        /// The host.
        host: HostId,
        /// Milliseconds since 1970.
        now_ms: u64,
    },
}

/// The tokens after that change.
fn changed(before: &[TokenRecord], change: &TokenChange) -> Result<Vec<TokenRecord>, ManageError> {
    let mut tokens = before.to_vec();
    match change {
        TokenChange::Create(token) => {
            assert_eq!(token.sha256.len(), 64, "the hash of {}", token.name);
            tokens.retain(|known| !is_long_over(known, token.created_ms));
            if tokens.iter().any(|known| known.name == token.name) {
                let name = token.name.clone();
                return Err(ManageError::Exists { what: "token", name });
            }
            if tokens.len() >= TOKENS_MAX {
                let why = format!("there are {TOKENS_MAX} tokens, the most: remove one");
                return Err(ManageError::Invalid(why));
            }
            if tokens.iter().any(|known| known.sha256 == token.sha256) {
                return Err(ManageError::Invalid("that token exists under another name".into()));
            }
            let at = tokens.partition_point(|known| known.name < token.name);
            tokens.insert(at, token.clone());
        }
        TokenChange::Remove(name) => {
            let not_found = || ManageError::NotFound { what: "token", name: name.clone() };
            let at = tokens.iter().position(|known| known.name == *name).ok_or_else(not_found)?;
            tokens.remove(at);
        }
        TokenChange::Join { sha256, host, now_ms } => {
            let token = tokens.iter_mut().find(|token| token.sha256 == *sha256);
            let token = token.ok_or_else(|| ManageError::NotFound {
                what: "token",
                name: "for joining: it was removed, or never was".into(),
            })?;
            // It may be this very change, of whose first attempt nothing was heard.
            if token.used_by != Some(*host) {
                joins_by(token, *now_ms).map_err(ManageError::Invalid)?;
            }
            token.used_by = Some(*host);
        }
    }
    Ok(tokens)
}

/// Whether a host may join by that token then; if not, why.
///
/// # Errors
/// One sentence.
pub fn joins_by(token: &TokenRecord, now_ms: u64) -> Result<(), String> {
    let name = &token.name;
    match token.used_by {
        _ if token.role != TokenRole::Join => {
            Err(format!("token {name} is for asking, no host joins by it"))
        }
        Some(host) => Err(format!("token {name} was used already: host {host} has joined by it")),
        None if token.is_expired(now_ms) => Err(format!("token {name} has expired")),
        None => Ok(()),
    }
}

fn is_long_over(token: &TokenRecord, now_ms: u64) -> bool {
    let kept_ms = if token.used_by.is_some() { 0 } else { JOIN_KEPT_MS };
    token.role == TokenRole::Join
        && token.expires_ms.is_some_and(|at| at.saturating_add(kept_ms) <= now_ms)
}

impl<W: World, S: Components> Node<W, S> {
    /// All tokens, by name.
    pub async fn tokens(&self) -> Result<Vec<TokenRecord>, ManageError> {
        Ok(self.tokens_entry().await?.0)
    }

    /// All tokens, and the transaction that wrote them; 0: none has yet.
    async fn tokens_entry(&self) -> Result<(Vec<TokenRecord>, Revision), ManageError> {
        let Some(entry) = self.entry(key::TOKENS).await? else {
            return Ok((Vec::new(), Revision(0)));
        };
        let record: TokensRecord =
            record::decode(key::TOKENS, &entry.value).map_err(ManageError::Failed)?;
        Ok((record.tokens, entry.modified))
    }

    /// Makes or removes a token.
    pub async fn change_tokens(
        &self,
        change: &TokenChange,
        dry_run: bool,
    ) -> Result<(), ManageError> {
        for _ in 0..ATTEMPTS_MAX {
            let (before, modified) = self.tokens_entry().await?;
            let tokens = changed(&before, change)?;
            if dry_run {
                return Ok(());
            }
            let value = record::encode(&TokensRecord { version: RECORD_VERSION, tokens });
            let txn = Txn {
                compares: vec![Compare { key: key::TOKENS.into(), modified }],
                changes: vec![KeyChange::Put(key::TOKENS.into(), value.clone())],
            };
            let mine = |found: &[(String, Option<Entry>)]| {
                found.iter().any(|(_, e)| e.as_ref().is_some_and(|e| e.value == value))
            };
            if self.settle(txn, mine).await? {
                self.wait_until_seen(change).await;
                return Ok(());
            }
        }
        Err(ManageError::Conflict("the tokens".into()))
    }

    /// Returns when this host goes by that change. Not without end: a watch may be late.
    async fn wait_until_seen(&self, change: &TokenChange) {
        let until = self.world().now() + SEEN_WAIT;
        let is_seen = || {
            let known = self.0.view.tokens();
            let has = |fits: &dyn Fn(&TokenRecord) -> bool| {
                known.as_ref().is_some_and(|known| known.tokens.iter().any(fits))
            };
            match change {
                TokenChange::Create(token) => has(&|known| known.sha256 == token.sha256),
                TokenChange::Remove(name) => !has(&|known| known.name == *name),
                TokenChange::Join { sha256, .. } => {
                    has(&|known| known.sha256 == *sha256 && known.used_by.is_some())
                }
            }
        };
        while !is_seen() && self.world().now() < until {
            self.world().sleep(LOOK_EVERY).await;
        }
    }

    /// The token that is known by that hash, as this host last saw the directory. Whether it has
    /// expired is for the caller to say.
    pub fn token(&self, sha256: &str) -> Option<TokenRecord> {
        assert_eq!(sha256.len(), 64, "no SHA-256");
        let known = self.0.view.tokens()?;
        known.tokens.iter().find(|token| token.sha256 == sha256).cloned()
    }

    /// Whether this host has read the directory, so that it knows the tokens.
    pub fn knows_tokens(&self) -> bool {
        self.0.view.revision() > Revision(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_format::record::VALUE_MAX;

    fn token(name: &str) -> TokenRecord {
        TokenRecord {
            name: name.into(),
            role: TokenRole::Admin,
            sha256: format!("{name:0>64}"),
            created_ms: u64::MAX,
            expires_ms: Some(u64::MAX),
            used_by: None,
        }
    }

    /// Good until 1,000.
    fn join(name: &str) -> TokenRecord {
        TokenRecord {
            role: TokenRole::Join,
            created_ms: 100,
            expires_ms: Some(1_000),
            ..token(name)
        }
    }

    #[test]
    fn names_and_hashes_are_unique_and_the_order_is_that_of_names() {
        let before = vec![token("b"), token("d")];
        let create = |token: TokenRecord| changed(&before, &TokenChange::Create(token));
        let remove = |name: &str| changed(&before, &TokenChange::Remove(name.into()));
        assert_eq!(create(token("c")), Ok(vec![token("b"), token("c"), token("d")]));
        assert_eq!(create(token("a")), Ok(vec![token("a"), token("b"), token("d")]));
        assert!(matches!(create(token("d")), Err(ManageError::Exists { what: "token", .. })));
        let twin = TokenRecord { sha256: token("b").sha256, ..token("c") };
        assert!(matches!(create(twin), Err(ManageError::Invalid(_))));
        assert_eq!(remove("b"), Ok(vec![token("d")]));
        assert!(matches!(remove("c"), Err(ManageError::NotFound { what: "token", .. })));
    }

    #[test]
    fn there_are_no_more_than_fit_into_one_record() {
        // The longest name.
        let name = |n: usize| format!("{n:0>64}");
        let mut tokens = Vec::new();
        for n in 0..TOKENS_MAX {
            let used_by = Some(HostId(u64::MAX));
            let longest = TokenRecord { role: TokenRole::Operator, used_by, ..token(&name(n)) };
            tokens = changed(&tokens, &TokenChange::Create(longest)).expect("room");
        }
        let full = changed(&tokens, &TokenChange::Create(token("x"))).unwrap_err();
        assert!(full.to_string().contains("256 tokens"), "{full}");
        let record = TokensRecord { version: RECORD_VERSION, tokens };
        assert!(record::encode(&record).len() <= VALUE_MAX);
    }

    #[test]
    fn a_token_is_refused_from_the_moment_on_at_which_it_expires() {
        let at = |expires_ms, now| TokenRecord { expires_ms, ..token("a") }.is_expired(now);
        assert_eq!([at(Some(7), 6), at(Some(7), 7), at(Some(7), 8)], [false, true, true]);
        assert!(!at(None, u64::MAX));
    }

    #[test]
    fn one_host_joins_by_a_token_for_joining_before_it_expires_and_by_no_other() {
        let before = vec![token("a"), join("j")];
        let joined = |tokens: &[TokenRecord], name: &str, host, now_ms| {
            let sha256 = token(name).sha256;
            let change = TokenChange::Join { sha256, host: HostId(host), now_ms };
            changed(tokens, &change).map_err(|e| e.to_string())
        };
        let after = joined(&before, "j", 7, 999).unwrap();
        let used = TokenRecord { used_by: Some(HostId(7)), ..join("j") };
        assert_eq!(after, vec![token("a"), used]);
        for (tokens, name, now_ms, why) in [
            (&before, "j", 1_000, "token j has expired"),
            (&before, "a", 0, "no host joins by it"),
            (&before, "x", 0, "was removed, or never was"),
            // Used again, by whomever, and at any time: that is what is said of it.
            (&after, "j", 999, "host 0000000000000007 has joined by it"),
            (&after, "j", 5_000, "host 0000000000000007 has joined by it"),
        ] {
            let refused = joined(tokens, name, 8, now_ms).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
        // Of whose change the answer was lost, and which is tried again.
        assert_eq!(joined(&after, "j", 7, 5_000), Ok(after.clone()));
    }

    #[test]
    fn tokens_for_joining_are_forgotten_some_time_after_they_have_expired() {
        let forgets = |known, created_ms| {
            let next = TokenRecord { created_ms, ..token("next") };
            let after = changed(&[token("a"), known], &TokenChange::Create(next)).unwrap();
            assert!(after.iter().any(|token| token.name == "a"));
            !after.iter().any(|token| token.name == "j")
        };
        assert!(!forgets(join("j"), JOIN_KEPT_MS + 999));
        assert!(forgets(join("j"), JOIN_KEPT_MS + 1_000));
        let used = || TokenRecord { used_by: Some(HostId(7)), ..join("j") };
        assert!(!forgets(used(), 999) && forgets(used(), 1_000));
    }
}

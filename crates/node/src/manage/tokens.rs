//! Tokens: who may ask the management interface over a network, and as what.
//!
//! All hosts know them by their view of the directory: one that is removed is refused as soon as
//! the watch has told. A host that is cut off from the directory goes on with those that it knew.

use crate::error::ManageError;
use crate::node::Node;
use crate::transaction::ATTEMPTS_MAX;
use atoll_format::record::{self, RECORD_VERSION, TOKENS_MAX, TokenRecord, TokensRecord, key};
use atoll_world::directory::{Compare, Entry, KeyChange, Revision, Txn};
use atoll_world::{Components, Nanos, World};

/// How long whoever has changed tokens waits until this host knows it.
const SEEN_WAIT: Nanos = Nanos::from_secs(3);
/// How often it looks.
const LOOK_EVERY: Nanos = Nanos::from_ms(10);

/// A change of them.
#[derive(Clone, Debug)]
pub enum TokenChange {
    /// One more.
    Create(TokenRecord),
    /// Without the one of that name.
    Remove(String),
}

/// The tokens after that change.
fn changed(before: &[TokenRecord], change: &TokenChange) -> Result<Vec<TokenRecord>, ManageError> {
    let mut tokens = before.to_vec();
    match change {
        TokenChange::Create(token) => {
            assert_eq!(token.sha256.len(), 64, "the hash of {}", token.name);
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
    }
    Ok(tokens)
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
    use atoll_format::record::{TokenRole, VALUE_MAX};

    fn token(name: &str) -> TokenRecord {
        TokenRecord {
            name: name.into(),
            role: TokenRole::Admin,
            sha256: format!("{name:0>64}"),
            created_ms: u64::MAX,
            expires_ms: Some(u64::MAX),
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
            tokens = changed(&tokens, &TokenChange::Create(token(&name(n)))).expect("room");
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
}

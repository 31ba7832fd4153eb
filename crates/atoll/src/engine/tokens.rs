//! Tokens, on the shard: who holds one, and which there are, in the words of the interface.

use super::Engine;
use super::admin::problem;
use crate::control::Caller;
use atoll_api::envelope::rfc3339;
use atoll_api::routes::Role;
use atoll_api::types::{Token, TokenCreate};
use atoll_api::{Code, Problem};
use atoll_format::record::{TokenRecord, TokenRole};
use atoll_node::{About, Severity, TokenChange};

/// The longest life of a token: 100 years.
const VALID_S_MAX: u64 = 3_155_760_000;
/// The longest life of a token for joining: a day.
const JOIN_VALID_S_MAX: u64 = 86_400;
/// The usual one: a quarter of an hour.
const JOIN_VALID_S: u64 = 900;
/// What to do without a good one.
const NEXT_STEP: &str = "atoll token create --name NAME --role ROLE, on a host, makes one";

fn role(role: TokenRole) -> Role {
    match role {
        TokenRole::Join => Role::Join,
        TokenRole::Viewer => Role::Viewer,
        TokenRole::Operator => Role::Operator,
        TokenRole::Admin => Role::Admin,
    }
}

/// In the words of the interface.
pub(super) fn token_item(record: TokenRecord, now_ms: u64) -> Token {
    Token {
        expired: record.is_expired(now_ms),
        role: role(record.role),
        created: rfc3339(record.created_ms),
        expires: record.expires_ms.map(rfc3339),
        used_by: record.used_by.map(|host| host.to_string()),
        name: record.name,
    }
}

/// Whose token that is, at that time.
fn holder(token: Option<TokenRecord>, now_ms: u64) -> Result<Caller, Problem> {
    let refused =
        |why: String| Err(Problem::new(Code::NotAuthenticated, why).hint(NEXT_STEP.to_owned()));
    let Some(token) = token else {
        return refused("the token is none of this cluster: it was removed, or never was".into());
    };
    if let Some(host) = token.used_by {
        return refused(format!(
            "token {} was used already: host {host} has joined by it",
            token.name
        ));
    }
    if let Some(at) = token.expires_ms.filter(|_| token.is_expired(now_ms)) {
        return refused(format!("token {} has expired ({})", token.name, rfc3339(at)));
    }
    Ok(Caller { role: role(token.role), token: Some(token.name) })
}

/// What is stored of a token that is made at that time.
fn made(request: TokenCreate, sha256: String, now_ms: u64) -> Result<TokenRecord, Problem> {
    if let Some(valid) = request.valid_s.filter(|valid| !(1..=VALID_S_MAX).contains(valid)) {
        let detail = format!("valid_s is {valid}, and must be 1 to {VALID_S_MAX}");
        return Err(Problem::new(Code::BadValue, detail).field("valid_s"));
    }
    Ok(TokenRecord {
        name: request.name,
        role: match request.role {
            // Such a one is good once, and needs more than its secret.
            Role::Join => {
                let detail = "a token with role join is made for a machine that joins";
                return Err(Problem::new(Code::BadValue, detail)
                    .hint("POST /api/v1/tokens:join, 'atoll cluster join-token'")
                    .field("role"));
            }
            Role::Viewer => TokenRole::Viewer,
            Role::Operator => TokenRole::Operator,
            Role::Admin => TokenRole::Admin,
        },
        sha256,
        created_ms: now_ms,
        expires_ms: request.valid_s.map(|valid| now_ms + valid * 1000),
        used_by: None,
    })
}

/// What is stored of a token for joining that is made at that time.
pub(super) fn join_record(
    name: Option<String>,
    valid_s: Option<u64>,
    sha256: String,
    now_ms: u64,
) -> Result<TokenRecord, Problem> {
    let valid_s = valid_s.unwrap_or(JOIN_VALID_S);
    if !(1..=JOIN_VALID_S_MAX).contains(&valid_s) {
        let detail = format!("valid_s is {valid_s}, and must be 1 to {JOIN_VALID_S_MAX}");
        return Err(Problem::new(Code::BadValue, detail).field("valid_s"));
    }
    Ok(TokenRecord {
        // As little of the hash says nothing of the secret.
        name: name.unwrap_or_else(|| format!("join-{}", &sha256[..8])),
        role: TokenRole::Join,
        sha256,
        created_ms: now_ms,
        expires_ms: Some(now_ms + valid_s * 1000),
        used_by: None,
    })
}

impl Engine {
    /// Whose token that is, by its hash.
    pub fn caller(&self, sha256: &str) -> Result<Caller, Problem> {
        let node = &self.running()?.node;
        if !node.knows_tokens() {
            let detail = "this host has not read yet which tokens there are";
            return Err(Problem::new(Code::Unavailable, detail).hint("try again in a second"));
        }
        holder(node.token(sha256), atoll_real::unix_ms())
    }

    /// Tells that somebody was refused.
    pub fn refused(&self, message: String) -> Result<(), Problem> {
        let node = &self.running()?.node;
        node.note(Severity::Warning, "api-refused", About::host(node.id()), message);
        Ok(())
    }

    /// All tokens.
    pub async fn tokens(&self) -> Result<Vec<Token>, Problem> {
        let (now, all) = (atoll_real::unix_ms(), self.running()?.node.tokens().await);
        Ok(all.map_err(problem)?.into_iter().map(|token| token_item(token, now)).collect())
    }

    /// Makes a token that is known by that hash.
    pub async fn token_create(
        &self,
        request: TokenCreate,
        sha256: String,
        dry_run: bool,
    ) -> Result<Token, Problem> {
        let node = &self.running()?.node;
        let now = atoll_real::unix_ms();
        let token = made(request, sha256, now)?;
        let change = TokenChange::Create(token.clone());
        node.change_tokens(&change, dry_run).await.map_err(problem)?;
        let token = token_item(token, now);
        if !dry_run {
            let until = token.expires.as_ref().map(|at| format!(", until {at}"));
            let until = until.unwrap_or_default();
            let message = format!("token {} was made, with role {}{until}", token.name, token.role);
            node.note(Severity::Info, "token-created", About::host(node.id()), message);
        }
        Ok(token)
    }

    /// Removes a token.
    pub async fn token_remove(&self, name: &str, dry_run: bool) -> Result<(), Problem> {
        let node = &self.running()?.node;
        let change = TokenChange::Remove(name.to_owned());
        node.change_tokens(&change, dry_run).await.map_err(problem)?;
        if !dry_run {
            let message = format!("token {name} was removed");
            node.note(Severity::Info, "token-removed", About::host(node.id()), message);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_until_it_expires() {
        let request = |valid_s| TokenCreate { name: "ci".into(), role: Role::Operator, valid_s };
        let token = made(request(Some(10)), "00".into(), 5_000).unwrap();
        assert_eq!(token.expires_ms, Some(15_000));
        let good = Caller { token: Some("ci".into()), role: Role::Operator };
        assert_eq!(holder(Some(token.clone()), 14_999), Ok(good.clone()));
        let refused = holder(Some(token.clone()), 15_000).unwrap_err();
        assert_eq!(refused.code, Code::NotAuthenticated);
        assert_eq!(refused.detail, "token ci has expired (1970-01-01T00:00:15.000Z)");
        let shown = token_item(token, 15_000);
        assert!(shown.expired && shown.expires.as_deref() == Some("1970-01-01T00:00:15.000Z"));
        let endless = made(request(None), "00".into(), 5_000).unwrap();
        assert_eq!(holder(Some(endless), u64::MAX), Ok(good));
        assert_eq!(holder(None, 0).unwrap_err().code, Code::NotAuthenticated);
        for valid in [0, VALID_S_MAX + 1, u64::MAX] {
            let refused = made(request(Some(valid)), "00".into(), 5_000).unwrap_err();
            assert_eq!((refused.code, refused.field.as_deref()), (Code::BadValue, Some("valid_s")));
        }
    }

    #[test]
    fn a_token_for_joining_is_good_for_a_quarter_of_an_hour_and_for_one_host() {
        let sha256 = "ab".repeat(32);
        let made = join_record(None, None, sha256.clone(), 5_000).unwrap();
        assert_eq!((&*made.name, made.expires_ms), ("join-abababab", Some(905_000)));
        let caller = holder(Some(made.clone()), 904_999).unwrap();
        assert_eq!(caller.role, Role::Join);
        let host = atoll_format::id::HostId(7);
        let used = TokenRecord { used_by: Some(host), ..made.clone() };
        for (record, now_ms, why) in [
            (made, 905_000, "has expired"),
            (used, 6_000, "host 0000000000000007 has joined by it"),
        ] {
            let refused = holder(Some(record), now_ms).unwrap_err();
            assert_eq!(refused.code, Code::NotAuthenticated);
            assert!(refused.detail.contains(why), "{refused}");
        }
        let named = join_record(Some("edge7".into()), Some(86_400), sha256.clone(), 0).unwrap();
        assert_eq!((&*named.name, named.expires_ms), ("edge7", Some(86_400_000)));
        for valid in [0, 86_401, u64::MAX] {
            let refused = join_record(None, Some(valid), sha256.clone(), 0).unwrap_err();
            assert_eq!(refused.field.as_deref(), Some("valid_s"));
        }
    }
}

//! How a command proves itself to a host over TLS, and whom it believes there.
//!
//! Invariants: a token comes from the environment or from a file, never from an argument, which
//! every user of the machine could read; it is in no message.

use super::args::Globals;
use atoll_api::client::{TOKEN_VARIABLE, Tls, Token};
use atoll_api::{Client, Code, Endpoint, Problem};
use atoll_trust::{ApiTrust, TokenSecret};
use std::path::Path;

/// The token that the environment holds.
pub fn of_environment() -> Option<String> {
    std::env::var(TOKEN_VARIABLE).ok().filter(|token| !token.is_empty())
}

/// The client with what the command line says of TLS; as it is for an endpoint that has none.
///
/// # Errors
/// A file cannot be read, or holds something else.
pub fn with_access(
    client: Client,
    globals: &Globals,
    variable: Option<String>,
) -> Result<Client, Problem> {
    if !matches!(client.endpoint(), Endpoint::Tls(_)) {
        return Ok(client);
    }
    let tls = globals.ca.as_deref().map(tls).transpose()?;
    let token = token(globals.token_file.as_deref(), variable)?;
    Ok(client.with(tls, token))
}

fn tls(ca: &Path) -> Result<Tls, Problem> {
    let text = read(ca, "--ca")?;
    let ApiTrust { config, name } = ApiTrust::of(&text).map_err(|e| {
        Problem::new(Code::LocalFile, format!("--ca {}: {e}", ca.display()))
            .hint("authority.crt of the cluster (docs/security.md)")
    })?;
    Ok(Tls { config, name, ca: ca.to_owned() })
}

/// Of the file, if there is one; else of the environment.
fn token(file: Option<&Path>, variable: Option<String>) -> Result<Option<Token>, Problem> {
    let (text, place) = match (file, variable) {
        (Some(file), _) => {
            (read(file, "--token-file")?, format!("--token-file {}", file.display()))
        }
        (None, Some(text)) => (text, format!("environment variable {TOKEN_VARIABLE}")),
        (None, None) => return Ok(None),
    };
    let secret = TokenSecret::read(text.trim()).ok_or_else(|| {
        Problem::new(Code::Usage, format!("{place} holds no token"))
            .hint("'atoll token create', on a host, prints one: atoll_ and 64 digits")
    })?;
    Ok(Some(Token { secret: secret.reveal().to_owned(), file: file.map(Path::to_owned) }))
}

fn read(path: &Path, option: &str) -> Result<String, Problem> {
    std::fs::read_to_string(path)
        .map_err(|e| Problem::new(Code::LocalFile, format!("{option} {}: {e}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::token;
    use atoll_api::Code;

    #[test]
    fn a_token_is_read_from_its_file_first_and_what_is_none_is_not_repeated() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        let text = |c: &str| format!("atoll_{}", c.repeat(64));
        std::fs::write(&file, text("a") + "\n").unwrap();
        let read = |file, variable| token(file, variable).map(|token| token.map(|t| t.secret));
        assert_eq!(read(None, None), Ok(None));
        assert_eq!(read(None, Some(text("b"))), Ok(Some(text("b"))));
        assert_eq!(read(Some(&file), Some(text("b"))), Ok(Some(text("a"))));
        std::fs::write(&file, "hunter2").unwrap();
        for refused in [read(Some(&file), None), read(None, Some("hunter2".into()))] {
            let problem = refused.unwrap_err();
            assert_eq!(problem.code, Code::Usage);
            assert!(!problem.to_string().contains("hunter2"), "{problem}");
        }
        let missing = read(Some(&dir.path().join("none")), Some(text("b"))).unwrap_err();
        assert_eq!(missing.code, Code::LocalFile);
    }
}

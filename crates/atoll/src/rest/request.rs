//! Reads one request, strictly: what is not understood is refused by name, never ignored.

use crate::control::{ChangeOptions, Scope};
use atoll_api::limits;
use atoll_api::name::{self, show};
use atoll_api::routes::{Op, PREFIX, ROUTES, Route};
use atoll_api::{Code, Problem};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header;
use hyper::{Method, Request};
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};

/// What a request is about.
pub enum Target {
    /// A line of the table, and what stands for its `{x}`.
    Route(&'static Route, Vec<String>),
    /// The OpenAPI document.
    OpenApi,
    /// Whether the process is alive.
    Healthz,
    /// Whether it serves.
    Readyz,
    /// Numbers for Prometheus.
    Metrics,
}

/// A request to a route, read and checked as far as its form goes.
#[derive(Debug)]
pub struct Parsed {
    /// Which line of the table.
    pub op: Op,
    params: Vec<String>,
    query: BTreeMap<String, String>,
    /// The body as it came.
    pub bytes: Bytes,
    /// `?scope=`.
    pub scope: Scope,
    /// `?dry_run=` and `If-Match`.
    pub change: ChangeOptions,
    /// `Idempotency-Key`.
    pub idempotency_key: Option<String>,
}

fn bad(detail: impl Into<String>) -> Problem {
    Problem::new(Code::BadRequest, detail)
}

/// Checks everything that can be checked before routing and before a byte of the body is read.
pub fn check_head(request: &Request<Incoming>) -> Result<(), Problem> {
    let headers = request.headers();
    if headers.contains_key(header::TRANSFER_ENCODING) {
        // Nothing we serve needs it, and two lengths of one body are how requests are smuggled.
        return Err(bad("Transfer-Encoding is not accepted").hint("send Content-Length alone"));
    }
    if let Some(length) = headers.get(header::CONTENT_LENGTH) {
        let length = length.to_str().ok().and_then(|text| text.parse::<u64>().ok());
        match length {
            Some(0..=limits::BODY_MAX) => {}
            Some(length) => {
                let max = limits::BODY_MAX;
                return Err(Problem::new(
                    Code::BodyTooLarge,
                    format!("the body is {length} bytes long, at most {max} are read"),
                ));
            }
            None => return Err(bad("Content-Length is not a number")),
        }
    }
    Ok(())
}

/// Finds the route.
pub fn target(request: &Request<Incoming>) -> Result<Target, Problem> {
    let path = request.uri().path();
    let method = effective(request.method());
    let page = match path {
        "/openapi.json" | "/api/v1/openapi.json" => Some(Target::OpenApi),
        "/healthz" => Some(Target::Healthz),
        "/readyz" => Some(Target::Readyz),
        "/metrics" => Some(Target::Metrics),
        _ => None,
    };
    if let Some(page) = page {
        return if method == "GET" { Ok(page) } else { Err(no_method(method, path, "GET".into())) };
    }
    let no_route = || {
        Problem::new(Code::NoRoute, format!("there is no route {}", show(path)))
            .hint("GET /openapi.json lists them; the server may be older or newer")
    };
    let below = path.strip_prefix(PREFIX).ok_or_else(no_route)?;
    for route in ROUTES.iter().filter(|route| route.method == method) {
        if let Some(raw) = matches(route.path, below) {
            let names = route.path_parameters();
            let params = raw
                .iter()
                .zip(names)
                .map(|(raw, name)| parameter(name, raw))
                .collect::<Result<_, _>>()?;
            return Ok(Target::Route(route, params));
        }
    }
    match allowed(below) {
        none if none.is_empty() => Err(no_route()),
        methods => Err(no_method(method, path, methods)),
    }
}

fn no_method(method: &str, path: &str, allowed: String) -> Problem {
    let detail = format!("{} is not possible on {}", show(method), show(path));
    Problem::new(Code::NoMethod, detail).hint(format!("possible: {allowed}")).field(allowed)
}

/// What stands for each `{x}` of `pattern` in `path`, if it matches. A verb (`:resize`) is part
/// of its segment, and a value never contains a colon.
pub fn matches<'a>(pattern: &str, path: &'a str) -> Option<Vec<&'a str>> {
    let mut found = Vec::new();
    let (mut pattern, mut path) = (pattern.split('/'), path.split('/'));
    loop {
        match (pattern.next(), path.next()) {
            (None, None) => return Some(found),
            (Some(want), Some(have)) => match want.strip_prefix('{') {
                Some(rest) => {
                    let verb = &rest[rest.find('}')? + 1..];
                    let value = have.strip_suffix(verb)?;
                    if value.is_empty() || value.contains(':') {
                        return None;
                    }
                    found.push(value);
                }
                None if want == have => {}
                None => return None,
            },
            _ => return None,
        }
    }
}

fn parameter(name: &str, raw: &str) -> Result<String, Problem> {
    let text = unescape(raw).ok_or_else(|| bad(format!("{} is not a {name}", show(raw))))?;
    name::check(name, &text).map_err(|why| Problem::new(Code::BadName, why).field(name))?;
    Ok(text)
}

/// `%41` to `A`; none if it is not well formed or not UTF-8.
fn unescape(text: &str) -> Option<String> {
    String::from_utf8(atoll_api::uri::decode(text)?).ok()
}

/// Reads the query, the headers with a meaning and the body of a request to `route`.
pub async fn parse(
    route: &'static Route,
    params: Vec<String>,
    request: Request<Incoming>,
) -> Result<Parsed, Problem> {
    let query = query(route, request.uri().query().unwrap_or(""))?;
    let text = |name: &'static str| match request.headers().get(name) {
        None => Ok(None),
        Some(value) => match value.to_str() {
            Ok(text) => Ok(Some(text.to_owned())),
            Err(_) => Err(bad(format!("header {name} is not text")).field(name)),
        },
    };
    let if_revision = match text("if-match")?.as_deref() {
        None | Some("*") => None,
        Some(tag) => {
            let inner = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
            let number = inner.and_then(|inner| inner.parse().ok());
            Some(number.ok_or_else(|| {
                Problem::new(Code::Changed, format!("If-Match {} is no ETag of ours", show(tag)))
                    .field("if-match")
            })?)
        }
    };
    let idempotency_key = text("idempotency-key")?;
    let max = limits::IDEMPOTENCY_KEY_MAX;
    if idempotency_key.as_ref().is_some_and(|key| !(1..=max).contains(&key.len())) {
        let detail = format!("Idempotency-Key must have 1 to {max} bytes");
        return Err(bad(detail).field("idempotency-key"));
    }
    let content_type = text("content-type")?;
    let body = Limited::new(request.into_body(), limits::BODY_MAX as usize).collect();
    let bytes = match tokio::time::timeout(limits::BODY_TIMEOUT, body).await {
        Err(_) => return Err(Problem::new(Code::SlowClient, "the body did not come in time")),
        Ok(Err(e)) => return Err(bad(format!("the body cannot be read: {e}"))),
        Ok(Ok(body)) => body.to_bytes(),
    };
    if route.body.is_none() && !bytes.is_empty() {
        return Err(bad("this request has no body"));
    }
    if !bytes.is_empty() {
        let essence = content_type.as_deref().unwrap_or("").split(';').next().unwrap_or("");
        if !essence.trim().eq_ignore_ascii_case("application/json") {
            return Err(Problem::new(Code::NotJson, "the body must be application/json")
                .hint("send Content-Type: application/json"));
        }
    }
    let mut parsed = Parsed {
        op: route.op,
        params,
        query,
        bytes,
        scope: Scope::Cluster,
        change: ChangeOptions { if_revision, ..ChangeOptions::default() },
        idempotency_key,
    };
    parsed.change.dry_run = parsed.flag("dry_run")?;
    parsed.change.force = parsed.flag("force")?;
    parsed.scope = match parsed.query("scope") {
        None | Some("cluster") => Scope::Cluster,
        Some("local") => Scope::Local,
        Some(other) => {
            let detail = format!("scope is {}, and must be cluster or local", show(other));
            return Err(Problem::new(Code::BadValue, detail).field("scope"));
        }
    };
    Ok(parsed)
}

fn query(route: &Route, text: &str) -> Result<BTreeMap<String, String>, Problem> {
    let mut query = BTreeMap::new();
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, "1"));
        if !route.parameters().any(|known| known == name) {
            let known: Vec<&str> = route.parameters().collect();
            let hint = match known.is_empty() {
                true => "this route has none".into(),
                false => format!("accepted: {}", known.join(", ")),
            };
            return Err(bad(format!("unknown query parameter {}", show(name)))
                .hint(hint)
                .field(name.chars().take(64).collect::<String>()));
        }
        let value = unescape(&value.replace('+', " "))
            .ok_or_else(|| bad(format!("query parameter {name} is not text")).field(name))?;
        if query.insert(name.to_owned(), value).is_some() {
            return Err(bad(format!("query parameter {name} is given twice")).field(name));
        }
    }
    Ok(query)
}

impl Parsed {
    /// What stands for the `index`th `{x}`.
    pub fn param(&self, index: usize) -> &str {
        &self.params[index]
    }

    /// What decides which items a list has: everything but which page of them is meant.
    pub fn filters(&self) -> impl Iterator<Item = &str> {
        let query = self.query.iter().filter(|(name, _)| !matches!(&***name, "limit" | "cursor"));
        let query = query.flat_map(|(name, value)| [name.as_str(), value.as_str()]);
        self.params.iter().map(String::as_str).chain(query)
    }

    /// A query parameter.
    pub fn query(&self, name: &str) -> Option<&str> {
        self.query.get(name).map(String::as_str)
    }

    /// A query parameter that is a number.
    pub fn number(&self, name: &str) -> Result<Option<u64>, Problem> {
        self.query(name)
            .map(|text| {
                text.parse().map_err(|_| {
                    let detail = format!("{name} is {}, and must be a whole number", show(text));
                    Problem::new(Code::BadValue, detail).field(name)
                })
            })
            .transpose()
    }

    /// A query parameter that is true or false; false without it.
    pub fn flag(&self, name: &str) -> Result<bool, Problem> {
        match self.query(name) {
            None | Some("false" | "0") => Ok(false),
            Some("true" | "1") => Ok(true),
            Some(other) => {
                let detail = format!("{name} is {}, and must be true or false", show(other));
                Err(Problem::new(Code::BadValue, detail).field(name))
            }
        }
    }

    /// The body.
    ///
    /// # Errors
    /// [`Code::BadRequest`] names the field: missing, unknown, given twice, of another type, out
    /// of the range of its type.
    pub fn body<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        if self.bytes.is_empty() {
            return Err(bad("the body is missing").hint("send a JSON object"));
        }
        // Fields by position, which serde would take, are not in the interface.
        if self.bytes.trim_ascii_start().first() != Some(&b'{') {
            return Err(bad("the body must be a JSON object"));
        }
        let mut json = serde_json::Deserializer::from_slice(&self.bytes);
        let value = serde_path_to_error::deserialize(&mut json).map_err(|e| {
            let field = e.path().to_string();
            let why = e.inner().to_string();
            if field == "." {
                bad(format!("body: {why}"))
            } else {
                let field: String = field.chars().take(64).collect();
                bad(format!("body: {}: {why}", show(&field))).field(field)
            }
        })?;
        json.end().map_err(|e| bad(format!("body: {e}")))?;
        Ok(value)
    }
}

/// Methods that a path of the table knows, for `Allow`.
pub fn allowed(path: &str) -> String {
    let methods: BTreeSet<&str> = ROUTES
        .iter()
        .filter(|route| matches(route.path, path).is_some())
        .map(|route| route.method)
        .collect();
    methods.into_iter().collect::<Vec<_>>().join(", ")
}

/// `HEAD` is answered like `GET`, without the body.
pub fn effective(method: &Method) -> &str {
    if method == Method::HEAD { "GET" } else { method.as_str() }
}

#[cfg(test)]
mod tests {
    use super::{matches, unescape};

    #[test]
    fn patterns_match_whole_segments_and_verbs() {
        assert_eq!(matches("/volumes", "/volumes"), Some(vec![]));
        assert_eq!(matches("/volumes/{v}", "/volumes/a"), Some(vec!["a"]));
        assert_eq!(matches("/volumes/{v}:resize", "/volumes/a:resize"), Some(vec!["a"]));
        assert_eq!(matches("/hosts/{h}/disks:wipe", "/hosts/x/disks:wipe"), Some(vec!["x"]));
        for (pattern, path) in [
            ("/volumes/{v}", "/volumes/a:resize"),
            ("/volumes/{v}:resize", "/volumes/:resize"),
            ("/volumes/{v}:resize", "/volumes/a:b:resize"),
            ("/volumes/{v}", "/volumes/"),
            ("/volumes/{v}", "/volumes/a/b"),
            ("/volumes", "/volumes/"),
            ("/volumes", ""),
        ] {
            assert_eq!(matches(pattern, path), None, "{pattern} {path}");
        }
    }

    #[test]
    fn escapes_are_read_or_refused() {
        assert_eq!(unescape("a%2fb%00"), Some("a/b\0".into()));
        for bad in ["%", "%4", "%zz", "%+1", "%ff", "a%"] {
            assert_eq!(unescape(bad), None, "{bad}");
        }
    }
}

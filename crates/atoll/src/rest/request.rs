//! Reads one request, strictly: what is not understood is refused by name, never ignored.

use crate::control::{ChangeOptions, Scope};
use atoll_api::limits;
use atoll_api::name::{self, show};
use atoll_api::routes::{Op, PAGES, PREFIX, Page, Place, Role, Route};
use atoll_api::{Code, Problem};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header;
use hyper::{Method, Request};
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};

/// What a request is about.
pub enum Target {
    /// An operation of the table, and what stands for the `{x}` of its path.
    Operation(Op, Vec<String>),
    /// A page for machines.
    Page(Page),
}

/// A request to a route, read and checked as far as its form goes.
#[derive(Debug)]
pub struct Parsed {
    /// Which operation.
    pub op: Op,
    params: Vec<String>,
    query: BTreeMap<String, String>,
    /// The body as it came.
    pub bytes: Bytes,
    /// Who does it.
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

/// Finds what a request is about.
pub fn target<B>(request: &Request<B>) -> Result<Target, Problem> {
    let path = request.uri().path();
    let method = effective(request.method());
    if let Some(&(_, page, _)) = PAGES.iter().find(|(known, ..)| *known == path) {
        return match method {
            "GET" => Ok(Target::Page(page)),
            _ => Err(no_method(method, path, "GET".into())),
        };
    }
    let no_route = || {
        Problem::new(Code::NoRoute, format!("there is no route {}", show(path)))
            .hint("GET /openapi.json lists them; the server may be older or newer")
    };
    let below = path.strip_prefix(PREFIX).ok_or_else(no_route)?;
    for &op in Op::ALL.iter().filter(|op| op.route().method == method) {
        if let Some(raw) = matches(op.route().path, below) {
            let names = op.route().path_parameters();
            let params = raw
                .iter()
                .zip(names)
                .map(|(raw, name)| parameter(name, raw))
                .collect::<Result<_, _>>()?;
            return Ok(Target::Operation(op, params));
        }
    }
    match allowed(below) {
        none if none.is_empty() => Err(no_route()),
        methods => Err(no_method(method, path, methods)),
    }
}

/// The least role of who may ask that: the table says it; none: everybody may. What the table does
/// not have needs what its method would.
pub fn role<B>(target: &Result<Target, Problem>, request: &Request<B>) -> Option<Role> {
    match target {
        Ok(Target::Operation(op, _)) => Some(op.route().role),
        Ok(Target::Page(page)) => page.role(),
        Err(_) if effective(request.method()) == "GET" => Some(Role::Viewer),
        Err(_) => Some(Role::Operator),
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

/// Reads the query, the headers with a meaning and the body of a request for that operation.
pub async fn parse(
    op: Op,
    params: Vec<String>,
    request: Request<Incoming>,
) -> Result<Parsed, Problem> {
    let route = op.route();
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
        op,
        params,
        query,
        bytes,
        scope: Scope::Cluster,
        change: ChangeOptions { if_revision, ..ChangeOptions::default() },
        idempotency_key,
    };
    parsed.change.dry_run = parsed.flag("dry_run")?;
    parsed.change.force = parsed.flag("force")?;
    parsed.scope = parsed.scope()?;
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

    /// Who does it: what the table says, with what the request names.
    fn scope(&self) -> Result<Scope, Problem> {
        let local = match self.query("scope") {
            None | Some("cluster") => false,
            Some("local") => true,
            Some(other) => {
                let detail = format!("scope is {}, and must be cluster or local", show(other));
                return Err(Problem::new(Code::BadValue, detail).field("scope"));
            }
        };
        Ok(match self.op.route().place {
            _ if local => Scope::Local,
            Place::Any | Place::Asked => Scope::Local,
            Place::All => Scope::Cluster,
            Place::Named(part) => self.named(part).map_or(Scope::Local, Scope::Host),
            Place::Holder(part) => self.named(part).map_or(Scope::Cluster, Scope::Group),
        })
    }

    /// What the request says in that part: of its path, its query, or its body if that can be read
    /// (if not, [`body`](Self::body) says why).
    fn named(&self, part: &str) -> Option<String> {
        let mut in_path = self.op.route().path_parameters().zip(&self.params);
        let found = in_path.find_map(|(name, value)| (name == part).then(|| value.clone()));
        found.or_else(|| self.query(part).map(str::to_owned)).or_else(|| {
            let body: serde_json::Value = serde_json::from_slice(&self.bytes).ok()?;
            body.get(part)?.as_str().map(str::to_owned)
        })
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
    let routes = Op::ALL.iter().map(|op| op.route());
    let methods: BTreeSet<&str> = routes
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
    use super::{Target, matches, role, unescape};
    use atoll_api::routes::{Op, PAGES, Role};
    use atoll_api::{Code, Problem};
    use hyper::Request;

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
    fn the_table_says_what_a_request_needs_and_only_where_it_has_none_the_method() {
        let needed = |target: Target, method: &str| {
            role(&Ok(target), &Request::builder().method(method).body(()).unwrap())
        };
        for &op in Op::ALL {
            for method in ["GET", "POST"] {
                let of_op = needed(Target::Operation(op, Vec::new()), method);
                assert_eq!(of_op, Some(op.route().role), "{method} {op:?}");
            }
        }
        for &(path, page, role) in PAGES {
            assert_eq!(needed(Target::Page(page), "HEAD"), role, "{path}");
        }
        let unknown = |method: &str| {
            let problem = Err(Problem::new(Code::NoRoute, "there is no such route"));
            role(&problem, &Request::builder().method(method).body(()).unwrap())
        };
        assert_eq!([unknown("GET"), unknown("HEAD")], [Some(Role::Viewer); 2]);
        assert_eq!([unknown("POST"), unknown("OPTIONS")], [Some(Role::Operator); 2]);
    }

    #[test]
    fn escapes_are_read_or_refused() {
        assert_eq!(unescape("a%2fb%00"), Some("a/b\0".into()));
        for bad in ["%", "%4", "%zz", "%+1", "%ff", "a%"] {
            assert_eq!(unescape(bad), None, "{bad}");
        }
    }
}

//! A client of the management interface, over a Unix socket, TCP or TLS. One connection a request:
//! commands are short, and a fresh connection has no stale state.
//!
//! Invariants: every call ends by its deadline; a reply is read to at most
//! [`REPLY_MAX`](crate::limits::REPLY_MAX) bytes; an error of the server arrives as its own
//! [`Problem`], anything that is not one as [`Code::WrongServer`]; a token is sent inside TLS only,
//! to a server that has proved itself.

use crate::envelope::{Item, List, Missing, Named};
use crate::limits::{PAGE_MAX, REPLY_MAX};
use crate::problem::{Code, Problem};
use crate::routes::{Op, Page, Reply, Route};
use crate::shell::quote;
use crate::uri::{self, escape};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, ClientConfig};

/// Where a server is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Endpoint {
    /// A Unix socket.
    Unix(PathBuf),
    /// `host:port`.
    Tcp(String),
    /// `host:port`, inside TLS.
    Tls(String),
}

impl FromStr for Endpoint {
    type Err = String;
    /// `unix:///run/atoll/api.sock`, `/run/atoll/api.sock`, `http://127.0.0.2:8460`,
    /// `https://10.0.0.2:8460`. The first is a URI: `%20` there is a blank. The second is a path,
    /// taken as it is.
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = |why: &str| {
            Err(format!(
                "'{text}' is not an endpoint: {why} (unix:///path, /path, http://h:p or \
                 https://h:p)"
            ))
        };
        if let Some(path) = text.strip_prefix("unix://").or_else(|| text.strip_prefix("unix:")) {
            if !path.starts_with('/') {
                return bad("the path of a socket begins with '/'");
            }
            return match uri::decode_path(path) {
                Some(path) => Ok(Self::Unix(path)),
                None => bad("a '%' in a URI is written %25; a path alone is taken as it is"),
            };
        }
        if text.starts_with('/') {
            return Ok(Self::Unix(text.into()));
        }
        let plain = text.strip_prefix("http://").map(|address| (address, false));
        let secure = || text.strip_prefix("https://").map(|address| (address, true));
        let Some((address, is_tls)) = plain.or_else(secure) else {
            return bad("unknown scheme");
        };
        let address = address.trim_end_matches('/');
        match address.rsplit_once(':').map(|(host, port)| (host, port.parse::<u16>())) {
            Some((host, _)) if host.starts_with('[') != host.ends_with(']') => {
                bad("a bracket is open, or too many")
            }
            Some((host, _)) if host.contains(':') && !host.starts_with('[') => {
                bad("an IPv6 address is written in brackets, http://[::1]:8460")
            }
            Some((host, Ok(1..))) if !host.is_empty() && !address.contains('/') => {
                Ok(if is_tls { Self::Tls(address.into()) } else { Self::Tcp(address.into()) })
            }
            _ => bad("host:port expected"),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", uri::path(path)),
            Self::Tcp(address) => write!(f, "http://{address}"),
            Self::Tls(address) => write!(f, "https://{address}"),
        }
    }
}

/// How a server proves itself inside TLS.
#[derive(Clone)]
pub struct Tls {
    /// Whom it may be signed by, and how.
    pub config: Arc<ClientConfig>,
    /// The name that its certificate must have; none: the one that it is reached by.
    pub name: Option<ServerName<'static>>,
    /// The file with those authorities.
    pub ca: PathBuf,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("name", &self.name).field("ca", &self.ca).finish()
    }
}

/// How a client proves itself.
#[derive(Clone)]
pub struct Token {
    /// The secret.
    pub secret: String,
    /// The file that it was read from; none: the environment.
    pub file: Option<PathBuf>,
}

impl fmt::Debug for Token {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("file", &self.file).finish_non_exhaustive()
    }
}

/// The environment variable that holds a token.
pub const TOKEN_VARIABLE: &str = "ATOLL_TOKEN";

/// One request, before it is sent.
#[derive(Clone, Debug)]
pub struct Call {
    /// HTTP method.
    pub method: Method,
    /// Path and query, from `/`.
    pub target: String,
    /// JSON body.
    pub body: Option<String>,
    /// Headers besides those that every request has.
    pub headers: Vec<(&'static str, String)>,
    /// What it asks for, unless that is a page for machines.
    route: Option<&'static Route>,
}

impl Call {
    /// An operation of the table, on what has those names.
    ///
    /// # Panics
    /// The operation's path has another number of names.
    pub fn to(op: Op, names: &[&str]) -> Self {
        let route = op.route();
        let method = route.method.parse().expect("the table has methods of HTTP");
        let (body, headers) = (None, Vec::new());
        Self { method, target: route.target(names), body, headers, route: Some(route) }
    }

    /// Reads a page for machines.
    pub fn page(page: Page) -> Self {
        let (body, headers) = (None, Vec::new());
        Self { method: Method::GET, target: page.path().into(), body, headers, route: None }
    }

    /// With that query parameter.
    ///
    /// # Panics
    /// The operation does not know it.
    pub fn query(mut self, name: &'static str, value: &str) -> Self {
        let known = self.route.is_none_or(|route| route.parameters().any(|known| known == name));
        assert!(known, "{} does not take {name}", self.target);
        self.target.push(if self.target.contains('?') { '&' } else { '?' });
        self.target += &format!("{name}={}", escape(value));
        self
    }

    /// With that body.
    pub fn json(mut self, body: &impl Serialize) -> Self {
        self.body = Some(serde_json::to_string(body).expect("request types have string keys"));
        self
    }

    /// With that header.
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// The same request as a command line of `curl`. A token is named in it, not shown: a shell
    /// (bash, zsh) hands it over without putting it into the arguments of a process.
    pub fn to_curl(&self, client: &Client) -> String {
        let mut line = String::from("curl -sS");
        let url = match &client.endpoint {
            Endpoint::Unix(path) => {
                line += &format!(" --unix-socket {}", quote(path));
                format!("http://localhost{}", self.target)
            }
            Endpoint::Tcp(address) => format!("http://{address}{}", self.target),
            Endpoint::Tls(address) => {
                if let Some(tls) = &client.tls {
                    line += &format!(" --cacert {}", quote(&tls.ca));
                }
                let name = client.host();
                if name != *address {
                    line += &format!(" --connect-to {}", quote(format!("::{address}")));
                }
                if let Some(token) = &client.token {
                    let secret = match &token.file {
                        Some(file) => format!("$(cat {})", quote(file)),
                        None => format!("${TOKEN_VARIABLE}"),
                    };
                    line += &format!(" -H @<(printf 'Authorization: Bearer %s' \"{secret}\")");
                }
                format!("https://{name}{}", self.target)
            }
        };
        if self.method != Method::GET {
            line += &format!(" -X {}", self.method);
        }
        for (name, value) in &self.headers {
            line += &format!(" -H {}", quote(format!("{name}: {value}")));
        }
        if let Some(body) = &self.body {
            line += " -H 'Content-Type: application/json'";
            line += &format!(" -d {}", quote(body));
        }
        format!("{line} {}", quote(&url))
    }
}

/// Talks to one server.
#[derive(Clone, Debug)]
pub struct Client {
    endpoint: Endpoint,
    timeout: Duration,
    tls: Option<Tls>,
    token: Option<Token>,
}

impl Client {
    /// A client whose calls end within `timeout`. Nothing is connected yet.
    pub fn new(endpoint: Endpoint, timeout: Duration) -> Self {
        Self { endpoint, timeout, tls: None, token: None }
    }

    /// The same, which believes those servers over TLS, and proves itself there by that token.
    pub fn with(self, tls: Option<Tls>, token: Option<Token>) -> Self {
        Self { tls, token, ..self }
    }

    /// Where it connects.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The item that a call gives.
    ///
    /// # Errors
    /// The server's problem; [`Code::CannotConnect`]; [`Code::TimedOut`]; [`Code::WrongServer`].
    pub async fn item<T: DeserializeOwned + Named>(&self, call: Call) -> Result<Item<T>, Problem> {
        let expected = call.route.is_none_or(|route| route.reply == Reply::Item(T::KIND));
        assert!(expected, "{} does not answer with a {}", call.target, T::KIND);
        let bytes = self.bytes(call).await?;
        self.decode(&bytes)
    }

    /// One page of a list.
    ///
    /// # Errors
    /// As [`Client::item`].
    pub async fn page<T: DeserializeOwned + Named>(&self, call: Call) -> Result<List<T>, Problem> {
        let expected = call.route.is_none_or(|route| route.reply == Reply::List(T::KIND));
        assert!(expected, "{} does not answer with a list of {}", call.target, T::KIND);
        let bytes = self.bytes(call).await?;
        self.decode(&bytes)
    }

    /// A whole list, page by page, under one deadline; `call` has no cursor of its own.
    ///
    /// # Errors
    /// As [`Client::item`].
    pub async fn list<T: DeserializeOwned + Named>(&self, call: Call) -> Result<List<T>, Problem> {
        let mut call = call;
        if !call.target.contains("limit=") {
            // Few pages: for each the server looks at everything.
            call.target.push(if call.target.contains('?') { '&' } else { '?' });
            call.target += &format!("limit={PAGE_MAX}");
        }
        let whole = async {
            let mut whole: List<T> = self.page(call.clone()).await?;
            while let Some(cursor) = whole.next_cursor.take() {
                let mut next = call.clone();
                next.target = without_cursor(&next.target);
                next.target += &format!("&cursor={}", escape(&cursor));
                let page: List<T> = self.page(next).await?;
                whole.items.extend(page.items);
                whole.missing.extend(page.missing);
                whole.next_cursor = page.next_cursor;
                whole.position = page.position;
            }
            whole.missing.sort();
            whole.missing.dedup();
            Ok(whole)
        };
        tokio::time::timeout(self.timeout, whole).await.unwrap_or_else(|_| Err(self.too_slow()))
    }

    /// The bytes of a successful reply.
    ///
    /// # Errors
    /// As [`Client::item`].
    pub async fn bytes(&self, call: Call) -> Result<Bytes, Problem> {
        let changes = call.method != Method::GET;
        let whole = async {
            let reply = self.send(call).await?;
            let status = reply.status();
            let body = Limited::new(reply.into_body(), REPLY_MAX as usize);
            let broken = |e: Box<dyn std::error::Error + Send + Sync>| {
                self.broken(&e.to_string(), changes && status.is_success())
            };
            let bytes = body.collect().await.map_err(broken)?.to_bytes();
            if status.is_success() {
                return Ok(bytes);
            }
            Err(serde_json::from_slice::<Problem>(&bytes)
                .unwrap_or_else(|_| self.wrong(&format!("it answers {status} without saying why"))))
        };
        tokio::time::timeout(self.timeout, whole).await.unwrap_or_else(|_| Err(self.too_slow()))
    }

    /// A reply that goes on for as long as the caller likes: the event stream.
    ///
    /// # Errors
    /// As [`Client::item`].
    pub async fn stream(&self, call: Call) -> Result<Stream, Problem> {
        let begin = async {
            let reply = self.send(call).await?;
            if reply.status().is_success() {
                return Ok(Stream { body: reply.into_body(), rest: Vec::new(), id: String::new() });
            }
            let body = Limited::new(reply.into_body(), REPLY_MAX as usize);
            let bytes = body.collect().await;
            let bytes = bytes.map_err(|e| self.broken(&e.to_string(), false))?.to_bytes();
            Err(serde_json::from_slice(&bytes).unwrap_or_else(|_| self.wrong("no event stream")))
        };
        tokio::time::timeout(self.timeout, begin).await.unwrap_or_else(|_| Err(self.too_slow()))
    }

    async fn send(&self, call: Call) -> Result<Response<Incoming>, Problem> {
        let has_body = call.body.is_some();
        let mut request = Request::builder()
            .method(call.method)
            .uri(&call.target)
            .header("host", self.host())
            .header("accept", "application/json")
            .header("user-agent", concat!("atoll/", env!("CARGO_PKG_VERSION")));
        if has_body {
            request = request.header("content-type", "application/json");
        }
        for (name, value) in &call.headers {
            request = request.header(*name, value);
        }
        if let (Endpoint::Tls(_), Some(token)) = (&self.endpoint, &self.token) {
            let mut value = HeaderValue::from_str(&format!("Bearer {}", token.secret))
                .map_err(|_| Problem::new(Code::Usage, "the token is no text of one line"))?;
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        let request = request
            .body(Full::new(Bytes::from(call.body.unwrap_or_default())))
            .map_err(|e| Problem::new(Code::Usage, format!("not a request: {e}")))?;
        match &self.endpoint {
            Endpoint::Unix(path) => {
                let stream = UnixStream::connect(path).await.map_err(|e| self.unreachable(&e))?;
                self.exchange(stream, request).await
            }
            Endpoint::Tcp(address) => {
                let stream = TcpStream::connect(address).await.map_err(|e| self.unreachable(&e))?;
                self.exchange(stream, request).await
            }
            Endpoint::Tls(address) => {
                let stream = self.secure(address).await?;
                self.exchange(stream, request).await
            }
        }
    }

    /// What a request is for: over TLS, the name that the server has proved to have.
    fn host(&self) -> String {
        match &self.endpoint {
            Endpoint::Unix(_) => "localhost".into(),
            Endpoint::Tcp(address) => address.clone(),
            Endpoint::Tls(address) => match self.tls.as_ref().and_then(|tls| tls.name.as_ref()) {
                Some(name) => {
                    let port = address.rsplit_once(':').map_or("443", |(_, port)| port);
                    format!("{}:{port}", name.to_str())
                }
                None => address.clone(),
            },
        }
    }

    /// A connection to a server that has proved itself.
    async fn secure(&self, address: &str) -> Result<TlsStream<TcpStream>, Problem> {
        let usage = |why: String| Problem::new(Code::Usage, why);
        let Some(tls) = &self.tls else {
            return Err(usage(format!("{}: nothing says which servers to believe", self.endpoint))
                .hint("--ca FILE: the authority.crt of the cluster"));
        };
        let name = match &tls.name {
            Some(name) => name.clone(),
            None => {
                let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
                let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
                ServerName::try_from(host).map_err(|e| usage(format!("{}: {e}", self.endpoint)))?
            }
        };
        let stream = TcpStream::connect(address).await.map_err(|e| self.unreachable(&e))?;
        let connector = TlsConnector::from(tls.config.clone());
        connector.connect(name, stream).await.map_err(|error| self.unproved(&error, &tls.ca))
    }

    /// A server that has not proved itself; nothing was asked of it.
    fn unproved(&self, error: &std::io::Error, ca: &Path) -> Problem {
        let tls = error.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>());
        let (why, hint) = unproved(tls, error, ca);
        let detail = format!("{} is not believed: {why}", self.endpoint);
        Problem::new(Code::CannotConnect, detail).hint(hint)
    }

    async fn exchange<S>(
        &self,
        stream: S,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, Problem>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
    {
        let changes = request.method() != Method::GET;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|e| self.broken(&e.to_string(), false))?;
        // Ends with the connection, which ends when `sender` and the reply are dropped.
        tokio::spawn(async move {
            let _ = connection.await;
        });
        // Cancelled: the connection ended before a byte of it was written.
        let sent = sender.send_request(request).await;
        sent.map_err(|e| self.broken(&e.to_string(), changes && !e.is_canceled()))
    }

    fn decode<T: DeserializeOwned>(&self, bytes: &[u8]) -> Result<T, Problem> {
        serde_json::from_slice(bytes).map_err(|e| self.wrong(&format!("its answer is odd: {e}")))
    }

    fn unreachable(&self, error: &std::io::Error) -> Problem {
        use std::io::ErrorKind;
        let problem = Problem::new(
            Code::CannotConnect,
            format!("cannot connect to {}: {error}", self.endpoint),
        );
        match error.kind() {
            ErrorKind::PermissionDenied => {
                problem.hint("run it as root or as a user of group atoll")
            }
            _ => problem.hint("is 'atoll serve' running? --endpoint names another daemon"),
        }
    }

    /// `may_be_done`: a change that was sent.
    fn broken(&self, why: &str, may_be_done: bool) -> Problem {
        let detail = format!("the connection to {} broke off: {why}", self.endpoint);
        match may_be_done {
            true => Problem::new(Code::TimedOut, detail)
                .hint("what was asked for may have been done: look before trying again"),
            false => Problem::new(Code::CannotConnect, detail),
        }
    }

    fn wrong(&self, why: &str) -> Problem {
        Problem::new(
            Code::WrongServer,
            format!("{} does not speak as expected: {why}", self.endpoint),
        )
        .hint("compare 'atoll --version' on both sides")
    }

    fn too_slow(&self) -> Problem {
        Problem::new(
            Code::TimedOut,
            format!("no answer from {} within {} s", self.endpoint, self.timeout.as_secs()),
        )
        .hint("what was asked for may still be done; --timeout sets the limit")
    }
}

/// Why a server is not believed, as a clause about it, and what to do.
fn unproved(
    tls: Option<&rustls::Error>,
    error: &std::io::Error,
    ca: &Path,
) -> (String, &'static str) {
    use rustls::{CertificateError as Bad, Error};
    const CERTIFICATE: &str = "atoll cluster certificate makes a new one (docs/security.md)";
    match tls {
        Some(Error::InvalidCertificate(Bad::UnknownIssuer | Bad::BadSignature)) => (
            format!("its certificate was signed by another authority than {}", quote(ca)),
            "--ca FILE: the authority.crt of its cluster; or something between answers for it",
        ),
        Some(Error::InvalidCertificate(Bad::Expired | Bad::ExpiredContext { .. })) => {
            ("its certificate has expired".into(), CERTIFICATE)
        }
        Some(Error::InvalidCertificate(Bad::NotValidYet | Bad::NotValidYetContext { .. })) => {
            ("its certificate is not valid yet".into(), "compare the clocks of both machines")
        }
        Some(Error::InvalidCertificate(
            Bad::NotValidForName | Bad::NotValidForNameContext { .. },
        )) => ("its certificate has another name".into(), "--endpoint names another server"),
        Some(Error::InvalidMessage(_)) => (
            "what it sends is not TLS".into(),
            "http://: if network.tls is false there; and such a port may be another program's",
        ),
        _ => (error.to_string(), "--endpoint names another server; its log may say more"),
    }
}

/// A target of a list without the cursor with which it began.
fn without_cursor(target: &str) -> String {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let kept: Vec<&str> = query.split('&').filter(|part| !part.starts_with("cursor=")).collect();
    format!("{path}?{}", kept.join("&"))
}

/// What an event stream says.
#[derive(Clone, PartialEq, Debug)]
pub enum Followed {
    /// An event.
    Event {
        /// Where whoever has read it goes on: a `?cursor=`.
        cursor: String,
        /// As JSON.
        data: String,
    },
    /// The hosts whose events are missing from here on; none: all tell.
    Missing(Vec<Missing>),
}

/// A running event stream (server-sent events).
pub struct Stream {
    body: Incoming,
    rest: Vec<u8>,
    /// `id` of the next event.
    id: String,
}

impl Stream {
    /// What comes next; none when the server ends the stream. Waits for as long as the server
    /// says nothing: the caller ends it by dropping.
    ///
    /// # Errors
    /// [`Code::CannotConnect`]: the connection broke.
    pub async fn next(&mut self) -> Result<Option<Followed>, Problem> {
        loop {
            while let Some(end) = self.rest.iter().position(|&b| b == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                if let Some(data) = line.strip_prefix(b"data:") {
                    let data = String::from_utf8_lossy(data).trim().to_owned();
                    let cursor = std::mem::take(&mut self.id);
                    return Ok(Some(Followed::Event { cursor, data }));
                }
                if let Some(id) = line.strip_prefix(b"id:") {
                    self.id = String::from_utf8_lossy(id).trim().to_owned();
                }
                // A comment, which readers that do not know it leave out.
                let missing = line.strip_prefix(b": missing ").map(serde_json::from_slice);
                if let Some(Ok(missing)) = missing {
                    return Ok(Some(Followed::Missing(missing)));
                }
            }
            if self.rest.len() as u64 > REPLY_MAX {
                return Err(Problem::new(Code::WrongServer, "an event without end"));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.rest.extend_from_slice(&data);
                    }
                }
                Some(Err(e)) => {
                    let why = format!("the event stream broke off: {e}");
                    return Err(Problem::new(Code::CannotConnect, why));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Call, Client, Endpoint, Tls, Token};
    use crate::problem::Code;
    use crate::routes::Op;
    use std::path::PathBuf;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_rustls::rustls;

    #[test]
    fn endpoints_are_read_or_refused_with_the_reason() {
        let read = |text: &str| text.parse::<Endpoint>();
        assert_eq!(read("/run/a.sock"), Ok(Endpoint::Unix("/run/a.sock".into())));
        assert_eq!(read("unix:///run/a.sock"), Ok(Endpoint::Unix("/run/a.sock".into())));
        assert_eq!(read("unix:/run/a.sock"), Ok(Endpoint::Unix("/run/a.sock".into())));
        assert_eq!(read("/a%20b"), Ok(Endpoint::Unix("/a%20b".into())));
        assert_eq!(read("unix:///a%20b"), Ok(Endpoint::Unix("/a b".into())));
        for path in ["/a b", "/a%20b", "/a#b?c;d&e+f", "/\u{e4}"] {
            let endpoint = Endpoint::Unix(path.into());
            assert!(endpoint.to_string().is_ascii(), "{endpoint}");
            assert_eq!(read(&endpoint.to_string()), Ok(endpoint));
        }
        assert_eq!(read("https://[::1]:8460/"), Ok(Endpoint::Tls("[::1]:8460".into())));
        assert_eq!(Endpoint::Tls("h:1".into()).to_string(), "https://h:1");
        assert_eq!(read("http://127.0.0.2:8460/"), Ok(Endpoint::Tcp("127.0.0.2:8460".into())));
        for bad in [
            "",
            "x",
            "unix://a",
            "http://",
            "http://h",
            "http://h:0",
            "http://h:1/x",
            "http://::1:8460",
            "http://[::1",
            "http://[::1:8460",
            "http://::1]:8460",
            "https://h",
            "ftp://h:1",
            "http://h:99999",
            "unix:///a%2",
            "unix:///a%00",
            "unix:///a%zz",
        ] {
            assert!(read(bad).unwrap_err().contains("is not an endpoint"), "{bad}");
        }
    }

    #[test]
    fn a_call_shows_as_a_curl_line_that_a_shell_reads_back() {
        let call = Call::to(Op::VolumeCreate, &[]).json(&"it's").header("if-match", "1");
        assert_eq!(
            call.to_curl(&client(Endpoint::Unix("/run/a b.sock".into()))),
            concat!(
                "curl -sS --unix-socket '/run/a b.sock' -X POST -H 'if-match: 1' ",
                "-H 'Content-Type: application/json' ",
                r#"-d '"it'\''s"' http://localhost/api/v1/volumes"#,
            )
        );
    }

    fn client(endpoint: Endpoint) -> Client {
        Client::new(endpoint, Duration::from_secs(9))
    }

    #[test]
    fn a_curl_line_names_a_token_and_does_not_show_it() {
        let call = Call::to(Op::StatusShow, &[]);
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let tls = |name: Option<&'static str>| Tls {
            config: config.clone().into(),
            name: name.map(|name| name.try_into().unwrap()),
            ca: "/etc/ca.crt".into(),
        };
        let token = |file: Option<&str>| Token {
            secret: "atoll_secret".into(),
            file: file.map(PathBuf::from),
        };
        let line = |name, file| {
            let client = client(Endpoint::Tls("10.0.0.2:8460".into()));
            let client = client.with(Some(tls(name)), Some(token(file)));
            assert!(!format!("{client:?}").contains("secret"), "{client:?}");
            call.to_curl(&client)
        };
        assert_eq!(
            line(None, None),
            concat!(
                "curl -sS --cacert /etc/ca.crt ",
                r#"-H @<(printf 'Authorization: Bearer %s' "$ATOLL_TOKEN") "#,
                "https://10.0.0.2:8460/api/v1/status",
            )
        );
        assert_eq!(
            line(Some("a.internal"), Some("/root/a token")),
            concat!(
                "curl -sS --cacert /etc/ca.crt --connect-to ::10.0.0.2:8460 ",
                r#"-H @<(printf 'Authorization: Bearer %s' "$(cat '/root/a token')") "#,
                "https://a.internal:8460/api/v1/status",
            )
        );
        // What is not protected gets no token.
        let plain = client(Endpoint::Tcp("h:1".into())).with(None, Some(token(None)));
        assert_eq!(call.to_curl(&plain), "curl -sS http://h:1/api/v1/status");
    }

    #[test]
    fn a_call_takes_the_parameters_of_its_operation_escaped() {
        let call = Call::to(Op::EventList, &[]).query("follow", "1").query("cursor", "a=&b");
        assert_eq!(call.target, "/api/v1/events?follow=1&cursor=a%3D%26b");
        let unknown = || Call::to(Op::EventList, &[]).query("token", "1");
        assert!(std::panic::catch_unwind(unknown).is_err(), "events take no token");
    }

    #[tokio::test]
    #[should_panic(expected = "does not answer with a list of Volume")]
    async fn an_answer_is_read_as_what_the_table_says() {
        let client = Client::new(Endpoint::Unix("/nonexistent".into()), Duration::from_secs(9));
        let _ = client.list::<crate::types::Volume>(Call::to(Op::HostList, &[])).await;
    }

    /// A server that answers every connection with `reply`, or never if it is empty.
    async fn serve(reply: &'static [u8]) -> Endpoint {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = [0; 4096];
                let _ = stream.read(&mut head).await;
                if reply.is_empty() {
                    std::future::pending::<()>().await;
                }
                let _ = stream.write_all(reply).await;
            }
        });
        Endpoint::Tcp(address)
    }

    #[tokio::test]
    async fn every_way_a_server_can_fail_has_its_code() {
        let ask = async |endpoint: Endpoint, ms| {
            let client = Client::new(endpoint, Duration::from_millis(ms));
            client.bytes(Call::to(Op::StatusShow, &[])).await.unwrap_err().code
        };
        assert_eq!(ask(Endpoint::Unix("/nonexistent".into()), 9_000).await, Code::CannotConnect);
        assert_eq!(ask(serve(b"").await, 50).await, Code::TimedOut);
        assert_eq!(ask(serve(b"SSH-2.0-OpenSSH\r\n").await, 9_000).await, Code::CannotConnect);
        let html = b"HTTP/1.1 502 Bad\r\ncontent-length: 2\r\n\r\nhi";
        assert_eq!(ask(serve(html).await, 9_000).await, Code::WrongServer);
        let cut = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhi";
        assert_eq!(ask(serve(cut).await, 9_000).await, Code::CannotConnect);
    }

    #[tokio::test]
    async fn a_token_never_leaves_without_tls_and_tls_needs_an_authority() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let token = Token { secret: "atoll_secret".into(), file: None };
        let unproved = client(Endpoint::Tls(address.clone())).with(None, Some(token.clone()));
        let problem = unproved.bytes(Call::to(Op::StatusShow, &[])).await.unwrap_err();
        assert_eq!(problem.code, Code::Usage, "{problem}");
        assert!(problem.hint.unwrap().contains("--ca FILE"));
        let plain = client(Endpoint::Tcp(address)).with(None, Some(token));
        let asked = tokio::spawn(async move { plain.bytes(Call::to(Op::StatusShow, &[])).await });
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = vec![0; 4096];
        let len = stream.read(&mut head).await.unwrap();
        let head = String::from_utf8_lossy(&head[..len]).to_lowercase();
        assert!(head.starts_with("get /api/v1/status") && !head.contains("secret"), "{head}");
        drop(stream);
        asked.await.unwrap().unwrap_err();
    }

    /// A change may have been carried out when its answer is lost: that is not "no connection".
    #[tokio::test]
    async fn a_change_whose_answer_is_lost_may_be_done() {
        let ask = async |endpoint: Endpoint| {
            let client = Client::new(endpoint, Duration::from_secs(9));
            let call = Call::to(Op::VolumeCreate, &[]).json(&1);
            client.bytes(call).await.unwrap_err().code
        };
        assert_eq!(ask(Endpoint::Unix("/nonexistent".into())).await, Code::CannotConnect);
        assert_eq!(ask(serve(b" ").await).await, Code::TimedOut);
        assert_eq!(
            ask(serve(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhi").await).await,
            Code::TimedOut
        );
        // A refusal that is cut off is one all the same.
        let cut = b"HTTP/1.1 409 Conflict\r\ncontent-length: 9\r\n\r\nhi";
        assert_eq!(ask(serve(cut).await).await, Code::CannotConnect);
    }
}

//! Who may ask what: the checks that tell a person's own tools from a web page, and a connection
//! that the system has authenticated from one that it has not.
//!
//! A name that is rebound to a loopback address leads a browser here, with a page of somebody
//! else: such requests name that somebody in `Host` or `Origin`. Whoever may open the Unix socket
//! manages the host; TCP knows nobody, and reads. What needs which permission is in the table of
//! operations.
//!
//! Invariants: every request is checked, whatever its path; a request that is refused has done
//! nothing.

use atoll_api::name::show;
use atoll_api::routes::Permission;
use atoll_api::{Code, Problem};
use hyper::Request;
use hyper::header::{self, HeaderMap, HeaderName};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// What the configuration says of the interface over TCP.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// Names, with or without a port, by which it is reached besides its address and `localhost`.
    pub names: Vec<String>,
    /// Changes are taken over TCP too.
    pub writable: bool,
    /// Where changes are taken otherwise, for hints.
    pub socket: Option<PathBuf>,
}

/// By which way a connection came.
#[derive(Clone, Copy, Debug)]
pub enum Door {
    /// The Unix socket.
    Unix,
    /// TCP: where the server listens, and where this client reached it.
    Tcp { bound: SocketAddr, local: SocketAddr },
}

/// Said of what no page of ours sends.
const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

impl Door {
    /// Whether who comes this way has that permission.
    fn permits(self, access: &Access, needed: Permission) -> bool {
        match (self, needed) {
            (Self::Unix, _) | (Self::Tcp { .. }, Permission::Read) => true,
            (Self::Tcp { .. }, Permission::Manage) => access.writable,
        }
    }
}

/// Refuses a request that its connection does not entitle to.
///
/// # Errors
/// [`Code::ForeignOrigin`], [`Code::NotPermitted`], [`Code::BadRequest`].
pub fn check<B>(
    door: Door,
    access: &Access,
    needed: Permission,
    request: &Request<B>,
) -> Result<(), Problem> {
    let headers = request.headers();
    let host = only(headers, header::HOST)?;
    let target = request.uri().authority().map(|authority| authority.as_str());
    for name in [host, target].into_iter().flatten() {
        if !is_ours(door, access, name) {
            return Err(foreign(door, name));
        }
    }
    if host.is_none() && matches!(door, Door::Tcp { .. }) {
        return Err(Problem::new(Code::BadRequest, "the Host header is missing"));
    }
    if let Some(origin) = only(headers, header::ORIGIN)? {
        let host = host.unwrap_or_default();
        let ours = [format!("http://{host}"), format!("https://{host}")];
        if !ours.iter().any(|our| our == origin) {
            let detail = format!("the Origin header names another site, {}", show(origin));
            return Err(Problem::new(Code::ForeignOrigin, detail));
        }
    }
    if let Some(site) = only(headers, SITE)?.filter(|site| !matches!(*site, "same-origin" | "none"))
    {
        let detail = format!("a page of another site sends this ({SITE}: {})", show(site));
        return Err(Problem::new(Code::ForeignOrigin, detail));
    }
    if !door.permits(access, needed) {
        let socket = access.socket.as_ref();
        let way = socket.map(|path| format!("use --endpoint unix://{}; ", path.display()));
        return Err(Problem::new(
            Code::NotPermitted,
            "over TCP this host is only read: nobody is authenticated there",
        )
        .hint(format!(
            "{}network.api_writable = true lets everybody who reaches network.api change things",
            way.unwrap_or_default()
        )));
    }
    Ok(())
}

/// A header that must not be there twice: who reads the first and who the last must agree.
fn only(headers: &HeaderMap, name: HeaderName) -> Result<Option<&str>, Problem> {
    let mut all = headers.get_all(&name).iter();
    let bad = |why: &str| Problem::new(Code::BadRequest, format!("header {name} {why}"));
    match (all.next(), all.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value.to_str().map(Some).map_err(|_| bad("is not text")),
        (Some(_), Some(_)) => Err(bad("is there twice")),
    }
}

fn foreign(door: Door, name: &str) -> Problem {
    let here = match door {
        Door::Unix => "localhost".to_owned(),
        Door::Tcp { bound, .. } => bound.to_string(),
    };
    let detail = format!("the request is for {}, and this is {here}", show(name));
    Problem::new(Code::ForeignOrigin, detail)
        .hint("network.api_names in the configuration lists further names of this interface")
}

/// Whether `name` (`host` or `host:port`) means this interface.
fn is_ours(door: Door, access: &Access, name: &str) -> bool {
    let (host, port) = split(name);
    let port_fits = || match door {
        Door::Unix => true,
        Door::Tcp { bound, .. } => port.unwrap_or(80) == bound.port(),
    };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    if let Ok(ip) = bare.parse::<IpAddr>() {
        let known = match door {
            Door::Unix => ip.is_loopback(),
            Door::Tcp { bound, local } => {
                ip.is_loopback() || ip == bound.ip() || ip == local.ip().to_canonical()
            }
        };
        return known && port_fits();
    }
    if host.eq_ignore_ascii_case("localhost") && port_fits() {
        return true;
    }
    access.names.iter().any(|known| {
        let (known_host, known_port) = split(known);
        let fits = match known_port {
            Some(known_port) => port.unwrap_or(80) == known_port,
            None => port_fits(),
        };
        known_host.eq_ignore_ascii_case(host) && fits
    })
}

/// Host and port of `host`, `host:port`, `[v6]` or `[v6]:port`.
fn split(name: &str) -> (&str, Option<u16>) {
    match name.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => match port.parse() {
            Ok(port) => (host, Some(port)),
            Err(_) => (name, None),
        },
        _ => (name, None),
    }
}

#[cfg(test)]
mod tests {
    use super::{Access, Door, check};
    use atoll_api::Code;
    use atoll_api::routes::Permission::{self, Manage, Read};
    use hyper::Request;

    fn ask(
        door: Door,
        access: &Access,
        needed: Permission,
        headers: &[(&str, &str)],
    ) -> Result<(), Code> {
        let mut request = Request::builder().uri("/api/v1/volumes");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(()).unwrap();
        check(door, access, needed, &request).map_err(|problem| problem.code)
    }

    fn tcp(bound: &str, local: &str) -> Door {
        Door::Tcp { bound: bound.parse().unwrap(), local: local.parse().unwrap() }
    }

    #[test]
    fn only_own_names_with_the_right_port_are_answered() {
        let access =
            Access { names: vec!["storage.lan".into(), "gate:9000".into()], ..Access::default() };
        let one = tcp("127.0.0.2:8460", "127.0.0.2:8460");
        let all = tcp("[::]:8460", "[::ffff:10.1.2.3]:8460");
        let six = tcp("[::1]:8460", "[::1]:8460");
        for (door, host, ours) in [
            (one, "127.0.0.2:8460", true),
            (one, "127.0.0.1:8460", true),
            (one, "localhost:8460", true),
            (one, "LocalHost:8460", true),
            (one, "storage.lan:8460", true),
            (one, "gate:9000", true),
            (one, "gate:8460", false),
            (one, "storage.lan:9000", false),
            (one, "127.0.0.2", false),
            (one, "127.0.0.2:80", false),
            (one, "10.0.0.1:8460", false),
            (one, "evil.example:8460", false),
            (one, "127.0.0.2.evil.example:8460", false),
            (one, "127.0.0.2:8460.evil.example", false),
            (one, "localhost.evil.example:8460", false),
            (one, "", false),
            (six, "[::1]:8460", true),
            (six, "[::2]:8460", false),
            (all, "10.1.2.3:8460", true),
            (all, "[::]:8460", true),
            (all, "10.1.2.4:8460", false),
            (Door::Unix, "localhost", true),
            (Door::Unix, "localhost:1234", true),
            (Door::Unix, "storage.lan", true),
            (Door::Unix, "evil.example", false),
        ] {
            let answer = ask(door, &access, Read, &[("host", host)]);
            let want = if ours { Ok(()) } else { Err(Code::ForeignOrigin) };
            assert_eq!(answer, want, "{door:?} {host}");
        }
        assert_eq!(ask(one, &access, Read, &[]), Err(Code::BadRequest));
        assert_eq!(ask(Door::Unix, &access, Read, &[]), Ok(()));
        let twice = [("host", "127.0.0.2:8460"), ("host", "evil.example")];
        assert_eq!(ask(one, &access, Read, &twice), Err(Code::BadRequest));
        let request = Request::get("http://evil.example/api/v1/volumes");
        let request = request.header("host", "127.0.0.2:8460").body(()).unwrap();
        assert_eq!(check(one, &access, Read, &request).unwrap_err().code, Code::ForeignOrigin);
    }

    #[test]
    fn pages_of_other_sites_are_refused_and_tcp_only_reads() {
        let door = tcp("127.0.0.2:8460", "127.0.0.2:8460");
        let (reads, writes) = (Access::default(), Access { writable: true, ..Access::default() });
        let host = ("host", "127.0.0.2:8460");
        for (site, want) in [
            (("origin", "http://evil"), Err(Code::ForeignOrigin)),
            (("origin", "null"), Err(Code::ForeignOrigin)),
            (("origin", "http://127.0.0.2:9"), Err(Code::ForeignOrigin)),
            (("origin", "http://127.0.0.2:8460"), Ok(())),
            (("sec-fetch-site", "cross-site"), Err(Code::ForeignOrigin)),
            (("sec-fetch-site", "none"), Ok(())),
        ] {
            for access in [&reads, &writes] {
                assert_eq!(ask(door, access, Read, &[host, site]), want, "{site:?}");
                assert_eq!(ask(Door::Unix, access, Read, &[host, site]), want, "{site:?}");
            }
        }
        assert_eq!(ask(door, &reads, Manage, &[host]), Err(Code::NotPermitted));
        assert_eq!(ask(door, &writes, Manage, &[host]), Ok(()));
        assert_eq!(ask(Door::Unix, &reads, Manage, &[host]), Ok(()));
        assert_eq!(ask(door, &reads, Read, &[host]), Ok(()));
    }
}

//! Who may ask what: the checks that tell a person's own tools from a web page, and a connection
//! that the system has authenticated from one that it has not.
//!
//! A name that is rebound to a loopback address leads a browser here, with a page of somebody
//! else: such requests name that somebody in `Host` or `Origin`. Whoever may open the Unix socket
//! is an admin; over TLS, a token says who somebody is; TCP without TLS knows nobody, and reads.
//! Which role may what is in the table of operations.
//!
//! Invariants: every request is checked, whatever its path; a request that is refused has done
//! nothing.

use crate::control::Caller;
use atoll_api::name::show;
use atoll_api::routes::Role;
use atoll_api::{Code, Problem};
use atoll_trust::{PeerTls, TokenSecret};
use hyper::Request;
use hyper::header::{self, HeaderMap, HeaderName};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// What the configuration says of the interface over TCP.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// Names, with or without a port, by which it is reached besides its address and `localhost`.
    pub names: Vec<String>,
    /// Changes are taken over TCP too, where that has no TLS.
    pub writable: bool,
    /// TCP has TLS, and asks for tokens.
    pub tls: Option<PeerTls>,
    /// Where changes are taken otherwise, for hints.
    pub socket: Option<PathBuf>,
}

/// By which way a connection came.
#[derive(Clone, Copy, Debug)]
pub enum Door {
    /// The Unix socket, and the user at its other end, if the system says who that is.
    Unix { uid: Option<u32> },
    /// TCP: where the server listens, where this client reached it, and from where.
    Tcp { bound: SocketAddr, local: SocketAddr, peer: IpAddr },
}

impl Door {
    /// Where it leads from, for who reads it.
    pub fn from(self) -> String {
        match self {
            Self::Unix { .. } => "socket".into(),
            Self::Tcp { peer, .. } => peer.to_string(),
        }
    }

    /// Who a caller is that came by it.
    pub fn who(self, caller: &Caller) -> String {
        match (&caller.token, self) {
            (Some(token), _) => format!("token:{token}"),
            (None, Self::Unix { uid: Some(uid) }) => format!("uid:{uid}"),
            (None, Self::Unix { uid: None }) => "uid:unknown".into(),
            (None, Self::Tcp { .. }) => "anybody".into(),
        }
    }
}

/// Said of what no page of ours sends.
const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// What a request says of who sends it.
#[derive(Debug, PartialEq, Eq)]
pub enum Shown {
    /// Nothing is needed: the way that it came says what it may.
    Way(Caller),
    /// A token, and the address that it came from.
    Token(TokenSecret, IpAddr),
    /// A token is needed, and there is none.
    Nothing,
    /// What is no token at all, and the address that it came from.
    NoToken(IpAddr),
}

/// What a request shows of who sends it.
///
/// # Errors
/// [`Code::BadRequest`]: several tokens.
pub fn shown(door: Door, access: &Access, headers: &HeaderMap) -> Result<Shown, Problem> {
    let way = |role| Ok(Shown::Way(Caller { token: None, role }));
    let peer = match door {
        Door::Unix { .. } => return way(Role::Admin),
        Door::Tcp { .. } if access.tls.is_none() => {
            return way(if access.writable { Role::Admin } else { Role::Viewer });
        }
        Door::Tcp { peer, .. } => peer,
    };
    let Some(value) = only(headers, header::AUTHORIZATION)? else { return Ok(Shown::Nothing) };
    let bearer = value.split_once(' ').filter(|(way, _)| way.eq_ignore_ascii_case("bearer"));
    let token = bearer.and_then(|(_, token)| TokenSecret::read(token.trim()));
    Ok(token.map_or(Shown::NoToken(peer), |token| Shown::Token(token, peer)))
}

/// Refuses a caller whose role is too low.
///
/// # Errors
/// [`Code::NotPermitted`] says which role is needed.
pub fn permit(caller: &Caller, needed: Role, access: &Access) -> Result<(), Problem> {
    if caller.role >= needed {
        return Ok(());
    }
    let Some(token) = &caller.token else {
        let socket = access.socket.as_ref();
        let way = socket.map(|path| format!("use --endpoint unix://{}; ", path.display()));
        return Err(Problem::new(
            Code::NotPermitted,
            "over TCP without TLS this host is only read: nobody is authenticated there",
        )
        .hint(format!(
            "{}network.api_writable = true lets everybody who reaches network.api change things",
            way.unwrap_or_default()
        )));
    };
    let detail = format!("this needs role {needed}, and token {token} has role {}", caller.role);
    Err(Problem::new(Code::NotPermitted, detail)
        .hint(format!("use a token with role {needed}; 'atoll token create' makes one")))
}

/// Refuses a request that a page of somebody else may have sent, or that is for another server.
///
/// # Errors
/// [`Code::ForeignOrigin`], [`Code::BadRequest`].
pub fn check<B>(door: Door, access: &Access, request: &Request<B>) -> Result<(), Problem> {
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
        Door::Unix { .. } => "localhost".to_owned(),
        Door::Tcp { bound, .. } => bound.to_string(),
    };
    let detail = format!("the request is for {}, and this is {here}", show(name));
    Problem::new(Code::ForeignOrigin, detail)
        .hint("network.api_names in the configuration lists further names of this interface")
}

/// Whether `name` (`host` or `host:port`) means this interface.
fn is_ours(door: Door, access: &Access, name: &str) -> bool {
    let (host, port) = split(name);
    let default = if access.tls.is_some() { 443 } else { 80 };
    let port_fits = || match door {
        Door::Unix { .. } => true,
        Door::Tcp { bound, .. } => port.unwrap_or(default) == bound.port(),
    };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    if let Ok(ip) = bare.parse::<IpAddr>() {
        let known = match door {
            Door::Unix { .. } => ip.is_loopback(),
            Door::Tcp { bound, local, .. } => {
                ip.is_loopback() || ip == bound.ip() || ip == local.ip().to_canonical()
            }
        };
        return known && port_fits();
    }
    if host.eq_ignore_ascii_case("localhost") && port_fits() {
        return true;
    }
    // Its certificate has this name, whatever leads here.
    let of_cluster = access.tls.as_ref().map(PeerTls::name);
    if of_cluster.is_some_and(|name| name.eq_ignore_ascii_case(host)) {
        return true;
    }
    access.names.iter().any(|known| {
        let (known_host, known_port) = split(known);
        let fits = match known_port {
            Some(known_port) => port.unwrap_or(default) == known_port,
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
    /// Of root.
    const UNIX: Door = Door::Unix { uid: Some(0) };

    use super::{Access, Door, Shown, check, permit, shown};
    use crate::control::Caller;
    use atoll_api::Code;
    use atoll_api::routes::Role;
    use atoll_format::id::{ClusterId, HostId};
    use atoll_trust::{Authority, HOST_VALID_S, PeerTls, TokenSecret};
    use hyper::Request;
    use hyper::header::{AUTHORIZATION, HeaderMap, HeaderValue};

    fn ask(door: Door, access: &Access, headers: &[(&str, &str)]) -> Result<(), Code> {
        let mut request = Request::builder().uri("/api/v1/volumes");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(()).unwrap();
        check(door, access, &request).map_err(|problem| problem.code)
    }

    fn tcp(bound: &str, local: &str) -> Door {
        let peer = "10.0.0.9".parse().unwrap();
        Door::Tcp { bound: bound.parse().unwrap(), local: local.parse().unwrap(), peer }
    }

    fn with_tls() -> Access {
        let now_s = || atoll_real::unix_ms() / 1000;
        let authority = Authority::create(ClusterId(0xc), "test", now_s()).unwrap();
        let host = authority.equip(HostId(1), now_s(), HOST_VALID_S).unwrap();
        Access { tls: Some(PeerTls::new(&host).unwrap()), ..Access::default() }
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
            (UNIX, "localhost", true),
            (UNIX, "localhost:1234", true),
            (UNIX, "storage.lan", true),
            (UNIX, "evil.example", false),
        ] {
            let answer = ask(door, &access, &[("host", host)]);
            let want = if ours { Ok(()) } else { Err(Code::ForeignOrigin) };
            assert_eq!(answer, want, "{door:?} {host}");
        }
        assert_eq!(ask(one, &access, &[]), Err(Code::BadRequest));
        assert_eq!(ask(UNIX, &access, &[]), Ok(()));
        let twice = [("host", "127.0.0.2:8460"), ("host", "evil.example")];
        assert_eq!(ask(one, &access, &twice), Err(Code::BadRequest));
        let request = Request::get("http://evil.example/api/v1/volumes");
        let request = request.header("host", "127.0.0.2:8460").body(()).unwrap();
        assert_eq!(check(one, &access, &request).unwrap_err().code, Code::ForeignOrigin);
    }

    #[test]
    fn over_tls_the_name_of_the_cluster_is_ours_by_any_port_and_443_is_the_default() {
        let access = with_tls();
        let door = tcp("10.0.0.1:443", "10.0.0.1:443");
        let cluster = "000000000000000c.cluster.atoll.internal";
        for (host, ours) in [
            (cluster.to_owned(), true),
            (format!("{cluster}:9000"), true),
            (format!("x.{cluster}"), false),
            ("10.0.0.1".into(), true),
            ("10.0.0.1:80".into(), false),
            ("000000000000000d.cluster.atoll.internal".into(), false),
        ] {
            let want = if ours { Ok(()) } else { Err(Code::ForeignOrigin) };
            assert_eq!(ask(door, &access, &[("host", &host)]), want, "{host}");
            let plain = ask(door, &Access::default(), &[("host", &host)]);
            assert!(!host.contains(cluster) || plain == Err(Code::ForeignOrigin), "{host}");
        }
    }

    #[test]
    fn pages_of_other_sites_are_refused() {
        let door = tcp("127.0.0.2:8460", "127.0.0.2:8460");
        let access = Access::default();
        let host = ("host", "127.0.0.2:8460");
        for (site, want) in [
            (("origin", "http://evil"), Err(Code::ForeignOrigin)),
            (("origin", "null"), Err(Code::ForeignOrigin)),
            (("origin", "http://127.0.0.2:9"), Err(Code::ForeignOrigin)),
            (("origin", "http://127.0.0.2:8460"), Ok(())),
            (("sec-fetch-site", "cross-site"), Err(Code::ForeignOrigin)),
            (("sec-fetch-site", "none"), Ok(())),
        ] {
            assert_eq!(ask(door, &access, &[host, site]), want, "{site:?}");
            assert_eq!(ask(UNIX, &access, &[host, site]), want, "{site:?}");
        }
    }

    #[test]
    fn the_way_says_who_comes_and_over_tls_only_a_token_does() {
        let door = tcp("127.0.0.2:8460", "127.0.0.2:8460");
        let Door::Tcp { peer, .. } = door else { unreachable!() };
        let (reads, writes) = (Access::default(), Access { writable: true, ..Access::default() });
        let tls = Access { writable: true, ..with_tls() };
        let text = format!("atoll_{}", "0123456789abcdef".repeat(4));
        let token = TokenSecret::read(&text).unwrap();
        let show = |door, access: &Access, values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
            }
            shown(door, access, &headers).map_err(|problem| problem.code)
        };
        let way = |role| Ok(Shown::Way(Caller { token: None, role }));
        let bearer = format!("Bearer {text}");
        let nothing: &[&str] = &[];
        for values in [nothing, &["Basic x"], &[bearer.as_str()]] {
            assert_eq!(show(UNIX, &tls, values), way(Role::Admin));
            assert_eq!(show(door, &reads, values), way(Role::Viewer));
            assert_eq!(show(door, &writes, values), way(Role::Admin));
        }
        assert_eq!(show(door, &tls, &[]), Ok(Shown::Nothing));
        for value in [bearer.clone(), format!("bearer  {text} "), format!("BEARER {text}")] {
            assert_eq!(show(door, &tls, &[&value]), Ok(Shown::Token(token.clone(), peer)));
        }
        for bad in ["", "Bearer", "Bearer ", &text, "Basic cm9vdDo=", &format!("{bearer}0")] {
            assert_eq!(show(door, &tls, &[bad]), Ok(Shown::NoToken(peer)), "{bad}");
        }
        assert_eq!(show(door, &tls, &[&bearer, &bearer]), Err(Code::BadRequest));
    }

    #[test]
    fn a_role_that_is_too_low_is_refused_and_the_one_that_is_needed_named() {
        let access = Access::default();
        for role in Role::ALL {
            for needed in Role::ALL {
                for token in [None, Some("ci".to_owned())] {
                    let named = token.is_some();
                    let verdict = permit(&Caller { token, role }, needed, &access);
                    let Err(problem) = verdict else {
                        assert!(role >= needed);
                        continue;
                    };
                    assert!(role < needed && problem.code == Code::NotPermitted);
                    let wanted = format!("needs role {needed}, and token ci has role {role}");
                    assert_eq!(problem.detail.contains(&wanted), named, "{problem}");
                }
            }
        }
    }
}

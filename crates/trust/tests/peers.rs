//! Two ends of a connection in memory: who is let in, and as whom.

#![allow(clippy::disallowed_methods, reason = "certificates are for the clock of this machine")]

use atoll_format::id::{ClusterId, HostId};
use atoll_trust::{Authority, Credentials, HOST_VALID_S, HostKey, Identity, PeerTls, TrustError};
use rustls::Connection;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::time::SystemTime;

const CLUSTER: ClusterId = ClusterId(0xc1);

fn now_s() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_secs()
}

fn authority() -> Authority {
    Authority::create(CLUSTER, "test", now_s()).expect("made")
}

fn credentials_at(authority: &Authority, host: u64, now_s: u64) -> Credentials {
    let key = HostKey::generate().expect("made");
    let request = key.request().expect("made");
    let certificate = authority.issue(&request, HostId(host), now_s).expect("issued");
    key.certified(&certificate, authority.certificate()).expect("fits")
}

fn credentials(authority: &Authority, host: u64) -> Credentials {
    credentials_at(authority, host, now_s())
}

/// What one end has for the other; false: nothing.
fn pass(from: &mut Connection, to: &mut Connection) -> Result<bool, rustls::Error> {
    let mut wire = Vec::new();
    while from.wants_write() {
        from.write_tls(&mut wire).expect("memory");
    }
    let any = !wire.is_empty();
    let mut wire = &wire[..];
    while !wire.is_empty() {
        to.read_tls(&mut wire).expect("memory");
        to.process_new_packets()?;
    }
    Ok(any)
}

/// The ends after their handshake, or what the first to refuse says.
fn connect(client: &PeerTls, server: &PeerTls) -> Result<(Connection, Connection), rustls::Error> {
    let (mut client, mut server) = (client.connect()?, server.accept()?);
    while pass(&mut client, &mut server)? | pass(&mut server, &mut client)? {}
    Ok((client, server))
}

fn tls(credentials: &Credentials) -> PeerTls {
    PeerTls::new(credentials).expect("fits")
}

#[test]
fn both_ends_know_which_host_is_at_the_other() {
    let authority = authority();
    let (a, b) = (tls(&credentials(&authority, 0xa)), tls(&credentials(&authority, 0xb)));
    let (mut client, mut server) = connect(&a, &b).expect("one cluster");
    let of = |host| Identity { cluster: CLUSTER, host: HostId(host) };
    let at = |end: &Connection| PeerTls::peer(end).expect("shown");
    assert_eq!((at(&client), at(&server)), (of(0xb), of(0xa)));
    client.writer().write_all(b"hello").expect("room");
    pass(&mut client, &mut server).expect("intact");
    let mut heard = [0; 5];
    server.reader().read_exact(&mut heard).expect("there");
    assert_eq!(&heard, b"hello");
    // Nothing that would let a host in again without its certificate.
    let (again, _) = connect(&a, &b).expect("one cluster");
    assert!(
        matches!(again.handshake_kind(), Some(rustls::HandshakeKind::Full)),
        "{:?}",
        again.handshake_kind()
    );
}

#[test]
fn who_is_of_another_authority_is_refused_by_either_end() {
    let (ours, theirs) = (authority(), authority());
    let (a, b) = (tls(&credentials(&ours, 0xa)), tls(&credentials(&theirs, 0xb)));
    for (client, server) in [(&a, &b), (&b, &a)] {
        let refused = connect(client, server).expect_err("another cluster");
        assert!(refused.to_string().starts_with("invalid peer certificate"), "{refused}");
    }
}

#[test]
fn certificates_are_valid_for_90_days_and_an_hour_before() {
    let authority = authority();
    let good = tls(&credentials(&authority, 0xa));
    for (made_at, refused) in [
        (now_s() - HOST_VALID_S + 60, None),
        (now_s() - HOST_VALID_S - 60, Some("expired")),
        (now_s() + 3600 - 60, None),
        (now_s() + 3600 + 60, Some("not valid yet")),
    ] {
        let other = tls(&credentials_at(&authority, 0xb, made_at));
        for (client, server) in [(&good, &other), (&other, &good)] {
            let said = connect(client, server).err().map(|e| e.to_string());
            assert_eq!(said.is_some(), refused.is_some(), "{said:?}");
            let (said, part) = (said.unwrap_or_default(), refused.unwrap_or_default());
            assert!(said.to_lowercase().contains(&part.to_lowercase()), "{said}: {part}");
        }
    }
}

#[test]
fn the_authority_signs_only_what_its_own_key_asks_for() {
    let authority = authority();
    let request = HostKey::generate().expect("made").request().expect("made");
    let (mut lines, at) = (request.lines().map(str::to_owned).collect::<Vec<_>>(), 2);
    let flipped = if lines[at].starts_with('A') { "B" } else { "A" };
    lines[at].replace_range(..1, flipped);
    for bad in ["", "-----BEGIN CERTIFICATE REQUEST-----\n", &lines.join("\n")] {
        let refused = authority.issue(bad, HostId(1), now_s()).expect_err("refused");
        assert!(matches!(refused, TrustError::Unreadable { .. }), "{refused}");
    }
    let (key, other) = (HostKey::generate().expect("made"), HostKey::generate().expect("made"));
    let request = other.request().expect("made");
    let certificate = authority.issue(&request, HostId(1), now_s()).expect("issued");
    let refused = key.certified(&certificate, authority.certificate()).expect_err("another key");
    assert!(matches!(refused, TrustError::Mismatch(_)), "{refused}");
    let key = HostKey::generate().expect("made");
    let refused = key.certified(authority.certificate(), authority.certificate());
    assert!(matches!(refused, Err(TrustError::NoIdentity(_))), "{refused:?}");
}

#[test]
fn the_authority_comes_back_from_its_files() {
    let first = authority();
    let again = Authority::from_pem(CLUSTER, first.certificate(), &first.key()).expect("read");
    let (a, b) = (tls(&credentials(&first, 0xa)), tls(&credentials(&again, 0xb)));
    connect(&a, &b).expect("one cluster");
    connect(&b, &a).expect("one cluster");
    let said = format!("{first:?} {:?}", credentials(&first, 1));
    assert!(!said.contains("PRIVATE") && !said.contains("BEGIN"), "{said}");
}

#[test]
fn files_come_back_and_a_key_that_others_may_read_is_refused() {
    let (dir, authority) = (tempfile::tempdir().expect("there"), authority());
    let dir = dir.path().join("tls");
    let missing = Credentials::load(&dir).expect_err("nothing there").to_string();
    assert!(missing.contains("host.key"), "{missing}");
    for host in [0xa, 0xb] {
        credentials(&authority, host).save(&dir).expect("written");
        let read = Credentials::load(&dir).expect("read");
        assert_eq!(read.identity(), Identity { cluster: CLUSTER, host: HostId(host) });
        let mode = std::fs::metadata(dir.join("host.key")).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        connect(&tls(&read), &tls(&credentials(&authority, 0xc))).expect("one cluster");
    }
    let names: Vec<_> =
        std::fs::read_dir(&dir).expect("there").map(|e| e.unwrap().path()).collect();
    assert_eq!(names.len(), 3, "{names:?}");
    let key = dir.join("host.key");
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o640)).expect("ours");
    let refused = Credentials::load(&dir).expect_err("others read it").to_string();
    assert!(refused.contains("chmod 600"), "{refused}");
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).expect("ours");
    std::fs::write(dir.join("host.crt"), authority.certificate()).expect("ours");
    Credentials::load(&dir).expect_err("the certificate of somebody else");
}

//! Two ends of a connection in memory: who is let in, and as whom.

use atoll_format::id::{ClusterId, HostId};
use atoll_trust::{
    ApiTrust, Authority, Credentials, HOST_VALID_S, HostKey, Identity, PeerTls, TrustError, refusal,
};
use rustix::time::{ClockId, clock_gettime};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{Connection, ServerConfig};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

const CLUSTER: ClusterId = ClusterId(0xc1);

fn now_s() -> u64 {
    clock_gettime(ClockId::Realtime).tv_sec.unsigned_abs()
}

fn authority() -> Authority {
    Authority::create(CLUSTER, "test", now_s()).expect("made")
}

fn credentials_at(authority: &Authority, host: u64, now_s: u64) -> Credentials {
    authority.equip(HostId(host), now_s, HOST_VALID_S).expect("issued")
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
        let refused = authority.issue(bad, HostId(1), now_s(), HOST_VALID_S).expect_err("refused");
        assert!(matches!(refused, TrustError::Unreadable { .. }), "{refused}");
    }
    let (key, other) = (HostKey::generate().expect("made"), HostKey::generate().expect("made"));
    let request = other.request().expect("made");
    let certificate = authority.issue(&request, HostId(1), now_s(), HOST_VALID_S).expect("issued");
    let refused = key.certified(&certificate, authority.certificate()).expect_err("another key");
    assert!(matches!(refused, TrustError::Mismatch(_)), "{refused}");
    let key = HostKey::generate().expect("made");
    let refused = key.certified(authority.certificate(), authority.certificate());
    assert!(matches!(refused, Err(TrustError::NoIdentity(_))), "{refused:?}");
}

#[test]
fn the_authority_comes_back_from_its_files() {
    let first = authority();
    let again = Authority::from_pem(first.certificate(), &first.key()).expect("read");
    assert_eq!(again.cluster(), CLUSTER);
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

#[test]
fn files_that_do_not_belong_together_are_refused_with_what_and_where() {
    let (dir, ours, theirs) = (tempfile::tempdir().expect("there"), authority(), authority());
    let dir = dir.path();
    let good = credentials(&ours, 0xa);
    let foreign = credentials(&theirs, 0xa);
    let text = |c: &Credentials, name: &str| {
        let dir = tempfile::tempdir().expect("there");
        c.save(dir.path()).expect("written");
        std::fs::read_to_string(dir.path().join(name)).expect("there")
    };
    let certificate = text(&good, "host.crt");
    let half = certificate[..certificate.len() / 2].to_owned();
    for (name, bad, says) in [
        ("host.crt", text(&foreign, "host.crt"), "was not signed by that authority"),
        ("authority.crt", text(&foreign, "authority.crt"), "was not signed by that authority"),
        ("host.key", text(&foreign, "host.key"), "do not fit"),
        ("host.crt", half.clone(), "cannot be read"),
        ("authority.crt", half, "cannot be read"),
        ("host.key", "-----BEGIN PRIVATE KEY-----\n".into(), "cannot be read"),
        ("host.key", String::new(), "cannot be read"),
        ("host.crt", "x".repeat(100_000), "longer than"),
    ] {
        good.save(dir).expect("written");
        Credentials::load(dir).expect("good so far");
        std::fs::write(dir.join(name), bad).expect("ours");
        let refused = Credentials::load(dir).expect_err(name).to_string();
        assert!(refused.contains(says), "{name}: {refused}");
        assert!(refused.contains(dir.to_str().expect("text")), "{name}: {refused}");
    }
}

#[test]
fn a_certificate_says_when_it_is_valid() {
    let (authority, now) = (authority(), now_s());
    let validity = authority.equip(HostId(1), now, 900).expect("made").validity();
    assert_eq!((validity.from_s, validity.until_s), (now - 3600, now + 900));
    let at = |s| validity.check(s).err().map(|e| e.to_string());
    assert_eq!([at(now - 3600), at(now), at(now + 900)], [None, None, None]);
    assert!(at(now + 901).is_some_and(|why| why.contains("expired")));
    assert!(at(now - 3601).is_some_and(|why| why.contains("not valid yet")));
    // 4500 s of life, the hour before included.
    assert!(!validity.is_nearly_over(now - 601) && validity.is_nearly_over(now - 600));
    assert!(!validity.is_to_be_renewed(now - 651) && validity.is_to_be_renewed(now - 650));
    assert_eq!((validity.left_s(now), validity.left_s(now + 901)), (900, 0));
}

#[test]
fn renewed_credentials_are_used_for_new_connections_and_only_of_the_same_host() {
    let (ours, theirs) = (authority(), authority());
    let (a, b) = (tls(&credentials(&theirs, 0xa)), tls(&credentials(&ours, 0xb)));
    let clone = a.clone();
    connect(&clone, &b).expect_err("another authority");
    a.renew(&credentials(&ours, 0xa)).expect("the same host");
    connect(&clone, &b).expect("believed now");
    let refused = a.renew(&credentials(&ours, 0xc)).expect_err("another host").to_string();
    assert!(refused.contains("000000000000000c"), "{refused}");
    connect(&clone, &b).expect("as before");
}

#[test]
fn an_authority_is_kept_in_files_and_never_replaced() {
    let dir = tempfile::tempdir().expect("there");
    let dir = dir.path().join("authority");
    assert!(!Authority::is_in(&dir));
    let first = authority();
    first.save(&dir).expect("written");
    let mode = |path: &std::path::Path| {
        std::fs::metadata(path).expect("there").permissions().mode() & 0o777
    };
    assert_eq!((mode(&dir), mode(&dir.join("authority.key"))), (0o700, 0o600));
    let again = Authority::load(&dir).expect("read");
    assert_eq!((again.cluster(), again.certificate()), (CLUSTER, first.certificate()));
    let refused = authority().save(&dir).expect_err("there is one").to_string();
    assert!(refused.contains("not replaced"), "{refused}");
    std::fs::set_permissions(dir.join("authority.key"), PermissionsExt::from_mode(0o644)).unwrap();
    Authority::load(&dir).expect_err("others read its key");
}

/// A client of the management interface that knows the cluster and that hash, after the handshake
/// with that server, or what it refuses.
fn ask(pinned: &str, server: Arc<ServerConfig>) -> Result<(), rustls::Error> {
    let ApiTrust { config, name } = ApiTrust::pinned(CLUSTER, pinned.to_owned()).expect("made");
    let client = rustls::ClientConnection::new(config, name.expect("the cluster's"))?;
    let (mut client, mut server) =
        (Connection::from(client), Connection::from(rustls::ServerConnection::new(server)?));
    while pass(&mut client, &mut server)? | pass(&mut server, &mut client)? {}
    assert!(!client.is_handshaking());
    Ok(())
}

/// The management interface of whoever has those credentials, and shows that authority with them.
fn showing(host: &Credentials, authority: &Authority) -> Arc<ServerConfig> {
    let dir = tempfile::tempdir().expect("made");
    host.save(dir.path()).expect("written");
    let own = CertificateDer::from_pem_file(dir.path().join("host.crt")).expect("read");
    let shown = CertificateDer::from_pem_slice(authority.certificate().as_bytes()).expect("read");
    let key = PrivateKeyDer::from_pem_file(dir.path().join("host.key")).expect("read");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .with_no_client_auth()
        .with_single_cert(vec![own, shown], key)
        .expect("they fit");
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(config)
}

#[test]
fn who_knows_the_hash_of_the_authority_believes_its_hosts_and_nobody_else() {
    let (ours, other) = (authority(), authority());
    let (host, foreign) = (credentials(&ours, 0xa), credentials(&other, 0xa));
    let pin = host.authority_sha256();
    assert_eq!(ours.sha256().expect("read"), pin);
    ask(&pin, tls(&host).api()).expect("a host of that cluster");
    ask(&pin, showing(&host, &ours)).expect("the same");
    let refused = |server, why: &str| {
        let error = ask(&pin, server).expect_err(why);
        assert!(refusal(&error).contains(why), "{error}");
    };
    refused(tls(&foreign).api(), "another authority");
    // Whoever has seen the authority's certificate may show it, and has no key that it signed.
    refused(showing(&foreign, &ours), "another authority");
    refused(showing(&host, &other), "another authority");
    let old = credentials_at(&ours, 0xb, now_s() - HOST_VALID_S - 1);
    refused(tls(&old).api(), "has expired");
    let elsewhere = Authority::create(ClusterId(0xd), "test", now_s()).expect("made");
    let pin = elsewhere.sha256().expect("read");
    let error = ask(&pin, tls(&credentials(&elsewhere, 0xa)).api()).expect_err("another cluster");
    assert!(refusal(&error).contains("another cluster"), "{error}");
}

#[test]
fn a_renewed_certificate_is_of_the_same_key_host_and_authority() {
    let (ours, other) = (authority(), authority());
    let host = credentials_at(&ours, 0xa, now_s() - 60);
    let request = host.request().expect("signed");
    let signed = |by: &Authority, host| by.issue(&request, HostId(host), now_s(), 3600);
    let renewed = host.renewed(&signed(&ours, 0xa).expect("issued")).expect("renewed");
    assert_ne!(renewed.validity(), host.validity());
    assert_eq!(renewed.identity(), host.identity());
    let peer = credentials(&ours, 0xb);
    connect(&tls(&renewed), &tls(&peer)).expect("believed");
    let another_key = credentials(&ours, 0xa).request().expect("signed");
    for (certificate, why) in [
        (signed(&ours, 0xb).expect("issued"), "not of"),
        (ours.issue(&another_key, HostId(0xa), now_s(), 60).expect("issued"), "do not fit"),
        ("nothing".to_owned(), "cannot be read"),
    ] {
        let refused = host.renewed(&certificate).expect_err(why).to_string();
        assert!(refused.contains(why), "{refused}");
    }
    host.renewed(&signed(&other, 0xa).expect("issued")).expect_err("another authority");
    // Its file alone is replaced.
    let dir = tempfile::tempdir().expect("made");
    host.save(dir.path()).expect("written");
    renewed.save_certificate(dir.path()).expect("written");
    let found = Credentials::load(dir.path()).expect("they belong together");
    assert!(found.is(&renewed) && !found.is(&host));
}

//! Which member of etcd is asked, and when another one is asked instead.
//!
//! One member is used at a time, over one connection: this machine's own, if it is good, or the
//! first that answers, knows a leader and is good enough. It is left when it does not answer, has
//! had no leader for two looks, or says of a request that it cannot serve it. A look every two
//! seconds notices a member that is dead while nothing else is asked.
//!
//! Invariants: a member of another etcd than the first one that was used is never used; no more
//! than one search for a member is under way; what was begun at a member that was left ends.

use crate::error::{Meaning, meaning, words};
use crate::version::{RECOMMENDED, Verdict, Version, floor};
use atoll_directory::limits::{REQUEST_DEADLINE, VALUE_MAX};
use atoll_world::directory::{DirectoryError, Revision};
use atoll_world::sync::{Notify, Semaphore};
use etcd_client::{
    Certificate, Client, ConnectOptions, Error, Identity, KvClient, ResponseHeader, StatusResponse,
    TlsOptions,
};
use futures_util::future::{Either, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::path::PathBuf;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// HTTP/2 keep-alive: how often, and how long it waits for its answer.
const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// How often the member that is used is looked at. Also keeps etcd from taking offence at
/// [`KEEP_ALIVE`]: by default it disconnects who has it say nothing but pings more often than every
/// five seconds.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// A member that has not told how it is for this long does not answer.
pub(crate) const LOOK_DEADLINE: Duration = Duration::from_secs(2);
/// What a request has at least once there is a member to ask: one that answers is not left because
/// the search for it took long.
const ATTEMPT_MIN: Duration = Duration::from_secs(1);
/// How long a search waits for this machine's own member before it asks all.
const OWN_FIRST: Duration = Duration::from_millis(300);
/// Between two searches for a member.
const SEARCH_REST: Duration = Duration::from_millis(250);
/// When there was no member for so long, requests wait for one no longer than [`PATIENCE`].
const OUTAGE: Duration = Duration::from_secs(5);
/// See [`OUTAGE`].
const PATIENCE: Duration = Duration::from_secs(1);
/// Keys in one part of a listing.
pub(crate) const PART_KEYS: usize = 256;
/// The largest message that is accepted: a part of a listing, or the events of a transaction.
pub(crate) const MESSAGE_MAX: usize = PART_KEYS * (VALUE_MAX + 4096);
/// How long the slowest request is remembered, once or twice.
const SLOWEST_FOR: Duration = Duration::from_secs(60);

/// Where etcd is, and what of it is this cluster's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdConfig {
    /// The members.
    pub endpoints: Endpoints,
    /// The one on this machine, which is used whenever it is good: it is not lost with another
    /// machine, whose silence would take seconds to notice.
    pub own: Option<String>,
    /// What all keys of the cluster begin with, such as `/atoll`; no `/` at its end.
    pub prefix: String,
    /// How members are known; none: neither encrypted nor authenticated.
    pub tls: Option<TlsFiles>,
}

/// Where the members are: `address:port`, `[address]:port` or `name:port`; at least one. Clones are
/// the same list, whichever thread has them: members come and go while etcd is used.
#[derive(Clone)]
pub struct Endpoints(Arc<RwLock<Arc<[String]>>>);

impl Endpoints {
    /// All of them.
    pub fn list(&self) -> Arc<[String]> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// From now on they are these. A member that is in use is used on, until it is left.
    pub fn set(&self, endpoints: Vec<String>) {
        assert!(!endpoints.is_empty(), "etcd has members");
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = endpoints.into();
    }
}

impl From<Vec<String>> for Endpoints {
    fn from(endpoints: Vec<String>) -> Self {
        assert!(!endpoints.is_empty(), "etcd has members");
        Self(Arc::new(RwLock::new(endpoints.into())))
    }
}

impl PartialEq for Endpoints {
    fn eq(&self, other: &Self) -> bool {
        self.list() == other.list()
    }
}

impl Eq for Endpoints {}

impl fmt::Debug for Endpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.list().fmt(f)
    }
}

impl fmt::Display for Endpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.list().join(", "))
    }
}

/// Files in PEM form; read whenever a member is connected to, so that a renewed one is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The authority that signed the members' certificates.
    pub ca: PathBuf,
    /// This host's certificate and its key, if etcd asks for one.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// A connection to one member.
pub(crate) struct Link {
    /// Which.
    pub endpoint: String,
    client: Client,
    left: Cell<bool>,
    over: Notify,
}

impl Link {
    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// For requests whose answers may be long.
    pub(crate) fn kv(&self) -> KvClient {
        self.client.kv_client().max_decoding_message_size(MESSAGE_MAX)
    }

    /// Returns when the member was left.
    pub(crate) async fn over(&self) {
        loop {
            let over = self.over.notified();
            if self.left.get() {
                return;
            }
            over.await;
        }
    }
}

/// All members, as the clones of one directory share them.
pub(crate) struct Members {
    pub config: EtcdConfig,
    link: RefCell<Option<Rc<Link>>>,
    /// Where the next search begins, counted on from the first endpoint.
    first: Cell<usize>,
    searching: Semaphore,
    /// Which etcd it is, once one was used.
    etcd: Cell<Option<u64>>,
    /// The highest revision that any answer had.
    seen: Cell<Revision>,
    /// The slowest request of this minute, of the last one, and when this one began.
    slowest: Cell<(Duration, Duration, Instant)>,
    /// Since when there is no member, and why; none while there is one.
    trouble: RefCell<Option<(Instant, String)>>,
    /// What was last warned of.
    warned: RefCell<String>,
    closed: Notify,
}

impl Drop for Members {
    fn drop(&mut self) {
        self.closed.notify_all();
    }
}

/// When a request that begins now must have ended.
pub(crate) fn deadline() -> Instant {
    Instant::now() + Duration::from_nanos(REQUEST_DEADLINE.0)
}

/// What ends a request: its answer, or the reason why there is none.
pub(crate) type Asked<T> = Result<T, Meaning>;

impl Members {
    pub(crate) fn new(config: EtcdConfig) -> Rc<Self> {
        Rc::new(Self {
            config,
            link: RefCell::default(),
            first: Cell::new(0),
            searching: Semaphore::new(1),
            etcd: Cell::new(None),
            seen: Cell::new(Revision(0)),
            slowest: Cell::new((Duration::ZERO, Duration::ZERO, Instant::now())),
            trouble: RefCell::default(),
            warned: RefCell::default(),
            closed: Notify::default(),
        })
    }

    /// etcd's key of one of the directory's; the same of prefixes.
    pub(crate) fn full_key(&self, key: &str) -> String {
        format!("{}/keys/{key}", self.config.prefix)
    }

    /// The directory's key of one of etcd's.
    pub(crate) fn key_of(&self, key: &[u8]) -> Result<String, DirectoryError> {
        let ours = std::str::from_utf8(key).ok();
        let ours = ours.and_then(|key| key.strip_prefix(&self.full_key("")));
        ours.map(str::to_owned).ok_or_else(|| {
            let shown = String::from_utf8_lossy(key);
            DirectoryError::Unavailable(format!(
                "etcd told of a key that is not text, or not ours: {shown}"
            ))
        })
    }

    /// The member to ask, found if need be until `deadline`.
    ///
    /// # Errors
    /// `Unavailable`: none is good, and why.
    pub(crate) async fn link(
        self: &Rc<Self>,
        deadline: Instant,
    ) -> Result<Rc<Link>, DirectoryError> {
        let deadline = match &*self.trouble.borrow() {
            // An outage that goes on is told soon.
            Some((since, _)) if since.elapsed() > OUTAGE => deadline.min(Instant::now() + PATIENCE),
            _ => deadline,
        };
        let search = async {
            loop {
                if let Some(link) = self.present() {
                    return link;
                }
                let turn = self.searching.acquire(1).await;
                // Another one may have found it meanwhile.
                if let Some(link) = self.present() {
                    return link;
                }
                match self.search().await {
                    Ok(link) => return link,
                    Err(why) => self.no_member(why),
                }
                drop(turn);
                sleep(SEARCH_REST).await;
            }
        };
        match timeout_at(deadline, search).await {
            Ok(link) => Ok(link),
            Err(_) => Err(DirectoryError::Unavailable(
                self.trouble().unwrap_or_else(|| "no member of etcd was found in time".into()),
            )),
        }
    }

    fn no_member(&self, why: String) {
        let mut trouble = self.trouble.borrow_mut();
        let since = trouble.as_ref().map_or_else(Instant::now, |(since, _)| *since);
        *trouble = Some((since, why));
    }

    /// Why no member is used, if a search has found none since the last one was left.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble.borrow().as_ref().map(|(_, why)| why.clone())
    }

    pub(crate) fn present(&self) -> Option<Rc<Link>> {
        self.link.borrow().clone()
    }

    /// Asks all members how they are, and takes the first good one.
    async fn search(self: &Rc<Self>) -> Result<Rc<Link>, String> {
        if let Some(own) = &self.config.own
            && let Ok(Ok((client, status))) = timeout(OWN_FIRST, self.try_member(own)).await
        {
            return Ok(self.use_member(own, client, &status));
        }
        let endpoints = &self.config.endpoints.list();
        let count = endpoints.len();
        let order = (0..count).map(|turn| (self.first.get() + turn) % count);
        let mut looks: FuturesUnordered<_> =
            order.map(|i| async move { (i, self.try_member(&endpoints[i]).await) }).collect();
        let mut troubles = vec![String::new(); count];
        while let Some((i, found)) = looks.next().await {
            match found {
                Ok((client, status)) => {
                    self.first.set(i);
                    return Ok(self.use_member(&endpoints[i], client, &status));
                }
                Err(why) => troubles[i] = format!("{}: {why}", endpoints[i]),
            }
        }
        let all = troubles.join("; ");
        Err(match troubles.iter().any(|trouble| trouble.ends_with(NO_LEADER)) {
            true => format!("etcd has no leader (its quorum is lost): {all}"),
            false => format!("no member of etcd can be used: {all}"),
        })
    }

    fn use_member(
        self: &Rc<Self>,
        endpoint: &str,
        client: Client,
        status: &StatusResponse,
    ) -> Rc<Link> {
        let (endpoint, left) = (endpoint.to_owned(), Cell::new(false));
        let link = Rc::new(Link { endpoint, client, left, over: Notify::default() });
        self.etcd.set(status.header().map(ResponseHeader::cluster_id));
        *self.trouble.borrow_mut() = None;
        self.warn_of(status.version());
        *self.link.borrow_mut() = Some(link.clone());
        tokio::task::spawn_local(look_after(
            Rc::downgrade(self),
            link.clone(),
            self.closed.notified(),
        ));
        link
    }

    /// Says once that a release has defects.
    fn warn_of(&self, version: &str) {
        let is_good = Version::parse(version).is_some_and(|v| v.verdict() == Verdict::Good);
        if !is_good && *self.warned.borrow() != version {
            tracing::warn!("etcd {version} has defects that {RECOMMENDED} has not");
            version.clone_into(&mut self.warned.borrow_mut());
        }
    }

    /// A connection to a member that is good enough to be used, and how the member is.
    async fn try_member(&self, endpoint: &str) -> Result<(Client, StatusResponse), String> {
        let (client, status) = self.look_at(endpoint).await?;
        self.check(&status)?;
        if status.leader() == 0 {
            return Err(NO_LEADER.into());
        }
        if status.is_learner() {
            return Err("is a learner and serves no requests".into());
        }
        Ok((client, status))
    }

    /// Connects to a member and asks how it is.
    pub(crate) async fn look_at(&self, endpoint: &str) -> Result<(Client, StatusResponse), String> {
        let look = async {
            let options = self.options().await?;
            let scheme = if self.config.tls.is_some() { "https" } else { "http" };
            let url = format!("{scheme}://{endpoint}");
            let mut client = Client::connect([url], Some(options)).await.map_err(|e| words(&e))?;
            let status = client.status().await.map_err(|e| match meaning(&e) {
                Meaning::Refused(why) | Meaning::Denied(why) | Meaning::Lost(why) => why,
                Meaning::Compacted => words(&e),
            })?;
            Ok((client, status))
        };
        match timeout(LOOK_DEADLINE, look).await {
            Ok(looked) => looked.map_err(|why| self.with_doubt_of_certificate(why)),
            Err(_) => Err(format!("does not answer ({} s)", LOOK_DEADLINE.as_secs())),
        }
    }

    /// A member that does not take this host's certificate says so once the handshake is over, just
    /// before it closes the connection: its word is often lost.
    fn with_doubt_of_certificate(&self, why: String) -> String {
        let Some(tls) = &self.config.tls else { return why };
        let is_cut = ["connection closed", "connection reset", "Connection reset", "roken pipe"];
        if why.contains("certificate") || !is_cut.iter().any(|words| why.contains(words)) {
            return why;
        }
        match tls.identity {
            None => format!("{why}; perhaps it asks for a certificate (directory.certificate)"),
            Some(_) => format!("{why}; perhaps it does not take the certificate of this host"),
        }
    }

    async fn options(&self) -> Result<ConnectOptions, String> {
        let options = ConnectOptions::new()
            .with_keep_alive(KEEP_ALIVE, KEEP_ALIVE)
            .with_keep_alive_while_idle(true)
            .with_connect_timeout(LOOK_DEADLINE);
        let Some(files) = self.config.tls.clone() else { return Ok(options) };
        let read = |path: PathBuf| {
            std::fs::read(&path).map_err(|e| format!("cannot read {}: {e}", path.display()))
        };
        // Small files; but the disk may hang, and a shard must not.
        let files = tokio::task::spawn_blocking(move || {
            let identity = match files.identity {
                Some((certificate, key)) => Some((read(certificate)?, read(key)?)),
                None => None,
            };
            Ok::<_, String>((read(files.ca)?, identity))
        });
        let (ca, identity) = files.await.map_err(|e| e.to_string())??;
        let mut tls = TlsOptions::new().ca_certificate(Certificate::from_pem(ca));
        if let Some((certificate, key)) = identity {
            tls = tls.identity(Identity::from_pem(certificate, key));
        }
        Ok(options.with_tls(tls))
    }

    /// Whether a member that answered may be used at all.
    pub(crate) fn check(&self, status: &StatusResponse) -> Result<(), String> {
        check(self.etcd.get(), status.header().map(ResponseHeader::cluster_id), status.version())
    }

    /// From now on another member is asked, and what was begun at this one ends.
    pub(crate) fn leave(&self, link: &Link, why: &str) {
        if link.left.replace(true) {
            return;
        }
        tracing::info!("etcd's member {} is left: {why}", link.endpoint);
        link.over.notify_all();
        if self.is_used(link) {
            *self.link.borrow_mut() = None;
            self.first.set(self.first.get() + 1);
        }
    }

    fn is_used(&self, link: &Link) -> bool {
        self.link.borrow().as_deref().is_some_and(|used| std::ptr::eq(used, link))
    }

    /// Goes over to this machine's own member, if that is good and another one is used. What was
    /// begun at the other one goes on there.
    async fn go_home(self: &Rc<Self>, link: &Link) {
        if let Some(own) = self.config.own.as_ref().filter(|own| **own != link.endpoint)
            && self.is_used(link)
            && let Ok((client, status)) = self.try_member(own).await
            && self.is_used(link)
        {
            self.use_member(own, client, &status);
        }
    }

    /// Asks `link` until `deadline`, or a second from now; leaves it if it cannot serve the
    /// request.
    pub(crate) async fn ask<T>(
        &self,
        link: &Link,
        deadline: Instant,
        request: impl Future<Output = Result<T, Error>>,
    ) -> Asked<T> {
        let begun = Instant::now();
        let deadline = deadline.max(begun + ATTEMPT_MIN);
        let name = &link.endpoint;
        let answered = match select(pin!(timeout_at(deadline, request)), pin!(link.over())).await {
            Either::Left((Ok(answered), _)) => answered.map_err(|e| meaning(&e)),
            Either::Left((Err(_), _)) => {
                let span = begun.elapsed().as_secs_f32();
                Err(Meaning::Lost(format!("{name} gave no answer in {span:.1} s")))
            }
            Either::Right(_) => Err(Meaning::Lost(format!("{name} was left"))),
        };
        self.took(begun.elapsed());
        answered.inspect_err(|meaning| {
            if let Meaning::Lost(why) = meaning {
                self.leave(link, why);
            }
        })
    }

    /// The revision below which an answer to a request that begins now is too old.
    pub(crate) fn seen(&self) -> Revision {
        self.seen.get()
    }

    /// Takes note of an answer to a request that began when `seen` had been seen.
    ///
    /// # Errors
    /// It is older than that: the directory, or this member of it, went back.
    pub(crate) fn note(
        &self,
        link: &Link,
        seen: Revision,
        header: Option<&ResponseHeader>,
    ) -> Result<Revision, String> {
        let header = header.ok_or("an answer without a revision")?;
        let revision = Revision(header.revision().unsigned_abs());
        let trouble = if self.etcd.get() != Some(header.cluster_id()) {
            format!("an answer of another etcd ({:x})", header.cluster_id())
        } else if revision < seen {
            format!(
                "etcd went back from revision {} to {}: this member has lost changes, or etcd was \
                 restored from an older copy",
                seen.0, revision.0
            )
        } else {
            self.seen.set(self.seen.get().max(revision));
            return Ok(revision);
        };
        self.leave(link, &trouble);
        Err(trouble)
    }

    fn took(&self, span: Duration) {
        let (mut now, mut before, mut since) = self.slowest.get();
        if since.elapsed() > SLOWEST_FOR {
            (before, now, since) = (now, Duration::ZERO, Instant::now());
        }
        now = now.max(span);
        self.slowest.set((now, before, since));
    }

    /// How long the slowest request of the last one or two minutes took.
    pub(crate) fn slowest(&self) -> Duration {
        self.took(Duration::ZERO);
        let (now, before, _) = self.slowest.get();
        now.max(before)
    }
}

/// Whether a member of that etcd and release may be used by who uses `ours`, if any.
fn check(ours: Option<u64>, its: Option<u64>, release: &str) -> Result<(), String> {
    if Version::parse(release).is_some_and(|v| v.verdict() == Verdict::Refused) {
        return Err(format!(
            "is etcd {release}, whose members may hold different data; {} or newer is needed, \
             {RECOMMENDED} is recommended",
            floor()
        ));
    }
    match (ours, its) {
        (Some(ours), its) if its != Some(ours) => Err(format!(
            "belongs to another etcd ({:x}) than the one that this host uses ({ours:x})",
            its.unwrap_or_default()
        )),
        _ => Ok(()),
    }
}

/// How a search says that a member knows no leader.
const NO_LEADER: &str = "knows no leader";

/// Looks at the member that is used, until it is left or nobody uses the directory any more.
async fn look_after(members: Weak<Members>, link: Rc<Link>, closed: impl Future<Output = ()>) {
    let mut closed = pin!(closed);
    let mut without_leader = false;
    loop {
        if let Either::Right(_) = select(pin!(sleep(LOOK_EVERY)), &mut closed).await {
            return;
        }
        // It was left; or another one is used, and what was begun here has ended.
        if link.left.get() || Rc::strong_count(&link) == 1 {
            return;
        }
        let mut client = link.client();
        let looked = timeout(LOOK_DEADLINE, client.status()).await;
        let Some(members) = members.upgrade() else { return };
        let trouble = match looked {
            Err(_) => Some(format!("it does not answer ({} s)", LOOK_DEADLINE.as_secs())),
            Ok(Err(error)) => Some(words(&error)),
            Ok(Ok(status)) => {
                let had_none = std::mem::replace(&mut without_leader, status.leader() == 0);
                let lost = had_none && without_leader;
                members.check(&status).err().or(lost.then(|| NO_LEADER.to_owned()))
            }
        };
        match trouble {
            Some(why) => return members.leave(&link, &why),
            None => members.go_home(&link).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn a_release_below_the_floor_and_a_foreign_member_are_refused_in_words() {
        assert_eq!(check(None, Some(7), "3.4.22"), Ok(()));
        assert_eq!(check(Some(7), Some(7), "3.7.1"), Ok(()));
        let old = check(Some(7), Some(7), "3.4.21").unwrap_err();
        assert!(old.contains("etcd 3.4.21") && old.contains("3.4.22 or newer is needed"), "{old}");
        for its in [Some(0xab), None] {
            let foreign = check(Some(7), its, "3.6.9").unwrap_err();
            assert!(foreign.contains("another etcd") && foreign.contains("(7)"), "{foreign}");
        }
    }
}

//! The REST server: the only management surface. It reads requests strictly, asks a [`Control`],
//! and wraps the answers.
//!
//! Invariants: what it routes is exactly the table of operations ([`Op::ALL`]) and of pages for
//! machines ([`PAGES`](atoll_api::routes::PAGES)); the table says who may ask for it, and who does
//! it; every error, also of a request that is not HTTP, is `problem+json`; no request makes
//! it hold more than [`limits`] says; a client that goes away leaves nothing behind.
//!
//! Who asks is known by the way that he came: a Unix socket's permissions protect it, over TLS a
//! token says it (`door`).
//!
//! Absent here: every decision about volumes.

mod cursor;
pub mod door;
mod failures;
mod guard;
mod idempotency;
pub mod listen;
mod record;
mod request;

use crate::control::{Caller, Control, EventMarks, EventsRead, JoinMade, Scope, Told};
use crate::metrics;
use atoll_api::envelope::{Item, List, Missing, Named};
use atoll_api::limits;
use atoll_api::routes::{Op, Page};
use atoll_api::types::{
    ClusterPatch, GroupCreate, HostJoin, JoinTokenCreate, JoinTokenMade, Policy,
    PolicyCheckRequest, ResyncPatch, ScrubStart, TokenCreate, TokenMade, Volume, VolumeCreate,
    VolumePatch, VolumeResize,
};
use atoll_api::{Code, Problem, name};
use atoll_format::units::check_object_size;
use atoll_trust::{JoinToken, TokenSecret};
use door::{Access, Door, Shown};
use failures::Failures;
use http_body_util::channel::Channel;
use http_body_util::{Either, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::{Request, Response, StatusCode};
use idempotency::{Begin, Keys};
use record::Record;
use request::{Parsed, Target};
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

/// A whole reply, or one that goes on.
pub type Body = Either<Full<Bytes>, Channel<Bytes, Infallible>>;

/// How often a followed event stream looks for new events.
const FOLLOW_EVERY: Duration = Duration::from_millis(500);
/// How often an idle stream shows that it is alive.
const FOLLOW_BEAT: u32 = 30;

/// The server's state, shared by its connections.
pub struct Rest<C> {
    control: C,
    access: Access,
    keys: Keys,
    failures: Mutex<Failures>,
    calls: Semaphore,
    followers: Arc<Semaphore>,
    stop: watch::Receiver<bool>,
    openapi: Bytes,
}

impl<C: Control> Rest<C> {
    /// A server in front of `control`; its event streams end when `stop` becomes true.
    pub fn new(control: C, access: Access, stop: watch::Receiver<bool>) -> Self {
        let document = atoll_api::openapi::document(env!("CARGO_PKG_VERSION"));
        Self {
            control,
            access,
            keys: Keys::default(),
            failures: Mutex::default(),
            calls: Semaphore::new(limits::CALLS_MAX),
            followers: Arc::new(Semaphore::new(limits::FOLLOWERS_MAX)),
            stop,
            openapi: Bytes::from(document.to_string()),
        }
    }

    /// The answer to one request.
    pub async fn answer(&self, door: Door, request: Request<Incoming>) -> Response<Body> {
        let method = request.method().clone();
        let path = request.uri().path().to_owned();
        let mut record = Record::new(&self.control);
        let answer = self.try_answer(door, request, &mut record).await;
        let problem = answer.as_ref().err().cloned();
        let reply = answer.unwrap_or_else(|problem| refuse(&problem));
        record.end(reply.status().as_u16(), problem.as_ref()).await;
        tracing::debug!(%method, path, status = reply.status().as_u16(), "request");
        reply
    }

    async fn try_answer(
        &self,
        door: Door,
        request: Request<Incoming>,
        record: &mut Record<C>,
    ) -> Result<Response<Body>, Problem> {
        let target = request::target(&request);
        door::check(door, &self.access, &request)?;
        let mut token = None;
        if let Some(needed) = request::role(&target, &request) {
            let caller = match door::shown(door, &self.access, request.headers())? {
                Shown::Way(caller) => caller,
                Shown::Token(secret, from) => {
                    let caller = self.caller(&secret, from).await?;
                    token = Some(secret);
                    caller
                }
                Shown::Nothing => return Err(no_token("no token was sent")),
                Shown::NoToken(from) => {
                    self.admit(from)?;
                    let problem = no_token("what was sent is no token of this program");
                    self.failed(from, &problem).await;
                    return Err(problem);
                }
            };
            let permitted = door::permit(&caller, needed, &self.access);
            if let Ok(Target::Operation(op, _)) = &target
                && (op.route().is_change() || permitted.is_err())
            {
                record.begin(door, &caller, *op, request.uri());
            }
            permitted?;
        }
        request::check_head(&request)?;
        let _call = self.calls.try_acquire().map_err(|_| {
            Problem::new(Code::TooMany, format!("{} calls are running", limits::CALLS_MAX))
                .hint("try again in a second")
        })?;
        match target? {
            Target::Operation(op, params) => {
                let parsed = request::parse(op, params, request).await?;
                record.body(&parsed.bytes);
                let call = self.dispatch(&parsed, token);
                // The engine goes on with what it has begun; only the answer is given up.
                tokio::time::timeout(limits::CALL_TIMEOUT, call).await.unwrap_or_else(|_| {
                    Err(Problem::new(
                        Code::TimedOut,
                        format!("no answer within {} s", limits::CALL_TIMEOUT.as_secs()),
                    )
                    .hint("what was asked for may still be done: look before trying again"))
                })
            }
            Target::Page(Page::OpenApi) => Ok(whole("application/json", self.openapi.clone())),
            Target::Page(Page::Healthz) => Ok(whole("text/plain", Bytes::from_static(b"alive\n"))),
            Target::Page(Page::Readyz) => match self.control.ready().await {
                Ok(()) => Ok(whole("text/plain", Bytes::from_static(b"ready\n"))),
                Err(why) => Err(Problem::new(Code::Unavailable, why).hint("atoll status")),
            },
            Target::Page(Page::Metrics) => {
                let page = metrics::page(&self.control.metrics().await?);
                Ok(whole("text/plain; version=0.0.4; charset=utf-8", Bytes::from(page)))
            }
        }
    }

    /// Whose token that is; one that is no good counts against the address.
    async fn caller(&self, secret: &TokenSecret, from: IpAddr) -> Result<Caller, Problem> {
        self.admit(from)?;
        let caller = self.control.caller(secret.sha256()).await;
        if let Err(problem) = &caller
            && problem.code == Code::NotAuthenticated
        {
            self.failed(from, problem).await;
        }
        caller
    }

    /// Whether that address is to be listened to.
    fn admit(&self, from: IpAddr) -> Result<(), Problem> {
        let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.admit(from, Instant::now()).map_err(|wait| {
            let detail = format!("{from} has shown too many tokens that are no good");
            let seconds = wait.as_secs() + 1;
            Problem::new(Code::TooMany, detail)
                .hint(format!("with a good token, try again in {seconds} s"))
        })
    }

    /// That address has shown a token that is no good.
    async fn failed(&self, from: IpAddr, problem: &Problem) {
        let tell = {
            let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
            failures.note(from, Instant::now())
        };
        tracing::debug!(%from, "refused: {}", problem.detail);
        if tell {
            let why = &problem.detail;
            self.control.refused(format!("requests from {from} are refused: {why}")).await;
        }
    }

    async fn dispatch(
        &self,
        asked: &Parsed,
        token: Option<TokenSecret>,
    ) -> Result<Response<Body>, Problem> {
        let control = &self.control;
        let (scope, change) = (asked.scope.clone(), asked.change);
        match asked.op {
            Op::StatusShow => self.told(control.status(scope).await?),
            Op::ClusterShow => self.item(control.cluster().await?),
            Op::ClusterPatch => {
                let patch: ClusterPatch = asked.body()?;
                if patch.promised_limit_percent.is_none() {
                    return Err(Problem::new(Code::BadValue, "the body changes nothing")
                        .hint("accepted: promised_limit_percent")
                        .field("promised_limit_percent"));
                }
                self.item(control.cluster_patch(patch, change).await?)
            }
            Op::UpgradeShow => self.item(control.upgrade().await?),
            Op::ClusterUpgrade => self.item(control.cluster_upgrade(change).await?),
            Op::HealthShow => self.told(control.health(scope).await?),
            Op::HostList => self.list(asked, control.hosts(scope).await?, |h| h.name.clone()),
            Op::HostShow => {
                let host = asked.param(0);
                let all = control.hosts(scope).await?;
                self.one(all, "host", host, |h| h.name == host || h.id == host)
            }
            Op::HostJoin => {
                let request: HostJoin = asked.body()?;
                self.item(control.host_join(request, token, change).await?)
            }
            Op::HostRemove => {
                let lost = asked.flag("lost")?;
                self.item(control.host_remove(asked.param(0), lost, change).await?)
            }
            Op::DiskList => {
                let disks = control.disks(scope).await?;
                self.list(asked, Told::whole(disks), |disk| disk.path.clone())
            }
            Op::DiskWipe => {
                let request = asked.body()?;
                self.item(control.disk_wipe(scope, request, change).await?)
            }
            Op::GroupList => {
                self.list(asked, control.groups(scope).await?, |g| format!("{} {}", g.host, g.id))
            }
            Op::GroupShow => {
                let group = asked.param(0);
                self.one(control.groups(scope).await?, "group", group, |g| g.id == group)
            }
            Op::GroupCreate => {
                let request: GroupCreate = asked.body()?;
                if request.disks.is_empty() {
                    return Err(Problem::new(Code::BadValue, "disks must name at least one disk")
                        .field("disks"));
                }
                self.item(control.group_create(scope, request, change).await?)
            }
            Op::PolicyList => {
                let policies = control.policies().await?;
                self.list(asked, Told::whole(policies), |policy| policy.name.clone())
            }
            Op::PolicyShow => {
                let wanted = asked.param(0);
                let found = control.policies().await?.into_iter().find(|p| p.name == wanted);
                self.item(found.ok_or_else(|| Problem::not_found("policy", wanted))?)
            }
            Op::PolicyCreate => {
                let policy: Policy = asked.body()?;
                check_name("policy", "name", &policy.name)?;
                self.item(control.policy_create(policy, change).await?)
            }
            Op::PolicyDelete => {
                control.policy_delete(asked.param(0), change).await.map(|()| nothing())
            }
            Op::PolicyCheck => {
                let request: PolicyCheckRequest = asked.body()?;
                check_size(request.size_bytes)?;
                self.item(control.policy_check(asked.param(0), request.size_bytes).await?)
            }
            Op::VolumeList => {
                self.list(asked, control.volumes(scope).await?, |volume| volume.name.clone())
            }
            Op::VolumeShow => self.told_volume(control.volume(asked.param(0), scope).await?),
            Op::VolumeCreate => self.volume_create(asked).await,
            Op::VolumePatch => {
                let patch: VolumePatch = asked.body()?;
                self.volume_patch(asked, patch).await
            }
            Op::VolumeResize => {
                let VolumeResize { size_bytes, shrink } = asked.body()?;
                let patch = VolumePatch { size_bytes: Some(size_bytes), shrink, iops_limit: None };
                self.volume_patch(asked, patch).await
            }
            Op::VolumeDelete => {
                control.volume_delete(asked.param(0), change).await.map(|()| nothing())
            }
            Op::VolumeLock => {
                let request = asked.body()?;
                self.item(control.volume_lock(asked.param(0), request, change).await?)
            }
            Op::VolumeUnlock => {
                let token = asked.query("token").unwrap_or_default();
                let digits = token.len() == 16 && token.bytes().all(|b| b.is_ascii_hexdigit());
                let token = u64::from_str_radix(token, 16).ok().filter(|_| digits);
                let bad = || {
                    Problem::new(Code::BadValue, "token is not 16 hexadecimal digits")
                        .field("token")
                };
                let token = token.ok_or_else(bad)?;
                control.volume_unlock(asked.param(0), token, change).await.map(|()| nothing())
            }
            Op::VolumePlacement => self.item(control.placement(asked.param(0)).await?),
            Op::ResyncShow => self.told(control.resync(scope).await?),
            Op::ResyncPatch => {
                let patch: ResyncPatch = asked.body()?;
                self.told(control.resync_patch(patch, change).await?)
            }
            Op::ScrubList => self.list(asked, control.scrubs(scope).await?, |s| s.group.clone()),
            Op::ScrubStart => {
                let request: ScrubStart = asked.body()?;
                let started = control.scrub_start(request, scope, change).await?;
                self.list(asked, started, |scrub| scrub.group.clone())
            }
            Op::ScrubStop => {
                let stopped = control.scrub_stop(asked.query("group"), scope, change).await?;
                self.list(asked, stopped, |scrub| scrub.group.clone())
            }
            Op::TaskList => self.list(asked, control.tasks(scope).await?, |t| t.id.clone()),
            Op::TaskShow => {
                let wanted = asked.param(0);
                self.one(control.tasks(scope).await?, "task", wanted, |t| t.id == wanted)
            }
            Op::EventList => {
                let read = asked.query("cursor").map(cursor::read_position).transpose()?;
                let since = asked.number("since")?;
                if asked.flag("follow")? {
                    return self.follow(scope, since, read, token);
                }
                let (since, limit) = (since.unwrap_or(0), page_limit(asked)?);
                let read = read.unwrap_or_default();
                let Told { what, missing } = control.events(scope, since, read, limit).await?;
                let position = cursor::make_position(&what.read());
                let events = what.events.into_iter().map(|(event, ..)| event).collect();
                let next = what.more.then(|| position.clone());
                let list = List::new(events, next, control.unix_ms()).without(missing);
                json(&List { position: Some(position), ..list })
            }
            Op::SessionList => {
                let sessions = control.sessions(scope, asked.query("volume")).await?;
                self.list(asked, sessions, |s| {
                    format!("{} {} {} {:020}", s.volume, s.host, s.peer, s.id)
                })
            }
            Op::ProfileList => self.list(asked, control.profiles(scope).await?, |p| p.host.clone()),
            Op::TokenList => {
                let tokens = control.tokens().await?;
                self.list(asked, Told::whole(tokens), |token| token.name.clone())
            }
            Op::TokenCreate => {
                let request: TokenCreate = asked.body()?;
                check_name("token", "name", &request.name)?;
                let secret = new_secret()?;
                let token = control.token_create(request, secret.sha256(), change).await?;
                let secret = (!change.dry_run).then(|| secret.reveal().to_owned());
                self.item(TokenMade { token, secret })
            }
            Op::JoinTokenCreate => {
                let request: JoinTokenCreate = asked.body()?;
                if let Some(name) = &request.name {
                    check_name("token", "name", name)?;
                }
                let secret = new_secret()?;
                let made = control.join_token_create(request, secret.sha256(), change).await?;
                let JoinMade { token, addresses, cluster, authority_sha256 } = made;
                let shown = addresses.clone();
                let secret = JoinToken { secret, cluster, authority_sha256, addresses };
                let secret = (!change.dry_run).then(|| secret.reveal());
                self.item(JoinTokenMade { token, addresses: shown, secret })
            }
            Op::TokenRemove => {
                control.token_remove(asked.param(0), change).await.map(|()| nothing())
            }
            Op::AuditList => self.list(asked, control.audit(scope).await?, |entry| {
                format!("{} {} {:020}", entry.at, entry.host, entry.number)
            }),
        }
    }

    async fn volume_create(&self, asked: &Parsed) -> Result<Response<Body>, Problem> {
        let request: VolumeCreate = asked.body()?;
        check_name("volume", "name", &request.name)?;
        check_size(request.size_bytes)?;
        if let Some(policy) = &request.policy {
            check_name("policy", "policy", policy)?;
        }
        let Some(key) = asked.idempotency_key.as_deref().filter(|_| !asked.change.dry_run) else {
            return self.volume(self.control.volume_create(request, asked.change).await?);
        };
        match self.keys.begin(key, &asked.bytes)? {
            Begin::Known(volume) => self.volume(*volume),
            Begin::New(slot) => {
                let (control, change) = (self.control.clone(), asked.change);
                // To its end, whoever listens: a client that has given up comes back with its key.
                let made = tokio::spawn(async move {
                    let volume = control.volume_create(request, change).await?;
                    slot.finish(volume.clone());
                    Ok(volume)
                });
                let failed = |e| Problem::new(Code::Failed, format!("creating it ended: {e}"));
                self.volume(made.await.map_err(failed)??)
            }
        }
    }

    async fn volume_patch(
        &self,
        asked: &Parsed,
        patch: VolumePatch,
    ) -> Result<Response<Body>, Problem> {
        if let Some(size) = patch.size_bytes {
            check_size(size)?;
        }
        if patch.size_bytes.is_none() && patch.iops_limit.is_none() {
            return Err(Problem::new(Code::BadValue, "the body changes nothing")
                .hint("accepted: size_bytes, iops_limit")
                .field("size_bytes"));
        }
        let (scope, change) = (asked.scope.clone(), asked.change);
        self.told_volume(self.control.volume_patch(asked.param(0), patch, scope, change).await?)
    }

    fn item<T: Named + serde::Serialize>(&self, item: T) -> Result<Response<Body>, Problem> {
        json(&Item::new(item, self.control.unix_ms()))
    }

    /// One thing that was collected.
    fn told<T: Named + serde::Serialize>(&self, told: Told<T>) -> Result<Response<Body>, Problem> {
        json(&Item::new(told.what, self.control.unix_ms()).without(told.missing))
    }

    /// One thing of all that were collected.
    fn one<T: Named + serde::Serialize>(
        &self,
        all: Told<Vec<T>>,
        what: &'static str,
        name: &str,
        is_it: impl Fn(&T) -> bool,
    ) -> Result<Response<Body>, Problem> {
        let Told { what: all, missing } = all;
        match all.into_iter().find(is_it) {
            Some(found) => self.told(Told { what: found, missing }),
            None if missing.is_empty() => Err(Problem::not_found(what, name)),
            None => {
                let silent: Vec<String> = missing.iter().map(Missing::to_string).collect();
                let hint =
                    format!("it may be one of a host that does not tell: {}", silent.join(", "));
                Err(Problem::not_found(what, name).hint(hint))
            }
        }
    }

    fn volume(&self, volume: Volume) -> Result<Response<Body>, Problem> {
        self.told_volume(Told::whole(volume))
    }

    fn told_volume(&self, volume: Told<Volume>) -> Result<Response<Body>, Problem> {
        let tag = format!("\"{}\"", volume.what.revision);
        let mut reply = self.told(volume)?;
        let tag = HeaderValue::from_str(&tag).expect("digits in quotes");
        reply.headers_mut().insert(header::ETAG, tag);
        Ok(reply)
    }

    /// One page, in the order of `key`, which is unique and also the cursor.
    fn list<T: Named + serde::Serialize>(
        &self,
        asked: &Parsed,
        told: Told<Vec<T>>,
        key: impl Fn(&T) -> String,
    ) -> Result<Response<Body>, Problem> {
        let limit = page_limit(asked)?;
        let Told { what: mut items, missing } = told;
        items.sort_by_cached_key(&key);
        if let Some(cursor) = asked.query("cursor") {
            let last = cursor::read(asked, cursor)?;
            items.retain(|item| key(item) > last);
        }
        let more = items.len() > limit;
        items.truncate(limit);
        let next = items.last().filter(|_| more).map(|last| cursor::make(asked, &key(last)));
        json(&List::new(items, next, self.control.unix_ms()).without(missing))
    }

    /// Server-sent events until the client goes away or the server stops; the `id` of each is the
    /// position after it. Whose token is removed, or expires, follows no longer.
    fn follow(
        &self,
        scope: Scope,
        since: Option<u64>,
        read: Option<EventMarks>,
        token: Option<TokenSecret>,
    ) -> Result<Response<Body>, Problem> {
        let permit = self.followers.clone().try_acquire_owned().map_err(|_| {
            let detail = format!("{} followers already", limits::FOLLOWERS_MAX);
            Problem::new(Code::TooMany, detail)
        })?;
        let control = self.control.clone();
        let mut stop = self.stop.clone();
        // With a position, all of a host that has joined since is new.
        let now = || if read.is_some() { 0 } else { control.unix_ms() * 1_000 };
        let begin = since.unwrap_or_else(now);
        let (mut sender, channel) = Channel::new(16);
        let follow = async move {
            let mut read = read.unwrap_or_default();
            let mut without: Vec<Missing> = Vec::new();
            let sha256 = token.map(|token| token.sha256());
            for round in 0u32.. {
                if let Some(sha256) = &sha256
                    && let Err(problem) = control.caller(sha256.clone()).await
                    && problem.code == Code::NotAuthenticated
                {
                    return;
                }
                // A round without an answer is followed by another.
                let told =
                    control.events(scope.clone(), begin, read.clone(), limits::PAGE_DEFAULT).await;
                let (events, more, missing) = match told {
                    Ok(Told { what: EventsRead { events, begun, more }, missing }) => {
                        read = begun;
                        (events, more, missing)
                    }
                    Err(_) => (Vec::new(), false, without.clone()),
                };
                if missing != without {
                    let text = serde_json::to_string(&missing).expect("names are text");
                    without = missing;
                    let text = Bytes::from(format!(": missing {text}\n\n"));
                    if sender.send_data(text).await.is_err() {
                        return;
                    }
                }
                // One that has more and tells nothing is asked no faster than the others.
                let goes_on = more && !events.is_empty();
                for (event, host, mark) in events {
                    read.insert(host, mark);
                    let data = serde_json::to_string(&event).expect("events have string keys");
                    let text = format!("id: {}\ndata: {data}\n\n", cursor::make_position(&read));
                    if sender.send_data(Bytes::from(text)).await.is_err() {
                        return;
                    }
                }
                if round % FOLLOW_BEAT == 0
                    && sender.send_data(Bytes::from_static(b": alive\n\n")).await.is_err()
                {
                    return;
                }
                if !goes_on {
                    tokio::time::sleep(FOLLOW_EVERY).await;
                }
            }
        };
        // Ends when the client goes away (within a beat) or the server stops.
        tokio::spawn(async move {
            let _permit = permit;
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => {}
                () = follow => {}
            }
        });
        let mut reply = Response::new(Either::Right(channel));
        set(&mut reply, header::CONTENT_TYPE, "text/event-stream");
        set(&mut reply, header::CACHE_CONTROL, "no-store");
        Ok(reply)
    }
}

/// Items of one page.
fn page_limit(asked: &Parsed) -> Result<usize, Problem> {
    match asked.number("limit")? {
        None => Ok(limits::PAGE_DEFAULT),
        Some(limit @ 1..=1_000) => Ok(limit as usize),
        Some(other) => {
            let detail = format!("limit is {other}, and must be 1 to {}", limits::PAGE_MAX);
            Err(Problem::new(Code::BadValue, detail).field("limit"))
        }
    }
}

/// Nobody has said who he is.
fn no_token(why: &str) -> Problem {
    let detail = format!("{why}: over TLS, every request needs one");
    Problem::new(Code::NotAuthenticated, detail).hint(
        "send 'Authorization: Bearer TOKEN' (atoll: ATOLL_TOKEN, --token-file); 'atoll token \
         create', on a host, makes one",
    )
}

/// Of a token that is made.
fn new_secret() -> Result<TokenSecret, Problem> {
    TokenSecret::generate().map_err(|e| Problem::new(Code::Failed, e.to_string()))
}

fn check_name(what: &str, field: &str, text: &str) -> Result<(), Problem> {
    name::check(what, text).map_err(|why| Problem::new(Code::BadName, why).field(field))
}

/// Whether a volume may have that size.
fn check_size(bytes: u64) -> Result<(), Problem> {
    check_object_size(bytes).map_err(|(why, near)| {
        let problem = Problem::new(Code::BadSize, format!("size_bytes {why}")).field("size_bytes");
        match near {
            Some(near) => problem.hint(format!("the next one is {near}")),
            None => problem,
        }
    })
}

fn json<T: serde::Serialize>(value: &T) -> Result<Response<Body>, Problem> {
    let text = serde_json::to_vec(value)
        .map_err(|e| Problem::new(Code::Failed, format!("the answer is not JSON: {e}")))?;
    Ok(whole("application/json", Bytes::from(text)))
}

fn whole(content_type: &'static str, bytes: Bytes) -> Response<Body> {
    let mut reply = Response::new(Either::Left(Full::new(bytes)));
    set(&mut reply, header::CONTENT_TYPE, content_type);
    set(&mut reply, header::CACHE_CONTROL, "no-store");
    set(&mut reply, header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    reply
}

fn nothing() -> Response<Body> {
    let mut reply = Response::new(Either::Left(Full::new(Bytes::new())));
    *reply.status_mut() = StatusCode::NO_CONTENT;
    reply
}

fn set(reply: &mut Response<Body>, name: header::HeaderName, value: &'static str) {
    reply.headers_mut().insert(name, HeaderValue::from_static(value));
}

/// A problem as a reply.
fn refuse(problem: &Problem) -> Response<Body> {
    let text = serde_json::to_vec(problem).expect("a problem has string keys");
    let mut reply = whole("application/problem+json", Bytes::from(text));
    *reply.status_mut() =
        StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if problem.code == Code::NoMethod
        && let Some(allowed) = problem.field.as_deref().and_then(|a| HeaderValue::from_str(a).ok())
    {
        reply.headers_mut().insert(header::ALLOW, allowed);
    }
    if problem.code == Code::NotAuthenticated {
        set(&mut reply, header::WWW_AUTHENTICATE, "Bearer realm=\"atoll\"");
    }
    // The rest of a body that was refused unread must not be taken for the next request.
    if matches!(
        problem.code,
        Code::BodyTooLarge
            | Code::BadRequest
            | Code::SlowClient
            | Code::ForeignOrigin
            | Code::NotAuthenticated
            | Code::NotPermitted
            | Code::TooMany
    ) {
        set(&mut reply, header::CONNECTION, "close");
    }
    reply
}

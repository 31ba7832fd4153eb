//! What hosts ask each other, over the peers' connections: to tell what only one of them knows (its
//! disks, its clients, its load), and to change what only one can change (its disks, its scrubs).
//!
//! Invariants: a host that is asked answers by itself and asks nobody further; what it tells is a
//! list, in pages that fit into a message; a request that its release does not know changes
//! nothing, and who asked hears that this is why.

use super::Engine;
use super::admin::SILENT;
use atoll_api::types::{DiskWipeRequest, GroupCreate};
use atoll_api::{Code, Problem};
use atoll_format::frame::BODY_MAX;
use atoll_format::id::HostId;
use atoll_node::{CallError, Manager};
use atoll_world::{Nanos, World};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;
use std::net::IpAddr;
use std::rc::{Rc, Weak};

/// How long another host may take to do something.
const DO_WAIT: Nanos = Nanos::from_secs(100);
/// How long another host may take to tell what it knows, all of it.
const TELL_WAIT: Nanos = Nanos::from_secs(2);
/// Bytes of items in one page, unless one item alone is larger.
const PAGE_BYTES: usize = 256 << 10;

// The page is text in the text of the answer: each of its bytes becomes two at most.
const _: () = assert!(4 * PAGE_BYTES <= BODY_MAX as usize);

/// What a host is asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "do")]
pub enum HostRequest {
    /// Makes a disk group of its disks: [`Group`](atoll_api::types::Group).
    GroupCreate { request: GroupCreate, dry_run: bool },
    /// Erases one of its disks: [`DiskWipe`](atoll_api::types::DiskWipe).
    DiskWipe { request: DiskWipeRequest, dry_run: bool },
    /// Starts (with rate 0: stops) a scrub of one of its disk groups.
    Scrub { group: String, rate: Option<u64> },
    /// Signs for a machine that joins by that token, if it keeps the authority:
    /// [`Admitted`].
    Admit {
        secret: Secret,
        name: String,
        request: String,
        #[serde(default)]
        addresses: Vec<IpAddr>,
    },
    /// Signs a new certificate of the host that asks, with those addresses, if it keeps the
    /// authority: PEM.
    Certify {
        request: String,
        #[serde(default)]
        addresses: Vec<IpAddr>,
    },
    /// Tells what only it knows, from behind the item with that key on: [`Page`].
    Tell { question: Question, after: Option<String> },
}

/// A secret on its way between hosts.
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    pub fn of(text: &str) -> Self {
        Self(text.to_owned())
    }

    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    /// Without it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// A new host.
#[derive(Debug, Serialize, Deserialize)]
pub struct Admitted {
    /// Its id.
    pub host: HostId,
    /// PEM.
    pub certificate: String,
}

/// What only one host knows: each a list, which may be told by several of its parts one after the
/// other.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "of")]
pub enum Question {
    /// Load and clients of the volumes in use on it: [`VolumeUse`](super::meter::VolumeUse).
    VolumeUse,
    /// Its own checks that did not pass: [`HealthCheck`](atoll_api::types::HealthCheck).
    Checks,
    /// The disks that it is configured to use: [`Disk`](atoll_api::types::Disk).
    Disks,
    /// The scrubs of its disk groups: [`Scrub`](atoll_api::types::Scrub).
    Scrubs,
    /// Its clients, of one volume if one is named: [`Session`](atoll_api::types::Session).
    Sessions { volume: Option<String> },
    /// How long its I/O takes: [`Profile`](atoll_api::types::Profile).
    Profiles,
    /// How its connections are protected: [`Protection`](crate::trust::Protection).
    Protection,
    /// What was written down on it: [`AuditEntry`](atoll_api::types::AuditEntry).
    Audit,
    /// The cluster of the authority that it keeps; nothing: it keeps none.
    Authority,
    /// Where others would reach its member of etcd, a URL; nothing: it runs none.
    EtcdMember,
}

/// The host that does something; name and release are for messages.
pub struct Doer {
    pub id: HostId,
    pub name: String,
    pub release: String,
}

/// A part of a list.
#[derive(PartialEq, Debug, Default, Serialize, Deserialize)]
struct Page {
    items: Vec<Value>,
    /// The key of the last one, if there are more.
    next: Option<String>,
}

/// What came of it, as JSON.
type Done = Result<Value, Problem>;

/// Why a host that was asked does not answer, or not as it should.
#[derive(Debug)]
pub enum Unanswered {
    /// No answer came.
    Call(CallError),
    /// Its release does not know the request.
    Unknown,
    /// What it says cannot be read.
    Odd(serde_json::Error),
    /// It says why not.
    Refused(Problem),
}

impl Unanswered {
    /// Why that host does not tell what it knows: one clause.
    pub fn why(self, release: &str) -> String {
        match self {
            Self::Call(CallError::Refused(why)) => format!("does not tell: {why}"),
            Self::Call(_) => SILENT.into(),
            Self::Unknown => format!("is of release {release}, which does not know of it"),
            Self::Odd(error) => format!("answers oddly: {error}"),
            Self::Refused(problem) => format!("does not tell: {}", problem.detail),
        }
    }

    /// Why that host did not do what it was asked for, or may not have.
    fn problem(self, host: &str, release: &str) -> Problem {
        let undone = |why: String| {
            Problem::new(Code::Unavailable, format!("host {host} did not do it: {why}"))
        };
        match self {
            Self::Call(CallError::Unreachable | CallError::TooLarge) => Problem::new(
                Code::Unavailable,
                format!("host {host} cannot be reached; nothing was done"),
            )
            .hint("atoll host list"),
            Self::Call(CallError::Refused(why)) => undone(why),
            Self::Call(error @ (CallError::Disconnected | CallError::Deadline)) => {
                Problem::new(Code::TimedOut, format!("host {host} did not answer: {error}")).hint(
                    format!("it may still be done: look first (atoll disk list --host {host})"),
                )
            }
            Self::Unknown => undone(format!("its release {release} does not know of it")),
            Self::Odd(error) => {
                Problem::new(Code::Failed, format!("host {host} answered oddly: {error}"))
            }
            Self::Refused(problem) => problem,
        }
    }
}

impl Engine {
    /// Answers what other hosts ask; knows the engine only as long as it lives.
    pub(super) fn manager(self: &Rc<Self>) -> Manager {
        let engine = Rc::downgrade(self);
        Rc::new(move |from, request| {
            let engine = engine.clone();
            Box::pin(async move {
                let done = match read(&request) {
                    Ok(what) => answer(engine, from, what).await,
                    Err(problem) => Err(problem),
                };
                serde_json::to_string(&done).expect("answers have string keys")
            })
        })
    }

    /// Has a host do something.
    ///
    /// # Errors
    /// That host's own; [`Code::Unavailable`]: it was not done; [`Code::TimedOut`]: unknown.
    pub(super) async fn at<T: DeserializeOwned>(
        &self,
        doer: &Doer,
        what: &HostRequest,
    ) -> Result<T, Problem> {
        let done = self.ask(doer.id, what, DO_WAIT).await;
        done.map_err(|unanswered| unanswered.problem(&doer.name, &doer.release))
    }

    /// All that a host tells; another one has two seconds for it.
    pub(super) async fn told_by<T: DeserializeOwned>(
        &self,
        host: HostId,
        question: &Question,
    ) -> Result<Vec<T>, Unanswered> {
        let until = self.running().map_err(Unanswered::Refused)?.world.now() + TELL_WAIT;
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let left = until.since(self.running().map_err(Unanswered::Refused)?.world.now());
            if left == Nanos::ZERO {
                return Err(Unanswered::Call(CallError::Deadline));
            }
            let request = HostRequest::Tell { question: question.clone(), after };
            let page: Page = self.ask(host, &request, left).await?;
            for item in page.items {
                all.push(serde_json::from_value(item).map_err(Unanswered::Odd)?);
            }
            match page.next {
                Some(key) => after = Some(key),
                None => return Ok(all),
            }
        }
    }

    /// This host answers itself, at once and however long it takes.
    async fn ask<T: DeserializeOwned>(
        &self,
        host: HostId,
        what: &HostRequest,
        wait: Nanos,
    ) -> Result<T, Unanswered> {
        if host == self.host {
            let done = self.perform(self.host, what.clone()).await.map_err(Unanswered::Refused)?;
            return serde_json::from_value(done).map_err(Unanswered::Odd);
        }
        let request = serde_json::to_string(what).expect("requests have string keys");
        let node = &self.running().map_err(Unanswered::Refused)?.node;
        let reply = node.manage_at(host, request, wait).await.map_err(Unanswered::Call)?;
        read_answer(&reply)
    }

    /// Does what this host is asked, by itself or by another one.
    async fn perform(&self, from: HostId, what: HostRequest) -> Done {
        let done = match what {
            HostRequest::GroupCreate { request, dry_run } => {
                serde_json::to_value(self.group_create(request, dry_run).await?)
            }
            HostRequest::DiskWipe { request, dry_run } => {
                serde_json::to_value(self.disk_wipe(request, dry_run).await?)
            }
            HostRequest::Scrub { group, rate } => {
                self.scrub_group(&group, rate).await?;
                Ok(Value::Null)
            }
            HostRequest::Admit { secret, name, request, addresses } => {
                serde_json::to_value(self.admit(&secret, &name, &request, addresses).await?)
            }
            HostRequest::Certify { request, addresses } => {
                serde_json::to_value(self.certify(from, &request, addresses).await?)
            }
            HostRequest::Tell { question, after } => {
                serde_json::to_value(self.tell(question, after.as_deref()).await?)
            }
        };
        Ok(done.expect("types have string keys"))
    }

    /// What this host tells, from behind the item with that key on.
    async fn tell(&self, question: Question, after: Option<&str>) -> Result<Page, Problem> {
        Ok(match question {
            Question::VolumeUse => {
                page(self.figures().await?.in_use(), |u| u.volume.clone(), after)
            }
            Question::Checks => {
                let checks = self.local_checks().into_iter().chain(self.directory_lost());
                page(checks.collect(), |c| c.message.clone(), after)
            }
            Question::Disks => page(self.disks().await?, |disk| disk.path.clone(), after),
            Question::Scrubs => page(self.scrubs()?, |scrub| scrub.group.clone(), after),
            Question::Sessions { volume } => {
                page(self.sessions(volume.as_deref()).await?, |s| format!("{:020}", s.id), after)
            }
            Question::Profiles => page(vec![self.profile().await?], |p| p.host.clone(), after),
            Question::Protection => page(vec![self.protection()], |_| String::new(), after),
            Question::Audit => {
                let entries = self.audit.recent(&self.config.host_name);
                page(entries, |entry| format!("{:020}", entry.number), after)
            }
            Question::Authority => page(self.authority_kept().await?, String::clone, after),
            Question::EtcdMember => {
                page(self.own_member().into_iter().collect(), String::clone, after)
            }
        })
    }
}

/// The items behind that key, in the order of their keys, as many as fit into a message.
fn page<T: Serialize>(items: Vec<T>, key: impl Fn(&T) -> String, after: Option<&str>) -> Page {
    let keyed = items.into_iter().map(|item| (key(&item), item));
    let behind = keyed.filter(|(key, _)| after.is_none_or(|after| **key > *after));
    let mut keyed: Vec<(String, T)> = behind.collect();
    keyed.sort_by(|(a, _), (b, _)| a.cmp(b));
    let (mut page, mut bytes, mut last) = (Page::default(), 0, None);
    for (key, item) in keyed {
        let item = serde_json::to_value(item).expect("types have string keys");
        bytes += item.to_string().len();
        if bytes > PAGE_BYTES && last.is_some() {
            page.next = last;
            break;
        }
        page.items.push(item);
        last = Some(key);
    }
    page
}

/// A request; [`Code::WrongServer`] if this release does not know it, which who asked relies on.
fn read(request: &str) -> Result<HostRequest, Problem> {
    serde_json::from_str(request).map_err(|error| {
        Problem::new(Code::WrongServer, format!("the host does not understand it: {error}"))
    })
}

fn read_answer<T: DeserializeOwned>(reply: &str) -> Result<T, Unanswered> {
    let done: Done = serde_json::from_str(reply).map_err(Unanswered::Odd)?;
    match done {
        Ok(value) => serde_json::from_value(value).map_err(Unanswered::Odd),
        Err(problem) if problem.code == Code::WrongServer => Err(Unanswered::Unknown),
        Err(problem) => Err(Unanswered::Refused(problem)),
    }
}

async fn answer(engine: Weak<Engine>, from: HostId, what: HostRequest) -> Done {
    let stopping = || Problem::new(Code::Unavailable, "the host is stopping");
    engine.upgrade().ok_or_else(stopping)?.perform(from, what).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_api::routes::{Op, Place};
    use atoll_api::types::Session;
    use std::collections::BTreeSet;

    fn session(id: u64) -> Session {
        Session {
            id,
            volume: "v".repeat(200),
            host: "h".into(),
            protocol: "nbd".into(),
            peer: "\"\\".repeat(50),
            since: String::new(),
            reads: 0,
            writes: 0,
            in_flight: 0,
        }
    }

    #[test]
    fn a_long_list_is_told_in_pages_that_fit_into_a_message() {
        // Neither in the order of their keys nor of the ids as text.
        let mut sessions: Vec<Session> = (0..3_000).rev().map(session).collect();
        let key = |s: &Session| format!("{:020}", s.id);
        let (mut told, mut after, mut pages) = (Vec::new(), None::<String>, 0);
        loop {
            let part = page(sessions.clone(), key, after.as_deref());
            let done: Done = Ok(serde_json::to_value(&part).unwrap());
            let text = serde_json::to_string(&serde_json::to_string(&done).unwrap()).unwrap();
            assert!(text.len() < BODY_MAX as usize - 100, "{} bytes", text.len());
            told.extend(part.items);
            pages += 1;
            match part.next {
                Some(next) => after = Some(next),
                None => break,
            }
            // One goes that was told, and one that was not; nobody else is told twice or never.
            sessions.retain(|s| ![5, 2_900].contains(&s.id));
        }
        let ids: Vec<u64> = told.iter().map(|s| s["id"].as_u64().unwrap()).collect();
        assert_eq!(ids, (0..3_000).filter(|&id| id != 2_900).collect::<Vec<u64>>());
        assert!(pages > 3);
        let huge = vec!["x".repeat(2 * PAGE_BYTES), "y".into()];
        let first = page(huge, String::clone, None);
        assert_eq!((first.items.len(), first.next.is_some()), (1, true), "one is always told");
        assert_eq!(page(Vec::<String>::new(), String::clone, None), Page::default());
    }

    #[test]
    fn a_request_that_a_release_does_not_know_is_told_from_a_failure() {
        let of = |answer: Done| {
            let text = serde_json::to_string(&answer).unwrap();
            read_answer::<Value>(&text).unwrap_err()
        };
        let later = r#"{"do":"tell","question":{"of":"weather"},"after":null}"#;
        let unknown = || of(Err(read(later).unwrap_err()));
        assert_eq!(unknown().why("0.0.9"), "is of release 0.0.9, which does not know of it");
        let refused = unknown().problem("h", "0.0.9");
        assert_eq!(refused.code, Code::Unavailable);
        assert_eq!(refused.detail, "host h did not do it: its release 0.0.9 does not know of it");
        let starts = || of(Err(Problem::new(Code::Unavailable, "this host is starting")));
        assert_eq!(starts().why("0.0.9"), "does not tell: this host is starting");
        assert_eq!(starts().problem("h", "0.0.9").detail, "this host is starting");
        let odd = read_answer::<Page>("{\"Ok\":7}").unwrap_err();
        assert!(odd.why("1").starts_with("answers oddly: "));
        for error in [CallError::Unreachable, CallError::Disconnected, CallError::Deadline] {
            assert_eq!(Unanswered::Call(error).why("1"), SILENT);
        }
    }

    fn questions() -> [Question; 10] {
        [
            Question::VolumeUse,
            Question::Checks,
            Question::Disks,
            Question::Scrubs,
            Question::Sessions { volume: Some("v".into()) },
            Question::Profiles,
            Question::Protection,
            Question::Audit,
            Question::Authority,
            Question::EtcdMember,
        ]
    }

    /// Operations that another host does by such a request.
    fn operations(request: &HostRequest) -> &'static [Op] {
        match request {
            HostRequest::GroupCreate { .. } => &[Op::GroupCreate],
            HostRequest::DiskWipe { .. } => &[Op::DiskWipe],
            HostRequest::Scrub { .. } => &[Op::ScrubStart, Op::ScrubStop],
            HostRequest::Tell { question: Question::Disks, .. } => &[Op::DiskList],
            // A part of what all tell, or of what the one that is asked does.
            HostRequest::Tell { .. } | HostRequest::Admit { .. } | HostRequest::Certify { .. } => {
                &[]
            }
        }
    }

    #[test]
    fn hosts_ask_each_other_for_every_operation_that_the_table_gives_to_one_of_them() {
        let request = GroupCreate { host: None, disks: Vec::new() };
        let wipe = DiskWipeRequest { path: "/dev/a".into(), force: true };
        let mut requests = vec![
            HostRequest::GroupCreate { request, dry_run: false },
            HostRequest::DiskWipe { request: wipe, dry_run: false },
            HostRequest::Scrub { group: "g".into(), rate: None },
        ];
        let tell = |question| HostRequest::Tell { question, after: None };
        requests.extend(questions().map(tell));
        let asked: BTreeSet<Op> = requests.iter().flat_map(operations).copied().collect();
        let of_one = |op: &&Op| matches!(op.route().place, Place::Named(_) | Place::Holder(_));
        let given: BTreeSet<Op> = Op::ALL.iter().filter(of_one).copied().collect();
        assert_eq!(asked, given);
    }

    #[test]
    fn every_question_is_read_as_it_was_asked() {
        for question in questions() {
            let tell = HostRequest::Tell { question: question.clone(), after: Some("k".into()) };
            let HostRequest::Tell { question: read, after } =
                read(&serde_json::to_string(&tell).unwrap()).unwrap()
            else {
                panic!("another request");
            };
            assert_eq!((read, after.as_deref()), (question, Some("k")));
        }
    }
}

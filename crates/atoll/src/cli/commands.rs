//! Commands that are a request and its answer on the screen.

use super::args::Cli;
use super::args::{
    Audit, Cluster, Command, Completion, Disk, Events, Group, Host, Man, Policy, Prepare, Resync,
    Scrub, Session, Status, Support, Task, Token, Top, TopOf, Volume,
};
use super::context::Context;
use super::out::{Failure, Format, Out, Row, Run};
use super::{certificate, joining, profile, show};
use crate::config;
use crate::machine::facts;
use crate::machine::findings::{self, State};
use atoll_api::client::{Call, Followed};
use atoll_api::envelope::{List, Missing};
use atoll_api::routes::Op;
use atoll_api::types::{self, Level, TaskState};
use atoll_api::{Code, Problem, name};
use atoll_format::units::iec;
use clap::CommandFactory;
use std::io::IsTerminal;
use std::time::Duration;

/// How often `--watch` looks.
const WATCH_EVERY: Duration = Duration::from_secs(2);
/// How often `task wait` looks.
const WAIT_EVERY: Duration = Duration::from_millis(500);

/// An operation that needs no name.
fn ask(op: Op) -> Call {
    Call::to(op, &[])
}

impl Context {
    /// A change, with `dry_run` when asked for.
    pub fn change(&self, call: Call) -> Call {
        if self.globals.dry_run { call.query("dry_run", "true") } else { call }
    }

    /// Says what was done, to people only.
    pub fn say(&self, done: &str) {
        if matches!(self.out.format, Format::Table | Format::Wide) {
            let dry = if self.globals.dry_run { " (dry run: nothing was changed)" } else { "" };
            self.out.note(&format!("{done}{dry}"));
        }
    }

    /// The host that a command means: the one named, or the one that answers.
    async fn host(&self, host: Option<String>) -> Result<String, Failure> {
        match host {
            Some(host) => checked("host", &host).map(str::to_owned),
            None => {
                let cluster = self.client.item::<types::Cluster>(ask(Op::ClusterShow)).await?;
                Ok(cluster.item.answered_by)
            }
        }
    }
}

/// A name, refused here already when it breaks the rule.
pub fn checked<'a>(what: &str, text: &'a str) -> Result<&'a str, Failure> {
    name::check(what, text).map_err(|why| Problem::new(Code::BadName, why))?;
    Ok(text)
}

/// Runs a command.
///
/// # Errors
/// Its failure, to be printed by the caller.
pub async fn run(context: &Context, command: Command) -> Run {
    match command {
        Command::Status(status) => self::status(context, status).await,
        Command::Top(top) => self::top(context, top).await,
        Command::Cluster(cluster) => self::cluster(context, cluster).await,
        Command::Host(host) => self::host(context, host).await,
        Command::Disk(disk) => self::disk(context, disk).await,
        Command::Group(group) => self::group(context, group).await,
        Command::Policy(policy) => self::policy(context, policy).await,
        Command::Volume(volume) => self::volume(context, volume).await,
        Command::Resync(resync) => self::resync(context, resync).await,
        Command::Scrub(scrub) => self::scrub(context, scrub).await,
        Command::Task(task) => self::task(context, task).await,
        Command::Events(events) => self::events(context, events).await,
        Command::Session(Session::List { volume }) => {
            let call = match volume {
                Some(name) => ask(Op::SessionList).query("volume", checked("volume", &name)?),
                None => ask(Op::SessionList),
            };
            let list: List<types::Session> = context.list(call).await?;
            context.out.list(&list)
        }
        Command::Token(token) => self::token(context, token).await,
        Command::Audit(Audit::List) => {
            let list: List<types::AuditEntry> = context.list(ask(Op::AuditList)).await?;
            context.out.list(&list)
        }
        Command::Audit(Audit::Verify(verify)) => super::audit::verify(context, &verify),
        Command::Support(Support::Bundle(bundle)) => {
            crate::support::bundle(context, bundle.to, &bundle.config).await
        }
        Command::Completion(completion) => self::completion(context, &completion),
        Command::Man(man) => self::man(context, man),
        Command::Serve(_)
        | Command::Etcd(_)
        | Command::Dev(_)
        | Command::Directory(_)
        | Command::Sim(_) => {
            unreachable!("daemons are started by the caller")
        }
    }
}

async fn status(context: &Context, status: Status) -> Run {
    if status.check {
        let (line, level) = match context.client.item::<types::Status>(ask(Op::StatusShow)).await {
            Ok(item) => (show::check_line(&item.item), item.item.health.level),
            Err(problem) => (format!("ATOLL UNKNOWN - {}\n", problem.detail), Level::Unknown),
        };
        context.out.data(&line)?;
        let code = match level {
            Level::Ok => return Ok(()),
            Level::Warning => 1,
            Level::Critical => 2,
            Level::Unknown => 3,
        };
        return Err(Failure::Exit(code));
    }
    loop {
        let item = context.item::<types::Status>(ask(Op::StatusShow)).await;
        if status.watch {
            clear(&context.out)?;
        }
        match item {
            Ok(item) => {
                let name = |status: &types::Status| status.cluster.name.clone();
                context.out.item(&item, name, |status| show::status(&context.out, status))?;
            }
            Err(Failure::Problem(problem)) if status.watch => {
                context.out.note(&problem.to_string())
            }
            Err(failure) => return Err(failure),
        }
        if !status.watch {
            return Ok(());
        }
        tokio::time::sleep(WATCH_EVERY).await;
    }
}

/// On a terminal, begins a new screen.
fn clear(out: &Out) -> Run {
    let people = matches!(out.format, Format::Table | Format::Wide);
    if people && std::io::stdout().is_terminal() { out.data("\x1b[H\x1b[2J") } else { Ok(()) }
}

async fn top(context: &Context, top: Top) -> Run {
    if top.profile {
        return top_profile(context, &top).await;
    }
    let mut left = rounds(&top);
    loop {
        match top.of {
            TopOf::Volumes => {
                let list: List<types::Volume> = context.list(ask(Op::VolumeList)).await?;
                clear(&context.out)?;
                let busy = |items: Vec<types::Volume>| {
                    items.into_iter().map(|v| (v.name, Some(v.io))).collect()
                };
                top_screen(context, list, "VOLUME", busy)?;
            }
            TopOf::Hosts => {
                let list: List<types::Host> = context.list(ask(Op::HostList)).await?;
                clear(&context.out)?;
                let busy =
                    |items: Vec<types::Host>| items.into_iter().map(|h| (h.name, h.io)).collect();
                top_screen(context, list, "HOST", busy)?;
            }
        }
        left = left.map(|left| left.saturating_sub(1));
        if left == Some(0) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_secs(top.interval)).await;
    }
}

/// Screens to show; none: until Ctrl-C. Where nobody looks, one: a pipe's reader waits for its end.
fn rounds(top: &Top) -> Option<u64> {
    let looked_at = std::io::stdout().is_terminal();
    top.count.or_else(|| (!top.watch && !looked_at).then_some(1))
}

async fn top_profile(context: &Context, top: &Top) -> Run {
    let mut before: List<types::Profile> = context.list(ask(Op::ProfileList)).await?;
    let mut left = rounds(top);
    loop {
        tokio::time::sleep(Duration::from_secs(top.interval)).await;
        let after: List<types::Profile> = context.list(ask(Op::ProfileList)).await?;
        let items = profile::between(&before.items, &after.items);
        let between = List { items, ..after.clone() };
        clear(&context.out)?;
        context.out.whole(
            &between,
            |p| p.host.clone(),
            |all| profile::screen(&context.out, all),
        )?;
        for host in between.items.iter().filter(|profile| !profile.detail.is_empty()) {
            context.out.note(&format!("without {}: {}", host.host, host.detail));
        }
        left = left.map(|left| left.saturating_sub(1));
        if left == Some(0) {
            return Ok(());
        }
        before = after;
    }
}

fn top_screen<T: Row + serde::Serialize>(
    context: &Context,
    list: List<T>,
    title: &str,
    busy: impl FnOnce(Vec<T>) -> Vec<(String, Option<types::Io>)>,
) -> Run {
    match context.out.format {
        Format::Table | Format::Wide => {
            context.out.without(&list.missing);
            context.out.data(&show::top(&context.out, title, busy(list.items)))
        }
        _ => context.out.list(&list),
    }
}

async fn host(context: &Context, host: Host) -> Run {
    match host {
        Host::List => {
            let list: List<types::Host> = context.list(ask(Op::HostList)).await?;
            context.out.list(&list)
        }
        Host::Show { host } => {
            let call = Call::to(Op::HostShow, &[checked("host", &host)?]);
            context.out.one(&context.item::<types::Host>(call).await?)
        }
        Host::Remove { host, lost } => {
            let question = match lost {
                true => format!("host {host} and all copies on it will be lost for good?"),
                false => format!("host {host} will be removed from the cluster for good?"),
            };
            context.confirm(&question).await?;
            let call = Call::to(Op::HostRemove, &[checked("host", &host)?]);
            let call = if lost { call.query("lost", "true") } else { call };
            let removal = context.item::<types::HostRemoval>(context.change(call)).await?;
            context.out.item(&removal, |removal| removal.host.clone(), show::removal)
        }
        Host::Prepare(prepare) => self::prepare(context, prepare).await,
    }
}

/// Says what this machine lacks; exit code 4 if that keeps a host from running.
async fn prepare(context: &Context, prepare: Prepare) -> Run {
    let facts = facts::gather(&prepare.config, config::environment()?).await;
    let found = findings::all(&facts);
    let missing = found.iter().filter(|finding| finding.state == State::Missing).count();
    context.out.list(&List::new(found, None, atoll_real::unix_ms()))?;
    match missing {
        0 => Ok(()),
        1 => Err(Problem::new(Code::Conflict, "this machine lacks something that a host needs")
            .hint("the line 'missing' says what to do")
            .into()),
        n => Err(Problem::new(Code::Conflict, format!("this machine lacks {n} things"))
            .hint("the lines 'missing' say what to do")
            .into()),
    }
}

async fn disk(context: &Context, disk: Disk) -> Run {
    match disk {
        Disk::List { host: Some(host) } => {
            let call = Call::to(Op::DiskList, &[checked("host", &host)?]);
            let list: List<types::Disk> = context.list(call).await?;
            context.out.list(&list)
        }
        Disk::List { host: None } => {
            let hosts: List<types::Host> = context.list(ask(Op::HostList)).await?;
            let mut asked = tokio::task::JoinSet::new();
            for host in hosts.items.into_iter().filter(|host| host.up) {
                let call = Call::to(Op::DiskList, &[checked("host", &host.name)?]);
                let client = context.client.clone();
                asked.spawn(async move { (host, client.list::<types::Disk>(call).await) });
            }
            let mut missing = hosts.missing;
            let mut all: Option<List<types::Disk>> = None;
            while let Some(asked) = asked.join_next().await {
                let Ok((host, told)) = asked else { continue };
                match (told, &mut all) {
                    (Ok(list), Some(all)) => all.items.extend(list.items),
                    (Ok(list), None) => all = Some(list),
                    (Err(problem), _) => missing.push(Missing {
                        host: host.name,
                        why: format!("does not tell its disks ({})", problem.detail),
                    }),
                }
            }
            missing.sort();
            missing.dedup_by(|a, b| a.host == b.host);
            let none = || Problem::new(Code::Unavailable, "no host answers");
            let mut all = all.ok_or_else(none)?.without(missing);
            all.items.sort_by(|a, b| (&a.host, &a.path).cmp(&(&b.host, &b.path)));
            context.out.list(&all)
        }
        Disk::Show { path, host } => {
            let host = context.host(host).await?;
            let list = context.list(Call::to(Op::DiskList, &[&host])).await?;
            let List {
                kind: _,
                version,
                generated_at,
                items,
                next_cursor: _,
                position: _,
                missing,
            } = list;
            let found = items.into_iter().find(|disk: &types::Disk| disk.path == path);
            let Some(item) = found else {
                let shown = name::show(&path);
                let detail = format!("host {host} is not configured to use {shown}");
                return Err(Problem::new(Code::NotFound, detail)
                    .hint(format!("atoll disk list --host {host}"))
                    .into());
            };
            let kind = "Disk".into();
            context.out.one(&atoll_api::Item { kind, version, generated_at, item, missing })
        }
        Disk::Wipe { path, host } => {
            let host = context.host(host).await?;
            let question =
                format!("everything on {} of host {host} will be lost?", name::show(&path));
            context.confirm(&question).await?;
            let request = types::DiskWipeRequest { path, force: true };
            let call = context.change(Call::to(Op::DiskWipe, &[&host]));
            let wiped = context.item::<types::DiskWipe>(call.json(&request)).await?;
            let text = |wipe: &types::DiskWipe| {
                format!("{} on host {}: erased {}\n", wipe.path, wipe.host, wipe.erased)
            };
            context.out.item(&wiped, |wipe| wipe.path.clone(), text)
        }
    }
}

async fn group(context: &Context, group: Group) -> Run {
    match group {
        Group::List => {
            let list: List<types::Group> = context.list(ask(Op::GroupList)).await?;
            context.out.list(&list)
        }
        Group::Show { group } => {
            let call = Call::to(Op::GroupShow, &[checked("group", &group)?]);
            context.out.one(&context.item::<types::Group>(call).await?)
        }
        Group::Create { disks, host } => {
            if let Some(host) = &host {
                checked("host", host)?;
            }
            let request = types::GroupCreate { host, disks };
            let call = context.change(ask(Op::GroupCreate)).json(&request);
            let made = context.item::<types::Group>(call).await?;
            context.say(&format!("disk group {} on host {}", made.item.id, made.item.host));
            context.out.one(&made)
        }
    }
}

async fn cluster(context: &Context, cluster: Cluster) -> Run {
    let call = match cluster {
        Cluster::Show => ask(Op::ClusterShow),
        Cluster::Set { promised_limit } => {
            let patch = types::ClusterPatch { promised_limit_percent: Some(promised_limit) };
            context.change(ask(Op::ClusterPatch)).json(&patch)
        }
        Cluster::Upgrade { commit, .. } => return upgrade(context, commit).await,
        Cluster::Authority(command) => return certificate::authority(context, command),
        Cluster::Certificate(command) => return certificate::certificate(context, &command),
        Cluster::Init(init) => return joining::init(context, init).await,
        Cluster::JoinToken(token) => return joining::join_token(context, token).await,
        Cluster::Join(join) => return joining::join(context, join).await,
    };
    let item = context.item::<types::Cluster>(call).await?;
    context.out.item(&item, |it| it.name.clone(), |it| show::cluster(&context.out, it))
}

async fn upgrade(context: &Context, commit: bool) -> Run {
    let call = if commit {
        context
            .confirm("the feature level will be raised for good: older releases run no more?")
            .await?;
        context.change(ask(Op::ClusterUpgrade))
    } else {
        ask(Op::UpgradeShow)
    };
    let item = context.item::<types::Upgrade>(call).await?;
    context.out.item(&item, |it| it.level.to_string(), |it| show::upgrade(&context.out, it))
}

async fn policy(context: &Context, policy: Policy) -> Run {
    match policy {
        Policy::List => {
            let list: List<types::Policy> = context.list(ask(Op::PolicyList)).await?;
            context.out.list(&list)
        }
        Policy::Show { name } => {
            let call = Call::to(Op::PolicyShow, &[checked("policy", &name)?]);
            context.out.one(&context.item::<types::Policy>(call).await?)
        }
        Policy::Create { name, failures_to_tolerate, stripe_width, iops_limit, reserve } => {
            checked("policy", &name)?;
            let policy = types::Policy {
                name,
                failures_to_tolerate,
                method: types::Method::Mirror,
                stripe_width,
                iops_limit,
                reserve_percent: reserve,
            };
            let call = context.change(ask(Op::PolicyCreate)).json(&policy);
            context.out.one(&context.item::<types::Policy>(call).await?)
        }
        Policy::Delete { name } => {
            let call = Call::to(Op::PolicyDelete, &[checked("policy", &name)?]);
            context.done(context.change(call)).await?;
            context.say(&format!("policy {name} deleted"));
            Ok(())
        }
        Policy::Check { name, size } => {
            let request = types::PolicyCheckRequest { size_bytes: size };
            let call = Call::to(Op::PolicyCheck, &[checked("policy", &name)?]).json(&request);
            let check = context.item::<types::PolicyCheck>(call).await?;
            context.out.item(
                &check,
                |check| check.policy.clone(),
                |check| {
                    let verdict = if check.fits { "can" } else { "cannot" };
                    let mut text = format!(
                        "a volume of {} with policy {} {verdict} be placed, and uses up to {}\n",
                        iec(check.size_bytes),
                        check.policy,
                        iec(check.raw_bytes)
                    );
                    for reason in &check.reasons {
                        text += &format!("- {reason}\n");
                    }
                    text
                },
            )?;
            if check.item.fits { Ok(()) } else { Err(Failure::Exit(Code::CannotPlace.exit())) }
        }
    }
}

async fn token(context: &Context, token: Token) -> Run {
    match token {
        Token::List => {
            let list: List<types::Token> = context.list(ask(Op::TokenList)).await?;
            context.out.list(&list)
        }
        Token::Create { name, role, expires } => {
            checked("token", &name)?;
            let valid_s = expires.map(|valid| valid.as_secs());
            let request = types::TokenCreate { name, role: role.role(), valid_s };
            let call = context.change(ask(Op::TokenCreate)).json(&request);
            let made = context.item::<types::TokenMade>(call).await?;
            let types::Token { name, role, expires, .. } = &made.item.token;
            let until =
                expires.as_ref().map_or("until it is removed".into(), |at| format!("until {at}"));
            context
                .say(&format!("token {name}, role {role}, {until}; its secret is not shown again"));
            // Alone, so that it goes into a file as it is.
            let secret = |made: &types::TokenMade| {
                made.secret.as_ref().map_or_else(String::new, |secret| format!("{secret}\n"))
            };
            context.out.item(&made, |made| made.token.name.clone(), secret)
        }
        Token::Remove { name } => {
            let call = Call::to(Op::TokenRemove, &[checked("token", &name)?]);
            context.done(context.change(call)).await?;
            context.say(&format!("token {name} removed"));
            Ok(())
        }
    }
}

async fn volume(context: &Context, volume: Volume) -> Run {
    match volume {
        Volume::List => {
            let list: List<types::Volume> = context.list(ask(Op::VolumeList)).await?;
            context.out.list(&list)
        }
        Volume::Show { name } => {
            let call = Call::to(Op::VolumeShow, &[checked("volume", &name)?]);
            context.out.one(&context.item::<types::Volume>(call).await?)
        }
        Volume::Create { name, size, policy, idempotency_key } => {
            checked("volume", &name)?;
            let request = types::VolumeCreate { name, size_bytes: size, policy };
            let mut call = context.change(ask(Op::VolumeCreate)).json(&request);
            if let Some(key) = idempotency_key {
                call = call.header("idempotency-key", key);
            }
            let made = context.item::<types::Volume>(call).await?;
            context.say(&format!("volume {}, {}", made.item.name, iec(made.item.size_bytes)));
            context.out.one(&made)
        }
        Volume::Resize { name, size, shrink } => {
            let call = Call::to(Op::VolumeResize, &[checked("volume", &name)?]);
            if shrink {
                let question =
                    format!("what volume {name} holds beyond {} will be lost?", iec(size));
                context.confirm(&question).await?;
            }
            let request = types::VolumeResize { size_bytes: size, shrink };
            let call = context.change(call).json(&request);
            context.out.one(&context.item::<types::Volume>(call).await?)
        }
        Volume::Set { name, iops_limit } => {
            let call = Call::to(Op::VolumePatch, &[checked("volume", &name)?]);
            let iops_limit = Some(iops_limit);
            let request = types::VolumePatch { iops_limit, ..types::VolumePatch::default() };
            let call = context.change(call).json(&request);
            context.out.one(&context.item::<types::Volume>(call).await?)
        }
        Volume::Delete { name, force } => {
            let call = Call::to(Op::VolumeDelete, &[checked("volume", &name)?]);
            let call = if force { call.query("force", "true") } else { call };
            let mut call = context.change(call);
            if !context.globals.yes && !context.globals.dry_run && !context.globals.curl {
                // What was shown is what is deleted.
                let show = Call::to(Op::VolumeShow, &[&name]);
                let shown = context.client.item::<types::Volume>(show).await?.item;
                let question = format!(
                    "volume {name} and what it holds ({} of {}) will be lost?",
                    show::bytes(shown.guest_bytes),
                    iec(shown.size_bytes)
                );
                context.confirm(&question).await?;
                call = call.header("if-match", format!("\"{}\"", shown.revision));
            }
            context.done(call).await?;
            context.say(&format!("volume {name} deleted"));
            Ok(())
        }
        Volume::Placement { name } => {
            let call = Call::to(Op::VolumePlacement, &[checked("volume", &name)?]);
            let placement = context.item::<types::Placement>(call).await?;
            let name = |placement: &types::Placement| placement.volume.clone();
            context.out.item(&placement, name, |it| show::placement(&context.out, it))
        }
        Volume::Import { .. } | Volume::Export { .. } => {
            unreachable!("images are copied by the caller")
        }
    }
}

async fn resync(context: &Context, resync: Resync) -> Run {
    let patch = match resync {
        Resync::Show => None,
        Resync::Pause => Some(types::ResyncPatch { paused: Some(true), ..Default::default() }),
        Resync::Resume => Some(types::ResyncPatch { paused: Some(false), ..Default::default() }),
        Resync::Limit { rate } => {
            Some(types::ResyncPatch { limit_bytes_per_second: Some(rate), ..Default::default() })
        }
    };
    let call = match patch {
        None => ask(Op::ResyncShow),
        Some(patch) => context.change(ask(Op::ResyncPatch)).json(&patch),
    };
    let item = context.item::<types::Resync>(call).await?;
    context.out.item(&item, |_| "resync".into(), |it| show::resync(&context.out, it))
}

async fn scrub(context: &Context, scrub: Scrub) -> Run {
    match scrub {
        Scrub::Show => {
            let list: List<types::Scrub> = context.list(ask(Op::ScrubList)).await?;
            context.out.list(&list)
        }
        Scrub::Start { group, volume, rate } => {
            let request = types::ScrubStart { group, volume, bytes_per_second: rate };
            let call = context.change(ask(Op::ScrubStart)).json(&request);
            context.show(&call)?;
            let list: List<types::Scrub> = context.client.page(call).await?;
            context.out.list(&list)
        }
        Scrub::Stop { group } => {
            let call = match group {
                Some(id) => ask(Op::ScrubStop).query("group", checked("group", &id)?),
                None => ask(Op::ScrubStop),
            };
            let call = context.change(call);
            context.show(&call)?;
            let stopped: List<types::Scrub> = context.client.page(call).await?;
            context.say("scrubs stopped");
            context.out.without(&stopped.missing);
            Ok(())
        }
    }
}

async fn task(context: &Context, task: Task) -> Run {
    let show = async |id: &str| {
        let call = Call::to(Op::TaskShow, &[checked("task", id)?]);
        context.item::<types::Task>(call).await
    };
    match task {
        Task::List => {
            let list: List<types::Task> = context.list(ask(Op::TaskList)).await?;
            context.out.list(&list)
        }
        Task::Show { id } => context.out.one(&show(&id).await?),
        Task::Wait { id } => {
            let end = async {
                loop {
                    let task = show(&id).await?;
                    match task.item.state {
                        TaskState::Done => return context.out.one(&task),
                        TaskState::Failed => {
                            let why = format!("task {id} failed: {}", task.item.message);
                            return Err(Problem::new(Code::Failed, why).into());
                        }
                        TaskState::Running | TaskState::Unknown => {}
                    }
                    tokio::time::sleep(WAIT_EVERY).await;
                }
            };
            let limit = Duration::from_secs(context.globals.timeout);
            tokio::time::timeout(limit, end).await.unwrap_or_else(|_| {
                let detail = format!("task {id} still runs after {} s", limit.as_secs());
                let hint = format!("atoll task wait {id} --timeout SECONDS");
                Err(Problem::new(Code::TimedOut, detail).hint(hint).into())
            })
        }
    }
}

async fn events(context: &Context, events: Events) -> Run {
    let mut out = context.out.clone();
    let for_programs = matches!(out.format, Format::Json | Format::Yaml);
    let mut list: List<types::Event> = List::new(Vec::new(), None, 0);
    let mut position = events.cursor.clone().unwrap_or_default();
    // A program goes on after any of them: each comes with its position, in the stream.
    if !(events.follow && for_programs) {
        let mut call = ask(Op::EventList);
        if let Some(id) = events.since {
            call = call.query("since", &id.to_string());
        }
        if let Some(cursor) = &events.cursor {
            call = call.query("cursor", cursor);
        }
        list = context.list(call).await?;
        if !events.follow {
            return context.out.list(&list);
        }
        out.list(&list)?;
        out.header = false;
        // The stream begins where the list ended: no clock says what came between.
        position = list.position.take().unwrap_or_default();
    }
    let call = ask(Op::EventList).query("follow", "1");
    let call = match &position[..] {
        "" => call.query("since", &events.since.unwrap_or(0).to_string()),
        position => call.query("cursor", position),
    };
    if for_programs {
        context.show(&call)?;
    }
    let mut stream = context.client.stream(call).await?;
    while let Some(said) = stream.next().await? {
        let data = match said {
            Followed::Event { cursor, data } => {
                position = cursor;
                data
            }
            Followed::Missing(missing) => {
                out.without(&missing);
                continue;
            }
        };
        let event: types::Event = serde_json::from_str(&data)
            .map_err(|e| Problem::new(Code::WrongServer, format!("an odd event: {e}")))?;
        if for_programs {
            lines(&out, &event, &position)?;
        } else {
            list.items = vec![event];
            out.list(&list)?;
        }
    }
    Err(Problem::new(Code::Unavailable, "the daemon has ended the stream")
        .hint(format!("atoll events --follow --cursor {position} goes on"))
        .into())
}

/// One event and where to go on after it, as a line of JSON, or as a YAML document of its own.
fn lines(out: &Out, event: &types::Event, cursor: &str) -> Run {
    let mut value = serde_json::to_value(event).expect("events have string keys");
    value["cursor"] = cursor.into();
    match out.format {
        Format::Yaml => out.data(&format!("---\n{}", super::out::yaml(&value))),
        _ => out.data(&format!("{value}\n")),
    }
}

fn completion(context: &Context, completion: &Completion) -> Run {
    let mut text = Vec::new();
    clap_complete::generate(completion.shell, &mut Cli::command(), "atoll", &mut text);
    context.out.data(&String::from_utf8_lossy(&text))
}

fn man(context: &Context, man: Man) -> Run {
    let mut root = Cli::command();
    root.build();
    match man.dir {
        None => {
            let mut text = Vec::new();
            let rendered = clap_mangen::Man::new(root).render(&mut text);
            rendered.map_err(|e| Problem::new(Code::Failed, e.to_string()))?;
            context.out.data(&String::from_utf8_lossy(&text))
        }
        Some(dir) => {
            let written =
                std::fs::create_dir_all(&dir).and_then(|()| clap_mangen::generate_to(root, &dir));
            written
                .map_err(|e| Problem::new(Code::LocalFile, format!("{}: {e}", dir.display())))?;
            Ok(())
        }
    }
}

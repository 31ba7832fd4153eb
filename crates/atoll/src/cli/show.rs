//! Things of the interface as lines of tables and short texts.

use super::out::{Out, Row};
use crate::machine::findings::Finding;
use atoll_api::routes::PREFIX;
use atoll_api::types::{
    AuditEntry, Cluster, Directory, Disk, DiskState, Event, Group, GroupShape, GroupState, Host,
    HostRemoval, HostRemovalState, Io, Level, Member, MemberState, Placement, Policy, Resync,
    ResyncItem, Scrub, Session, Space, Status, Task, TaskState, Token, Upgrade, UpgradeHost,
    Volume, VolumeState,
};
use atoll_format::units::iec;
use std::fmt::Write;

/// What nobody has told.
const UNKNOWN: &str = "-";

/// A number of bytes, or `-` while it is unknown.
pub fn bytes(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| UNKNOWN.into(), iec)
}

/// `12.0 GiB of 24.0 GiB (50.0 %)`, or `-` while it is unknown.
pub fn used(space: Option<&Space>) -> String {
    let Some(space) = space else { return UNKNOWN.into() };
    format!(
        "{} of {} ({})",
        iec(space.used_bytes),
        iec(space.capacity_bytes),
        percent(space.used_bytes, space.capacity_bytes)
    )
}

/// `50.0 %`; of nothing, 0.
pub fn percent(part: u64, whole: u64) -> String {
    format!("{:.1} %", if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 })
}

/// `4.9 MB/s`.
pub fn rate(bytes_per_second: u64) -> String {
    format!("{:.1} MB/s", bytes_per_second as f64 / 1e6)
}

/// A rate that somebody has set, in the units that commands take: `95.4 MiB/s`.
pub fn ceiling(bytes_per_second: u64) -> String {
    format!("{}/s", iec(bytes_per_second))
}

/// `210 us`, `1.5 ms`, or `-` for none.
pub fn latency(us: u64) -> String {
    match us {
        0 => "-".into(),
        1..1_000 => format!("{us} us"),
        _ => format!("{:.1} ms", us as f64 / 1e3),
    }
}

/// `45s`, `12m5s`, `1h5m`, `2d3h`.
pub fn duration(seconds: u64) -> String {
    let (d, h, m, s) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    match (d, h, m) {
        (0, 0, 0) => format!("{s}s"),
        (0, 0, _) => format!("{m}m{s}s"),
        (0, _, _) => format!("{h}h{m}m"),
        _ => format!("{d}d{h}h"),
    }
}

/// RFC 3339 UTC as local time to the second.
pub fn local(at: &str) -> String {
    match at.parse::<jiff::Timestamp>() {
        Ok(at) => {
            at.to_zoned(jiff::tz::TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string()
        }
        Err(_) => at.to_owned(),
    }
}

fn or_dash(text: Option<&str>) -> String {
    text.filter(|text| !text.is_empty()).unwrap_or("-").to_owned()
}

fn level(level: Level) -> String {
    let word = match level {
        Level::Ok => "ok",
        Level::Warning => "warning",
        Level::Critical => "critical",
        Level::Unknown => "unknown",
    };
    word.into()
}

fn titles_of_io() -> &'static [&'static str] {
    &["READ IOPS", "WRITE IOPS", "READ", "WRITE", "READ LATENCY", "WRITE LATENCY"]
}

fn cells_of_io(io: Option<&Io>) -> Vec<String> {
    let Some(io) = io else { return vec![UNKNOWN.into(); titles_of_io().len()] };
    vec![
        io.read_iops.to_string(),
        io.write_iops.to_string(),
        rate(io.read_bytes_per_second),
        rate(io.write_bytes_per_second),
        latency(io.read_latency_us),
        latency(io.write_latency_us),
    ]
}

/// One screen of `atoll top`: the busiest first.
pub fn top(out: &Out, title: &str, mut lines: Vec<(String, Option<Io>)>) -> String {
    lines.sort_by(|(a, x), (b, y)| {
        let busy = |io: &Option<Io>| io.map_or(0, |io| io.read_iops + io.write_iops);
        busy(y).cmp(&busy(x)).then(a.cmp(b))
    });
    let mut head = vec![title.to_owned()];
    head.extend(titles_of_io().iter().map(|t| (*t).to_owned()));
    let rows: Vec<Vec<String>> = lines
        .into_iter()
        .map(|(name, io)| std::iter::once(name).chain(cells_of_io(io.as_ref())).collect())
        .collect();
    out.table(&head, &rows)
}

/// `atoll cluster`.
pub fn cluster(out: &Out, cluster: &Cluster) -> String {
    let pair = |title: &str, text: String| (title.to_owned(), text);
    out.pairs(&[
        pair("cluster", format!("{} ({})", cluster.name, cluster.id)),
        pair("version", format!("{} of {}", cluster.release, cluster.answered_by)),
        pair("feature level", feature_level(cluster.level)),
        pair("repair delay", duration(cluster.repair_delay_s.into())),
        pair("resync floor", format!("{}/s", iec(cluster.resync_floor_bytes))),
        pair("promised limit", format!("{} % of the space", cluster.promised_limit_percent)),
    ])
}

/// A feature level, or `-` while it is unknown.
fn feature_level(level: u16) -> String {
    if level == 0 { UNKNOWN.into() } else { level.to_string() }
}

/// `atoll cluster upgrade`.
pub fn upgrade(out: &Out, upgrade: &Upgrade) -> String {
    let head = ["HOST", "STATE", "RELEASE", "KNOWS LEVELS"].map(str::to_owned);
    let row = |host: &UpgradeHost| {
        let state = if host.up { "up" } else { "down" };
        let known = match host.oldest == host.newest {
            true => host.newest.to_string(),
            false => format!("{} to {}", host.oldest, host.newest),
        };
        vec![host.name.clone(), state.into(), host.release.clone(), known]
    };
    let rows: Vec<Vec<String>> = upgrade.hosts.iter().map(row).collect();
    let Upgrade { level, next, newest, .. } = upgrade;
    let mut text = out.table(&head, &rows) + "\n";
    text += &match upgrade.raised {
        true => format!("the cluster was raised to feature level {level}\n"),
        false if next > level => format!(
            "the cluster is at feature level {level}; all hosts know {next}: when no older release \
             is to run again, 'atoll cluster upgrade --commit' raises it\n"
        ),
        false if newest > level => format!("the cluster stays at feature level {level}\n"),
        false => format!("the cluster is at feature level {level}, the newest\n"),
    };
    for obstacle in &upgrade.obstacles {
        text += &format!("level {newest} is not possible yet: {obstacle}\n");
    }
    text
}

/// `atoll host remove`.
pub fn removal(removal: &HostRemoval) -> String {
    let HostRemoval { host, state, waits_for, .. } = removal;
    let more = match waits_for.len() {
        0 => String::new(),
        1 => format!("; it waits for volume {}", waits_for[0]),
        n => format!("; it waits for {n} volumes: {}, ...", waits_for[0]),
    };
    match state {
        HostRemovalState::Removed => format!("host {host} is removed\n"),
        HostRemovalState::Removing => format!(
            "host {host} is being removed, which goes on by itself{more} ('atoll status')\n"
        ),
        HostRemovalState::Possible => format!("host {host} can be removed\n"),
    }
}

/// `atoll status`.
pub fn status(out: &Out, status: &Status) -> String {
    let pair = |title: &str, text: String| (title.to_owned(), text);
    let resync = match (status.resync_bytes_left, status.resync_seconds_left) {
        (0, _) if status.resync_copies == 0 => "idle".into(),
        (0, _) => "a copy is behind, not counted yet".into(),
        (left, None) => format!("{} left, no estimate yet", iec(left)),
        (left, Some(seconds)) => format!("{} left, about {}", iec(left), duration(seconds)),
    };
    let promised = match status.exist_bytes {
        0 => format!("{} to volumes, all copies", iec(status.promised_bytes)),
        exist_bytes => format!(
            "{} to volumes, all copies ({} of the space, limit {} %)",
            iec(status.promised_bytes),
            percent(status.promised_bytes, exist_bytes),
            status.cluster.promised_limit_percent
        ),
    };
    let io = &status.io;
    let mut text = out.pairs(&[
        pair("cluster", format!("{} ({})", status.cluster.name, status.cluster.id)),
        pair("health", level(status.health.level)),
        pair("directory", status.directory.as_ref().map_or_else(|| "unknown".into(), directory)),
        pair("hosts", format!("{} of {} up", status.hosts_up, status.hosts)),
        pair(
            "volumes",
            format!(
                "{} ({} degraded, {} inaccessible)",
                status.volumes, status.volumes_degraded, status.volumes_inaccessible
            ),
        ),
        pair("used on disks", used(status.space.as_ref())),
        pair("free on disks", bytes(status.space.map(|space| space.free_bytes))),
        pair("promised", promised),
        pair(
            "read",
            format!(
                "{} IOPS  {}  {}",
                io.read_iops,
                rate(io.read_bytes_per_second),
                latency(io.read_latency_us)
            ),
        ),
        pair(
            "write",
            format!(
                "{} IOPS  {}  {}",
                io.write_iops,
                rate(io.write_bytes_per_second),
                latency(io.write_latency_us)
            ),
        ),
        pair("resync", resync),
        pair("checksum errors", status.checksum_errors.to_string()),
    ]);
    for check in &status.health.checks {
        let _ = writeln!(text, "{} {}: {}", level(check.level), check.name, check.message);
        if !check.remedy.is_empty() {
            let _ = writeln!(text, "  remedy: {}", check.remedy);
        }
    }
    text
}

/// Where the cluster's state is kept, on one line.
fn directory(of: &Directory) -> String {
    let Some(has_leader) = of.has_leader else { return of.kind.clone() };
    let told: Vec<_> = of.members.iter().filter(|member| !member.version.is_empty()).collect();
    let mut versions: Vec<&str> = told.iter().map(|member| member.version.as_str()).collect();
    versions.sort_unstable();
    versions.dedup();
    let (count, all) = (told.len(), of.members.len());
    let leader = match told.iter().find(|member| member.leads) {
        Some(leader) => format!("{} leads", leader.endpoint),
        None if has_leader => "none of them leads".into(),
        None => "no leader, its quorum is lost".into(),
    };
    let size = told.iter().map(|member| member.db_bytes).max().unwrap_or(0);
    let kind = [&[of.kind.as_str()][..], &versions].concat().join(" ");
    format!("{kind}: {count} of {all} members, {leader}, {}", iec(size))
}

/// One line for monitoring plug-ins.
pub fn check_line(status: &Status) -> String {
    let word = level(status.health.level).to_ascii_uppercase();
    let mut line = format!(
        "ATOLL {word} - {} of {} hosts up, {} volumes, {} degraded, {} inaccessible",
        status.hosts_up,
        status.hosts,
        status.volumes,
        status.volumes_degraded,
        status.volumes_inaccessible
    );
    for check in &status.health.checks {
        let _ = write!(line, "; {}: {}", check.name, check.message);
    }
    line + "\n"
}

/// `atoll volume placement`.
pub fn placement(out: &Out, placement: &Placement) -> String {
    let owner = or_dash(placement.owner.as_deref());
    let mut text = format!(
        "{}  {}  owner {owner}  epoch {}\n",
        placement.volume,
        iec(placement.size_bytes),
        placement.epoch
    );
    let head: Vec<String> =
        Member::HEAD.iter().chain(Member::WIDE).map(|t| (*t).to_owned()).collect();
    let rows: Vec<Vec<String>> =
        placement.members.iter().map(|m| m.cells().into_iter().chain(m.wide()).collect()).collect();
    text += &out.table(&head, &rows);
    for reason in &placement.reasons {
        let _ = writeln!(text, "- {reason}");
    }
    text
}

/// `atoll resync show`.
pub fn resync(out: &Out, resync: &Resync) -> String {
    let limit = match resync.limit_bytes_per_second {
        0 => "none".into(),
        limit => ceiling(limit),
    };
    let left = match resync.seconds_left {
        Some(seconds) if resync.bytes_left > 0 => {
            format!("{}, about {}", iec(resync.bytes_left), duration(seconds))
        }
        _ => iec(resync.bytes_left),
    };
    let state = match (resync.paused, resync.items.iter().any(|item| item.running)) {
        (true, _) => "paused",
        (_, true) => "running",
        (_, false) if resync.items.is_empty() && resync.bytes_left == 0 => "idle",
        (_, false) => "waiting",
    };
    let pairs = [
        ("state".to_owned(), state.to_owned()),
        ("left".to_owned(), left),
        ("rate".to_owned(), rate(resync.bytes_per_second)),
        ("limit".to_owned(), limit),
    ];
    let mut text = out.pairs(&pairs);
    if !resync.items.is_empty() {
        let head: Vec<String> = ResyncItem::HEAD.iter().map(|t| (*t).to_owned()).collect();
        let rows: Vec<Vec<String>> = resync.items.iter().map(Row::cells).collect();
        text += &out.table(&head, &rows);
    }
    text
}

impl Row for Host {
    const HEAD: &'static [&'static str] =
        &["NAME", "STATE", "VERSION", "GROUPS", "OWNS", "USED ON DISKS"];
    const WIDE: &'static [&'static str] = &["DOMAIN", "API", "PEERS", "TLS", "ID"];
    fn cells(&self) -> Vec<String> {
        vec![
            self.name.clone(),
            if self.up { "up" } else { "down" }.into(),
            self.release.clone(),
            self.groups.to_string(),
            self.owned_volumes.map_or_else(|| UNKNOWN.into(), |owns| owns.to_string()),
            used(self.space.as_ref()),
        ]
    }
    fn wide(&self) -> Vec<String> {
        let peers = self.peers.join(",");
        let tls = match (self.tls, &self.certificate_until) {
            (None, _) => UNKNOWN.into(),
            (Some(true), Some(until)) => format!("until {}", until.get(..10).unwrap_or(until)),
            (Some(true), None) => "on".into(),
            (Some(false), _) => "off".into(),
        };
        vec![self.fault_domain.clone(), self.api.clone(), peers, tls, self.id.clone()]
    }
    fn name(&self) -> String {
        self.name.clone()
    }
}

impl Row for Finding {
    const HEAD: &'static [&'static str] = &["STATE", "CHECK", "FOUND", "NEXT STEP"];
    fn cells(&self) -> Vec<String> {
        let state = self.state.name().to_owned();
        vec![state, self.name(), self.found.clone(), or_dash(Some(&self.next_step))]
    }
    fn name(&self) -> String {
        format!("{} {}", self.check, self.subject).trim_end().to_owned()
    }
}

impl Row for Disk {
    const HEAD: &'static [&'static str] = &["HOST", "PATH", "SIZE", "STATE", "DETAIL"];
    const WIDE: &'static [&'static str] = &["GROUP", "ID"];
    fn cells(&self) -> Vec<String> {
        let state = match self.state {
            DiskState::InUse => "in-use",
            DiskState::Empty => "empty",
            DiskState::Idle => "idle",
            DiskState::Foreign => "foreign",
            DiskState::Unusable => "unusable",
            DiskState::Failed => "failed",
            DiskState::Missing => "missing",
            DiskState::Unknown => "unknown",
        };
        vec![
            self.host.clone(),
            self.path.clone(),
            iec(self.size_bytes),
            state.into(),
            or_dash(Some(&self.detail)),
        ]
    }
    fn wide(&self) -> Vec<String> {
        vec![or_dash(self.group.as_deref()), or_dash(self.id.as_deref())]
    }
    fn name(&self) -> String {
        self.path.clone()
    }
}

impl Row for Group {
    const HEAD: &'static [&'static str] =
        &["ID", "HOST", "SHAPE", "STATE", "USED ON DISKS", "LOG", "COMPONENTS"];
    const WIDE: &'static [&'static str] = &["DISKS", "FAILURE"];
    fn cells(&self) -> Vec<String> {
        let shape = match self.shape {
            GroupShape::SingleTier => "single-tier",
            GroupShape::AllFlash => "all-flash",
        };
        vec![
            self.id.clone(),
            self.host.clone(),
            shape.into(),
            match self.state {
                GroupState::Healthy => "healthy",
                GroupState::Failed => "failed",
                GroupState::Unknown => "unknown",
            }
            .into(),
            used(self.space.as_ref()),
            match (self.log_fill_percent, self.log_bytes) {
                (Some(percent), Some(bytes)) => format!("{percent} % of {}", iec(bytes)),
                _ => UNKNOWN.into(),
            },
            self.components.map_or_else(|| UNKNOWN.into(), |count| count.to_string()),
        ]
    }
    fn wide(&self) -> Vec<String> {
        vec![self.disks.join(","), or_dash(Some(&self.failure))]
    }
    fn name(&self) -> String {
        self.id.clone()
    }
}

impl Row for Policy {
    const HEAD: &'static [&'static str] =
        &["NAME", "METHOD", "FAILURES TO TOLERATE", "STRIPE WIDTH", "IOPS LIMIT", "RESERVE"];
    fn cells(&self) -> Vec<String> {
        let limit = if self.iops_limit == 0 { "none".into() } else { self.iops_limit.to_string() };
        vec![
            self.name.clone(),
            "mirror".into(),
            self.failures_to_tolerate.to_string(),
            self.stripe_width.to_string(),
            limit,
            format!("{} %", self.reserve_percent),
        ]
    }
    fn name(&self) -> String {
        self.name.clone()
    }
}

impl Row for Token {
    const HEAD: &'static [&'static str] = &["NAME", "ROLE", "CREATED", "EXPIRES"];
    fn cells(&self) -> Vec<String> {
        let expires = match &self.expires {
            None => "never".into(),
            Some(at) if self.expired => format!("expired {at}"),
            Some(at) => at.clone(),
        };
        vec![self.name.clone(), self.role.to_string(), self.created.clone(), expires]
    }
    fn name(&self) -> String {
        self.name.clone()
    }
}

/// Characters of a request in a table.
const REQUEST_MAX: usize = 72;

/// Path, query and body of a request, cut where they are long.
fn request(entry: &AuditEntry) -> String {
    let target = entry.target.strip_prefix(PREFIX).unwrap_or(&entry.target);
    let body = entry.body.as_ref().map(|body| format!(" {body}")).unwrap_or_default();
    let text = format!("{target}{body}");
    match text.char_indices().nth(REQUEST_MAX) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text,
    }
}

impl Row for AuditEntry {
    const HEAD: &'static [&'static str] =
        &["AT", "HOST", "WHO", "FROM", "WHAT", "REQUEST", "ANSWER"];
    const WIDE: &'static [&'static str] = &["NUMBER", "ROLE", "DETAIL", "SHA256"];
    fn cells(&self) -> Vec<String> {
        let answer = match (self.status, &self.code) {
            (0, _) => "not waited for".into(),
            (status, None) => status.to_string(),
            (status, Some(code)) => format!("{status} {code}"),
        };
        vec![
            self.at.clone(),
            self.host.clone(),
            self.who.clone(),
            self.from.clone(),
            self.operation.clone(),
            request(self),
            answer,
        ]
    }
    fn wide(&self) -> Vec<String> {
        vec![
            self.number.to_string(),
            self.role.to_string(),
            or_dash(self.detail.as_deref()),
            self.sha256.clone(),
        ]
    }
    fn name(&self) -> String {
        format!("{} {}", self.host, self.number)
    }
}

impl Row for Volume {
    const HEAD: &'static [&'static str] =
        &["NAME", "SIZE", "GUEST DATA", "ON DISKS", "POLICY", "STATE", "OWNER", "CLIENTS"];
    const WIDE: &'static [&'static str] =
        &["READ IOPS", "WRITE IOPS", "LIMIT", "EPOCH", "CREATED", "EXPORT", "ID"];
    fn cells(&self) -> Vec<String> {
        let state = match self.state {
            VolumeState::Healthy => "healthy",
            VolumeState::Degraded => "degraded",
            VolumeState::Resyncing => "resyncing",
            VolumeState::Inaccessible => "inaccessible",
            VolumeState::Creating => "creating",
            VolumeState::Deleting => "deleting",
            VolumeState::Unknown => "unknown",
        };
        vec![
            self.name.clone(),
            iec(self.size_bytes),
            bytes(self.guest_bytes),
            bytes(self.used_bytes),
            self.policy.clone(),
            state.into(),
            or_dash(self.owner.as_deref()),
            self.sessions.to_string(),
        ]
    }
    fn wide(&self) -> Vec<String> {
        vec![
            self.io.read_iops.to_string(),
            self.io.write_iops.to_string(),
            if self.iops_limit == 0 { "none".into() } else { self.iops_limit.to_string() },
            self.epoch.to_string(),
            local(&self.created_at),
            or_dash(self.exports.first().map(String::as_str)),
            self.id.clone(),
        ]
    }
    fn name(&self) -> String {
        self.name.clone()
    }
}

impl Row for Member {
    const HEAD: &'static [&'static str] = &["LEG", "HOST", "GROUP", "STATE"];
    const WIDE: &'static [&'static str] = &["DOMAIN", "COMPONENT", "ABSENT SINCE", "REBUILD AT"];
    fn cells(&self) -> Vec<String> {
        let state = match self.state {
            MemberState::Active => "active",
            MemberState::Absent => "absent",
            MemberState::Resyncing => "resyncing",
            MemberState::Unknown => "unknown",
        };
        vec![self.leg.to_string(), self.host.clone(), self.group.clone(), state.into()]
    }
    fn wide(&self) -> Vec<String> {
        let time = |at: &Option<String>| at.as_deref().map_or_else(|| "-".into(), local);
        vec![
            self.fault_domain.clone(),
            self.component.clone(),
            time(&self.absent_since),
            time(&self.rebuild_at),
        ]
    }
    fn name(&self) -> String {
        self.component.clone()
    }
}

impl Row for ResyncItem {
    const HEAD: &'static [&'static str] = &["VOLUME", "LEG", "TO HOST", "STATE", "LEFT", "COPIED"];
    fn cells(&self) -> Vec<String> {
        vec![
            self.volume.clone(),
            self.leg.to_string(),
            self.host.clone(),
            if self.running { "running" } else { "waiting" }.into(),
            bytes(self.bytes_left),
            iec(self.bytes_done),
        ]
    }
    fn name(&self) -> String {
        self.component.clone()
    }
}

impl Row for Scrub {
    const HEAD: &'static [&'static str] =
        &["GROUP", "HOST", "STATE", "DONE", "BLOCKS", "BAD BLOCKS"];
    fn cells(&self) -> Vec<String> {
        vec![
            self.group.clone(),
            self.host.clone(),
            if self.running { "running" } else { "idle" }.into(),
            percent(self.blocks_checked, self.blocks_total),
            self.blocks_total.to_string(),
            self.blocks_bad.to_string(),
        ]
    }
    fn name(&self) -> String {
        self.group.clone()
    }
}

impl Row for Task {
    const HEAD: &'static [&'static str] = &["ID", "KIND", "SUBJECT", "STATE", "DONE", "MESSAGE"];
    const WIDE: &'static [&'static str] = &["STARTED", "ENDED"];
    fn cells(&self) -> Vec<String> {
        let state = match self.state {
            TaskState::Running => "running",
            TaskState::Done => "done",
            TaskState::Failed => "failed",
            TaskState::Unknown => "unknown",
        };
        vec![
            self.id.clone(),
            self.kind.clone(),
            self.subject.clone(),
            state.into(),
            format!("{} %", self.percent),
            or_dash(Some(&self.message)),
        ]
    }
    fn wide(&self) -> Vec<String> {
        let ended = self.ended_at.as_deref().map_or_else(|| "-".into(), local);
        vec![local(&self.started_at), ended]
    }
    fn name(&self) -> String {
        self.id.clone()
    }
}

impl Row for Event {
    const HEAD: &'static [&'static str] = &["TIME", "LEVEL", "HOST", "KIND", "SUBJECT", "MESSAGE"];
    fn cells(&self) -> Vec<String> {
        vec![
            local(&self.at),
            level(self.level),
            self.host.clone(),
            self.kind.clone(),
            or_dash(Some(&self.subject)),
            self.message.clone(),
        ]
    }
    fn name(&self) -> String {
        self.id.to_string()
    }
}

impl Row for Session {
    const HEAD: &'static [&'static str] =
        &["VOLUME", "HOST", "PROTOCOL", "PEER", "SINCE", "READS", "WRITES", "IN FLIGHT"];
    fn cells(&self) -> Vec<String> {
        vec![
            self.volume.clone(),
            self.host.clone(),
            self.protocol.clone(),
            self.peer.clone(),
            local(&self.since),
            self.reads.to_string(),
            self.writes.to_string(),
            self.in_flight.to_string(),
        ]
    }
    fn name(&self) -> String {
        self.volume.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::{duration, latency, percent, rate};

    #[test]
    fn numbers_have_units() {
        assert_eq!(duration(5), "5s");
        assert_eq!(duration(65), "1m5s");
        assert_eq!(duration(3_900), "1h5m");
        assert_eq!(duration(100_000), "1d3h");
        assert_eq!(percent(1, 3), "33.3 %");
        assert_eq!(percent(0, 0), "0.0 %");
        assert_eq!(rate(4_900_000), "4.9 MB/s");
        assert_eq!(latency(0), "-");
        assert_eq!(latency(210), "210 us");
        assert_eq!(latency(1_500), "1.5 ms");
    }
}

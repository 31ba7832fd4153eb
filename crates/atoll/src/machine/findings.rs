//! What follows from the facts: what this machine has, lacks, and what to do next. No I/O.

use super::disks::{DiskFact, Lies};
use super::facts::{ConfigFact, Facts, Nic, Port, PortState};
use super::firewall::Verdict;
use atoll_api::envelope::Named;
use atoll_api::shell::quote;
use atoll_format::units::iec;
use atoll_store::Inspection;
use atoll_store::limits::DEVICE_MIN;
use serde::Serialize;
use std::net::IpAddr;

/// Kernels before this one drive disks by threads: io_uring lacks what is needed.
const KERNEL_URING: (u32, u32) = (5, 6);
/// What Atoll is tested on; also the first with what makes io_uring cheap.
const KERNEL_TESTED: (u32, u32) = (6, 1);
/// A host takes about half of this when it is idle.
const MEMORY_LEAST: u64 = 256 << 20;
/// With less, guests and hosts compete for it.
const MEMORY_ENOUGH: u64 = 1 << 30;
/// The largest logical sector that can be used, in bytes.
const SECTOR_MAX: u64 = 4096;
/// Megabits per second of a link that keeps up with a disk.
const SPEED_ENOUGH: u64 = 10_000;
/// The MTU of Ethernet.
const MTU_USUAL: u64 = 1_500;

/// How a thing is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it should be.
    Ok,
    /// A host runs, but worse than it could.
    Warning,
    /// A host does not run like this.
    Missing,
    /// It could not be looked at.
    Unknown,
}

impl State {
    /// Its name, stable.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Missing => "missing",
            Self::Unknown => "unknown",
        }
    }
}

/// One line about this machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// What was looked at: `kernel`, `disk`, ...; stable.
    pub check: &'static str,
    /// Which one, where there are several: a path, a name, an address.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subject: String,
    pub state: State,
    /// What was found.
    pub found: String,
    /// What to do about it; empty: nothing.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub next_step: String,
}

impl Named for Finding {
    const KIND: &'static str = "HostCheck";
}

impl Finding {
    fn new(check: &'static str, state: State, found: impl Into<String>) -> Self {
        let (subject, next_step) = (String::new(), String::new());
        Self { check, subject, state, found: found.into(), next_step }
    }

    fn of(self, subject: impl ToString) -> Self {
        Self { subject: subject.to_string(), ..self }
    }

    fn then(self, next_step: impl Into<String>) -> Self {
        Self { next_step: next_step.into(), ..self }
    }
}

fn unseen(check: &'static str, why: &str) -> Finding {
    let finding = Finding::new(check, State::Unknown, format!("could not be looked at: {why}"));
    let of_root = ["permission denied", "not permitted", "must be root"];
    match why.strip_suffix(" is not installed") {
        Some(program) => finding.then(format!("install the program {program}")),
        None if of_root.iter().any(|denied| why.to_lowercase().contains(denied)) => {
            finding.then("ask again as root")
        }
        None => finding,
    }
}

/// Everything that was found, in a stable order.
pub fn all(facts: &Facts) -> Vec<Finding> {
    let mut all = vec![
        config(&facts.config),
        kernel(&facts.kernel),
        uring(facts),
        clock(facts),
        processor(facts),
        memory(facts),
        files(facts),
    ];
    let cluster = facts.cluster.as_ref().ok().and_then(Option::as_deref);
    all.extend(facts.disks.iter().map(|found| disk(found, cluster)));
    match &facts.disks_unseen {
        Some(why) => all.push(unseen("disks", why)),
        None => all.extend(no_disk(&facts.disks)),
    }
    match &facts.nics {
        Err(why) => all.push(unseen("nic", why)),
        Ok(nics) => all.extend(nics.iter().map(nic)),
    }
    all.extend(facts.ports.iter().map(|found| port(found, facts.is_served)));
    match &facts.firewall {
        Err(why) => all.push(unseen("firewall", why)),
        Ok(verdicts) => {
            all.extend(facts.ports.iter().zip(verdicts).map(|(port, is)| firewall(port, is)));
        }
    }
    all
}

fn config(config: &ConfigFact) -> Finding {
    match config {
        ConfigFact::Good(file) => {
            Finding::new("configuration", State::Ok, format!("{} is good", file.display()))
        }
        ConfigFact::None(file) => Finding::new(
            "configuration",
            State::Warning,
            format!("there is no {}: what follows is about a host as by default", file.display()),
        )
        .then("write one; the package installs one with every key"),
        ConfigFact::Bad(problem) => {
            let finding = Finding::new("configuration", State::Missing, problem.detail.clone());
            finding.then(problem.hint.clone().unwrap_or_default())
        }
    }
}

/// The first two numbers of a kernel's release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn kernel(release: &str) -> Finding {
    let (major, minor) = KERNEL_TESTED;
    let newer = format!("a kernel of {major}.{minor} or newer is what Atoll is tested on");
    match version(release) {
        None => Finding::new("kernel", State::Unknown, format!("{release}: of an unknown version")),
        Some(found) if found < KERNEL_URING => {
            let found = format!("{release}: disks are driven by threads, at several times the CPU");
            Finding::new("kernel", State::Warning, found).then(newer)
        }
        Some(found) if found < KERNEL_TESTED => {
            let found = format!("{release}: older than what Atoll is tested on");
            Finding::new("kernel", State::Warning, found).then(newer)
        }
        Some(_) => Finding::new("kernel", State::Ok, release),
    }
}

fn uring(facts: &Facts) -> Finding {
    match &facts.uring {
        Ok(()) => Finding::new("io_uring", State::Ok, "can be used"),
        Err(why) => {
            let (found, next) = why.split_once(": ").unwrap_or((why, ""));
            let found = format!("{found}: disks are driven by threads, at several times the CPU");
            Finding::new("io_uring", State::Warning, found).then(next)
        }
    }
}

fn clock(facts: &Facts) -> Finding {
    match &facts.clock {
        Ok(true) => Finding::new("clock", State::Ok, "synchronised"),
        Ok(false) => Finding::new(
            "clock",
            State::Warning,
            "not synchronised: times of events of several hosts cannot be compared",
        )
        .then("timedatectl set-ntp true (package systemd-timesyncd or chrony)"),
        Err(why) => unseen("clock", why),
    }
}

fn processor(facts: &Facts) -> Finding {
    let features = match &facts.cpu {
        Ok(features) => features,
        Err(why) => return unseen("processor", why),
    };
    let has = |names: &[&str]| names.iter().any(|name| features.contains(*name));
    let mut lacks = Vec::new();
    if !has(&["sse4_2", "crc32"]) {
        lacks.push("CRC-32C (SSE4.2): every checksum takes several times the CPU");
    }
    if !has(&["aes"]) {
        lacks.push("AES: encryption of disks and connections takes several times the CPU");
    }
    if lacks.is_empty() {
        return Finding::new("processor", State::Ok, "has instructions for CRC-32C and AES");
    }
    Finding::new(
        "processor",
        State::Warning,
        format!("no instruction for {}", lacks.join("; for ")),
    )
    .then("in a virtual machine: give it the CPU model of the host (QEMU: -cpu host)")
}

fn memory(facts: &Facts) -> Finding {
    let (total, available) = match facts.memory {
        Ok(memory) => memory,
        Err(ref why) => return unseen("memory", why),
    };
    let found = format!("{} of {} could be had", iec(available), iec(total));
    let next = "give guests less, or this machine more";
    if available < MEMORY_LEAST {
        Finding::new("memory", State::Missing, found).then(next)
    } else if available < MEMORY_ENOUGH {
        Finding::new("memory", State::Warning, found).then(next)
    } else {
        Finding::new("memory", State::Ok, found)
    }
}

fn files(facts: &Facts) -> Finding {
    let super::facts::OpenFiles { hard, least, most } = facts.files;
    let found = match hard {
        u64::MAX => "no limit".to_owned(),
        hard => format!("a process of this user may open {hard}; a host needs {least} to {most}"),
    };
    let next = "the unit of the package sets its own limit; elsewhere LimitNOFILE= or ulimit -Hn";
    let state = if hard < most { State::Warning } else { State::Ok };
    let finding = Finding::new("open files", state, found);
    if state == State::Ok { finding } else { finding.then(next) }
}

/// What lies on a disk by what the system knows, in words; none: nothing.
fn lying(lies: &[Lies]) -> Option<String> {
    let words = lies.iter().map(|lies| match lies {
        Lies::Partitions { table, parts: 1 } => format!("a partition table ({table}), 1 partition"),
        Lies::Partitions { table, parts } => {
            format!("a partition table ({table}), {parts} partitions")
        }
        Lies::Data { what, at } if what == "LVM2_member" => format!("LVM on {at}"),
        Lies::Data { what, at } if what == "linux_raid_member" => format!("an md array on {at}"),
        Lies::Data { what, at } => format!("{what} on {at}"),
        Lies::Mounted { at, on } if on == "[SWAP]" => format!("{at} is in use as swap"),
        Lies::Mounted { at, on } => format!("{at} is mounted on {on}"),
        Lies::PartOf { kind, path } => format!("{path} ({kind}) is made of it"),
    });
    let words: Vec<String> = words.collect();
    (!words.is_empty()).then(|| words.join(", "))
}

fn disk(disk: &DiskFact, cluster: Option<&str>) -> Finding {
    let path = disk.path.display();
    let finding = |state, what: &str| {
        let size = if disk.size_bytes > 0 { iec(disk.size_bytes) + ", " } else { String::new() };
        Finding::new("disk", state, format!("{size}{what}")).of(path)
    };
    let word = quote(&disk.path);
    // What is not configured is nobody's loss.
    let lost = if disk.is_configured { State::Missing } else { State::Ok };
    let elsewhere = |finding: Finding| match disk.is_configured {
        true => finding.then(format!(
            "name another disk under [[group]]; or, if nobody needs that: atoll disk wipe {word}"
        )),
        false => finding,
    };
    if let Ok(Inspection::Ours { superblock, .. }) = &disk.label {
        let (group, of) = (superblock.group, superblock.cluster);
        return match cluster {
            Some(ours) if ours != of.to_string() => {
                elsewhere(finding(lost, &format!("disk group {group} of another cluster ({of})")))
            }
            Some(_) => finding(State::Ok, &format!("disk group {group} of this cluster ({of})")),
            None => finding(State::Ok, &format!("disk group {group} of cluster {of}")),
        };
    }
    if let Some(lies) = lying(&disk.lies) {
        return elsewhere(finding(lost, &lies));
    }
    match &disk.label {
        Err(why) => {
            let state = match disk.is_configured && disk.size_bytes == 0 {
                true if why.contains("No such file") => State::Missing,
                _ => State::Unknown,
            };
            let unseen = unseen("disk", why);
            let next = match state {
                State::Missing => "plug it in, or name another one under [[group]]".to_owned(),
                _ => unseen.next_step,
            };
            finding(state, &format!("what lies on it {}", unseen.found)).then(next)
        }
        Ok(Inspection::Foreign { what }) => elsewhere(finding(lost, what)),
        Ok(Inspection::Unsupported(e)) => {
            elsewhere(finding(lost, &format!("a disk group of another version: {e}")))
        }
        Ok(Inspection::Damaged(e)) => {
            elsewhere(finding(lost, &format!("a damaged label of Atoll: {e}")))
        }
        Ok(Inspection::Empty | Inspection::Ours { .. }) => {
            if disk.is_read_only {
                return elsewhere(finding(lost, "it cannot be written"));
            }
            if disk.size_bytes < DEVICE_MIN {
                return elsewhere(finding(lost, "smaller than 1 GiB"));
            }
            if disk.sector_bytes > SECTOR_MAX {
                let sectors = format!("its sectors have {} bytes", disk.sector_bytes);
                return elsewhere(finding(lost, &sectors));
            }
            match disk.is_configured {
                true => finding(State::Ok, "empty").then(format!("atoll group create {word}")),
                false => finding(State::Ok, "empty").then("list it under [[group]] to use it"),
            }
        }
    }
}

/// A host needs a disk; none of these can be one.
fn no_disk(disks: &[DiskFact]) -> Option<Finding> {
    let usable = |disk: &DiskFact| {
        let can_be = matches!(disk.label, Ok(Inspection::Empty | Inspection::Ours { .. }))
            && disk.size_bytes >= DEVICE_MIN
            && disk.sector_bytes <= SECTOR_MAX
            && !disk.is_read_only
            && disk.lies.is_empty();
        disk.is_configured || can_be || disk.label.is_err() && disk.lies.is_empty()
    };
    (!disks.iter().any(usable)).then(|| {
        let found = "no disk is empty or holds a disk group: this machine stores nothing";
        Finding::new("disks", State::Missing, found)
            .then("add a disk, or empty one; a file on ext4, xfs or btrfs works as well")
    })
}

fn nic(nic: &Nic) -> Finding {
    let addresses: Vec<String> = nic.addresses.iter().map(IpAddr::to_string).collect();
    let addresses = if addresses.is_empty() { "no address".into() } else { addresses.join(", ") };
    let speed = nic.speed.map_or_else(|| "speed unknown".into(), |mbit| format!("{mbit} Mb/s"));
    let found = format!("{addresses}; MTU {}; {speed}", nic.mtu);
    let finding = |state, found: String| Finding::new("nic", state, found).of(&nic.name);
    if !nic.is_up {
        return finding(State::Ok, format!("down; {found}"));
    }
    match nic.speed {
        _ if nic.mtu < MTU_USUAL => finding(State::Warning, found).then(format!(
            "packets are smaller than {MTU_USUAL} bytes: give all hosts the same, larger MTU"
        )),
        Some(..SPEED_ENOUGH) => finding(State::Warning, found)
            .then("connect hosts of different machines by 10 Gb/s or more"),
        _ => finding(State::Ok, found),
    }
}

fn port(port: &Port, is_served: bool) -> Finding {
    let Port { key, address, state } = port;
    let finding = |state, found: String| Finding::new("port", state, found).of(address);
    match state {
        PortState::Free => finding(State::Ok, format!("free ({key})")),
        PortState::Taken if is_served => {
            finding(State::Ok, format!("in use, by the daemon that runs here ({key})"))
        }
        PortState::Taken => {
            finding(State::Missing, format!("another process listens there ({key})"))
                .then(format!("ss -lptn 'sport = :{}' names it", address.port()))
        }
        PortState::NotHere => {
            finding(State::Missing, format!("this machine has no such address ({key})"))
                .then("'ip address' lists its addresses")
        }
        PortState::Refused(why) => finding(State::Missing, format!("{why} ({key})")),
    }
}

fn firewall(port: &Port, verdict: &Verdict) -> Finding {
    let Port { key, address, .. } = port;
    let finding = |state, found: String| Finding::new("firewall", state, found).of(address);
    let number = address.port();
    match verdict {
        Verdict::Open => finding(State::Ok, format!("no rule is in the way ({key})")),
        Verdict::Blocked { chain } => {
            finding(State::Missing, format!("chain {chain} blocks it ({key})"))
                .then(format!("nft add rule {chain} tcp dport {number} accept, before that rule"))
        }
        Verdict::Unclear { chain } => finding(
            State::Warning,
            format!("chain {chain} lets it pass for some, or by rules that are not known ({key})"),
        )
        .then(format!("nft list chain {chain}: every other host must reach port {number}")),
    }
}

#[cfg(test)]
mod tests {
    use super::{State, all};
    use crate::machine::disks::{DiskFact, Known, Lies};
    use crate::machine::facts::{ConfigFact, Facts, Nic, OpenFiles, Port, PortState};
    use crate::machine::firewall::Verdict;
    use atoll_api::{Code, Problem};
    use atoll_format::id::{ClusterId, DiskId, GroupId, HostId};
    use atoll_format::superblock::{Shape, Superblock};
    use atoll_store::Inspection;

    const GIB: u64 = 1 << 30;

    fn disk(path: &str, label: Known<Inspection>) -> DiskFact {
        DiskFact {
            path: path.into(),
            size_bytes: 100 * GIB,
            sector_bytes: 512,
            is_read_only: false,
            is_configured: false,
            lies: Vec::new(),
            label,
        }
    }

    /// A machine that lacks nothing.
    fn good() -> Facts {
        let port = |key, address: &str| Port {
            key,
            address: address.parse().unwrap(),
            state: PortState::Free,
        };
        Facts {
            kernel: "6.1.0-18-amd64".into(),
            uring: Ok(()),
            clock: Ok(true),
            cpu: Ok(["sse4_2", "aes"].map(str::to_owned).into()),
            memory: Ok((8 * GIB, 4 * GIB)),
            files: OpenFiles { hard: 65_536, least: 80, most: 950 },
            config: ConfigFact::Good("/etc/atoll/atoll.toml".into()),
            is_served: false,
            disks: vec![disk("/dev/sdb", Ok(Inspection::Empty))],
            disks_unseen: None,
            cluster: Ok(None),
            nics: Ok(vec![Nic {
                name: "eth0".into(),
                is_up: true,
                mtu: 9_000,
                speed: Some(25_000),
                addresses: vec!["10.0.0.11".parse().unwrap()],
            }]),
            ports: vec![
                port("network.api", "127.0.0.1:8460"),
                port("network.peer", "10.0.0.11:8461"),
            ],
            firewall: Ok(vec![Verdict::Open, Verdict::Open]),
        }
    }

    /// `state check subject: found -> next step` of everything that is not as in a good machine.
    fn unlike_good(change: impl FnOnce(&mut Facts)) -> Vec<String> {
        let (mut facts, before) = (good(), all(&good()));
        change(&mut facts);
        let new = all(&facts).into_iter().filter(|finding| !before.contains(finding));
        new.map(|f| {
            let next =
                if f.next_step.is_empty() { String::new() } else { format!(" -> {}", f.next_step) };
            let what = format!("{} {} {}", f.state.name(), f.check, f.subject);
            format!("{}: {}{next}", what.trim_end(), f.found)
        })
        .collect()
    }

    fn only_disk(facts: &mut Facts) -> &mut DiskFact {
        &mut facts.disks[0]
    }

    fn label(cluster: u64) -> Known<Inspection> {
        let superblock = Superblock {
            compat: 0,
            ro_compat: 0,
            incompat: 0,
            cluster: ClusterId(cluster),
            host: HostId(2),
            group: GroupId(3),
            disk: DiskId(4),
            shape: Shape::SingleTier,
            index: 0,
            disks: vec![DiskId(4)],
            generation: 1,
            size_bytes: 100 * GIB,
            segment_len: 1 << 20,
            salt: 5,
            created_ms: 6,
            entries_max: 7,
            components_max: 8,
            regions: Vec::new(),
        };
        Ok(Inspection::Ours { superblock: Box::new(superblock), first_damaged: false })
    }

    #[test]
    fn a_good_machine_lacks_nothing() {
        let found = all(&good());
        assert!(found.iter().all(|finding| finding.state == State::Ok), "{found:?}");
        let checks: Vec<&str> = found.iter().map(|finding| finding.check).collect();
        assert_eq!(
            checks,
            [
                "configuration",
                "kernel",
                "io_uring",
                "clock",
                "processor",
                "memory",
                "open files",
                "disk",
                "nic",
                "port",
                "port",
                "firewall",
                "firewall",
            ]
        );
    }

    #[test]
    fn each_fact_that_is_not_as_it_should_be_is_one_line_with_what_to_do() {
        type Change = fn(&mut Facts);
        let cases: &[(Change, &[&str])] = &[
            (
                |f| f.kernel = "5.4.0-1".into(),
                &["warning kernel: 5.4.0-1: disks are driven by threads, at several times the \
                   CPU -> a kernel of 6.1 or newer is what Atoll is tested on"],
            ),
            (
                |f| f.kernel = "5.15.0".into(),
                &["warning kernel: 5.15.0: older than what Atoll is tested on -> a kernel of 6.1 \
                   or newer is what Atoll is tested on"],
            ),
            (|f| f.kernel = "strange".into(), &["unknown kernel: strange: of an unknown version"]),
            (|f| f.kernel = "10.0".into(), &["ok kernel: 10.0"]),
            (
                |f| f.uring = Err("io_uring is not available (no): set the sysctl".into()),
                &["warning io_uring: io_uring is not available (no): disks are driven by \
                     threads, at several times the CPU -> set the sysctl"],
            ),
            (
                |f| f.clock = Ok(false),
                &["warning clock: not synchronised: times of events of several hosts cannot be \
                   compared -> timedatectl set-ntp true (package systemd-timesyncd or chrony)"],
            ),
            (
                |f| f.clock = Err("timedatectl is not installed".into()),
                &["unknown clock: could not be looked at: timedatectl is not installed -> \
                   install the program timedatectl"],
            ),
            (
                |f| f.cpu = Ok(["aes".to_owned()].into()),
                &["warning processor: no instruction for CRC-32C (SSE4.2): every checksum takes \
                   several times the CPU -> in a virtual machine: give it the CPU model of the \
                   host (QEMU: -cpu host)"],
            ),
            (|f| f.cpu = Ok(["crc32", "aes"].map(str::to_owned).into()), &[]),
            (
                |f| f.memory = Ok((GIB, 255 << 20)),
                &["missing memory: 255.0 MiB of 1.0 GiB could be had -> give guests less, or \
                   this machine more"],
            ),
            (
                |f| f.memory = Ok((GIB, 256 << 20)),
                &["warning memory: 256.0 MiB of 1.0 GiB could be had -> give guests less, or \
                   this machine more"],
            ),
            (
                |f| f.files.hard = 500,
                &["warning open files: a process of this user may open 500; a host needs 80 to \
                   950 -> the unit of the package sets its own limit; elsewhere LimitNOFILE= or \
                   ulimit -Hn"],
            ),
            (
                |f| {
                    f.config =
                        ConfigFact::Bad(Problem::new(Code::Config, "line 2: no").hint("say yes"))
                },
                &["missing configuration: line 2: no -> say yes"],
            ),
            (
                |f| f.config = ConfigFact::None("/none".into()),
                &["warning configuration: there is no /none: what follows is about a host as by \
                   default -> write one; the package installs one with every key"],
            ),
            (
                |f| f.nics.as_mut().unwrap()[0].speed = Some(1_000),
                &["warning nic eth0: 10.0.0.11; MTU 9000; 1000 Mb/s -> connect hosts of \
                   different machines by 10 Gb/s or more"],
            ),
            (
                |f| f.nics.as_mut().unwrap()[0].mtu = 1_400,
                &["warning nic eth0: 10.0.0.11; MTU 1400; 25000 Mb/s -> packets are smaller than \
                   1500 bytes: give all hosts the same, larger MTU"],
            ),
            (
                |f| f.nics.as_mut().unwrap()[0].is_up = false,
                &["ok nic eth0: down; 10.0.0.11; MTU 9000; 25000 Mb/s"],
            ),
            (
                |f| f.ports[0].state = PortState::Taken,
                &["missing port 127.0.0.1:8460: another process listens there (network.api) -> \
                   ss -lptn 'sport = :8460' names it"],
            ),
            (
                |f| (f.ports[0].state, f.is_served) = (PortState::Taken, true),
                &["ok port 127.0.0.1:8460: in use, by the daemon that runs here (network.api)"],
            ),
            (
                |f| f.ports[1].state = PortState::NotHere,
                &["missing port 10.0.0.11:8461: this machine has no such address (network.peer) \
                   -> 'ip address' lists its addresses"],
            ),
            (
                |f| {
                    f.firewall.as_mut().unwrap()[1] =
                        Verdict::Blocked { chain: "inet filter input".into() }
                },
                &["missing firewall 10.0.0.11:8461: chain inet filter input blocks it \
                     (network.peer) -> nft add rule inet filter input tcp dport 8461 accept, \
                     before that rule"],
            ),
            (
                |f| f.firewall.as_mut().unwrap()[1] = Verdict::Unclear { chain: "ip a b".into() },
                &["warning firewall 10.0.0.11:8461: chain ip a b lets it pass for some, or by \
                     rules that are not known (network.peer) -> nft list chain ip a b: every \
                     other host must reach port 8461"],
            ),
            (
                |f| {
                    f.firewall =
                        Err("nft failed: Operation not permitted (you must be root)".into())
                },
                &["unknown firewall: could not be looked at: nft failed: Operation not \
                     permitted (you must be root) -> ask again as root"],
            ),
            // Disks.
            (
                |f| only_disk(f).is_configured = true,
                &["ok disk /dev/sdb: 100.0 GiB, empty -> atoll group create /dev/sdb"],
            ),
            (
                |f| f.disks.push(disk("/dev/a", Ok(Inspection::Foreign { what: "a tree" }))),
                &["ok disk /dev/a: 100.0 GiB, a tree"],
            ),
            (
                |f| {
                    let disk = only_disk(f);
                    (disk.is_configured, disk.label) =
                        (true, Ok(Inspection::Foreign { what: "a tree" }));
                },
                &["missing disk /dev/sdb: 100.0 GiB, a tree -> name another disk under \
                     [[group]]; or, if nobody needs that: atoll disk wipe /dev/sdb"],
            ),
            (
                |f| only_disk(f).label = label(7),
                &["ok disk /dev/sdb: 100.0 GiB, disk group 0000000000000003 of cluster CLUSTER"],
            ),
            (
                |f| {
                    f.cluster = Ok(Some(ClusterId(7).to_string()));
                    only_disk(f).label = label(7);
                },
                &["ok disk /dev/sdb: 100.0 GiB, disk group 0000000000000003 of this cluster \
                     (CLUSTER)"],
            ),
            (
                |f| {
                    f.cluster = Ok(Some(ClusterId(8).to_string()));
                    only_disk(f).label = label(7);
                    only_disk(f).is_configured = true;
                },
                &["missing disk /dev/sdb: 100.0 GiB, disk group 0000000000000003 of another \
                     cluster (CLUSTER) -> name another disk under [[group]]; or, if nobody needs \
                     that: atoll disk wipe /dev/sdb"],
            ),
            (
                |f| {
                    only_disk(f).lies = vec![
                        Lies::Partitions { table: "gpt".into(), parts: 1 },
                        Lies::Data { what: "LVM2_member".into(), at: "/dev/sdb1".into() },
                        Lies::Mounted { at: "/dev/sdb1".into(), on: "[SWAP]".into() },
                    ]
                },
                &[
                    "ok disk /dev/sdb: 100.0 GiB, a partition table (gpt), 1 partition, LVM on \
                     /dev/sdb1, /dev/sdb1 is in use as swap",
                    "missing disks: no disk is empty or holds a disk group: this machine stores \
                     nothing -> add a disk, or empty one; a file on ext4, xfs or btrfs works as \
                     well",
                ],
            ),
            (
                |f| only_disk(f).label = Err("Permission denied (os error 13)".into()),
                &["unknown disk /dev/sdb: 100.0 GiB, what lies on it could not be looked at: \
                     Permission denied (os error 13) -> ask again as root"],
            ),
            (
                |f| {
                    let disk = only_disk(f);
                    disk.label = Err("No such file or directory (os error 2)".into());
                    (disk.is_configured, disk.size_bytes) = (true, 0);
                },
                &["missing disk /dev/sdb: what lies on it could not be looked at: No such file \
                     or directory (os error 2) -> plug it in, or name another one under [[group]]"],
            ),
            (
                |f| {
                    let disk = only_disk(f);
                    (disk.is_configured, disk.size_bytes) = (true, GIB - 1);
                },
                &["missing disk /dev/sdb: 1024.0 MiB, smaller than 1 GiB -> name another disk \
                     under [[group]]; or, if nobody needs that: atoll disk wipe /dev/sdb"],
            ),
        ];
        for (change, wanted) in cases {
            let cluster = ClusterId(7).to_string();
            let wanted: Vec<String> =
                wanted.iter().map(|line| line.replace("CLUSTER", &cluster)).collect();
            assert_eq!(unlike_good(change), wanted);
        }
    }
}

//! What can be seen of this machine. Gathers and decides nothing.

use super::disks::{self, DiskFact, Known};
use super::firewall::{self, Verdict};
use super::program::output;
use crate::config::Config;
use crate::descriptors;
use atoll_api::Problem;
use rustix::process::{Resource, getrlimit};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Bytes of a program's answer that are read.
const ANSWER_MAX: u64 = 4 << 20;

/// Everything that is looked at.
#[derive(Debug)]
pub struct Facts {
    /// The kernel's release, `6.1.0-18-amd64`.
    pub kernel: String,
    /// Whether io_uring can be used; else why not.
    pub uring: Result<(), String>,
    /// Whether the clock is synchronised.
    pub clock: Known<bool>,
    /// Instructions and other features of the processors, as the kernel calls them.
    pub cpu: Known<BTreeSet<String>>,
    /// Bytes of memory that are there, and that could be had.
    pub memory: Known<(u64, u64)>,
    /// Open files.
    pub files: OpenFiles,
    /// The configuration, if it can be used; else why not.
    pub config: ConfigFact,
    /// A daemon answers at the configured socket.
    pub is_served: bool,
    /// Disks of the machine, and files that the configuration lists as disks.
    pub disks: Vec<DiskFact>,
    /// Why `disks` has none but those of the configuration; none: it has all.
    pub disks_unseen: Option<String>,
    /// The cluster that this host belongs to.
    pub cluster: Known<Option<String>>,
    /// Network interfaces but loopback.
    pub nics: Known<Vec<Nic>>,
    /// Addresses that a host listens on.
    pub ports: Vec<Port>,
    /// What the firewall does with connections to those, one by one.
    pub firewall: Known<Vec<Verdict>>,
}

/// The limits on open files, and what a host needs.
#[derive(Clone, Copy, Debug)]
pub struct OpenFiles {
    /// What a process of this user may raise its own limit to.
    pub hard: u64,
    /// Below this a host does not start.
    pub least: u64,
    /// What it needs with all clients and peers.
    pub most: u64,
}

/// What is known of the configuration.
#[derive(Debug)]
pub enum ConfigFact {
    /// It can be used; this file.
    Good(PathBuf),
    /// There is none: everything is looked at as by default.
    None(PathBuf),
    /// It cannot be used, or not be read.
    Bad(Problem),
}

/// A network interface.
#[derive(Clone, Debug)]
pub struct Nic {
    pub name: String,
    pub is_up: bool,
    pub mtu: u64,
    /// In megabits per second.
    pub speed: Option<u64>,
    pub addresses: Vec<IpAddr>,
}

/// An address that a host listens on.
#[derive(Clone, Debug)]
pub struct Port {
    /// The key that names it.
    pub key: &'static str,
    pub address: SocketAddr,
    pub state: PortState,
}

/// What came of an attempt to listen there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PortState {
    Free,
    Taken,
    /// The machine has no such address.
    NotHere,
    /// Something else keeps a host from it.
    Refused(String),
}

/// Looks at this machine, with the eyes of the user that asks.
pub async fn gather(config_file: &Path, environment: Vec<(String, String)>) -> Facts {
    let (config, of_config) = configuration(config_file, environment);
    let shards = config.shards(std::thread::available_parallelism().map_or(1, usize::from));
    let configured = config.groups.iter().map(|group| group.disks.len()).sum();
    let (least, most) = descriptors::needs(configured, shards);
    let hard = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let ports = ports(&config);
    let addresses: Vec<SocketAddr> = ports.iter().map(|port| port.address).collect();
    let (disks, disks_unseen) = all_disks(&config).await;
    Facts {
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        uring: atoll_real::try_uring(),
        clock: clock().await,
        cpu: read("/proc/cpuinfo").map(|text| cpu_features(&text)),
        memory: read("/proc/meminfo").and_then(|text| memory(&text)),
        files: OpenFiles { hard, least, most },
        config: of_config,
        is_served: config.api_socket.as_ref().is_some_and(|s| UnixStream::connect(s).is_ok()),
        disks,
        disks_unseen,
        cluster: cluster(&config.data_dir),
        nics: nics().await,
        ports,
        firewall: firewall(&addresses).await,
    }
}

/// The configuration that a host would have, or that of a host without any.
fn configuration(file: &Path, environment: Vec<(String, String)>) -> (Config, ConfigFact) {
    let fact = match Config::load(file, environment) {
        Ok(config) => return (config, ConfigFact::Good(file.to_owned())),
        Err(_) if !file.exists() => ConfigFact::None(file.to_owned()),
        Err(problem) => ConfigFact::Bad(problem),
    };
    (Config::default(), fact)
}

fn read(path: &str) -> Known<String> {
    std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))
}

async fn clock() -> Known<bool> {
    let words = ["timedatectl", "show", "-p", "NTPSynchronized", "--value"];
    let (said, _) = output(&words, 64).await?;
    match String::from_utf8_lossy(&said).trim() {
        "yes" => Ok(true),
        "no" => Ok(false),
        other => Err(format!("timedatectl says '{other}'")),
    }
}

/// Features of the first processor: all have the same.
fn cpu_features(cpuinfo: &str) -> BTreeSet<String> {
    let line =
        cpuinfo.lines().find(|line| line.starts_with("flags") || line.starts_with("Features"));
    let features = line.and_then(|line| line.split_once(':')).map_or("", |(_, features)| features);
    features.split_whitespace().map(str::to_owned).collect()
}

fn memory(meminfo: &str) -> Known<(u64, u64)> {
    let bytes = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kib = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
        kib.map(|kib| kib << 10).ok_or_else(|| format!("/proc/meminfo has no {name}"))
    };
    Ok((bytes("MemTotal")?, bytes("MemAvailable")?))
}

async fn all_disks(config: &Config) -> (Vec<DiskFact>, Option<String>) {
    let printed = output(disks::LSBLK, ANSWER_MAX).await;
    let (mut all, unseen) = match printed.and_then(|(printed, _)| disks::of_lsblk(&printed)) {
        Ok(all) => (all, None),
        Err(why) => (Vec::new(), Some(why)),
    };
    for path in config.groups.iter().flat_map(|group| &group.disks) {
        let device = disks::same(path);
        match all.iter_mut().find(|disk| disks::same(&disk.path) == device) {
            Some(disk) => {
                disk.is_configured = true;
                // As the configuration and its commands call it.
                disk.path.clone_from(path);
            }
            None => all.push(DiskFact {
                path: path.clone(),
                size_bytes: 0,
                sector_bytes: 512,
                is_read_only: false,
                is_configured: true,
                lies: Vec::new(),
                label: Err("not looked at".into()),
            }),
        }
    }
    for disk in &mut all {
        disk.label = disks::look(&disk.path).await.map(|(bytes, found)| {
            disk.size_bytes = disk.size_bytes.max(bytes);
            found
        });
    }
    (all, unseen)
}

/// What the data directory says, if it can be read.
fn cluster(data_dir: &Path) -> Known<Option<String>> {
    match std::fs::read_to_string(data_dir.join("cluster-id")) {
        Ok(id) => Ok(Some(id.trim().to_owned())),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(format!("{}/cluster-id: {e}", data_dir.display())),
    }
}

async fn nics() -> Known<Vec<Nic>> {
    let (printed, _) = output(&["ip", "-j", "address", "show"], ANSWER_MAX).await?;
    let mut all = of_ip(&printed)?;
    for nic in &mut all {
        let speed = std::fs::read_to_string(format!("/sys/class/net/{}/speed", nic.name));
        nic.speed = speed.ok().and_then(|text| text.trim().parse().ok()).filter(|&mbit| mbit > 0);
    }
    Ok(all)
}

/// The interfaces that `ip -j address` lists.
fn of_ip(json: &[u8]) -> Known<Vec<Nic>> {
    let whole: Value = serde_json::from_slice(json).map_err(|e| format!("ip: {e}"))?;
    let all = whole.as_array().ok_or("ip: it lists no interfaces")?;
    let real = |nic: &&Value| nic["link_type"] == "ether" || nic["link_type"] == "infiniband";
    let of_nic = |nic: &Value| Nic {
        name: nic["ifname"].as_str().unwrap_or_default().into(),
        is_up: nic["operstate"] == "UP",
        mtu: nic["mtu"].as_u64().unwrap_or(0),
        speed: None,
        addresses: nic["addr_info"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|address| address["scope"] != "link")
            .filter_map(|address| address["local"].as_str()?.parse().ok())
            .collect(),
    };
    Ok(all.iter().filter(real).map(of_nic).collect())
}

fn ports(config: &Config) -> Vec<Port> {
    let api = config.api.map(|address| ("network.api", address));
    let nbd = config.nbd_tcp.map(|address| ("frontends.nbd.tcp", address));
    let peers = config.peers.iter().map(|&address| ("network.peer", address));
    let port = |(key, address)| {
        // It is closed again at once; nobody connects meanwhile but a port scan.
        let state = match TcpListener::bind(address) {
            Ok(_) => PortState::Free,
            Err(e) if e.kind() == ErrorKind::AddrInUse => PortState::Taken,
            Err(e) if e.kind() == ErrorKind::AddrNotAvailable => PortState::NotHere,
            Err(e) => PortState::Refused(e.to_string()),
        };
        Port { key, address, state }
    };
    api.into_iter().chain(peers).chain(nbd).map(port).collect()
}

async fn firewall(addresses: &[SocketAddr]) -> Known<Vec<Verdict>> {
    // Without a module of it in the kernel there are no rules, installed or not.
    let modules = ["nf_tables", "ip_tables", "ip6_tables"];
    if !modules.iter().any(|module| Path::new("/sys/module").join(module).exists()) {
        return Ok(vec![Verdict::Open; addresses.len()]);
    }
    let (printed, _) = output(&["nft", "-j", "list", "ruleset"], ANSWER_MAX).await?;
    let rules: Value = serde_json::from_slice(&printed).map_err(|e| format!("nft: {e}"))?;
    Ok(addresses.iter().map(|&address| firewall::verdict(&rules, address)).collect())
}

#[cfg(test)]
mod tests {
    use super::{cpu_features, memory, of_ip};

    #[test]
    fn what_the_kernel_prints_is_read() {
        let features = cpu_features("processor : 0\nflags\t\t: fpu sse4_2 aes\nflags : other\n");
        assert_eq!(features.into_iter().collect::<Vec<_>>(), ["aes", "fpu", "sse4_2"]);
        let arm = cpu_features("processor : 0\nFeatures\t: fp aes crc32\n");
        assert!(arm.contains("crc32") && !arm.contains("sse4_2"));
        let meminfo = "MemTotal:        8039344 kB\nMemFree: 1 kB\nMemAvailable:    4019672 kB\n";
        assert_eq!(memory(meminfo), Ok((8_039_344 << 10, 4_019_672 << 10)));
        assert_eq!(memory("MemTotal: 1 kB\n"), Err("/proc/meminfo has no MemAvailable".into()));
    }

    #[test]
    fn interfaces_are_read_without_loopback_and_local_addresses() {
        let printed = br#"[
            {"ifname":"lo","link_type":"loopback","mtu":65536,"operstate":"UNKNOWN","addr_info":[]},
            {"ifname":"eth0","link_type":"ether","mtu":9000,"operstate":"UP","addr_info":[
                {"family":"inet","local":"10.0.0.11","scope":"global"},
                {"family":"inet6","local":"fe80::1","scope":"link"}]},
            {"ifname":"eth1","link_type":"ether","mtu":1500,"operstate":"DOWN","addr_info":[]}]"#;
        let nics = of_ip(printed).unwrap();
        let seen: Vec<_> = nics.iter().map(|nic| (nic.name.as_str(), nic.is_up, nic.mtu)).collect();
        assert_eq!(seen, [("eth0", true, 9000), ("eth1", false, 1500)]);
        assert_eq!(nics[0].addresses, ["10.0.0.11".parse::<std::net::IpAddr>().unwrap()]);
        assert!(of_ip(b"{}").is_err());
    }
}

//! What `atoll dev` is to run: names, addresses, files; decided before anything is started.

use crate::cli::args::DevStart;
use crate::cli::certificate::random_id;
use crate::config::SOCKET_PATH_MAX;
use crate::trust::{self, now_s};
use atoll_api::shell::quote;
use atoll_api::uri::Nbd;
use atoll_api::{Code, Endpoint, Problem};
use atoll_format::id::{ClusterId, HostId};
use atoll_format::units::iec;
use atoll_trust::{Authority, Credentials, HOST_VALID_S, TrustError};
use rustix::fs::{Mode, OFlags};
use std::fmt::Write;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The control socket, below the directory.
pub const SOCKET: &str = "dev.sock";
/// The smallest disk that a store accepts, in bytes.
const DISK_MIN: u64 = 1 << 30;
/// The largest, in bytes.
const DISK_END: u64 = atoll_store::limits::DEVICE_END;

/// A cluster on one machine.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Absolute.
    pub dir: PathBuf,
    /// `host1`, `host2`, ...
    pub hosts: Vec<HostPlan>,
    backend: String,
    disk_size: u64,
    shards: u8,
    tls: bool,
}

/// One host of it.
#[derive(Clone, Debug)]
pub struct HostPlan {
    /// `host1`.
    pub name: String,
    /// Its own.
    pub dir: PathBuf,
    /// Its own loopback address.
    address: Ipv4Addr,
    base_port: u16,
    /// Its disks.
    pub disks: Vec<PathBuf>,
}

/// A path as a value in a configuration file.
fn toml(path: &Path) -> String {
    toml::Value::from(&*path.to_string_lossy()).to_string()
}

/// `dir` from the root on; it need not exist.
pub fn absolute(dir: &Path) -> Result<PathBuf, Problem> {
    std::path::absolute(dir)
        .map_err(|e| Problem::new(Code::LocalFile, format!("{}: {e}", dir.display())))
}

impl Plan {
    /// What was asked for, checked as far as possible without touching anything.
    ///
    /// # Errors
    /// A path too long for a socket; a disk too small or too large.
    pub fn new(start: &DevStart) -> Result<Self, Problem> {
        let dir =
            start.dir.as_deref().ok_or_else(|| Problem::new(Code::Usage, "--dir is missing"))?;
        let dir = absolute(dir)?;
        // It is written into configuration files, which are text.
        if dir.to_str().is_none_or(|text| text.contains(char::is_control)) {
            let shown = quote(&dir);
            let detail = format!("--dir: {shown} has control characters or is not UTF-8");
            return Err(Problem::new(Code::BadValue, detail).hint("choose another directory"));
        }
        let longest = dir.join("host16/nbd.sock");
        let len = longest.as_os_str().len();
        if len > SOCKET_PATH_MAX {
            let detail = format!(
                "--dir is too long: {} has {len} bytes, Unix sockets allow {SOCKET_PATH_MAX}",
                longest.display()
            );
            return Err(Problem::new(Code::BadValue, detail).hint("choose a shorter directory"));
        }
        if !(DISK_MIN..DISK_END).contains(&start.disk_size) {
            let detail = format!(
                "--disk-size {} is not between {} and just below {}",
                iec(start.disk_size),
                iec(DISK_MIN),
                iec(DISK_END)
            );
            return Err(Problem::new(Code::BadSize, detail));
        }
        let hosts = (1..=start.hosts)
            .map(|number| {
                let name = format!("host{number}");
                let own = dir.join(&name);
                let disks =
                    (1..=start.disks_per_host).map(|disk| own.join(format!("disk{disk}.img")));
                HostPlan {
                    disks: disks.collect(),
                    dir: own,
                    name,
                    address: Ipv4Addr::new(127, 0, 0, number + 1),
                    base_port: start.base_port,
                }
            })
            .collect();
        let disk_size = start.disk_size / (1 << 20) * (1 << 20);
        let (backend, shards, tls) = (start.backend.clone(), start.shards, start.tls == "on");
        Ok(Self { dir, hosts, backend, disk_size, shards, tls })
    }

    /// Where the directory's files are.
    pub fn directory_dir(&self) -> PathBuf {
        self.dir.join(super::process::DIRECTORY)
    }

    /// The directory's socket.
    pub fn directory_socket(&self) -> PathBuf {
        self.directory_dir().join("socket")
    }

    /// Makes the directories.
    ///
    /// # Errors
    /// [`Code::LocalFile`].
    pub fn make_dirs(&self) -> Result<(), Problem> {
        for dir in self.hosts.iter().map(|host| host.dir.clone()).chain([self.directory_dir()]) {
            std::fs::create_dir_all(&dir)
                .map_err(|e| Problem::new(Code::LocalFile, format!("{}: {e}", dir.display())))?;
        }
        Ok(())
    }

    /// Whether files there can be used past the page cache, as disks have to be.
    ///
    /// # Errors
    /// Names the directory and what to do.
    pub fn check_direct_io(&self) -> Result<(), Problem> {
        let probe = self.dir.join(".direct-io");
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::DIRECT;
        let opened = rustix::fs::open(&probe, flags, Mode::from_raw_mode(0o600));
        let _ = std::fs::remove_file(&probe);
        match opened {
            Ok(_) => Ok(()),
            Err(rustix::io::Errno::INVAL) => Err(Problem::new(
                Code::BadDisk,
                format!("the file system of {} cannot do direct I/O (tmpfs?)", self.dir.display()),
            )
            .hint("choose a --dir on ext4, xfs or btrfs, such as below /var/tmp")),
            Err(e) => Err(Problem::new(Code::LocalFile, format!("{}: {e}", self.dir.display()))),
        }
    }

    /// What a person needs to go on.
    pub fn summary(&self) -> String {
        let mut text = format!("{} hosts run in {}\n", self.hosts.len(), self.dir.display());
        for host in &self.hosts {
            let _ = writeln!(text, "  {}  {}  {}", host.name, host.endpoint(), host.nbd());
        }
        let first = &self.hosts[0];
        let _ = writeln!(text, "next: export ATOLL_ENDPOINT={}", quote(first.endpoint()));
        let _ = writeln!(text, "      atoll status; atoll volume create vm1 10G");
        let _ = writeln!(text, "stop: atoll dev stop --dir {}", quote(&self.dir));
        text
    }

    /// The configuration of a host.
    pub fn config(&self, host: &HostPlan) -> String {
        let mut text = format!(
            "# Written by atoll dev; written again at every start.\n\
             [host]\nname = \"{name}\"\ndata_dir = {data}\nshards = {shards}\n\n\
             [network]\napi = \"{address}:{port}\"\napi_socket = {api}\n\
             peer = [\"{address}:{peer}\"]\ntls = {tls}\n\n\
             [directory]\nkind = \"embedded\"\nsocket = {directory}\n\n\
             [frontends]\nnbd = {{ unix = {nbd} }}\n",
            name = host.name,
            shards = self.shards,
            data = toml(&host.data_dir()),
            tls = self.tls,
            api = toml(&host.api_socket()),
            nbd = toml(&host.nbd_socket()),
            address = host.address,
            port = host.base_port,
            peer = host.base_port + 1,
            directory = toml(&self.directory_socket()),
        );
        if self.backend != "auto" {
            let _ = write!(text, "\n[io]\nbackend = \"{}\"\n", self.backend);
        }
        for disk in &host.disks {
            let _ = write!(text, "\n[[group]]\ndisks = [{}]\n", toml(disk));
        }
        text
    }

    /// Gives every host a new certificate, and the cluster an authority if it has none.
    ///
    /// # Errors
    /// [`Code::LocalFile`].
    pub fn make_certificates(&self) -> Result<(), Problem> {
        if !self.tls {
            return Ok(());
        }
        let failed = |e: TrustError| Problem::new(Code::LocalFile, e.to_string());
        let dir = self.dir.join("authority");
        if !Authority::is_in(&dir) {
            // A cluster that an earlier start made without TLS stays the same.
            let known = self.hosts.iter().find_map(|host| host.known::<ClusterId>("cluster-id"));
            let cluster = known.map_or_else(|| random_id().map(ClusterId), Ok)?;
            Authority::create(cluster, "dev", now_s())
                .and_then(|a| a.save(&dir))
                .map_err(failed)?;
        }
        let authority = Authority::load(&dir).map_err(failed)?;
        for host in &self.hosts {
            let dir = host.data_dir().join(trust::DIR);
            let before = || Some(Credentials::load(&dir).ok()?.identity().host);
            let id = host.known::<HostId>("host-id").or_else(before);
            let id = id.map_or_else(|| random_id().map(HostId), Ok)?;
            let made = authority.equip(id, now_s(), HOST_VALID_S).map_err(failed)?;
            made.save(&dir).map_err(failed)?;
        }
        Ok(())
    }

    /// Makes the disks of a host that do not exist yet, sparse, and names them.
    ///
    /// # Errors
    /// [`Code::LocalFile`].
    pub fn make_disks(&self, host: &HostPlan) -> Result<Vec<PathBuf>, Problem> {
        let mut made = Vec::new();
        for disk in &host.disks {
            let failed = |e| Problem::new(Code::LocalFile, format!("{}: {e}", disk.display()));
            if disk.try_exists().map_err(failed)? {
                continue;
            }
            let file = std::fs::File::create_new(disk).map_err(failed)?;
            file.set_len(self.disk_size).map_err(failed)?;
            file.sync_all().map_err(failed)?;
            made.push(disk.clone());
        }
        Ok(made)
    }
}

impl HostPlan {
    /// Its identity, and what it keeps beside its disks.
    fn data_dir(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// An identity that its data directory has.
    fn known<T: FromStr>(&self, name: &str) -> Option<T> {
        std::fs::read_to_string(self.data_dir().join(name)).ok()?.trim().parse().ok()
    }

    /// Where its REST interface is.
    pub fn endpoint(&self) -> String {
        Endpoint::Unix(self.api_socket()).to_string()
    }

    /// Its Unix socket.
    pub fn api_socket(&self) -> PathBuf {
        self.dir.join("api.sock")
    }

    /// The socket where its volumes are exported.
    fn nbd_socket(&self) -> PathBuf {
        self.dir.join("nbd.sock")
    }

    /// Where clients of its volumes connect.
    pub fn nbd(&self) -> String {
        Nbd::unix("VOLUME", self.nbd_socket()).to_string()
    }

    /// Its configuration file.
    pub fn config_file(&self) -> PathBuf {
        self.dir.join("atoll.toml")
    }

    /// There once its disks have been formatted.
    pub fn formatted(&self) -> PathBuf {
        self.dir.join("formatted")
    }
}

#[cfg(test)]
mod tests {
    use super::{ClusterId, Credentials, HostId, HostPlan, Plan};
    use crate::cli::args::DevStart;
    use crate::config::Config;
    use crate::trust;
    use atoll_api::Endpoint;
    use atoll_api::uri::Nbd;

    fn start(dir: &str) -> DevStart {
        DevStart {
            hosts: 3,
            dir: Some(dir.into()),
            disk_size: 8 << 30,
            disks_per_host: 2,
            shards: 2,
            base_port: 9000,
            backend: "threads".into(),
            tls: "on".into(),
            detach: false,
            auto_restart: false,
            background: false,
        }
    }

    #[test]
    fn what_it_writes_is_a_configuration_that_serve_accepts() {
        let dir = tempfile::tempdir().unwrap();
        let plan = Plan::new(&start(dir.path().to_str().unwrap())).unwrap();
        plan.make_dirs().unwrap();
        let host = &plan.hosts[2];
        std::fs::write(host.config_file(), plan.config(host)).unwrap();
        let config = Config::load(&host.config_file(), []).unwrap();
        assert_eq!(config.host_name, "host3");
        assert_eq!(config.api, Some("127.0.0.4:9000".parse().unwrap()));
        assert_eq!(config.peers, ["127.0.0.4:9001".parse().unwrap()]);
        assert_eq!((config.groups.len(), config.shards(1)), (2, 2));
        assert_eq!(plan.make_disks(host).unwrap().len(), 2);
        assert_eq!(plan.make_disks(host).unwrap().len(), 0, "disks are made once");
        assert_eq!(host.disks[0].metadata().unwrap().len(), 8 << 30);
    }

    #[test]
    fn hosts_get_certificates_of_one_authority_and_stay_who_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let plan = Plan::new(&start(dir.path().to_str().unwrap())).unwrap();
        plan.make_dirs().unwrap();
        let host1 = plan.hosts[0].dir.join("data");
        std::fs::create_dir_all(&host1).unwrap();
        std::fs::write(host1.join("host-id"), "00000000000000aa\n").unwrap();
        std::fs::write(host1.join("cluster-id"), "00000000000000cc\n").unwrap();
        let made = || {
            plan.make_certificates().unwrap();
            let load = |h: &HostPlan| Credentials::load(&h.data_dir().join(trust::DIR)).unwrap();
            plan.hosts.iter().map(|host| load(host).identity()).collect::<Vec<_>>()
        };
        let first = made();
        assert_eq!((first[0].cluster, first[0].host), (ClusterId(0xcc), HostId(0xaa)));
        assert!(first.iter().all(|identity| identity.cluster == ClusterId(0xcc)));
        assert_ne!(first[1].host, first[2].host);
        assert_eq!(made(), first);
        let off = DevStart { tls: "off".into(), ..start("/tmp/x") };
        let plan = Plan::new(&off).unwrap();
        assert!(plan.config(&plan.hosts[0]).contains("tls = false"));
    }

    #[test]
    fn impossible_plans_are_refused() {
        let long = format!("/tmp/{}", "x".repeat(100));
        assert!(Plan::new(&start(&long)).unwrap_err().detail.contains("Unix sockets allow 107"));
        let large = DevStart { disk_size: 16 << 40, ..start("/tmp/x") };
        let why = Plan::new(&large).unwrap_err().to_string();
        assert!(why.contains("just below 16.0 TiB"), "{why}");
        let small = DevStart { disk_size: 1 << 20, ..start("/tmp/x") };
        assert!(Plan::new(&small).unwrap_err().detail.contains("not between 1.0 GiB"));
        assert!(Plan::new(&start("/tmp/a\nb")).is_err());
    }

    #[test]
    fn special_names_are_escaped_quoted_and_read_back() {
        let parent = tempfile::tempdir().unwrap();
        for name in ["a b", "a%20b", "a#b", "a&b=c", "a?b;c+d,e", "\u{e4}\"'\\"] {
            let plan = Plan::new(&start(parent.path().join(name).to_str().unwrap())).unwrap();
            plan.make_dirs().unwrap();
            let host = &plan.hosts[0];
            std::fs::write(host.config_file(), plan.config(host)).unwrap();
            let config = Config::load(&host.config_file(), []).unwrap();
            let nbd: Nbd = host.nbd().parse().unwrap();
            assert_eq!(nbd, Nbd::unix("VOLUME", config.nbd_socket.unwrap()));
            assert_eq!(host.endpoint().parse().ok(), config.api_socket.map(Endpoint::Unix));
            let summary = plan.summary();
            let export = summary.lines().find_map(|line| line.strip_prefix("next: ")).unwrap();
            let stop = summary.lines().find_map(|line| line.strip_prefix("stop: ")).unwrap();
            let script = format!(
                "atoll() {{ printf '%s\\n' \"$@\"; }}; {export}; {stop}; echo \"$ATOLL_ENDPOINT\""
            );
            let done = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
            let dir = plan.dir.display();
            let said = format!("dev\nstop\n--dir\n{dir}\n{}\n", host.endpoint());
            assert_eq!(String::from_utf8(done.stdout).unwrap(), said);
        }
    }
}

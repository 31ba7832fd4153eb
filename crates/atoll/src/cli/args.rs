//! The command line: what can be typed. Every command has a line about it and an example.

use super::out::{Color, Format};
use crate::audit::Head;
use atoll_api::Endpoint;
use atoll_api::routes::Role;
use atoll_format::id::{ClusterId, HostId};
use atoll_format::units::parse_size;
use atoll_sim::fault::FaultKind;
use atoll_sim::fault::subset;
use atoll_sim::scale::{CpuPerIo, DiskKind, Network, Place, Workload};
use atoll_trust::HOST_VALID_S;
use atoll_world::Nanos;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::net::IpAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

/// Where a daemon listens when the configuration says nothing.
pub const DEFAULT_ENDPOINT: &str = "unix:///run/atoll/api.sock";
/// The configuration that the package installs.
pub(super) const DEFAULT_CONFIG: &str = "/etc/atoll/atoll.toml";

/// Mirrored block storage for virtual machines from the disks of several hosts.
#[derive(Debug, Parser)]
#[command(name = "atoll", version, about, max_term_width = 100, disable_help_subcommand = true)]
#[command(after_help = "Example: atoll dev --hosts 3 --dir /var/tmp/atoll --detach")]
pub struct Cli {
    #[command(flatten)]
    pub globals: Globals,
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Options of every command")]
pub struct Globals {
    /// How data is printed
    #[arg(short, long, global = true, value_enum, default_value = "table")]
    pub output: Format,
    /// Print tables without their titles
    #[arg(short = 'H', long, global = true)]
    pub no_header: bool,
    /// The daemon to ask: unix:///path (a URI: %20 is a blank), /path, https://host:port or
    /// http://host:port
    #[arg(long, global = true, env = "ATOLL_ENDPOINT", default_value = DEFAULT_ENDPOINT)]
    pub endpoint: Endpoint,
    /// Over https://, who has signed the certificates of hosts that are believed: authority.crt
    #[arg(long, global = true, value_name = "FILE", env = "ATOLL_CA")]
    pub ca: Option<PathBuf>,
    /// Over https://, the file with the token to show there; without it, ATOLL_TOKEN holds it
    #[arg(long, global = true, value_name = "FILE", env = "ATOLL_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,
    /// Seconds to wait for an answer
    #[arg(long, global = true, env = "ATOLL_TIMEOUT", default_value_t = 60,
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout: u64,
    /// Check everything, change nothing
    #[arg(long, global = true)]
    pub dry_run: bool,
    /// Do not ask before data is lost
    #[arg(short, long, global = true)]
    pub yes: bool,
    /// Print the request as a curl command instead of sending it
    #[arg(long, global = true)]
    pub curl: bool,
    /// When to colour
    #[arg(long, global = true, value_enum, default_value = "auto")]
    pub color: Color,
    /// No progress and no notes
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Show the requests
    #[arg(short, long, global = true)]
    pub verbose: bool,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run this host's daemon
    #[command(after_help = "Example: atoll serve --config /etc/atoll/atoll.toml")]
    Serve(Serve),
    /// Run a whole cluster on this machine: a directory and several hosts with files as disks
    #[command(args_conflicts_with_subcommands = true)]
    #[command(after_help = "Example: atoll dev --hosts 3 --dir /var/tmp/atoll --detach")]
    Dev(Dev),
    /// Show health, capacity, load and resync on one screen
    #[command(after_help = "Example: atoll status --watch")]
    Status(Status),
    /// Show live load, the busiest first; or where its time goes
    #[command(after_help = "Example: atoll top --profile --interval 5")]
    Top(Top),
    /// The cluster and its settings
    #[command(subcommand)]
    Cluster(Cluster),
    /// Hosts of the cluster
    #[command(subcommand)]
    Host(Host),
    /// Disks that hosts are configured to use
    #[command(subcommand)]
    Disk(Disk),
    /// Disk groups
    #[command(subcommand)]
    Group(Group),
    /// Storage policies
    #[command(subcommand)]
    Policy(Policy),
    /// Volumes
    #[command(subcommand)]
    Volume(Volume),
    /// Copies that are being brought up to date
    #[command(subcommand)]
    Resync(Resync),
    /// Verification of checksums
    #[command(subcommand)]
    Scrub(Scrub),
    /// Work that outlasts its request
    #[command(subcommand)]
    Task(Task),
    /// What has happened
    #[command(after_help = "Example: atoll events --follow")]
    Events(Events),
    /// Clients of volumes
    #[command(subcommand)]
    Session(Session),
    /// Who may ask the hosts over a network
    #[command(subcommand)]
    Token(Token),
    /// Who has changed what, and who was not let
    #[command(subcommand)]
    Audit(Audit),
    /// For the day something is wrong
    #[command(subcommand)]
    Support(Support),
    /// Whole clusters in virtual time, with every fault that there is
    #[command(subcommand)]
    Sim(SimCommand),
    /// Completions for a shell
    #[command(after_help = "Example: atoll completion bash > /etc/bash_completion.d/atoll")]
    Completion(Completion),
    /// Manual pages
    #[command(after_help = "Example: atoll man --dir /usr/local/share/man/man1")]
    Man(Man),
    /// This host's own member of the cluster's etcd
    #[command(subcommand)]
    Etcd(Etcd),
    /// Run the embedded directory (started by `atoll dev`, and by the units of the package)
    #[command(hide = true)]
    #[command(after_help = "Example: atoll directory --file d/directory.db --socket d/socket")]
    Directory(Directory),
}

#[derive(Debug, Args)]
pub struct Serve {
    /// Configuration file; conf.d/*.toml beside it and ATOLL_* variables are read after it
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    pub config: PathBuf,
    /// Read and check the configuration, and stop
    #[arg(long)]
    pub check_config: bool,
}

#[derive(Debug, Args)]
pub struct Directory {
    /// The file that holds the cluster's state
    #[arg(long)]
    pub file: PathBuf,
    /// Unix socket to answer on
    #[arg(long)]
    pub socket: PathBuf,
}

#[derive(Debug, Args)]
pub struct Dev {
    #[command(subcommand)]
    pub command: Option<DevCommand>,
    #[command(flatten)]
    pub start: DevStart,
}

#[derive(Clone, Debug, Args)]
pub struct DevStart {
    /// Hosts to run, 1 to 16
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub hosts: u8,
    /// Directory for everything: disks, sockets, logs
    #[arg(long, value_name = "DIR", required = true)]
    pub dir: Option<PathBuf>,
    /// Size of each disk (a sparse file)
    #[arg(long, default_value = "8GiB", value_parser = parse_size)]
    pub disk_size: u64,
    /// Disks of each host, each a disk group of its own
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=8))]
    pub disks_per_host: u8,
    /// Shards of each host: threads that serve its disk groups and volumes; 0: as many as `atoll
    /// serve` takes by itself
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=64))]
    pub shards: u8,
    /// First of the two ports that each host uses on its own loopback address
    #[arg(long, default_value_t = 8460, value_parser = clap::value_parser!(u16).range(1..=65_534))]
    pub base_port: u16,
    /// How disks are driven
    #[arg(long, default_value = "auto", value_parser = ["auto", "uring", "threads"])]
    pub backend: String,
    /// Whether hosts use TLS between each other, with an authority in DIR/authority
    #[arg(long, default_value = "on", value_parser = ["on", "off"])]
    pub tls: String,
    /// Go on in the background once every host serves
    #[arg(long)]
    pub detach: bool,
    /// Start a process again when it dies by itself
    #[arg(long)]
    pub auto_restart: bool,
    /// Set by --detach for the process in the background
    #[arg(long, hide = true)]
    pub background: bool,
}

#[derive(Debug, Subcommand)]
pub enum DevCommand {
    /// Show the processes
    #[command(after_help = "Example: atoll dev status --dir /var/tmp/atoll")]
    Status(DevDir),
    /// Kill a host at once, as a crash does (SIGKILL)
    #[command(after_help = "Example: atoll dev kill host2 --dir /var/tmp/atoll")]
    Kill(DevName),
    /// Start a process that does not run
    #[command(after_help = "Example: atoll dev start host2 --dir /var/tmp/atoll")]
    Start(DevName),
    /// Stop a process cleanly and start it again
    #[command(after_help = "Example: atoll dev restart host2 --dir /var/tmp/atoll")]
    Restart(DevName),
    /// Stop one host cleanly
    #[command(after_help = "Example: atoll dev stop-host host2 --dir /var/tmp/atoll")]
    StopHost(DevName),
    /// Stop one process, or everything
    #[command(after_help = "Example: atoll dev stop --dir /var/tmp/atoll")]
    Stop(DevStop),
}

#[derive(Clone, Debug, Args)]
pub struct DevDir {
    /// The directory that `atoll dev` was started with
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
}

#[derive(Clone, Debug, Args)]
pub struct DevName {
    /// `host1`, `host2`, ... or `directory`
    pub name: String,
    #[command(flatten)]
    pub dir: DevDir,
}

#[derive(Clone, Debug, Args)]
pub struct DevStop {
    /// `host1`, `host2`, ... or `directory`; everything without it
    pub name: Option<String>,
    #[command(flatten)]
    pub dir: DevDir,
}

#[derive(Debug, Args)]
pub struct Status {
    /// One line and the exit codes of monitoring plug-ins: 0 ok, 1 warning, 2 critical, 3 unknown
    #[arg(long)]
    pub check: bool,
    /// Show it again every two seconds, until Ctrl-C
    #[arg(long, conflicts_with = "check")]
    pub watch: bool,
}

/// What `atoll top` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TopOf {
    /// Volumes.
    Volumes,
    /// Hosts, by the load of their clients.
    Hosts,
}

#[derive(Debug, Args)]
pub struct Top {
    /// Of what
    #[arg(value_enum, default_value = "volumes")]
    pub of: TopOf,
    /// How long each stage of I/O takes, in the whole cluster; with -o wide also host by host
    #[arg(long, conflicts_with = "of")]
    pub profile: bool,
    /// Seconds between two looks
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub interval: u64,
    /// Screens to show; without it, until Ctrl-C on a terminal, and one elsewhere
    #[arg(long, conflicts_with = "watch", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Go on until Ctrl-C also where nobody looks: a pipe, a file
    #[arg(long)]
    pub watch: bool,
}

#[derive(Debug, Subcommand)]
pub enum Host {
    /// List hosts
    #[command(after_help = "Example: atoll host list -o wide")]
    List,
    /// Show one host
    #[command(after_help = "Example: atoll host show host1")]
    Show {
        /// Its name or id
        host: String,
    },
    /// Remove a host from the cluster for good: one that holds nothing, or one that is lost
    #[command(after_help = "Example: atoll host remove host3 --lost")]
    Remove {
        /// Its name or id
        host: String,
        /// It does not answer and will not come back: give up its copies, and make them anew on
        /// other hosts at once; refused if a volume has no other complete copy
        #[arg(long)]
        lost: bool,
    },
    /// Look at this machine, whether it can be a host, and say what is missing
    #[command(after_help = "Example: atoll host prepare --check")]
    Prepare(Prepare),
}

#[derive(Debug, Args)]
pub struct Prepare {
    /// Only look; nothing is changed
    #[arg(long, required = true)]
    pub check: bool,
    /// Configuration of the host that this machine is to be
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    pub config: PathBuf,
}

#[derive(Debug, Subcommand)]
pub enum Support {
    /// Put what is needed on the day something is wrong into one file, without secrets
    #[command(after_help = "Example: atoll support bundle --to /var/tmp/atoll.tar.gz")]
    Bundle(Bundle),
}

#[derive(Debug, Args)]
pub struct Bundle {
    /// The file to make, mode 0600; without it, atoll-support-HOST-TIME.tar.gz here
    #[arg(long, value_name = "FILE")]
    pub to: Option<PathBuf>,
    /// Configuration of this host
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    pub config: PathBuf,
}

#[derive(Debug, Subcommand)]
pub enum Disk {
    /// List disks
    #[command(after_help = "Example: atoll disk list --host host1")]
    List {
        /// Only this host's
        #[arg(long)]
        host: Option<String>,
    },
    /// Show one disk
    #[command(after_help = "Example: atoll disk show /dev/nvme0n1 --host host1")]
    Show {
        /// Its path, as the host is configured
        path: String,
        /// Its host; the one that answers without it
        #[arg(long)]
        host: Option<String>,
    },
    /// Erase what a disk holds; the disk of a running group is refused
    #[command(after_help = "Example: atoll disk wipe /dev/nvme0n1 --host host1")]
    Wipe {
        /// Its path, as the host is configured
        path: String,
        /// Its host; the one that answers without it
        #[arg(long)]
        host: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
pub enum Group {
    /// Label the empty disks of a [[group]] of the configuration and start it
    #[command(after_help = "Example: atoll group create /dev/nvme0n1 --host host1")]
    Create {
        /// Paths as the configuration lists them, the cache first
        #[arg(required = true)]
        disks: Vec<String>,
        /// Their host; the one that answers without it
        #[arg(long)]
        host: Option<String>,
    },
    /// List disk groups
    #[command(after_help = "Example: atoll group list")]
    List,
    /// Show one disk group
    #[command(after_help = "Example: atoll group show 5ab1c0d2e3f40516")]
    Show {
        /// Its id
        group: String,
    },
}

#[derive(Debug, Subcommand)]
pub enum Cluster {
    /// Show the cluster and its settings
    #[command(after_help = "Example: atoll cluster show")]
    Show,
    /// Change the cluster's settings
    #[command(after_help = "Example: atoll cluster set --promised-limit 1500")]
    Set {
        /// What volumes may take on disks in all, all copies, in percent of the space that exists:
        /// 100 to 1000000; beyond, no volume is made or grown
        #[arg(long)]
        promised_limit: u32,
    },
    /// Which feature level the cluster is at, and which the releases on its hosts know; with
    /// --commit, raise it: what newer releases write is used, and older ones do not run any more
    #[command(after_help = "Example: atoll cluster upgrade --commit")]
    Upgrade {
        /// Only show it, as without an option
        #[arg(long, conflicts_with = "commit")]
        check: bool,
        /// Raise the cluster to the newest level that all hosts know, for good
        #[arg(long)]
        commit: bool,
    },
    /// Make this machine the first host of a new cluster: its authority, its certificate, and
    /// conf.d/cluster.toml. At a terminal it asks for what was not given
    #[command(after_help = "Example: atoll cluster init --address 10.0.0.1")]
    Init(Init),
    /// Make a token by which one machine joins the cluster, and print it: once, never again
    #[command(after_help = "Example: atoll cluster join-token --name host2 --expires 1h")]
    JoinToken(JoinToken),
    /// Make this machine a host of a cluster, by a token for joining: in --token-file, in
    /// ATOLL_TOKEN, or on standard input
    #[command(after_help = "Example: atoll cluster join --token-file host2.token")]
    Join(JoinHost),
    /// Who signs the certificates of the cluster's hosts
    #[command(subcommand)]
    Authority(Authority),
    /// Make a key and a certificate for a host, or new ones before these expire
    #[command(after_help = "Example: atoll cluster certificate --authority /root/authority --out \
                            /var/lib/atoll/trust")]
    Certificate(Certificate),
}

#[derive(Debug, Args)]
pub struct Init {
    /// Where other hosts reach this one; without it, as network.peer is configured, or by the
    /// default route
    #[arg(long, value_name = "IP")]
    pub address: Option<IpAddr>,
    /// The members of an etcd that is there; without it, up to five hosts run their own (unit
    /// atoll-etcd), beginning with this one
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    pub etcd: Vec<String>,
    /// No etcd: the state of the cluster is on this machine alone, and no other one can join
    #[arg(long, conflicts_with = "etcd")]
    pub embedded: bool,
    /// Who signed the certificates of etcd (PEM); without it, etcd has no TLS
    #[arg(long, value_name = "FILE", requires = "etcd")]
    pub etcd_ca: Option<PathBuf>,
    /// This host's certificate for etcd (PEM)
    #[arg(long, value_name = "FILE", requires = "etcd_key")]
    pub etcd_certificate: Option<PathBuf>,
    /// The key of that certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "etcd_certificate")]
    pub etcd_key: Option<PathBuf>,
    /// Configuration of this host; conf.d beside it is written to
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    pub config: PathBuf,
}

#[derive(Debug, Subcommand)]
pub enum Etcd {
    /// Wait until this host has a member of etcd, and run it (unit atoll-etcd does)
    #[command(after_help = "Example: atoll etcd run --config /etc/atoll/atoll.toml")]
    Run {
        /// Configuration of this host
        #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
        config: PathBuf,
    },
}

#[derive(Debug, Args)]
pub struct JoinToken {
    /// Its name; without it, join- and eight digits
    #[arg(long)]
    pub name: Option<String>,
    /// For how long it is good, at most a day; without it, 15 minutes
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub expires: Option<Duration>,
    /// Where the new machine reaches network.api of a host, up to 8 times; without it, the host
    /// that is asked
    #[arg(long, value_name = "HOST:PORT")]
    pub address: Vec<String>,
}

#[derive(Debug, Args)]
pub struct JoinHost {
    /// Where other hosts reach this one; without it, as network.peer is configured, or by the
    /// address that reaches the cluster
    #[arg(long, value_name = "IP")]
    pub address: Option<IpAddr>,
    /// Configuration of this host; conf.d beside it is written to
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    pub config: PathBuf,
}

#[derive(Debug, Subcommand)]
pub enum Authority {
    /// Make the authority of a cluster: a secret that belongs on a safe machine
    #[command(after_help = "Example: atoll cluster authority create --dir /root/authority")]
    Create {
        /// Where it is kept: authority.key, which is secret, and authority.crt
        #[arg(long, value_name = "DIR")]
        dir: PathBuf,
        /// The cluster that it is for (`atoll cluster show`); without it, a new one, which its
        /// first host founds
        #[arg(long, value_name = "ID")]
        cluster: Option<ClusterId>,
    },
}

#[derive(Debug, Args)]
pub struct Certificate {
    /// The host that it is for (`atoll host list -o wide`); without it, the one of the certificate
    /// in --out, or else a new one
    #[arg(value_name = "HOST-ID")]
    pub host: Option<HostId>,
    /// An address at which clients that know servers by their addresses (etcd, curl, a browser)
    /// reach it; without it, those that this machine is configured with, if --out is of its host
    #[arg(long, value_name = "IP")]
    pub address: Vec<IpAddr>,
    /// Where the cluster's authority is
    #[arg(long, value_name = "DIR")]
    pub authority: PathBuf,
    /// Where to put key and certificate: the directory `trust` in the host's host.data_dir
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// How long it is valid: 1s to 90d
    #[arg(long, value_name = "TIME", default_value = "90d", value_parser = parse_validity)]
    pub valid: Duration,
}

#[derive(Debug, Subcommand)]
pub enum Policy {
    /// Create a storage policy
    #[command(after_help = "Example: atoll policy create gold --failures-to-tolerate 2")]
    Create {
        /// Its name
        name: String,
        /// Failures of hosts that lose nothing: 0 to 3
        #[arg(long, default_value_t = 1)]
        failures_to_tolerate: u8,
        /// Legs that strips are spread over: 1 to 12
        #[arg(long, default_value_t = 1)]
        stripe_width: u8,
        /// Ceiling in I/Os per second; none or 0: no ceiling
        #[arg(long, default_value = "none", value_parser = parse_iops)]
        iops_limit: u32,
        /// Part of each copy that must be free on disks when a volume is made or grown, in percent:
        /// 0 (thin) to 100
        #[arg(long, default_value_t = 0)]
        reserve: u8,
    },
    /// List storage policies
    #[command(after_help = "Example: atoll policy list")]
    List,
    /// Show one storage policy
    #[command(after_help = "Example: atoll policy show default")]
    Show {
        /// Its name
        name: String,
    },
    /// Delete a storage policy that no volume uses
    #[command(after_help = "Example: atoll policy delete gold")]
    Delete {
        /// Its name
        name: String,
    },
    /// Say whether a volume of that size could be placed now, and why not
    #[command(after_help = "Example: atoll policy check gold --size 100G")]
    Check {
        /// Its name
        name: String,
        /// Size of the volume: 4096, 64k, 10G, 1.5TiB
        #[arg(long, value_parser = parse_size)]
        size: u64,
    },
}

/// Formats of disk images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ImageFormat {
    /// The bytes as they are.
    Raw,
    /// QEMU's own.
    Qcow2,
}

impl ImageFormat {
    /// As qemu-img calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum Volume {
    /// Create a thin volume
    #[command(after_help = "Example: atoll volume create vm1 100G --policy gold")]
    Create {
        /// Its name: letters, digits, '.', '_' and '-'
        name: String,
        /// Its size: 10G, 1.5TiB (G means GiB)
        #[arg(value_parser = parse_size)]
        size: u64,
        /// Its policy; `default` without it
        #[arg(long)]
        policy: Option<String>,
        /// The same key again gives the same answer instead of "exists already"
        #[arg(long)]
        idempotency_key: Option<String>,
    },
    /// List volumes
    #[command(after_help = "Example: atoll volume list -o wide")]
    List,
    /// Show one volume
    #[command(after_help = "Example: atoll volume show vm1")]
    Show {
        /// Its name
        name: String,
    },
    /// Change the size of a volume
    #[command(after_help = "Example: atoll volume resize vm1 200G")]
    Resize {
        /// Its name
        name: String,
        /// Its new size
        #[arg(value_parser = parse_size)]
        size: u64,
        /// It may become smaller; what lies beyond is lost
        #[arg(long)]
        shrink: bool,
    },
    /// Change the limit of a volume, also while it is in use
    #[command(after_help = "Example: atoll volume set vm1 --iops-limit 500")]
    Set {
        /// Its name
        name: String,
        /// I/Os per second of all its clients together, or "none"
        #[arg(long, value_parser = parse_iops)]
        iops_limit: u32,
    },
    /// Delete a volume that nobody uses
    #[command(after_help = "Example: atoll volume delete vm1 --yes")]
    Delete {
        /// Its name
        name: String,
        /// Also if a host that does not answer may use it
        #[arg(long)]
        force: bool,
    },
    /// Copy an image (raw or qcow2) into a volume, which is created if it does not exist
    #[command(after_help = "Example: atoll volume import vm1 debian-12.qcow2 --verify")]
    Import {
        /// Name of the volume
        name: String,
        /// The image
        file: PathBuf,
        /// Format of the image, told by its content without it; raw takes any file byte by byte
        #[arg(long, value_enum)]
        format: Option<ImageFormat>,
        /// Policy of a volume that is created
        #[arg(long)]
        policy: Option<String>,
        /// Refuse to create the volume
        #[arg(long)]
        existing: bool,
        /// Compare afterwards, also that the rest of the volume reads as zeros
        #[arg(long)]
        verify: bool,
    },
    /// Copy a volume into an image (raw or qcow2)
    #[command(after_help = "Example: atoll volume export vm1 vm1.qcow2 --format qcow2")]
    Export {
        /// Name of the volume
        name: String,
        /// The image
        file: PathBuf,
        /// Format of the image; by its ending (.qcow2), else raw
        #[arg(long, value_enum)]
        format: Option<ImageFormat>,
        /// Replace a file that exists
        #[arg(long)]
        force: bool,
        /// Compare afterwards
        #[arg(long)]
        verify: bool,
    },
    /// Show where a volume is, and why
    #[command(after_help = "Example: atoll volume placement vm1")]
    Placement {
        /// Its name
        name: String,
    },
}

#[derive(Debug, Subcommand)]
pub enum Token {
    /// Make a token, and print its secret: once, never again
    #[command(after_help = "Example: atoll token create --name ci --role operator --expires 90d")]
    Create {
        /// Its name: whose it is, and what for
        #[arg(long)]
        name: String,
        /// What its holder may do
        #[arg(long, value_enum)]
        role: RoleName,
        /// For how long it is good: 12h, 90d; without it, until it is removed
        #[arg(long, value_name = "TIME", value_parser = parse_time)]
        expires: Option<Duration>,
    },
    /// List tokens, without their secrets
    #[command(after_help = "Example: atoll token list")]
    List,
    /// Remove a token: from now on it is refused
    #[command(after_help = "Example: atoll token remove ci")]
    Remove {
        /// Its name
        name: String,
    },
}

#[derive(Debug, Subcommand)]
pub enum Audit {
    /// List what was changed, by whom and from where: the newest 1,000 entries of each host
    #[command(after_help = "Example: atoll audit list -o wide")]
    List,
    /// Check that the audit log of this host is as it was written: on the host, by its files
    #[command(after_help = "Example: atoll audit verify")]
    Verify(AuditVerify),
}

#[derive(Debug, Args)]
pub struct AuditVerify {
    /// An entry that was noted elsewhere, by number and sha256 ('atoll audit list -o json', or the
    /// daemon's log): it must be there
    #[arg(long, value_name = "NUMBER:SHA256")]
    pub head: Option<Head>,
    /// Data directory of the host; of its configuration without it
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Configuration of this host
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    pub config: PathBuf,
}

/// What the holder of a token may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RoleName {
    /// Looks.
    Viewer,
    /// Also what daily work is: volumes, resync, scrubs.
    Operator,
    /// Everything: also disks, policies, settings of the cluster, tokens.
    Admin,
}

impl RoleName {
    /// In the words of the interface.
    pub fn role(self) -> Role {
        match self {
            Self::Viewer => Role::Viewer,
            Self::Operator => Role::Operator,
            Self::Admin => Role::Admin,
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum Resync {
    /// Show what is being brought up to date, bytes left and an estimate
    #[command(after_help = "Example: atoll resync show")]
    Show,
    /// Hold resync on all hosts that answer, until they restart
    #[command(after_help = "Example: atoll resync pause")]
    Pause,
    /// Let resync go on
    #[command(after_help = "Example: atoll resync resume")]
    Resume,
    /// Set a ceiling on all hosts that answer, until they restart
    #[command(after_help = "Example: atoll resync limit 100M")]
    Limit {
        /// Bytes per second (100M, 95.4MiB/s); none or 0: no ceiling
        #[arg(value_parser = parse_ceiling)]
        rate: u64,
    },
}

#[derive(Debug, Subcommand)]
pub enum Scrub {
    /// Verify checksums in the background
    #[command(after_help = "Example: atoll scrub start --volume vm1")]
    Start {
        /// Only this disk group
        #[arg(long)]
        group: Option<String>,
        /// Only this volume
        #[arg(long, conflicts_with = "group")]
        volume: Option<String>,
        /// Ceiling per disk group, bytes per second (100M, 95.4MiB/s)
        #[arg(long, value_parser = parse_rate)]
        rate: Option<u64>,
    },
    /// Stop scrubs
    #[command(after_help = "Example: atoll scrub stop")]
    Stop {
        /// Only of this disk group
        #[arg(long)]
        group: Option<String>,
    },
    /// Show scrubs
    #[command(after_help = "Example: atoll scrub show")]
    Show,
}

#[derive(Debug, Subcommand)]
pub enum Task {
    /// List tasks
    #[command(after_help = "Example: atoll task list")]
    List,
    /// Show one task
    #[command(after_help = "Example: atoll task show 17")]
    Show {
        /// Its id
        id: String,
    },
    /// Wait until a task ends, as long as --timeout allows
    #[command(after_help = "Example: atoll task wait 17 --timeout 3600")]
    Wait {
        /// Its id
        id: String,
    },
}

#[derive(Debug, Subcommand)]
pub enum Session {
    /// List clients
    #[command(after_help = "Example: atoll session list --volume vm1")]
    List {
        /// Only of this volume
        #[arg(long)]
        volume: Option<String>,
    },
}

#[derive(Debug, Args)]
pub struct Events {
    /// Go on with new ones, until Ctrl-C
    #[arg(long)]
    pub follow: bool,
    /// Only events with a higher id, or later than a time: 2026-11-20T12:00:00Z, or as shown
    #[arg(long, value_name = "ID|TIME", value_parser = parse_since)]
    pub since: Option<u64>,
    /// Only what came after this position: `position` of a list, `cursor` of a followed event
    #[arg(long, value_name = "POSITION")]
    pub cursor: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum SimCommand {
    /// Run many seeds, or replay one
    #[command(after_help = "Example: atoll sim run --seeds 0.. --time 10m --report")]
    Run(SimRun),
    /// Look for the fewest faults with which a failing seed still fails
    #[command(after_help = "Example: atoll sim shrink --seed 17")]
    Shrink(SimShrink),
    /// Draw a run as one page for a browser: hosts, faults, owners, copies, clients
    #[command(after_help = "Example: atoll sim timeline --seed 17 --out run.html")]
    Timeline(SimTimeline),
    /// Run fresh seeds for hours, going on where the last soak ended; keep what showed something
    #[command(after_help = "Example: atoll sim soak --dir /var/tmp/soak --time 8h")]
    Soak(SimSoak),
    /// Measure clusters of modelled hardware in virtual time, without faults: what binds them?
    #[command(after_help = "Example: atoll sim scale --hosts 2,4 --cores 1,8 --disk nvme,hdd")]
    Scale(SimScale),
    /// Run the seeds that standard input names (started by `atoll sim soak`)
    #[command(hide = true)]
    #[command(after_help = "Example: atoll sim worker")]
    Worker,
}

/// The seeds that are run when nothing is said.
pub const SEEDS: Range<u64> = 0..100;

#[derive(Debug, Args)]
pub struct SimRun {
    /// Seeds A to B, B not included; without B, as many as --time allows, and of 32 that one that
    /// promises most of what was rarely reached [default: 0..100]
    #[arg(long, value_name = "A..B", value_parser = parse_seeds)]
    pub seeds: Option<Range<u64>>,
    /// One seed only
    #[arg(long, conflicts_with_all = ["seeds", "time", "threads", "report"])]
    pub seed: Option<u64>,
    /// Print everything that happens
    #[arg(long, requires = "seed")]
    pub trace: bool,
    /// Begin no further seed after that time (30s, 10m, 2h)
    #[arg(long, alias = "max-seconds", value_parser = parse_time)]
    pub time: Option<Duration>,
    /// Print the count of every kind of fault, and by name what was not reached
    #[arg(long)]
    pub report: bool,
    /// Run each seed twice and compare
    #[arg(long)]
    pub twice: bool,
    /// Threads; one a core without it
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,
    /// Begin no further seed after one that failed
    #[arg(long)]
    pub fail_fast: bool,
    /// A seed that takes longer than that is stuck: it is named, and ends the command
    #[arg(long, value_parser = parse_time, default_value = "60s")]
    pub stuck: Duration,
    #[command(flatten)]
    pub make: SimMake,
    #[command(flatten)]
    pub part: SimPart,
}

/// What every run is made of.
#[derive(Debug, Args)]
pub struct SimMake {
    /// Only these faults, by name, separated by commas; a leading - takes one out of all
    #[arg(long, allow_hyphen_values = true)]
    pub faults: Option<String>,
    /// Hosts; by seed without it
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub hosts: Option<u16>,
    /// Operations of each volume's clients
    #[arg(long)]
    pub ops: Option<u64>,
    /// On a store without faults of its own
    #[arg(long)]
    pub reference_store: bool,
    /// Media of all hosts are damaged: what is still given must be right, the rest refused in time
    #[arg(long)]
    pub beyond: bool,
    /// As seeds were before 2026-11-22: no administrator at work, no early destage
    #[arg(long)]
    pub no_features: bool,
}

/// What of a seed's faults happens: `atoll sim shrink` prints these.
#[derive(Debug, Args)]
#[command(next_help_heading = "A part of one seed")]
pub struct SimPart {
    /// Without these faults, everything else as it would have been
    #[arg(long, value_name = "KINDS", requires = "seed")]
    pub without: Option<String>,
    /// Of the faults that the seed switches on, only these
    #[arg(long, value_name = "KINDS", requires = "seed", conflicts_with = "without")]
    pub only: Option<String>,
    /// Operations go wrong in that way only from A to B; can be repeated
    #[arg(long, value_name = "KIND=A..B", requires = "seed", value_parser = parse_window)]
    pub window: Vec<(FaultKind, Nanos, Nanos)>,
    /// Of the seed's timed events, only these, by number
    #[arg(long, value_name = "NUMBERS", requires = "seed", value_parser = parse_numbers)]
    pub events: Option<Numbers>,
    /// Of the seed's clients, only these, counted from 0
    #[arg(long, value_name = "NUMBERS", requires = "seed", value_parser = parse_numbers)]
    pub clients: Option<Numbers>,
    /// Everything heals at that moment of virtual time (41s, 12.5s)
    #[arg(long, value_name = "MOMENT", requires = "seed", value_parser = parse_moment)]
    pub until: Option<Nanos>,
}

/// A list such as 3,7; it may have nothing in it.
#[derive(Clone, Debug)]
pub struct Numbers(pub Vec<u32>);

#[derive(Debug, Args)]
pub struct SimShrink {
    /// The seed that fails
    #[arg(long)]
    pub seed: u64,
    /// Try no more than that many runs
    #[arg(long, default_value_t = 1000)]
    pub runs: u32,
    /// Try nothing more after that time (30s, 10m, 2h)
    #[arg(long, value_parser = parse_time)]
    pub time: Option<Duration>,
    #[command(flatten)]
    pub make: SimMake,
    #[command(flatten)]
    pub part: SimPart,
}

#[derive(Debug, Args)]
pub struct SimTimeline {
    /// The seed to draw
    #[arg(long)]
    pub seed: u64,
    /// File for the page
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    #[command(flatten)]
    pub make: SimMake,
    #[command(flatten)]
    pub part: SimPart,
}

#[derive(Debug, Args)]
pub struct SimSoak {
    /// Directory of what is known: where to go on, and the corpus of seeds to keep
    #[arg(long)]
    pub dir: PathBuf,
    /// Begin no further seed after that time (30m, 8h, 2d)
    #[arg(long, default_value = "8h", value_parser = parse_time)]
    pub time: Duration,
    /// Seeds at once, a process each; one a core without it
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub jobs: Option<u16>,
    /// The first seed of a directory that has none yet; by the clock without it
    #[arg(long)]
    pub first: Option<u64>,
    /// Run the seeds of the corpus again, and no others
    #[arg(long, conflicts_with_all = ["time", "first"])]
    pub corpus: bool,
}

#[derive(Debug, Args)]
pub struct SimScale {
    #[command(flatten)]
    pub points: ScalePoints,
    /// Where chance comes from
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// I/Os of 4 KiB that are measured, a volume; of 1 MiB a sixteenth
    #[arg(long, default_value_t = 2_000,
          value_parser = clap::value_parser!(u64).range(100..=100_000))]
    pub ops: u64,
    /// CPU time of a 4 KiB I/O in us: of the owner and of another member of a write, of a read
    #[arg(long, value_name = "US,US,US", default_value = "25,19,18", value_parser = parse_cpu)]
    pub cpu_4k: CpuPerIo,
    /// The same of 1 MiB
    #[arg(long, value_name = "US,US,US", default_value = "850,650,520",
          value_parser = parse_cpu)]
    pub cpu_1m: CpuPerIo,
}

/// Every combination of these is measured.
#[derive(Debug, Args)]
#[command(next_help_heading = "Points (without any of these, those of docs/performance.md)")]
#[group(multiple = true)]
pub struct ScalePoints {
    /// Hosts: one NIC each [default: 4]
    #[arg(long, value_name = "NUMBERS", value_parser = parse_counts)]
    pub hosts: Option<Counts>,
    /// Cores of each host: a shard and a disk group of one disk each [default: 1]
    #[arg(long, value_name = "NUMBERS", value_parser = parse_counts)]
    pub cores: Option<Counts>,
    /// Volumes, spread over hosts and their shards [default: hosts times the most cores]
    #[arg(long, value_name = "NUMBERS", value_parser = parse_counts)]
    pub volumes: Option<Counts>,
    /// Disks: nvme, ssd (SATA), hdd [default: nvme]
    #[arg(long, value_name = "KINDS", value_delimiter = ',',
          value_parser = named(DiskKind::ALL, DiskKind::name))]
    pub disk: Vec<DiskKind>,
    /// Networks in Gbit/s: 10, 25, 100 [default: 25]
    #[arg(long, value_name = "RATES", value_delimiter = ',',
          value_parser = named(Network::ALL, Network::name))]
    pub net: Vec<Network>,
    /// Clients: with-copy (their host has a copy) or apart [default: with-copy]
    #[arg(long, value_name = "PLACES", value_delimiter = ',',
          value_parser = named(Place::ALL, Place::name))]
    pub clients: Vec<Place>,
    /// How many times as fast as the core of the bench the cores are [default: 1]
    #[arg(long, value_name = "NUMBERS", value_parser = parse_counts)]
    pub core_speed: Option<Counts>,
    /// Random or sequential reads or writes: rw4k, rr4k, sw1m, sr1m [default: rw4k,rr4k]
    #[arg(long, value_name = "NAMES", value_delimiter = ',',
          value_parser = named(Workload::ALL, Workload::name))]
    pub workload: Vec<Workload>,
}

/// A list such as 1,2,4 or 1-10, each from 1 to 64.
#[derive(Clone, Debug)]
pub struct Counts(pub Vec<u16>);

fn parse_seeds(text: &str) -> Result<Range<u64>, String> {
    let bad = || format!("'{text}' is not a range of seeds (examples: 0..2000, 0..)");
    let (from, to) = text.split_once("..").ok_or_else(bad)?;
    let from = from.parse().map_err(|_| bad())?;
    let to = if to.is_empty() { u64::MAX } else { to.parse().map_err(|_| bad())? };
    if from < to { Ok(from..to) } else { Err(format!("'{text}' is an empty range of seeds")) }
}

/// The life of a certificate.
fn parse_validity(text: &str) -> Result<Duration, String> {
    let valid = parse_time(text)?;
    let allowed = 1..=HOST_VALID_S;
    let bad = || format!("'{text}' is not between 1s and {}d", HOST_VALID_S / 86_400);
    allowed.contains(&valid.as_secs()).then_some(valid).ok_or_else(bad)
}

/// As it is typed, and as tables show it: `30s`, `10m`, `1h5m`.
fn parse_time(text: &str) -> Result<Duration, String> {
    let bad = || format!("'{text}' is not a time (examples: 30s, 10m, 2h)");
    let mut rest = text;
    let mut seconds = 0u64;
    while !rest.is_empty() || text.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let number: u64 = rest[..end].parse().map_err(|_| bad())?;
        rest = &rest[end..];
        let end = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let unit = match &rest[..end] {
            "" | "s" => 1,
            "m" | "min" => 60,
            "h" => 3600,
            "d" => 86_400,
            _ => return Err(bad()),
        };
        rest = &rest[end..];
        let part = number.checked_mul(unit).ok_or_else(bad)?;
        seconds = seconds.checked_add(part).ok_or_else(bad)?;
    }
    Ok(Duration::from_secs(seconds))
}

/// The id of an event, or a time: ids are microseconds since 1970.
fn parse_since(text: &str) -> Result<u64, String> {
    if let Ok(id) = text.parse() {
        return Ok(id);
    }
    let local = |at: jiff::civil::DateTime| at.to_zoned(jiff::tz::TimeZone::system()).ok();
    let at = text
        .parse::<jiff::Timestamp>()
        .ok()
        .or_else(|| Some(local(text.parse().ok()?)?.timestamp()));
    at.and_then(|at| u64::try_from(at.as_microsecond()).ok()).ok_or_else(|| {
        format!("'{text}' is neither an event's id nor a time (example: 2026-11-20 12:00:00)")
    })
}

/// Bytes per second as they are typed, and as tables show them: `100M`, `95.4 MiB/s`.
fn parse_rate(text: &str) -> Result<u64, String> {
    parse_size(text.trim().strip_suffix("/s").unwrap_or(text))
}

/// A rate, or `none` (0) as tables show it.
fn parse_ceiling(text: &str) -> Result<u64, String> {
    if text.trim() == "none" { Ok(0) } else { parse_rate(text) }
}

/// I/Os per second, or `none` (0) as tables show it.
fn parse_iops(text: &str) -> Result<u32, String> {
    if text.trim() == "none" {
        return Ok(0);
    }
    text.parse().map_err(|_| format!("'{text}' is not a number of I/Os per second, nor none"))
}

fn parse_numbers(text: &str) -> Result<Numbers, String> {
    if text == "none" {
        return Ok(Numbers(Vec::new()));
    }
    let bad = |_| format!("'{text}' is not a list of numbers (examples: 3,7 and none)");
    let numbers: Result<Vec<u32>, _> = text.split(',').map(|n| n.trim().parse()).collect();
    numbers.map(Numbers).map_err(bad)
}

fn parse_counts(text: &str) -> Result<Counts, String> {
    let bad =
        || format!("'{text}' is not a list of numbers from 1 to 64 (examples: 1,2,4 and 1-10)");
    let number = |text: &str| {
        let number = text.trim().parse::<u16>().ok().filter(|n| (1..=64).contains(n));
        number.ok_or_else(bad)
    };
    let mut all = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        if last < first {
            return Err(bad());
        }
        all.extend(first..=last);
    }
    Ok(Counts(all))
}

fn parse_cpu(text: &str) -> Result<CpuPerIo, String> {
    let bad = || format!("'{text}' is not three numbers of microseconds (example: 25,19,18)");
    let numbers: Result<Vec<u64>, _> = text.split(',').map(|n| n.trim().parse()).collect();
    let [write_owner, write_member, read] = numbers.map_err(|_| bad())?[..] else {
        return Err(bad());
    };
    if write_member == 0 {
        return Err(format!("'{text}': a member cannot do its part of a write in no time"));
    }
    let us = Nanos::from_us;
    Ok(CpuPerIo { write_owner: us(write_owner), write_member: us(write_member), read: us(read) })
}

/// Finds one of `all` by its name.
fn named<T: Copy + Send + Sync + 'static>(
    all: &'static [T],
    name: fn(T) -> &'static str,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        let found = all.iter().copied().find(|&one| name(one) == text);
        let names = || all.iter().map(|&one| name(one)).collect::<Vec<_>>().join(", ");
        found.ok_or_else(|| format!("'{text}' is none of {}", names()))
    }
}

fn parse_moment(text: &str) -> Result<Nanos, String> {
    subset::moment(text).ok_or_else(|| format!("'{text}' is not a moment (examples: 41s, 12.5s)"))
}

fn parse_window(text: &str) -> Result<(FaultKind, Nanos, Nanos), String> {
    subset::window(text)
}

#[derive(Debug, Args)]
pub struct Completion {
    /// Which shell
    pub shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub struct Man {
    /// Write one page per command there; without it, the main page goes to standard output
    #[arg(long)]
    pub dir: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::Cli;
    use clap::CommandFactory;

    fn walk(command: &clap::Command, path: &str, leaves: &mut usize) {
        assert!(command.get_about().is_some(), "{path}: nothing is said about it");
        for argument in command.get_arguments() {
            assert!(argument.get_help().is_some(), "{path} {}: no help", argument.get_id());
        }
        if command.get_subcommands().next().is_none() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let example = help.strip_prefix("Example: ").unwrap_or_else(|| panic!("{path}: none"));
            assert!(example.starts_with(path), "{path}: {example}");
            *leaves += 1;
            // The example is what it says: it can be typed.
            let command_line = example.split(" > ").next().unwrap();
            let words = command_line.split_whitespace();
            if let Err(e) = Cli::command().try_get_matches_from(words) {
                panic!("{example}: {e}");
            }
        }
        for inner in command.get_subcommands() {
            walk(inner, &format!("{path} {}", inner.get_name()), leaves);
        }
    }

    #[test]
    fn every_command_is_described_and_its_example_can_be_typed() {
        Cli::command().debug_assert();
        let mut leaves = 0;
        walk(&Cli::command(), "atoll", &mut leaves);
        assert!(leaves >= 40, "{leaves}");
    }
}

#[cfg(test)]
mod printed {
    use super::{parse_ceiling, parse_iops, parse_since, parse_time};
    use crate::cli::show;

    #[test]
    fn what_tables_show_can_be_typed() {
        for rate in [1, 20 << 20, 100_000_000, 3 << 30] {
            let again = parse_ceiling(&show::ceiling(rate)).expect("a rate as it is shown");
            assert_eq!(show::ceiling(again), show::ceiling(rate));
        }
        assert_eq!((parse_ceiling("none"), parse_ceiling("0")), (Ok(0), Ok(0)));
        assert_eq!((parse_iops("none"), parse_iops("500")), (Ok(0), Ok(500)));
        for seconds in [0, 5, 65, 3_900, 97_200] {
            let again = parse_time(&show::duration(seconds)).expect("a time as it is shown");
            assert_eq!(again.as_secs(), seconds);
        }
        let at = "2026-11-20T12:00:00Z";
        assert_eq!(parse_since(at), Ok(1_795_176_000_000_000));
        assert_eq!(parse_since(&show::local(at)), parse_since(at));
        assert_eq!(parse_since("17"), Ok(17));
        assert!(parse_since("yesterday").is_err() && parse_time("1h 5m").is_err());
    }
}

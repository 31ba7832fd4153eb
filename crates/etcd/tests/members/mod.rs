//! A real etcd of one or more members on loopback, each of which can be killed, paused and started
//! again.

use atoll_etcd::{EtcdConfig, EtcdDirectory, TlsFiles};
use rustix::process::{Pid, Signal, kill_process};
use std::future::Future;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A shard: one thread, one runtime, tasks that need not be `Send`.
pub fn on_a_shard<T>(seconds: u64, test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build_local(tokio::runtime::LocalOptions::default())
        .expect("a runtime");
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(seconds), test).await.expect("the test hangs")
    })
}

/// Ports that nobody listens at, and that are not given out twice.
fn free_ports(host: &str, count: usize) -> Vec<u16> {
    let listeners: Vec<_> =
        (0..count).map(|_| TcpListener::bind((host, 0)).expect("a free port")).collect();
    listeners.iter().map(|l| l.local_addr().expect("bound").port()).collect()
}

pub struct Etcd {
    pub folder: tempfile::TempDir,
    /// `127.0.0.1`, or `[::1]`.
    host: &'static str,
    ports: Vec<(u16, u16)>,
    children: Vec<Option<Child>>,
    pub more: Vec<String>,
    tls: Option<Tls>,
}

/// A CA with a certificate of a server and of a client.
#[derive(Clone)]
pub struct Tls {
    pub ca: PathBuf,
    server: (PathBuf, PathBuf),
    pub client: (PathBuf, PathBuf),
}

impl Tls {
    /// Made in `folder` by openssl.
    pub fn new(folder: &Path) -> Self {
        let openssl = |arguments: &str| {
            let words = arguments.split(' ');
            let done = Command::new("openssl").args(words).current_dir(folder).output();
            let done = done.expect("openssl is installed (scripts/test installs it)");
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        };
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
        openssl(&format!("req -x509 {key} -keyout ca.key -out ca.pem -subj /CN=test-ca -days 2"));
        std::fs::write(
            folder.join("names"),
            "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n",
        )
        .expect("a file");
        for name in ["server", "client"] {
            openssl(&format!("req {key} -keyout {name}.key -out {name}.csr -subj /CN={name}"));
            openssl(&format!(
                "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial \
                 -out {name}.pem -days 2 -extfile names"
            ));
        }
        let pair = |name| (folder.join(format!("{name}.pem")), folder.join(format!("{name}.key")));
        Self { ca: folder.join("ca.pem"), server: pair("server"), client: pair("client") }
    }
}

impl Etcd {
    /// A new cluster of `count` members that serve.
    pub fn start(count: usize) -> Self {
        Self::start_with(count, &[], None)
    }

    pub fn start_with(count: usize, more: &[&str], tls: Option<Tls>) -> Self {
        Self::start_at("127.0.0.1", count, more, tls)
    }

    pub fn start_at(host: &'static str, count: usize, more: &[&str], tls: Option<Tls>) -> Self {
        let ports = free_ports(host.trim_matches(['[', ']']), 2 * count);
        let mut etcd = Self {
            folder: tempfile::tempdir().expect("a folder"),
            host,
            ports: ports.chunks(2).map(|pair| (pair[0], pair[1])).collect(),
            children: (0..count).map(|_| None).collect(),
            more: more.iter().map(|&word| word.to_owned()).collect(),
            tls,
        };
        (0..count).for_each(|member| etcd.start_member(member));
        etcd
    }

    fn url(&self, scheme: &str, port: u16) -> String {
        format!("{scheme}://{}:{port}", self.host)
    }

    /// Starts a member, again or for the first time; it may not serve yet.
    pub fn start_member(&mut self, member: usize) {
        assert!(self.children[member].is_none(), "it runs");
        let (client, peer) = self.ports[member];
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let all = self.ports.iter().enumerate();
        let all: Vec<_> =
            all.map(|(i, (_, peer))| format!("m{i}={}", self.url("http", *peer))).collect();
        let log = std::fs::File::create(self.folder.path().join(format!("m{member}.log")));
        let mut command = Command::new("etcd");
        command
            .args(["--name", &format!("m{member}"), "--initial-cluster", &all.join(",")])
            .arg("--data-dir")
            .arg(self.folder.path().join(format!("m{member}")))
            .args(["--listen-client-urls", &self.url(scheme, client)])
            .args(["--advertise-client-urls", &self.url(scheme, client)])
            .args(["--listen-peer-urls", &self.url("http", peer)])
            .args(["--initial-advertise-peer-urls", &self.url("http", peer)])
            .args(&self.more)
            .env("ETCD_UNSUPPORTED_ARCH", std::env::consts::ARCH)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.expect("a log"));
        if let Some(tls) = &self.tls {
            command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(&tls.ca);
            command.arg("--cert-file").arg(&tls.server.0).arg("--key-file").arg(&tls.server.1);
        }
        let child = command.spawn().expect("etcd is installed (scripts/test installs it)");
        self.children[member] = Some(child);
    }

    fn child(&self, member: usize) -> &Child {
        self.children[member].as_ref().expect("it runs")
    }

    pub fn signal(&self, member: usize, signal: Signal) {
        let pid = Pid::from_child(self.child(member));
        kill_process(pid, signal).expect("it runs");
    }

    pub fn kill(&mut self, member: usize) {
        let mut child = self.children[member].take().expect("it runs");
        child.kill().expect("it runs");
        child.wait().expect("it was killed");
    }

    pub fn endpoint(&self, member: usize) -> String {
        format!("{}:{}", self.host, self.ports[member].0)
    }

    pub fn config(&self) -> EtcdConfig {
        let endpoints: Vec<_> = (0..self.ports.len()).map(|member| self.endpoint(member)).collect();
        let tls = self
            .tls
            .as_ref()
            .map(|tls| TlsFiles { ca: tls.ca.clone(), identity: Some(tls.client.clone()) });
        EtcdConfig { endpoints: endpoints.into(), own: None, prefix: "/atoll".into(), tls }
    }

    /// Connected as soon as it serves.
    pub async fn connect(&self) -> EtcdDirectory {
        let mut last = String::new();
        for _ in 0..6 {
            match EtcdDirectory::connect(self.config()).await {
                Ok(directory) => return directory,
                Err(error) => last = error.to_string(),
            }
        }
        panic!("etcd does not serve: {last}");
    }

    /// For what the directory does not do: compaction, alarms.
    pub async fn raw(&self, member: usize) -> etcd_client::Client {
        let url = self.url("http", self.ports[member].0);
        etcd_client::Client::connect([url], None).await.expect("an address")
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for child in self.children.iter_mut().flatten() {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

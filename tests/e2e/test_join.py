"""Machines that become hosts of a cluster: the first by `cluster init`, others by a token for joining;
and certificates that hosts renew by themselves."""

import datetime
import os
import shutil
import tarfile

from cluster import READY_S
from etcd import DISK_FORMAT_S, EtcdCluster
from harness import ATOLL, ClusterTest, Stack, free_ports, row, run, wait_until
from load import Load
from nbd import Client


class JoinedCluster(EtcdCluster):
    """Host 1 is made by `cluster init`; the others join it."""

    def config(self, host, more=""):
        own = self.host_dir(host)
        return (
            f'[host]\nname = "host{host}"\ndata_dir = "{own}/data"\n'
            f'[network]\napi = "127.0.0.{host}:{self.base_port}"\napi_socket = "{own}/api.sock"\n'
            f'peer = ["127.0.0.{host}:{self.base_port + 1}"]\n{more}'
            f'[frontends]\nnbd = {{ unix = "{own}/nbd.sock" }}\n'
            f'[[group]]\ndisks = ["{own}/disk1"]\n'
        )

    def config_file(self, host):
        return os.path.join(self.host_dir(host), "atoll.toml")

    def prepare(self, host, **config):
        """A machine with a disk and a configuration, and no more."""
        os.makedirs(os.path.join(self.host_dir(host), "data"))
        with open(os.path.join(self.host_dir(host), "disk1"), "xb") as disk:
            disk.truncate(self.disk_size)
        with open(self.config_file(host), "x", encoding="ascii") as f:
            f.write(self.config(host, **config))

    def token(self, *words, host=1):
        return self.cli("cluster", "join-token", *words, host=host).stdout.strip()

    def join(self, host, token, *words):
        """`atoll cluster join` on that machine."""
        path = os.path.join(self.directory, "token")
        with open(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w") as f:
            f.write(token + "\n")
        place = ("--config", self.config_file(host), "--token-file", path)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ATOLL_")}
        return run([ATOLL, "cluster", "join", *place, *words], check=False, env=environment)

    def begin(self):
        for member in range(self.etcd.members):
            self.etcd.start(member)
        self.prepare(1)
        etcd = ("--etcd", ",".join(self.etcd.endpoints()))
        self.tool("cluster", "init", *etcd, "--config", self.config_file(1))
        self.start(1)
        for host in range(2, self.hosts + 1):
            self.prepare(host)
            done = self.join(host, self.token())
            assert done.returncode == 0, done.stderr
            self.start(host)
        for host in range(1, self.hosts + 1):
            disk = os.path.join(self.host_dir(host), "disk1")
            words = ("--timeout", f"{DISK_FORMAT_S:.0f}", "group", "create", disk)
            self.cli(*words, host=host, timeout_s=DISK_FORMAT_S + 5)
        wait_until("all groups", lambda: len(self.get("group", "list")) == self.hosts, READY_S, 0.2)


class Joining(ClusterTest):
    size = "64MiB"

    def setUp(self):
        self.stack = Stack()
        self.addCleanup(self.stack.close)
        self.directory = self.stack.directory("atoll-e2e-")
        self.addCleanup(self.keep_logs)  # before the stack removes them
        self.cluster = JoinedCluster(self.stack, self.directory, base_port=free_ports())
        self.cluster.begin()
        self.make_policy(self.policy, 1)

    def died(self):
        return self.cluster.died()

    def trust(self, host):
        return os.path.join(self.cluster.host_dir(host), "data", "trust")

    @row("issue 23: machines join by tokens that are good once; every bad one is refused with its reason")
    def test_join(self):
        cluster = self.cluster
        self.cluster.cli("volume", "create", self.volume, self.size, "--policy", self.policy)
        with Client(cluster.nbd(3), self.volume) as client:
            client.write(0, b"x" * 4096)
        hosts = cluster.get("host", "list")
        self.assertEqual([h["name"] for h in hosts], ["host1", "host2", "host3"])
        # Each token has made one host, and says which.
        ids = {h["id"] for h in hosts if h["name"] != "host1"}
        tokens = cluster.get("token", "list")
        self.assertEqual({t["role"] for t in tokens}, {"join"})
        self.assertEqual({t["used_by"] for t in tokens}, ids)
        self.assert_event(r"host-joined.*machine joined as host host2")
        joined = [
            entry["who"]
            for entry in cluster.get("audit", "list")
            if (entry["operation"], entry["status"]) == ("HostJoin", 200)
            and "dry_run" not in entry["target"]
        ]
        self.assertEqual(sorted(joined), sorted(f"token:{token['name']}" for token in tokens))

        cluster.prepare(4)
        token = cluster.token("--name", "fourth")
        brief = cluster.token("--name", "brief", "--expires", "1s")
        asking = cluster.cli("token", "create", "--name", "ci", "--role", "admin").stdout.strip()
        gone = cluster.token("--name", "gone")
        cluster.cli("token", "remove", "gone")
        self.assert_refusal(cluster.join(4, token[:-9]), 2, "a piece of it is missing")
        self.assert_refusal(cluster.join(4, asking), 2, "for asking, not for joining")
        self.assert_refusal(cluster.join(4, gone), 5, "removed, or never was")

        def has_expired():
            done = cluster.join(4, brief)
            return done if "has expired" in done.stderr else None

        # (The first may still be in time to be refused for its name.)
        self.assertEqual(cluster.join(4, token, "--dry-run").returncode, 0)
        with open(cluster.config_file(4), encoding="ascii") as f:
            text = f.read()
        with open(cluster.config_file(4), "w", encoding="ascii") as f:
            f.write(text.replace('"host4"', '"host2"'))
        self.assert_refusal(cluster.join(4, token), 4, "the name host2 is taken")
        self.assert_refusal(wait_until("it to expire", has_expired, 10, 0.5), 5, "brief has expired")
        with open(cluster.config_file(4), "w", encoding="ascii") as f:
            f.write(text)
        # None of all that has used the good one up; host 2 relays, and host 1 signs.
        over = cluster.token("--name", "by2", host=2)
        done = cluster.join(4, over)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("atoll_", done.stdout + done.stderr)
        cluster.start(4)
        wait_until("host 4", lambda: len(cluster.get("host", "list")) == 4, 20, 0.2)
        self.assert_refusal(cluster.join(4, token), 4, "is a host already")
        cluster.prepare(5)
        self.assert_refusal(cluster.join(5, over), 5, "was used already")
        # Who keeps the authority decides: without it, nobody is let in.
        kept = os.path.join(cluster.host_dir(1), "data", "authority")
        os.rename(kept, kept + ".away")
        for words in ((), ("--dry-run",)):
            refused = cluster.join(5, token, *words)
            self.assert_refusal(refused, 1, "no host that answers keeps the authority")
        self.assert_refusal(
            cluster.cli("cluster", "join-token", check=False), 1, "keeps the authority"
        )
        os.rename(kept + ".away", kept)
        self.assertEqual(cluster.join(5, token).returncode, 0)
        # Nor is the authority's key in what is sent to others on the day something is wrong.
        bundle = os.path.join(self.directory, "bundle.tar.gz")
        place = ("--to", bundle, "--config", cluster.config_file(1))
        cluster.cli("support", "bundle", *place)
        with open(os.path.join(kept, "authority.key"), encoding="ascii") as f:
            key = max(f.read().splitlines(), key=len).encode()
        self.assertEqual(os.stat(f.name).st_mode & 0o777, 0o600)
        with tarfile.open(bundle) as archive:
            for member in archive.getmembers():
                if member.isfile():
                    text = archive.extractfile(member).read()
                    self.assertNotIn(b"PRIVATE KEY", text, member.name)
                    self.assertNotIn(key, text, member.name)
        for host in range(1, 5):
            with open(cluster.log(host), encoding="utf-8", errors="replace") as f:
                log = f.read()
            for secret in (token, brief, over, asking):
                self.assertNotIn(secret.split("@")[0], log)

    @row("issue 23: a certificate that is nearly over is renewed by its host, while it serves")
    def test_renewal(self):
        cluster = self.cluster
        self.cluster.cli("volume", "create", self.volume, self.size, "--policy", self.policy)
        authority = os.path.join(cluster.host_dir(1), "data", "authority")

        def until(host):
            return cluster.get("host", "show", f"host{host}")["certificate_until"]

        with Load(cluster, self.volume) as load:
            load.wait_progress()
            before = {}
            for host in (1, 2):
                with open(os.path.join(self.trust(host), "host.key"), "rb") as f:
                    before[host] = f.read()
                # Valid from an hour ago, for 2 min more: less than a third of its life is left.
                brief = os.path.join(self.directory, f"brief{host}")
                shutil.copytree(self.trust(host), brief)
                words = ("--authority", authority, "--out", brief, "--valid", "2m")
                cluster.tool("cluster", "certificate", *words)
                for name in ("host.key", "host.crt"):
                    shutil.copy2(os.path.join(brief, name), os.path.join(self.trust(host), name))
            for host in (1, 2):
                wait_until("the brief one", lambda h=host: not is_far(until(h)), 60, 0.5)
            for host in (1, 2):
                wait_until("one for 90 days", lambda h=host: is_far(until(h)), 60, 0.5)
                valid = r"certificate-renewed.*valid until "
                self.assert_event(valid + until(host)[:10], host=host)
                with open(os.path.join(self.trust(host), "host.key"), "rb") as f:
                    self.assertNotEqual(f.read(), before[host], "it is that of the brief one")
            load.wait_progress(100)
        checks = [check["name"] for check in cluster.get("status")["health"]["checks"]]
        self.assertEqual([name for name in checks if name.startswith("certificate")], [])


def is_far(until):
    """Whether that is weeks away."""
    at = datetime.datetime.fromisoformat(until.replace("Z", "+00:00"))
    return at - datetime.datetime.now(datetime.timezone.utc) > datetime.timedelta(days=30)

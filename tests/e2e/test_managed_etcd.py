"""The etcd that hosts run themselves: begun by `cluster init`, grown by `cluster join`, shrunk by
`host remove`, with the certificates of the cluster."""

import os
import socket
import ssl
import subprocess

from cluster import READY_S
from etcd import DISK_FORMAT_S
from harness import ATOLL, ClusterTest, Stack, free_ports, row, run, wait_until
from load import Load
from process import end
from test_join import JoinedCluster

SETTLED_S = 60.0  # a host that joins has its member, and its vote if it gets one


class ManagedCluster(JoinedCluster):
    """Each host has a second process: its member of etcd, or who waits to be one."""

    def __init__(self, *args, **named):
        super().__init__(*args, **named)
        self.member_processes = {}

    def clients(self, host):
        return f"127.0.0.{host}:{self.base_port + 2}"

    def config(self, host, more=""):
        own = f'[directory]\nmember = "{self.clients(host)}"\nmember_peer = "127.0.0.{host}:{self.base_port + 3}"\n'
        return super().config(host, more=more + own)

    def begin(self):
        self.prepare(1)
        self.tool("cluster", "init", "--config", self.config_file(1))
        self.start_both(1)
        for host in range(2, self.hosts + 1):
            self.come(host)
            self.add_disk(host)
        self.add_disk(1)
        wait_until("all groups", lambda: len(self.get("group", "list")) == self.hosts, READY_S, 0.2)

    def add_disk(self, host):
        disk = os.path.join(self.host_dir(host), "disk1")
        words = ("--timeout", f"{DISK_FORMAT_S:.0f}", "group", "create", disk)
        self.cli(*words, host=host, timeout_s=DISK_FORMAT_S + 5)

    def come(self, host):
        self.prepare(host)
        done = self.join(host, self.token())
        assert done.returncode == 0, done.stderr
        self.start_both(host)

    def start_both(self, host):
        self.start_member(host)
        self.start(host)

    def start_member(self, host):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ATOLL_")}
        # What is meant for another etcd does not reach this one.
        environment["ETCD_LISTEN_CLIENT_URLS"] = "http://0.0.0.0:1"
        with open(os.path.join(self.host_dir(host), "etcd.log"), "ab") as log:
            self.member_processes[host] = subprocess.Popen(
                [ATOLL, "etcd", "run", "--config", self.config_file(host)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    def kill_member(self, host):
        process = self.member_processes.pop(host)
        process.kill()
        process.wait(10)

    def died(self):
        members = [f"member{host}" for host, p in self.member_processes.items() if p.poll() is not None]
        return super().died() + members

    def end(self):
        for process in self.member_processes.values():
            end(process)
        self.member_processes = {}
        super().end()

    def ctl(self, *words, by=1, at=1, check=True):
        """etcdctl, with the certificate of a host."""
        trust = os.path.join(self.host_dir(by), "data", "trust")
        known = [f"--cacert={trust}/authority.crt", f"--cert={trust}/host.crt", f"--key={trust}/host.key"]
        return run(
            ["etcdctl", "--endpoints", f"https://{self.clients(at)}", *(known if by else []), *words],
            check=check,
            env={**os.environ, "ETCDCTL_API": "3"},
        )

    def list(self, at=1):
        """Name, state and role of each member: host id -> (started, learner)."""
        lines = self.ctl("member", "list", at=at).stdout.splitlines()
        rows = [[word.strip() for word in line.split(",")] for line in lines]
        return {name: (state == "started", learner == "true") for _, state, name, _, _, learner in rows}

    def wait_members(self, voters, learners, at=1):
        def settled():
            roles = [learns for started, learns in self.list(at).values() if started]
            return (roles.count(False), roles.count(True)) == (voters, learners)

        wait_until(f"{voters} voters and {learners} learners", settled, SETTLED_S, 0.3)


class ManagedEtcd(ClusterTest):
    size = "64MiB"

    def setUp(self):
        self.stack = Stack()
        self.addCleanup(self.stack.close)
        self.directory = self.stack.directory("atoll-e2e-")
        self.addCleanup(self.keep_logs)  # before the stack removes them
        self.cluster = ManagedCluster(self.stack, self.directory, base_port=free_ports())

    def died(self):
        return self.cluster.died()

    @row("issue 23: hosts run etcd themselves: it grows and shrinks with them, and outlives the loss of one")
    def test_life(self):
        cluster = self.cluster
        cluster.begin()
        self.make_policy(self.policy, 1)
        cluster.wait_members(3, 0)
        for host in (1, 2, 3):
            self.known_by_all(host, [1, 2, 3])
        self.assert_event("etcd-member-added")
        cluster.cli("volume", "create", self.volume, self.size, "--policy", self.policy)
        # Who shows no certificate of the cluster is nobody.
        refused = cluster.ctl("get", "/atoll/keys/cluster", by=None, check=False)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("host1", cluster.ctl("get", "--prefix", "/atoll/keys/").stdout)
        # Clients that know a server by its address find it in the certificate.
        for host in (1, 2):
            trust = ssl.create_default_context(cafile=os.path.join(self.trust(host), "authority.crt"))
            api = (f"127.0.0.{host}", cluster.base_port)
            with socket.create_connection(api, 10) as plain:
                trust.wrap_socket(plain, server_hostname=api[0]).close()

        with Load(cluster, self.volume) as load:
            load.wait_progress()
            # The member of each host dies once; the directory goes on.
            for host in (1, 2, 3):
                cluster.kill_member(host)
                cluster.cli("policy", "create", f"p{host}", "--failures-to-tolerate", "0", host=host)
                cluster.start_member(host)
                cluster.wait_members(3, 0)
            load.wait_progress(100)
            # A fourth host learns; removed, it is out of etcd, and its certificate opens nothing.
            cluster.come(4)
            cluster.wait_members(3, 1)
            self.assertIn("host1", cluster.ctl("get", "--prefix", "/atoll/keys/", by=4).stdout)
            cluster.cli("host", "remove", "host4", "--yes")
            wait_until("host 4 to end", lambda: cluster.processes[4].poll() is not None, 30, 0.2)
            del cluster.processes[4]
            cluster.wait_members(3, 0)

            def revoked():
                return cluster.ctl("endpoint", "status", by=4, check=False).returncode != 0

            wait_until("its certificate to be refused", revoked, 20, 0.3)
            wait_until("its member to end", lambda: cluster.member_processes[4].poll() is not None, 30, 0.2)
            del cluster.member_processes[4]
            load.wait_progress(100)

    @row("issue 23: after a full power cut the hosts' own etcd is there again, and any host finds it")
    def test_power_cut(self):
        cluster = self.cluster
        cluster.begin()
        self.make_policy(self.policy, 1)
        cluster.wait_members(3, 0)
        for host in (1, 2, 3):
            self.known_by_all(host, [1, 2, 3])
        cluster.cli("volume", "create", self.volume, self.size, "--policy", self.policy)
        for host in (1, 2, 3):
            cluster.kill(host)
            cluster.kill_member(host)
        # Host 1 is what the configuration of the others names, and it stays away.
        for host in (2, 3):
            cluster.start_member(host)
            cluster.start(host, serving=False)
        cluster.wait_serving([2, 3])
        wait_until("the volume", lambda: cluster.get("volume", "show", self.volume, host=2), 30, 0.3)
        cluster.start_both(1)
        cluster.wait_members(3, 0, at=2)

    def trust(self, host):
        return os.path.join(self.cluster.host_dir(host), "data", "trust")

    def known_by_all(self, host, members):
        """Waits until a host asks these members."""
        expected = {self.cluster.clients(member) for member in members}

        def known():
            directory = self.cluster.get("status", host=host)["directory"]
            return {member["endpoint"] for member in directory["members"]} == expected

        wait_until(f"host {host} to know all members", known, 30, 0.3)

"""Machines with networks of their own: the etcd that hosts run themselves, cables that are cut, and
power that is cut."""

import glob
import json
import os
import ssl
import subprocess
import sys
import time

from harness import ClusterTest, Stack, free_ports, row, wait_until
from load import Load
from machines import IN, OUT, Machines, Network

HOSTS = (1, 2, 3)
# Asks for a page as a client does that knows a server by its address.
ASK = """
import socket, ssl, sys
address, port, ca = sys.argv[1:]
trust = ssl.create_default_context(cafile=ca)
trust.wrap_socket(socket.create_connection((address, int(port)), 10), server_hostname=address).close()
"""


class MachineTest(ClusterTest):
    size, hosts = "64MiB", 3

    def setUp(self):
        self.stack = Stack()
        self.addCleanup(self.stack.close)
        self.directory = self.stack.directory("atoll-e2e-")
        self.addCleanup(self.keep_logs)  # before the stack removes them
        count, all_hosts = self.hosts, range(1, self.hosts + 1)
        network = Network(self.stack, count) if Network.possible() else None
        self.cluster = Machines(
            self.stack, self.directory, hosts=count, network=network, base_port=free_ports()
        )
        self.cluster.begin()
        if count < 3:
            self.cluster.wait_members(1, count - 1)
            return  # with no volume: hosts come and go
        self.make_policy(self.policy, 1)
        self.cluster.wait_members(count, 0, healthy=all_hosts)
        for host in all_hosts:
            self.cluster.wait_known(host, all_hosts)
        self.cluster.cli("volume", "create", self.volume, self.size, "--policy", self.policy)

    def died(self):
        return self.cluster.died()

    def plug(self, machine):
        if self.cluster.network:
            self.cluster.network.plug(machine)

    @staticmethod
    def elsewhere(load, host):
        """The clients that do not ask that host at this moment."""
        return [worker for worker in load.workers if worker.hosts[0] != host]

    def answers(self, name, asked):
        hosts = {host["name"]: host for host in self.cluster.get("host", "list", host=asked)}
        return hosts[name]["up"]


class ManagedEtcd(MachineTest):
    @row("issue 23: hosts run etcd themselves: it grows and shrinks with them, and outlives the loss of one")
    def test_life(self):
        cluster = self.cluster
        self.assert_event("etcd-member-added")
        # Who knows the cluster, and shows no certificate of it, is nobody.
        refused = cluster.ctl("get", "/atoll/keys/cluster", by=None, check=False)
        self.assertNotEqual(refused.returncode, 0, refused.stdout)
        self.assertIn("host1", cluster.ctl("get", "--prefix", "/atoll/keys/").stdout)
        # Clients that know a server by its address find it in the certificate.
        for host in HOSTS:
            ca = os.path.join(cluster.host_dir(host), "data", "trust", "authority.crt")
            words = (cluster.address(host), str(cluster.ports[0]), ca)
            subprocess.run(cluster.on(1, [sys.executable, "-c", ASK, *words]), check=True, timeout=30)
        with Load(cluster, self.volume) as load:
            load.wait_progress()
            # The member of each host dies once; the directory goes on.
            for host in HOSTS:
                cluster.kill_member(host)
                cluster.cli("policy", "create", f"p{host}", "--failures-to-tolerate", "0", host=host)
                cluster.start_member(host)
                cluster.wait_members(3, 0, healthy=HOSTS)
            load.wait_progress(100)
            # A fourth host learns; removed, it is out of etcd, and its certificate opens nothing.
            self.plug(4)
            cluster.come(4)
            cluster.wait_members(3, 1)
            self.assertIn("host1", cluster.ctl("get", "--prefix", "/atoll/keys/", by=4).stdout)
            cluster.cli("host", "remove", "host4", "--yes")
            for kind in (cluster.processes, cluster.members):
                wait_until("host 4 to end", lambda of=kind: of[4].poll() is not None, 30, 0.2)
                del kind[4]
            cluster.wait_members(3, 0)

            def refused():
                return cluster.ctl("endpoint", "status", by=4, check=False).returncode != 0

            wait_until("its certificate to be refused", refused, 20, 0.3)
            load.wait_progress(100)
            load.finish()
        # What etcd held is kept, and can be put back.
        for host in HOSTS:
            kept = os.path.join(cluster.host_dir(host), "data", "etcd", "backup")
            names = wait_until("a backup", lambda at=kept: os.path.isdir(at) and os.listdir(at), 20, 0.3)
            self.assertEqual(len(names), 1, "one is enough for six hours")
            restored = os.path.join(self.directory, f"restored{host}")
            words = ("snapshot", "restore", os.path.join(kept, names[0]), "--data-dir", restored)
            cluster.ctl(*words, by=None)

    @row("issue 23: after a full power cut the hosts' own etcd is there again, and any host finds it")
    def test_power_cut(self):
        cluster = self.cluster
        cluster.kill_all()
        # Host 1 is what the configuration of the others names, and it stays away.
        for host in (2, 3):
            cluster.start(host, serving=False)
        cluster.wait_serving([2, 3])
        wait_until("the volume", lambda: cluster.get("volume", "show", self.volume, host=2), 30, 0.3)
        cluster.start(1)
        cluster.wait_members(3, 0, at=2, healthy=HOSTS)


class Growing(MachineTest):
    hosts = 2

    @row("issue 23: a host that is lost costs no vote, and the host whose member leads may go, too")
    def test_loss_and_removal(self):
        cluster = self.cluster
        # The one that has the only vote is not let go.
        refused = cluster.cli("host", "remove", "host1", "--yes", host=2, check=False)
        self.assert_refusal(refused, 4, "host1 has the only vote in etcd")
        # A dead member gets no vote when a third host comes, and leaves its place when it is given up.
        cluster.kill(2)
        self.plug(3)
        cluster.come(3)
        time.sleep(10.0)  # looks are made every 3 s
        self.assertEqual(sorted(learns for _, learns in cluster.roles()), [False, True])
        wait_until("host 2 to be missed", lambda: not self.answers("host2", 1), 20, 0.2)
        cluster.cli("host", "remove", "host2", "--yes", "--lost")
        cluster.wait_members(1, 1, healthy=[1])
        # With another one, all three have a vote; then the leader's host is removed.
        self.plug(4)
        cluster.come(4)
        cluster.wait_members(3, 0, healthy=(1, 3, 4))
        leader = cluster.leader(3)
        others = [host for host in (1, 3, 4) if host != leader]
        cluster.cli("host", "remove", f"host{leader}", "--yes", host=others[0])
        cluster.wait_members(2, 0, at=others[0], healthy=others)
        for kind in (cluster.processes, cluster.members):
            wait_until("the removed host to end", lambda of=kind: of[leader].poll() is not None, 60, 0.2)
            del kind[leader]
        cluster.cli("policy", "create", "after", "--failures-to-tolerate", "0", host=others[0])


    @row("issue 23: a backup of the hosts' own etcd is put back as the manual says")
    def test_restore(self):
        cluster = self.cluster
        kept = os.path.join(cluster.host_dir(1), "data", "etcd")
        backup = os.path.join(kept, "backup")
        names = wait_until("a backup", lambda: os.path.isdir(backup) and glob.glob(f"{backup}/*.db"), 30, 0.3)
        cluster.kill_all()
        for host in (1, 2):
            at = os.path.join(cluster.host_dir(host), "data", "etcd")
            os.rename(at, f"{at}.away")
        with open(f"{kept}.away/member.json", encoding="ascii") as f:
            start = json.load(f)
        url = f"https://{cluster.address(1)}:{cluster.ports[3]}"
        name, data = start["name"], f"first-{start['name']}"
        words = ["--name", name, "--initial-cluster", f"{name}={url}", "--initial-advertise-peer-urls", url]
        os.mkdir(kept, 0o700)
        words += ["--data-dir", os.path.join(kept, data)]
        file = names[0].replace(kept, f"{kept}.away")
        cluster.ctl("snapshot", "restore", file, *words, by=None)
        del start["member"]
        with open(os.path.join(kept, "member.json"), "w", encoding="ascii") as f:
            json.dump({**start, "data": data}, f)
        os.mkdir(os.path.join(cluster.host_dir(2), "data", "etcd"), 0o700)
        for host in (1, 2):
            cluster.start(host, serving=False)
        cluster.wait_serving([1, 2])
        cluster.wait_members(1, 1, healthy=[1])
        self.assertEqual({h["name"] for h in cluster.get("host", "list", host=2)}, {"host1", "host2"})


class Partitions(MachineTest):
    @row("issue 23: partitions of every shape: no reader sees an old value, and all hosts agree again")
    def test_partitions(self):
        cluster, network = self.cluster, self.cluster.network
        if not network:
            self.skipTest("it cuts cables of network namespaces: run it as root")
        with Load(cluster, self.volume) as load:
            load.wait_progress()
            owner = self.owner()
            for ways, hosts in (((), HOSTS), ((IN,), (owner,)), ((OUT,), (owner,))):
                for host in hosts:
                    network.cut(host, *ways)
                    others = [other for other in HOSTS if other != host]
                    # The two that are left know it, and go on by themselves.
                    wait_until(
                        f"host {host} to be missed ({ways or 'both ways'})",
                        lambda h=host, o=others: not self.answers(f"host{h}", o[0]),
                        20,
                        0.2,
                    )
                    load.wait_progress(20, workers=self.elsewhere(load, host))
                    network.mend(host)
                    for other in HOSTS:
                        wait_until(
                            f"host {other} to see all again",
                            lambda o=other: all(self.answers(f"host{h}", o) for h in HOSTS),
                            30,
                            0.2,
                        )
                    # The next cut must not find the only copy that is up to date.
                    cluster.wait_healthy(60, host=others[0])
            # A machine that stood still, with its member of etcd, must not serve what it remembers.
            for host in HOSTS:
                cluster.pause(host)
                load.wait_progress(20, workers=self.elsewhere(load, host))
                cluster.resume(host)
                cluster.wait_healthy(60)
            # Nobody reaches anybody: nothing is acknowledged that could be lost.
            for host in HOSTS:
                network.cut(host)
            for host in HOSTS:
                network.mend(host)
            load.wait_progress(100)
            cluster.wait_healthy(60)
            load.finish()

"""etcd as the directory: its leader dies, its quorum is lost and comes back; what is wrong with it
is said."""

import os
import time

from etcd import Etcd, EtcdCluster
from harness import ATOLL, ClusterTest, Stack, free_ports, row, run, wait_until
from load import Load
from nbd import Client

# Running I/O asks the directory nothing: what is longer than this waited for it.
UNAFFECTED_S = 1.5
QUORUM_LOST_S = 20.0
REST_S, LOOK_EVERY_S = 30.0, 5.0


class EtcdTest(ClusterTest):
    def setUp(self):
        self.stack = Stack()
        self.addCleanup(self.stack.close)
        self.directory = self.stack.directory("atoll-e2e-")
        self.addCleanup(self.keep_logs)  # before the stack removes them
        self.cluster = EtcdCluster(self.stack, self.directory, base_port=free_ports())
        self.cluster.begin()
        self.make_policy(self.policy, 1)
        self.cluster.cli("volume", "create", self.volume, self.size, "--policy", self.policy)
        with Client(self.cluster.nbd(1), self.volume) as client:
            client.read(0, 4096)  # the first use makes this host its owner

    def died(self):
        return self.cluster.died()


class Members(EtcdTest):
    first = True

    @row("fault matrix 63, 64: etcd's leader killed, its quorum lost for 20 s: running I/O goes on")
    def test_leader_and_quorum(self):
        etcd = self.cluster.etcd
        status = self.cluster.cli("status").stdout
        self.assertRegex(status, r"directory +etcd 3\.\d+\.\d+: 3 of 3 members, 127\.0\.0\.1:\d+ leads")
        with Load(self.cluster, self.volume) as load:
            load.wait_progress()
            leader = self.cluster.leader()
            killed = time.monotonic()
            etcd.kill(leader)
            load.wait_progress(100)
            self.change_until_done("after-leader", 15)
            self.assertNotEqual(self.cluster.leader(), leader)
            self.assertLess(load.longest(killed), UNAFFECTED_S)
            self.assert_check("directory-member", "127.0.0.1")
            etcd.start(leader)

            self.wait_members(3)
            lost = time.monotonic()
            etcd.kill(0)
            etcd.kill(1)
            time.sleep(3)  # until the last one knows that it is alone
            refused = self.refused("volume", "create", "while-lost", "16MiB", says="quorum is lost")
            self.assertNotIn("while-lost", refused.stdout)
            self.refused("status", says="quorum is lost")
            load.wait_progress(100)
            time.sleep(max(0.0, lost + QUORUM_LOST_S - time.monotonic()))
            load.wait_progress(100)
            self.assertLess(load.longest(lost), UNAFFECTED_S)
            etcd.start(0)
            etcd.start(1)
            back = time.monotonic()
            self.change_until_done("after-quorum", 20)
            print(f"    changes {time.monotonic() - back:.1f} s after the members' start", flush=True)
            names = {volume["name"] for volume in self.cluster.get("volume", "list")}
            self.assertEqual(names, {self.volume, "after-leader", "after-quorum"})
            load.finish()
        self.assert_safe_again()

    @row("fault matrix 65: an owner dies while etcd's quorum is lost: taken over when it is back")
    def test_owner_dies_meanwhile(self):
        etcd, owner = self.cluster.etcd, self.owner()
        others = self.others(owner)
        with Load(self.cluster, self.volume, hosts=tuple(others)) as load:
            load.wait_progress()
            etcd.kill(0)
            etcd.kill(1)
            self.cluster.kill(owner)
            time.sleep(5)
            etcd.start(0)
            etcd.start(1)
            load.wait_progress(timeout_s=40)
            self.assertNotEqual(self.owner(host=others[0]), owner)
            self.cluster.start(owner)
            load.finish()
        self.assert_safe_again(host=others[0])

    @row("fault matrix 70: etcd compacts all of its history under running hosts")
    def test_compaction(self):
        with Load(self.cluster, self.volume) as load:
            load.wait_progress()
            for i in range(3):
                self.cluster.cli("volume", "create", f"v{i}", "16MiB", "--policy", self.policy)
                self.cluster.etcd.ctl("compact", str(self.revision()))
            self.cluster.kill(3)
            wait_until(
                "host3 to be missed",
                lambda: self.cluster.get("status")["hosts_up"] == 2,
                20,
                0.5,
            )
            self.cluster.start(3)
            load.finish()
        self.assert_safe_again()

    @row("etcd at rest: each host asks for one key every five seconds, and lists nothing")
    def test_rest(self):
        etcd = self.cluster.etcd
        for i in range(20):
            self.cluster.cli("volume", "create", f"v{i}", "16MiB", "--policy", self.policy)
        time.sleep(8)  # a look, and what is asked for on its account
        revision, before = self.revision(), etcd.requests()
        time.sleep(REST_S)
        after = etcd.requests()
        self.assertEqual(self.revision(), revision, "nothing has changed meanwhile")
        asked = {name: after[name] - before.get(name, 0) for name in after}
        looks = asked["Range"]
        most = self.cluster.hosts * (REST_S / LOOK_EVERY_S + 1)
        self.assertLessEqual(looks, most, asked)
        self.assertGreaterEqual(looks, self.cluster.hosts * (REST_S // LOOK_EVERY_S - 1), asked)
        self.assertEqual((asked.get("Txn", 0), asked.get("Watch", 0)), (0, 0), asked)

    def revision(self):
        told = self.cluster.etcd.ctl("get", "/atoll/keys/cluster", "-w", "json").stdout
        return int(told.split('"revision":')[1].split(",")[0])

    def change_until_done(self, name, timeout_s):
        words = ("volume", "create", name, "16MiB", "--policy", self.policy)

        def done():
            made = self.cluster.cli(*words, check=False)
            return made.returncode == 0 or "exists" in made.stderr

        wait_until("a change", done, timeout_s, 0.5)

    def wait_members(self, count):
        def answering():
            return sum(bool(member["version"]) for member in self.cluster.members()) == count

        wait_until(f"{count} members", answering, 20, 0.5)

    def assert_check(self, name, says):
        checks = self.cluster.get("status")["health"]["checks"]
        messages = [check["message"] for check in checks if check["name"] == name]
        self.assertTrue(any(says in message for message in messages), checks)


class Words(ClusterTest):
    """What a host says of an etcd that it cannot use."""

    def setUp(self):
        self.stack = Stack()
        self.addCleanup(self.stack.close)
        self.directory = self.stack.directory("atoll-e2e-")
        self.cluster = EtcdCluster(self.stack, self.directory, hosts=1, base_port=free_ports())
        self.cluster.etcd = Etcd(self.stack, self.directory, self.cluster.base_port, members=1)

    def tearDown(self):
        pass

    def says(self, host, text, timeout_s=30):
        """Waits until the host has written that into its log."""

        def written():
            with open(self.cluster.log(host), encoding="utf-8", errors="replace") as f:
                return text in f.read()

        try:
            wait_until(text, written, timeout_s, 0.2)
        except TimeoutError:
            with open(self.cluster.log(host), encoding="utf-8", errors="replace") as f:
                self.fail(f"{text!r} is not in: {f.read()[-2000:]}")

    @row("bad input: nobody there, another cluster's data, another cluster's prefix")
    def test_wrong_etcd(self):
        cluster, etcd = self.cluster, self.cluster.etcd
        own = cluster.host_dir(1)
        os.mkdir(own)
        with open(os.path.join(own, "disk1"), "xb") as disk:
            disk.truncate(cluster.disk_size)
        config = os.path.join(own, "atoll.toml")
        with open(config, "x", encoding="ascii") as f:
            f.write(cluster.config(1))
        # It waits, and says what for; its interface says so too.
        cluster.start(1, serving=False)
        self.says(1, "no member of etcd can be used")
        self.says(1, f"127.0.0.1:{etcd.ports[0][0]}")
        self.refused("status", says="waits for the directory")
        etcd.start(0)
        cluster.wait_serving([1])
        found = etcd.ctl("get", "--prefix", "/atoll/keys/", "--keys-only").stdout.split()
        self.assertIn("/atoll/keys/cluster", found)
        cluster.stop_host(1)
        # An empty prefix is not taken for a new cluster by a host that belongs to one.
        with open(config, "w", encoding="ascii") as f:
            f.write(cluster.config(1, more='prefix = "/typo"\n'))
        cluster.start(1, serving=False)
        self.assertNotEqual(cluster.processes[1].wait(20), 0)
        self.says(1, "holds no cluster")
        self.assertEqual(etcd.ctl("get", "--prefix", "/typo").stdout, "")
        # A prefix with another cluster in it.
        etcd.ctl("put", "/typo/keys/cluster", etcd.ctl("get", "/atoll/keys/cluster", "--print-value-only").stdout.strip().replace(self.cluster_id(own), "0123456789abcdef"))
        cluster.start(1, serving=False)
        self.assertNotEqual(cluster.processes[1].wait(20), 0)
        self.says(1, "its directory holds cluster 0123456789abcdef")
        cluster.processes.clear()

    @staticmethod
    def cluster_id(own):
        with open(os.path.join(own, "data", "cluster-id"), encoding="ascii") as f:
            return f.read().strip()

    @row("bad input: keys of the configuration that do not fit together")
    def test_configuration(self):
        path = os.path.join(self.directory, "atoll.toml")
        for text, says in (
            ('kind = "etcd"\n', "names no member"),
            ('endpoints = ["127.0.0.1:2379"]\n', "without effect"),
            ('kind = "etcd"\nendpoints = ["http://127.0.0.1:2379"]\n', "without the scheme"),
            ('kind = "etcd"\nendpoints = ["::1"]\n', r'did you mean "\[::1\]:2379"'),
            ('kind = "etcd"\nendpoints = ["10.0.0.1:2379"]\n', "neither encrypted nor"),
            ('kind = "etcd"\nendpoints = ["127.0.0.1:2379"]\nprefix = "x/"\n', "is not a prefix"),
            ('kind = "etcd"\nendpoints = ["[::1]:2379"]\ncertificate = "/c"\n', "set together"),
        ):
            with open(path, "w", encoding="ascii") as f:
                f.write(f"[directory]\n{text}")
            done = run([ATOLL, "serve", "--check-config", "--config", path], check=False)
            self.assert_refusal(done, says=says)


if __name__ == "__main__":
    import unittest

    unittest.main()

"""Hosts of several shards: threads of one process, each with disk groups, owners and clients of
its own."""

import os
import re
import time
import unittest

from harness import ClusterTest, row, wait_until
from load import Load
from nbd import Client

MIB = 1 << 20


class Shards(ClusterTest):
    disks_per_host, shards, volume = 3, 3, None

    def threads(self, host):
        """CPU time of the threads that are shards, in ticks, by their number."""
        found, tasks = {}, f"/proc/{self.cluster.pid(host)}/task"
        for task in os.listdir(tasks):
            with open(f"{tasks}/{task}/stat", encoding="utf-8") as f:
                name, rest = re.match(r"\d+ \((.*)\) (.*)", f.read()).groups()
            if name.startswith("shard-"):
                fields = rest.split()
                found[int(name.removeprefix("shard-"))] = int(fields[11]) + int(fields[12])
        return found

    @row("issue 22, 4: groups, owners and clients are spread over the shards of a host")
    def test_spread(self):
        self.assertEqual(sorted(self.threads(1)), [0, 1, 2])
        groups = [g for g in self.cluster.get("group", "list") if g["host"] == "host1"]
        self.assertEqual([g["state"] for g in groups], ["healthy"] * 3)
        names, blocks = [f"v{i}" for i in range(6)], {}
        clients = []
        try:
            for name in names:
                self.cluster.cli("volume", "create", name, "64MiB", "--policy", self.policy)
                clients.append(Client(self.cluster.nbd(1), name))
            before = self.threads(1)
            until, count = time.monotonic() + 4, 0
            while time.monotonic() < until:
                for name, client in zip(names, clients, strict=True):
                    blocks[name] = os.urandom(16 << 10)
                    client.write((count % 64) * MIB, blocks[name])
                    self.assertEqual(client.read((count % 64) * MIB, 16 << 10), blocks[name])
                count += 1
            at, after = ((count - 1) % 64) * MIB, self.threads(1)
            spent = {shard: after[shard] - before[shard] for shard in after}
            self.assertGreater(min(spent.values()), 5, f"each shard worked: {spent}")
            # Each client is listed once, wherever it is served, and every volume's load is there.
            sessions = self.cluster.get("session", "list")
            self.assertEqual(sorted(s["volume"] for s in sessions), names)
            self.assertEqual(len({s["id"] for s in sessions}), len(names))
            self.assertGreaterEqual(min(s["writes"] for s in sessions), count)
            listed = {v["name"]: v for v in self.cluster.get("volume", "list")}
            self.assertEqual({listed[name]["sessions"] for name in names}, {1})
            self.assertEqual(self.cluster.metric("atoll_nbd_connections"), len(names))
            # Two volumes a shard: the clients of four were handed over by shard 0.
            self.assertEqual(self.cluster.metric("atoll_nbd_resumed_total"), 4)
            self.assertGreaterEqual(
                self.cluster.metric("atoll_volume_writes_total"), count * len(names)
            )
            # A volume in use on any shard is in use.
            self.refused("volume", "delete", "v1", "--yes", says="in use")
        finally:
            for client in clients:
                client.close()
        for host in (2, 3):
            for name in names:
                with Client(self.cluster.nbd(host), name) as client:
                    self.assertEqual(client.read(at, 16 << 10), blocks[name])
        wait_until("no session", lambda: not self.cluster.get("session", "list"), 10)
        self.cluster.cli("volume", "delete", "v1", "--yes")

    @row("issue 22, 4: a process with several shards dies, and comes back with another number of them")
    def test_crash(self):
        names = [f"v{i}" for i in range(3)]
        for name in names:
            self.cluster.cli("volume", "create", name, "64MiB", "--policy", self.policy)
        with Load(self.cluster, "v0") as a, Load(self.cluster, "v1") as b:
            for shards in (1, 2, 3):
                a.wait_progress()
                b.wait_progress()
                victim = shards
                self.cluster.kill(victim)
                a.wait_progress(30, timeout_s=20)
                b.wait_progress(30, timeout_s=20)
                config = os.path.join(self.cluster.host_dir(victim), "atoll.toml")
                with open(config, encoding="utf-8") as f:
                    text = f.read()
                self.assertIn("shards = 3\n", text)
                with open(config, "w", encoding="utf-8") as f:
                    f.write(text.replace("shards = 3\n", f"shards = {shards}\n"))
                self.cluster.start(victim)
                self.assertEqual(sorted(self.threads(victim)), list(range(shards)))
                self.cluster.wait_healthy(host=victim)
            a.wait_progress()
            b.wait_progress()
            a.finish()
            b.finish()
        for host in (1, 2, 3):
            names = {e["kind"] for e in self.events(host)}
            self.assertFalse(names & {"component-lost", "rebuild-started"}, names)

    @row("issue 22, 4: disks of every shard are listed, wiped, made a group and scrubbed")
    def test_disks(self):
        shown = self.cluster.get("disk", "list", "--host", "host1")
        self.assertEqual([d["state"] for d in shown], ["in-use"] * 3)
        second = self.cluster.disks(1)[1]
        self.cluster.stop_host(1)
        os.unlink(second)
        with open(second, "xb") as f:
            f.truncate(2 << 30)
        self.cluster.start(1)
        shown = {d["path"]: d["state"] for d in self.cluster.get("disk", "list", "--host", "host1")}
        self.assertEqual(shown[second], "empty", shown)
        self.assert_event("disk-empty")
        self.cluster.cli("group", "create", second, timeout_s=60)
        shown = {d["path"]: d["state"] for d in self.cluster.get("disk", "list", "--host", "host1")}
        self.assertEqual(set(shown.values()), {"in-use"}, shown)

        def groups():
            return [g for g in self.cluster.get("group", "list") if g["host"] == "host1"]

        wait_until("three groups", lambda: len(groups()) == 3, 10)
        for group in groups():
            self.cluster.cli("scrub", "start", "--group", group["id"])
        self.refused("scrub", "start", "--group", "f" * 16, says="group")

    @row("issue 22, 4: hosts of several shards stop in order, and go on where they were")
    def test_stop(self):
        self.cluster.cli("volume", "create", "v0", "64MiB", "--policy", self.policy)
        block = os.urandom(4096)
        with Client(self.cluster.nbd(1), "v0") as client:
            client.write(0, block)
        for host in (1, 2, 3):
            self.cluster.stop_host(host)
        for host in (1, 2, 3):
            self.cluster.start(host, serving=False)
        self.cluster.wait_serving()
        with Client(self.cluster.nbd(3), "v0") as client:
            self.assertEqual(client.read(0, 4096), block)
        self.cluster.wait_healthy()


if __name__ == "__main__":
    unittest.main()

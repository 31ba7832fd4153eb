"""Processes that die: at any moment, one or all of them, nothing acknowledged is lost."""

import os
import random
import signal
import time
import unittest

from harness import ClusterTest, alive, row, wait_until
from load import Load
from nbd import Client

MEMBER_S, OWNER_S, ALL_S, CLIENT_S = 2.0, 10.0, 30.0, 3.0
STOPPED_S = 1.0


def all_die(cluster, load):
    """Kills every host in one moment, starts them, and waits until the load goes on."""
    cluster.kill_at_once((1, 2, 3))
    for host in (1, 2, 3):
        cluster.start(host, serving=False)
    load.wait_progress(timeout_s=ALL_S)


class Crash(ClusterTest):
    @row("2: a host with a copy dies; clients of other hosts stall under 2 s")
    def test_member(self):
        owner, member, _ = self.roles()
        with Load(self.cluster, self.volume, hosts=self.others(member)) as load:
            load.wait_progress()
            killed = time.monotonic()
            self.cluster.kill(member)
            load.wait_progress(50)
            self.assertLess(load.longest(killed), MEMBER_S)
            self.assertEqual(self.members(owner)[member], "absent")
            self.assertEqual(self.owner(owner), owner)
            self.cluster.start(member)
            self.cluster.wait_healthy(host=owner)
            load.wait_progress()
            load.finish()
        self.assert_event("member-dropped", owner)

    @row("1: the owner dies; clients of other hosts stall under 10 s")
    def test_owner(self):
        owner, member, _ = self.roles()
        with Load(self.cluster, self.volume, hosts=self.others(owner)) as load:
            load.wait_progress()
            killed = time.monotonic()
            self.cluster.kill(owner)
            load.wait_progress(50, timeout_s=OWNER_S + 10)
            self.assertLess(load.longest(killed), OWNER_S)
            self.assertNotEqual(self.owner(member), owner)
            self.cluster.start(owner)
            self.cluster.wait_healthy(host=member)
            load.wait_progress()
            load.finish()

    @row("a host is stopped in order under load; clients of other hosts hardly notice")
    def test_stopped(self):
        owner, member, other = self.roles()
        with Load(self.cluster, self.volume, hosts=[other]) as load:
            for host in (owner, member):
                load.wait_progress()
                stopped = time.monotonic()
                self.cluster.stop_host(host)
                load.wait_progress(50)
                self.assertLess(load.longest(stopped), STOPPED_S, f"host {host}")
                self.cluster.start(host)
                self.cluster.wait_healthy(host=other)
            load.finish()

    @row("58: a client cut off in mid-write repeats it elsewhere; it never lands after a newer one")
    def test_clients_move(self):
        owner, _, _ = self.roles()
        with Load(self.cluster, self.volume, write_share=0.8, blocks=18, private=True) as load:
            for _ in range(3):
                load.wait_progress()
                victim = self.owner(next(h for h in (1, 2, 3) if self.cluster.pid(h)))
                self.cluster.kill(victim)
                load.wait_progress(30, timeout_s=OWNER_S + 10)
                self.cluster.start(victim)
                self.cluster.wait_healthy()
            load.finish()

    @row("4: every host dies at once, under load")
    def test_all(self):
        with Load(self.cluster, self.volume) as load:
            for _ in range(2):
                load.wait_progress()
                all_die(self.cluster, load)
            self.cluster.wait_healthy()
            load.finish()

    @row("4: every host dies right after a volume has grown and its new part has gone home")
    def test_grown(self):
        block, copies = os.urandom(4096), self.members()

        def gone_home():
            return [self.cluster.metric("atoll_group_destaged_bytes_total", h) for h in copies]

        for at in (0, 900 << 20):
            before = gone_home()
            with Client(self.cluster.nbd(1), self.volume) as client:
                client.write(at, block)
            # Blocks go home after 2 s without a write, a checkpoint comes after 60.
            wait_until(
                "the block is home on every copy",
                lambda before=before: all(b < n for b, n in zip(before, gone_home(), strict=True)),
                timeout_s=20,
            )
            self.cluster.cli("volume", "resize", self.volume, "1GiB")
        self.cluster.kill_at_once((1, 2, 3))
        for host in (1, 2, 3):
            self.cluster.start(host)
        for host in (1, 2, 3):
            with Client(self.cluster.nbd(host), self.volume) as client:
                self.assertEqual(client.read(900 << 20, 4096), block)
        self.cluster.wait_healthy()

    @row("5: a random host dies every 3 s for 60 s")
    def test_loop(self):
        self.loop(private=False)

    @row("5, 58: the same, each client with blocks of its own")
    def test_loop_private(self):
        self.loop(private=True)

    def loop(self, private):
        chance = random.Random(self.id())
        with Load(self.cluster, self.volume, private=private) as load:
            load.wait_progress()
            until = time.monotonic() + 60
            rounds = 0
            while time.monotonic() < until:
                victim = chance.choice((1, 2, 3))
                before = load.completed()
                if self.cluster.pid(victim):
                    self.cluster.kill(victim)
                time.sleep(chance.uniform(0.2, 1.0))
                self.cluster.start(victim, serving=False)
                time.sleep(2.0)
                rounds += load.completed() > before
            self.assertGreater(rounds, 5, "no progress between the kills")
            load.wait_progress(timeout_s=ALL_S)
            self.cluster.wait_healthy()
            load.finish()

    @row("3: the daemon that a client uses dies and is started again: served within 3 s (an owner: 10 s)")
    def test_reconnect(self):
        owner, member, rest = self.roles()
        for host in (rest, member, owner):
            with Client(self.cluster.nbd(host), self.volume) as client:
                client.write(0, bytes([host]) * 4096)
                self.cluster.kill(host)
                begun = time.monotonic()
                self.cluster.start(host, serving=False)
                self.assertRaises(ConnectionError, client.read, 0, 4096)
            took = self.reconnect(host, begun)
            print(f"    host{host} serves its client again after {took:.2f} s", flush=True)
            self.assertLess(took, CLIENT_S, f"host{host}")
            self.cluster.wait_healthy()

    def reconnect(self, host, begun):
        """As QEMU's reconnect-delay: tries until it is connected; then a read and a write."""
        while True:
            try:
                with Client(self.cluster.nbd(host), self.volume) as client:
                    self.assertEqual(client.read(0, 4096), bytes([host]) * 4096)
                    client.write(0, bytes([host]) * 4096)
                return time.monotonic() - begun
            except ConnectionError:
                self.assertLess(time.monotonic() - begun, OWNER_S, f"host{host} is not back")
                time.sleep(0.05)

    @row("15: every host is restarted in turn, cleanly; no pause over 10 s")
    def test_rolling_restart(self):
        with Load(self.cluster, self.volume) as load:
            load.wait_progress()
            begun = time.monotonic()
            for host in (1, 2, 3):
                self.cluster.tool("dev", "stop", f"host{host}", "--dir", self.directory)
                self.assertIsNone(self.cluster.pid(host))
                load.wait_progress(timeout_s=OWNER_S + 5)
                self.cluster.start(host)
                self.cluster.wait_healthy()
            load.wait_progress()
            self.assertLess(load.longest(begun), OWNER_S)
            load.finish()


class Threads(ClusterTest):
    """On the pool of threads, which moves the bytes where there is no io_uring."""

    backend = "threads"

    @row("2, 4: a copy dies, then all hosts at once; the disks' bytes are moved by threads")
    def test_member_then_all(self):
        _, member, _ = self.roles()
        for host in (1, 2, 3):
            with open(os.path.join(self.cluster.host_dir(host), "atoll.toml"), encoding="utf-8") as f:
                self.assertIn('backend = "threads"', f.read())
        with Load(self.cluster, self.volume) as load:
            load.wait_progress()
            self.cluster.kill(member)
            load.wait_progress()
            self.cluster.start(member)
            self.cluster.wait_healthy()
            all_die(self.cluster, load)
            self.cluster.wait_healthy()
            load.finish()


class Directory(ClusterTest):
    @row("issue: kill -9 of any single process; the directory's: running I/O does not notice")
    def test_directory(self):
        pid = self.cluster.pid_in("directory", "pid") or self.cluster.pid_in("dev.pid")
        self.assertIsNotNone(pid, "no process keeps the directory")
        with Load(self.cluster, self.volume) as load:
            load.wait_progress()
            killed = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            wait_until("the directory to be gone", lambda: not alive(pid), 10)
            load.wait_progress(100)
            time.sleep(3)
            self.assertLess(load.longest(killed), MEMBER_S)
            self.cluster.tool("dev", "start", "directory", "--dir", self.directory)
            self.cluster.cli("volume", "create", "another", "16MiB", "--policy", self.policy)
            load.finish()


if __name__ == "__main__":
    unittest.main()

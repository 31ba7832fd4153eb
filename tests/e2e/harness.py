"""What every end-to-end test shares: a cluster of real processes of its own, taken down
afterwards.

A test fails also when a daemon panicked, or ended without being told to. The logs of a failed
test are kept under target/test-logs/e2e/<test>.
"""

import glob
import json
import os
import re
import shutil
import sys
import unittest

HERE = os.path.dirname(os.path.realpath(__file__))
REPOSITORY = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(REPOSITORY, "scripts", "lib"))

from cluster import ATOLL, Cluster, free_ports  # noqa: E402
from nbd import Client  # noqa: E402
from process import Stack, alive, run, wait_until  # noqa: E402

__all__ = [
    "ATOLL",
    "Cluster",
    "ClusterTest",
    "Stack",
    "alive",
    "free_ports",
    "row",
    "run",
    "wait_until",
]

LOGS = os.path.join(
    os.environ.get("CARGO_TARGET_DIR", os.path.join(REPOSITORY, "target")), "test-logs", "e2e"
)


class ClusterTest(unittest.TestCase):
    """One cluster per test. `row` names the line of the issue or of the fault matrix."""

    hosts, disk_size, backend = 3, "2GiB", "auto"
    volume, size, policy = "data", "256MiB", "mirror"
    # E2E_SHARDS=N runs every test on hosts of N shards.
    tls = True
    disks_per_host, shards = 1, int(os.environ.get("E2E_SHARDS", "0"))

    def setUp(self):
        self.stack = Stack()
        self.addCleanup(self.stack.close)
        self.directory = self.stack.directory("atoll-e2e-")
        self.addCleanup(self.keep_logs)  # before the stack removes them
        self.cluster = Cluster(
            self.stack,
            self.directory,
            hosts=self.hosts,
            disk_size=self.disk_size,
            base_port=free_ports(),
            backend=self.backend,
            disks=self.disks_per_host,
            shards=self.shards,
            tls=self.tls,
        )
        self.cluster.begin()
        self.make_policy(self.policy, 1)
        if self.volume:
            self.cluster.cli("volume", "create", self.volume, self.size, "--policy", self.policy)
            with Client(self.cluster.nbd(1), self.volume) as client:
                client.read(0, 4096)  # the first use makes this host its owner

    def make_policy(self, name, failures):
        if name not in {p["name"] for p in self.cluster.get("policy", "list")}:
            self.cluster.cli("policy", "create", name, "--failures-to-tolerate", str(failures))

    def tearDown(self):
        for log in sorted(glob.glob(os.path.join(self.directory, "*", "log"))):
            with open(log, encoding="utf-8", errors="replace") as f:
                panics = [line for line in f if "panicked at" in line]
            self.assertFalse(panics, f"{os.path.basename(os.path.dirname(log))} panicked")
        self.assertEqual(self.died(), [], "a daemon ended without being told to")

    def died(self):
        """What has ended by itself: the hosts and the directory, and `atoll dev` starts none again."""
        if not self.cluster.pid_in("dev.pid"):
            return []  # a test that stopped everything
        words = ("dev", "status", "--dir", self.directory, "-o", "json")
        shown = json.loads(self.cluster.tool(*words).stdout)["items"]
        return [
            f"{p['name']}: {p['detail']}" for p in shown if p["state"] == "died" or p["restarts"]
        ]

    def keep_logs(self):
        result = self._outcome.result
        if not any(test is self for test, _ in result.failures + result.errors):
            return
        kept = os.path.join(LOGS, self.id())
        shutil.rmtree(kept, ignore_errors=True)
        os.makedirs(kept)
        for host in range(1, self.hosts + 1):
            for path in glob.glob(os.path.join(self.cluster.host_dir(host), "*")):
                if os.path.isfile(path) and os.path.getsize(path) < 64 << 20:
                    shutil.copy(path, os.path.join(kept, f"host{host}-{os.path.basename(path)}"))
        for path in glob.glob(os.path.join(self.directory, "*")):
            if os.path.isfile(path) and os.path.getsize(path) < 64 << 20:
                shutil.copy(path, kept)
        with open(os.path.join(kept, "state.txt"), "w", encoding="utf-8") as out:
            for words in (["status"], ["volume", "list"], ["resync", "show"], ["events"]):
                for host in range(1, self.hosts + 1):
                    done = self.cluster.cli(*words, host=host, check=False, timeout_s=15)
                    out.write(f"== host{host}: {' '.join(words)}\n{done.stdout}{done.stderr}\n")
        print(f"    logs: {os.path.relpath(kept, REPOSITORY)}", flush=True)

    # Who is who.

    def owner(self, host=1):
        """The number of the host that orders the volume's I/O."""
        name = self.cluster.placement(self.volume, host=host).get("owner")
        self.assertIsNotNone(name, "the volume has no owner")
        return int(name.removeprefix("host"))

    def members(self, host=1):
        """Host number -> member state."""
        return {
            int(m["host"].removeprefix("host")): m["state"]
            for m in self.cluster.placement(self.volume, host=host)["members"]
        }

    def roles(self):
        """(owner, a host with a copy that is not the owner, the host that is neither if there is one)."""
        owner, members = self.owner(), self.members()
        other = next(h for h in members if h != owner)
        rest = [h for h in range(1, self.hosts + 1) if h not in (owner, other)]
        return owner, other, rest[0] if rest else None

    def others(self, host):
        return [h for h in range(1, self.hosts + 1) if h != host]

    # What must be said.

    def events(self, host=1):
        return self.cluster.get("events", host=host)

    def assert_event(self, pattern, host=1, timeout_s=10.0):
        """Some event of a host matches `pattern` (in kind, subject or message)."""

        def seen():
            return [
                e
                for e in self.events(host)
                if re.search(pattern, f"{e['kind']} {e['subject']} {e['message']}", re.I)
            ]

        try:
            return wait_until("event", seen, timeout_s, 0.2)
        except TimeoutError:
            kinds = [f"{e['kind']}: {e['message']}" for e in self.events(host)[-8:]]
            raise AssertionError(
                f"no event like {pattern!r} on host{host}; the last: {kinds}"
            ) from None

    def refused(self, *words, status=None, says=(), host=1):
        """The command fails as it should: one error line, a hint if there is a way out, no panic."""
        done = self.cluster.cli(*words, host=host, check=False)
        self.assert_refusal(done, status, says)
        return done

    def assert_refusal(self, done, status=None, says=()):
        said = done.stderr + done.stdout
        self.assertNotEqual(done.returncode, 0, f"accepted: {done.args} {said}")
        if status is not None:
            self.assertEqual(done.returncode, status, said)
        self.assertNotIn("panicked", said)
        self.assertRegex(said, r"error", said)
        for text in [says] if isinstance(says, str) else says:
            self.assertRegex(said, re.compile(text, re.I), said)

    def assert_safe_again(self, timeout_s=60.0, host=1):
        """Every copy is in sync, and no byte was found wrong."""
        self.cluster.wait_healthy(timeout_s, host=host)


def row(text):
    """What a test is the proof of; the runner prints it."""

    def mark(function):
        function.row = text
        return function

    return mark

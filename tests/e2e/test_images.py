"""Images and addresses: what is imported where, whatever the directories are called."""

import json
import os
import unittest

from harness import ATOLL, Cluster, ClusterTest, Stack, free_ports, row, run
from nbd import Client
from process import end  # the harness has completed the path
from targets import start_qemu_nbd
from uri import nbd

IN_USE, RISK = 4, 7

# Every byte that is special in some reader of URIs, command lines or option lists.
NAMES = ["a b", "a%20b", "a#b", "a&b=c", "a?b", "a;b", "a+b", "a,b", "\u00e4", "it's", b"\xff\n"]


def noise(path, size):
    with open(path, "wb") as f:
        f.write(os.urandom(size))
    return path


def same(one, other):
    """Whether QEMU reads the same from both."""
    words = ["qemu-img", "compare", "-f", "raw", "-F", "raw", one, other]
    return run(words, check=False).returncode == 0


class Addresses(unittest.TestCase):
    """Two clusters whose directories a careless reader of URIs takes for one."""

    def setUp(self):
        self.stack = Stack()
        self.addCleanup(self.stack.close)
        self.directory = self.stack.directory("atoll-e2e-")

    def begin(self, name):
        directory = os.path.join(self.directory, name)
        cluster = Cluster(self.stack, directory, hosts=1, disk_size="1GiB", base_port=free_ports())
        cluster.begin()
        cluster.cli("policy", "create", "one", "--failures-to-tolerate", "0")
        cluster.cli("volume", "create", "v", "4MiB", "--policy", "one")
        return cluster

    @row("issue 20, 2: an import reaches the cluster that was asked, and no other")
    def test_two_clusters(self):
        first, second = self.begin("a b"), self.begin("a%20b")
        image = noise(os.path.join(self.directory, "image #1.raw"), 4 << 20)
        empty = os.path.join(self.directory, "empty.raw")
        with open(empty, "wb") as f:
            f.truncate(4 << 20)
        second.cli("volume", "import", "v", image, "--existing", "--verify")
        for cluster, content in ((first, empty), (second, image)):
            shown = cluster.get("volume", "show", "v")["exports"]
            self.assertEqual(shown, [cluster.uri(1, "v")])
            self.assertTrue(same(content, shown[0]), f"{shown[0]} is not {content}")
            exported = os.path.join(self.directory, "out.raw")
            cluster.cli("volume", "export", "v", exported, "--force")
            self.assertTrue(same(content, exported))
        # What `atoll dev` prints can be pasted into a shell.
        shown = self.stack_summary(second)
        script = f'{shown}; exec "$0" -o json volume show v'
        answer = json.loads(run(["sh", "-c", script, ATOLL]).stdout)["item"]
        self.assertEqual(answer["exports"], [second.uri(1, "v")])

    def stack_summary(self, cluster):
        """The `export` line of a start; the cluster is started anew for it."""
        cluster.tool("dev", "stop", "--dir", cluster.directory)
        said = cluster.tool(*cluster.argv, "--detach").stdout
        return next(x[6:] for x in said.splitlines() if x.startswith("next: "))

    @row("issue 20, 2: every tool reads a URI as it was meant")
    def test_tools(self):
        image = noise(os.path.join(self.directory, "image.raw"), 1 << 20)
        for name in NAMES:
            directory = os.path.join(os.fsencode(self.directory), os.fsencode(name))
            os.mkdir(directory)
            socket = os.path.join(directory, b"nbd.sock")
            log = os.path.join(self.directory, "qemu-nbd.log")
            server = start_qemu_nbd(self.stack, socket, log, ["-f", "raw", image])
            address = nbd(socket)
            self.assertTrue(address.isascii())
            size = run(["nbdinfo", "--size", address]).stdout.strip()
            self.assertEqual(size, str(1 << 20), address)
            self.assertTrue(same(image, address), address)
            out = os.path.join(self.directory, "out.raw")
            run(["nbdcopy", address, out])
            self.assertTrue(same(image, out), address)
            words = ["--ioengine=nbd", f"--uri={address}", "--rw=read", "--size=1M", "--bs=64k"]
            run(["fio", "--name=x", *words])
            end(server)


class Imports(ClusterTest):
    """What an import does to a volume that is there already."""

    size = "8MiB"

    def path(self, name):
        return os.path.join(self.directory, name)

    @row("issue 20, 1, 3: what a volume holds is asked for at its owner, and replaced as a whole")
    def test_over_old_data(self):
        old, small = noise(self.path("old.raw"), 8 << 20), noise(self.path("small.raw"), 5000 * 512)
        with Client(self.cluster.nbd(2), self.volume) as client:
            client.write(8 << 19, b"fresh" * 100 + bytes(12))
            client.flush()
        # Just written, by another host, and not in any figure yet.
        self.refused("volume", "import", self.volume, old, status=RISK, says=["--yes"])
        self.cluster.cli("volume", "import", self.volume, old, "--yes", "--verify")
        self.refused("volume", "import", self.volume, small, status=RISK)
        self.assertTrue(same(old, self.cluster.uri(3, self.volume)), "the old data stayed")
        done = self.cluster.cli("volume", "import", self.volume, small, "--yes", "--verify")
        self.assertIn("volume data has 8388608 bytes, 2560000 of the image and then", done.stderr)
        expected = self.path("expected.raw")
        with open(small, "rb") as f, open(expected, "wb") as out:
            out.write(f.read())
            out.truncate(8 << 20)
        self.assertTrue(same(expected, self.cluster.uri(2, self.volume)), "old bytes are behind")
        self.cluster.cli("volume", "export", self.volume, self.path("out.raw"))
        self.assertTrue(same(expected, self.path("out.raw")))

    @row("issue 20, 1: a volume in use is not imported into, --yes or not, paused hosts included")
    def test_in_use(self):
        old = noise(self.path("old.raw"), 8 << 20)
        self.cluster.cli("volume", "import", self.volume, old, "--yes")
        client = Client(self.cluster.nbd(3), self.volume)
        client.read(0, 4096)
        words = ("volume", "import", self.volume, old, "--yes")
        self.refused(*words, status=IN_USE)
        self.cluster.pause(3)
        try:
            self.refused(*words, status=IN_USE)
        finally:
            self.cluster.resume(3)
        client.close()
        self.cluster.cli(*words)
        # An import that fails gives the volume back, and removes one that it made.
        too_large = noise(self.path("large.raw"), 9 << 20)
        self.refused("volume", "import", self.volume, too_large, "--yes", says="too large.*9.0 MiB")
        self.cluster.cli("volume", "delete", self.volume, "--yes")

    @row("reports R35: an export takes the space of what is there, not of the volume")
    def test_sparse(self):
        mib = 1 << 20
        self.cluster.create_volume("large", 1 << 30)
        with Client(self.cluster.nbd(1), "large") as client:
            for at in range(96):
                client.write((at * 5) * mib, os.urandom(mib))
            for at in range(32):
                client.trim((at * 5) * mib, mib)
            client.flush()
        holders = self.cluster.placement("large")["members"]
        other = next(h for h in (1, 2, 3) if f"host{h}" not in {m["host"] for m in holders})
        raw, qcow2 = self.path("out.raw"), self.path("out.qcow2")
        for path in (raw, qcow2):
            words = ("volume", "export", "large", path, "--verify")
            self.cluster.cli(*words, host=other)
            taken = os.stat(path).st_blocks * 512
            self.assertGreater(taken, 64 * mib)
            self.assertLess(taken, 80 * mib, path)
            self.assertTrue(same_as(path, self.cluster.uri(other, "large")))
        self.assertEqual(os.path.getsize(raw), 1 << 30)
        small = self.path("small")
        os.mkdir(small)
        run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", small])
        self.addCleanup(lambda: run(["umount", "-l", small], check=False))
        for name in ("out.raw", "out.qcow2"):
            words = ("volume", "export", "large", os.path.join(small, name))
            self.refused(*words, says="space", host=other)
            self.assertEqual(os.listdir(small), [], "a part of a file is left")


def same_as(path, uri):
    words = ["qemu-img", "compare", "-F", "raw", path, uri]
    return run(words, check=False).returncode == 0

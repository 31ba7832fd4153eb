"""What users ran into with similar systems, as public reports tell it: NBD, sizes, images and the
space that volumes take.
"""

import os
import random
import struct
import subprocess
import threading
import time
import unittest

import nbd
from harness import ATOLL, ClusterTest, row, run, wait_until
from nbd import Client, NbdError

CONFLICT, RISK = 4, 7
MIB = 1 << 20
HOLE, ZERO = 1, 2
OPT_STARTTLS = 5
ERR_UNSUP, ERR_UNKNOWN = (1 << 31) + 1, (1 << 31) + 6
USED_S = 20.0  # until what is shown as used follows what was written or discarded


class ReportTest(ClusterTest):
    def create(self, name, size):
        self.cluster.cli("volume", "create", name, size, "--policy", self.policy)

    def map(self, host, name, size):
        """[(length, flags)] of a whole volume, equal neighbours put together."""
        found = []
        with Client(self.cluster.nbd(host), name, block_status=True) as client:
            at = 0
            while at < size:
                for length, flags in client.block_status(at, min(size - at, 1 << 30)):
                    length = min(length, size - at)
                    at += length
                    if found and found[-1][1] == flags:
                        length += found.pop()[0]
                    found.append((length, flags))
        return found

    def used(self):
        """Bytes used in the groups of all hosts."""
        return sum(group["space"]["used_bytes"] for group in self.cluster.get("group", "list"))

    def wait_used(self, want):
        """Both what the groups and what the volumes say."""

        def seen():
            volumes = self.cluster.get("volume", "list")
            return (self.used(), sum(v["used_bytes"] for v in volumes)) == (want, want)

        try:
            wait_until("used space", seen, USED_S, 0.2)
        except TimeoutError:
            volumes = [(v["name"], v["used_bytes"]) for v in self.cluster.get("volume", "list")]
            self.fail(f"{self.used()} bytes used, {volumes}, not {want}")


class Blocks(ReportTest):
    @row("reports R01 R02 R05 R07: discards and zeroes on an empty volume, the map that follows")
    def test_map(self):
        size = 256 * MIB
        with Client(self.cluster.nbd(1), self.volume, block_status=True) as client:
            client.trim(0, size)
            client.zero(0, size)
            client.flush()
            self.assertEqual(client.read(0, MIB), bytes(MIB))
            client.write(0, os.urandom(4 * MIB))
            client.write(8 * MIB, os.urandom(8 * MIB))
            client.zero(8 * MIB, 4 * MIB)
            client.zero(12 * MIB, 4 * MIB, nbd.FLAG_NO_HOLE)
            answers = []
            for at in range(5):
                answers.append(client.block_status(0, size))
                client.read(at * MIB, 4096)
                client.flush()
            self.assertEqual(answers, answers[:1] * 5)
        rest = size - 16 * MIB
        want = [(4, 0), (8, HOLE | ZERO), (4, ZERO), (rest // MIB, HOLE | ZERO)]
        want = [(length * MIB, flags) for length, flags in want]
        for host in (1, 2, 3):
            self.assertEqual(self.map(host, self.volume, size), want, f"host{host}")
        self.cluster.kill(1)
        self.cluster.start(1)
        self.assert_safe_again()
        self.assertEqual(self.map(1, self.volume, size), want, "after a restart")
        image = os.path.join(self.directory, "copy.qcow2")
        uri = self.cluster.uri(2, self.volume)
        run(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", uri, image], timeout_s=60)
        self.assertLess(os.path.getsize(image), 6 * MIB)

    @row("reports R07: a discard of a whole volume is done; one that breaks the rules is EINVAL")
    def test_long(self):
        self.cluster.cli("volume", "resize", self.volume, "1500MiB")
        with Client(self.cluster.nbd(3), self.volume) as client:
            client.write(1400 * MIB, b"x" * MIB)
            client.trim(0, client.size)
            client.write(MIB, b"y" * 4096)
            client.zero(0, client.size)
            self.assertEqual(client.read(1400 * MIB, MIB), bytes(MIB))
            self.assertEqual(client.read(MIB, 4096), bytes(4096))
            for call in (client.trim, client.zero):
                for at, length in ((0, 2**32 - 1), (0, 2**32 - 512), (client.size, 4096)):
                    with self.assertRaises(NbdError) as caught:
                        call(at, length)
                    self.assertIn(caught.exception.number, (nbd.EINVAL, nbd.ENOSPC))
            self.assertEqual(client.read(0, 4096), bytes(4096))

    @row("reports R04: writes, zeroes and discards at multiples of 512 change no byte beside them")
    def test_neighbours(self):
        chance, size = random.Random(4), 16 * MIB
        with Client(self.cluster.nbd(1), self.volume) as one, Client(
            self.cluster.nbd(2), self.volume
        ) as two:
            want = bytearray(size)
            for turn in range(600):
                client = (one, two)[turn % 2]
                length = 512 * chance.choice((chance.randint(1, 16), chance.randint(1, 2048)))
                at = 512 * chance.randint(0, (size - length) // 512)
                kind = chance.randrange(4)
                data = chance.randbytes(length) if kind == 0 else bytes(length)
                if kind == 0:
                    client.write(at, data)
                elif kind == 3:
                    client.trim(at, length)
                else:
                    client.zero(at, length, nbd.FLAG_NO_HOLE if kind == 2 else 0)
                want[at : at + length] = data
                if turn % 200 == 199:
                    for client in (one, two):
                        for at in range(0, size, MIB):
                            same = client.read(at, MIB) == want[at : at + MIB]
                            self.assertTrue(same, f"turn {turn}, the MiB at {at}")


class Negotiation(ReportTest):
    size = "64MiB"

    def info(self, client, name):
        """The reply that ends an INFO."""
        data = struct.pack(">I", len(name)) + name + struct.pack(">H", 0)
        return client.option(nbd.OPT_INFO, data)[-1]

    @row("reports R09 R11 R12 R13: names, the old way to open, STARTTLS, strangers, block sizes")
    def test_options(self):
        names = ["n" * length for length in (1, 23, 24, 63, 64)]
        for name in names:
            self.create(name, "8MiB")
        other = Client(self.cluster.nbd(1), self.volume)
        for name in names:
            with Client(self.cluster.nbd(2), name) as client:
                self.assertEqual(client.size, 8 * MIB)
            old = Client(self.cluster.nbd(3), None)
            asked = name.encode()
            old.send(struct.pack(">QII", nbd.IHAVEOPT, nbd.OPT_EXPORT_NAME, len(asked)) + asked)
            self.assertEqual(struct.unpack(">Q", old.receive(8))[0], 8 * MIB)
            old.close(politely=False)
        with Client(self.cluster.nbd(1), None) as client:
            for data in (b"", b"x" * 1024):
                self.assertEqual(client.option(OPT_STARTTLS, data)[-1][0], ERR_UNSUP)
            for name in (b"", b"DATA", b"da ta", b"/data", b"data/", b"x" * 65):
                kind, said = self.info(client, name)
                self.assertEqual(kind, ERR_UNKNOWN, (name, said))
                self.assertTrue(said.decode().isprintable())
            client.go(self.volume)
            self.assertEqual(client.size, 64 * MIB)
            self.assertEqual(client.size % 512, 0)
            client.write(512, b"a" * 512)
            self.assertEqual(client.read(3 * 512, 512), bytes(512))
            self.assertEqual(client.read(512, 512), b"a" * 512)
        stranger = Client(self.cluster.nbd(1), None)
        stranger.send(b"GET /api/v1/volumes HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with self.assertRaises(ConnectionError):
            stranger.receive(1)
        stranger.close(politely=False)
        self.assertEqual(other.read(512, 512), b"a" * 512)
        other.close()


class Sizes(ReportTest):
    @row("reports R17 R20 R23: what has grown or shrunk keeps size and bytes through restarts")
    def test_restart(self):
        data = os.urandom(MIB)
        for name in ("grown", "twice", "small", "refused"):
            self.create(name, "64MiB")
            with Client(self.cluster.nbd(1), name) as client:
                client.write(0, data)
                client.write(63 * MIB, data)
        old = Client(self.cluster.nbd(2), "grown")
        self.cluster.cli("volume", "resize", "grown", "128MiB")
        self.cluster.cli("volume", "resize", "twice", "100MiB", host=2)
        self.cluster.cli("volume", "resize", "twice", "1GiB", host=3)
        self.cluster.cli("volume", "resize", "small", "32MiB", "--shrink", "--yes")
        self.refused("volume", "resize", "refused", "32MiB", status=RISK, says="shrink")
        self.refused("volume", "resize", "refused", "63TiB", says="62.0 TiB")
        self.refused("volume", "resize", "grown", "64MiB", "--shrink", "--yes", status=CONFLICT)
        self.assertEqual(old.read(63 * MIB, MIB), data)
        old.close()
        sizes = {"grown": 128 * MIB, "twice": 1024 * MIB, "small": 32 * MIB, "refused": 64 * MIB}

        def check(when):
            for host in (1, 2, 3):
                volumes = self.cluster.get("volume", "list", host=host)
                listed = {v["name"]: v["size_bytes"] for v in volumes}
                listed.pop(self.volume)
                self.assertEqual(listed, sizes, f"{when}, host{host}")
                for name, size in sizes.items():
                    with Client(self.cluster.nbd(host), name) as client:
                        self.assertEqual(client.size, size, f"{when}, host{host}, {name}")
                        self.assertEqual(client.read(0, MIB), data)
                        if size >= 64 * MIB:
                            self.assertEqual(client.read(63 * MIB, MIB), data)
                        if size > 64 * MIB:
                            self.assertEqual(client.read(64 * MIB, MIB), bytes(MIB))
                            self.assertEqual(client.read(size - MIB, MIB), bytes(MIB))

        check("before")
        self.assert_safe_again(5)
        self.cluster.kill_at_once([1, 2, 3])
        for host in (1, 2, 3):
            self.cluster.start(host, serving=False)
        self.cluster.wait_serving()
        self.assert_safe_again()
        check("after")
        self.cluster.cli("volume", "resize", "small", "64MiB")
        with Client(self.cluster.nbd(3), "small") as client:
            self.assertEqual(client.read(63 * MIB, MIB), bytes(MIB), "old bytes")


class Space(ReportTest):
    volume = None

    @row("reports R24 R36 R38 R42 R45: used is what is written, and comes back")
    def test_used(self):
        for name, written in (("one", 16), ("two", 32), ("three", 8)):
            self.create(name, "1GiB")
            with Client(self.cluster.nbd(1), name) as client:
                for at in range(written):
                    client.write(at * 8 * MIB, os.urandom(MIB))
        self.wait_used(2 * 56 * MIB)
        with Client(self.cluster.nbd(3), "two") as client:
            client.trim(0, client.size)
        self.wait_used(2 * 24 * MIB)
        image = os.path.join(self.directory, "image.raw")
        with open(image, "wb") as f:  # a quarter is data, a quarter written zeros, the rest a hole
            f.write(os.urandom(4 * MIB) + bytes(4 * MIB))
            f.truncate(16 * MIB)
        self.cluster.cli("volume", "import", "new", image, "--policy", self.policy, "--verify")
        self.wait_used(2 * 28 * MIB)
        for name in ("one", "two", "three", "new"):
            self.cluster.cli("volume", "delete", name, "--yes")
        self.wait_used(0)

    @row("reports R48: an empty volume has nothing to copy, also after a host was away")
    def test_empty(self):
        self.create("before", "1GiB")
        self.cluster.kill(2)
        words = ("volume", "create", "while", "1GiB", "--policy", self.policy)

        def created():  # on the others, as soon as host2 is known to be away
            return self.cluster.cli(*words, check=False).returncode == 0

        wait_until("a place without host2", created, 15, 0.2)
        self.cluster.start(2)
        self.assert_safe_again(15)
        self.assertEqual(self.cluster.get("resync", "show")["bytes_left"], 0)
        self.assertEqual(self.used(), 0)


class Images(ReportTest):
    @row("reports R37: a volume that grows or is written while it is exported")
    def test_busy_export(self):
        data = os.urandom(MIB)
        with Client(self.cluster.nbd(1), self.volume) as client:
            for at in range(0, 256, 4):
                client.write(at * MIB, data)
        stop = threading.Event()
        image = os.path.join(self.directory, "image.raw")

        def write():
            with Client(self.cluster.nbd(2), self.volume) as client:
                while not stop.is_set():
                    client.write(random.randrange(1 << 16) * 4096, os.urandom(4096))

        writer = threading.Thread(target=write)
        writer.start()
        try:
            time.sleep(0.2)
            words = ("volume", "export", self.volume, image)
            self.refused(*words, "--verify", says="differ")
            self.assertFalse(os.path.exists(image))
            smaller = ("volume", "resize", self.volume, "64MiB", "--shrink", "--yes")
            self.refused(*smaller, status=CONFLICT)
        finally:
            stop.set()
            writer.join()
        export = self.stack.spawn(
            [ATOLL, "--endpoint", self.cluster.api(1), *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.cluster.cli("volume", "resize", self.volume, "512MiB")
        self.assertEqual(export.wait(60), 0)
        self.assertIn(os.path.getsize(image), (256 * MIB, 512 * MIB))
        with Client(self.cluster.nbd(3), self.volume) as client, open(image, "rb") as f:
            self.assertEqual(client.size, 512 * MIB)
            for at in range(0, 256, 8):
                f.seek(at * MIB)
                self.assertEqual(f.read(8 * MIB), client.read(at * MIB, 8 * MIB))
        self.refused(*words, status=RISK, says="exists")


if __name__ == "__main__":
    unittest.main()

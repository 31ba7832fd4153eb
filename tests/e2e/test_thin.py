"""Volumes that are larger than what is there: how large, how many, and what is reserved."""

import json
import re
import time
import unittest

from harness import ClusterTest, row, wait_until
from nbd import ENOSPC, Client, NbdError

GIB, MIB = 1 << 30, 1 << 20
UNPLACEABLE = 6


class Sparse(ClusterTest):
    """Three hosts with a sparse disk each. Their logs are small: they are written once."""

    volume, disk_bytes, log_bytes = None, 45 * GIB, 256 * MIB

    def setUp(self):
        super().setUp()
        for host in (1, 2, 3):
            self.cluster.replace_disk(host, self.disk_bytes, self.log_bytes)
        self.cluster.wait_healthy()

    def refused(self, *words, says):
        done = self.cluster.cli(*words, check=False)
        self.assertEqual(done.returncode, UNPLACEABLE, f"{words}: {done.stdout}{done.stderr}")
        for pattern in says:
            self.assertRegex(done.stderr, pattern)

    def status(self):
        return json.loads(self.cluster.cli("status", "-o", "json").stdout)["item"]

    def checks(self):
        return [check["name"] for check in self.status()["health"]["checks"]]


class Thin(Sparse):
    @row("issue 22: a volume of 60 GiB on hosts with 45 GiB each, and the limit of all of them")
    def test_60_gib(self):
        size, made = 60 * GIB, 0
        self.cluster.cli("volume", "create", "v0", "60GiB", "--policy", self.policy)
        members = self.cluster.placement("v0")["members"]
        self.assertGreater(len(members), 2, "no component is larger than a disk")
        block = bytes(range(256)) * 16
        with Client(self.cluster.nbd(1), "v0") as client:
            for at in range(0, size, 5 * GIB):
                client.write(at, block)
            client.write(size - len(block), block)
        with Client(self.cluster.nbd(2), "v0") as client:
            for at in range(0, size, 5 * GIB):
                self.assertEqual(client.read(at, len(block)), block)
            self.assertEqual(client.read(size - len(block), len(block)), block)
        # One host dies: a volume that is too large for any host serves and heals as any other.
        self.cluster.kill(3)
        with Client(self.cluster.nbd(1), "v0", timeout_s=60) as client:
            client.write(MIB, block)
            self.assertEqual(client.read(55 * GIB, len(block)), block)
        self.cluster.start(3)
        self.cluster.wait_healthy()
        exist = self.status()["exist_bytes"]
        self.assertAlmostEqual(exist / GIB, 3 * 45, delta=15)
        words = ("--policy", self.policy)
        for made in range(1, 20):
            name = f"v{made}"
            if 2 * size * (made + 1) > 10 * exist:
                break
            self.cluster.cli("volume", "create", name, "60GiB", *words)
        self.assertGreater(made, 5)
        limit = ["the limit is 1000 % of that", r"atoll cluster set --promised-limit \d+"]
        self.refused("volume", "create", name, "60GiB", *words, says=limit)
        self.refused("volume", "create", name, "60GiB", *words, "--dry-run", says=limit)
        self.assertIn("promised-limit", self.checks())
        shown = self.cluster.cli("status").stdout
        self.assertRegex(shown, r"promised +[\d.]+ TiB to volumes.* limit 1000 %")
        check = self.cluster.cli("policy", "check", self.policy, "--size", "60GiB", check=False)
        self.assertEqual(check.returncode, UNPLACEABLE, check.stdout)
        wanted = self.cluster.cli("volume", "create", name, "60GiB", *words, check=False).stderr
        wanted = re.search(r"--promised-limit (\d+)", wanted).group(1)
        self.cluster.cli("cluster", "set", "--promised-limit", wanted, host=2)
        self.assertIn(f"{wanted} % of the space", self.cluster.cli("cluster", "show").stdout)
        self.cluster.cli("volume", "create", name, "60GiB", *words)
        done = self.cluster.cli("cluster", "set", "--promised-limit", "99", check=False)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("must be 100 to 1000000", done.stderr)
        # Growing is promising, too; a copy grows to its disks.
        self.refused("volume", "resize", "v0", "70GiB", says=["the limit is"])
        self.cluster.cli("cluster", "set", "--promised-limit", "5000")
        self.cluster.cli("volume", "resize", "v0", "70GiB")
        legs = len(members) // 2
        self.refused("volume", "resize", "v0", f"{legs * 45 + 10}GiB", says=["has disks of up to"])

    @row("issue 22: a policy reserves: what is reserved is promised to nobody else")
    def test_reserve(self):
        self.cluster.cli("policy", "create", "db", "--reserve", "100")
        self.assertRegex(self.cluster.cli("policy", "show", "db").stdout, "100 %")
        bad = self.cluster.cli("policy", "create", "bad", "--reserve", "101", check=False)
        self.assertIn("reserve_percent is 101, and must be 0 to 100", bad.stderr)
        self.cluster.cli("volume", "create", "a", "40GiB", "--policy", "db")
        says = [r"fault domains? with 40.0 GiB free", "free or add"]
        self.refused("volume", "create", "b", "40GiB", "--policy", "db", says=says)
        self.refused("policy", "check", "db", "--size", "40GiB", says=[])
        self.cluster.cli("volume", "create", "b", "3GiB", "--policy", "db")
        self.cluster.cli("volume", "create", "thin", "40GiB", "--policy", self.policy)
        self.refused("volume", "resize", "b", "30GiB", says=["free or add"])
        self.cluster.cli("volume", "delete", "a", "--yes")
        self.cluster.cli("volume", "resize", "b", "30GiB")


class Largest(Sparse):
    disk_bytes = 320 * GIB

    # Each component has at most 255 GiB: 249 legs, and as many again when a host is away.
    @row("issue 22: 62 TiB are made, used, and healed, where a hundredth of that exists")
    def test_62_tib(self):
        size = 62 << 40
        self.refused("volume", "create", "v", "62TiB", "--policy", self.policy, says=["limit"])
        self.cluster.cli("cluster", "set", "--promised-limit", "20000")
        self.cluster.cli("volume", "create", "v", "62TiB", "--policy", self.policy, timeout_s=120)
        members = self.cluster.placement("v")["members"]
        self.assertEqual(len(members), 2 * 249)
        block = bytes(range(256)) * 16
        places = [*range(0, size, 7 << 40), size - len(block)]
        with Client(self.cluster.nbd(1), "v", timeout_s=60) as client:
            self.assertEqual(client.size, size)
            for at in places:
                client.write(at, block)
        self.cluster.kill(3)
        with Client(self.cluster.nbd(2), "v", timeout_s=60) as client:
            for at in places:
                self.assertEqual(client.read(at, len(block)), block)
                client.write(at, block[::-1])
        self.cluster.start(3)
        self.cluster.wait_healthy(timeout_s=180)
        with Client(self.cluster.nbd(3), "v", timeout_s=60) as client:
            for at in places:
                self.assertEqual(client.read(at, len(block)), block[::-1])
        self.cluster.cli("volume", "delete", "v", "--yes", timeout_s=120)


class Full(ClusterTest):
    """Disks of 1 GiB, and a volume of three times that."""

    volume, size, disk_size = "data", "3GiB", "2GiB"

    @row("issue 22: a thin volume that is full: ENOSPC, told before, and what is there is served")
    def test_full(self):
        block, written, warned = bytes(range(256)) * 4096, 0, None
        with Client(self.cluster.nbd(1), self.volume, timeout_s=60) as client:
            with self.assertRaises(NbdError) as refused:
                for at in range(0, 3 * GIB, MIB):
                    client.write(at, block)
                    written += MIB
                    if at % (64 * MIB) == 0 and warned is None:
                        check = self.cluster.cli("status", "--check", check=False).stdout
                        warned = written if re.search("promised-more|nearly-full", check) else None
            self.assertEqual(refused.exception.number, ENOSPC)
            self.assertIsNotNone(warned, "no warning before the space ran out")
            self.assertLess(warned, written * 9 // 10)
            self.assertEqual(client.read(written - MIB, MIB), block)
            client.write(0, block[::-1])
            client.trim(MIB, 256 * MIB)
            deadline = time.monotonic() + 60
            while True:
                try:
                    client.write(written, block)
                    break
                except NbdError as error:
                    self.assertEqual(error.number, ENOSPC)
                    self.assertLess(time.monotonic(), deadline, "a discard frees nothing")
                    time.sleep(0.5)
        check = lambda: self.cluster.cli("status", "--check", check=False).stdout
        wait_until("no-space is over", lambda: "no-space" not in check(), 60)


if __name__ == "__main__":
    unittest.main()

"""Disks that rot, vanish, come back old, are exchanged, copied, emptied, full."""

import errno
import json
import os
import shutil
import time
import unittest

import disks
from faultydisk import FaultyDisk
from harness import ClusterTest, row, run, wait_until
from history import BLOCK
from load import Load
from nbd import EIO, ENOSPC, Client, NbdError

MARK = b"Atoll e2e mark: this block is looked for on the medium. "


def marked(number):
    """A block whose bytes stand nowhere else."""
    head = MARK + f"{number:08d} ".encode()
    return (head * (BLOCK // len(head) + 1))[:BLOCK]


class Filled(ClusterTest):
    """A volume with known contents: 64 blocks at the start, each marked with its number."""

    blocks = 64

    def setUp(self):
        super().setUp()
        with self.client(1) as client:
            for number in range(self.blocks):
                client.write(number * BLOCK, marked(number))
            client.flush()

    def client(self, host, **options):
        return Client(self.cluster.nbd(host), self.volume, **options)

    def assert_contents(self, host, skip=()):
        with self.client(host) as client:
            for number in range(self.blocks):
                if number not in skip:
                    self.assertEqual(
                        client.read(number * BLOCK, BLOCK), marked(number), f"block {number}"
                    )

    def disk(self, host):
        return self.cluster.disks(host)[0]

    def rot(self, host, number, running=True):
        """Flips a bit in every copy of a block that one host's disks hold: log and capacity."""
        places = [
            (disk, at)
            for disk in self.cluster.disks(host)
            for at in disks.find(disk, marked(number))
        ]
        self.assertTrue(places, f"block {number} is not on host{host}'s disks")
        for disk, at in places:
            disks.flip(disk, at + 777)

    def restart(self, host, between=lambda: None):
        self.cluster.kill(host)
        between()
        self.cluster.start(host)


class Rot(Filled):
    @row(
        "22, 23: a bit rots in one copy, in log or capacity: read elsewhere, repaired, counted, said"
    )
    def test_one_copy(self):
        for host in self.members():
            self.rot(host, 5 + host)
        for host in (1, 2, 3):
            self.assert_contents(host)
        # Whoever reads its own copy has met the rot; a scrub finds what nobody has read.
        self.cluster.cli("scrub", "start")
        self.wait_scrub()
        for host in (1, 2, 3):
            self.assert_contents(host)
        self.assert_event("bad-block")
        wait_until("both to be repaired", lambda: self.repaired() >= 2, 30, 0.2)
        wait_until(
            "both to be counted",
            lambda: self.cluster.get("status")["checksum_errors"] >= 2,
            10,
            0.2,
        )
        # Mended on the medium: a second pass finds nothing.
        self.cluster.cli("scrub", "start")
        self.wait_scrub()
        self.assertEqual(sum(s["blocks_bad"] for s in self.cluster.get("scrub", "show")), 0)

    def repaired(self):
        return sum(e["kind"] == "block-repaired" for e in self.events())

    def wait_scrub(self, timeout_s=60.0):
        deadline = time.monotonic() + timeout_s
        while any(s["running"] for s in self.cluster.get("scrub", "show")):
            self.assertLess(time.monotonic(), deadline, "the scrub does not end")
            time.sleep(0.2)

    @row(
        "25: a bit rots in every copy of one block: an I/O error for that block only; a write heals it"
    )
    def test_every_copy(self):
        for host in self.members():
            self.rot(host, 9)
        for host in (1, 2, 3):
            with self.client(host) as client, self.assertRaises(NbdError) as caught:
                client.read(9 * BLOCK, BLOCK)
            self.assertEqual(caught.exception.number, EIO)
            self.assert_contents(host, skip={9})
        with self.client(1) as client:
            client.write(9 * BLOCK, marked(9))
        for host in (1, 2, 3):
            self.assert_contents(host)

    @row(
        "24: bits rot in superblocks and metadata of one disk: second copy, or rebuilt from its peers"
    )
    def test_metadata(self):
        _, member, _ = self.roles()
        disk = self.disk(member)
        for at in (0, 4096, 8192, 64 << 10, 1 << 20, (1 << 20) + 4096, (2 << 20) + 100):
            self.restart(member, lambda at=at: disks.flip(disk, at))
            for host in (1, 2, 3):
                self.assert_contents(host)
        self.cluster.wait_healthy()


class Silent(Filled):
    @row("issue 21: a host whose only disk does not answer starts without it, and stays of use")
    def test_at_start(self):
        self.cluster.kill(3)
        disk = FaultyDisk(self.stack, self.disk(3))
        disk.fail("hang")
        try:
            self.cluster.start(3)
            self.assert_contents(3)
            began = time.monotonic()
            shown = self.cluster.get("disk", "list", "--host", "host3", host=3)
            self.assertEqual([d["state"] for d in shown], ["unusable"], shown)
            self.assertIn("does not answer", shown[0]["detail"])
            self.assertLess(time.monotonic() - began, 15, "the command waited for the disk")
            self.assert_contents(3)
            told = self.cluster.get("events", host=3)
            self.assertIn("disk-unusable", [e["kind"] for e in told])
        finally:
            disk.heal()
        self.cluster.kill(3)
        self.cluster.start(3)
        self.cluster.wait_healthy()
        shown = self.cluster.get("disk", "list", "--host", "host3", host=3)
        self.assertEqual([d["state"] for d in shown], ["in-use"], shown)
        self.assert_contents(3)
        self.cluster.kill(3)  # before its disk ends


class Exchanged(Filled):
    @row("28: a whole disk rolls back to an older state: seen, resynced as stale, never served")
    def test_rolled_back(self):
        owner, member, _ = self.roles()
        disk, kept = self.disk(member), os.path.join(self.directory, "kept")
        self.restart(member, lambda: disks.copy(disk, kept))
        self.cluster.wait_healthy()
        with self.client(owner) as client:
            client.write(3 * BLOCK, b"n" * BLOCK)
            client.write(4 * BLOCK, b"m" * BLOCK)
        self.restart(member, lambda: os.replace(kept, disk))
        self.assert_event("lost what it had acknowledged", owner)
        for host in (1, 2, 3):
            with self.client(host) as client:
                self.assertEqual(client.read(3 * BLOCK, 2 * BLOCK), b"n" * BLOCK + b"m" * BLOCK)
            self.assert_contents(host, skip={3, 4})
        self.cluster.wait_healthy()
        # What the copy itself holds: it alone is left.
        self.cluster.kill(owner)
        with self.client(member) as client:
            self.assertEqual(client.read(3 * BLOCK, 2 * BLOCK), b"n" * BLOCK + b"m" * BLOCK)

    @row("44: two disks swapped between hosts: recognised by their labels; no data mix")
    def test_swapped(self):
        one, other = list(self.members())
        for host in (one, other):
            self.cluster.kill(host)
        disks.swap(self.disk(one), self.disk(other))
        for host in (one, other):
            self.cluster.start(host, serving=False)
            self.assert_refused(host, self.disk(host), "moved here, or a copy")
        # Refused in the new place; put back, everything is there.
        for host in (one, other):
            self.cluster.kill(host)
        disks.swap(self.disk(one), self.disk(other))
        for host in (one, other):
            self.cluster.start(host)
        for host in (1, 2, 3):
            self.assert_contents(host)
        self.cluster.wait_healthy()

    @row("46: the same disk twice: the copy is refused")
    def test_cloned(self):
        owner, member, rest = self.roles()
        kept = os.path.join(self.directory, "kept")
        self.cluster.kill(rest)
        os.rename(self.disk(rest), kept)
        disks.copy(self.disk(member), os.path.join(os.path.dirname(kept), "clone"))
        os.rename(os.path.join(self.directory, "clone"), self.disk_path(rest, kept))
        self.cluster.start(rest, serving=False)
        self.assert_refused(rest, self.disk_path(rest, kept), "moved here, or a copy")
        for host in (owner, member):
            self.assert_contents(host)
        self.assertEqual(set(self.members(owner)), {owner, member})

    @row("46: the same disk twice in one host: the second is refused")
    def test_cloned_beside(self):
        _, member, _ = self.roles()
        original, clone = self.disk(member), os.path.join(self.directory, "clone")
        config = os.path.join(self.cluster.host_dir(member), "atoll.toml")

        def twice():
            disks.copy(original, clone)
            with open(config, "a", encoding="utf-8") as f:
                f.write(f'\n[[group]]\ndisks = ["{clone}"]\n')

        self.restart(member, twice)
        self.assert_refused(member, clone, f"runs on {original}")
        self.assert_contents(member)
        self.cluster.wait_healthy()

    def assert_refused(self, host, path, why):
        """A host says why it does not use a disk, in its disk list and as an event."""


        def here():
            listed = self.cluster.cli("disk", "list", "-o", "json", host=host, check=False)
            if listed.returncode != 0:
                return []
            disks = json.loads(listed.stdout)["items"]
            return [d for d in disks if d["host"] == f"host{host}" and d["path"] == path]

        [disk] = wait_until(f"host{host} to list its disks", here, 30, 0.2)
        self.assertNotEqual(disk["state"], "in-use")
        self.assertIn(why, disk["detail"])
        self.assert_event("disk-unusable")

    def disk_path(self, host, kept):
        return os.path.join(self.cluster.host_dir(host), "disk1.img")

    @row(
        "48, 42: an empty disk in place of a member: not formatted by itself; the data stay served"
    )
    def test_emptied(self):
        owner, member, _ = self.roles()
        disk = self.disk(member)
        self.restart(member, lambda: disks.empty(disk))
        for host in (1, 2, 3):
            self.assert_contents(host)
        self.assertFalse(list(disks.extents(disk)), "an empty disk was written to unasked")
        self.assertEqual(
            [
                d["state"]
                for d in self.cluster.get("disk", "list", host=member)
                if d["host"] == f"host{member}"
            ],
            ["empty"],
        )
        # It takes a command; then the copy is made good without another one.
        self.cluster.cli("group", "create", disk, host=member)
        self.cluster.wait_healthy(timeout_s=120)
        self.assert_contents(member)

    @row("47: a disk is truncated: failed, said, the other copy serves")
    def test_truncated(self):
        owner, member, _ = self.roles()
        disk = self.disk(member)
        self.restart(member, lambda: os.truncate(disk, os.path.getsize(disk) // 2 + 1000))
        for host in (1, 2, 3):
            self.assert_contents(host)
        states = [
            d["state"]
            for d in self.cluster.get("disk", "list", host=member)
            if d["host"] == f"host{member}"
        ]
        self.assertNotEqual(states, ["in-use"])
        details = [
            d["detail"]
            for d in self.cluster.get("disk", "list", host=member)
            if d["host"] == f"host{member}"
        ]
        self.assertRegex(" ".join(details), "(?i)shrunk|smaller|left", "nothing says what is wrong")


class Absent(Filled):
    @row(
        "20: the stale copy comes up first and alone: its volume is held, not served; then all is there"
    )
    def test_stale_copy_alone(self):
        owner, member, rest = self.roles()
        self.cluster.kill(member)
        with self.client(owner) as client:
            client.write(7 * BLOCK, b"7" * BLOCK)
        for host in (owner, rest):
            self.cluster.kill(host)
        self.cluster.start(member)
        with self.assertRaises((ConnectionError, NbdError)):
            with self.client(member, timeout_s=8) as client:
                data = client.read(7 * BLOCK, BLOCK)
                self.fail(f"the stale copy answered: {data[:8]!r}")
        for host in (owner, rest):
            self.cluster.start(host)
        for host in (1, 2, 3):
            with self.client(host) as client:
                self.assertEqual(client.read(7 * BLOCK, BLOCK), b"7" * BLOCK)
            self.assert_contents(host, skip={7})
        self.cluster.wait_healthy()

    @row("21, 43: a host returns after many writes: only what changed is copied")
    def test_long_absence(self):
        owner, member, _ = self.roles()
        with self.client(owner) as client:
            for at in range(0, 96 << 20, 1 << 20):
                client.write(at + (1 << 20), os.urandom(1 << 20))
            self.cluster.kill(member)
            fresh = [os.urandom(1 << 20) for _ in range(8)]
            for i, data in enumerate(fresh):
                client.write((32 + i) << 20, data)
        self.cluster.start(member)
        copied = {}

        def watch(resync):
            for item in resync["items"]:
                copied[item["component"]] = max(
                    copied.get(item["component"], 0), item["bytes_done"]
                )

        self.cluster.wait_healthy(host=owner, watch=watch)
        self.assertLess(sum(copied.values()), 24 << 20, "far more was copied than had changed")
        self.cluster.kill(owner)
        with self.client(member) as client:
            for i, data in enumerate(fresh):
                self.assertEqual(client.read((32 + i) << 20, 1 << 20), data)


class Full(ClusterTest):
    """Three thin volumes that were promised more than there is."""

    disk_size, size = "1GiB", "600MiB"

    @row("36, 37: the disks are full: ENOSPC, reads go on, deleting makes room again")
    def test_full(self):
        names = [self.volume, "second", "third"]
        for name in names[1:]:
            self.cluster.cli("volume", "create", name, self.size, "--policy", self.policy)
        first, full, written = os.urandom(1 << 20), None, 0
        for name in names:
            with Client(self.cluster.nbd(1), name, timeout_s=60) as client:
                client.write(0, first)
                try:
                    for at in range(1 << 20, 600 << 20, 1 << 20):
                        client.write(at, os.urandom(1 << 20))
                        written += 1 << 20
                except NbdError as error:
                    self.assertEqual(error.number, ENOSPC, f"after {written >> 20} MiB")
                    full = name
                    break
        self.assertIsNotNone(full, "three volumes of 600 MiB fit twice on three disks of 1 GiB")
        self.assertGreater(written, 600 << 20, "full far too early")
        with Client(self.cluster.nbd(2), full, timeout_s=60) as client:
            self.assertEqual(client.read(0, 1 << 20), first)
            # What is freed may take a moment to be taken again.
            client.trim(64 << 20, 64 << 20)
            self.write_soon(client, 64 << 20, first, "a discard frees nothing")
            self.assertEqual(client.read(64 << 20, 1 << 20), first)
        for host in (1, 2, 3):
            self.cluster.kill(host)
        for host in (1, 2, 3):
            self.cluster.start(host, serving=False)
        self.cluster.wait_serving()
        for name in names[: names.index(full) + 1]:
            with Client(self.cluster.nbd(3), name, timeout_s=60) as client:
                self.assertEqual(client.read(0, 1 << 20), first)
        self.cluster.cli("volume", "delete", self.volume, "--yes")
        with Client(self.cluster.nbd(3), full, timeout_s=60) as client:
            for at in range(200 << 20, 264 << 20, 1 << 20):
                self.write_soon(client, at, first, "deleting a volume frees nothing")

    def write_soon(self, client, at, data, complaint, timeout_s=60.0):
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return client.write(at, data)
            except NbdError as error:
                self.assertEqual(error.number, ENOSPC)
                self.assertLess(time.monotonic(), deadline, complaint)
                time.sleep(0.5)


class StateFull(ClusterTest):
    """Everything of one host but its disks (identity, sockets, log) on a file system of 8 MiB."""

    def setUp(self):
        if os.geteuid() != 0:
            self.skipTest("row 39 mounts a file system: run it as root, or under 'unshare -rm'")
        super().setUp()
        self.host = self.roles()[1]
        place = self.cluster.host_dir(self.host)
        aside = os.path.join(self.directory, "aside")
        self.cluster.kill(self.host)
        os.rename(place, aside)
        os.mkdir(place)
        run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", place])
        # Before the directory is removed, and after everything on it has ended.
        self.addCleanup(lambda: run(["umount", "-l", place], check=False))
        self.addCleanup(self.cluster.end)
        for name in os.listdir(aside):
            source, target = os.path.join(aside, name), os.path.join(place, name)
            if name.startswith("disk"):
                os.symlink(source, target)
            elif os.path.isdir(source):
                shutil.copytree(source, target)
            elif os.path.isfile(source):
                shutil.copy(source, target)
        self.cluster.start(self.host)
        self.cluster.wait_healthy()
        self.filler = os.path.join(place, "filler")

    def fill(self):
        with open(self.filler, "wb", buffering=0) as f:
            for piece in (1 << 16, 1):
                try:
                    while True:
                        f.write(bytes(piece))
                except OSError as error:
                    self.assertEqual(error.errno, errno.ENOSPC)

    @row("39: the file system of a host's state is full: I/O does not notice; its daemon lives")
    def test_full(self):
        pid = self.cluster.pid(self.host)
        with Load(self.cluster, self.volume) as load:
            load.wait_progress()
            self.fill()
            full = time.monotonic()
            # Others come and go: things that are logged.
            other = self.roles()[2]
            self.cluster.kill(other)
            self.cluster.start(other)
            load.wait_progress(100)
            with self.assertRaises(OSError):
                with open(os.path.join(self.cluster.host_dir(self.host), "more"), "wb") as f:
                    f.write(bytes(1 << 16))
            mine = [w for w in load.workers if w.hosts[0] == self.host]
            self.assertTrue(mine, "no client uses the host")
            self.assertLess(load.longest(full, workers=mine), 2.0)
            self.assertEqual(self.cluster.pid(self.host), pid, "the daemon ended")
            self.assert_event("state-full", host=self.host)
            with Client(self.cluster.nbd(self.host), self.volume) as client:
                client.read(0, 4096)
            os.unlink(self.filler)
            self.assert_event("state-has-room", host=self.host)
            self.cluster.wait_healthy()
            load.finish()


class Beyond(ClusterTest):
    @row("51: both copies are away: held, not failed over to nothing; goes on when either returns")
    def test_both_copies(self):
        owner, member, rest = self.roles()
        with Load(self.cluster, self.volume, hosts=[rest]) as load:
            load.wait_progress()
            self.cluster.kill(member)
            load.wait_progress()
            self.cluster.kill(owner)
            time.sleep(5)
            self.cluster.start(owner)
            load.wait_progress(timeout_s=30)
            self.cluster.start(member)
            self.cluster.wait_healthy()
            load.finish()


if __name__ == "__main__":
    unittest.main()

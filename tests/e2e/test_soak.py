"""Disks that lie under running hosts (soak.py), for two minutes; and whether that could fail."""

import argparse
import contextlib
import glob
import io
import mmap
import os
import random
import signal
import subprocess
import sys
import time
import unittest

import soak
from faultydisk import BLOCK, FaultyDisk
from harness import HERE, Stack, row, wait_until
from process import end

SIZE = 1 << 20


class Disk(unittest.TestCase):
    """What FaultyDisk does to whom it serves, through O_DIRECT."""

    def setUp(self):
        if os.geteuid() != 0:
            self.skipTest("it mounts: run it as root, or under 'unshare -rm'")
        self.stack = Stack()
        self.addCleanup(self.stack.close)
        path = os.path.join(self.stack.directory("atoll-e2e-"), "disk")
        with open(path, "xb") as f:
            f.truncate(SIZE)
        self.disk = FaultyDisk(self.stack, path)
        self.file = os.open(path, os.O_RDWR | os.O_DIRECT)
        self.stack.callback(os.close, self.file)
        self.buffer = mmap.mmap(-1, BLOCK)
        self.write(5, b"o")

    def write(self, block, byte):
        self.buffer[:] = byte * BLOCK
        self.assertEqual(os.pwrite(self.file, self.buffer, block * BLOCK), BLOCK)

    def read(self, block):
        self.assertEqual(os.preadv(self.file, [self.buffer], block * BLOCK), BLOCK)
        return bytes(self.buffer)

    @row("soak: writes that are lost, torn or go astray, and no others")
    def test_writes(self):
        self.assertEqual(self.read(5), b"o" * BLOCK)
        for kind, left in (("lost-write", {b"o"}), ("torn-write", {b"o", b"n"})):
            self.disk.fail(kind)
            self.write(5, b"n")
            self.disk.heal()
            self.assertEqual({bytes([byte]) for byte in self.read(5)}, left)
            self.write(5, b"o")
        self.disk.fail("misdirected-write")
        self.write(20, b"n")
        self.disk.heal()
        there = [block for block in range(SIZE // BLOCK) if self.read(block) == b"n" * BLOCK]
        self.assertEqual(len(there), 1)
        self.assertNotEqual(there, [20])
        found = {kind: count for kind, count in self.disk.hits().items() if count}
        self.assertEqual(found, {"lost-write": 1, "torn-write": 1, "misdirected-write": 1})

    @row("soak: reads that show a flipped bit, or what was there before")
    def test_reads(self):
        self.disk.fail("flipped-read")
        wrong = [a ^ b for a, b in zip(self.read(5), b"o" * BLOCK, strict=True) if a != b]
        self.assertEqual([bin(byte).count("1") for byte in wrong], [1])
        self.disk.fail("stale-read")
        self.write(5, b"n")
        self.assertEqual(self.read(5), b"o" * BLOCK)
        self.disk.heal()
        self.assertEqual(self.read(5), b"n" * BLOCK)

    @row("soak: errors, and a flush that loses what it should have kept")
    def test_errors(self):
        for kind, what in (
            ("read-error", lambda: self.read(5)),
            ("write-error", lambda: self.write(5, b"n")),
        ):
            self.disk.fail(kind)
            self.assertRaises(OSError, what)
        self.disk.fail("flush-error")
        self.write(5, b"n")
        self.assertRaises(OSError, os.fdatasync, self.file)
        self.disk.heal()
        os.fdatasync(self.file)
        self.assertEqual(self.read(5), b"o" * BLOCK)

    @row("soak: a disk that is put back, replaced, or does not answer")
    def test_whole(self):
        self.disk.mark()
        self.write(5, b"n")
        self.assertTrue(self.disk.roll_back())
        self.assertEqual(self.read(5), b"o" * BLOCK)
        self.disk.fail("hang")
        reader = subprocess.Popen(["head", "-c", "1", self.disk.path], stdout=subprocess.PIPE)
        self.addCleanup(end, reader)
        with self.assertRaises(subprocess.TimeoutExpired):
            reader.wait(1.0)
        self.disk.heal()
        self.assertEqual(reader.communicate(timeout=10)[0], b"\0")
        self.disk.empty()
        self.assertEqual(self.read(5), bytes(BLOCK))


class Verdict(unittest.TestCase):
    def passes(self, rounds, faults, void=0):
        it = soak.Soak.__new__(soak.Soak)
        it.args = argparse.Namespace(kinds=["hang", "lost-write"], seed=1)
        it.rounds = dict(zip(it.args.kinds, rounds, strict=True))
        it.faults = dict(zip(it.args.kinds, faults, strict=True))
        it.number, it.void = sum(rounds) + void, void
        it.volumes = it.operations = it.kills = 1
        with contextlib.redirect_stdout(io.StringIO()):
            return it.summary()

    @row("soak: one that injected nothing, or never a kind that it had, proves nothing")
    def test_nothing_injected(self):
        self.assertTrue(self.passes((2, 2), (3, 4)))
        self.assertTrue(self.passes((2, 0), (3, 0)))
        self.assertFalse(self.passes((2, 2), (3, 0)))
        self.assertFalse(self.passes((0, 0), (0, 0)))
        self.assertFalse(self.passes((1, 1), (3, 4), void=3))


class Soak(unittest.TestCase):
    first = True

    def setUp(self):
        self.stack = Stack()
        self.addCleanup(self.stack.close)
        self.directory = self.stack.directory("atoll-e2e-")

    def start(self, *words):
        argv = [sys.executable, os.path.join(HERE, "soak.py"), "--dir", self.directory, *words]
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.stack.callback(end, process, grace_s=60.0)  # it ends its hosts first
        return process

    def run_soak(self, *words):
        process = self.start(*words)
        said = process.communicate(timeout=600)[0]
        return process.returncode, said

    def assert_nothing_left(self):
        left = []
        for place in glob.glob("/proc/[0-9]*/cmdline"):
            try:
                with open(place, "rb") as f:
                    words = f.read()
            except OSError:
                continue  # it has just ended
            if self.directory.encode() in words:
                left.append(words)
        self.assertEqual(left, [])
        with open("/proc/mounts", encoding="utf-8") as f:
            self.assertNotIn(self.directory, f.read())
        self.assertEqual(os.listdir(self.directory), [])

    @row("17 to 34, 40 to 43 with 1 to 9: disks that lie under real hosts, all kinds by chance")
    def test_two_minutes(self):
        status, said = self.run_soak("--time", "2m")
        print("    " + said.strip().replace("\n", "\n    "))
        if status:
            self.stack.pop_all()  # what it kept stays
        self.assertEqual(status, 0)
        self.assert_nothing_left()

    @row("soak: it fails where no product could do otherwise: both copies are put back")
    def test_beyond(self):
        seed = random.SystemRandom().randrange(1 << 30)
        status, said = self.run_soak("--beyond", "--time", "60s", "--seed", str(seed))
        self.assertEqual(status, 1, said)
        self.assertRegex(said, rf"VIOLATION in round \d+ \(seed {seed}\): not one copy", said)
        self.assertRegex(said, r"(?m)^ +block \d+ (read|write) \d+: [0-9.]+ \.\. [0-9.]+$", said)
        kept = said.split("kept: ")[1].split(" ")[0]
        self.assertTrue(os.path.getsize(os.path.join(kept, "history.txt")))
        self.assertTrue(glob.glob(os.path.join(kept, "host1", "log")))

    @row("soak: a Ctrl-C leaves no process, no mount and no file")
    def test_interrupted(self):
        process = self.start("--time", "60s", "--kinds", "hang")
        log = os.path.join(self.directory, "*", "host1", "disk1.img.server")
        wait_until("its disks to be there", lambda: glob.glob(log), 60)
        time.sleep(10.0)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 130, said)
        self.assert_nothing_left()


if __name__ == "__main__":
    unittest.main()

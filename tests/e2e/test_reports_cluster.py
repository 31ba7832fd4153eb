"""Situations from public reports about similar systems: hosts that leave and return in awkward
orders, addresses and names that change, pid files of strangers, disks that are not what they were.

Each is something that went wrong for somebody else; here it must not.
"""

import glob
import os
import re
import signal
import socket
import struct
import subprocess
import time

import disks
from harness import ATOLL, ClusterTest, row, run, wait_until
from history import BLOCK
from nbd import CMD_READ, CMD_WRITE, REQUEST, Client
from test_disks import Filled

MIB = 1 << 20
HELD_S = 4.0  # so long something is tried that must not be served


def piece(generation, at):
    """One MiB that says which write it is."""
    return f"{generation:08d} {at:08d} ".encode() * (MIB // 18) + b"." * (MIB % 18)


class Returning(ClusterTest):
    """Who has the last copy decides, whatever the order."""

    def fill(self, host, generation, count, volume=None):
        with Client(self.cluster.nbd(host), volume or self.volume, timeout_s=60) as client:
            for at in range(count):
                client.write(at * MIB, piece(generation, at))
            client.flush()

    def assert_holds(self, host, generation, count, volume=None):
        with Client(self.cluster.nbd(host), volume or self.volume, timeout_s=60) as client:
            for at in range(count):
                data = client.read(at * MIB, MIB)
                self.assertEqual(data[:18], piece(generation, at)[:18], f"MiB {at} by host{host}")
                self.assertEqual(data, piece(generation, at), f"MiB {at} by host{host}")

    def assert_held(self, host):
        """For a while neither a read nor a write is answered."""
        last = (256 << 20) - BLOCK  # may be written later: the client never knows
        with self.assertRaises(ConnectionError, msg=f"host{host} answered"):
            with Client(self.cluster.nbd(host), self.volume, timeout_s=HELD_S) as client:
                for number, command in enumerate((CMD_READ, CMD_WRITE)):
                    head = struct.pack(">IHHQQI", REQUEST, 0, command, number, last, BLOCK)
                    client.send(head + bytes(BLOCK if command == CMD_WRITE else 0))
                client.receive(4)

    def assert_waits_for(self, host, missing):
        done = self.cluster.cli("status", "--check", host=host, check=False)
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertRegex(done.stdout, rf"{self.volume} waits for.*host{missing}\b")

    def limit(self, rate, hosts):
        for host in hosts:
            self.cluster.cli("resync", "limit", rate, host=host)


class HalfCopy(Returning):
    @row("a copy that is half built is not served while the whole one is away; then it goes on")
    def test_whole_copy_leaves(self):
        owner, member, rest = self.roles()
        count = 32
        self.fill(owner, 1, count)
        self.cluster.kill(member)
        self.fill(owner, 2, count)
        self.limit("2M", [owner])
        self.cluster.start(member)
        self.limit("2M", [owner])
        wait_until("the resync", lambda: self.members(owner)[member] == "resyncing", 15, 0.1)
        time.sleep(2)  # a part of it
        self.assertEqual(self.members(owner)[member], "resyncing", "over before it was broken off")
        self.cluster.kill(owner)
        for host in (member, rest):
            self.assert_held(host)
            self.assert_waits_for(host, owner)
        self.refused("volume", "delete", self.volume, "--yes", status=4, host=member)
        self.cluster.start(owner)
        self.limit("0", [owner])
        self.assert_safe_again(host=owner)
        for host in (1, 2, 3):
            self.assert_holds(host, 2, count)
        self.cluster.kill(owner)
        self.assert_holds(member, 2, count)


class OneAfterAnother(Returning):
    hosts, policy = 4, "triple"

    def make_policy(self, name, failures):
        super().make_policy(name, 2)

    @row("three copies' hosts stop one after another: held until the last is back, which is named")
    def test_stopped_in_turn(self):
        owner, members = self.owner(), list(self.members())
        [rest] = [h for h in range(1, self.hosts + 1) if h not in members]
        first, second = [h for h in members if h != owner]
        for generation, host in enumerate((first, second, owner), start=1):
            self.fill(rest, generation, 4)
            self.cluster.stop_host(host)
        for host in (first, second):
            self.cluster.start(host)
            self.assert_held(rest)
            self.assert_waits_for(rest, owner)
        self.cluster.start(owner)
        self.assert_safe_again(host=rest)
        for host in range(1, self.hosts + 1):
            self.assert_holds(host, 3, 4)


class ColdStart(Returning):
    @row("all is killed at once, and one host does not come back: the others serve, it catches up")
    def test_without_one(self):
        names = [self.volume, "second", "third"]
        for host, name in enumerate(names, start=1):
            if name != self.volume:
                self.cluster.cli("volume", "create", name, "64MiB", host=host)
            self.fill(host, 1, 4, name)
        away, rest = 1, self.others(1)
        pids = [self.cluster.pid(host) for host in (1, 2, 3)]
        pids.append(self.cluster.pid_in("directory", "pid"))
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        wait_until("all to be gone", lambda: not self.cluster.running((1, 2, 3)), 10)
        for name in ("directory", *(f"host{host}" for host in rest)):
            self.cluster.tool("dev", "start", name, "--dir", self.directory)
        self.cluster.wait_serving(rest)
        for name in names:
            for host in rest:
                self.assert_holds(host, 1, 4, name)
            self.fill(rest[0], 2, 4, name)
        done = self.cluster.cli("status", "--check", host=rest[0], check=False)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn(f"host{away}", done.stdout)
        self.cluster.start(away)
        self.assert_safe_again(host=rest[0])
        for name in names:
            self.assert_holds(away, 2, 4, name)

    @row("a host that comes and goes: as many copies as promised, nothing left over, no error")
    def test_flapping(self):
        owner, member, _ = self.roles()
        self.fill(owner, 1, 8)
        with Client(self.cluster.nbd(owner), self.volume, timeout_s=60) as client:
            for turn in range(4):
                self.cluster.kill(member)
                client.write(turn * MIB, piece(2, turn))
                self.cluster.start(member, serving=False)
                time.sleep(0.3 * turn)
                client.write((turn + 1) * MIB, piece(2, turn + 1))
                self.assertEqual(len(self.members(owner)), 2)
        self.assert_safe_again(host=owner)
        self.cluster.wait_serving([member])
        self.assert_holds(member, 2, 5)
        self.cluster.kill(owner)
        self.assert_holds(member, 2, 5)
        self.cluster.start(owner)
        self.assert_safe_again(host=owner)
        wait_until("no copy too many", lambda: self.components() == 2, 15, 0.5)

    def components(self):
        return sum(group.get("components", 0) for group in self.cluster.get("group", "list"))


class Configured(Filled):
    """What a host's configuration says of it changes; who it is does not."""

    def config(self, host):
        return os.path.join(self.cluster.host_dir(host), "atoll.toml")

    def text(self, host):
        with open(self.config(host), encoding="utf-8") as f:
            return f.read()

    def rewrite(self, host, text):
        with open(self.config(host), "w", encoding="utf-8") as f:
            f.write(text)

    def shown(self, host):
        """A host's disks by path, as it lists them."""
        items = self.cluster.get("disk", "list", host=host)
        return {item["path"]: item for item in items if item["host"] == f"host{host}"}

    @row("two hosts exchange their addresses: known by identity, no copy goes to the wrong one")
    def test_addresses_exchanged(self):
        owner, member, rest = self.roles()
        self.cluster.stop_host(member)
        with self.client(owner) as client:
            client.write(self.blocks * BLOCK, b"n" * BLOCK)
        self.cluster.stop_host(rest)
        one, other = self.text(member), self.text(rest)
        pattern = r"^(api|peer) *=.*$"
        keys = re.findall(pattern, one, re.M)
        self.assertEqual(sorted(keys), ["api", "peer"], "the configuration is not as expected")
        self.assertEqual(re.findall(pattern, other, re.M), keys)
        ours, theirs = ([m.group(0) for m in re.finditer(pattern, t, re.M)] for t in (one, other))
        self.rewrite(member, re.sub(pattern, lambda _: theirs.pop(0), one, flags=re.M))
        self.rewrite(rest, re.sub(pattern, lambda _: ours.pop(0), other, flags=re.M))
        for host in (member, rest):
            self.cluster.start(host)
        self.assert_safe_again(host=owner)
        self.assertEqual(set(self.members(owner)), {owner, member})
        self.cluster.kill(owner)
        for host in (member, rest):
            self.assert_contents(host)
            with self.client(host) as client:
                self.assertEqual(client.read(self.blocks * BLOCK, BLOCK), b"n" * BLOCK)

    @row("a host is renamed: the same host with its disks; the name of another is refused")
    def test_renamed(self):
        owner, member, rest = self.roles()
        before = {h["id"] for h in self.cluster.get("host", "list", host=owner)}
        self.cluster.stop_host(member)
        as_it_was = self.text(member)

        def name(text):
            self.rewrite(member, as_it_was.replace(f'name = "host{member}"', f'name = "{text}"'))

        name(f"host{rest}")
        words = [ATOLL, "serve", "--config", self.config(member)]
        refused = run(words, timeout_s=20, check=False)
        self.assert_refusal(refused, 4, [rf"host{rest} is taken"])
        name("renamed")
        self.cluster.start(member)
        hosts = self.cluster.get("host", "list", host=owner)
        self.assertEqual({h["id"] for h in hosts}, before, "another host, or one too many")
        self.assertIn("renamed", {h["name"] for h in hosts})
        self.assert_safe_again(host=owner)
        self.cluster.kill(owner)
        self.assert_contents(member)
        self.cluster.start(owner)
        self.cluster.stop_host(member)
        self.rewrite(member, as_it_was)
        self.cluster.start(member)

    @row("a disk is put in front: the old group runs from its new path, the blank one stays blank")
    def test_disks_move_on(self):
        owner, member, _ = self.roles()
        first = self.disk(member)
        second = first.replace("disk1", "disk2")
        self.cluster.stop_host(member)
        os.rename(first, second)
        with open(first, "xb") as f:
            f.truncate(os.path.getsize(second))
        self.rewrite(member, self.text(member) + f'\n[[group]]\ndisks = ["{second}"]\n')
        self.cluster.start(member)
        self.assert_safe_again(host=owner)
        listed = self.shown(member)
        self.assertEqual(listed[second]["state"], "in-use")
        self.assertEqual(listed[first]["state"], "empty")
        self.assertFalse(list(disks.extents(first)), "the blank disk was written to unasked")
        self.refused("group", "create", second, status=4, host=member)
        self.assert_contents(member)
        self.cluster.cli("group", "create", first, host=member)
        self.assertEqual(self.shown(member)[first]["state"], "in-use")

    @row("bad disks beside a good one: it serves, each is explained; without it the host answers")
    def test_bad_disks_beside(self):
        _, member, _ = self.roles()
        place = self.cluster.host_dir(member)
        bad = {what: os.path.join(place, f"bad-{what}") for what in self.BAD}
        os.symlink(os.path.join(place, "nowhere"), bad["dangling"])
        os.mkdir(bad["directory"])
        os.mkfifo(bad["fifo"])
        for what, size in (("nothing", 0), ("small", MIB)):
            with open(bad[what], "xb") as f:
                f.truncate(size)
        with open(bad["table"], "xb") as f:
            f.write(bytes(512) + b"EFI PART")
            f.truncate(1 << 30)
        self.cluster.stop_host(member)
        groups = "".join(f'\n[[group]]\ndisks = ["{path}"]\n' for path in bad.values())
        self.rewrite(member, self.text(member) + groups)
        self.cluster.start(member)
        self.assert_contents(member)
        listed = self.shown(member)
        self.assertEqual(listed[self.disk_path(member)]["state"], "in-use")
        for what, said in self.BAD.items():
            item = listed[bad[what]]
            self.assertRegex(f"{item['state']} {item.get('detail', '')}", said, what)
            self.refused("group", "create", bad[what], host=member)
        with open(bad["table"], "rb") as f:
            self.assertEqual(f.read(520), bytes(512) + b"EFI PART", "foreign data were written to")
        self.cluster.stop_host(member)
        os.rename(self.disk_path(member), os.path.join(place, "aside"))
        self.cluster.start(member)
        self.assert_contents(member)  # by the others' copies
        self.assertEqual(self.cluster.cli("disk", "list", host=member, check=False).returncode, 0)

    BAD = {
        "dangling": "missing",
        "directory": "neither a block device nor a regular file",
        "fifo": "neither a block device nor a regular file",
        "nothing": "smaller",
        "small": "smaller",
        "table": "GPT",
    }

    def disk_path(self, host):
        return os.path.join(self.cluster.host_dir(host), "disk1.img")


class Strangers(Filled):
    @row("pid files from before a crash name a stranger, or nonsense: not killed, the start works")
    def test_pid_files(self):
        stranger = self.stack.spawn(["sleep", "600"])
        for turn in ("pid and time", "nonsense"):
            files = glob.glob(os.path.join(self.directory, "*", "pid"))
            files.append(os.path.join(self.directory, "dev.pid"))
            self.assertEqual(len(files), self.hosts + 2)
            for path in files:
                with open(path, encoding="ascii") as f:
                    words = f.read().split()
                os.kill(int(words[0]), signal.SIGKILL)
                words[0] = str(stranger.pid)
                text = "-1 x" if turn == "nonsense" else " ".join(words)
                with open(path, "w", encoding="ascii") as f:
                    f.write(text + "\n")
            words = ("--dir", self.directory)
            shown = self.cluster.tool("dev", "status", *words, check=False)
            self.assertNotRegex(shown.stdout, r"\brunning\b", turn)
            self.cluster.tool("dev", "stop", *words)
            self.assertIsNone(stranger.poll(), f"a stranger was killed: {turn}")
            self.cluster.begin()
            self.assertIsNone(stranger.poll(), f"a stranger was killed: {turn}")
            self.assert_contents(1)


class Stopping(Filled):
    limit_s = 20.0

    @row("SIGTERM ends a host in order and in time, whatever its clients and peers do")
    def test_sigterm(self):
        _, host, _ = self.roles()
        self.cluster.stop_host(host)
        clients = (self.asks_and_takes_nothing, self.half_a_write, self.half_a_handshake)
        for turn, begin in enumerate((clients, (self.peers_pause,))):
            log = os.path.join(self.directory, "served")
            config = os.path.join(self.cluster.host_dir(host), "atoll.toml")
            served = self.stack.spawn([ATOLL, "serve", "--config", config], log=log)
            self.cluster.wait_serving([host])
            ends = [step(host) for step in begin]
            started = time.monotonic()
            for _ in range(3):  # more than one does no harm
                served.send_signal(signal.SIGTERM)
                time.sleep(0.05)
            try:
                status = served.wait(2 * self.limit_s)
            except subprocess.TimeoutExpired:
                self.fail(f"turn {turn}: it does not end")
            finally:
                for end in ends:
                    end()
            self.assertEqual(status, 0, f"turn {turn}")
            self.assertLess(time.monotonic() - started, self.limit_s, f"turn {turn}")
            with open(log, encoding="utf-8") as f:
                self.assertNotIn("panicked", f.read())
        self.cluster.start(host)
        self.cluster.wait_healthy()
        self.assert_contents(host, skip={0})

    def asks_and_takes_nothing(self, host):
        client = self.client(host, timeout_s=1)
        try:
            for cookie in range(300):
                client.send(struct.pack(">IHHQQI", REQUEST, 0, CMD_READ, cookie, 0, MIB))
        except ConnectionError:
            pass  # the host takes no more
        return lambda: client.close(politely=False)

    def half_a_write(self, host):
        client = self.client(host)
        client.send(struct.pack(">IHHQQI", REQUEST, 0, CMD_WRITE, 1, 0, MIB) + bytes(1000))
        return lambda: client.close(politely=False)

    def half_a_handshake(self, host):
        sockets = []
        for path in (self.cluster.nbd(host), self.cluster.api(host)):
            sockets.append(socket.socket(socket.AF_UNIX))
            sockets[-1].connect(path)
        sockets[1].sendall(b"GET /api/v1/sta")
        return lambda: [s.close() for s in sockets]

    def peers_pause(self, host):
        client = self.client(host)
        client.read(0, BLOCK)
        for other in self.others(host):
            self.cluster.pause(other)
        client.send(struct.pack(">IHHQQI", REQUEST, 0, CMD_WRITE, 1, 0, BLOCK) + bytes(BLOCK))
        time.sleep(0.2)

        def end():
            client.close(politely=False)
            for other in self.others(host):
                self.cluster.resume(other)

        return end

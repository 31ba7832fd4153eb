"""Bad input by name: each is refused with what, where and what to do; nothing is lost."""

import os
import re
import signal
import subprocess
import time
import unittest

import disks
from harness import ATOLL, ClusterTest, Stack, row, run, wait_until
from nbd import Client, NbdError

USAGE, NOT_FOUND, CONFLICT, UNPLACEABLE, RISK, CONNECT = 2, 3, 4, 6, 7, 20


class Commands(ClusterTest):
    @row("issue: names that exist, do not exist, are 1,000 bytes long or contain '/'")
    def test_names(self):
        self.refused(
            "volume", "create", self.volume, "1GiB", status=CONFLICT, says=["data", "exists"]
        )
        self.refused("volume", "show", "nothing", status=NOT_FOUND, says="nothing")
        self.refused("volume", "delete", "nothing", "--yes", status=NOT_FOUND)
        for name in ("x" * 1000, "a/b", "", ".", "..", "a b", "a\nb", "\x1b[31m", "-"):
            done = self.cluster.cli("volume", "create", "--", name, "1GiB", check=False)
            self.assert_refusal(done)
            self.assertNotIn("\x1b[31m", done.stderr, "a control character was echoed")
            self.assertLess(len(done.stderr), 2000)
        self.assertEqual([v["name"] for v in self.cluster.get("volume", "list")], [self.volume])

    @row("issue: sizes of 0, unaligned, beyond the maximum, not a number")
    def test_sizes(self):
        for size in (
            "0",
            "1",
            "4097",
            "1000000000000TiB",
            "99999999999999999999",
            "-1",
            "1e9",
            "ten",
            "4Kx",
            "1GB1",
        ):
            self.assert_refusal(
                self.cluster.cli("volume", "create", "new", "--", size, check=False)
            )
        self.assertEqual([v["name"] for v in self.cluster.get("volume", "list")], [self.volume])

    @row("issue: policies that cannot be met: the rule, the hosts and what is missing")
    def test_policies(self):
        self.cluster.cli("policy", "create", "four", "--failures-to-tolerate", "3")
        self.refused(
            "volume",
            "create",
            "new",
            "1GiB",
            "--policy",
            "four",
            status=UNPLACEABLE,
            says=["4", "3"],
        )
        self.refused(
            "volume",
            "create",
            "new",
            "1GiB",
            "--policy",
            "nothing",
            status=NOT_FOUND,
            says="nothing",
        )
        self.assert_refusal(
            self.cluster.cli("policy", "create", "bad", "--failures-to-tolerate", "9", check=False)
        )
        self.cluster.cli("policy", "delete", "four")

    @row("issue: a volume in use is not deleted and not made smaller")
    def test_in_use(self):
        with Client(self.cluster.nbd(2), self.volume) as client:
            client.write(0, b"x" * 4096)
            for host in (1, 2, 3):
                self.refused(
                    "volume", "delete", self.volume, "--yes", host=host, says="use|client|connected"
                )
            self.refused("volume", "resize", self.volume, "128MiB", status=RISK, says="--shrink")
            smaller = ["volume", "resize", self.volume, "128MiB", "--shrink", "--yes"]
            for host in (1, 2, 3):
                self.refused(*smaller, host=host, status=CONFLICT, says="in use")
            self.assertEqual(client.read(0, 4096), b"x" * 4096)
        self.assertEqual(self.volume_size(), 256 << 20)

    def volume_size(self):
        return self.cluster.get("volume", "show", self.volume)["size_bytes"]

    @row("issue: a volume that is made smaller and larger again shows zeros, not what it was")
    def test_shrink(self):
        # Sizes that the disks have room for, as making such a volume would need.
        part, block = 128 << 20, b"x" * 4096
        self.cluster.cli("volume", "resize", self.volume, "1280M")
        with Client(self.cluster.nbd(2), self.volume) as client:
            for at in (part, 6 * part, 9 * part, 10 * part - 4096):
                client.write(at, block)
        for size, host, words in (
            (5 * part, 1, ["--shrink", "--yes"]),
            (8 * part, 2, []),
            (10 * part, 3, []),
        ):
            self.cluster.cli("volume", "resize", self.volume, str(size), *words, host=host)
            self.assertEqual(self.volume_size(), size)
            with Client(self.cluster.nbd(host), self.volume) as client:
                self.assertEqual(client.size, size)
        for host in (1, 2, 3):
            with Client(self.cluster.nbd(host), self.volume) as client:
                self.assertEqual(client.read(part, 4096), block)
                for at in (6 * part, 9 * part, 10 * part - 4096):
                    self.assertEqual(client.read(at, 4096), bytes(4096))

    @row("issue 8: an export is larger when the client connects again")
    def test_resize(self):
        self.cluster.cli("volume", "resize", self.volume, "512MiB")
        for host in (1, 2, 3):
            with Client(self.cluster.nbd(host), self.volume) as client:
                self.assertEqual(client.size, 512 << 20)
                client.write((512 << 20) - 4096, bytes([host]) * 4096)

    def task(self, kind):
        """The last task of a kind that host 1 knows of."""
        tasks = [t for t in self.cluster.get("task", "list") if t["kind"] == kind]
        return max(tasks, key=lambda t: t["started_at"], default=None)

    @row("issue: a resync can be waited for, and its task is there afterwards")
    def test_task_of_a_resync(self):
        _, member, other = self.roles()
        self.cluster.cli("resync", "limit", "4M")
        self.cluster.kill(member)
        with Client(self.cluster.nbd(other), self.volume) as client:
            for at in range(32):
                client.write(at << 20, os.urandom(1 << 20))
        self.cluster.start(member)
        wait_until("the resync to be a task", lambda: self.task("resync"), 30, 0.2)
        task = self.task("resync")
        self.assertEqual((task["state"], task["subject"]), ("running", self.volume))
        self.cluster.cli("task", "wait", task["id"], "--timeout", "60")
        ended = self.cluster.get("task", "show", task["id"])
        self.assertEqual((ended["state"], ended["percent"]), ("done", 100))
        self.assertEqual(ended["started_at"], task["started_at"])
        self.assertGreater(ended["ended_at"], ended["started_at"])
        self.cluster.wait_healthy(10)

    @row("issue: a scrub is stopped by stop, and its task tells when it ran")
    def test_task_of_a_scrub(self):
        with Client(self.cluster.nbd(1), self.volume) as client:
            for at in range(16):
                client.write(at << 20, os.urandom(1 << 20))
            shown = self.cluster.get("volume", "show", self.volume, host=2)
            self.assertEqual(shown["sessions"], 1, "a client of another host counts")
        self.cluster.cli("scrub", "start", "--rate", "1M")

        def running():
            tasks = [t for t in self.cluster.get("task", "list") if t["kind"] == "scrub"]
            return [t for t in tasks if t["state"] == "running"]

        # A host without data has nothing to do.
        first = wait_until("the scrub to be a task", running, 10, 0.2)[0]
        self.cluster.cli("scrub", "stop")
        self.assertFalse([s for s in self.cluster.get("scrub", "show") if s["running"]])
        self.cluster.cli("scrub", "start")

        def ended():
            tasks = [t for t in self.cluster.get("task", "list") if t["kind"] == "scrub"]
            return all(t["state"] == "done" for t in tasks)

        wait_until("all scrubs to end", ended, 30, 0.2)
        last = self.task("scrub")
        self.assertGreater(last["started_at"], first["started_at"])
        self.assertGreaterEqual(last["ended_at"], last["started_at"])
        self.assertFalse([s for s in self.cluster.get("scrub", "show") if s["running"]])

    @row("issue: unknown commands and options: exit status 2, one hint, no panic")
    def test_usage(self):
        for words in (
            ["frobnicate"],
            ["volume"],
            ["volume", "create"],
            ["--size", "-1"],
            ["volume", "list", "-o", "xml"],
        ):
            done = self.cluster.tool(*words, check=False)
            self.assertEqual(done.returncode, USAGE, done.stderr)
            self.assertNotIn("panicked", done.stderr)
        done = run(
            [ATOLL, "--endpoint", f"unix:{self.directory}/nobody.sock", "status"], check=False
        )
        self.assertEqual(done.returncode, CONNECT, done.stderr)

    @row("ecosystem 16: machine output is one shape; every -o works")
    def test_output(self):
        for words in (
            ["status"],
            ["host", "list"],
            ["disk", "list"],
            ["group", "list"],
            ["policy", "list"],
            ["volume", "list"],
            ["volume", "show", self.volume],
            ["volume", "placement", self.volume],
            ["resync", "show"],
            ["scrub", "show"],
            ["events"],
            ["task", "list"],
        ):
            self.assertIsInstance(self.cluster.get(*words), (dict, list))
            for form in ("table", "yaml"):
                self.assertTrue(
                    self.cluster.cli(*words, "-o", form).stdout.strip()
                    or words[0] in ("task", "events")
                )


class Images(ClusterTest):
    volume = None

    def image(self, size, name="image.raw"):
        path = os.path.join(self.directory, name)
        with open(path, "wb") as f:
            f.write(os.urandom(size))
        return path

    def test_there_and_back(self):
        """Raw and qcow2 go in and come out as they were."""
        raw = self.image(48 << 20)
        qcow2 = os.path.join(self.directory, "image.qcow2")
        run(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", raw, qcow2])
        for number, source in enumerate((raw, qcow2)):
            name = f"v{number}"
            self.cluster.cli("volume", "create", name, "48MiB", "--policy", self.policy)
            self.cluster.cli("volume", "import", name, source)
            out = os.path.join(self.directory, f"{name}.out")
            self.cluster.cli("volume", "export", name, out, host=3)
            compared = run(["qemu-img", "compare", "-f", "raw", "-F", "raw", raw, out], check=False)
            self.assertEqual(compared.returncode, 0, compared.stdout)
        # And through QEMU's own eyes, live.
        compared = run(
            ["qemu-img", "compare", "-f", "raw", "-F", "raw", raw, self.cluster.uri(2, "v0")],
            check=False,
        )
        self.assertEqual(compared.returncode, 0, compared.stdout)

    test_there_and_back.row = "issue 10: import and export, raw and qcow2"

    @row("issue: import of a truncated image, of no image, of one that does not fit")
    def test_broken(self):
        raw = self.image(8 << 20)
        qcow2 = os.path.join(self.directory, "image.qcow2")
        run(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", raw, qcow2])
        os.truncate(qcow2, os.path.getsize(qcow2) // 2)
        self.cluster.cli("volume", "create", "small", "4MiB", "--policy", self.policy)
        self.cluster.cli("volume", "create", "right", "8MiB", "--policy", self.policy)
        self.refused("volume", "import", "right", qcow2, says="image.qcow2")
        self.refused("volume", "import", "small", raw, says=["small|larger|fit"])
        self.refused(
            "volume", "import", "right", os.path.join(self.directory, "nothing"), says="nothing"
        )
        self.refused("volume", "import", "absent", raw, "--existing", status=NOT_FOUND)
        self.refused("volume", "import", "right", self.directory)

    @row("issue: Ctrl-C at any time; during an import")
    def test_interrupted_import(self):
        raw = self.image(256 << 20)
        self.cluster.cli("volume", "create", "v", "256MiB", "--policy", self.policy)
        child = subprocess.Popen(
            [ATOLL, "--endpoint", f"unix:{self.cluster.api(1)}", "volume", "import", "v", raw],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        time.sleep(0.15)
        child.send_signal(signal.SIGINT)
        said = child.communicate(timeout=20)[1]
        self.assertIn(child.returncode, (130, -signal.SIGINT), said)
        self.cluster.cli("volume", "import", "v", raw, "--yes")  # again, whole
        compared = run(
            ["qemu-img", "compare", "-f", "raw", "-F", "raw", raw, self.cluster.uri(2, "v")],
            check=False,
        )
        self.assertEqual(compared.returncode, 0, compared.stdout)


class Daemons(ClusterTest):
    """`atoll serve` that must refuse to start."""

    def config(self, host):
        return os.path.join(self.cluster.host_dir(host), "atoll.toml")

    def serve(self, config, timeout_s=20.0):
        return run([ATOLL, "serve", "--config", config], check=False, timeout_s=timeout_s)

    @row("issue: two daemons on one data directory")
    def test_two_daemons(self):
        done = self.serve(self.config(1))
        self.assert_refusal(done, says=["in use", str(self.cluster.pid(1))])
        self.cluster.wait_serving()

    @row("issue: ports taken")
    def test_ports(self):
        self.cluster.kill(1)
        text = open(self.config(1), encoding="utf-8").read()
        ports = re.findall(r"127\.0\.0\.\d+:\d+", open(self.config(2), encoding="utf-8").read())
        mine = re.findall(r"127\.0\.0\.\d+:\d+", text)
        taken = os.path.join(self.cluster.host_dir(1), "taken.toml")
        with open(taken, "w", encoding="utf-8") as f:
            f.write(text.replace(mine[0], ports[0]))
        self.assert_refusal(self.serve(taken), says=re.escape(ports[0]))
        self.cluster.start(1)

    @row("issue: a configuration with unknown keys or bad values: line and hint")
    def test_configuration(self):
        text = open(self.config(1), encoding="utf-8").read()
        self.cluster.kill(1)
        path = os.path.join(self.cluster.host_dir(1), "bad.toml")
        for section, key, says in (
            ("newtork", "peer = []", "newtork"),
            ("log", "level = 'loud'", "loud|level"),
            ("log", "colour = 'red'", "colour"),
            ("io", "backend = 7", "backend"),
            ("host", "name = 'again'\nname = 'and again'", "duplicate|name"),
            ("host", "this is not TOML", "TOML"),
        ):
            # The key goes where its section is, in the place of one of the same name.
            kept = re.sub(rf"(?m)^{key.split()[0]} *=.*\n", "", text)
            if f"[{section}]" in kept:
                bad = kept.replace(f"[{section}]\n", f"[{section}]\n{key}\n")
            else:
                bad = f"{kept}\n[{section}]\n{key}\n"
            with open(path, "w", encoding="utf-8") as f:
                f.write(bad)
            line = bad.splitlines().index(key.splitlines()[0]) + 1
            done = self.serve(path)
            self.assert_refusal(done, says=[says, r"bad\.toml:\d+"])
            said = int(re.search(r"bad\.toml:(\d+)", done.stderr)[1])
            self.assertLessEqual(abs(said - line), 1, done.stderr)
        for content in (b"", b"\xff\xfe\x00\x01" * 100):
            with open(path, "wb") as f:
                f.write(content)
            self.assert_refusal(self.serve(path), says="bad.toml")
        self.assert_refusal(
            self.serve(os.path.join(self.directory, "nothing.toml")), says="nothing.toml"
        )
        self.cluster.start(1)

    @row("45: a disk of another cluster is refused, named, and never formatted")
    def test_foreign_cluster(self):
        _, member, _ = self.roles()
        with Client(self.cluster.nbd(1), self.volume) as client:
            client.write(0, b"a" * 4096)
        with Stack() as stack:
            from cluster import Cluster
            from harness import free_ports

            other = Cluster(
                stack, stack.directory("atoll-e2e-"), disk_size="2GiB", base_port=free_ports()
            )
            other.begin()
            foreign = os.path.join(self.directory, "foreign")
            other.kill(1)
            disks.copy(other.disks(1)[0], foreign)
        self.cluster.kill(member)
        disk = self.cluster.disks(member)[0]
        kept = disk + ".kept"
        os.rename(disk, kept)
        os.rename(foreign, disk)
        before = open(disk, "rb").read(1 << 20)
        self.cluster.start(member, serving=False)
        time.sleep(3)
        self.assertEqual(open(disk, "rb").read(1 << 20), before, "a foreign disk was written to")
        log = open(self.cluster.log(member), encoding="utf-8", errors="replace").read()
        self.assertRegex(log, "(?i)another cluster|other cluster|foreign")
        if self.cluster.pid(member):
            self.cluster.kill(member)
        os.rename(kept, disk)
        self.cluster.start(member)
        with Client(self.cluster.nbd(member), self.volume) as client:
            self.assertEqual(client.read(0, 4096), b"a" * 4096)

    @row("issue: a disk that holds a file system: refused, named, 'disk wipe' offered")
    def test_file_system(self):
        owner, member, rest = self.roles()
        self.cluster.kill(rest)
        disk = self.cluster.disks(rest)[0]
        os.rename(disk, disk + ".kept")
        with open(disk, "wb") as f:
            f.truncate(2 << 30)
        run(["mke2fs", "-q", "-t", "ext4", "-F", disk])
        self.cluster.start(rest, serving=False)
        time.sleep(3)
        self.assertEqual(
            run(["e2fsck", "-fn", disk], check=False).returncode, 0, "a file system was harmed"
        )
        log = open(self.cluster.log(rest), encoding="utf-8", errors="replace").read()
        self.assertRegex(log, "(?i)ext4|file system")
        self.assertRegex(log, "(?i)disk wipe")


class Disks(ClusterTest):
    @row("issue: a disk too small, not aligned, with a file system, in use, missing")
    def test_refused(self):
        _, member, rest = self.roles()
        place = self.cluster.host_dir(rest)
        cases = {
            "small": (512 << 20, "small|at least"),
            "ext4": (2 << 30, "ext4|file system"),
        }
        with open(self.config(rest), "a", encoding="utf-8") as config:
            for name, (size, _) in cases.items():
                path = os.path.join(place, name)
                with open(path, "wb") as f:
                    f.truncate(size)
                config.write(f'\n[[group]]\ndisks = ["{path}"]\n')
            config.write(f'\n[[group]]\ndisks = ["{place}/nothing"]\n')
            config.write(f'\n[[group]]\ndisks = ["{place}/odd"]\n')
        with open(os.path.join(place, "odd"), "wb") as f:
            f.truncate((2 << 30) + 1000)
        run(["mke2fs", "-q", "-t", "ext4", "-F", os.path.join(place, "ext4")])
        self.cluster.kill(rest)
        self.cluster.start(rest)
        listed = {d["path"]: d for d in self.cluster.get("disk", "list", host=rest)}
        for name, (_, says) in cases.items():
            path = os.path.join(place, name)
            self.assertIn(listed[path]["state"], ("unusable", "foreign"))
            self.assertRegex(listed[path]["detail"], f"(?i){says}")
            self.refused("group", "create", path, host=rest, says=[says, name])
        self.assertEqual(listed[f"{place}/nothing"]["state"], "missing")
        self.refused("group", "create", f"{place}/nothing", host=rest, says="nothing")
        # The end of a file that is no whole block is left alone.
        self.assertEqual(listed[f"{place}/odd"]["size_bytes"], 2 << 30)
        self.cluster.cli("group", "create", f"{place}/odd", host=rest)
        self.assertEqual(os.path.getsize(f"{place}/odd"), (2 << 30) + 1000)
        # One that is in use is neither made again nor wiped.
        used = self.cluster.disks(rest)[0]
        self.refused("group", "create", used, host=rest)
        self.refused("disk", "wipe", used, "--yes", host=rest, says="running")
        # A file system goes only when it is named and wiped; then the disk can be taken.
        wiped = os.path.join(place, "ext4")
        self.cluster.cli("disk", "wipe", wiped, "--yes", host=rest)
        self.cluster.cli("group", "create", wiped, host=rest)
        with Client(self.cluster.nbd(rest), self.volume) as client:
            client.write(0, b"w" * 4096)
            self.assertEqual(client.read(0, 4096), b"w" * 4096)

    def config(self, host):
        return os.path.join(self.cluster.host_dir(host), "atoll.toml")


class Nbd(ClusterTest):
    """The export as other people's tools see it."""

    def test_tools(self):
        uri = self.cluster.uri(3, self.volume)
        run(
            [
                "qemu-io",
                "-f",
                "raw",
                "-c",
                "write -P 0x5a 1M 64k",
                "-c",
                "write -z 1088k 64k",
                "-c",
                "discard 2M 1M",
                "-c",
                "flush",
                "-c",
                "read -P 0x5a 1M 64k",
                "-c",
                "read -P 0 1088k 64k",
                uri,
            ]
        )
        mapped = run(["qemu-img", "map", "-f", "raw", "--output", "json", uri]).stdout
        self.assertIn('"data": true', mapped)
        checked = run(["qemu-img", "info", "-f", "raw", uri]).stdout
        self.assertIn("256 MiB", checked)

    test_tools.row = "issue 8: qemu-io, qemu-img map and info"

    @row("issue 8: a malformed request is one client's trouble: the others do not stall")
    def test_malformed(self):
        import nbd
        import socket
        import struct

        path = self.cluster.nbd(1)
        with Client(path, self.volume) as good:
            good.write(0, b"g" * 4096)
            size = good.size
            for command, offset, length, flags in (
                (nbd.CMD_READ, size, 4096, 0),
                (nbd.CMD_READ, (1 << 64) - 4096, 8192, 0),
                (99, 0, 4096, 0),
                (nbd.CMD_READ, 0, 0xFFFFFFFF, 0),
                (nbd.CMD_READ, 0, 4096, 0x8000),
                (nbd.CMD_TRIM, size - 512, 4096, 0),
            ):
                with Client(path, self.volume) as client:
                    with self.assertRaises((NbdError, ConnectionError)):
                        client.request(command, offset, length, flags)
            for junk in (
                b"\0" * 64,
                os.urandom(512),
                struct.pack(">I", 3) + os.urandom(4096),
                struct.pack(">IQII", 3, nbd.IHAVEOPT, nbd.OPT_GO, 0xFFFFFFFF),
                struct.pack(">IQII", 3, nbd.IHAVEOPT, nbd.OPT_GO, 6)
                + struct.pack(">IH", 0xFFFFFFFF, 0),
            ):
                with socket.socket(socket.AF_UNIX) as raw:
                    raw.settimeout(15)
                    raw.connect(path)
                    raw.recv(18)
                    begun = time.monotonic()
                    raw.sendall(junk)
                    try:
                        while raw.recv(65536):
                            pass
                    except OSError:
                        pass
                    self.assertLess(
                        time.monotonic() - begun, 14.5, "a broken handshake is kept open"
                    )
                self.assertEqual(good.read(0, 4096), b"g" * 4096)
            with Client(path, None) as client:
                with self.assertRaises(NbdError):
                    client.go("nothing")
                client.go(self.volume)  # a refused option leaves the connection usable
                self.assertEqual(client.read(0, 4096), b"g" * 4096)
            # A write cut off in the middle of its payload is never applied in part.
            cut = Client(path, self.volume)
            cut.send(
                struct.pack(">IHHQQI", nbd.REQUEST, 0, nbd.CMD_WRITE, 9, 0, 1 << 20)
                + b"c" * 300_000
            )
            cut.close(politely=False)
            time.sleep(0.3)
            self.assertEqual(good.read(0, 4096), b"g" * 4096)
            # Two hundred clients that say nothing, one that never reads its answers.
            idle = [socket.socket(socket.AF_UNIX) for _ in range(200)]
            deaf = Client(path, self.volume)
            try:
                for one in idle:
                    one.settimeout(5)
                    try:
                        one.connect(path)
                    except OSError:
                        break
                deaf.socket.settimeout(0.5)
                try:
                    for cookie in range(5000):
                        deaf.send(
                            struct.pack(">IHHQQI", nbd.REQUEST, 0, nbd.CMD_READ, cookie, 0, 1 << 20)
                        )
                except ConnectionError:
                    pass
                begun = time.monotonic()
                good.write(4096, b"h" * 4096)
                self.assertLess(time.monotonic() - begun, 3)
            finally:
                for one in idle:
                    one.close()
                deaf.close(politely=False)

    @row("issue 8: block status tells what is allocated")
    def test_block_status(self):
        with Client(self.cluster.nbd(2), self.volume, block_status=True) as client:
            self.assertIsNotNone(client.context)
            client.write(8 << 20, b"a" * (1 << 20))
            extents, at = client.block_status(0, 16 << 20), 0
            allocated = 0
            for length, flags in extents:
                if not flags & 1 and at < 16 << 20:
                    allocated += length
                at += length
            self.assertGreaterEqual(at, 9 << 20)
            self.assertEqual(allocated, 1 << 20)

    @row("issue 5: 512-byte requests")
    def test_small(self):
        with Client(self.cluster.nbd(1), self.volume) as client, Client(
            self.cluster.nbd(2), self.volume
        ) as other:
            client.write(0, b"a" * 4096)
            client.write(512, b"b" * 512)
            client.write(4096 - 512, b"c" * 1024)
            want = b"a" * 512 + b"b" * 512 + b"a" * (4096 - 1536) + b"c" * 1024 + bytes(512)
            self.assertEqual(other.read(0, 4096 + 1024), want)

    @row("issue 8: TRIM and WRITE_ZEROES read as zeroes; fast zero is answered")
    def test_zeroes(self):
        import nbd

        with Client(self.cluster.nbd(1), self.volume) as client:
            for call in (
                lambda: client.zero(0, 1 << 20),
                lambda: client.zero(0, 1 << 20, nbd.FLAG_NO_HOLE),
                lambda: client.trim(0, 1 << 20),
            ):
                client.write(0, b"z" * (1 << 20))
                call()
                self.assertEqual(client.read(0, 1 << 20), bytes(1 << 20))
            client.write(0, b"z" * 4096)
            try:
                client.zero(0, 4096, nbd.FLAG_FAST_ZERO)
                self.assertEqual(client.read(0, 4096), bytes(4096))
            except NbdError as error:
                self.assertEqual(error.number, nbd.ENOTSUP)
                self.assertEqual(client.read(0, 4096), b"z" * 4096)


class Dev(unittest.TestCase):
    @row("issue 10: atoll dev stops cleanly on Ctrl-C and leaves no process")
    def test_foreground(self):
        from cluster import Cluster
        from harness import free_ports

        with Stack() as stack:
            directory = stack.directory("atoll-e2e-")
            cluster = Cluster(stack, directory, disk_size="1GiB", base_port=free_ports())
            child = stack.spawn([ATOLL, *cluster.argv], log=os.path.join(directory, "dev.log"))
            wait_until("three hosts", lambda: all(map(cluster.pid, (1, 2, 3))), 30)
            cluster.wait_serving()
            child.send_signal(signal.SIGINT)
            self.assertIn(child.wait(20), (0, 130))
            wait_until("the hosts to end", lambda: not any(map(cluster.pid, (1, 2, 3))), 10)


if __name__ == "__main__":
    unittest.main()

"""TLS between hosts: who is let in, who is not and is told why, and where secrets are not."""

import glob
import os
import re
import shutil
import socket
import ssl
import subprocess
import tarfile
import time

from harness import ATOLL, ClusterTest, row, run, wait_until
from nbd import Client

MIB = 1 << 20
PIECE = 64 << 10


class Trust(ClusterTest):
    """Host 3 is the one whose certificate is changed; volumes have copies on hosts 1 and 2 too."""

    disk_size = "1GiB"

    def setUp(self):
        super().setUp()
        self.good = os.path.join(self.directory, "good")
        shutil.copytree(self.trust(3), self.good)

    # Who is who.

    def trust(self, host):
        return os.path.join(self.cluster.host_dir(host), "data", "trust")

    def known(self, host, name):
        with open(os.path.join(self.cluster.host_dir(host), "data", name), encoding="ascii") as f:
            return f.read().strip()

    def peer_address(self, host):
        shown = self.cluster.get("host", "show", f"host{host}")
        address, port = shown["peers"][0].rsplit(":", 1)
        return address, int(port)

    # What is done to host 3.

    def authority(self, name, *words):
        made = os.path.join(self.directory, name)
        self.cluster.tool("cluster", "authority", "create", "--dir", made, *words)
        return made

    def certificate(self, authority, name, *words):
        made = os.path.join(self.directory, name)
        where = ("--authority", os.path.join(self.directory, authority), "--out", made)
        self.cluster.tool("cluster", "certificate", *words, *where)
        return made

    def put(self, what):
        shutil.rmtree(self.trust(3))
        shutil.copytree(what, self.trust(3))

    def configure(self, host, before, after):
        path = os.path.join(self.cluster.host_dir(host), "atoll.toml")
        with open(path, encoding="utf-8") as f:
            text = f.read()
        self.assertIn(before, text)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text.replace(before, after))

    def assert_logged(self, host, pattern, timeout_s=20.0):
        def said():
            with open(self.cluster.log(host), encoding="utf-8", errors="replace") as f:
                return re.search(pattern, f.read())

        try:
            wait_until("a line of log", said, timeout_s, 0.2)
        except TimeoutError:
            raise AssertionError(f"host{host} does not log {pattern!r}") from None

    def write_and_read(self, seed):
        """What the rest of the cluster does meanwhile."""
        data = bytes((seed + i // 512) % 251 for i in range(PIECE))
        with Client(self.cluster.nbd(1), self.volume) as client:
            client.write(seed * PIECE, data)
            self.assertEqual(client.read(seed * PIECE, PIECE), data)

    # The tests.

    @row("issue 23: hosts prove to each other who they are, and say until when they can")
    def test_protected(self):
        hosts = self.cluster.get("host", "list")
        self.assertEqual([host["tls"] for host in hosts], [True] * 3)
        self.assertTrue(all(host["certificate_until"].startswith("20") for host in hosts), hosts)
        wide = self.cluster.cli("host", "list", "-o", "wide").stdout
        self.assertRegex(wide, r"until \d{4}-\d\d-\d\d")
        until = self.cluster.metric("atoll_certificate_expires_seconds")
        self.assertTrue(80 < (until - time.time()) / 86_400 < 91, until)
        # Nothing is said to who shows no certificate, nor by an older TLS.
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            context = ssl.create_default_context(cafile=os.path.join(self.trust(1), "authority.crt"))
            context.minimum_version = context.maximum_version = version
            name = f"{self.known(1, 'cluster-id')}.cluster.atoll.internal"
            plain = socket.create_connection(self.peer_address(1), timeout=10)
            with plain, self.assertRaises((ssl.SSLError, ConnectionError)):
                with context.wrap_socket(plain, server_hostname=name) as stream:
                    stream.sendall(b"hello")
                    if not stream.recv(1):
                        raise ConnectionError("closed")
        self.write_and_read(1)

    @row("issue 23: a certificate of another authority is refused, both logs say so, the rest goes on")
    def test_foreign(self):
        self.cluster.stop_host(3)
        host, cluster = self.known(3, "host-id"), self.known(3, "cluster-id")
        self.authority("foreign", "--cluster", cluster)
        self.put(self.certificate("foreign", "made", host))
        self.cluster.start(3, serving=False)
        other = "signed by another authority|another authority has signed"
        self.assert_logged(3, other)
        self.assert_logged(1, other)
        self.assert_event("peer-refused.*another authority")
        self.write_and_read(1)
        self.assertEqual(
            [h["up"] for h in self.cluster.get("host", "list")], [True, True, False]
        )
        # Good ones are used without a restart.
        self.put(self.good)
        up = lambda: all(h["up"] for h in self.cluster.get("host", "list"))  # noqa: E731
        wait_until("host 3 to be believed", up, 30, 0.2)
        self.write_and_read(2)

    @row("issue 23: without TLS, a host is told by both sides what is wrong; the rest goes on")
    def test_plain(self):
        self.cluster.stop_host(3)
        self.configure(3, "tls = true", "tls = false")
        self.cluster.start(3, serving=False)
        self.assert_logged(3, "it speaks TLS, and network.tls is false on this host")
        self.assert_logged(1, "what it sends is not TLS: is network.tls false there")
        self.write_and_read(1)

    @row("issue 23: a host does not start with credentials that are no good, and says what to do")
    def test_refused_at_start(self):
        self.cluster.stop_host(3)
        host, trust = self.known(3, "host-id"), self.trust(3)
        self.authority("foreign")
        foreign = self.certificate("foreign", "made", host)
        brief = self.certificate("authority", "brief", host, "--valid", "1s")
        key = os.path.join(trust, "host.key")

        def cut(name):
            path = os.path.join(trust, name)
            os.truncate(path, os.path.getsize(path) // 2)

        def mixed(name):
            shutil.copy(os.path.join(foreign, name), os.path.join(trust, name))

        time.sleep(2.1)  # longer than the brief one is valid
        for what, spoil, says in (
            ("missing", lambda: os.unlink(key), r"host\.key': No such file"),
            ("world-readable", lambda: os.chmod(key, 0o644), r"host\.key': others may read it"),
            ("cut", lambda: cut("host.crt"), "cannot be read"),
            ("cut key", lambda: cut("host.key"), "cannot be read"),
            ("cut authority", lambda: cut("authority.crt"), "cannot be read"),
            ("expired", lambda: self.put(brief), "has expired"),
            ("another host's", lambda: self.put(self.trust(1)), "is of host .*, and this is host"),
            ("another cluster's", lambda: self.put(foreign), "is of cluster .*, and this is"),
            ("another key", lambda: mixed("host.key"), "do not fit"),
            ("another authority", lambda: mixed("authority.crt"), "not signed by that authority"),
        ):
            with self.subTest(what):
                self.put(self.good)
                spoil()
                words = ("dev", "start", "host3", "--dir", self.directory)
                done = self.cluster.tool(*words, check=False)
                self.assert_refusal(done, says=[says, "hint: atoll cluster certificate"])
                self.assertIn(trust, done.stderr)
                self.assertIsNone(self.cluster.pid(3))
        self.write_and_read(1)
        self.put(self.good)
        self.cluster.start(3)

    @row("issue 23: a certificate that expires is warned of, and a new one is used without a restart")
    def test_expires(self):
        self.cluster.stop_host(3)
        brief = self.certificate("authority", "brief", self.known(3, "host-id"), "--valid", "8s")
        self.put(brief)
        self.cluster.start(3)
        pid = self.cluster.pid(3)

        def failed():
            return {c["name"]: c for c in self.cluster.get("status")["health"]["checks"]}

        # It counts the hour before it was made: no third is left from its first second on.
        warned = wait_until("a warning", lambda: failed().get("certificate-expires"), 6, 0.2)
        self.assertIn("host3", warned["message"])
        self.assertIn("atoll cluster certificate", warned["remedy"])
        wait_until("it to expire", lambda: failed().get("certificate-expired"), 20, 0.2)
        self.assert_event("certificate-expired", host=3, timeout_s=15)
        # Connections that exist go on.
        self.assertTrue(all(h["up"] for h in self.cluster.get("host", "list")))
        self.write_and_read(1)
        self.put(self.good)
        self.assert_event("certificate-renewed", host=3, timeout_s=20)
        wait_until("no more failed checks", lambda: not failed(), 30, 0.2)
        self.assertEqual(self.cluster.pid(3), pid)

    @row("issue 23: junk at the peer port costs its own connection, and nobody else's")
    def test_junk(self):
        address = self.peer_address(1)
        hello = bytes.fromhex("1603010200010001fc0303") + bytes(range(256)) * 2
        junk = [b"", b"\0" * 70_000, b"GET / HTTP/1.1\r\n\r\n", b"ATLf" + b"\xff" * 5000]
        junk += [hello, hello[:40], os.urandom(40_000), b"\x17\x03\x03\xff\xff" + b"x" * 70_000]
        before = self.cluster.pid(1)
        for seed in range(1, 9):
            for data in junk:
                with socket.create_connection(address, timeout=10) as s:
                    try:
                        s.sendall(data)
                        s.shutdown(socket.SHUT_WR)
                        while s.recv(4096):
                            pass
                    except ConnectionError:
                        pass
            self.write_and_read(seed)
        self.assertEqual(self.cluster.pid(1), before)
        self.assertTrue(all(h["up"] for h in self.cluster.get("host", "list")))
        self.assert_safe_again()

    @row("issue 23: no key and no token is in logs, arguments, a support bundle or a file for everybody")
    def test_secrets(self):
        secrets = {}
        host = self.cluster.get("host", "show", "host1")
        words = ("token", "create", "--name", "planted", "--role", "admin")
        token = self.cluster.cli(*words).stdout.strip()
        self.assertRegex(token, r"^atoll_[0-9a-f]{64}$")
        secrets[token.encode()] = "the token"
        # Used well, and badly: both are noted somewhere.
        place = ("--endpoint", f"https://{host['api']}")
        believed = ("--ca", os.path.join(self.trust(1), "authority.crt"))
        child = subprocess.Popen(
            [ATOLL, *place, *believed, "-v", "events", "--follow"],
            env={**os.environ, "ATOLL_TOKEN": token},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.addCleanup(child.kill)
        wait_until("the stream to begin", lambda: child.stdout.readline(), 10)
        with open(f"/proc/{child.pid}/cmdline", "rb") as f:
            said = f.read()
        self.cluster.cli("token", "remove", "planted")
        said += child.communicate(timeout=20)[0]
        environment = {**os.environ, "ATOLL_TOKEN": token}
        refused = run([ATOLL, *place, *believed, "status"], env=environment, check=False)
        self.assertEqual(refused.returncode, 5, refused.stderr)
        said += (refused.stdout + refused.stderr).encode()
        self.assertNotIn(token.encode(), said)
        self.assert_event("api-refused.*none of this cluster")
        for path in glob.glob(os.path.join(self.directory, "**", "*.key"), recursive=True):
            self.assertEqual(os.stat(path).st_mode & 0o777, 0o600, path)
            with open(path, encoding="ascii") as f:
                lines = [line for line in f.read().splitlines() if not line.startswith("-----")]
            secrets.update({line.encode(): path for line in lines if len(line) > 30})
        self.assertGreaterEqual(len(secrets), 4 * 2 + 1, "an authority, three hosts, a token")
        bundle = os.path.join(self.directory, "bundle.tar.gz")
        config = os.path.join(self.cluster.host_dir(1), "atoll.toml")
        self.cluster.cli("support", "bundle", "--to", bundle, "--config", config)
        seen = {}
        with tarfile.open(bundle) as archive:
            for member in archive.getmembers():
                if member.isfile():
                    seen[f"bundle: {member.name}"] = archive.extractfile(member).read()
        for pid in map(self.cluster.pid, (1, 2, 3)):
            for name in ("cmdline", "environ"):
                with open(f"/proc/{pid}/{name}", "rb") as f:
                    seen[f"{pid} {name}"] = f.read()
        for place, _, names in os.walk(self.directory):
            for path in (os.path.join(place, name) for name in names):
                if os.path.isfile(path) and not path.endswith((".key", ".img")):
                    with open(path, "rb") as f:
                        seen[path] = f.read()
        self.assertTrue(any(name.endswith("/log") for name in seen), sorted(seen))
        for where, text in seen.items():
            self.assertNotIn(b"PRIVATE KEY", text, where)
            for secret, path in secrets.items():
                self.assertNotIn(secret, text, f"{where} has {path}")

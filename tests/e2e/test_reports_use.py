"""What users ran into with similar systems, as public reports tell it: names, lists, repeated
commands, scripts that read exit codes, metrics, and what piles up under many clients.
"""

import http.client
import json
import os
import signal
import socket
import struct
import subprocess
import threading
import time
import unittest
import urllib.parse

import nbd
from harness import ATOLL, ClusterTest, Stack, row, run, wait_until
from nbd import Client, NbdError

USAGE, NOT_FOUND, CONFLICT, RISK, TIMED_OUT, CONNECT = 2, 3, 4, 7, 8, 20
GONE_ELSEWHERE_S = 2.0  # a deleted name is in no other host's list after this


class UsedTest(ClusterTest):
    volume = None

    def request(self, path, host=1, method="GET", body=None):
        """(status, decoded answer) of a request to a host's interface, the path as it is."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10.0)
            connection.connect(self.cluster.api(host))
            page = http.client.HTTPConnection("localhost")
            page.sock = connection
            head = {"content-type": "application/json"} if body else {}
            page.request(method, path, json.dumps(body) if body else None, head)
            answer = page.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if text else None

    def create(self, name, size="64MiB", host=1):
        self.cluster.cli("volume", "create", name, size, "--policy", self.policy, host=host)

    def names(self, host=1):
        return self.cluster.cli("volume", "list", "-o", "name", host=host).stdout.split()

    def stat(self, host):
        """(open descriptors, threads) of a host's process."""
        of = f"/proc/{self.cluster.pid(host)}"
        return len(os.listdir(f"{of}/fd")), len(os.listdir(f"{of}/task"))


class Names(UsedTest):
    @row("reports R90: a name is refused with the rule, or can be used everywhere")
    def test_every_way(self):
        for name in ("x" * 64, "A", "a", "con", "a.b", "a_", "9", "a--b"):
            self.create(name)
            for host in (1, 2, 3):
                self.assertEqual(self.request(f"/api/v1/volumes/{name}", host)[0], 200)
            with Client(self.cluster.nbd(2), name) as client:
                self.assertEqual(client.size, 64 << 20)
        self.cluster.cli("volume", "resize", "A", "128MiB")
        with Client(self.cluster.nbd(3), "A") as large, Client(self.cluster.nbd(3), "a") as small:
            self.assertEqual((large.size, small.size), (128 << 20, 64 << 20))
        before = sorted(self.names())
        bad = ("a/b", "a b", "\u00e4", "a\u0308", "..", "%2e", "-x", "a\nb", "\0", "x" * 65, "a#b")
        for name in bad:
            asked = {"name": name, "size_bytes": 64 << 20}
            status, said = self.request("/api/v1/volumes", method="POST", body=asked)
            self.assertEqual((status, said["field"]), (400, "name"), said)
            self.assertIn("rule: 1 to 64", said["detail"])
            quoted = urllib.parse.quote(name, safe="")
            status, said = self.request(f"/api/v1/volumes/{quoted}")
            self.assertEqual(status, 400, said)
            self.assertTrue(said["detail"].isprintable(), said)
            with Client(self.cluster.nbd(1), None) as client:
                with self.assertRaises(NbdError):
                    client.go(name)
        self.assertEqual(sorted(self.names(2)), before)

    @row("reports R84: a list that runs beside a delete never brings the name back")
    def test_no_ghost(self):
        deleted, wrong, stop = {}, [], threading.Event()

        def churn(which):
            for i in range(1000):
                if stop.is_set():
                    return
                name = f"n{which}-{i}"
                self.create(name)
                self.cluster.cli("volume", "delete", name, "--yes")
                deleted[name] = time.monotonic()
                if name in self.names():
                    wrong.append(f"{name} is still listed by host1")

        def look(host):
            grace = 0.0 if host == 1 else GONE_ELSEWHERE_S
            while not stop.is_set():
                begun = time.monotonic()
                gone = {name for name, at in list(deleted.items()) if begun - at > grace}
                wrong.extend(f"{name} by host{host}" for name in gone & set(self.names(host)))

        workers = [threading.Thread(target=churn, args=(which,)) for which in (1, 2)]
        workers += [threading.Thread(target=look, args=(host,)) for host in (1, 2, 3)]
        for worker in workers:
            worker.start()
        time.sleep(4)
        stop.set()
        for worker in workers:
            worker.join()
        self.assertGreater(len(deleted), 3)
        self.assertEqual(wrong, [])
        self.assertEqual(self.names(3), [])


class Figures(UsedTest):
    @row("reports R41: tables, JSON, YAML and metrics of every host tell the same sizes")
    def test_the_same_everywhere(self):
        self.create("a", "64MiB")
        self.create("b", "256MiB")
        with Client(self.cluster.nbd(2), "a") as client:
            for at in range(24):
                client.write(at << 20, bytes(range(256)) * 4096)
            client.trim(0, 4 << 20)
            client.flush()

        def figures(host):
            """What one host says by JSON: every size of every list."""
            told = {}
            for kind in ("volume", "group", "disk", "host"):
                for item in self.cluster.get(kind, "list", host=host):
                    key = item.get("name") or item.get("id") or item["path"]
                    for name, value in flat(item):
                        if name.endswith("bytes") and not name.startswith("io"):
                            told[kind, key, name] = value
            return told

        def rests():
            all_of_them = [figures(host) for host in (1, 2, 3)]
            # 'disk list' is of the host that is asked.
            shared = [{k: v for k, v in f.items() if k[0] != "disk"} for f in all_of_them]
            used = shared[0].get(("volume", "a", "used_bytes"))
            return all(f == shared[0] for f in shared) and used == 2 * 20 << 20 and shared[0]

        told = wait_until("the same figures on all hosts", rests, 30.0, 1.0)
        self.assertEqual(told["volume", "a", "guest_bytes"], 20 << 20)
        for host in (1, 2, 3):
            for kind in ("volume", "group", "host"):
                yaml = self.cluster.cli(kind, "list", "-o", "yaml", host=host).stdout + "\n"
                for (what, key, name), value in told.items():
                    if what == kind and value is not None:
                        self.assertIn(f"{name.rsplit('.', 1)[-1]}: {value}\n", yaml)
            for name, value in (("a", "20.0 MiB"), ("a", "40.0 MiB"), ("b", "256.0 MiB")):
                rows = self.cluster.cli("volume", "list", "-o", "wide", host=host).stdout
                line = next(x for x in rows.splitlines() if x.startswith(f"{name} "))
                self.assertIn(value, line)
            mine = next(g for g in self.cluster.get("group", "list") if g["host"] == f"host{host}")
            for name in ("capacity", "used", "free"):
                by_metric = self.cluster.metric(f"atoll_group_{name}_bytes", host)
                self.assertEqual(by_metric, mine["space"][f"{name}_bytes"], name)


def flat(item, under=""):
    """(dotted name, value) of everything in an object that is not a list."""
    for name, value in item.items():
        if isinstance(value, dict):
            yield from flat(value, f"{under}{name}.")
        elif not isinstance(value, list):
            yield f"{under}{name}", value


class Repeats(UsedTest):
    @row("reports R85: a volume whose client was killed can be deleted at once, and only once")
    def test_delete_after_use(self):
        self.create("v", "1GiB")
        code = (
            "import sys, time; from nbd import Client\n"
            f"c = Client({self.cluster.nbd(1)!r}, 'v')\n"
            "[c.write(at << 20, b'x' * 4096) for at in range(32)]\n"
            "print('in use', flush=True); time.sleep(60)"
        )
        here = os.path.dirname(os.path.realpath(__file__))
        client = self.stack.spawn(
            ["python3", "-c", code], cwd=here, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.assertEqual(client.stdout.readline().strip(), b"in use")
        for host in (1, 2):
            self.refused("volume", "delete", "v", "--yes", status=CONFLICT, says="use", host=host)
        client.kill()
        client.wait()
        client.stdout.close()

        def deleted():
            done = self.cluster.cli("volume", "delete", "v", "--yes", host=2, check=False)
            self.assertIn(done.returncode, (0, CONFLICT), done.stderr)
            return done.returncode == 0

        wait_until("the killed client to be no user", deleted, 5.0)
        self.refused("volume", "delete", "v", "--yes", status=NOT_FOUND)
        self.create("v", "1GiB", host=3)
        with Client(self.cluster.nbd(3), "v") as again:
            self.assertEqual(again.read(1 << 20, 4096), bytes(4096))

    @row("reports R86: a command that timed out is repeated and ends in what was wanted")
    def test_after_time_out(self):
        directory = self.cluster.pid_in("directory", "pid")

        def sizes():
            lists = [self.cluster.get("volume", "list", host=host) for host in (1, 2, 3)]
            return [volume["size_bytes"] for volumes in lists for volume in volumes]

        def too_late(*words):
            os.kill(directory, signal.SIGSTOP)
            try:
                self.refused("--timeout", "1", *words, status=TIMED_OUT)
            finally:
                os.kill(directory, signal.SIGCONT)

        too_late("volume", "create", "v", "64MiB", "--policy", self.policy)
        again = ("volume", "create", "v", "64MiB", "--policy", self.policy)
        self.assertIn(self.cluster.cli(*again, host=2, check=False).returncode, (0, CONFLICT))
        wait_until("one volume", lambda: all(self.names(h) == ["v"] for h in (1, 2, 3)), 5)
        too_late("volume", "resize", "v", "128MiB")
        again = ("volume", "resize", "v", "128MiB")  # the first may still be under way on host1
        wait_until(
            "the second resize to be done",
            lambda: self.cluster.cli(*again, host=2, check=False).returncode == 0,
            10,
            0.5,
        )
        self.assertEqual(sizes(), [128 << 20] * 3)
        with Client(self.cluster.nbd(3), "v") as client:
            self.assertEqual(client.size, 128 << 20)
        too_late("volume", "delete", "v", "--yes")
        done = self.cluster.cli("volume", "delete", "v", "--yes", host=2, check=False)
        self.assertIn(done.returncode, (0, NOT_FOUND), done.stderr)
        wait_until("no volume", lambda: not any(map(self.names, (1, 2, 3))), 5)


class Scripts(UsedTest):
    @row("reports R88: a command that fails has its code in every format, and nothing on stdout")
    def test_codes(self):
        self.create("v")
        failing = (
            (NOT_FOUND, "volume", "show", "nope"),
            (NOT_FOUND, "volume", "resize", "nope", "2G"),
            (NOT_FOUND, "volume", "delete", "nope", "--yes"),
            (NOT_FOUND, "policy", "show", "nope"),
            (NOT_FOUND, "host", "show", "nope"),
            (NOT_FOUND, "task", "wait", "999"),
            (NOT_FOUND, "scrub", "start", "--volume", "nope"),
            (CONFLICT, "volume", "create", "v", "64M"),
            (CONFLICT, "policy", "create", self.policy, "--failures-to-tolerate", "1"),
            (RISK, "volume", "delete", "v"),
            (RISK, "volume", "resize", "v", "32M"),
            (USAGE, "volume", "create", "w", "0"),
            (USAGE, "events", "--since", "abc"),
            (USAGE, "volume", "list", "--bogus"),
        )
        for status, *words in failing:
            for form in ("json", "yaml", "name"):
                done = self.refused(*words, "-o", form, status=status)
                self.assertEqual(done.stdout, "", words)
        with open("/dev/full", "wb") as full:
            argv = [ATOLL, "--endpoint", self.cluster.api(1), "volume", "list", "-o", "name"]
            done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, timeout=30)
            self.assertEqual(done.returncode, 1)
            self.assertIn(b"cannot write to standard output", done.stderr)
        done = run(["bash", "-c", '"$@" | true', "-", *argv[:-2], "-o", "json"])
        self.assertEqual(done.stderr, "", "a broken pipe is quiet")
        nowhere = [ATOLL, "--endpoint", os.path.join(self.directory, "none.sock"), "volume", "list"]
        done = run([*nowhere, "-o", "json"], check=False)
        self.assert_refusal(done, CONNECT, "cannot connect")
        self.assertEqual(done.stdout, "")

    @row("reports R89: a list is complete, page by page, while names come and go")
    def test_pages(self):
        kept = [f"v{i:02}" for i in range(30)]
        for name in kept:
            self.create(name)
        stop = threading.Event()

        def churn():
            while not stop.is_set():
                self.create("v10x", host=2)
                self.cluster.cli("volume", "delete", "v10x", "--yes", host=2)

        worker = threading.Thread(target=churn)
        worker.start()
        try:
            for limit in (1, 7, 7, 7, 30):
                seen, cursor = [], ""
                while cursor is not None:
                    more = f"&cursor={urllib.parse.quote(cursor)}" if cursor else ""
                    status, page = self.request(f"/api/v1/volumes?limit={limit}{more}")
                    self.assertEqual(status, 200, page)
                    self.assertLessEqual(len(page["items"]), limit)
                    seen += [item["name"] for item in page["items"]]
                    cursor = page.get("next_cursor")
                self.assertEqual([name for name in seen if name != "v10x"], kept)
        finally:
            stop.set()
            worker.join()
        for limit in ("0", "-1", "1001", "junk", "", "99999999999999999999"):
            status, said = self.request(f"/api/v1/volumes?limit={limit}")
            self.assertEqual((status, said["field"]), (400, "limit"), said)
        self.assertEqual(self.request("/api/v1/volumes?bogus=1")[0], 400)


class Limits(UsedTest):
    @row("a limit of I/Os per second is the volume's, for clients on all hosts, and can be changed")
    def test_iops_limit(self):
        self.create("v")
        self.cluster.cli("volume", "set", "v", "--iops-limit", "200")
        shown = json.loads(self.cluster.cli("volume", "show", "v", "-o", "json", host=2).stdout)
        self.assertEqual(shown["item"]["iops_limit"], 200)
        span, done = 3.0, [0] * 4

        def reads(n):
            with Client(self.cluster.nbd(n % 3 + 1), "v") as client:
                end = time.monotonic() + span
                while time.monotonic() < end:
                    client.read(0, 4096)
                    done[n] += 1

        def all_read():
            done[:] = [0] * 4
            threads = [threading.Thread(target=reads, args=(n,)) for n in range(4)]
            began = time.monotonic()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return time.monotonic() - began

        # Each with a limit of its own would read four times as much. A burst, and one I/O each
        # that is under way at the end, come on top.
        took = all_read()
        self.assertLessEqual(sum(done), 200 * (took + 0.05) + 4, done)
        self.assertGreater(min(done), max(done) / 3, done)
        limited = sum(done)
        self.cluster.cli("volume", "set", "v", "--iops-limit", "none", host=3)
        all_read()
        self.assertGreater(sum(done), limited, "no limit any more")
        for bad in ("-1", "x", "4294967296"):
            refused = self.cluster.cli("volume", "set", "v", "--iops-limit", bad, check=False)
            self.assertEqual(refused.returncode, USAGE, refused.stderr)
        gone = self.cluster.cli("volume", "set", "w", "--iops-limit", "1", check=False)
        self.assertEqual(gone.returncode, NOT_FOUND, gone.stderr)


class Many(UsedTest):
    def samples(self, host):
        """The samples of a host's metrics by name and labels, and the type of each family."""
        values, kinds, helped = {}, {}, set()
        for line in self.cluster.page("/metrics", host)[1].splitlines():
            if line.startswith("# HELP "):
                helped.add(line.split()[2])
            elif line.startswith("# TYPE "):
                _, _, name, kind = line.split()
                self.assertNotIn(name, kinds, "a family twice")
                kinds[name] = kind
            elif line:
                what, value = line.rsplit(" ", 1)
                self.assertNotIn(what, values, "a sample twice")
                values[what] = float(value)
                self.assertEqual(values[what], values[what], "not a number")
        self.assertEqual(helped, set(kinds))
        return values, kinds

    @staticmethod
    def family(what, kinds):
        name = what.split("{")[0]
        base = name.rsplit("_", 1)[0]
        return base if name not in kinds and kinds.get(base) == "histogram" else name

    @row("reports R93: what /metrics says keeps the rules, and no counter falls")
    def test_metrics(self):
        self.create("v")
        before = {}
        for turn in range(15):
            host = 1 + turn % 3
            with Client(self.cluster.nbd(host), "v") as client:
                client.write(turn << 20, bytes([turn]) * 65536)
            values, kinds = self.samples(host)
            for what, value in values.items():
                family = self.family(what, kinds)
                self.assertIn(family, kinds, what)
                self.assertEqual(kinds[family] == "counter", family.endswith("_total"), family)
                if kinds[family] != "gauge":
                    self.assertGreaterEqual(value, before.get((host, what), 0), what)
                before[host, what] = value
                if "_bucket{" in what and 'le="+Inf"' in what:
                    count = what.replace("_bucket{", "_count{").replace(',le="+Inf"', "")
                    self.assertEqual(values[count], value, what)

    @row("reports R95, R99, R100: neither volumes nor past clients leave descriptors, threads, logs")
    def test_nothing_piles_up(self):
        for i in range(20):
            self.create(f"v{i:02}")
        begun = {host: self.stat(host) for host in (1, 2, 3)}
        logs = {host: os.path.getsize(self.cluster.log(host)) for host in (1, 2, 3)}
        for i in range(20):
            with Client(self.cluster.nbd(1 + i % 3), f"v{i:02}") as client:
                client.write(0, b"x" * 4096)
        path = self.cluster.nbd(1)
        for i in range(400):
            if i % 4 == 0:  # opens, reads, and is gone without a word
                client = Client(path, "v00")
                client.send(struct.pack(">IHHQQI", nbd.REQUEST, 0, nbd.CMD_READ, i, 0, 1 << 20))
                client.close(politely=False)
            elif i % 4 == 1:  # asks for what is not there
                with Client(path, None) as client, self.assertRaises(NbdError):
                    client.go(f"nope{i}")
            else:  # no NBD, or no HTTP
                with socket.socket(socket.AF_UNIX) as raw:
                    raw.settimeout(5)
                    raw.connect(path if i % 4 == 2 else self.cluster.api(1))
                    raw.sendall(os.urandom(64) + b"\r\n\r\n")
        for i in range(100):
            self.assertEqual(self.request(f"/api/v1/volumes/nope{i}")[0], 404)
        followers = [
            self.stack.spawn(
                [ATOLL, "--endpoint", self.cluster.api(1), "events", "--follow"],
                log=os.path.join(self.directory, "follow.log"),
            )
            for _ in range(5)
        ]
        time.sleep(0.5)
        for follower in followers:
            follower.kill()
            follower.wait()

        def calm():
            pairs = ((self.stat(host), begun[host]) for host in begun)
            return all(now[i] <= then[i] + 2 for now, then in pairs for i in (0, 1))

        try:
            wait_until("as few descriptors and threads as before", calm, 20, 0.25)
        except TimeoutError:
            self.fail(f"before {begun}, now { {host: self.stat(host) for host in begun} }")
        for host, size in logs.items():
            grown = os.path.getsize(self.cluster.log(host)) - size
            self.assertLess(grown, 16 << 10, f"the log of host{host} has grown")


class Addresses(unittest.TestCase):
    @row("reports R80: IPv6 has brackets, and [::] is reached from other machines")
    def test_ipv6(self):
        with Stack() as stack:
            directory = stack.directory("atoll-e2e-")
            config = os.path.join(directory, "atoll.toml")

            def check(api, peer="[::1]:8461", tcp="[::1]:10809", tls="true"):
                with open(config, "w", encoding="utf-8") as f:
                    f.write(
                        f'[host]\nname = "one"\ndata_dir = "{directory}/data"\n'
                        f'[network]\napi = "{api}"\npeer = ["{peer}"]\ntls = {tls}\n'
                        f'[frontends]\nnbd = {{ tcp = "{tcp}" }}\n'
                    )
                return run([ATOLL, "serve", "--config", config, "--check-config"], check=False)

            self.assertEqual(check("[::1]:8460").returncode, 0)
            self.assertEqual(check("127.0.0.1:8460").returncode, 0)
            for bad in ("::1:8460", "[::1]", "::1", "[::1]:99999"):
                done = check(bad)
                self.assertEqual(done.returncode, 1, bad)
                self.assertIn("network.api", done.stderr)
                self.assertIn("not an address with a port", done.stderr)
            here, anywhere = "[::1]:8460", "[::]:8461"
            done = check(here, "[::1]:8462", anywhere)
            self.assertIn("allow_unprotected", done.stderr)
            for words in ((anywhere,), (here, anywhere)):
                self.assertIn("network.tls is false", check(*words, tls="false").stderr, words)
                self.assertEqual(check(*words).returncode, 0, "inside TLS")

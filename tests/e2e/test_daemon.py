"""What is around a daemon: the stderr it was given, its descriptors, its sockets, its neighbours. None of it
may stop a host."""

import contextlib
import fcntl
import http.client
import os
import resource
import signal
import socket
import subprocess
import time

from harness import ATOLL, ClusterTest, Stack, alive, row, run, wait_until
from nbd import Client

F_SETPIPE_SZ = 1031


class Daemons(ClusterTest):
    """Hosts that a test starts itself, in the place of one of the cluster's."""

    def serve(self, host, stderr, level="debug", before=None, config=None):
        """`atoll serve` of a host that `atoll dev` has stopped; ended with the test."""
        config = config or os.path.join(self.cluster.host_dir(host), "atoll.toml")
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ATOLL_")}
        environment["ATOLL_LOG__LEVEL"] = level
        process = subprocess.Popen(
            [ATOLL, "serve", "--config", config],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env=environment,
            preexec_fn=before,
            start_new_session=True,
        )
        self.addCleanup(self.end, process)
        return process

    def cluster_port(self):
        return int(self.cluster.argv[self.cluster.argv.index("--base-port") + 1]) + 1

    @staticmethod
    def end(process):
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait(10)

    @contextlib.contextmanager
    def instead_of(self, host, stderr, **more):
        """The host with another stderr, serving; afterwards the cluster's own again."""
        self.cluster.stop_host(host)
        process = self.serve(host, stderr, **more)
        try:
            self.cluster.wait_serving([host])
            yield process
        finally:
            self.end(process)
            self.cluster.start(host)

    def use(self, host, rounds=20):
        """Writes and reads through a host; OSError or a time-out if it does not go on."""
        with Client(self.cluster.nbd(host), self.volume) as client:
            for i in range(rounds):
                data = bytes([i + 1]) * 4096
                client.write(i * 4096, data)
                assert client.read(i * 4096, 4096) == data


class Stderr(Daemons):
    def assert_goes_on(self, process, host=2):
        for _ in range(20):
            self.assertEqual(self.cluster.page("/readyz", host)[0], 200)
            self.assertEqual(self.cluster.page("/no/such/page", host)[0], 404)
        self.use(host)
        self.assertIsNone(process.poll(), "the daemon ended")

    def dropped(self, host=2):
        return self.cluster.metric("atoll_log_lines_dropped_total", host)

    @row("issue 20: stderr that refuses every write does not end a host, and what was dropped is counted")
    def test_stderr_refuses(self):
        with open("/dev/full", "wb") as full, self.instead_of(2, full) as process:
            self.assert_goes_on(process)
            wait_until("lines to be dropped", lambda: self.dropped() > 20, 10)
        reading, writing = os.pipe()
        os.close(reading)
        with self.instead_of(2, writing) as process:
            os.close(writing)
            self.assert_goes_on(process)
        # A file that may not grow: SIGXFSZ would end the process.
        path = os.path.join(self.directory, "limited")

        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))

        config = os.path.join(self.directory, "no-disks.toml")
        own = os.path.join(self.directory, "other")
        os.mkdir(own)
        with open(config, "w", encoding="utf-8") as f:
            f.write(
                f'[host]\nname = "other"\ndata_dir = "{own}/data"\n[network]\napi = ""\n'
                f'api_socket = "{own}/api.sock"\npeer = ["127.0.0.9:{self.cluster_port()}"]\n'
                "tls = false\n"
                f'[directory]\nsocket = "{own}/none"\n[frontends]\nnbd = {{ unix = "" }}\n'
            )
        with open(path, "wb") as out:
            process = self.serve(2, out, level="debug", before=limit, config=config)
            api = os.path.join(own, "api.sock")
            wait_until("the API to answer", lambda: os.path.exists(api), 10)
            words = ["--endpoint", api, "status"]
            for _ in range(40):
                run([ATOLL, *words], timeout_s=10, check=False)
                self.assertIsNone(process.poll(), "the daemon ended")
            self.assertGreater(os.path.getsize(path), 1024)
            self.end(process)
            self.assertEqual(process.returncode, 0)

    @row("issue 20: a pipe that nobody reads does not stop a host; the number of lost lines is said later")
    def test_stderr_is_not_read(self):
        for blocking in (True, False):
            reading, writing = os.pipe()
            fcntl.fcntl(writing, F_SETPIPE_SZ, 4096)
            os.set_blocking(writing, blocking)
            with self.instead_of(2, writing) as process:
                os.close(writing)
                deadline = time.monotonic() + 30
                while self.dropped() < 100:
                    self.assertLess(time.monotonic(), deadline, "no line was dropped")
                    for _ in range(100):
                        self.cluster.page("/" + "x" * 4000, 2)  # each is a long line
                self.assert_goes_on(process)
                said = b""
                os.set_blocking(reading, False)
                deadline = time.monotonic() + 20
                while b"lines of log were dropped" not in said:
                    self.assertLess(time.monotonic(), deadline, said[-500:])
                    with contextlib.suppress(BlockingIOError):
                        said = said[-500:] + os.read(reading, 65536)
            os.close(reading)

    @row("issue 20: a host whose stderr is stuck still stops in order, and in time")
    def test_stop_with_a_stuck_stderr(self):
        reading, writing = os.pipe()
        self.addCleanup(os.close, reading)
        fcntl.fcntl(writing, F_SETPIPE_SZ, 4096)
        with self.instead_of(2, writing) as process:
            os.close(writing)
            for _ in range(100):
                self.cluster.page("/healthz", 2)
            process.terminate()
            self.assertEqual(process.wait(10), 0)

    @row("issue 20: the directory goes on when its stderr refuses")
    def test_directory(self):
        with Stack() as stack, open("/dev/full", "wb") as full:
            own = stack.directory("atoll-e2e-")
            path = os.path.join(own, "socket")
            process = subprocess.Popen(
                [ATOLL, "directory", "--file", os.path.join(own, "state"), "--socket", path],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=full,
                start_new_session=True,
            )
            self.addCleanup(self.end, process)
            wait_until("its socket", lambda: os.path.exists(path) or process.poll(), 10)
            for _ in range(10):
                with socket.socket(socket.AF_UNIX) as client:
                    client.connect(path)
                time.sleep(0.05)
            self.assertIsNone(process.poll(), "the directory ended")

    @row("issue 20: the supervisor goes on when nobody reads what it says")
    def test_supervisor(self):
        with Stack() as stack:
            own = stack.directory("atoll-e2e-")
            reading, writing = os.pipe()
            self.addCleanup(os.close, reading)
            fcntl.fcntl(writing, F_SETPIPE_SZ, 4096)
            os.write(writing, b"x" * 4000)  # all but full
            words = ["dev", "--hosts", "1", "--dir", own, "--disk-size", "1GiB", "--auto-restart"]
            words += ["--base-port", str(self.cluster_port() + 100)]
            process = subprocess.Popen(
                [ATOLL, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=writing,
                start_new_session=True,
            )
            os.close(writing)
            self.addCleanup(self.end, process)
            pid_file = os.path.join(own, "host1", "pid")

            def pid():
                with contextlib.suppress(OSError, ValueError, IndexError):
                    with open(pid_file, encoding="ascii") as f:
                        pid = int(f.read().split()[0])
                    return pid if alive(pid) else None
                return None

            def serves():
                api = os.path.join(own, "host1", "api.sock")
                words = ["--endpoint", api, "status"]
                return run([ATOLL, *words], timeout_s=10, check=False).returncode == 0

            wait_until("the host to serve", serves, 30, 0.2)
            time.sleep(0.5)
            for _ in range(3):  # each is a line that does not fit any more
                run([ATOLL, "dev", "status", "--dir", own], timeout_s=20)
                old = pid()
                os.kill(old, signal.SIGKILL)
                wait_until("the host to be started again", lambda: pid() not in (None, old), 20)
            run([ATOLL, "dev", "status", "--dir", own], timeout_s=20)
            run([ATOLL, "dev", "stop", "--dir", own], timeout_s=40)
            self.assertEqual(process.wait(10), 0)


class Copies(Daemons):
    """A copy of a host's directory, brought to life beside it."""

    def copy(self, host):
        """A copy of a host that is down, with addresses and sockets of its own; its configuration."""
        own = os.path.join(self.directory, "copy")
        run(["cp", "-r", "--sparse=always", self.cluster.host_dir(host), own], timeout_s=60)
        config = os.path.join(own, "atoll.toml")
        with open(config, encoding="utf-8") as f:
            text = f.read().replace(self.cluster.host_dir(host), own)
        with open(config, "w", encoding="utf-8") as f:
            f.write(text.replace(f"127.0.0.{host + 1}:", "127.0.0.9:"))
        return config

    def refused_start(self, host, config):
        """A start that is refused: what it said."""
        path = os.path.join(self.directory, "said")
        with open(path, "wb") as out:
            process = self.serve(host, out, level="info", config=config)
            self.assertEqual(process.wait(30), 4)
        with open(path, encoding="utf-8") as f:
            return f.read()

    @row("issue 20: of two processes that live as one host, one is refused by name, whoever comes first")
    def test_a_copied_host_is_refused(self):
        host = self.roles()[1]  # has a copy and does not own the volume
        self.cluster.stop_host(host)
        copy = self.copy(host)
        self.cluster.start(host)
        self.cluster.wait_healthy()
        before = self.cluster.metric("atoll_uptime_seconds", host)

        said = self.refused_start(host, copy)
        self.assertRegex(said, f"host host{host}, at 127.0.0.{host + 1}:.* lives already")
        self.assertIn(os.path.join(self.directory, "copy"), said)
        self.assert_event("copy-refused", host=1)
        self.use(host)
        self.assertGreaterEqual(self.cluster.metric("atoll_uptime_seconds", host), before)
        self.cluster.wait_healthy(10)

        # The copy comes first: then it is the host, and the other one is the copy.
        self.cluster.stop_host(host)
        api = os.path.join(self.directory, "copy", "api.sock")

        def serves():
            return run([ATOLL, "--endpoint", api, "status"], check=False).returncode == 0

        with open(os.path.join(self.directory, "copy-log"), "wb") as out:
            process = self.serve(host, out, level="info", config=copy)
        wait_until("the copy to serve", serves, 20, 0.2)
        config = os.path.join(self.cluster.host_dir(host), "atoll.toml")
        self.assertRegex(self.refused_start(host, config), "at 127.0.0.9:.* lives already")
        self.assertIsNone(process.poll())

        # It is paused and cannot say so: the host comes back, and the copy ends when it sees that.
        process.send_signal(signal.SIGSTOP)
        self.cluster.start(host)
        wait_until("the host to be known", lambda: self.cluster.page("/readyz", host)[0] == 200, 10)
        self.use(host)
        process.send_signal(signal.SIGCONT)
        self.assertEqual(process.wait(20), 4)
        with open(os.path.join(self.directory, "copy-log"), encoding="utf-8") as f:
            self.assertIn("has this host's identity now", f.read())
        self.use(host)
        self.assert_event("host-moved", host=1)
        self.cluster.wait_healthy()


class Descriptors(Daemons):
    @row("issue 20: a host with few descriptors says so at start, and goes on when clients take all of them")
    def test_few_descriptors(self):
        def limit(files):
            return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

        self.cluster.stop_host(2)
        said = os.path.join(self.directory, "said")
        for files in (20, 40, 64):
            with open(said, "wb") as out:
                process = self.serve(2, out, level="info", before=limit(files))
                self.assertEqual(process.wait(20), 1)
            with open(said, encoding="utf-8") as f:
                self.assertRegex(f.read(), f"(?s)may open {files} files, and needs .*LimitNOFILE")
        self.cluster.start(2)

        def size():
            return os.path.getsize(said)

        with open(said, "wb") as out, self.instead_of(2, out, level="info", before=limit(96)) as p:
            with open(said, encoding="utf-8") as f:
                self.assertIn("may open 96 files", f.read())
            with contextlib.ExitStack() as held, Client(self.cluster.nbd(2), self.volume) as client:
                before = size(), os.times()
                for path in [self.cluster.nbd(2), self.cluster.api(2)] * 150:
                    connection = held.enter_context(socket.socket(socket.AF_UNIX))
                    connection.connect(path)
                began, cpu = time.monotonic(), self.cpu(p.pid)
                while time.monotonic() < began + 5:
                    client.write(0, b"x" * 4096)
                    self.assertEqual(client.read(0, 4096), b"x" * 4096)
                    time.sleep(0.05)
                self.assertLess(self.cpu(p.pid) - cpu, 2.5, "it spins")
                self.assertLess(size() - before[0], 20_000, "it floods its log")
                self.cluster.wait_healthy()
            wait_until("the API", lambda: self.cluster.page("/readyz", 2)[0] == 200, 2)
            self.use(2)

    @staticmethod
    def cpu(pid):
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @row("issue 20: the soft limit of open files is raised to the hard one, and what is needed is said")
    def test_the_soft_limit_is_raised(self):
        def soft():
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, 4096))

        said = os.path.join(self.directory, "said")
        with open(said, "wb") as out, self.instead_of(2, out, level="info", before=soft):
            with open(said, encoding="utf-8") as f:
                self.assertRegex(f.read(), "may open 4096 files, raised from 64, and needs up to")


class Doors(Daemons):
    tls = False  # with it: test_access.py

    @row("issue 20: sockets have the documented modes whatever the umask")
    def test_modes(self):
        for umask in (0o000, 0o077):
            with open(os.devnull, "wb") as out:
                with self.instead_of(2, out, before=lambda: os.umask(umask)):
                    for path in (self.cluster.api(2), self.cluster.nbd(2)):
                        self.assertEqual(os.stat(path).st_mode & 0o7777, 0o660, (path, umask))
        supervisor = os.path.join(self.directory, "dev.sock")
        self.assertEqual(os.stat(supervisor).st_mode & 0o7777, 0o600)
        directory = os.path.join(self.directory, "directory", "socket")
        self.assertEqual(os.stat(directory).st_mode & 0o7777, 0o600)

    def ask(self, method, path, headers, body=None):
        """(status, text) over TCP to host 1; the headers as they are, no others."""
        base = self.cluster_port() - 1
        connection = http.client.HTTPConnection("127.0.0.2", base, timeout=10)
        self.addCleanup(connection.close)
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        headers = {"Host": f"127.0.0.2:{base}", **headers}
        if body:
            headers["Content-Length"] = str(len(body))
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    @row("issue 20: a web page and another user reach nothing over TCP; monitoring and other hosts read")
    def test_tcp(self):
        base = self.cluster_port() - 1
        volumes = "/api/v1/volumes"
        for path in (volumes, "/metrics", "/healthz", "/readyz", "/openapi.json"):
            self.assertEqual(self.ask("GET", path, {})[0], 200)
            for headers in (
                {"Host": "evil.example"},
                {"Host": f"evil.example:{base}"},
                {"Origin": "http://evil"},
                {"Origin": "null"},
                {"Sec-Fetch-Site": "cross-site"},
            ):
                status, text = self.ask("GET", path, headers)
                self.assertEqual((status, "E0112" in text), (403, True), (path, headers, text))
        body = b'{"name":"taken","size_bytes":1073741824}'
        for kind in ("application/json", "text/plain", "application/x-www-form-urlencoded"):
            status, text = self.ask("POST", volumes, {"Content-Type": kind}, body)
            self.assertEqual((status, "api.sock" in text), (403, True), text)
        for method, path in (("DELETE", f"{volumes}/{self.volume}"), ("OPTIONS", volumes)):
            self.assertEqual(self.ask(method, path, {})[0], 403)
        endpoint = ("--endpoint", f"http://127.0.0.2:{base}")
        done = self.cluster.tool(*endpoint, "volume", "create", "x", "1GiB", check=False)
        self.assert_refusal(done, status=5, says="api.sock")
        self.assertEqual([v["name"] for v in self.cluster.get("volume", "list")], [self.volume])
        # What another host has to do goes there all the same.
        group = next(g for g in self.cluster.get("group", "list") if g["host"] == "host3")
        self.cluster.cli("scrub", "start", "--group", group["id"])
        self.cluster.cli("disk", "list", "--host", "host3")

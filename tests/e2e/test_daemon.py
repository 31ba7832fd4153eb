"""What is around a daemon: the stderr it was given, its descriptors, its sockets, its neighbours. None of it
may stop a host."""

import contextlib
import fcntl
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

    def cluster_port(self):
        return int(self.cluster.argv[self.cluster.argv.index("--base-port") + 1]) + 1

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
                    for _ in range(500):
                        self.cluster.page("/healthz", 2)
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

"""A cluster on this machine: `atoll dev` with its hosts, seen through the command line only.

Everything goes through the same commands that a user types, so whoever uses this module tests them.
"""

import contextlib
import http.client
import json
import os
import random
import signal
import socket
import time

import uri
from process import CommandFailed, alive, end_pid, run, wait_until

REST_S = 5.0  # without a block moved
SETTLED = 0.08  # of the log: its last segment always counts
FORMAT_S = 300.0  # a log is written with zeros once, at the pace of the disk

ATOLL = os.environ.get("ATOLL_BIN") or os.path.join(
    os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))),
    "target",
    "release",
    "atoll",
)

READY_S = 30.0  # hosts must serve this long after a start


DEFAULT_PORT = 8460  # as `atoll dev` has it


def ports_are_free(base, count=2):
    """Whether nobody listens on `count` ports from `base` on, on any address that hosts use."""
    for port in range(base, base + count):
        for address in ("0.0.0.0", "127.0.0.2", "127.0.0.3", "127.0.0.4"):
            with socket.socket() as s:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    s.bind((address, port))
                except OSError:
                    return False
    return True


def free_ports():
    """A base port that can be used at this moment: chance, so that parallel runs differ; of those
    that `E2E_PORTS` leaves to this process."""
    first, end = map(int, os.environ.get("E2E_PORTS", "20000-30000").split("-"))
    while True:
        base = random.SystemRandom().randrange(first, end - 2)
        if ports_are_free(base):
            return base


class Cluster:
    """`hosts` processes with file-backed disks below `directory`; ended by `stop` or the stack."""

    def __init__(
        self,
        stack,
        directory,
        hosts=3,
        disk_size="8GiB",
        base_port=None,
        keep=False,
        backend="auto",
        disks=1,
        shards=0,
        tls=True,
    ):
        self.directory, self.hosts = directory, hosts
        self.argv = ["dev", "--hosts", str(hosts), "--dir", directory, "--disk-size", disk_size]
        self.argv += ["--disks-per-host", str(disks), "--shards", str(shards)]
        if base_port is None:
            base_port = DEFAULT_PORT if ports_are_free(DEFAULT_PORT) else free_ports()
        self.argv += ["--base-port", str(base_port), "--backend", backend]
        if not tls:
            self.argv += ["--tls", "off"]
        self.keep = keep
        stack.callback(self.end)

    def begin(self, timeout_s=60.0):
        """Starts every host and waits until all of them serve."""
        self.tool(*self.argv, "--detach", timeout_s=timeout_s)
        self.wait_serving(timeout_s=READY_S)

    def end(self):
        """Takes everything down again, by the recorded pids if the command cannot."""
        if self.keep:
            return
        pids = [self.pid(host) for host in range(1, self.hosts + 1)] + [self.pid_in("dev.pid")]
        for pid in pids:
            if pid:
                self._signal(pid, signal.SIGCONT)
        try:
            run([ATOLL, "dev", "stop", "--dir", self.directory], timeout_s=30, check=False)
        finally:
            for pid in pids:
                if pid and alive(pid):
                    end_pid(pid)

    @staticmethod
    def _signal(pid, number):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass

    # What a user types.

    @staticmethod
    def tool(*words, timeout_s=60.0, check=True):
        """Runs `atoll WORDS`."""
        return run([ATOLL, *words], timeout_s=timeout_s, check=check)

    def cli(self, *words, host=1, timeout_s=60.0, check=True):
        """Runs `atoll WORDS` against one host."""
        return run([ATOLL, "--endpoint", self.api(host), *words], timeout_s=timeout_s, check=check)

    def get(self, *words, host=1, timeout_s=30.0):
        """As `cli`, with the answer's `item` or `items`."""
        answer = json.loads(self.cli(*words, "-o", "json", host=host, timeout_s=timeout_s).stdout)
        return answer["item"] if "item" in answer else answer["items"]

    def metric(self, name, host=1):
        """What a host counts under a name of `/metrics`: the sum over the labels."""
        lines = self.page("/metrics", host)[1].splitlines()
        named = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
        values = [float(value) for what, value in named if what.split("{")[0] == name]
        assert values, f"host {host} does not count {name}"
        return sum(values)

    def page(self, path, host=1):
        """(status, text) of a page of a host's interface; an OSError where none answers."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10.0)
            connection.connect(self.api(host))
            page = http.client.HTTPConnection("localhost")
            page.sock = connection
            page.request("GET", path)
            answer = page.getresponse()
            return answer.status, answer.read().decode()

    # Where things are.

    def host_dir(self, host):
        return os.path.join(self.directory, f"host{host}")

    def api(self, host):
        return os.path.join(self.host_dir(host), "api.sock")

    def nbd(self, host):
        return os.path.join(self.host_dir(host), "nbd.sock")

    def uri(self, host, volume):
        return uri.nbd(self.nbd(host), volume)

    def log(self, host):
        return os.path.join(self.host_dir(host), "log")

    def pid_in(self, *name):
        try:
            with open(os.path.join(self.directory, *name), encoding="ascii") as f:
                pid = int(f.read().split()[0])
            return pid if alive(pid) else None
        except (FileNotFoundError, ValueError, IndexError):
            return None

    def pid(self, host):
        """The process of a host, or None when it does not run."""
        return self.pid_in(f"host{host}", "pid")

    def disks(self, host):
        """The files that are a host's disks."""
        found = []
        for parent, _, names in os.walk(self.host_dir(host)):
            found += [os.path.join(parent, name) for name in names if name.startswith("disk")]
        return sorted(found)

    # Faults and their ends.

    def kill(self, host):
        """SIGKILL: ends a host's process at once, as a crash does. Returns the pid it had."""
        pid = self.pid(host)
        if not pid:
            raise RuntimeError(f"host{host} does not run")
        self.tool("dev", "kill", f"host{host}", "--dir", self.directory)
        wait_until(f"host{host} to be gone", lambda: not alive(pid), 10)
        return pid

    def kill_at_once(self, hosts):
        """SIGKILL for several hosts in the same moment."""
        pids = [pid for pid in map(self.pid, hosts) if pid]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        wait_until("all to be gone", lambda: not any(map(alive, pids)), 10)
        wait_until("atoll dev to see it", lambda: not self.running(hosts), 10)

    def running(self, hosts):
        """Those of `hosts` that `atoll dev` says are running."""
        shown = json.loads(self.tool("dev", "status", "--dir", self.directory, "-o", "json").stdout)
        names = {p["name"] for p in shown["items"] if p["state"] == "running"}
        return [host for host in hosts if f"host{host}" in names]

    def start(self, host, serving=True):
        self.tool("dev", "start", f"host{host}", "--dir", self.directory)
        if serving:
            self.wait_serving([host])

    def stop_host(self, host):
        """Stops a host's process in order."""
        self.tool("dev", "stop-host", f"host{host}", "--dir", self.directory)

    def replace_disk(self, host, size_bytes, log_bytes=None):
        """Gives a host another, empty disk in the place of its first one, with a log of that size.
        It must have no volumes."""
        self.stop_host(host)
        disk, config = self.disks(host)[0], os.path.join(self.host_dir(host), "atoll.toml")
        os.unlink(disk)
        with open(disk, "xb") as f:
            f.truncate(size_bytes)
        with open(config, encoding="utf-8") as f:
            lines = [line for line in f if not line.startswith("log =")]
        if log_bytes:
            lines.insert(
                next(i for i, line in enumerate(lines) if line.startswith("disks =")) + 1,
                f'log = "{log_bytes >> 20}MiB"\n',
            )
        with open(config, "w", encoding="utf-8") as f:
            f.writelines(lines)
        self.start(host)
        waiting = f"{FORMAT_S:.0f}"
        words = ("--timeout", waiting, "group", "create", disk)
        self.cli(*words, host=host, timeout_s=FORMAT_S + 5)

    def pause(self, host):
        os.kill(self.pid(host), signal.SIGSTOP)

    def resume(self, host):
        os.kill(self.pid(host), signal.SIGCONT)

    def wait_serving(self, hosts=None, timeout_s=READY_S):
        """Waits until each host answers its own interface."""
        deadline = time.monotonic() + timeout_s
        for host in hosts or range(1, self.hosts + 1):
            while True:
                done = self.cli("status", host=host, check=False, timeout_s=10)
                if done.returncode == 0:
                    break
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"host{host} does not serve after {timeout_s:g} s: {done.stderr.strip()}"
                    )
                time.sleep(0.1)

    # Volumes.

    def create_volume(self, name, size_bytes, copies=2):
        """A volume of so many copies, by a policy of its own for each number of them."""
        policy = "mirror" if copies == 2 else f"copies{copies}"
        if policy not in {p["name"] for p in self.get("policy", "list")}:
            words = ("--failures-to-tolerate", str(copies - 1))
            self.cli("policy", "create", policy, *words)
        self.cli("volume", "create", name, f"{size_bytes >> 20}MiB", "--policy", policy)

    def log_fill(self, hosts):
        """How full the fullest log of these hosts is, 0 to 1."""
        return max(self.metric("atoll_group_log_fill_ratio", host) for host in hosts)

    def settle(self, hosts, limit_s, fill=SETTLED):
        """Waits until what was acknowledged has moved to where it stays, all but so much of the
        log; false: not in time."""
        with contextlib.suppress(TimeoutError):
            return wait_until(
                "the log to be empty", lambda: self.log_fill(hosts) <= fill, limit_s, 0.25
            )
        return False

    def rest(self, hosts, limit_s):
        """Waits until they move nothing from their logs any more, not even the little that `settle`
        leaves; false: not in time."""

        def moved():
            return [self.metric("atoll_group_destaged_bytes_total", host) for host in hosts]

        def still():
            before = moved()
            time.sleep(REST_S)
            return moved() == before

        with contextlib.suppress(TimeoutError):
            return wait_until("the hosts to rest", still, limit_s)
        return False

    def placement(self, volume, host=1):
        return self.get("volume", "placement", volume, host=host)

    def wait_healthy(self, timeout_s=60.0, host=1, watch=lambda resync: None):
        """Waits until every volume has all its copies in sync again."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                watch(self.get("resync", "show", host=host))
                volumes = self.get("volume", "list", host=host)
                waiting = [v for v in volumes if v["state"] != "healthy"]
            except CommandFailed as error:
                waiting = [str(error)]
            if not waiting:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"not in sync again after {timeout_s:g} s: {waiting}")
            time.sleep(0.2)

"""A cluster of machines: each host with its member of etcd, set up as the manual says (`cluster init`,
`join-token`, `join`), over TLS.

With a Network each has a network namespace of its own, with one cable to a switch, which can be
cut; without one, each has a loopback address. Nothing of either reaches the network of this machine.
"""

import contextlib
import os
import secrets
import shutil
import signal
import subprocess

from cluster import ATOLL, READY_S, Cluster
from process import CommandFailed, Stack, end, run, wait_until

FORMAT_S = 60.0
SETTLED_S = 60.0  # a host that joins has its member of etcd, and its vote if it gets one
IN, OUT = "in", "out"  # ways of a cable, as its machine sees them


class Network:
    """A switch and the cables to it."""

    def __init__(self, stack, machines):
        self.stack, self.token = stack, secrets.token_hex(4)
        self.switch = self._namespace("switch")
        self._ip(self.switch, "link", "add", "bridge0", "type", "bridge")
        self._ip(self.switch, "link", "set", "bridge0", "up")
        for machine in range(1, machines + 1):
            self.plug(machine)

    @classmethod
    def possible(cls):
        """Whether this process may make one, on this kernel: it is tried."""
        if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
            return False
        try:
            with Stack() as stack:
                tried = cls(stack, 1)
                tried.cut(1)
                tried.mend(1)
        except CommandFailed:
            return False
        return True

    @staticmethod
    def _ip(namespace, *words):
        run(["ip", "-n", namespace, *words])

    def _namespace(self, name):
        namespace = f"atoll-{self.token}-{name}"
        run(["ip", "netns", "add", namespace])
        self.stack.callback(run, ["ip", "netns", "del", namespace], check=False)
        return namespace

    def namespace(self, machine):
        return f"atoll-{self.token}-m{machine}"

    @staticmethod
    def address(machine):
        return f"10.77.0.{machine}"

    def plug(self, machine):
        """A new machine, with its cable."""
        own = self._namespace(f"m{machine}")
        cable = ("link", "add", f"port{machine}", "type", "veth", "peer", "name", "eth0", "netns", own)
        self._ip(self.switch, *cable)
        self._ip(self.switch, "link", "set", f"port{machine}", "master", "bridge0", "up")
        self._ip(own, "link", "set", "lo", "up")
        self._ip(own, "addr", "add", f"{self.address(machine)}/24", "dev", "eth0")
        self._ip(own, "link", "set", "eth0", "up")

    def inside(self, machine):
        """The words before a command that runs on that machine."""
        return ["ip", "netns", "exec", self.namespace(machine)]

    def _end_of(self, machine, way):
        """Where packets of that way leave a device."""
        if way == OUT:
            return self.namespace(machine), "eth0"
        return self.switch, f"port{machine}"

    def cut(self, machine, *ways):
        """From now on, packets of these ways (both, if none is named) are lost without a word."""
        for way in ways or (IN, OUT):
            namespace, device = self._end_of(machine, way)
            # A token bucket that no packet fits into.
            bucket = ("root", "tbf", "rate", "8bit", "burst", "1", "limit", "1")
            run(["ip", "netns", "exec", namespace, "tc", "qdisc", "add", "dev", device, *bucket])

    def mend(self, machine):
        """The cable carries everything again."""
        for way in (IN, OUT):
            namespace, device = self._end_of(machine, way)
            words = ["ip", "netns", "exec", namespace, "tc", "qdisc", "del", "dev", device, "root"]
            run(words, check=False)  # it was not cut


class Machines(Cluster):
    """`hosts` machines with one disk each; ended by the stack."""

    def __init__(self, stack, directory, hosts=3, disk_size=2 << 30, network=None, base_port=8460):
        self.stack, self.directory, self.hosts = stack, directory, hosts
        self.disk_size, self.network = disk_size, network
        api, peer, member, member_peer = (base_port + n for n in range(4))
        self.ports = (8460, 8461, 2379, 2380) if network else (api, peer, member, member_peer)
        self.processes, self.members = {}, {}
        stack.callback(self.end)

    def address(self, host):
        return self.network.address(host) if self.network else f"127.0.0.{host}"

    def member_endpoint(self, host):
        """Where clients reach the member of etcd of a host."""
        return f"{self.address(host)}:{self.ports[2]}"

    def on(self, host, argv):
        """A command as it is run on that machine."""
        return (self.network.inside(host) if self.network else []) + list(argv)

    # Setting up.

    def config(self, host):
        own, at = self.host_dir(host), self.address(host)
        api, peer, member, member_peer = self.ports
        return (
            f'[host]\nname = "host{host}"\ndata_dir = "{own}/data"\n'
            f'[network]\napi = "{at}:{api}"\napi_socket = "{own}/api.sock"\npeer = ["{at}:{peer}"]\n'
            f'[directory]\nmember = "{at}:{member}"\nmember_peer = "{at}:{member_peer}"\n'
            f'[frontends]\nnbd = {{ unix = "{own}/nbd.sock" }}\n'
            f'[[group]]\ndisks = ["{own}/disk1"]\n'
        )

    def config_file(self, host):
        return os.path.join(self.host_dir(host), "atoll.toml")

    def prepare(self, host):
        """A machine with a disk and a configuration, and no more."""
        os.makedirs(os.path.join(self.host_dir(host), "data"))
        with open(os.path.join(self.host_dir(host), "disk1"), "xb") as disk:
            disk.truncate(self.disk_size)
        with open(self.config_file(host), "x", encoding="ascii") as f:
            f.write(self.config(host))

    def init(self):
        """Machine 1 becomes the first host."""
        self.prepare(1)
        run(self.on(1, [ATOLL, "cluster", "init", "--config", self.config_file(1)]))
        self.start(1)

    def come(self, host):
        """A further machine joins, by a token."""
        self.prepare(host)
        path = os.path.join(self.host_dir(host), "token")
        with open(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "w") as f:
            f.write(self.cli("cluster", "join-token").stdout)
        words = ("--config", self.config_file(host), "--token-file", path)
        run(self.on(host, [ATOLL, "cluster", "join", *words]), env=self.environment())
        self.start(host)

    def add_disk(self, host):
        disk = os.path.join(self.host_dir(host), "disk1")
        words = ("--timeout", f"{FORMAT_S:.0f}", "group", "create", disk)
        self.cli(*words, host=host, timeout_s=FORMAT_S + 5)

    def begin(self):
        self.init()
        for host in range(2, self.hosts + 1):
            self.come(host)
        for host in range(1, self.hosts + 1):
            self.add_disk(host)
        wait_until("all groups", lambda: len(self.get("group", "list")) == self.hosts, READY_S, 0.2)

    # Processes.

    @staticmethod
    def environment():
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ATOLL_")}
        # What is meant for another etcd does not reach these.
        return {**environment, "ETCD_LISTEN_CLIENT_URLS": "http://0.0.0.0:1"}

    def _spawn(self, host, log, *words):
        with open(os.path.join(self.host_dir(host), log), "ab") as out:
            return subprocess.Popen(
                self.on(host, [ATOLL, *words, "--config", self.config_file(host)]),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=self.environment(),
                start_new_session=True,
            )

    def start_member(self, host):
        self.members[host] = self._spawn(host, "etcd.log", "etcd", "run")

    def start_daemon(self, host):
        self.processes[host] = self._spawn(host, "log", "serve")

    def start(self, host, serving=True):
        """All that the machine's units run."""
        self.start_member(host)
        self.start_daemon(host)
        if serving:
            self.wait_serving([host])

    def pid(self, host):
        return self.processes[host].pid if host in self.processes else None

    @staticmethod
    def _kill(process):
        process.kill()
        process.wait(10)
        return process.pid

    def kill_daemon(self, host):
        return self._kill(self.processes.pop(host))

    def kill_member(self, host):
        return self._kill(self.members.pop(host))

    def kill(self, host):
        """The machine loses its power. Returns the pid that its daemon had."""
        self.members[host].kill()
        pid = self.kill_daemon(host)
        self.kill_member(host)
        return pid

    def kill_all(self):
        """Every machine loses its power at once."""
        hosts = list(self.processes)
        for host in hosts:
            self.members[host].kill()
            self.processes[host].kill()
        for host in hosts:
            self.kill(host)
        return hosts

    def stop_host(self, host):
        end(self.processes.pop(host), 20)

    def pause(self, host):
        """The whole machine stands still."""
        for process in (self.processes[host], self.members[host]):
            process.send_signal(signal.SIGSTOP)

    def resume(self, host):
        for process in (self.processes[host], self.members[host]):
            process.send_signal(signal.SIGCONT)

    def died(self):
        """What ended though nobody told it to."""
        daemons = [f"host{host}" for host, p in self.processes.items() if p.poll() is not None]
        members = [f"member{host}" for host, p in self.members.items() if p.poll() is not None]
        return daemons + members

    def end(self):
        for process in (*self.processes.values(), *self.members.values()):
            with contextlib.suppress(ProcessLookupError):
                end(process)
        self.processes, self.members = {}, {}

    # etcd.

    def ctl(self, *words, by=1, at=1, check=True):
        """etcdctl on a machine, with the certificate of one; without any, if `by` is None."""
        trust = os.path.join(self.host_dir(by or at), "data", "trust")
        known = ["--cacert", f"{trust}/authority.crt"]
        if by:
            known += ["--cert", f"{trust}/host.crt", "--key", f"{trust}/host.key"]
        argv = ["etcdctl", "--endpoints", f"https://{self.member_endpoint(at)}", *known, *words]
        return run(self.on(at, argv), check=check, env={**os.environ, "ETCDCTL_API": "3"})

    def roles(self, at=1):
        """(started, learner) of each member, as the one of a host knows it."""
        lines = self.ctl("member", "list", at=at).stdout.splitlines()
        rows = [[word.strip() for word in line.split(",")] for line in lines]
        return [(state == "started", learner == "true") for _, state, _, _, _, learner in rows]

    def healthy(self, host):
        """Whether the member of a host takes part: it answers a read that all agree on."""
        return self.ctl("endpoint", "health", at=host, by=host, check=False).returncode == 0

    def wait_members(self, voters, learners, at=1, healthy=()):
        """Waits until so many have a vote, and so many learn; and the members of some hosts take part."""

        def settled():
            roles = self.roles(at)
            all_started = all(started for started, _ in roles)
            learn = [learns for _, learns in roles]
            counts = (learn.count(False), learn.count(True))
            return all_started and counts == (voters, learners) and all(map(self.healthy, healthy))

        wait_until(f"{voters} voters and {learners} learners", settled, SETTLED_S, 0.3)

    def wait_known(self, host, members):
        """Waits until a host asks these members, and no others."""
        expected = {self.member_endpoint(member) for member in members}

        def known():
            directory = self.get("status", host=host)["directory"]
            return {member["endpoint"] for member in directory["members"]} == expected

        wait_until(f"host {host} to know all members", known, 30, 0.3)

    def leader(self, host=1):
        """The host whose member leads."""
        members = self.get("status", host=host)["directory"]["members"]
        leads = [member["endpoint"] for member in members if member["leads"]]
        by_endpoint = {self.member_endpoint(n): n for n in range(1, self.hosts + 1)}
        return by_endpoint[leads[0]] if leads else None

"""A real etcd on loopback, and hosts whose directory it is: `atoll dev` runs neither.

Members of etcd are at 127.0.0.1, host N is at 127.0.0.N.
"""

import http.client
import os
import subprocess

import harness  # noqa: F401 (it completes the path)
from cluster import ATOLL, READY_S, Cluster
from process import end, run, wait_until

DISK_FORMAT_S = 60.0


class Etcd:
    """`members` processes; member N listens for clients at base_port + 10 + 2 N."""

    def __init__(self, stack, directory, base_port, members=3, more=()):
        self.directory, self.members, self.more = directory, members, list(more)
        self.ports = [(base_port + 10 + 2 * n, base_port + 11 + 2 * n) for n in range(members)]
        self.processes = {}
        stack.callback(self.end)

    def endpoints(self):
        return [f"127.0.0.1:{client}" for client, _ in self.ports]

    def start(self, member):
        assert member not in self.processes, f"member {member} runs"
        client, peer = self.ports[member]
        everyone = ",".join(f"m{n}=http://127.0.0.1:{p}" for n, (_, p) in enumerate(self.ports))
        with open(os.path.join(self.directory, f"etcd{member}.log"), "ab") as log:
            self.processes[member] = subprocess.Popen(
                ["etcd", "--name", f"m{member}", "--initial-cluster", everyone]
                + ["--data-dir", os.path.join(self.directory, f"etcd{member}")]
                + ["--listen-client-urls", f"http://127.0.0.1:{client}"]
                + ["--advertise-client-urls", f"http://127.0.0.1:{client}"]
                + ["--listen-peer-urls", f"http://127.0.0.1:{peer}"]
                + ["--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}"]
                + ["--log-outputs", "stderr", *self.more],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self, member):
        process = self.processes.pop(member)
        process.kill()
        process.wait(10)

    def end(self):
        for process in self.processes.values():
            end(process)
        self.processes = {}

    def ctl(self, *words, timeout_s=30.0, check=True):
        endpoints = ",".join(self.endpoints())
        return run(
            ["etcdctl", "--endpoints", endpoints, *words],
            timeout_s=timeout_s,
            check=check,
            env={**os.environ, "ETCDCTL_API": "3"},
        )

    def metrics(self, member):
        """What a member counts: name with labels -> value."""
        page = http.client.HTTPConnection("127.0.0.1", self.ports[member][0], timeout=10)
        page.request("GET", "/metrics")
        lines = page.getresponse().read().decode().splitlines()
        named = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
        return {name: float(value) for name, value in named}

    def requests(self):
        """Requests of clients that the members have begun to answer: method -> number."""
        totals = {}
        for member in self.processes:
            for name, value in self.metrics(member).items():
                if name.startswith("grpc_server_started_total"):
                    method = name.split('grpc_method="')[1].split('"')[0]
                    totals[method] = totals.get(method, 0.0) + value
        return totals


class EtcdCluster(Cluster):
    """Hosts with one disk each, whose directory is an etcd of three members."""

    def __init__(self, stack, directory, hosts=3, disk_size=2 << 30, base_port=None):
        self.stack, self.directory, self.hosts = stack, directory, hosts
        self.disk_size, self.base_port, self.processes = disk_size, base_port, {}
        self.etcd = Etcd(stack, directory, base_port)
        stack.callback(self.end)

    def config(self, host, more=""):
        own, endpoints = self.host_dir(host), ", ".join(f'"{e}"' for e in self.etcd.endpoints())
        return (
            f'[host]\nname = "host{host}"\ndata_dir = "{own}/data"\n'
            f'[network]\napi = "127.0.0.{host}:{self.base_port}"\napi_socket = "{own}/api.sock"\n'
            f'peer = ["127.0.0.{host}:{self.base_port + 1}"]\n'
            f'[directory]\nkind = "etcd"\nendpoints = [{endpoints}]\n{more}'
            f'[frontends]\nnbd = {{ unix = "{own}/nbd.sock" }}\n'
            f'[[group]]\ndisks = ["{own}/disk1"]\n'
        )

    def begin(self):
        for member in range(self.etcd.members):
            self.etcd.start(member)
        for host in range(1, self.hosts + 1):
            os.mkdir(self.host_dir(host))
            with open(os.path.join(self.host_dir(host), "disk1"), "xb") as disk:
                disk.truncate(self.disk_size)
            with open(os.path.join(self.host_dir(host), "atoll.toml"), "x", encoding="ascii") as f:
                f.write(self.config(host))
            self.start(host, serving=False)
        self.wait_serving()
        for host in range(1, self.hosts + 1):
            disk = os.path.join(self.host_dir(host), "disk1")
            words = ("--timeout", f"{DISK_FORMAT_S:.0f}", "group", "create", disk)
            self.cli(*words, host=host, timeout_s=DISK_FORMAT_S + 5)
        wait_until("all groups", lambda: len(self.get("group", "list")) == self.hosts, READY_S, 0.2)

    def start(self, host, serving=True):
        own = self.host_dir(host)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ATOLL_")}
        with open(os.path.join(own, "log"), "ab") as log:
            process = subprocess.Popen(
                [ATOLL, "serve", "--config", os.path.join(own, "atoll.toml")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        self.processes[host] = process
        with open(os.path.join(own, "pid"), "w", encoding="ascii") as f:
            f.write(f"{process.pid}\n")
        if serving:
            self.wait_serving([host])

    def kill(self, host):
        process = self.processes.pop(host)
        process.kill()
        process.wait(10)
        return process.pid

    def stop_host(self, host):
        end(self.processes.pop(host), 20)

    def died(self):
        """Hosts and members that ended though nobody told them to."""
        hosts = [f"host{host}" for host, p in self.processes.items() if p.poll() is not None]
        members = [f"m{m}" for m, p in self.etcd.processes.items() if p.poll() is not None]
        return hosts + members

    def end(self):
        for process in self.processes.values():
            end(process)
        self.processes = {}

    # Who leads.

    def members(self, host=1):
        return self.get("status", host=host)["directory"]["members"]

    def leader(self, host=1):
        """The number of the member that leads."""

        def found():
            leads = [n for n, member in enumerate(self.members(host)) if member["leads"]]
            return [leads[0]] if leads else None

        return wait_until("a leader", found, 20, 0.2)[0]

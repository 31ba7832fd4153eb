"""Several daemons on one machine: to the cluster they are hosts that fail together."""

import os
import re

from harness import ClusterTest, row
from load import Load

OWNER_S = 20  # a takeover, and what several daemons on two cores take besides


class Machines(ClusterTest):
    """Two machines with two daemons each: host1 and host2, host3 and host4."""

    hosts, volume = 4, None

    def setUp(self):
        super().setUp()
        for host in range(1, self.hosts + 1):
            self.cluster.stop_host(host)
            path = os.path.join(self.cluster.host_dir(host), "atoll.toml")
            with open(path, encoding="utf-8") as f:
                text = re.sub(r"(?m)^fault_domain *=.*\n", "", f.read())
            domain = f'[host]\nfault_domain = "machine-{self.machine(host)}"\n'
            with open(path, "w", encoding="utf-8") as f:
                f.write(text.replace("[host]\n", domain))
            self.cluster.start(host)

    @staticmethod
    def machine(host):
        return "a" if host <= 2 else "b"

    @row("operations, machines with many cores: copies are never on one machine, whose loss is survived")
    def test_daemons_of_one_machine(self):
        for n in range(8):
            # The second copy is where there is room: it would be on the same machine in some.
            self.cluster.cli("volume", "create", f"v{n}", "64MiB", host=1 + n % self.hosts)
            hosts = [
                int(m["host"].removeprefix("host"))
                for m in self.cluster.placement(f"v{n}")["members"]
            ]
            self.assertEqual({self.machine(host) for host in hosts}, {"a", "b"}, f"v{n}: {hosts}")
        self.volume = "v0"
        with Load(self.cluster, "v0", hosts=(3, 4)) as load:
            load.wait_progress()
            self.cluster.kill_at_once([1, 2])
            load.wait_progress(50, timeout_s=OWNER_S)
            load.finish()
        for host in (1, 2):
            self.cluster.start(host)
        self.assert_safe_again(host=3)

"""Hosts that go for good, and hosts that come back changed: addresses, name, place of disks."""

import json
import os
import re

from harness import ClusterTest, row, wait_until
from nbd import Client

MIB = 1 << 20
PIECE = 64 << 10


class Hosts(ClusterTest):
    """Host 3 goes, or changes; it has a copy of the volume, as one of the other two has."""

    disk_size = "1GiB"
    volume = None

    def setUp(self):
        super().setUp()
        self.cluster.create_volume("kept", 16 * MIB, copies=3)
        self.write_and_read("kept", 1)

    def write_and_read(self, volume, seed, host=1):
        data = bytes((seed + i // 512) % 251 for i in range(PIECE))
        with Client(self.cluster.nbd(host), volume) as client:
            client.write(seed * PIECE, data)
            self.assertEqual(client.read(seed * PIECE, PIECE), data)

    def listed(self):
        return {host["name"]: host for host in self.cluster.get("host", "list")}

    def known(self, name):
        with open(os.path.join(self.cluster.host_dir(3), "data", name), encoding="ascii") as f:
            return f.read().strip()

    def configure(self, change):
        path = os.path.join(self.cluster.host_dir(3), "atoll.toml")
        with open(path, encoding="utf-8") as f:
            before = f.read()
        after = change(before)
        self.assertNotEqual(before, after)
        with open(path, "w", encoding="utf-8") as f:
            f.write(after)

    def refused_to_start(self, *says):
        words = ("dev", "start", "host3", "--dir", self.directory)
        done = self.cluster.tool(*words, check=False)
        self.assert_refusal(done, says=says)
        self.assertIsNone(self.cluster.pid(3))

    @row("issue 23: a host that is lost is removed for good; its copies count no more, nor does it")
    def test_removed(self):
        self.refused("host", "remove", "host3", says=["--yes"])
        remove = ("host", "remove", "host3", "--yes")
        self.refused(*remove, status=4, says=["copies of volume kept", "stop it"])
        self.refused(*remove, "--lost", status=4, says=["not lost, host host[12] reaches it"])
        self.refused("host", "remove", "host1", "--yes", says=["ask another host"])
        self.refused("host", "remove", "nobody", "--yes", status=3)
        self.cluster.kill(3)
        missed = lambda host: not {  # noqa: E731
            h["name"]: h["up"] for h in self.cluster.get("host", "list", host=host)
        }["host3"]
        wait_until("host 3 to be missed", lambda: missed(1) and missed(2), 10, 0.1)
        self.refused(*remove, status=4, says=["atoll host remove host3 --lost"])
        rehearsed = self.cluster.cli(*remove, "--lost", "--dry-run")
        self.assertIn("can be removed", rehearsed.stdout)
        shown = json.loads(self.cluster.cli(*remove, "--lost", "-o", "json").stdout)
        self.assertEqual((shown["kind"], shown["item"]["state"]), ("HostRemoval", "removed"))
        self.assertEqual(shown["item"]["id"], self.known("host-id"))
        self.assertEqual(sorted(self.listed()), ["host1", "host2"])
        for member in self.cluster.placement("kept")["members"]:
            active = member["host"] in ("host1", "host2")
            self.assertEqual(member["state"], "active" if active else "absent", member)
        self.write_and_read("kept", 2)
        self.assert_event("host-removed")
        # Whoever comes back with its disks, its identity and its certificate is told.
        self.refused_to_start("was removed from the cluster at 20", "join it as a new host")
        self.assertIn("is removed", self.cluster.cli(*remove).stdout)
        # As a new host, under its old name.
        data = os.path.join(self.cluster.host_dir(3), "data")
        for name in ("host-id", "trust"):
            os.rename(os.path.join(data, name), os.path.join(data, f"old-{name}"))
        where = os.path.join(data, "trust")
        authority = os.path.join(self.directory, "authority")
        self.cluster.tool("cluster", "certificate", "--authority", authority, "--out", where)
        self.cluster.start(3)
        self.assertNotEqual(self.listed()["host3"]["id"], shown["item"]["id"])
        [disk] = self.cluster.get("disk", "list", "--host", "host3")
        self.assertEqual(disk["state"], "foreign", disk)
        self.cluster.cli("disk", "wipe", disk["path"], "--host", "host3", "--yes")
        self.cluster.cli("group", "create", disk["path"], "--host", "host3")
        self.cluster.wait_healthy()

    @row("issue 23: a host that lives and is empty is removed, ends at once and says why")
    def test_removed_while_it_lives(self):
        self.cluster.cli("volume", "delete", "kept", "--yes")
        removed = lambda: self.cluster.cli(  # noqa: E731
            "host", "remove", "host3", "--yes", check=False
        ).returncode == 0
        wait_until("host 3 to be empty, and removed", removed, 20, 0.5)
        wait_until("host 3 to end", lambda: self.cluster.pid(3) is None, 10)
        with open(self.cluster.log(3), encoding="utf-8", errors="replace") as f:
            self.assertRegex(f.read(), "this host was removed from the cluster")
        self.refused_to_start("was removed from the cluster")
        self.cluster.create_volume("new", 16 * MIB)
        self.write_and_read("new", 1)

    def died(self):
        """Host 3 ends by itself where it is removed."""
        return [what for what in super().died() if not what.startswith("host3")]

    @row("issue 23: a host comes back with other addresses, name and places of disks: I/O goes on")
    def test_changed(self):
        self.cluster.create_volume("on3", 16 * MIB, copies=3)
        self.write_and_read("on3", 1, host=3)
        self.cluster.stop_host(3)
        place = self.cluster.host_dir(3)
        [disk] = self.cluster.disks(3)
        moved = os.path.join(place, "elsewhere.img")
        os.rename(disk, moved)

        def change(text):
            address, port = re.search(r'^peer = \["(.*):(\d+)"\]', text, re.M).groups()
            more = f'peer = ["{address}:{int(port) + 100}", "{address}:{int(port) + 101}"]'
            text = re.sub(r"^peer = .*$", more, text, flags=re.M)
            api = f'api = "{address}:{int(port) + 102}"'
            text = re.sub(r"^api = .*$", api, text, flags=re.M)
            text = text.replace('name = "host3"', 'name = "renamed"')
            return text.replace(disk, moved)

        self.configure(change)
        self.cluster.start(3)
        up = lambda: self.listed().get("renamed", {}).get("up")  # noqa: E731
        wait_until("host 3 to be found", up, 10, 0.1)
        host = self.listed()["renamed"]
        self.assertNotIn("host3", self.listed())
        self.assertEqual(len(host["peers"]), 2)
        [shown] = self.cluster.get("disk", "list", "--host", "renamed")
        self.assertEqual((shown["path"], shown["state"]), (moved, "in-use"))
        self.cluster.wait_healthy()
        self.write_and_read("on3", 2)
        self.write_and_read("on3", 3, host=3)
        self.assertEqual({m["state"] for m in self.cluster.placement("on3")["members"]}, {"active"})
        # A name that another one has is refused.
        self.cluster.stop_host(3)
        self.configure(lambda text: text.replace('name = "renamed"', 'name = "host1"'))
        self.refused_to_start("host name host1 is taken by host", "must be unique")
        self.write_and_read("on3", 4)

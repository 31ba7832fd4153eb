"""Hosts manage each other over the connections between them: none needs another's interface."""

import json
import os
import re
import socket

from harness import ClusterTest, row
from nbd import Client

MIB = 1 << 20


class WithoutApi(ClusterTest):
    """Host 2 has no `network.api`, and its socket is out of reach; all is asked of host 1."""

    disk_size = "1GiB"

    def without_api(self):
        """Restarts host 2 without it, with a blank disk and one that holds something else."""
        self.cluster.stop_host(2)
        place = self.cluster.host_dir(2)
        blank, foreign = (os.path.join(place, f"{what}.img") for what in ("blank", "foreign"))
        for path in (blank, foreign):
            with open(path, "xb") as f:
                f.truncate(1 << 30)
        with open(foreign, "r+b") as f:
            f.write(bytes(512) + b"EFI PART")
        config = os.path.join(place, "atoll.toml")
        with open(config, encoding="utf-8") as f:
            text = f.read()
        [(address, port)] = re.findall(r'^api = "(.*):(\d+)"$', text, re.M)
        text = re.sub(r"^api = .*$", 'api = ""', text, flags=re.M)
        text += "".join(f'\n[[group]]\ndisks = ["{path}"]\n' for path in (blank, foreign))
        with open(config, "w", encoding="utf-8") as f:
            f.write(text)
        self.cluster.start(2)
        with self.assertRaises(ConnectionRefusedError):
            socket.create_connection((address, int(port)), timeout=5)
        return blank, foreign

    def ask(self, *words):
        """The answer of host 1, which must be whole."""
        answer = json.loads(self.cluster.cli(*words, "-o", "json").stdout)
        self.assertEqual(answer.get("missing", []), [], words)
        return answer["item"] if "item" in answer else answer["items"]

    def of_host_2(self, *words):
        return [item for item in self.ask(*words) if item["host"] == "host2"]

    @row("issue 22: a host without network.api tells what it knows, and is managed by the others")
    def test_managed_by_the_others(self):
        self.cluster.create_volume("everywhere", 64 * MIB, copies=3)
        blank, foreign = self.without_api()
        socket_file = self.cluster.api(2)
        os.rename(socket_file, socket_file + ".aside")
        try:
            self.manage(blank, foreign)
        finally:
            os.rename(socket_file + ".aside", socket_file)

    def scrub(self, group):
        """Starts and stops the scrub of a disk group of host 2 that has something on it."""
        words = ("scrub", "start", "--group", group, "--rate", "1MiB")
        running = {s["group"]: s["running"] for s in self.ask(*words)}
        self.assertEqual([g for g, runs in running.items() if runs], [group])
        self.cluster.cli("scrub", "stop", "--group", group)
        self.assertEqual([s["group"] for s in self.ask("scrub", "show") if s["running"]], [])

    def manage(self, blank, foreign):
        hosts = {host["name"]: host for host in self.ask("host", "list")}
        self.assertEqual((hosts["host2"]["up"], hosts["host2"]["api"]), (True, ""))
        self.assertNotEqual(hosts["host1"]["api"], "")
        states = {d["path"]: d["state"] for d in self.ask("disk", "list", "--host", "host2")}
        self.assertEqual((states[blank], states[foreign]), ("empty", "foreign"))
        wipe = ("disk", "wipe", foreign, "--host", "host2", "--yes")
        self.assertEqual(self.ask(*wipe, "--dry-run")["host"], "host2")
        self.assertEqual(self.ask(*wipe)["host"], "host2")
        with open(foreign, "rb") as f:
            self.assertEqual(f.read(520), bytes(520), "it was to be wiped")
        made = self.ask("group", "create", blank, "--host", "host2")
        self.assertEqual((made["host"], made["disks"]), ("host2", [blank]))
        groups = {g["id"]: g for g in self.of_host_2("group", "list")}
        self.assertEqual((len(groups), groups[made["id"]]["state"]), (2, "healthy"))
        states = {d["path"]: d["state"] for d in self.of_host_2("disk", "list")}
        self.assertEqual((states[blank], states[foreign]), ("in-use", "empty"))
        with Client(self.cluster.nbd(2), "everywhere") as client:
            for at in range(16):
                client.write(at * MIB, b"x" * MIB)
            [session] = self.of_host_2("session", "list")
            self.assertEqual((session["volume"], session["writes"]), ("everywhere", 16))
            self.assertEqual(self.ask("volume", "show", "everywhere")["sessions"], 1)
        self.scrub(next(group for group in groups if group != made["id"]))
        profiles = json.loads(self.cluster.page("/api/v1/profiles")[1])
        [profile] = [p for p in profiles["items"] if p["host"] == "host2"]
        self.assertTrue(profile["stages"], profile)
        self.ask("status")

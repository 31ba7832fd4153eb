"""Answers that are true: who is missing is named, what is unknown is not 0, and what is full is said."""

import json
import os
import time

from harness import ATOLL, ClusterTest, row, run
from nbd import Client, NbdError

ANSWERS_S = 5.0
NOT_FOUND, UNPLACEABLE = 3, 6
MIB = 1 << 20


class Answers(ClusterTest):
    disk_size, volume = "1GiB", None

    @row("issue 13, R87: a host that does not answer is named by every answer, within five seconds")
    def test_missing(self):
        self.cluster.create_volume("v", 64 * MIB)
        self.cluster.pause(3)
        for words in (
            ["status"],
            ["top", "--count", "1"],
            ["top", "hosts"],
            ["volume", "list"],
            ["volume", "show", "v"],
            ["host", "list"],
            ["host", "show", "host1"],
            ["disk", "list"],
            ["group", "list"],
            ["resync", "show"],
            ["scrub", "show"],
            ["scrub", "start"],
            ["scrub", "stop"],
            ["session", "list"],
            ["task", "list"],
            ["events"],
        ):
            began = time.monotonic()
            table = self.cluster.cli(*words)
            took = time.monotonic() - began
            self.assertLess(took, ANSWERS_S, words)
            self.assertIn("warning: host host3", table.stderr, words)
            done = self.cluster.cli(*words, "-o", "json")
            if words != ["scrub", "stop"]:
                missing = json.loads(done.stdout)["missing"]
                self.assertEqual([m["host"] for m in missing], ["host3"], words)
        groups = {g["host"]: g for g in self.cluster.get("group", "list")}
        self.assertEqual((groups["host3"]["state"], groups["host3"]["space"]), ("unknown", None))
        self.assertEqual(groups["host1"]["state"], "healthy")
        hosts = {h["name"]: h for h in self.cluster.get("host", "list")}
        self.assertEqual((hosts["host3"]["up"], hosts["host3"]["space"]), (False, None))
        self.assertNotEqual(self.cluster.cli("status", "--check", check=False).returncode, 0)
        self.cluster.resume(3)
        self.cluster.wait_healthy()
        deadline = time.monotonic() + 10
        while "warning" in self.cluster.cli("group", "list").stderr:
            self.assertLess(time.monotonic(), deadline, "it answers again")
            time.sleep(0.2)

    @row("a name that there is not, and a variable without effect, are said")
    def test_mistakes(self):
        self.refused("session", "list", "--volume", "nope", status=NOT_FOUND, says="nope")
        done = run(
            [ATOLL, "dev", "--dir", os.path.join(self.directory, "other")],
            env={**os.environ, "ATOLL_NETWORK_API": "127.0.0.1:1"},
            check=False,
        )
        self.assert_refusal(done, says=["ATOLL_NETWORK_API", "unset it"])
        with Client(self.cluster.nbd(1), None) as client:
            with self.assertRaisesRegex(NbdError, "there is no export named 'nope'"):
                client.go("nope")

    @row("issue 12: one full disk group and ENOSPC given to a client are no good health")
    def test_no_space(self):
        self.make_policy("one", 0)
        group = next(g for g in self.cluster.get("group", "list") if g["host"] == "host1")
        most = group["space"]["free_bytes"] // MIB * 9 // 10
        for name in ("first", "second"):
            self.cluster.cli("volume", "create", name, f"{most}MiB", "--policy", "one")
        self.cluster.cli("volume", "create", "small", "8MiB", "--policy", "one")
        # The same question: whether it is made so large, or becomes so.
        for words in (
            ["volume", "create", "huge", "200GiB", "--policy", "one"],
            ["volume", "resize", "small", "200GiB"],
            ["volume", "resize", "small", "200GiB", "--dry-run"],
            ["policy", "check", "one", "--size", "200GiB"],
        ):
            done = self.cluster.cli(*words, check=False)
            self.assertEqual(done.returncode, UNPLACEABLE, f"{words} {done.stdout}{done.stderr}")
        self.cluster.cli("volume", "resize", "small", "16MiB")
        check = self.cluster.cli("status", "--check")
        self.assertEqual(check.returncode, 0, check.stdout)
        block = bytes(range(256)) * 4096
        with Client(self.cluster.nbd(1), "first") as first, Client(
            self.cluster.nbd(1), "second"
        ) as second:
            for at in range(most):
                first.write(at * MIB, block)
            with self.assertRaises(NbdError):
                for at in range(most):
                    second.write(at * MIB, block)
            full = at
            check = self.cluster.cli("status", "--check", check=False)
            self.assertEqual(check.returncode, 2, check.stdout)
            self.assertRegex(check.stdout, "no-space: writes of volume second are refused")
            self.assertRegex(check.stdout, r"group-nearly-full: \d+ % of disk group \S+ \(/")
            self.assertNotIn(" nearly-full", check.stdout, "two groups are empty")
            self.assert_event("no-space second .* on host1 is full")
            self.assertEqual(self.cluster.metric("atoll_no_space_volumes"), 1)
            status = json.loads(self.cluster.cli("status", "-o", "json").stdout)["item"]
            self.assertGreater(status["promised_bytes"], 2 * most * MIB)
            volume = json.loads(self.cluster.cli("volume", "show", "first", "-o", "json").stdout)
            used = volume["item"]["used_bytes"], volume["item"]["guest_bytes"]
            self.assertEqual(used, (most * MIB, most * MIB), "one copy")
            first.trim(0, most * MIB)
            deadline = time.monotonic() + 30
            while True:
                try:
                    second.write(full * MIB, block)
                    break
                except NbdError:
                    self.assertLess(time.monotonic(), deadline, "there is room again")
                    time.sleep(0.5)
            self.assert_event("space-again second")
            check = self.cluster.cli("status", "--check", check=False)
            self.assertNotIn("no-space", check.stdout)
        with open(self.cluster.log(1), encoding="utf-8", errors="replace") as log:
            self.assertIn("is full; free some", log.read(), "an event is in its host's log")

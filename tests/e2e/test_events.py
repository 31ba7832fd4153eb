"""Events outlive the process that saw them, and are followed over its restarts by a cursor."""

import json
import os
import unittest

from harness import ClusterTest, row, wait_until
from nbd import Client


class EventsLast(ClusterTest):
    def page(self, *words, host=1):
        done = self.cluster.cli("events", *words, "-o", "json", host=host)
        return json.loads(done.stdout)

    def whole_page(self, *words, host=1):
        """One that every host has answered: a host that has just started does not reach all yet."""

        def whole():
            page = self.page(*words, host=host)
            return None if page.get("missing") else page

        return wait_until(f"a page of all hosts from host{host}", whole, 20, 0.2)

    def own(self, events, host):
        return [e for e in events if e["host"] == f"host{host}"]

    def starts(self, host):
        """How often a host is known to have started."""
        own = self.own(self.page(host=host)["items"], host)
        return sum(e["kind"] == "host-started" for e in own)

    @row("events: kill -9 of all hosts; what was told is told again, and the cursor goes on")
    def test_kill_and_restart(self):
        self.assert_event("took-over")
        before = self.whole_page()
        own = self.own(before["items"], 1)
        self.assertIn("host-started", [e["kind"] for e in own])
        took = [e for e in before["items"] if e["kind"] == "took-over"]
        self.assertTrue(took and took[0]["numbers"]["epoch"] > 0 and took[0]["object"], took)
        # Nothing is new yet but what has happened since.
        again = self.page("--cursor", before["position"])
        self.assertNotIn(own[-1], again["items"])
        self.cluster.kill_at_once((1, 2, 3))
        for host in (1, 2, 3):
            self.cluster.start(host)
        wait_until("new lives", lambda: all(self.starts(h) == 2 for h in (1, 2, 3)), 20, 0.2)
        # All is there, from any host, with its numbers.
        after = self.whole_page(host=2)
        for host in (1, 2, 3):
            told = self.own(before["items"], host)
            now = self.own(after["items"], host)
            self.assertEqual(now[: len(told)], told)
            self.assertEqual([e["number"] for e in now], list(range(1, len(now) + 1)))
        # The position of before goes on with the next of each host.
        new = self.whole_page("--cursor", before["position"], host=3)
        for host in (1, 2, 3):
            count = len(self.own(before["items"], host))
            numbers = [e["number"] for e in self.own(new["items"], host)]
            self.assertEqual(numbers, list(range(count + 1, count + 1 + len(numbers))))
            self.assertIn("host-started", [e["kind"] for e in self.own(new["items"], host)])
        self.refused("events", "--cursor", "rubbish", status=2, says=("position",))

    @row("events: a damaged file is cut with a sentence; what is lost shows in its place")
    def test_damage(self):
        self.cluster.kill(2)
        directory = os.path.join(self.data(2), "events")
        (name,) = os.listdir(directory)
        path = os.path.join(directory, name)
        with open(path, "rb") as file:
            lines = file.read().splitlines(keepends=True)
        self.assertGreater(len(lines), 1)
        spoilt = bytes([lines[0][0] ^ 1]) + lines[0][1:]
        with open(path, "wb") as file:
            file.write(spoilt + b"".join(lines[1:]) + b"deadbeef {\"torn")
        self.cluster.start(2)
        self.assert_event("events-damaged.*2 damaged or torn lines", 2)
        own = self.own(self.page(host=2)["items"], 2)
        self.assertEqual(own[0]["number"], 2)

    @row("events: a file system that takes none harms nothing; it is told, and counted")
    def test_not_kept(self):
        self.cluster.kill(3)
        directory = os.path.join(self.data(3), "events")
        for name in os.listdir(directory):
            os.remove(os.path.join(directory, name))
        os.rmdir(directory)
        with open(directory, "w") as file:
            file.write("in the way")
        self.cluster.start(3)
        self.assert_event("events-not-kept", 3, timeout_s=20)
        self.assertGreater(self.cluster.metric("atoll_events_dropped_total", 3), 0)
        self.cluster.wait_healthy(host=1)
        os.remove(directory)
        self.cluster.cli("volume", "create", "other", "16MiB", "--policy", self.policy, host=3)
        with Client(self.cluster.nbd(3), "other") as client:
            client.read(0, 4096)  # it becomes its owner: an event
        self.assert_event("events-kept-again", 3, timeout_s=20)

    def data(self, host):
        """The data directory of a host."""
        all = (at for at, _, names in os.walk(self.cluster.host_dir(host)) if "host-id" in names)
        return next(all)


if __name__ == "__main__":
    unittest.main()

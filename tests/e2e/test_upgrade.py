"""A cluster whose hosts are restarted, one by one, with another release: the previous commit's, and
the present one. Clients work meanwhile and notice nothing but a pause.

Both are found by what they say: two commits mostly know the same feature levels, and then nothing
can be committed. All that does not depend on it is proven either way.
"""

import json
import os
import random
import re
import signal
import time

from harness import ATOLL, ClusterTest, Stack, free_ports, row, run, wait_until
from load import Load
from machines import Machines
from nbd import Client
from previous import NoHistory, present
from process import end

HOSTS = (1, 2, 3)
MIB = 1 << 20
STALL_S = 10.0  # as long as a takeover may take; hosts that end in order hand over much faster
REGION = 256 * MIB  # minutes of writes, so that fio ends when it is told to and not before
# A release from before there were levels knows them as a field that it does not know.
REFUSES = re.compile(r"unknown field `level`|the cluster is at feature level \d+, and this release")


class Releases(Machines):
    """Machines each of which has a release of its own installed. Commands run where they are
    typed, with that machine's release, as on real ones."""

    def __init__(self, *args, release, **more):
        super().__init__(*args, **more)
        self.installed = dict.fromkeys(HOSTS, release)

    def on(self, host, argv):
        return super().on(host, [self.installed[host] if x == ATOLL else x for x in argv])

    def cli(self, *words, host=1, timeout_s=60.0, check=True):
        argv = [self.installed[host], "--endpoint", self.api(host), *words]
        return run(argv, timeout_s=timeout_s, check=check)

    def shut_down(self, host):
        """Ends in order what the machine's units run. Returns the daemon's exit status."""
        status = end(self.processes.pop(host), 20)
        end(self.members.pop(host), 20)
        return status


class Fio:
    """fio, through one host: it writes the blocks of a region at random, each once, and reads again
    what it has written. It says which writes were acknowledged, for other hosts to verify."""

    def __init__(self, test, name, host, offset):
        self.cluster, self.volume, self.host = test.cluster, test.volume, host
        self.directory = os.path.join(test.directory, name)
        os.mkdir(self.directory)
        self.words = ["fio", f"--name={name}", "--ioengine=nbd", "--thread=1", "--rw=randwrite"]
        self.words += ["--bs=4k", "--iodepth=4", f"--offset={offset}", f"--size={REGION}"]
        self.words += ["--verify=crc32c", "--verify_fatal=1", "--output-format=json"]
        self.words.append(f"--randseed={random.SystemRandom().randrange(1 << 30)}")
        argv = [*self.through(host), f"--output={self.path('json')}", "--status-interval=1"]
        argv += ["--rate_iops=150", "--verify_backlog=64"]
        self.process = test.stack.spawn(argv, log=self.path("log"), cwd=self.directory)

    def path(self, name):
        return os.path.join(self.directory, name)

    def through(self, host):
        return [*self.words, f"--uri={self.cluster.uri(host, self.volume)}"]

    @staticmethod
    def last_report(text):
        """The job's part of the last whole report: fio appends one a second."""
        for at in reversed([found.start() for found in re.finditer(r"^\{", text, re.M)]):
            try:
                return json.JSONDecoder().raw_decode(text, at)[0]["jobs"][0]
            except ValueError:
                continue  # not written to its end yet
        return None

    def report(self):
        with open(self.path("json"), encoding="utf-8", errors="replace") as f:
            return self.last_report(f.read())

    def said(self):
        text = ""
        for name in ("json", "log"):
            with open(self.path(name), encoding="utf-8", errors="replace") as f:
                text += "".join(line for line in f if "fio:" in line or "verify" in line.lower())
        return text[:2000]

    def written(self):
        assert self.process.poll() is None, f"fio ended by itself: {self.said()}"
        report = os.path.exists(self.path("json")) and self.report()
        return report["write"]["total_ios"] if report else 0

    def wait_progress(self, count=100, timeout_s=STALL_S + 20):
        goal = self.written() + count
        what = f"fio to write through host {self.host}"
        wait_until(what, lambda: self.written() > goal, timeout_s, 0.2)

    def stop(self):
        """It ends now; every write that it had begun is answered before."""
        self.written()
        self.process.send_signal(signal.SIGINT)
        status = self.process.wait(60)
        job = self.report()
        assert status in (0, 128) and not job["error"], f"fio ended with {status}: {self.said()}"
        longest = max(job[way]["lat_ns"]["max"] for way in ("read", "write")) / 1e9
        assert longest < STALL_S, f"fio waited {longest:.1f} s for an answer"
        self.acknowledged = job["write"]["total_ios"]
        assert job["read"]["total_ios"], "fio has verified nothing meanwhile"
        print(f"    fio: {self.acknowledged} writes, longest {longest:.2f} s", flush=True)

    def verify(self, host):
        """Everything that was acknowledged is there, as another host sees it."""
        words = ["--verify_only=1", "--verify_state_load=1", "--verify_state_save=0"]
        done = run([*self.through(host), *words], 120, check=False, cwd=self.directory)
        assert done.returncode == 0, f"through host {host}: {done.stdout[:1000]}{done.stderr}"
        job = self.last_report(done.stdout)
        read = job["read"]["total_ios"]
        assert read == self.acknowledged, f"{read} of {self.acknowledged} writes were verified"


class Upgrade(ClusterTest):
    first = True
    size = "640MiB"

    def setUp(self):
        try:
            self.old, self.new = present(), os.path.abspath(ATOLL)
        except NoHistory as why:
            self.skipTest(f"there is no previous release: {why}")
        self.stack = Stack()
        self.addCleanup(self.stack.close)
        self.directory = self.stack.directory("atoll-e2e-")
        self.addCleanup(self.keep_logs)  # before the stack removes them
        self.cluster = Releases(
            self.stack, self.directory, base_port=free_ports(), release=self.old
        )
        self.cluster.begin()
        self.make_policy(self.policy, 1)
        self.cluster.wait_members(3, 0, healthy=HOSTS)
        self.cluster.cli("volume", "create", self.volume, self.size, "--policy", self.policy)
        with Client(self.cluster.nbd(1), self.volume) as client:
            client.read(0, 4096)  # the first use makes this host its owner

    def died(self):
        return self.cluster.died()

    # What the cluster says of its releases.

    def upgrade(self, host):
        told = self.cluster.get("cluster", "upgrade", host=host)
        self.assertEqual(sorted(h["name"] for h in told["hosts"]), [f"host{h}" for h in HOSTS])
        known = min(h["newest"] for h in told["hosts"])
        self.assertEqual(told["next"], max(told["level"], known))
        return told

    def assert_held_back(self, asked, by, down=()):
        """An upgraded host names the hosts that run the previous release, and commits nothing; if
        the releases know the same levels, none of them is in the way."""
        told = self.upgrade(asked)
        hosts = {int(h["name"].removeprefix("host")): h for h in told["hosts"]}
        for host in HOSTS:
            self.assertEqual(hosts[host]["up"], host not in down, hosts[host])
        mine = hosts[asked]["newest"]
        behind = [host for host in HOSTS if hosts[host]["newest"] < mine]
        self.assertEqual(len(told["obstacles"]), len(behind), told)
        if not behind:
            self.assertEqual(told["next"], told["level"], "the founder knew the newest level")
            return
        self.assertEqual(behind, sorted(by), told)
        for host in behind:
            named = [text for text in told["obstacles"] if re.search(rf"\bhost{host}\b", text)]
            self.assertEqual(len(named), 1, told)
        if told["next"] == told["level"]:
            said = [rf"\bhost{host}\b" for host in behind[:1]]
            self.refused("cluster", "upgrade", "--commit", "--yes", host=asked, says=said)
            self.assertEqual(self.upgrade(asked), told)

    def commit(self, asked, down):
        """Raises the level, if there is a higher one; whether it did. A host that is down was
        restarted before, and what its release knows has stayed in the directory."""
        before = self.upgrade(asked)
        self.assertEqual(before["obstacles"], [], before)
        shown = {h["name"]: h["up"] for h in before["hosts"]}
        self.assertFalse(shown[f"host{down}"])
        words = ("cluster", "upgrade", "--commit")
        self.cluster.cli(*words, "--dry-run", host=asked)
        self.assertEqual(self.upgrade(asked), before)
        self.cluster.cli(*words, "--yes", host=asked)
        after = self.upgrade(asked)
        self.assertEqual((after["level"], after["next"]), (before["next"], before["next"]))
        again = self.cluster.cli(*words, "--yes", host=asked)
        self.assertIn(str(after["level"]), again.stdout)
        self.assertEqual(self.upgrade(asked), after)
        what = f"level {before['level']} to {after['level']}" if after != before else "no new level"
        print(f"    committed: {what}", flush=True)
        return after["level"] > before["level"]

    # Restarts under load.

    def sees(self, asked):
        """The hosts that one believes to be up."""
        hosts = self.cluster.get("host", "list", host=asked)
        return {int(host["name"].removeprefix("host")) for host in hosts if host["up"]}

    def wait_missed(self, host, asked):
        wait_until(f"host {host} to be missed", lambda: host not in self.sees(asked), 20, 0.2)

    def wait_whole(self, host):
        """A host takes part again, and the next may go: no copy is behind, no vote is missing."""
        cluster = self.cluster
        for asked in HOSTS:
            seen = lambda at=asked: self.sees(at) == set(HOSTS)  # noqa: E731
            wait_until(f"host {asked} to see all", seen, 30, 0.2)
        cluster.wait_members(3, 0, at=host, healthy=HOSTS)
        cluster.wait_healthy(60, host=host)
        left = lambda: cluster.get("resync", "show", host=host)["items"]  # noqa: E731
        wait_until("nothing to be left behind", lambda: not left(), 30, 0.2)

    def restart(self, host, release, load, fio, meanwhile=None):
        """A host ends in order and comes back with that release; clients of others go on."""
        begun = time.monotonic()
        self.assertEqual(self.cluster.shut_down(host), 0, "it did not end in order")
        load.wait_progress(timeout_s=STALL_S + 20)
        fio.wait_progress()
        if meanwhile:
            meanwhile()
        self.cluster.installed[host] = release
        self.cluster.start(host)
        self.wait_whole(host)
        fio.wait_progress()
        which = "present" if release == self.new else "previous"
        longest = load.longest(begun)
        print(f"    host{host} runs the {which} release: longest wait {longest:.2f} s", flush=True)

    def assert_refuses(self, host):
        """The previous release does not serve a cluster of a level that it does not know."""
        cluster = self.cluster
        cluster.installed[host] = self.old
        path = cluster.log(host)
        begun = os.path.getsize(path)
        cluster.start(host, serving=False)

        def says():
            with open(path, encoding="utf-8", errors="replace") as f:
                f.seek(begun)
                return REFUSES.search(f.read())

        wait_until("the previous release to refuse", says, 30, 0.2)
        time.sleep(3.0)  # it may try again; it must not get further
        process = cluster.processes[host]
        if process.poll() is None:
            self.assertNotEqual(cluster.cli("status", host=host, check=False).returncode, 0)
        else:
            self.assertNotEqual(process.returncode, 0)
        cluster.shut_down(host)

    @row("each host is restarted with the next release, back, and forth: clients notice a pause")
    def test_rolling_upgrade_and_back(self):
        owner, other, rest = self.roles()
        with Load(self.cluster, self.volume, clients=3) as load:
            load.wait_progress()
            begun = time.monotonic()
            # Through the host that comes last: its clients see the others go and come.
            fio = Fio(self, "before", rest, offset=MIB)
            fio.wait_progress()
            self.assertEqual(self.owner(rest), owner)
            self.restart(owner, self.new, load, fio)
            self.assertNotEqual(self.owner(rest), owner, "it was handed over")
            self.assert_held_back(owner, by=[other, rest])
            self.restart(owner, self.old, load, fio)
            self.restart(owner, self.new, load, fio)
            self.restart(other, self.new, load, fio)
            fio.stop()
            later = Fio(self, "after", owner, offset=MIB + REGION)
            later.wait_progress()

            def meanwhile():
                self.wait_missed(rest, asked=owner)
                self.assert_held_back(owner, by=[rest], down=[rest])

            self.restart(rest, self.new, load, later, meanwhile)
            fio.verify(owner)
            self.assertEqual(self.upgrade(rest)["obstacles"], [])
            self.cluster.shut_down(other)
            self.wait_missed(other, asked=owner)
            if self.commit(owner, down=other):
                self.assert_refuses(other)
            self.cluster.installed[other] = self.new
            self.cluster.start(other)
            self.wait_whole(other)
            later.stop()
            load.wait_progress()
            self.assertLess(load.longest(begun), STALL_S)
            load.finish()
        for host in self.others(fio.host):
            fio.verify(host)
        for host in self.others(later.host):
            later.verify(host)
        self.assert_safe_again()


if __name__ == "__main__":
    import unittest

    unittest.main()

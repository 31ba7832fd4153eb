"""The story that scripts/demo tells, and the checks that make it a proof.

Every check has a name; the first that does not hold ends the demo with exit status 1 and that name.
What the guest must find again is recorded outside the guest: it says "durable" over a serial port
only after its fsync has returned.
"""

import argparse
import hashlib
import os
import shlex
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

import guest as guests
import image as images
from cluster import ATOLL, Cluster
from machines import OUT, Machines, Network
from process import CommandFailed, Interrupted, Stack, raise_on_signals, run, wait_until
from screen import Failed, Screen, bytes_text, count_text, duration_text

VOLUME, POLICY, VOLUME_SIZE = "guest", "mirror", f"{images.DISK_MIB}MiB"
BEFORE_S, MEMBER_DOWN_S, BETWEEN_S, AFTER_S = 10, 12, 6, 10
MEMBER_STALL_S = 2.0  # a host with a copy dies: the promise
CABLE_S, CABLE_STALL_S = 12, 5.0  # a host is cut off: taken over in under 5 s at worst
POWER_STALL_S = 55.0  # QEMU gives up after 60 s
SERVER_STALL_S = 15.0  # the serving daemon dies: QEMU retries after 1, 2, 4, 8 s, whatever we do


class Demo:
    title = "Atoll: three hosts, one mirrored volume, a real guest on it"

    def __init__(self, options, stack):
        self.options, self.stack, self.screen = options, stack, Screen()
        self.marks = []  # (time, what happened then), for the timeline
        if options.dir:
            os.makedirs(options.dir, exist_ok=True)
            self.directory = os.path.realpath(options.dir)
            if os.listdir(self.directory):
                raise Failed(
                    "directory", f"{self.directory} is not empty", "give --dir an empty one"
                )
        else:
            self.directory = stack.directory("atoll-demo-", keep=options.keep)
        self.seed = options.seed if options.seed is not None else int(time.time())

    def check(self, name, holds, seen, hint=None):
        if not holds:
            raise Failed(name, seen, hint)

    def run(self):
        s = self.screen
        s.line(self.title)
        s.line()
        self.prepare()
        self.cluster_up()
        self.boot()
        self.lose_a_copy()
        self.more_faults()
        self.lose_the_server()
        self.shut_down()
        self.verify()
        self.scrub()
        self.summary()

    # The scenes.

    def prepare(self):
        s = self.screen
        image, made = images.image(lambda text: s.live("image", text))
        self.image = image
        s.step(
            "image",
            f"Debian 12 guest, {images.DISK_MIB} MiB, "
            + ("made by mmdebstrap" if made else "from the cache"),
        )
        self.accel = guests.accelerator(image)
        s.step(
            "probe",
            "KVM works here" if self.accel == "kvm" else "no working KVM: QEMU emulates (TCG)",
        )

    def start_cluster(self):
        self.cluster = Cluster(self.stack, self.directory, keep=self.options.keep)
        self.cluster.begin()
        self.screen.step("hosts", f"3 running, below {self.directory}")

    def more_faults(self):
        """What else goes wrong before the serving daemon is killed."""

    def cluster_up(self):
        s = self.screen
        self.start_cluster()
        policies = {policy["name"] for policy in self.cluster.get("policy", "list")}
        if POLICY not in policies:
            self.cluster.cli("policy", "create", POLICY, "--failures-to-tolerate", "1")
        self.cluster.cli("volume", "create", VOLUME, VOLUME_SIZE, "--policy", POLICY)
        placement = self.cluster.placement(VOLUME)
        holders = sorted({member["host"] for member in placement["members"]})
        self.check("two copies", len(holders) == 2, f"copies on {holders}")
        s.step(
            "volume", f"{VOLUME}, {VOLUME_SIZE}, policy {POLICY}: copies on {' and '.join(holders)}"
        )
        started = time.monotonic()
        importing = self.stack.spawn(
            [
                ATOLL,
                "--endpoint",
                f"unix:{self.cluster.api(1)}",
                "volume",
                "import",
                VOLUME,
                self.image.disk,
            ],
            **({} if s.terminal else {"log": os.path.join(self.directory, "import.log")}),
        )
        status = importing.wait(180)
        self.check("import", status == 0, f"exit status {status}")
        s.step(
            "import",
            f"the guest's disk is on the volume ({duration_text(time.monotonic() - started)})",
        )
        # The guest's daemon is on a host with a copy; the victim is the other host with one.
        self.server = int(holders[0].removeprefix("host"))
        self.victim = int(holders[1].removeprefix("host"))

    def boot(self):
        s = self.screen
        started = time.monotonic()
        self.guest = guests.Guest(
            self.stack, self.directory, self.cluster.nbd(self.server), VOLUME, self.accel
        )
        kernel_s = self.guest.boot()
        s.step(
            "boot",
            f"from the volume through host{self.server} in {duration_text(time.monotonic() - started)} "
            f"(the kernel's share {kernel_s:.1f} s)",
        )
        self.guest.start(self.seed)
        self.wait_writing("the first writes", 30)
        since = time.monotonic()
        self.watch("guest", BEFORE_S)
        self.before, self.before_stall = self.guest.window(since)
        s.step(
            "guest",
            f"writing: {self.rate(self.before)}, longest stall {duration_text(self.before_stall)}",
        )

    def lose_a_copy(self):
        s, c = self.screen, self.cluster
        pid = c.kill(self.victim)
        killed = self.mark(f"kill -9 host{self.victim}: a copy is gone")
        s.step("kill -9", f"host{self.victim} (pid {pid}), which holds a copy")
        total = self.guest.total()
        self.watch("guest", MEMBER_DOWN_S)
        self.during, self.during_stall = self.guest.window(killed)
        self.check(
            "the guest goes on without a copy",
            self.guest.total() > total,
            "no write became durable",
        )
        self.check(
            f"a lost copy stalls the guest under {MEMBER_STALL_S:g} s",
            self.during_stall < MEMBER_STALL_S,
            f"the longest stall was {self.during_stall:.2f} s",
        )
        states = {m["host"]: m["state"] for m in c.placement(VOLUME, host=self.server)["members"]}
        self.check(
            "the lost copy is recorded",
            states[f"host{self.victim}"] == "absent",
            f"members are {states}",
        )
        s.step(
            "guest",
            f"goes on with one copy: {self.rate(self.during)}, "
            f"longest stall {duration_text(self.during_stall)}",
        )
        started = time.monotonic()
        c.start(self.victim)
        self.mark(f"host{self.victim} is back and catches up")
        s.step("start", f"host{self.victim} is back; its copy has to catch up")
        self.resynced = 0
        self.resync(60)
        s.step(
            "resync",
            f"in sync again after {duration_text(time.monotonic() - started)}: "
            f"{bytes_text(self.resynced)} copied, while the guest wrote",
        )
        self.watch("guest", BETWEEN_S)

    def lose_the_server(self):
        s, c = self.screen, self.cluster
        pid = c.kill(self.server)
        killed = self.mark(f"kill -9 host{self.server}: it served the guest; started again at once")
        total = self.guest.total()
        s.step("kill -9", f"host{self.server} (pid {pid}), the daemon that serves the guest")
        c.start(self.server, serving=False)
        s.step("start", f"host{self.server}, as a service manager would")
        self.wait_writing("the guest to be picked up again", SERVER_STALL_S + 30, above=total)
        picked_up = time.monotonic() - killed
        s.step("guest", f"picked up again {duration_text(picked_up)} after the kill, by itself")
        self.check(
            f"a killed server stalls the guest under {SERVER_STALL_S:g} s",
            picked_up < SERVER_STALL_S,
            f"it took {picked_up:.1f} s",
        )
        self.resync(60)
        since = time.monotonic()
        self.watch("guest", AFTER_S)
        self.after, self.after_stall = self.guest.window(since)
        self.longest = self.guest.window(killed)[1]
        s.step(
            "guest",
            f"writing: {self.rate(self.after)}, longest stall {duration_text(self.after_stall)}",
        )

    def shut_down(self):
        self.guest.stop()
        errors = self.guest.errors()
        self.check("no I/O error in the guest", not errors, "; ".join(errors[:3]))
        self.guest.off()
        self.screen.step(
            "shutdown",
            f"clean; the guest was told that {count_text(self.guest.total())} writes are safe",
        )

    def verify(self):
        s = self.screen
        raw = os.path.join(self.directory, "exported.raw")
        digests = {}
        for host in (self.server, self.victim):
            s.live("export", f"through host{host}")
            (
                self.cluster.cli(
                    "volume", "export", VOLUME, raw, "--force", host=host, timeout_s=180
                )
                if os.path.exists(raw)
                else self.cluster.cli("volume", "export", VOLUME, raw, host=host, timeout_s=180)
            )
            with open(raw, "rb") as f:
                digests[host] = hashlib.file_digest(f, "sha256").hexdigest()
        self.check("both hosts give the same bytes", len(set(digests.values())) == 1, str(digests))
        s.step("export", f"the same {VOLUME_SIZE} through host{self.server} and host{self.victim}")
        try:
            verdict = guests.check_file_system(raw)
        except AssertionError as error:
            raise Failed("the guest's file system is clean", str(error)) from None
        s.step("e2fsck", f"clean: {verdict.split(': ', 1)[-1]}")
        try:
            self.writes, self.places = guests.check_records(
                self.image, raw, self.seed, self.guest.numbers(), self.directory
            )
        except AssertionError as error:
            raise Failed("every recorded write is there", str(error)) from None
        s.step(
            "records",
            f"all {count_text(self.writes)} recorded writes hold "
            f"({count_text(self.places)} places compared byte by byte)",
        )
        os.unlink(raw)

    def scrub(self):
        s, c = self.screen, self.cluster
        c.cli("scrub", "start")

        def finished():
            scrubs = c.get("scrub", "show")
            done, total = (
                sum(x[key] for x in scrubs) for key in ("blocks_checked", "blocks_total")
            )
            s.live("scrub", f"{count_text(done)} of {count_text(total)} blocks")
            return scrubs if scrubs and not any(x["running"] for x in scrubs) else None

        scrubs = wait_until("scrub", finished, 90, 0.3)
        self.blocks = sum(x["blocks_checked"] for x in scrubs)
        self.bad = sum(x["blocks_bad"] for x in scrubs) + c.get("status")["checksum_errors"]
        self.check("checksum errors 0", self.bad == 0, f"{self.bad} blocks")
        s.step("scrub", f"{count_text(self.blocks)} blocks read and verified on 3 hosts, 0 bad")

    def summary(self):
        s = self.screen
        if self.longest >= self.during_stall:
            why = "the serving daemon was killed; QEMU's own retry steps included"
        else:
            why = "a copy was lost"
        longest = f"{duration_text(max(self.longest, self.during_stall))} ({why})"
        s.line()
        s.line("Summary: nothing was lost")
        s.table(
            [
                (
                    "guest writes before",
                    f"{self.rate(self.before)}, longest stall {duration_text(self.before_stall)}",
                ),
                (
                    "one copy lost",
                    f"{self.rate(self.during)}, longest stall {duration_text(self.during_stall)}",
                ),
                (
                    "after both kills",
                    f"{self.rate(self.after)}, longest stall {duration_text(self.after_stall)}",
                ),
                ("longest stall", longest),
                ("bytes resynced", bytes_text(self.resynced)),
                ("recorded writes", f"{count_text(self.writes)}, lost 0, wrong 0"),
                ("file system", "clean"),
                ("scrub", f"{count_text(self.blocks)} blocks"),
                ("checksum errors", str(self.bad)),
                ("time", s.clock()),
            ]
        )
        s.line()
        self.timeline()
        if self.options.keep:
            endpoint, directory = map(shlex.quote, (self.cluster.api(1), self.directory))
            s.line()
            s.line("The cluster still runs. To look at it:")
            for words in (
                f"--endpoint {endpoint} status",
                f"--endpoint {endpoint} volume placement {VOLUME}",
                f"--endpoint {endpoint} events",
                f"dev status --dir {directory}",
            ):
                s.line(f"  {shlex.quote(ATOLL)} {words}")
            s.line("To end it and remove its disks:")
            s.line(f"  {shlex.quote(ATOLL)} dev stop --dir {directory} && rm -r {directory}")
        s.line()
        s.line("ok: every check held")

    def timeline(self):
        """The guest's rate, one column a second, with what happened below it."""
        samples = self.guest.samples
        start, top = samples[0][0], max(writes for _, writes, _ in samples)
        levels = " .:-=+*#"
        for first in range(0, len(samples), 60):
            row = samples[first : first + 60]
            bar = "".join(levels[min(7, (7 * w + top - 1) // max(top, 1))] for _, w, _ in row)
            self.screen.line(f"  {'writes/s' if not first else '':<10}|{bar}|")
        self.screen.line(f"  {'':<10}one column a second, # is {count_text(top)}; seconds:")
        for at, what in self.marks:
            self.screen.line(f"  {at - start:>8.0f}  {what}")

    # What the scenes share.

    def mark(self, what):
        """Remembers a moment for the timeline, and returns it."""
        now = time.monotonic()
        self.marks.append((now, what))
        return now

    @staticmethod
    def rate(writes):
        return f"{count_text(writes)} durable writes/s"

    def watch(self, name, seconds):
        """Lets the guest write for a while, showing its rate; any error of the guest ends the demo."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(0.5, left))
            errors = self.guest.errors()
            self.check("no I/O error in the guest", not errors, "; ".join(errors[:3]))
            self.check("the guest runs", self.guest.process.poll() is None, self.guest.tail())
            now, stall = self.guest.window(time.monotonic() - 1.5)
            self.screen.live(
                name,
                f"{self.rate(now)}, longest stall {duration_text(stall)}, "
                f"{count_text(self.guest.total())} writes safe",
            )

    def wait_writing(self, what, timeout_s, above=0):
        started = time.monotonic()
        while self.guest.total() <= above:
            self.check("the guest runs", self.guest.process.poll() is None, self.guest.tail())
            waited = time.monotonic() - started
            self.check(what, waited < timeout_s, f"nothing after {waited:.0f} s")
            self.screen.live("guest", f"waiting {duration_text(waited)}")
            time.sleep(0.05)

    def resync(self, timeout_s):
        """Shows what is left until every copy is in sync."""
        done = {}

        def show(state):
            for item in state["items"]:
                done[item["component"]] = max(done.get(item["component"], 0), item["bytes_done"])
            left = state.get("seconds_left")
            if state["items"]:
                self.screen.live(
                    "resync",
                    f"{bytes_text(state['bytes_left'])} left at "
                    f"{bytes_text(state['bytes_per_second'])}/s, estimate "
                    f"{'unknown' if left is None else duration_text(left)}; guest "
                    f"{self.rate(self.guest.window(time.monotonic() - 1.5)[0])}",
                )

        self.cluster.wait_healthy(timeout_s, host=self.victim, watch=show)
        self.resynced += sum(done.values())


class MachinesDemo(Demo):
    """The same on machines with networks of their own, set up by `cluster init` and `join`."""

    title = "Atoll: three machines, one mirrored volume, a real guest on it; etcd and TLS"

    def start_cluster(self):
        s, hosts = self.screen, 3
        if not Network.possible():
            raise Failed(
                "network namespaces", "only root may make them", "run it as root (sudo), or without --machines"
            )
        network = Network(self.stack, hosts)
        c = self.cluster = Machines(self.stack, self.directory, hosts, 8 << 30, network)
        addresses = ", ".join(network.address(host) for host in range(1, hosts + 1))
        s.step("machines", f"{hosts} network namespaces on one switch: {addresses}")
        started = time.monotonic()
        c.init()
        s.step("init", f"host1 is a cluster, with the first member of etcd ({self.since(started)})")
        for host in range(2, hosts + 1):
            started = time.monotonic()
            c.come(host)
            s.step("join", f"host{host}, by a token that is good once ({self.since(started)})")
        c.wait_members(hosts, 0, healthy=range(1, hosts + 1))
        s.step("etcd", f"{hosts} members with a vote, TLS with the certificates of the hosts")
        for host in range(1, hosts + 1):
            c.add_disk(host)

    @staticmethod
    def since(started):
        return duration_text(time.monotonic() - started)

    def more_faults(self):
        s, c, victim = self.screen, self.cluster, self.victim
        for ways, name in (((), "both ways"), ((OUT,), "only what it sends is lost")):
            total, cut = self.guest.total(), self.mark(f"the cable of host{victim} is cut: {name}")
            c.network.cut(victim, *ways)
            s.step("cut", f"the cable of host{victim}, {name}")
            self.watch("guest", CABLE_S)
            rate, stall = self.guest.window(cut)
            self.goes_on(f"a cable that is cut ({name})", total, stall, CABLE_STALL_S)
            c.network.mend(victim)
            self.mark("the cable is whole again")
            self.resync(60)
            s.step(
                "guest",
                f"went on: {self.rate(rate)}, longest stall {duration_text(stall)}; in sync again",
            )
        leader = c.leader(self.server)
        total, killed = self.guest.total(), self.mark(f"kill -9 etcd on host{leader}: it led")
        pid = c.kill_member(leader)
        s.step("kill -9", f"etcd on host{leader} (pid {pid}), which leads")
        started = time.monotonic()
        c.cli("policy", "create", "afterwards", "--failures-to-tolerate", "0", host=self.server)
        took = self.since(started)
        self.watch("guest", 4)
        _, stall = self.guest.window(killed)
        self.goes_on("the leader of etcd is lost", total, stall, MEMBER_STALL_S)
        c.start_member(leader)
        c.wait_members(3, 0, at=self.server, healthy=[leader])
        s.step("guest", f"did not notice: {duration_text(stall)} at most; a change took {took}")

        hosts = c.kill_all()
        killed = self.mark("the power of all machines is cut")
        time.sleep(0.5)  # what the guest had said before is heard
        total = self.guest.total()
        s.step("kill -9", "everything on all three machines at once, etcd too")
        for host in hosts:
            c.start(host, serving=False)
        self.wait_writing("the guest to be picked up again", POWER_STALL_S, above=total)
        self.power_s = time.monotonic() - killed
        s.step("guest", f"picked up again {duration_text(self.power_s)} after the power cut, by itself")
        c.wait_serving()
        self.resync(90)
        self.watch("guest", BETWEEN_S)

    def goes_on(self, what, total, stall, bound):
        self.check(f"{what}: the guest goes on", self.guest.total() > total, "nothing became durable")
        self.check(
            f"{what}: it stalls the guest under {bound:g} s", stall < bound, f"it was {stall:.2f} s"
        )


def main():
    parser = argparse.ArgumentParser(prog="scripts/demo")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--dir")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--machines", action="store_true")
    options = parser.parse_args()
    if options.machines and options.keep:
        parser.error("machines are not kept: leave --keep or --machines out")
    raise_on_signals()
    try:
        with Stack() as stack:
            demo = (MachinesDemo if options.machines else Demo)(options, stack)
            try:
                demo.run()
            except (Failed, CommandFailed, TimeoutError, RuntimeError) as error:
                demo.screen.line()
                demo.screen.line(
                    f"FAILED: {error.check if isinstance(error, Failed) else 'a step'}"
                )
                demo.screen.line(f"  {error.seen if isinstance(error, Failed) else error}")
                kept = keep_logs(demo.directory)
                if kept:
                    demo.screen.line(f"  logs: {kept}")
                return 1
        return 0
    except Failed as error:
        print(f"error: {error}\nhint: {error.hint}", file=sys.stderr)
        return 1
    except Interrupted as signal:
        print(f"\ninterrupted ({signal}); everything was taken down again", file=sys.stderr)
        return 130


def keep_logs(directory):
    """Copies the logs of a failed run out of a directory that is about to be removed."""
    kept = os.path.join(images.cache_directory(), "last-failed-demo")
    os.makedirs(kept, exist_ok=True)
    run(
        [
            "sh",
            "-c",
            'cd "$1" && find . -type f \\( -name "*log*" -o -name "*.toml" \\) -size -64M '
            '-exec cp --parents {} "$2" \\;',
            "sh",
            directory,
            kept,
        ],
        check=False,
    )
    return kept


if __name__ == "__main__":
    sys.exit(main())

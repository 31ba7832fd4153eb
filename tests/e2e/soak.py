"""Real processes on disks that lie: soak.py --help. `scripts/soak --processes` runs it.

Three hosts of `atoll dev` with every disk a FaultyDisk. A round has one volume, clients that record
their history, one host whose disk fails in one way, and meanwhile kills and pauses of any host and
of all. Then the faults end, and all must be well: health, checksums, the history.

What a round may contain is what two or three copies promise (docs/faults.md, "One lying disk, and
restarts"), so that whatever is wrong afterwards is a bug:

- One host's disk fails at a time. Another host's turn comes only after that disk was replaced and
  its copies were made again, because what it lost may come to light later.
- At any moment a host with a sound disk and a copy in sync is up. With two copies the sound one's
  host is therefore never killed or paused alone: what is written meanwhile would be on the lying
  disk only.
- When all hosts are killed, all are started within START_S. Where the machine was too slow for
  that, so that a sound copy was left out, and something is wrong, the round is void: said, and not
  judged.
"""

import argparse
import contextlib
import glob
import itertools
import math
import os
import random
import re
import shutil
import sys
import time
from datetime import datetime, timezone
from subprocess import SubprocessError

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

import harness  # noqa: E402 (it completes the path)
from faultydisk import KINDS, FaultyDisk  # noqa: E402
from history import NEVER, History  # noqa: E402
from load import Load  # noqa: E402
from process import CommandFailed, Stack, alive, exit_with, raise_on_signals  # noqa: E402

HOSTS = (1, 2, 3)
POLICIES = {"two": 1, "three": 2}  # copies, and the failures that they tolerate
SIZE, BLOCKS, CLIENTS = "64MiB", 96, 6
ROUND_S = (8.0, 20.0)  # of trouble
ROUNDS = 3  # at most, of one volume and one disk
START_S = 2.0  # after all were killed: from the first start to the last
SERVE_S = 5.0  # and until all serve. Left out after 6 s: START_PATIENCE in object/src/limits.rs
SETTLED_S = 3.0  # a host is taken for a sound copy this long after its start
PROGRESS_S, HEALTHY_S, LONGEST_S = 45.0, 60.0, 30.0
# One in so many requests begins a burst, drawn between the two on a logarithmic scale. An error of
# a write or a flush ends the disk group for good, so one a round is what there is.
RATES = {
    "flush-error": (20, 500),
    "hang": (5, 200),
    "write-error": (50, 2000),
    "flipped-read": (2, 50),
    "stale-read": (2, 50),
    "read-error": (3, 100),
    "lost-write": (5, 500),
    "torn-write": (5, 500),
    "misdirected-write": (5, 500),
    "rolled-back": (1, 1),
}
assert sorted(RATES) == KINDS


class Violation(Exception):
    """What the product must not do."""


class Soak:
    def __init__(self, stack, args):
        self.args, self.chance = args, random.Random(args.seed)
        self.directory = stack.directory("atoll-soak-", parent=args.dir, keep=True)
        self.keep = False
        stack.callback(lambda: self.keep or shutil.rmtree(self.directory, ignore_errors=True))
        below = stack.enter_context(Stack())  # the disks, which end after the hosts
        self.cluster = harness.Cluster(
            stack, self.directory, disk_size="1GiB", base_port=harness.free_ports()
        )
        self.disks, self.volume, self.liar = {}, None, None
        stack.callback(self.heal)  # a host whose disk hangs could not end
        self.cluster.begin()
        self.cluster.kill_at_once(HOSTS)
        for host in HOSTS:
            self.disks[host] = FaultyDisk(below, self.cluster.disks(host)[0])
        self.started = dict.fromkeys(HOSTS, 0.0)
        self.start(HOSTS)
        for name, failures in POLICIES.items():
            words = ("--failures-to-tolerate", str(failures))
            self.cluster.cli("policy", "create", name, *words)
        self.kinds = self.drawn(args.kinds)
        self.policies = self.drawn(list(POLICIES) if not args.beyond else ["two"])
        self.rounds = dict.fromkeys(args.kinds, 0)
        self.faults = dict.fromkeys(args.kinds, 0)
        self.number = self.void = self.operations = self.kills = self.volumes = 0

    def drawn(self, things):
        """Without end, each of them once before any comes again."""
        while True:
            turn = list(things)
            self.chance.shuffle(turn)
            yield from turn

    # Rounds.

    def run(self):
        until = time.monotonic() + self.args.time
        while time.monotonic() < until:
            self.begin_volume()
            for _ in range(self.chance.randint(1, ROUNDS)):
                again = self.round()
                if not again or time.monotonic() > until:
                    break
            self.end_volume()

    def begin_volume(self):
        self.wait_ok("before a volume is made")
        self.policy = next(self.policies)
        self.volumes += 1
        self.volume = f"soak{self.volumes}"
        self.cluster.cli("volume", "create", self.volume, SIZE, "--policy", self.policy)
        self.load = None
        members = sorted(self.members())
        self.liar = self.chance.choice(members)
        self.rolling = members if self.args.beyond else [self.liar]
        self.replaced = False

    def end_volume(self):
        """The disk that lied is replaced; then all there is comes from the sound ones."""
        try:
            if not self.replaced:
                self.replace()
            if self.load:
                self.load.check()  # also because nobody owns what nobody uses (blind-spots.md)
            self.wait_ok("after the lying disk was replaced")
            if self.load:
                self.load.check()
        except AssertionError as error:
            raise Violation(str(error)) from None
        self.look_at_logs()
        self.cluster.cli("volume", "delete", self.volume, "--yes")
        self.volume = None

    def round(self):
        """One round, and whether the volume can have another one."""
        self.number += 1
        self.kind = next(self.kinds)
        low, high = map(math.log, RATES[self.kind])
        self.one_in = math.exp(self.chance.uniform(low, high))
        self.did, self.slow, self.marked = {}, None, False
        self.logs = {host: os.path.getsize(self.cluster.log(host)) for host in HOSTS}
        private = self.chance.random() < 0.3
        self.load = Load(
            self.cluster,
            self.volume,
            clients=CLIENTS,
            blocks=BLOCKS,
            write_share=self.chance.choice([0.3, 0.5, 0.8]),
            seed=self.chance.randrange(1 << 30),
            private=private,
            after=self.load,
        )
        before = self.disks[self.liar].hits()[self.kind]
        begun = time.monotonic()
        try:
            with self.load:
                self.load.wait_progress(timeout_s=PROGRESS_S)
                self.trouble(self.chance.uniform(*ROUND_S))
                self.heal()
                self.load.wait_progress(timeout_s=PROGRESS_S)
                longest = self.load.longest(begun)
                healed = self.settle()
                self.load.finish()
            if longest > LONGEST_S:
                raise Violation(f"an operation took {longest:.1f} s")
            self.look_at_logs()
        except (AssertionError, Violation) as error:
            beyond = self.left_out()
            if beyond:
                self.say(0, f"VOID: {beyond}; then: {error}")
                self.void += 1
                self.load = None
                return False
            raise Violation(str(error)) from None
        hits = self.disks[self.liar].hits()[self.kind] - before
        self.rounds[self.kind] += 1
        self.faults[self.kind] += hits
        operations = self.load.completed()
        self.operations += operations
        self.kills += sum(n for what, n in self.did.items() if what.startswith("killed"))
        self.say(hits, f"{operations} operations, longest {longest:.1f} s; {healed}")
        # A copy that was made good on another host left nothing to lie about.
        return not self.replaced and self.liar in self.members()

    def say(self, hits, rest):
        did = ", ".join(f"{what} {n}" for what, n in sorted(self.did.items())) or "left alone"
        lied = f"{self.kind} 1 in {self.one_in:.0f}, {hits} times"
        if self.kind == "rolled-back":
            lied = f"{self.kind}, {hits} blocks"
        if not hits:
            lied += " (NEVER INJECTED)"
        where = f"{self.policy} copies, disk of host{self.liar}"
        print(f"round {self.number}: {where}: {lied}; {did}; {rest}", flush=True)

    # Faults.

    def trouble(self, seconds):
        until = time.monotonic() + seconds
        actions = [self.kill_one, self.kill_all, self.kill_liar, self.pause, self.let_be]
        self.lie()
        lying = True
        for action in itertools.chain([self.let_be], self.drawn(actions)):
            if self.args.beyond:
                action = self.kill_all
            time.sleep(min(self.chance.uniform(0.5, 2.0), max(0.0, until - time.monotonic())))
            if time.monotonic() >= until:
                break
            self.load.assert_no_errors()
            action()
            # Pauses of the fault, in which what was half done by it is built upon.
            if self.chance.random() < 0.3 or (lying and self.kind == "hang"):
                lying = not lying
                self.lie() if lying else self.heal()
        if self.marked:
            self.roll_back()  # one that nobody was killed for

    def lie(self):
        disk = self.disks[self.liar]
        if self.kind == "rolled-back":
            for host in self.rolling:
                self.disks[host].mark()
            self.marked = True
        else:
            disk.fail(self.kind, 1 / self.one_in, self.chance.randrange(1 << 30))
        if self.kind.endswith("read") or self.kind == "read-error":
            with contextlib.suppress(CommandFailed):
                self.cluster.cli("scrub", "start", host=self.liar, timeout_s=10)

    def heal(self):
        for disk in self.disks.values():
            with contextlib.suppress(OSError, RuntimeError):
                disk.heal()

    def roll_back(self):
        self.marked = False
        for host in self.rolling:
            self.disks[host].roll_back()

    def note(self, what):
        self.did[what] = self.did.get(what, 0) + 1

    def safe_without(self, host):
        """Whether a sound copy in sync is up when this host is not."""
        others = [h for h in HOSTS if h not in (host, self.liar) and self.settled(h)]
        try:
            return any(self.members(h).get(h) == "active" for h in others)
        except CommandFailed:
            return False

    def settled(self, host):
        return time.monotonic() - self.started[host] > SETTLED_S

    def let_be(self):
        pass

    def kill_liar(self):
        if self.safe_without(self.liar):
            self.kill([self.liar])
            time.sleep(self.chance.uniform(0.0, 3.0))
            self.start([self.liar])

    def kill_one(self):
        host = self.chance.choice(HOSTS)
        if self.safe_without(host):
            self.kill([host])
            time.sleep(self.chance.uniform(0.0, 3.0))
            self.start([host])

    def kill_all(self):
        if not self.safe_without(None) and not self.args.beyond:
            return
        self.kill(HOSTS)
        order = self.chance.sample(HOSTS, len(HOSTS))
        begun = time.monotonic()
        for host in order:
            self.start([host], serving=False)
            time.sleep(self.chance.uniform(0.0, START_S / 3 - 0.3))
        started = time.monotonic() - begun
        self.wait_serving(HOSTS)
        served = time.monotonic() - begun
        if started > START_S or served > SERVE_S:
            self.slow = f"the last host was started after {started:.1f} s, served at {served:.1f} s"

    def kill(self, hosts):
        whom = "all" if len(hosts) > 1 else "its host" if hosts[0] == self.liar else "another"
        self.note(f"killed {whom}")
        pids = [pid for pid in map(self.cluster.pid, hosts) if pid]
        for pid in pids:
            os.kill(pid, 9)
        if self.liar in hosts:
            self.disks[self.liar].dead()  # what hangs keeps its process
        harness.wait_until("all to be gone", lambda: not any(map(alive, pids)), 10)
        self.cluster.kill_at_once(hosts)
        if self.marked and self.liar in hosts:
            self.roll_back()
            self.lie()

    def start(self, hosts, serving=True):
        for host in hosts:
            self.cluster.start(host, serving=False)
            self.started[host] = time.monotonic()
        if serving:
            self.wait_serving(hosts)

    def wait_serving(self, hosts):
        """The disk that hangs answers from here on: without it a host starts after 20 s, and goes
        without until it is started again."""
        if self.liar in hosts:
            self.disks[self.liar].answer()
        self.cluster.wait_serving(hosts)

    def pause(self):
        host = self.chance.choice(HOSTS)
        if self.safe_without(host):
            self.note("paused its host" if host == self.liar else "paused another")
            self.cluster.pause(host)
            try:
                time.sleep(self.chance.choice([0.3, 1.0, 2.0, 4.0]))
            finally:
                self.cluster.resume(host)
            self.started[host] = time.monotonic()

    # What must be so afterwards.

    def members(self, host=1):
        """Host number -> state of its copy."""
        placement = self.cluster.get("volume", "placement", self.volume, host=host, timeout_s=15)
        return {int(m["host"].removeprefix("host")): m["state"] for m in placement["members"]}

    def settle(self):
        """Everything is well again, with the lying host's disk replaced if its group has failed, as
        the product says. Returns how that went."""
        begun, how = time.monotonic(), "healed"
        if not self.liar_in_use():
            self.replace()
            how = "disk replaced"
        self.wait_ok("after the faults")
        took = time.monotonic() - begun
        self.scrub()
        return f"{how} in {took:.1f} s"

    def liar_in_use(self):
        """Whether the lying host uses its disk, which the cluster is told every few seconds."""
        time.sleep(3.0)
        name = f"host{self.liar}"
        disks = [d for d in self.cluster.get("disk", "list") if d["host"] == name]
        failed = [c for c in self.health()["checks"] if c["name"] == "group-failed"]
        return [d["state"] for d in disks] == ["in-use"] and not failed

    def health(self):
        return self.cluster.get("status")["health"]

    def replace(self):
        disk = self.disks[self.liar]
        if self.cluster.pid(self.liar):
            self.kill_quietly(self.liar)
        disk.empty()
        self.start([self.liar])
        self.cluster.cli("group", "create", disk.path, host=self.liar)
        self.replaced = True

    def kill_quietly(self, host):
        os.kill(self.cluster.pid(host), 9)
        self.disks[host].dead()
        self.cluster.kill_at_once([host])

    def wait_ok(self, when):
        deadline = time.monotonic() + HEALTHY_S
        while True:
            try:
                volumes = self.cluster.get("volume", "list")
                behind = [v["name"] for v in volumes if v["state"] != "healthy"]
                # This one stays until hosts start again: what was found, not what is wrong.
                wrong = [c for c in self.health()["checks"] if c["name"] != "checksum-errors"]
                why = [c["message"] for c in wrong] + behind
                if not why:
                    return
            except CommandFailed as error:
                why = [str(error)]
            if time.monotonic() > deadline:
                raise Violation(f"not well {HEALTHY_S:.0f} s {when}: {'; '.join(why)}")
            time.sleep(0.3)

    def scrub(self):
        """A sound disk has nothing wrong, and the one that lied neither at the second look. There,
        only this volume's blocks count: a disk that was rolled back can have a deleted one's again,
        until it is removed as one that no name leads to."""
        for _ in range(2):
            since = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
            found = self.scrubbed()
            wrong = {h: n for h, n in found.items() if n and h != self.liar}
            if wrong:
                raise Violation(f"a scrub found bad blocks on sound disks: {wrong}")
            if not found.get(self.liar):
                return
        bad = [
            event
            for event in self.cluster.get("events", host=self.liar)
            if (event["kind"], event["subject"]) == ("bad-block", self.volume)
            and event["at"].removesuffix("Z") > since.removesuffix("+00:00")
        ]
        if bad:
            raise Violation(f"a second scrub still found bad blocks: {bad[0]['message']}, ...")

    def scrubbed(self):
        self.cluster.cli("scrub", "start")
        deadline = time.monotonic() + HEALTHY_S
        while True:
            shown = self.cluster.get("scrub", "show")
            if not any(s["running"] for s in shown):
                break
            if time.monotonic() > deadline:
                raise Violation("a scrub does not end")
            time.sleep(0.2)
        found = {}
        for s in shown:
            host = int(s["host"].removeprefix("host"))
            found[host] = found.get(host, 0) + s["blocks_bad"]
        if sum(found.values()):
            self.wait_ok("after a scrub")
            time.sleep(2.0)  # what it found is mended meanwhile
        return found

    def look_at_logs(self):
        for log in glob.glob(os.path.join(self.directory, "*", "log")):
            with open(log, encoding="utf-8", errors="replace") as f:
                if any("panicked at" in line for line in f):
                    raise Violation(f"{os.path.basename(os.path.dirname(log))} panicked")
        gone = set(HOSTS) - set(self.cluster.running(HOSTS))
        if gone:
            raise Violation(f"ended without being told to: {sorted(gone)}")

    def left_out(self):
        """Why this round says nothing, or None: a slow start left a sound copy out."""
        sound = [host for host in self.dropped() if host != self.liar]
        if self.slow and sound:
            return f"{self.slow}, and the sound copies of hosts {sound} were left out"
        return None

    def dropped(self):
        """The hosts whose copies were left out in this round, as often as they were."""
        found = []
        for host in HOSTS:
            with open(self.cluster.log(host), "rb") as f:
                f.seek(self.logs[host])
                text = f.read().decode(errors="replace")
            found += map(int, re.findall(r"copy on host(\d+) left out", text))
        return found

    # What is said at the end.

    def explain(self, error):
        """The violation with the operations that it is about; all is kept."""
        self.keep = True
        print(f"VIOLATION in round {self.number} (seed {self.args.seed}): {error}")
        if self.number:
            self.explain_round(str(error))
        print(f"  kept: {self.directory} (logs, disks, their .faults, history.txt)", flush=True)

    def explain_round(self, error):
        print(
            f"  volume {self.volume}, {self.policy} copies, disk of host{self.liar}: {self.kind} "
            f"1 in {self.one_in:.0f}; {self.did}{'; ' + self.slow if self.slow else ''}"
        )
        with contextlib.suppress(CommandFailed, SubprocessError):
            print(f"  copies: {self.members()}, health: {self.health()}")
        print(f"  copies left out in this round: {self.dropped() or 'none'}")
        if self.load:
            parts = [w.history for w in self.load.workers]
            history = self.load.history or History.merged([self.load.earlier, *parts])
            path = os.path.join(self.directory, "history.txt")
            with open(path, "w", encoding="ascii") as f:
                f.writelines(line + "\n" for line in operations(history))
            for block in sorted(set(map(int, re.findall(r"block (\d+)", error))))[:3]:
                lines = operations(history, block)
                print(f"  block {block}, of {len(lines)} operations those around what is named:")
                for line in around(lines, set(re.findall(r"\d+", error))):
                    print(f"    {line}")

    def summary(self):
        """Whether this soak proves anything."""
        print(
            f"{self.number} rounds with {self.volumes} volumes, {self.operations} operations, "
            f"{self.kills} kills, {sum(self.faults.values())} faults; {self.void} void"
        )
        for kind in self.args.kinds:
            print(f"  {kind:<18} {self.rounds[kind]:>4} rounds {self.faults[kind]:>8} faults")
        never = [k for k in self.args.kinds if self.rounds[k] and not self.faults[k]]
        untried = [k for k in self.args.kinds if not self.rounds[k]]
        if untried:
            print(f"no time for: {', '.join(untried)}")
        if never:
            print(f"FAILED: never injected: {', '.join(never)}")
        elif not sum(self.faults.values()):
            print("FAILED: nothing was injected")
        elif self.void * 2 > self.number:
            print("FAILED: most rounds were void, because this machine is too slow or too busy")
        else:
            print(f"ok: no violation (seed {self.args.seed})")
            return True
        return False


def operations(history, block=None):
    """Lines, one for each operation, in the order in which they ended."""
    found = []
    for at, value, begin, end in history.writes:
        answered = f"{end:.4f}" if end != NEVER else "no answer"
        found.append((end, at, f"write {value}", begin, answered))
    for at, value, begin, by in history.cut_off:
        found.append((by, at, f"write {value}", begin, "connection broke"))
    for at, value, begin, end in history.reads:
        found.append((end, at, f"read {value}", begin, f"{end:.4f}"))
    found += [(begin, at, "read, torn", begin, "") for at, begin in history.torn]
    return [
        f"block {at} {what}: {begin:.4f} .. {end}"
        for _, at, what, begin, end in sorted(found, key=lambda entry: (entry[0], entry[3]))
        if block is None or at == block
    ]


def around(lines, values):
    """Those lines whose value is named, the first ones and the last ones, with their neighbours."""
    named = [i for i, line in enumerate(lines) if line.split(":")[0].split()[-1] in values]
    chosen = sorted({j for i in named[:6] + named[-6:] for j in (i - 1, i, i + 1)})
    return [lines[j] for j in chosen if 0 <= j < len(lines)]


def seconds(text):
    match = re.fullmatch(r"(\d+)([smhd]?)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not like 30s, 30m, 8h, 2d")
    return int(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]


def kinds(text):
    chosen = text.split(",")
    unknown = sorted(set(chosen) - set(KINDS))
    if unknown:
        known = f"there are {', '.join(KINDS)}"
        raise argparse.ArgumentTypeError(f"no kind {', '.join(unknown)}; {known}")
    return chosen


def arguments():
    parser = argparse.ArgumentParser(
        prog="scripts/soak --processes",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Three real hosts, one of which has a disk that lies or fails, are killed and\n"
        "paused, one by one and all at once, under clients whose history is checked.\n"
        "Prints a line a round. Exit 1: a violation, or nothing was injected.",
        epilog=f"kinds: {', '.join(KINDS)}\n\n"
        "Example: scripts/soak --processes --time 30m --kinds lost-write,rolled-back",
    )
    parser.add_argument("--time", type=seconds, default=seconds("30m"), help="how long (30m)")
    parser.add_argument("--seed", type=int, help="what is drawn; real time differs all the same")
    parser.add_argument("--kinds", type=kinds, default=KINDS, help="which faults (all)")
    parser.add_argument("--dir", help="where its directory is made (/var/tmp); O_DIRECT must work")
    parser.add_argument(
        "--beyond",
        action="store_true",
        help="both copies' disks roll back at once, which nobody survives: it must fail",
    )
    args = parser.parse_args()
    if args.seed is None:
        args.seed = random.SystemRandom().randrange(1 << 30)
    if args.beyond:
        args.kinds = ["rolled-back"]
    return args


def apart():
    """Goes on in a mount namespace of its own, so that no mount can outlive it."""
    if os.environ.get("SOAK_APART") == str(os.getpid()):
        return
    os.environ["SOAK_APART"] = str(os.getpid())
    words = ["unshare", "--mount", "--propagation", "private"]
    if os.geteuid() != 0:
        words.append("--map-root-user")
    try:
        os.execvp("unshare", [*words, sys.executable, os.path.realpath(__file__), *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"error: unshare: {error}\nhint: it is part of util-linux")


def main():
    args = arguments()
    if not os.access(harness.ATOLL, os.X_OK):
        print(f"error: no atoll at {harness.ATOLL}\nhint: cargo build --release, or set ATOLL_BIN")
        return 2
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        print("error: /dev/fuse cannot be used\nhint: run it as root; modprobe fuse")
        return 2
    apart()
    raise_on_signals()
    print(f"seed {args.seed}, {args.time} s", flush=True)
    with Stack() as stack:
        soak = Soak(stack, args)
        try:
            soak.run()
        except Violation as error:
            soak.explain(error)
            return 1
        except (CommandFailed, SubprocessError, OSError, RuntimeError) as error:
            soak.explain(f"{type(error).__name__}: {error}")
            return 1
        return 0 if soak.summary() else 1


if __name__ == "__main__":
    exit_with(main)

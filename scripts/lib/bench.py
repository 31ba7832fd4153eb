"""The data path of a three-host cluster on this machine, beside the machine's limits in the same
run.

Three hosts as processes, two copies, durable acknowledgements, checksums on, one preconditioned
volume through NBD over a Unix socket; beside it a raw file on the same disk with O_DIRECT and with
O_DIRECT + O_DSYNC, the same file through qemu-nbd, and with --peers what a user would take instead.
For each workload the systems take turns; a figure is the median over the rounds, a ratio the median
of the rounds' own ratios: absolute figures drift, ratios of one run compare.

Writes are measured twice: in a burst, which ends before the log is full, and sustained, after the
log has wrapped at least three times and destage keeps up.
"""

import argparse
import json
import os
import shutil
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

import peers
import tables
from cluster import Cluster
from goals import FLOORS, GOALS, HALF, SUSTAINED, WORKLOADS, Results, headline, writes
from measure import Fio, cpu_of, memory_mib
from runs import REPOSITORY, bytes_of, guarded, log, machine, machine_text
from targets import file_targets, nbd_target, start_qemu_nbd

VOLUME = "bench"
FULL = {"rounds": 3, "runtime": 10, "ramp": 2, "sustained": 120, "size": "4g", "disk_size": "32GiB"}
QUICK = {"rounds": 1, "runtime": 4, "ramp": 1, "sustained": 0, "size": "1g", "disk_size": "16GiB"}
QUICK_REPEATS_S = 40  # so far into a short run measurements may be repeated: it ends by 120 s
FOREIGN_CORES = 0.3  # other work on the machine above this spoils a measurement
SETTLE_S, SETTLE_QUICK_S = 180.0, 6.0
BURST_FILL = 0.6  # of the log: a burst ends here, before the store must destage without a pause
BURST_RAMP_S = 1
SUSTAINED_RAMP_S = 5
WRAPS_S = 1800  # the log wraps within this, or the disk is too slow to say anything
BALANCE_S, BALANCE_DRIFT = 20, 0.05  # the log's fill moves less than this between two such halves
BALANCE_MOST_S = 120
IDLE_S, IDLE_QUICK_S = 30, 6
EXAMPLES = """beside it, each with its own --help:
  scripts/bench recovery    how long a host takes to start after a crash
  scripts/bench memory      what a host process takes
  scripts/bench fairness    what volumes side by side get
  scripts/bench floor       what this machine would let any such store do
  scripts/bench flame       where the processors' time goes, as a picture and a table

examples:
  scripts/bench                           everything but peers: an hour, two on a busy machine
  scripts/bench --peers --check --json result.json --markdown result.md
  scripts/bench --rounds 1 --sustained 0 --workloads rr4k_qd32,rw4k_qd32
  scripts/bench --quick --check-floors    at most two minutes: did something become slower?
  scripts/bench --quick --check-floors --margin 2.5    the same beside other work
"""


def foreign_of(figures):
    """Cores that other work took; where that is unknown nothing is held against the figures."""
    return figures.get("foreign_cores", 0.0)


class LogWatch:
    """What the log of a volume's hosts did during a measurement; ends it at a fill."""

    def __init__(self, bench, end_at=None):
        self.bench, self.end_at = bench, end_at
        self.before = bench.logged()
        self.fills = []

    def __call__(self, _):
        self.fills.append(self.bench.fill())
        return self.end_at is not None and self.fills[-1] >= self.end_at

    def figures(self):
        wraps = self.bench.wraps_since(self.before)
        if not self.fills:
            return {"wraps": wraps}
        begin, end, most = self.fills[0], self.fills[-1], max(self.fills)
        return {"wraps": wraps, "fill_begin": begin, "fill_end": end, "fill_most": most}


class Bench:
    def __init__(self, options, stack):
        self.options, self.stack = options, stack
        self.begun = time.monotonic()
        self.directory = stack.directory("atoll-bench-", parent=options.dir)
        self.fio = Fio(self.directory, options.size)
        self.cluster = Cluster(
            stack, os.path.join(self.directory, "c"), disk_size=options.disk_size
        )
        os.mkdir(self.cluster.directory)
        self.raw = os.path.join(self.directory, "raw.img")
        self.qemu_nbd = None
        self.qemu_socket = os.path.join(self.directory, "qemu-nbd.sock")
        self.targets = {
            **file_targets(self.raw),
            "qemu-nbd": nbd_target(self.qemu_socket),
            "atoll": ["--ioengine=nbd", f"--uri={self.cluster.uri(1, VOLUME)}"],
        }
        self.holders = []  # hosts with a copy of the volume
        self.syscalls = {}  # by workload: counted once in a run
        self.results = Results()

    # The systems.

    def pids(self):
        return [pid for pid in map(self.cluster.pid, range(1, 4)) if pid]

    def daemons(self, system):
        if system == "atoll":
            return self.pids()
        return [self.qemu_nbd.pid] if system == "qemu-nbd" else []

    def prepare(self):
        options = self.options
        log("starting three hosts, making a volume with two copies")
        self.cluster.begin()
        self.cluster.create_volume(VOLUME, bytes_of(options.size), copies=2)
        for system in ("raw", "atoll"):
            begun = time.monotonic()
            self.fio.precondition(self.targets[system])
            log(f"{system}: preconditioned {options.size} in {time.monotonic() - begun:.0f} s")
        groups = self.cluster.get("group", "list")
        self.holders = [int(g["host"].removeprefix("host")) for g in groups if g["components"]]
        if not options.quick:
            self.write_log_once()
            self.start_qemu_nbd()
        self.settle()

    def start_qemu_nbd(self):
        errors = os.path.join(self.directory, "qemu-nbd.log")
        image = ["-f", "raw", "--cache=none", "--aio=io_uring", self.raw]
        self.qemu_nbd = start_qemu_nbd(self.stack, self.qemu_socket, errors, image)

    # The log.

    def write_log_once(self):
        """The hosts' disks are files, which come into being as they are written; the first writes to a
        place make the file system write its journal, too. The volume's places have been written."""
        before, begun = self.logged(), time.monotonic()

        def enough():
            return self.wraps_since(before) >= 1

        self.fio.fill_log_until(self.targets["atoll"], enough, WRAPS_S)
        seconds = time.monotonic() - begun
        log(f"atoll: wrote {self.wraps_since(before):.1f} times the log in {seconds:.0f} s")

    def fill(self):
        return self.cluster.log_fill(self.holders)

    def logged(self):
        """Bytes that each holder has written to its log."""
        name = "atoll_group_log_written_bytes_total"
        return {h: self.cluster.metric(name, h) for h in self.holders}

    def wraps_since(self, before):
        """How often the log has been written all through since, on the host that wrote least."""
        return min(
            (bytes_now - before[h]) / self.cluster.metric("atoll_group_log_bytes", h)
            for h, bytes_now in self.logged().items()
        )

    def settle(self):
        """Waits until the hosts have moved what was acknowledged to where it stays."""
        limit = SETTLE_QUICK_S if self.options.quick else SETTLE_S
        if not self.cluster.settle(self.holders, limit):
            log(f"the log is still {100 * self.fill():.0f} % full after {limit:.0f} s: going on")

    def wrap(self):
        """Fills the log until it has wrapped and as much leaves it as enters. Returns the wraps."""
        before, fills, seen = self.logged(), [], {}

        def enough():
            fills.append(self.fill())
            seen["wraps"] = self.wraps_since(before)
            if seen["wraps"] < self.options.wraps:
                return False
            seen.setdefault("since", time.monotonic())
            if time.monotonic() - seen["since"] > BALANCE_MOST_S:
                return True
            last, half = fills[-BALANCE_S:], BALANCE_S // 2
            drift = abs(sum(last[:half]) - sum(last[half:])) / half
            return len(last) == BALANCE_S and drift < BALANCE_DRIFT

        begun = time.monotonic()
        self.fio.write_until(self.targets["atoll"], "rw4k_qd32", enough, WRAPS_S)
        log(
            f"the log has wrapped {seen['wraps']:.1f} times in {time.monotonic() - begun:.0f} s; "
            f"it is {100 * fills[-1]:.0f} % full"
        )
        return seen["wraps"]

    # Measurements.

    def may_repeat(self):
        """A short run keeps its time; each figure in it is a rough one anyway."""
        return not self.options.quick or time.monotonic() - self.begun < QUICK_REPEATS_S

    def measured(self, system, workload, runtime, ramp, burst=True, label=None, extra=()):
        """One measurement, repeated once if other work spoiled it; the better one counts."""
        label, tries = label or workload, []
        while True:
            watch = None
            if system == "atoll" and writes(workload):
                if burst:
                    self.settle()
                watch = LogWatch(self, BURST_FILL if burst else None)
            figures = self.fio.measure(
                self.targets[system],
                workload,
                runtime,
                ramp,
                self.daemons(system),
                watch,
                extra,
                period_s=0.25 if burst else 0.5,
            )
            if watch:
                figures |= watch.figures()
            tries.append(figures)
            foreign = foreign_of(figures)
            if foreign <= FOREIGN_CORES or len(tries) == 2 or not self.may_repeat():
                break
            log(f"{label} {system}: other work took {foreign:.1f} cores; once more")
        best = min(tries, key=foreign_of)
        log(
            f"{label:<20} {system:<8} {best['iops']:>9,.0f} IOPS {best['MBps']:>7,.0f} MB/s  "
            f"mean {best['mean_us']:>7,.0f} us  p99.9 {best['p999_us']:>8,.0f} us"
        )
        return best

    def systems(self, workload):
        """Those that a workload is measured on; a short run has only what its bounds need."""
        if self.options.quick:
            against = {b.against for b in FLOORS + GOALS if b.workload == workload and b.against}
            return [*sorted(against or {"raw"}), "atoll"]
        return ["raw", *(["dsync"] if writes(workload) else []), "qemu-nbd", "atoll"]

    def round(self, number):
        log(f"round {number + 1} of {self.options.rounds}")
        for workload in self.options.workloads:
            systems = self.systems(workload)
            turn = number % len(systems)
            for system in systems[turn:] + systems[:turn]:
                ramp = self.options.ramp
                if system == "atoll" and writes(workload):
                    ramp = min(ramp, BURST_RAMP_S)  # what fills the log should be measured
                figures = self.measured(system, workload, self.options.runtime, ramp)
                if system == "atoll":
                    figures |= self.syscalls_of(workload)
                self.results.add(system, workload, figures)
        if self.options.sustained:
            self.sustained()
        for name in self.options.peers:
            self.peer(name)

    def syscalls_of(self, workload):
        if workload not in self.syscalls and not self.options.quick:
            if writes(workload):
                self.settle()
            self.syscalls[workload] = self.fio.count_syscalls(
                self.targets["atoll"], workload, self.pids(), ramp=1
            )
        return self.syscalls.get(workload, {})

    def sustained(self):
        """Writes with a log that has wrapped, between two measurements of the raw file."""
        names = [w for w in SUSTAINED if w in self.options.workloads]
        if not names:
            return

        def limits():
            return {
                w: self.measured("dsync", w, self.options.runtime, self.options.ramp) for w in names
            }

        def measured(workload, label, extra=()):
            figures = self.measured(
                "atoll", workload, self.options.sustained, SUSTAINED_RAMP_S, False, label, extra
            )
            figures["wraps_before"] = wraps
            self.results.add("atoll", label, figures)
            return figures

        before = limits()
        wraps = self.wrap()
        for workload in names:
            figures = measured(workload, f"{workload} sustained")
            if HALF.startswith(workload + " "):
                rate = max(1, int(figures["iops"] / 2))
                half = measured(workload, HALF, (f"--rate_iops={rate}",))
                half["asked_iops"] = rate
                if half["iops"] < 0.95 * rate:
                    log(f"{rate} IOPS were asked for: it fell behind, so this is no half load")
        self.settle()
        after = limits()
        for workload in names:
            pair = before[workload], after[workload]
            mean = {
                m: sum(figures[m] for figures in pair) / 2
                for m in before[workload]
                if all(figures.get(m) is not None for figures in pair)
            }
            self.results.add("dsync", f"{workload} sustained", mean)

    def peer(self, name):
        """A peer on all workloads, and again on those that other work spoiled."""
        found, workloads = {}, self.options.workloads
        for _ in range(2):
            log(f"peer {name}")
            self.settle()
            for workload, figures in peers.measure(
                name, workloads, REPOSITORY, self.stack, self.directory, self.options
            ):
                if "error" in figures:
                    log(f"{workload:<20} {name:<8} failed: {figures['error']}")
                    continue
                found.setdefault(workload, []).append(figures)
                log(
                    f"{workload:<20} {name:<8} {figures['iops']:>9,.0f} IOPS "
                    f"{figures['MBps']:>7,.0f} MB/s  mean {figures['mean_us']:>7,.0f} us"
                )
            workloads = [w for w, tries in found.items() if foreign_of(tries[-1]) > FOREIGN_CORES]
            if not workloads:
                break
            log(f"other work spoiled {', '.join(workloads)}")
        for workload, tries in found.items():
            self.results.add(name, workload, min(tries, key=foreign_of))

    def idle(self):
        """Percent of a core that the busiest host uses when nothing asks it for anything."""
        self.settle()
        limit = SETTLE_QUICK_S if self.options.quick else SETTLE_S
        if not self.cluster.rest(self.holders, limit):
            log(f"the hosts still move blocks home after {limit:.0f} s: going on")
        pids = self.pids()
        before, begun = {pid: cpu_of(pid) for pid in pids}, time.monotonic()
        time.sleep(IDLE_QUICK_S if self.options.quick else IDLE_S)
        return max(100 * (cpu_of(pid) - before[pid]) / (time.monotonic() - begun) for pid in pids)

    def run(self):
        self.prepare()
        for number in range(self.options.rounds):
            self.round(number)
        self.results.process = {
            "rss_mib": max(memory_mib(pid, "VmRSS") for pid in self.pids()),
            "rss_peak_mib": max(memory_mib(pid, "VmHWM") for pid in self.pids()),
            "idle_percent": self.idle(),
        }
        return self.results


def low_latency_wakeup():
    """Whether the hosts may keep processors from sleeping deeply (`io.low_latency_wakeup`)."""
    may = os.access("/dev/cpu_dma_latency", os.W_OK)
    return f"processors {'wake quickly' if may else 'sleep as deeply as ever'} while hosts are busy"


def conditions(options, where):
    """The sentence above the tables."""
    sustained = f"sustained {options.sustained} s after {options.wraps:g} wraps of the log; "
    return (
        f"{machine_text(where)}, {low_latency_wakeup()}; "
        f"3 hosts on this machine, 2 copies, durable, checksums on; volume "
        f"{options.size}, disks {options.disk_size}; "
        f"{options.rounds} round(s) of {options.runtime} s after "
        f"{options.ramp} s; {sustained if options.sustained else ''}medians over the rounds.\n"
        f"*Atoll to it*: IOPS, MB/s from 64 KiB on, the mean latency at depth 1."
    )


def room_needed(options):
    """Bytes that a run takes at most: the raw file, two copies, the hosts' logs and metadata."""
    size = bytes_of(options.size)
    mine = 3 * size + 3 * (bytes_of(options.disk_size) // 20) + (1 << 30)
    return mine + (2 * size + (4 << 30) if options.peers else 0)


def parse(argv=None):
    parser = argparse.ArgumentParser(
        prog="scripts/bench [data-path]",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )

    def option(name, kind, what):
        key = name.replace("-", "_")
        parser.add_argument(f"--{name}", type=kind, help=f"{what} (default {FULL[key]})")

    parser.add_argument("what", nargs="?", default="data-path", choices=["data-path"])
    parser.add_argument(
        "--quick",
        action="store_true",
        help="one short round of the workloads that have a floor: at most two minutes",
    )
    option("rounds", int, "how often everything is measured")
    option("runtime", int, "measured seconds of a workload")
    option("ramp", int, "seconds before them")
    option("sustained", int, "measured seconds of a sustained write; 0: none")
    parser.add_argument(
        "--wraps", type=float, default=3.0, help="of the log, before them (default 3)"
    )
    option("size", str, "of the volume and the raw file")
    option("disk-size", str, "of each host's disk; a twentieth of it is the log")
    parser.add_argument(
        "--workloads", metavar="A,B", help=f"some of: {', '.join(WORKLOADS)} (default all)"
    )
    parser.add_argument(
        "--dir", default="/var/tmp", help="where the disks are made: on the disk to measure"
    )
    parser.add_argument(
        "--peers",
        nargs="?",
        const="ceph",
        default="",
        metavar="A,B",
        help=f"in each round also {' or '.join(peers.PEERS)} (default ceph), by shared/peers",
    )
    parser.add_argument("--json", metavar="FILE", help="write every figure of every round there")
    parser.add_argument("--markdown", metavar="FILE", help="write the tables there")
    parser.add_argument("--check", action="store_true", help="exit status 1 if a goal is missed")
    parser.add_argument(
        "--check-floors", action="store_true", help="exit status 1 if a floor is missed"
    )
    parser.add_argument(
        "--margin",
        type=float,
        default=1.0,
        help="by what factor a ratio may be worse than its floor (default 1)",
    )
    options = parser.parse_args(argv)
    if options.margin < 1:
        parser.error("the margin is at least 1")
    for key, value in (QUICK if options.quick else FULL).items():
        if getattr(options, key) is None:
            setattr(options, key, value)
    some = {b.workload for b in FLOORS} if options.quick else WORKLOADS
    default = ",".join(w for w in WORKLOADS if w in some)
    options.workloads = (options.workloads or default).split(",")
    unknown = [w for w in options.workloads if w not in WORKLOADS]
    if unknown:
        parser.error(f"no workload {unknown[0]}; there are {', '.join(WORKLOADS)}")
    options.peers = [name for name in options.peers.split(",") if name]
    for name in options.peers:
        reason = peers.lacking(name, REPOSITORY)
        if reason:
            parser.error(f"--peers: {reason}")
    if min(options.rounds, options.runtime) < 1 or min(options.ramp, options.sustained) < 0:
        parser.error("rounds and runtime are at least 1, ramp and sustained at least 0")
    for program in ("fio", *(() if options.quick else ("qemu-nbd",))):
        if shutil.which(program) is None:
            parser.error(f"{program} is not installed")
    try:
        room, free = room_needed(options), shutil.disk_usage(options.dir).free
    except (argparse.ArgumentTypeError, OSError) as error:
        parser.error(str(error))
    if free < room:
        parser.error(f"{options.dir} has {free >> 30} GiB free, this needs up to {room >> 30}")
    return options


def judge(options, results):
    """Title -> what is held against it; the short run shows floors, every other goals."""
    judged = {}
    if options.check or not (options.quick or options.check_floors):
        judged["goal"] = results.judge(GOALS)
    if options.quick or options.check_floors:
        judged["floor"] = results.judge([b.with_margin(options.margin) for b in FLOORS])
    return judged


def write(options, results, judged, where):
    """The files that were asked for."""
    if options.json:
        shown = {
            "machine": where,
            "options": {
                k: getattr(options, k) for k in (*FULL, "wraps", "workloads", "quick", "margin")
            },
            "rounds": [
                {"system": s, "workload": w, "rounds": r} for (s, w), r in results.rounds.items()
            ],
            "ratios": [
                {
                    "workload": workload,
                    "against": system,
                    "measure": headline(workload),
                    "ratio": results.ratio(workload, system, headline(workload)),
                }
                for system, workload in results.rounds
                if system != "atoll"
            ],
            "process": results.process,
            "bounds": [
                {"kind": kind, "bound": b.text, "limit": b.limit_text, "value": v, "verdict": held}
                for kind, bounds in judged.items()
                for b, v, held in bounds
            ],
        }
        with open(options.json, "w", encoding="utf-8") as f:
            json.dump(shown, f, indent=1)
    if options.markdown:
        text = tables.document(results, judged, conditions(options, where), tables.markdown)
        with open(options.markdown, "w", encoding="utf-8") as f:
            f.write(text)


def main():
    options = parse()

    def work(stack):
        results = Bench(options, stack).run()
        stack.close()
        where = machine()
        judged = judge(options, results)
        text = tables.document(results, judged, conditions(options, where), tables.plain)
        print("\n" + text, flush=True)
        write(options, results, judged, where)
        return results, judged

    found, status = guarded(work)
    if found is None:
        return status
    results, judged = found
    failed = False
    for kind, asked in (("goal", options.check), ("floor", options.check_floors)):
        for bound, value, verdict in judged.get(kind, ()):
            if verdict == "MISSED":
                shown = "no figure" if value is None else f"{value:.2f}{bound.unit}"
                spoiled = results.foreign(bound.workload)
                print(
                    f"missed {kind}: {bound.text}: {shown}, must be {bound.limit_text}"
                    + (f" (other work took {spoiled:.1f} cores)" * (spoiled > FOREIGN_CORES))
                )
                failed |= asked
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""What volumes side by side get: two equal ones, and a quiet one beside one that takes all it can.

Two hosts, two copies of each volume. Two volumes are served by the same host, the third by the
other; the clients are fio processes on their owners' hosts. A figure is the median of the rounds; a
ratio the median of each round's own.
"""

import concurrent.futures
import os
import statistics
import sys
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

from cluster import SETTLED, Cluster
from goals import BESIDE, EQUAL, Workload, writes
from measure import Elsewhere, Fio
from runs import (
    GIB,
    Report,
    bytes_of,
    finish,
    log,
    need_fio_and_room,
    parser_of,
    tell_of_failures,
)
from tables import number

DISK = 40 * GIB
OWNERS = {"a": 1, "b": 1, "c": 2}  # volume -> the host that serves it
PAIRS = {"same": ("a", "b"), "different": ("a", "c")}
FULL = {"rounds": 3, "runtime": 15, "size": "2g"}
QUICK = {"rounds": 1, "runtime": 5, "size": "512m"}
RAMP_S = 2
SETTLE_S = 90
ROOM = 0.15  # of the log: writes of one measurement do not bring it to 3/8, where destage begins
DEEP, QUIET, EQUAL_DEPTH = 128, 1, 32
KINDS = {"writes": "randwrite", "reads": "randread"}
EXAMPLES = """examples:
  scripts/bench fairness                  three rounds: 15 minutes
  scripts/bench fairness --check --json result.json --markdown result.md
  scripts/bench fairness --rounds 1 --kinds writes --owners same
  scripts/bench fairness --quick
"""


def workload(kind, depth):
    return Workload(KINDS[kind], "4k", depth, ())


def together(works):
    """Runs them at once, each as `work(ends)`; `ends` is set as soon as one fails, or a signal says
    that everything is to end. Returns their results."""
    ends = threading.Event()

    def guarded(work):
        try:
            return work(ends)
        except BaseException:
            ends.set()
            raise

    with concurrent.futures.ThreadPoolExecutor(len(works)) as pool:
        futures = [pool.submit(guarded, work) for work in works]
        try:
            return [future.result() for future in futures]
        except BaseException:
            ends.set()
            raise


class Fairness:
    def __init__(self, options, stack):
        self.options, self.report = options, Report()
        self.directory = stack.directory("atoll-fairness-", parent=options.dir)
        self.cluster = Cluster(
            stack, os.path.join(self.directory, "hosts"), hosts=2, disk_size=f"{DISK >> 20}MiB"
        )
        os.mkdir(self.cluster.directory)
        tell_of_failures(stack, self.cluster)
        self.fio = {}
        for volume in OWNERS:
            os.mkdir(os.path.join(self.directory, volume))
            self.fio[volume] = Fio(os.path.join(self.directory, volume), options.size)

    def target(self, volume):
        return ["--ioengine=nbd", f"--uri={self.cluster.uri(OWNERS[volume], volume)}"]

    def prepare(self):
        self.cluster.begin()
        for volume, owner in OWNERS.items():
            self.cluster.create_volume(volume, bytes_of(self.options.size))
            begun = time.monotonic()
            self.fio[volume].precondition(self.target(volume))
            shown = self.cluster.get("volume", "show", volume)
            if shown.get("owner") != f"host{owner}":
                raise RuntimeError(f"volume {volume} is owned by {shown.get('owner')}, not {owner}")
            log(f"volume {volume}: written in {time.monotonic() - begun:.0f} s, owner host{owner}")

    def measured(self, *parts):
        """Runs (volume, workload, seconds, ramp) at once, from an empty log on. Returns the figures
        of each, and the cores that other work took meanwhile."""
        wrote = any(writes(plain) for _, plain, _, _ in parts)
        self.cluster.settle((1, 2), SETTLE_S, ROOM if wrote else SETTLED)

        def one(volume, plain, seconds, ramp):
            return lambda ends: self.fio[volume].measure(
                self.target(volume),
                plain,
                seconds,
                ramp,
                watch=lambda _: ends.is_set(),
                steady=True,
            )

        others = Elsewhere([self.cluster.pid(host) for host in (1, 2)])
        return *together([one(*part) for part in parts]), others.cores()

    def equal(self, number_, owners, kind):
        pair, seconds = PAIRS[owners], self.options.runtime
        plain = workload(kind, EQUAL_DEPTH)
        *found, foreign = self.measured(*((volume, plain, seconds, RAMP_S) for volume in pair))
        iops = sorted(f["iops"] for f in found)
        figures = {"round": number_, "what": "equal", "owners": owners, "kind": kind}
        figures |= {"volumes": dict(zip(pair, found)), "ratio": iops[0] / iops[1]}
        figures["foreign_cores"] = foreign
        self.report.figures.append(figures)
        log(
            f"equal {kind}, {owners} owner: {found[0]['iops']:,.0f} and {found[1]['iops']:,.0f} "
            f"IOPS, longest gaps {max(f['gap_ms'] for f in found)} ms"
        )

    def beside(self, number_, owners, kind):
        (quiet, deep), seconds = PAIRS[owners], self.options.runtime
        plain = workload(kind, QUIET)
        alone, foreign_alone = self.measured((quiet, plain, seconds, RAMP_S))
        # The deep one begins earlier and ends later than what is measured.
        found, noise, foreign = self.measured(
            (quiet, plain, seconds, 2 * RAMP_S),
            (deep, workload(kind, DEEP), seconds + 2 * RAMP_S, RAMP_S),
        )
        figures = {"round": number_, "what": "beside", "owners": owners, "kind": kind}
        figures |= {"alone": alone, "quiet": found, "deep": noise}
        figures["ratio"] = found["p99_us"] / alone["p99_us"]
        figures |= {"foreign_cores": foreign, "foreign_cores_alone": foreign_alone}
        self.report.figures.append(figures)
        log(
            f"depth 1 {kind}, {owners} owner: p99 {alone['p99_us']:,.0f} us alone, "
            f"{found['p99_us']:,.0f} us beside {noise['iops']:,.0f} IOPS at depth {DEEP}"
        )

    def run(self):
        self.prepare()
        for round_ in range(self.options.rounds):
            log(f"round {round_ + 1} of {self.options.rounds}")
            for kind in self.options.kinds:
                for owners in self.options.owners:
                    self.equal(round_ + 1, owners, kind)
                    self.beside(round_ + 1, owners, kind)
        return self.reported()

    def of(self, what, owners, kind):
        wanted = {"what": what, "owners": owners, "kind": kind}
        return [f for f in self.report.figures if wanted.items() <= f.items()]

    def reported(self):
        report, options = self.report, self.options
        report.about = (
            f"2 hosts on this machine, 2 copies, durable, checksums on; volumes {options.size}, "
            f"4 KiB at random; {options.rounds} round(s) of {options.runtime} s after {RAMP_S} s; "
            "medians over the rounds, the longest gap of all of them."
        )
        equal, beside = [], []
        for kind in options.kinds:
            for owners in options.owners:
                rounds = self.of("equal", owners, kind)
                ratio = statistics.median(f["ratio"] for f in rounds)
                sides = [[list(f["volumes"].values())[i] for f in rounds] for i in (0, 1)]
                report.judge(EQUAL._replace(text=f"{EQUAL.text}, {kind}, {owners} owner"), ratio)
                row = [f"{kind}, depth {EQUAL_DEPTH}, {owners} owner"]
                for measure in ("iops", "p99_us"):
                    row += [number(statistics.median(f[measure] for f in s)) for s in sides]
                gap = max(f["gap_ms"] for side in sides for f in side)
                foreign = statistics.median(f["foreign_cores"] for f in rounds)
                equal.append([*row, number(gap), number(foreign, 1), number(ratio, 2)])

                rounds = self.of("beside", owners, kind)
                ratio = statistics.median(f["ratio"] for f in rounds)
                report.judge(BESIDE._replace(text=f"{BESIDE.text}, {kind}, {owners} owner"), ratio)
                row = [f"{kind}, {owners} owner"]
                for measure in ("mean_us", "p99_us", "gap_ms"):
                    pick = max if measure == "gap_ms" else statistics.median
                    row += [number(pick(f[w][measure] for f in rounds)) for w in ("alone", "quiet")]
                deep = statistics.median(f["deep"]["iops"] for f in rounds)
                for measure in ("foreign_cores_alone", "foreign_cores"):
                    row.append(number(statistics.median(f[measure] for f in rounds), 1))
                beside.append([*row, number(deep), number(ratio, 2)])
        head = ["two equal volumes", "IOPS one", "the other", "p99 us one", "the other"]
        head += ["longest gap ms", "other work, cores", "slower to faster"]
        report.tables.append((head, equal))
        head = [f"depth 1 beside depth {DEEP}", "mean us alone", "beside", "p99 us alone", "beside"]
        head += ["longest gap ms alone", "beside", "other work, cores alone", "beside"]
        head += ["IOPS of the deep", "p99 beside to alone"]
        report.tables.append((head, beside))
        return report


def parse(argv=None):
    parser = parser_of("fairness", __doc__, EXAMPLES)
    for name, what in (
        ("rounds", "how often everything is measured"),
        ("runtime", "measured seconds of each"),
        ("size", "of each of the three volumes"),
    ):
        parser.add_argument(
            f"--{name}", type=type(FULL[name]), help=f"{what} (default {FULL[name]})"
        )
    parser.add_argument(
        "--kinds", default=",".join(KINDS), help="writes, reads or both, which is the default"
    )
    parser.add_argument(
        "--owners", default=",".join(PAIRS), help="same, different or both, which is the default"
    )
    options = parser.parse_args(argv)
    for key, value in (QUICK if options.quick else FULL).items():
        if getattr(options, key) is None:
            setattr(options, key, value)
    for key, known in (("kinds", KINDS), ("owners", PAIRS)):
        words = getattr(options, key).split(",")
        if not set(words) <= set(known):
            parser.error(f"--{key} is of {', '.join(known)}")
        setattr(options, key, words)
    if min(options.rounds, options.runtime) < 1:
        parser.error("rounds and runtime are at least 1")
    room = 2 * (3 * bytes_of(options.size) + DISK // 20) + GIB
    need_fio_and_room(parser, options, room)
    return options


if __name__ == "__main__":
    chosen = parse()
    sys.exit(finish("fairness", chosen, lambda stack: Fairness(chosen, stack).run()))

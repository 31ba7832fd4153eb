"""What this machine would let any store do that has two durable copies and serves NBD over a Unix
socket: fio alone, with nothing of Atoll in it, so how far the goals are possible here at all.

Both copies are on the one disk, as in the data path's benchmark. Beside the raw file: NBD without a
disk (qemu-nbd serves `null-co`); two logs, each written in batches of a header block and n writes,
durable, one batch under way; the same with what was logged going home, 4 KiB at random, as fast as
it comes (*sustained*), or with random reads beside it (*70/30*). A batch has no more writes than a
client has under way.
"""

import collections
import functools
import json
import os
import shutil
import statistics
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

from goals import GOALS, SUSTAINED, WORKLOADS, Results
from measure import Fio
from process import run
from runs import GIB, Report, bytes_of, finish, log, need_fio_and_room, parser_of
from tables import number, short
from targets import file_targets, nbd_target, start_qemu_nbd

LOGS, HOMES, LOG_SIZE = ("log1", "log2"), ("home1", "home2"), "512m"
HEADER_KIB = 4
DEEP = "rw4k_qd32"
SUSTAIN = SUSTAINED[0] + " sustained"
READS = ("rr4k_qd32", "rr256k_qd16", "sr1m_qd8")
BATCHES = (8, 16, 32)  # writes in one, at depth 32
SUSTAINED_BATCHES = (8, 32)
HOME_DEPTH = 16
READ_SHARE = 0.7
# Workload -> its depth, and sizes of a batch: writes take longer, so most that are under way may be
# writes.
MIXES = {"mix4k_qd32": (32, (8, 16, 32)), "mix64k_qd16": (16, (4, 8, 16))}
CEILING = 1.25  # rates are looked for up to so many times what the raw file does
KEPT = 0.97  # of a rate that was asked for: it was kept up with
OVERTIME_S = 60
FULL = {"rounds": 3, "runtime": 3, "ramp": 1, "steps": 6, "step": 2, "size": "4g"}
QUICK = {"rounds": 1, "runtime": 1, "ramp": 0, "steps": 3, "step": 1, "size": "512m"}
NAMES = {"raw": "raw O_DIRECT", "dsync": "raw O_DSYNC", "nbd": "NBD without a disk"}
ABOUT = (
    "{rounds} round(s) of {runtime} s after {ramp} s; files of {size}; medians over the rounds. "
    "Rates are halved in {steps} steps of {step} s up to {ceiling} times the raw file's.\n"
    "IOPS and the mean are those of what the system is: of the slower log, for logs, where an I/O "
    "is a batch. Guest IOPS are what a client would see; the CPU of logs is per guest I/O. "
    "*Here at most*: the median of each round's own ratio; at depth 1 the raw file's or the log's "
    "mean plus NBD's; other reads: the lower of the raw file's IOPS and NBD's; the others: the best "
    "batch size, without NBD. NBD is what qemu-nbd makes of it: a better server reaches more. A store "
    "reaches more than such a limit only if it writes less: what is overwritten while it is still "
    "in the log never goes home."
)
EXAMPLES = """examples:
  scripts/bench floor                     three rounds: 8 minutes
  scripts/bench floor --json result.json --markdown result.md
  scripts/bench floor --dir /mnt/disk-to-measure
  scripts/bench floor --quick             one short round: rates only to within 0.16 of a ratio
"""

Job = collections.namedtuple("Job", "file rw size_kib depth durable rate", defaults=(None,))


def log_jobs(n, size_kib=4, rate=None):
    """Both logs, each with one batch of n writes under way; `rate` is that of the writes."""
    rate = None if rate is None else rate / n
    return [Job(f, "write", HEADER_KIB + n * size_kib, 1, True, rate) for f in LOGS]


def sustained_jobs(n, rate):
    home = [Job(f, "randwrite", 4, HOME_DEPTH, False, rate) for f in HOMES]
    return log_jobs(n, rate=rate) + home


def mixed_jobs(workload, n, rate):
    size_kib = bytes_of(WORKLOADS[workload].size) >> 10
    depth, _ = MIXES[workload]
    reads = Job("raw", "randread", size_kib, depth, False, rate * READ_SHARE)
    return [*log_jobs(n, size_kib, rate * (1 - READ_SHARE)), reads]


class Floor:
    def __init__(self, options, stack):
        self.options, self.stack = options, stack
        self.results, self.ratios = Results(), {}
        self.directory = stack.directory("atoll-floor-", parent=options.dir)
        self.fio = Fio(self.directory, options.size)
        self.socket = os.path.join(self.directory, "nbd.sock")
        self.targets = {**file_targets(self.path("raw")), "nbd": nbd_target(self.socket)}
        self.server = None
        self.nbd_us = None  # a read at depth 1 through NBD without a disk, in this round

    def path(self, name):
        return os.path.join(self.directory, name)

    def prepare(self):
        log("writing every file once")
        logs = Fio(self.directory, LOG_SIZE)
        for name in ("raw", *HOMES, *LOGS):
            fio = logs if name in LOGS else self.fio
            fio.precondition(file_targets(self.path(name))["raw"])
        size = bytes_of(self.options.size)
        image = ["--image-opts", f"driver=null-co,size={size}"]
        self.server = start_qemu_nbd(self.stack, self.socket, self.path("nbd.log"), image)

    # Measurements.

    def add(self, system, workload, figures):
        self.results.add(system, workload, figures)
        log(
            f"{workload:<20} {system:<20} {figures['iops']:>9,.0f} IOPS  "
            f"mean {figures['mean_us']:>7,.0f} us"
            + (f"  guest {figures['guest_iops']:>9,.0f} IOPS" if "guest_iops" in figures else "")
        )
        return figures

    def alone(self, system, workload):
        """One workload on a file, or through NBD."""
        daemons = [self.server.pid] if system == "nbd" else []
        figures = self.fio.measure(
            self.targets[system],
            workload,
            self.options.runtime,
            self.options.ramp,
            daemons,
            period_s=0.25,
        )
        return self.add(system, workload, figures)

    def together(self, jobs, seconds, ramp=0):
        """Several jobs at once, each at most at its rate. Returns the figures of each."""
        argv = ["fio", "--ioengine=io_uring", "--direct=1", "--thread=1", "--norandommap=1"]
        argv += ["--random_generator=tausworthe64", "--randrepeat=0", "--time_based=1"]
        argv += [f"--runtime={seconds}", f"--ramp_time={ramp}", "--output-format=json"]
        for job in jobs:
            argv += [f"--name={job.file}", f"--filename={self.path(job.file)}", f"--rw={job.rw}"]
            argv += [f"--bs={job.size_kib}k", f"--iodepth={job.depth}"]
            argv += ["--sync=dsync"] * job.durable
            argv += [f"--rate_iops={max(1, round(job.rate))}"] if job.rate else []
        text = run(argv, seconds + ramp + OVERTIME_S, cwd=self.directory).stdout
        found = []
        for report in json.loads(text[text.index("{") :])["jobs"]:
            side = max(report["read"], report["write"], key=lambda s: s["total_ios"])
            found.append(
                {
                    "iops": side["iops"],
                    "MBps": side["bw_bytes"] / 1e6,
                    "mean_us": side["lat_ns"]["mean"] / 1000,
                    "cores": (report["usr_cpu"] + report["sys_cpu"]) / 100,
                }
            )
        return found

    @staticmethod
    def logged(found, guest_iops):
        """The figures of a system with two logs; those of the slower log where there is no sum."""
        slower = min(found[: len(LOGS)], key=lambda f: f["iops"])
        return {
            "iops": slower["iops"],
            "MBps": sum(f["MBps"] for f in found),
            "mean_us": slower["mean_us"],
            "guest_iops": guest_iops,
            "client_cpu_us": 1e6 * sum(f["cores"] for f in found) / guest_iops,
            "jobs": found,
        }

    def logs(self, workload, n):
        found = self.together(log_jobs(n), self.options.runtime, self.options.ramp)
        guest_iops = n * min(f["iops"] for f in found)
        if not guest_iops:
            raise RuntimeError(f"fio measured nothing in logs, n = {n}")
        return self.add(f"two logs, n = {n}", workload, self.logged(found, guest_iops))

    def most(self, system, workload, limit, jobs_of):
        """The largest rate of guest I/Os at which each of `jobs_of(rate)` keeps up. It is 0 if none
        was: the figures are then those of the last that did not."""
        low, high, best = 0, CEILING * limit, None
        for _ in range(self.options.steps):
            rate = (low + high) / 2
            jobs = jobs_of(rate)
            found = self.together(jobs, self.options.step)
            figures = self.logged(found, rate)
            if all(f["iops"] >= KEPT * job.rate for f, job in zip(found, jobs)):
                low, best = rate, figures
            else:
                high = rate
        figures = best or figures
        figures["guest_iops"] = low
        return self.add(system, workload, figures)

    # A round: what is compared is measured beside each other.

    def ratio(self, workload, value):
        self.ratios.setdefault(workload, []).append(value)

    def reads(self):
        raw, nbd = (self.alone(system, "rr4k_qd1") for system in ("raw", "nbd"))
        self.nbd_us = nbd["mean_us"]
        self.ratio("rr4k_qd1", (raw["mean_us"] + self.nbd_us) / raw["mean_us"])
        for workload in READS:
            raw, nbd = (self.alone(system, workload) for system in ("raw", "nbd"))
            self.ratio(workload, min(raw["iops"], nbd["iops"]) / raw["iops"])

    def writes(self):
        self.alone("raw", "rw4k_qd1")
        limit = self.alone("dsync", "rw4k_qd1")
        log_us = self.logs("rw4k_qd1", 1)["mean_us"]
        self.ratio("rw4k_qd1", (log_us + self.nbd_us) / limit["mean_us"])

        self.alone("raw", DEEP)
        limit = self.alone("dsync", DEEP)["iops"]
        best = max(self.logs(DEEP, n)["guest_iops"] for n in BATCHES)
        self.ratio(DEEP, best / limit)

        found = []
        for n in SUSTAINED_BATCHES:
            jobs_of = functools.partial(sustained_jobs, n)
            found.append(self.most(f"two logs, n = {n}, home", SUSTAIN, limit, jobs_of))
        self.ratio(SUSTAIN, max(f["guest_iops"] for f in found) / limit)

    def mixed(self):
        for workload, (_, batches) in MIXES.items():
            limit, found = self.alone("raw", workload)["iops"], []
            for n in batches:
                jobs_of = functools.partial(mixed_jobs, workload, n)
                found.append(self.most(f"two logs, n = {n}, reads", workload, limit, jobs_of))
            self.ratio(workload, max(f["guest_iops"] for f in found) / limit)

    def run(self):
        self.prepare()
        for number_ in range(self.options.rounds):
            log(f"round {number_ + 1} of {self.options.rounds}")
            self.reads()
            self.writes()
            self.mixed()
        return self.reported()

    # What was found.

    def figures_table(self):
        head = ["workload", "system", "IOPS", "MB/s", "mean us", "guest IOPS"]
        head += ["CPU us/IO daemons", "client", "kernel"]
        rows = []
        for system, workload in self.results.rounds:
            median = [
                self.results.median(system, workload, measure)
                for measure in ("iops", "MBps", "mean_us", "guest_iops")
            ]
            cpu = [
                self.results.median(system, workload, f"{who}_cpu_us")
                for who in ("daemon", "client", "kernel")
            ]
            row = [workload, NAMES.get(system, system), *map(number, median)]
            rows.append([*row, *map(short, cpu)])
        return head, rows

    def goals(self):
        """[(goal, the median of the rounds' ratios)] of those that this can speak of."""
        return [
            (goal, statistics.median(self.ratios[goal.workload]))
            for goal in GOALS
            if goal.against and goal.workload in self.ratios
        ]

    def reported(self):
        report = Report()
        report.about = ABOUT.format(ceiling=CEILING, **vars(self.options))
        report.tables.append(self.figures_table())
        rows = [
            [goal.text, f"{value:.2f}", goal.limit_text, "yes" if goal.holds(value) else "NO"]
            for goal, value in self.goals()
        ]
        report.tables.append((["goal", "here at most", "goal's bound", "possible?"], rows))
        report.figures = [
            {"system": s, "workload": w, "rounds": r} for (s, w), r in self.results.rounds.items()
        ]
        report.figures += [
            {"goal": g.text, "limit": g.limit_text, "here_at_most": v, "possible": g.holds(v)}
            | {"rounds": self.ratios[g.workload]}
            for g, v in self.goals()
        ]
        return report


def parse(argv=None):
    parser = parser_of("floor", __doc__, EXAMPLES, check=False)
    for name, what in (
        ("rounds", "how often everything is measured"),
        ("runtime", "measured seconds of each"),
        ("ramp", "seconds before them"),
        ("steps", "how often a rate is halved"),
        ("step", "seconds of each of these steps"),
        ("size", f"of the raw file and of either home; a log has {LOG_SIZE}"),
    ):
        parser.add_argument(
            f"--{name}", type=type(FULL[name]), help=f"{what} (default {FULL[name]})"
        )
    options = parser.parse_args(argv)
    for key, value in (QUICK if options.quick else FULL).items():
        if getattr(options, key) is None:
            setattr(options, key, value)
    if min(options.rounds, options.runtime, options.steps, options.step) < 1 or options.ramp < 0:
        parser.error("rounds, runtime, steps and step are at least 1, ramp at least 0")
    if shutil.which("qemu-nbd") is None:
        parser.error("qemu-nbd is not installed")
    room = (1 + len(HOMES)) * bytes_of(options.size) + len(LOGS) * bytes_of(LOG_SIZE) + GIB
    need_fio_and_room(parser, options, room)
    return options


if __name__ == "__main__":
    chosen = parse()
    sys.exit(finish("floor", chosen, lambda stack: Floor(chosen, stack).run()))

"""What the benchmark runs, and what must come of it: workloads, goals, floors.

A goal is a promise of the product (`scripts/bench --check`), a floor what any change must keep on a
quiet machine (`--check-floors`); on one that does other things beside, `--margin` says by what factor
a ratio may be worse. Never measures anything itself.
"""

import collections
import statistics

Workload = collections.namedtuple("Workload", "rw size depth extra")

WORKLOADS = {
    "rr4k_qd32": Workload("randread", "4k", 32, ()),
    "rr4k_qd1": Workload("randread", "4k", 1, ()),
    "rw4k_qd32": Workload("randwrite", "4k", 32, ()),
    "rw4k_qd1": Workload("randwrite", "4k", 1, ()),
    "mix4k_qd32": Workload("randrw", "4k", 32, ("--rwmixread=70",)),
    "mix64k_qd16": Workload("randrw", "64k", 16, ("--rwmixread=70",)),
    "rr256k_qd16": Workload("randread", "256k", 16, ()),
    "sr1m_qd8": Workload("read", "1m", 8, ()),
    "sw1m_qd8": Workload("write", "1m", 8, ()),
}
# Also measured with the log wrapped and destage in balance; named `NAME sustained`.
SUSTAINED = ("rw4k_qd32", "rw4k_qd1", "sw1m_qd8")
HALF = "rw4k_qd32 half load"  # the first of them at half of its sustained IOPS


def plain_of(workload):
    """What a workload's name stands for, or the Workload itself."""
    return WORKLOADS.get(workload, workload)


def writes(workload):
    return plain_of(workload).rw not in ("randread", "read")


def headline(workload):
    """The measure by which two systems are compared at a workload; more is not always better."""
    if workload == HALF:
        return "p999_us"
    plain = WORKLOADS[workload.split(" ")[0]]
    if plain.depth == 1:
        return "mean_us"
    return "iops" if plain.size == "4k" else "MBps"


class Bound(collections.namedtuple("Bound", "workload measure against limit")):
    """A measure of Atoll at a workload, divided by that of the system `against` in the same round
    (None: as it is), and its limit. Whatever costs something has an upper limit, all else a lower.
    """

    UNITS = {"rss_mib": " MiB", "idle_percent": " % of a core", "process_cpu_us": " us"}
    TEXTS = {
        "iops": "IOPS",
        "MBps": "MB/s",
        "mean_us": "mean latency",
        "process_cpu_us": "CPU per I/O of daemons and client",
        "p999_to_mean": "p99.9 to mean latency",
        "rss_mib": "memory of a host",
        "idle_percent": "CPU of an idle host",
    }
    SYSTEMS = {"raw": "raw O_DIRECT", "dsync": "raw O_DSYNC"}

    @property
    def upper(self):
        return self.measure not in ("iops", "MBps")

    @property
    def strict(self):  # "under", not "at most"
        return self.workload is None

    @property
    def text(self):
        words = [self.workload] if self.workload else []
        words.append(self.TEXTS[self.measure])
        if self.against:
            words.append("to " + self.SYSTEMS[self.against])
        return " ".join(words)

    @property
    def unit(self):
        return self.UNITS.get(self.measure, "")

    @property
    def limit_text(self):
        sign = ("<" if self.strict else "<=") if self.upper else ">="
        return f"{sign} {self.limit:g}{self.unit}"

    def with_margin(self, margin):
        """The same, where a ratio to another system may be worse by a factor: the neighbours of one
        measurement are not those of the other."""
        if self.against is None:
            return self
        return self._replace(limit=self.limit * margin if self.upper else self.limit / margin)

    def holds(self, value):
        if self.strict:
            return value < self.limit
        return value <= self.limit if self.upper else value >= self.limit


# Workload, measure, compared with, goal, floor.
BOUNDS = (
    ("rw4k_qd32", "iops", "dsync", 1.0, 0.45),
    ("rw4k_qd32 sustained", "iops", "dsync", 0.6, None),
    ("rw4k_qd1", "mean_us", "dsync", 2.0, 2.5),
    ("rr4k_qd32", "iops", "raw", 0.75, 0.45),
    ("rr4k_qd1", "mean_us", "raw", 1.4, None),
    ("mix4k_qd32", "iops", "raw", 0.75, None),
    ("mix64k_qd16", "MBps", "raw", 0.75, None),
    ("rr256k_qd16", "MBps", "raw", 0.95, None),
    ("sr1m_qd8", "MBps", "raw", 0.95, 0.8),
    ("sw1m_qd8", "MBps", "dsync", 0.5, 0.3),
    ("rw4k_qd32", "process_cpu_us", None, 35, None),
    ("rr4k_qd32", "process_cpu_us", None, 18, None),
    (HALF, "p999_to_mean", None, 10, None),
    (None, "idle_percent", None, 0.5, 1.0),
    (None, "rss_mib", None, 200, 300),
)
GOALS = tuple(Bound(*what, goal) for *what, goal, _ in BOUNDS)
FLOORS = tuple(Bound(*what, floor) for *what, _, floor in BOUNDS if floor is not None)


class Limit(collections.namedtuple("Limit", "text limit unit upper")):
    """A bound of the benchmarks beside the data path: of one figure, as it is."""

    def __new__(cls, text, limit, unit="", upper=True):
        return super().__new__(cls, text, limit, unit, upper)

    @property
    def limit_text(self):
        return f"{'<=' if self.upper else '>='} {self.limit:g}{self.unit}"

    def holds(self, value):
        return value <= self.limit if self.upper else value >= self.limit


RECOVERY_LOG = 8 << 30
RECOVERY = Limit("recovery of a full log of 8 GiB", 10, " s")
# Beyond the formula of docs/formats.md: the program, its buffers, its connections.
MEMORY = Limit("memory of a host beyond the formula of its disks", 150, " MiB")
EQUAL = Limit("IOPS of the slower of two equal volumes to the other's", 0.9, upper=False)
BESIDE = Limit("p99 at depth 1 beside depth 128 to p99 alone", 3)


def chunk_writes(chunks):
    """One block in each of a volume's first chunks. Without the size fio would go round until it
    has written as many bytes as the volume has."""
    return Workload("write:1020k", "4k", 64, (f"--io_size={4096 * chunks}",))


class Results:
    """The figures of every round by system and workload; medians and ratios of them."""

    def __init__(self):
        self.rounds = {}  # (system, workload) -> [figures of each round]
        self.process = {}  # of the daemons: rss_mib, idle_percent

    def add(self, system, workload, figures):
        self.rounds.setdefault((system, workload), []).append(figures)

    def has(self, system, workload):
        return (system, workload) in self.rounds

    def systems(self, workload):
        return [s for s, w in self.rounds if w == workload]

    def values(self, system, workload, measure):
        """One value a round; None where a round has none."""
        return [r.get(measure) for r in self.rounds.get((system, workload), [])]

    def median(self, system, workload, measure):
        known = [v for v in self.values(system, workload, measure) if v is not None]
        return statistics.median(known) if known else None

    def foreign(self, workload):
        """Cores that other work took at most while this was measured."""
        rounds = [r for (_, w), found in self.rounds.items() if w == workload for r in found]
        return max((r.get("foreign_cores", 0.0) for r in rounds), default=0.0)

    def ratio(self, workload, against, measure):
        """The median of the rounds' own ratios: figures drift, those of one round compare."""
        pairs = zip(
            self.values("atoll", workload, measure), self.values(against, workload, measure)
        )
        ratios = [mine / theirs for mine, theirs in pairs if mine is not None and theirs]
        return statistics.median(ratios) if ratios else None

    def judge(self, bounds):
        """[(bound, value, "held", "MISSED" or "not measured")]. What should have been measured and
        has no figure counts as missed: silence is not success."""
        judged = []
        for bound in bounds:
            if bound.workload is None:
                value = self.process.get(bound.measure)
                wanted = bool(self.process)
            elif bound.against:
                value = self.ratio(bound.workload, bound.against, bound.measure)
                wanted = all(self.has(s, bound.workload) for s in ("atoll", bound.against))
            else:
                value = self.median("atoll", bound.workload, bound.measure)
                wanted = self.has("atoll", bound.workload)
            if value is None:
                verdict = "MISSED" if wanted else "not measured"
            else:
                verdict = "held" if bound.holds(value) else "MISSED"
            judged.append((bound, value, verdict))
        return judged

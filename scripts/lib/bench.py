"""The data path of a three-host cluster on this machine, as ratios to the raw disk in the same
run.

Three hosts as processes, two copies, durable acknowledgements, checksums on, one preconditioned
volume through NBD over a Unix socket; beside it a raw file on the same disk, O_DIRECT and
O_DIRECT + O_DSYNC. For each workload the systems take turns; a figure is the median over the
rounds, a ratio the median of the rounds' own ratios: absolute figures drift, ratios of one run
compare.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

from cluster import Cluster
from process import CommandFailed, Interrupted, Stack, raise_on_signals

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
HERTZ = os.sysconf("SC_CLK_TCK")
VOLUME = "bench"

WORKLOADS = {  # name: (rw, block size, depth, extra)
    "rr4k_qd32": ("randread", "4k", 32, ()),
    "rr4k_qd1": ("randread", "4k", 1, ()),
    "rr256k_qd16": ("randread", "256k", 16, ()),
    "sr1m_qd8": ("read", "1m", 8, ()),
    "mix4k_qd32": ("randrw", "4k", 32, ("--rwmixread=70",)),
    "mix64k_qd16": ("randrw", "64k", 16, ("--rwmixread=70",)),
    "rw4k_qd32": ("randwrite", "4k", 32, ()),
    "rw4k_qd1": ("randwrite", "4k", 1, ()),
    "sw1m_qd8": ("write", "1m", 8, ()),
}
# What must be reached: workload -> (against, measure, bound). A latency's ratio is an upper bound.
FLOORS = {
    "rr4k_qd32": ("raw", "iops", 0.45),
    "sr1m_qd8": ("raw", "MBps", 0.8),
    "rw4k_qd32": ("dsync", "iops", 0.45),
    "rw4k_qd1": ("dsync", "mean_us", 2.5),
    "sw1m_qd8": ("dsync", "MBps", 0.3),
}
RSS_MIB, IDLE_PERCENT = 300, 1.0
FOREIGN_CORES = 0.3  # other work on the machine above this spoils a measurement
SETTLE_S = 20.0


def log(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


# CPU, from /proc.


def cpu_of(pid):
    """CPU seconds of a process, all its threads; 0 once it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / HERTZ
    except (OSError, IndexError):
        return 0.0


def kernel_cpu():
    """CPU seconds of every kernel thread by pid: disk completion, journal, softirqs."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as f:
                    fields = f.read().rsplit(")", 1)[1].split()
            except (OSError, IndexError):
                continue
            if fields[1] == "2":
                found[name] = (int(fields[11]) + int(fields[12])) / HERTZ
    return found


def machine_cpu():
    """Busy CPU seconds of the whole machine."""
    with open("/proc/stat", encoding="ascii") as f:
        fields = [int(x) for x in f.readline().split()[1:]]
    return sum(fields[i] for i in (0, 1, 2, 5, 6)) / HERTZ


def memory_mib(pid, field):
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as f:
        for line in f:
            if line.startswith(field + ":"):
                return int(line.split()[1]) / 1024
    return 0.0


class Fio:
    """Runs fio on one target and accounts for the CPU of everybody involved."""

    def __init__(self, stack, directory, runtime, ramp, size):
        self.stack, self.directory = stack, directory
        self.runtime, self.ramp, self.size = runtime, ramp, size

    def _run(self, target, words, pids=()):
        out = os.path.join(self.directory, "fio.json")
        argv = [
            "fio",
            "--name=w",
            *target,
            *words,
            f"--size={self.size}",
            "--direct=1",
            "--thread=1",
            "--norandommap=1",
            "--random_generator=tausworthe64",
            "--group_reporting=1",
            "--unified_rw_reporting=both",
            "--percentile_list=50:99:99.9",
            f"--output={out}",
            "--output-format=json",
        ]
        errors = os.path.join(self.directory, "fio.log")
        with open(errors, "wb") as err:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=err,
                stderr=err,
                cwd=self.directory,
                start_new_session=True,
            )
        samples = []
        try:
            while True:
                samples.append(
                    (
                        time.monotonic(),
                        sum(map(cpu_of, pids)),
                        cpu_of(child.pid),
                        machine_cpu(),
                        kernel_cpu(),
                    )
                )
                try:
                    child.wait(0.5)
                    break
                except subprocess.TimeoutExpired:
                    if time.monotonic() - samples[0][0] > 900:
                        raise RuntimeError("fio does not end") from None
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
        try:
            with open(out, encoding="utf-8") as f:
                text = f.read()
            job = json.loads(text[text.index("{") :])["jobs"][0]
        except (OSError, ValueError, LookupError):
            job = {"error": "no report"}
        if child.returncode or job.get("error"):
            with open(errors, encoding="utf-8", errors="replace") as f:
                raise RuntimeError(f"fio ended with {child.returncode}: {f.read()[-800:]}")
        return job, samples

    def precondition(self, target):
        """Writes everything once, so that nothing measured allocates."""
        self._run(target, ["--rw=write", "--bs=1m", "--iodepth=8", "--end_fsync=1"])

    def measure(self, target, workload, pids=()):
        """One workload; the same figures as every system gets, CPU in microseconds per I/O."""
        rw, size, depth, extra = WORKLOADS[workload]
        job, samples = self._run(
            target,
            [
                f"--rw={rw}",
                f"--bs={size}",
                f"--iodepth={depth}",
                *extra,
                "--time_based=1",
                f"--runtime={self.runtime}",
                f"--ramp_time={self.ramp}",
                "--randrepeat=0",
            ],
            pids,
        )
        mixed = job["mixed"]
        if not mixed["total_ios"]:
            raise RuntimeError(f"fio did nothing in {workload}")
        percentiles = mixed["clat_ns"].get("percentile", {})
        # The middle of the run: neither the ramp nor fio's own end is charged to anybody.
        first, last = samples[0][0] + self.ramp + 0.5, samples[-1][0] - 0.7
        window = [s for s in samples if first <= s[0] <= last]
        figures = {
            "iops": mixed["iops"],
            "MBps": mixed["bw_bytes"] / 1e6,
            "mean_us": mixed["lat_ns"]["mean"] / 1000,
            "p50_us": percentiles.get("50.000000", 0) / 1000,
            "p99_us": percentiles.get("99.000000", 0) / 1000,
            "p999_us": percentiles.get("99.900000", 0) / 1000,
        }
        if len(window) >= 2:
            a, b = window[0], window[-1]
            seconds = b[0] - a[0]
            kernel = sum(max(0.0, cpu - a[4].get(pid, 0.0)) for pid, cpu in b[4].items())
            daemons, client, machine = (b[i] - a[i] for i in (1, 2, 3))
            per_io = 1e6 / (mixed["iops"] * seconds)
            figures |= {
                "cpu_us": (daemons + client + kernel) * per_io,
                "daemon_cpu_us": daemons * per_io,
                "foreign_cores": max(0.0, machine - daemons - client - kernel) / seconds,
            }
        return figures


class Bench:
    def __init__(self, options, stack):
        self.options = options
        self.directory = stack.directory("atoll-bench-", parent=options.dir)
        self.fio = Fio(stack, self.directory, options.runtime, options.ramp, options.size)
        self.cluster = Cluster(
            stack, os.path.join(self.directory, "c"), disk_size=options.disk_size
        )
        os.mkdir(self.cluster.directory)
        raw = os.path.join(self.directory, "raw.img")
        plain = ["--ioengine=io_uring", f"--filename={raw}"]
        self.targets = {
            "raw": plain,
            "dsync": [*plain, "--sync=dsync"],
            "atoll": ["--ioengine=nbd", f"--uri={self.cluster.uri(1, VOLUME)}"],
        }
        self.results = {}  # (system, workload) -> [figures of each round]

    def pids(self):
        return [pid for pid in map(self.cluster.pid, range(1, 4)) if pid]

    def prepare(self):
        log("starting three hosts, making a volume with two copies")
        self.cluster.begin()
        if "mirror" not in {p["name"] for p in self.cluster.get("policy", "list")}:
            self.cluster.cli("policy", "create", "mirror", "--failures-to-tolerate", "1")
        self.cluster.cli(
            "volume",
            "create",
            VOLUME,
            self.options.size.upper().replace("G", "GiB"),
            "--policy",
            "mirror",
        )
        for system in ("raw", "atoll"):
            begun = time.monotonic()
            self.fio.precondition(self.targets[system])
            log(f"{system}: preconditioned {self.options.size} in {time.monotonic() - begun:.0f} s")
        self.settle()

    def settle(self):
        """Waits until the hosts have moved what was acknowledged to where it stays, or 20 s."""
        until = time.monotonic() + SETTLE_S
        while time.monotonic() < until:
            fills = [g["log_fill_percent"] for g in self.cluster.get("group", "list")]
            if max(fills, default=0) <= 5:
                return
            time.sleep(0.5)

    def round(self, number):
        systems = ["raw", "dsync", "atoll"]
        systems = systems[number % 3 :] + systems[: number % 3]
        for workload in self.options.workloads:
            for system in systems:
                if system == "dsync" and WORKLOADS[workload][0] in ("randread", "read"):
                    continue
                pids = self.pids() if system == "atoll" else ()
                for attempt in range(2):
                    if system == "atoll":
                        self.settle()
                    figures = self.fio.measure(self.targets[system], workload, pids)
                    if figures.get("foreign_cores", 0) <= FOREIGN_CORES or attempt:
                        break
                    log(
                        f"{workload} {system}: other work took {figures['foreign_cores']:.1f} cores; once more"
                    )
                self.results.setdefault((system, workload), []).append(figures)
                log(
                    f"round {number + 1}  {workload:<12} {system:<6} {figures['iops']:>9,.0f} IOPS "
                    f"{figures['MBps']:>7,.0f} MB/s  mean {figures['mean_us']:>6,.0f} us"
                )

    def idle(self):
        """Percent of a core that the busiest host uses when nothing asks it for anything."""
        self.settle()
        time.sleep(3)
        pids = self.pids()
        before, begun = {pid: cpu_of(pid) for pid in pids}, time.monotonic()
        time.sleep(10)
        return max(100 * (cpu_of(pid) - before[pid]) / (time.monotonic() - begun) for pid in pids)

    def run(self):
        self.prepare()
        for number in range(self.options.rounds):
            self.round(number)
        memory = max(memory_mib(pid, "VmRSS") for pid in self.pids())
        peak = max(memory_mib(pid, "VmHWM") for pid in self.pids())
        return {"rss_mib": memory, "rss_peak_mib": peak, "idle_percent": self.idle()}

    def median(self, system, workload, measure):
        values = [r[measure] for r in self.results.get((system, workload), []) if measure in r]
        return statistics.median(values) if values else None

    def ratio(self, workload, against, measure):
        """The median of the rounds' own ratios."""
        pairs = zip(self.results[("atoll", workload)], self.results[(against, workload)])
        return statistics.median(mine[measure] / theirs[measure] for mine, theirs in pairs)


def report(bench, process):
    """Prints the table; returns (the machine-readable result, names of floors that were missed)."""
    options, missed, rows = bench.options, [], []
    print(
        f"\n3 hosts on one machine, 2 copies, durable; {options.size} volume, {options.rounds} round(s) of "
        f"{options.runtime} s after {options.ramp} s\n"
    )
    print(
        f"{'workload':<12}{'raw O_DIRECT':>14}{'raw O_DSYNC':>14}{'atoll':>12}{'mean us':>10}{'p99 us':>11}"
        f"{'CPU us/IO':>11}{'ratio':>8}  bound"
    )
    for workload in options.workloads:
        against, measure, bound = FLOORS.get(workload, ("raw", "iops", None))
        shown = "MBps" if WORKLOADS[workload][1] not in ("4k",) else "iops"

        def cell(system):
            value = bench.median(system, workload, shown)
            if value is None:
                return "-"
            return f"{value:,.0f} MB/s" if shown == "MBps" else f"{value:,.0f}"

        ratio = bench.ratio(workload, against, measure)
        verdict = ""
        if bound is not None:
            upper = measure == "mean_us"
            holds = ratio <= bound if upper else ratio >= bound
            verdict = f"{'<=' if upper else '>='} {bound:g}" + ("" if holds else " MISSED")
            if not holds:
                missed.append(
                    f"{workload}: {ratio:.2f}, must be {'at most' if upper else 'at least'} {bound:g}"
                )
        cpu = bench.median("atoll", workload, "cpu_us")
        print(
            f"{workload:<12}{cell('raw'):>14}{cell('dsync'):>14}{cell('atoll'):>12}"
            f"{bench.median('atoll', workload, 'mean_us'):>10,.0f}{bench.median('atoll', workload, 'p99_us'):>11,.0f}"
            f"{'-' if cpu is None else f'{cpu:.1f}':>11}{ratio:>8.2f}  {verdict}"
        )
        rows.append(
            {
                "workload": workload,
                "against": against,
                "measure": measure,
                "ratio": ratio,
                "bound": bound,
                **{
                    system: {
                        m: bench.median(system, workload, m)
                        for m in (
                            "iops",
                            "MBps",
                            "mean_us",
                            "p50_us",
                            "p99_us",
                            "p999_us",
                            "cpu_us",
                            "daemon_cpu_us",
                        )
                    }
                    for system in ("raw", "dsync", "atoll")
                    if (system, workload) in bench.results
                },
            }
        )
    print()
    for name, value, bound, unit in (
        ("memory of a host process", process["rss_mib"], RSS_MIB, "MiB"),
        ("idle CPU of a host process", process["idle_percent"], IDLE_PERCENT, "% of a core"),
    ):
        holds = value < bound
        print(
            f"{name:<28}{value:>8.1f} {unit}, must be under {bound:g}"
            + ("" if holds else " MISSED")
        )
        if not holds:
            missed.append(f"{name}: {value:.1f} {unit}, must be under {bound:g}")
    return {
        "options": {k: getattr(options, k) for k in ("size", "rounds", "runtime", "ramp")},
        "workloads": rows,
        "process": process,
        "missed": missed,
    }, missed


def peers(options):
    """The competitors of the workplace, one after the other, on the same workloads."""
    place = os.path.join(os.path.dirname(REPOSITORY), "shared", "peers")
    if not os.path.isdir(place):
        log(f"no harness for peers at {place}: skipped")
        return
    words = [
        "--workloads",
        ",".join(options.workloads),
        "--runtime",
        str(options.runtime),
        "--ramp",
        str(options.ramp),
        "--size",
        options.size,
    ]
    for name, more in (("ceph", ["--client", "rbd"]), ("gluster", [])):
        log(f"peer {name}")
        done = subprocess.run(
            [os.path.join(place, name), *more, *words],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        for line in done.stdout.splitlines():
            figures = json.loads(line)
            if "error" in figures:
                print(f"{figures['config']:<24}{figures['workload']:<12} {figures['error']}")
            else:
                print(
                    f"{figures['peer'] + ' ' + figures['config']:<24}{figures['workload']:<12}{figures['iops']:>10,.0f} IOPS"
                    f"{figures['MBps']:>8,.0f} MB/s  mean {figures['mean_us']:>7,.0f} us  CPU "
                    f"{1000 * figures.get('total_cpu_s_per_1k', 0):>7.1f} us/IO"
                )


def main():
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", nargs="?", default="data-path", choices=["data-path"])
    parser.add_argument(
        "--quick", action="store_true", help="one short round of the workloads that have a bound"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runtime", type=int, default=8, help="measured seconds of a workload")
    parser.add_argument("--ramp", type=int, default=2, help="seconds before them")
    parser.add_argument("--size", default="4g", help="of the volume and the raw file")
    parser.add_argument("--disk-size", default="16GiB", help="of each host's disk")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="comma list")
    parser.add_argument(
        "--dir", default="/var/tmp", help="where the disks are made: on the disk to measure"
    )
    parser.add_argument("--json", metavar="FILE", help="write everything there too")
    parser.add_argument("--check", action="store_true", help="exit status 1 if a bound is missed")
    parser.add_argument(
        "--peers",
        action="store_true",
        help="also run the competitors, where their harness is at hand",
    )
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.runtime, options.ramp = 1, 5, 1
        options.workloads = ",".join(w for w in WORKLOADS if w in FLOORS)
    options.workloads = options.workloads.split(",")
    unknown = [w for w in options.workloads if w not in WORKLOADS]
    if unknown:
        parser.error(f"no workload {unknown[0]}; there are {', '.join(WORKLOADS)}")
    raise_on_signals()
    try:
        with Stack() as stack:
            bench = Bench(options, stack)
            result, missed = report(bench, bench.run())
        if options.json:
            with open(options.json, "w", encoding="utf-8") as f:
                json.dump(result, f, indent=1)
        if options.peers:
            peers(options)
    except (RuntimeError, CommandFailed, TimeoutError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except Interrupted as signal:
        print(f"interrupted ({signal})", file=sys.stderr)
        return 130
    for line in missed:
        print(f"missed: {line}")
    return 1 if missed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())

"""Runs fio on one target and accounts for what everybody involved spent on it.

CPU, bytes written and foreign work come from `/proc`, sampled while fio runs and cut to the time
that fio itself measured (its latency log says when), so that neither a ramp nor an end is charged
to anybody. Never judges a figure.
"""

import collections
import glob
import json
import os
import shutil
import signal
import statistics
import subprocess
import time

from goals import plain_of, writes
from process import end

HERTZ = os.sysconf("SC_CLK_TCK")
GAP_MS = 10  # a pause between completions is known to within this
WHOLE_SECOND_MS = 900  # fio's logs end with what is left of a second
PERCENTILES = {"p50_us": 50, "p95_us": 95, "p99_us": 99, "p999_us": 99.9}
FIO_OVERTIME_S = 300  # fio ends within this beyond its runtime, or is broken


# From /proc.


def stat_fields(pid):
    """The fields of /proc/PID/stat behind the name, or None once it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
            return f.read().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None


def cpu_of(pid):
    """CPU seconds of a process, all its threads; 0 once it is gone."""
    fields = stat_fields(pid)
    return (int(fields[11]) + int(fields[12])) / HERTZ if fields else 0.0


def written_by(pid):
    """Bytes that a process has sent to disks."""
    try:
        with open(f"/proc/{pid}/io", encoding="ascii") as f:
            return next(int(line.split()[1]) for line in f if line.startswith("write_bytes:"))
    except (OSError, StopIteration):
        return 0


def machine_cpu():
    """(busy, stolen) CPU seconds of the whole machine."""
    with open("/proc/stat", encoding="ascii") as f:
        fields = [int(x) for x in f.readline().split()[1:]]
    return sum(fields[i] for i in (0, 1, 2, 5, 6)) / HERTZ, fields[7] / HERTZ


def memory_mib(pid, field):
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as f:
        for line in f:
            if line.startswith(field + ":"):
                return int(line.split()[1]) / 1024
    return 0.0


class KernelThreads:
    """CPU seconds of all kernel threads together: disk completion, journal, softirqs. They come and
    go, so it adds up the steps."""

    def __init__(self):
        self.others, self.last, self.total = set(), None, 0.0

    def read(self):
        now = {}
        for name in os.listdir("/proc"):
            if not name.isdigit() or name in self.others:
                continue
            fields = stat_fields(name)
            if fields is None:
                continue
            if fields[1] == "2" or name == "2":
                now[name] = (int(fields[11]) + int(fields[12])) / HERTZ
            else:
                self.others.add(name)
        if self.last is not None:
            self.total += sum(max(0.0, cpu - self.last.get(p, 0.0)) for p, cpu in now.items())
        self.last = now
        return self.total


class Elsewhere:
    """What others do on the machine meanwhile: neither the daemons, nor the kernel's threads, nor
    this script and the children of it that have ended by then."""

    def __init__(self, daemons):
        self.daemons, self.kernel = daemons, KernelThreads()
        self.begun, self.before = time.monotonic(), self._spent()

    def _spent(self):
        ours = sum(map(cpu_of, self.daemons)) + self.kernel.read() + sum(os.times()[:4])
        return machine_cpu()[0] - ours

    def cores(self):
        return max(0.0, self._spent() - self.before) / (time.monotonic() - self.begun)


Sample = collections.namedtuple("Sample", "at daemons client kernel busy stolen own written")


# fio's own logs.


def bucket_us(index):
    """The middle of a bucket of fio's latency histograms: 64 buckets an octave, in ns."""
    if index < 128:
        return index / 1000
    shift = (index >> 6) - 1
    return ((1 << (shift + 6)) + ((index & 63) + 0.5) * (1 << shift)) / 1000


def seconds_of(path):
    """Of each whole second: (I/Os, its 99.9th percentile in us), from a histogram log."""
    by_second = {}
    with open(path, encoding="ascii") as f:
        for line in f:
            at, _, _, *counts = map(int, line.split(","))
            known = by_second.setdefault(at, counts)
            if known is not counts:  # the other direction of a mixed workload
                by_second[at] = [a + b for a, b in zip(known, counts)]
    found, before = [], None
    for at, counts in sorted(by_second.items()):
        whole, before = before is None or at - before >= WHOLE_SECOND_MS, at
        if not whole:  # the end of the run
            continue
        total = sum(counts)
        above, bucket = total / 1000, len(counts)
        while above > 0:
            bucket -= 1
            above -= counts[bucket]
        found.append((total, bucket_us(bucket) if total else 0.0))
    return found


def completions_of(path):
    """(when completions were seen, in unix ms and ascending; the slowest of all in us)."""
    at, slowest = [], 0
    with open(path, encoding="ascii") as f:
        for line in f:
            words = line.split(",")
            at.append(int(words[0]))
            slowest = max(slowest, int(words[1]))
    return sorted(at), slowest / 1000


def stall_profile(directory, at, slowest):
    """How even a workload went: its longest gap without any completion, its worst seconds."""
    figures = {"slowest_us": slowest}
    if len(at) > 1:
        figures["gap_ms"] = max(b - a for a, b in zip(at, at[1:]))
    hist = os.path.join(directory, "w_clat_hist.1.log")
    seconds = seconds_of(hist) if os.path.exists(hist) else []
    if len(seconds) > 1:
        mean = statistics.mean(count for count, _ in seconds)
        figures |= {
            "second_p999_us": statistics.median(p for _, p in seconds),
            "worst_second_p999_us": max(p for _, p in seconds),
            "worst_second_share": min(count for count, _ in seconds) / mean if mean else 0.0,
        }
    return figures


class Fio:
    """Runs fio; leaves nothing of it behind."""

    def __init__(self, directory, size):
        self.directory, self.size = directory, size

    def _run(self, target, words, seconds, daemons=(), period_s=0.5, watch=None, env=None):
        """Runs it to its end, or until `watch(pid of fio)` is true. Returns (the job's report, the
        samples in the window that fio measured, when completions were seen, the slowest)."""
        for old in glob.glob(os.path.join(self.directory, "w_*.log")):
            os.unlink(old)
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
            "--percentile_list=" + ":".join(f"{p:g}" for p in PERCENTILES.values()),
            f"--write_lat_log={os.path.join(self.directory, 'w')}",
            f"--log_avg_msec={GAP_MS}",
            "--log_max_value=1",
            "--log_unix_epoch=1",
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
                env=env,
                start_new_session=True,
            )
        samples, kernel, stopped = [], KernelThreads(), False
        until = time.monotonic() + seconds + FIO_OVERTIME_S
        try:
            while True:
                samples.append(
                    Sample(
                        time.time(),
                        sum(map(cpu_of, daemons)),
                        cpu_of(child.pid),
                        kernel.read(),
                        *machine_cpu(),
                        sum(os.times()[:2]),
                        sum(map(written_by, daemons or [child.pid])),
                    )
                )
                try:
                    child.wait(period_s)
                    break
                except subprocess.TimeoutExpired:
                    if time.monotonic() > until:
                        raise RuntimeError("fio does not end") from None
                if watch is not None and not stopped and watch(child.pid):
                    child.send_signal(signal.SIGINT)  # it still reports what it measured
                    stopped = True
        finally:
            end(child, 1.0)
        try:
            with open(out, encoding="utf-8") as f:
                text = f.read()
            job = json.loads(text[text.index("{") :])["jobs"][0]
        except (OSError, ValueError, LookupError):
            job = {"error": "no report"}
        if job.get("error") or (child.returncode and not stopped):
            with open(errors, encoding="utf-8", errors="replace") as f:
                raise RuntimeError(f"fio ended with {child.returncode}: {f.read()[-800:]}")
        lat = os.path.join(self.directory, "w_lat.1.log")
        at, slowest = completions_of(lat) if os.path.exists(lat) else ([], 0.0)
        window = [s for s in samples if at and at[0] <= s.at * 1000 <= at[-1]]
        return job, window, at, slowest

    def precondition(self, target):
        """Writes everything once, so that nothing measured allocates."""
        words = ["--rw=write", "--bs=1m", "--iodepth=8", "--end_fsync=1"]
        self._run(target, words, FIO_OVERTIME_S)

    def write_all(self, target, workload):
        """Runs a workload once over everything, without measuring it."""
        plain = plain_of(workload)
        words = [f"--rw={plain.rw}", f"--bs={plain.size}", f"--iodepth={plain.depth}"]
        self._run(target, [*words, *plain.extra], FIO_OVERTIME_S)

    def write_until(self, target, workload, enough, limit_s, period_s=1.0):
        """Runs a workload without measuring it until `enough()`, at most so long."""
        plain = plain_of(workload)
        words = [f"--rw={plain.rw}", f"--bs={plain.size}", f"--iodepth={plain.depth}"]
        self._until(target, [*words, *plain.extra], enough, limit_s, period_s)

    def fill_log_until(self, target, enough, limit_s):
        """Writes much through the log, without measuring it, until `enough()`."""
        words = ["--rw=randwrite", "--bs=64k", "--iodepth=16"]
        self._until(target, words, enough, limit_s, 0.5)

    def _until(self, target, words, enough, limit_s, period_s):
        self._run(
            target,
            [
                *words,
                "--time_based=1",
                f"--runtime={limit_s}",
                "--randrepeat=0",
            ],
            limit_s,
            period_s=period_s,
            watch=lambda _: enough(),
        )

    def measure(
        self,
        target,
        workload,
        runtime,
        ramp,
        daemons=(),
        watch=None,
        extra=(),
        period_s=0.5,
        steady=False,
    ):
        """One workload; the same figures for every system, times in us, CPU in us per I/O. How
        steady it was is among them if it writes, or if `steady` asks for it."""
        steady = steady or writes(workload)
        plain = plain_of(workload)
        words = [
            f"--rw={plain.rw}",
            f"--bs={plain.size}",
            f"--iodepth={plain.depth}",
            *plain.extra,
            *extra,
            "--time_based=1",
            f"--runtime={runtime}",
            f"--ramp_time={ramp}",
            "--randrepeat=0",
        ]
        if steady:
            words += [f"--write_hist_log={os.path.join(self.directory, 'w')}"]
            words += ["--log_hist_msec=1000"]
        job, window, at, slowest = self._run(
            target, words, runtime + ramp, daemons, period_s, watch
        )
        mixed = job["mixed"]
        if not mixed["total_ios"]:
            raise RuntimeError(f"fio measured nothing in {workload}")
        percentiles = mixed["clat_ns"].get("percentile", {})
        figures = {
            "iops": mixed["iops"],
            "MBps": mixed["bw_bytes"] / 1e6,
            "mean_us": mixed["lat_ns"]["mean"] / 1000,
            **{name: percentiles.get(f"{p:f}", 0) / 1000 for name, p in PERCENTILES.items()},
            "seconds": mixed["runtime"] / 1000,
        }
        figures["p999_to_mean"] = figures["p999_us"] / figures["mean_us"]
        if steady:
            figures |= stall_profile(self.directory, at, slowest)
        return figures | self._spent(job, window, bool(daemons))

    @staticmethod
    def _spent(job, window, has_daemons):
        """What the I/O of a window cost; nothing when the window is too short to say."""
        if len(window) < 2 or window[-1].at - window[0].at < 1.0:
            return {}
        step = Sample(*(b - a for a, b in zip(window[0], window[-1])))
        ours = step.daemons + step.client + step.kernel
        per_io = 1e6 / (job["mixed"]["iops"] * step.at)
        figures = {
            "daemon_cpu_us": step.daemons * per_io if has_daemons else None,
            "client_cpu_us": step.client * per_io,
            "kernel_cpu_us": step.kernel * per_io,
            "process_cpu_us": (step.daemons + step.client) * per_io,
            "total_cpu_us": ours * per_io,
            "foreign_cores": max(0.0, step.busy - ours - step.own) / step.at,
            "stolen_cores": step.stolen / step.at,
        }
        guest = job["write"]["bw_bytes"] * step.at
        if guest:
            figures["disk_bytes_per_byte"] = step.written / guest
        return figures

    def count_syscalls(self, target, workload, daemons, ramp, seconds=3):
        """Syscalls per I/O of daemons and client, by `perf stat` in the middle of a run of its own:
        counting costs something. Empty where perf cannot."""
        if shutil.which("perf") is None:
            return {}
        counters, begun = {}, time.monotonic()
        path = {who: os.path.join(self.directory, f"perf.{who}") for who in ("daemon", "client")}
        for name in path.values():
            with open(name, "wb"):
                pass  # a perf that fails leaves it empty

        def watch(fio):
            if not counters and time.monotonic() - begun > ramp + 1:
                for who, pids in (("daemon", daemons), ("client", [fio])):
                    counters[who] = subprocess.Popen(
                        [
                            *("perf", "stat", "-x", ",", "-e", "raw_syscalls:sys_enter"),
                            *("-o", path[who], "-p", ",".join(map(str, pids))),
                            *("sleep", str(seconds)),
                        ],
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                        start_new_session=True,
                    )
            return bool(counters) and all(c.poll() is not None for c in counters.values())

        try:
            run = self.measure(target, workload, seconds + 60, ramp, daemons, watch)
        finally:
            for counter in counters.values():
                end(counter, 1.0)
        figures = {}
        for who in counters:
            with open(path[who], encoding="ascii", errors="replace") as f:
                counted = [line.split(",")[0] for line in f if "sys_enter" in line]
            if counted and counted[0].isdigit():
                figures[f"{who}_syscalls"] = int(counted[0]) / (seconds * run["iops"])
        return figures

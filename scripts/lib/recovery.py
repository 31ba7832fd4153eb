"""How long a host takes to start, as a function of its log and of its capacity.

One host is killed with a full log, or with many chunks on its disk, and started again; beside it, a
host that was stopped in order. Times count from when the process began: until it answers its
interface, until its disk group is open and it serves, until every volume is healthy again.
"""

import argparse
import contextlib
import datetime
import os
import sys
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

from cluster import Cluster
from goals import RECOVERY, RECOVERY_LOG, Workload, chunk_writes
from measure import HERTZ, Fio, cpu_of, memory_mib, stat_fields
from process import Stack, wait_until
from runs import (
    GIB,
    MIB,
    Report,
    bytes_of,
    finish,
    log,
    need_fio_and_room,
    parser_of,
    size_text,
    sizes_of,
    tell_of_failures,
)
from tables import number

VOLUME = "bench"
LOGS, CAPACITIES = "512MiB,2GiB,8GiB", "16GiB,64GiB,256GiB"
QUICK_LOGS, QUICK_CAPACITIES = "512MiB", "16GiB"
COPIES = 2
CAPACITY_LOG = 512 * MIB  # small beside what the chunks themselves cost
CHUNKS = 100_000
FULL = 0.70  # of the log: writers are slowed from 0.72 on
PLATEAU_S = 12  # the fill has not risen for so long: the disk keeps up, fuller it does not get
FILL_S = 300
PATTERNS = {
    "4k": Workload("randwrite", "4k", 128, ()),
    "64k": Workload("randwrite", "64k", 32, ()),
    "1m": Workload("randwrite", "1m", 8, ()),  # whole chunks, which go past the log
}
LOOK_S = 0.002
DEGRADED_S, OPEN_S, HEALTHY_S = 20, 300, 120
OPENING, SERVING = "this host is opening its disks", "serving host="
EXAMPLES = """examples:
  scripts/bench recovery                  logs up to 8 GiB, disks up to 256 GiB: 25 minutes
  scripts/bench recovery --check --json result.json --markdown result.md
  scripts/bench recovery --logs 8GiB --patterns 4k --capacities ""
  scripts/bench recovery --quick          one small log, one small disk
"""


def started_at(pid):
    """When a process began, on CLOCK_BOOTTIME, to within 10 ms."""
    return int(stat_fields(pid)[19]) / HERTZ


def now():
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def opening_seconds(path):
    """Between the last two lines of a host's log that say what it begins and that it is done."""
    with open(path, encoding="utf-8", errors="replace") as f:
        lines = f.readlines()
    at = {}
    for line in lines:
        for what in (OPENING, SERVING):
            if what in line:
                at[what] = datetime.datetime.fromisoformat(line.split()[0].replace("Z", "+00:00"))
    return (at[SERVING] - at[OPENING]).total_seconds()


class Recovery:
    def __init__(self, options, stack):
        self.options, self.stack, self.report = options, stack, Report()
        self.directory = stack.directory("atoll-recovery-", parent=options.dir)
        self.number = 0

    @contextlib.contextmanager
    def cluster(self, copies, disk_bytes, log_bytes, volume_bytes):
        """A cluster with one volume; the hosts that have a copy all have such a disk. Yields it and
        the host to restart: a copy that does not own the volume, or the only one."""
        self.number += 1
        with Stack() as stack:
            where = stack.directory(f"{self.number}-", parent=self.directory)
            hosts = 1 if copies == 1 else 2
            cluster = Cluster(stack, os.path.join(where, "c"), hosts=hosts, disk_size="1GiB")
            os.mkdir(cluster.directory)
            tell_of_failures(stack, cluster)
            cluster.begin()
            for host in range(1, hosts + 1):
                cluster.replace_disk(host, disk_bytes, log_bytes)
            cluster.wait_serving()
            if volume_bytes:
                wait_until(  # the others have to have seen the new groups
                    "the capacity to be known",
                    lambda: all(g["log_bytes"] for g in cluster.get("group", "list")),
                    30,
                )
                cluster.create_volume(VOLUME, volume_bytes, copies)
            fio = Fio(where, f"{volume_bytes >> 20}m")
            yield cluster, fio, hosts

    def target(self, cluster):
        return ["--ioengine=nbd", f"--uri={cluster.uri(1, VOLUME)}"]

    # Starting again.

    def healthy(self, cluster, watcher):
        volumes = cluster.get("volume", "list", host=watcher)
        return all(v["state"] == "healthy" for v in volumes)

    def down(self, cluster, host, how):
        """Takes a host down; returns the seconds that took, and waits until the others know."""
        begun = time.monotonic()
        if how == "killed":
            cluster.kill(host)
        else:
            cluster.stop_host(host)
        took = time.monotonic() - begun
        if cluster.hosts > 1:
            with contextlib.suppress(TimeoutError):
                wait_until(
                    "its absence to be seen", lambda: not self.healthy(cluster, 1), DEGRADED_S, 0.2
                )
        return took

    def up(self, cluster, host):
        """Starts a host; what that took, from the beginning of its process on."""
        asked = time.monotonic()
        starter = threading.Thread(target=cluster.start, args=(host, False), daemon=True)
        starter.start()
        pid = wait_until("its process", lambda: cluster.pid(host), 10, LOOK_S)
        began = started_at(pid)
        figures = {}

        def reached(path):
            try:
                return cluster.page(path, host)[0] == 200
            except OSError:
                if not cluster.pid(host):
                    raise RuntimeError(f"host{host} ended: see {cluster.log(host)}") from None
                return False

        for name, path in (("answers_s", "/healthz"), ("serves_s", "/readyz")):
            wait_until(f"host{host}: {path}", lambda path=path: reached(path), OPEN_S, LOOK_S)
            figures[name] = now() - began
        figures["cpu_s"], figures["peak_mib"] = cpu_of(pid), memory_mib(pid, "VmHWM")
        figures["open_s"] = opening_seconds(cluster.log(host))
        with contextlib.suppress(TimeoutError):
            wait_until("health", lambda: self.healthy(cluster, 1), HEALTHY_S, 0.05)
            figures["healthy_s"] = now() - began
        figures["peak_healthy_mib"] = memory_mib(pid, "VmHWM")
        figures["cpu_healthy_s"] = cpu_of(pid)
        starter.join(30)
        figures["asked_s"] = time.monotonic() - asked
        return figures

    def again(self, cluster, host, how, about):
        """Takes a host down and starts it; a row of the report."""
        fill = cluster.log_fill([host])
        log_bytes = cluster.metric("atoll_group_log_bytes", host)
        down_s = self.down(cluster, host, how)
        figures = {**about, "how": how, "fill": fill, "log_bytes": log_bytes, "down_s": down_s}
        figures |= self.up(cluster, host)
        self.report.figures.append(figures)
        shown = ", ".join(
            f"{name.removesuffix('_s')} {figures.get(name, float('nan')):.2f} s"
            for name in ("answers_s", "open_s", "healthy_s", "cpu_s")
        )
        log(f"{figures['case']}, {how} at {100 * fill:.0f} %: {shown}")
        return figures

    # Cases.

    def fill(self, cluster, fio, hosts, workload):
        """Writes until the log is as full as it gets before writers are slowed."""
        most, since = 0.0, time.monotonic()

        def enough():
            nonlocal most, since
            fill = cluster.log_fill(range(1, hosts + 1))
            if fill > most + 0.01:
                most, since = fill, time.monotonic()
            return fill >= FULL or time.monotonic() - since > PLATEAU_S

        begun = time.monotonic()
        fio.write_until(self.target(cluster), workload, enough, FILL_S, period_s=0.25)
        log(f"the log was {100 * most:.0f} % full after {time.monotonic() - begun:.0f} s")

    def of_log(self, log_bytes, pattern):
        copies = copies_of(self.options, log_bytes)
        volume = max(log_bytes, GIB)
        disk = volume + log_bytes + 4 * GIB
        case = f"log {size_text(log_bytes)}, {pattern} writes"
        about = {"case": case, "pattern": pattern, "copies": copies, "disk_bytes": disk}
        log(f"{case}: {copies} copies; formatting")
        with self.cluster(copies, disk, log_bytes, volume) as (cluster, fio, host):
            if pattern == "4k":
                empty = {**about, "case": f"log {size_text(log_bytes)}, empty", "pattern": None}
                self.again(cluster, host, "killed", empty)
            self.fill(cluster, fio, host, PATTERNS[pattern])
            # The log is as full as it was when it starts again: blocks leave it only after a rest.
            for how in ("killed", "stopped"):
                self.again(cluster, host, how, about)

    def of_capacity(self, disk_bytes):
        """Nothing on the disk; then one block in each of its chunks."""
        # What a disk needs for itself is below a tenth.
        volume = (disk_bytes - CAPACITY_LOG) * 9 // 10 // MIB * MIB
        volume = min(volume, self.options.chunks * MIB)
        name = size_text(disk_bytes)
        about = {"disk_bytes": disk_bytes, "copies": 1, "chunks": 0}
        with self.cluster(1, disk_bytes, CAPACITY_LOG, volume) as (cluster, fio, host):
            for how in ("killed", "stopped"):
                self.again(cluster, host, how, {**about, "case": f"disk {name}, empty"})
            begun, chunks = time.monotonic(), volume // MIB
            fio.write_all(self.target(cluster), chunk_writes(chunks))
            log(f"{chunks} chunks written in {time.monotonic() - begun:.0f} s")
            about |= {"case": f"disk {name}, {chunks:,} chunks", "chunks": chunks}
            for how in ("killed", "stopped"):
                self.again(cluster, host, how, about)

    def run(self):
        options = self.options
        for log_bytes in sizes_of(options.logs):
            for pattern in options.patterns:
                if pattern == "4k" or log_bytes == min(sizes_of(options.logs)):
                    self.of_log(log_bytes, pattern)
        for disk_bytes in sizes_of(options.capacities):
            self.of_capacity(disk_bytes)
        return self.reported()

    def reported(self):
        report = self.report
        report.about = (
            "hosts on this machine; the one that is restarted has a copy and, where there are two, "
            "does not own the volume. Seconds from the beginning of its process; *open*: between "
            "its log's lines that it opens its disks and that it serves; CPU and peak until then."
        )
        head = ["case", "copies", "host was", "log % full", "down s", "answers s", "open s"]
        head += ["serves s", "healthy s", "CPU s", "peak MiB", "peak when healthy"]
        report.tables.append(
            (
                head,
                [
                    [f["case"], str(f["copies"]), f["how"], number(100 * f["fill"])]
                    + [number(f["down_s"], 2), number(f["answers_s"], 2), number(f["open_s"], 2)]
                    + [number(f["serves_s"], 2), number(f.get("healthy_s"), 2)]
                    + [number(f["cpu_s"], 2), number(f["peak_mib"]), number(f["peak_healthy_mib"])]
                    for f in report.figures
                ],
            )
        )
        # What is in the log is read, not what it could hold; a smaller one is scaled.
        full = [f for f in report.figures if f.get("pattern") == "4k" and f["how"] == "killed"]
        if full:
            largest = max(full, key=lambda f: f["log_bytes"])
            scale = RECOVERY_LOG / largest["log_bytes"]
            scaled = f" (scaled from {largest['log_bytes'] / GIB:.1f} GiB)" * (scale > 1.01)
            bound = RECOVERY._replace(text=RECOVERY.text + scaled)
            empty = next(
                f["serves_s"]
                for f in report.figures
                if f["log_bytes"] == largest["log_bytes"] and f.get("pattern", "") is None
            )
            # Only what the log takes grows with it.
            report.judge(bound, empty + (largest["serves_s"] - empty) * max(scale, 1.0))
        return report


def room_of(options):
    return bytes_of(options.room)


def copies_of(options, log_bytes):
    """Two, or one where two do not fit into the room."""
    return 2 if log_room(2, log_bytes) <= room_of(options) else 1


def log_room(copies, log_bytes):
    """Bytes: the log and what has left it, at most as much again as fits into the volume."""
    return copies * (2 * max(log_bytes, GIB) + GIB // 2)


def parse(argv=None):
    parser = parser_of("recovery", __doc__, EXAMPLES)
    parser.add_argument("--logs", metavar="A,B", help=f"sizes of the log (default {LOGS})")
    parser.add_argument(
        "--patterns",
        metavar="A,B",
        default=",".join(PATTERNS),
        help="what fills them: some of 4k, 64k, 1m, those larger than 4k only the smallest log "
        "(default all)",
    )
    parser.add_argument(
        "--capacities", metavar="A,B", help=f"sizes of the disk (default {CAPACITIES})"
    )
    parser.add_argument(
        "--chunks", type=int, default=CHUNKS, help=f"written to a disk at most (default {CHUNKS})"
    )
    parser.add_argument("--room", default="20g", help="to use at most, of --dir (default 20g)")
    options = parser.parse_args(argv)
    if options.logs is None:
        options.logs = QUICK_LOGS if options.quick else LOGS
    if options.capacities is None:
        options.capacities = QUICK_CAPACITIES if options.quick else CAPACITIES
    options.patterns = [word for word in options.patterns.split(",") if word]
    if options.quick:
        options.patterns = options.patterns[:1]
    unknown = [p for p in options.patterns if p not in PATTERNS]
    if unknown:
        parser.error(f"no pattern {unknown[0]}; there are {', '.join(PATTERNS)}")
    try:
        logs, capacities = sizes_of(options.logs), sizes_of(options.capacities)
        room = room_of(options)
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    needed = max([log_room(1, size) for size in logs] + [4 * GIB for _ in capacities], default=0)
    if needed > room:
        parser.error(f"this needs {needed / GIB:.1f} GiB, --room allows {room / GIB:.1f}")
    need_fio_and_room(parser, options, min(room, max(needed, log_room(2, max(logs, default=0)))))
    return options


if __name__ == "__main__":
    chosen = parse()
    sys.exit(finish("recovery", chosen, lambda stack: Recovery(chosen, stack).run()))

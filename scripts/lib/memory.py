"""What a host process takes of memory: with nothing, with volumes, by the size of its disk, after
random I/O; beside it what the formula of docs/formats.md allows.

Resident memory of the hosts' processes (`VmRSS`). Disks are sparse files, so that one of 4 TiB fits
anywhere; what a chunk costs is measured on as many chunks as the room allows.
"""

import argparse
import os
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

from cluster import Cluster
from goals import MEMORY, Workload, chunk_writes
from measure import Fio, memory_mib
from process import Stack, end, wait_until
from runs import (
    GIB,
    MIB,
    TIB,
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
from tables import number, short

LOG = 512 * MIB
CAPACITIES, QUICK_CAPACITIES = "64GiB,1TiB,4TiB", "64GiB,1TiB"
VOLUMES, QUICK_VOLUMES = 100, 20
CHUNKS, QUICK_CHUNKS = 100_000, 20_000
CHUNK_DISK_BYTES = 3 * 4096  # a block, its page twice
IO_S, QUICK_IO_S = 20, 5
SETTLE_S = 120
RANDOM = (Workload("randwrite", "4k", 64, ()), Workload("randread", "4k", 64, ()))
EXAMPLES = """examples:
  scripts/bench memory                    disks up to 4 TiB, 100 volumes: 8 minutes
  scripts/bench memory --check --json result.json --markdown result.md
  scripts/bench memory --volumes 1000 --capacities ""
  scripts/bench memory --quick
"""


def memory_max(capacity_bytes, log_bytes):
    """Bytes: the table "Memory" of docs/formats.md, as `memory_max` in crates/store/src/limits.rs
    computes it."""
    chunks = capacity_bytes // MIB
    pages = chunks + chunks // 4 + 1024 + max(chunks // 2, 1024)
    cache = max(128 * MIB * capacity_bytes // TIB, 32 * MIB)
    dirty = 16 * max((4 << 20) * capacity_bytes // TIB, 64 << 10)
    return chunks * (32 + 272) + cache + dirty + log_bytes // 4096 * 44 + (chunks + pages) // 8


class Memory:
    def __init__(self, options, stack):
        self.options, self.report = options, Report()
        self.directory = stack.directory("atoll-memory-", parent=options.dir)
        self.states, self.derived = [], []

    def cluster(self, stack, hosts, disk_bytes):
        where = stack.directory(f"{hosts}-", parent=self.directory)
        cluster = Cluster(stack, os.path.join(where, "c"), hosts=hosts, disk_size="1GiB")
        os.mkdir(cluster.directory)
        tell_of_failures(stack, cluster)
        cluster.begin()
        for host in range(1, hosts + 1):
            cluster.replace_disk(host, disk_bytes, LOG)
            # What formatting took is not what a host has from its next start on.
            cluster.stop_host(host)
            cluster.start(host)
        cluster.wait_serving()
        wait_until(
            "the capacity to be known",
            lambda: all(g["log_bytes"] for g in cluster.get("group", "list")),
            30,
        )
        return cluster, where

    def seen(self, cluster, case, state, **more):
        """Notes what every host takes now; returns the mean in MiB."""
        pids = [cluster.pid(host) for host in range(1, cluster.hosts + 1)]
        now = [memory_mib(pid, "VmRSS") for pid in pids]
        figures = {"case": case, "state": state, "hosts": cluster.hosts, **more}
        figures |= {"mean_mib": sum(now) / len(now), "max_mib": max(now)}
        figures["peak_mib"] = max(memory_mib(pid, "VmHWM") for pid in pids)
        self.states.append(figures)
        log(f"{case}, {state}: {figures['mean_mib']:.1f} MiB, at most {figures['max_mib']:.1f}")
        return figures["mean_mib"]

    def note(self, what, value, unit, formula=None):
        self.derived.append({"what": what, "value": value, "unit": unit, "formula": formula})

    def of_volumes(self, stack):
        """Three hosts, no volume, then many, then every one used by a client, then random I/O."""
        options, count = self.options, self.options.volumes
        capacity = 64 * GIB
        cluster, where = self.cluster(stack, 3, capacity)
        case = f"3 hosts, disks {size_text(capacity)}"
        formula = memory_max(capacity, LOG) / MIB
        before = self.seen(cluster, case, "0 volumes", formula_mib=formula)
        for n in range(count):
            cluster.create_volume(f"v{n}", 128 * MIB)
        time.sleep(2)
        after = self.seen(cluster, case, f"{count} volumes, never used", formula_mib=formula)
        self.note("a volume, per host of three", 1024 * (after - before) / count, "KiB")
        used, opened = self.use(cluster, stack, where, count, case, formula)
        self.note("the same, used once", 1024 * (used - before) / count, "KiB")
        self.note("and with a client connected", 1024 * (opened - before) / count, "KiB")
        cluster.create_volume("big", 4 * GIB)
        fio = Fio(where, "4g")
        target = ["--ioengine=nbd", f"--uri={cluster.uri(1, 'big')}"]
        for workload in RANDOM:
            fio.measure(target, workload, options.io_s, 0)
        self.seen(cluster, case, "and after random I/O", formula_mib=formula)
        cluster.settle((1, 2, 3), SETTLE_S)
        settled = self.seen(cluster, case, "and when the log is empty", formula_mib=formula)
        self.report.judge(MEMORY._replace(text=f"{MEMORY.text}, {case}"), settled - formula)

    def use(self, cluster, stack, where, count, case, formula):
        """A few writes to each volume, by clients that then stay. Returns what hosts have with them
        and without."""
        argv = ["fio", "--ioengine=nbd", "--thread=1", "--direct=1", "--bs=4k", "--size=128m"]
        argv += ["--rw=randwrite", "--time_based=1", "--runtime=300", "--rate_iops=2"]
        for n in range(count):
            argv += [f"--name=v{n}", f"--uri={cluster.uri(1 + n % 3, f'v{n}')}"]
        client = stack.spawn(argv, log=os.path.join(where, "fio.log"), cwd=where)

        def connected():
            if client.poll() is not None:
                raise RuntimeError(f"fio ended: see {where}/fio.log")
            return sum(cluster.metric("atoll_nbd_connections", h) for h in (1, 2, 3)) >= count

        wait_until("every volume's client", connected, 60, 0.5)
        time.sleep(5)
        opened = self.seen(
            cluster, case, f"{count} volumes, each with a client", formula_mib=formula
        )
        end(client)
        time.sleep(3)
        used = self.seen(cluster, case, f"{count} volumes, clients gone", formula_mib=formula)
        return used, opened

    def of_capacity(self, stack, disk_bytes):
        """One host with one disk, empty; one block in each of many chunks; random I/O over them."""
        cluster, where = self.cluster(stack, 1, disk_bytes)
        case = f"1 host, disk {size_text(disk_bytes)}"
        capacity = cluster.metric("atoll_group_capacity_bytes")
        formula = memory_max(int(capacity), LOG) / MIB
        more = {"disk_bytes": disk_bytes, "capacity_bytes": capacity, "formula_mib": formula}
        idle = self.seen(cluster, case, "empty", **more)
        chunks = min(self.options.chunks, int(capacity) // MIB * 9 // 10)
        # What the first quarter takes is also buffers; the rest shows what a chunk takes.
        quarter, rest = chunks // 4, chunks - chunks // 4
        dirty, table = [], []
        for volume, count in (("first", quarter), ("rest", rest)):
            cluster.create_volume(volume, count * MIB, copies=1)
            fio = Fio(where, f"{count}m")
            target = ["--ioengine=nbd", f"--uri={cluster.uri(1, volume)}"]
            begun = time.monotonic()
            fio.write_all(target, chunk_writes(count))
            log(f"{count} chunks written in {time.monotonic() - begun:.0f} s")
            cluster.settle([1], SETTLE_S)
            state = f"a block in each of {quarter if volume == 'first' else chunks:,} chunks"
            dirty.append(self.seen(cluster, case, state, **more))
            cluster.stop_host(1)  # which takes a checkpoint: only the table of chunks is left
            cluster.start(1)
            table.append(self.seen(cluster, case, "started again", **more))
        for workload in RANDOM:
            fio.measure(target, workload, self.options.io_s, 0)
        most = self.seen(cluster, case, "after random I/O over them", **more)
        self.report.judge(MEMORY._replace(text=f"{MEMORY.text}, {case}"), most - formula)
        per_chunk = [MIB * (took[1] - took[0]) / rest for took in (dirty, table)]
        self.note(f"a chunk with a block that no checkpoint has, {case}", per_chunk[0], "B", 336)
        self.note(f"a chunk after a start, {case}", per_chunk[1], "B", 32)
        return disk_bytes / TIB, idle

    def run(self):
        if self.options.volumes:
            with Stack() as stack:
                self.of_volumes(stack)
        idle = []
        for disk_bytes in sizes_of(self.options.capacities):
            with Stack() as stack:
                idle.append(self.of_capacity(stack, disk_bytes))
        if len(idle) > 1:
            (small, least), (large, most) = idle[0], idle[-1]
            self.note("an empty disk, per TiB", (most - least) / (large - small), "MiB", 0.35)
        return self.reported()

    def reported(self):
        report = self.report
        report.figures = [*self.states, *self.derived]
        report.about = (
            f"hosts on this machine, one disk each, log {size_text(LOG)}; MiB, resident. "
            "*Formula*: the table Memory of docs/formats.md for that disk and log, everything full "
            "at once."
        )
        head = ["hosts and disks", "state", "mean MiB", "most MiB", "peak MiB", "formula MiB"]
        report.tables.append(
            (
                head,
                [
                    [s["case"], s["state"]]
                    + [number(s[m], 1) for m in ("mean_mib", "max_mib", "peak_mib")]
                    + [number(s["formula_mib"])]
                    for s in self.states
                ],
            )
        )
        rows = [
            [d["what"], f"{short(d['value'])} {d['unit']}"]
            + ["-" if d["formula"] is None else f"{d['formula']:g} {d['unit']}"]
            for d in self.derived
        ]
        report.tables.append((["what", "takes", "formula"], rows))
        return report


def parse(argv=None):
    parser = parser_of("memory", __doc__, EXAMPLES)
    parser.add_argument("--volumes", type=int, help=f"0: none (default {VOLUMES})")
    parser.add_argument(
        "--capacities", metavar="A,B", help=f"sizes of the disk (default {CAPACITIES})"
    )
    parser.add_argument("--chunks", type=int, help=f"written at most (default {CHUNKS})")
    parser.add_argument("--io-s", type=int, help=f"seconds of random I/O (default {IO_S})")
    options = parser.parse_args(argv)
    quick = options.quick
    for key, full, short_one in (
        ("volumes", VOLUMES, QUICK_VOLUMES),
        ("capacities", CAPACITIES, QUICK_CAPACITIES),
        ("chunks", CHUNKS, QUICK_CHUNKS),
        ("io_s", IO_S, QUICK_IO_S),
    ):
        if getattr(options, key) is None:
            setattr(options, key, short_one if quick else full)
    try:
        capacities = sizes_of(options.capacities)
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    if options.volumes < 0 or options.chunks < 1 or options.io_s < 1:
        parser.error("volumes are at least 0, chunks and seconds of I/O at least 1")
    # Checkpoint and journal areas are written with zeros: 1 GiB per TiB at most.
    writes = options.chunks * CHUNK_DISK_BYTES + GIB
    rooms = [LOG + size // 512 + writes for size in capacities]
    need_fio_and_room(parser, options, max([*rooms, 12 * GIB if options.volumes else 0]))
    return options


if __name__ == "__main__":
    chosen = parse()
    sys.exit(finish("memory", chosen, lambda stack: Memory(chosen, stack).run()))

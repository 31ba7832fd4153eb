"""What every benchmark has: progress, sizes, the machine it ran on, the files that were asked for,
and an exit status. Never measures anything itself.
"""

import argparse
import contextlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time

import tables
from cluster import ATOLL
from process import CommandFailed, Interrupted, Stack, raise_on_signals, run

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
MIB, GIB, TIB = 1 << 20, 1 << 30, 1 << 40


def log(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def bytes_of(text):
    """What "4g", "512m" or "16GiB" means."""
    match = re.fullmatch(r"(\d+)([kmgt]?)(?:i?b)?", text.lower())
    if not match:
        raise argparse.ArgumentTypeError(f"{text} is no size; 4g and 512m are")
    return int(match[1]) << (10 * " kmgt".index(match[2] or " "))


def size_text(size):
    """As `bytes_of` reads it."""
    for unit, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def built_here():
    target = os.environ.get("CARGO_TARGET_DIR") or os.path.join(REPOSITORY, "target")
    return os.path.realpath(ATOLL).startswith(os.path.join(os.path.realpath(target), ""))


def idling():
    """Who puts idle processors to sleep. On a virtual machine a wake-up can cost more than the
    request it is for, unless `haltpoll` looks for work first: for how long is said too."""
    try:
        with open("/sys/devices/system/cpu/cpuidle/current_driver", encoding="ascii") as f:
            driver = f.read().strip()
    except OSError:
        return "none"
    if driver != "haltpoll":
        return driver
    with open("/sys/module/haltpoll/parameters/guest_halt_poll_ns", encoding="ascii") as f:
        return f"haltpoll {int(f.read()) / 1000:g} us"


def machine():
    """What the figures were measured on."""
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        model = next((x.split(":", 1)[1].strip() for x in f if x.startswith("model name")), "?")
    with open("/proc/meminfo", encoding="ascii") as f:
        memory = int(f.readline().split()[1]) >> 20
    described = subprocess.run(
        ["git", "-C", REPOSITORY, "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpus": os.cpu_count(),
        "cpu": model,
        "memory_gib": memory,
        "kernel": platform.release(),
        "idle": idling(),
        "fio": run(["fio", "--version"]).stdout.strip(),
        "atoll": run([ATOLL, "--version"]).stdout.strip(),
        # Which sources another build has is not known here.
        "source": described.stdout.strip() or "?" if built_here() else "another build",
    }


def machine_text(where):
    return (
        f"{where['date']}, {where['atoll']} ({where['source']}); {where['cpus']} CPUs "
        f"({where['cpu']}), {where['memory_gib']} GiB, Linux {where['kernel']}, "
        f"idle processors: {where['idle']}, {where['fio']}"
    )


def tell_of_failures(stack, cluster):
    """If what is on the stack ends with an error, the ends of the hosts' logs are shown before the
    cluster is taken down with them."""

    def leave(_, error, __):
        if not isinstance(error, Exception):
            return
        for host in range(1, cluster.hosts + 1):
            with contextlib.suppress(OSError), open(cluster.log(host), errors="replace") as f:
                print(f"host{host}: ...\n{''.join(f.readlines()[-8:])}", file=sys.stderr)

    stack.push(leave)


def guarded(work):
    """Runs `work(stack)`; whatever happens, everything on the stack is taken down. Returns (its
    result, None) or (None, exit status)."""
    raise_on_signals()
    try:
        with Stack() as stack:
            return work(stack), None
    except (RuntimeError, CommandFailed, TimeoutError, subprocess.TimeoutExpired, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return None, 1
    except Interrupted as signal:
        print(f"interrupted ({signal})", file=sys.stderr)
        return None, 130


# The benchmarks beside the data path: a report of tables and of what is held against them.


class Report:
    """What a run has found. `tables` are shown; `figures` are everything, for the JSON."""

    def __init__(self):
        self.about = ""  # the sentence above the tables
        self.tables = []  # (head, rows)
        self.figures = []
        self.judged = []  # (bound, value, "held", "MISSED" or "not measured")

    def judge(self, bound, value):
        verdict = "not measured" if value is None else "held" if bound.holds(value) else "MISSED"
        self.judged.append((bound, value, verdict))

    def text(self, draw):
        parts = [self.about, *(draw(*table) for table in self.tables if table[1])]
        if self.judged:
            parts.append(draw(*tables.bounds_table("goal", self.judged)))
        return "\n\n".join(parts) + "\n"

    def everything(self, what, options, where):
        return {
            "benchmark": what,
            "machine": where,
            "options": {k: v for k, v in vars(options).items() if k not in ("json", "markdown")},
            "figures": self.figures,
            "bounds": [
                {"bound": b.text, "limit": b.limit_text, "value": v, "verdict": held}
                for b, v, held in self.judged
            ],
        }


def parser_of(what, description, examples, check=True):
    """With the options that every benchmark has; `--check` if it holds figures against goals."""
    parser = argparse.ArgumentParser(
        prog=f"scripts/bench {what}",
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="a rough one: a minute or two")
    parser.add_argument(
        "--dir", default="/var/tmp", help="where the disks are made: on the disk to measure"
    )
    parser.add_argument("--json", metavar="FILE", help="write every figure there")
    parser.add_argument("--markdown", metavar="FILE", help="write the tables there")
    if check:
        status = "exit status 1 if a goal is missed"
        parser.add_argument("--check", action="store_true", help=status)
    return parser


def need_fio_and_room(parser, options, room):
    if shutil.which("fio") is None:
        parser.error("fio is not installed")
    try:
        free = shutil.disk_usage(options.dir).free
    except OSError as error:
        parser.error(str(error))
    if free < room:
        parser.error(f"{options.dir} has {free / GIB:.1f} GiB free, this needs {room / GIB:.1f}")


def sizes_of(text):
    """A list of sizes, smallest first; an empty text is an empty list."""
    return sorted(bytes_of(word) for word in text.split(",") if word)


def finish(what, options, work):
    """Runs `work(stack)`, which returns a Report, shows it, and returns the exit status."""

    def whole(stack):
        report = work(stack)
        stack.close()
        where = machine()
        report.about = f"{machine_text(where)}; {report.about}"
        print("\n" + report.text(tables.plain), flush=True)
        if options.json:
            with open(options.json, "w", encoding="utf-8") as f:
                json.dump(report.everything(what, options, where), f, indent=1)
        if options.markdown:
            with open(options.markdown, "w", encoding="utf-8") as f:
                f.write(report.text(tables.markdown))
        return report

    report, status = guarded(whole)
    if report is None:
        return status
    missed = [(b, v) for b, v, held in report.judged if held == "MISSED"]
    for bound, value in missed:
        print(f"missed goal: {bound.text}: {value:.2f}{bound.unit}, must be {bound.limit_text}")
    return 1 if missed and options.check else 0

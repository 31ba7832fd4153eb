"""Where the processors' time goes during a workload, as a flame graph and as a table.

Three hosts, two copies, one volume through NBD over a Unix socket, as in the data path; `perf` looks
at the whole machine meanwhile. The picture's lowest row is who: the hosts, fio, the kernel's threads,
idle time left out. The table is each one's share by what it does: its own code, or which system call.
"""

import collections
import html
import os
import re
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

from cluster import Cluster
from goals import WORKLOADS
from measure import Fio
from process import end, run
from runs import GIB, Report, bytes_of, finish, log, need_fio_and_room, parser_of, tell_of_failures
from tables import number

HERTZ = 997
STACK_BYTES = 16384
BEFORE_S = 2  # of the workload, before perf looks
PERF_OVERTIME_S = 120  # it writes and reads back what it saw within this, or is broken
SHOWN = 0.002  # of all samples: what is less has no box
WIDTH, ROW, LETTER = 1200, 15, 6.2
EXAMPLES = """examples:
  scripts/bench flame --svg writes.svg
  scripts/bench flame --workload rr4k_qd32 --svg reads.svg --markdown reads.md
  scripts/bench flame --quick --svg writes.svg
"""


def frames_of(text):
    """Stacks as `perf script -F comm,pid,ip,sym,dso` prints them: ((command, pid), frames from the
    outermost on, how many of them are the kernel's)."""
    for block in text.split("\n\n"):
        lines = [line for line in block.split("\n") if line.strip()]
        head = re.match(r"\s*(.+?)\s+(\d+)\s*$", lines[0]) if lines else None
        if not head:
            continue
        frames = []
        for line in lines[1:]:
            found = re.match(r"\s*[0-9a-f]+\s+(.*?)\s+\((.*?)\)$", line)
            if found:
                kernel = "kernel" in found[2]
                name = re.sub(r"\+0x[0-9a-f]+$", "", found[1])
                frames.append((shorter(name) if not kernel else name, kernel))
        yield (head[1], int(head[2])), frames[::-1]


def shorter(name):
    """A Rust path without its generics, its last parts only."""
    before = None
    while before != name:
        before, name = name, re.sub(r"<[^<>]*>", "", name)
    parts = [part for part in name.split("::") if part and part != "{{closure}}"]
    return "::".join(parts[-3:]) or name


def doing(frames):
    """What a sample was at: its own code, a system call, an interrupt."""
    names = [name for name, kernel in frames if kernel]
    if not names:
        return "its own code"
    for name in names:
        call = re.match(r"__(?:x64|do|se)_sys_(\w+)", name)
        if call:
            return call[1]
    if any("interrupt" in name or "sysvec" in name for name in names):
        return "interrupts"
    return "other kernel"


class Flames:
    """A tree of frames with how many samples went through each."""

    def __init__(self):
        self.count, self.children, self.kernel = 0, {}, False

    def add(self, frames):
        self.count += 1
        node = self
        for name, kernel in frames:
            node = node.children.setdefault(name, Flames())
            node.count += 1
            node.kernel = kernel

    def depth(self, least):
        deeper = [c.depth(least) for c in self.children.values() if c.count >= least]
        return 1 + max(deeper, default=0)

    def svg(self, title):
        least = max(1, self.count * SHOWN)
        height = (self.depth(least) + 2) * ROW
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'font-family="sans-serif" font-size="11">',
            f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
            f'<text x="6" y="12">{html.escape(title)}</text>',
        ]
        self._boxes(parts, 0.0, height - ROW, WIDTH / self.count, least)
        return "\n".join([*parts, "</svg>"]) + "\n"

    def _boxes(self, parts, x, y, scale, least):
        for name, child in sorted(self.children.items()):
            if child.count < least:
                continue
            width = child.count * scale
            share = 100 * child.count / (WIDTH / scale)
            text = html.escape(name)
            fill = "#f0a868" if child.kernel else "#8fbcd8"
            parts.append(
                f'<g><title>{text}: {share:.1f} %</title><rect x="{x:.1f}" y="{y}" '
                f'width="{max(width - 0.4, 0.2):.1f}" height="{ROW - 1}" fill="{fill}"/>'
            )
            letters = int(width / LETTER)
            if letters >= 3:
                shown = name if len(name) <= letters else name[: letters - 1] + "\u2026"
                parts.append(f'<text x="{x + 2:.1f}" y="{y + 11}">{html.escape(shown)}</text>')
            parts.append("</g>")
            child._boxes(parts, x, y - ROW, scale, least)
            x += width


class Flame:
    def __init__(self, options, stack):
        self.options, self.report = options, Report()
        self.directory = stack.directory("atoll-flame-", parent=options.dir)
        where = os.path.join(self.directory, "hosts")
        self.cluster = Cluster(stack, where, hosts=3, disk_size="16GiB")
        os.mkdir(self.cluster.directory)
        tell_of_failures(stack, self.cluster)
        self.fio = Fio(self.directory, options.size)

    def run(self):
        options, data = self.options, os.path.join(self.directory, "perf.data")
        self.cluster.begin()
        self.cluster.create_volume("bench", bytes_of(options.size))
        target = ["--ioengine=nbd", f"--uri={self.cluster.uri(1, 'bench')}"]
        log("writing the volume once")
        self.fio.precondition(target)
        self.cluster.settle((1, 2, 3), 60)
        log(f"{options.workload}, looked at for {options.seconds} s")
        seconds = options.seconds + BEFORE_S
        words = ["perf", "record", "-a", "-q", "-F", str(HERTZ), "-D", str(1000 * BEFORE_S)]
        words += ["--call-graph", f"dwarf,{STACK_BYTES}", "-o", data, "--", "sleep", str(seconds)]
        errors = os.path.join(self.directory, "perf.log")
        with open(errors, "wb") as err:
            perf = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=err, stderr=err)
        try:
            found = self.fio.measure(target, options.workload, seconds + 1, 0)
            failed = perf.wait(PERF_OVERTIME_S)
        except subprocess.TimeoutExpired:
            failed = True
        finally:
            end(perf)
        if failed:
            with open(errors, encoding="utf-8", errors="replace") as f:
                raise RuntimeError(f"perf record failed: {f.read().strip()[-300:]}")
        log("reading what perf saw")
        text = run(
            ["perf", "script", "-i", data, "--no-inline", "-F", "comm,pid,ip,sym,dso"],
            timeout_s=PERF_OVERTIME_S,
        ).stdout
        who = {self.cluster.pid(host): f"host{host}" for host in (1, 2, 3)}
        return self.reported(text, who, found)

    def reported(self, text, who, found):
        flames, does, idle = Flames(), collections.Counter(), 0
        for (command, pid), frames in frames_of(text):
            if command.startswith("swapper"):
                idle += 1
                continue
            name = who.get(pid) or ("fio" if command == "fio" else None)
            # Threads of the kernel: kworker/..., ksoftirqd/...
            name = name or ("kernel threads" if frames and frames[0][1] else "others")
            flames.add([(name, False), *frames])
            does[name, doing(frames)] += 1
        if not flames.count:
            raise RuntimeError("perf saw nothing: is perf_event_paranoid above -1?")
        # One processor's time is HERTZ samples a second.
        per_io = 1e6 / HERTZ / (found["iops"] * self.options.seconds)
        rows = [
            [name, what, f"{100 * n / flames.count:.1f} %", number(n * per_io, 1)]
            for (name, what), n in sorted(does.items(), key=lambda x: (x[0][0], -x[1]))
            if n >= flames.count * SHOWN
        ]
        report, options = self.report, self.options
        report.about = (
            f"{options.workload}: {found['iops']:,.0f} IOPS, mean {found['mean_us']:,.0f} us, while perf "
            f"looked (which costs something); {idle / (idle + flames.count):.0%} of the time idle."
        )
        report.tables.append((["who", "at what", "of the busy time", "us per I/O"], rows))
        report.figures = [{"who": n, "what": w, "samples": c} for (n, w), c in does.items()]
        if options.svg:
            title = f"{options.workload}, {found['iops']:,.0f} IOPS; blue: programs, orange: kernel"
            with open(options.svg, "w", encoding="utf-8") as f:
                f.write(flames.svg(title))
            log(f"the picture is {options.svg}")
        return report


def parse(argv=None):
    parser = parser_of("flame", __doc__, EXAMPLES)
    parser.add_argument("--workload", default="rw4k_qd32", choices=sorted(WORKLOADS))
    parser.add_argument("--seconds", type=int, help="to look (default 5; with --quick 2)")
    parser.add_argument("--size", default="2g", help="of the volume (default 2g)")
    parser.add_argument("--svg", metavar="FILE", help="write the picture there")
    options = parser.parse_args(argv)
    if options.seconds is None:
        options.seconds = 2 if options.quick else 5
    if options.seconds < 1:
        parser.error("--seconds is at least 1")
    if shutil.which("perf") is None:
        parser.error("perf is not installed: apt-get install linux-perf")
    need_fio_and_room(parser, options, 2 * bytes_of(options.size) + 4 * GIB)
    return options


if __name__ == "__main__":
    chosen = parse()
    sys.exit(finish("flame", chosen, lambda stack: Flame(chosen, stack).run()))

"""The benchmark's tables, for a terminal and as markdown. Never computes a figure."""

import textwrap

from goals import headline

NAMES = {"raw": "raw O_DIRECT", "dsync": "raw O_DSYNC", "qemu-nbd": "qemu-nbd", "atoll": "Atoll"}
ORDER = ("raw", "dsync", "qemu-nbd", "atoll")  # then the peers
TITLE_COLUMNS = 12


def number(value, digits=0):
    """A figure as people read it; what was not measured is a dash."""
    return "-" if value is None else f"{value:,.{digits}f}"


def short(value):
    """With as many digits as say something."""
    return number(value, 0 if value is None or value >= 100 else 1)


def in_order(systems):
    return sorted(systems, key=lambda s: (ORDER.index(s) if s in ORDER else len(ORDER), s))


def workloads_of(results):
    """In the order in which they were first measured."""
    return list(dict.fromkeys(workload for _, workload in results.rounds))


def figures_table(results):
    head = ["workload", "system", "IOPS", "MB/s", "mean us", "p50", "p95", "p99", "p99.9"]
    head += ["CPU us/IO daemons", "client", "kernel", "syscalls/IO daemons", "client"]
    head += ["disk B/guest B", "Atoll to it"]
    rows = []
    for workload in workloads_of(results):
        for system in in_order(results.systems(workload)):

            def median(measure):
                return results.median(system, workload, measure)

            ratio = None
            if system != "atoll":
                ratio = results.ratio(workload, system, headline(workload))
            rows.append(
                [workload, NAMES.get(system, system)]
                + [number(median(m)) for m in ("iops", "MBps", "mean_us", "p50_us", "p95_us")]
                + [number(median(m)) for m in ("p99_us", "p999_us")]
                + [short(median(f"{who}_cpu_us")) for who in ("daemon", "client", "kernel")]
                + [number(median(f"{who}_syscalls"), 2) for who in ("daemon", "client")]
                + [number(median("disk_bytes_per_byte"), 2), number(ratio, 2)]
            )
    return head, rows


def stalls_table(results):
    """How even writes are: only of what has a histogram of each second."""
    head = ["workload", "system", "seconds", "longest gap ms", "slowest I/O ms"]
    head += ["p99.9 of a second ms: median", "worst", "worst second's share of the mean"]
    head += ["log fill %: begin", "end", "most", "log wraps before", "during"]
    rows = []
    for workload in workloads_of(results):
        for system in in_order(results.systems(workload)):

            def median(measure, scale=1.0):
                value = results.median(system, workload, measure)
                return None if value is None else value * scale

            if median("slowest_us") is None:
                continue
            rows.append(
                [workload, NAMES.get(system, system), number(median("seconds"))]
                + [number(median("gap_ms")), number(median("slowest_us", 1e-3), 1)]
                + [number(median("second_p999_us", 1e-3), 1)]
                + [number(median("worst_second_p999_us", 1e-3), 1)]
                + [number(median("worst_second_share"), 2)]
                + [number(median(f"fill_{m}", 100)) for m in ("begin", "end", "most")]
                + [number(median(m), 1) for m in ("wraps_before", "wraps")]
            )
    return head, rows


def bounds_table(title, judged):
    rows = [
        [
            bound.text,
            "-" if value is None else f"{value:.2f}{bound.unit}",
            bound.limit_text,
            verdict,
        ]
        for bound, value, verdict in judged
    ]
    return [title, "measured", "bound", "verdict"], rows


def plain(head, rows):
    """Columns under their titles, which are folded where they are long."""
    titles = [textwrap.wrap(title, TITLE_COLUMNS) for title in head]
    deep = max(map(len, titles))
    lines = [[""] * (deep - len(t)) + t for t in titles]
    grid = [list(line) for line in zip(*lines)] + rows
    width = [max(len(row[i]) for row in grid) for i in range(len(head))]
    words = [any(c[0].isalpha() or c[0] in "<>" for c in column) for column in zip(*rows)]
    return "\n".join(
        "  ".join(
            cell.ljust(width[i]) if words[i] else cell.rjust(width[i])
            for i, cell in enumerate(row)
        ).rstrip()
        for row in grid
    )


def markdown(head, rows):
    return "\n".join(
        "| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows]
    )


def document(results, judged, conditions, draw):
    """Everything as one text; `draw` is `plain` or `markdown`."""
    parts = [conditions, draw(*figures_table(results))]
    head, rows = stalls_table(results)
    if rows:
        parts.append(draw(head, rows))
    for title, bounds in judged.items():
        parts.append(draw(*bounds_table(title, bounds)))
    return "\n\n".join(parts) + "\n"

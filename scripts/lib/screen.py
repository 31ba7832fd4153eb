"""What the scripts print: steps with a clock, a live line on a terminal, tables.

On a terminal the live line is rewritten in place; elsewhere (a log, a pipe) it is printed at most
every five seconds, so that a log stays readable and still shows that something happens.
"""

import shutil
import sys
import time


class Failed(Exception):
    """A check that did not hold: its name, what was seen, and what to look at."""

    def __init__(self, check, seen, hint=None):
        super().__init__(f"{check}: {seen}")
        self.check, self.seen, self.hint = check, seen, hint


class Screen:
    """Prints the steps of a run. Times are minutes and seconds since the start."""

    LIVE_PERIOD_S = 5.0

    def __init__(self, out=sys.stdout):
        self.out = out
        self.terminal = out.isatty()
        self.start = time.monotonic()
        self.live_shown = False
        self.live_last = 0.0

    def clock(self):
        seconds = int(time.monotonic() - self.start)
        return f"{seconds // 60}:{seconds % 60:02d}"

    def _clear(self):
        if self.live_shown:
            self.out.write("\r\x1b[K")
            self.live_shown = False

    def line(self, text=""):
        self._clear()
        print(text, file=self.out, flush=True)

    def step(self, name, text):
        """One thing that was done: a short name and a sentence."""
        self.line(f"{self.clock():>5}  {name:<10} {text}")
        self.live_last = time.monotonic()

    def note(self, text):
        self.line(f"{'':>5}  {'':<10} {text}")

    def live(self, name, text):
        """What is going on right now; the next call replaces it."""
        now = time.monotonic()
        if self.terminal:
            width = shutil.get_terminal_size((100, 24)).columns - 1
            self.out.write("\r\x1b[K" + f"{self.clock():>5}  {name:<10} {text}"[:width])
            self.out.flush()
            self.live_shown = True
        elif now - self.live_last >= self.LIVE_PERIOD_S:
            self.live_last = now
            self.line(f"{self.clock():>5}  {name:<10} {text}")

    def table(self, rows):
        """Rows of (label, value); labels are aligned."""
        width = max(len(label) for label, _ in rows)
        for label, value in rows:
            self.line(f"  {label:<{width}}  {value}")


def bytes_text(count):
    """1536 -> '1.5 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024 or unit == "TiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")


def duration_text(seconds):
    """0.25 -> '250 ms', 3.2 -> '3.2 s', 75 -> '1m15s'."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60}m{int(seconds) % 60:02d}s"


def count_text(number):
    return f"{number:,.0f}"

"""Runs the end-to-end tests: run.py [--jobs N] [PATTERN]. At the end "N passed, N failed".

N (default 2) processes take the tests in turn: they wait far more than they work. What measures
itself (class attribute `alone`) runs after the others, one at a time; what takes longest (`first`)
begins before the others, so that nobody waits for it alone in the end.
"""

import argparse
import contextlib
import io
import json
import os
import queue
import subprocess
import sys
import threading
import time
import unittest

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, HERE)

import harness  # noqa: E402 (it completes the path)
from process import Interrupted, end, exit_with, raise_on_signals  # noqa: E402

FIRST_PORT, PORTS = 20000, 10000  # shared out among the processes


def flatten(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from flatten(test)
        else:
            yield test


class Result(unittest.TestResult):
    def startTest(self, test):
        super().startTest(test)
        self.begun = time.monotonic()
        method = getattr(test, getattr(test, "_testMethodName", ""), None)
        self.row = getattr(method, "row", "")
        print(f"  {test.id():<58} {self.row}", flush=True)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        print(f"    SKIPPED, NOT PROVEN: {reason}", flush=True)

    def stopTest(self, test):
        super().stopTest(test)
        bad = [
            text
            for t, text in self.failures + self.errors
            if t is test or getattr(t, "test_case", None) is test
        ]
        skipped = any(t is test for t, _ in self.skipped)
        verdict = "FAILED" if bad else "skipped" if skipped else "ok"
        print(f"    {verdict} {time.monotonic() - self.begun:.1f} s", flush=True)
        for text in bad:
            print("    " + text.strip().replace("\n", "\n    "), flush=True)


def work():
    """A process that runs what it is told by name, a line each; a line of JSON is the answer."""
    answers, sys.stdout = sys.stdout, sys.stderr
    for name in sys.stdin:
        result, told = Result(), io.StringIO()
        with contextlib.redirect_stdout(told):
            for test in flatten(unittest.defaultTestLoader.loadTestsFromName(name.strip())):
                try:
                    test(result)
                except Interrupted:
                    test.doCleanups()
                    raise
        bad = len(result.failures) + len(result.errors)
        counts = {"run": result.testsRun, "bad": bad, "skipped": len(result.skipped)}
        print(json.dumps({**counts, "told": told.getvalue()}), file=answers, flush=True)


class Worker(threading.Thread):
    """Hands tests to a process until none is left."""

    def __init__(self, number, of, tests, results):
        super().__init__(daemon=True)
        self.tests, self.results = tests, results
        count = PORTS // of
        first = FIRST_PORT + number * count
        self.process = subprocess.Popen(
            [sys.executable, os.path.realpath(__file__), "--worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "E2E_PORTS": f"{first}-{first + count}"},
            text=True,
            start_new_session=True,
        )

    def run(self):
        with contextlib.suppress(queue.Empty):
            while True:
                name = self.tests.get_nowait()
                try:
                    self.process.stdin.write(name + "\n")
                    self.process.stdin.flush()
                    self.results.put(json.loads(self.process.stdout.readline()))
                except (OSError, ValueError):
                    told = f"  {name}\n    FAILED: the process that ran it is gone\n"
                    self.results.put({"run": 1, "bad": 1, "skipped": 0, "told": told})
                    return
        self.process.stdin.close()
        self.process.wait()


def together(names, jobs):
    """Runs tests, and yields what came of each as it ends."""
    tests, results = queue.SimpleQueue(), queue.SimpleQueue()
    for name in names:
        tests.put(name)
    workers = [Worker(number, jobs, tests, results) for number in range(jobs)]
    try:
        for worker in workers:
            worker.start()
        left = len(names)
        while left:
            try:
                yield results.get(timeout=1.0)
                left -= 1
            except queue.Empty:
                if not any(worker.is_alive() for worker in workers) and results.empty():
                    break
        for name in iter_left(tests):
            told = f"  {name}\n    FAILED: nobody was left to run it\n"
            yield {"run": 1, "bad": 1, "skipped": 0, "told": told}
    except BaseException:
        for worker in workers:
            end(worker.process, grace_s=60.0)  # it ends its cluster first
        raise
    for worker in workers:
        worker.join()


def iter_left(tests):
    with contextlib.suppress(queue.Empty):
        while True:
            yield tests.get_nowait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pattern", nargs="?", default="", help="only tests whose name contains it")
    parser.add_argument("--jobs", type=int, default=2, help="tests at a time")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    raise_on_signals()
    if args.worker:
        work()
        return 0
    if not os.access(harness.ATOLL, os.X_OK):
        print(f"error: no atoll at {harness.ATOLL}\nhint: cargo build --release, or set ATOLL_BIN")
        return 2
    tests = [
        t
        for t in flatten(unittest.defaultTestLoader.discover(HERE, "test_*.py"))
        if args.pattern in t.id()
    ]
    tests.sort(key=lambda t: not getattr(t, "first", False))
    shared = [t.id() for t in tests if not getattr(t, "alone", False)]
    alone = [t.id() for t in tests if getattr(t, "alone", False)]
    total = {"run": 0, "bad": 0, "skipped": 0}
    begun = time.monotonic()
    for names, jobs in ((shared, min(args.jobs, len(shared))), (alone, min(1, len(alone)))):
        for result in together(names, jobs):
            print(result["told"], end="", flush=True)
            total = {key: total[key] + result[key] for key in total}
    print(f"time {time.monotonic() - begun:.0f} s")
    if total["skipped"]:
        print(f"{total['skipped']} SKIPPED, see above")
    print(f"{max(0, total['run'] - total['bad'] - total['skipped'])} passed, {total['bad']} failed")
    return 0 if not total["bad"] and total["run"] else 1


if __name__ == "__main__":
    exit_with(main)

"""Runs the end-to-end tests: run.py [PATTERN]. One line a test, at the end "N passed, N failed"."""

import os
import sys
import time
import unittest

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, HERE)

import harness  # noqa: E402 (it completes the path)
from process import Interrupted, raise_on_signals  # noqa: E402


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


def main():
    pattern = sys.argv[1] if len(sys.argv) > 1 else ""
    if not os.access(harness.ATOLL, os.X_OK):
        print(f"error: no atoll at {harness.ATOLL}\nhint: cargo build --release, or set ATOLL_BIN")
        return 2
    raise_on_signals()
    tests = [
        t
        for t in flatten(unittest.defaultTestLoader.discover(HERE, "test_*.py"))
        if pattern in t.id()
    ]
    result = Result()
    begun = time.monotonic()
    for test in tests:
        try:
            test(result)
        except Interrupted:
            test.doCleanups()
            raise
    bad = len(result.failures) + len(result.errors)
    print(f"time {time.monotonic() - begun:.0f} s")
    skipped = len(result.skipped)
    if skipped:
        print(f"{skipped} SKIPPED, see above")
    print(f"{max(0, result.testsRun - bad - skipped)} passed, {bad} failed")
    return 0 if not bad and result.testsRun else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Interrupted as signal:
        print(f"interrupted ({signal})")
        sys.exit(130)

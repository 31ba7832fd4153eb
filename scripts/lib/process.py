"""Child processes that never outlive the script: started in sessions of their own, ended by pid.

A Ctrl-C in the terminal therefore reaches only the script, which then ends what it started, in the
reverse order. Nothing is ever ended by name.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time


class Interrupted(KeyboardInterrupt):
    """Raised in the main thread by SIGINT, SIGTERM or SIGHUP. Like a Ctrl-C, nobody swallows it."""

    def __init__(self, number):
        super().__init__(signal.Signals(number).name)
        self.number = number


def exit_with(main):
    """Ends the program with what `main` returns; 130 if it was interrupted."""
    try:
        sys.exit(main())
    except Interrupted as by:
        print(f"interrupted ({by})")
        sys.exit(130)


def raise_on_signals():
    """From now on a signal to end is an exception, so that every `finally` runs."""

    def handler(number, _frame):
        for again in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(again, signal.SIG_IGN)  # the clean-up itself is not interrupted
        raise Interrupted(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, handler)


def alive(pid):
    """Whether `pid` runs (a zombie does not)."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
            return f.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(what, condition, timeout_s, period_s=0.05):
    """Returns the first true value of `condition()`; TimeoutError names `what` after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not after {timeout_s:g} s")
        time.sleep(period_s)


def end(process, grace_s=5.0):
    """Ends a Popen: SIGTERM, then SIGKILL after `grace_s`. Returns its exit status."""
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)  # one that a test paused could not even end
        process.terminate()
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return process.returncode


def end_pid(pid, grace_s=5.0):
    """As `end`, for a process that is not our child."""
    for number, wait_s in ((signal.SIGCONT, 0), (signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return
        if wait_s:
            with contextlib.suppress(TimeoutError):
                wait_until("end", lambda: not alive(pid), wait_s)
                return


class Stack(contextlib.ExitStack):
    """Everything a run must take down again, in reverse order, each thing once."""

    def spawn(self, argv, log=None, **options):
        """Starts a child; its output goes to the file `log` unless `options` say otherwise."""
        with contextlib.ExitStack() as opened:
            if log is not None:
                out = opened.enter_context(open(log, "ab"))
                options = {"stdout": out, "stderr": subprocess.STDOUT, **options}
            options.setdefault("stdin", subprocess.DEVNULL)
            process = subprocess.Popen(argv, start_new_session=True, **options)
        self.callback(end, process)
        return process

    def directory(self, prefix, parent=None, keep=False):
        """A fresh directory on a real disk: /var/tmp, because /tmp may be memory without O_DIRECT."""
        path = tempfile.mkdtemp(prefix=prefix, dir=parent or "/var/tmp")
        if not keep:
            self.callback(shutil.rmtree, path, ignore_errors=True)
        return path


def run(argv, timeout_s=60.0, check=True, **options):
    """Runs a command to its end and returns its CompletedProcess, with text output captured."""
    options.setdefault("stdin", subprocess.DEVNULL)
    done = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
        start_new_session=True,
        check=False,
        **options,
    )
    if check and done.returncode != 0:
        raise CommandFailed(argv, done)
    return done


class CommandFailed(Exception):
    def __init__(self, argv, done):
        words = " ".join(str(word) for word in argv)
        output = (done.stderr.strip() or done.stdout.strip())[-2000:]
        super().__init__(f"{words}\nexit status {done.returncode}: {output}")
        self.argv, self.done = argv, done

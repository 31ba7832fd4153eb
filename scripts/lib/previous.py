"""The `atoll` of the commit before this one, for tests in which two releases serve together.

The tree of that commit is built by itself, below the target directory, as cheaply as possible: what
counts is what it writes and reads, not how fast. E2E_PREVIOUS_BIN names another binary (not
ATOLL_...: releases refuse variables of that kind that they do not know).
Command line: previous.py [--build | --where]; it prints where the binary is.
"""

import argparse
import contextlib
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

from process import exit_with, raise_on_signals

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
NOTHING_BEFORE = 3  # exit status: git knows no commit before this one
# The release profile with its checks, and without what takes most of a release build's time.
CHEAP = {
    "CARGO_INCREMENTAL": "0",
    "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16",
    "CARGO_PROFILE_RELEASE_DEBUG": "false",
    "CARGO_PROFILE_RELEASE_LTO": "off",
    "CARGO_PROFILE_RELEASE_OPT_LEVEL": "0",  # a third of the processor time of level 1
}


class NoHistory(Exception):
    """There is no commit before this one, as far as git knows here, or it is not built."""


def root():
    """Where everything of this module is: below what setup.sh calls `target_dir`."""
    target = os.environ.get("CARGO_TARGET_DIR") or os.path.join(REPOSITORY, "target")
    return os.path.join(os.path.abspath(target), "previous")


# Which commit.


def git(*words):
    """(exit status, what git says); its index is left as it is."""
    argv = ["git", "--no-optional-locks", "-C", REPOSITORY, *words]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise NoHistory("git is not installed") from None
    return done.returncode, (done.stdout or done.stderr).strip()


def revision():
    """The commit before the present state: that is HEAD, if HEAD was changed since."""
    status, top = git("rev-parse", "--show-toplevel")
    # Sources without a history may lie in a repository of something else.
    if status or os.path.realpath(top) != REPOSITORY:
        raise NoHistory(f"{REPOSITORY} is no git repository" + (f": {top}" if status else ""))
    # An unknown file alone is a note more often than a part of the program.
    status, changed = git("status", "--porcelain", "--untracked-files=no")
    if status:
        raise NoHistory(f"git does not say what has changed: {changed}")
    wanted = "HEAD" if changed else "HEAD^"
    status, commit = git("rev-parse", "--verify", "--quiet", f"{wanted}^{{commit}}")
    if status:
        raise NoHistory(f"git has no commit {wanted}: a shallow clone, or the first commit")
    return commit


# Building it.


def export(commit, where):
    """The sources of a commit. Their times are those of now: cargo takes what is older than its
    last build as built, and the commit that was built last may be a newer one."""
    shutil.rmtree(where, ignore_errors=True)
    os.makedirs(where)
    archive = ["git", "-C", REPOSITORY, "archive", commit]
    with subprocess.Popen(archive, stdout=subprocess.PIPE) as packed:
        unpacked = subprocess.run(["tar", "-xm", "-C", where], stdin=packed.stdout, check=False)
    if packed.returncode or unpacked.returncode:
        raise RuntimeError(f"the sources of {commit} could not be unpacked into {where}")


def compile_in(source, target, log):
    """Runs cargo, after everybody else: tests with limits of time may run beside it."""
    with open(log, "wb") as out:
        child = subprocess.Popen(
            ["nice", "-n", "19", "cargo", "build", "--release", "--locked", "-p", "atoll"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=source,
            env={**os.environ, **CHEAP, "CARGO_TARGET_DIR": target},
            start_new_session=True,
        )
        try:
            child.wait()
        except BaseException:
            os.killpg(child.pid, signal.SIGTERM)  # the compilers, too
            child.wait()
            raise
    if child.returncode:
        with open(log, encoding="utf-8", errors="replace") as f:
            raise RuntimeError(f"the previous commit was not built ({log}): {f.read()[-2000:]}")
    return os.path.join(target, "release", "atoll")


@contextlib.contextmanager
def alone(directory):
    """One build at a time; who comes second finds what the first has made."""
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, "lock"), "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(commit):
    """The binary of a commit, built unless it is there. What was built of its dependencies stays
    for the next commit; its sources and the binaries of other commits go."""
    directory, binary = root(), where_is(commit)
    with alone(directory):
        if os.access(binary, os.X_OK):
            return binary
        source, target = os.path.join(directory, "source"), os.path.join(directory, "build")
        print(f"building the commit before this one, {commit[:12]}", file=sys.stderr, flush=True)
        try:
            export(commit, source)
            built = compile_in(source, target, os.path.join(directory, "log"))
        finally:
            shutil.rmtree(source, ignore_errors=True)
        for name in os.listdir(directory):
            if re.fullmatch("[0-9a-f]{40,64}", name):
                shutil.rmtree(os.path.join(directory, name))
        os.mkdir(os.path.dirname(binary))
        shutil.copy2(built, binary + ".new")
        os.rename(binary + ".new", binary)
        return binary


def where_is(commit):
    return os.path.join(root(), commit, "atoll")


def given():
    """The binary that the environment names, if it names one."""
    named = os.environ.get("E2E_PREVIOUS_BIN")
    if named and not os.access(named, os.X_OK):
        raise RuntimeError(f"E2E_PREVIOUS_BIN: no program at {named}")
    return os.path.abspath(named) if named else None


def binary():
    """The previous commit's `atoll`, built if need be; NoHistory if there is none."""
    return given() or build(revision())


def present():
    """The same, if it was built before: whoever runs all tests does not wait for that."""
    path = given() or where_is(revision())
    if not os.access(path, os.X_OK):
        raise NoHistory("it is not built; scripts/lib/previous.py builds it, in minutes")
    return path


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog=f"Exit status {NOTHING_BEFORE}: git knows no commit before this one.",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--build", action="store_true", help="build it, unless it is there (default)")
    what.add_argument("--where", action="store_true", help="build nothing")
    options = parser.parse_args()
    raise_on_signals()
    try:
        path = (given() or where_is(revision())) if options.where else binary()
    except NoHistory as why:
        print(f"nothing to build: {why}", file=sys.stderr)
        return NOTHING_BEFORE
    except (RuntimeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if not os.access(path, os.X_OK):
        print(f"error: there is no {path} yet\nhint: previous.py --build", file=sys.stderr)
        return 1
    print(path)
    return 0


if __name__ == "__main__":
    exit_with(main)

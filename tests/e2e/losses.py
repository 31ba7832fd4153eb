#!/usr/bin/env python3
"""Hosts that are lost under load, one after the other: how long clients of the other hosts wait.

Three machines in network namespaces, with an etcd of their own and TLS. Each time the owner of the
volume falls silent (its cable is cut, then its daemon and its member of etcd are killed), another
host takes over, the machine comes back, and its copy catches up. At the end all that clients saw
must be one copy's. Root; not a part of the tests.

    tests/e2e/losses.py --losses 20
"""

import argparse
import os
import statistics
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

from harness import Stack  # noqa: E402 (it completes the path)
from load import Load  # noqa: E402
from machines import Machines, Network  # noqa: E402
from process import exit_with, raise_on_signals, wait_until  # noqa: E402

MEDIAN_S, WORST_S = 3.0, 5.0  # what a host loss may cost
VOLUME, HOSTS = "data", (1, 2, 3)


def owner(cluster, asked):
    name = cluster.placement(VOLUME, host=asked).get("owner")
    return int(name.removeprefix("host")) if name else None


def lose(cluster, load, watcher):
    """One loss: (the host that was lost, the longest wait elsewhere, who has taken over)."""
    victim = wait_until("an owner", lambda: owner(cluster, watcher), 30, 0.1)
    elsewhere = [worker for worker in load.workers if worker.hosts[0] != victim]
    begun = time.monotonic()
    cluster.network.cut(victim)
    cluster.kill(victim)
    load.wait_progress(50, workers=elsewhere)
    time.sleep(3.0)
    longest = load.longest(begun, workers=elsewhere)
    others = [host for host in HOSTS if host != victim]
    then = owner(cluster, others[0])
    cluster.network.mend(victim)
    cluster.start(victim)
    cluster.wait_members(3, 0, at=others[0], healthy=HOSTS)
    cluster.wait_healthy(120, host=others[0])
    load.wait_progress(20)
    return victim, longest, then


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--losses", type=int, default=20, metavar="N", help="how many (default 20)")
    parser.add_argument("--clients", type=int, default=9, metavar="N", help="default 9")
    options = parser.parse_args()
    if not Network.possible():
        print("error: it makes network namespaces\nhint: run it as root", file=sys.stderr)
        return 1
    raise_on_signals()
    with Stack() as stack:
        directory = stack.directory("atoll-losses-")
        cluster = Machines(stack, directory, network=Network(stack, len(HOSTS)))
        cluster.begin()
        cluster.wait_members(3, 0)
        cluster.cli("policy", "create", "mirror", "--failures-to-tolerate", "1")
        cluster.cli("volume", "create", VOLUME, "256MiB", "--policy", "mirror")
        waits = []
        with Load(cluster, VOLUME, clients=options.clients) as load:
            load.wait_progress(20)
            for number in range(1, options.losses + 1):
                watcher = next(h for h in HOSTS if h in cluster.processes)
                victim, wait_s, then = lose(cluster, load, watcher)
                waits.append(wait_s)
                print(f"loss {number:>2}: host{victim}, longest wait {wait_s:.2f} s, then host{then}", flush=True)
            acknowledged = load.finish()
        if cluster.died():
            print(f"FAILED: ended by themselves: {cluster.died()}")
            return 1
        median, worst = statistics.median(waits), max(waits)
        print(f"{len(waits)} losses: median {median:.2f} s, worst {worst:.2f} s; {acknowledged} writes, all of one copy")
        good = median < MEDIAN_S and worst < WORST_S
        print("ok" if good else f"FAILED: median under {MEDIAN_S:g} s, worst under {WORST_S:g} s")
        return 0 if good else 1


if __name__ == "__main__":
    exit_with(main)

"""Runs the data path's workloads for a few seconds each on a binary that counts which of its code
they run (`scripts/release`). Measures nothing: what such a binary does is slower.
"""

import argparse
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

from cluster import Cluster
from goals import WORKLOADS
from measure import Fio
from runs import bytes_of, guarded, log

DISK_SIZE = "16GiB"
SIZE = "2g"


def train(options, stack):
    directory = stack.directory("atoll-train-", options.dir)
    cluster = Cluster(stack, os.path.join(directory, "cluster"), disk_size=DISK_SIZE)
    cluster.begin()
    cluster.create_volume("train", bytes_of(SIZE))
    fio = Fio(directory, SIZE)
    target = ["--ioengine=nbd", f"--uri={cluster.uri(1, 'train')}"]
    log("writing the volume once")
    fio.precondition(target)
    for name in WORKLOADS:
        log(f"{name} for {options.seconds} s")
        fio.write_until(target, name, lambda: False, options.seconds)
    # What they counted is written when they end.
    cluster.end()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=5, help="per workload (default 5)")
    parser.add_argument("--dir", default="/var/tmp", help="for the hosts' disks (default /var/tmp)")
    chosen = parser.parse_args()
    _, failed = guarded(lambda stack: train(chosen, stack))
    sys.exit(failed or 0)

"""What a user would take instead, measured by the harness of the workplace (`shared/peers`).

Each peer starts its own daemons, runs the same workloads, and takes everything down again.
"""

import json
import os
import shutil
import subprocess

from process import end

PEERS = {"ceph": ("ceph-osd", ["--client", "rbd"]), "gluster": ("glusterd", [])}
END_S = 60.0  # to take its daemons down
START_S, WORKLOAD_S = 900, 60  # at most: its start and preconditioning; around each workload
MEASURES = {
    **{m: (m, 1) for m in ("iops", "MBps", "mean_us", "p50_us", "p95_us", "p99_us", "p999_us")},
    **{f"{who}_cpu_us": (f"{who}_cpu_s_per_1k", 1000) for who in ("daemon", "client", "kernel")},
    "foreign_cores": ("foreign_cores", 1),
    "stolen_cores": ("steal_cores", 1),
}


def harness(repository):
    default = os.path.join(os.path.dirname(repository), "shared", "peers")
    return os.environ.get("ATOLL_PEERS", default)


def lacking(name, repository):
    """Why a peer cannot be measured here, or an empty text."""
    if name not in PEERS:
        return f"no peer {name}; there are {', '.join(PEERS)}"
    place = os.path.join(harness(repository), name)
    if not os.path.isfile(place):
        return f"the harness for {name} is not at {place} (ATOLL_PEERS names its directory)"
    if shutil.which(PEERS[name][0]) is None:
        return f"{PEERS[name][0]} is not installed"
    return ""


def measure(name, workloads, repository, stack, directory, options):
    """Yields (workload, figures) as they come; figures with an `error` have nothing else."""
    # A peer that hangs ends, and takes its daemons down as it does.
    limit = START_S + len(workloads) * (options.runtime + options.ramp + WORKLOAD_S)
    child = subprocess.Popen(
        [
            *("timeout", str(limit)),
            os.path.join(harness(repository), name),
            *PEERS[name][1],
            *("--workloads", ",".join(workloads)),
            *("--runtime", str(options.runtime)),
            *("--ramp", str(options.ramp)),
            *("--size", options.size),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PEER_TMP": directory},
        start_new_session=True,
    )
    stack.callback(end, child, END_S)
    with child.stdout:
        for line in child.stdout:
            said = json.loads(line)
            if "error" in said:
                yield said["workload"], {"error": said["error"]}
                continue
            figures = {
                mine: said[theirs] * scale
                for mine, (theirs, scale) in MEASURES.items()
                if theirs in said
            }
            yield said["workload"], figures
    if end(child, END_S):
        raise RuntimeError(f"the harness for {name} ended with {child.returncode}")

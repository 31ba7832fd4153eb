"""The crates of others that are built into Atoll, each with its licence and the texts that it
carries: what whoever ships the program must pass on. To standard output.
"""

import glob
import json
import os
import subprocess
import sys

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
TEXTS = ("LICENSE*", "LICENCE*", "COPYING*", "NOTICE*", "UNLICENSE*")


def graph():
    """`cargo metadata`, for this machine's kind."""
    version = subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout
    triple = next(line.split()[1] for line in version.splitlines() if line.startswith("host: "))
    words = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", triple]
    done = subprocess.run(words, check=True, capture_output=True, text=True, cwd=REPOSITORY)
    return json.loads(done.stdout)


def built_in(metadata):
    """Ids of the packages that end in the program: not what only tests or builds need."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    names = {package["id"]: package["name"] for package in metadata["packages"]}
    waiting = [id for id in metadata["workspace_members"] if names[id] == "atoll"]
    found = set()
    while waiting:
        id = waiting.pop()
        if id not in found:
            found.add(id)
            deps = nodes[id]["deps"]
            waiting += [d["pkg"] for d in deps if any(k["kind"] is None for k in d["dep_kinds"])]
    return found


def main():
    metadata = graph()
    ids = built_in(metadata)
    packages = [p for p in metadata["packages"] if p["id"] in ids and p["source"]]
    packages.sort(key=lambda p: (p["name"], p["version"]))
    print(f"{len(packages)} crates of others are built into this program.")
    texts = {}  # the same text of many crates is printed once
    for package in packages:
        folder = os.path.dirname(package["manifest_path"])
        print(f"\n{package['name']} {package['version']}: {package['license']}")
        print(f"  {package['repository'] or 'https://crates.io/crates/' + package['name']}")
        files = {path for pattern in TEXTS for path in glob.glob(os.path.join(folder, pattern))}
        for path in sorted(filter(os.path.isfile, files)):
            with open(path, encoding="utf-8", errors="replace") as f:
                number = texts.setdefault(f.read().strip(), len(texts) + 1)
            print(f"  {os.path.basename(path)}: text {number}")
    for text, number in texts.items():
        print(f"\n{'=' * 78}\nText {number}\n\n{text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

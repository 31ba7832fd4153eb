"""Every crate that is built into Atoll must be under a licence that the project accepts.

Reads `cargo metadata`; an SPDX expression passes if one way to satisfy it uses accepted licences
only.
"""

import json
import os
import re
import subprocess
import sys
import tomllib

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
with open(os.path.join(REPOSITORY, "deny.toml"), "rb") as f:
    ACCEPTED = set(tomllib.load(f)["licenses"]["allow"])


def satisfied(expression):
    """Whether a choice within an SPDX expression is accepted. Old forms 'MIT/Apache-2.0' are an OR."""
    tokens = re.findall(r"\(|\)|[^\s()]+", expression.replace("/", " OR "))
    position = 0

    def peek():
        return tokens[position] if position < len(tokens) else None

    def take():
        nonlocal position
        position += 1
        return tokens[position - 1]

    def term():
        if peek() == "(":
            take()
            value = either()
            take()
            return value
        name = take()
        if peek() == "WITH":
            take()
            name += f" WITH {take()}"
        return name in ACCEPTED

    def both():
        value = term()
        while peek() == "AND":
            take()
            value = term() and value
        return value

    def either():
        value = both()
        while peek() == "OR":
            take()
            value = both() or value
        return value

    return either()


def main():
    assert satisfied("MIT OR GPL-3.0") and satisfied("MIT/Apache-2.0")
    assert not satisfied("GPL-3.0") and not satisfied("MIT AND GPL-3.0")
    assert satisfied("(MIT OR GPL-2.0) AND Unicode-3.0")
    metadata = json.loads(
        subprocess.run(
            ["cargo", "metadata", "--format-version", "1", "--locked"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    )
    bad = []
    for package in metadata["packages"]:
        licence = package["license"]
        if not licence or not satisfied(licence):
            bad.append(f"{package['name']} {package['version']}: {licence or 'no licence stated'}")
    print(f"{len(metadata['packages'])} crates, {len(bad)} with a licence that is not accepted")
    for line in bad:
        print("  " + line)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

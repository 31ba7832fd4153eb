"""Is a history of reads and writes of one block linearizable? And: does every block hold one
value?

Every written value is unique, so the question has an exact and quick answer (Gibbons and Korach,
"Testing shared memories", 1997): take each value with its write and all its reads as one cluster;
the cluster's zone runs from the first response in it to the last invocation in it. The history is
linearizable if and only if no read ends before its value's write begins, no two forward zones
overlap, and no backward zone lies inside a forward one. A write that was never answered may take
effect at any later time, or never.
"""

from collections import defaultdict

BLOCK = 4096
NEVER = float("inf")
EMPTY = 0  # the value of a block that was never written


def encode(value):
    """The bytes of one block: its value, again and again, so that a torn block shows."""
    return value.to_bytes(8, "little") * (BLOCK // 8)


def decode(data):
    """The value of a block, or None if its parts do not agree."""
    value = data[:8]
    return int.from_bytes(value, "little") if data == value * (len(data) // 8) else None


class History:
    """What clients saw. One per thread; `merged` joins them."""

    def __init__(self):
        self.writes = []  # (block, value, begin, end or NEVER)
        self.cut_off = []  # (block, value, begin, by): took effect by then, or never
        self.reads = []  # (block, value, begin, end)
        self.torn = []  # (block, begin)

    @staticmethod
    def merged(histories):
        whole = History()
        for history in histories:
            whole.writes += history.writes
            whole.cut_off += history.cut_off
            whole.reads += history.reads
            whole.torn += history.torn
        return whole

    def violations(self):
        """Sentences, one for each thing that no single copy could have answered. Empty: all is well."""
        found = [f"block {block} was torn in a read at {at:.3f}" for block, at in self.torn]
        writes, reads = defaultdict(list), defaultdict(list)
        for block, *rest in self.writes:
            writes[block].append(rest)
        for block, *rest in self.reads:
            reads[block].append(rest)
        seen = {(block, value) for block, value, *_ in self.reads}
        for block, value, *times in self.cut_off:
            if (block, value) in seen:
                writes[block].append([value, *times])
        for block in sorted(set(writes) | set(reads)):
            found += [f"block {block}: {text}" for text in _block(writes[block], reads[block])]
        return found


def _block(writes, reads):
    found = []
    clusters = {
        EMPTY: [-NEVER, -NEVER, -NEVER]
    }  # value -> [write begin, first response, last invocation]
    for value, begin, end in writes:
        if value in clusters:
            found.append(f"value {value} was written twice: the test itself is wrong")
        clusters[value] = [begin, end, begin]
    for value, begin, end in reads:
        if value not in clusters:
            found.append(f"a read at {begin:.3f} returned {value}, which nobody wrote here")
            continue
        cluster = clusters[value]
        if end < cluster[0]:
            found.append(f"a read returned {value} before it was written")
        cluster[1] = min(cluster[1], end)
        cluster[2] = max(cluster[2], begin)
    forward = sorted(
        (first, last, value) for value, (_, first, last) in clusters.items() if first < last
    )
    backward = sorted(
        (last, first, value)
        for value, (_, first, last) in clusters.items()
        if first >= last and first != NEVER and value != EMPTY
    )
    for (_, last, value), (first, _, other) in zip(forward, forward[1:]):
        if first < last:
            found.append(
                f"{value} was still read at {last:.3f} after {other} was seen at {first:.3f}"
            )
    at = 0
    for begin, end, value in backward:
        while at < len(forward) and forward[at][1] < begin:
            at += 1
        if at < len(forward) and forward[at][0] < begin and end < forward[at][1]:
            found.append(
                f"{value}, acknowledged at {end:.3f}, was lost: {forward[at][2]} was seen before it "
                f"and again at {forward[at][1]:.3f}"
            )
    return found

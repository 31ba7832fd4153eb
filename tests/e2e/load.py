"""Clients that write unique values and read them back through several hosts while hosts fail.

A client whose connection breaks does what a guest's driver does: it connects again, to the next
of its hosts, and repeats its request. NBD gives a request no name that would outlive the connection,
so the first attempt and the repetition are two writes: each has values of its own. Where a client
is the only one to write its blocks (`private`), the first attempt must have had its effect before
the repetition is answered, or never: it must not land after anything newer. What the clients saw
goes into a History, which must be linearizable.
"""

import random
import threading
import time

from history import BLOCK, EMPTY, NEVER, History, decode, encode
from nbd import Client, NbdError

REQUEST_TIMEOUT_S = 40.0  # longer than any promise: what hangs that long has failed
RETRY_S = 0.1


class Worker(threading.Thread):
    def __init__(self, load, index, hosts):
        super().__init__(daemon=True)
        self.load, self.index, self.hosts = load, index, hosts
        self.history, self.errors = History(), []
        self.random = random.Random(load.seed * 1000 + index)
        self.done = []  # (end, latency) of every completed request
        self.since = None  # start of the request that waits
        self.value = load.first_value + index + 1
        self.client = None

    def run(self):
        try:
            while not self.load.stopping.is_set():
                self.operation()
        except Exception as error:  # a thread's failure must reach the test
            self.errors.append(f"client {self.index}: {error!r}")
        finally:
            if self.client:
                self.client.close()

    def operation(self):
        blocks = 1 if self.random.random() < 0.8 else self.random.randint(2, 8)
        writing = self.random.random() < self.load.write_share
        lowest, count = 0, self.load.blocks
        if writing and self.load.private:
            count //= self.load.clients
            lowest, blocks = self.index * count, min(blocks, count)
        first = lowest + self.random.randrange(count - blocks + 1)
        begin = self.since = time.monotonic()
        data, attempts = self.attempt(first, blocks, writing)
        end, self.since = time.monotonic(), None
        if attempts:
            *cut_off, (values, last) = attempts
            for i in range(blocks):
                self.history.writes.append((first + i, values[i], last, NEVER if data is None else end))
                for earlier, at in cut_off:
                    by = end if self.load.private and data is not None else NEVER
                    self.history.cut_off.append((first + i, earlier[i], at, by))
        elif data is not None:
            for i in range(blocks):
                value = decode(data[i * BLOCK : (i + 1) * BLOCK])
                if value is None:
                    self.history.torn.append((first + i, begin))
                else:
                    self.history.reads.append((first + i, value, begin, end))
        if data is not None:
            self.done.append((end, end - begin))

    def fresh(self):
        self.value += self.load.clients
        return self.value

    def attempt(self, first, blocks, writing):
        """Until it is answered or the load stops (None: nobody knows what became of it). Also
        returns the values that were sent and when, one entry an attempt."""
        offset, attempts = first * BLOCK, []
        while True:
            try:
                if self.client is None:
                    self.client = Client(
                        self.load.socket(self.hosts[0]), self.load.volume, REQUEST_TIMEOUT_S
                    )
                if not writing:
                    return self.client.read(offset, blocks * BLOCK), attempts
                values = [self.fresh() for _ in range(blocks)]
                attempts.append((values, time.monotonic()))
                self.client.write(offset, b"".join(map(encode, values)))
                return b"", attempts
            except NbdError as error:
                if error.number != 108:  # ESHUTDOWN: the server ends; the next one takes over
                    raise
            except ConnectionError:
                pass
            if self.client:
                self.client.close(politely=False)
                self.client = None
            self.hosts = self.hosts[1:] + self.hosts[:1]
            if self.load.stopping.wait(RETRY_S) and time.monotonic() > self.load.deadline:
                return None, attempts


class Load:
    """`clients` threads on `blocks` blocks of `volume`. `hosts`: which hosts each client uses, in
    turn; client i begins with the i-th. With `sticky`, a client keeps to its first host; with
    `private`, it alone writes its share of the blocks. `after`: a load of the same blocks that has
    finished, whose history this one goes on with."""

    def __init__(
        self,
        cluster,
        volume,
        hosts=(1, 2, 3),
        clients=9,
        blocks=48,
        write_share=0.5,
        seed=None,
        sticky=False,
        private=False,
        after=None,
    ):
        self.socket = cluster.nbd
        self.volume, self.clients, self.blocks, self.write_share = (
            volume,
            clients,
            blocks,
            write_share,
        )
        self.seed = seed if seed is not None else random.SystemRandom().randrange(1 << 30)
        self.private = private
        self.earlier = after.history if after else History()
        self.first_value = max(w.value for w in after.workers) if after else EMPTY
        self.history = None  # once it is finished
        self.stopping = threading.Event()
        self.deadline = NEVER
        self.workers = []
        for i in range(clients):
            mine = [hosts[(i + k) % len(hosts)] for k in range(1 if sticky else len(hosts))]
            self.workers.append(Worker(self, i, mine))

    def __enter__(self):
        for worker in self.workers:
            worker.start()
        return self

    def __exit__(self, kind, *_):
        self.stopping.set()
        if kind:
            for worker in self.workers:
                worker.join(1)

    def of(self, host):
        """Workers that began with `host`."""
        return [w for w in self.workers if w.hosts[0] == host]

    def completed(self, workers=None):
        return sum(len(w.done) for w in workers or self.workers)

    def wait_progress(self, count=20, timeout_s=30.0, workers=None):
        """Waits until every worker has completed `count` more requests. Returns the seconds."""
        chosen = workers or self.workers
        start = time.monotonic()
        goals = [(w, len(w.done) + count) for w in chosen]
        while any(len(w.done) < goal for w, goal in goals):
            self.assert_no_errors()
            if time.monotonic() - start > timeout_s:
                late = [w.index for w, goal in goals if len(w.done) < goal]
                raise AssertionError(
                    f"clients {late} did not get on within {timeout_s:g} s (seed {self.seed})"
                )
            time.sleep(0.02)
        return time.monotonic() - start

    def longest(self, since, until=NEVER, workers=None):
        """The longest that one request took, of those that were under way after `since`."""
        longest = 0.0
        for w in workers or self.workers:
            for end, latency in w.done[-20000:]:
                if end > since and end - latency < until:
                    longest = max(longest, latency)
            begun = w.since
            if begun is not None and begun < until:
                longest = max(longest, time.monotonic() - begun)
        return longest

    def assert_no_errors(self):
        errors = [text for w in self.workers for text in w.errors]
        if errors:
            raise AssertionError(f"{errors[:3]} (seed {self.seed})")

    def finish(self, timeout_s=60.0):
        """Stops, reads every block once more through every host, and checks the whole history."""
        self.deadline = time.monotonic() + timeout_s
        self.stopping.set()
        for worker in self.workers:
            worker.join(timeout_s + REQUEST_TIMEOUT_S)
            assert not worker.is_alive(), f"client {worker.index} hangs (seed {self.seed})"
        self.assert_no_errors()
        self.history = History.merged([self.earlier, *(w.history for w in self.workers)])
        self.check()
        acknowledged = sum(1 for w in self.history.writes if w[3] != NEVER)
        assert acknowledged and self.history.reads, "the load did nothing"
        return acknowledged

    def check(self):
        """Reads every block through every host, once all clients have stopped; the history with
        that must be one copy's."""
        for host in sorted({h for w in self.workers for h in w.hosts}):
            begin, data, end = self.read_all(host)
            for block in range(self.blocks):
                value = decode(data[block * BLOCK : (block + 1) * BLOCK])
                if value is None:
                    self.history.torn.append((block, begin))
                else:
                    self.history.reads.append((block, value, begin, end))
        violations = self.history.violations()
        assert not violations, f"not one copy (seed {self.seed}): " + "; ".join(violations[:5])

    def read_all(self, host, timeout_s=30.0):
        """Every block through one host, which may still be coming up: (begin, bytes, end)."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                with Client(self.socket(host), self.volume, REQUEST_TIMEOUT_S) as client:
                    begin = time.monotonic()
                    data = client.read(0, self.blocks * BLOCK)
                    return begin, data, time.monotonic()
            except ConnectionError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_S)

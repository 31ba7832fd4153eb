"""A disk that fails on order: a file, served through FUSE in its own place.

`FaultyDisk` is what tests hold; the process behind it (this file, run with the path) mounts itself
over the file and speaks the kernel's protocol by itself, so that nothing has to be installed. A
host meets it as it meets any file: O_DIRECT, io_uring, flushes, discards. It needs the right to
mount: root, or `unshare -rm`.

Orders and answers are lines of JSON on its standard input and output. When the input ends it takes
its mount down and ends, so nothing outlives the test, however that ends. A real flush of the file
below is never made: only processes die here, not the machine.

One request is handled at a time, so the faults need no lock. What is hit is counted by kind, and
noted in FILE.faults with time, offset and length.
"""

import contextlib
import ctypes
import errno
import json
import os
import random
import select
import signal
import struct
import subprocess
import sys
import time

BLOCK = 4096
LARGEST = 1 << 20  # of one request
NOTED = 20_000  # lines of FILE.faults
ANSWER_S = 30.0

READS = {"flipped-read", "stale-read", "read-error"}
WRITES = {"lost-write", "torn-write", "misdirected-write", "write-error"}
FLUSHES = {"flush-error"}
KINDS = sorted(READS | WRITES | FLUSHES | {"rolled-back", "hang"})


class FaultyDisk:
    """The disk at `path`. It is sound until it is told otherwise."""

    def __init__(self, stack, path):
        self.path = path
        self.process = stack.spawn(
            [sys.executable, "-B", os.path.realpath(__file__), path],
            log=path + ".server",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        stack.callback(self._close)
        self._answer()

    def _close(self):
        """It unmounts and ends by itself, unless it cannot: then it is made to."""
        self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(ANSWER_S)

    def _answer(self):
        if not select.select([self.process.stdout], [], [], ANSWER_S)[0]:
            raise TimeoutError(f"the disk {self.path} does not take orders")
        line = self.process.stdout.readline()
        if not line:
            with open(self.path + ".server", encoding="utf-8", errors="replace") as f:
                raise RuntimeError(f"the disk {self.path} ended: {f.read()[-2000:]}")
        return json.loads(line)

    def _order(self, name, **details):
        self.process.stdin.write(json.dumps({"order": name, **details}).encode() + b"\n")
        self.process.stdin.flush()
        return self._answer()

    def fail(self, kind, rate=1.0, seed=0):
        """From now on: one in 1/rate requests begins a burst of that fault."""
        self._order("fail", kind=kind, rate=rate, seed=seed)

    def heal(self):
        """From now on it tells the truth and answers; what it did stays done."""
        self._order("heal")

    def answer(self):
        """From now on it does not hang, whatever else it does."""
        self._order("answer")

    def mark(self):
        """What it holds now is what `roll_back` brings back."""
        self._order("mark")

    def roll_back(self):
        """As a snapshot that is put back: True if anything is older now."""
        return self._order("roll-back")["blocks"] > 0

    def empty(self):
        """A new disk of the same size, sound, in place of this one."""
        self._order("empty")

    def dead(self):
        """Its host was killed: what it has not answered was done or was not, as chance has it."""
        self._order("dead")

    def hits(self):
        """How many requests were hit, by kind, since it began."""
        return self._order("hits")["hits"]


# The process behind it.

INIT, GETATTR, SETATTR, OPEN, READ, WRITE, STATFS = 26, 3, 4, 14, 15, 16, 17
RELEASE, FSYNC, FLUSH, ACCESS, INTERRUPT, DESTROY = 18, 20, 25, 34, 36, 38
FORGET, BATCH_FORGET, FALLOCATE, LSEEK = 2, 42, 43, 46
UNANSWERED = {FORGET, BATCH_FORGET, INTERRUPT}
ASYNC_READ, BIG_WRITES, ASYNC_DIO, MAX_PAGES = 1 << 0, 1 << 5, 1 << 15, 1 << 22
DIRECT_IO, PARALLEL_WRITES = 1 << 0, 1 << 6  # of an open file
PUNCH = 3  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
SIZE_VALID = 1 << 3
NOSUID_NODEV, DETACH = 2 | 4, 2
HEADER = struct.Struct("<IIQQIIIHH")

libc = ctypes.CDLL(None, use_errno=True)


def checked(result):
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def punch(fd, at, length):
    checked(libc.fallocate(fd, PUNCH, ctypes.c_long(at), ctypes.c_long(length)))


class Medium:
    """The file and what it lies about. Older contents are kept, by blocks, only while a fault needs
    them."""

    def __init__(self, path):
        self.fd = os.open(path, os.O_RDWR)
        self.size = os.fstat(self.fd).st_size
        self.notes = open(path + ".faults", "a", encoding="ascii", buffering=1)
        self.noted = 0
        self.hits = dict.fromkeys(KINDS, 0)
        self.kind, self.rate, self.burst = None, 0.0, 0
        self.chance = random.Random()
        self.unflushed = None  # block -> before the first write since the last flush
        self.marked = None  # block -> as it was at the mark
        self.before = None  # block -> before the last write

    def fail(self, kind, rate, seed):
        self.kind, self.rate, self.burst = kind, rate, 0
        self.chance.seed(seed)
        self.unflushed = {} if kind == "flush-error" else None
        self.before = {} if kind == "stale-read" else None

    def heal(self):
        self.kind = self.unflushed = self.before = None

    def mark(self):
        self.marked = {}

    def roll_back(self):
        changed = 0
        for block, old in (self.marked or {}).items():
            changed += os.pread(self.fd, BLOCK, block) != old
            os.pwrite(self.fd, old, block)
        self.marked = None
        self.hit("rolled-back", 0, changed * BLOCK, changed)
        return changed

    def empty(self):
        self.heal()
        self.marked = None
        os.ftruncate(self.fd, 0)
        os.ftruncate(self.fd, self.size)

    def hit(self, kind, at, length, count=1):
        self.hits[kind] += count
        self.noted += 1
        if self.noted <= NOTED:
            self.notes.write(f"{time.time():.6f} {kind} {at} {length}\n")

    def struck(self, kinds):
        """Whether this request is hit: faults come in bursts of up to eight requests."""
        if self.kind not in kinds:
            return False
        if not self.burst and self.chance.random() < self.rate:
            self.burst = self.chance.randint(1, 8)
        if self.burst:
            self.burst -= 1
            return True
        return False

    def remember(self, at, length):
        """Keeps what is about to be overwritten."""
        keeping = [kept for kept in (self.unflushed, self.marked, self.before) if kept is not None]
        if not keeping:
            return
        for block in range(at - at % BLOCK, at + length, BLOCK):
            old = os.pread(self.fd, BLOCK, block)
            for kept in keeping:
                if kept is self.before:
                    kept[block] = old
                else:
                    kept.setdefault(block, old)

    def read(self, at, length):
        if self.struck({"read-error"}):
            self.hit("read-error", at, length)
            raise OSError(errno.EIO, "injected")
        data = os.pread(self.fd, length, at)
        if self.struck({"flipped-read"}) and data:
            self.hit("flipped-read", at, length)
            data = bytearray(data)
            data[self.chance.randrange(len(data))] ^= 1 << self.chance.randrange(8)
        if self.kind == "stale-read":
            known = [
                block
                for block in range(at, at + length - BLOCK + 1, BLOCK)
                if block in self.before and self.before[block] != data[block - at :][:BLOCK]
            ]
            if known and self.struck({"stale-read"}):
                self.hit("stale-read", at, length)
                data = bytearray(data)
                for block in known:
                    data[block - at : block - at + BLOCK] = self.before[block]
        return data

    def write(self, at, data, durable):
        if self.struck({"write-error"}):
            self.hit("write-error", at, len(data))
            raise OSError(errno.EIO, "injected")
        if self.struck(WRITES - {"write-error"}):
            self.hit(self.kind, at, len(data))
            if self.kind == "lost-write":
                return
            if self.kind == "torn-write":
                data = data[: 512 * self.chance.randrange(1, max(2, len(data) // 512))]
            else:
                there = at + BLOCK * self.chance.choice([-9, -2, -1, 1, 2, 9])
                at = there if 0 <= there <= self.size - len(data) else at + BLOCK
                data = data[: self.size - at]
        self.remember(at, len(data))
        os.pwrite(self.fd, data, at)
        if durable:
            self.flush()

    def discard(self, at, length):
        if self.struck(WRITES):
            self.hit(self.kind, at, length)
            if self.kind == "write-error":
                raise OSError(errno.EIO, "injected")
            return
        self.remember(at, length)
        punch(self.fd, at, length)

    def flush(self):
        """One that fails loses what it should have made durable, as page caches do."""
        if self.struck(FLUSHES):
            self.hit("flush-error", 0, 0)
            for block, old in self.unflushed.items():
                os.pwrite(self.fd, old, block)
            self.unflushed.clear()
            raise OSError(errno.EIO, "injected")
        if self.unflushed is not None:
            self.unflushed.clear()


class Server:
    """Between the kernel's connection, the medium and the orders."""

    def __init__(self, path):
        self.path, self.medium = path, Medium(path)
        self.held = []  # requests that hang: bytes, in order
        self.buffer = bytearray(LARGEST + BLOCK)
        self.device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        options = f"fd={self.device},rootmode=100000,user_id={os.getuid()},group_id={os.getgid()}"
        options += f",max_read={LARGEST}"
        name = os.fsencode(path)
        checked(libc.mount(b"faultydisk", name, b"fuse", NOSUID_NODEV, options.encode()))

    def close(self):
        libc.umount2(os.fsencode(self.path), DETACH)
        os.close(self.device)

    def run(self):
        poll, orders = select.poll(), sys.stdin.buffer
        poll.register(self.device, select.POLLIN)
        poll.register(orders, select.POLLIN)
        self.say({})
        while True:
            for fd, what in poll.poll():
                if fd == self.device:
                    if what & select.POLLERR:
                        return  # unmounted by somebody else
                    self.request()
                else:
                    line = os.read(orders.fileno(), 1 << 16)
                    if not line:
                        return
                    self.say(self.order(**json.loads(line)))  # one at a time: each is answered

    def say(self, answer):
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()

    def order(self, order, **details):
        medium = self.medium
        if order == "fail":
            self.release()
            medium.fail(**details)
        elif order == "heal":
            medium.heal()
            self.release()
        elif order == "answer":
            if medium.kind == "hang":
                medium.heal()
            self.release()
        elif order == "mark":
            medium.mark()
        elif order == "roll-back":
            return {"blocks": medium.roll_back()}
        elif order == "empty":
            medium.empty()
        elif order == "dead":
            self.release(lost=True)
        elif order == "hits":
            return {"hits": medium.hits}
        return {}

    def release(self, lost=False):
        held, self.held = self.held, []
        for request in held:
            if lost and random.random() < 0.5:
                self.answer(HEADER.unpack_from(request)[2], error=errno.EIO)
            else:
                self.handle(request)

    def request(self):
        try:
            length = os.readv(self.device, [self.buffer])
        except (BlockingIOError, InterruptedError, FileNotFoundError):
            return  # somebody gave up what was there
        message = memoryview(self.buffer)[:length]
        code = HEADER.unpack_from(message)[1]
        hanging = self.medium.kind == "hang" and code in (READ, WRITE, FSYNC, FALLOCATE)
        if hanging and (self.held or self.medium.struck({"hang"})):
            self.medium.hit("hang", 0, 0)
            self.held.append(bytes(message))
        else:
            self.handle(message)

    def answer(self, unique, data=b"", error=0):
        head = struct.pack("<IiQ", 16 + len(data), -error, unique)
        try:
            os.writev(self.device, [head, data])
        except FileNotFoundError:
            pass  # nobody waits for it any more

    def handle(self, message):
        _, code, unique, *_ = HEADER.unpack_from(message)
        if code in UNANSWERED:
            return
        try:
            self.answer(unique, self.carry_out(code, message[HEADER.size :]))
        except OSError as error:
            self.answer(unique, error=error.errno or errno.EIO)

    def carry_out(self, code, body):
        medium = self.medium
        if code == READ:
            _, at, length = struct.unpack_from("<QQI", body)
            return medium.read(at, length)
        if code == WRITE:
            _, at, length, _, _, flags = struct.unpack_from("<QQIIQI", body)
            medium.write(at, body[40 : 40 + length], flags & os.O_DSYNC)
            return struct.pack("<II", length, 0)
        if code == FSYNC:
            medium.flush()
            return b""
        if code == FALLOCATE:
            _, at, length, mode = struct.unpack_from("<QQQI", body)
            if mode != PUNCH:
                raise OSError(errno.EOPNOTSUPP, "only holes")
            medium.discard(at, length)
            return b""
        if code == GETATTR:
            return self.attributes()
        if code == SETATTR:
            if struct.unpack_from("<I", body)[0] & SIZE_VALID:
                raise OSError(errno.EPERM, "a disk keeps its size")
            return self.attributes()
        if code == OPEN:
            return struct.pack("<QII", 0, DIRECT_IO | PARALLEL_WRITES, 0)
        if code == INIT:
            major, minor, ahead, offered = struct.unpack_from("<IIII", body)
            flags = offered & (ASYNC_READ | BIG_WRITES | ASYNC_DIO | MAX_PAGES)
            background, pages = (256, 192), LARGEST // BLOCK
            head = (major, min(minor, 31), ahead, flags, *background, LARGEST, 1, pages, 0, 0)
            return struct.pack("<IIIIHHIIHHI28x", *head)
        if code == STATFS:
            return struct.pack("<QQQQQIII28x", 0, 0, 0, 0, 0, BLOCK, 255, BLOCK)
        if code in (RELEASE, FLUSH, ACCESS, DESTROY):
            return b""
        raise OSError(errno.ENOSYS, "not a thing of disks")

    def attributes(self):
        size, owner = self.medium.size, (os.getuid(), os.getgid())
        numbers = (1, size, size // 512, *[0] * 6, 0o100600, 1, *owner, 0, BLOCK, 0)
        return struct.pack("<QII", 1, 0, 0) + struct.pack("<QQQQQQIIIIIIIIII", *numbers)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server = Server(sys.argv[1])
    try:
        server.run()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        server.close()

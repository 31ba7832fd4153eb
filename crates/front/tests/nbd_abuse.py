"""Breaks the NBD protocol in every way of the design's bad-input matrix, on a Unix socket, and
checks that each way gets the documented answer, that nothing of a cut write is applied, and that
another client is served meanwhile. Raw sockets for the handshake and broken streams, libnbd (with
its own checks off) for requests. Prints "all well" and returns 0, or fails with a traceback.
"""

import errno
import socket
import struct
import sys
import time

import nbd

PATH = sys.argv[1]
SIZE = 256 << 20
OPTION = 0x49484156454F5054
UNSUP, INVALID, UNKNOWN, TOO_BIG = (2**31 + n for n in (1, 3, 6, 9))
GO, ABORT, LIST, STRUCTURED, SET_CONTEXT = 7, 2, 3, 8, 10


class Raw:
    """A client by hand."""

    def __init__(self, flags=3):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(15)
        self.socket.connect(PATH)
        assert self.take(18) == b"NBDMAGICIHAVEOPT\0\x03"
        if flags is not None:
            self.send(struct.pack(">I", flags))

    def send(self, data):
        self.socket.sendall(data)

    def take(self, count):
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    def option(self, number, data=b"", length=None):
        """Sends an option and returns the kinds of its answers up to the last one."""
        length = len(data) if length is None else length
        self.send(struct.pack(">QII", OPTION, number, length) + data)
        kinds = []
        while True:
            magic, echo, kind, size = struct.unpack(">QIII", self.take(20))
            assert (magic, echo) == (0x3E889045565A9, number)
            self.take(size)
            kinds.append(kind)
            if kind == 1 or kind & 1 << 31:
                return kinds

    def go(self, name=b"disk"):
        return self.option(GO, string(name) + b"\0\0")[-1]

    def request(self, command, cookie, at, length, data=b"", flags=0):
        self.send(struct.pack(">IHHQQI", 0x25609513, flags, command, cookie, at, length) + data)

    def reply(self):
        magic, error, cookie = struct.unpack(">IIQ", self.take(16))
        assert magic == 0x67446698
        return cookie, error

    def is_closed(self):
        """Whether the server has closed it, or does so now."""
        try:
            while self.socket.recv(65536):
                pass
            return True
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    def close(self):
        self.socket.close()


def string(data):
    return struct.pack(">I", len(data)) + data


def handshakes():
    raw = Raw(flags=1 << 7)
    assert raw.is_closed()
    raw = Raw()
    raw.send(b"NOTMAGIC" + bytes(8))
    assert raw.is_closed()
    # Refused options leave the connection usable.
    raw = Raw()
    assert raw.option(5) == [UNSUP]  # STARTTLS
    assert raw.option(11) == [UNSUP]  # EXTENDED_HEADERS
    assert raw.option(4711, b"abc") == [UNSUP]
    assert raw.option(LIST, b"x") == [INVALID]
    assert raw.go(b"n" * 4096) == UNKNOWN
    assert raw.go(b"n" * 4097) == TOO_BIG
    assert raw.go(b"\xff\xfe") == INVALID
    assert raw.go(b"../disk") == UNKNOWN
    assert raw.go(b"") == UNKNOWN
    assert raw.option(GO, string(b"disk")) == [INVALID]
    assert raw.option(GO, struct.pack(">I", 2**32 - 1) + b"disk") == [INVALID]
    assert raw.option(SET_CONTEXT, string(b"disk") + bytes(4)) == [INVALID]
    assert raw.option(STRUCTURED) == [1]
    lie = string(b"disk") + struct.pack(">I", 2**32 - 1)
    assert raw.option(SET_CONTEXT, lie) == [INVALID]
    assert raw.option(GO, bytes(100_000)) == [TOO_BIG]
    assert raw.go() == 1
    raw.close()
    raw = Raw()
    assert raw.option(GO, b"", length=2**32 - 1) == [TOO_BIG]
    assert raw.is_closed()
    raw = Raw()
    answers = 0
    try:
        for _ in range(20_000):
            assert raw.option(4711) == [UNSUP]
            answers += 1
    except (EOFError, ConnectionError):
        pass
    assert answers == 16_384, answers
    raw = Raw()
    assert raw.option(ABORT) == [1]
    assert raw.is_closed()
    raw = Raw()
    raw.send(struct.pack(">QII", OPTION, 1, 7) + b"nowhere")
    assert raw.is_closed()


def refused(call, *arguments, error, **more):
    try:
        call(*arguments, **more)
    except nbd.Error as failure:
        assert failure.errnum == error, (call, arguments, failure)
    else:
        raise AssertionError((call, arguments, "was not refused"))


def connect(export="disk", structured=True, contexts=True):
    handle = nbd.NBD()
    handle.set_strict_mode(0)
    handle.set_request_structured_replies(structured)
    if contexts:
        handle.add_meta_context("base:allocation")
    handle.set_export_name(export)
    handle.connect_unix(PATH)
    return handle


def requests(structured):
    handle = connect(structured=structured)
    assert handle.get_structured_replies_negotiated() == structured
    handle.pwrite(b"\x11" * 4096, 0)
    for at, length in ((0, 0), (7, 512), (0, 513), (SIZE, 512), (SIZE - 512, 1024), (2**63, 512)):
        refused(handle.pread, length, at, error=errno.EINVAL)
    refused(handle.pread, (32 << 20) + 512, 0, error=errno.EINVAL)
    for at, error in ((SIZE, errno.ENOSPC), (SIZE - 512, errno.ENOSPC), (2**63, errno.ENOSPC)):
        refused(handle.pwrite, bytes(1024), at, error=error)
    refused(handle.pwrite, b"", 0, error=errno.EINVAL)
    refused(handle.pwrite, bytes(100), 0, error=errno.EINVAL)
    refused(handle.zero, 512, SIZE, error=errno.ENOSPC)
    refused(handle.trim, 512, SIZE, error=errno.EINVAL)
    refused(handle.cache, 512, SIZE, error=errno.EINVAL)
    refused(handle.pread, 512, 0, 1 << 9, error=errno.EINVAL)
    slow = nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FAST_ZERO
    refused(handle.zero, 65536, 0, slow, error=errno.ENOTSUP)
    handle.cache(1 << 20, 0)
    handle.cache(128 << 20, 0)
    handle.flush()
    handle.pwrite(b"\x22" * 512, 4096, nbd.CMD_FLAG_FUA)
    handle.zero(512, 512)
    handle.trim(512, 1024, nbd.CMD_FLAG_FUA)
    expected = b"\x11" * 512 + bytes(1024) + b"\x11" * (4096 - 1536) + b"\x22" * 512
    assert handle.pread(4608, 0) == expected
    if structured:
        statuses(handle)
        whole = handle.pread_structured(1 << 20, 0, lambda *_: 0, nbd.CMD_FLAG_DF)
        assert whole[:4608] == expected and not any(whole[4608:])
        chunks = []
        handle.pread_structured(
            1 << 20, 0, lambda data, at, status, _: chunks.append((at, len(data), status)))
        assert chunks == [(0, 65536, nbd.READ_DATA), (65536, 983040, nbd.READ_HOLE)], chunks
    handle.shutdown()


def statuses(handle):
    handle.trim(SIZE, 0)
    handle.pwrite(bytes(65536), 0)
    handle.pwrite(bytes(65536), 131072)
    handle.pwrite(b"\x11" * 512 + bytes(1024) + b"\x11" * (4096 - 1536) + b"\x22" * 512, 0)
    handle.trim(65536, 131072)
    found = []
    found_more = lambda _, at, entries, __: found.extend(entries)
    handle.block_status(SIZE, 0, found_more)
    assert found == [65536, 0, SIZE - 65536, 3], found
    found.clear()
    handle.block_status(SIZE, 0, found_more, nbd.CMD_FLAG_REQ_ONE)
    assert found == [65536, 0], found
    for at, length in ((0, 0), (SIZE, 512), (0, 2**32 - 1), (3, 512)):
        refused(handle.block_status, length, at, lambda *_: 0, error=errno.EINVAL)
    other = connect(contexts=False)
    refused(other.block_status, 512, 0, lambda *_: 0, error=errno.EINVAL)
    other.shutdown()


def broken_streams():
    # Written too much: the error, and the stream goes on behind the data.
    raw = Raw()
    assert raw.go() == 1
    length = (32 << 20) + 512
    raw.request(1, 1, 0, length, bytes(length))
    assert raw.reply() == (1, errno.EINVAL)
    raw.request(0, 2, 0, 2**32 - 1)
    assert raw.reply() == (2, errno.EINVAL)
    raw.request(77, 3, 0, 512)
    assert raw.reply() == (3, errno.EINVAL)
    # The same cookie twice is two requests.
    raw.request(3, 9, 0, 0)
    raw.request(3, 9, 0, 0)
    assert raw.reply() == raw.reply() == (9, 0)
    # Far too much: the error, then the end.
    raw.request(1, 4, 0, 2**32 - 1)
    assert raw.reply() == (4, errno.EINVAL)
    assert raw.is_closed()
    raw = Raw()
    assert raw.go() == 1
    raw.send(bytes(28))
    assert raw.is_closed()
    # A write cut in its data.
    check = connect()
    for length in (4096, 1 << 20, 32 << 20):
        raw = Raw()
        assert raw.go() == 1
        raw.request(1, 1, 64 << 20, length, b"\xee" * (length - 1))
        raw.close()
    time.sleep(0.2)
    assert not any(check.pread(32 << 20, 64 << 20))
    check.shutdown()
    # DISC with requests under way: they are finished and answered.
    raw = Raw()
    assert raw.go(b"slow") == 1
    raw.request(1, 5, 0, 512, b"\x55" * 512)
    raw.request(2, 0, 0, 0)
    assert raw.reply() == (5, 0)
    assert raw.is_closed()
    check = connect("slow")
    assert check.pread(512, 0) == b"\x55" * 512
    check.shutdown()


def bad_clients():
    """Half open, never reading, byte by byte: others do not notice; the server throws them out."""
    victim = connect()
    half = [Raw(flags=None if n % 2 else 3) for n in range(200)]
    began = time.monotonic()
    greedy = []
    for _ in range(8):
        raw = Raw()
        assert raw.go() == 1
        raw.socket.setblocking(False)
        try:
            for n in range(5000):
                raw.request(0, n, 0, 1 << 20)
        except BlockingIOError:
            pass
        greedy.append(raw)
    stuck = Raw()
    assert stuck.go(b"stuck") == 1
    stuck.request(0, 1, 0, 512)
    slow = Raw()
    assert slow.go() == 1
    head = struct.pack(">IHHQQI", 0x25609513, 0, 3, 77, 0, 0)
    worst = 0.0
    for byte in head:
        slow.send(bytes([byte]))
        for _ in range(20):
            before = time.monotonic()
            victim.pwrite(b"\x33" * 4096, 4096)
            assert victim.pread(4096, 4096) == b"\x33" * 4096
            worst = max(worst, time.monotonic() - before)
        fresh = connect()
        fresh.pread(1 << 20, 0)
        fresh.shutdown()
    assert slow.reply() == (77, 0)
    assert worst < 1, worst
    for raw in half:
        assert raw.is_closed()
    assert 9 < time.monotonic() - began < 14, time.monotonic() - began
    for raw in greedy + [stuck, slow]:
        raw.close()
    victim.shutdown()


def errors():
    handle = connect("failing")
    refused(handle.pread, 512, 1 << 20, error=errno.EIO)
    refused(handle.pwrite, bytes(512), 1 << 20, error=errno.ENOSPC)
    refused(handle.zero, 512, 1 << 20, error=errno.ENOTSUP)
    refused(handle.trim, 512, 1 << 20, error=errno.EIO)
    refused(handle.flush, error=errno.EIO)
    refused(handle.block_status, 512, 1 << 20, lambda *_: 0, error=errno.ESHUTDOWN)
    seen = []
    refused(handle.pread_structured, 4096, 2 << 20,
            lambda data, at, status, error: seen.append((at, status)), error=errno.EIO)
    assert seen == [(2 << 20, nbd.READ_ERROR)], seen
    handle.pwrite(bytes(512), 0)
    handle.shutdown()
    handle = connect("readonly")
    assert handle.is_read_only()
    refused(handle.pwrite, bytes(512), 0, error=errno.EPERM)
    refused(handle.trim, 512, 0, error=errno.EPERM)
    refused(handle.zero, 512, 0, error=errno.EPERM)
    handle.shutdown()


def many_connections():
    """Written on one, flushed on it, read on the others."""
    handles = [connect() for _ in range(8)]
    assert all(handle.can_multi_conn() for handle in handles)
    for n, handle in enumerate(handles):
        handle.pwrite(bytes([n]) * 4096, n * 4096)
    handles[0].flush()
    for handle in handles:
        for n in range(8):
            assert handle.pread(4096, n * 4096) == bytes([n]) * 4096
    for handle in handles:
        handle.shutdown()


if __name__ == "__main__":
    for part in (handshakes, lambda: requests(True), lambda: requests(False), broken_streams,
                 errors, many_connections, bad_clients):
        part()
    print("all well")

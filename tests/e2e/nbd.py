"""A small NBD client with deadlines, and with every message in reach so that tests can send bad
ones.

One connection, one request at a time. Fixed newstyle, GO, structured replies where the server has
them. Every call either returns, raises NbdError (the server answered with an error) or
ConnectionError (which leaves the fate of a write unknown).
"""

import socket
import struct

OPT_EXPORT_NAME, OPT_ABORT, OPT_LIST, OPT_INFO, OPT_GO = 1, 2, 3, 6, 7
OPT_STRUCTURED_REPLY, OPT_LIST_META, OPT_SET_META = 8, 9, 10
REP_ACK, REP_SERVER, REP_INFO, REP_META = 1, 2, 3, 4
CMD_READ, CMD_WRITE, CMD_DISC, CMD_FLUSH, CMD_TRIM, CMD_CACHE, CMD_ZEROES, CMD_BLOCK_STATUS = range(
    8
)
FLAG_FUA, FLAG_NO_HOLE, FLAG_DF, FLAG_REQ_ONE, FLAG_FAST_ZERO = 1, 2, 4, 8, 16
EIO, EINVAL, ENOSPC, EOVERFLOW, ENOTSUP, ESHUTDOWN, EPERM = 5, 22, 28, 75, 95, 108, 1
IHAVEOPT = 0x49484156454F5054
OPT_REPLY = 0x0003E889045565A9
REQUEST, SIMPLE, STRUCTURED = 0x25609513, 0x67446698, 0x668E33EF


class NbdError(Exception):
    def __init__(self, number, message=""):
        super().__init__(f"NBD error {number} {message}".strip())
        self.number = number


class Client:
    """Connects to `path` (a Unix socket) and, unless `export` is None, opens it."""

    def __init__(self, path, export, timeout_s=30.0, structured=True, block_status=False):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(timeout_s)
        self.cookie = 0
        self.structured = False
        self.context = None
        try:
            self.socket.connect(path)
            magic, again, flags = struct.unpack(">QQH", self.receive(18))
            if magic != 0x4E42444D41474943 or again != IHAVEOPT or not flags & 1:
                raise ConnectionError("not a fixed newstyle NBD server")
            self.send(struct.pack(">I", 1 | (flags & 2)))
            if export is not None:
                if structured:
                    self.structured = self.option(OPT_STRUCTURED_REPLY)[0][0] == REP_ACK
                if block_status:
                    self.context = self.set_context(export, "base:allocation")
                self.go(export)
        except OSError as error:
            self.socket.close()
            if isinstance(error, ConnectionError):
                raise
            raise ConnectionError(str(error)) from error
        except BaseException:
            self.socket.close()
            raise

    def close(self, politely=True):
        if politely:
            try:
                self.send(struct.pack(">IHHQQI", REQUEST, 0, CMD_DISC, 0, 0, 0))
            except OSError:
                pass
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # Bytes.

    def send(self, data):
        try:
            self.socket.sendall(data)
        except TimeoutError as error:
            raise ConnectionError("timed out sending") from error

    def receive(self, count):
        data = bytearray()
        while len(data) < count:
            try:
                part = self.socket.recv(count - len(data))
            except TimeoutError as error:
                raise ConnectionError("timed out waiting for the server") from error
            if not part:
                raise ConnectionError("the server closed the connection")
            data += part
        return bytes(data)

    # Negotiation.

    def option(self, number, data=b""):
        """Sends an option; returns its replies up to the last as [(type, data)]."""
        self.send(struct.pack(">QII", IHAVEOPT, number, len(data)) + data)
        replies = []
        while True:
            magic, echo, kind, length = struct.unpack(">QIII", self.receive(20))
            if magic != OPT_REPLY or echo != number or length > 1 << 20:
                raise ConnectionError("a malformed option reply")
            replies.append((kind, self.receive(length)))
            if kind == REP_ACK or kind & 0x80000000:
                return replies

    def go(self, export):
        name = export.encode()
        replies = self.option(OPT_GO, struct.pack(">I", len(name)) + name + struct.pack(">H", 0))
        for kind, data in replies:
            if kind == REP_INFO and data[:2] == b"\0\0":
                self.size, self.flags = struct.unpack(">QH", data[2:12])
        if replies[-1][0] != REP_ACK:
            raise NbdError(replies[-1][0] & 0xFFFF, replies[-1][1].decode(errors="replace"))

    def set_context(self, export, query):
        name, text = export.encode(), query.encode()
        replies = self.option(
            OPT_SET_META,
            struct.pack(">I", len(name)) + name + struct.pack(">II", 1, len(text)) + text,
        )
        found = [struct.unpack(">I", data[:4])[0] for kind, data in replies if kind == REP_META]
        return found[0] if found else None

    # Requests.

    def request(self, command, offset, length, flags=0, payload=b""):
        """One request and its whole answer: bytes of a read, extents of a block status, or b''."""
        self.cookie += 1
        self.send(
            struct.pack(">IHHQQI", REQUEST, flags, command, self.cookie, offset, length) + payload
        )
        return self.reply(command, offset, length)

    def reply(self, command, offset, length):
        out, error, extents = bytearray(length if command == CMD_READ else 0), None, []
        while True:
            magic = struct.unpack(">I", self.receive(4))[0]
            if magic == SIMPLE:
                number, cookie = struct.unpack(">IQ", self.receive(12))
                self.expect(cookie)
                if number:
                    raise NbdError(number)
                return self.receive(length) if command == CMD_READ else b""
            if magic != STRUCTURED:
                raise ConnectionError("a malformed reply")
            flags, kind, cookie, size = struct.unpack(">HHQI", self.receive(16))
            self.expect(cookie)
            data = self.receive(size)
            if kind == 1:  # OFFSET_DATA
                at = struct.unpack(">Q", data[:8])[0] - offset
                if at < 0 or at + size - 8 > length:
                    raise ConnectionError("data outside the request")
                out[at : at + size - 8] = data[8:]
            elif kind == 2:  # OFFSET_HOLE: already zero
                pass
            elif kind == 5:  # BLOCK_STATUS
                extents += struct.iter_unpack(">II", data[4:])
            elif kind & 0x8000:
                number, text = struct.unpack(">IH", data[:6])
                error = NbdError(number, data[6 : 6 + text].decode(errors="replace"))
            if flags & 1:  # DONE
                if error:
                    raise error
                return extents if command == CMD_BLOCK_STATUS else bytes(out)

    def expect(self, cookie):
        if cookie != self.cookie:
            raise ConnectionError("an answer to something else")

    def read(self, offset, length):
        return self.request(CMD_READ, offset, length)

    def write(self, offset, data, fua=False):
        self.request(CMD_WRITE, offset, len(data), FLAG_FUA if fua else 0, data)

    def flush(self):
        self.request(CMD_FLUSH, 0, 0)

    def trim(self, offset, length):
        self.request(CMD_TRIM, offset, length)

    def zero(self, offset, length, flags=0):
        self.request(CMD_ZEROES, offset, length, flags)

    def block_status(self, offset, length):
        return self.request(CMD_BLOCK_STATUS, offset, length)

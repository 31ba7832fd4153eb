"""URIs of NBD exports, escaped as Atoll escapes them (crates/api/src/uri.rs)."""

import os
import urllib.parse


def nbd(socket_path, export=""):
    """The URI of an export on a Unix socket: every byte that is special in a URI as %XX."""
    socket_path = urllib.parse.quote(os.fsencode(socket_path))
    return f"nbd+unix:///{urllib.parse.quote(export, safe='')}?socket={socket_path}"

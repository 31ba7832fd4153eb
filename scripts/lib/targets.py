"""What fio is pointed at beside a cluster: a file on the disk, and what qemu-nbd serves."""

import socket

import uri
from process import wait_until

ANSWERS_S = 15


def file_targets(path):
    """By system: the file as it is, and with every write durable before it returns."""
    plain = ["--ioengine=io_uring", f"--filename={path}"]
    return {"raw": plain, "dsync": [*plain, "--sync=dsync"]}


def nbd_target(socket_path):
    return ["--ioengine=nbd", f"--uri={uri.nbd(socket_path)}"]


def start_qemu_nbd(stack, socket_path, errors, image):
    """Serves what the words `image` describe. Its output goes to the file `errors`."""
    argv = ["qemu-nbd", "-k", socket_path, "-x", "", "-t", "-e", "4", *image]
    server = stack.spawn(argv, log=errors)

    def answers():
        if server.poll() is not None:
            with open(errors, encoding="utf-8", errors="replace") as f:
                raise RuntimeError(f"qemu-nbd ended: {f.read()[-400:]}")
        with socket.socket(socket.AF_UNIX) as connection:
            return connection.connect_ex(socket_path) == 0

    wait_until("qemu-nbd to answer", answers, ANSWERS_S)
    return server

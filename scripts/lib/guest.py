"""A real guest in QEMU with its root on a volume, and the ledger that it keeps.

The guest talks to the host over a virtio-serial port only; it has no network.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import threading
import time

from image import ROOT_OFFSET
from process import run, wait_until

RECONNECT_S = 60  # how long QEMU holds the guest's I/O while the daemon that serves it is away


def accelerator(guest_image):
    """'kvm' where a short probe boot shows that it works, else 'tcg'. /dev/kvm may exist and hang."""
    if os.access("/dev/kvm", os.R_OK | os.W_OK):
        try:
            probe = run(
                [
                    "qemu-system-x86_64",
                    "-machine",
                    "q35",
                    "-accel",
                    "kvm",
                    "-cpu",
                    "max",
                    "-m",
                    "256",
                    "-nodefaults",
                    "-no-user-config",
                    "-display",
                    "none",
                    "-serial",
                    "stdio",
                    "-no-reboot",
                    "-kernel",
                    guest_image.kernel,
                    "-initrd",
                    guest_image.initrd,
                    "-append",
                    "console=ttyS0 quiet panic=-1 atoll.probe",
                ],
                timeout_s=10,
                check=False,
            )
            if "this accelerator runs a kernel" in probe.stdout:
                return "kvm"
        except subprocess.TimeoutExpired:
            pass
    return "tcg"


class Guest:
    """One running QEMU with its root disk on `export` of the NBD server at the socket `nbd`."""

    def __init__(self, stack, directory, nbd, export, accel, kernel_of=None):
        """Boots from the volume, as a machine does; or, with `kernel_of` (an image), with that
        image's kernel from a file, which spares an emulated BIOS a thousand small reads.
        """
        self.lines = []
        self.durable = {}  # worker -> newest sequence number that the guest said was durable
        self.samples = []  # (host time, writes in the last second, longest batch in ms)
        self.ended = False
        self._lock = threading.Condition()
        self.console = os.path.join(directory, "console.log")
        port = os.path.join(directory, "ledger.sock")
        disk = {
            "driver": "nbd",
            "node-name": "root",
            "export": export,
            "server": {"type": "unix", "path": nbd},
            "reconnect-delay": RECONNECT_S,
            "discard": "unmap",
            "cache": {"direct": True},
        }
        accel_option = "kvm" if accel == "kvm" else "tcg,thread=multi"
        argv = (
            f"qemu-system-x86_64 -machine q35 -accel {accel_option} -cpu max -smp 2 -m 512".split()
        )
        argv += "-nodefaults -no-user-config -display none -no-reboot -device virtio-serial".split()
        argv += ["-serial", f"file:{self.console}"]
        argv += ["-chardev", f"socket,id=ledger,path={port.replace(',', ',,')},server=on,wait=off"]
        argv += ["-device", "virtserialport,chardev=ledger,name=atoll.ledger"]
        argv += ["-blockdev", json.dumps(disk)]
        argv += ["-device", "virtio-blk-pci,drive=root"]
        if kernel_of:
            argv += ["-kernel", kernel_of.kernel, "-initrd", kernel_of.initrd]
            argv += ["-append", "root=/dev/vda1 console=ttyS0 quiet panic=10"]
        self.process = stack.spawn(argv, log=os.path.join(directory, "qemu.log"))
        self._qemu_log = os.path.join(directory, "qemu.log")
        self._socket = socket.socket(socket.AF_UNIX)
        stack.callback(self._socket.close)
        wait_until("QEMU", lambda: os.path.exists(port) or self.process.poll() is not None, 20)
        if self.process.poll() is not None:
            raise RuntimeError(f"QEMU did not start: {self.tail()}")
        self._socket.connect(port)
        threading.Thread(target=self._read, daemon=True).start()

    def tail(self):
        """The last words of QEMU and of the guest's console, for an error message."""
        text = []
        for path in (self._qemu_log, self.console):
            if os.path.exists(path):
                with open(path, encoding="utf-8", errors="replace") as f:
                    text += f.read().strip().splitlines()[-5:]
        return " | ".join(text) or "no output"

    def _read(self):
        try:
            with self._socket.makefile("r", errors="replace") as stream:
                for line in stream:
                    self._hear(line.split())
        except OSError:
            pass  # QEMU was killed
        with self._lock:
            self.ended = True
            self._lock.notify_all()

    def _hear(self, words):
        with self._lock:
            if not words:
                return
            if words[0] == "d" and len(words) == 3:
                self.durable[int(words[1])] = int(words[2])
            elif words[0] == "r" and len(words) == 3:
                self.samples.append((time.monotonic(), int(words[1]), int(words[2])))
            else:
                self.lines.append(words)
            self._lock.notify_all()

    def command(self, text):
        self._socket.sendall(text.encode() + b"\n")

    def answer(self, *kinds, timeout_s=60.0):
        """The next answer whose first word is one of `kinds`. An "error" is always one of them."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            while True:
                for i, words in enumerate(self.lines):
                    if words[0] in kinds or words[0] == "error":
                        return self.lines.pop(i)
                left = deadline - time.monotonic()
                if self.ended:
                    raise RuntimeError(f"the guest ended: {self.tail()}")
                if left <= 0:
                    raise TimeoutError(
                        f"no {'/'.join(kinds)} from the guest after {timeout_s:g} s: {self.tail()}"
                    )
                self._lock.wait(left)

    def boot(self, timeout_s=240.0):
        """Waits for the ledger's greeting. Returns the guest's own seconds since its kernel began."""
        return float(self.answer("hello", timeout_s=timeout_s)[1])

    def start(self, seed, workers=4):
        self.seed, self.workers = seed, workers
        self.command(f"run {seed} {workers}")

    def errors(self):
        with self._lock:
            return [" ".join(words) for words in self.lines if words[0] in ("error", "bad")]

    def window(self, since, until=None):
        """(writes per second, longest batch in seconds) of the samples in a span of host time."""
        with self._lock:
            chosen = [s for s in self.samples if s[0] >= since and (until is None or s[0] <= until)]
        if not chosen:
            return 0.0, 0.0
        return sum(s[1] for s in chosen) / len(chosen), max(s[2] for s in chosen) / 1000

    def total(self):
        with self._lock:
            return sum(self.durable.values())

    def numbers(self):
        """The durable sequence number of every worker, in order, as `ledger check` wants them."""
        return [str(self.durable.get(worker, 0)) for worker in range(self.workers)]

    def stop(self, timeout_s=60.0):
        """Ends the writing; what was reported until then is all there is."""
        self.command("stop")
        answer = self.answer("stopped", timeout_s=timeout_s)
        if answer[0] != "stopped":
            raise RuntimeError("the guest's writes failed: " + " ".join(answer))

    def check(self, timeout_s=120.0):
        """Checks every recorded write inside the guest. Returns its 'ok ...' line."""
        self.command(f"check {self.seed} " + " ".join(self.numbers()))
        answer = self.answer("ok", "bad", timeout_s=timeout_s)
        if answer[0] != "ok":
            raise AssertionError(" ".join(answer))
        return " ".join(answer)

    def off(self, timeout_s=60.0):
        """Shuts the guest down cleanly and waits for QEMU to end."""
        self.command("off")
        self.process.wait(timeout_s)
        with open(self.console, encoding="utf-8", errors="replace") as f:
            if "root is read-only: clean" not in f.read():
                raise RuntimeError(f"the guest did not shut down cleanly: {self.tail()}")


def check_file_system(raw):
    """e2fsck of the root file system in a raw image; its verdict, or AssertionError with its output."""
    done = run(["e2fsck", "-fn", f"{raw}?offset={ROOT_OFFSET}"], timeout_s=120, check=False)
    if done.returncode != 0:
        raise AssertionError(f"e2fsck says {done.returncode}: {done.stdout.strip()[-1500:]}")
    return done.stdout.strip().splitlines()[-1]


def check_records(guest_image, raw, seed, numbers, directory):
    """Every recorded write, read from a raw image without mounting it. Returns (writes, places)."""
    out = os.path.join(directory, "ledger-files")
    os.makedirs(out)
    run(["debugfs", "-R", f"rdump /srv/ledger {out}", f"{raw}?offset={ROOT_OFFSET}"], timeout_s=120)
    done = run(
        [guest_image.ledger, "check", os.path.join(out, "ledger"), str(seed), *numbers],
        timeout_s=120,
        check=False,
    )
    shutil.rmtree(out)
    found = re.match(r"ok (\d+) writes at (\d+) places", done.stdout)
    if done.returncode != 0 or not found:
        raise AssertionError(
            "recorded writes are missing or wrong:\n" + done.stdout[-1500:] + done.stderr[-500:]
        )
    return int(found[1]), int(found[2])

"""The guest image: a small Debian with GRUB, kernel and root file system on one disk.

Made once by mmdebstrap and kept under the user's cache directory, named by the hash of what it is
made from, this file included. Nothing on the host is mounted, installed or changed for it.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile

from process import end, run

SOURCES = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "guest")
DISK_MIB = 1024
ROOT_OFFSET = 1 << 20  # the partition starts at 1 MiB
STEPS = 16  # lines "I: ..." that mmdebstrap prints, for the progress shown


class Image:
    """The files of one guest image: `disk` (raw, bootable), `kernel`, `initrd`, `ledger`."""

    def __init__(self, path):
        self.path = path
        self.disk = os.path.join(path, "disk.raw")
        self.kernel = os.path.join(path, "vmlinuz")
        self.initrd = os.path.join(path, "initrd.img")
        self.ledger = os.path.join(path, "ledger")


def cache_directory():
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "atoll")


def image(progress=lambda text: None):
    """The guest image, made now if the cache has none. `progress` is told what happens."""
    digest = hashlib.sha256()
    for name in ("customize", "init", "initramfs-init", "ledger.c"):
        with open(os.path.join(SOURCES, name), "rb") as f:
            digest.update(f.read())
    with open(os.path.realpath(__file__), "rb") as f:
        digest.update(f.read())
    cache = cache_directory()
    final = os.path.join(cache, f"guest-{digest.hexdigest()[:16]}")
    if os.path.isdir(final):
        return Image(final), False
    os.makedirs(cache, exist_ok=True)
    work = f"{final}.{os.getpid()}.new"
    os.mkdir(work)
    try:
        _make(work, progress)
        os.rename(work, final)
    except OSError:
        if not os.path.isdir(final):  # another run was faster: its image is as good
            raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return Image(final), True


PACKAGES = "busybox-static,e2fsprogs,grub-pc-bin,mount"
LEFT_OUT = ("/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/man/*", "/usr/share/info/*")


def _make(work, progress):
    # As a user mmdebstrap works in a user namespace, whose root must be able to read these files:
    # they go where everybody can, and a home directory often is not.
    with tempfile.TemporaryDirectory(prefix="atoll-guest-") as staged:
        shutil.copytree(SOURCES, staged, dirs_exist_ok=True)
        os.chmod(staged, 0o755)
        _make_from(staged, work, progress)


def _make_from(staged, work, progress):
    progress("compiling the ledger")
    run(
        [
            "gcc",
            "-O2",
            "-Wall",
            "-Wextra",
            "-static",
            "-pthread",
            "-o",
            os.path.join(staged, "ledger"),
            os.path.join(staged, "ledger.c"),
        ]
    )
    argv = [
        "mmdebstrap",
        "--variant=essential",
        "--format=null",
        f"--include={PACKAGES}",
        '--aptopt=APT::Install-Recommends "false"',
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in LEFT_OUT),
        f"--customize-hook={os.path.join(staged, 'customize')}",
    ]
    for name in ("/tmp/disk.tar", "/boot/vmlinuz", "/boot/initrd.img"):
        argv.append(
            f"--customize-hook=download {name} {os.path.join(work, os.path.basename(name))}"
        )
    environment = {**os.environ, "ATOLL_GUEST": staged, "ATOLL_DISK_MIB": str(DISK_MIB)}
    log, step = [], 0
    child = subprocess.Popen(
        [*argv, "bookworm", "-"],
        env=environment,
        cwd=staged,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        for text in child.stdout:
            log.append(text.rstrip())
            if text.startswith("I: "):
                step += 1
                percent = min(99, 100 * step // STEPS)
                progress(f"{percent:2d} %  {text[3:].split(' /')[0].strip()[:60]}")
        if child.wait() != 0:
            raise RuntimeError("mmdebstrap failed:\n" + "\n".join(log[-15:]))
    finally:
        end(child)
    run(
        ["tar", "-C", work, "--no-same-owner", "-xf", os.path.join(work, "disk.tar")], timeout_s=300
    )
    os.unlink(os.path.join(work, "disk.tar"))
    shutil.copy2(os.path.join(staged, "ledger"), os.path.join(work, "ledger"))

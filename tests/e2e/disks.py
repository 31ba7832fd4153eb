"""What can go wrong with a disk, done to the files that are the disks of a test cluster."""

import os
import shutil

STEP = 16 << 20


def extents(path):
    """(offset, length) of the parts of a sparse file that hold data."""
    size = os.path.getsize(path)
    with open(path, "rb") as f:
        at = 0
        while at < size:
            try:
                begin = os.lseek(f.fileno(), at, os.SEEK_DATA)
            except OSError:  # no data behind this
                return
            at = os.lseek(f.fileno(), begin, os.SEEK_HOLE)
            yield begin, at - begin


def find(path, needle, align=512):
    """Every aligned offset at which `needle` stands in a disk."""
    found = []
    with open(path, "rb") as f:
        for begin, length in extents(path):
            at, end = begin, begin + length
            while at < end:
                f.seek(at)
                data = f.read(min(STEP, end - at) + len(needle) - 1)
                where = data.find(needle)
                while where >= 0:
                    if (at + where) % align == 0 and where < STEP:
                        found.append(at + where)
                    where = data.find(needle, where + 1)
                at += STEP
    return found


def flip(path, offset, bit=0x10):
    """One bit of a disk rots."""
    with open(path, "r+b", buffering=0) as f:
        byte = os.pread(f.fileno(), 1, offset)[0]
        os.pwrite(f.fileno(), bytes([byte ^ bit]), offset)
        os.fsync(f.fileno())


def copy(source, target):
    """A whole disk, holes kept."""
    with open(source, "rb") as f, open(target, "wb") as out:
        for begin, length in extents(source):
            f.seek(begin)
            out.seek(begin)
            left = length
            while left:
                data = f.read(min(STEP, left))
                out.write(data)
                left -= len(data)
        out.truncate(os.path.getsize(source))


def empty(path):
    """A new disk of the same size in place of this one."""
    size = os.path.getsize(path)
    os.truncate(path, 0)
    os.truncate(path, size)


def swap(one, other):
    aside = one + ".aside"
    os.rename(one, aside)
    os.rename(other, one)
    os.rename(aside, other)


def remove(path):
    os.unlink(path)


def move(source, target):
    shutil.move(source, target)

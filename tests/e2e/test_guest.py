"""A real guest with its root on a volume, while the processes under it die."""

import os
import time

import guest as guests
import image as images
from harness import ClusterTest, row


class RealGuest(ClusterTest):
    volume, size, disk_size = "guest", f"{images.DISK_MIB}MiB", "4GiB"
    stall_s = 20.0  # QEMU connects again after 1, 2, 4, 8 s; a guest under TCG needs its time too

    def setUp(self):
        super().setUp()
        self.image, _ = images.image()
        self.cluster.cli("volume", "import", self.volume, self.image.disk, timeout_s=180)

    def boot(self, host):
        guest = guests.Guest(
            self.stack,
            self.directory,
            self.cluster.nbd(host),
            self.volume,
            guests.accelerator(self.image),
            kernel_of=self.image,
        )
        guest.boot()
        return guest

    def wait_writes(self, guest, count, timeout_s):
        goal, deadline = guest.total() + count, time.monotonic() + timeout_s
        while guest.total() < goal:
            self.assertFalse(guest.errors())
            self.assertLess(time.monotonic(), deadline, f"the guest stands still: {guest.tail()}")
            time.sleep(0.05)

    @row("3: the serving daemon dies under a guest, three times; QEMU picks it up again")
    def test_server_killed(self):
        guest = self.boot(1)
        guest.start(seed=7)
        for _ in range(3):
            self.wait_writes(guest, 400, self.stall_s)
            self.cluster.kill(1)
            self.cluster.start(1, serving=False)
        self.wait_writes(guest, 400, self.stall_s)
        guest.stop()
        self.assertFalse(guest.errors())
        guest.check()
        guest.off()
        # Read through another host, without the guest's help.
        raw = os.path.join(self.directory, "out.raw")
        self.cluster.wait_healthy()
        self.cluster.cli("volume", "export", self.volume, raw, host=2, timeout_s=180)
        guests.check_file_system(raw)
        guests.check_records(self.image, raw, 7, guest.numbers(), self.directory)

    @row("1, 2, 4: the guest and every host die at once: what it was told is safe is there")
    def test_everything_killed(self):
        guest = self.boot(1)
        guest.start(seed=8)
        self.wait_writes(guest, 1000, 60)
        self.cluster.kill_at_once((1, 2, 3))
        guest.process.kill()
        guest.process.wait()
        for host in (1, 2, 3):
            self.cluster.start(host, serving=False)
        self.cluster.wait_serving()
        os.unlink(os.path.join(self.directory, "ledger.sock"))
        again = self.boot(2)  # its journal is replayed here
        again.seed, again.workers, again.durable = guest.seed, guest.workers, dict(guest.durable)
        again.check()
        again.off()
        raw = os.path.join(self.directory, "out.raw")
        self.cluster.cli("volume", "export", self.volume, raw, host=3, timeout_s=180)
        guests.check_file_system(raw)

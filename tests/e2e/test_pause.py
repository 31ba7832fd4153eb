"""Hosts that stop for a while and go on, without knowing it: SIGSTOP and SIGCONT."""

import time

from harness import ClusterTest, row
from load import Load

LEASE_S = 2.5  # LEASE in crates/object/src/limits.rs
MEMBER_S, OWNER_S = 2.0, 10.0


class Pause(ClusterTest):
    @row("7: the owner pauses for half its lease: nothing needs to change")
    def test_owner_short(self):
        owner, member, _ = self.roles()
        epoch = self.cluster.placement(self.volume)["epoch"]
        with Load(self.cluster, self.volume) as load:
            load.wait_progress()
            self.cluster.pause(owner)
            time.sleep(LEASE_S / 2)
            self.cluster.resume(owner)
            load.wait_progress()
            load.finish()
        after = self.cluster.placement(self.volume)
        self.assertEqual((after["owner"], after["epoch"]), (f"host{owner}", epoch))

    @row(
        "8, 10: the owner pauses for three leases; another serves, and the old one's writes are refused"
    )
    def test_owner_long(self):
        owner, member, _ = self.roles()
        with Load(self.cluster, self.volume, blocks=8, write_share=0.7) as load:
            load.wait_progress()
            paused = time.monotonic()
            self.cluster.pause(owner)
            elsewhere = [w for w in load.workers if w.hosts[0] != owner]
            load.wait_progress(20, workers=elsewhere, timeout_s=OWNER_S + 5)
            self.assertLess(load.longest(paused, workers=elsewhere), OWNER_S)
            time.sleep(max(0.0, 3 * LEASE_S - (time.monotonic() - paused)))
            self.assertNotEqual(self.owner(member), owner)
            self.cluster.resume(owner)
            load.wait_progress(50)
            self.cluster.wait_healthy()
            load.finish()

    @row(
        "9: a host with a copy pauses for 30 s; it leaves the active members before anything goes on"
    )
    def test_member(self):
        owner, member, _ = self.roles()
        with Load(self.cluster, self.volume, hosts=self.others(member)) as load:
            load.wait_progress()
            paused = time.monotonic()
            self.cluster.pause(member)
            load.wait_progress(50)
            self.assertLess(load.longest(paused), MEMBER_S)
            self.assertEqual(self.members(owner)[member], "absent")
            time.sleep(max(0.0, 30 - (time.monotonic() - paused)))
            self.cluster.resume(member)
            self.cluster.wait_healthy(host=owner)
            load.finish()

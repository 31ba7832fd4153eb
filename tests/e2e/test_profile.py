"""Where the time of I/O goes, asked while there is some."""

from harness import ClusterTest, row
from load import Load


class Profile(ClusterTest):
    @row("issue: a per-stage latency breakdown, in the API, in `atoll top --profile`, in /metrics")
    def test_stages(self):
        owner, member, other = self.roles()
        with Load(self.cluster, self.volume) as load:
            load.wait_progress()
            hosts = self.cluster.get("top", "--profile", "--interval", "2", "--count", "1", host=other)
            load.finish()
        self.assertEqual([host["host"] for host in hosts], ["host1", "host2", "host3"])
        noted = {}
        for host in hosts:
            self.assertNotIn("detail", host)
            for stage in host["stages"]:
                self.assertEqual(stage["count"], stage["noted"] * stage["sampled"])
                self.assertEqual(stage["noted"], sum(b["count"] for b in stage["buckets"]))
                noted[host["host"], stage["stage"]] = stage["noted"]
        self.assertGreater(sum(noted[host["host"], "write"] for host in hosts), 0)
        for host in (owner, member):
            self.assertGreater(noted[f"host{host}", "log_write"], 0)
            everything = self.cluster.metric("atoll_stage_seconds_count", host)
            self.assertGreater(everything, noted[f"host{host}", "log_write"])

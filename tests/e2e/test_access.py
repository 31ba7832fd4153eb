"""The API over a network: TLS, tokens and roles, on real hosts."""

import http.client
import json
import os
import ssl

from harness import ATOLL, ClusterTest, row, run, wait_until


class Access(ClusterTest):
    """Host 2 is asked over the network; host 1 over its socket, by its administrator."""

    hosts, disk_size, policy, volume = 2, "1GiB", "one", None

    def make_policy(self, name, failures):
        super().make_policy(name, 0)

    def setUp(self):
        super().setUp()
        self.address = self.cluster.get("host", "show", "host2")["api"]
        self.ca = os.path.join(self.cluster.host_dir(1), "data", "trust", "authority.crt")

    def token(self, name, role, *words):
        create = ("token", "create", "--name", name, "--role", role, *words)
        return self.cluster.cli(*create).stdout.strip()

    def over_tls(self, token, *words, ca=None):
        """`atoll WORDS` of host 2, with that token in a file that only its holder reads."""
        path = os.path.join(self.directory, "token")
        with open(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w") as f:
            f.write(token + "\n")
        place = ("--endpoint", f"https://{self.address}", "--ca", ca or self.ca)
        return run([ATOLL, *place, "--token-file", path, *words], check=False)

    def page(self, path, token=None):
        """(status, text), as Prometheus asks."""
        context = ssl.create_default_context(cafile=self.ca)
        context.check_hostname = False  # http.client has no other name than the address
        host, port = self.address.rsplit(":", 1)
        connection = http.client.HTTPSConnection(host, int(port), timeout=10, context=context)
        self.addCleanup(connection.close)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    @row("issue 23: over a network a token says who may what, on every host, until it is removed")
    def test_roles(self):
        viewer = self.token("look", "viewer")
        operator = self.token("work", "operator", "--expires", "90d")
        admin = self.token("all", "admin")
        create = ("volume", "create", "v", "64MiB", "--policy", self.policy)
        policy = ("policy", "create", "p")

        def known():
            return self.over_tls(admin, "token", "list").returncode == 0

        wait_until("host 2 to know the tokens", known, 10, 0.1)
        refused = self.over_tls(viewer, *create)
        self.assert_refusal(refused, 5, "needs role operator, and token look has role viewer")
        self.assertEqual(self.over_tls(viewer, "status").returncode, 0)
        self.assertEqual(self.over_tls(operator, *create).returncode, 0)
        refused = self.over_tls(operator, *policy)
        self.assert_refusal(refused, 5, "needs role admin, and token work has role operator")
        self.assertEqual(self.over_tls(admin, *policy).returncode, 0)
        listed = self.over_tls(admin, "token", "list").stdout
        for secret in (viewer, operator, admin):
            self.assertNotIn(secret, listed)
        self.assertEqual([v["name"] for v in self.cluster.get("volume", "list")], ["v"])
        # Removed on host 1, refused by host 2.
        self.cluster.cli("token", "remove", "work")

        def is_refused():
            done = self.over_tls(operator, "status")
            return done if done.returncode else None

        refused = wait_until("the removal to be known", is_refused, 10, 0.1)
        self.assert_refusal(refused, 5, "none of this cluster")
        self.assertEqual(self.over_tls(viewer, "status").returncode, 0)
        kinds = [event["kind"] for event in self.events()]
        self.assertEqual((kinds.count("token-created"), kinds.count("token-removed")), (3, 1))

    @row("issue 23: no token, an expired one, plain HTTP, another authority, a guess: each hears why")
    def test_refused(self):
        brief = self.token("brief", "admin", "--expires", "1s")
        viewer = self.token("look", "viewer")

        def known():
            return self.page("/metrics", viewer)[0] == 200

        wait_until("host 2 to know the token", known, 10, 0.1)
        self.assertIn("atoll_", self.page("/metrics", viewer)[1])
        for path in ("/healthz", "/readyz"):
            self.assertEqual(self.page(path)[0], 200)
        for path in ("/metrics", "/openapi.json", "/api/v1/volumes", "/nowhere"):
            status, text = self.page(path)
            self.assertEqual((status, "E0402" in text), (401, True), text)
        expired = wait_until(
            "the token to expire",
            lambda: (lambda d: d if "has expired" in d.stderr else None)(
                self.over_tls(brief, "status")
            ),
            10,
            0.3,
        )
        self.assert_refusal(expired, 5, "token brief has expired")
        plain = run([ATOLL, "--endpoint", f"http://{self.address}", "status"], check=False)
        self.assert_refusal(plain, None, "this address speaks TLS")
        made = os.path.join(self.directory, "other")
        self.cluster.tool("cluster", "authority", "create", "--dir", made)
        other = os.path.join(made, "authority.crt")
        refused = self.over_tls(viewer, "status", ca=other)
        self.assert_refusal(refused, 20, "signed by another authority")
        for version in (ssl.TLSVersion.TLSv1_2,):
            context = ssl.create_default_context(cafile=self.ca)
            context.check_hostname = False
            context.maximum_version = version
            host, port = self.address.rsplit(":", 1)
            old = http.client.HTTPSConnection(host, int(port), timeout=10, context=context)
            with self.assertRaises((ssl.SSLError, ConnectionError)):
                old.request("GET", "/healthz")
        guess = "atoll_" + "0" * 64
        statuses = [self.page("/metrics", guess)[0] for _ in range(12)]
        self.assertEqual((statuses[0], statuses[-1]), (401, 429), statuses)
        self.assert_event("api-refused.*requests from 127", host=2)
        self.assertEqual(self.cluster.get("volume", "list", host=2), [])

    @row("issue 23: who has changed what is written down, and a line that is changed shows")
    def test_audit(self):
        operator, viewer = self.token("work", "operator"), self.token("look", "viewer")
        wait_until(
            "host 2 to know the tokens",
            lambda: self.over_tls(viewer, "status").returncode == 0,
            10,
            0.1,
        )
        create = ("volume", "create", "v", "64M", "--policy", "one")
        self.assertEqual(self.over_tls(operator, *create).returncode, 0)
        self.assertEqual(self.over_tls(viewer, "volume", "delete", "v", "--yes").returncode, 5)
        self.cluster.cli("volume", "delete", "v", "--yes")
        self.assertEqual(self.over_tls(operator, "audit", "list").returncode, 5)
        entries = self.cluster.get("audit", "list")
        seen = [(e["host"], e["who"], e["operation"], e["status"]) for e in entries]
        uid = f"uid:{os.getuid()}"
        for wanted in (
            ("host1", uid, "TokenCreate", 200),
            ("host2", "token:work", "VolumeCreate", 200),
            ("host2", "token:look", "VolumeDelete", 403),
            ("host2", "token:work", "AuditList", 403),
            ("host1", uid, "VolumeDelete", 204),
        ):
            self.assertIn(wanted, seen)
        created = next(e for e in entries if e["operation"] == "VolumeCreate")
        self.assertEqual((created["from"], created["body"]["name"]), ("127.0.0.1", "v"))

        data = os.path.join(self.cluster.host_dir(1), "data")
        verify = (ATOLL, "audit", "verify", "--data-dir", data)
        good = run([*verify, "-o", "json"])
        noted = json.loads(good.stdout)["item"]
        self.assertEqual(noted["problems"], [])
        head = f"{noted['last']}:{noted['sha256']}"
        # Over a crash too, and the head that was noted is still there.
        self.cluster.kill(1)
        self.cluster.start(1)
        self.token("late", "viewer")
        run([*verify, "--head", head])
        entries = [e for e in self.cluster.get("audit", "list") if e["host"] == "host1"]
        self.assertEqual([e["number"] for e in entries], list(range(1, noted["last"] + 2)))
        # Somebody takes a line out, another name in, and the end off.
        path = os.path.join(data, "audit", f"{1:016}.jsonl")
        with open(path, encoding="utf-8") as f:
            lines = f.readlines()
        for changed, says in (
            (lines[:1] + lines[2:], "stands behind entry 1"),
            ([lines[0].replace(uid, "uid:7777")] + lines[1:], "one of them was changed"),
            (lines[: noted["last"] - 1], "was noted and is not there"),
        ):
            with open(path, "w", encoding="utf-8") as f:
                f.writelines(changed)
            bad = run([*verify, "--head", head], check=False)
            self.assertEqual(bad.returncode, 1, bad.stdout)
            self.assertIn(says, bad.stdout)
        with open(path, "w", encoding="utf-8") as f:
            f.writelines(lines)
        run(verify)
        for bad in ("7", "0:" + "0" * 64):
            refused = run([*verify, "--head", bad], check=False)
            self.assert_refusal(refused, 2, "is not NUMBER:SHA256")

        # No room: nobody is kept from anything, and it is told.
        audit = os.path.join(data, "audit")
        self.cluster.kill(1)
        os.rename(audit, audit + ".away")
        with open(audit, "w", encoding="utf-8"):
            pass
        self.cluster.start(1)
        self.cluster.cli("token", "remove", "late")
        self.assert_event("audit-not-kept", host=1, timeout_s=20)
        wait_until(
            "the check",
            lambda: "audit-not-kept"
            in [c["name"] for c in self.cluster.get("status")["health"]["checks"]],
            10,
            0.2,
        )
        self.assertGreater(self.cluster.metric("atoll_audit_entries_lost_total", 1), 0)
        os.remove(audit)
        self.cluster.cli("token", "remove", "look")
        self.assert_event("audit-kept-again", host=1, timeout_s=20)

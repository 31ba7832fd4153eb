"""The Debian package: what is in it, that it installs, and that its units run the daemons as they say.

It is installed with dpkg into a copy of this machine that is thrown away (an overlay in namespaces of its
own), so that its scripts and dependencies are the real ones, and nothing here changes.
"""

import glob
import gzip
import json
import os
import re
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import time
import unittest

from harness import ATOLL, REPOSITORY, Stack, row, run, wait_until

UNITS = ("atoll", "atoll-directory", "atoll-etcd")
DAEMONS = UNITS[:2]  # of a host that is alone
EXPOSURE_MAX = 3.0  # of `systemd-analyze security`, 0 (safe) to 10
SECRET = "hunter2-is-secret"
DISKS = """[host]
name = "one"
[[group]]
disks = ["/mnt/disk1"]
"""


def unit_values(path, key):
    """Every value of a key of a unit, in order."""
    with open(path, encoding="ascii") as f:
        return [line.split("=", 1)[1].strip() for line in f if line.startswith(f"{key}=")]


def syscalls(groups):
    """The system calls that a SystemCallFilter= lets through: `systemd-analyze` knows the groups."""

    def members(name):
        if not name.startswith("@"):
            return {name}
        lines = run(["systemd-analyze", "syscall-filter", name]).stdout.splitlines()[1:]
        words = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
        return set().union(*map(members, words))

    allowed = set()
    for line in groups:
        named = set().union(*map(members, line.lstrip("~").split()))
        allowed = allowed - named if line.startswith("~") else allowed | named
    return allowed


# Runs in namespaces of its own, as root of them: a copy of this machine whose changes are in memory.
INNER = r"""
set -eu
dir=$1 deb=$2
mount -t tmpfs -o mode=755 tmpfs "$dir/mount"
mkdir "$dir/mount/upper" "$dir/mount/work" "$dir/mount/root"
mount -t overlay -o "lowerdir=/,upperdir=$dir/mount/upper,workdir=$dir/mount/work" overlay "$dir/mount/root"
root=$dir/mount/root
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mkdir -p "$root/mnt"
mount --bind "$dir/shared" "$root/mnt"
ip link set lo up
cd "$root"
exec chroot "$root" "$3" /mnt/inside.py "$deb"
"""

# In the copy: installs, starts what the units start, tells what it sees as lines of JSON, obeys words.
INSIDE = r"""
import json, os, subprocess, sys, signal

def unit(name):
    values = {}
    for line in open(f"/lib/systemd/system/{name}.service", encoding="ascii"):
        key, _, value = line.strip().partition("=")
        values[key] = value
    return values

def tell(**what):
    print(json.dumps(what), flush=True)

def sh(*words):
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return {"code": done.returncode, "out": done.stdout, "err": done.stderr}

environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
daemons = {}

def start(name, watchdog_usec):
    values = unit(name)
    groups = ["--groups=" + values["SupplementaryGroups"]] if "SupplementaryGroups" in values else ["--clear-groups"]
    words = ["setpriv", "--reuid=" + values["User"], "--regid=" + values["Group"], *groups,
             "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
    words += values["ExecStart"].split()
    os.umask(int(values["UMask"], 8))
    daemons[name] = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True,
        stderr=open(f"/mnt/{name}.log", "ab"), env={**environment,
        "NOTIFY_SOCKET": f"/mnt/{name}.notify", "WATCHDOG_USEC": str(watchdog_usec)})
    os.umask(0o022)

for line in sys.stdin:
    word, *rest = json.loads(line)
    if word == "run":
        tell(**sh(*rest))
    elif word == "start":
        start(*rest)
        tell(pid=daemons[rest[0]].pid)
    elif word == "signal":
        os.killpg(daemons[rest[0]].pid, rest[1])
        tell()
    elif word == "wait":
        tell(code=daemons[rest[0]].wait(60))
"""


class Machine:
    """The copy: commands in, answers out."""

    def __init__(self, stack, directory, deb):
        shared = os.path.join(directory, "shared")
        os.mkdir(shared)
        os.chmod(shared, 0o755)
        os.mkdir(os.path.join(directory, "mount"))
        os.chmod(directory, 0o755)
        with open(os.path.join(shared, "inside.py"), "w", encoding="ascii") as f:
            f.write(INSIDE)
        shutil.copy(deb, os.path.join(shared, "atoll.deb"))
        self.shared, self.managers = shared, {}
        for unit in UNITS:
            manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            stack.callback(manager.close)
            path = os.path.join(shared, f"{unit}.notify")
            manager.bind(path)
            os.chmod(path, 0o666)
            manager.setblocking(False)
            self.managers[unit] = manager
        namespaces = ["--mount", "--net", "--pid", "--fork", "--kill-child", "--propagation=private"]
        if os.getuid() != 0:
            namespaces += ["--map-root-user", "--map-auto"]
        words = ["unshare", *namespaces, "sh", "-c", INNER, "sh", directory, "/mnt/atoll.deb", sys.executable]
        self.process = stack.spawn(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, *words):
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the copy of the machine ended at {words}")
        return json.loads(line)

    def run(self, *words, code=0):
        """Runs a command there as root; its output."""
        done = self.ask("run", *words)
        assert done["code"] == code, f"{shlex.join(words)}: {done}"
        return done["out"] + done["err"]

    def write(self, path, text):
        self.run("sh", "-c", 'printf %s "$1" >"$2"', "sh", text, path)

    def heard(self, unit):
        """What the daemon of a unit has told the service manager since the last time."""
        messages = []
        while True:
            try:
                messages.append(self.managers[unit].recv(4096).decode())
            except BlockingIOError:
                return messages


class Package(unittest.TestCase):
    """Each test makes the package of the program that all tests use."""

    def setUp(self):
        self.stack = Stack()
        self.addCleanup(self.stack.close)
        self.dir = self.stack.directory("atoll-package-")
        self.deb, self.seconds = self.make(self.dir)

    @staticmethod
    def make(out, **options):
        begun = time.monotonic()
        script = os.path.join(REPOSITORY, "scripts", "package")
        done = run([script, "--binary", ATOLL, "--out", out], timeout_s=120, **options)
        return done.stdout.split()[-1], time.monotonic() - begun

    def path(self, *names):
        return os.path.join(self.root, *names)

    def unit(self, name):
        return self.path("lib/systemd/system", f"{name}.service")

    @row("issue 23: a package: what it holds, its hardened units, the same bytes again")
    def test_content(self):
        self.root = os.path.join(self.dir, "root")
        run(["dpkg-deb", "--raw-extract", self.deb, self.root])
        self.files()
        self.units()
        # Whoever makes it, and wherever.
        environment = {**os.environ, "TZ": "Asia/Tokyo", "LANG": "C", "ATOLL_LOG__LEVEL": "debug"}
        again, _ = self.make(os.path.join(self.dir, "again"), env=environment, umask=0o077)
        with open(self.deb, "rb") as one, open(again, "rb") as other:
            self.assertEqual(one.read(), other.read())

    def files(self):
        fields = run(["dpkg-deb", "--field", self.deb]).stdout
        version = run([ATOLL, "--version"]).stdout.split()[1]
        self.assertIn(f"\nVersion: {version}\n", fields)
        self.assertRegex(fields, r"\nDepends: libc6 \(>= 2\.\d+\), libgcc-s1, systemd")
        architecture = run(["dpkg", "--print-architecture"]).stdout.strip()
        self.assertEqual(os.path.basename(self.deb), f"atoll_{version}_{architecture}.deb")
        listed = run(["dpkg-deb", "--contents", self.deb]).stdout.splitlines()
        for line in listed:
            mode, owner, *_, name = line.split()
            self.assertEqual(owner, "root/root", line)
            runs = mode[0] == "d" or name == "./usr/bin/atoll"
            self.assertEqual(mode[1:], "rwxr-xr-x" if runs else "rw-r--r--", line)
        names = {line.split()[-1].removeprefix(".") for line in listed}
        for name in (
            "/usr/bin/atoll",
            "/etc/atoll/atoll.toml",
            "/lib/systemd/system/atoll.service",
            "/lib/systemd/system/atoll-directory.service",
            "/lib/systemd/system/atoll-etcd.service",
            "/lib/udev/rules.d/60-atoll.rules",
            "/usr/lib/sysusers.d/atoll.conf",
            "/usr/lib/tmpfiles.d/atoll.conf",
            "/usr/share/bash-completion/completions/atoll",
            "/usr/share/zsh/vendor-completions/_atoll",
            "/usr/share/fish/vendor_completions.d/atoll.fish",
            "/usr/share/man/man1/atoll.1.gz",
            "/usr/share/man/man1/atoll-serve.1.gz",
            "/usr/share/man/man1/atoll-host-prepare.1.gz",
            "/usr/share/doc/atoll/changelog.gz",
            "/usr/share/doc/atoll/copyright",
            "/usr/share/doc/atoll/install.md",
            "/usr/share/doc/atoll/third-party.gz",
        ):
            self.assertIn(name, names)
        with open(self.path("DEBIAN/conffiles"), encoding="ascii") as f:
            self.assertEqual(f.read(), "/etc/atoll/atoll.toml\n")
        run(["md5sum", "--check", "--quiet", "DEBIAN/md5sums"], cwd=self.root)
        with gzip.open(self.path("usr/share/doc/atoll/third-party.gz"), "rt") as f:
            third_party = f.read()
        for crate in ("tokio", "hyper", "redb"):
            self.assertRegex(third_party, rf"\n{crate} [0-9.]+: .*MIT")
        self.assertIn("Permission is hereby granted", third_party)
        for script in ("postinst", "prerm", "postrm"):
            run(["sh", "-n", self.path("DEBIAN", script)])
            with open(self.path("DEBIAN", script), encoding="ascii") as f:
                # A running host's I/O is nobody's to interrupt.
                self.assertNotRegex(f.read(), r"systemctl[^;\n']* (re)?start\b(?! \$unit' ends)")
        run(["bash", "-n", self.path("usr/share/bash-completion/completions/atoll")])
        size = os.path.getsize(self.deb)
        self.assertLess(size, 16 << 20)
        print(f"    {os.path.basename(self.deb)}: {size / (1 << 20):.1f} MiB, {self.seconds:.0f} s")

    def units(self):
        for unit in UNITS:
            path = self.unit(unit)
            words = ["systemd-analyze", "security", "--offline=true", "--no-pager", path]
            said = run(words, check=False).stdout
            exposure = float(re.search(r"exposure level for \S+: ([0-9.]+)", said)[1])
            print(f"    {unit}.service: exposure {exposure}")
            self.assertLessEqual(exposure, EXPOSURE_MAX, said)
            # etcd waits for the cluster first, and nobody waits for that.
            self.assertEqual(unit_values(path, "Type"), ["exec" if unit == "atoll-etcd" else "notify"])
            self.assertEqual(unit_values(path, "User"), ["atoll"])
            self.assertEqual(unit_values(path, "CapabilityBoundingSet"), [""])
            self.assertEqual(unit_values(path, "LimitCORE"), ["0"], "a core file has guests' data")
            allowed = syscalls(unit_values(path, "SystemCallFilter"))
            self.assertTrue({"prlimit64", "futex", "openat", "fsync", "accept4"} <= allowed)
            self.assertFalse({"ptrace", "mount", "init_module", "bpf", "chroot"} & allowed)
        rings = {"io_uring_setup", "io_uring_enter", "io_uring_register"}
        self.assertTrue(rings <= syscalls(unit_values(self.unit("atoll"), "SystemCallFilter")))

    @row("issue 23: installed, its units serve, say that they live, and stop; an upgrade restarts nothing")
    def test_install(self):
        machine = Machine(self.stack, self.stack.directory("atoll-machine-"), self.deb)
        self.addCleanup(self.tell_logs, machine.shared)  # before the stack removes them
        said = machine.run("dpkg", "--install", "/mnt/atoll.deb")
        self.assertIn("atoll host prepare --check", said)
        owners = machine.run("stat", "-c", "%A %U %G", "/run/atoll", "/var/lib/atoll")
        self.assertEqual(owners.split("\n")[:2], ["drwxr-xr-x atoll atoll", "drwx------ atoll atoll"])
        self.assertEqual(machine.run("dpkg", "--verify", "atoll"), "")
        for unit in UNITS:
            self.assertEqual(machine.run("systemd-analyze", "verify", "--man=no", f"{unit}.service"), "")
        machine.run("atoll", "serve", "--check-config")
        # As the manual says: a disk of its own, here a file.
        machine.run("sh", "-c", "truncate -s 2G /mnt/disk1 && chown atoll: /mnt/disk1")
        machine.write("/etc/atoll/conf.d/disks.toml", DISKS)
        checked = machine.run("atoll", "host", "prepare", "--check")
        self.assertRegex(checked, r"ok +disk /mnt/disk1 +2\.0 GiB, empty +atoll group create /mnt/disk1\n")

        machine.run("atoll", "cluster", "init", "--address", "127.0.0.1", "--embedded")
        secrets = [f"/var/lib/atoll/{name}" for name in ("trust/host.key", "authority/authority.key")]
        modes = machine.run("stat", "-c", "%a %U", *secrets)
        self.assertEqual(modes.split("\n")[:2], ["600 atoll"] * 2, "the host reads them, and nobody else")
        modes = machine.run("stat", "-c", "%a", "/etc/atoll/conf.d/cluster.toml", "/var/lib/atoll/trust/host.crt")
        self.assertEqual(modes.split(), ["644", "644"])
        # The daemon's user may write there, and root makes the next certificate.
        machine.run("sh", "-c", "umask 077; echo secret > /root/theirs")
        machine.run("ln", "-s", "/root/theirs", "/var/lib/atoll/trust/etcd-ca.crt")
        made = ("--authority", "/var/lib/atoll/authority", "--out", "/var/lib/atoll/trust")
        machine.run("atoll", "cluster", "certificate", *made)
        theirs = machine.run("stat", "-c", "%a %U", "/root/theirs")
        self.assertEqual(theirs.strip(), "600 root", "what is linked there stays whose it was")
        machine.run("rm", "/var/lib/atoll/trust/etcd-ca.crt")

        machine.ask("start", "atoll", 1_500_000)
        waiting = wait_until("the host to say what it waits for", lambda: machine.heard("atoll"), 10)
        self.assertTrue(all(m.startswith("STATUS=this host ") for m in waiting), waiting)
        machine.ask("start", "atoll-directory", 1_500_000)
        for unit in DAEMONS:
            heard = waiting if unit == "atoll" else []
            wait_until(
                f"{unit} to be ready",
                lambda: heard.extend(machine.heard(unit)) or "READY=1\nSTATUS=serving" in heard,
                20,
            )
        machine.run("atoll", "group", "create", "/mnt/disk1")
        machine.run("atoll", "policy", "create", "one", "--failures-to-tolerate", "0")
        machine.run("atoll", "volume", "create", "vm1", "1G", "--policy", "one")
        self.assertIn("vm1", machine.run("atoll", "volume", "list"))
        self.assertRegex(machine.run("atoll", "host", "prepare", "--check"), r"in use, by the daemon")
        modes = machine.run("stat", "-c", "%a %U", "/run/atoll/api.sock", "/var/lib/atoll/host-id",
                            "/var/lib/atoll/directory.db")
        self.assertEqual(modes.split("\n")[:3], ["660 atoll", "600 atoll", "600 atoll"])

        for unit in DAEMONS:
            machine.heard(unit)
        time.sleep(2.0)  # four thirds of the watchdog's time
        for unit in DAEMONS:
            heard = machine.heard(unit)
            self.assertEqual(set(heard), {"WATCHDOG=1"}, heard)
            self.assertGreaterEqual(len(heard), 3)
        # A daemon that stands still says nothing.
        machine.ask("signal", "atoll", 19)
        machine.heard("atoll")
        time.sleep(1.5)
        self.assertEqual(machine.heard("atoll"), [])
        machine.ask("signal", "atoll", 18)

        # An upgrade leaves the daemon and a changed configuration as they are.
        machine.run("sh", "-c", "echo '# mine' >>/etc/atoll/atoll.toml")
        before = machine.run("stat", "-c", "%Y", "/run/atoll/api.sock")
        machine.run("dpkg", "--install", "/mnt/atoll.deb")
        self.assertEqual(machine.run("stat", "-c", "%Y", "/run/atoll/api.sock"), before)
        self.assertIn("# mine", machine.run("cat", "/etc/atoll/atoll.toml"))
        self.assertIn("vm1", machine.run("atoll", "volume", "list"))
        self.bundle(machine)

        for unit in DAEMONS:
            machine.heard(unit)
            machine.ask("signal", unit, 15)
            self.assertEqual(machine.ask("wait", unit)["code"], 0)
            self.assertIn("STOPPING=1\nSTATUS=stopping", machine.heard(unit))
        said = machine.run("dpkg", "--purge", "atoll")
        self.assertIn("/var/lib/atoll stays", said)
        machine.run("test", "-f", "/var/lib/atoll/host-id")
        machine.run("test", "!", "-e", "/etc/atoll/atoll.toml")

    def tell_logs(self, folder):
        result = self._outcome.result
        if any(test is self for test, _ in result.failures + result.errors):
            for path in sorted(glob.glob(os.path.join(folder, "*.log"))):
                with open(path, encoding="utf-8", errors="replace") as f:
                    print(f"    {os.path.basename(path)}: {f.read()[-2000:]}", flush=True)

    def bundle(self, machine):
        """A support bundle of the running host, with secrets in every place that people put them."""
        machine.write("/etc/atoll/conf.d/z.toml", f'[vault]\npassword = "{SECRET}"\n')
        # In the arguments and the environment of processes that run meanwhile.
        quiet = ">/dev/null 2>&1 &"
        machine.run("sh", "-c", f"sh -c 'sleep 60; :' {SECRET} {quiet} TOKEN={SECRET} sleep 60 {quiet}")
        self.assertIn(SECRET, machine.run("ps", "axe", "-ww"))
        made = machine.run("env", f"VAULT_TOKEN={SECRET}", "atoll", "support", "bundle", "--to", "/mnt/b.tar.gz")
        self.assertRegex(made, r"without logs/atoll\.log: ")
        path = os.path.join(machine.shared, "b.tar.gz")
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o600)
        folder = self.stack.directory("atoll-bundle-")
        run(["tar", "-xzf", path, "-C", folder, "--strip-components=1", "--no-same-owner"])
        files = glob.glob(os.path.join(folder, "**"), recursive=True)
        for name in filter(os.path.isfile, files):
            with open(name, encoding="utf-8") as f:
                self.assertNotIn(SECRET, f.read(), name)
        with open(os.path.join(folder, "manifest.json"), encoding="utf-8") as f:
            pieces = {piece["name"]: piece for piece in json.load(f)["pieces"]}
        for name, holds in (
            ("api/volumes.json", '"vm1"'),
            ("api/placement-vm1.json", '"one"'),
            ("api/disks-one.json", "/mnt/disk1"),
            ("api/events.json", "host-started"),
            ("config/atoll.toml", ""),
            ("config/conf.d/disks.toml", 'host.name = "one"'),
            ("config/conf.d/z.toml", "not a key of this release: vault"),
            ("host-check.json", '"HostCheckList"'),
            ("metrics.txt", "# HELP atoll_"),
            ("system/disks.json", "blockdevices"),
            ("versions.txt", "atoll "),
        ):
            self.assertIn(name, pieces)
            if holds:
                with open(os.path.join(folder, name), encoding="utf-8") as f:
                    self.assertIn(holds, f.read(), name)
                self.assertNotIn("missing", pieces[name])
        self.assertIn("missing", pieces["logs/atoll.log"], "no journal runs here")
        said = machine.run("atoll", "support", "bundle", "--to", "/mnt/b.tar.gz", code=4)
        self.assertIn("exists already", said)
        machine.run("rm", "/etc/atoll/conf.d/z.toml")

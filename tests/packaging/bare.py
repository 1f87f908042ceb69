"""Bare Debians, to install packages in."""

import fcntl
import json
import pathlib
import shutil
import subprocess

from checking import equal
from mounting import BUILD, REPOSITORY, Skip, run

RELEASES = {"11": "bullseye", "12": "bookworm", "13": "trixie"}
USER = 65534


def own_release():
    fields = dict(line.split("=", 1) for line in pathlib.Path("/etc/os-release").read_text().splitlines() if "=" in line)
    return fields.get("VERSION_ID", "").strip('"') if fields.get("ID") == "debian" else ""


def mirror():
    """Where this machine's own packages come from."""
    found = run("apt-get", "indextargets", "--format", "$(REPO_URI)", "Component: main", "Created-By: Packages").stdout.split()
    if not found:
        raise Skip("debian: no mirror is known (apt-get indextargets)")
    return next((uri for uri in found if "security" not in uri), found[0])


def made_by_the_wheels_script(work):
    """Returns the paths of a wheel and of a tar in the folder: copies, because another test may make them anew."""
    BUILD.mkdir(exist_ok=True)
    with open(BUILD / "wheel.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = run(REPOSITORY / "scripts/packaging/wheel", timeout=3000).stdout.split()
        return [shutil.copy(path, work) for path in made]


class Chroot:
    """A bare Debian, writable, gone when the test ends. What is installed in it stays out of the machine's own."""

    def __init__(self, work, release):
        if not shutil.which("debootstrap"):
            raise Skip("debootstrap: scripts/setup --tests installs it")
        self.base = BUILD / "debian" / release
        self.root = work / f"debian-{release}"
        if not (self.base / "ready").exists():
            shutil.rmtree(self.base, ignore_errors=True)
            self.base.mkdir(parents=True)
            run("debootstrap", "--variant=minbase", RELEASES[release], self.base / "root", mirror(), timeout=1200)
            (self.base / "ready").touch()
        scratch = work / f"scratch-{release}"
        for folder in (self.root, scratch):
            folder.mkdir()
        run("mount", "-t", "tmpfs", "-o", "size=8g", "tmpfs", scratch)
        for folder in ("upper", "work"):
            (scratch / folder).mkdir()
        run("mount", "-t", "overlay", "overlay", "-o",
            f"lowerdir={self.base / 'root'},upperdir={scratch / 'upper'},workdir={scratch / 'work'}", self.root)
        run("mount", "--rbind", "--make-rslave", "/dev", self.root / "dev")
        run("mount", "-t", "proc", "proc", self.root / "proc")
        run("mount", "-t", "sysfs", "sysfs", self.root / "sys")
        run("mount", "-t", "tmpfs", "tmpfs", self.root / "run")
        (self.root / "etc/mtab").symlink_to("../proc/self/mounts")  # as in an installed system
        shutil.copy("/etc/resolv.conf", self.root / "etc/resolv.conf")
        (self.root / "usr/sbin/policy-rc.d").write_text("#!/bin/sh\nexit 101\n")
        (self.root / "usr/sbin/policy-rc.d").chmod(0o755)

    def run(self, *words, check=True, user=0, timeout=300, variables=None):
        environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/",
                       "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"} | (variables or {})
        return run("chroot", f"--userspec={user}:{user}", self.root, *words, check=check, env=environment, timeout=timeout)

    def apt(self, *words, **options):
        return self.run("apt-get", "-q", "-y", "--no-install-recommends", "-o", "APT::Sandbox::User=root", *words, timeout=1200,
                        **options)

    def bring(self, file):
        """A copy inside, and its path there."""
        shutil.copy(file, self.root / "srv")
        return f"/srv/{pathlib.Path(file).name}"

    def mounts(self):
        lines = pathlib.Path("/proc/self/mounts").read_text().splitlines()
        points = [line.split()[1] for line in lines if line.split()[2] == "fuse.ckptfs"]
        return [point for point in points if point.startswith(str(self.root) + "/")]

    def pid(self):
        return json.loads(self.run("ckptfs", "status", "--json").stdout)["pid"]


BECOME_A_MACHINE = """
set -e
cd "$0"
mount --make-rprivate /
mount --rbind /sys/fs/cgroup sys/fs/cgroup
umount sys/fs/cgroup/unified 2>/dev/null || true  # beside the controllers of version 1, crun refuses it
mkdir -p old
pivot_root . old
umount -l /old
mount -t proc proc /proc
mount --make-rshared /
echo ready
while :; do sleep 1000 & wait $!; done
"""


class Machine(Chroot):
    """A bare Debian that is the root of a mount namespace, whose mounts are shared as systemd has them, and process 1 of
    which ends all others with it: for programs that make namespaces themselves."""

    def __init__(self, work, release, folders):
        """`folders`: which folders of the test it has, and where."""
        super().__init__(work, release)
        for inside, folder in folders.items():
            point = self.root / inside.lstrip("/")
            point.mkdir()
            run("mount", "--bind", folder, point)
        self.process = subprocess.Popen(["unshare", "-m", "-p", "-f", "--kill-child", "--propagation", "slave", "bash", "-c",
                                         BECOME_A_MACHINE, self.root], text=True, stdout=subprocess.PIPE)
        equal(self.process.stdout.readline(), "ready\n", "the machine")
        pid = self.process.pid
        self.first = int(pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text())

    def run(self, *words, check=True, user=0, timeout=300, variables=None):
        environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root",
                       "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"} | (variables or {})
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"] if user else []
        return run("nsenter", "-t", self.first, "-m", "-p", *become, *words, check=check, env=environment, timeout=timeout)

    def mounts(self):
        lines = self.run("cat", "/proc/mounts").stdout.splitlines()
        return [line.split()[1] for line in lines if line.split()[2] == "fuse.ckptfs"]

    def end(self, *control_groups):
        """Ends all processes, and removes the control groups of these names that they have left."""
        self.process.kill()
        self.process.wait()
        for name in control_groups:
            for group in pathlib.Path("/sys/fs/cgroup").glob(f"*/{name}"):
                run("find", group, "-depth", "-type", "d", "-exec", "rmdir", "{}", ";", check=False)

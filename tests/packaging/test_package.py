"""The Debian package on a bare Debian: installed, used by fstab, by its unit and by a user, upgraded, removed.

On Debian 12 and 13, each with a package that was built on it.
"""

import configparser
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal

import pytest

from bare import USER, Chroot, own_release
from checking import equal, read, true, write
from mounting import REPOSITORY, Failure, fuse_for_all, run, wait_until
from training import write_state

pytestmark = [pytest.mark.disk(2), pytest.mark.timeout(3600), pytest.mark.together, pytest.mark.long]

PACKAGE = "scripts/packaging/package"
UNIT = "/usr/lib/systemd/system/ckptfs@.service"


def package(version=None):
    """Made on this machine."""
    words = ["--version", version] if version else []
    made = run(REPOSITORY / PACKAGE, *words, timeout=1800).stdout.split()
    equal(len(made), 1, f"packages: {made}")
    return pathlib.Path(made[0])


def package_maker(work, release):
    """Returns what package() is, for another release."""
    (work / "builder").mkdir(exist_ok=True)
    builder = Chroot(work / "builder", release)
    builder.apt("update")
    builder.apt("install", "git", "ca-certificates")
    return lambda version=None: package_made_in(builder, version)


def package_made_in(chroot, version):
    """Of a clone of this tree, with what the release itself has to build with."""
    source = chroot.root / "srv/source"
    if not source.exists():
        run("git", "clone", "-q", REPOSITORY, source)
        run("bash", "-c", f"cd {REPOSITORY} && git ls-files -mo --exclude-standard -z | xargs -0 -r cp --parents -t {source}")
    words = ["--version", version] if version else []
    made = chroot.run(f"/srv/source/{PACKAGE}", *words, timeout=3000).stdout.split()
    equal(len(made), 1, f"packages: {made}")
    return chroot.root / made[0].lstrip("/")


@pytest.fixture(scope="module", params=("12", "13"))
def release(request):
    return request.param


@pytest.fixture(scope="module")
def chroot(release, work, disk):
    """A bare Debian in which the package is installed."""
    made = Chroot(work, release)
    made.apt("update")
    make = package if release == own_release() else package_maker(work, release)
    made.newer = shutil.copy(make("9.9.9"), work)
    (disk / release).mkdir()
    for folder in ("data", "ckpt"):
        (made.root / folder).mkdir()
    run("mount", "--bind", disk / release, made.root / "data")
    made.apt("install", made.bring(make()))
    return made


# --- what is seen of an installed package


def test_files_are_where_they_belong(chroot):
    listed = chroot.run("dpkg", "-L", "ckptfs").stdout.split()
    for path in ("/usr/bin/ckptfs", "/usr/sbin/mount.ckptfs", UNIT, "/usr/share/bash-completion/completions/ckptfs",
                 "/usr/share/zsh/vendor-completions/_ckptfs", "/usr/share/fish/vendor_completions.d/ckptfs.fish",
                 "/usr/share/doc/ckptfs/copyright", "/usr/share/doc/ckptfs/examples/ckpt.conf",
                 "/usr/lib/python3/dist-packages/ckptfs/patch.py",
                 "/usr/lib/python3/dist-packages/ckptfs/children/sitecustomize.py"):
        true(path in listed and (chroot.root / path.lstrip("/")).exists(), f"{path} is not in the package")
    wrong = [path for path in listed if not re.match(r"/\.?$|/usr(/|$)", path)]
    equal(wrong, [], "files outside /usr")
    equal(chroot.run("dpkg", "--verify", "ckptfs").stdout, "", "files that are not as packed")
    true(chroot.run("ckptfs", "--version").stdout.startswith("ckptfs "), "--version")
    library = "/usr/lib/libckptfs.so"
    for program in ("/usr/bin/ckptfs", library):
        true("not found" not in chroot.run("ldd", program).stdout, f"libraries of {program}")
    done = chroot.run("ckptfs", "doctor", "/data", check=False)
    true("reflink" in done.stdout and "fusermount3" not in done.stdout, f"doctor: {done.stdout}")


def test_mounted_by_fstab(chroot):
    table = chroot.root / "etc/fstab"
    page = (REPOSITORY / "docs/operating.md").read_text()
    documented = re.search(r"^    (/data/store +/ckpt +ckptfs .*)$", page, re.MULTILINE)[1].replace(":9180", ":0")
    more = "/data/store /ckpt fuse.ckptfs defaults,nofail,_netdev,x-systemd.mount-timeout=10min,quiet=0s,uid=1000 0 0"
    for kind, line in (("ckptfs", documented), ("fuse.ckptfs", more)):
        table.write_text(line + "\n")
        chroot.run("mount", "/ckpt")
        equal(chroot.mounts(), [str(chroot.root / "ckpt")], f"mounts, by {kind}")
        chroot.run("mount", "-a")
        equal(len(chroot.mounts()), 1, f"mounts after mount -a, by {kind}")
        pid = chroot.pid()
        true(chroot.run("findmnt", "-n", "-o", "SOURCE,FSTYPE", "/ckpt").stdout.split() == ["/data/store", "fuse.ckptfs"], "findmnt")
        write_state(chroot.root / "ckpt")
        chroot.run("ckptfs", "save", f"by-{kind}")
        chroot.run("umount", "/ckpt")
        wait_until("the daemon's end", lambda: not alive(pid), 30)
        equal(chroot.mounts(), [], "mounts after umount")
        chroot.run("ckptfs", "fsck", "/data/store")
    table.write_text("/data/store /ckpt ckptfs frobnicate 0 0\n")
    done = chroot.run("mount", "/ckpt", check=False)
    true(done.returncode != 0 and "frobnicate" in done.stderr, f"a bad option in fstab: {done}")
    table.write_text("")


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def refused(what):
    try:
        yield
    except Failure:
        return
    raise Failure(what)


class Unit:
    """The unit's own command lines, as systemd would run them; what it does between them is systemd's."""

    def __init__(self, chroot, settings):
        self.chroot = chroot
        parser = configparser.RawConfigParser(strict=False)
        parser.optionxform = str
        parser.read(chroot.root / UNIT.lstrip("/"))
        self.service = dict(parser["Service"])
        equal(self.service["EnvironmentFile"], "/etc/ckptfs/%i.conf", "settings")
        self.settings = dict(line.split("=", 1) for line in settings.splitlines() if line and line[0] != "#")

    def run(self, which):
        words = []
        command = self.service[which]
        for word in command.removeprefix("-").split():
            if re.fullmatch(r"\$\w+", word):  # systemd splits these, and those in braces not
                words += self.settings[word[1:]].split()
            else:
                words.append(re.sub(r"\$\{(\w+)\}", lambda match: self.settings[match[1]], word))
        return self.chroot.run(*words, check=not command.startswith("-"))


def test_run_by_its_unit(chroot):
    chroot.apt("install", "systemd")  # not run, but asked what it thinks of the unit
    done = chroot.run("systemd-analyze", "verify", "--man=no", "ckptfs@ckpt.service", check=False)
    equal((done.returncode, [line for line in (done.stdout + done.stderr).splitlines() if "ckptfs" in line]), (0, []), "verify")
    settings = (chroot.root / "usr/share/doc/ckptfs/examples/ckpt.conf").read_text().replace(":9180", ":0")
    unit = Unit(chroot, settings)
    equal((unit.service["Type"], unit.service["Restart"]), ("forking", "on-failure"), "how it is started, and again")
    chroot.run("ckptfs", "umount", check=False)
    equal(unit.service["ExecStop"][0], "-", "a stop of what was unmounted by hand is no failure, which would mount it again")
    unit.run("ExecStartPre")
    nowhere = Unit(chroot, settings.replace("/data/store", "/data"))
    with refused("an empty folder is no store to start with"):
        nowhere.run("ExecStartPre")
    unit.run("ExecStart")
    pid = chroot.pid()
    write(chroot.root / "ckpt/before", b"before")
    passthrough = '"active": true' in chroot.run("ckptfs", "status", "--json").stdout
    trainer = os.open(chroot.root / "ckpt/live", os.O_CREAT | os.O_RDWR)
    try:
        os.write(trainer, b"1")
        os.kill(pid, signal.SIGKILL)
        wait_until("the daemon's end", lambda: not alive(pid))
        if passthrough:
            os.write(trainer, b"2")  # goes on without a daemon
        unit.run("ExecStart")
        true(chroot.pid() != pid, "another daemon")
        equal(len(chroot.mounts()), 1, "the dead mount was replaced")
        if passthrough:
            os.write(trainer, b"3")
    finally:
        os.close(trainer)
    equal(read(chroot.root / "ckpt/before"), b"before", "what was written before")
    equal(read(chroot.root / "ckpt/live"), b"123" if passthrough else b"1", "what the trainer wrote")
    pid = chroot.pid()
    unit.run("ExecStop")
    true(not alive(pid), "the daemon has ended when ExecStop returns")
    equal(chroot.mounts(), [], "mounts")
    # Where ExecStop finds it busy, systemd ends the daemon by SIGTERM.
    unit.run("ExecStart")
    pid = chroot.pid()
    os.kill(pid, signal.SIGTERM)
    wait_until("the end by SIGTERM", lambda: not alive(pid), 30)
    equal(chroot.mounts(), [], "mounts")
    chroot.run("ckptfs", "fsck", "/data/store")


def test_doctor_names_what_is_wrong(chroot):
    table, settings = chroot.root / "etc/fstab", chroot.root / "etc/ckptfs"
    settings.mkdir()

    def doctor():
        checks = json.loads(chroot.run("ckptfs", "doctor", "--json", "/data", check=False).stdout)["checks"]
        return [(check["name"], check["verdict"], check["found"], check["advice"]) for check in checks
                if check["name"] in ("fstab", "service", "mount")]

    def says(*wanted):
        told = doctor()
        equal([row[:2] for row in told], [row[:2] for row in wanted], f"doctor: {told}")
        for (_, _, found, advice), (_, _, words) in zip(told, wanted):
            true(words in found + advice, f"{words!r} is not in {found!r}, {advice!r}")

    try:
        table.write_text("# no more\nproc /proc proc defaults 0 0\n/data/store /ckpt ckptfs nofail 0 0\n")
        (settings / "ckpt.conf").write_text('# mine\nSTORE="/data/store"\nMOUNTPOINT=/ckpt\n')
        says(("fstab", "ok", "/data/store at /ckpt"), ("service", "ok", "ckpt.conf"))
        table.write_text("/data/store /ckpt ckptfs frobnicate 0 0\n/data/s /nowhere fuse.ckptfs nofail 0 0\n"
                         "/none/such/store /ckpt ckptfs nofail 0 0\n")
        (settings / "ckpt.conf").write_text("MOUNTPOINT=/ckpt\n")
        (settings / "other.conf").write_text("STORE=/data/store\nMOUNTPOINT=/nowhere\n")
        (settings / "third.conf").write_text(" STORE = /data/store/\nMOUNTPOINT=/ckpt\nOPTIONS=-o quiet=1s -o frobnicate\n")
        says(("fstab", "FAIL", "frobnicate"), ("fstab", "FAIL", "mkdir -p /nowhere"), ("fstab", "FAIL", "mkdir -p /none/such"),
             ("service", "FAIL", "STORE"), ("service", "FAIL", "mkdir -p /nowhere"), ("service", "FAIL", "frobnicate"))
        table.write_text("/data/store /ckpt ckptfs nofail 0 0\n")
        for file in settings.iterdir():
            file.unlink()
        helper = chroot.root / "usr/sbin/mount.ckptfs"
        helper.rename(helper.parent / "kept")
        says(("fstab", "FAIL", "mount.ckptfs"))
        (helper.parent / "kept").rename(helper)
        table.write_text("")
        chroot.run("mount", "-t", "ckptfs", "/data/store", "/ckpt")
        says(("mount", "ok", "answers"))
        os.kill(chroot.pid(), signal.SIGKILL)
        wait_until("a dead mount", lambda: chroot.run("stat", "/ckpt", check=False).returncode != 0)
        says(("mount", "FAIL", "ckptfs mount /data/store /ckpt"))
        chroot.run("ckptfs", "umount")
    finally:
        table.write_text("")
        shutil.rmtree(settings)


def test_mounted_by_a_user(chroot):
    for folder in ("data/home", "mnt/own"):
        (chroot.root / folder).mkdir()
        os.chown(chroot.root / folder, USER, USER)
    with fuse_for_all():
        chroot.run("ckptfs", "mount", "/data/home/store", "/mnt/own", user=USER)
        true("direct" in chroot.run("ckptfs", "status", "/mnt/own", user=USER).stdout, "mode")
        chroot.run("sh", "-c", "echo kept > /mnt/own/file && grep -q kept /mnt/own/file", user=USER)
        chroot.run("ckptfs", "umount", "/mnt/own", user=USER)
        equal(chroot.mounts(), [], "mounts")


def test_upgraded_while_mounted(chroot):
    chroot.run("ckptfs", "mount", "/data/store", "/ckpt")
    pid = chroot.pid()
    write(chroot.root / "ckpt/during", b"x" * 100)
    said = chroot.apt("install", chroot.bring(chroot.newer)).stdout
    true("go on with version" in said, f"what the upgrade says: {said[-500:]}")
    equal(chroot.run("dpkg-query", "-W", "-f", "${Version}", "ckptfs").stdout, "9.9.9", "version")
    equal((chroot.pid(), read(chroot.root / "ckpt/during")), (pid, b"x" * 100), "the mount goes on")
    chroot.run("ckptfs", "umount", "/ckpt")
    chroot.run("ckptfs", "mount", "/data/store", "/ckpt")
    equal(read(chroot.root / "ckpt/during"), b"x" * 100, "mounted by the newer one")
    chroot.run("ckptfs", "umount", "/ckpt")


def test_removed(chroot):
    (chroot.root / "etc/ckptfs").mkdir()
    (chroot.root / "etc/ckptfs/own.conf").write_text("STORE=/data/store\n")
    chroot.run("ckptfs", "mount", "/data/store", "/ckpt")
    # As on a machine whose systemd runs: what it is asked must end no mount.
    (chroot.root / "run/systemd/system").mkdir(parents=True)
    systemctl = chroot.root / "usr/bin/systemctl"
    systemctl.write_text("#!/bin/sh\necho \"$@\" >>/srv/asked\nexit 1\n")
    systemctl.chmod(0o755)
    wants = chroot.root / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(parents=True, exist_ok=True)
    (wants / "ckptfs@ckpt.service").symlink_to("/usr/lib/systemd/system/ckptfs@.service")
    said = chroot.apt("remove", "ckptfs").stdout
    true("/ckpt" in said and "No store is touched" in said, f"what the removal says: {said[-500:]}")
    equal(read(chroot.root / "ckpt/during"), b"x" * 100, "the mount goes on")
    chroot.run("umount", "/ckpt")
    chroot.apt("purge", "ckptfs")
    equal(set((chroot.root / "srv/asked").read_text().split()), {"daemon-reload"}, "what systemd was asked")
    left = chroot.run("find", "/etc", "/usr", "/var/lib", "/lib", "-xdev", "-name", "*ckptfs*").stdout.split()
    equal(left, ["/etc/ckptfs"], "what is left: settings that somebody wrote, and nothing else")
    true((chroot.root / "data/store/blobs").is_dir(), "the store is there")

"""Which steps of a remote stay: its rules and pins, `rm`, and the collector, by hand and by the mount of slot 0.

In a folder a day passes when every file there becomes a day older (pass_days): the store's clock is that of its file
system. A daemon with the fault point "remote_day" has shorter days.
"""

import contextlib
import http.server
import json
import os
import pathlib
import random
import re
import shutil
import socketserver
import subprocess
import threading
import urllib.parse

import pytest

from checking import equal, noise, true, write
from mounting import BUILD, CKPTFS, CKPTFS_DEBUG, MIB, Mount, Store, by_level, mounted, run, unmount, wait_until
from seaweed import BUCKET, environment
from test_commands import Remote, make_step, s3
from test_push import ERROR, QUIET, ckptfs, fill, node, state_of, status_of, wait_for

pytestmark = [pytest.mark.builds("release"), pytest.mark.level("normal"), pytest.mark.one_mode, pytest.mark.timeout(300)]

OBJECTS = BUILD / "helpers" / "objects"
DAY = 86_400
MOST_MEMORY = 256 * MIB


@pytest.fixture(autouse=True)
def memory(scratch, monkeypatch):
    """What `gc` remembers of remotes."""
    monkeypatch.setenv("XDG_STATE_HOME", str(scratch / "state"))
    return scratch / "state" / "ckptfs"


@pytest.fixture
def folder(scratch):
    made = scratch / "remote"
    made.mkdir()
    return made


@pytest.fixture(params=("folder", pytest.param("s3", marks=pytest.mark.builds("venv"))))
def remote(request, scratch):
    if request.param == "s3":
        return s3(request.getfixturevalue("server"), request.node.name)
    return Remote(f"file://{request.getfixturevalue('folder')}")


def pass_days(folder, days):
    """All that is there becomes older."""
    for path in [folder, *folder.rglob("*")]:
        stat = path.lstat()
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns - int(days * DAY * 10**9)))


def names(listed):
    return [one["step"] for one in listed["steps"]]


def going(policy):
    return [one["step"] for one in policy["steps"] if not one["stays"]]


def packs_of(folder, tag):
    return list((folder / "packs" / tag).rglob("[0-9]")) if (folder / "packs" / tag).exists() else []


def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- the commands


def test_rules_pins_and_removals(remote, scratch):
    step = make_step(scratch / "step", "small")
    for number in range(1, 7):
        remote.has(f"step_{number}", step)
    equal(remote.json("policy")["rules"], {}, "no rule is set")
    equal(going(remote.json("policy", "--set", "keep_last=2", "--set", "keep_every=3", "--dry-run")),
          ["step_1", "step_2", "step_4"], "what would go")
    equal(remote.json("policy")["rules"], {}, "a dry run sets none")
    said = remote.says("policy", "--set", "keep_last=2", "--set", "keep_every=3", "--set", "keep_for=1s")
    true(f"ckptfs remote gc {remote.url}" in said, f"who carries it out: {said}")
    policy = remote.json("policy", "--unset", "keep_for")
    equal((policy["rules"], policy["collected"]), ({"keep_last": "2", "keep_every": "3"}, None), "the rules")
    remote.says("pin", url=f"{remote.url}/step_1")
    equal(remote.json("policy")["pins"], ["step_1"], "the pins")
    equal([one["step"] for one in remote.json("ls")["steps"] if one["pinned"]], ["step_1"], "ls tells the pins")
    remote.fails("pin", url=f"{remote.url}/step_9", said=["step_9"])
    remote.fails("pin", "--off", url=f"{remote.url}/step_2", said=["is not pinned"])

    remote.fails("rm", url=f"{remote.url}/step_6", said=["newest step", "always stays"])
    remote.fails("rm", f"{remote.url}/step_1", url=f"{remote.url}/step_5", said=["is pinned", "ckptfs remote pin --off"])
    remote.fails("rm", url=f"{remote.url}/step_9", said=["no committed step step_9", "ckptfs remote ls"])
    remote.fails("rm", url=f"{remote.url}/@0/step_5", code=2, said=["cannot be removed alone"])
    equal(len(names(remote.json("ls"))), 6, "nothing was removed")
    said = remote.says("rm", url=f"{remote.url}/step_5")
    true("step_5: removed" in said and "two days" in said, said)
    remote.fails("rm", url=f"{remote.url}/step_5", said=["was removed already"])

    dry = remote.json("gc", "--dry-run")
    equal([one["step"] for one in dry["removed"]], ["step_2"], "step_4 is the second newest now")
    equal(names(remote.json("ls")), ["step_1", "step_2", "step_3", "step_4", "step_6"], "a dry run removes nothing")
    done = remote.json("gc")
    equal([one["step"] for one in done["removed"]], ["step_2"], "what the rules remove")
    true("keep_last=2" in done["removed"][0]["why"], f"why: {done}")
    equal(done["deleted"]["objects"], 0, "its packs stay for a day")
    equal(names(remote.json("ls")), ["step_1", "step_3", "step_4", "step_6"], "what stays")
    listed = remote.json("ls", "--all")["steps"]
    equal([one["step"] for one in listed if one["removed"]], ["step_2", "step_5"], "ls --all")
    true("removed" in remote.says("ls", "--all"), "for people, too")
    true(remote.json("policy")["collected"]["host"] == os.uname().nodename, "where it ran last")
    remote.says("pin", "--off", url=f"{remote.url}/step_1")
    equal([one["step"] for one in remote.json("gc")["removed"]], ["step_1"], "no longer pinned")
    equal(remote.json("gc")["removed"], [], "nothing is left to do")
    remote.says("verify")


def test_what_is_wrong_is_said(folder, scratch):
    remote = Remote(f"file://{folder}")
    for words, said in ((("--set", "keep_last"), "RULE=VALUE"), (("--set", "keep_last=0"), "a whole number from 1 up"),
                        (("--set", "keep_for=soon"), "a duration"), (("--set", "keep_best=3"), "keep_every")):
        remote.fails("policy", *words, code=2, said=[said])
    for command in ("policy", "gc"):
        remote.fails(command, said=["nothing was pushed there yet"])
    remote.fails("rm", url=f"{remote.url}/step_1", said=["nothing was pushed there yet"])
    equal(list(folder.iterdir()), [], "nothing is made in a folder that is no remote")
    remote.fails("rm", f"file://{scratch}/step_1", url=f"{remote.url}/step_1", code=2, said=["another remote"])


def test_what_a_newer_version_made_is_refused(folder, scratch):
    remote = Remote(f"file://{folder}")
    remote.has("step_1", make_step(scratch / "step", "small"))
    for key, kind, commands in (("rules/1", "rules", ("policy", "gc", "ls")), ("looks/1", "look", ("policy", "gc"))):
        (folder / key).parent.mkdir(exist_ok=True)
        (folder / key).write_text(json.dumps({"ckptfs": kind, "version": 2}))
        for command in commands:
            remote.fails(command, said=[key, "of version 2"])
        (folder / key).unlink()
    remote.says("gc")


def test_garbage_goes_after_two_days(folder, scratch, memory):
    """Readers have a day. Then two looks, a day apart, must agree."""
    remote = Remote(f"file://{folder}")
    for number in range(1, 4):
        remote.has(f"step_{number}", make_step(scratch / "step", "small", seed=bytes([number])))
    (folder / "packs" / "step_3" / ".ckptfs-0123456789abcdef").write_bytes(b"of a writer that was killed")
    remote.says("rm", url=f"{remote.url}/step_1")
    done = remote.json("gc")
    equal((done["deleted"]["objects"], done["waiting"]["objects"]), (0, 0), "on the same day")
    pass_days(folder, 1.1)
    done = remote.json("gc")
    equal((done["deleted"]["objects"], done["waiting"]["objects"]), (0, 2), "a pack and a part wait")
    true(done["waiting_until"] > done["time"], f"until when: {done}")
    true("waits: 2 objects" in remote.says("gc"), "for people, too")
    equal(len(packs_of(folder, "step_1")), 1, "they are there")
    pass_days(folder, 1.1)
    dry = remote.json("gc", "--dry-run")
    equal(dry["deleted"]["objects"], 2, "what would be deleted")
    equal(len(packs_of(folder, "step_1")), 1, "a dry run deletes nothing")
    done = remote.json("gc")
    equal((done["deleted"]["objects"], done["waiting"]["objects"]), (2, 0), "on the third day")
    equal((packs_of(folder, "step_1"), len(packs_of(folder, "step_2"))), ([], 1), "what is left")
    equal(names(remote.json("ls")), ["step_2", "step_3"], "the steps")
    remote.says("verify")
    pass_days(folder, 8)
    true(remote.json("gc")["swept"] >= 2, "the file of the killed writer, and an empty folder")
    true(not (folder / "packs" / "step_1").exists() or remote.json("gc")["swept"] > 0, "empty folders go")
    equal(len(list(memory.iterdir())), 1, "one file remembers")


# --- what is wrong there


def test_a_store_that_was_rolled_back(folder, scratch):
    """An older copy of it, put back. What was committed since is gone, and a machine that remembers says so."""
    remote = Remote(f"file://{folder}")
    step = make_step(scratch / "step", "small")
    for number in (1, 2):
        remote.has(f"step_{number}", step)
    remote.says("gc")
    shutil.copytree(folder, scratch / "copy")
    remote.has("step_3", step)
    remote.says("rm", url=f"{remote.url}/step_1")
    remote.says("gc")
    shutil.rmtree(folder)
    shutil.copytree(scratch / "copy", folder)
    remote.says("policy", "--set", "keep_last=1")
    before = content(folder)
    remote.fails("gc", said=["is not listed now", "older copy", f"ckptfs remote gc --restored {remote.url}"])
    equal(content(folder), before, "nothing is changed")
    equal([one["step"] for one in remote.json("gc", "--restored")["removed"]], ["step_1"], "if somebody says so")
    remote.says("gc")
    remote.says("verify")


def test_a_memory_that_is_damaged(folder, scratch, memory):
    remote = Remote(f"file://{folder}")
    remote.has("step_1", make_step(scratch / "step", "small"))
    remote.says("gc")
    file, = memory.iterdir()
    file.write_text("nothing")
    remote.fails("gc", said=[str(file), "remove the file to go on"])
    file.unlink()
    remote.says("gc")


def test_a_pack_that_is_missing_and_objects_of_others(folder, scratch):
    remote = Remote(f"file://{folder}")
    for number in (1, 2, 3):
        remote.has(f"step_{number}", make_step(scratch / "step", "small", seed=bytes([number])))
    (folder / "packs" / "step_2" / "notes.txt").write_text("mine")
    (folder / "README").write_text("mine")
    lost, = packs_of(folder, "step_1")
    lost.unlink()
    remote.says("rm", url=f"{remote.url}/step_2")
    for _ in range(3):
        pass_days(folder, 1.1)
        done = remote.json("gc")
    said = "\n".join(done["warnings"])
    for wanted in (f"packs/step_1/{lost.parent.name}/0 is not there", "that step is damaged", "README is none of",
                   "packs/step_2/notes.txt is none of"):
        true(wanted in said, f"{wanted}: {said}")
    equal(packs_of(folder, "step_2"), [], "what was removed is deleted all the same")
    equal(((folder / "README").read_text(), (folder / "packs" / "step_2" / "notes.txt").read_text()), ("mine", "mine"),
          "what is somebody else's")
    equal(len(packs_of(folder, "step_3")), 1, "what is needed")
    true("warning: " in remote.call("gc").stderr, "for people, too")


def test_a_commit_that_was_deleted(folder, scratch):
    remote = Remote(f"file://{folder}")
    for number in (1, 2):
        remote.has(f"step_{number}", make_step(scratch / "step", "small"))
    remote.says("gc")
    (folder / "steps" / "step_1" / "1").unlink()
    before = content(folder)
    remote.fails("gc", said=["steps/step_1/1", "is not listed now"])
    equal(content(folder), before, "nothing is changed")


class ShortLists:
    """Before an S3 server: it leaves keys out of the lists, and passes everything else on as it is."""

    def __init__(self, port, missing):
        outer = self
        self.missing, self.cut = missing, 0

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def pass_on(self):
                with outer.connect(port) as server:
                    length = int(self.headers.get("Content-Length", 0))
                    head = f"{self.requestline}\r\n" + "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
                    server.sendall(f"{head}Connection: close\r\n\r\n".encode() + self.rfile.read(length))
                    answer = b"".join(iter(lambda: server.recv(1 << 16), b""))
                head, _, body = answer.partition(b"\r\n\r\n")
                if b"<ListBucketResult" in body:
                    head, body = outer.cut_list(head, body)
                self.close_connection = True
                self.wfile.write(head + b"\r\n\r\n" + body)

            do_GET = do_PUT = do_DELETE = do_HEAD = pass_on

            def log_message(self, *_):
                pass

        class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
            daemon_threads = True

        self.server = Server(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]

    @staticmethod
    def connect(port):
        import socket

        return socket.create_connection(("127.0.0.1", port))

    def cut_list(self, head, body):
        if b"chunked" in head.lower():
            whole, rest = b"", body
            while (size := int(rest.partition(b"\r\n")[0] or b"0", 16)) > 0:
                rest = rest.partition(b"\r\n")[2]
                whole, rest = whole + rest[:size], rest[size + 2:]
            body = whole
            head = re.sub(rb"(?i)\r\ntransfer-encoding:[^\r]*", b"", head)
        kept = re.sub(rb"<Contents>.*?</Contents>",
                      lambda one: b"" if self.missing in urllib.parse.unquote_to_bytes(one[0]) else one[0], body)
        self.cut += len(kept) != len(body)
        head = re.sub(rb"(?i)\r\ncontent-length:[^\r]*", b"", head)
        return head + f"\r\nContent-Length: {len(kept)}".encode(), kept

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


@pytest.mark.builds("venv")
@pytest.mark.parametrize("missing, said", ((b"/steps/step_2/", "is not listed now"), (b"/gone/step_1/", "is not listed now"),
                                           (b"/parts/step_2/", "is not listed"), (b"/rules/1<", "the list is not whole"),
                                           (b"/probe/", "the list lags behind")))
def test_a_list_that_is_cut_short(server, request, scratch, missing, said):
    remote = s3(server, re.sub(r"\W", "-", request.node.name))
    for number in (1, 2, 3):
        remote.has(f"step_{number}", make_step(scratch / "step", "small", seed=bytes([number])))
    remote.says("rm", url=f"{remote.url}/step_1")
    for rule in ("keep_last=3", "keep_last=1"):
        if rule == "keep_last=1":
            remote.says("gc")
        remote.says("policy", "--set", rule)
    with ShortLists(server.ports[3], missing) as proxy:
        short = Remote(remote.url, "--endpoint", f"http://127.0.0.1:{proxy.port}")
        short.fails("gc", said=[said])
        true(proxy.cut > 0, "a list was cut")
    equal(names(remote.json("ls")), ["step_2", "step_3"], "nothing was removed")
    equal([one["step"] for one in remote.json("gc")["removed"]], ["step_2"], "with whole lists")


# --- the pusher asks the rules


def test_a_step_that_the_rules_would_not_keep(fresh_disk, work, folder, mode):
    url = f"file://{folder}"
    with node(fresh_disk, work, "wanted", mode) as mount:
        steps = mount.path / "steps"
        ckptfs("remote", "add", url, steps)
        for number in (10, 11):
            fill(steps / f"global_step{number}", seed=number, size=MIB)
            wait_for(steps / f"global_step{number}", "committed")
        ckptfs("remote", "policy", url, "--set", "keep_last=2", "--set", "keep_every=5")
        mount.stop()  # what it knew of the rules is gone
        mount.start()
        for number in (5, 7):
            fill(steps / f"global_step{number}", seed=number, size=MIB)
        wait_for(steps / "global_step5", "committed")  # by keep_every
        wait_for(steps / "global_step7", "not kept")
        said = os.getxattr(steps / "global_step7", ERROR).decode()
        true("keep_last=2" in said and "ckptfs push" in said, f"what it says: {said}")
        one = next(one for one in status_of(steps)["steps"] if one["tag"] == "global_step7")
        equal((one["stage"], one["sent"]), ("not kept", 0), "status")
        equal(status_of(steps)["oldest_unpushed_seconds"], None, "nothing waits to be pushed")
        true("not kept" in ckptfs("ls", steps), "ls")
        print(ckptfs("push", "--wait", steps / "global_step7"))
        equal(state_of(steps / "global_step7"), "committed global_step7", "by hand")
        mount.stop()
        mount.start()
        wait_for(steps / "global_step7", "committed global_step7")  # it stands there, until the collector comes


def test_a_step_that_was_removed_there(fresh_disk, work, folder, mode):
    url = f"file://{folder}"
    with node(fresh_disk, work, "removed", mode) as mount:
        steps = mount.path / "steps"
        ckptfs("remote", "add", url, steps)
        for number in (1, 2, 3):
            fill(steps / f"global_step{number}", seed=number, size=MIB)
            wait_for(steps / f"global_step{number}", "committed")
        ckptfs("remote", "rm", f"{url}/global_step1", f"{url}/global_step2")
        mount.stop()
        mount.start()
        for number in (1, 2):
            wait_for(steps / f"global_step{number}", "removed")
        wait_for(steps / "global_step3", "committed")
        said = os.getxattr(steps / "global_step1", ERROR).decode()
        true("by hand" in said and os.uname().nodename in said, f"what it says: {said}")
        equal(status_of(steps)["sent"], 0, "nothing is sent")
        write(steps / "global_step2" / "weights.bin", noise(MIB, 77))
        wait_for(steps / "global_step2", "committed global_step2~2")  # it has changed
        equal(state_of(steps / "global_step1"), "removed", "the other one")
        print(ckptfs("push", "--wait", steps / "global_step1"))
        equal(state_of(steps / "global_step1"), "committed global_step1~2", "by hand")
        ckptfs("remote", "verify", url)


def test_a_part_that_was_ended(fresh_disk, work, folder, mode):
    """The other slot did not come for a week. When it comes, both push again."""
    url = f"file://{folder}"
    with node(fresh_disk, work, "a", mode) as first, node(fresh_disk, work, "b", mode) as second:
        one, other = (mount.path / "steps" / "checkpoint-7" for mount in (first, second))
        ckptfs("remote", "add", url, one.parent, "--slot", "0/2")
        fill(one, files=("weights.bin", "rank0.bin"), size=MIB)
        wait_for(one, "waiting for slot 1")
        pass_days(folder, 8)
        ended = json.loads(ckptfs("remote", "gc", "--json", url))["ended"]
        equal([push.partition("/")[0] for push in ended], ["checkpoint-7"], "what is ended")

        def words():
            return status_of(one.parent)["steps"][0]["waits_for"]

        wait_until("it says that it was ended", lambda: "removed there" in words() and "ckptfs push" in words(), 60, 0.1)
        parts = sorted((folder / "parts" / "checkpoint-7").iterdir())
        lists = status_of(one.parent)["lists"]
        wait_until("some rounds pass", lambda: status_of(one.parent)["lists"] > lists + 3, 60, 0.1)
        equal(sorted((folder / "parts" / "checkpoint-7").iterdir()), parts, "it is not pushed again by itself")
        ckptfs("remote", "add", url, other.parent, "--slot", "1/2")
        other.mkdir()
        write(other / "rank1.bin", noise(MIB, 9))
        for step in (one, other):
            wait_for(step, "committed checkpoint-7", 120)
        ckptfs("remote", "verify", url)


# --- the mount of slot 0 collects


@contextlib.contextmanager
def collecting(disk, work, name, mode, day):
    """A daemon whose days at the remote are so many seconds long."""
    with mounted(Store(disk / name), work / f"mnt-{name}", mode=mode, options=QUIET, binary=CKPTFS_DEBUG,
                 faults=f"remote_day={day}") as mount:
        yield mount


def collector_of(steps):
    return status_of(steps)["collector"]


@pytest.mark.builds("asan")
def test_the_mount_collects(fresh_disk, work, folder, mode):
    url = f"file://{folder}"
    with collecting(fresh_disk, work, "daily", mode, day=2) as mount:
        steps = mount.path / "steps"
        ckptfs("remote", "add", url, steps)
        for number in (1, 2, 3):
            fill(steps / f"global_step{number}", seed=10 * number, size=MIB)
            wait_for(steps / f"global_step{number}", "committed")
        ckptfs("remote", "policy", url, "--set", "keep_last=1")
        listed = lambda: names(json.loads(ckptfs("remote", "ls", "--json", url)))
        wait_until("the rules are carried out", lambda: listed() == ["global_step3"], 60, 0.2)
        wait_until("garbage is deleted",
                   lambda: not packs_of(folder, "global_step1") + packs_of(folder, "global_step2"), 60, 0.2)
        true(packs_of(folder, "global_step3"), "what is needed stays")
        wait_until("it says so", lambda: collector_of(steps)["removed"] == 2 and collector_of(steps)["deleted_bytes"] > 0, 30, 0.2)
        true("the collector ran" in ckptfs("remote", "status", steps), "for people, too")
        equal(len(list((pathlib.Path(mount.store.folder) / "remote").glob("*.look"))), 1, "it remembers")
        tombstone = folder / "gone" / "global_step1" / "1"
        lost = tombstone.read_bytes()
        tombstone.unlink()
        wait_until("what stands in the way is told", lambda: "gone/global_step1/1" in collector_of(steps)["trouble"], 60, 0.2)
        true("the collector fails" in ckptfs("remote", "status", steps), "for people, too")
        true("gone/global_step1/1" in mount.read_log(), "in the log")
        true(any("not carried out" in warning for warning in mount.status()["warnings"]), "in the warnings")
        done = run(CKPTFS, "doctor", mount.path, check=False)
        true("are not carried out" in done.stdout, f"doctor: {done.stdout}")
        tombstone.write_bytes(lost)
        wait_until("it goes on", lambda: collector_of(steps)["trouble"] == "", 60, 0.2)
        ckptfs("remote", "verify", url)


@pytest.mark.builds("asan")
def test_only_slot_0_collects(fresh_disk, work, folder, mode):
    with collecting(fresh_disk, work, "slot1", mode, day=1) as mount:
        ckptfs("remote", "add", f"file://{folder}", mount.path / "steps", "--slot", "1/2")
        equal(collector_of(mount.path / "steps"), None, "slot 1")
        ckptfs("remote", "add", f"file://{folder}", mount.path / "steps", "--slot", "0/2")
        wait_until("slot 0 collects", lambda: collector_of(mount.path / "steps")["runs"] > 0, 30, 0.2)


# --- days go by


class Cluster:
    """Three mounts that hold each step together, with short days at the remote."""

    SLOTS, KEEP_LAST, KEEP_EVERY = 3, 12, 25

    def __init__(self, disk, work, mode, url, options, day):
        self.url, self.options, self.number = url, options, 0
        self.mounts = []
        for slot in range(self.SLOTS):
            self.mounts.append(Mount(Store(disk / f"slot{slot}"), work / f"mnt-slot{slot}", mode=mode, options=QUIET,
                                     binary=CKPTFS_DEBUG, faults=f"remote_day={day}"))

    def __enter__(self):
        for slot, mount in enumerate(self.mounts):
            mount.start()
            ckptfs("remote", "add", self.url, self.steps(slot), "--slot", f"{slot}/{self.SLOTS}", *self.options)
        self.call("policy", "--set", f"keep_last={self.KEEP_LAST}", "--set", f"keep_every={self.KEEP_EVERY}")
        return self

    def __exit__(self, *_):
        for mount in self.mounts:
            if mount.alive():
                mount.kill()
            unmount(mount.path)

    def call(self, command, *words):
        return ckptfs("remote", command, self.url, *self.options, *words)

    def steps(self, slot):
        return self.mounts[slot].path / "steps"

    def listed(self, *words):
        return names(json.loads(self.call("ls", "--json", *words)))

    def kill_one(self, dice):
        mount = dice.choice(self.mounts)
        mount.kill()
        run("umount", "-l", mount.path, check=False)
        mount.start()

    def save(self, count, dice):
        """So many steps, by all mounts, one of which is killed meanwhile."""
        made = []
        for _ in range(count):
            self.number += 1
            made.append(f"global_step{self.number}")
            for slot in range(self.SLOTS):
                step = self.steps(slot) / made[-1]
                step.mkdir()
                write(step / f"rank{slot}.bin", noise(64 << 10, 10 * self.number + slot))
        threading.Event().wait(dice.uniform(0, 3))
        self.kill_one(dice)
        for tag in made:
            for slot in range(self.SLOTS):
                wait_for(self.steps(slot) / tag, "committed", 240)

    def model(self):
        """What stays of all that was ever committed, oldest first."""
        tags = self.listed("--all")
        equal(len(tags), self.number, "all steps were committed")
        return [tag for at, tag in enumerate(tags)
                if at >= len(tags) - self.KEEP_LAST or int(tag.removeprefix("global_step")) % self.KEEP_EVERY == 0]

    def pass_day(self, runs=2):
        """The run that is under way may have begun before the last commit."""
        before = collector_of(self.steps(0))
        wait_until("the collector runs", lambda: collector_of(self.steps(0))["runs"] >= before["runs"] + runs, 240, 0.5)
        equal(collector_of(self.steps(0))["failures"], before["failures"], "runs that failed")


def objects_of(url, options, prefix):
    words = [str(word) for word in (OBJECTS, url, *options, "list", prefix)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment(), timeout=600, check=True)
    return [line.split("\t")[0] for line in done.stdout.splitlines()]


def live(cluster, days, each, seed):
    dice = random.Random(seed)
    for day in range(days):
        cluster.save(each, dice)
        cluster.pass_day()
        equal(cluster.listed(), cluster.model(), f"what stays after day {day + 1} (--seed {seed})")
    cluster.pass_day(4)
    tags = {key.split("/")[1] for key in objects_of(cluster.url, cluster.options, "packs/")}
    equal(tags, set(cluster.model()), "whose packs are left")
    cluster.call("verify")


@pytest.mark.builds("asan")
@pytest.mark.timeout(900)
def test_what_stays_is_what_a_model_says(fresh_disk, work, folder, mode, seed, monkeypatch):
    monkeypatch.setattr(Cluster, "KEEP_LAST", 4)
    monkeypatch.setattr(Cluster, "KEEP_EVERY", 3)
    with Cluster(fresh_disk, work, mode, f"file://{folder}", (), day=10) as cluster:
        live(cluster, days=2, each=4, seed=seed)


@pytest.mark.level("long")
@pytest.mark.builds("asan")
@pytest.mark.builds("venv")
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("kind", ("folder", "s3"))
def test_two_hundred_steps(fresh_disk, work, folder, mode, seed, kind, server, monkeypatch):
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    url, options = (f"file://{folder}", ()) if kind == "folder" else (f"s3://{BUCKET}/two-hundred", ("--endpoint", server.endpoint))
    with Cluster(fresh_disk, work, mode, url, options, day=20) as cluster:
        live(cluster, days=20, each=10, seed=seed)


# --- what it costs


def measured_gc(remote, *words):
    """Returns what it says, and the most memory that it took."""
    command = [CKPTFS, "remote", "gc", "--json", "--timeout", "600s", *words, remote.url, *remote.options]
    with subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, env=environment()) as child:
        said = json.loads(child.stdout.read())
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    equal(child.returncode, 0, "exit status")
    return said, usage.ru_maxrss * 1024


def most_lists(objects):
    """One for each thousand objects; what the remote is, its clock, its rules, and its parts once more."""
    return -(-objects // 1000) + 5


@pytest.mark.builds("venv")
@pytest.mark.timeout(by_level(300, 300, 1_800))
def test_lists_of_a_collection(server, request, scratch):
    count = by_level(2_500, 2_500, 50_000)
    remote = s3(server, request.node.name)
    for number in (1, 2):
        remote.has(f"step_{number}", make_step(scratch / "step", "small"))
    run(OBJECTS, remote.url, *remote.options, "--within", 1_000, "fill", "packs/step_9/0.0123456789abcdef/", count,
        env=environment(), timeout=1_200)
    said, memory = measured_gc(remote)
    print(said, memory)
    true(said["objects"] >= count, f"objects: {said}")
    true(said["requests"]["lists"] <= most_lists(said["objects"]), f"lists: {said}")
    true(said["requests"]["gets"] <= 2 * 2 + 1, f"for each standing step its commit and its slot's part: {said}")


@pytest.mark.level("long")
@pytest.mark.timeout(3_600)
def test_a_million_objects(folder, scratch):
    remote = Remote(f"file://{folder}")
    for number in (1, 2):
        remote.has(f"step_{number}", make_step(scratch / "step", "small"))
    for tag in range(1000):
        push = folder / "packs" / f"step_{1000 + tag}" / f"0.{tag:016x}"
        push.mkdir(parents=True)
        for pack in range(1000):
            os.close(os.open(push / str(pack), os.O_CREAT | os.O_WRONLY, 0o644))
    for _ in range(4):  # they are ended, found dead, and deleted
        said, memory = measured_gc(remote)
        print(said, memory)
        true(memory <= MOST_MEMORY, f"{memory} bytes of memory")
        true(said["requests"]["lists"] <= most_lists(said["objects"]), f"lists: {said}")
        pass_days(folder, 8)
    equal(said["deleted"]["objects"], 1_000_000, "what is deleted")
    equal(len(objects_of(remote.url, (), "packs/")), 2, "what is left")
    remote.says("verify")

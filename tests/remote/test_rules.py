"""Which steps of a remote stay: its rules and pins, `rm`, and the collector by hand. No mount takes part."""

import http.server
import json
import os
import re
import shutil
import socketserver
import subprocess
import sys
import threading
import time
import urllib.parse

import pytest

from checking import equal, true
from collecting import OBJECTS, decisions, files_of, names, objects_of, pass_days, push_folders
from mounting import CKPTFS, MIB, by_level, run
from seaweed import environment
from test_commands import Remote, make_step, s3

pytestmark = [pytest.mark.one_mode, pytest.mark.timeout(300)]

MOST_MEMORY = 256 * MIB


@pytest.fixture(params=("folder", pytest.param("s3", marks=pytest.mark.builds("venv"))))
def remote(request, scratch):
    if request.param == "s3":
        return s3(request.getfixturevalue("server"), request.node.name)
    return Remote(f"file://{request.getfixturevalue('folder')}")


def going(policy):
    return [one["step"] for one in policy["steps"] if not one["stays"]]


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
    true("step_5: removed" in said and "another day" in said, said)
    remote.fails("rm", url=f"{remote.url}/step_5", said=["was removed already"])

    dry = remote.json("gc", "--dry-run")
    equal([one["step"] for one in dry["removed"]], ["step_2"], "step_4 is the second newest now")
    equal(names(remote.json("ls")), ["step_1", "step_2", "step_3", "step_4", "step_6"], "a dry run removes nothing")
    done = remote.json("gc")
    equal([one["step"] for one in done["removed"]], ["step_2"], "what the rules remove")
    true("keep_last=2" in done["removed"][0]["why"], f"why: {done}")
    equal(done["deleted"]["objects"], 0, "its files stay for a day")
    equal(names(remote.json("ls")), ["step_1", "step_3", "step_4", "step_6"], "what stays")
    listed = remote.json("ls", "--all")["steps"]
    equal([one["step"] for one in listed if one["removed"]], ["step_2", "step_5"], "ls --all")
    true("removed" in remote.says("ls", "--all"), "for people, too")
    true(remote.json("policy")["collected"]["host"] == os.uname().nodename, "where it ran last")
    remote.says("pin", "--off", url=f"{remote.url}/step_1")
    equal([one["step"] for one in remote.json("gc")["removed"]], ["step_1"], "no longer pinned")
    equal(remote.json("gc")["removed"], [], "nothing is left to do")
    remote.says("verify")


def test_a_pin_of_what_was_pushed_again(folder, scratch):
    """It holds the commit that it names, and no other one of the same tag."""
    remote = Remote(f"file://{folder}")
    for seed, tag, name in ((1, "step_1", "step_1"), (2, "step_1", "step_1~2"), (3, "step_2", "step_2")):
        equal(remote.has(tag, make_step(scratch / "step", "small", seed=bytes([seed]))), name, "the commit")
    remote.says("policy", "--set", "keep_last=1")
    equal(going(remote.json("policy")), ["step_1", "step_1~2"], "what would go")
    for pinned, other in (("step_1", "step_1~2"), ("step_1~2", "step_1")):
        remote.says("pin", url=f"{remote.url}/{pinned}")
        equal([one["step"] for one in remote.json("ls")["steps"] if one["pinned"]], [pinned], "ls tells the pins")
        remote.fails("rm", url=f"{remote.url}/{pinned}", said=["is pinned"])
        equal(going(remote.json("policy")), [other], f"what would go beside {pinned}")
        if pinned == "step_1":
            remote.says("pin", "--off", url=f"{remote.url}/{pinned}")
    equal([one["step"] for one in remote.json("gc")["removed"]], ["step_1"], "what the rule removes")
    equal(names(remote.json("ls")), ["step_1~2", "step_2"], "what stays")


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
    for key, kind, commands in ((".ckptfs/rules/1", "rules", ("policy", "gc", "ls")),
                                (".ckptfs/collected/last", "collected", ("policy",))):
        (folder / key).parent.mkdir(exist_ok=True)
        (folder / key).write_text(json.dumps({"ckptfs": kind, "version": 3}))
        for command in commands:
            remote.fails(command, said=[key, "of version 3"])
        (folder / key).unlink()
    remote.says("gc")


def test_garbage_goes_after_a_day(folder, scratch):
    """So long who has the step open can read it. Then its folder goes as a whole, in one run, and nothing else."""
    remote = Remote(f"file://{folder}")
    for number in range(1, 4):
        remote.has(f"step_{number}", make_step(scratch / "step", "small", "sub/small", seed=bytes([number])))
    left = folder / ".ckptfs-uploads" / "0123456789abcdef"
    left.write_bytes(b"of a writer that was killed")
    remote.says("rm", url=f"{remote.url}/step_1")
    for _ in range(2):
        done = remote.json("gc")
        equal((done["deleted"]["objects"], done["waiting"]["objects"]), (0, 3), "on the same day two files and a part wait")
    true(done["waiting_until"] > done["time"], f"until when: {done}")
    true("waits: 3 objects" in remote.says("gc"), "for people, too")
    pass_days(folder, 0.9)
    equal(remote.json("gc")["deleted"]["objects"], 0, "before the day is over")
    equal(len(files_of(folder, "step_1")), 2, "they are there")
    pass_days(folder, 0.2)
    before = content(folder)
    dry = remote.json("gc", "--dry-run")
    equal((dry["deleted"]["objects"], dry["uploads"]), (3, 0), "what would be deleted")
    equal(content(folder), before, "a dry run deletes nothing")
    done = remote.json("gc")
    equal((done["deleted"]["objects"], done["waiting"]["objects"], done["uploads"]), (3, 0, 0), "after a day")
    equal(push_folders(folder, "step_1"), [], "the folder is gone, too")
    gone = {key for key in before if key.startswith(("step_1.", ".ckptfs/parts/step_1/"))}
    found = content(folder)
    equal(before.keys() - found.keys(), gone, "what is deleted")
    equal([key for key in before.keys() - gone if found[key] != before[key]], [], "what has changed")
    equal(names(remote.json("ls")), ["step_2", "step_3"], "the steps")
    remote.says("verify")
    pass_days(folder, 8)
    equal(remote.json("gc")["uploads"], 1, "the file of the killed writer")
    true(not left.exists(), "it is gone")


# --- what is wrong there


def test_a_store_that_was_rolled_back(folder, scratch):
    """An older copy of it, put back. What it has stands, and the collector deletes nothing of that."""
    remote = Remote(f"file://{folder}")
    step = make_step(scratch / "step", "small")
    for number in (1, 2):
        remote.has(f"step_{number}", step)
    remote.says("gc")
    shutil.copytree(folder, scratch / "copy")
    remote.has("step_3", step)
    remote.says("rm", url=f"{remote.url}/step_1")
    pass_days(folder, 1.1)
    equal(remote.json("gc")["deleted"]["objects"], 2, "what was removed after the copy was made")
    shutil.rmtree(folder)
    shutil.copytree(scratch / "copy", folder)
    pass_days(folder, 8)
    for _ in range(2):
        done = remote.json("gc")
        equal((done["removed"], done["ended"], done["deleted"]["objects"], done["warnings"]), ([], [], 0, []), "what gc does")
        pass_days(folder, 1.1)
    equal(names(remote.json("ls")), ["step_1", "step_2"], "the steps")
    remote.says("verify")
    remote.says("policy", "--set", "keep_last=1")
    equal([one["step"] for one in remote.json("gc")["removed"]], ["step_1"], "what a rule removes")
    remote.has("step_3", step)
    remote.says("verify")


def test_a_file_that_is_missing_and_objects_of_others(folder, scratch):
    """A step that lacks a file counts for no rule. What is not ckptfs's stays, but for what lies in a step's folder."""
    remote = Remote(f"file://{folder}")
    for number in (1, 2, 3):
        remote.has(f"step_{number}", make_step(scratch / "step", "small", seed=bytes([number])))
    (*_, second), = (path.parts for path in push_folders(folder, "step_2"))
    (folder / second / "notes.txt").write_text("mine")
    others = [folder / name for name in ("README", "notes/step_2/a", "step_4.0123456789abcdef/small", ".ckptfs/notes")]
    for path in others:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    lost, = files_of(folder, "step_1")
    lost.unlink()
    remote.says("rm", url=f"{remote.url}/step_2")
    remote.says("policy", "--set", "keep_last=1")
    for _ in range(2):
        pass_days(folder, 1.1)
        done = remote.json("gc")
        said = "\n".join(done["warnings"])
        for wanted in (f"step_1: 0 of 1 files are there, of {lost.parent.name}/: that step is damaged", "README is none of",
                       "notes/step_2/a is none of", ".ckptfs/notes is none of", "step_4.0123456789abcdef/: nobody knows"):
            true(wanted in said, f"{wanted}: {said}")
        equal(done["removed"], [], "what the rules remove")
    equal(push_folders(folder, "step_2"), [], "what was removed is deleted all the same")
    equal([path.read_text() for path in others], ["mine"] * len(others), "what is somebody else's")
    equal(len(files_of(folder, "step_3")), 1, "what is needed")
    true("warning: " in remote.call("gc").stderr, "for people, too")
    remote.says("rm", url=f"{remote.url}/step_1")
    equal(names(remote.json("ls")), ["step_3"], "a damaged step can be removed by hand")
    pass_days(folder, 1.1)
    true("damaged" not in "".join(remote.json("gc")["warnings"]), "then it is told no more")
    equal(list((folder / ".ckptfs" / "parts" / "step_1").glob("*")), [], "and deleted")


def test_a_commit_that_was_deleted(folder, scratch):
    """One that has a tombstone is missed: who lists the steps is told, and nothing is done. Another one is made again, of its
    parts, as long as they are all there."""
    remote = Remote(f"file://{folder}")
    for seed, tag in enumerate(("step_1", "step_1", "step_2")):
        remote.has(tag, make_step(scratch / "step", "small", seed=bytes([seed])))
    remote.says("rm", url=f"{remote.url}/step_1")
    first, second = decisions(folder, "step_1")
    first.rename(scratch / "lost")
    before = content(folder)
    remote.fails("gc", said=[f".ckptfs/steps/{first.name}", "the list is not whole"])
    for command in ("ls", "latest"):
        remote.fails(command, "--timeout", "2s", said=[first.name])
    equal(content(folder), before, "what is there: nothing was changed")
    (scratch / "lost").rename(first)
    said = second.read_bytes()
    second.unlink()
    equal(names(remote.json("ls")), ["step_2"], "the steps without the commit")
    done = remote.json("gc")
    equal((done["removed"], done["ended"], done["deleted"]["objects"]), ([], [], 0), "what is done")
    equal(names(remote.json("ls")), ["step_1~2", "step_2"], "the steps")
    equal(json.loads(second.read_bytes())["parts"], json.loads(said)["parts"], "what the new commit names")
    second.unlink()
    part, = (path for path in (folder / ".ckptfs" / "parts" / "step_1").iterdir() if path.name.endswith(second.name[-16:]))
    part.unlink()
    pass_days(folder, 8)
    for _ in range(2):
        done = remote.json("gc")
        said = "\n".join(done["warnings"])
        true(f"/step_1.{second.name[-16:]}/: nobody knows" in said, f"what it says: {said}")
        pass_days(folder, 1.1)
    equal([path.parent.name[-16:] for path in files_of(folder, "step_1")], [second.name[-16:]],
          "the files of which nobody knows any more; those of the removed step are deleted")
    remote.says("verify")


def test_an_undecided_save(folder, scratch):
    """All mounts have died before somebody made its commit. The collector makes it, if the parts of all slots are there; else
    it makes a void after a week."""
    remote = Remote(f"file://{folder}")
    for number in (1, 2, 3):
        remote.has(f"step_{number}", *(make_step(scratch / f"{slot}", f"rank{slot}", seed=bytes([number])) for slot in (0, 1)))
    first, second = decisions(folder, "step_1")[0], decisions(folder, "step_2")[0]
    for commit in (first, second):
        commit.unlink()
    part, = (folder / ".ckptfs" / "parts" / "step_2").glob("1.*")
    part.unlink()
    dry = remote.json("gc", "--dry-run")
    equal((dry["ended"], names(remote.json("ls"))), ([], ["step_3"]), "a dry run decides nothing")
    equal(remote.json("gc")["ended"], [], "what is ended on the same day")
    equal(names(remote.json("ls")), ["step_1", "step_3"], "the steps")
    true(not second.exists(), "nothing is decided about the other one")
    pass_days(folder, 8)
    equal(remote.json("gc")["ended"], [f"step_2/0.{second.name[-16:]}"], "what is ended after a week")
    true(second.stat().st_size <= 160, "it has a void")
    equal(names(remote.json("ls")), ["step_1", "step_3"], "the steps")
    pass_days(folder, 1.1)
    remote.says("gc")
    equal(files_of(folder, "step_2", 0), [], "what its slot 0 has sent")
    left, = (folder / ".ckptfs" / "parts" / "step_2").iterdir()
    true(left.name == f"0.{second.name[-16:]}" and left.stat().st_size <= 160, f"its part says that it was ended: {left}")
    true(second.exists(), "the void stays")
    remote.says("verify")


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


def three_steps(server, request, scratch):
    """The first is removed, and a rule wants to remove the second."""
    remote = s3(server, re.sub(r"\W", "-", request.node.name))
    for number in (1, 2, 3):
        remote.has(f"step_{number}", make_step(scratch / "step", "small", seed=bytes([number])))
    remote.says("rm", url=f"{remote.url}/step_1")
    for rule in ("keep_last=3", "keep_last=1"):
        remote.says("policy", "--set", rule)
    return remote


@pytest.mark.builds("venv")
@pytest.mark.parametrize("missing, said", ((b"/rules/1<", "the list is not whole"), (b"/probe/", "the list lags behind")))
def test_a_list_that_is_cut_short(server, request, scratch, missing, said):
    remote = three_steps(server, request, scratch)
    with ShortLists(server.ports[3], missing) as proxy:
        short = Remote(remote.url, "--endpoint", f"http://127.0.0.1:{proxy.port}")
        short.fails("gc", said=[said])
        true(proxy.cut > 0, "a list was cut")
    equal(names(remote.json("ls")), ["step_2", "step_3"], "nothing was removed")
    equal([one["step"] for one in remote.json("gc")["removed"]], ["step_2"], "with whole lists")


@pytest.mark.builds("venv")
@pytest.mark.parametrize("missing, said, left", ((b".step_2.", "", ["step_2", "step_3"]),  # of steps/
                                                 (b"/gone/", "", ["step_3"]),
                                                 (b"/parts/step_2/", "step_2: its part is not there", ["step_2", "step_3"]),
                                                 (b"/step_2.", "step_2: 0 of 1 files are there", ["step_2", "step_3"])))
def test_what_a_list_lacks_deletes_nothing(server, request, scratch, missing, said, left):
    remote = three_steps(server, request, scratch)
    before = objects_of(remote.url, remote.options, "")
    time.sleep(2)  # what is committed at this moment is judged by the next run
    with ShortLists(server.ports[3], missing) as proxy:
        short = Remote(remote.url, "--endpoint", f"http://127.0.0.1:{proxy.port}")
        done = short.json("gc")
        true(proxy.cut > 0, "a list was cut")
    true(said in "\n".join(done["warnings"]) and bool(done["warnings"]) == bool(said), f"what it says: {done['warnings']}")
    equal((done["ended"], done["deleted"]["objects"]), ([], 0), "what is ended, and deleted")
    equal(names(remote.json("ls")), left, "what stands")
    equal(set(before) - set(objects_of(remote.url, remote.options, "")), set(), "objects that are gone")
    remote.says("gc")
    equal(names(remote.json("ls")), ["step_3"], "with whole lists")
    remote.says("verify")


# --- what it costs


MEASURED = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)
"""


def measured_gc(remote, *words):
    """Returns what it says, and the most memory that it took."""
    command = [CKPTFS, "remote", "gc", "--json", "--timeout", "600s", *words, remote.url, *remote.options]
    # What a process took before its exec counts as its memory, so a small one starts it.
    child = subprocess.run([sys.executable, "-c", MEASURED, *map(str, command)], stdout=subprocess.PIPE, env=environment(),
                           check=False)
    *said, memory = child.stdout.splitlines()
    equal(child.returncode, 0, "exit status")
    return json.loads(b"".join(said)), int(memory) * 1024


def most_lists(objects):
    """One for each thousand objects; what the remote is, its clock, its rules, and its uploads."""
    return -(-objects // 1000) + 5


@pytest.mark.builds("venv")
@pytest.mark.timeout(by_level(300, 1_800))
def test_lists_of_a_collection(server, request, scratch):
    count = by_level(2_500, 50_000)
    remote = s3(server, request.node.name)
    for number in (1, 2):
        remote.has(f"step_{number}", make_step(scratch / "step", "small"))
    run(OBJECTS, remote.url, *remote.options, "--within", 1_000, "fill", "step_9.0123456789abcdef/", count,
        env=environment(), timeout=1_200)
    said, memory = measured_gc(remote)
    print(said, memory)
    true(said["objects"] >= count, f"objects: {said}")
    true(said["requests"]["lists"] <= most_lists(said["objects"]), f"lists: {said}")
    true(said["requests"]["gets"] <= 2 + 2, f"for each standing step its commit: {said}")


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_a_million_objects(folder, scratch):
    remote = Remote(f"file://{folder}")
    for number in (1, 2):
        remote.has(f"step_{number}", make_step(scratch / "step", "small"))
    for tag in range(1000, 2000):
        mark = folder / ".ckptfs" / "pushes" / f"step_{tag}" / f"0.{tag:016x}"
        mark.parent.mkdir(parents=True)
        mark.touch()
        push = folder / f"step_{tag}.{tag:016x}"
        push.mkdir()
        for file in range(1000):
            os.close(os.open(push / str(file), os.O_CREAT | os.O_WRONLY, 0o644))
    for _ in range(3):  # they are on their way, ended, and deleted
        said, memory = measured_gc(remote)
        print({name: value for name, value in said.items() if name != "ended"}, memory)
        true(memory <= MOST_MEMORY, f"{memory} bytes of memory")
        true(said["requests"]["lists"] <= most_lists(said["objects"]), f"lists: {said}")
        pass_days(folder, 8)
    equal(said["deleted"]["objects"], 1_001_000, "what is deleted")
    equal(len([key for key in objects_of(remote.url, (), "") if not key.startswith(".ckptfs/")]), 2, "what is left")
    remote.says("verify")

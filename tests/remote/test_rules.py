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
import urllib.parse

import pytest

from checking import equal, true
from collecting import OBJECTS, names, objects_of, packs_of, pass_days
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
    """One for each thousand objects; what the remote is, its clock, its rules, and its parts once more."""
    return -(-objects // 1000) + 5


@pytest.mark.builds("venv")
@pytest.mark.timeout(by_level(300, 1_800))
def test_lists_of_a_collection(server, request, scratch):
    count = by_level(2_500, 50_000)
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


@pytest.mark.long
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
        print({name: value for name, value in said.items() if name != "ended"}, memory)
        true(memory <= MOST_MEMORY, f"{memory} bytes of memory")
        true(said["requests"]["lists"] <= most_lists(said["objects"]), f"lists: {said}")
        pass_days(folder, 8)
    equal(said["deleted"]["objects"], 1_000_000, "what is deleted")
    equal(len(objects_of(remote.url, (), "packs/")), 2, "what is left")
    remote.says("verify")

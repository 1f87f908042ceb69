"""`ckptfs remote`: the commands that need no mount, on a folder and on SeaweedFS, and what they say when it fails."""

import json
import os
import subprocess
import time

import pytest

from calling import status_is
from checking import equal, true
from collecting import decisions, files_of
from mounting import BUILD, CKPTFS, MIB
from seaweed import BUCKET, Proxy, environment
from test_stores import answer, error

pytestmark = [pytest.mark.builds("venv"),
              pytest.mark.one_mode, pytest.mark.timeout(300)]

MAKER = BUILD / "helpers" / "remote_step"


class Remote:
    """An address, and the options that lead there."""

    def __init__(self, url, *options):
        self.url, self.options = url, options

    def call(self, command, *words, url=None, variables=None):
        command = [CKPTFS, "remote", command, url or self.url, *self.options, *words]
        return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=200,
                              env=environment() | (variables or {}), check=False)

    def says(self, command, *words, **more):
        return status_is(self.call(command, *words, **more), 0).stdout

    def json(self, command, *words, **more):
        return json.loads(self.says(command, "--json", *words, **more))

    def fails(self, command, *words, said=(), code=1, **more):
        """Nothing but the error is printed."""
        done = status_is(self.call(command, *words, **more), code, *said)
        equal(done.stdout, "", f"stdout of {command}")
        return done.stderr

    def has(self, tag, *folders):
        """Makes a committed step of these folders, one for each slot. Returns its name."""
        options = [word for word in self.options if word != "--path-style"]
        done = subprocess.run([MAKER, self.url, tag, *folders, *options], capture_output=True, text=True,
                              env=environment(), timeout=200, check=False)
        equal(done.returncode, 0, f"remote_step: {done.stderr}")
        return done.stdout.strip()


@pytest.fixture(params=("folder", "s3"))
def remote(request, scratch):
    if request.param == "s3":
        return s3(request.getfixturevalue("server"), request.node.name)
    folder = scratch / "remote"
    folder.mkdir()
    return Remote(f"file://{folder}")


def s3(server, name, port=None):
    endpoint = f"http://127.0.0.1:{port}" if port else server.endpoint
    return Remote(f"s3://{BUCKET}/{name.replace('[', '-').replace(']', '')}", "--endpoint", endpoint)


@pytest.fixture
def broken(server, request):
    """A remote behind a proxy with these fates."""
    made = []

    def behind(*fates):
        made.append(Proxy(server.ports[3], fates).__enter__())
        return s3(server, request.node.name, made[-1].port)

    yield behind
    for proxy in made:
        proxy.__exit__()


def make_step(folder, *names, seed=b"a"):
    """A step with a file of 3 MiB and a few bytes, one that is empty, and one in a folder."""
    for name in names or ("large", "empty", "sub/small"):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes({"empty": b"", "large": seed * (3 * MIB + 5)}.get(name, seed + name.encode()))
    return folder


def content_of(folder):
    return {str(path.relative_to(folder)): (path.stat().st_mode, path.read_bytes() if path.is_file() else None)
            for path in folder.rglob("*")}


# --- a remote with nothing in it


def test_an_empty_remote(remote):
    true("fit as a remote" in (said := remote.says("check")) and f"ckptfs remote add {remote.url}" in said, said)
    equal(remote.json("check"), {"url": remote.url, "fit": True, "founded": False, "steps": 0, "newest": None}, "check")
    remote.fails("latest", said=["no step is committed there", "ckptfs remote check"])
    true("no step is committed there" in remote.says("ls"), "ls")
    equal(remote.json("ls"), {"url": remote.url, "steps": []}, "ls --json")
    remote.fails("verify", said=[remote.url])
    remote.fails("verify", url=f"{remote.url}/step_1", said=["neither a remote that has steps, nor a step of one"])


def test_an_export_of_nothing(remote, scratch):
    remote.says("check")  # SeaweedFS makes the bucket with the first object
    remote.fails("export", scratch / "out", url=f"{remote.url}/step_1", said=["no committed step step_1"])
    remote.fails("export", scratch, url=f"{remote.url}/step_1", said=["is there already"])
    remote.fails("export", scratch / "no" / "out", url=f"{remote.url}/step_1", said=["No such file"])
    true(not (scratch / "out").exists(), "a step that is not there is exported")


# --- what is said when it does not work


def test_addresses():
    for url, said in (("/lustre/run7", "no address"), ("http://host/x", "no address"), ("s3://bucket", "no prefix"),
                      ("file://relative", "no absolute path"), ("s3://", "no bucket")):
        for command in ("check", "latest", "ls"):
            Remote(url).fails(command, code=2, said=[said, "s3://BUCKET/PREFIX or file:///FOLDER"])
    said = Remote("s3://key:hidden@bucket/run7").fails("check", code=2, said=["AWS_ACCESS_KEY_ID"])
    true("hidden" not in said, said)
    said = Remote("s3://b/run7", "--endpoint", "https://key:hidden@host").fails("ls", code=2, said=["--endpoint"])
    true("hidden" not in said, said)
    Remote("s3://b/run7", "--endpoint", "host:8333").fails("ls", code=2, said=["https://HOST:PORT"])
    for words in (("--timeout", "soon"), ("--timeout", "0s")):
        Remote("file:///tmp").fails("ls", *words, code=2, said=["--timeout"])
    for share in ("0%", "101%", "half", "-1%"):
        Remote("file:///tmp").fails("verify", f"--sample={share}", code=2, said=["as in 5%"])


def test_a_folder_that_is_not_there(scratch):
    for command in ("check", "latest", "ls", "verify"):
        Remote(f"file://{scratch}/none").fails(command, said=["none"])
    Remote(f"file://{scratch}/none").fails("check", said=["mount its file system, or make the folder"])


def test_wrong_credentials(server, request, broken):
    store = s3(server, request.node.name)
    store.fails("check", variables={"AWS_SECRET_ACCESS_KEY": "wrong"}, said=["SignatureDoesNotMatch", "--profile"])
    store.fails("latest", variables={"AWS_ACCESS_KEY_ID": ""}, said=["no credentials for S3", "AWS_ACCESS_KEY_ID"])
    store.fails("ls", "--profile", "nobody", said=["there is no profile nobody"])
    store = broken(*[answer("404 Not Found", error("NoSuchBucket"))] * 9)
    store.fails("check", said=["NoSuchBucket", "make the bucket"])


def test_a_server_that_is_out_of_reach(server, request):
    begun = time.monotonic()
    with Proxy(1) as proxy:
        port = proxy.port
    for command in ("check", "latest", "ls"):
        s3(server, request.node.name, port).fails(command, "--timeout", "1s", said=[f"127.0.0.1:{port}", "--endpoint"])
    true(time.monotonic() - begun < 30, "--timeout")


def test_a_server_that_replaces_objects(broken):
    made = answer("200 OK", b"", 'ETag: "a"')
    store = broken(made, made, answer("200 OK", b"abcdefghij other"), answer("204 No Content"))
    store.fails("check", said=["it replaces an object", "use another one"])
    store = broken(*[answer("501 Not Implemented", error("NotImplemented"))] * 9)
    store.fails("check", said=["501", "use another server"])


def test_what_lies_there_is_not_ours(scratch):
    facts = scratch / ".ckptfs" / "series" / "series.json"
    facts.parent.mkdir(parents=True)
    facts.write_text("{}")
    Remote(f"file://{scratch}").fails("check", said=[".ckptfs/series/series.json", "use another folder or prefix"])
    facts.unlink()
    remote = Remote(f"file://{scratch}")
    remote.has("step_1", make_step(scratch / "step"))
    facts.unlink()
    remote.fails("check", said=[".ckptfs/series/series.json is gone"])


# --- steps


def test_steps(remote, scratch):
    step = make_step(scratch / "step")
    equal(remote.has("step_1", step), "step_1", "its name")
    equal(remote.has("step_2", step), "step_2", "the next one's")
    equal(remote.says("latest"), "step_2\n", "latest")
    (step / "sub" / "small").write_bytes(b"changed")
    equal(remote.has("step_1", step), "step_1~2", "the name of a later commit")
    steps = remote.json("ls")["steps"]
    equal(sorted(one["step"] for one in steps), ["step_1", "step_1~2", "step_2"], "ls")
    true(all(abs(one["committed"] - time.time()) < 120 for one in steps), f"times: {steps}")
    equal([one["committed"] for one in steps], sorted(one["committed"] for one in steps), "the order")
    checked = remote.json("check")
    equal((checked["founded"], checked["slots"], checked["steps"], checked["host"]), (True, 1, 3, "host0"), "check")
    equal(remote.json("latest")["step"], checked["newest"], "the newest")


def test_a_removed_step_is_left_out(scratch):
    remote = Remote(f"file://{scratch}")
    (scratch / "a").mkdir()
    for tag in ("step_1", "step_2"):
        remote.has(tag, make_step(scratch / "a"))
    commit, = decisions(scratch, "step_2")
    (scratch / ".ckptfs" / "gone").mkdir()
    (scratch / ".ckptfs" / "gone" / commit.name).write_text("{}")
    equal([one["step"] for one in remote.json("ls")["steps"]], ["step_1"], "ls")
    equal(remote.says("latest"), "step_1\n", "latest")
    remote.fails("export", scratch / "out", url=f"{remote.url}/step_2", said=["was removed there"])
    commit.unlink()
    remote.fails("latest", "--timeout", "2s", said=[commit.name])


def test_export(remote, scratch):
    first, second = make_step(scratch / "0", "rank0", "both"), make_step(scratch / "1", "rank1", "both")
    (first / "rank0").chmod(0o640)
    os.utime(first / "rank0", ns=(10**18 + 1, 10**18 + 1))
    remote.has("step_1", first, second)
    said = remote.json("export", scratch / "all", url=f"{remote.url}/step_1")
    equal((said["step"], said["folder"]), ("step_1", str(scratch / "all")), "what it says")
    true(said["requests"]["gets"] > 0 and said["requests"]["bytes_received"] > 0, f"its cost: {said}")
    equal(content_of(scratch / "all"), content_of(first) | content_of(second), "the union")
    equal((scratch / "all" / "rank0").stat().st_mtime_ns, 10**18 + 1, "a file's time")
    for slot, folder in enumerate((first, second)):
        remote.says("export", scratch / f"slot{slot}", "--slot", str(slot), url=f"{remote.url}/step_1")
        equal(content_of(scratch / f"slot{slot}"), content_of(folder), f"slot {slot}")
    remote.fails("export", scratch / "more", "--slot", "2", url=f"{remote.url}/step_1", code=2, said=["2 slots"])
    remote.fails("export", scratch / "all", url=f"{remote.url}/step_1", said=["is there already"])
    equal(sorted(path.name for path in scratch.iterdir() if path.name != "remote"), ["0", "1", "all", "slot0", "slot1"],
          "nothing else is left")


def test_verify(remote, scratch):
    step = make_step(scratch / "step")
    remote.has("step_1", step)
    remote.has("step_2", step)
    said = remote.json("verify")
    equal([one["step"] for one in said["steps"]], ["step_1", "step_2"], "the steps")
    for one in said["steps"]:
        equal((one["wrong"], one["bytes"]), ([], 3 * MIB + 5 + len(b"asub/small")), "what was read")
    true(said["requests"]["bytes_received"] >= 2 * (3 * MIB + 5), f"its cost: {said}")
    one = remote.json("verify", url=f"{remote.url}/step_1/")
    equal([step["step"] for step in one["steps"]], ["step_1"], "of one step")
    true("GET" in remote.says("verify", "--sample", "50%"), "it says what it cost")


def test_damage_is_found(scratch):
    remote = Remote(f"file://{scratch}/remote")
    (scratch / "remote").mkdir()
    for tag in ("step_1", "step_2", "step_3", "step_4"):
        remote.has(tag, make_step(scratch / "step"))

    def key_of(tag, name):
        path, = (path for path in files_of(scratch / "remote", tag) if path.name == name)
        return str(path.relative_to(scratch / "remote"))

    large, longer = key_of("step_1", "large"), key_of("step_4", "small")
    with open(scratch / "remote" / large, "r+b") as file:
        file.seek(2 * MIB)
        file.write(b"?")
    part, = (scratch / "remote" / ".ckptfs" / "parts" / "step_3").iterdir()
    part.write_bytes(part.read_bytes()[:-1])
    with open(scratch / "remote" / longer, "ab") as file:
        file.write(b"more")
    done = remote.call("verify", "--json")
    equal(done.returncode, 3, f"exit status: {done.stderr}")
    found = {one["step"]: one["wrong"] for one in json.loads(done.stdout)["steps"]}
    equal([tag for tag, wrong in found.items() if wrong], ["step_1", "step_3", "step_4"], "what is damaged")
    true(len(found["step_1"]) == 1 and large in found["step_1"][0] and "chunk 2" in found["step_1"][0], found["step_1"])
    true(".ckptfs/parts/step_3/" in found["step_3"][0], found["step_3"])
    small = len(b"asub/small")
    equal(found["step_4"], [f"{remote.url}/{longer}: it has {small + 4} bytes, and should have {small}"], "another size")
    said = remote.call("verify").stdout
    true("DAMAGED step_1: " in said and "step_2: " in said, said)
    remote.fails("export", scratch / "out", url=f"{remote.url}/step_1", said=[large])
    equal(sorted(path.name for path in scratch.iterdir()), ["remote", "step"], "nothing is left of the export")

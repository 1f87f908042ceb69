"""ckptfs.load of steps in a remote: the same tensors as from the folder, what has to be fetched and no more, or an error."""

import errno
import json
import os
import re
import signal
import subprocess
import tempfile
import types

import pytest

import harness
from acting import Ranks
from checking import equal, true
from collecting import files_of
from mounting import BUILD, MIB, REPOSITORY, Failure, Store, mounted, wait_until
from reading import remote_mount
from seaweed import BUCKET, Proxy, environment
from test_push import QUIET, ckptfs, wait_for

pytestmark = [pytest.mark.builds("venv"), pytest.mark.timeout(600),
              pytest.mark.usefixtures("venv"), pytest.mark.one_mode]

LOADS = REPOSITORY / "tests" / "remote" / "loads.py"
MAKER = BUILD / "helpers" / "remote_step"
BOUND = 1.05  # of the bytes that are needed, in whole chunks
GROUP = Ranks("group_ranks.py")


def act(name, variables=None, **arguments):
    """What loads.py says. It is forked from a process that has loaded torch."""
    given = harness.environment() | (variables or {})
    words = [LOADS, name, json.dumps({key: str(value) if isinstance(value, os.PathLike) else value
                                      for key, value in arguments.items()})]
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as errors:
        process = harness.rank_server().start(words, given, errors, answers=said)
        try:
            code = process.wait(300)
        finally:
            process.kill()
        for text in (said, errors):
            text.seek(0)
        if code != 0:
            raise Failure(f"{name} {arguments}: {said.read()}{errors.read()[-3000:]}")
        return json.load(said)


def put(url, tag, *folders, endpoint=None):
    """Makes a committed step of these folders, one for each slot. Returns its address."""
    words = [MAKER, url, tag, *folders, *(["--endpoint", endpoint] if endpoint else [])]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, env=environment(), timeout=200,
                          check=False)
    equal(done.returncode, 0, f"remote_step: {done.stderr}")
    return f"{url}/{done.stdout.strip()}"


@pytest.fixture
def remote(scratch):
    (scratch / "remote").mkdir()
    return f"file://{scratch}/remote"


@pytest.fixture
def trainer_step(scratch):
    act("make", folder=scratch / "checkpoint-1", kind="trainer")
    return scratch / "checkpoint-1"


def is_same(local, url, **more):
    said = act("compare", local=local, url=url, **more)
    equal(said["differ"], [], f"tensors of {url} that differ from those of {local}")
    true(said["tensors"] > 4, f"how many there are: {said}")
    return said["log"]


@pytest.mark.long
def test_what_a_mount_has_pushed(fresh_disk, work, scratch, remote, mode):
    with mounted(Store(fresh_disk / "store"), work / "mnt", mode=mode, options=QUIET) as mount:
        steps = mount.path / "steps"
        harness.run_trainer(types.SimpleNamespace(work=scratch), "trainer", steps, 1, "--width", "128", "--layers", "2")
        for kind, tag in (("saver", "step_2"), ("dcp", "step_3"), ("trainer", "checkpoint-4")):
            act("make", folder=steps / tag, kind=kind)
        print(ckptfs("remote", "add", remote, steps))
        for tag in ("checkpoint-1", "step_2", "step_3", "checkpoint-4"):
            wait_for(steps / tag, "committed")
            is_same(steps / tag, f"{remote}/{tag}")


@pytest.mark.long
def test_into_tensors_that_are_there(remote, trainer_step):
    url = put(remote, "checkpoint-1", trainer_step)
    equal(act("load_into", local=trainer_step, url=url), [], "what differs")
    equal(act("forked", url=url), 0, "a child of fork")
    equal(act("wrong_call"), "TypeError", "what a call raises on the other thread")


def test_only_what_is_needed_is_fetched(remote, scratch):
    step = scratch / "checkpoint-1"
    act("make", folder=step, kind="trainer", rows=12 * 1024)
    said = act("weights", url=put(remote, "checkpoint-1", step), local=step)
    print(said)
    for read, needed in (("read", "needed"), ("few_read", "few_needed")):
        true(said[read] <= BOUND * said[needed], f"fetched at most {BOUND} of what is needed: {said}")
    true(said["received"] <= BOUND * said["needed"] + 4 * MIB, f"with the headers of the other files: {said}")
    true(said["straight"] > said["needed"] / 3, f"large tensors go straight to where they belong: {said}")
    equal(said["checked"], said["read"], "bytes that were compared")


@pytest.mark.long
def test_from_s3(server, trainer_step):
    url = put(f"s3://{BUCKET}/loads", "checkpoint-1", trainer_step, endpoint=server.endpoint)
    variables = {name: value for name, value in environment().items() if name.startswith("AWS_")}
    is_same(trainer_step, url, variables=variables | {"AWS_ENDPOINT_URL": server.endpoint})
    wrong = variables | {"AWS_ENDPOINT_URL_S3": server.endpoint, "AWS_SECRET_ACCESS_KEY": "wrong"}
    number, words, _ = act("fails", url=url, variables=wrong)
    equal((number, "SignatureDoesNotMatch" in words), (errno.EACCES, True), words)
    with Proxy(server.ports[3]) as proxy:
        proxy.become("hang")
        number, words, seconds = act("fails", url=url, timeout=3,
                                     variables=variables | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}"})
        true(number != 0 and seconds < 30, f"a server that hangs, after {seconds} s: {words}")


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_from_pretrained_by_eight(remote, scratch):
    """All of them load the model from the view in a remote mount. What they need is fetched once."""
    step, own = scratch / "checkpoint-1", scratch / "own"
    act("model", folder=step, own=own)
    put(remote, "checkpoint-1", step)
    words = [str(harness.python()), str(REPOSITORY / "tests" / "deepspeed" / "pretrained.py"), "load"]

    def start(folder):
        return subprocess.Popen([*words, str(folder), "float32"], stdout=subprocess.PIPE, text=True, env=harness.environment())

    def outcome(process):
        said = process.communicate(timeout=800)[0]
        equal(process.returncode, 0, "the exit code of from_pretrained")
        return json.loads(said.splitlines()[-1])

    truth = outcome(start(own))
    with remote_mount(remote, scratch / "mnt") as mount:
        readers = [start(mount.path / "views" / "checkpoint-1") for _ in range(8)]
        for reader in readers:
            equal(outcome(reader), truth, "the model")
        needed = (step / "model.safetensors").stat().st_size
        true(mount.fetched() <= BOUND * needed + 4 * MIB, f"{mount.fetched()} bytes for {needed}")


INTERRUPTED = """\
import signal, sys, ckptfs
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where whoever runs the tests ignores it
def interrupted(act):
    try:
        return act()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        sys.stdin.readline()
        return act()
def opened():
    return ckptfs.Checkpoint(sys.argv[1], timeout=600)
checkpoint = interrupted(opened)
into = checkpoint.make_tensors(None, "cpu")
print("open", flush=True)
sys.stdin.readline()
interrupted(lambda: checkpoint.load(into))
print(all(tensor.any() for tensor in into.values()))
"""


@pytest.mark.long
def test_ctrl_c(server, trainer_step):
    """It ends an open and a load that wait for a remote, and the next one is right."""
    url = put(f"s3://{BUCKET}/interrupted", "checkpoint-1", trainer_step, endpoint=server.endpoint)
    with Proxy(server.ports[3]) as link:
        credentials = {name: value for name, value in environment().items() if name.startswith("AWS_")}
        variables = harness.environment() | credentials | {
            "PYTHONPATH": str(REPOSITORY / "gpu" / "python"), "AWS_ENDPOINT_URL": f"http://127.0.0.1:{link.port}"}
        link.become("hang")
        seen = link.seen
        reader = subprocess.Popen([str(harness.python()), "-c", INTERRUPTED, url], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, text=True, env=variables)
        try:
            for then in ("open", "True"):
                wait_until("it waits for the remote", lambda seen=seen: link.seen > seen, 100)
                reader.send_signal(signal.SIGINT)
                equal(reader.stdout.readline().strip(), "interrupted", f"before {then}")
                link.become()
                print(file=reader.stdin, flush=True)
                equal(reader.stdout.readline().strip(), then, "the next try")
                if then == "open":
                    link.become("hang")
                    seen = link.seen
                    print(file=reader.stdin, flush=True)
            equal(reader.wait(60), 0, "its exit code")
        finally:
            reader.kill()
            reader.wait()


def test_of_a_folder_in_a_remote_mount(remote, scratch, trainer_step):
    """It is read from the remote, and a file in it through the mount."""
    put(remote, "checkpoint-1", trainer_step)
    with remote_mount(remote, scratch / "mnt") as mount:
        for name in ("checkpoint-1", "@0/checkpoint-1"):
            log = is_same(trainer_step, mount.path / name)
            true(f"{remote}/{name}: " in log, f"from the remote: {log}")
        equal(mount.fetched(), 0, "bytes that the mount has fetched")
        is_same(trainer_step / "model.safetensors", mount.path / "checkpoint-1" / "model.safetensors")
        true(mount.fetched() > 0, "a file goes through the mount")


@pytest.mark.long
def test_of_a_folder_in_a_mount_of_s3(server, scratch, trainer_step):
    """The mount says where the server is. Without credentials the mount is read."""
    url = put(f"s3://{BUCKET}/mounted", "checkpoint-1", trainer_step, endpoint=server.endpoint)
    with remote_mount(url.rpartition("/")[0], scratch / "mnt", "--endpoint", server.endpoint, env=environment()) as mount:
        variables = {name: value for name, value in environment().items() if name.startswith("AWS_")}
        log = is_same(trainer_step, mount.path / "checkpoint-1", variables=variables)
        true(f"{url}: " in log and mount.fetched() == 0, f"from the remote: {log}")
        log = is_same(trainer_step, mount.path / "checkpoint-1", variables={"AWS_EC2_METADATA_DISABLED": "true"})
        true("read through the mount, not from s3://" in log and "no credentials" in log, f"through the mount: {log}")
        true(mount.fetched() > 0, "the mount has fetched")


@pytest.mark.long
def test_what_a_slot_has(remote, scratch):
    for slot in (0, 1):
        act("make", folder=scratch / f"slot{slot}" / "checkpoint-1", kind="trainer", seed=slot)
        folder = scratch / f"slot{slot}" / "checkpoint-1"
        (folder / "model.safetensors").rename(folder / f"model{slot}.safetensors")
        (folder / "optimizer.pt").unlink()
    url = put(remote, "checkpoint-1", scratch / "slot0" / "checkpoint-1", scratch / "slot1" / "checkpoint-1")
    for slot in (0, 1):
        is_same(scratch / f"slot{slot}" / "checkpoint-1", f"{remote}/@{slot}/checkpoint-1")
    number, words, _ = act("fails", url=f"{remote}/@2/checkpoint-1")
    equal((number, "slots 0 to 1" in words), (errno.ENOENT, True), words)
    true(url.startswith("file://"), url)


@pytest.mark.long
def test_a_step_that_is_not_there(remote, trainer_step):
    put(remote, "checkpoint-1", trainer_step)
    for url, said in ((f"{remote}/checkpoint-2", "no committed step checkpoint-2"), (f"{remote}/checkpoint-1~2", "no committed"),
                      (f"{remote}/none/checkpoint-1", "there is no folder"), (f"{remote}/checkpoint-1/none", "")):
        number, words, seconds = act("fails", url=url)
        equal((number, said in words), (errno.ENOENT, True), f"{url}: {words}")
        true(seconds < 20, f"{url}: {seconds} s")
    for url in ("s3://bucket", "s3://key:secret@bucket/run7/step_1"):
        number, words, _ = act("fails", url=url)
        equal((number, "secret@" in words), (errno.EINVAL, False), f"{url}: {words}")


def test_a_flipped_byte_is_found(remote, scratch):
    """Wherever it is: in a tensor, or in what tells where the tensors are."""
    act("make", folder=scratch / "steps" / "step_1", kind="saver")
    url = put(remote, "step_1", scratch / "steps" / "step_1")
    file, = (path for path in files_of(scratch / "remote", "step_1") if path.name.endswith(".safetensors"))
    key, size = str(file.relative_to(scratch / "remote")), file.stat().st_size
    true(size > 64 * MIB, f"it was put in pieces: {size}")
    for at in (2000, size // 2, 64 * MIB, size - 1):
        flip(file, at)
        number, words, _ = act("fails", url=url)
        for said in (key, f"rank00.safetensors: chunk {at // MIB}"):
            equal((number, said in words), (errno.EIO, True), f"byte {at}: {words}")
        flip(file, at)
    equal(act("fails", url=url)[1], "it was loaded", "after all was put right")
    file.rename(scratch / "away")
    number, words, _ = act("fails", url=url, timeout=3)
    true(number in (errno.ENOENT, errno.EIO) and key in words, f"no file: {words}")


def flip(path, at):
    with open(path, "r+b") as file:
        file.seek(at)
        right = file.read(1)
        file.seek(at)
        file.write(bytes([right[0] ^ 1]))


def test_written(remote, trainer_step):
    """What docs/loading.md has is run as it stands there, but for the address."""
    put(remote, "global_step100", trainer_step)
    text = (REPOSITORY / "docs" / "loading.md").read_text()
    section = re.search(r"^## Load from a remote\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)[1]
    lines = [line[4:] for line in section.splitlines() if line.startswith("    ")]
    true(len(lines) > 3, f"examples: {lines}")
    code = re.sub(r"s3://bucket/run7|file:///lustre/run7", remote, "\n".join(lines))
    equal(act("run", code=code), [], "what was not loaded")


def test_a_group(remote, scratch):
    series = scratch / "steps"
    series.mkdir()
    truth = GROUP.do(2, [{"act": "save", "to": str(series / "step_1"), "seed": 1}], scratch / "saved")[0]
    url = put(remote, "step_1", series / "step_1")
    modes = ("each", "broadcast", "auto")
    acts = [{"act": "load", "of": url, "mode": mode} for mode in modes]
    for mode, got in zip(modes, GROUP.do(2, acts, scratch / "loaded"), strict=True):
        equal(got, truth, f"what was loaded by {mode}")

"""Steps that leave the machine: pushed by mounts, committed whole, and read back without one."""

import contextlib
import errno
import json
import os
import shutil
import subprocess
import time

import pytest

from checking import equal, noise, raises, true, write
from mounting import CKPTFS, MIB, Store, mounted, run, wait_until
from seaweed import BUCKET, environment

pytestmark = [pytest.mark.timeout(300), pytest.mark.one_mode]

QUIET = ("quiet=1s",)
PIECE = 64 * MIB  # of a larger file
OF_A_STEP = 5  # puts beside its files: that the push begins, the part, the commit, and 2 to see what the server checks
STATE, ERROR = "user.ckptfs.remote.state", "user.ckptfs.remote.error"


def ckptfs(*words, check=True):
    """Returns what it prints."""
    done = subprocess.run([CKPTFS, *map(str, words)], capture_output=True, text=True, timeout=120, check=False)
    if check:
        equal(done.returncode, 0, f"ckptfs {' '.join(map(str, words))}: {done.stdout}{done.stderr}")
    return done.stdout if check else done


def state_of(step):
    return os.getxattr(step, STATE).decode()


def status_of(series):
    return json.loads(ckptfs("remote", "status", "--json", series))["remotes"][0]


def seen_bytes(step):
    """How large the mount saw the step when it looked at it last."""
    return next(one["bytes"] for one in status_of(step.parent)["steps"] if one["tag"] == step.name)


def wait_for(step, state, seconds=60):
    wait_until(f"{step.parent.name}/{step.name} is {state}", lambda: state_of(step).startswith(state), seconds, 0.1)


def content(size, seed):
    """Bytes without a pattern, as many as one likes."""
    piece = 32 * MIB
    return b"".join(noise(min(piece, size - at), seed * 1000 + at // piece) for at in range(0, size, piece))


def fill(step, seed=1, size=5 * MIB + 123, files=("weights.bin", "sub/optimizer.pt", "empty")):
    """A checkpoint that no reader knows: any folder with a step's name is pushed."""
    for at, name in enumerate(files):
        file = step / name
        file.parent.mkdir(parents=True, exist_ok=True)
        write(file, b"" if name == "empty" else content(size, seed + at))
    (step / "link").symlink_to(files[0])


def agree(attempt, *steps):
    """As ckptfs.patch does on each node once all ranks have written: they call what they have saved so."""
    for step in steps:
        os.setxattr(step, "user.ckptfs.attempt", attempt.encode())


def arrived(store, size):
    """Bytes of a large file's pieces that are there, as the journal of its push says. `size`: of the file."""
    numbers = set()
    for journal in (store.folder / "remote").glob("*.journal"):
        for line in journal.read_text().splitlines():
            with contextlib.suppress(ValueError):  # it is being written
                numbers.add(json.loads(line).get("piece", 0))
    return sum(min(PIECE, size - (number - 1) * PIECE) for number in numbers if number > 0)


def tree(folder):
    """What a folder holds: names, kinds, modes, times, contents."""
    found = {}
    for path in sorted(folder.rglob("*")):
        stat = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        times = stat.st_mtime_ns if path.is_file() and not path.is_symlink() else None
        found[str(path.relative_to(folder))] = (oct(stat.st_mode), stat.st_uid, times, content)
    return found


@pytest.fixture
def remote(scratch):
    """A new folder for a remote. What comes back lies beside it."""
    made = scratch / "remote"
    made.mkdir()
    return made


@contextlib.contextmanager
def node(disk, work, name, mode, **settings):
    with mounted(Store(disk / name), work / f"mnt-{name}", mode=mode, options=QUIET, **settings) as mount:
        yield mount


def test_a_step_leaves_and_comes_back(fresh_disk, work, scratch, remote, mode):
    url = f"file://{remote}"
    with node(fresh_disk, work, "one", mode) as mount:
        steps = mount.path / "steps"
        print(ckptfs("remote", "add", url, steps))
        step = steps / "global_step1"
        fill(step, files=("pytorch_model.bin", "sub/optimizer.pt", "empty"))
        before = tree(step)
        wait_for(step, "committed global_step1")
        with raises(errno.ENODATA, what="there is no error"):
            os.getxattr(step, ERROR)
        equal(ckptfs("remote", "latest", url).strip(), "global_step1", "latest")
        ckptfs("remote", "export", f"{url}/global_step1", scratch / "out")
        equal(tree(scratch / "out"), before, "what came back")
        listed = ckptfs("ls", steps)
        true("committed global_step1" in listed, f"ls tells: {listed}")
        # A change becomes another step there. The first one stays.
        write(step / "pytorch_model.bin", noise(MIB, 77))
        wait_until("the change is seen", lambda: not state_of(step).startswith("committed"), 20, 0.05)
        wait_for(step, "committed global_step1~2")
        ckptfs("remote", "export", f"{url}/global_step1~2", scratch / "again")
        equal(tree(scratch / "again"), tree(step), "the change came back")
        shutil.rmtree(scratch / "out")
        ckptfs("remote", "export", f"{url}/global_step1", scratch / "out")
        equal(tree(scratch / "out"), before, "the first one")
        print(ckptfs("remote", "status", steps))
        print(ckptfs("remote", "verify", url))


@pytest.mark.one_mode
def test_what_is_there_is_not_sent_again(fresh_disk, work, scratch, remote, mode):
    url = f"file://{remote}"
    with node(fresh_disk, work, "two", mode) as mount:
        steps = mount.path / "steps"
        ckptfs("remote", "add", url, steps)
        for number in (1, 2):
            step = steps / f"global_step{number}"
            fill(step, files=("frozen.bin", f"new{number}.bin", "empty"), seed=1)
            write(step / "changed.bin", noise(2 * MIB, 100 + number))
            wait_for(step, "committed")
        second = next(one for one in status_of(steps)["steps"] if one["tag"] == "global_step2")
        equal(second["copied"], 5 * MIB + 123, "frozen.bin was copied there")
        equal(second["sent"], 7 * MIB + 123, "only the rest was sent")
        # A restart compares, and sends nothing.
        mount.stop()
        mount.start()
        wait_for(steps / "global_step2", "committed")
        equal(status_of(steps)["sent"], 0, "sent after a restart")


def test_two_nodes_make_one_step(fresh_disk, work, scratch, remote, mode):
    """Node-local storage: each node has its own ranks' files, and only one has those of rank 0."""
    url = f"file://{remote}"
    with node(fresh_disk, work, "a", mode) as first, node(fresh_disk, work, "b", mode) as second:
        for slot, mount in enumerate((first, second)):
            ckptfs("remote", "add", url, mount.path / "steps", "--slot", f"{slot}/2")
        one, other = (mount.path / "steps" / "checkpoint-7" for mount in (first, second))
        fill(one, files=("weights.bin", "shared.json", "rank0.bin"))
        agree("a1", one)
        wait_for(one, "waiting for slot 1")
        true(ckptfs("remote", "latest", url, check=False).returncode == 1, "half a step is none")
        other.mkdir()
        shutil.copy2(one / "shared.json", other)
        write(other / "rng_state_1.pth", noise(MIB, 9))
        agree("a1", other)
        for step in (one, other):
            wait_for(step, "committed checkpoint-7")
        for slot, step in enumerate((one, other)):
            ckptfs("remote", "export", f"{url}/checkpoint-7", scratch / f"slot{slot}", "--slot", slot)
            equal(tree(scratch / f"slot{slot}"), tree(step), f"slot {slot}")
        ckptfs("remote", "export", f"{url}/checkpoint-7", scratch / "whole")
        equal(tree(scratch / "whole"), tree(one) | tree(other), "the union")


@pytest.mark.one_mode
def test_a_step_that_is_renamed(fresh_disk, work, remote, mode):
    """Under its new name it is another step there. What was removed or moved away is waited for no more."""
    with node(fresh_disk, work, "renamed", mode) as mount:
        steps = mount.path / "steps"
        ckptfs("remote", "add", f"file://{remote}", steps)
        fill(steps / "global_step1", size=MIB)
        wait_for(steps / "global_step1", "committed global_step1")
        (steps / "global_step1").rename(steps / "global_step2")
        wait_until("it is pushed again", lambda: state_of(steps / "global_step2") == "committed global_step2", 60, 0.1)
        equal(status_of(steps)["sent"], 2 * MIB, "nothing is sent twice")
        remote.rename(remote.with_name("away"))
        fill(steps / "global_step3", size=MIB)
        wait_until("it waits", lambda: status_of(steps)["oldest_unpushed_seconds"] is not None, 30, 0.1)
        (steps / "global_step3").rename(mount.path / "kept")
        wait_until("nothing waits", lambda: status_of(steps)["oldest_unpushed_seconds"] is None, 60, 0.1)
        remote.with_name("away").rename(remote)


@pytest.mark.one_mode
def test_requests_are_few(fresh_disk, work, remote, mode):
    """They cost money: one for each 64 MiB or smaller file, two for a larger one, and a few for the step."""
    size = 130 * MIB
    with node(fresh_disk, work, "few", mode) as mount:
        steps = mount.path / "steps"
        ckptfs("remote", "add", f"file://{remote}", steps)
        fill(steps / "global_step1", size=size, files=("weights.bin", "empty"))
        wait_for(steps / "global_step1", "committed")
        puts = status_of(steps)["puts"]
        of_files = 3 + 2 + 1
        true(puts <= of_files + OF_A_STEP, f"{puts} puts for {size} bytes")


@pytest.mark.one_mode
def test_by_hand_only(fresh_disk, work, scratch, remote, mode):
    url = f"file://{remote}"
    with node(fresh_disk, work, "hand", mode) as mount:
        steps = mount.path / "steps"
        ckptfs("remote", "add", url, steps)
        ckptfs("policy", steps, "--set", "push=manual")
        for number in (1, 2):
            fill(steps / f"global_step{number}")
        time.sleep(3)
        equal(state_of(steps / "global_step1"), "unpushed", "nothing is pushed by itself")
        print(ckptfs("push", "--wait", steps / "global_step1"))
        equal(ckptfs("remote", "latest", url).strip(), "global_step1", "the one that was pushed")
        equal(state_of(steps / "global_step2"), "unpushed", "the other one")
        ckptfs("remote", "remove", steps)
        with raises(errno.ENODATA, what="no remote, no state"):
            os.getxattr(steps / "global_step2", STATE)
        done = ckptfs("push", steps / "global_step2", check=False)
        true(done.returncode != 0 and "ckptfs remote add" in done.stderr, f"says what to do: {done.stderr}")


@pytest.mark.one_mode
def test_what_is_pushed_late_does_not_become_the_newest(fresh_disk, work, remote, mode):
    """The link was down for a while: the newest step goes first, then those before it. A resume wants the newest."""
    url = f"file://{remote}"
    with node(fresh_disk, work, "a", mode) as mount:
        series = mount.path / "steps"
        for number in (1, 2, 3):
            fill(series / f"global_step{number}", number)
            time.sleep(0.05)  # so that their times differ
        ckptfs("remote", "add", url, series)
        for number in (3, 2, 1):
            wait_for(series / f"global_step{number}", "committed")
        listed = [one["step"] for one in json.loads(ckptfs("remote", "ls", "--json", url))["steps"]]
        equal(listed, [f"global_step{number}" for number in (1, 2, 3)], "their order")
        equal(ckptfs("remote", "latest", url).strip(), "global_step3", "latest")


def test_the_newest_unpushed_steps_stay(fresh_disk, work, scratch, remote, mode):
    """A link that is dead does not fill the disk, and the last two are safe."""
    url = f"file://{remote}"
    with node(fresh_disk, work, "hold", mode) as mount:
        steps = mount.path / "steps"
        ckptfs("remote", "add", url, steps)
        remote.rename(scratch / "away")
        fill(steps / "global_step0")
        ckptfs("policy", steps, "--set", "keep_last=1", "--set", "keep_partial=1s")
        for number in range(1, 6):
            step = steps / f"global_step{number}"
            step.mkdir()
            write(step / "model_states.pt", noise(MIB, number))
            os.setxattr(step, "user.ckptfs.seal", b"1")
            time.sleep(1.2)
        wait_until("older ones obey the rules",
                   lambda: {entry.name for entry in steps.iterdir() if "step" in entry.name} ==
                   {"global_step0", "global_step4", "global_step5"}, 60, 0.2)
        wait_until("the error is told", lambda: ERROR in errors_of(steps / "global_step5"), 60, 0.2)
        (scratch / "away").rename(remote)
        for number in (4, 5):
            step = steps / f"global_step{number}"
            wait_until(f"step {number} is committed, or a rule has removed it after that",
                       lambda step=step: not step.exists() or state_of(step).startswith("committed"), 120, 0.2)
        listed = json.loads(ckptfs("remote", "ls", "--json", url))
        print(listed)
        true({"global_step4", "global_step5"} <= {one["step"] for one in listed["steps"]}, "both are there")


def errors_of(step):
    try:
        os.getxattr(step, ERROR)
    except OSError:
        return ()
    return (ERROR,)


@pytest.mark.one_mode
def test_strangers(fresh_disk, work, scratch, remote, mode):
    """Who did not mount it gives no series a remote, and a series has one."""
    with node(fresh_disk, work, "strange", mode) as mount:
        steps = mount.path / "steps"
        steps.chmod(0o777)
        done = run("setpriv", "--reuid=12345", "--clear-groups", CKPTFS, "remote", "add", f"file://{remote}", steps,
                   check=False)
        true(done.returncode != 0 and "who mounted it" in done.stderr, f"refused: {done.stderr}")
        for name in ("one", "two"):
            (scratch / name).mkdir()
        ckptfs("remote", "add", f"file://{scratch}/one", steps, "--slot", "1/2")
        done = ckptfs("remote", "add", f"file://{scratch}/two", steps, check=False)
        true(done.returncode != 0 and "remote remove" in done.stderr, f"has one already: {done.stderr}")
        done = ckptfs("remote", "add", f"file://{scratch}/one", steps, "--slot", "0/3", check=False)
        true(done.returncode != 0 and "2" in done.stderr, f"has another number of slots: {done.stderr}")
        mount.stop()
        mount.start()
        status = status_of(steps)
        equal((status["slot"], status["slots"]), (1, 2), "known after a restart")


@pytest.mark.builds("venv")
@pytest.mark.one_mode
def test_an_s3_store(fresh_disk, work, scratch, mode, server, monkeypatch):
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    url = f"s3://{BUCKET}/push-{mode}"
    with node(fresh_disk, work, "s3", mode) as mount:
        steps = mount.path / "steps"
        ckptfs("remote", "add", url, steps, "--endpoint", server.endpoint)
        step = steps / "global_step3"
        fill(step, size=70 * MIB, files=("weights.bin", "sub/optimizer.pt", "empty"))
        wait_for(step, "committed", 120)
        ckptfs("remote", "export", f"{url}/global_step3", scratch / "from-s3", "--endpoint", server.endpoint)
        equal(tree(scratch / "from-s3"), tree(step), "what came back")
        with open(f"/proc/{mount.pid}/cmdline", "rb") as words:
            true(b"secret" not in words.read(), "no secret in the process list")
        true("secret" not in mount.read_log(), "nor in the log")

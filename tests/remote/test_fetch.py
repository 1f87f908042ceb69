"""`ckptfs fetch`: steps come back from a remote as ordinary steps, whole or not at all."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time

import pytest

from calling import status_is
from checking import equal, true, write
from collecting import decisions, files_of
from mounting import BUILD, CKPTFS, GIB, MIB, Mount, Store, mounted, run, unmount, wait_until, xfs
from test_push import QUIET, agree, ckptfs, content, fill, state_of, status_of, tree, wait_for

pytestmark = [pytest.mark.timeout(300), pytest.mark.one_mode]

MAKER = BUILD / "helpers" / "remote_step"


@contextlib.contextmanager
def node(disk, work, name, mode, options=QUIET):
    with mounted(Store(disk / name), work / f"mnt-{name}", mode=mode, options=options) as mount:
        yield mount


@pytest.fixture
def remote(scratch):
    made = scratch / "remote"
    made.mkdir()
    return made


def has(remote, tag, *folders):
    """Makes a committed step of these folders, one for each slot, without a mount."""
    done = subprocess.run([MAKER, f"file://{remote}", tag, *folders], capture_output=True, text=True, timeout=100,
                          check=False)
    equal(done.returncode, 0, f"remote_step: {done.stderr}")
    return done.stdout.strip()


def make(folder, **options):
    """Files alone, as the helper knows them."""
    fill(folder, **options)
    (folder / "link").unlink()


def fetch(*words):
    """Returns what it says as JSON."""
    return json.loads(ckptfs("fetch", "--json", *words))


def fails(*words, said=(), code=1):
    status_is(ckptfs("fetch", *words, check=False), code, *said)


def partial_in(series):
    return [path for path in series.iterdir() if path.name.startswith("partial-")]


def same_tree(folder, wanted, what):
    """Also the times and modes of the folders."""
    equal(tree(folder), wanted, what)


def test_a_step_comes_back(fresh_disk, work, remote, mode):
    """On a machine that never had it, and takes the place of the first. What is there already is not fetched a second time."""
    with node(fresh_disk, work, "first", mode) as mount:
        steps = mount.path / "steps"
        ckptfs("remote", "add", f"file://{remote}", steps)
        step = steps / "global_step1"
        fill(step, files=("model_states.pt", "sub/optimizer.pt", "empty"))
        (step / "sub").chmod(0o750)
        os.utime(step / "sub", ns=(10**18, 10**18))
        before, times = tree(step), [path.lstat().st_mtime_ns for path in (step, step / "sub", step / "link")]
        wait_for(step, "committed")
    with node(fresh_disk, work, "second", mode) as mount:
        steps = mount.path / "steps"
        ckptfs("remote", "add", f"file://{remote}", steps, "--take-over")
        said = fetch("global_step1", steps)
        equal((said["step"], said["was_there"], said["shared"], said["found"]),
              (str(steps / "global_step1"), False, 0, 0), "what it says")
        equal(said["fetched"], 2 * (5 * MIB + 123), "bytes")
        step = steps / "global_step1"
        same_tree(step, before, "what came back")
        equal([path.lstat().st_mtime_ns for path in (step, step / "sub", step / "link")], times, "times of folders")
        equal(partial_in(steps), [], "nothing is left")
        true("is there already" in ckptfs("fetch", "global_step1", steps), "a second time")
        # It is pushed no more, and after a restart neither.
        wait_for(step, "committed global_step1")
        equal((status_of(steps)["sent"], status_of(steps)["pushed"]), (0, 0), "what was pushed")
        mount.stop()
        mount.start()
        wait_for(step, "committed global_step1")
        equal(status_of(steps)["pushed"], 0, "pushed after a restart")
        equal(ckptfs("remote", "latest", f"file://{remote}").strip(), "global_step1", "latest")
        same_tree(step, before, "after a restart")
        # It is an ordinary step: a change is pushed.
        write(step / "sub" / "more", b"more")
        wait_for(step, "committed global_step1~2")


@pytest.mark.one_mode
def test_deepspeed_is_told_which_step_to_take(fresh_disk, work, scratch, remote, mode):
    """Without `latest` it would start from the beginning."""
    folder = scratch / "made"
    make(folder, files=("mp_rank_00_model_states.pt",))
    has(remote, "global_step7", folder)
    with node(fresh_disk, work, "told", mode) as mount:
        steps = mount.path / "steps"
        ckptfs("remote", "add", f"file://{remote}", steps)
        said = ckptfs("fetch", "global_step7", steps)
        true(f"printf %s global_step7 >{steps}/latest" in said, said)
        write(steps / "latest", b"global_step7")
        true("latest" not in ckptfs("fetch", "global_step7", steps), "it is told again")


def test_slots(fresh_disk, work, scratch, remote, mode):
    first, second = scratch / "0", scratch / "1"
    make(first, files=("rank0.bin", "both"), seed=1)
    make(second, files=("rank1.bin",), seed=9)
    shutil.copy2(first / "both", second / "both")
    has(remote, "global_step7", first, second)
    with node(fresh_disk, work, "slots", mode) as mount:
        steps, others = mount.path / "steps", mount.path / "others"
        others.mkdir()
        url = f"file://{remote}/global_step7"
        fails("--slot", "2", url, steps, said=["2 slots"], code=2)
        fetch("--slot", "1", url, steps)
        same_tree(steps / "global_step7", tree(second), "slot 1")
        fails("--slot", "0", url, steps, said=["global_step7 is there already, and differs at"])
        same_tree(steps / "global_step7", tree(second), "slot 1, still")
        fetch(url, others)
        same_tree(others / "global_step7", tree(first) | tree(second), "the union")
        # The series of both slots: what came as slot 1's is slot 1's, and the union is not pushed either.
        ckptfs("remote", "add", f"file://{remote}", steps, "--slot", "1/2")
        wait_for(steps / "global_step7", "committed global_step7")
        ckptfs("remote", "remove", steps)
        ckptfs("remote", "add", f"file://{remote}", others, "--slot", "0/2")
        wait_for(others / "global_step7", "committed global_step7")
        equal(status_of(others)["pushed"], 0, "what was pushed")


@pytest.mark.one_mode
def test_a_later_commit_has_the_same_name_here(fresh_disk, work, scratch, remote, mode):
    """And an earlier one that is fetched does not become the newest there."""
    made, wanted = scratch / "made", {}
    for name in ("global_step3", "global_step3~2"):
        shutil.rmtree(made, ignore_errors=True)
        make(made, seed=len(wanted) + 1)
        equal(has(remote, "global_step3", made), name, "its name")
        wanted[name] = tree(made)
    with node(fresh_disk, work, "later", mode) as mount:
        steps = mount.path / "steps"
        ckptfs("remote", "add", f"file://{remote}", steps)
        for name in wanted:
            said = fetch(name, steps)
            equal((said["name"], said["step"]), (name, str(steps / "global_step3")), "what it says")
            same_tree(steps / "global_step3", wanted[name], name)
            wait_until(f"it is {name}", lambda name=name: state_of(steps / "global_step3") == f"committed {name}", 60)
            shutil.rmtree(steps / "global_step3")
        equal(ckptfs("remote", "latest", f"file://{remote}").strip(), "global_step3~2", "latest")


@pytest.mark.one_mode
def test_what_is_refused(fresh_disk, work, scratch, remote, mode):
    make(scratch / "made")
    has(remote, "global_step1", scratch / "made")
    url = f"file://{remote}/global_step1"
    with node(fresh_disk, work, "refused", mode) as mount:
        steps = mount.path / "steps"
        fails("global_step1", steps, said=["no series with a remote", "URL/TAG"], code=2)
        fails(url, mount.path / "none", said=["No such file"])
        fails(url, scratch, said=[str(scratch)])
        fails(f"file://{remote}/global_step2", steps, said=["no committed step global_step2"])
        step = steps / "global_step1"
        fill(step, seed=4, files=("model_states.pt",))
        before = tree(step)
        fails(url, steps, said=["global_step1 is there already, and differs at", "remove or rename it"])
        fails(url, step, said=["it is a step"], code=2)
        same_tree(step, before, "the step that was there")
        equal(partial_in(steps), [], "nothing is left")
        commit, = decisions(remote, "global_step1")
        gone = remote / ".ckptfs" / "gone" / commit.name
        gone.parent.mkdir()
        gone.write_text("{}")
        fails(url, steps, said=["was removed there"])
        shutil.rmtree(remote / ".ckptfs" / "gone")
        shutil.rmtree(step)
        steps.chmod(0o755)
        stranger = run("setpriv", "--reuid=12345", "--clear-groups", CKPTFS, "fetch", url, steps, check=False)
        true(stranger.returncode == 1 and "steps" in stranger.stderr, f"a stranger: {stranger.stderr}")
        mount.stop()
    with node(fresh_disk, work, "refused", mode, options=("ro",)) as mount:
        fails(url, mount.path / "steps", said=["read-only"])


@pytest.mark.one_mode
def test_a_user_fetches(fresh_disk, work, scratch, remote, mode):
    """Into a folder of his own: what he gets is his. Nobody gets a folder that another one has begun."""
    make(scratch / "made")
    has(remote, "global_step1", scratch / "made")
    for path in (scratch, remote):
        run("chmod", "-R", "a+rX", path)
    url = f"file://{remote}/global_step1"
    with node(fresh_disk, work, "user", mode) as mount:
        series = mount.path / "his"
        series.mkdir()
        os.chown(series, 12345, 12345)
        run("setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", CKPTFS, "fetch", url, series)
        step = series / "global_step1"
        equal({(path.lstat().st_uid, path.lstat().st_gid) for path in (step, *step.rglob("*"))}, {(12345, 12345)},
              "owners")
        equal({name: entry[3] for name, entry in tree(step).items()},
              {name: entry[3] for name, entry in tree(scratch / "made").items()}, "contents")
        shutil.rmtree(step)
        partial = begun(url, series)
        os.chown(partial, 12345, 12345)
        fails(url, series, said=["another user began it"])


def begun(url, series):
    """The folder of a fetch that was killed at once."""
    process = subprocess.Popen([CKPTFS, "fetch", url, series], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    wait_until("it has begun", lambda: partial_in(series) or process.poll() is not None, 30, 0.001)
    process.kill()
    process.wait()
    left = partial_in(series)
    if left:
        return left[0]
    shutil.rmtree(series / "global_step1")
    return begun(url, series)


def interrupt_after(signal_number, size, url, series):
    """Ends a fetch when so many bytes lie in its folder. Returns what it printed as error."""
    process = subprocess.Popen([CKPTFS, "fetch", url, series], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
                               text=True)
    def written():
        try:
            return sum(file.stat().st_blocks * 512 for folder in partial_in(series) for file in folder.rglob("*"))
        except OSError:  # it was just renamed
            return size
    wait_until("some of it came", lambda: written() >= size or process.poll() is not None, 60, 0.001)
    process.send_signal(signal_number)
    _, said = process.communicate(timeout=60)
    true(not (series / "global_step1").exists(), f"it was ended in time: {said}")
    return said


def test_an_interrupted_fetch_goes_on(fresh_disk, work, scratch, remote, mode):
    size = 600 * MIB
    make(scratch / "made", size=size, files=("weights.bin", "sub/small", "empty"))
    write(scratch / "made" / "sub" / "small", b"small")
    has(remote, "global_step1", scratch / "made")
    url = f"file://{remote}/global_step1"
    with node(fresh_disk, work, "killed", mode) as mount:
        steps = mount.path / "steps"
        interrupt_after(signal.SIGKILL, 100 * MIB, url, steps)
        equal([path.name for path in steps.iterdir()], [path.name for path in partial_in(steps)], "one folder")
        said = interrupt_after(signal.SIGINT, 300 * MIB, url, steps)
        true("goes on from there" in said and "partial-fetch-" in said, f"what it says: {said}")
        again = fetch(url, steps)
        true(again["found"] >= 200 * MIB and again["fetched"] == size + 5 - again["found"], f"it went on: {again}")
        same_tree(steps / "global_step1", tree(scratch / "made"), "what came")
        equal(partial_in(steps), [], "nothing is left")


@pytest.mark.one_mode
def test_the_daemon_is_killed(fresh_disk, work, scratch, remote, mode):
    """What was written before stays, and is compared."""
    make(scratch / "made", size=600 * MIB, files=("weights.bin",))
    has(remote, "global_step1", scratch / "made")
    url = f"file://{remote}/global_step1"
    mount = Mount(Store(fresh_disk / "daemon"), work / "mnt-daemon", mode=mode, options=QUIET)
    mount.start()
    try:
        steps = mount.path / "steps"
        process = subprocess.Popen([CKPTFS, "fetch", url, steps], stderr=subprocess.PIPE, text=True)
        wait_until("it has begun", lambda: partial_in(steps), 30, 0.001)
        time.sleep(0.1)
        mount.kill()
        _, said = process.communicate(timeout=60)
        equal(process.returncode, 1, f"it fails: {said}")
        run("umount", "-l", mount.path, check=False)
        mount.start()
        true(not (steps / "global_step1").exists(), "half a step is none")
        fetch(url, steps)
        same_tree(steps / "global_step1", tree(scratch / "made"), "what came")
        mount.stop()
    finally:
        if mount.alive():
            mount.kill()
        unmount(mount.path)


def test_what_other_steps_have_is_shared(fresh_disk, work, scratch, remote, mode):
    """A step of which most is here, at the same place of the same files."""
    size = 40 * MIB
    make(scratch / "made", size=size, files=("frozen.bin", "trained.bin"))
    has(remote, "global_step2", scratch / "made")
    with node(fresh_disk, work, "shares", mode) as mount:
        steps = mount.path / "steps"
        shutil.copytree(scratch / "made", steps / "global_step1", symlinks=True)
        write(steps / "global_step1" / "trained.bin", content(size, 77))
        with open(steps / "global_step1" / "frozen.bin", "r+b") as file:
            file.seek(17 * MIB + 5)
            file.write(b"changed")
        write(steps / "global_step1" / "trainer_state.json", b'{"global_step": 1}')  # that it is a step
        said = fetch(f"file://{remote}/global_step2", steps)
        equal((said["shared"], said["fetched"]), (size - MIB, size + MIB), "what was shared")
        same_tree(steps / "global_step2", tree(scratch / "made"), "what came")
        os.sync()
        shared = int(os.getxattr(steps / "global_step2" / "frozen.bin", "user.ckptfs.bytes.shared"))
        true(shared >= size - 2 * MIB, f"{shared} bytes of frozen.bin are shared")
        run(CKPTFS, "verify", steps / "global_step2")


@pytest.mark.one_mode
def test_damage(fresh_disk, work, scratch, remote, mode):
    make(scratch / "made", size=20 * MIB)
    has(remote, "global_step1", scratch / "made")
    object_, = (path for path in files_of(remote, "global_step1") if path.name == "weights.bin")
    whole = object_.read_bytes()
    object_.write_bytes(whole[:9 * MIB] + bytes([whole[9 * MIB] ^ 1]) + whole[9 * MIB + 1:])
    url = f"file://{remote}/global_step1"
    with node(fresh_disk, work, "damage", mode) as mount:
        steps = mount.path / "steps"
        fails(url, steps, said=[f"{object_.parent.name}/weights.bin", "chunk 9", "goes on from there"])
        true(not (steps / "global_step1").exists(), "nothing is published")
        left = partial_in(steps)
        equal(len(left), 1, "what came stays")
        object_.write_bytes(whole)
        true(fetch(url, steps)["found"] > 0, "and is not fetched again")
        same_tree(steps / "global_step1", tree(scratch / "made"), "what came")


@pytest.mark.one_mode
def test_a_full_disk(work, scratch, remote, mode):
    """It is told before anything is fetched, unless most of it is here."""
    size = 150 * MIB
    make(scratch / "made", size=size, files=("frozen.bin",))
    has(remote, "global_step2", scratch / "made")
    url = f"file://{remote}/global_step2"
    with xfs(work, name="small", size=GIB) as disk, node(disk, work, "full", mode) as mount:
        steps = mount.path / "steps"
        shutil.copytree(scratch / "made", steps / "global_step1", symlinks=True)
        free = os.statvfs(mount.path)
        filler = free.f_bavail * free.f_frsize - 100 * MIB
        with open(mount.path / "filler", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, filler)
        (steps / "global_step1").rename(mount.path / "away")
        fails(url, steps, said=["bytes are to be fetched", "make room for"])
        true(not (steps / "global_step2").exists(), "nothing is published")
        (mount.path / "away").rename(steps / "global_step1")
        write(steps / "global_step1" / "trainer_state.json", b'{"global_step": 1}')
        equal(fetch(url, steps)["shared"], size, "all is shared")
        same_tree(steps / "global_step2", tree(scratch / "made"), "what came")


@pytest.mark.one_mode
def test_two_at_once(fresh_disk, work, scratch, remote, mode):
    """One of them fetches it, and the step is whole whatever the other one says."""
    make(scratch / "made", size=100 * MIB)
    has(remote, "global_step1", scratch / "made")
    with node(fresh_disk, work, "twice", mode) as mount:
        steps = mount.path / "steps"
        both = [subprocess.Popen([CKPTFS, "fetch", f"file://{remote}/global_step1", steps], stderr=subprocess.PIPE,
                                 stdout=subprocess.PIPE, text=True) for _ in range(2)]
        outcomes = [(*process.communicate(timeout=100), process.returncode) for process in both]
        true(any(code == 0 for *_, code in outcomes), f"one succeeds: {outcomes}")
        same_tree(steps / "global_step1", tree(scratch / "made"), "what came")


@pytest.mark.one_mode
def test_a_fetch_is_no_run(fresh_disk, work, scratch, remote, mode):
    """Of two slots: a step that waits for the other slot is committed after an older one was fetched. Only who saves
    agrees with others."""
    make(scratch / "0", files=("rank0.bin",), size=200 * MIB)
    make(scratch / "1", files=("rank1.bin",))
    has(remote, "global_step1", scratch / "0", scratch / "1")
    url = f"file://{remote}"
    with node(fresh_disk, work, "a", mode) as first, node(fresh_disk, work, "b", mode) as second:
        for slot, mount in enumerate((first, second)):
            ckptfs("remote", "add", url, mount.path / "steps", "--slot", f"{slot}/2")
        make(first.path / "steps" / "global_step2", files=("rank0.bin",))
        agree("a1", first.path / "steps" / "global_step2")
        wait_for(first.path / "steps" / "global_step2", "waiting for slot 1")
        with subprocess.Popen([CKPTFS, "fetch", "--slot", "0", "global_step1", first.path / "steps"]) as process:
            wait_until("it has begun", lambda: partial_in(first.path / "steps"), 30, 0.001)
            process.send_signal(signal.SIGSTOP)
            time.sleep(2.5)  # what runs for 2 s and writes is a run
            process.send_signal(signal.SIGCONT)
            equal(process.wait(timeout=100), 0, "the fetch")
        wait_for(first.path / "steps" / "global_step1", "committed global_step1")
        make(second.path / "steps" / "global_step2", files=("rank1.bin",), seed=5)
        agree("a1", second.path / "steps" / "global_step2")
        for mount in (first, second):
            wait_for(mount.path / "steps" / "global_step2", "committed global_step2")
        equal(ckptfs("remote", "latest", url).strip(), "global_step2", "latest")


@pytest.mark.one_mode
def test_a_change_on_one_of_two_nodes(fresh_disk, work, scratch, remote, mode):
    """It is not committed with what the other node has fetched. A save by both is."""
    make(scratch / "0", files=("rank0.bin",), seed=1)
    make(scratch / "1", files=("rank1.bin",), seed=2)
    has(remote, "global_step1", scratch / "0", scratch / "1")
    url = f"file://{remote}"
    with node(fresh_disk, work, "a", mode) as first, node(fresh_disk, work, "b", mode) as second:
        steps = [mount.path / "steps" / "global_step1" for mount in (first, second)]
        for slot, step in enumerate(steps):
            ckptfs("remote", "add", url, step.parent, "--slot", f"{slot}/2")
            fetch("--slot", slot, "global_step1", step.parent)
        for step in steps:
            wait_for(step, "committed global_step1")
        write(steps[1] / "rank1.bin", b"changed")
        wait_for(steps[1], "waiting")
        second.remount()
        wait_for(steps[1], "waiting")
        told = next(one for one in status_of(steps[1].parent)["steps"] if one["tag"] == "global_step1")
        true("nobody knows whether the files of slot 0 are of the same save" in told["waits_for"], f"why: {told}")
        time.sleep(3)
        equal(state_of(steps[0]), "committed global_step1", "the other node's")
        equal(len(decisions(remote, "global_step1")), 1, "commits")
        for slot, step in enumerate(steps):
            write(step / f"rank{slot}.bin", b"saved again")
        agree("a2", *steps)
        for step in steps:
            wait_until(f"{step} is the second", lambda step=step: state_of(step) == "committed global_step1~2", 60, 0.1)
        for slot, step in enumerate(steps):
            ckptfs("remote", "export", f"{url}/global_step1~2", scratch / f"again{slot}", "--slot", slot)
            same_tree(scratch / f"again{slot}", tree(step), f"what slot {slot} saved")


def test_steps_that_nobody_may_read(fresh_disk, work, scratch, remote, mode):
    """What is here and cannot be opened is not shared."""
    make(scratch / "made", files=("weights.bin",))
    has(remote, "global_step2", scratch / "made")
    run("chmod", "-R", "a+rX", scratch)
    with node(fresh_disk, work, "secret", mode) as mount:
        series = mount.path / "open"
        series.mkdir()
        series.chmod(0o777)
        shutil.copytree(scratch / "made", series / "global_step1", symlinks=True)
        write(series / "global_step1" / "trainer_state.json", b'{"global_step": 1}')
        (series / "global_step1").chmod(0o700)
        done = run("setpriv", "--reuid=12345", "--clear-groups", CKPTFS, "fetch", "--json",
                   f"file://{remote}/global_step2", series)
        equal(json.loads(done.stdout)["shared"], 0, "what was shared")

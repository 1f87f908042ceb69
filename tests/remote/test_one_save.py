"""A step in a remote is of one save, whichever slots push what, and when; and the newest step is what was saved last."""

import contextlib
import os
import re
import shutil
import time

import pytest

from checking import equal, true, write
from collecting import decisions, files_of, names, push_folders
from mounting import MIB, run as run_command, wait_until
from runs import Run, runs_of, saved
from seaweed import BUCKET, environment
from test_commands import Remote
from test_push import agree, ckptfs, fill, node, seen_bytes, state_of, status_of, wait_for

pytestmark = [pytest.mark.one_mode, pytest.mark.timeout(300)]

TAG = "global_step2"
CLOCK = 2  # seconds: a process that begins so long after a file was written is younger for certain


@pytest.fixture
def place(request, monkeypatch):
    """A new remote: a folder, unless the test says "s3"."""
    if getattr(request, "param", "folder") == "folder":
        return Remote(f"file://{request.getfixturevalue('folder')}")
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    server = request.getfixturevalue("server")
    server.make_bucket()
    name = re.sub("[^a-z0-9]+", "-", request.node.name).strip("-")
    return Remote(f"s3://{BUCKET}/{name}", "--endpoint", server.endpoint)


@pytest.fixture
def run():
    """A training on two nodes. It begins while they are mounted."""
    with Run() as made:
        yield made


@pytest.fixture
def series(run, place, fresh_disk, work, scratch, mode):
    """The series of the two nodes."""
    with node(fresh_disk, work, f"{scratch.name}-a", mode) as first, \
         node(fresh_disk, work, f"{scratch.name}-b", mode) as second:
        made = [mount.path / "steps" for mount in (first, second)]
        for slot, steps in enumerate(made):
            ckptfs("remote", "add", place.url, steps, "--slot", f"{slot}/2", *place.options)
        yield made


@contextlib.contextmanager
def one_node(disk, work, folder, mode):
    """A training on one node, and its series."""
    with Run(1) as run, node(disk, work, folder.parent.name, mode) as mount:
        steps = mount.path / "steps"
        ckptfs("remote", "add", f"file://{folder}", steps)
        yield run, steps


def save(run, series, tag, name, slots=None):
    run.save(series, tag, [saved(name, slot) for slot in range(len(series))], slots)


def are(series, tag, state):
    for steps in series:
        wait_until(f"{tag} of {steps.parent.name}: {state}", lambda step=steps / tag: state_of(step) == state, 90, 0.1)


def words(steps, tag):
    """What `remote status` says of a step that waits."""
    told = next(one["waits_for"] for one in status_of(steps)["steps"] if one["tag"] == tag)
    true(told in ckptfs("remote", "status", steps), f"for people, too: {told}")
    return told


def latest(place):
    return place.says("latest").strip()


def listed(place):
    return names(place.json("ls"))


def there(place, scratch):
    """Of which run each committed step is. None mixes two."""
    found = {}
    for name in listed(place):
        place.says("export", scratch / "out", url=f"{place.url}/{name}")
        runs = sorted(runs_of(scratch / "out"))
        shutil.rmtree(scratch / "out")
        equal(len(runs), 1, f"{name} is of these: {runs}")
        found[name] = runs[0]
    return found


# --- one save


@pytest.mark.parametrize("place, alone", (("folder", 1), ("folder", 0),
                                          pytest.param("s3", 1, marks=(pytest.mark.long, pytest.mark.builds("venv")))),
                         indirect=["place"])
def test_a_run_that_dies_in_its_save(series, run, place, scratch, alone):
    """Run A has saved step 2. Run B saves it again, and dies when one node has written. Then run C saves it on both."""
    save(run, series, TAG, "A")
    time.sleep(CLOCK)
    with Run() as second:
        are(series, TAG, f"committed {TAG}")
        save(second, series, TAG, "B", [alone])
    with Run() as third:
        wait_for(series[alone] / TAG, "waiting" if alone == 1 else "waiting for slot 1")
        told = words(series[alone], TAG)
        wanted = ("of another run", "ckptfs.patch") if alone == 1 else ("slot 1 did not push this save",)
        equal([word for word in wanted if word not in told], [], f"why, and what to do: {told}")
        time.sleep(3)  # some rounds
        wait_for(series[1 - alone] / TAG, f"committed {TAG}")
        equal(state_of(series[alone] / TAG).split()[0], "waiting", "the state later")
        equal(there(place, scratch), {TAG: "A"}, "what is there")
        save(third, series, TAG, "C")
        are(series, TAG, f"committed {TAG}~2")
    equal(there(place, scratch), {TAG: "A", f"{TAG}~2": "C"}, "what is there in the end")
    equal(latest(place), f"{TAG}~2", "latest")


@pytest.mark.parametrize("stuck", (0, 1))
def test_a_rank_that_is_stuck(series, run, place, scratch, stuck):
    """The same run saves a step again soon after, and one of its ranks has yet to write."""
    save(run, series, TAG, "first")
    are(series, TAG, f"committed {TAG}")
    save(run, series, TAG, "second", [1 - stuck])
    wait_until("the mount sees it", lambda: state_of(series[1 - stuck] / TAG) != f"committed {TAG}", 60, 0.05)
    time.sleep(5)  # quiet, and some rounds of the other node
    equal(there(place, scratch), {TAG: "first"}, "what is there meanwhile")
    save(run, series, TAG, "second", [stuck])
    are(series, TAG, f"committed {TAG}~2")
    equal(there(place, scratch), {TAG: "first", f"{TAG}~2": "second"}, "what is there in the end")


def test_a_slot_that_pushes_its_older_save_late(series, run, place, scratch):
    """The other one has pushed two by then. It goes with its own save, or waits."""
    ckptfs("policy", series[1], "--set", "push=manual")
    save(run, series, TAG, "first")
    wait_for(series[0] / TAG, "waiting for slot 1")
    save(run, series, TAG, "second", [0])
    parts = scratch / "remote" / ".ckptfs" / "parts" / TAG
    wait_until("slot 0 has pushed both", lambda: len(list(parts.glob("0.*"))) == 2, 60, 0.1)
    ckptfs("push", series[1] / TAG)
    time.sleep(4)
    true(there(place, scratch) in ({}, {TAG: "first"}), f"what is there meanwhile: {there(place, scratch)}")
    save(run, series, TAG, "second", [1])
    ckptfs("push", "--wait", series[1] / TAG)
    are(series, TAG, f"committed {latest(place)}")
    equal(there(place, scratch)[latest(place)], "second", "the newest")


def test_a_save_that_the_ranks_agree_on(series, place, scratch):
    """They say what they call it, as under ckptfs.patch. Nothing else counts then: who wrote, or when."""
    steps = [one / TAG for one in series]

    def write_part(slot, attempt):
        steps[slot].mkdir(exist_ok=True)
        write(steps[slot] / f"weights{slot}.bin", attempt.encode())
        agree(attempt, steps[slot])

    def content(name):
        place.says("export", scratch / name, url=f"{place.url}/{name}")
        return {path.name: path.read_text() for path in (scratch / name).iterdir()}

    for slot in (0, 1):
        write_part(slot, "a1")
    are(series, TAG, f"committed {TAG}")
    write_part(1, "a2")
    wait_for(steps[1], "waiting")
    told = words(series[1], TAG)
    true("another attempt" in told and "a1" in told and "a2" in told, f"what it says: {told}")
    equal((listed(place), state_of(steps[0])), ([TAG], f"committed {TAG}"), "what is there, and the state of slot 0")
    write_part(0, "a2")
    are(series, TAG, f"committed {TAG}~2")
    for name, attempt in ((TAG, "a1"), (f"{TAG}~2", "a2")):
        equal(content(name), {"weights0.bin": attempt, "weights1.bin": attempt}, name)
    equal(os.getxattr(steps[1], "user.ckptfs.attempt"), b"a2", "what it is called")


def test_a_slot_that_is_there_before_slot_0(series, run, place, folder):
    """It sends its files at once. Its part follows, once slot 0 has one."""
    save(run, series, TAG, "A", [1])
    wait_for(series[1] / TAG, "waiting for slot 0")
    true("slot 0" in words(series[1], TAG), "it says whom it waits for")
    size = sum(map(len, saved("A", 1).values()))
    equal((status_of(series[1])["sent"], len(files_of(folder, TAG, 1))), (size, 2), "what was sent, and is there")
    equal(list((folder / ".ckptfs").glob("parts/*/*")), [], "parts")
    save(run, series, TAG, "A", [0])
    are(series, TAG, f"committed {TAG}")
    equal(status_of(series[1])["sent"], size, "what was sent in all")
    place.says("verify")


# --- their order


@pytest.mark.parametrize("older, newer", ((100, 200), (200, 100)))
def test_a_step_that_is_pushed_late(fresh_disk, work, folder, mode, older, newer):
    """After one that was saved after it, whatever their numbers are: the second training may have gone back."""
    place = Remote(f"file://{folder}")
    with one_node(fresh_disk, work, folder, mode) as (run, steps):
        ckptfs("policy", steps, "--set", "push=manual")
        for number in (older, newer):
            save(run, [steps], f"global_step{number}", "A")
            time.sleep(0.05)  # so that their times differ
        for number in (newer, older):
            ckptfs("push", "--wait", steps / f"global_step{number}")
            equal(latest(place), f"global_step{newer}", "latest")
        equal(listed(place), [f"global_step{older}", f"global_step{newer}"], "their order")


def test_a_slot_that_was_away(series, run, place, scratch):
    """It pushes the newest step first. What it pushes of an older one then makes that one no newer."""
    ckptfs("policy", series[1], "--set", "push=manual")
    for number in (100, 200):
        save(run, series, f"global_step{number}", f"A{number}")
        time.sleep(0.05)
    for number in (100, 200):
        wait_for(series[0] / f"global_step{number}", "waiting for slot 1")
    for number in (200, 100):
        ckptfs("push", "--wait", series[1] / f"global_step{number}")
        are(series, f"global_step{number}", f"committed global_step{number}")
        equal(latest(place), "global_step200", "latest")
    equal(list(there(place, scratch).items()), [("global_step100", "A100"), ("global_step200", "A200")], "what is there")


def test_a_copy_goes_by_its_number(fresh_disk, work, folder, scratch, mode):
    """A copy of an old step does not become the newest. What a training saves does."""
    place = Remote(f"file://{folder}")
    backup = scratch / "global_step50"
    with one_node(fresh_disk, work, folder, mode) as (run, steps):
        for number in (100, 200):
            save(run, [steps], f"global_step{number}", f"A{number}")
            wait_for(steps / f"global_step{number}", "committed")
        shutil.copytree(steps / "global_step100", backup)
        run_command("cp", "-r", backup, steps)
        wait_for(steps / "global_step50", "committed")
        run_command("cp", "-r", steps / "global_step100", steps / "global_step150")
        wait_for(steps / "global_step150", "committed")
        equal(listed(place), [f"global_step{number}" for number in (50, 100, 150, 200)], "their order")
        equal(latest(place), "global_step200", "latest")
        save(run, [steps], "global_step120", "A120")
        wait_for(steps / "global_step120", "committed")
        equal(latest(place), "global_step120", "what was saved last")


def test_a_touch_saves_nothing(fresh_disk, work, folder, mode):
    """New times of all files make no save of an old step. A training that writes them again does."""
    place = Remote(f"file://{folder}")
    with one_node(fresh_disk, work, folder, mode) as (run, steps):
        for number in (100, 200):
            save(run, [steps], f"global_step{number}", f"A{number}")
            wait_for(steps / f"global_step{number}", "committed")
        lists = status_of(steps)["lists"]
        run_command("find", steps / "global_step100", "-type", "f", "-exec", "touch", "{}", "+")
        wait_until("it was looked at", lambda: status_of(steps)["lists"] > lists, 60, 0.1)
        wait_for(steps / "global_step100", "committed global_step100")
        equal((listed(place), latest(place)), (["global_step100", "global_step200"], "global_step200"), "after the touch")
        save(run, [steps], "global_step100", "B100")
        wait_for(steps / "global_step100", "committed global_step100~2")
        equal(latest(place), "global_step100~2", "what was saved last")


def test_a_series_that_gets_another_remote(fresh_disk, work, folder, scratch, mode):
    """What it has comes first there, whoever had its slot in the old one, and however often."""
    with one_node(fresh_disk, work, folder, mode) as (run, steps):
        for _ in range(2):  # each time in another term
            ckptfs("remote", "remove", steps)
            ckptfs("remote", "add", f"file://{folder}", steps)
        save(run, [steps], "global_step100", "A100")
        wait_for(steps / "global_step100", "committed")
        other = scratch / "other"
        other.mkdir()
        ckptfs("remote", "remove", steps)
        ckptfs("remote", "add", f"file://{other}", steps)
        wait_for(steps / "global_step100", "committed")
        save(run, [steps], "global_step50", "A50")
        wait_for(steps / "global_step50", "committed")
        equal(latest(Remote(f"file://{other}")), "global_step50", "what was saved last")


def test_notes_of_one_slot(series, run, place, folder):
    """An evaluation writes its results into an old step, on each node in turn. There is no new commit, and no new part."""
    for number in (1, 2):
        save(run, series, f"global_step{number}", "A")
        are(series, f"global_step{number}", f"committed global_step{number}")
    for steps in series:
        before = seen_bytes(steps / "global_step1")
        (steps / "global_step1" / "eval_results.json").write_text('{"accuracy": 0.5}')
        wait_until("it was looked at", lambda steps=steps, before=before: seen_bytes(steps / "global_step1") != before, 60, 0.1)
    time.sleep(2)
    are(series, "global_step1", "committed global_step1")
    equal((listed(place), latest(place)), (["global_step1", "global_step2"], "global_step2"), "what is there, and latest")
    equal([len(push_folders(folder, f"global_step{number}")) for number in (1, 2)], [2, 2], "pushes")
    equal(len(decisions(folder, "global_step1")), 1, "commits of the old step")


# --- who has a slot


def test_a_slot_is_one_mounts(fresh_disk, work, folder, mode):
    """Another one is refused, unless it takes the slot over. Then the first one says so, and pushes nothing."""
    place = Remote(f"file://{folder}")
    with node(fresh_disk, work, "old", mode) as old, node(fresh_disk, work, "new", mode) as new:
        first, second = (mount.path / "steps" for mount in (old, new))
        both = [str(old.store.folder), str(new.store.folder), os.uname().nodename, "--take-over"]
        ckptfs("remote", "add", place.url, first)
        done = ckptfs("remote", "add", place.url, second, check=False)
        equal(done.returncode, 1, "a second mount of the slot")
        equal([word for word in both if word not in done.stderr], [], f"what it does not say: {done.stderr}")
        true(ckptfs("remote", "status", second, check=False).returncode != 0, "it has no remote")
        fill(first / "global_step1", size=MIB)
        wait_for(first / "global_step1", "committed global_step1")
        ckptfs("remote", "add", place.url, second, "--take-over")
        fill(first / "global_step2", seed=2, size=MIB)
        wait_for(first / "global_step2", "refused")
        told = ckptfs("remote", "status", first)
        equal([word for word in both if word not in told], [], f"what the first one does not say: {told}")
        fill(second / "global_step3", seed=3, size=MIB)
        wait_for(second / "global_step3", "committed global_step3")
        equal((listed(place), latest(place)), (["global_step1", "global_step3"], "global_step3"), "what is there")
        equal(push_folders(folder, "global_step2"), [], "what the first one has sent")
        old.remount()
        wait_until("it says so after a restart", lambda: both[1] in ckptfs("remote", "status", first), 60, 0.2)
        ckptfs("remote", "add", place.url, first, "--take-over")
        wait_for(first / "global_step2", "committed global_step2")
        equal(sorted(listed(place)), [f"global_step{number}" for number in (1, 2, 3)], "what is there in the end")
        place.says("verify")


def test_a_series_keeps_its_slot(fresh_disk, work, folder, mode):
    """Over a restart, when its options change, and when its remote was removed and is added again."""
    place = Remote(f"file://{folder}")
    with node(fresh_disk, work, "keeps", mode) as mount:
        steps = mount.path / "steps"
        for number, act in enumerate((lambda: None, mount.remount,
                                      lambda: ckptfs("remote", "add", place.url, steps, "--limit-upload", "1G"),
                                      lambda: (ckptfs("remote", "remove", steps), ckptfs("remote", "add", place.url, steps)))):
            if number == 0:
                ckptfs("remote", "add", place.url, steps)
            act()
            fill(steps / f"global_step{number}", seed=number, size=MIB)
            wait_for(steps / f"global_step{number}", f"committed global_step{number}")
            equal(latest(place), f"global_step{number}", "latest")
        equal(listed(place), [f"global_step{number}" for number in range(4)], "each once")

"""A step lies in its remote as it is: the files in a folder of its own, whole, for whatever reads files or objects."""

import json
import os
import re
import shutil
import urllib.parse

import pytest

from checking import equal, noise, true, write
from collecting import files_of, names, objects_of, pass_days, push_folders
from mounting import MIB, Mount, Store, abandon, run
from seaweed import BUCKET, curl, environment
from test_commands import Remote, make_step
from test_push import OF_A_STEP, PIECE, QUIET, arrived, ckptfs, content, fill, node, status_of, wait_for, wait_until

pytestmark = [pytest.mark.one_mode, pytest.mark.timeout(400)]


class Place(Remote):
    """A remote, and what lies there: read without ckptfs, but for the list of S3."""

    def keys(self):
        raise NotImplementedError

    def take(self, key, path):
        """Copies an object to a file."""
        raise NotImplementedError

    def files(self, tag, scratch):
        """Of the step's only push, by their paths: where they lie here, as copies."""
        own = [key for key in self.keys() if key.startswith(f"{tag}.")]
        folders = {key.partition("/")[0] for key in own}
        true(len(folders) == 1 and len(min(folders)) == len(f"{tag}.") + 16, f"folders of {tag}: {folders}")
        found = {}
        for number, key in enumerate(own):
            found[key.partition("/")[2]] = scratch / f"object-{tag}-{number}"
            self.take(key, scratch / f"object-{tag}-{number}")
        return found


class Folder(Place):
    def __init__(self, path):
        super().__init__(f"file://{path}")
        self.path = path

    def keys(self):
        return sorted(str(path.relative_to(self.path)) for path in self.path.rglob("*") if path.is_file())

    def take(self, key, path):
        shutil.copyfile(self.path / key, path)


class Bucket(Place):
    def __init__(self, server, prefix):
        super().__init__(f"s3://{BUCKET}/{prefix}", "--endpoint", server.endpoint)
        self.server, self.prefix = server, prefix

    def keys(self):
        return sorted(objects_of(self.url, self.options, ""))

    def take(self, key, path):
        curl("-o", path, f"{self.server.endpoint}/{BUCKET}/{urllib.parse.quote(f'{self.prefix}/{key}')}")


S3 = pytest.param("s3", marks=pytest.mark.builds("venv"))


@pytest.fixture(params=("folder", S3))
def place(request, monkeypatch):
    if request.param == "folder":
        return Folder(request.getfixturevalue("folder"))
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    server = request.getfixturevalue("server")
    server.make_bucket()
    return Bucket(server, re.sub("[^a-z0-9]+", "-", request.node.name.replace("test", "plain", 1)).strip("-"))


FOLDER_IF_LONG = pytest.mark.parametrize("place", (pytest.param("folder", marks=pytest.mark.long), S3), indirect=True)
S3_IF_LONG = pytest.mark.parametrize(
    "place", ("folder", pytest.param("s3", marks=(pytest.mark.builds("venv"), pytest.mark.long))), indirect=True)


def is_as_it_was(place, step, scratch):
    """Each of the step's files is there, byte for byte, and nothing else."""
    there = place.files(step.name, scratch)
    here = {str(path.relative_to(step)): path for path in step.rglob("*") if path.is_file() and not path.is_symlink()}
    equal(sorted(there), sorted(here), f"names of {step.name}")
    for name, path in here.items():
        run("cmp", there[name], path)
        there[name].unlink()


def state(series, tag):
    return next(one for one in status_of(series)["steps"] if one["tag"] == tag)


def test_each_file_is_an_object(fresh_disk, work, scratch, place, mode):
    """Hidden ones, too. What says that a model is there comes last."""
    last = {".metadata", "config.json", "sub/model.safetensors.index.json"}
    with node(fresh_disk, work, f"plain{len(place.options)}", mode) as mount:
        series = mount.path / "steps"
        ckptfs("remote", "add", place.url, series, *place.options)
        ckptfs("policy", series, "--set", "push=manual")
        step = series / "step_1"
        fill(step, size=2 * MIB + 5, files=("__0_0.distcp", "sub/.hidden", "sub/deep/näme +%&=?#'<>~2", "empty", *sorted(last)))
        (step / "void").mkdir()
        os.setxattr(step, "user.ckptfs.whole", b"1")  # its .metadata is none
        ckptfs("push", "--wait", step)
        is_as_it_was(place, step, scratch)
        where, = place.json("latest", "--path")["paths"]
        own = [key for key in place.keys() if key.startswith("step_1.")]
        equal([key for key in own if not f"{place.url}/{key}".startswith(f"{where}/")], [], f"what is not in {where}")
        others = [key for key in place.keys() if not key.startswith("step_1.")]
        equal([key for key in others if not key.startswith(".ckptfs/")], [], "what else lies there")
        if isinstance(place, Folder):
            written = {path.relative_to(path.parents[len(path.relative_to(place.path).parts) - 2]): path.stat().st_mtime_ns
                       for path in files_of(place.path, "step_1")}
            before = max(when for name, when in written.items() if str(name) not in last)
            true(min(when for name, when in written.items() if str(name) in last) >= before, f"what comes last: {written}")


@FOLDER_IF_LONG
def test_a_large_file_goes_in_pieces(fresh_disk, work, scratch, place, mode):
    """One of 64 MiB does not."""
    sizes = {"weights.bin": 2 * PIECE + 5, "sub/optimizer.pt": PIECE + 1, "whole.bin": PIECE}
    with node(fresh_disk, work, f"large{len(place.options)}", mode) as mount:
        series = mount.path / "steps"
        ckptfs("remote", "add", place.url, series, *place.options)
        ckptfs("policy", series, "--set", "push=manual")
        step = series / "step_1"
        (step / "sub").mkdir(parents=True)
        for number, (name, size) in enumerate(sizes.items()):
            write(step / name, content(size, number))
        ckptfs("push", "--wait", step)
        puts = (3 + 2) + (2 + 2) + 1
        true(puts < status_of(series)["puts"] <= puts + OF_A_STEP, f"{status_of(series)['puts']} puts; of the files: {puts}")
        is_as_it_was(place, step, scratch)
        place.says("verify")
        place.says("export", scratch / "out", url=f"{place.url}/step_1")
        run("diff", "-r", step, scratch / "out")


@FOLDER_IF_LONG
def test_what_is_unchanged_is_copied_there(fresh_disk, work, scratch, place, mode):
    """It is not sent again, and each step is whole by itself."""
    frozen, new = PIECE + MIB + 7, 3 * MIB
    with node(fresh_disk, work, f"frozen{len(place.options)}", mode) as mount:
        series = mount.path / "steps"
        ckptfs("remote", "add", place.url, series, *place.options)
        ckptfs("policy", series, "--set", "push=manual")
        for number in (1, 2):
            step = series / f"step_{number}"
            (step / "sub").mkdir(parents=True)
            for name in ("frozen.bin", "sub/small.bin"):
                write(step / name, content(frozen if name == "frozen.bin" else MIB, len(name)))
            write(step / "new.bin", noise(new, number))
            before = place.server.counted() if isinstance(place, Bucket) else None
            ckptfs("push", "--wait", step)
        told = state(series, "step_2")
        equal((told["copied"], told["sent"]), (frozen + MIB, new), "what was copied, and sent")
        if before:
            went_out = place.server.counted()["bytes"] - before["bytes"]
            true(new <= went_out <= new + MIB, f"the server was sent {went_out} bytes")
        for number in (1, 2):
            is_as_it_was(place, series / f"step_{number}", scratch)
        place.says("verify")


@S3_IF_LONG
def test_a_kill_sends_no_piece_again(fresh_disk, work, scratch, place, mode):
    """Amid a large file: nothing of it is seen there, and what has arrived stays."""
    size = 5 * PIECE - 20 * MIB
    store = Store(fresh_disk / f"killed{len(place.options)}")
    mount = Mount(store, work / f"mnt-killed{len(place.options)}", mode=mode, options=QUIET)
    try:
        mount.start()
        series = mount.path / "steps"
        ckptfs("remote", "add", place.url, series, "--limit-upload", "100M", *place.options)
        step = series / "step_1"
        fill(step, size=size, files=("weights.bin", "empty"))
        wait_until("some of it has arrived", lambda: arrived(store, size) >= 2 * PIECE, 60, 0.05)
        mount.kill()
        run("umount", "-l", mount.path, check=False)
        there = arrived(store, size)
        true(there < size, "it was killed amid the file")
        equal([key for key in place.keys() if key.startswith("step_1.")], [], "what is seen of it")
        equal(place.call("latest").returncode, 1, "no half step")
        before = place.server.counted() if isinstance(place, Bucket) else None
        mount.start()
        wait_for(step, "committed", 120)
        equal(status_of(series)["sent"], size - there, f"bytes that were sent then, where {there} of {size} were there")
        if before:
            went_out = place.server.counted()["bytes"] - before["bytes"]
            true(size - there <= went_out <= size - there + MIB, f"the server was sent {went_out} bytes")
        is_as_it_was(place, step, scratch)
        place.says("verify")
        mount.stop()
    finally:
        abandon(mount)


def test_a_removed_step_goes_as_a_whole(fresh_disk, work, folder, mode):
    """After a day, in one run of the collector, and nothing else goes. What the next step has in common stays there."""
    remote = Remote(f"file://{folder}")
    with node(fresh_disk, work, "removed", mode) as mount:
        series = mount.path / "steps"
        ckptfs("remote", "add", remote.url, series)
        for number in (1, 2):
            fill(series / f"step_{number}", size=MIB, files=("frozen.bin", f"sub/new{number}.pt", "empty"))
            wait_for(series / f"step_{number}", "committed")
        equal(state(series, "step_2")["copied"], MIB, "frozen.bin is copied there")
        ckptfs("remote", "remove", series)  # or else the mount collects

    def lies_there():
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def used():
        told = remote.json("du")
        return {one["step"]: (one["objects"], one["bytes"]) for one in told["steps"]}, told["needed"], told["needless"]

    whole = (3, 2 * MIB)
    equal(used(), ({"step_1": whole, "step_2": whole}, 4 * MIB, 0), "what the steps cost")
    remote.says("rm", url=f"{remote.url}/step_1")
    equal(used(), ({"step_2": whole}, 2 * MIB, 2 * MIB), "what they cost after the removal")
    equal(remote.json("gc")["deleted"]["objects"], 0, "on the same day")
    equal(len(files_of(folder, "step_1")), 3, "its files")
    pass_days(folder, 1.1)
    before = lies_there()
    done = remote.json("gc")
    equal((done["waiting"]["objects"], done["warnings"]), (0, []), "what waits, and what is wrong")
    equal(push_folders(folder, "step_1"), [], "its folder")
    own = ("step_1.", ".ckptfs/parts/step_1/")
    spent = ".ckptfs/pushes/"  # what has its part needs them no more
    after = lies_there()
    gone = before.keys() - after.keys()
    equal(gone, {key for key in before if key.startswith((*own, spent))}, "what is deleted")
    equal(len([key for key in gone if key.startswith("step_1.")]), 3, "files that are deleted")
    differ = [key for key in after if key != ".ckptfs/collected/last" and after[key] != before.get(key)]
    equal(differ, [], "what has changed")
    equal(used(), ({"step_2": whole}, 2 * MIB, 0), "what is used in the end")
    equal(names(remote.json("ls")), ["step_2"], "what stands")
    remote.says("verify")


def test_a_step_that_lost_a_file(folder, scratch):
    """It counts for no rule, and none removes it: somebody has to look. What is missing is named."""
    remote = Remote(f"file://{folder}")
    for number in range(1, 6):
        remote.has(f"step_{number}", make_step(scratch / "step", "large", "sub/small", seed=bytes([number])))
    pass_days(folder, 0.1)  # what is committed at this moment is judged by the next run
    lost = {}
    for tag in ("step_1", "step_4"):
        path, = (path for path in files_of(folder, tag) if path.name == "small")
        lost[tag] = path.relative_to(folder)
        path.unlink()
    remote.says("policy", "--set", "keep_last=2")
    for _ in range(2):
        said = remote.json("gc")
        for tag, key in lost.items():
            wanted = f"{tag}: 1 of 2 files are there, of {key.parts[0]}/: that step is damaged"
            true(any(wanted in warning for warning in said["warnings"]), f"{wanted}: {said['warnings']}")
        equal(len(said["warnings"]), 2, "warnings")
        equal(names(remote.json("ls")), ["step_1", "step_3", "step_4", "step_5"], "what the rules keep")
        pass_days(folder, 1.1)
    equal(push_folders(folder, "step_2"), [], "what they have removed")
    equal([len(files_of(folder, tag)) for tag in lost], [1, 1], "what the damaged ones have left")
    done = remote.call("verify", "--json")
    equal(done.returncode, 3, f"exit status of verify: {done.stderr}")
    wrong = {one["step"]: one["wrong"] for one in json.loads(done.stdout)["steps"]}
    told = {tag: [f"{remote.url}/{key}: it is not there"] for tag, key in lost.items()}
    equal(wrong, {"step_3": [], "step_5": []} | told, "what is wrong")


@pytest.mark.parametrize("key, refused", (("parts/step_1/0.0123456789abcdef", True), ("parts/step_1/notes.txt", False)))
def test_a_remote_of_the_first_format(fresh_disk, work, folder, mode, key, refused):
    (folder / key).parent.mkdir(parents=True)
    (folder / key).write_bytes(b"ckptfs part 1\n")
    remote = Remote(f"file://{folder}")
    with node(fresh_disk, work, f"first{int(refused)}", mode) as mount:
        done = ckptfs("remote", "add", remote.url, mount.path / "steps", check=False)
        equal(done.returncode, 1 if refused else 0, f"remote add: {done.stdout}{done.stderr}")
    if refused:
        for said in (done.stderr, remote.fails("gc"), remote.fails("policy")):
            true(remote.url in said and "version 1 of the format" in said, f"it is refused by name: {said}")
        equal([path for path in folder.rglob("*") if path.is_file()], [folder / key], "nothing is made there")


def test_folders_have_ids(folder, scratch):
    """Of the same name, pushed twice: each has a folder of its own, also where a name begins as another one does."""
    remote = Remote(f"file://{folder}")
    for tag, number in (("step_1", 1), ("step_1", 2), ("step_10", 3), ("step_1.best", 4)):
        remote.has(tag, make_step(scratch / "step", "small", seed=bytes([number])))
    equal([len(push_folders(folder, tag)) for tag in ("step_1", "step_10", "step_1.best")], [2, 1, 1], "folders")
    own = {path for tag in ("step_1", "step_10", "step_1.best") for path in push_folders(folder, tag)}
    equal({path for path in folder.iterdir() if not path.name.startswith(".")}, own, "their names")
    remote.says("rm", url=f"{remote.url}/step_1")
    pass_days(folder, 1.1)
    remote.says("gc")
    equal([len(push_folders(folder, tag)) for tag in ("step_1", "step_10", "step_1.best")], [1, 1, 1], "after a removal")
    remote.says("verify")


def test_where_the_files_of_each_slot_lie(folder, scratch):
    remote = Remote(f"file://{folder}")
    slots = [make_step(scratch / f"slot{slot}", f"rank{slot}.bin", "both") for slot in (0, 1)]
    remote.has("step_1", *slots)
    remote.has("step_2", *slots)
    places = remote.says("latest", "--path").splitlines()
    for slot, place in enumerate(places):
        true(place.startswith(f"file://{folder}/step_2.") and place.endswith(f"/slot-{slot}"), place)
        run("diff", "-r", place.removeprefix("file://"), slots[slot])
    equal(len(places), 2, f"places: {places}")

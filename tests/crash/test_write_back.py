"""The disk refuses what was written to a file. Every call that makes it durable fails, however often it is repeated."""

import contextlib
import errno
import json
import mmap
import os
import time

import pytest

from checking import equal, noise, opened, raises, read, true, write
from faulty_disk import Disk
from mounting import MIB, Store, mounted, run, wait_until
from recount import BLOCK, Blob
from saving import ask
from training import STAGE

SWAP = f"{STAGE}/optimizer/rank0/0_2.tensor.swp"
MODEL = "steps/global_step1/mp_rank_00_model_states.pt"
BEFORE, AFTER = noise(2 * MIB, 1), noise(2 * MIB, 2)


@pytest.fixture
def disk(scratch):
    """A disk below an XFS, whose requests can fail."""
    with Disk(scratch, "faulty", scratch / "log") as made:
        made.format()
        yield made


@pytest.fixture
def mount(scratch, disk, mode):
    with disk.mounted(scratch / "disk") as point:
        with mounted(Store(point / "store"), scratch / "mnt", mode=mode, options=("scrub=0",)) as made:
            yield made
            disk.heal()
            if made.alive() and is_known(made):
                unmount_tells(made)


class Patient:
    """A file of the mount whose blocks on the disk can be made to fail."""

    def __init__(self, disk, mount, name, before=BEFORE, after=AFTER):
        self.disk, self.path, self.after = disk, mount.path / name, after
        blobs = set(os.listdir(mount.store.blobs))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write(self.path, before)
        self.fsync()
        made = [entry for entry in os.listdir(mount.store.blobs) if entry not in blobs]
        self.blob = next(path for path in map(mount.store.blobs.__truediv__, made) if path.stat().st_size == len(before))

    def fsync(self, flags=os.O_RDONLY):
        with opened(self.path, flags) as file:
            os.fsync(file)

    def overwrite(self):
        """Overwrites the file in memory; the disk will refuse it."""
        blocks = [block for block, _ in Blob(self.blob).blocks]
        self.disk.fault("eio", "write", from_=min(blocks) * BLOCK, to=(max(blocks) + 1) * BLOCK, count=0)
        with opened(self.path, os.O_WRONLY) as file:
            equal(os.pwrite(file, self.after, 0), len(self.after), "an overwrite of the whole file")

    def fail_unseen(self, mount):
        """Overwrites the file. The kernel's flusher meets the error, and no caller is told."""
        self.overwrite()
        run("sync", "-f", mount.store.folder, check=False)
        self.disk.heal()

    def fail_told_by_msync(self):
        """Overwrites the file. A process with a mapping is told of the error, without the daemon in passthrough
        mode."""
        self.overwrite()
        with opened(self.path, os.O_RDWR) as file, mmap.mmap(file, len(self.after)) as memory:
            memory[:1] = self.after[:1]
            with raises(errno.EIO, what="msync"):
                memory.flush()
            self.disk.heal()

    def on_disk(self):
        """Returns what the disk has of its blob, bypassing the page cache."""
        with opened(self.blob, os.O_RDONLY | os.O_DIRECT) as file, mmap.mmap(-1, len(BEFORE)) as memory:
            equal(os.preadv(file, [memory], 0), len(BEFORE), "read from the disk")
            return memory[:]


def test_fsync_fails_until_it_is_written_anew(disk, mount):
    patient = Patient(disk, mount, "file")
    patient.overwrite()
    refused("fsync", patient.fsync)
    disk.heal()
    refused("fsync, the disk works again", patient.fsync)
    equal(read(patient.path) == patient.on_disk(), True, "what is read is what the disk holds")
    equal(mount.ask(patient.path, "state"), "suspect", "state")
    true("disk" in mount.ask(patient.path, "write_error"), "write_error says it")
    true(any("/file" in warning for warning in mount.status()["warnings"]), "status names it")
    unmount_tells(mount)
    mount.start()
    refused("fsync after a new mount", patient.fsync)
    write(patient.path, AFTER)
    patient.fsync()
    equal(patient.on_disk() == AFTER, True, "written anew, it is on the disk")
    equal(mount.ask(patient.path, "state"), "live", "state")


def test_an_error_in_the_background_reaches_the_next_fsync(disk, mount):
    patient = Patient(disk, mount, MODEL)
    patient.overwrite()
    run("sync", "-f", mount.store.folder, check=False)  # like the kernel's flusher
    disk.heal()
    refused("fsync", patient.fsync)


def test_a_save_never_takes_it(disk, mount):
    patient = Patient(disk, mount, SWAP)
    patient.overwrite()
    for tag in ("one", "two", "three"):
        refused(f"save {tag}", lambda tag=tag: mount.save(tag), attempts=1)
        disk.heal()
    true(SWAP in mount.ask(mount.path / "steps", "last_error"), "last_error names the file")
    equal(os.listdir(mount.path / "steps"), [], "steps")
    write(patient.path, AFTER)
    mount.save("four")
    run("sync", "-f", mount.store.folder)
    patient.blob = newest_of(mount, len(AFTER), patient.blob)
    equal(patient.on_disk() == AFTER, True, "what was saved is on the disk")


def newest_of(mount, size, other):
    return max(path for path in mount.store.blobs.iterdir() if path.stat().st_size == size and path != other)


def test_a_step_with_it_is_not_sealed(disk, mount):
    patient = Patient(disk, mount, MODEL)
    patient.overwrite()
    refused("seal", lambda: mount.seal(mount.path / "steps/global_step1"), attempts=1)
    disk.heal()
    refused("seal", lambda: mount.seal(mount.path / "steps/global_step1"))
    write(patient.path, AFTER)
    mount.seal(mount.path / "steps/global_step1")
    equal(patient.on_disk() == AFTER, True, "what was sealed is on the disk")


def test_a_rank_cannot_commit_it(disk, mount):
    """A rank's file fails before it is frozen. It is not frozen, and a commit that left that out is refused, too."""
    (mount.path / "ranks").mkdir()
    folder = ask(mount, "begin", series="/ranks", tag="step_1", attempt="only")[0]["path"]
    name = f"{folder}/rank00.safetensors"
    patient = Patient(disk, mount, name[1:])
    listed = {"name": "rank00.safetensors", "size": len(AFTER)}
    manifest = {"format": 1, "attempt": "only", "rank": 0, "world_size": 1, "files": [listed]}
    write(mount.path / folder[1:] / "ckptfs.rank00.json", json.dumps(manifest).encode())

    def commit():
        return ask(mount, "commit", path=folder, tag="step_1", world_size=1, seal=False)[0]

    patient.overwrite()
    refused("freeze", lambda: ask(mount, "freeze", paths=[name]), attempts=1)
    disk.heal()
    refused("freeze", lambda: ask(mount, "freeze", paths=[name]))
    refused("commit", commit)
    equal(os.listdir(mount.path / "ranks"), [os.path.basename(folder)], "the series")
    write(patient.path, AFTER)
    ask(mount, "freeze", paths=[name])
    equal(commit(), {"step": "/ranks/step_1"}, "the commit of what was written anew")
    equal(patient.on_disk() == AFTER, True, "what was committed is on the disk")


def test_a_copy_of_it_is_refused(disk, mount):
    patient = Patient(disk, mount, MODEL)
    patient.overwrite()
    refused("fsync", patient.fsync)
    disk.heal()

    def copy():
        with opened(patient.path, os.O_RDONLY) as source, opened(mount.path / "copy", os.O_WRONLY | os.O_CREAT) as to:
            os.copy_file_range(source, to, len(AFTER))

    refused("copy_file_range", copy)


def read_directly(patient, _):
    with contextlib.suppress(OSError), opened(patient.path, os.O_RDONLY | os.O_DIRECT) as file:
        with mmap.mmap(-1, len(AFTER)) as memory:
            os.preadv(file, [memory], 0)


def ask_for_its_cost(patient, mount):
    with contextlib.suppress(OSError):
        mount.ask(patient.path, "bytes.exclusive")


def copies_of_what_failed_unseen(disk, mount, asked_before):
    """A clone detects the failure by a flag of the pages, which an earlier query has cleared."""
    patient = Patient(disk, mount, MODEL)
    patient.fail_unseen(mount)
    asked_before(patient, mount)
    with opened(patient.path, os.O_RDONLY) as source, opened(mount.path / "copy", os.O_WRONLY | os.O_CREAT) as to:
        with raises(errno.EIO, what="copy_file_range"):
            os.copy_file_range(source, to, len(AFTER))


def test_a_copy_after_a_direct_read_is_refused(disk, mount):
    copies_of_what_failed_unseen(disk, mount, read_directly)


def test_a_copy_after_its_cost_was_asked_is_refused(disk, mount):
    copies_of_what_failed_unseen(disk, mount, ask_for_its_cost)


def test_what_is_copied_by_reading_is_on_the_disk(disk, mount):
    """A copy by read() and write(), which is adopted, has what was read, or its fsync fails."""
    patient = Patient(disk, mount, MODEL)
    patient.fail_unseen(mount)
    ask_for_its_cost(patient, mount)
    blobs = set(mount.store.blobs.iterdir())
    copy = mount.path / "steps/global_step2/mp_rank_00_model_states.pt"
    copy.parent.mkdir()
    copied = b""
    with opened(patient.path, os.O_RDONLY) as source, opened(copy, os.O_WRONLY | os.O_CREAT) as to:
        while data := os.read(source, 65536):
            copied += data
            os.write(to, data)
    with opened(copy, os.O_RDONLY) as file:
        os.fsync(file)
    patient.blob = next(path for path in mount.store.blobs.iterdir()
                        if path not in blobs and path.stat().st_size == len(copied))
    equal(patient.on_disk() == copied, True, "after a successful fsync it is on the disk")


def test_a_step_of_a_daemon_that_was_killed_is_not_sealed(disk, mount):
    patient = Patient(disk, mount, MODEL)
    patient.overwrite()
    mount.kill()
    mount.start()
    run("sync", "-f", mount.store.folder, check=False)
    disk.heal()
    refused("seal", lambda: mount.seal(mount.path / "steps/global_step1"))


def test_one_error_does_not_hide_another(disk, mount):
    """The error that the file system reports could be explained by another file."""
    patient = Patient(disk, mount, MODEL)
    other = Patient(disk, mount, "other")
    patient.fail_told_by_msync()
    other.fail_unseen(mount)
    refused("seal", lambda: mount.seal(mount.path / "steps/global_step1"))
    refused("fsync", patient.fsync)
    refused("fsync of the other", other.fsync)


def test_dedup_takes_no_blocks_that_the_disk_never_got(disk, mount):
    patient = Patient(disk, mount, MODEL)
    patient.fail_told_by_msync()
    blobs = set(mount.store.blobs.iterdir())
    equal_one = mount.path / "steps/global_step2/mp_rank_00_model_states.pt"
    equal_one.parent.mkdir()
    with opened(equal_one, os.O_WRONLY | os.O_CREAT | os.O_DIRECT) as file, mmap.mmap(-1, len(AFTER)) as memory:
        memory[:] = AFTER
        equal(os.pwrite(file, memory, 0), len(AFTER), "a write past the page cache")
        os.fsync(file)
    patient.blob = next(path for path in mount.store.blobs.iterdir() if path not in blobs and path.stat().st_size)
    wait_until("the digests have found it out", lambda: is_known(mount), 20)
    time.sleep(1)
    equal(patient.on_disk() == AFTER, True, "what was written and synced is on the disk")
    equal(read(equal_one) == AFTER, True, "and is what is read")


def write_step(folder):
    """Writes a Trainer's step that is complete except for its weights."""
    folder.mkdir(parents=True)
    write(folder / "config.json", b"{}")
    write(folder / "trainer_state.json", json.dumps({"global_step": 1, "log_history": []}).encode())


def weights(seed):
    header = json.dumps({"w": {"dtype": "F32", "shape": [MIB // 4], "data_offsets": [0, MIB]}}).encode()
    return len(header).to_bytes(8, "little") + header + noise(MIB, seed)


def test_a_step_with_it_is_damaged(disk, mount):
    step = mount.path / "runs/a/checkpoint-1"
    write_step(step)
    patient = Patient(disk, mount, "runs/a/checkpoint-1/model.safetensors", weights(1), weights(2))
    patient.overwrite()
    refused("fsync", patient.fsync, attempts=1)
    disk.heal()
    mount.kill()  # with the error of the fsync, which the daemon keeps in memory
    mount.start()
    equal(mount.ask(step, "state"), "damaged", "state")
    write(patient.path, weights(3))
    wait_until("it is complete", lambda: mount.ask(step, "state") == "complete", 20)


def test_rotation_keeps_the_last_that_is_on_the_disk(disk, mount):
    """The newest step's weights failed, and only a process with a mapping was told. The step before it must stay."""
    series = mount.path / "runs/a"
    for number in (1, 2):
        write_step(series / f"checkpoint-{number}")
        if number == 1:
            write(series / "checkpoint-1/model.safetensors", weights(1))
            run("sync", "-f", mount.store.folder)
    patient = Patient(disk, mount, "runs/a/checkpoint-2/model.safetensors", weights(2), weights(3))
    patient.fail_told_by_msync()
    os.setxattr(series, "user.ckptfs.keep_last", b"1")
    mount.wait_for_rounds(3)
    os.utime(series / "checkpoint-2/trainer_state.json")  # completes the step again, so that the rule is armed
    mount.wait_for_rounds(10)
    equal(sorted(os.listdir(series)), ["checkpoint-1", "checkpoint-2"], "steps")
    refused("fsync", patient.fsync)


def test_what_is_written_like_it_is_on_the_disk(disk, mount):
    """The trainer saves the same bytes again from its memory. They must not count as already there."""
    patient = Patient(disk, mount, MODEL)
    patient.overwrite()
    run("sync", "-f", mount.store.folder, check=False)
    disk.heal()
    wait_until("the digests or the copy have found it out",
               lambda: mount.ask(patient.path, "state") == "suspect" or not fsync_succeeds(patient), 20)
    blobs = set(mount.store.blobs.iterdir())
    again = mount.path / "steps/global_step2/mp_rank_00_model_states.pt"
    again.parent.mkdir()
    write(again, AFTER)
    with opened(again, os.O_RDONLY) as file:
        os.fsync(file)
    patient.blob = next(path for path in mount.store.blobs.iterdir() if path not in blobs and path.stat().st_size)
    equal(patient.on_disk() == AFTER, True, "after a successful fsync it is on the disk")


def fsync_succeeds(patient):
    try:
        patient.fsync()
    except OSError:
        return False
    return True


def test_an_error_that_somebody_else_was_told(disk, mount):
    """msync of a mapping reports the error without the daemon. A save detects it at the file system, and trusts no
    dirty page."""
    patient = Patient(disk, mount, SWAP)
    patient.fail_told_by_msync()
    for tag in ("one", "two"):
        refused(f"save {tag}", lambda tag=tag: mount.save(tag), attempts=1)


def test_what_the_disk_holds_can_be_accepted(disk, mount):
    patient = Patient(disk, mount, SWAP)
    patient.overwrite()
    refused("fsync", patient.fsync)
    disk.heal()
    run(mount.binary, "verify", "--accept", patient.path)
    patient.fsync()
    mount.save("accepted")
    equal(read(patient.path) == patient.on_disk(), True, "what is read is what the disk holds")


def test_nobody_asked_for_it(disk, mount):
    """Nobody calls fsync, but the daemon has detected the error. The unmount is the last chance to report it."""
    patient = Patient(disk, mount, MODEL)
    patient.overwrite()
    run("sync", "-f", mount.store.folder, check=False)
    disk.heal()
    wait_until("the digests have found it out", lambda: is_known(mount), 20)
    unmount_tells(mount)


def is_known(mount):
    return any("did not reach the disk" in warning for warning in mount.status()["warnings"])


def unmount_tells(mount):
    done = run(mount.binary, "umount", mount.path, check=False)
    equal(done.returncode, 1, "status of the unmount")
    true("did not reach the disk" in done.stderr, f"the unmount says why: {done.stderr}")
    mount.wait_for_end()


def refused(what, action, attempts=3):
    for attempt in range(attempts):
        with raises(errno.EIO, what=f"{what}, attempt {attempt}"):
            action()

"""Steps that are written like the one before: equal blocks are shared as they land; in both open modes."""

import mmap
import os
import shutil

import pytest

from adopting import two_steps, used
from checking import equal, in_child, noise, opened, pwrite_all, read, same_bytes, true, write, write_all
from mounting import KIB, MIB, run, wait_until

pytestmark = pytest.mark.timeout(900)

MOUNT_OPTIONS = ("quiet=30s",)


def test_a_step_that_repeats_the_one_before(folder, shared):
    """Written anew, or by a copier in two processes: what the step before has at the same place is there already."""
    contents = {"model": noise(4 * MIB, 20), "sub/tensor": noise(8 * MIB, 21)}
    old, new = two_steps(shared, "tar", contents)
    before = used(shared)
    run("bash", "-euc", f"set -o pipefail; tar -C {old} -b 2048 -cf - . | tar -C {new} -b 2048 -xf -")
    true(used(shared) - before < MIB, "tar takes space")
    for name, data in contents.items():
        same_bytes(read(new / name), data, name)
    old, new = two_steps(shared, "again", contents)
    changed = contents["sub/tensor"][: 5 * MIB] + noise(MIB, 22) + contents["sub/tensor"][6 * MIB :]
    before = used(shared)
    write(new / "sub/tensor", changed)
    grown = used(shared) - before
    true(grown < 2 * MIB, f"writing much the same again took {grown} bytes")
    same_bytes(read(new / "sub/tensor"), changed, "content")
    same_bytes(read(old / "sub/tensor"), contents["sub/tensor"], "the step before")


def test_what_the_writer_may_not_read_is_not_guessed(folder, shared):
    old, new = two_steps(shared, "secret", {"sub/tensor": noise(MIB, 23), "sub/open": noise(MIB, 24)})
    os.chmod(old / "sub/tensor", 0o600)
    adoptions = shared.counted("adoptions")
    in_child(lambda: write(new / "sub/tensor", noise(MIB, 23)), uid=1000)
    equal(shared.counted("adoptions"), adoptions, "adoptions of what may not be read")
    in_child(lambda: write(new / "sub/open", noise(MIB, 24)), uid=1000)
    equal(shared.counted("adoptions"), adoptions + 1, "adoptions of what may be read")
    os.chmod(old / "sub", 0o700)
    os.unlink(new / "sub/open")
    in_child(lambda: write(new / "sub/open", noise(MIB, 24)), uid=1000)
    equal(shared.counted("adoptions"), adoptions + 1, "adoptions of what lies where one may not go")


def test_a_guess_that_disappoints_is_given_up(folder, shared):
    old, new = two_steps(shared, "wrong", {"sub/other": noise(80 * MIB, 25)})
    data = noise(80 * MIB, 26)
    wrong, adopted = shared.counted("wrong_guesses"), shared.counted("bytes_adopted")
    for _ in range(2):
        write(new / "sub/other", data)
        same_bytes(read(new / "sub/other"), data, "content")
        os.unlink(new / "sub/other")
        wait_until("the close is heard of", lambda: shared.counted("wrong_guesses") > wrong, 5)
    equal(shared.counted("wrong_guesses") - wrong, 1, "wrong guesses")
    true(shared.counted("bytes_adopted") - adopted < 64 * KIB, "bytes adopted")


class Renamer:
    """Writes as safetensors does: under a temporary name, open for reading too, as long as it will be, then renamed."""

    def __init__(self, folder, size):
        self.folder, self.temporary = folder, folder / ".tmpAbC123"
        self.file = os.open(self.temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.ftruncate(self.file, size)

    def close(self, name):
        os.close(self.file)
        os.rename(self.temporary, self.folder / name)


def block_steps(mount, tag, *names):
    """An output folder of its own with a checkpoint in it, and a second one that is empty."""
    output = mount.path / "runs" / tag
    old, new = output / "checkpoint-1", output / "checkpoint-2"
    old.mkdir(parents=True)
    contents = {name: noise(4 * MIB + 777, 40 + number) for number, name in enumerate(names)}
    write(old / "trainer_state.json", b'{"global_step": 1}')
    for name, data in contents.items():
        write(old / name, data)
    new.mkdir()
    return contents, old, new


def test_a_temporary_name_in_a_step_shares_its_blocks(folder, shared):
    """Which file it will be is told by its beginning; what differs is written, at any offset."""
    contents, old, new = block_steps(shared, "renamed", "model-1", "model-2", "other")
    data = contents["model-2"]
    changed = data[: MIB + 5] + noise(50000, 41) + data[MIB + 50005 : -1] + b"!"
    before, adoptions = used(shared), shared.counted("adoptions")
    writer = Renamer(new, len(data))
    for at in range(0, len(changed), 300001):
        write_all(writer.file, changed[at : at + 300001])
        if at == 1200004:
            zeros = bytes(len(changed) - at - 300001)
            same_bytes(os.pread(writer.file, len(data), 0), changed[: at + 300001] + zeros, "content under way")
    writer.close("model-2")
    grown = used(shared) - before
    true(grown < MIB, f"it took {grown} bytes")
    equal(shared.counted("adoptions") - adoptions, 1, "adoptions")
    same_bytes(read(new / "model-2"), changed, "content")
    same_bytes(read(old / "model-2"), data, "the step before")
    os.utime(new / "model-2")
    shared.remount()
    same_bytes(read(new / "model-2"), changed, "content after a new mount")


def test_blocks_are_shared_in_any_order_and_under_mappings(folder, shared):
    contents, old, new = block_steps(shared, "mapped", "model")
    data = contents["model"]
    wanted = bytearray(data)
    writer = Renamer(new, len(data))
    pwrite_all(writer.file, data[3 * MIB :], 3 * MIB)
    with mmap.mmap(writer.file, 0) as mapping:
        same_bytes(mapping[: 3 * MIB], bytes(3 * MIB), "what was not written yet")
        pwrite_all(writer.file, data[: 3 * MIB], 0)
        mapping[MIB : MIB + 10] = wanted[MIB : MIB + 10] = b"0123456789"
        same_bytes(mapping[:], bytes(wanted), "the mapping")
    os.truncate(writer.temporary, 2 * MIB)
    pwrite_all(writer.file, data[2 * MIB :], 2 * MIB)
    writer.close("model")
    same_bytes(read(new / "model"), bytes(wanted), "content")
    same_bytes(read(old / "model"), data, "the step before")


def test_blocks_of_a_guess_that_somebody_writes_are_not_shared(folder, shared):
    contents, old, new = block_steps(shared, "written", "model")
    data, other = contents["model"], noise(4 * MIB + 777, 45)
    writer = Renamer(new, len(data))
    write_all(writer.file, data[:MIB])
    with opened(old / "model", os.O_RDWR) as file:
        pwrite_all(file, other, 0)
        write_all(writer.file, data[MIB : 2 * MIB])
        write_all(writer.file, other[2 * MIB :])
    pwrite_all(writer.file, data[:MIB], 0)
    writer.close("model")
    same_bytes(read(new / "model"), data[: 2 * MIB] + other[2 * MIB :], "content")
    same_bytes(read(old / "model"), other, "the step before")


def test_blocks_that_the_writer_may_not_read_are_not_shared(folder, shared):
    contents, old, new = block_steps(shared, "unreadable", "model")
    os.chmod(old / "model", 0o600)
    os.chmod(new, 0o777)
    adoptions = shared.counted("adoptions")

    def save():
        writer = Renamer(new, len(contents["model"]))
        write_all(writer.file, contents["model"])
        writer.close("model")

    in_child(save, uid=1000)
    equal(shared.counted("adoptions"), adoptions, "adoptions")
    same_bytes(read(new / "model"), contents["model"], "content")


def test_a_folder_that_lies_between_two_steps_is_no_step(folder, shared):
    contents, old, new = block_steps(shared, "between", "optimizer.pt")
    (old / "global_step1").mkdir()
    write(old / "global_step1" / "states.pt", contents["optimizer.pt"])
    third = old.parent / "checkpoint-3"
    shutil.rmtree(new)
    (old.parent / "runs").mkdir()
    (third / "global_step3").mkdir(parents=True)
    before = used(shared)
    write(third / "optimizer.pt", contents["optimizer.pt"])
    write(third / "global_step3" / "states.pt", contents["optimizer.pt"])
    true(used(shared) - before < MIB, f"{used(shared) - before} bytes")
    for name in ("optimizer.pt", "global_step3/states.pt"):
        same_bytes(read(third / name), contents["optimizer.pt"], name)


def test_after_the_step_before_was_removed_the_one_before_that_counts(folder, shared):
    contents = {name: noise(MIB, 40 + number) for number, name in enumerate(("one", "two"))}
    _, second = two_steps(shared, "gone", contents)
    third = second.parent / "gone3"
    for name, data in contents.items():
        write(second / name, data)
    third.mkdir()
    adoptions = shared.counted("adoptions")
    write(third / "one", contents["one"])
    equal(shared.counted("adoptions") - adoptions, 1, "adoptions, from the second step")
    with opened(second, os.O_RDONLY | os.O_DIRECTORY):  # so that its inode stays
        shutil.rmtree(second)
        write(third / "two", contents["two"])
    equal(shared.counted("adoptions") - adoptions, 2, "adoptions, from the first")


def test_where_the_guess_is_right_it_is_used(folder, shared):
    """Wrong at first, for long in the middle, and never at a border of a block: only the wrong parts take space."""
    old, new = two_steps(shared, "parts", {"sub/parts": noise(24 * MIB, 27)})
    data = noise(2 * MIB + 5, 28) + noise(24 * MIB, 27)[2 * MIB + 5 : 8 * MIB] + noise(4 * MIB + 5, 29)
    data += noise(24 * MIB, 27)[len(data) :]
    for chunk in (MIB, 100 * KIB + 1):
        before = used(shared)
        with opened(new / "sub/parts", os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
            for at in range(0, len(data), chunk):
                write_all(file, data[at : at + chunk])
        true(used(shared) - before < 10 * MIB, f"{used(shared) - before} bytes are taken")
        same_bytes(read(new / "sub/parts"), data, "content")
        os.unlink(new / "sub/parts")
    same_bytes(read(old / "sub/parts"), noise(24 * MIB, 27), "the step before")

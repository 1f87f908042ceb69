"""Views of steps that Hugging Face wrote, as files: what they hold, refuse and cost; in both open modes."""

import contextlib
import ctypes
import errno
import json
import mmap
import os
import pathlib
import shutil
import struct
import tempfile
import threading
import time

import pytest

from checking import equal, in_child, opened, pwrite_all, raises, read, same_bytes, true, write
from hugging import parse, safetensors
from memory import drop_caches
from mounting import CKPTFS, CKPTFS_DEBUG, KIB, MIB, by_level, run, wait_until
from training import write_state
from viewing import SERIES, TAG, as_bf16, as_fp32, content, floats, step_with, write_named


def test_what_they_hold(mount):
    tensors, view = step_with(mount)
    equal(sorted(os.listdir(view)), sorted(["by_name", "config.json", "manifest.json", "model.bf16.safetensors",
          "model.fp16.safetensors", "model.fp32.safetensors", "model.safetensors", "tokenizer.json"]), "the view")
    same_bytes(read(view / "config.json"), b'{"model_type": "none"}', "config.json")
    for name, (_, _, data) in tensors.items():
        same_bytes(read(view / "by_name" / name.replace("/", "%2F") / "param"), data, name)
    equal(parse(read(view / "model.fp32.safetensors")), {n: as_fp32(t) for n, t in tensors.items()}, "model.fp32")
    equal(parse(read(view / "model.bf16.safetensors")), {n: as_bf16(t) for n, t in tensors.items()}, "model.bf16")
    equal(os.readlink(view / "model.safetensors"), "model.fp32.safetensors", "the type that the model is in")
    manifest = json.loads(read(view / "manifest.json"))
    equal([one["name"] for one in manifest["tensors"]], list(tensors), "the manifest")


def test_they_look_like_files(mount):
    _, view = step_with(mount)
    model = view / "model.bf16.safetensors"
    data, st = read(model), os.stat(model)
    equal(st.st_size, len(data), "st_size")
    equal(st.st_blocks, (len(data) + 511) // 512, "st_blocks: 0 would have tar take it for one hole")
    with opened(model, os.O_RDONLY) as file, mmap.mmap(file, 0, prot=mmap.PROT_READ) as mapped:
        same_bytes(mapped[len(data) // 2 :], data[len(data) // 2 :], "mapped")
        equal(os.lseek(file, 10, os.SEEK_DATA), 10, "SEEK_DATA")
        equal(os.lseek(file, 10, os.SEEK_HOLE), len(data), "SEEK_HOLE")
        for offset, size in ((0, 1), (1, 7), (len(data) - 3, 3), (4095, 8193), (len(data), 1)):
            same_bytes(os.pread(file, size, offset), data[offset : offset + size], f"{size} bytes at {offset}")
    equal(os.listxattr(model), [], "xattrs")
    copies = mount.path / "copies"
    copies.mkdir()
    run("cp", "-r", view, copies / "cp")
    run("bash", "-c", f"mkdir {copies}/tar && tar -S -C {view} -cf - . | tar -C {copies}/tar -xf -")
    for kind in ("cp", "tar"):
        run("diff", "-r", view, copies / kind)


def test_they_are_not_in_the_way(mount):
    _, view = step_with(mount)
    equal(sorted(os.listdir(mount.path)), [SERIES, "steps"], "the root, without -o show_views")
    equal(os.listdir(mount.path / "views"), [SERIES, "steps"], "views")
    equal(sorted(os.listdir(mount.path / "views" / SERIES)), [TAG], "a series")
    (mount.path / SERIES / "logs").mkdir()
    (mount.path / "elsewhere").mkdir()
    equal(os.listdir(mount.path / "views" / SERIES), [TAG], "what is no step")
    with raises(errno.ENOENT):
        os.stat(mount.path / "views/elsewhere")
    with raises(errno.ENOENT):
        os.stat(view / "nothing")
    found = {os.lstat(path).st_ino for path in (mount.path / "views").rglob("*")}
    equal(len(found), len(list((mount.path / "views").rglob("*"))), "inode numbers, each its own")
    true(min(found) >= 1 << 62, "an inode number of a view below 2^62")


def test_they_are_listed_when_asked_for(mount):
    _, view = step_with(mount)
    mount.stop()
    mount.options = (*mount.options, "show_views")
    mount.start()
    equal(sorted(os.listdir(mount.path)), [SERIES, "steps", "views"], "the root, with -o show_views")
    run("ls", "-lR", mount.path)
    true(os.stat(view / "config.json").st_size > 0, "config.json")


def test_they_are_read_only(mount):
    _, view = step_with(mount)
    model = view / "model.fp32.safetensors"
    write(mount.path / "file", b"x")
    refused = {
        "write": lambda: os.open(model, os.O_WRONLY),
        "truncate": lambda: os.truncate(model, 0),
        "create": lambda: os.open(view / "new", os.O_CREAT | os.O_WRONLY),
        "mkdir": lambda: os.mkdir(view / "new"),
        "mkdir in views": lambda: os.mkdir(mount.path / "views/new"),
        "symlink": lambda: os.symlink("x", view / "new"),
        "unlink": lambda: os.unlink(model),
        "rmdir": lambda: os.rmdir(view / "by_name"),
        "rename": lambda: os.rename(model, view / "other"),
        "rename out": lambda: os.rename(model, mount.path / "other"),
        "rename into": lambda: os.rename(mount.path / "file", view / "other"),
        "link into": lambda: os.link(mount.path / "file", view / "other"),
        "chmod": lambda: os.chmod(model, 0o777),
        "utime": lambda: os.utime(model),
        "setxattr": lambda: os.setxattr(model, "user.x", b"y"),
    }
    for what, action in refused.items():
        with raises(errno.EROFS, errno.EACCES, errno.EPERM, what=what):
            action()
    with raises(errno.EXDEV, what="link out"):
        os.link(model, mount.path / "other")
    for path in ("views", "steps"):
        with raises(errno.EBUSY, errno.EROFS, what=f"rename of {path}"):
            os.rename(mount.path / path, mount.path / "gone")


def test_a_live_view_follows(mount):
    _, view = step_with(mount)
    before = read(view / "model.fp32.safetensors")
    tensors = content(99)
    tensors["more"] = ("F32", [3], b"\0" * 12)
    write(mount.path / SERIES / TAG / "model.safetensors", safetensors(tensors))

    def follows():
        return parse(read(view / "model.fp32.safetensors")) == {n: as_fp32(t) for n, t in tensors.items()}

    true(follows(), "the view follows its files")
    true(read(view / "model.fp32.safetensors") != before, "nothing changed")
    os.rename(mount.path / SERIES / TAG, mount.path / SERIES / "checkpoint-8")
    equal(os.listdir(mount.path / "views" / SERIES), ["checkpoint-8"], "renamed")
    with raises(errno.ENOENT, what="by its old name"):
        os.stat(view)


def test_what_was_closed_this_moment_is_there(mount):
    """Though the kernel tells the mount of a close after close() has returned."""
    _, view = step_with(mount)
    model = mount.path / SERIES / TAG / "model.safetensors"
    (mount.path / "other").mkdir()
    sources = [mount.path / "other/model.safetensors", mount.path / "model.safetensors"]
    for number, source in enumerate(sources):
        write(source, safetensors(content(number)))
    wanted = [read(source) for source in sources]
    for round_ in range(by_level(50, 1000)):
        number = round_ // 2 % 2
        if round_ % 2 == 0:
            write(model, wanted[number])
        else:  # adopted: there is more to do at its close
            shutil.copyfile(sources[number], model)
        if round_ % 4 < 2:
            true("model.fp32.safetensors" in os.listdir(view), f"it is listed in round {round_}")
        same_bytes(read(view / "model.fp32.safetensors")[-4:], wanted[number][-4:], f"round {round_}")
    with opened(model, os.O_WRONLY):
        with raises(errno.ENOENT, what="while somebody may write to its source"):
            read(view / "model.fp32.safetensors")
    read(view / "model.fp32.safetensors")


@pytest.mark.builds("faults")
def test_a_close_that_is_told_late(mount):
    """Takes no longer than it takes to be told, and past the daemon not even that."""
    _, view = step_with(mount)
    mount.stop()
    mount.binary, mount.faults = CKPTFS_DEBUG, "fs.release=sleep:200"
    mount.start()
    model = mount.path / SERIES / TAG / "model.safetensors"
    for number in range(3):
        write(model, safetensors(content(number)))
        true((view / "model.fp32.safetensors").exists(), f"it is there, closed for the {number + 1}. time")
    (mount.path / "other").mkdir()
    write(mount.path / "other/model.safetensors", safetensors(floats([(256, 1024)])))
    shutil.copyfile(mount.path / "other/model.safetensors", model)  # adopted
    true((view / "model.fp32.safetensors").exists(), "it is there, copied")


@pytest.mark.builds("faults")
def test_nobody_waits_for_anothers_view(mount):
    """Not who creates a file, nor who looks at another step, however many wait for a view that takes long."""
    tensors, view = step_with(mount)
    _, other = step_with(mount, 1, "checkpoint-8")
    mount.stop()
    mount.binary, mount.faults = CKPTFS_DEBUG, f"views.make=1:sleep:{by_level(3000, 15000)}"
    mount.start()
    answered = []

    def look(number):
        (view / f"none{number}").exists()
        answered.append(number)

    with opened(mount.path / SERIES / TAG / "train.log", os.O_WRONLY | os.O_CREAT):
        threads = [threading.Thread(target=look, args=(number,)) for number in range(40)]
        for thread in threads:
            thread.start()
        wait_until("all have asked", lambda: mount.status()["counters"]["operations"]["lookup"] > 100, 5)
        for number in range(5):
            write(mount.path / f"new{number}", b"x")
        in_child(lambda: read(other / "model.fp32.safetensors"), uid=1234)
        in_child(lambda: os.listdir(other), uid=1234)
        equal(answered, [], "looks at the view that takes long, answered before all that")
        for thread in threads:
            thread.join()
    equal(len(answered), 40, "looks that were answered")
    equal(parse(read(view / "model.fp32.safetensors")), {n: as_fp32(t) for n, t in tensors.items()}, "model.fp32")


def asked_beside_busy_lanes(folder, questions):
    """Seconds that each question takes while views of four steps are made, which is all that one user has at once."""
    took = {}

    def ask(name, question):
        begin = time.monotonic()
        with contextlib.suppress(OSError):
            question()
        took[name] = time.monotonic() - begin

    views = [threading.Thread(target=lambda n=n: (folder / f"checkpoint-{n}/none").exists()) for n in range(100, 104)]
    asking = [threading.Thread(target=ask, args=question) for question in questions.items()]
    for threads in (views, asking):
        for thread in threads:
            thread.start()
        time.sleep(0.5)
    for thread in views + asking:
        thread.join()
    return took


@pytest.mark.builds("faults")
@pytest.mark.one_mode
def test_what_takes_long_is_done_on_a_lane(mount):
    """A read of many small pieces, an open of a model of many tensors, a look at names, and a look at two steps: not by
    a thread that serves requests."""
    for number in range(100, 104):
        step_with(mount, tag=f"checkpoint-{number}")
    tensors = {f"weight{number}": ("F32", [1], struct.pack("<f", number % 251)) for number in range(2000)}
    for tag in ("checkpoint-1", "checkpoint-2"):
        (mount.path / SERIES / tag).mkdir()
        write(mount.path / SERIES / tag / "config.json", b"{}")
        write(mount.path / SERIES / tag / "trainer_state.json", b'{"global_step": 1}')
        write(mount.path / SERIES / tag / "model.safetensors", safetensors(tensors))
    mount.seal(f"{SERIES}/checkpoint-2")  # what such a step holds is not inspected again, which is done on a lane, too
    view, sealed = (mount.path / "views" / SERIES / tag for tag in ("checkpoint-1", "checkpoint-2"))
    equal(parse(read(view / "model.bf16.safetensors")), {n: as_bf16(t) for n, t in tensors.items()}, "model.bf16")
    mount.stop()
    mount.binary, mount.faults = CKPTFS_DEBUG, "views.make=sleep:3000"
    mount.start()

    def ask():
        os.stat(sealed / "model.fp16.safetensors")
        with opened(view / "model.bf16.safetensors", os.O_RDONLY) as file:
            took = asked_beside_busy_lanes(view.parent, {
                "read": lambda: os.pread(file, MIB, 0),
                "open": lambda: os.close(os.open(sealed / "model.fp16.safetensors", os.O_RDONLY)),
                "names": lambda: os.stat(view),
                "identical_to": lambda: os.getxattr(mount.path / SERIES / "checkpoint-103", "user.ckptfs.identical_to"),
            })
        return took

    for what, seconds in in_child(ask, uid=1234).items():
        true(seconds > 1, f"{what} took {seconds:.2f} s: it did not wait for a lane")


def test_a_reader_keeps_what_is_removed(mount):
    tensors, view = step_with(mount)
    mount.seal(f"{SERIES}/{TAG}")
    whole = read(view / "model.bf16.safetensors")
    drop_caches()
    with opened(view / "model.bf16.safetensors", os.O_RDONLY) as file:
        first = os.pread(file, 100, 0)
        shutil.rmtree(mount.path / SERIES / TAG)
        with raises(errno.ENOENT, what="the view of a removed step"):
            os.stat(view)
        equal(os.listdir(mount.path / "views" / SERIES), [], "views")
        same_bytes(first + os.pread(file, len(whole), 100), whole, "read after the removal")


def test_numbers_stay(mount):
    """But for the manifest's, whose bytes may be others: it tells digests, which may have been taken since."""
    _, view = step_with(mount)

    def numbers():
        return {str(path): os.lstat(path).st_ino for path in view.rglob("*") if path.name != "manifest.json"}

    before = numbers()
    mount.remount()
    equal(numbers(), before, "inode numbers after a remount")


def test_many_readers_at_once(mount):
    tensors, view = step_with(mount)
    wanted = read(view / "model.bf16.safetensors")
    failures = []

    def reader(number):
        for round_ in range(20):
            with opened(view / "model.bf16.safetensors", os.O_RDONLY) as file:
                at = (number * 7919 + round_ * 104729) % len(wanted)
                if os.pread(file, 100 * KIB, at) != wanted[at : at + 100 * KIB]:
                    failures.append((number, round_))

    threads = [threading.Thread(target=reader, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    equal(failures, [], "readers that read something else")


def test_what_cannot_be_read_is_told(mount):
    """And no model is made that would lack it."""
    tensors, view = step_with(mount)
    step = mount.path / SERIES / TAG
    os.rename(step / "model.safetensors", step / "model-1.safetensors")
    write(step / "model-2.safetensors", struct.pack("<Q", 1 << 63) + b"{" * 100)
    write(step / "stale.safetensors", safetensors({"stale": ("F32", [1], b"1234")}))
    index = {"weight_map": {"embed.weight": "model-1.safetensors", "lost": "model-2.safetensors"}}
    write(step / "model.safetensors.index.json", json.dumps(index).encode())
    wait_until("the problem is told", lambda: json.loads(read(view / "manifest.json"))["problems"], 5)
    problems = json.loads(read(view / "manifest.json"))["problems"]
    equal([one["file"] for one in problems], ["model-2.safetensors", ""], "problems")
    true("9223372036854775808" in problems[0]["reason"], f"the reason: {problems[0]}")
    true("no model files" in problems[1]["reason"], f"the reason: {problems[1]}")
    same_bytes(read(view / "by_name/embed.weight/param"), tensors["embed.weight"][2], "the rest")
    equal([name for name in os.listdir(view) if name.startswith("model.")], [], "models")
    true(not (view / "by_name/stale").exists(), "what the index does not name is shown")


def test_what_is_being_written_is_not_shown(mount):
    tensors, view = step_with(mount)
    shutil.copy(mount.path / SERIES / TAG / "model.safetensors", mount.path / "copy")
    with opened(mount.path / SERIES / TAG / "model.safetensors", os.O_RDWR) as file:
        wait_until("it is left out", lambda: not (view / "model.fp32.safetensors").exists(), 5)
        problems = json.loads(read(view / "manifest.json"))["problems"]
        equal(problems[0], {"file": "model.safetensors", "reason": "it is being written"}, "the problem")
        os.pwrite(file, b"x", 0)
        os.pwrite(file, read(mount.path / "copy")[:1], 0)
    true((view / "model.fp32.safetensors").exists(), "it is there again")
    equal(parse(read(view / "model.fp32.safetensors")), {n: as_fp32(t) for n, t in tensors.items()}, "model.fp32")


def test_a_reader_of_what_has_changed_is_told(mount):
    """Never old places applied to new bytes."""
    _, view = step_with(mount)
    whole = read(view / "model.bf16.safetensors")
    with opened(view / "model.bf16.safetensors", os.O_RDONLY) as file:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        changed = safetensors(content(5))
        write(mount.path / SERIES / TAG / "model.safetensors", changed, os.O_WRONLY)
        with raises(errno.ESTALE, what="the rest of what has changed"):
            same_bytes(os.pread(file, len(whole), 0), whole, "what was read")
            os.pread(file, 4096, len(whole) - 4096)
        wait_until("the new one is there", lambda: read(view / "model.bf16.safetensors") != whole, 5)
        equal(os.fstat(file).st_size, len(whole), "the size of what is open still")


LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


@contextlib.contextmanager
def mapped_alone(path):
    """Where the file is mapped for writing, without a descriptor: as torch.from_file(shared=True) leaves it."""
    with opened(path, os.O_RDWR) as file:
        length = os.fstat(file).st_size
        address = LIBC.mmap(None, length, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file, 0)
    true(address not in (None, ctypes.c_void_p(-1).value), "it cannot be mapped")
    try:
        yield address
    finally:
        LIBC.munmap(address, length)


def is_there(path):
    try:
        read(path)
    except FileNotFoundError:
        return False
    return True


def test_what_is_mapped_is_being_written(mount):
    """Stores of which the file's times tell nothing: it is left out until the mapping has gone, and right then."""
    step = mount.path / SERIES / TAG
    step.mkdir(parents=True)
    count = 64 * KIB
    write(step / "model.safetensors", safetensors({"w": ("F32", [count], bytes(4 * count))}, 8, 4096))
    write(step / "trainer_state.json", b'{"global_step": 1}')
    view = mount.path / "views" / SERIES / TAG / "model.bf16.safetensors"
    same_bytes(read(view)[-4:], bytes(4), "before")
    with mapped_alone(step / "model.safetensors") as address:
        begin = address + 4096 + 8
        ctypes.memset(begin, 1, 4 * count)
        wait_until("what is mapped is left out", lambda: not is_there(view), 5)
        ctypes.memset(begin, 2, 4 * count)
        time.sleep(0.3)  # until a view is looked at again
        true(not is_there(view), "what is mapped is shown")
    wait_until("it is there again", lambda: is_there(view), 5)
    same_bytes(read(view)[-4:], b"\2\2\2\2", "after the last store")
    same_bytes(read(view.parent / "by_name/w/param")[-4:], b"\2\2\2\2", "the tensor")
    mount.remount()
    same_bytes(read(view)[-4:], b"\2\2\2\2", "after a remount")
    mount.seal(f"{SERIES}/{TAG}")
    same_bytes(read(view)[-4:], b"\2\2\2\2", "sealed")


def test_times_that_are_set_hide_nothing(mount):
    """As `tar`, `cp -p` and `rsync --inplace` set them."""
    step = mount.path / SERIES / TAG
    step.mkdir(parents=True)
    write(step / "trainer_state.json", b'{"global_step": 1}')
    view = mount.path / "views" / SERIES / TAG
    count = 64 * KIB

    def put(byte):
        data = safetensors({"w": ("F32", [count], bytes([byte]) * (4 * count))})
        with opened(step / "model.safetensors", os.O_RDWR | os.O_CREAT) as file:
            pwrite_all(file, data, 0)
        os.utime(step / "model.safetensors", (1e9, 1e9))

    for byte in range(1, 8):
        put(byte)
        for model in ("bf16", "fp32"):
            name = view / f"model.{model}.safetensors"
            wait_until("it follows", lambda: is_there(name) and read(name)[-2:] == bytes([byte] * 2), 5)
        if byte == 4:
            mount.remount()
    with opened(view / "model.bf16.safetensors", os.O_RDONLY) as file:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        put(9)
        with raises(errno.ESTALE, what="a reader of what was overwritten"):
            os.pread(file, 4096, 2 * count)


def test_a_header_that_is_rewritten_is_read_again(mount):
    """It keeps its size and its times. The map of the tensors that the index keeps is of the old one."""
    step = mount.path / SERIES / TAG
    step.mkdir(parents=True)
    write(step / "trainer_state.json", b'{"global_step": 1}')
    of_a = mount.path / "views" / SERIES / TAG / "by_name/a/param"
    count = 64 * KIB
    for number, names in enumerate(("ab", "ba", "ab", "ba")):
        tensors = {name: ("F32", [count], bytes([byte]) * (4 * count)) for byte, name in enumerate(names)}
        with opened(step / "model.safetensors", os.O_RDWR | os.O_CREAT) as file:
            pwrite_all(file, safetensors(tensors), 0)
        os.utime(step / "model.safetensors", (1e9, 1e9))
        wait_until("it follows", lambda tensors=tensors: is_there(of_a) and read(of_a) == tensors["a"][2], 5)
        if number == 1:
            mount.remount()


def test_nothing_takes_the_mount_down(mount):
    """What once did, or was close to it."""
    _, view = step_with(mount)
    step = mount.path / SERIES / TAG
    os.unlink(step / "model.safetensors")
    for name in ("pytorch_model.bin", "zero_pp_rank_0_mp_rank_00_model_states.pt"):
        write(step / name, b"PK" + bytes(1000))
    wait_until("both are read", lambda: json.loads(read(view / "manifest.json"))["problems"], 5)
    at = os.open(step, os.O_RDONLY)
    for _ in range(600):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)

    def refused():
        try:
            os.stat(view / "manifest.json")
        except OSError as problem:
            return problem.errno == errno.ELOOP
        return False

    wait_until("a step that is too deep is refused", refused, 5)
    equal(os.listdir(mount.path / "views" / SERIES), [TAG], "the series, all the same")


def test_swap_state_only(mount):
    written = write_state(mount.path)
    mount.save("global_step1")
    view = mount.path / "views/steps/global_step1"
    groups = sorted(path.name for path in (view / "groups").iterdir())
    true(groups, "no groups")
    step = mount.path / "steps/global_step1/offloaded_tensors/rank00"
    for group in groups:
        same_bytes(read(view / "groups" / group / "rank00/fp32"), read(step / f"{group}.tensor.swp"), group)
    true(written, "nothing was written")
    of_rank = view / "groups" / groups[0] / "rank00/fp32"
    os.chmod(step / f"{groups[0]}.tensor.swp", 0o644)
    os.chmod(step.parent, 0o711)
    wait_until("the mode follows", lambda: oct(os.stat(of_rank).st_mode) == oct(0o100444), 5)
    os.chmod(step.parent, 0o700)
    wait_until("a folder on the way closes it", lambda: oct(os.stat(of_rank).st_mode) == oct(0o100400), 5)


def test_names_of_the_same_run(mount):
    """A save alone gets them as soon as a step of its run has some, and keeps them; not those of another run."""
    swapped = {f"{prefix}0_0.tensor.swp": bytes([number]) * 2 * KIB
               for number, prefix in enumerate(("", "exp_avg-", "exp_avg_sq-"))}
    live = mount.path / "zero_stage_3/optimizer/rank0"
    live.mkdir(parents=True)
    for name, data in swapped.items():
        write(live / name, data)
    mount.save("alone")
    view = mount.path / "views/steps/alone"
    equal(os.listdir(view / "groups"), ["0_0"], "groups")
    with tempfile.TemporaryDirectory() as elsewhere:
        write(*write_named(pathlib.Path(elsewhere) / "global_step1", swapped))
        run("cp", "-r", f"{elsewhere}/global_step1", mount.path / "steps")
    time.sleep(1.5)
    true((mount.path / "views/steps/global_step1/by_name").exists(), "the other run's step has no names")
    true(not (view / "by_name").exists(), "names of another run are shown")
    later = {name: b"later" + data[5:] for name, data in swapped.items()}
    states = write_named(mount.path / "steps/global_step2", later)
    time.sleep(1.5)  # names are looked for once a second
    true(not (view / "by_name").exists(), "names of half a step are shown")
    write(*states)

    def judge():
        wait_until("there are names", (view / "by_name").exists, 5)
        manifest = json.loads(read(view / "manifest.json"))
        equal(manifest["names_from"], "/steps/global_step2", "where the names come from")
        size = 97 * 3 * 4
        for state, name in (("fp32", ""), ("exp_avg", "exp_avg-"), ("exp_avg_sq", "exp_avg_sq-")):
            same_bytes(read(view / "by_name/embedding.weight" / state), swapped[f"{name}0_0.tensor.swp"][:size], state)
        true(not (view / "by_name/seen").exists(), "a buffer of another moment is shown")
        true(not (view / "groups").exists(), "what has names is shown without, too")
        equal([name for name in os.listdir(view) if name.startswith("model.")], [], "models")

    judge()
    shutil.rmtree(mount.path / "steps/global_step2")
    mount.remount()
    judge()


def test_digests_are_told(mount):
    """Where they are known when the view is made."""
    _, view = step_with(mount)
    step = mount.path / SERIES / TAG
    write(step / "same.json", read(step / "config.json"))

    def digested():
        found = json.loads(run(CKPTFS, "verify", "--json", step).stdout)["files"]
        return {file["state"] for file in found} == {"ok"}

    wait_until("all files are digested", digested, 60, 0.2)
    told = {file["path"]: file["digest"] for file in json.loads(read(view / "manifest.json"))["files"]}
    true(all(len(digest) == 64 for digest in told.values()), f"digests: {told}")
    equal(told["same.json"], told["config.json"], "the digest of the same content")
    true(told["model.safetensors"] != told["config.json"], "other content has the same digest")

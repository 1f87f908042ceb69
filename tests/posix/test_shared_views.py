"""Views that share the blocks of their step instead of copying them; in both open modes."""

import errno
import json
import mmap
import os
import random
import shutil
import threading

import pytest

from checking import equal, opened, raises, read, same_bytes, true, write
from hugging import parse, safetensors
from memory import drop_caches
from mounting import CKPTFS, CKPTFS_DEBUG, KIB, MIB, by_level, run, used_bytes, wait_until
from viewing import SERIES, TAG, floats


def large_step(mount, tensors=None, tag=TAG):
    """A checkpoint with a view that is worth sharing blocks for; what its fp32 model holds, and its view."""
    step = mount.path / SERIES / tag
    step.mkdir(parents=True)
    tensors = tensors or floats([(1000, 701), (77,), (2048, 512), (3, 5, 7), (512, 512)])
    write(step / "model.safetensors", safetensors(tensors))
    write(step / "trainer_state.json", b'{"global_step": 1}')
    view = mount.path / "views" / SERIES / tag
    true((view / "model.fp32.safetensors").exists(), "it is there, once all is closed")
    return tensors, view


def test_blocks_are_shared(mount):
    """A view without a cast is read past the daemon, takes no space, and is copied into the mount without any."""
    tensors, view = large_step(mount)
    model = view / "model.fp32.safetensors"
    os.sync()
    used = used_bytes(mount.store.folder)
    with opened(model, os.O_RDONLY) as file, mmap.mmap(file, 0, prot=mmap.PROT_READ) as mapped:
        data = mapped[:]
        equal(parse(data), tensors, "the model, mapped")
        shared = mount.counted("opens_of_shared_views")
        equal(shared, 1 if mount.mode == "passthrough" else 0, "opens that share blocks")
        os.sync()
        taken = used_bytes(mount.store.folder) - used
        true(taken < 256 * KIB, f"an open view takes {taken} bytes")
    same_bytes(read(model), data, "read again")
    buffer = mmap.mmap(-1, MIB)
    for offset, begin in ((MIB, 0), (MIB + 52, 52)):  # DeepSpeed ignores an EINVAL
        with opened(model, os.O_RDONLY | os.O_DIRECT) as file:
            part = memoryview(buffer)[begin:]
            equal(os.preadv(file, [part], offset), len(part), "read with O_DIRECT")
            same_bytes(part, data[offset : offset + len(part)], f"read with O_DIRECT at {offset}")
            part.release()
    cloned = mount.counted("bytes_cloned")
    run("cp", model, mount.path / "copy")
    same_bytes(read(mount.path / "copy"), data, "a copy")
    if shared:
        true(mount.counted("bytes_cloned") - cloned >= len(data) - 8 * KIB, "a copy shares its blocks")
    equal(mount.counted("view_fallbacks"), 0, "fallbacks")


@pytest.mark.builds("faults")
def test_where_blocks_cannot_be_shared(mount):
    """The daemon reads, says so, and counts it."""
    mount.stop()
    mount.binary, mount.faults = CKPTFS_DEBUG, "views.clone=error:EIO"
    mount.start()
    tensors, view = large_step(mount)
    for _ in range(2):
        equal(parse(read(view / "model.fp32.safetensors")), tensors, "the model")
    fallbacks = 2 if mount.mode == "passthrough" else 0
    equal(mount.counted("view_fallbacks"), fallbacks, "fallbacks")
    equal(mount.read_log().count("is read by the daemon: "), fallbacks, "warnings in the log")
    equal(mount.counted("opens_of_shared_views"), 0, "opens that share blocks")


@pytest.mark.builds("faults")
def test_blocks_of_a_suspect_file_are_not_shared(mount):
    tensors, view = large_step(mount)
    mount.stop()
    mount.binary, mount.faults = CKPTFS_DEBUG, "write_back.sync=1:error:EIO"
    mount.start()
    source = mount.path / SERIES / TAG / "model.safetensors"
    with opened(source, os.O_RDONLY) as file, raises(errno.EIO, what="fsync"):
        os.fsync(file)
    equal(parse(read(view / "model.fp32.safetensors")), tensors, "the model")
    equal(mount.counted("opens_of_shared_views"), 0, "opens that share blocks")
    run(CKPTFS, "verify", "--accept", source)


@pytest.mark.mode("passthrough")
@pytest.mark.builds("faults")
def test_a_file_that_failed_unseen_is_found_after_sharing(mount):
    """Its blocks are shared before anybody knows. Then the kernel is asked, and they are not used."""
    tensors, view = large_step(mount)
    mount.stop()
    mount.binary, mount.faults = CKPTFS_DEBUG, "tree.check_write_back=1:error:EIO"
    mount.start()
    source = mount.path / SERIES / TAG / "model.safetensors"
    equal(parse(read(view / "model.fp32.safetensors")), tensors, "the model")
    equal((mount.counted("opens_of_shared_views"), mount.counted("view_fallbacks")), (0, 1), "shared, and not")
    equal(mount.ask(source, "state"), "suspect", "state of its source")
    with opened(source, os.O_RDONLY) as file, raises(errno.EIO, what="fsync"):
        os.fsync(file)
    run(CKPTFS, "verify", "--accept", source)


def test_others_do_not_see_it(mount):
    """That a view shares its blocks: what the step costs, and is, stays as it was."""
    _, view = large_step(mount)
    os.sync()

    def costs():
        named = [f"{SERIES}/{TAG}/model.safetensors", f"{SERIES}/{TAG}"]
        return [mount.ask(path, f"bytes.{kind}") for path in named for kind in ("apparent", "exclusive", "shared")]

    before = costs()
    with opened(view / "model.fp32.safetensors", os.O_RDONLY) as file:
        os.pread(file, MIB, 0)
        equal(costs(), before, "costs with the view open")
    equal(costs(), before, "costs with the view closed again")


def test_it_is_opened_by_many_at_once(mount):
    tensors, view = large_step(mount)
    wrong = []

    def reader():
        if parse(read(view / "model.fp32.safetensors")) != tensors:
            wrong.append(threading.get_ident())

    for _ in range(5):
        threads = [threading.Thread(target=reader) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        equal(wrong, [], "readers that read something else")
        os.utime(mount.path / SERIES / TAG / "model.safetensors")  # another view
        true((view / "model.fp32.safetensors").exists(), "it is there, once all is closed")


def test_what_is_open_stays_though_its_view_is_forgotten(mount):
    """Of the last few steps alone a view is kept. What is open, was opened once more of another view, and is outdated
    now, is the same file still."""
    _, view = large_step(mount)
    data = read(view / "model.fp32.safetensors")
    with opened(view / "model.fp32.safetensors", os.O_RDONLY) as file, \
            opened(view / "model.bf16.safetensors", os.O_RDONLY) as cast:
        for number in range(9):
            other = mount.path / SERIES / f"checkpoint-{100 + number}"
            other.mkdir()
            write(other / "model.safetensors", safetensors(floats([(3,)])))
            write(other / "trainer_state.json", b'{"global_step": 1}')
            others = mount.path / "views" / SERIES / other.name / "model.fp32.safetensors"
            true(others.exists(), "it is there, once all is closed")
        for model in ("fp32", "bf16"):
            os.close(os.open(view / f"model.{model}.safetensors", os.O_RDONLY))
        changed = safetensors(floats([(1000, 701)], seed=5))
        write(mount.path / SERIES / TAG / "model.safetensors", changed, os.O_WRONLY | os.O_TRUNC)
        wait_until("there is another view", lambda: os.stat(view / "model.fp32.safetensors").st_size != len(data), 5)
        equal(os.fstat(file).st_size, len(data), "the size of what is open still")
        true(os.fstat(cast).st_size > 0, "fstat of what cannot be read any more")


def test_a_shared_view_lets_go(mount):
    """Of what is removed or overwritten nothing is kept but by who has it open."""
    def settled_use():
        os.sync()
        os.statvfs(mount.store.folder)  # has XFS begin what it put off
        return used_bytes(mount.store.folder)

    mount.path.joinpath("x").mkdir()
    empty = settled_use()
    tensors, view = large_step(mount)
    model = view / "model.fp32.safetensors"
    data = read(model)
    true(settled_use() - empty > len(data) - 64 * KIB, "nothing was written")
    shutil.rmtree(mount.path / SERIES / TAG)
    wait_until("a removed step's space is free", lambda: settled_use() - empty < 512 * KIB)

    _, view = large_step(mount, tensors)
    same_bytes(read(view / "model.fp32.safetensors"), data, "the model")
    for truncate in (lambda path: os.truncate(path, 0), lambda path: write(path, b"", os.O_WRONLY | os.O_TRUNC)):
        truncate(mount.path / SERIES / TAG / "model.safetensors")
        wait_until("an emptied file's space is free", lambda: settled_use() - empty < 512 * KIB)
        write(mount.path / SERIES / TAG / "model.safetensors", safetensors(tensors), os.O_WRONLY)
        true((view / "model.fp32.safetensors").exists(), "it is there again")
        same_bytes(read(view / "model.fp32.safetensors"), data, "the model again")
    shutil.rmtree(mount.path / SERIES / TAG)

    _, view = large_step(mount, tensors)
    with opened(view / "model.fp32.safetensors", os.O_RDONLY) as file:
        first = os.pread(file, 100, 0)
        drop_caches()
        if mount.mode == "passthrough":
            changed = safetensors(floats([(1000, 701)], seed=5))
            write(mount.path / SERIES / TAG / "model.safetensors", changed, os.O_WRONLY | os.O_TRUNC)
        shutil.rmtree(mount.path / SERIES / TAG)
        same_bytes(first + os.pread(file, len(data), 100), data, "read after all is gone")
    wait_until("and its space, once it is closed", lambda: settled_use() - empty < 512 * KIB)


def test_any_layout(mount):
    """Tensors of any size, anywhere in several files; some can be shared, some not."""
    dice = random.Random(seed := random.SystemRandom().randrange(1 << 30))
    print(f"      seed {seed}")
    for number in range(by_level(3, 60)):
        first = number == 0  # can be shared
        tag, files, whole = f"checkpoint-{number}", 1 if first else dice.randint(1, 3), {}
        step = mount.path / SERIES / tag
        step.mkdir(parents=True)
        odd = not first and dice.random() < 0.5
        for index in range(files):
            lengths = [dice.randint(1, 200000) if odd else dice.randint(1, 400) * KIB for _ in range(dice.randint(3, 12))]
            tensors = {f"{index}.{name}": tensor for name, tensor in floats([(length,) for length in lengths], number).items()}
            tensors[f"{index}.counter"] = ("I64", [], bytes(8))
            write(step / f"model-{index}.safetensors", safetensors(tensors, 8 if first else dice.choice((0, 8, 512, 4095)), 4096))
            whole |= tensors
        weight_map = {name: f"model-{name.split('.')[0]}.safetensors" for name in whole}
        write(step / "model.safetensors.index.json", json.dumps({"weight_map": weight_map}).encode())
        write(step / "trainer_state.json", b'{"global_step": 1}')
        view = mount.path / "views" / SERIES / tag
        true((view / "model.fp32.safetensors").exists(), "it is there, once all is closed")
        equal(parse(read(view / "model.fp32.safetensors")), whole, f"{tag}: model.fp32")
        name = dice.choice(list(whole))
        same_bytes(read(view / "by_name" / name / "param"), whole[name][2], f"{tag}: {name}")
    if mount.mode == "passthrough":
        true(mount.counted("opens_of_shared_views") > 0, "blocks were never shared")
    equal(mount.counted("view_fallbacks"), 0, "fallbacks")

"""Thinning by hand: what stays and what goes, what is refused, and that the view stays the same; in both open modes."""

import contextlib
import errno
import json
import os
import shutil
import struct
import subprocess
import time

import pytest

import saving
from attacker import Attacker
from checking import equal, in_child, opened, raises, read, same_bytes, true, write
from hugging import parse, safetensors
from mounting import CKPTFS, CKPTFS_DEBUG, KIB, MIB, Store, mounted, run, wait_until
from savers import OLD
from training import write_state
from viewing import RESUME, SERIES, as_bf16, content, full_step, sample_of, sampled_step, swapped_step, torch_file

STARTED = time.monotonic()

MANIFEST = "ckptfs-thinned.json"
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]
KEPT = ["config.json", "model.safetensors", "notes.txt", "tokenizer.json", "trainer_state.json"]


def thin(step, *words):
    return json.loads(run(CKPTFS, "thin", "--json", *words, step).stdout)["thinned"][0]


def refused(step, reason, *words):
    """It says why, and changes nothing."""
    before = sorted(os.listdir(step))
    done = run(CKPTFS, "thin", *words, step, check=False)
    equal(done.returncode, 1, f"status: {done.stdout}{done.stderr}")
    true(reason in done.stderr, f"{reason!r} in {done.stderr!r}")
    equal(sorted(os.listdir(step)), before, "the files")


def models(view):
    return {name: read(view / name) for name in os.listdir(view) if name.startswith("model.")}


def view_of(mount, step):
    return mount.path / "views" / SERIES / step.name


def test_weights_that_are_there_stay(mount):
    step, tensors = full_step(mount, 1)
    full_step(mount, 2)
    before, state = models(view_of(mount, step)), os.stat(step / "model.safetensors")
    dry = thin(step, "--dry-run")
    true(dry["dry_run"], "it is a dry run")
    equal(sorted(one["name"] for one in dry["went"]), sorted(RESUME), "what would go")
    equal(sorted(os.listdir(step)), sorted([*KEPT, *RESUME]), "the files after a dry run")
    done = thin(step)
    equal([one["name"] for one in done["kept"]], ["model.safetensors"], "what stays")
    true(done["freed"] >= 3 * MIB and done["exclusive_after"] < done["exclusive_before"], f"what it freed: {done}")
    true(abs(done["freed"] - dry["freed"]) < MIB // 4, f"what the dry run foretold: {dry['freed']}, {done['freed']}")
    equal(sorted(os.listdir(step)), sorted([*KEPT, MANIFEST]), "the files")
    equal(os.stat(step / "model.safetensors").st_ino, state.st_ino, "the file of weights is the same one")
    equal(parse(read(step / "model.safetensors")), tensors, "the weights")
    equal(read(step / "notes.txt"), b"mine", "a file of the user's")
    equal(models(view_of(mount, step)), before, "the models of its view")
    equal(mount.ask(step, "state"), "weights", "state")
    manifest = json.loads(read(step / MANIFEST))
    equal((manifest["from"], manifest["type"]), ("hf", "fp32"), "the manifest")
    mount.remount()
    equal(mount.ask(step, "state"), "weights", "state after a remount")
    equal(models(view_of(mount, step)), before, "the models of its view after a remount")
    os.unlink(step / "notes.txt")
    write(step / "more.txt", b"x")
    run("rm", "-r", step)


@pytest.mark.parametrize("sealed", (False, True))
def test_weights_are_cast(mount, sealed):
    step, tensors = full_step(mount, 1)
    full_step(mount, 2)
    if sealed:
        mount.seal(f"{SERIES}/{step.name}")
    wanted, time_before = read(view_of(mount, step) / "model.bf16.safetensors"), os.stat(step).st_mtime_ns
    done = thin(step, "--to", "bf16")
    equal((done["type"], [one["name"] for one in done["kept"]]), ("bf16", ["model.safetensors"]), "what stays")
    equal(sorted(os.listdir(step)), sorted([*KEPT, MANIFEST]), "the files")
    same_bytes(read(step / "model.safetensors"), wanted, "the weights")
    equal(parse(read(step / "model.safetensors")), {n: as_bf16(t) for n, t in tensors.items()}, "the tensors")
    same_bytes(read(view_of(mount, step) / "model.bf16.safetensors"), wanted, "the model of its view")
    equal(os.readlink(view_of(mount, step) / "model.safetensors"), "model.bf16.safetensors", "the type of its view")
    equal(os.stat(step).st_mtime_ns, time_before, "the step's time")
    equal(mount.ask(step, "state"), "weights", "state")
    equal(mount.ask(step, "seal"), "1" if sealed else "0", "seal")
    if sealed:
        with raises(errno.EPERM, what="writing to a sealed step"):
            os.open(step / "model.safetensors", os.O_WRONLY)
        with raises(errno.EPERM, what="making a file in a sealed step"):
            os.open(step / "new", os.O_CREAT | os.O_WRONLY)
    refused(step, "holds weights only already")
    copy = mount.path / SERIES / "checkpoint-9"
    run("cp", "-r", "--preserve=timestamps", step, copy)
    equal(mount.ask(copy, "state"), "weights", "state of a copy")
    mount.remount()
    same_bytes(read(step / "model.safetensors"), wanted, "the weights after a remount")


def test_what_it_refuses(mount):
    step, _ = full_step(mount, 1)
    newest, _ = full_step(mount, 2)
    refused(newest, "newest complete step")
    mount.control(step, "pin", "1")
    refused(step, "pinned")
    mount.control(step, "pin", "0")
    write(mount.path / SERIES / "latest", b"checkpoint-1")
    refused(step, "`latest` names it")
    os.unlink(mount.path / SERIES / "latest")
    with opened(step / "notes.txt", os.O_RDONLY):
        refused(step, "is open")
    with opened(step / "notes.txt", os.O_WRONLY):
        refused(step, "being written")
    os.rename(step / "trainer_state.json", mount.path / "aside")
    write(step / "training_args.bin", torch_file(b"x"))
    refused(step, "it is incomplete")
    os.rename(mount.path / "aside", step / "trainer_state.json")
    os.unlink(step / "training_args.bin")  # which would make it the newest step
    (step / "ckptfs-thinned.json").mkdir()
    refused(step, "would be replaced")
    (step / "ckptfs-thinned.json").rmdir()
    equal(run(CKPTFS, "thin", "--to", "int8", step, check=False).returncode, 2, "an unknown type")
    refused(mount.path / SERIES, "no step")
    thin(step)


def dcp_step(step):
    sampled_step(step, "dcp", (".metadata", "__0_0.distcp", "__1_0.distcp"))


def resumable(step):
    """What makes it a Trainer's step that can be resumed from."""
    write(step / "optimizer.pt", torch_file(b"moments"))
    write(step / "trainer_state.json", b'{"global_step": 1}')


def sharded_step(step):
    step.mkdir(parents=True)
    tensors = content(3)
    names, parts = sorted(tensors), {}
    for shard, part in zip(SHARDS, (names[:2], names[2:])):
        parts.update(dict.fromkeys(part, shard))
        write(step / shard, safetensors({name: tensors[name] for name in part}))
    write(step / SHARDS[-1], json.dumps({"metadata": {}, "weight_map": parts}).encode())
    write(step / "config.json", b"{}")
    resumable(step)


def inner_step(step):
    """A Trainer's, with DeepSpeed's in it."""
    swapped_step(step / "global_step3")
    write(step / "latest", b"global_step3")
    write(step / "global_step3" / "mine.txt", b"mine")
    resumable(step)


def adapter_step(step):
    step.mkdir(parents=True)
    write(step / "adapter_config.json", b"{}")
    write(step / "adapter_model.safetensors", safetensors({"lora_A": ("F32", [2], struct.pack("<2f", 1, 2))}))
    resumable(step)


def saved_step(step):
    step.parent.mkdir(parents=True, exist_ok=True)
    saving.save(step.parent, step.name, "a1", seal=0)


# What makes the step, and which files it has in the end.
KINDS = {
    "swapped": (swapped_step, ["model.safetensors"]),
    "dcp": (dcp_step, ["model.safetensors"]),
    "sharded": (sharded_step, [*SHARDS, "config.json", "trainer_state.json"]),
    "inner": (inner_step, ["global_step3", "model.safetensors", "trainer_state.json"]),
    "adapter": (adapter_step, ["adapter_config.json", "adapter_model.safetensors", "trainer_state.json"]),
    "saved": (saved_step, ["model.safetensors"]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds(mount, kind):
    make, files = KINDS[kind]
    for number in (1, 2):
        make(mount.path / SERIES / f"checkpoint-{number}")
    step = mount.path / SERIES / "checkpoint-1"
    before = models(view_of(mount, step))
    done = thin(step)
    equal(sorted(os.listdir(step)), sorted([*files, MANIFEST]), "the files")
    equal(models(view_of(mount, step))[f"model.{done['type']}.safetensors"], before[f"model.{done['type']}.safetensors"],
          "the model of its view")
    if "model.safetensors" in files:
        same_bytes(read(step / "model.safetensors"), before[f"model.{done['type']}.safetensors"], "the weights")
    if kind == "inner":
        equal(os.listdir(step / "global_step3"), ["mine.txt"], "what stays in the inner step")
    equal(mount.ask(step, "state"), "weights", "state")
    refused(step, "holds weights only already")


def test_an_adapter_keeps_its_name(mount):
    """PEFT looks for no other."""
    for number in (1, 2):
        adapter_step(mount.path / SERIES / f"checkpoint-{number}")
    step = mount.path / SERIES / "checkpoint-1"
    equal([one["name"] for one in thin(step, "--to", "bf16")["kept"]], ["adapter_model.safetensors"], "what is kept")
    halves = b"".join(struct.pack("<f", value)[2:] for value in (1, 2))
    equal(parse(read(step / "adapter_model.safetensors")), {"lora_A": ("BF16", [2], halves)},
          "the weights")


def test_a_view_with_problems(mount):
    for number in (1, 2):
        step = mount.path / SERIES / f"checkpoint-{number}"
        step.mkdir(parents=True)
        write(step / "pytorch_model.bin", sample_of("checkpoint", "sharded_bin")[1])
        resumable(step)
    refused(mount.path / SERIES / "checkpoint-1", "its view has problems")


def test_a_save_alone_has_no_names(mount):
    write_state(mount.path)
    for number in (1, 2):
        mount.save(f"global_step{number}")
        write_state(mount.path, number)
    refused(mount.path / "steps/global_step1", "no file of it tells the names")


def test_nothing_is_lost_by_a_link(mount):
    """A file that goes has a name elsewhere."""
    step, _ = full_step(mount, 1)
    full_step(mount, 2)
    content = read(step / "optimizer.pt")
    os.link(step / "optimizer.pt", mount.path / "mine")
    thin(step)
    same_bytes(read(mount.path / "mine"), content, "the other name")


def test_a_step_that_was_just_copied(mount):
    """Its files are clones of others, and the mount still works on them."""
    full_step(mount, 1)
    series = mount.path / SERIES
    for number in (2, 3, 4):
        shutil.copytree(series / "checkpoint-1", series / f"checkpoint-{number}")
    for number in (1, 2, 3):
        thin(series / f"checkpoint-{number}", "--to", "bf16")


@pytest.mark.one_mode
def test_who_may(mount):
    step, _ = full_step(mount, 1)
    full_step(mount, 2)
    socket_path = mount.ask(".", "socket")

    def stranger():
        answer, _ = Attacker(socket_path).ask("thin", path=f"/{SERIES}/{step.name}")
        equal(answer.get("errno"), errno.EACCES, f"the answer: {answer}")

    in_child(stranger, uid=4321, folder=mount.path)
    true((step / "optimizer.pt").exists(), "the step is as it was")


@pytest.mark.one_mode
def test_a_thin_step_is_none_to_resume_from(mount):
    """Rules count it as before, but it is never the newest complete step."""
    for number in (1, 2, 3):
        full_step(mount, number)
    step = mount.path / SERIES / "checkpoint-2"
    thin(step)
    run("rm", "-r", mount.path / SERIES / "checkpoint-3")
    found = json.loads(run(CKPTFS, "policy", "--json", "--dry-run", "--set", "keep_last=1", mount.path / SERIES).stdout)
    by_tag = {one["tag"]: (one["state"], one["stays"], one["by"]) for one in found["steps"]}
    equal(by_tag["checkpoint-1"], ("complete", True, ["newest"]), "the newest complete step")
    equal(by_tag["checkpoint-2"], ("weights", True, ["keep_last"]), "the thin step")
    text = run(CKPTFS, "ls", mount.path / SERIES).stdout
    true("weights" in text, text)


def test_space_comes_back(mount):
    step, _ = full_step(mount, 1, size=8 * MIB)
    full_step(mount, 2)
    blobs = mount.store.filled_blobs()
    thin(step, "--to", "bf16")
    wait_until("the blobs are gone", lambda: mount.store.filled_blobs() == blobs - len(RESUME) + 1)
    small = 64 * KIB  # the other files, a block each
    true(int(mount.ask(step, "bytes.exclusive")) <= 1.02 * os.stat(step / "model.safetensors").st_size + small,
         "the step takes more than its weights")


@pytest.mark.builds("faults")
@pytest.mark.one_mode
def test_what_the_disk_does_not_hold_replaces_nothing(mount):
    """The new weights are read back before the old ones go. Here a byte of them changes on the disk."""
    mount.stop()
    mount.binary, mount.faults = CKPTFS_DEBUG, "thin.written=1:sleep:1500"
    mount.start()
    step, _ = full_step(mount, 1)
    full_step(mount, 2)
    names, weights = sorted(os.listdir(step)), read(step / "model.safetensors")
    wanted = read(view_of(mount, step) / "model.bf16.safetensors")
    known = set(os.listdir(mount.store.blobs))

    def written():
        found = []
        for entry in os.scandir(mount.store.blobs):
            with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
                if entry.name not in known and entry.stat().st_size == len(wanted):
                    found.append(entry.path)
        return found

    with subprocess.Popen([CKPTFS, "thin", "--to", "bf16", step], stderr=subprocess.PIPE, text=True) as thinning:
        wait_until("the new weights are written", written)
        with opened(written()[0], os.O_WRONLY) as blob:
            os.pwrite(blob, bytes([wanted[-1] ^ 1]), len(wanted) - 1)
        said = thinning.communicate()[1]
    equal(thinning.returncode, 1, f"status: {said}")
    true("the disk does not hold what was written" in said, said)
    equal(sorted(os.listdir(step)), names, "the files")
    same_bytes(read(step / "model.safetensors"), weights, "the weights")
    wait_until("what was written is gone", lambda: not written())
    thin(step, "--to", "bf16")
    same_bytes(read(step / "model.safetensors"), wanted, "the weights of the thin step")


@pytest.mark.one_mode
def test_what_is_not_pushed_yet(mount):
    """hold_unpushed holds for the command, too, as the user has set it."""
    steps = [full_step(mount, number)[0] for number in (1, 2, 3, 4)]
    mount.control(SERIES, "push", "manual")
    (mount.store.folder.parent / "remote").mkdir()
    run(CKPTFS, "remote", "add", f"file://{mount.store.folder.parent}/remote", mount.path / SERIES)
    refused(steps[2], "it is not pushed yet")
    thin(steps[0], "--to", "bf16")
    mount.control(SERIES, "hold_unpushed", "0")
    thin(steps[2], "--to", "bf16")
    mount.control(SERIES, "hold_unpushed", "9")
    refused(steps[1], "it is not pushed yet")


@pytest.mark.builds("faults")
@pytest.mark.one_mode
@pytest.mark.parametrize("act, told", [("named", "`latest` names it"), ("moved", "has gone meanwhile"),
                                       ("moved beside a copy", "has gone meanwhile")])
def test_what_protects_it_comes_at_the_last_moment(mount, act, told):
    """All was asked and written, and the thinning waits for a save: `latest` names the step, or it becomes the newest,
    or the newest that was saved."""
    mount.stop()
    mount.binary, mount.faults = CKPTFS_DEBUG, "thin.before_change=1:sleep:3000"
    mount.start()
    (mount.path / SERIES).mkdir(parents=True)
    mount.control(SERIES, "keep_last", "9")  # from now on it is known who saves
    time.sleep(max(0.0, STARTED + OLD - time.monotonic()))  # this process is no command, wherever the runner starts it anew
    step, _ = full_step(mount, 1)
    newer, _ = full_step(mount, 2)
    if act.endswith("copy"):
        run("cp", "-r", newer, step.parent / "checkpoint-3")
    names, blobs = sorted(os.listdir(step)), mount.store.filled_blobs()
    with subprocess.Popen([CKPTFS, "thin", "--to", "bf16", step], stderr=subprocess.PIPE, text=True) as thinning:
        wait_until("what stays is written", lambda: mount.store.filled_blobs() >= blobs + 2)
        time.sleep(0.5)  # until it waits
        if act == "named":
            write(step.parent / "latest", step.name.encode())
        else:
            os.rename(newer, mount.path / "elsewhere")
        said = thinning.communicate()[1]
    equal(thinning.returncode, 1, f"status: {said}")
    true(told in said, said)
    equal(sorted(os.listdir(step)), names, "the files")


@pytest.mark.one_mode
def test_a_full_store(mount):
    step, _ = full_step(mount, 1)
    full_step(mount, 2)
    space = os.statvfs(mount.path)
    with opened(mount.path / "ballast", os.O_CREAT | os.O_WRONLY) as ballast:
        os.posix_fallocate(ballast, 0, space.f_bavail * space.f_frsize - 256 * KIB)
    refused(step, "are free; remove steps first", "--to", "bf16")
    os.unlink(mount.path / "ballast")
    wait_until("there is room", lambda: os.statvfs(mount.path).f_bavail >= space.f_bavail // 2)
    thin(step, "--to", "bf16")


def sparse_step(step, counts):
    """A Trainer's, of so many fp32 values. All are 0 but the first of each tensor, 1, and the last one, 2."""
    step.mkdir(parents=True)
    header, size = {}, 0
    for name, count in counts.items():
        header[name] = {"dtype": "F32", "shape": [count], "data_offsets": [size, size + 4 * count]}
        size += 4 * count
    text = json.dumps(header).encode()
    begin = 8 + len(text)
    with opened(step / "model.safetensors", os.O_CREAT | os.O_WRONLY) as file:
        os.pwrite(file, struct.pack("<Q", len(text)) + text, 0)
        os.ftruncate(file, begin + size)
        for one in header.values():
            first, end = one["data_offsets"]
            os.pwrite(file, struct.pack("<f", 1), begin + first)
            os.pwrite(file, struct.pack("<f", 2), begin + end - 4)
    resumable(step)


def ends_of(path):
    """Returns the type, shape, first and last value of each tensor."""
    with opened(path, os.O_RDONLY) as file:
        length = struct.unpack("<Q", os.pread(file, 8, 0))[0]
        header = json.loads(os.pread(file, length, 8))
        header.pop("__metadata__", None)
        found = {}
        for name, one in header.items():
            first, end = (8 + length + offset for offset in one["data_offsets"])
            found[name] = (one["dtype"], one["shape"], os.pread(file, 2, first), os.pread(file, 2, end - 2))
        equal(os.fstat(file).st_size, end, f"the size of {path}")
        return found


@pytest.mark.one_mode
@pytest.mark.timeout(900)
@pytest.mark.long
@pytest.mark.disk(13)
def test_weights_of_more_than_5_gb_become_shards(work):
    counts = {"a": 1_200_000_000, "b": 1_200_000_000, "c": 300_000_000}
    store = Store(work / "large", image="12G")
    with mounted(store, work / "mnt-large", mode="passthrough") as mount:
        for number in (1, 2):
            sparse_step(mount.path / SERIES / f"checkpoint-{number}", counts if number == 1 else {"a": 1})
        step = mount.path / SERIES / "checkpoint-1"
        done = thin(step, "--to", "bf16")
        equal(sorted(os.listdir(step)), sorted([*SHARDS, MANIFEST, "trainer_state.json"]), "the files")
        equal(sorted(one["name"] for one in done["kept"]), SHARDS, "what is kept")
        in_shard = {"a": SHARDS[0], "b": SHARDS[0], "c": SHARDS[1]}
        equal(json.loads(read(step / SHARDS[2]))["weight_map"], in_shard, "the index")
        wanted = {name: ("BF16", [count], b"\x80\x3f", b"\x00\x40") for name, count in counts.items()}
        for shard in SHARDS[:2]:
            tensors = {name: one for name, one in wanted.items() if in_shard[name] == shard}
            equal(ends_of(step / shard), tensors, shard)
            equal(ends_of(view_of(mount, step) / shard.replace("model", "model.bf16")), tensors, f"{shard} of its view")
        equal(mount.ask(step, "state"), "weights", "state")
    store.fsck()

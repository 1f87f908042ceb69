"""Steps saved and loaded past the mount: what is there when, what is frozen, who may, and what happens where it cannot be."""

import errno
import json
import os

import saving
from checking import equal, in_child, opened, raises, write
from mounting import CKPTFS, run, wait_until
from saving import ask


def listed(mount):
    """Rows of `ckptfs ls`, by tag."""
    return {row["tag"]: row for row in json.loads(run(CKPTFS, "ls", "--json", mount.path).stdout)["steps"]}


def test_it_appears_whole_and_sealed(mount):
    steps = mount.path / "steps"
    equal(saving.save(steps, "step_1", "a1"), ["begun", "copied", "durable", "committed"], "reached")
    equal(os.listdir(steps), ["step_1"], "steps")
    saving.check(steps / "step_1")
    row = listed(mount)["step_1"]
    equal((row["state"], row["kind"], row["ranks"]), ("sealed", "ckptfs", 1), "ls")
    with raises(errno.EPERM, what="writing into it"):
        os.open(steps / "step_1/rank00.safetensors", os.O_WRONLY)
    with raises(errno.EPERM, what="removing from it and adding to it"):
        write(steps / "step_1/more", b"x")
    mount.remount()
    saving.check(steps / "step_1")


def test_the_last_rank_commits(mount):
    steps = mount.path / "steps"
    for rank in (2, 0):
        equal(saving.save(steps, "step_1", "a1", rank=rank, world=3)[-1], "waiting", f"rank {rank}")
        equal(os.listdir(steps), ["partial-a1-step_1"], "steps")
    row = listed(mount)["partial-a1-step_1"]
    equal((row["state"], row["reason"]), ("incomplete", "it was not committed"), "ls")
    equal(saving.save(steps, "step_1", "a1", rank=1, world=3)[-1], "committed", "rank 1")
    saving.check(steps / "step_1", ranks=3)
    equal(listed(mount)["step_1"]["state"], "sealed", "state")


def test_an_attempt_of_an_earlier_version(mount):
    """What lies in a store under the name that earlier versions gave is an attempt, too."""
    steps = mount.path / "steps"
    folder = ask(mount, "begin", series="/steps", tag="step_1", attempt="a1")[0]["path"]
    (mount.path / folder.lstrip("/") / "model").write_bytes(b"mine")
    manifest = {"format": 1, "attempt": "a1", "rank": 0, "world_size": 1, "files": [{"name": "model", "size": 4}]}
    (mount.path / folder.lstrip("/") / "ckptfs.rank00.json").write_text(json.dumps(manifest))
    os.rename(steps / "partial-a1-step_1", steps / "step_1.a1.partial")
    row = listed(mount)["step_1.a1.partial"]
    equal((row["state"], row["reason"]), ("incomplete", "it was not committed"), "ls")
    with raises(errno.ENOENT, what="committing it as another step"):
        ask(mount, "commit", path="/steps/step_1.a1.partial", tag="step_2", world_size=1)
    ask(mount, "commit", path="/steps/step_1.a1.partial", tag="step_1", world_size=1)
    equal(os.listdir(steps), ["step_1"], "steps")


def test_ranks_that_finish_together(mount):
    """Whichever commits, all of them end well."""
    steps = mount.path / "steps"
    for number in range(30):
        ranks = [saving.begin(steps, f"step_{number}", "a1", rank=rank, world=3, size=5000) for rank in range(3)]
        for rank, process in enumerate(ranks):
            output, errors = process.communicate(timeout=60)
            equal(process.returncode, 0, f"round {number}, rank {rank}: {output} {errors}")
        saving.check(steps / f"step_{number}", ranks=3, size=5000)
        equal(mount.ask(f"steps/step_{number}", "state"), "sealed", f"round {number}")
    equal(len(os.listdir(steps)), 30, "steps")


def test_what_is_not_sealed_can_be_added_to(mount):
    """As the Trainer does; a file of that name that was there is replaced, and its folder stays."""
    steps = mount.path / "steps"
    (steps / "checkpoint-1/inside").mkdir(parents=True)
    write(steps / "checkpoint-1/rank00.safetensors", b"old")
    write(steps / "checkpoint-1/inside/other", b"other")
    inode = os.stat(steps / "checkpoint-1").st_ino
    with opened(steps / "checkpoint-1/rank00.safetensors", os.O_RDONLY) as old:
        equal(saving.save(steps, "checkpoint-1", "a1", seal=0)[-1], "committed", "reached")
        equal(os.pread(old, 10, 0), b"old", "what was replaced, for who has it open")
    equal(os.listdir(steps), ["checkpoint-1"], "steps")
    equal(os.stat(steps / "checkpoint-1").st_ino, inode, "inode of the step")
    saving.check(steps / "checkpoint-1")
    write(steps / "checkpoint-1/trainer_state.json", b'{"global_step": 1}')
    equal((steps / "checkpoint-1/inside/other").read_bytes(), b"other", "what was there")
    mount.stop()
    mount.store.fsck()
    mount.start()
    saving.check(steps / "checkpoint-1")


def test_a_sealed_step_stays_what_it_is(mount):
    steps = mount.path / "steps"
    saving.save(steps, "step_1", "a1")
    saving.save(steps, "step_1", "a2", seed=2, status=1)
    saving.check(steps / "step_1")
    equal(os.listdir(steps), ["step_1"], "steps")


def test_what_a_client_can_write_is_never_frozen(mount):
    """A descriptor that outlives its file's freeze is of another blob."""
    steps = mount.path / "steps"
    folder, _ = ask(mount, "begin", series="/steps", tag="step_1", attempt="a1")
    path = mount.path / folder["path"].lstrip("/") / "rank00.safetensors"
    inside = folder["path"] + "/rank00.safetensors"
    with raises(errno.ENOENT):
        os.stat(path)
    with opened(path, os.O_WRONLY | os.O_CREAT):
        result, [blob] = ask(mount, "blobs", paths=[inside], write=True)
        equal(result["files"][0]["inode"], os.stat(path).st_ino, "inode")
        os.pwrite(blob, b"before" * 1000, 0)
        equal(os.stat(path).st_size, 6000, "size, at once")
    ask(mount, "freeze", paths=[inside])
    os.pwrite(blob, b"AFTER!" * 2000, 0)
    equal(path.read_bytes(), b"before" * 1000, "content")
    with raises(errno.EPERM, what="opening it for writing"):
        os.open(path, os.O_WRONLY)
    os.close(blob)
    equal(sorted(os.listdir(steps)), ["partial-a1-step_1"], "steps")


def test_blobs_are_for_who_may_have_them(mount):
    write(mount.path / "mine", b"m" * 5000)
    os.chmod(mount.path / "mine", 0o600)
    write(mount.path / "free", b"f" * 5000)

    def of(path, **options):
        result, descriptors = ask(mount, "blobs", paths=[path], **options)
        for descriptor in descriptors:
            os.close(descriptor)
        return result["files"][0].get("errno", 0), len(descriptors)

    for name in ("/mine", "/free"):  # the daemon is told of a close after close() has returned
        wait_until(f"{name} is closed, and its owner may have it", lambda name=name: of(name) == (0, 1))
    equal(in_child(lambda: of("/mine"), uid=12345), (errno.EACCES, 0), "another")
    equal(in_child(lambda: of("/free"), uid=12345), (0, 1), "what all may read")
    equal(of("/none"), (errno.ENOENT, 0), "what is not there")
    equal(of("/steps"), (errno.EINVAL, 0), "a folder")
    equal(of("/mine", write=True), (errno.EBADF, 0), "to be written, and not open")
    with opened(mount.path / "mine", os.O_WRONLY):
        equal(of("/mine"), (errno.EBUSY, 0), "what is open for writing")
        equal(of("/mine", write=True), (0, 1), "to be written")
        equal(in_child(lambda: of("/mine", write=True), uid=12345), (errno.EACCES, 0), "to be written by another")
    wait_until("it is closed", lambda: of("/mine") == (0, 1))
    with raises(errno.EACCES, what="to begin a step where one may not write"):
        in_child(lambda: ask(mount, "begin", series="/steps", tag="s", attempt="a"), uid=12345)


def test_what_cannot_be_begun(mount):
    steps = mount.path / "steps"
    bad_tags = [(tag, "a") for tag in ("latest", "..", "s.partial", "partial-s")]
    for tag, attempt in (*bad_tags, ("s", ""), ("s", "a/b"), ("s", "a.b")):
        with raises(errno.EINVAL, what=f"{tag!r} {attempt!r}"):
            ask(mount, "begin", series="/steps", tag=tag, attempt=attempt)
    with raises(errno.EINVAL, what="in the root"):
        ask(mount, "begin", series="/", tag="s", attempt="a")
    saving.save(steps, "step_1", "a1")
    with raises(errno.EPERM, what="in a sealed step"):
        ask(mount, "begin", series="/steps/step_1", tag="s", attempt="a")
    with raises(errno.ENOENT, what="committing what is none"):
        ask(mount, "commit", path="/steps/step_1", tag="step_1", world_size=1)
    for ranks in (0, -1, 1 << 32):
        with raises(errno.EINVAL, what=f"{ranks} ranks"):
            ask(mount, "commit", path="/steps/step_1", tag="step_1", world_size=ranks)
    write(mount.path / "mine", b"m")
    with raises(errno.ENOENT, what="freezing what is of no attempt"):
        ask(mount, "freeze", paths=["/mine"])
    write(mount.path / "mine", b"again")
    os.unlink(mount.path / "mine")
    equal(os.listdir(steps), ["step_1"], "steps")


def test_a_step_of_another_user_stays_theirs(mount):
    """Also where both may write to the series."""
    steps = mount.path / "steps"
    os.chmod(steps, 0o777)
    (steps / "step_1").mkdir()
    write(steps / "step_1/model", b"root's")

    def take_over():
        folder = ask(mount, "begin", series="/steps", tag="step_1", attempt="a1")[0]["path"]
        (mount.path / folder.lstrip("/") / "model").write_bytes(b"mine")
        manifest = {"format": 1, "attempt": "a1", "rank": 0, "world_size": 1, "files": [{"name": "model", "size": 4}]}
        (mount.path / folder.lstrip("/") / "ckptfs.rank00.json").write_text(json.dumps(manifest))
        ask(mount, "commit", path=folder, tag="step_1", world_size=1)

    with raises(errno.EPERM, what="committing into it"):
        in_child(take_over, uid=12345)
    equal((steps / "step_1/model").read_bytes(), b"root's", "what it holds")


def test_a_part_of_a_step_is_no_step(mount):
    """As DeepSpeed's in a Trainer's folder: that is not complete before it is there."""
    step = mount.path / "steps/checkpoint-5"
    step.mkdir()
    write(step / "trainer_state.json", b'{"global_step": 5}')
    equal(saving.save(step, "global_step5", "a1", world=2)[-1], "waiting", "rank 0")
    row = listed(mount)["checkpoint-5"]
    equal((row["state"], row["reason"]), ("incomplete", "a part of it was not committed"), "ls")
    equal(saving.save(step, "global_step5", "a2")[-1], "committed", "another attempt")
    equal(sorted(os.listdir(step)), ["global_step5", "partial-a1-global_step5", "trainer_state.json"], "files")
    saving.check(step / "global_step5")
    equal([row["tag"] for row in listed(mount).values()], ["checkpoint-5"], "steps")
    write(step / "more", b"x")  # it is not sealed
    equal(listed(mount)["checkpoint-5"]["state"], "complete", "once it is there, whatever became of other attempts")


def test_it_is_loaded_past_the_mount(mount):
    steps = mount.path / "steps"
    saving.save(steps, "step_1", "a1")
    plain = mount.path.parent / "copy"
    run("cp", "-r", steps / "step_1", plain)
    wanted = saving.loaded(plain)
    equal([row[2] for row in wanted.values()], [0, 0, 0], "through a mount, of a copy outside")
    equal(saving.loaded(steps / "step_1"), wanted, "of the step")
    equal(saving.loaded(steps / "step_1/rank00.safetensors"), wanted, "of the file")
    with opened(steps / "step_1/rank00.safetensors", os.O_RDONLY):
        equal(saving.loaded(steps / "step_1"), wanted, "while it is read")
    run("rm", "-rf", plain)


def test_a_step_of_more_files_than_one_message_carries(mount):
    """A Trainer's shards; with few descriptors."""
    saving.save(mount.path / "steps", "step_1", "a1", size=3000)
    shard = (mount.path / "steps/step_1/rank00.safetensors").read_bytes()
    model = mount.path / "models/checkpoint-1"
    model.mkdir(parents=True)
    weight_map = {}
    for number in range(300):
        name = f"model-{number:05d}-of-00300.safetensors"
        write(model / name, shard.replace(b'"first"', b'"%05d"' % number).replace(b'"second"', b'"b%05d"' % number).replace(
            b'"third"', b'"c%04d"' % number))
        weight_map |= {f"{number:05d}": name}
    write(model / "model.safetensors.index.json", json.dumps({"weight_map": weight_map}).encode())
    write(model / "config.json", b"{}")
    limited = ["prlimit", "--nofile=400:400", saving.program(), "load", str(model)]
    rows = [line.split() for line in run(*limited).stdout.splitlines()]
    equal(len(rows), 900, "tensors")
    equal({row[3] for row in rows}, {"0"}, "read through the mount")


def test_a_file_that_is_written_to_is_read_through_the_mount(mount):
    saving.save(mount.path / "steps", "step_1", "a1", seal=0)
    source = mount.path / "steps/step_1/rank00.safetensors"
    copy = mount.path / "copy.safetensors"
    wanted = {name: row[:2] for name, row in saving.loaded(source).items()}
    write(copy, source.read_bytes())
    with opened(copy, os.O_RDWR):
        found = saving.loaded(copy)
    equal({name: row[:2] for name, row in found.items()}, wanted, "content")
    equal([row[2] for row in found.values()], [1, 1, 1], "read through the mount")


def test_what_was_never_committed_is_keep_partials(mount):
    steps = mount.path / "steps"
    saving.save(steps, "step_1", "a1")
    saving.save(steps, "step_2", "a1", rank=0, world=2)
    saving.save(steps, "step_3", "a1")
    mount.control("steps", "keep_partial", "1s")
    saving.save(steps, "step_4", "a1")
    # Rotation pauses fifty times as long as a round took, which is long where the machine is slow.
    wait_until("the partial step is removed", lambda: sorted(os.listdir(steps)) == ["step_1", "step_3", "step_4"], 120)

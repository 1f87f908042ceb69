"""Digests and what rests on them: verify, the scrub, sharing behind the scenes, identical steps, diff."""

import errno
import json
import os

from checking import equal, noise, raises, same_bytes, write
from mounting import CKPTFS, KIB, MIB, run, used_bytes, wait_until
from training import check_step, name_in_step, optimizer_file, step_of, write_state

SAVED = f"steps/s1/{name_in_step(optimizer_file(0))}"


def command(*words, status=0):
    done = run(CKPTFS, *words, "--json", check=False)
    equal(done.returncode, status, f"status of ckptfs {' '.join(map(str, words))}: {done.stderr}")
    return json.loads(done.stdout)


def verify(mount, path=".", status=0):
    """State of each file, by path from the mount's root."""
    found = command("verify", mount.path / path, status=status)
    return {file["path"]: file["state"] for file in found["files"]}


def settle(mount):
    """Until every file has its digests, and all is shared that can be."""

    def settled():
        care = mount.status()["care"]
        states = set(verify(mount).values())
        return care["waiting_files"] == 0 and states <= {"ok", "damaged"}

    wait_until("all files are digested", settled, 60, 0.2)


def blob_of(mount, path):
    """The backing file of a file whose size no other has."""
    size = os.stat(mount.path / path).st_size
    blobs = [blob for blob in mount.store.blobs.iterdir() if blob.stat().st_size == size]
    equal(len(blobs), 1, f"blobs of {size} bytes")
    return blobs[0]


def flip(blob, offset):
    with open(blob, "r+b", buffering=0) as file:
        byte = os.pread(file.fileno(), 1, offset)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 0x10]), offset)


def two_steps(mount):
    """A step by `save`, and one that was copied in; a file of each whose size no other has."""
    write_state(mount.path)
    mount.save("s1")
    (mount.path / "steps/global_step2").mkdir()
    write(mount.path / "steps/global_step2/mp_rank_00_model_states.pt", noise(3 * MIB + 777, 5))


def test_verify_names_what_is_damaged(mount):
    two_steps(mount)
    settle(mount)
    equal(set(verify(mount).values()), {"ok"}, "all files")
    copied = "steps/global_step2/mp_rank_00_model_states.pt"
    for path, offset in ((SAVED, 5), (copied, 2 * MIB + 3)):
        flip(blob_of_saved(mount) if path == SAVED else blob_of(mount, path), offset)
    found = command("verify", mount.path, status=3)
    damaged = {file["path"]: file["damaged"] for file in found["files"] if file["state"] == "damaged"}
    equal(set(damaged), {f"/{SAVED}", f"/{copied}"}, "what is damaged")
    equal(damaged[f"/{copied}"], [{"offset": 2 * MIB, "length": MIB}], "where")
    text = run(CKPTFS, "verify", mount.path / copied, check=False).stdout
    assert "DAMAGED" in text and copied in text and str(2 * MIB) in text, text
    assert f"/{SAVED}: damaged" in mount.log.read_text(), "the log names it"
    wait_until("status names it", lambda: f"/{copied}" in mount.status()["care"]["damaged"])
    equal(verify(mount, "steps/s1", status=3)[f"/{SAVED}"], "damaged", "of one step")


def blob_of_saved(mount):
    """The saved file's: of the blobs with its content the one that is not the live file's."""
    content = (mount.path / SAVED).read_bytes()
    blobs = sorted(blob for blob in mount.store.blobs.iterdir() if blob.read_bytes() == content)
    equal(len(blobs), 2, "blobs with that content: the live one's, then the clone")
    return blobs[1]


def test_what_steps_share_is_read_once(mount):
    wanted = step_of(write_state(mount.path))
    for tag in ("s1", "s2"):
        mount.save(tag)
    settle(mount)
    found = command("verify", mount.path)
    equal(found["bytes"], sum(len(content) for content in wanted.values()), "bytes read")
    equal(len(found["files"]), 2 * len(wanted), "files judged")
    flip(blob_of_saved(mount), 5)
    states = verify(mount, status=3)
    damaged = {path for path, state in states.items() if state == "damaged"}
    equal(damaged, {f"/{SAVED}", f"/{SAVED.replace('s1', 's2')}"}, "each file that names the blob is damaged")


def test_the_scrub_names_what_is_damaged(mount):
    mount.options = ("scrub=2s",)
    mount.remount()
    two_steps(mount)
    settle(mount)
    wait_until("something is read again", lambda: mount.status()["care"]["bytes_scrubbed"] > 0, 60)
    equal(mount.status()["care"]["damaged"], [], "nothing is damaged")
    flip(blob_of(mount, "steps/global_step2/mp_rank_00_model_states.pt"), 99)
    path = "/steps/global_step2/mp_rank_00_model_states.pt"
    wait_until("the scrub finds it", lambda: path in mount.status()["care"]["damaged"], 60)
    assert f"{path}: damaged" in mount.log.read_text(), "the log names it"
    assert any("verify" in warning for warning in mount.status()["warnings"]), mount.status()["warnings"]


def test_what_is_written_anew_is_no_damage(mount):
    two_steps(mount)
    settle(mount)
    path = "steps/global_step2/mp_rank_00_model_states.pt"
    with open(mount.path / path, "r+b") as file:
        file.seek(MIB)
        file.write(b"changed")
        file.flush()
        equal(verify(mount, path)[f"/{path}"], "changed", "while it is open")
    settle(mount)
    equal(verify(mount, path)[f"/{path}"], "ok", "digested again")


def test_digests_outlive_the_mount(mount):
    two_steps(mount)
    settle(mount)
    mount.stop()
    flip(sorted(mount.store.blobs.iterdir(), key=lambda blob: blob.stat().st_size)[-1], 12345)
    mount.start()
    assert "damaged" in verify(mount, status=3).values(), "a byte that flipped while it was not mounted"


def test_equal_files_are_shared(mount):
    content = noise(8 * MIB + 100, 1)
    before = used_bytes(mount.store.folder)
    for name in ("first", "second", "third"):
        write(mount.path / name, content)
    wait_until("shared", lambda: mount.status()["care"]["bytes_shared"] == 2 * len(content), 60)
    run("sync", "-f", mount.store.folder)
    taken = used_bytes(mount.store.folder) - before
    assert taken < 10 * MIB, f"three equal files of 8 MiB take {taken >> 20} MiB"
    with open(mount.path / "second", "r+b") as file:
        file.write(b"changed")
    for name in ("first", "third"):
        same_bytes((mount.path / name).read_bytes(), content, name)
    same_bytes((mount.path / "second").read_bytes(), b"changed" + content[7:], "second")


def test_neighbouring_steps_share_equal_parts(mount):
    content = noise(8 * MIB, 1)
    changed = content[: 3 * MIB] + noise(MIB, 2) + content[4 * MIB :]
    for step, data in (("global_step1", content), ("global_step2", changed)):
        (mount.path / "steps" / step).mkdir()
        # In pieces that are too short to be adopted.
        with open(mount.path / "steps" / step / "mp_rank_00_model_states.pt", "wb", buffering=0) as file:
            for at in range(0, len(data), 16 * KIB):
                file.write(data[at : at + 16 * KIB])
    wait_until("shared", lambda: mount.status()["care"]["bytes_shared"] == 7 * MIB, 60)
    for step, data in (("global_step1", content), ("global_step2", changed)):
        same_bytes((mount.path / "steps" / step / "mp_rank_00_model_states.pt").read_bytes(), data, step)


def test_a_step_that_changed_nothing_is_reported(mount):
    wanted = step_of(write_state(mount.path))
    for tag in ("s1", "s2"):
        mount.save(tag)
    with raises(errno.ENODATA):
        mount.ask("steps/s1", "identical_to")
    equal(mount.ask("steps/s2", "identical_to"), "s1", "of the step")
    equal(mount.ask(SAVED.replace("s1", "s2"), "identical_to"), "s1", "of a file")
    wait_until("status says so", lambda: mount.status()["care"]["identical"] == ["/steps/s2"], 60)
    assert any("/steps/s2" in warning for warning in mount.status()["warnings"]), "a warning"
    assert "/steps/s2: its tensors are" in mount.log.read_text(), "in the log"
    with open(mount.path / optimizer_file(0), "r+b") as file:
        file.write(b"changed")
    mount.save("s3")
    with raises(errno.ENODATA):
        mount.ask("steps/s3", "identical_to")
    check_step(mount.path / "steps/s2", wanted)


def test_diff_tells_what_changed(mount):
    write_state(mount.path)
    mount.save("s1")
    with open(mount.path / optimizer_file(0), "r+b") as file:
        file.write(b"changed")
    mount.save("s2")
    write(mount.path / "steps/s2/latest", b"s2")
    found = command("diff", mount.path / "steps/s1", mount.path / "steps/s2")
    changes = {file["path"]: file["change"] for file in found["files"] if file["change"] != "same"}
    equal(changes, {name_in_step(optimizer_file(0)): "changed", "latest": "added"}, "changes")
    size = os.stat(mount.path / SAVED).st_size
    assert 7 <= found["bytes"] - 2 <= min(MIB, size), found["bytes"]
    assert found["read"] <= MIB, f"{found['read']} bytes were read"
    text = run(CKPTFS, "diff", mount.path / "steps/s1", mount.path / "steps/s2").stdout
    assert "latest" in text and "2 differ" in text, text
    done = run(CKPTFS, "diff", mount.path / "steps/s1", mount.path / "steps/s9", check=False)
    equal(done.returncode, 1, "a step that is not there")

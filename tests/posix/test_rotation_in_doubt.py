"""Rotation: what cannot be told, is damaged or not durable removes nothing, and is none to keep."""

import json
import os

import pytest

from checking import equal, true, write
from mounting import CKPTFS, CKPTFS_DEBUG, MIB, run, wait_until
from rotating_series import SERIES, make_series, never, stays, write_step
from training import write_state


@pytest.mark.one_mode
def test_what_cannot_be_told_removes_nothing(mount):
    """A `latest` that cannot be told protects all. NaN in a history, and what it says of other steps, are no metric."""
    make_series(mount, keep_best="eval_loss:min:1")
    best = write_step(mount, 1, 0.1)
    write(best / "trainer_state.json",
          b'{"global_step": 1, "log_history": [{"step": 1, "eval_loss": 0.1, "grad_norm": NaN}]}')
    later = write_step(mount, 2)  # an evaluation of another step, which it has in its history
    write(later / "trainer_state.json", b'{"global_step": 2, "log_history": [{"step": 1, "eval_loss": 0.05}]}')
    write_step(mount, 3, 3.0)
    write_step(mount, 4, 2.0)
    stays(mount, {1, 4})
    write(mount.path / SERIES / "latest", b"")
    write_step(mount, 5, 5.0)
    write_step(mount, 6, 5.0)
    never(mount, {1, 4, 5, 6})
    wait_until("it says so", lambda: any("latest" in warning for warning in mount.status()["warnings"]))
    os.symlink("checkpoint-5", mount.path / SERIES / "new")
    os.replace(mount.path / SERIES / "new", mount.path / SERIES / "latest")  # without one no rule keeps it
    stays(mount, {1, 5, 6})


@pytest.mark.one_mode
def test_a_metric_that_cannot_be_read_protects_its_step(mount):
    make_series(mount, keep_best="eval_loss:min:1")
    step = write_step(mount, 1)
    write(step / "trainer_state.json", b'{"global_step": 1, "log_history": [')
    mount.control(f"{SERIES}/checkpoint-1", "seal", "1")  # who seals it says that it is whole
    for number in (2, 3, 4):
        write_step(mount, number, number + 0.5)
    stays(mount, {1, 2, 4})


def test_what_a_power_loss_left_is_not_complete(mount):
    """Names without content: the step before stays, whatever the rules say of the last one."""
    make_series(mount, keep_last=1)
    for number in (1, 2):
        write_step(mount, number)
    stays(mount, {2})
    broken = mount.path / SERIES / "checkpoint-3"
    broken.mkdir()
    for name in ("config.json", "model.safetensors", "trainer_state.json"):
        write(broken / name, b"")
    never(mount, {2, 3})
    equal(mount.ask(f"{SERIES}/checkpoint-3", "state"), "incomplete", "state")
    mount.control(SERIES, "keep_partial", "1s")
    write_step(mount, 4)
    stays(mount, {4})


@pytest.mark.builds("faults")
def test_what_cannot_be_made_durable_removes_nothing(mount):
    """The disk fails under the newest step: the one before it stays, whatever the rules say."""
    mount.stop()  # no digests: what has them is durable already
    mount.binary, mount.faults = CKPTFS_DEBUG, "digests.read=error:EIO;fs.sync_file=1:error:EIO"
    mount.start()
    make_series(mount, keep_last=1)
    for number in (1, 2):
        write_step(mount, number)
    wait_until("it says so", lambda: "what stays is not durable" in mount.read_log(), 20)
    wait_until("the step does not count", lambda: mount.ask(f"{SERIES}/checkpoint-2", "state") == "damaged")
    never(mount, {1, 2})
    write_step(mount, 3)
    stays(mount, {2, 3})


@pytest.mark.one_mode
def test_what_is_damaged_is_none_to_keep(mount):
    """The disk has lost bytes of the newest step: the whole one before it stays."""
    make_series(mount, keep_last=2)
    first, second = write_step(mount, 1), write_step(mount, 2, extra=MIB + 777)
    stays(mount, {1, 2})

    def states():
        found = json.loads(run(CKPTFS, "verify", "--json", mount.path / SERIES, check=False).stdout)["files"]
        return {file["state"] for file in found}

    wait_until("all have digests", lambda: states() == {"ok"}, 60, 0.2)
    [blob] = [blob for blob in mount.store.blobs.iterdir() if blob.stat().st_size == MIB + 777]
    before = blob.stat()
    with open(blob, "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), bytes(4096), 65536)
    os.utime(blob, ns=(before.st_atime_ns, before.st_mtime_ns))
    wait_until("it is found", lambda: "damaged" in states())
    equal(mount.ask(f"{SERIES}/checkpoint-2", "state"), "damaged", "state")
    write_step(mount, 3)
    stays(mount, {1, 2, 3})
    write_step(mount, 4)
    stays(mount, {2, 3, 4})
    true(second.exists() and not first.exists(), "which ones are left")


@pytest.mark.one_mode
def test_a_saved_step_whose_data_is_gone_is_none_to_keep(mount):
    make_series(mount, keep_last=2)

    def save(number):
        write_state(mount.path, version=number)
        mount.save(f"checkpoint-{number}", SERIES)

    def filled():
        return {blob for blob in mount.store.blobs.iterdir() if blob.stat().st_size > 0}

    save(1)
    before = filled()
    save(2)
    stays(mount, {1, 2})
    lost = min(filled() - before)
    mount.kill()
    lost.unlink()
    mount.start()
    equal(mount.ask(f"{SERIES}/checkpoint-2", "state"), "damaged", "state")
    save(3)
    stays(mount, {1, 2, 3})
    save(4)
    stays(mount, {2, 3, 4})
    mount.remove_step(f"{SERIES}/checkpoint-2")  # so that fsck finds nothing


@pytest.mark.one_mode
def test_a_hostile_state_ends_no_mount(mount):
    """The rule reads trainer_state.json of each step, also right after a start."""
    make_series(mount, keep_best="eval_loss:min:1")
    write_step(mount, 1, loss=1.0)
    deep = write_step(mount, 2) / "trainer_state.json"
    write(deep, b'{"global_step": 2, "log_history": [' + b"[" * 200_000 + b"]" * 200_000 + b"]}")
    write_step(mount, 3, loss=0.5)
    stays(mount, {2, 3})
    mount.remount()
    never(mount, {2, 3})
    found = {row["tag"]: row for row in json.loads(run(CKPTFS, "ls", "--json", mount.path / SERIES).stdout)["steps"]}
    equal(found["checkpoint-2"]["state"], "unknown", "state")
    true("deep in each other" in found["checkpoint-2"]["reason"], f"why: {found['checkpoint-2']}")
    equal(found["checkpoint-3"]["state"], "complete", "state of the step beside it")

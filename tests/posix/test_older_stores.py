"""Stores that earlier versions made are opened by this one, with all that is in them.

store-format-4.tar.xz was made by the version of November 28, 2026, before 0.1.0: a series with rules, a sealed step, a
metric, a saved and pinned step, links, an xattr. A new format gets a file of its own; none is ever made anew.
"""

import json
import os
import pathlib

import pytest

from calling import ckptfs, status_is
from checking import equal, read, write
from mounting import CKPTFS, Store, mounted, run
from rotating_series import SERIES, decisions, policy, write_step

OLD_STORES = sorted(pathlib.Path(__file__).parent.glob("store-format-*.tar.xz"))


@pytest.mark.one_mode
@pytest.mark.parametrize("packed", OLD_STORES, ids=lambda path: path.name.split(".")[0])
def test_is_opened_with_all_that_is_in_it(packed, work, disk, mode):
    folder = disk / f"{packed.name}-{mode}"
    folder.mkdir()
    run("tar", "--xattrs", "-xf", packed, "-C", folder)
    store = Store(folder / "store")
    store.fsck()
    with mounted(store, work / "old", mode=mode) as mount:
        steps = {step["tag"]: step["state"] for step in json.loads(run(CKPTFS, "ls", "--json", mount.path).stdout)["steps"]}
        equal(steps, {"checkpoint-10": "complete", "checkpoint-20": "sealed", "checkpoint-30": "complete",
                      "global_step5": "complete"}, "the steps")
        found = policy(mount)
        equal(found["armed"], {"keep_last": "3", "keep_best": "eval_loss:min:1"}, "the rules")
        equal({number: "keep_best" in by for number, (_, by) in decisions(found).items()}, {10: True, 20: False, 30: False},
              "the best by the metric")
        equal(read(mount.path / "steps/global_step5/offloaded_tensors/rank00/0_0.tensor.swp"), bytes(range(256)) * 64, "saved")
        equal((read(mount.path / "link"), read(mount.path / "second name")), (b"kept\n", b"kept\n"), "links")
        equal(os.getxattr(mount.path / "notes.txt", "user.mine"), b"value", "an xattr")
        equal(json.loads(read(mount.path / SERIES / "checkpoint-10/trainer_state.json"))["global_step"], 10, "a file")
        status_is(ckptfs("rm", mount.path / "steps/global_step5"), 1, "pinned")
        mount.save("global_step6")
        write_step(mount, 40, 3.5)
        mount.wait_for_rounds(3)
        equal(sorted(os.listdir(mount.path / SERIES)), [f"checkpoint-{number}" for number in (10, 20, 30, 40)], "rules go on")
        write(mount.path / "notes.txt", b"changed\n")
    store.fsck()

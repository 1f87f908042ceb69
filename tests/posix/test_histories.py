"""Random histories of series with rules: trainings that save, save again, die and start again lower, what others do
beside them, kills of the daemon. After each act the newest whole save of each training that lives is there, in full.

Many histories go on side by side, so that rotation's rounds are waited for once. A failure prints the seed and the acts
of each history that failed: `--seed THAT --rounds 1` replays it.
"""

import contextlib
import functools
import json
import random
import shutil

import pytest

from histories import History
from mounting import Failure, Store, by_level, mounted, run, wait_until
from rotating_series import SERIES, make_series, stays, write_step
from savers import Pool, trainers

SIDE_BY_SIDE = 100
OF_A_STORE = 500  # a round takes the longer the more series there are, those of histories that have ended, too
OF_A_MOUNT = 25  # rotation takes a fiftieth of its time for its rounds, so that many series make them rare


def going_well(histories, act):
    """Those of which act(history) finds nothing wrong."""
    return [history for history in histories if is_well(history, act)]


def is_well(history, act):
    try:
        act(history)
    except Failure as found:
        history.say(str(found))
        print(f"--- {history.series}, seed {history.seed}, {history.mount.mode}:", *history.told, sep="\n", flush=True)
        return False
    return True


def wait_for_rounds(mounts, count=1):
    """As Mount.wait_for_rounds(), for all at once. A rule that is set wakes rotation out of its pause."""
    wanted = {mount: rounds_of(mount) + count + 1 for mount in mounts}

    def have_passed():
        late = [mount for mount in mounts if rounds_of(mount) < wanted[mount]]
        for mount in late:
            mount.control("poke", "keep_last", "1")
        return not late

    wait_until("rotation's rounds", have_passed, 60, 0.03)


def rounds_of(mount):
    return mount.status()["rotation"]["rounds"]


def walk_in_new_stores(work, disk, mode, seed, numbers):
    """Returns how many histories went well."""
    count = min(SIDE_BY_SIDE, len(numbers) + OF_A_MOUNT - 1) // OF_A_MOUNT
    stores = [Store(disk / f"{mode}-{at}") for at in range(count)]
    well = 0
    with contextlib.ExitStack() as stack:
        mounts = [stack.enter_context(mounted(store, work / f"mnt-{store.folder.name}", mode=mode)) for store in stores]
        for mount in mounts:
            (mount.path / "poke").mkdir()
        for first in numbers[::SIDE_BY_SIDE]:
            side_by_side = min(SIDE_BY_SIDE, numbers[-1] + 1 - first)
            with Pool(2 * side_by_side) as pool:
                well += walk(mounts, pool, seed + first, first, side_by_side)
    for store in stores:
        store.fsck()
        shutil.rmtree(store.folder)
    return well


def walk(mounts, pool, seed, first, count):
    """Returns how many histories went well."""
    well = [History(mounts[at % len(mounts)], pool, seed + at, f"h{first + at:05}") for at in range(count)]
    while any(history.left for history in well):
        well = going_well(well, History.act)
        pool.fill()
        wait_for_rounds(mounts)
        well = going_well(well, History.look)
    wait_for_rounds(mounts, 2)
    return len(going_well(well, end))


def end(history):
    wait_until(f"no more steps stay than the rules say: {history.too_many()}", functools.partial(is_over, history), 10)


def is_over(history):
    history.look()
    history.mount.control("poke", "keep_last", "1")
    return not history.too_many()


def save_as_newest(mount, training, number, **state):
    """A step of a Trainer, which rotation has seen then. `state`: what its trainer_state.json has, too."""
    folder = mount.path / SERIES / f"checkpoint-{number}"
    files = dict(trainers(random.Random(1), number, 1.0))
    last = json.loads(files.pop("trainer_state.json")) | state
    files["trainer_state.json"] = json.dumps(last).encode()
    training.do([("mkdir", folder)] + [("write", folder / name, data) for name, data in files.items()])
    wait_for_rounds([mount], 2)


@pytest.mark.one_mode
def test_a_copy_pushes_out_nothing_that_a_training_needs(mount):
    """It is the newest in both orders: by its number, and because it came last."""
    make_series(mount, keep_last=1)
    (mount.path / "poke").mkdir()
    with Pool(1) as pool:
        save_as_newest(mount, pool.take(), 10)
        for number in (98, 99):
            run("cp", "-r", mount.path / SERIES / "checkpoint-10", mount.path / SERIES / f"checkpoint-{number}")
            wait_for_rounds([mount], 2)
        stays(mount, {10, 99})
    stays(mount, {10, 99}, "and once it has ended")
    with Pool(1) as pool:
        notes = mount.path / SERIES / "checkpoint-99/eval_results.json"
        pool.take().do([("write", notes, b"{}")])
        wait_for_rounds([mount], 6)
    stays(mount, {10, 99}, "and once an evaluation has written into the copy")


@pytest.mark.one_mode
def test_a_copy_takes_no_protection_from_the_best_model(mount):
    """The training's newest step names it, whatever a copy that came later says."""
    make_series(mount, keep_last=1)
    (mount.path / "poke").mkdir()
    with Pool(1) as pool:
        training = pool.take()
        for number, best in ((3, 3), (12, 12), (15, 12)):
            save_as_newest(mount, training, number, best_model_checkpoint=f"out/checkpoint-{best}")
        stays(mount, {12, 15}, "the best and the newest")
        old = write_step(mount, 3, series="elsewhere", best="out/checkpoint-3")
        run("cp", "-r", old, mount.path / SERIES / "checkpoint-25")
        wait_for_rounds([mount], 2)
        stays(mount, {12, 15, 25}, "and a copy")


@pytest.mark.timeout(4 * 3600)
def test_random_histories(work, disk, mode, seed, rounds):
    rounds, well = rounds or by_level(SIDE_BY_SIDE, 5000), 0
    for first in range(0, rounds, OF_A_STORE):
        well += walk_in_new_stores(work, disk, mode, seed, range(first, min(first + OF_A_STORE, rounds)))
    assert well == rounds, f"{rounds - well} of {rounds} histories failed"

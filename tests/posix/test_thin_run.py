"""A long run with keep_full, keep_every and keep_last: at each moment the newest two steps can be resumed from, to the
last bit, and in the end the steps take what theory says."""

import pytest

import thinned_run
from checking import equal, true
from mounting import KIB, by_level, wait_until
from thinned_run import is_settled, space, theory

pytestmark = pytest.mark.one_mode

SERIES = "runs/model"
WEIGHTS = 256 * KIB


@pytest.mark.timeout(900)
def test_newest_steps_can_be_resumed_from(mount):
    series, saved = mount.path / SERIES, {}
    series.mkdir(parents=True)
    for rule, value in thinned_run.RULES.items():
        mount.control(SERIES, rule, str(value))

    def check():
        for number in thinned_run.full(max(saved, default=0)):
            step = series / f"checkpoint-{number}"
            for name, data in saved[number].items():
                true((step / name).read_bytes() == data, f"{step / name} while step {max(saved) + 1} is saved")

    for number in range(1, by_level(60, 520) + 1):
        files = thinned_run.files_of(number, WEIGHTS)
        thinned_run.save(series, number, files, check)
        saved = {number: files, **{one: saved[one] for one in thinned_run.full(number) if one in saved}}
        if number % 50 == 0:
            wait_until(f"{number} saves are thinned", lambda: is_settled(series, number), 30, 0.05)
            wait_until("the space is free", lambda: space(mount.store) < 1.05 * theory(number, WEIGHTS), 30, 0.05)
            true(space(mount.store) > 0.95 * theory(number, WEIGHTS), f"{space(mount.store)} bytes are too few")
    check()
    status = mount.status()["rotation"]
    true(status["thinned"] >= 15 and status["failures"] == 0, f"{status}")
    equal(mount.status()["warnings"], [], "warnings")

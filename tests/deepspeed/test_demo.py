"""scripts/demo, as a user runs it: it ends well, says what each way of saving cost, and leaves nothing behind."""

import pathlib
import re

import pytest

from checking import equal, true
from mounting import REPOSITORY, run

pytestmark = [pytest.mark.builds("venv"), pytest.mark.long, pytest.mark.timeout(1800)]


def test_demo(venv, scratch):
    done = run(REPOSITORY / "scripts" / "demo", "--remote", scratch, timeout=1700)
    print(done.stdout)
    mounts = pathlib.Path("/proc/self/mountinfo").read_text()
    true(str(scratch) not in mounts, f"nothing stays mounted: {mounts}")
    equal([path.name for path in scratch.iterdir()], [], "what it leaves in its folder")
    numbers = re.findall(r"\d+(?:\.\d+)? (?:KB|MB|GB|KiB|MiB|GiB)", done.stdout)
    true("Every file is as it was." in done.stdout, "a step comes back from a remote")
    true(len(numbers) >= 4, f"it says what was written: {numbers}")

"""The limits of docs/limits.md that no other test reaches."""

import errno
import json
import os
import struct

import pytest

from checking import equal, raises, true, write
from mounting import CKPTFS, run

pytestmark = pytest.mark.one_mode

TENSORS = 131_072


def test_names_and_targets(folder):
    name = "n" * 255
    write(folder / name, b"x")
    os.symlink("t" * 4095, folder / "link")
    equal(len(os.readlink(folder / "link")), 4095, "the target")
    with raises(errno.ENAMETOOLONG):
        write(folder / (name + "n"), b"x")
    with raises(errno.ENAMETOOLONG):
        os.symlink("t" * 4096, folder / "longer")


def test_size_of_a_file(folder):
    most = (1 << 63) - 1
    with open(folder / "file", "wb") as file:
        file.truncate(most)
        os.pwrite(file.fileno(), b"x", 1 << 62)
        equal(os.fstat(file.fileno()).st_size, most, "the size")
        with raises(errno.EFBIG, errno.EINVAL):
            os.pwrite(file.fileno(), b"xx", most)
    os.unlink(folder / "file")


def write_tensors(path, count):
    header = {f"layer.{number:06}.weight": {"dtype": "BF16", "shape": [1], "data_offsets": [2 * number, 2 * number + 2]}
              for number in range(count)}
    text = json.dumps(header).encode()
    write(path, struct.pack("<Q", len(text)) + text + bytes(2 * count))


def test_tensors_of_a_file(folder):
    for number, count in ((1, TENSORS), (2, TENSORS + 1)):
        step = folder / f"checkpoint-{number}"
        step.mkdir()
        write_tensors(step / "model.safetensors", count)
        write(step / "config.json", b'{"torch_dtype": "bfloat16"}')
        write(step / "trainer_state.json", b'{"global_step": 1, "log_history": []}')
    rows = json.loads(run(CKPTFS, "ls", "--json", folder).stdout)["steps"]
    states = {row["tag"]: (row["state"], row["reason"]) for row in rows}
    true(states["checkpoint-1"][0] != "unknown", f"the step with the most tensors: {states}")
    equal(states["checkpoint-2"], ("unknown", f"model.safetensors: a safetensors header: it has more than {TENSORS} tensors"))

"""The Python package as a wheel, built from the sources and installed into an environment of its own."""

import sys

import pytest

from checking import equal, true
from mounting import REPOSITORY, run

pytestmark = [pytest.mark.timeout(600), pytest.mark.long]

USE = """
import ctypes, os, ckptfs.native as native
assert "site-packages" in native.__file__
series, save, done = os.getcwd(), ctypes.c_void_p(), ctypes.c_int()
data = ctypes.create_string_buffer(b"0123456789", 10)
native.call("ckptfs_save_begin", native.ring("twin"), series.encode(), b"step_1", b"a", 0, 1, ctypes.byref(save))
part = (native.Part * 1)()
part[0].memory, part[0].bytes, part[0].offset = ctypes.addressof(data), 10, 3
native.call("ckptfs_save_file", save, b"file", 20, part, 1, None)
native.call("ckptfs_save_wait_durable", save)
native.call("ckptfs_save_commit", save, 0, ctypes.byref(done))
assert done.value == 1 and open("step_1/file", "rb").read() == b"\\0" * 3 + b"0123456789" + b"\\0" * 7
import ckptfs.patch
assert (ckptfs.patch._CHILDREN / "sitecustomize.py").exists()
print("through")
"""


def test_built_and_used(scratch):
    environment = scratch / "environment"
    run(sys.executable, "-m", "venv", environment, timeout=200)
    pip = environment / "bin" / "pip"
    run(pip, "wheel", "--no-deps", "-w", scratch, REPOSITORY / "gpu" / "python", timeout=400)
    wheels = list(scratch.glob("ckptfs-*.whl"))
    equal(len(wheels), 1, "wheels")
    true("-py3-none-linux_" in wheels[0].name, f"one for every Python of this platform: {wheels[0].name}")
    run(pip, "install", "--no-deps", wheels[0], timeout=200)
    equal(run(environment / "bin" / "python", "-c", USE, cwd=scratch).stdout.strip(), "through", "output")

"""What docs/loading.md tells users of Python to write is run here, as it stands there but for the mount's path."""

import re
import subprocess

import pytest

from harness import REPOSITORY, Ckptfs, environment, equal, python, true

pytestmark = [pytest.mark.builds("venv"), pytest.mark.timeout(900)]

BEFORE = """
import torch, ckptfs
model = torch.nn.Linear(300, 200)
wanted = {name: tensor.clone() for name, tensor in model.state_dict().items()}
ckptfs.Saver("/ckpt/steps").save("step_100", model.state_dict()).wait()
with torch.no_grad():
    model.weight.zero_()
"""
AFTER = """
assert all(torch.equal(tensors[name], wanted[name]) for name in wanted) and tensors.keys() == wanted.keys()
assert torch.equal(model.weight, wanted["weight"]) and torch.equal(one, wanted["weight"])
assert all(torch.equal(tensor, wanted[name]) for name, tensor in ckptfs.load("/ckpt/steps/step_200").items())
turned = torch.empty(300, 200).t()  # it does not lie in order
assert torch.equal(ckptfs.load("/ckpt/steps/step_200", into={"weight": turned})["weight"], wanted["weight"])
# What nobody should get wrong without being told.
for wrong, what in ((dict(names=["none"]), KeyError), (dict(into={"weight": torch.empty(2)}), ValueError),
                    (dict(into={"weight": torch.empty(200, 300).to_sparse()}), TypeError)):
    try:
        ckptfs.load("/ckpt/steps/step_200", **wrong)
    except what:
        continue
    raise AssertionError(wrong)
with ckptfs.Checkpoint("/ckpt/steps/step_200") as checkpoint:
    assert checkpoint.tensors["bias"].shape == (200,), checkpoint.tensors
try:
    checkpoint.load({"bias": torch.empty(200)})
except ValueError:
    pass
else:
    raise AssertionError("a closed checkpoint was read")
try:
    ckptfs.Saver("/ckpt/steps").save("step_200", {"a": torch.ones(3)})
except PermissionError:
    pass
else:
    raise AssertionError("a sealed step was saved again")
views = {"conjugate": torch.randn(50, dtype=torch.complex64).conj(), "transposed": torch.randn(30, 40).t()}
ckptfs.Saver("/ckpt/steps").save("step_300", views).wait()
assert all(torch.equal(tensor, views[name]) for name, tensor in ckptfs.load("/ckpt/steps/step_300").items())
import os
child = os.fork()
if child == 0:
    # As a worker of a DataLoader: it has rings of its own.
    os._exit(0 if torch.equal(ckptfs.load("/ckpt/steps/step_100")["weight"], wanted["weight"]) else 1)
assert os.waitpid(child, 0)[1] == 0
print("through")
"""

HOSTILE = """
import io, os, pickle, sys, torch, zipfile
from ckptfs import torch_files

class Call:
    def __init__(self, function, *arguments):
        self.made = function, arguments
    def __reduce__(self):
        return self.made

def file_of(pickled, kind=zipfile.ZIP_STORED):
    with zipfile.ZipFile("/ckpt/hostile.pt", "w", kind) as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/version", "3")
    return "/ckpt/hostile.pt"

bad = [pickle.dumps(Call(os.system, "touch /ckpt/executed"), 2), pickle.dumps(Call(eval, "1"), 2),
       b"\\x80\\x04ctorch\\nUntypedStorage\\n(K\\x05t}\\x8c\\tallocatorJ\\x41\\x41\\x41\\x41s\\x92.",
       b"\\x80\\x02ctorch._utils\\n_rebuild_tensor_v2\\n}X\\x0c\\x00\\x00\\x00__defaults__K\\x01sb.",
       b"\\x80\\x02ctorch\\nUntypedStorage\\n}X\\x08\\x00\\x00\\x00data_ptrK\\x01sb.", b"\\x80\\x02(ios\\nsystem\\n.", b"", b"\\x80\\x02."]
for pickled in bad:
    try:
        value = torch_files.TorchFile(file_of(pickled)).read()
    except (pickle.UnpicklingError, EOFError, IndexError, TypeError, AttributeError, ValueError):
        continue
    raise AssertionError((pickled, value))
try:
    torch_files.TorchFile(file_of(b"x" * 100000, zipfile.ZIP_DEFLATED))
except ValueError:
    pass
else:
    raise AssertionError("a compressed pickle was read")
assert not os.path.exists("/ckpt/executed")

import numpy

class Setting:
    # What Python would set the state of a type of numpy's by.
    def __init__(self, name, state):
        self.name, self.state = name, state
    def __reduce__(self):
        return numpy.dtype, (self.name, False, True), self.state

objects = (4, "|", None, ("a",), {"a": (numpy.dtype("O"), 0)}, 8, 1, 1)
for made in (Setting("V8", objects), Setting("S8", (3, "|", None, None, None, 100000, 1, 0)), Setting("O", objects)):
    try:
        value = torch_files.TorchFile(file_of(pickle.dumps(made, 2))).read()
    except torch_files.NotAllowed:
        continue
    raise AssertionError((made.name, value))

class Called:
    def __call__(self):
        return 1

Called.__module__ = "ours"
sys.modules["ours"] = sys.modules["__main__"]
called = Called()
called.value = 7
assert torch_files.TorchFile(file_of(pickle.dumps(called, 2)), [Called]).read().value == 7
good = {"arrays": [numpy.arange(5), numpy.ones((2, 2), "<f4"), numpy.float64(2.5)], "set": {1}, "bytes": b"x", "complex": 1j, "dtype": torch.complex128, "nested": [({},)]}
good["random"] = numpy.random.get_state()
torch.save(good, "/ckpt/good.pt", pickle_protocol=2)
back = torch_files.TorchFile("/ckpt/good.pt").read()
assert all(back[name] == good[name] for name in good if name not in ("random", "arrays")), back
assert all((mine == theirs).all() for mine, theirs in zip(back["arrays"], good["arrays"]))
assert (back["random"][1] == good["random"][1]).all()
print("through")
"""


def examples(text, *headings):
    """The indented blocks below these headings."""
    found = []
    for heading in headings:
        section = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)[1]
        found += [line[4:] for line in section.splitlines() if line.startswith("    ")]
    true(len(found) > 4, f"examples below {headings}: {found}")
    return "\n".join(found)


def run_python(mount, program):
    done = subprocess.run([python(), "-c", program.replace("/ckpt/", f"{mount.path}/")], capture_output=True, text=True,
                          timeout=200, check=False, env=environment())
    equal((done.returncode, done.stdout.strip()), (0, "through"), done.stderr[-3000:])


def test_written(scene, mode):
    text = (REPOSITORY / "docs" / "loading.md").read_text()
    with Ckptfs(mode=mode).place(scene) as mount:
        run_python(mount, BEFORE + examples(text, "Load", "Save") + AFTER)


@pytest.mark.mode("direct")
def test_hostile_files(scene, mode):
    with Ckptfs(mode=mode).place(scene) as mount:
        run_python(mount, HOSTILE)

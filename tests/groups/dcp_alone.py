"""What ckptfs.dcp does in a process that is alone. test_dcp.py puts a mount's path in the place of /ckpt, and runs it."""

import io
import os
import pickle
import shutil
import zlib

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._extension import ExtensionRegistry, StreamTransformExtension
from torch.distributed.checkpoint.filesystem import SerializationFormat

import ckptfs.dcp


class Special(torch.Tensor):
    """A type that only torch.save knows how to save."""


torch.serialization.add_safe_globals([Special])


class Squeezed(StreamTransformExtension):
    """An extension, as torch's ZStandard, for which torch needs another package."""

    @staticmethod
    def from_descriptor(version):
        return Squeezed()

    @staticmethod
    def registry_name():
        return "squeezed"

    def get_descriptor(self):
        return "squeezed/1"

    def transform_to(self, output):
        class Stream(io.BytesIO):
            def close(self):
                output.write(zlib.compress(self.getvalue()))
                output.close()
        return Stream()

    def transform_from(self, source):
        return io.BytesIO(zlib.decompress(source.read(-1)))


def refused(kind, words, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except BaseException as problem:  # noqa: BLE001 - DCP's own exception is one
        causes = [problem, *(cause for cause, _where in getattr(problem, "failures", {}).values())]
        assert any(isinstance(cause, kind) and words in str(cause) for cause in causes), causes
        return
    raise AssertionError(f"not refused: {words}")


def empty_like(state):
    return {name: torch.zeros(value.shape, dtype=value.dtype) if torch.is_tensor(value) else None
            for name, value in state.items()}


def same(loaded, state, names=None):
    for name in names or state:
        equal = torch.equal if torch.is_tensor(state[name]) else lambda one, other: one == other
        assert equal(torch.as_tensor(loaded[name]) if torch.is_tensor(state[name]) else loaded[name], state[name]), name


torch.manual_seed(1)
state = {"large": torch.randn(300, 200), "turned": torch.randn(300, 201).t(), "part": torch.randn(50, 60)[7:9, 3:50],
         "conjugate": torch.randn(50, dtype=torch.complex64).conj(), "one": torch.tensor(3.5), "none": torch.empty(0, 4),
         "bytes": torch.arange(200, dtype=torch.uint8), "parameter": torch.nn.Parameter(torch.randn(9)), "value": {"a", 1}}
writer = ckptfs.dcp.Writer("/ckpt/steps/step_1")
dcp.save(state, storage_writer=writer)
pickle.dumps(writer)
for reader in (ckptfs.dcp.Reader, dcp.FileSystemReader):
    loaded = empty_like(state)
    dcp.load(loaded, storage_reader=reader("/ckpt/steps/step_1"))
    same(loaded, state)
alone = ckptfs.load("/ckpt/steps/step_1")
same(alone, state, [name for name in state if name != "value"])

# Into tensors of another type and of another order in memory; part of what was saved.
into = {"large": torch.zeros(300, 200, dtype=torch.bfloat16), "turned": torch.zeros(300, 201).t()}
dcp.load(into, storage_reader=ckptfs.dcp.Reader("/ckpt/steps/step_1"))
assert torch.equal(into["large"], state["large"].bfloat16()) and torch.equal(into["turned"], state["turned"])
refused(RuntimeError, "Missing key", dcp.load, {"other": torch.zeros(1)}, storage_reader=ckptfs.dcp.Reader("/ckpt/steps/step_1"))

# More files than one, of a rank.
ckptfs.dcp._FILE_BYTES, ckptfs.dcp._BESIDE_BYTES = 100_000, 100_000
dcp.save(state, checkpoint_id="/ckpt/steps/step_2", storage_writer=writer)
assert len([name for name in os.listdir("/ckpt/steps/step_2") if name.endswith(".distcp")]) > 1
for reader in (ckptfs.dcp.Reader, dcp.FileSystemReader):
    loaded = empty_like(state)
    loaded["turned"] = torch.zeros(300, 201).t()
    dcp.load(loaded, checkpoint_id="/ckpt/steps/step_2", storage_reader=reader("unused"))
    same(loaded, state)

# What only torch can save, and what an extension changes.
special = {"special": torch.randn(5).as_subclass(Special), "plain": torch.randn(5), "value": 1}
dcp.save(special, checkpoint_id="/ckpt/steps/step_3", storage_writer=writer)
registry = ExtensionRegistry()
registry.extensions["squeezed"] = Squeezed
dcp.save(special, checkpoint_id="/ckpt/steps/step_4", storage_writer=ckptfs.dcp.Writer(_extensions=[Squeezed()]))
for step in (3, 4):
    for reader in (ckptfs.dcp.Reader, dcp.FileSystemReader):
        loaded = empty_like(special)
        dcp.load(loaded, storage_reader=reader(f"/ckpt/steps/step_{step}", registry))
        same(loaded, special)

# Steps that are there already, and what is no step.
refused(PermissionError, "the step is sealed", dcp.save, state, checkpoint_id="/ckpt/steps/step_1", storage_writer=writer)
loose = ckptfs.dcp.Writer("/ckpt/steps/step_5", seal=False)
dcp.save(state, storage_writer=dcp.FileSystemWriter("/ckpt/steps/step_5"))
refused(FileExistsError, "overwrite=False", dcp.save, state,
        storage_writer=ckptfs.dcp.Writer("/ckpt/steps/step_5", overwrite=False))
for number in (1, 2):
    changed = {**state, "large": state["large"] + number}
    dcp.save(changed, storage_writer=loose)
    loaded = empty_like(state)
    dcp.load(loaded, storage_reader=ckptfs.dcp.Reader("/ckpt/steps/step_5"))
    same(loaded, changed)
refused(ValueError, "which step", dcp.save, state, storage_writer=ckptfs.dcp.Writer())
refused(ValueError, "use_collectives", dcp.save, state, storage_writer=loose, use_collectives=False)
refused(ValueError, "torch's own format", ckptfs.dcp.Writer, serialization_format=SerializationFormat.SAFETENSORS)
refused(BaseException, "", dcp.load, loaded, storage_reader=ckptfs.dcp.Reader("/ckpt/steps/step_9"))

# A part of a step, into a folder that is there, as accelerate has it.
os.makedirs("/ckpt/steps/checkpoint-10/pytorch_model_fsdp_0")
dcp.save(state, checkpoint_id="/ckpt/steps/checkpoint-10/pytorch_model_fsdp_0", storage_writer=writer)
loaded = empty_like(state)
dcp.load(loaded, checkpoint_id="/ckpt/steps/checkpoint-10/pytorch_model_fsdp_0", storage_reader=ckptfs.dcp.Reader())
same(loaded, state)

# What torch saves of ranks that do not wait for each other.
dcp.save(state, storage_writer=dcp.FileSystemWriter("/ckpt/steps/step_6"), use_collectives=False)
loaded = empty_like(state)
dcp.load(loaded, storage_reader=ckptfs.dcp.Reader("/ckpt/steps/step_6"))
same(loaded, state)

# As Lightning saves, which knows nothing of ckptfs: into a folder that is there, with a file of its own beside. torchtitan
# removes steps.
ckptfs.dcp.install()
os.makedirs("/ckpt/steps/step_7")
dcp.save(state, checkpoint_id="/ckpt/steps/step_7")
assert "ckptfs.rank00.json" in os.listdir("/ckpt/steps/step_7"), "it was not saved by ckptfs"
torch.save({"epoch": 3}, "/ckpt/steps/step_7/meta.pt")
loaded = empty_like(state)
dcp.load(loaded, checkpoint_id="/ckpt/steps/step_7")
same(loaded, state)
shutil.rmtree("/ckpt/steps/step_7")
assert not [name for name in os.listdir("/ckpt/steps") if name.startswith("partial-")]
print("through")

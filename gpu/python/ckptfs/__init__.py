"""ckptfs for Python: loads checkpoints to where they belong, and saves them while the training goes on.

    tensors = ckptfs.load("/ckpt/steps/step_100", device="cuda")
    save = ckptfs.Saver("/ckpt/steps").save("step_200", model.state_dict())
    newest = ckptfs.latest("/ckpt/steps")

ckptfs.latest and its kin, ckptfs.patch, and what of ckptfs.deepspeed says so, need neither torch nor libckptfs.
"""

__version__ = "0.1.0"  # of all of ckptfs: CMakeLists.txt reads it here

_LAZY = {"load": "loading", "Checkpoint": "loading", "Saver": "saving", "Save": "saving", "configure": "native",
         "Slice": "pieces", "GroupError": "group", "Step": "series", "latest": "series", "state": "series", "steps": "series",
         "Event": "series", "watch": "series"}


def __getattr__(name):
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib
    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)

"""Loads checkpoints into tensors where they belong, and saves tensors as steps while the training goes on.

    tensors = ckptfs.load("/ckpt/steps/step_100", device="cuda")
    save = ckptfs.Saver("/ckpt/steps").save("step_200", model.state_dict())
    newest = ckptfs.latest("/ckpt/steps")

Any thread may call functions; an object belongs to one thread at a time. What the system refuses is an OSError, in words.
Paths may lie on a ckptfs mount or anywhere else. `latest`, `steps`, `state` and `watch` need a mount, but neither torch
nor libckptfs. A `State` is a dict of tensors by name, or dicts and lists of such, whose keys are joined by dots. Its
tensors may be DTensors, ShardedTensors and Slices.
"""

import typing

__version__ = "0.1.0"  # of all of ckptfs: CMakeLists.txt reads it here

__all__ = ["load", "Checkpoint", "Saver", "Save", "Slice", "GroupError", "configure", "latest", "steps", "state", "Step",
           "watch", "Event"]  # in the order of docs/python.md

if typing.TYPE_CHECKING:
    from .group import GroupError
    from .loading import Checkpoint, load
    from .native import configure
    from .pieces import Slice
    from .saving import Save, Saver
    from .series import Event, Step, latest, state, steps, watch
else:  # the import of torch waits until it is needed; a type checker must not believe that there is any name
    _MODULES = {"load": "loading", "Checkpoint": "loading", "Saver": "saving", "Save": "saving", "configure": "native",
                "Slice": "pieces", "GroupError": "group", "Step": "series", "latest": "series", "state": "series",
                "steps": "series", "Event": "series", "watch": "series"}

    def __getattr__(name):
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)

    def __dir__():
        return sorted({*globals(), *__all__})

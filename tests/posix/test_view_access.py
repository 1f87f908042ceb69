"""Who may read a step's view: who may read the files that it is made of, at the time of the act; in both open modes."""

import errno
import os

from checking import equal, in_child, raises, read, write
from mounting import wait_until
from viewing import SERIES, TAG, sampled_step, step_with


def test_who_may_read(mount):
    tensors, view = step_with(mount)
    step = mount.path / SERIES / TAG
    os.chmod(step / "model.safetensors", 0o600)
    os.chmod(step / "config.json", 0o644)
    model = view / "model.bf16.safetensors"
    wait_until("the mode of what is made from it follows", lambda: os.stat(model).st_mode == 0o100400, 5)
    with raises(errno.EACCES, what="by another user"):
        in_child(lambda: read(view / "model.bf16.safetensors"), uid=1234)
    in_child(lambda: read(view / "config.json"), uid=1234)
    refused = {
        "names": lambda: os.listdir(view / "by_name"),
        "a size": lambda: os.stat(view / "by_name" / "embed.weight" / "param"),
        "the manifest": lambda: read(view / "manifest.json"),
    }
    for what, look in refused.items():
        with raises(errno.EACCES, what=f"{what}, by another user"):
            in_child(look, uid=1234)
    os.chmod(step, 0o700)
    with raises(errno.EACCES, what="in a folder that is closed"):
        in_child(lambda: read(view / "config.json"), uid=1234)


def test_who_may_read_it_no_more_may_read_its_view_no_more(mount):
    """Each change of who may read a file, or may reach it, closes a view that others have read already."""
    step = mount.path / SERIES / TAG
    inner = step / "pytorch_model_fsdp_0"
    sampled_step(inner, "dcp", (".metadata", "__0_0.distcp", "__1_0.distcp"))
    write(step / "trainer_state.json", b'{"global_step": 1}')
    view, files, other = mount.path / "views" / SERIES / TAG, sorted(inner.iterdir()), 1234
    wait_until("it has a view", lambda: list(view.glob("model.*.safetensors")), 10)
    model = next(view.glob("model.*.safetensors"))

    def is_read():
        try:
            return bool(in_child(lambda: read(model), uid=other))
        except PermissionError:
            return False

    def let(owner, group, mode, *paths):
        for path in paths:
            os.chown(path, owner, group)
            os.chmod(path, mode)

    closed_by = {
        "the mode of a file": ((0, 0, 0o644), (0, 0, 0o755), lambda: os.chmod(files[1], 0o600)),
        "the owner of a file": ((other, 0, 0o600), (0, 0, 0o755), lambda: os.chown(files[1], 5001, -1)),
        "the group of a file": ((0, other, 0o640), (0, 0, 0o755), lambda: os.chown(files[1], -1, 6001)),
        "the owner of all": ((other, 0, 0o600), (0, 0, 0o755), lambda: let(5001, 0, 0o600, *files)),
        "the group of all": ((0, other, 0o640), (0, 0, 0o755), lambda: let(0, 6001, 0o640, *files)),
        "the mode of a folder": ((0, 0, 0o644), (0, 0, 0o755), lambda: os.chmod(inner, 0o700)),
        "the owner of a folder": ((other, 0, 0o600), (other, 0, 0o700), lambda: os.chown(inner, 5001, -1)),
        "the group of a folder": ((0, other, 0o640), (0, other, 0o750), lambda: os.chown(inner, -1, 6001)),
    }
    for what, (of_files, of_folder, close) in closed_by.items():
        let(*of_files, *files)
        let(*of_folder, inner)
        wait_until(f"it is read before {what} changes", is_read, 5)
        close()
        wait_until(f"{what} closes it", lambda: not is_read(), 5)


def test_folders_of_another_group(mount):
    """Who is in the file's group, and may not enter its folder, may not read it as a view."""
    step = mount.path / SERIES / TAG
    sampled_step(step / "pytorch_model_fsdp_0", "dcp", (".metadata", "__0_0.distcp", "__1_0.distcp"))
    write(step / "trainer_state.json", b'{"global_step": 1}')
    for path in (step / "pytorch_model_fsdp_0").iterdir():
        os.chown(path, 5001, 6001)
        os.chmod(path, 0o640)
    os.chown(step / "pytorch_model_fsdp_0", 5001, 6002)
    os.chmod(step / "pytorch_model_fsdp_0", 0o750)
    view = mount.path / "views" / SERIES / TAG
    wait_until("it has a view", lambda: list(view.glob("model*.safetensors")), 10)
    for path in (*view.glob("model*.safetensors"), view / "manifest.json"):
        found = os.stat(path)
        equal((found.st_uid, oct(found.st_mode)), (0, oct(0o100400)), f"who may read {path.name}")

"""The fixture of tests whose daemon is killed, or whose store loses its power."""

import shutil

import pytest

from leftovers import kill_daemons
from mounting import Mount, Store


@pytest.fixture
def crashing_mount(request, disk, scratch):
    """A function that makes the test's mount, of a fresh store, and starts it. It takes the options of Mount, and
    image="1G" for an image of the store's own. If the test passes and the daemon lives, fsck checks the store."""
    failures = request.session.testsfailed

    def end(mount):
        try:
            if mount.alive() and request.session.testsfailed == failures:
                mount.stop()
                mount.store.fsck(mount.binary)
        finally:
            kill_daemons(scratch)  # also one that cannot end while the kernel holds a lock for it
            mount.wait_for_end()
            mount.take_down()
            shutil.rmtree(mount.store.folder, ignore_errors=True)

    def start(image=None, **options):
        if options.get("mode") == "plain":
            pytest.skip("plain: needs a mount")
        store = Store(scratch / "store", image) if image else Store(disk / scratch.name)
        store.folder.mkdir()
        mount = Mount(store, scratch / "mnt", **options)
        mount.log = scratch.with_name(f"{scratch.name}.log")  # it outlives the folder
        request.node.funcargs["mount"] = mount  # so that the report of a failure has its log
        request.addfinalizer(lambda: end(mount))
        return mount.start()

    return start

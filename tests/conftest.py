"""Fixtures, options and marks of the script tests. docs/developing.md says how to run a test and how to write one.

Each process that runs tests has a mount namespace of its own, so that tests that run at the same time do not see each
other's mounts.
"""

import contextlib
import os
import pathlib
import random
import re
import shutil
import signal
import threading
import time

import pytest

import builds
import claims
import mounting
from mounting import (LEVEL, MODES, Mount, Plain, Store, abandon, mounted, supports_passthrough, workspace, xfs)

# The order of the folders: the longest tests first, so that all processes end at about the same time.
FOLDERS = ("packaging", "deepspeed", "groups", "remote", "posix", "crash", "fuzz", "gpu", "cli", "bench", "tooling")
FAILED = pytest.StashKey[bool]()
SECONDS_TO_CLEAN_UP = 30


def pytest_addoption(parser):
    group = parser.getgroup("ckptfs")
    group.addoption("--chosen", metavar="FILE", help="only the tests that the file names, one a line")
    group.addoption("--plain", action="store_true", help="against plain XFS: checks the test itself")
    group.addoption("--seed", type=int, default=0, help="of random tests; 0: a new one")
    group.addoption("--rounds", type=int, default=0, help="rounds, operations, crashes, errors or points of a random "
                    "test; 0: as the level says")
    group.addoption("--acts", default="", help="crash/test_disk_errors: what is done, NAME,NAME")
    group.addoption("--tries", type=int, default=3, help="crash/test_disk_errors: of what fails; 1: what failed once "
                    "is believed to have failed")
    group.addoption("--workers", default="", help="crash/test_replay: who works on the mount, NAME,NAME")
    group.addoption("--recording", default="", help="crash/test_replay: a recording that --keep kept")
    group.addoption("--point", default="", help="crash/test_replay: its point, as a failure prints it")
    group.addoption("--keep", default="", help="crash/test_replay: a folder for the recording of a failure")


def pytest_configure(config):
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # so that fixtures clean up


# --- which tests run, in which modes, and in which order


def modes_of(metafunc):
    """Returns the open modes in which the test runs."""
    if metafunc.config.getoption("plain"):
        return ("plain",)
    wanted = metafunc.definition.get_closest_marker("mode")
    if wanted:
        return wanted.args
    if metafunc.definition.get_closest_marker("one_mode") and LEVEL != "long":
        return MODES[:1] if supports_passthrough() else MODES[1:]
    return MODES


def pytest_generate_tests(metafunc):
    given = [name for mark in metafunc.definition.iter_markers("parametrize") for name in mark.args[0].split(", ")]
    if "mode" in metafunc.fixturenames and "mode" not in given:
        metafunc.parametrize("mode", modes_of(metafunc), indirect=True, scope="module")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks for groups
def pytest_collection_modifyitems(config, items):
    chosen = config.getoption("chosen")
    names = set(pathlib.Path(chosen).read_text().splitlines()) if chosen else None

    def is_wanted(item):
        return item.nodeid in names if chosen else LEVEL == "long" or not item.get_closest_marker("long")

    config.hook.pytest_deselected(items=[item for item in items if not is_wanted(item)])
    items[:] = sorted(filter(is_wanted, items), key=place_in_order)
    for item in items:
        keep_together(item)
        be_patient(item)


def be_patient(item):
    """Multiplies the test's timeout, which is what an idle machine may need."""
    seconds = timeout_of(item) * mounting.PATIENCE
    item.add_marker(pytest.mark.timeout(seconds), append=False)


def timeout_of(item):
    mark = item.get_closest_marker("timeout")
    return mark.args[0] if mark else float(item.config.getini("timeout"))


def place_in_order(item):
    """Tests that need torch come first, because they take longest. Of the others, those that wait longest for a build
    come last, because a process that waits runs nothing else."""
    last = max((builds.NAMES.index(name) for name in awaited(item)), default=-1)
    return (-1 if needs_torch(item) else last), FOLDERS.index(item.path.parent.name)


def needs_torch(item):
    return "venv" in item.fixturenames


def keep_together(item):
    """Gives tests that share something expensive to the same process: a mount, a training, or the server that has loaded
    torch and forks their ranks."""
    if needs_torch(item) and LEVEL != "long":
        item.add_marker(pytest.mark.xdist_group("deepspeed" if item.path.parent.name == "deepspeed" else "torch"))
    elif item.get_closest_marker("together") or "shared_mount" in item.fixturenames:
        mode = item.callspec.params.get("mode", "") if hasattr(item, "callspec") else ""
        item.add_marker(pytest.mark.xdist_group(f"{item.path.parent.name}-{item.path.stem}-{mode}"))


# --- what scripts/test builds beside the tests


def needed_builds(item):
    return ["release"] + [name for mark in item.iter_markers("builds") for name in mark.args]


def awaited(item):
    """Returns the builds of this test that were not there when scripts/test started the tests."""
    waiting = os.environ.get("CKPTFS_TEST_AWAITED", "").split()
    return [name for name in needed_builds(item) if name in waiting]


def wait_for_builds(item):
    """scripts/test writes how a build ended into a file of its name."""
    for name in awaited(item):
        file = pathlib.Path(os.environ["CKPTFS_TEST_BUILDS"]) / name
        while not file.exists():
            time.sleep(0.1)
        if file.read_text() != "ok":
            pytest.fail(f"the {name} build failed", pytrace=False)


@pytest.hookimpl(tryfirst=True, hookwrapper=True)
def pytest_runtest_protocol(item):
    """Waits here, where the test's timeout does not count yet."""
    with contextlib.suppress(pytest.fail.Exception):  # the setup says it
        wait_for_builds(item)
    with claimed_disk(item):
        yield


@contextlib.contextmanager
def claimed_disk(item):
    """Holds the test back while others use the disk that it needs."""
    needs = item.get_closest_marker("disk")
    with contextlib.ExitStack() as stack:
        try:
            if needs:
                stack.enter_context(claims.disk(mounting.scratch_root(), needs.args[0]))
        except OSError as problem:
            item.add_marker(pytest.mark.skip(f"disk: {problem.strerror}"))
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    wait_for_builds(item)


# --- what happens to a test that fails or hangs


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    """Adds the daemons' logs to the report of a failure."""
    report = (yield).get_result()
    if report.failed:
        item.stash[FAILED] = True
        for mount in getattr(item, "funcargs", {}).values():
            if isinstance(mount, Mount):
                report.sections.append((f"the daemon's log, its end ({mount.mode})", mount.read_log()))


@pytest.fixture(autouse=True)
def watchdog(request):
    """Kills the daemons of a test that is far past its timeout, since a call that waits for a daemon is not
    interrupted."""
    timer = threading.Timer(timeout_of(request.node) + SECONDS_TO_CLEAN_UP, mounting.kill_daemons_of_this_process)
    timer.daemon = True
    timer.start()
    yield
    timer.cancel()


# --- fixtures


@pytest.fixture(scope="session")
def own_mounts():
    mounting.see_no_other_mounts()


@pytest.fixture(scope="session")
def venv():
    """torch, DeepSpeed and more in build/venv; scripts/test has installed them by now."""
    import harness  # of tests/deepspeed

    harness.install()


@pytest.fixture(scope="module")
def mode(request):
    """How the kernel opens the files of a mount: passthrough or direct; with --plain there is no mount."""
    return request.param


@pytest.fixture(scope="module")
def work(request, own_mounts):
    """A folder of the file's own. At its end no daemon, mount or loop device of it is left."""
    with workspace(request.path.stem.removeprefix("test_").replace("_", "-")) as folder:
        yield folder


@pytest.fixture(scope="module")
def disk(work):
    """A fresh XFS for the stores of the file."""
    with xfs(work) as point:
        yield point


def name_of(request):
    """The test's name, as the name of a file."""
    return re.sub(r"[^\w.]+", "-", request.node.name.removeprefix("test_")).strip("-")


@pytest.fixture
def store(request, disk):
    """A fresh store."""
    made = Store(disk / name_of(request))
    yield made
    shutil.rmtree(made.folder, ignore_errors=True)


@pytest.fixture
def mount(request, work, store, mode):
    """The fresh store, mounted. If the test passes, fsck checks the store."""
    if mode == "plain":
        pytest.skip("plain: needs a mount")
    with mounted(store, work / f"mnt-{name_of(request)}", mode=mode) as made:
        yield made
        if FAILED in request.node.stash:
            abandon(made)
            return
    store.fsck()


@pytest.fixture
def scratch(request, work):
    """A folder of the test's own."""
    made = work / name_of(request)
    made.mkdir()
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="module")
def shared_mount(request, work, disk, mode):
    """A mount for all tests of the file in this mode. MOUNT_OPTIONS of the file has its options. fsck is last."""
    if mode == "plain":
        yield Plain(disk / "plain")
        return
    store = Store(disk / mode)
    options = getattr(request.module, "MOUNT_OPTIONS", ())
    with mounted(store, work / f"mnt-{mode}", mode=mode, options=options) as made:
        yield made
    store.fsck()


@pytest.fixture
def shared(shared_mount):
    """The shared mount. If it died, the test in which it did has failed, and others go on."""
    if not shared_mount.alive():
        shared_mount.start()
    return shared_mount


@pytest.fixture
def folder(request, shared):
    """The test's own folder on the shared mount."""
    made = shared.path / name_of(request)
    made.mkdir()
    made.chmod(0o755)
    return made


@pytest.fixture
def seed(request):
    """The seed of a random test. A failure shows it."""
    number = request.config.getoption("seed") or random.SystemRandom().randrange(1, 1 << 30)
    print(f"seed {number}")
    return number


@pytest.fixture
def rounds(request):
    """--rounds; 0 if it is not given."""
    return request.config.getoption("rounds")

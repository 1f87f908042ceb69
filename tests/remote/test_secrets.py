"""Secrets of S3 are in no core file: a daemon that may hold one leaves none."""

import os
import resource
import signal
import subprocess

import pytest

from checking import equal
from mounting import KIB, Skip, Mount, Store, is_mountpoint, run, wait_until
from seaweed import BUCKET, KEY, SECRET, environment
from test_push import QUIET, ckptfs, fill, wait_for

pytestmark = [pytest.mark.builds("venv"),
              pytest.mark.one_mode, pytest.mark.timeout(300)]


@pytest.fixture
def leaves_core(fresh_disk, work, scratch, mode):
    """Pushes a step by a daemon with these variables. Says whether the daemon leaves a core file when it aborts."""
    store = Store(fresh_disk / "secrets")

    def pushes_and_aborts(url, variables, *options):
        mount = Mount(store, work / "mnt-secrets", mode=mode, options=QUIET)
        mount.path.mkdir(exist_ok=True)
        size = 64 * KIB  # the kernel cuts it there, and still says that it is one
        daemon = subprocess.Popen([*mount.command(), "-f"], cwd=scratch, env=variables,
                                  preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (size, size)))
        try:
            wait_until("mounted", lambda: is_mountpoint(mount.path), 30)
            steps = mount.path / "steps"
            ckptfs("remote", "add", url, steps, *options)
            fill(steps / "global_step1")
            wait_for(steps / "global_step1", "committed")
        finally:
            daemon.send_signal(signal.SIGABRT)
            status = os.waitpid(daemon.pid, 0)[1]
            daemon.returncode = os.waitstatus_to_exitcode(status)
            run("umount", "-l", mount.path, check=False)
        equal(daemon.returncode, -signal.SIGABRT, "how it ended")
        return os.WCOREDUMP(status)

    return pushes_and_aborts


def without_keys():
    return {name: value for name, value in environment().items() if name not in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}


def test_a_daemon_without_secrets(leaves_core, scratch):
    """The machine writes core files: without this the other tests show nothing."""
    (scratch / "remote").mkdir()
    if not leaves_core(f"file://{scratch}/remote", without_keys()):
        raise Skip("this machine writes no core files")


@pytest.mark.parametrize("source", ("environment", "profile"))
def test_a_daemon_with_secrets(leaves_core, scratch, server, monkeypatch, source, mode):
    variables = environment()
    if source == "profile":
        (scratch / "credentials").write_text(f"[default]\naws_access_key_id={KEY}\naws_secret_access_key={SECRET}\n")
        variables = without_keys() | {"AWS_SHARED_CREDENTIALS_FILE": str(scratch / "credentials")}
    for name, value in environment().items():  # of the commands
        monkeypatch.setenv(name, value)
    url = f"s3://{BUCKET}/secrets-{source}-{mode}"
    equal(leaves_core(url, variables, "--endpoint", server.endpoint), False, "a core file")

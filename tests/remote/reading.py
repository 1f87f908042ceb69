"""A remote, mounted."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess

from checking import equal
from mounting import CKPTFS, is_mountpoint, run, unmount, wait_for_end_of


class RemoteMount:
    def __init__(self, url, point, *options, env=None):
        self.url, self.path, self.options, self.env = url, pathlib.Path(point), options, env
        self.log = self.path.parent / f"{self.path.name}.log"

    def try_start(self):
        self.path.mkdir(exist_ok=True)
        words = [CKPTFS, "remote", "mount", "--log", self.log, *self.options, self.url, self.path]
        return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=120, env=self.env,
                              check=False)

    def start(self):
        done = self.try_start()
        equal(done.returncode, 0, f"remote mount: {done.stdout}{done.stderr}")
        return self

    def status(self):
        return json.loads(run(CKPTFS, "status", "--json", self.path).stdout)

    def fetched(self):
        return self.status()["chunks"]["bytes_fetched"]

    def requests(self):
        asked = self.status()["requests"]
        return asked["gets"] + asked["lists"]

    def stop(self):
        run(CKPTFS, "umount", self.path)

    def kill(self):
        pid = self.status()["pid"]
        os.kill(pid, signal.SIGKILL)
        run("umount", "-l", self.path, check=False)
        wait_for_end_of(pid)

    def read_log(self):
        return self.log.read_text(errors="replace") if self.log.exists() else ""


@contextlib.contextmanager
def remote_mount(url, point, *options, env=None):
    made = RemoteMount(url, point, *options, env=env).start()
    try:
        yield made
        if is_mountpoint(made.path):  # the test may have killed it
            made.stop()
    finally:
        if is_mountpoint(made.path):
            unmount(made.path)

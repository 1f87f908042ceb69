"""Ranks that are forked from a process which has loaded torch and the rest: rank_server.py."""

import atexit
import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import time

HERE = pathlib.Path(__file__).resolve().parent
# Loading these is most of a rank's start.
TORCH = ("torch.distributed.checkpoint", "torch.distributed.fsdp", "torch.distributed.tensor.parallel", "safetensors.torch")
DEEPSPEED = ("deepspeed",)
TRAINERS = (*TORCH, "deepspeed", "transformers", "transformers.trainer", "accelerate")

servers = {}


class Server:
    """Its ranks have the environment that each is given. What was read when modules were loaded is of `environment`."""

    def __init__(self, python, modules, environment):
        self.ended = {}  # the status of each rank that has ended
        self._asking, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen([python, str(HERE / "rank_server.py"), str(theirs.fileno()), *modules],
                                             pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=environment)
        self._receive()
        atexit.register(self.end)

    def start(self, words, environment, output, asked=None, answers=None):
        """`asked`: its input, by default nothing; `answers`: its output, by default where its errors go."""
        request = json.dumps({"argv": [str(word) for word in words], "env": environment})
        with open(os.devnull, "rb") as nothing:
            files = (asked or nothing, answers or output, output)
            socket.send_fds(self._asking, [request.encode()], [file.fileno() for file in files])
        while "status" in (heard := self._receive()):
            pass
        self.ended.pop(heard["pid"], None)  # of an earlier process with that number
        return Rank(self, heard["pid"])

    def look(self):
        """Hears of the ranks that have ended."""
        self._asking.setblocking(False)
        try:
            while True:
                self._receive()
        except BlockingIOError:
            pass
        finally:
            self._asking.setblocking(True)

    def _receive(self):
        text = self._asking.recv(1 << 16)
        if not text:
            raise RuntimeError(f"the process that starts ranks has ended: {self._process.wait()}")
        heard = json.loads(text)
        if "status" in heard:
            self.ended[heard["pid"]] = os.waitstatus_to_exitcode(heard["status"])
        return heard

    def end(self):
        self._asking.close()
        self._process.wait()


class Rank:
    """A process: as subprocess.Popen, as far as tests need it."""

    def __init__(self, server, pid):
        self._server, self.pid, self.returncode = server, pid, None

    def poll(self):
        if self.returncode is None:
            self._server.look()
            self.returncode = self._server.ended.pop(self.pid, None)
        return self.returncode

    def wait(self, timeout=None):
        end = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired("a rank", timeout)
            time.sleep(0.01)
        return self.returncode

    def kill(self):
        # Once the server has waited for it, its number can be another process's.
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # the server has waited for it this moment
                os.kill(self.pid, signal.SIGKILL)


def server(python, modules, environment):
    """One for each set of modules. The first call takes as long as a rank's start did."""
    if modules not in servers:
        servers[modules] = Server(python, modules, environment)
    return servers[modules]

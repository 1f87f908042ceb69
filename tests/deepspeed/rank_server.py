"""Starts ranks by fork, from a process that has loaded torch and the rest once: loading takes each rank seconds of
processor time. forked_ranks.py starts this program and talks to it.

    python rank_server.py SOCKET MODULE ...      SOCKET: a descriptor (SOCK_SEQPACKET)

It says {} once all is loaded. Each {"argv": [script, ...], "env": {...}}, which comes with descriptors for input, output
and errors, is answered by {"pid": N}, and when that rank has ended by {"pid": N, "status": S}, as waitpid has it. When
the socket is closed the server ends; ranks that still run go on.
"""

import functools
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys


def become_rank(asked, descriptors):
    """The rest of this process is the rank."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.argv = asked["argv"]
    paths = asked["env"].get("PYTHONPATH", "").split(":")
    sys.path[:0] = [os.path.dirname(asked["argv"][0]), *(path for path in paths if path)]
    return asked["argv"][0]


def serve(asking):
    """Returns the script to run in each rank, and None at the end."""
    woken, waking = socket.socketpair()
    waking.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waking.fileno())
    asking.send(b"{}")
    while True:
        ready, _, _ = select.select([asking, woken], [], [])
        if asking in ready:
            text, descriptors, _, _ = socket.recv_fds(asking, 1 << 20, 3)
            if not text:
                return None
            pid = os.fork()
            if pid == 0:
                for used in (asking, woken, waking):
                    used.close()
                return become_rank(json.loads(text), descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            asking.send(json.dumps({"pid": pid}).encode())
        if woken in ready:
            woken.recv(4096)
            while (ended := reap()) is not None:
                asking.send(json.dumps(ended).encode())


def reap():
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return {"pid": pid, "status": status} if pid else None


def ask_for_the_processor_once():
    """DeepSpeed asks py-cpuinfo five times in each training, and each time takes a second of processor time."""
    cpuinfo = importlib.import_module("cpuinfo")
    cpuinfo.get_cpu_info = functools.cache(cpuinfo.get_cpu_info)
    cpuinfo.get_cpu_info()


if __name__ == "__main__":
    for name in sys.argv[2:]:
        importlib.import_module(name)
    if "deepspeed" in sys.modules:
        ask_for_the_processor_once()
    del sys.path[0]
    SCRIPT = serve(socket.socket(fileno=int(sys.argv[1])))
    if SCRIPT is not None:
        runpy.run_path(SCRIPT, run_name="__main__")

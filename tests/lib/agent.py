"""The C program helpers/agent.c as an object: libaio with O_DIRECT, and mappings whose descriptor is closed."""

import os
import subprocess

from mounting import Failure, helper


class Agent:
    """One agent process. A failed command is an OSError with the agent's errno. Use it from one thread only."""

    def __init__(self):
        self.process = subprocess.Popen([helper("agent")], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

    def _command(self, line, data=b""):
        self.process.stdin.write(line.encode() + b"\n" + data)
        self.process.stdin.flush()
        words = self.process.stdout.readline().split()
        if not words:
            raise Failure(f"the agent ended at: {line}")
        if words[0] == b"err":
            raise OSError(int(words[1]), os.strerror(int(words[1])), line)
        return int(words[1]) if len(words) > 1 else 0

    def aio(self, path, data, offset=0):
        """Writes by libaio with O_DIRECT. Returns the size that stat reports right after the write."""
        return self._command(f"aio {offset} {len(data)} {path}", data)

    def aioread(self, path, length, offset=0):
        return self.process.stdout.read(self._command(f"aioread {offset} {length} {path}"))

    def map(self, path, length):
        """Maps the file shared and writable, and closes the descriptor. Returns the mapping's number."""
        return self._command(f"map {length} {path}")

    def store(self, number, offset, data):
        self._command(f"store {number} {offset} {len(data)}", data)

    def load(self, number, offset, length):
        return self.process.stdout.read(self._command(f"load {number} {offset} {length}"))

    def msync(self, number):
        self._command(f"msync {number}")

    def unmap(self, number):
        self._command(f"unmap {number}")

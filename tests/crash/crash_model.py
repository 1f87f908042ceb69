"""What must be there after a crash, according to the logs of crash_workers.py.

There are two kinds of crash. After kill -9, the effect of every call that returned is there. After a power cut, a file
is there under its last synced name, with the content of its last fsync; of later writes each sector may be there or
not. The names are those after some prefix of the operations, and every save that returned is there. An operation that
had not returned has happened or not, or (a write) in parts. A save is there completely or not at all.
"""

import errno
import functools
import json
import os

import checking
from checking import read, same_bytes, true
from mounting import Failure
from training import names_below

SECTOR = 512
# many points of one recording are compared with the same bytes
noise = functools.lru_cache(maxsize=1000)(checking.noise)


class Log:
    """The log of one worker, read as it grows, or taken line by line.

    operations: in order, each with "t", when it began, and "done", when it returned, else None. error: the line that
    the worker ended with, else None.
    """

    def __init__(self, path=None):
        self.path = path
        self.operations, self.error = [], None
        self._by_number, self._offset = {}, 0

    def update(self):
        if os.path.exists(self.path):
            with open(self.path, "rb") as file:
                file.seek(self._offset)
                data = file.read()
            data = data[: data.rfind(b"\n") + 1]
            self._offset += len(data)
            for line in data.splitlines():
                self.take(json.loads(line))
        return self

    def take(self, record):
        if record["phase"] == "begin":
            record["done"] = None
            self.operations.append(record)
            self._by_number[record["n"]] = record
        elif record["phase"] == "end":
            self._by_number[record["n"]]["done"] = record["t"]
        else:
            self.error = record

    def not_returned_after(self, moment):
        """Counts operations that returned after the moment as not returned: after a power cut nobody knows their
        results.

        (XFS may let an fsync succeed that runs while XFS is shut down.)
        """
        for operation in self.operations:
            if operation["done"] is not None and operation["done"] > moment:
                operation["done"] = None

    def in_flight(self, moment):
        """Returns the operation that had begun and not returned at that moment, or None."""
        for operation in reversed(self.operations):
            if operation["t"] <= moment:
                return operation["op"] if operation["done"] is None or operation["done"] > moment else None
        return None


class Content:
    """One file: what is certain, and what may be there instead, sector by sector."""

    def __init__(self):
        self.certain = b""
        self.later = []  # contents after each operation since then
        self.synced = False  # whether it was ever synced
        self.named = 0  # the number of the last change of its name

    def now(self):
        return self.later[-1] if self.later else self.certain

    def possible(self):
        return [self.certain, *self.later]

    def change(self, data):
        self.later.append(bytes(data))

    def settle(self):
        self.certain, self.later, self.synced = self.now(), [], True

    def check(self, got, name):
        candidates = self.possible()
        shortest = min(len(one) for one in candidates)
        longest = max(len(one) for one in candidates)
        true(shortest <= len(got) <= longest, f"{name}: {len(got)} bytes, {shortest} to {longest} are possible")
        if len(candidates) == 1:
            same_bytes(got, self.certain, name)
            return
        padded = [one.ljust(longest, b"\0") for one in candidates]
        for offset in range(0, len(got), SECTOR):
            end = min(offset + SECTOR, len(got))
            if not any(one[offset:end] == got[offset:end] for one in padded):
                raise Failure(f"{name}: the sector at {offset} is none of the {len(candidates)} that are possible")


class Files:
    """The scribe's folder."""

    def __init__(self, operations, power):
        self.power = power
        self.names = {}  # name -> Content, as of the last operation
        self.possible = [{}]  # possible states of the names, from the last certain one on
        self.first = 0  # how many changes of names led to the first of these states
        for operation in operations:
            self.apply(operation, operation["done"] is not None)

    def apply(self, operation, done):
        kind, name = operation["op"], operation.get("name")
        content = self.names.get(name)
        if kind == "create":
            content = Content()
            content.change(b"")
            self.rename_to({**self.names, name: content}, content)
        if kind in ("create", "pwrite"):
            data, offset = content.now(), operation.get("offset", 0)
            data = data.ljust(offset, b"\0")
            written = noise(operation["length"], operation["seed"])
            content.change(data[:offset] + written + data[offset + len(written) :])
        elif kind == "truncate":
            length = operation["length"]
            content.change(content.now()[:length].ljust(length, b"\0"))
        elif kind == "rename":
            names = {key: value for key, value in self.names.items() if key != name}
            self.rename_to({**names, operation["to"]: content}, content)
        elif kind == "unlink":
            self.rename_to({key: value for key, value in self.names.items() if key != name}, content)
        if done:
            self.settle(kind, content)

    def rename_to(self, names, content):
        self.names = names
        self.possible.append(names)
        content.named = self.first + len(self.possible) - 1

    def settle(self, kind, content):
        latest = self.first + len(self.possible) - 1
        if not self.power or kind == "fsyncdir":
            self.forget_before(latest)
        elif kind == "fsync":
            self.forget_before(content.named)
        if content is not None and (not self.power or kind == "fsync"):
            content.settle()

    def forget_before(self, number):
        if number > self.first:
            del self.possible[: number - self.first]
            self.first = number

    def check(self, folder):
        there = set(os.listdir(folder)) if os.path.isdir(folder) else set()
        states = [state for state in self.possible if set(state) == there]
        if not states:
            closest = self.possible[-1]
            raise Failure(
                f"{folder}: missing {sorted(set(closest) - there)}, too many {sorted(there - set(closest))}, and no "
                f"other of {len(self.possible)} possible states fits"
            )
        problems = []
        for state in states:
            try:
                for name, content in sorted(state.items()):
                    self.check_one(os.path.join(folder, name), content)
                return
            except Failure as problem:
                problems.append(problem)
        raise problems[-1]

    def check_one(self, path, content):
        try:
            got = read(path)
        except OSError as problem:
            if problem.errno == errno.EIO and self.power and not content.synced:
                return  # never synced, and shown as damaged
            raise Failure(f"{path}: {problem}") from problem
        content.check(got, path)


class Steps:
    """The trainer's steps, and its live swap files."""

    def __init__(self, operations, power):
        self.power = power
        self.whole, self.perhaps, self.going, self.sealed = {}, {}, {}, set()
        self.live = {}
        for operation in operations:
            done, tag, kind = operation["done"] is not None, operation.get("tag"), operation["op"]
            if kind == "save":
                (self.whole if done else self.perhaps)[tag] = operation["state"]
            elif kind == "seal" and done:
                self.sealed.add(tag)
            elif kind == "remove":
                state = self.whole.pop(tag) if tag in self.whole else self.perhaps.pop(tag)
                self.going[tag] = (state, done)
            elif kind == "swap":
                content = self.live.setdefault(operation["name"], Content())
                data = noise(operation["length"], operation["seed"])
                content.change(data + content.now()[len(data) :])
                if done:
                    content.settle()

    def check(self, root):
        steps = os.path.join(root, "steps")
        there = {name for name in os.listdir(steps) if not name.startswith(".") and name != "witness"}
        for tag, state in self.whole.items():
            true(tag in there, f"the step {tag}, whose save had returned, is not there")
            self.check_files(os.path.join(steps, tag), state, all_of_them=True)
        for tag, state in self.perhaps.items():
            if tag in there:
                self.check_files(os.path.join(steps, tag), state, all_of_them=True)
        for tag, (state, done) in self.going.items():
            if tag in there:
                true(self.power or not done, f"the step {tag}, whose removal had returned, is back")
                self.check_files(os.path.join(steps, tag), state, all_of_them=False)
        unknown = there - set(self.whole) - set(self.perhaps) - set(self.going)
        true(not unknown, f"steps that nobody made: {unknown}")
        if not self.power:
            for name, content in self.live.items():
                if content.synced or os.path.exists(os.path.join(root, name)):
                    content.check(read(os.path.join(root, name)), name)

    def check_files(self, step, state, all_of_them):
        names = names_below(step)
        if all_of_them:
            true(names == sorted(state), f"{step} holds {names}")
        for name in names:
            seed, length = state[name]
            same_bytes(read(os.path.join(step, name)), noise(length, seed), f"{step}/{name}")

    def check_seals(self, root):
        for tag in self.sealed & set(self.whole):
            value = os.getxattr(os.path.join(root, "steps", tag), "user.ckptfs.seal")
            true(value == b"1", f"{tag} was sealed and now is not")

"""The ranks of a torch.distributed process group that save or load together, and how they learn of each other's end.

What is exchanged goes through collectives of gloo. What a rank has to tell while others wait (that it is durable, that it
failed) goes through torch's store, which needs no answer of the others. A collective would wait half an hour for a rank
that died. So each rank watches:

- Ranks on its own machine: their processes, by number and start time. Their end is seen within a second.
- All ranks: each one counts a key of the store up every _BEAT seconds, and watches the key of the rank after it. If
  that does not move for _DEAD seconds, it writes so into the store, where all look who wait.

Only those who wait look, so a slow rank delays nobody but who needs it, and a dead one is an error for all: GroupError.
A rank that gives up a collective breaks the group, for it would be out of step with the others: from then on all that
wait get that error.
"""

import atexit
import concurrent.futures
import contextlib
import datetime
import logging
import os
import pathlib
import queue
import socket
import sys
import threading
import time
import uuid

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

_log = logging.getLogger("ckptfs")
_BEAT, _DEAD = 5, 40  # seconds
_ASKING = 1  # second between two looks at who is alive
_PATIENCE = 1800  # seconds until a collective of ranks that are all there fails
_GRACE = 2  # seconds in which the last words of a rank that has ended may arrive
_SLEEP, LONG_SLEEP = 0.002, 0.05  # seconds; the long one between questions to the store
_LEFT, _GONE, _BROKEN = "left", "gone", "broken"
_NO_ANSWER = "torch's store, by which the ranks know of each other, does not answer"
# Collectives that were given up, with all that they use: torch may still write to their memory as long as the process lives.
_given_up = []


class GroupError(RuntimeError):
    """The ranks could not do together what each of them was to do; the text names the rank."""


class Group:
    """See above. All ranks of the process group make it together. `group`: None is the default process group.

    It has a connection of gloo of its own: what goes wrong there leaves the process groups of the training as they are.
    Until all ranks have begun to make it, they wait for each other as long as the process group's timeout says.

    close() ends the watch; a rank that waits for one that has closed gets an error. From one thread at a time, but for
    tell(), told() and wait_until().
    """

    def __init__(self, group=None):
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.alone = self.size == 1
        self._watch, self._own, self._given_up, self.members = None, None, None, [_Member.here()]
        if not self.alone:
            told = [None] * self.size
            dist.all_gather_object(told, (uuid.uuid4().hex, *self.members[0].facts()), group=group)
            self.members = [_Member(*facts) for _, *facts in told]
            self._watch = _Watch(told[0][0], self.rank, self.members)
            self._own = self._connected(told[0][0])
        machines = sorted({member.machine for member in self.members})
        self.hosts = [machines.index(member.machine) for member in self.members]

    def _connected(self, name):
        """A rank may end meanwhile, and gloo does not see it."""
        connecting = _InThread(lambda: dist.ProcessGroupGloo(dist.PrefixStore(f"ckptfs/{name}/gloo", _store()), self.rank,
                                                             self.size, datetime.timedelta(seconds=_PATIENCE)))
        self.wait_until(connecting.is_completed)
        return connecting.wait()

    def __del__(self):
        self.close()

    def close(self):
        if getattr(self, "_watch", None) is not None and not sys.is_finalizing():
            self._watch.close()

    # --- collectives: all ranks call them in the same order

    def gather(self, content):
        """The contents of all ranks, which have the same length."""
        if self.alone:
            return [content]
        if self._given_up is not None:
            raise GroupError(f"this rank has given up the group: {self._given_up}")
        mine = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        all_ = torch.empty(self.size * len(content), dtype=torch.uint8)
        self._finish(self._own._allgather_base(all_, mine), (mine, all_))
        whole = all_.numpy().tobytes()
        return [whole[at:at + len(content)] for at in range(0, len(whole), len(content))]

    def exchange(self, content):
        """The contents of all ranks, of any length."""
        lengths = [int.from_bytes(length, "little") for length in self.gather(len(content).to_bytes(8, "little"))]
        longest = max(*lengths, 1)
        return [padded[:length] for padded, length in
                zip(self.gather(content.ljust(longest, b"\0")), lengths, strict=True)]

    @contextlib.contextmanager
    def transfer(self):
        """A Transfer, to send and receive tensors within; at the end all of it is done."""
        transfer = Transfer(self._own)
        yield transfer
        if transfer.works:
            self._finish(_InThread(lambda: [work.wait() for work in transfer.works]), transfer)

    def _finish(self, work, memory):
        """Waits for a collective as long as all ranks are there."""
        try:
            self.wait_until(work.is_completed)
        except BaseException as problem:
            _given_up.append((work, memory, self._own))
            self._given_up = problem
            self.fail(problem)
            raise
        try:
            work.wait()
        except RuntimeError as problem:  # the connection to a rank broke
            raise GroupError(self.gone() or f"the ranks lost each other: {problem}") from problem

    # --- words between ranks, which do not wait for each other

    def tell(self, key, text):
        """Whoever asks told() gets the text, also later. GroupError, as of the next three: the store does not answer."""
        if self._watch is not None:
            self._watch.tell(key, text)

    def told(self, key):
        """The text, or None."""
        return None if self._watch is None else self._watch.told(key)

    def count(self, key):
        """How many ranks have called it for this key by now, this one included."""
        return 1 if self._watch is None else self._watch.count(key)

    def forget(self, keys):
        if self._watch is not None:
            self._watch.forget(keys)

    def gone(self):
        """None, or which rank has ended or failed, in words."""
        return None if self._watch is None else self._watch.gone()

    def fail(self, problem):
        """Breaks the group: all ranks that wait for each other in it get a GroupError, now and later."""
        with contextlib.suppress(GroupError):  # then they see by themselves that this one is gone
            if not self.told(_BROKEN):  # the first problem is the cause
                self.tell(_BROKEN, f"{str(problem) or type(problem).__name__} (rank {self.rank} has given up the group)")

    def wait_until(self, is_so, deadline=None, longest=_SLEEP):
        """Returns when is_so() is true. GroupError: a rank has ended, or time.monotonic() is past the deadline. `longest`:
        seconds between two calls of is_so()."""
        pause, asked, gone, since = 5e-5, time.monotonic(), None, 0.0
        while not is_so():
            now = time.monotonic()
            if gone and now - since > _GRACE:
                raise GroupError(gone)
            if deadline is not None and now > deadline:
                raise GroupError("the other ranks took too long")
            if not gone and now - asked >= _ASKING:
                gone, asked, since = self.gone(), now, now
            time.sleep(pause)
            pause = min(2 * pause, longest)


class Transfer:
    """Tensors in host memory on their way between ranks. What goes between two ranks is sent and received in the same
    order."""

    def __init__(self, own):
        self._own, self.works, self._kept = own, [], []

    def send(self, rank, tensor):
        self._kept.append(tensor)
        self.works.append(self._own.send([tensor], rank, 0))

    def receive(self, rank, tensor):
        self._kept.append(tensor)
        self.works.append(self._own.recv([tensor], rank, 0))


class _InThread:
    """What a thread of its own does, as a work of torch's: gloo's sends and receives do not tell whether they are done."""

    def __init__(self, function):
        self._failure = self._result = None
        self._thread = threading.Thread(target=self._run, args=(function,), name="ckptfs group's work", daemon=True)
        self._thread.start()

    def _run(self, function):
        try:
            self._result = function()
        except Exception as problem:  # noqa: BLE001 - whoever waits gets it
            self._failure = problem

    def is_completed(self):
        return not self._thread.is_alive()

    def wait(self):
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self._result


class _Member:
    """A rank's process."""

    def __init__(self, machine, host, process, started):
        self.machine, self.host, self.process, self.started = machine, host, process, started

    @classmethod
    def here(cls):
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        machine = f"{boot} {os.readlink('/proc/self/ns/pid')}"  # processes have their numbers within a PID namespace
        return cls(machine, socket.gethostname(), os.getpid(), _start_time(os.getpid()))

    def facts(self):
        return self.machine, self.host, self.process, self.started

    def __str__(self):
        return f"process {self.process} on {self.host}"

    def has_ended(self):
        """Of a process on this machine."""
        return _start_time(self.process) != self.started


def _start_time(process):
    """When the process began, in ticks since the boot; None if it has ended."""
    try:
        text = pathlib.Path(f"/proc/{process}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


class _Watch:
    """The group's keys in torch's store, and the thread that counts up this rank's."""

    def __init__(self, name, rank, members):
        self._rank, self._members = rank, members
        self._near = [number for number, member in enumerate(members)
                      if member.machine == members[rank].machine and number != rank]
        self._store = _AskedStore(dist.PrefixStore(f"ckptfs/{name}", _store()))
        self._ending, self._owner = threading.Event(), os.getpid()
        self._thread = threading.Thread(target=self._beat, name="ckptfs group", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def close(self):
        """After this the thread ends, and the other ranks know that this one has left."""
        atexit.unregister(self.close)
        if self._ending.is_set() or os.getpid() != self._owner:  # or a child of fork, which has no such thread
            return
        self._ending.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(_DEAD)

    def tell(self, key, text):
        self._ask(lambda store: store.set(key, text.encode(errors="replace")))

    def told(self, key):
        return self._ask(lambda store: store.get(key).decode(errors="replace") if store.check([key]) else None)

    def count(self, key):
        return self._ask(lambda store: store.add(key, 1))

    def forget(self, keys):
        self._ask(lambda store: [store.delete_key(key) for key in keys])

    def _ask(self, question):
        try:
            return self._store.ask(question)
        except TimeoutError as problem:  # its host is gone, and the connection does not know it yet
            raise GroupError(self._ended() or f"{_NO_ANSWER} for {_DEAD} s") from problem
        except (RuntimeError, dist.DistError) as problem:
            raise GroupError(self._ended() or f"{_NO_ANSWER}: {problem}") from problem

    def gone(self):
        try:
            return self._ended() or self.told(_BROKEN) or self.told(_GONE)
        except GroupError as problem:
            return str(problem)

    def _ended(self):
        """A rank on this machine whose process is no more."""
        for number in self._near:
            if self._members[number].has_ended():
                return f"rank {number} ({self._members[number]}) has ended"
        return None

    def _beat(self):
        beats, answers = 0, True
        self._seen, self._since, self._said = None, time.monotonic(), None
        while not self._ending.is_set():
            beats += 1
            try:
                self.tell(f"beat/{self._rank}", str(beats))
                self._look_at_next()
                answers = True
            except GroupError as problem:  # whoever waits for other ranks gets the same error
                if answers:
                    _log.warning("rank %d: %s", self._rank, problem)
                answers = False
            self._ending.wait(_BEAT)
        with contextlib.suppress(GroupError):
            self.tell(f"beat/{self._rank}", _LEFT)
            if self.count(_LEFT) == len(self._members):  # then nobody looks any more
                self.forget([_LEFT, *(f"beat/{rank}" for rank in range(len(self._members)))])
        self._store.close()

    def _look_at_next(self):
        """Tells all when the rank after this one is silent, or has left; and takes it back when it is heard of again."""
        number = (self._rank + 1) % len(self._members)
        beat = self.told(f"beat/{number}")
        if beat != self._seen:
            self._seen, self._since = beat, time.monotonic()
        silent = time.monotonic() - self._since > _DEAD
        if silent or beat == _LEFT:
            how = f"has not been heard of for {_DEAD} s" if silent else "has left the group"
            self._said = f"rank {number} ({self._members[number]}) {how}"
            self.tell(_GONE, self._said)
        elif self._said is not None and self.told(_GONE) == self._said:
            self.forget([_GONE])
            self._said = None


class _AskedStore:
    """A store that is asked by a thread of its own, since a call does not return while the store's host is gone. From any
    thread, also from a destructor."""

    def __init__(self, store):
        self._store, self._questions = store, queue.SimpleQueue()
        self._late = False  # it has not answered in time, and has not answered since
        self._closed = False
        self._thread = threading.Thread(target=self._answer, name="ckptfs group's store", daemon=True)
        self._thread.start()

    def ask(self, question):
        """What question(store) returns or raises. TimeoutError: it has not answered for _DEAD seconds, or is closed."""
        if threading.current_thread() is self._thread:  # a destructor, which runs where it is met
            return question(self._store)
        if self._late or self._closed or not self._thread.is_alive():  # in a child of fork it is not
            raise TimeoutError
        answer = concurrent.futures.Future()
        self._questions.put((question, answer))
        try:
            return answer.result(_DEAD)
        except concurrent.futures.TimeoutError:
            self._late = True
            raise TimeoutError from None

    def close(self):
        self._closed = True
        self._questions.put(None)

    def _answer(self):
        while (asked := self._questions.get()) is not None:
            question, answer = asked
            try:
                answer.set_result(question(self._store))
            except Exception as problem:  # noqa: BLE001 - whoever asks gets it
                answer.set_exception(problem)
            self._late = False


def _store():
    """A client of the default process group's store. None of its calls waits for other ranks."""
    store = distributed_c10d._get_default_store()
    try:
        store = store.clone()
    except (NotImplementedError, RuntimeError):  # of a kind that has no connection
        return store
    store.set_timeout(datetime.timedelta(seconds=_DEAD))
    return store

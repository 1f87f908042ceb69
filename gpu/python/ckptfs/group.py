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

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import datetime
import functools
import logging
import os
import pathlib
import queue
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, Protocol, TypeVar, cast

import torch
import torch.distributed as dist
from torch.distributed import (PrefixStore, ProcessGroup, Store,  # type: ignore[attr-defined] # it has no __all__
                               distributed_c10d)

__all__ = ["LONG_SLEEP", "Group", "GroupError", "Transfer"]

_T = TypeVar("_T")
_log = logging.getLogger("ckptfs")
_BEAT, _DEAD = 5, 40  # seconds
_ASKING = 1  # second between two looks at who is alive
_PATIENCE = 1800  # seconds until a collective of ranks that are all there fails
_GRACE = 2  # seconds in which the last words of a rank that has ended may arrive
_SLEEP, LONG_SLEEP = 0.002, 0.05  # seconds; the long one between questions to the store
_LEFT, _GONE, _BROKEN = "left", "gone", "broken"
_NO_ANSWER = "torch's store, by which the ranks know of each other, does not answer"
# Collectives that were given up, with all that they use: torch may still write to their memory as long as the process lives.
_given_up: list[object] = []


class GroupError(RuntimeError):
    """A rank failed, ended, or was told something else than the others. Its text names the rank."""


class Group:
    """See above. All ranks of the process group make it together. `group`: None is the default process group.

    It has a connection of gloo of its own: what goes wrong there leaves the process groups of the training as they are.
    Until all ranks have begun to make it, they wait for each other as long as the process group's timeout says.

    close() ends the watch; a rank that waits for one that has closed gets an error. From one thread at a time, but for
    tell(), told() and wait_until().
    """

    def __init__(self, group: ProcessGroup | None = None) -> None:
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.alone = self.size == 1
        self._watch: _Watch | None = None
        self._own: ProcessGroup | None = None
        self._given_up: BaseException | None = None
        self.members = [_Member.here()]
        if not self.alone:
            told: list[tuple[str, _Facts]] = [("", self.members[0].facts())] * self.size
            dist.all_gather_object(told, (uuid.uuid4().hex, self.members[0].facts()), group=group)
            self.members = [_Member(*facts) for _, facts in told]
            self._watch = _Watch(told[0][0], self.rank, self.members)
            self._own = self._connected(told[0][0])
        machines = sorted({member.machine for member in self.members})
        self.hosts = [machines.index(member.machine) for member in self.members]

    def _connected(self, name: str) -> ProcessGroup:
        """A rank may end meanwhile, and gloo does not see it."""
        connecting = _InThread(lambda: dist.ProcessGroupGloo(PrefixStore(f"ckptfs/{name}/gloo", _store()), self.rank,
                                                             self.size, datetime.timedelta(seconds=_PATIENCE)))
        self.wait_until(connecting.is_completed)
        return cast(ProcessGroup, connecting.wait())  # torch declares of a backend not all that it has

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        watch = getattr(self, "_watch", None)
        if watch is not None and not sys.is_finalizing():
            watch.close()

    # --- collectives: all ranks call them in the same order

    def gather(self, content: bytes) -> list[bytes]:
        """The contents of all ranks, which have the same length."""
        if self.alone:
            return [content]
        if self._given_up is not None:
            raise GroupError(f"this rank has given up the group: {self._given_up}")
        mine = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        all_ = torch.empty(self.size * len(content), dtype=torch.uint8)
        self._finish(cast(ProcessGroup, self._own)._allgather_base(all_, mine), (mine, all_))
        whole = all_.numpy().tobytes()
        return [whole[at:at + len(content)] for at in range(0, len(whole), len(content))]

    def exchange(self, content: bytes) -> list[bytes]:
        """The contents of all ranks, of any length."""
        lengths = [int.from_bytes(length, "little") for length in self.gather(len(content).to_bytes(8, "little"))]
        longest = max(*lengths, 1)
        return [padded[:length] for padded, length in
                zip(self.gather(content.ljust(longest, b"\0")), lengths, strict=True)]

    @contextlib.contextmanager
    def transfer(self) -> Iterator[Transfer]:
        """A Transfer, to send and receive tensors within; at the end all of it is done."""
        transfer = Transfer(cast(ProcessGroup, self._own))  # None, if the rank is alone: it sends nothing
        yield transfer
        if transfer.works:
            self._finish(_InThread(lambda: [work.wait() for work in transfer.works]), transfer)

    def _finish(self, work: _Work, memory: object) -> None:
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

    def tell(self, key: str, text: str) -> None:
        """Whoever asks told() gets the text, also later. GroupError, as of the next three: the store does not answer."""
        if self._watch is not None:
            self._watch.tell(key, text)

    def told(self, key: str) -> str | None:
        """The text, or None."""
        return None if self._watch is None else self._watch.told(key)

    def count(self, key: str) -> int:
        """How many ranks have called it for this key by now, this one included."""
        return 1 if self._watch is None else self._watch.count(key)

    def forget(self, keys: Iterable[str]) -> None:
        if self._watch is not None:
            self._watch.forget(keys)

    def gone(self) -> str | None:
        """None, or which rank has ended or failed, in words."""
        return None if self._watch is None else self._watch.gone()

    def fail(self, problem: BaseException) -> None:
        """Breaks the group: all ranks that wait for each other in it get a GroupError, now and later."""
        with contextlib.suppress(GroupError):  # then they see by themselves that this one is gone
            if not self.told(_BROKEN):  # the first problem is the cause
                self.tell(_BROKEN, f"{str(problem) or type(problem).__name__} (rank {self.rank} has given up the group)")

    def wait_until(self, is_so: Callable[[], object], deadline: float | None = None, longest: float = _SLEEP) -> None:
        """Returns when is_so() is true. GroupError: a rank has ended, or time.monotonic() is past the deadline. `longest`:
        seconds between two calls of is_so()."""
        pause, asked, since = 5e-5, time.monotonic(), 0.0
        gone: str | None = None
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

    def __init__(self, own: ProcessGroup) -> None:
        self._own = own
        self.works: list[dist.Work] = []
        self._kept: list[torch.Tensor] = []

    def send(self, rank: int, tensor: torch.Tensor) -> None:
        self._kept.append(tensor)
        self.works.append(self._own.send([tensor], rank, 0))

    def receive(self, rank: int, tensor: torch.Tensor) -> None:
        self._kept.append(tensor)
        self.works.append(self._own.recv([tensor], rank, 0))


class _Work(Protocol):
    """What torch's Work and ours have in common."""

    def is_completed(self) -> bool: ...

    def wait(self) -> object: ...


class _InThread(Generic[_T]):
    """What a thread of its own does, as a work of torch's: gloo's sends and receives do not tell whether they are done."""

    def __init__(self, function: Callable[[], _T]) -> None:
        self._failure: Exception | None = None
        self._result: list[_T] = []
        self._thread = threading.Thread(target=self._run, args=(function,), name="ckptfs group's work", daemon=True)
        self._thread.start()

    def _run(self, function: Callable[[], _T]) -> None:
        try:
            self._result.append(function())
        except Exception as problem:  # noqa: BLE001 - whoever waits gets it
            self._failure = problem

    def is_completed(self) -> bool:
        return not self._thread.is_alive()

    def wait(self) -> _T:
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self._result[0]


_Facts = tuple[str, str, int, int | None]  # what makes a _Member, as the ranks tell each other


class _Member:
    """A rank's process."""

    def __init__(self, machine: str, host: str, process: int, started: int | None) -> None:
        self.machine, self.host, self.process, self.started = machine, host, process, started

    @classmethod
    def here(cls) -> _Member:
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        machine = f"{boot} {os.readlink('/proc/self/ns/pid')}"  # processes have their numbers within a PID namespace
        return cls(machine, socket.gethostname(), os.getpid(), _start_time(os.getpid()))

    def facts(self) -> _Facts:
        return self.machine, self.host, self.process, self.started

    def __str__(self) -> str:
        return f"process {self.process} on {self.host}"

    def has_ended(self) -> bool:
        """Of a process on this machine."""
        return _start_time(self.process) != self.started


def _start_time(process: int) -> int | None:
    """When the process began, in ticks since the boot; None if it has ended."""
    try:
        text = pathlib.Path(f"/proc/{process}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


class _Watch:
    """The group's keys in torch's store, and the thread that counts up this rank's."""

    def __init__(self, name: str, rank: int, members: list[_Member]) -> None:
        self._rank, self._members = rank, members
        self._near = [number for number, member in enumerate(members)
                      if member.machine == members[rank].machine and number != rank]
        self._store = _AskedStore(PrefixStore(f"ckptfs/{name}", _store()))
        self._ending, self._owner = threading.Event(), os.getpid()
        self._thread = threading.Thread(target=self._beat, name="ckptfs group", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def close(self) -> None:
        """After this the thread ends, and the other ranks know that this one has left."""
        atexit.unregister(self.close)
        if self._ending.is_set() or os.getpid() != self._owner:  # or a child of fork, which has no such thread
            return
        self._ending.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(_DEAD)

    def tell(self, key: str, text: str) -> None:
        self._ask(lambda store: store.set(key, text.encode(errors="replace")))  # type: ignore[arg-type] # it takes bytes

    def told(self, key: str) -> str | None:
        return self._ask(lambda store: store.get(key).decode(errors="replace") if store.check([key]) else None)

    def count(self, key: str) -> int:
        return self._ask(lambda store: store.add(key, 1))

    def forget(self, keys: Iterable[str]) -> None:
        self._ask(lambda store: [store.delete_key(key) for key in keys])

    def _ask(self, question: Callable[[Store], _T]) -> _T:
        try:
            return self._store.ask(question)
        except TimeoutError as problem:  # its host is gone, and the connection does not know it yet
            raise GroupError(self._ended() or f"{_NO_ANSWER} for {_DEAD} s") from problem
        except (RuntimeError, dist.DistError) as problem:
            raise GroupError(self._ended() or f"{_NO_ANSWER}: {problem}") from problem

    def gone(self) -> str | None:
        try:
            return self._ended() or self.told(_BROKEN) or self.told(_GONE)
        except GroupError as problem:
            return str(problem)

    def _ended(self) -> str | None:
        """A rank on this machine whose process is no more."""
        for number in self._near:
            if self._members[number].has_ended():
                return f"rank {number} ({self._members[number]}) has ended"
        return None

    def _beat(self) -> None:
        beats, answers = 0, True
        self._seen: str | None = None
        self._said: str | None = None
        self._since = time.monotonic()
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

    def _look_at_next(self) -> None:
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

    def __init__(self, store: Store) -> None:
        self._store = store
        self._questions: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._late = False  # it has not answered in time, and has not answered since
        self._closed = False
        self._thread = threading.Thread(target=self._answer, name="ckptfs group's store", daemon=True)
        self._thread.start()

    def ask(self, question: Callable[[Store], _T]) -> _T:
        """What question(store) returns or raises. TimeoutError: it has not answered for _DEAD seconds, or is closed."""
        if threading.current_thread() is self._thread:  # a destructor, which runs where it is met
            return question(self._store)
        if self._late or self._closed or not self._thread.is_alive():  # in a child of fork it is not
            raise TimeoutError
        answer: concurrent.futures.Future[_T] = concurrent.futures.Future()
        self._questions.put(functools.partial(self._answer_one, question, answer))
        try:
            return answer.result(_DEAD)
        except concurrent.futures.TimeoutError:
            self._late = True
            raise TimeoutError from None

    def close(self) -> None:
        self._closed = True
        self._questions.put(None)

    def _answer(self) -> None:
        while (answer_one := self._questions.get()) is not None:
            answer_one()
            self._late = False

    def _answer_one(self, question: Callable[[Store], _T], answer: concurrent.futures.Future[_T]) -> None:
        try:
            answer.set_result(question(self._store))
        except Exception as problem:  # noqa: BLE001 - whoever asks gets it
            answer.set_exception(problem)


def _store() -> Store:
    """A client of the default process group's store. None of its calls waits for other ranks."""
    store = distributed_c10d._get_default_store()
    try:
        store = store.clone()
    except (NotImplementedError, RuntimeError):  # of a kind that has no connection
        return store
    store.set_timeout(datetime.timedelta(seconds=_DEAD))
    return store

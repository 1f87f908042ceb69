"""Loads by a group: what several ranks need is read once and passed on, or each reads it for itself.

The plan of a load is that of a save of the same tensors: each byte has one *owner* among the ranks that want it. By
"broadcast" the owner reads it, to where it belongs, and sends it from there to the others, who receive it where it
belongs: no memory is needed beside the tensors, but for pieces that do not lie contiguously. By "each" every rank reads
all that it wants. "auto" loads a sample in either way, and the rest in the way that was quicker.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import logging
import os
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, ParamSpec, get_args

from ckptfs import memory, pieces, plans
from ckptfs.agreement import Agreement
from ckptfs.group import Group, GroupError

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

    from ckptfs.loading import Checkpoint, Report

Mode = Literal["auto", "broadcast", "each"]
_P = ParamSpec("_P")
_Open = Callable[[], "Checkpoint"]
_NameTargets = Callable[["Checkpoint"], Mapping[str, pieces.State]]
_log = logging.getLogger("ckptfs")
MODES: tuple[Mode, ...] = get_args(Mode)
_READ_AT_ONCE = 64 << 20  # bytes, before they are sent on
_SAMPLE = 16  # of all shared bytes the 16th is loaded in either way
_WORTH_SAMPLING = 256 << 20  # bytes that a rank shares
_measured: dict[tuple[int, int], Mode] = {}  # (machines, ranks) -> the quicker mode, as long as this process lives
_KNOWN: tuple[Mode | None, ...] = (None, "each", "broadcast")
_OWN_STAGES = ("open", "plan", "read")  # in the others a rank also waits for other ranks
_SHARED = struct.Struct("<QB")  # the bytes that a rank shares, and what it has measured


class _Message(NamedTuple):
    """A stretch of what a rank wants."""

    owner: int
    holders: tuple[int, ...]  # the ranks that want it
    parts: list[pieces.Part]
    bytes: int


def check_mode(mode: str) -> None:
    if mode not in MODES:
        raise ValueError(f"mode {mode!r}: it is one of {', '.join(MODES)}")


def load(open_checkpoint: _Open, targets: _NameTargets, process_group: ProcessGroup | None,
         mode: Mode, stream: torch.cuda.Stream | None = None) -> Mapping[str, pieces.State]:
    """Fills, on all ranks of a process group, the tensors that targets(checkpoint) names. Returns these."""
    begun = time.monotonic()
    group = Group(process_group)
    with contextlib.closing(group), contextlib.ExitStack() as stack, memory.on(stream):
        one = _Load(group, stream, begun)
        try:
            filled = one.load(lambda: stack.enter_context(open_checkpoint()), targets, mode)
        except GroupError:
            raise
        except Exception as problem:
            group.fail(problem)
            if isinstance(problem, OSError) and problem.strerror:
                raise OSError(problem.errno, f"rank {group.rank}: {problem.strerror}") from problem
            raise
    return filled


class _Load:
    """One load by all ranks of a group."""

    _checkpoint: Checkpoint

    def __init__(self, group: Group, stream: torch.cuda.Stream | None, begun: float) -> None:
        self._group, self._stream, self._begun = group, stream, begun
        self._holdings: list[pieces.Holding] = []
        self._messages: list[_Message] = []
        self._reports: list[Report] = []
        self._failure: Exception | None = None  # of this rank
        self._seconds = dict.fromkeys((*_OWN_STAGES, "collective", "broadcast"), 0.0)  # by stage: of this rank

    def load(self, open_checkpoint: _Open, targets: _NameTargets, mode: Mode) -> Mapping[str, pieces.State]:
        """A rank that cannot take part gets its own exception, the others a GroupError."""
        filled: Mapping[str, pieces.State] = {}

        def describe() -> list[pieces.Holding]:
            nonlocal filled
            check_mode(mode)
            with self._timed("open"):
                self._checkpoint = open_checkpoint()
            filled = targets(self._checkpoint)
            self._holdings = pieces.holdings_of(filled)
            for holding in self._holdings:
                self._checkpoint._check(holding)
            return self._holdings

        agreed = Agreement(self._group, "modes", whole=False, cached=1).agree(mode, describe)
        self._seconds["plan"] += agreed.seconds["plan"] - self._seconds["open"]
        self._seconds["collective"] += agreed.seconds["collective"]
        with self._timed("plan"):
            self._targets = pieces.Targets(self._holdings)
            self._messages = self._messages_of(agreed.plan)
        mode = self._load_by(mode)
        with self._timed("read"):
            self._attempt(self._targets.finish)
        self._end(mode)
        return filled

    def _attempt(self, function: Callable[_P, object], *arguments: _P.args, **named: _P.kwargs) -> None:
        """What fails on this rank is raised at the end: until then the others wait for it in each step of the load."""
        if self._failure is not None:
            return
        try:
            function(*arguments, **named)
        except Exception as problem:  # noqa: BLE001 - see above
            self._failure = problem
            self._group.tell(f"failure/{self._group.rank}", f"{type(problem).__name__}: {problem}")

    def _end(self, mode: str) -> None:
        """Ends the load on all ranks: none leaves as long as another one waits, and what failed on one is told to all."""
        _log.info("%s: rank %d has loaded %d bytes, by %s, and read %d: %s", self._checkpoint.path, self._group.rank,
                  sum(message.bytes for message in self._messages), mode, sum(report.read for report in self._reports),
                  ", ".join(f"{stage} {number:.2f} s" for stage, number in self._seconds.items()))
        name = os.path.basename(os.path.realpath(self._checkpoint.path))
        told = self._group.exchange(json.dumps([self._failure is not None, name, socket.gethostname(),
                                                self._seconds]).encode())
        failed, names, hosts, seconds = zip(*map(json.loads, told), strict=True)
        if self._failure is not None:
            raise self._failure
        if any(failed):
            first = failed.index(True)
            raise GroupError(f"rank {first} has not loaded its part: {self._group.told(f'failure/{first}')}")
        other = next((rank for rank, of_rank in enumerate(names) if of_rank != names[0]), None)
        if other is not None:
            raise GroupError(f"rank {other} has loaded {names[other]}, and rank 0 {names[0]}: what they have now is mixed")
        if self._group.rank == 0:
            self._tell_mount(hosts, seconds)

    def _tell_mount(self, hosts: Sequence[str], seconds: Sequence[Mapping[str, float]]) -> None:
        """By stage: the most that a rank took for it. The others waited for the rank that took longest for its own work."""
        own = [sum(of_rank[stage] for stage in _OWN_STAGES) for of_rank in seconds]
        slowest = own.index(max(own))
        longest = {stage: max(of_rank[stage] for of_rank in seconds) for stage in seconds[0]}
        try:
            self._checkpoint._tell_loaded(slowest, hosts[slowest], time.monotonic() - self._begun, longest)
        except OSError as problem:
            _log.info("%s: the mount is not told how long the load took: %s", self._checkpoint.path, problem)

    @contextlib.contextmanager
    def _timed(self, stage: str, beside: str = "") -> Iterator[None]:
        """Adds the time within to the stage, but for what is added to the stage `beside` meanwhile."""
        begun, before = time.monotonic(), self._seconds.get(beside, 0.0)
        yield
        self._seconds[stage] += time.monotonic() - begun - self._seconds.get(beside, 0.0) + before

    def _messages_of(self, plan: plans.Plan) -> list[_Message]:
        """All that this rank wants, in the order in which all ranks that want it have it."""
        sizes = [holding.dtype.itemsize for holding in self._holdings]
        found: list[_Message] = []
        for (holders, _), same in itertools.groupby(plan.held, lambda part: (part.holders, part.message)):
            parts = list(same)
            size = sum((part.end - part.begin) * sizes[part.holding] for part in parts)
            if size:
                spans = [(part.holding, part.begin, part.end) for part in parts]
                message = _Message(parts[0].owner, tuple(plan.holders[holders]), spans, size)
                found.extend(_cut(message, sizes))
        return found

    def _load_by(self, mode: Mode) -> Mode:
        shared = [message for message in self._messages if len(message.holders) > 1]
        alone = [message for message in self._messages if len(message.holders) == 1]
        self._read(alone)
        if mode == "auto":
            mode = self._choose(shared)
        elif mode == "each":
            self._read(shared)
        else:
            self._broadcast(shared)
        return mode

    # --- the two ways

    def _read(self, messages: list[_Message]) -> None:
        if messages:
            with self._timed("read"):
                self._attempt(self._read_parts, [part for message in messages for part in message.parts])

    def _read_parts(self, parts: list[pieces.Part]) -> None:
        self._reports.append(self._checkpoint._load_parts(self._targets, parts, self._stream))

    def _broadcast(self, messages: list[_Message]) -> None:
        """A rank sends what it has read while it reads on. If the memory is a device's, or a message lies scattered, what is
        sent and received is in host memory first, a round at a time."""
        rounds = _rounds(messages)
        if self._targets.on_host() and all(len(message.parts) == 1 for message in messages):
            rounds = [[message for one in rounds for message in one]]
        with self._timed("broadcast", beside="read"):
            for messages_of_round in rounds:
                self._pass_on(messages_of_round)

    def _pass_on(self, messages: list[_Message]) -> None:
        rank = self._group.rank
        arrivals = []
        with self._group.transfer() as transfer:
            for message in messages:
                if message.owner != rank:
                    arrivals.append(self._targets.arrival(message.parts))
                    transfer.receive(message.owner, arrivals[-1].memory)
            for batch in _batches([message for message in messages if message.owner == rank]):
                self._read(batch)
                for message in batch:
                    departing = self._targets.departure(message.parts)
                    for other in message.holders:
                        if other != rank:
                            transfer.send(other, departing)
        for arrival in arrivals:
            arrival.finish()

    # --- which is quicker

    def _choose(self, shared: list[_Message]) -> Mode:
        """Loads all. Returns the mode in which most was loaded."""
        key = (len(set(self._group.hosts)), self._group.size)
        shared_bytes = sum(message.bytes for message in shared)
        told = self._gather(_SHARED.pack(shared_bytes, _KNOWN.index(_measured.get(key))))
        sizes, modes = zip(*map(_SHARED.unpack, told), strict=True)
        # Ranks may have loaded in other groups before.
        known: Mode | None = _KNOWN[modes[0]] if len(set(modes)) == 1 else None
        if known is None and max(sizes) >= _WORTH_SAMPLING:
            first, second, shared = _samples(shared)
            rates: dict[Mode, int] = {"each": self._rate(self._read, first),
                                      "broadcast": self._rate(self._broadcast, second)}
            known = _measured[key] = max(rates, key=rates.__getitem__)
            _log.info("loading by %s: %s", known, ", ".join(f"{mode} {rate / 1e9:.2f} GB/s a rank"
                                                            for mode, rate in rates.items()))
        if known is None:
            known = "each"
        (self._read if known == "each" else self._broadcast)(shared)
        return known

    def _rate(self, load: Callable[[list[_Message]], None], messages: list[_Message]) -> int:
        """Bytes per second of the slowest rank of those that load something."""
        self._gather(b"\0")  # all begin together
        begun = time.monotonic()
        load(messages)
        size = sum(message.bytes for message in messages)
        own = int(size / max(time.monotonic() - begun, 1e-6)) if size else (1 << 63)
        return min(int.from_bytes(rate, "little") for rate in self._gather(own.to_bytes(8, "little")))

    def _gather(self, content: bytes) -> list[bytes]:
        with self._timed("collective"):
            return self._group.gather(content)


def _cut(message: _Message, sizes: Sequence[int]) -> Iterator[_Message]:
    """A message in messages of at most some _READ_AT_ONCE bytes. All its ranks cut it alike: it has the same elements in
    the same order on each of them. `sizes`: of an element, by holding."""
    parts: list[pieces.Part] = []
    room = _READ_AT_ONCE
    for index, begin, end in message.parts:
        while begin < end:
            middle = min(end, begin + max(1, room // sizes[index]))
            parts.append((index, begin, middle))
            room -= (middle - begin) * sizes[index]
            begin = middle
            if room < sizes[index]:
                yield message._replace(parts=parts, bytes=_READ_AT_ONCE - room)
                parts, room = [], _READ_AT_ONCE
    if parts:
        yield message._replace(parts=parts, bytes=_READ_AT_ONCE - room)


def _rounds(messages: Iterable[_Message]) -> list[list[_Message]]:
    """The messages in rounds of at most some _READ_AT_ONCE bytes of each set of ranks. All ranks of a set put a message
    into the same round."""
    seen: collections.Counter[tuple[int, ...]] = collections.Counter()
    found = collections.defaultdict(list)
    for message in messages:
        found[seen[message.holders] // _READ_AT_ONCE].append(message)
        seen[message.holders] += message.bytes
    return [found[number] for number in sorted(found)]


def _samples(messages: list[_Message]) -> tuple[list[_Message], list[_Message], list[_Message]]:
    """Two samples and the rest. All ranks that share a message put it into the same one."""
    totals: collections.Counter[tuple[int, ...]] = collections.Counter()
    seen: collections.Counter[tuple[int, ...]] = collections.Counter()
    for message in messages:
        totals[message.holders] += message.bytes
    found: tuple[list[_Message], list[_Message], list[_Message]] = ([], [], [])
    for message in messages:
        share = seen[message.holders] * _SAMPLE // max(totals[message.holders], 1)
        seen[message.holders] += message.bytes
        found[min(share, 2)].append(message)
    return found


def _batches(messages: Iterable[_Message]) -> Iterator[list[_Message]]:
    batch: list[_Message] = []
    size = 0
    for message in messages:
        batch.append(message)
        size += message.bytes
        if size >= _READ_AT_ONCE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch

"""How the ranks of a group agree on what they save or load, by one small collective.

Each rank contributes _MESSAGE: a digest of what it holds, of its plan cache, of the step's name, and a number that never
comes again. If all digests together are known, the plan is known: no rank's change goes unseen, because each rank's
digest is in the key. Else the ranks exchange what they hold, and each makes the plan by itself, the same one.
"""

from __future__ import annotations

import errno
import hashlib
import os
import struct
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ckptfs import memory, plans
from ckptfs.group import Group, GroupError
from ckptfs.pieces import Holding

_MESSAGE = struct.Struct("<32s8s8s16s?")


class _Message(NamedTuple):
    digest: bytes
    history: bytes
    name: bytes
    nonce: bytes
    takes_part: bool


class Agreed(NamedTuple):
    plan: plans.Plan
    attempt: str
    seconds: dict[str, float]  # by stage


def _failure(nonce: bytes) -> str:
    """The key for why a rank does not take part: another one each time, since ranks may ask when the next time has begun."""
    return f"failure/{nonce.hex()}"


def _happens_on_all(problem: BaseException) -> bool:
    """Do the other ranks get it, too? The planner refuses the same descriptions everywhere; memory lacks on one rank."""
    return isinstance(problem, GroupError) or (isinstance(problem, OSError) and problem.errno != errno.ENOMEM)


def _short(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=8).digest()


class Agreement:
    """Plans of one group, of which the last used are kept. `names`: what all ranks have to be told alike, in a word.
    `whole`: what nobody holds is an error, as of a save."""

    def __init__(self, group: Group, names: str, *, whole: bool, cached: int = 8) -> None:
        self._group, self._names, self._whole, self._cached = group, names, whole, cached
        self._begin_anew(b"")

    def _begin_anew(self, history: bytes) -> None:
        """`history` is a digest of all that the cache has been asked for, the same on all ranks whose caches are alike."""
        self._cache, self._history = plans.PlanCache(self._cached), history

    def agree(self, name: str, describe: Callable[[], Iterable[Holding]]) -> Agreed:
        """What each rank does; describe() returns this rank's holdings. All ranks call it, with the same name.

        A rank whose describe() raises gets its exception, the others a GroupError with its words.
        """
        begun = time.monotonic()
        description, nonce = b"", os.urandom(16)
        failure: Exception | None = None
        try:
            description = plans.describe((holding.name, memory.name_of(holding.dtype), holding.shape, holding.offsets,
                                          holding.sizes) for holding in describe())
        except Exception as problem:  # noqa: BLE001 - the others wait for this rank's word
            failure = problem
            self._group.tell(_failure(nonce), f"{type(problem).__name__}: {problem}")
        described = time.monotonic()
        messages = self._exchange_messages(name, description, failure, nonce)
        agreed = time.monotonic()
        plan, exchanged = self._plan(messages, description)
        attempt = _short(b"".join(message.nonce for message in messages)).hex()
        seconds = {"plan": described - begun + time.monotonic() - agreed - exchanged,
                   "collective": agreed - described + exchanged}
        return Agreed(plan, attempt, seconds)

    def _plan(self, messages: Sequence[_Message], description: bytes) -> tuple[plans.Plan, float]:
        """The plan, and the seconds that the exchange for it took."""
        digests = [message.digest for message in messages]
        histories = [message.history for message in messages]
        if len(set(histories)) > 1:  # a rank failed where others did not
            self._begin_anew(_short(b"".join(histories)))
        self._history = _short(self._history + b"".join(digests))
        where = (self._group.hosts, self._group.rank, self._whole)
        plan = self._cache.find(digests, *where)
        if plan is not None:
            return plan, 0.0
        begun = time.monotonic()
        try:
            descriptions = self._exchange_descriptions(digests, description)
            exchanged = time.monotonic() - begun
            return self._cache.make(descriptions, digests, *where), exchanged
        except BaseException as problem:
            self._begin_anew(os.urandom(8))  # perhaps the other ranks have a plan now
            if not _happens_on_all(problem):
                self._group.fail(problem)
            raise

    def _exchange_messages(self, name: str, description: bytes, failure: Exception | None,
                           nonce: bytes) -> list[_Message]:
        mine = _MESSAGE.pack(plans.digest(description), self._history.ljust(8, b"\0"), _short(name.encode()), nonce,
                             failure is None)
        messages = [_Message(*_MESSAGE.unpack(message)) for message in self._group.gather(mine)]
        failed = [rank for rank, message in enumerate(messages) if not message.takes_part]
        if failure is not None:
            raise failure
        if failed:
            why = self._group.told(_failure(messages[failed[0]].nonce)) or "it did not say why"
            raise GroupError(f"rank {failed[0]} cannot take part: {why}")
        others = [rank for rank, message in enumerate(messages) if message.name != messages[0].name]
        if others:
            raise GroupError(f"rank {others[0]} and rank 0 were told different {self._names}; this is rank "
                             f"{self._group.rank}, and was told {name}")
        return messages

    def _exchange_descriptions(self, digests: list[bytes], description: bytes) -> list[bytes]:
        """Each different one is sent once, by the first rank that has it."""
        first = {digest: rank for rank, digest in reversed(list(enumerate(digests)))}
        sends = first[digests[self._group.rank]] == self._group.rank
        sent = self._group.exchange(zlib.compress(description, 1) if sends else b"")
        known = {digest: zlib.decompress(sent[rank]) for digest, rank in first.items()}
        return [known[digest] for digest in digests]

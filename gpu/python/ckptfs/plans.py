"""Plans of a group of ranks: what each of them holds, who owns which part of it, and the plans that are kept.

Every rank makes the plan by itself, from the descriptions of all ranks. All make the same one (gpu/plan.h). No torch.
"""

from __future__ import annotations

import array
import collections
import ctypes
import itertools
import struct
from collections.abc import Iterable, Sequence
from typing import TypeVar

from ckptfs import native

DIGEST = 32  # bytes
Numbers = Sequence[int]
Box = tuple[tuple[int, ...], tuple[int, ...]]  # offsets, sizes
_Kind = TypeVar("_Kind", native.Planned, ctypes.c_uint32)


def describe(holdings: Iterable[tuple[str, str, Numbers, Numbers, Numbers]]) -> bytes:
    """What this rank holds, for all others: (name, dtype, shape of the whole, offsets, sizes) for each box that it has
    contiguously in memory, in row-major order. `dtype` is the name that safetensors uses. The same holdings, in the
    same order, give the same bytes."""
    holdings = list(holdings)
    numbers = array.array("Q", itertools.chain.from_iterable(itertools.chain(*holding[2:]) for holding in holdings))
    given = (native.Holding * len(holdings))()
    at = numbers.buffer_info()[0]
    for one, (name, dtype, shape, offsets, sizes) in zip(given, holdings, strict=True):
        if not len(shape) == len(offsets) == len(sizes):
            raise ValueError(f"{name}: a box with another number of dimensions than the tensor")
        step = len(shape) * numbers.itemsize
        one.name, one.dtype, one.dimensions = native.encoded(name), dtype.encode(), len(shape)
        one.shape, one.offsets, one.sizes = at, at + step, at + 2 * step
        at += 3 * step
    described, size = ctypes.c_void_p(), ctypes.c_uint64()
    native.call("ckptfs_describe", given, len(holdings), ctypes.byref(described), ctypes.byref(size))
    try:
        return ctypes.string_at(described, size.value)
    finally:
        native.library().ckptfs_bytes_free(described)


def digest(content: bytes) -> bytes:
    """BLAKE3."""
    found = ctypes.create_string_buffer(DIGEST)
    native.call("ckptfs_digest", content, len(content), found)
    return found.raw


def boxes_of_range(offsets: Numbers, sizes: Numbers, begin: int, end: int) -> list[Box]:
    """Boxes, (offsets, sizes) of each, that hold elements [begin, end) of a box. Each is contiguous in its memory."""
    dimensions = len(sizes)
    numbers, row = ctypes.c_uint64 * dimensions, 2 * dimensions
    found, count = (ctypes.c_uint64 * ((row + 1) * row))(), ctypes.c_uint64()
    native.call("ckptfs_boxes_of_range", numbers(*offsets), numbers(*sizes), dimensions, begin, end, found,
                ctypes.byref(count))
    boxes = [found[number * row:(number + 1) * row] for number in range(count.value)]
    return [(tuple(box[:dimensions]), tuple(box[dimensions:])) for box in boxes]


class Plan:
    """What one rank needs of the plan of a group. Nothing changes it.

    `owned`: what the rank owns. `held`: all that it holds. Both are arrays of native.Planned: elements [begin, end)
    of the rank's holding number `holding` are owned by rank `owner`. gpu/ckptfs.h explains `holders` and `message`.
    `holders`: {number: ranks}, for those sets of ranks that are in `held`. `loads`: the bytes that each rank owns.
    """

    def __init__(self, descriptions: Sequence[bytes], hosts: Numbers, rank: int, whole: bool = True) -> None:
        """`hosts`: a number for the machine of each rank. `whole`: elements that no rank holds are an OSError (EINVAL),
        as in a save. So is, always, what the ranks do not agree about."""
        ranks = len(descriptions)
        if len(hosts) != ranks:
            raise ValueError("each rank needs a host")
        plan = ctypes.c_void_p()
        native.call("ckptfs_plan_make", (ctypes.c_char_p * ranks)(*descriptions),
                    (ctypes.c_uint64 * ranks)(*map(len, descriptions)), (ctypes.c_uint32 * ranks)(*hosts), ranks,
                    bool(whole), ctypes.byref(plan))
        try:
            self.owned = _array(native.Planned, "ckptfs_plan_owned", plan, rank)
            self.held = _array(native.Planned, "ckptfs_plan_held", plan, rank)
            self.holders = {number: list(_array(ctypes.c_uint32, "ckptfs_plan_holders", plan, number))
                            for number in sorted({part.holders for part in self.held})}
            self.loads: list[int] = native.library().ckptfs_plan_loads(plan)[:ranks]
        finally:
            native.library().ckptfs_plan_close(plan)


def _array(kind: type[_Kind], function: str, plan: ctypes.c_void_p, of: int) -> ctypes.Array[_Kind]:
    """A copy of the array that the function gives."""
    found, count = ctypes.POINTER(kind)(), ctypes.c_uint64()
    native.call(function, plan, of, ctypes.byref(found), ctypes.byref(count))
    copy = (kind * count.value)()
    ctypes.memmove(copy, found, ctypes.sizeof(copy))
    return copy


class PlanCache:
    """The plans of one rank that were used last. One thread at a time.

    A plan is found by all that it was made from: the digests of all ranks' descriptions, their hosts, the rank, and
    `whole`. One rank may have a plan that another lacks, after an error: ranks must agree on that before they gather
    the descriptions.
    """

    def __init__(self, capacity: int = 8) -> None:
        if capacity < 1:
            raise ValueError("a cache of plans has room for one at least")
        self._capacity = capacity
        self._plans: collections.OrderedDict[bytes, Plan] = collections.OrderedDict()

    def __len__(self) -> int:
        return len(self._plans)

    def find(self, digests: Sequence[bytes], hosts: Numbers, rank: int, whole: bool = True) -> Plan | None:
        """The plan for these descriptions, or None. `digests`: digest(description) of each rank."""
        key = _key(digests, hosts, rank, whole)
        if key in self._plans:
            self._plans.move_to_end(key)
        return self._plans.get(key)

    def make(self, descriptions: Sequence[bytes], digests: Sequence[bytes], hosts: Numbers, rank: int,
             whole: bool = True) -> Plan:
        """Makes the plan and keeps it. Fails if a description is not the one that its rank gave the digest of."""
        for number, (description, given) in enumerate(zip(descriptions, digests, strict=True)):
            if digest(description) != given:
                raise ValueError(f"rank {number} sent another description than the one it gave the digest of")
        plan = Plan(descriptions, hosts, rank, whole)
        key = _key(digests, hosts, rank, whole)
        self._plans[key] = plan
        self._plans.move_to_end(key)
        while len(self._plans) > self._capacity:
            self._plans.popitem(last=False)
        return plan


def _key(digests: Sequence[bytes], hosts: Numbers, rank: int, whole: bool) -> bytes:
    if any(len(one) != DIGEST for one in digests) or len(hosts) != len(digests):
        raise ValueError("each rank needs a digest of 32 bytes and a host")
    head = struct.pack("<IIB", len(digests), rank, bool(whole))
    return digest(head + struct.pack(f"<{len(hosts)}I", *hosts) + b"".join(digests))

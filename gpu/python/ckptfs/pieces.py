"""What a rank holds of the tensors that a group saves or loads: plain tensors, DTensors, and slices.

A state is a dict of tensors by name, or dicts and lists of such, whose keys are joined by dots. Each tensor is made of
*holdings*: a box of the whole tensor, and the memory that it lies in.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple, TypeAlias, TypeGuard

import torch
from torch.distributed.tensor import DTensor, Partial, Shard

from ckptfs import native, plans

__all__ = ["Slice", "State"]

Shape = tuple[int, ...]
Part = tuple[int, int, int]  # index of the holding, begin, end
# What may be saved and loaded by a group; DTensors and FSDP1's ShardedTensors are tensors, too.
State: TypeAlias = "Mapping[str, State] | Sequence[State] | torch.Tensor | Slice"


class Holding(NamedTuple):
    name: str
    dtype: torch.dtype
    shape: Shape
    offsets: Shape
    sizes: Shape
    tensor: torch.Tensor  # what of the rank's own memory the box is; not contiguous if it is a part of a larger one


class Slice:
    """A rank's part of a tensor: its elements [begin, end) in row-major order, as ZeRO and FSDP1 cut them.

        ckptfs.Slice("layers.0.weight", (4096, 1024), (begin, end), flat_tensor)

    `tensor` has these elements, contiguous; it is kept, not copied. The slice's name is the tensor's, whatever keys lead
    to it. ValueError: the numbers do not fit.
    """

    def __init__(self, name: str, global_shape: Iterable[int], range: tuple[int, int],  # noqa: A002 - public for long
                 tensor: torch.Tensor) -> None:
        self.name, self.global_shape = name, tuple(int(length) for length in global_shape)
        self.begin, self.end = (int(index) for index in range)
        self.tensor = tensor
        count = torch.Size(self.global_shape).numel()
        if not 0 <= self.begin <= self.end <= count:
            raise ValueError(f"{name}: elements {self.begin} to {self.end} of a tensor that has {count}")
        if tensor.numel() != self.end - self.begin or not tensor.is_contiguous():
            raise ValueError(f"{name}: the slice has {self.end - self.begin} elements, and what holds them must be "
                             f"contiguous and have as many, not {tensor.numel()}")

    def _holdings(self) -> Iterator[Holding]:
        flat, at = self.tensor.detach().view(-1), 0
        for offsets, sizes in _boxes((0,) * len(self.global_shape), self.global_shape, self.begin, self.end):
            count = torch.Size(sizes).numel()
            yield Holding(self.name, flat.dtype, self.global_shape, offsets, sizes, flat[at:at + count].view(sizes))
            at += count


def _boxes(offsets: Shape, sizes: Shape, begin: int, end: int) -> list[plans.Box]:
    """As plans.boxes_of_range, without a call for the commonest: all of it."""
    if (begin, end) == (0, torch.Size(sizes).numel()):
        return [(tuple(offsets), tuple(sizes))]
    return plans.boxes_of_range(offsets, sizes, begin, end)


def flatten(state: object, name: str = "") -> Iterator[tuple[str, object]]:
    """Yields (name, leaf) of dicts and lists in each other."""
    children: Iterable[tuple[object, object]]
    if isinstance(state, dict):
        children = state.items()
    elif isinstance(state, list | tuple):
        children = enumerate(state)
    else:
        yield name, state
        return
    for key, value in children:
        yield from flatten(value, f"{name}.{key}" if name else str(key))


def is_piece(value: object) -> TypeGuard[torch.Tensor | Slice]:
    """Is this a leaf that has tensor data?"""
    return isinstance(value, torch.Tensor | Slice) or hasattr(value, "local_shards")


def holdings_of(state: State) -> list[Holding]:
    """All holdings of a state, by their names. ValueError: two tensors have one name, and are no slices."""
    found: list[Holding] = []
    names = set()
    for name, value in flatten(state):
        if not is_piece(value):
            raise TypeError(f"{name}: a {type(value).__name__} is no tensor; the group saves and loads tensors only")
        if not isinstance(value, Slice):
            if name in names:
                raise ValueError(f"{name}: there are two tensors of that name")
            names.add(name)
        found.extend(of_one(name, value))
    return found


def of_one(name: str, value: torch.Tensor | Slice) -> list[Holding]:
    """The holdings of one tensor on this rank; none if the rank has nothing of it."""
    found = _of_one(name, value)
    for holding in found:
        tensor = holding.tensor
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided or tensor.is_quantized:
            raise TypeError(f"{name}: a {type(tensor).__name__} ({tensor.layout}) is no plain tensor; convert it first")
    return found


def _of_one(name: str, value: torch.Tensor | Slice) -> list[Holding]:
    if isinstance(value, Slice):
        return list(value._holdings())
    if isinstance(value, DTensor):
        return _of_dtensor(name, value)
    if hasattr(value, "local_shards"):  # FSDP1's ShardedTensor
        sharded: Any = value
        shape = tuple(sharded.metadata().size)
        return [Holding(name, shard.tensor.dtype, shape, tuple(shard.metadata.shard_offsets), tuple(shard.tensor.shape),
                        shard.tensor.detach()) for shard in sharded.local_shards()]
    shape = tuple(value.shape)
    return [Holding(name, value.dtype, shape, (0,) * len(shape), shape, value.detach())]


def _of_dtensor(name: str, value: DTensor) -> list[Holding]:
    coordinate = value.device_mesh.get_coordinate()
    if coordinate is None:  # the mesh is of other ranks
        return []
    if any(isinstance(placement, Partial) for placement in value.placements):
        raise ValueError(f"{name}: a partial sum, of which no rank has the value; redistribute it first")
    local, shape = value.to_local().detach(), tuple(value.shape)
    spans = [_indices(length, dimension, value, coordinate) for dimension, length in enumerate(shape)]
    found = []
    for box in itertools.product(*spans):  # one, unless a strided shard leaves gaps
        part = local
        for dimension, (_, count, at) in enumerate(box):
            part = part.narrow(dimension, at, count)
        found.append(Holding(name, local.dtype, shape, tuple(begin for begin, _, _ in box),
                             tuple(count for _, count, _ in box), part))
    return found


def _indices(length: int, dimension: int, value: DTensor, coordinate: Sequence[int]) -> list[tuple[int, int, int]]:
    """Which of the whole's indices in one dimension the rank has: [(first, count, place in the local tensor), ...]."""
    placements: Iterable[tuple[int, Any]] = enumerate(value.placements)  # of shards: torch has no common class for them
    cuts = [(mesh_dimension, placement) for mesh_dimension, placement in placements
            if not placement.is_replicate() and placement.dim % value.dim() == dimension]
    if not cuts:
        return [(0, length, 0)]
    if all(type(placement) is Shard for _, placement in cuts):
        begin = 0
        for mesh_dimension, _ in cuts:
            width = -(-length // value.device_mesh.size(mesh_dimension))
            first = min(length, coordinate[mesh_dimension] * width)
            begin, length = begin + first, min(width, length - first)
        return [(begin, length, 0)]
    # A strided shard deals out the indices in an order that only torch knows.
    indices = torch.arange(length).view((1,) * dimension + (-1,))
    for mesh_dimension, placement in cuts:
        parts, _ = placement._split_tensor(indices, value.device_mesh.size(mesh_dimension), with_padding=False,
                                           contiguous=True)
        indices = parts[coordinate[mesh_dimension]]
    indices = indices.reshape(-1)
    if not len(indices):
        return [(0, 0, 0)]
    starts = [0, *(torch.nonzero(indices.diff() != 1).view(-1) + 1).tolist()]
    ends = [*starts[1:], len(indices)]
    return [(int(indices[start]), end - start, start) for start, end in zip(starts, ends, strict=True)]


def to_write(holdings: Sequence[Holding], owned: Iterable[native.Planned]) -> tuple[
        dict[str, torch.Tensor], dict[str, tuple[str, Shape, Shape]]]:
    """What a rank writes: its tensors by their names in its file, and what of which whole tensor each of them is.

    `owned`: plans.Plan.owned.
    """
    tensors: dict[str, torch.Tensor] = {}
    places: dict[str, tuple[str, Shape, Shape]] = {}
    flats: dict[int, torch.Tensor] = {}
    wholes = {holding.name for holding in holdings}
    numbers: collections.Counter[str] = collections.Counter()
    for part in owned:
        index, begin, end = part.holding, part.begin, part.end
        holding = holdings[index]
        if index not in flats:  # a holding that is not contiguous is copied once
            flats[index] = holding.tensor.contiguous().view(-1)
        at = begin
        for offsets, sizes in _boxes(holding.offsets, holding.sizes, begin, end):
            count = torch.Size(sizes).numel()
            name = _name_in_file(holding.name, numbers, wholes, tensors)
            tensors[name] = flats[index][at:at + count].view(sizes)
            places[name] = (holding.name, holding.shape, offsets)
            at += count
    return tensors, places


def _name_in_file(name: str, numbers: collections.Counter[str], wholes: Set[str], taken: Mapping[str, object]) -> str:
    """The name itself, then NAME#1, NAME#2."""
    while True:
        number = numbers[name]
        numbers[name] += 1
        candidate = f"{name}#{number}" if number else name
        if candidate not in taken and (candidate == name or candidate not in wholes):
            return candidate


class Targets:
    """Where a load puts holdings: into their memory, or beside it, if their elements do not lie there in order, until
    finish()."""

    def __init__(self, holdings: Sequence[Holding]) -> None:
        self.holdings = holdings
        self._flats: dict[int, torch.Tensor] = {}

    def on_host(self) -> bool:
        return all(holding.tensor.device.type == "cpu" for holding in self.holdings)

    def flat(self, index: int) -> torch.Tensor:
        """The elements of a holding, in row-major order."""
        if index not in self._flats:
            tensor = self.holdings[index].tensor
            self._flats[index] = (tensor if _lies_in_order(tensor) else torch.empty(
                tensor.shape, dtype=tensor.dtype, device=tensor.device)).view(-1)
        return self._flats[index]

    def departure(self, parts: Iterable[Part]) -> torch.Tensor:
        """The elements of some parts, as flat bytes in host memory."""
        flats = [_as_bytes(self.flat(index)[begin:end]) for index, begin, end in parts]
        return (flats[0] if len(flats) == 1 else torch.cat(flats)).cpu()

    def arrival(self, parts: Iterable[Part]) -> _Arrival:
        return _Arrival([_as_bytes(self.flat(index)[begin:end]) for index, begin, end in parts])

    def finish(self) -> None:
        """Copies to where it belongs what was loaded beside it. It is there when this returns."""
        copied = set()
        for index, flat in self._flats.items():
            tensor = self.holdings[index].tensor
            if not _lies_in_order(tensor):
                tensor.copy_(flat.view(tensor.shape))
                copied.add(tensor.device)
        self._flats.clear()
        for device in copied:
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()


class _Arrival:
    """`memory` receives the bytes of some parts, end to end, in host memory; finish() takes them to these."""

    def __init__(self, flats: list[torch.Tensor]) -> None:
        self._flats = flats
        in_place = len(flats) == 1 and flats[0].device.type == "cpu"
        self.memory = flats[0] if in_place else torch.empty(sum(map(len, flats)), dtype=torch.uint8)
        self._in_place = in_place

    def finish(self) -> None:
        if not self._in_place:
            for flat, part in zip(self._flats, torch.split(self.memory, [len(flat) for flat in self._flats]), strict=True):
                flat.copy_(part)


def _lies_in_order(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _as_bytes(flat: torch.Tensor) -> torch.Tensor:
    return flat.view(torch.uint8)

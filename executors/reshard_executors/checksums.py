"""Checksums: whether all that sources held has arrived, told by one number per tensor and rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from operator import add

import numpy as np
import torch
from numpy.typing import NDArray

from reshard_executors.binding import LocalMemories, LocalMemory
from reshard_executors.messages import dense_strides
from reshard_executors.ready import Elements
from reshard_executors.values import storage_box
from reshard_executors.views import UNITS, StridedView, typed
from reshard_planner.box import Box
from reshard_planner.dtypes import DTYPE_BITS
from reshard_planner.errors import LocalShapeError
from reshard_planner.ir.plan import Plan
from reshard_planner.ir.views import Place, View, storage_shape, tile_views
from reshard_planner.spec import TensorSpec
from reshard_planner.spec.tiles import SideTiles
from reshard_planner.spec.values import Side

Ints = NDArray[np.int64]

BLOCK_ELEMENTS = 2**19
"""Elements that are hashed at a time: 4 MiB of words, and as much again for what is computed on the way."""

STEP = 0xA0761D6478BD642F
"""How far apart the hashes of neighbours begin: odd, so that all elements begin at places of their own."""

ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""Shifts and factors of the SplitMix64 generator's output function, without its last shift, which a sum does
not need. It is one-to-one."""

NAN = 0x7FF8000000000000
"""What every NaN of a converted tensor counts as: a NaN of float64, and no word of a smaller type."""


class Checksums:
    """Sums of hashes, which agree over all ranks where every element has arrived.

    The hash of an element is that of its index in the tensor and its bits. Destinations count every element
    in every tile that has it. Sources count it with the number of these tiles, at the lowest rank that holds
    it. Neither a changed element nor two that have changed places leave the sums as they were; one changed
    element of one destination tile never does.
    """

    def __init__(self, plan: Plan, rank: int, device: torch.device) -> None:
        """Prepare; what a tensor needs is found out when it is asked for.

        Args:
            plan: what is run.
            rank: rank of the plan; one that the plan does not have adds nothing.
            device: where tensors lie.
        """
        self._tensors = plan.spec.tensors
        self._rank, self._device = rank, device
        self._known: dict[tuple[object, ...], tuple[tuple[_Summand, ...], tuple[_Summand, ...]]] = {}

    def difference(
        self, sources: LocalMemories, destinations: LocalMemories, tensors: Sequence[int]
    ) -> torch.Tensor:
        """This rank's sums over sources, less those over destinations.

        Added up over all ranks, modulo 2**64, they are 0 for every tensor whose destinations all have what
        its sources hold. Where replicas differ, what counts is the one on the lowest rank.

        Args:
            sources: memory of the local source tensors, by position of the tensor.
            destinations: likewise of the destination tensors, after a run.
            tensors: positions of the tensors that were moved.

        Returns:
            One number per moved tensor, int64 of shape (tensors,), on the device; not waited for on CUDA.

        Raises:
            RuntimeError: if there is not enough memory for a block.
        """
        sums = torch.zeros(len(tensors), dtype=torch.int64, device=self._device)
        for at, number in enumerate(tensors):
            tensor = self._tensors[number]
            held, kept = self._summands(tensor)
            for summand in held:
                for block_sum in _block_sums(sources[number], summand, tensor, "src"):
                    sums[at] += summand.count * block_sum
            for summand in kept:
                for block_sum in _block_sums(destinations[number], summand, tensor, "dst"):
                    sums[at] -= block_sum
        return sums

    def _summands(self, tensor: TensorSpec) -> tuple[tuple[_Summand, ...], tuple[_Summand, ...]]:
        """What counts of the rank's sources, and of its destinations."""
        bits = DTYPE_BITS[tensor.dtype], DTYPE_BITS[tensor.dst_dtype]
        key = (tensor.shape, bits, tensor.src, tensor.dst)
        if key not in self._known:
            self._known[key] = tuple(_held(tensor, self._rank)), tuple(_kept(tensor, self._rank))
        return self._known[key]


@dataclass(frozen=True, slots=True)
class _Summand:
    """A box whose elements count alike, as it lies in one buffer.

    Attributes:
        view: where they lie.
        origin: index of the first one in the tensor, in storage elements.
        count: how often each counts.
    """

    view: View
    origin: tuple[int, ...]
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class _Boxes:
    """The distinct boxes of one side.

    Attributes:
        boxes: in order of the layouts and ranks that have them first.
        tiles: of each, how many tiles of all ranks are this box.
        lowest: of each, the lowest rank that has it.
        lo: first indices, int64 of shape (boxes, dims).
        hi: indices past the last, likewise.
    """

    boxes: tuple[Box, ...]
    tiles: tuple[int, ...]
    lowest: tuple[int, ...]
    lo: Ints
    hi: Ints

    @classmethod
    def of(cls, tensor: TensorSpec, side: Side) -> _Boxes:
        """Those of a tensor; ranks that store the same are looked at once."""
        found: dict[Box, tuple[int, int]] = {}
        for tiling in tensor.tilings(side):
            order = np.argsort(tiling.ranks)
            _, first, counts = np.unique(tiling.alike[order], return_index=True, return_counts=True)
            for rank, count in zip(tiling.ranks[order][first].tolist(), counts.tolist(), strict=True):
                for box, _ in tiling.joined(rank):
                    tiles, lowest = found.get(box, (0, rank))
                    found[box] = tiles + count, min(lowest, rank)
        tiles, lowest = (tuple(numbers[at] for numbers in found.values()) for at in (0, 1))
        shape = len(found), len(tensor.shape)
        lo = np.array([box.lo for box in found], dtype=np.int64).reshape(shape)
        hi = np.array([box.hi for box in found], dtype=np.int64).reshape(shape)
        return cls(tuple(found), tiles, lowest, lo, hi)

    def near(self, box: Box) -> list[int]:
        """Positions of those that share elements with a box."""
        return np.flatnonzero(((self.lo < box.hi) & (box.lo < self.hi)).all(axis=1)).tolist()


def _held(tensor: TensorSpec, rank: int) -> Iterator[_Summand]:
    """What counts of a rank's source tiles."""
    entries = SideTiles(tensor, "src").tiles(rank)
    if not entries:
        return
    bits = DTYPE_BITS[tensor.dtype]
    sources, destinations = _Boxes.of(tensor, "src"), _Boxes.of(tensor, "dst")
    own: list[Box] = []
    for entry in entries:
        needed = [(destinations.boxes[at], destinations.tiles[at]) for at in destinations.near(entry.box)]
        taken = [sources.boxes[at] for at in sources.near(entry.box) if sources.lowest[at] < rank]
        for box, count in _cut_where_counts_differ(entry.box, needed, [*taken, *own]):
            for view in tile_views(Place.SOURCE, entry, box, bits):
                yield _summand(view, box, bits, count)
        own.append(entry.box)


def _kept(tensor: TensorSpec, rank: int) -> Iterator[_Summand]:
    """What counts of a rank's destination tiles: all of them."""
    bits = DTYPE_BITS[tensor.dst_dtype]
    for entry in SideTiles(tensor, "dst").tiles(rank):
        for view in tile_views(Place.DESTINATION, entry, entry.box, bits):
            yield _summand(view, entry.box, bits, 1)


def _summand(view: View, box: Box, bits: int, count: int) -> _Summand:
    origin = storage_box(box, bits).lo
    return _Summand(view, tuple(map(add, origin, view.at)) if view.at else origin, count)


def _cut_where_counts_differ(
    box: Box, counting: Iterable[tuple[Box, int]], others: Iterable[Box]
) -> Iterator[tuple[Box, int]]:
    """Cut a box where others begin or end, and add up the counts of those that each of the boxes lies in.

    Args:
        box: what is cut.
        counting: boxes and their counts.
        others: boxes in which nothing counts.

    Yields:
        Disjoint boxes with counts above 0.
    """
    clipped = [(each.intersect(box), count) for each, count in counting]
    clipped += [(each.intersect(box), 0) for each in others]
    bounds = [box, *(each for each, _ in clipped)]
    cuts = [np.unique([end for each in bounds for end in (each.lo[d], each.hi[d])]) for d in range(box.ndim)]
    places = [{cut: at for at, cut in enumerate(along.tolist())} for along in cuts]
    counts = np.zeros([len(along) - 1 for along in cuts], dtype=np.int64)
    for each, count in clipped:
        ends = zip(places, each.lo, each.hi, strict=True)
        inside = tuple(slice(place[lo], place[hi]) for place, lo, hi in ends)
        counts[inside] = (counts[inside] + count) if count else 0
    for dim, along in enumerate(cuts):  # cuts that make no difference go
        across = tuple(other for other in range(box.ndim) if other != dim)
        kept = np.append(True, (np.diff(counts, axis=dim) != 0).any(axis=across))
        counts = np.compress(kept, counts, axis=dim)
        cuts[dim] = along[np.append(kept, True)]
    for index in np.argwhere(counts).tolist():
        lo = tuple(int(along[at]) for along, at in zip(cuts, index, strict=True))
        hi = tuple(int(along[at + 1]) for along, at in zip(cuts, index, strict=True))
        yield Box(lo, hi), int(counts[tuple(index)])


def _block_sums(
    memories: Sequence[LocalMemory], summand: _Summand, tensor: TensorSpec, side: Side
) -> Iterator[torch.Tensor]:
    """Sums of the hashes of a summand's elements, block by block, int64 of shape ()."""
    elements = Elements.of(tensor)
    shape = storage_shape(tensor.shape, DTYPE_BITS[tensor.side_dtype(side)])
    for origin, view in _blocks(memories[summand.view.buffer], summand.view, summand.origin):
        words = _raw(view) if elements.wire is None else _converted(view, elements, side)
        if words.ndim > len(shape):  # elements of two words
            yield _hash_sum(words, (*origin, 0), (*shape, 2))
        else:
            yield _hash_sum(words, origin, shape)


def _blocks(
    local: LocalMemory, view: View, origin: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], StridedView]]:
    """Cut a view into blocks: the index of the first element of each, and where it lies.

    Blocks that go over the ends of the rows of a tensor with gaps are cut further, as no strides say where
    their elements lie.
    """
    if prod(view.shape) <= BLOCK_ELEMENTS:
        try:
            block = local.view(view)
        except LocalShapeError:
            pass
        else:
            yield origin, block
            return
    dim = next(dim for dim, extent in enumerate(view.shape) if extent > 1)
    middle = view.shape[dim] // 2
    for first, last in ((0, middle), (middle, view.shape[dim])):
        yield from _blocks(
            local,
            replace(
                view,
                offset=view.offset + first * view.strides[dim],
                shape=(*view.shape[:dim], last - first, *view.shape[dim + 1 :]),
            ),
            (*origin[:dim], origin[dim] + first, *origin[dim + 1 :]),
        )


def _raw(view: StridedView) -> torch.Tensor:
    """Elements as words; those of 16 bytes as two, along one more dimension."""
    if view.itemsize <= 8:
        return _widened(typed(replace(view, dtype=UNITS[view.itemsize])))
    strides = (*(2 * stride for stride in view.strides), 1)
    return _widened(typed(StridedView(view.storage, view.start, (*view.shape, 2), strides, 8, torch.int64)))


def _converted(view: StridedView, elements: Elements, side: Side) -> torch.Tensor:
    """Elements as destinations have them, as words; all NaNs alike, whose bits conversions may change."""
    if side == "src":
        values = typed(replace(view, dtype=elements.src)).to(elements.wire).to(elements.dst)
    else:
        values = typed(replace(view, dtype=elements.dst))
    words = _widened(values.view(UNITS[values.element_size()]))
    return words.masked_fill_(values.to(torch.float32).isnan(), NAN)


def _widened(integers: torch.Tensor) -> torch.Tensor:
    """Words in memory of their own, dense."""
    return integers.to(torch.int64, copy=True, memory_format=torch.contiguous_format)


def _hash_sum(words: torch.Tensor, origin: Sequence[int], shape: Sequence[int]) -> torch.Tensor:
    """Sum of the hashes of words, modulo 2**64.

    Args:
        words: int64; they are overwritten.
        origin: index of the first one.
        shape: of the whole tensor, in words.
    """
    for dim, (first, step) in enumerate(zip(origin, dense_strides(shape), strict=True)):
        extent = words.shape[dim]
        along = torch.arange(first, first + extent, device=words.device) * _signed(step * STEP)
        words += along.reshape(extent, *[1] * (words.ndim - dim - 1))
    for shift, factor in ROUNDS:
        shifted = words >> shift
        shifted &= 2 ** (64 - shift) - 1  # the sign has moved along
        words ^= shifted
        words *= _signed(factor)
    return words.sum()


def _signed(number: int) -> int:
    """A number modulo 2**64, as the int64 of the same bits."""
    return (number + 2**63) % 2**64 - 2**63

"""Programs: what one rank does, slot by slot. Executors run these and nothing else."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshard_planner.box import Box
from reshard_planner.errors import CausalityError, CoverageError
from reshard_planner.ir.memory import scratch_ends
from reshard_planner.ir.ops import Ops
from reshard_planner.ir.plan import Plan
from reshard_planner.ir.tables import Schedule
from reshard_planner.spec import ReshardSpec, TensorSpec
from reshard_planner.spec.tiles import LocalTile, SideTiles
from reshard_planner.spec.values import Side
from reshard_planner.transfer import Medium

MEDIA = {int(medium): medium for medium in Medium}
"""Media by the numbers that stand for them."""

KIND_SIDES: tuple[Side | None, ...] = (None, "src", "dst")
"""Boxes depend on shapes alone, views also on the layouts of one side."""


class Place(IntEnum):
    """Where the bytes of a move lie on this rank."""

    SOURCE = 0
    """In a source buffer."""
    DESTINATION = 1
    """In a destination buffer."""
    SCRATCH = 2
    """In scratch, dense and row-major, under the number of the operation that brought them."""


@dataclass(frozen=True, slots=True)
class View:
    """A box within a buffer, in storage elements.

    A storage element is one element of the tensor, or one byte for dtypes below eight bits.

    Attributes:
        place: kind of buffer.
        buffer: number of the buffer among the rank's buffers of the tensor on that side, or number of the
            operation that brought the scratch.
        offset: position of the first storage element.
        shape: extent per dimension.
        strides: distance between neighbours per dimension.
    """

    place: Place
    buffer: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Move(NamedTuple):
    """One operation from the point of view of one rank; a tuple, as a rank may have a hundred thousand.

    Attributes:
        op: number of the operation.
        tensor: position of the tensor in the spec.
        box: what is moved, in global element coordinates.
        nbytes: its size.
        medium: what it goes over.
        read: where this rank reads it; None if the rank only receives.
        write: where this rank writes it; None if the rank only sends.
    """

    op: int
    tensor: int
    box: Box
    nbytes: int
    medium: Medium
    read: View | None
    write: View | None


@dataclass(frozen=True, slots=True)
class Slot:
    """One grouped exchange.

    All moves of one peer and direction make one message: their bytes one after another, each box
    row-major. A rank reads only what arrived in an earlier slot.

    Attributes:
        number: slot of the plan.
        sends: moves per receiving peer, peers ascending, moves in order of their numbers.
        receives: moves per sending peer, likewise.
        copies: moves within the rank.
        frees: operations whose scratch is not read after this slot.
    """

    number: int
    sends: tuple[tuple[int, tuple[Move, ...]], ...]
    receives: tuple[tuple[int, tuple[Move, ...]], ...]
    copies: tuple[Move, ...]
    frees: tuple[int, ...]

    @property
    def send_nbytes(self) -> int:
        return sum(move.nbytes for _, moves in self.sends for move in moves)

    @property
    def receive_nbytes(self) -> int:
        return sum(move.nbytes for _, moves in self.receives for move in moves)


@dataclass(frozen=True, slots=True)
class Program:
    """What one rank does.

    Attributes:
        rank: the rank.
        digest: digest of the plan that it belongs to.
        slots: slots in which the rank takes part, ascending.
    """

    rank: int
    digest: str
    slots: tuple[Slot, ...]


def build_program(plan: Plan, rank: int) -> Program:
    """Lower a plan to what one rank does.

    Raises:
        CausalityError: if a row reads a tile that its source does not have.
        CoverageError: if a row writes a tile that its destination does not have.
    """
    return lower(plan.spec, plan.schedule, plan.ops(rank=rank), rank, plan.digest)


def lower(spec: ReshardSpec, schedule: Schedule, ops: Ops, rank: int, digest: str) -> Program:
    """Turn the operations of one rank into moves between views of its buffers.

    Args:
        spec: what the plan was compiled from.
        schedule: its units.
        ops: all operations that the rank sends or receives.
        rank: the rank.
        digest: digest of the plan.

    Raises:
        CausalityError: if a row reads a tile that its source does not have.
        CoverageError: if a row writes a tile that its destination does not have.
    """
    with no_collections():
        return _lower(_Lowering(spec, schedule, ops, rank), digest)


@contextmanager
def no_collections() -> Iterator[None]:
    """Hold the garbage collector: all that is made here stays, and looking through it doubles the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _lower(lowering: _Lowering, digest: str) -> Program:
    ops, rank = lowering.ops, lowering.rank
    order = np.lexsort((ops.op, ops.slot))
    slots = ops.slot[order]
    bounds = np.flatnonzero(np.diff(slots, prepend=-1, append=-1))
    numbers, places = slots[bounds[:-1]].tolist(), order.tolist()
    found = []
    for number, start, stop in zip(numbers, bounds.tolist(), bounds[1:].tolist(), strict=False):
        found.append(lowering.slot(number, places[start:stop]))
    return Program(rank, digest, tuple(found))


class _Lowering:
    """Turns operations into moves between views of one rank's buffers.

    Boxes and views in tiles are made once for all operations that move the same chunk of the same row between
    tensors of equal layouts.
    """

    def __init__(self, spec: ReshardSpec, schedule: Schedule, ops: Ops, rank: int) -> None:
        self.rank, self.ops = rank, ops
        used = np.unique(ops.tensor)
        self.tensors = [spec.tensors[number] for number in used.tolist()]
        at = np.searchsorted(used, ops.tensor)
        alike = np.zeros(len(ops), dtype=np.int64)
        for column in (ops.row, schedule.n_chunks[ops.unit], schedule.chunk[ops.unit]):
            alike = np.unique(alike * (int(column.max(initial=0)) + 1) + column, return_inverse=True)[1]
        self.kind: dict[Side | None, list[int]] = {}
        for side in KIND_SIDES:
            kinds: dict[tuple[object, ...], int] = {}
            layouts = [tensor.layouts(side) if side else () for tensor in self.tensors]
            keys = [
                (*pair, tensor.shape, tensor.bits) for tensor, pair in zip(self.tensors, layouts, strict=True)
            ]
            number = np.array([kinds.setdefault(key, len(kinds)) for key in keys], dtype=np.int64)
            self.kind[side] = (alike * max(1, len(kinds)) + number[at]).tolist()
        self.at: list[int] = at.tolist()
        self.tiles: dict[tuple[object, ...], SideTiles] = {}
        self.boxes: dict[int, Box] = {}
        self.sources: dict[int, View] = {}
        self.forwards: dict[int, View] = {}
        self.writes: dict[int, View] = {}
        self.op, self.tensor, self.nbytes = ops.op.tolist(), ops.tensor.tolist(), ops.nbytes.tolist()
        self.src, self.dst = ops.src.tolist(), ops.dst.tolist()
        self.parent, self.scratch = ops.parent.tolist(), ops.scratch.tolist()
        self.medium = [MEDIA[medium] for medium in ops.medium.tolist()]
        self.above = self._parents().tolist()
        self.frees: dict[int, list[int]] = {}
        ends = scratch_ends(ops)
        for kept in np.flatnonzero((ops.scratch > 0) & (ops.dst == rank)).tolist():
            self.frees.setdefault(int(ends[kept]), []).append(self.op[kept])

    def _parents(self) -> NDArray[np.int64]:
        """Position of the operation that brings the bytes to this rank, -1 if there is none."""
        ops = self.ops
        if not len(ops):
            return np.zeros(0, dtype=np.int64)
        at = np.minimum(np.searchsorted(ops.op, ops.parent), len(ops) - 1)
        return np.where((ops.op[at] == ops.parent) & (ops.dst[at] == self.rank), at, -1)

    def slot(self, number: int, places: list[int]) -> Slot:
        """One slot from the positions of its operations, in order of their numbers."""
        sends: dict[int, list[Move]] = {}
        receives: dict[int, list[Move]] = {}
        copies = []
        for at in places:
            move = self.move(at)
            src, dst = self.src[at], self.dst[at]
            if src == dst:
                copies.append(move)
            elif src == self.rank:
                sends.setdefault(dst, []).append(move)
            else:
                receives.setdefault(src, []).append(move)
        return Slot(
            number,
            tuple((peer, tuple(moves)) for peer, moves in sorted(sends.items())),
            tuple((peer, tuple(moves)) for peer, moves in sorted(receives.items())),
            tuple(copies),
            tuple(self.frees.get(number, ())),
        )

    def move(self, at: int) -> Move:
        """One operation from this rank's point of view."""
        box = self.box(at)
        read = self.read(at, box) if self.src[at] == self.rank else None
        write = self.write(at, box) if self.dst[at] == self.rank else None
        return Move(self.op[at], self.tensor[at], box, self.nbytes[at], self.medium[at], read, write)

    def box(self, at: int) -> Box:
        """What an operation moves."""
        key = self.kind[None][at]
        known = self.boxes.get(key)
        if known is None:
            ndim = len(self.tensors[self.at[at]].shape)
            lo, hi = self.ops.lo[at, :ndim].tolist(), self.ops.hi[at, :ndim].tolist()
            known = self.boxes[key] = Box(tuple(lo), tuple(hi))
        return known

    def read(self, at: int, box: Box) -> View:
        """Where this rank reads an operation's bytes."""
        tensor = self.tensors[self.at[at]]
        if self.parent[at] < 0:
            key = self.kind["src"][at]
            known = self.sources.get(key)
            if known is None:
                entry = self.source(tensor, box)
                known = self.sources[key] = tile_view(Place.SOURCE, entry, box, tensor.bits)
            return known
        above = self.above[at]
        if above < 0:
            raise CausalityError(
                f"rank {self.rank} forwards {box} of tensor {tensor.name!r}, which it never receives"
            )
        if self.scratch[above]:
            return scratch_view(self.parent[at], self.box(above), box, tensor.bits)
        key = self.kind["dst"][at]
        known = self.forwards.get(key)
        if known is None:
            entry = self.destination(above)
            known = self.forwards[key] = tile_view(Place.DESTINATION, entry, box, tensor.bits)
        return known

    def write(self, at: int, box: Box) -> View:
        """Where this rank writes an operation's bytes."""
        if self.scratch[at]:
            return scratch_view(self.op[at], box, box, self.tensors[self.at[at]].bits)
        key = self.kind["dst"][at]
        known = self.writes.get(key)
        if known is None:
            bits = self.tensors[self.at[at]].bits
            known = self.writes[key] = tile_view(Place.DESTINATION, self.destination(at), box, bits)
        return known

    def side_tiles(self, tensor: TensorSpec, side: Side) -> SideTiles:
        key = (side, tensor.shape, tensor.layouts(side))
        if key not in self.tiles:
            self.tiles[key] = SideTiles(tensor, side)
        return self.tiles[key]

    def source(self, tensor: TensorSpec, box: Box) -> LocalTile:
        tiles = self.side_tiles(tensor, "src")
        found = tiles.containing(self.rank, box)
        if not found:
            raise CausalityError(f"rank {self.rank} does not hold {box} of tensor {tensor.name!r}")
        return tiles.tiles(self.rank)[found[0]]

    def destination(self, at: int) -> LocalTile:
        tensor = self.tensors[self.at[at]]
        tiles = self.side_tiles(tensor, "dst").tiles(self.rank)
        tile = int(self.ops.tile[at])
        if not 0 <= tile < len(tiles):
            raise CoverageError(f"rank {self.rank} has no destination tile {tile} of tensor {tensor.name!r}")
        return tiles[tile]


def tile_view(place: Place, entry: LocalTile, box: Box, bits: int) -> View:
    """A box within a tile's buffer."""
    tile = entry.tile
    steps = zip(box.lo, tile.box.lo, tile.strides, strict=True)
    offset = tile.offset + sum((at - first) * stride for at, first, stride in steps)
    return _storage_view(place, entry.buffer, offset, box.shape, tile.strides, bits)


def scratch_view(op: int, whole: Box, box: Box, bits: int) -> View:
    """A box within the dense scratch copy of a larger one."""
    extents = whole.shape
    strides = [1] * len(extents)
    for dim in reversed(range(len(extents) - 1)):
        strides[dim] = strides[dim + 1] * extents[dim + 1]
    offset = sum((at - first) * stride for at, first, stride in zip(box.lo, whole.lo, strides, strict=True))
    return _storage_view(Place.SCRATCH, op, offset, box.shape, tuple(strides), bits)


def _storage_view(
    place: Place, buffer: int, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], bits: int
) -> View:
    if bits >= 8:
        return View(place, buffer, offset, shape, strides)
    packed = (*(stride * bits // 8 for stride in strides[:-1]), 1)
    return View(place, buffer, offset * bits // 8, (*shape[:-1], shape[-1] * bits // 8), packed)


def storage_shape(shape: tuple[int, ...], bits: int) -> tuple[int, ...]:
    """Shape of a local buffer in storage elements: bytes along the last dimension below eight bits."""
    return (*shape[:-1], shape[-1] * bits // 8) if bits < 8 and shape else shape


def storage_nbytes(bits: int) -> int:
    """Bytes of one storage element."""
    return max(1, bits // 8)

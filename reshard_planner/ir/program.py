"""Programs: what one rank does, slot by slot. Executors run these and nothing else."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshard_planner.box import Box
from reshard_planner.errors import CausalityError, CoverageError
from reshard_planner.ir.memory import scratch_ends
from reshard_planner.ir.ops import Ops
from reshard_planner.ir.plan import Plan
from reshard_planner.ir.tables import Schedule
from reshard_planner.ir.views import Place, View, scratch_view, tile_views
from reshard_planner.spec import ReshardSpec, TensorSpec
from reshard_planner.spec.tiles import LocalTile, SideTiles
from reshard_planner.spec.values import Side
from reshard_planner.transfer import Medium

MEDIA = {int(medium): medium for medium in Medium}
"""Media by the numbers that stand for them."""

KIND_SIDES: tuple[Side | None, ...] = (None, "src", "dst")
"""Boxes depend on shapes alone, views also on the layouts of one side."""


class Move(NamedTuple):
    """One operation from the point of view of one rank; a tuple, as a rank may have a hundred thousand.

    Attributes:
        op: number of the operation.
        tensor: position of the tensor in the spec.
        box: what is moved, in global element coordinates.
        nbytes: its size.
        medium: what it goes over.
        read: where this rank reads it, in one place or in several that make it up; none if it only receives.
        write: where this rank writes it, likewise; none if it only sends.
    """

    op: int
    tensor: int
    box: Box
    nbytes: int
    medium: Medium
    read: tuple[View, ...]
    write: tuple[View, ...]


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
            keys = [
                (*tensor.layouts(side), converts(tensor, side), tensor.shape, tensor.bits)
                if side
                else (tensor.shape, tensor.bits)
                for tensor in self.tensors
            ]
            number = np.array([kinds.setdefault(key, len(kinds)) for key in keys], dtype=np.int64)
            self.kind[side] = (alike * max(1, len(kinds)) + number[at]).tolist()
        self.at: list[int] = at.tolist()
        self.tiles: dict[tuple[object, ...], SideTiles] = {}
        self.boxes: dict[int, Box] = {}
        self.sources: dict[int, tuple[View, ...]] = {}
        self.forwards: dict[int, tuple[View, ...]] = {}
        self.writes: dict[int, tuple[View, ...]] = {}
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
        read = self.read(at, box) if self.src[at] == self.rank else ()
        write = self.write(at, box) if self.dst[at] == self.rank else ()
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

    def read(self, at: int, box: Box) -> tuple[View, ...]:
        """Where this rank reads an operation's bytes."""
        tensor = self.tensors[self.at[at]]
        if self.parent[at] < 0:
            key = self.kind["src"][at]
            known = self.sources.get(key)
            if known is None:
                entry = self.source(tensor, box)
                known = self.sources[key] = tile_views(
                    Place.SOURCE, entry, box, tensor.bits, converting=converts(tensor, "src")
                )
            return known
        above = self.above[at]
        if above < 0:
            raise CausalityError(
                f"rank {self.rank} forwards {box} of tensor {tensor.name!r}, which it never receives"
            )
        if self.scratch[above]:
            return (scratch_view(self.parent[at], self.box(above), box, tensor.bits),)
        key = self.kind["dst"][at]
        known = self.forwards.get(key)
        if known is None:
            known = self.forwards[key] = self.tile(above, box)
        return known

    def write(self, at: int, box: Box) -> tuple[View, ...]:
        """Where this rank writes an operation's bytes."""
        if self.scratch[at]:
            return (scratch_view(self.op[at], box, box, self.tensors[self.at[at]].bits),)
        key = self.kind["dst"][at]
        known = self.writes.get(key)
        if known is None:
            known = self.writes[key] = self.tile(at, box)
        return known

    def tile(self, at: int, box: Box) -> tuple[View, ...]:
        """A box within the destination tile that an operation fills."""
        tensor = self.tensors[self.at[at]]
        entry, converting = self.destination(at), converts(tensor, "dst")
        return tile_views(Place.DESTINATION, entry, box, tensor.bits, converting=converting)

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


def converts(tensor: TensorSpec, side: Side) -> bool:
    """Whether elements have another type on one side than on their way."""
    return tensor.side_dtype(side) != tensor.wire_dtype

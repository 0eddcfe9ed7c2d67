"""Programs: what one rank does, slot by slot. Executors run these and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from reshard_planner.box import Box
from reshard_planner.errors import CausalityError, CoverageError
from reshard_planner.ir.memory import scratch_ends
from reshard_planner.ir.ops import Ops
from reshard_planner.ir.plan import Plan
from reshard_planner.spec import TensorSpec
from reshard_planner.spec.tiles import LocalTile, SideTiles
from reshard_planner.spec.values import Side
from reshard_planner.transfer import Medium


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


@dataclass(frozen=True, slots=True)
class Move:
    """One operation from the point of view of one rank.

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
    ops = plan.ops(rank=rank)
    lowering = _Lowering(plan, ops, rank)
    order = np.lexsort((ops.op, ops.slot))
    slots: list[Slot] = []
    bounds = np.flatnonzero(np.diff(ops.slot[order], prepend=-1, append=-1))
    for start, stop in zip(bounds.tolist(), bounds[1:].tolist(), strict=False):
        slots.append(lowering.slot(order[start:stop]))
    return Program(rank, plan.digest, tuple(slots))


class _Lowering:
    """Turns operations into moves between views of one rank's buffers."""

    def __init__(self, plan: Plan, ops: Ops, rank: int) -> None:
        self.plan, self.ops, self.rank = plan, ops, rank
        self.tiles: dict[tuple[int, Side], SideTiles] = {}
        self.position = {int(op): at for at, op in enumerate(ops.op.tolist())}
        self.frees: dict[int, list[int]] = {}
        for at, end in enumerate(scratch_ends(ops).tolist()):
            if ops.scratch[at] and ops.dst[at] == rank:
                self.frees.setdefault(end, []).append(int(ops.op[at]))

    def slot(self, at: NDArray[np.int64]) -> Slot:
        number = int(self.ops.slot[at[0]])
        sends: dict[int, list[Move]] = {}
        receives: dict[int, list[Move]] = {}
        copies = []
        for index in at.tolist():
            move = self.move(index)
            src, dst = int(self.ops.src[index]), int(self.ops.dst[index])
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
        ops = self.ops
        number = int(ops.tensor[at])
        tensor = self.plan.spec.tensors[number]
        ndim = len(tensor.shape)
        box = Box(tuple(ops.lo[at, :ndim].tolist()), tuple(ops.hi[at, :ndim].tolist()))
        read = self.read(at, number, tensor, box) if ops.src[at] == self.rank else None
        write = self.write(at, number, tensor, box) if ops.dst[at] == self.rank else None
        return Move(int(ops.op[at]), number, box, int(ops.nbytes[at]), Medium(ops.medium[at]), read, write)

    def side_tiles(self, number: int, side: Side) -> SideTiles:
        if (number, side) not in self.tiles:
            self.tiles[number, side] = SideTiles(self.plan.spec.tensors[number], side)
        return self.tiles[number, side]

    def read(self, at: int, number: int, tensor: TensorSpec, box: Box) -> View:
        parent = int(self.ops.parent[at])
        if parent < 0:
            found = self.side_tiles(number, "src").containing(self.rank, box)
            if not found:
                raise CausalityError(f"rank {self.rank} does not hold {box} of tensor {tensor.name!r}")
            entry = self.side_tiles(number, "src").tiles(self.rank)[found[0]]
            return tile_view(Place.SOURCE, entry, box, tensor.bits)
        above = self.position.get(parent)
        if above is None or self.ops.dst[above] != self.rank:
            raise CausalityError(
                f"rank {self.rank} forwards {box} of tensor {tensor.name!r}, which it never receives"
            )
        if self.ops.scratch[above]:
            ndim = len(tensor.shape)
            whole = Box(tuple(self.ops.lo[above, :ndim].tolist()), tuple(self.ops.hi[above, :ndim].tolist()))
            return scratch_view(parent, whole, box, tensor.bits)
        return tile_view(Place.DESTINATION, self.destination(above, number, tensor), box, tensor.bits)

    def write(self, at: int, number: int, tensor: TensorSpec, box: Box) -> View:
        if self.ops.scratch[at]:
            return scratch_view(int(self.ops.op[at]), box, box, tensor.bits)
        return tile_view(Place.DESTINATION, self.destination(at, number, tensor), box, tensor.bits)

    def destination(self, at: int, number: int, tensor: TensorSpec) -> LocalTile:
        tiles = self.side_tiles(number, "dst").tiles(self.rank)
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

"""Straight bytes: which operations move one run of bytes of a buffer, so that nobody has to pack them.

The same question as :func:`reshard_planner.ir.messages.goes_straight` asks of one view, for all operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from reshard_planner.errors import CausalityError, CoverageError
from reshard_planner.ir.chunks import ElementColumns
from reshard_planner.ir.ops import Ops
from reshard_planner.ir.program import converts
from reshard_planner.layout.tiling import Tiling
from reshard_planner.spec import ReshardSpec, TensorSpec
from reshard_planner.spec.tiles import LocalTile, SideTiles
from reshard_planner.spec.values import Side

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

MAX_PAIRS = 2**22
"""Most boxes times tiles that are compared at once."""


class StraightBytes:
    """Where the bytes of operations lie in one run.

    Args:
        spec: what the plan was compiled from.
        ops: all operations of a plan, in order of their numbers.
    """

    def __init__(self, spec: ReshardSpec, ops: Ops) -> None:
        self.ops, self.spec = ops, spec
        self.bits = ElementColumns.of(spec.tensors).bits
        self.homes = {side: _Homes(spec, side) for side in ("src", "dst")}
        at = np.minimum(np.searchsorted(ops.op, ops.parent), max(0, len(ops) - 1))
        self.above: Ints = np.where(ops.op[at] == ops.parent, at, -1) if len(ops) else at

    def read(self, at: Ints) -> Bools:
        """Whether some operations read one run of bytes at their senders.

        Args:
            at: positions of operations.

        Raises:
            CausalityError: if one reads what its sender does not have.
            CoverageError: if one reads a destination tile that its sender does not have.
        """
        ops = self.ops
        found = np.zeros(len(at), dtype=bool)
        own = ops.parent[at] < 0
        found[own] = self._in_tiles("src", at[own], ops.src[at[own]], None)
        above = self.above[at]
        lost = np.flatnonzero(~own & ((above < 0) | (ops.dst[above] != ops.src[at])))
        if len(lost):
            rank, tensor = int(ops.src[at[lost[0]]]), self.spec.tensors[int(ops.tensor[at[lost[0]]])]
            raise CausalityError(f"rank {rank} forwards what it never receives of tensor {tensor.name!r}")
        kept = ~own & (ops.scratch[above] > 0)
        found[kept] = self._in_scratch(at[kept], above[kept])
        passed = np.flatnonzero(~own & ~kept)
        found[passed] = self._in_tiles("dst", at[passed], ops.src[at[passed]], ops.tile[above[passed]])
        return found

    def write(self, at: Ints) -> Bools:
        """Whether some operations write one run of bytes at their receivers; as :meth:`read`."""
        ops = self.ops
        found: Bools = ops.scratch[at] > 0
        tiles = np.flatnonzero(~found)
        found[tiles] = self._in_tiles("dst", at[tiles], ops.dst[at[tiles]], ops.tile[at[tiles]])
        return found

    def _in_scratch(self, at: Ints, above: Ints) -> Bools:
        """Of operations that read what others have put into scratch, dense and row-major."""
        ops = self.ops
        extents = (ops.hi - ops.lo)[above]
        strides = np.ones_like(extents)
        for dim in reversed(range(extents.shape[1] - 1)):
            strides[:, dim] = strides[:, dim + 1] * extents[:, dim + 1]
        return are_dense((ops.hi - ops.lo)[at], strides)

    def _in_tiles(self, side: Side, at: Ints, rank: Ints, tile: Ints | None) -> Bools:
        """Of operations whose bytes lie in tiles: of these numbers, or in the first that contains them."""
        ops, homes = self.ops, self.homes[side]
        home = homes.of(ops.tensor[at], rank)
        # boxes and homes that are alike are looked at once
        columns = [home, np.full(len(at), -1) if tile is None else tile, *ops.lo[at].T, *ops.hi[at].T]
        first, inverse = distinct_rows(columns)
        straight = np.zeros(len(first), dtype=bool)
        order = np.argsort(home[first], kind="stable")
        ends = np.flatnonzero(np.diff(home[first][order], prepend=-1, append=-1))
        for start, stop in zip(ends.tolist(), ends[1:].tolist(), strict=False):
            mine = order[start:stop]
            chosen = first[mine]
            where = homes.made[int(home[chosen[0]])]
            lo, hi = ops.lo[at[chosen], : where.ndim], ops.hi[at[chosen], : where.ndim]
            number = where.containing(lo, hi) if tile is None else tile[chosen]
            wrong = np.flatnonzero((number < 0) | (number >= where.count))
            if len(wrong):
                bad = at[chosen[wrong[0]]]
                self._refuse(int(bad), int(rank[chosen[wrong[0]]]), missing=tile is None)
            straight[mine] = where.straight(lo, hi, number)
        return straight[inverse]

    def _refuse(self, at: int, rank: int, *, missing: bool) -> None:
        name = self.spec.tensors[int(self.ops.tensor[at])].name
        if missing:
            raise CausalityError(f"rank {rank} does not hold what it sends of tensor {name!r}")
        raise CoverageError(
            f"rank {rank} has no destination tile {int(self.ops.tile[at])} of tensor {name!r}"
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Home:
    """The tiles of one rank, or of all that store the same, and the spans of each as columns."""

    ndim: int
    count: int
    tile_lo: Ints
    tile_hi: Ints
    lo: Ints
    hi: Ints
    strides: Ints
    tile: Ints
    bits: int
    converting: bool

    @classmethod
    def of(cls, tiles: tuple[LocalTile, ...], tensor: TensorSpec, side: Side) -> _Home:
        ndim = len(tensor.shape)
        spans = [(number, span.tile) for number, tile in enumerate(tiles) for span in tile.spans]
        boxes = [tile.box for tile in tiles]
        return cls(
            ndim,
            len(tiles),
            _rows([box.lo for box in boxes], ndim),
            _rows([box.hi for box in boxes], ndim),
            _rows([tile.box.lo for _, tile in spans], ndim),
            _rows([tile.box.hi for _, tile in spans], ndim),
            _rows([tile.strides for _, tile in spans], ndim),
            np.array([number for number, _ in spans], dtype=np.int64),
            tensor.bits,
            converts(tensor, side),
        )

    def containing(self, lo: Ints, hi: Ints) -> Ints:
        """The first tile that contains each box, -1 where none does."""
        found = np.full(len(lo), -1, dtype=np.int64)
        step = max(1, MAX_PAIRS // max(1, self.count))
        for start in range(0, len(lo), step):
            part = slice(start, start + step)
            begins: Bools = self.tile_lo <= lo[part, np.newaxis]
            ends: Bools = hi[part, np.newaxis] <= self.tile_hi
            inside: Bools = np.all(begins & ends, axis=2)
            if self.count:
                found[part] = np.where(inside.any(axis=1), inside.argmax(axis=1), -1)
        return found

    def straight(self, lo: Ints, hi: Ints, number: Ints) -> Bools:
        """Whether boxes within tiles of these numbers are one run of bytes."""
        found = np.zeros(len(lo), dtype=bool)
        if self.converting:
            return found
        step = max(1, MAX_PAIRS // max(1, len(self.tile)))
        for start in range(0, len(lo), step):
            part = slice(start, start + step)
            low, high = lo[part, np.newaxis], hi[part, np.newaxis]
            shared = (np.maximum(low, self.lo) < np.minimum(high, self.hi)).all(axis=2)
            shared &= self.tile == number[part, np.newaxis]
            strides = self.strides[shared.argmax(axis=1)]
            extents = hi[part] - lo[part]
            if self.bits < 8 and self.ndim:  # in bytes, of which the last dimension has whole ones
                extents[:, -1] = extents[:, -1] * self.bits // 8
                strides = np.concatenate(
                    (strides[:, :-1] * self.bits // 8, np.ones_like(strides[:, -1:])), axis=1
                )
            found[part] = (shared.sum(axis=1) == 1) & are_dense(extents, strides)
        return found


@dataclass(slots=True, eq=False)
class _Homes:
    """Homes by tensor and rank; one for all tensors of equal layouts and all ranks that store the same."""

    spec: ReshardSpec
    side: Side
    made: list[_Home] = field(default_factory=list)
    known: dict[object, int] = field(default_factory=dict)
    kinds: dict[object, int] = field(default_factory=dict)
    first: list[int] = field(default_factory=list)
    tiles: dict[int, SideTiles] = field(default_factory=dict)
    entries: dict[int, tuple[Mapping[int, int], ...]] = field(default_factory=dict)
    seen: dict[object, int] = field(default_factory=dict)

    def of(self, tensor: Ints, rank: Ints) -> Ints:
        """Number of the home of each pair of a tensor and a rank, int64."""
        spec, side, first, tiles, entries = self.spec, self.side, self.first, self.tiles, self.entries
        kind_of = np.zeros(len(spec.tensors), dtype=np.int64)
        for number in np.unique(tensor).tolist():
            each = spec.tensors[number]
            key = (*each.layouts(side), each.shape, each.bits, converts(each, side))
            kind_of[number] = self.kinds.setdefault(key, len(self.kinds))
            if kind_of[number] == len(first):
                first.append(number)
        size = int(rank.max(initial=0)) + 1
        pairs, inverse = np.unique(kind_of[tensor] * size + rank, return_inverse=True)
        numbers = np.zeros(len(pairs), dtype=np.int64)
        for at, (kind, member) in enumerate(
            zip(*(each.tolist() for each in divmod(pairs, size)), strict=True)
        ):
            owner = spec.tensors[first[kind]]
            if kind not in tiles:
                tiles[kind] = SideTiles(owner, side)
                entries[kind] = tuple(_entries(tiling) for tiling in owner.tilings(side))
            key = kind, tuple(entry.get(member, -1) for entry in entries[kind])
            if key not in self.seen:
                self.seen[key] = self._home(tiles[kind].tiles(member), owner)
            numbers[at] = self.seen[key]
        found: Ints = numbers[inverse]
        return found

    def _home(self, tiles: tuple[LocalTile, ...], tensor: TensorSpec) -> int:
        key = tiles, tensor.bits, converts(tensor, self.side)
        if key not in self.known:
            self.known[key] = len(self.made)
            self.made.append(_Home.of(tiles, tensor, self.side))
        return self.known[key]


def _entries(tiling: Tiling) -> Mapping[int, int]:
    return dict(zip(tiling.ranks.tolist(), tiling.alike.tolist(), strict=True))


def _rows(rows: list[tuple[int, ...]], ndim: int) -> Ints:
    return np.array(rows, dtype=np.int64).reshape(len(rows), ndim)


def are_dense(extents: Ints, strides: Ints) -> Bools:
    """Whether row-major views are one run of elements without gaps.

    Args:
        extents: of each view, int64 of shape (views, dims).
        strides: of each view, likewise.

    >>> are_dense(np.array([[1, 8], [2, 8]]), np.array([[100, 1], [100, 1]])).tolist()
    [True, False]
    """
    found = np.ones(len(extents), dtype=bool)
    step = np.ones(len(extents), dtype=np.int64)
    for dim in reversed(range(extents.shape[1])):
        found &= (extents[:, dim] <= 1) | (strides[:, dim] == step)
        step *= extents[:, dim]
    return found


def distinct_rows(columns: list[Ints]) -> tuple[Ints, Ints]:
    """First position of every distinct row of some columns, and which of them each row equals.

    Args:
        columns: numbers from -1, all of one length.
    """
    key = np.zeros(len(columns[0]), dtype=np.int64)
    first = key
    for column in columns:
        width = int(column.max(initial=0)) + 2
        if int(key.max(initial=0)) >= 2**62 // width:
            key = np.unique(key, return_inverse=True)[1]
        key = key * width + column + 1
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    return first, inverse

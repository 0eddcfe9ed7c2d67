"""The four tables of a plan, as columns.

Documented field by field in docs/ir.md. All columns of a table have the same length, except where a
docstring says otherwise; all are read-only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from reshard_planner.errors import TableError

Column = NDArray[Any]

MAX_RENAMINGS = 2**27
"""Most names of ranks that the substitutions of all groups may give, with those that stand for themselves."""


class Table:
    """Common behaviour of the tables: columns by name, with fixed element types."""

    DTYPES: ClassVar[Mapping[str, str]]
    """Element type of each column, as numpy spells it, in order of the fields."""

    def __post_init__(self) -> None:
        for name, dtype in self.DTYPES.items():
            given = np.asarray(getattr(self, name))
            column = np.ascontiguousarray(given, dtype=dtype)
            if given.dtype != column.dtype and not np.array_equal(given, column):
                raise TableError(f"column {name} has values that do not fit its element type {dtype}")
            column.setflags(write=False)
            object.__setattr__(self, name, column)

    def columns(self) -> dict[str, Column]:
        """Columns by name, in order of the fields."""
        return {name: getattr(self, name) for name in self.DTYPES}

    @classmethod
    def of(cls, columns: Mapping[str, Any]) -> Self:
        """Build the table from its columns."""
        return cls(**{name: columns[name] for name in cls.DTYPES})

    def __len__(self) -> int:
        return len(getattr(self, next(iter(self.DTYPES))))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Table) or type(self) is not type(other):
            return NotImplemented
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in self.DTYPES)

    __hash__ = None  # type: ignore[assignment] # columns are arrays, which cannot be hashed


@dataclass(frozen=True, slots=True, eq=False)
class Groups(Table):
    """Which tensors share a route table.

    Attributes:
        group_of: group of each tensor of the spec, in its order, shape (tensors,).
        routes_of: group whose pieces and routes each group uses, its own number if it has some, shape
            (groups,).
        subst_group: group that a rank substitution belongs to, shape (substitutions,).
        subst_from: rank in the routes that are used.
        subst_to: rank that stands in its place. Ranks of a group that are not listed stand for themselves.
    """

    DTYPES: ClassVar[Mapping[str, str]] = {
        "group_of": "<i4",
        "routes_of": "<i4",
        "subst_group": "<i4",
        "subst_from": "<i4",
        "subst_to": "<i4",
    }

    group_of: Column
    routes_of: Column
    subst_group: Column
    subst_from: Column
    subst_to: Column

    @property
    def count(self) -> int:
        """Number of groups."""
        return len(self.routes_of)

    def renamings(self, size: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """All rank substitutions at once.

        Args:
            size: number of ranks to map at least; ranks that substitutions name always are.

        Returns:
            The row of the second array that holds for each group, int64 of shape (groups,), and the rank
            that stands for each rank, int64 of shape (substituted groups + 1, ranks). In the first row all
            ranks stand for themselves.

        Raises:
            TableError: if substitutions name impossible groups or ranks, or too many.
        """
        if len(self.subst_group):
            columns = (self.subst_group, self.subst_from, self.subst_to)
            if min(int(column.min()) for column in columns) < 0 or self.subst_group.max() >= self.count:
                raise TableError("groups: a substitution names a group or rank that does not exist")
            size = max(size, int(max(self.subst_from.max(), self.subst_to.max())) + 1)
        groups, which = np.unique(self.subst_group, return_inverse=True)
        if (len(groups) + 1) * size > MAX_RENAMINGS:
            raise TableError(
                f"groups: {len(groups)} groups rename ranks up to {size - 1}; expected at most"
                f" {MAX_RENAMINGS} names in all"
            )
        renamed_by = np.zeros(self.count, dtype=np.int64)
        renamed_by[groups] = np.arange(1, len(groups) + 1)
        ranks = np.tile(np.arange(size, dtype=np.int64), (len(groups) + 1, 1))
        ranks[which + 1, self.subst_from] = self.subst_to
        return renamed_by, ranks


@dataclass(frozen=True, slots=True, eq=False)
class Pieces(Table):
    """The boxes that trees of transfers carry.

    Attributes:
        group: group that the piece belongs to, ascending.
        part: part of the group, ascending within it.
        cut_dim: dimension along which chunks are cut; -1 for a piece of a 0-d tensor.
        lo: first index per dimension, in elements, shape (pieces, most dims of any tensor), padded with 0.
        hi: index past the last per dimension, likewise, padded with 1.
    """

    DTYPES: ClassVar[Mapping[str, str]] = {
        "group": "<i4",
        "part": "<i4",
        "cut_dim": "<i4",
        "lo": "<i8",
        "hi": "<i8",
    }

    group: Column
    part: Column
    cut_dim: Column
    lo: Column
    hi: Column


@dataclass(frozen=True, slots=True, eq=False)
class Routes(Table):
    """The transfers; the number of a row is its position. Sorted by (src, piece, offset, dst, tile).

    Attributes:
        piece: piece that is carried.
        parent: row that brings the piece to ``src``; -1 if it is the source's own tile.
        src: sending rank, before substitution.
        dst: receiving rank, before substitution.
        medium: a :class:`reshard_planner.transfer.Medium`.
        role: a :class:`reshard_planner.transfer.Role`.
        scratch: 1 if the destination keeps the piece aside, 0 if it goes into a destination tile.
        tile: number of the destination tile among the tiles of ``dst``; -1 with ``scratch``.
        offset: slots after the unit's round in which the transfer runs.
    """

    DTYPES: ClassVar[Mapping[str, str]] = {
        "piece": "<i4",
        "parent": "<i4",
        "src": "<i4",
        "dst": "<i4",
        "medium": "|u1",
        "role": "|u1",
        "scratch": "|u1",
        "tile": "<i4",
        "offset": "<i4",
    }

    piece: Column
    parent: Column
    src: Column
    dst: Column
    medium: Column
    role: Column
    scratch: Column
    tile: Column
    offset: Column


@dataclass(frozen=True, slots=True, eq=False)
class Schedule(Table):
    """The units; sorted by (round, group, tensor, part, chunk).

    Attributes:
        group: group of the tensor.
        tensor: position of the tensor in the spec.
        part: part of the group.
        chunk: which chunk of the part's pieces, 0 to ``n_chunks - 1``.
        n_chunks: number of chunks that the pieces are cut in for this tensor and part.
        round: slot in which rows of offset 0 run.
    """

    DTYPES: ClassVar[Mapping[str, str]] = {
        "group": "<i4",
        "tensor": "<i4",
        "part": "<i4",
        "chunk": "<i4",
        "n_chunks": "<i4",
        "round": "<i4",
    }

    group: Column
    tensor: Column
    part: Column
    chunk: Column
    n_chunks: Column
    round: Column


@dataclass(frozen=True, slots=True)
class Tables:
    """The four tables together."""

    groups: Groups
    pieces: Pieces
    routes: Routes
    schedule: Schedule

    def named(self) -> dict[str, Table]:
        """The tables by name, in order."""
        return {
            "groups": self.groups,
            "pieces": self.pieces,
            "routes": self.routes,
            "schedule": self.schedule,
        }


TABLE_TYPES: dict[str, type[Table]] = {
    "groups": Groups,
    "pieces": Pieces,
    "routes": Routes,
    "schedule": Schedule,
}
"""Table classes by name, in order."""

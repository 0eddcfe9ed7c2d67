"""What tensors the edges of the picture of transfers carry, and between which places bytes go, as sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reshard_planner.render.places import RankPlace, place_numbers
from reshard_planner.transfer import Medium

Ints = NDArray[np.int64]

KINDS = 8
"""Kinds of flows per medium: the roles, of which broken plans may have unknown ones."""

MAX_TENSORS = 10_000
"""Tensors whose bytes are kept apart by edge, the largest first."""


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge of the picture of transfers.

    Attributes:
        src: ranks that send, ascending.
        dst: ranks that receive, ascending.
        medium: a :class:`~reshard_planner.transfer.Medium`.
        role: a :class:`~reshard_planner.transfer.Role`.
    """

    src: tuple[int, ...]
    dst: tuple[int, ...]
    medium: int
    role: int


@dataclass(frozen=True, slots=True, eq=False)
class Flows:
    """What moves between places.

    Attributes:
        places: ranks, or domains where there are many ranks, or several of these where there are many more.
        src: position of the place that sends, int64 of shape (flows,).
        dst: likewise, that receives.
        medium: a :class:`~reshard_planner.transfer.Medium`, likewise.
        role: a :class:`~reshard_planner.transfer.Role`, likewise.
        nbytes: bytes, likewise.
    """

    places: tuple[RankPlace, ...]
    src: Ints
    dst: Ints
    medium: Ints
    role: Ints
    nbytes: Ints


class FlowSums:
    """Bytes between places by medium and role.

    Args:
        places: the places; of these all operations are.
        ranks: the ranks, ascending; operations name them by position.
    """

    def __init__(self, places: tuple[RankPlace, ...], ranks: Ints) -> None:
        self.places = places
        self.place_of = place_numbers(places, int(ranks.max(initial=-1)) + 1)[ranks]
        self.sums = np.zeros((len(places), len(places), len(Medium), KINDS), dtype=np.int64)

    def add(self, src: Ints, dst: Ints, medium: Ints, role: Ints, nbytes: Ints) -> None:
        """Add operations: numbers of the ranks that send and receive, medium, role and bytes of each."""
        key = (self.place_of[src] * len(self.places) + self.place_of[dst]) * len(Medium) + medium
        np.add.at(self.sums.reshape(-1), key * KINDS + role, nbytes)

    def result(self) -> Flows:
        """The sums, those of most bytes first."""
        src, dst, medium, role = np.nonzero(self.sums)
        nbytes = self.sums[src, dst, medium, role]
        order = np.lexsort((role, medium, dst, src, -nbytes))
        return Flows(self.places, *(column[order] for column in (src, dst, medium, role, nbytes)))


class EdgeTensors:
    """Bytes of each tensor over each edge of the picture of transfers.

    Args:
        edges: the edges; no two share a source, a destination, medium and role.
        sizes: bytes of each tensor of the spec.
        ranks: the ranks, ascending; operations name them by position.
    """

    def __init__(self, edges: Sequence[Edge], sizes: Ints, ranks: Ints) -> None:
        ends = list(dict.fromkeys(end for edge in edges for end in (edge.src, edge.dst)))
        # the last number is that of ranks which no edge joins
        place_of = np.full(int(ranks.max(initial=-1)) + 1, len(ends), dtype=np.int64)
        for number, end in enumerate(ends):
            place_of[list(end)] = number
        self.place_of, self.size = place_of[ranks], len(ends) + 1
        shape = (self.size, self.size, len(Medium), KINDS)
        self.edge = np.full(shape, -1, dtype=np.int64)
        for number, edge in enumerate(edges):
            at = ends.index(edge.src), ends.index(edge.dst), edge.medium, min(edge.role, KINDS - 1)
            self.edge[at] = number
        self.tensors: Ints = np.sort(np.argsort(-sizes, kind="stable")[:MAX_TENSORS])
        self.column = np.full(len(sizes), -1, dtype=np.int64)
        self.column[self.tensors] = np.arange(len(self.tensors))
        self.sums = np.zeros((len(edges), len(self.tensors)), dtype=np.int64)

    def add(self, src: Ints, dst: Ints, medium: Ints, role: Ints, tensor: Ints, nbytes: Ints) -> None:
        """Add operations: numbers of the ranks that send and receive, medium, role, tensor and bytes."""
        if not len(self.sums):
            return
        edge = self.edge[self.place_of[src], self.place_of[dst], medium, role]
        column = self.column[tensor]
        at = np.flatnonzero((edge >= 0) & (column >= 0))
        np.add.at(self.sums.reshape(-1), edge[at] * len(self.tensors) + column[at], nbytes[at])

    def largest(self, edge: int, count: int) -> list[tuple[int, int]]:
        """Positions in the spec of the tensors with most bytes over an edge, and these, the largest first."""
        order = np.argsort(-self.sums[edge], kind="stable")[:count]
        order = order[self.sums[edge, order] > 0]
        return list(zip(self.tensors[order].tolist(), self.sums[edge, order].tolist(), strict=True))

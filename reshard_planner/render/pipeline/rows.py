"""Rows of a pipeline picture: ranks, or where those are too many their domains, or domains that are alike."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reshard_planner.ir.plan import Plan
from reshard_planner.render.storing import storing_ranks
from reshard_planner.render.text import format_ranks
from reshard_planner.topology import Ports

Ints = NDArray[np.int64]

MAX_RANK_ROWS = 32
"""Ranks that have a row each; where there are more, their domains have."""

MAX_ROWS = 32
"""Rows of a picture; where there are more domains, neighbours that are alike share one."""


@dataclass(frozen=True, slots=True)
class Row:
    """Ranks that are shown together.

    Attributes:
        ranks: the ranks, ascending.
        domains: their domains, ascending.
        holds: whether one of them has bytes before.
        needs: whether one of them must have bytes after.
    """

    ranks: tuple[int, ...]
    domains: tuple[int, ...]
    holds: bool
    needs: bool

    @property
    def name(self) -> str:
        """Its ranks in few characters."""
        return f"rank{'s' * (len(self.ranks) > 1)} {format_ranks(self.ranks, 18)}"

    @property
    def place(self) -> str:
        """Where they are, and on which side."""
        where = f"domain{'s' * (len(self.domains) > 1)} {format_ranks(self.domains, 12)}"
        side = {(True, False): "before", (False, True): "after", (True, True): "before + after"}
        return where + (f", {side[self.holds, self.needs]}" if self.holds or self.needs else "")


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """All rows of a picture.

    Attributes:
        rows: the rows, by their first domain and rank.
        row_of: row of each rank, -1 for none, int64 of shape (largest rank + 1,).
    """

    rows: tuple[Row, ...]
    row_of: Ints


def find_rows(plan: Plan) -> Rows:
    """The rows for all ranks that a plan moves bytes from or to."""
    size = max(plan.ranks, default=-1) + 1
    ports = Ports.of(plan.spec.topology, plan.ranks)
    holds, needs = (storing_ranks(plan.spec.tensors, side, size) for side in ("src", "dst"))
    active = [rank for rank in _named(plan) if rank < size and ports.domain[rank] >= 0]
    domain_of = dict(zip(active, ports.domain[active].tolist() if active else (), strict=True))

    def row(ranks: Iterable[int]) -> Row:
        inside = sorted(ranks)
        domains = sorted({domain_of[rank] for rank in inside})
        return Row(tuple(inside), tuple(domains), bool(holds[inside].any()), bool(needs[inside].any()))

    if len(active) <= MAX_RANK_ROWS:
        rows = [row((rank,)) for rank in active]
    else:
        by_domain: dict[int, list[int]] = {}
        for rank in active:
            by_domain.setdefault(domain_of[rank], []).append(rank)
        whole = [row(ranks) for ranks in by_domain.values()]
        rows, together = whole, 1
        while len(rows) > MAX_ROWS and together < len(whole):
            together *= 2
            rows = [row(ranks) for ranks in _neighbours(whole, together)]
    rows.sort(key=lambda each: (each.domains, each.ranks))
    row_of = np.full(size, -1, dtype=np.int64)
    for number, each in enumerate(rows):
        row_of[list(each.ranks)] = number
    return Rows(tuple(rows), row_of)


def _named(plan: Plan) -> list[int]:
    """Ranks that routes name, under any substitution, ascending."""
    routes = plan.routes
    if not len(routes):
        return []
    _, names = plan.groups.renamings(int(max(routes.src.max(), routes.dst.max())) + 1)
    found: Ints = np.unique(names[:, np.unique(np.concatenate((routes.src, routes.dst)))])
    return [int(rank) for rank in found]


def _neighbours(rows: list[Row], together: int) -> list[list[int]]:
    """Ranks of rows that are joined, up to ``together`` at a time, of those that agree in their sides."""
    alike: dict[tuple[bool, bool], list[Row]] = {}
    for each in sorted(rows, key=lambda each: each.domains):
        alike.setdefault((each.holds, each.needs), []).append(each)
    return [
        [rank for each in part[start : start + together] for rank in each.ranks]
        for part in alike.values()
        for start in range(0, len(part), together)
    ]

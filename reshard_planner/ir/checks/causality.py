"""Check ``causality``: no row sends what its source does not have by then."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reshard_planner.errors import CausalityError
from reshard_planner.ir.checks.subject import Subject


def check_causality(subject: Subject) -> None:
    """Every row reads the source's own tile, or what its parent brought at least ``lag`` slots before.

    Raises:
        CausalityError: naming the row.
    """
    _check_parents(subject)
    for group in sorted(subject.samples):
        if subject.lenders[group] == group:
            rows = subject.rows_of(group)
            _check_roots(subject, group, rows[subject.plan.routes.parent[rows] < 0])


def _refuse(rows: NDArray[np.int64], bad: NDArray[np.bool_], why: str) -> None:
    if bad.any():
        raise CausalityError(f"routes: row {int(rows[np.flatnonzero(bad)[0]])} {why}")


def _check_parents(subject: Subject) -> None:
    routes, pieces = subject.plan.routes, subject.plan.pieces
    lag = subject.plan.spec.options.lag
    rows = np.flatnonzero(routes.parent >= 0)
    parent = routes.parent[rows]
    _refuse(rows, routes.dst[parent] != routes.src[rows], "does not start where its parent ends")
    early = routes.offset[rows].astype(np.int64) < routes.offset[parent].astype(np.int64) + lag
    _refuse(rows, early, f"runs less than {lag} slots after its parent")
    mine, above = routes.piece[rows], routes.piece[parent]
    smaller = mine != above
    within = (pieces.group[mine] == pieces.group[above]) & (pieces.part[mine] == pieces.part[above])
    within &= (pieces.lo[mine] >= pieces.lo[above]).all(1) & (pieces.hi[mine] <= pieces.hi[above]).all(1)
    within &= (routes.src[rows] == routes.dst[rows]) & (routes.scratch[parent] > 0)
    _refuse(
        rows,
        smaller & ~within,
        "carries another piece than its parent and is no copy of a part out of scratch",
    )
    is_part = np.zeros(len(routes), dtype=bool)
    is_part[rows] = smaller
    _refuse(rows, is_part[parent], "forwards a part that was copied out of scratch")


def _check_roots(subject: Subject, group: int, rows: NDArray[np.int64]) -> None:
    plan = subject.plan
    src = subject.rename(group, plan.routes.src[rows])
    piece = plan.routes.piece[rows].astype(np.int64)
    keys = src * max(1, len(plan.pieces)) + piece
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    lo, hi = subject.boxes(group, piece[first])
    held = subject.tiles(group, "src").holding(src[first], lo, hi)
    name = subject.samples[group].name
    _refuse(rows, ~held[inverse], f"sends a piece of tensor {name!r} that its rank does not hold")

"""Check ``order``: rows stand in canonical order.

Both ends of a pair pack and unpack a message in order of operation numbers, which ascend with units and
rows; a plan whose rows are in canonical order therefore pairs them on all ranks alike, and equal plans have
equal bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from reshard_planner.errors import OrderError
from reshard_planner.ir.checks.subject import Subject

ROUTE_KEYS = ("src", "piece", "offset", "dst", "tile")
UNIT_KEYS = ("round", "group", "tensor", "part", "chunk")
PIECE_KEYS = ("group", "part")
SUBSTITUTION_KEYS = ("subst_group", "subst_from")


def check_order(subject: Subject) -> None:
    """See the module's text.

    Raises:
        OrderError: naming the table and the first row that is out of order.
    """
    tables = subject.plan.tables
    for name, table, keys in (
        ("groups", tables.groups, SUBSTITUTION_KEYS),
        ("pieces", tables.pieces, PIECE_KEYS),
        ("routes", tables.routes, ROUTE_KEYS),
        ("schedule", tables.schedule, UNIT_KEYS),
    ):
        row = first_descent([getattr(table, key) for key in keys])
        if row is not None:
            raise OrderError(
                f"{name}: row {row} comes after a row that it should precede; order is by {keys}"
            )


def first_descent(columns: Sequence[NDArray[np.int64]]) -> int | None:
    """First row that is lexicographically below its predecessor, None if there is none."""
    length = len(columns[0])
    below = np.zeros(max(0, length - 1), dtype=bool)
    equal = np.ones(max(0, length - 1), dtype=bool)
    for column in columns:
        step = np.diff(column.astype(np.int64))
        below |= equal & (step < 0)
        equal &= step == 0
    rows = np.flatnonzero(below)
    return int(rows[0]) + 1 if len(rows) else None

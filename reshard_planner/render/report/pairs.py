"""What moves from rank to rank, from which the page draws the transfers of one rank or of one domain."""

from __future__ import annotations

from typing import Any

import numpy as np

from reshard_planner.intset import format_ints
from reshard_planner.ir.plan import Plan
from reshard_planner.render.moves import find_moves
from reshard_planner.render.report.loads import Loads, rank_facts

MAX_PAIRS = 60_000
"""Most sums of pairs of ranks that a page has room for, in about 1.5 MB; where there are more it has none."""


def pair_data(plan: Plan, loads: Loads) -> dict[str, Any] | None:
    """Transfers added up by pair of ranks, medium and role, as columns of plain JSON types.

    Returns:
        Ranks that send and receive, medium and role, number of transfers and bytes, those of each medium and
        role together; and which ranks hold and need anything. None where there are too many.
    """
    moves = find_moves(plan)
    if len(moves) > MAX_PAIRS:
        return None
    order = np.lexsort((moves.dst, moves.src, moves.role, moves.medium))
    kinds, at = np.unique(
        np.stack((moves.medium[order], moves.role[order]), axis=1), axis=0, return_index=True
    )
    columns = ("src", "dst", "count", "nbytes")
    facts = rank_facts(plan, loads.ports)
    return {
        "kinds": kinds.tolist(),
        "starts": [*at.tolist(), len(moves)],
        **{name: getattr(moves, name)[order].tolist() for name in columns},
        "holds": format_ints(np.flatnonzero(facts.holds).tolist()),
        "needs": format_ints(np.flatnonzero(facts.needs).tolist()),
    }

"""Rows of a pipeline picture: the places of all ranks that a plan moves bytes from or to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reshard_planner.ir.plan import Plan
from reshard_planner.ir.ranknumbers import number_ranks
from reshard_planner.render.places import RankFacts, RankPlace, choose_places, place_numbers
from reshard_planner.render.storing import storing_ranks
from reshard_planner.topology import Ports

Ints = NDArray[np.int64]

MAX_ROWS = 16
"""Rows of a picture: ranks, or where there are more their domains, or domains that are alike."""


@dataclass(frozen=True, slots=True, eq=False)
class PictureRows:
    """All rows of a picture.

    Attributes:
        places: ranks of each row, from top to bottom.
        row_of: row of each rank, -1 for none, int64 of shape (largest rank + 1,).
    """

    places: tuple[RankPlace, ...]
    row_of: Ints

    def __len__(self) -> int:
        return len(self.places)


def find_rows(plan: Plan) -> PictureRows:
    """The rows for all ranks that a plan moves bytes from or to."""
    size = max(plan.ranks, default=-1) + 1
    ports = Ports.of(plan.spec.topology, plan.ranks)
    holds, needs = (storing_ranks(plan.spec.tensors, side, size) for side in ("src", "dst"))
    named = number_ranks(plan.tables, size).ranks.tolist() if len(plan.routes) else []
    shown = [rank for rank in named if rank < size and ports.domain[rank] >= 0]
    facts = RankFacts(ports.domain, holds, needs)
    places = choose_places(shown, facts, most_ranks=MAX_ROWS, most_places=MAX_ROWS)
    return PictureRows(places, place_numbers(places, size))

"""The ranks of a plan, numbered for columns of sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reshard_planner.ir.stream import Block
from reshard_planner.ir.tables import Tables

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class RankNumbers:
    """The ranks that a plan names, under any substitution, numbered from 0.

    Attributes:
        ranks: the ranks, ascending, int64 of shape (ranks,).
        names: number of the rank that stands for each rank of the routes, int64 of shape (renamings, ranks
            that routes may name).
        renamed_by: which of the renamings holds for each group, int64 of shape (groups,).
    """

    ranks: Ints
    names: Ints
    renamed_by: Ints

    def ends(self, block: Block, group: Ints, src: Ints, dst: Ints) -> tuple[Ints, Ints]:
        """Numbers of the ranks that send and receive, of each entry of a block.

        Args:
            block: the entries.
            group: group of each unit of the schedule.
            src: rank of the routes that sends, of each entry.
            dst: likewise, that receives.
        """
        if len(self.names) == 1:
            return self.names[0, src], self.names[0, dst]
        base = (self.renamed_by[group[block.unit]] * self.names.shape[1])[block.run]
        flat = self.names.reshape(-1)
        return flat[base + src], flat[base + dst]


def number_ranks(tables: Tables, size: int, further: Sequence[int] = ()) -> RankNumbers:
    """Number the ranks that routes name, under any substitution.

    Args:
        tables: the plan.
        size: number of ranks that may be named at least.
        further: ranks, below ``size``, that have a number even if no route names them.

    Raises:
        TableError: if substitutions name impossible groups or ranks, or too many.
    """
    routes = tables.routes
    most = int(max(routes.src.max(initial=-1), routes.dst.max(initial=-1)))
    renamed_by, names = tables.groups.renamings(max(most + 1, size, 1))
    named = np.zeros(names.shape[1], dtype=bool)
    named[routes.src], named[routes.dst] = True, True
    after = np.zeros(names.shape[1], dtype=bool)
    after[names[:, named]] = True
    after[list(further)] = True
    return RankNumbers(np.flatnonzero(after), (np.cumsum(after) - 1)[names], renamed_by)

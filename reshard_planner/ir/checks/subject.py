"""What the checks look at: a plan, and what several of them derive from it."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reshard_planner.bounds import Needs
from reshard_planner.capacities import Capacities
from reshard_planner.demand import Demand, find_demands, find_geometries
from reshard_planner.ir.checks.tiles import TileColumns
from reshard_planner.ir.plan import Plan
from reshard_planner.ir.traffic import Traffic, measure_traffic
from reshard_planner.routing import STRATEGIES, Strategy
from reshard_planner.spec import TensorSpec
from reshard_planner.spec.values import SIDES, Side
from reshard_planner.topology import Ports


class Subject:
    """A plan under check. Derived values are computed when first needed."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._named: dict[int, NDArray[np.int64]] = {}
        self._tiles: dict[tuple[int, Side], TileColumns] = {}

    @cached_property
    def strategy(self) -> Strategy | None:
        """The strategy that the plan names, if this release knows it."""
        return STRATEGIES.get(self.plan.spec.options.strategy)

    @property
    def claims_least(self) -> bool:
        """Whether the strategy claims the least payload within the staging budget."""
        return self.strategy is not None and self.strategy.claims_least

    @cached_property
    def ports(self) -> Ports:
        return Ports.of(self.plan.spec.topology, self.plan.ranks)

    @cached_property
    def demands(self) -> tuple[Demand, ...]:
        return find_demands(find_geometries(self.plan.spec, self.ports), self.ports)

    @cached_property
    def capacities(self) -> Capacities:
        return Capacities(self.ports, self.plan.ranks)

    @cached_property
    def needs(self) -> Needs:
        return Needs(self.demands, self.capacities)

    @cached_property
    def traffic(self) -> Traffic:
        return measure_traffic(self.plan.spec, self.plan.tables, self.ports)

    @cached_property
    def samples(self) -> dict[int, TensorSpec]:
        """First tensor of each group that has one."""
        samples: dict[int, TensorSpec] = {}
        for tensor, group in zip(self.plan.spec.tensors, self.plan.groups.group_of.tolist(), strict=True):
            samples.setdefault(group, tensor)
        return samples

    def tiles(self, group: int, side: Side) -> TileColumns:
        """Tiles of a group's tensors on one side."""
        if (group, side) not in self._tiles:
            self._tiles[group, side] = TileColumns(self.samples[group], side)
        return self._tiles[group, side]

    @cached_property
    def _renamings(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return self.plan.groups.renamings(max(self.plan.ranks, default=0) + 1)

    def renaming(self, group: int) -> NDArray[np.int64] | None:
        """Rank that stands for each rank in a group; None if all stand for themselves."""
        numbers, ranks = self._renamings
        return ranks[numbers[group]] if numbers[group] else None

    def rename(self, group: int, ranks: NDArray[Any]) -> NDArray[np.int64]:
        """The ranks that stand for some ranks in a group."""
        names = self.renaming(group)
        return ranks.astype(np.int64) if names is None else names[ranks]

    @cached_property
    def lenders(self) -> dict[int, int]:
        """The group whose layouts are those of each group but for its renaming of ranks.

        What moves between the renamed ranks of such a group is right if it is right for the lender, in all
        that concerns who holds and needs what. Every other group is its own lender.
        """
        routes_of = self.plan.groups.routes_of.tolist()
        return {
            group: routes_of[group] if self._is_renamed(group, routes_of[group]) else group
            for group in self.samples
        }

    def _is_renamed(self, group: int, lender: int) -> bool:
        if group == lender or lender not in self.samples:
            return False
        own, lent = self.samples[group], self.samples[lender]
        names = self.renaming(group)
        used = [self._ranks_of(lender)]
        for side in SIDES:
            pairs = zip(lent.layouts(side), own.layouts(side), strict=False)
            if len(lent.layouts(side)) != len(own.layouts(side)):
                return False
            for given, renamed in pairs:
                ranks, right = given.tiling(lent.shape).ranks, renamed.tiling(own.shape).ranks
                if given.form != renamed.form:
                    return False
                if not np.array_equal(ranks if names is None else names[ranks], right):
                    return False
                used.append(ranks)
        if names is None:
            return True
        # two ranks with one name would mix up their bytes
        stands_in = names[np.unique(np.concatenate(used))]
        return len(np.unique(stands_in)) == len(stands_in)

    def _ranks_of(self, group: int) -> NDArray[np.int64]:
        """Ranks in the routes of a group."""
        if group not in self._named:
            rows = np.flatnonzero(self.group_of_row == group)
            routes = self.plan.routes
            self._named[group] = np.unique(np.concatenate((routes.src[rows], routes.dst[rows])))
        return self._named[group]

    @cached_property
    def group_of_row(self) -> NDArray[np.int64]:
        """Group that the piece of each row of the routes belongs to."""
        groups: NDArray[np.int64] = self.plan.pieces.group[self.plan.routes.piece].astype(np.int64)
        return groups

    def rows_of(self, group: int) -> NDArray[np.int64]:
        """Rows of the routes that a group uses."""
        return np.flatnonzero(self.group_of_row == self.plan.groups.routes_of[group])

    def boxes(self, group: int, piece: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First index and index past the last of some pieces, in the dimensions of a group's tensors."""
        shape = (len(piece), len(self.samples[group].shape))
        if not len(piece):  # the columns may have fewer dimensions then
            empty = np.zeros(shape, dtype=np.int64)
            return empty, empty
        pieces = self.plan.pieces
        return pieces.lo[piece, : shape[1]], pieces.hi[piece, : shape[1]]

"""What the checks look at: a plan, and what several of them derive from it."""

from __future__ import annotations

from functools import cached_property

from reshard_planner.bounds import Bound, Needs, compute_bound
from reshard_planner.capacities import Capacities
from reshard_planner.demand import Demand, find_demands, find_geometries
from reshard_planner.ir.ops import Ops
from reshard_planner.ir.plan import Plan
from reshard_planner.routing import STRATEGIES, Strategy
from reshard_planner.spec import TensorSpec
from reshard_planner.spec.tiles import SideTiles
from reshard_planner.spec.values import Side
from reshard_planner.topology import Ports


class Subject:
    """A plan under check. Derived values are computed when first needed."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._tiles: dict[tuple[int, Side], SideTiles] = {}

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
    def bound(self) -> Bound:
        return compute_bound(self.demands, self.ports, self.plan.ranks)

    @cached_property
    def capacities(self) -> Capacities:
        return Capacities(self.ports, self.plan.ranks)

    @cached_property
    def needs(self) -> Needs:
        return Needs(self.demands, self.capacities)

    @cached_property
    def ops(self) -> Ops:
        return self.plan.ops()

    @cached_property
    def samples(self) -> dict[int, TensorSpec]:
        """First tensor of each group that has one."""
        samples: dict[int, TensorSpec] = {}
        for tensor, group in zip(self.plan.spec.tensors, self.plan.groups.group_of.tolist(), strict=True):
            samples.setdefault(group, tensor)
        return samples

    def tiles(self, group: int, side: Side) -> SideTiles:
        """Tiles of a group's tensors on one side."""
        if (group, side) not in self._tiles:
            self._tiles[group, side] = SideTiles(self.samples[group], side)
        return self._tiles[group, side]

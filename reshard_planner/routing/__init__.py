"""Routing: strategies that choose a forest of transfers, one file each."""

from reshard_planner.errors import SpecError
from reshard_planner.routing import (
    direct,
    gather_broadcast,
    hybrid,
    m2n_node_aware,
    m2n_uniform,
    optimal,
    striped,
)
from reshard_planner.routing.forest import NO_TILE, ROOT, Forest
from reshard_planner.routing.problem import Problem, Strategy

STRATEGIES: dict[str, Strategy] = {
    module.STRATEGY.name: module.STRATEGY
    for module in (optimal, direct, gather_broadcast, m2n_uniform, m2n_node_aware, striped, hybrid)
}
"""All strategies by name; ours first, then the baselines."""


def find_strategy(name: str) -> Strategy:
    """The strategy of this name.

    Raises:
        SpecError: if there is none.
    """
    if name not in tuple(STRATEGIES):  # which takes what cannot be hashed, too
        raise SpecError(f"strategy {name!r} is unknown; expected one of {', '.join(STRATEGIES)}")
    return STRATEGIES[name]


__all__ = ["NO_TILE", "ROOT", "STRATEGIES", "Forest", "Problem", "Strategy", "find_strategy"]

"""The strategy ``m2n-node-aware``: NCCL M2N in its mode NODE_AWARE, as a baseline.

Domains of the destination are dealt out to the replicas of the source, as evenly as goes, so that most of
them are sent every byte once. A replica of the destination counts for the domain of the rank that has its
first shard, wherever the others are. Where there are more source replicas than domains, the rest is idle.
:mod:`reshard_planner.routing.m2n` says how bytes go from there.
"""

from __future__ import annotations

from collections.abc import Sequence

from reshard_planner.demand import group_by_domain
from reshard_planner.routing.forest import Forest
from reshard_planner.routing.m2n import route_m2n
from reshard_planner.routing.m2n_shares import Share, split
from reshard_planner.routing.m2n_sides import M2nSide
from reshard_planner.routing.problem import Problem, Strategy


def deal(source: M2nSide, destination: M2nSide, domain_of: Sequence[int]) -> list[Share]:
    """Deal domains out; see the module's text."""
    first = destination.ranks[0]
    domains = list(group_by_domain(first, domain_of).values())
    position = {rank: replica for replica, rank in enumerate(first)}
    return [
        Share(sender, tuple(sorted(position[rank] for at in chosen for rank in domains[at])))
        for sender, chosen in enumerate(split(len(domains), min(source.copies, len(domains))))
    ]


def route(problem: Problem) -> list[Forest]:
    """Route every tensor; see the module's text.

    Raises:
        UnsupportedError: if NCCL M2N would refuse a tensor, or ranks without a NIC must use the network.
    """
    return route_m2n(problem, deal)


STRATEGY = Strategy(
    "m2n-node-aware",
    route,
    claims_least=False,
    summary="NCCL M2N, which deals destination domains out to source replicas",
)

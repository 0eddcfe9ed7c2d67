"""The strategy ``m2n-uniform``: NCCL M2N in its mode UNIFORM, as a baseline.

Replicas of the destination are dealt out to those of the source, as evenly as goes and without regard to
domains: replicas of one domain that fall to several source replicas are sent the same bytes several times.
Where there are more source replicas, they are split among those of the destination and the first of each
part sends; the others are idle. :mod:`reshard_planner.routing.m2n` says how bytes go from there.
"""

from __future__ import annotations

from collections.abc import Sequence

from reshard_planner.routing.forest import Forest
from reshard_planner.routing.m2n import route_m2n
from reshard_planner.routing.m2n_shares import Share, split
from reshard_planner.routing.m2n_sides import M2nSide
from reshard_planner.routing.problem import Problem, Strategy


def deal(source: M2nSide, destination: M2nSide, domain_of: Sequence[int]) -> list[Share]:
    """Deal replicas out; see the module's text."""
    del domain_of  # that is the point of this mode
    if source.copies > destination.copies:
        groups = split(source.copies, destination.copies)
        return [Share(group[0], (replica,)) for replica, group in enumerate(groups)]
    ranges = split(destination.copies, source.copies)
    return [Share(sender, tuple(replicas)) for sender, replicas in enumerate(ranges)]


def route(problem: Problem) -> list[Forest]:
    """Route every tensor; see the module's text.

    Raises:
        UnsupportedError: if NCCL M2N would refuse a tensor, or ranks without a NIC must use the network.
    """
    return route_m2n(problem, deal)


STRATEGY = Strategy(
    "m2n-uniform",
    route,
    claims_least=False,
    summary="NCCL M2N, which deals destination replicas out to source replicas",
)

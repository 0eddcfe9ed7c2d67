"""The strategy ``direct``: every needer fetches its bytes from a holder itself.

A holder in the needer's own domain is asked over NVLink, else the least loaded holder over the network.
Nothing is forwarded, so a domain takes in as many copies as it has needers.
"""

from __future__ import annotations

from reshard_planner.capacities import Capacities
from reshard_planner.routing.forest import Forest
from reshard_planner.routing.items import make_items
from reshard_planner.routing.loads import Loads
from reshard_planner.routing.problem import Problem, Strategy
from reshard_planner.routing.trees import Transfer, build_forests
from reshard_planner.transfer import Medium


def route(problem: Problem) -> list[Forest]:
    """Route every class to each of its needers; see the module's text.

    Raises:
        UnsupportedError: if bytes must cross the network at ranks without a NIC.
    """
    items, groups = make_items(problem, None)
    loads = Loads(problem.ports, Capacities(problem.ports, problem.spec.ranks))
    transfers: list[list[Transfer]] = []
    for turn, item in enumerate(items):
        tree: list[Transfer] = []
        holders = item.demand.holders
        for rank in item.demand.needers:
            if rank in holders:
                continue
            near = [holder for holder in holders if loads.domain_of[holder] == loads.domain_of[rank]]
            if near:
                sender, _ = loads.sender(near, item.nbytes, turn)
                loads.add_nvlink(sender, item.nbytes)
                tree.append((sender, rank, Medium.NVLINK))
            else:
                receiver = loads.receiver((rank,), item.nbytes, turn)
                sender = loads.emitter(holders, [], item.nbytes, turn)
                loads.add_network(sender, receiver, item.nbytes)
                tree.append((sender, receiver, Medium.NETWORK))
        transfers.append(tree)
    return build_forests(problem, items, groups, transfers)


STRATEGY = Strategy("direct", route, claims_least=False, summary="every needer fetches from a holder itself")

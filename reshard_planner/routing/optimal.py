"""The strategy ``optimal``: least payload, loads spread over all NICs and NVLink ports.

Every domain in need takes in every byte once. Whole classes rotate over holders, receiving needers and, where
the holders' NICs alone are too slow, relays. Only if the busiest port then stays above 1.01 T0, or a domain
takes in unevenly, are tensors of one geometry routed apart, and classes split, more and more finely.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial

from reshard_planner.atoms import Ranks
from reshard_planner.capacities import Capacities
from reshard_planner.demand import Member
from reshard_planner.routing.forest import Forest
from reshard_planner.routing.items import Item, make_items
from reshard_planner.routing.loads import Loads
from reshard_planner.routing.problem import Problem, Strategy
from reshard_planner.routing.trees import Transfer, build_forests
from reshard_planner.transfer import Medium

GOOD_ENOUGH = 1.01
"""Ratio to the least time at which no finer routing is tried."""

FINEST = 64
"""Items are not made smaller than what a NIC carries in this share of the least time."""

MAX_CHOICES = 100_000
"""Routings of more choices than this are not tried, unless it is the coarsest."""


def route(problem: Problem) -> list[Forest]:
    """Route all tensors together; see the module's text.

    Raises:
        UnsupportedError: if bytes must cross the network at ranks without a NIC.
    """
    best: tuple[tuple[float, float], list[Item], list[tuple[Member, ...]], list[list[Transfer]]] | None = None
    goal = (float(problem.bound.t0) * GOOD_ENOUGH, GOOD_ENOUGH)
    tried: set[tuple[int, bool]] = set()
    for limit, relays in _trials(problem):
        items, groups = make_items(problem, limit)
        if (len(items), relays) in tried:
            continue
        tried.add((len(items), relays))
        if best is not None and sum(len(item.demand.needers) for item in items) > MAX_CHOICES:
            break
        transfers, loads = _assign(problem, items, relays=relays)
        score = (max(loads.busiest(), goal[0]), max(_unevenness(problem, loads), goal[1]))
        if best is None or score < best[0]:
            best = (score, items, groups, transfers)
        if best[0] == goal:
            break
    return [] if best is None else build_forests(problem, *best[1:])


def _unevenness(problem: Problem, loads: Loads) -> float:
    """Over domains, the busiest NIC's time to take in what is needed, over the least time for the domain.

    Even ingress keeps receive buffers small and fans out from all needers instead of one.
    """
    worst = 0.0
    for domain, least in problem.bound.ingress:
        groups = loads.capacities.groups[domain]
        longest = max(loads.nic_in[group] / loads.capacities.nic_rate[group] for group in groups)
        worst = max(worst, longest / float(least))
    return worst


def _trials(problem: Problem) -> Iterator[tuple[int | None, bool]]:
    """Largest item in bytes and whether relays may emit, from the coarsest trial to the finest."""
    crossing = [demand for demand in problem.demands if demand.needing_domains]
    capacities = Capacities(problem.ports, problem.spec.ranks)
    rate = capacities.of_ranks(rank for holders in {d.holders for d in crossing} for rank in holders)
    copies = sum(demand.nbytes * len(demand.needing_domains) for demand in crossing)
    may_relay = any(len(demand.needing_domains) > 1 for demand in crossing)
    must_relay = may_relay and copies > GOOD_ENOUGH * rate * problem.bound.t0
    rates = problem.ports.nic_bytes_per_s if crossing else problem.ports.nvlink_bytes_per_s
    slowest = min((speed for speed in rates.tolist() if speed), default=1)
    shortest = min([problem.bound.t0, *(time for _, time in problem.bound.ingress if time)])
    finest = max(1, int(shortest * slowest) // FINEST)
    limit: int | None = None
    size = max((demand.nbytes for demand in problem.demands), default=0)
    while limit is None or limit >= finest:
        if not must_relay:
            yield limit, False
        if may_relay:
            yield limit, True
        size = -(-size // 2)
        if size == limit:
            return
        limit = size


def _assign(problem: Problem, items: list[Item], *, relays: bool) -> tuple[list[list[Transfer]], Loads]:
    """Choose the transfers of every item in turn, always over the least loaded ports."""
    loads = Loads(problem.ports, Capacities(problem.ports, problem.spec.ranks))
    slack = float(problem.bound.t0)
    by_domain = cache(partial(_by_domain, loads.domain_of))
    transfers = []
    for turn, item in enumerate(items):
        tree: list[Transfer] = []
        needers = by_domain(item.demand.needers)
        receivers = {
            domain: loads.receiver(needers[domain], item.nbytes, turn)
            for domain in item.demand.needing_domains
        }
        _cross(item, receivers, loads, turn, tree, relays=relays)
        for domain, members in needers.items():
            if domain in receivers:
                seeds = [receivers[domain]]
            else:
                seeds = [rank for rank in item.demand.holders if loads.domain_of[rank] == domain]
            known = set(seeds)
            rest = [rank for rank in members if rank not in known]
            _fan_out(seeds, rest, item.nbytes, loads, turn, slack, tree)
        transfers.append(tree)
    return transfers, loads


def _by_domain(domain_of: list[int], ranks: Ranks) -> dict[int, Ranks]:
    found: dict[int, list[int]] = {}
    for rank in ranks:
        found.setdefault(domain_of[rank], []).append(rank)
    return {domain: tuple(members) for domain, members in found.items()}


def _cross(
    item: Item, receivers: dict[int, int], loads: Loads, turn: int, tree: list[Transfer], *, relays: bool
) -> None:
    """Bring one copy into every domain in need, by holders or by receivers that a holder feeds."""
    waiting = list(receivers.values())
    start = turn % len(waiting) if waiting else 0
    waiting = waiting[start:] + waiting[:start]
    if relays:
        group, rate = loads.capacities.nic_group, loads.capacities.nic_rate
        waiting.sort(key=lambda rank: loads.nic_out[group[rank]] / rate[group[rank]])
    fed: list[int] = []
    holders = set(item.demand.holders)
    for receiver in waiting:
        sender = loads.emitter(item.demand.holders, fed, item.nbytes, turn)
        loads.add_network(sender, receiver, item.nbytes)
        tree.append((sender, receiver, Medium.NETWORK))
        if relays and sender in holders:
            fed.append(receiver)


def _fan_out(
    seeds: list[int],
    rest: list[int],
    nbytes: int,
    loads: Loads,
    turn: int,
    slack: float,
    tree: list[Transfer],
) -> None:
    """Send to the rest of a domain from its seeds; neighbours help where the seeds alone exceed T0."""
    if not rest:
        return
    start = turn % len(rest)
    helpers: list[int] = []
    for receiver in rest[start:] + rest[:start]:
        sender, done = loads.sender(seeds, nbytes, turn)
        if done > slack and helpers:
            sender, _ = loads.sender(seeds + helpers, nbytes, turn)
        loads.add_nvlink(sender, receiver, nbytes)
        tree.append((sender, receiver, Medium.NVLINK))
        if sender in seeds:
            helpers.append(receiver)


STRATEGY = Strategy(
    "optimal",
    route,
    claims_least=True,
    summary="least network bytes, balanced over all ports, fan-out over NVLink",
)

"""Choosing the transfers of every item in turn, always over the least loaded ports.

This finds its way on ports of any speed, one transfer at a time; rotation is faster where all are alike.
"""

from __future__ import annotations

from functools import cache

from reshard_planner.capacities import Capacities
from reshard_planner.demand import group_by_domain
from reshard_planner.routing.items import Item
from reshard_planner.routing.loads import Loads
from reshard_planner.routing.problem import Problem
from reshard_planner.routing.trees import Transfer
from reshard_planner.transfer import Medium


def assign(problem: Problem, items: list[Item], *, relays: bool) -> list[list[Transfer]]:
    """Choose the transfers of every item in turn, always over the least loaded ports."""
    loads = Loads(problem.ports, Capacities(problem.ports, problem.spec.ranks))
    slack = float(problem.bound.t0)
    by_domain = cache(lambda ranks: group_by_domain(ranks, loads.domain_of))
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
    return transfers


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
        loads.add_nvlink(sender, nbytes)
        tree.append((sender, receiver, Medium.NVLINK))
        if sender in seeds:
            helpers.append(receiver)

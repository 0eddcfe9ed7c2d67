"""The strategy ``optimal``: least payload, loads spread over all NICs, NVLink ports and uplinks.

Every domain in need takes in every byte once. Ways are tried in order of what they cost in messages, until
one keeps the busiest port within 1 % of the least time and lets domains take in evenly:

1. turns: whole classes rotate over holders, receivers and relays; then tensors of one geometry are routed
   apart, and classes split, more and more finely. Where T0 exceeds T*, what a NIC has no time for spills over
   to those of neighbours.
2. programs: with pods, trees are packed; else, and where that fails, flows are laid out on tapes.
3. one by one: every item takes the ports that are least loaded so far.

Of all that was tried the best is taken; within it, pairs of one rail are preferred where that costs nothing.
Reasons: docs/adr/0012-turns-then-a-program.md, 0013-proxies.md, 0029-rails-at-equal-cost.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import product

import numpy as np

from reshard_planner.capacities import Capacities
from reshard_planner.errors import UnsupportedError
from reshard_planner.routing.fluid import find_flows
from reshard_planner.routing.forest import Forest
from reshard_planner.routing.greedy import assign
from reshard_planner.routing.items import make_items
from reshard_planner.routing.loads import PortTimes, measure_ports, most_peers
from reshard_planner.routing.nics import must_borrow
from reshard_planner.routing.packing import pack_trees
from reshard_planner.routing.problem import Problem, Strategy
from reshard_planner.routing.rails import align_rails
from reshard_planner.routing.realize import realize
from reshard_planner.routing.rotation import Rotation
from reshard_planner.routing.spill import spill
from reshard_planner.routing.tapes import FlowTape
from reshard_planner.routing.trees import build_forests
from reshard_planner.spec.values import MAX_PEERS, Options
from reshard_planner.transfer import Medium

GOOD_ENOUGH = 1.01
"""Ratio to the least time at which no finer routing is tried."""

WORTH_PROXIES = Fraction(102, 100)
"""Ratio of T0 to T* above which ranks that neither hold nor need the bytes lend their NICs."""

SPARE = 0.002
"""Time beyond T* that NICs may take where neighbours relieve them, as a share: it saves pieces."""

FINEST = 64
"""Items are not made smaller than what a NIC carries in this share of the least time."""

MAX_CHOICES = 100_000
"""Routings of more choices than this are not refined further, nor made one choice at a time."""


def route(problem: Problem) -> list[Forest]:
    """Route all tensors together; see the module's text.

    Raises:
        UnsupportedError: if bytes must cross the network at ranks without a NIC and neighbours cannot help,
            or if no way was found that keeps the limits of peers.
    """
    best: tuple[tuple[int, float, float], list[Forest]] | None = None
    bound, options = problem.bound, problem.spec.options
    borrow = must_borrow(problem.demands, problem.ports)
    proxies = borrow or (options.proxies == "auto" and bound.t0 > WORTH_PROXIES * bound.time)
    time = bound.time if proxies else bound.t0
    goal = (0, float(time) * GOOD_ENOUGH, GOOD_ENOUGH)
    for forests in _candidates(problem, proxies=proxies, borrow=borrow):
        times = measure_ports(problem.spec, problem.ports, forests)
        score = (
            _excess_peers(options, forests),
            max(times.busiest, goal[1]),
            max(_unevenness(problem, times), goal[2]),
        )
        if best is None or score < best[0]:
            best = (score, forests)
        if best[0] == goal:
            break
    if best is None:
        raise UnsupportedError(
            "ranks without a NIC must move bytes over the network, and no way over their neighbours' NICs was"
            " found; give more GPUs of their domains a NIC"
        )
    if best[0][0]:
        limits = {"network": options.max_network_peers, "nvlink": options.max_nvlink_peers}
        given = (f"options.max_{name}_peers is {most}" for name, most in limits.items() if most < MAX_PEERS)
        raise UnsupportedError(
            f"{' and '.join(given)}; the fewest that a way was found for are"
            f" {most_peers(best[1], Medium.NETWORK)} over the network and"
            f" {most_peers(best[1], Medium.NVLINK)} over NVLink"
        )
    if options.rails == "ignore":
        return best[1]
    aligned = align_rails(best[1], problem.ports.rails, problem.ports.domain)
    return aligned if _excess_peers(options, aligned) == 0 else best[1]


def _excess_peers(options: Options, forests: list[Forest]) -> int:
    """Peers of the rank that has most, beyond what the options allow."""
    excess = 0
    for medium, most in (
        (Medium.NETWORK, options.max_network_peers),
        (Medium.NVLINK, options.max_nvlink_peers),
    ):
        if most < MAX_PEERS:
            excess += max(0, most_peers(forests, medium) - most)
    return excess


def _candidates(problem: Problem, *, proxies: bool, borrow: bool) -> Iterator[list[Forest]]:
    """Forests in the order of the module's text."""
    time = float(problem.bound.time if proxies else problem.bound.t0)
    coarsest = _coarsest_nbytes(problem)
    limits = [None, *(max(1, coarsest >> shift) for shift in range(FINEST.bit_length()))]
    yield from _turns(problem, limits, time, proxies=proxies, borrow=borrow)
    found = False
    for forests in _programs(problem, time, proxies=proxies):
        found = True
        yield forests
    if not found and not proxies:
        yield from _one_by_one(problem, limits)


def _turns(
    problem: Problem, limits: Sequence[int | None], time_s: float, *, proxies: bool, borrow: bool
) -> Iterator[list[Forest]]:
    """Forests by rotation, from coarse to fine, and what becomes of them where neighbours relieve NICs."""
    rotation = Rotation(problem, time_s)
    full = (False, True) if rotation.has_split_copies else (False,)
    pods = (False, True) if len(problem.ports.uplink_bytes_per_s) else (False,)
    rows: dict[tuple[bool, bool], int] = {}
    for limit in limits:
        for variant in product(full, pods):
            forests = rotation.route(limit, full=variant[0], pods=variant[1])
            count = sum(len(forest.piece) for forest in forests)
            if rows.get(variant) == count:
                continue
            rows[variant] = count
            if not borrow:
                yield forests
            if proxies:
                relieved = spill(problem, forests, time_s * (1 + SPARE))
                if relieved is not None:
                    yield relieved
        if max(rows.values()) > MAX_CHOICES:
            break


def _programs(problem: Problem, time_s: float, *, proxies: bool) -> Iterator[list[Forest]]:
    """Forests by linear programs, where those are small enough."""
    choices = list(_proxy_domains(problem)) if proxies else [frozenset[int]()]
    if len(problem.ports.uplink_bytes_per_s):
        for domains in choices:
            packings = pack_trees(problem, domains, time_s)
            if packings is not None:
                yield build_forests(problem, *realize(problem, packings))
    for domains in choices:
        flows = find_flows(problem, domains)
        if flows is not None:
            yield build_forests(problem, *realize(problem, [FlowTape(problem, flow) for flow in flows]))


def _one_by_one(problem: Problem, limits: Sequence[int | None]) -> Iterator[list[Forest]]:
    """Forests over the least loaded ports, from coarse to fine; uplinks of pods are left out of account."""
    tried: set[tuple[int, bool]] = set()
    for limit in limits:
        items, groups = make_items(problem, limit)
        if sum(len(item.demand.needers) for item in items) > MAX_CHOICES:
            break
        for relays in _relaying(problem):
            if (len(items), relays) not in tried:
                tried.add((len(items), relays))
                yield build_forests(problem, items, groups, assign(problem, items, relays=relays))


def _proxy_domains(problem: Problem) -> Iterator[frozenset[int]]:
    """Domains whose ranks may lend their NICs: those whose NICs differ, then all."""
    ports = problem.ports
    ranks = np.array(problem.spec.ranks, dtype=np.int64)
    rates = np.append(ports.nic_bytes_per_s, 0)[ports.nic_group[ranks]]
    domains = ports.domain[ranks]
    least = np.full(int(domains.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    most = np.zeros(len(least), dtype=np.int64)
    np.minimum.at(least, domains, rates)
    np.maximum.at(most, domains, rates)
    yield frozenset(np.flatnonzero(least < most).tolist())
    yield frozenset(domains.tolist())


def _coarsest_nbytes(problem: Problem) -> int:
    """What a port of middle speed carries in the shortest time that matters, in bytes."""
    crossing = any(demand.needing_domains for demand in problem.demands)
    rates = problem.ports.nic_bytes_per_s if crossing else problem.ports.nvlink_bytes_per_s
    speeds = sorted(speed for speed in rates.tolist() if speed)
    middle = speeds[len(speeds) // 2] if speeds else 1
    shortest = min([problem.bound.t0, *(time for _, time in problem.bound.ingress if time)])
    return max(1, int(shortest * middle))


def _relaying(problem: Problem) -> list[bool]:
    """Whether relays may emit, in the order in which to try it."""
    crossing = [demand for demand in problem.demands if demand.needing_domains]
    if all(len(demand.needing_domains) < 2 for demand in crossing):
        return [False]
    capacities = Capacities(problem.ports, problem.spec.ranks)
    rate = capacities.of_ranks(rank for holders in {d.holders for d in crossing} for rank in holders)
    copies = sum(demand.nbytes * len(demand.needing_domains) for demand in crossing)
    return [True] if copies > GOOD_ENOUGH * rate * problem.bound.t0 else [False, True]


def _unevenness(problem: Problem, times: PortTimes) -> float:
    """Over domains, the busiest NIC's time to take in what is needed, over the least time for the domain.

    Even ingress keeps receive buffers small and fans out from all needers instead of one.
    """
    nic_domain = problem.ports.nic_domain
    longest = np.zeros(int(nic_domain.max(initial=-1)) + 1)
    np.maximum.at(longest, nic_domain, times.nic_in)
    return max(
        (longest[domain] / float(least) for domain, least in problem.bound.ingress if least), default=0.0
    )


STRATEGY = Strategy(
    "optimal",
    route,
    claims_least=True,
    summary="least network bytes, balanced over all ports, fan-out over NVLink",
)

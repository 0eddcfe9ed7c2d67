"""T* and T0: the largest cuts that can be found, from closed forms over flows to a linear program."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from reshard_planner.bounds.bottleneck import find_bottleneck
from reshard_planner.bounds.closed import larger, largest_closed_cut
from reshard_planner.bounds.cut import NO_CUT, Cut, Port, Resource, Weights, pack_weights
from reshard_planner.bounds.needs import Domains, Needs
from reshard_planner.bounds.nics import NicLoads
from reshard_planner.bounds.program import MAX_VARIABLES, propose_prices, variable_count
from reshard_planner.bounds.spread import EvenSpreads, nvlink_is_slack, uplinks_fit
from reshard_planner.bounds.sums import evaluate
from reshard_planner.capacities import Capacities
from reshard_planner.demand import Demand
from reshard_planner.topology import Ports

MOST_PROPOSALS = 16
"""Sets of pods that are tried for the first copies."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Least times, and the cuts that prove them.

    Attributes:
        time: T*, in seconds.
        t0: T0, the bound when only ranks that hold or need the bytes take part, in seconds.
        ingress: per domain in need, the least time in which its needers' NICs can take in what it needs.
        cut: a cut whose time is T*.
        t0_cut: prices whose time is T0 if only ranks that hold or need the bytes take part; ``cut`` itself
            if it proves T0 as well.
    """

    time: Fraction
    t0: Fraction
    ingress: tuple[tuple[int, Fraction], ...]
    cut: Cut
    t0_cut: Cut


def compute_bound(demands: Sequence[Demand], ports: Ports, ranks: Iterable[int]) -> Bound:
    """T* and T0: exact ratios of the largest cuts found; see docs/mathematics.md for how they are found.

    Args:
        demands: what must move.
        ports: rates per rank.
        ranks: all ranks that take part.

    Raises:
        UnsupportedError: if bytes must cross the network but no GPU on one side has a NIC.
    """
    capacities = Capacities(ports, ranks)
    needs = Needs(demands, capacities)
    cut = largest_closed_cut(needs, capacities)
    loads = NicLoads(needs, capacities)
    ingress = {domain: loads.ingress_bottleneck(domain) for domain in loads.ingress}
    times = tuple((domain, time) for domain, (time, _) in ingress.items())
    spreads = EvenSpreads(needs, capacities)
    if spreads.fit(cut.time, proxies=False):
        return Bound(cut.time, cut.time, times, cut, cut)
    cut = _with_flows(cut, needs, capacities)
    t0_cut = larger(cut, _nic_cut(cut.time, loads, ingress, needs, capacities))
    if not _is_optimum(t0_cut.time, needs, capacities, spreads, proxies=False):
        for weights in _proposals(t0_cut.time, needs, capacities, restricted=True):
            t0_cut = larger(t0_cut, evaluate("prices", (), needs, capacities, weights, restricted=True))
    if t0_cut.kind == "prices":  # they may bind where ranks lend their NICs, too
        cut = larger(cut, evaluate("prices", (), needs, capacities, t0_cut.weights))
    if t0_cut is not cut and not _is_optimum(cut.time, needs, capacities, spreads, proxies=True):
        for weights in _proposals(cut.time, needs, capacities, restricted=False):
            cut = larger(cut, evaluate("prices", (), needs, capacities, weights))
    t0_cut = larger(cut, t0_cut)
    return Bound(cut.time, t0_cut.time, times, cut, t0_cut)


def _is_optimum(
    time: Fraction, needs: Needs, capacities: Capacities, spreads: EvenSpreads, *, proxies: bool
) -> bool:
    """Whether a time that no NIC exceeds is the optimum, because NVLink and uplinks do not bind within it."""
    if not uplinks_fit(needs, capacities, time):
        return False
    return nvlink_is_slack(needs, capacities, time, proxies=proxies) or spreads.fit(time, proxies=proxies)


def _proposals(
    proved: Fraction, needs: Needs, capacities: Capacities, *, restricted: bool
) -> Iterable[Weights]:
    """Prices of a cut that may take longer than the time proved so far, in seconds."""
    if not proved or variable_count(needs, capacities, restricted=restricted) > MAX_VARIABLES:
        return ()
    return propose_prices(proved, needs, capacities, restricted=restricted)


def _with_flows(cut: Cut, needs: Needs, capacities: Capacities) -> Cut:
    """The best set of domains, and of pods, that must emit."""
    rate = {domain: capacities.network((domain,)) for domain in capacities.ranks}
    found = find_bottleneck(_emissions(needs.crossing), rate, cut.time)
    if found is not None:
        cut = larger(cut, evaluate("egress", found[1], needs, capacities))
    pods = {ends: nbytes for ends, nbytes in needs.pods.items() if -1 not in ends[0]}
    found = find_bottleneck(_emissions(pods), dict(enumerate(capacities.uplink)), cut.time)
    if found is not None:
        cut = larger(cut, evaluate("pod_egress", found[1], needs, capacities))
    for weights in _first_emissions(needs, capacities):
        cut = larger(cut, evaluate("prices", (), needs, capacities, weights))
    return cut


def _first_emissions(needs: Needs, capacities: Capacities) -> Iterable[Weights]:
    """Prices on what first copies leave by: uplinks of some pods of holders, and NICs of all other holders.

    The pods are those whose uplink is narrower than the NICs of its holding domains: each, and all together.
    """
    holding = sorted({domain for domains, _ in needs.crossing for domain in domains})
    nics: dict[int, int] = {}
    for domain in holding:
        pod = capacities.pod_of.get(domain, -1)
        nics[pod] = nics.get(pod, 0) + capacities.network((domain,))
    narrow = [pod for pod, rate in sorted(nics.items()) if pod >= 0 and capacities.uplink[pod] < rate]
    chosen = [*((pod,) for pod in narrow), tuple(narrow)] if len(narrow) > 1 else [(pod,) for pod in narrow]
    for pods in chosen[-MOST_PROPOSALS:]:
        weights: dict[Port, int] = {("uplink_out", pod): 1 for pod in pods}
        for domain in holding:
            if capacities.pod_of.get(domain, -1) not in pods:
                weights.update({("nic_out", group): 1 for group in capacities.groups[domain]})
        yield pack_weights(weights)


def _emissions(crossing: dict[tuple[Domains, Domains], int]) -> dict[Domains, int]:
    """First and further emissions, by the domains or pods that may make them."""
    loads: dict[Domains, int] = {}
    for (holding, needing), nbytes in crossing.items():
        loads[holding] = loads.get(holding, 0) + nbytes
        if len(needing) > 1 and -1 not in needing:
            every = tuple(sorted({*holding, *needing}))
            loads[every] = loads.get(every, 0) + nbytes * (len(needing) - 1)
    return loads


def _nic_cut(
    beyond: Fraction,
    loads: NicLoads,
    ingress: dict[int, tuple[Fraction, tuple[int, ...]]],
    needs: Needs,
    capacities: Capacities,
) -> Cut:
    """The best set of NIC groups that takes in or emits in one direction, if it exceeds a time."""
    resource: Resource = "nic_in"
    time, members = max(ingress.values(), default=(Fraction(0), ()))
    emitting = loads.egress_bottleneck(max(time, beyond))
    if emitting is not None:
        resource, (time, members) = "nic_out", emitting
    if time <= beyond or not members:
        return NO_CUT
    weights = pack_weights({(resource, group): 1 for group in members})
    return evaluate("prices", (), needs, capacities, weights, restricted=True)

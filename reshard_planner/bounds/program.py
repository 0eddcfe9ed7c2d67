"""A linear program of network and NVLink together, whose dual values propose prices.

Only the exact price of a cut, summed by :mod:`reshard_planner.bounds.prices`, becomes a bound, so that
nothing here has to be exact.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from reshard_planner.bounds.cut import MAX_WEIGHT, Port, Weights, pack_weights
from reshard_planner.bounds.needs import JointClass, Needs
from reshard_planner.capacities import Capacities

MAX_VARIABLES = 12_000
"""Size up to which the program is solved."""

DENOMINATORS = 64
"""Least prices are tried as up to so many units."""

FASTEST = 1e6
"""Times that a port moves the largest class within the least time, at which rates are cut off: no port has to
move as much, and solvers refuse numbers that are too far apart."""

NEGLIGIBLE = 1e-9
"""Dual values below this share of the largest are rounding."""


def variable_count(needs: Needs, capacities: Capacities, *, restricted: bool) -> int:
    """About how many variables the program has; counting ends above :data:`MAX_VARIABLES`."""
    if len(needs.nbytes) > MAX_VARIABLES:
        return len(needs.nbytes)
    size = {domain: len(ranks) for domain, ranks in capacities.ranks.items()}
    total = 0
    for joint in needs.classes:
        if restricted:
            total += len(joint.holders) + 3 * len(joint.needers)
        else:
            total += 3 * sum(size[domain] for domain in (*joint.holder_domains, *joint.needing_domains))
        if total > MAX_VARIABLES:
            break
    return total


def propose_prices(
    time: Fraction, needs: Needs, capacities: Capacities, *, restricted: bool
) -> Iterator[Weights]:
    """Prices from the dual values of the program, as integer weights; several ways to round them.

    Args:
        time: a proved bound in seconds, positive; the program counts in units of it.
        needs: what must move.
        capacities: rates of the ports.
        restricted: whether only ranks that hold or need the bytes may take part.
    """
    scale = max((joint.nbytes for joint in needs.classes), default=1)
    program = _Program(capacities, time / scale)
    for joint in needs.classes:
        _Class(program, needs, capacities, joint, joint.nbytes / scale, restricted=restricted).add()
    duals = program.solve()
    positive = [value for value in duals.values() if value > 0]
    if not positive:
        return
    largest = max(positive)
    prices = {port: value for port, value in duals.items() if value > NEGLIGIBLE * largest}
    yielded: set[Weights] = set()
    for unit in _units(list(prices.values())):
        weights = pack_weights({port: round(value / unit) for port, value in prices.items()})
        if weights and weights not in yielded:
            yielded.add(weights)
            yield weights


def _units(values: Sequence[float]) -> Iterator[float]:
    """Units of which all values are nearly whole multiples, if there are any; else a fine grid."""
    found = np.array(values)
    least = float(found.min())
    for parts in range(1, DENOMINATORS + 1):
        multiples = found * (parts / least)
        if multiples.max() <= MAX_WEIGHT and np.abs(multiples - np.rint(multiples)).max() < 1e-5 * parts:
            yield least / parts
            break
    yield float(found.max()) / MAX_WEIGHT


class _Program:
    """Rows of ``sum of factor times variable <= limit``; variable 0 is the time, all are at least 0.

    Args:
        capacities: rates of the ports.
        scale: unit of time in seconds, over unit of size in bytes.
    """

    def __init__(self, capacities: Capacities, scale: Fraction) -> None:
        rates = {"nic": capacities.nic_rate, "nvlink": capacities.nvlink, "uplink": capacities.uplink}
        self.rates = {
            name: [min(FASTEST, float(rate * scale)) for rate in column] for name, column in rates.items()
        }
        self.count = 1
        self.row: list[int] = []
        self.column: list[int] = []
        self.factor: list[float] = []
        self.limit: list[float] = []
        self.loads: dict[Port, list[tuple[int, float]]] = defaultdict(list)
        self.constant: dict[Port, float] = defaultdict(float)

    def var(self) -> int:
        self.count += 1
        return self.count - 1

    def at_most(self, terms: Iterable[tuple[int, float]], limit: float) -> None:
        number = len(self.limit)
        for variable, factor in terms:
            self.row.append(number)
            self.column.append(variable)
            self.factor.append(factor)
        self.limit.append(limit)

    def at_least(self, terms: Iterable[tuple[int, float]], limit: float) -> None:
        self.at_most([(variable, -factor) for variable, factor in terms], -limit)

    def exactly(self, terms: Sequence[tuple[int, float]], limit: float) -> None:
        self.at_most(terms, limit)
        self.at_least(terms, limit)

    def solve(self) -> dict[Port, float]:
        """Dual value of every port; empty if the solver fails."""
        from scipy.optimize import linprog  # noqa: PLC0415 - scipy is slow to import
        from scipy.sparse import csr_array  # noqa: PLC0415 - likewise

        first = len(self.limit)
        ports = sorted(self.loads.keys() | self.constant.keys())
        for resource, number in ports:
            port = (resource, number)
            rate = self.rates[resource.split("_")[0]][number]
            self.at_most([*self.loads[port], (0, -rate)], -self.constant[port])
        shape = (len(self.limit), self.count)
        matrix = csr_array((self.factor, (self.row, self.column)), shape=shape)
        cost = np.zeros(self.count)
        cost[0] = 1
        result = linprog(cost, A_ub=matrix, b_ub=self.limit, method="highs")
        if not result.success:
            return {}
        duals: NDArray[np.float64] = -result.ineqlin.marginals[first:]
        return dict(zip(ports, duals.tolist(), strict=True))


class _Class:
    """The variables of one class: entries y, NVLink transfers in u and out o, emissions x."""

    def __init__(
        self,
        program: _Program,
        needs: Needs,
        capacities: Capacities,
        joint: JointClass,
        nbytes: float,
        *,
        restricted: bool,
    ) -> None:
        self.program = program
        self.capacities = capacities
        self.joint = joint
        self.nbytes = nbytes
        self.restricted = restricted
        self.holders = needs.by_domain(joint.holders)
        self.needers = needs.by_domain(joint.needers)
        self.copies = len(joint.needing_domains)
        self.emissions: dict[int, list[int]] = defaultdict(list)
        self.first: list[int] = []

    def add(self) -> None:
        program, nbytes = self.program, self.nbytes
        for domain in self.joint.needing_domains:
            self._enter(domain)
        helped = not any(
            self._with_nic((*held, *self.needers.get(domain, ()))) for domain, held in self.holders.items()
        )
        for domain in self.joint.holder_domains:
            self._hold(domain, helped=helped or not self.restricted)
        if not self.copies:
            return
        program.at_least([(x, 1.0) for x in self.first], nbytes)
        every = [x for emissions in self.emissions.values() for x in emissions]
        program.at_least([(x, 1.0) for x in every], self.copies * nbytes)
        if self.capacities.uplink:
            self._cross()

    def _with_nic(self, ranks: Iterable[int]) -> list[int]:
        return [rank for rank in ranks if self.capacities.nic_group[rank] >= 0]

    def _emit(self, domain: int, rank: int) -> int:
        x = self.program.var()
        self.program.loads["nic_out", self.capacities.nic_group[rank]].append((x, 1.0))
        self.emissions[domain].append(x)
        return x

    def _out(self, rank: int) -> int:
        o = self.program.var()
        self.program.loads["nvlink_out", rank].append((o, 1.0))
        return o

    def _take(self, rank: int) -> int:
        u = self.program.var()
        self.program.loads["nvlink_in", rank].append((u, 1.0))
        return u

    def _enter(self, domain: int) -> None:
        """Reception in a domain in need, its distribution, and relays out of it."""
        program, nbytes, loads = self.program, self.nbytes, self.program.loads
        ranks, needers = self.capacities.ranks[domain], self.needers[domain]
        near = self._with_nic(needers)
        takers = near if self.restricted and near else self._with_nic(ranks)
        entries = {rank: program.var() for rank in takers}
        program.exactly([(y, 1.0) for y in entries.values()], nbytes)  # more would exceed the least payload
        for rank, y in entries.items():
            loads["nic_in", self.capacities.nic_group[rank]].append((y, 1.0))
        outs: list[tuple[int, float]] = []
        for rank in needers:
            program.constant["nvlink_in", rank] += nbytes
            if len(ranks) > 1:
                outs.append((self._out(rank), 1.0))
            if rank in entries:
                loads["nvlink_in", rank].append((entries[rank], -1.0))
        for rank, y in entries.items():
            if any(other != rank for other in needers):
                # what enters leaves once at least; further transfers are variables of their own
                loads["nvlink_out", rank].append((y, 1.0))
                outs.append((y, 1.0))
            if rank in needers:
                outs.append((y, 1.0))
        for rank in ranks:
            if rank in needers or (self.restricted and rank not in entries):
                continue
            had = [(entries[rank], 1.0)] if rank in entries else []
            told: list[tuple[int, float]] = []
            if not self.restricted:
                told = [(self._take(rank), 1.0)]
                outs.append((told[0][0], -1.0))
            if len(needers) > 1:
                o = self._out(rank)
                outs.append((o, 1.0))
                limit = [(y, factor * (len(needers) - 1)) for y, factor in had]
                limit += [(u, factor * len(needers)) for u, factor in told]
                program.at_least([*limit, (o, -1.0)], 0)
            if self.copies > 1 and self.capacities.nic_group[rank] >= 0:
                x = self._emit(domain, rank)
                program.at_least([(x, -1.0), *((v, f * (self.copies - 1)) for v, f in (*had, *told))], 0)
        if self.copies > 1:
            for rank in near:
                self._emit(domain, rank)
        program.at_least(outs, len(needers) * nbytes)

    def _hold(self, domain: int, *, helped: bool) -> None:
        """Distribution in a holding domain, and emissions from it."""
        program, nbytes = self.program, self.nbytes
        held = self.holders[domain]
        lacking = [rank for rank in self.needers.get(domain, ()) if rank not in held]
        part = {*held, *lacking}
        helpers = [rank for rank in self.capacities.ranks[domain] if rank not in part] if helped else []
        if self.copies:
            self.first.extend(self._emit(domain, rank) for rank in self._with_nic(sorted(part)))
        if not lacking and not (helpers and self.copies):
            return
        from_holders = [(self._out(rank), 1.0) for rank in held]
        outs = [*from_holders, *((self._out(rank), 1.0) for rank in lacking)]
        for rank in lacking:
            program.constant["nvlink_in", rank] += nbytes
        if lacking:
            program.at_least(from_holders, nbytes)
        for rank in helpers:
            u = self._take(rank)
            outs.append((u, -1.0))
            if lacking:
                o = self._out(rank)
                outs.append((o, 1.0))
                program.at_least([(u, float(len(lacking))), (o, -1.0)], 0)
            else:
                program.at_least([*from_holders, (u, -1.0)], 0)
            if self.copies and self.capacities.nic_group[rank] >= 0:
                x = self._emit(domain, rank)
                program.at_least([(x, -1.0), (u, float(self.copies))], 0)
                first = program.var()  # all copies of a byte may leave here, but only one is the first
                self.first.append(first)
                program.at_least([(first, -1.0), (x, 1.0)], 0)
                program.at_least([(first, -1.0), (u, 1.0)], 0)
        program.at_least(outs, len(lacking) * nbytes)

    def _cross(self) -> None:
        """Copies over the uplinks of pods: what a pod emits leaves it or feeds a domain within."""
        program, pod_of = self.program, self.capacities.pod_of
        holding = {pod_of.get(domain, -1 - domain) for domain in self.joint.holder_domains}
        fed: dict[int, list[int]] = defaultdict(list)
        making: dict[int, list[int]] = defaultdict(list)
        for domain in self.joint.needing_domains:
            fed[pod_of.get(domain, -1 - domain)].append(domain)
        for domain in self.emissions:
            making[pod_of.get(domain, -1 - domain)].append(domain)
        entering, leaving, from_holding = [], [], []
        for pod in sorted({*fed, *making}):
            enter, leave = program.var(), program.var()
            entering.append((enter, 1.0))
            leaving.append((leave, -1.0))
            if pod in holding:
                from_holding.append(leave)
            if pod >= 0:
                program.loads["uplink_in", pod].append((enter, 1.0))
                program.loads["uplink_out", pod].append((leave, 1.0))
            if fed[pod] and pod not in holding:
                program.at_least([(enter, 1.0)], self.nbytes)
            made = [(x, 1.0) for domain in making[pod] for x in self.emissions[domain]]
            program.at_least([*made, (enter, 1.0), (leave, -1.0)], len(fed[pod]) * self.nbytes)
            for domain in fed[pod]:
                others = [x for other in making[pod] if other != domain for x in self.emissions[other]]
                program.at_least([*((x, 1.0) for x in others), (enter, 1.0)], self.nbytes)
        program.exactly([*entering, *leaving], 0)
        if any(domains and pod not in holding for pod, domains in fed.items()):
            program.at_least([(leave, 1.0) for leave in from_holding], self.nbytes)

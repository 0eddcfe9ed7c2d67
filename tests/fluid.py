"""All fluid flows of least payload as a linear program: the oracle of the bounds.

Written from the mathematics of docs/mathematics.md, one tree of transfers per class and point of entry,
without the planner's cuts, prices or programs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
from oracle import domains_of
from scipy.optimize import linprog
from scipy.sparse import csr_array

import reshard_planner as rp
from reshard_planner.demand import Demand

Terms = list[tuple[float, int]]

FASTEST = 1e6
"""Rate at which ports are cut off, in units of size over units of time."""

LEAST_UNITS = 1e-2
"""Units of time from which on a result counts: a port that is cut off could carry 10,000 units of size."""


def nic_groups(topology: rp.Topology) -> dict[int, tuple[int, int]]:
    """Group and its rate of every GPU, for topologies whose NICs are shared by equal sets of GPUs only."""
    rate: dict[tuple[int, ...], int] = defaultdict(int)
    for nic in topology.nics:
        rate[nic.gpus] += nic.link.bytes_per_s
    return {gpu: (number, total) for number, (gpus, total) in enumerate(rate.items()) for gpu in gpus}


class Program:
    """A linear program that minimises the time, built row by row; variable 0 is the time.

    Solvers work with absolute tolerances and refuse numbers that are too far apart. So sizes are in units of
    the largest class and times in units that are right when the least time is about 1.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.count = 1
        self.rows: list[tuple[Terms, float]] = []
        self.loads: dict[tuple[str, int], Terms] = defaultdict(list)

    def var(self, *ports: tuple[str, int]) -> int:
        """A number of bytes that pass some ports."""
        self.count += 1
        for port in ports:
            self.loads[port].append((1.0, self.count - 1))
        return self.count - 1

    def at_least(self, terms: Iterable[tuple[float, int]], limit: float) -> None:
        self.rows.append(([(-factor, number) for factor, number in terms], -limit / self.nbytes))

    def least_time(self, rates: dict[tuple[str, int], int]) -> float:
        """The optimum, in seconds: solved in units of seconds that shrink to the time found.

        The first unit is no less than the optimum, for all bytes fit within it even if the slowest port of
        all carries them alone; a port that is cut off takes longer than it would, so that no time found is
        less than the optimum.
        """
        if not self.rows:
            return 0.0
        every = sum(abs(limit) for _, limit in self.rows) * self.nbytes
        unit = every / min(rates[port] for port in self.loads)
        while True:
            time = self.solve({port: rates[port] * unit / self.nbytes for port in self.loads})
            if time > LEAST_UNITS:
                return time * unit
            unit *= time

    def solve(self, rates: dict[tuple[str, int], float]) -> float:
        """The optimum with rates in units of size over units of time."""
        ports = list(self.loads)
        rows, columns, factors = [], [], []
        for at, (row, _) in enumerate(self.rows):
            rows += [at] * len(row)
            columns += [number for _, number in row]
            factors += [factor for factor, _ in row]
        for at, port in enumerate(ports, len(self.rows)):
            terms = [(-min(FASTEST, rates[port]), 0), *self.loads[port]]
            rows += [at] * len(terms)
            columns += [number for _, number in terms]
            factors += [factor for factor, _ in terms]
        shape = (len(self.rows) + len(ports), self.count)
        matrix = csr_array((factors, (rows, columns)), shape=shape)
        limits = [*(limit for _, limit in self.rows), *([0.0] * len(ports))]
        cost = np.zeros(self.count)
        cost[0] = 1
        result = linprog(cost, A_ub=matrix, b_ub=limits, method="highs")
        assert result.success, result.message
        return float(result.fun)


class Fluid:
    """All fluid flows of least payload over NICs, NVLink ports and uplinks.

    Bytes that enter a domain at one rank, or that its holders have, form a tree over NVLink: every needer is
    reached, the first transfer leaves one that has them, and a helper that is told besides may send them on
    to everybody. A rank emits what it has, each byte at most once per copy; a holding domain emits first.
    Without proxies only ranks that hold or need the bytes take part, if one of them has a NIC.
    """

    def __init__(self, spec: rp.ReshardSpec, demands: Sequence[Demand], *, proxies: bool) -> None:
        topology = spec.topology
        self.spec, self.proxies = spec, proxies
        self.domain_of = domains_of(topology)
        self.nic: dict[int, int] = {}
        self.rates: dict[tuple[str, int], int] = {}
        for gpu, (group, rate) in nic_groups(topology).items():
            self.nic[gpu] = group
            self.rates["nic in", group] = self.rates["nic out", group] = rate
        for domain in topology.domains:
            for gpu in domain.gpus:
                self.rates["nvlink in", gpu] = self.rates["nvlink out", gpu] = domain.link.bytes_per_s
        for number, pod in enumerate(topology.pods):
            self.rates["pod in", number] = self.rates["pod out", number] = pod.uplink.bytes_per_s
        self.pod_of = {domain: number for number, pod in enumerate(topology.pods) for domain in pod.domains}
        self.program = Program(max((demand.nbytes for demand in demands), default=1))
        for demand in demands:
            self.add(demand)

    def least_time(self) -> float:
        return self.program.least_time(self.rates)

    def inside(self, ranks: Iterable[int], domain: int) -> list[int]:
        return [rank for rank in ranks if self.domain_of[rank] == domain]

    def tree(self, known: list[int], reached: list[int], helpers: list[int], amount: int) -> dict[int, int]:
        """Bring a variable number of bytes to all that are to be reached; how much each helper is told."""
        program = self.program
        told = {rank: program.var(("nvlink in", rank)) for rank in helpers}
        for rank in reached:
            program.at_least([(1, program.var(("nvlink in", rank))), (-1, amount)], 0)
        if not reached and not helpers:
            return told
        outs = {rank: program.var(("nvlink out", rank)) for rank in (*known, *reached, *helpers)}
        leaving: Terms = [(1.0, outs[rank]) for rank in known]
        arriving: Terms = [(-1.0, u) for u in told.values()]
        program.at_least([*((1.0, o) for o in outs.values()), *arriving, (-len(reached), amount)], 0)
        if reached:
            program.at_least([*leaving, (-1, amount)], 0)
        for rank, u in told.items():
            program.at_least([(1, amount), (-1, u)], 0)
            program.at_least([*leaving, (-1, u)], 0)
            program.at_least([(len(reached), u), (-1, outs[rank])], 0)
            program.at_least([*((1.0, o) for other, o in outs.items() if other != rank), (-1, u)], 0)
        return told

    def add(self, demand: Demand) -> None:
        program, nbytes, copies = self.program, demand.nbytes, len(demand.needing_domains)
        emitted: dict[int, Terms] = defaultdict(list)
        first: Terms = []

        def emit(rank: int, had: int, times: int) -> None:
            """Emit what the rank has, each byte so many times; only one of them is the first emission."""
            x = program.var(("nic out", self.nic[rank]))
            emitted[self.domain_of[rank]].append((1.0, x))
            program.at_least([(times, had), (-1, x)], 0)
            if self.domain_of[rank] in demand.holder_domains:
                first.append((1.0, program.var()))
                for limit in (x, had):
                    program.at_least([(1, limit), (-1, first[-1][1])], 0)

        for domain in demand.needing_domains:
            needers, ranks = self.inside(demand.needers, domain), self.inside(self.spec.ranks, domain)
            takers = [rank for rank in ranks if rank in self.nic]
            if not self.proxies and set(takers) & set(needers):
                takers = [rank for rank in takers if rank in needers]
            entries = {}
            for entry in takers:
                y = entries[entry] = program.var(("nic in", self.nic[entry]))
                reached = [rank for rank in needers if rank != entry]
                others = [rank for rank in ranks if rank not in needers and rank != entry]
                told = self.tree([entry], reached, others if self.proxies else [], y)
                for rank in ranks if copies > 1 else ():
                    if rank in self.nic and (rank in needers or rank == entry):
                        emit(rank, y, copies - 1)
                    elif rank in self.nic and rank in told:
                        emit(rank, told[rank], copies - 1)
            program.at_least([(1, y) for y in entries.values()], nbytes)
        part = [*demand.holders, *(r for r in demand.needers if self.domain_of[r] in demand.holder_domains)]
        helped = self.proxies or not any(rank in self.nic for rank in part)
        for domain in demand.holder_domains:
            held, ranks = self.inside(demand.holders, domain), self.inside(self.spec.ranks, domain)
            reached = [rank for rank in self.inside(demand.needers, domain) if rank not in held]
            if not copies and not reached:
                continue
            others = [rank for rank in ranks if rank not in held and rank not in reached]
            all_bytes = program.var()
            program.at_least([(1, all_bytes)], nbytes)
            program.at_least([(-1, all_bytes)], -nbytes)
            told = self.tree(held, reached, others if helped else [], all_bytes)
            for rank in ranks if copies else ():
                if rank in self.nic and (rank in held or rank in reached):
                    emit(rank, all_bytes, copies)
                elif rank in self.nic and rank in told:
                    emit(rank, told[rank], copies)
        if copies:
            program.at_least(first, nbytes)
            program.at_least([x for terms in emitted.values() for x in terms], copies * nbytes)
            self.cross(demand, emitted)

    def cross(self, demand: Demand, emitted: dict[int, Terms]) -> None:
        """Copies from domain to domain, and over the uplinks of pods; a domain in none is one of its own.

        Every byte goes at least once from a holding domain to one that lacks it.
        """
        program, nbytes = self.program, demand.nbytes
        pod_of = {d: self.pod_of.get(d, -1 - d) for d in (*demand.holder_domains, *demand.needing_domains)}
        holding = {pod_of[domain] for domain in demand.holder_domains}
        made: dict[int, Terms] = defaultdict(list)
        entering: dict[int, Terms] = defaultdict(list)
        leaving: Terms = []
        given: Terms = []
        for target in demand.needing_domains:
            fed: Terms = []
            there = pod_of[target]
            for source, here in pod_of.items():
                if source == target:
                    continue
                crosses = [("pod out", here)] * (here >= 0) + [("pod in", there)] * (there >= 0)
                z = program.var(*(crosses if here != there else ()))
                fed.append((1.0, z))
                made[source].append((-1.0, z))
                if source in demand.holder_domains:
                    given.append((1.0, z))
                if here != there:
                    entering[there].append((1.0, z))
                    if here in holding and there not in holding:
                        leaving.append((1.0, z))
            program.at_least(fed, nbytes)
        program.at_least(given, nbytes)
        for source in pod_of:
            program.at_least([*emitted[source], *made[source]], 0)
        for pod in {pod_of[domain] for domain in demand.needing_domains} - holding:
            program.at_least(entering[pod], nbytes)
            program.at_least(leaving, nbytes)

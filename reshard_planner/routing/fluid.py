"""The fluid optimum: how much of every class each rank takes in, emits, relays and fans out.

A linear program over the ports, for specs that are small enough. Classes with equal holders and needers are
one *type*. Formulas: docs/mathematics.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from reshard_planner.atoms import Ranks
from reshard_planner.capacities import Capacities
from reshard_planner.demand import Demand, group_by_domain
from reshard_planner.routing.problem import Problem

MAX_VARIABLES = 30_000
"""Variables up to which the program is solved; it then takes at most a second or two."""

SLACK = 1.002
"""Ratio to the least time within which the cheapest solution is taken."""

RELAY_COST, PROXY_COST, HELPER_COST = 1.0, 4.0, 0.1
"""Costs per byte relayed, handed to or from a neighbour's NIC, and fanned out by others than the receiver:
they only choose among solutions of equal time."""

NEGLIGIBLE = 1e-9
"""Amounts below this share of the largest class are rounding."""

Amounts = dict[int, float]
"""Bytes per rank."""


@dataclass(frozen=True, slots=True)
class Flow:
    """What the optimum does with one type; amounts are in bytes.

    Attributes:
        holders: ranks that have the bytes.
        needers: ranks that must have them.
        nbytes: bytes of all classes of the type.
        received: per domain in need, what each rank takes in over the network.
        relayed: per domain in need, what each rank relays over the network.
        emitted: what holders, their neighbours and proxies emit over the network.
        fanned: per domain with needers that are no holders, what each rank sends over NVLink.
    """

    holders: Ranks
    needers: Ranks
    nbytes: int
    received: dict[int, Amounts]
    relayed: dict[int, Amounts]
    emitted: Amounts
    fanned: dict[int, Amounts]


Variables = dict[int, int]
"""Variable of each rank."""


@dataclass(frozen=True, slots=True)
class _Type:
    """The variables of one type; attributes as in :class:`Flow`."""

    holders: Ranks
    needers: Ranks
    nbytes: int
    received: dict[int, Variables] = field(default_factory=dict)
    relayed: dict[int, Variables] = field(default_factory=dict)
    emitted: Variables = field(default_factory=dict)
    fanned: dict[int, Variables] = field(default_factory=dict)

    def flow(self, values: Sequence[float], least: float) -> Flow:
        """What the variables stand for; values up to ``least`` count as none."""

        def amounts(variables: Variables) -> Amounts:
            return {rank: values[at] for rank, at in variables.items() if values[at] > least}

        per_domain = (
            {domain: amounts(variables) for domain, variables in column.items()}
            for column in (self.received, self.relayed, self.fanned)
        )
        received, relayed, fanned = per_domain
        return Flow(self.holders, self.needers, self.nbytes, received, relayed, amounts(self.emitted), fanned)


def find_flows(problem: Problem, proxy_domains: frozenset[int]) -> list[Flow] | None:
    """The optimum of every type that moves; None if the program is too large or has no solution.

    Args:
        problem: what is compiled.
        proxy_domains: domains in which ranks that neither hold nor need the bytes may take part.
    """
    program = _Program(problem, proxy_domains)
    if program.width > MAX_VARIABLES:
        return None
    return program.solve()


def types_of(demands: Iterable[Demand]) -> dict[tuple[Ranks, Ranks], int]:
    """Bytes of all classes per (holders, needers), in order of first appearance."""
    sums: dict[tuple[Ranks, Ranks], int] = {}
    for demand in demands:
        key = (demand.holders, demand.needers)
        sums[key] = sums.get(key, 0) + demand.nbytes
    return sums


class _Program:
    """Variables and constraints; variable 0 is the time."""

    def __init__(self, problem: Problem, proxy_domains: frozenset[int]) -> None:
        self.capacities = Capacities(problem.ports, problem.spec.ranks)
        self.unit = float(max(1, max((demand.nbytes for demand in problem.demands), default=1)))
        self.width = 1
        self.cost: list[float] = [0.0]
        self.equal: list[tuple[dict[int, float], float]] = []
        self.most: list[tuple[dict[int, float], float]] = []
        self.port_loads: dict[tuple[str, int], dict[int, float]] = {}
        self.port_fixed: dict[tuple[str, int], float] = {}
        self.proxy_domains = proxy_domains
        self.types: list[_Type] = []
        for (holders, needers), nbytes in types_of(problem.demands).items():
            self._add_type(holders, needers, nbytes)
            if self.width > MAX_VARIABLES:
                return
        self._close_ports()

    def _variable(self, variables: Variables, rank: int, cost: float = 0.0) -> int:
        self.width += 1
        self.cost.append(cost)
        variables[rank] = self.width - 1
        return self.width - 1

    def _load(self, port: str, number: int, variable: int, factor: float = 1.0) -> None:
        loads = self.port_loads.setdefault((port, number), {})
        loads[variable] = loads.get(variable, 0.0) + factor

    def _fix(self, port: str, number: int, amount: float) -> None:
        self.port_loads.setdefault((port, number), {})
        self.port_fixed[port, number] = self.port_fixed.get((port, number), 0.0) + amount

    def _add_type(self, holders: Ranks, needers: Ranks, nbytes: int) -> None:
        held = set(holders)
        domain_of = self.capacities.domain_of
        needers_in, holding = group_by_domain(needers, domain_of), group_by_domain(holders, domain_of)
        needing = [domain for domain in needers_in if domain not in holding]
        kind = _Type(holders, needers, nbytes)
        self.types.append(kind)
        size = nbytes / self.unit
        handed: dict[int, list[int]] = {}
        if needing:
            handed = self._add_crossing(kind, needers_in, holding, needing, size)
        for domain, ranks in holding.items():
            lacking = [rank for rank in needers_in.get(domain, ()) if rank not in held]
            if lacking or handed.get(domain):
                sends = kind.fanned.setdefault(domain, {})
                for rank in (*ranks, *lacking):
                    self._variable(sends, rank, 0.0 if rank in held else HELPER_COST)
                total = dict.fromkeys(sends.values(), 1.0)
                total.update(dict.fromkeys(handed.get(domain, ()), -1.0))
                self.equal.append((total, size * len(lacking)))
                if lacking:
                    self.most.append(({sends[rank]: -1.0 for rank in ranks}, -size))
                for rank, variable in sends.items():
                    self._load("nvlink out", rank, variable)
                for rank in lacking:
                    self._fix("nvlink in", rank, size)

    def _add_crossing(
        self,
        kind: _Type,
        needers_in: dict[int, Ranks],
        holding: dict[int, Ranks],
        needing: list[int],
        size: float,
    ) -> dict[int, list[int]]:
        """Add receptions, emissions and relays; returns the variables of proxies that emit, per domain."""
        copies = len(needing)
        held = set(kind.holders)
        firsts: dict[int, float] = {}
        emissions: dict[int, float] = {}
        handed: dict[int, list[int]] = {}
        for domain, ranks in holding.items():
            near = [rank for rank in needers_in.get(domain, ()) if rank not in held]
            known = {*ranks, *near}
            proxies = (
                [r for r in self.capacities.ranks[domain] if r not in known]
                if domain in self.proxy_domains
                else []
            )
            for rank in (*ranks, *near, *proxies):
                if self.capacities.nic_group[rank] < 0:
                    continue
                proxy = rank not in known
                variable = self._variable(kind.emitted, rank, PROXY_COST if proxy else 0.0)
                firsts[variable] = -1.0
                emissions[variable] = 1.0
                self._load("nic out", self.capacities.nic_group[rank], variable)
                if proxy:
                    handed.setdefault(domain, []).append(variable)
                    self._load("nvlink in", rank, variable)
        for domain in needing:
            self._add_domain(kind, domain, needers_in[domain], copies, size, emissions)
        self.most.append((firsts, -size))
        self.equal.append((emissions, size * copies))
        return handed

    def _add_domain(
        self,
        kind: _Type,
        domain: int,
        needers: Ranks,
        copies: int,
        size: float,
        emissions: dict[int, float],
    ) -> None:
        """Add what one domain in need takes in, relays and fans out."""
        needing = set(needers)
        proxies = (
            [r for r in self.capacities.ranks[domain] if r not in needing]
            if domain in self.proxy_domains
            else []
        )
        received = kind.received.setdefault(domain, {})
        relayed = kind.relayed.setdefault(domain, {})
        fanned = kind.fanned.setdefault(domain, {})
        reception: dict[int, float] = {}
        sent: dict[int, float] = {}
        for rank in needers:
            self._fix("nvlink in", rank, size)
        for rank in (*needers, *proxies):
            proxy = rank not in needing
            alone = len(needers) == 1 and not proxy
            send = None
            if not alone and len(needers) + proxy > 1:
                send = self._variable(fanned, rank)
                sent[send] = 1.0
                self._load("nvlink out", rank, send)
            group = self.capacities.nic_group[rank]
            if group < 0:
                if send is not None:
                    self.cost[send] = HELPER_COST
                continue
            take = self._variable(received, rank, PROXY_COST if proxy else 0.0)
            reception[take] = 1.0
            self._load("nic in", group, take)
            if not proxy:
                self._load("nvlink in", rank, take, -1.0)
                sent[take] = 1.0  # what it takes in itself, no neighbour sends it
            if send is not None:
                self.most.append(({take: 1.0, send: -1.0}, 0.0))
                self._help(send, take, len(needers) if proxy else len(needers) - 1)
            if copies > 1:
                relay = self._variable(relayed, rank, RELAY_COST)
                self.most.append(({relay: 1.0, take: 1.0 - copies}, 0.0))
                emissions[relay] = 1.0
                self._load("nic out", group, relay)
        self.equal.append((reception, size))
        self.equal.append((sent, size * len(needers)))

    def _help(self, send: int, take: int, copies: int) -> None:
        """Count what a rank fans out beyond what it took in itself."""
        self.width += 1
        self.cost.append(HELPER_COST)
        self.most.append(({send: 1.0, take: -float(copies), self.width - 1: -1.0}, 0.0))

    def _close_ports(self) -> None:
        """Nothing takes longer than the time."""
        for (port, number), loads in self.port_loads.items():
            rates = self.capacities.nic_rate if port.startswith("nic") else self.capacities.nvlink
            row = dict(loads)
            row[0] = -rates[number] / self.unit
            self.most.append((row, -self.port_fixed.get((port, number), 0.0)))

    def solve(self) -> list[Flow] | None:
        """Least time first, then least cost within that time."""
        from scipy.optimize import linprog  # noqa: PLC0415 - slow to import

        rates = [rate for rate in (*self.capacities.nic_rate, *self.capacities.nvlink) if rate]
        scale = self.unit / max(rates, default=1)  # seconds of one unit of bytes at the fastest port
        equal, equals = _rows(self.equal, self.width, scale)
        most, mosts = _rows(self.most, self.width, scale)
        first = np.zeros(self.width)
        first[0] = 1.0
        given = {"A_ub": most, "b_ub": mosts, "A_eq": equal, "b_eq": equals, "method": "highs"}
        least = linprog(first, bounds=(0, None), **given)
        if least.status != 0:
            return None
        bounds = np.zeros((self.width, 2))
        bounds[:, 1] = np.inf
        bounds[0] = (0, least.x[0] * SLACK)
        cheapest = linprog(np.array(self.cost), bounds=bounds, **given)
        values = ((least if cheapest.status != 0 else cheapest).x * self.unit).tolist()
        return [kind.flow(values, self.unit * NEGLIGIBLE) for kind in self.types]


def _rows(
    rows: Sequence[tuple[dict[int, float], float]], width: int, scale: float
) -> tuple[object | None, np.ndarray | None]:
    from scipy.sparse import csr_array  # noqa: PLC0415 - slow to import

    if not rows:
        return None, None
    counts = [len(entries) for entries, _ in rows]
    columns = np.array([column for entries, _ in rows for column in entries], dtype=np.int64)
    values = np.array([value for entries, _ in rows for value in entries.values()])
    values[columns == 0] *= scale
    pointer = np.concatenate(([0], np.cumsum(counts)))
    matrix = csr_array((values, columns, pointer), shape=(len(rows), width))
    return matrix, np.array([most for _, most in rows])

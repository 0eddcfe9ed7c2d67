"""Packing trees: how many bytes go along which tree, where uplinks of pods are ports too.

The least time over all trees is a linear program with a variable per tree, of which few are ever used. It
starts with one tree per type; its dual values price the ports, and the cheapest trees at these prices join
it, until none is cheaper than those it has (column generation). Classes with equal holders and needers are
one *type*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from reshard_planner.atoms import Ranks
from reshard_planner.capacities import Capacities
from reshard_planner.routing.fluid import types_of
from reshard_planner.routing.pricing import Port, Prices, TreePricer, ports_of
from reshard_planner.routing.problem import Problem
from reshard_planner.routing.trees import Transfer

MAX_SIZE = 20_000
"""Types, each with the square of its domains and its ranks, up to which trees are packed."""

MAX_ROUNDS = 200
"""Times that prices are found at most."""

CLOSE = 1.001
"""Ratio to the least time at which no further trees are sought."""

NEGLIGIBLE = 1e-4
"""Share of a type below which a tree is left out."""

RELAY_PRICE = 1e-4
"""Price of all relayed copies together against that of all time: it only chooses among equal trees."""

SMOOTHING = 0.5
"""Share of the best prices so far in those that trees are sought at."""

ROUNDING = 1e-9
"""Difference of prices that counts as none."""

Tree = tuple[Transfer, ...]


@dataclass(frozen=True, slots=True)
class Packing:
    """The trees of one type.

    Attributes:
        holders: ranks that have the bytes.
        needers: ranks that must have them.
        trees: the trees.
        starts: where the bytes of each tree begin, counted through those of the type.
    """

    holders: Ranks
    needers: Ranks
    trees: tuple[Tree, ...]
    starts: tuple[float, ...]

    @property
    def cuts(self) -> tuple[float, ...]:
        """Where the tree changes."""
        return self.starts[1:]

    def tree(self, position: float) -> Tree:
        """The tree of the bytes at a position."""
        return self.trees[max(0, int(np.searchsorted(self.starts, position, side="right")) - 1)]


def pack_trees(problem: Problem, proxy_domains: frozenset[int], time_s: float) -> list[Packing] | None:
    """Trees of every type that together take about the least time; None if that cannot be found.

    Args:
        problem: what is compiled.
        proxy_domains: domains in which ranks that neither hold nor need the bytes may take part.
        time_s: least time, at which the search ends, in seconds.
    """
    capacities = Capacities(problem.ports, problem.spec.ranks)
    types = types_of(problem.demands)
    size = 0
    for holders, needers in types:
        domains = {capacities.domain_of[rank] for rank in (*holders, *needers)}
        size += len(domains) ** 2 + len(holders) + len(needers)
        if size > MAX_SIZE:
            return None
    pricers = [TreePricer(capacities, *ranks, proxy_domains) for ranks in types]
    if not all(pricer.possible for pricer in pricers) or time_s <= 0:
        return None
    packer = _Packer(capacities, pricers, list(types.values()), time_s)
    packer.improve()
    if not packer.values:
        return None
    return [
        _lay_out(*ranks, nbytes, found)
        for (ranks, nbytes), found in zip(types.items(), packer.shares(), strict=True)
    ]


def _lay_out(holders: Ranks, needers: Ranks, nbytes: int, shares: dict[Tree, float]) -> Packing:
    kept = {tree: share for tree, share in shares.items() if share > NEGLIGIBLE}
    total = sum(kept.values())
    starts = accumulate((share / total * nbytes for share in kept.values()), initial=0.0)
    return Packing(holders, needers, tuple(kept), tuple(starts)[: len(kept)])


@dataclass(frozen=True, slots=True)
class _Solution:
    """The least time with some trees.

    Attributes:
        time: the time.
        prices: of the ports.
        least: per type, the price below which a further tree makes the time shorter.
    """

    time: float
    prices: Prices
    least: list[float]


class _Packer:
    """The linear program; times are relative to the least one."""

    def __init__(
        self, capacities: Capacities, pricers: Sequence[TreePricer], nbytes: Sequence[int], time_s: float
    ) -> None:
        self.capacities = capacities
        self.pricers = pricers
        self.nbytes = nbytes
        self.time_s = time_s
        self.rates = {
            kind: rates
            for name, rates in (
                ("nic", capacities.nic_rate),
                ("nvlink", capacities.nvlink),
                ("uplink", capacities.uplink),
            )
            for kind in (f"{name}_in", f"{name}_out")
        }
        copies = sum(size * len(pricer.needing) for size, pricer in zip(nbytes, pricers, strict=True))
        self.relay_price = RELAY_PRICE / max(1, copies)
        self.known: list[dict[Tree, int]] = [{} for _ in pricers]
        self.ports: dict[Port, int] = {}
        self.type_of: list[int] = []
        self.cost: list[float] = []
        self.entries: tuple[list[int], list[int], list[float]] = ([], [], [])  # port, tree, time
        self.values: list[float] = []

    def improve(self) -> None:
        """Add trees until the time is close to the least or no tree makes it shorter."""
        even: Prices = {
            (kind, number): 1 / rate
            for kind, rates in self.rates.items()
            for number, rate in enumerate(rates)
            if rate
        }
        for kind in range(len(self.pricers)):
            self._add_cheapest(kind, even, even, np.inf)
        center, best = even, 0.0
        for _ in range(MAX_ROUNDS):
            solution = self._solve()
            if solution is None or solution.time <= CLOSE * max(1.0, best):
                break
            # prices of consecutive rounds swing; between them and the best so far lie better ones
            mixed = {
                port: SMOOTHING * center.get(port, 0.0) + (1 - SMOOTHING) * price
                for port, price in solution.prices.items()
            }
            least, added = self._add_all(mixed, solution)
            if least > best:
                center, best = mixed, least
            if not added and not self._add_all(solution.prices, solution)[1]:
                break

    def _add_all(self, prices: Prices, solution: _Solution) -> tuple[float, bool]:
        """Add the cheapest trees of all types; returns what they cost together, and whether any was new."""
        total, added = 0.0, False
        for kind, limit in enumerate(solution.least):
            price, new = self._add_cheapest(kind, prices, solution.prices, limit)
            total += price
            added |= new
        paid = sum(price * self._nbytes(port) for port, price in prices.items())
        return total / paid if paid else 0.0, added

    def shares(self) -> list[dict[Tree, float]]:
        """Per type, the share of every tree."""
        count = len(self.values) - 1  # trees of a last round that was not solved are left out
        return [{tree: self.values[at] for tree, at in known.items() if at < count} for known in self.known]

    def _add_cheapest(self, kind: int, prices: Prices, judged: Prices, limit: float) -> tuple[float, bool]:
        """Add trees that are the cheapest at some prices and cost less than ``limit`` at others.

        Returns the price of the cheapest, and whether any was new.
        """
        cheapest, added = np.inf, False
        for tree in self.pricers[kind].candidates(prices, self.relay_price):
            loads: dict[Port, int] = {}
            for transfer in tree:
                for port in ports_of(self.capacities, transfer):
                    loads[port] = loads.get(port, 0) + self.nbytes[kind]
            cost = self._relays(kind, tree) * self.relay_price * self.nbytes[kind]
            at_prices, at_judged = (
                cost + sum(given.get(port, 0.0) * load for port, load in loads.items())
                for given in (prices, judged)
            )
            cheapest = min(cheapest, at_prices)
            if tree not in self.known[kind] and at_judged < limit:
                self._add(kind, tree, cost, loads)
                added = True
        return cheapest, added

    def _nbytes(self, port: Port) -> float:
        """What a port carries in the least time."""
        return self.rates[port[0]][port[1]] * self.time_s

    def _relays(self, kind: int, tree: Tree) -> int:
        """Network copies that are not emitted where the bytes are held."""
        pricer, domain_of = self.pricers[kind], self.capacities.domain_of
        return sum(
            domain_of[src] != domain_of[dst] and domain_of[src] not in pricer.holding for src, dst, _ in tree
        )

    def _add(self, kind: int, tree: Tree, cost: float, loads: dict[Port, int]) -> None:
        number = len(self.cost)
        self.known[kind][tree] = number
        self.type_of.append(kind)
        self.cost.append(cost)
        ports, trees, values = self.entries
        for port, load in loads.items():
            ports.append(self.ports.setdefault(port, len(self.ports)))
            trees.append(number)
            values.append(load / self._nbytes(port))

    def _solve(self) -> _Solution | None:
        """The least time with the trees so far; None if the solver fails."""
        from scipy.optimize import linprog  # noqa: PLC0415 - slow to import
        from scipy.sparse import csr_array  # noqa: PLC0415 - likewise

        count, ports = len(self.cost), len(self.ports)
        rows = np.array([*self.entries[0], *range(ports)])
        columns = np.array([*self.entries[1], *([count] * ports)])  # the last variable is the time
        values = np.array([*self.entries[2], *([-1.0] * ports)])
        most = csr_array((values, (rows, columns)), shape=(ports, count + 1))
        equal = csr_array(
            (np.ones(count), (np.array(self.type_of), np.arange(count))),
            shape=(len(self.pricers), count + 1),
        )
        result = linprog(
            np.array([*self.cost, 1.0]),
            A_ub=most,
            b_ub=np.zeros(ports),
            A_eq=equal,
            b_eq=np.ones(len(self.pricers)),
            method="highs",
        )
        if result.status != 0:
            return None
        self.values = result.x.tolist()
        duals = (-result.ineqlin.marginals).tolist()
        prices = {port: max(0.0, duals[number]) / self._nbytes(port) for port, number in self.ports.items()}
        least = [value - ROUNDING * max(1.0, abs(value)) for value in result.eqlin.marginals.tolist()]
        return _Solution(self.values[-1], prices, least)

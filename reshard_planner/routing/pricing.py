"""The tree of least price for one type, if every byte over a port has a price.

A tree brings a byte from its holders to all its needers: network transfers from domain to domain, and NVLink
transfers within each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reshard_planner.atoms import Ranks
from reshard_planner.capacities import Capacities
from reshard_planner.demand import group_by_domain
from reshard_planner.errors import UnsupportedError
from reshard_planner.routing.arborescence import ROOT_NODE, cheapest_parents
from reshard_planner.routing.trees import Transfer
from reshard_planner.transfer import Medium

ROUNDING = 1e-9
"""Share of a price that counts as none."""

Port = tuple[str, int]
"""Kind of port with its direction, and its number: NIC group, rank or pod."""

Prices = dict[Port, float]
"""Price of a byte over a port; ports that are missing are free."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How copies leave a domain once it has the byte.

    Attributes:
        emitter: rank that emits them.
        price: price of each copy.
        handoff: transfer that it gets the byte with if it is a proxy; else None.
    """

    emitter: int
    price: float
    handoff: Transfer | None


@dataclass(frozen=True, slots=True)
class Entry:
    """How a byte gets into a domain in need, and from there on.

    Attributes:
        receiver: rank that takes it in.
        transfers: how the needers of the domain get it.
        leave: how it would be relayed.
    """

    receiver: int
    transfers: tuple[Transfer, ...]
    leave: Exit


class TreePricer:
    """Finds cheap trees for one type."""

    def __init__(
        self, capacities: Capacities, holders: Ranks, needers: Ranks, proxy_domains: frozenset[int]
    ) -> None:
        """Sort the ranks by domain.

        Args:
            capacities: ports.
            holders: ranks that have the bytes.
            needers: ranks that must have them.
            proxy_domains: domains in which ranks that neither hold nor need the bytes may take part.
        """
        self.capacities = capacities
        held = set(holders)
        self.holding = group_by_domain(holders, capacities.domain_of)
        needing = group_by_domain(needers, capacities.domain_of)
        self.needing = {domain: ranks for domain, ranks in needing.items() if domain not in self.holding}
        self.lacking = {
            domain: tuple(rank for rank in needing.get(domain, ()) if rank not in held)
            for domain in self.holding
        }
        self.proxies = {
            domain: self._with_nic(
                rank for rank in capacities.ranks[domain] if rank not in held and rank not in set(needers)
            )
            for domain in (*self.holding, *self.needing)
            if domain in proxy_domains
        }
        self.emitters = {
            domain: self._with_nic((*ranks, *self.lacking[domain])) for domain, ranks in self.holding.items()
        }

    @property
    def possible(self) -> bool:
        """Whether there is any tree: someone can emit, and someone in every domain in need take in."""
        if not self.needing:
            return True
        emits = any(self.emitters[domain] or self.proxies.get(domain) for domain in self.holding)
        return emits and all(
            self._with_nic(ranks) or self.proxies.get(domain) for domain, ranks in self.needing.items()
        )

    def candidates(self, prices: Prices, relay_price: float) -> Iterable[tuple[Transfer, ...]]:
        """Trees of nearly the least price, one of which is the cheapest where nobody is a proxy.

        Args:
            prices: prices of the ports.
            relay_price: price of a relayed copy, beyond those of the ports.
        """
        fans: list[Transfer] = []
        for domain, ranks in self.holding.items():
            fans.extend(self._fan_out(domain, ranks, self.lacking[domain], prices))
        # a proxy gets the byte once, however many copies it emits: counted for every copy, and for none
        for handed in (1.0, 0.0) if self.proxies and self.needing else (1.0,):
            entries = {domain: self._enter(domain, prices, handed) for domain in self.needing}
            exits = {
                domain: found
                for domain, ranks in self.holding.items()
                if (found := self._leave(domain, (*ranks, *self.lacking[domain]), prices, handed)) is not None
            }
            yield tuple(self._connect(fans, entries, exits, prices, relay_price))

    def _with_nic(self, ranks: Iterable[int]) -> Ranks:
        return tuple(rank for rank in ranks if self.capacities.nic_group[rank] >= 0)

    def _nic(self, direction: str, rank: int) -> Port:
        return (f"nic_{direction}", self.capacities.nic_group[rank])

    def _enter(self, domain: int, prices: Prices, handed: float) -> Entry:
        needers = self.needing[domain]
        near = self._with_nic(needers)
        best: tuple[float, int, list[Transfer]] | None = None
        for rank in (*near, *self.proxies.get(domain, ())):
            others = tuple(other for other in needers if other != rank)
            fan = self._fan_out(domain, (rank,), others, prices)
            price = prices.get(self._nic("in", rank), 0.0) + sum(
                prices.get(port, 0.0) for transfer in fan for port in nvlink_ports(transfer)
            )
            if best is None or price < best[0]:
                best = (price, rank, fan)
        if best is None:
            raise UnsupportedError(f"no rank of domain {domain} that may take part has a NIC")
        _, receiver, transfers = best
        having = (receiver, *(rank for rank in needers if rank != receiver))
        leave = self._leave(domain, having, prices, handed)
        if leave is None:
            raise UnsupportedError(f"no rank of domain {domain} that may take part has a NIC")
        return Entry(receiver, tuple(transfers), leave)

    def _leave(self, domain: int, having: Ranks, prices: Prices, handed: float) -> Exit | None:
        """The cheapest way out of a domain; ``handed`` is the share of a handoff that a copy pays for."""
        best: Exit | None = None
        for rank in self._with_nic(having):
            price = prices.get(self._nic("out", rank), 0.0)
            if best is None or price < best.price:
                best = Exit(rank, price, None)
        feeder = min(having, key=lambda other: prices.get(("nvlink_out", other), 0.0))
        for rank in self.proxies.get(domain, ()):
            if rank in having:
                continue
            handoff = (feeder, rank, Medium.NVLINK)
            price = prices.get(self._nic("out", rank), 0.0) + handed * sum(
                prices.get(port, 0.0) for port in nvlink_ports(handoff)
            )
            if best is None or price < best.price:
                best = Exit(rank, price, handoff)
        return best

    def _fan_out(self, domain: int, seeds: Ranks, waiting: Ranks, prices: Prices) -> list[Transfer]:
        """Send from ranks that have the byte to others; the first one served may serve the rest."""
        if not waiting:
            return []

        def out(rank: int) -> float:
            return prices.get(("nvlink_out", rank), 0.0)

        root, helper = min(seeds, key=out), min(waiting, key=out)
        sender = helper if out(helper) < out(root) else root
        first, rest = helper, len(waiting) - 1
        least = out(root) + rest * out(sender)
        for proxy in self.proxies.get(domain, ()):
            price = out(root) + prices.get(("nvlink_in", proxy), 0.0) + len(waiting) * out(proxy)
            if proxy not in seeds and price < least * (1 - ROUNDING):
                least, first, sender = price, proxy, proxy
        served = ((sender, rank, Medium.NVLINK) for rank in waiting if rank != first)
        return [(root, first, Medium.NVLINK), *served]

    def _connect(
        self,
        fans: Sequence[Transfer],
        entries: dict[int, Entry],
        exits: dict[int, Exit],
        prices: Prices,
        relay_price: float,
    ) -> Iterable[Transfer]:
        """Network transfers of least price, each followed by those within the domain that it feeds."""
        yield from fans
        if not entries:
            return
        had = {dst for _, dst, _ in fans}
        domains = list(entries)
        feeding = [
            min(exits, key=lambda holding: exits[holding].price + self._uplinks(holding, domain, prices))
            for domain in domains
        ]
        cost = [[0.0] * (len(domains) + 1) for _ in range(len(domains) + 1)]
        for column, (domain, holding) in enumerate(zip(domains, feeding, strict=True), start=1):
            cost[0][column] = exits[holding].price + self._uplinks(holding, domain, prices)
            for row, other in enumerate(domains, start=1):
                cost[row][column] = (
                    relay_price + entries[other].leave.price + self._uplinks(other, domain, prices)
                )
        parents = cheapest_parents(cost)
        reached = [ROOT_NODE]
        for above in reached:
            for node in range(1, len(parents)):
                if parents[node] != above:
                    continue
                entry = entries[domains[node - 1]]
                leave = exits[feeding[node - 1]] if above == ROOT_NODE else entries[domains[above - 1]].leave
                if leave.handoff is not None and leave.emitter not in had:
                    had.add(leave.emitter)
                    yield leave.handoff
                yield (leave.emitter, entry.receiver, Medium.NETWORK)
                yield from entry.transfers
                had.update(dst for _, dst, _ in entry.transfers)
                reached.append(node)

    def _uplinks(self, src: int, dst: int, prices: Prices) -> float:
        return sum(prices.get(port, 0.0) for port in uplink_ports(self.capacities, src, dst))


def nvlink_ports(transfer: Transfer) -> tuple[Port, Port]:
    """The ports of a transfer over NVLink."""
    return ("nvlink_out", transfer[0]), ("nvlink_in", transfer[1])


def uplink_ports(capacities: Capacities, src: int, dst: int) -> list[Port]:
    """The uplinks between two domains."""
    leaves, enters = capacities.pod_of.get(src, -1), capacities.pod_of.get(dst, -1)
    if leaves == enters:
        return []
    ports = (("uplink_out", leaves), ("uplink_in", enters))
    return [port for port in ports if port[1] >= 0]


def ports_of(capacities: Capacities, transfer: Transfer) -> Sequence[Port]:
    """All ports that a transfer loads."""
    src, dst, medium = transfer
    if medium == Medium.NVLINK:
        return nvlink_ports(transfer)
    nics = [("nic_out", capacities.nic_group[src]), ("nic_in", capacities.nic_group[dst])]
    return [*nics, *uplink_ports(capacities, capacities.domain_of[src], capacities.domain_of[dst])]

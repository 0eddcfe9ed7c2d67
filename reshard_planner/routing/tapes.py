"""Tapes: the fluid optimum of one type laid out along its bytes.

Relays take the first stretches of the tape, one each: a holder feeds the relay, which feeds all other domains
in need. Of the rest, holders emit every copy. Receivers and emitters follow one another along the tape, each
for its amount. So two network transfers in a row always suffice, and the tree rarely changes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from reshard_planner.routing.fluid import Amounts, Flow
from reshard_planner.routing.problem import Problem
from reshard_planner.routing.trees import Transfer
from reshard_planner.transfer import Medium

NEGLIGIBLE = 1e-6
"""Share of a type below which a stretch of its tape is dropped."""


@dataclass(frozen=True, slots=True)
class Stretches:
    """Ranks along a tape: rank ``ranks[i]`` from ``starts[i]`` to the next start."""

    starts: tuple[float, ...]
    ranks: tuple[int, ...]

    def at(self, position: float) -> int:
        """The rank at a position."""
        return self.ranks[max(0, bisect_right(self.starts, position) - 1)]


def lay_out(amounts: Iterable[tuple[int, float]], least: float) -> Stretches:
    """Put ranks one after another, each for its amount; amounts below ``least`` are left out."""
    kept = [(rank, amount) for rank, amount in amounts if amount > least]
    starts = accumulate((amount for _, amount in kept), initial=0.0)
    return Stretches(
        tuple(start for (_, start) in zip(kept, starts, strict=False)), tuple(r for r, _ in kept)
    )


class FlowTape:
    """The tape of one type: where it is cut, and the tree at each position."""

    def __init__(self, problem: Problem, flow: Flow) -> None:
        self.flow = flow
        self.holders, self.needers = flow.holders, flow.needers
        self.length = float(flow.nbytes)
        self.domain_of = problem.ports.domain.tolist()
        least = self.length * NEGLIGIBLE
        self.domains = sorted(flow.received)
        copies = len(self.domains)
        self.held = set(flow.holders)
        self.known = {*flow.holders, *flow.needers}
        relays = [
            (domain, rank, amount / (copies - 1))
            for domain in self.domains
            for rank, amount in sorted(flow.relayed[domain].items())
            if amount > least * (copies - 1)
        ]
        self.relays = lay_out(((number, share) for number, (_, _, share) in enumerate(relays)), 0.0)
        self.relay_of = [(domain, rank) for domain, rank, _ in relays]
        self.relayed = min(self.length, sum(share for _, _, share in relays))
        self.receivers = {domain: self._receive(domain, relays, least) for domain in self.domains}
        self.emitters = lay_out(_front(flow.emitted, self.held), least)
        fanned = {domain: amounts for domain, amounts in flow.fanned.items() if amounts}
        self.holder_fans = {
            domain: _HolderFan(self, domain, amounts, least)
            for domain, amounts in fanned.items()
            if domain not in self.receivers
        }
        self.receiver_fans = {
            domain: _ReceiverFan(self, domain, amounts, least)
            for domain, amounts in fanned.items()
            if domain in self.receivers
        }
        cuts = {*self.relays.starts, self.relayed, *self._folded(self.emitters.starts)}
        cuts.update(start for stretches in self.receivers.values() for start in stretches.starts)
        cuts.update(cut for fan in self.holder_fans.values() for cut in fan.cuts)
        cuts.update(cut for fan in self.receiver_fans.values() for cut in fan.cuts)
        self.cuts = sorted(cut for cut in cuts if least < cut < self.length - least)

    def _receive(self, domain: int, relays: Sequence[tuple[int, int, float]], least: float) -> Stretches:
        """Receivers of a domain along the tape: its relays on their own stretches, all others in between."""
        left = dict(sorted(self.flow.received[domain].items()))
        total = sum(left.values())
        left = {rank: amount * self.length / total for rank, amount in left.items()}
        fixed: list[tuple[float, float, int]] = []
        at = 0.0
        for other, rank, share in relays:
            if other == domain:
                fixed.append((at, at + share, rank))
                left[rank] = left.get(rank, 0.0) - share
            at += share
        waiting = [(rank, amount) for rank, amount in left.items() if amount > least]
        found: list[tuple[float, int]] = []
        position = 0.0
        for lo, hi, rank in [*fixed, (self.length, self.length, -1)]:
            while waiting and position < lo - least:
                other, amount = waiting[0]
                took = min(amount, lo - position)
                found.append((position, other))
                position += took
                if amount - took > least:
                    waiting[0] = (other, amount - took)
                else:
                    waiting.pop(0)
            if rank >= 0:
                found.append((lo, rank))
                position = hi
        return Stretches(tuple(start for start, _ in found), tuple(rank for _, rank in found))

    def _folded(self, starts: Iterable[float]) -> list[float]:
        """Positions on the tape of positions on the line of all copies that holders emit."""
        direct = self.length - self.relayed
        folded = []
        for start in starts:
            if start <= self.length:
                folded.append(start)
            elif direct > 0:
                folded.append(self.relayed + (start - self.length) % direct)
        return folded

    def tree(self, position: float) -> list[Transfer]:
        """The transfers of a piece in the middle of which the position lies."""
        tree: list[Transfer] = []
        for fan in self.holder_fans.values():
            tree.extend(fan.tree(position))
        received = {domain: stretches.at(position) for domain, stretches in self.receivers.items()}
        if received:
            tree.extend(self._cross(position, received))
        for receiver_fan in self.receiver_fans.values():
            tree.extend(receiver_fan.tree(position))
        return tree

    def _cross(self, position: float, received: dict[int, int]) -> Iterable[Transfer]:
        """The network transfers, and those that hand the bytes to proxies that emit them."""
        order = list(received)
        if position < self.relayed:
            domain, rank = self.relay_of[self.relays.at(position)]
            order.remove(domain)
            order.insert(0, domain)
            emitters = [self.emitters.at(position)]
            relays = [rank] * (len(order) - 1)
        else:
            direct = self.length - self.relayed
            behind = self.length + position - self.relayed
            copies = range(len(order) - 1)
            emitters = [
                self.emitters.at(position),
                *(self.emitters.at(behind + copy * direct) for copy in copies),
            ]
            relays = []
        handed: set[int] = set()
        for domain, sender in zip(order, [*emitters, *relays], strict=True):
            if sender not in self.known and sender not in handed and sender not in relays:
                yield self._neighbour(sender, position, len(handed)), sender, Medium.NVLINK
                handed.add(sender)
            yield sender, received[domain], Medium.NETWORK

    def _neighbour(self, proxy: int, position: float, handed: int) -> int:
        """The rank that hands the bytes to a proxy, after ``handed`` others."""
        fan = self.holder_fans[self.domain_of[proxy]]
        return fan.sender(position, len(fan.lacking) + handed)

    def lacking(self, domain: int) -> list[int]:
        """The needers in a domain that are no holders, ascending."""
        return [rank for rank in self.needers if self.domain_of[rank] == domain and rank not in self.held]


def _front(amounts: Amounts, first: set[int]) -> list[tuple[int, float]]:
    """Ranks with their amounts: those of ``first`` in front, so that they emit the first copies."""
    return sorted(amounts.items(), key=lambda entry: (entry[0] not in first, entry[0]))


class _HolderFan:
    """Who sends to whom within a domain of holders, along the tape."""

    def __init__(self, tape: FlowTape, domain: int, amounts: Amounts, least: float) -> None:
        self.length = tape.length
        self.holders = {rank for rank in tape.holders if tape.domain_of[rank] == domain}
        self.lacking = tape.lacking(domain)
        line = lay_out(_front(amounts, self.holders), least)
        self.line = line if line.ranks else Stretches((0.0,), (min(self.holders),))
        self.cuts = [start % tape.length for start in self.line.starts]

    def tree(self, position: float) -> Iterable[Transfer]:
        """Transfers to all needers of the domain that are no holders."""
        senders = [self.sender(position, row) for row in range(len(self.lacking))]
        return _tree(senders, self.lacking, self.holders)

    def sender(self, position: float, row: int) -> int:
        """Who sends the copy of this number, counted through the domain; the last ones go to proxies."""
        return self.line.at(position + row * self.length)


class _ReceiverFan:
    """Who sends to whom within a domain in need, along the tape."""

    def __init__(self, tape: FlowTape, domain: int, amounts: Amounts, least: float) -> None:
        self.lacking = tape.lacking(domain)
        self.receivers = tape.receivers[domain]
        self.stops = (*self.receivers.starts[1:], tape.length)
        self.lines = list(self._spread(amounts, least))
        self.cuts = [
            start + at % (stop - start)
            for start, stop, line in zip(self.receivers.starts, self.stops, self.lines, strict=True)
            if len(line.ranks) > 1 and stop > start
            for at in line.starts
        ]

    def _spread(self, amounts: Amounts, least: float) -> Iterable[Stretches]:
        """Per stretch of one receiver, let it send what its amount allows and others the rest."""
        stretches = list(zip(self.receivers.starts, self.stops, self.receivers.ranks, strict=True))
        needing = set(self.lacking)
        own: dict[int, float] = {}
        for start, stop, rank in stretches:
            copies = len(self.lacking) - (rank in needing)
            own[rank] = own.get(rank, 0.0) + (stop - start) * copies
        spare = {
            rank: amounts.get(rank, 0.0) - own.get(rank, 0.0)
            for rank in (*self.lacking, *(r for r in own if r not in needing))
        }
        for start, stop, rank in stretches:
            copies = len(self.lacking) - (rank in needing)
            wanted = (stop - start) * copies
            mine = wanted
            if spare[rank] < -least * len(self.lacking):
                share = min(1.0, max(0.0, amounts.get(rank, 0.0) / own[rank]))
                mine = max(min(wanted, stop - start), wanted * share)
            line = [(rank, mine)]
            for other in sorted(spare, key=lambda r: (-spare[r], r)):
                short = wanted - sum(amount for _, amount in line)
                if other == rank or other not in needing or short <= least or spare[other] <= least:
                    continue
                took = min(short, spare[other], (stop - start) * (copies - 1))
                spare[other] -= took
                line.append((other, took))
            line[0] = (rank, wanted - sum(amount for _, amount in line[1:]))
            yield lay_out(line, least)

    def tree(self, position: float) -> Iterable[Transfer]:
        """Transfers to all needers of the domain but the one that receives."""
        at = max(0, bisect_right(self.receivers.starts, position) - 1)
        start, stop, receiver = self.receivers.starts[at], self.stops[at], self.receivers.ranks[at]
        waiting = [rank for rank in self.lacking if rank != receiver]
        senders = [self.lines[at].at(position - start + row * (stop - start)) for row in range(len(waiting))]
        return _tree(senders, waiting, {receiver})


def _tree(senders: Sequence[int], waiting: Sequence[int], roots: set[int]) -> Iterable[Transfer]:
    """Transfers of which each sender makes as many as it is listed; helpers are served first."""
    order = sorted(senders, key=lambda rank: (rank not in roots, rank))
    helpers = [rank for rank in dict.fromkeys(order) if rank not in roots]
    served = [*helpers, *(rank for rank in waiting if rank not in helpers)]
    if order and order[0] not in roots:
        order[0] = min(roots)
    have = set(roots)
    for sender, receiver in zip(order, served, strict=True):
        # rounding of stretches may list a helper too early: then a root sends
        known = sender if sender in have and sender != receiver else min(roots)
        yield known, receiver, Medium.NVLINK
        have.add(receiver)

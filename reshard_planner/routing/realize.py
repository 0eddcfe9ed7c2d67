"""From the fluid optimum to trees: every type's boxes are cut where its flow changes.

The bytes of a type are a tape. Relays take the first stretches of it, one each: a holder feeds the relay,
which feeds all other domains in need. Of the rest, holders emit every copy. Receivers and emitters follow
one another along the tape, each for its amount. So two network transfers always suffice, and boxes stay whole
where the flow does not change.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from reshard_planner.atoms import Ranks
from reshard_planner.box import Box
from reshard_planner.demand import Demand
from reshard_planner.dtypes import DTYPE_BITS
from reshard_planner.routing.cuts import LEAST_PIECE_NBYTES, cut_dim, extent_steps
from reshard_planner.routing.fluid import Amounts, Flow
from reshard_planner.routing.items import Item, boxes_of
from reshard_planner.routing.problem import Problem
from reshard_planner.routing.trees import Transfer
from reshard_planner.spec.values import byte_step
from reshard_planner.transfer import Medium

NEGLIGIBLE = 1e-6
"""Share of a type below which a stretch of its tape is dropped."""


FINEST_PARTS = 100
"""A box is cut along the outermost dimension that has this many steps, so that cuts can fall anywhere."""


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


def realize(
    problem: Problem, flows: Sequence[Flow]
) -> tuple[list[Item], list[tuple[int, ...]], list[list[Transfer]]]:
    """Items, the tensors of each group, and the transfers of each item, for ``build_forests``."""
    by_type: dict[tuple[Ranks, Ranks], list[tuple[Demand, int]]] = {}
    groups: list[tuple[int, ...]] = []
    numbers: dict[tuple[int, int], int] = {}
    for number, geometry in enumerate(problem.geometries):
        for position, member in enumerate(geometry.members):
            numbers[number, position] = len(groups)
            groups.append(member.tensors)
    for demand in problem.demands:
        group = numbers[demand.geometry, demand.member]
        by_type.setdefault((demand.holders, demand.needers), []).append((demand, group))
    items: list[Item] = []
    transfers: list[list[Transfer]] = []
    for flow in flows:
        tape = _Tape(problem, flow)
        start = 0
        for demand, group in by_type[flow.holders, flow.needers]:
            geometry = problem.geometries[demand.geometry]
            bits, tensors = DTYPE_BITS[geometry.sample.dtype], len(groups[group])
            for box in boxes_of(geometry, demand):
                nbytes = box.volume * bits // 8 * tensors
                for piece, middle in _cut(box, bits, tensors, start, start + nbytes, tape.cuts):
                    items.append(Item(demand, group, piece.volume * bits // 8 * tensors, (piece,)))
                    transfers.append(tape.tree(middle))
                start += nbytes
    return items, groups, transfers


def _cut(
    box: Box, bits: int, tensors: int, start: int, stop: int, cuts: Sequence[float]
) -> Iterable[tuple[Box, float]]:
    """Cut a box where the tape has cuts, to whole steps; each part with its middle on the tape."""
    inside = cuts[bisect_right(cuts, start) : bisect_right(cuts, stop - NEGLIGIBLE)]
    step = byte_step(bits)
    dim = cut_dim(box, FINEST_PARTS, step) if inside else -1
    steps = extent_steps(box, dim, step) if dim >= 0 else 0
    least = max(1, -(-LEAST_PIECE_NBYTES * steps * tensors // (stop - start)))  # steps of the smallest piece
    bounds = [0]
    for cut in inside:
        at = round((cut - start) / (stop - start) * steps)
        if at - bounds[-1] >= least and steps - at >= least:
            bounds.append(at)
    if len(bounds) == 1:
        yield box, (start + stop) / 2
        return
    align = step if dim == box.ndim - 1 else 1
    for first, last in pairwise([*bounds, steps]):
        hi = box.lo[dim] + last * align if last < steps else box.hi[dim]
        piece = box.replace(dim, box.lo[dim] + first * align, hi)
        yield piece, start + (stop - start) * (first + last) / 2 / steps


class _Tape:
    """The tape of one type: where it is cut, and the tree at each position."""

    def __init__(self, problem: Problem, flow: Flow) -> None:
        self.flow = flow
        self.length = float(flow.nbytes)
        self.domain_of = problem.ports.domain.tolist()
        least = self.length * NEGLIGIBLE
        self.domains = sorted(flow.received)
        copies = len(self.domains)
        self.held = set(flow.holders)
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
        self.fans = {
            home: _Fan(self, home, amounts, least) for home, amounts in flow.fanned.items() if amounts
        }
        cuts = {*self.relays.starts, self.relayed, *self._folded(self.emitters.starts)}
        for stretches in self.receivers.values():
            cuts.update(stretches.starts)
        for fan in self.fans.values():
            cuts.update(fan.cuts)
        self.cuts = sorted(cut for cut in cuts if least < cut < self.length - least)

    def _receive(self, domain: int, relays: Sequence[tuple[int, int, float]], least: float) -> Stretches:
        """Receivers of a domain along the tape: its relays on their own stretches, all others in between."""
        left = dict(sorted(self.flow.received[domain].items()))
        total = sum(left.values())
        left = {rank: amount * self.length / total for rank, amount in left.items()}
        fixed: list[tuple[float, float, int]] = []
        at = 0.0
        for home, rank, share in relays:
            if home == domain:
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
        for home, fan in self.fans.items():
            if home not in self.receivers:
                tree.extend(fan.tree(position, None))
        received = {domain: stretches.at(position) for domain, stretches in self.receivers.items()}
        if received:
            tree.extend(self._cross(position, received))
        for domain, rank in received.items():
            if domain in self.fans:
                tree.extend(self.fans[domain].tree(position, rank))
        return tree

    def _cross(self, position: float, received: dict[int, int]) -> list[Transfer]:
        tree: list[Transfer] = []
        known = {*self.flow.holders, *self.flow.needers}
        order = list(received)
        lines = [position]
        relay = -1
        if position < self.relayed:
            relay, rank = self.relay_of[self.relays.at(position)]
            order.remove(relay)
            order.insert(0, relay)
        else:
            direct = self.length - self.relayed
            lines.extend(
                self.length + (position - self.relayed) + row * direct for row in range(len(order) - 1)
            )
        handed: set[int] = set()
        for number, domain in enumerate(order):
            sender = self.emitters.at(lines[number]) if number < len(lines) else rank
            if number < len(lines) and sender not in known and sender not in handed:
                tree.append((self._neighbour(sender, position, len(handed)), sender, Medium.NVLINK))
                handed.add(sender)
            tree.append((sender, received[domain], Medium.NETWORK))
        return tree

    def _neighbour(self, proxy: int, position: float, handed: int) -> int:
        """The rank that hands the bytes to a proxy, after ``handed`` others."""
        fan = self.fans[self.domain_of[proxy]]
        return fan.line.at(position + (len(fan.lacking) + handed) * self.length)


def _front(amounts: Amounts, first: set[int]) -> list[tuple[int, float]]:
    """Ranks with their amounts: those of ``first`` in front, so that they emit the first copies."""
    return sorted(amounts.items(), key=lambda entry: (entry[0] not in first, entry[0]))


class _Fan:
    """Who sends to whom within one domain, along the tape."""

    def __init__(self, tape: _Tape, home: int, amounts: Amounts, least: float) -> None:
        flow = tape.flow
        self.tape = tape
        here = [rank for rank in flow.needers if tape.domain_of[rank] == home]
        self.lacking = [rank for rank in here if rank not in tape.held]
        self.holders = [rank for rank in flow.holders if tape.domain_of[rank] == home]
        self.cuts: list[float] = []
        self.lines: list[tuple[float, float, Stretches]] = []
        if home in tape.receivers:
            self._spread(tape.receivers[home], amounts, least)
        else:
            self.line = lay_out(_front(amounts, set(self.holders)), least)
            if not self.line.ranks:
                self.line = Stretches((0.0,), (self.holders[0],))
            self.cuts.extend(start % tape.length for start in self.line.starts)

    def _spread(self, receivers: Stretches, amounts: Amounts, least: float) -> None:
        """Per stretch of one receiver, let it send what its amount allows and others the rest."""
        stops = (*receivers.starts[1:], self.tape.length)
        needing = set(self.lacking)
        own: dict[int, float] = {}
        for start, stop, rank in zip(receivers.starts, stops, receivers.ranks, strict=True):
            copies = len(self.lacking) - (rank in needing)
            own[rank] = own.get(rank, 0.0) + (stop - start) * copies
        spare = {
            rank: amounts.get(rank, 0.0) - own.get(rank, 0.0)
            for rank in (*self.lacking, *(r for r in own if r not in needing))
        }
        for start, stop, rank in zip(receivers.starts, stops, receivers.ranks, strict=True):
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
            stretch = lay_out(line, least)
            self.lines.append((start, stop, stretch))
            if len(stretch.ranks) > 1 and stop > start:
                self.cuts.extend(start + at % (stop - start) for at in stretch.starts)

    def tree(self, position: float, receiver: int | None) -> list[Transfer]:
        """Transfers to all needers of the domain that do not have the bytes yet."""
        waiting = [rank for rank in self.lacking if rank != receiver]
        if receiver is None:
            senders = [self.line.at(position + row * self.tape.length) for row in range(len(waiting))]
            roots = set(self.holders)
        else:
            starts = [start for start, _, _ in self.lines]
            start, stop, line = self.lines[max(0, bisect_right(starts, position) - 1)]
            senders = [line.at(position - start + row * (stop - start)) for row in range(len(waiting))]
            roots = {receiver}
        return list(_tree(senders, waiting, roots))


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

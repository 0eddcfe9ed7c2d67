"""Colouring: dealing the trees of a forest to parts that each load every port evenly.

Pieces stand between what holders store and what needers store: they are the edges of a bipartite graph of
source shards and destination shards. In a product of shards the diagonals (index of the one plus index of the
other, modulo the number of parts) give every shard an equal share of every part. Where the product is
incomplete, or replicas are loaded unevenly, each tree goes to the part in which its ports are loaded least.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from reshard_planner.layout.tiling import NOTHING, cuts_of
from reshard_planner.routing.forest import Forest
from reshard_planner.routing.problem import Problem
from reshard_planner.schedule.values import Floats, Ints, sum_by
from reshard_planner.spec import TensorSpec
from reshard_planner.spec.values import Side

EVEN = 1.01
"""Ratio of the busiest ports over all parts to the busiest port at which parts count as even."""

MOST_GREEDY = 2**28
"""Most comparisons of loads that are made to deal trees one by one."""


@dataclass(frozen=True, slots=True, eq=False)
class Bundles:
    """Some bundles of a forest, with what each puts on the ports.

    Attributes:
        source: number of each bundle's source shard.
        destination: number of its destination shard.
        lag: slots between a depth and the next.
        depths: number of depths.
        bundle: bundle of each load, ascending.
        depth: depth of each load.
        port: port of each load, counted from 0 over the ports used; no load agrees with another in all three.
        load: loads in comparable units, such as shares of a round.
        totals: sum over the bundles for each port.
        most_even: most parts in which every busy port can have a bundle.
    """

    source: Ints
    destination: Ints
    lag: int
    depths: int
    bundle: Ints
    depth: Ints
    port: Ints
    load: Floats
    totals: Floats
    most_even: int

    @classmethod
    def of(
        cls, source: Ints, destination: Ints, lag: int, bundle: Ints, depth: Ints, port: Ints, load: Floats
    ) -> Bundles:
        """Sum loads of one bundle, depth and port; arguments as the attributes, in any order and repeated."""
        used, compact = np.unique(port, return_inverse=True)
        size, depths = max(1, len(used)), int(depth.max(initial=0)) + 1
        keys, where = np.unique((bundle * depths + depth) * size + compact.reshape(-1), return_inverse=True)
        sums = sum_by(where.reshape(-1), load, len(keys))
        ports = keys % size
        totals = sum_by(ports, sums, size)
        of_bundle, of_depth = keys // size // depths, keys // size % depths
        even = _most_even(of_bundle, ports, totals, len(source))
        return cls(source, destination, lag, depths, of_bundle, of_depth, ports, sums, totals, even)

    @property
    def count(self) -> int:
        """Number of bundles."""
        return len(self.source)

    @property
    def busiest(self) -> float:
        """Load of the busiest port."""
        return float(self.totals.max(initial=0.0))

    def order(self, part: Ints, parts: int, below: float = np.inf) -> tuple[float, Ints]:
        """The order in which parts that follow one another round and round load the slots most evenly.

        Returns the sum over a turn's slots of the busiest port, over the busiest port of all (at least 1),
        and the place of each part; infinity where the sum is not below ``below``.
        """
        straight = np.arange(parts, dtype=np.int64)
        if not self.busiest:
            return 1.0, straight
        ports = len(self.totals)
        key = (part[self.bundle] * self.depths + self.depth) * ports + self.port
        loads = sum_by(key, self.load, parts * self.depths * ports)
        loads = loads.reshape(parts, self.depths, ports)
        best = (np.inf, straight)
        if self.depths > 1 and loads.sum(axis=1).max(axis=1).sum() >= below * self.busiest:
            return best
        stride = 1
        while (stride < parts or stride == 1) and best[0] > EVEN:
            taken = np.concatenate([np.arange(first, parts, stride) for first in range(stride)])
            slots = sum(
                (np.roll(loads[taken, depth], depth * self.lag, axis=0) for depth in range(self.depths)),
                np.zeros((parts, ports)),
            )
            score = float(slots.max(axis=1).sum() / self.busiest)
            if score < best[0] - 1e-9:
                place = np.empty(parts, dtype=np.int64)
                place[taken] = straight
                best = (score, place)
            stride = 2 * stride if self.depths > 1 else parts
        return best


def _most_even(bundle: Ints, port: Ints, totals: Floats, bundles: int) -> int:
    busy = totals >= totals.max(initial=0.0) / EVEN
    at = np.flatnonzero(busy[port])
    keys = np.sort(port[at] * bundles + bundle[at])
    distinct = keys[np.flatnonzero(np.diff(keys, prepend=-1))] // max(1, bundles)
    counts = np.bincount(distinct, minlength=len(busy))[busy]
    return max(1, int(counts.min(initial=bundles)))


def colour(bundles: Bundles, tries: Sequence[tuple[int, float]], least: int) -> tuple[Ints, int]:
    """Deal the bundles to parts.

    Args:
        bundles: what is dealt.
        tries: numbers of parts that may do, each at most as many as bundles, with the factor by which filling
            and draining the pipeline prolongs the whole; the preferred ones first.
        least: number of parts from which on the first dealing that is even is taken at once.

    Returns the part of each bundle, and the number of parts.
    """
    best: tuple[float, Ints, int] = (np.inf, np.zeros(bundles.count, dtype=np.int64), 1)
    for candidates in (_diagonals, _dealings):
        for parts, factor in tries:
            if parts <= 1:
                best = min(best, (factor, np.zeros(bundles.count, dtype=np.int64), 1), key=_cost)
                continue
            for part in candidates(bundles, parts):
                score, place = bundles.order(part, parts, best[0] / factor)
                if score * factor < best[0] - 1e-9:
                    best = (score * factor, place[part], parts)
                if score <= EVEN and parts >= least:
                    return place[part], parts
    return best[1], best[2]


def _cost(found: tuple[float, Ints, int]) -> float:
    return found[0]


def _diagonals(bundles: Bundles, parts: int) -> Iterator[Ints]:
    """Dealings along diagonals, without empty parts."""
    of_source, of_destination, twin = _positions(bundles.source, bundles.destination)
    twins = int(twin.max()) + 1
    degree = 1 + int(max(of_source.max(), of_destination.max()))
    for sign in (1, -1):
        diagonal = of_destination + sign * of_source
        yield _dense((diagonal * twins + twin) % parts, parts)
        if degree * twins >= parts:
            yield _dense((diagonal % degree * twins + twin) * parts // (degree * twins), parts)


def _dealings(bundles: Bundles, parts: int) -> Iterator[Ints]:
    """Dealings one by one to the part with the lowest loads, of ports and of ports in each depth."""
    if len(bundles.port) * parts > MOST_GREEDY:
        return
    ports = len(bundles.totals)
    for depths in sorted({1, bundles.depths}):
        keys = bundles.bundle * (depths * ports) + (bundles.depth % depths) * ports + bundles.port
        used, where = np.unique(keys, return_inverse=True)
        load = sum_by(where.reshape(-1), bundles.load, len(used))
        part = _greedy(
            used // (depths * ports), used % (depths * ports), load, bundles.count, depths * ports, parts
        )
        yield _dense(part, parts)


def _positions(source: Ints, destination: Ints) -> tuple[Ints, Ints, Ints]:
    """Per bundle: its place among the destinations of its source, the reverse, and among bundles of both."""
    wide = int(destination.max()) + 1
    cells, number = np.unique(source * wide + destination, return_inverse=True)
    number = number.reshape(-1)
    sources, destinations = cells // wide, cells % wide
    of_source = _rank_within(sources, destinations)
    of_destination = _rank_within(destinations, sources)
    return of_source[number], of_destination[number], _rank_within(number, np.arange(len(number)))


def _rank_within(group: Ints, by: Ints) -> Ints:
    """Position of each element among those of its group, ordered by ``by``."""
    order = np.lexsort((by, group))
    sorted_group = group[order]
    starts = np.flatnonzero(np.diff(sorted_group, prepend=-1))
    sizes = np.diff(np.append(starts, len(group)))
    position = np.empty(len(group), dtype=np.int64)
    position[order] = np.arange(len(group)) - np.repeat(starts, sizes)
    return position


def _dense(part: Ints, parts: int) -> Ints:
    """The same parts, or bundles dealt in their order where some part would be empty."""
    if len(np.bincount(part, minlength=parts).nonzero()[0]) == parts:
        return part
    order = np.argsort(part, kind="stable")
    dealt = np.empty(len(part), dtype=np.int64)
    dealt[order] = np.arange(len(part)) * parts // len(part)
    return dealt


def _greedy(bundle: Ints, port: Ints, load: Floats, count: int, ports: int, parts: int) -> Ints:
    """Largest bundles first, each to the part where the busiest of its ports stays lowest."""
    starts = np.searchsorted(bundle, np.arange(count + 1)).tolist()
    weight = sum_by(bundle, load, count)
    loads = np.zeros((ports, parts))
    level = np.zeros(parts)
    part = np.zeros(count, dtype=np.int64)
    for number in np.argsort(-weight, kind="stable").tolist():
        at = slice(starts[number], starts[number + 1])
        after = loads[port[at]] + load[at, None]
        if len(after):
            busiest = after.max(axis=0)
            busiest += after.sum(axis=0) * 1e-4
            chosen = int(busiest.argmin())
            loads[port[at], chosen] = after[:, chosen]
        else:
            chosen = int(level.argmin())
        level[chosen] += weight[number]
        part[number] = chosen
    return part


def shards_of(problem: Problem, forest: Forest, pieces: Ints) -> tuple[Ints, Ints]:
    """Numbers of the source shard and of the destination shard that each of some pieces lies in.

    Where a side has several layouts, the first one's shards are counted.
    """
    tensor = problem.spec.tensors[forest.members[0].tensors[0]]
    lo = forest.lo[pieces]
    return _shard(tensor, "src", lo), _shard(tensor, "dst", lo)


def _shard(tensor: TensorSpec, side: Side, lo: Ints) -> Ints:
    """Number from 1 on of the shard of the first layout that each of some boxes begins in, 0 outside."""
    tiling = tensor.tilings(side)[0]
    cuts = cuts_of([tiling], tensor.shape)
    extents = tuple(len(cut) - 1 for cut in cuts)
    painted = tiling.paint(cuts, extents)
    if not extents or not painted:
        return np.zeros(len(lo), dtype=np.int64)
    columns = (np.searchsorted(cut, lo[:, dim], side="right") - 1 for dim, cut in enumerate(cuts))
    shards: Ints = painted[0].key[np.ravel_multi_index(tuple(columns), extents)] - NOTHING
    return shards

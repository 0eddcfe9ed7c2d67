"""Rotation: whole classes, or equal parts of them, take turns over all ranks that can do the work.

Per class, the domains in need take in one copy each, at needers that take turns. Holders emit as many
copies as their NICs have time for, taking turns; receivers that a holder feeds relay the rest, each to as
many others. Within a domain the receiver sends to the other needers. Many classes are routed at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from reshard_planner.demand import Demand, Geometry, Member
from reshard_planner.dtypes import DTYPE_BITS
from reshard_planner.routing.classes import Kind, find_kinds
from reshard_planner.routing.cuts import split_boxes
from reshard_planner.routing.emission import Emission, plan_emission, plan_pods
from reshard_planner.routing.forest import ROOT, Forest
from reshard_planner.routing.nics import NicPorts
from reshard_planner.routing.patterns import turn_trees
from reshard_planner.routing.problem import Problem
from reshard_planner.routing.sets import Sets, Turns
from reshard_planner.routing.tiling import fill_tiles
from reshard_planner.spec.values import byte_step
from reshard_planner.transfer import Medium, Role

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Routable:
    """One geometry made ready for rotation.

    Attributes:
        geometry: the geometry.
        demands: classes of its first member.
        nbytes: bytes of each class in one tensor.
        kinds: the classes, by kind.
    """

    geometry: Geometry
    demands: tuple[Demand, ...]
    nbytes: Ints
    kinds: tuple[Kind, ...]


class Rotation:
    """Routes geometries in turn; see the module's text."""

    def __init__(self, problem: Problem, time_s: float) -> None:
        """Sort all classes by kind.

        Args:
            problem: what is compiled.
            time_s: time that NICs may take to emit, in seconds; relays emit what holders have no time for.
        """
        self._sets = Sets()
        self._nics = NicPorts(problem.ports)
        by_geometry: dict[int, list[Demand]] = {}
        for demand in problem.demands:
            if demand.member == 0:
                by_geometry.setdefault(demand.geometry, []).append(demand)
        self.routables = tuple(
            self._prepare(problem, geometry, tuple(by_geometry.get(number, ())))
            for number, geometry in enumerate(problem.geometries)
        )
        sizes = [
            sum(demand.nbytes for demand in routable.demands) * len(routable.geometry.members)
            for routable in self.routables
        ]
        self._order = sorted(range(len(sizes)), key=lambda number: -sizes[number])  # the largest first
        self._emission = plan_emission(problem, self.routables, time_s)
        self._pods = plan_pods(problem, self.routables, time_s)

    def _prepare(self, problem: Problem, geometry: Geometry, demands: tuple[Demand, ...]) -> Routable:
        tensors = len(geometry.members[0].tensors)
        nbytes = np.array([demand.nbytes // tensors for demand in demands], dtype=np.int64)
        return Routable(geometry, demands, nbytes, find_kinds(demands, problem.ports, self._sets))

    def route(self, limit: int | None, *, full: bool, pods: bool = False) -> list[Forest]:
        """Route everything, in items of at most ``limit`` bytes where that is possible.

        Tensors of one geometry are dealt out to several forests first, since that costs no messages; what is
        still too large is split. Without a limit every class of every geometry is one item.

        Holders emit equally many copies of every item, at most what their NICs have time for; with
        ``full`` they fill that time, and the number differs between items. With ``pods`` only one copy enters
        each pod, which its own receivers relay.
        """
        size = len(self._nics.of_rank)
        receiving, emitting = Turns(len(self._sets), size), Turns(len(self._sets), size)
        forests: list[Forest] = []
        for number in self._order:
            routable, most, fed = self.routables[number], self._emission[number], self._pods[number]
            emission = most if full else [e.whole(kind) for e, kind in zip(most, routable.kinds, strict=True)]
            if pods:
                emission = [replace(each, pods=of) for each, of in zip(emission, fed, strict=True)]
            for members in deal(routable.geometry, routable.nbytes, limit):
                parts = _wanted_parts(routable, len(members[0].tensors), limit)
                forests.append(_route(routable, members, parts, emission, receiving, emitting))
                bits = DTYPE_BITS[routable.geometry.sample.dtype]
                receiving.time += self._nic_times(forests[-1], forests[-1].dst, bits)
                emitting.time += self._nic_times(forests[-1], forests[-1].src, bits)
        return forests

    def _nic_times(self, forest: Forest, ranks: Ints, bits: int) -> Floats:
        """Time that a forest takes on the NIC of every rank, in one direction."""
        network = np.flatnonzero(forest.medium == Medium.NETWORK)
        nbytes = np.prod(forest.hi - forest.lo, axis=1, dtype=np.int64) * bits // 8
        loads = np.zeros(len(self._nics.lent_bytes_per_s))
        for member in forest.members:
            here = ranks[network] if member.ranks is None else member.ranks[ranks[network]]
            weights = nbytes[forest.piece[network]] * len(member.tensors)
            loads += np.bincount(self._nics.of_rank[here], weights=weights, minlength=len(loads))
        times: Floats = (loads / self._nics.lent_bytes_per_s)[self._nics.of_rank]
        return times


def deal(geometry: Geometry, nbytes: Ints, limit: int | None) -> list[tuple[Member, ...]]:
    """Deal out the tensors of every member so that no class of those dealt together exceeds ``limit``."""
    largest = int(nbytes.max(initial=0)) * len(geometry.members[0].tensors)
    least = min(len(member.tensors) for member in geometry.members)
    wanted = 1 if limit is None else max(1, min(least, -(-largest // limit)))
    return [
        tuple(Member(member.tensors[hand::wanted], member.ranks) for member in geometry.members)
        for hand in range(wanted)
    ]


def _wanted_parts(routable: Routable, tensors: int, limit: int | None) -> Ints:
    """Parts to cut each class in: enough for the limit, and such that ranks take equally many turns."""
    parts = np.ones(len(routable.demands), dtype=np.int64)
    if limit is None:
        return parts
    needed = -(-routable.nbytes * tensors // limit)
    for kind in routable.kinds:
        cycle = _cycle(kind)
        for at in kind.classes.tolist():
            parts[at] = _even(int(needed[at]), cycle)
    return parts


def _cycle(kind: Kind) -> int:
    """Parts after which every receiver of every domain in need has had equally many turns of each sort."""
    receivers = max((column.shape[1] for column in kind.receivers), default=1)
    if len(kind.receivers) > 1:
        return receivers * len(kind.receivers)
    if kind.receivers:
        return receivers
    return max((column.shape[1] for column in kind.seeds), default=1)


def _even(needed: int, cycle: int) -> int:
    """The least number from ``needed`` that divides the cycle or is a multiple of it."""
    if needed >= cycle:
        return -(-needed // cycle) * cycle
    return next(count for count in range(needed, cycle + 1) if cycle % count == 0)


def _route(
    routable: Routable,
    members: tuple[Member, ...],
    parts: Ints,
    emissions: Sequence[Emission],
    receiving: Turns,
    emitting: Turns,
) -> Forest:
    geometry = routable.geometry
    atoms = geometry.atoms
    bits = DTYPE_BITS[geometry.sample.dtype]
    class_of = np.array([demand.class_index for demand in routable.demands], dtype=np.int64)
    first = np.searchsorted(atoms.class_of, class_of)
    count = np.searchsorted(atoms.class_of, class_of, side="right") - first
    columns: list[tuple[Ints, ...]] = []
    boxes: list[tuple[Ints, Ints]] = []
    pieces = rows = 0
    for kind, emission in zip(routable.kinds, emissions, strict=True):
        at = kind.classes
        atom = np.repeat(first[at], count[at]) + _ranges(count[at])
        owner = np.repeat(np.arange(len(at)), count[at])
        wanted = np.maximum(1, np.where(parts[at] > 1, parts[at], 1))[owner]
        of, lo, hi = split_boxes(atoms.lo[atom], atoms.hi[atom], wanted, bits, byte_step(bits))
        # boxes of a class that is not split take the same way; every part of a split one takes its own
        class_at = owner[of]
        alone = wanted[of] > 1
        starts = np.flatnonzero(alone | (np.diff(class_at, prepend=-1) != 0))
        item = np.searchsorted(starts, np.arange(len(of)), side="right") - 1
        tree = turn_trees(kind, class_at[starts], emission, receiving, emitting)
        per = tree.src.shape[1]
        piece = np.repeat(np.arange(len(of)), per)
        base = np.repeat(np.arange(len(of)) * per, per) + rows
        parent = tree.parent[item].reshape(-1)
        columns.append(
            (
                piece + pieces,
                np.where(parent >= 0, parent + base, ROOT),
                tree.src[item].reshape(-1),
                tree.dst[item].reshape(-1),
                np.tile(tree.medium, len(of)),
            )
        )
        boxes.append((lo, hi))
        pieces += len(of)
        rows += len(of) * per
    dims = atoms.lo.shape[1]
    lo, hi = (
        np.concatenate([pair[side] for pair in boxes]) if boxes else np.zeros((0, dims), dtype=np.int64)
        for side in (0, 1)
    )
    piece, parent, src, dst, medium = (
        np.concatenate([column[i] for column in columns]) if columns else np.zeros(0, dtype=np.int64)
        for i in range(5)
    )
    role = np.where(
        medium == Medium.LOCAL,
        Role.COPY,
        np.where(medium == Medium.NVLINK, Role.FANOUT, np.where(parent == ROOT, Role.INJECT, Role.RELAY)),
    )
    forest = Forest(
        members, lo, hi, piece, parent, src, dst, medium, role, np.zeros(len(piece), dtype=np.int64)
    )
    return fill_tiles(forest, geometry.sample)


def _ranges(counts: Ints) -> Ints:
    """0 to ``count - 1`` for each count, one after another."""
    total = int(counts.sum())
    return np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)

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


BURSTS = 8
"""A receiver sends its neighbours at most this share of the staging budget at once: its two send buffers
then take a quarter of the budget."""


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
        # half of the peers of a slot are left to other traffic
        self._branches = max(1, problem.spec.options.max_peers_per_slot // 2)
        self._burst = max(1, problem.spec.options.staging_nbytes // BURSTS)
        self._sets = Sets()
        self._nics = NicPorts(problem.ports)
        self._nvlink = np.maximum(1, problem.ports.nvlink_bytes_per_s).astype(np.float64)
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

    @property
    def has_split_copies(self) -> bool:
        """Whether holders have time for parts of copies, so that ``full`` makes a difference."""
        return any(
            bool((each.whole(kind).share != each.share).any())
            for routable, emission in zip(self.routables, self._emission, strict=True)
            for each, kind in zip(emission, routable.kinds, strict=True)
        )

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
        receiving, emitting, seeding = (Turns(len(self._sets), size) for _ in range(3))
        forests: list[Forest] = []
        for number in self._order:
            routable, most, fed = self.routables[number], self._emission[number], self._pods[number]
            emission = most if full else [e.whole(kind) for e, kind in zip(most, routable.kinds, strict=True)]
            if pods:
                emission = [replace(each, pods=of) for each, of in zip(emission, fed, strict=True)]
            for members in deal(routable, limit):
                parts = _wanted_parts(routable, len(members[0].tensors), limit, self._burst, self._branches)
                forests.append(
                    _route(routable, members, parts, emission, receiving, emitting, seeding, self._branches)
                )
                bits = routable.geometry.sample.bits
                receiving.time += self._nic_times(forests[-1], bits, sending=False)
                emitting.time += self._nic_times(forests[-1], bits, sending=True)
                seeding.time += self._nvlink_times(forests[-1], bits)
        return forests

    def _nic_times(self, forest: Forest, bits: int, *, sending: bool) -> Floats:
        """Time that a forest takes on the NIC of every rank, in one direction."""
        loads = self._nics.loads(forest, bits, sending=sending)
        times: Floats = (loads / self._nics.lent_bytes_per_s)[self._nics.of_rank]
        return times

    def _nvlink_times(self, forest: Forest, bits: int) -> Floats:
        """Time that every rank sends over NVLink for a forest."""
        stays = np.flatnonzero(forest.medium == Medium.NVLINK)
        nbytes = forest.nbytes(bits)[stays]
        loads = np.zeros(len(self._nvlink))
        for member in forest.members:
            ranks = member.rename(forest.src[stays])
            loads += np.bincount(ranks, weights=nbytes * len(member.tensors), minlength=len(loads))
        times: Floats = loads / self._nvlink
        return times


def deal(routable: Routable, limit: int | None) -> list[tuple[Member, ...]]:
    """Deal out the tensors of every member: no class of those dealt together exceeds ``limit``.

    There are also as many hands as receivers take turns in a domain, since hands cost no messages.
    """
    members = routable.geometry.members
    largest = int(routable.nbytes.max(initial=0)) * len(members[0].tensors)
    least = min(len(member.tensors) for member in members)
    turns = max((len(column[0]) for kind in routable.kinds for column in kind.receivers), default=1)
    wanted = 1 if limit is None else max(1, min(least, max(turns, -(-largest // limit))))
    return [
        tuple(Member(member.tensors[hand::wanted], member.ranks) for member in members)
        for hand in range(wanted)
    ]


def _wanted_parts(routable: Routable, tensors: int, limit: int | None, burst: int, branches: int) -> Ints:
    """Parts to cut each class in: enough for the limit, and such that ranks take equally many turns.

    Also enough that no rank sends up to ``branches`` neighbours more than ``burst`` bytes of a tensor at
    once.
    """
    parts = np.ones(len(routable.demands), dtype=np.int64)
    for kind in routable.kinds:
        others = max((column.shape[1] - 1 for column in kind.needers), default=0)
        needed = -(-routable.nbytes[kind.classes] * min(others, branches) // burst)
        if limit is not None:
            needed = np.maximum(needed, -(-routable.nbytes[kind.classes] * tensors // limit))
        cycle = _cycle(kind)
        even = {count: _even(count, cycle) for count in np.unique(needed).tolist()}
        parts[kind.classes] = [even[count] for count in needed.tolist()]
    return np.maximum(1, parts)


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
    if needed <= 1:
        return 1
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
    seeding: Turns,
    branches: int,
) -> Forest:
    """The forest of some members: every kind's boxes and trees, one kind after another."""
    dims = routable.geometry.atoms.lo.shape[1]
    los, his = [np.zeros((0, dims), dtype=np.int64)], [np.zeros((0, dims), dtype=np.int64)]
    columns: list[tuple[Ints, ...]] = [(np.zeros(0, dtype=np.int64),) * 5]
    pieces = rows = 0
    for kind, emission in zip(routable.kinds, emissions, strict=True):
        cut = _cut_kind(routable, kind, parts[kind.classes])
        tree = turn_trees(kind, cut.item_class, emission, receiving, emitting, seeding, branches)
        count, per = len(cut.lo), tree.src.shape[1]
        base = np.repeat(np.arange(count) * per, per) + rows
        parent = tree.parent[cut.item].reshape(-1)
        columns.append(
            (
                np.repeat(np.arange(count), per) + pieces,
                np.where(parent >= 0, parent + base, ROOT),
                tree.src[cut.item].reshape(-1),
                tree.dst[cut.item].reshape(-1),
                np.tile(tree.medium, count),
            )
        )
        los.append(cut.lo)
        his.append(cut.hi)
        pieces += count
        rows += count * per
    piece, parent, src, dst, medium = (np.concatenate(column) for column in zip(*columns, strict=True))
    network = np.where(parent == ROOT, Role.INJECT, Role.RELAY)
    role = np.select([medium == Medium.LOCAL, medium == Medium.NVLINK], [Role.COPY, Role.FANOUT], network)
    tile = np.zeros(len(piece), dtype=np.int64)
    forest = Forest(
        members, np.concatenate(los), np.concatenate(his), piece, parent, src, dst, medium, role, tile
    )
    return fill_tiles(forest, routable.geometry.sample)


@dataclass(frozen=True, slots=True, eq=False)
class _Cut:
    """The boxes of a kind, cut; those of a class that is not split are one item, else every part is its own.

    Attributes:
        lo: first index of each part, shape (parts, dims).
        hi: index past the last, likewise.
        item: item of each part, ascending, shape (parts,).
        item_class: class of each item, as a position in the kind, shape (items,).
    """

    lo: Ints
    hi: Ints
    item: Ints
    item_class: Ints


def _cut_kind(routable: Routable, kind: Kind, parts: Ints) -> _Cut:
    """Cut the atoms of a kind's classes; ``parts`` is how many parts each class should have."""
    atoms, bits = routable.geometry.atoms, routable.geometry.sample.bits
    class_of = np.array([routable.demands[at].class_index for at in kind.classes.tolist()], dtype=np.int64)
    first = np.searchsorted(atoms.class_of, class_of)
    count = np.searchsorted(atoms.class_of, class_of, side="right") - first
    atom = np.repeat(first, count) + _ranges(count)
    owner = np.repeat(np.arange(len(class_of)), count)
    wanted = parts[owner]
    of, lo, hi = split_boxes(atoms.lo[atom], atoms.hi[atom], wanted, bits, byte_step(bits))
    class_at = owner[of]
    starts = np.flatnonzero((wanted[of] > 1) | (np.diff(class_at, prepend=-1) != 0))
    item = np.searchsorted(starts, np.arange(len(of)), side="right") - 1
    return _Cut(lo, hi, item, class_at[starts])


def _ranges(counts: Ints) -> Ints:
    """0 to ``count - 1`` for each count, one after another."""
    total = int(counts.sum())
    return np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)

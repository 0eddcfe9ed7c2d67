"""Flows: the transfers of a plan, added up between places few enough to draw.

A place is a rank. Where that gives too much to draw it is a domain, and where that does, several domains
that are alike.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reshard_planner.ir.plan import Plan
from reshard_planner.render.hops.choice import Choice
from reshard_planner.render.moves import Moves, find_moves
from reshard_planner.render.storing import storing_ranks
from reshard_planner.topology import Ports

MAX_EDGES = 128
"""Edges above which ranks are added up by domain."""

MAX_JOINED_EDGES = 24
"""Edges above which domains that are alike are joined, ever more of them."""

MAX_PLACES = 40
"""Places above which the same happens."""

MAX_IDLE = 16
"""Places without transfers that are drawn; where there are more, they are only counted."""


_BYTE = 256
"""Media and roles are stored as bytes."""


@dataclass(frozen=True, slots=True)
class Flow:
    """All transfers of one medium and role from one place to another.

    Attributes:
        src: place that sends; the same as ``dst`` for what stays within a place.
        dst: place that receives.
        medium: a :class:`reshard_planner.transfer.Medium`.
        role: a :class:`reshard_planner.transfer.Role`.
        count: number of transfers, over all pieces and tensors.
        nbytes: bytes of all of them.
        offset: least number of slots after the round of its unit in which one of them runs.
    """

    src: int
    dst: int
    medium: int
    role: int
    count: int
    nbytes: int
    offset: int


@dataclass(frozen=True, slots=True)
class Place:
    """Ranks that are drawn as one node.

    Attributes:
        domains: their domains, ascending.
        ranks: the ranks, ascending.
        holds: whether one of them has elements before.
        needs: whether one of them must have elements after.
        alone: whether it is the one rank that was asked for, among domains.
    """

    domains: tuple[int, ...]
    ranks: tuple[int, ...]
    holds: bool
    needs: bool
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Flows:
    """What a picture of transfers shows.

    Attributes:
        by_rank: whether every place is one rank.
        places: the nodes; flows name them by position.
        flows: what moves, sorted by (src, dst, medium, role).
        pairs: number of flows between different ranks, before they were added up.
        idle: ranks without transfers that are in no place, ascending.
        idle_domains: number of domains without any drawn place.
    """

    by_rank: bool
    places: tuple[Place, ...]
    flows: tuple[Flow, ...]
    pairs: int
    idle: tuple[int, ...]
    idle_domains: int


def find_flows(plan: Plan, choice: Choice | None = None) -> Flows:
    """Add up the transfers of a plan, or those that were chosen."""
    choice = choice or Choice()
    moves = find_moves(plan, choice.tensors, rank=choice.rank, pieces=choice.pieces)
    tensors = choice.tensors
    members = plan.spec.tensors if tensors is None else [plan.spec.tensors[at] for at in tensors]
    active = {*np.unique(moves.src).tolist(), *np.unique(moves.dst).tolist()}
    if choice.rank is not None:
        active.add(choice.rank)
    meshes = {layout.mesh for tensor in members for layout in (*tensor.src, *tensor.dst)}
    narrowed = choice.rank is not None or choice.pieces is not None
    ranks = sorted(active if narrowed else active.union(*(mesh.ranks for mesh in meshes)))
    domain_of = Ports.of(plan.spec.topology, ranks).domain
    size = len(domain_of)
    holds = storing_ranks(members, "src", size) if choice.holders is None else _marked(choice.holders, size)
    needs = storing_ranks(members, "dst", size) if choice.needers is None else _marked(choice.needers, size)

    def place(domain: int, inside: Sequence[int], *, alone: bool = False) -> Place:
        at = list(inside)
        return Place((domain,), tuple(at), bool(holds[at].any()), bool(needs[at].any()), alone)

    single = [place(int(domain_of[rank]), (rank,)) for rank in ranks]
    drawn, idle = _without_idle(single, active)
    pairs = len(_add_up(moves, drawn, size, between=True))
    by_rank = pairs <= MAX_EDGES and len(drawn) <= MAX_PLACES
    if not by_rank:
        by_domain: dict[int, list[int]] = {}
        for rank in ranks:
            if rank != choice.rank:
                by_domain.setdefault(int(domain_of[rank]), []).append(rank)
        every = [place(domain, inside) for domain, inside in sorted(by_domain.items())]
        if choice.rank is not None:
            every.append(place(int(domain_of[choice.rank]), (choice.rank,), alone=True))
        whole, idle = _without_idle(every, active)
        drawn, most = whole, 1
        while len(drawn) > MAX_PLACES or len(_add_up(moves, drawn, size, between=True)) > MAX_JOINED_EDGES:
            most *= 2
            drawn = _join_alike(whole, most)
    shown = {domain for entry in drawn for domain in entry.domains}
    hidden = {int(domain_of[rank]) for rank in idle} - shown
    return Flows(by_rank, tuple(drawn), _add_up(moves, drawn, size), pairs, idle, len(hidden))


def _marked(ranks: Collection[int], size: int) -> NDArray[np.bool_]:
    """Per rank, whether it is one of those."""
    return np.isin(np.arange(size), np.fromiter(ranks, dtype=np.int64))


def _without_idle(places: list[Place], active: set[int]) -> tuple[list[Place], tuple[int, ...]]:
    """The places to draw, and the ranks of the idle ones if they are too many to draw."""
    idle = [entry for entry in places if active.isdisjoint(entry.ranks)]
    if len(idle) <= MAX_IDLE:
        return places, ()
    busy = [entry for entry in places if not active.isdisjoint(entry.ranks)]
    return busy, tuple(rank for entry in idle for rank in entry.ranks)


def _join_alike(places: Sequence[Place], size: int) -> list[Place]:
    """Join up to ``size`` neighbouring places at a time, of those that agree in holding and needing."""
    alike: dict[tuple[bool, bool], list[Place]] = {}
    joined = [entry for entry in places if entry.alone]
    for entry in places:
        if not entry.alone:
            alike.setdefault((entry.holds, entry.needs), []).append(entry)
    for (holds, needs), entries in alike.items():
        for start in range(0, len(entries), size):
            part = entries[start : start + size]
            domains = tuple(domain for entry in part for domain in entry.domains)
            ranks = tuple(sorted(rank for entry in part for rank in entry.ranks))
            joined.append(Place(domains, ranks, holds, needs))
    return sorted(joined, key=lambda entry: (entry.domains, entry.alone))


def _add_up(moves: Moves, places: Sequence[Place], size: int, *, between: bool = False) -> tuple[Flow, ...]:
    """Sum moves by (place of src, place of dst, medium, role); only those between places if so asked."""
    place_of = np.zeros(size, dtype=np.int64)
    for number, entry in enumerate(places):
        place_of[list(entry.ranks)] = number
    count = max(1, len(places))
    src, dst = place_of[moves.src], place_of[moves.dst]
    keep = np.flatnonzero(src != dst) if between else np.arange(len(src))
    key = ((src * count + dst) * _BYTE + moves.medium) * _BYTE + moves.role
    keys, position = np.unique(key[keep], return_inverse=True)
    counts, nbytes = np.zeros((2, len(keys)), dtype=np.int64)
    np.add.at(counts, position, moves.count[keep])
    np.add.at(nbytes, position, moves.nbytes[keep])
    offset = np.full(len(keys), np.iinfo(np.int64).max)
    np.minimum.at(offset, position, moves.offset[keep])
    pair, medium, role = keys // _BYTE**2, keys // _BYTE % _BYTE, keys % _BYTE
    columns = (pair // count, pair % count, medium, role, counts, nbytes, offset)
    return tuple(Flow(*row) for row in zip(*(column.tolist() for column in columns), strict=True))

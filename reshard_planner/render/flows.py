"""Flows: the transfers of a plan, added up between places few enough to draw.

A place is a rank. Where that gives too much to draw it is a domain, and where that does, several domains
that are alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reshard_planner.ir.ops import Ops
from reshard_planner.ir.plan import Plan
from reshard_planner.layout import Layout
from reshard_planner.spec import TensorSpec
from reshard_planner.spec.values import Side
from reshard_planner.topology import Ports

MAX_EDGES = 300
"""Edges above which ranks are added up by domain."""

MAX_JOINED_EDGES = 64
"""Edges above which domains that are alike are joined, ever more of them."""

MAX_PLACES = 300
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
    """

    src: int
    dst: int
    medium: int
    role: int
    count: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Place:
    """Ranks that are drawn as one node.

    Attributes:
        domains: their domains, ascending.
        ranks: the ranks, ascending.
        holds: whether one of them has elements before.
        needs: whether one of them must have elements after.
    """

    domains: tuple[int, ...]
    ranks: tuple[int, ...]
    holds: bool
    needs: bool


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


def find_flows(plan: Plan, tensors: Sequence[int] | None = None) -> Flows:
    """Add up the transfers of a plan, or of some tensors of it (by position in the spec)."""
    ops = plan.ops(tensors=tensors)
    members = plan.spec.tensors if tensors is None else [plan.spec.tensors[at] for at in tensors]
    active = {*np.unique(ops.src).tolist(), *np.unique(ops.dst).tolist()}
    meshes = {layout.mesh for tensor in members for layout in (*tensor.src, *tensor.dst)}
    ranks = sorted(active.union(*(mesh.ranks for mesh in meshes)))
    domain_of = Ports.of(plan.spec.topology, ranks).domain
    holds, needs = (_storing(members, side, len(domain_of)) for side in ("src", "dst"))

    def place(domains: Iterable[int], inside: Sequence[int]) -> Place:
        at = list(inside)
        return Place(tuple(domains), tuple(at), bool(holds[at].any()), bool(needs[at].any()))

    single = [place((int(domain_of[rank]),), (rank,)) for rank in ranks]
    drawn, idle = _without_idle(single, active)
    flows = _add_up(ops, drawn, len(domain_of))
    pairs = sum(flow.src != flow.dst for flow in flows)
    by_rank = pairs <= MAX_EDGES and len(drawn) <= MAX_PLACES
    if not by_rank:
        by_domain: dict[int, list[int]] = {}
        for rank in ranks:
            by_domain.setdefault(int(domain_of[rank]), []).append(rank)
        whole, idle = _without_idle(
            [place((domain,), inside) for domain, inside in sorted(by_domain.items())], active
        )
        drawn, flows, size = whole, _add_up(ops, whole, len(domain_of)), 1
        while sum(flow.src != flow.dst for flow in flows) > MAX_JOINED_EDGES or len(drawn) > MAX_PLACES:
            size *= 2
            drawn = _join_alike(whole, size)
            flows = _add_up(ops, drawn, len(domain_of))
    shown = {domain for entry in drawn for domain in entry.domains}
    hidden = {int(domain_of[rank]) for rank in idle} - shown
    return Flows(by_rank, tuple(drawn), flows, pairs, idle, len(hidden))


def _storing(tensors: Iterable[TensorSpec], side: Side, size: int) -> NDArray[np.bool_]:
    """Per rank, whether it stores an element of one of the tensors on one side."""
    stores = np.zeros(size, dtype=np.bool_)
    known: set[tuple[Layout, tuple[int, ...]]] = set()
    for tensor in tensors:
        for layout in tensor.layouts(side):
            if (layout, tensor.shape) in known:
                continue
            known.add((layout, tensor.shape))
            tiling = layout.tiling(tensor.shape)
            _, sample, alike = np.unique(tiling.alike, return_index=True, return_inverse=True)
            full = np.array([tiling.count(rank) > 0 for rank in tiling.ranks[sample].tolist()])
            stores[tiling.ranks[full[alike]]] = True
    return stores


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
    for entry in places:
        alike.setdefault((entry.holds, entry.needs), []).append(entry)
    joined = []
    for (holds, needs), entries in alike.items():
        for start in range(0, len(entries), size):
            part = entries[start : start + size]
            domains = tuple(domain for entry in part for domain in entry.domains)
            ranks = tuple(sorted(rank for entry in part for rank in entry.ranks))
            joined.append(Place(domains, ranks, holds, needs))
    return sorted(joined, key=lambda entry: entry.domains)


def _add_up(ops: Ops, places: Sequence[Place], size: int) -> tuple[Flow, ...]:
    """Sum operations by (place of src, place of dst, medium, role)."""
    place_of = np.zeros(size, dtype=np.int64)
    for number, entry in enumerate(places):
        place_of[list(entry.ranks)] = number
    count = len(places)
    key = ((place_of[ops.src] * count + place_of[ops.dst]) * _BYTE + ops.medium) * _BYTE + ops.role
    keys, position = np.unique(key, return_inverse=True)
    nbytes = np.zeros(len(keys), dtype=np.int64)
    np.add.at(nbytes, position, ops.nbytes)
    counts = np.bincount(position[ops.transfers()], minlength=len(keys))
    pair, medium, role = keys // _BYTE**2, keys // _BYTE % _BYTE, keys % _BYTE
    columns = (pair // max(1, count), pair % max(1, count), medium, role, counts, nbytes)
    return tuple(Flow(*row) for row in zip(*(column.tolist() for column in columns), strict=True))

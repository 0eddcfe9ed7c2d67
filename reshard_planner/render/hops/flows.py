"""Flows: the transfers of a plan, added up between places few enough to draw.

A place is a rank. Where that gives too much to draw it is a domain, and where that does, several domains
that are alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reshard_planner.ir.plan import Plan
from reshard_planner.render.hops.choice import Choice
from reshard_planner.render.moves import Moves, find_moves
from reshard_planner.render.places import RankFacts, RankPlace, join_alike, place_numbers
from reshard_planner.render.storing import storing_ranks
from reshard_planner.topology import Ports
from reshard_planner.transfer import Medium

MAX_EDGES = 72
"""Lines above which ranks are added up by domain: each has a text beside the others. Eight ranks that all
send to eight others, which all fan out, have as many."""

CROWD = 24
"""Lines between ranks above which flows of hardly any bytes are left out."""

SMALL = 1000
"""Part of the bytes of all flows, one in so many, below which a flow has hardly any."""

MANY = 4
"""Ranks from which on a fan-out is one line, where several ranks of a domain fan out to so many."""

MAX_JOINED_EDGES = 24
"""Edges above which domains that are alike are joined, ever more of them."""

MAX_RANKS = 28
"""Ranks and their domains, together, above which the same happens."""

MAX_PLACES = 20
"""Places, where these are domains, above which they are joined likewise."""

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
class Stroke:
    """What is drawn as one line.

    Attributes:
        flows: flows of one medium and role from one place; several where their text names the receivers.
        back: what comes back the same way, if that has the same line.
    """

    flows: tuple[Flow, ...]
    back: Flow | None = None

    @property
    def first(self) -> Flow:
        """The flow that the line is named by."""
        return self.flows[0]

    @property
    def to_many(self) -> bool:
        """Whether its receivers are only named."""
        return len(self.flows) > 1

    @property
    def every(self) -> tuple[Flow, ...]:
        """All its flows."""
        return self.flows if self.back is None else (*self.flows, self.back)

    @property
    def nbytes(self) -> int:
        return sum(flow.nbytes for flow in self.every)


@dataclass(frozen=True, slots=True)
class Place(RankPlace):
    """Ranks that are drawn as one node.

    Attributes:
        beside: number of further ranks of these domains, which are not in it.
        alone: whether it is the one rank that was asked for, among domains.
    """

    beside: int = 0
    alone: bool = False


@dataclass(frozen=True, slots=True)
class FlowGraph:
    """What a picture of transfers shows.

    Attributes:
        by_rank: whether every place is one rank.
        places: the nodes; flows name them by position.
        flows: what moves, sorted by (src, dst, medium, role).
        strokes: the lines: flows between places, some of them joined.
        left_out: flows between places of hardly any bytes, which have no line.
        pairs: number of flows between different ranks, before they were added up.
        idle: ranks without transfers that are in no place, ascending.
        idle_domains: number of domains without any drawn place.
    """

    by_rank: bool
    places: tuple[Place, ...]
    flows: tuple[Flow, ...]
    strokes: tuple[Stroke, ...]
    left_out: tuple[Flow, ...]
    pairs: int
    idle: tuple[int, ...]
    idle_domains: int


def find_flows(plan: Plan, choice: Choice | None = None) -> FlowGraph:
    """Add up the transfers of a plan, or those that were chosen."""
    choice = choice or Choice()
    moves = find_moves(plan, choice.tensors, rank=choice.rank, pieces=choice.pieces, boxes=choice.boxes)
    tensors = choice.tensors
    members = plan.spec.tensors if tensors is None else [plan.spec.tensors[at] for at in tensors]
    active = {*np.unique(moves.src).tolist(), *np.unique(moves.dst).tolist()}
    if choice.rank is not None:
        active.add(choice.rank)
    meshes = {layout.mesh for tensor in members for layout in (*tensor.src, *tensor.dst)}
    narrowed = choice.rank is not None or choice.pieces is not None
    ranks = sorted(active if narrowed else active.union(*(mesh.ranks for mesh in meshes)))
    domain_of = Ports.of(plan.spec.topology, {*ranks, *plan.spec.ranks}).domain
    size = len(domain_of)
    population = np.bincount(domain_of[list(plan.spec.ranks)], minlength=int(domain_of.max(initial=0)) + 1)
    holds = storing_ranks(members, "src", size) if choice.holders is None else _marked(choice.holders, size)
    needs = storing_ranks(members, "dst", size) if choice.needers is None else _marked(choice.needers, size)

    facts = RankFacts(domain_of, holds, needs)

    def drawable(place: RankPlace, *, alone: bool = False) -> Place:
        beside = max(0, int(population[list(place.domains)].sum()) - len(place.ranks))
        return Place(place.ranks, place.domains, place.holds, place.needs, beside, alone)

    single = [drawable(facts.place((rank,))) for rank in ranks]
    drawn, idle = _without_idle(single, active)
    between = _add_up(moves, drawn, size, between=True)
    frames = len({entry.domains for entry in drawn})
    strokes: tuple[Stroke, ...] = ()
    by_rank = len(drawn) + frames <= MAX_RANKS
    if by_rank:
        strokes = _join_flows(between, drawn)
        if len(strokes) > CROWD:
            strokes = _join_flows(_without_small(between), drawn)
        by_rank = len(strokes) <= MAX_EDGES
    if not by_rank:
        every = [drawable(each) for each in facts.by_domain(rank for rank in ranks if rank != choice.rank)]
        alone = [] if choice.rank is None else [drawable(facts.place((choice.rank,)), alone=True)]
        whole, idle = _without_idle([*every, *alone], active)
        drawn, most = whole, 1
        while most < len(whole) and (
            len(drawn) > MAX_PLACES or len(_add_up(moves, drawn, size, between=True)) > MAX_JOINED_EDGES
        ):
            most *= 2
            joined = [drawable(each) for each in join_alike((each for each in whole if not each.alone), most)]
            drawn = sorted([*joined, *alone], key=lambda each: (each.domains, each.alone))
    shown = {domain for entry in drawn for domain in entry.domains}
    hidden = {int(domain_of[rank]) for rank in idle} - shown
    flows = _add_up(moves, drawn, size)
    if not by_rank:
        strokes = tuple(Stroke((flow,)) for flow in flows if flow.src != flow.dst)
    with_line = {flow for stroke in strokes for flow in stroke.every}
    left_out = tuple(flow for flow in flows if flow.src != flow.dst and flow not in with_line)
    return FlowGraph(by_rank, tuple(drawn), flows, strokes, left_out, len(between), idle, len(hidden))


def _join_flows(flows: Sequence[Flow], places: Sequence[Place]) -> tuple[Stroke, ...]:
    """Lines of flows between ranks, fewer of them where those within a domain would be a knot.

    Both ways between two ranks are one line. Where several ranks of a domain each fan out to many, each of
    them has one line; the star of a single rank keeps all of its own.
    """
    near: dict[tuple[int, int, int], list[Flow]] = {}
    for flow in flows:
        if flow.medium == Medium.NVLINK and places[flow.src].domains == places[flow.dst].domains:
            near.setdefault((flow.src, flow.medium, flow.role), []).append(flow)
    large = {key: each for key, each in near.items() if len(each) >= MANY and _alike(each)}
    hubs = Counter(places[src].domains for src, _, _ in large)
    bundles = {key: each for key, each in large.items() if hubs[places[key[0]].domains] > 1}
    ways = {
        (flow.src, flow.dst, flow.medium, flow.role): flow
        for key, each in near.items()
        if key not in bundles
        for flow in each
    }
    strokes: list[Stroke] = []
    joined: set[Flow | None] = set()
    for flow in flows:
        key = (flow.src, flow.medium, flow.role)
        if key in bundles:
            if flow is bundles[key][0]:
                strokes.append(Stroke(tuple(bundles[key])))
            continue
        if flow in joined:
            continue
        here = (flow.src, flow.dst, flow.medium, flow.role) in ways
        back = ways.get((flow.dst, flow.src, flow.medium, flow.role)) if here else None
        strokes.append(Stroke((flow,), back))
        joined.add(back)
    return tuple(strokes)


def _alike(flows: Sequence[Flow]) -> bool:
    """Whether flows have about as many bytes, so that one text can say how many."""
    return max(flow.nbytes for flow in flows) <= 2 * min(flow.nbytes for flow in flows)


def _without_small(flows: Sequence[Flow]) -> tuple[Flow, ...]:
    """Those of more than hardly any bytes."""
    total = sum(flow.nbytes for flow in flows)
    return tuple(flow for flow in flows if flow.nbytes * SMALL >= total)


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


def _add_up(moves: Moves, places: Sequence[Place], size: int, *, between: bool = False) -> tuple[Flow, ...]:
    """Sum moves by (place of src, place of dst, medium, role); only those between places if so asked."""
    place_of = np.maximum(place_numbers(places, size), 0)
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

"""The strategy ``gather-broadcast``: the conventional refit, as the baseline.

The first rank of the source mesh gathers the whole tensor, in scratch. It is then broadcast whole to every
destination rank: along a chain through one leader per domain, and along a chain over NVLink within each
domain. Each rank keeps it in scratch and copies its tiles out.
"""

from __future__ import annotations

import itertools

from reshard_planner.box import Box
from reshard_planner.demand import Geometry
from reshard_planner.layout import Partition
from reshard_planner.routing.forest import NO_TILE, ROOT, Forest
from reshard_planner.routing.problem import Problem, Strategy
from reshard_planner.spec.tiles import SideTiles
from reshard_planner.transfer import Medium, Role


def route(problem: Problem) -> list[Forest]:
    """Route every tensor over its first source rank; see the module's text."""
    domain_of = problem.ports.domain.tolist()
    return [_route_geometry(geometry, domain_of) for geometry in problem.geometries]


def _route_geometry(geometry: Geometry, domain_of: list[int]) -> Forest:
    forest = Forest(geometry.tensors)
    source = geometry.sample.partitions("src")[0]
    tiles = SideTiles(geometry.sample, "dst")
    root = int(source.ranks[0])
    order = _broadcast_order(root, tiles.ranks(), domain_of)
    for holder, box in _distinct_tiles(source):
        _route_tile(forest, box, holder, root, order, tiles, domain_of)
    return forest


def _distinct_tiles(source: Partition) -> list[tuple[int, Box]]:
    """Every distinct tile with the first rank that stores it."""
    found: dict[Box, int] = {}
    for rank in source.ranks.tolist():
        for tile in source.tiles(rank):
            found.setdefault(tile.box, rank)
    return [(rank, box) for box, rank in found.items()]


def _broadcast_order(root: int, ranks: tuple[int, ...], domain_of: list[int]) -> list[tuple[int, int]]:
    """(sender, receiver) pairs: leaders from domain to domain, then neighbours within each domain."""
    by_domain: dict[int, list[int]] = {domain_of[root]: [root]}
    for rank in sorted(ranks, key=lambda rank: (domain_of[rank] != domain_of[root], domain_of[rank], rank)):
        if rank != root:
            by_domain.setdefault(domain_of[rank], []).append(rank)
    leaders = [members[0] for members in by_domain.values()]
    pairs = list(itertools.pairwise(leaders))
    for members in by_domain.values():
        pairs.extend(itertools.pairwise(members))
    return pairs


def _route_tile(
    forest: Forest,
    box: Box,
    holder: int,
    root: int,
    order: list[tuple[int, int]],
    tiles: SideTiles,
    domain_of: list[int],
) -> None:
    piece = forest.add_piece(box)
    arrival = {holder: ROOT}

    def hop(src: int, dst: int) -> None:
        parent = arrival[src]
        if domain_of[src] == domain_of[dst]:
            medium, role = Medium.NVLINK, Role.FANOUT
        else:
            medium, role = Medium.NETWORK, Role.INJECT if parent == ROOT else Role.RELAY
        arrival[dst] = forest.add(piece, parent, src, dst, medium, role, NO_TILE)

    if holder != root:
        hop(holder, root)
    for src, dst in order:
        if dst not in arrival:
            hop(src, dst)
    for rank in tiles.ranks():
        for number, entry in enumerate(tiles.tiles(rank)):
            part = entry.tile.box.intersect(box)
            if part.volume:
                smaller = piece if part == box else forest.add_piece(part)
                forest.add(smaller, arrival[rank], rank, rank, Medium.LOCAL, Role.COPY, number)


STRATEGY = Strategy(
    "gather-broadcast",
    route,
    claims_least=False,
    summary="the conventional refit: gather whole tensors at one source rank, broadcast them whole",
)

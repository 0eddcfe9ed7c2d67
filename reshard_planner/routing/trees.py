"""Writing chosen transfers as forests."""

from __future__ import annotations

from collections.abc import Sequence

from reshard_planner.box import Box
from reshard_planner.demand import Demand, Member
from reshard_planner.routing.forest import NO_TILE, ROOT, Forest, ForestBuilder
from reshard_planner.routing.items import Item
from reshard_planner.routing.problem import Problem
from reshard_planner.spec.tiles import SideTiles
from reshard_planner.transfer import Medium, Role

Transfer = tuple[int, int, Medium]
"""Sender, receiver and medium; transfers of a tree stand after those that feed them."""


def build_forests(
    problem: Problem,
    items: list[Item],
    groups: list[tuple[int, ...]],
    transfers: Sequence[Sequence[Transfer]],
) -> list[Forest]:
    """Write the chosen transfers as forests, in order of groups, classes and pieces."""
    forests = [ForestBuilder((Member(tensors, None),)) for tensors in groups]
    tiles: dict[int, SideTiles] = {}
    order = sorted(
        range(len(items)), key=lambda i: (items[i].group, items[i].demand.class_index, items[i].boxes)
    )
    for index in order:
        item = items[index]
        forest = forests[item.group]
        if item.group not in tiles:
            tiles[item.group] = SideTiles(problem.spec.tensors[groups[item.group][0]], "dst")
        for box in item.boxes:
            _add_tree(forest, box, item.demand, transfers[index], tiles[item.group])
    return [forest.build() for forest in forests]


def _add_tree(
    forest: ForestBuilder, box: Box, demand: Demand, transfers: Sequence[Transfer], tiles: SideTiles
) -> None:
    """Add one piece, the copies of its holders that need it themselves, and its transfers."""
    piece = forest.add_piece(box)
    holders = set(demand.holders)
    for rank in demand.needers:
        if rank in holders:
            forest.deliver(piece, ROOT, rank, rank, Medium.LOCAL, Role.COPY, tiles)
    needers = set(demand.needers)
    arrival: dict[int, int] = {}
    for src, dst, medium in transfers:
        parent = arrival.get(src, ROOT)
        proxy = dst not in needers
        if medium == Medium.NVLINK:
            handoff = proxy or (src not in needers and src not in holders)
            role = Role.HANDOFF if handoff else Role.FANOUT
        else:
            role = Role.INJECT if parent == ROOT else Role.RELAY
        if proxy:
            arrival[dst] = forest.add(piece, parent, src, dst, medium, role, NO_TILE)
        else:
            arrival[dst] = forest.deliver(piece, parent, src, dst, medium, role, tiles)

"""Where the nodes of a network stand: a column for each tier, to the right of what is plugged in."""

from __future__ import annotations

from collections.abc import Mapping

from reshard_planner.render.cluster.network import Network
from reshard_planner.render.cluster.picture import Node
from reshard_planner.render.sheets.rectangle import Rectangle
from reshard_planner.render.sheets.spread import spread

GAP, ACROSS, LINE, MAX_ACROSS = 12.0, 50.0, 2.5, 130.0
"""Room between nodes of a column; between columns: at least, more for each line, and at most; in points."""


def place_tiers(
    network: Network, boxes: Mapping[str, Rectangle], right: float
) -> list[tuple[Node, Rectangle]]:
    """Columns of the network, each node as near as there is room to the middle of what is below it.

    Args:
        network: the nodes and lines.
        boxes: of what is plugged in.
        right: end of the columns that stand before these.
    """
    known = dict(boxes)
    placed: list[tuple[Node, Rectangle]] = []
    below: dict[str, list[str]] = {}
    for line in network.lines:
        below.setdefault(line.head, []).append(line.tail)
    usual = sum(box.y for box in boxes.values()) / len(boxes) if boxes else 0.0
    for tier in network.tiers:
        wanted = []
        for node in tier:
            heights = [known[name].y for name in below.get(node.name, ()) if name in known]
            wanted.append(sum(heights) / len(heights) if heights else usual)
        middles = spread(wanted, [node.size[1] for node in tier], GAP)
        width = max(node.size[0] for node in tier)
        count = sum(len(below.get(node.name, ())) for node in tier)
        left = right + min(MAX_ACROSS, ACROSS + LINE * count)
        for node, y in zip(tier, middles, strict=True):
            box = Rectangle(left + width / 2, y, width, node.size[1])
            known[node.name] = box
            placed.append((node, box))
        right = left + width
    return placed

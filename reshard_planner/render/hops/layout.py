"""Where everything in a picture of transfers stands, in points from its upper left corner.

Columns stand side by side with room between them. Boxes and texts keep to their columns; lines bend between
columns only, and pass a column where it is free. So no line leads through a box, or a text but its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from reshard_planner.render.hops.flows import Stroke
from reshard_planner.render.hops.heights import Heights, Size, find_heights
from reshard_planner.render.hops.scene import NICS, TEXTS_BESIDE, Column, Scene
from reshard_planner.render.sheets.rectangle import Point, Rectangle
from reshard_planner.render.sheets.sheet import FRAME

APRON = 11.0
"""Length of a line that is straight where it meets a box, for its arrow."""

PORT = 30.0
"""Distance of a rank from its NIC."""

BEND, MAX_BEND = 18.0, 90.0
"""Least and most room for lines to bend in."""

CLOSE, SPREAD = 7.0, 9.0
"""Least and most distance between lines that meet a box on the same side."""

TURN = 3.0
"""Distance of both halves of a line from the middle of their text, where they meet it on the same side."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything stands.

    Attributes:
        boxes: nodes by name: places, NICs and texts of lines.
        frames: frames of domains by number.
        curves: lines as Bezier points, the first one and three for each piece, by the names of the nodes
            that they lead from and to; those of ranks and NICs by their names in this order.
    """

    boxes: dict[str, Rectangle]
    frames: dict[int, Rectangle]
    curves: dict[tuple[str, str], list[Point]]

    def below(self, height: float) -> Layout:
        """The same, moved to the left end of a sheet, below a height."""
        around = self.around()
        x, y = -around.left, height - around.top
        return Layout(
            {name: box.moved(x, y) for name, box in self.boxes.items()},
            {domain: frame.moved(x, y) for domain, frame in self.frames.items()},
            {ends: [(a + x, b + y) for a, b in curve] for ends, curve in self.curves.items()},
        )

    def around(self) -> Rectangle:
        """The least rectangle around all of it."""
        points = [point for curve in self.curves.values() for point in curve]
        every = [*self.boxes.values(), *self.frames.values(), *(Rectangle(x, y, 0, 0) for x, y in points)]
        return Rectangle.between(
            min((box.left for box in every), default=0.0),
            max((box.right for box in every), default=0.0),
            min((box.top for box in every), default=0.0),
            max((box.bottom for box in every), default=0.0),
        )


@dataclass(frozen=True, slots=True)
class _Half:
    """Half of a line, from a node to its text or on from there.

    Attributes:
        node: the node.
        other: the node at the end of the other half; the same where there is none.
        text: node of the text.
        onward: whether it leads from the text to the node.
        back: whether the other half meets the text on the same side.
    """

    node: str
    other: str
    text: str
    onward: bool
    back: bool


@dataclass(frozen=True, slots=True)
class _Columns:
    """Columns and heights, from which all else follows.

    Attributes:
        of: column of every node by name.
        extents: left and right end of each column that is used.
        heights: of every node.
    """

    of: dict[str, Column]
    extents: dict[Column, tuple[float, float]]
    heights: Heights

    def rightward(self, half: _Half) -> bool:
        """Whether half a line leaves its node to the right."""
        return self.of[half.node] < self.of[half.text]

    def box(self, name: str, size: Size) -> Rectangle:
        """A node in the middle of its column."""
        return Rectangle(sum(self.extents[self.of[name]]) / 2, self.heights.y[name], *size)

    def passed(self, half: _Half) -> list[Column]:
        """Columns that half a line passes on its way from its node."""
        begin, end = self.of[half.node], self.of[half.text]
        between = [column for column in self.extents if min(begin, end) < column < max(begin, end)]
        return sorted(between, reverse=begin > end)


def arrange(scene: Scene, sizes: Mapping[str, Size], titles: Mapping[int, float]) -> Layout:
    """Lay a scene out.

    Args:
        scene: the scene.
        sizes: width and height of every node by name, in points; nodes that many lines meet become higher.
        titles: width of the title of every domain that has a frame, by number.
    """
    column_of = {scene.name(number): side for number, side in enumerate(scene.sides)}
    column_of |= {f"nic_{nic}": NICS[scene.sides[number]] for number, nic in scene.nics.of_place.items()}
    strokes = scene.flows.strokes
    column_of |= {scene.text(stroke): scene.text_column(stroke.first) for stroke in strokes}
    halves = [half for stroke in strokes for half in _halves(scene, stroke, column_of)]
    sizes = _grown(sizes, column_of, halves)
    heights = find_heights(scene, sizes)
    columns = _Columns(column_of, _extents(scene, sizes, titles, column_of, heights, halves), heights)
    boxes = {name: columns.box(name, sizes[name]) for name in column_of}
    curves = {**_curves(boxes, columns, halves), **_port_curves(scene, boxes)}
    return Layout(boxes, _frames(scene, columns), curves)


def _halves(scene: Scene, stroke: Stroke, column_of: Mapping[str, Column]) -> Iterator[_Half]:
    text = scene.text(stroke)
    ends = [end for end, _ in scene.stroke_ends(stroke)]
    src, dst = ends[0], ends[-1]
    if src == dst:
        yield _Half(src, src, text, onward=False, back=False)
        return
    back = (column_of[src] < column_of[text]) == (column_of[dst] < column_of[text])
    yield _Half(src, dst, text, onward=stroke.back is not None, back=back)
    yield _Half(dst, src, text, onward=True, back=back)


def _grown(
    sizes: Mapping[str, Size], column_of: Mapping[str, Column], halves: Sequence[_Half]
) -> dict[str, Size]:
    """Sizes of nodes with room for all lines that meet them on one side."""
    meeting = Counter((half.node, column_of[half.node] < column_of[half.text]) for half in halves)
    grown = dict(sizes)
    for (node, _), count in meeting.items():
        width, height = grown[node]
        grown[node] = width, max(height, count * CLOSE + 6)
    return grown


def _extents(
    scene: Scene,
    sizes: Mapping[str, Size],
    titles: Mapping[int, float],
    column_of: Mapping[str, Column],
    heights: Heights,
    halves: Sequence[_Half],
) -> dict[Column, tuple[float, float]]:
    """Left and right end of each column that is used."""
    widths: dict[Column, float] = {}
    for name, column in column_of.items():
        widths[column] = max(widths.get(column, 0.0), sizes[name][0])
    nics = {scene.flows.places[number].domains[0] for number in scene.nics.of_place}
    for side, place in zip(scene.sides, scene.flows.places, strict=True):
        domain = place.domains[0]
        if domain in heights.frames:  # which is as wide as its title at least
            beside = PORT + widths[NICS[side]] if domain in nics else 0.0
            widths[side] = max(widths[side], titles[domain] - beside)
    found: dict[Column, tuple[float, float]] = {}
    x, left = 0.0, None
    for column in sorted(widths):
        if left is not None:
            x += _room(scene, left, column, column_of, heights, halves)
        found[column] = (x, x + widths[column])
        x, left = x + widths[column], column
    return found


def _room(
    scene: Scene,
    left: Column,
    right: Column,
    column_of: Mapping[str, Column],
    heights: Heights,
    halves: Sequence[_Half],
) -> float:
    """Room between two columns, more where lines have further to go up or down."""
    if {left, right} in ({side, nics} for side, nics in NICS.items()):
        return PORT
    bends = [
        abs(heights.y[half.node] - heights.y[half.text])
        for half in halves
        if min(column_of[half.node], column_of[half.text])
        <= left
        < max(column_of[half.node], column_of[half.text])
    ]
    inside = left in TEXTS_BESIDE.values() or right == TEXTS_BESIDE[Column.RIGHT]
    frames = 2 * FRAME if scene.flows.by_rank and not inside else 0.0
    return 2 * APRON + frames + min(MAX_BEND, BEND + max(bends, default=0.0) / 5)


def _curves(
    boxes: Mapping[str, Rectangle], columns: _Columns, halves: Sequence[_Half]
) -> dict[tuple[str, str], list[Point]]:
    """The halves of lines, those that meet a box on one side in the order of where they go."""
    meeting: dict[tuple[str, bool], list[_Half]] = {}
    for half in halves:
        meeting.setdefault((half.node, columns.rightward(half)), []).append(half)
    curves = {}
    for (node, _), together in meeting.items():
        box = boxes[node]
        together.sort(key=lambda half: (boxes[half.text].y, half.text, half.onward))
        step = min(SPREAD, (box.height - 6) / len(together))
        for at, half in enumerate(together):
            path = list(_path(half, box.y + (at - (len(together) - 1) / 2) * step, boxes, columns))
            ends = (half.text, half.node) if half.onward else (half.node, half.text)
            curves[ends] = _bent(path[::-1] if half.onward else path)
    return curves


def _path(half: _Half, y: float, boxes: Mapping[str, Rectangle], columns: _Columns) -> Iterator[Point]:
    """Points that half a line goes through from its node, which it leaves at a height, to its text."""
    node, text, heights = boxes[half.node], boxes[half.text], columns.heights
    rightward = columns.rightward(half)
    sign, near, far = (1, 0, 1) if rightward else (-1, 1, 0)
    yield node.right if rightward else node.left, y
    yield columns.extents[columns.of[half.node]][far] + sign * APRON, y
    for column in columns.passed(half):
        if column in (NICS[Column.LEFT], NICS[Column.RIGHT]):
            height, room = heights.y.get(f"{half.node}_way", y), 0.0
        else:
            height, room = heights.below.get((half.text, half.node), y), sign * FRAME
        yield columns.extents[column][near] - room, height
        yield columns.extents[column][far] + room, height
    turn = 0.0
    if half.back:
        lower = (node.y, half.onward) > (boxes[half.other].y, not half.onward)
        turn = TURN if lower else -TURN
    yield columns.extents[columns.of[half.text]][near], text.y + turn
    yield text.left if rightward else text.right, text.y + turn


def _bent(path: Sequence[Point]) -> list[Point]:
    """Bezier points of a path that is level at each of its points."""
    found = [path[0]]
    for (x, y), (to_x, to_y) in pairwise(path):
        found += [(x + (to_x - x) / 2, y), (x + (to_x - x) / 2, to_y), (to_x, to_y)]
    return found


def _port_curves(scene: Scene, boxes: Mapping[str, Rectangle]) -> dict[tuple[str, str], list[Point]]:
    """Lines between ranks and their NICs."""
    found = {}
    for number, nic in scene.nics.of_place.items():
        rank, port = boxes[scene.name(number)], boxes[f"nic_{nic}"]
        tail, head = (rank.right, port.left) if rank.x < port.x else (rank.left, port.right)
        found[scene.name(number), f"nic_{nic}"] = _bent([(tail, rank.y), (head, port.y)])
    return found


def _frames(scene: Scene, columns: _Columns) -> dict[int, Rectangle]:
    """Frames of domains, around the columns that they use."""
    inside: dict[int, set[Column]] = {}
    for number, place in enumerate(scene.flows.places):
        used = inside.setdefault(place.domains[0], set())
        used.add(scene.sides[number])
        if number in scene.nics.of_place:
            used.add(NICS[scene.sides[number]])
    for stroke in scene.flows.strokes:
        domain = scene.inside(stroke.first)
        if domain is not None:
            inside[domain].add(scene.text_column(stroke.first))
    return {
        domain: Rectangle.between(
            min(columns.extents[column][0] for column in inside[domain]) - FRAME,
            max(columns.extents[column][1] for column in inside[domain]) + FRAME,
            top,
            bottom,
        )
        for domain, (top, bottom) in columns.heights.frames.items()
    }

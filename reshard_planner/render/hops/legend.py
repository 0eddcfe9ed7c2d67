"""The legend of the picture of transfers: a piece of each line that occurs, and what it stands for."""

from __future__ import annotations

import graphviz

from reshard_planner.render.dot import dot_text
from reshard_planner.render.hops.lines import PORT, Line, class_of, line_look
from reshard_planner.render.sheets.rectangle import Rectangle
from reshard_planner.render.sheets.sheet import Sheet
from reshard_planner.render.sheets.widths import block_size

FONT, PITCH, SAMPLE = 10.0, 15.0, 44.0
"""Size of the font, distance of lines, and length of their samples, in points."""

ARROW = 8.0
"""Length of arrows of lines, in points."""


def legend_size(lines: list[Line]) -> tuple[float, float]:
    """Width and height in points."""
    widths = [block_size([_words(line)], FONT)[0] for line in lines]
    return SAMPLE + 8 + max(widths, default=0.0), len(lines) * PITCH


def add_legend(graph: graphviz.Digraph, sheet: Sheet, lines: list[Line], top: float) -> None:
    """Add one line of text for each kind of line, with a sample before it, from a height downwards."""
    for at, line in enumerate(lines):
        width, height = block_size([_words(line)], FONT)
        y = top + (at + 0.5) * PITCH
        name = f"key_{at}"
        graph.node(
            name,
            label=dot_text(_words(line)),
            shape="plaintext",
            fontsize=f"{FONT:g}",
            fontcolor=line.ink,
            id=name,
            **sheet.node(Rectangle(SAMPLE + 8 + width / 2, y, width, height)),
            **{"class": f"key {class_of(line)}"},
        )
        graph.node(
            f"{name}_start",
            label="",
            style="invis",
            **sheet.node(Rectangle(0, y, 0.1, 0.1)),
            **{"class": "key"},
        )
        points = [(0.0, y), (SAMPLE / 3, y), (SAMPLE * 2 / 3, y), (SAMPLE, y)]
        graph.edge(
            f"{name}_start",
            name,
            pos=sheet.edge(points, head=ARROW),
            penwidth="1" if line is PORT else "2",
            id=f"{name}_line",
            **line_look(line),
            **{"class": f"key {class_of(line)}"},
        )


def _words(line: Line) -> str:
    return f"{line.name}: {line.meaning}"

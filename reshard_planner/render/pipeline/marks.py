"""Pieces of SVG that pipeline pictures are made of, and what fills the bars of every kind of work."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from reshard_planner.render.pipeline.counts import Work

WIDTH, LEFT, RIGHT = 1000, 244, 16
"""Width of a picture, and what is left free at both sides of its cells, in points."""

LANE = 14
"""Height of one kind of work within a row: that of its name."""

ROW = 30
"""Least height of a row: that of the two lines that name it."""

GAP = 6
"""Height between rows."""

LINE = 17
"""Height of a line of text."""


@dataclass(frozen=True, slots=True)
class Look:
    """How bars of one kind of work are filled.

    Attributes:
        name: what they are called.
        meaning: what the legend says.
        lines: path of lines on a tile of 6 x 6 points; empty for one even colour.
    """

    name: str
    meaning: str
    lines: str = ""


LOOKS: dict[Work, Look] = {
    Work.INJECT: Look("inject", "sent over the network by a rank that holds the bytes"),
    Work.RELAY: Look(
        "relay",
        "sent on over the network by a rank that received them",
        "M-1 7L7 -1M-1 1L1 -1M5 7L7 5",
    ),
    Work.ARRIVE: Look("arrive", "received from the network", "M0 1.5H6M0 4.5H6"),
    Work.FANOUT: Look(
        "fan-out", "sent over NVLink to ranks of the domain that need them", "M1.5 0V6M4.5 0V6"
    ),
    Work.HANDOFF: Look(
        "handoff", "sent over NVLink to or from a rank that lends its NIC", "M0 1.5H6M1.5 0V6"
    ),
    Work.COPY: Look("copy", "copied within the rank", "M1 2h2v2h-2z"),
    Work.PACK: Look("pack", "copied into staging buffers before sending", "M-1 -1L7 7M-1 5L1 7M5 -1L7 1"),
}
"""How each kind of work is filled; the colours are those of :mod:`reshard_planner.render.pipeline.themes`."""


def fill(work: Work) -> str:
    """The class of bars of a kind of work."""
    return f"k{int(work)}"


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """A line of text with its baseline at (x, y)."""
    place = "" if anchor == "start" else f' text-anchor="{anchor}"'
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{number(x)}" y="{number(y)}"{named}{place}>{html.escape(words)}</text>'


def path(commands: str, kind: str) -> str:
    """A path of one class."""
    return f'<path class="{kind}" d="{commands}"/>'


def hover(words: Sequence[str], *parts: str) -> str:
    """Elements with lines of text that a browser shows when the pointer is on them."""
    return f"<g><title>{html.escape(chr(10).join(words))}</title>{''.join(parts)}</g>"


def box(x: float, y: float, width: float, height: float) -> str:
    """Path commands of a rectangle."""
    return f"M{number(x)} {number(y)}h{number(width)}v{number(height)}h{number(-width)}z"


def zigzag(x: float, y: float, width: float) -> str:
    """The mark of a clipped bar: a zigzag across a bar for which there is not enough room."""
    step = number(width / 4)
    commands = f"M{number(x)} {number(y)}" + "".join(f"l{step} {rise}" for rise in (-3, 3, -3, 3))
    return path(commands, "gap") + path(commands, "zigzag")


def number(value: float) -> str:
    """A coordinate with one decimal at most."""
    shown = f"{value:.1f}"
    return shown.removesuffix(".0") if shown != "-0.0" else "0"

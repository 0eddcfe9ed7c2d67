"""How pipeline pictures look: the colour and the pattern of every kind of work, and pieces of SVG."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from reshard_planner.render.dot import BLUE, FAINT, FONT, GREEN, INK, PURPLE, VERMILLION
from reshard_planner.render.pipeline.counts import Kind

ORANGE, SKY = "#E69F00", "#56B4E9"
"""Further colours of Okabe and Ito."""

WIDTH, LEFT, RIGHT = 1200, 230, 20
"""Width of a picture, and what is left free at both sides of its cells, in points."""

PREFIX = "rp-pipeline"
"""Begins the names of classes and patterns, so that pictures of other kinds stand beside this in one page."""


@dataclass(frozen=True, slots=True)
class Look:
    """How bars of one kind are filled.

    Attributes:
        name: what they are called.
        meaning: what the legend says.
        colour: of the ground, or of the lines on white.
        lines: path of lines on a tile of 6 x 6 points; empty for one even colour.
        tint: of the ground below coloured lines; lines are white where it is empty.
    """

    name: str
    meaning: str
    colour: str
    lines: str = ""
    tint: str = ""


LOOKS: dict[Kind, Look] = {
    Kind.INJECT: Look("inject", "sent over the network by a rank that holds the bytes", BLUE),
    Kind.RELAY: Look(
        "relay",
        "sent on over the network by a rank that received them",
        VERMILLION,
        "M-1 7L7 -1M-1 1L1 -1M5 7L7 5",
    ),
    Kind.ARRIVE: Look("arrive", "received from the network", BLUE, "M0 1.5H6M0 4.5H6", "#D3E7F5"),
    Kind.FANOUT: Look(
        "fan-out", "sent over NVLink to ranks of the domain that need them", GREEN, "M1.5 0V6M4.5 0V6"
    ),
    Kind.HANDOFF: Look(
        "handoff", "sent over NVLink to or from a rank that lends its NIC", PURPLE, "M0 1.5H6M1.5 0V6"
    ),
    Kind.COPY: Look("copy", "copied within the rank", FAINT, "M1 2h2v2h-2z"),
    Kind.PACK: Look(
        "pack",
        "copied into staging buffers before sending",
        ORANGE,
        "M-1 -1L7 7M-1 5L1 7M5 -1L7 1",
        "#FCEFCB",
    ),
}
"""How each kind of work is filled."""  # fmt: skip


def fill(kind: Kind) -> str:
    """The class of bars of a kind."""
    return f"k{int(kind)}"


def style_and_patterns() -> str:
    """The style sheet and the patterns that all pipeline pictures use."""
    rules, patterns = [], []
    for kind, look in LOOKS.items():
        mark = f"{PREFIX}-{fill(kind)}"
        ground, lines = (look.tint, look.colour) if look.tint else (look.colour, "#FFFFFF")
        if look.lines:
            patterns.append(
                f'<pattern id="{mark}" width="6" height="6" patternUnits="userSpaceOnUse">'
                f'<path d="M0 0H6V6H0Z" fill="{ground}"/>'
                f'<path d="{look.lines}" stroke="{lines}" fill="none"/></pattern>'
            )
        paint = f"url(#{mark})" if look.lines else look.colour
        rules.append(f".{fill(kind)}{{fill:{paint};stroke:{look.colour};stroke-width:0}}")
    rules += [
        f"text{{font-family:{FONT};font-size:11px;fill:{INK}}}",
        f".faint{{fill:{FAINT}}}",
        ".area{stroke-width:.8}",
        ".title{font-size:16px;font-weight:bold}",
        ".head{font-size:13px;font-weight:bold}",
        ".small{font-size:9px}",
        ".lane{font-size:8px}",
        ".line{stroke:#D0D0D0;fill:none}",
        f".axis{{stroke:{FAINT};fill:none}}",
        ".band{fill:#F4F4F4}",
        ".cell{fill:#FFFFFF;fill-opacity:0}",
        "g:hover>.cell{fill:#F0E442;fill-opacity:.4}",
        f".end{{stroke:{INK};fill:none;stroke-width:1.5}}",
        f".bound{{stroke:{INK};fill:none;stroke-dasharray:4 3}}",
    ]
    scoped = "".join(f".{PREFIX} {rule}" for rule in rules)
    return f"<style>{scoped}</style><defs>{''.join(patterns)}</defs>"


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


def number(value: float) -> str:
    """A coordinate with one decimal at most."""
    shown = f"{value:.1f}"
    return shown.removesuffix(".0") if shown != "-0.0" else "0"

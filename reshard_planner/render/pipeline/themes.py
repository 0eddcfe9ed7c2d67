"""Colours of pipeline pictures, for light and for dark surroundings: the viewer's preference decides.

Programs that know nothing of preferences show the light ones. No colour is a variable of the style sheet,
which some programs do not know either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from reshard_planner.render.dot import BLUE, FONT, GREEN, PURPLE, VERMILLION
from reshard_planner.render.pipeline.counts import Work
from reshard_planner.render.pipeline.marks import LOOKS, fill

PREFIX = "rp-pipeline"
"""Begins the names of classes and patterns, so that pictures of other kinds stand beside this in one page."""

ORANGE, GREY = "#E69F00", "#666666"

TINTED = frozenset((Work.ARRIVE, Work.PACK))
"""Kinds of work whose bars have a pale ground, from which their lines stand out."""


@dataclass(frozen=True, slots=True)
class Theme:
    """The colours of a picture.

    Attributes:
        paper: what all stands on.
        band: ground of a row.
        ink: text.
        faint: notes, and frames.
        grid: lines between columns.
        bars: of each kind of work the ground of its bars, and the lines on them.
    """

    paper: str
    band: str
    ink: str
    faint: str
    grid: str
    bars: Mapping[Work, tuple[str, str]]


LIGHT = Theme(
    paper="#FFFFFF",
    band="#F4F4F4",
    ink="#222222",
    faint="#5F5F5F",
    grid="#D0D0D0",
    bars=MappingProxyType(
        {
            Work.INJECT: (BLUE, "#FFFFFF"),
            Work.RELAY: (VERMILLION, "#FFFFFF"),
            Work.ARRIVE: ("#D3E7F5", BLUE),
            Work.FANOUT: (GREEN, "#FFFFFF"),
            Work.HANDOFF: (PURPLE, "#FFFFFF"),
            Work.COPY: (GREY, "#FFFFFF"),
            Work.PACK: ("#FCEFCB", ORANGE),
        }
    ),
)

DARK = Theme(
    paper="#16181B",
    band="#22262B",
    ink="#EEEEEE",
    faint="#B4B8BE",
    grid="#454A51",
    bars=MappingProxyType(
        {
            Work.INJECT: ("#4FA3E0", "#16181B"),
            Work.RELAY: ("#F0803C", "#16181B"),
            Work.ARRIVE: ("#17364D", "#4FA3E0"),
            Work.FANOUT: ("#2BB88F", "#16181B"),
            Work.HANDOFF: ("#DE9CC0", "#16181B"),
            Work.COPY: ("#A0A6AE", "#16181B"),
            Work.PACK: ("#40330F", "#E6A93A"),
        }
    ),
)


def style_and_patterns() -> str:
    """The style sheet and the patterns that all pipeline pictures use."""
    patterns = [
        f'<pattern id="{PREFIX}-{fill(work)}" width="6" height="6" patternUnits="userSpaceOnUse">'
        f'<path class="g{int(work)}" d="M0 0H6V6H0Z"/>'
        f'<path class="l{int(work)}" d="{look.lines}"/></pattern>'
        for work, look in LOOKS.items()
        if look.lines
    ]
    dark = _scoped(_colours(DARK))
    rules = f"{_scoped(_shapes())}{_scoped(_colours(LIGHT))}@media (prefers-color-scheme:dark){{{dark}}}"
    return f"<style>{rules}</style><defs>{''.join(patterns)}</defs>"


def _scoped(rules: list[str]) -> str:
    return "".join(f".{PREFIX} {rule}" for rule in rules)


def _shapes() -> list[str]:
    """Rules that no theme changes."""
    fills = [
        f".{fill(work)}{{fill:url(#{PREFIX}-{fill(work)});stroke-width:0}}"
        if look.lines
        else f".{fill(work)}{{stroke-width:0}}"
        for work, look in LOOKS.items()
    ]
    return [
        *fills,
        f"text{{font-family:{FONT};font-size:12px}}",
        ".area{stroke-width:.8}",
        ".title{font-size:17px;font-weight:bold}",
        ".head{font-size:14px;font-weight:bold}",
        ".small{font-size:11px}",
        ".cell{fill-opacity:0}",
        "g:hover>.cell{fill:#F0E442;fill-opacity:.4}",
        ".grid{fill:none}",
        ".end{fill:none;stroke-width:1.5}",
        ".bound{fill:none;stroke-dasharray:4 3}",
        ".gap{fill:none;stroke-width:5}",
        ".zigzag{fill:none;stroke-width:1.2}",
        ".over{fill:none;stroke-width:2.5}",
        "defs path{fill:none}",
    ]


def _colours(theme: Theme) -> list[str]:
    """Rules that a theme decides."""
    bars = []
    for work, look in LOOKS.items():
        ground, lines = theme.bars[work]
        bars.append(f".{fill(work)}{{stroke:{lines if work in TINTED else ground}}}")
        if look.lines:
            bars += [
                f"defs .g{int(work)}{{fill:{ground}}}",
                f"defs .l{int(work)}{{stroke:{lines}}}",
            ]
        else:
            bars.append(f".{fill(work)}{{fill:{ground}}}")
    return [
        f".paper{{fill:{theme.paper}}}",
        f".band{{fill:{theme.band}}}",
        f"text{{fill:{theme.ink}}}",
        f".faint{{fill:{theme.faint}}}",
        f".grid{{stroke:{theme.grid}}}",
        f".end,.{PREFIX} .bound,.{PREFIX} .over,.{PREFIX} .zigzag{{stroke:{theme.ink}}}",
        f".gap{{stroke:{theme.paper}}}",
        *bars,
    ]

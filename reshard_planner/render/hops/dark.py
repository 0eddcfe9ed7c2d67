"""Colours of the picture of transfers for dark surroundings, where its viewer prefers those.

Graphviz takes no styles but the address of a style sheet, so the sheet is its own address;
:mod:`reshard_planner.render.svg` puts it into the picture. All rules are for this kind of picture alone, so
that others may stand beside it in one page.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

from reshard_planner.render.hops.lines import LINES
from reshard_planner.render.kinds import medium_name, role_name
from reshard_planner.render.pipeline.counts import WORK_OF_ROLE
from reshard_planner.render.pipeline.themes import DARK
from reshard_planner.transfer import Role

PICTURE = "rp-transfers"
"""Class of the picture."""

NIC = "#33404D"
"""Ground of NICs."""


def stylesheet() -> str:
    """Address of the style sheet, which holds all of it; by class of the picture's elements."""
    rules = "".join(f"{_scoped(selectors)}{{{style}}}" for selectors, style in _rules())
    return "data:text/css," + quote(f"@media (prefers-color-scheme:dark){{{rules}}}", safe=":;,{}()@.*-=/")


def _scoped(selectors: str) -> str:
    """Selectors for this kind of picture alone."""
    return ",".join(
        f".{PICTURE}{each if each.startswith('>') else f' {each}'}" for each in selectors.split(",")
    )


def _rules() -> Iterator[tuple[str, str]]:
    """Selectors below the picture, and their style."""
    # graphviz has a link around what has a tooltip: the second selector of each pair
    yield ">polygon,>g>a>polygon", f"fill:{DARK.paper}"
    yield "text", f"fill:{DARK.ink}"
    yield ".domain path,.domain polygon", f"fill:{DARK.band};stroke:{DARK.faint}"
    yield ".rank path,.rank polygon,.domains path,.domains polygon", f"fill:{DARK.paper};stroke:{DARK.faint}"
    yield ".nic polygon", f"fill:{NIC};stroke:{DARK.faint}"
    yield ".edge path,.edge polygon,.edge polyline", f"stroke:{DARK.faint}"
    yield ".port polygon", f"fill:{DARK.faint}"
    for (medium, role), line in LINES.items():
        kind = f".{medium_name(medium)}.{role_name(role)}"
        colour = DARK.bars[WORK_OF_ROLE[Role(role)]][0]
        yield f".edge{kind} path,.edge{kind} polygon,.edge{kind} polyline", f"stroke:{colour}"
        yield f"{kind} text", f"fill:{colour}"
        if line.arrow != "empty":
            yield f".edge{kind} polygon", f"fill:{colour}"
        if line.double:  # three lines, of which the one in the middle parts the others
            yield f".edge{kind} path:nth-of-type(2)", f"stroke:{DARK.paper}"

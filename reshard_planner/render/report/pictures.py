"""The pictures of a report: transfers, and layouts, one for all tensors that are laid out alike."""

from __future__ import annotations

import re
from dataclasses import dataclass

from reshard_planner.demand import Geometry, find_geometries
from reshard_planner.errors import InputError
from reshard_planner.ir.plan import Plan
from reshard_planner.render.hops.choice import choose
from reshard_planner.render.hops.scene import Scene, set_scene
from reshard_planner.render.hops.transfers import transfers_dot
from reshard_planner.render.layouts.svg import layouts_svg
from reshard_planner.render.svg import to_svg
from reshard_planner.topology import Ports

MAX_LAYOUTS = 24
"""Most pictures of layouts, those of most bytes first."""

MAX_LAYOUT_CHARACTERS = 1_500_000
"""Most characters of all of them together."""

MAX_HOPS_CHARACTERS = 1_000_000
"""Most characters of the picture of transfers."""


STYLE = re.compile(r"<style.*?</style>", re.DOTALL)
"""The style elements of a picture."""

DARK = re.compile(r"@media\s*\(prefers-color-scheme:\s*dark\)")
"""What begins styles for dark screens."""

DARK_SCREENS = "@media screen and (prefers-color-scheme: dark)"
"""What it becomes: paper is white, and the script of the page finds it where a theme is chosen."""


@dataclass(frozen=True, slots=True)
class LayoutPicture:
    """How some tensors are laid out before and after.

    Attributes:
        tensors: their positions in the spec, ascending; the picture shows the first.
        nbytes: bytes of all of them.
        svg: the picture; None where it was left out, since pages are limited.
    """

    tensors: tuple[int, ...]
    nbytes: int
    svg: str | None


@dataclass(frozen=True, slots=True)
class Pictures:
    """All pictures of a report.

    Attributes:
        scene: what the picture of transfers shows.
        hops: transfers between ranks or domains; None where it could not be drawn.
        hops_note: why not.
        layouts: by geometry, those of most bytes first.
    """

    scene: Scene
    hops: str | None
    hops_note: str
    layouts: tuple[LayoutPicture, ...]


def draw_pictures(plan: Plan) -> Pictures:
    """Draw what a report of a plan shows."""
    hops, note = _hops(plan)
    ports = Ports.of(plan.spec.topology, plan.ranks)
    room = MAX_LAYOUT_CHARACTERS
    layouts: list[LayoutPicture] = []
    for tensors, nbytes in sorted(_alike(plan, find_geometries(plan.spec, ports)), key=lambda each: -each[1]):
        svg = None
        if len(layouts) < MAX_LAYOUTS:
            drawn = element(layouts_svg(plan.spec.tensors[tensors[0]]))
            if len(drawn) <= room:
                svg = drawn
                room -= len(drawn)
        layouts.append(LayoutPicture(tensors, nbytes, svg))
    return Pictures(set_scene(plan, choose(plan)), hops, note, tuple(layouts))


def _alike(plan: Plan, geometries: tuple[Geometry, ...]) -> list[tuple[tuple[int, ...], int]]:
    """Tensors of each geometry, and their bytes."""
    found = []
    for geometry in geometries:
        tensors = tuple(sorted(at for member in geometry.members for at in member.tensors))
        found.append((tensors, sum(plan.spec.tensors[at].nbytes for at in tensors)))
    return found


def _hops(plan: Plan) -> tuple[str | None, str]:
    """The picture of transfers, or why there is none."""
    try:
        drawn = element(to_svg(transfers_dot(plan)).decode())
    except InputError as error:
        return None, str(error)
    if len(drawn) > MAX_HOPS_CHARACTERS:
        return None, "The picture would be too large for this page; draw makes it."
    return drawn, ""


def element(svg: str) -> str:
    """The ``svg`` element of a document alone, as HTML takes it, whose dark styles are for screens only."""
    return STYLE.sub(lambda style: DARK.sub(DARK_SCREENS, style[0]), svg[svg.index("<svg") :].strip())

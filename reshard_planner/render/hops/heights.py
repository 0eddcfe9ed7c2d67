"""Heights of everything in a picture of transfers, in points downwards.

Domains are stacked in order, with their ranks in order. Texts stand as near as can be to where their lines
end. All sides have their middles at the same height.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reshard_planner.render.hops.flows import Stroke
from reshard_planner.render.hops.scene import TEXTS_BESIDE, Column, Scene
from reshard_planner.render.sheets.sheet import FRAME
from reshard_planner.render.sheets.spread import spread

Size = tuple[float, float]

BOX_GAP, TEXT_GAP, DOMAIN_GAP, WAY_GAP = 9.0, 4.0, 12.0, 8.0
"""Least distance from one to the next below it: boxes, texts, frames of domains, lines that pass."""

TITLE = 22.0
"""Room between the top of a domain's frame and what is in it, for its title."""


@dataclass(frozen=True, slots=True)
class Heights:
    """Where everything stands from top to bottom.

    Attributes:
        y: centre of every node, by name; of a rank without NIC among others also ``NAME_way``, where its
            lines pass their column.
        frames: top and bottom of the frames of domains, by number.
        below: heights of lines that pass below the middle side, by the names of text and sender or receiver.
    """

    y: dict[str, float]
    frames: dict[int, tuple[float, float]]
    below: dict[tuple[str, str], float]


def find_heights(scene: Scene, sizes: Mapping[str, Size]) -> Heights:
    """Give every node its height.

    Args:
        scene: the scene.
        sizes: width and height of every node by name, in points.
    """
    found = Heights({}, {}, {})
    low = 0.0
    for side in TEXTS_BESIDE:
        end = _stack(scene, sizes, side, found)
        low = end if side == Column.MIDDLE else low
    strokes = scene.flows.strokes
    for stroke in strokes:
        for end_name, number in scene.stroke_ends(stroke):
            among = scene.text_column(stroke.first) == Column.TEXTS
            if scene.sides[number] == Column.LEFT and among and low:
                low += WAY_GAP
                found.below[scene.text(stroke), end_name] = low
    for column in Column:
        texts = [stroke for stroke in strokes if scene.text_column(stroke.first) == column]
        if scene.flows.by_rank and column != Column.TEXTS:
            continue  # these stand in the frames of their domains
        found.y.update(_texts(scene, sizes, texts, found.y))
    return found


def _stack(scene: Scene, sizes: Mapping[str, Size], side: Column, found: Heights) -> float:
    """Stack the domains of a side, or its places where these are domains; return where they end."""
    by_domain: dict[int, list[int]] = {}
    for number, place in enumerate(scene.flows.places):
        if scene.sides[number] == side:
            by_domain.setdefault(place.domains[0] if scene.flows.by_rank else number, []).append(number)
    own: dict[str, float] = {}
    frames: dict[int, tuple[float, float]] = {}
    top = 0.0
    for domain, numbers in by_domain.items():
        if not scene.flows.by_rank:
            height = sizes[scene.name(domain)][1]
            own[scene.name(domain)] = top + height / 2
            top += height + 2 * BOX_GAP
            continue
        inside = _domain(scene, sizes, domain, numbers)
        extents = {name: sizes[name][1] if name in sizes else WAY_GAP for name in inside}
        first = min(y - extents[name] / 2 for name, y in inside.items())
        last = max(y + extents[name] / 2 for name, y in inside.items())
        down = top + TITLE - first
        own.update({name: y + down for name, y in inside.items()})
        frames[domain] = top, last + down + FRAME
        top = frames[domain][1] + DOMAIN_GAP
    found.y.update({name: y - top / 2 for name, y in own.items()})
    found.frames.update(
        {domain: (first - top / 2, last - top / 2) for domain, (first, last) in frames.items()}
    )
    return top / 2


def _domain(scene: Scene, sizes: Mapping[str, Size], domain: int, numbers: Sequence[int]) -> dict[str, float]:
    """Heights within one domain: ranks in order, NICs at the middle of their ranks, and texts."""
    names = [scene.name(number) for number in numbers]
    nics = [f"nic_{nic}" for nic in scene.nics.inside(numbers)]
    step = max(sizes[name][1] for name in (*names, *nics)) + BOX_GAP
    found = {name: at * step for at, name in enumerate(names)}
    if nics:
        ranks_of: dict[str, list[float]] = {}
        for number, name in zip(numbers, names, strict=True):
            nic = scene.nics.of_place.get(number)
            ranks_of.setdefault(f"{name}_way" if nic is None else f"nic_{nic}", []).append(found[name])
        middles = sorted((sum(each) / len(each), name) for name, each in ranks_of.items())
        extents = [sizes[name][1] if name in sizes else WAY_GAP for _, name in middles]
        centres = spread([middle for middle, _ in middles], extents, TEXT_GAP)
        found.update(zip((name for _, name in middles), centres, strict=True))
    texts = [stroke for stroke in scene.flows.strokes if scene.inside(stroke.first) == domain]
    return found | _texts(scene, sizes, texts, found)


def _texts(
    scene: Scene, sizes: Mapping[str, Size], strokes: Sequence[Stroke], y: Mapping[str, float]
) -> dict[str, float]:
    """Heights of the texts of one column.

    Beside a side they stand at the middle of their lines; between sides where lines end, unless all of them
    end at one place.
    """
    one = len({stroke.first.dst for stroke in strokes}) == 1
    wanted = []
    for stroke in strokes:
        heights = [y[end] for end, _ in scene.stroke_ends(stroke)]
        src, dst = heights[0], heights[-1]
        between = one or scene.text_column(stroke.first) != Column.TEXTS
        wanted.append(((src + dst) / 2 if between else dst, src, scene.text(stroke)))
    wanted.sort()
    centres = spread([middle for middle, _, _ in wanted], [sizes[text][1] for _, _, text in wanted], TEXT_GAP)
    return {text: centre for (_, _, text), centre in zip(wanted, centres, strict=True)}

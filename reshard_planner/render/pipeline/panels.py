"""Timelines drawn side by side: a panel each, with the same rows.

Where they last about as long they have the same scale of time and of height.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reshard_planner.render.pipeline.counts import Work
from reshard_planner.render.pipeline.heights import ROUNDING, LaneHeights, find_heights
from reshard_planner.render.pipeline.marks import (
    GAP,
    LANE,
    LEFT,
    RIGHT,
    WIDTH,
    box,
    fill,
    hover,
    number,
    path,
    text,
)
from reshard_planner.render.pipeline.rows import PictureRows
from reshard_planner.render.pipeline.slots import first_lane, row_height, row_names
from reshard_planner.render.pipeline.times import Floats, PanelLane, TimelineUse
from reshard_planner.render.text import format_nbytes, format_s
from reshard_planner.topology import Ports

BETWEEN = 30
"""Width between panels."""

PARTS = 140
"""Parts of the time that a panel shows the means of."""

LABELS = {
    PanelLane.NIC_OUT: "NIC out",
    PanelLane.NIC_IN: "NIC in",
    PanelLane.NVLINK: "NVLink",
    PanelLane.PACK: "pack/unpack",
}

FILLS = {
    PanelLane.NIC_OUT: Work.INJECT,
    PanelLane.NIC_IN: Work.ARRIVE,
    PanelLane.NVLINK: Work.FANOUT,
    PanelLane.PACK: Work.PACK,
}
"""Kinds of work that lanes are filled like."""


@dataclass(frozen=True, slots=True)
class Panels:
    """What is common to all panels of a picture.

    Attributes:
        rows: ranks of each row.
        ports: links of all ranks.
        bound_s: the bound T*, in seconds.
        uses: what they show.
    """

    rows: PictureRows
    ports: Ports
    bound_s: float
    uses: tuple[TimelineUse, ...]

    @property
    def one_scale(self) -> bool:
        """Whether all panels have one scale of time and of height."""
        return len({use.span_s for use in self.uses}) == 1

    @property
    def width(self) -> float:
        """Width of one panel."""
        free = WIDTH - LEFT - RIGHT - BETWEEN * (len(self.uses) - 1)
        return free / len(self.uses)

    def left(self, column: int) -> float:
        """Where a panel begins, in points."""
        return LEFT + column * (self.width + BETWEEN)

    def shown(self) -> list[int]:
        """Rows in which anything happens."""
        return [at for at in range(len(self.rows)) if self.lanes(at)]

    def lanes(self, at: int | None = None) -> list[PanelLane]:
        """Lanes in which anything takes time, of one row or of any."""
        rows = slice(None) if at is None else at
        return [lane for lane in PanelLane if any(use.rate[rows, lane].any() for use in self.uses)]

    def free_packing(self) -> list[str]:
        """Titles of the runs that pack in no time."""
        lane = PanelLane.PACK
        return [use.title for use in self.uses if use.nbytes[:, lane].any() and not use.rate[:, lane].any()]

    def heights(self) -> tuple[LaneHeights, ...]:
        """Full heights of each timeline: of all together if they have one scale of time."""
        if self.one_scale:
            return (find_heights(self.rows, self.ports, self.uses),) * len(self.uses)
        return tuple(find_heights(self.rows, self.ports, (use,)) for use in self.uses)


def draw_panels(panels: Panels, top: float) -> tuple[list[str], float]:
    """All panels, their axes and the names of their rows.

    Returns:
        Elements, and where they end.
    """
    heights = panels.heights()
    first = y = top + 42
    parts: list[str] = []
    for at in panels.shown():
        lanes = panels.lanes(at)
        height = row_height(len(lanes))
        parts += row_names(panels.rows.places[at], [LABELS[lane] for lane in lanes], y)
        for column, use in enumerate(panels.uses):
            x = panels.left(column)
            parts.append(path(box(x, y, panels.width, height), "band"))
            full = heights[column].full
            for number_of_lane, lane in enumerate(lanes):
                if use.rate[at, lane].any():
                    shares = use.rate[at, lane] / full[at, lane]
                    parts.append(
                        _lane(
                            panels,
                            use,
                            at,
                            lane,
                            shares,
                            (x, first_lane(y, len(lanes)) + LANE * number_of_lane),
                        )
                    )
        y += height + GAP
    for column, use in enumerate(panels.uses):
        parts += _frame(panels, use, panels.left(column), top, (first, y))
    return parts, y


def _lane(
    panels: Panels,
    use: TimelineUse,
    at: int,
    lane: PanelLane,
    shares: Floats,
    corner: tuple[float, float],
) -> str:
    """One lane of one row in a panel, and on hover its bytes."""
    x, y = corner
    place = panels.rows.places[at]
    busy = f"{shares.mean():.1%} of full height on average over {format_s(use.span_s)}"
    words = [
        f"{use.title}: {place.name}, {place.where}",
        f"{LABELS[lane]}: {format_nbytes(int(use.nbytes[at, lane]))}, {busy}, {shares.max():.1%} at most",
    ]
    area = _area(shares, x, y + LANE, panels.width, LANE - 1)
    parts = [path(box(x, y, panels.width, LANE), "cell"), path(area, f"{fill(FILLS[lane])} area")]
    above = _above(shares, x, y + 1, panels.width)
    return hover(words, *parts, *([path(above, "over")] if above else []))


def _above(shares: Floats, x: float, y: float, width: float) -> str:
    """Path commands of lines over the parts of the time with more than full height."""
    step = width / len(shares)
    return "".join(
        f"M{number(x + part * step)} {number(y)}h{number(step)}"
        for part in np.flatnonzero(shares > 1 + ROUNDING).tolist()
    )


def _area(shares: Floats, x: float, base: float, width: float, height: float) -> str:
    """Path commands of steps above a base line; what is above zero is at least one point high."""
    highs = np.where(shares > 0, np.maximum(1.0, np.minimum(1.0, shares) * height), 0.0).round(1)
    begins = np.flatnonzero(np.diff(highs, prepend=-1.0))
    step, commands, raised = width / len(highs), "", False
    for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), len(highs)], strict=True):
        if highs[begin]:
            start = "" if raised else f"M{number(x + begin * step)} {number(base)}"
            commands += f"{start}V{number(base - highs[begin])}H{number(x + end * step)}"
            raised = True
        elif raised:
            commands, raised = commands + f"V{number(base)}z", False
    return commands + (f"V{number(base)}z" if raised else "")


def _frame(panels: Panels, use: TimelineUse, x: float, top: float, rows: tuple[float, float]) -> list[str]:
    """Title, times, end of the run, and T*."""
    first, bottom = rows[0] - 6, rows[1]
    scale = panels.width / use.span_s
    parts = [text(x, top + 14, f"{use.title}: {format_s(use.end_s)}", "head")]
    step = _nice(use.span_s / max(2, panels.width / 90))
    ticks = [tick * step for tick in range(int(use.span_s / step * 1.000001) + 1)]
    parts += [text(x + at * scale, first - 2, format_s(at), "small faint", "middle") for at in ticks]
    parts.append(
        path("".join(f"M{number(x + at * scale)} {number(first)}V{number(bottom)}" for at in ticks), "grid")
    )
    end = f"M{number(x + use.end_s * scale)} {number(first)}V{number(bottom)}"
    parts.append(hover([f"{use.title}: ends at {format_s(use.end_s)}"], path(end, "end")))
    if 0 < panels.bound_s <= use.span_s:
        at = x + panels.bound_s * scale
        words = [f"T*, the least time of any plan of least payload: {format_s(panels.bound_s)}"]
        parts.append(hover(words, path(f"M{number(at)} {number(first)}V{number(bottom + 4)}", "bound")))
        parts.append(text(at, bottom + 13, f"T* {format_s(panels.bound_s)}", "small", "middle"))
    return parts


def _nice(least: float) -> float:
    """The least of 1, 2 and 5 times a power of ten that is not below a number."""
    power = 10.0 ** np.floor(np.log10(least))
    return float(next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * 0.999))

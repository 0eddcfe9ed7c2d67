"""Timelines drawn side by side: a panel each, with the same rows and the same scale of time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from reshard_planner.render.pipeline.counts import Kind
from reshard_planner.render.pipeline.marks import LEFT, RIGHT, WIDTH, box, fill, hover, number, path, text
from reshard_planner.render.pipeline.rows import Rows
from reshard_planner.render.pipeline.slots import TWO_LINES, lane_names, row_names
from reshard_planner.render.pipeline.times import Floats, Lane, Use, nic_rate
from reshard_planner.render.text import format_nbytes, format_rate, format_s
from reshard_planner.topology import Ports

HEIGHT = 700
"""Height of all rows together that is aimed at, in points."""

LEAST_LANE, MOST_LANE = 5, 16
"""Heights of one lane."""

GAP = 5
"""Height between rows."""

BETWEEN = 30
"""Width between panels."""

PARTS = 140
"""Parts of the time that a panel shows the means of."""

LABELS = {Lane.NIC_OUT: "NIC out", Lane.NIC_IN: "NIC in", Lane.NVLINK: "NVLink", Lane.PACK: "pack/unpack"}

FILLS = {Lane.NIC_OUT: Kind.INJECT, Lane.NIC_IN: Kind.ARRIVE, Lane.NVLINK: Kind.FANOUT, Lane.PACK: Kind.PACK}
"""Kinds of work that lanes are filled like."""


@dataclass(frozen=True, slots=True)
class Panels:
    """What is common to all panels of a picture.

    Attributes:
        rows: ranks of each row.
        ports: links of all ranks.
        span_s: time that panels show, in seconds.
        bound_s: the bound T*, in seconds.
        uses: what they show.
    """

    rows: Rows
    ports: Ports
    span_s: float
    bound_s: float
    uses: tuple[Use, ...]

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
        happens = sum(use.nbytes.any(axis=1).astype(int) for use in self.uses)
        return np.flatnonzero(happens).tolist()

    def lanes(self, at: int | None = None) -> list[Lane]:
        """Lanes in which anything happens, of one row or of any."""
        rows = slice(None) if at is None else at
        return [lane for lane in Lane if any(use.nbytes[rows, lane].any() for use in self.uses)]

    def full_rates(self) -> Floats:
        """Rate that the full height stands for, per row and lane, as those of :class:`Use`.

        It is the rate of the row's NICs, of NVLink the largest rate per rank anywhere, and of packing all
        ranks. Where a run was faster than its NICs are said to be, all NICs are taken to be that fast.
        """
        ranks = np.array([len(row.ranks) for row in self.rows.rows])
        full = np.ones((len(ranks), len(Lane)))
        nics = np.array([nic_rate(self.rows, self.ports, at) for at in range(len(ranks))], dtype=np.float64)
        nics[nics == 0] = 1.0
        peak = np.max([use.rate.max(axis=2, initial=0.0) for use in self.uses], axis=0)
        for lane in (Lane.NIC_OUT, Lane.NIC_IN):
            full[:, lane] = nics * max(1.0, float((peak[:, lane] / nics).max(initial=0.0)))
        full[:, Lane.NVLINK] = ranks * max(1.0, float((peak[:, Lane.NVLINK] / ranks).max(initial=0.0)))
        full[:, Lane.PACK] = max(1.0, float(peak[:, Lane.PACK].max(initial=0.0)))
        return full


def meanings(panels: Panels) -> list[tuple[Lane, str]]:
    """What the height of each lane stands for, in words."""
    shown, full = panels.shown(), panels.full_rates()
    members = [list(panels.rows.rows[at].ranks) for at in shown]
    nics = [nic_rate(panels.rows, panels.ports, at) for at in shown]
    faster = any(full[at, Lane.NIC_OUT] > 1.001 * max(1, rate) for at, rate in zip(shown, nics, strict=True))
    nic = "the most seen, above the rate of the NICs" if faster else f"the row's NICs, {_rates(nics)}"
    per_rank = full[shown[0], Lane.NVLINK] / len(members[0]) if shown else 0.0
    links = [int(rate) for ranks in members for rate in panels.ports.nvlink_bytes_per_s[ranks].tolist()]
    words = {
        Lane.NIC_OUT: f"sent over the network; full height is {nic}",
        Lane.NIC_IN: f"received from the network; full height is {nic}",
        Lane.NVLINK: "sent and received over NVLink; full height is the most seen,"
        f" {format_rate(int(per_rank))} per rank; a link has {_rates(links)} in each direction",
        Lane.PACK: "copying, packing and unpacking; full height is all the time of all ranks",
    }
    return [(lane, words[lane]) for lane in panels.lanes()]


def _rates(rates: Iterable[int]) -> str:
    """Least and largest of some rates, once if they are equal."""
    ends = sorted(set(rates)) or [0]
    return " to ".join(dict.fromkeys((format_rate(ends[0]), format_rate(ends[-1]))))


def draw_panels(panels: Panels, top: float) -> tuple[list[str], float]:
    """All panels, their axes and the names of their rows.

    Returns:
        Elements, and where they end.
    """
    shown = panels.shown()
    many = [len(panels.lanes(at)) for at in shown]
    lane_height = min(MOST_LANE, max(LEAST_LANE, (HEIGHT - GAP * len(shown)) / max(1, sum(many))))
    two_lines = lane_height * min(many) >= TWO_LINES
    full = panels.full_rates()
    first = y = top + 34
    parts: list[str] = []
    for at in shown:
        lanes = panels.lanes(at)
        height = lane_height * len(lanes)
        parts += row_names(panels.rows.rows[at], y, height, two_lines=two_lines)
        parts += lane_names([LABELS[lane] for lane in lanes], y, lane_height)
        for column, use in enumerate(panels.uses):
            x = panels.left(column)
            parts.append(path(box(x, y, panels.width, height), "band"))
            for place, lane in enumerate(lanes):
                if use.nbytes[at, lane]:
                    shares = use.rate[at, lane] / full[at, lane]
                    parts.append(
                        _lane(panels, use, at, lane, shares, (x, y + lane_height * place, lane_height))
                    )
        y += height + GAP
    for column, use in enumerate(panels.uses):
        parts += _frame(panels, use, panels.left(column), top, (first, y))
    return parts, y


def _lane(
    panels: Panels, use: Use, at: int, lane: Lane, shares: Floats, place: tuple[float, float, float]
) -> str:
    """One lane of one row in a panel, and on hover its bytes."""
    x, y, height = place
    row = panels.rows.rows[at]
    busy = f"{shares.mean():.1%} of full height on average over {format_s(panels.span_s)}"
    words = [
        f"{use.title}: {row.name}, {row.place}",
        f"{LABELS[lane]}: {format_nbytes(int(use.nbytes[at, lane]))}, {busy}",
    ]
    area = _area(shares, x, y + height, panels.width, height - 1)
    return hover(
        words, path(box(x, y, panels.width, height), "cell"), path(area, f"{fill(FILLS[lane])} area")
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


def _frame(panels: Panels, use: Use, x: float, top: float, rows: tuple[float, float]) -> list[str]:
    """Title, times, end of the run, and T*."""
    first, bottom = rows[0] - 6, rows[1]
    scale = panels.width / panels.span_s
    parts = [text(x, top + 10, f"{use.title}: {format_s(use.end_s)}", "head")]
    step = _nice(panels.span_s / max(2, panels.width / 90))
    ticks = [tick * step for tick in range(int(panels.span_s / step * 1.000001) + 1)]
    parts += [text(x + at * scale, first - 2, format_s(at), "small faint", "middle") for at in ticks]
    parts.append(
        path("".join(f"M{number(x + at * scale)} {number(first)}V{number(bottom)}" for at in ticks), "line")
    )
    end = f"M{number(x + use.end_s * scale)} {number(first)}V{number(bottom)}"
    parts.append(hover([f"{use.title}: ends at {format_s(use.end_s)}"], path(end, "end")))
    if 0 < panels.bound_s <= panels.span_s:
        at = x + panels.bound_s * scale
        words = [f"T*, the least time of any plan of least payload: {format_s(panels.bound_s)}"]
        parts.append(hover(words, path(f"M{number(at)} {number(first)}V{number(bottom + 4)}", "bound")))
        parts.append(text(at, bottom + 13, f"T* {format_s(panels.bound_s)}", "small", "middle"))
    return parts


def _nice(least: float) -> float:
    """The least of 1, 2 and 5 times a power of ten that is not below a number."""
    power = 10.0 ** np.floor(np.log10(least))
    return float(next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * 0.999))

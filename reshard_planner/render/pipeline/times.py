"""The lower half of a pipeline picture: what happened when, predicted and measured.

Both have the same rows, and where they last about as long the same scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from reshard_planner.ir.linkuse import mean_rates, moving_times, rate_steps, within_rate
from reshard_planner.ir.timeline import Activity, Timeline
from reshard_planner.render.pipeline.rows import PictureRows
from reshard_planner.topology import Ports
from reshard_planner.transfer import Medium

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


MAX_RATIO = 8.0
"""How many times as long as another a timeline may last to have one scale of time with it."""


class PanelLane(IntEnum):
    """What a row of a panel shows, from top to bottom."""

    NIC_OUT = 0
    NIC_IN = 1
    NVLINK = 2
    PACK = 3


@dataclass(frozen=True, slots=True, eq=False)
class TimelineUse:
    """What one timeline says of every row and lane.

    Attributes:
        title: whether it is predicted or measured.
        span_s: the time that is cut into parts, from 0.
        end_s: when its last event ends.
        rate: mean rate in each part of the time, in bytes per second; of packing the share of the ranks that
            are at it. Shape (rows, lanes, parts).
        nbytes: bytes in all, shape (rows, lanes).
    """

    title: str
    span_s: float
    end_s: float
    rate: Floats
    nbytes: Ints


def measure_uses(
    timelines: Sequence[tuple[str, Timeline]], rows: PictureRows, ports: Ports, parts: int
) -> tuple[TimelineUse, ...]:
    """Add up timelines by row and lane.

    All have one scale of time, so that they compare point by point, unless one lasts many times as long.

    Args:
        timelines: the timelines, with their titles.
        rows: ranks of each row.
        ports: links of all ranks.
        parts: parts of equal length that the time is cut into.

    Returns:
        What each says.
    """
    moved = [(title, timeline, _origin(timeline)) for title, timeline in timelines]
    spans_s = [(_end(timeline) - origin) or 1e-9 for _, timeline, origin in moved]
    if max(spans_s) <= MAX_RATIO * min(spans_s):
        spans_s = [max(spans_s)] * len(spans_s)
    return tuple(
        _use(title, timeline, origin, rows, ports, np.linspace(0.0, span_s, parts + 1))
        for (title, timeline, origin), span_s in zip(moved, spans_s, strict=True)
    )


def _origin(timeline: Timeline) -> float:
    return float(min(0.0, timeline.start_s.min(initial=0.0)))


def _end(timeline: Timeline) -> float:
    return float(timeline.end_s.max(initial=0.0))


def _use(
    title: str, timeline: Timeline, origin: float, rows: PictureRows, ports: Ports, edges_s: Floats
) -> TimelineUse:
    start_s, end_s = moving_times(timeline)
    start_s, end_s = start_s - origin, end_s - origin
    row = np.full(len(timeline), -1, dtype=np.int64)
    known = np.flatnonzero(timeline.rank < len(rows.row_of))
    row[known] = rows.row_of[timeline.rank[known]]
    place = np.where(row < 0, -1, row * len(PanelLane) + _lanes(timeline))
    order = np.argsort(place, kind="stable")
    order = order[place[order] >= 0]
    places, first = np.unique(place[order], return_index=True)
    shape = (len(rows), len(PanelLane))
    rate = np.zeros((*shape, len(edges_s) - 1))
    nbytes = np.zeros(shape, dtype=np.int64)
    for number, mine in zip(places.tolist(), np.split(order, first[1:]), strict=False):
        at, lane = divmod(number, len(PanelLane))
        nbytes[at, lane] = timeline.nbytes[mine].sum()
        if lane == PanelLane.PACK:
            ranks = len(rows.places[at].ranks)
            steps = rate_steps(start_s[mine], end_s[mine], (end_s[mine] - start_s[mine]) / ranks)
        else:
            steps = rate_steps(start_s[mine], end_s[mine], timeline.nbytes[mine])
            if lane != PanelLane.NVLINK:
                steps = within_rate(steps, float(nic_rate(rows, ports, at)))
        rate[at, lane] = mean_rates(steps, edges_s)
    return TimelineUse(title, float(edges_s[-1]), _end(timeline) - origin, rate, nbytes)


def nic_rate(rows: PictureRows, ports: Ports, at: int) -> int:
    """Rate of all NICs of a row per direction, in bytes per second."""
    groups = np.unique(ports.nic_group[list(rows.places[at].ranks)])
    return int(ports.nic_bytes_per_s[groups[groups >= 0]].sum())


def _lanes(timeline: Timeline) -> Ints:
    """The lane of each event; copies within a rank are with what it packs and unpacks."""
    lane = np.full(len(timeline), PanelLane.PACK, dtype=np.int64)
    sends, receives = timeline.activity == Activity.SEND, timeline.activity == Activity.RECEIVE
    lane[sends & (timeline.medium == Medium.NETWORK)] = PanelLane.NIC_OUT
    lane[receives & (timeline.medium == Medium.NETWORK)] = PanelLane.NIC_IN
    lane[(sends | receives) & (timeline.medium == Medium.NVLINK)] = PanelLane.NVLINK
    return lane

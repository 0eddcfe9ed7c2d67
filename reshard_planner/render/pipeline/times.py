"""The lower half of a pipeline picture: what happened when, predicted and measured, on one scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from reshard_planner.ir.linkuse import mean_rates, moving_times, rate_steps, within_rate
from reshard_planner.ir.timeline import Activity, Timeline
from reshard_planner.render.pipeline.rows import Rows
from reshard_planner.topology import Ports
from reshard_planner.transfer import Medium

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Lane(IntEnum):
    """What a row of a timeline shows, from top to bottom."""

    NIC_OUT = 0
    NIC_IN = 1
    NVLINK = 2
    PACK = 3


@dataclass(frozen=True, slots=True, eq=False)
class Use:
    """What one timeline says of every row and lane.

    Attributes:
        title: whether it is predicted or measured.
        end_s: when its last event ends.
        rate: mean rate in each part of the time, in bytes per second; of packing the share of the ranks that
            are at it. Shape (rows, lanes, parts).
        nbytes: bytes in all, shape (rows, lanes).
    """

    title: str
    end_s: float
    rate: Floats
    nbytes: Ints


def measure_uses(
    timelines: Sequence[tuple[str, Timeline]], rows: Rows, ports: Ports, parts: int
) -> tuple[tuple[Use, ...], float]:
    """Add up timelines by row and lane.

    Args:
        timelines: the timelines, with their titles.
        rows: ranks of each row.
        ports: links of all ranks.
        parts: parts of equal length that the time is cut into.

    Returns:
        What each says, and the time that all of them are within, in seconds.
    """
    moved = [(title, timeline, _origin(timeline)) for title, timeline in timelines]
    span_s = max((_end(timeline) - origin for _, timeline, origin in moved), default=0.0) or 1e-9
    edges_s = np.linspace(0.0, span_s, parts + 1)
    found = [_use(title, timeline, origin, rows, ports, edges_s) for title, timeline, origin in moved]
    return tuple(found), span_s


def _origin(timeline: Timeline) -> float:
    return float(min(0.0, timeline.start_s.min(initial=0.0)))


def _end(timeline: Timeline) -> float:
    return float(timeline.end_s.max(initial=0.0))


def _use(title: str, timeline: Timeline, origin: float, rows: Rows, ports: Ports, edges_s: Floats) -> Use:
    start_s, end_s = moving_times(timeline)
    start_s, end_s = start_s - origin, end_s - origin
    row = np.full(len(timeline), -1, dtype=np.int64)
    known = np.flatnonzero(timeline.rank < len(rows.row_of))
    row[known] = rows.row_of[timeline.rank[known]]
    place = np.where(row < 0, -1, row * len(Lane) + _lanes(timeline))
    order = np.argsort(place, kind="stable")
    order = order[place[order] >= 0]
    places, first = np.unique(place[order], return_index=True)
    shape = (len(rows.rows), len(Lane))
    rate = np.zeros((*shape, len(edges_s) - 1))
    nbytes = np.zeros(shape, dtype=np.int64)
    for number, mine in zip(places.tolist(), np.split(order, first[1:]), strict=False):
        at, lane = divmod(number, len(Lane))
        nbytes[at, lane] = timeline.nbytes[mine].sum()
        if lane == Lane.PACK:
            ranks = len(rows.rows[at].ranks)
            steps = rate_steps(start_s[mine], end_s[mine], (end_s[mine] - start_s[mine]) / ranks)
        else:
            steps = rate_steps(start_s[mine], end_s[mine], timeline.nbytes[mine])
            if lane != Lane.NVLINK:
                steps = within_rate(steps, float(nic_rate(rows, ports, at)))
        rate[at, lane] = mean_rates(steps, edges_s)
    return Use(title, _end(timeline) - origin, rate, nbytes)


def nic_rate(rows: Rows, ports: Ports, at: int) -> int:
    """Rate of all NICs of a row per direction, in bytes per second."""
    groups = np.unique(ports.nic_group[list(rows.rows[at].ranks)])
    return int(ports.nic_bytes_per_s[groups[groups >= 0]].sum())


def _lanes(timeline: Timeline) -> Ints:
    """The lane of each event; copies within a rank are with what it packs and unpacks."""
    lane = np.full(len(timeline), Lane.PACK, dtype=np.int64)
    sends, receives = timeline.activity == Activity.SEND, timeline.activity == Activity.RECEIVE
    lane[sends & (timeline.medium == Medium.NETWORK)] = Lane.NIC_OUT
    lane[receives & (timeline.medium == Medium.NETWORK)] = Lane.NIC_IN
    lane[(sends | receives) & (timeline.medium == Medium.NVLINK)] = Lane.NVLINK
    return lane

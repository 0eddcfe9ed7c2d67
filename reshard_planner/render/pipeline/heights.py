"""What the full height of the lanes of timelines stands for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from reshard_planner.render.pipeline.rows import PictureRows
from reshard_planner.render.pipeline.scales import full_height
from reshard_planner.render.pipeline.times import Floats, PanelLane, TimelineUse, nic_rate
from reshard_planner.render.text import format_rate
from reshard_planner.topology import Ports

SLOW = 0.1
"""Share of the rate of NICs below which a run has its own full height: it would be a line on the ground."""

ROUNDING = 1e-6
"""What rounding leaves behind of a share of full height; only from above it on a part is marked."""


@dataclass(frozen=True, slots=True, eq=False)
class LaneHeights:
    """The full heights of lanes for one or several timelines.

    Attributes:
        full: rate of full height, as the rates of :class:`TimelineUse`, shape (rows, lanes).
        factor: by lane, how many times the rate of the row's NICs, one byte per second and rank over NVLink,
            or all ranks at packing that is.
    """

    full: Floats
    factor: Mapping[PanelLane, float]

    def above(self, use: TimelineUse) -> bool:
        """Whether anything is above full height at some time."""
        return bool((use.rate > self.full[:, :, np.newaxis] * (1 + ROUNDING)).any())


def find_heights(rows: PictureRows, ports: Ports, uses: Sequence[TimelineUse]) -> LaneHeights:
    """Full heights that timelines have together.

    They are the rate of the row's NICs, of NVLink what :func:`full_height` gives for the rates per rank, and
    of packing all ranks. Where runs were faster than the NICs are said to be for more than some moments, or
    far slower, all NICs are taken to be as fast as was seen.
    """
    ranks = np.array([len(place.ranks) for place in rows.places], dtype=np.float64)
    nics = np.array([nic_rate(rows, ports, at) for at in range(len(ranks))], dtype=np.float64)
    nics[nics == 0] = 1.0
    units = (nics, nics, ranks, np.ones_like(ranks))
    full = np.ones((len(ranks), len(PanelLane)))
    factors = {}
    for lane, unit in zip(PanelLane, units, strict=True):
        seen = full_height(np.concatenate([use.rate[:, lane] / unit[:, np.newaxis] for use in uses]))
        least = {PanelLane.NVLINK: math.inf, PanelLane.PACK: 0.0}.get(lane, SLOW)
        factors[lane] = 1.0 if not seen or least <= seen <= 1 + ROUNDING else seen
        full[:, lane] = unit * factors[lane]
    return LaneHeights(full, factors)


def height_words(
    lane: PanelLane,
    rows: PictureRows,
    ports: Ports,
    shown: Sequence[int],
    heights: Sequence[tuple[str, LaneHeights]],
) -> str:
    """What a lane shows and what its full height stands for.

    Args:
        lane: the lane.
        rows: all rows.
        ports: links of all ranks.
        shown: rows that are shown.
        heights: the heights, each with the title of its timelines.
    """
    said = [_full(lane, rows, ports, shown, each.factor[lane]) for _, each in heights]
    if len(set(said)) == 1:
        full = said[0]
    else:
        full = ", ".join(f"{words} ({title})" for words, (title, _) in zip(said, heights, strict=True))
    if lane == PanelLane.NIC_OUT:
        return f"sent over the network; full height is {full}"
    if lane == PanelLane.NIC_IN:
        return f"received from the network; full height is {full}"
    if lane == PanelLane.NVLINK:
        members = [rank for at in shown for rank in rows.places[at].ranks]
        links = _rates(ports.nvlink_bytes_per_s[members].tolist())
        return f"sent and received over NVLink; full height is {full}; a link has {links} in each direction"
    return f"copying, packing and unpacking; full height is {full}"


def _full(lane: PanelLane, rows: PictureRows, ports: Ports, shown: Sequence[int], factor: float) -> str:
    if lane == PanelLane.NVLINK:
        return f"{format_rate(int(factor))} per rank"
    times = ""
    if factor != 1:
        times = f"{factor:.3g} times " if factor > 1 else f"{factor:.2%} of "
    if lane == PanelLane.PACK:
        return f"{times}all the time of all ranks"
    return f"{times}the row's NICs, {_rates(nic_rate(rows, ports, at) for at in shown)}"


def _rates(rates: Iterable[int]) -> str:
    """Least and largest of some rates, once if they are equal."""
    ends = sorted({int(rate) for rate in rates}) or [0]
    return " to ".join(dict.fromkeys((format_rate(ends[0]), format_rate(ends[-1]))))

"""How busy every rank's ports are over the time of a run, in cells few enough for a page."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reshard_planner.intset import format_ints
from reshard_planner.ir.plan import Plan
from reshard_planner.render.report.loads import LANES, Loads
from reshard_planner.simulate import Prediction
from reshard_planner.transfer import Medium

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

Rows = tuple[tuple[int, ...], ...]

MAX_ROWS = 512
"""Ranks up to which each has a row of its own; above, neighbours share rows."""

MAX_BINS = 480
"""Spans of time that a row is cut in."""

FULL = 254
"""What a cell holds for a port that is busy all the time; 0 is for one that carries nothing."""

PACKING = "pack, unpack"
"""The lane of what ranks do themselves, which only predictions with such costs have."""


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Cells of a picture of a run.

    Attributes:
        predicted: whether times are those of a prediction, message by message; else of the schedule, each
            slot as long as its busiest port takes, and a start-up time.
        edges_s: where spans begin, with the end of the last one, in seconds, float64 of shape (spans + 1,).
        slots: first and last slot of each span; empty for predictions, where slots overlap.
        rows: ranks of each row, ascending.
        lanes: names of lanes.
        cells: share of each span for which the ports of a row are busy at their datasheet rate, 0 to
            :data:`FULL` and at least 1 where they carry anything, uint8 of shape (lanes, rows, spans).
        tensor_s: when each tensor of the spec begins and ends to move, float64 of shape (2, tensors); -1 for
            one that does not.
    """

    predicted: bool
    edges_s: Floats
    slots: tuple[tuple[int, int], ...]
    rows: Rows
    lanes: tuple[str, ...]
    cells: NDArray[np.uint8]
    tensor_s: Floats

    @property
    def elapsed_s(self) -> float:
        """End of the last span, in seconds."""
        return float(self.edges_s[-1])


def timeline_of_schedule(loads: Loads) -> Timeline:
    """The timeline of a plan of which nothing is predicted: its slots, one after another."""
    edges_s = loads.begin_s[loads.bins]
    rows = _rows(loads)
    slots = tuple(zip(loads.bins[:-1].tolist(), (loads.bins[1:] - 1).tolist(), strict=True))
    begin_s = np.append(loads.begin_s, loads.begin_s[-1])
    moved = loads.last_slot >= 0
    tensor_s = np.where(moved, (begin_s[loads.first_slot], begin_s[loads.last_slot + 1]), -1.0)
    cells = _cells(loads, loads.lanes.astype(np.float64), rows, np.diff(edges_s))
    return Timeline(False, edges_s, slots, rows, LANES, cells, tensor_s)


def timeline_of_prediction(plan: Plan, loads: Loads, found: Prediction) -> Timeline:
    """The timeline of a predicted run, in spans of equal time."""
    edges_s = np.linspace(0.0, found.elapsed_s, MAX_BINS + 1)
    messages, slots = found.intervals, found.slots
    number = np.zeros(max(int(loads.ranks.max(initial=-1)) + 1, len(found.end_s)), dtype=np.int64)
    number[loads.ranks] = np.arange(len(loads.ranks))
    size = len(loads.ranks)
    parts = []
    for medium in (Medium.NETWORK, Medium.NVLINK):
        at = np.flatnonzero(messages.medium == medium)
        when = (messages.start_s[at], messages.end_s[at], messages.nbytes[at].astype(np.float64))
        parts += [_spread(number[end[at]], *when, edges_s, size) for end in (messages.src, messages.dst)]
    rows = _rows(loads)
    cells = _cells(loads, np.array(parts), rows, np.diff(edges_s))
    own = np.concatenate((slots.packed_s - slots.pack_s, slots.unpacked_s - slots.unpack_s))
    lanes: tuple[str, ...] = LANES
    if own.any():
        begin_s = np.concatenate((slots.pack_s, slots.unpack_s))
        rank = number[np.concatenate((slots.rank, slots.rank))]
        busy_s = _join(_spread(rank, begin_s, begin_s + own, own, edges_s, size), rows, loads)
        members = np.array([len(row) for row in rows], dtype=np.float64)
        cells = np.concatenate((cells, _shares(busy_s, np.diff(edges_s), members[:, np.newaxis])[np.newaxis]))
        lanes = (*LANES, PACKING)
    return Timeline(True, edges_s, (), rows, lanes, cells, _tensor_times(plan, loads, found))


def _tensor_times(plan: Plan, loads: Loads, found: Prediction) -> Floats:
    """From when to when the slots of a tensor run: at most that long its bytes are under way."""
    slots = found.slots
    size = max(int(slots.slot.max(initial=-1)), int(loads.last_slot.max(initial=-1))) + 1
    begin_s, end_s = np.full(size + 1, np.inf), np.full(size + 1, -1.0)
    np.minimum.at(begin_s, slots.slot, slots.begin_s)
    np.maximum.at(end_s, slots.slot, slots.unpacked_s)
    tensor_s = np.full((2, len(plan.spec.tensors)), -1.0)
    for at, (first, last) in enumerate(zip(loads.first_slot.tolist(), loads.last_slot.tolist(), strict=True)):
        if last >= 0:
            tensor_s[:, at] = min(found.elapsed_s, begin_s[first]), end_s[last]
    return tensor_s


def _rows(loads: Loads) -> tuple[tuple[int, ...], ...]:
    """Ranks of each row: neighbours within their domains share one where there are too many."""
    ordered = np.lexsort((loads.ranks, loads.ports.domain[loads.ranks]))
    together = 1
    while -(-len(ordered) // together) > MAX_ROWS:
        together *= 2
    chosen = loads.ranks[ordered].tolist()
    return tuple(tuple(sorted(chosen[at : at + together])) for at in range(0, len(chosen), together))


def _spread(rank: Ints, begin_s: Floats, end_s: Floats, amount: Floats, edges_s: Floats, size: int) -> Floats:
    """Spread amounts evenly over the times in which they move.

    Up to an edge there have come, of everything that has begun by then, rate times the time since; and of
    everything that has ended the same is taken off.

    Returns:
        Amounts per rank and span, shape (ranks, spans).
    """
    spans = len(edges_s) - 1
    total_s = float(edges_s[-1])
    begin = np.minimum(begin_s, total_s)
    rate = amount / np.maximum(end_s - begin, total_s * 1e-9)
    slope, shift = np.zeros((size, spans + 1)), np.zeros((size, spans + 1))
    for sign, time_s in ((1.0, begin), (-1.0, begin + amount / np.where(rate > 0, rate, 1.0))):
        at = np.searchsorted(edges_s, time_s)  # the first edge that is not before it
        inside = at <= spans
        where = rank[inside] * (spans + 1) + at[inside]
        weight = sign * rate[inside]
        slope += np.bincount(where, weight, minlength=slope.size).reshape(slope.shape)
        shift += np.bincount(where, weight * time_s[inside], minlength=slope.size).reshape(slope.shape)
    come = np.cumsum(slope, axis=1) * edges_s - np.cumsum(shift, axis=1)
    spread: Floats = np.maximum(0.0, np.diff(come, axis=1))
    return spread


def _join(amounts: Floats, rows: Rows, loads: Loads) -> Floats:
    """Sum amounts per rank over the ranks of each row; shape (..., ranks, spans) to (..., rows, spans)."""
    row_of = np.zeros(len(loads.ranks), dtype=np.int64)
    for number, ranks in enumerate(rows):
        row_of[np.searchsorted(loads.ranks, ranks)] = number
    order = np.argsort(row_of, kind="stable")
    starts = np.flatnonzero(np.diff(row_of[order], prepend=-1))
    if not len(order):
        return amounts
    joined: Floats = np.add.reduceat(amounts[..., order, :], starts, axis=-2)
    return joined


def _cells(loads: Loads, amounts: Floats, rows: Rows, span_s: Floats) -> NDArray[np.uint8]:
    """Shares of all four lanes, from bytes per lane, rank and span."""
    ports, joined = loads.ports, _join(amounts, rows, loads)
    rates = np.zeros((2, len(rows)))
    for number, ranks in enumerate(rows):
        groups = np.unique(ports.nic_group[list(ranks)])
        rates[0, number] = ports.nic_bytes_per_s[groups[groups >= 0]].sum()
        rates[1, number] = ports.nvlink_bytes_per_s[list(ranks)].sum()
    parts = [_shares(joined[lane], span_s, rates[lane // 2][:, np.newaxis]) for lane in range(len(LANES))]
    return np.stack(parts)


def _shares(amounts: Floats, span_s: Floats, rates: Floats) -> NDArray[np.uint8]:
    """Amounts as shares of what there is room for; 0 only for nothing."""
    room = rates * span_s
    share = np.divide(amounts, room, out=np.ones_like(amounts), where=room > 0)
    # sums of differences of large numbers leave dust behind
    cells = np.where(amounts > room * 1e-6, np.clip(np.rint(share * FULL), 1, FULL), 0)
    found: NDArray[np.uint8] = cells.astype(np.uint8)
    return found


def row_name(ranks: tuple[int, ...]) -> str:
    """What a row is called: by its rank or ranks."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {format_ints(ranks)}"

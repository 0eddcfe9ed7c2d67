"""How busy every rank's ports are over the time of a run, in cells few enough for a page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reshard_planner.intset import format_ints
from reshard_planner.ir import timeline as events
from reshard_planner.ir.linkuse import mean_rates, moving_times, rate_steps, within_rate
from reshard_planner.ir.plan import Plan
from reshard_planner.ir.timeline import Activity
from reshard_planner.render.pipeline.heights import SLOW
from reshard_planner.render.pipeline.scales import full_height
from reshard_planner.render.pipeline.times import MAX_RATIO
from reshard_planner.render.places import RankPlace, choose_places, place_numbers
from reshard_planner.render.report.loads import LANES, Loads, rank_facts
from reshard_planner.simulate import Prediction
from reshard_planner.transfer import Medium

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

Rows = tuple[RankPlace, ...]

MAX_ROWS = 512
"""Ranks up to which each has a row of its own; above, those of a domain share one, or those of several."""

MAX_BINS = 480
"""Spans of time that a row is cut in."""

MAX_CELLS = 5 * MAX_ROWS * MAX_BINS
"""Cells of all lanes of all runs together; where there would be more, spans are longer."""

FULL = 254
"""What a cell holds for a port that is as busy as its lane can show; 0 is for one that carries nothing."""

PACKING = "pack, unpack"
"""The lane of what ranks do themselves, which the schedule and predictions without such costs lack."""

SCHEDULED, PREDICTED, MEASURED = "by schedule", "predicted", "measured"
"""Kinds of runs: slots one after another, each as long as its busiest port takes, and a start-up time;
message by message; and as a trace says."""

PORT_EVENTS = (
    (Medium.NETWORK, Activity.SEND),
    (Medium.NETWORK, Activity.RECEIVE),
    (Medium.NVLINK, Activity.SEND),
    (Medium.NVLINK, Activity.RECEIVE),
)
"""Medium and activity of the events of each lane of ports."""


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One run before it is cut in cells.

    Attributes:
        kind: one of :data:`SCHEDULED`, :data:`PREDICTED` and :data:`MEASURED`.
        elapsed_s: when it ends, in seconds.
        lanes: how many lanes it has: those of ports, and with what ranks do themselves one more.
        spread: gives bytes, and of the last lane seconds, per lane, row and span of time, float64 of shape
            (lanes, rows, spans), for some edges of spans.
    """

    kind: str
    elapsed_s: float
    lanes: int
    spread: Callable[[Rows, Floats], Floats]


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Cells of a picture of one run, or of two.

    Attributes:
        runs: what is shown: kind of each run, and when it ends, in seconds.
        edges_s: where spans begin in the first run, with the end of the last one, in seconds, float64 of
            shape (spans + 1,).
        stretch: how many times as long the spans of each run are: 1, unless one run lasts more than
            :data:`~reshard_planner.render.pipeline.times.MAX_RATIO` times as long as the other.
        slots: first and last slot of each span; empty where spans are not of slots.
        rows: ranks of each row, ascending.
        lanes: position of the run of each lane, and name of what is busy.
        tops: share of a span that :data:`FULL` stands for in each lane: 1, unless runs have scales of their
            own and ports of this one are hardly busy on that of others.
        cells: share of each span for which the ports of a row are busy at their datasheet rate, 0 to
            :data:`FULL` and at least 1 where they carry anything, uint8 of shape (lanes, rows, spans).
        tensor_s: when each tensor of the spec begins and ends to move in the first run, float64 of shape
            (2, tensors); -1 for one that does not.
    """

    runs: tuple[tuple[str, float], ...]
    edges_s: Floats
    stretch: tuple[float, ...]
    slots: tuple[tuple[int, int], ...]
    rows: tuple[tuple[int, ...], ...]
    lanes: tuple[tuple[int, str], ...]
    tops: tuple[float, ...]
    cells: NDArray[np.uint8]
    tensor_s: Floats

    @property
    def elapsed_s(self) -> float:
        """End of the last span of the first run, in seconds."""
        return float(self.edges_s[-1])


def find_timeline(
    plan: Plan, loads: Loads, prediction: Prediction | None = None, measured: events.Timeline | None = None
) -> Timeline:
    """The timeline of a plan's schedule, or of a predicted run of it, and with it that of a measured one.

    Args:
        plan: the plan.
        loads: its loads.
        prediction: a predicted run; without, the schedule is shown, its slots one after another.
        measured: events of a measured run; those of ranks that are not the plan's are left out.
    """
    ranks, facts = loads.ranks.tolist(), rank_facts(plan, loads.ports)
    rows = choose_places(ranks, facts, most_ranks=MAX_ROWS, most_places=MAX_ROWS)
    if prediction is None:
        runs, tensor_s = [_scheduled(loads)], _scheduled_tensors(loads)
    else:
        runs, tensor_s = [_predicted(prediction)], _predicted_tensors(plan, loads, prediction)
    if measured is not None:
        runs.append(_measured(loads, measured))
    slots: tuple[tuple[int, int], ...] = ()
    times_s = [run.elapsed_s for run in runs]
    apart = max(times_s) > MAX_RATIO * min(times_s) > 0
    stretch = tuple(time_s / times_s[0] if apart else 1.0 for time_s in times_s)
    if prediction is None and measured is None:
        edges_s = loads.begin_s[loads.bins]
        slots = tuple(zip(loads.bins[:-1].tolist(), (loads.bins[1:] - 1).tolist(), strict=True))
    else:
        room = MAX_CELLS // max(1, len(rows) * sum(run.lanes for run in runs))
        end_s = times_s[0] if apart else max(times_s)
        edges_s = np.linspace(0.0, end_s, min(MAX_BINS, room) + 1)
    names = (*LANES, PACKING)
    cells, tops = [], []
    for run, times in zip(runs, stretch, strict=True):
        share = _shares(loads, run.spread(rows, edges_s * times), rows, np.diff(edges_s) * times)
        top = np.ones(run.lanes)
        if apart:
            top[: len(LANES)] = _top(share[: len(LANES)])
        cells.append(_cells(share / top[:, np.newaxis, np.newaxis]))
        tops.extend(top.tolist())
    return Timeline(
        tuple((run.kind, run.elapsed_s) for run in runs),
        edges_s,
        stretch,
        slots,
        tuple(place.ranks for place in rows),
        tuple((number, names[lane]) for number, run in enumerate(runs) for lane in range(run.lanes)),
        tuple(tops),
        np.concatenate(cells),
        tensor_s,
    )


def _scheduled(loads: Loads) -> Run:
    """The slots of a plan, one after another: bytes of a span of slots move evenly."""
    begin_s = loads.begin_s[loads.bins]

    def spread(rows: Rows, edges_s: Floats) -> Floats:
        joined = _join(loads.lanes.astype(np.float64), rows, loads)
        if np.array_equal(edges_s, begin_s):
            return joined
        come = np.concatenate((np.zeros((*joined.shape[:2], 1)), np.cumsum(joined, axis=2)), axis=2)
        return np.array(
            [[np.diff(np.interp(edges_s, begin_s, row)) for row in lane] for lane in come]
        ).reshape(len(LANES), len(rows), len(edges_s) - 1)

    return Run(SCHEDULED, float(loads.begin_s[-1]), len(LANES), spread)


def _predicted(found: Prediction) -> Run:
    messages, slots = found.intervals, found.slots
    own_s = np.concatenate((slots.packed_s - slots.pack_s, slots.unpacked_s - slots.unpack_s))
    works = bool(own_s.any())

    def spread(rows: Rows, edges_s: Floats) -> Floats:
        parts = []
        for medium, activity in PORT_EVENTS:
            at = np.flatnonzero(messages.medium == medium)
            rank = messages.src if activity == Activity.SEND else messages.dst
            when = (messages.start_s[at], messages.end_s[at], messages.nbytes[at])
            parts.append(_spread(_row_of(rows, rank[at]), *when, edges_s, len(rows)))
        if works:
            row = _row_of(rows, np.concatenate((slots.rank, slots.rank)))
            begin_s = np.concatenate((slots.pack_s, slots.unpack_s))
            parts.append(_spread(row, begin_s, begin_s + own_s, own_s, edges_s, len(rows)))
        return np.array(parts)

    return Run(PREDICTED, found.elapsed_s, len(LANES) + works, spread)


def _measured(loads: Loads, timeline: events.Timeline) -> Run:
    start_s, end_s = moving_times(timeline)
    mine = np.isin(timeline.rank, loads.ranks)
    origin_s = min(0.0, float(timeline.start_s[mine].min(initial=0.0)))
    start_s, end_s = start_s - origin_s, end_s - origin_s
    elapsed_s = float(timeline.end_s[mine].max(initial=0.0)) - origin_s

    def spread(rows: Rows, edges_s: Floats) -> Floats:
        row = _row_of(rows, timeline.rank)
        rates = _rates(loads, rows)
        parts = []
        for medium, activity in PORT_EVENTS:
            at = np.flatnonzero((timeline.medium == medium) & (timeline.activity == activity))
            when = (start_s[at], end_s[at], timeline.nbytes[at])
            # rates of NVLink ports are those that datasheets promise; emulated ones are faster
            most = rates[0] if medium == Medium.NETWORK else None
            parts.append(_spread(row[at], *when, edges_s, len(rows), most))
        own = np.flatnonzero(np.isin(timeline.activity, (Activity.PACK, Activity.UNPACK)))
        when = (start_s[own], end_s[own], end_s[own] - start_s[own])
        return np.array([*parts, _spread(row[own], *when, edges_s, len(rows))])

    return Run(MEASURED, elapsed_s, len(LANES) + 1, spread)


def _scheduled_tensors(loads: Loads) -> Floats:
    """From when to when the slots of a tensor run, shape (2, tensors)."""
    moved = loads.last_slot >= 0
    begin_s = np.append(loads.begin_s, loads.begin_s[-1])
    return np.where(moved, (begin_s[loads.first_slot], begin_s[loads.last_slot + 1]), -1.0)


def _predicted_tensors(plan: Plan, loads: Loads, found: Prediction) -> Floats:
    """The same for a prediction: at most that long a tensor's bytes are under way."""
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


def _row_of(rows: Rows, ranks: NDArray[np.integer]) -> Ints:
    """Row of each of some ranks, -1 for those without one."""
    size = max((place.ranks[-1] for place in rows), default=-1) + 1
    numbers = place_numbers(rows, size + 1)  # the last is that of ranks which no row has
    found: Ints = numbers[np.where((ranks >= 0) & (ranks < size), ranks, size)]
    return found


def _spread(
    row: Ints,
    begin_s: Floats,
    end_s: Floats,
    amount: NDArray[np.generic],
    edges_s: Floats,
    rows: int,
    most: Floats | None = None,
) -> Floats:
    """What moves in each span of each row, shape (rows, spans): amounts move evenly, at ``most`` so fast.

    Amounts of the row -1 are left out.
    """
    found = np.zeros((rows, len(edges_s) - 1))
    order = np.argsort(row, kind="stable")
    bounds = np.searchsorted(row[order], np.arange(rows + 1))
    for number in range(rows):
        mine = order[bounds[number] : bounds[number + 1]]
        steps = rate_steps(begin_s[mine], end_s[mine], amount[mine])
        if len(steps[0]):
            steps = steps if most is None else within_rate(steps, float(most[number]))
            found[number] = mean_rates(steps, edges_s) * np.diff(edges_s)
    return found


def _join(amounts: Floats, rows: Rows, loads: Loads) -> Floats:
    """Sum amounts per rank over the ranks of each row; shape (..., ranks, spans) to (..., rows, spans)."""
    row = _row_of(rows, loads.ranks)
    order = np.argsort(row, kind="stable")
    if not len(order):
        return amounts
    joined: Floats = np.add.reduceat(
        amounts[..., order, :], np.flatnonzero(np.diff(row[order], prepend=-1)), -2
    )
    return joined


def _rates(loads: Loads, rows: Rows) -> Floats:
    """Rates of all NICs and of all NVLink ports of each row, in bytes per second, shape (2, rows)."""
    ports, rates = loads.ports, np.zeros((2, len(rows)))
    for number, place in enumerate(rows):
        groups = np.unique(ports.nic_group[list(place.ranks)])
        rates[0, number] = ports.nic_bytes_per_s[groups[groups >= 0]].sum()
        rates[1, number] = ports.nvlink_bytes_per_s[list(place.ranks)].sum()
    return rates


def _shares(loads: Loads, amounts: Floats, rows: Rows, span_s: Floats) -> Floats:
    """Amounts as shares of what there is room for."""
    members = np.array([[len(place.ranks) for place in rows]], dtype=np.float64).reshape(1, len(rows))
    most = np.concatenate((_rates(loads, rows).repeat(2, axis=0), members))[: len(amounts)]
    room = most[:, :, np.newaxis] * span_s
    share = np.divide(amounts, room, out=np.ones_like(amounts), where=room > 0)
    # sums of differences of large numbers leave dust behind
    found: Floats = np.where(amounts > room * 1e-6, share, 0.0)
    return found


def _top(share: Floats) -> float:
    """The share that ports of a run are shown up to, which has a scale of its own: 1 unless it is slow."""
    usual = full_height(share)
    return usual if 0 < usual < SLOW else 1.0


def _cells(share: Floats) -> NDArray[np.uint8]:
    """Shares as cells; 0 only for nothing."""
    cells = np.where(share > 0, np.clip(np.rint(share * FULL), 1, FULL), 0)
    found: NDArray[np.uint8] = cells.astype(np.uint8)
    return found


def row_name(ranks: tuple[int, ...]) -> str:
    """What a row is called: by its rank or ranks."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {format_ints(ranks)}"

"""Timelines in the Trace Event format, which Perfetto and chrome://tracing show.

A rank is a process of the trace. It has a track for each pair of an activity and a medium, and further ones
where events of the pair overlap, since what overlaps on one track is not shown. An arrow leads from each
message's send to its receipt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from reshard_planner.ir.timeline import NO_PEER, Activity, Timeline
from reshard_planner.transfer import Medium

Ints = NDArray[np.int64]

NS_PER_S, NS_PER_US = 10**9, 1000

MAX_TRACKS = 10_000
"""Tracks of one pair that the numbers of threads leave room for."""


def chrome_trace(
    timeline: Timeline, names: Mapping[int, str] | None = None, notes: Mapping[str, Any] | None = None
) -> bytes:
    """Write a timeline as JSON of the Trace Event format.

    Times are in microseconds, to the nanosecond. If anything begins before the origin, all is moved so that
    the first event begins at 0.

    Of the messages of a slot from one rank to another the send that begins first belongs to the receipt that
    begins first, and so on: both ends post them in the same order. A message whose receipt ends before its
    send begins, by the clocks of two hosts, has no arrow.

    Args:
        timeline: what is shown.
        names: what ranks are called in addition to their number, by rank.
        notes: further facts about the run, in plain JSON types.

    Returns:
        The file's content, UTF-8; the same bytes for the same arguments.
    """
    start = np.rint(timeline.start_s * NS_PER_S).astype(np.int64)
    end = np.rint(timeline.end_s * NS_PER_S).astype(np.int64)
    if len(timeline):
        origin = min(0, int(start.min()))
        start, end = start - origin, end - origin
    pair = timeline.activity.astype(np.int64) * len(Medium) + timeline.medium
    track = _tracks(timeline.rank.astype(np.int64) * len(Activity) * len(Medium) + pair, start, end)
    thread = pair * MAX_TRACKS + track
    events = _metadata(timeline, pair, track, names or {})
    events += _complete_events(timeline, thread, start, end)
    events += _arrows(timeline, thread, start, end)
    document = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": dict(notes or {})}
    return msgspec.json.encode(document)


def _tracks(pair: Ints, start: Ints, end: Ints) -> Ints:
    """The track of each event among those of its pair: the first that is free when the event begins.

    Args:
        pair: a number per rank and pair, shape (events,).
        start: when events begin.
        end: when they end.

    Returns:
        Numbers from 0, shape (events,), such that events of one pair and track do not overlap.
    """
    tracks = np.zeros(len(pair), dtype=np.int64)
    busy_until: dict[int, list[int]] = {}
    order = np.lexsort((end, start, pair)).tolist()
    pairs, starts, ends = pair.tolist(), start.tolist(), end.tolist()
    for at in order:
        busy = busy_until.setdefault(pairs[at], [])
        free = next((track for track, until in enumerate(busy) if until <= starts[at]), len(busy))
        if free == len(busy):
            busy.append(0)
        busy[free] = ends[at]
        tracks[at] = free
    return tracks


def _metadata(timeline: Timeline, pair: Ints, track: Ints, names: Mapping[int, str]) -> list[dict[str, Any]]:
    """Names and order of processes and tracks."""
    events: list[dict[str, Any]] = []

    def say(name: str, rank: int, value: dict[str, Any], thread: int = 0) -> None:
        events.append({"ph": "M", "name": name, "pid": rank, "tid": thread, "args": value})

    for rank in np.unique(timeline.rank).tolist():
        named = names.get(rank)
        say("process_name", rank, {"name": f"rank {rank}" + (f" ({named})" if named else "")})
        say("process_sort_index", rank, {"sort_index": rank})
    used = np.unique(np.stack((timeline.rank.astype(np.int64), pair, track)), axis=1)
    for rank, number, at in used.T.tolist():
        activity, medium = Activity(number // len(Medium)), Medium(number % len(Medium))
        thread = number * MAX_TRACKS + at
        label = f"{activity.label} {medium.label}" + (f" ({at + 1})" if at else "")
        say("thread_name", rank, {"name": label}, thread)
        say("thread_sort_index", rank, {"sort_index": thread}, thread)
    return events


def _complete_events(timeline: Timeline, thread: Ints, start: Ints, end: Ints) -> list[dict[str, Any]]:
    """One complete event per event of the timeline."""
    towards = {Activity.SEND: "to", Activity.RECEIVE: "from"}
    events = []
    columns = (
        timeline.rank,
        timeline.activity,
        timeline.medium,
        timeline.slot,
        timeline.peer,
        timeline.nbytes,
        thread,
        start,
        end,
    )
    for rank, number, medium, slot, peer, nbytes, tid, begin, stop in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        activity = Activity(number)
        facts = {"slot": slot, "nbytes": nbytes}
        name = f"slot {slot}"
        if peer != NO_PEER:
            facts["peer"] = peer
            if activity in towards:
                name += f" {towards[activity]} {peer}"
        if stop > begin:
            facts["bytes_per_s"] = round(nbytes * NS_PER_S / (stop - begin))
        events.append(
            {
                "ph": "X",
                "name": name,
                "cat": f"{activity.label},{Medium(medium).label}",
                "pid": rank,
                "tid": tid,
                "ts": begin / NS_PER_US,
                "dur": (stop - begin) / NS_PER_US,
                "args": facts,
            }
        )
    return events


def _arrows(timeline: Timeline, thread: Ints, start: Ints, end: Ints) -> list[dict[str, Any]]:
    """Two flow events per message, one within its send and one within its receipt."""
    sends = _by_message(timeline, Activity.SEND)
    receipts = _by_message(timeline, Activity.RECEIVE)
    events: list[dict[str, Any]] = []
    for message, send in sends.items():
        receipt = receipts.get(message)
        if receipt is None:
            continue
        leaves = int(start[send])
        arrives = max(int(end[receipt]) - 1, int(start[receipt]))  # the end itself is outside of the event
        if arrives < leaves:
            continue
        number = len(events) // 2
        for phase, at, ts in (("s", send, leaves), ("f", receipt, arrives)):
            event = {
                "ph": phase,
                "name": "message",
                "cat": "message",
                "id": number,
                "pid": int(timeline.rank[at]),
                "tid": int(thread[at]),
                "ts": ts / NS_PER_US,
            }
            events.append({**event, "bp": "e"} if phase == "f" else event)
    return events


def _by_message(timeline: Timeline, activity: Activity) -> dict[tuple[int, int, int, int], int]:
    """Positions of the events at one end of messages: by slot, sender, receiver, and how many were before."""
    found: dict[tuple[int, int, int, int], int] = {}
    count: dict[tuple[int, int, int], int] = {}
    chosen = np.flatnonzero((timeline.activity == activity) & (timeline.peer != NO_PEER))
    chosen = chosen[np.argsort(timeline.start_s[chosen], kind="stable")]
    columns = (timeline.slot, timeline.rank, timeline.peer)
    for at, slot, rank, peer in zip(
        chosen.tolist(), *(column[chosen].tolist() for column in columns), strict=True
    ):
        ends = (slot, rank, peer) if activity == Activity.SEND else (slot, peer, rank)
        number = count.get(ends, 0)
        count[ends] = number + 1
        found[(*ends, number)] = at
    return found

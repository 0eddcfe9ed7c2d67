"""Timelines in the Trace Event format, which Perfetto and chrome://tracing show.

With a topology a domain is a process of the trace; without one a rank is. What overlaps on one row is not
shown, so that a row has further ones below it where its events overlap. An arrow leads from each message's
send to its receipt, and counters say how much of each NIC is in use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from reshard_planner.ir.linkuse import match_messages
from reshard_planner.ir.timeline import NO_PEER, Activity, Timeline
from reshard_planner.ir.tracecounters import NS_PER_S, NS_PER_US, counter_events
from reshard_planner.ir.tracerows import TraceRows, rows_by_domain, rows_by_rank
from reshard_planner.topology import Ports, Topology
from reshard_planner.transfer import Medium

Ints = NDArray[np.int64]


def chrome_trace(
    timeline: Timeline,
    names: Mapping[int, str] | None = None,
    notes: Mapping[str, Any] | None = None,
    *,
    topology: Topology | None = None,
) -> bytes:
    """Write a timeline as JSON of the Trace Event format.

    Times are in microseconds, to the nanosecond. If anything begins before the origin, all is moved so that
    the first event begins at 0.

    With a topology every domain is a process. Each of its ranks has rows for what its NIC sends (tx) and
    receives (rx), for what it sends and receives over NVLink, and for copying, packing and unpacking; every
    NIC has a counter of bytes per second for each direction. Without one every rank is a process, with a row
    for each pair of an activity and a medium, and there are no counters.

    Which send and which receipt belong together, and how fast bytes move in between, is as
    :mod:`reshard_planner.ir.linkuse` says. A message whose receipt ends before its send begins, by the clocks
    of two hosts, has no arrow.

    Args:
        timeline: what is shown.
        names: what ranks are called in addition to their number, by rank.
        notes: further facts about the run, in plain JSON types.
        topology: the cluster of the run.

    Returns:
        The file's content, UTF-8; the same bytes for the same arguments.

    Raises:
        TopologyError: if a rank runs on no GPU of the topology.
        UnsupportedError: if GPUs share some of their NICs and not others.
    """
    start = np.rint(timeline.start_s * NS_PER_S).astype(np.int64)
    end = np.rint(timeline.end_s * NS_PER_S).astype(np.int64)
    origin = min(0, int(start.min(initial=0)))
    start, end = start - origin, end - origin
    messages = match_messages(timeline)
    if topology is None:
        rows = rows_by_rank(timeline, start, end, names or {})
        counters = []
    else:
        ports = Ports.of(topology, np.unique(timeline.rank).tolist())
        rows = rows_by_domain(timeline, start, end, names or {}, topology, ports)
        counters = counter_events(timeline, messages, ports, origin)
    events = rows.metadata()
    events += _complete_events(timeline, rows, start, end)
    events += _arrows(messages, rows, start, end)
    events += counters
    document = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": dict(notes or {})}
    return msgspec.json.encode(document)


def _complete_events(timeline: Timeline, rows: TraceRows, start: Ints, end: Ints) -> list[dict[str, Any]]:
    """One complete event per event of the timeline."""
    towards = {Activity.SEND: "to", Activity.RECEIVE: "from"}
    doing = {Activity.PACK: "pack", Activity.UNPACK: "unpack"}
    events = []
    columns = (
        timeline.activity,
        timeline.medium,
        timeline.slot,
        timeline.peer,
        timeline.nbytes,
        rows.process,
        rows.thread,
        start,
        end,
    )
    for number, medium, slot, peer, nbytes, process, thread, begin, stop in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        activity = Activity(number)
        facts = {"slot": slot, "nbytes": nbytes}
        name = f"slot {slot}"
        if peer != NO_PEER:
            facts["peer"] = peer
            if activity in towards:
                name += f" {towards[activity]} {peer}"
        elif rows.mixed and activity in doing:
            name += f" {'copy' if medium == Medium.LOCAL else doing[activity]}"
        if stop > begin:
            facts["bytes_per_s"] = round(nbytes * NS_PER_S / (stop - begin))
        events.append(
            {
                "ph": "X",
                "name": name,
                "cat": f"{activity.label},{Medium(medium).label}",
                "pid": process,
                "tid": thread,
                "ts": begin / NS_PER_US,
                "dur": (stop - begin) / NS_PER_US,
                "args": facts,
            }
        )
    return events


def _arrows(messages: tuple[Ints, Ints], rows: TraceRows, start: Ints, end: Ints) -> list[dict[str, Any]]:
    """Two flow events per message, one within its send and one within its receipt."""
    sends, receipts = messages
    leaves = start[sends]
    arrives = np.maximum(end[receipts] - 1, start[receipts])  # the end itself is outside of the event
    forward = arrives >= leaves
    events: list[dict[str, Any]] = []
    columns = (
        column.tolist()
        for at, times in ((sends[forward], leaves[forward]), (receipts[forward], arrives[forward]))
        for column in (rows.process[at], rows.thread[at], times)
    )
    for number, (src, send, left, dst, receipt, arrived) in enumerate(zip(*columns, strict=True)):
        message = {"name": "message", "cat": "message", "id": number}
        events.append({"ph": "s", **message, "pid": src, "tid": send, "ts": left / NS_PER_US})
        events.append(
            {"ph": "f", **message, "pid": dst, "tid": receipt, "ts": arrived / NS_PER_US, "bp": "e"}
        )
    return events

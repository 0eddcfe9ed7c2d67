"""Timelines in the Trace Event format, which Perfetto and chrome://tracing show.

With a topology a domain is a process of the trace; without one a rank is. An arrow leads from each message's
send to its receipt, and counters say how much of each NIC is in use. What is guaranteed is in docs/traces.md;
:mod:`reshard_planner.ir.traceread` reads the events back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from reshard_planner.ir.linkuse import match_messages
from reshard_planner.ir.timeline import NO_PEER, Activity, Timeline
from reshard_planner.ir.tracecounters import counter_events
from reshard_planner.ir.tracemark import trace_mark
from reshard_planner.ir.tracetimes import NS_PER_S, microseconds, nanoseconds
from reshard_planner.ir.tracetracks import TraceTracks, tracks_by_domain, tracks_by_rank
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
    the first event begins at 0; the file says by how much.

    With a topology every domain is a process. Each of its ranks has tracks for what its NIC sends (tx) and
    receives (rx), for what it sends and receives over NVLink, and for copying, packing and unpacking; every
    NIC has a counter of bytes per second for each direction. Without one every rank is a process, with a
    track for each pair of an activity and a medium, and there are no counters.

    Which send and which receipt belong together, and how fast bytes move in between, is as
    :mod:`reshard_planner.ir.linkuse` says. A message whose receipt ends before its send begins, by the clocks
    of two hosts, has no arrow.

    Args:
        timeline: what is shown.
        names: what ranks are called in addition to their number, by rank.
        notes: further facts about the run, in plain JSON types. ``digest``, the digest of the plan, lets
            readers refuse a trace of another plan; ``predicted`` tells predicted runs from measured ones.
        topology: the cluster of the run.

    Returns:
        The file's content, UTF-8; the same bytes for the same arguments.

    Raises:
        InputError: if an event is more than a million seconds from the origin.
        TopologyError: if a rank runs on no GPU of the topology.
        UnsupportedError: if GPUs share some of their NICs and not others.
    """
    start_ns, end_ns = nanoseconds(timeline.start_s), nanoseconds(timeline.end_s)
    origin_ns = min(0, int(start_ns.min(initial=0)))
    messages = match_messages(timeline)
    plain_notes = msgspec.json.decode(msgspec.json.encode(dict(notes or {})))
    mark = trace_mark(timeline, start_ns, end_ns, origin_ns, plain_notes)
    start_ns, end_ns = start_ns - origin_ns, end_ns - origin_ns
    if topology is None:
        tracks = tracks_by_rank(timeline, start_ns, end_ns, names or {})
        counters = []
    else:
        ports = Ports.of(topology, np.unique(timeline.rank).tolist())
        tracks = tracks_by_domain(timeline, start_ns, end_ns, names or {}, topology, ports)
        counters = counter_events(timeline, messages, ports, origin_ns)
    events = tracks.metadata()
    events += _slices(timeline, tracks, start_ns, end_ns)
    events += _arrows(messages, tracks, start_ns, end_ns)
    events += counters
    document = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": plain_notes,
        "timeline": mark,
    }
    return msgspec.json.encode(document)


def _slices(timeline: Timeline, tracks: TraceTracks, start_ns: Ints, end_ns: Ints) -> list[dict[str, Any]]:
    """One complete event per event of the timeline, in its order."""
    towards = {Activity.SEND: "to", Activity.RECEIVE: "from"}
    doing = {Activity.PACK: "pack", Activity.UNPACK: "unpack"}
    took_ns = end_ns - start_ns
    events = []
    columns = (
        timeline.activity,
        timeline.medium,
        timeline.rank,
        timeline.slot,
        timeline.peer,
        timeline.nbytes,
        tracks.process,
        tracks.thread,
        took_ns,
    )
    for number, medium, rank, slot, peer, nbytes, process, thread, lasts_ns, begin_us, lasts_us in zip(
        *(column.tolist() for column in columns), microseconds(start_ns), microseconds(took_ns), strict=True
    ):
        activity = Activity(number)
        facts = {"rank": rank, "slot": slot, "nbytes": nbytes}
        name = f"slot {slot}"
        if peer != NO_PEER:
            facts["peer"] = peer
            if activity in towards:
                name += f" {towards[activity]} {peer}"
        elif tracks.mixed and activity in doing:
            name += f" {'copy' if medium == Medium.LOCAL else doing[activity]}"
        if lasts_ns:
            facts["bytes_per_s"] = round(nbytes * NS_PER_S / lasts_ns)
        events.append(
            {
                "ph": "X",
                "name": name,
                "cat": f"{activity.label},{Medium(medium).label}",
                "pid": process,
                "tid": thread,
                "ts": begin_us,
                "dur": lasts_us,
                "args": facts,
            }
        )
    return events


def _arrows(
    messages: tuple[Ints, Ints], tracks: TraceTracks, start_ns: Ints, end_ns: Ints
) -> list[dict[str, Any]]:
    """Two flow events per message, one within its send and one within its receipt."""
    sends, receipts = messages
    leaves_ns = start_ns[sends]
    # the end itself is outside of the event, and only taken where the send begins no earlier
    arrives_ns = np.maximum(end_ns[receipts] - 1, start_ns[receipts])
    arrives_ns = np.where(arrives_ns < leaves_ns, end_ns[receipts], arrives_ns)
    forward = arrives_ns >= leaves_ns
    sends, receipts = sends[forward], receipts[forward]
    columns = (tracks.process[sends], tracks.thread[sends], tracks.process[receipts], tracks.thread[receipts])
    events: list[dict[str, Any]] = []
    for number, (src, send, dst, receipt, left_us, arrived_us) in enumerate(
        zip(
            *(column.tolist() for column in columns),
            microseconds(leaves_ns[forward]),
            microseconds(arrives_ns[forward]),
            strict=True,
        )
    ):
        message = {"name": "message", "cat": "message", "id": number}
        events.append({"ph": "s", **message, "pid": src, "tid": send, "ts": left_us})
        events.append({"ph": "f", **message, "pid": dst, "tid": receipt, "ts": arrived_us, "bp": "e"})
    return events

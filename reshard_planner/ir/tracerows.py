"""Rows of a trace: which process and thread of the Trace Event format shows each event of a timeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reshard_planner.intset import format_ints
from reshard_planner.ir.timeline import Activity, Timeline
from reshard_planner.topology import Ports, Topology
from reshard_planner.transfer import Medium

Ints = NDArray[np.int64]

MAX_TRACKS = 10_000
"""Rows of one pair of an activity and a medium that the numbers of threads leave room for."""

FIRST_THREAD = 1_000_000
"""Number of the first thread of a domain: viewers take a thread of its process's number for the main one."""


class Lane(IntEnum):
    """Rows that a rank has within its domain, in their order."""

    NIC_TX = 0
    NIC_RX = 1
    NVLINK_TX = 2
    NVLINK_RX = 3
    COPIES = 4

    @property
    def label(self) -> str:
        return ("NIC tx", "NIC rx", "NVLink tx", "NVLink rx", "pack/unpack")[self]


@dataclass(frozen=True, slots=True, eq=False)
class TraceRows:
    """Where events are shown.

    Attributes:
        process: number of the process of each event, shape (events,).
        thread: number of its thread, likewise. Events of one process and thread do not overlap.
        processes: name of each process, by its number, in their order.
        threads: name of each thread, by the numbers of its process and itself, in their order.
        mixed: whether a row shows several kinds of events.
    """

    process: Ints
    thread: Ints
    processes: Mapping[int, str]
    threads: Mapping[tuple[int, int], str]
    mixed: bool

    def metadata(self) -> list[dict[str, Any]]:
        """Metadata events with the name and the place of every process and thread."""
        events: list[dict[str, Any]] = []

        def say(name: str, process: int, thread: int, value: dict[str, Any]) -> None:
            events.append({"ph": "M", "name": name, "pid": process, "tid": thread, "args": value})

        for process, label in self.processes.items():
            say("process_name", process, 0, {"name": label})
            say("process_sort_index", process, 0, {"sort_index": process})
        for (process, thread), label in self.threads.items():
            say("thread_name", process, thread, {"name": label})
            say("thread_sort_index", process, thread, {"sort_index": thread})
        return events


def rows_by_rank(timeline: Timeline, start: Ints, end: Ints, names: Mapping[int, str]) -> TraceRows:
    """A process per rank, with rows for each pair of an activity and a medium.

    Args:
        timeline: the events.
        start: when they begin, in nanoseconds.
        end: when they end.
        names: what ranks are called in addition to their number.
    """
    rank = timeline.rank.astype(np.int64)
    pair = timeline.activity.astype(np.int64) * len(Medium) + timeline.medium
    track = free_tracks(rank * len(Activity) * len(Medium) + pair, start, end)
    thread = pair * MAX_TRACKS + track
    processes = {
        each: f"rank {each}" + (f" ({names[each]})" if each in names else "")
        for each in np.unique(rank).tolist()
    }
    threads = {}
    for process, number in np.unique(np.stack((rank, thread)), axis=1).T.tolist():
        kind, at = divmod(number, MAX_TRACKS)
        activity, medium = Activity(kind // len(Medium)), Medium(kind % len(Medium))
        threads[process, number] = f"{activity.label} {medium.label}{_again(at)}"
    return TraceRows(rank, thread, processes, threads, mixed=False)


def rows_by_domain(
    timeline: Timeline,
    start: Ints,
    end: Ints,
    names: Mapping[int, str],
    topology: Topology,
    ports: Ports,
) -> TraceRows:
    """A process per domain, with rows for each lane of its ranks, in order of ranks.

    Args:
        timeline: the events.
        start: when they begin, in nanoseconds.
        end: when they end.
        names: what ranks are called in addition to their number.
        topology: the cluster.
        ports: its ports, of all ranks of the timeline.
    """
    rank = timeline.rank.astype(np.int64)
    domain = ports.domain[rank] if len(rank) else rank
    row = rank * len(Lane) + _lanes(timeline)
    track = free_tracks(row, start, end)
    rows, at = np.unique(np.stack((domain, row, track)), axis=1, return_inverse=True)
    threads = {}
    for number, (process, which, again) in enumerate(rows.T.tolist(), FIRST_THREAD):
        member, lane = divmod(which, len(Lane))
        gpu = topology.gpu_of(member)
        where = f" on GPU {gpu}" if gpu != member else ""
        called = f" ({names[member]})" if member in names else ""
        threads[process, number] = f"rank {member}{where}{called} {Lane(lane).label}{_again(again)}"
    processes = {
        process: f"domain {process} (ranks {format_ints(np.unique(rank[domain == process]).tolist())})"
        for process in np.unique(domain).tolist()
    }
    return TraceRows(domain, at.reshape(-1) + FIRST_THREAD, processes, threads, mixed=True)


def _again(track: int) -> str:
    return f" ({track + 1})" if track else ""


def _lanes(timeline: Timeline) -> Ints:
    """The lane of each event; what stays within a rank is copying, whatever the activity."""
    lane = np.full(len(timeline), Lane.COPIES, dtype=np.int64)
    for medium, first in ((Medium.NETWORK, Lane.NIC_TX), (Medium.NVLINK, Lane.NVLINK_TX)):
        for shift, activity in enumerate((Activity.SEND, Activity.RECEIVE)):
            lane[(timeline.medium == medium) & (timeline.activity == activity)] = first + shift
    return lane


def free_tracks(row: Ints, start: Ints, end: Ints) -> Ints:
    """The track of each event among those of its row: the first that is free when the event begins.

    Args:
        row: a number per row, shape (events,).
        start: when events begin.
        end: when they end.

    Returns:
        Numbers from 0, shape (events,), such that events of one row and track do not overlap.
    """
    tracks = np.zeros(len(row), dtype=np.int64)
    busy_until: dict[int, list[int]] = {}
    order = np.lexsort((end, start, row)).tolist()
    rows, starts, ends = row.tolist(), start.tolist(), end.tolist()
    for at in order:
        busy = busy_until.setdefault(rows[at], [])
        free = next((track for track, until in enumerate(busy) if until <= starts[at]), len(busy))
        if free == len(busy):
            busy.append(0)
        busy[free] = ends[at]
        tracks[at] = free
    return tracks

"""Tracks of a trace: which process and thread of the Trace Event format shows each event of a timeline.

A viewer shows no event that another one on its track overlaps, so that events that run at the same time are
put on several tracks.
"""

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
"""Tracks of one pair of an activity and a medium that the numbers of threads leave room for."""

FIRST_THREAD = 1_000_000
"""Number of the first thread of a domain: viewers take a thread of its process's number for the main one."""


class TrackKind(IntEnum):
    """Kinds of tracks that a rank has within its domain, in their order."""

    NIC_TX = 0
    NIC_RX = 1
    NVLINK_TX = 2
    NVLINK_RX = 3
    COPIES = 4

    @property
    def label(self) -> str:
        return ("NIC tx", "NIC rx", "NVLink tx", "NVLink rx", "pack/unpack")[self]


@dataclass(frozen=True, slots=True, eq=False)
class TraceTracks:
    """Where events are shown.

    Attributes:
        process: number of the process of each event, shape (events,).
        thread: number of its thread, that is its track, likewise. Events of one track do not overlap.
        processes: name of each process, by its number, in their order.
        threads: name of each track, by the numbers of its process and itself, in their order.
        mixed: whether a track shows events of several activities or media.
    """

    process: Ints
    thread: Ints
    processes: Mapping[int, str]
    threads: Mapping[tuple[int, int], str]
    mixed: bool

    def metadata(self) -> list[dict[str, Any]]:
        """Metadata events with the name and the place of every process and track, in their order."""
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


def tracks_by_rank(timeline: Timeline, start_ns: Ints, end_ns: Ints, names: Mapping[int, str]) -> TraceTracks:
    """A process per rank, with tracks for each pair of an activity and a medium.

    Args:
        timeline: the events.
        start_ns: when they begin, in nanoseconds.
        end_ns: when they end.
        names: what ranks are called in addition to their number.
    """
    rank = timeline.rank.astype(np.int64)
    pair = timeline.activity.astype(np.int64) * len(Medium) + timeline.medium
    track = free_tracks(rank * len(Activity) * len(Medium) + pair, start_ns, end_ns)
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
    return TraceTracks(rank, thread, processes, threads, mixed=False)


def tracks_by_domain(
    timeline: Timeline,
    start_ns: Ints,
    end_ns: Ints,
    names: Mapping[int, str],
    topology: Topology,
    ports: Ports,
) -> TraceTracks:
    """A process per domain, with tracks of every kind for its ranks, in order of ranks.

    Args:
        timeline: the events.
        start_ns: when they begin, in nanoseconds.
        end_ns: when they end.
        names: what ranks are called in addition to their number.
        topology: the cluster.
        ports: its ports, of all ranks of the timeline.
    """
    rank = timeline.rank.astype(np.int64)
    domain = ports.domain[rank] if len(rank) else rank
    own = rank * len(TrackKind) + _kinds(timeline)
    track = free_tracks(own, start_ns, end_ns)
    tracks, at = np.unique(np.stack((domain, own, track)), axis=1, return_inverse=True)
    threads = {}
    for number, (process, which, again) in enumerate(tracks.T.tolist(), FIRST_THREAD):
        member, kind = divmod(which, len(TrackKind))
        gpu = topology.gpu_of(member)
        where = f" on GPU {gpu}" if gpu != member else ""
        called = f" ({names[member]})" if member in names else ""
        threads[process, number] = f"rank {member}{where}{called} {TrackKind(kind).label}{_again(again)}"
    processes = {
        process: f"domain {process} (ranks {format_ints(np.unique(rank[domain == process]).tolist())})"
        for process in np.unique(domain).tolist()
    }
    return TraceTracks(domain, at.reshape(-1) + FIRST_THREAD, processes, threads, mixed=True)


def _again(track: int) -> str:
    return f" ({track + 1})" if track else ""


def _kinds(timeline: Timeline) -> Ints:
    """The kind of track of each event; what stays within a rank is copying, whatever the activity."""
    kind = np.full(len(timeline), TrackKind.COPIES, dtype=np.int64)
    for medium, first in ((Medium.NETWORK, TrackKind.NIC_TX), (Medium.NVLINK, TrackKind.NVLINK_TX)):
        for shift, activity in enumerate((Activity.SEND, Activity.RECEIVE)):
            kind[(timeline.medium == medium) & (timeline.activity == activity)] = first + shift
    return kind


def free_tracks(kind: Ints, start_ns: Ints, end_ns: Ints) -> Ints:
    """The track of each event among those of its kind: the first that is free when the event begins.

    Args:
        kind: a number per kind, shape (events,).
        start_ns: when events begin.
        end_ns: when they end.

    Returns:
        Numbers from 0, shape (events,), such that events of one kind and track do not overlap.
    """
    tracks = np.zeros(len(kind), dtype=np.int64)
    busy_until: dict[int, list[int]] = {}
    order = np.lexsort((end_ns, start_ns, kind)).tolist()
    kinds, starts, ends = kind.tolist(), start_ns.tolist(), end_ns.tolist()
    for at in order:
        busy = busy_until.setdefault(kinds[at], [])
        free = next((track for track, until in enumerate(busy) if until <= starts[at]), len(busy))
        if free == len(busy):
            busy.append(0)
        busy[free] = ends[at]
        tracks[at] = free
    return tracks

"""Recorders: what one rank does in a run, and when, as a timeline."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from reshard_executors.wire import InFlight
from reshard_planner.ir.timeline import NO_PEER, Activity, Timeline
from reshard_planner.transfer import Medium

Event = tuple[int, int, int, int, int, float, float]
"""Activity, medium, slot, peer, nbytes, start and end."""

COLUMNS: Final = ("activity", "medium", "slot", "peer", "nbytes", "start_s", "end_s")
"""Columns of a timeline that an event has."""


class Recorder:
    """Collects the events of one run; times are seconds from its making.

    On CUDA they are those of the host, which enqueues the work.
    """

    def __init__(self, rank: int) -> None:
        """Begin now, on a rank of the plan."""
        self._rank = rank
        self._origin = time.perf_counter()
        self._events: list[Event] = []

    def copied(
        self, activity: Activity, slot: int, nbytes: Mapping[Medium, int], start: float, end: float
    ) -> None:
        """Note copies between tensors and staging buffers, or within the rank, with their bytes by medium."""
        for medium, count in nbytes.items():
            if count:
                self._add(activity, medium, slot, NO_PEER, count, start, end)

    def landed(self, flight: InFlight, at: int, end: float) -> None:
        """Note that a message of a slot is done."""
        activity = Activity.RECEIVE if at < len(flight.receives) else Activity.SEND
        message = flight.messages[at]
        self._add(activity, message.medium, flight.slot, message.peer, message.nbytes, flight.posted_at, end)

    def _add(
        self, activity: Activity, medium: Medium, slot: int, peer: int, nbytes: int, start: float, end: float
    ) -> None:
        self._events.append((activity, medium, slot, peer, nbytes, start - self._origin, end - self._origin))

    def timeline(self) -> Timeline:
        """All events, in order of their ends."""
        columns = list(zip(*self._events, strict=True)) or [()] * len(COLUMNS)
        ranks = [self._rank] * len(self._events)
        return Timeline.of({"rank": ranks, **dict(zip(COLUMNS, columns, strict=True))})

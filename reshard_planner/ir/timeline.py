"""Timelines: what happened when a plan ran, as columns.

Executors measure them. Nothing in them is particular to one executor, so that all are drawn alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, Self

import numpy as np

from reshard_planner.errors import TableError
from reshard_planner.ir.tables import Column, Table
from reshard_planner.transfer import Medium

NO_PEER = -1
"""Stands in the column of peers where an event has none."""


class Activity(IntEnum):
    """What a rank is doing during an event."""

    PACK = 0
    """Copying boxes into a staging buffer; over the medium ``local``, from one of its tensors to another."""
    SEND = 1
    """A message is on its way out, from posting it until it has left."""
    RECEIVE = 2
    """A message is awaited, from posting its receipt until it is there."""
    UNPACK = 3
    """Copying boxes out of a staging buffer."""

    @property
    def label(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True, eq=False)
class Timeline(Table):
    """Events of one run, of one rank or of several, in any order.

    Attributes:
        rank: rank of the plan that the event belongs to.
        activity: what the rank is doing, an :class:`Activity`.
        medium: what the bytes go over, a :class:`~reshard_planner.transfer.Medium`.
        slot: slot of the plan.
        peer: rank at the other end of the message, -1 for none or several.
        nbytes: bytes sent, received or copied.
        start_s: when it begins, in seconds from an origin that all events have in common.
        end_s: when it ends, likewise, not before it begins.

    Raises:
        TableError: if columns differ in length, or one has a value that it cannot have.
    """

    DTYPES: ClassVar[Mapping[str, str]] = {
        "rank": "<i4",
        "activity": "|i1",
        "medium": "|i1",
        "slot": "<i4",
        "peer": "<i4",
        "nbytes": "<i8",
        "start_s": "<f8",
        "end_s": "<f8",
    }

    rank: Column
    activity: Column
    medium: Column
    slot: Column
    peer: Column
    nbytes: Column
    start_s: Column
    end_s: Column

    def __post_init__(self) -> None:
        Table.__post_init__(self)  # not super(): slots make a class anew, which its methods do not know
        for name, column in self.columns().items():
            if column.shape != (len(self.rank),):
                raise TableError(
                    f"timeline: column {name} has shape {column.shape}; expected ({len(self.rank)},), as rank"
                )
        for name in ("start_s", "end_s"):
            if not np.isfinite(getattr(self, name)).all():
                raise TableError(f"timeline: column {name} holds a value that is no number; expected seconds")
        limits = {
            "rank": (0, None),
            "activity": (0, max(Activity)),
            "medium": (0, max(Medium)),
            "slot": (0, None),
            "peer": (NO_PEER, None),
            "nbytes": (0, None),
        }
        for name, (least, most) in limits.items():
            self._check_range(name, least, most)
        late = np.flatnonzero(self.end_s < self.start_s)
        if len(late):
            start, end = self.start_s[late[0]], self.end_s[late[0]]
            raise TableError(f"timeline: event {late[0]} ends at {end} s, before it begins at {start} s")

    def _check_range(self, name: str, least: int, most: int | None) -> None:
        column = getattr(self, name)
        wrong = column < least if most is None else (column < least) | (column > most)
        if wrong.any():
            expected = f"{least} or more" if most is None else f"{least} to {most}"
            at = int(np.argmax(wrong))
            raise TableError(f"timeline: {name} of event {at} is {column[at]}; expected {expected}")

    @classmethod
    def concatenate(cls, parts: Sequence[Timeline]) -> Self:
        """The events of several timelines, one after another; an empty one if there are none."""
        return cls.of(
            {
                name: np.concatenate([np.zeros(0, dtype), *(getattr(part, name) for part in parts)])
                for name, dtype in cls.DTYPES.items()
            }
        )

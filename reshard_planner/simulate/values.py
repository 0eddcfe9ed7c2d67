"""What a prediction says."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reshard_planner.errors import InputError
from reshard_planner.ir.chunks import freeze_columns
from reshard_planner.simulate.workload import Messages, RankSlots

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Intervals(Messages):
    """When each message is under way; five more columns of shape (messages,).

    All are float64, in seconds since the run began. With phases, messages are sorted by phase first.

    Attributes:
        sent_s: when the sender has posted it.
        awaited_s: when the receiver has.
        start_s: the later of the two; it flows when its latency has passed since then.
        gone_s: when the sender is done with it.
        end_s: when its last byte has arrived.
    """

    sent_s: Floats
    awaited_s: Floats
    start_s: Floats
    gone_s: Floats
    end_s: Floats


@dataclass(frozen=True, slots=True, eq=False)
class SlotTimes(RankSlots):
    """When each rank does its own work for each of its slots; six more columns of shape (rank slots,).

    All are float64, in seconds since the run began. With phases, rank slots are sorted by phase first.

    Attributes:
        begin_s: when the rank begins the slot.
        pack_s: when it begins to copy and pack.
        packed_s: when it has, and begins to post messages.
        posted_s: when it has posted all of them.
        unpack_s: when they are through and it begins to unpack.
        unpacked_s: when it has.
    """

    begin_s: Floats
    pack_s: Floats
    packed_s: Floats
    posted_s: Floats
    unpack_s: Floats
    unpacked_s: Floats


@dataclass(frozen=True, slots=True)
class Spent:
    """What a rank does in a run, in seconds; together they are the time until its end.

    Attributes:
        pack_s: copying, and packing before it sends.
        post_s: beginning slots and posting messages.
        unpack_s: unpacking what has arrived.
        wait_s: waiting, for messages or for other ranks.
    """

    pack_s: float
    post_s: float
    unpack_s: float
    wait_s: float


@dataclass(frozen=True, slots=True)
class PortUse:
    """What one port carries in one direction.

    Attributes:
        resource: the port and its direction.
        nbytes: bytes over it.
        bytes_per_s: its datasheet rate times efficiency.
        utilisation: share of the run that these bytes take at this rate, 0 to 1.
    """

    resource: str
    nbytes: int
    bytes_per_s: float
    utilisation: float


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """How a run of a plan goes.

    Attributes:
        elapsed_s: end of the last rank, in seconds since the run began.
        end_s: end of each rank, float64 indexed by rank number; 0 for ranks that take no part.
        ports: all ports that carry bytes, NICs first, then NVLink ports, then uplinks.
        intervals: all messages.
        slots: what ranks do for them.
        phase_ends_s: end of each phase, in seconds since the run began; of a run without phases its end.
    """

    elapsed_s: float
    end_s: Floats
    ports: tuple[PortUse, ...]
    intervals: Intervals
    slots: SlotTimes
    phase_ends_s: tuple[float, ...]

    def __post_init__(self) -> None:
        freeze_columns(self)

    @property
    def busiest(self) -> PortUse | None:
        """The port of highest utilisation, the first of equals; None where nothing moves between ranks."""
        return max(self.ports, key=lambda port: port.utilisation, default=None)

    @property
    def last_rank(self) -> int | None:
        """The rank that ends last, the first of equals; None where no rank does anything."""
        return int(self.end_s.argmax()) if self.end_s.any() else None

    def spent(self, rank: int) -> Spent:
        """What a rank does until its end.

        Raises:
            InputError: if the run has no such rank.
        """
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < len(self.end_s):
            raise InputError(f"rank is {rank!r}; expected a rank from 0 to {len(self.end_s) - 1}")
        slots = self.slots
        mine = slots.rank == rank
        pack = float((slots.packed_s - slots.pack_s)[mine].sum())
        post = float((slots.pack_s - slots.begin_s + slots.posted_s - slots.packed_s)[mine].sum())
        unpack = float((slots.unpacked_s - slots.unpack_s)[mine].sum())
        return Spent(pack, post, unpack, max(0.0, float(self.end_s[rank]) - pack - post - unpack))

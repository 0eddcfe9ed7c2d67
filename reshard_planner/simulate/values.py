"""What a prediction says."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reshard_planner.ir.chunks import freeze_columns
from reshard_planner.simulate.workload import Messages

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Intervals(Messages):
    """When each message is under way; two more columns of shape (messages,).

    Attributes:
        start_s: when both ends have posted it, in seconds since the run began; float64.
        end_s: when its last byte has arrived, likewise.
    """

    start_s: Floats
    end_s: Floats


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
    """

    elapsed_s: float
    end_s: Floats
    ports: tuple[PortUse, ...]
    intervals: Intervals

    def __post_init__(self) -> None:
        freeze_columns(self)

    @property
    def busiest(self) -> PortUse | None:
        """The port of highest utilisation, the first of equals; None where nothing moves between ranks."""
        return max(self.ports, key=lambda port: port.utilisation, default=None)

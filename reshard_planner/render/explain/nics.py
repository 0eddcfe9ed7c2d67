"""How busy the NICs of a whole plan are, summed from its rows without looking at single operations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reshard_planner.ir.chunks import freeze_columns
from reshard_planner.ir.plan import Plan
from reshard_planner.render.moves import find_moves
from reshard_planner.topology import Ports
from reshard_planner.transfer import Medium

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class NicShares:
    """How busy the NICs of a plan are, as times at datasheet rates over that of the busiest of them.

    Attributes:
        out: per NIC group, outwards, float64 of shape (groups,); 0 for one that nothing goes over.
        into: likewise inwards.
        nbytes: bytes out and in, int64 of shape (2, groups).
    """

    out: NDArray[np.float64]
    into: NDArray[np.float64]
    nbytes: Ints

    def __post_init__(self) -> None:
        freeze_columns(self)

    @classmethod
    def of(cls, plan: Plan, ports: Ports) -> NicShares:
        """The loads of a whole plan.

        Args:
            plan: the plan; all chunks of its units must be there, as ``verify`` checks.
            ports: of its ranks.
        """
        moves = find_moves(plan)
        over_network = np.flatnonzero(moves.medium == Medium.NETWORK)
        sums = np.zeros((2, len(ports.nic_bytes_per_s)), dtype=np.int64)
        for total, ranks in zip(sums, (moves.src, moves.dst), strict=True):
            known = over_network[ranks[over_network] < len(ports.nic_group)]
            group = ports.nic_group[ranks[known]]
            np.add.at(total, group[group >= 0], moves.nbytes[known[group >= 0]])
        times = sums / np.maximum(1, ports.nic_bytes_per_s)
        most = float(times.max(initial=0.0)) or 1.0
        return cls(times[0] / most, times[1] / most, sums)

"""How busy the NICs of a whole plan are, summed from its rows without looking at single operations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reshard_planner.ir.chunks import freeze_columns
from reshard_planner.ir.plan import Plan
from reshard_planner.ir.stream import UnitRows
from reshard_planner.topology import Ports
from reshard_planner.transfer import Medium

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class NicLoads:
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
    def of(cls, plan: Plan, ports: Ports) -> NicLoads:
        """The loads of a whole plan.

        Args:
            plan: the plan; all chunks of its units must be there, as ``verify`` checks.
            ports: of its ranks.
        """
        sums = np.zeros((2, len(ports.nic_bytes_per_s)), dtype=np.int64)
        for total, load in zip(sums, network_nbytes(plan), strict=True):
            used = np.flatnonzero(load[: len(ports.nic_group)])
            used = used[ports.nic_group[used] >= 0]
            np.add.at(total, ports.nic_group[used], load[used])
        times = sums / np.maximum(1, ports.nic_bytes_per_s)
        most = float(times.max(initial=0.0)) or 1.0
        return cls(times[0] / most, times[1] / most, sums)


def network_nbytes(plan: Plan) -> Ints:
    """Bytes that every rank sends and takes in over the network, int64 of shape (2, ranks).

    All chunks of a unit make up its pieces, so that a row moves its whole piece once for every tensor.
    """
    units = UnitRows(plan.spec, plan.tables)
    routes, schedule = plan.routes, plan.schedule
    size = int(max(routes.src.max(initial=-1), routes.dst.max(initial=-1))) + 1
    renamed_by, names = plan.groups.renamings(size)
    size = names.shape[1]
    # bits of one element, over all tensors of a group that have a part
    scheduled = np.flatnonzero(units.bin >= 0)
    bins = max(1, units.bins)
    times = np.unique(schedule.tensor[scheduled].astype(np.int64) * bins + units.bin[scheduled])
    tensor, part = times // bins, times % bins
    runs, inverse = np.unique(
        plan.groups.group_of[tensor].astype(np.int64) * bins + part, return_inverse=True
    )
    bits = np.zeros(len(runs), dtype=np.int64)
    np.add.at(bits, inverse.reshape(-1), units.elements.bits[tensor])
    rows = np.flatnonzero(routes.medium == Medium.NETWORK)
    found = np.zeros((2, size), dtype=np.int64)
    for total, ranks in zip(found, (routes.src, routes.dst), strict=True):
        # elements by part and rank, summed before they are counted for every group that uses them
        keys, at = np.unique(units.row_bin[rows] * max(1, size) + ranks[rows], return_inverse=True)
        volumes = np.zeros(len(keys), dtype=np.int64)
        np.add.at(volumes, at.reshape(-1), units.volumes[rows])
        first = np.searchsorted(keys, runs % bins * size)
        count = np.searchsorted(keys, (runs % bins + 1) * size) - first
        run = np.repeat(np.arange(len(runs)), count)
        entry = np.arange(len(run)) + np.repeat(first - (np.cumsum(count) - count), count)
        rank = names[renamed_by[runs // bins][run], keys[entry] % max(1, size)]
        np.add.at(total, rank, volumes[entry] * bits[run] // 8)
    return found

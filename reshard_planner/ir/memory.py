"""Memory that a plan takes on a rank beside the tensors."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reshard_planner.ir.ops import Ops
from reshard_planner.ir.traffic import Traffic
from reshard_planner.schedule.values import BUFFERS_PER_DIRECTION

CONNECTION_BUFFER_NBYTES = 4 * 2**20
"""Bytes of the buffer that a connection has on each channel: the default of ``NCCL_BUFFSIZE``, as NCCL's user
guide gives it under "Environment Variables"."""

CONNECTION_CHANNELS = 2
"""Channels per peer that NCCL takes for sends and receives: typically 2 over the network, says
github.com/NVIDIA/nccl issue 1424, and at most halved where peers are many; since 2.29 it depends on the NIC's
rate, and over NVLink it may be more."""


def staging_of(traffic: Traffic) -> int:
    """Bytes of the rank that needs most: its staging buffers and the scratch live at one time.

    A staging buffer holds the largest slot of its direction. Scratch lives from the slot in which it
    arrives to the last one that reads it.
    """
    staging = BUFFERS_PER_DIRECTION * (traffic.send_nbytes + traffic.receive_nbytes)
    return int((staging + traffic.scratch_nbytes).max(initial=0))


def connection_nbytes(traffic: Traffic) -> int:
    """Estimated bytes of the connections of the rank that has most peers."""
    peers = int((traffic.network_peers + traffic.nvlink_peers).max(initial=0))
    return peers * CONNECTION_CHANNELS * CONNECTION_BUFFER_NBYTES


def scratch_ends(ops: Ops) -> NDArray[np.int64]:
    """Per operation, the last slot that reads what it brought; its own slot if nothing does."""
    end = ops.slot.copy()
    children = np.flatnonzero(ops.parent >= 0)
    at = np.searchsorted(ops.op, ops.parent[children])
    known = (at < len(ops.op)) & (ops.op[np.minimum(at, max(0, len(ops.op) - 1))] == ops.parent[children])
    np.maximum.at(end, at[known], ops.slot[children[known]])
    return end

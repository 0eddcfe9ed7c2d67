"""Memory that a plan takes on a rank beside the tensors."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reshard_planner.ir.ops import Ops
from reshard_planner.transfer import Medium

BUFFERS_PER_DIRECTION = 2
"""Staging buffers per direction, so that packing, the wire and unpacking overlap."""


def staging_nbytes(ops: Ops) -> int:
    """Bytes of the rank that needs most: its staging buffers and the scratch live at one time.

    A staging buffer holds the largest slot of its direction. Scratch lives from the slot in which it
    arrives to the last one that reads it.
    """
    size = int(max(ops.src.max(initial=-1), ops.dst.max(initial=-1))) + 1
    if not size:
        return 0
    moved = ops.medium != Medium.LOCAL
    send = _largest_slot(ops.src[moved], ops.slot[moved], ops.nbytes[moved], size)
    receive = _largest_slot(ops.dst[moved], ops.slot[moved], ops.nbytes[moved], size)
    total = BUFFERS_PER_DIRECTION * (send + receive) + _peak_scratch(ops, size)
    return int(total.max(initial=0))


def _largest_slot(
    rank: NDArray[np.int64], slot: NDArray[np.int64], nbytes: NDArray[np.int64], size: int
) -> NDArray[np.int64]:
    """Per rank, the most bytes of any slot."""
    slots = int(slot.max(initial=-1)) + 1
    key, inverse = np.unique(rank * max(1, slots) + slot, return_inverse=True)
    sums = np.zeros(len(key), dtype=np.int64)
    np.add.at(sums, inverse, nbytes)
    largest = np.zeros(size, dtype=np.int64)
    np.maximum.at(largest, key // max(1, slots), sums)
    return largest


def scratch_ends(ops: Ops) -> NDArray[np.int64]:
    """Per operation, the last slot that reads what it brought; its own slot if nothing does."""
    end = ops.slot.copy()
    children = np.flatnonzero(ops.parent >= 0)
    at = np.searchsorted(ops.op, ops.parent[children])
    known = (at < len(ops.op)) & (ops.op[np.minimum(at, max(0, len(ops.op) - 1))] == ops.parent[children])
    np.maximum.at(end, at[known], ops.slot[children[known]])
    return end


def _peak_scratch(ops: Ops, size: int) -> NDArray[np.int64]:
    at = np.flatnonzero(ops.scratch)
    peak = np.zeros(size, dtype=np.int64)
    if not len(at):
        return peak
    end = scratch_ends(ops)[at]
    rank = np.concatenate((ops.dst[at], ops.dst[at]))
    time = np.concatenate((ops.slot[at], end + 1))
    change = np.concatenate((ops.nbytes[at], -ops.nbytes[at]))
    order = np.lexsort((change, time, rank))
    rank, change = rank[order], change[order]
    level = np.cumsum(change)  # every rank's changes sum to zero, so ranks do not disturb one another
    np.maximum.at(peak, rank, level)
    return peak

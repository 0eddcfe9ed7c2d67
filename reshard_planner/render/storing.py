"""Who stores anything of some tensors, on one side."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from reshard_planner.layout import Layout
from reshard_planner.spec import TensorSpec
from reshard_planner.spec.values import Side


def storing_ranks(tensors: Iterable[TensorSpec], side: Side, size: int) -> NDArray[np.bool_]:
    """Per rank, whether it stores an element of one of the tensors on one side, bool of shape (size,)."""
    stores = np.zeros(size, dtype=np.bool_)
    known: set[tuple[Layout, tuple[int, ...]]] = set()
    for tensor in tensors:
        for layout in tensor.layouts(side):
            if (layout, tensor.shape) in known:
                continue
            known.add((layout, tensor.shape))
            tiling = layout.tiling(tensor.shape)
            _, sample, alike = np.unique(tiling.alike, return_index=True, return_inverse=True)
            full = np.array([tiling.count(rank) > 0 for rank in tiling.ranks[sample].tolist()])
            ranks = tiling.ranks[full[alike]]
            stores[ranks[ranks < size]] = True
    return stores

"""Whether boxes overlap, for many of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

MAX_CORNERS = 2**24
"""Most corners of boxes that are counted at once."""


def are_disjoint(lo: Ints, hi: Ints) -> bool:
    """Whether boxes are pairwise disjoint.

    Args:
        lo: first index per box and dimension, shape (boxes, dims).
        hi: index past the last, likewise.
    """
    if len(lo) < 2:
        return True
    varying = ((lo != lo[:1]) | (hi != hi[:1])).any(0)
    lo, hi = lo[:, varying], hi[:, varying]
    if not lo.shape[1]:
        return False
    count = 1
    ranges: list[tuple[Ints, Ints]] = []
    sizes: list[int] = []
    for dim in range(lo.shape[1]):
        cut = np.unique(np.concatenate((lo[:, dim], hi[:, dim])))
        ranges.append((np.searchsorted(cut, lo[:, dim]), np.searchsorted(cut, hi[:, dim])))
        sizes.append(len(cut))
        count *= len(cut)
    if count > MAX_CORNERS:
        return _are_disjoint_halves(lo, hi)
    corners = np.zeros(sizes, dtype=np.int32)
    for corner in np.ndindex(*(2,) * len(ranges)):
        index = tuple(bounds[side] for bounds, side in zip(ranges, corner, strict=True))
        np.add.at(corners, index, 1 if sum(corner) % 2 == 0 else -1)
    for dim in range(len(ranges)):
        corners = np.cumsum(corners, axis=dim, dtype=np.int32)
    return bool(corners.max() <= 1)


def _are_disjoint_halves(lo: Ints, hi: Ints) -> bool:
    """Divide at the middle of the dimension with most cuts and look at each half on its own."""
    cuts = [np.unique(np.concatenate((lo[:, dim], hi[:, dim]))) for dim in range(lo.shape[1])]
    dim = max(range(len(cuts)), key=lambda d: len(cuts[d]))
    middle = int(cuts[dim][len(cuts[dim]) // 2])
    left, right = lo[:, dim] < middle, hi[:, dim] > middle
    left_hi, right_lo = hi[left].copy(), lo[right].copy()
    left_hi[:, dim] = np.minimum(left_hi[:, dim], middle)
    right_lo[:, dim] = np.maximum(right_lo[:, dim], middle)
    return are_disjoint(lo[left], left_hi) and are_disjoint(right_lo, hi[right])

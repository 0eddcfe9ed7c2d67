"""What a bar of full height stands for, so that one slot far above all others does not flatten these."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

OUTLIER, KEPT = 3.0, 2.0
"""How many times the usual peak is too much for the scale, and what a bar of full height stands for then."""


def full_height(values: NDArray[np.generic]) -> float:
    """The value of a bar of full height; larger ones are drawn as high, with a mark.

    It is the largest value, or where that is more than three times the usual one, twice the usual one: the
    median of the largest value of each column, of those columns that have any. Where half of the columns are
    as large, nothing is above.

    Args:
        values: from 0, shape (..., columns).

    Returns:
        A number above 0, or 0 if all values are 0.

    >>> full_height(np.array([[4, 0, 6, 5], [3, 0, 2, 2]])), full_height(np.array([[4, 90, 6, 5]]))
    (6.0, 10.0)
    """
    peaks = np.sort(values.reshape(-1, values.shape[-1]).max(axis=0, initial=0).astype(np.float64))
    peaks = peaks[peaks > 0]
    if not len(peaks):
        return 0.0
    usual = float(peaks[(len(peaks) - 1) // 2])
    largest = float(peaks[-1])
    return KEPT * usual if largest > OUTLIER * usual else largest

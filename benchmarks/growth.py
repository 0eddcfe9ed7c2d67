"""Growth: the exponent of a power law through measured times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.record import Record


def fit_growth(records: Sequence[Record]) -> dict[str, Any] | None:
    """Least squares of log compile time over log GPUs.

    Args:
        records: of any suite; those of ``growth`` that succeeded are used.

    Returns:
        ``exponent``, ``seconds_at_1024_gpus`` by the fit, and ``points`` as [GPUs, seconds]; None with fewer
        than two points.
    """
    points = [
        (record.gpus, record.compile_s)
        for record in records
        if record.suite == "growth" and record.gpus and record.compile_s
    ]
    if len({gpus for gpus, _ in points}) < 2:
        return None
    x, y = (np.log(np.array(column, dtype=np.float64)) for column in zip(*points, strict=True))
    exponent, constant = np.polyfit(x, y, 1)
    return {
        "exponent": float(exponent),
        "seconds_at_1024_gpus": float(np.exp(constant + exponent * np.log(1024))),
        "points": [list(point) for point in points],
    }

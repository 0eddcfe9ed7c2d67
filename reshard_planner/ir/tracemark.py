"""The mark of a trace: that this project wrote it, when it begins, and the digest of what it says."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from reshard_planner.ir.digest import canonical_json
from reshard_planner.ir.timeline import Timeline

Ints = NDArray[np.int64]

FORMAT: Final = "reshard-planner"
VERSION: Final = 1

TIMES: Final = ("start_s", "end_s")
"""Columns that a trace has in nanoseconds."""


def trace_mark(
    timeline: Timeline, start_ns: Ints, end_ns: Ints, origin_ns: int, notes: Mapping[str, Any]
) -> dict[str, Any]:
    """The mark of a timeline's trace.

    Args:
        timeline: the events.
        start_ns: when they begin, in nanoseconds from the timeline's origin.
        end_ns: when they end, likewise.
        origin_ns: nanosecond that the trace begins at, on the same clock.
        notes: further facts, as JSON gives them back.
    """
    columns = {name: column for name, column in timeline.columns().items() if name not in TIMES}
    found = hashlib.sha256(canonical_json([FORMAT, VERSION, origin_ns, len(timeline), notes]))
    for column in (*columns.values(), start_ns, end_ns):
        found.update(np.ascontiguousarray(column, dtype="<i8").tobytes())
    return {"format": FORMAT, "version": VERSION, "origin_ns": origin_ns, "digest": found.hexdigest()}

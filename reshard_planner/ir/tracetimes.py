"""Times of traces: whole nanoseconds, written as microseconds that every viewer reads alike."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from reshard_planner.errors import InputError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

NS_PER_S: Final = 10**9
NS_PER_US: Final = 1000

MAX_TIME_S: Final = 1_000_000
"""Furthest from the origin: microseconds with a fraction tell nanoseconds apart for some 25 days only."""


def nanoseconds(time_s: Floats) -> Ints:
    """Times to the nearest nanosecond, int64.

    Raises:
        InputError: if one is further from the origin than a trace can say.
    """
    furthest = float(np.abs(time_s).max(initial=0.0))
    if furthest > MAX_TIME_S:
        raise InputError(
            f"an event is {furthest:.3g} s from the origin; expected at most {MAX_TIME_S}, within which a"
            " trace tells nanoseconds apart"
        )
    return np.rint(time_s * NS_PER_S).astype(np.int64)


def microseconds(time_ns: Ints) -> list[float]:
    """Times in microseconds, which are whole nanoseconds again both when rounded and when cut off.

    Some viewers round 1000 times the number, and some, as older ones of Perfetto, cut it off. The nearest
    number to 1.001 would be 1000 ns there: such a slice overlaps with the one before it, and is not shown.
    """
    time_us = time_ns / NS_PER_US
    low = np.floor(time_us * NS_PER_US) < time_ns
    found: list[float] = np.where(low, np.nextafter(time_us, np.inf), time_us).tolist()
    return found

"""Shares: the rates of messages that share ports."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

NOTHING = 1e-9
"""Share of a port's rate that is rounding."""

LAST = np.iinfo(np.int64).max
"""After the order of every message."""


def ordered_rates(ports: Ints, order: Ints, bytes_per_s: Floats) -> Floats:
    """Rates of messages of which some come first: each has its fair share of what earlier ones leave.

    Shares are max-min fair: no message can have more without less for one of its order that has no more than
    it. Every port is filled by the first of its messages that are not fixed yet, all ports at once. A port at
    which none of them finds a smaller share elsewhere is full, and fixes them; so one pass fixes all that do
    not depend on one another, of whichever order.

    Args:
        ports: ports that each message passes, int64 of shape (messages, ports per message); each passes one
            of finite rate.
        order: which messages come first, int64 of shape (messages,), lower ones before higher; equal ones
            share.
        bytes_per_s: rate of each port, above 0 where a message passes, may be infinite.

    Returns:
        Rate of each message in bytes per second, float64 of shape (messages,); 0 where nothing is left.
    """
    rates = np.zeros(len(ports))
    size = len(bytes_per_s)
    left = bytes_per_s.copy()
    unlimited = np.isinf(bytes_per_s)
    limited = not unlimited[ports].any()
    nothing = np.where(unlimited, 0.0, bytes_per_s * NOTHING)
    rest = np.arange(len(ports))
    passed = np.ascontiguousarray(ports.T)  # a row for each place on the paths: short axes are slow to reduce
    while len(rest):
        lowest = np.full(size, LAST)
        for row in passed:
            np.minimum.at(lowest, row, order)
        first = lowest.take(passed) == order
        if not limited:
            first |= unlimited.take(passed)
        sharing = np.zeros(size)
        for row, mine in zip(passed, first, strict=True):
            sharing += np.bincount(row, mine, size)
        share = left / np.maximum(sharing, 1.0)
        least = np.where(first, share.take(passed), -1.0).min(axis=0)
        tightest = np.full(size, np.inf)
        for row, mine in zip(passed, first, strict=True):
            np.minimum.at(tightest, row, np.where(mine, least, np.inf))
        full = (tightest >= share) & ~unlimited
        fixed = (full.take(passed) & first).any(axis=0)
        found = least[fixed]
        rates[rest[fixed]] = found
        for row in passed:
            left -= np.bincount(row[fixed], found, size)
        # what is left of a port goes to nobody, once that is nothing
        kept = np.flatnonzero(~(fixed | (left <= nothing).take(passed).any(axis=0)))
        rest, passed, order = rest.take(kept), passed.take(kept, axis=1), order.take(kept)
    return rates

"""Shares: the rates of flows that share ports."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

NOTHING = 1e-9
"""Share of a port's rate that is rounding."""

MAX_RANK = np.iinfo(np.int64).max
"""Above all ranks of flows."""


def fair_rates(ports: Ints, bytes_per_s: Floats) -> Floats:
    """Max-min fair rates: no flow can have more without less for one that has no more than it.

    Args:
        ports: ports that each flow passes, int64 of shape (flows, ports per flow); each flow passes one of
            finite rate.
        bytes_per_s: rate of each port, above 0 where a flow passes, may be infinite.

    Returns:
        Rate of each flow in bytes per second, float64 of shape (flows,).
    """
    return ranked_rates(ports, np.zeros(len(ports), dtype=np.int64), bytes_per_s)


def ranked_rates(ports: Ints, rank: Ints, bytes_per_s: Floats) -> Floats:
    """Rates of flows of which some come first: each has its fair share of what earlier ones leave.

    Every port is filled by the flows of its lowest rank that are not fixed yet, all ports at once. A port at
    which none of them finds a smaller share elsewhere is full, and fixes them; so one pass fixes all that do
    not depend on one another, of whichever rank.

    Args:
        ports: as for :func:`fair_rates`.
        rank: which flows come first, int64 of shape (flows,), lower ones before higher; equal ones share.
        bytes_per_s: as for :func:`fair_rates`.

    Returns:
        Rate of each flow in bytes per second, float64 of shape (flows,); 0 where nothing is left.
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
        lowest = np.full(size, MAX_RANK)
        for row in passed:
            np.minimum.at(lowest, row, rank)
        first = lowest.take(passed) == rank
        if not limited:
            first |= unlimited.take(passed)
        flows = np.zeros(size)
        for row, mine in zip(passed, first, strict=True):
            flows += np.bincount(row, mine, size)
        share = left / np.maximum(flows, 1.0)
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
        rest, passed, rank = rest.take(kept), passed.take(kept, axis=1), rank.take(kept)
    return rates

"""Shares: the rates of flows that share ports."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

NOTHING = 1e-9
"""Share of a port's rate that is rounding."""


def fair_rates(ports: Ints, bytes_per_s: Floats) -> Floats:
    """Max-min fair rates: no flow can have more without less for one that has no more than it.

    Ports are filled up together; those at which all flows find no smaller share elsewhere are full, and fix
    their flows. So one pass fixes all that do not depend on one another.

    Args:
        ports: ports that each flow passes, int64 of shape (flows, ports per flow); each flow passes one of
            finite rate.
        bytes_per_s: rate of each port, above 0 where a flow passes, may be infinite.

    Returns:
        Rate of each flow in bytes per second, float64 of shape (flows,).
    """
    count, width = ports.shape
    rates = np.zeros(count)
    left = bytes_per_s.copy()
    rest = np.arange(count)
    while len(rest):
        flows = np.bincount(ports.ravel(), minlength=len(left))
        share = left / np.maximum(flows, 1)
        least = share[ports].min(axis=1)
        tightest = np.full(len(left), np.inf)
        np.minimum.at(tightest, ports.ravel(), least.repeat(width))
        fixed = (tightest >= share)[ports].any(axis=1)
        found = least[fixed]
        rates[rest[fixed]] = found
        if len(found) == len(rest):
            break
        left -= np.bincount(ports[fixed].ravel(), found.repeat(width), len(left))
        rest, ports = rest[~fixed], ports[~fixed]
    return rates


def ranked_rates(ports: Ints, rank: Ints, bytes_per_s: Floats) -> Floats:
    """Rates of flows of which some come first: each has its fair share of what earlier ones leave.

    Args:
        ports: as for :func:`fair_rates`.
        rank: which flows come first, int64 of shape (flows,), lower ones before higher; equal ones share.
        bytes_per_s: as for :func:`fair_rates`.

    Returns:
        Rate of each flow in bytes per second, float64 of shape (flows,); 0 where nothing is left.
    """
    rates = np.zeros(len(ports))
    left = bytes_per_s.copy()
    for first in np.unique(rank).tolist():
        mine = np.flatnonzero(rank == first)
        open_ports = left > bytes_per_s * NOTHING
        mine = mine[(open_ports | np.isinf(bytes_per_s))[ports[mine]].all(axis=1)]
        rates[mine] = fair_rates(ports[mine], left)
        used = np.bincount(ports[mine].ravel(), rates[mine].repeat(ports.shape[1]), len(left))
        left = np.where(np.isinf(bytes_per_s), bytes_per_s, left - used)
    return rates

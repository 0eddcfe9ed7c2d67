"""The set of ports that takes longest for all that only its members may carry."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

Members = tuple[int, ...]

MAX_ARCS = 400_000
"""Pairs of loads and ports up to which the search is made."""

MAX_SETS = 64
"""Distinct sets of ports that loads may have up to which each one alone is tried as a bottleneck."""

ROUNDING = 1 + 1e-9
"""Ratio within which a time or load that is computed in floating point counts as no larger."""

TOTAL = 2**30
"""Units that all loads together are counted in; scipy counts in int32 and wraps silently."""


def ratio(loads: Mapping[Members, int], rate: Mapping[int, int], members: Members) -> Fraction:
    """All loads that only ``members`` may carry, over their rate, in seconds; 0 where that rate is 0."""
    inside = set(members)
    total = sum(nbytes for ports, nbytes in loads.items() if inside.issuperset(ports))
    speed = sum(rate[port] for port in members)
    return Fraction(total, speed) if speed else Fraction(0)


def find_bottleneck(
    loads: Mapping[Members, int], rate: Mapping[int, int], beyond: Fraction
) -> tuple[Fraction, Members] | None:
    """The set of ports with the largest ratio of the loads within it to its rate, by Dinkelbach's method.

    Each load may be carried by any of its ports, in any shares. A maximum flow tells whether all fit within
    a time; if not, the ports on the source side of its minimum cut take longer, and their ratio is the next
    time. The flow counts in rounded units: first so that it reports only sets that take longer, then so that
    it reports nearly tight ones as well. What counts is the exact ratio of each part of a set that hangs
    together.

    Args:
        loads: bytes by the ports that may carry them.
        rate: bytes per second of every port.
        beyond: only sets that take longer than this are of interest, in seconds.

    Returns:
        Time in seconds and the set, ascending; None if no set is found to take longer than ``beyond``.
    """
    loads = {ports: nbytes for ports, nbytes in loads.items() if nbytes and any(rate[p] for p in ports)}
    if not loads or sum(len(ports) for ports in loads) > MAX_ARCS:
        return None
    every = tuple(sorted({port for ports in loads for port in ports}))
    best: Members | None = None
    time = beyond
    for members in (every, *(loads if len(loads) <= MAX_SETS else ())):
        found = ratio(loads, rate, members)
        if found > time:
            best, time = members, found
    network = _Network(loads, every, rate)
    tight = False
    while time:
        parts = _parts(loads, network.tight_ports(time, nearly=tight))
        found, members = max(((ratio(loads, rate, part), part) for part in parts), default=(time, ()))
        if found > time:
            best, time = members, found
        elif tight:
            break
        else:
            tight = True
    return None if best is None else (time, best)


def _parts(loads: Mapping[Members, int], members: Members) -> list[Members]:
    """Split a set of ports where no load within it connects them."""
    root = {port: port for port in members}

    def find(port: int) -> int:
        while root[port] != port:
            root[port] = root[root[port]]
            port = root[port]
        return port

    for ports in loads:
        if all(port in root for port in ports):
            first = find(ports[0])
            for port in ports[1:]:
                root[find(port)] = first
    parts: dict[int, list[int]] = {}
    for port in members:
        parts.setdefault(find(port), []).append(port)
    return [tuple(part) for part in parts.values()]


class _Network:
    """Source, loads, ports, sink."""

    def __init__(self, loads: Mapping[Members, int], every: Members, rate: Mapping[int, int]) -> None:
        self.every = every
        at = {port: number for number, port in enumerate(every)}
        self.nbytes = list(loads.values())
        self.total = sum(self.nbytes)
        self.rate = [rate[port] for port in every]
        sizes = [len(ports) for ports in loads]
        count = len(self.nbytes)
        load = np.repeat(np.arange(count), sizes)
        port = np.array([at[p] for ports in loads for p in ports], dtype=np.int64)
        self.nodes = 2 + count + len(every)
        source, sink = self.nodes - 2, self.nodes - 1
        self.rows = np.concatenate((np.full(count, source), load, count + np.arange(len(every))))
        self.columns = np.concatenate((np.arange(count), count + port, np.full(len(every), sink)))
        self.load = load

    def tight_ports(self, time: Fraction, *, nearly: bool) -> Members:
        """Ports on the source side of a minimum cut at this time; none if all fits."""
        from scipy.sparse import csr_array  # noqa: PLC0415 - scipy is slow to import
        from scipy.sparse.csgraph import breadth_first_order, maximum_flow  # noqa: PLC0415 - likewise

        up, down = (-1, 1) if nearly else (1, -1)  # floor division rounds up between two negations
        demand = np.array(
            [up * (up * nbytes * TOTAL // self.total) for nbytes in self.nbytes], dtype=np.int64
        )
        scale = time.denominator * self.total
        room = np.array(
            [min(TOTAL, down * (down * speed * time.numerator * TOTAL // scale)) for speed in self.rate],
            dtype=np.int64,
        )
        values: NDArray[np.int64] = np.concatenate((demand, demand[self.load], room))
        shape = (self.nodes, self.nodes)
        graph = csr_array((values.astype(np.int32), (self.rows, self.columns)), shape=shape)
        source, sink = self.nodes - 2, self.nodes - 1
        result = maximum_flow(graph, source, sink)
        if result.flow_value >= demand.sum():
            return ()
        residual = graph - result.flow
        residual.data = np.maximum(residual.data, 0)
        residual.eliminate_zeros()
        reached = breadth_first_order(residual, source, return_predecessors=False)
        first = len(self.nbytes)
        numbers = np.sort(reached[(reached >= first) & (reached < source)]) - first
        return tuple(self.every[number] for number in numbers.tolist())

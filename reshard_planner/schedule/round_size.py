"""The size of rounds: how much each carries, so that whole units fill it.

A port whose units fill 0.7 of a round has one in each; in rounds that carry 1.4 times as much it has two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from reshard_planner.schedule.cutting import FULL
from reshard_planner.schedule.kinds import Kind
from reshard_planner.schedule.values import Floats, Ints

SCALES = np.arange(50, 151, 5) / 100
"""Numbers of rounds that are tried, over the one that the pace asks for: by a half at most, as in ADR 24.

Measured as the constants of :mod:`reshard_planner.schedule.rounds`: with a quarter at most the sum over slots
is 2.6 % longer (13.9 % at worst), and steps of 0.02 change it by less than 0.1 % (0.7 %). From 0.25 to 2 it
is 0.6 % shorter (6.4 % at best); not done, since times of simulated runs have not been compared.
"""

LEAST_SHARE = 1e-9
"""Smallest share of a round that is told apart from smaller ones."""

TIE = 1e-3
"""Share of a round that counts as nothing: far above what sums of shares in single precision are off by."""


@dataclass(frozen=True, slots=True, eq=False)
class Batches:
    """Units of one kind that share a round, as columns in the order in which they are placed.

    Attributes:
        kind: position of the kind.
        size: number of units.
        turn: when it is their turn, from 0 to 1.
    """

    kind: Ints
    size: Ints
    turn: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Need:
    """How many units each port has of each kind, as columns.

    Attributes:
        port: number of the port.
        timed: whether it is one, and not a buffer, which holds what it holds however long a round is.
        units: number of units, those that load a port in several slots counted in parts.
        share: what one of them loads, as a share of the pace's round.
    """

    port: Ints
    timed: NDArray[np.bool_]
    units: Floats
    share: Floats

    @classmethod
    def of(cls, kinds: Sequence[Kind], staged: NDArray[np.bool_], batches: Batches) -> Need:
        """Count the units of batches."""
        pairs, number = np.unique(np.stack((batches.kind, batches.size)), axis=1, return_counts=True)
        ports: list[Ints] = [np.zeros(0, dtype=np.int64)]
        units: list[Floats] = [np.zeros(0)]
        shares: list[Floats] = [np.zeros(0)]
        for kind, size, count in zip(*pairs.tolist(), number.tolist(), strict=True):
            each = kinds[kind]
            whole = np.maximum(each.whole, LEAST_SHARE)
            ports.append(each.port)
            units.append(count * each.load / whole)
            shares.append(whole * (size / each.chunks))
        port = np.concatenate(ports)
        return cls(port, ~staged[port], np.concatenate(units), np.concatenate(shares))

    def choose(self, alpha: float, filling: int, uneven: float) -> tuple[float, int]:
        """How many rounds there are for each of the pace, and how many the busiest port needs then.

        Args:
            alpha: start-up time of a slot, as a share of a round.
            filling: rounds that it takes to fill the pipeline.
            uneven: what slots are longer than a round, as a share of the largest unit.
        """
        largest = float(self.share[self.timed].max(initial=0.0))
        best, chosen = np.inf, (1.0, 1)
        for factor in SCALES.tolist():
            if factor > 1 and largest * factor > FULL - TIE:
                break
            share = np.where(self.timed, self.share * factor, self.share)
            together = np.maximum(1.0, np.floor((FULL - TIE) / share))
            needed = float(np.bincount(self.port, self.units / together).max(initial=0.0))
            rounds = max(1, ceil(needed - TIE))
            cost = (rounds * (1 + uneven * largest * factor) + filling) / factor + rounds * alpha
            if cost < best:
                best, chosen = cost, (factor, rounds)
        return chosen

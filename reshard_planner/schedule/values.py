"""What scheduling yields: when the rows of a forest run, and the units of a plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

import numpy as np
from numpy.typing import NDArray

BUFFERS_PER_DIRECTION = 2
"""Staging buffers per direction, so that packing, the wire and unpacking overlap."""

FINER = 4
"""Factor from one size of messages to the next finer one."""

TIGHTER = 1.1
"""Least factor from one pace to the next tighter one."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Pace:
    """What a schedule aims at.

    Attributes:
        rounds: number of rounds, each of which carries an equal share.
        staging_nbytes: bytes that the staging buffers of a rank are to keep within.
        min_message_nbytes: bytes of a message below which no piece is cut.
    """

    rounds: int
    staging_nbytes: int
    min_message_nbytes: int

    def finer(self) -> Pace:
        """Smaller messages."""
        return replace(self, min_message_nbytes=max(1, self.min_message_nbytes // FINER))

    def tighter(self, needed: float) -> Pace:
        """More rounds and less staging, by a factor of at least ``needed``, which is above 1."""
        factor = max(TIGHTER, needed)
        return Pace(
            ceil(self.rounds * factor), max(1, int(self.staging_nbytes / factor)), self.min_message_nbytes
        )


@dataclass(frozen=True, slots=True)
class Timing:
    """When a forest's rows run.

    Attributes:
        offset: slots after the unit's round, per row.
        part: part that each piece belongs to, per piece; all pieces of a tree are in one.
        cut_dim: dimension along which each piece is cut in chunks, per piece; -1 in a 0-d tensor.
        n_chunks: chunks that the pieces of each part are cut in, per part.
    """

    offset: Ints
    part: Ints
    cut_dim: Ints
    n_chunks: Ints


@dataclass(frozen=True, slots=True)
class Units:
    """The units of all forests as columns, sorted by (round, forest, member, tensor, part, chunk).

    Attributes:
        forest: position of the forest.
        member: position of the member in it.
        tensor: position of the tensor in the spec.
        part: part of the forest.
        chunk: chunk of the part.
        n_chunks: chunks of the part.
        round: round in which the unit starts.
    """

    forest: Ints
    member: Ints
    tensor: Ints
    part: Ints
    chunk: Ints
    n_chunks: Ints
    round: Ints


def sum_by(number: Ints, values: Floats | Ints, count: int) -> Floats:
    """Sums of the values of equal number, for the numbers from 0 to ``count - 1``."""
    sums: Floats = np.bincount(number, weights=values, minlength=count).astype(np.float64, copy=False)
    return sums

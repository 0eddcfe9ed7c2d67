"""What executors make of the moves of a slot: which of them make one message, and which can go straight."""

from __future__ import annotations

from collections.abc import Sequence

from reshard_planner.ir.program import Move
from reshard_planner.ir.views import View
from reshard_planner.transfer import Medium

ALONE_NBYTES = 2**20
"""Size from which a move is sent as a message of its own, so that neither end has to pack it where it is one
run of bytes."""

MAX_ALONE = 16
"""Most moves of one peer, direction and slot that are sent alone: every message costs time."""


def split_moves(moves: Sequence[Move]) -> list[tuple[Move, ...]]:
    """The moves of one peer, direction and slot by message: small ones of a medium together, then large ones.

    It depends on sizes and media alone, so that both ends find the same.
    """
    alone = [move for move in moves if move.nbytes >= ALONE_NBYTES][:MAX_ALONE]
    chosen = {move.op for move in alone}
    small = [move for move in moves if move.op not in chosen]
    together = (tuple(move for move in small if move.medium == medium) for medium in Medium)
    return [*filter(None, together), *((move,) for move in alone)]


def goes_straight(moves: Sequence[tuple[View, ...]]) -> bool:
    """Whether a message, given the views of its moves at one end, is one run of bytes in a buffer there."""
    if len(moves) != 1 or len(moves[0]) != 1:
        return False
    [[view]] = moves
    return not view.converts and is_dense(view.shape, view.strides)


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a row-major view is one run of elements without gaps.

    >>> is_dense((1, 8), (100, 1)), is_dense((2, 8), (100, 1))
    (True, False)
    """
    step = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent > 1 and stride != step:
            return False
        step *= extent
    return True

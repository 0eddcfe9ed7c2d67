"""Messages: the slots of a program, with the place of every packed message in the staging buffers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reshard_planner.ir.program import Move, Program, View
from reshard_planner.transfer import Medium

ALIGNMENT_NBYTES = 16
"""Messages begin at multiples of this in a staging buffer, so that most elements are aligned."""


@dataclass(frozen=True, slots=True)
class Message:
    """Everything that one rank sends another in one slot.

    Attributes:
        peer: rank of the plan at the other end.
        moves: what is in it, in order.
        nbytes: its size.
        medium: what it goes over.
        staged_at: where it is packed in the staging buffer, in bytes; None if it is one run of bytes in a
            buffer of this rank and goes straight from or into that.
    """

    peer: int
    moves: tuple[Move, ...]
    nbytes: int
    medium: Medium
    staged_at: int | None


@dataclass(frozen=True, slots=True)
class Exchange:
    """One slot of one rank.

    Attributes:
        slot: number of the slot.
        sends: at most one message per peer.
        receives: at most one message per peer.
        copies: moves within the rank.
        frees: operations whose scratch is not read after this slot.
    """

    slot: int
    sends: tuple[Message, ...]
    receives: tuple[Message, ...]
    copies: tuple[Move, ...]
    frees: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Lowered:
    """A program ready to run.

    Attributes:
        exchanges: its slots, in order.
        send_nbytes: size of the staging buffer for sending.
        receive_nbytes: size of the staging buffer for receiving.
    """

    exchanges: tuple[Exchange, ...]
    send_nbytes: int
    receive_nbytes: int


def lower_program(program: Program) -> Lowered:
    """Decide which messages are packed, and where. The two ends of a message decide on their own."""
    exchanges = []
    most = [0, 0]
    for slot in program.slots:
        sends, send_nbytes = _place((peer, moves, moves[0].read) for peer, moves in slot.sends)
        receives, receive_nbytes = _place((peer, moves, moves[0].write) for peer, moves in slot.receives)
        most = [max(most[0], send_nbytes), max(most[1], receive_nbytes)]
        exchanges.append(Exchange(slot.number, sends, receives, slot.copies, slot.frees))
    return Lowered(tuple(exchanges), *most)


def _place(
    messages: Iterable[tuple[int, tuple[Move, ...], View | None]],
) -> tuple[tuple[Message, ...], int]:
    """Lay the messages of one slot and direction out one after another; also the bytes that they take."""
    placed = []
    end = 0
    for peer, moves, first in messages:
        nbytes = sum(move.nbytes for move in moves)
        staged_at = None
        if len(moves) > 1 or first is None or not is_dense(first.shape, first.strides):
            staged_at = -(-end // ALIGNMENT_NBYTES) * ALIGNMENT_NBYTES
            end = staged_at + nbytes
        placed.append(Message(peer, moves, nbytes, moves[0].medium, staged_at))
    return tuple(placed), end


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a row-major view is one run of elements without gaps."""
    step = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent > 1 and stride != step:
            return False
        step *= extent
    return True


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a row-major array without gaps."""
    strides = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))

"""Messages: the slots of a program, with the place of every packed message and of all scratch."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from reshard_executors.arena import Arena
from reshard_planner.ir.messages import split_moves
from reshard_planner.ir.program import Move, Program, Slot
from reshard_planner.ir.views import Place
from reshard_planner.transfer import Medium

ALIGNMENT_NBYTES = 16
"""Messages and scratch begin at multiples of this, so that most elements are aligned."""

BUFFERS = 2
"""Exchanges in flight at a time, and staging buffers per direction: one is on the wire while the last one is
unpacked and the next one packed."""


@dataclass(frozen=True, slots=True)
class Message:
    """Bytes that one rank sends another in one slot.

    Attributes:
        peer: rank of the plan at the other end.
        moves: what is in it, in order.
        nbytes: its size.
        medium: what it goes over.
    """

    peer: int
    moves: tuple[Move, ...]
    nbytes: int
    medium: Medium


@dataclass(frozen=True, slots=True)
class Exchange:
    """One slot of one rank.

    Attributes:
        slot: number of the slot.
        sends: messages by ascending peer; of one peer first what is packed together, then large moves.
        receives: likewise, so that both ends of a pair have its messages in the same order.
        copies: moves within the rank.
    """

    slot: int
    sends: tuple[Message, ...]
    receives: tuple[Message, ...]
    copies: tuple[Move, ...]


@dataclass(frozen=True, slots=True)
class Scratch:
    """Places of what is kept aside, in one block of memory.

    Attributes:
        at: place of each operation's scratch, in bytes.
        nbytes: size of the block.
        after: per exchange, the last one before it that reads a place which it takes again; -1 for none.
    """

    at: Mapping[int, int]
    nbytes: int
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Lowered:
    """A program ready to run.

    Attributes:
        exchanges: its slots, in order.
        scratch: places of what is kept aside.
    """

    exchanges: tuple[Exchange, ...]
    scratch: Scratch

    @property
    def peers(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ranks of the plan that this one sends to, and those that it receives from, ascending."""
        to = {message.peer for exchange in self.exchanges for message in exchange.sends}
        of = {message.peer for exchange in self.exchanges for message in exchange.receives}
        return tuple(sorted(to)), tuple(sorted(of))


def lower_program(
    program: Program, tensors: Collection[int] | None = None, budget_nbytes: int = sys.maxsize
) -> Lowered:
    """Decide which moves are messages of their own, and where scratch lies.

    What is in a message depends on sizes alone, so that both ends decide alike. Each end finds out on its own
    whether a message is one run of bytes there, or has to be packed.

    Args:
        program: what the rank does.
        tensors: positions of the tensors to move; all of them when None.
        budget_nbytes: what staging buffers and scratch may take together; where more places for scratch would
            exceed it, some slots wait for places of earlier ones.
    """
    slots = [_only(slot, tensors) for slot in program.slots]
    exchanges = []
    for slot in slots:
        sends, receives = tuple(_messages(slot.sends)), tuple(_messages(slot.receives))
        if sends or receives or slot.copies:
            exchanges.append(Exchange(slot.number, sends, receives, slot.copies))
    last = {op: slot.number for slot in slots for op in slot.frees}
    scratch = _place_scratch(exchanges, last, BUFFERS)
    if BUFFERS * _staging_nbytes(exchanges) + scratch.nbytes > budget_nbytes:
        scratch = _place_scratch(exchanges, last, 1)
    return Lowered(tuple(exchanges), scratch)


def _staging_nbytes(exchanges: Sequence[Exchange]) -> int:
    """Most bytes that one buffer per direction takes, if every message is packed."""
    sent = max((sum(aligned(each.nbytes) for each in exchange.sends) for exchange in exchanges), default=0)
    received = (sum(aligned(each.nbytes) for each in exchange.receives) for exchange in exchanges)
    return sent + max(received, default=0)


def _only(slot: Slot, tensors: Collection[int] | None) -> Slot:
    if tensors is None:
        return slot

    def kept(moves: Iterable[Move]) -> tuple[Move, ...]:
        return tuple(move for move in moves if move.tensor in tensors)

    sends = tuple((peer, mine) for peer, moves in slot.sends if (mine := kept(moves)))
    receives = tuple((peer, mine) for peer, moves in slot.receives if (mine := kept(moves)))
    return Slot(slot.number, sends, receives, kept(slot.copies), slot.frees)


def _messages(per_peer: Iterable[tuple[int, tuple[Move, ...]]]) -> Iterator[Message]:
    """The messages of one slot and direction."""
    for peer, moves in per_peer:
        for each in split_moves(moves):
            yield Message(peer, each, sum(move.nbytes for move in each), each[0].medium)


def _place_scratch(exchanges: Sequence[Exchange], last: Mapping[int, int], pause: int) -> Scratch:
    """Give every operation that keeps its bytes aside a place that nothing else uses in the meantime.

    Args:
        exchanges: all slots.
        last: the last slot that reads what each operation brought.
        pause: exchanges from the last that reads a place to the first that takes it again. With as many as
            are in flight nobody ever waits for a place; with 1 there are fewest places.
    """
    numbers = [exchange.slot for exchange in exchanges]
    arena = Arena(ALIGNMENT_NBYTES)
    place: dict[int, tuple[int, int]] = {}
    held: list[tuple[int, int]] = []
    freed: list[tuple[int, int, int]] = []
    after = [-1] * len(exchanges)
    for at, exchange in enumerate(exchanges):
        for op, until in held:
            if until + pause <= at:
                arena.free(place[op][0])
                freed.append((*place[op], until))
        held = [(op, until) for op, until in held if until + pause > at]
        freed = [(start, end, until) for start, end, until in freed if until + BUFFERS > at]
        received = (move for message in exchange.receives for move in message.moves)
        for move in (*received, *exchange.copies):
            if any(view.place == Place.SCRATCH for view in move.write):
                start = arena.take(move.nbytes)
                place[move.op] = (start, start + move.nbytes)
                readers = (until for lo, hi, until in freed if lo < start + move.nbytes and start < hi)
                after[at] = max(after[at], *readers, -1)
                held.append((move.op, bisect_right(numbers, last.get(move.op, numbers[-1])) - 1))
    return Scratch({op: start for op, (start, _) in place.items()}, arena.nbytes, tuple(after))


def aligned(at: int) -> int:
    """The next place where a message may begin."""
    return -(-at // ALIGNMENT_NBYTES) * ALIGNMENT_NBYTES


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a row-major array without gaps."""
    strides = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))

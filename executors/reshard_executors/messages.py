"""Messages: the slots of a program, with the place of every packed message and of all scratch."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from reshard_executors.arena import Arena
from reshard_planner.ir.program import Move, Place, Program, Slot
from reshard_planner.transfer import Medium

ALIGNMENT_NBYTES = 16
"""Messages and scratch begin at multiples of this, so that most elements are aligned."""

ALONE_NBYTES = 2**20
"""Size from which a move is a message of its own, so that neither end has to pack it where it is one run."""

MAX_ALONE = 16
"""Most moves of one peer, direction and slot that are messages of their own: every message costs time."""

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
class Lowered:
    """A program ready to run.

    Attributes:
        exchanges: its slots, in order.
        scratch_at: place of each operation's scratch, in bytes.
        scratch_nbytes: memory for all scratch.
    """

    exchanges: tuple[Exchange, ...]
    scratch_at: dict[int, int]
    scratch_nbytes: int

    @property
    def peers(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ranks of the plan that this one sends to, and those that it receives from, ascending."""
        to = {message.peer for exchange in self.exchanges for message in exchange.sends}
        of = {message.peer for exchange in self.exchanges for message in exchange.receives}
        return tuple(sorted(to)), tuple(sorted(of))


def lower_program(program: Program, tensors: Collection[int] | None = None) -> Lowered:
    """Decide which moves are messages of their own, and where scratch lies.

    What is in a message depends on sizes alone, so that both ends decide alike. Each end finds out on its own
    whether a message is one run of bytes there, or has to be packed.

    Args:
        program: what the rank does.
        tensors: positions of the tensors to move; all of them when None.
    """
    slots = [_only(slot, tensors) for slot in program.slots]
    exchanges = []
    for slot in slots:
        sends, receives = tuple(_messages(slot.sends)), tuple(_messages(slot.receives))
        if sends or receives or slot.copies:
            exchanges.append(Exchange(slot.number, sends, receives, slot.copies))
    return Lowered(tuple(exchanges), *_place_scratch(exchanges, slots))


def _only(slot: Slot, tensors: Collection[int] | None) -> Slot:
    if tensors is None:
        return slot

    def kept(moves: Iterable[Move]) -> tuple[Move, ...]:
        return tuple(move for move in moves if move.tensor in tensors)

    sends = tuple((peer, mine) for peer, moves in slot.sends if (mine := kept(moves)))
    receives = tuple((peer, mine) for peer, moves in slot.receives if (mine := kept(moves)))
    return Slot(slot.number, sends, receives, kept(slot.copies), slot.frees)


def _messages(per_peer: Iterable[tuple[int, tuple[Move, ...]]]) -> Iterator[Message]:
    """The messages of one slot and direction: of each peer small moves together, then large ones."""
    for peer, moves in per_peer:
        alone = [move for move in moves if move.nbytes >= ALONE_NBYTES][:MAX_ALONE]
        chosen = {move.op for move in alone}
        together = tuple(move for move in moves if move.op not in chosen)
        for each in ([together] if together else []) + [(move,) for move in alone]:
            yield Message(peer, each, sum(move.nbytes for move in each), each[0].medium)


def _place_scratch(exchanges: Sequence[Exchange], slots: Sequence[Slot]) -> tuple[dict[int, int], int]:
    """Give every operation that keeps its bytes aside a place that nothing else uses in the meantime.

    A place is taken again only by an exchange that begins after the last one that reads it has ended, which
    is ``BUFFERS`` exchanges later.
    """
    last = {op: slot.number for slot in slots for op in slot.frees}
    numbers = [exchange.slot for exchange in exchanges]
    arena = Arena(ALIGNMENT_NBYTES)
    place: dict[int, int] = {}
    held: list[tuple[int, int]] = []
    for at, exchange in enumerate(exchanges):
        for op in [op for op, until in held if until + BUFFERS <= at]:
            arena.free(place[op])
        held = [(op, until) for op, until in held if until + BUFFERS > at]
        received = (move for message in exchange.receives for move in message.moves)
        for move in (*received, *exchange.copies):
            if move.write is not None and move.write.place == Place.SCRATCH:
                place[move.op] = arena.take(move.nbytes)
                until = bisect_right(numbers, last.get(move.op, numbers[-1])) - 1
                held.append((move.op, until))
    return place, arena.nbytes


def aligned(at: int) -> int:
    """The next place where a message may begin."""
    return -(-at // ALIGNMENT_NBYTES) * ALIGNMENT_NBYTES


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

"""Workloads: the messages of a plan and what each rank does for them, as columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from reshard_planner.ir.chunks import freeze_columns
from reshard_planner.ir.messages import goes_straight, split_moves
from reshard_planner.ir.plan import Plan
from reshard_planner.ir.program import Move, Slot

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """Messages between ranks, all of a pair, slot and medium taken as one; columns of shape (messages,).

    They are int64 and sorted by slot, sender, receiver and medium.

    Attributes:
        src: sending rank.
        dst: receiving rank.
        slot: slot of the plan.
        medium: a :class:`reshard_planner.transfer.Medium`.
        nbytes: size.
    """

    src: Ints
    dst: Ints
    slot: Ints
    medium: Ints
    nbytes: Ints

    def __post_init__(self) -> None:
        freeze_columns(self)

    def __len__(self) -> int:
        return len(self.src)


@dataclass(frozen=True, slots=True, eq=False)
class RankSlots:
    """Slots that a rank takes part in, sorted by rank and slot; int64 columns of shape (rank slots,).

    Attributes:
        rank: the rank.
        slot: slot of the plan.
        copy_nbytes: bytes that the rank copies between its own buffers.
        pack_nbytes: bytes of the messages that it packs before it sends them.
        unpack_nbytes: bytes of the messages that it unpacks after they have arrived.
        posted: messages that it posts, sent and received; large moves are messages of their own.
    """

    rank: Ints
    slot: Ints
    copy_nbytes: Ints
    pack_nbytes: Ints
    unpack_nbytes: Ints
    posted: Ints

    def __post_init__(self) -> None:
        freeze_columns(self)

    def __len__(self) -> int:
        return len(self.rank)


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """All that a run has to do, whatever it costs.

    Attributes:
        ranks: all ranks, ascending, also those without any slot.
        lag: slots between a message and one that sends on what it brought.
        messages: between ranks.
        rank_slots: what each rank does in each of its slots.
        sender: row of ``rank_slots`` of the sending rank, per message.
        receiver: row of ``rank_slots`` of the receiving rank, per message.
    """

    ranks: tuple[int, ...]
    lag: int
    messages: Messages
    rank_slots: RankSlots
    sender: Ints
    receiver: Ints

    def __post_init__(self) -> None:
        freeze_columns(self)

    @classmethod
    def of(cls, plan: Plan) -> Workload:
        """The workload of a plan, from the programs of its ranks, one after another.

        Raises:
            VerificationError: if the plan cannot be lowered to programs.
        """
        rows: list[tuple[int, ...]] = []
        sent: list[tuple[int, ...]] = []
        for program in plan.scatter():
            for slot in program.slots:
                sent.extend(_sent(program.rank, slot))
                rows.append((program.rank, slot.number, *_work(slot)))
        rank_slots = RankSlots(*_columns(rows, order=range(6)))
        messages = Messages(*_columns(sorted(sent), order=(1, 2, 0, 3, 4)))
        size = int(rank_slots.slot.max(initial=-1)) + 1
        keys = rank_slots.rank * size + rank_slots.slot
        return cls(
            plan.ranks,
            plan.spec.options.lag,
            messages,
            rank_slots,
            np.searchsorted(keys, messages.src * size + messages.slot),
            np.searchsorted(keys, messages.dst * size + messages.slot),
        )


def _columns(rows: Sequence[tuple[int, ...]], order: Sequence[int]) -> list[Ints]:
    """Columns of rows of as many numbers, in this order."""
    table = np.array(rows, dtype=np.int64).reshape(-1, len(order))
    return [table[:, at].copy() for at in order]


def _sent(rank: int, slot: Slot) -> Iterator[tuple[int, ...]]:
    """Slot, sender, receiver, medium and size of what a rank sends in a slot."""
    for peer, moves in slot.sends:
        for medium in sorted({move.medium for move in moves}):
            nbytes = sum(move.nbytes for move in moves if move.medium == medium)
            yield slot.number, rank, peer, int(medium), nbytes


def _work(slot: Slot) -> tuple[int, int, int, int]:
    """Bytes copied, packed and unpacked in a slot, and messages posted."""
    return (
        sum(move.nbytes for move in slot.copies),
        sum(_packed(moves, "read") for _, moves in slot.sends),
        sum(_packed(moves, "write") for _, moves in slot.receives),
        sum(len(split_moves(moves)) for _, moves in (*slot.sends, *slot.receives)),
    )


def _packed(moves: Sequence[Move], side: Literal["read", "write"]) -> int:
    """Bytes of the moves of one peer that go through a staging buffer."""
    messages = (
        message
        for message in split_moves(moves)
        if not goes_straight([getattr(move, side) for move in message])
    )
    return sum(move.nbytes for message in messages for move in message)

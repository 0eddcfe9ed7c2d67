"""Workloads: the messages of a plan and what each rank does for them, as columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reshard_planner.errors import UnsupportedError
from reshard_planner.ir.chunks import freeze_columns
from reshard_planner.ir.messages import ALONE_NBYTES, MAX_ALONE
from reshard_planner.ir.ops import Ops
from reshard_planner.ir.plan import Plan
from reshard_planner.ir.stream import UnitRows
from reshard_planner.simulate.straight import StraightBytes
from reshard_planner.spec import ReshardSpec
from reshard_planner.transfer import Medium

Ints = NDArray[np.int64]

MAX_OPERATIONS = 32_000_000
"""Most operations of a plan that is predicted: each takes some 300 to 450 bytes for a while."""


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
        pack_nvlink_nbytes: those of them that go over NVLink.
        unpack_nbytes: bytes of the messages that it unpacks after they have arrived.
        unpack_nvlink_nbytes: those of them that have come over NVLink.
        posted: messages that it posts, sent and received; large moves are messages of their own.
    """

    rank: Ints
    slot: Ints
    copy_nbytes: Ints
    pack_nbytes: Ints
    pack_nvlink_nbytes: Ints
    unpack_nbytes: Ints
    unpack_nvlink_nbytes: Ints
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
        """The workload of a plan, from its operations.

        Raises:
            UnsupportedError: if there are more than :data:`MAX_OPERATIONS`.
            VerificationError: if an operation reads or writes what its rank does not have.
        """
        return workload_of_ops(plan.spec, operations_of(plan), plan.ranks)


def operations_of(plan: Plan) -> Ops:
    """All operations of a plan.

    Raises:
        UnsupportedError: if there are more than :data:`MAX_OPERATIONS`.
    """
    units = UnitRows(plan.spec, plan.tables)
    per_bin = np.bincount(units.row_bin, minlength=units.bins)
    count = int(per_bin[units.bin[units.bin >= 0]].sum())
    if count > MAX_OPERATIONS:
        raise UnsupportedError(
            f"the plan has {count} operations; predictions are made of at most {MAX_OPERATIONS}"
        )
    return plan.ops()


def workload_of_ops(
    spec: ReshardSpec,
    ops: Ops,
    ranks: tuple[int, ...],
    straight: tuple[StraightBytes, Ints] | None = None,
) -> Workload:
    """The workload of all operations of a plan, or of some tensors.

    Args:
        spec: what the plan was compiled from.
        ops: the operations in order of their numbers, with every parent.
        ranks: all ranks, ascending.
        straight: which bytes lie straight, and the position there of each of the operations; found anew
            without, which for parts of a plan takes as long each time as for all of it.

    Raises:
        VerificationError: if an operation reads or writes what its rank does not have.
    """
    pairs, posted, packed = _posts(ops, straight or (StraightBytes(spec, ops), np.arange(len(ops))))
    size = int(ops.slot.max(initial=0)) + 1
    copied = np.flatnonzero(ops.src == ops.dst)
    keys = [rank * size + slot for rank, slot in (*pairs.ends, (ops.src[copied], ops.slot[copied]))]
    rows = np.unique(np.concatenate(keys))
    sender, receiver, copier = (np.searchsorted(rows, key) for key in keys)

    def total(at: Ints, values: Ints) -> Ints:
        sums = np.zeros(len(rows), dtype=np.int64)
        np.add.at(sums, at, values)
        return sums

    (out, nvlink_out), (into, nvlink_in) = packed
    rank_slots = RankSlots(
        rows // size,
        rows % size,
        total(copier, ops.nbytes[copied]),
        total(sender, out),
        total(sender, nvlink_out),
        total(receiver, into),
        total(receiver, nvlink_in),
        total(np.concatenate((sender, receiver)), np.concatenate((posted, posted))),
    )
    messages, pair = pairs.messages()
    return Workload(ranks, spec.options.lag, messages, rank_slots, sender[pair], receiver[pair])


@dataclass(frozen=True, slots=True, eq=False)
class _Pairs:
    """Operations between two ranks, sorted by slot, sender, receiver and number, and where each pair begins.

    Attributes:
        ops: the operations.
        first: position of the first operation of each pair of ranks and slot.
        pair: pair of each operation.
    """

    ops: Ops
    first: Ints
    pair: Ints

    @property
    def ends(self) -> tuple[tuple[Ints, Ints], tuple[Ints, Ints]]:
        """Sender and slot, and receiver and slot, of each pair."""
        slot = self.ops.slot[self.first]
        return (self.ops.src[self.first], slot), (self.ops.dst[self.first], slot)

    def messages(self) -> tuple[Messages, Ints]:
        """A message per pair and medium, and the pair of each."""
        ops = self.ops
        keys, first, which = np.unique(
            self.pair * len(Medium) + ops.medium, return_index=True, return_inverse=True
        )
        nbytes = np.zeros(len(keys), dtype=np.int64)
        np.add.at(nbytes, which, ops.nbytes)
        columns = (ops.src[first], ops.dst[first], ops.slot[first], ops.medium[first], nbytes)
        return Messages(*columns), keys // len(Medium)


Packed = tuple[Ints, Ints]
"""Bytes that are packed, and those of them that go over NVLink."""


def _posts(ops: Ops, straight: tuple[StraightBytes, Ints]) -> tuple[_Pairs, Ints, tuple[Packed, Packed]]:
    """What is posted for each pair and slot: messages, and what the sender packs and the receiver unpacks.

    As :func:`reshard_planner.ir.messages.split_moves` splits moves, and
    :func:`reshard_planner.ir.messages.goes_straight` finds which need no packing.
    """
    between = np.flatnonzero(ops.src != ops.dst)
    order = between[np.lexsort((ops.dst[between], ops.src[between], ops.slot[between]))]
    mine = ops.select(order)
    new = np.zeros(len(order), dtype=bool)
    for column in (mine.slot, mine.src, mine.dst):
        new |= np.diff(column, prepend=-1) != 0
    pairs = _Pairs(mine, np.flatnonzero(new), np.cumsum(new) - 1)
    large = mine.nbytes >= ALONE_NBYTES
    before: Ints = np.cumsum(large) - large
    alone = large & (before - before[pairs.first][pairs.pair] < MAX_ALONE)
    # a number per message: small moves of a pair and medium have one, and those sent alone each their own
    number = pairs.pair * len(Medium) + mine.medium
    number[alone] = len(pairs.first) * len(Medium) + np.flatnonzero(alone)
    _, first, message, moves = np.unique(number, return_index=True, return_inverse=True, return_counts=True)
    count = len(pairs.first)
    posted = np.bincount(pairs.pair[first], minlength=count)
    single = np.flatnonzero((moves == 1)[message])
    known, at = straight
    packed = []
    for lies_straight in (known.read, known.write):
        nbytes = mine.nbytes.copy()
        nbytes[single[lies_straight(at[order[single]])]] = 0
        sums = np.zeros((2, count), dtype=np.int64)
        np.add.at(sums[0], pairs.pair, nbytes)
        np.add.at(sums[1], pairs.pair, np.where(mine.medium == Medium.NVLINK, nbytes, 0))
        packed.append((sums[0], sums[1]))
    return pairs, posted, (packed[0], packed[1])

"""What two plans have in common: transfers that are the same in both, by the operations' numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reshard_planner.ir.ops import Ops
from reshard_planner.ir.plan import Plan
from reshard_planner.layout.mesh import MAX_RANK
from reshard_planner.layout.partition import row_major_strides
from reshard_planner.transfer import Medium, Role

Ints = NDArray[np.int64]

BLOCK_OPS = 2**21
"""Operations of both plans that are compared at one time, or those of one tensor where they are more."""


@dataclass(frozen=True, slots=True, eq=False)
class Changes:
    """The operations of two plans, matched: every one of each plan is in exactly one column.

    Two are the same if they move the same box of the tensor of the same name from and to the same ranks, over
    the same medium and in the same role; their slots may differ. Bytes are in order of
    :class:`reshard_planner.transfer.Medium`, int64 of shape (3,).

    Attributes:
        before: numbers in the first plan of operations that are the same in both, ascending, int64.
        after: numbers of the same in the second plan, one by one.
        gone: numbers of those that only the first plan has, ascending.
        new: numbers of those that only the second plan has, ascending.
        same_nbytes: bytes of those that are the same.
        gone_nbytes: bytes of those that are gone.
        new_nbytes: bytes of those that are new.
    """

    before: Ints
    after: Ints
    gone: Ints
    new: Ints
    same_nbytes: Ints
    gone_nbytes: Ints
    new_nbytes: Ints

    def __post_init__(self) -> None:
        for column in (self.before, self.after, self.gone, self.new):
            column.setflags(write=False)
        for sums in (self.same_nbytes, self.gone_nbytes, self.new_nbytes):
            sums.setflags(write=False)


def compare_plans(before: Plan, after: Plan) -> Changes:
    """Match the operations of two plans, a block of tensors at a time.

    Takes a second or two per million operations. Where a plan has several that are the same in all that
    counts, as with copies to several local tensors, they are matched in order of their numbers.
    """
    number: dict[tuple[str, tuple[int, ...]], int] = {}
    for plan in (before, after):
        for tensor in plan.spec.tensors:
            number.setdefault((tensor.name, tensor.shape), len(number))
    first, second = (_Side(plan, number) for plan in (before, after))
    empty = np.zeros(0, dtype=np.int64)
    columns: tuple[list[Ints], ...] = ([empty], [empty], [empty], [empty])
    sums = np.zeros((3, len(Medium)), dtype=np.int64)
    block = np.cumsum(first.counts + second.counts) // BLOCK_OPS
    for tensors in (np.flatnonzero(block == which) for which in np.unique(block)):
        old, new = first.ops(tensors), second.ops(tensors)
        one, two = _match(first.keys(old), second.keys(new))
        in_old, in_new = np.zeros(len(old), dtype=np.bool_), np.zeros(len(new), dtype=np.bool_)
        in_old[one], in_new[two] = True, True
        parts = (old.op[one], new.op[two], old.op[~in_old], new.op[~in_new])
        for found, part in zip(columns, parts, strict=True):
            found.append(part)
        for total, ops, chosen in zip(sums, (old, old, new), (in_old, ~in_old, ~in_new), strict=True):
            np.add.at(total, ops.medium[chosen], ops.nbytes[chosen])
    same, other, gone, fresh = (np.concatenate(found) for found in columns)
    order = np.argsort(same)
    return Changes(same[order], other[order], np.sort(gone), np.sort(fresh), *sums)


class _Side:
    """One of the plans, with its tensors by numbers that both have in common."""

    def __init__(self, plan: Plan, number: Mapping[tuple[str, tuple[int, ...]], int]) -> None:
        tensors = plan.spec.tensors
        self.plan = plan
        self.number = np.array([number[each.name, each.shape] for each in tensors], dtype=np.int64)
        self.counts = np.zeros(len(number), dtype=np.int64)
        self.counts[self.number] = _count_ops(plan)
        dims = max((len(each.shape) for each in tensors), default=0)
        self.strides = np.zeros((len(tensors), dims), dtype=np.int64)
        for at, tensor in enumerate(tensors):
            self.strides[at, : len(tensor.shape)] = row_major_strides(tensor.shape)

    def ops(self, tensors: Ints) -> Ops:
        """The operations of some tensors."""
        return self.plan.ops(tensors=np.flatnonzero(np.isin(self.number, tensors)).tolist())

    def keys(self, ops: Ops) -> tuple[Ints, ...]:
        """Columns of all that must be equal: ranks and labels, both corners of the box, and the tensor."""
        labels = ops.medium * len(Role) + ops.role
        ends = (ops.src * MAX_RANK + ops.dst) * len(Medium) * len(Role) + labels
        strides = self.strides[ops.tensor, : ops.lo.shape[1]]
        return (
            ends,
            (ops.lo * strides).sum(axis=1),
            ((ops.hi - 1) * strides).sum(axis=1),
            self.number[ops.tensor],
        )


def _count_ops(plan: Plan) -> Ints:
    """Operations of every tensor, empty ones included."""
    pieces, schedule = plan.pieces, plan.schedule
    parts = int(max(pieces.part.max(initial=0), schedule.part.max(initial=0))) + 1
    keys = pieces.group.astype(np.int64) * parts + pieces.part
    rows = np.bincount(keys[plan.routes.piece], minlength=plan.groups.count * parts)
    units = rows[plan.groups.routes_of[schedule.group].astype(np.int64) * parts + schedule.part]
    counts = np.zeros(len(plan.spec.tensors), dtype=np.int64)
    np.add.at(counts, schedule.tensor, units)
    return counts


def _match(old: tuple[Ints, ...], new: tuple[Ints, ...]) -> tuple[Ints, Ints]:
    """Positions of equal keys on both sides, pair by pair; each position is in at most one pair."""
    keys = [np.concatenate(pair) for pair in zip(old, new, strict=True)]
    order, size = np.lexsort(keys), len(old[0])
    starts = np.zeros(len(order), dtype=np.bool_)
    starts[:1] = True
    for key in keys:
        starts[1:] |= np.diff(key[order]) != 0
    first, kind = np.flatnonzero(starts), np.cumsum(starts) - 1
    # the sort is stable: of each kind, what is old comes first, in order
    is_old = order < size
    of_old = np.bincount(kind[is_old], minlength=len(first))
    of_new = np.bincount(kind[~is_old], minlength=len(first))
    repeat = np.arange(len(order)) - first[kind]
    one = is_old & (repeat < of_new[kind])
    two = ~is_old & (repeat - of_old[kind] < of_old[kind])
    return order[one], order[two] - size

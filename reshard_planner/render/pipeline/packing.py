"""What ranks pack: bytes of a plan that go into staging buffers before they are sent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reshard_planner.ir.messages import ALONE_NBYTES, MAX_ALONE
from reshard_planner.ir.plan import Plan
from reshard_planner.ir.program import converts
from reshard_planner.simulate.straight import StraightBytes
from reshard_planner.transfer import Medium

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

MAX_SAMPLED_OPS = 3_000_000
"""Most operations of tensors that differ; each takes some 300 bytes for a while."""


@dataclass(frozen=True, slots=True, eq=False)
class SampledReads:
    """Which operations of a plan read one run of bytes, from those of one tensor of every kind.

    Tensors of one kind have the same group, layouts and units, so that their operations read alike.

    Attributes:
        rows: number of rows of the routes.
        sample: for each unit, the one that stands for it, int64 of shape (units,).
        op: numbers of the operations between ranks of those units, ascending, int64.
        reads: whether each of them reads one run of bytes, bool of the same shape.
    """

    rows: int
    sample: Ints
    op: Ints
    reads: Bools

    def straight(self, unit: Ints, row: Ints) -> Bools:
        """Whether operations between ranks, none of them empty, read one run of bytes."""
        wanted = self.sample[unit] * self.rows + row
        if not len(self.op):
            return np.zeros(len(wanted), dtype=bool)
        at = np.minimum(np.searchsorted(self.op, wanted), len(self.op) - 1)
        found: Bools = self.reads[at] & (self.op[at] == wanted)
        return found


def find_reads(plan: Plan, ops_of_unit: Ints) -> SampledReads | None:
    """Look at the operations of the tensors that stand for all.

    Args:
        plan: the plan.
        ops_of_unit: number of operations of each unit of the schedule.

    Returns:
        What they read; None where those are too many operations.

    Raises:
        VerificationError: if an operation reads what its rank does not have.
    """
    sample, tensors = _sample_units(plan)
    if int(ops_of_unit[np.unique(sample)].sum()) > MAX_SAMPLED_OPS:
        return None
    ops = plan.ops(tensors=tensors)
    between = np.flatnonzero(ops.src != ops.dst)
    reads = StraightBytes(plan.spec, ops).read(between)
    return SampledReads(len(plan.routes), sample, ops.op[between], reads)


def _sample_units(plan: Plan) -> tuple[Ints, tuple[int, ...]]:
    """For each unit the one that stands for it, and the tensors of those that stand for others."""
    schedule = plan.schedule
    # units of a tensor together, in the same order for all tensors of a kind
    order = np.lexsort((schedule.n_chunks, schedule.chunk, schedule.part, schedule.tensor))
    tensor_of = schedule.tensor[order].astype(np.int64)
    first = np.flatnonzero(np.diff(tensor_of, prepend=-1))
    signature = np.stack((schedule.part, schedule.chunk, schedule.n_chunks), axis=1)[order]
    known: dict[object, Ints] = {}
    sample: Ints = np.arange(len(order), dtype=np.int64)
    tensors = []
    for units, signs in zip(np.split(order, first[1:]), np.split(signature, first[1:]), strict=True):
        if not len(units):
            continue
        number = int(schedule.tensor[units[0]])
        tensor = plan.spec.tensors[number]
        key = (
            int(plan.groups.group_of[number]),
            *(tensor.layouts(side) for side in ("src", "dst")),
            *(converts(tensor, side) for side in ("src", "dst")),
            tensor.shape,
            tensor.bits,
            signs.tobytes(),
        )
        if key not in known:
            known[key] = units
            tensors.append(number)
        sample[units] = known[key]
    return sample, tuple(tensors)


def packed_nbytes(src: Ints, dst: Ints, medium: Ints, slot: Ints, nbytes: Ints, straight: Bools) -> Ints:
    """Bytes that senders pack of each operation between two ranks, int64 of shape (operations,).

    A message of several boxes is packed, and one of a single box unless that is one run of bytes; which boxes
    make one message is as :mod:`reshard_planner.ir.messages` says. Whole slots are expected, with operations
    in order of their numbers and without empty ones.
    """
    size = int(max(src.max(initial=0), dst.max(initial=0))) + 1
    key = (slot * size + src) * size + dst
    order = np.argsort(key, kind="stable")
    key, medium = key[order], medium[order]
    first = np.flatnonzero(np.diff(key, prepend=-1))
    pair = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(key))))
    large = nbytes[order] >= ALONE_NBYTES
    before: Ints = np.cumsum(large) - large
    single = large & (before - before[first][pair] < MAX_ALONE)
    small = np.flatnonzero(~single)
    message = pair[small] * len(Medium) + medium[small]
    single[small] = (np.bincount(message) == 1)[message] if len(small) else False
    packed = nbytes.copy()
    alone = order[single]
    packed[alone[straight[alone]]] = 0
    return packed

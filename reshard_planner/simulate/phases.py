"""Phases: parts of a plan that run one after another, all ranks waiting for each other in between."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from reshard_planner.errors import InputError
from reshard_planner.ir.ops import Ops
from reshard_planner.ir.plan import Plan
from reshard_planner.routing import hybrid
from reshard_planner.simulate.straight import StraightBytes
from reshard_planner.simulate.workload import RankSlots, Workload, operations_of, workload_of_ops
from reshard_planner.spec import ReshardSpec

Ints = NDArray[np.int64]

NUMBER = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])")
"""A number in a name, but not one that belongs to a word, as in ``w1``."""


def phases_by_pattern(spec: ReshardSpec) -> tuple[tuple[int, ...], ...]:
    """One phase for each pattern of names: what names are without the numbers of layers and experts.

    Args:
        spec: the tensors.

    Returns:
        Positions of tensors in the spec, phase by phase, in order of the first tensor of each.

    >>> import reshard_planner as rp
    >>> layout = rp.Layout(rp.Mesh([0]), ["R"])
    >>> names = ["layers.0.w1", "layers.0.w2", "layers.1.w1", "layers.1.w2", "head"]
    >>> tensors = [rp.TensorSpec(name, (8,), "int8", layout, layout) for name in names]
    >>> phases_by_pattern(rp.ReshardSpec(tensors, rp.Topology.uniform(1, 1)))
    ((0, 2), (1, 3), (4,))
    """
    found: dict[str, list[int]] = {}
    for at, tensor in enumerate(spec.tensors):
        found.setdefault(NUMBER.sub("*", tensor.name), []).append(at)
    return tuple(map(tuple, found.values()))


@dataclass(frozen=True, slots=True, eq=False)
class Phase:
    """What runs in one phase.

    Attributes:
        workload: all of it, in slots of its own.
        slots: slot of the plan for each of these, int64.
    """

    workload: Workload
    slots: Ints


def phases_by_strategy(spec: ReshardSpec) -> tuple[tuple[int, ...], ...] | None:
    """The phases that systems have which do as the spec's strategy does; None where all runs together.

    Only ``hybrid`` has some, where there are tensors of both kinds: see
    :func:`reshard_planner.routing.hybrid.phases`.

    Args:
        spec: the tensors, and the strategy among its options.

    Returns:
        Positions of tensors in the spec, phase by phase, at least two.
    """
    if spec.options.strategy != hybrid.STRATEGY.name:
        return None
    found = hybrid.phases(spec)
    return found if len(found) > 1 else None


def plan_phases(
    plan: Plan, phases: Sequence[Sequence[int]] | None, *, overlapped: bool = True
) -> list[Phase]:
    """The phases of a plan; one of all tensors for None.

    Slots without operations of a phase are left out of it, as far as what is sent on still follows ``lag``
    slots or more after what brings it.

    Args:
        plan: the plan.
        phases: positions of tensors in the spec, phase by phase; every tensor in one of them. With None slots
            stay as they are.
        overlapped: whether ranks pack and unpack while messages are under way; if not, they pack all that
            they send in a phase before its first message, and unpack after its last one.

    Raises:
        InputError: if a tensor is in no phase or in two, or there is none at a position.
        UnsupportedError: if the plan has too many operations.
        VerificationError: if an operation reads or writes what its rank does not have.
    """
    if phases is None:
        workload = Workload.of(plan)
        slots = np.arange(int(workload.rank_slots.slot.max(initial=-1)) + 1)
        return [Phase(workload if overlapped else serial(workload), slots)]
    number = phase_numbers(plan.spec, phases)
    ops = operations_of(plan)
    straight = StraightBytes(plan.spec, ops)
    found = []
    phase = number[ops.tensor]
    order = np.argsort(phase, kind="stable")
    ends = np.searchsorted(phase[order], np.arange(len(phases) + 1))
    for start, stop in zip(ends.tolist(), ends[1:].tolist(), strict=False):
        at_all = order[start:stop]
        chosen = ops.select(at_all)
        slots, at = np.unique(chosen.slot, return_inverse=True)
        chosen = replace(chosen, slot=_close_up(chosen, at, len(slots), plan.spec.options.lag))
        names = np.zeros(int(chosen.slot.max(initial=-1)) + 1, dtype=np.int64)
        names[chosen.slot] = slots[at]
        workload = workload_of_ops(plan.spec, chosen, plan.ranks, (straight, at_all))
        found.append(Phase(workload if overlapped else serial(workload), names))
    return found


def phase_numbers(spec: ReshardSpec, phases: Sequence[Sequence[int]]) -> Ints:
    """The phase of every tensor, int64 of shape (tensors,).

    Raises:
        InputError: if a tensor is in no phase or in two, or there is none at a position.
    """
    if not isinstance(phases, Collection):
        raise InputError(f"phases is {phases!r}; expected positions of tensors, phase by phase")
    found = np.full(len(spec.tensors), -1, dtype=np.int64)
    for number, positions in enumerate(phases):
        if not isinstance(positions, Collection):
            raise InputError(f"phase {number} is {positions!r}; expected positions of tensors")
        for at in positions:
            if isinstance(at, bool) or not isinstance(at, int | np.integer):
                raise InputError(f"phase {number} has {at!r}; expected positions of tensors, integers")
            if not 0 <= at < len(spec.tensors):
                raise InputError(
                    f"phase {number} has tensor {at}; expected a position from 0 to {len(spec.tensors) - 1}"
                )
            if found[at] >= 0:
                raise InputError(
                    f"tensor {spec.tensors[at].name!r} is in phases {found[at]} and {number}; expected one"
                )
            found[at] = number
    missing = np.flatnonzero(found < 0)
    if len(missing):
        raise InputError(f"tensor {spec.tensors[missing[0]].name!r} is in no phase; expected one")
    return found


def _close_up(ops: Ops, at: Ints, count: int, lag: int) -> Ints:
    """New slots of operations: in the same order, without more room between them than they need.

    Args:
        ops: operations, in order of their numbers.
        at: which of the slots that they have each is in, counted from 0.
        count: number of these.
        lag: least slots between an operation and one that sends on what it brought.
    """
    above = np.full(count, -1, dtype=np.int64)
    parent = np.searchsorted(ops.op, ops.parent)
    following = np.flatnonzero(ops.parent >= 0)
    np.maximum.at(above, at[following], at[np.minimum(parent[following], len(ops) - 1)])
    made: list[int] = []
    for before in above.tolist():
        next_slot = made[-1] + 1 if made else 0
        made.append(max(next_slot, made[before] + lag) if before >= 0 else next_slot)
    slots: Ints = np.array(made, dtype=np.int64)[at] if made else at
    return slots


def serial(workload: Workload) -> Workload:
    """The same work, but ranks pack all of it before their first message, and unpack after the last."""
    rows = workload.rank_slots
    first = np.flatnonzero(np.diff(rows.rank, prepend=-1))
    last = np.flatnonzero(np.diff(rows.rank, append=-1))

    def moved(nbytes: Ints, to: Ints) -> Ints:
        sums = np.zeros_like(nbytes)
        if len(first):
            sums[to] = np.add.reduceat(nbytes, first)
        return sums

    return replace(
        workload,
        rank_slots=RankSlots(
            rows.rank,
            rows.slot,
            rows.copy_nbytes,
            moved(rows.pack_nbytes, first),
            moved(rows.pack_nvlink_nbytes, first),
            moved(rows.unpack_nbytes, last),
            moved(rows.unpack_nvlink_nbytes, last),
            rows.posted,
        ),
    )

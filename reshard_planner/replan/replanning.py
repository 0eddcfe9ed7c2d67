"""Replanning: one call from a plan, or a spec, and ranks that are gone to the plan of those that are left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from reshard_planner.atoms import Ranks
from reshard_planner.compiler import compile as compile_spec
from reshard_planner.errors import InputError
from reshard_planner.intset import format_ints
from reshard_planner.ir.plan import Plan
from reshard_planner.progress import Progress, silent
from reshard_planner.replan.changes import Changes, compare_plans
from reshard_planner.replan.impossible import Impossible
from reshard_planner.replan.remainder import Incomplete, find_remainder
from reshard_planner.spec import Options, ReshardSpec
from reshard_planner.spec.tiles import SideTiles
from reshard_planner.spec.values import SIDES, Side

T = TypeVar("T")


@dataclass(frozen=True)
class Replan:
    """A plan without some ranks.

    Attributes:
        without: the ranks that are gone, ascending.
        spec: of those that are left; tensors that are impossible or unneeded are not in it.
        plan: compiled from it; None if it has no tensors, so that there is nothing to move.
        before: the plan that was given; None if it was a spec.
        impossible: what cannot be delivered any more, by tensor and class.
        unneeded: names of tensors whose destinations are all gone.
        incomplete: replicas of destinations that have lost a part of tensors, but not all of their ranks.
    """

    without: Ranks
    spec: ReshardSpec = field(repr=False)
    plan: Plan | None
    before: Plan | None = field(repr=False)
    impossible: tuple[Impossible, ...] = field(repr=False)
    unneeded: tuple[str, ...] = field(repr=False)
    incomplete: tuple[Incomplete, ...] = field(repr=False)

    @cached_property
    def changes(self) -> Changes | None:
        """Which transfers are as in the plan before, and which are gone or new; None without both plans."""
        if self.before is None or self.plan is None:
            return None
        return compare_plans(self.before, self.plan)

    def buffers(self, rank: int, side: Side) -> frozenset[str]:
        """Names of the local buffers that a rank has in the new plan, before or after.

        They are those of the old one, but for buffers that only tensors used that are left out: executors
        must not be given these any more.
        """
        return frozenset(
            buffer.name for tensor in self.spec.tensors for buffer in SideTiles(tensor, side).buffers(rank)
        )

    def keep(self, rank: int, side: Side, tensors: Mapping[str, T]) -> dict[str, T]:
        """A rank's local tensors without those that the new plan does not use any more.

        Args:
            rank: one that is left; it may take no part in the new plan.
            side: before ("src") or after ("dst").
            tensors: what it gave for the old plan, by name of the buffer, and anything else.

        Returns:
            Those that :meth:`buffers` names, in the given order: what executors are given for the new plan.

        Raises:
            InputError: if the rank is gone, or unknown to the plan that was given, ``side`` is neither, or
                a local tensor is missing that the new plan uses.
        """
        if rank in self.without:
            raise InputError(f"rank is {rank}, which is gone; expected a rank that is left")
        if self.before is not None and rank not in self.before.ranks:
            left = format_ints(each for each in self.before.ranks if each not in self.without)
            raise InputError(f"rank is {rank!r}, which is no rank of the plan; expected one of {left}")
        if side not in SIDES:
            raise InputError(f"side is {side!r}; expected 'src' or 'dst'")
        if not isinstance(tensors, Mapping):
            raise InputError(f"tensors is a {type(tensors).__name__}; expected a mapping of names")
        used = self.buffers(rank, side)
        missing = sorted(used.difference(tensors))
        if missing:
            raise InputError(
                f"tensors of rank {rank}, {side}, lack {missing[0]!r}, which the new plan uses; expected all"
                " local tensors of the old plan"
            )
        return {name: tensor for name, tensor in tensors.items() if name in used}

    @property
    def complete(self) -> bool:
        """Whether there is a plan, and it delivers all that the ranks that are left need."""
        return self.plan is not None and not self.impossible


def replan(
    given: Plan | ReshardSpec,
    without: Iterable[int],
    *,
    options: Options | None = None,
    progress: Progress = silent,
) -> Replan:
    """Plan again without ranks that are gone.

    Ranks, GPUs, topology, names and order of tensors, and the local buffers that every other rank gives stay
    what they are. Ranks that are lost one after another are best left out together, from the first plan.

    Args:
        given: the plan, or the spec that one would be compiled from.
        without: the ranks that are gone, in any order.
        options: how to compile; as the plan or spec says when None.
        progress: called with the name of each stage as it begins.

    Raises:
        InputError: if a rank is unknown, named twice, or none or all of them are named; or if those that are
            left have no plan, such as within the options, or where bytes would have to cross without a NIC.
        UnsupportedError: if layouts cut a tensor in too many atoms, or options ask for what no plan can do.
    """
    before = given if isinstance(given, Plan) else None
    spec = given.spec if isinstance(given, Plan) else given
    gone = _checked(without, spec)
    progress("survivors")
    rest = find_remainder(spec, frozenset(gone))
    left = rest.spec if options is None else ReshardSpec(rest.spec.tensors, spec.topology, options)
    plan = compile_spec(left, progress=progress) if left.tensors else None
    return Replan(gone, left, plan, before, rest.impossible, rest.unneeded, rest.incomplete)


def _checked(without: Iterable[int], spec: ReshardSpec) -> Ranks:
    """The ranks that are gone, ascending.

    Raises:
        InputError: if they are not some of the spec's ranks, each once.
    """
    known, seen = frozenset(spec.ranks), set[int]()
    if not hasattr(without, "__iter__"):
        raise InputError(f"without is {without!r}; expected ranks, such as [3]")
    for rank in without:
        if isinstance(rank, bool) or not isinstance(rank, int) or rank not in known:
            raise InputError(
                f"without has {rank!r}, which is no rank of the plan; expected some of"
                f" {format_ints(spec.ranks)}"
            )
        if rank in seen:
            raise InputError(f"without has rank {rank} twice; expected distinct ranks")
        seen.add(rank)
    if not seen:
        raise InputError("without is empty; expected at least one rank")
    if len(seen) == len(known):
        raise InputError(f"without has all {len(known)} ranks of the plan; expected that some are left")
    return tuple(sorted(seen))

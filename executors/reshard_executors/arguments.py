"""Arguments of a Resharder: checked before ranks meet, so that all of them hear what is wrong on one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from operator import index
from typing import SupportsIndex

import torch

from reshard_executors.agreement import reason
from reshard_planner.errors import InputError
from reshard_planner.ir.plan import Plan


def played_ranks(plan: Plan, ranks: Sequence[int] | None, members: Sequence[int]) -> list[int]:
    """The rank of the plan that each process of a group plays, in order of the group.

    Args:
        plan: whose ranks are all played.
        ranks: one per process; their ranks in the world when None.
        members: ranks of the processes in the world.

    Raises:
        InputError: if there is no plan, or the processes do not play every rank of it once.
    """
    if not isinstance(plan, Plan):
        raise InputError(
            f"plan is a {type(plan).__name__}; expected a Plan, such as Plan.load reads from a file"
        )
    if ranks is not None and not isinstance(ranks, Iterable):
        raise InputError(f"ranks is {ranks!r}; expected a list of one integer per process of the group")
    played = []
    for rank in members if ranks is None else ranks:
        number = as_integer(rank)
        if number is None:
            raise InputError(f"ranks has the entry {rank!r}; expected an integer")
        played.append(number)
    size = len(members)
    if len(played) != size:
        raise InputError(
            f"ranks has {len(played)} entries; expected one for each of the {size} processes of the group"
        )
    if len(set(played)) != size:
        raise InputError(f"ranks {played} has a rank twice; expected distinct ranks")
    missing = sorted(set(plan.ranks) - set(played))
    if missing:
        raise InputError(
            f"the plan has ranks {missing}, which no process of the group plays (they play {sorted(played)});"
            " expected a larger group, or other ranks"
        )
    return played


def as_integer(value: object, least: int | None = None, most: int | None = None) -> int | None:
    """A value as an integer, of numpy's kinds too; None if it is none, a truth value, or out of range.

    >>> as_integer(3, 1, 4), as_integer(True), as_integer(5, 1, 4), as_integer("3")
    (3, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return None
    try:
        number = index(value)
    except TypeError:  # an array of more than one element
        return None
    inside = (least is None or number >= least) and (most is None or number <= most)
    return number if inside else None


def usable_device(wanted: torch.device | str | None, meeting: torch.device) -> torch.device:
    """Where tensors lie.

    Raises:
        InputError: if there is no such device, or the group cannot send from it.
    """
    if wanted is None:
        return meeting
    try:
        device = torch.empty(0, device=wanted).device
    except (RuntimeError, AssertionError, TypeError) as failure:
        raise InputError(f"device is {wanted!r}, which cannot be used: {reason(failure)}") from None
    if device.type != meeting.type:
        raise InputError(f"device is {device}, but the group moves tensors of {meeting.type} devices")
    return device


def names_of(tensors: Collection[str] | None) -> tuple[str, ...] | None:
    """Names of the tensors to move, sorted; None for all of them.

    Raises:
        InputError: if it is no collection of names.
    """
    if tensors is None:
        return None
    if isinstance(tensors, str):
        raise InputError(f"tensors is the string {tensors!r}; expected a collection of names")
    try:
        names = tuple(tensors)
    except TypeError:
        raise InputError(f"tensors is {tensors!r}; expected a collection of names") from None
    for name in names:
        if not isinstance(name, str):
            raise InputError(f"tensors has the entry {name!r}; expected names")
    return tuple(sorted(set(names)))

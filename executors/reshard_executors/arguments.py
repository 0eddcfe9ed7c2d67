"""Arguments of a Resharder: checked before ranks meet, so that all of them hear what is wrong on one."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from reshard_executors.agreement import reason
from reshard_planner.errors import InputError
from reshard_planner.ir.plan import Plan


def check_ranks(plan: Plan, played: Sequence[int], size: int) -> None:
    """Check that there is a plan, and that the processes of the group play every rank of it, once."""
    if not isinstance(plan, Plan):
        raise InputError(
            f"plan is a {type(plan).__name__}; expected a Plan, such as Plan.load reads from a file"
        )
    if len(played) != size:
        raise InputError(
            f"ranks has {len(played)} entries; expected one for each of the {size} processes of the group"
        )
    for rank in played:
        if isinstance(rank, bool) or not isinstance(rank, int):
            raise InputError(f"ranks has the entry {rank!r}; expected an integer")
    if len(set(played)) != size:
        raise InputError(f"ranks {list(played)} has a rank twice; expected distinct ranks")
    missing = sorted(set(plan.ranks) - set(played))
    if missing:
        raise InputError(
            f"the plan has ranks {missing}, which no process of the group plays (they play {sorted(played)});"
            " expected a larger group, or other ranks"
        )


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

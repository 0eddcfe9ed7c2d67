"""Keepers: one process group, and the Resharders over it that are kept between calls."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final, TypeAlias

import torch
import torch.distributed as dist

from reshard_executors.agreement import HOSTS, meeting_to, not_met
from reshard_executors.private import PrivateGroup
from reshard_executors.resharder import Resharder
from reshard_executors.sharing import CALLS, Facts, Sharing
from reshard_executors.waiting import Waiting
from reshard_planner.errors import InputError, ReshardError
from reshard_planner.ir.plan import Plan
from reshard_planner.spec import TensorSpec

Key: TypeAlias = tuple[str, ...]
"""What tells the plans of a keeper apart."""

SETTINGS: Final = "compare their settings"
"""What the ranks of a keeper meet for first."""


class Keeper:
    """The ranks of one group, how they share what they know, and the Resharders over the group.

    Attributes:
        members: ranks in the world, by position in the group; positions in a group of several jobs.
        position: of this process in the group.
        hosts: name of the host of each process, by position.
        device: where tensors lie.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        timeout: timedelta,
        lost_after: timedelta,
        device: torch.device | str | None,
        most: int,
        kinds: Mapping[str, type[InputError]],
    ) -> None:
        """Make a private group of the same ranks; collective over ``group``, the whole world when None.

        Args:
            group: who takes part.
            timeout: how long to wait for other ranks.
            lost_after: how long a rank may give no sign of life.
            device: where tensors lie; that of the group when None.
            most: Resharders to keep.
            kinds: what calls are told apart by, and the error where ranks differ on it.

        Raises:
            InputError: if there is no group, or this process is not a member.
            ExecutionError: if the ranks do not meet within the timeout.
        """
        self._group = PrivateGroup(group, timeout, lost_after)
        self.members, self.position = self._group.members, self._group.position
        self._meeting = self._group.device
        self.device = self._meeting if device is None else torch.empty(0, device=device).device
        self._most = most
        self._sharing = Sharing(self._meeting, kinds)
        self._kept: dict[Key, tuple[TensorSpec, Resharder]] = {}
        self.hosts = tuple(self._group.wait(self._group.ask(_compare_hosts)))

    def agree(self, facts: Mapping[str, str]) -> None:
        """Compare what must be equal on all ranks, see :func:`reshard_executors.agreement.agree`.

        Raises:
            InputError: on every rank, naming a fact that differs.
            ExecutionError: if the ranks do not meet.
        """
        self._group.agree(SETTINGS, facts)

    def share(self, mine: Facts, error: InputError | None) -> Facts:
        """Find out all facts of a call, see :meth:`reshard_executors.sharing.Sharing.share`."""

        def meet(group: dist.ProcessGroup, waiting: Waiting) -> Facts:
            waiting.begin(lambda: not_met(CALLS))
            return self._sharing.share(group, mine, error)

        return self._group.wait(self._group.ask(meet))

    def find(self, key: Key) -> TensorSpec | None:
        """The tensor whose Resharder is kept under a key, which then counts as used last; None if none is."""
        entry = self._kept.pop(key, None)
        if entry is None:
            return None
        self._kept[key] = entry
        return entry[0]

    def add(self, key: Key, plan: Plan, played: Sequence[int]) -> TensorSpec:
        """Build the Resharder of a plan of one tensor; closes the one not used for longest if there are many.

        Args:
            key: to keep it under.
            plan: the same on every rank.
            played: rank of the plan that each process plays, by position.

        Raises:
            ReshardError: as :class:`Resharder` does.
        """
        while len(self._kept) >= self._most:
            self._kept.pop(next(iter(self._kept)))[1].close()
        resharder = Resharder(plan, self._group, ranks=played, device=self.device)
        self._kept[key] = (plan.spec.tensors[0], resharder)
        return plan.spec.tensors[0]

    def run(self, key: Key, source: torch.Tensor | None, destination: torch.Tensor | None) -> None:
        """Run a kept Resharder.

        Args:
            key: that it is kept under.
            source: this rank's part of the source, if it stores one.
            destination: likewise.

        Raises:
            ReshardError: as :meth:`Resharder.run` does; after an :class:`ExecutionError` the group is dead.
        """
        tensor, resharder = self._kept[key]
        sides = [{} if local is None else {tensor.name: local} for local in (source, destination)]
        resharder.run(*sides)

    def refuse(self, key: Key, problem: ReshardError) -> None:
        """Tell all ranks that this one cannot run; see :meth:`Resharder.refuse`."""
        self._kept[key][1].refuse(problem)

    def abort(self, why: str, *, leaves: bool) -> None:
        """Die at once; see :meth:`reshard_executors.private.PrivateGroup.abort`."""
        self._group.abort(why, leaves=leaves)

    def close(self) -> None:
        """Close the Resharders and give the private group up; the caller's group stays."""
        for _, resharder in self._kept.values():
            resharder.close()
        self._kept.clear()
        self._group.close()


def _compare_hosts(group: dist.ProcessGroup, waiting: Waiting) -> list[str]:
    """The name of every rank's host."""
    waiting.begin(lambda: not_met(HOSTS))
    names: list[str] = [""] * group.size()
    with meeting_to(HOSTS):
        dist.all_gather_object(names, socket.gethostname(), group=group)
    return names

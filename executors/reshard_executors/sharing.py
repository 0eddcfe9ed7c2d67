"""Sharing: what some ranks of a group know about a call becomes known to all, or all raise the same error."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
import torch.distributed as dist

from reshard_executors.agreement import hash_of, meeting_to
from reshard_executors.jobs import named_error
from reshard_planner.errors import InputError, ReshardError

Facts: TypeAlias = dict[str, str]
"""What a rank knows of a call, as text by name."""

CALLS = "compare tensors"
"""What ranks meet for in :meth:`Sharing.share`."""

MOST_KNOWN = 4096
"""Calls that are remembered; then all are forgotten, and shared anew when they come."""

_Said: TypeAlias = tuple[str, str, Facts]
"""Kind and text of a rank's error, empty where it has none, and what it knows."""


class Sharing:
    """Shares facts over one group, and remembers what came of it.

    Ranks that know only a part guess that the rest is as it was when they last knew that part. One
    all-reduce of hashes tells whether all guess the same; only if not, the facts themselves are exchanged.
    """

    def __init__(self, device: torch.device, kinds: Mapping[str, type[InputError]]) -> None:
        """Prepare, without exchanging anything.

        Args:
            device: where hashes are exchanged.
            kinds: all facts that a call has, and the error where ranks differ on one.
        """
        self._device, self._kinds = device, dict(kinds)
        self._known: dict[str, Facts] = {}

    def share(self, group: dist.ProcessGroup, mine: Facts, error: ReshardError | None = None) -> Facts:
        """Find out all facts of a call; collective over the group.

        Args:
            group: who shares, always the same.
            mine: what this rank knows.
            error: why this rank cannot go on, if it cannot.

        Returns:
            All facts, the same and in the same order on all ranks.

        Raises:
            ReshardError: the same on every rank: the error of the first rank that has one, otherwise one on
                the first fact that differs between ranks, or that no rank knows.
            ExecutionError: if the ranks do not meet within the timeout.
        """
        key = json.dumps(mine, sort_keys=True)
        guess = self._known.get(key, mine)
        ready = error is None and len(guess) == len(self._kinds)
        code = hash_of(json.dumps(guess, sort_keys=True)) if ready else -1
        bounds = torch.tensor([code, -code, not ready], dtype=torch.int64, device=self._device)
        everyone: list[_Said | None] = [None] * dist.get_world_size(group)
        with meeting_to(CALLS):
            dist.all_reduce(bounds, op=dist.ReduceOp.MAX, group=group)
            most, negated_least, unready = bounds.tolist()
            if most == -negated_least and not unready:
                return {name: guess[name] for name in self._kinds}
            said = ("" if error is None else type(error).__name__, str(error or ""), mine)
            dist.all_gather_object(everyone, said, group=group)
        found = self._merge([each for each in everyone if each is not None])
        if found != mine:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[key] = found
        return found

    def _merge(self, everyone: Sequence[_Said]) -> Facts:
        for kind, text, _ in everyone:
            if kind:
                raise named_error(kind, text)
        found: Facts = {}
        for name, kind_of_error in self._kinds.items():
            said = [(at, facts[name]) for at, (_, _, facts) in enumerate(everyone) if name in facts]
            if not said:
                raise InputError(f"the {name} is known to no rank; expected a tensor on every rank of a mesh")
            first, wanted = said[0]
            for at, fact in said:
                if fact != wanted:
                    raise kind_of_error(
                        f"the {name} is {wanted} on rank {first} of the group, but {fact} on rank {at};"
                        " expected the same on all ranks"
                    )
            found[name] = wanted
        return found

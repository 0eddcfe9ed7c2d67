"""The players: which process of the world plays which rank of a spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from reshard_executors.groups import group_device, members_of
from reshard_planner.errors import InputError
from reshard_planner.spec import ReshardSpec


@dataclass(frozen=True, slots=True)
class Players:
    """Processes and the ranks that they play.

    Attributes:
        rank: what this process plays.
        processes: rank in the world of the process that plays each rank.
        device: what collectives move.
    """

    rank: int
    processes: Mapping[int, int]
    device: torch.device

    @classmethod
    def of(cls, spec: ReshardSpec, played: Sequence[int], group: dist.ProcessGroup | None) -> Players:
        """Find out who plays what; see :meth:`reshard_executors.baselines.Baseline.prepare`.

        Raises:
            InputError: if the group is not the whole world, or ``played`` does not name every rank of the
                spec once.
        """
        members = members_of(group)
        if len(members) != dist.get_world_size():
            raise InputError(
                f"group has {len(members)} processes; expected all {dist.get_world_size()} of the world,"
                " which make process groups together"
            )
        if len(played) != len(members):
            raise InputError(
                f"played has {len(played)} entries; expected one for each of the {len(members)} processes"
            )
        if len(set(played)) != len(played):
            raise InputError(f"played {list(played)} has a rank twice; expected distinct ranks")
        missing = sorted(set(spec.ranks) - set(played))
        if missing:
            raise InputError(
                f"played {list(played)} lacks the ranks {missing}; expected every rank of the spec"
            )
        at = members.index(dist.get_rank())
        return cls(played[at], dict(zip(played, members, strict=True)), group_device(group))

"""Process groups that a Resharder owns."""

from __future__ import annotations

import uuid
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from reshard_planner.errors import InputError


def members_of(group: dist.ProcessGroup | None) -> list[int]:
    """Ranks in the world of the members of a group, in its order; of the whole world when None.

    Raises:
        InputError: if there is no group, or this process is not a member.
    """
    if not dist.is_initialized():
        raise InputError("torch.distributed has no process group; call init_process_group first")
    if group is not None and not isinstance(group, dist.ProcessGroup):  # what new_group gives non-members
        raise InputError(f"rank {dist.get_rank()} of the world is not a member of the group")
    return dist.get_process_group_ranks(group)


def make_private_group(group: dist.ProcessGroup | None, timeout: timedelta) -> dist.ProcessGroup:
    """Make a group of the same ranks and backend; collective over ``group``, the whole world when None.

    Raises:
        RuntimeError: if the ranks do not meet within the timeout.
    """
    ranks = members_of(group)
    if len(ranks) < dist.get_world_size():
        return _make_subgroup(group, ranks, timeout)
    made: dist.ProcessGroup = dist.new_group(ranks, timeout=timeout, backend=dist.get_backend(group))
    return made


def _make_subgroup(
    group: dist.ProcessGroup | None, ranks: list[int], timeout: timedelta
) -> dist.ProcessGroup:
    """Make a group that ranks outside of it need not know of, under a name that is used only once.

    ``new_group`` cannot do it: it is collective over the world, or, with ``use_local_synchronization``, names
    the group by how many groups this rank knows. Ranks that know different numbers then never meet, and a
    group made again after it was destroyed finds the addresses of the first one in the store.
    """
    names = [uuid.uuid4().hex]
    dist.broadcast_object_list(names, group=group, group_src=0)
    made: dist.ProcessGroup
    made, _ = c10d._new_process_group_helper(  # noqa: SLF001 - see above
        len(ranks),
        ranks.index(dist.get_rank()),
        ranks,
        dist.Backend(dist.get_backend(group)),
        c10d._get_default_store(),  # noqa: SLF001 - see above
        c10d.GroupName(f"reshard-{names[0]}"),
        timeout=timeout,
    )
    # ranks within the group by their ranks in the world, as new_group keeps them
    c10d._world.pg_group_ranks[made] = {rank: at for at, rank in enumerate(ranks)}  # noqa: SLF001 - see above
    return made


def group_device(group: dist.ProcessGroup | None) -> torch.device:
    """The device that a group of this backend moves: the current CUDA device for NCCL, else the CPU."""
    if "nccl" in dist.get_backend_config(group):
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")

"""Process groups: those that a Resharder owns, and those that join processes of several jobs."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, Final
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed import distributed_c10d as c10d

from reshard_executors.agreement import ENDLESS, reason
from reshard_planner.errors import ExecutionError, InputError

JOIN_TIMEOUT = timedelta(minutes=5)
"""How long jobs wait for one another by default: one of them may still be loading its model."""

JOINT = "reshard-joint-"
"""How the names of groups begin whose members may belong to several jobs."""

NCCL_ERRORS = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
"""The environment variable that says what NCCL does about errors; 0 is nothing."""

_ENVIRONMENT = threading.Lock()
"""Held while the environment is changed for a moment."""

TIMED_OUT = "Timed out"
"""What gloo says of an operation that has timed out, and of no other."""

_inherited: Final[list[dist.ProcessGroup]] = []
"""Groups of the process that this one was forked from, which goes on to use them."""


def _inherit() -> None:
    """Remember the groups of the parent, and never end them here, which would wait for threads of its."""
    for group in c10d._world.pg_map:  # noqa: SLF001 - nothing else has all
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
        _inherited.append(group)


os.register_at_fork(after_in_child=_inherit)

ABORT_TAG, MOST_CONTEXTS = 2**30, 8
"""A tag that no message has, and how many contexts, one per network interface, a group of gloo may have."""


def members_of(group: dist.ProcessGroup | None) -> list[int]:
    """Ranks in the world of the members of a group, in its order; of the whole world when None.

    Processes of several jobs have no common world; in a group that joins them their ranks are their
    positions.

    Raises:
        InputError: if there is no group, or this process is not a member.
    """
    given_group: object = group
    if given_group is dist.GroupMember.NON_GROUP_MEMBER:
        raise InputError(f"rank {dist.get_rank()} of the world is not a member of the group")
    if group is not None and not isinstance(group, dist.ProcessGroup):
        raise InputError(f"group is a {type(group).__name__}; expected a process group of torch.distributed")
    if group is None and not dist.is_initialized():
        raise InputError("torch.distributed has no process group; call init_process_group first")
    given = _given(group)
    if any(given is each for each in _inherited):
        raise InputError(
            "this process was forked from one that the process group belongs to;"
            " expected init_process_group of its own"
        )
    if is_destroyed(given):
        raise InputError("the process group was destroyed; expected one that is in use")
    if given.group_name.startswith(JOINT):
        return list(range(given.size()))
    return dist.get_process_group_ranks(given)


def position_in(group: dist.ProcessGroup | None) -> int:
    """Position of this process in a group, from 0; its rank in the world when None.

    Raises:
        InputError: if there is no group, or this process is not a member.
    """
    members_of(group)
    return int(dist.get_rank() if group is None else group.rank())


def _given(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """The group itself, and the world's for None."""
    found: dist.ProcessGroup = c10d._get_default_group() if group is None else group  # noqa: SLF001 - no other
    return found


def private_store(group: dist.ProcessGroup | None) -> Store:
    """The store of a group, over a connection of its own, so that a call that waits holds no other one up."""
    parent = _given(group)
    store: Any = c10d._world.pg_map[parent][1]  # noqa: SLF001 - nothing else tells
    found: Store = store.clone()
    return found


def make_private_group(group: dist.ProcessGroup | None, name: str, timeout: timedelta) -> dist.ProcessGroup:
    """Make a group of the same ranks and backend; collective over ``group``, the whole world when None.

    ``new_group`` cannot do it: it is collective over the world, or, with ``use_local_synchronization``, names
    the group by how many groups this rank knows. Ranks that know different numbers then never meet, and a
    group made again after it was destroyed finds the addresses of the first one in the store. Nor does it
    know groups of several jobs, which have only the store of the group itself in common.

    Args:
        group: who takes part; all of them call this.
        name: the same on all ranks, and never used before.
        timeout: for this, and for each operation of the group; NCCL has none.

    Raises:
        RuntimeError: if the ranks do not connect within the timeout.
    """
    parent = _given(group)
    prefix = JOINT if parent.group_name.startswith(JOINT) else "reshard-"
    store = c10d._world.pg_map[parent][1]  # noqa: SLF001 - see above
    ranks = list(c10d._world.pg_group_ranks[parent])  # noqa: SLF001 - see above
    backend = backend_of(parent)
    if backend == "nccl":  # whose watchdog would time, too, and then end the process after some minutes
        timeout = ENDLESS
    with errors_left_to_us(backend):
        return _register(
            f"{prefix}{name}", str(dist.get_backend(parent)), store, parent.rank(), ranks, timeout
        )


def backend_of(group: dist.ProcessGroup | None) -> str:
    """``nccl`` for a group that has it for any device, else the name of its backend."""
    return "nccl" if "nccl" in dist.get_backend_config(group) else str(dist.get_backend(group))


@contextlib.contextmanager
def errors_left_to_us(backend: str) -> Iterator[None]:
    """Have NCCL leave errors and timeouts of a group to its owner; by default it ends the process.

    Only an environment variable says so, which the group reads when it is made.
    """
    if backend != "nccl":
        yield
        return
    with _ENVIRONMENT:
        before = os.environ.get(NCCL_ERRORS)
        os.environ[NCCL_ERRORS] = "0"
        try:
            yield
        finally:
            if before is None:
                del os.environ[NCCL_ERRORS]
            else:
                os.environ[NCCL_ERRORS] = before


def abort_group(group: dist.ProcessGroup, backend: str) -> None:
    """End everything that waits in a group, on this rank now and on others as they notice; it is dead then.

    NCCL's communicators are aborted, which may take long. Gloo's ``abort`` interrupts nothing, but a receive
    that times out closes all connections of the group, or of those of its contexts that the tag belongs to.
    """
    if backend == "nccl":
        group.abort()
        return
    if backend != "gloo":
        return
    for tag in range(ABORT_TAG, ABORT_TAG + MOST_CONTEXTS):
        for step in range(1, group.size()):
            if _times_out(group, (group.rank() + step) % group.size(), tag):
                break


def _times_out(group: dist.ProcessGroup, peer: int, tag: int) -> bool:
    """Whether a receive that nobody sends to times out; on a closed connection it fails at once instead."""
    try:
        group.recv([torch.zeros(1, dtype=torch.uint8)], peer, tag).wait(timedelta(milliseconds=1))
    except RuntimeError as failure:
        return TIMED_OUT in str(failure)
    return False


def is_destroyed(group: dist.ProcessGroup) -> bool:
    """Whether a group was given up by ``destroy_process_group``, alone or with the world."""
    return group not in c10d._world.pg_map  # noqa: SLF001 - nothing else tells


def destroy_group(group: dist.ProcessGroup) -> None:
    """Give a group up, if it is still there."""
    with contextlib.suppress(ValueError, RuntimeError):  # destroyed by the caller; aborted before
        dist.destroy_process_group(group)


def _register(
    name: str, backend: str, store: Store, position: int, ranks: Sequence[int], timeout: timedelta
) -> dist.ProcessGroup:
    """Make a group over a store, and tell torch.distributed of it.

    Args:
        name: the same on all members, and new to each of them.
        backend: such as ``gloo``.
        store: the same on all members.
        position: of this process.
        ranks: of all members, as this process numbers them.
        timeout: for each operation of the group.
    """
    with _without_device():
        made: dist.ProcessGroup
        made, _ = c10d._new_process_group_helper(  # noqa: SLF001 - see make_private_group
            len(ranks),
            position,
            [],  # as for a world: with ranks it would ask for one, and for this process's rank there
            dist.Backend(backend),
            store,
            c10d.GroupName(name),
            timeout=timeout,
        )
    # positions by ranks in the world, as new_group keeps them
    c10d._world.pg_group_ranks[made] = {rank: at for at, rank in enumerate(ranks)}  # noqa: SLF001 - as above
    return made


@contextlib.contextmanager
def _without_device() -> Iterator[None]:
    """Hide which device the world is bound to, while a group is made.

    With a device torch splits the communicator of the world, which all ranks of the world must take part in,
    and which ranks of another job are no part of.
    """
    world = dist.group.WORLD
    if world is None or world.bound_device_id is None:
        yield
        return
    device, world.bound_device_id = world.bound_device_id, None
    try:
        yield
    finally:
        world.bound_device_id = device


def join_jobs(
    address: str,
    rank: int,
    world_size: int,
    *,
    backend: str = "gloo",
    timeout: timedelta = JOIN_TIMEOUT,
    name: str = "jobs",
) -> dist.ProcessGroup:
    """Make one process group of processes that belong to several jobs; called by all of them.

    Each job may have a ``torch.distributed`` world of its own, which stays as it is. In a process without
    one the group becomes its world, since most functions of ``torch.distributed`` cannot do without.

    In the group processes go by their positions: ``dist.get_rank(group)``, ``group_src=``, ``group_dst=`` and
    ``group_peer=`` are right, and so are collectives. Ranks of the world (``src=``, ``dst=``, ``peer=``) mean
    nothing, because every job has its own. ``dist.destroy_process_group(group)`` ends it; rank 0 goes last,
    or at least not before all have built what they build over the group.

    Args:
        address: ``tcp://host:port``; the process of rank 0 listens there.
        rank: position of this process in the group, from 0.
        world_size: number of processes in the group.
        backend: of the group, as for ``init_process_group``.
        timeout: how long to wait for the others, here and in each operation of the group.
        name: of the group, the same in all processes; one process cannot be in two groups of a name.

    Raises:
        InputError: if the address, the rank, the size, the backend or the name is wrong, another process has
            the same rank, or rank 0 was given another size.
        ExecutionError: if the processes do not all meet within the timeout.
    """
    host, port = _split_address(address)
    _check_numbers(rank, world_size)
    if str(backend).lower() not in dist.Backend.backend_list:
        raise InputError(
            f"backend is {backend!r}; expected one of {', '.join(sorted(dist.Backend.backend_list))}"
        )
    full_name = f"{JOINT}{name}"
    if full_name in c10d._world.pg_names.values():  # noqa: SLF001 - nothing else tells
        raise InputError(f"name is {name!r}, and this process is in a group of that name; expected a new one")
    try:
        store = TCPStore(host, port, world_size, is_master=rank == 0, timeout=timeout)
        _check_claims(PrefixStore(full_name, store), rank, world_size)
        seen = _ranks_seen_from(rank, world_size)
        group = _register(full_name, str(backend).lower(), store, rank, seen, timeout)
    except RuntimeError as failure:
        raise ExecutionError(
            f"the {world_size} processes of the jobs did not meet at {address}: {reason(failure)}"
        ) from failure
    if not dist.is_initialized():
        c10d._update_default_pg(group)  # noqa: SLF001 - init_process_group would put another prefix before keys
    return group


def _ranks_seen_from(position: int, size: int) -> list[int]:
    """A number per position of a joint group: of this process its rank in the world, of others distinct ones.

    ``dist.get_rank(group)`` looks the rank in the world up among them.
    """
    seen = list(range(size))
    mine = dist.get_rank() if dist.is_initialized() else position
    if mine < size:
        seen[mine] = position
    seen[position] = mine
    return seen


def _split_address(address: str) -> tuple[str, int]:
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except (AttributeError, TypeError, ValueError):  # no text; a port that is not a number, or too large
        host = port = None
    if not host or not port or parts.scheme != "tcp" or parts.path:
        raise InputError(f"address is {address!r}; expected tcp://host:port")
    return host, port


def _check_numbers(rank: int, world_size: int) -> None:
    if isinstance(world_size, bool) or not isinstance(world_size, int) or world_size < 1:
        raise InputError(f"world_size is {world_size!r}; expected an integer of at least 1")
    if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < world_size:
        raise InputError(f"rank is {rank!r}; expected an integer from 0 to {world_size - 1}")


def _check_claims(store: Store, rank: int, world_size: int) -> None:
    """Check that nobody else has this rank, and that all expect the same size."""
    if store.add(f"rank {rank}", 1) > 1:
        raise InputError(f"rank is {rank}, which another process has joined with; expected distinct ranks")
    first = store.compare_set("size", "", str(world_size)).decode()
    if first != str(world_size):
        raise InputError(f"world_size is {world_size}, but {first} in another process; expected the same")


def group_device(group: dist.ProcessGroup | None) -> torch.device:
    """The device that a group of this backend moves: the current CUDA device for NCCL, else the CPU."""
    if backend_of(group) == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")

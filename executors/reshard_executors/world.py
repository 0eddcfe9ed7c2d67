"""The world of a launched process: a device, and the default group of all ranks."""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta
from functools import partial
from typing import Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from reshard_executors.agreement import reason
from reshard_executors.lane import within
from reshard_executors.launchers import RankInfo, device_index
from reshard_executors.meeting import meet
from reshard_executors.store import Hurdle, StoreError, open_store
from reshard_planner.errors import ExecutionError, InputError

GIVE_UP_S: Final = 1.0
"""How long rank 0, which keeps the store, stays on when ranks are missing, so that others hear which."""

ANSWER_S: Final = 3.0
"""How long after the timeout the store may answer that ranks are missing; it may hang."""


class RanksMissingError(ExecutionError):
    """Ranks have not come in time.

    Attributes:
        first_knows: whether rank 0 has come, which then finds the same.
    """

    def __init__(self, text: str, *, first_knows: bool) -> None:
        super().__init__(text)
        self.first_knows = first_knows


def make_world(
    info: RankInfo, backend: str | None, timeout: timedelta, purpose: str, digest: str = ""
) -> torch.device:
    """Start ``torch.distributed``; see :func:`reshard_executors.launchers.start_world`.

    Args:
        info: likewise.
        backend: likewise.
        timeout: likewise.
        purpose: what all ranks come for, and the plan that they have; see
            :func:`reshard_executors.store.open_store`.
        digest: likewise.
    """
    if dist.is_initialized():
        raise InputError("torch.distributed has been initialized already; expected a process without a world")
    chosen = backend or ("nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo")
    if chosen not in dist.Backend.backend_list:
        raise InputError(f"backend is {backend!r}; expected one of {', '.join(dist.Backend.backend_list)}")
    device = _take_device(info) if chosen == "nccl" else torch.device("cpu")
    _check_interfaces(os.environ.get("GLOO_SOCKET_IFNAME", ""))
    try:
        opened = open_store(info, timeout, purpose, digest)
        awaiting = partial(_await_all, opened, info, timeout)
        store = within(timeout.total_seconds() + ANSWER_S, awaiting)  # torch waits without end for answers
        dist.init_process_group(
            chosen, store=store, rank=info.rank, world_size=info.world_size, timeout=timeout
        )
    except StoreError as error:
        raise ExecutionError(_word(error, info, timeout)) from error
    except TimeoutError:
        silent = f"the store has not answered within {timeout.total_seconds():g} s"
        raise ExecutionError(_unconnected(info, silent)) from None
    except RuntimeError as failure:
        raise ExecutionError(_unconnected(info, reason(failure))) from failure
    return device


def _check_interfaces(named: str) -> None:
    """Check what GLOO_SOCKET_IFNAME says; gloo would fail later, and say it in its own way."""
    known = [name for _, name in socket.if_nameindex()]
    for name in filter(None, named.split(",")):
        if name not in known:
            raise InputError(
                f"GLOO_SOCKET_IFNAME names {name!r}, which is no interface of this host;"
                f" expected one of {', '.join(known)}"
            )


def _take_device(info: RankInfo) -> torch.device:
    """Make the CUDA device of this process the current one."""
    count = torch.cuda.device_count()
    index = device_index(info.local_rank, count)
    if index is None:
        raise InputError(
            f"backend is 'nccl', and the process of local rank {info.local_rank} sees {count} CUDA devices;"
            " expected one for each process of the host"
        )
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def _word(error: StoreError, info: RankInfo, timeout: timedelta) -> str:
    """What is said where the store cannot be opened."""
    match error.hurdle:
        case Hurdle.LISTEN:
            return (
                f"rank 0 cannot listen on port {info.port}: {error.reason}; another port may be given as"
                " MASTER_PORT"
            )
        case Hurdle.REACH:
            return (
                f"rank 0 could not be reached at {info.address}:{info.port} within"
                f" {timeout.total_seconds():g} s: {error.reason}"
            )
        case Hurdle.FOREIGN:
            return (
                f"somebody listens at {info.address}:{info.port} who is not rank 0 of this job:"
                f" {error.reason}; another port may be given as MASTER_PORT"
            )
        case Hurdle.TORCH:
            return _unconnected(info, error.reason)


def _unconnected(info: RankInfo, why: str) -> str:
    return f"the {info.world_size} ranks did not connect at {info.address}:{info.port}: {why}"


def _await_all(store: Store, info: RankInfo, timeout: timedelta) -> Store:
    """Wait until all ranks have come; a store for this world alone, as a process may start several in turn.

    Raises:
        RanksMissingError: naming those that have not.
    """
    first = "reshard rank 0 has come"
    if info.rank == 0:
        store.set(first, "")
    try:
        return meet(store, info.rank, range(info.world_size), timeout)[0]
    except ExecutionError as error:
        first_knows = store.check([first])
        if info.rank == 0:
            time.sleep(GIVE_UP_S)
        raise RanksMissingError(str(error), first_knows=first_knows) from None

"""The world of a launched process: a store in which all ranks meet, a device, and the default group."""

from __future__ import annotations

import socket
import time
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, Store, TCPStore
from torch.distributed.rendezvous import rendezvous

from reshard_executors.agreement import reason
from reshard_executors.launchers import RankInfo
from reshard_executors.meeting import meet
from reshard_planner.errors import ExecutionError, InputError

GIVE_UP_S: Final = 2.0
"""How long rank 0, which keeps the store, stays on when ranks are missing, so that others can name them."""

KNOCK_PAUSE_S: Final = 0.1
"""From one try to reach rank 0 to the next."""


class RanksMissingError(ExecutionError):
    """Ranks have not come in time.

    Attributes:
        first_knows: whether rank 0 has come, which then finds the same.
    """

    def __init__(self, text: str, *, first_knows: bool) -> None:
        super().__init__(text)
        self.first_knows = first_knows


def make_world(info: RankInfo, backend: str | None, timeout: timedelta) -> torch.device:
    """Start ``torch.distributed``; see :func:`reshard_executors.launchers.start_world`."""
    if dist.is_initialized():
        raise InputError("torch.distributed has been initialized already; expected a process without a world")
    chosen = backend or ("nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo")
    if chosen not in dist.Backend.backend_list:
        raise InputError(f"backend is {backend!r}; expected one of {', '.join(dist.Backend.backend_list)}")
    device = _take_device(info) if chosen == "nccl" else torch.device("cpu")
    try:
        store = _open_store(info, timeout)
        _await_all(store, info, timeout)
        dist.init_process_group(
            chosen, store=store, rank=info.rank, world_size=info.world_size, timeout=timeout
        )
    except RuntimeError as failure:
        raise ExecutionError(
            f"the {info.world_size} ranks did not connect at {info.address}:{info.port}: {reason(failure)}"
        ) from failure
    return device


def _take_device(info: RankInfo) -> torch.device:
    """Make the CUDA device of this process the current one."""
    count = torch.cuda.device_count()
    number = 0 if count == 1 else info.local_rank
    if number >= count:
        raise InputError(
            f"backend is 'nccl', and the process of local rank {info.local_rank} sees {count} CUDA devices;"
            " expected one for each process of the host"
        )
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def _open_store(info: RankInfo, timeout: timedelta) -> Store:
    """The store in which the ranks meet."""
    if info.launcher == "none":
        return HashStore()
    if info.launcher == "torchrun" and dist.is_torchelastic_launched():
        found: Store = next(rendezvous("env://", info.rank, info.world_size, timeout=timeout))[0]
        return found
    if info.rank:
        _knock(info, timeout)
    try:
        store = TCPStore(
            info.address,
            info.port,
            info.world_size,
            is_master=info.rank == 0,
            timeout=timeout,
            wait_for_workers=False,
        )
    except RuntimeError as failure:
        if info.rank:
            raise
        raise ExecutionError(
            f"rank 0 cannot listen on port {info.port}: {reason(failure)}; another port may be given as"
            " MASTER_PORT"
        ) from failure
    if store.add(f"reshard claims of rank {info.rank}", 1) > 1:
        raise InputError(
            f"the rank of this process is {info.rank}, which another process has too; expected distinct ranks"
        )
    return store


def _knock(info: RankInfo, timeout: timedelta) -> None:
    """Wait until rank 0 listens. torch would wait as well, but fill the terminal when it has been in vain.

    Raises:
        ExecutionError: if it does not within the timeout.
    """
    until = time.monotonic() + timeout.total_seconds()
    while True:
        left_s = until - time.monotonic()
        try:
            socket.create_connection((info.address, info.port), timeout=max(left_s, KNOCK_PAUSE_S)).close()
        except OSError as error:
            if left_s <= KNOCK_PAUSE_S:
                raise ExecutionError(
                    f"rank 0 could not be reached at {info.address}:{info.port} within"
                    f" {timeout.total_seconds():g} s: {error.strerror or error}"
                ) from None
            time.sleep(KNOCK_PAUSE_S)
        else:
            return


def _await_all(store: Store, info: RankInfo, timeout: timedelta) -> None:
    """Wait until all ranks have come.

    Raises:
        RanksMissingError: naming those that have not.
    """
    first = "reshard rank 0 has come"
    if info.rank == 0:
        store.set(first, "")
    try:
        meet(store, info.rank, range(info.world_size), timeout)
    except ExecutionError as error:
        first_knows = store.check([first])
        if info.rank == 0:
            time.sleep(GIVE_UP_S)
        raise RanksMissingError(str(error), first_knows=first_knows) from None

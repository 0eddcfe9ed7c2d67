"""The store in which the processes of a launcher meet first. Importing this needs no torch."""

from __future__ import annotations

import socket
import time
from datetime import timedelta
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from reshard_executors.launchers import RankInfo
from reshard_planner.errors import ExecutionError, InputError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

KNOCK_PAUSE_S: Final = 0.1
"""From one try to reach rank 0 to the next."""


class Hurdle(Enum):
    """What keeps a process from the store."""

    TORCH = auto()
    """torch is not installed."""
    LISTEN = auto()
    """Rank 0 cannot listen at the port."""
    REACH = auto()
    """Nobody listens where rank 0 should, or there is no way there."""
    JOIN = auto()
    """Somebody listens there, but is not rank 0, or the connection fails."""


class StoreError(ExecutionError):
    """A process cannot open the store; callers say so in their own words.

    Attributes:
        hurdle: what keeps it from that.
        reason: what the system or torch says, in a few words.
    """

    def __init__(self, hurdle: Hurdle, reason: str) -> None:
        super().__init__(f"the store of the ranks cannot be opened: {reason}")
        self.hurdle, self.reason = hurdle, reason


class RankTakenError(InputError):
    """Another process has the rank of this one, which therefore takes no part."""

    def __init__(self, rank: int) -> None:
        super().__init__(
            f"the rank of this process is {rank}, which another process has too; expected distinct ranks"
        )


def open_store(info: RankInfo, timeout: timedelta) -> Store:
    """Open the store that rank 0 keeps, or torchrun's agents; waits for whoever keeps it alone.

    Args:
        info: what the launcher says of this process; one that was started alone keeps a store for itself.
        timeout: how long to wait, and for each later operation.

    Raises:
        StoreError: if that cannot be.
        RankTakenError: if another process has come with the same rank.
    """
    try:
        from torch._C._distributed_c10d import HashStore, TCPStore  # noqa: PLC0415 - torch may be missing
        from torch.distributed import is_torchelastic_launched  # noqa: PLC0415
        from torch.distributed.rendezvous import rendezvous  # noqa: PLC0415
    except ImportError as error:
        raise StoreError(Hurdle.TORCH, str(error)) from None
    from reshard_executors.agreement import reason  # noqa: PLC0415 - needs torch

    if info.launcher == "none":
        return HashStore()
    listens = info.rank == 0
    of_agents = info.launcher == "torchrun" and is_torchelastic_launched()
    if not listens:
        unreached = knock(info.address, info.port, timeout.total_seconds())
        if unreached is not None:
            raise StoreError(Hurdle.REACH, unreached)
    elif not of_agents:
        taken = try_port(info.port)
        if taken is not None:
            raise StoreError(Hurdle.LISTEN, taken)
    store: Store
    try:
        if of_agents:  # which number the ranks themselves, so that none is there twice
            store = next(rendezvous("env://", info.rank, info.world_size, timeout=timeout))[0]
            return store
        store = TCPStore(
            info.address,
            info.port,
            info.world_size,
            is_master=listens,
            timeout=timeout,
            wait_for_workers=False,
        )
        claims = store.add(f"reshard claims of rank {info.rank}", 1)
    except RuntimeError as failure:
        hurdle = Hurdle.LISTEN if listens and not of_agents else Hurdle.JOIN
        raise StoreError(hurdle, reason(failure)) from failure
    if claims > 1:
        raise RankTakenError(info.rank)
    return store


def try_port(port: int) -> str | None:
    """Why nobody can listen at a port of this host, as the system says it; None if one can.

    The port is bound for a moment but not listened at, so that nobody who knocks takes this for rank 0.
    """
    both = socket.has_dualstack_ipv6()
    try:
        with socket.socket(socket.AF_INET6 if both else socket.AF_INET) as trying:
            trying.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if both:
                trying.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            trying.bind(("", port))
    except OSError as error:
        return error.strerror or str(error)
    return None


def knock(address: str, port: int, timeout_s: float) -> str | None:
    """Wait until somebody listens; why nobody does, as the system says it, None if somebody does.

    torch would wait as well, but fill the terminal when it has been in vain.
    """
    until = time.monotonic() + timeout_s
    while True:
        left_s = until - time.monotonic()
        try:
            socket.create_connection((address, port), timeout=max(left_s, KNOCK_PAUSE_S)).close()
        except (OSError, UnicodeError) as error:  # the latter for names that cannot be written
            if left_s <= KNOCK_PAUSE_S:
                return getattr(error, "strerror", None) or str(error)
            time.sleep(KNOCK_PAUSE_S)
        else:
            return None

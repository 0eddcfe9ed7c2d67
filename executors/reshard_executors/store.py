"""The store in which the processes of a launcher meet first. Importing this needs no torch."""

from __future__ import annotations

import json
import socket
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from reshard_executors.lane import within
from reshard_executors.launchers import RankInfo
from reshard_planner.errors import ExecutionError, InputError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

T = TypeVar("T")

KNOCK_PAUSE_S: Final = 0.1
"""From one try to reach rank 0, or to hear of its job, to the next."""

OPEN_S: Final = 2.0
"""How long the store may take to open at least, however late rank 0 has begun to listen."""

JOB: Final = "reshard job"
"""Key in the store: whose it is."""


class Hurdle(Enum):
    """What keeps a process from the store."""

    TORCH = auto()
    """torch is not installed."""
    LISTEN = auto()
    """Rank 0 cannot listen at the port."""
    REACH = auto()
    """Nobody listens where rank 0 should, or there is no way there."""
    FOREIGN = auto()
    """Somebody listens there who is not rank 0 of this job."""


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
            f"the rank of this process is {rank}, which another process has too; expected distinct ranks,"
            " and another MASTER_PORT for each job"
        )


@dataclass(frozen=True, slots=True)
class Job:
    """What tells the ranks of a job from those of others that meet at the same port.

    Attributes:
        world_size: number of ranks.
        purpose: what they come for: a verb of the command, or ``start_world``.
        name: what the launcher calls the job; empty where it does not say.
        digest: of the plan; empty if there is none or it cannot be read.
    """

    world_size: int
    purpose: str
    name: str
    digest: str

    def difference(self, other: Job) -> str | None:
        """In which way another job is another one, in words; None if it may well be the same.

        Plans are compared only where no launcher names the job: ranks of one job that have different plans
        find that out together.
        """
        named = bool(self.name and other.name)
        if self.world_size != other.world_size:
            return f"its job has {other.world_size} ranks, and this one {self.world_size}"
        if self.purpose != other.purpose:
            return f"its job has come for {other.purpose}, and this one for {self.purpose}"
        if named and self.name != other.name:
            return f"its job is {other.name}, and this one {self.name}"
        if not named and self.digest and other.digest and self.digest != other.digest:
            return f"its job has plan {other.digest[:12]}, and this one {self.digest[:12]}"
        return None


def open_store(info: RankInfo, timeout: timedelta, purpose: str, digest: str = "") -> Store:
    """Open the store that rank 0 keeps, or torchrun's agents; waits for whoever keeps it alone.

    Args:
        info: what the launcher says of this process; one that was started alone keeps a store for itself.
        timeout: how long to wait, and for each later operation.
        purpose: what all ranks come for; see :class:`Job`.
        digest: of the plan, the same on all ranks that can read it.

    Raises:
        StoreError: if that cannot be, at the latest a few seconds after the timeout.
        RankTakenError: if another process has come with the same rank.
    """
    until = time.monotonic() + timeout.total_seconds()
    try:
        from torch._C._distributed_c10d import HashStore  # noqa: PLC0415 - torch may be missing
        from torch.distributed import is_torchelastic_launched  # noqa: PLC0415
    except ImportError as error:
        raise StoreError(Hurdle.TORCH, str(error)) from None

    if info.launcher == "none":
        return HashStore()
    of_agents = info.launcher == "torchrun" and is_torchelastic_launched()
    if info.rank != 0:
        unreached = knock(info.address, info.port, timeout.total_seconds())
        if unreached is not None:
            raise StoreError(Hurdle.REACH, unreached)
    elif not of_agents:
        taken = try_port(info.port)
        if taken is not None:
            raise StoreError(Hurdle.LISTEN, taken)
    until = max(until, time.monotonic() + OPEN_S)
    job = Job(info.world_size, purpose, info.job, digest)
    work = partial(_of_agents, info, timeout) if of_agents else partial(_of_rank_0, info, timeout, job, until)
    try:
        # torch waits without end for an answer of whoever listens there
        return within(until - time.monotonic() + KNOCK_PAUSE_S, work)
    except TimeoutError:
        if info.rank == 0 and not of_agents:
            raise StoreError(Hurdle.REACH, "it finds no way to itself by this address") from None
        reason = f"it has not answered as such within {timeout.total_seconds():g} s"
        raise StoreError(Hurdle.FOREIGN, reason) from None


def _of_agents(info: RankInfo, timeout: timedelta) -> Store:
    """The store of torchrun's agents, who number the ranks, so that none is there twice."""
    from torch.distributed.rendezvous import rendezvous  # noqa: PLC0415 - torch may be missing

    from reshard_executors.agreement import reason  # noqa: PLC0415 - needs torch

    try:
        store: Store = next(rendezvous("env://", info.rank, info.world_size, timeout=timeout))[0]
    except RuntimeError as failure:
        raise StoreError(Hurdle.FOREIGN, reason(failure)) from failure
    return store


def _of_rank_0(info: RankInfo, timeout: timedelta, job: Job, until: float) -> Store:
    """The store that rank 0 keeps, which says there whose it is before another rank takes its own."""
    from torch._C._distributed_c10d import TCPStore  # noqa: PLC0415 - torch may be missing

    from reshard_executors.agreement import reason  # noqa: PLC0415 - needs torch

    keeps = info.rank == 0
    try:
        store = TCPStore(
            info.address, info.port, info.world_size, is_master=keeps, timeout=timeout, wait_for_workers=False
        )
        if keeps:
            store.set(JOB, json.dumps(asdict(job)))
        while not store.check([JOB]):
            if time.monotonic() > until:
                raise TimeoutError
            time.sleep(KNOCK_PAUSE_S)
        _compare(job, store.get(JOB))
        claims = store.add(f"reshard claims of rank {info.rank}", 1)
    except RuntimeError as failure:
        if keeps:
            raise StoreError(Hurdle.LISTEN, reason(failure)) from failure
        unreached = knock(info.address, info.port, 0.0)  # it may have ended meanwhile
        hurdle = Hurdle.FOREIGN if unreached is None else Hurdle.REACH
        raise StoreError(hurdle, unreached or reason(failure)) from failure
    if claims > 1:
        raise RankTakenError(info.rank)
    return store


def _compare(job: Job, said: bytes) -> None:
    """Refuse a store of another job, given what it says of it.

    Raises:
        StoreError: saying in which way it is another one.
    """
    try:
        other = Job(**json.loads(said))
    except (TypeError, ValueError):
        raise StoreError(Hurdle.FOREIGN, "it is of another version of this program") from None
    difference = job.difference(other)
    if difference is not None:
        raise StoreError(Hurdle.FOREIGN, difference)


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

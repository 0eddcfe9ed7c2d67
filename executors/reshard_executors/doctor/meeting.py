"""Meeting: ranks decide together over nothing but a store, and find out which of them are gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import msgspec

from reshard_executors.doctor import ports
from reshard_executors.doctor.findings import spell_ranks
from reshard_executors.launchers import RankInfo
from reshard_planner.errors import ExecutionError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

T = TypeVar("T")
R = TypeVar("R")

PATIENCE = 1.5
"""How much longer other ranks wait than rank 0, which tells them who is missing."""

KNOCK_PAUSE_S = 0.1
"""From one try to reach rank 0 to the next."""

GRACE_S = 5.0
"""How long rank 0 stays at the end for those that have not read its last word."""


class RanksLostError(ExecutionError):
    """Ranks did not come to a decision.

    Attributes:
        ranks: which.
    """

    def __init__(self, ranks: Sequence[int], what: str, timeout_s: float) -> None:
        """Say who was missed, and where."""
        have = "has" if len(ranks) == 1 else "have"
        super().__init__(
            f"{spell_ranks(ranks)} {have} not come to {what} within {timeout_s:g} s; expected all ranks to"
            " be started together and to stay"
        )
        self.ranks = tuple(ranks)


@dataclass(frozen=True, slots=True)
class _Answer:
    """What rank 0 tells the others: the result, or who is missing."""

    result: str
    missing: tuple[int, ...] = ()


def open_store(info: RankInfo, timeout_s: float) -> Store:
    """The store at the address of rank 0, or that of torchrun's agents; waits for rank 0 alone.

    Args:
        info: what the launcher says of this process.
        timeout_s: how long to wait for rank 0.

    Raises:
        ExecutionError: if rank 0 cannot listen, or cannot be reached, or torch is missing.
    """
    try:
        from torch._C._distributed_c10d import PrefixStore, TCPStore  # noqa: PLC0415 - torch may be missing
        from torch.distributed import is_torchelastic_launched  # noqa: PLC0415
        from torch.distributed.rendezvous import rendezvous  # noqa: PLC0415
    except ImportError:
        raise ExecutionError("ranks cannot meet without torch; expected it to be installed") from None
    of_agents = info.launcher == "torchrun" and is_torchelastic_launched()
    listens = info.rank == 0 and not of_agents
    problem = ports.port_problem(info.port) if listens else _knock(info, timeout_s)
    if problem is not None:
        raise ExecutionError(problem)
    timeout = timedelta(seconds=timeout_s)
    store: Store
    try:
        if of_agents:
            store = next(rendezvous("env://", info.rank, info.world_size, timeout=timeout))[0]
        else:
            store = TCPStore(
                info.address,
                info.port,
                info.world_size,
                is_master=listens,
                timeout=timeout,
                wait_for_workers=False,
            )
    except RuntimeError:
        raise ExecutionError(
            f"whoever listens at {info.address}, port {info.port}, is not rank 0 of this world; expected a"
            " port in MASTER_PORT that nobody else uses, or else ranks do not meet"
        ) from None
    return PrefixStore("doctor", store)


def _knock(info: RankInfo, timeout_s: float) -> str | None:
    """Wait until somebody listens where ranks meet; why they cannot, None if they can.

    torch would wait as well, but write a page about it.
    """
    until = time.monotonic() + timeout_s
    while True:
        left_s = until - time.monotonic()
        problem = ports.reach_problem(ports.gather(info.address, info.port), max(left_s, KNOCK_PAUSE_S))
        if problem is None or left_s < KNOCK_PAUSE_S:
            return problem
        time.sleep(KNOCK_PAUSE_S)


class Meeting:
    """All ranks of a world, at one store."""

    def __init__(self, store: Store, rank: int, size: int, timeout_s: float) -> None:
        """Come to the store; waits for nobody.

        Args:
            store: the same for all ranks, and not used before; its keys are ours.
            rank: of this process.
            size: number of ranks.
            timeout_s: how long ranks wait for one another at each decision.
        """
        self.store, self.rank, self.size = store, rank, size
        self.timeout_s = timeout_s

    def decide(self, what: str, mine: T, judge: Callable[[list[T]], R], kind: type[R]) -> R:
        """Have rank 0 judge what all ranks give; collective.

        Args:
            what: name of the decision, never used before, which says what ranks come to.
            mine: what this rank gives, of the same type on all.
            judge: makes the result of what all gave, in order of ranks; called on rank 0.
            kind: type of the result.

        Returns:
            The result, on all ranks.

        Raises:
            RanksLostError: on all ranks that are left, if some have not come in time.
        """
        key, answer_key = f"{what}/{self.rank}", f"{what}/answer"
        try:
            self.store.set(key, _spell(mine))
            if self.rank == 0:
                self.store.set(answer_key, _spell(self._answer(what, type(mine), judge)))
            self.store.wait([answer_key], timedelta(seconds=PATIENCE * self.timeout_s))
            answer = msgspec.json.decode(self.store.get(answer_key), type=_Answer)
        except RuntimeError:  # of torch: the store is gone, or has nothing to say
            raise RanksLostError((0,), what, PATIENCE * self.timeout_s) from None
        if answer.missing:
            raise RanksLostError(answer.missing, what, self.timeout_s)
        return msgspec.json.decode(answer.result, type=kind)

    def _answer(self, what: str, given: type[T], judge: Callable[[list[T]], R]) -> _Answer:
        keys = [f"{what}/{rank}" for rank in range(self.size)]
        try:
            self.store.wait(keys, timedelta(seconds=self.timeout_s))
        except RuntimeError:
            missing = tuple(rank for rank, key in enumerate(keys) if not self.store.check([key]))
            if missing:
                return _Answer("", missing)
        everyone = [msgspec.json.decode(self.store.get(key), type=given) for key in keys]
        return _Answer(_spell(judge(everyone)))

    def leave(self, lost: Collection[int] = ()) -> None:
        """Go; rank 0, which may hold the store, after all others or a few seconds.

        Args:
            lost: ranks that are gone already.
        """
        try:
            self.store.set(f"left/{self.rank}", "")
            if self.rank == 0:
                keys = [f"left/{rank}" for rank in range(self.size) if rank not in lost]
                self.store.wait(keys, timedelta(seconds=GRACE_S))
        except RuntimeError:
            return


def _spell(value: object) -> str:
    """A value as text for a store."""
    return msgspec.json.encode(value).decode()

"""Council: ranks decide together over nothing but a store, and find out which of them are gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from reshard_executors.doctor.pulse import Pulse
from reshard_executors.lane import within
from reshard_executors.pauses import pauses
from reshard_executors.spelling import spell_ranks_have
from reshard_planner.errors import ExecutionError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

T = TypeVar("T")
R = TypeVar("R")

PATIENCE = 1.5
"""How much longer other ranks wait than rank 0, which tells them who is missing."""

ANSWER_S = 1.0
"""How much longer than it should take the store may take to answer, until it counts as hanging."""

GRACE_S = 5.0
"""How long rank 0 stays at the end for those that have not read its last word."""


LAST_PAUSE_S: Final = 0.05
"""Longest time from one look at the store to the next in small worlds: there are many steps."""

STORE_GONE: Final = "the store is gone, and with it the process that keeps it, rank 0 or torchrun's agent"


class RanksLostError(ExecutionError):
    """Ranks did not come to a decision.

    Attributes:
        ranks: which.
        missed: what they have not done.
    """

    def __init__(self, ranks: Sequence[int], missed: str) -> None:
        """Say who was missed.

        Args:
            ranks: which.
            missed: what they have not done, such as ``come to X within 5 s``.
        """
        super().__init__(
            f"{spell_ranks_have(ranks)} not {missed}; expected all ranks to be started together and to stay"
        )
        self.ranks, self.missed = tuple(ranks), missed


@dataclass(frozen=True, slots=True)
class _Answer:
    """What rank 0 tells the others: the result, or who is missing, and what they have not done."""

    result: str
    missing: tuple[int, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why ranks cannot go on.

    Attributes:
        text: in words.
        ranks: which of them say so.
    """

    text: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Word:
    """What a rank says at the end of a step: why it cannot go on; None if it can."""

    problem: str | None


class Council:
    """All ranks of a world, at one store."""

    def __init__(self, store: Store, rank: int, size: int, timeout_s: float) -> None:
        """Come to the store, and give signs of life there; waits for nobody.

        Args:
            store: the same for all ranks, and not used before; its keys are ours.
            rank: of this process.
            size: number of ranks.
            timeout_s: how long ranks wait for one another at each decision.

        Raises:
            RanksLostError: if the store is gone.
        """
        self.store, self.rank, self.size = store, rank, size
        self.timeout_s = timeout_s
        try:
            self.pulse = Pulse(store, rank)
        except RuntimeError:
            raise RanksLostError((0,), f"begun: {STORE_GONE}") from None

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
            if self.rank == 0:
                self.store.set(key, _spell(mine))
                answer = self._answer(what, type(mine), judge)
                self.store.set(answer_key, _spell(answer))
            else:
                hearing = partial(self._hear, what, key, _spell(mine), answer_key)
                answer = within(PATIENCE * self.timeout_s + ANSWER_S, hearing)
        except RuntimeError:  # of torch
            raise RanksLostError((0,), f"come to {what}: {STORE_GONE}") from None
        except TimeoutError:
            raise RanksLostError((0,), f"come to {what}: the store has not answered") from None
        if answer.missing:
            raise RanksLostError(answer.missing, answer.why)
        return msgspec.json.decode(answer.result, type=kind)

    def _hear(self, what: str, key: str, mine: str, answer_key: str) -> _Answer:
        """What rank 0 says, once this rank has given its own; torch may wait for the store without end."""
        self.store.set(key, mine)
        self._await(what, {0: answer_key}, PATIENCE * self.timeout_s)
        return msgspec.json.decode(self.store.get(answer_key), type=_Answer)

    def _answer(self, what: str, given: type[T], judge: Callable[[list[T]], R]) -> _Answer:
        """What rank 0 says, once all ranks have come or some will not."""
        keys = {rank: f"{what}/{rank}" for rank in range(self.size)}
        try:
            self._await(what, keys, self.timeout_s)
        except RanksLostError as error:
            return _Answer("", error.ranks, error.missed)
        everyone = [msgspec.json.decode(self.store.get(key), type=given) for key in keys.values()]
        return _Answer(_spell(judge(everyone)))

    def _await(self, what: str, keys: Mapping[int, str], patience_s: float) -> None:
        """Wait for ranks to write what each of them is to write.

        Raises:
            RanksLostError: if some have not in time, or ranks have ended that are still needed.
            RuntimeError: if the store is gone.
        """
        until, pause_s = time.monotonic() + patience_s, pauses(self.size, LAST_PAUSE_S)
        missing = dict(keys)
        while not self.store.check(list(missing.values())):
            missing = {rank: key for rank, key in missing.items() if not self.store.check([key])}
            ended = self.pulse.find_ended(range(self.size) if self.rank == 0 else (0,))
            if ended:
                reasons = "; ".join(dict.fromkeys(ended.values()))
                raise RanksLostError(tuple(ended), f"stayed: {reasons}")
            if missing and time.monotonic() > until:
                raise RanksLostError(tuple(missing), f"come to {what} within {patience_s:g} s")
            time.sleep(next(pause_s))

    def proceed(self, what: str, problem: str | None) -> Trouble | None:
        """Wait for all ranks at a step, and hear whether they can go on; collective.

        Args:
            what: name of the step, never used before.
            problem: why this rank cannot go on; None if it can.

        Returns:
            What the first rank with a problem says; None without. The same on all ranks.

        Raises:
            RanksLostError: as :meth:`decide`.
        """
        found = self.decide(what, _Word(problem), _first_trouble, list[Trouble])
        return found[0] if found else None

    def leave(self, lost: Collection[int] = ()) -> None:
        """Go; rank 0, which may hold the store, after all others or a few seconds.

        Args:
            lost: ranks that are gone already.
        """
        self.pulse.close()

        def work() -> None:
            self.store.set(f"left/{self.rank}", "")
            if self.rank == 0:
                keys = [f"left/{rank}" for rank in range(self.size) if rank not in lost]
                self.store.wait(keys, timedelta(seconds=GRACE_S))

        with suppress(RuntimeError, TimeoutError):
            within(GRACE_S + ANSWER_S if self.rank == 0 else ANSWER_S, work)


def _first_trouble(everyone: list[_Word]) -> list[Trouble]:
    problems = {rank: word.problem for rank, word in enumerate(everyone) if word.problem is not None}
    texts = list(dict.fromkeys(problems.values()))[:1]
    return [Trouble(text, tuple(rank for rank in problems if problems[rank] == text)) for text in texts]


def _spell(value: object) -> str:
    """A value as text for a store."""
    return msgspec.json.encode(value).decode()

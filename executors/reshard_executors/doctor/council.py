"""Council: ranks decide together over nothing but a store, and find out which of them are gone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import msgspec

from reshard_executors.spelling import spell_ranks_have
from reshard_planner.errors import ExecutionError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

T = TypeVar("T")
R = TypeVar("R")

PATIENCE = 1.5
"""How much longer other ranks wait than rank 0, which tells them who is missing."""

GRACE_S = 5.0
"""How long rank 0 stays at the end for those that have not read its last word."""


class RanksLostError(ExecutionError):
    """Ranks did not come to a decision.

    Attributes:
        ranks: which.
    """

    def __init__(self, ranks: Sequence[int], what: str, timeout_s: float) -> None:
        """Say who was missed, and where."""
        super().__init__(
            f"{spell_ranks_have(ranks)} not come to {what} within {timeout_s:g} s; expected all ranks to be"
            " started together and to stay"
        )
        self.ranks = tuple(ranks)


@dataclass(frozen=True, slots=True)
class _Answer:
    """What rank 0 tells the others: the result, or who is missing."""

    result: str
    missing: tuple[int, ...] = ()


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
        try:
            self.store.set(f"left/{self.rank}", "")
            if self.rank == 0:
                keys = [f"left/{rank}" for rank in range(self.size) if rank not in lost]
                self.store.wait(keys, timedelta(seconds=GRACE_S))
        except RuntimeError:
            return


def _first_trouble(everyone: list[_Word]) -> list[Trouble]:
    problems = {rank: word.problem for rank, word in enumerate(everyone) if word.problem is not None}
    texts = list(dict.fromkeys(problems.values()))[:1]
    return [Trouble(text, tuple(rank for rank in problems if problems[rank] == text)) for text in texts]


def _spell(value: object) -> str:
    """A value as text for a store."""
    return msgspec.json.encode(value).decode()

"""Survivors: the ranks that are left after a failure agree on who is lost, in a store that outlives ranks."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import Final, NamedTuple

from torch._C._distributed_c10d import PrefixStore, Store

from reshard_executors.agreement import LONGEST, not_met, reason
from reshard_executors.arguments import as_integer
from reshard_executors.lane import within
from reshard_executors.pauses import pauses
from reshard_executors.resharder import DEFAULT_TIMEOUT
from reshard_executors.spelling import spell_ranks
from reshard_planner.errors import ExecutionError, InputError

GRACE: Final = timedelta(seconds=2)

READERS: Final = 16
"""Survivors that read what others say, in the order in which they come; as many again after every grace."""

ANSWER_S: Final = 10.0
"""How much longer than the timeout a store may take to answer, in seconds."""

AGREE: Final = "agree on who is lost"
"""What ranks meet to do here."""

RANKS: Final = "ranks"
CAME: Final = "came"
DECISION: Final = "decision"
"""Keys in the store: those who may come, how many have, and what came of it."""


class Word(NamedTuple):
    """What one survivor says.

    Attributes:
        rank: who it is.
        lost: whom it knows to be lost.
        step: its step.
    """

    rank: int
    lost: list[int]
    step: int


class Decision(NamedTuple):
    """What one survivor has decided for all.

    Attributes:
        lost: ranks that had not come, ascending.
        step: largest of those that had.
    """

    lost: list[int]
    step: int


def agree_on_lost(
    store: Store,
    rank: int,
    ranks: Collection[int],
    lost: Collection[int],
    *,
    step: int = 0,
    grace: timedelta = GRACE,
    timeout: timedelta = DEFAULT_TIMEOUT,
) -> tuple[tuple[int, ...], int]:
    """Agree with the other survivors of a failure on who is lost, and on the step to go on with.

    Every survivor calls this after its error. Whoever comes is alive, whatever others say. Ranks that any
    survivor calls lost may still come within ``grace``, all others within ``timeout``; the first survivor
    that has waited for as long decides for all. It ends at once when all ranks have come. A survivor that is
    lost after it came counts as alive here, and is lost in the next failure.

    Args:
        store: any store of torch that outlives ranks, under a prefix that is for this failure alone, such as
            ``PrefixStore(f"failure {number}", store)``; the same on all survivors.
        rank: the rank of the plan that this process plays.
        ranks: all ranks of the plan that failed; the same on all survivors, in any order.
        lost: those that this survivor knows to be lost, as ``ExecutionError.lost`` has them.
        step: where this survivor would go on, any integer.
        grace: how long ranks may take to come that a survivor calls lost, above 0; one that lives and
            takes longer is out.
        timeout: how long others may take, above 0; as long as their own error may take to come at least.

    Returns:
        The ranks that are lost, ascending, and the largest step of those that are not; the same for all
        survivors.

    Raises:
        InputError: if an argument is wrong, survivors differ in ``ranks``, or the rank has come before.
        ExecutionError: if this rank comes too late, so that the others go on without it; or if the store is
            gone, or has not answered within ``timeout`` and 10 s.
    """
    if not isinstance(store, Store):
        raise InputError(f"store is a {type(store).__name__}; expected a store of torch, such as a TCPStore")
    for name, value in (("grace", grace), ("timeout", timeout)):
        if not isinstance(value, timedelta) or not timedelta() < value <= LONGEST:
            raise InputError(
                f"{name} is {value!r}; expected a timedelta above 0 and up to {LONGEST.days} days"
            )
    known = sorted(set(_integers("ranks", ranks)))
    if not known:
        raise InputError("ranks is empty; expected all ranks of the plan")
    word = _checked(rank, known, lost, step)
    place = PrefixStore("reshard survivors", store)
    work = partial(_decide, place, word, known, grace.total_seconds(), timeout.total_seconds())
    patience_s = timeout.total_seconds() + ANSWER_S
    try:
        # a store may also leave its clients without an answer, as when its host is cut off
        decision = within(patience_s, work)
    except TimeoutError:
        raise ExecutionError(
            f"{not_met(AGREE)}: their store has not answered within {patience_s:g} s"
        ) from None
    except RuntimeError as failure:
        why = reason(failure).split(". ", 1)[0]
        raise ExecutionError(f"{not_met(AGREE)}: their store is gone: {why}") from failure
    if word.rank in decision.lost:
        raise ExecutionError(f"rank {word.rank} has come too late; the others go on without it")
    return tuple(decision.lost), decision.step


def _integers(name: str, values: object) -> list[int]:
    """A collection of ranks as integers.

    Raises:
        InputError: if it is none.
    """
    if not isinstance(values, Iterable):
        raise InputError(f"{name} is {values!r}; expected ranks, such as [3]")
    found = []
    for value in values:
        number = as_integer(value)
        if number is None:
            raise InputError(f"{name} has the entry {value!r}; expected an integer")
        found.append(number)
    return found


def _checked(rank: object, ranks: Sequence[int], lost: object, step: object) -> Word:
    """What this survivor says.

    Raises:
        InputError: if an argument is wrong.
    """
    own, at = as_integer(rank), as_integer(step)
    if own is None or own not in ranks:
        raise InputError(f"rank is {rank!r}; expected one of {spell_ranks(ranks)}")
    named = sorted(set(_integers("lost", lost)))
    strangers = sorted(set(named).difference(ranks))
    if strangers:
        raise InputError(f"lost has {strangers[0]}; expected some of {spell_ranks(ranks)}")
    if own in named:
        raise InputError(f"lost has {own}, which is this rank; expected others")
    if at is None:
        raise InputError(f"step is {step!r}; expected an integer")
    return Word(own, named, at)


def _decide(place: Store, word: Word, ranks: Sequence[int], grace_s: float, timeout_s: float) -> Decision:
    """Come, and wait until this survivor or another decides.

    Raises:
        InputError: if survivors differ in ranks, or this one has come before.
        RuntimeError: if the store is gone.
    """
    begin = time.monotonic()
    mine = spell_ranks(ranks, len(ranks))
    first = place.compare_set(RANKS, "", mine).decode(errors="replace")
    if first != mine:
        raise InputError(
            f"ranks differ between survivors: {mine} here, and {first} on one that came before;"
            " expected the same on all"
        )
    if place.add(f"rank {word.rank}", 1) > 1:
        raise InputError(
            f"rank {word.rank} has come to this store before; expected a prefix of its own for each failure"
        )
    words = Words(place)
    number = words.add(word)
    # of thousands only a few read what the others say; more do where these die
    read_after_s = min(timeout_s, (number - 1) // READERS * grace_s)
    pause_s = pauses(len(ranks))
    while not place.check([DECISION]):
        waited_s = time.monotonic() - begin
        if waited_s >= read_after_s:
            words.read()
            lost = [rank for rank in ranks if rank not in words.come]
            given_up = words.lost if waited_s >= grace_s else set[int]()
            if waited_s >= timeout_s or given_up.issuperset(lost):
                # of several that decide at a time one is first; who has come since learns that it is lost
                place.compare_set(DECISION, "", json.dumps(Decision(lost, words.step)))
                continue
        time.sleep(next(pause_s))
    return Decision(*json.loads(place.get(DECISION)))


class Words:
    """What survivors say, numbered as they come; each is read once.

    Attributes:
        come: who has said something.
        lost: whom any of them calls lost.
        step: the largest of their steps.
    """

    def __init__(self, place: Store) -> None:
        self._place = place
        self._count = 0
        self._awaited: list[str] = []
        self.come = set[int]()
        self.lost = set[int]()
        self.step = 0

    def add(self, word: Word) -> int:
        """Say something; its number, from 1."""
        number = self._place.add(CAME, 1)
        self._place.set(_key(number), json.dumps(word))
        self.come.add(word.rank)
        self.lost.update(word.lost)
        self.step = word.step
        return number

    def read(self) -> None:
        """Read what has been said since the last time."""
        count = self._place.add(CAME, 0)
        self._awaited += map(_key, range(self._count + 1, count + 1))
        self._count = count
        if not self._awaited:
            return
        said = self._awaited
        if not self._place.check(said):  # some have a number, and have not spoken yet, or died
            said = [key for key in said if self._place.check([key])]
        for word in (Word(*json.loads(text)) for text in self._place.multi_get(said)):
            self.come.add(word.rank)
            self.lost.update(word.lost)
            self.step = max(self.step, word.step)
        heard = set(said)
        self._awaited = [key for key in self._awaited if key not in heard]


def _key(number: int) -> str:
    return f"word {number}"

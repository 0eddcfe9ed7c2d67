"""Private groups: a process group of one's own, a lane that works on it, and a watch over its ranks.

Whatever may wait for other ranks runs in the lane. Callers wait for the lane and look at the watch, so that
they are released whatever the backend does; then the group is aborted, which releases the lane.
"""

from __future__ import annotations

import atexit
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final, NamedTuple, TypeVar

import torch.distributed as dist

from reshard_executors.agreement import Agreement, agree, not_met, reason
from reshard_executors.groups import (
    abort_group,
    destroy_group,
    group_device,
    make_private_group,
    members_of,
    position_in,
    private_store,
)
from reshard_executors.lane import Lane, Ticket
from reshard_executors.meeting import meet
from reshard_executors.watch import SILENCE, STORE_GONE, Watch, has_or_have
from reshard_planner.errors import ExecutionError, InputError, ReshardError

T = TypeVar("T")

TICK_S: Final = 0.2
"""How often a waiting caller looks at the watch, in seconds."""

OVERDUE_S: Final = 1.0
"""How much longer than the timeout a caller waits, so that the backend may say itself what timed out."""

RELEASE_S: Final = 2.0
"""How long an aborted lane may take to end before its group is left to it."""


class Whom(NamedTuple):
    """Whom a call waits for.

    Attributes:
        names: what each rank of the group is called in messages.
        peers: positions of those that it depends on most.
        met: whether all ranks have met just before.
    """

    names: Sequence[int]
    peers: Sequence[int]
    met: bool = False


class Waiting:
    """What the lane waits for at the moment: written by the lane, read by callers."""

    def __init__(self, held: _Held) -> None:
        """Wait for nothing."""
        self._held = held
        self._say: Callable[[], str] = str
        self._since = time.monotonic()
        self._for_all = False

    def begin(self, say: Callable[[], str], *, for_all: bool = False) -> None:
        """Begin to wait for something else.

        Args:
            say: says for what, as what goes before the reason where it fails.
            for_all: whether it takes as long as any rank goes forward.
        """
        self._say, self._for_all = say, for_all
        self._since = time.monotonic()
        if self._held.watch is not None:
            self._held.watch.move()

    @property
    def text(self) -> str:
        """What is waited for."""
        return self._say()

    @property
    def since(self) -> float:
        """When it began, or, waiting for all ranks, when one was last seen to go forward; monotonic."""
        watch = self._held.watch
        return max(self._since, watch.moved_at) if self._for_all and watch is not None else self._since


class PrivateGroup:
    """A process group of the ranks of another one, whose calls end even if ranks of it do not live.

    After a failure it is dead, as all ranks hear. The group that it was made of stays as it was.

    Attributes:
        members: ranks in the world, by position in the group; positions in a group of several jobs.
        position: of this process in the group.
        device: what collectives move.
        timeout: how long one step of a call may take.
    """

    def __init__(self, parent: dist.ProcessGroup | None, timeout: timedelta, lost_after: timedelta) -> None:
        """Make a group of the same ranks; collective over ``parent``, the whole world when None.

        Args:
            parent: who takes part.
            timeout: how long to wait for other ranks, here and in each step of a call.
            lost_after: how long a rank may give no sign of life.

        Raises:
            InputError: if there is no group, this process is not a member, or a time is not positive.
            ExecutionError: if the ranks do not meet within the timeout.
        """
        for name, value in (("timeout", timeout), ("lost_after", lost_after)):
            if not isinstance(value, timedelta) or value <= timedelta():
                raise InputError(f"{name} is {value!r}; expected a positive timedelta")
        self.members = tuple(members_of(parent))
        self.position = position_in(parent)
        self.device = group_device(parent)
        self.timeout = timeout
        self._failure: str | None = None
        self._held = _Held()
        self._lane = Lane("reshard")
        self._release = weakref.finalize(self, _release, self._lane, self._held)
        self._release.atexit = False  # what is to be done then is this:
        self._held.at_exit = partial(_end_with_process, weakref.ref(self))
        atexit.register(self._held.at_exit)
        self._waiting = Waiting(self._held)
        self._waiting.begin(lambda: "the ranks did not meet to make a group")
        made = partial(_make, self._held, parent, self.position, self.members, timeout, lost_after)
        self.wait(self._lane.ask(made))

    @property
    def everyone(self) -> Whom:
        """All ranks, called what they are in the world."""
        return Whom(self.members, ())

    def agree(
        self,
        what: str,
        facts: Mapping[str, str],
        problem: ReshardError | None = None,
        number: int = 0,
        whom: Whom | None = None,
    ) -> int:
        """Compare facts with all ranks; see :func:`reshard_executors.agreement.agree`.

        Returns:
            The largest of their numbers.

        Raises:
            ReshardError: the same on all ranks, if they cannot go on; the group lives on.
            ExecutionError: if they do not meet; the group is dead then.
        """

        def meet(group: dist.ProcessGroup, waiting: Waiting) -> Agreement:
            waiting.begin(lambda: not_met(what))
            return agree(group, self.device, facts, problem, what, number)

        agreement = self.wait(self.ask(meet, whom))
        if agreement.error is not None:
            raise agreement.error
        return agreement.most

    def ask(self, work: Callable[[dist.ProcessGroup, Waiting], T], whom: Whom | None = None) -> Ticket[T]:
        """Have the lane do something that waits for other ranks; all ranks ask for the same.

        Args:
            work: gets the group, and says what it waits for.
            whom: it waits for; :attr:`everyone` when None.

        Raises:
            ExecutionError: if the group is dead or closed.
        """
        group, watch = self._held.group, self._held.watch
        if not self._release.alive or group is None or watch is None:
            raise ExecutionError(f"the process group is closed: {self._failure or 'expected a new one'}")
        whom = whom or self.everyone
        watch.begin(whom.names, whom.peers, met=whom.met)
        self._waiting.begin(lambda: "the ranks did not meet to begin a call")
        return self._lane.ask(partial(work, group, self._waiting))

    def wait(self, ticket: Ticket[T]) -> T:
        """Wait until the lane has done what it was asked to; its result.

        Raises:
            InputError: as raised in the lane, where all ranks agree on it; the group lives on.
            ExecutionError: naming what was waited for and why it failed, if a rank or the transport is lost.
                The group is dead then, on all ranks.
        """
        try:
            self._await(ticket)
            result = ticket.result()
        except InputError:
            self._end()
            raise
        except ExecutionError as error:
            raise ExecutionError(self._fail(str(error), find_silent=True)) from error.__cause__
        except BaseException as error:
            why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            self._fail(f"{self._waiting.text}: {why}")
            raise
        self._end()
        return result

    def _await(self, ticket: Ticket[T]) -> None:
        """Wait until something is done, or there is no use in waiting any longer."""
        while not ticket.done(TICK_S):
            trouble = self._trouble()
            if trouble is not None:
                raise ExecutionError(f"{self._waiting.text}: {trouble}")

    def _trouble(self) -> str | None:
        """Why the caller need not wait any longer."""
        watch = self._held.watch
        found = None if watch is None else watch.find_trouble()
        if (
            found is None
            and time.monotonic() > self._waiting.since + self.timeout.total_seconds() + OVERDUE_S
        ):
            found = f"nothing has happened for {self.timeout.total_seconds():g} s"
        return found

    def _end(self) -> None:
        self._waiting.begin(str)
        if self._held.watch is not None:
            self._held.watch.end()

    def _fail(self, text: str, *, find_silent: bool = False) -> str:
        """Tell the other ranks, and die; what failed, and what is known of the cause."""
        watch = self._held.watch
        causes = []
        if watch is not None:
            if watch.behind:
                causes.append(f"{has_or_have(watch.behind)} not come")
            first = watch.announce("; ".join([text, *causes]))
            if first is not None and first not in text:
                causes.append(f"before that, {first}")
            self._interrupt()
            silent = watch.find_silent() if find_silent and SILENCE not in text else []
            if silent:
                causes.append(f"{has_or_have(silent)} {SILENCE}")
            if watch.gone and STORE_GONE not in text:
                causes.append(STORE_GONE)
        whole = "; ".join([text, *causes])
        self._die(whole)
        return whole

    def abort(self, why: str) -> None:
        """Die, and tell the other ranks why. Nothing happens if the group is dead or closed."""
        if self._release.alive:
            if self._held.watch is not None:
                self._held.watch.announce(why)
            self._interrupt()
            self._die(why)

    def _interrupt(self) -> None:
        """End whatever waits in the group."""
        if self._held.group is not None:
            abort_group(self._held.group)

    def _die(self, why: str) -> None:
        self._failure = why
        self._close(RELEASE_S)

    def close(self) -> None:
        """Give the group up; that which it was made of stays. Closing twice does nothing."""
        self._close(self.timeout.total_seconds())

    def _close(self, patience_s: float) -> None:
        if self._release.detach() is not None:
            _release(self._lane, self._held, patience_s)


@dataclass(slots=True)
class _Held:
    """What must be given back."""

    group: dist.ProcessGroup | None = None
    watch: Watch | None = None
    at_exit: Callable[[], None] | None = None


def _make(
    held: _Held,
    parent: dist.ProcessGroup | None,
    position: int,
    members: Sequence[int],
    timeout: timedelta,
    lost_after: timedelta,
) -> None:
    """Meet, begin to watch, and connect; in the lane."""
    try:
        store, name = meet(private_store(parent), position, members, timeout)
        held.watch = Watch(store, position, len(members), lost_after.total_seconds())
        held.watch.begin(members, (), met=True)
        held.group = make_private_group(parent, name, timeout)
    except RuntimeError as failure:
        raise ExecutionError(f"the ranks did not meet to make a group: {reason(failure)}") from failure


def _end_with_process(private: weakref.ref[PrivateGroup]) -> None:
    """End the threads before Python ends: what they wait for would end the process badly."""
    alive = private()
    if alive is not None:
        alive.abort("its process has ended")


def _release(lane: Lane, held: _Held, patience_s: float | None = None) -> None:
    """Give everything back, in the lane once it is free; wait for that, but not for ever."""
    if held.at_exit is not None:
        atexit.unregister(held.at_exit)
    if held.watch is not None:
        held.watch.close()
    given_back = lane.ask(partial(_give_back, held))
    lane.close()
    if patience_s is not None:
        given_back.done(patience_s)


def _give_back(held: _Held) -> None:
    watch, held.watch = held.watch, None
    group, held.group = held.group, None
    if watch is not None:
        watch.close()  # again if it was there before; not before if it was made meanwhile
    if group is not None:
        destroy_group(group)

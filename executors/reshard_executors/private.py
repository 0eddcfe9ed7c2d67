"""Private groups: a process group of one's own, a lane that works on it, and a watch over its ranks.

Whatever may wait for other ranks runs in the lane. Callers wait for the lane and look at the watch, so that
they are released whatever the backend does; then the group is aborted, which releases the lane.
"""

from __future__ import annotations

import contextlib
import time
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Final, TypeVar

import torch
import torch.distributed as dist

from reshard_executors.agreement import LONGEST, Agreement, agree, meeting_to, not_met, reason
from reshard_executors.belongings import RELEASE_S, Belongings
from reshard_executors.groups import (
    backend_of,
    group_device,
    is_destroyed,
    make_private_group,
    members_of,
    position_in,
    private_store,
)
from reshard_executors.lane import Ticket, within
from reshard_executors.meeting import MAKE, meet, refuse
from reshard_executors.signs import DEAD, DONE, LEFT
from reshard_executors.spelling import spell_ranks_have
from reshard_executors.waiting import Waiting, Whom
from reshard_executors.watch import PAUSE_S, Watch
from reshard_planner.errors import ExecutionError, InputError, ReshardError

T = TypeVar("T")

BEGIN: Final = "begin a call"
"""What the ranks meet to do."""

TICK_S: Final = 0.2
"""How often a waiting caller looks at the watch, in seconds."""

SHORTEST: Final = timedelta(milliseconds=1)
"""Least that a timeout may be: backends count in milliseconds."""

OVERDUE_S: Final = 1.0
"""How much longer than the timeout a caller waits, so that the backend may say itself what timed out."""


FORKED: Final = (
    "this process was forked from the one that the process group belongs to; expected a new one of its own"
)
"""What is said of a group in a forked process."""


CLOSED: Final = "this rank has closed the process group"
"""What is said where another thread closes a group in use."""


class PrivateGroup:
    """A process group of the ranks of another one, whose calls end even if ranks of it do not live.

    After a failure it is dead, as all ranks hear. The group that it was made of stays as it was.

    Attributes:
        members: ranks in the world, by position in the group; positions in a group of several jobs.
        position: of this process in the group.
        device: what collectives move.
        timeout: how long one step of a call may take.
    """

    def __init__(
        self,
        parent: dist.ProcessGroup | None,
        timeout: timedelta,
        lost_after: timedelta,
        names: Sequence[int] | None = None,
    ) -> None:
        """Make a group of the same ranks; collective over ``parent``, the whole world when None.

        Args:
            parent: who takes part.
            timeout: how long to wait for other ranks, here and in each step of a call.
            lost_after: how long a rank may give no sign of life.
            names: what each rank of the group is called in messages, its rank in the world when None.

        Raises:
            InputError: if there is no group, this process is not a member, or a time is wrong.
            ExecutionError: if the ranks do not meet within the timeout.
        """
        self.members = tuple(members_of(parent))
        self.position = position_in(parent)
        self._names = self.members if names is None else tuple(names)
        for name, value in (("timeout", timeout), ("lost_after", lost_after)):
            if not isinstance(value, timedelta) or not SHORTEST <= value <= LONGEST:
                problem = f"{name} is {value!r}; expected a timedelta from 1 ms to {LONGEST.days} days"
                refuse_group(parent, self._names[self.position], problem)
                raise InputError(problem)
        self.device = group_device(parent)
        self.timeout = timeout
        self._failure: str | None = None
        self._closed = False
        self._held = Belongings()
        self._release = weakref.finalize(self, self._held.release)
        self._release.atexit = False  # belongings see to that themselves
        if self.device.type == "cuda":
            self._held.lane.ask(partial(torch.cuda.set_device, self.device))  # threads begin on device 0
        self._waiting = Waiting(self._held)
        self._waiting.begin(lambda: not_met(MAKE))
        made = partial(_make, self._held, parent, self.position, self._names, timeout, lost_after)
        self.wait(self._held.lane.ask(made))
        self._waiting.end()

    @property
    def everyone(self) -> Whom:
        """All ranks."""
        return Whom(self._names, ())

    @property
    def foreign(self) -> bool:
        """Whether it belongs to the process that this one was forked from."""
        return self._held.foreign

    def agree(
        self,
        purpose: str,
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
            waiting.begin(lambda: not_met(purpose))
            return agree(group, self.device, facts, problem, purpose, number)

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
        if self._held.foreign:
            raise ExecutionError(FORKED)
        if self._closed or group is None or watch is None:
            raise ExecutionError(f"the process group is closed: {self._failure or 'expected a new one'}")
        if is_destroyed(group):
            self._waiting.end()
            raise self._fail(
                "the process group was destroyed with the world; expected destroy_process_group after closing"
                " what uses it",
                (),
            )
        whom = whom or self.everyone
        watch.begin(whom.names, whom.peers, met=whom.met)
        self._waiting.begin(lambda: not_met(BEGIN))
        return self._held.lane.ask(partial(self._work, work, group, self._waiting))

    @staticmethod
    def _work(
        work: Callable[[dist.ProcessGroup, Waiting], T],
        group: dist.ProcessGroup,
        waiting: Waiting,
    ) -> T:
        """Do something in the lane; once that has ended well, nothing is waited for."""
        try:
            result = work(group, waiting)
        except InputError:  # which all ranks agree on: the group lives on
            waiting.end()
            raise
        waiting.end()
        return result

    def wait(self, ticket: Ticket[T]) -> T:
        """Wait until the lane has done what it was asked to; its result.

        Raises:
            InputError: as raised in the lane, where all ranks agree on it; the group lives on.
            ExecutionError: naming what was waited for and why it failed, if a rank or the transport is lost.
                The group is dead then, on all ranks.
        """
        try:
            self._await(ticket)
            return ticket.result()
        except InputError:
            raise
        except ExecutionError as error:
            _forget_frames(error)
            raise self._fail(str(error), error.lost or None) from error.__cause__
        except Exception as error:
            _forget_frames(error)
            raise self._fail(self._said(f"{type(error).__name__}: {reason(error)}"), ()) from error
        except BaseException as error:
            self._leave(self._said(type(error).__name__), LEFT)
            raise

    def _said(self, why: str) -> str:
        """A reason, after what was waited for."""
        return ": ".join(filter(None, (self._waiting.text, why)))

    def _await(self, ticket: Ticket[T]) -> None:
        """Wait until something is done, or there is no use in waiting any longer."""
        looked_at, stopped_s = time.monotonic(), 0.0
        while not ticket.done(TICK_S):
            now = time.monotonic()
            stopped_s += max(0.0, now - looked_at - PAUSE_S)  # this process was; the lane needs its time
            looked_at = now
            trouble = self._trouble(stopped_s)
            if trouble is not None:
                raise ExecutionError(self._said(trouble))

    def _trouble(self, stopped_s: float) -> str | None:
        """Why the caller need not wait any longer, given how long it could not look, in seconds."""
        watch = self._held.watch
        if self._held.foreign:
            return FORKED
        if self._closed:
            return CLOSED
        found = None if watch is None else watch.find_trouble()
        overdue_s = self.timeout.total_seconds() + OVERDUE_S
        if found is None and time.monotonic() > self._waiting.since + overdue_s + stopped_s:
            found = f"nothing has happened for {self.timeout.total_seconds():g} s"
            if watch is None:  # the meeting itself would have ended
                found = f"the store of the process group has not answered for {overdue_s:g} s"
        return found

    def _fail(self, text: str, suspects: Sequence[int] | None) -> ExecutionError:
        """Tell the other ranks, and die; an error that says what failed, and what is known of the cause.

        Args:
            text: what failed.
            suspects: names of the ranks to which a connection has failed; None where it may be any, unless
                another rank has said before what has failed.
        """
        watch = self._held.watch
        said, lost = [text], []
        try:
            if watch is not None and not self._held.foreign:
                if watch.behind:
                    said.append(f"{spell_ranks_have(watch.behind)} not come")
                first = watch.announce("; ".join(said))
                if first is not None and first not in text:
                    said.append(f"before that, {first}")
                self._held.interrupt()
                if suspects is None:
                    suspects = watch.names if first is None else ()
                found = watch.find_lost(suspects)
                if str(found) and str(found) not in "; ".join(said):
                    said.append(str(found))
                lost = watch.lost
                said += [each for each in watch.store_trouble if each not in text]
        finally:
            self._die("; ".join(said), DEAD)
        return ExecutionError("; ".join(said), lost=lost)

    def abort(self, why: str, *, leaves: bool = False) -> None:
        """Die, and tell the other ranks why. Nothing happens if the group is dead or closed.

        Args:
            why: said to the others.
            leaves: whether this rank does not come back, so that the others count it as lost.
        """
        if not self._closed:
            self._leave(why, LEFT if leaves else DEAD)

    def _leave(self, why: str, last_sign: bytes) -> None:
        try:
            self._held.leave(why)
        finally:
            self._die(why, last_sign)

    def _die(self, why: str, last_sign: bytes) -> None:
        self._failure = why
        self._waiting.end(well=False)
        self._close(RELEASE_S, last_sign)

    def close(self) -> None:
        """Give the group up; that which it was made of stays. Closing twice does nothing."""
        self._close(self.timeout.total_seconds(), DONE)

    def _close(self, patience_s: float, last_sign: bytes) -> None:
        self._closed = True
        if self._release.alive:
            self._held.release(patience_s, last_sign)
            self._release.detach()  # only now, so that an interrupted close is made up for


def refuse_group(parent: dist.ProcessGroup | None, name: int, problem: str) -> None:
    """Tell all ranks that make, or will make, a private group of the same ranks why it cannot be.

    Args:
        parent: who takes part; this process is a member.
        name: of this rank.
        problem: what is wrong on it.
    """
    position, said = position_in(parent), f"rank {name}: {problem}"
    with contextlib.suppress(TimeoutError, RuntimeError):  # the store may be gone, and not even answer then
        within(RELEASE_S, lambda: refuse(private_store(parent), position, said))


def _make(
    held: Belongings,
    parent: dist.ProcessGroup | None,
    position: int,
    names: Sequence[int],
    timeout: timedelta,
    lost_after: timedelta,
) -> None:
    """Meet, begin to watch, and connect; in the lane."""
    with meeting_to(MAKE):
        store, name = meet(private_store(parent), position, names, timeout, lambda: held.given_up)
        held.watch = Watch(store, position, len(names), lost_after.total_seconds())
        held.watch.begin(names, (), met=True)
        if held.given_up is not None:  # while the last ranks came
            held.watch.announce(held.given_up)
            raise ExecutionError(f"{not_met(MAKE)}: {held.given_up}")
        held.backend = backend_of(parent)
        held.group = make_private_group(parent, name, timeout)


def _forget_frames(error: BaseException) -> None:
    """Clear the frames that an error of the lane keeps alive, and with them tensors and groups."""
    seen: BaseException | None = error
    while seen is not None:
        traceback.clear_frames(seen.__traceback__)
        seen = seen.__cause__ or seen.__context__

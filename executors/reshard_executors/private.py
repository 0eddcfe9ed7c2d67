"""Private groups: a process group of one's own, a lane that works on it, and a watch over its ranks.

Whatever may wait for other ranks runs in the lane. Callers wait for the lane and look at the watch, so that
they are released whatever the backend does; then the group is aborted, which releases the lane.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final, NamedTuple, TypeVar

import torch
import torch.distributed as dist

from reshard_executors.agreement import Agreement, agree, meeting_to, not_met, reason
from reshard_executors.groups import (
    abort_group,
    backend_of,
    destroy_group,
    group_device,
    make_private_group,
    members_of,
    position_in,
    private_store,
)
from reshard_executors.lane import Lane, Ticket
from reshard_executors.meeting import MAKE, meet
from reshard_executors.spelling import spell_ranks_have
from reshard_executors.watch import SILENCE, STORE_GONE, Watch
from reshard_planner.errors import ExecutionError, InputError, ReshardError

T = TypeVar("T")

BEGIN: Final = "begin a call"
"""What the ranks meet to do."""

TICK_S: Final = 0.2
"""How often a waiting caller looks at the watch, in seconds."""

OVERDUE_S: Final = 1.0
"""How much longer than the timeout a caller waits, so that the backend may say itself what timed out."""

EXIT_S: Final = 10.0
"""How long a process that ends waits for its threads at most."""

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
        if self.device.type == "cuda":
            self._lane.ask(partial(torch.cuda.set_device, self.device))  # threads begin on device 0
        self._release = weakref.finalize(self, _release, self._lane, self._held)
        self._release.atexit = False  # what is to be done then is this:
        self._held.at_exit = partial(_end_with_process, self._lane, self._held)
        atexit.register(self._held.at_exit)
        self._waiting = Waiting(self._held)
        self._waiting.begin(lambda: not_met(MAKE))
        made = partial(_make, self._held, parent, self.position, self.members, timeout, lost_after)
        self.wait(self._lane.ask(made))

    @property
    def everyone(self) -> Whom:
        """All ranks, called what they are in the world."""
        return Whom(self.members, ())

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
        if not self._release.alive or group is None or watch is None:
            raise ExecutionError(f"the process group is closed: {self._failure or 'expected a new one'}")
        whom = whom or self.everyone
        watch.begin(whom.names, whom.peers, met=whom.met)
        self._waiting.begin(lambda: not_met(BEGIN))
        return self._lane.ask(partial(self._work, work, group, self._waiting, watch))

    @staticmethod
    def _work(
        work: Callable[[dist.ProcessGroup, Waiting], T],
        group: dist.ProcessGroup,
        waiting: Waiting,
        watch: Watch,
    ) -> T:
        """Do something in the lane; once that has ended well, nothing is waited for."""
        result = work(group, waiting)
        waiting.begin(str)
        watch.end()
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
            raise ExecutionError(self._fail(str(error), find_silent=True)) from error.__cause__
        except Exception as error:
            _forget_frames(error)
            text = f"{self._waiting.text}: {type(error).__name__}: {reason(error)}"
            raise ExecutionError(self._fail(text)) from error
        except BaseException as error:
            self._fail(f"{self._waiting.text}: {type(error).__name__}")
            raise

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

    def _fail(self, text: str, *, find_silent: bool = False) -> str:
        """Tell the other ranks, and die; what failed, and what is known of the cause."""
        watch = self._held.watch
        said = [text]
        try:
            if watch is not None:
                if watch.behind:
                    said.append(f"{spell_ranks_have(watch.behind)} not come")
                first = watch.announce("; ".join(said))
                if first is not None and first not in text:
                    said.append(f"before that, {first}")
                _interrupt(self._held)
                silent = watch.find_silent() if find_silent and SILENCE not in text else []
                if silent:
                    said.append(f"{spell_ranks_have(silent)} {SILENCE}")
                if watch.gone and STORE_GONE not in text:
                    said.append(STORE_GONE)
        finally:
            self._die("; ".join(said))
        return "; ".join(said)

    def abort(self, why: str) -> None:
        """Die, and tell the other ranks why. Nothing happens if the group is dead or closed."""
        if self._release.alive:
            try:
                if self._held.watch is not None:
                    self._held.watch.announce(why)
                _interrupt(self._held)
            finally:
                self._die(why)

    def _die(self, why: str) -> None:
        self._failure = why
        self._waiting.begin(str)
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
    backend: str = ""
    watch: Watch | None = None
    at_exit: Callable[[], None] | None = None
    released: bool = False


def _make(
    held: _Held,
    parent: dist.ProcessGroup | None,
    position: int,
    members: Sequence[int],
    timeout: timedelta,
    lost_after: timedelta,
) -> None:
    """Meet, begin to watch, and connect; in the lane."""
    with meeting_to(MAKE):
        store, name = meet(private_store(parent), position, members, timeout)
        held.watch = Watch(store, position, len(members), lost_after.total_seconds())
        held.watch.begin(members, (), met=True)
        held.backend = backend_of(parent)
        held.group = make_private_group(parent, name, timeout)


def _interrupt(held: _Held) -> None:
    """End whatever waits in the group, if the backend lets itself be interrupted in time."""
    if held.group is not None:
        aborting = threading.Thread(target=_abort, args=(held.group, held.backend), daemon=True)
        aborting.start()
        aborting.join(RELEASE_S)


def _abort(group: dist.ProcessGroup, backend: str) -> None:
    with contextlib.suppress(Exception):  # such as of a group that its owner has destroyed
        abort_group(group, backend)


def _end_with_process(lane: Lane, held: _Held) -> None:
    """End the threads before Python ends: what they wait for would end the process badly."""
    if not held.released:
        if held.watch is not None:
            held.watch.announce("its process has ended")
        _interrupt(held)
        _release(lane, held)
    lane.join(EXIT_S)
    if held.watch is not None:
        held.watch.join(EXIT_S)


def _release(lane: Lane, held: _Held, patience_s: float | None = None) -> None:
    """Give everything back, in the lane once it is free; wait for that, but not for ever."""
    held.released = True
    if held.watch is not None:
        held.watch.close()
    given_back = lane.ask(partial(_give_back, held))
    lane.close()
    if patience_s is not None:
        given_back.done(patience_s)


def _give_back(held: _Held) -> None:
    group, held.group = held.group, None
    if held.watch is not None:
        held.watch.close()  # it may have been made meanwhile
    if group is not None:
        destroy_group(group)
    if held.watch is not None:
        held.watch.join(RELEASE_S)
    if held.at_exit is not None:  # only now may the process end as it likes
        atexit.unregister(held.at_exit)


def _forget_frames(error: BaseException) -> None:
    """Clear the frames that an error of the lane keeps alive, and with them tensors and groups."""
    seen: BaseException | None = error
    while seen is not None:
        traceback.clear_frames(seen.__traceback__)
        seen = seen.__cause__ or seen.__context__

"""Resharder: runs the programs of a plan on torch.distributed, one rank per process."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Final, Self, TypeVar

import torch
import torch.distributed as dist

from reshard_executors.agreement import reason
from reshard_executors.arguments import names_of, played_ranks, usable_device
from reshard_executors.binding import LocalTensors
from reshard_executors.groups import members_of
from reshard_executors.lane import Ticket
from reshard_executors.private import FORKED, PrivateGroup
from reshard_executors.rank import BoundRun
from reshard_executors.record import Outcome, Refit, RunRecord
from reshard_executors.running import Running, check_contents
from reshard_executors.versions import Version, Versions, next_version, version_of
from reshard_executors.waiting import Waiting, Whom
from reshard_planner.errors import ExecutionError, InputError, ReshardError
from reshard_planner.ir.plan import Plan

T = TypeVar("T")

DEFAULT_TIMEOUT: Final = timedelta(minutes=5)
LOST_AFTER: Final = timedelta(seconds=10)

PLANS: Final = "compare their plans"
TENSORS: Final = "compare their tensors"
"""What the ranks meet to do."""

TO_MOVE: Final = "the list of tensors to move"
VERSION: Final = "the version"
"""What must be equal on all ranks in a run."""


class Resharder:
    """Runs one plan, any number of times.

    It is built on all ranks of a process group together, owns a private group over the same ranks, and is
    closed in the end, best as a context manager. All ranks call :meth:`run` together; a rank that takes no
    part in the plan calls it with empty mappings.

    Tensors move as raw bytes, so that every bit pattern survives. A run ends well on all ranks or fails on
    all, unless a rank dies while they tell one another that it has ended well. After an
    :class:`ExecutionError` a Resharder is dead and must be built anew; the group that it was given stays as
    it was.
    """

    def __init__(
        self,
        plan: Plan,
        group: dist.ProcessGroup | PrivateGroup | None = None,
        *,
        ranks: Sequence[int] | None = None,
        device: torch.device | str | None = None,
        timeout: timedelta = DEFAULT_TIMEOUT,
        lost_after: timedelta = LOST_AFTER,
        shadow: bool = False,
        checksums: bool = False,
        profile: bool = False,
        versions: Mapping[str, Version] | None = None,
        latest_version: int = 0,
    ) -> None:
        """Prepare the rank's program, agree with all other ranks on the plan, and connect with its peers.

        Args:
            plan: the same on every rank.
            group: processes that take part; all of the world when None. It may be one that
                :func:`reshard_executors.groups.join_jobs` made of several jobs. A private group is used
                itself, stays when this is closed, and dies with it; one at a time uses it.
            ranks: rank of the plan that each process of the group plays, in order of the group; one that the
                plan does not have plays no part. When None, every process plays its rank in the world.
            device: where tensors and staging buffers lie; when None the current CUDA device for NCCL, and
                the CPU for other backends.
            timeout: how long to wait for other ranks to meet, and for the messages of each slot; that of a
                private group, where one is given, as for ``lost_after``.
            lost_after: how long a rank may give no sign of life; longer than Python may be held up.
            shadow: write memory of this object's own, as large as the destinations, and change these only
                in the end, in ``wait``, so that a refit that fails leaves the old weights.
            checksums: compare the contents of destinations and sources after every run.
            profile: keep a timeline of every run.
            versions: what destinations hold already, as an earlier Resharder said.
            latest_version: the highest number that it knew.

        Raises:
            InputError: on every rank, if plan, ``ranks`` or options differ between ranks or do not fit the
                group, or domains mix hosts; on this one, if it is not in a group.
            VerificationError: on every rank, if the plan cannot be lowered to programs.
            ExecutionError: if the ranks do not meet within the timeout.
        """
        self._failure: str | None = None
        self._lost: tuple[int, ...] = ()
        self._running: Running | None = None
        self._refit: Refit | None = None
        self._raised: weakref.ref[ReshardError] | None = None
        self._versions = Versions(())
        self._borrowed = isinstance(group, PrivateGroup)
        prepared: Running | ReshardError
        members = group.members if isinstance(group, PrivateGroup) else members_of(group)
        played: Sequence[int] = members
        wrong: InputError | None = None
        try:
            played = played_ranks(plan, ranks, members)
        except InputError as error:  # which all ranks are told of once they have met
            wrong = error
        self._group = (
            group if isinstance(group, PrivateGroup) else PrivateGroup(group, timeout, lost_after, played)
        )
        self._whom = Whom(played, ())
        try:
            try:
                if wrong is not None:
                    raise wrong
                where = usable_device(device, self._group.device)
                prepared = Running.of(plan, played, self._group.position, where, shadow, checksums, profile)
                known = Versions(prepared.program.destinations, versions, latest_version)
            except ReshardError as error:
                prepared = error
            except RuntimeError as failure:
                prepared = ExecutionError(f"a rank cannot prepare to run: {reason(failure)}")
            problem = None if isinstance(prepared, Running) else prepared
            at = prepared.device if isinstance(prepared, Running) else self._group.device
            facts = {
                "the digest of the plan": str(getattr(plan, "digest", None)),
                "the list of ranks": str(played),
                "the kind of device": at.type,
                "shadow": str(shadow),
                "checksums": str(checksums),
            }
            self._group.agree(PLANS, facts, problem, whom=self._whom)
            if isinstance(prepared, Running):
                self._running, self._versions = prepared, known
                self._whom = Whom(played, prepared.program.peers)
                self._wait(partial(prepared.connect, plan.spec, played))
        except BaseException as error:
            self._die(error, told=isinstance(error, ReshardError))
            raise

    def _wait(self, work: Callable[[dist.ProcessGroup, Waiting], T]) -> T:
        """Have the lane do something right after all ranks have met."""
        return self._group.wait(self._group.ask(work, self._whom._replace(met=True)))

    @property
    def torn(self) -> bool:
        """Whether destinations may be partly written: from a run's first byte until it has ended well."""
        return self._versions.torn

    @property
    def versions(self) -> Mapping[str, Version]:
        """Number of the weights that each of this rank's destinations holds, by name of the tensor.

        0 if nothing has filled it, and None if it is torn; the next run completes it. Numbers that are not
        given to :meth:`run` never stand for two refits, on whatever ranks these ended well, as long as the
        next Resharder is told the latest.
        """
        return self._versions.held

    @property
    def latest_version(self) -> int:
        """The highest number that this rank knows of, also of a refit that has failed."""
        return self._versions.latest

    def run(
        self,
        sources: LocalTensors,
        destinations: LocalTensors,
        *,
        tensors: Collection[str] | None = None,
        version: int | None = None,
    ) -> RunRecord:
        """Fill the destinations from the sources; called on all ranks together.

        Args:
            sources: local tensors by name: of the shape and dtype that the layout gives, with any strides;
                one tensor, or one per layout that the rank is part of. Dtypes below eight bits are uint8
                tensors, packed along the last dimension.
            destinations: likewise; every element is overwritten, and nothing between them. They share no
                memory with one another or with sources, but for bytes of a tensor that stay in their place;
                with ``shadow`` none at all.
            tensors: names of the tensors to move, the same on every rank; all of them when None. Others need
                not be given.
            version: number of these weights, the same on every rank, such as the training step; one more
                than the highest that any rank knows when None.

        Returns:
            What this rank sent, and where its time went.

        Raises:
            LocalShapeError: on every rank before the first byte, if a tensor of any rank is missing, or is of
                another shape, dtype or device than expected.
            InputError: likewise, if a name is unknown or tensors share memory.
            ContentsError: on every rank, if checksums differ; naming tensors.
            ExecutionError: on every rank, if a rank or a message is lost; naming slot, peer and tensors.
        """
        return self.start(sources, destinations, tensors=tensors, version=version).wait()

    def start(
        self,
        sources: LocalTensors,
        destinations: LocalTensors,
        *,
        tensors: Collection[str] | None = None,
        version: int | None = None,
    ) -> Refit:
        """Begin a run and return as soon as all ranks have agreed; arguments and errors as for :meth:`run`.

        Until its ``wait`` has returned, sources must not be written, destinations not be used (with
        ``shadow`` not be written), and no other run be started. On CUDA the run begins after what the current
        stream has been given so far.
        """
        begin = time.perf_counter()
        running = self._ready()
        with self._failing():
            run, number = self._bind(running, sources, destinations, tensors, version)
            self._versions.begin(() if run.shadow is not None else run.names, number)
            running.follow_caller()
            prepare_s = time.perf_counter() - begin
            ticket = self._group.ask(partial(running.run, run, prepare_s), self._whom._replace(met=True))
            self._refit = refit = Refit(partial(self._finish, running, ticket, run, number))
        return refit

    def _ready(self) -> Running:
        """What runs have in common, if one may be started."""
        if self._group.foreign:
            raise ExecutionError(FORKED)
        if self._failure is not None:
            text = f"this Resharder has failed and must be built anew: {self._failure}"
            raise ExecutionError(text, lost=self._lost)
        if self._running is None:
            raise ExecutionError("this Resharder is closed; expected a new one")
        if self._refit is not None:
            raise ExecutionError("a run has been started; expected its wait before another one")
        return self._running

    def _bind(
        self,
        running: Running,
        sources: LocalTensors,
        destinations: LocalTensors,
        tensors: Collection[str] | None,
        version: int | None,
    ) -> tuple[BoundRun, int]:
        """Bind the program to the local tensors, and agree with all ranks that they are right."""
        run: BoundRun | None = None
        problem: ReshardError | None = None
        names = number = None
        try:
            number = version_of(version)
            names = names_of(tensors)
            # the lane, which writes what is made here, is not in that mode
            with running.on_stream(), torch.inference_mode(mode=False):
                run = running.program.bind(sources, destinations, names)
        except InputError as error:
            problem = error
        except Exception as failure:  # noqa: BLE001 - whatever it is, all ranks must hear of it
            problem = ExecutionError(
                f"rank {running.program.rank} cannot make its buffers: {reason(failure)}"
            )
        facts = {TO_MOVE: str(names and list(names)), VERSION: str(number)}
        latest = self._group.agree(TENSORS, facts, problem, self._versions.latest, self._whom)
        if run is None:
            raise ExecutionError("this rank cannot run, and the others do not know of it")
        return run, next_version(latest) if number is None else number

    def refuse(self, problem: ReshardError) -> None:
        """Take part in a run, on this rank, by telling all others that it cannot be; they call :meth:`run`.

        Args:
            problem: why; raised on every rank.

        Raises:
            ReshardError: the problem, or that of a rank before this one.
            ExecutionError: if the ranks do not meet, or this is closed.
        """
        self._ready()
        with self._failing():
            self._group.agree(TENSORS, dict.fromkeys((TO_MOVE, VERSION), ""), problem, whom=self._whom)

    def _finish(self, running: Running, ticket: Ticket[Outcome], run: BoundRun, version: int) -> RunRecord:
        with self._failing():
            record = check_contents(self._group.wait(ticket))
            if run.shadow is not None:
                self._versions.begin(run.names, version)
                record = running.publish(run.shadow, record)
            self._versions.hold(run.names, version)
            self._refit = None
        return replace(record, version=version)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Make the Resharder dead after an error, but for bad input that all ranks have agreed on."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, ReshardError):
                self._raised = weakref.ref(error)
            if not isinstance(error, InputError):
                self._die(error, told=isinstance(error, ReshardError))
            raise

    def _die(self, error: BaseException, *, told: bool) -> None:
        """Give everything up.

        Args:
            error: why.
            told: whether all ranks know of it; if not, they are told.
        """
        if self._group.foreign:
            return
        self._failure = reason(error)
        if isinstance(error, ExecutionError):
            self._lost = error.lost
        if self._refit is not None or not told:
            said = "" if self._failure == type(error).__name__ else f": {self._failure}"
            leaves = not isinstance(error, Exception)  # but by Ctrl-C, or the end of its process
            self._group.abort(f"it was ended by {type(error).__name__}{said}", leaves=leaves)
        elif not self._borrowed:
            self._group.close()
        self._running = self._refit = None

    def close(self) -> None:
        """Give the private group and all memory up; the caller's group stays. Closing twice does nothing.

        A run that was started is waited for.

        Raises:
            ExecutionError: if that run fails.
        """
        if self._group.foreign:
            return
        refit = self._refit
        try:
            if refit is not None:
                refit.wait()
        finally:
            self._running = None
            if not self._borrowed:
                self._group.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        place: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self._die(error, told=self._raised is not None and self._raised() is error)

"""Resharder: runs the programs of a plan on torch.distributed, one rank per process."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Final, Self

import torch
import torch.distributed as dist

from reshard_executors.agreement import HOSTS, add_up, agree_on_hosts, not_met, reason
from reshard_executors.arguments import check_ranks, names_of, usable_device
from reshard_executors.binding import LocalTensors
from reshard_executors.checksums import Checksums
from reshard_executors.lane import Ticket
from reshard_executors.private import PrivateGroup, Waiting, Whom
from reshard_executors.rank import BoundRun, RankProgram
from reshard_executors.record import Outcome, Refit, RunRecord
from reshard_executors.recorder import Recorder
from reshard_executors.shadow import Shadow
from reshard_executors.versions import Version, Versions, check_version
from reshard_planner.errors import ContentsError, ExecutionError, InputError, ReshardError
from reshard_planner.ir.plan import Plan

DEFAULT_TIMEOUT: Final = timedelta(minutes=5)
LOST_AFTER: Final = timedelta(seconds=10)

PLANS: Final = "their plans"
TENSORS: Final = "their tensors"
END: Final = "how the run ended"
"""What the ranks meet to compare."""

TO_MOVE: Final = "the list of tensors to move"
VERSION: Final = "the version"
"""What must be equal on all ranks in a run."""

SHOWN: Final = 8
"""Tensors that an error names."""


class Resharder:
    """Runs one plan, any number of times.

    It is built on all ranks of a process group together, owns a private group over the same ranks, and is
    closed in the end, best as a context manager. All ranks call :meth:`run` together; a rank that takes no
    part in the plan calls it with empty mappings.

    Tensors move as raw bytes, so that every bit pattern survives. A run ends well on all ranks or fails on
    all. After an :class:`ExecutionError` a Resharder is dead and must be built anew; the group that it was
    given stays as it was.
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

        Raises:
            InputError: on every rank, if plan, ``ranks`` or options differ between ranks or do not fit the
                group, or domains mix hosts; on this one, if it is not in a group.
            VerificationError: on every rank, if the plan cannot be lowered to programs.
            ExecutionError: if the ranks do not meet within the timeout.
        """
        self._failure: str | None = None
        self._program: RankProgram | None = None
        self._stream: torch.cuda.Stream | None = None
        self._refit: Refit | None = None
        self._checksums: Checksums | None = None
        self._versions = Versions(())
        self._profile = profile
        self._borrowed = isinstance(group, PrivateGroup)
        self._group = group if isinstance(group, PrivateGroup) else PrivateGroup(group, timeout, lost_after)
        self._device = self._group.device
        self._played = list(self._group.members if ranks is None else ranks)
        try:
            problem = self._prepare(plan, device, shadow, checksums, versions)
            facts = {
                "the digest of the plan": plan.digest,
                "the list of ranks": str(self._played),
                "the kind of device": self._device.type,
                "shadow": str(shadow),
                "checksums": str(checksums),
            }
            self._group.agree(PLANS, facts, problem, whom=self._whom)
            connecting = partial(self._meet_peers, plan)
            self._group.wait(self._group.ask(connecting, self._whom._replace(met=True)))
        except BaseException as error:
            self._die(error)
            raise

    def _prepare(
        self,
        plan: Plan,
        device: torch.device | str | None,
        shadow: bool,  # noqa: FBT001 - as it was given
        checksums: bool,  # noqa: FBT001 - as it was given
        versions: Mapping[str, Version] | None,
    ) -> ReshardError | None:
        """Prepare what this rank needs; the error that all ranks must hear of, if that fails."""
        try:
            check_ranks(plan, self._played, len(self._group.members))
            self._device = usable_device(device, self._group.device)
            if self._device.type == "cuda":
                self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            rank = self._played[self._group.position]
            positions = {each: at for at, each in enumerate(self._played)}
            self._program = RankProgram(plan, rank, positions, self._device, shadow=shadow)
            self._versions = Versions(self._program.destinations, versions)
            if checksums:
                self._checksums = Checksums(plan, rank, self._device)
        except ReshardError as error:
            return error
        except RuntimeError as failure:
            return ExecutionError(f"a rank cannot prepare to run: {reason(failure)}")
        return None

    def _meet_peers(self, plan: Plan, group: dist.ProcessGroup, waiting: Waiting) -> None:
        """In the lane."""
        waiting.begin(lambda: not_met(HOSTS))
        agree_on_hosts(group, self._group.device, plan.spec, self._played)
        if self._program is not None:
            self._program.connect(group, waiting.begin)

    @property
    def _whom(self) -> Whom:
        """Whom calls of the group wait for."""
        program = self._program
        return self._group.everyone if program is None else Whom(self._played, program.peers)

    @property
    def torn(self) -> bool:
        """Whether destinations may be partly written: from a run's first byte until it has ended well."""
        return self._versions.torn

    @property
    def versions(self) -> Mapping[str, Version]:
        """Number of the weights that each of this rank's destinations holds, by name of the tensor.

        0 if nothing has filled it, and None if it is torn; the next run completes it. Numbers that are not
        given to :meth:`run` never stand for two refits, on whatever ranks these ended well.
        """
        return self._versions.held

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
        program = self._ready()
        with self._failing():
            run, number = self._bind(program, sources, destinations, tensors, version)
            if run.shadow is None:
                self._versions.tear(run.names)
            if self._stream is not None:
                self._stream.wait_stream(torch.cuda.current_stream(self._device))
            prepare_s = time.perf_counter() - begin
            ticket = self._group.ask(
                partial(self._run, program, run, prepare_s), self._whom._replace(met=True)
            )
            self._refit = refit = Refit(partial(self._finish, ticket, run, number))
        return refit

    def _ready(self) -> RankProgram:
        """The program, if a run may be started."""
        if self._failure is not None:
            raise ExecutionError(f"this Resharder has failed and must be built anew: {self._failure}")
        if self._program is None:
            raise ExecutionError("this Resharder is closed; expected a new one")
        if self._refit is not None:
            raise ExecutionError("a run has been started; expected its wait before another one")
        return self._program

    def _bind(
        self,
        program: RankProgram,
        sources: LocalTensors,
        destinations: LocalTensors,
        tensors: Collection[str] | None,
        version: int | None,
    ) -> tuple[BoundRun, int]:
        """Bind the program to the local tensors, and agree with all ranks that they are right."""
        run: BoundRun | None = None
        problem: ReshardError | None = None
        names = None
        try:
            check_version(version)
            names = names_of(tensors)
            with self._on_stream(), torch.inference_mode(mode=False):  # the lane writes it without that mode
                run = program.bind(sources, destinations, names)
        except InputError as error:
            problem = error
        except Exception as failure:  # noqa: BLE001 - whatever it is, all ranks must hear of it
            problem = ExecutionError(f"rank {program.rank} cannot make its buffers: {reason(failure)}")
        facts = {TO_MOVE: str(names and list(names)), VERSION: str(version)}
        latest = self._group.agree(TENSORS, facts, problem, self._versions.latest, self._whom)
        if run is None:
            raise ExecutionError("this rank cannot run, and the others do not know of it")
        return run, latest + 1 if version is None else version

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

    def _run(
        self,
        program: RankProgram,
        run: BoundRun,
        prepare_s: float,
        group: dist.ProcessGroup,
        waiting: Waiting,
    ) -> Outcome:
        """Run all slots, and hear how they ended on all ranks; in the lane."""
        begin = time.perf_counter()
        recorder = Recorder(program.rank) if self._profile else None
        with self._on_stream():
            spent = program.run(group, run, waiting.begin, recorder)
            if self._stream is not None:
                self._stream.synchronize()
            done = time.perf_counter()
            sums = torch.zeros(1, dtype=torch.int64, device=self._device)
            if self._checksums is not None:
                sums = self._checksums.difference(run.sources, run.written, run.tensors)
            waiting.begin(lambda: not_met(END), for_all=True)
            found = add_up(group, sums, END)
        wrong = tuple(name for name, off in zip(run.names, found, strict=False) if off)
        end_s = time.perf_counter() - done
        timeline = None if recorder is None else recorder.timeline()
        return Outcome(RunRecord.of(spent, prepare_s, done - begin, end_s, timeline), wrong)

    def _finish(self, ticket: Ticket[Outcome], run: BoundRun, version: int) -> RunRecord:
        with self._failing():
            record, wrong = self._group.wait(ticket)
            if wrong:
                raise ContentsError(
                    f"tensors {', '.join(map(repr, wrong[:SHOWN]))}{' and others' * (len(wrong) > SHOWN)}"
                    " arrived with other contents than their sources have: the checksums differ"
                )
            if run.shadow is not None:
                record = self._publish(run.shadow, run.names, record)
            self._versions.hold(run.names, version)
            self._refit = None
        return replace(record, version=version)

    def _publish(self, shadow: Shadow, names: Sequence[str], record: RunRecord) -> RunRecord:
        """Copy what has arrived to the destinations."""
        begin = time.perf_counter()
        self._versions.tear(names)
        with self._on_stream(), torch.inference_mode(mode=False):
            shadow.publish()
        if self._stream is not None:
            self._stream.synchronize()
        spent_s = time.perf_counter() - begin
        return replace(record, elapsed_s=record.elapsed_s + spent_s, unpack_s=record.unpack_s + spent_s)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Make the Resharder dead after an error, but for bad input that all ranks have agreed on."""
        try:
            yield
        except InputError:
            raise
        except BaseException as error:
            self._die(error)
            raise

    def _die(self, error: BaseException) -> None:
        """Give everything up; of a ReshardError all ranks know, unless it came beside a run."""
        self._failure = reason(error)
        if self._refit is not None or not isinstance(error, ReshardError):
            self._group.abort(f"it was ended by {type(error).__name__}: {self._failure}")
        elif not self._borrowed:
            self._group.close()
        self._program = self._refit = None

    @contextlib.contextmanager
    def _on_stream(self) -> Iterator[None]:
        """Give everything to the Resharder's own CUDA stream, if it has one."""
        if self._stream is None:
            yield
            return
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            yield

    def close(self) -> None:
        """Give the private group and all memory up; the caller's group stays. Closing twice does nothing.

        A run that was started is waited for.

        Raises:
            ExecutionError: if that run fails.
        """
        if self._refit is not None:
            self._refit.wait()
        self._program = None
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
            self._die(error)

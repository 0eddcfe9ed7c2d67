"""Resharder: runs the programs of a plan on torch.distributed, one rank per process."""

from __future__ import annotations

import contextlib
import time
import traceback
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Self

import torch
import torch.distributed as dist

from reshard_executors.agreement import agree, agree_on_hosts, reason
from reshard_executors.arguments import check_ranks, names_of, usable_device
from reshard_executors.binding import LocalTensors
from reshard_executors.groups import group_device, make_private_group, members_of, position_in
from reshard_executors.lane import Lane, Ticket
from reshard_executors.rank import RankProgram
from reshard_executors.ready import ReadyExchange
from reshard_planner.errors import ExecutionError, InputError, ReshardError
from reshard_planner.ir.plan import Plan
from reshard_planner.transfer import Medium

DEFAULT_TIMEOUT = timedelta(minutes=5)

TO_MOVE = "the list of tensors to move"
"""What all ranks must agree on before a run."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What one run did on one rank, counted from the messages that it sent.

    Attributes:
        network_nbytes: bytes sent between domains.
        nvlink_nbytes: bytes sent within the domain.
        messages: messages sent.
        elapsed_s: time from the moment all ranks agreed to start, in seconds.
        prepare_s: time before that: checking and binding tensors, and agreeing.
        pack_s: time that the run spent packing, and copying within the rank. On CUDA this, like the two
            below, is the time to enqueue the work, which then goes on beside the host.
        wire_s: time that it spent posting messages and waiting for them.
        unpack_s: time that it spent unpacking.
    """

    network_nbytes: int
    nvlink_nbytes: int
    messages: int
    elapsed_s: float
    prepare_s: float
    pack_s: float
    wire_s: float
    unpack_s: float


class Refit:
    """A run that has been started; see :meth:`Resharder.start`."""

    def __init__(self, finish: Callable[[], RunRecord]) -> None:
        self._finish: Callable[[], RunRecord] | None = finish
        self._record: RunRecord | None = None

    def wait(self) -> RunRecord:
        """Wait until this rank's part is done; called again it says the same.

        Raises:
            ExecutionError: if a message failed or timed out; naming slot, peer and tensors.
        """
        if self._record is None:
            if self._finish is None:
                raise ExecutionError("this run has failed; its error was raised by the first wait")
            finish, self._finish = self._finish, None
            self._record = finish()
        return self._record


class Resharder:
    """Runs one plan, any number of times.

    It is built on all ranks of a process group together, owns a private group over the same ranks, and is
    closed in the end, best as a context manager. All ranks call :meth:`run` together; a rank that takes no
    part in the plan calls it with empty mappings.

    Tensors move as raw bytes, so that every bit pattern survives. After an :class:`ExecutionError` a
    Resharder is dead and must be built anew; the group that it was given stays as it was.
    """

    def __init__(
        self,
        plan: Plan,
        group: dist.ProcessGroup | None = None,
        *,
        ranks: Sequence[int] | None = None,
        device: torch.device | str | None = None,
        timeout: timedelta = DEFAULT_TIMEOUT,
        borrow: bool = False,
    ) -> None:
        """Prepare the rank's program, agree with all other ranks on the plan, and connect with its peers.

        Args:
            plan: the same on every rank.
            group: processes that take part; all of the world when None. It may be one that
                :func:`reshard_executors.groups.join_jobs` made of several jobs.
            ranks: rank of the plan that each process of the group plays, in order of the group; one that the
                plan does not have plays no part. When None, every process plays its rank in the world.
            device: where tensors and staging buffers lie; when None the current CUDA device for NCCL, and
                the CPU for other backends.
            timeout: how long to wait for the other end of each message; that of the group if it is borrowed.
            borrow: use ``group`` itself, which then does nothing else until this is closed, is unusable after
                an error, and is not given up by :meth:`close`. It saves the connections of a private group
                where many plans run over the same ranks, one after another.

        Raises:
            InputError: on every rank, if the plan or ``ranks`` differ between ranks, or do not fit the group,
                or if domains of the topology mix GPUs of different hosts; on this one, if there is no group,
                or it is not a member.
            VerificationError: on every rank, if the plan cannot be lowered to programs.
            ExecutionError: if the ranks do not meet within the timeout.
        """
        self._torn = False
        self._failure: str | None = None
        self._group: dist.ProcessGroup | None = None
        self._lane: Lane | None = None
        self._program: RankProgram | None = None
        self._stream: torch.cuda.Stream | None = None
        self._ticket: Ticket[RunRecord] | None = None
        members = members_of(group)
        self._meeting = group_device(group)
        self._device = self._meeting
        played = list(members if ranks is None else ranks)
        self._borrowed = borrow and group is not None
        try:
            own = group if borrow and group is not None else make_private_group(group, timeout)
        except RuntimeError as failure:
            raise ExecutionError(f"the ranks did not meet to make a group: {reason(failure)}") from failure
        self._group = own
        self._release = weakref.finalize(self, _give_back, None if self._borrowed else own)
        self._release.atexit = False  # groups end with the process anyway
        try:
            prepared = self._prepare(plan, played, position_in(group), len(members), device)
            problem = prepared if isinstance(prepared, ReshardError) else None
            facts = {
                "the digest of the plan": plan.digest,
                "the list of ranks": str(played),
                "the kind of device": self._device.type,
            }
            agree(own, self._meeting, facts, problem)
            agree_on_hosts(own, self._meeting, plan.spec, played)
            if isinstance(prepared, RankProgram):
                prepared.connect(own)
                self._program = prepared
        except BaseException:
            self._give_up()
            raise

    def _prepare(
        self,
        plan: Plan,
        played: Sequence[int],
        position: int,
        size: int,
        device: torch.device | str | None,
    ) -> RankProgram | ReshardError:
        """Prepare what this rank needs; the error that all ranks must hear of, if that fails."""
        try:
            check_ranks(plan, played, size)
            self._device = usable_device(device, self._meeting)
            positions = {rank: at for at, rank in enumerate(played)}
            self._lane = Lane("reshard")
            weakref.finalize(self, self._lane.close).atexit = False
            if self._device.type == "cuda":
                self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            return RankProgram(plan, played[position], positions, self._device)
        except ReshardError as error:
            return error
        except RuntimeError as failure:
            return ExecutionError(f"a rank cannot prepare to run: {reason(failure)}")

    @property
    def torn(self) -> bool:
        """Whether destinations are partly written: from the first byte of a run until it has ended well."""
        return self._torn

    def run(
        self,
        sources: LocalTensors,
        destinations: LocalTensors,
        *,
        tensors: Collection[str] | None = None,
    ) -> RunRecord:
        """Fill the destinations from the sources; called on all ranks together.

        Args:
            sources: local tensors by name: of the shape and dtype that the layout gives, with any strides;
                one tensor, or one per layout that the rank is part of. Dtypes below eight bits are uint8
                tensors, packed along the last dimension.
            destinations: likewise; every element is overwritten, and nothing between them. They share no
                memory with one another or with sources, but for bytes of a tensor that stay in their place.
            tensors: names of the tensors to move, the same on every rank; all of them when None. Others need
                not be given.

        Returns:
            What this rank sent, and where its time went.

        Raises:
            LocalShapeError: on every rank before the first byte, if a tensor of any rank is missing, or is of
                another shape, dtype or device than expected.
            InputError: likewise, if a name is unknown or tensors share memory.
            ExecutionError: if a message fails or times out; naming slot, peer and tensors.
        """
        return self.start(sources, destinations, tensors=tensors).wait()

    def start(
        self,
        sources: LocalTensors,
        destinations: LocalTensors,
        *,
        tensors: Collection[str] | None = None,
    ) -> Refit:
        """Begin a run and return as soon as all ranks have agreed; arguments and errors as for :meth:`run`.

        Until its ``wait`` has returned, sources must not be written, destinations not be used, and no other
        run be started. On CUDA the run begins after what the current stream has been given so far.
        """
        begin = time.perf_counter()
        if self._failure is not None:
            raise ExecutionError(f"this Resharder has failed and must be built anew: {self._failure}")
        group, lane, program = self._group, self._lane, self._program
        if group is None or lane is None or program is None:
            raise ExecutionError("this Resharder is closed; expected a new one")
        if self._ticket is not None:
            raise ExecutionError("a run has been started; expected its wait before another one")
        with self._failing():
            with self._on_stream():
                run = self._bind(group, program, sources, destinations, tensors)
            self._torn = True
            if self._stream is not None:
                self._stream.wait_stream(torch.cuda.current_stream(self._device))
            prepare_s = time.perf_counter() - begin
            self._ticket = lane.ask(partial(self._run, group, program, run, prepare_s))
        return Refit(partial(self._finish, self._ticket))

    def _finish(self, ticket: Ticket[RunRecord]) -> RunRecord:
        with self._failing():
            record = ticket.wait()
            self._torn, self._ticket = False, None
        return record

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Make the Resharder dead after an error that not all ranks have agreed on."""
        try:
            yield
        except InputError:
            raise
        except BaseException as error:
            self._failure = reason(error)
            self._give_up()
            _forget_locals(error)
            raise

    def _bind(
        self,
        group: dist.ProcessGroup,
        program: RankProgram,
        sources: LocalTensors,
        destinations: LocalTensors,
        tensors: Collection[str] | None,
    ) -> tuple[ReadyExchange, ...]:
        """Bind the program to the local tensors, and agree with all ranks that they are right."""
        run: tuple[ReadyExchange, ...] = ()
        problem: ReshardError | None = None
        names = None
        try:
            names = names_of(tensors)
            with torch.inference_mode(mode=False):  # what is made now is written by a thread without it
                run = program.bind(sources, destinations, names)
        except InputError as error:
            problem = error
        except Exception as failure:  # noqa: BLE001 - whatever it is, all ranks must hear of it
            problem = ExecutionError(f"rank {program.rank} cannot make its buffers: {reason(failure)}")
        agree(group, self._meeting, {TO_MOVE: str(names and list(names))}, problem, "their tensors")
        return run

    def refuse(self, problem: ReshardError) -> None:
        """Take part in a run, on this rank, by telling all others that it cannot be; they call :meth:`run`.

        Args:
            problem: why; raised on every rank.

        Raises:
            ReshardError: the problem, or that of a rank before this one.
            ExecutionError: if the ranks do not meet, or this is closed.
        """
        group = self._group
        if group is None:
            raise ExecutionError("this Resharder is closed; expected a new one")
        with self._failing():
            agree(group, self._meeting, {TO_MOVE: str(None)}, problem, "their tensors")

    def _run(
        self, group: dist.ProcessGroup, program: RankProgram, run: Sequence[ReadyExchange], prepare_s: float
    ) -> RunRecord:
        """Run all slots; in the lane."""
        begin = time.perf_counter()
        with self._on_stream():
            spent = program.run(group, run)
        if self._stream is not None:
            self._stream.synchronize()
        elapsed_s = time.perf_counter() - begin
        return RunRecord(
            spent.sent_nbytes[Medium.NETWORK],
            spent.sent_nbytes[Medium.NVLINK],
            spent.messages,
            elapsed_s,
            prepare_s,
            spent.pack_s,
            spent.wire_s,
            spent.unpack_s,
        )

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
        ticket = self._ticket
        if ticket is not None and self._group is not None:
            self._finish(ticket)
        self._give_up()

    def _give_up(self) -> None:
        """Close without waiting for anything."""
        self._group = self._program = None
        lane, self._lane = self._lane, None
        if lane is not None:
            lane.close()
        self._release()

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
            self._give_up()


def _give_back(group: dist.ProcessGroup | None) -> None:
    """Destroy a group; also called for a Resharder that nobody has closed."""
    if group is not None:
        with contextlib.suppress(ValueError):  # the caller may have destroyed all groups already
            dist.destroy_process_group(group)


def _forget_locals(error: BaseException) -> None:
    """Clear the frames that an error keeps alive, and with them the last references to the private group.

    Gloo closes its connections when nothing refers to the group and its works any more, and only that tells
    the other ranks before their timeout.
    """
    seen: BaseException | None = error
    while seen is not None:
        traceback.clear_frames(seen.__traceback__)
        seen = seen.__cause__

"""Resharder: runs the programs of a plan on torch.distributed, one rank per process."""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Self

import torch
import torch.distributed as dist

from reshard_executors.agreement import agree, reason
from reshard_executors.binding import LocalSide, LocalTensors, check_overlap
from reshard_executors.groups import group_device, make_private_group, members_of
from reshard_executors.memory import Memory
from reshard_executors.messages import lower_program
from reshard_executors.wire import Wire
from reshard_planner.errors import ExecutionError, InputError, ReshardError
from reshard_planner.ir.plan import Plan
from reshard_planner.ir.program import storage_nbytes
from reshard_planner.transfer import Medium

DEFAULT_TIMEOUT = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What one run did on one rank, counted from the messages that it sent.

    Attributes:
        network_nbytes: bytes sent between domains.
        nvlink_nbytes: bytes sent within the domain.
        messages: messages sent.
        elapsed_s: time from the moment all ranks agreed to start, in seconds.
    """

    network_nbytes: int
    nvlink_nbytes: int
    messages: int
    elapsed_s: float


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
    ) -> None:
        """Prepare the rank's program, and agree with all other ranks on the plan.

        Args:
            plan: the same on every rank.
            group: processes that take part; all of the world when None.
            ranks: rank of the plan that each process of the group plays, in order of the group; one that the
                plan does not have plays no part. When None, every process plays its rank in the world.
            device: where tensors and staging buffers lie; when None the current CUDA device for NCCL, and
                the CPU for other backends.
            timeout: how long to wait for the other end of each message.

        Raises:
            InputError: on every rank, if the plan or ``ranks`` differ between ranks, or do not fit the group;
                on this one, if there is no group, or it is not a member.
            VerificationError: on every rank, if the plan cannot be lowered to programs.
            ExecutionError: if the ranks do not meet within the timeout.
        """
        self._torn = False
        self._failure: str | None = None
        members = members_of(group)
        self._meeting = group_device(group)
        self._device = self._meeting if device is None else torch.empty(0, device=device).device
        played = list(members if ranks is None else ranks)
        try:
            self._group: dist.ProcessGroup | None = make_private_group(group, timeout)
        except RuntimeError as failure:
            raise ExecutionError(f"the ranks did not meet to make a group: {reason(failure)}") from failure
        facts = {
            "the digest of the plan": plan.digest,
            "the list of ranks": str(played),
            "the kind of device": self._device.type,
        }
        try:
            problem = self._try_to_prepare(plan, played, members)
            agree(self._group, self._meeting, facts, problem)
        except BaseException:
            self.close()
            raise

    def _try_to_prepare(
        self, plan: Plan, played: Sequence[int], members: Sequence[int]
    ) -> ReshardError | None:
        """Prepare what this rank needs; the error that all ranks must hear of, if that fails."""
        try:
            _check_ranks(plan, played, len(members))
            peers = dict(zip(played, members, strict=True))
            self._prepare(plan, played[members.index(dist.get_rank())], peers)
        except ReshardError as error:
            return error
        except RuntimeError as failure:
            return ExecutionError(f"a rank cannot make its staging buffers: {reason(failure)}")
        return None

    def _prepare(self, plan: Plan, rank: int, peers: Mapping[int, int]) -> None:
        """Lower the program of a rank; ``peers`` are the ranks in the world, by rank of the plan."""
        self._rank = rank
        self._itemsizes = [storage_nbytes(tensor.bits) for tensor in plan.spec.tensors]
        self._sources = LocalSide(plan.spec, rank, "src", self._device)
        self._destinations = LocalSide(plan.spec, rank, "dst", self._device)
        lowered = lower_program(plan.program(rank))
        self._exchanges = lowered.exchanges
        self._wire = Wire(plan, lowered, peers, self._device)

    @property
    def torn(self) -> bool:
        """Whether destinations are partly written: from the first byte of a run until it has ended well."""
        return self._torn

    def run(self, sources: LocalTensors, destinations: LocalTensors) -> RunRecord:
        """Fill the destinations from the sources; called on all ranks together.

        Args:
            sources: local tensors by name: contiguous, of the shape and dtype that the layout gives, one
                tensor or one per layout that the rank is part of. Dtypes below eight bits are uint8 tensors,
                packed along the last dimension.
            destinations: likewise; every element is overwritten. They share no memory with one another or
                with sources.

        Returns:
            What this rank sent.

        Raises:
            LocalShapeError: on every rank before the first byte, if a tensor of any rank is missing, has
                gaps, or is of another shape, dtype or device than expected.
            InputError: likewise, if a name is unknown or tensors share memory.
            ExecutionError: if a message fails or times out; naming slot, peer and tensors.
        """
        if self._failure is not None:
            raise ExecutionError(f"this Resharder has failed and must be built anew: {self._failure}")
        if self._group is None:
            raise ExecutionError("this Resharder is closed; expected a new one")
        try:
            memory = self._bind(self._group, sources, destinations)
            self._torn = True
            record = self._run(self._group, memory)
        except InputError:
            raise
        except BaseException as error:
            self._failure = reason(error)
            self.close()
            _forget_locals(error)
            raise
        self._torn = False
        return record

    def _bind(self, group: dist.ProcessGroup, sources: LocalTensors, destinations: LocalTensors) -> Memory:
        """Check the local tensors and agree with all ranks that they are right."""
        problem: InputError | None = None
        read, written = {}, {}
        try:
            read, written = self._sources.bind(sources), self._destinations.bind(destinations)
            check_overlap(
                (bound for bounds in read.values() for bound in bounds),
                (bound for bounds in written.values() for bound in bounds),
            )
        except InputError as error:
            problem = error
        agree(group, self._meeting, {}, problem)
        return Memory(self._itemsizes, read, written, self._device)

    def _run(self, group: dist.ProcessGroup, memory: Memory) -> RunRecord:
        before = dict(self._wire.sent_nbytes)
        messages = self._wire.messages
        start = time.perf_counter()
        for exchange in self._exchanges:
            try:
                self._wire.exchange(group, exchange, memory)
            except RuntimeError as failure:
                raise ExecutionError(
                    f"slot {exchange.slot} failed on rank {self._rank}: {reason(failure)}"
                ) from failure
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        elapsed_s = time.perf_counter() - start
        sent = {medium: nbytes - before[medium] for medium, nbytes in self._wire.sent_nbytes.items()}
        return RunRecord(sent[Medium.NETWORK], sent[Medium.NVLINK], self._wire.messages - messages, elapsed_s)

    def close(self) -> None:
        """Give the private group up; the caller's group stays. Closing twice does nothing."""
        group, self._group = self._group, None
        if group is not None and dist.is_initialized():
            with contextlib.suppress(ValueError):  # the caller may have destroyed all groups already
                dist.destroy_process_group(group)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        place: TracebackType | None,
    ) -> None:
        self.close()


def _forget_locals(error: BaseException) -> None:
    """Clear the frames that an error keeps alive, and with them the last references to the private group.

    Gloo closes its connections when nothing refers to the group and its works any more, and only that tells
    the other ranks before their timeout.
    """
    seen: BaseException | None = error
    while seen is not None:
        traceback.clear_frames(seen.__traceback__)
        seen = seen.__cause__


def _check_ranks(plan: Plan, played: Sequence[int], size: int) -> None:
    """Check that the processes of the group play every rank of the plan, once."""
    if len(played) != size:
        raise InputError(
            f"ranks has {len(played)} entries; expected one for each of the {size} processes of the group"
        )
    for rank in played:
        if isinstance(rank, bool) or not isinstance(rank, int):
            raise InputError(f"ranks has the entry {rank!r}; expected an integer")
    if len(set(played)) != size:
        raise InputError(f"ranks {list(played)} has a rank twice; expected distinct ranks")
    missing = sorted(set(plan.ranks) - set(played))
    if missing:
        raise InputError(
            f"the plan has ranks {missing}, which no process of the group plays (they play {sorted(played)});"
            " expected a larger group, or other ranks"
        )

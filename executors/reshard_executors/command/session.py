"""One process of a launched run: meets the others, runs the plan, and reports; the only part with torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from reshard_executors.agreement import meeting_to, reason
from reshard_executors.check import first_difference
from reshard_executors.checkpoint import open_values
from reshard_executors.command.codes import BAD_INPUT, DONE, FAILED, TRY_AGAIN
from reshard_executors.command.exits import STORE_STAY_S, CommandError, code_of
from reshard_executors.command.output import PrintError
from reshard_executors.command.reports import RankReport, Repeat, Tally
from reshard_executors.lane import within
from reshard_executors.launchers import RankInfo
from reshard_executors.record import RunRecord
from reshard_executors.resharder import Resharder
from reshard_executors.spelling import spell_ranks
from reshard_executors.values import Buffers, Values, empty_buffers, filled_buffers
from reshard_executors.worker import as_tensors
from reshard_executors.world import RanksMissingError, make_world
from reshard_planner.errors import ContentsError, ExecutionError, InputError, ReshardError
from reshard_planner.ir.plan import Plan
from reshard_planner.ir.timeline import Timeline

POISON = 0xA5
"""What every byte of the destinations is before a repeat that is checked."""

MAX_VOICES = 8
"""Ranks that say why they failed; after them others stay silent."""

VOICE_WAIT_S = 1.0
"""How long to ask the store, which may be gone, whether enough ranks have spoken."""

Tensors = dict[str, list[torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Order:
    """What one process is to do; the same in all of them, but for ``info``.

    Attributes:
        plan: plan file.
        info: what the launcher says of the process.
        ranks: rank of the plan that each process plays, all of them different; its own rank when None.
        checkpoint: safetensors file with the contents of the tensors; made up when None.
        repeat: how many runs are measured.
        warm_up: how many runs come before them.
        check: whether every element is compared after every run.
        profile: whether to record the last run as a timeline.
        timeout_s: how long ranks wait for each other, in seconds.
        lost_after_s: how long a rank may give no sign of life, in seconds.
        shadow: see :class:`reshard_executors.resharder.Resharder`.
        checksums: likewise.
        backend: of the world; when None what suits the machine.
    """

    plan: Path
    info: RankInfo
    ranks: tuple[int, ...] | None
    checkpoint: Path | None
    repeat: int
    warm_up: int
    check: bool
    profile: bool
    timeout_s: float
    lost_after_s: float
    shadow: bool
    checksums: bool
    backend: str | None

    @property
    def timeout(self) -> timedelta:
        return timedelta(seconds=self.timeout_s)


@dataclass(frozen=True, slots=True)
class _Part:
    """What this process plays."""

    plan: Plan
    rank: int
    values: Values
    sources: Buffers
    destinations: Buffers


class Say(Protocol):
    """Takes the name of each stage as it begins, and how far it is as it goes on."""

    def __call__(self, stage: str, detail: str = "") -> None:
        """See :meth:`reshard_executors.command.output.Progress.say`."""


Conclude = Callable[[Plan, Sequence[RankReport]], int]
"""Tells the results and returns the exit code; called on rank 0."""


def play(order: Order, say: Say, prepare: Callable[[], None], conclude: Conclude, tally: Tally) -> int:
    """Do one process's part of a launched run.

    Args:
        order: what to do.
        say: see :class:`Say`.
        prepare: what else must be possible on this rank before the run; raises an InputError if it is not.
        conclude: see :data:`Conclude`.
        tally: keeps what is measured, also where this fails.

    Returns:
        The exit code, the same on all ranks.

    Raises:
        CommandError: if some rank cannot go on.
        ReshardError: the same on all ranks, if the plan and they do not fit.
    """
    found, problem = _prepare(order, say, prepare)
    if problem is not None and order.info.launcher == "none":  # nobody else has to hear of it
        raise problem
    say("wait for all ranks")
    try:
        digest = "" if found is None else found.plan.digest
        device = make_world(order.info, order.backend, order.timeout, "run", digest)
    except InputError as error:  # such as a GPU that is missing on one host
        raise CommandError(code_of(error), str(problem or error), speaks=True) from None
    except ExecutionError as error:
        first_says_it = isinstance(error, RanksMissingError) and error.first_knows
        speaks = order.info.rank == 0 or problem is not None or not first_says_it
        raise CommandError(TRY_AGAIN, str(problem or error), speaks=speaks) from None
    try:
        part = _agree(found, problem, order)
        report = _run(order, part, device, say, tally)
        code = _conclude(part.plan, report, order.info, conclude)
    except ExecutionError as error:
        if isinstance(error, ContentsError):  # which all ranks have heard
            raise CommandError(FAILED, str(error), speaks=order.info.rank == 0) from None
        stay_s = STORE_STAY_S if order.info.rank == 0 else None
        raise CommandError(TRY_AGAIN, str(error), speaks=has_voice(), stay_s=stay_s) from None
    dist.destroy_process_group()
    return code


def _prepare(order: Order, say: Say, prepare: Callable[[], None]) -> tuple[_Part | None, ReshardError | None]:
    """Read and make everything that this rank needs; the error that all ranks must hear of, if that fails."""
    try:
        say("read the plan")
        plan = Plan.load(order.plan)
        if order.info.launcher == "none" and len(plan.ranks) > 1:
            raise InputError(_no_launcher(order.plan, len(plan.ranks)))
        rank = order.info.rank if order.ranks is None else order.ranks[order.info.rank]
        prepare()
        say("make tensors")
        values = open_values(plan.spec, order.checkpoint)
        sources = filled_buffers(plan, rank, "src", values)
        return _Part(plan, rank, values, sources, empty_buffers(plan, rank, "dst")), None
    except ReshardError as error:
        return None, error
    except MemoryError:
        return None, InputError("there is not enough memory for the tensors of the plan")


def _no_launcher(plan: Path, count: int) -> str:
    return (
        f"the plan has {count} ranks, and this process was started alone; expected a launcher, such as:"
        f" torchrun --nproc-per-node {count} -m reshard_executors run {plan}, or in a Slurm allocation:"
        f" srun --ntasks {count} python -m reshard_executors run {plan}"
    )


def _agree(found: _Part | None, problem: ReshardError | None, order: Order) -> _Part:
    """Go on only if all ranks can.

    Raises:
        CommandError: the same on all ranks, if some cannot, or were given other options.
    """
    options = {
        "--repeat": str(order.repeat),
        "--warm-up": str(order.warm_up),
        "--check": "given" if order.check else "not given",
        "--profile": "given" if order.profile else "not given",
    }
    own = None if problem is None else (code_of(problem), str(problem))
    everyone: list[tuple[tuple[int, str] | None, dict[str, str]]] = [(None, {})] * dist.get_world_size()
    with meeting_to("begin"):
        dist.all_gather_object(everyone, (own, options))
    rank = order.info.rank
    said: dict[tuple[int, str], list[int]] = {}
    for at, (words, _) in enumerate(everyone):
        if words is not None:
            said.setdefault(words, []).append(at)
    for name, value in everyone[0][1].items():
        for at, (_, given) in enumerate(everyone):
            if given[name] != value and not said:
                text = f"{name} is {value} on rank 0, but {given[name]} on rank {at}"
                raise CommandError(BAD_INPUT, f"{text}; expected the same on all", speaks=rank == 0)
    if said or found is None:
        texts = [
            text if ranks == [0] or len(ranks) == len(everyone) else f"{spell_ranks(ranks)}: {text}"
            for (_, text), ranks in said.items()
        ]
        raise CommandError(max(code for code, _ in said), "; ".join(texts), speaks=rank == 0)
    return found


def _run(order: Order, part: _Part, device: torch.device, say: Say, tally: Tally) -> RankReport:
    """Run the plan as often as asked, and compare what arrives."""
    plan, rank = part.plan, part.rank
    local = as_tensors(plan, "dst", part.destinations, rank)
    sources = _moved(as_tensors(plan, "src", part.sources, rank), device)
    destinations = _moved(local, device)
    timeline: Timeline | None = None
    say("connect")
    tally.plan, tally.rank = plan, rank
    with Resharder(
        plan,
        ranks=order.ranks,
        device=device,
        timeout=order.timeout,
        lost_after=timedelta(seconds=order.lost_after_s),
        shadow=order.shadow,
        checksums=order.checksums,
        profile=order.profile,
    ) as resharder:
        for number in range(-order.warm_up, order.repeat):
            name = "warm up" if number < 0 else f"repeat {number + 1} of {order.repeat}"
            if order.check:
                _poison(part.destinations)
                _copy(local, destinations)
            say("run", name)
            record = resharder.run(sources, destinations)
            timeline = record.timeline
            if number >= 0:
                tally.repeats.append(_repeat_of(record))
            if order.check:
                say("run", f"check of {name}")
                _copy(destinations, local)
                different = first_difference(plan, rank, part.destinations, part.values)
                tally.difference = tally.difference or different
    return tally.report(plan, timeline)


def _moved(tensors: Tensors, device: torch.device) -> Tensors:
    """Local tensors on a device; themselves where they are on it."""
    try:
        return {name: [tensor.to(device) for tensor in own] for name, own in tensors.items()}
    except RuntimeError as failure:
        raise ExecutionError(f"the tensors of this rank cannot be made: {reason(failure)}") from failure


def _copy(origin: Tensors, target: Tensors) -> None:
    """Copy all tensors that are not the same on both sides."""
    for name, own in origin.items():
        for one, other in zip(own, target[name], strict=True):
            if one is not other:
                other.copy_(one)


def _poison(buffers: Buffers) -> None:
    for own in buffers.values():
        for buffer in own:
            buffer.reshape(-1).view(np.uint8).fill(POISON)


def _repeat_of(record: RunRecord) -> Repeat:
    return Repeat(
        record.elapsed_s,
        record.network_nbytes,
        record.nvlink_nbytes,
        record.pack_s,
        record.wire_s,
        record.unpack_s,
    )


def _conclude(plan: Plan, report: RankReport, info: RankInfo, conclude: Conclude) -> int:
    """Gather what all ranks measured on rank 0, and hear from it how this ends."""
    first = info.rank == 0
    reports: list[RankReport | None] = [None] * info.world_size
    code = [FAILED]
    unprinted: Exception | None = None
    with meeting_to("report"):
        dist.gather_object(report, reports if first else None, dst=0)
    if first:
        try:
            code = [conclude(plan, [each for each in reports if each is not None])]
        except (PrintError, OSError) as error:  # which others have to hear of, too
            unprinted = error
            code = [DONE] if isinstance(error, PrintError) and error.unwanted else code
    with meeting_to("end"):
        dist.broadcast_object_list(code, src=0)
    if unprinted is not None:
        raise unprinted
    return code[0]


def has_voice() -> bool:
    """Whether this is one of the first ranks that fail, which say why; all if they cannot know."""
    store = c10d._get_default_store()  # noqa: SLF001 - nothing else tells
    try:
        voices: int = within(VOICE_WAIT_S, lambda: store.add("reshard voices", 1))
    except (TimeoutError, RuntimeError):
        return True
    return voices <= MAX_VOICES

"""One rank of a local run: feeds itself, runs the plan, and checks what it received."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from reshard_executors.agreement import reason
from reshard_executors.check import first_difference
from reshard_executors.checkpoint import open_values
from reshard_executors.jobs import Failure, Job, RankReport, Stage
from reshard_executors.resharder import Resharder
from reshard_executors.values import Buffer, empty_buffers, filled_buffers
from reshard_planner.dtypes import DTYPE_BITS
from reshard_planner.errors import ReshardError
from reshard_planner.ir.plan import Plan
from reshard_planner.spec.tiles import SideTiles
from reshard_planner.spec.values import Side

Say = Callable[[Stage | RankReport | Failure], None]


def be_rank(job: Job, position: int, say: Say) -> None:
    """Play one rank of a job.

    Args:
        job: what to run.
        position: which rank, among the ranks of the plan.
        say: takes each stage as it begins, and a report or failure in the end.
    """
    torch.set_num_threads(1)
    try:
        say(_run(job, position, say))
    except (ReshardError, RuntimeError, MemoryError, OSError) as error:
        text = str(error) if isinstance(error, ReshardError) else reason(error)
        say(Failure(type(error).__name__, f"rank {job.plan.ranks[position]}: {text}"))


def _run(job: Job, position: int, say: Say) -> RankReport:
    plan, rank = job.plan, job.plan.ranks[position]
    timeout = timedelta(seconds=job.timeout_s)
    say(Stage("fill"))
    values = open_values(plan.spec, job.checkpoint)
    sources = filled_buffers(plan, rank, "src", values)
    destinations = empty_buffers(plan, rank, "dst")
    # torch documents the name, but its stubs do not export it
    store = dist.FileStore(str(job.folder / "store"), len(plan.ranks))  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=position, world_size=len(plan.ranks), timeout=timeout)
    try:
        with Resharder(plan, ranks=plan.ranks, timeout=timeout) as resharder:
            say(Stage("run"))
            held = as_tensors(plan, "src", sources, rank)
            record = resharder.run(held, as_tensors(plan, "dst", destinations, rank))
        say(Stage("check"))
        difference = first_difference(plan, rank, destinations, values)
    finally:
        dist.destroy_process_group()
    return RankReport(rank, record.network_nbytes, record.nvlink_nbytes, record.elapsed_s, difference)


def as_tensors(
    plan: Plan, side: Side, buffers: Mapping[str, Sequence[Buffer]], rank: int | None = None
) -> dict[str, list[torch.Tensor]]:
    """Local buffers of one side as torch tensors of the dtypes that the plan says, over the same memory.

    Args:
        plan: the plan.
        side: which side.
        buffers: by name.
        rank: whose buffers they are; None if names mean buffers of the same dtype on all ranks.
    """
    dtypes = {
        name: tensor.side_dtype(side)
        for tensor in plan.spec.tensors
        for name in (
            [name for names in tensor.buffers(side) for name in names]
            if rank is None
            else SideTiles(tensor, side).expected(rank)
        )
    }
    found = {}
    for name, arrays in buffers.items():
        dtype = getattr(torch, dtypes[name]) if DTYPE_BITS[dtypes[name]] >= 8 else torch.uint8
        found[name] = [
            torch.from_numpy(array.reshape(-1).view(np.uint8)).view(dtype).reshape(array.shape)
            for array in arrays
        ]
    return found

"""One rank of a cluster: plays its part in every run of the job, measures, and checks what it received.

Started by torchrun as ``python -m reshard_executors.emulation.worker FOLDER``.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from reshard_executors.agreement import reason
from reshard_executors.baselines import Prepared, find_baseline
from reshard_executors.check import first_difference
from reshard_executors.emulation.job import (
    RANK_VARIABLE,
    Job,
    PortBytes,
    Repeat,
    RunDone,
    RunOrder,
    report_pipe,
)
from reshard_executors.emulation.namespaces import NIC, NVLINK
from reshard_executors.jobs import Failure, Stage
from reshard_executors.resharder import Resharder
from reshard_executors.synthetic import SyntheticValues
from reshard_executors.values import Buffer, Buffers, empty_buffers, filled_buffers
from reshard_executors.worker import as_tensors
from reshard_planner.errors import ReshardError
from reshard_planner.ir.plan import Plan

POISON = 0xA5
"""What every byte of the destinations is before a repeat."""

COUNTERS = Path("/proc/self/net/dev")
"""The kernel's counters of the ports of this process's namespace."""

_RECEIVED, _SENT = 0, 8

Move = Callable[[], object]
"""Fills the destinations once."""


def main() -> None:
    """Do all runs of the job, and report over the rank's pipe."""
    folder, rank = Path(sys.argv[1]), int(os.environ[RANK_VARIABLE])
    with Connection(os.open(report_pipe(folder, rank), os.O_WRONLY), readable=False) as reports:
        try:
            _play(Job.read(folder), rank, reports.send)
        except (ReshardError, RuntimeError, MemoryError, OSError) as error:
            text = str(error) if isinstance(error, ReshardError) else reason(error)
            reports.send(Failure(type(error).__name__, f"rank {rank}: {text}"))
            raise SystemExit(1) from None


def _play(job: Job, rank: int, say: Callable[[Stage | RunDone], None]) -> None:
    torch.set_num_threads(1)
    timeout = timedelta(seconds=job.timeout_s)
    dist.init_process_group("gloo", timeout=timeout)
    try:
        played: list[int] = [0] * dist.get_world_size()
        dist.all_gather_object(played, rank)
        for number, order in enumerate(job.runs):
            say(Stage(order.name))
            say(_run(order, number, rank, played, timeout))
    finally:
        dist.destroy_process_group()


def _run(order: RunOrder, number: int, rank: int, played: list[int], timeout: timedelta) -> RunDone:
    plan = Plan.load(order.plan)
    values = SyntheticValues(plan.spec)
    sources = filled_buffers(plan, rank, "src", values)
    destinations = empty_buffers(plan, rank, "dst")
    pair = as_tensors(plan, "src", sources, rank), as_tensors(plan, "dst", destinations, rank)
    if order.baseline is not None:
        prepared = _baseline(order.baseline, plan, played)
        if isinstance(prepared, str):
            return RunDone(number, (), prepared)
        with closing(prepared):
            repeats = _repeats(order, plan, rank, lambda: prepared.run(*pair), destinations, values)
        return RunDone(number, repeats)
    with Resharder(plan, ranks=played, timeout=timeout) as resharder:
        repeats = _repeats(order, plan, rank, lambda: resharder.run(*pair), destinations, values)
    return RunDone(number, repeats)


def _baseline(name: str, plan: Plan, played: list[int]) -> Prepared | str:
    """A baseline that is ready to run on this rank, or why it cannot."""
    baseline = find_baseline(name)
    refused = baseline.applies(plan.spec)
    if refused is not None:
        return refused
    return baseline.prepare(plan.spec, played, dist.group.WORLD)


def _repeats(
    order: RunOrder, plan: Plan, rank: int, move: Move, destinations: Buffers, values: SyntheticValues
) -> tuple[Repeat, ...]:
    buffers = [buffer.reshape(-1).view(np.uint8) for own in destinations.values() for buffer in own]
    right: list[Buffer] | None = None
    found = []
    for _ in range(order.repeat):
        elapsed_s, ports = _measured(move, buffers)
        difference = None
        if right is None or not all(map(np.array_equal, buffers, right)):
            difference = first_difference(plan, rank, destinations, values)
        if difference is None and right is None and order.repeat > 1:
            right = [buffer.copy() for buffer in buffers]  # later repeats must give the same
        found.append(Repeat(elapsed_s, ports, difference))
    return tuple(found)


def _measured(move: Move, buffers: list[Buffer]) -> tuple[float, PortBytes]:
    """Time in seconds and counted bytes of one repeat, which begins and ends on all ranks together."""
    for buffer in buffers:
        buffer.fill(POISON)
    dist.barrier()
    before = _count()
    dist.barrier()
    start = time.perf_counter()
    move()
    elapsed_s = time.perf_counter() - start
    dist.barrier()
    return elapsed_s, _count().since(before)


def _count() -> PortBytes:
    counts = {}
    for line in COUNTERS.read_text(encoding="ascii").splitlines():
        device, _, figures = line.partition(":")
        counts[device.strip()] = figures.split()
    nic, nvlink = counts[NIC], counts[NVLINK]
    return PortBytes(int(nic[_SENT]), int(nic[_RECEIVED]), int(nvlink[_SENT]), int(nvlink[_RECEIVED]))


if __name__ == "__main__":
    main()

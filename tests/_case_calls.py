"""More of what the processes of ``_ranks`` are asked to do, for single cases."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Any

import _rank_calls
import torch
import torch.distributed as dist
from _rank_calls import Arrays, State, raw
from reshard_executors.resharder import Resharder
from reshard_executors.values import empty_buffers
from reshard_executors.worker import as_tensors

import reshard_planner as rp
from reshard_planner.ir.timeline import Activity


def run_profiled(
    state: State, plan: rp.Plan, ranks: Sequence[int], sources: Arrays
) -> list[tuple[int, float, float]]:
    """Run once; slot, begin and end of every message, in seconds from the start."""
    state.update(plan=plan, played=ranks[state["rank"]])
    with Resharder(plan, ranks=ranks, profile=True) as resharder:
        timeline = resharder.run(*locals_of(state, sources)).timeline
    return [
        (int(slot), float(start_s), float(end_s))
        for activity, slot, start_s, end_s in zip(
            timeline.activity, timeline.slot, timeline.start_s, timeline.end_s, strict=True
        )
        if activity in (Activity.SEND, Activity.RECEIVE)
    ]


def process_id(_: State) -> int:
    """Number of this process."""
    return os.getpid()


def locals_of(state: State, sources: Arrays) -> tuple[dict[str, Any], dict[str, Any]]:
    """Local tensors of both sides; destinations are zeros."""
    plan, mine = state["plan"], state["played"]
    return as_tensors(plan, "src", sources, mine), as_tensors(
        plan, "dst", empty_buffers(plan, mine, "dst"), mine
    )


def run_from_a_transpose_into_columns(state: State) -> tuple[list[Any], list[Any], list[Any]]:
    """Move a transposed matrix of rank 0 into every second column of a buffer of rank 1.

    Returns:
        The matrix; the columns that are the destination; and those between them, which were -1.
    """
    matrix = torch.arange(16, dtype=torch.int32).reshape(4, 4).t()
    room = torch.full((4, 8), -1, dtype=torch.int32)
    held = {"w": matrix} if state["played"] == 0 else {}
    kept = {"w": room[:, ::2]} if state["played"] == 1 else {}
    state["resharder"].run(held, kept)
    return matrix.tolist(), room[:, ::2].tolist(), room[:, 1::2].tolist()


def run_in_order(state: State, sources: Arrays, reverse: bool) -> Arrays:  # noqa: FBT001 - one of two calls
    """Run with the names of all tensors in order, or in reverse."""
    held, kept = locals_of(state, sources)
    if reverse:
        held, kept = dict(reversed(held.items())), dict(reversed(kept.items()))
    state["resharder"].run(held, kept)
    return {name: [raw(each) for each in found] for name, found in kept.items()}


def run_unless_absent(state: State, sources: Arrays, absent: int) -> tuple[str, bool] | None:
    """Run, but not on one rank; what is said then, and whether destinations have been written.

    None on that rank, and on those without a Resharder.
    """
    if state["rank"] == absent or "resharder" not in state:
        return None
    held, kept = locals_of(state, sources)
    said = ""
    try:
        state["resharder"].run(held, kept)
    except Exception as error:  # noqa: BLE001 - the test looks at it
        said = f"{type(error).__name__}: {error}"
    return said, any(bool(each.any()) for found in kept.values() for each in found)


def allocations(state: State, sources: Arrays) -> list[int] | None:
    """As :func:`_rank_calls.allocations`; None on ranks without a Resharder, which need no profiler."""
    return _rank_calls.allocations(state, sources) if "resharder" in state else None


def run_standing_still(
    state: State,
    sources: Arrays,
    here: bool,  # noqa: FBT001 - as above
) -> tuple[Arrays, float, bool, float]:
    """Run beside a collective of the world; one rank stops in the middle until it is told to go on.

    That rank joins the collective after its part of the run, all others before theirs is over.

    Returns:
        The destinations, the seconds that the run took, whether some had arrived and some not when this rank
        stopped, and what the collective gave.
    """
    held, kept = locals_of(state, sources)
    count = torch.ones(1)
    refit = state["resharder"].start(held, kept)
    halfway = False
    if here:
        [destination] = kept["w"]
        seen = destination.reshape(-1)[:: destination.numel() // 256]
        while not seen.any():
            pass
        halfway = not bool(seen.all())
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        dist.all_reduce(count)
    record = refit.wait()
    if here:
        dist.all_reduce(count)
    return (
        {name: [raw(each) for each in found] for name, found in kept.items()},
        record.elapsed_s,
        halfway,
        count.item(),
    )

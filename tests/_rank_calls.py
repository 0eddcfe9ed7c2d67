"""What the processes of ``_ranks`` are asked to do; tests give and get numpy arrays."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from reshard_executors.resharder import Resharder
from reshard_executors.values import empty_buffers
from reshard_executors.worker import as_tensors

import reshard_planner as rp

State = dict[str, Any]
Arrays = dict[str, list[np.ndarray]]
Tensors = dict[str, Any]


def build(
    state: State,
    plan: rp.Plan,
    ranks: Sequence[int] | None = None,
    members: Sequence[int] | None = None,
    timeout_s: float = 20.0,
) -> None:
    """Build a Resharder and keep it; over a new group of some members of the world, if they are given."""
    close(state)
    group = None
    if members is not None:
        group = dist.new_group(list(members))
        if state["rank"] not in members:
            return
    state["plan"] = plan
    state["group"] = group
    state["resharder"] = Resharder(plan, group, ranks=ranks, timeout=timedelta(seconds=timeout_s))
    state["played"] = state["rank"] if ranks is None else ranks[dist.get_rank(group)]


def rebuild(state: State) -> None:
    """Build the kept Resharder once more, over the same group."""
    if "group" in state:
        state["resharder"].close()
        state["resharder"] = Resharder(state["plan"], state["group"])


def close(state: State) -> None:
    """Close the kept Resharder, if there is one."""
    if "resharder" in state:
        state.pop("resharder").close()
    state.pop("group", None)


def run(state: State, sources: Arrays, *, times: int = 1) -> tuple[Arrays, Any] | None:
    """Run the kept Resharder on copies of the sources; the destinations, and the record of the last run."""
    if "resharder" not in state:
        return None
    plan = state["plan"]
    held = {name: [array.copy() for array in arrays] for name, arrays in sources.items()}
    kept = empty_buffers(plan, state["played"], "dst")
    for _ in range(times):
        for arrays in kept.values():
            for array in arrays:
                array.reshape(-1).view(np.uint8)[:] = 0x5A
        record = state["resharder"].run(as_tensors(plan, held), as_tensors(plan, kept))
    return kept, record


def build_and_run(
    state: State, plan: rp.Plan, ranks: Sequence[int], sources: Arrays
) -> tuple[Arrays, Any] | None:
    """Build, run once, close."""
    build(state, plan, ranks)
    found = run(state, sources)
    close(state)
    return found


def run_with(state: State, change: str, sources: Arrays) -> Any:
    """Run with local tensors that are wrong in one way on this rank; right ones if ``change`` is empty."""
    plan = state["plan"]
    held = as_tensors(plan, {name: [array.copy() for array in arrays] for name, arrays in sources.items()})
    kept = as_tensors(plan, empty_buffers(plan, state["played"], "dst"))
    spoil(change, held, kept)
    return state["resharder"].run(held, kept)


def spoil(change: str, held: Tensors, kept: Tensors) -> None:
    """Make the first tensor of one side wrong."""
    side = held if "source" in change else kept
    name = next(iter(side), "")
    match change:
        case "source of another shape":
            held[name] = held[name][0][:-1]
        case "destination of another shape":
            kept[name] = kept[name][0].reshape(-1)
        case "destination of another dtype":
            kept[name] = kept[name][0].view(torch.float16)
        case "transposed source":
            held[name] = held[name][0].t().contiguous().t()
        case "conjugated source":
            held[name] = held[name][0].conj()
        case "missing destination":
            del kept[name]
        case "source given twice":
            held[name] = held[name] * 2
        case "source that is an array":
            held[name] = [held[name][0].view(torch.int16).numpy()]
        case "source on another device":
            held[name] = held[name][0].to("meta")
        case "unknown destination":
            kept["stranger"] = torch.zeros(1)
        case "destination given to two tensors":
            kept["second"] = kept[name]
        case "destination within a source":
            size = kept[name][0].numel()
            room = torch.cat([torch.zeros(size - 1), held[name][0].reshape(-1)])
            held[name] = room[size - 1 :].reshape(held[name][0].shape)
            kept[name] = room[:size].reshape(kept[name][0].shape)


def run_parameters(state: State, sources: Arrays) -> bool:
    """Run with sources and destinations that require gradients, and compare with a run without."""
    plan = state["plan"]
    held = as_tensors(plan, sources)
    plain, kept = (as_tensors(plan, empty_buffers(plan, state["played"], "dst")) for _ in range(2))
    state["resharder"].run(held, plain)
    trained = {name: [torch.nn.Parameter(each) for each in found] for name, found in held.items()}
    served = {name: [torch.nn.Parameter(each) for each in found] for name, found in kept.items()}
    state["resharder"].run(trained, served)
    pairs = [(plain[name][0].view(torch.int16), kept[name][0].view(torch.int16)) for name in kept]
    return all(torch.equal(a, b) for a, b in pairs)


def run_with_little_memory(state: State, sources: Arrays, more_nbytes: int | None) -> Any:
    """Run; on a rank with a number, while the process may grow by so many bytes only."""
    held = as_tensors(state["plan"], sources)
    kept = as_tensors(state["plan"], empty_buffers(state["plan"], state["played"], "dst"))
    before = resource.getrlimit(resource.RLIMIT_AS)
    if more_nbytes is not None:
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - not a file of the project
            pages = int(file.read().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more_nbytes, before[1]))
    try:
        return state["resharder"].run(held, kept)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def torn(state: State) -> bool:
    """Whether the kept Resharder says that destinations are torn."""
    return state["resharder"].torn


def end(state: State, victim: int) -> None:
    """End the process of one rank without a word."""
    if state["rank"] == victim:
        os._exit(7)


def add_up(state: State) -> float:
    """Use the world's own group."""
    total = torch.tensor([float(state["rank"])])
    dist.all_reduce(total)
    return total.item()


def run_after_closing(state: State, plan: rp.Plan) -> Any:
    """Build, close and run."""
    with Resharder(plan) as resharder:
        state["resharder"] = resharder
    resharder.close()
    return resharder.run({}, {})


def build_over(state: State, plan: rp.Plan, members: Sequence[int]) -> int:
    """Build over a group of some members, in all processes; the rank of the process."""
    with Resharder(plan, dist.new_group(list(members))):
        return int(state["rank"])


def run_unless(state: State, absent: int, sources: Arrays) -> Any:
    """Run, but not on one rank."""
    return None if state["rank"] == absent else run(state, sources)

"""What the processes of ``_ranks`` are asked to do with baselines; tests give and get numpy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch.distributed as dist
from reshard_executors.baselines import find_baseline
from reshard_executors.worker import as_tensors

import reshard_planner as rp

State = dict[str, Any]
Arrays = dict[str, list[np.ndarray]]


def run_baseline(
    state: State,
    name: str,
    plan: rp.Plan,
    played: Sequence[int],
    sources: Arrays,
    wanted: Arrays,
    times: int = 1,
) -> Arrays:
    """Prepare a baseline, run it on copies of the sources, close it; the destinations.

    Destinations get the shapes and dtypes of ``wanted``, but other contents.
    """
    held = {tensor: [array.copy() for array in arrays] for tensor, arrays in sources.items()}
    before = {tensor: [array.tobytes() for array in arrays] for tensor, arrays in held.items()}
    kept = {
        tensor: [np.full_like(_bytes(array), 0x5A) for array in arrays] for tensor, arrays in wanted.items()
    }
    found = {
        tensor: [
            raw.view(array.dtype).reshape(array.shape)
            for raw, array in zip(raws, wanted[tensor], strict=True)
        ]
        for tensor, raws in kept.items()
    }
    prepared = find_baseline(name).prepare(plan.spec, played)
    for _ in range(times):
        for raws in kept.values():
            for raw in raws:
                raw[:] = 0x5A
        prepared.run(as_tensors(plan, "src", held), as_tensors(plan, "dst", found))
    prepared.close()
    prepared.close()
    if before != {tensor: [array.tobytes() for array in arrays] for tensor, arrays in held.items()}:
        raise ValueError(f"rank {state['rank']} wrote its sources")
    return found


def prepare_within(state: State, name: str, spec: rp.ReshardSpec, members: Sequence[int]) -> None:
    """Prepare a baseline over a group of some members of the world."""
    group = dist.new_group(list(members))
    if state["rank"] in members:
        find_baseline(name).prepare(spec, members, group)


def prepare(_: State, name: str, spec: rp.ReshardSpec, played: Sequence[int]) -> None:
    """Prepare a baseline and close it."""
    find_baseline(name).prepare(spec, played).close()


def run_spoilt(_: State, name: str, plan: rp.Plan, sources: Arrays, wanted: Arrays) -> None:
    """Prepare a baseline, and run it with local tensors that are wrong."""
    prepared = find_baseline(name).prepare(plan.spec, range(dist.get_world_size()))
    try:
        prepared.run(as_tensors(plan, "src", sources), as_tensors(plan, "dst", wanted))
    finally:
        prepared.close()


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)

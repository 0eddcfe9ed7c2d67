"""What the processes of ``_ranks`` are asked to do; tests give and get numpy arrays."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import socket
import threading
import time
import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from reshard_executors.resharder import Resharder
from reshard_executors.values import empty_buffers
from reshard_executors.worker import as_tensors
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate

import reshard_planner as rp
from reshard_planner.errors import ExecutionError

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
        mine = state["played"]
        record = state["resharder"].run(
            as_tensors(plan, "src", held, mine), as_tensors(plan, "dst", kept, mine)
        )
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
    held = as_tensors(
        plan, "src", {name: [array.copy() for array in arrays] for name, arrays in sources.items()}
    )
    kept = as_tensors(plan, "dst", empty_buffers(plan, state["played"], "dst"))
    spoil(change, held, kept)
    given: Any = list(held) if change == "sources that are a list" else held
    return state["resharder"].run(given, kept)


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
        case "destination that repeats itself":
            kept[name] = kept[name][0][:1].expand(kept[name][0].shape)
        case "conjugated source":
            held[name] = held[name][0].conj()
        case "missing destination":
            del kept[name]
        case "source given twice":
            held[name] = held[name] * 2
        case "source without its storage":
            held[name] = held[name][0].clone()
            held[name].untyped_storage().resize_(3)
        case "source that is None":
            held[name] = None
        case "source that is a DTensor":
            mesh = DeviceMesh("cpu", [state_rank()], _init_backend=False)
            held[name] = DTensor.from_local(held[name][0], mesh, [Replicate()], run_check=False)
        case "sparse source":
            held[name] = held[name][0].to_sparse()
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
    held = as_tensors(plan, "src", sources)
    plain, kept = (as_tensors(plan, "dst", empty_buffers(plan, state["played"], "dst")) for _ in range(2))
    state["resharder"].run(held, plain)
    trained = {name: [torch.nn.Parameter(each) for each in found] for name, found in held.items()}
    served = {name: [torch.nn.Parameter(each) for each in found] for name, found in kept.items()}
    state["resharder"].run(trained, served)
    pairs = [(plain[name][0].view(torch.int16), kept[name][0].view(torch.int16)) for name in kept]
    return all(torch.equal(a, b) for a, b in pairs)


def run_with_little_memory(state: State, sources: Arrays, more_nbytes: int | None) -> Any:
    """Run; on a rank with a number, while the process may grow by so many bytes only."""
    held = as_tensors(state["plan"], "src", sources)
    kept = as_tensors(state["plan"], "dst", empty_buffers(state["plan"], state["played"], "dst"))
    before = resource.getrlimit(resource.RLIMIT_AS)
    if more_nbytes is not None:
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - not a file of the project
            pages = int(file.read().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more_nbytes, before[1]))
    try:
        return state["resharder"].run(held, kept)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def run_until_one_ends(state: State, victim: int, sources: Arrays) -> Any:
    """Start a run; the process of one rank ends as soon as it has begun."""
    held = as_tensors(
        state["plan"], "src", {name: [array.copy() for array in each] for name, each in sources.items()}
    )
    kept = as_tensors(state["plan"], "dst", empty_buffers(state["plan"], state["played"], "dst"))
    refit = state["resharder"].start(held, kept)
    if state["rank"] == victim:
        os._exit(7)
    return refit.wait()


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


def raw(tensor: torch.Tensor) -> np.ndarray:
    """The bytes of a tensor's elements in row-major order."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().copy()


def state_rank() -> int:
    """Rank of this process in the world."""
    return dist.get_rank()


def start_and_close(state: State, sources: Arrays) -> Arrays:
    """Start a run and close without waiting for it."""
    plan = state["plan"]
    held, kept = (
        as_tensors(plan, "src", sources),
        as_tensors(plan, "dst", empty_buffers(plan, state["played"], "dst")),
    )
    with state["resharder"] as resharder:
        resharder.start(held, kept)
    return {name: [raw(each) for each in found] for name, found in kept.items()}


def regroup(state: State, sources: Arrays, *, wrong: bool = False) -> None:
    """Run with tensors that are kept for the next time; or with all of them under the first name."""
    if "kept" not in state or state["kept"][0] is not state["resharder"]:
        plan = state["plan"]
        sides = (
            as_tensors(plan, "src", sources),
            as_tensors(plan, "dst", empty_buffers(plan, state["played"], "dst")),
        )
        state["kept"] = (state["resharder"], *sides)
    _, held, kept = state["kept"]
    if wrong:
        first, second = held
        held = {first: [*held[first], *held[second]], second: []}
    state["resharder"].run(held, kept)


def regroup_on_one(state: State, sources: Arrays, here: bool) -> None:  # noqa: FBT001 - one of two calls
    """The same, wrong on one rank."""
    regroup(state, sources, wrong=here)


def build_on_device(_: State, plan: rp.Plan, device: str | None) -> None:
    """Build for tensors on a device."""
    with Resharder(plan, device=device, timeout=timedelta(seconds=20)):
        pass


def strided(tensor: torch.Tensor, how: str) -> torch.Tensor:
    """A tensor of the same values that lies in memory in another way, within a larger one full of 0x77."""
    shape = list(tensor.shape)
    if how == "transposed":
        room = torch.empty(shape[::-1], dtype=tensor.dtype).permute(tuple(reversed(range(len(shape)))))
    else:
        room = torch.empty([2 * extent + 1 for extent in shape], dtype=tensor.dtype)
        room.reshape(-1).view(torch.uint8).fill_(0x77)
        room = room[tuple(slice(1, 2 * extent + 1, 2) for extent in shape)]
    room.copy_(tensor)
    return room


def run_strided(state: State, sources: Arrays, how: tuple[str, str]) -> tuple[Arrays, int]:
    """Run from and into strided tensors; the destinations, and how many bytes around them have changed."""
    plan = state["plan"]
    held = as_tensors(
        plan, "src", {name: [array.copy() for array in arrays] for name, arrays in sources.items()}
    )
    kept = as_tensors(plan, "dst", empty_buffers(plan, state["played"], "dst"))
    given = {name: [strided(each, how[0]) for each in found] for name, found in held.items()}
    filled = {name: [strided(each, how[1]) for each in found] for name, found in kept.items()}
    rooms = [each.untyped_storage() for found in filled.values() for each in found]
    before = [bytes(torch.tensor([], dtype=torch.uint8).set_(room).numpy()) for room in rooms]
    state["resharder"].run(given, filled)
    results = {name: [raw(each) for each in found] for name, found in filled.items()}
    for found in filled.values():
        for each in found:
            each.zero_()
    after = [bytes(torch.tensor([], dtype=torch.uint8).set_(room).numpy()) for room in rooms]
    return results, sum(
        a != b for old, new in zip(before, after, strict=True) for a, b in zip(old, new, strict=True)
    )


def run_in_place(state: State, sources: Arrays, shift: int) -> Any:
    """Run with each source as the part of its destination that it must become, or some rows beside it."""
    plan = state["plan"]
    kept = as_tensors(plan, "dst", empty_buffers(plan, state["played"], "dst"))
    held = {}
    for name, arrays in sources.items():
        [mine] = as_tensors(plan, "src", {name: [array.copy() for array in arrays]})[name]
        rows = mine.shape[0]
        start = state["played"] * rows + shift
        held[name] = kept[name][0][start : start + rows]
        held[name].copy_(mine)
    before = {name: each.clone() for name, each in held.items()}
    state["resharder"].run(held, kept)
    same = all(
        torch.equal(before[name].view(torch.uint8), each.view(torch.uint8)) for name, each in held.items()
    )
    return {name: [each.numpy() for each in found] for name, found in kept.items()}, same


def run_some(state: State, sources: Arrays, names: Sequence[str] | None) -> Any:
    """Run with some tensors; only these are given."""
    plan = state["plan"]
    held = as_tensors(plan, "src", sources)
    kept = as_tensors(plan, "dst", empty_buffers(plan, state["played"], "dst"))
    chosen = [name for name in kept if not isinstance(names, list | tuple) or name in names]
    record = state["resharder"].run(
        {name: each for name, each in held.items() if not isinstance(names, list | tuple) or name in names},
        {name: kept[name] for name in chosen},
        tensors=names,
    )
    return {name: [raw(each) for each in kept[name]] for name in chosen}, record


def start_twice(state: State, sources: Arrays) -> tuple[str, bool, bool, bool]:
    """Start a run, and another one before the first has been waited for; then wait twice."""
    plan = state["plan"]
    held, kept = (
        as_tensors(plan, "src", sources),
        as_tensors(plan, "dst", empty_buffers(plan, state["played"], "dst")),
    )
    refit = state["resharder"].start(held, kept)
    torn = state["resharder"].torn
    said = ""
    try:
        state["resharder"].start(held, kept)
    except ExecutionError as error:
        said = str(error)
    first = refit.wait()
    return said, torn, refit.wait() is first, state["resharder"].torn


def usage() -> tuple[int, int, int]:
    """Files that stay open, threads and resident bytes of this process."""
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - not a file of the project
        resident = int(file.read().split()[1]) * resource.getpagesize()
    return len(_files_that_stay_open()), threading.active_count(), resident


def _files_that_stay_open() -> set[tuple[str, str]]:
    """Descriptors and what they are of, without the store's file: each sign of life opens it for a moment."""
    found = []
    for _ in range(5):
        time.sleep(0.1)
        now = set()
        for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208 - not a folder of the project
            with contextlib.suppress(OSError):  # closed in between, as the listing's own
                now.add((descriptor, os.readlink(f"/proc/self/fd/{descriptor}")))  # noqa: PTH115 - as above
        found.append(now)
    return set.intersection(*found)


def run_often(state: State, sources: Arrays, times: int) -> Any:
    """Run many times into the same tensors, and each time into new ones; what the process uses in between."""
    plan = state["plan"]
    held, kept = (
        as_tensors(plan, "src", sources),
        as_tensors(plan, "dst", empty_buffers(plan, state["played"], "dst")),
    )
    found = []
    for at in range(times):
        if at in (times // 2, times - 1):
            found.append(usage())
        state["resharder"].run(held, kept)
        if at % 10 == 0:
            fresh = as_tensors(plan, "dst", empty_buffers(plan, state["played"], "dst"))
            state["resharder"].run(held, fresh)
    return found


def allocations(state: State, sources: Arrays) -> list[int]:
    """Bytes that torch allocates in each of three runs into the same tensors, but for a few small tensors."""
    plan = state["plan"]
    held, kept = (
        as_tensors(plan, "src", sources),
        as_tensors(plan, "dst", empty_buffers(plan, state["played"], "dst")),
    )
    found = []
    for _ in range(3):
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        ) as seen:
            state["resharder"].run(held, kept)
        found.append(sum(max(0, event.self_cpu_memory_usage) for event in seen.key_averages()))
    return found


def weak_sources(state: State, sources: Arrays) -> int:
    """Run with tensors that are then given up; how many of them are still there."""
    plan = state["plan"]
    held, kept = (
        as_tensors(plan, "src", sources),
        as_tensors(plan, "dst", empty_buffers(plan, state["played"], "dst")),
    )
    for each in (*held.values(), *kept.values()):
        each[:] = [tensor.clone() for tensor in each]
    watched = [
        weakref.ref(tensor.untyped_storage()) for each in (*held.values(), *kept.values()) for tensor in each
    ]
    state["resharder"].run(held, kept)
    del held, kept
    del each
    gc.collect()
    return sum(ref() is not None for ref in watched)


def build_on_host(state: State, plan: rp.Plan, name: str) -> None:
    """Build as if this process ran on a host of some name."""
    real = socket.gethostname
    socket.gethostname = lambda: name
    try:
        build(state, plan)
    finally:
        socket.gethostname = real


def peak_of_a_refit(state: State) -> int:
    """Most bytes that this process used in a run beyond what it used before, with its tensors."""
    plan = state["plan"]
    held, kept = (
        as_tensors(plan, side, empty_buffers(plan, state["played"], side)) for side in ("src", "dst")
    )
    for each in (*held.values(), *kept.values()):
        for tensor in each:
            tensor.view(torch.uint8).fill_(1)
    gc.collect()
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:  # noqa: PTH123 - as above
        file.write("5")  # the peak begins anew
    before = usage()[2]
    state["resharder"].run(held, kept)
    with open("/proc/self/status", encoding="ascii") as file:  # noqa: PTH123 - as above
        [peak] = [int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:")]
    return peak - before


def run_serving(state: State, sources: Arrays) -> Any:
    """Run as serving code does, in inference mode."""
    with torch.inference_mode():
        return run(state, sources)


def build_and_drop(_: State, plan: rp.Plan, times: int) -> tuple[int, int]:
    """Build many times without closing; more open files and threads than after the first."""
    found = []
    for at in range(times):
        resharder = Resharder(plan, timeout=timedelta(seconds=20))
        del resharder
        gc.collect()
        if at in (times // 2, times - 1):
            time.sleep(0.2)  # threads end on their own
            found.append(usage()[:2])
    return tuple(late - early for early, late in zip(*found, strict=True))


def build_with(_: State, plan: rp.Plan, options: Any) -> None:
    """Build with some options."""
    with Resharder(plan, **options):
        pass

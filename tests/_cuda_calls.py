"""What the processes of ``_ranks`` do on CUDA devices over NCCL, and just so on the CPU over gloo."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from _dtensor_calls import Side, as_placements, cut, whole
from _rank_calls import State
from reshard_executors.dtensor import Redistributor
from reshard_executors.resharder import Resharder
from reshard_executors.synthetic import SyntheticValues
from reshard_executors.values import Buffer, empty_buffers, filled_buffers
from reshard_executors.worker import as_tensors
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

import reshard_planner as rp
from reshard_planner.errors import ExecutionError

Tensors = dict[str, list[torch.Tensor]]

WAIT = timedelta(seconds=60)
"""How long ranks that live wait for one another; NCCL takes seconds to connect."""

SOON, LONG = 5 * 10**8, 2 * 10**10
"""Cycles of a device: a fraction of a second; and more than any run takes."""


def enter(state: State, backend: str, folder: str, count: int) -> None:
    """Leave the world of the process and make one of this backend, in which each rank has a device."""
    dist.destroy_process_group()
    rank = state["rank"]
    state["device"] = torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(rank)
        state["device"] = torch.device("cuda", rank)
    store = dist.FileStore(f"{folder}/{backend}", count)
    dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=WAIT)


def run_often(state: State, plan: rp.Plan, options: Mapping[str, Any]) -> list[str]:
    """Run three times into the same destinations, overwritten in between; names of what then is wrong."""
    held, kept, wanted = _sides(state, plan)
    found = []
    with Resharder(plan, timeout=WAIT, **options) as resharder:
        for _ in range(3):
            _fill(kept, 0x5A)
            resharder.run(held, kept)
            found += _differences(kept, wanted)
    return found


def run_behind_a_queue(state: State, plan: rp.Plan) -> list[str]:
    """Start a run when the stream of the caller is busy, and will then overwrite the destinations."""
    held, kept, wanted = _sides(state, plan)
    with Resharder(plan, timeout=WAIT) as resharder:
        resharder.run(held, kept)
        with _stream(state):
            _keep_busy(state, SOON)
            _fill(kept, 0x5A)
            refit = resharder.start(held, kept)
        refit.wait()
    return _differences(kept, wanted)


def read_during_a_run(state: State, plan: rp.Plan) -> tuple[list[str], list[str]]:
    """Have a queue of the caller read destinations that have a shadow, after a run is over on all devices.

    Returns:
        Names of what was not read as it had been before, and of what is wrong after.
    """
    held, kept, wanted = _sides(state, plan)
    before = {name: [_bytes(each, 0x5A) for each in found] for name, found in kept.items()}
    _fill(kept, 0x5A)
    with Resharder(plan, timeout=WAIT, shadow=True) as resharder, _stream(state):
        refit = resharder.start(held, kept)
        _keep_busy(state, SOON)
        seen = {name: [each.clone() for each in found] for name, found in kept.items()}
        refit.wait()
    return _differences(seen, before), _differences(kept, wanted)


def redistribute(state: State, shape: Sequence[int], src: Side, dst: Side) -> tuple[int, list[str]]:
    """Redistribute twice from and to the devices of ranks; how many results there are, and what is wrong."""
    full, device = whole(shape), state["device"]
    source, wanted = cut(full, src), cut(full, dst)
    meshes = [DeviceMesh(device.type, mesh, _init_backend=False) for mesh, _ in (src, dst)]
    given = None
    if source.device_mesh.get_coordinate() is not None:
        given = DTensor.from_local(
            source.to_local().to(device),
            meshes[0],
            source.placements,
            run_check=False,
            shape=full.shape,
            stride=full.stride(),
        )
    with Redistributor(timeout=WAIT) as front:
        results = [front.redistribute(given, meshes[1], as_placements(dst[1])) for _ in range(2)]
    found = [each.to_local() for each in results if each is not None]
    wrong = ["device" for each in found if each.device != device]
    wrong += ["values" for each in found if not torch.equal(each.cpu(), wanted.to_local())]
    return len(found), wrong


def run_until_one_is_killed(
    state: State, plan: rp.Plan, victim: int, timeout_s: float, lost_after_s: float
) -> tuple[str, float, bool, bool]:
    """Run once, and again; one rank is killed when that has begun, on CUDA before it has sent anything.

    Returns:
        What the rank said, after how many seconds, and whether its destinations are torn and must be.
    """
    held, kept, _ = _sides(state, plan)
    resharder = Resharder(
        plan, timeout=timedelta(seconds=timeout_s), lost_after=timedelta(seconds=lost_after_s)
    )
    resharder.run(held, kept)
    said = ""
    with _stream(state):
        if state["rank"] == victim:
            _keep_busy(state, LONG)
        begin = time.monotonic()
        refit = resharder.start(held, kept)
        if state["rank"] == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            refit.wait()
        except ExecutionError as error:
            said = str(error)
    return said, time.monotonic() - begin, resharder.torn, bool(kept)


def live_on(state: State) -> tuple[int, float]:
    """Wait, so that what might end the process can; its number, and what its device still adds up."""
    time.sleep(0.5 if state["device"].type == "cpu" else 5.0)  # NCCL's own threads look every few seconds
    return os.getpid(), torch.ones(3, device=state["device"]).sum().item()


def _sides(state: State, plan: rp.Plan) -> tuple[Tensors, Tensors, Tensors]:
    """Filled sources, zeroed destinations, and what these must become, which lies on the CPU."""
    values, rank = SyntheticValues(plan.spec), state["rank"]
    return (
        _placed(state, plan, "src", filled_buffers(plan, rank, "src", values)),
        _placed(state, plan, "dst", empty_buffers(plan, rank, "dst")),
        as_tensors(plan, "dst", filled_buffers(plan, rank, "dst", values), rank),
    )


def _placed(state: State, plan: rp.Plan, side: Any, buffers: Mapping[str, Sequence[Buffer]]) -> Tensors:
    """Local tensors on the device of this rank."""
    found = as_tensors(plan, side, buffers, state["rank"])
    return {name: [each.to(state["device"]) for each in own] for name, own in found.items()}


def _differences(found: Tensors, wanted: Tensors) -> list[str]:
    """Names of the tensors that differ in any bit."""
    return [
        name
        for name, own in wanted.items()
        for ours, want in zip(found[name], own, strict=True)
        if not torch.equal(ours.cpu().view(torch.uint8), want.cpu().view(torch.uint8))
    ]


def _fill(tensors: Tensors, byte: int) -> None:
    """Overwrite all bytes, on the current stream."""
    for own in tensors.values():
        for each in own:
            each.view(torch.uint8).fill_(byte)


def _bytes(like: torch.Tensor, byte: int) -> torch.Tensor:
    """A tensor on the CPU, all of whose bytes are this one."""
    found = torch.empty(like.shape, dtype=like.dtype)
    found.view(torch.uint8).fill_(byte)
    return found


@contextlib.contextmanager
def _stream(state: State) -> Iterator[None]:
    """A stream of the caller's own, where there are streams."""
    if state["device"].type == "cpu":
        yield
        return
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        yield
    torch.cuda.synchronize()


def _keep_busy(state: State, cycles: int) -> None:
    """Let the current stream wait, where there are streams; a CPU has done all it was given."""
    if state["device"].type == "cuda":
        torch.cuda._sleep(cycles)  # noqa: SLF001 - torch tests its own streams with it

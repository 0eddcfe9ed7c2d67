"""Devices: what each rank computes on, and whether it has room for the plan."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from reshard_executors.launchers import device_index

if TYPE_CHECKING:
    import torch

_MEMORY: Final = Path("/proc/meminfo")

TOOL_WAIT_S: Final = 20.0
"""How long ``nvidia-smi`` may take, in seconds."""

NO_FABRIC: Final = "00000000-0000-0000-0000-000000000000"
"""The cluster of a GPU that is in none."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """The CUDA device of one rank.

    Attributes:
        uuid: which it is, whatever number it has here.
        free_nbytes: memory that nobody uses.
        reaches: whether it can access the memory of each other device that this process sees, by uuid.
        fabric: cluster and clique of GPUs that reach each other over NVLink across hosts, as
            ``nvidia-smi -q`` tells it; None if it tells none.
    """

    uuid: str
    free_nbytes: int
    reaches: dict[str, bool] = field(default_factory=dict)
    fabric: str | None = None


@dataclass(frozen=True, slots=True)
class Devices:
    """What one rank computes on.

    Attributes:
        local_rank: its number on the host, which is that of its device if it sees several.
        count: CUDA devices that it sees.
        visible: value of CUDA_VISIBLE_DEVICES; None if not set.
        gpu: its device; None without.
        cores: numbers of the processors that it may use.
        free_nbytes: memory of the host that is free; None where the system does not tell.
        need_nbytes: memory that the plan takes for it: destinations, staging and scratch; 0 without a plan.
        sends_from_gpu: whether torch has NCCL.
    """

    local_rank: int
    count: int
    visible: str | None
    gpu: Gpu | None
    cores: tuple[int, ...]
    free_nbytes: int | None
    need_nbytes: int
    sends_from_gpu: bool


def gather(environ: Mapping[str, str], local_rank: int, need_nbytes: int = 0) -> Devices:
    """Read what this process computes on.

    Args:
        environ: the environment of the process.
        local_rank: its number on the host.
        need_nbytes: memory that the plan takes for it.
    """
    count, gpu, sends = 0, None, False
    with suppress(ImportError):
        import torch  # noqa: PLC0415 - may be missing, which is a finding of another check

        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        sends = torch.distributed.is_available() and torch.distributed.is_nccl_available()
        index = device_index(local_rank, count)
        if index is not None:
            gpu = _gather_gpu(index, count)
    return Devices(
        local_rank,
        count,
        environ.get("CUDA_VISIBLE_DEVICES"),
        gpu,
        _cores(),
        _free_nbytes(),
        need_nbytes,
        sends,
    )


def _gather_gpu(index: int, count: int) -> Gpu | None:
    import torch  # noqa: PLC0415 - as above

    try:
        free_nbytes, _ = torch.cuda.mem_get_info(index)
        uuid = _uuid(torch.cuda.get_device_properties(index))
        reaches = {
            _uuid(torch.cuda.get_device_properties(other)): torch.cuda.can_device_access_peer(index, other)
            for other in range(count)
            if other != index
        }
    except RuntimeError:  # a device that is there, but cannot be used
        return None
    return Gpu(uuid, free_nbytes, reaches, _fabric(uuid))


def _uuid(properties: torch.cuda._CudaDeviceProperties) -> str:
    return f"GPU-{properties.uuid}"


def _fabric(uuid: str) -> str | None:
    """The fabric of a device, as the driver's tool tells it."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603 - a system tool with our own arguments
            [tool, "-q", "-i", uuid], capture_output=True, text=True, timeout=TOOL_WAIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_fabric(done.stdout)


def parse_fabric(text: str) -> str | None:
    """Cluster and clique in what ``nvidia-smi -q`` prints of one GPU; None if it is in no fabric that works.

    The clique alone does not tell: it is unique within its cluster. A GPU without fabric manager, or one that
    has failed to join, may be shown in the cluster of zeros.
    """
    found: dict[str, str] = {}
    depth: int | None = None
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        if line.strip() == "Fabric":
            depth = indent
        elif depth is not None:
            if indent <= depth:
                break
            name, _, value = line.partition(" : ")
            found[name.strip()] = value.strip()
    cluster, clique = found.get("ClusterUUID", NO_FABRIC), found.get("CliqueId", "N/A")
    if found.get("Status") != "Success" or "N/A" in (cluster, clique) or cluster == NO_FABRIC:
        return None
    return f"{cluster}/{clique}"


def _cores() -> tuple[int, ...]:
    try:
        return tuple(sorted(os.sched_getaffinity(0)))
    except AttributeError:  # not on every system
        return tuple(range(os.cpu_count() or 1))


def _free_nbytes() -> int | None:
    """Memory that new processes can have without swapping."""
    try:
        found = re.search(r"(?m)^MemAvailable: +(\d+) kB$", _MEMORY.read_text(encoding="ascii"))
    except OSError:
        return None
    return None if found is None else int(found[1]) * 1024

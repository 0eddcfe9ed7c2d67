"""NeMo RL's Python resharding, from a checkout: box overlaps planned for one tensor at a time.

The one file is loaded by path, nothing is installed. Traffic of the exact mode: point-to-point transfers to
one rank per distinct destination box, then a broadcast along its replicas; of the striped mode: transfers of
equal stripes to all replicas, then a ring all-gather. Rings run in the order of the members.
"""

from __future__ import annotations

import importlib.util
from math import prod
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch.distributed.tensor import Replicate, Shard

import reshard_planner as rp
from benchmarks.peers.planned import Planned, SkipPeerError, Traffic, only_tensor, timed

FILE = Path("nemo_rl") / "weight_sync" / "xferdtensor_python.py"

NEEDED = ("_plan_geometry", "_striped_geometry", "_PLAN_CACHE", "_STRIPED_PLAN_CACHE")
"""What is used of it."""


def plan(spec: rp.ReshardSpec, repeat: int, checkout: Path, *, striped: bool) -> Planned:
    """Plan without its caches.

    Raises:
        SkipPeerError: if the checkout lacks the file or what is used of it, or does not stripe this case.
    """
    tensor, src, dst = only_tensor(spec)
    module = _load(checkout)
    sides: list[Any] = []
    for each in (src, dst):
        sides.append(SimpleNamespace(mesh=torch.from_numpy(each.mesh.array())))
        sides.append(tuple(map(_placement, each.placements)))

    def geometry() -> Any:
        module._PLAN_CACHE.clear()  # noqa: SLF001 - its caches must not answer
        module._STRIPED_PLAN_CACHE.clear()  # noqa: SLF001
        chosen = module._striped_geometry if striped else module._plan_geometry  # noqa: SLF001
        return chosen(*sides, tensor.shape)

    plan_s, found = timed(geometry, repeat)
    if found is None:
        raise SkipPeerError(f"does not stripe {tensor.shape} {dst.placements}, falls back to its exact mode")
    _, _, groups, transfers, *_ = found
    traffic = Traffic()
    for source, receiver, overlap in transfers:
        traffic.add(source, receiver, _volume(overlap) * tensor.bits // 8)
    traffic.next_phase()
    for region, members, first in groups:
        ordered = [first, *(member for member in members if member != first)]
        size = _volume(region) * tensor.bits // 8
        if len(ordered) > 1:
            if striped:
                traffic.ring(ordered, size // len(ordered) * (len(ordered) - 1), closed=True)
            else:
                traffic.ring(ordered, size, closed=False)
    return Planned(plan_s, len(transfers), traffic, spec, "time as on one rank; each rank repeats it")


def _load(checkout: Path) -> ModuleType:
    path = checkout / FILE
    if not path.is_file():
        raise SkipPeerError(f"{checkout} has no {FILE}")
    name = "benchmarks_nemo_rl"
    found = importlib.util.spec_from_file_location(name, path)
    if found is None or found.loader is None:
        raise SkipPeerError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(found)
    try:
        found.loader.exec_module(module)
    except Exception as error:  # noqa: BLE001 - a checkout of any version
        raise SkipPeerError(f"{path} does not load: {type(error).__name__}: {error}") from None
    missing = [each for each in NEEDED if not hasattr(module, each)]
    if missing:
        raise SkipPeerError(f"{path} has no {', '.join(missing)}")
    return module


def _placement(each: rp.Shard | rp.Replicate | rp.StridedShard) -> Shard | Replicate:
    return Shard(each.dim) if isinstance(each, rp.Shard) else Replicate()


def _volume(region: Any) -> int:
    return prod(hi - lo for lo, hi in region)

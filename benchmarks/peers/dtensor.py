"""torch's DTensor redistribution planner, on the nearest problem that one mesh allows.

DTensor moves between placements on one mesh only. Where both meshes of a case are [replicas, shards] or
[shards], the smaller is given more replicas until both have as many ranks, and both are cut into one finer
mesh.

Traffic: an all-gather is a ring in the order of ranks, an all-to-all sends to every member of its group, and
steps follow one another. Each step starts from the placements that the one before left.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard

import reshard_planner as rp
from benchmarks.peers.planned import Planned, SkipPeerError, Traffic, only_tensor, timed

PRIVATE = "_gen_transform_infos_non_cached"


def plan(spec: rp.ReshardSpec, repeat: int, *, by_cost: bool) -> Planned:
    """The steps of DTensor's redistribution.

    Args:
        spec: the case.
        repeat: plans, of which the median time counts.
        by_cost: search the steps of least estimated cost, instead of one mesh axis after another.

    Raises:
        SkipPeerError: if this torch has another planner, or one mesh cannot hold the case.
    """
    try:
        from torch.distributed.tensor import _redistribute  # noqa: PLC0415 - private
        from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta  # noqa: PLC0415 - private
        from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: PLC0415 - private

        generate = getattr(_redistribute, PRIVATE)
    except (ImportError, AttributeError):
        raise SkipPeerError(f"torch {torch.__version__} has no {PRIVATE}") from None
    near = _on_one_mesh(spec)
    tensor, src, dst = only_tensor(near)
    warnings.simplefilter("ignore")  # torch warns about its own fake backend
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=src.mesh.size)
    try:
        mesh = DeviceMesh("cpu", src.mesh.array(), _init_backend=False)
        strides = tuple(prod(tensor.shape[dim + 1 :]) for dim in range(len(tensor.shape)))
        meta = TensorMeta(torch.Size(tensor.shape), strides, torch.bfloat16)

        def steps() -> list[Any]:
            _redistribute.clear_redistribute_planner_cache()
            before, after = (
                DTensorSpec(mesh, tuple(map(_placement, layout.placements)), tensor_meta=meta)
                for layout in (src, dst)
            )
            found: list[Any] = generate(before, after, by_cost)
            return found

        plan_s, found = timed(steps, repeat)
    finally:
        dist.destroy_process_group()
    traffic = Traffic()
    placements = [_placement(each) for each in src.placements]
    for step in found:
        _run(step, placements, src.mesh.array(), tensor.nbytes, traffic)
        traffic.next_phase()
    note = "another problem, both sides on the same ranks; ratios are over its own T* and least payload"
    return Planned(plan_s, len(found), traffic, near, note)


def _placement(each: rp.Shard | rp.Replicate | rp.StridedShard) -> Shard | Replicate:
    return Shard(each.dim) if isinstance(each, rp.Shard) else Replicate()


def _run(step: Any, placements: list[Any], ranks: Any, nbytes: int, traffic: Traffic) -> None:
    """Count one step, and change the placements as it does."""
    axis = step.mesh_dim
    before, after = step.src_dst_placements
    shards = prod(
        size for size, each in zip(ranks.shape, placements, strict=True) if not isinstance(each, Replicate)
    )
    local = nbytes // shards
    for members in np.moveaxis(ranks, axis, -1).reshape(-1, ranks.shape[axis]).tolist():
        if isinstance(before, Replicate):
            continue  # every rank cuts what it has
        if isinstance(after, Replicate):
            traffic.ring(members, local * (len(members) - 1), closed=True)
        else:
            for one, other in _pairs(members):
                traffic.add(one, other, local // len(members))
    placements[axis] = after


def _pairs(members: Sequence[int]) -> Iterator[tuple[int, int]]:
    return ((one, other) for one in members for other in members if one != other)


def _on_one_mesh(spec: rp.ReshardSpec) -> rp.ReshardSpec:
    tensor, src, dst = only_tensor(spec)
    (src_shards, src_dim), (dst_shards, dst_dim) = _cut(src), _cut(dst)
    ranks = max(src.mesh.size, dst.mesh.size)
    starts = sorted({ranks // src_shards, ranks // dst_shards, 1, ranks})
    if any(later % earlier for earlier, later in pairwise(starts)):
        raise SkipPeerError(f"{src_shards} and {dst_shards} shards do not fit one mesh of {ranks} ranks")
    sizes = [later // earlier for earlier, later in pairwise(starts)]
    mesh = rp.Mesh(list(range(ranks)), None, sizes)

    def layout(shards: int, dim: int) -> rp.Layout:
        return rp.Layout(mesh, [f"S({dim})" if at >= ranks // shards else "R" for at in starts[:-1]])

    moved = rp.TensorSpec(
        tensor.name, tensor.shape, tensor.dtype, layout(src_shards, src_dim), layout(dst_shards, dst_dim)
    )
    size = len(spec.topology.domains[0].gpus)
    return rp.ReshardSpec([moved], rp.Topology.uniform(ranks, size))


def _cut(layout: rp.Layout) -> tuple[int, int]:
    """Shards and dimension of a layout that is replicated, if at all, over leading axes."""
    *replicas, last = layout.placements
    if not isinstance(last, rp.Shard) or not all(isinstance(each, rp.Replicate) for each in replicas):
        raise SkipPeerError("only layouts of replicas of shards are put on one mesh")
    return layout.mesh.shape[-1], last.dim

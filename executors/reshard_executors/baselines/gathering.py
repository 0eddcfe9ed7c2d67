"""Gathering: whole tensors out of their shards with DTensor, as users of FSDP do."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from math import prod

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from reshard_executors.baselines.carriers import Carrier
from reshard_executors.baselines.players import Players
from reshard_planner.errors import InputError
from reshard_planner.spec import ReshardSpec, TensorSpec


def why_not_gathered(tensor: TensorSpec) -> str | None:
    """Why DTensor cannot build the whole tensor from its first source layout; None if it can.

    torch 2.13 gathers a dimension that one mesh axis cuts, however it does. Where several axes cut one
    dimension and leave uneven shards, ranks may expect messages of other sizes than are sent, which ends the
    process with gloo. A strided placement among several is undone rightly where it stands for a cut after all
    axes to its right, as FSDP2 with tensor parallelism makes it.
    """
    where = f"tensor {tensor.name!r}"
    if tensor.bits < 8:
        return f"{where} has dtype {tensor.dtype}, which DTensor cannot shard below a byte"
    if tensor.dst_dtype != tensor.dtype:
        return (
            f"{where} is converted from {tensor.dtype} to {tensor.dst_dtype}, which the baseline does not do"
        )
    layout = tensor.src[0]
    if layout.storage is not None:
        return f"{where} has source storage, and DTensor knows placements alone"
    if not _ascends(layout.mesh.array()):
        return (
            f"{where} has the source ranks {list(layout.mesh.ranks)}, which do not ascend along every axis of"
            " the mesh, and torch's groups sort them"
        )
    for dim, extent in enumerate(tensor.shape):
        cuts = [
            (size, placement)
            for size, placement in zip(layout.mesh.shape, layout.placements, strict=True)
            if getattr(placement, "dim", None) == dim
        ]
        if len(cuts) < 2:
            continue
        shards = prod(size for size, _ in cuts)
        if extent % shards:
            return (
                f"{where} has size {extent} in dimension {dim}, which several axes of the source layout"
                f" {layout} cut unevenly in {shards}, and DTensor gathers that wrongly"
            )
        for at, (_, placement) in enumerate(cuts):
            after = prod(size for size, _ in cuts[at + 1 :])
            if getattr(placement, "split_factor", after) != after:
                return (
                    f"{where} has the source placement {placement} among several of dimension {dim}, which"
                    f" DTensor gathers rightly only as _S({dim}, sf={after})"
                )
    return None


def _ascends(ranks: NDArray[np.int64]) -> bool:
    """Whether ranks ascend along every axis of a mesh."""
    return all(bool((np.diff(ranks, axis=axis) > 0).all()) for axis in range(ranks.ndim))


def make_group(ranks: Sequence[int]) -> dist.ProcessGroup | None:
    """A group of these ranks of the world; collective over it, and None for processes outside."""
    made = dist.new_group(sorted(ranks))
    if not isinstance(made, dist.ProcessGroup):
        return None
    meet(made)
    return made


def meet(group: dist.ProcessGroup) -> None:
    """Wait until all of a new group are connected: one that gives it up before would fail the others."""
    dist.barrier(group=group)


def destroy_group(group: dist.ProcessGroup | None) -> None:
    """Give up a group that was made here; the world's own stays."""
    if group is None or not dist.is_initialized() or group is dist.group.WORLD:
        return
    with contextlib.suppress(ValueError):  # the caller may have destroyed all groups already
        dist.destroy_process_group(group)


class Gathering:
    """Builds the whole tensors of a spec from their first source layouts."""

    def __init__(self, spec: ReshardSpec, players: Players) -> None:
        """Make a DeviceMesh for each distinct mesh; collective over the world."""
        self._tensors = spec.tensors
        self._meshes: dict[tuple[tuple[int, ...], tuple[int, ...]], DeviceMesh] = {}
        self._of: list[DeviceMesh | None] = []
        self._placements = [_placements(tensor) for tensor in spec.tensors]
        for tensor in spec.tensors:
            mesh = tensor.src[0].mesh
            key = (mesh.ranks, mesh.shape)
            if key not in self._meshes:
                processes = np.array([players.processes[rank] for rank in mesh.ranks]).reshape(mesh.shape)
                if not _ascends(processes):
                    raise InputError(
                        f"the source ranks {list(mesh.ranks)} are played by the processes"
                        f" {processes.reshape(-1).tolist()}; expected processes that ascend as the ranks do"
                    )
                self._meshes[key] = DeviceMesh(players.device.type, processes)
                for group in _groups(self._meshes[key]):
                    meet(group)
            self._of.append(self._meshes[key] if players.rank in mesh.ranks else None)

    def gather(self, number: int, carrier: Carrier, sources: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """The whole tensor on every rank of its first source layout, None on others; collective over it.

        Args:
            number: position of the tensor in the spec.
            carrier: how its elements travel.
            sources: the rank's local source tensors.

        Returns:
            A contiguous tensor of the carrier's dtype and shape; the local one itself where that is whole.
        """
        mesh = self._of[number]
        if mesh is None:
            return None
        shards = DTensor.from_local(
            carrier.whole(sources[0]),
            mesh,
            self._placements[number],
            run_check=False,
            shape=torch.Size(carrier.shape),
            stride=carrier.stride,
        )
        full: torch.Tensor = shards.full_tensor()
        return full.contiguous()

    def close(self) -> None:
        """Give up the process groups of the meshes."""
        meshes, self._meshes = list(self._meshes.values()), {}
        self._of = []
        for mesh in meshes:
            for group in _groups(mesh):
                destroy_group(group)


def _groups(mesh: DeviceMesh) -> list[dist.ProcessGroup]:
    """The groups of a mesh that this process is in."""
    return [] if mesh.get_coordinate() is None else mesh.get_all_groups()


def _placements(tensor: TensorSpec) -> list[Placement]:
    """The placements of the first source layout, as torch writes them."""
    found: list[Placement] = []
    for placement in tensor.src[0].placements:
        dim, factor = getattr(placement, "dim", None), getattr(placement, "split_factor", None)
        if dim is None:
            found.append(Replicate())
        else:
            found.append(Shard(dim) if factor is None else _StridedShard(dim, split_factor=factor))
    return found

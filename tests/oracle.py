"""Brute-force oracles: who holds what, element by element, and what must move.

Written from torch's rules on plain arrays of indices, without the planner's partitions, atoms or bounds.
Only the input values (layouts, tensors, topologies) are shared with the code under test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import permutations
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from reshard_executors.local import run_plan

import reshard_planner as rp
from reshard_planner.dtypes import DTYPE_BITS

Indices = NDArray[np.int64]
"""Indices along one dimension, in storage order."""


def torch_chunk(indices: Indices, count: int) -> list[Indices]:
    """``torch.chunk``: steps of ceil(size / count), nothing where the indices run out."""
    step = -(-len(indices) // count)
    return [indices[i * step : (i + 1) * step] for i in range(count)]


def torch_strided(indices: Indices, count: int, factor: int) -> list[Indices]:
    """Torch's ``_StridedShard``: chunk in ``factor`` parts, each over ``count``, and join per coordinate."""
    parts = [torch_chunk(part, count) for part in torch_chunk(indices, factor)]
    return [np.concatenate([part[i] for part in parts]) for i in range(count)]


def decoded_order(layout: rp.Layout, dim: int) -> tuple[int, ...] | None:
    """The order of axes whose encoding is this layout's, found by trying all; None if there is none."""
    axes = [
        axis
        for axis, placement in enumerate(layout.placements)
        if not isinstance(placement, rp.Replicate) and placement.dim == dim
    ]
    wanted = {
        axis: placement.split_factor if isinstance(placement, rp.StridedShard) else 1
        for axis in axes
        for placement in [layout.placements[axis]]
    }
    for order in permutations(axes):
        made = {
            axis: prod(layout.mesh.shape[b] for b in order[:at] if b > axis) for at, axis in enumerate(order)
        }
        if made == wanted:
            return order
    return None


def local_indices(layout: rp.Layout, shape: Sequence[int]) -> dict[int, tuple[Indices, ...]]:
    """Per rank and tensor dimension, the indices that the rank stores, in storage order."""
    layout = layout.normalized(len(shape))
    orders = {dim: decoded_order(layout, dim) for dim in range(len(shape))}
    literal = any(order is None for order in orders.values())
    every = [np.arange(size) for size in shape]
    found = {}
    for coordinate in np.ndindex(*layout.mesh.shape):
        rank = int(layout.mesh.array()[coordinate])
        per_dim = []
        for dim, whole in enumerate(every):
            order = orders[dim]
            axes = range(layout.mesh.ndim) if literal or order is None else order
            part = whole
            for axis in axes:
                placement = layout.placements[axis]
                if isinstance(placement, rp.Replicate) or placement.dim != dim:
                    continue
                count = layout.mesh.shape[axis]
                if literal and isinstance(placement, rp.StridedShard):
                    part = torch_strided(part, count, placement.split_factor)[coordinate[axis]]
                else:
                    part = torch_chunk(part, count)[coordinate[axis]]
            per_dim.append(part)
        found[rank] = tuple(per_dim)
    return found


def holder_masks(
    layouts: Sequence[rp.Layout], shape: Sequence[int], kept: Sequence[Indices] | None = None
) -> NDArray[np.uint64]:
    """For every element, the ranks (below 64) that store it under one of the layouts, as a set of bits.

    Args:
        layouts: the layouts of one side.
        shape: shape of the tensor.
        kept: per dimension, the indices to look at; all when None.
    """
    looked = [np.arange(size) for size in shape] if kept is None else list(kept)
    masks = np.zeros([len(indices) for indices in looked], dtype=np.uint64)
    for layout in layouts:
        for rank, per_dim in local_indices(layout, shape).items():
            stored = np.array(True)
            for dim, indices in enumerate(per_dim):
                here = np.isin(looked[dim], indices)
                stored = stored[..., None] & here.reshape((1,) * dim + (-1,))
            masks[stored] |= np.uint64(1) << np.uint64(rank)
    return masks


def members(mask: int) -> tuple[int, ...]:
    """The ranks of a set of bits, ascending."""
    return tuple(rank for rank in range(64) if mask >> rank & 1)


def representatives(
    layouts: Sequence[rp.Layout], shape: Sequence[int]
) -> list[tuple[Indices, NDArray[np.int64]]]:
    """Per dimension, one index of each kind and how many there are of it.

    Indices are of one kind if they are in the same lists of all ranks and layouts; elements of equal kinds
    are stored by equal ranks, so that one of them speaks for all.
    """
    stored = [local_indices(layout, shape) for layout in layouts]
    found = []
    for dim, size in enumerate(shape):
        kind = np.zeros(size, dtype=np.int64)
        for number, per_dim in enumerate(lists for by_rank in stored for lists in by_rank.values()):
            if number % 60 == 59:
                kind = np.unique(kind, return_inverse=True)[1].reshape(-1)
            kind *= 2
            kind[_as_slice(per_dim[dim])] += 1
        runs = np.flatnonzero(np.diff(kind, prepend=-1)) if size else np.zeros(0, dtype=np.int64)
        extents = np.diff(runs, append=size)
        _, first, which = np.unique(kind[runs], return_index=True, return_inverse=True)
        count = np.zeros(len(first), dtype=np.int64)
        np.add.at(count, which, extents)
        found.append((runs[first], count))
    return found


def domains_of(topology: rp.Topology) -> dict[int, int]:
    """Domain of every rank, for topologies without ``rank_map``."""
    return {gpu: index for index, domain in enumerate(topology.domains) for gpu in domain.gpus}


class Moves:
    """What must move for the tensors of a spec, in bytes, summed over elements.

    Attributes:
        network: the least over the network, every domain in need taking in every element once.
        nvlink: the rest of what is missing.
        local: what the same rank holds already, in each of its buffers.
        direct_network: over the network if every needer fetches its own copy.
        direct_nvlink: within domains, likewise.
    """

    def __init__(self, spec: rp.ReshardSpec, *, by_kind: bool = False) -> None:
        """Count, over single elements or, for large tensors, over kinds of elements."""
        home = domains_of(spec.topology)
        bits: Counter[str] = Counter()
        for tensor in spec.tensors:
            width = DTYPE_BITS[tensor.dtype]
            kinds = representatives((*tensor.src, *tensor.dst), tensor.shape) if by_kind else None
            kept = None if kinds is None else [indices for indices, _ in kinds]
            holders = holder_masks(tensor.src, tensor.shape, kept).reshape(-1)
            needers = holder_masks(tensor.dst, tensor.shape, kept).reshape(-1)
            weight = np.ones((), dtype=np.int64)
            for _, counts in kinds or ():
                weight = weight[..., None] * counts
            weights = np.broadcast_to(weight.reshape(-1) if kinds else weight, holders.shape)
            pairs, inverse = np.unique(np.stack([holders, needers]), axis=1, return_inverse=True)
            elements = np.bincount(inverse.reshape(-1), weights, minlength=pairs.shape[1]).astype(np.int64)
            missing_bits = 0
            for holding, needing, count in zip(*pairs.tolist(), elements.tolist(), strict=True):
                held_in = {home[rank] for rank in members(holding)}
                missing = members(needing & ~holding)
                far = [rank for rank in missing if home[rank] not in held_in]
                crossing = len({home[rank] for rank in far})
                bits["network"] += width * count * crossing
                bits["nvlink"] += width * count * (len(missing) - crossing)
                bits["direct_network"] += width * count * len(far)
                bits["direct_nvlink"] += width * count * (len(missing) - len(far))
                missing_bits += width * count * len(missing)
            for layout in tensor.dst:
                for per_dim in local_indices(layout, tensor.shape).values():
                    bits["buffers"] += width * prod(map(len, per_dim))
            bits["local"] -= missing_bits
        self.network = bits["network"] // 8
        self.nvlink = bits["nvlink"] // 8
        self.local = (bits["buffers"] + bits["local"]) // 8
        self.direct_network = bits["direct_network"] // 8
        self.direct_nvlink = bits["direct_nvlink"] // 8


def handed_on(plan: rp.Plan) -> int:
    """Bytes that ranks keep aside to lend their NICs: they move once more over NVLink than they must."""
    ops = plan.ops()
    return int(ops.nbytes[ops.scratch > 0].sum())


def global_data(tensor: rp.TensorSpec, seed: int = 0) -> NDArray[Any]:
    """Random bytes for a whole tensor: elements of its width, or packed bytes along the last dimension."""
    bits = DTYPE_BITS[tensor.dtype]
    shape = tensor.shape if bits >= 8 else (*tensor.shape[:-1], tensor.shape[-1] * bits // 8)
    width = max(1, bits // 8)
    raw = np.random.default_rng(seed).bytes(prod(shape) * width)
    return np.frombuffer(raw, dtype=f"V{width}").reshape(shape)


def local_data(
    tensor: rp.TensorSpec, layouts: Sequence[rp.Layout], data: NDArray[Any]
) -> dict[int, list[NDArray[Any]]]:
    """Per rank, the local buffer under each layout that the rank is part of, by numpy indexing."""
    bits = DTYPE_BITS[tensor.dtype]
    found: dict[int, list[NDArray[Any]]] = {}
    for layout in layouts:
        for rank, per_dim in local_indices(layout, tensor.shape).items():
            lists = list(per_dim)
            if bits < 8:
                lists[-1] = _packed(lists[-1], bits)
            buffer = data
            for dim, indices in enumerate(lists):
                buffer = buffer[(slice(None),) * dim + (_as_slice(indices),)]
            found.setdefault(rank, []).append(buffer)
    return found


def _packed(elements: Indices, bits: int) -> Indices:
    """Bytes that hold these elements of a packed row; runs start and end at whole bytes."""
    return ((elements[:, None] * bits + np.arange(bits)).reshape(-1) // 8)[::8]


def _as_slice(indices: Indices) -> slice | Indices:
    """The same selection without a copy, where the indices follow one another."""
    if len(indices) and indices[-1] - indices[0] + 1 == len(indices):
        return slice(int(indices[0]), int(indices[-1]) + 1)
    return indices


Buffers = dict[int, dict[str, list[NDArray[Any]]]]
"""Local buffers by rank and tensor name."""


def sources(spec: rp.ReshardSpec, seed: int = 0) -> Buffers:
    """Source buffers, views of random whole tensors."""
    return sources_and_destinations(spec, seed)[0]


def sources_and_destinations(spec: rp.ReshardSpec, seed: int = 0) -> tuple[Buffers, Buffers]:
    """Source buffers, and what every destination buffer must contain."""
    sides: tuple[Buffers, Buffers] = ({}, {})
    for number, tensor in enumerate(spec.tensors):
        data = global_data(tensor, seed + number)
        for found, layouts in zip(sides, (tensor.src, tensor.dst), strict=True):
            for rank, buffers in local_data(tensor, layouts, data).items():
                found.setdefault(rank, {})[tensor.name] = buffers
    return sides


def _comparable(buffer: NDArray[Any]) -> NDArray[Any]:
    """Raw elements of up to 8 bytes as numbers, which compare faster than raw bytes do."""
    width = buffer.dtype.itemsize
    return buffer.view(f"u{width}") if width <= 8 else buffer


def assert_interprets_exactly(plan: rp.Plan, seed: int = 0) -> None:
    """Run a plan with the interpreter and compare every destination byte, and the bytes it measured."""
    given, wanted_buffers = sources_and_destinations(plan.spec, seed)
    result = rp.interpret(plan, given)
    for rank, by_tensor in wanted_buffers.items():
        for name, wanted in by_tensor.items():
            got = result.destinations[rank][name]
            for number, (have, want) in enumerate(zip(got, wanted, strict=True)):
                assert have.shape == want.shape, (rank, name, number)
                assert have.dtype == want.dtype
                assert np.array_equal(_comparable(have), _comparable(want)), (rank, name, number)
    payload = plan.certificate.payload
    assert result.measured.network_nbytes == payload.network_nbytes
    assert result.measured.nvlink_nbytes == payload.nvlink_nbytes


def assert_processes_move_as_certified(plan: rp.Plan) -> None:
    """Run a plan with a process per rank: every element arrives, over the media that the plan says."""
    report = run_plan(plan, "torch", timeout_s=60)
    assert report.correct
    payload = plan.certificate.payload
    measured = report.measured
    assert (measured.network_nbytes, measured.nvlink_nbytes) == (
        payload.network_nbytes,
        payload.nvlink_nbytes,
    )

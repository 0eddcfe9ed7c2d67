"""torch's distributed checkpoint: read items for every destination rank, from chunks that source ranks hold.

Traffic: each item is read by its rank from the first rank that holds the chunk, directly. That is how a
checkpoint in memory would be loaded; nothing is passed on between replicas.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

import reshard_planner as rp
from benchmarks.peers.planned import Planned, Traffic, only_tensor, timed


def plan(spec: rp.ReshardSpec, repeat: int) -> Planned:
    """Read items of all destination ranks, one rank after another."""
    tensor, src, dst = only_tensor(spec)
    owners = _chunks(src, tensor.shape)
    wanted = {rank: list(_chunks_of(dst, tensor.shape, rank)) for rank in dst.mesh.ranks}
    metadata = TensorStorageMetadata(
        TensorProperties(dtype=torch.bfloat16), torch.Size(tensor.shape), [chunk for chunk, _ in owners]
    )

    def read_items() -> dict[int, list[Any]]:
        return {
            rank: create_read_items_for_chunk_list(tensor.name, metadata, chunks)
            for rank, chunks in wanted.items()
        }

    plan_s, items = timed(read_items, repeat)
    traffic = Traffic()
    for rank, reads in items.items():
        for read in reads:
            holder = owners[read.storage_index.index][1]
            traffic.add(holder, rank, read.lengths.numel() * tensor.bits // 8)
    note = "every rank reads from the first holder; time for all ranks, one after another"
    return Planned(plan_s, sum(map(len, items.values())), traffic, spec, note)


def _chunks(layout: rp.Layout, shape: tuple[int, ...]) -> list[tuple[ChunkStorageMetadata, int]]:
    """Distinct chunks with the first rank that holds each."""
    found: dict[tuple[torch.Size, torch.Size], tuple[ChunkStorageMetadata, int]] = {}
    for rank in layout.mesh.ranks:
        for chunk in _chunks_of(layout, shape, rank):
            found.setdefault((chunk.offsets, chunk.sizes), (chunk, rank))
    return list(found.values())


def _chunks_of(layout: rp.Layout, shape: tuple[int, ...], rank: int) -> list[ChunkStorageMetadata]:
    boxes = [tile.box for tile in layout.partition(shape).tiles(rank)]
    return [
        ChunkStorageMetadata(
            torch.Size(box.lo), torch.Size(hi - lo for lo, hi in zip(box.lo, box.hi, strict=True))
        )
        for box in boxes
    ]

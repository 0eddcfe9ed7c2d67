"""Shadows: memory that a refit writes instead of the destinations, until all ranks have ended well."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reshard_executors.binding import LocalMemories, LocalMemory
from reshard_executors.copies import Pair, copy_in_bulk
from reshard_executors.messages import aligned, dense_strides
from reshard_executors.ready import Staging
from reshard_executors.views import StridedView
from reshard_planner.dtypes import DTYPE_BITS
from reshard_planner.spec import ReshardSpec
from reshard_planner.spec.tiles import SideTiles


@dataclass(frozen=True, slots=True)
class Shadow:
    """What is written instead of the destinations of one rank.

    Attributes:
        memories: of the shadows, by position of the tensor.
        fill: copies what a refit does not write from the destinations, before it.
        publish: copies all from the shadows to the destinations, after it.
    """

    memories: LocalMemories
    fill: Callable[[], None]
    publish: Callable[[], None]


def make_shadow(spec: ReshardSpec, rank: int, destinations: LocalMemories, staging: Staging) -> Shadow:
    """Make shadows of all destinations.

    Args:
        spec: of the plan.
        rank: whose destinations they are.
        destinations: their memory, of all tensors that are moved.
        staging: gives the memory.

    Raises:
        RuntimeError: if there is not enough memory.
    """
    written = _written_nbytes(spec, rank, destinations)
    real = {id(memory): memory for own in destinations.values() for memory in own}
    places, end = {}, 0
    for key, memory in real.items():
        places[key] = end
        end = aligned(end + memory.whole.nbytes)
    block = staging.block("shadow", end)
    shadows: dict[int, LocalMemory] = {}
    pairs: list[Pair] = []
    partial: list[Pair] = []
    for key, memory in real.items():
        whole = memory.whole
        copy = StridedView(block, places[key], whole.shape, dense_strides(whole.shape), whole.itemsize)
        shadows[key] = LocalMemory(memory.label, memory.tensors, copy)
        pairs.append((whole, copy))
        if written[key] < whole.nbytes:
            partial.append((copy, whole))
    return Shadow(
        {number: tuple(shadows[id(memory)] for memory in own) for number, own in destinations.items()},
        copy_in_bulk(partial, staging.device),
        copy_in_bulk(pairs, staging.device),
    )


def _written_nbytes(spec: ReshardSpec, rank: int, destinations: LocalMemories) -> dict[int, int]:
    """Bytes of each destination that a refit writes, by identity of its memory."""
    found = {id(memory): 0 for own in destinations.values() for memory in own}
    for number, own in destinations.items():
        tensor = spec.tensors[number]
        for memory, elements in zip(
            own, _tile_elements(SideTiles(tensor, "dst"), rank, len(own)), strict=True
        ):
            found[id(memory)] += elements * DTYPE_BITS[tensor.side_dtype("dst")] // 8
    return found


def _tile_elements(tiles: SideTiles, rank: int, buffers: int) -> Sequence[int]:
    """Elements of the rank's tiles in each of its buffers."""
    found = [0] * buffers
    for tile in tiles.tiles(rank):
        for span in tile.spans:
            found[span.buffer] += span.tile.box.volume
    return found

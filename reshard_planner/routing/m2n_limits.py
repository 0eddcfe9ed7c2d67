"""What NCCL M2N accepts, parameter by parameter.

The limits are those that the library documents or checks (NVIDIA/nccl-extensions, ``nccl_m2n``, release
0.1.0, README and source). One reshard moves a tensor of one to three dimensions between two disjoint,
contiguous intervals of ranks, each a mesh of at most two axes of which one cuts one dimension evenly.
"""

from __future__ import annotations

from reshard_planner.routing.m2n_sides import M2nSide, find_side
from reshard_planner.spec import TensorSpec
from reshard_planner.spec.values import Side

MAX_DIMS = 3

MAX_SOURCES = 16
"""Source shards that one destination shard is made of."""

MAX_TARGETS = 64
"""Destination shards that one source shard is cut in."""

DTYPES = frozenset(
    ("int8", "uint8", "float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "int32", "uint32", "float32")
) | frozenset(("int64", "uint64", "float64"))

SIDES: tuple[tuple[Side, str], ...] = (("src", "source"), ("dst", "destination"))


def why_refused(tensor: TensorSpec) -> str | None:
    """Why NCCL M2N would refuse a tensor; None if it would move it.

    Reasons are alike for tensors that are refused alike: they name no sizes.
    """
    found = find_sides(tensor)
    return found if isinstance(found, str) else None


def find_sides(tensor: TensorSpec) -> tuple[M2nSide, M2nSide] | str:
    """Source and destination of a tensor as NCCL M2N knows them; or why it would refuse the tensor."""
    if not 1 <= len(tensor.shape) <= MAX_DIMS:
        return f"it has fewer than 1 or more than {MAX_DIMS} dimensions"
    if tensor.dst_dtype != tensor.dtype:
        return f"it is converted from {tensor.dtype} to {tensor.dst_dtype}"
    if tensor.dtype not in DTYPES:
        return f"its dtype is {tensor.dtype}"
    sides: list[M2nSide] = []
    for side, word in SIDES:
        if len(tensor.layouts(side)) > 1:
            return f"it has several {word} layouts"
        found = find_side(tensor.layouts(side)[0], tensor.shape)
        if isinstance(found, str):
            return f"{word}: {found}"
        sides.append(found)
    source, destination = sides
    return _why_not_together(source, destination) or (source, destination)


def _why_not_together(source: M2nSide, destination: M2nSide) -> str | None:
    held, needed = ({rank for copies in side.ranks for rank in copies} for side in (source, destination))
    if held & needed:
        return "source and destination have ranks in common"
    if max(len(source.meeting(shard)) for shard in destination.shards) > MAX_SOURCES:
        return f"a destination shard is made of more than {MAX_SOURCES} source shards"
    if max(len(destination.meeting(shard)) for shard in source.shards) > MAX_TARGETS:
        return f"a source shard is cut in more than {MAX_TARGETS} destination shards"
    return None

"""Comparing what a run delivered with what it must deliver, bit by bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from reshard_executors.values import Buffer, Values, blocks, tile_arrays
from reshard_planner.box import Box
from reshard_planner.ir.conversion import convert, is_nan
from reshard_planner.ir.plan import Plan
from reshard_planner.spec import TensorSpec


def first_difference(
    plan: Plan, rank: int, destinations: Mapping[str, Sequence[Buffer]], values: Values
) -> str | None:
    """Compare every element of a rank's destination buffers.

    Args:
        plan: what was run.
        rank: whose buffers these are.
        destinations: by name; a tensor of which the rank stores nothing may be left out.
        values: what the tensors contain.

    Returns:
        A sentence on the first element that differs, in order of tensors and tiles; None if none does.
    """
    for number, tensor in enumerate(plan.spec.tensors):
        for box, array in tile_arrays(tensor, rank, "dst", destinations):
            for block in blocks(box):
                have = array[block.shift(box.lo).slices()]
                want = values.read(number, block)
                if tensor.dst_dtype != tensor.dtype:
                    want = convert(want, tensor.dtype, tensor.dst_dtype)
                    both = is_nan(have, tensor.dst_dtype) & is_nan(want, tensor.dst_dtype)
                    want = np.where(both, have, want)  # conversions keep no more of a NaN than that it is one
                found = _differing_element(have, want)
                if found is not None:
                    return _describe(tensor, rank, block, found, have, want)
    return None


def _differing_element(have: Buffer, want: Buffer) -> tuple[int, ...] | None:
    """Index of the first element that differs in any bit."""
    unequal = (_raw(have) != _raw(want)).any(axis=-1)
    if not unequal.any():
        return None
    return tuple(int(at) for at in np.argwhere(unequal)[0])


def _raw(array: Buffer) -> Buffer:
    """The bytes of an array, as one more dimension."""
    return np.ascontiguousarray(array).view(np.uint8).reshape(*array.shape, array.dtype.itemsize)


def _describe(
    tensor: TensorSpec, rank: int, block: Box, at: tuple[int, ...], have: Buffer, want: Buffer
) -> str:
    index = [lo + offset for lo, offset in zip(block.lo, at, strict=True)]
    unit = "element"
    if tensor.bits < 8:
        index[-1] = index[-1] * 8 // tensor.bits
        unit = "the byte at element"
    shown = [bytes(_raw(array[at]).reshape(-1)[::-1]).hex() for array in (have, want)]
    return f"tensor {tensor.name!r}, rank {rank}: {unit} {index} is 0x{shown[0]}; expected 0x{shown[1]}"

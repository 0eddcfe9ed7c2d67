"""Copies on a device: hundreds of strided boxes with a handful of kernels, not one for each.

What is to be copied becomes tables, once: boxes by the size of the units in which they move, and blocks of
units, one for each program of the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from reshard_executors.views import StridedView, alike, joined_dims

UNITS = (16, 8, 4, 2, 1)
"""Sizes of a unit in bytes: what one thread moves at a time."""

BLOCKS = {16: 1024, 8: 2048, 4: 2048, 2: 2048, 1: 2048}
"""Units that one program of the kernel moves, by their size; powers of two."""

MAX_UNITS = 2**30
"""Most units of one box: the kernel counts them, rounded up to whole blocks, in 32 bits."""

WARPS = 4

Dims = tuple[tuple[int, int, int], ...]
"""Per dimension, outermost first: extent, and distance between neighbours in the target and in the source."""


@dataclass(frozen=True, slots=True, eq=False)
class CopyTable:
    """Boxes that are copied in units of one size.

    Attributes:
        unit: size of a unit in bytes; it divides all addresses and distances.
        block: units of one row of ``work``, but for the last of a box.
        boxes: per box, address of target and source, number of units, its first row in ``dims``, and how many
            there are; int64 of shape (boxes, 5).
        dims: per dimension, innermost first, extent in units and distance between neighbours in target and
            source in bytes; int64 of shape (dims, 3).
        work: per block, its box and the number of its first unit; int64 of shape (blocks, 2).
    """

    unit: int
    block: int
    boxes: NDArray[np.int64]
    dims: NDArray[np.int64]
    work: NDArray[np.int64]


def copy_tables(pairs: Sequence[tuple[StridedView, StridedView]]) -> tuple[CopyTable, ...]:
    """Lower copies to tables, those of large units first; pairs without elements vanish.

    Args:
        pairs: target and source, of equal shape and element size.
    """
    found: dict[int, list[tuple[int, int, Dims]]] = {}
    for target, source in pairs:
        if prod(target.shape):
            dims = _merged(target, source)
            unit = gcd(16, target.address, source.address, *(step for _, *steps in dims for step in steps))
            unit = gcd(unit, dims[-1][0])
            # the last dimension is a run of bytes; it becomes one of units
            dims = (*dims[:-1], (dims[-1][0] // unit, unit, unit))
            found.setdefault(unit, []).extend(_cut(target.address, source.address, dims))
    return tuple(_table(unit, found[unit]) for unit in UNITS if unit in found)


def _merged(target: StridedView, source: StridedView) -> Dims:
    """The dimensions of both views in bytes, the last a run of bytes; joined where both allow it."""
    itemsize = target.itemsize
    *dims, (run, _, _) = joined_dims(target, source)
    return (
        *((extent, into * itemsize, out_of * itemsize) for extent, into, out_of in dims),
        (run * itemsize, 0, 0),
    )


def _cut(target: int, source: int, dims: Dims) -> Iterator[tuple[int, int, Dims]]:
    """Halve a box along its longest dimension until its units can be counted in 32 bits."""
    if prod(extent for extent, _, _ in dims) <= MAX_UNITS:
        yield target, source, dims
        return
    at = max(range(len(dims)), key=lambda dim: dims[dim][0])
    extent, into, out_of = dims[at]
    half = extent // 2
    yield from _cut(target, source, (*dims[:at], (half, into, out_of), *dims[at + 1 :]))
    rest = (*dims[:at], (extent - half, into, out_of), *dims[at + 1 :])
    yield from _cut(target + half * into, source + half * out_of, rest)


def _table(unit: int, boxes: Sequence[tuple[int, int, Dims]]) -> CopyTable:
    block = BLOCKS[unit]
    rows: list[tuple[int, ...]] = []
    all_dims: list[tuple[int, int, int]] = []
    work = []
    for number, (target, source, dims) in enumerate(boxes):
        count = prod(extent for extent, _, _ in dims)
        rows.append((target, source, count, len(all_dims), len(dims)))
        all_dims.extend(reversed(dims))
        firsts = np.arange(0, count, block, dtype=np.int64)
        work.append(np.stack([np.full_like(firsts, number), firsts], axis=1))
    return CopyTable(
        unit,
        block,
        np.array(rows, dtype=np.int64),
        np.array(all_dims, dtype=np.int64),
        np.concatenate(work),
    )


class DeviceCopies:
    """Copies between fixed places, any number of times.

    The work is one kernel per size of unit, at most five, by Triton. Where Triton cannot be imported it is
    ``torch._foreach_copy_``, one kernel per box.
    """

    def __init__(self, pairs: Sequence[tuple[StridedView, StridedView]], device: torch.device) -> None:
        """Make the tables, and put them on the device.

        Args:
            pairs: target and source, of equal shape and element size; no target shares memory with another
                target or a source.
            device: where all of them lie: a CUDA device, or the CPU under Triton's interpreter.

        Raises:
            RuntimeError: if the device has no memory for the tables.
        """
        self._device = device
        self._pairs = tuple(pairs)  # keeps the memory alive that the tables point to
        self._launches: list[Callable[[], Any]] = []
        try:
            from reshard_executors import copy_kernel  # noqa: PLC0415 - Triton is optional
        except ImportError:
            both = [alike(*pair) for pair in self._pairs if prod(pair[0].shape)]
            if both:
                self._launches.append(_one_by_one(both))
            return
        for table in copy_tables(self._pairs):
            columns = [torch.from_numpy(each).to(device) for each in (table.boxes, table.dims, table.work)]
            word, words = copy_kernel.WORDS[table.unit]
            self._launches.append(_launch(copy_kernel.copy_units, columns, table.block, word, words))

    def run(self) -> None:
        """Start all copies on the device's current stream."""
        if not self._launches:
            return
        with torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext():
            for launch in self._launches:
                launch()


def _launch(
    kernel: Any, columns: Sequence[torch.Tensor], block: int, word: Any, words: int
) -> Callable[[], Any]:
    programs = (len(columns[-1]),)
    return lambda: kernel[programs](*columns, block, word, words, num_warps=WARPS)


def _one_by_one(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Callable[[], Any]:
    targets, sources = [target for target, _ in pairs], [source for _, source in pairs]
    return lambda: torch._foreach_copy_(targets, sources)

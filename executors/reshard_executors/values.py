"""Where the elements of a run come from, and local buffers made of them.

Everything here is in storage coordinates: an element of the tensor is one storage element, except below eight
bits, where the bytes along the last dimension are (see :class:`reshard_planner.ir.views.View`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from reshard_planner.box import Box
from reshard_planner.dtypes import DTYPE_BITS
from reshard_planner.ir.interpret import by_name, make_buffers
from reshard_planner.ir.plan import Plan
from reshard_planner.ir.views import Place, storage_nbytes, tile_views
from reshard_planner.spec import TensorSpec
from reshard_planner.spec.tiles import LocalTile, SideTiles
from reshard_planner.spec.values import Side

Buffer = NDArray[Any]
Buffers = dict[str, list[Buffer]]
"""A rank's local buffers by name: that of the tensor, one per layout that the rank is part of, in the spec's
order, or the name that the spec gives to the buffer."""

BLOCK_ELEMENTS = 2**20
"""Elements that are made or compared at a time, so that large tiles cost little memory beside the buffers."""


class Values(Protocol):
    """The contents of all tensors of a spec."""

    def read(self, tensor: int, box: Box) -> Buffer:
        """The elements of a box.

        Args:
            tensor: position of the tensor in the spec.
            box: range in storage coordinates.

        Returns:
            An array of the box's shape and of the dtype :func:`storage_dtype` gives for the source's type.
        """
        ...


def storage_dtype(bits: int) -> np.dtype[Any]:
    """Dtype that carries storage elements bit for bit: unsigned integers, complex128 for 16 bytes."""
    nbytes = storage_nbytes(bits)
    return np.dtype("<c16" if nbytes == 16 else f"<u{nbytes}")


def storage_box(box: Box, bits: int) -> Box:
    """A box of elements in storage coordinates."""
    if bits >= 8 or not box.ndim:
        return box
    return box.replace(box.ndim - 1, box.lo[-1] * bits // 8, box.hi[-1] * bits // 8)


def blocks(box: Box, limit: int = BLOCK_ELEMENTS) -> Iterator[Box]:
    """The box cut into boxes of at most ``limit`` elements, in row-major order; none if it is empty."""
    if box.volume <= limit:
        if box.volume:
            yield box
        return
    dim = next(dim for dim, extent in enumerate(box.shape) if extent > 1)
    middle = (box.lo[dim] + box.hi[dim]) // 2
    yield from blocks(box.replace(dim, box.lo[dim], middle), limit)
    yield from blocks(box.replace(dim, middle, box.hi[dim]), limit)


def tile_arrays(
    tensor: TensorSpec, rank: int, side: Side, buffers: Mapping[str, Sequence[Buffer]]
) -> Iterator[tuple[Box, Buffer]]:
    """Each span of the rank's tiles of one tensor: its box in storage coordinates, and a writable view of it.

    Args:
        tensor: the tensor.
        rank: the rank.
        side: which of its tiles.
        buffers: all of the rank's buffers of the tensor on this side, by name.
    """
    tiles, bits = SideTiles(tensor, side), DTYPE_BITS[tensor.side_dtype(side)]
    own = tiles.pick(rank, buffers)
    place = Place.SOURCE if side == "src" else Place.DESTINATION
    for entry in tiles.tiles(rank):
        for span in entry.spans:
            [view] = tile_views(place, LocalTile(span.tile.box, (span,)), span.tile.box, bits)
            flat = own[view.buffer].reshape(-1)
            strides = tuple(stride * flat.itemsize for stride in view.strides)
            array = np.lib.stride_tricks.as_strided(flat[view.offset :], view.shape, strides)
            yield storage_box(span.tile.box, bits), array


def empty_buffers(plan: Plan, rank: int, side: Side) -> Buffers:
    """Zeroed local buffers of a rank on one side, for every tensor that the rank stores there."""
    dtypes = {
        number: storage_dtype(DTYPE_BITS[tensor.side_dtype(side)])
        for number, tensor in enumerate(plan.spec.tensors)
    }
    made = by_name(plan, rank, side, make_buffers(plan, rank, side, dtypes))
    return {name: buffers for name, buffers in made.items() if buffers}


def filled_buffers(plan: Plan, rank: int, side: Side, values: Values) -> Buffers:
    """Local buffers of a rank on one side with their contents; only its own tiles are read."""
    found = empty_buffers(plan, rank, side)
    for number, tensor in enumerate(plan.spec.tensors):
        for box, array in tile_arrays(tensor, rank, side, found):
            for block in blocks(box):
                array[block.shift(box.lo).slices()] = values.read(number, block)
    return found

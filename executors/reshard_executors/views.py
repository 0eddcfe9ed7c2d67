"""Views: strided ranges of raw storage, and copies between them that keep every bit.

Elements are not interpreted where they need not be converted: they are moved as integers of their size, or of
a smaller one where their place in memory is not a multiple of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod

import torch

from reshard_planner.ir.messages import is_dense

UNITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer dtypes by their size in bytes."""


@dataclass(frozen=True, slots=True)
class StridedView:
    """Elements in a storage.

    Attributes:
        storage: the memory.
        start: place of the first element, in bytes.
        shape: extent per dimension, in elements.
        strides: distance between neighbours per dimension, in elements.
        itemsize: bytes of one element.
        dtype: type of the elements of a tensor that is converted; None where bits are moved as they are.
    """

    storage: torch.UntypedStorage
    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    dtype: torch.dtype | None = None

    @property
    def nbytes(self) -> int:
        """Size of its elements."""
        return prod(self.shape) * self.itemsize

    @property
    def reach_nbytes(self) -> int:
        """Bytes from the first element to the end of the last one."""
        reach = sum((extent - 1) * stride for extent, stride in zip(self.shape, self.strides, strict=True))
        return (reach + 1) * self.itemsize

    @property
    def is_dense(self) -> bool:
        """Whether its elements are one run of bytes in row-major order."""
        return is_dense(self.shape, self.strides)

    @property
    def address(self) -> int:
        """Address of the first element."""
        return int(self.storage.data_ptr()) + self.start

    def as_bytes(self) -> torch.Tensor:
        """The view as one run of bytes, shape (nbytes,), uint8; only for views without gaps."""
        return _alias(self.storage, torch.uint8, self.start, (self.nbytes,), (1,))


def typed(view: StridedView) -> torch.Tensor:
    """A view as a tensor of its dtype, of bytes without one; it must begin at a multiple of its elements."""
    dtype = torch.uint8 if view.dtype is None else view.dtype
    return _alias(view.storage, dtype, view.start // view.itemsize, view.shape, view.strides)


def alike(target: StridedView, source: StridedView) -> tuple[torch.Tensor, torch.Tensor]:
    """Two views of equal shape and element size as tensors of equal shape and dtype, ready to be copied.

    Dimensions that are one run in both views become one, and elements are taken together to integers as large
    as the places of all runs allow: that doubles the speed of copying rows of a matrix.
    """
    itemsize = target.itemsize
    *outer, (run, _, _) = joined_dims(target, source)
    steps = [step * itemsize for _, *both in outer for step in both]
    unit = gcd(8, run * itemsize, target.start, source.start, *steps)
    shape = (*(extent for extent, _, _ in outer), run * itemsize // unit)
    return (
        _alias(target.storage, UNITS[unit], target.start // unit, shape, _in_units(outer, 1, itemsize, unit)),
        _alias(source.storage, UNITS[unit], source.start // unit, shape, _in_units(outer, 2, itemsize, unit)),
    )


def joined_dims(target: StridedView, source: StridedView) -> list[tuple[int, int, int]]:
    """Dimensions of two views of equal shape: extent, and strides in elements of target and source.

    Those that are one run in both views are one; the last is a run of neighbours, of one element at least.
    """
    dims: list[tuple[int, int, int]] = []
    for extent, into, out_of in zip(target.shape, target.strides, source.strides, strict=True):
        if extent == 1:
            continue
        if dims and dims[-1][1:] == (extent * into, extent * out_of):
            dims[-1] = (dims[-1][0] * extent, into, out_of)
        else:
            dims.append((extent, into, out_of))
    if not dims or dims[-1][1:] != (1, 1):
        dims.append((1, 1, 1))
    return dims


def _in_units(dims: Sequence[tuple[int, int, int]], side: int, itemsize: int, unit: int) -> tuple[int, ...]:
    return (*(dim[side] * itemsize // unit for dim in dims), 1)


def _alias(
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
) -> torch.Tensor:
    return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset, shape, strides)

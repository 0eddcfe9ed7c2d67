"""Views: strided ranges of raw storage, and copies between them that keep every bit.

Elements are never interpreted: they are moved as integers of their size, or of a smaller one where their
place in memory is not a multiple of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

import torch

UNITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer dtypes by their size in bytes."""


@dataclass(frozen=True, slots=True)
class BoundView:
    """Elements in a storage.

    Attributes:
        storage: the memory.
        start: place of the first element, in bytes.
        shape: extent per dimension, in elements.
        strides: distance between neighbours per dimension, in elements.
        itemsize: bytes of one element.
    """

    storage: torch.UntypedStorage
    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    def as_bytes(self) -> torch.Tensor:
        """The view as one run of bytes, shape (nbytes,), uint8; only for views without gaps."""
        return _alias(self.storage, torch.uint8, self.start, (prod(self.shape) * self.itemsize,), (1,))

    def in_units(self, nbytes: int) -> torch.Tensor:
        """The view as integers of ``nbytes`` bytes, several per element where that is larger."""
        per_element = self.itemsize // nbytes
        shape, strides = self.shape, tuple(stride * per_element for stride in self.strides)
        if per_element > 1:
            shape, strides = (*shape, per_element), (*strides, 1)
        return _alias(self.storage, UNITS[nbytes], self.start // nbytes, shape, strides)


def copy_view(target: BoundView, source: BoundView) -> None:
    """Copy between views of equal shape and element size."""
    nbytes = gcd(8, target.itemsize, target.start, source.start)
    target.in_units(nbytes).copy_(source.in_units(nbytes))


def _alias(
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
) -> torch.Tensor:
    return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset, shape, strides)

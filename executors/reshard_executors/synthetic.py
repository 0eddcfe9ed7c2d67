"""Made-up contents of tensors: every element's bits follow from the tensor and the element's index.

The bits are mixed well, so that an element at a wrong place shows.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reshard_executors.values import Buffer, storage_dtype
from reshard_planner.box import Box
from reshard_planner.dtypes import DTYPE_BITS
from reshard_planner.ir.views import storage_shape
from reshard_planner.spec import ReshardSpec

_ELEMENT_STEP = 0x9E3779B97F4A7C15
_TENSOR_STEP = 0xD1342543DE82EF95
_MASK = 2**64 - 1


class SyntheticValues:
    """Contents of the tensors of a spec, by arithmetic."""

    def __init__(self, spec: ReshardSpec) -> None:
        bits = [DTYPE_BITS[tensor.dtype] for tensor in spec.tensors]
        self._shapes = [
            storage_shape(tensor.shape, size) for tensor, size in zip(spec.tensors, bits, strict=True)
        ]
        self._dtypes = [storage_dtype(size) for size in bits]

    def read(self, tensor: int, box: Box) -> Buffer:
        """See :meth:`reshard_executors.values.Values.read`."""
        dtype = self._dtypes[tensor]
        words = -(-dtype.itemsize // 8)
        wide = Box((*box.lo, 0), (*box.hi, words))
        mixed = _mix(linear_index((*self._shapes[tensor], words), wide), tensor)
        if dtype.itemsize < 8:
            return np.asarray(mixed[..., 0].astype(dtype))
        return np.ascontiguousarray(mixed).view(dtype)[..., 0]


def linear_index(shape: tuple[int, ...], box: Box) -> NDArray[np.uint64]:
    """Row-major position in a tensor of ``shape`` of each element of a box, in the box's shape."""
    index = np.zeros((), dtype=np.uint64)
    for dim, (lo, hi) in enumerate(zip(box.lo, box.hi, strict=True)):
        along = np.arange(lo, hi, dtype=np.uint64) * np.uint64(prod(shape[dim + 1 :]))
        index = index[..., None] + along
    return index


def _mix(index: NDArray[np.uint64], tensor: int) -> NDArray[Any]:
    """The SplitMix64 generator at each index, started elsewhere for each tensor."""
    start = (tensor + 1) * _TENSOR_STEP & _MASK
    mixed = index * np.uint64(_ELEMENT_STEP) + np.uint64(start)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))

"""Conversion of elements between floating-point types, as torch does it on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from reshard_planner.dtypes import DTYPE_BITS

NATIVE = ("float16", "float32", "float64")
"""Types that numpy has of its own; those of ml_dtypes are imported where they are needed."""

LARGEST_E4M3FN = 448.0
"""What torch turns larger numbers to, infinities included (torch 2.13, ``torch/headeronly/util``)."""

SMALLEST_E8M0 = 2.0**-127
"""What torch turns zero to, in a type that has powers of two alone; it drops signs, too."""


def convert(raw: NDArray[Any], src: str, dst: str) -> NDArray[Any]:
    """Convert elements bit for bit as ``tensor.to(dtype)`` does, but that a NaN may have other bits.

    Args:
        raw: elements of any numpy dtype of the size of ``src``, whose bits are read as that type.
        src: torch's name of a real floating-point type.
        dst: likewise.

    Returns:
        Unsigned integers that hold the bits of the converted elements, in the shape of ``raw``.
    """
    unsigned = np.dtype(f"<u{DTYPE_BITS[dst] // 8}")
    given = np.ascontiguousarray(raw).view(_dtype(src))
    if src == dst:
        return given.view(unsigned).reshape(raw.shape)
    with np.errstate(all="ignore"):
        values = given.astype(np.float32)  # as torch does, with two roundings from float64
        if dst == "float8_e4m3fn":
            values = np.clip(values, -LARGEST_E4M3FN, LARGEST_E4M3FN)
        elif dst == "float8_e8m0fnu":
            values = np.maximum(np.abs(values), np.float32(SMALLEST_E8M0))
        return values.astype(_dtype(dst)).view(unsigned).reshape(raw.shape)


def is_nan(raw: NDArray[Any], dtype: str) -> NDArray[np.bool_]:
    """Whether elements of a real floating-point type are no numbers; arguments as of :func:`convert`."""
    with np.errstate(all="ignore"):
        values = np.ascontiguousarray(raw).view(_dtype(dtype)).astype(np.float64)
    return np.isnan(values).reshape(raw.shape)


def _dtype(name: str) -> np.dtype[Any]:
    if name in NATIVE:
        return np.dtype(name)
    import ml_dtypes  # noqa: PLC0415 - only conversions need it

    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return found

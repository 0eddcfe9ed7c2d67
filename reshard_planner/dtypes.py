"""Element types by torch's names, as bit widths.

The planner moves bits and never interprets them, so a width is all it needs. Types below eight bits
are planned packed, row-major, without padding between elements. ``float4_e2m1fn_x2`` and the
``bitsNxM`` types already count packed bytes as elements in torch and are one byte here too.
"""

from reshard_planner.errors import SpecError

_ALIASES = {
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "chalf": "complex32",
    "cfloat": "complex64",
    "cdouble": "complex128",
    "short": "int16",
    "int": "int32",
    "long": "int64",
}

DTYPE_BITS: dict[str, int] = {
    "bool": 8,
    **{f"int{n}": n for n in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64)},
    **{f"uint{n}": n for n in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64)},
    "float4_e2m1fn_x2": 8,
    "float8_e4m3fn": 8,
    "float8_e4m3fnuz": 8,
    "float8_e5m2": 8,
    "float8_e5m2fnuz": 8,
    "float8_e8m0fnu": 8,
    "float16": 16,
    "bfloat16": 16,
    "float32": 32,
    "float64": 64,
    "complex32": 32,
    "complex64": 64,
    "complex128": 128,
    "bits1x8": 8,
    "bits2x4": 8,
    "bits4x2": 8,
    "bits8": 8,
    "bits16": 16,
    "qint8": 8,
    "quint8": 8,
    "qint32": 32,
    "quint4x2": 4,
    "quint2x4": 2,
}
"""Bits of one element, by torch dtype name."""


def canonical_dtype(name: str) -> str:
    """Return torch's principal name of a dtype.

    ``"torch.half"`` and ``"half"`` both give ``"float16"``.

    Raises:
        SpecError: if torch has no such dtype.
    """
    short = name.removeprefix("torch.")
    short = _ALIASES.get(short, short)
    if short not in DTYPE_BITS:
        raise SpecError(f"dtype {name!r} is not a torch dtype; expected one such as 'bfloat16'")
    return short

"""Element types by torch's names, as bit widths, and what may be converted to what.

The planner moves bits and never interprets them, so a width is all it needs but for conversions. Types below
eight bits are planned packed, row-major, without padding between elements. ``float4_e2m1fn_x2`` and the
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


SAFETENSORS_DTYPES: dict[str, str] = {
    "BOOL": "bool",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "U8": "uint8",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
}
"""Torch's names of the dtypes of safetensors files, by the names there."""


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


_FLOATS: dict[str, tuple[int, int, int]] = {
    "float8_e4m3fn": (3, -9, 8),
    "float8_e4m3fnuz": (3, -10, 7),
    "float8_e5m2": (2, -16, 15),
    "float8_e5m2fnuz": (2, -17, 15),
    "float8_e8m0fnu": (0, -127, 127),
    "float16": (10, -24, 15),
    "bfloat16": (7, -133, 127),
    "float32": (23, -149, 127),
    "float64": (52, -1074, 1023),
}
"""Per real floating-point type, bits of its mantissa and exponents of its least and its largest power of two
(OCP 8-bit Floating Point Specification 1.0; IEEE 754; torch's documentation for the ``fnuz`` types)."""


def is_castable(src: str, dst: str) -> bool:
    """Whether elements can be converted from one type to another: both are real floating-point types."""
    return src in _FLOATS and dst in _FLOATS


def is_exact(src: str, dst: str) -> bool:
    """Whether every finite number of one floating-point type is one of another."""
    (bits, least, most), (other_bits, other_least, other_most) = _FLOATS[src], _FLOATS[dst]
    return bits <= other_bits and least >= other_least and most <= other_most


def wire_dtype(src: str, dst: str) -> str:
    """The type in which elements travel that are converted on their way.

    It is the source's where that is smaller and every number of it survives, so that a rank that has stored
    the destination's can pass them on; else the destination's, and the source converts.
    """
    smaller = DTYPE_BITS[src] < DTYPE_BITS[dst]
    return src if src == dst or (smaller and is_exact(src, dst)) else dst

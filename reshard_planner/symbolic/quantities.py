"""The quantities that forms are made of, as symbols."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import isfinite
from numbers import Rational, Real
from typing import TYPE_CHECKING

from reshard_planner.errors import InputError

if TYPE_CHECKING:
    import sympy as sp


@dataclass(frozen=True, slots=True)
class Quantity:
    """One quantity.

    Attributes:
        name: as formulas in text spell it.
        latex: as LaTeX does.
        meaning: in a few words.
        unit: ``bytes``, ``bytes/s``, ``s``, or nothing for a count.
        least: least value: 0 or 1 for counts; 0 for all others, which must be above it.
    """

    name: str
    latex: str
    meaning: str
    unit: str = ""
    least: int = 1


QUANTITIES: tuple[Quantity, ...] = (
    Quantity("W", "W", "bytes of all tensors together, each counted once", "bytes", 0),
    Quantity("W_1", "W_1", "bytes of the source's largest stage", "bytes", 0),
    Quantity("P", "P", "stages of the source: sets of ranks that hold tensors of their own"),
    Quantity("S_src", r"S_{\mathrm{src}}", "shards of a tensor before"),
    Quantity("R_src", r"R_{\mathrm{src}}", "replicas of a tensor before"),
    Quantity("q", "q", "distinct shards in each domain of holders"),
    Quantity("S_dst", r"S_{\mathrm{dst}}", "shards of a tensor after"),
    Quantity("R_dst", r"R_{\mathrm{dst}}", "replicas of a tensor after"),
    Quantity("p", "p", "distinct shards in each domain in need"),
    Quantity("m", "m", "needers of each shard in each domain in need"),
    Quantity("X", "X", "other ranks in each domain in need, which may lend their NICs", "", 0),
    Quantity("C", "C", "classes of a tensor: pairs of shards that have bytes in common"),
    Quantity("b_src", r"b_{\mathrm{src}}", "NIC of a GPU of the source, per direction", "bytes/s", 0),
    Quantity("b_dst", r"b_{\mathrm{dst}}", "NIC of a GPU of the destination, per direction", "bytes/s", 0),
    Quantity("v_src", r"v_{\mathrm{src}}", "NVLink of a GPU of the source, per direction", "bytes/s", 0),
    Quantity("v_dst", r"v_{\mathrm{dst}}", "NVLink of a GPU of the destination, per direction", "bytes/s", 0),
    Quantity("T", "T", "time that a schedule cuts in rounds: T*, or that of the busiest port", "s", 0),
    Quantity("T_nic", r"T_{\mathrm{nic}}", "time of the busiest NIC", "s", 0),
    Quantity("T_nvlink", r"T_{\mathrm{nvlink}}", "time of the busiest NVLink port", "s", 0),
    Quantity("K", "K", "rounds"),
    Quantity("H", "H", "transfers from a holder to the last needer, one after another"),
    Quantity("L", "L", "stages of the pipeline: H, packing and unpacking"),
    Quantity("lag", r"\ell", "slots between a transfer and one that sends on what it brought"),
    Quantity("alpha", r"\alpha", "start-up time of a slot", "s", 0),
)
"""All quantities. Rates are datasheet rates, as bounds count."""


def find_quantity(name: str) -> Quantity:
    """The quantity of this name.

    Raises:
        InputError: if there is none.
    """
    for quantity in QUANTITIES:
        if quantity.name == name:
            return quantity
    known = ", ".join(quantity.name for quantity in QUANTITIES)
    raise InputError(f"quantity {name!r} is unknown; expected one of {known}")


def exact(name: str, value: object) -> Fraction:
    """The value of a quantity as a fraction.

    Raises:
        InputError: if it is no number, not finite, below 0, or 0 where only a time or ``X`` may be.
    """
    quantity = find_quantity(name)
    may_vanish = quantity.unit == "s" or (not quantity.unit and not quantity.least)
    number = None if isinstance(value, bool) else _fraction(value)
    if number is not None and (number > 0 or (may_vanish and not number)):
        return number
    expected = "0 or above" if may_vanish else "above 0"
    raise InputError(f"{name} is {value!r:.60}; expected a finite number {expected}: {quantity.meaning}")


def _fraction(value: object) -> Fraction | None:
    """A number, also one of numpy's, as a fraction; nothing for what is no finite number."""
    if isinstance(value, Rational):
        return Fraction(int(value.numerator), int(value.denominator))
    return Fraction(float(value)) if isinstance(value, Real) and isfinite(value) else None


def symbol(name: str) -> sp.Symbol:
    """The sympy symbol of a quantity: a count is an integer, all but ``X`` are positive.

    Raises:
        InputError: if there is no such quantity.
    """
    import sympy as sp  # noqa: PLC0415 - sympy is slow to import

    quantity = find_quantity(name)
    # K is solved for, and is rounded afterwards
    integer = True if not quantity.unit and name != "K" else None
    if not quantity.unit and not quantity.least:
        return sp.Symbol(name, integer=integer, nonnegative=True)
    return sp.Symbol(name, integer=integer, positive=True)


def symbols(names: str) -> tuple[sp.Symbol, ...]:
    """The symbols of several names, parted by spaces.

    Raises:
        InputError: if there is no such quantity.
    """
    return tuple(symbol(name) for name in names.split())


def latex_names() -> dict[sp.Symbol, str]:
    """LaTeX of every symbol."""
    return {symbol(quantity.name): quantity.latex for quantity in QUANTITIES}

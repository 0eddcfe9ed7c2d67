"""A closed form: an expression, what it means, and where it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from reshard_planner.errors import InputError
from reshard_planner.symbolic.quantities import exact, find_quantity, latex_names, symbol

if TYPE_CHECKING:
    import sympy as sp

Number = Fraction | float
"""An exact value; a float where the expression has roots."""


@dataclass(frozen=True, slots=True)
class Form:
    """One closed form.

    Attributes:
        name: what it is called.
        meaning: what it is, in a few words.
        unit: ``bytes``, ``s``, ``bytes/s``, or nothing for a count.
        holds: for which regular pairs it holds; for all if nothing is said.
        expression: the formula, of the symbols of :mod:`reshard_planner.symbolic.quantities`.
        cuts: kinds of the cuts that a certificate states for a term of a bound; none for other forms.
        short: the formula by names of other forms, where it is made of them.
    """

    name: str
    meaning: str
    unit: str
    holds: str
    expression: sp.Expr
    cuts: tuple[str, ...] = ()
    short: str = ""

    @property
    def text(self) -> str:
        """The formula as Python spells it."""
        return str(self.expression)

    @property
    def latex(self) -> str:
        """The formula in LaTeX."""
        return as_latex(self.expression)

    @property
    def quantities(self) -> tuple[str, ...]:
        """Names of the quantities that it depends on, in order."""
        return tuple(sorted(each.name for each in self.expression.free_symbols))

    def value(self, numbers: Mapping[str, Number | int]) -> Number:
        """The value for these numbers: exact where they and the value are rational.

        Args:
            numbers: value of every quantity of the form, by name; others are ignored.

        Raises:
            InputError: if a quantity is missing or impossible, or there is no finite value.
        """
        return number_of(self.expression, numbers, self.name)

    def function(
        self, names: Sequence[str], numbers: Mapping[str, Number | int] | None = None
    ) -> Callable[..., Any]:
        """A fast function of some quantities, vectorised over numpy, as for plots.

        Args:
            names: quantities that it takes, in this order: numbers or arrays, which are broadcast.
            numbers: values of all others.

        Returns:
            a function that gives float64 of the broadcast shape.

        Raises:
            InputError: if a quantity is unknown or impossible, or one is left that has no value.
        """
        import sympy as sp  # noqa: PLC0415 - sympy is slow to import

        taken = [symbol(name) for name in names]
        fixed = {name: value for name, value in (numbers or {}).items() if name not in names}
        expression = _substituted(self.expression, fixed)
        _refuse_missing(expression, names, self.name)
        # sympy prints Max for numpy as amax of a tuple, which does not broadcast
        found = sp.lambdify(taken, expression, modules=[{"amax": _largest, "amin": _least}, "numpy"])

        def vectorised(*values: Any) -> Any:
            arrays = [np.asarray(value, dtype=np.float64) for value in values]
            shape = np.broadcast_shapes(*(array.shape for array in arrays))
            return np.broadcast_to(found(*arrays), shape)

        return vectorised


def as_latex(expression: sp.Basic) -> str:
    """LaTeX of an expression, with the names of the quantities."""
    import sympy as sp  # noqa: PLC0415 - sympy is slow to import

    text: str = sp.latex(expression, symbol_names=latex_names())
    return text


def number_of(expression: sp.Expr, numbers: Mapping[str, Number | int], name: str) -> Number:
    """The value of an expression; exact where it is rational.

    Raises:
        InputError: naming ``name`` and the quantities that it lacks or that are impossible, or if there is no
            finite value.
    """
    found = _substituted(expression, numbers)
    _refuse_missing(found, (), name)
    if found.is_Rational:
        return Fraction(int(found.p), int(found.q))
    # a difference in a denominator may be 0, and a root too large for a float
    value = float(found) if found.is_finite else float("inf")
    if not isfinite(value):
        known = ", ".join(f"{each} = {numbers[each]}" for each in sorted(map(str, expression.free_symbols)))
        raise InputError(f"{name} has no finite value where {known}; expected other numbers")
    return value


def is_true(relation: sp.Basic, numbers: Mapping[str, Number | int], name: str) -> bool:
    """Whether a relation holds for numbers.

    Raises:
        InputError: naming ``name`` and the quantities that it lacks or that are impossible.
    """
    found = _substituted(relation, numbers)
    _refuse_missing(found, (), name)
    return bool(found)


def find_form(forms: Iterable[Form], name: str) -> Form:
    """The form of this name.

    Raises:
        InputError: if there is none.
    """
    every = tuple(forms)
    for form in every:
        if form.name == name:
            return form
    raise InputError(f"form {name!r} is unknown; expected one of {', '.join(form.name for form in every)}")


def _substituted(expression: sp.Basic, numbers: Mapping[str, Number | int]) -> sp.Basic:
    import sympy as sp  # noqa: PLC0415 - sympy is slow to import

    present = {each.name: each for each in expression.free_symbols}
    rational = {
        present[name]: sp.Rational(fraction.numerator, fraction.denominator)
        for name, value in numbers.items()
        if name in present
        for fraction in [exact(name, value)]
    }
    return expression.xreplace(rational)


def _refuse_missing(expression: sp.Basic, names: Sequence[str], form: str) -> None:
    missing = sorted({each.name for each in expression.free_symbols} - set(names))
    if missing:
        meanings = "; ".join(f"{name}, {find_quantity(name).meaning}" for name in missing)
        raise InputError(f"{form} needs a value of {meanings}")


def _largest(values: Sequence[Any], axis: int) -> Any:
    del axis  # the first one, of the tuple
    return reduce(np.maximum, values)


def _least(values: Sequence[Any], axis: int) -> Any:
    del axis
    return reduce(np.minimum, values)

"""Closed forms and crossovers as text, with values where numbers are given."""

from __future__ import annotations

from reshard_planner.render.text import format_nbytes, format_rate, format_s
from reshard_planner.symbolic import QUANTITIES, Crossover, Evaluation, all_forms, crossovers
from reshard_planner.symbolic.form import Number
from reshard_planner.symbolic.quantities import find_quantity


def symbolic_text(found: Evaluation | None, *, latex: bool = False) -> str:
    """All quantities, forms and crossovers.

    Args:
        found: values to print beside; none when None.
        latex: whether formulas are spelt in LaTeX.
    """
    return "\n".join((*_quantities(found), *_forms(found, latex=latex), *_crossovers(found, latex=latex)))


def _quantities(found: Evaluation | None) -> list[str]:
    lines = ["quantities"]
    for quantity in QUANTITIES:
        if found is None:
            unit = f", {quantity.unit}" if quantity.unit else ""
            lines.append(f"  {quantity.name}: {quantity.meaning}{unit}")
        else:
            value = _shown(found.numbers[quantity.name], quantity.unit)
            lines.append(f"  {quantity.name} = {value}: {quantity.meaning}")
    return lines


def _forms(found: Evaluation | None, *, latex: bool) -> list[str]:
    lines = ["forms"]
    for form in all_forms():
        lines.append(f"  {form.name} = {form.latex if latex else form.short or form.text}")
        lines.append(f"      {form.meaning}{_where(form.holds)}")
        if found is not None:
            binds = bool(form.cuts) and found.values[form.name] == found.values["bound"]
            lines.append(
                f"      here {_shown(found.values[form.name], form.unit)}{', binds' if binds else ''}"
            )
    return lines


def _crossovers(found: Evaluation | None, *, latex: bool) -> list[str]:
    lines = ["crossovers"]
    for crossover in crossovers():
        lines.append(f"  {crossover.name}: {crossover.latex if latex else crossover.text}")
        lines.append(f"      {crossover.question}{_where(crossover.holds)}")
        if found is not None:
            lines.append(f"      here {_verdict(crossover, found)}")
    return lines


def _where(holds: str) -> str:
    return f"; where {holds}" if holds else ""


def _verdict(crossover: Crossover, found: Evaluation) -> str:
    if not crossover.applies(found.numbers):
        return "the condition does not apply"
    unit = find_quantity(crossover.quantity).unit
    own = _shown(found.numbers[crossover.quantity], unit)
    crossing = _shown(crossover.value(found.numbers), unit)
    pays = "it pays" if crossover.is_met(found.numbers) else "it does not pay"
    return f"{pays}: {crossover.quantity} is {own}, the crossing is at {crossing}"


def _shown(value: Number, unit: str) -> str:
    match unit:
        case "bytes":
            return format_nbytes(round(value))
        case "bytes/s":
            return format_rate(round(value))
        case "s":
            return format_s(float(value))
        case _:
            return f"{float(value):.6g}"

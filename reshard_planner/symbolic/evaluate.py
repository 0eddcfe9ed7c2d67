"""The numbers of a case in all forms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from reshard_planner.errors import InputError
from reshard_planner.symbolic.baselines import baseline_forms
from reshard_planner.symbolic.bound import bound_forms
from reshard_planner.symbolic.case import Case
from reshard_planner.symbolic.form import Number, find_form
from reshard_planner.symbolic.rounds import round_forms


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What all forms are for one case.

    Attributes:
        numbers: value of every quantity, by its name.
        values: value of every form, by its name; exact but for roots.
    """

    numbers: Mapping[str, Number]
    values: Mapping[str, Number]


def evaluate(case: Case, rounds: int | None = None) -> Evaluation:
    """The values of all quantities and forms; ``T`` is the bound.

    Args:
        case: the layout pair.
        rounds: K; as many as pay, rounded and at least 1, when None.

    Raises:
        InputError: if ``rounds`` is below 1.
    """
    if rounds is not None and rounds < 1:
        raise InputError(f"rounds is {rounds}; expected 1 or more")
    numbers: dict[str, Number] = dict(case.numbers)
    values = {form.name: form.value(numbers) for form in (*bound_forms(), *baseline_forms())}
    forms = round_forms()
    numbers |= {"T": values["bound"], "T_nic": values["nic_time"], "T_nvlink": values["nvlink_time"]}
    best = find_form(forms, "best_rounds").value(numbers)
    numbers["K"] = max(1, round(best)) if rounds is None else rounds
    return Evaluation(numbers, values | {form.name: form.value(numbers) for form in forms})

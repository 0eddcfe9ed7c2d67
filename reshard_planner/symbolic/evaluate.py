"""The numbers of a case in all forms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, isqrt

from reshard_planner.symbolic.baselines import baseline_forms
from reshard_planner.symbolic.bound import bound_forms
from reshard_planner.symbolic.case import Case, check_count
from reshard_planner.symbolic.crossovers import crossovers
from reshard_planner.symbolic.form import Number
from reshard_planner.symbolic.rounds import round_forms

MAX_ROUNDS = 2**30
"""Most rounds asked for: the tables of a plan count no further."""


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
        rounds: K; as many as pay when None: the least number at which one more round does not pay.

    Raises:
        InputError: if ``rounds`` is not an integer from 1 to ``MAX_ROUNDS``.
    """
    if rounds is not None:
        check_count("rounds", rounds, 1, MAX_ROUNDS)
    numbers: dict[str, Number] = dict(case.numbers)
    values = {form.name: form.value(numbers) for form in (*bound_forms(), *baseline_forms())}
    forms = round_forms()
    numbers |= {"T": values["bound"], "T_nic": values["nic_time"], "T_nvlink": values["nvlink_time"]}
    if rounds is None:
        # from the crossing, K (K + 1) times half of what it is at K = 1: exact, and best_rounds has a root
        [crossing] = (each for each in crossovers() if each.name == "another_round")
        first = Fraction(crossing.value(numbers | {"K": 1}))
        rounds = _least_factor(2 * Fraction(values["bound"]) / first)
    numbers["K"] = rounds
    return Evaluation(numbers, values | {form.name: form.value(numbers) for form in forms})


def _least_factor(product: Fraction) -> int:
    """The least K of 1 or more with K (K + 1) of at least ``product``."""
    # (2 K + 1)^2 is to be above 4 product, and 2 K + 1 is odd
    return max(1, (isqrt(4 * ceil(product)) + 1) // 2)

"""Symbolic: closed forms of what it costs to reshard between two layouts, where the pair is regular.

sympy is loaded when a form is made, not before. The formulas are those of docs/mathematics.md for the pairs
that :mod:`reshard_planner.symbolic.case` describes; docs/symbolic.md lists them and where each holds.
"""

from reshard_planner.symbolic.baselines import baseline_forms
from reshard_planner.symbolic.bound import bound_forms
from reshard_planner.symbolic.case import Case, Side, count_classes
from reshard_planner.symbolic.crossovers import Crossover, crossovers
from reshard_planner.symbolic.evaluate import Evaluation, evaluate
from reshard_planner.symbolic.form import Form, find_form
from reshard_planner.symbolic.quantities import QUANTITIES, Quantity, symbol
from reshard_planner.symbolic.recognise import case_of
from reshard_planner.symbolic.rounds import round_forms


def all_forms() -> tuple[Form, ...]:
    """All closed forms: of the bound, of the baselines, and of rounds; names are distinct."""
    return (*bound_forms(), *baseline_forms(), *round_forms())


__all__ = [
    "QUANTITIES",
    "Case",
    "Crossover",
    "Evaluation",
    "Form",
    "Quantity",
    "Side",
    "all_forms",
    "baseline_forms",
    "bound_forms",
    "case_of",
    "count_classes",
    "crossovers",
    "evaluate",
    "find_form",
    "round_forms",
    "symbol",
]

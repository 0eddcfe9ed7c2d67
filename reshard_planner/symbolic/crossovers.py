"""Where one way of moving bytes begins to pay over another, solved for one quantity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

from reshard_planner.symbolic.baselines import baseline_forms
from reshard_planner.symbolic.bound import bound_forms
from reshard_planner.symbolic.form import Number, as_latex, is_true, number_of
from reshard_planner.symbolic.quantities import symbol, symbols
from reshard_planner.symbolic.rounds import pipelined

if TYPE_CHECKING:
    import sympy as sp


@dataclass(frozen=True, slots=True)
class Crossover:
    """One condition under which something pays.

    Attributes:
        name: what pays.
        question: the same in a sentence.
        holds: for which regular pairs the condition holds; for all if nothing is said.
        given: the same as relations between quantities.
        costs: time with it and time without it, as far as they differ; equal at the crossing.
        quantity: name of the quantity that it is solved for.
        pays: on which side of the crossing it pays.
        threshold: the value of the quantity at the crossing.
    """

    name: str
    question: str
    holds: str
    given: tuple[sp.Basic, ...]
    costs: tuple[sp.Expr, sp.Expr]
    quantity: str
    pays: Literal["above", "below"]
    threshold: sp.Expr

    @property
    def text(self) -> str:
        """The condition as Python spells it."""
        return f"{self.quantity} {'>' if self.pays == 'above' else '<'} {self.threshold}"

    @property
    def latex(self) -> str:
        """The condition in LaTeX."""
        sign = ">" if self.pays == "above" else "<"
        return f"{as_latex(symbol(self.quantity))} {sign} {as_latex(self.threshold)}"

    def applies(self, numbers: Mapping[str, Number | int]) -> bool:
        """Whether the condition holds for these numbers, as ``holds`` says.

        Raises:
            InputError: if a quantity is missing or impossible.
        """
        return all(is_true(relation, numbers, self.name) for relation in self.given)

    def value(self, numbers: Mapping[str, Number | int]) -> Number:
        """The crossing for numbers to which it applies.

        Raises:
            InputError: if a quantity is missing or impossible, or the two costs never cross.
        """
        return number_of(self.threshold, numbers, self.name)

    def is_met(self, numbers: Mapping[str, Number | int]) -> bool:
        """Whether it pays for numbers to which it applies.

        Raises:
            InputError: if a quantity is missing or impossible, or the two costs never cross.
        """
        here, there = number_of(symbol(self.quantity), numbers, self.name), self.value(numbers)
        return here > there if self.pays == "above" else here < there


@cache
def crossovers() -> tuple[Crossover, ...]:
    """All crossings, solved."""
    import sympy as sp  # noqa: PLC0415 - sympy is slow to import

    forms = {form.name: form.expression for form in (*bound_forms(), *baseline_forms())}
    neighbours, rounds, alpha, copies, per_domain = symbols("X K alpha R_dst m")
    classes, nbytes, largest, stages, nic, nvlink_rate = symbols("C W W_1 P b_dst v_dst")
    alone = {name: expression.subs(neighbours, 0) for name, expression in forms.items()}
    ingress, nvlink, direct = (alone[name] for name in ("domain_ingress", "nvlink_domain", "direct_ingress"))
    star = alone["unique_bytes"] * copies / per_domain
    unaided = sp.Eq(neighbours, 0)
    shared = (unaided, sp.Gt(per_domain, 1), sp.Le(alone["direct_egress"], direct))
    emission = ("unique_bytes", "stage_bytes", "all_copies")
    slots = per_domain * symbol("S_dst")
    return (
        _solved(
            "fanout",
            "fan-out over NVLink pays over fetching each copy",
            "m > 1, X = 0, direct_egress <= direct_ingress",
            shared,
            (nvlink, direct),
            "v_dst",
            "above",
        ),
        _solved(
            "fanout_nbytes",
            "in one round, fan-out pays for its start-up",
            "m > 1, X = 0, direct_egress <= direct_ingress, v_dst > b_dst",
            (*shared, sp.Gt(nvlink_rate, nic)),
            (ingress + nvlink + 2 * alpha, direct + alpha),
            "W",
            "above",
        ),
        _solved(
            "relays",
            "relays pay over holders that emit every copy",
            "R_dst > m, X = 0, equal stages; NVLink takes less than holders that emit every copy",
            (unaided, sp.Gt(copies, per_domain), sp.Eq(stages * largest, nbytes), sp.Lt(nvlink, star)),
            (ingress, star),
            "b_src",
            "below",
        ),
        _solved(
            "striping",
            "splitting classes over the NICs of a domain pays (strategy striped splits boxes instead)",
            "X = 0, P = 1, C divides m S_dst or is a multiple; domain_ingress is T*",
            (
                unaided,
                sp.Eq(stages, 1),
                sp.Eq(sp.Mod(classes, slots) * sp.Mod(slots, classes), 0),
                sp.Eq(alone["bound"], ingress),
            ),
            (ingress, nbytes / (classes * nic)),
            "C",
            "below",
        ),
        _solved(
            "lending",
            "NICs of other ranks in a domain in need pay",
            "X > 0; no term of emission takes longer than domain_ingress",
            (
                sp.Gt(neighbours, 0),
                sp.Le(sp.Max(*(forms[name] for name in emission)), forms["domain_ingress"]),
            ),
            (nvlink, ingress),
            "v_dst",
            "above",
        ),
        _solved(
            "another_round",
            "K + 1 rounds pay over K",
            "",
            (),
            (pipelined().subs(rounds, rounds + 1), pipelined()),
            "T",
            "above",
        ),
    )


def _solved(
    name: str,
    question: str,
    holds: str,
    given: tuple[sp.Basic, ...],
    costs: tuple[sp.Expr, sp.Expr],
    quantity: str,
    pays: Literal["above", "below"],
) -> Crossover:
    import sympy as sp  # noqa: PLC0415 - sympy is slow to import

    [threshold] = sp.solve(costs[0] - costs[1], symbol(quantity))
    threshold = _without_minus(sp.factor(threshold))
    return Crossover(name, question, holds, given, costs, quantity, pays, threshold)


def _without_minus(product: sp.Expr) -> sp.Expr:
    """The same product, with the difference of two quantities turned round instead of a leading minus."""
    top, bottom = product.as_numer_denom()
    if not top.could_extract_minus_sign():
        return product
    turned = max(
        (factor for factor in bottom.args if factor.is_Add), key=lambda factor: len(factor.free_symbols)
    )
    return -top / (-turned * (bottom / turned))

"""What rounds cost, and how many pay; see "What the plan adds to it" in docs/mathematics.md."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from reshard_planner.symbolic.form import Form
from reshard_planner.symbolic.quantities import symbols

if TYPE_CHECKING:
    import sympy as sp

EQUAL_ROUNDS = "rounds are equal, X = 0, no relays, K >= lag; within 0.5 %"
"""Where the sums over slots hold."""


@cache
def round_forms() -> tuple[Form, ...]:
    """Times of K rounds, and the numbers of rounds that cost least."""
    import sympy as sp  # noqa: PLC0415 - sympy is slow to import

    cost, slots = pipelined(), slot_sum()
    best, fewest = least_at(cost), least_at(slots)
    time, stages, lag, alpha = symbols("T L lag alpha")
    return (
        Form(
            "pipelined",
            "time of K rounds with packing and unpacking, at most",
            "s",
            "rounds are equal, and packed no slower than sent",
            cost,
        ),
        Form("best_rounds", "rounds at which pipelined is least", "", "K is not rounded", best),
        Form(
            "pipelined_least",
            "pipelined in as many rounds as pay",
            "s",
            "K is not rounded",
            (sp.sqrt(time) + sp.sqrt(lag * (stages - 1) * alpha)) ** 2,
        ),
        Form(
            "slot_sum",
            "sum over slots of the busiest port, and a start-up per slot; at lag 1 the predicted time",
            "s",
            EQUAL_ROUNDS,
            slots,
        ),
        Form("slot_sum_rounds", "rounds at which slot_sum is least", "", "H = 2, K is not rounded", fewest),
        Form(
            "overlapped",
            "predicted time where packing is free",
            "s",
            f"lag = 2, {EQUAL_ROUNDS}",
            overlapped(),
        ),
    )


def pipelined() -> sp.Expr:
    """T (1 + lag (L - 1) / K) + (K + lag (L - 1)) alpha."""
    time, rounds, stages, lag, alpha = symbols("T K L lag alpha")
    fill = lag * (stages - 1)
    return time * (1 + fill / rounds) + (rounds + fill) * alpha


def slot_sum() -> sp.Expr:
    """Rounds of equal load: NICs work from slot 0 on, NVLink starts and ends ``lag`` slots later."""
    import sympy as sp  # noqa: PLC0415 - sympy is slow to import

    nic, nvlink, rounds, hops, lag, alpha = symbols("T_nic T_nvlink K H lag alpha")
    fill = lag * (hops - 1)
    return sp.Max(nic, nvlink) + fill * sp.Min(nic, nvlink) / rounds + (rounds + fill) * alpha


def overlapped() -> sp.Expr:
    """Two slots in flight: start-ups run beside the bytes, and only one round's fan-out sticks out."""
    import sympy as sp  # noqa: PLC0415 - sympy is slow to import

    nic, nvlink, rounds, hops, alpha = symbols("T_nic T_nvlink K H alpha")
    return sp.Max(nic, nvlink) + (hops - 1) * sp.Min(nic, nvlink) / rounds + hops * alpha


def least_at(cost: sp.Expr) -> sp.Expr:
    """The number of rounds at which the derivative of a cost is 0."""
    import sympy as sp  # noqa: PLC0415 - sympy is slow to import

    (rounds,) = symbols("K")
    found = [root for root in sp.solve(sp.diff(cost, rounds), rounds) if not root.could_extract_minus_sign()]
    return found[0]

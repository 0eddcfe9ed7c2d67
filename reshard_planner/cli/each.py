"""One spec by several strategies, each in its time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import inf

from reshard_planner.cli.limit import TimeLimit
from reshard_planner.compiler import compile as compile_spec
from reshard_planner.errors import UnsupportedError
from reshard_planner.ir.plan import Plan
from reshard_planner.progress import Progress
from reshard_planner.routing import find_strategy
from reshard_planner.simulate import Prediction
from reshard_planner.spec import ReshardSpec

Predictor = Callable[[Plan, Progress], Prediction]
"""What predicts a run of a plan, telling how far it is."""


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What one strategy comes to.

    Attributes:
        strategy: its name.
        plan: its plan; None if it has none.
        run: the predicted run of it; None if there is none.
        reason: why the plan is missing, or else the run that was asked for; empty where nothing is.
        too_slow: whether the plan is missing because it takes too long.
    """

    strategy: str
    plan: Plan | None
    run: Prediction | None
    reason: str = ""
    too_slow: bool = False


def plan_each(
    spec: ReshardSpec, strategies: Iterable[str], limit_s: float, predictor: Predictor | None
) -> Iterator[Outcome]:
    """Compile a spec with one strategy after another, and predict each run.

    Args:
        spec: the spec.
        strategies: names of the strategies.
        limit_s: seconds for each, and once more for its prediction. That of least payload is the one to
            compare with, so that it may take as long as it needs.
        predictor: what predicts a run; None if none are wanted.

    Yields:
        What comes of each, which refuses rather than raises an :class:`UnsupportedError`.
    """
    for name in strategies:
        limit = TimeLimit(name, inf if find_strategy(name).claims_least else limit_s)
        try:
            plan = compile_spec(spec, name, limit)
        except UnsupportedError as error:
            yield Outcome(name, None, None, str(error), limit.stopped)
            continue
        run, reason = None, ""
        if predictor is not None:
            try:
                run = predictor(plan, TimeLimit(name, limit_s))
            except UnsupportedError as error:
                reason = str(error)
        yield Outcome(name, plan, run, reason)

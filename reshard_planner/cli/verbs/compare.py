"""``compare SPEC``: our plan and every baseline, side by side with the bound."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from reshard_planner.cli.costs import add_costs, read_costs
from reshard_planner.cli.each import plan_each
from reshard_planner.cli.limit import add_limit, read_limit
from reshard_planner.cli.output import end_progress, plan_summary, print_json, print_text
from reshard_planner.cli.verb import Verb
from reshard_planner.errors import UnsupportedError
from reshard_planner.ir.plan import Plan
from reshard_planner.progress import Progress
from reshard_planner.render.comparison import (
    REFERENCE,
    REFERENCE_NOTE,
    Predicted,
    bound_note,
    comparison_table,
    times_over,
)
from reshard_planner.routing import STRATEGIES, find_strategy, hybrid
from reshard_planner.simulate import Prediction, phases_by_strategy, predict, with_link_costs
from reshard_planner.spec import ReshardSpec

UNNAMED_NOTE = f"hybrid found no feed-forward weights by their names, and moves all as {REFERENCE}"
"""What is said where the row of hybrid is that of the reference."""

DEFAULT_LIMIT_S = 300.0

WHY = {"refused": "refuses", "too_slow": "is too slow"}
"""What is said of a strategy without a plan."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("spec", metavar="SPEC", type=Path, help="spec file, YAML or JSON")
    add_limit(parser, "a baseline, or the prediction of any plan,", DEFAULT_LIMIT_S)
    add_costs(parser)


def run(arguments: argparse.Namespace) -> int:
    """Compile the spec with every strategy, predict the runs, and print the figures."""
    costs, links = read_costs(arguments)
    limit_s = read_limit(arguments)
    spec = ReshardSpec.load(arguments.spec)
    find_strategy(spec.options.strategy)
    topology = with_link_costs(spec.topology, links)

    def predictor(plan: Plan, progress: Progress) -> Prediction:
        return predict(
            plan, costs, topology=topology, phases=phases_by_strategy(plan.spec), progress=progress
        )

    plans: list[Plan] = []
    runs: dict[str, Prediction] = {}
    left_out: dict[str, dict[str, str]] = {}
    unpredicted: dict[str, str] = {}
    try:
        for found in plan_each(spec, STRATEGIES, limit_s, predictor):
            if found.plan is None:
                left_out[found.strategy] = {"too_slow" if found.too_slow else "refused": found.reason}
                continue
            plans.append(found.plan)
            if found.run is None:
                unpredicted[found.strategy] = found.reason
            else:
                runs[found.strategy] = found.run
    finally:
        end_progress()
    if not plans:
        raise UnsupportedError(f"no strategy has a plan for this spec; {_reasons(left_out)[0]}")
    predicted = _predicted(plans, runs)
    if arguments.json:
        print_json(_document(spec, plans, predicted, left_out, unpredicted))
        return 0
    print_text(comparison_table(plans, list(predicted.values())))
    print_text(bound_note("predicted time"))
    if REFERENCE in runs:
        print_text(REFERENCE_NOTE)
    if hybrid.STRATEGY.name in predicted and _lacks_feed_forward(spec):
        print_text(UNNAMED_NOTE)
    for name, each in predicted.items():
        if each.phases > 1:
            print_text(f"{name} is predicted in {each.phases} phases, each of which waits for the one before")
    for line in _reasons(left_out):
        print_text(line)
    for name, reason in unpredicted.items():
        print_text(f"{name} is not predicted: {reason}")
    return 0


def _lacks_feed_forward(spec: ReshardSpec) -> bool:
    """Whether hybrid takes every tensor of a spec for one of the others."""
    # a drafter's names may read as feed-forward, but one of its weights never does
    return len(hybrid.phases(spec)) == 1 and not all(
        hybrid.is_feed_forward(tensor.name) for tensor in spec.tensors
    )


def _reasons(left_out: dict[str, dict[str, str]]) -> list[str]:
    """Why strategies have no plan, a line for each."""
    return [f"{name} {WHY[key]}: {reason}" for name, why in left_out.items() for key, reason in why.items()]


def _predicted(plans: list[Plan], runs: dict[str, Prediction]) -> dict[str, Predicted]:
    """What is predicted for each plan, by strategy."""
    bound_s = plans[0].certificate.bound.time_s
    reference_s = runs[REFERENCE].elapsed_s if REFERENCE in runs else None
    found = {}
    for plan in plans:
        name = plan.spec.options.strategy
        mine = runs[name].elapsed_s if name in runs else None
        found[name] = Predicted(
            mine,
            times_over(mine, bound_s),
            times_over(reference_s, mine),
            len(runs[name].phase_ends_s) if name in runs else 0,
        )
    return found


def _document(
    spec: ReshardSpec,
    plans: list[Plan],
    predicted: dict[str, Predicted],
    left_out: dict[str, dict[str, str]],
    unpredicted: dict[str, str],
) -> dict[str, Any]:
    """All figures in plain JSON types, strategies in order."""
    found: dict[str, Any] = dict(left_out)
    for plan in plans:
        name = plan.spec.options.strategy
        each = predicted[name]
        found[name] = plan_summary(plan) | {
            "predicted": {
                "elapsed_s": each.elapsed_s,
                "bound_ratio": each.bound_ratio,
                "speedup": each.speedup,
                "phases": each.phases,
                "reason": unpredicted.get(name),
            }
        }
    bound = plan_summary(plans[0])["bound"]
    strategies = {name: found[name] for name in STRATEGIES}
    return {"tensors": len(spec.tensors), "bound": bound, "strategies": strategies}


VERB = Verb(
    "compare",
    "compile with every strategy and compare with the bound",
    """\
Compile a spec with every strategy, predict a run of each plan, and print payload, busiest ports, messages,
memory and times beside the bound. Transfers are counted as network + NVLink + local. "x bound" is the busiest
port's time over T*, "x T*" the predicted time; "speedup" is over gather-broadcast, which sends
through one NIC per domain; NCCL's collectives use several and take less time: see docs/published.md. The
strategy hybrid knows feed-forward weights by their names, and is predicted in its phases, as by `simulate`.
A strategy that refuses the spec is left out, with its reason.""",
    """\
examples:
  reshard-planner compare spec.yaml
  reshard-planner compare spec.yaml --json
  reshard-planner compare model.json --limit 60 --pack-rate 1TB
""",
    add_arguments,
    run,
)

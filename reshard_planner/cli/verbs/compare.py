"""``compare SPEC``: our plan and every baseline, side by side with the bound."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from reshard_planner.cli.inputs import compile_with_progress
from reshard_planner.cli.output import plan_summary, print_json, print_text
from reshard_planner.cli.verb import Verb
from reshard_planner.errors import UnsupportedError
from reshard_planner.render.comparison import comparison_table
from reshard_planner.routing import STRATEGIES, find_strategy
from reshard_planner.spec import ReshardSpec


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("spec", metavar="SPEC", type=Path, help="spec file, YAML or JSON")


def run(arguments: argparse.Namespace) -> int:
    """Compile the spec with every strategy and print the figures."""
    spec = ReshardSpec.load(arguments.spec)
    find_strategy(spec.options.strategy)
    ours, *baselines = STRATEGIES
    plans = [compile_with_progress(spec, ours)]
    refused: dict[str, str] = {}
    for name in baselines:
        try:
            plans.append(compile_with_progress(spec, name))
        except UnsupportedError as error:
            refused[name] = str(error)
    if arguments.json:
        bound = plan_summary(plans[0])["bound"]
        strategies: dict[str, Any] = {plan.spec.options.strategy: plan_summary(plan) for plan in plans}
        strategies |= {name: {"refused": reason} for name, reason in refused.items()}
        print_json({"tensors": len(spec.tensors), "bound": bound, "strategies": strategies})
        return 0
    print_text(comparison_table(plans))
    for name, reason in refused.items():
        print_text(f"{name} refuses: {reason}")
    return 0


VERB = Verb(
    "compare",
    "compile with every strategy and compare with the bound",
    """\
Compile a spec with every strategy and print payload, busiest ports, messages and memory beside the bound.
Transfers are counted as network + NVLink + local.""",
    """\
examples:
  reshard-planner compare spec.yaml
  reshard-planner compare spec.yaml --json
""",
    add_arguments,
    run,
)

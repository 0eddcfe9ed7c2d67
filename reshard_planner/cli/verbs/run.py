"""``run SPEC|PLAN``: execute with local processes and check every element."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from reshard_planner.cli.inputs import add_strategy, load_or_compile
from reshard_planner.cli.output import (
    end_progress,
    plan_summary,
    print_json,
    print_text,
    terminal_progress,
)
from reshard_planner.cli.verb import Verb
from reshard_planner.errors import InputError
from reshard_planner.render.text import format_nbytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "input", metavar="SPEC|PLAN", type=Path, help="spec file, or plan file in any of its forms"
    )
    parser.add_argument(
        "--executor",
        choices=("numpy", "torch"),
        default="numpy",
        help="numpy: the interpreter in this process (default); torch: one local process per rank, over gloo",
    )
    parser.add_argument(
        "--checkpoint",
        metavar="FILE",
        type=Path,
        help="take the weights from a safetensors file instead of made-up ones",
    )
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=float,
        default=300.0,
        help="give up after this many seconds (default 300)",
    )
    add_strategy(parser)


def run(arguments: argparse.Namespace) -> int:
    """Execute, compare every destination element, print the bytes measured; 1 if an element is wrong."""
    from reshard_executors.local import run_plan  # noqa: PLC0415 - executors are a package of their own

    if not 0 < arguments.timeout < math.inf:
        raise InputError(f"--timeout is {arguments.timeout}; expected a number of seconds above 0")
    plan = load_or_compile(arguments.input, arguments.strategy)
    try:
        report = run_plan(
            plan,
            arguments.executor,
            checkpoint=arguments.checkpoint,
            timeout_s=arguments.timeout,
            progress=terminal_progress(),
        )
    finally:
        end_progress()
    if arguments.json:
        print_json({**plan_summary(plan), **report.to_dict()})
        return 0 if report.correct else 1
    measured = report.measured
    print_text(f"executor {report.executor}, {report.processes} process{'es' * (report.processes != 1)}")
    print_text(f"network  {format_nbytes(measured.network_nbytes)} measured")
    print_text(f"nvlink   {format_nbytes(measured.nvlink_nbytes)} measured")
    print_text(f"elapsed  {measured.elapsed_s:.3f} s")
    print_text("correct  every destination element" if report.correct else f"WRONG    {report.first_error}")
    return 0 if report.correct else 1


VERB = Verb(
    "run",
    "execute a plan with local processes and check every element",
    """\
Execute a spec or plan on this machine: feed every rank its source tiles, run the plan, compare every element
of every destination tile with what it must be, and print the bytes measured per medium.""",
    """\
examples:
  reshard-planner run spec.yaml
  reshard-planner run plan.reshard --executor torch
  reshard-planner run spec.yaml --executor torch --checkpoint model.safetensors --json
""",
    add_arguments,
    run,
)

"""``verify PLAN``: recompute every claim of a plan."""

from __future__ import annotations

import argparse
from pathlib import Path

from reshard_planner.cli.output import end_progress, print_json, print_text, terminal_progress
from reshard_planner.cli.verb import Verb
from reshard_planner.ir.checks import CHECKS
from reshard_planner.ir.checks import verify as verify_plan
from reshard_planner.ir.forms import load


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("plan", metavar="PLAN", type=Path, help="plan file, in any of its forms")


def run(arguments: argparse.Namespace) -> int:
    """Run all checks; the first that fails is reported and ends with exit code 1."""
    plan = load(arguments.plan, check=False)
    try:
        verify_plan(plan, terminal_progress())
    finally:
        end_progress()
    load(arguments.plan, check=True)  # what only the file holds: block hashes and the index by destination
    if arguments.json:
        print_json({"ok": True, "digest": plan.digest, "checks": list(CHECKS)})
    else:
        print_text(f"ok: {', '.join(CHECKS)}")
        print_text(f"digest {plan.digest}")
    return 0


VERB = Verb(
    "verify",
    "recompute every claim of a plan",
    """\
Recompute every claim of a plan from the plan alone: every destination tile is filled exactly once, nothing
is sent before it is there, media match the topology, the payload is the least possible, staging keeps its
budget, and the certificate and digest are true. The stored cut proves the bound by summation.""",
    """\
examples:
  reshard-planner verify plan.reshard
  reshard-planner verify plan.json --json
""",
    add_arguments,
    run,
)

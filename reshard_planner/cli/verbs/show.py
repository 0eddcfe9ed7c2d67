"""``show PLAN``: the text form, or what one rank does."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from reshard_planner.cli.inputs import check_rank
from reshard_planner.cli.output import print_json, print_text
from reshard_planner.cli.verb import Verb
from reshard_planner.cli.verbs.ops import describe
from reshard_planner.errors import InputError
from reshard_planner.ir.plan import Plan
from reshard_planner.ir.textform import show as show_plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("plan", metavar="PLAN", type=Path, help="plan file, in any of its forms")
    parser.add_argument(
        "--rank", metavar="R", type=int, help="only what this rank sends, receives and copies"
    )
    parser.add_argument("--slot", metavar="K", type=int, help="only what runs in this slot")


def run(arguments: argparse.Namespace) -> int:
    """Print the plan, or the operations of one rank or slot."""
    plan = Plan.load(arguments.plan)
    check_rank(plan.spec, arguments.rank)
    if arguments.slot is not None and arguments.slot < 0:
        raise InputError(f"--slot is {arguments.slot}; expected 0 or more")
    if not arguments.json:
        print_text(show_plan(plan, arguments.rank, arguments.slot))
    elif arguments.rank is None and arguments.slot is None:
        print_json(json.loads(plan.to_json()))
    else:
        ops = plan.ops(rank=arguments.rank)
        if arguments.slot is not None:
            ops = ops.select(ops.slot == arguments.slot)
        print_json(list(describe(plan, ops)))
    return 0


VERB = Verb(
    "show",
    "print a plan as text",
    "Print a plan in its text form, which parses back, or the operations of one rank or slot.",
    """\
examples:
  reshard-planner show plan.reshard > plan.txt
  reshard-planner show plan.reshard --rank 3
  reshard-planner show plan.reshard --slot 0 --json
""",
    add_arguments,
    run,
)

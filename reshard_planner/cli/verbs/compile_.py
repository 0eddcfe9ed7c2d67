"""``compile SPEC``: compile a plan and print its certificate."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from reshard_planner.cli.inputs import add_strategy, compile_with_progress
from reshard_planner.cli.output import check_output, plan_summary, print_json, print_text
from reshard_planner.cli.verb import Verb
from reshard_planner.ir.forms import save_as
from reshard_planner.render.summary import summarize
from reshard_planner.spec import ReshardSpec


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("spec", metavar="SPEC", type=Path, help="spec file, YAML or JSON")
    parser.add_argument(
        "-o",
        "--output",
        metavar="PLAN",
        type=Path,
        help="write the plan; .json and .txt give those forms, everything else the binary one",
    )
    add_strategy(parser)


def run(arguments: argparse.Namespace) -> int:
    """Compile, write the plan if asked, print the certificate."""
    spec = ReshardSpec.load(arguments.spec)
    check_output("--output", arguments.output, arguments.spec)
    begin = time.perf_counter()
    plan = compile_with_progress(spec, arguments.strategy)
    elapsed = time.perf_counter() - begin
    if arguments.output is not None:
        save_as(plan, arguments.output)
    if arguments.json:
        print_json({**plan_summary(plan), "compile_s": elapsed})
    else:
        print_text(summarize(plan))
        print_text(f"compiled in {elapsed * 1e3:.0f} ms")
        if arguments.output is not None:
            print_text(f"wrote {arguments.output}")
    return 0


VERB = Verb(
    "compile",
    "compile a spec into a plan and print its certificate",
    "Compile a spec into a plan, print what it moves, how fast it can be and what binds, and write it.",
    """\
examples:
  reshard-planner compile spec.yaml
  reshard-planner compile spec.yaml -o plan.reshard
  reshard-planner compile spec.yaml --strategy gather-broadcast --json
""",
    add_arguments,
    run,
)

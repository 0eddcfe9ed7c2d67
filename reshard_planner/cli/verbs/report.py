"""``report SPEC|PLAN -o FILE.html``: everything about a plan on one page."""

from __future__ import annotations

import argparse
from math import inf
from pathlib import Path

from reshard_planner.cli.inputs import add_strategy, load_or_compile
from reshard_planner.cli.limit import TimeLimit
from reshard_planner.cli.output import check_output, end_progress, print_json, print_text, terminal_progress
from reshard_planner.cli.verb import Verb
from reshard_planner.compiler import compile as compile_spec
from reshard_planner.errors import InputError, UnsupportedError
from reshard_planner.ir.file import write_atomically
from reshard_planner.ir.plan import Plan
from reshard_planner.progress import Progress
from reshard_planner.render.report import Alternative, report_html
from reshard_planner.render.text import format_nbytes
from reshard_planner.routing import STRATEGIES
from reshard_planner.simulate import Prediction, phases_by_strategy, predict

SUFFIXES = (".html", ".htm")
"""Suffixes of files that browsers open as pages."""

DEFAULT_LIMIT_S = 60.0

FEW_MESSAGES = 20_000
"""Messages up to which runs are predicted without being asked for: that takes a few seconds."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "plan", metavar="SPEC|PLAN", type=Path, help="plan file in any of its forms, or a spec file"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, required=True, help="the page, .html or .htm"
    )
    parser.add_argument(
        "--no-baselines", action="store_true", help="leave out the comparison with every other strategy"
    )
    parser.add_argument(
        "--limit",
        metavar="S",
        type=float,
        default=DEFAULT_LIMIT_S,
        help="give another strategy, or the prediction of its run, up after this many seconds; looked at"
        f" between stages (default {DEFAULT_LIMIT_S:.0f})",
    )
    parser.add_argument(
        "--simulate",
        action=argparse.BooleanOptionalAction,
        help="predict runs message by message; without, times are those of the schedule (default: only for"
        f" plans of up to {FEW_MESSAGES:,} messages, since it takes minutes for whole models)",
    )
    add_strategy(parser)


def run(arguments: argparse.Namespace) -> int:
    """Compile and predict what is missing, and write the page."""
    output: Path = arguments.output
    if output.suffix.lower() not in SUFFIXES:
        raise InputError(
            f"cannot write the report to {output}: its suffix is {output.suffix!r}; expected"
            f" {' or '.join(SUFFIXES)}"
        )
    if not arguments.limit > 0:
        raise InputError(f"--limit is {arguments.limit}; expected a number of seconds above 0")
    check_output("--output", output, arguments.plan)
    plan = load_or_compile(arguments.plan, arguments.strategy)
    simulated = arguments.simulate
    if simulated is None:
        simulated = plan.certificate.schedule.messages <= FEW_MESSAGES
    try:
        found = _predict(plan, terminal_progress()) if simulated else None
        others = None if arguments.no_baselines else _others(plan, arguments.limit, simulated=simulated)
        terminal_progress()("page")
        page = report_html(plan, alternatives=others, prediction=found, name=arguments.plan.name).encode()
    finally:
        end_progress()
    write_atomically(output, page)
    if arguments.json:
        print_json(
            {
                "file": str(output),
                "nbytes": len(page),
                "simulated": simulated,
                "strategies": None if others is None else [each.strategy for each in others],
            }
        )
    else:
        print_text(f"wrote {output}, {format_nbytes(len(page))}")
    return 0


def _predict(plan: Plan, progress: Progress) -> Prediction:
    """A run of a plan, in the phases that its strategy is run in."""
    return predict(plan, phases=phases_by_strategy(plan.spec), progress=progress)


def _others(plan: Plan, limit_s: float, *, simulated: bool) -> list[Alternative]:
    """The same spec by every other strategy, each in its time."""
    found = []
    for name, strategy in STRATEGIES.items():
        if name == plan.spec.options.strategy:
            continue
        try:
            # that of least payload is the one to compare with, however long it takes
            other = compile_spec(plan.spec, name, TimeLimit(name, inf if strategy.claims_least else limit_s))
        except UnsupportedError as error:
            found.append(Alternative.without(name, str(error)))
            continue
        elapsed_s, note = None, ""
        if simulated:
            try:
                elapsed_s = _predict(other, TimeLimit(name, limit_s)).elapsed_s
            except UnsupportedError as error:
                note = f"not predicted: {error}"
        found.append(Alternative.of(other, elapsed_s, note))
    return found


VERB = Verb(
    "report",
    "write everything about a plan on one HTML page",
    """\
Write one HTML page that needs no network: the certificate in plain words, payload and time beside every
other strategy, the load of every port, layouts, transfers, a timeline, and a table of all tensors. The spec
is compiled with every other strategy for it; --no-baselines leaves that out. Large plans are not predicted
unless --simulate asks for it: their times are those of the schedule, which the page says.""",
    """\
examples:
  reshard-planner report plan.reshard -o plan.html
  reshard-planner report spec.yaml -o plan.html --no-baselines
  reshard-planner report qwen3.reshard -o qwen3.html --limit 30
  reshard-planner report qwen3.reshard -o qwen3.html --no-baselines --simulate
""",
    add_arguments,
    run,
)

"""``report SPEC|PLAN -o FILE.html``: everything about a plan on one page."""

from __future__ import annotations

import argparse
from pathlib import Path

from reshard_planner.cli.each import Predictor, plan_each
from reshard_planner.cli.inputs import add_strategy, load_or_compile
from reshard_planner.cli.limit import add_limit, read_limit
from reshard_planner.cli.output import check_output, end_progress, print_json, print_text, terminal_progress
from reshard_planner.cli.verb import Verb
from reshard_planner.compiler import outline
from reshard_planner.errors import InputError, UnsupportedError
from reshard_planner.ir.file import write_atomically
from reshard_planner.ir.plan import Plan
from reshard_planner.ir.traceread import measured_timeline
from reshard_planner.progress import Progress
from reshard_planner.render.report import Alternative, report_html
from reshard_planner.render.text import format_nbytes
from reshard_planner.routing import STRATEGIES
from reshard_planner.simulate import Prediction, phases_by_strategy, predict

SUFFIXES = (".html", ".htm")
"""Suffixes of files that browsers open as pages."""

DEFAULT_LIMIT_S = 60.0

FEW_MESSAGES = 20_000
"""Messages of a plan up to which its run is predicted, and every other strategy planned, without being asked
for: that takes a few seconds. Beside larger ones the others are only routed, since plans of baselines for
whole models take minutes and gigabytes."""


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
    add_limit(parser, "another strategy, or the prediction of its run,", DEFAULT_LIMIT_S)
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument(
        "--simulate",
        action="store_const",
        const=True,
        help="plan every other strategy, and predict all runs message by message, however large the plans are"
        f" (default: only plans of up to {FEW_MESSAGES:,} messages, since it takes minutes for whole models)",
    )
    asked.add_argument(
        "--no-simulate",
        dest="simulate",
        action="store_const",
        const=False,
        help="predict no run; times are those of schedules, or of busiest ports for large plans",
    )
    parser.add_argument(
        "--measured",
        metavar="TRACE",
        type=Path,
        help="beside it, the timeline of a run of this plan, as 'reshard-executors run --profile' wrote it",
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
    limit_s = read_limit(arguments)
    check_output("--output", output, arguments.plan)
    if arguments.measured is not None:
        check_output("--output", output, arguments.measured)
    plan = load_or_compile(arguments.plan, arguments.strategy)
    measured = None if arguments.measured is None else measured_timeline(arguments.measured, plan)
    few = plan.certificate.schedule.messages <= FEW_MESSAGES
    simulated: bool = few if arguments.simulate is None else arguments.simulate
    others: list[Alternative] | None = None
    try:
        found = _predict(plan, terminal_progress()) if simulated else None
        if not arguments.no_baselines:
            if few or simulated:
                predictor = (_predict if arguments.simulate else _predict_few) if simulated else None
                others = _planned(plan, limit_s, predictor)
            else:
                terminal_progress()("routes of other strategies")
                others = _routed(plan)
        terminal_progress()("page")
        page = report_html(
            plan, alternatives=others, prediction=found, measured=measured, name=arguments.plan.name
        )
    finally:
        end_progress()
    data = page.encode()
    write_atomically(output, data)
    if arguments.json:
        print_json(
            {
                "file": str(output),
                "nbytes": len(data),
                "simulated": simulated,
                "measured": None if arguments.measured is None else str(arguments.measured),
                "strategies": None if others is None else [each.strategy for each in others],
            }
        )
    else:
        print_text(f"wrote {output}, {format_nbytes(len(data))}")
    return 0


def _predict(plan: Plan, progress: Progress) -> Prediction:
    """A run of a plan, in the phases that its strategy is run in."""
    return predict(plan, phases=phases_by_strategy(plan.spec), progress=progress)


def _predict_few(plan: Plan, progress: Progress) -> Prediction:
    """The same, of a plan that is not large."""
    messages = plan.certificate.schedule.messages
    if messages > FEW_MESSAGES:
        raise UnsupportedError(
            f"its {messages:,} messages are more than {FEW_MESSAGES:,}; report --simulate predicts them"
        )
    return _predict(plan, progress)


def _routed(plan: Plan) -> list[Alternative]:
    """The same spec by every other strategy, as figures of routes alone."""
    return [
        Alternative.without(name, str(found))
        if isinstance(found, UnsupportedError)
        else Alternative.routed(name, found)
        for name, found in outline(plan.spec, _other_strategies(plan))
    ]


def _other_strategies(plan: Plan) -> list[str]:
    return [name for name in STRATEGIES if name != plan.spec.options.strategy]


def _planned(plan: Plan, limit_s: float, predictor: Predictor | None) -> list[Alternative]:
    """The same spec planned by every other strategy, as figures: one plan is held at a time."""
    found = []
    for each in plan_each(plan.spec, _other_strategies(plan), limit_s, predictor):
        if each.plan is None:
            found.append(Alternative.without(each.strategy, each.reason))
        else:
            elapsed_s = None if each.run is None else each.run.elapsed_s
            note = f"not predicted: {each.reason}" if each.reason else ""
            found.append(Alternative.of(each.plan, elapsed_s, note))
    return found


VERB = Verb(
    "report",
    "write everything about a plan on one HTML page",
    """\
Write one HTML page that needs no network: the certificate in plain words, payload and time beside every
other strategy, the load of every port, layouts, transfers, a timeline, and a table of all tensors. The spec
is compiled with every other strategy for it; --no-baselines leaves that out. Unless --simulate asks for it,
large plans are not predicted, and other strategies are only routed beside them: the timeline then is that of
the schedule, and the times compared are those of the busiest ports, which the page says. --measured shows a
run that executors recorded beside it.""",
    """\
examples:
  reshard-planner report plan.reshard -o plan.html
  reshard-planner report spec.yaml -o plan.html --no-baselines
  reshard-planner report qwen3.reshard -o qwen3.html --limit 30
  reshard-planner report qwen3.reshard -o qwen3.html --no-baselines --simulate
  reshard-planner report plan.reshard -o plan.html --measured trace.json
""",
    add_arguments,
    run,
)

"""``simulate SPEC|PLAN``: how long a run will take, and what uses each link."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from reshard_planner.cli.costs import add_costs, read_costs
from reshard_planner.cli.inputs import add_strategy, check_rank, load_or_compile
from reshard_planner.cli.output import check_output, end_progress, print_json, print_text, terminal_progress
from reshard_planner.cli.verb import Verb
from reshard_planner.errors import InputError
from reshard_planner.ir.chrometrace import chrome_trace
from reshard_planner.ir.file import write_atomically
from reshard_planner.ir.plan import Plan
from reshard_planner.render.prediction import prediction_text
from reshard_planner.simulate import (
    Phase,
    Prediction,
    count_events,
    phases_by_pattern,
    phases_by_strategy,
    plan_phases,
    predict_phases,
    timeline_of,
    with_link_costs,
)
from reshard_planner.simulate.predict import MAX_TOLERANCE
from reshard_planner.spec import ReshardSpec

MAX_EVENTS = 500_000
"""Most events of a trace: viewers hardly show more, and each takes some 500 bytes."""

PHASES: dict[str, Callable[[ReshardSpec], Sequence[Sequence[int]] | None]] = {
    "strategy": phases_by_strategy,
    "none": lambda _: None,
    "pattern": phases_by_pattern,
}
"""Phases by the value of ``--phases``; None where all tensors run together."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "plan", metavar="SPEC|PLAN", type=Path, help="plan file in any of its forms, or a spec file"
    )
    parser.add_argument(
        "--trace", metavar="FILE", type=Path, help="write the run as a Chrome trace, for Perfetto"
    )
    parser.add_argument(
        "--rank",
        metavar="R",
        type=int,
        action="append",
        help="trace only this rank; may be given several times (default: all)",
    )
    parser.add_argument(
        "--ports", metavar="N", type=int, default=10, help="list the N busiest ports (default 10)"
    )
    parser.add_argument(
        "--phases",
        choices=tuple(PHASES),
        default="strategy",
        help="strategy: as systems that use it do, which for hybrid is feed-forward weights before all"
        " others, and all together for other strategies (default); none: all run together; pattern: tensors"
        " of one name but for its numbers run together, and all ranks wait before the next ones",
    )
    parser.add_argument(
        "--serial",
        action="store_true",
        help="ranks pack before the first message of a phase and unpack after the last, not meanwhile",
    )
    parser.add_argument(
        "--tolerance",
        metavar="X",
        type=float,
        help="how finely large plans are worked out, as a share of the time, 0 for exactly, at most 0.001"
        " (default: exactly below 10,000 messages, then 0.0002)",
    )
    add_strategy(parser)
    add_costs(parser)


def run(arguments: argparse.Namespace) -> int:
    """Predict, and print or write what was found."""
    costs, links = read_costs(arguments)
    if arguments.ports < 0:
        raise InputError(f"--ports is {arguments.ports}; expected 0 or more")
    if arguments.tolerance is not None and not 0 <= arguments.tolerance <= MAX_TOLERANCE:
        raise InputError(
            f"--tolerance is {arguments.tolerance}; expected a share of the time, 0 to {MAX_TOLERANCE}"
        )
    if arguments.rank and arguments.trace is None:
        raise InputError("--rank says what --trace shows, which is missing; expected --trace FILE")
    check_output("--trace", arguments.trace, arguments.plan)
    plan = load_or_compile(arguments.plan, arguments.strategy)
    for rank in arguments.rank or ():
        check_rank(plan.spec, rank)
    progress = terminal_progress()
    try:
        progress("workload")
        phases = plan_phases(plan, PHASES[arguments.phases](plan.spec), overlapped=not arguments.serial)
        if arguments.trace is not None:
            _check_events(phases, arguments.rank)
        topology = with_link_costs(plan.spec.topology, links)
        found = predict_phases(phases, topology, costs, tolerance=arguments.tolerance, progress=progress)
    finally:
        end_progress()
    if arguments.trace is not None:
        _write_trace(plan, found, arguments)
    if arguments.json:
        print_json(_document(plan, found))
        return 0
    print_text(prediction_text(plan, found, arguments.ports))
    if arguments.trace is not None:
        print_text(f"\nwrote {arguments.trace}")
    return 0


def _check_events(phases: Sequence[Phase], ranks: Collection[int] | None) -> None:
    count = sum(count_events(phase.workload, ranks) for phase in phases)
    if count > MAX_EVENTS:
        raise InputError(
            f"--trace would have {count} events; expected at most {MAX_EVENTS}: name ranks by --rank"
        )


def _write_trace(plan: Plan, found: Prediction, arguments: argparse.Namespace) -> None:
    timeline = timeline_of(found, arguments.rank)
    notes = {"digest": plan.digest, "elapsed_s": found.elapsed_s, "predicted": True}
    write_atomically(arguments.trace, chrome_trace(timeline, notes=notes, topology=plan.spec.topology))


def _document(plan: Plan, found: Prediction) -> dict[str, Any]:
    """The prediction in plain JSON types."""
    bound_s = plan.certificate.bound.time_s
    document: dict[str, Any] = {
        "digest": plan.digest,
        "strategy": plan.spec.options.strategy,
        "tensors": len(plan.spec.tensors),
        "predicted": {
            "elapsed_s": found.elapsed_s,
            "bound_ratio": found.elapsed_s / bound_s if bound_s else None,
            "messages": len(found.intervals),
        },
        "bound": {"time_s": bound_s},
        "phases": [{"end_s": end_s} for end_s in found.phase_ends_s],
        "last_rank": None,
        "ranks": [{"rank": rank, "end_s": float(found.end_s[rank])} for rank in plan.ranks],
        "ports": [
            {
                "resource": use.resource,
                "nbytes": use.nbytes,
                "bytes_per_s": use.bytes_per_s,
                "utilisation": use.utilisation,
            }
            for use in found.ports
        ],
    }
    if found.last_rank is not None:
        spent = found.spent(found.last_rank)
        document["last_rank"] = {
            "rank": found.last_rank,
            "pack_s": spent.pack_s,
            "post_s": spent.post_s,
            "unpack_s": spent.unpack_s,
            "wait_s": spent.wait_s,
        }
    return document


VERB = Verb(
    "simulate",
    "predict how long a run takes, and what uses each link",
    """\
Predict a run of a plan, message by message: messages share ports, and ranks do one thing at a time. Links
cost what the topology says, efficiency and latency; ranks cost nothing unless options say what. A spec is
compiled first.""",
    """\
examples:
  reshard-planner simulate plan.reshard
  reshard-planner simulate plan.reshard --trace run.json --rank 0 --rank 8
  reshard-planner simulate plan.reshard --pack-rate 1TB --slot-cost 20e-6 --nic-efficiency 0.9
  reshard-planner simulate spec.yaml --strategy gather-broadcast --phases pattern --serial --json
""",
    add_arguments,
    run,
)

"""``replan PLAN --without RANKS``: plan again without ranks that are gone."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from reshard_planner.cli.output import (
    check_output,
    end_progress,
    plan_summary,
    print_json,
    print_text,
    terminal_progress,
)
from reshard_planner.cli.verb import Verb
from reshard_planner.errors import InputError
from reshard_planner.intset import parse_ints
from reshard_planner.ir.forms import is_plan, save_as
from reshard_planner.ir.plan import Plan
from reshard_planner.render.replan import describe
from reshard_planner.render.summary import summarize
from reshard_planner.replan import Changes, Replan, replan
from reshard_planner.spec import ReshardSpec
from reshard_planner.transfer import Medium


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "plan", metavar="PLAN", type=Path, help="plan file, in any of its forms, or spec file"
    )
    parser.add_argument(
        "--without",
        metavar="RANKS",
        required=True,
        action="append",
        help="the ranks that are gone, such as 3,5-7; may be given several times",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="NEW",
        type=Path,
        help="write the new plan; .json and .txt give those forms, everything else the binary one",
    )


def run(arguments: argparse.Namespace) -> int:
    """Plan again, write the plan if asked, print what became of everything."""
    try:
        gone = [rank for ranks in arguments.without for rank in parse_ints(ranks)]
    except ValueError as error:
        raise InputError(f"--without: {error}") from None
    path, output = arguments.plan, arguments.output
    given = Plan.load(path) if is_plan(path) else ReshardSpec.load(path)
    check_output("--output", output, path)
    progress = terminal_progress()
    begin = time.perf_counter()
    try:
        found = replan(given, gone, progress=progress)
        elapsed = time.perf_counter() - begin
        progress("comparison")
        result = to_dict(found) if arguments.json else describe(found)
    finally:
        end_progress()
    if output is not None and found.plan is not None:
        save_as(found.plan, output)
    if isinstance(result, dict):
        print_json({**result, "replan_s": elapsed})
    else:
        print_text(result)
        if found.plan is not None:
            print_text(summarize(found.plan))
            print_text(f"planned again in {elapsed * 1e3:.0f} ms")
        if output is not None:
            print_text(f"wrote {output}" if found.plan is not None else f"did not write {output}")
    return 0 if found.complete else 1


def to_dict(found: Replan) -> dict[str, Any]:
    """What became of a plan, in plain JSON types; of operations only how many there are."""
    before = found.before
    return {
        "without": list(found.without),
        "complete": found.complete,
        "impossible": [
            {
                "tensor": each.tensor,
                "boxes": [
                    [list(bounds) for bounds in zip(box.lo, box.hi, strict=True)] for box in each.boxes
                ],
                "nbytes": each.nbytes,
                "holders": list(each.holders),
                "needers": list(each.needers),
            }
            for each in found.impossible
        ],
        "unneeded": list(found.unneeded),
        "incomplete": [
            {"ranks": list(each.ranks), "gone": list(each.gone), "tensors": list(each.tensors)}
            for each in found.incomplete
        ],
        "plan": None if found.plan is None else plan_summary(found.plan),
        "before": None if before is None else plan_summary(before),
        "operations": None if found.changes is None else _operations(found.changes),
    }


def _operations(changes: Changes) -> dict[str, Any]:
    return {
        word: {"count": len(column), **{f"{each.label}_nbytes": int(sums[each]) for each in Medium}}
        for word, column, sums in (
            ("same", changes.before, changes.same_nbytes),
            ("gone", changes.gone, changes.gone_nbytes),
            ("new", changes.new, changes.new_nbytes),
        )
    }


VERB = Verb(
    "replan",
    "plan again without ranks that are gone",
    """\
Leave out ranks of a plan or a spec, compile what is left, and print what became impossible because only these
ranks held it, which replicas are incomplete, and how many transfers are the same. Ranks, names and local
buffers of all others stay what they are. Tensors that are impossible are left out of the new plan, which is
written nevertheless; the exit code is 1 then, and if there is nothing left to move.""",
    """\
examples:
  reshard-planner replan plan.reshard --without 6,7
  reshard-planner replan plan.reshard --without 3,5-7 -o new.reshard
  reshard-planner replan spec.yaml --without 3 --json
""",
    add_arguments,
    run,
)

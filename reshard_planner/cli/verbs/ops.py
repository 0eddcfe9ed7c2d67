"""``ops PLAN``: every operation as a line of JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reshard_planner.cli.inputs import check_rank, tensor_position
from reshard_planner.cli.output import print_text
from reshard_planner.cli.verb import Verb
from reshard_planner.ir.ops import Ops
from reshard_planner.ir.plan import Plan
from reshard_planner.transfer import Medium, Role


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("plan", metavar="PLAN", type=Path, help="plan file, in any of its forms")
    parser.add_argument("--tensor", metavar="T", help="only operations that move this tensor")
    parser.add_argument(
        "--rank", metavar="R", type=int, help="only what this rank sends, receives and copies"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print one line per operation, with or without ``--json``."""
    plan = Plan.load(arguments.plan)
    check_rank(plan.spec, arguments.rank)
    chosen = None if arguments.tensor is None else [tensor_position(plan.spec, arguments.tensor)]
    for entry in describe(plan, plan.ops(rank=arguments.rank, tensors=chosen)):
        print_text(json.dumps(entry))
    return 0


def describe(plan: Plan, ops: Ops) -> Iterator[dict[str, Any]]:
    """Operations in plain JSON types, one at a time."""
    names = [tensor.name for tensor in plan.spec.tensors]
    dims = [len(tensor.shape) for tensor in plan.spec.tensors]
    for at in range(len(ops)):
        number = int(ops.tensor[at])
        parent = int(ops.parent[at])
        yield {
            "op": int(ops.op[at]),
            "parent": parent if parent >= 0 else None,
            "tensor": names[number],
            "lo": ops.lo[at, : dims[number]].tolist(),
            "hi": ops.hi[at, : dims[number]].tolist(),
            "src": int(ops.src[at]),
            "dst": int(ops.dst[at]),
            "medium": Medium(int(ops.medium[at])).label,
            "role": Role(int(ops.role[at])).label,
            "scratch": bool(ops.scratch[at]),
            "slot": int(ops.slot[at]),
            "nbytes": int(ops.nbytes[at]),
        }


VERB = Verb(
    "ops",
    "print every operation as a line of JSON",
    """\
Print one JSON object per line for every operation, that is every transfer of every unit: its number, the
operation that brings its bytes (null for the source's own tile), tensor, box, ranks, medium, role, whether
it arrives in scratch, slot and bytes.""",
    """\
examples:
  reshard-planner ops plan.reshard
  reshard-planner ops plan.reshard --tensor w --rank 3
""",
    add_arguments,
    run,
)

"""``tiles PLAN``: who holds what, on both sides, by a plan or a spec."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from reshard_planner.box import Box
from reshard_planner.cli.inputs import read_spec
from reshard_planner.cli.output import print_json, print_text
from reshard_planner.cli.verb import Verb
from reshard_planner.render.text import plain
from reshard_planner.spec import TensorSpec
from reshard_planner.spec.tiles import SideTiles
from reshard_planner.spec.values import SIDES, Side


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("plan", metavar="PLAN", type=Path, help="plan file, or a spec, YAML or JSON")
    parser.add_argument("--tensor", metavar="T", help="only this tensor")


def run(arguments: argparse.Namespace) -> int:
    """Print the tiles of every rank."""
    spec = read_spec(arguments.plan)
    tensors = spec.tensors if arguments.tensor is None else (spec.tensor(arguments.tensor),)
    if arguments.json:
        print_json({tensor.name: {side: _plain(tensor, side) for side in SIDES} for tensor in tensors})
        return 0
    for tensor in tensors:
        print_text(f"{plain(tensor.name)} {list(tensor.shape)} {tensor.dtype}")
        for side in SIDES:
            print_text(f"  {side} {' and '.join(str(layout) for layout in tensor.layouts(side))}")
            for rank, boxes in _boxes(tensor, side).items():
                print_text(f"    rank {rank}: {' '.join(map(str, boxes)) or 'nothing'}")
    return 0


def _boxes(tensor: TensorSpec, side: Side) -> dict[int, list[Box]]:
    """Boxes per rank in storage order; a rank with an empty shard has none."""
    tiles = SideTiles(tensor, side)
    return {rank: [entry.box for entry in tiles.tiles(rank)] for rank in tiles.ranks()}


def _plain(tensor: TensorSpec, side: Side) -> dict[str, Any]:
    return {
        str(rank): [[list(bounds) for bounds in zip(box.lo, box.hi, strict=True)] for box in boxes]
        for rank, boxes in _boxes(tensor, side).items()
    }


VERB = Verb(
    "tiles",
    "print which rank holds which part of each tensor",
    "Print the boxes that every rank holds before (src) and must hold after (dst), in global coordinates.",
    """\
examples:
  reshard-planner tiles spec.yaml
  reshard-planner tiles plan.reshard --tensor w --json
""",
    add_arguments,
    run,
)

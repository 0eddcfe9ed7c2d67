"""``topology draw FILE... -o OUT``: the picture of a cluster."""

from __future__ import annotations

import argparse
from pathlib import Path

from reshard_planner.cli.output import print_json, print_text
from reshard_planner.cli.verb import Verb
from reshard_planner.cli.verbs.topology.sources import add_sources, find_all, read_sources
from reshard_planner.cli.verbs.topology.targets import check_target
from reshard_planner.ir.file import write_atomically
from reshard_planner.render.svg import IMAGE_SUFFIXES, TEXT_SUFFIXES, draw_dot
from reshard_planner.topology.cluster.resolve import resolve


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_sources(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        type=Path,
        required=True,
        help="picture to write: .svg, .dot or .gv; .png and .pdf where graphviz is installed",
    )


def run(arguments: argparse.Namespace) -> int:
    """Draw and write the file."""
    from reshard_planner.render.cluster.draw import cluster_dot  # noqa: PLC0415 - no other action draws

    target: Path = arguments.output
    check_target(arguments, (*TEXT_SUFFIXES, *IMAGE_SUFFIXES))
    cluster, findings = read_sources(arguments)
    resolved = resolve(cluster)
    found = find_all(cluster, resolved, findings)
    write_atomically(target, draw_dot(cluster_dot(cluster, resolved, found), target.suffix))
    if arguments.json:
        print_json({"file": str(target)})
    else:
        print_text(f"wrote {target}")
    return 0


ACTION = Verb(
    "draw",
    "draw a cluster: hosts, domains, GPUs, NICs, switches",
    """\
Draw a cluster. Up to 4 hosts of 64 GPUs together are drawn device by device: which GPUs are of one domain,
which NIC each GPU uses, and which switch that is plugged into. Of larger clusters hosts that are alike are
one box, in the frames of their pods. What is less than its like has a double frame and says why; what
is assumed is dashed.""",
    """\
examples:
  reshard-planner topology draw cluster.yaml -o cluster.svg
  reshard-planner topology draw a=nvidia-smi.xml -o a.png
  reshard-planner topology draw n[01-16]=node.xml network.out -o cluster.dot
""",
    add_arguments,
    run,
)

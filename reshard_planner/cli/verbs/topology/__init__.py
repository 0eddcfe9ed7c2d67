"""``topology ACTION``: descriptions of clusters, from the files that machines and schedulers already have."""

from __future__ import annotations

import argparse

from reshard_planner.cli.verb import Verb
from reshard_planner.cli.verbs.topology import check, draw, import_, measure, preset, schema, show

ACTIONS: tuple[Verb, ...] = (
    import_.ACTION,
    preset.ACTION,
    show.ACTION,
    check.ACTION,
    draw.ACTION,
    measure.ACTION,
    schema.ACTION,
)
"""What can be done with a cluster, one file each, in the order of the help text."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions, each with arguments of its own."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=type(parser))
    for action in ACTIONS:
        action.add_to(actions).set_defaults(act=action.run)


def run(arguments: argparse.Namespace) -> int:
    """Do the action and return its exit code."""
    code: int = arguments.act(arguments)
    return code


VERB = Verb(
    "topology",
    "describe a cluster from files that its machines already have",
    """\
Read what machines and schedulers print about a cluster (nvidia-smi, NCCL's XML, ibnetdiscover, Slurm, labels
of Kubernetes, topograph), join several of these files, say what is known and what is assumed, and write one
small cluster file that specs refer to: topology: {file: cluster.yaml}.""",
    """\
examples:
  nvidia-smi -q -x > a.xml                                          on host a
  reshard-planner topology import a=a.xml network.out -o cluster.yaml
  reshard-planner topology import n[01-16]=node.xml topology.conf -o cluster.yaml
  reshard-planner topology preset dgx-h100 --hosts n[01-16] -o cluster.yaml
  reshard-planner topology check cluster.yaml                       what is slow, missing or does not line up
  reshard-planner topology show cluster.yaml
  reshard-planner topology draw cluster.yaml -o cluster.svg
  torchrun ... reshard-planner topology measure -o measured.yaml    what its ports really reach
Every action has its own --help.
""",
    add_arguments,
    run,
)

"""``topology import FILE...``: one cluster file out of what machines and schedulers print."""

from __future__ import annotations

import argparse
from dataclasses import replace

from reshard_planner.cli.verb import Verb
from reshard_planner.cli.verbs.topology.overrides import add_overrides, with_overrides
from reshard_planner.cli.verbs.topology.ranks import add_ranks, with_ranks
from reshard_planner.cli.verbs.topology.sources import add_output, add_sources, read_sources, write_cluster
from reshard_planner.cli.verbs.topology.targets import CLUSTER_SUFFIXES, check_target
from reshard_planner.errors import InputError
from reshard_planner.topology.cluster.model import MAX_NAME
from reshard_planner.topology.importers import IMPORTERS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_sources(parser)
    add_output(parser)
    parser.add_argument("--name", help="name of the cluster")
    add_overrides(parser)
    add_ranks(parser)


def run(arguments: argparse.Namespace) -> int:
    """Read, join, apply what was asked for, and write."""
    check_target(arguments, CLUSTER_SUFFIXES)
    cluster, findings = read_sources(arguments)
    if arguments.name is not None:
        if not arguments.name or len(arguments.name) > MAX_NAME:
            raise InputError(f"--name has {len(arguments.name)} characters; expected 1 to {MAX_NAME}")
        cluster = replace(cluster, name=arguments.name)
    cluster = with_overrides(cluster, arguments)
    cluster, noted = with_ranks(cluster, arguments)
    return write_cluster(cluster, (*findings, *noted), arguments)


ACTION = Verb(
    "import",
    "join files that machines and schedulers print into a cluster file",
    """\
Read files of known formats, join what they say about each host, GPU, NIC and switch, and write a cluster
file. Where they differ, what was measured wins over what machines print, and that over presets; of equals the
file that is named first wins, and that is said. What none of them says stays unknown in the file; what
planning then assumes is said, too. Formats:

"""
    + "\n".join(f"  {importer.name:<16} {importer.summary}" for importer in IMPORTERS.values()),
    """\
examples:
  reshard-planner topology import a=a.xml b=b.xml -o cluster.yaml            two hosts
  reshard-planner topology import n[01-16]=node.xml -o cluster.yaml          sixteen hosts, all alike
  reshard-planner topology import n[01-16]=node.xml network.out topology.conf -o cluster.yaml
  reshard-planner topology import cluster.yaml measured.yaml -o better.yaml  what ports reach, as measured
  reshard-planner topology import n=topo.txt --gpu-model H100 --disable-nic mlx5_8 -o n.yaml
""",
    add_arguments,
    run,
)

"""``topology show FILE...``: what a cluster is, and where each speed comes from."""

from __future__ import annotations

import argparse

from reshard_planner.cli.output import print_json, print_text
from reshard_planner.cli.verb import Verb
from reshard_planner.cli.verbs.topology.sources import add_sources, describe, read_sources, resolve_known
from reshard_planner.render.cluster.text import cluster_text, findings_text
from reshard_planner.topology.cluster.facts import join_alike


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_sources(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the cluster."""
    cluster, findings = read_sources(arguments)
    resolved = resolve_known(cluster)
    found = join_alike((*findings, *(resolved.findings if resolved is not None else ())))
    if arguments.json:
        print_json(describe(cluster, resolved, found))
        return 0
    print_text(cluster_text(cluster, resolved))
    if found:
        print_text(findings_text(found))
    return 0


ACTION = Verb(
    "show",
    "print a cluster with the origin of each speed",
    """\
Print the hosts, domains, ports and pods of a cluster file, or of files that can be imported, with where each
speed comes from, and what planning assumes.""",
    """\
examples:
  reshard-planner topology show cluster.yaml
  reshard-planner topology show a=nvidia-smi.xml --json
""",
    add_arguments,
    run,
)

"""``topology preset MACHINE``: the cluster file of known machines."""

from __future__ import annotations

import argparse

from reshard_planner.cli.verb import Verb
from reshard_planner.cli.verbs.topology.overrides import add_overrides, with_overrides
from reshard_planner.cli.verbs.topology.ranks import add_ranks, with_ranks
from reshard_planner.cli.verbs.topology.sources import add_output, write_cluster
from reshard_planner.cli.verbs.topology.targets import CLUSTER_SUFFIXES, check_target
from reshard_planner.topology.cluster.hostlist import expand_hosts
from reshard_planner.topology.cluster.presets import preset_cluster
from reshard_planner.topology.presets import PRESETS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("machine", metavar="MACHINE", choices=tuple(PRESETS), help=", ".join(PRESETS))
    parser.add_argument("--hosts", required=True, help="the hosts, as a host list such as n[01-16]")
    add_output(parser)
    add_overrides(parser)
    add_ranks(parser)


def run(arguments: argparse.Namespace) -> int:
    """Build the cluster and write it."""
    check_target(arguments, CLUSTER_SUFFIXES)
    cluster = preset_cluster(arguments.machine, expand_hosts(arguments.hosts))
    cluster = with_overrides(cluster, arguments)
    cluster, findings = with_ranks(cluster, arguments)
    return write_cluster(cluster, findings, arguments)


ACTION = Verb(
    "preset",
    "write the cluster file of known machines",
    """\
Write a cluster file of hosts of one known machine, with the speeds of its datasheet, to be changed by hand or
joined with measurements.""",
    """\
examples:
  reshard-planner topology preset dgx-h100 --hosts n[01-16] -o cluster.yaml
  reshard-planner topology preset gb200-nvl72 --hosts tray[01-36] --gpus-per-domain 36
""",
    add_arguments,
    run,
)

"""Options that say which rank runs on which GPU."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from reshard_planner.document import read_text
from reshard_planner.errors import InputError
from reshard_planner.topology.cluster.facts import Finding
from reshard_planner.topology.cluster.model import Cluster
from reshard_planner.topology.cluster.ranks import RankOrder, hostfile_ranks, slurm_ranks, torchrun_ranks


def add_ranks(parser: argparse.ArgumentParser) -> None:
    """Declare them; the rank map is written into the cluster file."""
    order = parser.add_mutually_exclusive_group()
    order.add_argument(
        "--torchrun",
        metavar="HOSTS",
        help="ranks as torchrun gives them to these hosts, in the order of node ranks",
    )
    order.add_argument(
        "--nodelist", metavar="NODES", help="ranks as srun gives them to this SLURM_JOB_NODELIST"
    )
    order.add_argument(
        "--hostfile", metavar="FILE", type=Path, help="ranks as mpirun gives them by a hostfile"
    )
    parser.add_argument(
        "--ranks-per-host", metavar="N", type=int, help="ranks of each host (default: one per GPU)"
    )
    parser.add_argument(
        "--distribution", metavar="D", default="block", help="of srun: block (default), cyclic or plane=N"
    )


def with_ranks(cluster: Cluster, arguments: argparse.Namespace) -> tuple[Cluster, tuple[Finding, ...]]:
    """The cluster with the rank map that the options ask for, and what was found on the way.

    Raises:
        InputError: if options do not go together, or name hosts or GPUs that the cluster lacks.
    """
    order = _order(cluster, arguments)
    if order is None:
        return cluster, ()
    return replace(cluster, rank_map=order.rank_map), order.findings


def _order(cluster: Cluster, arguments: argparse.Namespace) -> RankOrder | None:
    per_host: int | None = arguments.ranks_per_host
    if per_host is not None and per_host < 1:
        raise InputError(f"--ranks-per-host is {per_host}; expected at least 1")
    if arguments.nodelist is None and arguments.distribution != "block":
        raise InputError("--distribution goes with --nodelist; give both or none")
    if arguments.torchrun is not None:
        return torchrun_ranks(cluster, arguments.torchrun, per_host)
    if arguments.nodelist is not None:
        return slurm_ranks(cluster, arguments.nodelist, per_host, arguments.distribution)
    if per_host is not None:
        raise InputError("--ranks-per-host goes with --torchrun or --nodelist; give both or none")
    if arguments.hostfile is not None:
        return hostfile_ranks(cluster, read_text(arguments.hostfile))
    return None

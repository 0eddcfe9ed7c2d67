"""``topology measure``: what the ports of a cluster reach, measured by all ranks of a launcher."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reshard_planner.cli.output import print_error, print_json, print_text
from reshard_planner.cli.verb import Verb
from reshard_planner.cli.verbs.topology.sources import add_output, write_file
from reshard_planner.cli.verbs.topology.targets import CLUSTER_SUFFIXES, check_target
from reshard_planner.errors import ExecutionError, InputError, ReshardError
from reshard_planner.render.cluster.text import findings_text
from reshard_planner.topology.cluster.facts import Finding, join_alike
from reshard_planner.topology.cluster.model import Cluster
from reshard_planner.topology.cluster.reading import load_cluster
from reshard_planner.topology.cluster.writing import cluster_to_form, cluster_to_yaml

if TYPE_CHECKING:
    from reshard_executors.measure.samples import Measurement


MAX_FINDINGS = 20
"""Findings that are printed as text."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """What rank 0 has made of a measurement, and is to print."""

    measurement: Measurement
    cluster: Cluster
    findings: tuple[Finding, ...]
    table: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_output(parser)
    parser.add_argument(
        "--cluster",
        metavar="FILE",
        type=Path,
        help="cluster file, read by rank 0, that says what NICs and datasheet rates there are; speeds are"
        " written in its terms",
    )
    parser.add_argument(
        "--seconds",
        metavar="S",
        type=float,
        default=20.0,
        help="seconds that measuring may take, beside connecting; where that is too short for all pairs, a"
        " sample of them is measured (default 20)",
    )
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=float,
        default=60.0,
        help="seconds that ranks wait for one another at each step (default 60)",
    )
    parser.add_argument(
        "--backend", choices=("gloo", "nccl"), help="to measure with (default: nccl where CUDA is)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure with all other ranks; rank 0 writes and prints."""
    from reshard_executors.command.codes import Terminated  # noqa: PLC0415 - executors are a package apart
    from reshard_executors.command.loading import load_torch  # noqa: PLC0415
    from reshard_executors.command.options import check_seconds  # noqa: PLC0415
    from reshard_executors.command.supervise import hearing_sigterm  # noqa: PLC0415
    from reshard_executors.launchers import rank_info  # noqa: PLC0415

    check_seconds(arguments, ("seconds", "timeout"))
    info = rank_info(os.environ)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # it prints what it also raises, and pages of it
    os.environ.setdefault("NCCL_PXN_DISABLE", "1")  # or messages may leave by the NIC of another GPU
    load_torch("measuring")
    from reshard_executors.measure.session import Wish, measure  # noqa: PLC0415 - needs torch

    given, problem = _read(arguments) if info.rank == 0 else (None, None)
    wish = Wish(arguments.seconds, arguments.backend, arguments.timeout)
    try:
        with hearing_sigterm():
            kept = measure(info, wish, problem, lambda found: _keep(found, given, arguments.output))
    except Terminated:
        raise ExecutionError(f"rank {info.rank}: ended by SIGTERM, as launchers do if one is lost") from None
    except ReshardError as error:
        raise type(error)(f"rank {info.rank}: {error}") from None
    if kept is not None:
        _print(kept, arguments)
    return 0


def _read(arguments: argparse.Namespace) -> tuple[Cluster | None, ReshardError | None]:
    """The cluster that is known, or why this rank cannot go on."""
    try:
        check_target(arguments, CLUSTER_SUFFIXES)
        if arguments.output is not None and not arguments.output.resolve().parent.is_dir():
            raise InputError(f"cannot write {arguments.output}: its folder does not exist")
        if arguments.cluster is None:
            return None, None
        return load_cluster(arguments.cluster), None
    except ReshardError as error:
        return None, error


def _keep(measurement: Measurement, given: Cluster | None, output: Path | None) -> _Kept:
    """Make the cluster file of what was measured, and write it."""
    from reshard_planner.cli.measured.cluster import measured_cluster  # noqa: PLC0415 - no other action measures
    from reshard_planner.cli.measured.findings import find_all  # noqa: PLC0415
    from reshard_planner.cli.measured.places import find_places  # noqa: PLC0415
    from reshard_planner.cli.measured.reached import find_reached  # noqa: PLC0415
    from reshard_planner.cli.measured.table import measurement_text  # noqa: PLC0415

    places, unknown = find_places(measurement, given)
    reached = find_reached(measurement, places)
    cluster, noted = measured_cluster(places, reached, given)
    findings = (*join_alike((*unknown, *noted)), *find_all(measurement, places, reached))
    if output is not None:
        write_file(cluster, output)
    return _Kept(measurement, cluster, findings, measurement_text(measurement, places, reached))


def _print(kept: _Kept, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print_json(_document(kept, arguments.output))
        return
    told = kept.table
    if kept.findings:
        told += f"\n\n{findings_text(kept.findings[:MAX_FINDINGS])}"
    if len(kept.findings) > MAX_FINDINGS:
        told += f"\nand {len(kept.findings) - MAX_FINDINGS} more, which --json has"
    if arguments.output is None:  # the file is what others read
        print_text(cluster_to_yaml(kept.cluster))
        print_error(told)
    else:
        print_text(told)
        print_text(f"\nwrote {arguments.output}")


def _document(kept: _Kept, output: Path | None) -> dict[str, Any]:
    """What ``--json`` prints."""
    return {
        "output": None if output is None else str(output),
        "measurement": kept.measurement.to_dict(),
        "findings": [finding.to_dict() for finding in kept.findings],
        "cluster": cluster_to_form(kept.cluster),
    }


ACTION = Verb(
    "measure",
    "measure what the ports of a cluster reach, with all ranks of a launcher",
    """\
Every process of a launcher runs this. Pairs of ranks send to one another in turns, no rank in two pairs and
no host with two pairs that reach out at the same time, so that each has its ports to itself: small messages
for latency, larger ones for rates, one direction at a time and then both. At last hosts send with all ranks,
which shows NICs that are shared and a network that is oversubscribed. Rank 0 writes a cluster file with what
was reached, and prints a table and what is slow. Pairs of one host, or of one NVLink domain of --cluster,
tell of NVLink ports, all others of NICs. Without --cluster every GPU is taken to have a NIC of its own, NIC0
and so on; with it a datasheet rate stays as it is, and the efficiency says what was reached. Exit code 1 if a
rank is lost.""",
    """\
examples:
  torchrun --nproc-per-node 8 -m reshard_planner topology measure -o measured.yaml
  torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint node1:29400 \\
      -m reshard_planner topology measure --cluster cluster.yaml -o measured.yaml
  srun --ntasks-per-node 8 python -m reshard_planner topology measure --seconds 60 --json
  mpirun -n 8 python -m reshard_planner topology measure --backend gloo > measured.yaml
  reshard-planner topology import cluster.yaml measured.yaml -o merged.yaml
""",
    add_arguments,
    run,
)

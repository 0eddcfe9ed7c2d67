"""What actions share: reading sources, and writing a cluster file."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from reshard_planner.cli.output import print_error, print_json, print_text
from reshard_planner.ir.file import write_atomically
from reshard_planner.render.cluster.text import cluster_text, findings_text
from reshard_planner.topology.cluster.checks import check
from reshard_planner.topology.cluster.facts import Finding, join_alike
from reshard_planner.topology.cluster.model import Cluster
from reshard_planner.topology.cluster.resolve import Resolved, resolve
from reshard_planner.topology.cluster.writing import cluster_to_form, cluster_to_yaml
from reshard_planner.topology.importers import IMPORTERS
from reshard_planner.topology.importers.labels import LabelKeys
from reshard_planner.topology.importers.reading import Settings
from reshard_planner.topology.sources import Source, import_sources


def add_sources(parser: argparse.ArgumentParser) -> None:
    """Declare the files to read."""
    parser.add_argument(
        "sources",
        metavar="[HOSTS=]FILE",
        nargs="+",
        help="files of any known format, the most trusted first; HOSTS names the hosts that a file describes"
        " where it does not tell, as a host list such as n[01-16]",
    )
    parser.add_argument(
        "--format", choices=tuple(IMPORTERS), help="format of the files (default: recognised, file by file)"
    )
    parser.add_argument(
        "--slurm-topology",
        metavar="NAME",
        help="the topology to read of a topology.yaml (default: its default)",
    )
    parser.add_argument(
        "--domain-label",
        metavar="KEY",
        action="append",
        default=[],
        help="a label of Kubernetes nodes that is equal within an NVLink domain, beside the usual ones",
    )
    parser.add_argument(
        "--tier-labels",
        metavar="KEY,KEY,...",
        action="append",
        default=[],
        help="labels that name the switches above a node, the nearest first, beside the usual ones",
    )


def read_sources(arguments: argparse.Namespace) -> tuple[Cluster, tuple[Finding, ...]]:
    """The cluster of the files, and what reading them found, each finding where it is."""
    known = LabelKeys()
    keys = replace(
        known,
        domains=(*arguments.domain_label, *known.domains),
        paths=(*(tuple(text.split(",")) for text in arguments.tier_labels), *known.paths),
    )
    settings = Settings(arguments.format, arguments.slurm_topology, keys)
    return import_sources([Source.parse(text) for text in arguments.sources], settings)


def add_output(parser: argparse.ArgumentParser) -> None:
    """Declare where the cluster file goes."""
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        type=Path,
        help="cluster file to write, .yaml or .json (default: print it)",
    )


def write_cluster(cluster: Cluster, findings: tuple[Finding, ...], arguments: argparse.Namespace) -> int:
    """Write or print a cluster file, and say what it is and what was found."""
    resolved = resolve_known(cluster)
    found = find_all(cluster, resolved, findings)
    output: Path | None = arguments.output
    if output is not None:
        write_file(cluster, output)
    if arguments.json:
        print_json(describe(cluster, resolved, found))
    elif output is None:
        print_text(cluster_to_yaml(cluster))
        if found:
            print_error(findings_text(found))
    else:
        print_text(f"wrote {output}")
        print_text(cluster_text(cluster, resolved))
        if found:
            print_text(findings_text(found))
    return 0


def write_file(cluster: Cluster, path: Path) -> None:
    """Write a cluster file, as JSON if its suffix says so, and as YAML otherwise."""
    text = cluster_to_yaml(cluster)
    if path.suffix.lower() == ".json":
        text = json.dumps(cluster_to_form(cluster), indent=1) + "\n"
    write_atomically(path, text.encode())


def resolve_known(cluster: Cluster) -> Resolved | None:
    """What planning makes of a cluster; None while nobody has said what GPUs it has."""
    if not cluster.gpu_count:
        return None
    return resolve(cluster)


def find_all(
    cluster: Cluster, resolved: Resolved | None, findings: tuple[Finding, ...]
) -> tuple[Finding, ...]:
    """What reading and checks found, those that say the same of several places as one."""
    return join_alike((*findings, *check(cluster, resolved)))


def describe(cluster: Cluster, resolved: Resolved | None, findings: tuple[Finding, ...]) -> dict[str, Any]:
    """Everything about a cluster in plain JSON types."""
    plain: dict[str, Any] = {"cluster": cluster_to_form(cluster)}
    if resolved is not None:
        plain["topology"] = resolved.topology.to_dict()
        plain["domains"] = [{"name": domain.name, "gpus": list(domain.gpus)} for domain in resolved.domains]
        plain["nics"] = [{"host": host, "name": name} for host, name in resolved.nics]
    plain["findings"] = [finding.to_dict() for finding in findings]
    return plain

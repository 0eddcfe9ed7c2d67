"""``topology check FILE...``: what is slow, missing or does not line up in a cluster."""

from __future__ import annotations

import argparse

from reshard_planner.cli.output import print_json, print_text
from reshard_planner.cli.verb import Verb
from reshard_planner.cli.verbs.topology.sources import add_sources, find_all, read_sources, resolve_known
from reshard_planner.render.cluster.text import findings_text
from reshard_planner.topology.cluster.checks import worst


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_sources(parser)


def run(arguments: argparse.Namespace) -> int:
    """Check and print; 1 if something is degraded or contradicts itself."""
    cluster, findings = read_sources(arguments)
    found = find_all(cluster, resolve_known(cluster), findings)
    wrong = worst(found)
    if arguments.json:
        print_json({"ok": not wrong, "findings": [finding.to_dict() for finding in found]})
        return 1 if wrong else 0
    if found:
        print_text(findings_text(found))
    said = f"{len(wrong)} to look at" if wrong else "nothing is wrong"
    print_text(f"{said}, {len(found) - len(wrong)} unknown or assumed")
    return 1 if wrong else 0


ACTION = Verb(
    "check",
    "say what is slow, missing or does not line up, and what follows",
    """\
Compare every GPU, NIC, rail, domain and switch with its like, and say what is less, with the consequence
for transfers. Exit code 1 if something is degraded or contradicts itself, 0 if things are unknown or assumed
at most.""",
    """\
examples:
  reshard-planner topology check cluster.yaml
  reshard-planner topology check n[01-16]=node.xml network.out --json
""",
    add_arguments,
    run,
)

"""``topology schema``: the format of the cluster file."""

from __future__ import annotations

import argparse
import json

from reshard_planner.cli.output import print_text
from reshard_planner.cli.verb import Verb
from reshard_planner.topology.cluster.form import schema


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """There are none."""


def run(arguments: argparse.Namespace) -> int:  # noqa: ARG001 - the same with and without --json
    """Print the schema."""
    print_text(json.dumps(schema(), indent=2))
    return 0


ACTION = Verb(
    "schema",
    "print the JSON schema of the cluster file",
    "Print the JSON schema of the cluster file, which editors can check files against.",
    """\
examples:
  reshard-planner topology schema > cluster.schema.json
""",
    add_arguments,
    run,
)

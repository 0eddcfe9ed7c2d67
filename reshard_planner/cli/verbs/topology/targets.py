"""Where actions may write: files of the right suffix that are not read by the same command."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from reshard_planner.cli.output import check_output
from reshard_planner.errors import InputError
from reshard_planner.topology.sources import Source

CLUSTER_SUFFIXES = (".yaml", ".yml", ".json")
"""Suffixes of cluster files."""


def check_target(arguments: argparse.Namespace, suffixes: Sequence[str]) -> None:
    """Refuse to write to a file of another kind, or over one that is read; before anything is done.

    Raises:
        InputError: if ``arguments.output`` is such a file.
    """
    output: Path | None = arguments.output
    if output is None:
        return
    if output.suffix.lower() not in suffixes:
        raise InputError(
            f"--output {output} ends in {output.suffix!r}; expected one of {', '.join(suffixes)}"
        )
    given = vars(arguments)
    read = [Source.parse(text).path for text in given.get("sources", ())]
    read += [path for option in ("hostfile", "cluster") if (path := given.get(option)) is not None]
    for path in read:
        check_output("--output", output, path)

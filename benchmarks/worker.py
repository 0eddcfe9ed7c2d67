"""The process that measures one case: the record as JSON on stdout, stages as lines on stderr."""

from __future__ import annotations

import argparse
import json
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import suites
from benchmarks.measure import measure

STAGE = "stage "
"""What a line on stderr begins with when it names a stage."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the case that the arguments name."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.worker")
    parser.add_argument("what", choices=["plan", "peers"])
    parser.add_argument("case")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--memory-nbytes", type=int)
    parser.add_argument("--nemo-rl", type=Path)
    given = parser.parse_args(arguments)
    if given.memory_nbytes is not None:
        resource.setrlimit(resource.RLIMIT_AS, (given.memory_nbytes, given.memory_nbytes))
    case = suites.find(given.case)
    result: dict[str, Any] | list[dict[str, Any]]
    if given.what == "plan":
        result = measure(case, given.repeat, _tell).to_dict()
    else:
        from benchmarks.peers import measure_peers  # noqa: PLC0415 - plans are measured without torch

        result = measure_peers(case, given.nemo_rl, given.repeat, _tell)
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


def _tell(stage: str) -> None:
    sys.stderr.write(f"{STAGE}{stage}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())

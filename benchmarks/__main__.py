"""``python -m benchmarks``: run suites, print tables, write JSON."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import suites, table
from benchmarks.case import Case
from benchmarks.growth import fit_growth
from benchmarks.isolate import WorkerError, run_worker
from benchmarks.record import PeerRecord, Record, ratio
from reshard_planner.render.text import align

VERSION = 1
"""Version of the JSON that ``--json`` writes."""

GIB = 2**30

EXAMPLES = """examples:
  python -m benchmarks                                   a few cases in seconds
  python -m benchmarks --suite tensors --json out.json   single tensors, beside other planners
  python -m benchmarks --suite scale --case 'moe/*' --timeout 600
  python -m benchmarks --suite tensors --case B/8 --nemo-rl ~/src/RL
  python -m benchmarks --list

Every case runs in a process of its own. A case that fails prints one line, and the run goes on; the exit code
is then 1, as it is where a goal is missed. docs/benchmarks.md explains columns and fields.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the arguments ask for; 0 if all cases reach their goals, 1 if not, 2 for bad arguments."""
    parser = _parser()
    given = parser.parse_args(arguments)
    cases = suites.select(given.suite, given.case or ())
    if not cases:
        parser.error(f"--case {' '.join(given.case)}: no such case in suite {given.suite}; see --list")
    if given.list:
        sys.stdout.write(align([(case.name, case.about) for case in cases]) + "\n")
        return 0
    if given.json is not None:
        _check_target(given.json, parser)
    records = []
    for number, case in enumerate(cases, 1):
        show = _Progress(f"[{number}/{len(cases)}] {case.name}")
        records.append(_run(case, given, show))
        show.done(records[-1])
    sys.stdout.write(report(records) + "\n")
    if given.json is not None:
        given.json.write_text(json.dumps(_document(records, given), indent=2) + "\n", encoding="utf-8")
    return exit_code(records)


def exit_code(records: Sequence[Record]) -> int:
    """0 if every case succeeded and reached its goals, else 1."""
    return int(
        any(each.status != "ok" or each.expected_bound_met is False or each.missed for each in records)
    )


def _check_target(path: Path, parser: argparse.ArgumentParser) -> None:
    """Refuse a file that cannot be written before anything is measured."""
    if path.is_dir():
        parser.error(f"--json {path} is a folder; expected a file")
    if not path.parent.is_dir():
        parser.error(f"--json {path}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        parser.error(f"--json {path} cannot be written")


def _parser() -> argparse.ArgumentParser:
    lines = "\n".join(f"  {name:8} {about}" for name, about in suites.ABOUT.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure compiling, and how near plans come to the bound.\n\nsuites:\n" + lines,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--suite", choices=[*suites.SUITES, "all"], default="smoke", help="what to run (smoke)"
    )
    parser.add_argument(
        "--case", action="append", metavar="NAME", help="only these cases; shell patterns work"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a file")
    parser.add_argument("--repeat", type=_count, default=5, metavar="N", help="compiles per case, median (5)")
    parser.add_argument("--timeout", type=_positive, default=300, metavar="S", help="seconds per case (300)")
    parser.add_argument(
        "--memory", type=_positive, default=8, metavar="GIB", help="address space per case (8)"
    )
    parser.add_argument("--no-peers", action="store_true", help="leave other planners out")
    parser.add_argument("--nemo-rl", type=Path, metavar="PATH", help="a checkout of NeMo RL to measure too")
    parser.add_argument("--list", action="store_true", help="list the cases and stop")
    return parser


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not a number of compiles; expected 1 or more")
    return value


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not positive; expected a number above 0")
    return value


def _run(case: Case, given: argparse.Namespace, show: _Progress) -> Record:
    arguments = ["plan", case.name, *_limits(given)]
    try:
        record = Record(**run_worker(arguments, given.timeout, show))
    except WorkerError as error:
        return Record(case.name, case.name.partition("/")[0], case.about, reason=str(error), gpus=case.gpus)
    if case.peers and not given.no_peers:
        record.peers = _run_peers(case, given, show, record)
    return record


def _limits(given: argparse.Namespace) -> list[str]:
    return ["--repeat", str(given.repeat), "--memory-nbytes", str(int(given.memory * GIB))]


def _run_peers(case: Case, given: argparse.Namespace, show: _Progress, ours: Record) -> list[PeerRecord]:
    arguments = ["peers", case.name, *_limits(given)]
    if given.nemo_rl is not None:
        arguments += ["--nemo-rl", str(given.nemo_rl.expanduser().resolve())]
    try:
        found = run_worker(arguments, given.timeout, show)
    except WorkerError as error:
        return [PeerRecord("other planners", reason=str(error))]
    peers = []
    for raw in found:
        nic_s, phases_s, nvlink_s = raw.pop("nic_s"), raw.pop("phases_s"), raw.pop("nvlink_s")
        own_bound_s, own_minimum = raw.pop("bound_s"), raw.pop("minimum_network_nbytes")
        peer = PeerRecord(**raw)
        bound_s = ours.bound_s if own_bound_s is None else own_bound_s
        minimum = ours.minimum_network_nbytes if own_minimum is None else own_minimum
        if peer.status == "ok" and peer.network_nbytes is not None:
            peer.payload_ratio = ratio(peer.network_nbytes, minimum or 0)
            peer.nic_ratio, peer.phases_ratio = ratio(nic_s, bound_s or 0), ratio(phases_s, bound_s or 0)
            peer.nvlink_ratio = ratio(nvlink_s, bound_s or 0)
        peers.append(peer)
    return peers


class _Progress:
    """One line on stderr: the case, its stage while it runs if that is a terminal, and how it ended."""

    def __init__(self, head: str) -> None:
        self._head = head
        self._live = sys.stderr.isatty()

    def __call__(self, stage: str) -> None:
        if self._live:
            sys.stderr.write(f"\r\x1b[K{self._head} {stage} ...")
            sys.stderr.flush()

    def done(self, record: Record) -> None:
        end = f"{table.seconds(record.compile_s)}" if record.status == "ok" else f"failed, {record.reason}"
        sys.stderr.write(("\r\x1b[K" if self._live else "") + f"{self._head} {end}\n")
        sys.stderr.flush()


def report(records: Sequence[Record]) -> str:
    """All tables of a run."""
    parts = []
    for suite in dict.fromkeys(record.suite for record in records):
        mine = [record for record in records if record.suite == suite]
        tables = (
            table.plan_table(mine),
            table.file_table(mine),
            table.predict_table(mine),
            table.m2n_table(mine),
            table.peer_table(mine),
        )
        parts.append("\n\n".join([f"== {suite}: {suites.ABOUT[suite]}", *filter(None, tables)]))
    growth = fit_growth(records)
    if growth is not None:
        parts.append(
            f"compile time grows as GPUs^{growth['exponent']:.2f},"
            f" {table.seconds(growth['seconds_at_1024_gpus'])} at 1024 GPUs by the fit"
        )
    return "\n\n".join(parts)


def _document(records: Sequence[Record], given: argparse.Namespace) -> dict[str, Any]:
    return {
        "version": VERSION,
        "suite": given.suite,
        "repeat": given.repeat,
        "machine": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "platform": platform.platform(),
            "cpus": os.cpu_count(),
        },
        "records": [record.to_dict() for record in records],
        "growth": fit_growth(records),
    }


if __name__ == "__main__":
    sys.exit(main())

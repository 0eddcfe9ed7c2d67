"""``doctor [PLAN]``: check a cluster before a plan is run on it."""

from __future__ import annotations

import argparse
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from reshard_executors.command.exits import TRY_AGAIN
from reshard_executors.command.output import Progress, parse_ranks, print_error, print_json, print_text
from reshard_executors.command.supervise import supervise
from reshard_executors.command.verb import Verb
from reshard_executors.doctor.examine import RANKS
from reshard_executors.doctor.findings import Report
from reshard_executors.doctor.table import table
from reshard_executors.doctor.verdict import Wish
from reshard_executors.doctor.visit import visit
from reshard_executors.launchers import rank_info
from reshard_planner.errors import InputError

MAX_SECONDS: Final = 24 * 3600

MAX_MIB: Final = 4096
"""Most that a pair of ranks sends at a time, in MiB; both ends need as much memory."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "plan", metavar="PLAN", type=Path, nargs="?", help="plan file in any of its forms, to check for"
    )
    parser.add_argument(
        "--mib",
        metavar="N",
        type=int,
        default=64,
        help="most that a pair of ranks sends to find out which way it goes and how fast, in MiB;"
        " 0 measures nothing (default 64)",
    )
    parser.add_argument(
        "--ranks",
        metavar="LIST",
        help="rank of the plan that each process plays, such as 4-7,0-3 (default: its own rank)",
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


def run(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Check this host, or all hosts together with all other processes; the exit code."""
    if not 0 < arguments.timeout <= MAX_SECONDS or math.isnan(arguments.timeout):
        raise InputError(
            f"--timeout is {arguments.timeout}; expected seconds above 0 and up to {MAX_SECONDS}"
        )
    if not 0 <= arguments.mib <= MAX_MIB:
        raise InputError(f"--mib is {arguments.mib}; expected an integer from 0 to {MAX_MIB}")
    played = None if arguments.ranks is None else parse_ranks(arguments.ranks, "--ranks")
    info = rank_info(environ)
    wish = Wish(arguments.backend, arguments.mib * 2**20)
    progress = Progress(shown=info.rank == 0)
    progress.say("check")
    try:
        report = supervise(
            lambda: visit(info, environ, arguments.plan, wish, arguments.timeout, played), progress
        )
    finally:
        progress.end()
    if info.rank == 0:
        _print(report, json=arguments.json)
    elif report.exit_code == TRY_AGAIN and 0 in report.lost:  # nobody else will tell
        reason = next(finding.text for finding in report.findings if finding.check == RANKS)
        print_error(f"rank {info.rank}: {reason}")
    return report.exit_code


def _print(report: Report, *, json: bool) -> None:
    if json:
        print_json(report.to_dict())
    else:
        print_text(table(report, shutil.get_terminal_size().columns))


VERB = Verb(
    "doctor",
    "check a cluster before a plan is run on it",
    """\
Check what the processes of a launcher run on, and whether it is what a plan expects: versions, ports,
interfaces, devices; with a plan also hosts, domains and the NICs that traffic leaves by. For that, pairs of
ranks send to one another, one pair of a host at a time, for half a minute at most, and counters of all ports
tell which way it went. Started alone it checks this host. Rank 0 prints what was found.""",
    """\
examples:
  python -m reshard_executors doctor                             this host
  torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint node1:29400 \\
      -m reshard_executors doctor plan.reshard                   all hosts, for a plan
  srun --ntasks-per-node 8 python -m reshard_executors doctor plan.reshard --json
  mpirun -n 8 python -m reshard_executors doctor --mib 0 plan.reshard

exit codes, the same on all ranks that still live:
  0    nothing failed; there may be warnings
  1    a check failed
  2    bad input
  75   ranks were lost, or did not meet
""",
    add_arguments,
    run,
)

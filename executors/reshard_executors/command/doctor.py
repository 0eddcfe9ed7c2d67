"""``doctor [PLAN]``: check a cluster before a plan is run on it."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from reshard_executors.command.codes import BAD_INPUT, DONE, FAILED, INTERRUPTED, TERMINATED, TRY_AGAIN
from reshard_executors.command.exits import CommandError, describe_codes
from reshard_executors.command.options import (
    add_launcher_options,
    check_integer,
    check_seconds,
    played_ranks,
)
from reshard_executors.command.output import Progress, print_error, print_json, print_text
from reshard_executors.command.supervise import Parting, supervise
from reshard_executors.command.verb import Verb
from reshard_executors.doctor.claims import Wish
from reshard_executors.doctor.examine import RANKS
from reshard_executors.doctor.findings import Report
from reshard_executors.doctor.pulse import Farewell
from reshard_executors.doctor.visit import visit
from reshard_executors.launchers import rank_info
from reshard_executors.store import RankTakenError

MAX_MIB: Final = 4096
"""Most that a pair of ranks sends at a time, in MiB; both ends need as much memory."""

CODES: Final = describe_codes(
    {
        DONE: "nothing failed; there may be warnings",
        FAILED: "a check failed",
        BAD_INPUT: "bad input",
        TRY_AGAIN: "ranks were lost, or did not meet, or another job has the port of rank 0: try again",
        INTERRUPTED: "interrupted (Ctrl-C)",
        TERMINATED: "ended by SIGTERM",
    }
)


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
    add_launcher_options(parser, 60, "at each step", "to measure with")


def run(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Check this host, or all hosts together with all other processes; the exit code."""
    check_seconds(arguments, ("timeout",))
    check_integer(arguments, "mib", 0, MAX_MIB)
    info = rank_info(environ)
    played = played_ranks(arguments.ranks, info.world_size)
    wish = Wish(arguments.backend, arguments.mib * 2**20)
    progress = Progress(shown=info.rank == 0)
    progress.say("check")
    farewell = Farewell()
    parting = Parting(info.local_rank == 0, leave=farewell.say)
    try:
        report = supervise(
            lambda: visit(info, environ, arguments.plan, wish, arguments.timeout, played, farewell),
            progress,
            parting,
        )
    except RankTakenError as error:  # which the other ranks do not know of
        raise CommandError(BAD_INPUT, str(error), speaks=True) from None
    finally:
        progress.stop()
    code = code_of_report(report)
    if info.rank == 0:
        _print(report, code, json=arguments.json)
    elif 0 in report.lost:  # nobody else will tell
        reason = next(finding.text for finding in report.findings if finding.check == RANKS)
        print_error(f"rank {info.rank}: {reason}")
    return code


def code_of_report(report: Report) -> int:
    """The exit code: ranks that were lost count before checks that failed."""
    if report.lost:
        return TRY_AGAIN
    return FAILED if report.failed else DONE


def _print(report: Report, code: int, *, json: bool) -> None:
    if json:
        print_json({"exit_code": code, **report.to_dict()})
    else:
        print_text(report.to_text(shutil.get_terminal_size().columns))


VERB = Verb(
    "doctor",
    "check a cluster before a plan is run on it",
    """\
Check what the processes of a launcher run on, and whether it is what a plan expects: versions, ports,
interfaces, devices; with a plan also hosts, domains and the NICs that traffic leaves by. For that, pairs of
ranks send to one another, one pair of a host at a time, for half a minute at most, and counters of all ports
tell which way it went. Started alone it checks this host. Rank 0 prints what was found.""",
    f"""\
examples:
  python -m reshard_executors doctor                             this host
  torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint node1:29400 \\
      -m reshard_executors doctor plan.reshard                   all hosts, for a plan
  srun --ntasks-per-node 8 python -m reshard_executors doctor plan.reshard --json
  mpirun -n 8 python -m reshard_executors doctor --mib 0 plan.reshard

{CODES}""",
    add_arguments,
    run,
)

"""``run PLAN``: execute a plan with the processes of a launcher."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from reshard_executors.command import dry
from reshard_executors.command.codes import BAD_INPUT, DONE, FAILED, Terminated
from reshard_executors.command.exits import CODES, STORE_STAY_S, CommandError
from reshard_executors.command.loading import load_torch
from reshard_executors.command.options import (
    add_launcher_options,
    check_integer,
    check_seconds,
    played_ranks,
)
from reshard_executors.command.output import PrintError, Progress, print_error, print_json, print_text
from reshard_executors.command.partial import partial_dict, partial_text
from reshard_executors.command.profile import check_writable, write_profile
from reshard_executors.command.reports import RankReport, Tally
from reshard_executors.command.summary import Summary
from reshard_executors.command.supervise import REASON_WAIT_S, Parting, supervise
from reshard_executors.command.verb import Verb
from reshard_executors.launchers import RankInfo, rank_info
from reshard_planner.errors import InputError, ReshardError
from reshard_planner.ir.plan import Plan

MAX_REPEAT: Final = 10_000

HASTY: Final = ("openmpi", "mpich")
"""Launchers that kill ranks a quarter of a second after SIGTERM; others leave half a minute."""

HASTY_WAIT_S: Final = 0.02
"""How long a rank waits for the cause of a signal where its launcher leaves no time."""

FAILING_S: Final = 4.0
"""How long ranks take at most from the loss of another one until they know which it was."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("plan", metavar="PLAN", type=Path, help="plan file in any of its forms")
    parser.add_argument(
        "--dry-run", action="store_true", help="print what every rank would do, without torch or other ranks"
    )
    parser.add_argument(
        "--rank", metavar="R", type=int, help="with --dry-run: print what this rank would do, slot by slot"
    )
    parser.add_argument(
        "--check", action="store_true", help="compare every destination element after every run"
    )
    parser.add_argument(
        "--checkpoint",
        metavar="FILE",
        type=Path,
        help="take the weights from a safetensors file instead of made-up ones",
    )
    parser.add_argument(
        "--repeat", metavar="N", type=int, default=1, help="runs that are measured (default 1)"
    )
    parser.add_argument(
        "--warm-up", metavar="N", type=int, default=0, help="runs before them, not measured (default 0)"
    )
    parser.add_argument(
        "--profile",
        metavar="FILE",
        type=Path,
        help="write what all ranks did in the last run, and when, as a Chrome trace (JSON)",
    )
    add_launcher_options(parser, 300, "at the start and for each message", "of torch.distributed")
    parser.add_argument(
        "--lost-after",
        metavar="S",
        type=float,
        default=10.0,
        help="seconds after which a rank that gives no sign of life is lost (default 10)",
    )
    parser.add_argument(
        "--shadow",
        action="store_true",
        help="write beside the destinations, and copy to them when all ranks have everything",
    )
    parser.add_argument(
        "--checksums", action="store_true", help="compare checksums of sources and destinations in each run"
    )


def run(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Run the plan with all other processes, or describe what would be done; the exit code."""
    _check(arguments)
    info = rank_info(environ)
    ranks = played_ranks(arguments.ranks, None if arguments.dry_run else info.world_size)
    if arguments.dry_run:
        _describe(arguments, ranks, shown=info.rank == 0)
        return DONE
    progress, tally = Progress(shown=info.rank == 0), Tally()

    def work() -> int:
        progress.say("load torch")
        load_torch("running a plan")
        from reshard_executors.command.session import Order, play  # noqa: PLC0415 - a dry run needs no torch

        order = Order(
            arguments.plan,
            info,
            ranks,
            arguments.checkpoint,
            arguments.repeat,
            arguments.warm_up,
            arguments.check,
            arguments.profile is not None,
            arguments.timeout,
            arguments.lost_after,
            arguments.shadow,
            arguments.checksums,
            arguments.backend,
        )
        return play(
            order,
            progress.say,
            partial(_prepare, arguments, info.rank),
            partial(_conclude, arguments, progress, tally),
            tally,
        )

    parting = Parting(info.local_rank == 0, partial(_patience_s, info, tally), partial(_leave, info, tally))
    try:
        return supervise(work, progress, parting)
    except (CommandError, ReshardError):
        progress.stop()
        if info.rank == 0:
            _print_partial(arguments, tally)
        raise
    finally:
        progress.stop()


def _patience_s(info: RankInfo, tally: Tally, stop: BaseException) -> float:
    """How long to wait for the cause of a signal: SIGTERM is what launchers send when they miss a rank."""
    if info.launcher in HASTY:
        return HASTY_WAIT_S
    launched = isinstance(stop, Terminated) and tally.plan is not None and info.world_size > 1
    return FAILING_S if launched else REASON_WAIT_S


def _leave(info: RankInfo, tally: Tally, why: str) -> float:
    """Tell the other ranks of the run why this one leaves; how long it has to stay then, in seconds."""
    belongings = sys.modules.get("reshard_executors.belongings")
    if belongings is None or tally.plan is None or info.launcher in HASTY:
        return 0.0
    belongings.leave_all(why)
    return STORE_STAY_S if info.rank == 0 else 0.0


def _print_partial(arguments: argparse.Namespace, tally: Tally) -> None:
    """Print what this rank has measured, where the summary of all has not been."""
    plan = tally.take()
    if plan is None or not tally.repeats:
        return
    summary = Summary.of(plan, [tally.report(plan)], checked=arguments.check)
    with suppress(PrintError):  # what went wrong before is told
        if arguments.json:
            print_json(partial_dict(summary, arguments.repeat))
        else:
            print_text(partial_text(summary, arguments.repeat))


def _check(arguments: argparse.Namespace) -> None:
    check_seconds(arguments, ("timeout", "lost_after"))
    check_integer(arguments, "repeat", 1, MAX_REPEAT)
    check_integer(arguments, "warm_up", 0, MAX_REPEAT)
    if arguments.rank is not None and not arguments.dry_run:
        raise InputError(f"--rank {arguments.rank} goes with --dry-run; a run takes ranks from its launcher")


def _describe(arguments: argparse.Namespace, ranks: Sequence[int] | None, *, shown: bool) -> None:
    """Print what ranks would do; of several processes one prints, and all find the same wrong."""
    plan = Plan.load(arguments.plan)
    if arguments.rank is not None:
        found = dry.describe_rank(plan, arguments.rank)
        text = dry.rank_text
    else:
        found = dry.describe_ranks(plan, ranks)
        text = dry.ranks_text
    if shown and arguments.json:
        print_json(found)
    elif shown:
        print_text(text(found))


def _prepare(arguments: argparse.Namespace, rank: int) -> None:
    if rank == 0 and arguments.profile is not None:
        check_writable(arguments.profile)


def _conclude(
    arguments: argparse.Namespace,
    progress: Progress,
    tally: Tally,
    plan: Plan,
    reports: Sequence[RankReport],
) -> int:
    """Print the summary, and write the profile; on rank 0."""
    progress.end()
    if tally.take() is None:  # after a signal what this rank has measured has been told
        return DONE
    summary = Summary.of(plan, reports, checked=arguments.check)
    code = DONE if summary.first_error is None else FAILED
    problem = None
    if arguments.profile is not None:
        progress.say("write the profile")
        try:
            write_profile(arguments.profile, summary)
        except InputError as error:
            problem = str(error)
            code = code or BAD_INPUT
        progress.end()
    if arguments.json:
        document: dict[str, Any] = summary.to_dict()
        if arguments.profile is not None:
            document["profile"] = None if problem else str(arguments.profile)
        print_json(document)
    else:
        print_text(summary.to_text())
    if problem is not None:
        print_error(problem)
    return code


VERB = Verb(
    "run",
    "execute a plan with the processes of a launcher",
    """\
Execute a plan with one process per rank, which torchrun, srun, mpirun or Ray has started: every process runs
this command. Rank 0 prints how long it took, what was sent over each medium and what was planned, what each
NIC carried, and where the slowest rank spent its time.""",
    f"""\
examples:
  torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint node1:29400 \\
      -m reshard_executors run plan.reshard --repeat 5 --warm-up 1
  srun --ntasks-per-node 8 python -m reshard_executors run plan.reshard --check
  mpirun -n 8 python -m reshard_executors run plan.reshard --profile trace.json
  reshard-executors run plan.reshard --dry-run --rank 3

{CODES}""",
    add_arguments,
    run,
)

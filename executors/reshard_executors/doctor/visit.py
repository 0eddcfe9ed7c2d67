"""Visit: one process goes to the doctor, with all others of its world or alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from reshard_executors.doctor import facts, ports
from reshard_executors.doctor.claims import Claims, Wish
from reshard_executors.doctor.council import Council, RanksLostError
from reshard_executors.doctor.examine import examine, examine_alone, report_unmet
from reshard_executors.doctor.findings import Report
from reshard_executors.doctor.pulse import Farewell
from reshard_executors.launchers import RankInfo, meeting_point
from reshard_executors.store import Hurdle, StoreError, open_store
from reshard_planner.errors import InputError, VerificationError
from reshard_planner.ir.plan import Plan


def visit(
    info: RankInfo,
    environ: Mapping[str, str],
    path: Path | None,
    wish: Wish,
    timeout_s: float,
    played: Sequence[int] | None = None,
    farewell: Farewell | None = None,
) -> Report:
    """Check what this process runs on, together with all other ranks.

    Args:
        info: what the launcher says of it; without a launcher only this host is checked.
        environ: its environment.
        path: plan file; None to check without a plan.
        wish: what is wanted of the examination.
        timeout_s: how long ranks wait for one another at each step.
        played: rank of the plan that each process plays, all of them different; its own when None.
        farewell: learns how to tell the others, should this process be ended before it is done.

    Returns:
        The same on all ranks that meet.

    Raises:
        InputError: on all ranks, if none of them can read the plan, or ``MASTER_PORT`` is no port.
        RankTakenError: if another process has come with the same rank.
    """
    parts = tuple(range(info.world_size) if played is None else played)
    if info.launcher == "none":
        claims = None if path is None else _claims(path, parts)
        here = facts.gather(environ, 0, 0, meeting_point(environ), claims)
        return examine_alone(here, claims, wish)
    claims, problem = None, None
    if path is not None:
        try:
            claims = _claims(path, parts)
        except InputError as error:
            problem = str(error)
    point = (info.address, info.port)
    here = facts.gather(environ, info.rank, info.local_rank, point, claims, problem)
    try:
        store = open_store(info, timedelta(seconds=timeout_s), "doctor")  # plans are compared later
    except StoreError as error:
        others = tuple(rank for rank in range(info.world_size) if rank != info.rank)
        lost = others if info.rank == 0 else (0,)
        text = _word(error, info.port, ports.gather(*point))
        return report_unmet(here, claims, wish, info.world_size, lost, text)
    try:
        council = Council(store, info.rank, info.world_size, timeout_s)
    except RanksLostError as error:
        return report_unmet(here, claims, wish, info.world_size, error.ranks, str(error))
    if farewell is not None:
        farewell.pulse = council.pulse
    return examine(council, here, claims, wish)


def _word(error: StoreError, port: int, point: ports.MeetingPoint) -> str:
    """What is said where the store cannot be opened."""
    match error.hurdle:
        case Hurdle.TORCH:
            return "ranks cannot meet without torch; expected it to be installed"
        case Hurdle.LISTEN:
            return ports.unlistened(port, error.reason)
        case Hurdle.REACH:
            return ports.unreached(point, error.reason)
        case Hurdle.FOREIGN:
            return ports.foreign(point, error.reason)


def _claims(path: Path, played: tuple[int, ...]) -> Claims:
    """The plan of a file.

    Raises:
        InputError: if it is no plan that can be run.
    """
    try:
        return Claims(Plan.load(path), played)
    except VerificationError as error:  # it is damaged, and its ranks would refuse it
        raise InputError(str(error)) from None

"""Visit: one process goes to the doctor, with all others of its world or alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from reshard_executors.doctor.claims import Claims
from reshard_executors.doctor.examine import examine, examine_alone, report_unmet
from reshard_executors.doctor.facts import gather
from reshard_executors.doctor.findings import Report
from reshard_executors.doctor.meeting import Meeting, open_store
from reshard_executors.doctor.verdict import Wish
from reshard_executors.launchers import USUAL_PORT, RankInfo
from reshard_planner.errors import ExecutionError, InputError, VerificationError
from reshard_planner.ir.plan import Plan


def visit(
    info: RankInfo,
    environ: Mapping[str, str],
    path: Path | None,
    wish: Wish,
    timeout_s: float,
    played: Sequence[int] | None = None,
) -> Report:
    """Check what this process runs on, together with all other ranks.

    Args:
        info: what the launcher says of it; without a launcher only this host is checked.
        environ: its environment.
        path: plan file; None to check without a plan.
        wish: what is wanted of the examination.
        timeout_s: how long ranks wait for one another at each step.
        played: rank of the plan that each process plays; its own when None.

    Returns:
        The same on all ranks that meet.

    Raises:
        InputError: on all ranks, if none of them can read the plan, ``played`` does not fit, or
            ``MASTER_PORT`` is no port.
    """
    parts = _parts(played, info.world_size)
    if info.launcher == "none":
        claims = None if path is None else _claims(path, parts)
        return examine_alone(gather(environ, 0, 0, _point(environ), claims), claims, wish)
    claims, problem = None, None
    if path is not None:
        try:
            claims = _claims(path, parts)
        except InputError as error:
            problem = str(error)
    point = (info.address, info.port)
    facts = gather(environ, info.rank, info.local_rank, point, claims, problem)
    try:
        meeting = Meeting(open_store(info, timeout_s), info.rank, info.world_size, timeout_s)
    except ExecutionError as error:
        others = tuple(rank for rank in range(info.world_size) if rank != info.rank)
        lost = others if info.rank == 0 else (0,)
        return report_unmet(facts, claims, wish, info.world_size, lost, str(error))
    return examine(meeting, facts, claims, wish)


def _parts(played: Sequence[int] | None, size: int) -> tuple[int, ...]:
    """Rank of the plan that each process plays."""
    if played is None:
        return tuple(range(size))
    if len(played) != size or len(set(played)) != size:
        raise InputError(
            f"--ranks has {len(set(played))} different ranks; expected one for each of {size} processes"
        )
    return tuple(played)


def _claims(path: Path, played: tuple[int, ...]) -> Claims:
    """The plan of a file.

    Raises:
        InputError: if it is no plan that can be run.
    """
    try:
        return Claims(Plan.load(path), played)
    except VerificationError as error:  # it is damaged, and its ranks would refuse it
        raise InputError(str(error)) from None


def _point(environ: Mapping[str, str]) -> tuple[str, int] | None:
    """Where ranks are going to meet, by the environment of a process that no launcher has started."""
    address = environ.get("MASTER_ADDR")
    if not address:
        return None
    port = environ.get("MASTER_PORT") or str(USUAL_PORT)
    if not (port.isascii() and port.isdecimal() and 1 <= int(port[:6]) <= 65_535):
        raise InputError(f"MASTER_PORT is {port!r}; expected an integer from 1 to 65535")
    return address, int(port)

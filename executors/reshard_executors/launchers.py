"""Launchers: what torchrun, srun, mpirun and Ray tell a process about its rank, and a world of all ranks.

>>> found = rank_info({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "node1"})
>>> found.rank, found.world_size, found.address, found.port
(5, 8, 'node1', 29500)
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from reshard_executors import TORCH_EXTRA
from reshard_planner.errors import InputError

if TYPE_CHECKING:
    import torch

WORLD_TIMEOUT = timedelta(minutes=5)
"""How long ranks wait for one another by default."""

LOOPBACK: Final = "127.0.0.1"

USUAL_PORT: Final = 29_500
"""Where ranks meet if neither the launcher nor the user says so; torch's own default."""

FIRST_PORT, PORTS = 12_000, 16_000
"""Ports that are derived from a job's number: below those that systems hand out by themselves."""

SPECIAL_STEPS: Final = 0xFFFF_FFF0
"""Slurm's steps from this number on are no steps of srun, but a batch script or an interactive shell."""


@dataclass(frozen=True, slots=True)
class RankInfo:
    """What a launcher says of one process.

    Attributes:
        launcher: ``torchrun`` (which stands for all that set its variables, such as Ray Train), ``openmpi``,
            ``mpich`` (Intel MPI too), ``srun``, or ``none`` for a process that was started alone.
        rank: its rank in the world, from 0.
        world_size: number of processes.
        local_rank: its position among the processes of its host, 0 if the launcher does not say.
        local_world_size: number of processes on its host; None if the launcher does not say.
        address: host on which the process of rank 0 listens.
        port: where it listens there; 0 for a process that was started alone.
        job: what the launcher calls the job, the same on all ranks; empty if it does not say.
    """

    launcher: str
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int | None
    address: str
    port: int
    job: str = ""


@dataclass(frozen=True, slots=True)
class _Names:
    """Variables of one launcher; of several that mean the same the first that is set counts."""

    launcher: str
    rank: str
    world_size: tuple[str, ...]
    local_rank: tuple[str, ...]
    local_world_size: tuple[str, ...]


_TORCHRUN = _Names("torchrun", "RANK", ("WORLD_SIZE",), ("LOCAL_RANK",), ("LOCAL_WORLD_SIZE",))
_OPENMPI = _Names(
    "openmpi",
    "OMPI_COMM_WORLD_RANK",
    ("OMPI_COMM_WORLD_SIZE",),
    ("OMPI_COMM_WORLD_LOCAL_RANK",),
    ("OMPI_COMM_WORLD_LOCAL_SIZE",),
)
_MPICH = _Names(
    "mpich",
    "PMI_RANK",
    ("PMI_SIZE",),
    ("MPI_LOCALRANKID", "PMI_LOCAL_RANK"),
    ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"),
)
_SRUN = _Names("srun", "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), ("SLURM_LOCALID",), ())


def rank_info(environ: Mapping[str, str]) -> RankInfo:
    """What the launcher of this process says of it.

    Variables of several launchers may be there, since processes inherit them. ``RANK`` counts before all
    others, as torchrun and those who set it by hand run inside of other launchers and not around them. Then
    come those of mpirun, which inside of a Slurm allocation uses srun to start its daemons, and then those of
    srun, in a step only: a batch script has them too. Slurm itself sets ``PMI_RANK`` as well if it is asked
    to serve MPI; such a process is srun's.

    ``MASTER_ADDR`` and ``MASTER_PORT`` count before anything that a launcher says. Without them srun's ranks
    meet on the first host of the step, and others on 127.0.0.1 where all are on one host.

    Args:
        environ: the environment of the process, such as ``os.environ``.

    Raises:
        InputError: naming the variable, if one has a value that it cannot have or is missing, or if nothing
            says where rank 0 is.
    """
    names = _innermost(environ)
    if names is None:
        return RankInfo("none", 0, 1, 0, 1, LOOPBACK, 0)
    size_name = _first_set(environ, names.world_size)
    if size_name is None:
        raise InputError(f"{names.rank} is set, but {names.world_size[0]} is not; expected both")
    size = _integer(environ, size_name, 1)
    rank = _integer(environ, names.rank, 0)
    if rank >= size:
        raise InputError(
            f"{names.rank} is {rank}, but {size_name} is {size}; expected a rank from 0 to {size - 1}"
        )
    local_rank, local_size = _local(environ, names, size)
    address = environ.get("MASTER_ADDR") or _address(environ, names, size, local_size)
    given = bool(environ.get("MASTER_PORT"))
    job = _job(environ, names)
    port = _integer(environ, "MASTER_PORT", 1, 65_535) if given else _port(names, job)
    return RankInfo(names.launcher, rank, size, local_rank, local_size, address, port, job)


def _innermost(environ: Mapping[str, str]) -> _Names | None:
    """The launcher that started the process itself; None if there was none."""
    if _TORCHRUN.rank in environ:
        return _TORCHRUN
    if _TORCHRUN.world_size[0] in environ and _TORCHRUN.local_rank[0] in environ:
        raise InputError("WORLD_SIZE and LOCAL_RANK are set, but RANK is not; expected all of them")
    if _OPENMPI.rank in environ:
        return _OPENMPI
    in_step = _SRUN.rank in environ and _is_step(environ)
    if _MPICH.rank in environ and not (in_step and _is_slurms_own(environ)):
        return _MPICH
    return _SRUN if in_step else None


def _is_step(environ: Mapping[str, str]) -> bool:
    """Whether Slurm's variables are those of a step that srun started."""
    number = _first_set(environ, ("SLURM_STEP_ID", "SLURM_STEPID"))
    if number is None:
        return "SLURM_STEP_NODELIST" in environ or "SLURM_STEP_NUM_TASKS" in environ
    return _integer(environ, number, 0) < SPECIAL_STEPS


def _is_slurms_own(environ: Mapping[str, str]) -> bool:
    """Whether the variables of PMI say what those of srun say, and no process manager of MPI set them."""
    if any(name in environ for name in (*_MPICH.local_rank, *_MPICH.local_world_size)):
        return False
    size = _first_set(environ, _SRUN.world_size)
    pairs = ((_MPICH.rank, _SRUN.rank), (_MPICH.world_size[0], size or ""))
    return all(environ.get(ours) == environ.get(theirs) for ours, theirs in pairs)


def _local(environ: Mapping[str, str], names: _Names, size: int) -> tuple[int, int | None]:
    """Position among the processes of the host, and their number."""
    rank_name = _first_set(environ, names.local_rank)
    size_name = _first_set(environ, names.local_world_size)
    local_rank = 0 if rank_name is None else _integer(environ, rank_name, 0)
    if names is _SRUN:
        local_size = _tasks_here(environ)
        size_name = "SLURM_STEP_TASKS_PER_NODE"
    else:
        local_size = None if size_name is None else _integer(environ, size_name, 1)
    if size == 1:
        local_size = 1
    if local_size is None:
        return local_rank, None
    if local_size > size:
        raise InputError(
            f"{size_name} says that {local_size} processes are on this host; expected {size} at most"
        )
    if local_rank >= local_size:
        raise InputError(
            f"{rank_name} is {local_rank}, but this host has {local_size} of the processes;"
            f" expected 0 to {local_size - 1}"
        )
    return local_rank, local_size


def _tasks_here(environ: Mapping[str, str]) -> int | None:
    """Number of the step's tasks on this node, from text such as ``4(x2),3``; None where it is not said."""
    name = "SLURM_STEP_TASKS_PER_NODE"
    if name not in environ or "SLURM_NODEID" not in environ:
        return None
    node = _integer(environ, "SLURM_NODEID", 0)
    for part in environ[name].split(","):
        found = re.fullmatch(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?", part)
        if found is None:
            raise InputError(f"{name} is {environ[name]!r}; expected numbers of tasks, such as '4(x2),3'")
        node -= int(found[2] or 1)
        if node < 0:
            return int(found[1])
    raise InputError(
        f"{name} is {environ[name]!r}, which has no entry for SLURM_NODEID {environ['SLURM_NODEID']}"
    )


def _address(environ: Mapping[str, str], names: _Names, size: int, local_size: int | None) -> str:
    hosts = _first_set(environ, ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"))
    if names is _SRUN and hosts is not None:
        return first_host(environ[hosts], hosts)
    if size in {1, local_size}:
        return LOOPBACK
    where = "an unknown number" if local_size is None else str(local_size)
    raise InputError(
        f"MASTER_ADDR is not set, and {names.launcher} does not say where rank 0 is ({size} processes,"
        f" {where} of them on this host); set it to a name or address of the host of rank 0"
    )


def _job(environ: Mapping[str, str], names: _Names) -> str:
    """What the launcher calls the job; empty if it does not say, as torchrun, which calls it "none" then."""
    match names.launcher:
        case "srun":
            job = _value(environ, "SLURM_JOB_ID", "SLURM_JOBID")
            return f"{job}.{_value(environ, 'SLURM_STEP_ID', 'SLURM_STEPID') or '0'}" if job else ""
        case "openmpi":
            return _value(environ, "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")
        case "mpich":
            return _value(environ, "PMI_JOBID")
        case _:
            job = _value(environ, "TORCHELASTIC_RUN_ID")
            return "" if job == "none" else job


def _value(environ: Mapping[str, str], *names: str) -> str:
    """The first of some variables that has a value; empty without."""
    return next((environ[name] for name in names if environ.get(name)), "")


def _port(names: _Names, job: str) -> int:
    """A port that all ranks derive alike, and other jobs of the host differently, where there is a name."""
    if names is _TORCHRUN or not job:
        return USUAL_PORT
    digest = hashlib.sha256(job.encode(errors="surrogateescape")).digest()
    return FIRST_PORT + int.from_bytes(digest[:8], "big") % PORTS


def first_host(hosts: str, name: str) -> str:
    """The first host of a list as Slurm writes it.

    Args:
        hosts: the list.
        name: of the variable that holds it, for errors.

    Raises:
        InputError: if it is no such list.

    >>> first_host("node[003-007,9],login1", "SLURM_JOB_NODELIST"), first_host("r1,r2", "SLURM_JOB_NODELIST")
    ('node003', 'r1')
    """
    bracket = r"\[([0-9]+)(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*\]"
    found = re.match(rf"((?:[^\[\],\s]|{bracket})+)(?:,|$)", hosts)
    if found is None:
        raise InputError(f"{name} is {hosts!r}; expected hosts, such as 'node[001-004],login1'")
    return re.sub(bracket, r"\1", found[1])


def _first_set(environ: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if name in environ), None)


def _integer(environ: Mapping[str, str], name: str, least: int, most: int = 2**32 - 1) -> int:
    text = environ[name]
    if not re.fullmatch(r"[0-9]{1,10}", text) or not least <= int(text) <= most:
        bounds = f"of at least {least}" if most == 2**32 - 1 else f"from {least} to {most}"
        raise InputError(f"{name} is {text!r}; expected an integer {bounds}")
    return int(text)


def meeting_point(environ: Mapping[str, str]) -> tuple[str, int] | None:
    """Where ranks are going to meet, in a process that no launcher has started; None if nothing says so.

    Raises:
        InputError: if ``MASTER_PORT`` is no port.
    """
    address = environ.get("MASTER_ADDR")
    if not address:
        return None
    given = bool(environ.get("MASTER_PORT"))
    return address, _integer(environ, "MASTER_PORT", 1, 65_535) if given else USUAL_PORT


def device_index(local_rank: int, count: int) -> int | None:
    """Number of the CUDA device that a rank uses: the only one that it sees, or that of its local rank.

    Args:
        local_rank: position of the rank among those of its host.
        count: CUDA devices that it sees.

    Returns:
        None if there is none for it.
    """
    index = 0 if count == 1 else local_rank
    return index if index < count else None


def start_world(
    info: RankInfo, backend: str | None = None, timeout: timedelta = WORLD_TIMEOUT
) -> torch.device:
    """Start ``torch.distributed`` for this process, once all ranks have come; called by all of them.

    Under torchrun the ranks meet in the store of its agents, otherwise in one that rank 0 keeps at the
    address and port. Who starts a world ends it with ``torch.distributed.destroy_process_group``.

    Args:
        info: from :func:`rank_info`.
        backend: of the world; when None ``nccl`` where CUDA is, else ``gloo``.
        timeout: how long to wait for all ranks, here and in each operation of the world.

    Returns:
        The device of this rank: with ``nccl`` the CUDA device of its local rank, or the only one that it
        sees, which becomes the current one; else the CPU.

    Raises:
        InputError: if there is a world already, torch is missing, the backend is unknown or has no device for
            this rank, or another process has the same rank.
        ExecutionError: if the ranks do not all come within the timeout, naming those that have not, or cannot
            connect.
    """
    try:
        from reshard_executors.world import make_world  # noqa: PLC0415 - reading variables needs no torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise InputError(f"starting a world needs torch, which is not installed; {TORCH_EXTRA}") from None
    return make_world(info, backend, timeout, "start_world")

"""Running plans and baselines on an emulated cluster: one launch of the ranks for all runs."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from reshard_executors import TORCH_EXTRA
from reshard_executors.emulation.guard import cluster
from reshard_executors.emulation.job import Job, RunOrder, log_file
from reshard_executors.emulation.namespaces import Gpu, switch
from reshard_executors.emulation.reports import collect, report_pipes
from reshard_executors.emulation.results import RunResult, gather
from reshard_executors.emulation.tools import find_tool
from reshard_planner.errors import InputError, UnsupportedError
from reshard_planner.ir.plan import Plan
from reshard_planner.spec import ReshardSpec
from reshard_planner.transfer import Medium

MAX_RANKS = 16
"""Most ranks of a cluster: each is a process with torch, and all share this machine's processors."""


@dataclass(frozen=True, slots=True)
class Run:
    """Something to run on a cluster.

    Attributes:
        name: for the result.
        plan: what to run.
        baseline: name of what moves the tensors of the plan's spec instead of the plan; None for the plan.
        repeat: how many times it is done, where that is not as often as all others.
    """

    name: str
    plan: Plan
    baseline: str | None = None
    repeat: int | None = None


def gpus_of(spec: ReshardSpec) -> list[Gpu]:
    """The GPUs that the ranks of a spec run on, ascending by rank, with the rates of its topology.

    Raises:
        UnsupportedError: if they are too many, share NICs, or are in pods.
    """
    topology = spec.topology
    if len(spec.ranks) > MAX_RANKS:
        raise UnsupportedError(
            f"the spec has {len(spec.ranks)} ranks; emulation takes at most {MAX_RANKS}, one process each"
        )
    if topology.pods:
        raise UnsupportedError("the topology has pods, whose uplinks emulation does not shape; expected none")
    home = {gpu: (number, domain) for number, domain in enumerate(topology.domains) for gpu in domain.gpus}
    used = {topology.gpu_of(rank) for rank in spec.ranks}
    rates: Counter[int] = Counter()
    for number, nic in enumerate(topology.nics):
        if used.intersection(nic.gpus) and len(set(nic.gpus)) > 1:
            raise UnsupportedError(
                f"NIC {number} is shared by GPUs {sorted(nic.gpus)}; emulation expects NICs of one GPU each"
            )
        rates.update(dict.fromkeys(nic.gpus, nic.link.bytes_per_s))
    gpus = []
    for rank in spec.ranks:
        gpu = topology.gpu_of(rank)
        number, domain = home[gpu]
        gpus.append(Gpu(rank, number, rates.get(gpu), domain.link.bytes_per_s))
    return gpus


def require_torch() -> None:
    """Refuse to go on where torch is missing.

    Raises:
        InputError: saying how to install it.
    """
    if find_spec("torch") is None:
        raise InputError(f"emulation needs torch, which is not installed; {TORCH_EXTRA}")


def emulate(
    runs: Sequence[Run],
    gpus: Sequence[Gpu],
    *,
    repeat: int = 3,
    timeout_s: float = 600.0,
    progress: Callable[[str], None] = lambda _: None,
) -> list[RunResult]:
    """Run plans and baselines on a cluster of network namespaces, with one process per GPU.

    Nothing is left of the cluster afterwards, whether this returns, raises, or its process is killed.

    Args:
        runs: what to run, one after the other, each with a name of its own.
        gpus: the cluster, with the ranks of all plans; see :func:`gpus_of`.
        repeat: how many times each run is done.
        timeout_s: how long all of it may take, in seconds.
        progress: called with the name of each stage as it begins.

    Returns:
        A result per run.

    Raises:
        InputError: if this process cannot make network namespaces, torch is missing, or a plan uses the
            network within a domain.
        ExecutionError: if a rank fails, or the runs do not end in time.
    """
    require_torch()
    ranks = tuple(gpu.rank for gpu in gpus)
    _check(runs, gpus)
    if not runs:
        return []
    progress("start cluster")
    with cluster(gpus) as (tag, folder), report_pipes(folder, ranks) as pipes:
        _job(runs, folder, repeat, timeout_s).write(folder)
        progress("start ranks")
        with _launcher(tag, folder, ranks) as launcher:
            found = collect(pipes, len(runs), launcher, folder, timeout_s, progress)
        progress("end cluster")
    return [
        gather(run.name, run.plan, reports, of_plan=run.baseline is None)
        for run, reports in zip(runs, found, strict=True)
    ]


def _check(runs: Sequence[Run], gpus: Sequence[Gpu]) -> None:
    home = {gpu.rank: gpu.domain for gpu in gpus}
    names = [run.name for run in runs]
    if len(set(names)) != len(names):
        raise InputError(f"runs are named {names}; expected a name of its own for each")
    for run in runs:
        missing = sorted(set(run.plan.ranks) - set(home))
        if missing:
            raise InputError(
                f"run {run.name!r} has ranks {missing}, which the cluster lacks; it has {list(home)}"
            )
        if run.baseline is None:
            _check_ports(run, home)


def _check_ports(run: Run, home: Mapping[int, int]) -> None:
    """Refuse what no route of a namespace can do: it chooses the port by where a message goes."""
    ops = run.plan.ops()
    network = ops.medium == Medium.NETWORK
    for src, dst in zip(ops.src[network].tolist(), ops.dst[network].tolist(), strict=True):
        if home[src] == home[dst]:
            raise UnsupportedError(
                f"run {run.name!r} goes over the network from rank {src} to rank {dst} of one domain;"
                " emulation expects NVLink within domains"
            )


def _job(runs: Sequence[Run], folder: Path, repeat: int, timeout_s: float) -> Job:
    """The job of the ranks, with the plans in files."""
    files: dict[str, str] = {}
    for run in runs:
        if run.plan.digest not in files:
            files[run.plan.digest] = str(folder / f"{len(files)}.reshard")
            run.plan.save(files[run.plan.digest])
    orders = (RunOrder(run.name, files[run.plan.digest], run.baseline, run.repeat or repeat) for run in runs)
    return Job(tuple(orders), timeout_s)


@contextmanager
def _launcher(tag: str, folder: Path, ranks: Sequence[int]) -> Iterator[subprocess.Popen[bytes]]:
    """The process that starts the ranks; in the namespace of the switches, so that it ends with them."""
    module = "reshard_executors.emulation.launch"
    with log_file(folder, None).open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - this project's own module
            [
                *(find_tool("ip") or "ip", "netns", "exec", switch(tag)),
                *(sys.executable, "-P", "-m", module, tag, str(folder), *map(str, ranks)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C reaches only us
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()

"""Running a plan on this machine: in this process, or with one process per rank."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, Literal

from reshard_executors import TORCH_EXTRA
from reshard_executors.check import first_difference
from reshard_executors.checkpoint import open_values
from reshard_executors.jobs import ENDED, Failure, Job, RankReport, Stage, named_error
from reshard_executors.values import Values, filled_buffers
from reshard_planner.errors import ExecutionError, InputError
from reshard_planner.ir.interpret import interpret
from reshard_planner.ir.plan import Plan

MAX_PROCESSES = 64
"""Most processes that a run starts."""

END_WAIT_S = 10.0
"""How long processes may take to end after a run, before they are killed."""

ENVIRONMENT = {
    "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""Environment of the processes: loopback whatever the host's name resolves to, one thread each."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a run moved, summed over ranks.

    Attributes:
        network_nbytes: bytes between domains.
        nvlink_nbytes: bytes within domains.
        elapsed_s: time of the slowest rank, in seconds.
    """

    network_nbytes: int
    nvlink_nbytes: int
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class RunReport:
    """Outcome of a run.

    Attributes:
        executor: ``numpy`` or ``torch``.
        processes: processes that held the ranks.
        correct: whether every element of every destination is right, bit by bit.
        first_error: a sentence on the first wrong element, of the lowest rank that has one; None if correct.
        measured: bytes and time.
    """

    executor: str
    processes: int
    correct: bool
    first_error: str | None
    measured: Measurement

    def to_dict(self) -> dict[str, Any]:
        """In plain JSON types."""
        return asdict(self)


def run_plan(
    plan: Plan,
    executor: Literal["numpy", "torch"] = "numpy",
    checkpoint: Path | None = None,
    timeout_s: float = 300.0,
    progress: Callable[[str], None] = lambda _: None,
) -> RunReport:
    """Feed every rank its source tiles, run the plan, and compare every destination element.

    Args:
        plan: what to run.
        executor: ``numpy`` interprets all ranks in this process; ``torch`` starts one process per rank, which
            exchange messages over gloo on the loopback interface. It leaves no process behind.
        checkpoint: safetensors file with the contents of the tensors; made up when None.
        timeout_s: how long a run with processes may take, in seconds.
        progress: called with the name of each stage as it begins.

    Raises:
        InputError: if the executor is unknown, torch is missing, the plan has too many ranks, or the
            checkpoint does not hold the tensors.
        ExecutionError: if the run fails or does not end in time.
    """
    if executor not in ("numpy", "torch"):
        raise InputError(f"executor is {executor!r}; expected 'numpy' or 'torch'")
    values = open_values(plan.spec, checkpoint)
    if executor == "numpy":
        return _interpret(plan, values, progress)
    if find_spec("torch") is None:
        raise InputError(f"the torch executor needs torch, which is not installed; {TORCH_EXTRA}")
    if not hasattr(os, "fork"):
        raise InputError("the torch executor starts processes by fork, which this system lacks; use 'numpy'")
    if len(plan.ranks) > MAX_PROCESSES:
        raise InputError(
            f"the plan has {len(plan.ranks)} ranks; the torch executor starts one process for each,"
            f" at most {MAX_PROCESSES}; the numpy executor has no limit"
        )
    return _run_processes(plan, checkpoint, timeout_s, progress)


def _interpret(plan: Plan, values: Values, progress: Callable[[str], None]) -> RunReport:
    progress("fill")
    sources = {rank: filled_buffers(plan, rank, "src", values) for rank in plan.ranks}
    progress("run")
    start = time.perf_counter()
    result = interpret(plan, sources)
    elapsed_s = time.perf_counter() - start
    progress("check")
    found = (first_difference(plan, rank, result.destinations[rank], values) for rank in plan.ranks)
    difference = next((sentence for sentence in found if sentence is not None), None)
    measured = Measurement(result.measured.network_nbytes, result.measured.nvlink_nbytes, elapsed_s)
    return RunReport("numpy", 1, difference is None, difference, measured)


def _run_processes(
    plan: Plan, checkpoint: Path | None, timeout_s: float, progress: Callable[[str], None]
) -> RunReport:
    """Ask a fresh process, which imports torch once and forks the ranks, to run the plan."""
    progress("start processes")
    deadline = time.monotonic() + timeout_s
    reports: list[RankReport] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryFile() as log,
        _launcher(log) as (asking, answers),
    ):
        with suppress(OSError):  # it has ended already; its answer will say so
            asking.send(Job(plan, checkpoint, Path(folder), timeout_s))
        while len(reports) < len(plan.ranks):
            message = _receive(answers, deadline, log)
            if message is None:
                raise ExecutionError(f"the run did not end within {timeout_s:g} s; its processes were ended")
            if isinstance(message, Stage):
                progress(message.name)
            else:
                reports.append(message)
    reports.sort(key=lambda report: report.rank)
    difference = next((report.difference for report in reports if report.difference is not None), None)
    measured = Measurement(
        sum(report.network_nbytes for report in reports),
        sum(report.nvlink_nbytes for report in reports),
        max((report.elapsed_s for report in reports), default=0.0),
    )
    return RunReport("torch", len(plan.ranks), difference is None, difference, measured)


def _receive(answers: Connection, deadline: float, log: IO[bytes]) -> Stage | RankReport | None:
    """The launcher's next message; None if there is none before the deadline.

    Raises:
        ReshardError: if the message is that a rank failed, or if the launcher has ended.
    """
    try:
        if not answers.poll(max(0.0, deadline - time.monotonic())):
            return None
        message = answers.recv()
    except (EOFError, OSError):
        message = Failure(ENDED, "the processes ended without a result")
    if isinstance(message, Failure):
        last = f": {_last_line(log)}" if message.kind == ENDED else ""
        raise named_error(message.kind, message.text + last)
    found: Stage | RankReport = message
    return found


@contextmanager
def _launcher(log: IO[bytes]) -> Iterator[tuple[Connection, Connection]]:
    """Connections to and from a fresh process that starts ranks; in the end it and all its ranks are gone."""
    asked, asking = Pipe(duplex=False)
    answers, answering = Pipe(duplex=False)
    handles = [asked.fileno(), answering.fileno()]
    process = None
    try:
        try:
            process = subprocess.Popen(  # noqa: S603 - this project's own module
                [sys.executable, "-P", "-m", "reshard_executors.launch", *map(str, handles)],
                pass_fds=handles,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **ENVIRONMENT},
                start_new_session=True,  # Ctrl-C reaches only us, and its processes can be ended as a group
            )
        finally:
            asked.close()
            answering.close()
        yield asking, answers
    except BaseException:
        if process is not None:
            os.killpg(process.pid, signal.SIGKILL)
        raise
    finally:
        asking.close()  # makes it end its ranks, and then itself, also if its start was interrupted
        _await_end(answers, process)


def _await_end(answers: Connection, process: subprocess.Popen[bytes] | None) -> None:
    """Wait until neither the launcher nor a rank holds the other end of the connection, or kill them."""
    try:
        while answers.poll(END_WAIT_S):
            answers.recv_bytes()
        if process is not None:
            os.killpg(process.pid, signal.SIGKILL)
    except (EOFError, OSError):
        pass  # they are gone
    answers.close()
    if process is not None:
        process.wait()


def _last_line(log: IO[bytes]) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no reason was written"

"""Collecting what ranks report, and finding the best reason if one of them fails."""

from __future__ import annotations

import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path

from reshard_executors.emulation.job import RunDone, log_file, report_pipe
from reshard_executors.jobs import ENDED, Failure, Stage, named_error, weight_of
from reshard_executors.launch import GRACE_S
from reshard_planner.errors import ExecutionError

POLL_S = 0.5
"""How often the process that started the ranks is looked after, in seconds."""


@contextmanager
def report_pipes(folder: Path, ranks: Sequence[int]) -> Iterator[dict[Connection, int]]:
    """The ends that read what ranks report, for the time of a ``with`` block."""
    with ExitStack() as stack:
        pipes = {}
        for rank in ranks:
            os.mkfifo(report_pipe(folder, rank), mode=0o600)
            handle = os.open(report_pipe(folder, rank), os.O_RDONLY | os.O_NONBLOCK)  # nobody writes yet
            os.set_blocking(handle, True)
            pipes[stack.enter_context(Connection(handle, writable=False))] = rank
        yield pipes


def collect(
    pipes: Mapping[Connection, int],
    runs: int,
    launcher: subprocess.Popen[bytes],
    folder: Path,
    timeout_s: float,
    progress: Callable[[str], None],
) -> list[dict[int, RunDone]]:
    """What every rank reports of every run.

    Args:
        pipes: where ranks report, and which.
        runs: number of runs.
        launcher: the process that starts the ranks; while it lives they may report.
        folder: where their logs are.
        timeout_s: how long all of it may take, in seconds.
        progress: called with the name of each stage that all ranks have reached.

    Raises:
        ReshardError: the best reason that was found, if a rank fails or does not end in time.
    """
    deadline = time.monotonic() + timeout_s
    found: list[dict[int, RunDone]] = [{} for _ in range(runs)]
    waiting, failures = dict(pipes), list[Failure]()
    reached: Counter[Stage] = Counter()
    stage = "start ranks"
    while waiting:
        left = deadline - time.monotonic()
        if left <= 0:
            raise ExecutionError(
                f"the runs did not end within {timeout_s:g} s, but were at {stage!r};"
                " their processes were ended"
            )
        alive = launcher.poll() is None
        ready = wait(list(waiting), min(left, GRACE_S if failures else POLL_S))
        if not ready and (failures or not alive):
            break
        for pipe in ready:
            if not isinstance(pipe, Connection):
                continue
            message = _receive(pipe, waiting[pipe], folder)
            if isinstance(message, Failure):
                failures.append(message)
                del waiting[pipe]
            elif isinstance(message, RunDone):
                found[message.run][waiting[pipe]] = message
                if message.run == runs - 1:
                    del waiting[pipe]
            else:
                reached[message] += 1
                if reached[message] == len(pipes):
                    stage = message.name
                    progress(stage)
    if waiting and not failures:
        failures = [_not_started(list(waiting.values()), folder)]
    if failures:
        best = min(failures, key=weight_of)
        raise named_error(best.kind, best.text)
    return found


def _receive(pipe: Connection, rank: int, folder: Path) -> Stage | RunDone | Failure:
    try:
        message: Stage | RunDone | Failure = pipe.recv()
    except (EOFError, OSError):
        return Failure(
            ENDED, f"the process of rank {rank} ended before its runs were over: {_last_line(folder, rank)}"
        )
    return message


def _not_started(ranks: Sequence[int], folder: Path) -> Failure:
    lines = [_last_line(folder, rank) for rank in (*ranks, None)]
    line = next((line for line in lines if line != NOTHING), NOTHING)
    return Failure(ENDED, f"the processes of ranks {list(ranks)} did not start: {line}")


NOTHING = "it wrote no reason"


def _last_line(folder: Path, rank: int | None) -> str:
    """The last line of a log, see :func:`log_file`."""
    try:
        text = log_file(folder, rank).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return NOTHING
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else NOTHING

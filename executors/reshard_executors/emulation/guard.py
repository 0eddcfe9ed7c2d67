"""The owner's side of a cluster: from the wish for one until nothing of it is left."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

from reshard_executors.emulation.guardian import take_down
from reshard_executors.emulation.namespaces import Gpu, probe, wiring
from reshard_executors.emulation.owners import Owner, of_tag
from reshard_executors.emulation.tools import Made, missing, names, perform, remove
from reshard_planner.errors import ExecutionError, InputError

GUARDIAN_WAIT_S = 60.0
"""How long making or removing a cluster may take, in seconds."""


def reason_against() -> str | None:
    """Why this process cannot make a cluster, as a sentence; None if it can, found by making a small one."""
    lacking = missing()
    if lacking is not None:
        return lacking
    tag = Owner.this().new_tag()
    try:
        problem = next(filter(None, map(perform, probe(tag))), None)
    finally:
        remove(of_tag(names(), tag))
    return None if problem is None else _may_not(problem)


def _may_not(problem: str) -> str:
    return (
        "emulation makes network namespaces, which this process may not or cannot do"
        f" ({problem}); expected root, or the capabilities CAP_SYS_ADMIN and CAP_NET_ADMIN"
    )


@contextmanager
def cluster(gpus: Sequence[Gpu]) -> Iterator[tuple[str, Path]]:
    """A cluster for the time of a ``with`` block: its tag, and a folder that goes with it.

    Raises:
        InputError: if this process may not or cannot make one.
        ExecutionError: if its guardian does not answer.
    """
    lacking = missing()
    if lacking is not None:
        raise InputError(lacking)
    owner = Owner.this()
    tag = owner.new_tag()
    asked, asking = Pipe(duplex=False)
    answers, answering = Pipe(duplex=False)
    guardian = None
    try:
        try:
            guardian = _start_guardian(owner, tag, asked, answering)
        finally:
            asked.close()
            answering.close()
        yield tag, _ask(asking, answers, wiring(tag, gpus))
    finally:
        asking.close()
        answers.close()
        _await_end(guardian, tag)


def _start_guardian(
    owner: Owner, tag: str, asked: Connection, answering: Connection
) -> subprocess.Popen[bytes]:
    handles = [asked.fileno(), answering.fileno()]
    module = "reshard_executors.emulation.guardian"
    return subprocess.Popen(  # noqa: S603 - this project's own module
        [sys.executable, "-P", "-m", module, tag, str(owner.pid), str(owner.start), *map(str, handles)],
        pass_fds=handles,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # so that Ctrl-C on a terminal reaches only us
    )


def _ask(asking: Connection, answers: Connection, steps: Sequence[object]) -> Path:
    """Have the guardian make the cluster."""
    made: Made | None = None
    with suppress(EOFError, OSError):
        asking.send(tuple(steps))
        if answers.poll(GUARDIAN_WAIT_S):
            made = answers.recv()
    if made is None:
        raise ExecutionError("the cluster was not made: its guardian process gave no answer")
    if made.problem is not None:
        raise InputError(_may_not(made.problem))
    return made.folder


def _await_end(guardian: subprocess.Popen[bytes] | None, tag: str) -> None:
    """Wait until the guardian has taken all down; do it here if it could not. Ctrl-C has to wait as well."""
    if guardian is None:
        return
    with _without_interrupts():
        try:
            ended = guardian.wait(GUARDIAN_WAIT_S)
        except subprocess.TimeoutExpired:
            guardian.kill()
            ended = guardian.wait()
        if ended != 0:
            take_down(tag)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:  # not the main thread, which alone is interrupted
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)

"""Cases in which something happens to one rank of a world, and what the ranks said then."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from multiprocessing import Pipe
from pathlib import Path

from reshard_executors.local import ENVIRONMENT

import reshard_planner as rp

TIMEOUT_S = 5.0
"""What a Resharder waits for the messages of a slot, and for ranks to meet."""

LOST_AFTER_S = 2.0
"""A rank without a sign of life for so long is lost."""

WORLD_TIMEOUT_S = 20.0
"""The timeout of the caller's own world."""

PATIENCE_S = 30.0
"""A rank that has not answered by then hangs."""

REFITS = 3
"""Refits of a case, each of other weights."""

POISON = 0xA5
"""Every byte of a destination that nothing has filled yet."""


@dataclass(frozen=True)
class Case:
    """One world and what happens to one of its ranks.

    ``fault`` is one of kill, exit, stop, interrupt, raise, absent and none. It strikes when the victim comes
    to its ``point``-th crossing, or, if that is None, from outside ``delay_s`` after all ranks have begun.
    The store lies in a process apart, as with torchrun, or in rank 0. Afterwards the victim is replaced, or
    all others go on by a plan without it.
    """

    plan: rp.Plan
    fault: str = "none"
    victim: int = 0
    point: int | None = None
    delay_s: float = 0.0
    store_apart: bool = True
    shadow: bool = False
    without_victim: bool = False


ALL_LIVE = ("none", "raise", "interrupt")
"""Faults after which all processes live, so that the caller's own groups must work."""


@dataclass
class Said:
    """What one rank said in the end."""

    kind: str = "nothing"
    text: str = ""
    after_s: float = 0.0
    crossings: int = 0
    versions: dict[str, int | None] = field(default_factory=dict)
    torn: bool = False
    untrue: str = ""
    threads: list[str] = field(default_factory=list)
    world_sum: float | None = None
    lost: tuple[int, ...] = ()


@dataclass
class Outcome:
    """What came of a case: what each rank said, and each after the next run with healthy ranks."""

    said: dict[int, Said]
    recovered: dict[int, Said]
    hung: list[int]
    children_left: bool = False


class Farm:
    """A process that plays cases."""

    def __init__(self) -> None:
        ours, theirs = Pipe()
        self._connection = ours
        self._process = subprocess.Popen(
            [sys.executable, Path(__file__).parent / "_fault_farm.py", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, **ENVIRONMENT},
            stderr=subprocess.DEVNULL,  # torch prints the stack of every lost connection
        )
        theirs.close()

    def play(self, case: Case, *, recover: bool = True) -> Outcome:
        """Play a case to its end."""
        self._connection.send((case, recover))
        if not self._connection.poll(4 * PATIENCE_S):
            raise TimeoutError("the farm hangs")
        found = self._connection.recv()
        if not isinstance(found, Outcome):
            raise RuntimeError(found)  # noqa: TRY004 - the text of an error in the farm
        return found

    def close(self) -> None:
        self._connection.close()
        try:
            self._process.wait(PATIENCE_S)
        finally:
            self._process.kill()
            self._process.wait()

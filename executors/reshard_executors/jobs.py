"""What the process that asks for a run, the one that starts the ranks, and the ranks tell each other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reshard_planner import errors
from reshard_planner.errors import ExecutionError, ReshardError
from reshard_planner.ir.plan import Plan

ENDED = "ProcessEnded"
"""Kind of the failure of a process that ended without a word."""

CONSEQUENCES = frozenset(
    ("ExecutionError", "RuntimeError", "DistBackendError", "DistNetworkError", "DistStoreError")
)
"""Errors that ranks report when another one has ended: the transport lost it, at whatever stage."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run with a process per rank.

    Attributes:
        plan: what to run.
        checkpoint: safetensors file with the contents of the tensors; made up when None.
        folder: empty folder in which the ranks find each other.
        timeout_s: how long ranks wait for each other, in seconds.
    """

    plan: Plan
    checkpoint: Path | None
    folder: Path
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Stage:
    """All ranks have reached a stage.

    Attributes:
        name: of the stage.
    """

    name: str


@dataclass(frozen=True, slots=True)
class RankReport:
    """What one rank measured.

    Attributes:
        rank: rank of the plan.
        network_nbytes: bytes sent between domains.
        nvlink_nbytes: bytes sent within the domain.
        elapsed_s: time of the run, in seconds.
        difference: a sentence on the first wrong element; None if all are right.
    """

    rank: int
    network_nbytes: int
    nvlink_nbytes: int
    elapsed_s: float
    difference: str | None


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a rank did not end well.

    Attributes:
        kind: name of the error's class.
        text: the error's sentence.
    """

    kind: str
    text: str


def weight_of(failure: Failure) -> int:
    """Which of several failures says most: a cause, a process that ended, what followed."""
    if failure.kind == ENDED:
        return 1
    return 2 if failure.kind in CONSEQUENCES else 0


def named_error(kind: str, text: str) -> ReshardError:
    """An error of the planner's class of this name, or :class:`ExecutionError` where there is none."""
    found = getattr(errors, kind, None)
    if isinstance(found, type) and issubclass(found, ReshardError):
        return found(text)
    return ExecutionError(text)

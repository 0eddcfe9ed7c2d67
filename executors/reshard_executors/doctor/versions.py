"""Versions: what each process runs, which must be the same on all ranks, and new enough."""

from __future__ import annotations

import platform
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Final, TypeVar

from reshard_executors import TORCH_EXTRA
from reshard_executors.doctor.findings import Finding, Level
from reshard_executors.spelling import spell_names, spell_ranks
from reshard_planner.ir.plan import VERSION, Plan

V = TypeVar("V", bound=Hashable)

CHECK: Final = "versions"

PROJECT: Final = "reshard-planner"
"""Name of the distribution."""

SHOWN: Final = 3
"""Different values that a sentence lists."""


@dataclass(frozen=True, slots=True)
class Versions:
    """What one rank runs.

    Attributes:
        python: of Python.
        torch: of torch, which brings its gloo; None without torch.
        nccl: of the NCCL that torch was built with; None without.
        numpy: of numpy.
        project: of this project.
        plan_format: of plan files.
        digest: of the plan; None without.
        problem: why there is no plan, if one was asked for.
    """

    python: str
    torch: str | None
    nccl: str | None
    numpy: str
    project: str
    plan_format: int
    digest: str | None
    problem: str | None


def gather(plan: Plan | None, problem: str | None = None) -> Versions:
    """What this process runs.

    Args:
        plan: to be run, if any.
        problem: why there is no plan, if one was asked for.
    """
    torch, nccl = _of_torch()
    digest = None if plan is None else plan.digest
    numpy, project = version("numpy"), _of_project()
    return Versions(platform.python_version(), torch, nccl, numpy, project, VERSION, digest, problem)


def _of_torch() -> tuple[str | None, str | None]:
    """Versions of torch and NCCL."""
    try:
        import torch  # noqa: PLC0415 - may be missing, which is a finding
    except ImportError:
        return None, None
    nccl = None
    if torch.distributed.is_available() and torch.distributed.is_nccl_available():
        nccl = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return str(torch.__version__), nccl


def _of_project() -> str:
    try:
        return version(PROJECT)
    except PackageNotFoundError:  # run from its sources
        return "of no release"


_RULES: Final = (
    ("torch", "torch", "gloo, which comes with it, need not understand other versions of itself"),
    ("nccl", "NCCL", "NCCL refuses ranks of other versions, or waits for them for ever"),
    ("project", PROJECT, "ranks would lower the plan to messages that do not fit"),
    ("plan_format", "the plan format", "a rank refuses plans of other formats"),
    ("digest", "the plan", "ranks with other plans would wait for messages that nobody sends"),
    ("python", "Python", "what ranks tell each other in Python's own form may not be read"),
    ("numpy", "numpy", "it is not what the plan was tested with everywhere"),
)
"""What all ranks share: the field, what it is called, and why another value is bad."""

_HARMLESS: Final = ("python", "numpy")
"""Fields of which another value is only a warning."""


def least_torch() -> str | None:
    """The least version of torch that the project asks for; None if it is not installed and cannot say."""
    try:
        wanted = requires(PROJECT) or []
    except PackageNotFoundError:
        return None
    found = (re.match(r"torch\s*>=\s*([\d.]+)", line) for line in wanted)
    return next((match[1] for match in found if match), None)


def judge(everyone: Sequence[Versions]) -> list[Finding]:
    """Compare the versions of all ranks.

    Args:
        everyone: by rank.
    """
    least, found = least_torch(), []
    for torch, ranks in _by_value((rank, one.torch) for rank, one in enumerate(everyone)).items():
        if torch is None:
            text = f"torch is not installed; expected it, and no plan runs without; {TORCH_EXTRA}"
        elif least is not None and _numbers(torch) < _numbers(least):
            text = f"torch is {torch}; expected at least {least}, the oldest that the executor is written for"
        else:
            continue
        found.append(Finding(CHECK, Level.FAILURE, text, ranks))
    for problem, ranks in _by_value((rank, one.problem) for rank, one in enumerate(everyone)).items():
        if problem is not None:
            text = f"{problem}; expected the plan that the other ranks have"
            found.append(Finding(CHECK, Level.FAILURE, text, ranks))
    for field, name, reason in _RULES:
        values = [getattr(one, field) for one in everyone]
        found.extend(_compare(field, name, reason, values))
    if not found:
        where = f"on all {len(everyone)} ranks" if len(everyone) > 1 else "here"
        found.append(Finding(CHECK, Level.OK, f"{_spell(everyone[0])} {where}"))
    return found


def _by_value(pairs: Iterable[tuple[int, V]]) -> dict[V, tuple[int, ...]]:
    """The ranks that have each value."""
    found: dict[V, tuple[int, ...]] = {}
    for rank, value in pairs:
        found[value] = (*found.get(value, ()), rank)
    return found


def _numbers(text: str) -> tuple[int, ...]:
    """The numbers that a version begins with."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, match[0].split("."))) if match else ()


def _compare(field: str, name: str, reason: str, values: Sequence[Hashable]) -> list[Finding]:
    """A finding about the ranks whose value is not that of most; what is absent has been told by others."""
    here = [(rank, value) for rank, value in enumerate(values) if value is not None or field == "nccl"]
    counts = Counter(value for _, value in here)
    if len(counts) < 2:
        return []
    usual = counts.most_common(1)[0][0]  # of equally many the first, which rank 0 begins with
    odd = _by_value((rank, value) for rank, value in here if value != usual)
    said = [f"{_word(value)} on {spell_ranks(ranks)}" for value, ranks in odd.items()]
    text = (
        f"{name} is {spell_names(said, SHOWN)}, but {_word(usual)} on {counts[usual]} of {len(values)} ranks;"
        f" expected the same everywhere: {reason}"
    )
    level = Level.WARNING if field in _HARMLESS else Level.FAILURE
    return [Finding(CHECK, level, text, tuple(rank for ranks in odd.values() for rank in ranks))]


def _word(value: object) -> str:
    return "missing" if value is None else str(value)[:16]


def _spell(one: Versions) -> str:
    nccl = f"with NCCL {one.nccl}" if one.nccl else "without NCCL"
    plan = f", plan {one.digest[:12]}" if one.digest else ""
    return (
        f"Python {one.python}, torch {one.torch} {nccl}, numpy {one.numpy}, {PROJECT} {one.project}"
        f" with plan format {one.plan_format}{plan}"
    )

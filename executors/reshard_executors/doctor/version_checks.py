"""What must be the same on all ranks, and new enough."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires
from typing import Final

from reshard_executors.doctor.findings import Finding, Level, spell_ranks
from reshard_executors.doctor.versions import PROJECT, Versions

CHECK: Final = "versions"

SHOWN: Final = 3
"""Different values that a sentence lists."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """One value that all ranks share: what it is called, how bad another one is, and why."""

    field: str
    name: str
    level: Level
    reason: str


_RULES: Final = (
    _Rule(
        "torch",
        "torch",
        Level.FAILURE,
        "gloo, which comes with it, need not understand other versions of itself",
    ),
    _Rule("nccl", "NCCL", Level.FAILURE, "NCCL refuses ranks of other versions, or waits for them for ever"),
    _Rule("project", PROJECT, Level.FAILURE, "ranks would lower the plan to messages that do not fit"),
    _Rule("plan_format", "the plan format", Level.FAILURE, "a rank refuses plans of other formats"),
    _Rule(
        "digest",
        "the plan",
        Level.FAILURE,
        "ranks with other plans would wait for messages that nobody sends",
    ),
    _Rule(
        "python", "Python", Level.WARNING, "what ranks tell each other in Python's own form may not be read"
    ),
    _Rule("numpy", "numpy", Level.WARNING, "it is not what the plan was tested with everywhere"),
)


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
    found = [*_missing(everyone), *_too_old(everyone), *_plans(everyone)]
    for rule in _RULES:
        values = [getattr(one, rule.field) for one in everyone]
        found.extend(_compare(rule, values))
    if not found:
        where = f"on all {len(everyone)} ranks" if len(everyone) > 1 else "here"
        found.append(Finding(CHECK, Level.OK, f"{_spell(everyone[0])} {where}"))
    return found


def _spell(one: Versions) -> str:
    nccl = f"with NCCL {one.nccl}" if one.nccl else "without NCCL"
    plan = f", plan {one.digest[:12]}" if one.digest else ""
    return (
        f"Python {one.python}, torch {one.torch} {nccl}, numpy {one.numpy}, {PROJECT} {one.project}"
        f" with plan format {one.plan_format}{plan}"
    )


def _missing(everyone: Sequence[Versions]) -> list[Finding]:
    without = tuple(rank for rank, one in enumerate(everyone) if one.torch is None)
    if not without:
        return []
    text = (
        f"torch is not installed; expected it, and no plan runs without; install the extra {PROJECT}[torch]"
    )
    return [Finding(CHECK, Level.FAILURE, text, without)]


def _too_old(everyone: Sequence[Versions]) -> list[Finding]:
    least = least_torch()
    if least is None:
        return []
    old: dict[str, list[int]] = {}
    for rank, one in enumerate(everyone):
        if one.torch is not None and _numbers(one.torch) < _numbers(least):
            old.setdefault(one.torch, []).append(rank)
    return [
        Finding(
            CHECK,
            Level.FAILURE,
            f"torch is {found}; expected at least {least}, the oldest one that the executor is written for",
            tuple(ranks),
        )
        for found, ranks in old.items()
    ]


def _numbers(text: str) -> tuple[int, ...]:
    """The numbers that a version begins with."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, match[0].split("."))) if match else ()


def _plans(everyone: Sequence[Versions]) -> list[Finding]:
    problems: dict[str, list[int]] = {}
    for rank, one in enumerate(everyone):
        if one.problem is not None:
            problems.setdefault(one.problem, []).append(rank)
    return [
        Finding(CHECK, Level.FAILURE, f"{text}; expected the plan that the other ranks have", tuple(ranks))
        for text, ranks in problems.items()
    ]


def _compare(rule: _Rule, values: Sequence[object]) -> list[Finding]:
    """A finding about the ranks whose value is not that of most; what is absent has been told by others."""
    here = [(rank, value) for rank, value in enumerate(values) if value is not None or rule.field == "nccl"]
    counts = Counter(value for _, value in here)
    if len(counts) < 2:
        return []
    usual = counts.most_common(1)[0][0]  # of equally many the first, which rank 0 begins with
    odd: dict[object, list[int]] = {}
    for rank, value in here:
        if value != usual:
            odd.setdefault(value, []).append(rank)
    said = [f"{_word(value)} on {spell_ranks(ranks)}" for value, ranks in list(odd.items())[:SHOWN]]
    if len(odd) > SHOWN:
        said.append(f"{len(odd) - SHOWN} more values elsewhere")
    text = (
        f"{rule.name} is {', '.join(said)}, but {_word(usual)} on {counts[usual]} of {len(values)} ranks;"
        f" expected the same everywhere: {rule.reason}"
    )
    return [Finding(CHECK, rule.level, text, tuple(rank for ranks in odd.values() for rank in ranks))]


def _word(value: object) -> str:
    return "missing" if value is None else str(value)[:16]

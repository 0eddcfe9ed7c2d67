"""The suites by name, and the cases in each."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase

from benchmarks import cases, m2n, models, moe, simulated, whole
from benchmarks.case import Case


def _smoke() -> Iterable[Case]:
    return itertools.chain(cases.smoke_cases(), m2n.smoke_cases(), models.smoke_cases())


def _scale() -> Iterable[Case]:
    return itertools.chain(cases.large_tensor_cases(), moe.large_cases())


SUITES: dict[str, Callable[[], Iterable[Case]]] = {
    "smoke": _smoke,
    "tensors": cases.tensor_cases,
    "m2n": m2n.m2n_cases,
    "models": models.model_cases,
    "whole": whole.whole_cases,
    "scale": _scale,
    "growth": moe.growth_cases,
    "simulate": simulated.simulated_cases,
}
"""Suites in the order in which ``all`` runs them."""

ABOUT = {
    "smoke": "a few cases of each kind, in seconds",
    "tensors": "single tensors with bounds known by hand, and other planners on them",
    "m2n": "layouts on which NCCL M2N is not optimal",
    "models": "whole models on published systems",
    "whole": "whole models from configurations, between buffers of Megatron and of vLLM",
    "scale": "thousands of GPUs",
    "growth": "one model from 256 to 6144 GPUs, with the exponent of compile time",
    "simulate": "predicted runs of whole models, in windows and exactly",
}
"""One line per suite."""


def select(suite: str, patterns: Sequence[str] = ()) -> list[Case]:
    """The cases of a suite, or of all suites but ``smoke``.

    Args:
        suite: a key of :data:`SUITES`, or ``all``.
        patterns: names or shell patterns, with or without the suite in front; every case when empty.
    """
    names = [name for name in SUITES if name != "smoke"] if suite == "all" else [suite]
    chosen = [case for name in names for case in SUITES[name]()]
    if not patterns:
        return chosen
    return [
        case
        for case in chosen
        if any(
            fnmatchcase(name, pattern)
            for pattern in patterns
            for name in (case.name, case.name.partition("/")[2])
        )
    ]


def find(name: str) -> Case:
    """The case of this name.

    Raises:
        KeyError: if there is none.
    """
    suite = name.partition("/")[0]
    return {case.name: case for case in SUITES[suite]()}[name]

"""Predicted runs of whole models: how long predicting takes, and how far windows are from exact runs."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

import reshard_planner as rp
from benchmarks.case import Case
from benchmarks.goals import Goals
from benchmarks.models import build_system, load_systems
from benchmarks.whole import WHOLE, build_whole

GOALS = Goals(most_predict_error=0.002)

LARGEST_GOALS = Goals(most_predict_s=60.0)

LARGEST = "deepseek-v3"
"""The case that is too large to be predicted exactly."""

EXACT = (
    ("dsv3-toy-64", "optimal"),
    ("dsv3-toy-256", "optimal"),
    ("qwen3-32b-h100", "optimal"),
    ("qwen3-32b-h100", "direct"),
    ("qwen3-32b-h100", "gather-broadcast"),
    ("qwen3-32b-gb200-4", "optimal"),
)
"""Systems and strategies that are predicted in both ways."""


def simulated_cases() -> Iterator[Case]:
    """Every pair of a system and a strategy, then the largest model."""
    systems = load_systems()
    for name, strategy in EXACT:
        yield Case(
            f"simulate/{name}-{strategy}",
            f"{systems[name].model} whole, {strategy}",
            functools.partial(_build, name, strategy),
            goals=GOALS,
            gpus=systems[name].gpus,
            predict="both",
        )
    whole = WHOLE[LARGEST]
    yield Case(
        f"simulate/{LARGEST}-optimal",
        f"{whole}, optimal",
        functools.partial(build_whole, whole),
        goals=LARGEST_GOALS,
        gpus=whole.gpus,
        predict="windows",
    )


def _build(name: str, strategy: str) -> rp.ReshardSpec:
    spec = build_system(load_systems()[name])
    return rp.ReshardSpec(spec.tensors, spec.topology, replace(spec.options, strategy=strategy))

"""Whole models from configurations, between the layouts of frameworks, with storage in fused buffers.

Models are those of ``examples/configs``, parallelisms those of published recipes: pipeline stages of Megatron
before, engines of vLLM on other GPUs after.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import reshard_planner as rp
from benchmarks.case import Case
from benchmarks.goals import Goals
from reshard_planner.models.load import load_model
from reshard_planner.models.parallelism import parse_parallelism
from reshard_planner.models.whole import build_spec
from reshard_planner.topology.presets import PRESETS

CONFIGS = Path(__file__).parent.parent / "examples" / "configs"

GOALS = Goals(most_nic_ratio=1.02, most_compile_s=5.0)

LARGEST_GOALS = Goals(most_nic_ratio=1.02, most_compile_s=20.0)
"""For thousands of GPUs."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A model, and how it is spread before and after.

    Attributes:
        model: name of its configuration.
        train: parallelism before.
        serve: parallelism after, on the ranks behind.
        preset: name of the machine.
        gpus_per_domain: size of its domains; None for the preset's own.
        goals: what its plan is to keep within.
    """

    model: str
    train: str
    serve: str
    preset: str = "dgx-h100"
    gpus_per_domain: int | None = None
    goals: Goals = GOALS

    @property
    def gpus(self) -> int:
        return sum(parse_parallelism(text, "").gpus for text in (self.train, self.serve))

    def __str__(self) -> str:
        size = "" if self.gpus_per_domain is None else f" in domains of {self.gpus_per_domain}"
        return f"{self.model}, {self.train} to {self.serve}, {self.preset}{size}"


WHOLE: dict[str, Whole] = {
    "qwen3-235b": Whole("Qwen3-235B-A22B", "megatron tp=4 pp=8 ep=16", "vllm tp=8 dp=16"),
    "deepseek-v3": Whole("DeepSeek-V3", "megatron pp=16 ep=16", "vllm tp=32 dp=8"),
    "deepseek-v3-nvl64": Whole(
        "DeepSeek-V3", "megatron pp=16 ep=16", "vllm tp=32 dp=8", "gb200-nvl72", gpus_per_domain=64
    ),
    "qwen3.5-397b": Whole("Qwen3.5-397B-A17B", "megatron tp=8 pp=8 ep=32", "vllm tp=16 dp=16"),
    "kimi-k3": Whole(
        "Kimi-K3",
        "megatron tp=8 pp=16 ep=64 gpus=4096",
        "vllm tp=8 dp=256 ep=64",
        goals=LARGEST_GOALS,
    ),
}
"""The cases by name."""


def build_whole(whole: Whole) -> rp.ReshardSpec:
    """The whole model as one spec, its override file included where it has one."""
    override = CONFIGS / f"{whole.model}.override.yaml"
    model = load_model(CONFIGS / f"{whole.model}.json", overrides=override if override.exists() else None)
    train, serve = parse_parallelism(whole.train, "train"), parse_parallelism(whole.serve, "serve")
    nodes = whole.gpus // PRESETS[whole.preset].gpus_per_node
    topology = rp.Topology.preset(whole.preset, nodes, whole.gpus_per_domain)
    return build_spec(model, train, [serve], topology)


def whole_cases() -> Iterator[Case]:
    """Every model as a case."""
    for name, whole in WHOLE.items():
        yield Case(
            f"whole/{name}",
            str(whole),
            functools.partial(build_whole, whole),
            goals=whole.goals,
            gpus=whole.gpus,
        )

"""Whole models: every parameter of all pipeline stages, from training layouts to inference layouts.

``data/models.json`` has the parameters of published models as ``[name, shape, dtype, kind, place]``, and
systems, which say how a model is spread. Sizes are those of the models' public configurations; systems and
merged experts follow the model benchmark of NCCL M2N (NVIDIA/nccl-extensions), whose figures stand beside.

Kinds: ``column`` is cut along dimension 0 by tensor parallelism and ``row`` along 1; ``replicated`` is whole
on every rank. Experts of a layer are one tensor, cut along dimension 0 by expert parallelism before. After,
``expert_column`` is cut along 1 and ``expert_row`` along 2 by tensor parallelism, and ``expert_replicated``
is whole.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import reshard_planner as rp
from benchmarks.case import Case, M2n, layout
from benchmarks.goals import Goals

DATA = Path(__file__).parent / "data" / "models.json"

GOALS = Goals(most_nic_ratio=1.02)

SHARD_DIM = {"column": 0, "row": 1, "replicated": None}
"""Dimension that tensor parallelism cuts, on both sides."""

EXPERT_DIM = {"expert_column": 1, "expert_row": 2, "expert_replicated": None}
"""Dimension of grouped experts that tensor parallelism cuts after."""


@dataclass(frozen=True, slots=True)
class System:
    """A model and how it is spread before and after.

    Attributes:
        model: name of the model.
        about: one line for people.
        tp, cp, ep, pp, dp: degrees of parallelism in training; experts take the ranks of the rest.
        gen_tp, gen_dp: degrees in inference.
        gpus_per_domain: size of all domains.
        m2n: figures of NCCL M2N for the whole model.
    """

    model: str
    about: str
    tp: int
    cp: int
    ep: int
    pp: int
    dp: int
    gen_tp: int
    gen_dp: int
    gpus_per_domain: int
    m2n: tuple[M2n, ...]

    @property
    def stage_gpus(self) -> int:
        return max(self.tp * self.cp * self.dp, self.ep)

    @property
    def gpus(self) -> int:
        return self.stage_gpus * self.pp + self.gen_tp * self.gen_dp


def load_models() -> dict[str, Any]:
    """Models by name, as the data file has them."""
    models: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))["models"]
    return models


def load_systems() -> dict[str, System]:
    """Systems by name."""
    raw = json.loads(DATA.read_text(encoding="utf-8"))["systems"]
    return {name: _system(each) for name, each in raw.items()}


def _system(raw: Mapping[str, Any]) -> System:
    gen = raw["gen"]
    m2n = tuple(M2n(*row) for row in raw["m2n"])
    return System(
        raw["model"], raw["about"], **raw["train"], gen_tp=gen["tp"], gen_dp=gen["dp"],
        gpus_per_domain=raw["gpus_per_domain"], m2n=m2n,
    )  # fmt: skip


def model_cases() -> Iterator[Case]:
    """Every system with its whole model as one spec."""
    for name, system in load_systems().items():
        yield Case(
            f"models/{name}",
            f"{system.model} whole, {system.about}",
            _builder(system),
            goals=GOALS,
            m2n=system.m2n,
            gpus=system.gpus,
        )


def smoke_cases() -> Iterator[Case]:
    """The smallest whole model that has several kinds of parameters."""
    system = load_systems()["dsv3-toy-64"]
    about = f"{system.model}, {system.about}"
    yield Case("smoke/dsv3-toy-64", about, _builder(system), goals=GOALS, gpus=system.gpus)


def _builder(system: System) -> Callable[[], rp.ReshardSpec]:
    return functools.partial(build_system, system)


def build_system(system: System) -> rp.ReshardSpec:
    """The whole model of a system as one spec: stages one after another, then inference."""
    model = load_models()[system.model]
    layers: int = model["layers"]
    gen = (system.gen_dp, system.gen_tp)
    first_gen = system.stage_gpus * system.pp
    tensors = []
    made: dict[tuple[str, int, int], tuple[rp.Layout, rp.Layout]] = {}
    for pattern, shape, dtype, kind, place in model["tensors"]:
        for layer in range(layers) if place == "layer" else (None,):
            stage = stage_of(layer, place, layers, system.pp)
            key = kind, stage, len(shape)
            if key not in made:
                made[key] = (
                    _train_layout(system, kind, stage),
                    layout(first_gen, gen, ("R", _shard({**SHARD_DIM, **EXPERT_DIM}[kind]))),
                )
            src, dst = made[key]
            name = pattern if layer is None else pattern.replace("*", str(layer))
            tensors.append(rp.TensorSpec(name, shape, dtype, src, dst))
    return rp.ReshardSpec(tensors, rp.Topology.uniform(system.gpus, system.gpus_per_domain))


def stage_of(layer: int | None, place: str, layers: int, stages: int) -> int:
    """Pipeline stage of a layer, or of what stands before (``first``) or after (``last``) all layers."""
    if layer is None:
        return 0 if place == "first" else stages - 1
    return layer * stages // layers


def _train_layout(system: System, kind: str, stage: int) -> rp.Layout:
    first = stage * system.stage_gpus
    if kind in EXPERT_DIM:
        return layout(first, (system.stage_gpus // system.ep, system.ep), ("R", "S(0)"))
    return layout(first, (system.stage_gpus // system.tp, system.tp), ("R", _shard(SHARD_DIM[kind])))


def _shard(dim: int | None) -> str:
    return "R" if dim is None else f"S({dim})"

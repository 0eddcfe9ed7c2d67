"""A synthetic mixture of experts at cluster scale, and the same model on growing clusters.

Training has pipeline stages of EP x EDP ranks. Experts are cut over EP and replicated over EDP; so are, along
dimension 0, the matrices of attention, embedding and head, as hybrid sharded data parallelism does it; norms
and routers are whole. Inference has TP x DP ranks: experts and matrices are cut over TP, by columns or rows
as in Megatron, and everything is replicated over DP.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import reshard_planner as rp
from benchmarks.case import Case, layout
from benchmarks.goals import Goals
from benchmarks.models import stage_of

LARGE_GOALS = Goals(most_checked_s=15.0, most_peak_nbytes=3 * 2**30, most_program_s=0.3)

LAYERS = 60
EXPERTS, INTERMEDIATE, HIDDEN = 896, 3072, 7168
ATTENTION, KEY_VALUE, VOCABULARY = 8192, 1024, 163_840

Parameter = tuple[str, tuple[int, ...], int | None]

LAYER: tuple[Parameter, ...] = (
    ("input_norm", (HIDDEN,), None),
    ("attention.q", (ATTENTION, HIDDEN), 0),
    ("attention.k", (KEY_VALUE, HIDDEN), 0),
    ("attention.v", (KEY_VALUE, HIDDEN), 0),
    ("attention.o", (HIDDEN, ATTENTION), 1),
    ("post_norm", (HIDDEN,), None),
    ("router", (EXPERTS, HIDDEN), None),
    ("experts.gate", (EXPERTS, INTERMEDIATE, HIDDEN), 1),
    ("experts.up", (EXPERTS, INTERMEDIATE, HIDDEN), 1),
    ("experts.down", (EXPERTS, HIDDEN, INTERMEDIATE), 2),
)
"""Parameters of a layer: name, shape, and the dimension that tensor parallelism cuts."""

EMBEDDING: Parameter = ("embedding", (VOCABULARY, HIDDEN), 0)
HEAD: tuple[Parameter, ...] = (("norm", (HIDDEN,), None), ("head", (VOCABULARY, HIDDEN), 0))


@dataclass(frozen=True, slots=True)
class Cluster:
    """How the model is spread: stages of ``ep * edp`` ranks, then ``tp * dp`` ranks."""

    pp: int
    ep: int
    edp: int
    tp: int
    dp: int

    @property
    def stage_gpus(self) -> int:
        return self.ep * self.edp

    @property
    def gpus(self) -> int:
        return self.pp * self.stage_gpus + self.tp * self.dp

    def __str__(self) -> str:
        return f"PP{self.pp} x EP{self.ep} x EDP{self.edp} to TP{self.tp} x DP{self.dp}"


LARGEST = Cluster(16, 64, 4, 32, 64)

GROWTH = (
    Cluster(4, 16, 2, 32, 4),
    Cluster(4, 32, 4, 32, 8),
    Cluster(8, 32, 4, 32, 16),
    Cluster(16, 32, 4, 32, 32),
    LARGEST,
)
"""Clusters of 256 to 6144 GPUs."""


def build_moe(cluster: Cluster, gpus_per_domain: int, layers: int = LAYERS) -> rp.ReshardSpec:
    """The whole model on a cluster, as one spec in bfloat16."""
    stage, first_gen = cluster.stage_gpus, cluster.pp * cluster.stage_gpus
    mesh, gen = (cluster.edp, cluster.ep), (cluster.dp, cluster.tp)
    before = {
        (index, cut): layout(index * stage, mesh, ("R", "S(0)" if cut else "R"))
        for index in range(cluster.pp)
        for cut in (True, False)
    }
    after = {
        dim: layout(first_gen, gen, ("R", "R" if dim is None else f"S({dim})")) for dim in (None, 0, 1, 2)
    }
    placed = [(EMBEDDING, "", stage_of(None, "first", layers, cluster.pp))]
    for layer in range(layers):
        at = stage_of(layer, "layer", layers, cluster.pp)
        placed.extend((parameter, f"layers.{layer}.", at) for parameter in LAYER)
    placed.extend((parameter, "", stage_of(None, "last", layers, cluster.pp)) for parameter in HEAD)
    tensors = [
        rp.TensorSpec(prefix + name, shape, "bfloat16", before[at, dim is not None], after[dim])
        for (name, shape, dim), prefix, at in placed
    ]
    return rp.ReshardSpec(tensors, rp.Topology.uniform(cluster.gpus, gpus_per_domain))


def large_cases() -> Iterator[Case]:
    """The model on the largest cluster, in domains of 8 and of 64."""
    for size in (8, 64):
        yield Case(
            f"scale/moe/{size}",
            f"mixture of experts, {LARGEST}, domains of {size}",
            functools.partial(build_moe, LARGEST, size),
            goals=LARGE_GOALS,
            program=True,
            gpus=LARGEST.gpus,
        )


def growth_cases() -> Iterator[Case]:
    """The model on clusters of growing size, in domains of 8."""
    for cluster in GROWTH:
        yield Case(
            f"growth/{cluster.gpus}",
            f"mixture of experts, {cluster}, domains of 8",
            functools.partial(build_moe, cluster, 8),
            gpus=cluster.gpus,
        )

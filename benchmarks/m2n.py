"""Layouts on which NCCL M2N is known to leave NICs idle or to move bytes twice.

Its figures are what the assignment rules in its source (NVIDIA/nccl-extensions, modes UNIFORM and NODE_AWARE)
give for these layouts, relative to the least payload and the least time on NICs. The library was not
executed; the strategies ``m2n-uniform`` and ``m2n-node-aware`` follow the same rules, and a test finds these
figures by compiling every layout with both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod

import reshard_planner as rp
from benchmarks.case import Case, M2n, layout
from benchmarks.goals import Goals

GOALS = Goals(most_nic_ratio=1.02)

UNIFORM, NODE_AWARE = "UNIFORM", "NODE_AWARE"


@dataclass(frozen=True, slots=True)
class Reshard:
    """One tensor between two meshes.

    Attributes:
        about: one line for people.
        src: mesh and placements before, from rank 0.
        dst: mesh and placements after.
        m2n: M2N's figures.
        gpus_per_domain: size of all domains, the last one possibly smaller.
        dst_first: first rank of the destination; right after the source when None.
        shape: global shape.
        dtype: torch's name.
    """

    about: str
    src: tuple[tuple[int, ...], tuple[str, ...]]
    dst: tuple[tuple[int, ...], tuple[str, ...]]
    m2n: tuple[M2n, ...]
    gpus_per_domain: int = 8
    dst_first: int | None = None
    shape: tuple[int, ...] = field(default=(8192, 8192))
    dtype: str = "bfloat16"

    @property
    def gpus(self) -> int:
        first = prod(self.src[0]) if self.dst_first is None else self.dst_first
        return first + prod(self.dst[0])


def both(payload_ratio: float, nic_ratio: float) -> tuple[M2n, ...]:
    """The same figures in both modes."""
    return tuple(M2n(mode, payload_ratio, nic_ratio) for mode in (UNIFORM, NODE_AWARE))


RESHARDS: dict[str, Reshard] = {
    "r8-to-s8": Reshard("R8 to S0(8), one node to one node", ((8,), ("R",)), ((8,), ("S(0)",)), both(1, 8)),
    "r8-to-r8": Reshard(
        "R8 to R8, one node to one node",
        ((8,), ("R",)),
        ((8,), ("R",)),
        (M2n(UNIFORM, 8, 8), M2n(NODE_AWARE, 1, 8)),
    ),
    "r8-to-r64": Reshard("R8 to R64, 8 nodes", ((8,), ("R",)), ((64,), ("R",)), both(1, 8)),
    "tp1dp32-to-tp8dp4": Reshard(
        "TP1 x DP32 to TP8 x DP4", ((32,), ("R",)), ((4, 8), ("R", "S(0)")), both(1, 8)
    ),
    "tp2dp8-to-tp4dp8": Reshard(
        "TP2 x DP8 to TP4 x DP8",
        ((8, 2), ("R", "S(0)")),
        ((8, 4), ("R", "S(0)")),
        (M2n(UNIFORM, 2, 4), M2n(NODE_AWARE, 1, 4)),
    ),
    "4-trainers-12-replicas": Reshard(
        "4 trainers S0 to 12 replicas, the first 4 of them on the trainers' node",
        ((4,), ("S(0)",)),
        ((12,), ("R",)),
        both(2, 2),
    ),
    "misaligned": Reshard(
        "S0(7) to R16 from rank 7 on, destinations in domains of 1, 8 and 7",
        ((7,), ("S(0)",)),
        ((16,), ("R",)),
        both(1.5, 7),
        shape=(7168, 8192),
    ),
    "dsv3-norm": Reshard(
        "DeepSeek-V3 norm, R16 to R128, domains of 64",
        ((16,), ("R",)),
        ((128,), ("R",)),
        (M2n(UNIFORM, 8, 16), M2n(NODE_AWARE, 1, 16)),
        gpus_per_domain=64,
        dst_first=128,
        shape=(7168,),
    ),
    "dsv3-shared-expert": Reshard(
        "DeepSeek-V3 shared expert, R16 to S0(8) x R16, domains of 64",
        ((16,), ("R",)),
        ((16, 8), ("R", "S(0)")),
        (M2n(UNIFORM, 8, 16), M2n(NODE_AWARE, 1, 16)),
        gpus_per_domain=64,
        dst_first=128,
        shape=(2048, 7168),
        dtype="float8_e4m3fn",
    ),
    "dsv3-experts": Reshard(
        "DeepSeek-V3 experts, S0(16) x R2 to S1(8) x R16, domains of 64",
        ((2, 16), ("R", "S(0)")),
        ((16, 8), ("R", "S(1)")),
        both(1, 2),
        gpus_per_domain=64,
        dst_first=128,
        shape=(256, 2048, 7168),
        dtype="float8_e4m3fn",
    ),
    "qwen3-235b-q": Reshard(
        "Qwen3-235B q_proj, S0(2) x R8 to S0(8) x R8, domains of 64",
        ((8, 2), ("R", "S(0)")),
        ((8, 8), ("R", "S(0)")),
        (M2n(UNIFORM, 8, 8), M2n(NODE_AWARE, 1, 8)),
        gpus_per_domain=64,
        dst_first=64,
        shape=(8192, 4096),
    ),
}


def m2n_cases() -> Iterator[Case]:
    """Every layout as a case."""
    for name, each in RESHARDS.items():
        yield Case(f"m2n/{name}", each.about, _builder(each), goals=GOALS, m2n=each.m2n, gpus=each.gpus)


def smoke_cases() -> Iterator[Case]:
    """One layout under another suite's name."""
    each = RESHARDS["r8-to-s8"]
    yield Case("smoke/r8-to-s8", each.about, _builder(each), goals=GOALS, m2n=each.m2n, gpus=each.gpus)


def _builder(each: Reshard) -> Callable[[], rp.ReshardSpec]:
    def build() -> rp.ReshardSpec:
        src = layout(0, *each.src)
        dst = layout(each.gpus - prod(each.dst[0]), *each.dst)
        tensor = rp.TensorSpec("w", each.shape, each.dtype, src, dst)
        return rp.ReshardSpec([tensor], rp.Topology.uniform(each.gpus, each.gpus_per_domain))

    return build

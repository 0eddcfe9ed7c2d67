"""Single tensors: the shapes of large models between layouts that differ, with bounds known by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod

import reshard_planner as rp
from benchmarks.case import Case, layout
from benchmarks.goals import Goals
from reshard_planner.topology import Link, Nic
from reshard_planner.topology.model import NIC_LINK

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """One bfloat16 tensor from ranks 0.. to the ranks after them, both meshes row-major.

    Attributes:
        about: one line for people.
        shape: global shape.
        src: mesh and placements before.
        dst: mesh and placements after.
        bound_nbytes: T* in bytes over one NIC, per GPUs in a domain.
        odd: a shape with one size that does not divide.
    """

    about: str
    shape: Shape
    src: tuple[Shape, tuple[str, ...]]
    dst: tuple[Shape, tuple[str, ...]]
    bound_nbytes: dict[int, int]
    odd: Shape

    @property
    def gpus(self) -> int:
        return prod(self.src[0]) + prod(self.dst[0])

    def scaled(self, factor: int) -> Pair:
        """The same with ``factor`` times the replicas on both sides; the bound is not carried over."""
        src, dst = (((mesh[0] * factor, *mesh[1:]), placements) for mesh, placements in (self.src, self.dst))
        return replace(self, src=src, dst=dst, bound_nbytes={})


MATRIX, EXPERTS = (7168, 18432), (256, 2048, 7168)

PAIRS: dict[str, Pair] = {
    "A": Pair(
        "matrix, TP8 x DP16 to TP32 x DP8, rows to rows",
        MATRIX,
        ((16, 8), ("R", "S(0)")),
        ((8, 32), ("R", "S(0)")),
        {8: 8_257_536, 64: 4_128_768},
        (7167, 18432),
    ),
    "A'": Pair(
        "matrix, TP8 x DP16 to TP32 x DP8, rows to columns",
        MATRIX,
        ((16, 8), ("R", "S(0)")),
        ((8, 32), ("R", "S(1)")),
        {8: 8_257_536, 64: 4_128_768},
        (7168, 18431),
    ),
    "B": Pair(
        "experts, EP16 x EDP8 to TP32 x DP8",
        EXPERTS,
        ((8, 16), ("R", "S(0)")),
        ((8, 32), ("R", "S(1)")),
        {8: 234_881_024, 64: 117_440_512},
        (256, 2049, 7168),
    ),
    "C": Pair(
        "experts, EP64 x EDP2 to EP128 x DP2",
        EXPERTS,
        ((2, 64), ("R", "S(0)")),
        ((2, 128), ("R", "S(0)")),
        {8: 58_720_256, 64: 58_720_256},
        (255, 2048, 7168),
    ),
    "D": Pair(
        "experts, EP64 to EP128, no replicas",
        EXPERTS,
        ((64,), ("S(0)",)),
        ((128,), ("S(0)",)),
        {8: 117_440_512, 64: 117_440_512},
        (255, 2048, 7168),
    ),
}
"""The cases by letter. Bounds: needed bytes of a domain over its NICs; in D all bytes over source NICs."""

DOMAIN_SIZES = (8, 64)

VARIANT_GOALS = Goals(most_nic_ratio=1.02, most_compile_s=0.5)
"""An odd size or an uneven NIC may cost ten times the compile time, and T0 may be up to 2 % above T*."""

SCALE_GOALS = Goals(most_nic_ratio=1.01, most_compile_s=2.0, most_program_s=0.3)

SCALE_FACTOR = 8
"""1024 ranks to 2048."""


def goals_of(letter: str, gpus_per_domain: int) -> Goals:
    """What a pair is to reach as it is; the experts of B may not be cut into dust where domains are small."""
    few = letter == "B" and gpus_per_domain == DOMAIN_SIZES[0]
    return Goals(1.01, 5000 if few else None, 16 if few else None, most_compile_s=0.05)


def tensor_cases() -> Iterator[Case]:
    """Each pair as it is, with an odd size, and with the NIC of one receiver or one sender halved."""
    for letter, pair in PAIRS.items():
        for size in DOMAIN_SIZES:
            base = f"tensors/{letter}/{size}"
            about = f"{pair.about}, domains of {size}"
            first_dst = prod(pair.src[0])
            yield Case(
                base,
                about,
                builder(pair, pair.shape, size),
                bound_nbytes=pair.bound_nbytes[size],
                goals=goals_of(letter, size),
                peers=True,
                gpus=pair.gpus,
            )
            yield Case(
                f"{base}/odd",
                f"{about}, an odd size",
                builder(pair, pair.odd, size),
                goals=VARIANT_GOALS,
                gpus=pair.gpus,
            )
            for side, gpu in (("dst", first_dst), ("src", 0)):
                yield Case(
                    f"{base}/slow-{side}",
                    f"{about}, the NIC of rank {gpu} at half the rate",
                    builder(pair, pair.shape, size, slow_gpu=gpu),
                    goals=VARIANT_GOALS,
                    gpus=pair.gpus,
                )


def large_tensor_cases() -> Iterator[Case]:
    """A and B from 1024 to 2048 ranks."""
    for letter in ("A", "B"):
        pair = PAIRS[letter].scaled(SCALE_FACTOR)
        for size in DOMAIN_SIZES:
            about = f"{pair.about}, {SCALE_FACTOR} times the replicas, domains of {size}"
            yield Case(
                f"scale/{letter}/{size}",
                about,
                builder(pair, pair.shape, size),
                goals=SCALE_GOALS,
                program=True,
                gpus=pair.gpus,
            )


def smoke_cases() -> Iterator[Case]:
    """A handful that runs in seconds."""
    for letter in ("A", "C"):
        pair = PAIRS[letter]
        yield Case(
            f"smoke/{letter}/8",
            f"{pair.about}, domains of 8",
            builder(pair, pair.shape, 8),
            bound_nbytes=pair.bound_nbytes[8],
            goals=goals_of(letter, 8).of_the_plan(),
            program=True,
            gpus=pair.gpus,
        )


def builder(
    pair: Pair, shape: Shape, gpus_per_domain: int, slow_gpu: int | None = None
) -> Callable[[], rp.ReshardSpec]:
    """A function that makes the spec.

    Args:
        pair: both layouts.
        shape: global shape of the tensor.
        gpus_per_domain: size of all domains.
        slow_gpu: GPU whose NIC has half the rate.
    """

    def build() -> rp.ReshardSpec:
        src = layout(0, *pair.src)
        dst = layout(prod(pair.src[0]), *pair.dst)
        topology = rp.Topology.uniform(pair.gpus, gpus_per_domain)
        if slow_gpu is not None:
            topology = slowed(topology, slow_gpu)
        return rp.ReshardSpec([rp.TensorSpec("w", shape, "bfloat16", src, dst)], topology)

    return build


def slowed(topology: rp.Topology, gpu: int) -> rp.Topology:
    """The topology with half the rate for the NICs of one GPU."""
    half = Link(NIC_LINK.bytes_per_s // 2, NIC_LINK.efficiency, NIC_LINK.latency_s)
    nics = tuple(Nic(nic.gpus, half) if gpu in nic.gpus else nic for nic in topology.nics)
    return replace(topology, nics=nics)

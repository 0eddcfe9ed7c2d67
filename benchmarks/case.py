"""Cases: one spec to compile, with what is known about it beforehand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Literal

import reshard_planner as rp
from benchmarks.goals import Goals


@dataclass(frozen=True, slots=True)
class M2n:
    """What NCCL M2N's assignment rules give for a case, by NVIDIA/nccl-extensions' source; not executed.

    Attributes:
        mode: ``UNIFORM`` or ``NODE_AWARE``, how it spreads load; or ``not stated``.
        payload_ratio: network bytes over the least that any plan must move; None where not known.
        nic_ratio: time of the busiest NIC over the least.
    """

    mode: str
    payload_ratio: float | None
    nic_ratio: float


@dataclass(frozen=True, slots=True)
class Case:
    """One spec to compile.

    Attributes:
        name: unique among all suites, ``suite/...``.
        about: one line for people.
        build: makes the spec, anew at every call.
        bound_nbytes: T* in bytes over one NIC of the default rate, where it is known by hand.
        goals: what its plan is to keep within.
        m2n: figures of NCCL M2N.
        peers: whether torch's and other planners are measured on it.
        program: whether saving the plan and reading one rank's program are measured.
        gpus: ranks of the spec, for fits over size.
        predict: how its run is predicted: not at all, in windows of the default length, or also exactly.
    """

    name: str
    about: str
    build: Callable[[], rp.ReshardSpec]
    bound_nbytes: int | None = None
    goals: Goals = field(default_factory=Goals)
    m2n: tuple[M2n, ...] = ()
    peers: bool = False
    program: bool = False
    gpus: int = 0
    predict: Literal["no", "windows", "both"] = "no"


def layout(first: int, sizes: Sequence[int], placements: Sequence[str]) -> rp.Layout:
    """A layout on contiguous ranks from ``first``, row-major over a mesh of the given sizes."""
    ranks = list(range(first, first + prod(sizes)))
    return rp.Layout(rp.Mesh(ranks, None, tuple(sizes)), list(placements))

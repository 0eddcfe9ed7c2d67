"""Scheduling: chunks, rounds and offsets of routed forests.

The cost of K rounds over a pipeline of L stages, of which packing and unpacking are two, is about
``T (1 + lag (L - 1) / K) + (K + lag (L - 1)) alpha``; it is least at ``K = sqrt(lag (L - 1) T / alpha)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reshard_planner.bounds import Capacities
from reshard_planner.routing.forest import Forest
from reshard_planner.routing.items import cut_dim
from reshard_planner.routing.problem import Problem
from reshard_planner.spec.values import byte_step
from reshard_planner.topology import Topology
from reshard_planner.transfer import Medium

Ints = NDArray[np.int64]

PACK_AND_UNPACK = 2
"""Stages of the pipeline beside the hops."""

LEAST_WEIGHT_S = 1e-12
"""Weight of a tensor that moves nothing between ranks, so that its copies are spread over the rounds too."""


@dataclass(frozen=True, slots=True)
class Timing:
    """When a forest's rows run.

    Attributes:
        offset: slots after the unit's round, per row.
        cut_dim: dimension along which each piece is cut in chunks, per piece.
        n_chunks: chunks that every piece is cut in.
    """

    offset: list[int]
    cut_dim: list[int]
    n_chunks: int


@dataclass(frozen=True, slots=True)
class Units:
    """The units of all forests as columns, sorted by (round, group, tensor, chunk)."""

    group: Ints
    tensor: Ints
    chunk: Ints
    n_chunks: Ints
    round: Ints


def alpha_s(topology: Topology) -> float:
    """Start-up time of a slot in seconds: the slowest port's latency."""
    links = [domain.link for domain in topology.domains] + [nic.link for nic in topology.nics]
    return max(link.latency_s for link in links)


def wanted_rounds(problem: Problem, forests: Sequence[Forest]) -> int:
    """The number of rounds that costs least time, at least one."""
    hops = [depth for forest in forests for depth in _depths(forest)]
    stages = max(hops, default=0) + 1 + PACK_AND_UNPACK
    busiest = sum(_busiest_s(problem, forest) * len(forest.tensors) for forest in forests)
    alpha = alpha_s(problem.spec.topology)
    if not busiest:
        return 1
    if not alpha:
        return max(1, max((max(box.shape, default=1) for f in forests for box in f.boxes), default=1))
    return max(1, round(sqrt(problem.spec.options.lag * (stages - 1) * busiest / alpha)))


def time_forests(
    problem: Problem, forests: Sequence[Forest], rounds: int, least_message: int
) -> list[Timing]:
    """Cut the forests in chunks so that one unit is about one round's share.

    Args:
        problem: what is compiled.
        forests: routed groups.
        rounds: number of rounds that the whole is to take.
        least_message: bytes below which no piece is cut further.
    """
    times = [_busiest_s(problem, forest) for forest in forests]
    total = sum(time * len(forest.tensors) for time, forest in zip(times, forests, strict=True))
    timings = []
    for time, forest in zip(times, forests, strict=True):
        tensor = problem.spec.tensors[forest.tensors[0]]
        step = byte_step(tensor.bits)
        largest = max((box.volume * tensor.bits // 8 for box in forest.boxes), default=0)
        share = ceil(time * rounds / total) if total else 1
        chunks = max(1, min(share, largest // least_message, _finest(forest, step)))
        timings.append(
            Timing(
                [depth * problem.spec.options.lag for depth in _depths(forest)],
                [cut_dim(box, chunks, step) for box in forest.boxes],
                chunks,
            )
        )
    return timings


def _finest(forest: Forest, step: int) -> int:
    """Most chunks that any piece can be cut in along one dimension."""
    most = 1
    for box in forest.boxes:
        extents = list(box.shape)
        if extents:
            extents[-1] //= step
        most = max(most, *extents, 1)
    return most


def _depths(forest: Forest) -> list[int]:
    """Transfers before each row in its tree; copies within a rank count like any other."""
    depths: list[int] = []
    for parent in forest.parent:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return depths


def _busiest_s(problem: Problem, forest: Forest) -> float:
    """Time of the busiest port for one tensor of a forest, in seconds at datasheet rates."""
    capacities = Capacities(problem.ports, ())
    bits = problem.spec.tensors[forest.tensors[0]].bits
    sizes = np.array([box.volume * bits // 8 for box in forest.boxes], dtype=np.int64)
    if not forest.piece:
        return 0.0
    nbytes = sizes[forest.piece]
    medium = np.array(forest.medium)
    busiest = 0.0
    for ranks in (np.array(forest.src), np.array(forest.dst)):
        for kind, number, rate in (
            (Medium.NETWORK, problem.ports.nic_group[ranks], capacities.nic_rate),
            (Medium.NVLINK, ranks, capacities.nvlink),
        ):
            at = (medium == kind) & (number >= 0)
            loads = np.bincount(number[at], weights=nbytes[at], minlength=len(rate))
            times = [load / speed for load, speed in zip(loads.tolist(), rate, strict=False) if load]
            busiest = max(busiest, *times, 0.0)
    return busiest


def assign_rounds(
    problem: Problem, forests: Sequence[Forest], timings: Sequence[Timing], rounds: int
) -> Units:
    """Spread every group's units evenly over the rounds, so that all groups advance together."""
    columns: list[tuple[NDArray[Any], ...]] = []
    for number, (forest, timing) in enumerate(zip(forests, timings, strict=True)):
        if not forest.boxes:
            continue
        count = len(forest.tensors) * timing.n_chunks
        index = np.arange(count, dtype=np.int64)
        share = max(_busiest_s(problem, forest), LEAST_WEIGHT_S) / timing.n_chunks
        columns.append(
            (
                np.full(count, number, dtype=np.int64),
                np.array(forest.tensors, dtype=np.int64)[index // timing.n_chunks],
                index % timing.n_chunks,
                np.full(count, timing.n_chunks, dtype=np.int64),
                (index * 2 + 1) * (2**40 // (2 * count)),
                np.full(count, share),
            )
        )
    if not columns:
        empty = np.zeros(0, dtype=np.int64)
        return Units(empty, empty, empty, empty, empty)
    group, tensor, chunk, n_chunks, place, weight = (
        np.concatenate([column[i] for column in columns]) for i in range(6)
    )
    order = np.lexsort((group, place))
    weights = weight[order]
    middle = np.cumsum(weights) - weights / 2
    slot = np.minimum((middle / weights.sum() * rounds).astype(np.int64), rounds - 1)
    _, dense = np.unique(slot, return_inverse=True)
    round_of = np.empty(len(order), dtype=np.int64)
    round_of[order] = dense
    order = np.lexsort((chunk, tensor, group, round_of))
    return Units(group[order], tensor[order], chunk[order], n_chunks[order], round_of[order])

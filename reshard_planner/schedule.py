"""Scheduling: chunks, rounds and offsets of routed forests.

The cost of K rounds over a pipeline of L stages, of which packing and unpacking are two, is about
``T (1 + lag (L - 1) / K) + (K + lag (L - 1)) alpha``; it is least at ``K = sqrt(lag (L - 1) T / alpha)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt

import numpy as np
from numpy.typing import NDArray

from reshard_planner.routing.forest import Forest
from reshard_planner.routing.items import cut_dims
from reshard_planner.routing.problem import Problem
from reshard_planner.spec.values import byte_step
from reshard_planner.topology import Topology
from reshard_planner.transfer import Medium

Ints = NDArray[np.int64]

PACK_AND_UNPACK = 2
"""Stages of the pipeline beside the transfers."""

MAX_ROUNDS = 4096
"""Most rounds taken for speed: filling and draining the pipeline then costs next to nothing."""


@dataclass(frozen=True, slots=True)
class Timing:
    """When a forest's rows run.

    Attributes:
        offset: slots after the unit's round, per row.
        part: part that each piece belongs to, per piece.
        cut_dim: dimension along which each piece is cut in chunks, per piece.
        n_chunks: chunks that the pieces of each part are cut in, per part.
    """

    offset: Ints
    part: Ints
    cut_dim: Ints
    n_chunks: Ints


@dataclass(frozen=True, slots=True)
class Units:
    """The units of all forests as columns, sorted by (round, forest, member, tensor, part, chunk).

    Attributes:
        forest: position of the forest.
        member: position of the member in it.
        tensor: position of the tensor in the spec.
        part: part of the forest.
        chunk: chunk of the part.
        n_chunks: chunks of the part.
        round: round in which the unit starts.
    """

    forest: Ints
    member: Ints
    tensor: Ints
    part: Ints
    chunk: Ints
    n_chunks: Ints
    round: Ints


def alpha_s(topology: Topology) -> float:
    """Start-up time of a slot in seconds: the slowest port's latency."""
    links = [domain.link for domain in topology.domains] + [nic.link for nic in topology.nics]
    return max(link.latency_s for link in links)


@dataclass(frozen=True, slots=True)
class Shape:
    """What scheduling looks at in one forest.

    Attributes:
        tensors: number of tensors.
        depths: transfers before each row in its tree; copies within a rank count like any other.
        ports: ports and directions that are loaded, numbered over all of them.
        times: their times for one tensor, in seconds at datasheet rates.
        largest: bytes of the largest piece.
        finest: most chunks that any piece can be cut in along one dimension.
    """

    tensors: int
    depths: Ints
    ports: Ints
    times: NDArray[np.float64]
    largest: int
    finest: int

    @property
    def busiest_s(self) -> float:
        """Time of the busiest port for one tensor, in seconds."""
        return float(self.times.max(initial=0.0))


def measure(problem: Problem, forests: Sequence[Forest]) -> tuple[list[Shape], float]:
    """The shape of every forest, and the busiest port's time for all of them together, in seconds."""
    shapes = []
    sums: NDArray[np.float64] | None = None
    for forest in forests:
        tensor = problem.spec.tensors[forest.members[0].tensors[0]]
        sizes = np.prod(forest.hi - forest.lo, axis=1, dtype=np.int64) * tensor.bits // 8
        for member in forest.members:
            times = _port_times(problem, forest, sizes, member.ranks) * len(member.tensors)
            sums = times if sums is None else sums + times
        times = _port_times(problem, forest, sizes, None)
        shapes.append(
            Shape(
                forest.tensor_count,
                _depths(forest),
                np.flatnonzero(times),
                times[times > 0],
                int(sizes.max(initial=0)),
                _finest(forest, byte_step(tensor.bits)),
            )
        )
    return shapes, 0.0 if sums is None else float(sums.max(initial=0.0))


def _port_times(problem: Problem, forest: Forest, sizes: Ints, renamed: Ints | None) -> NDArray[np.float64]:
    """Time of every port and direction for one tensor, in seconds at datasheet rates."""
    ports = problem.ports
    medium = forest.medium
    nbytes = sizes[forest.piece]
    times = []
    for given in (forest.src, forest.dst):
        ranks = given if renamed is None else renamed[given]
        network, nvlink = medium == Medium.NETWORK, medium == Medium.NVLINK
        groups = len(ports.nic_bytes_per_s)
        load = np.bincount(ports.nic_group[ranks[network]], weights=nbytes[network], minlength=groups)
        times.append(load / ports.nic_bytes_per_s)
        load = np.bincount(ranks[nvlink], weights=nbytes[nvlink], minlength=len(ports.domain))
        times.append(load / np.maximum(1, ports.nvlink_bytes_per_s))
    return np.concatenate(times)


def wanted_rounds(problem: Problem, shapes: Sequence[Shape], busiest_s: float) -> int:
    """The number of rounds that costs least time, at least one and at most as many as there are steps."""
    stages = max((int(shape.depths.max(initial=0)) for shape in shapes), default=0) + 1 + PACK_AND_UNPACK
    most = min(MAX_ROUNDS, max((shape.finest * shape.tensors for shape in shapes), default=1))
    alpha = alpha_s(problem.spec.topology)
    if not busiest_s or not alpha:
        return 1 if not busiest_s else most
    return max(1, round(min(most, sqrt(problem.spec.options.lag * (stages - 1) * busiest_s / alpha))))


def time_forests(
    problem: Problem,
    forests: Sequence[Forest],
    shapes: Sequence[Shape],
    round_s: float,
    least_message: int,
) -> list[Timing]:
    """Cut the forests in chunks so that one unit is about one round's share.

    Args:
        problem: what is compiled.
        forests: routed groups.
        shapes: their shapes.
        round_s: time that one round is to take, in seconds; 0 if nothing moves between ranks.
        least_message: bytes below which no piece is cut further.
    """
    timings = []
    for forest, shape in zip(forests, shapes, strict=True):
        step = byte_step(problem.spec.tensors[forest.members[0].tensors[0]].bits)
        share = ceil(shape.busiest_s / round_s) if round_s else 1
        chunks = max(1, min(share, shape.largest // least_message, shape.finest))
        offset = shape.depths * problem.spec.options.lag
        part = np.zeros(len(forest.lo), dtype=np.int64)
        timings.append(Timing(offset, part, cut_dims(forest.lo, forest.hi, chunks, step), np.array([chunks])))
    return timings


def count_ops(shapes: Sequence[Shape], timings: Sequence[Timing]) -> int:
    """Operations that the chunks give, empty ones included."""
    return sum(
        shape.tensors * int(timing.n_chunks.max(initial=1)) * max(1, len(shape.depths))
        for shape, timing in zip(shapes, timings, strict=True)
    )


def _finest(forest: Forest, step: int) -> int:
    if not forest.lo.size:
        return 1
    extents = forest.hi - forest.lo
    extents[:, -1] //= step
    return int(extents.max(initial=1))


def _depths(forest: Forest) -> Ints:
    depths = np.zeros(len(forest.piece), dtype=np.int64)
    level = np.flatnonzero(forest.parent >= 0)
    while len(level):
        deeper = depths[forest.parent[level]] + 1
        if (deeper == depths[level]).all():
            break
        depths[level] = deeper
    return depths


def assign_rounds(
    forests: Sequence[Forest], shapes: Sequence[Shape], timings: Sequence[Timing], round_s: float
) -> Units:
    """Spread the units over the rounds so that no port is far ahead of another.

    Units are taken in an order in which all groups advance together, and each goes to the round in which
    the busiest of its ports has its turn. Groups on different ports thus run side by side.

    Args:
        forests: routed groups.
        shapes: their shapes.
        timings: their chunks.
        round_s: time that one round is to take, in seconds; 0 if nothing moves between ranks.
    """
    columns: list[tuple[Ints, ...]] = []
    for number, (forest, timing) in enumerate(zip(forests, timings, strict=True)):
        if not len(forest.lo):
            continue
        chunks = int(timing.n_chunks[0])
        tensors = np.concatenate([np.array(member.tensors, dtype=np.int64) for member in forest.members])
        member = np.repeat(np.arange(len(forest.members)), [len(m.tensors) for m in forest.members])
        count = len(tensors) * chunks
        index = np.arange(count, dtype=np.int64)
        columns.append(
            (
                np.full(count, number, dtype=np.int64),
                member[index // chunks],
                tensors[index // chunks],
                np.zeros(count, dtype=np.int64),
                index % chunks,
                np.full(count, chunks, dtype=np.int64),
                (index * 2 + 1) * (2**40 // (2 * count)),
            )
        )
    if not columns:
        empty = np.zeros(0, dtype=np.int64)
        return Units(empty, empty, empty, empty, empty, empty, empty)
    forest_of, member, tensor, part, chunk, n_chunks, place = (
        np.concatenate([column[i] for column in columns]) for i in range(7)
    )
    order = np.lexsort((forest_of, place))
    taken = np.zeros(1 + max((int(shape.ports.max(initial=-1)) for shape in shapes), default=-1))
    round_of = np.zeros(len(order), dtype=np.int64)
    for unit in order.tolist():
        shape = shapes[forest_of[unit]]
        if not round_s or not len(shape.ports):
            continue
        times = shape.times / n_chunks[unit]
        middle = float((taken[shape.ports] + times / 2).max())
        round_of[unit] = int(middle / round_s)
        taken[shape.ports] += times
    _, round_of = np.unique(round_of, return_inverse=True)
    order = np.lexsort((chunk, part, tensor, member, forest_of, round_of))
    return Units(
        forest_of[order],
        member[order],
        tensor[order],
        part[order],
        chunk[order],
        n_chunks[order],
        round_of[order],
    )

"""Loads: what each tree of a forest puts on which port, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reshard_planner.routing.forest import Forest
from reshard_planner.routing.problem import Problem
from reshard_planner.schedule.values import Floats, Ints, sum_by
from reshard_planner.spec.values import byte_step
from reshard_planner.transfer import Medium

MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(29))
"""Odd factors and a shift that spread numbers over 64 bits."""


LEAST_SHARE = 0.25
"""Share of its staging that a rank sets aside for the direction in which it moves less."""


@dataclass(frozen=True, slots=True, eq=False)
class PortTable:
    """All ports and directions under one numbering.

    NICs outwards come first, then NVLink outwards, NICs inwards and NVLink inwards; last the buffers in
    which each rank stages what it sends, and those for what it receives; their load is counted in bytes
    instead of seconds.

    Attributes:
        number: port of each kind and rank, shape (6, ranks); -1 where a rank has no NIC.
        bytes_per_s: rate of each port; 1 for staging.
        first_staging: number of the first rank's staging.
    """

    number: Ints
    bytes_per_s: Floats
    first_staging: int

    @classmethod
    def of(cls, problem: Problem) -> PortTable:
        """The ports of a problem."""
        ports = problem.ports
        ranks, groups = len(ports.domain), len(ports.nic_bytes_per_s)
        each = np.arange(ranks, dtype=np.int64)
        side = groups + ranks
        nic_in = np.where(ports.nic_group < 0, -1, ports.nic_group + side)
        staged = 2 * side + each
        number = np.stack(
            (ports.nic_group, groups + each, nic_in, side + groups + each, staged, staged + ranks)
        )
        rates = np.maximum(1, np.concatenate((ports.nic_bytes_per_s, ports.nvlink_bytes_per_s)))
        return cls(number, np.concatenate((rates, rates, np.ones(2 * ranks))).astype(np.float64), 2 * side)

    @property
    def count(self) -> int:
        """Number of ports."""
        return len(self.bytes_per_s)


@dataclass(frozen=True, slots=True, eq=False)
class ForestLoads:
    """What scheduling looks at in one forest; loads are those of one tensor of the first member.

    Attributes:
        tensors: tensors of all members.
        depths: transfers before each row in its tree; copies within a rank count like any other.
        root: tree of each piece.
        nbytes: bytes of the piece that each tree starts with.
        steps: indivisible steps of that piece per dimension, shape (trees, dims).
        bundle: number of each tree's way: trees of one bundle have equal transfers.
        row_tree: tree of each row between ranks.
        row_src: its sending rank.
        row_dst: its receiving rank.
        row_depth: its depth.
        row_medium: what it goes over.
        tree: tree of each load.
        depth: depth of its row.
        port: port that is loaded.
        load: seconds at the port's datasheet rate, or bytes of staging.
        kind: kind of each port of the table that the forest loads, shape (ports,).
        rank: a rank of the forest that each of these ports belongs to.
    """

    tensors: int
    depths: Ints
    root: Ints
    nbytes: Ints
    steps: Ints
    bundle: Ints
    row_tree: Ints
    row_src: Ints
    row_dst: Ints
    row_depth: Ints
    row_medium: Ints
    tree: Ints
    depth: Ints
    port: Ints
    load: Floats
    kind: Ints
    rank: Ints

    def rename(self, table: PortTable, port: Ints, renamed: Ints | None) -> Ints:
        """The ports that stand for some of the forest's ports in a member."""
        if renamed is None:
            return port
        numbers: Ints = table.number[self.kind[port], renamed[self.rank[port]]]
        return numbers


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """All forests of a plan, measured.

    Attributes:
        table: numbering of ports.
        forests: loads of each forest.
        totals: load of each port over the whole plan.
    """

    table: PortTable
    forests: tuple[ForestLoads, ...]
    totals: Floats

    @property
    def rows(self) -> int:
        """Transfers of all tensors."""
        return sum(loads.tensors * len(loads.depths) for loads in self.forests)

    @property
    def steps(self) -> int:
        """Units that everything could be cut in; no more rounds than that make sense."""
        return sum(
            loads.tensors * int(np.prod(loads.steps, axis=1, dtype=np.int64).sum()) for loads in self.forests
        )

    @property
    def busiest_s(self) -> float:
        """Time of the busiest port for everything, in seconds at datasheet rates."""
        return float(self.totals[: self.table.first_staging].max(initial=0.0))

    @property
    def staging_shares(self) -> Floats:
        """Share of its staging that each rank sets aside to send, and then to receive, shape (2 * ranks,).

        Both directions get buffers for their largest slot, and most ranks do much more of one of them.
        """
        send, receive = self.totals[self.table.first_staging :].reshape(2, -1)
        both = send + receive
        share = np.divide(send, both, out=np.full(len(both), 0.5), where=both > 0)
        share = np.where((send > 0) & (receive > 0), np.clip(share, LEAST_SHARE, 1 - LEAST_SHARE), share)
        shares: Floats = np.maximum(np.concatenate((share, 1 - share)), LEAST_SHARE)
        return shares


def measure(problem: Problem, forests: Sequence[Forest]) -> Workload:
    """Measure the loads of routed forests."""
    table = PortTable.of(problem)
    found = []
    totals = np.zeros(table.count)
    for forest in forests:
        loads = _measure(problem, forest, table)
        found.append(loads)
        once = sum_by(loads.port, loads.load, table.count)
        used = np.flatnonzero(once)
        for member in forest.members:
            totals[loads.rename(table, used, member.ranks)] += once[used] * len(member.tensors)
    return Workload(table, tuple(found), totals)


def _measure(problem: Problem, forest: Forest, table: PortTable) -> ForestLoads:
    tensor = problem.spec.tensors[forest.members[0].tensors[0]]
    root, roots = _trees(forest)
    extents = forest.hi[roots] - forest.lo[roots]
    nbytes = np.prod(extents, axis=1, dtype=np.int64) * tensor.bits // 8
    if extents.shape[1]:
        extents[:, -1] //= byte_step(tensor.bits)
    depths = _depths(forest)
    rows = np.flatnonzero(forest.medium != Medium.LOCAL)
    src, dst, tree = forest.src[rows], forest.dst[rows], root[forest.piece[rows]]
    over_nvlink = (forest.medium[rows] == Medium.NVLINK).astype(np.int64)
    zero = np.zeros(len(rows), dtype=np.int64)
    kinds = np.concatenate((over_nvlink, over_nvlink + 2, zero + 4, zero + 5))
    ends = np.concatenate((src, dst, src, dst))
    port = table.number[kinds, ends]
    kind, rank = np.zeros(table.count, dtype=np.int64), np.zeros(table.count, dtype=np.int64)
    kind[port], rank[port] = kinds, ends
    return ForestLoads(
        forest.tensor_count,
        depths,
        root,
        nbytes,
        extents,
        _bundles(tree, src, dst, depths[rows], len(roots), len(table.number[0])),
        tree,
        src,
        dst,
        depths[rows],
        forest.medium[rows],
        np.tile(tree, 4),
        np.tile(depths[rows], 4),
        port,
        np.tile(nbytes[tree], 4) / table.bytes_per_s[port],
        kind,
        rank,
    )


def _trees(forest: Forest) -> tuple[Ints, Ints]:
    """The tree of every piece, and the piece that each tree starts with."""
    root = np.arange(len(forest.lo), dtype=np.int64)
    fed = np.flatnonzero(forest.parent >= 0)
    own, brought = forest.piece[fed], forest.piece[forest.parent[fed]]
    smaller = own != brought  # a copy out of scratch may carry a part of what its parent brought
    root[own[smaller]] = brought[smaller]
    roots, number = np.unique(root, return_inverse=True)
    return number.reshape(-1).astype(np.int64), roots


def _depths(forest: Forest) -> Ints:
    depths = np.zeros(len(forest.piece), dtype=np.int64)
    level = np.flatnonzero(forest.parent >= 0)
    while len(level):
        deeper = depths[forest.parent[level]] + 1
        if (deeper == depths[level]).all():
            break
        depths[level] = deeper
    return depths


def mix(values: Ints) -> Ints:
    """Numbers that look random, so that their sums tell sets of values apart."""
    first, second, shift = MIX
    mixed = (values.astype(np.uint64) + np.uint64(1)) * first
    mixed ^= mixed >> shift
    mixed *= second
    numbers: Ints = (mixed ^ (mixed >> shift)).view(np.int64)
    return numbers


def _bundles(tree: Ints, src: Ints, dst: Ints, depth: Ints, trees: int, ranks: int) -> Ints:
    sums = np.zeros(trees, dtype=np.int64)
    np.add.at(sums, tree, mix((depth * ranks + src) * ranks + dst))
    _, first, number = np.unique(sums, return_index=True, return_inverse=True)
    by_appearance = np.empty(len(first), dtype=np.int64)
    by_appearance[np.argsort(first, kind="stable")] = np.arange(len(first))
    bundle: Ints = by_appearance[number.reshape(-1)]
    return bundle

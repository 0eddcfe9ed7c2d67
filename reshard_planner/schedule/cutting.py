"""Cutting: how many rounds a plan has, and in how many parts and chunks each forest runs.

The cost of K rounds over a pipeline of L stages, of which packing and unpacking are two, is about
``T (1 + lag (L - 1) / K) + (K + lag (L - 1)) alpha``; it is least at ``K = sqrt(lag (L - 1) T / alpha)``.
A unit is to load no port by more than one round's share. Parts come first, since they cut no message and
repeat no row; chunks only where a piece alone is larger than the share.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, sqrt

import numpy as np

from reshard_planner.routing.forest import Forest
from reshard_planner.routing.problem import Problem
from reshard_planner.schedule.colouring import Bundles, colour, shards_of
from reshard_planner.schedule.loads import ForestLoads, Workload
from reshard_planner.schedule.values import BUFFERS_PER_DIRECTION, Floats, Ints, Pace, Timing, sum_by

PACK_AND_UNPACK = 2
"""Stages of the pipeline beside the transfers."""

MAX_ROUNDS = 4096
"""Most rounds taken for speed: filling and draining the pipeline then costs next to nothing."""

MAX_PARTS = 4096
"""Most parts of a forest."""

FULL = 1.1
"""Share of a round's load that one unit may reach before it is cut further."""

NEARLY_EQUAL = 16
"""Steps per chunk from which on chunks count as equal."""

REPEAT = 1 / 2000
"""What one more chunk of all pieces, so one more operation per row, counts as: a share of the whole time."""

NEARLY_LARGE = 0.9
"""Share of the least size of messages from which on they count as large: 4 MB as 4 MiB."""

SLIVERS = 0.1
"""Share of a forest's bytes that may be cut finer than messages should be, to keep pace with the rest."""

MOST_TOGETHER = 1.0
"""Share of staging that a unit may fill together with the average of all other forests."""

LEAST_ROOM = 0.3
"""Share of staging that a unit may fill in any case."""

STAGING_FILL = 0.75
"""Share of the staging budget that rounds of average load may fill."""


def wanted_pace(problem: Problem, workload: Workload) -> Pace:
    """The number of rounds that costs least time, or more where staging would not suffice; at least 1."""
    options = problem.spec.options
    busiest_s = workload.busiest_s
    rounds = 1
    if busiest_s:
        alpha = problem.spec.topology.alpha_s
        best = float(MAX_ROUNDS)
        if alpha:
            best = sqrt(filling_rounds(problem, workload) * busiest_s / alpha)
        staged = workload.totals[workload.table.first_staging :] * _staging_factor(
            workload, options.staging_nbytes
        )
        rounds = max(1, min(MAX_ROUNDS, workload.steps, round(best)), ceil(staged.max(initial=0.0)))
    return Pace(rounds, options.staging_nbytes, options.min_message_nbytes)


def filling_rounds(problem: Problem, workload: Workload) -> int:
    """Rounds that it takes to fill the pipeline, or to drain it, packing and unpacking included."""
    depth = max((int(loads.depths.max(initial=0)) for loads in workload.forests), default=0)
    return problem.spec.options.lag * (depth + PACK_AND_UNPACK)


def shares(workload: Workload, pace: Pace) -> Floats:
    """Factor of each port that turns its load into shares of one round's.

    A port's share is what the busiest port carries in a round; a rank's share of staging is what its buffers
    hold.
    """
    factor = np.zeros(workload.table.count)
    if workload.busiest_s:
        factor[:] = pace.rounds / workload.busiest_s
    factor[workload.table.first_staging :] = _staging_factor(workload, pace.staging_nbytes)
    return factor


def _staging_factor(workload: Workload, nbytes: int) -> Floats:
    """Factor that turns the bytes that each rank stages per direction into shares of a round's."""
    return BUFFERS_PER_DIRECTION / (STAGING_FILL * nbytes * workload.staging_shares)


def time_forests(problem: Problem, forests: Sequence[Forest], workload: Workload, pace: Pace) -> list[Timing]:
    """Deal the trees of every forest to parts and cut these in chunks, so that a unit fits in a round.

    Args:
        problem: what is compiled.
        forests: routed groups.
        workload: their loads.
        pace: what a round is to carry.
    """
    factor = shares(workload, pace)
    timings = []
    for forest, loads in zip(forests, workload.forests, strict=True):
        part, chunks = _Cutting(
            problem,
            forest,
            loads,
            _beside_others(workload, loads, factor, pace),
            workload.table.first_staging,
            pace.min_message_nbytes,
        ).cut()
        dims = chunk_dims(loads.steps, chunks[part])
        offset = loads.depths * problem.spec.options.lag
        timings.append(Timing(offset, part[loads.root], dims[loads.root], chunks))
    return timings


def _beside_others(workload: Workload, loads: ForestLoads, factor: Floats, pace: Pace) -> Floats:
    """The factors for one forest, whose units find staging filled by all other forests on average."""
    first = workload.table.first_staging
    own = sum_by(loads.port, loads.load, len(factor))[first:] * loads.tensors
    others = np.maximum(0.0, workload.totals[first:] - own) * factor[first:] / pace.rounds
    found = factor.copy()
    found[first:] /= np.clip(MOST_TOGETHER - others, LEAST_ROOM, 1.0)
    return found


def chunk_dims(steps: Ints, chunks: Ints) -> Ints:
    """The dimension along which each tree is cut: the outermost that gives nearly equal chunks.

    Where none does it is the outermost with enough steps, else the one with most.

    Args:
        steps: indivisible steps of each tree per dimension, shape (trees, dims).
        chunks: chunks that it is cut in.

    Returns -1 for trees of 0-d tensors.
    """
    if not steps.shape[1]:
        return np.full(len(steps), -1, dtype=np.int64)
    wanted = chunks[:, None]
    equal = (steps >= NEARLY_EQUAL * wanted) | ((steps % wanted == 0) & (steps > 0))
    enough = steps >= wanted
    dims: Ints = np.where(
        equal.any(axis=1),
        equal.argmax(axis=1),
        np.where(enough.any(axis=1), enough.argmax(axis=1), steps.argmax(axis=1)),
    )
    return dims


def count_ops(forests: Sequence[Forest], workload: Workload, timings: Sequence[Timing]) -> int:
    """Operations that the chunks give, empty ones included."""
    return sum(
        loads.tensors * int(timing.n_chunks[timing.part[forest.piece]].sum())
        for forest, loads, timing in zip(forests, workload.forests, timings, strict=True)
    )


def equal_cuts(first: Timing, second: Timing) -> bool:
    """Whether two timings of a forest have the same parts and chunks."""
    return np.array_equal(first.n_chunks, second.n_chunks) and np.array_equal(first.part, second.part)


def peers_of(loads: ForestLoads, part: Ints, rows: Ints) -> int:
    """Most peers that any rank has within a part, both directions and all depths together."""
    ranks = int(max(loads.row_src.max(initial=0), loads.row_dst.max(initial=0))) + 1
    src, dst = loads.row_src[rows], loads.row_dst[rows]
    of_part = part[loads.row_tree[rows]] * ranks
    # sorted, not hashed: half of the time for millions of pairs
    pairs = np.sort(np.concatenate(((of_part + src) * ranks + dst, (of_part + dst) * ranks + src)))
    of_rank = pairs[np.diff(pairs, prepend=-1) > 0] // ranks
    starts = np.flatnonzero(np.diff(of_rank, prepend=-1))
    return int(np.diff(np.append(starts, len(of_rank))).max(initial=0))


class _Cutting:
    """The cutting of one forest."""

    def __init__(
        self,
        problem: Problem,
        forest: Forest,
        loads: ForestLoads,
        factor: Floats,
        first_staging: int,
        least_message: int,
    ) -> None:
        self.problem = problem
        self.forest = forest
        self.loads = loads
        self.factor = factor
        self.least_message = max(1, int(least_message * NEARLY_LARGE))
        self.first_staging = first_staging
        self.staged = 0.0
        self.most_peers = problem.spec.options.max_peers_per_slot
        self.ranks = len(np.unique(np.concatenate((loads.row_src, loads.row_dst))))

    def cut(self) -> tuple[Ints, Ints]:
        """Part of each tree, and chunks of each part."""
        loads = self.loads
        trees = np.zeros(len(loads.nbytes), dtype=np.int64)
        once = sum_by(loads.port, loads.load, len(self.factor)) * self.factor
        largest = float(once.max(initial=0.0))
        self.staged = float(once[self.first_staging :].max(initial=0.0))
        if largest <= FULL and self._peers_fit(trees, np.arange(len(loads.row_tree))):
            return trees, np.ones(1, dtype=np.int64)
        bundles = self._bundles(np.arange(len(trees)))
        allowed = self._allowed(ceil(largest / FULL / bundles.most_even))
        alone = np.zeros(len(trees))  # share that each tree takes of a round at its busiest port
        np.maximum.at(alone, loads.tree, loads.load * self.factor[loads.port])
        part = trees
        chunks: list[int] = []
        for count in np.unique(allowed)[::-1].tolist():
            chosen = np.flatnonzero(allowed == count)
            some = bundles if len(chosen) == len(trees) else self._bundles(chosen)
            dealt, parts = self._deal(chosen, some, count)
            part[chosen] = dealt + len(chunks)
            share = max(some.busiest / parts, float(alone[chosen].max()))
            finer = int(self._allowed(ceil(share / FULL))[chosen].min())
            chunks.extend([max(count, finer)] * parts)
        return part, np.array(chunks, dtype=np.int64)

    def _peers_fit(self, part: Ints, rows: Ints) -> bool:
        return self.ranks <= self.most_peers + 1 or peers_of(self.loads, part, rows) <= self.most_peers

    def _bundles(self, trees: Ints) -> Bundles:
        """The bundles that some trees make up whole, numbered from 0 in order."""
        loads = self.loads
        _, first, bundle = np.unique(loads.bundle[trees], return_index=True, return_inverse=True)
        of_tree = np.full(len(loads.nbytes), -1, dtype=np.int64)
        of_tree[trees] = bundle.reshape(-1)
        starts = np.zeros(len(loads.nbytes), dtype=np.int64)
        starts[loads.root[::-1]] = np.arange(len(loads.root))[::-1]
        source, destination = shards_of(self.problem, self.forest, starts[trees[first]])
        at = slice(None) if len(trees) == len(of_tree) else np.flatnonzero(of_tree[loads.tree] >= 0)
        port = loads.port[at]
        return Bundles.of(
            source,
            destination,
            self.problem.spec.options.lag,
            of_tree[loads.tree[at]],
            loads.depth[at],
            port,
            loads.load[at] * self.factor[port],
        )

    def _allowed(self, wanted: int) -> Ints:
        """Chunks of each tree: as many as wanted, or as messages may be cut in."""
        loads = self.loads
        allowed = np.ones(len(loads.nbytes), dtype=np.int64)
        whole = sum_by(loads.bundle, loads.nbytes, 0)
        steps = int(loads.steps.max(initial=1))
        count = min(wanted, int(whole.max(initial=0)) // self.least_message, steps)
        while count > 1:
            fits = (self._least_chunk(count) >= self.least_message)[loads.bundle] | (allowed > 1)
            if loads.nbytes[~fits].sum() <= SLIVERS * loads.nbytes.sum():
                return np.where(allowed == 1, count, allowed)
            allowed[fits & (allowed == 1)] = count
            count = count - 1 if count <= 64 else count * 7 // 8
        return allowed

    def _least_chunk(self, count: int) -> Floats:
        """Per bundle, the bytes of its smallest chunk of so many."""
        loads = self.loads
        if not loads.steps.shape[1]:
            return np.zeros(int(loads.bundle.max(initial=-1)) + 1)
        dims = chunk_dims(loads.steps, np.full(len(loads.steps), count, dtype=np.int64))
        steps = loads.steps[np.arange(len(dims)), dims]
        least = steps // count * (loads.nbytes / np.maximum(1, steps))
        return sum_by(loads.bundle, least, 0)

    def _deal(self, trees: Ints, bundles: Bundles, chunks: int) -> tuple[Ints, int]:
        """Part of each of some trees, and the number of parts, if parts are cut in so many chunks."""
        of_tree = np.unique(self.loads.bundle[trees], return_inverse=True)[1].reshape(-1)
        most = min(bundles.count, MAX_PARTS)
        even = min(most, bundles.most_even)
        least = min(even, max(1, ceil(bundles.busiest / FULL / chunks)))
        whole = sum_by(of_tree, self.loads.nbytes[trees], 0)
        finest = max(chunks, int(whole.min(initial=np.inf)) // self.least_message)
        slots = bundles.lag * (bundles.depths - 1) / self.loads.tensors
        tries = [
            (parts, (1 + slots / parts / count) * (1 + count * REPEAT))
            for parts in _tries(least, even)
            for count in [min(finest, max(chunks, ceil(bundles.busiest / FULL / parts)))]
            if parts >= least or self.staged <= parts * count
        ]
        part, parts = colour(bundles, tries, least)
        at = self._rows(trees)
        part_of_tree = np.zeros(len(self.loads.nbytes), dtype=np.int64)
        while parts < most:
            part_of_tree[trees] = part[of_tree]
            if self._peers_fit(part_of_tree, at):
                break
            part, parts = colour(bundles, [(min(most, parts + max(1, parts // 4)), 1.0)], most)
        return part[of_tree], parts

    def _rows(self, trees: Ints) -> Ints:
        chosen = np.zeros(len(self.loads.nbytes), dtype=np.bool_)
        chosen[trees] = True
        return np.flatnonzero(chosen[self.loads.row_tree])


def _tries(least: int, most: int) -> list[int]:
    """Numbers of parts to try: those that divide what a busy port has evenly, the least, and ever fewer."""
    finer = [count for count in range(least, min(most, 2 * least) + 1) if most % count == 0]
    coarser = [least >> halvings for halvings in range(1, least.bit_length())]
    return list(dict.fromkeys([*finer[:2], least, *coarser]))

"""Placing: which round each unit starts in.

Units of all forests and members are taken side by side, each kind at an even pace over the whole plan, and go
into the rounds as :mod:`reshard_planner.schedule.rounds` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np
from numpy.typing import NDArray

from reshard_planner.routing.forest import Forest
from reshard_planner.routing.problem import Problem
from reshard_planner.schedule.cutting import filling_rounds, shares
from reshard_planner.schedule.kinds import Kind, find_kinds, merge_alike
from reshard_planner.schedule.loads import Workload
from reshard_planner.schedule.round_size import Batches
from reshard_planner.schedule.rounds import LARGE, fill_rounds
from reshard_planner.schedule.values import Floats, Ints, Pace, Timing, Units, sum_by

BUSY = 0.05
"""Ports below this share of the busiest one's load are not watched."""

BATCH = 0.5
"""Share of a round that tensors with small messages may fill together."""


def assign_rounds(
    problem: Problem, forests: Sequence[Forest], workload: Workload, timings: Sequence[Timing], pace: Pace
) -> Units:
    """Choose the rounds of all units; see the module's text.

    Args:
        problem: what is compiled.
        forests: routed groups.
        workload: their loads.
        timings: their parts and chunks.
        pace: what a round is to carry.
    """
    factor = shares(workload, pace)
    totals = workload.totals * factor
    watched = np.full(len(totals), -1, dtype=np.int64)
    watch = totals > BUSY * totals.max(initial=0.0)
    watch |= _fills(forests, workload, timings, factor)
    busy = np.flatnonzero(watch)
    watched[busy] = np.arange(len(busy))
    most_peers = problem.spec.options.max_peers_per_slot
    with_peers = len(problem.spec.ranks) > most_peers + 1
    kinds: list[Kind] = []
    columns: list[tuple[Ints, ...]] = []
    turns: list[Floats] = []
    for number, (forest, loads, timing) in enumerate(zip(forests, workload.forests, timings, strict=True)):
        if not len(forest.lo):
            continue
        base = len(kinds)
        kinds.extend(
            find_kinds(problem, forest, loads, timing, workload.table, factor, watched, with_peers=with_peers)
        )
        parts = len(timing.n_chunks)
        for position, member in enumerate(forest.members):
            of_member = kinds[base + position * parts : base + (position + 1) * parts]
            unit, turn = _units(
                number, position, member.tensors, of_member, base + position * parts, pace.min_message_nbytes
            )
            columns.append(unit)
            # members differ in the parts that they run at one time, since these load different ports
            turns.append((turn + position / len(forest.members)) % 1.0)
    if not columns:
        return Units(*(np.zeros(0, dtype=np.int64) for _ in range(7)))
    forest_of, member_of, tensor, part, chunk, kind_of, batch = (
        np.concatenate([column[i] for column in columns]) for i in range(7)
    )
    turn = np.concatenate(turns)
    chunks = np.array([kind.chunks for kind in kinds], dtype=np.int64)[kind_of]
    order = np.lexsort((chunk, batch, kind_of, turn))
    merged, staged, ranks = merge_alike(
        kinds, busy >= workload.table.first_staging, len(problem.ports.domain)
    )
    starts = np.flatnonzero(
        (np.diff(kind_of[order], prepend=-1) != 0) | (np.diff(batch[order], prepend=-1) != 0)
    )
    sizes = np.diff(np.append(starts, len(order)))
    first = order[starts]
    alpha = problem.spec.topology.alpha_s * pace.rounds / workload.busiest_s if workload.busiest_s else 0.0
    found = fill_rounds(
        merged,
        staged,
        ranks,
        Batches(kind_of[first], sizes, turn[first]),
        most_peers=most_peers,
        alpha=alpha,
        filling=filling_rounds(problem, workload),
    )
    round_of = np.zeros(len(order), dtype=np.int64)
    round_of[order] = np.repeat(found, sizes)
    order = np.lexsort((chunk, part, tensor, member_of, forest_of, round_of))
    return Units(*(column[order] for column in (forest_of, member_of, tensor, part, chunk, chunks, round_of)))


def _fills(
    forests: Sequence[Forest], workload: Workload, timings: Sequence[Timing], factor: Floats
) -> NDArray[np.bool_]:
    """Whether some unit alone fills much of each buffer of staging."""
    table = workload.table
    found = np.zeros(table.count, dtype=np.bool_)
    for forest, loads, timing in zip(forests, workload.forests, timings, strict=True):
        part = np.zeros(len(loads.nbytes), dtype=np.int64)
        part[loads.root] = timing.part
        staged = np.flatnonzero(loads.port >= table.first_staging)
        key, inverse = np.unique((part[loads.tree[staged]] << 32) | loads.port[staged], return_inverse=True)
        port = key & 0xFFFFFFFF
        share = sum_by(inverse.reshape(-1), loads.load[staged], len(key)) / timing.n_chunks[key >> 32]
        for member in forest.members:
            numbers = loads.rename(table, port, member.ranks)
            found[numbers[share * factor[numbers] > LARGE]] = True
    return found


def _units(
    forest: int, member: int, tensors: tuple[int, ...], kinds: Sequence[Kind], base: int, least_message: int
) -> tuple[tuple[Ints, ...], Floats]:
    """Columns of the units of one member, and their turns, from 0 to 1.

    The last two columns are the kind and the batch, whose units share a round. The units of a kind have their
    turns at equal distances, and those of the parts between them.
    """
    columns: list[tuple[Ints, Ints, Ints, Floats]] = []
    for part, kind in enumerate(kinds):
        chunks = kind.chunks
        batches = -(-len(tensors) // _batch(kind, len(tensors), least_message))
        each = np.arange(len(tensors) * chunks, dtype=np.int64)
        batch = each // chunks * batches // len(tensors) * chunks + each % chunks
        # chunks of one tensor are as far apart as tensors are: all parts have a turn in between
        turn = (batch + (part + 0.5) / len(kinds)) / (batches * chunks)
        columns.append((np.array(tensors, dtype=np.int64)[each // chunks], each % chunks, batch, turn))
    part_of = np.repeat(np.arange(len(kinds)), [len(column[0]) for column in columns])
    tensor, chunk, batches_of, turns = zip(*columns, strict=True)
    where = np.full((2, len(part_of)), [[forest], [member]], dtype=np.int64)
    unit = (
        where[0],
        where[1],
        np.concatenate(tensor),
        part_of,
        np.concatenate(chunk),
        part_of + base,
        np.concatenate(batches_of),
    )
    return unit, np.concatenate(turns)


def _batch(kind: Kind, tensors: int, least_message: int) -> int:
    """How many tensors share a round: as many as messages need to be large, within half a round's share."""
    if kind.chunks > 1 or not kind.message:
        return 1
    most = min(tensors, ceil(least_message / kind.message))
    return max(1, min(most, int(BATCH / kind.largest))) if kind.largest else most

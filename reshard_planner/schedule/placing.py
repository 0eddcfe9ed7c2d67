"""Placing: which round each unit starts in.

Units of all forests and members are taken side by side, each kind at an even pace over the whole plan, and go
into the rounds as :mod:`reshard_planner.schedule.rounds` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
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
"""Ports below this share of the busiest one's load are not watched, for the sake of time."""

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
    busy = _watch(forests, workload, timings, factor)
    kinds, members = _list_units(problem, forests, workload, timings, pace, factor, busy)
    if not members:
        return Units(*(np.zeros(0, dtype=np.int64) for _ in fields(Units)))
    units = _Unplaced.join(members)
    order = np.lexsort((units.chunk, units.batch, units.kind, units.turn))
    kind, batch = units.kind[order], units.batch[order]
    starts = np.flatnonzero((np.diff(kind, prepend=-1) != 0) | (np.diff(batch, prepend=-1) != 0))
    sizes = np.diff(np.append(starts, len(order)))
    batches = Batches(kind[starts], sizes, units.turn[order[starts]])
    found = _place(problem, workload, pace, kinds, batches, busy >= workload.table.first_staging)
    round_of = np.zeros(len(order), dtype=np.int64)
    round_of[order] = np.repeat(found, sizes)
    chunks = np.array([each.chunks for each in kinds], dtype=np.int64)
    return units.sorted_by(round_of, chunks[units.kind])


@dataclass(frozen=True, slots=True, eq=False)
class _Unplaced:
    """Units before they have rounds, as columns.

    Attributes:
        forest: position of the forest.
        member: position of the member in it.
        tensor: position of the tensor in the spec.
        part: part of the forest.
        chunk: chunk of the part.
        kind: position of the kind among those of all forests.
        batch: which units of a kind share a round.
        turn: when it is the unit's turn, from 0 to 1.
    """

    forest: Ints
    member: Ints
    tensor: Ints
    part: Ints
    chunk: Ints
    kind: Ints
    batch: Ints
    turn: Floats

    @classmethod
    def join(cls, several: Sequence[_Unplaced]) -> _Unplaced:
        """The units of several, one after another."""
        return cls(*(np.concatenate([getattr(one, field.name) for one in several]) for field in fields(cls)))

    def sorted_by(self, round_of: Ints, n_chunks: Ints) -> Units:
        """The same units with their rounds and the chunks of their parts, in the order of a plan."""
        order = np.lexsort((self.chunk, self.part, self.tensor, self.member, self.forest, round_of))
        columns = (self.forest, self.member, self.tensor, self.part, self.chunk, n_chunks, round_of)
        return Units(*(column[order] for column in columns))


def _watch(forests: Sequence[Forest], workload: Workload, timings: Sequence[Timing], factor: Floats) -> Ints:
    """The ports to watch: those with much to do, and buffers that some unit alone fills much of."""
    totals = workload.totals * factor
    watch = totals > BUSY * totals.max(initial=0.0)
    watch |= _fills(forests, workload, timings, factor)
    return np.flatnonzero(watch)


def _list_units(
    problem: Problem,
    forests: Sequence[Forest],
    workload: Workload,
    timings: Sequence[Timing],
    pace: Pace,
    factor: Floats,
    busy: Ints,
) -> tuple[list[Kind], list[_Unplaced]]:
    """The kinds of all forests, and the units of each member."""
    watched = np.full(len(factor), -1, dtype=np.int64)
    watched[busy] = np.arange(len(busy))
    with_peers = len(problem.spec.ranks) > problem.spec.options.max_peers_per_slot + 1
    kinds: list[Kind] = []
    members: list[_Unplaced] = []
    for number, (forest, loads, timing) in enumerate(zip(forests, workload.forests, timings, strict=True)):
        if not len(forest.lo):
            continue
        found = find_kinds(
            problem, forest, loads, timing, workload.table, factor, watched, with_peers=with_peers
        )
        for position, member in enumerate(forest.members):
            own = list(islice(found, len(timing.n_chunks)))
            where = (number, position, len(kinds))
            units = _units(where, member.tensors, own, pace.min_message_nbytes)
            # members differ in the parts that they run at one time, since these load different ports
            members.append(replace(units, turn=(units.turn + position / len(forest.members)) % 1.0))
            kinds.extend(own)
    return kinds, members


def _place(
    problem: Problem,
    workload: Workload,
    pace: Pace,
    kinds: Sequence[Kind],
    batches: Batches,
    staged: NDArray[np.bool_],
) -> Ints:
    """The round of each batch; ``staged`` says which of the watched ports are buffers of staging."""
    alpha = problem.spec.topology.alpha_s * pace.rounds / workload.busiest_s if workload.busiest_s else 0.0
    return fill_rounds(
        *merge_alike(kinds, staged, len(problem.ports.domain)),
        batches,
        most_peers=problem.spec.options.max_peers_per_slot,
        alpha=alpha,
        filling=filling_rounds(problem, workload),
    )


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
    where: tuple[int, int, int], tensors: tuple[int, ...], kinds: Sequence[Kind], least_message: int
) -> _Unplaced:
    """The units of one member.

    The units of a kind have their turns at equal distances, and those of the parts between them.

    Args:
        where: position of the forest, of the member in it, and of the member's first kind.
        tensors: tensors of the member.
        kinds: its kinds, one per part.
        least_message: bytes from which on a message is large.
    """
    forest, member, first = where
    found = []
    for part, kind in enumerate(kinds):
        chunks = kind.chunks
        batches = -(-len(tensors) // _batch(kind, len(tensors), least_message))
        each = np.arange(len(tensors) * chunks, dtype=np.int64)
        tensor, chunk = each // chunks, each % chunks
        batch = tensor * batches // len(tensors) * chunks + chunk
        # chunks of one tensor are as far apart as tensors are: all parts have a turn in between
        turn = (batch + (part + 0.5) / len(kinds)) / (batches * chunks)
        alike = (np.full_like(each, value) for value in (forest, member, part, first + part))
        of_forest, of_member, of_part, of_kind = alike
        tensor = np.array(tensors, dtype=np.int64)[tensor]
        found.append(_Unplaced(of_forest, of_member, tensor, of_part, chunk, of_kind, batch, turn))
    return _Unplaced.join(found)


def _batch(kind: Kind, tensors: int, least_message: int) -> int:
    """How many tensors share a round: as many as messages need to be large, within half a round's share."""
    if kind.chunks > 1 or not kind.message:
        return 1
    most = min(tensors, ceil(least_message / kind.message))
    return max(1, min(most, int(BATCH / kind.largest))) if kind.largest else most

"""Kinds: what all units of one part of one member have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from reshard_planner.routing.forest import Forest
from reshard_planner.routing.problem import Problem
from reshard_planner.schedule.loads import ForestLoads, PortTable, mix
from reshard_planner.schedule.values import Floats, Ints, Timing, sum_by
from reshard_planner.transfer import Medium


@dataclass(frozen=True, slots=True)
class Peers:
    """Who talks in one slot of a kind, over one medium.

    Attributes:
        slot: slots after the round.
        ranks: ranks that have peers, each once.
        counts: how many each has.
        pairs: a number that is equal for equal sets of pairs.
    """

    slot: int
    ranks: Ints
    counts: Ints
    pairs: int


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """What the units of one part of one member load.

    Attributes:
        slot: slots after the round, per load.
        port: watched port, counted over these, per load; no two loads agree in slot and port.
        load: shares of a round, for one tensor whole.
        largest: the largest share of a round that any port is loaded by, watched or not.
        whole: sum of the loads of the same port over all slots, per load.
        chunks: chunks that the part is cut in.
        message: average bytes of a message of one tensor whole; 0 if there is none.
        peers: whom its ranks talk to; empty where nobody asked.
    """

    slot: Ints
    port: Ints
    load: Floats
    largest: float
    whole: Floats
    chunks: int
    message: float
    peers: tuple[Peers, ...]


def find_kinds(
    problem: Problem,
    forest: Forest,
    loads: ForestLoads,
    timing: Timing,
    table: PortTable,
    factor: Floats,
    watched: Ints,
    *,
    with_peers: bool,
) -> Iterator[Kind]:
    """The kinds of a forest: members one after another, and within them parts.

    Args:
        problem: what is compiled.
        forest: a routed group.
        loads: its loads.
        timing: its parts and chunks.
        table: numbering of ports.
        factor: turns the load of each port into shares of a round.
        watched: number of each port among those that are watched, -1 for all others.
        with_peers: whether to find out who talks to whom.
    """
    lag = problem.spec.options.lag
    parts = len(timing.n_chunks)
    part_of_tree = np.zeros(len(loads.nbytes), dtype=np.int64)
    part_of_tree[loads.root] = timing.part
    depths = int(loads.row_depth.max(initial=0)) + 1
    key = (part_of_tree[loads.tree] * depths + loads.depth) * table.count + loads.port
    keys, where = np.unique(key, return_inverse=True)
    sums = sum_by(where.reshape(-1), loads.load, len(keys))
    port, above = keys % table.count, keys // table.count
    _, same = np.unique(keys // (depths * table.count) * table.count + port, return_inverse=True)
    whole = sum_by(same.reshape(-1), sums, 0)[same.reshape(-1)]
    slot, of_part = above % depths * lag, above // depths
    first = np.searchsorted(of_part, np.arange(parts + 1))
    talk = _Talk(loads, part_of_tree, parts, depths, len(table.number[0]))
    messages = talk.message_nbytes()
    largest = np.zeros(parts)
    np.maximum.at(largest, of_part, whole * factor[port])
    for member in forest.members:
        renamed = loads.rename(table, port, member.ranks)
        numbers, share = watched[renamed], sums * factor[renamed]
        for part in range(parts):
            at = np.arange(first[part], first[part + 1])
            at = at[numbers[at] >= 0]
            yield Kind(
                slot[at],
                numbers[at],
                share[at],
                float(largest[part]),
                whole[at] * factor[renamed[at]],
                int(timing.n_chunks[part]),
                float(messages[part]),
                talk.peers(part, member.ranks, lag) if with_peers else (),
            )


def merge_alike(
    kinds: Sequence[Kind], staged: NDArray[np.bool_], ranks: int
) -> tuple[list[Kind], NDArray[np.bool_], int]:
    """Keep one of the ports that every kind loads alike, and one of the ranks with alike peers.

    Args:
        kinds: all kinds of a plan.
        staged: whether each watched port is a buffer of staging.
        ranks: number of ranks.

    Returns the kinds with ports and ranks numbered anew, which of the ports are staging, and the number of
    ranks.
    """
    seeds = mix(np.arange(2 * len(kinds) + 2, dtype=np.int64)) / 2.0**63
    by_port, by_rank = np.zeros(len(staged)), np.zeros(ranks)
    for kind, first, second in zip(kinds, seeds[::2], seeds[1::2], strict=False):
        by_port += sum_by(kind.port, (first + kind.slot) * first * kind.load, len(staged))
        for peers in kind.peers:
            by_rank[peers.ranks] += (second + peers.slot) * second * peers.counts
    port_number, _ = _alike(by_port + staged)
    rank_number, ranks = _alike(by_rank)
    merged = []
    for kind in kinds:
        number = port_number[kind.port]
        at = np.flatnonzero(number >= 0)
        kept = []
        for talk in kind.peers:
            who = rank_number[talk.ranks]
            kept.append(replace(talk, ranks=who[who >= 0], counts=talk.counts[who >= 0]))
        merged.append(
            replace(
                kind,
                slot=kind.slot[at],
                port=number[at],
                load=kind.load[at],
                whole=kind.whole[at],
                peers=tuple(kept),
            )
        )
    return merged, staged[port_number >= 0], ranks


def _alike(values: Floats) -> tuple[Ints, int]:
    """Number of each element that is the first of its value, -1 for all others; and how many there are."""
    _, first = np.unique(values, return_index=True)
    number = np.full(len(values), -1, dtype=np.int64)
    number[np.sort(first)] = np.arange(len(first))
    return number, len(first)


class _Talk:
    """Pairs of ranks that talk, per part, depth and medium of a forest."""

    def __init__(self, loads: ForestLoads, part_of_tree: Ints, parts: int, depths: int, ranks: int) -> None:
        self.loads = loads
        self.part = part_of_tree[loads.row_tree]
        self.depths = depths
        self.parts = parts
        self.ranks = ranks
        over_nvlink: NDArray[np.bool_] = loads.row_medium == Medium.NVLINK
        low = np.minimum(loads.row_src, loads.row_dst)
        high = np.maximum(loads.row_src, loads.row_dst)
        stage = (self.part * depths + loads.row_depth) * 2 + over_nvlink
        keys = np.unique((stage * ranks + low) * ranks + high)
        self.low, self.high = keys // ranks % ranks, keys % ranks
        stages = keys // (ranks * ranks)
        self.first = np.searchsorted(stages, np.arange(parts * depths * 2 + 1))

    def message_nbytes(self) -> Floats:
        """Per part, the average bytes that one rank sends another in one slot."""
        loads = self.loads
        nbytes = sum_by(self.part, loads.nbytes[loads.row_tree], self.parts)
        pairs = np.diff(self.first).reshape(self.parts, -1).sum(axis=1)
        average: Floats = nbytes / np.maximum(1, pairs)
        return average

    def peers(self, part: int, renamed: Ints | None, lag: int) -> tuple[Peers, ...]:
        """The peers of one part in a member."""
        found = []
        for depth in range(self.depths):
            for medium in range(2):
                stage = (part * self.depths + depth) * 2 + medium
                at = slice(self.first[stage], self.first[stage + 1])
                ends = np.stack((self.low[at], self.high[at]))
                if not ends.size:
                    continue
                ends = ends if renamed is None else renamed[ends]
                ranks, counts = np.unique(ends, return_counts=True)
                pairs = int(mix(ends.min(axis=0) * self.ranks + ends.max(axis=0)).sum())
                found.append(Peers(depth * lag, ranks, counts, pairs))
        return tuple(found)

"""Classes of one geometry as columns, in kinds of equal shape, so that many are routed at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, groupby

import numpy as np
from numpy.typing import NDArray

from reshard_planner.atoms import Ranks
from reshard_planner.demand import Demand, group_by_domain
from reshard_planner.routing.sets import Sets
from reshard_planner.topology import Ports

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Domains in need that follow one another and lie in one pod.

    Attributes:
        start: the first of them, by position.
        stop: one past the last.
        holders: holders in the pod, shape (classes, holders).
    """

    start: int
    stop: int
    holders: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """Classes whose numbers of holders, domains in need and needers per domain agree.

    Attributes:
        classes: position in the geometry of each class, shape (classes,).
        holder_set: number of the set of holders, shape (classes,).
        needer_set: number of the set of needers, likewise.
        holders: holders that have a NIC, or all holders if none has, shape (classes, holders).
        neighbours: needers in domains of holders that have a NIC and are no holders, shape (classes, ranks).
        neighbour_rows: position of each neighbour in ``rest``, counted through all its domains, likewise.
        receivers: per domain in need, positions among ``needers`` of those that have a NIC, or
            of all if none has, shape (classes, receivers).
        needers: per domain in need, shape (classes, needers).
        seeds: per domain that holds and lacks the class, its holders, shape (classes, holders).
        rest: per such domain, its needers that are no holders, shape (classes, needers).
        kept: holders that need the class themselves, shape (classes, ranks).
        runs: the domains in need of each pod; those in no pod are in none.
    """

    classes: Ints
    holder_set: Ints
    needer_set: Ints
    holders: Ints
    neighbours: Ints
    neighbour_rows: Ints
    receivers: tuple[Ints, ...]
    needers: tuple[Ints, ...]
    seeds: tuple[Ints, ...]
    rest: tuple[Ints, ...]
    kept: Ints
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class _Ends:
    """Where one class comes from and goes to: fields of :class:`Kind`, for one class."""

    single: tuple[Ranks, ...]  # holders, neighbours, neighbour_rows, kept
    several: tuple[tuple[Ranks, ...], ...]  # receivers, needers, seeds, rest
    runs: tuple[tuple[int, int, Ranks], ...]

    @property
    def shape(self) -> tuple[object, ...]:
        """What classes of one kind agree in."""
        return (
            tuple(map(len, self.single)),
            tuple(tuple(map(len, column)) for column in self.several),
            tuple((start, stop, len(holders)) for start, stop, holders in self.runs),
        )


def find_kinds(demands: Sequence[Demand], ports: Ports, sets: Sets) -> tuple[Kind, ...]:
    """Sort the classes of one geometry into kinds, in order of first appearance."""
    domain_of, nic_group, pod_of = ports.domain.tolist(), ports.nic_group.tolist(), ports.pod.tolist()
    grouped = cache(lambda ranks: group_by_domain(ranks, domain_of))
    known: dict[tuple[Ranks, Ranks], _Ends] = {}
    by_shape: dict[tuple[object, ...], list[tuple[int, _Ends]]] = {}
    for position, demand in enumerate(demands):
        key = (demand.holders, demand.needers)
        if key not in known:
            known[key] = _find_ends(demand, grouped, nic_group, pod_of)
        by_shape.setdefault(known[key].shape, []).append((position, known[key]))
    kinds = []
    for members in by_shape.values():
        positions = [position for position, _ in members]
        ends = [end for _, end in members]
        holders, neighbours, neighbour_rows, kept = _matrices([end.single for end in ends])
        receivers, needers, seeds, rest = (
            _matrices([end.several[column] for end in ends]) for column in range(4)
        )
        kinds.append(
            Kind(
                classes=np.array(positions, dtype=np.int64),
                holder_set=np.array([sets.number(demands[p].holders) for p in positions], dtype=np.int64),
                needer_set=np.array([sets.number(demands[p].needers) for p in positions], dtype=np.int64),
                holders=holders,
                neighbours=neighbours,
                neighbour_rows=neighbour_rows,
                receivers=receivers,
                needers=needers,
                seeds=seeds,
                rest=rest,
                kept=kept,
                runs=tuple(
                    Run(start, stop, _matrix([end.runs[number][2] for end in ends]))
                    for number, (start, stop, _) in enumerate(ends[0].runs)
                ),
            )
        )
    return tuple(kinds)


def _find_ends(
    demand: Demand, grouped: Callable[[Ranks], dict[int, Ranks]], nic_group: list[int], pod_of: list[int]
) -> _Ends:
    held = set(demand.holders)
    needing = grouped(demand.needers)
    crossing = sorted(
        (needing[domain] for domain in demand.needing_domains), key=lambda ranks: pod_of[ranks[0]]
    )
    holders = _with_nic(demand.holders, nic_group) if crossing else demand.holders
    receivers = tuple(
        tuple(at for at, rank in enumerate(ranks) if nic_group[rank] >= 0) or tuple(range(len(ranks)))
        for ranks in crossing
    )
    seeds, rest = [], []
    for domain, ranks in grouped(demand.holders).items():
        lacking = tuple(rank for rank in needing.get(domain, ()) if rank not in held)
        if lacking:
            seeds.append(ranks)
            rest.append(lacking)
    kept = tuple(rank for rank in demand.needers if rank in held)
    near = [(rank, row) for row, rank in enumerate(chain.from_iterable(rest)) if nic_group[rank] >= 0]
    neighbours, rows = tuple(rank for rank, _ in near), tuple(row for _, row in near)
    runs = _find_runs([pod_of[ranks[0]] for ranks in crossing], holders, pod_of)
    return _Ends(
        (holders, neighbours, rows, kept), (receivers, tuple(crossing), tuple(seeds), tuple(rest)), runs
    )


def _find_runs(pods: Sequence[int], holders: Ranks, pod_of: list[int]) -> tuple[tuple[int, int, Ranks], ...]:
    """Per pod, its first domain, one past its last, and its holders."""
    runs = []
    for pod, members in groupby(range(len(pods)), key=pods.__getitem__):
        if pod >= 0:
            positions = list(members)
            inside = tuple(rank for rank in holders if pod_of[rank] == pod)
            runs.append((positions[0], positions[-1] + 1, inside))
    return tuple(runs)


def _with_nic(ranks: Ranks, nic_group: list[int]) -> Ranks:
    """Those of the ranks that have a NIC; all of them if none has, so that neighbours lend theirs."""
    return tuple(rank for rank in ranks if nic_group[rank] >= 0) or ranks


def _matrix(rows: Sequence[Ranks]) -> Ints:
    return np.array(rows, dtype=np.int64).reshape(len(rows), -1)


def _matrices(rows: Sequence[tuple[Ranks, ...]]) -> tuple[Ints, ...]:
    return tuple(_matrix(column) for column in zip(*rows, strict=True))

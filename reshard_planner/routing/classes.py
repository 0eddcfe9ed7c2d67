"""Classes of one geometry as columns, in kinds of equal shape, so that many are routed at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, groupby

import numpy as np
from numpy.typing import NDArray

from reshard_planner.atoms import Ranks
from reshard_planner.demand import Demand
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
    """Where one class comes from and goes to; fields as in :class:`Kind`."""

    holders: Ranks
    neighbours: Ranks
    neighbour_rows: Ranks
    receivers: tuple[Ranks, ...]
    needers: tuple[Ranks, ...]
    seeds: tuple[Ranks, ...]
    rest: tuple[Ranks, ...]
    kept: Ranks
    runs: tuple[tuple[int, int, Ranks], ...]

    @property
    def shape(self) -> tuple[object, ...]:
        """What classes of one kind agree in."""
        return (
            len(self.holders),
            len(self.neighbours),
            tuple(map(len, self.receivers)),
            tuple(map(len, self.needers)),
            tuple(map(len, self.seeds)),
            tuple(map(len, self.rest)),
            len(self.kept),
            tuple((start, stop, len(holders)) for start, stop, holders in self.runs),
        )


def find_kinds(demands: Sequence[Demand], ports: Ports, sets: Sets) -> tuple[Kind, ...]:
    """Sort the classes of one geometry into kinds, in order of first appearance."""
    domain_of, nic_group, pod_of = ports.domain.tolist(), ports.nic_group.tolist(), ports.pod.tolist()
    known: dict[tuple[Ranks, Ranks], _Ends] = {}
    by_shape: dict[tuple[object, ...], list[tuple[int, _Ends]]] = {}
    for position, demand in enumerate(demands):
        key = (demand.holders, demand.needers)
        if key not in known:
            known[key] = _find_ends(demand, domain_of, nic_group, pod_of)
        by_shape.setdefault(known[key].shape, []).append((position, known[key]))
    kinds = []
    for members in by_shape.values():
        positions = [position for position, _ in members]
        ends = [end for _, end in members]
        kinds.append(
            Kind(
                np.array(positions, dtype=np.int64),
                np.array([sets.number(demands[p].holders) for p in positions], dtype=np.int64),
                np.array([sets.number(demands[p].needers) for p in positions], dtype=np.int64),
                _matrix([end.holders for end in ends]),
                _matrix([end.neighbours for end in ends]),
                _matrix([end.neighbour_rows for end in ends]),
                _matrices([end.receivers for end in ends]),
                _matrices([end.needers for end in ends]),
                _matrices([end.seeds for end in ends]),
                _matrices([end.rest for end in ends]),
                _matrix([end.kept for end in ends]),
                tuple(
                    Run(start, stop, _matrix([end.runs[number][2] for end in ends]))
                    for number, (start, stop, _) in enumerate(ends[0].runs)
                ),
            )
        )
    return tuple(kinds)


def _find_ends(demand: Demand, domain_of: list[int], nic_group: list[int], pod_of: list[int]) -> _Ends:
    held = set(demand.holders)
    homes = {
        home: tuple(ranks)
        for home, ranks in groupby(
            sorted(demand.needers, key=domain_of.__getitem__), key=domain_of.__getitem__
        )
    }
    crossing = sorted((homes[home] for home in demand.needing_domains), key=lambda ranks: pod_of[ranks[0]])
    holders = _with_nic(demand.holders, nic_group) if crossing else demand.holders
    receivers = tuple(
        tuple(at for at, rank in enumerate(ranks) if nic_group[rank] >= 0) or tuple(range(len(ranks)))
        for ranks in crossing
    )
    seeds, rest = [], []
    needing = set(demand.needing_domains)
    for home, ranks in homes.items():
        lacking = tuple(rank for rank in ranks if rank not in held)
        if home not in needing and lacking:
            seeds.append(tuple(rank for rank in demand.holders if domain_of[rank] == home))
            rest.append(lacking)
    kept = tuple(rank for rank in demand.needers if rank in held)
    near = [(rank, row) for row, rank in enumerate(chain.from_iterable(rest)) if nic_group[rank] >= 0]
    neighbours, rows = tuple(rank for rank, _ in near), tuple(row for _, row in near)
    runs = _find_runs([pod_of[ranks[0]] for ranks in crossing], holders, pod_of)
    return _Ends(holders, neighbours, rows, receivers, tuple(crossing), tuple(seeds), tuple(rest), kept, runs)


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

"""Single mutations of a plan's tables, and plans sealed anew around them.

A mutated plan gets a certificate and digest that fit its tables where they can still be computed, so that
only the check that the mutation offends can catch it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

import reshard_planner as rp
from reshard_planner.bounds import compute_bound
from reshard_planner.demand import find_demands, find_geometries
from reshard_planner.ir.certificate import certify
from reshard_planner.ir.tables import Pieces, Routes, Schedule, Tables
from reshard_planner.topology import Ports


def reseal(plan: rp.Plan, tables: Tables) -> rp.Plan:
    """The plan with other tables, and certificate and digest to match; the old certificate if none can be."""
    spec = plan.spec
    ports = Ports.of(spec.topology, spec.ranks)
    demands = find_demands(find_geometries(spec, ports), ports)
    try:
        certificate = certify(spec, tables, demands, ports, compute_bound(demands, ports, spec.ranks))
    except (IndexError, ValueError):
        certificate = plan.certificate
    return rp.Plan.seal(spec, tables, certificate)


def with_routes(plan: rp.Plan, **columns: Any) -> rp.Plan:
    """The plan with some columns of its routes replaced."""
    return reseal(plan, replace(plan.tables, routes=Routes.of({**plan.routes.columns(), **columns})))


def with_pieces(plan: rp.Plan, **columns: Any) -> rp.Plan:
    """The plan with some columns of its pieces replaced."""
    return reseal(plan, replace(plan.tables, pieces=Pieces.of({**plan.pieces.columns(), **columns})))


def with_schedule(plan: rp.Plan, **columns: Any) -> rp.Plan:
    """The plan with some columns of its schedule replaced."""
    return reseal(plan, replace(plan.tables, schedule=Schedule.of({**plan.schedule.columns(), **columns})))


def changed(column: np.ndarray, row: int, value: int) -> np.ndarray:
    """A copy of a column with one value changed."""
    copy = column.copy()
    copy[row] = value
    return copy


def take(columns: Mapping[str, np.ndarray], rows: np.ndarray) -> dict[str, np.ndarray]:
    """The same rows of all columns."""
    return {name: column[rows] for name, column in columns.items()}


def drop_route(plan: rp.Plan, row: int) -> rp.Plan:
    """Without one row; its children then read their source's own tile."""
    parent = plan.routes.parent.copy()
    parent[parent == row] = -1
    parent[parent > row] -= 1
    kept = np.flatnonzero(np.arange(len(plan.routes)) != row)
    return with_routes(plan, **take({**plan.routes.columns(), "parent": parent}, kept))


def duplicate_route(plan: rp.Plan, row: int) -> rp.Plan:
    """With one row given twice, one after the other."""
    parent = plan.routes.parent.copy()
    parent[parent > row] += 1
    rows = np.sort(np.append(np.arange(len(plan.routes)), row))
    return with_routes(plan, **take({**plan.routes.columns(), "parent": parent}, rows))


def swap_routes(plan: rp.Plan, first: int, second: int) -> rp.Plan:
    """With two rows exchanged, and the references to them."""
    order = np.arange(len(plan.routes))
    order[[first, second]] = order[[second, first]]
    parent = plan.routes.parent.copy()
    known = parent >= 0
    parent[known] = order[parent[known]]
    return with_routes(plan, **take({**plan.routes.columns(), "parent": parent}, order))


def drop_unit(plan: rp.Plan, row: int) -> rp.Plan:
    """Without one unit."""
    kept = np.flatnonzero(np.arange(len(plan.schedule)) != row)
    return with_schedule(plan, **take(plan.schedule.columns(), kept))


def duplicate_unit(plan: rp.Plan, row: int) -> rp.Plan:
    """With one unit given twice."""
    rows = np.sort(np.append(np.arange(len(plan.schedule)), row))
    return with_schedule(plan, **take(plan.schedule.columns(), rows))

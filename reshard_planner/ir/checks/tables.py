"""Check ``tables``: every reference exists and every value is in range."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reshard_planner.errors import TableError
from reshard_planner.ir.checks.subject import Subject
from reshard_planner.ir.plan import VERSION
from reshard_planner.ir.tables import Table
from reshard_planner.spec.values import byte_step
from reshard_planner.transfer import Medium, Role

LARGEST = 2**30
"""Largest round, offset and chunk count accepted, so that slots stay within 32 bits."""


def check_tables(subject: Subject) -> None:
    """See the module's text.

    Raises:
        TableError: naming table, row, column and value.
    """
    if subject.plan.version != VERSION:
        raise TableError(f"version is {subject.plan.version}; expected {VERSION}")
    if subject.strategy is None:
        raise TableError(f"options.strategy is {subject.plan.spec.options.strategy!r}, which is unknown")
    for name, table in subject.plan.tables.named().items():
        if name != "groups":
            _check_lengths(name, table)
    _check_groups(subject)
    _check_pieces(subject)
    _check_routes(subject)
    _check_schedule(subject)


def _check_lengths(name: str, table: Table) -> None:
    lengths = {column: len(values) for column, values in table.columns().items()}
    if len(set(lengths.values())) > 1:
        raise TableError(f"{name}: columns have different lengths, {lengths}")


def check_range(name: str, column: str, values: NDArray[np.int64], low: int, high: int) -> None:
    """Refuse values outside ``low <= value < high``.

    Raises:
        TableError: naming the first such row.
    """
    bad = np.flatnonzero((values < low) | (values >= high))
    if len(bad):
        row = int(bad[0])
        raise TableError(f"{name}: row {row} has {column} {int(values[row])}; expected {low} to {high - 1}")


def _check_groups(subject: Subject) -> None:
    groups, spec = subject.plan.groups, subject.plan.spec
    if len(groups.group_of) != len(spec.tensors):
        raise TableError(
            f"groups: {len(groups.group_of)} tensors are listed; the spec has {len(spec.tensors)}"
        )
    check_range("groups", "group_of", groups.group_of, 0, groups.count)
    check_range("groups", "routes_of", groups.routes_of, 0, groups.count)
    if (groups.routes_of[groups.routes_of] != groups.routes_of).any():
        raise TableError("groups: a group uses the routes of a group that uses another's; expected its own")
    if not len(groups.subst_group) == len(groups.subst_from) == len(groups.subst_to):
        raise TableError("groups: the substitution columns have different lengths")
    check_range("groups", "subst_group", groups.subst_group, 0, groups.count)
    size = max(subject.plan.ranks, default=-1) + 1
    check_range("groups", "subst_from", groups.subst_from, 0, size)
    check_range("groups", "subst_to", groups.subst_to, 0, size)
    for column in (groups.subst_from, groups.subst_to):
        keys = groups.subst_group.astype(np.int64) * size + column
        if len(np.unique(keys)) != len(keys):
            raise TableError("groups: a substitution names a rank twice")
    samples = subject.samples
    for group, tensor in samples.items():
        owner = int(groups.routes_of[group])
        lent = samples.get(owner)
        if lent is None or (lent.shape, lent.bits) != (tensor.shape, tensor.bits):
            raise TableError(
                f"groups: group {group} uses the routes of group {owner}, whose tensors differ in shape or"
                " element size; expected equal ones"
            )
    for tensor, group in zip(spec.tensors, groups.group_of.tolist(), strict=True):
        known = samples[group]
        if tensor.geometry != known.geometry:
            raise TableError(
                f"groups: tensors {known.name!r} and {tensor.name!r} of group {group} differ in geometry"
            )


def _check_pieces(subject: Subject) -> None:
    pieces, groups = subject.plan.pieces, subject.plan.groups
    check_range("pieces", "group", pieces.group, 0, groups.count)
    check_range("pieces", "part", pieces.part, 0, LARGEST)
    dims = max((len(tensor.shape) for tensor in subject.plan.spec.tensors), default=0)
    if len(pieces) and (pieces.lo.shape != pieces.hi.shape or pieces.lo.shape[1:] > (dims,)):
        raise TableError(
            f"pieces: boxes have {pieces.lo.shape[1:]} dims; the spec's tensors have at most {dims}"
        )
    for group in np.unique(pieces.group).tolist():
        if groups.routes_of[group] != group or group not in subject.samples:
            raise TableError(
                f"pieces: group {group} has pieces but no tensors, or uses another group's routes"
            )
        rows = np.flatnonzero(pieces.group == group)
        tensor = subject.samples[group]
        ndim = len(tensor.shape)
        lo, hi = pieces.lo[rows], pieces.hi[rows]
        if lo.shape[1] < ndim:
            raise TableError(f"pieces: boxes have {lo.shape[1]} dims; tensor {tensor.name!r} has {ndim}")
        inside = (lo[:, :ndim] >= 0).all(1) & (hi[:, :ndim] <= np.array(tensor.shape, dtype=np.int64)).all(1)
        inside &= (lo[:, :ndim] < hi[:, :ndim]).all(1)
        inside &= (lo[:, ndim:] == 0).all(1) & (hi[:, ndim:] == 1).all(1)
        step = byte_step(tensor.bits)
        if step > 1 and ndim:
            inside &= (lo[:, ndim - 1] % step == 0) & (hi[:, ndim - 1] % step == 0)
        if not inside.all():
            row = int(rows[np.flatnonzero(~inside)[0]])
            box = f"{pieces.lo[row].tolist()} to {pieces.hi[row].tolist()}"
            raise TableError(
                f"pieces: row {row} has the box {box}; expected a non-empty box of whole bytes within"
                f" {list(tensor.shape)}"
            )
        check_range("pieces", "cut_dim", pieces.cut_dim[rows], 0 if ndim else -1, ndim)


def _check_routes(subject: Subject) -> None:
    routes, pieces = subject.plan.routes, subject.plan.pieces
    check_range("routes", "piece", routes.piece, 0, len(pieces))
    check_range("routes", "parent", routes.parent, -1, len(routes))
    check_range("routes", "medium", routes.medium, 0, len(Medium))
    check_range("routes", "role", routes.role, 0, len(Role))
    check_range("routes", "scratch", routes.scratch, 0, 2)
    check_range("routes", "offset", routes.offset, 0, LARGEST)
    ranks = np.array(subject.plan.ranks, dtype=np.int64)
    for name, column in (("src", routes.src), ("dst", routes.dst)):
        bad = np.flatnonzero(~np.isin(column, ranks))
        if len(bad):
            row = int(bad[0])
            raise TableError(f"routes: row {row} has {name} {int(column[row])}, which is no rank of the spec")
    bad = np.flatnonzero((routes.tile < 0) != (routes.scratch > 0))
    if len(bad):
        row = int(bad[0])
        raise TableError(
            f"routes: row {row} has tile {int(routes.tile[row])} and scratch {int(routes.scratch[row])};"
            " expected a tile, or scratch and -1"
        )


def _check_schedule(subject: Subject) -> None:
    schedule, groups = subject.plan.schedule, subject.plan.groups
    check_range("schedule", "group", schedule.group, 0, groups.count)
    check_range("schedule", "tensor", schedule.tensor, 0, len(subject.plan.spec.tensors))
    check_range("schedule", "part", schedule.part, 0, LARGEST)
    check_range("schedule", "n_chunks", schedule.n_chunks, 1, LARGEST)
    check_range("schedule", "chunk", schedule.chunk, 0, LARGEST)
    check_range("schedule", "round", schedule.round, 0, LARGEST)
    bad = np.flatnonzero(groups.group_of[schedule.tensor] != schedule.group)
    if len(bad):
        row = int(bad[0])
        raise TableError(
            f"schedule: row {row} has tensor {int(schedule.tensor[row])} in group {int(schedule.group[row])};"
            f" expected group {int(groups.group_of[schedule.tensor[row]])}"
        )
    bad = np.flatnonzero(schedule.chunk >= schedule.n_chunks)
    if len(bad):
        row = int(bad[0])
        raise TableError(
            f"schedule: row {row} has chunk {int(schedule.chunk[row])} of {int(schedule.n_chunks[row])}"
        )

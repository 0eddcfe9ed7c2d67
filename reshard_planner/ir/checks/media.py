"""Check ``media``: the medium and role of every row match the topology and the tree."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reshard_planner.errors import MediumError
from reshard_planner.ir.checks.subject import Subject
from reshard_planner.transfer import Medium, Role

ROLES = {
    Medium.LOCAL: (Role.COPY,),
    Medium.NVLINK: (Role.FANOUT, Role.HANDOFF),
    Medium.NETWORK: (Role.INJECT, Role.RELAY),
}
"""Roles that a row of each medium may have."""


def check_media(subject: Subject) -> None:
    """A row within a rank is local, within a domain NVLink, else network between GPUs that have NICs.

    Strategies that do not claim the least payload may use the network within a domain as well.

    Raises:
        MediumError: naming the row, what it says and what would be right.
    """
    for group in sorted(subject.samples):
        _check_rows(subject, group, subject.rows_of(group))


def _check_rows(subject: Subject, group: int, rows: NDArray[np.int64]) -> None:
    plan, ports = subject.plan, subject.ports
    routes = plan.routes
    src, dst = subject.rename(group, routes.src[rows]), subject.rename(group, routes.dst[rows])
    near = ports.domain[src] == ports.domain[dst]
    medium = routes.medium[rows]
    right = np.where(src == dst, Medium.LOCAL, np.where(near, Medium.NVLINK, Medium.NETWORK))
    wrong = right != medium
    if not subject.claims_least:
        wrong &= (src == dst) | (medium != Medium.NETWORK)
    bad = np.flatnonzero(wrong)
    if len(bad):
        at = int(bad[0])
        says, want = Medium(int(medium[at])).label, Medium(int(right[at])).label
        raise MediumError(
            f"routes: row {int(rows[at])} goes from rank {src[at]} to rank {dst[at]} over {says};"
            f" expected {want}"
        )
    without = (medium == Medium.NETWORK) & ((ports.nic_group[src] < 0) | (ports.nic_group[dst] < 0))
    if without.any():
        at = int(np.flatnonzero(without)[0])
        raise MediumError(
            f"routes: row {int(rows[at])} goes from rank {src[at]} to rank {dst[at]}, one of which has no NIC"
        )
    role = routes.role[rows]
    fits = np.zeros(len(rows), dtype=bool)
    for each, roles in ROLES.items():
        fits |= (medium == each) & np.isin(role, roles)
    root = routes.parent[rows] < 0
    fits &= ~((role == Role.RELAY) & root) & ~((role == Role.INJECT) & ~root)
    aside = (routes.scratch[rows] > 0) | (~root & (routes.scratch[np.maximum(routes.parent[rows], 0)] > 0))
    fits &= ~((role == Role.HANDOFF) & ~aside)
    if not fits.all():
        at = int(np.flatnonzero(~fits)[0])
        says = Role(int(role[at])).label
        raise MediumError(
            f"routes: row {int(rows[at])} has the role {says}, which does not go with"
            f" {Medium(int(medium[at])).label} and parent {int(routes.parent[rows[at]])}"
        )

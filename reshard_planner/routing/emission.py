"""Who emits how many copies of each class: holders, their neighbours, or relays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from reshard_planner.demand import Geometry, Member
from reshard_planner.routing.classes import Kind
from reshard_planner.routing.nics import NicPorts
from reshard_planner.routing.problem import Problem

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

SHARE_ROUNDING = 1e-6
"""Shares of a copy that count as none, as sums of shares are floating-point numbers."""


class Emitting(Protocol):
    """Classes of one geometry."""

    @property
    def geometry(self) -> Geometry:
        """The geometry."""

    @property
    def nbytes(self) -> Ints:
        """Bytes of each class in one tensor."""

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The classes, by kind."""


@dataclass(frozen=True, slots=True, eq=False)
class Emission:
    """Who emits the copies of a kind that holders and their neighbours emit.

    Attributes:
        share: copies beyond the first that they emit, as a share of all those, per class.
        neighbours: whether needers in domains of holders emit too, once NVLink has brought them the bytes.
        pods: where one copy enters each pod and is relayed there, the share of pods beyond the first that
            holders feed, per class; None to ignore pods.
    """

    share: Floats
    neighbours: bool
    pods: Floats | None = None

    def whole(self, kind: Kind) -> Emission:
        """The same, less what is no whole copy."""
        beyond = max(1, len(kind.receivers) - 1)
        return replace(self, share=np.floor(self.share * beyond + SHARE_ROUNDING) / beyond)


def plan_emission(problem: Problem, routables: Sequence[Emitting], time_s: float) -> list[list[Emission]]:
    """Let holders emit every copy where they have the time for it, else their neighbours too, else relays.

    What holders and neighbours have no time for, beyond the first copy, is left to relays.
    """
    kinds = [(routable, kind) for routable in routables for kind in routable.kinds]
    neighbours = [False] * len(kinds)
    nics = NicPorts(problem.ports)
    first, more = _emission_times(nics, kinds, neighbours)
    limit = time_s * (1 + SHARE_ROUNDING)
    late = first + more > limit
    for at, (routable, kind) in enumerate(kinds):
        if kind.receivers and kind.neighbours.shape[1]:
            neighbours[at] = any(
                bool(late[nics.of_rank[member.rename(kind.holders)]].any())
                for member in routable.geometry.members
            )
    if any(neighbours):
        first, more = _emission_times(nics, kinds, neighbours)
    share = _share_of_more(first, more, np.full(len(first), limit))
    found = iter(
        Emission(
            _least_share(share, nics.of_rank, emitters_of(kind, near), routable.geometry.members)
            if kind.receivers
            else np.ones(len(kind.classes)),
            near,
        )
        for (routable, kind), near in zip(kinds, neighbours, strict=True)
    )
    return [[next(found) for _ in routable.kinds] for routable in routables]


def _share_of_more(first: Floats, more: Floats, limit: Floats) -> Floats:
    """Per port, the share of further load that it has room for after the first load."""
    share = np.ones(len(first))
    tight = (first + more > limit) & (more > 0)
    share[tight] = np.clip((limit[tight] - first[tight]) / more[tight], 0, 1)
    return share


def _least_share(share: Floats, port_of: Ints, ranks: Ints, members: Sequence[Member]) -> Floats:
    """Per class, the least share of its ranks' ports, over all members; ``ranks`` is (classes, ranks)."""
    least = np.ones(len(ranks))
    for member in members:
        least = np.minimum(least, share[port_of[member.rename(ranks)]].min(axis=1, initial=1.0))
    return least


def emitters_of(kind: Kind, near: bool) -> Ints:  # noqa: FBT001 - a mode that its callers store
    return np.concatenate((kind.holders, kind.neighbours), axis=1) if near else kind.holders


def _emission_times(
    nics: NicPorts, kinds: Sequence[tuple[Emitting, Kind]], neighbours: Sequence[bool]
) -> tuple[Floats, Floats]:
    """Time per NIC port to emit the first copies, and to emit all others, in seconds."""
    count = len(nics.lent_bytes_per_s)
    first, more = np.zeros(count), np.zeros(count)
    for (routable, kind), near in zip(kinds, neighbours, strict=True):
        copies = len(kind.receivers)
        if not copies:
            continue
        emitters = emitters_of(kind, near)
        width = emitters.shape[1]
        each = np.repeat(routable.nbytes[kind.classes] / width, width)
        for member in routable.geometry.members:
            ports = nics.of_rank[member.rename(emitters).reshape(-1)]
            load = np.bincount(ports, weights=each * len(member.tensors), minlength=count)
            first += load
            more += load * (copies - 1)
    return first / nics.lent_bytes_per_s, more / nics.lent_bytes_per_s


def plan_pods(problem: Problem, routables: Sequence[Emitting], time_s: float) -> list[list[Floats]]:
    """Pods beyond the first that holders feed, as a share, per class, by routable and kind.

    What the uplinks of the holders' pods have no time for, pods pass on to one another.
    """
    ports = problem.ports
    count = len(ports.uplink_bytes_per_s)
    pod_of = np.where(ports.pod >= 0, ports.pod, count)  # the last one stands for domains in no pod
    first, more = np.zeros(count + 1), np.zeros(count + 1)
    kinds = [(routable, kind) for routable in routables for kind in routable.kinds]
    for routable, kind in kinds:
        entries = sum(not run.holders.shape[1] for run in kind.runs)
        if not entries:
            continue
        width = kind.holders.shape[1]
        each = np.repeat(routable.nbytes[kind.classes] / width, width)
        for member in routable.geometry.members:
            pods = pod_of[member.rename(kind.holders).reshape(-1)]
            load = np.bincount(pods, weights=each * len(member.tensors), minlength=count + 1)
            first += load
            more += load * (entries - 1)
    room = np.append(ports.uplink_bytes_per_s * time_s * (1 + SHARE_ROUNDING), np.inf)
    share = _share_of_more(first, more, room)
    found = iter(
        _least_share(share, pod_of, kind.holders, routable.geometry.members) for routable, kind in kinds
    )
    return [[next(found) for _ in routable.kinds] for routable in routables]

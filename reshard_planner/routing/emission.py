"""Who emits how many copies of each class: holders, their neighbours, or relays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from reshard_planner.demand import Geometry
from reshard_planner.routing.classes import Kind
from reshard_planner.routing.nics import NicPorts
from reshard_planner.routing.problem import Problem

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

ROUNDING = 1e-6
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
        return replace(self, share=np.floor(self.share * beyond + ROUNDING) / beyond)


def plan_emission(problem: Problem, routables: Sequence[Emitting], time_s: float) -> list[list[Emission]]:
    """Let holders emit every copy where they have the time for it, else their neighbours too, else relays.

    What holders and neighbours have no time for, beyond the first copy, is left to relays.
    """
    kinds = [(routable, kind) for routable in routables for kind in routable.kinds]
    neighbours = [False] * len(kinds)
    nics = NicPorts(problem.ports)
    first, more = _emission_times(nics, kinds, neighbours)
    limit = time_s * (1 + ROUNDING)
    for at, (_, kind) in enumerate(kinds):
        if kind.receivers and kind.neighbours.shape[1]:
            neighbours[at] = bool(((first + more)[nics.of_rank[kind.holders]] > limit).any())
    if any(neighbours):
        first, more = _emission_times(nics, kinds, neighbours)
    share = np.ones(len(first))
    tight = (first + more > limit) & (more > 0)
    share[tight] = np.clip((limit - first[tight]) / more[tight], 0, 1)
    found = iter(
        Emission(
            share[nics.of_rank[emitters_of(kind, near)]].min(axis=1)
            if kind.receivers
            else np.ones(len(kind.classes)),
            near,
        )
        for (_, kind), near in zip(kinds, neighbours, strict=True)
    )
    return [[next(found) for _ in routable.kinds] for routable in routables]


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
            ranks = emitters if member.ranks is None else member.ranks[emitters]
            weights = each * len(member.tensors)
            load = np.bincount(nics.of_rank[ranks.reshape(-1)], weights=weights, minlength=count)
            first += load
            more += load * (copies - 1)
    return first / nics.lent_bytes_per_s, more / nics.lent_bytes_per_s


def plan_pods(problem: Problem, routables: Sequence[Emitting], time_s: float) -> list[list[Floats]]:
    """Pods beyond the first that holders feed, as a share, per class, by routable and kind.

    What the uplinks of the holders' pods have no time for, pods pass on to one another.
    """
    ports = problem.ports
    count = len(ports.uplink_bytes_per_s)
    first, more = np.zeros(count + 1), np.zeros(count + 1)  # the last one stands for domains in no pod
    homes: list[Ints] = []
    for routable in routables:
        for kind in routable.kinds:
            pods = np.where(ports.pod[kind.holders] >= 0, ports.pod[kind.holders], count)
            homes.append(pods)
            entries = sum(not run.holders.shape[1] for run in kind.runs)
            if not entries:
                continue
            each = np.repeat(routable.nbytes[kind.classes] / pods.shape[1], pods.shape[1])
            load = np.bincount(pods.reshape(-1), weights=each, minlength=count + 1)
            load *= sum(len(member.tensors) for member in routable.geometry.members)
            first += load
            more += load * (entries - 1)
    room = np.append(ports.uplink_bytes_per_s * time_s * (1 + ROUNDING), np.inf)
    share = np.ones(count + 1)
    tight = (first + more > room) & (more > 0)
    share[tight] = np.clip((room[tight] - first[tight]) / more[tight], 0, 1)
    found = iter(share[pods].min(axis=1) if pods.size else np.ones(len(pods)) for pods in homes)
    return [[next(found) for _ in routable.kinds] for routable in routables]

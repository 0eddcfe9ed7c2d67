"""Runs of several phases, one after another, as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from reshard_planner.simulate.values import Intervals, PortUse, Prediction, SlotTimes

Ints = NDArray[np.int64]

Columns = TypeVar("Columns", Intervals, SlotTimes)


def joined(phases: Sequence[tuple[Prediction, Ints]], port_names: Sequence[str], ranks: int) -> Prediction:
    """One run of several phases.

    Args:
        phases: how each runs, as if alone, and the slots of the plan that its own stand for, by their number.
        port_names: names of all ports, in order.
        ranks: number of ranks.
    """
    now = 0.0
    end_s = np.zeros(ranks)
    ends: list[float] = []
    used: dict[str, PortUse] = {}
    messages: list[Intervals] = []
    slots: list[SlotTimes] = []
    for phase, names in phases:
        active = phase.end_s > 0
        end_s[active] = now + phase.end_s[active]
        messages.append(_later(phase.intervals, now, names))
        slots.append(_later(phase.slots, now, names))
        for use in phase.ports:
            before = used[use.resource].nbytes if use.resource in used else 0
            used[use.resource] = replace(use, nbytes=before + use.nbytes)
        now += phase.elapsed_s
        ends.append(now)
    ports = tuple(
        replace(used[name], utilisation=used[name].nbytes / used[name].bytes_per_s / now)
        for name in port_names
        if name in used
    )
    return Prediction(
        now, end_s, ports, _stacked(Intervals, messages), _stacked(SlotTimes, slots), tuple(ends)
    )


def _later(columns: Columns, now: float, names: Ints) -> Columns:
    """The same some time later, in slots of the plan."""
    times = {
        column.name: getattr(columns, column.name) + now
        for column in fields(columns)
        if column.name.endswith("_s")
    }
    return replace(columns, slot=names[columns.slot], **times)


def _stacked(kind: type[Columns], parts: Sequence[Columns]) -> Columns:
    """The rows of several parts, one after another."""
    columns: dict[str, NDArray[Any]] = {}
    for column in fields(cast(Any, kind)):
        name: str = column.name
        none = np.zeros(0, np.float64 if name.endswith("_s") else np.int64)
        columns[name] = np.concatenate([none, *(getattr(part, name) for part in parts)])
    return kind(**columns)

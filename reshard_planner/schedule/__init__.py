"""Scheduling: parts, chunks, rounds and offsets of routed forests."""

from reshard_planner.schedule.cutting import count_ops, equal_cuts, time_forests, wanted_pace
from reshard_planner.schedule.loads import Workload, measure
from reshard_planner.schedule.placing import assign_rounds
from reshard_planner.schedule.values import Pace, Timing, Units

__all__ = [
    "Pace",
    "Timing",
    "Units",
    "Workload",
    "assign_rounds",
    "count_ops",
    "equal_cuts",
    "measure",
    "time_forests",
    "wanted_pace",
]

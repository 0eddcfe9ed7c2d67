"""Predictions: how long a run of a plan takes, and what it costs on a measured cluster."""

from reshard_planner.simulate.costs import Costs, LinkCosts, with_link_costs
from reshard_planner.simulate.emulated import EMULATED_COSTS
from reshard_planner.simulate.events import count_events, timeline_of
from reshard_planner.simulate.fit import Fit, Measurement, fit_costs
from reshard_planner.simulate.phases import Phase, phases_by_pattern, phases_by_strategy, plan_phases
from reshard_planner.simulate.predict import predict, predict_phases, predict_workload
from reshard_planner.simulate.values import Intervals, PortUse, Prediction, SlotTimes, Spent
from reshard_planner.simulate.workload import Messages, RankSlots, Workload

__all__ = [
    "EMULATED_COSTS",
    "Costs",
    "Fit",
    "Intervals",
    "LinkCosts",
    "Measurement",
    "Messages",
    "Phase",
    "PortUse",
    "Prediction",
    "RankSlots",
    "SlotTimes",
    "Spent",
    "Workload",
    "count_events",
    "fit_costs",
    "phases_by_pattern",
    "phases_by_strategy",
    "plan_phases",
    "predict",
    "predict_phases",
    "predict_workload",
    "timeline_of",
    "with_link_costs",
]

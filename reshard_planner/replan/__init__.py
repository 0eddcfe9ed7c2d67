"""Planning again without ranks that are gone: what stays, what is impossible, what is incomplete."""

from reshard_planner.replan.changes import Changes, compare_plans
from reshard_planner.replan.impossible import Impossible
from reshard_planner.replan.remainder import Incomplete, Remainder, find_remainder
from reshard_planner.replan.replanning import Replan, replan

__all__ = [
    "Changes",
    "Impossible",
    "Incomplete",
    "Remainder",
    "Replan",
    "compare_plans",
    "find_remainder",
    "replan",
]

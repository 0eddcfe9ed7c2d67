"""The least time of any plan of least payload: T*, T0, and the cuts that prove them.

Every bound is a *cut*: bytes that must pass a set of ports, over the rate of those ports. A cut is a proof
on its own; :func:`evaluate` sums it from the demands. Solvers only propose cuts. Times are exact fractions
of seconds at datasheet rates. Formulas: docs/mathematics.md.
"""

from reshard_planner.bounds.closed import largest_closed_cut, restricted_time
from reshard_planner.bounds.cut import CUT_KINDS, NO_CUT, RESOURCES, Cut, CutKind, Weights
from reshard_planner.bounds.least import Bound, compute_bound
from reshard_planner.bounds.needs import JointClass, Needs
from reshard_planner.bounds.sums import evaluate

__all__ = [
    "CUT_KINDS",
    "NO_CUT",
    "RESOURCES",
    "Bound",
    "Cut",
    "CutKind",
    "JointClass",
    "Needs",
    "Weights",
    "compute_bound",
    "evaluate",
    "largest_closed_cut",
    "restricted_time",
]

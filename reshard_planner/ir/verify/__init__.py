"""Checking a plan."""

from reshard_planner.ir.plan import Plan


def verify(plan: Plan) -> None:
    """Check a plan."""

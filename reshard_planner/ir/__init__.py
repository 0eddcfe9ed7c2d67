"""The IR: plans, their forms and programs, the check of a plan, and the interpreter."""

from reshard_planner.ir.certificate import Certificate
from reshard_planner.ir.checks import verify
from reshard_planner.ir.interpret import interpret
from reshard_planner.ir.plan import Plan
from reshard_planner.ir.program import Program

__all__ = ["Certificate", "Plan", "Program", "interpret", "verify"]

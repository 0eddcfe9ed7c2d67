"""The command line."""

from reshard_planner.cli.main import main

__all__ = ["main"]

"""Limits of time: strategies that take longer are given up between their stages."""

from __future__ import annotations

import time

from reshard_planner.cli.output import terminal_progress
from reshard_planner.errors import UnsupportedError


class TimeLimit:
    """Progress of one strategy, that refuses to go on when it has taken its time.

    Args:
        name: of the strategy.
        limit_s: seconds that it may take.

    Attributes:
        stopped: whether it has refused.
    """

    def __init__(self, name: str, limit_s: float) -> None:
        self.name, self.limit_s = name, limit_s
        self.show, self.end = terminal_progress(), time.monotonic() + limit_s
        self.stopped = False

    def __call__(self, stage: str) -> None:
        """Show a stage as it begins.

        Raises:
            UnsupportedError: if the time is over.
        """
        if time.monotonic() > self.end:
            self.stopped = True
            raise UnsupportedError(f"it takes more than {self.limit_s:g} s")
        self.show(f"{self.name}: {stage}")

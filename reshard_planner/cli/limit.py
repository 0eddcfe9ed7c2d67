"""Limits of time: strategies that take longer are given up between their stages."""

from __future__ import annotations

import argparse
import time

from reshard_planner.cli.output import terminal_progress
from reshard_planner.errors import InputError, UnsupportedError


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


def add_limit(parser: argparse.ArgumentParser, what: str, default_s: float) -> None:
    """Declare ``--limit``.

    Args:
        parser: of the verb.
        what: what is given up after so many seconds.
        default_s: how many, by default.
    """
    parser.add_argument(
        "--limit",
        metavar="S",
        type=float,
        default=default_s,
        help=f"give {what} up after this many seconds; looked at between stages (default {default_s:.0f})",
    )


def read_limit(arguments: argparse.Namespace) -> float:
    """The seconds that ``--limit`` gives.

    Raises:
        InputError: if that is no number above 0.
    """
    limit_s: float = arguments.limit
    if not limit_s > 0:
        raise InputError(f"--limit is {limit_s}; expected a number of seconds above 0")
    return limit_s

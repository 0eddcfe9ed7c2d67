"""What a verb of the command line is."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb.

    Attributes:
        name: as typed.
        summary: one line for the list of verbs.
        description: what it does, for its own help.
        examples: commands that work, for its own help.
        add_arguments: declares its arguments.
        run: does the work and returns the exit code.
    """

    name: str
    summary: str
    description: str
    examples: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]

    def add_to(self, parsers: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
        """Declare it among others; every verb takes ``--json``."""
        parser: argparse.ArgumentParser = parsers.add_parser(
            self.name,
            help=self.summary,
            description=self.description,
            epilog=self.examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.add_arguments(parser)
        # absent where it is not given, so that a verb does not take back what stood before its action
        parser.add_argument(
            "--json", action="store_true", default=argparse.SUPPRESS, help="print JSON instead of text"
        )
        return parser

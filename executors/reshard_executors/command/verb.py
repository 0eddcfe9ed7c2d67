"""What a verb of the command is."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb.

    Attributes:
        name: as typed.
        summary: one line for the list of verbs.
        description: what it does, for its own help.
        examples: commands that work, for its own help.
        add_arguments: declares its arguments.
        run: does the work, given the arguments and the environment, and returns the exit code.
    """

    name: str
    summary: str
    description: str
    examples: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, Mapping[str, str]], int]

"""Progress: one function that is told the name of each stage."""

from collections.abc import Callable

Progress = Callable[[str], None]
"""Called with the name of a stage as it begins."""


def silent(stage: str) -> None:
    """Report nothing."""


def within(head: str, progress: Progress) -> Progress:
    """Report the stages of a part, after its name."""
    return lambda stage: progress(f"{head}, {stage}")

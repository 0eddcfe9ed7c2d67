"""How a command ends: exit codes, and failures that carry one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from reshard_executors.command.codes import BAD_INPUT, DONE, FAILED, INTERRUPTED, TERMINATED, TRY_AGAIN
from reshard_planner.errors import ExecutionError, InputError, ReshardError

SILENT_STAY_S: Final = 3.0
"""How long a process stays that leaves it to another one to say what is wrong."""

STORE_STAY_S: Final = 1.5
"""How long rank 0, which may keep the store, stays when a run has failed: until all others know of it."""


def describe_codes(meanings: Mapping[int, str]) -> str:
    """Exit codes and what they mean, for ``--help``."""
    title = (
        "exit codes, the same on all ranks that still live; a process that cannot join the others,\n"
        "such as one whose rank another has, ends alone with 2:"
    )
    lines = [f"  {code:<3}  {meaning}" for code, meaning in meanings.items()]
    return "\n".join([title, *lines, ""])


CODES: Final = describe_codes(
    {
        DONE: "done",
        FAILED: "a wrong element, a plan that fails its check, or a result that cannot be printed",
        BAD_INPUT: "bad input",
        TRY_AGAIN: "a rank or the network was lost, or too slow, or another job has the port of rank 0:\n"
        "       try again, on other machines or with another MASTER_PORT if it stays",
        INTERRUPTED: "interrupted (Ctrl-C)",
        TERMINATED: "ended by SIGTERM",
    }
)
"""For ``--help``."""


class CommandError(Exception):
    """A command that cannot go on.

    Attributes:
        code: exit code.
        text: why, in one sentence.
        speaks: whether this process prints it; of ranks that fail for the same reason only one does.
        stay_s: how long the process stays after that, in seconds. Launchers end all ranks as soon as one has
            failed, and one that is silent must not be the reason why another one is.
    """

    def __init__(self, code: int, text: str, *, speaks: bool, stay_s: float | None = None) -> None:
        super().__init__(text)
        self.code, self.text, self.speaks = code, text, speaks
        self.stay_s = (0.0 if speaks else SILENT_STAY_S) if stay_s is None else stay_s


def code_of(error: ReshardError) -> int:
    """The exit code for an error."""
    if isinstance(error, InputError):
        return BAD_INPUT
    return TRY_AGAIN if isinstance(error, ExecutionError) else FAILED

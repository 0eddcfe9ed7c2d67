"""The name of the command, and its exit codes. Importing this needs nothing else."""

from typing import Final

PROGRAM: Final = "reshard-executors"

DONE: Final = 0
FAILED: Final = 1
BAD_INPUT: Final = 2
TRY_AGAIN: Final = 75
"""EX_TEMPFAIL of sysexits.h, which schedulers know as a reason to start again."""
INTERRUPTED: Final = 130
TERMINATED: Final = 143


class Terminated(BaseException):
    """SIGTERM has come; not an :class:`Exception`, like KeyboardInterrupt."""

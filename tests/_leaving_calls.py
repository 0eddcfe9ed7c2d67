"""What the processes of test_leaving.py do, with a private group of all ranks."""

from __future__ import annotations

import contextlib
import gc
from datetime import timedelta
from typing import Any

from reshard_executors.private import PrivateGroup
from reshard_executors.threads import join_helpers

from reshard_planner.errors import ExecutionError

State = dict[str, Any]

TIMEOUT, LOST_AFTER = timedelta(seconds=20), timedelta(seconds=10)


def make(state: State) -> None:
    """Make the group; the next call is its second."""
    state["group"] = PrivateGroup(None, TIMEOUT, LOST_AFTER)


def end_well(state: State, wanted: bool, how: str) -> None:  # noqa: FBT001 - sent through a pipe
    """End a call well on the ranks that are wanted, and leave the group at once."""
    if not wanted:
        return
    group = state["group"]
    group.wait(group.ask(lambda *_: None))
    if how == "by closing it":
        group.close()
    del group, state["group"]
    gc.collect()
    join_helpers(10)


def be_interrupted(state: State, wanted: bool) -> None:  # noqa: FBT001 - as above
    """Come to the same call on the rank that is wanted, and leave it by Ctrl-C."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    if wanted:
        group = state["group"]
        with contextlib.suppress(KeyboardInterrupt):
            group.wait(group.ask(interrupt))
        join_helpers(10)


def fail(state: State, wanted: bool) -> tuple[str, tuple[int, ...]] | None:  # noqa: FBT001 - as above
    """Come to the same call on the rank that is wanted, and find a connection closed; what it says then."""

    def reset(*_: object) -> None:
        raise ExecutionError("Connection reset by peer")

    if not wanted:
        return None
    group = state["group"]
    try:
        group.wait(group.ask(reset))
    except ExecutionError as error:
        return str(error), error.lost
    return None

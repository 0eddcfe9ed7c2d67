"""Meeting: all ranks of a group come to one place in its store before anything that waits without end."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final

from torch._C._distributed_c10d import PrefixStore, Store

from reshard_executors.agreement import not_met
from reshard_executors.spelling import spell_ranks
from reshard_executors.watch import RANKS_PER_BEAT, first_sign
from reshard_planner.errors import ExecutionError

FIRST_PAUSE_S: Final = 0.005
LAST_PAUSE_S: Final = 0.1
"""From one look to the next: first the one, then more and more, at most the other; more in large groups."""

MAKE: Final = "make a group"
"""What ranks meet to do here."""

ALL_CAME: Final = "all came"
GIVEN_UP: Final = "given up"
"""Keys in the store: how a meeting has ended."""


def meet(
    store: Store,
    position: int,
    names: Sequence[int],
    timeout: timedelta,
    given_up: Callable[[], str | None] = lambda: None,
) -> tuple[Store, str]:
    """Wait until all ranks have come; collective, and done as often on all ranks.

    Args:
        store: of the group.
        position: of this process in the group.
        names: what each rank of the group is called in messages.
        timeout: how long to wait.
        given_up: says why this rank does not wait any longer; None as long as it does.

    Returns:
        A store for this meeting alone, and a name that no other meeting has, the same on all ranks.

    Raises:
        ExecutionError: naming the ranks that have not come in time, also where another rank has given up.
        RuntimeError: if the store is gone.
    """
    here = _next_place(store, position)
    first_sign(here, position)
    if position == 0:
        here.set("name", uuid.uuid4().hex)
    if here.add("came", 1) == len(names) and not here.check([GIVEN_UP]):
        here.set(ALL_CAME, "")
    here.set(f"came {position}", "")  # last, so that a rank that dies on the way is one that did not come
    until = time.monotonic() + timeout.total_seconds()
    pause_s = FIRST_PAUSE_S
    while not here.check([ALL_CAME]):
        own = given_up()
        if own is not None:
            here.set(GIVEN_UP, f"rank {names[position]}: {own}")
        elif time.monotonic() > until:
            here.set(GIVEN_UP, f"{_missing(here, names)} within {timeout.total_seconds():g} s")
        if here.check([GIVEN_UP]):
            why = here.get(GIVEN_UP).decode(errors="replace")
            raise ExecutionError(f"{not_met(MAKE)}: {why}")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LAST_PAUSE_S * max(1.0, len(names) / RANKS_PER_BEAT))
    return here, here.get("name").decode()


def refuse(store: Store, position: int, why: str) -> None:
    """Take part in the next meeting of all ranks by telling them why it cannot be; they call :func:`meet`.

    Raises:
        RuntimeError: if the store is gone.
    """
    _next_place(store, position).set(GIVEN_UP, why)


def _next_place(store: Store, position: int) -> Store:
    """Where the ranks meet that have met, or tried to, as often as this one."""
    return PrefixStore(f"reshard {store.add(f'reshard meetings of {position}', 1)}", store)


def _missing(here: Store, names: Sequence[int]) -> str:
    missing = [name for position, name in enumerate(names) if not here.check([f"came {position}"])]
    return f"{spell_ranks(missing)} did not come"

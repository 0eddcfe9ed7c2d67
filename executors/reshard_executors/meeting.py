"""Meeting: all ranks of a group come to one place in its store before anything that waits without end.

Meetings are numbered, and one is open at a time: a rank that comes finds out its number from the store, so
that ranks which have missed one, or have tried more often than others, meet all the same.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final

from torch._C._distributed_c10d import PrefixStore, Store

from reshard_executors.agreement import not_met
from reshard_executors.pauses import pauses
from reshard_executors.signs import first_sign
from reshard_executors.spelling import spell_ranks
from reshard_planner.errors import ExecutionError

MAKE: Final = "make a group"
"""What ranks meet to do here."""

OPEN: Final = "reshard meeting open"
"""Key in the store of the group: number of the meeting that is open, or was last."""

COUNT: Final = "count"
NAME: Final = "name"
END: Final = "end"
"""Keys of a meeting: how many have come, its name, and how it has ended."""

ALL_CAME: Final = "all came"
REFUSED: Final = "refused: "
LATE: Final = "late: "
"""How a meeting ends: well; because a rank says why it does not go on, which all others hear that have not
come yet, too; or because time is over, which those that were late need not hear."""


def meet(
    store: Store,
    position: int,
    names: Sequence[int],
    timeout: timedelta,
    given_up: Callable[[], str | None] = lambda: None,
) -> tuple[Store, str]:
    """Wait until all ranks have come; collective.

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
    here = _open_place(store, position)
    end = _end(here)
    if not end:
        first_sign(here, position)
        if position == 0:
            here.set(NAME, uuid.uuid4().hex)
        # a rank that comes again, after it was interrupted, is counted once
        if not here.check([_came(position)]) and here.add(COUNT, 1) == len(names):
            here.compare_set(END, "", ALL_CAME)
        here.set(_came(position), "")  # last, so that a rank that dies on the way is one that did not come
    until = time.monotonic() + timeout.total_seconds()
    pause_s = pauses(len(names))
    while not end:
        own = given_up()
        if own is not None:
            here.compare_set(END, "", f"{REFUSED}rank {names[position]}: {own}")
        elif time.monotonic() > until:
            missing = [name for at, name in enumerate(names) if not here.check([_came(at)])]
            late = f"{spell_ranks(missing)} did not come within {timeout.total_seconds():g} s"
            here.compare_set(END, "", LATE + late)
        else:
            time.sleep(next(pause_s))
        end = _end(here)
    if end != ALL_CAME:
        raise ExecutionError(f"{not_met(MAKE)}: {end.removeprefix(REFUSED).removeprefix(LATE)}")
    return here, here.get(NAME).decode()


def refuse(store: Store, position: int, why: str) -> None:
    """Take part in the meeting of all ranks by telling them why it cannot be; they call :func:`meet`.

    Args:
        store: of the group.
        position: of this process in the group.
        why: said to the others.

    Raises:
        RuntimeError: if the store is gone.
    """
    _open_place(store, position).compare_set(END, "", REFUSED + why)


def _open_place(store: Store, position: int) -> Store:
    """Where the meeting is that is open, or one that was refused and that this rank has not heard of."""
    while True:
        number = int(store.compare_set(OPEN, "", "0"))
        here = PrefixStore(f"reshard meeting {number}", store)
        heard = f"reshard meeting heard by {position}"
        end = _end(here)
        if not end or (end.startswith(REFUSED) and store.compare_set(heard, "", "-1") != b"%d" % number):
            store.set(heard, str(number))
            return here
        store.compare_set(OPEN, str(number), str(number + 1))


def _end(here: Store) -> str:
    """How a meeting has ended; empty as long as it has not."""
    return here.get(END).decode(errors="replace") if here.check([END]) else ""


def _came(position: int) -> str:
    return f"came {position}"

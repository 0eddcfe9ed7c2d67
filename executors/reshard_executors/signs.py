"""Signs of life: what ranks write into the store of their group, and what is said of those that do not."""

from __future__ import annotations

from typing import Final, NamedTuple

from torch._C._distributed_c10d import Store

from reshard_executors.spelling import spell_ranks_have

FAILED: Final = "failed"
MOVING: Final = "moving"
"""Keys in the store: the first failure, and who went forward last."""

SILENCE: Final = "given no sign of life"
STORE_GONE: Final = (
    "the store of the process group is gone, and with it the process that keeps it,"
    " which is rank 0 of the world unless the launcher does"
)
"""What is said of ranks, and of the store."""

LEFT: Final = b"left"
DONE: Final = b"done"
DEAD: Final = b"dead"
"""The last sign of a rank that leaves before its time, as by Ctrl-C; of one that closes or drops its group,
followed by the number of calls up to the last that ended well on it; and of one whose group has failed."""


class Lost(NamedTuple):
    """Names of ranks that are no longer in the group.

    Attributes:
        silent: those that have stopped giving signs of life.
        left: those that have left of their own.
    """

    silent: list[int]
    left: list[int]

    def __str__(self) -> str:
        """What is said of them; empty if there are none."""
        said = [f"{spell_ranks_have(self.silent)} {SILENCE}"] if self.silent else []
        if self.left:
            said.append(f"{spell_ranks_have(self.left)} left the group")
        return "; ".join(said)


def has_left(sign: bytes) -> bool:
    """Whether a rank has left of its own, by its last sign."""
    return sign == LEFT or sign.startswith(DONE)


def is_last(sign: bytes) -> bool:
    """Whether a rank gives no more signs after this one."""
    return sign == DEAD or has_left(sign)


def left_early(sign: bytes, call: int) -> bool:
    """Whether a rank has left of its own, and not after a call that had ended well on it.

    Who closes a group after the last call lives on, and may come again where others still fail in that call.
    """
    return sign == LEFT or (sign.startswith(DONE) and int(sign.split()[1]) < call)


def first_sign(store: Store, position: int) -> None:
    """Write what the other ranks will read, before they all meet: reading waits for what is not there."""
    store.set(sign_key(position), "0 0")
    store.set(MOVING, "")


def lost_key(position: int) -> str:
    """Key that says that a rank is lost."""
    return f"lost {position}"


def sign_key(position: int) -> str:
    """Key of a rank's signs of life."""
    return f"life of {position}"

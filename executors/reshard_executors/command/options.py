"""Options that verbs have in common: what all processes of a launcher are given alike."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import Final

from reshard_executors.spelling import spell_count
from reshard_planner.errors import InputError

MAX_SECONDS: Final = 7 * 24 * 3600
"""Most that any option may have of seconds."""


def add_launcher_options(
    parser: argparse.ArgumentParser, timeout_s: float, timeout_help: str, backend_help: str
) -> None:
    """Declare ``--ranks``, ``--timeout`` and ``--backend``.

    Args:
        parser: of a verb.
        timeout_s: default of ``--timeout``.
        timeout_help: what ranks wait for so many seconds.
        backend_help: what the backend is for.
    """
    parser.add_argument(
        "--ranks",
        metavar="LIST",
        help="rank of the plan that each process plays, such as 4-7,0-3 (default: its own rank)",
    )
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=float,
        default=timeout_s,
        help=f"seconds that ranks wait for one another {timeout_help} (default {timeout_s:g})",
    )
    parser.add_argument(
        "--backend", choices=("gloo", "nccl"), help=f"{backend_help} (default: nccl where CUDA is)"
    )


def check_seconds(arguments: argparse.Namespace, names: Sequence[str]) -> None:
    """Check options that are seconds.

    Args:
        arguments: of the verb.
        names: of the options in it, such as ``lost_after``.

    Raises:
        InputError: naming the option.
    """
    for name in names:
        value = getattr(arguments, name)
        if not 0 < value <= MAX_SECONDS or math.isnan(value):
            raise InputError(f"{_spelled(name)} is {value}; expected seconds above 0 and up to {MAX_SECONDS}")


def check_integer(arguments: argparse.Namespace, name: str, least: int, most: int) -> None:
    """Check an option that is an integer; see :func:`check_seconds`."""
    value = getattr(arguments, name)
    if not least <= value <= most:
        raise InputError(f"{_spelled(name)} is {value}; expected an integer from {least} to {most}")


def _spelled(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def played_ranks(text: str | None, processes: int | None) -> tuple[int, ...] | None:
    """The rank of the plan that each process plays, by ``--ranks``.

    Args:
        text: of the option; None without it.
        processes: how many the launcher has started; None if they do not matter.

    Returns:
        None without the option: each process plays its own rank.

    Raises:
        InputError: if it is no list of distinct ranks, one for each process.
    """
    if text is None:
        return None
    ranks = parse_ranks(text)
    seen: set[int] = set()
    for rank in ranks:
        if rank in seen:
            raise InputError(f"--ranks is {text!r}, which has rank {rank} twice; expected distinct ranks")
        seen.add(rank)
    if processes is not None and len(ranks) != processes:
        raise InputError(
            f"--ranks has {spell_count(len(ranks), 'rank')}; expected one for each process of the launcher,"
            f" of which there {'is' if processes == 1 else 'are'} {processes}"
        )
    return ranks


def parse_ranks(text: str) -> tuple[int, ...]:
    """A list of ranks with ranges, in the order given.

    Raises:
        InputError: if it is something else.

    >>> parse_ranks("4-6,0")
    (4, 5, 6, 0)
    """
    ranks: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        ends = [end for end in (first, last if dash else first) if end.isascii() and end.isdecimal()]
        if len(ends) != 2 or max(map(len, ends)) > 7 or int(ends[0]) > int(ends[1]):
            raise InputError(f"--ranks is {text!r}; expected ranks and ranges of them, such as 4-7,0-3")
        ranks.extend(range(int(ends[0]), int(ends[1]) + 1))
    return tuple(ranks)

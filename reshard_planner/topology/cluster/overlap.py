"""Sets that overlap, directly or through others, as one."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from collections.abc import Set as AbstractSet
from typing import TypeVar

Owner = TypeVar("Owner")
Member = TypeVar("Member", bound=Hashable)


def join_overlapping(
    sets: Iterable[tuple[Owner, AbstractSet[Member]]],
) -> list[tuple[list[Owner], set[Member]]]:
    """The owners of sets that overlap, directly or through others, with all members of theirs.

    Owners keep their order. A set without members is nobody's.

    >>> join_overlapping([("a", {1}), ("b", {2}), ("c", {1, 3})])
    [(['b'], {2}), (['a', 'c'], {1, 3})]
    """
    groups: list[tuple[list[Owner], set[Member]]] = []
    for owner, members in sets:
        if not members:
            continue
        joined: tuple[list[Owner], set[Member]] = ([owner], set(members))
        apart = []
        for owners, known in groups:
            if known.isdisjoint(joined[1]):
                apart.append((owners, known))
            else:
                joined = ([*owners, *joined[0]], known | joined[1])
        groups = [*apart, joined]
    return groups

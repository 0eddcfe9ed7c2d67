"""Pairs: which ranks measure with which, turn by turn, and which send at the same time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

LEAST_ROUNDS: Final = 3
"""Rounds within hosts, and between them, that are planned at least: a rank sits out one of them at most."""

WITHIN: Final = 1 / 3
"""Share of the turns that pairs within hosts may take, where there is no time for all pairs."""

Pair = tuple[int, int]
"""Two ranks, the lower one first; of trains the sender first."""

Hosts = Sequence[Sequence[int]]
"""Ranks of each host, in the order of their GPUs."""


@dataclass(frozen=True, slots=True)
class Turns:
    """Who measures when.

    Attributes:
        turns: pairs that measure at the same time. No rank is in two of them, and of each host at most one
            pair at a time reaches out to another one, so that it has the NICs and the network to itself.
        pair_count: number of all pairs that there are.
    """

    turns: tuple[tuple[Pair, ...], ...]
    pair_count: int


def circle_round(count: int, number: int) -> list[Pair]:
    """One round of the circle method: disjoint pairs of ``count`` things, of an odd count one stays alone.

    Over all rounds every pair comes once.

    Args:
        count: number of things.
        number: of the round, from 0 to below :func:`circle_rounds`.

    >>> [circle_round(4, number) for number in range(3)]
    [[(0, 3), (1, 2)], [(0, 2), (1, 3)], [(0, 1), (2, 3)]]
    """
    size = count + count % 2
    turned = [(place - number - 1) % (size - 1) + 1 for place in range(1, size)]
    seats = [0, *turned]
    pairs = ((seats[place], seats[size - 1 - place]) for place in range(size // 2))
    return [(min(pair), max(pair)) for pair in pairs if max(pair) < count]


def circle_rounds(count: int) -> int:
    """Number of rounds of the circle method."""
    return 0 if count < 2 else count + count % 2 - 1


def plan_turns(hosts: Hosts, most_turns: int) -> Turns:
    """All pairs, or as many as the turns have room for.

    Within hosts the pairs of a turn follow the circle method. So do pairs of hosts, and between two hosts
    one pair of ranks follows another, first those of equal position, which share a rail, then those one
    further, and so on. Where turns are too few for all, every rank gets several partners within its host and
    on several other hosts.

    Args:
        hosts: ranks of each host, in the order of their GPUs.
        most_turns: how many turns there is time for; a few more are planned where ranks would be left out.
    """
    within = max(map(circle_rounds, map(len, hosts)))
    widest = max(map(len, hosts))
    sweeps = circle_rounds(len(hosts)) * widest
    if within + sweeps * widest > most_turns:
        kept = min(within, int(WITHIN * most_turns))
        sweeps = min(sweeps, max(LEAST_ROUNDS, (most_turns - kept) // widest))
        within = min(within, max(LEAST_ROUNDS, most_turns - sweeps * widest))
    seen: set[Pair] = set()
    turns = [*_within(hosts, within)]
    for number in range(sweeps):
        turns += _sweep(hosts, number, seen)
    ranks = sum(map(len, hosts))
    return Turns(tuple(turns), ranks * (ranks - 1) // 2)


def _within(hosts: Hosts, rounds: int) -> Iterator[tuple[Pair, ...]]:
    for number in range(rounds):
        yield tuple(
            _ordered(ranks[one], ranks[other])
            for ranks in hosts
            if number < circle_rounds(len(ranks))
            for one, other in circle_round(len(ranks), number)
        )


def _sweep(hosts: Hosts, number: int, seen: set[Pair]) -> Iterator[tuple[Pair, ...]]:
    """Turns in which every rank of each pair of hosts measures once; pairs seen before are left out."""
    shift, round_number = divmod(number, circle_rounds(len(hosts)))
    columns = []
    for one, other in circle_round(len(hosts), round_number):
        few, many = sorted((hosts[one], hosts[other]), key=len)
        column = [
            _ordered(few[place % len(few)], many[(place + shift + round_number) % len(many)])
            for place in range(len(many))
        ]
        columns.append([pair for pair in column if pair not in seen])
        seen.update(column)
    for place in range(max(map(len, columns))):
        yield tuple(column[place] for column in columns if place < len(column))


def plan_full_turns(hosts: Hosts) -> list[tuple[tuple[Pair, ...], ...]]:
    """Turns in which hosts send with all ranks at the same time, to show what these share.

    Returns:
        Turns, each of them of groups: the trains from one host to another, from each of its ranks to the one
        of equal position, as far as both have one. Every host sends and receives, and is in one group of a
        turn at most.
    """
    rounds = range(min(circle_rounds(len(hosts)), 1 + len(hosts) % 2))
    forward = [circle_round(len(hosts), number) for number in rounds]
    backward = [[(other, one) for one, other in pairs] for pairs in forward]
    return [
        tuple(tuple(zip(hosts[one], hosts[other], strict=False)) for one, other in pairs)
        for both in zip(forward, backward, strict=True)
        for pairs in both
    ]


def _ordered(one: int, other: int) -> Pair:
    return (one, other) if one < other else (other, one)

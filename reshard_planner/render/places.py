"""Places: ranks that a picture shows together, because there are too many to show each by itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reshard_planner.render.text import format_ranks

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def ranks_title(ranks: Sequence[int], limit: int = 24) -> str:
    """Ranks in about ``limit`` characters.

    >>> ranks_title([3]), ranks_title([0, 1, 2])
    ('rank 3', 'ranks 0-2')
    """
    return f"rank{'s' * (len(ranks) > 1)} {format_ranks(ranks, limit)}"


def domains_title(domains: Sequence[int], limit: int = 24) -> str:
    """Domains, likewise."""
    return f"domain{'s' * (len(domains) > 1)} {format_ranks(domains, limit)}"


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Ranks that are shown together.

    Attributes:
        ranks: the ranks, ascending.
        domains: their domains, ascending.
        holds: whether one of them has bytes before.
        needs: whether one of them must have bytes after.
    """

    ranks: tuple[int, ...]
    domains: tuple[int, ...]
    holds: bool
    needs: bool

    @property
    def name(self) -> str:
        """Its ranks in few characters."""
        return ranks_title(self.ranks, 18)

    @property
    def where(self) -> str:
        """Its domains in few characters, and on which side it is."""
        side = {(True, False): ", before", (False, True): ", after", (True, True): ", before + after"}
        return domains_title(self.domains, 12) + side.get((self.holds, self.needs), "")


@dataclass(frozen=True, slots=True, eq=False)
class RankFacts:
    """What joins ranks.

    Attributes:
        domain: domain of each rank, int64 of shape (ranks,).
        holds: whether it has bytes before, bool of the same shape.
        needs: whether it must have bytes after, likewise.
    """

    domain: Ints
    holds: Bools
    needs: Bools

    def place(self, ranks: Iterable[int]) -> RankPlace:
        """The place of some ranks."""
        inside = sorted(ranks)
        domains = np.unique(self.domain[inside]).tolist()
        return RankPlace(
            tuple(inside), tuple(domains), bool(self.holds[inside].any()), bool(self.needs[inside].any())
        )

    def by_domain(self, ranks: Iterable[int]) -> list[RankPlace]:
        """A place for each domain of some ranks, in order of the domains."""
        inside: dict[int, list[int]] = {}
        for rank in ranks:
            inside.setdefault(int(self.domain[rank]), []).append(rank)
        return [self.place(inside[domain]) for domain in sorted(inside)]


def choose_places(
    ranks: Sequence[int], facts: RankFacts, *, most_ranks: int, most_places: int
) -> tuple[RankPlace, ...]:
    """A place for each rank; where these are too many for each domain, or for several that are alike.

    Args:
        ranks: the ranks to be shown.
        facts: what joins them, of all ranks up to the largest.
        most_ranks: ranks up to which each has a place.
        most_places: places above which domains that are alike are joined, as far as there are such.

    Returns:
        The places, by their first domain and rank; every rank is in one.
    """
    if len(ranks) <= most_ranks:
        places = [facts.place((rank,)) for rank in ranks]
    else:
        whole = facts.by_domain(ranks)
        places, together = whole, 1
        while len(places) > most_places and together < len(whole):
            together *= 2
            places = join_alike(whole, together)
    return tuple(sorted(places, key=lambda place: (place.domains, place.ranks)))


def join_alike(places: Iterable[RankPlace], together: int) -> list[RankPlace]:
    """Join up to ``together`` neighbouring places at a time, of those that agree in holding and needing."""
    alike: dict[tuple[bool, bool], list[RankPlace]] = {}
    for place in sorted(places, key=lambda place: place.domains):
        alike.setdefault((place.holds, place.needs), []).append(place)
    joined = []
    for (holds, needs), members in alike.items():
        for start in range(0, len(members), together):
            part = members[start : start + together]
            ranks = sorted(rank for place in part for rank in place.ranks)
            domains = sorted({domain for place in part for domain in place.domains})
            joined.append(RankPlace(tuple(ranks), tuple(domains), holds, needs))
    return joined


def place_numbers(places: Sequence[RankPlace], size: int) -> Ints:
    """Position of the place of each rank, -1 for none, int64 of shape (size,)."""
    numbers = np.full(size, -1, dtype=np.int64)
    for number, place in enumerate(places):
        numbers[list(place.ranks)] = number
    return numbers

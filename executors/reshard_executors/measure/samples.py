"""Samples: what was measured, of pairs, of hosts that send with all ranks, and of a whole world."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Seat:
    """Where one rank runs.

    Attributes:
        rank: of the world.
        host: name of its host.
        local_rank: what its launcher says of its position there.
        uuid: of its GPU, as the driver reports it; None without one.
    """

    rank: int
    host: str
    local_rank: int
    uuid: str | None = None


@dataclass(frozen=True, slots=True)
class Rate:
    """What messages of one size reached.

    Attributes:
        nbytes: size of each.
        count: how many.
        bytes_per_s: what they reached, the median over trains of them.
    """

    nbytes: int
    count: int
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class PairSample:
    """What two ranks reached while nobody else used their ports.

    Attributes:
        low: the lower rank.
        high: the other one.
        latency_s: half of the time that a small message and its answer took, the median.
        up: from ``low`` to ``high``, by size, ascending.
        down: from ``high`` to ``low``, likewise.
        both: each direction, while both ranks send at the same time.
    """

    low: int
    high: int
    latency_s: float
    up: tuple[Rate, ...]
    down: tuple[Rate, ...]
    both: Rate

    def largest(self, sender: int) -> Rate:
        """What the largest messages of one of both reached, which is what its port can do."""
        return (self.up if sender == self.low else self.down)[-1]

    def rate(self, sender: int) -> float:
        """That in bytes per second."""
        return self.largest(sender).bytes_per_s


@dataclass(frozen=True, slots=True)
class SumSample:
    """What one host reached that sent with all of its ranks to another one.

    Attributes:
        sender: name of the host.
        receiver: name of the other one.
        ranks: how many sent.
        bytes_per_s: what all of them reached together.
        alone_bytes_per_s: what each of them reached alone, added up.
    """

    sender: str
    receiver: str
    ranks: int
    bytes_per_s: float
    alone_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Measurement:
    """All that was measured.

    Attributes:
        backend: ``nccl`` or ``gloo``.
        seats: by rank.
        small_nbytes: size of the messages that latency was measured with.
        pairs: what pairs reached.
        pair_count: number of all pairs that there are; more than ``pairs`` where these are a sample.
        sums: what hosts reached with all of their ranks.
        elapsed_s: how long it took, without meeting, in seconds.
    """

    backend: str
    seats: tuple[Seat, ...]
    small_nbytes: int
    pairs: tuple[PairSample, ...]
    pair_count: int
    sums: tuple[SumSample, ...]
    elapsed_s: float

    def to_dict(self) -> dict[str, Any]:
        """In plain JSON types."""
        return asdict(self)


def group_hosts(seats: Iterable[Seat]) -> dict[str, list[int]]:
    """The ranks of each host in the order of their GPUs: by local rank, as far as launchers tell."""
    hosts: dict[str, list[int]] = {}
    for seat in sorted(seats, key=lambda seat: (seat.local_rank, seat.rank)):
        hosts.setdefault(seat.host, []).append(seat.rank)
    return dict(sorted(hosts.items(), key=lambda item: min(item[1])))


def rates_by_direction(pairs: Iterable[PairSample]) -> dict[tuple[int, int], Rate]:
    """What the largest messages of each measured pair reached, by sender and receiver."""
    return {
        ends: pair.largest(ends[0])
        for pair in pairs
        for ends in ((pair.low, pair.high), (pair.high, pair.low))
    }

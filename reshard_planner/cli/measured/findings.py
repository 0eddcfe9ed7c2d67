"""Findings of a measurement: what is slower than its like, lopsided, or shared, with what follows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

from reshard_planner.cli.measured.cluster import rounded
from reshard_planner.cli.measured.places import Place
from reshard_planner.cli.measured.reached import Reached, medium_of
from reshard_planner.render.text import format_count, format_rate
from reshard_planner.topology.cluster.facts import Finding, FindingKind, join_alike

if TYPE_CHECKING:
    from reshard_executors.measure.samples import Measurement

SLOW = 0.85
"""Below this share of what it is compared with something is reported; measuring is not as exact as that."""

TOGETHER = 0.8
"""Likewise for all ranks of a host, which do not end at the same moment."""

DUPLEX = 0.75
"""Likewise for both directions at the same time, in which processors do twice as much."""


def find_all(
    measurement: Measurement, places: Sequence[Place], reached: Mapping[tuple[int, str], Reached]
) -> tuple[Finding, ...]:
    """All findings.

    Args:
        measurement: what was measured.
        places: by rank.
        reached: by rank and kind of port.
    """
    return join_alike(
        (
            *_slow(places, reached),
            *_lopsided(places, reached),
            *_duplex(measurement, places),
            *_shared(measurement),
        )
    )


def _slow(places: Sequence[Place], reached: Mapping[tuple[int, str], Reached]) -> Iterator[Finding]:
    """Ports that reach less than the median of their kind."""
    rates: dict[str, list[float]] = defaultdict(list)
    for (_, medium), found in reached.items():
        rates[medium].append(found.bytes_per_s)
    for (rank, medium), found in reached.items():
        usual = median(rates[medium])
        if found.bytes_per_s < SLOW * usual:
            text = (
                f"it reaches {_rate(found.bytes_per_s)} over {medium}, {found.bytes_per_s / usual:.0%} of the"
                f" median {_rate(usual)}; transfers that spread evenly wait for it,"
                f" {usual / found.bytes_per_s:.1f} times as long"
            )
            yield Finding(FindingKind.DEGRADED, _place(places, rank), text)


def _lopsided(places: Sequence[Place], reached: Mapping[tuple[int, str], Reached]) -> Iterator[Finding]:
    """Ports of unequal directions."""
    for (rank, medium), found in reached.items():
        lower, upper = sorted((found.out_bytes_per_s, found.in_bytes_per_s))
        if lower < SLOW * upper:
            text = (
                f"over {medium} it sends {_rate(found.out_bytes_per_s)} and receives"
                f" {_rate(found.in_bytes_per_s)}; the lower one is taken for both"
            )
            yield Finding(FindingKind.DEGRADED, _place(places, rank), text)


def _duplex(measurement: Measurement, places: Sequence[Place]) -> Iterator[Finding]:
    """Pairs that reach less in each direction where both are used, one finding for each kind of port."""
    shares: dict[str, dict[tuple[int, int], float]] = defaultdict(dict)
    for pair in measurement.pairs:
        medium = medium_of(places[pair.low], places[pair.high])
        alone = min(pair.rate(pair.low), pair.rate(pair.high))
        if medium is not None:
            shares[medium][pair.low, pair.high] = pair.both.bytes_per_s / alone
    for medium, of_pairs in shares.items():
        less = [pair for pair, share in of_pairs.items() if share < DUPLEX]
        if less:
            low, high = min(less, key=lambda pair: of_pairs[pair])
            text = (
                f"over {medium} {len(less)} of {format_count(len(of_pairs), 'pair')} reach less in each"
                f" direction when both send, {of_pairs[low, high]:.0%} at worst; plans count on both at once"
            )
            yield Finding(FindingKind.DEGRADED, f"ranks {low} and {high}", text)


def _shared(measurement: Measurement) -> Iterator[Finding]:
    """Hosts that reach less with all ranks than these reach alone, added up."""
    what = "a NIC" if measurement.backend == "nccl" else "a NIC or processors"
    for each in measurement.sums:
        share = each.bytes_per_s / each.alone_bytes_per_s
        if each.ranks > 1 and share < TOGETHER:
            text = (
                f"its {each.ranks} ranks send {_rate(each.bytes_per_s)} together to host {each.receiver},"
                f" {share:.0%} of what they reach one at a time: they share {what}, or the network is"
                f" oversubscribed; transfers that use all NICs take {1 / share:.1f} times as long as their"
                " speeds say: give gpus of the shared NIC, or a pod with its uplink, in the cluster file"
            )
            yield Finding(FindingKind.DEGRADED, f"host {each.sender}", text)


def _rate(bytes_per_s: float) -> str:
    return format_rate(rounded(bytes_per_s))


def _place(places: Sequence[Place], rank: int) -> str:
    return f"host {places[rank].host}, GPU {places[rank].gpu} (rank {rank})"

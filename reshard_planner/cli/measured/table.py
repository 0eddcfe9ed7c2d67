"""A measurement as a short text: the slowest and the fastest pair, and each host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

from reshard_planner.cli.measured.cluster import rounded
from reshard_planner.cli.measured.places import Place
from reshard_planner.cli.measured.reached import NIC, NVLINK, Reached, medium_of
from reshard_planner.render.text import align, format_count, format_rate, format_s

if TYPE_CHECKING:
    from reshard_executors.measure.samples import Measurement, PairSample

MAX_HOSTS = 16
"""Hosts that are shown; of more, those with the slowest NICs."""


def measurement_text(
    measurement: Measurement, places: Sequence[Place], reached: Mapping[tuple[int, str], Reached]
) -> str:
    """Some lines: what was measured, the slowest and the fastest pair of each kind, and medians by host.

    Args:
        measurement: what was measured.
        places: by rank.
        reached: by rank and kind of port.
    """
    hosts = len({place.host for place in places})
    title = (
        f"{format_count(len(places), 'rank')} on {format_count(hosts, 'host')} over {measurement.backend}:"
        f" {len(measurement.pairs)} of {format_count(measurement.pair_count, 'pair')} measured in"
        f" {format_s(measurement.elapsed_s)}"
    )
    lines = [title]
    for medium in (NVLINK, NIC):
        pairs = [
            pair for pair in measurement.pairs if medium_of(places[pair.low], places[pair.high]) == medium
        ]
        if pairs:
            for word, choose in (("slowest", min), ("fastest", max)):
                low = choose(pairs, key=_lower)
                lines.append(f"{medium:<6}  {word}  {_pair(low, places)}")
    lines += ["", align(list(_hosts(measurement, places, reached)))]
    return "\n".join(lines)


def _lower(pair: PairSample) -> float:
    return min(pair.rate(pair.low), pair.rate(pair.high))


def _pair(pair: PairSample, places: Sequence[Place]) -> str:
    ends = (f"rank {rank} ({places[rank].host}, GPU {places[rank].gpu})" for rank in (pair.low, pair.high))
    return f"{' and '.join(ends)}: {_rate(_lower(pair))}, {format_s(pair.latency_s)}"


def _hosts(
    measurement: Measurement, places: Sequence[Place], reached: Mapping[tuple[int, str], Reached]
) -> Iterator[tuple[str, ...]]:
    """Rows of the table: medians over the ranks of each host."""
    yield "host", "ranks", "NVLink", "latency", "NIC", "latency", "all NICs send", "alone, added"
    ranks: dict[str, list[int]] = {}
    for rank, place in enumerate(places):
        ranks.setdefault(place.host, []).append(rank)

    def of_host(name: str, medium: str) -> list[Reached]:
        return [reached[rank, medium] for rank in ranks[name] if (rank, medium) in reached]

    def slowness(name: str) -> float:
        return min((each.bytes_per_s for each in of_host(name, NIC)), default=0.0)

    names = list(ranks)
    if len(names) > MAX_HOSTS:
        names = sorted(names, key=slowness)[:MAX_HOSTS]
    lowest = {each.sender: each for each in sorted(measurement.sums, key=lambda one: -one.bytes_per_s)}
    senders = {measurement.seats[rank].host: name for name, own in ranks.items() for rank in own}
    sums = {senders[sender]: each for sender, each in lowest.items()}
    for name in names:
        cells = []
        for medium in (NVLINK, NIC):
            found = of_host(name, medium)
            cells.append(_rate(median(each.bytes_per_s for each in found)) if found else "-")
            cells.append(format_s(median(each.latency_s for each in found)) if found else "-")
        together = sums.get(name)
        cells.append("-" if together is None else _rate(together.bytes_per_s))
        cells.append("-" if together is None else _rate(together.alone_bytes_per_s))
        yield name, str(len(ranks[name])), *cells
    if len(names) < len(ranks):
        yield (f"{len(ranks) - len(names)} hosts with faster NICs", *[""] * 7)


def _rate(bytes_per_s: float) -> str:
    return format_rate(rounded(bytes_per_s))

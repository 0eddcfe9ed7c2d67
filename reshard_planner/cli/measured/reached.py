"""Reached: what each rank's port into its domain, and what its NICs have reached, over all of its pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from reshard_planner.cli.measured.places import Place
from reshard_planner.render.text import format_nbytes, format_ranks

if TYPE_CHECKING:
    from reshard_executors.measure.samples import Measurement, PairSample

NVLINK, NIC = "NVLink", "NIC"
"""What a pair used: the ports into their domain, or NICs."""


@dataclass(frozen=True, slots=True)
class Reached:
    """What one rank reached over one kind of port.

    Attributes:
        out_bytes_per_s: what it sent to the partner that it reached best.
        in_bytes_per_s: what it received from such a partner.
        latency_s: of small messages, the median over its partners.
        source: how that was measured, for the cluster file.
    """

    out_bytes_per_s: float
    in_bytes_per_s: float
    latency_s: float
    source: str

    @property
    def bytes_per_s(self) -> float:
        """What it reached in both directions: the lower one."""
        return min(self.out_bytes_per_s, self.in_bytes_per_s)


def medium_of(one: Place, other: Place) -> str | None:
    """What two ranks use; None for GPUs of a host that do not share a domain, which tell of neither."""
    if one.domain == other.domain:
        return NVLINK
    return NIC if one.host != other.host else None


def find_reached(measurement: Measurement, places: Sequence[Place]) -> dict[tuple[int, str], Reached]:
    """What was reached, by rank and kind of port.

    A pair is as fast as its slower port, so that a port is what its best partner shows of it.

    Args:
        measurement: what was measured.
        places: by rank.
    """
    pairs: dict[tuple[int, str], list[PairSample]] = {}
    for pair in measurement.pairs:
        medium = medium_of(places[pair.low], places[pair.high])
        if medium is not None:
            for rank in (pair.low, pair.high):
                pairs.setdefault((rank, medium), []).append(pair)
    return {key: _reached(measurement.backend, key[0], own) for key, own in sorted(pairs.items())}


def _reached(backend: str, rank: int, pairs: Sequence[PairSample]) -> Reached:
    partners = [pair.high if rank == pair.low else pair.low for pair in pairs]
    nbytes = max(pair.up[-1].nbytes for pair in pairs)
    return Reached(
        max(pair.rate(rank) for pair in pairs),
        max(pair.rate(partner) for pair, partner in zip(pairs, partners, strict=True)),
        median(pair.latency_s for pair in pairs),
        f"{backend}, messages of {format_nbytes(nbytes)}, rank {rank} with {format_ranks(partners)}",
    )

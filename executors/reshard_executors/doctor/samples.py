"""Samples: what was measured on each edge of the probe, from both of its ends and both rounds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from reshard_executors.doctor.probe import INSIDE, Edge, Sample

USED: Final = 0.25
"""Share of what was sent that must leave by a port for the port to count as used."""


@dataclass(frozen=True, slots=True)
class Measured:
    """All that was measured.

    Attributes:
        edges: who sent to whom.
        nbytes: by edge, what was sent in the round that tells.
        sent: by edge, what left meanwhile by each port of the sender's network.
        bytes_per_s: by edge, the better rate of the two rounds.
        nics: ports that count as NICs, by name.
        counted: whether there are counters.
    """

    edges: tuple[Edge, ...]
    nbytes: dict[int, int]
    sent: dict[int, dict[str, int]]
    bytes_per_s: dict[int, float]
    nics: frozenset[str]
    counted: bool

    def left(self, number: int, ports: Collection[str]) -> int:
        """Bytes that left by some ports while an edge was used."""
        return sum(count for port, count in self.sent.get(number, {}).items() if port in ports)

    def share(self, number: int, ports: Collection[str]) -> float:
        """That, as a share of what was sent."""
        return self.left(number, ports) / max(self.nbytes.get(number, 0), 1)

    def ports(self, number: int) -> tuple[str, ...]:
        """Ports that an edge uses, by name; none if it stays on the host."""
        return tuple(port for port in sorted(self.sent.get(number, {})) if self.share(number, [port]) >= USED)


def collect(edges: Sequence[Edge], samples: Sequence[Sample], *, counted: bool) -> Measured:
    """Put samples together.

    Of the two rounds the one counts in which less left by all ports, in proportion: others use them too.

    A port counts as a NIC if traffic between domains leaves by it. So one that only carries what is sent
    inside domains, as where NVLink is emulated by an interface, is none. Where no traffic leaves its host
    between domains, or there is but one domain, every port is a NIC.

    Args:
        edges: who sent to whom.
        samples: of all ranks, both rounds.
        counted: whether there are counters.
    """
    nbytes: dict[int, int] = {}
    sent: dict[int, dict[str, int]] = {}
    rates: dict[int, float] = {}
    for sample in samples:
        if sample.elapsed_s is not None:
            rate = sample.nbytes / max(sample.elapsed_s, 1e-9)
            rates[sample.edge] = max(rates.get(sample.edge, 0.0), rate)
        if sample.sent is not None:
            before = sum(sent[sample.edge].values()) / nbytes[sample.edge] if sample.edge in sent else None
            if before is None or sum(sample.sent.values()) / sample.nbytes <= before:
                nbytes[sample.edge], sent[sample.edge] = sample.nbytes, sample.sent
    found = Measured(tuple(edges), nbytes, sent, rates, frozenset(), counted)
    outside = [number for number, edge in enumerate(edges) if edge.kind != INSIDE]
    nics = {port for number in outside for port in found.ports(number)}
    every = {port for ports in sent.values() for port in ports}
    return Measured(found.edges, nbytes, sent, rates, frozenset(nics or every), counted)

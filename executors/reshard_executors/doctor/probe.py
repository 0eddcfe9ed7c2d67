"""Probe: which pairs of ranks send to one another, in which turns, how much, and what their samples tell."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from reshard_executors.doctor.claims import Claims
from reshard_executors.doctor.hosts import Network

FIRST_NBYTES: Final = 256 * 1024
"""What every pair sends first, to make the connection and to find out how much it can send in time."""

EDGE_S: Final = 0.5
"""How long a pair may send, at the rate that it was found to have, in seconds."""

TURNS_S: Final = 15.0
"""How long all turns together may take, likewise."""

USED: Final = 0.25
"""Share of what was sent that must leave by a port for the port to count as used."""

INSIDE, ACROSS, ASKEW = "inside", "across", "askew"
"""Kinds of edges: within a domain; to the next domain's member of the same index, or of the next index."""


@dataclass(frozen=True, slots=True)
class Edge:
    """One process sends to another.

    Attributes:
        kind: ``inside`` a domain, or between domains: ``across`` to the member with the same index, or
            ``askew`` to the one after it. Where egress goes by the destination's index these two differ.
        domain: of the sender.
        sender: rank of the world.
        receiver: likewise.
        turn: when, from 0; edges of one turn do not disturb each other.
    """

    kind: str
    domain: int
    sender: int
    receiver: int
    turn: int


@dataclass(frozen=True, slots=True)
class Sample:
    """What was measured on an edge, in one round.

    Attributes:
        edge: position among the edges.
        nbytes: what was sent.
        elapsed_s: how long that took, as the receiver saw it; None from the sender.
        sent: what left by each port of the sender's network meanwhile; None from the receiver.
    """

    edge: int
    nbytes: int
    elapsed_s: float | None = None
    sent: dict[str, int] | None = None


def plan_edges(claims: Claims, networks: Sequence[Network]) -> list[Edge]:
    """The edges that show what domains and NICs are, in turns.

    Members of a domain send to the next one around a ring, and all of them to the next domain, as far as
    their GPUs have NICs. In one turn no process takes part twice, and no two processes of one network send,
    so that the counters of a network tell what one sender did.

    Args:
        claims: what the plan expects.
        networks: which processes share counters.
    """
    network_of = {rank: number for number, network in enumerate(networks) for rank in network.ranks}
    busy: list[set[int]] = []
    senders: list[set[int]] = []
    found = []
    for kind, sender, receiver in _pairs(claims):
        turn = 0
        while turn < len(busy) and ({sender, receiver} & busy[turn] or network_of[sender] in senders[turn]):
            turn += 1
        if turn == len(busy):
            busy.append(set())
            senders.append(set())
        busy[turn] |= {sender, receiver}
        senders[turn].add(network_of[sender])
        found.append(Edge(kind, claims.domain_of[sender], sender, receiver, turn))
    return found


def _pairs(claims: Claims) -> Iterator[tuple[str, int, int]]:
    """Kind, sender and receiver of every edge."""
    for members in claims.members.values():
        if len(members) > 1:
            for at, sender in enumerate(members):
                yield INSIDE, sender, members[(at + 1) % len(members)]
    domains = list(claims.members.values())
    for number, members in enumerate(domains):
        following = domains[(number + 1) % len(domains)]
        for kind, step in ((ACROSS, 0), (ASKEW, 1)):
            if len(domains) < 2 or (step and len(following) < 2):
                continue
            for at, sender in enumerate(members):
                receiver = following[(at + step) % len(following)]
                if claims.nics_of[sender] and claims.nics_of[receiver]:
                    yield kind, sender, receiver


def choose_nbytes(edges: Sequence[Edge], samples: Sequence[Sample], most_nbytes: int) -> list[int]:
    """How much each edge sends in the second round, so that all of it ends in time.

    Args:
        edges: all edges.
        samples: what receivers have measured in the first round.
        most_nbytes: what nobody needs to exceed.
    """
    rate = {
        sample.edge: sample.nbytes / max(sample.elapsed_s, 1e-6) for sample in samples if sample.elapsed_s
    }
    wanted = [min(most_nbytes, int(EDGE_S * rate.get(number, 0.0))) for number in range(len(edges))]
    turns: dict[int, float] = {}
    for number, edge in enumerate(edges):
        if number in rate:
            turns[edge.turn] = max(turns.get(edge.turn, 0.0), wanted[number] / rate[number])
    share = min(1.0, TURNS_S / max(sum(turns.values()), 1e-6))
    return [max(min(FIRST_NBYTES, most_nbytes), int(share * nbytes)) for nbytes in wanted]


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

"""NICs in the picture of transfers: which rank goes through which, and how many bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from reshard_planner.ir.plan import Plan
from reshard_planner.render.hops.flows import Flow, FlowGraph
from reshard_planner.render.text import format_rate
from reshard_planner.topology import Ports
from reshard_planner.transfer import Medium


@dataclass(frozen=True, slots=True)
class NicNodes:
    """NICs to draw; none where places are not single ranks. NICs that the same GPUs share count as one.

    Attributes:
        names: name of each NIC by its number among all of the topology.
        rates: its rate in words.
        out: bytes out of it.
        into: bytes into it.
        of_place: NIC of each place that uses one.
        sent: bytes that each place sends over the network.
        received: bytes that it receives.
    """

    names: dict[int, str] = field(default_factory=dict)
    rates: dict[int, str] = field(default_factory=dict)
    out: dict[int, int] = field(default_factory=dict)
    into: dict[int, int] = field(default_factory=dict)
    of_place: dict[int, int] = field(default_factory=dict)
    sent: dict[int, int] = field(default_factory=dict)
    received: dict[int, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.names)

    def inside(self, places: Sequence[int]) -> Iterator[int]:
        """NICs of some places, each once, in their order."""
        yield from dict.fromkeys(self.of_place[number] for number in places if number in self.of_place)

    def ends(self, flow: Flow, src: str, dst: str) -> tuple[str, str]:
        """Nodes that a flow between two ranks joins: their NICs where it goes through these."""
        if flow.medium != Medium.NETWORK:
            return src, dst
        tail, head = self.of_place.get(flow.src), self.of_place.get(flow.dst)
        if tail == head:  # without NICs, or within one that both share
            return src, dst
        return src if tail is None else f"nic_{tail}", dst if head is None else f"nic_{head}"


def find_nics(plan: Plan, flows: FlowGraph) -> NicNodes:
    """The NICs that the drawn flows go through."""
    network = [flow for flow in flows.flows if flow.medium == Medium.NETWORK]
    if not flows.by_rank or not network:
        return NicNodes()
    ports = Ports.of(plan.spec.topology, [place.ranks[0] for place in flows.places])
    of_place = {
        number: int(ports.nic_group[flows.places[number].ranks[0]])
        for number in sorted({end for flow in network for end in (flow.src, flow.dst)})
    }
    of_place = {number: nic for number, nic in of_place.items() if nic >= 0}
    sent, received = dict.fromkeys(of_place, 0), dict.fromkeys(of_place, 0)
    for flow in network:
        if flow.src in sent:
            sent[flow.src] += flow.nbytes
        if flow.dst in received:
            received[flow.dst] += flow.nbytes
    used = sorted(set(of_place.values()))

    def through(nbytes: dict[int, int], nic: int) -> int:
        return sum(nbytes[number] for number, each in of_place.items() if each == nic)

    return NicNodes(
        {nic: ports.nic_name[nic].replace("nic of gpu", "NIC of GPU", 1) for nic in used},
        {nic: format_rate(int(ports.nic_bytes_per_s[nic])) + " each way" for nic in used},
        {nic: through(sent, nic) for nic in used},
        {nic: through(received, nic) for nic in used},
        of_place,
        sent,
        received,
    )

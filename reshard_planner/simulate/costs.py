"""Costs: what a run takes beside the bytes over datasheet rates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from reshard_planner.errors import InputError
from reshard_planner.topology import Link, Topology


@dataclass(frozen=True, slots=True)
class Costs:
    """What each rank's own work costs; the costs of links stand in the topology.

    Attributes:
        pack_bytes_per_s: rate at which one rank packs, unpacks and copies, each byte counted once; None,
            which infinity becomes, where that is free.
        slot_s: time of one rank to begin a slot, in seconds.
        message_s: time of one rank to post one message, sent or received, in seconds.
        buffered_nbytes: bytes of a message that the transport takes over, so that the sender is done with one
            of this size or less as soon as it starts; 0 where it reads them in place, as RDMA does.

    Raises:
        InputError: if the rate is not above 0, or a time or the size is negative or not finite.
    """

    pack_bytes_per_s: float | None = None
    slot_s: float = 0.0
    message_s: float = 0.0
    buffered_nbytes: int = 0

    def __post_init__(self) -> None:
        if self.pack_bytes_per_s == inf:
            object.__setattr__(self, "pack_bytes_per_s", None)
        if self.pack_bytes_per_s is not None and not 0 < self.pack_bytes_per_s < inf:
            raise InputError(
                f"pack_bytes_per_s is {self.pack_bytes_per_s!r}; expected a rate above 0, or None"
            )
        for name, value in (("slot_s", self.slot_s), ("message_s", self.message_s)):
            if not 0 <= value < inf:
                raise InputError(f"{name} is {value!r}; expected a time in seconds, 0 or more")
        if isinstance(self.buffered_nbytes, bool) or not isinstance(self.buffered_nbytes, int):
            raise InputError(f"buffered_nbytes is {self.buffered_nbytes!r}; expected an integer")
        if self.buffered_nbytes < 0:
            raise InputError(f"buffered_nbytes is {self.buffered_nbytes}; expected 0 or more")

    @property
    def pack_s_per_byte(self) -> float:
        """Time to pack, unpack or copy one byte, in seconds."""
        return 0.0 if self.pack_bytes_per_s is None else 1 / self.pack_bytes_per_s


FREE = Costs()
"""Ranks whose own work takes no time."""


@dataclass(frozen=True, slots=True)
class LinkCosts:
    """Costs of all links of one medium; None leaves what the topology says.

    Uplinks keep theirs: a message between pods takes the largest latency of the ports that it passes.

    Attributes:
        nic_efficiency: share of the datasheet rate that large messages reach over NICs, above 0, at most 1.
        nic_latency_s: start-up time of a message over the network, in seconds.
        nvlink_efficiency: as for NICs, over NVLink.
        nvlink_latency_s: as for NICs, over NVLink.
    """

    nic_efficiency: float | None = None
    nic_latency_s: float | None = None
    nvlink_efficiency: float | None = None
    nvlink_latency_s: float | None = None


def with_link_costs(topology: Topology, links: LinkCosts) -> Topology:
    """The same cluster with other efficiencies and latencies.

    Raises:
        TopologyError: if an efficiency is not above 0 and at most 1, or a latency is negative.
    """
    domains = tuple(
        replace(domain, link=_changed(domain.link, links.nvlink_efficiency, links.nvlink_latency_s))
        for domain in topology.domains
    )
    nics = tuple(
        replace(nic, link=_changed(nic.link, links.nic_efficiency, links.nic_latency_s))
        for nic in topology.nics
    )
    return replace(topology, domains=domains, nics=nics)


def _changed(link: Link, efficiency: float | None, latency_s: float | None) -> Link:
    return Link(
        link.bytes_per_s,
        link.efficiency if efficiency is None else efficiency,
        link.latency_s if latency_s is None else latency_s,
    )

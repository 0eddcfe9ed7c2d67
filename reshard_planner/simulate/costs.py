"""Costs: what a run takes beside the bytes over datasheet rates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from numbers import Real

from reshard_planner.errors import InputError
from reshard_planner.topology import Link, Topology
from reshard_planner.topology.model import MAX_TIME_S

MIN_BYTES_PER_S = 1e-9
"""Least rate at which ranks pack; with those below, times would be no numbers any more."""


def is_number(value: object) -> bool:
    """Whether a value is a real number of any type, and not a truth value."""
    return isinstance(value, Real) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Costs:
    """What each rank's own work costs; the costs of links stand in the topology.

    Attributes:
        pack_bytes_per_s: rate at which one rank packs, unpacks and copies, each byte counted once, at least
            1e-9; None, which infinity becomes, where that is free.
        slot_s: time of one rank to begin a slot, in seconds, 0 or more and below 1e6.
        message_s: time of one rank to post one message, sent or received, in seconds, likewise.
        buffered_nbytes: bytes of a message that the transport takes over, so that the sender is done with one
            of this size or less as soon as it starts; 0 where it reads them in place, as RDMA does.

    Raises:
        InputError: if one of them is no number, or out of these ranges.
    """

    pack_bytes_per_s: float | None = None
    slot_s: float = 0.0
    message_s: float = 0.0
    buffered_nbytes: int = 0

    def __post_init__(self) -> None:
        rate = self.pack_bytes_per_s
        if rate is not None and (not is_number(rate) or not rate >= MIN_BYTES_PER_S):
            raise InputError(
                f"pack_bytes_per_s is {rate!r}; expected a rate above 0, from {MIN_BYTES_PER_S:g} on, or None"
            )
        if rate == inf:
            object.__setattr__(self, "pack_bytes_per_s", None)
        for name, value in (("slot_s", self.slot_s), ("message_s", self.message_s)):
            if not is_number(value) or not 0 <= value < MAX_TIME_S:
                raise InputError(
                    f"{name} is {value!r}; expected a time in seconds, 0 or more and below {MAX_TIME_S:.0f}"
                )
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
        TopologyError: if an efficiency or a latency is out of the range that a
            :class:`reshard_planner.topology.Link` has for it.
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

"""The one topology model: domains of GPUs, their NICs, and the GPU that each rank runs on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from numbers import Real
from typing import TYPE_CHECKING, Any

from reshard_planner.errors import TopologyError
from reshard_planner.layout.mesh import MAX_RANK

if TYPE_CHECKING:
    import networkx as nx

MIN_EFFICIENCY = 1e-9
"""Least efficiency of a port; with those below, times would be no numbers any more."""

MIN_LATENCY_S = 1e-15
"""Least latency above 0, in seconds; numbers of rounds are shares of it."""

MAX_TIME_S = 1e6
"""Start-up times of messages, and times of other work that is done once, are below this, in seconds."""


@dataclass(frozen=True, slots=True)
class Link:
    """Speed of one port, full duplex.

    Attributes:
        bytes_per_s: datasheet rate per direction; bounds use this one.
        efficiency: share of the datasheet rate that large messages reach, 1e-9 to 1; predictions use it.
        latency_s: start-up time of one message, 0 or from 1e-15 to below 1e6 seconds; predictions use it.

    Raises:
        TopologyError: if one of them is out of these ranges.
    """

    bytes_per_s: int
    efficiency: float
    latency_s: float

    def __post_init__(self) -> None:
        # one spelling per value: the digest of a plan covers the text of its numbers
        for name in ("efficiency", "latency_s"):
            object.__setattr__(self, name, _number(name, getattr(self, name)))
        if isinstance(self.bytes_per_s, bool) or not isinstance(self.bytes_per_s, int):
            raise TopologyError(f"bytes_per_s {self.bytes_per_s!r} is not an integer")
        if not 0 < self.bytes_per_s < 2**53:
            raise TopologyError(f"bytes_per_s {self.bytes_per_s} must be positive and below 2^53")
        if not MIN_EFFICIENCY <= self.efficiency <= 1:
            raise TopologyError(
                f"efficiency {self.efficiency} must be above 0 and at most 1, at least {MIN_EFFICIENCY:g}"
            )
        if self.latency_s and not MIN_LATENCY_S <= self.latency_s < MAX_TIME_S:
            raise TopologyError(
                f"latency_s {self.latency_s} must be a time in seconds, 0 or more,"
                f" below {MAX_TIME_S:.0f} and, where not 0, at least {MIN_LATENCY_S:g}"
            )


def _number(name: str, value: object) -> float:
    """A number of any kind as a float.

    Raises:
        TopologyError: if it is none, or is beyond all floats.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TopologyError(f"{name} {value!r:.40} is not a number")
    try:
        return float(value)
    except OverflowError:
        raise TopologyError(f"{name} is larger than any floating-point number; expected less") from None


NIC_LINK = Link(50_000_000_000, 0.95, 15e-6)
"""Default NIC port: NDR400 datasheet rate; efficiency as measured with nccl-tests on ConnectX-7
(46-49 of 50 GB/s, nccl-tests issues 267 and 290), latency of one network message of NCCL."""

NVLINK_LINK = Link(450_000_000_000, 0.70, 10e-6)
"""Default NVLink port: H100 datasheet rate per direction; efficiency as measured by nccl-tests
all-gather and all-to-all at 512 MiB on 8 GPUs (0.70 to 0.75), latency from the same runs."""


@dataclass(frozen=True, slots=True)
class Nic:
    """One network port.

    Attributes:
        gpus: the GPUs that use it, all of one domain.
        link: its speed.
        rail: NICs of equal rails reach each other without leaving a leaf switch; None where that is unknown.
    """

    gpus: tuple[int, ...]
    link: Link = NIC_LINK
    rail: int | None = None


@dataclass(frozen=True, slots=True)
class Domain:
    """GPUs that reach each other without a NIC, over NVLink or PCIe.

    Attributes:
        gpus: the GPUs, distinct.
        link: each GPU's port into the domain.
    """

    gpus: tuple[int, ...]
    link: Link = NVLINK_LINK


UPLINK_EFFICIENCY = 0.95
"""Share of an uplink's datasheet rate that predictions count with where none is given, as for a NIC."""


@dataclass(frozen=True, slots=True)
class Pod:
    """Domains behind one uplink, which all their traffic with other domains passes.

    Attributes:
        domains: numbers of the domains, distinct.
        uplink: capacity into the pod, and as much out of it.
    """

    domains: tuple[int, ...]
    uplink: Link


@dataclass(frozen=True, slots=True)
class Topology:
    """GPUs in domains, NICs, pods, and the GPU of each rank.

    Attributes:
        domains: a partition of the GPUs.
        nics: network ports; a GPU may have none, one or several, and may share one.
        rank_map: the GPU of rank i at position i; every rank is the GPU of its number when None.
        name: what it was made from, for display.
        pods: groups of domains with an uplink of limited capacity; a domain in none has no such limit.
    """

    domains: tuple[Domain, ...]
    nics: tuple[Nic, ...]
    rank_map: tuple[int, ...] | None = None
    name: str = "custom"
    pods: tuple[Pod, ...] = ()

    def __post_init__(self) -> None:
        home: dict[int, int] = {}
        for index, domain in enumerate(self.domains):
            if not domain.gpus:
                raise TopologyError(f"domain {index} has no GPUs; expected at least one")
            for gpu in domain.gpus:
                if isinstance(gpu, bool) or not isinstance(gpu, int):
                    raise TopologyError(f"GPU {gpu!r} of domain {index} is not an integer")
                if not 0 <= gpu < MAX_RANK:
                    raise TopologyError(
                        f"GPU {gpu} of domain {index} is out of range; expected 0 to {MAX_RANK - 1}"
                    )
                if gpu in home:
                    raise TopologyError(
                        f"GPU {gpu} is in domain {home[gpu]} and in domain {index}; expected one"
                    )
                home[gpu] = index
        if not home:
            raise TopologyError("the topology has no domains; expected at least one")
        for index, nic in enumerate(self.nics):
            for gpu in nic.gpus:
                if gpu not in home:
                    raise TopologyError(f"NIC {index} names GPU {gpu}, which is in no domain")
            if nic.rail is not None and not (type(nic.rail) is int and 0 <= nic.rail < MAX_RANK):
                raise TopologyError(
                    f"rail {nic.rail!r:.40} of NIC {index} must be a number from 0 to {MAX_RANK - 1}"
                )
            if len({home[gpu] for gpu in nic.gpus}) != 1:
                raise TopologyError(f"NIC {index} serves GPUs {list(nic.gpus)}; expected GPUs of one domain")
        self._check_pods()
        if self.rank_map is not None:
            for rank, gpu in enumerate(self.rank_map):
                if gpu not in home or not isinstance(gpu, int):
                    raise TopologyError(f"rank_map puts rank {rank} on GPU {gpu}, which is in no domain")
            seen: set[int] = set()
            for gpu in self.rank_map:
                if gpu in seen:
                    raise TopologyError(f"rank_map uses GPU {gpu} twice; expected one rank per GPU")
                seen.add(gpu)

    def _check_pods(self) -> None:
        pod_of: dict[int, int] = {}
        for index, pod in enumerate(self.pods):
            if not pod.domains:
                raise TopologyError(f"pod {index} has no domains; expected at least one")
            for domain in pod.domains:
                if isinstance(domain, bool) or not isinstance(domain, int):
                    raise TopologyError(f"domain {domain!r} of pod {index} is not an integer")
                if not 0 <= domain < len(self.domains):
                    raise TopologyError(
                        f"pod {index} names domain {domain}; expected 0 to {len(self.domains) - 1}"
                    )
                if domain in pod_of:
                    raise TopologyError(
                        f"domain {domain} is in pod {pod_of[domain]} and in pod {index}; expected one at most"
                    )
                pod_of[domain] = index

    @classmethod
    def from_domains(
        cls,
        domains: Sequence[Sequence[int]],
        nic: Link = NIC_LINK,
        nvlink: Link = NVLINK_LINK,
        rank_map: Sequence[int] | None = None,
    ) -> Topology:
        """Domains as lists of GPUs, with one NIC of their own per GPU.

        Raises:
            TopologyError: if a GPU appears twice or a list is empty.

        >>> Topology.from_domains([[0, 1], [2, 3]]).gpu_count
        4
        """
        gpus = chain.from_iterable(domains)
        return cls(
            tuple(Domain(tuple(members), nvlink) for members in domains),
            tuple(Nic((gpu,), nic) for gpu in gpus),
            None if rank_map is None else tuple(rank_map),
        )

    @classmethod
    def uniform(
        cls,
        gpus: int,
        gpus_per_domain: int,
        nic: Link = NIC_LINK,
        nvlink: Link = NVLINK_LINK,
        rank_map: Sequence[int] | None = None,
    ) -> Topology:
        """GPUs ``0..gpus-1`` in domains of equal size, the last one possibly smaller.

        Raises:
            TopologyError: if a number is not positive.
        """
        if not 1 <= gpus <= MAX_RANK or gpus_per_domain < 1:
            raise TopologyError(
                f"{gpus} GPUs in domains of {gpus_per_domain}; expected 1 to {MAX_RANK} GPUs,"
                " and at least 1 in each domain"
            )
        starts = range(0, gpus, gpus_per_domain)
        lists = [range(start, min(gpus, start + gpus_per_domain)) for start in starts]
        return cls.from_domains(lists, nic, nvlink, rank_map)

    @classmethod
    def preset(
        cls,
        name: str,
        nodes: int,
        gpus_per_domain: int | None = None,
        rank_map: Sequence[int] | None = None,
    ) -> Topology:
        """A cluster of ``nodes`` hosts of a known machine.

        Args:
            name: a key of :data:`reshard_planner.topology.presets.PRESETS`.
            nodes: number of hosts.
            gpus_per_domain: GPUs per NVLink domain, where the machine lets it vary (gb200-nvl72).
            rank_map: GPU of each rank.

        Raises:
            TopologyError: for an unknown preset or an impossible domain size.
        """
        from reshard_planner.topology.presets import build  # noqa: PLC0415 - presets use this model

        return build(name, nodes, gpus_per_domain, rank_map)

    @property
    def gpu_count(self) -> int:
        return sum(len(domain.gpus) for domain in self.domains)

    @property
    def alpha_s(self) -> float:
        """Start-up time of a slot in seconds: the largest latency of any NIC, NVLink port or uplink."""
        links = (
            *(domain.link for domain in self.domains),
            *(nic.link for nic in self.nics),
            *(pod.uplink for pod in self.pods),
        )
        return max(link.latency_s for link in links)

    def gpu_of(self, rank: int) -> int:
        """The GPU that a rank runs on.

        Raises:
            TopologyError: if ``rank_map`` does not list the rank.
        """
        if self.rank_map is None:
            return rank
        if rank >= len(self.rank_map):
            raise TopologyError(f"rank {rank} is not in rank_map, which lists {len(self.rank_map)} ranks")
        return self.rank_map[rank]

    def graph(self) -> nx.Graph[str]:
        """The topology as a networkx graph; see :func:`reshard_planner.topology.graph.build_graph`."""
        from reshard_planner.topology.graph import build_graph  # noqa: PLC0415 - networkx is slow to import

        return build_graph(self)

    def to_dict(self) -> dict[str, Any]:
        """The explicit form that a spec's ``topology`` accepts, in plain JSON types."""
        from reshard_planner.topology.form import to_form  # noqa: PLC0415 - the form uses this model

        return to_form(self)
